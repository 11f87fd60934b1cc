// What the scenarios stand on: a database for each stack, an administrator's connection, and waiting for what the server shows.
import assert from 'node:assert/strict';
import { createServer, connect } from 'node:net';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { format } from 'node:util';
import pg from 'pg';

export const config = (database) => ({
  host: process.env.PGHOST,
  port: Number(process.env.PGPORT),
  user: process.env.PGUSER ?? 'postgres',
  database,
});

// Ended sessions and drivers that give up: an error that nobody listens to ends an application, so here it fails the scenario.
const unheard = [];
process.on('uncaughtException', (error) => unheard.push(error));
process.on('unhandledRejection', (error) => unheard.push(error));
export const takeUnheard = (stack) => unheard.splice(0).filter((error) => !stack?.knownCrash?.test(error.message));

export class Admin {
  static async database(name) {
    const server = new pg.Client(config(process.env.PGDATABASE ?? 'postgres'));
    await server.connect();
    await server.query(`DROP DATABASE IF EXISTS "${name}" WITH (FORCE)`);
    await server.query(`CREATE DATABASE "${name}"`);
    await server.end();
    const admin = new Admin();
    admin.client = new pg.Client(config(name));
    await admin.client.connect();
    await admin.client.query('CREATE EXTENSION lock_ext');
    // Tokens stay below 2^53; those of the scenarios are close to it.
    await admin.client.query('SELECT lease_raise_token_floor($1)', [String(2n ** 53n - 1_000_000n)]);
    return admin;
  }

  async one(text, parameters = []) {
    const { rows } = await this.client.query({ text, values: parameters, rowMode: 'array' });
    return rows[0]?.[0];
  }

  // Someone else, who does not wait for the time to live to run out. A leader may be faster in between, hence again.
  takeOver(lease) {
    return until(async () => {
      await this.one('SELECT lease_force_release($1)', [lease]);
      const token = await this.one("SELECT lease_acquire($1, 'successor', '1 min')", [lease]);
      return token === null ? false : BigInt(token);
    }, 'a take-over');
  }

  async terminate(pid) {
    await this.one('SELECT pg_terminate_backend($1)', [pid]);
    await this.gone(pid);
  }

  gone(pid) {
    return until(
      async () => (await this.one('SELECT count(*) FROM pg_stat_activity WHERE pid = $1', [pid])) === '0',
      'the end of a session',
    );
  }

  rows(table) {
    return this.one(`SELECT count(*)::int FROM ${table}`);
  }

  // As before the first scenario: nobody holds a lease, and the tables are empty. Fences do not fire in replica mode.
  async reset() {
    await this.client.query(`ROLLBACK; SELECT lease_force_release(name) FROM lease_status WHERE state <> 'free';
      BEGIN; SET LOCAL session_replication_role = replica; TRUNCATE reward, entry, feed; COMMIT;
      SELECT lease_prune('0 s')`);
  }

  end() {
    return this.client.end();
  }
}

export async function until(condition, what) {
  const end = performance.now() + 20_000;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (performance.now() > end) throw new Error(`waited in vain for ${what}`);
    await sleep(20);
  }
}

export async function failure(promise, what) {
  let value;
  try {
    value = await promise;
  } catch (error) {
    return error;
  }
  assert.fail(`${what} was not refused, but gave ${value}`);
}

// What is written to the console while work(heard) runs.
export async function listeningTo(level, work) {
  const heard = [];
  const original = console[level];
  console[level] = (...words) => heard.push(format(...words));
  try {
    return { result: await work(heard), heard };
  } finally {
    console[level] = original;
  }
}

// A promise that somebody else resolves.
export function gate() {
  let open;
  return Object.assign(new Promise((resolve) => (open = resolve)), { open });
}

// A network between the application and the server, which can swallow what a connection says, without ending it.
export class BlackHole {
  static async open() {
    const self = new BlackHole();
    self.links = new Map();
    self.server = createServer({ allowHalfOpen: true }, async (near) => {
      const far = connect({ host: '127.0.0.1', port: Number(process.env.PGPORT), allowHalfOpen: true });
      const link = { near, far };
      for (const [from, to] of [
        [near, far],
        [far, near],
      ]) {
        from.on('error', () => {});
        from.on('data', (data) => link.swallows || to.write(data));
        for (const event of ['end', 'close']) from.on(event, () => link.swallows || to.end());
      }
      far.on('connect', () => self.links.set(far.localPort, link));
    });
    await once(self.server.listen(0, '127.0.0.1'), 'listening');
    self.port = self.server.address().port;
    return self;
  }

  // The server knows the connection by its port.
  swallow(port) {
    this.links.get(port).swallows = true;
  }

  close() {
    this.server.close();
    for (const { near, far } of this.links.values()) [near, far].forEach((socket) => socket.destroy());
  }
}
