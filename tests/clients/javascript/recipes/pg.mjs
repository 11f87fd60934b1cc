// [pools]
import pg from 'pg';

// What the job and the leader need of a driver. ttl is in ms, and every call is bounded by a third of it: a heartbeat that goes on does
// not show that the work's connection is alive.
export function open(config, ttl) {
  const bounds = { connectionTimeoutMillis: ttl / 3, query_timeout: ttl / 3, keepAlive: true };
  const pool = new pg.Pool({ ...config, ...bounds });
  // The heartbeat has a connection of its own: from the pool of the work it would get none while that is busy.
  const heartbeats = new pg.Pool({ ...config, ...bounds, max: 1 });
  // Without a listener the end of an idle session ends the process.
  for (const each of [pool, heartbeats]) each.on('error', (error) => console.error('idle session:', error.message));

  const ask = async (expression, values) =>
    (await heartbeats.query(`SELECT ${expression} AS answer`, values)).rows[0].answer;
  return {
    ttl,
    pool,
    // The token is a string, exact to the last digit; null: somebody else has it, or it is done.
    acquire: (name, holder) => ask('lease_acquire($1, $2, $3)', [name, holder, `${ttl} ms`]),
    extend: (name, token) => ask('lease_extend($1, $2)', [name, token]), // a Date; null: lost
    evict: (name, token) => ask('(SELECT count(*) FROM lease_evict($1, $2))', [name, token]),
    release: (name, token) => ask('lease_release($1, $2)', [name, token]),
    state: (name) => ask('(SELECT state FROM lease_status WHERE name = $1)', [name]),
    saveItems: (items, token) => saveItems(pool, items, token),
    origin: (error) => error,
    close: () => Promise.all([pool.end(), heartbeats.end()]),
  };
}
// [end pools]

// [transaction]
export async function transaction(pool, work) {
  const client = await pool.connect();
  let ended, failed;
  const onError = (error) => (ended = error);
  // The pool listens to idle clients only: without this a session that ends between two of our statements ends the process.
  client.on('error', onError);
  try {
    await client.query('BEGIN');
    const result = await work(client);
    const { command } = await client.query('COMMIT');
    // PostgreSQL answers so, without an error, if a statement has failed and somebody has caught that.
    if (command !== 'COMMIT') throw new Error('the transaction was rolled back');
    return result;
  } catch (error) {
    throw (failed = ended ?? error);
  } finally {
    client.off('error', onError);
    client.release(failed); // after an error the connection is closed, which rolls back: a dead one would not answer a ROLLBACK
  }
}
// [end transaction]

// [chunk]
const JOB = 'daily-reward';
// Which day it is, and from when on that day is to be paid, is decided here and by the database, not by the TimeZone of a session.
const ZONE = 'Europe/Berlin';
const DUE = '00:10';

// Pays a few players and says where it came to, in one transaction: a day that was missed is made up, and none is paid twice.
export const payChunk = (db, token) =>
  transaction(db.pool, async (tx) => {
    await tx.query('SELECT lease_fence($1, $2)', [JOB, token]);
    const { rows } = await tx.query(
      `SELECT day::text, (day + 1)::text AS next, after, due, due <= now() AS is_due
       FROM lease_checkpoint($1) AS state,
            LATERAL (SELECT coalesce((state ->> 'day')::date, (now() AT TIME ZONE $2 - $3::interval)::date) AS day,
                            coalesce((state -> 'after')::int, 0) AS after) AS at,
            LATERAL (SELECT (day + $3::interval) AT TIME ZONE $2 AS due) AS time`,
      [JOB, ZONE, DUE],
    );
    const { day, next, after, due, is_due } = rows[0];
    if (!is_due) {
      await tx.query('SELECT lease_complete($1, $2, until => $3)', [JOB, token, due]);
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
  });
// [end chunk]

// [feed]
function saveItems(pool, items, token) {
  const text = `INSERT INTO feed (id, title, token)
    SELECT id, title, $2::bigint FROM jsonb_to_recordset($1) AS item (id integer, title text)
    ON CONFLICT (id) DO UPDATE SET title = excluded.title, token = excluded.token`;
  return pool.query(text, [JSON.stringify(items), token]);
}
// [end feed]

// [once]
// What fits into one transaction needs no lease, but a look at the answer: everything after it is for who got true.
export const payAtOnce = ({ pool }) =>
  transaction(pool, async (tx) => {
    const { rows } = await tx.query(`SELECT once('reward:' || (now() AT TIME ZONE 'Europe/Berlin')::date) AS first`);
    if (!rows[0].first) return 'done already for today';
    await tx.query('INSERT INTO payout (player, amount) SELECT player, 100 FROM reward');
    return 'done';
  });
// [end once]

// [line]
// For withLease(db, name, holder, work, inLine(60_000)): stands in line for the lease. The wait has used up the time from before the
// call, so it is counted from before an extension.
export const inLine = (wait) => async (db, name, holder) => {
  const { rows } = await db.pool.query({
    text: 'SELECT lease_acquire($1, $2, $3, wait => $4) AS token',
    values: [name, holder, `${db.ttl} ms`, `${wait} ms`],
    query_timeout: wait + db.ttl / 3,
  });
  const { token } = rows[0];
  const sent = performance.now();
  const held = token !== null && (await db.extend(name, token));
  return { sent, token: held ? token : null };
};
// [end line]
