# [connection]
import psycopg


def extender(name, token, conninfo=""):
    """What Heartbeat calls, on a connection of its own that is made anew when it broke."""
    conn = None

    def extend():
        nonlocal conn
        if conn is None or conn.closed:
            conn = psycopg.connect(conninfo, autocommit=True)
        query = "SELECT lease_extend(%s, %s) IS NOT NULL"
        return conn.execute(query, (name, token)).fetchone()[0]

    return extend


# [end connection]
# [cron]
import time
from datetime import date, timedelta

from psycopg.types.json import Jsonb

from heartbeat import Heartbeat

JOB = "daily-reward"


def daily_reward(node, ttl=30, chunk=1000, conninfo=""):
    """Pays every player once for each day. All nodes call it, as often as they like."""
    with psycopg.connect(conninfo, autocommit=True) as conn:
        asked = time.monotonic()
        query = "SELECT lease_acquire(%s, %s, make_interval(secs => %s))"
        token = conn.execute(query, (JOB, node, ttl)).fetchone()[0]
        if token is None:
            return  # another node is at it, or it is done for today
        with Heartbeat(extender(JOB, token, conninfo), ttl, asked) as heartbeat:
            done = False
            while not done:
                heartbeat.check()
                done = pay_some(conn, token, chunk)


def pay_some(conn, token, chunk):
    """One transaction: the rows and how far we are. True when today is done."""
    with conn.transaction():
        conn.execute("SELECT lease_fence(%s, %s)", (JOB, token))
        today = conn.execute("SELECT current_date").fetchone()[0]
        state = conn.execute("SELECT lease_checkpoint(%s)", (JOB,)).fetchone()[0]
        state = state or {"day": today.isoformat(), "after": 0}
        paid = conn.execute(
            "INSERT INTO reward (day, player, amount) SELECT %s, id, 100 FROM player"
            " WHERE id > %s ORDER BY id LIMIT %s RETURNING player",
            (state["day"], state["after"], chunk),
        ).fetchall()
        if paid:
            state["after"] = max(player for (player,) in paid)
        else:  # the next day, which is in the past where the job did not run for a while
            next_day = date.fromisoformat(state["day"]) + timedelta(days=1)
            state = {"day": next_day.isoformat(), "after": 0}
        query = "SELECT lease_checkpoint(%s, %s, %s)"
        conn.execute(query, (JOB, token, Jsonb(state)))
        done = date.fromisoformat(state["day"]) > today
        if done:
            query = "SELECT lease_complete(%s, %s, until => %s)"
            conn.execute(query, (JOB, token, state["day"]))
        return done


# [end cron]
# [leader]
import logging

from heartbeat import LeaseLost


def lead(name, node, work, stopping, ttl=15, conninfo=""):
    """Calls work(conn, token) again and again while this node leads, until stopping is set."""
    while not stopping.is_set():
        try:
            with psycopg.connect(conninfo, autocommit=True) as conn:
                one_term(conn, name, node, work, stopping, ttl, conninfo)
        except (LeaseLost, psycopg.OperationalError) as error:
            logging.warning("%s does not lead %s: %r", node, name, error)
        except psycopg.DatabaseError as error:
            if error.sqlstate != "LX001":
                raise
            logging.warning("%s does not lead %s: %s", node, name, error)
        stopping.wait(ttl / 3)


def one_term(conn, name, node, work, stopping, ttl, conninfo):
    asked = time.monotonic()
    query = "SELECT lease_elect(%s, %s, make_interval(secs => %s))"
    token = conn.execute(query, (name, node, ttl)).fetchone()[0]
    if token is None:
        return
    with Heartbeat(extender(name, token, conninfo), ttl, asked) as heartbeat:
        while not stopping.is_set():
            heartbeat.check()
            work(conn, token)
    conn.execute("SELECT lease_release(%s, %s)", (name, token))


# [end leader]
