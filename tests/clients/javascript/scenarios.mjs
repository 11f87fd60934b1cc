// The scenarios that every stack plays. A stack makes the calls as its users would; what has to come of them is said here.
import assert from 'node:assert/strict';
import { config, failure, takeUnheard, until } from './harness.mjs';
import { heartbeat } from './recipes/lease.mjs';
import * as recipes from './recipes_test.mjs';

const REWARD = 'daily-reward'; // fences the table reward, by transaction
const LEDGER = 'ledger'; // fences the table entry, by its column token

// The class and the SQLSTATE as the application sees them.
function saw(stack, error, ...expected) {
  const seen = `${error.constructor.name} ${stack.sqlstate(error)}`;
  assert.ok(expected.includes(seen), `${seen}, not ${expected.join(' or ')}: ${error.message}`);
}

// The same where the connection is gone: whether the driver has read the server's last word by then, or only sees a closed socket, is a matter of luck.
function sawTheEnd(stack, error, ...expected) {
  if (['ECONNRESET', 'EPIPE'].includes(stack.sqlstate(error))) return;
  saw(stack, error, ...expected);
}

const held = async (stack, app, lease) => {
  const token = await app.acquire(lease, 'node-1');
  assert.notEqual(token, null, `${lease} was not granted`);
  return token;
};

// A fenced transaction without the recipe.
const bare = (stack) => (app, lease, token, work) =>
  stack.transaction(app, async (tx) => {
    await stack.fence(tx, lease, token);
    return work(tx);
  });

// Tries again what the stack's users try again: serialization failures and deadlocks.
async function retrying(stack, work) {
  for (let tries = 1; ; tries++) {
    try {
      return await work(tries);
    } catch (error) {
      if (tries === 3 || !stack.retryable(error)) throw Object.assign(error, { tries });
    }
  }
}

export const scenarios = {
  async grant({ stack, app, admin }) {
    const token = await held(stack, app, REWARD);
    assert.equal(typeof token, stack.token);
    assert.ok(BigInt(token) > 2n ** 53n - 1_000_000n);
    assert.equal(String(token), await admin.one('SELECT token::text FROM lease_status WHERE name = $1', [REWARD]));
    assert.equal(await app.acquire(REWARD, 'node-2'), null);
    assert.notEqual(await app.extend(REWARD, token), null);
    assert.equal(await app.extend(REWARD, stack.from(BigInt(token) - 1n)), null);

    const highest = 2n ** 63n - 1n;
    await admin.one('BEGIN');
    await admin.one('SET LOCAL session_replication_role = replica');
    await admin.one('INSERT INTO entry VALUES (1, 0, $1)', [String(highest)]);
    await admin.one('COMMIT');
    const column = await stack.readToken(app, 1);
    assert.equal(typeof column, stack.column ?? stack.token);
    assert.equal(BigInt(column), highest);
    await stack.naturalTimes?.(app, admin);
  },

  async heartbeat({ stack, app, admin, database }) {
    // The work has a longer time to live, as it is to be busy for longer than one.
    const ttl = 1_500;
    const beats = stack.open(config(database), ttl);
    let sent = performance.now();
    const token = await beats.acquire(REWARD, 'node-1');
    let answers = 0;
    const lease = heartbeat(ttl, sent, async () => {
      const before = performance.now();
      const expiry = await beats.extend(REWARD, token);
      if (expiry !== null) [answers, sent] = [answers + 1, before];
      return expiry;
    });
    await stack.fenced(app, REWARD, token, async (tx) => {
      await stack.insert(tx, 1, 100);
      await stack.busy(tx, (2.5 * ttl) / 1_000);
      lease.check();
    });
    lease.check();
    assert.ok(answers >= 4, `extended ${answers} times`);
    assert.equal(await admin.one('SELECT token::text FROM lease_status WHERE name = $1', [REWARD]), String(token));

    // NULL ends the work before our own deadline does.
    await admin.takeOver(REWARD);
    await until(() => lease.signal.aborted, 'the heartbeat to hear NULL');
    assert.ok(performance.now() < sent + ttl, 'it was the deadline');
    assert.throws(() => lease.check(), /PostgreSQL says that the lease is not ours any more/);
    await beats.close();

    // A blocked event loop runs neither heartbeat nor timer, so the clock has to say it.
    await admin.one('SELECT lease_force_release($1)', [REWARD]);
    sent = performance.now();
    const blocked = heartbeat(300, sent, () => assert.fail('the event loop is blocked'));
    while (performance.now() < sent + 350);
    assert.ok(!blocked.signal.aborted);
    assert.throws(() => blocked.check(), /no extension was confirmed within the time to live/);

    // An extension that is never answered does not keep the work going.
    const hanging = heartbeat(300, performance.now(), () => new Promise(() => {}));
    await until(() => hanging.signal.aborted, 'the deadline');
    assert.throws(() => hanging.check(), /no extension was confirmed within the time to live/);

    const old = heartbeat(300, performance.now() - 301, () => assert.fail('there is nothing to extend'));
    assert.throws(() => old.check(), /the grant was older than its time to live when it arrived/);

    await recipes.leadersTakeTurns({ stack, app, admin, database });
    await stack.more?.({ app, admin, database });
  },

  async fenced_transaction({ stack, app, admin }) {
    const token = await held(stack, app, REWARD);
    await stack.fenced(app, REWARD, token, async (tx) => {
      await stack.insert(tx, 1, 100);
      await stack.update(tx, 1, 200);
    });
    assert.equal(await admin.one('SELECT amount FROM reward WHERE player = 1'), 200);
    const error = await failure(
      stack.transaction(app, (tx) => stack.insert(tx, 2, 100)),
      'a write without a token',
    );
    saw(stack, error, stack.seen.statement('LX003'));
    await stack.batch?.(app, REWARD, token);
    assert.equal(await stack.fencedUpdate(app, token, 1, 300), 1);
    assert.equal(await admin.one('SELECT amount FROM reward WHERE player = 1'), 300);
  },

  async fenced_column({ stack, app, admin }) {
    const token = await held(stack, app, LEDGER);
    await stack.insertEntry(app, 1, 100, token);
    await stack.saveEntry(app, 1, 200, token);
    assert.equal(await admin.one("SELECT amount || ' ' || token FROM entry"), `200 ${token}`);
    // The ordinary save without the column carries no token.
    const error = await failure(stack.saveEntry(app, 1, 300), 'a save without the token');
    saw(stack, error, stack.seen.statement('LX003'));
  },

  async refused_write({ stack, app, admin }) {
    const token = await held(stack, app, REWARD);
    let written = 0;
    const error = await failure(
      retrying(stack, () =>
        stack.fenced(app, REWARD, token, async (tx) => {
          await stack.insert(tx, 1, 100);
          await admin.takeOver(REWARD);
          written += 1;
          await stack.insert(tx, 2, 100);
          written += 1;
        }),
      ),
      'a write under a superseded token',
    );
    saw(stack, error, stack.seen.statement('LX001'));
    assert.equal(error.tries, 1, 'it was tried again');
    assert.equal(written, 1, 'the second write was not refused at the statement');
    assert.equal(await admin.rows('reward'), 0);

    const old = await held(stack, app, LEDGER);
    await stack.insertEntry(app, 1, 100, old);
    await admin.takeOver(LEDGER);
    const column = await failure(
      retrying(stack, () => stack.saveEntry(app, 1, 200, old)),
      'a save under a superseded token',
    );
    saw(stack, column, stack.seen.statement('LX001'));
    assert.equal(column.tries, 1, 'it was tried again');
    assert.equal(await admin.one('SELECT amount FROM entry'), 100);

    // Whoever catches the refusal and goes on to COMMIT has committed nothing. Not every stack tells, but the recipe does.
    for (const fenced of [stack.fenced, stack.swallows && bare(stack)].filter(Boolean)) {
      await admin.one('SELECT lease_force_release($1)', [REWARD]);
      const next = await held(stack, app, REWARD);
      const caught = fenced(app, REWARD, next, async (tx) => {
        await admin.takeOver(REWARD);
        await stack.insert(tx, 3, 100).catch(() => {});
        return 'as if committed';
      });
      if (fenced === stack.fenced) await failure(caught, 'the COMMIT after a refusal that was caught');
      else assert.equal(await caught, 'as if committed');
      assert.equal(await admin.rows('reward'), 0);
    }
  },

  async refused_commit({ stack, app, admin }) {
    const token = await held(stack, app, REWARD);
    let written = false;
    const error = await failure(
      retrying(stack, () =>
        stack.fenced(app, REWARD, token, async (tx) => {
          await stack.insert(tx, 1, 100);
          await admin.takeOver(REWARD);
          written = true;
        }),
      ),
      'the COMMIT under a superseded token',
    );
    assert.ok(written, 'it was refused before the COMMIT');
    saw(stack, error, stack.seen.commit('LX001'));
    assert.equal(error.tries, 1, 'it was tried again');
    assert.equal(await admin.rows('reward'), 0);

    await admin.one('SELECT lease_force_release($1)', [REWARD]);
    const next = await held(stack, app, REWARD);
    await stack.fenced(app, REWARD, next, async (tx) => {
      await stack.insert(tx, 1, 100);
    });
    assert.equal(await admin.rows('reward'), 1);
  },

  async once({ stack, app, admin }) {
    const failed = await failure(
      stack.transaction(app, async (tx) => {
        assert.equal(await stack.once(tx, 'payout'), true);
        throw new Error('the work failed');
      }),
      'the work',
    );
    assert.equal(failed.message, 'the work failed');
    const both = [1, 2].map(() => stack.transaction(app, (tx) => stack.once(tx, 'payout')));
    assert.deepEqual((await Promise.all(both)).sort(), [false, true]);
    if (stack.payAtOnce) await recipes.payAtOnce({ stack, app, admin });
  },

  async checkpoint({ stack, app, admin, database }) {
    const token = await held(stack, app, REWARD);
    const chunk = (player, work) =>
      stack.fenced(app, REWARD, token, async (tx) => {
        await stack.insert(tx, player, 100);
        await stack.checkpoint(tx, REWARD, token, { after: player, of: ['a', 'b'] });
        await work?.(tx);
      });
    await chunk(1);
    await failure(
      chunk(2, async (tx) => admin.terminate(await stack.pid(tx))),
      'a COMMIT without a session',
    );
    assert.deepEqual(await stack.lastCheckpoint(app, REWARD), { after: 1, of: ['a', 'b'] });
    assert.equal(await admin.rows('reward'), 1);
    assert.equal(await admin.one('SELECT jsonb_typeof(lease_checkpoint($1))', [REWARD]), 'object');
    await recipes.jobTellsWhatCameOfIt({ stack, app, admin, database });
    if (stack.payChunk) await recipes.dailyReward({ stack, app, admin, database });
  },

  async wait_timeout({ stack, app, admin }) {
    await admin.takeOver(LEDGER);
    const waiters = (number) =>
      until(async () => (await admin.one('SELECT count(*)::int FROM lease_waiter')) === number, `${number} in line`);
    for (const [way, [giveUp, expected]] of Object.entries(stack.waits)) {
      const inLine = waiters(1);
      const error = await failure(giveUp(app, LEDGER, inLine), way);
      await inLine;
      saw(stack, error, expected);
      await waiters(0);
    }
    assert.equal(await app.acquire(LEDGER, 'node-1'), null);
    await admin.one('SELECT lease_force_release($1)', [LEDGER]);
    await held(stack, app, LEDGER);
  },

  async lost_connection({ stack, app, admin, database }) {
    const token = await held(stack, app, REWARD);
    const work = (cut) =>
      stack.fenced(app, REWARD, token, async (tx) => {
        await stack.insert(tx, 1, 100);
        await cut?.(tx);
        await stack.insert(tx, 2, 100);
      });
    const between = await failure(
      work(async (tx) => admin.terminate(await stack.pid(tx))),
      'a write without a session',
    );
    sawTheEnd(stack, between, ...stack.seen.lostBetween);
    const during = await failure(
      work(async (tx) => {
        const pid = await stack.pid(tx);
        const cut = until(
          () => admin.one("SELECT true FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep'", [pid]),
          'pg_sleep',
        ).then(() => admin.terminate(pid));
        await Promise.all([stack.busy(tx, 60), cut]);
      }),
      'a statement without a session',
    );
    sawTheEnd(stack, during, ...stack.seen.lostDuring);
    assert.equal(await admin.rows('reward'), 0);

    // The lease is not the connection's: the same token goes on.
    await work();
    assert.equal(await admin.rows('reward'), 2);

    // Sessions that end while nobody uses them.
    const idle = `SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'`;
    const { rows } = await admin.client.query(idle);
    assert.ok(rows.length > 0);
    for (const { pid } of rows) await admin.terminate(pid);
    await until(() => app.extend(REWARD, token).catch(() => null), 'an extension by a new connection');
    assert.deepEqual(takeUnheard(stack), []);
    await recipes.leaderComesBack({ stack, admin, database });
  },

  async migration({ stack, admin, database }) {
    await stack.migrate(database, 'up');
    const fences =
      "SELECT string_agg(concat_ws(' ', table_name, lease, token_column), ', ' ORDER BY lease) FROM fence_status";
    assert.equal(await admin.one(fences), 'reward daily-reward, feed feed token, entry ledger token');
    const refused = await failure(admin.one('INSERT INTO reward VALUES (1, 100)'), 'a write without a token');
    assert.equal(refused.code, 'LX003');
    await stack.migrate(database, 'down');
    assert.equal(await admin.one(fences), null);
    await admin.one('INSERT INTO reward VALUES (1, 100)');
  },
};
