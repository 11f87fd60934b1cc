import logging
import os
import socket
import time

import psycopg

from heartbeat import Heartbeat, LeaseLost
from lease import connect, evict, extender, fenced, value


def lead(lease, read, write, stopping, ttl=15, pause=1, conninfo=""):
    """While this node leads: read() outside of a transaction, write(conn, what it gave) in one."""
    while not stopping.is_set():
        try:
            with connect(conninfo, ttl) as conn:
                one_term(conn, lease, read, write, stopping, ttl, pause, conninfo)
        except (LeaseLost, psycopg.OperationalError) as error:
            # Back to the candidates, whatever it was: the token is not used again.
            logging.warning("not the leader of %s: %s", lease, error)
        stopping.wait(ttl / 3)


def one_term(conn, lease, read, write, stopping, ttl, pause, conninfo):
    asked = time.monotonic()
    node = f"{socket.gethostname()}:{os.getpid()}"
    query = "SELECT lease_acquire(%s, %s, make_interval(secs => %s))"
    token = value(conn, query, lease, node, ttl)  # the same for the whole term
    if token is None:
        return
    with Heartbeat(lease, token, extender(lease, token, ttl, conninfo), ttl, asked) as heartbeat:
        evict(conn, lease, token)
        while not stopping.is_set():
            heartbeat.check()
            try:
                news = read()
            except Exception as error:  # the source is out of order, not the leader
                logging.warning("nothing was read: %s", error)
            else:
                heartbeat.check()
                with fenced(conn, lease, token):
                    write(conn, news)
            stopping.wait(pause)
    conn.execute("SELECT lease_release(%s, %s)", (lease, token))
