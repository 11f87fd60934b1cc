import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import postgres from 'postgres';
import { failure } from '../harness.mjs';
import * as recipe from '../recipes/postgresjs.mjs';

export const stack = {
  name: 'postgresjs',
  package: 'postgres',
  open: (config, ttl) => ({ config, sql: postgres({ ...config, onnotice: () => {} }), ...recipe.open(config, ttl) }),
  payChunk: recipe.payChunk,
  payAtOnce: recipe.payAtOnce,

  token: 'string',
  from: String,
  async readToken({ sql, config }, id) {
    const asBigInt = postgres({ ...config, types: { bigint: postgres.BigInt } });
    const [{ token }] = await asBigInt`SELECT token FROM entry WHERE id = ${id}`;
    assert.equal(token, 2n ** 63n - 1n);
    await asBigInt.end();
    return (await sql`SELECT token FROM entry WHERE id = ${id}`)[0].token;
  },

  async naturalTimes({ sql, config }, admin) {
    const lasts = async (ttl, call = (ttl) => sql`lease_acquire(${'times'}, ${'node-1'}, ${ttl})`) => {
      const [{ token }] = await sql`SELECT ${call(ttl)} AS token`;
      const length = await admin.one("SELECT ttl::text FROM lease_status WHERE name = 'times'");
      const [{ released }] = await sql`SELECT lease_release(${'times'}, ${BigInt(token)}) AS released`;
      assert.ok(released);
      return length;
    };
    assert.equal(await lasts('30 s'), '00:00:30');
    assert.equal(await lasts(30), '00:00:30');
    assert.equal(await lasts(0.25), '00:00:00.25');
    assert.equal(
      await lasts(0.25, (ttl) => sql`lease_acquire(${'times'}, ${'node-1'}, make_interval(secs => ${ttl}))`),
      '00:00:00.25',
    );
    assert.equal((await failure(lasts({ minutes: 5 }), 'an object')).code, '22007');

    // Times go through Date here, so that words of PostgreSQL's are not for parameters; and a statement is parsed once for each
    // connection, so that one in its text is of that day.
    const [{ token }] = await sql`SELECT lease_acquire(${'times'}, ${'node-1'}, ${'30 s'}) AS token`;
    const word = sql`SELECT lease_complete(${'times'}, ${token}, until => ${'tomorrow'})`;
    assert.match(String(await failure(word, 'a word for a time')), /RangeError: Invalid time value/);
    const one = postgres({ ...config, max: 1 });
    const parsed = async () => (await one`SELECT 'now'::timestamptz::text AS text`)[0].text;
    const then = await parsed();
    await sleep(2);
    assert.equal(await parsed(), then);
    await one.end();

    // A bigint[] is an array of strings, or sql.array of BigInts.
    for (const tokens of [[token], sql.array([BigInt(token)])]) {
      const [{ expires_at }] = await sql`SELECT * FROM lease_extend_many(${['times']}, ${tokens})`;
      assert.ok(expires_at > new Date());
    }
    // A text is JSON's text: what was made by JSON.stringify arrives as one string.
    const state = JSON.stringify({ after: 1 });
    await sql`SELECT lease_checkpoint(${'times'}, ${token}, ${state})`;
    assert.equal(await admin.one("SELECT jsonb_typeof(lease_checkpoint('times'))"), 'string');
    const filter = sql`SELECT fenced_update(${'reward'}, ${token}, ${JSON.stringify({ player: 1 })}, ${{ amount: 1 }})`;
    assert.equal((await failure(filter, 'a filter that is a string')).code, '22023');
  },

  transaction: (app, work) => app.transaction(work),
  fenced: (app, lease, token, work) =>
    app.transaction(async (tx) => {
      await tx`SELECT lease_fence(${lease}, ${token})`;
      return work(tx);
    }),
  busy: (tx, seconds) => tx`SELECT pg_sleep(${seconds})`,
  pid: async (tx) => (await tx`SELECT pg_backend_pid() AS pid`)[0].pid,
  insert: (tx, player, amount) => tx`INSERT INTO reward ${tx({ player, amount })}`,
  update: (tx, player, amount) => tx`UPDATE reward SET ${tx({ amount })} WHERE player = ${player}`,
  insertEntry: ({ sql }, id, amount, token) => sql`INSERT INTO entry ${sql({ id, amount, token })}`,
  saveEntry: ({ sql }, id, amount, token) =>
    sql`UPDATE entry SET ${sql(token ? { amount, token } : { amount })} WHERE id = ${id}`,
  async fencedUpdate({ sql }, token, player, amount) {
    const [{ rows }] = await sql`SELECT fenced_update(${'reward'}, ${token}, ${{ player }}, ${{ amount }}) AS rows`;
    return Number(rows);
  },
  once: async (tx, key) => (await tx`SELECT once(${key}) AS first`)[0].first,
  checkpoint: (tx, name, token, state) => tx`SELECT lease_checkpoint(${name}, ${token}, ${state})`,
  lastCheckpoint: async ({ sql }, name) => (await sql`SELECT lease_checkpoint(${name}) AS state`)[0].state,

  sqlstate: (error) => error.code,
  retryable: (error) => ['40001', '40P01'].includes(error.code),
  seen: {
    statement: (code) => `PostgresError ${code}`,
    commit: (code) => `PostgresError ${code}`,
    lostBetween: ['Error CONNECTION_CLOSED', 'PostgresError 57P01'],
    lostDuring: ['PostgresError 57P01', 'Error CONNECTION_CLOSED'],
  },

  // porsager/postgres issue 1208, open as of 3.4.9: a statement on a transaction's connection that has ended is written to a socket that
  // is not there, outside of any promise. The transaction is refused as it should be, but an application ends by this.
  knownCrash: /^Cannot read properties of null \(reading 'write'\)$/,

  waits: {
    cancel: [
      async ({ sql }, name, inLine) => {
        const query = sql`SELECT lease_acquire(${name}, ${'node-1'}, ${'1 min'}, wait => ${'1 min'}) AS token`;
        inLine.then(() => query.cancel());
        await query;
      },
      'PostgresError 57014',
    ],
    statement_timeout: [
      async ({ config }, name) => {
        const sql = postgres({ ...config, max: 1, connection: { statement_timeout: 700 } });
        try {
          await sql`SELECT lease_acquire(${name}, ${'node-1'}, ${'1 min'}, wait => ${'1 min'}) AS token`;
        } finally {
          const [{ usable }] = await sql`SELECT true AS usable`;
          assert.ok(usable);
          await sql.end();
        }
      },
      'PostgresError 57014',
    ],
    wait: [
      async ({ sql }, name) => {
        const [{ token }] =
          await sql`SELECT lease_acquire(${name}, ${'node-1'}, ${'1 min'}, wait => ${'700 ms'}) AS token`;
        assert.equal(token, null);
        throw new RangeError('the wait ran out');
      },
      'RangeError undefined',
    ],
  },

  why: { migration: 'no migration tool' },
};
