// [open]
import { PrismaPg } from '@prisma/adapter-pg';
import { PrismaClient } from '../prisma/generated/index.js';
import { createPool } from './pool.mjs';

// What lease.mjs needs. ttl is in ms, and every call is bounded by a third of it: a heartbeat that goes on does not show that the work's
// connection is alive.
export function open(config, ttl) {
  const bound = ttl / 3;
  const prisma = new PrismaClient({
    adapter: new PrismaPg(createPool(config, bound), { disposeExternalPool: true }),
    transactionOptions: { maxWait: bound, timeout: bound },
  });
  // The heartbeat has a connection of its own: the pool of the work would let it wait while that is busy.
  const heartbeats = new PrismaClient({
    adapter: new PrismaPg({ ...config, max: 1, connectionTimeoutMillis: bound, query_timeout: bound }),
  });

  const ask = async (answer) => (await answer)[0].answer;
  return {
    ttl,
    prisma,
    // The token is a BigInt; null: somebody else has it, or it is done.
    acquire: (name, holder) =>
      ask(heartbeats.$queryRaw`SELECT lease_acquire(${name}, ${holder}, ${ttl + ' ms'}) AS answer`),
    extend: (name, token) => ask(heartbeats.$queryRaw`SELECT lease_extend(${name}, ${token}) AS answer`),
    evict: (name, token) => ask(heartbeats.$queryRaw`SELECT count(*) AS answer FROM lease_evict(${name}, ${token})`),
    release: (name, token) => ask(heartbeats.$queryRaw`SELECT lease_release(${name}, ${token}) AS answer`),
    state: (name) => ask(heartbeats.$queryRaw`SELECT (SELECT state FROM lease_status WHERE name = ${name}) AS answer`),
    saveItems: (items, token) => saveItems(prisma, items, token),
    origin,
    close: () => Promise.all([prisma.$disconnect(), heartbeats.$disconnect()]),
  };
}

// Prisma has an error of its own for a statement, and passes on the adapter's from the COMMIT.
export function origin(error) {
  const cause = error.meta?.driverAdapterError?.cause ?? error.cause;
  return cause?.originalCode
    ? { code: cause.originalCode, message: cause.originalMessage, detail: cause.detail }
    : error;
}
// [end open]

// [fenced]
// A transaction that may write the tables of the lease. What it writes is refused, at the statement or at the COMMIT, once somebody
// else has the lease.
export function fenced(prisma, lease, token, work) {
  return prisma.$transaction(async (tx) => {
    await tx.$executeRaw`SELECT lease_fence(${lease}, ${token})`; // not $queryRaw, which cannot read a void
    const result = await work(tx);
    // An error that work() has caught: PostgreSQL would answer ROLLBACK to the COMMIT, and nobody would hear of it.
    await tx.$executeRaw`SELECT 1`;
    return result;
  });
}
// [end fenced]

// [column]
// A table with a token column takes single statements: each save sets the column to the holder's own token, not to the one that it read.
export const saveEntry = (prisma, { id, amount }, token) =>
  prisma.entry.update({ where: { id }, data: { amount, token } });

export const saveItems = (prisma, items, token) =>
  prisma.$transaction(
    items.map(({ id, title }) =>
      prisma.feed.upsert({ where: { id }, create: { id, title, token }, update: { title, token } }),
    ),
  );
// [end column]
