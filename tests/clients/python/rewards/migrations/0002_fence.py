# [migration]
from django.db import migrations, models

# fence_attach waits for open writers, and others wait for it: give up soon, and try again.
SOON = "SET LOCAL lock_timeout = '5s'"


class Migration(migrations.Migration):
    dependencies = [("rewards", "0001_initial")]

    operations = [
        migrations.AddField("reward", "token", models.BigIntegerField(null=True, editable=False)),
        migrations.RunSQL(
            [SOON, "SELECT fence_attach('reward', 'daily-reward', 'token')"],
            [SOON, "SELECT fence_detach('reward')"],
        ),
        migrations.RunSQL(
            [SOON, "SELECT fence_attach('rewards_dailyreward', 'daily-reward')"],
            [SOON, "SELECT fence_detach('rewards_dailyreward')"],
        ),
    ]


# [end migration]
