// What is the same for every driver. `db` is what open() of the driver's own file gives.
// [heartbeat]
export class LeaseLost extends Error {}

// Calls extend() every third of the time to live (ms), until stop() or until the lease is lost. `sent` is performance.now()
// from before the call that was granted, so that our deadline is never later than the server's.
export function heartbeat(ttl, sent, extend) {
  const over = new AbortController();
  let deadline = sent + ttl;
  let late = 'the grant was older than its time to live when it arrived';
  let next, alarm;

  function end(why) {
    clearTimeout(next);
    clearTimeout(alarm);
    over.abort(new LeaseLost(why));
  }
  function schedule(before) {
    clearTimeout(alarm);
    if (over.signal.aborted) return;
    const now = performance.now();
    if (now >= deadline) return end(late);
    late = 'no extension was confirmed within the time to live';
    alarm = setTimeout(end, deadline - now, late);
    next = setTimeout(beat, before + ttl / 3 - now);
  }
  async function beat() {
    const before = performance.now();
    const expiry = await extend().catch(() => undefined); // no answer is neither yes nor no: ask again until the deadline
    if (expiry === null) end('PostgreSQL says that the lease is not ours any more');
    if (expiry) deadline = before + ttl;
    schedule(before);
  }
  schedule(sent);

  return {
    signal: over.signal, // for what can be cancelled while it waits
    // Throws when the lease is lost: call it before each step. A blocked event loop runs no timer, so this asks the clock.
    check() {
      if (performance.now() >= deadline) end(late);
      over.signal.throwIfAborted();
    },
    stop: () => end('stopped'),
  };
}
// [end heartbeat]

// [hold]
const atOnce = async (db, name, holder) => ({ sent: performance.now(), token: await db.acquire(name, holder) });

// Calls work(token, lease) if this node is granted the lease, and gives it back after that. null: somebody else has it, or it is done.
// The token is that of this grant alone: what is read or begun under it is not for the next one.
export async function withLease(db, name, holder, work, grant = atOnce) {
  const { sent, token } = await grant(db, name, holder);
  if (token === null) return null;
  const lease = heartbeat(db.ttl, sent, () => db.extend(name, token));
  let result, failed;
  try {
    lease.check();
    // A predecessor that is frozen in its transaction can commit nothing, but keeps its row locks.
    await db.evict(name, token);
    result = await work(token, lease);
  } catch (error) {
    failed = error;
  }
  lease.stop();
  // On the heartbeat's connection, and always, so that the next one need not wait for the time to live. false: it was not ours.
  const ours = await db.release(name, token).catch(() => undefined);
  if (!failed) return result;
  if (!(failed instanceof LeaseLost) && ours !== false) throw failed;
  const { message, detail } = db.origin(failed); // LX errors say in the detail who has it now
  throw new LeaseLost(`lost (token ${token}): ${[message, detail].filter(Boolean).join('; ')}`, { cause: failed });
}
// [end hold]

// [job]
// Calls step(token) until it says that there is no more, and tells in a line what came of it. `stop` is an AbortSignal.
export async function job(db, name, holder, step, stop) {
  try {
    const outcome = await withLease(db, name, holder, async (token, lease) => {
      do {
        lease.check();
        if (stop.aborted) return 'stopped';
      } while (await step(token));
      return 'done';
    });
    if (outcome) return outcome;
    return (await db.state(name)) === 'completed' ? 'done already for today' : 'somebody else has it';
  } catch (error) {
    if (error instanceof LeaseLost) return error.message; // not ours to repair: whoever has it now goes on
    throw error;
  }
}
// [end job]

// [leader]
import { setTimeout as sleep } from 'node:timers/promises';

// Calls step(token, signal) every `every` ms whenever this node is the leader. `stop` is an AbortSignal.
export async function lead(db, name, holder, every, step, stop) {
  while (!stop.aborted) {
    try {
      await withLease(db, name, holder, async (token, lease) => {
        console.log(`${name}: leading under token ${token}`);
        const over = AbortSignal.any([lease.signal, stop]);
        while (!stop.aborted) {
          lease.check();
          await step(token, over);
          await sleep(every, undefined, { signal: over }).catch(() => {});
        }
      });
    } catch (error) {
      console.error(`${name}:`, error instanceof LeaseLost ? error.message : db.origin(error).message); // no longer the leader, or nobody could be asked: a candidate again
    }
    await sleep(db.ttl / 3, undefined, { signal: stop }).catch(() => {});
  }
}
// [end leader]

// [feed]
// A leader's step: read outside of any transaction, then one statement under the token that the reading began with.
export function pollFeed(db, url) {
  return async (token, over) => {
    let items;
    try {
      const response = await fetch(url, { signal: AbortSignal.any([over, AbortSignal.timeout(db.ttl / 3)]) });
      if (!response.ok) throw new Error(`status ${response.status}`);
      items = await response.json();
    } catch (error) {
      if (!over.aborted) console.error('feed:', error.message); // the source's trouble, not ours: still the leader
      return;
    }
    if (items.length > 0) await db.saveItems(items, token); // what this throws ends the term
  };
}
// [end feed]
