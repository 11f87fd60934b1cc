"""The table that the scenarios make and fence by themselves, each in its own way."""

from django.db import models


class Reward(models.Model):
    player = models.IntegerField(primary_key=True)
    amount = models.IntegerField()
    token = models.BigIntegerField(null=True, editable=False)

    class Meta:
        db_table = "reward"
        managed = False
