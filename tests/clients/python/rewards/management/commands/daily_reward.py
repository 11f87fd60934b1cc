# [cron]
import json
import socket
import time
from datetime import date, timedelta

from django.core.management.base import BaseCommand

from heartbeat import Heartbeat
from rewards.lease import extender, fenced, sql
from rewards.models import DailyReward, Player

JOB = "daily-reward"
TTL = 30


class Command(BaseCommand):
    help = "Pays every player once for each day. All nodes call it, as often as they like."

    def handle(self, **options):
        asked = time.monotonic()
        query = "SELECT lease_acquire(%s, %s, make_interval(secs => %s))"
        token = sql(query, JOB, socket.gethostname(), TTL)
        if token is None:
            return  # another node is at it, or it is done for today
        with Heartbeat(extender(JOB, token), TTL, asked) as heartbeat:
            done = False
            while not done:
                heartbeat.check()
                done = pay_some(token)


def pay_some(token, chunk=1000):
    """One transaction: the rows and how far we are. True when today is done."""
    with fenced(JOB, token):
        today = sql("SELECT current_date")
        # Django's connections give jsonb as text.
        state = json.loads(sql("SELECT lease_checkpoint(%s)", JOB) or "null")
        state = state or {"day": today.isoformat(), "after": 0}
        day = date.fromisoformat(state["day"])
        players = Player.objects.filter(pk__gt=state["after"]).order_by("pk")[:chunk]
        paid = [DailyReward(day=day, player=player, amount=100) for player in players]
        DailyReward.objects.bulk_create(paid)
        if paid:
            state["after"] = paid[-1].player_id
        else:  # the next day, which is in the past where the job did not run for a while
            day += timedelta(days=1)
            state = {"day": day.isoformat(), "after": 0}
        sql("SELECT lease_checkpoint(%s, %s, %s)", JOB, token, json.dumps(state))
        done = day > today
        if done:
            sql("SELECT lease_complete(%s, %s, until => %s)", JOB, token, day)
    return done


# [end cron]
