"""psycopg 3: the driver itself, with its own way of passing parameters."""

import sys
import threading
import uuid
from datetime import timedelta

import psycopg
from psycopg.types.json import Jsonb

import harness

if __name__ == "__main__":
    harness.make_database("psycopg")

import lease
import scenarios
from also_psycopg import also_checkpoint as also_checkpoint
from also_psycopg import also_heartbeat as also_heartbeat
from also_psycopg import also_once as also_once
from harness import check, equal, error_of, until
from scenarios import TTL, is_refusal

STACK, VERSION = "psycopg", psycopg.__version__
REFUSED, RETRIED = psycopg.DatabaseError, (psycopg.OperationalError,)
LOST = psycopg.OperationalError
GIVING_UP = {
    "cancel": (psycopg.errors.QueryCanceled, "57014"),
    "statement_timeout": (psycopg.errors.QueryCanceled, "57014"),
    "lock_timeout": (psycopg.errors.LockNotAvailable, "55P03"),
}


def sqlstate(error):
    return error.sqlstate


def extender(name, token):
    return lease.extender(name, token, 1.5)


class Node:
    def __init__(self):
        self.conn = psycopg.connect(autocommit=True)

    def close(self):
        self.conn.close()

    def value(self, query, *parameters):
        return self.conn.execute(query, parameters).fetchone()[0]

    def acquire(self, name, ttl):
        return self.value("SELECT lease_acquire(%s, %s, %s)", name, "node-1", ttl)

    def acquire_seconds(self, name, ttl):
        query = "SELECT lease_acquire(%s, %s, make_interval(secs => %s))"
        return self.value(query, name, "node-1", ttl)

    def acquire_waiting(self, name, ttl, wait):
        query = "SELECT lease_acquire(%s, %s, %s, wait => %s)"
        return self.value(query, name, "node-1", ttl, wait)

    def extend(self, name, token):
        return self.value("SELECT lease_extend(%s, %s)", name, token)

    def save(self, player, amount=100):
        upsert = (
            "INSERT INTO reward (player, amount) VALUES (%s, %s)"
            " ON CONFLICT (player) DO UPDATE SET amount = excluded.amount"
        )
        self.conn.execute(upsert, (player, amount))

    def save_by_column(self, player, amount, token):
        upsert = (
            "INSERT INTO reward (player, amount, token) VALUES (%s, %s, %s) ON CONFLICT (player)"
            " DO UPDATE SET amount = excluded.amount, token = excluded.token"
        )
        self.conn.execute(upsert, (player, amount, token))

    def fenced(
        self,
        name,
        token,
        players,
        amount=100,
        checkpoint=None,
        before_write=None,
        before_commit=None,
    ):
        with self.conn.transaction():
            self.conn.execute("SELECT lease_fence(%s, %s)", (name, token))
            if before_write:
                before_write()
            for player in players:
                self.save(player, amount)
            if checkpoint:
                query = "SELECT lease_checkpoint(%s, %s, %s)"
                self.conn.execute(query, (name, token, Jsonb(checkpoint)))
            if before_commit:
                before_commit()

    def pay_once(self, key, player, token, roll_back=False):
        with self.conn.transaction():
            if not self.value("SELECT once(%s)", key):
                return False
            self.save_by_column(player, 100, token)
            if roll_back:
                raise psycopg.Rollback
            return True

    def checkpoint(self, name):
        return self.value("SELECT lease_checkpoint(%s)", name)

    def biggest(self, token):
        with self.conn.transaction():
            self.conn.execute("CREATE TEMPORARY TABLE biggest (token bigint) ON COMMIT DROP")
            self.conn.execute("INSERT INTO biggest VALUES (%s)", (token,))
            return self.value("SELECT token FROM biggest")

    def sleep_2_s(self):
        self.conn.execute("SELECT pg_sleep(2)")

    def pid(self):
        return self.conn.info.backend_pid

    def one(self):
        return self.value("SELECT 1")

    def give_up(self, way, name, in_line):
        """Waits for the lease, and does not wait to the end."""

        def cancel():
            until(in_line)
            self.conn.cancel_safe()

        if way == "cancel":
            canceller = threading.Thread(target=cancel)
            canceller.start()
        else:
            self.conn.execute(f"SET {way} = 200")
        error = error_of(self.acquire_waiting, name, TTL, timedelta(seconds=20))
        if way == "cancel":
            canceller.join()
        else:
            self.conn.execute(f"RESET {way}")
        return error


def wait_elsewhere(name, ttl, wait):
    node = Node()
    try:
        return node.acquire_waiting(name, ttl, wait)
    finally:
        node.close()


def also_grant(rival):
    """What passes for a time to live, for NULL and for infinity."""
    node = Node()
    text = node.acquire("text", "30 s")
    check(text, "text does")
    error = error_of(node.acquire, "number", 30)
    equal((type(error), sqlstate(error)), (psycopg.errors.UndefinedFunction, "42883"))
    query, request = "SELECT lease_acquire(%s, %s, %s, request => %s)", uuid.uuid4()
    asked = [node.value(query, "uuid", "node-1", TTL, request) for _ in range(2)]
    check(asked[0] and asked[0] == asked[1], asked)
    query = "SELECT lease_elect(%s, %s, %s, %s)"
    leader = node.value(query, "leader", "node-1", TTL, None)
    equal(node.value(query, "leader", "node-1", TTL, leader), leader)

    query = "SELECT lease_complete(%s, %s, until => %s)"
    tomorrow = node.value("SELECT current_date + 1")
    check(node.value(query, "leader", leader, tomorrow), "a date does")
    leader = rival.take_over("leader")
    check(node.value(query, "leader", leader, "tomorrow"), "text does")

    # psycopg has no infinity: one lease that is completed for ever spoils SELECT * of all.
    check(node.value("SELECT lease_complete(%s, %s)", "text", text), "not completed")
    error = error_of(rival.rows, "SELECT * FROM lease_status")
    equal(type(error), psycopg.DataError)
    query = "SELECT completed_until::text FROM lease_status WHERE name = 'text'"
    equal(node.value(query), "infinity")
    session = node.value("SELECT lease_acquire_session(%s, %s)", "session", "node-1")
    equal(type(error_of(node.extend, "session", session)), psycopg.DataError)
    equal(node.value("SELECT lease_extend(%s, %s) IS NOT NULL", "session", session), True)
    node.close()

    # Not in autocommit: a grant that is not committed is no lease.
    with psycopg.connect() as conn:
        query = "SELECT lease_acquire('open', 'node-1', '30 s')"
        check(conn.execute(query).fetchone()[0], "granted")
        conn.rollback()
    equal(rival.rows("SELECT FROM lease_status WHERE name = 'open' AND state = 'held'"), [])


def also_fenced_transaction(rival):
    """COPY, executemany, a server-side cursor that outlives its transaction, a pipeline."""
    rival.table("other ways")
    node = Node()
    conn, token = node.conn, node.acquire("other ways", TTL)
    insert = "INSERT INTO reward (player, amount) VALUES (%s, %s)"
    fence = "SELECT lease_fence('other ways', %s)"
    with conn.transaction():
        conn.execute(fence, (token,))
        conn.cursor().executemany(insert, [(1, 100), (2, 100)])
        with conn.cursor().copy("COPY reward (player, amount) FROM STDIN") as copy:
            copy.write_row((3, 100))
    with conn.cursor("players", withhold=True) as players:
        players.execute("SELECT player FROM reward ORDER BY player")
        while chunk := players.fetchmany(2):
            with conn.transaction():
                conn.execute(fence, (token,))
                query = "UPDATE reward SET amount = 200 WHERE player = ANY(%s)"
                conn.execute(query, ([player for (player,) in chunk],))
    with conn.pipeline(), conn.transaction():
        conn.execute(fence, (token,))
        conn.execute("DELETE FROM reward WHERE player > 2")
    equal(rival.rewards(), [(1, 200), (2, 200)])
    node.close()


def also_refused_commit(rival):
    """The other ways to a commit."""
    rival.table("ways", "token")
    insert = "INSERT INTO reward (player, amount, token) VALUES (1, 100, %s)"

    def take_over():
        until(lambda: rival.rows("SELECT FROM lease_writer WHERE name = 'ways'"))
        rival.take_over("ways")

    def in_connection(token):
        with psycopg.connect() as conn:
            conn.execute(insert, (token,))
            take_over()

    def by_commit(token):
        with psycopg.connect() as conn:
            conn.execute(insert, (token,))
            take_over()
            conn.commit()

    def in_pipeline(token):
        with psycopg.connect() as conn, conn.pipeline(), conn.transaction():
            conn.execute(insert, (token,))
            take_over()

    def by_a_deferred_trigger(token):
        with psycopg.connect() as conn:
            conn.execute("SELECT lease_fence('ways', %s)", (token,))
            conn.execute("INSERT INTO request VALUES (1)")
            rival.take_over("ways")

    rival.conn.execute(
        "CREATE TABLE request (player int);"
        "CREATE FUNCTION pay() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        "  INSERT INTO reward (player, amount) VALUES (NEW.player, 100); RETURN NULL; END $$;"
        "CREATE CONSTRAINT TRIGGER pay AFTER INSERT ON request DEFERRABLE INITIALLY DEFERRED"
        "  FOR EACH ROW EXECUTE FUNCTION pay()"
    )
    module = sys.modules[__name__]
    for way in in_connection, by_commit, in_pipeline, by_a_deferred_trigger:
        rival.value("SELECT lease_force_release('ways')")
        is_refusal(module, error_of(way, rival.value("SELECT lease_acquire('ways', 'a', '1 min')")))
    equal(rival.rewards(), [])

    # A pipeline in autocommit ends with a Sync and not with a COMMIT, also that of executemany.
    # psycopg 3.3 drops the refusal for an error of its own there, an OperationalError or, by the
    # order in which things arrive, an IndexError. Nothing is stored: use conn.transaction().
    def in_pipeline_alone(token):
        with psycopg.connect(autocommit=True) as conn, conn.pipeline():
            conn.execute(insert, (token,))
            take_over()

    def by_executemany_alone(token):
        def rows():
            yield (token,)
            take_over()

        with psycopg.connect(autocommit=True) as conn:
            conn.cursor().executemany(insert, rows())

    for way in in_pipeline_alone, by_executemany_alone:
        rival.value("SELECT lease_force_release('ways')")
        error = error_of(way, rival.value("SELECT lease_acquire('ways', 'a', '1 min')"))
        check(isinstance(error, (psycopg.DatabaseError, IndexError)), repr(error))
    equal(rival.rewards(), [])

    # Caught inside the block the refusal is gone: PostgreSQL answers the COMMIT of a failed
    # transaction with ROLLBACK, and that is no error.
    with psycopg.connect(autocommit=True) as conn, conn.transaction():
        is_refusal(module, error_of(conn.execute, insert, (1,)))
    equal(rival.rewards(), [])


if __name__ == "__main__":
    scenarios.main(sys.modules[__name__])
