"""The server under test: databases, roles, and sessions that do what workers do."""

import os
import subprocess
import threading
import time

import psycopg

BASE = "operations_base"
ROLES = ("lock_ext_monitor", "lock_ext_admin", "ops_admin", "ops_app", "ops_owner")
# Whom the first line of a block of the pages names, and how psql becomes that.
ACTORS = {
    "a superuser": ("postgres", ""),
    "a member of pg_monitor": ("lock_ext_monitor", ""),
    "an administrator": ("ops_admin", ""),
    "an application": ("ops_app", ""),
    "the owner": ("postgres", "-c role=ops_owner"),
}


def psql(database, script, user="postgres", options=""):
    """What psql prints as CSV without headers; an error is an exception with psql's message."""
    done = subprocess.run(
        ["psql", "-XqtA", "--csv", "-v", "ON_ERROR_STOP=1", "-U", user, "-d", database],
        input=script,
        capture_output=True,
        text=True,
        env=os.environ | {"PGOPTIONS": options},
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return done.stdout


def make_base(role_blocks):
    """A database with the extension, the roles as docs/operations.md makes them, and two fenced tables: the template of all others."""
    for name in psql("postgres", "SELECT datname FROM pg_database WHERE datname LIKE 'operations%'").split():
        psql("postgres", f"DROP DATABASE {name} WITH (FORCE)")
    for role in ROLES:
        psql("postgres", f"DROP ROLE IF EXISTS {role}")
    psql("postgres", f"CREATE DATABASE {BASE}")
    psql(BASE, "CREATE EXTENSION lock_ext")
    for block in role_blocks:
        psql(BASE, block)
    psql(
        BASE,
        """
        CREATE ROLE ops_admin LOGIN IN ROLE lock_ext_admin;
        CREATE ROLE ops_app LOGIN;
        CREATE ROLE ops_owner NOLOGIN;
        GRANT CREATE ON SCHEMA public TO ops_owner;
        SET ROLE ops_owner;
        CREATE TABLE reward (player int PRIMARY KEY, amount int);
        CREATE TABLE entry (id int PRIMARY KEY, account int, token bigint);
        INSERT INTO reward VALUES (1, 0);
        SELECT fence_attach('reward', 'daily-reward');
        GRANT ALL ON reward, entry TO ops_app;
        GRANT SELECT ON entry TO lock_ext_admin;
    """,
    )


def drop_all():
    for name in psql("postgres", "SELECT datname FROM pg_database WHERE datname LIKE 'operations%'").split():
        psql("postgres", f"DROP DATABASE {name} WITH (FORCE)")
    for role in ROLES:
        psql("postgres", f"DROP ROLE IF EXISTS {role}")


def until(condition, what, seconds=30):
    """Waits for a condition; never for a time."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"never happened: {what}")
        time.sleep(0.02)
    return found


class Session:
    """One connection in autocommit. `later` runs a statement that is going to wait, in a thread."""

    def __init__(self, database, user="ops_app"):
        # Nothing here takes as long: what waits for ever shall say so.
        self.connection = psycopg.connect(
            f"dbname={database} user={user}", autocommit=True, options="-c statement_timeout=60s"
        )
        self.pid = self.connection.info.backend_pid
        self.thread = self.answer = self.error = None

    def __call__(self, sql):
        cursor = self.connection.execute(sql)
        rows = cursor.fetchall() if cursor.description else []
        return rows[0][0] if rows else None

    def later(self, sql):
        def run():
            try:
                self.answer = self(sql)
            except psycopg.Error as error:
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        return self

    def result(self):
        self.thread.join(30)
        if self.thread.is_alive():
            raise AssertionError("a statement does not return")
        if self.error:
            raise self.error
        return self.answer

    def close(self):
        if self.thread and self.thread.is_alive():
            self.connection.cancel()
            self.thread.join(30)
        self.connection.close()


class Database:
    """A copy of the base with a name of its own, and all sessions that a test opens in it."""

    def __init__(self, name):
        self.name = name
        self.sessions = []
        psql("postgres", f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        psql("postgres", f"CREATE DATABASE {name} TEMPLATE {BASE}")
        self.super = self.session("postgres")
        self.admin = self.session("ops_admin")

    def session(self, user="ops_app"):
        session = Session(self.name, user)
        self.sessions.append(session)
        return session

    def wait_in_line(self, session):
        until(lambda: self.super(f"SELECT pid FROM lease_waiter WHERE pid = {session.pid}"), "the call stands in line")

    def wait_blocked(self, session):
        until(lambda: self.super(f"SELECT pg_blocking_pids({session.pid})"), "the statement waits for a lock")

    def close(self):
        for session in self.sessions:
            session.close()
        for gid in psql("postgres", f"SELECT gid FROM pg_prepared_xacts WHERE database = '{self.name}'").split():
            psql(self.name, f"ROLLBACK PREPARED '{gid}'")
        psql("postgres", f"DROP DATABASE {self.name} WITH (FORCE)")
