"""Each query gives the right numbers as a member of pg_monitor only, and each alert fires in its bad state and in no other."""

import contextlib
import re

import yaml

from exporter import ALERTS, COLLECTOR, QUERIES, Exporter, firing, promtool, value
from server import Database, Session, psql, until

EPOCH = 2**42


def good_state(db):
    """What is in order: a leader, a lease that is bound to a session, one that is completed, one that is free, a fenced write on its way."""
    app = db.session()
    app("SELECT lease_acquire('scheduler', 'node-1', '1 hour')")
    app("SELECT lease_acquire_session('importer', 'node-1')")
    app("SELECT lease_complete('done', lease_acquire('done', 'node-1', '1 hour'))")
    app("SELECT lease_release('free', lease_acquire('free', 'node-1', '1 hour'))")
    app("SELECT lease_acquire('daily-reward', 'node-1', '1 hour')")
    return app


def token(db, name):
    return db.super(f"SELECT token FROM lease_status WHERE name = '{name}'")


def write(db, player=2):
    """A worker in the middle of a fenced transaction."""
    worker = db.session()
    worker("BEGIN")
    worker(f"SELECT lease_fence('daily-reward', {token(db, 'daily-reward')})")
    worker(f"INSERT INTO reward VALUES ({player}, 100)")
    return worker


def take_over(db, name="daily-reward"):
    db.admin(f"SELECT lease_force_release('{name}')")
    return db.session()(f"SELECT lease_acquire('{name}', 'node-2', '1 hour')")


# The bad states. Each makes it, and undoes it after the yield.


@contextlib.contextmanager
def near_expiry(db):
    app = db.session()
    app(f"SELECT lease_extend('scheduler', {token(db, 'scheduler')}, '5 minutes')")
    yield
    app(f"SELECT lease_extend('scheduler', {token(db, 'scheduler')}, '1 hour')")


@contextlib.contextmanager
def expired(db):
    app = db.session()
    app(f"SELECT lease_extend('scheduler', {token(db, 'scheduler')}, '1 ms')")
    until(lambda: db.super("SELECT state = 'expired' FROM lease_status WHERE name = 'scheduler'"), "it expires")
    yield
    app("SELECT lease_acquire('scheduler', 'node-1', '1 hour')")


@contextlib.contextmanager
def granted_often(db):
    for _ in range(8):
        take_over(db, "scheduler")
    yield


@contextlib.contextmanager
def superseded(db):
    worker = write(db)
    take_over(db)
    yield
    worker("ROLLBACK")


@contextlib.contextmanager
def prepared(db):
    worker = write(db)
    worker("PREPARE TRANSACTION 'operations-1'")
    yield
    worker("ROLLBACK PREPARED 'operations-1'")


@contextlib.contextmanager
def waited_for_in_vain(db):
    holder, waiter = db.session(), db.session()
    holder("BEGIN")
    holder("SELECT lease_acquire('free', 'node-1', '1 hour')")
    waiter.later("SELECT lease_acquire('free', 'node-2', '1 hour', wait => '10 minutes')")
    db.wait_in_line(waiter)
    yield
    waiter.close()
    holder("ROLLBACK")


@contextlib.contextmanager
def long_wait(db):
    waiter = db.session().later("SELECT lease_acquire('scheduler', 'node-2', '1 hour', wait => '10 minutes')")
    db.wait_in_line(waiter)
    yield
    waiter.close()


@contextlib.contextmanager
def session_idle(db):
    waiter = db.session().later("SELECT lease_acquire('importer', 'node-2', '1 hour', wait => '10 minutes')")
    db.wait_in_line(waiter)
    yield
    waiter.close()


@contextlib.contextmanager
def fence_hole(db):
    db.super("ALTER TABLE reward DISABLE TRIGGER USER")
    yield
    db.super("ALTER TABLE reward ENABLE TRIGGER USER")


@contextlib.contextmanager
def fence_gone(db):
    db.super("SELECT fence_detach('reward')")
    yield
    db.super("SELECT fence_attach('reward', 'daily-reward')")


@contextlib.contextmanager
def fence_removable(db):
    db.super("ALTER TABLE reward OWNER TO ops_app")
    yield
    db.super("ALTER TABLE reward OWNER TO ops_owner")


@contextlib.contextmanager
def dead_tuples(db):
    reader, app = db.session("postgres"), db.session()
    reader("BEGIN ISOLATION LEVEL REPEATABLE READ")
    reader("SELECT 1")
    app("SET synchronous_commit = off")
    current = token(db, "scheduler")
    for _ in range(7000):
        app(f"SELECT lease_extend('scheduler', {current})")
    app.close()  # with it go its statistics
    until(lambda: dead(db) > 6000, "the statistics know the dead rows")
    yield
    reader("ROLLBACK")
    until(lambda: db.super("VACUUM lock_ext.lease") or dead(db) < 100, "VACUUM removes them")


def dead(db):
    return db.super("SELECT n_dead_tup FROM pg_stat_all_tables WHERE relid = 'lock_ext.lease'::regclass")


@contextlib.contextmanager
def many_idle_names(db):
    db.super("""INSERT INTO lock_ext.lease (token, grants, acquired_at, renewed_at, ttl, holder_role, name, holder, released_at)
                SELECT 1, 1, now(), now(), '1 s', 'ops_app', 'account:' || n, 'x', now() FROM generate_series(1, 100001) AS n""")
    yield
    db.super("DELETE FROM lock_ext.lease WHERE name LIKE 'account:%'")
    until(lambda: db.super("VACUUM lock_ext.lease") or dead(db) < 100, "VACUUM removes them")


@contextlib.contextmanager
def epochs_half_gone(db):
    db.admin(f"SELECT lease_raise_token_floor({1023 * EPOCH})")
    take_over(db)
    yield


@contextlib.contextmanager
def tokens_end(db):
    db.admin(f"SELECT lease_raise_token_floor({2020 * EPOCH})")
    take_over(db)
    yield


# In this order: no later token is lower, and the last state is good no more.
STATES = [
    (near_expiry, {"LockExtNearExpiry"}),
    (expired, {"LockExtLeaseNotHeld", "LockExtLeaseExpired"}),
    (granted_often, {"LockExtGrantedOften"}),
    (superseded, {"LockExtSupersededWriter", "LockExtSnapshotHeld"}),
    (prepared, {"LockExtPreparedWriter", "LockExtSnapshotHeld"}),
    (waited_for_in_vain, {"LockExtWaitedForInVain", "LockExtLongWait", "LockExtSnapshotHeld"}),
    (long_wait, {"LockExtLongWait", "LockExtSnapshotHeld"}),
    (session_idle, {"LockExtSessionIdle", "LockExtLongWait", "LockExtSnapshotHeld"}),
    (fence_hole, {"LockExtFenceHole"}),
    (fence_gone, {"LockExtFenceGone"}),
    (fence_removable, {"LockExtFenceRemovable"}),
    (dead_tuples, {"LockExtDeadTuples", "LockExtSnapshotHeld"}),
    (many_idle_names, {"LockExtManyIdleNames"}),
    (epochs_half_gone, {"LockExtEpochsHalfGone"}),
    (tokens_end, {"LockExtEpochsHalfGone", "LockExtTokensEnd"}),
]


def check_alerts(report):
    with report("alerts: rules are valid"):
        status, said = promtool("check", "rules", str(ALERTS))
        assert status == 0, said
    db = Database("operations_alerts")
    exporter = Exporter(db.name)
    fired = set()
    try:
        good_state(db)
        for state, expected in STATES:
            with report(f"alerts: {state.__name__}"):
                before = exporter.scrape()
                with state(db):
                    bad = exporter.scrape()
                if state is tokens_end:  # its good state is bad already
                    before = {key: number for key, number in before.items() if key[0] != "lock_ext_token_epochs_left"}
                wrong = firing(before, bad, expected)
                assert wrong is None, wrong
                fired |= expected
        with report("alerts: no_metrics"):
            wrong = firing(before, {}, {"LockExtNoMetrics", "LockExtLeaseNotHeld"})
            assert wrong is None, wrong
            fired |= {"LockExtNoMetrics"}
    finally:
        exporter.close()
        db.close()
    with report("alerts: each has a state that it fires in"):
        rules = [rule["alert"] for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
        assert set(rules) == fired, f"not tried: {set(rules) ^ fired}"


def check_values(report):
    db = Database("operations_values")
    exporter = Exporter(db.name)
    try:
        app = good_state(db)
        with report("values: leases by state"):
            near = app("SELECT lease_acquire('near', 'node-1', '1 hour')")
            app(f"SELECT lease_extend('near', {near}, '10 minutes')")
            gone = app("SELECT lease_acquire('gone', 'node-1', '1 hour')")
            app(f"SELECT lease_extend('gone', {gone}, '1 ms')")
            until(lambda: db.super("SELECT state = 'expired' FROM lease_status WHERE name = 'gone'"), "it expires")
            seen = exporter.scrape()
            states = {
                state: value(seen, f"lock_ext_leases_{state}")
                for state in ("held", "expired", "free", "completed", "bound_to_session")
            }
            assert states == {"held": 4, "expired": 1, "free": 1, "completed": 1, "bound_to_session": 1}, states
        with report("values: near expiry"):
            assert value(seen, "lock_ext_leases_near_expiry") == 1
            assert 590 < value(seen, "lock_ext_least_remaining_seconds") <= 600
            assert 0.16 < value(seen, "lock_ext_least_remaining_ratio") < 0.167
            assert 3000 <= value(seen, "lock_ext_lease_since_heartbeat_seconds", name="near") < 3060
            assert 590 < value(seen, "lock_ext_lease_remaining_seconds", name="near") <= 600
            assert value(seen, "lock_ext_lease_remaining_ratio", name="scheduler") > 0.9
            # Past its time to live it goes on counting.
            assert 3599 < value(seen, "lock_ext_lease_since_heartbeat_seconds", name="gone") < 3660
            assert 0 < value(seen, "lock_ext_lease_expired_seconds", name="gone") < 60
            assert value(seen, "lock_ext_lease_held", name="gone") == 0
            assert value(seen, "lock_ext_lease_held", name="near") == 1
        with report("values: grants and tokens"):
            assert value(seen, "lock_ext_lease_grants_total", name="free") == 1
            take_over(db, "free")
            seen = exporter.scrape()
            assert value(seen, "lock_ext_lease_grants_total", name="free") == 2
            assert value(seen, "lock_ext_token_highest") == token(db, "free") == 8
            assert value(seen, "lock_ext_tokens_left") == 2**53 - 1 - 8
            assert (value(seen, "lock_ext_token_epoch"), value(seen, "lock_ext_token_epochs_left")) == (0, 2047)
        with report("values: writers"):
            late, later = write(db, 2), write(db, 3)
            take_over(db)
            current = write(db, 4)
            seen = exporter.scrape()
            got = [value(seen, f"lock_ext_writers_{what}") for what in ("open", "superseded", "prepared")]
            assert got == [3, 2, 0], got
            assert 0 < value(seen, "lock_ext_writers_superseded_oldest_seconds") < 60
            assert value(seen, "lock_ext_lease_writers", name="daily-reward") == 3
            for session in (late, later):
                session("ROLLBACK")
            current("PREPARE TRANSACTION 'operations-2'")
            seen = exporter.scrape()
            got = [value(seen, f"lock_ext_writers_{what}") for what in ("open", "superseded", "prepared")]
            assert got == [1, 0, 1], got
            assert value(seen, "lock_ext_xmin_oldest_seconds", holder="prepared") > 0
            current("ROLLBACK PREPARED 'operations-2'")
        with report("values: waiters"):
            first = db.session().later("SELECT lease_acquire('importer', 'node-2', '1 hour', wait => '10 minutes')")
            db.wait_in_line(first)
            second = db.session().later("SELECT lease_acquire('importer', 'node-3', '1 hour', wait => '10 minutes')")
            db.wait_in_line(second)
            other = db.session().later("SELECT lease_acquire('scheduler', 'node-2', '1 hour', wait => '10 minutes')")
            db.wait_in_line(other)
            seen = exporter.scrape()
            assert value(seen, "lock_ext_waiters_waiting") == 3
            assert value(seen, "lock_ext_waiters_longest_line") == 2
            assert 0 < value(seen, "lock_ext_waiters_oldest_seconds") < 60
            assert value(seen, "lock_ext_lease_waiters", name="importer") == 2
            assert value(seen, "lock_ext_xmin_oldest_seconds", holder="waiter") > 0
            assert value(seen, "lock_ext_xmin_oldest_seconds", holder="session") == 0
            assert 0 < value(seen, "lock_ext_session_idle_waited_for_seconds") < 60
            assert value(seen, "lock_ext_leases_waited_for_in_vain") == 0
            for waiter in (second, first, other):
                waiter.close()
        with report("values: fences and tables"):
            assert [value(seen, f"lock_ext_fence_{what}") for what in ("fences", "holes", "removable")] == [1, 0, 0]
            with fence_hole(db), fence_removable(db):
                holes = exporter.scrape()
                assert [value(holes, f"lock_ext_fence_{what}") for what in ("fences", "holes", "removable")] == [
                    1,
                    1,
                    1,
                ]
            for table in ("lease", "lease_checkpoint", "once_key", "observed_token"):
                assert value(seen, "lock_ext_table_total_bytes", table_name=table) >= 8192
        with report("values: 50 names at most"):
            for n in range(60):
                app(f"SELECT lease_release('many-{n}', lease_acquire('many-{n}', 'node-1', '1 hour'))")
            app(f"SELECT lease_release('{'x' * 101}', lease_acquire('{'x' * 101}', 'node-1', '1 hour'))")
            names = {dict(labels)["name"] for name, labels in exporter.scrape() if name == "lock_ext_lease_held"}
            assert len(names) == 50 and "daily-reward" in names and "x" * 101 not in names, names
        with report("values: a role without pg_monitor sees nothing"):
            blind = psql(db.name, yaml.safe_load(QUERIES.read_text())["lock_ext"]["query"], options="-c role=ops_owner")
            assert blind.startswith("0,0,0,0"), blind
        with report("values: the role is no superuser"):
            assert db.super(
                "SELECT NOT rolsuper AND NOT rolcreaterole FROM pg_roles WHERE rolname = 'lock_ext_monitor'"
            )
            groups = db.super(
                "SELECT array_agg(roleid::regrole::text) FROM pg_auth_members WHERE member = 'lock_ext_monitor'::regrole"
            )
            assert groups == ["pg_monitor"], groups
        with report("values: a later epoch"):
            db.admin(f"SELECT lease_raise_token_floor({3 * EPOCH + 4})")
            take_over(db, "free")
            seen = exporter.scrape()
            assert value(seen, "lock_ext_token_highest") == 3 * EPOCH + 5
            assert value(seen, "lock_ext_tokens_left") == 2**53 - 1 - (3 * EPOCH + 5)
            assert (value(seen, "lock_ext_token_epoch"), value(seen, "lock_ext_token_epochs_left")) == (3, 2044)
        check_collector(report, db, exporter)
    finally:
        exporter.close()
        db.close()


def check_collector(report, db, exporter):
    """sql_exporter is not in Debian: its file has to say what the other one says, in the form that it asks for."""
    with report("sql_exporter: the fields that it knows"):
        collector = yaml.safe_load(COLLECTOR.read_text())
        assert set(collector) == {"collector_name", "min_interval", "metrics", "queries"}
        for metric in collector["metrics"]:
            assert set(metric) - {"key_labels"} == {"metric_name", "type", "help", "values", "query_ref"}, metric
            assert len(metric["values"]) == 1, metric
        assert len({metric["metric_name"] for metric in collector["metrics"]}) == len(collector["metrics"])
    queries = {query["query_name"]: query["query"] for query in collector["queries"]}
    with report("sql_exporter: the same queries as postgres_exporter"):
        assert queries == {name: entry["query"] for name, entry in yaml.safe_load(QUERIES.read_text()).items()}
    with report("sql_exporter: the same series as postgres_exporter"):
        monitor = Session(db.name, "lock_ext_monitor")
        series, helps = {}, {}
        for metric in collector["metrics"]:
            cursor = monitor.connection.execute(queries[metric["query_ref"]])
            columns = [column.name for column in cursor.description]
            helps[metric["metric_name"]] = metric["type"]
            for row in cursor.fetchall():
                of = dict(zip(columns, row, strict=True))
                labels = tuple(sorted((label, str(of[label])) for label in metric.get("key_labels", [])))
                series[metric["metric_name"], labels] = float(of[metric["values"][0]])
        monitor.close()
        scraped = {
            (name, tuple(pair for pair in labels if pair[0] != "server")): number
            for (name, labels), number in exporter.scrape().items()
        }
        assert series.keys() == scraped.keys(), series.keys() ^ scraped.keys()
        moving = re.compile("seconds|ratio|table_(live|dead|total)|age_transactions")
        differ = {key for key in series if not moving.search(key[0]) and series[key] != scraped[key]}
        assert not differ, differ
        assert helps == exporter.types()
