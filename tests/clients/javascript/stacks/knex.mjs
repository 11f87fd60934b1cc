import assert from 'node:assert/strict';
import { hostname } from 'node:os';
import { fileURLToPath } from 'node:url';
import { config, failure, until } from '../harness.mjs';
import * as recipe from '../recipes/knex.mjs';

const raw = async (knex, text, bindings) => (await knex.raw(`SELECT ${text} AS answer`, bindings)).rows[0].answer;

export const stack = {
  name: 'knex',
  package: 'knex',
  open: recipe.open,

  token: 'string',
  from: String,
  readToken: async ({ knex }, id) => (await knex('entry').where({ id }).first()).token,

  async naturalTimes({ knex }, admin) {
    for (const [ttl, length] of [
      ['30 s', '00:00:30'],
      [30, '00:00:30'],
      [0.25, '00:00:00.25'],
      [{ minutes: 5 }, '00:00:05'], // pg's, see there: never an object
    ]) {
      const token = await raw(knex, 'lease_acquire(:name, :holder, :ttl)', { name: 'times', holder: 'node-1', ttl });
      assert.equal(await admin.one("SELECT ttl::text FROM lease_status WHERE name = 'times'"), length);
      assert.ok(await raw(knex, 'lease_release(?, ?)', ['times', BigInt(token)]));
    }
    // No token yet is null; undefined is refused before anything is sent.
    assert.notEqual(await raw(knex, 'lease_elect(?, ?, ?, ?)', ['times', 'node-1', '30 s', null]), null);
    const undef = await failure(
      raw(knex, 'lease_elect(?, ?, ?, ?)', ['times', 'node-1', '30 s', undefined]),
      'undefined',
    );
    assert.match(undef.message, /Undefined binding/);
  },

  transaction: ({ knex }, work) => knex.transaction(work),
  fenced: ({ knex }, lease, token, work) => recipe.fenced(knex, lease, token, work),
  fence: (tx, name, token) => tx.raw('SELECT lease_fence(?, ?)', [name, token]),
  busy: (tx, seconds) => tx.raw('SELECT pg_sleep(?)', [seconds]),
  pid: (tx) => raw(tx, 'pg_backend_pid()'),
  insert: (tx, player, amount) => tx('reward').insert({ player, amount }),
  update: (tx, player, amount) => tx('reward').where({ player }).update({ amount }),
  insertEntry: ({ knex }, id, amount, token) => knex('entry').insert({ id, amount, token }),
  saveEntry: ({ knex }, id, amount, token) => recipe.saveEntry(knex, { id, amount }, token),
  fencedUpdate: async ({ knex }, token, player, amount) =>
    Number(await raw(knex, 'fenced_update(?, ?, ?, ?)', ['reward', token, { player }, { amount }])),
  once: (tx, key) => raw(tx, 'once(?)', [key]),
  checkpoint: (tx, name, token, state) => tx.raw('SELECT lease_checkpoint(?, ?, ?)', [name, token, state]),
  lastCheckpoint: ({ knex }, name) => raw(knex, 'lease_checkpoint(?)', [name]),

  sqlstate: (error) => error.code,
  retryable: (error) => ['40001', '40P01'].includes(error.code),
  swallows: true,
  seen: {
    statement: (code) => `DatabaseError ${code}`,
    commit: (code) => `DatabaseError ${code}`,
    lostBetween: ['Error undefined', 'DatabaseError 57P01'],
    lostDuring: ['Error undefined'], // the ROLLBACK's, which hides the 57P01 before it
  },

  waits: {
    cancel: [
      ({ knex }, name) =>
        knex
          .raw('SELECT lease_acquire(?, ?, ?, wait => ?)', [name, 'node-1', '1 min', '1 min'])
          .timeout(700, { cancel: true }),
      'KnexTimeoutError undefined',
    ],
    wait: [
      async ({ knex }, name) => {
        const token = await raw(knex, 'lease_acquire(?, ?, ?, wait => ?)', [name, 'node-1', '1 min', '700 ms']);
        assert.equal(token, null);
        throw new RangeError('the wait ran out');
      },
      'RangeError undefined',
    ],
  },

  // Until SIGTERM, and with its connections closed.
  async more({ admin, database }) {
    const app = recipe.open(config(database), 900);
    const step = (trx) => trx('reward').insert({ player: 1, amount: 0 }).onConflict('player').ignore();
    const scheduled = recipe.scheduler(app, 'daily-reward', 50, step);
    await until(() => admin.rows('reward'), 'the scheduler');
    assert.equal(
      await admin.one("SELECT holder FROM lease_status WHERE name = 'daily-reward'"),
      `${hostname()}:${process.pid}`,
    );
    process.emit('SIGTERM');
    await scheduled;
    assert.equal(await admin.one("SELECT state FROM lease_status WHERE name = 'daily-reward'"), 'free');
    await failure(app.knex.raw('SELECT 1'), 'a call after the end');
  },

  async migrate(database, way) {
    const { knex, close } = recipe.open(config(database), 60_000);
    const directory = fileURLToPath(new URL('../migrations/knex', import.meta.url));
    try {
      if (way === 'up') await knex.migrate.latest({ directory, loadExtensions: ['.mjs'] });
      else await knex.migrate.rollback({ directory, loadExtensions: ['.mjs'] });
    } finally {
      await close();
    }
  },
};
