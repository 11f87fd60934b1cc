# [model]
from sqlalchemy import BigInteger, FetchedValue
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Reward(Base):
    __tablename__ = "reward"

    player: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    amount: Mapped[int]
    # The fence stamps it; FetchedValue makes the session read back what was stored.
    token: Mapped[int | None] = mapped_column(
        BigInteger, server_default=FetchedValue(), server_onupdate=FetchedValue()
    )


# [end model]
# [fenced]
from contextlib import contextmanager

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from heartbeat import LeaseLost


@contextmanager
def fenced(engine, name, token):
    """A session with one transaction, all of whose writes carry the token."""
    try:
        with Session(engine) as session, session.begin():
            session.execute(select(func.lease_fence(name, token)))
            yield session
    except DBAPIError as error:  # by the COMMIT as well
        if getattr(error.orig, "sqlstate", None) == "LX001":
            raise LeaseLost from error
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
# [extender]
def extender(engine, name, token):
    """What Heartbeat calls. In autocommit: elsewhere an extension waits for its commit."""
    engine = engine.execution_options(isolation_level="AUTOCOMMIT")

    def extend():
        with engine.connect() as conn:
            return conn.scalar(select(func.lease_extend(name, token))) is not None

    return extend


# [end extender]
# [job]
import time
from datetime import timedelta

from sqlalchemy import literal
from sqlalchemy.dialects.postgresql import JSONB

from heartbeat import Heartbeat


def reward_all(engine, node, players, ttl=30):
    """Rewards each of the players once, whichever nodes call it and whichever die on the way."""
    job = "reward-all"
    asked = time.monotonic()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        token = conn.scalar(select(func.lease_acquire(job, node, timedelta(seconds=ttl))))
    if token is None:
        return  # another node is at it, or it is done
    with Heartbeat(extender(engine, job, token), ttl, asked) as heartbeat:
        done = False
        while not done:
            heartbeat.check()
            with fenced(engine, job, token) as session:
                after = session.scalar(select(func.lease_checkpoint(job))) or 0
                due = sorted(player for player in players if player > after)[:1000]
                session.add_all(Reward(player=player, amount=100) for player in due)
                done = not due
                if done:
                    session.execute(select(func.lease_complete(job, token)))
                else:
                    state = literal(due[-1], JSONB)
                    session.execute(select(func.lease_checkpoint(job, token, state)))


# [end job]
