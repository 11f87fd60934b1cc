from django.db import models


class Player(models.Model):
    name = models.TextField()


# [model]
class Reward(models.Model):
    player = models.IntegerField(primary_key=True)
    amount = models.IntegerField()
    token = models.BigIntegerField(null=True, editable=False)  # stamped by the fence

    class Meta:
        db_table = "reward"


# [end model]


class DailyReward(models.Model):
    day = models.DateField()
    player = models.ForeignKey(Player, models.CASCADE)
    amount = models.IntegerField()
