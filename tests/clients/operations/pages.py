"""docs/operations.md and docs/stuck.md: each SQL block is run, as the role that its first line names, in the situation that its chapter is about, and has to help."""

import re

import psycopg
import yaml

from exporter import ALERTS, DOCS
from server import ACTORS, Database, psql, until

OPERATIONS = DOCS / "operations.md"
STUCK = DOCS / "stuck.md"


def anchor(heading):
    """As GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def chapters(page):
    """The SQL blocks of each chapter, by its anchor. What comes before the first one is the chapter ''."""
    found, chapter, block = {"": []}, "", None
    for line in page.read_text().splitlines():
        if block is not None:
            if line == "```":
                found[chapter].append("\n".join(block))
                block = None
            else:
                block.append(line)
        elif line == "```sql":
            block = []
        elif heading := re.match(r"#+ (.*)", line):
            if not line.startswith("# ") or found[""]:
                chapter = anchor(heading[1])
                found[chapter] = []
    return found


def role_blocks():
    return chapters(OPERATIONS)["the-role"]


class Blocks:
    """Those of one chapter, run one after the other with `next`."""

    def __init__(self, db, blocks):
        self.db, self.blocks, self.at = db, blocks, 0

    def next(self):
        block = self.blocks[self.at]
        self.at += 1
        actor = re.match(r"-- as (.*)", block)
        assert actor and actor[1] in ACTORS, f"the block names no role: {block}"
        user, options = ACTORS[actor[1]]
        return psql(self.db.name, block, user, options)


def acquire(db, name="daily-reward"):
    app = db.session()
    app(f"SELECT lease_acquire('{name}', 'node-1', '1 hour')")
    return app


def acquire_uncommitted(db):
    """A driver that opens a transaction by itself."""
    app = acquire(db)
    app("SELECT lease_release('daily-reward', 1)")
    app("BEGIN")
    app("SELECT lease_acquire('daily-reward', 'node-1', '1 hour')")
    return app


def write(db, token=1, hold=False):
    app = db.session()
    app("BEGIN")
    app(f"SELECT lease_fence('daily-reward', {token}, {hold})")
    app("UPDATE reward SET amount = amount + 1 WHERE player = 1")
    return app


def is_gone(db, session):
    until(
        lambda: db.super(f"SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {session.pid})"),
        "the session ends",
    )


def granted(db):
    return db.session()("SELECT lease_acquire('daily-reward', 'node-2', '1 hour')")


# A story for each chapter with blocks: what is stuck, and what became of it after the blocks.


def first_look(db, blocks):
    acquire(db)
    assert "daily-reward,held,node-1,1," in blocks.next()


def unfinished(db, blocks):
    def is_now():
        return Blocks(db, blocks.blocks).next().split(",", 3)

    assert is_now() == [""], "a row before anybody has asked"
    app = acquire(db)
    app("""SELECT lease_checkpoint('daily-reward', 1, '{"after": 2000}')""")
    frozen = write(db)
    app("SELECT lease_extend('daily-reward', 1, '1 ms')")
    until(lambda: is_now()[0] == "expired", "it expires")
    # Its holder is shown, with the transaction that is open, and with how far it came.
    state, holder, token, rest = blocks.next().split(",", 3)
    assert (state, holder, token) == ("expired", "node-1", "1") and rest.endswith(',1,0,1,"{""after"": 2000}"\n'), rest
    # That transaction may still commit.
    frozen("COMMIT")
    assert granted(db) == 2
    assert is_now()[:2] == ["held", "node-2"]
    blocks.next()
    # Nobody holds it any more, and what the program wrote is what there is: while it is completed, and after that.
    for token, hours, expected in ((2, 1, "completed"), (3, 0, "free")):
        db.session()(f"SELECT lease_complete('daily-reward', {token}, until => now() + '{hours} hours 1 ms')")
        until(lambda expected=expected: is_now()[0] == expected, f"it is {expected}")
        _, holder, shown, rest = is_now()
        assert (holder, shown) == ("", str(token)) and '""by"": ""node-2:4711""' in rest, rest
        db.admin("SELECT lease_force_release('daily-reward')")
        assert granted(db) == token + 1


def update_waits(db, blocks):
    acquire(db)
    frozen = write(db)
    db.admin("SELECT lease_force_release('daily-reward')")
    assert granted(db) == 2
    holder = db.session()
    holder("BEGIN")
    holder("SELECT lease_fence('daily-reward', 2)")
    holder.later("UPDATE reward SET amount = 7 WHERE player = 1 RETURNING amount")
    db.wait_blocked(holder)
    assert f"daily-reward,{frozen.pid},1," in blocks.next()
    assert blocks.next() == f"{frozen.pid}\n"
    assert holder.result() == 7
    holder("COMMIT")


def holder_gone(db, blocks):
    acquire(db)
    assert granted(db) is None
    assert blocks.next() == "t\n"
    assert granted(db) == 2


def returns_null(db, blocks):
    app = acquire_uncommitted(db)
    assert granted(db) is None
    assert blocks.next() == ""
    assert f"{app.pid},ops_app," in blocks.next()
    assert blocks.next() == f"{app.pid}\n"
    is_gone(db, app)
    assert (token := granted(db)) > 1
    # One that holds it is listed, and spared by the third block.
    keeper = write(db, token, hold=True)
    again = Blocks(db, blocks.blocks)
    assert f"daily-reward,{keeper.pid},{token}," in again.next()
    again.next()
    assert again.next() == ""


def line(db, blocks):
    holder = acquire_uncommitted(db)
    waiters = []
    for _ in range(2):
        waiters.append(
            db.session().later("SELECT lease_acquire('daily-reward', 'node-2', '1 hour', wait => '10 minutes')")
        )
        db.wait_in_line(waiters[-1])
    first, second = blocks.next().splitlines()
    assert first.startswith(f"daily-reward,1,{waiters[0].pid},") and first.endswith(
        f",Lock,transactionid,{{{holder.pid}}}"
    ), first
    assert second.startswith(f"daily-reward,2,{waiters[1].pid},") and ",Lock,userlock," in second, second
    # And once the holder has committed, it is waited for.
    holder("COMMIT")
    until(
        lambda: ",Extension,Extension,{}" in Blocks(db, blocks.blocks).next().splitlines()[0],
        "the first one waits for the holder",
    )
    assert blocks.next() == "t\n"
    try:
        waiters[0].result()
        raise AssertionError("it still waits")
    except psycopg.errors.QueryCanceled:
        pass


def completed(db, blocks):
    app = acquire(db)
    app("SELECT lease_complete('daily-reward', 1)")
    assert granted(db) is None
    assert blocks.next() == "t\n"
    assert granted(db) == 2


def lost_alive(db, blocks):
    app = acquire(db)
    app("BEGIN")
    app("SELECT lease_extend('daily-reward', 1)")
    assert f"{app.pid},ops_app," in blocks.next()
    assert "daily-reward,node-1," in blocks.next()


def refused(db, blocks):
    app = db.session()
    app("INSERT INTO entry VALUES (1, 7, 500)")
    blocks.next()
    assert granted(db) == 501


def fenced(db, blocks):
    psql(db.name, "CREATE TABLE reward_child () INHERITS (reward)", options="-c role=ops_owner")
    assert "child reward_child: INSERT" in blocks.next()
    blocks.next()
    again = Blocks(db, blocks.blocks)
    assert again.next() == "reward,daily-reward,transaction,\n"


def release_hangs(db, blocks):
    acquire(db)
    keeper = write(db, hold=True)
    hanging = db.session("ops_admin").later("SELECT lease_force_release('daily-reward')")
    db.wait_blocked(hanging)
    assert blocks.next() == f"{keeper.pid},t\n"
    assert hanging.result() is True


def prepared(db, blocks):
    acquire(db)
    write(db)("PREPARE TRANSACTION 'payout-17'")
    db.session()("SELECT lease_extend('daily-reward', 1, '1 ms')")
    until(lambda: db.super("SELECT state = 'expired' FROM lease_status"), "it expires")
    assert granted(db) is None
    assert "payout-17,ops_app," in blocks.next()
    blocks.next()
    assert granted(db) == 2


def session_bound(db, blocks):
    app = db.session()
    app("SELECT lease_acquire_session('importer', 'node-1')")
    assert f"importer,node-1,{app.pid}," in blocks.next()
    assert blocks.next() == "t\n"
    is_gone(db, app)
    assert db.session()("SELECT lease_acquire('importer', 'node-2', '1 hour')") == 2


def grows(db, blocks):
    acquire(db)
    reader = db.session()
    reader("BEGIN ISOLATION LEVEL REPEATABLE READ")
    reader("SELECT 1")
    writer = write(db)
    rows = blocks.next().splitlines()
    assert any(row.startswith("lease,") for row in rows), rows
    assert {pid for pid in (reader.pid, writer.pid) for row in rows if row.startswith(f"session,{pid},")} == {
        reader.pid,
        writer.pid,
    }, rows


def roles(db, blocks):
    """They have made the roles that all the others are run as."""
    blocks.at = len(blocks.blocks)
    assert db.super("SELECT pg_has_role('lock_ext_monitor', 'pg_monitor', 'USAGE')")


def take_overs(db, blocks):
    acquire(db)
    assert blocks.next().startswith("daily-reward,node-1,1,")


def tokens(db, blocks):
    acquire(db)
    assert blocks.next() == "1,0,2047,1\n"
    db.admin(f"SELECT lease_raise_token_floor({3 * 2**42 + 4})")
    assert granted(db) is None
    acquire(db, "other")
    assert Blocks(db, blocks.blocks).next() == f"{3 * 2**42 + 5},3,2044,5\n"
    # The last number is gone, and there is a new beginning.
    last = 2**53 - 1
    db.admin(f"SELECT lease_raise_token_floor({last - 1})")
    acquire(db, "account:7")
    db.session()(f"INSERT INTO entry VALUES (1, 7, {last})")
    try:
        acquire(db, "one-more")
        raise AssertionError("there is a token above the last one")
    except psycopg.Error as error:
        assert error.sqlstate == "2200H", error
    blocks.next()
    acquire(db, "account:7")
    db.session()("UPDATE entry SET token = 1 WHERE id = 1")


def million(db, blocks):
    app = acquire(db, "old")
    app("SELECT lease_release('old', 1)")
    db.super("UPDATE lock_ext.lease SET released_at = now() - interval '8 days'")
    app("SELECT once('a')")
    db.super("UPDATE lock_ext.once_key SET done_at = now() - interval '91 days'")
    assert blocks.next() == "1,1\n"


STORIES = {
    OPERATIONS: {
        "the-role": roles,
        "take-overs": take_overs,
        "tokens": tokens,
        "a-million-leases": million,
    },
    STUCK: {
        "": first_look,
        "the-job-did-not-run-or-not-finish-last-night": unfinished,
        "why-does-the-new-holders-update-wait": update_waits,
        "the-holder-is-gone-how-is-its-lease-freed": holder_gone,
        "why-does-lease_acquire-return-null-although-nobody-holds-the-lease": returns_null,
        "why-does-nobody-move-up-in-the-line": line,
        "the-job-is-shown-as-completed-how-do-i-run-it-again": completed,
        "why-was-the-lease-lost-although-the-worker-was-alive": lost_alive,
        "why-was-my-write-refused": refused,
        "is-the-table-really-fenced": fenced,
        "lease_force_release-or-lease_release-hangs": release_hangs,
        "a-prepared-transaction-keeps-the-lease": prepared,
        "why-does-a-lease-that-is-bound-to-a-session-not-end": session_bound,
        "why-does-the-table-lock_extlease-grow": grows,
    },
}


def check(report):
    for page, stories in STORIES.items():
        found = chapters(page)
        with report(f"{page.name}: each chapter with SQL has a story"):
            assert set(stories) == {name for name, blocks in found.items() if blocks}
        for name, story in stories.items():
            with report(f"{page.name}: {name or 'the first look'}"):
                db = Database("operations_story")
                try:
                    blocks = Blocks(db, found[name])
                    story(db, blocks)
                    assert blocks.at == len(blocks.blocks), "a block was not run"
                finally:
                    db.close()
    check_messages(report)
    check_links(report)


def check_messages(report):
    """What people search for has to be what PostgreSQL says."""
    text = STUCK.read_text()
    said = {
        "CREATE EXTENSION lock_ext_of_another_server": 'extension "lock_ext" is not available',
        "ALTER EXTENSION lock_ext UPDATE TO '99'": 'extension "lock_ext" has no update path from version ... to version ...',
        "CREATE FUNCTION gone() RETURNS int LANGUAGE c AS '$libdir/lock_ext', 'gone_wrapper'": 'could not find function "..." in file ".../lock_ext.so"',
        "SET search_path = ''; SELECT lease_acquire('a', 'b', '1 s')": "function lease_acquire(unknown, unknown, unknown) does not exist",
        "DROP EXTENSION lock_ext CASCADE; SET ROLE ops_app; CREATE EXTENSION lock_ext": 'permission denied to create extension "lock_ext"',
    }
    with report("stuck.md: the messages are those of PostgreSQL"):
        db = Database("operations_story")
        try:
            for statement, message in said.items():
                assert message in text, f"not on the page: {message}"
                try:
                    psql(db.name, statement)
                    raise AssertionError(f"no error: {statement}")
                except RuntimeError as error:
                    pattern = re.escape(message).replace(re.escape("..."), ".*")
                    assert re.search(pattern, str(error).replace("lock_ext_of_another_server", "lock_ext")), error
        finally:
            db.close()


def check_links(report):
    with report("links: each leads to a chapter that is there"):
        known = {}
        for page in (*DOCS.glob("*.md"), DOCS.parent / "README.md"):
            known[page.name] = {anchor(heading) for heading in re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)}
        links = [
            (page.name, link) for page in (OPERATIONS, STUCK) for link in re.findall(r"\]\(([^)]*)\)", page.read_text())
        ]
        rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
        links += [("alerts.yml", rule["annotations"]["runbook"]) for rule in rules]
        assert len(links) > 30
        for source, link in links:
            path, _, part = link.partition("#")
            base = DOCS.parent if source == "alerts.yml" else DOCS
            assert not path or (base / path).exists(), f"{source}: {link}"
            page = (base / path).name if path else source
            assert not part or part in known[page], f"{source}: {link}"
