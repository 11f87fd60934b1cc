"""The programs of the page on Python, as cron and their users would call them."""

import pathlib
import subprocess
import sys
import threading
from datetime import timedelta

import psycopg
from psycopg.types.json import Jsonb

import bonus
import daily_reward
import leader
import lease
import prices
from harness import black_hole, check, equal, error_of, frozen_in, until
from heartbeat import LeaseLost

HERE = pathlib.Path(__file__).parent
TCP = "host=127.0.0.1"


def also_heartbeat(rival):
    """The leader of the recipe: one after the other, and nobody writes after its successor."""
    rival.conn.execute("DROP TABLE reward")
    rival.conn.execute((HERE / "schema.sql").read_text())
    rival.conn.execute("CREATE TABLE log (id serial, token bigint, leader int)")
    rival.value("SELECT fence_attach('log', 'prices')")
    stopping, work, reads = threading.Event(), {}, []
    with lease.fenced(rival.conn, "prices", rival.take_over("prices")):
        rival.conn.execute("INSERT INTO price VALUES ('tea', 1)")
    rival.value("SELECT lease_force_release('prices')")

    def read():
        reads.append(1)
        if len(reads) % 3 == 0:
            raise OSError("503 Service Unavailable")
        return {"tea": len(reads)}

    def write(conn, news):
        work[conn.info.backend_pid] = conn
        prices.write(conn, news)
        token = "SELECT token FROM lease_status WHERE name = 'prices'"
        query = f"INSERT INTO log (token, leader) VALUES (({token}), %s)"
        conn.execute(query, (conn.info.backend_pid,))

    def terms():
        return rival.rows("SELECT token FROM log GROUP BY token ORDER BY min(id)")

    def rows():
        return rival.value("SELECT count(*) FROM log")

    def next_term(seen):
        until(lambda: len(terms()) > len(seen))
        return terms()

    arguments = ("prices", read, write, stopping, 3, 0.01, TCP)
    nodes = [threading.Thread(target=leader.lead, args=arguments) for _ in range(2)]
    with frozen_in("prices", "UPDATE price SET cents = 2") as wake_up:
        for node in nodes:
            node.start()
        try:
            # The predecessor has the row, and is evicted.
            seen = next_term([])
            check(isinstance(wake_up(), psycopg.OperationalError), "not evicted")
            # The source fails again and again, and that ends no term.
            before, errors = rows(), len(reads)
            until(lambda: len(reads) > errors + 6 and rows() > before + 3)
            equal(terms(), seen)
            rival.take_over("prices")  # an LX001, or a heartbeat that is told NULL
            rival.value("SELECT lease_force_release('prices')")
            seen = next_term(seen)
            # The network of the work alone is gone: the heartbeat goes on, the term must not.
            pid = rival.value("SELECT leader FROM log ORDER BY id DESC LIMIT 1")
            black_hole(work[pid].fileno())
            seen = next_term(seen)
            # The server ends the connections of both.
            pids = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            for (pid,) in rival.rows(pids + " AND client_addr IS NOT NULL"):
                rival.terminate(pid)
            next_term(seen)
        finally:
            stopping.set()
            for node in nodes:
                node.join()
    equal(terms(), sorted(terms()))
    equal(rival.rows("SELECT FROM log GROUP BY token HAVING count(DISTINCT leader) > 1"), [])
    equal(rival.state("prices"), "free")  # the last one has released it

    # The same where the answer is under way, which is what keepalives are for.
    with lease.connect(TCP, 1.5) as conn:
        conn.execute("SET statement_timeout = 0")
        cut = threading.Timer(0.2, black_hole, [conn.fileno()])
        cut.start()
        error = error_of(conn.execute, "SELECT pg_sleep(15)")
        check("timed out" in str(error), repr(error))
    with lease.connect(TCP, 1.5) as conn:
        error = error_of(conn.execute, "SELECT pg_sleep(15)")
        equal(type(error), psycopg.errors.QueryCanceled)


def program(name):
    """What cron would see."""
    ran = subprocess.run(
        [sys.executable, "-B", HERE / name], capture_output=True, text=True, timeout=60
    )
    return ran.returncode, ran.stdout, ran.stderr


def also_checkpoint(rival):
    """The daily job of the recipe, for two days that were missed too, with a crash on the way."""
    job = daily_reward.JOB
    rival.conn.execute("DROP TABLE reward; DROP TABLE player, price, bonus")
    rival.conn.execute((HERE / "schema.sql").read_text())
    rival.conn.execute("INSERT INTO player SELECT generate_series(1, 5)")
    token = rival.take_over(job)
    today = rival.value("SELECT (now() AT TIME ZONE 'Europe/Berlin' - interval '00:05')::date")
    state = Jsonb({"day": (today - timedelta(days=2)).isoformat(), "after": 0})
    rival.value("SELECT lease_checkpoint(%s, %s, %s)", job, token, state)
    equal(program("daily_reward.py"), (0, f"{job}: somebody else has it\n", ""))
    pay_some, calls = daily_reward.pay_some, []

    def pay_or_crash(conn, token, today, chunk):
        calls.append(today)
        if len(calls) == 3:
            rival.terminate(conn.info.backend_pid)
        if len(calls) == 7:
            rival.take_over(job)
        return pay_some(conn, token, today, chunk)

    def run():
        return daily_reward.daily_reward(chunk=2)

    daily_reward.pay_some = pay_or_crash
    try:
        rival.value("SELECT lease_force_release(%s)", job)
        equal(type(error_of(run)), psycopg.errors.AdminShutdown)
        equal(rival.value("SELECT count(*) FROM reward"), 4)
        rival.value("SELECT lease_force_release(%s)", job)
        error = error_of(run)
        equal(type(error), LeaseLost)
        check("was granted later" in str(error), error)
        equal((type(error.__cause__), error.__cause__.sqlstate), (psycopg.DatabaseError, "LX001"))
        rival.value("SELECT lease_force_release(%s)", job)
    finally:
        daily_reward.pay_some = pay_some
    # The predecessor has the same rows, in a transaction that it will not end.
    insert = f"INSERT INTO reward SELECT '{today}', id, 1 FROM player"
    with frozen_in(job, insert) as wake_up:
        equal(program("daily_reward.py"), (0, f"{job}: done\n", ""))
        check(isinstance(wake_up(), psycopg.OperationalError), "not evicted")
    query = "SELECT count(DISTINCT (day, player)), count(*), max(day), sum(amount) FROM reward"
    equal(rival.rows(query), [(15, 15, today, 1500)])
    equal(rival.state(job), "completed")
    # Until the next day is due there, whatever the zone of the session is.
    query = "SELECT (completed_until AT TIME ZONE 'Europe/Berlin')::text FROM lease_status"
    due = f"{today + timedelta(days=1)} 00:05:00"
    equal(rival.value(query + " WHERE name = %s", job), due)
    equal(program("daily_reward.py"), (0, f"{job}: done already\n", ""))

    # A run that was frozen over midnight ends, and the next call goes on with the new day.
    rival.value("SELECT lease_force_release(%s)", job)
    token = rival.take_over(job)
    with psycopg.connect(autocommit=True) as conn:
        check(daily_reward.pay_some(conn, token, today - timedelta(days=1), 2), "not done")
    equal((rival.state(job), rival.value("SELECT max(day) FROM reward")), ("free", today))

    # Lost is a line for cron's mail and no traceback.
    yesterday = Jsonb({"day": (today - timedelta(days=1)).isoformat(), "after": 0})
    token = rival.take_over(job)
    rival.value("SELECT lease_checkpoint(%s, %s, %s)", job, token, yesterday)
    rival.value("SELECT lease_force_release(%s)", job)
    rival.conn.execute(
        "CREATE FUNCTION lose() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN"
        f"  PERFORM lease_force_release('{job}'); RETURN NULL; END $$;"
        "CREATE TRIGGER a_lose BEFORE INSERT ON reward EXECUTE FUNCTION lose()"
    )
    code, out, lost = program("daily_reward.py")
    equal((code, out, len(lost.splitlines())), (1, "", 1))
    check(lost.startswith(f"{job}: lost: lease {job}, token "), lost)


def also_once(rival):
    """The branch of the recipe; a second one waits until the first is decided."""
    rival.conn.execute("INSERT INTO player VALUES (1) ON CONFLICT DO NOTHING")
    equal(program("bonus.py"), (0, "bonus: done\n", ""))
    equal(program("bonus.py"), (0, "bonus: done already\n", ""))
    equal(rival.rows("SELECT player, amount FROM bonus"), [(1, 10)])
    equal(bonus.bonus(), "done already")
