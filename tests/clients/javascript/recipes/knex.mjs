// [open]
import createKnex from 'knex';

// What lease.mjs needs. ttl is in ms, and every call is bounded by a third of it: a heartbeat that goes on does not show that the work's
// connection is alive.
export function open(connection, ttl) {
  const bound = ttl / 3;
  const options = { client: 'pg', acquireConnectionTimeout: bound };
  // A dead connection is destroyed here, as a timeout of a statement in a transaction leaves the ROLLBACK to wait for it.
  const afterCreate = (client, done) => {
    const { stream } = client.connection;
    stream.setTimeout(bound, () => stream.destroy(new Error(`no answer for ${bound} ms`)));
    done(null, client);
  };
  const bounded = { ...connection, connectionTimeoutMillis: bound };
  const knex = createKnex({
    ...options,
    connection: bounded,
    pool: { min: 0, idleTimeoutMillis: bound / 2, afterCreate },
  });
  // The heartbeat has a connection of its own: the pool of the work would let it wait while that is busy.
  const heartbeats = createKnex({ ...options, connection: bounded, pool: { min: 0, max: 1 } });

  // A timeout without `cancel` throws the connection away, and the next call gets a new one; with it, Knex asks the server first.
  const ask = async (expression, bindings) =>
    (await heartbeats.raw(`SELECT ${expression} AS answer`, bindings).timeout(bound)).rows[0].answer;
  return {
    ttl,
    knex,
    heartbeats,
    // The token is a string, exact to the last digit; null: somebody else has it, or it is done.
    acquire: (name, holder) => ask('lease_acquire(?, ?, ?)', [name, holder, `${ttl} ms`]),
    extend: (name, token) => ask('lease_extend(?, ?)', [name, token]),
    evict: (name, token) => ask('(SELECT count(*) FROM lease_evict(?, ?))', [name, token]),
    release: (name, token) => ask('lease_release(?, ?)', [name, token]),
    state: (name) => ask('(SELECT state FROM lease_status WHERE name = ?)', [name]),
    saveItems: (items, token) => saveItems(knex, items, token),
    origin: (error) => error,
    close: () => Promise.all([knex.destroy(), heartbeats.destroy()]),
  };
}
// [end open]

// [fenced]
// A transaction that may write the tables of the lease. What it writes is refused, at the statement or at the COMMIT, once somebody
// else has the lease.
export function fenced(knex, lease, token, work) {
  return knex.transaction(async (trx) => {
    await trx.raw('SELECT lease_fence(?, ?)', [lease, token]);
    const result = await work(trx);
    // An error that work() has caught: PostgreSQL would answer ROLLBACK to the COMMIT, and nobody would hear of it.
    await trx.raw('SELECT 1');
    return result;
  });
}
// [end fenced]

// [column]
// A table with a token column takes single statements: each save sets the column to the holder's own token, not to the one that it read.
export const saveEntry = (knex, { id, amount }, token) => knex('entry').where({ id }).update({ amount, token });

export function saveItems(knex, items, token) {
  const rows = items.map(({ id, title }) => ({ id, title, token }));
  return knex('feed').insert(rows).onConflict('id').merge();
}
// [end column]

// [scheduler]
import { once } from 'node:events';
import { hostname } from 'node:os';
import { lead } from './lease.mjs';

// Calls step(trx) every `every` ms, on the node that is the leader, until SIGTERM.
export async function scheduler(db, name, every, step) {
  const stopping = new AbortController();
  once(process, 'SIGTERM').then(() => stopping.abort());
  const fencedStep = (token) => fenced(db.knex, name, token, step);
  await lead(db, name, `${hostname()}:${process.pid}`, every, fencedStep, stopping.signal);
  await db.close();
}
// [end scheduler]
