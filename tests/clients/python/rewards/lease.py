from contextlib import contextmanager

from django.db import DatabaseError, connection, transaction

from heartbeat import LeaseLost


def sql(query, *parameters):
    with connection.cursor() as cursor:
        cursor.execute(query, parameters)
        return cursor.fetchone()[0]


@contextmanager
def fenced(lease, token):
    """A transaction that commits only if the token is still current."""
    try:
        # durable: it is no savepoint in somebody else's transaction, so it ends in a COMMIT here.
        with transaction.atomic(durable=True):
            sql("SELECT lease_fence(%s, %s)", lease, token)
            yield
    except DatabaseError as error:  # by the COMMIT as well
        driver = error.__cause__
        if getattr(driver, "sqlstate", None) == "LX001":
            raise LeaseLost(lease, token, driver.diag.message_detail) from error
        raise


def evict(lease, token):
    """Right after a grant: a predecessor that is frozen in a transaction keeps its row locks."""
    with fenced(lease, token):
        return sql("SELECT count(*) FROM lease_evict(%s, %s)", lease, token)


def extender(lease, token):
    """What Heartbeat calls. In its thread Django has another connection, in autocommit."""

    def extend():
        try:
            return sql("SELECT lease_extend(%s, %s) IS NOT NULL", lease, token)
        finally:
            connection.close()  # broken or not: the next call makes a new one

    return extend
