// [open]
import { PrismaPg } from '@prisma/adapter-pg';
import { PrismaClient } from '../prisma/generated/index.js';

export function open(config) {
  const prisma = new PrismaClient({ adapter: new PrismaPg(config) });
  // The heartbeat has a connection of its own: the pool of the work would let it wait while that is busy.
  const heartbeats = new PrismaClient({ adapter: new PrismaPg({ ...config, max: 1, query_timeout: 5_000 }) });
  return { prisma, heartbeats };
}
// [end open]

// [calls]
export async function acquire(prisma, name, holder, ttl) {
  const [{ token }] = await prisma.$queryRaw`SELECT lease_acquire(${name}, ${holder}, ${ttl + ' ms'}) AS token`;
  return token; // a BigInt; null: somebody else has it, or it is done
}

export async function extend(prisma, name, token) {
  const [{ expiry }] = await prisma.$queryRaw`SELECT lease_extend(${name}, ${token}) AS expiry`;
  return expiry;
}
// [end calls]

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

// Prisma has an error of its own for a statement, and passes on the adapter's from the COMMIT.
export const sqlstate = (error) => (error.meta?.driverAdapterError?.cause ?? error.cause)?.originalCode;
// [end fenced]

// [column]
// A table with a token column takes single statements: each save sets the column to the holder's own token, not to the one that it read.
export const saveEntry = (prisma, { id, amount }, token) =>
  prisma.entry.update({ where: { id }, data: { amount, token } });
// [end column]
