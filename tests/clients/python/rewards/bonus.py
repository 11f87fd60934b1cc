from django.db import transaction
from django.db.models import F

from rewards.lease import sql
from rewards.models import Player


def bonus():
    with transaction.atomic():
        if not sql("SELECT once('bonus:' || (now() AT TIME ZONE 'Europe/Berlin')::date)"):
            return "done already"
        Player.objects.update(coins=F("coins") + 10)
    return "done"
