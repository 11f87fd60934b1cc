// recipes/main.mjs as its users start it.
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { hostname } from 'node:os';
import { fileURLToPath } from 'node:url';
import { until } from './harness.mjs';

const program = fileURLToPath(new URL('recipes/main.mjs', import.meta.url));

function start(database, ...words) {
  const child = spawn(process.execPath, [program, ...words], { env: { ...process.env, PGDATABASE: database } });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => (output += data));
  const ended = once(child, 'close').then(([status]) => ({ status, output }));
  return { child, ended };
}

export async function mainIsAProgram(admin, database) {
  await admin.reset();
  const job = () => start(database, 'daily-reward').ended;
  await admin.takeOver('daily-reward');
  assert.deepEqual(await job(), { status: 0, output: 'daily-reward: somebody else has it\n' });
  await admin.one("SELECT lease_force_release('daily-reward')");
  assert.deepEqual(await job(), { status: 0, output: 'daily-reward: done\n' });
  assert.deepEqual(await job(), { status: 0, output: 'daily-reward: done already for today\n' });
  const nowhere = await start(`${database}_nowhere`, 'daily-reward').ended;
  assert.equal(nowhere.status, 1);
  assert.match(nowhere.output, /^daily-reward: failed: database ".*" does not exist\n$/);

  const source = createServer((_, response) => response.end('[{ "id": 1, "title": "one" }]'));
  await once(source.listen(0, '127.0.0.1'), 'listening');
  const { child, ended } = start(database, 'feed', `http://127.0.0.1:${source.address().port}`);
  try {
    await until(() => admin.rows('feed'), 'the leader');
    const holder = await admin.one("SELECT holder FROM lease_status WHERE name = 'feed'");
    assert.equal(holder, `${hostname()}:${child.pid}`);
    child.kill('SIGTERM');
    assert.equal((await ended).status, 0);
    assert.equal(await admin.one("SELECT state FROM lease_status WHERE name = 'feed'"), 'free');
  } finally {
    child.kill('SIGKILL');
    source.closeAllConnections();
    source.close();
  }
}
