import os
import socket
import sys
import time
from datetime import date, timedelta

import psycopg
from psycopg.types.json import Jsonb

from heartbeat import Heartbeat, LeaseLost
from lease import connect, evict, extender, fenced, value

JOB, TTL = "daily-reward", 30
# A day is due from this time on, in this zone: that of a session may be any.
DUE, ZONE = "00:05", "Europe/Berlin"


def daily_reward(conninfo="", chunk=1000):
    """Pays every player once for each day, also for those on which no node ran."""
    with connect(conninfo, TTL) as conn:
        asked = time.monotonic()
        node = f"{socket.gethostname()}:{os.getpid()}"
        query = "SELECT lease_acquire(%s, %s, make_interval(secs => %s))"
        token = value(conn, query, JOB, node, TTL)
        if token is None:
            state = value(conn, "SELECT state FROM lease_status WHERE name = %s", JOB)
            return "done already" if state == "completed" else "somebody else has it"
        with Heartbeat(JOB, token, extender(JOB, token, TTL, conninfo), TTL, asked) as heartbeat:
            evict(conn, JOB, token)
            # Decided once: neither midnight nor a long pause makes it another day.
            query = "SELECT (now() AT TIME ZONE %s - %s::interval)::date"
            today = value(conn, query, ZONE, DUE)
            done = False
            while not done:
                heartbeat.check()
                done = pay_some(conn, token, today, chunk)
        return "done"


def pay_some(conn, token, today, chunk):
    """One transaction: the rows and how far we are. True when today is done."""
    with fenced(conn, JOB, token):
        state = value(conn, "SELECT lease_checkpoint(%s)", JOB)
        state = state or {"day": today.isoformat(), "after": 0}
        if date.fromisoformat(state["day"]) > today:
            return complete(conn, token, today)
        paid = conn.execute(
            "INSERT INTO reward (day, player, amount) SELECT %s, id, 100 FROM player"
            " WHERE id > %s ORDER BY id LIMIT %s RETURNING player",
            (state["day"], state["after"], chunk),
        ).fetchall()
        if paid:
            state["after"] = max(player for (player,) in paid)
        else:
            next_day = date.fromisoformat(state["day"]) + timedelta(days=1)
            state = {"day": next_day.isoformat(), "after": 0}
        conn.execute("SELECT lease_checkpoint(%s, %s, %s)", (JOB, token, Jsonb(state)))
        return False


def complete(conn, token, today):
    """Nobody gets the lease before the next day is due."""
    query = "SELECT lease_complete(%s, %s, until => (%s + 1 + %s::time) AT TIME ZONE %s)"
    return value(conn, query, JOB, token, today, DUE, ZONE)


if __name__ == "__main__":
    try:
        print(f"{JOB}: {daily_reward()}")
    except (LeaseLost, psycopg.OperationalError) as error:
        # Nothing is to be undone: whoever is called next goes on from the checkpoint.
        sys.exit(f"{JOB}: lost: {error}")
