// [heartbeat]
// Calls extend() every third of the time to live (ms), until stop() or until the lease is lost. `sent` is performance.now()
// from before the call that was granted, so that our deadline is never later than the server's.
export function heartbeat(ttl, sent, extend) {
  const over = new AbortController();
  let deadline = sent + ttl;
  let next, alarm;

  function end(why) {
    clearTimeout(next);
    clearTimeout(alarm);
    over.abort(new Error(why));
  }
  function schedule(before) {
    clearTimeout(alarm);
    if (over.signal.aborted) return;
    const now = performance.now();
    alarm = setTimeout(end, deadline - now, 'the lease is lost');
    next = setTimeout(beat, before + ttl / 3 - now);
  }
  async function beat() {
    const before = performance.now();
    const expiry = await extend().catch(() => undefined); // no answer is neither yes nor no: ask again until the deadline
    if (expiry === null) end('the lease is lost');
    if (expiry) deadline = before + ttl;
    schedule(before);
  }
  schedule(sent);

  return {
    signal: over.signal, // for what can be cancelled while it waits
    // Throws when the lease is lost: call it before each step. A blocked event loop runs no timer, so this asks the clock.
    check() {
      if (performance.now() >= deadline) end('the lease is lost');
      over.signal.throwIfAborted();
    },
    stop: () => end('stopped'),
  };
}
// [end heartbeat]
