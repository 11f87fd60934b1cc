// [open]
import { drizzle } from 'drizzle-orm/node-postgres';
import { eq, sql } from 'drizzle-orm';
import pg from 'pg';
import { createPool } from './pool.mjs';
import { entry, feed } from './drizzle_schema.mjs';

// What lease.mjs needs. ttl is in ms, and every call is bounded by a third of it: a heartbeat that goes on does not show that the work's
// connection is alive.
export function open(config, ttl) {
  const bound = ttl / 3;
  const pool = createPool(config, bound);
  const db = drizzle(pool);
  // The heartbeat has a connection of its own: the pool of the work would let it wait while that is busy.
  const heartbeats = new pg.Pool({ ...config, max: 1, connectionTimeoutMillis: bound, query_timeout: bound });
  heartbeats.on('error', (error) => console.error('idle session:', error.message));
  const beats = drizzle(heartbeats);

  const ask = async (call) => (await beats.execute(sql`SELECT ${call} AS answer`)).rows[0].answer;
  return {
    ttl,
    db,
    // The token is a string, exact to the last digit; null: somebody else has it, or it is done.
    acquire: (name, holder) => ask(sql`lease_acquire(${name}, ${holder}, ${ttl + ' ms'})`),
    extend: (name, token) => ask(sql`lease_extend(${name}, ${token})`),
    evict: (name, token) => ask(sql`(SELECT count(*) FROM lease_evict(${name}, ${token}))`),
    release: (name, token) => ask(sql`lease_release(${name}, ${token})`),
    state: (name) => ask(sql`(SELECT state FROM lease_status WHERE name = ${name})`),
    saveItems: (items, token) => saveItems(db, items, token),
    origin,
    close: () => Promise.all([pool.end(), heartbeats.end()]),
  };
}

// Drizzle wraps what the driver throws, with its code and its detail.
export const origin = (error) => error.cause ?? error;
// [end open]

// [fenced]
// A transaction that may write the tables of the lease. What it writes is refused, at the statement or at the COMMIT, once somebody
// else has the lease.
export function fenced(db, lease, token, work) {
  return db.transaction(async (tx) => {
    await tx.execute(sql`SELECT lease_fence(${lease}, ${token})`);
    const result = await work(tx);
    // An error that work() has caught: PostgreSQL would answer ROLLBACK to the COMMIT, and nobody would hear of it.
    await tx.execute(sql`SELECT 1`);
    return result;
  });
}
// [end fenced]

// [column]
// A table with a token column takes single statements: each save sets the column to the holder's own token, not to the one that it read.
export const saveEntry = (db, { id, amount }, token) =>
  db
    .update(entry)
    .set({ amount, token: BigInt(token) })
    .where(eq(entry.id, id));

export const saveItems = (db, items, token) =>
  db
    .insert(feed)
    .values(items.map(({ id, title }) => ({ id, title, token: BigInt(token) })))
    .onConflictDoUpdate({ target: feed.id, set: { title: sql`excluded.title`, token: BigInt(token) } });
// [end column]
