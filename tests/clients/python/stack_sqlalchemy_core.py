"""SQLAlchemy Core over psycopg: its func.* and its casts of bound parameters."""

import json
import pathlib
import subprocess
import sys
import threading
from datetime import datetime, timedelta

import sqlalchemy
from alembic import command
from alembic.config import Config
from sqlalchemy import column, create_engine, func, literal, select, table, text
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.exc import DatabaseError, DataError, OperationalError, ProgrammingError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

import harness

if __name__ == "__main__":
    harness.make_database("sqlalchemy-core")

import lease
import recipe_sqlalchemy
import scenarios
from harness import black_hole, check, equal, error_of, frozen_in, until
from scenarios import TTL, is_refusal

STACK, VERSION = "sqlalchemy-core", sqlalchemy.__version__
REFUSED, RETRIED, LOST = DatabaseError, (OperationalError,), OperationalError
GIVING_UP = {
    "cancel": (OperationalError, "57014"),
    "statement_timeout": (OperationalError, "57014"),
    "lock_timeout": (OperationalError, "55P03"),
}

engine = create_engine("postgresql+psycopg://")
autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
reward = table("reward", column("player"), column("amount"), column("token"))


def sqlstate(error):
    return getattr(error.orig, "sqlstate", None)


def extender(name, token):
    return recipe_sqlalchemy.extender(engine, name, token)


class Node:
    def __init__(self):
        self.conn = autocommit.connect()
        self.in_use = None

    def close(self):
        self.conn.close()

    def call(self, function):
        return self.conn.scalar(select(function))

    def acquire(self, name, ttl):
        return self.call(func.lease_acquire(name, "node-1", ttl))

    def acquire_seconds(self, name, ttl):
        query = text("SELECT lease_acquire(:name, :node, make_interval(secs => :ttl))")
        return self.conn.scalar(query, {"name": name, "node": "node-1", "ttl": ttl})

    def acquire_waiting(self, name, ttl, wait):
        return self.call(func.lease_acquire(name, "node-1", ttl, wait))

    def extend(self, name, token):
        return self.call(func.lease_extend(name, token))

    def upsert(self, conn, **values):
        statement = insert(reward).values(**values)
        changes = {name: statement.excluded[name] for name in values if name != "player"}
        conn.execute(statement.on_conflict_do_update(index_elements=["player"], set_=changes))

    def save(self, player, amount=100):
        self.upsert(self.conn, player=player, amount=amount)

    def save_by_column(self, player, amount, token):
        self.upsert(self.conn, player=player, amount=amount, token=token)

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
        with engine.begin() as self.in_use:
            conn = self.in_use
            conn.execute(select(func.lease_fence(name, token)))
            if before_write:
                before_write()
            for player in players:
                self.upsert(conn, player=player, amount=amount)
            if checkpoint:
                state = literal(checkpoint, JSONB)
                conn.execute(select(func.lease_checkpoint(name, token, state)))
            if before_commit:
                before_commit()

    def pay_once(self, key, player, token, roll_back=False):
        with engine.connect() as conn, conn.begin() as transaction:
            first = conn.scalar(select(func.once(key)))
            if first:
                self.upsert(conn, player=player, amount=100, token=token)
            if roll_back:
                transaction.rollback()
            return first and not roll_back

    def checkpoint(self, name):
        return self.call(func.lease_checkpoint(name))

    def biggest(self, token):
        with engine.begin() as conn:
            conn.execute(text("CREATE TEMPORARY TABLE biggest (token bigint) ON COMMIT DROP"))
            biggest = table("biggest", column("token"))
            conn.execute(biggest.insert().values(token=token))
            return conn.scalar(select(biggest.c.token))

    def sleep_2_s(self):
        self.in_use.execute(select(func.pg_sleep(2)))

    def pid(self):
        return self.in_use.connection.driver_connection.info.backend_pid

    def one(self):
        return self.call(literal(1))

    def give_up(self, way, name, in_line):
        """Waits for the lease, and does not wait to the end."""
        driver = self.conn.connection.driver_connection

        def cancel():
            until(in_line)
            driver.cancel_safe()

        if way == "cancel":
            canceller = threading.Thread(target=cancel)
            canceller.start()
        else:
            self.conn.execute(text(f"SET {way} = 200"))
        error = error_of(self.acquire_waiting, name, TTL, timedelta(seconds=20))
        if way == "cancel":
            canceller.join()
        else:
            self.conn.execute(text(f"RESET {way}"))
        check(not error.connection_invalidated, "taken for a lost connection")
        return error


def wait_elsewhere(name, ttl, wait):
    with autocommit.connect() as conn:
        return conn.scalar(select(func.lease_acquire(name, "node-2", ttl, wait)))


def also_grant(rival):
    """func.* casts every str to VARCHAR, which PostgreSQL casts to no interval by itself."""
    node = Node()
    for ttl in "30 s", 30:
        error = error_of(node.acquire, "text", ttl)
        equal((type(error), sqlstate(error)), (ProgrammingError, "42883"))
    query = text("SELECT lease_acquire(:name, 'node-1', :ttl)")
    token = node.conn.scalar(query, {"name": "text", "ttl": "30 s"})
    check(token, "text() casts nothing")
    error = error_of(node.call, func.lease_checkpoint("text", token, {"a": 1}))
    equal(type(error), ProgrammingError)
    error = error_of(node.call, func.lease_checkpoint("text", token, json.dumps({"a": 1})))
    equal(sqlstate(error), "42883")
    error = error_of(node.call, func.lease_complete("text", token, "tomorrow"))
    equal(sqlstate(error), "42883")
    check(node.call(func.lease_complete("text", token)), "completed")
    error = error_of(lambda: node.conn.execute(text("SELECT * FROM lease_status")).all())
    equal(type(error), DataError)  # psycopg has no infinity
    tomorrow = datetime.now() + timedelta(days=1)
    token = node.acquire("tomorrow", TTL)
    check(node.call(func.lease_complete("tomorrow", token, tomorrow)), "completed")

    # Not in autocommit: what is not committed is no lease.
    with engine.connect() as conn:
        check(conn.scalar(select(func.lease_acquire("open", "node-1", TTL))), "granted")
    equal(rival.rows("SELECT FROM lease_status WHERE name = 'open' AND state = 'held'"), [])

    # A pooled connection that is given back keeps a lease of its session.
    with autocommit.connect() as conn:
        session = conn.scalar(select(func.lease_acquire_session("session", "node-1")))
    equal(rival.state("session"), "held")
    engine.dispose()
    until(lambda: rival.state("session") != "held")
    check(session, "granted")
    node.close()


def also_refused_write(rival):
    """By column at REPEATABLE READ it is a serialization failure first, and then a refusal."""
    rival.table("snapshot", "token")
    token = rival.take_over("snapshot")
    Node().save_by_column(1, 100, token)
    attempts = []

    def work():
        attempts.append(token)
        with engine.execution_options(isolation_level="REPEATABLE READ").begin() as conn:
            conn.execute(select(reward))
            if len(attempts) == 1:
                Node().save_by_column(1, 200, rival.take_over("snapshot"))
            conn.execute(reward.update().values(amount=300, token=token))

    retry = Retrying(
        retry=retry_if_exception_type(RETRIED), stop=stop_after_attempt(5), reraise=True
    )
    is_refusal(sys.modules[__name__], error_of(retry, work))
    equal((len(attempts), rival.rewards()), (2, [(1, 200)]))


def also_refused_commit(rival):
    rival.table("caught")
    token = rival.take_over("caught")
    rival.take_over("caught")
    # Caught inside the block the refusal is gone: PostgreSQL answers the COMMIT of a failed
    # transaction with ROLLBACK, and that is no error.
    with engine.begin() as conn:
        error = error_of(conn.execute, select(func.lease_fence("caught", token)))
        is_refusal(sys.modules[__name__], error)
    equal(rival.rewards(), [])


def also_lost_connection(rival):
    """SQLAlchemy tells a lost connection from a refusal, and throws it out of the pool."""
    rival.table("flags")
    token = rival.take_over("flags")
    node = Node()
    error = error_of(
        lambda: node.fenced("flags", token, [1], before_write=lambda: rival.terminate(node.pid()))
    )
    check(error.connection_invalidated, "not taken for a lost connection")
    rival.take_over("flags")
    error = error_of(node.fenced, "flags", token, [1])
    check(not error.connection_invalidated, "a refusal is taken for a lost connection")
    node.close()

    # The network is gone, while something is sent, and while an answer is awaited.
    bounded = recipe_sqlalchemy.make_engine("postgresql+psycopg://127.0.0.1", 1.5)
    for seconds in 0, 0.2:
        with bounded.connect() as conn:
            conn.execute(text("SET statement_timeout = 0"))
            fd = conn.connection.driver_connection.fileno()
            cut = threading.Timer(seconds, black_hole, [fd])
            cut.start()
            cut.join() if not seconds else None
            error = error_of(conn.execute, text("SELECT pg_sleep(15)"))
            check("timed out" in str(error) and error.connection_invalidated, repr(error))
    with bounded.connect() as conn:
        error = error_of(conn.execute, text("SELECT pg_sleep(15)"))
        equal((type(error), sqlstate(error)), (OperationalError, "57014"))
    bounded.dispose()


def program():
    """What cron would see."""
    file = pathlib.Path(__file__).parent / "recipe_sqlalchemy.py"
    ran = subprocess.run([sys.executable, "-B", file], capture_output=True, text=True, timeout=60)
    return ran.returncode, ran.stdout, ran.stderr


def migrate(rival):
    """Alembic, up and down, and the job of the recipe on what it made."""
    rival.conn.execute("DROP TABLE IF EXISTS reward")
    config = Config()
    config.set_main_option("script_location", str(pathlib.Path(__file__).parent / "migrations"))
    fences = "SELECT lease, token_column FROM fence_status WHERE table_name = 'reward'::regclass"

    def to(revision, go):
        with engine.begin() as config.attributes["connection"]:
            go(config, revision)

    to("head", command.upgrade)
    equal(rival.rows(fences + " AND hole IS NULL"), [("reward-all", "token")])
    error = error_of(Node().save, 1)
    equal(sqlstate(error), "LX003")
    to("0001", command.downgrade)
    equal(rival.rows(fences), [])
    rival.conn.execute("INSERT INTO reward VALUES (1, 100)")
    to("head", command.upgrade)
    token = rival.take_over("reward-all")
    Node().save_by_column(1, 200, token)
    equal(rival.rewards(), [(1, 200)])

    with lease.fenced(rival.conn, "reward-all", token):
        rival.conn.execute("DELETE FROM reward")
        rival.value("SELECT lease_checkpoint('reward-all', %s, '0')", token)
    rival.conn.execute("INSERT INTO player SELECT generate_series(1, 5)")
    equal(program(), (0, "reward-all: somebody else has it\n", ""))
    rival.value("SELECT lease_force_release('reward-all')")
    with frozen_in("reward-all", "INSERT INTO reward SELECT id, 1 FROM player") as wake_up:
        equal(program(), (0, "reward-all: done\n", ""))
        check("terminating connection" in str(wake_up()), "not evicted")
    equal(program(), (0, "reward-all: done already\n", ""))
    equal(rival.rewards(), [(player, 100) for player in range(1, 6)])
    rival.conn.execute(
        "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        "  PERFORM lease_force_release('reward-all'); RETURN NULL; END $$;"
        "CREATE TRIGGER a_lose BEFORE INSERT ON reward EXECUTE FUNCTION lose();"
        "INSERT INTO player VALUES (6)"
    )
    rival.value("SELECT lease_force_release('reward-all')")
    code, out, lost = program()
    equal((code, out, len(lost.splitlines())), (1, "", 1))
    check(lost.startswith("reward-all: lost: lease reward-all, token "), lost)
    equal([recipe_sqlalchemy.pay_bonus(engine) for _ in range(2)], ["done", "done already"])
    equal(rival.value("SELECT count(*) FROM bonus"), 6)
    rival.conn.execute("DROP FUNCTION lose CASCADE")
    engine.dispose()
    to("base", command.downgrade)
    equal(rival.value("SELECT to_regclass('reward')"), None)


if __name__ == "__main__":
    scenarios.main(sys.modules[__name__])
