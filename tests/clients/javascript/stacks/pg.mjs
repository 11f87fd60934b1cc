import assert from 'node:assert/strict';
import pg from 'pg';
import { config, takeUnheard, until } from '../harness.mjs';
import { heartbeat, withLease } from '../recipes/lease.mjs';
import * as recipe from '../recipes/pg.mjs';
import { mainIsAProgram } from '../main_test.mjs';

const first = async (client, text, values) => (await client.query({ text, values, rowMode: 'array' })).rows[0]?.[0];

export const stack = {
  name: 'pg',
  package: 'pg',
  open: recipe.open,
  payChunk: recipe.payChunk,
  payAtOnce: recipe.payAtOnce,

  token: 'string',
  from: String,
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

  async more({ app, admin, database }) {
    await standsInLine(admin, database);
    await mainIsAProgram(admin, database);

    // What goes wrong with one connection for both: the heartbeat stands behind the work, and our deadline is what ends it.
    const pool = new pg.Pool({ ...app.pool.options, max: 1 });
    try {
      const sent = performance.now();
      const token = await first(pool, 'SELECT lease_acquire($1, $2, $3)', ['shared', 'node-1', '500 ms']);
      let answers = 0;
      const lease = heartbeat(500, sent, async () => {
        await first(pool, 'SELECT lease_extend($1, $2)', ['shared', token]);
        answers += 1;
      });
      await recipe.transaction(pool, async (tx) => {
        await stack.busy(tx, 1);
        assert.equal(answers, 0);
        assert.throws(() => lease.check(), /no extension was confirmed/);
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

  why: { migration: 'no migration tool' },
};

// The wait is longer than the time to live, which counts from the grant.
async function standsInLine(admin, database) {
  const app = recipe.open(config(database), 900);
  await admin.takeOver('line');
  const work = async (token, lease) => {
    lease.check();
    return token;
  };
  const granted = withLease(app, 'line', 'node-1', work, recipe.inLine(20_000));
  await until(
    () => admin.one("SELECT clock_timestamp() - since > '1 s' FROM lease_waiter WHERE name = 'line'"),
    'a long wait',
  );
  await admin.one("SELECT lease_force_release('line')");
  assert.equal(typeof (await granted), 'string');
  await admin.takeOver('line');
  assert.equal(await withLease(app, 'line', 'node-1', work, recipe.inLine(50)), null);
  await app.close();
}
