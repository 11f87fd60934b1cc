"""Django: raw SQL for leases, the models' ordinary save for rows."""

import json
import sys
import threading
from datetime import timedelta

import django
from django.conf import settings
from django.db import DatabaseError, DataError, OperationalError, ProgrammingError

import harness

if __name__ == "__main__":
    harness.make_database("django")

from rewards.bounds import bounds

DATABASE = {
    "ENGINE": "django.db.backends.postgresql",
    "NAME": "clients_python_django",
    "OPTIONS": bounds(30),
}
settings.configure(
    DATABASES={
        "default": DATABASE,
        "binding": {**DATABASE, "OPTIONS": {"server_side_binding": True}},
        "short": {**DATABASE, "HOST": "127.0.0.1", "OPTIONS": bounds(1.5)},
    },
    INSTALLED_APPS=["rewards", "byhand"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
)
django.setup()

from django.db import connection, connections, transaction
from django.db.models import F

import scenarios
from also_django import migrate as migrate
from byhand.models import Reward
from harness import black_hole, check, equal, error_of, until
from heartbeat import LeaseLost
from rewards.lease import extender as extender
from rewards.lease import fenced, sql
from scenarios import TTL, is_refusal

STACK, VERSION = "django", django.get_version()
REFUSED, RETRIED, LOST = DatabaseError, (OperationalError,), OperationalError
GIVING_UP = {
    "cancel": (OperationalError, "57014"),
    "statement_timeout": (OperationalError, "57014"),
    "lock_timeout": (OperationalError, "55P03"),
}


def sqlstate(error):
    return getattr(error.__cause__, "sqlstate", None)


class Node:
    """Django has one connection a thread, which it makes at the first use."""

    def close(self):
        connection.close()

    def acquire(self, name, ttl):
        return sql("SELECT lease_acquire(%s, %s, %s)", name, "node-1", ttl)

    def acquire_seconds(self, name, ttl):
        return sql("SELECT lease_acquire(%s, %s, make_interval(secs => %s))", name, "node-1", ttl)

    def acquire_waiting(self, name, ttl, wait):
        query = "SELECT lease_acquire(%s, %s, %s, wait => %s)"
        return sql(query, name, "node-1", ttl, wait)

    def extend(self, name, token):
        return sql("SELECT lease_extend(%s, %s)", name, token)

    def save(self, player, amount=100):
        # With a key: an UPDATE, and where that finds no row an INSERT.
        Reward(player=player, amount=amount).save()

    def save_by_column(self, player, amount, token):
        Reward(player=player, amount=amount, token=token).save()

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
        with transaction.atomic():
            sql("SELECT lease_fence(%s, %s)", name, token)
            if before_write:
                before_write()
            for player in players:
                self.save(player, amount)
            if checkpoint:
                sql("SELECT lease_checkpoint(%s, %s, %s)", name, token, json.dumps(checkpoint))
            if before_commit:
                before_commit()

    def pay_once(self, key, player, token, roll_back=False):
        with transaction.atomic():
            first = sql("SELECT once(%s)", key)
            if first:
                self.save_by_column(player, 100, token)
            transaction.set_rollback(roll_back)
        return first and not roll_back

    def checkpoint(self, name):
        return json.loads(sql("SELECT lease_checkpoint(%s)", name) or "null")

    def biggest(self, token):
        with transaction.atomic():
            Reward(player=1, amount=1, token=token).save()
            stored = Reward.objects.get(token=token).token
            transaction.set_rollback(True)
        return stored

    def sleep_2_s(self):
        sql("SELECT pg_sleep(2)")

    def pid(self):
        return connection.connection.info.backend_pid

    def one(self):
        return sql("SELECT 1")

    def give_up(self, way, name, in_line):
        """Waits for the lease, and does not wait to the end."""
        connection.ensure_connection()
        driver = connection.connection

        def cancel():
            until(in_line)
            driver.cancel_safe()

        if way == "cancel":
            canceller = threading.Thread(target=cancel)
            canceller.start()
        else:
            connection.cursor().execute(f"SET {way} = 200")
        error = error_of(self.acquire_waiting, name, TTL, timedelta(seconds=20))
        if way == "cancel":
            canceller.join()
        else:
            connection.cursor().execute(f"RESET {way}")
        return error


def wait_elsewhere(name, ttl, wait):
    try:
        return Node().acquire_waiting(name, ttl, wait)
    finally:
        connection.close()


def grant(stack, rival):
    rival.table("biggest")
    rival.value("SELECT fence_detach('reward')")
    scenarios.grant(stack, rival)


def also_grant(rival):
    """Parameters put into the statement by the client (the default), and sent beside it."""
    for alias in "default", "binding":

        def value(query, *parameters):
            with connections[alias].cursor() as cursor:  # noqa: B023
                cursor.execute(query, parameters)
                return cursor.fetchone()[0]

        query = "SELECT lease_acquire(%s, 'node-1', %s)"
        token = value(query, alias, "30 s")
        check(token, "text does")
        check(value(query, alias + " interval", TTL), "a timedelta does")
        error = error_of(value, query, alias + " number", 30)
        equal((type(error), sqlstate(error)), (ProgrammingError, "42883"))
        error = error_of(value, "SELECT lease_checkpoint(%s, %s, %s)", alias, token, {"a": 1})
        equal(type(error), ProgrammingError)
        value("SELECT lease_checkpoint(%s, %s, %s)", alias, token, '{"a": 1}')
        equal(value("SELECT lease_checkpoint(%s)", alias), '{"a": 1}')  # as text
        check(value("SELECT lease_complete(%s, %s)", alias, token), "completed")
        query = "SELECT completed_until FROM lease_status WHERE name = %s"
        equal(type(error_of(value, query, alias)), DataError)  # psycopg has no infinity
    connections["binding"].close()

    # In atomic(), and with ATOMIC_REQUESTS in every view: what is not committed is no lease.
    with transaction.atomic():
        check(Node().acquire("open", TTL), "granted")
        transaction.set_rollback(True)
    equal(rival.rows("SELECT FROM lease_status WHERE name = 'open' AND state = 'held'"), [])


def also_fenced_transaction(rival):
    rival.table("orm", "token")
    token = rival.take_over("orm")
    with fenced("orm", token):
        Reward.objects.bulk_create(Reward(player=player, amount=100) for player in range(1, 5))
        Reward.objects.filter(player__gt=1).update(amount=F("amount") * 2)
        Reward.objects.update_or_create(player=5, defaults={"amount": 500})
        for row in Reward.objects.filter(player=4).iterator():  # a server-side cursor
            row.delete()
    equal(set(Reward.objects.values_list("token", flat=True)), {token})
    # save() sends back the token that was loaded. The transaction's stands above it.
    row = Reward.objects.get(player=1)
    later = rival.take_over("orm")
    row.amount = 300
    with fenced("orm", later):
        row.save()
    row.refresh_from_db()
    equal(row.token, later)
    with transaction.atomic():
        # Not where the COMMIT is somebody else's.
        equal(type(error_of(lambda: fenced("orm", later).__enter__())), RuntimeError)
    equal(rival.rewards(), [(1, 300), (2, 200), (3, 200), (5, 500)])


def also_fenced_column(rival):
    """What save() sends of a row that was loaded, and what it leaves out."""
    rival.table("loaded", "token")
    mine = rival.take_over("loaded")
    Reward(player=1, amount=100, token=mine).save()
    later = rival.take_over("loaded")
    Reward(player=1, amount=200, token=later).save()
    # The superseded node loads the row of its successor, and sends its token back.
    row = Reward.objects.get(player=1)
    row.amount = 300
    row.save()
    equal(rival.rewards(), [(1, 300)])  # which the fence cannot know, so set it:
    row.token = mine
    is_refusal(sys.modules[__name__], error_of(row.save))
    row.token = later
    equal(sqlstate(error_of(lambda: row.save(update_fields=["amount"]))), "LX003")
    equal(sqlstate(error_of(row.delete)), "LX003")
    equal(sqlstate(error_of(lambda: Reward.objects.update(amount=1))), "LX003")
    Reward.objects.update(amount=400, token=later)
    equal(rival.rewards(), [(1, 400)])


def also_refused_write(rival):
    """get_or_create and the like try again at an IntegrityError, which a refusal is none of."""
    rival.table("created")
    for call in Reward.objects.get_or_create, Reward.objects.update_or_create:
        token = rival.take_over("created")
        with transaction.atomic():
            sql("SELECT lease_fence('created', %s)", token)
            rival.take_over("created")
            error = error_of(lambda: call(player=1, defaults={"amount": 1}))  # noqa: B023
            transaction.set_rollback(True)
        is_refusal(sys.modules[__name__], error)


def also_refused_commit(rival):
    rival.table("told")
    token, told = rival.take_over("told"), []

    def by_the_recipe():
        with fenced("told", token):
            transaction.on_commit(lambda: told.append("committed"))
            Reward(player=1, amount=100).save()
            rival.take_over("told")

    error = error_of(by_the_recipe)
    equal(type(error), LeaseLost)
    is_refusal(sys.modules[__name__], error.__cause__)
    equal((told, rival.rewards()), ([], []))

    # Caught inside the block the refusal is gone: after a failed save() atomic() rolls back, and
    # after a failed query PostgreSQL does, and neither is an error.
    with transaction.atomic():
        equal(sqlstate(error_of(Reward(player=1, amount=100).save)), "LX003")
    with transaction.atomic():
        equal(sqlstate(error_of(sql, "SELECT lease_fence('told', %s)", token)), "LX001")
    equal(rival.rewards(), [])


def also_lost_connection(rival):
    """After the block Django has a new connection, without close_old_connections()."""
    rival.table("cut")
    token = rival.take_over("cut")
    node = Node()
    error_of(
        lambda: node.fenced("cut", token, [1], before_commit=lambda: rival.terminate(node.pid()))
    )
    node.fenced("cut", token, [2])
    equal(rival.rewards(), [(2, 100)])
    # Outside of one it stays the broken one until somebody closes it, as the heartbeat does.
    rival.terminate(node.pid())
    check(isinstance(error_of(node.one), OperationalError), "not lost")
    check(error_of(node.one), "not lost")
    equal(type(error_of(extender("cut", token))), OperationalError)
    equal(extender("cut", token)(), True)

    # The network is gone, while something is sent, and while an answer is awaited.
    short = connections["short"]
    for seconds in 0, 0.2:
        with short.cursor() as cursor:
            cursor.execute("SET statement_timeout = 0")
            cut = threading.Timer(seconds, black_hole, [short.connection.fileno()])
            cut.start()
            if not seconds:
                cut.join()
            error = error_of(cursor.execute, "SELECT pg_sleep(15)")
            check(isinstance(error, OperationalError) and "timed out" in str(error), repr(error))
        short.close()
    with short.cursor() as cursor:
        error = error_of(cursor.execute, "SELECT pg_sleep(15)")
        equal((type(error), sqlstate(error)), (OperationalError, "57014"))
    short.close()


if __name__ == "__main__":
    scenarios.main(sys.modules[__name__])
