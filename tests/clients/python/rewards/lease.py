# [fenced]
from contextlib import contextmanager

from django.db import DatabaseError, connection, transaction

from heartbeat import LeaseLost


def sql(query, *parameters):
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        return cursor.fetchone()[0]


@contextmanager
def fenced(name, token):
    """A transaction all of whose writes carry the token."""
    try:
        # durable: it is no savepoint in somebody else's transaction, so it ends in a COMMIT here.
        with transaction.atomic(durable=True):
            sql("SELECT lease_fence(%s, %s)", name, token)
            yield
    except DatabaseError as error:  # by the COMMIT as well
        if getattr(error.__cause__, "sqlstate", None) == "LX001":
            raise LeaseLost from error
        raise


# [end fenced]
# [extender]
def extender(name, token):
    """What Heartbeat calls. In its thread Django has another connection, in autocommit."""

    def extend():
        try:
            return sql("SELECT lease_extend(%s, %s) IS NOT NULL", name, token)
        finally:
            connection.close()  # broken or not: the next call makes a new one

    return extend


# [end extender]
