import json
import os
import socket
import time
from datetime import date, timedelta

from django.core.management.base import BaseCommand, CommandError
from django.db import OperationalError
from django.db.models import F

from heartbeat import Heartbeat, LeaseLost
from rewards.lease import evict, extender, fenced, sql
from rewards.models import DailyReward, Player

JOB, TTL = "daily-reward", 30
# A day is due from this time on, in this zone: Django's connections are in UTC.
DUE, ZONE = "00:05", "Europe/Berlin"


class Command(BaseCommand):
    help = "Pays every player once for each day, also for those on which no node ran."

    def handle(self, **options):
        try:
            self.stdout.write(f"{JOB}: {daily_reward()}")
        except (LeaseLost, OperationalError) as error:
            # Nothing is to be undone: whoever is called next goes on from the checkpoint.
            raise CommandError(f"{JOB}: lost: {error}") from error


def daily_reward():
    asked = time.monotonic()
    node = f"{socket.gethostname()}:{os.getpid()}"
    token = sql("SELECT lease_acquire(%s, %s, make_interval(secs => %s))", JOB, node, TTL)
    if token is None:
        state = sql("SELECT state FROM lease_status WHERE name = %s", JOB)
        return "done already" if state == "completed" else "somebody else has it"
    with Heartbeat(JOB, token, extender(JOB, token), TTL, asked) as heartbeat:
        evict(JOB, token)
        # Decided once: neither midnight nor a long pause makes it another day.
        today = sql("SELECT (now() AT TIME ZONE %s - %s::interval)::date", ZONE, DUE)
        done = False
        while not done:
            heartbeat.check()
            done = pay_some(token, today)
    return "done"


def pay_some(token, today, chunk=1000):
    """One transaction: the rows and how far we are. True when today is done."""
    with fenced(JOB, token):
        # Django's connections give jsonb as text.
        state = json.loads(sql("SELECT lease_checkpoint(%s)", JOB) or "null")
        state = state or {"day": today.isoformat(), "after": 0}
        day = date.fromisoformat(state["day"])
        if day > today:  # nobody gets the lease before the next day is due
            until = "(%s::date + 1 + %s::time) AT TIME ZONE %s"
            query = f"SELECT lease_complete(%s, %s, until => {until})"
            return sql(query, JOB, token, today, DUE, ZONE)
        due = Player.objects.filter(pk__gt=state["after"]).order_by("pk")
        paid = list(due.values_list("pk", flat=True)[:chunk])
        DailyReward.objects.bulk_create(
            DailyReward(day=day, player_id=player, amount=100) for player in paid
        )
        # No fence on this one, which the shop writes as well: the COMMIT is refused all the same.
        Player.objects.filter(pk__in=paid).update(coins=F("coins") + 100)
        if paid:
            state["after"] = paid[-1]
        else:
            state = {"day": (day + timedelta(days=1)).isoformat(), "after": 0}
        sql("SELECT lease_checkpoint(%s, %s, %s)", JOB, token, json.dumps(state))
        return False
