# [testing]
from django.db import connection
from django.test import TransactionTestCase


class FencedTestCase(TransactionTestCase):
    """Empties fenced tables as well, which needs a superuser. Leases stay as they are."""

    def _fixture_teardown(self):
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
        super()._fixture_teardown()
        with connection.cursor() as cursor:
            cursor.execute("RESET session_replication_role")


# [end testing]
