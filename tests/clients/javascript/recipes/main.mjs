// main.mjs daily-reward | feed URL
// [main]
import { hostname } from 'node:os';
import { job, lead, pollFeed } from './lease.mjs';
import { open, payChunk } from './pg.mjs';

const TTL = 30_000;
const [what, url] = process.argv.slice(2);
const holder = `${hostname()}:${process.pid}`;
const db = open({}, TTL); // of PGHOST, PGDATABASE and so on

const stopping = new AbortController();
for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, () => stopping.abort());

try {
  if (what === 'feed') await lead(db, 'feed', holder, 5_000, pollFeed(db, url), stopping.signal);
  else
    console.log(
      'daily-reward:',
      await job(db, 'daily-reward', holder, (token) => payChunk(db, token), stopping.signal),
    );
} catch (error) {
  console.log(`${what}: failed: ${error.message}`);
  process.exitCode = 1;
} finally {
  await db.close();
}
// [end main]
