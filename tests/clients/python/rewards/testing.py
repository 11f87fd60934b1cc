from django.db import connection
from django.test import TransactionTestCase


class FencedTestCase(TransactionTestCase):
    """Empties fenced tables as well, and ends all leases. That needs a superuser."""

    def _fixture_teardown(self):
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
        super()._fixture_teardown()
        with connection.cursor() as cursor:
            cursor.execute("RESET session_replication_role")
            for _ in "grant", "pause":
                cursor.execute("SELECT lease_force_release(name) FROM lease_status")
            cursor.execute("SELECT lease_prune('0 s'), once_forget('0 s')")
