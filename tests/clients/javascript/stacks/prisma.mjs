import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { cp, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { failure } from '../harness.mjs';
import * as recipe from '../recipes/prisma.mjs';

const at = (path) => fileURLToPath(new URL(`../${path}`, import.meta.url));
const answer = async (query) => (await query)[0].answer;

export const stack = {
  name: 'prisma',
  package: '@prisma/client',
  open: recipe.open,

  token: 'bigint',
  from: BigInt,
  readToken: async ({ prisma }, id) => (await prisma.entry.findUnique({ where: { id } })).token,

  async naturalTimes({ prisma }, admin) {
    let token;
    for (const [ttl, length] of [
      ['30 s', '00:00:30'],
      [30, '00:00:30'],
      [0.25, '00:00:00.25'],
      [{ minutes: 5 }, '00:00:05'], // pg's, see there: never an object
    ]) {
      token = await answer(prisma.$queryRaw`SELECT lease_acquire(${'times'}, ${'node-1'}, ${ttl}) AS answer`);
      assert.equal(await admin.one("SELECT ttl::text FROM lease_status WHERE name = 'times'"), length);
      assert.ok(await answer(prisma.$queryRaw`SELECT lease_release(${'times'}, ${token}) AS answer`));
    }
    assert.equal((await prisma.$queryRaw`SELECT * FROM lease_extend_many(${['times']}, ${[token]})`).length, 1);
    // Of some types Prisma reads nothing, and says so: void, interval (of lease_status) and regclass (of fence_status).
    for (const text of ['SELECT pg_sleep(0)', 'SELECT ttl FROM lease_status', 'SELECT table_name FROM fence_status']) {
      const unread = await failure(prisma.$queryRawUnsafe(text), text);
      assert.match(unread.message, /Failed to deserialize column of type '(void|interval|regclass)'/);
    }
  },

  transaction: ({ prisma }, work) => prisma.$transaction(work),
  fenced: ({ prisma }, lease, token, work) => recipe.fenced(prisma, lease, token, work),
  fence: (tx, name, token) => tx.$executeRaw`SELECT lease_fence(${name}, ${token})`,
  busy: (tx, seconds) => tx.$executeRaw`SELECT pg_sleep(${seconds})`,
  pid: (tx) => answer(tx.$queryRaw`SELECT pg_backend_pid() AS answer`),
  batch: ({ prisma }, lease, token) =>
    prisma.$transaction([
      prisma.$executeRaw`SELECT lease_fence(${lease}, ${token})`,
      prisma.reward.create({ data: { player: 5, amount: 100 } }),
    ]),
  insert: (tx, player, amount) => tx.reward.create({ data: { player, amount } }),
  update: (tx, player, amount) => tx.reward.update({ where: { player }, data: { amount } }),
  insertEntry: ({ prisma }, id, amount, token) => prisma.entry.create({ data: { id, amount, token } }),
  saveEntry: ({ prisma }, id, amount, token) => recipe.saveEntry(prisma, { id, amount }, token),
  fencedUpdate: async ({ prisma }, token, player, amount) =>
    Number(
      await answer(
        prisma.$queryRaw`SELECT fenced_update(${'reward'}, ${token}, ${{ player }}, ${{ amount }}) AS answer`,
      ),
    ),
  once: (tx, key) => answer(tx.$queryRaw`SELECT once(${key}) AS answer`),
  checkpoint: (tx, name, token, state) => tx.$executeRaw`SELECT lease_checkpoint(${name}, ${token}, ${state})`,
  lastCheckpoint: ({ prisma }, name) => answer(prisma.$queryRaw`SELECT lease_checkpoint(${name}) AS answer`),

  sqlstate: (error) => recipe.origin(error).code,
  retryable: (error) => error.code === 'P2034',
  swallows: true,
  seen: {
    statement: (code) => `PrismaClientKnownRequestError ${code}`,
    commit: (code) => `DriverAdapterError ${code}`,
    lostBetween: ['Error undefined', 'DriverAdapterError 57P01'],
    lostDuring: ['PrismaClientKnownRequestError 57P01'],
  },

  waits: {
    statement_timeout: [
      ({ prisma }, name) =>
        prisma.$transaction(async (tx) => {
          await tx.$executeRaw`SET LOCAL statement_timeout = '700 ms'`;
          await tx.$queryRaw`SELECT lease_acquire(${name}, ${'node-1'}, ${'1 min'}, wait => ${'1 min'})`;
        }),
      'PrismaClientKnownRequestError 57014',
    ],
    wait: [
      async ({ prisma }, name) => {
        const token = await answer(
          prisma.$queryRaw`SELECT lease_acquire(${name}, ${'node-1'}, ${'1 min'}, wait => ${'700 ms'}) AS answer`,
        );
        assert.equal(token, null);
        throw new RangeError('the wait ran out');
      },
      'RangeError undefined',
    ],
  },

  // Prisma has no way down: going back is the next migration.
  async migrate(database, way) {
    const folder = await mkdtemp(join(tmpdir(), 'lock_ext.'));
    try {
      await cp(at('prisma/migrations'), folder, { recursive: true });
      if (way === 'down') await cp(at('prisma/back'), folder, { recursive: true });
      await promisify(execFile)(
        process.execPath,
        [at('node_modules/prisma-6/build/index.js'), 'migrate', 'deploy', '--config', at('prisma/migrate.config.mjs')],
        // The engine for queries is asked for and not used.
        {
          env: {
            ...process.env,
            PGDATABASE: database,
            MIGRATIONS: folder,
            PRISMA_QUERY_ENGINE_LIBRARY: process.execPath,
            CHECKPOINT_DISABLE: '1',
          },
        },
      );
    } finally {
      await rm(folder, { recursive: true });
    }
  },
};
