// [open]
import { drizzle } from 'drizzle-orm/node-postgres';
import pg from 'pg';

export function open(config) {
  const pool = new pg.Pool(config);
  // A session that ends while nobody listens to its client ends the process, and Drizzle's transactions do not listen.
  pool.on('error', (error) => console.error('idle session:', error.message));
  pool.on('connect', (client) => client.on('error', () => {}));
  // The heartbeat has a connection of its own: the pool of the work would let it wait while that is busy.
  const heartbeats = new pg.Pool({ ...config, max: 1, query_timeout: 5_000 });
  heartbeats.on('error', (error) => console.error('idle session:', error.message));
  return { pool, db: drizzle(pool), heartbeatPool: heartbeats, heartbeats: drizzle(heartbeats) };
}
// [end open]

// [calls]
import { eq, sql } from 'drizzle-orm';

export async function acquire(db, name, holder, ttl) {
  const { rows } = await db.execute(sql`SELECT lease_acquire(${name}, ${holder}, ${ttl + ' ms'}) AS token`);
  return rows[0].token; // a string, exact to the last digit; null: somebody else has it, or it is done
}

export async function extend(db, name, token) {
  const { rows } = await db.execute(sql`SELECT lease_extend(${name}, ${token}) AS expiry`);
  return rows[0].expiry;
}
// [end calls]

// [fenced]
import { bigint, integer, pgTable } from 'drizzle-orm/pg-core';

export const reward = pgTable('reward', {
  player: integer().primaryKey(),
  amount: integer().notNull(),
});

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

// Drizzle wraps what the driver throws.
export const sqlstate = (error) => error.cause?.code ?? error.code;
// [end fenced]

// [column]
export const entry = pgTable('entry', {
  id: integer().primaryKey(),
  amount: integer().notNull(),
  token: bigint({ mode: 'bigint' }), // mode 'number' rounds above 2^53
});

// A table with a token column takes single statements: each save sets the column to the holder's own token, not to the one that it read.
export const saveEntry = (db, { id, amount }, token) =>
  db
    .update(entry)
    .set({ amount, token: BigInt(token) })
    .where(eq(entry.id, id));
// [end column]
