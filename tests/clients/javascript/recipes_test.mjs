// The recipes for a job and a leader, which are the same for each driver.
import assert from 'node:assert/strict';
import { failure, until } from './harness.mjs';

export async function leaderTakesTurns(stack, { lead, scheduler }, app, admin) {
  await admin.reset();
  const written = [];
  const stop = [new AbortController(), new AbortController()];
  const node = (number) => {
    const signal = stop[number].signal;
    const work = scheduler(app, signal, async (tx, token) => {
      await stack.insert(tx, written.length, number);
      written.push({ node: number, token: BigInt(token) });
    });
    return lead(app, 'scheduler', `node-${number}`, 900, work, signal);
  };
  await admin.one("SELECT fence_attach('reward', 'scheduler')");
  try {
    const leaders = [node(0)];
    await until(() => written.length > 2, 'a leader');
    leaders.push(node(1));
    const before = await admin.takeOver('scheduler');
    await admin.one("SELECT lease_force_release('scheduler')");
    await until(() => written.at(-1).token > before, 'the leader after a take-over');
    const leader = written.at(-1).node;
    stop[leader].abort();
    await until(() => written.at(-1).node !== leader, 'the other leader');
    stop[1 - leader].abort();
    await Promise.all(leaders);
    // Each has given it back.
    assert.equal(await admin.one("SELECT state FROM lease_status WHERE name = 'scheduler'"), 'free');
    const tokens = written.map(({ token }) => token);
    assert.deepEqual(
      tokens,
      [...tokens].sort((a, b) => (a < b ? -1 : a > b ? 1 : 0)),
    );
  } finally {
    stop.forEach((each) => each.abort());
    await admin.one("SELECT fence_attach('reward', 'daily-reward')");
  }
}

export async function jobIsDoneOnce(stack, { dailyReward }, app, admin, broken) {
  await admin.reset();
  await admin.client.query(`BEGIN; SET LOCAL session_replication_role = replica;
    INSERT INTO reward SELECT player, 0 FROM generate_series(1, 1200) AS player; COMMIT`);
  const paid = () =>
    admin.one(
      "SELECT string_agg(format('%s x %s', n, amount), ', ' ORDER BY amount) FROM (SELECT amount, count(*) AS n FROM reward GROUP BY 1) AS r",
    );

  await failure(dailyReward(broken, 'node-1'), 'a job that is cut');
  assert.equal(await paid(), '200 x 0, 1000 x 100');
  assert.equal(await dailyReward(app, 'node-2'), true);
  assert.equal(await paid(), '1200 x 100');
  assert.equal(await dailyReward(app, 'node-1'), false);
  assert.equal(await paid(), '1200 x 100');

  // Three days later.
  await admin.one("SELECT lease_force_release('daily-reward')");
  const token = await admin.one("SELECT lease_acquire('daily-reward', 'clock', '1 min')");
  await admin.one(
    "SELECT lease_checkpoint('daily-reward', $1, jsonb_build_object('day', current_date - 2, 'after', 0))",
    [token],
  );
  await admin.one("SELECT lease_release('daily-reward', $1)", [token]);
  assert.equal(await dailyReward(app, 'node-1'), true);
  assert.equal(await paid(), '1200 x 400');
  assert.equal(
    await admin.one("SELECT completed_until = current_date + 1 FROM lease_status WHERE name = 'daily-reward'"),
    true,
  );
}
