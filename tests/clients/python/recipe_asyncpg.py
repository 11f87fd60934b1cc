# [leader]
import asyncio
import logging
from datetime import timedelta

import asyncpg


class LeaseLost(Exception):
    """Stop: somebody else may lead. Never retry with the same token."""


async def heartbeat(pool, name, token, ttl, deadline):
    """Puts the deadline off for as long as the lease is ours. pool is for heartbeats alone."""
    while True:
        await asyncio.sleep(ttl / 3)
        asked = asyncio.get_running_loop().time()
        try:
            query = "SELECT lease_extend($1, $2)"
            held = await pool.fetchval(query, name, token, timeout=ttl / 3)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            continue  # neither held nor lost: ask again, until the deadline
        if held is None:
            raise LeaseLost
        deadline.reschedule(asked + ttl)


async def lead(pool, name, node, work, ttl=15):
    """Runs work(token) while this node leads, and cancels it as soon as it does not."""
    while True:
        try:
            asked = asyncio.get_running_loop().time()
            query = "SELECT lease_elect($1, $2, $3)"
            token = await pool.fetchval(query, name, node, timedelta(seconds=ttl))
            if token is not None:
                async with (
                    asyncio.timeout_at(asked + ttl) as deadline,
                    asyncio.TaskGroup() as group,
                ):
                    beat = group.create_task(heartbeat(pool, name, token, ttl, deadline))
                    await work(token)
                    beat.cancel()
                await pool.execute("SELECT lease_release($1, $2)", name, token)
        except* (LeaseLost, OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as lost:
            logging.warning("%s does not lead %s: %s", node, name, lost.exceptions)
        await asyncio.sleep(ttl / 3)


# [end leader]
