import logging
import threading
import time


class LeaseLost(Exception):
    """Stop: somebody else may be at it. Never retry with the same token."""

    def __init__(self, lease, token, reason):
        super().__init__(f"lease {lease}, token {token}: {reason}")


class Heartbeat(threading.Thread):
    """Extends a lease every third of its time to live, for as long as the work reports.

    extend() answers whether the lease is still ours, or raises where it could not ask; asked
    is time.monotonic() from before lease_acquire. Work that has not called check() for longer
    than patience is taken to hang, and others shall have the lease.
    """

    def __init__(self, lease, token, extend, ttl, asked, patience=None):
        super().__init__(daemon=True)
        self.lease, self.token, self.extend, self.ttl = lease, token, extend, ttl
        self.deadline = asked + ttl
        self.patience, self.reported = patience or 3 * ttl, asked
        self.reason = "not extended in time"
        self.stopping = threading.Event()

    def run(self):
        while not self.stopping.wait(self.ttl / 3):
            asked = time.monotonic()
            if asked > self.reported + self.patience:
                return self.lose(f"no work was reported for {self.patience} s")
            try:
                held = self.extend()
            except Exception as error:  # neither held nor lost: ask again, until the deadline
                logging.warning("lease %s is not extended: %s", self.lease, error)
                continue
            if not held:
                return self.lose("it is another's, or expired")
            self.deadline = asked + self.ttl

    def lose(self, reason):
        self.reason, self.deadline = reason, 0

    def check(self):
        """To be called before each piece of work."""
        self.reported = time.monotonic()
        if self.reported >= self.deadline:
            raise LeaseLost(self.lease, self.token, self.reason)

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.join(self.ttl)
