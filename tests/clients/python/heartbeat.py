# [heartbeat]
import threading
import time


class LeaseLost(Exception):
    """Stop: somebody else may be at it. Never retry with the same token."""


class Heartbeat(threading.Thread):
    """Calls extend() every third of the time to live. It has to answer whether the lease
    is still ours, or raise where it could not ask."""

    def __init__(self, extend, ttl, asked):
        super().__init__(daemon=True)
        self.extend, self.ttl = extend, ttl
        self.deadline = asked + ttl  # asked: time.monotonic() before lease_acquire
        self.stopping = threading.Event()

    def run(self):
        while not self.stopping.wait(self.ttl / 3):
            asked = time.monotonic()
            try:
                held = self.extend()
            except Exception:
                continue  # neither held nor lost: ask again, until the deadline
            self.deadline = asked + self.ttl if held else 0
            if not held:
                return

    def check(self):
        """To be called before each piece of work."""
        if time.monotonic() >= self.deadline:
            raise LeaseLost

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.join(self.ttl)


# [end heartbeat]
