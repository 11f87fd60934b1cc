"""What the stacks share: a database for each, a rival, and small tools.

What an application would do a stack does with its own driver; the rival and the administrator
are psycopg in every stack.
"""

import os
import time

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
