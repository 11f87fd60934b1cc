import asyncio
import logging
import os
import socket
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg

from heartbeat import LeaseLost

NODE = f"{socket.gethostname()}:{os.getpid()}"


def make_pool(dsn, ttl, size):
    """No call waits for longer than a third of the time to live, also where the network is gone."""
    third = ttl / 3
    return asyncpg.create_pool(dsn, min_size=0, max_size=size, timeout=third, command_timeout=third)


@asynccontextmanager
async def fenced(pool, lease, token, ttl):
    """A transaction that commits only if the token is still current."""
    try:
        async with pool.acquire(timeout=ttl / 3) as conn, conn.transaction():
            await conn.execute("SELECT lease_fence($1, $2)", lease, token)
            yield conn
    except asyncpg.PostgresError as error:  # by the COMMIT as well
        if error.sqlstate == "LX001":
            raise LeaseLost(lease, token, error.detail) from error
        raise


async def heartbeat(beats, lease, token, ttl, deadline):
    """Puts the deadline off for as long as the lease is ours."""
    while True:
        await asyncio.sleep(ttl / 3)
        asked = asyncio.get_running_loop().time()
        try:
            held = await beats.fetchval("SELECT lease_extend($1, $2)", lease, token)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            # Neither held nor lost: ask again, until the deadline.
            logging.warning("lease %s is not extended: %r", lease, error)
            continue
        if held is None:
            raise LeaseLost(lease, token, "it is another's, or expired")
        deadline.reschedule(asked + ttl)


async def work(pool, lease, token, read, write, ttl, pause):
    """Reads outside of a transaction, writes in a short one. Whatever hangs is ended."""
    async with fenced(pool, lease, token, ttl) as conn:
        # A predecessor that is frozen in a transaction would keep its row locks.
        await conn.execute("SELECT count(*) FROM lease_evict($1, $2)", lease, token)
    while True:
        try:
            async with asyncio.timeout(ttl):
                news = await read()
        except Exception as error:  # the source is out of order, not the leader
            logging.warning("nothing was read: %r", error)
        else:
            async with asyncio.timeout(ttl), fenced(pool, lease, token, ttl) as conn:
                await write(conn, news)
        await asyncio.sleep(pause)


async def one_term(beats, pool, lease, read, write, ttl, pause):
    asked = asyncio.get_running_loop().time()
    query = "SELECT lease_acquire($1, $2, $3)"
    token = await beats.fetchval(query, lease, NODE, timedelta(seconds=ttl))
    if token is None:
        return
    try:
        async with asyncio.timeout_at(asked + ttl) as deadline, asyncio.TaskGroup() as group:
            group.create_task(heartbeat(beats, lease, token, ttl, deadline))
            group.create_task(work(pool, lease, token, read, write, ttl, pause))
    finally:  # nothing, if it is lost
        await beats.execute("SELECT lease_release($1, $2)", lease, token)


async def lead(dsn, lease, read, write, ttl=15, pause=1):
    """While this node leads: read(), then write(conn, what it gave). Until it is cancelled."""
    # Heartbeats have their own pool, so that no work keeps them waiting for a connection.
    async with make_pool(dsn, ttl, 1) as beats, make_pool(dsn, ttl, 2) as pool:
        while True:
            try:
                await one_term(beats, pool, lease, read, write, ttl, pause)
            except* (LeaseLost, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as lost:
                # Back to the candidates: the token is not used again.
                logging.warning("not the leader of %s: %s", lease, lost.exceptions)
            await asyncio.sleep(ttl / 3)
