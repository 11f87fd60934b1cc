from django.contrib.postgres.operations import CreateExtension
from django.db import migrations, models

# fence_attach waits for open writers, and others wait for it: give up soon, and try again.
SOON = "SET LOCAL lock_timeout = '5s'"


class Migration(migrations.Migration):
    dependencies = [("rewards", "0001_initial")]

    operations = [
        CreateExtension("lock_ext"),
        migrations.AddField(
            "dailyreward", "token", models.BigIntegerField(null=True, editable=False)
        ),
        migrations.RunSQL(
            [SOON, "SELECT fence_attach('rewards_dailyreward', 'daily-reward', 'token')"],
            [SOON, "SELECT fence_detach('rewards_dailyreward')"],
        ),
    ]
