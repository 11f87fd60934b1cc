// [open]
import createKnex from 'knex';

export function open(connection) {
  const knex = createKnex({ client: 'pg', connection });
  // The heartbeat has a connection of its own: the pool of the work would let it wait while that is busy.
  const heartbeats = createKnex({ client: 'pg', connection, pool: { min: 0, max: 1 } });
  return { knex, heartbeats };
}
// [end open]

// [calls]
export async function acquire(knex, name, holder, ttl) {
  const { rows } = await knex.raw('SELECT lease_acquire(?, ?, ?) AS token', [name, holder, `${ttl} ms`]);
  return rows[0].token; // a string, exact to the last digit; null: somebody else has it, or it is done
}

export async function extend(knex, name, token) {
  const { rows } = await knex.raw('SELECT lease_extend(?, ?) AS expiry', [name, token]);
  return rows[0].expiry;
}
// [end calls]

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
// [end column]
