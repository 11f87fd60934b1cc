"""What the stacks share: a database for each, a rival, and small tools.

What an application would do a stack does with its own driver; the rival and the administrator
are psycopg in every stack.
"""

import ctypes
import os
import socket
import struct
import threading
import time
from contextlib import contextmanager, suppress

import psycopg

# Tokens stay below 2^53. The first scenario raises the floor to this, and all others
# then work with tokens that a double would still hold, but an int4 would not.
FLOOR = 2**53 - 1000
BIGGEST = 2**63 - 1

# For looking at the tests themselves: without the fence those that are refused have to fail.
FENCED = os.environ.get("LOCK_EXT_CLIENTS_FENCE", "on") != "off"


class Skip(Exception):
    """The scenario has no meaning for the stack."""


def check(condition, why):
    """assert, also under python -O."""
    if not condition:
        raise AssertionError(why)


def equal(seen, expected):
    check(seen == expected, f"{seen!r} where {expected!r} was expected")


def error_of(call, *arguments):
    """The exception that the call ends in, as the application sees it."""
    try:
        result = call(*arguments)
    except Exception as error:
        return error
    raise AssertionError(f"no error, but {result!r}")


def until(condition, seconds=20):
    """Waits for what somebody else is about to do."""
    give_up = time.monotonic() + seconds
    while not (seen := condition()):
        if time.monotonic() > give_up:
            raise AssertionError("waited in vain")
        time.sleep(0.01)
    return seen


def black_hole(fd):
    """From now on nothing arrives at this TCP socket, acknowledgements neither. A packet filter
    of one instruction, drop, does that to a socket of one's own without any privilege."""
    drop = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(drop))
    sock = socket.socket(fileno=os.dup(fd))
    sock.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER

    def give_up():  # a test that waits for ever would tell nobody why
        with sock, suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    rescue = threading.Timer(10, give_up)
    rescue.daemon = True
    rescue.start()


@contextmanager
def frozen_in(lease, statement):
    """A holder that froze between the statement and its COMMIT, and has lost the lease since.

    Gives a function that wakes it up, and answers what its COMMIT ended in."""
    with psycopg.connect() as conn, psycopg.connect(autocommit=True) as admin:
        grant = "SELECT lease_acquire(%s, 'frozen', '1 min')"
        token = admin.execute(grant, (lease,)).fetchone()[0]
        conn.execute("SELECT lease_fence(%s, %s)", (lease, token))
        conn.execute(statement)
        admin.execute("SELECT lease_force_release(%s)", (lease,))
        yield lambda: error_of(conn.commit)
        conn.close()


class Rival:
    """Another node and the administrator, on a connection of their own in autocommit."""

    def __init__(self):
        self.conn = psycopg.connect(autocommit=True)

    def value(self, query, *parameters):
        return self.conn.execute(query, parameters or None).fetchone()[0]

    def rows(self, query, *parameters):
        return self.conn.execute(query, parameters or None).fetchall()

    def table(self, lease, token_column=None):
        """A new table `reward`, fenced with the lease."""
        self.conn.execute("DROP TABLE IF EXISTS reward")
        self.conn.execute(
            "CREATE TABLE reward (player int PRIMARY KEY, amount int NOT NULL, token bigint)"
        )
        if FENCED:
            self.value("SELECT fence_attach('reward', %s, %s)", lease, token_column)

    def rewards(self):
        return self.rows("SELECT player, amount FROM reward ORDER BY player")

    def take_over(self, lease):
        """The holder is gone for all that the administrator knows."""
        self.value("SELECT lease_force_release(%s)", lease)
        token = self.value("SELECT lease_acquire(%s, 'rival', '1 min')", lease)
        check(token, f"the rival was not granted {lease}")
        return token

    def take_over_expired(self, lease):
        """The holder's time to live runs out, and another node acquires the lease."""
        return until(lambda: self.value("SELECT lease_acquire(%s, 'rival', '1 min')", lease))

    def state(self, lease):
        return self.value("SELECT state FROM lease_status WHERE name = %s", lease)

    def waiting(self, lease):
        return self.value("SELECT count(*) FROM lease_waiter WHERE name = %s", lease)

    def terminate(self, pid):
        self.value("SELECT pg_terminate_backend(%s)", pid)
        until(lambda: not self.rows("SELECT FROM pg_stat_activity WHERE pid = %s", pid))


def make_database(stack):
    """Where libpq's environment leads all drivers from then on."""
    name = "clients_python_" + stack.replace("-", "_")
    with psycopg.connect(autocommit=True) as conn:
        conn.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        conn.execute(f"CREATE DATABASE {name}")
    os.environ["PGDATABASE"] = name
    with psycopg.connect(autocommit=True) as conn:
        conn.execute("CREATE EXTENSION lock_ext")
