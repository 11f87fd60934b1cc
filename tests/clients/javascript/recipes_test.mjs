// The recipes for a job and a leader, which are the same for each driver.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { BlackHole, config, failure, gate, listeningTo, until } from './harness.mjs';
import { job, lead, pollFeed } from './recipes/lease.mjs';

const REWARD = 'daily-reward';
const never = new AbortController().signal;

// A source that says how often it was asked, or that it is ill.
async function source() {
  const self = { asked: 0, ill: false };
  const server = createServer((_, response) => {
    self.asked += 1;
    response.statusCode = self.ill ? 503 : 200;
    response.end(JSON.stringify([{ id: 1, title: `no. ${self.asked}` }]));
  });
  await once(server.listen(0, '127.0.0.1'), 'listening');
  return Object.assign(self, {
    url: `http://127.0.0.1:${server.address().port}`,
    close: () => (server.closeAllConnections(), server.close()),
  });
}

export async function leadersTakeTurns({ stack, admin, database }) {
  await admin.reset();
  const feed = await source();
  const nodes = [0, 1].map((number) => {
    const stop = new AbortController();
    const app = stack.open(config(database), 900);
    const start = () => lead(app, 'feed', `node-${number}`, 50, pollFeed(app, feed.url), stop.signal);
    return { app, stop, start };
  });
  const written = async () => BigInt((await admin.one('SELECT token FROM feed')) ?? 0);
  const title = () => admin.one('SELECT title FROM feed');
  const changes = async (what) => {
    const before = await title();
    await until(async () => (await title()) !== before, what);
  };
  const leading = [];
  try {
    leading.push(nodes[0].start());
    await until(written, 'what the leader has read');
    const first = await written();

    // A source that is ill costs nobody the lead.
    const { heard } = await listeningTo('error', async () => {
      feed.ill = true;
      const before = feed.asked;
      await until(() => feed.asked > before + 3, 'calls of a source that is ill');
      feed.ill = false;
      await changes('a source that has recovered');
    });
    assert.ok(heard.includes('feed: status 503'), heard.join('\n'));
    assert.equal(await written(), first);

    leading.push(nodes[1].start());
    const { result: token } = await listeningTo('error', async (heard) => {
      const token = await admin.takeOver('feed');
      await admin.one("SELECT lease_force_release('feed')");
      await until(async () => (await written()) > token, 'the leader after a take-over');
      const lost = new RegExp(`^feed: lost \\(token ${first}\\): `);
      await until(() => heard.some((line) => lost.test(line)), 'the loss to be told');
      return token;
    });

    const holder = await admin.one("SELECT holder FROM lease_status WHERE name = 'feed'");
    const leader = Number(holder.at(-1));
    nodes[leader].stop.abort();
    const other = `node-${1 - leader}`;
    const leads = () => admin.one("SELECT holder = $1 FROM lease_status WHERE name = 'feed'", [other]);
    await until(leads, 'the other leader');
    await changes('what the other leader has read');
    assert.ok((await written()) > token);
    nodes[1 - leader].stop.abort();
    await Promise.all(leading);
    assert.equal(await admin.one("SELECT state FROM lease_status WHERE name = 'feed'"), 'free');
  } finally {
    nodes.forEach(({ stop }) => stop.abort());
    await Promise.all(leading);
    await Promise.all(nodes.map(({ app }) => app.close()));
    feed.close();
  }

  // An acquisition that fails is not leadership, and not silence.
  const nobody = stack.open({ ...config(database), host: '127.0.0.1', port: 1 }, 900);
  const stop = new AbortController();
  const { heard } = await listeningTo('error', async (heard) => {
    const leader = lead(nobody, 'feed', 'node-1', 50, () => assert.fail('nobody leads'), stop.signal);
    await until(() => heard.length > 1, 'errors of the acquisition');
    stop.abort();
    await leader;
  });
  assert.match(heard[0], /^feed: /);
  await nobody.close().catch(() => {});
}

// The network swallows what the work says, while the heartbeat goes on: the leader has to notice, and to come back.
export async function leaderComesBack({ stack, admin, database }) {
  await admin.reset();
  const hole = await BlackHole.open();
  const ttl = 1_500;
  const app = stack.open({ ...config(database), host: '127.0.0.1', port: hole.port }, ttl);
  const stop = new AbortController();
  let swallowed = false;
  const step = (token) =>
    stack.fenced(app, REWARD, token, async (tx) => {
      // The same row in each term: the first one has it locked until somebody ends its session.
      if (await admin.rows('reward')) return;
      await stack.insert(tx, 1, 100);
      if (swallowed) return;
      swallowed = true;
      const pid = await stack.pid(tx);
      hole.swallow(await admin.one('SELECT client_port FROM pg_stat_activity WHERE pid = $1', [pid]));
      await stack.update(tx, 1, 200);
    });
  const leader = lead(app, REWARD, 'node-1', 50, step, stop.signal);
  try {
    const begun = performance.now();
    await until(() => admin.rows('reward'), 'the leader after a lost network');
    assert.ok(performance.now() - begun < 3 * ttl, 'it took too long');
    assert.equal(await admin.one('SELECT amount FROM reward'), 100);
  } finally {
    stop.abort();
    hole.close();
    await leader;
    await app.close();
  }
}

export async function jobTellsWhatCameOfIt({ stack, app, admin, database }) {
  await admin.reset();
  const run = (step, stop = never) => job(app, REWARD, 'node-1', step, stop);
  const state = () => admin.one('SELECT state FROM lease_status WHERE name = $1', [REWARD]);
  const write = (player) => (token) =>
    stack.fenced(app, REWARD, token, async (tx) => {
      await stack.insert(tx, player, 100);
      return false;
    });

  await admin.takeOver(REWARD);
  assert.equal(await run(write(1)), 'somebody else has it');
  await admin.one('SELECT lease_force_release($1)', [REWARD]);

  // What is not a loss is for the caller, and the lease is not kept for its time to live.
  const bug = await failure(
    run(() => Promise.reject(new Error('a bug'))),
    'a job with a bug',
  );
  assert.equal(bug.message, 'a bug');
  assert.equal(await state(), 'free');
  assert.equal(await run(write(1), AbortSignal.abort()), 'stopped');
  assert.equal(await admin.rows('reward'), 0);

  const superseded = await run((token) =>
    stack.fenced(app, REWARD, token, async (tx) => {
      await admin.takeOver(REWARD);
      await stack.insert(tx, 1, 100);
    }),
  );
  assert.match(superseded, /^lost \(token \d+\): .*is not current; .*token \d+ was granted later/s);
  await admin.one('SELECT lease_force_release($1)', [REWARD]);

  // 57P01, as it was evicted.
  const evicted = await run((token) =>
    stack.fenced(app, REWARD, token, async (tx) => {
      await stack.insert(tx, 1, 100);
      const next = await admin.takeOver(REWARD);
      const pid = await stack.pid(tx);
      assert.equal(await admin.one('SELECT lease_evict($1, $2)', [REWARD, String(next)]), pid);
      await admin.gone(pid);
      await stack.insert(tx, 2, 100);
    }),
  );
  assert.match(evicted, /^lost \(token \d+\): /);
  await admin.one('SELECT lease_force_release($1)', [REWARD]);

  // A predecessor that is frozen between its write and its COMMIT: it has the row that we are going to write.
  // Its own timeouts do not run either.
  const frozenApp = stack.open(config(database), 600_000);
  const token = await frozenApp.acquire(REWARD, 'node-0');
  const [frozen, woken] = [gate(), gate()];
  const predecessor = stack.fenced(frozenApp, REWARD, token, async (tx) => {
    await stack.insert(tx, 1, 100);
    frozen.open();
    await woken;
    await stack.insert(tx, 2, 100);
  });
  predecessor.catch(() => {});
  await frozen;
  await admin.one('SELECT lease_force_release($1)', [REWARD]);
  const done = async (token) => {
    await write(1)(token);
    return admin.one('SELECT NOT lease_complete($1, $2)', [REWARD, String(token)]);
  };
  try {
    assert.equal(await run(done), 'done');
  } finally {
    woken.open();
  }
  await failure(predecessor, 'a predecessor that woke up');
  await frozenApp.close();
  assert.equal(await admin.rows('reward'), 1);
  assert.equal(await run(write(3)), 'done already for today');
  assert.equal(await admin.rows('reward'), 1);
}

const players = (admin) =>
  admin.client.query(`BEGIN; SET LOCAL session_replication_role = replica;
    INSERT INTO reward SELECT player, 0 FROM generate_series(1, 1200) AS player; COMMIT`);

export async function dailyReward({ stack, app, admin, database }) {
  const run = (holder, db = app, step = (token) => stack.payChunk(db, token)) => job(db, REWARD, holder, step, never);
  const paid = () =>
    admin.one(
      "SELECT string_agg(format('%s x %s', n, amount), ', ' ORDER BY amount) FROM (SELECT amount, count(*) AS n FROM reward GROUP BY 1) AS r",
    );
  // The day that is due there, whatever the session's time zone is.
  const day = "(now() AT TIME ZONE 'Europe/Berlin' - interval '10 min')::date";
  const completed = () =>
    admin.one(
      `SELECT completed_until = (${day} + 1 + time '00:10') AT TIME ZONE 'Europe/Berlin' FROM lease_status WHERE name = $1`,
      [REWARD],
    );

  await admin.reset();
  await players(admin);
  let chunks = 0;
  const cut = (token) => {
    if (chunks++ === 2) throw new Error('cut');
    return stack.payChunk(app, token);
  };
  assert.equal((await failure(run('node-1', app, cut), 'a job that is cut')).message, 'cut');
  assert.equal(await paid(), '200 x 0, 1000 x 100');
  assert.equal(await run('node-2'), 'done');
  assert.equal(await paid(), '1200 x 100');
  assert.equal(await run('node-1'), 'done already for today');
  assert.equal(await paid(), '1200 x 100');
  assert.equal(await completed(), true);

  // Three days later.
  await admin.one('SELECT lease_force_release($1)', [REWARD]);
  const token = await admin.one("SELECT lease_acquire($1, 'clock', '1 min')", [REWARD]);
  await admin.one(`SELECT lease_checkpoint($1, $2, jsonb_build_object('day', ${day} - 2, 'after', 0))`, [
    REWARD,
    token,
  ]);
  await admin.one('SELECT lease_release($1, $2)', [REWARD, token]);
  assert.equal(await run('node-1'), 'done');
  assert.equal(await paid(), '1200 x 400');
  assert.equal(await completed(), true);

  // In one of these two it is another day than in Berlin.
  for (const zone of ['Pacific/Kiritimati', 'Etc/GMT+12']) {
    await admin.reset();
    await players(admin);
    await admin.one(`ALTER DATABASE "${database}" SET TimeZone = '${zone}'`);
    const elsewhere = stack.open(config(database), 60_000);
    assert.equal(await run('node-1', elsewhere), 'done');
    await elsewhere.close();
    assert.equal(await paid(), '1200 x 100', zone);
    assert.equal(await completed(), true, zone);
    assert.equal(await admin.one(`SELECT lease_checkpoint($1) ->> 'day' = (${day} + 1)::text`, [REWARD]), true, zone);
  }
  await admin.one(`ALTER DATABASE "${database}" RESET TimeZone`);
}

export async function payAtOnce({ stack, app, admin }) {
  await admin.reset();
  await players(admin);
  const outcomes = await Promise.all([stack.payAtOnce(app), stack.payAtOnce(app)]);
  assert.deepEqual(outcomes.sort(), ['done', 'done already for today']);
  assert.equal(await admin.rows('payout'), 1200);
}
