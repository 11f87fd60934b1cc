"""asyncpg: binary parameters, each of the type that the prepared statement asks for."""

import asyncio
import json
import sys
from datetime import datetime, timedelta

import asyncpg
import psycopg

import harness

if __name__ == "__main__":
    harness.make_database("asyncpg")

import leader_asyncpg
import scenarios
from harness import black_hole, check, equal, error_of, frozen_in, until
from leader_asyncpg import lead
from scenarios import TTL, is_refusal

STACK, VERSION = "asyncpg", asyncpg.__version__
REFUSED = asyncpg.exceptions.UnknownPostgresError
RETRIED = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.PostgresConnectionError,
    asyncpg.exceptions.OperatorInterventionError,
    asyncpg.exceptions.TransactionRollbackError,
)
# Which of them it is depends on whether the client has read the end of the connection already.
LOST = (
    asyncpg.PostgresConnectionError,
    asyncpg.exceptions.AdminShutdownError,
    asyncpg.InterfaceError,
)
GIVING_UP = {
    "timeout": (TimeoutError, None),
    "cancel": (RuntimeError, None),
    "statement_timeout": (asyncpg.exceptions.QueryCanceledError, "57014"),
    "lock_timeout": (asyncpg.exceptions.LockNotAvailableError, "55P03"),
}


def sqlstate(error):
    return getattr(error, "sqlstate", None)


class Unit:
    """An async method that the scenarios, which are not, call as a function."""

    def __init__(self, method):
        self.method = method

    def __get__(self, node, _):
        return lambda *args, **named: node.runner.run(self.method(node, *args, **named))


class Node:
    def __init__(self):
        self.runner = asyncio.Runner()
        self.conn = self.runner.run(asyncpg.connect())

    def close(self):
        self.runner.run(self.conn.close(timeout=5))
        self.runner.close()

    @Unit
    async def value(self, query, *parameters):
        return await self.conn.fetchval(query, *parameters)

    @Unit
    async def acquire(self, name, ttl):
        query = "SELECT lease_acquire($1, $2, $3)"
        return await self.conn.fetchval(query, name, "node-1", ttl)

    @Unit
    async def acquire_seconds(self, name, ttl):
        query = "SELECT lease_acquire($1, $2, make_interval(secs => $3))"
        return await self.conn.fetchval(query, name, "node-1", ttl)

    async def waiting(self, name, ttl, wait, **options):
        query = "SELECT lease_acquire($1, $2, $3, wait => $4)"
        return await self.conn.fetchval(query, name, "node-1", ttl, wait, **options)

    @Unit
    async def acquire_waiting(self, name, ttl, wait):
        return await self.waiting(name, ttl, wait)

    @Unit
    async def extend(self, name, token):
        return await self.conn.fetchval("SELECT lease_extend($1, $2)", name, token)

    async def upsert(self, player, amount):
        await self.conn.execute(
            "INSERT INTO reward (player, amount) VALUES ($1, $2)"
            " ON CONFLICT (player) DO UPDATE SET amount = excluded.amount",
            player,
            amount,
        )

    @Unit
    async def save(self, player, amount=100):
        await self.upsert(player, amount)

    async def upsert_by_column(self, player, amount, token):
        await self.conn.execute(
            "INSERT INTO reward (player, amount, token) VALUES ($1, $2, $3) ON CONFLICT (player)"
            " DO UPDATE SET amount = excluded.amount, token = excluded.token",
            player,
            amount,
            token,
        )

    @Unit
    async def save_by_column(self, player, amount, token):
        await self.upsert_by_column(player, amount, token)

    @Unit
    async def fenced(
        self,
        name,
        token,
        players,
        amount=100,
        checkpoint=None,
        before_write=None,
        before_commit=None,
    ):
        async with self.conn.transaction():
            await self.conn.execute("SELECT lease_fence($1, $2)", name, token)
            if before_write:
                before_write()
            for player in players:
                await self.upsert(player, amount)
            if checkpoint:
                query = "SELECT lease_checkpoint($1, $2, $3)"
                await self.conn.execute(query, name, token, json.dumps(checkpoint))
            if before_commit:
                before_commit()

    @Unit
    async def pay_once(self, key, player, token, roll_back=False):
        transaction = self.conn.transaction()
        await transaction.start()
        first = await self.conn.fetchval("SELECT once($1)", key)
        if first:
            await self.upsert_by_column(player, 100, token)
        await (transaction.rollback() if roll_back else transaction.commit())
        return first and not roll_back

    @Unit
    async def checkpoint(self, name):
        state = await self.conn.fetchval("SELECT lease_checkpoint($1)", name)
        return state and json.loads(state)

    @Unit
    async def biggest(self, token):
        async with self.conn.transaction():
            await self.conn.execute("CREATE TEMPORARY TABLE biggest (token bigint) ON COMMIT DROP")
            await self.conn.execute("INSERT INTO biggest VALUES ($1)", token)
            return await self.conn.fetchval("SELECT token FROM biggest")

    def pid(self):
        return self.conn.get_server_pid()

    @Unit
    async def one(self):
        return await self.conn.fetchval("SELECT 1")

    @Unit
    async def give_up(self, way, name, in_line):
        """Waits for the lease, and does not wait to the end."""
        wait = timedelta(seconds=20)
        try:
            if way == "timeout":
                await self.waiting(name, TTL, wait, timeout=0.2)
            elif way == "cancel":
                task = asyncio.create_task(self.waiting(name, TTL, wait))
                while not in_line():
                    await asyncio.sleep(0.01)
                task.cancel()
                await task
            else:
                await self.conn.execute(f"SET {way} = 200")
                await self.waiting(name, TTL, wait)
        except asyncio.CancelledError:
            return RuntimeError("cancelled")  # no Exception, so that nothing catches it by mistake
        except Exception as error:
            return error
        finally:
            await self.conn.execute("RESET ALL")


def wait_elsewhere(name, ttl, wait):
    node = Node()
    try:
        return node.acquire_waiting(name, ttl, wait)
    finally:
        node.close()


def heartbeat(_, rival):
    """The recipe: the work is a task, which is cancelled when the lease is lost."""
    rival.table("heartbeat")
    rival.conn.execute("CREATE TABLE log (id serial, token bigint)")
    rival.value("SELECT fence_attach('log', 'heartbeat')")
    ttl, reads, writes, does = 3, [], [], {}

    async def read():
        reads.append(1)
        if len(reads) % 3 == 0:
            raise OSError("503 Service Unavailable")
        return len(reads)

    async def write(conn, news):
        writes.append(conn)
        if act := does.pop("act", None):
            await act(conn)
        upsert = "INSERT INTO reward VALUES (1, $1) ON CONFLICT (player) DO UPDATE SET amount = $1"
        await conn.execute(upsert, news)
        token = "SELECT token FROM lease_status WHERE name = 'heartbeat'"
        await conn.execute(f"INSERT INTO log (token) {token}")

    async def hang(conn):
        await conn.execute("SELECT pg_sleep(60)")

    async def lose_the_network(conn):
        black_hole(conn._transport.get_extra_info("socket").fileno())

    def terms():
        return rival.rows("SELECT token FROM log GROUP BY token ORDER BY min(id)")

    async def next_term(seen):
        await asyncio.to_thread(until, lambda: len(terms()) > len(seen))
        return terms()

    async def main():
        dsn = "postgresql://127.0.0.1"
        leading = [
            asyncio.create_task(lead(dsn, "heartbeat", read, write, ttl, 0.01)) for _ in range(2)
        ]
        with frozen_in("heartbeat", "INSERT INTO reward VALUES (1, 1)") as wake_up:
            seen = await next_term([])
            equal(type(await asyncio.to_thread(wake_up)), psycopg.errors.AdminShutdown)
        # The source fails again and again, and that ends no term.
        before, errors = len(writes), len(reads)
        await asyncio.to_thread(until, lambda: len(reads) > errors + 6 and len(writes) > before + 3)
        equal(terms(), seen)
        for act in hang, lose_the_network:
            does["act"] = act
            seen = await next_term(seen)
        rival.take_over("heartbeat")
        rival.value("SELECT lease_force_release('heartbeat')")
        seen = await next_term(seen)
        for task in leading:
            task.cancel()
        await asyncio.gather(*leading, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 90))
    equal(terms(), sorted(terms()))
    until(lambda: rival.state("heartbeat") == "free")  # released by who was cancelled


def also_heartbeat(rival):
    """The server answers no heartbeat any more: the own deadline ends the work."""
    lock = "BEGIN; LOCK TABLE lock_ext.lease IN ACCESS EXCLUSIVE MODE"

    async def endless(*_):
        await asyncio.to_thread(rival.conn.execute, lock)
        await asyncio.sleep(60)

    async def main():
        pool, began = leader_asyncpg.make_pool(None, 1.5, 2), asyncio.get_running_loop().time()
        async with pool:
            term = leader_asyncpg.one_term(pool, pool, "deadline", None, None, 1.5, 0)
            error = await asyncio.gather(asyncio.wait_for(term, 30), return_exceptions=True)
            equal(type(error[0]), TimeoutError)
            check(asyncio.get_running_loop().time() < began + 20, "not by the deadline")

    work, leader_asyncpg.work = leader_asyncpg.work, endless
    try:
        asyncio.run(main())
    finally:
        leader_asyncpg.work = work
        rival.conn.execute("ROLLBACK")


def also_grant(rival):
    """What a prepared statement takes for its parameters, infinity, and the pool's reset."""
    node = Node()
    data_error = asyncpg.exceptions.DataError
    for ttl in "30 s", 30:
        error = error_of(node.acquire, "text", ttl)
        equal(type(error), data_error)
        check("invalid input for query argument $3" in str(error), error)
    query = "SELECT lease_acquire($1, $2, $3::text::interval)"
    token = node.value(query, "text", "node-1", "30 s")
    check(token, "text does with a cast by way of text")
    error = error_of(node.value, "SELECT lease_checkpoint($1, $2, $3)", "text", token, {"a": 1})
    equal(type(error), data_error)
    query = "SELECT lease_complete($1, $2, $3)"
    equal(type(error_of(node.value, query, "text", token, "tomorrow")), data_error)
    check(node.value(query, "text", token, datetime.max), "completed")
    query = "SELECT completed_until FROM lease_status WHERE name = 'text'"
    equal(node.value(query), datetime.max)  # asyncpg's infinity
    equal(rival.rows("SELECT FROM lease_status WHERE completed_until = 'infinity'"), [()])

    async def pooled():
        async with asyncpg.create_pool(min_size=1, max_size=1) as pool:
            query = "SELECT lease_acquire_session('session', 'node-1')"
            async with pool.acquire() as conn:
                check(await conn.fetchval(query), "granted")
                equal(rival.state("session"), "held")
            # The pool's reset has pg_advisory_unlock_all() in it, which ends the lease.
            check(rival.state("session") != "held", "still held")

    asyncio.run(pooled())
    node.close()


def also_fenced_transaction(rival):
    """executemany, COPY, a cursor, and savepoints."""
    rival.table("other ways")

    async def main():
        conn = await asyncpg.connect()
        query = "SELECT lease_acquire('other ways', 'node-1', $1)"
        token = await conn.fetchval(query, TTL)
        async with conn.transaction():
            await conn.execute("SELECT lease_fence('other ways', $1)", token)
            insert = "INSERT INTO reward (player, amount) VALUES ($1, 100)"
            await conn.executemany(insert, [(1,), (2,)])
            columns = ["player", "amount"]
            await conn.copy_records_to_table("reward", records=[(3, 100)], columns=columns)
            async with conn.transaction():
                async for row in conn.cursor("SELECT player FROM reward WHERE player > 1"):
                    query = "UPDATE reward SET amount = 200 WHERE player = $1"
                    await conn.execute(query, row["player"])
        await conn.close()

    asyncio.run(main())
    equal(rival.rewards(), [(1, 100), (2, 200), (3, 200)])


def also_refused_commit(rival):
    rival.table("caught")

    async def main():
        conn = await asyncpg.connect()
        query = "SELECT lease_acquire('caught', 'node-1', $1)"
        token = await conn.fetchval(query, TTL)
        rival.take_over("caught")
        # Caught inside the block the refusal is gone: PostgreSQL answers the COMMIT of a failed
        # transaction with ROLLBACK, and that is no error.
        async with conn.transaction():
            try:
                await conn.execute("SELECT lease_fence('caught', $1)", token)
            except asyncpg.PostgresError as error:
                is_refusal(sys.modules[__name__], error)
        # Neither has the class a parent that would tell: it is even a FatalPostgresError.
        check(issubclass(REFUSED, asyncpg.FatalPostgresError), REFUSED.__mro__)
        equal(await conn.fetchval("SELECT 1"), 1)
        await conn.close()

    asyncio.run(main())
    equal(rival.rewards(), [])


if __name__ == "__main__":
    scenarios.main(sys.modules[__name__])
