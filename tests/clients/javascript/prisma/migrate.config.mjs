// For the migration alone, by Prisma 6, whose engine for migrations can be WebAssembly over the adapter. That of Prisma 7 is a binary, which is downloaded.
import { PrismaPg } from '@prisma/adapter-pg';
import { defineConfig } from 'prisma-6/config';

// Otherwise it ends only after the ten seconds that it would have waited for its advisory lock.
const { setTimeout } = globalThis;
globalThis.setTimeout = (work, ms, ...rest) =>
  ms === 10_000 ? setTimeout(work, ms, ...rest).unref() : setTimeout(work, ms, ...rest);

export default defineConfig({
  schema: 'migrate.prisma',
  migrations: { path: process.env.MIGRATIONS },
  experimental: { adapter: true },
  engine: 'js',
  adapter: async () => new PrismaPg({ allowExitOnIdle: true }), // the database is that of the environment
});
