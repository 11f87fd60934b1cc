//! To the next major version of PostgreSQL, by pg_upgrade or by a dump: leases, checkpoints, keys and fences are there, and no token is
//! returned that was returned before.
//!
//! `LOCK_EXT_NEXT_PG_CONFIG` names the pg_config of that version, which has the extension installed; `scripts/postgresql.sh` builds one.
//! Where it is not set these tests say so, and are left out.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;
use std::time::SystemTime;

use lock_ext_ha::{Asked, NO_TOKEN, Recipe, Refused, STALE, Server, Session, Stop, Tokens, bindir};

/// The programs of the next version, if there is one.
fn next() -> Option<PathBuf> {
    let named = std::env::var_os("LOCK_EXT_NEXT_PG_CONFIG").filter(|path| !path.is_empty());
    let Some(pg_config) = named else {
        static SAID: Once = Once::new();
        // Not by a macro: what those print of a test that passes is not shown.
        SAID.call_once(|| {
            writeln!(std::io::stderr(), "upgrade: left out, LOCK_EXT_NEXT_PG_CONFIG is not set")
                .expect("somewhere to say it");
        });
        return None;
    };
    let said = Command::new(&pg_config).arg("--bindir").output().expect("pg_config runs");
    let next = PathBuf::from(String::from_utf8(said.stdout).expect("UTF-8").trim_end());
    assert_ne!(next, bindir(), "LOCK_EXT_NEXT_PG_CONFIG is this version");
    Some(next)
}

/// pg_upgrade wants both with checksums or both without, and versions differ in what they do by themselves.
async fn server(name: &str, bindir: Option<PathBuf>) -> Server {
    let initdb = vec!["--data-checksums".into()];
    Server::made(name, Recipe { bindir, initdb, ..Recipe::default() }).await
}

/// Rows of both tables, of a partition, and of a table with a lease for each row.
const TABLES: &str = "
    CREATE TABLE reward (player int PRIMARY KEY, amount int NOT NULL);
    CREATE TABLE entry (id int PRIMARY KEY, amount int NOT NULL, token bigint);
    CREATE TABLE score (player int NOT NULL, points int) PARTITION BY RANGE (player);
    CREATE TABLE score_low PARTITION OF score FOR VALUES FROM (0) TO (1000);
    CREATE TABLE account (id int PRIMARY KEY, owner text NOT NULL, token bigint);
    GRANT SELECT, INSERT, UPDATE, DELETE ON reward, entry, score, score_low, account TO worker";
const FENCES: &str = "
    SELECT fence_attach('reward', 'daily'), fence_attach('entry', 'daily', 'token'), fence_attach('score', 'daily'),
           fence_attach('account', 'account:', token_column => 'token', lease_column => 'owner')";
/// More than a page has room for, and not to be compressed to that.
const CHECKPOINT: &str =
    "SELECT jsonb_agg(md5(i::text)) || '{\"after_player\": 2}' FROM generate_series(1, 1000) AS i";

/// What the old server knew when it was stopped or dumped.
struct Before {
    tokens: Tokens,
    daily: i64,
    bound: i64,
    expires_at: Option<SystemTime>,
    checkpoint: String,
    rows: Vec<String>,
    fences: Vec<String>,
}

async fn rows(session: &Session) -> Vec<String> {
    let rows = "SELECT t::text FROM reward AS t UNION ALL SELECT t::text FROM entry AS t
                UNION ALL SELECT t::text FROM score AS t UNION ALL SELECT t::text FROM account AS t ORDER BY 1";
    session.list(rows, &[]).await.unwrap()
}

async fn checkpoint(session: &Session) -> String {
    session.one("SELECT lease_checkpoint('daily')::text", &[]).await.unwrap()
}

async fn fences(session: &Session) -> Vec<String> {
    let fences = "SELECT concat_ws('|', table_name, lease, token_column, lease_column, carried_by, hole) FROM fence_status ORDER BY 1";
    session.list(fences, &[]).await.unwrap()
}

async fn once(session: &Session, key: &str) -> bool {
    session.one("SELECT once($1)", &[&key]).await.unwrap()
}

async fn worker(server: &Server) -> Session {
    server.connect_as("game", "worker").await
}

/// Writes every table under a token, and in every way.
async fn write(session: &Session, token: i64, key: i32) {
    session.sql("BEGIN").await.unwrap();
    session.fence("daily", token).await.unwrap();
    for table in ["reward", "entry", "score"] {
        session.sql(&format!("INSERT INTO {table} VALUES ({key}, 1)")).await.unwrap();
    }
    session.sql("UPDATE entry SET amount = amount + 1; COMMIT").await.unwrap();
    let by_column = "UPDATE entry SET amount = amount + 1, token = $1";
    assert!(session.exec(by_column, &[&token]).await.unwrap() > 0);
    let by_call = "SELECT fenced_update('reward', $1, '{}', '{\"amount\": 5}', all_rows => true)";
    assert!(session.one::<i64>(by_call, &[&token]).await.unwrap() > 0);
}

/// A server of this version with the database `game`, in which a job is in the middle of its work.
async fn scene() -> (Server, Before) {
    let old = server("old", None).await;
    old.start().await;
    old.connect().await.sql("CREATE DATABASE game").await.unwrap();
    old.connect().await.sql("CREATE ROLE worker LOGIN").await.unwrap();
    let admin = old.connect_to("game").await;
    admin.sql("CREATE EXTENSION lock_ext").await.unwrap();
    admin.sql(TABLES).await.unwrap();
    admin.sql(FENCES).await.unwrap();

    let a = worker(&old).await;
    let mut tokens = Tokens::default();
    for _ in 0..50 {
        let token = tokens.returned(a.acq("often", "A", "1 h").await.granted());
        assert!(a.rel("often", token).await.unwrap());
    }
    let daily = tokens.returned(a.acq("daily", "A", "1 day").await.granted());
    write(&a, daily, 1).await;
    a.sql(&format!("SELECT lease_checkpoint('daily', {daily}, ({CHECKPOINT}))")).await.unwrap();
    let account = tokens.returned(a.acq("account:x", "A", "1 day").await.granted());
    a.exec("INSERT INTO account VALUES (1, 'x', $1)", &[&account]).await.unwrap();
    let done = tokens.returned(a.acq("done", "A", "1 day").await.granted());
    assert!(a.one::<bool>("SELECT lease_complete('done', $1)", &[&done]).await.unwrap());
    tokens.returned(a.acq("expired", "A", "1 ms").await.granted());
    assert!(once(&a, "payout").await);
    a.sql("SELECT fence_observe('etcd:/feed', 7001)").await.unwrap();
    // The last ones: one of a session, one of a transaction that never commits.
    let bound = tokens.returned(a.sacq("bound", "A").await.granted());
    assert_eq!(a.info("bound").await.unwrap().state, "held");
    a.sql("BEGIN").await.unwrap();
    tokens.returned(a.acq("undone", "A", "1 day").await.granted());
    a.sql("ROLLBACK").await.unwrap();
    assert!(tokens.highest() > 55);

    let before = Before {
        daily,
        bound,
        expires_at: a.info("daily").await.unwrap().expires_at,
        checkpoint: checkpoint(&a).await,
        rows: rows(&admin).await,
        fences: fences(&admin).await,
        tokens,
    };
    assert_eq!(before.fences.len(), 4, "no hole: {:?}", before.fences);
    assert!(before.checkpoint.len() > 30_000);
    // PostgreSQL 15.20 marks each new column with an option of its own, which pg_dump of 18.6 hands on and that server does not know.
    // Columns that are older have none, so let ours be such.
    let unmark =
        "UPDATE pg_attribute SET attoptions = NULL WHERE attoptions::text LIKE '{pg_attver=%}'";
    admin.sql(unmark).await.unwrap();
    (old, before)
}

/// The job goes on there, under the lease that it had, and then under others.
async fn goes_on(next: &Server, mut before: Before) {
    let admin = next.connect_to("game").await;
    let (a, b) = (worker(next).await, worker(next).await);
    assert_eq!(fences(&admin).await, before.fences);
    assert_eq!(rows(&admin).await, before.rows);
    assert_eq!(checkpoint(&b).await, before.checkpoint);
    assert!(!once(&b, "payout").await);
    assert!(once(&b, "another").await);
    b.sql("SELECT fence_observe('etcd:/feed', 7000)").await.refused(STALE);

    // Whoever held a lease holds it, unless that was bound to a session.
    let daily = b.info("daily").await.unwrap();
    assert_eq!((daily.state.as_str(), daily.token), ("held", Some(before.daily)));
    assert_eq!(daily.expires_at, before.expires_at);
    b.acq("daily", "B", "1 h").await.busy();
    b.acq("done", "B", "1 h").await.busy();
    a.ext("daily", before.daily).await.extended();
    write(&a, before.daily, 2).await;
    assert_ne!(b.info("bound").await.unwrap().state, "held");
    assert!(!b.is_current("bound", before.bound).await.unwrap());
    a.fence("bound", before.bound).await.refused(STALE);

    // Every token from here on is above all that were returned there.
    before.tokens.returned(b.acq("new", "B", "1 h").await.granted());
    for name in ["often", "expired", "undone"] {
        before.tokens.returned(b.acq(name, "B", "1 h").await.granted());
    }
    before.tokens.returned(b.sacq("bound", "B").await.granted());
    assert_eq!(b.info("bound").await.unwrap().session_pid, Some(b.pid()));
    assert!(b.rel("daily", before.daily).await.unwrap());
    let token = before.tokens.returned(b.acq("daily", "B", "1 h").await.granted());

    // The old rows are its own now.
    write(&b, token, 3).await;
    is_closed(&a, before.daily).await;
    assert_eq!(checkpoint(&b).await, before.checkpoint);
    admin.sql(FENCES).await.unwrap();
    assert_eq!(fences(&admin).await, before.fences, "nothing was to be done");
}

/// Nobody writes without a token, or under this one.
async fn is_closed(session: &Session, stale: i64) {
    session.fence("daily", stale).await.refused(STALE);
    for table in ["reward", "entry", "score", "score_low", "account"] {
        session.sql(&format!("DELETE FROM {table}")).await.refused(NO_TOKEN);
        session
            .sql(&format!("INSERT INTO {table} SELECT * FROM {table} LIMIT 1"))
            .await
            .expect_err("refused");
    }
    let by_column = "UPDATE entry SET amount = 9, token = $1";
    session.exec(by_column, &[&stale]).await.refused(STALE);
    let by_call = "SELECT fenced_update('reward', $1, '{\"player\": 1}', '{\"amount\": 9}')";
    session.exec(by_call, &[&stale]).await.refused(STALE);
}

#[tokio::test]
async fn pg_upgrade_takes_all_of_it_along() {
    let Some(programs) = next() else { return };
    let (old, before) = scene().await;
    old.stop(Stop::Fast).await;
    let new = server("new", Some(programs.clone())).await;
    let path = |path: PathBuf| path.to_str().expect("a plain path").to_owned();
    // Their sockets are in the directory of the new one.
    let arguments = [
        ["--old-bindir", &path(bindir())],
        ["--new-bindir", &path(programs)],
        ["--old-datadir", &path(old.data())],
        ["--new-datadir", &path(new.data())],
        ["--socketdir", &path(new.dir().to_owned())],
        ["--username", "postgres"],
    ];
    new.run("pg_upgrade", &arguments.concat()).await;
    new.start().await;
    goes_on(&new, before).await;
}

/// The next version with a database `game`, into which a dump is to be restored.
async fn empty(programs: &Path) -> Server {
    let new = server("new", Some(programs.to_owned())).await;
    new.start().await;
    new.connect().await.sql("CREATE DATABASE game").await.unwrap();
    new.connect().await.sql("CREATE ROLE worker LOGIN").await.unwrap();
    new
}

/// Dumps `game` with the programs of `by`.
async fn dump(old: &Server, by: &Server, options: &[&str]) -> String {
    let file = by.dir().join("dump").to_str().expect("a plain path").to_owned();
    let from = old.conninfo("game");
    by.run("pg_dump", &[&["--dbname", &from, "--file", &file], options].concat()).await;
    file
}

#[tokio::test]
async fn a_dump_of_the_whole_database_is_restored_by_psql() {
    let Some(programs) = next() else { return };
    let (old, before) = scene().await;
    let new = empty(&programs).await;
    let file = dump(&old, &new, &[]).await;
    new.run("psql", &["-X", "-v", "ON_ERROR_STOP=1", "--dbname", "game", "--file", &file]).await;
    goes_on(&new, before).await;
}

#[tokio::test]
async fn a_dump_made_by_the_old_version_is_restored_by_pg_restore() {
    let Some(programs) = next() else { return };
    let (old, before) = scene().await;
    let new = empty(&programs).await;
    let file = dump(&old, &old, &["--format", "custom"]).await;
    // The directories of servers are closed to others, but belong to the same user.
    new.run("pg_restore", &["--exit-on-error", "--dbname", "game", &file]).await;
    goes_on(&new, before).await;
}

/// All that is dumped of a schema but the schema itself, which every database has.
async fn restore_into_public(new: &Server, file: &str) {
    let list = new.run("pg_restore", &["--list", file]).await;
    let kept = list.lines().filter(|line| !line.contains(" SCHEMA - public "));
    let chosen = new.dir().join("list");
    std::fs::write(&chosen, kept.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let chosen = chosen.to_str().expect("a plain path");
    new.run("pg_restore", &["--exit-on-error", "--use-list", chosen, "--dbname", "game", file])
        .await;
}

/// With one schema the leases come along only if the extension is named as well.
#[tokio::test]
async fn a_dump_of_one_schema_and_the_extension_has_the_leases() {
    let Some(programs) = next() else { return };
    let (old, before) = scene().await;
    let new = empty(&programs).await;
    let file = dump(&old, &new, &["-Fc", "-n", "public", "-e", "lock_ext"]).await;
    restore_into_public(&new, &file).await;
    goes_on(&new, before).await;
}

/// Without it there are the rows and the fences, and nobody who holds anything.
#[tokio::test]
async fn a_dump_of_one_schema_alone_needs_the_extension_there_and_its_floor_raised() {
    let Some(programs) = next() else { return };
    let (old, before) = scene().await;
    let new = empty(&programs).await;
    let admin = new.connect_to("game").await;
    admin.sql("CREATE EXTENSION lock_ext").await.unwrap();
    let file = dump(&old, &new, &["-Fc", "-n", "public"]).await;
    restore_into_public(&new, &file).await;
    assert_eq!(fences(&admin).await, before.fences);
    assert_eq!(rows(&admin).await, before.rows);

    let b = worker(&new).await;
    assert_eq!(b.info("daily").await, None);
    is_closed(&b, before.daily).await;
    let low = b.acq("daily", "B", "1 h").await.granted();
    assert!(low < before.daily, "a fresh extension begins anew");
    // What an old token wrote is not overwritten under a lower one.
    b.exec("UPDATE entry SET amount = 0, token = $1", &[&low]).await.refused(STALE);
    let raise = "SELECT lease_raise_token_floor(max(token)) FROM (SELECT token FROM entry UNION ALL SELECT token FROM account) AS t";
    admin.sql(raise).await.unwrap();
    assert!(b.rel("daily", low).await.unwrap());
    let token = b.acq("daily", "B", "1 h").await.granted();
    assert!(token > before.daily);
    write(&b, token, 2).await;
    is_closed(&b, before.daily).await;
}

/// Into a database whose tables, fences and extension are made anew.
#[tokio::test]
async fn rows_alone_go_into_a_fresh_extension() {
    let Some(programs) = next() else { return };
    let (old, before) = scene().await;
    let new = empty(&programs).await;
    let admin = new.connect_to("game").await;
    admin.sql("CREATE EXTENSION lock_ext").await.unwrap();
    admin.sql(TABLES).await.unwrap();
    admin.sql(FENCES).await.unwrap();
    let file = dump(&old, &new, &["-Fc", "--data-only"]).await;

    // They are writes without a token for who does not switch the triggers off.
    let mut refused = new.program("pg_restore");
    refused.args(["--single-transaction", "--data-only", "--dbname", "game", &file]);
    let refused = tokio::task::spawn_blocking(move || refused.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("carries no fencing token"), "{said}");
    assert_eq!(rows(&admin).await, Vec::<String>::new());

    new.run(
        "pg_restore",
        &["--single-transaction", "--data-only", "--disable-triggers", "--dbname", "game", &file],
    )
    .await;
    goes_on(&new, before).await;
}
