from contextlib import contextmanager

import psycopg

from heartbeat import LeaseLost


def connect(conninfo, ttl):
    """In autocommit, and no call on it waits for much longer than a third of the time to live."""
    third = max(1, round(ttl / 3))
    return psycopg.connect(
        conninfo,
        autocommit=True,
        connect_timeout=third,
        options=f"-c statement_timeout={third}s",
        # The network is gone while something is sent, and while an answer is awaited.
        tcp_user_timeout=third * 1000,
        keepalives_idle=third,
        keepalives_interval=1,
        keepalives_count=third,
    )


def value(conn, query, *parameters):
    return conn.execute(query, parameters).fetchone()[0]


@contextmanager
def fenced(conn, lease, token):
    """A transaction that commits only if the token is still current."""
    try:
        with conn.transaction():
            conn.execute("SELECT lease_fence(%s, %s)", (lease, token))
            yield
    except psycopg.DatabaseError as error:  # by the COMMIT as well
        if error.sqlstate == "LX001":
            raise LeaseLost(lease, token, error.diag.message_detail) from error
        raise


def evict(conn, lease, token):
    """Right after a grant: a predecessor that is frozen in a transaction keeps its row locks."""
    with fenced(conn, lease, token):
        return value(conn, "SELECT count(*) FROM lease_evict(%s, %s)", lease, token)


def extender(lease, token, ttl, conninfo=""):
    """What Heartbeat calls, on a connection of its own that is made anew when it broke."""
    conn = None

    def extend():
        nonlocal conn
        if conn is None or conn.closed:
            conn = connect(conninfo, ttl)
        return value(conn, "SELECT lease_extend(%s, %s) IS NOT NULL", lease, token)

    return extend
