"""SQLAlchemy's ORM over psycopg: a session's ordinary add, merge and flush."""

import asyncio
import sys
from datetime import timedelta

import sqlalchemy
from sqlalchemy import create_engine, event, func, literal, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.orm.exc import StaleDataError

import harness

if __name__ == "__main__":
    harness.make_database("sqlalchemy-orm")

import recipe_sqlalchemy
import scenarios
from harness import check, equal, error_of
from heartbeat import LeaseLost
from recipe_sqlalchemy import Reward, fenced
from scenarios import is_refusal
from stack_sqlalchemy_core import GIVING_UP as GIVING_UP
from stack_sqlalchemy_core import LOST as LOST
from stack_sqlalchemy_core import REFUSED as REFUSED
from stack_sqlalchemy_core import Node as CoreNode
from stack_sqlalchemy_core import migrate as migrate
from stack_sqlalchemy_core import sqlstate as sqlstate
from stack_sqlalchemy_core import wait_elsewhere as wait_elsewhere

STACK, VERSION = "sqlalchemy-orm", sqlalchemy.__version__
RETRIED = (OperationalError, StaleDataError)

engine = create_engine("postgresql+psycopg://")


def extender(name, token):
    return recipe_sqlalchemy.extender(engine, name, token)


class Base(DeclarativeBase):
    pass


class Biggest(Base):
    __tablename__ = "biggest"

    token: Mapped[int] = mapped_column(sqlalchemy.BigInteger, primary_key=True)


class Versioned(Base):
    """The ORM's own optimistic locking on a fenced table."""

    __tablename__ = "reward"

    player: Mapped[int] = mapped_column(primary_key=True)
    amount: Mapped[int]
    token: Mapped[int | None] = mapped_column(sqlalchemy.BigInteger)
    version: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": version}


class Node(CoreNode):
    """Leases by func.*, as in Core; rows by the session."""

    def save(self, player, amount=100):
        with Session(engine) as session, session.begin():
            session.merge(Reward(player=player, amount=amount))

    def save_by_column(self, player, amount, token):
        with Session(engine, info={"token": token}) as session, session.begin():
            session.merge(Reward(player=player, amount=amount))

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
        with Session(engine) as session, session.begin():
            self.in_use = session.connection()
            session.execute(select(func.lease_fence(name, token)))
            if before_write:
                before_write()
            for player in players:
                session.merge(Reward(player=player, amount=amount))
            session.flush()
            if checkpoint:
                state = literal(checkpoint, JSONB)
                session.execute(select(func.lease_checkpoint(name, token, state)))
            if before_commit:
                before_commit()

    def pay_once(self, key, player, token, roll_back=False):
        with Session(engine, info={"token": token}) as session:
            first = session.scalar(select(func.once(key)))
            if first:
                session.add(Reward(player=player, amount=100))
            if roll_back:
                session.rollback()
            else:
                session.commit()
            return first and not roll_back

    def biggest(self, token):
        Base.metadata.create_all(engine, [Biggest.__table__])
        with Session(engine) as session, session.begin():
            session.add(Biggest(token=token))
        with Session(engine) as session:
            return session.get(Biggest, token).token


def also_fenced_transaction(rival):
    """The recipe; and what the fence stamps is what the object then has."""
    rival.table("recipe", "token")
    token = rival.take_over("recipe")
    with fenced(engine, "recipe", token) as session:
        row = Reward(player=1, amount=100)
        session.add(row)
        session.flush()
        equal(row.token, token)
        session.add_all(Reward(player=player, amount=100) for player in range(2, 5))
        session.flush()
        row.amount = 200
        session.delete(session.get(Reward, 4))
    # A row as an earlier holder wrote it, whose token the session sends back or leaves out.
    later = rival.take_over("recipe")
    with fenced(engine, "recipe", later) as session:
        row = session.get(Reward, 1)
        equal(row.token, token)
        row.amount = 300
        session.flush()
        equal(row.token, later)
    equal(type(error_of(lambda: fenced(engine, "recipe", token).__enter__())), LeaseLost)
    equal(rival.rewards(), [(1, 300), (2, 100), (3, 100)])


def also_fenced_column(rival):
    """What the session leaves out, the fence cannot see."""
    rival.table("changed", "token")
    token = rival.take_over("changed")

    def save(player, amount, **changes):
        with Session(engine) as session, session.begin():
            row = session.get(Reward, player) or Reward(player=player)
            row.amount = amount
            for name, value in changes.items():
                setattr(row, name, value)
            session.add(row)

    save(1, 100, token=token)
    # The column is sent only where it has changed, so that this is no token at all.
    equal(sqlstate(error_of(lambda: save(1, 200, token=token))), "LX003")
    equal(sqlstate(error_of(lambda: save(1, 200))), "LX003")
    with Session(engine, info={"token": token}) as session, session.begin():
        session.get(Reward, 1).amount = 200
        session.add(Reward(player=2, amount=100))
    equal(rival.rewards(), [(1, 200), (2, 100)])
    with Session(engine, info={"token": token}) as session:
        session.delete(session.get(Reward, 1))
        equal(sqlstate(error_of(session.commit)), "LX003")  # a DELETE sets no column


def also_checkpoint(rival):
    """The job of the recipe, with a take-over on the way."""
    rival.table("reward-all", "token")
    rival.conn.execute("CREATE TABLE player (id int PRIMARY KEY)")
    rival.conn.execute("INSERT INTO player SELECT generate_series(1, 2500)")
    flushes = []

    def take_over(*_):
        flushes.append(1)
        if len(flushes) == 2:
            rival.take_over("reward-all")

    event.listen(Session, "after_flush", take_over)
    error = error_of(recipe_sqlalchemy.reward_all, engine)
    event.remove(Session, "after_flush", take_over)
    equal((type(error), len(rival.rewards())), (LeaseLost, 1000))
    check("was granted later" in str(error), error)
    rival.value("SELECT lease_force_release('reward-all')")
    equal(recipe_sqlalchemy.reward_all(engine), "done")
    equal(len(rival.rewards()), 2500)
    equal(rival.state("reward-all"), "completed")
    rival.conn.execute("DROP TABLE player")


def also_refused_write(rival):
    """A StaleDataError invites to load the row and try again. A refusal is none."""
    rival.table("stale", "token")
    rival.conn.execute("ALTER TABLE reward ADD version int NOT NULL DEFAULT 1")
    token = rival.take_over("stale")
    insert = "INSERT INTO reward (player, amount, token) VALUES (1, 100, %s)"
    rival.conn.execute(insert, (token,))

    def overtaken(session):
        """The successor changes the row that the session has loaded."""
        row = session.get(Versioned, 1)
        later = rival.take_over("stale")
        update = "UPDATE reward SET amount = 200, token = %s, version = version + 1"
        rival.conn.execute(update, (later,))
        row.amount = 300
        return row

    def by_transaction():
        with Session(engine) as session, session.begin():
            session.execute(select(func.lease_fence("stale", token)))
            overtaken(session)

    is_refusal(sys.modules[__name__], error_of(by_transaction))

    # By column it is one: an UPDATE that finds no row shows its token to nobody. Tried again
    # with the same token, as StaleDataError asks for, it is refused.
    token = rival.take_over("stale")
    with Session(engine) as session:
        overtaken(session).token = token
        equal(type(error_of(session.commit)), StaleDataError)
        session.rollback()
        row = session.get(Versioned, 1)
        row.amount, row.token = 300, token
        is_refusal(sys.modules[__name__], error_of(session.commit))
    equal(rival.rewards(), [(1, 200)])


def also_refused_commit(rival):
    rival.table("committed", "token")
    told = []

    def write(session, player=1):
        session.add(Reward(player=player, amount=100, token=rival.take_over("committed")))
        session.flush()
        rival.take_over("committed")

    # By commit(): no after_commit hook, and the session goes on after the rollback.
    with Session(engine) as session:
        event.listen(session, "after_commit", lambda _: told.append("committed"))
        write(session)
        is_refusal(sys.modules[__name__], error_of(session.commit))
        session.rollback()
        equal((session.scalars(select(Reward)).all(), told), ([], []))

    def by_the_recipe():
        token = rival.take_over("committed")
        with fenced(engine, "committed", token) as session:
            session.add(Reward(player=1, amount=100))
            session.flush()
            rival.take_over("committed")

    error = error_of(by_the_recipe)
    equal(type(error), LeaseLost)
    is_refusal(sys.modules[__name__], error.__cause__)

    # A flush that failed makes the session refuse to commit. A statement that failed does not,
    # and PostgreSQL answers COMMIT with ROLLBACK, which is no error: catch outside of the block.
    with Session(engine) as session:
        session.add(Reward(player=1, amount=100))
        is_nothing = error_of(session.flush)
        equal(sqlstate(is_nothing), "LX003")
        equal(type(error_of(session.commit)), sqlalchemy.exc.PendingRollbackError)
    with Session(engine) as session, session.begin():
        equal(sqlstate(error_of(session.execute, text("DELETE FROM reward"))), "LX003")
    equal(rival.rewards(), [])

    asyncio.run(over_asyncpg(rival, write))


async def over_asyncpg(rival, write):
    """The same over asyncpg: another class, the same attribute."""
    async_engine = create_async_engine("postgresql+asyncpg://")
    async with AsyncSession(async_engine) as session:
        await session.run_sync(write)
        try:
            await session.commit()
            raise AssertionError("committed")
        except DBAPIError as error:
            equal((type(error), sqlstate(error)), (DBAPIError, "LX001"))
            check(not error.connection_invalidated, "taken for a lost connection")
    async with AsyncSession(async_engine) as session:
        grant = func.lease_acquire("asyncpg", "node-1", timedelta(seconds=30))
        equal(await session.scalar(grant.select()) > harness.FLOOR, True)
    await async_engine.dispose()


if __name__ == "__main__":
    scenarios.main(sys.modules[__name__])
