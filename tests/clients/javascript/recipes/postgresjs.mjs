// [pools]
import postgres from 'postgres';

export function open(config) {
  const options = { ...config, onnotice: () => {} };
  // The heartbeat has a connection of its own: the pool of the work would let it wait while that is busy.
  return { sql: postgres(options), heartbeats: postgres({ ...options, max: 1 }) };
}
// [end pools]

// [calls]
export async function acquire(sql, name, holder, ttl) {
  const [{ token }] = await sql`SELECT lease_acquire(${name}, ${holder}, ${ttl + ' ms'}) AS token`;
  return token; // a string, exact to the last digit; null: somebody else has it, or it is done
}

export async function extend(sql, name, token) {
  const [{ expiry }] = await sql`SELECT lease_extend(${name}, ${token}) AS expiry`;
  return expiry; // a Date; null: lost
}

export async function release(sql, name, token) {
  const [{ released }] = await sql`SELECT lease_release(${name}, ${token}) AS released`;
  return released;
}
// [end calls]

// [job]
import { heartbeat } from './heartbeat.mjs';

const JOB = 'daily-reward';

// Every node's cron calls this every few minutes. One does it, from where the last one came to; for the others, and once it is
// done, it is nothing.
export async function dailyReward({ sql, heartbeats }, holder, ttl = 30_000) {
  const sent = performance.now();
  const token = await acquire(heartbeats, JOB, holder, ttl);
  if (token === null) return false;
  const lease = heartbeat(ttl, sent, () => extend(heartbeats, JOB, token));
  try {
    do {
      lease.check();
    } while (await sql.begin((tx) => chunk(tx, token)));
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
  await tx`SELECT lease_fence(${JOB}, ${token})`;
  const [{ day, next, after, due }] = await tx`
    SELECT day::text, (day + 1)::text AS next, after, day <= current_date AS due
    FROM lease_checkpoint(${JOB}) AS state,
         LATERAL (SELECT coalesce(state ->> 'day', current_date::text)::date AS day, coalesce((state -> 'after')::int, 0) AS after) AS at`;
  if (!due) {
    await tx`SELECT lease_complete(${JOB}, ${token}, until => current_date + 1)`;
    return false;
  }
  const [{ last }] = await tx`
    WITH chunk AS (SELECT player FROM reward WHERE player > ${after} ORDER BY player LIMIT 500),
         paid AS (UPDATE reward SET amount = amount + 100 WHERE player IN (SELECT player FROM chunk))
    SELECT max(player) AS last FROM chunk`;
  const state = last === null ? { day: next, after: 0 } : { day, after: last };
  await tx`SELECT lease_checkpoint(${JOB}, ${token}, ${tx.json(state)})`;
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
export function scheduler({ sql }, stop, step) {
  return async (token, lease) => {
    while (!stop.aborted) {
      lease.check();
      await sql.begin(async (tx) => {
        await tx`SELECT lease_fence(${'scheduler'}, ${token})`;
        await step(tx, token);
      });
      await sleep(100, undefined, { signal: lease.signal });
    }
  };
}
// [end work]
