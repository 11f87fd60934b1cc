// [pools]
import postgres from 'postgres';

// postgres.js waits for an answer for as long as it takes. Here the connections are thrown away when work(sql) has not ended after
// that many ms, and the next one gets new ones.
function bounded(options, ms) {
  let sql = postgres(options);
  return {
    async run(work) {
      const ours = sql;
      let alarm;
      const late = new Promise((_, reject) => {
        alarm = setTimeout(() => {
          if (sql === ours) sql = postgres(options);
          ours.end({ timeout: 0 });
          reject(new Error(`no answer for ${ms} ms`)); // sql.begin alone may wait for a ROLLBACK that is never sent
        }, ms);
      });
      try {
        return await Promise.race([work(ours), late]);
      } finally {
        clearTimeout(alarm);
      }
    },
    end: () => sql.end({ timeout: ms / 1_000 }),
  };
}

// What the job and the leader need of a driver. ttl is in ms, and every transaction is bounded by a third of it: a heartbeat that goes on
// does not show that the work's connection is alive.
export function open(config, ttl) {
  const options = { ...config, connect_timeout: Math.ceil(ttl / 3_000), onnotice: () => {} };
  const pool = bounded(options, ttl / 3);
  // The heartbeat has a connection of its own: the pool of the work would let it wait while that is busy.
  const heartbeats = bounded({ ...options, max: 1 }, ttl / 3);
  const ask = async (query) => (await heartbeats.run(query))[0].answer;
  return {
    ttl,
    pool,
    transaction: (work) => pool.run((sql) => sql.begin(work)),
    // The token is a string, exact to the last digit; null: somebody else has it, or it is done.
    acquire: (name, holder) => ask((sql) => sql`SELECT lease_acquire(${name}, ${holder}, ${ttl + ' ms'}) AS answer`),
    extend: (name, token) => ask((sql) => sql`SELECT lease_extend(${name}, ${token}) AS answer`), // a Date; null: lost
    evict: (name, token) => ask((sql) => sql`SELECT count(*) AS answer FROM lease_evict(${name}, ${token})`),
    release: (name, token) => ask((sql) => sql`SELECT lease_release(${name}, ${token}) AS answer`),
    state: (name) => ask((sql) => sql`SELECT (SELECT state FROM lease_status WHERE name = ${name}) AS answer`),
    saveItems: (items, token) => pool.run((sql) => saveItems(sql, items, token)),
    origin: (error) => error,
    close: () => Promise.all([pool.end(), heartbeats.end()]),
  };
}
// [end pools]

// [chunk]
const JOB = 'daily-reward';
// Which day it is, and from when on that day is to be paid, is decided here and by the database, not by the TimeZone of a session.
const ZONE = 'Europe/Berlin';
const DUE = '00:10';

// Pays a few players and says where it came to, in one transaction: a day that was missed is made up, and none is paid twice.
export const payChunk = (db, token) =>
  db.transaction(async (tx) => {
    await tx`SELECT lease_fence(${JOB}, ${token})`;
    const [{ day, next, after, due, is_due }] = await tx`
      SELECT day::text, (day + 1)::text AS next, after, due, due <= now() AS is_due
      FROM lease_checkpoint(${JOB}) AS state,
           LATERAL (SELECT coalesce((state ->> 'day')::date, (now() AT TIME ZONE ${ZONE} - ${DUE}::interval)::date) AS day,
                           coalesce((state -> 'after')::int, 0) AS after) AS at,
           LATERAL (SELECT (day + ${DUE}::interval) AT TIME ZONE ${ZONE} AS due) AS time`;
    if (!is_due) {
      await tx`SELECT lease_complete(${JOB}, ${token}, until => ${due})`;
      return false;
    }
    const [{ last }] = await tx`
      WITH chunk AS (SELECT player FROM reward WHERE player > ${after} ORDER BY player LIMIT 500),
           paid AS (UPDATE reward SET amount = amount + 100 WHERE player IN (SELECT player FROM chunk))
      SELECT max(player) AS last FROM chunk`;
    const state = last === null ? { day: next, after: 0 } : { day, after: last };
    await tx`SELECT lease_checkpoint(${JOB}, ${token}, ${tx.json(state)})`;
    return true;
  });
// [end chunk]

// [feed]
const saveItems = (sql, items, token) => sql`
  INSERT INTO feed ${sql(items.map(({ id, title }) => ({ id, title, token })))}
  ON CONFLICT (id) DO UPDATE SET title = excluded.title, token = excluded.token`;
// [end feed]

// [once]
// What fits into one transaction needs no lease, but a look at the answer: everything after it is for who got true.
export const payAtOnce = (db) =>
  db.transaction(async (tx) => {
    const [{ first }] = await tx`SELECT once('reward:' || (now() AT TIME ZONE 'Europe/Berlin')::date) AS first`;
    if (!first) return 'done already for today';
    await tx`INSERT INTO payout (player, amount) SELECT player, 100 FROM reward`;
    return 'done';
  });
// [end once]
