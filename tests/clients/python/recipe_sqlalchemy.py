# [model]
from sqlalchemy import BigInteger, FetchedValue
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Player(Base):
    __tablename__ = "player"

    id: Mapped[int] = mapped_column(primary_key=True)


class Reward(Base):
    __tablename__ = "reward"

    player: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    amount: Mapped[int]
    # The fence stamps it; FetchedValue makes the session read back what was stored.
    token: Mapped[int | None] = mapped_column(
        BigInteger, server_default=FetchedValue(), server_onupdate=FetchedValue()
    )


class Bonus(Base):
    __tablename__ = "bonus"

    player: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    amount: Mapped[int]


# [end model]
# [fenced]
from contextlib import contextmanager

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from heartbeat import LeaseLost


@contextmanager
def fenced(engine, lease, token):
    """A session with one transaction, which commits only if the token is still current."""
    try:
        with Session(engine) as session, session.begin():
            session.execute(select(func.lease_fence(lease, token)))
            yield session
    except DBAPIError as error:  # by the COMMIT as well
        if getattr(error.orig, "sqlstate", None) == "LX001":
            raise LeaseLost(lease, token, error.orig.diag.message_detail) from error
        raise


# [end fenced]
# [by_column]
from sqlalchemy import event
from sqlalchemy.orm.attributes import flag_modified


@event.listens_for(Session, "before_flush")
def put_token(session, *_):
    """Our own token into every row that is saved, whoever wrote it last."""
    for row in session.new | session.dirty:
        if isinstance(row, Reward) and session.is_modified(row) and "token" in session.info:
            row.token = session.info["token"]
            flag_modified(row, "token")  # also where it is the same as before


# [end by_column]
# [engine]
from sqlalchemy import create_engine


def make_engine(url, ttl):
    """No call waits for much longer than a third of the time to live."""
    third = max(1, round(ttl / 3))
    bounds = {
        "connect_timeout": third,
        "options": f"-c statement_timeout={third}s",
        # The network is gone while something is sent, and while an answer is awaited.
        "tcp_user_timeout": third * 1000,
        "keepalives_idle": third,
        "keepalives_interval": 1,
        "keepalives_count": third,
    }
    return create_engine(url, connect_args=bounds, pool_timeout=third)


def extender(engine, lease, token):
    """What Heartbeat calls. In autocommit: elsewhere an extension waits for its commit."""
    engine = engine.execution_options(isolation_level="AUTOCOMMIT")

    def extend():
        with engine.connect() as conn:
            return conn.scalar(select(func.lease_extend(lease, token))) is not None

    return extend


# [end engine]
# [job]
import os
import socket
import sys
import time
from datetime import timedelta

from sqlalchemy import literal, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import OperationalError

from heartbeat import Heartbeat

JOB, TTL = "reward-all", 30


def reward_all(engine):
    """Rewards each player once, whichever nodes call it and whichever die on the way."""
    asked = time.monotonic()
    node = f"{socket.gethostname()}:{os.getpid()}"
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        token = conn.scalar(select(func.lease_acquire(JOB, node, timedelta(seconds=TTL))))
        if token is None:
            query = text("SELECT state FROM lease_status WHERE name = :name")
            state = conn.scalar(query, {"name": JOB})
            return "done already" if state == "completed" else "somebody else has it"
    with Heartbeat(JOB, token, extender(engine, JOB, token), TTL, asked) as heartbeat:
        with fenced(engine, JOB, token) as session:
            # A predecessor that is frozen in a transaction would keep its row locks.
            session.execute(select(func.count()).select_from(func.lease_evict(JOB, token)))
        done = False
        while not done:
            heartbeat.check()
            done = reward_some(engine, token)
    return "done"


def reward_some(engine, token, chunk=1000):
    """One transaction: the rows and how far we are. True when all is done."""
    with fenced(engine, JOB, token) as session:
        after = session.scalar(select(func.lease_checkpoint(JOB))) or 0
        query = select(Player.id).where(Player.id > after).order_by(Player.id).limit(chunk)
        due = session.scalars(query).all()
        session.add_all(Reward(player=player, amount=100) for player in due)
        if due:
            state = literal(due[-1], JSONB)
            session.execute(select(func.lease_checkpoint(JOB, token, state)))
        else:
            session.execute(select(func.lease_complete(JOB, token)))
    return not due


if __name__ == "__main__":
    try:
        print(f"{JOB}: {reward_all(make_engine('postgresql+psycopg://', TTL))}")
    except (LeaseLost, OperationalError) as error:
        # Nothing is to be undone: whoever is called next goes on from the checkpoint.
        sys.exit(f"{JOB}: lost: {getattr(error, 'orig', error)}")
# [end job]


# [once]
def pay_bonus(engine):
    with Session(engine) as session, session.begin():
        if not session.scalar(select(func.once("bonus"))):
            return "done already"
        for player in session.scalars(select(Player.id)):
            session.add(Bonus(player=player, amount=10))
    return "done"


# [end once]
