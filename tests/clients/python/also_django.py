"""The app of the page on Django: its migrations, its job, its models and its tests."""

import io
import json
import unittest
from datetime import timedelta

from django.core.management import CommandError, call_command
from django.db.models import F, ProtectedError

from harness import check, equal, error_of, frozen_in
from rewards.bonus import bonus
from rewards.lease import fenced, sql
from rewards.management.commands import daily_reward
from rewards.models import DailyReward, Player
from rewards.testing import FencedTestCase


def sqlstate(error):
    return getattr(error.__cause__, "sqlstate", None)


def command():
    """What cron would see."""
    out = io.StringIO()
    try:
        call_command("daily_reward", stdout=out)
    except CommandError as error:  # which manage.py prints without a traceback
        return str(error)
    return out.getvalue()


def migrate(rival):
    """Django's migrations up and down, the job of the recipe on what they made, and flush."""
    fences = "SELECT table_name::text, token_column FROM fence_status"
    fenced_now = [("rewards_dailyreward", "token")]
    call_command("migrate", "rewards", "0001", verbosity=0)
    rival.conn.execute("DROP TABLE IF EXISTS reward; DROP EXTENSION lock_ext")
    Player.objects.create(name="early")
    call_command("migrate", "rewards", verbosity=0)
    equal(rival.rows(fences), fenced_now)
    row = DailyReward(day="2026-01-01", player=Player.objects.get(), amount=100)
    equal(sqlstate(error_of(row.save)), "LX003")
    call_command("migrate", "rewards", "0001", verbosity=0)
    equal(rival.rows("SELECT FROM pg_extension WHERE extname = 'lock_ext'"), [])
    equal(rival.rows("SELECT FROM pg_trigger WHERE tgname LIKE '%%fence%%'"), [])
    call_command("migrate", "rewards", verbosity=0)
    equal(rival.rows(fences), fenced_now)
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)
    Player.objects.all().delete()
    daily_job(rival)
    deleted_player(rival)
    fenced_test_case(rival)
    call_command("migrate", "rewards", "zero", verbosity=0)


def daily_job(rival):
    """For today and for two days that it has missed, with a take-over on the way."""
    job = daily_reward.JOB
    Player.objects.bulk_create(Player(name=f"player {n}") for n in range(5))
    token = rival.take_over(job)
    today = rival.value("SELECT (now() AT TIME ZONE 'Europe/Berlin' - interval '00:05')::date")
    two_days_ago = json.dumps({"day": (today - timedelta(days=2)).isoformat(), "after": 0})
    sql("SELECT lease_checkpoint(%s, %s, %s)", job, token, two_days_ago)
    equal(command(), f"{job}: somebody else has it\n")
    pay_some, calls = daily_reward.pay_some, []

    def pay_two(token, today):
        calls.append(token)
        if len(calls) == 3:
            rival.take_over(job)
        return pay_some(token, today, chunk=2)

    # The take-over comes when all but the COMMIT is done, and the table is not fenced.
    unfenced = [0]

    def write_and_lose(token, today):
        with fenced(job, token):
            Player.objects.update(coins=F("coins") + 1000)
            unfenced.append(rival.value("SELECT count(*) FROM lease_writer"))
            rival.take_over(job)

    for pay in pay_two, write_and_lose:
        daily_reward.pay_some = pay
        rival.value("SELECT lease_force_release(%s)", job)
        lost = command()
        check(lost.startswith(f"{job}: lost: lease {job}, token ") and "later" in lost, lost)
    daily_reward.pay_some = pay_some
    equal(len(unfenced), 2)
    equal(DailyReward.objects.count(), 4)
    rival.value("SELECT lease_force_release(%s)", job)

    # A predecessor that is frozen in its transaction has rows of both tables.
    insert = f"INSERT INTO rewards_dailyreward (day, player_id, amount) SELECT '{today}', id, 1"
    update = "UPDATE rewards_player SET coins = 0"
    with frozen_in(job, f"WITH locked AS ({update} RETURNING id) {insert} FROM locked") as wake_up:
        equal(command(), f"{job}: done\n")
        check("terminating connection" in str(wake_up()), "not evicted")
    equal(len(set(DailyReward.objects.values_list("day", "player"))), 15)
    equal(set(DailyReward.objects.values_list("amount", flat=True)), {100})
    equal(set(Player.objects.values_list("coins", flat=True)), {300})
    query = "SELECT (completed_until AT TIME ZONE 'Europe/Berlin')::text FROM lease_status"
    due = f"{today + timedelta(days=1)} 00:05:00"
    equal(rival.value(query + " WHERE name = %s", job), due)
    equal(command(), f"{job}: done already\n")
    equal([bonus() for _ in range(2)], ["done", "done already"])
    equal(set(Player.objects.values_list("coins", flat=True)), {310})


def deleted_player(rival):
    player, job = Player.objects.first(), daily_reward.JOB
    equal(type(error_of(player.delete)), ProtectedError)
    rewards = DailyReward.objects.filter(player=player)
    equal(sqlstate(error_of(rewards.delete)), "LX003")
    rival.value("SELECT lease_force_release(%s)", job)
    with fenced(job, rival.take_over(job)):
        rewards.delete()
        player.delete()
    equal(Player.objects.count(), 4)


def fenced_test_case(rival):
    """A test case of Django's own empties all tables with TRUNCATE, as flush does."""
    equal(type(error_of(lambda: call_command("flush", interactive=False))), CommandError)

    class Test(FencedTestCase):
        def test(self):
            token = sql("SELECT lease_acquire('daily-reward', 'test', '1 min', pause => '1 min')")
            self.assertTrue(token and sql("SELECT once('test')"))
            self.assertIsNone(sql("SELECT lease_checkpoint('daily-reward')"))
            player = Player.objects.create(name="player")
            with fenced("daily-reward", token):
                DailyReward.objects.create(day="2026-01-01", player=player, amount=100)
                sql("SELECT lease_checkpoint('daily-reward', %s, '1')", token)

    # What is here before it is another test's.
    sql("SELECT lease_force_release(name) FROM lease_status")
    sql("SELECT lease_prune('0 s')")
    result = unittest.TestResult()
    unittest.TestSuite([Test("test"), Test("test")]).run(result)
    check(result.testsRun == 2 and result.wasSuccessful(), result.errors + result.failures)
    equal((Player.objects.count(), DailyReward.objects.count()), (0, 0))
    row = DailyReward(day="2026-01-01", player_id=1, amount=100)
    equal(sqlstate(error_of(row.save)), "LX003")
