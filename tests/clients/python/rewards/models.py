from django.db import models


class Player(models.Model):
    name = models.TextField()
    coins = models.IntegerField(default=0)


class DailyReward(models.Model):
    day = models.DateField()
    # Not CASCADE, by which deleting a player would delete fenced rows first.
    player = models.ForeignKey(Player, models.PROTECT)
    amount = models.IntegerField()
    token = models.BigIntegerField(null=True, editable=False)  # stamped by the fence

    class Meta:
        constraints = [models.UniqueConstraint(fields=["day", "player"], name="once_a_day")]
