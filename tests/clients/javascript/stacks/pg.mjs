import assert from 'node:assert/strict';
import pg from 'pg';
import { takeUnheard, until } from '../harness.mjs';
import { heartbeat } from '../recipes/heartbeat.mjs';
import * as recipe from '../recipes/pg.mjs';
import { leaderTakesTurns, jobIsDoneOnce } from '../recipes_test.mjs';

const first = async (client, text, values) => (await client.query({ text, values, rowMode: 'array' })).rows[0]?.[0];

export const stack = {
  name: 'pg',
  package: 'pg',
  open: (config) => recipe.open(config),
  close: ({ pool, heartbeats }) => Promise.all([pool.end(), heartbeats.end()]),

  token: 'string',
  from: String,
  acquire: ({ heartbeats }, name, holder, ttl) => recipe.acquire(heartbeats, name, holder, ttl),
  extend: ({ heartbeats }, name, token) => recipe.extend(heartbeats, name, token),
  readToken: ({ pool }, id) => first(pool, 'SELECT token FROM entry WHERE id = $1', [id]),

  async naturalTimes({ pool }, admin) {
    const lasts = async (ttl, call = 'lease_acquire($1, $2, $3)') => {
      const token = await first(pool, `SELECT ${call}`, ['times', 'node-1', ttl]);
      const length = await admin.one("SELECT ttl::text FROM lease_status WHERE name = 'times'");
      // A BigInt and a number, where it is exact, are tokens as well.
      assert.ok(await first(pool, 'SELECT lease_release($1, $2)', ['times', BigInt(token)]));
      return length;
    };
    assert.equal(await lasts('30 s'), '00:00:30');
    assert.equal(await lasts(30), '00:00:30');
    assert.equal(await lasts(0.25), '00:00:00.25');
    assert.equal(await lasts(0.25, 'lease_acquire($1, $2, make_interval(secs => $3))'), '00:00:00.25');
    // pg sends an object as JSON, in which PostgreSQL's interval reads numbers before their units: these five minutes are seconds.
    assert.equal(await lasts({ minutes: 5 }), '00:00:05');
  },

  transaction: ({ pool }, work) => recipe.transaction(pool, work),
  fenced: ({ pool }, lease, token, work) =>
    recipe.transaction(pool, async (tx) => {
      await tx.query('SELECT lease_fence($1, $2)', [lease, token]);
      return work(tx);
    }),
  busy: (tx, seconds) => tx.query('SELECT pg_sleep($1)', [seconds]),
  pid: (tx) => first(tx, 'SELECT pg_backend_pid()'),
  insert: (tx, player, amount) => tx.query('INSERT INTO reward (player, amount) VALUES ($1, $2)', [player, amount]),
  update: (tx, player, amount) => tx.query('UPDATE reward SET amount = $2 WHERE player = $1', [player, amount]),
  insertEntry: ({ pool }, id, amount, token) =>
    pool.query('INSERT INTO entry (id, amount, token) VALUES ($1, $2, $3)', [id, amount, token]),
  saveEntry: ({ pool }, id, amount, token) =>
    token
      ? pool.query('UPDATE entry SET amount = $2, token = $3 WHERE id = $1', [id, amount, token])
      : pool.query('UPDATE entry SET amount = $2 WHERE id = $1', [id, amount]),
  fencedUpdate: async ({ pool }, token, player, amount) =>
    Number(await first(pool, 'SELECT fenced_update($1, $2, $3, $4)', ['reward', token, { player }, { amount }])),
  once: (tx, key) => first(tx, 'SELECT once($1)', [key]),
  checkpoint: (tx, name, token, state) => tx.query('SELECT lease_checkpoint($1, $2, $3)', [name, token, state]),
  lastCheckpoint: ({ pool }, name) => first(pool, 'SELECT lease_checkpoint($1)', [name]),

  sqlstate: (error) => error.code,
  retryable: (error) => ['40001', '40P01'].includes(error.code),
  seen: {
    statement: (code) => `DatabaseError ${code}`,
    commit: (code) => `DatabaseError ${code}`,
    // The 57P01 goes to the client's listener, and the statement after it finds a client that is broken.
    lostBetween: ['Error undefined', 'DatabaseError 57P01'],
    lostDuring: ['DatabaseError 57P01'],
  },

  waits: {
    // On the server: the session stays, and is out of the line.
    statement_timeout: [
      async ({ pool }, name) => {
        const client = await pool.connect();
        try {
          await client.query("SET statement_timeout = '700 ms'");
          await client.query('SELECT lease_acquire($1, $2, $3, wait => $4)', [name, 'node-1', '1 min', '1 min']);
        } finally {
          assert.equal(await first(client, "SELECT 'usable'"), 'usable');
          client.release(true);
        }
      },
      'DatabaseError 57014',
    ],
    // By pg alone: the pool closes the connection, and the line notices that.
    query_timeout: [
      async ({ pool }, name) => {
        const text = 'SELECT lease_acquire($1, $2, $3, wait => $4)';
        await pool.query({ text, values: [name, 'node-1', '1 min', '1 min'], query_timeout: 700 });
      },
      'Error undefined',
    ],
    // A client of one's own stays in line until somebody ends it.
    query_timeout_of_a_client: [
      async ({ pool }, name) => {
        const client = new pg.Client({ ...pool.options, query_timeout: 700 });
        await client.connect();
        try {
          await client.query('SELECT lease_acquire($1, $2, $3, wait => $4)', [name, 'node-1', '1 min', '1 min']);
        } finally {
          assert.equal(await first(pool, 'SELECT count(*) FROM lease_waiter'), '1');
          await client.end();
        }
      },
      'Error undefined',
    ],
    wait: [
      async ({ pool }, name) => {
        const token = await first(pool, 'SELECT lease_acquire($1, $2, $3, wait => $4)', [
          name,
          'node-1',
          '1 min',
          '700 ms',
        ]);
        assert.equal(token, null);
        throw new RangeError('the wait ran out');
      },
      'RangeError undefined',
    ],
  },

  async leader(app, admin) {
    await leaderTakesTurns(stack, recipe, app, admin);

    // What goes wrong with one connection for both: the heartbeat stands behind the work, and our deadline is what ends it.
    const pool = new pg.Pool({ ...app.pool.options, max: 1 });
    try {
      const sent = performance.now();
      const token = await recipe.acquire(pool, 'shared', 'node-1', 500);
      let answers = 0;
      const lease = heartbeat(500, sent, () => recipe.extend(pool, 'shared', token).finally(() => (answers += 1)));
      await recipe.transaction(pool, async (tx) => {
        await stack.busy(tx, 1);
        assert.equal(answers, 0);
        assert.throws(() => lease.check(), /the lease is lost/);
      });
    } finally {
      await pool.end();
    }

    // And without listeners: an application ends by this.
    assert.deepEqual(takeUnheard(), []);
    const deaf = new pg.Pool(app.pool.options);
    await admin.terminate(await first(deaf, 'SELECT pg_backend_pid()'));
    await until(async () => takeUnheard().some((error) => error.code === '57P01'), 'the error of an idle client');
    await deaf.end();
  },

  job: (app, admin) => jobIsDoneOnce(stack, recipe, app, admin, { ...app, pool: cutAfter(app.pool, 2) }),

  why: { migration: 'no migration tool' },
};

// A pool that breaks in the middle of the job.
function cutAfter(pool, times) {
  return {
    async connect() {
      if (times-- === 0) throw new Error('cut');
      return pool.connect();
    },
  };
}
