"""The scenarios, the same for every stack.

A stack is a module with STACK, VERSION, REFUSED (the class of a refusal as the application
sees it), RETRIED (the classes that are tried again by habit), sqlstate(error) and a class Node:
one node of the application with a connection of its own, whose methods are written as a user
of the driver would write them. What is peculiar to a stack it tests in functions of its own:
also_grant(rival) is called after `grant`, and grant(stack, rival) instead of it.
"""

import sys
import threading
import time
import traceback
from datetime import timedelta

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from harness import BIGGEST, FLOOR, Rival, Skip, check, equal, error_of, until
from heartbeat import Heartbeat, LeaseLost

TTL = timedelta(seconds=30)
SHORT = timedelta(milliseconds=200)


def is_refusal(stack, error):
    equal((type(error), stack.sqlstate(error)), (stack.REFUSED, "LX001"))
    check(not isinstance(error, stack.RETRIED), "taken for what may be tried again")


def grant(stack, rival):
    node = stack.Node()
    # Tokens stay below 2^53. All scenarios after this one work with tokens of that size.
    rival.value("SELECT lease_raise_token_floor(%s)", FLOOR)
    token = node.acquire("grant", TTL)
    equal((type(token), token), (int, FLOOR + 1))
    equal(node.acquire("grant", TTL), None)
    check(node.extend("grant", token), "not held")
    check(not node.extend("grant", BIGGEST), "held under a token of nobody")
    equal(node.biggest(BIGGEST), BIGGEST)
    check(node.acquire_seconds("seconds", 30), "not granted for a number of seconds")
    equal(rival.value("SELECT ttl FROM lease_status WHERE name = 'seconds'"), TTL)
    node.close()


def heartbeat(stack, rival):
    """The stack's own extend() in a thread, while the first connection is busy."""
    rival.table("heartbeat")
    node, ttl = stack.Node(), 1.5
    asked = time.monotonic()
    token = node.acquire("heartbeat", timedelta(seconds=ttl))
    extend = stack.extender("heartbeat", token)
    with Heartbeat("heartbeat", token, extend, ttl, asked) as beat:
        node.fenced("heartbeat", token, [1], before_commit=node.sleep_2_s)
        beat.check()
        equal(rival.state("heartbeat"), "held")
        rival.take_over("heartbeat")
        until(lambda: not beat.is_alive())
        equal(type(error_of(beat.check)), LeaseLost)

    # No answer to the heartbeat: the own deadline ends the work, whatever the thread does.
    rival.value("SELECT lease_force_release('heartbeat')")
    asked = time.monotonic()
    token = node.acquire("heartbeat", timedelta(seconds=ttl))
    extend = stack.extender("heartbeat", token)
    with Heartbeat("heartbeat", token, extend, ttl, asked) as beat:
        with rival.conn.transaction():
            rival.conn.execute("LOCK TABLE lock_ext.lease IN ACCESS EXCLUSIVE MODE")
            until(lambda: time.monotonic() > asked + ttl)
            equal(type(error_of(beat.check)), LeaseLost)
            check(beat.is_alive(), "the heartbeat had an answer")

    # Work that hangs, while the heartbeat could go on for ever: others shall have the lease.
    rival.value("SELECT lease_force_release('heartbeat')")
    asked = time.monotonic()
    token = node.acquire("heartbeat", timedelta(seconds=ttl))
    extend = stack.extender("heartbeat", token)
    with Heartbeat("heartbeat", token, extend, ttl, asked, patience=ttl) as beat:
        until(lambda: not beat.is_alive())
        rival.take_over_expired("heartbeat")
        error = error_of(beat.check)
        equal(type(error), LeaseLost)
        check(f"lease heartbeat, token {token}: no work was reported" in str(error), error)
    equal(rival.rewards(), [(1, 100)])
    node.close()


def fenced_transaction(stack, rival):
    rival.table("fenced")
    node = stack.Node()
    token = node.acquire("fenced", TTL)
    error = error_of(node.save, 1)
    equal((type(error), stack.sqlstate(error)), (stack.REFUSED, "LX003"))
    node.fenced("fenced", token, [1, 2])
    # Once more, so that an ORM updates what it has inserted.
    node.fenced("fenced", token, [2], amount=200)
    error = error_of(node.save, 3)  # the fence has gone with its transaction
    equal(stack.sqlstate(error), "LX003")
    equal(rival.rewards(), [(1, 100), (2, 200)])
    node.close()


def fenced_column(stack, rival):
    rival.table("column", "token")
    node = stack.Node()
    token = node.acquire("column", TTL)
    node.save_by_column(1, 100, token)
    node.save_by_column(1, 200, token)
    equal(rival.rows("SELECT player, amount, token FROM reward"), [(1, 200, token)])
    later = rival.take_over("column")
    is_refusal(stack, error_of(node.save_by_column, 1, 300, token))
    node.save_by_column(1, 400, later)
    equal(rival.rows("SELECT player, amount, token FROM reward"), [(1, 400, later)])
    node.close()


def refused_write(stack, rival):
    rival.table("refused")
    node = stack.Node()
    token = node.acquire("refused", SHORT)
    later = rival.take_over_expired("refused")
    is_refusal(stack, error_of(node.fenced, "refused", token, [1]))  # at lease_fence

    rival.value("SELECT lease_release('refused', %s)", later)
    token = node.acquire("refused", TTL)
    attempts = []

    def work():
        attempts.append(token)
        take_over = (lambda: rival.take_over("refused")) if len(attempts) == 1 else None
        node.fenced("refused", token, [1], before_write=take_over)

    # The usual way: what may be tried again is tried again.
    habit = retry_if_exception_type(stack.RETRIED)
    retry = Retrying(retry=habit, stop=stop_after_attempt(3), reraise=True)
    is_refusal(stack, error_of(retry, work))
    equal(len(attempts), 1)
    equal(rival.rewards(), [])
    equal(node.one(), 1)
    node.close()


def refused_commit(stack, rival):
    rival.table("commit")
    node = stack.Node()
    token = node.acquire("commit", TTL)
    written = []

    def take_over():
        written.append(rival.value("SELECT count(*) FROM lease_writer WHERE name = 'commit'"))
        rival.take_over("commit")

    is_refusal(stack, error_of(lambda: node.fenced("commit", token, [1], before_commit=take_over)))
    equal(written, [1])  # so it was not the write that was refused
    equal(rival.rewards(), [])
    equal(node.one(), 1)
    node.close()


def once(stack, rival):
    rival.table("once", "token")
    node = stack.Node()
    token = node.acquire("once", TTL)
    check(not node.pay_once("payout", 1, token, roll_back=True), "it was rolled back")
    check(node.pay_once("payout", 1, token), "the first one")
    check(not node.pay_once("payout", 2, token), "the second one")
    equal(rival.rewards(), [(1, 100)])
    node.close()


def checkpoint(stack, rival):
    rival.table("checkpoint")
    node = stack.Node()
    token = node.acquire("checkpoint", TTL)
    equal(node.checkpoint("checkpoint"), None)
    node.fenced("checkpoint", token, [1, 2], checkpoint={"after_player": 2})

    def crash():
        rival.terminate(node.pid())

    # The second part is written, its checkpoint as well, and then the node dies.
    state = {"after_player": 4}
    error_of(
        lambda: node.fenced("checkpoint", token, [3, 4], checkpoint=state, before_commit=crash)
    )
    node.close()
    rival.value("SELECT lease_force_release('checkpoint')")
    other = stack.Node()
    token = other.acquire("checkpoint", TTL)
    equal(other.checkpoint("checkpoint"), {"after_player": 2})
    other.fenced("checkpoint", token, [3, 4], checkpoint=state)
    equal(other.checkpoint("checkpoint"), state)
    equal(len(rival.rewards()), 4)
    other.close()


def wait_timeout(stack, rival):
    node = stack.Node()
    token = rival.take_over("line")
    equal(node.acquire_waiting("line", TTL, timedelta(milliseconds=100)), None)
    in_line = lambda: rival.waiting("line") == 1  # noqa: E731
    for way, (ended, state) in stack.GIVING_UP.items():
        error = node.give_up(way, "line", in_line)
        equal((way, type(error), stack.sqlstate(error)), (way, ended, state))
        until(lambda: rival.waiting("line") == 0)
        equal(node.one(), 1)
    # The next one that waits is served, so nobody is before it.
    answer = []
    waiter = threading.Thread(
        target=lambda: answer.append(stack.wait_elsewhere("line", TTL, timedelta(seconds=20)))
    )
    waiter.start()
    until(in_line)
    rival.value("SELECT lease_release('line', %s)", token)
    waiter.join()
    equal(rival.rows("SELECT token FROM lease_status WHERE name = 'line'"), [(answer[0],)])
    node.close()


def lost_connection(stack, rival):
    rival.table("lost")
    node = stack.Node()
    token = node.acquire("lost", TTL)
    for when in "before_write", "before_commit":
        cut = {when: lambda node=node: rival.terminate(node.pid())}
        error = error_of(lambda node=node, cut=cut: node.fenced("lost", token, [1], **cut))
        check(isinstance(error, stack.LOST), repr(error))
        equal(rival.rewards(), [])
        node.close()
        node = stack.Node()
    # The lease is not the connection's: the same token goes on, until somebody takes over.
    node.fenced("lost", token, [1])
    equal(rival.rewards(), [(1, 100)])
    rival.take_over("lost")
    is_refusal(stack, error_of(node.fenced, "lost", token, [2]))
    node.close()


def migration(stack, rival):
    if not hasattr(stack, "migrate"):
        raise Skip("no migration tool")
    stack.migrate(rival)


SCENARIOS = (
    grant,
    heartbeat,
    fenced_transaction,
    fenced_column,
    refused_write,
    refused_commit,
    once,
    checkpoint,
    wait_timeout,
    lost_connection,
    migration,
)


def main(stack):
    """Prints a line for each scenario, and exits."""
    failed = False
    for scenario in SCENARIOS:
        name = scenario.__name__
        line = f"{stack.STACK} {stack.VERSION} - {name}"
        rival = Rival()
        try:
            getattr(stack, name, scenario)(stack, rival)
            if also := getattr(stack, "also_" + name, None):
                also(rival)
            print(f"ok {line}")
        except Skip as why:
            print(f"skip {line}: {why}")
        except (Exception, SystemExit) as error:
            failed = True
            traceback.print_exc()
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"not ok {line}: {why}")
        finally:
            rival.conn.close()
        sys.stdout.flush()
    sys.exit(failed)
