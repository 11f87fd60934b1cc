from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    operations = [
        migrations.CreateModel(
            "Player",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.TextField()),
            ],
        ),
        migrations.CreateModel(
            "Reward",
            [
                ("player", models.IntegerField(primary_key=True, serialize=False)),
                ("amount", models.IntegerField()),
            ],
            {"db_table": "reward"},
        ),
        migrations.CreateModel(
            "DailyReward",
            [
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("day", models.DateField()),
                ("player", models.ForeignKey(on_delete=models.CASCADE, to="rewards.player")),
                ("amount", models.IntegerField()),
            ],
        ),
    ]
