import assert from 'node:assert/strict';
import { fileURLToPath } from 'node:url';
import { eq, sql } from 'drizzle-orm';
import { migrate } from 'drizzle-orm/node-postgres/migrator';
import { config, failure } from '../harness.mjs';
import * as recipe from '../recipes/drizzle.mjs';
import { entry, reward } from '../recipes/drizzle_schema.mjs';

const sqlstate = (error) => recipe.origin(error).code;
const answer = async (db, call) => (await db.execute(sql`SELECT ${call} AS answer`)).rows[0].answer;

export const stack = {
  name: 'drizzle',
  package: 'drizzle-orm',
  open: recipe.open,

  token: 'string',
  column: 'bigint',
  from: String,
  readToken: async ({ db }, id) => (await db.select().from(entry).where(eq(entry.id, id)))[0].token,

  async naturalTimes({ db }, admin) {
    let token;
    for (const [ttl, length] of [
      ['30 s', '00:00:30'],
      [30, '00:00:30'],
      [0.25, '00:00:00.25'],
      [{ minutes: 5 }, '00:00:05'], // pg's, see there: never an object
    ]) {
      token = await answer(db, sql`lease_acquire(${'times'}, ${'node-1'}, ${ttl})`);
      assert.equal(await admin.one("SELECT ttl::text FROM lease_status WHERE name = 'times'"), length);
      assert.ok(await answer(db, sql`lease_release(${'times'}, ${BigInt(token)})`));
    }
    // An array in a template is a list of parameters, unless sql.param makes it one.
    const many = (names, tokens) => db.execute(sql`SELECT * FROM lease_extend_many(${names}, ${tokens})`);
    assert.equal(sqlstate(await failure(many(['times'], [token]), 'an array')), '22P02');
    assert.equal((await many(sql.param(['times']), sql.param([token]))).rows.length, 1);
  },

  transaction: ({ db }, work) => db.transaction(work),
  fenced: ({ db }, lease, token, work) => recipe.fenced(db, lease, token, work),
  fence: (tx, name, token) => tx.execute(sql`SELECT lease_fence(${name}, ${token})`),
  busy: (tx, seconds) => tx.execute(sql`SELECT pg_sleep(${seconds})`),
  pid: (tx) => answer(tx, sql`pg_backend_pid()`),
  insert: (tx, player, amount) => tx.insert(reward).values({ player, amount }),
  update: (tx, player, amount) => tx.update(reward).set({ amount }).where(eq(reward.player, player)),
  insertEntry: ({ db }, id, amount, token) => db.insert(entry).values({ id, amount, token: BigInt(token) }),
  saveEntry: ({ db }, id, amount, token) =>
    token ? recipe.saveEntry(db, { id, amount }, token) : db.update(entry).set({ amount }).where(eq(entry.id, id)),
  fencedUpdate: async ({ db }, token, player, amount) =>
    Number(await answer(db, sql`fenced_update(${'reward'}, ${token}, ${{ player }}, ${{ amount }})`)),
  once: (tx, key) => answer(tx, sql`once(${key})`),
  checkpoint: (tx, name, token, state) => tx.execute(sql`SELECT lease_checkpoint(${name}, ${token}, ${state})`),
  lastCheckpoint: ({ db }, name) => answer(db, sql`lease_checkpoint(${name})`),

  sqlstate,
  retryable: (error) => ['40001', '40P01'].includes(sqlstate(error)),
  swallows: true,
  seen: {
    statement: (code) => `DrizzleQueryError ${code}`,
    commit: (code) => `DrizzleQueryError ${code}`,
    lostBetween: ['DrizzleQueryError undefined'],
    lostDuring: ['DrizzleQueryError undefined'],
  },

  waits: {
    statement_timeout: [
      ({ db }, name) =>
        db.transaction(async (tx) => {
          await tx.execute(sql`SET LOCAL statement_timeout = '700 ms'`);
          await answer(tx, sql`lease_acquire(${name}, ${'node-1'}, ${'1 min'}, wait => ${'1 min'})`);
        }),
      'DrizzleQueryError 57014',
    ],
    wait: [
      async ({ db }, name) => {
        const token = await answer(db, sql`lease_acquire(${name}, ${'node-1'}, ${'1 min'}, wait => ${'700 ms'})`);
        assert.equal(token, null);
        throw new RangeError('the wait ran out');
      },
      'RangeError undefined',
    ],
  },

  // Drizzle has no way down: going back is the next migration.
  async migrate(database, way) {
    const app = recipe.open(config(database), 60_000);
    const folder = way === 'up' ? '../migrations/drizzle' : '../migrations/drizzle_back';
    try {
      await migrate(app.db, { migrationsFolder: fileURLToPath(new URL(folder, import.meta.url)) });
    } finally {
      await app.close();
    }
  },
};
