// [pools]
import pg from 'pg';

export function open(config) {
  const pool = new pg.Pool(config);
  // The heartbeat has a connection of its own: from the pool of the work it would get none while that is busy. A pool of one makes
  // a new connection after an error, and a call that is not answered is one after five seconds.
  const heartbeats = new pg.Pool({ ...config, max: 1, query_timeout: 5_000 });
  // Without a listener the end of an idle session ends the process.
  for (const each of [pool, heartbeats]) each.on('error', (error) => console.error('idle session:', error.message));
  return { pool, heartbeats };
}
// [end pools]

// [calls]
export async function acquire(pool, name, holder, ttl) {
  const { rows } = await pool.query('SELECT lease_acquire($1, $2, $3) AS token', [name, holder, `${ttl} ms`]);
  return rows[0].token; // a string, exact to the last digit; null: somebody else has it, or it is done
}

export async function extend(pool, name, token) {
  const { rows } = await pool.query('SELECT lease_extend($1, $2) AS expiry', [name, token]);
  return rows[0].expiry; // a Date; null: lost
}

export async function release(pool, name, token) {
  const { rows } = await pool.query('SELECT lease_release($1, $2) AS released', [name, token]);
  return rows[0].released;
}
// [end calls]

// [transaction]
export async function transaction(pool, work) {
  const client = await pool.connect();
  let broken;
  const ended = (error) => (broken = error);
  // The pool listens to idle clients only: without this a session that ends between two of our statements ends the process.
  client.on('error', ended);
  try {
    await client.query('BEGIN');
    const result = await work(client);
    const { command } = await client.query('COMMIT');
    // PostgreSQL answers so, without an error, if a statement has failed and somebody has caught that.
    if (command !== 'COMMIT') throw new Error('the transaction was rolled back');
    return result;
  } catch (error) {
    await client.query('ROLLBACK').catch(ended);
    throw error;
  } finally {
    client.off('error', ended);
    client.release(broken);
  }
}
// [end transaction]

// [job]
import { heartbeat } from './heartbeat.mjs';

const JOB = 'daily-reward';

// Every node's cron calls this every few minutes. One does it, from where the last one came to; for the others, and once it is
// done, it is nothing.
export async function dailyReward({ pool, heartbeats }, holder, ttl = 30_000) {
  const sent = performance.now();
  const token = await acquire(heartbeats, JOB, holder, ttl);
  if (token === null) return false;
  const lease = heartbeat(ttl, sent, () => extend(heartbeats, JOB, token));
  try {
    do {
      lease.check();
    } while (await transaction(pool, (tx) => chunk(tx, token)));
    return true;
  } catch (error) {
    await release(heartbeats, JOB, token).catch(() => {}); // so that the next one need not wait for the time to live
    throw error;
  } finally {
    lease.stop();
  }
}

// [chunk]
// Pays a few players and says where it came to, in one transaction: a day that was missed is made up, and none is paid twice.
async function chunk(tx, token) {
  await tx.query('SELECT lease_fence($1, $2)', [JOB, token]);
  const { rows } = await tx.query(
    `SELECT day::text, (day + 1)::text AS next, after, day <= current_date AS due
     FROM lease_checkpoint($1) AS state,
          LATERAL (SELECT coalesce(state ->> 'day', current_date::text)::date AS day, coalesce((state -> 'after')::int, 0) AS after) AS at`,
    [JOB],
  );
  const { day, next, after, due } = rows[0];
  if (!due) {
    await tx.query('SELECT lease_complete($1, $2, until => current_date + 1)', [JOB, token]);
    return false;
  }
  const paid = await tx.query(
    `WITH chunk AS (SELECT player FROM reward WHERE player > $1 ORDER BY player LIMIT 500),
          paid AS (UPDATE reward SET amount = amount + 100 WHERE player IN (SELECT player FROM chunk))
     SELECT max(player) AS last FROM chunk`,
    [after],
  );
  const { last } = paid.rows[0];
  const state = last === null ? { day: next, after: 0 } : { day, after: last };
  await tx.query('SELECT lease_checkpoint($1, $2, $3)', [JOB, token, state]);
  return true;
}
// [end chunk]
// [end job]

// [leader]
import { setTimeout as sleep } from 'node:timers/promises';

// Calls work(token, lease) whenever this node is the leader. `stop` is an AbortSignal.
export async function lead({ heartbeats }, name, holder, ttl, work, stop) {
  while (!stop.aborted) {
    const sent = performance.now();
    const token = await acquire(heartbeats, name, holder, ttl).catch(() => null); // an error is not leadership
    if (token !== null) {
      const lease = heartbeat(ttl, sent, () => extend(heartbeats, name, token));
      try {
        await work(token, lease);
      } catch (error) {
        console.error('no longer the leader:', error.message); // with this token; the next grant has a new one
      } finally {
        lease.stop();
        await release(heartbeats, name, token).catch(() => {});
      }
    }
    await sleep(ttl / 3, undefined, { signal: stop }).catch(() => {});
  }
}
// [end leader]

// [work]
// What a leader does: one fenced transaction after the other, and no more once check() throws.
export function scheduler({ pool }, stop, step) {
  return async (token, lease) => {
    while (!stop.aborted) {
      lease.check();
      await transaction(pool, async (tx) => {
        await tx.query('SELECT lease_fence($1, $2)', ['scheduler', token]);
        await step(tx, token);
      });
      await sleep(100, undefined, { signal: lease.signal });
    }
  };
}
// [end work]
