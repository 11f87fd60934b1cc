//! `lease_evict` in the states that a stale writer can be in. Idle in its transaction, with a frozen client, and of another role: in
//! `races/evict.rs`.

use lock_ext_sessions::{Answer, Asked, Client, Db, PgError, Refused, STALE, Session};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::task::JoinHandle;

use super::attach::family;
use super::tables::Shape;
use crate::CLIENT;

/// A partitioned table with a writer that has written row 1, and is stale when B has taken over.
struct Scene {
    db: Db,
    writer: Session,
    b: Session,
}

impl Scene {
    async fn set() -> Self {
        let db = Db::fresh().await;
        family(&db, Shape::Partitioned).await;
        let [writer, b] = db.sessions().await;
        db.watch
            .sql("INSERT INTO t VALUES (1, 0), (2, 0), (101, 0); SELECT fence_attach('t', 'j')")
            .await
            .unwrap();
        let t1 = writer.acq("j", "A", "60 s").await.granted();
        writer.sql("BEGIN").await.unwrap();
        writer.fence("j", t1).await.unwrap();
        writer.sql("UPDATE t SET v = 666 WHERE id = 1").await.unwrap();
        Self { db, writer, b }
    }

    /// What the writer does then, which it does not come back from.
    fn goes_on(&self, sql: &'static str) -> JoinHandle<Answer<()>> {
        self.writer.beside(move |writer| async move { writer.sql(sql).await })
    }

    async fn take_over(&self) -> i64 {
        self.db.watch.force("j").await.unwrap();
        self.b.acq("j", "B", "60 s").await.granted()
    }

    async fn evicts_the_writer(&self, token: i64) {
        assert_eq!(self.b.evict("j", token).await, Ok(vec![self.writer.pid()]));
        self.db.gone(self.writer.pid()).await;
        assert_eq!(self.b.evict("j", token).await, Ok(vec![]));
    }

    async fn b_writes(&self, token: i64) {
        self.b.sql("SET statement_timeout = '10s'; BEGIN").await.unwrap();
        self.b.fence("j", token).await.unwrap();
        self.b.sql("UPDATE t SET v = 5; COMMIT").await.expect("nobody has the rows any more");
        assert_eq!([self.db.v("t", 1).await, self.db.v("t", 101).await], [5, 5]);
    }
}

fn is_ended(answer: &Answer<()>) -> bool {
    answer.as_ref().is_err_and(|error| ["57P01", PgError::CLOSED].contains(&error.code.as_str()))
}

/// It waits for a row that somebody has who is no writer of ours.
#[tokio::test]
async fn a_writer_that_waits_for_a_row_lock_is_evicted() {
    let scene = Scene::set().await;
    let blocker = scene.db.session().await;
    blocker.sql("BEGIN; SELECT * FROM t WHERE id = 2 FOR UPDATE").await.unwrap();
    let doing = scene.goes_on("UPDATE t SET v = 666 WHERE id = 2");
    scene.db.blocked(&scene.writer).await;
    let token = scene.take_over().await;
    scene.evicts_the_writer(token).await;
    let ended = doing.await.unwrap();
    assert!(is_ended(&ended), "{ended:?}");
    blocker.rollback().await;
    scene.b_writes(token).await;
}

/// In a statement that goes on, after its write and inside of it.
#[tokio::test]
async fn a_writer_in_a_long_statement_is_evicted() {
    for long in [
        "SELECT pg_sleep(600)",
        "UPDATE t SET v = 666 WHERE id = 2 AND pg_sleep(600) IS NOT NULL",
        "DO $$ BEGIN LOOP PERFORM 1; END LOOP; END $$",
    ] {
        let scene = Scene::set().await;
        let doing = scene.goes_on(long);
        scene
            .db
            .until(
                "SELECT state = 'active' AND query = $2 FROM pg_stat_activity WHERE pid = $1",
                &[&scene.writer.pid(), &long],
            )
            .await;
        let token = scene.take_over().await;
        scene.evicts_the_writer(token).await;
        let ended = doing.await.unwrap();
        assert!(is_ended(&ended), "{long}: {ended:?}");
        scene.b_writes(token).await;
    }
}

/// The statement under which its first write is still going on counts as well.
#[tokio::test]
async fn a_writer_in_its_first_statement_is_evicted() {
    for shape in Shape::ALL {
        let db = Db::fresh().await;
        family(&db, shape).await;
        let [stale, b, admin] = db.sessions().await;
        admin
            .sql("INSERT INTO t VALUES (1, 0), (2, 0); SELECT fence_attach('t', 'j', 'token')")
            .await
            .unwrap();
        let t1 = stale.acq("j", "A", "60 s").await.granted();
        let update =
            format!("UPDATE t SET v = 666, token = {t1} WHERE id = 1 OR pg_sleep(600) IS NOT NULL");
        let doing = stale.beside(move |stale| async move { stale.sql(&update).await });
        db.until("EXISTS (SELECT FROM lease_writer WHERE pid = $1)", &[&stale.pid()]).await;
        admin.force("j").await.unwrap();
        let t2 = b.acq("j", "B", "60 s").await.granted();
        assert_eq!(b.evict("j", t2).await, Ok(vec![stale.pid()]), "{shape:?}");
        let ended = doing.await.unwrap();
        assert!(is_ended(&ended), "{ended:?}");
    }
}

/// A server process that does not run: it ends as soon as it does.
#[tokio::test]
async fn a_stopped_backend_ends_when_it_goes_on() {
    /// Wakes it up whatever becomes of the test.
    struct Stopped(Pid);
    impl Drop for Stopped {
        fn drop(&mut self) {
            let _ = kill(self.0, Signal::SIGCONT);
        }
    }
    let scene = Scene::set().await;
    let pid = scene.writer.pid();
    let stopped = Stopped(Pid::from_raw(pid));
    kill(stopped.0, Signal::SIGSTOP).expect("a process of the test's own server");
    let token = scene.take_over().await;
    assert_eq!(scene.b.evict("j", token).await, Ok(vec![pid]));
    // It cannot hear it yet, but is there to be seen, and to be told again.
    assert_eq!(scene.b.evict("j", token).await, Ok(vec![pid]));
    drop(stopped);
    scene.db.gone(pid).await;
    scene.b_writes(token).await;
}

/// A transaction that has failed has let go of everything already.
#[tokio::test]
async fn a_failed_writer_need_not_be_evicted() {
    let scene = Scene::set().await;
    scene.writer.sql("SELECT 1 / 0").await.refused("22012");
    let token = scene.take_over().await;
    assert_eq!(scene.b.evict("j", token).await, Ok(vec![]));
    scene.b_writes(token).await;
    scene.writer.rollback().await;
}

/// What was rolled back to a savepoint is nobody's write.
#[tokio::test]
async fn a_writer_of_a_rolled_back_savepoint_is_left_alone() {
    let scene = Scene::set().await;
    let w = &scene.writer;
    let t: i64 = w.one("SELECT token FROM lease_status WHERE name = 'j'", &[]).await.unwrap();
    w.sql("ROLLBACK; BEGIN; CREATE TEMP TABLE x (i int); SAVEPOINT s").await.unwrap();
    w.fence("j", t).await.unwrap();
    w.sql("UPDATE t SET v = 666 WHERE id = 1; ROLLBACK TO s").await.unwrap();
    let token = scene.take_over().await;
    assert_eq!(scene.b.evict("j", token).await, Ok(vec![]));
    scene.b_writes(token).await;
    w.commit().await.expect("it has not written under the lease");
}

/// A prepared transaction has no session to end. It keeps the lease until it is decided, and is shown.
#[tokio::test]
async fn a_prepared_writer_is_not_evicted_but_shown() {
    for end in ["COMMIT", "ROLLBACK"] {
        let db = Db::fresh().await;
        family(&db, Shape::Partitioned).await;
        let [a, b, admin] = db.sessions().await;
        admin.sql("INSERT INTO t VALUES (1, 0); SELECT fence_attach('t', 'j')").await.unwrap();
        let t1 = a.acq("j", "A", "60 s").await.granted();
        a.sql("BEGIN").await.unwrap();
        a.fence("j", t1).await.unwrap();
        a.sql("UPDATE t SET v = 5").await.unwrap();
        a.sql(&format!("PREPARE TRANSACTION '{}'", db.name())).await.unwrap();
        a.ext("j", t1, "1 ms").await.extended();
        db.expired("j").await;
        b.acq("j", "B", "60 s").await.busy();
        assert_eq!(admin.list::<i32>("SELECT lease_evict('j')", &[]).await, Ok(vec![]));
        let shown = admin
            .rows("SELECT pid, token, superseded FROM lease_writer WHERE name = 'j'", &[])
            .await
            .unwrap();
        assert_eq!(shown.len(), 1);
        let writer: (Option<i32>, i64, bool) = (shown[0].get(0), shown[0].get(1), shown[0].get(2));
        assert_eq!(writer, (None, t1, false), "without a session, and not superseded");
        let prepared = "SELECT count(*) FROM pg_prepared_xacts WHERE gid = $1";
        assert_eq!(admin.one::<i64>(prepared, &[&db.name()]).await, Ok(1));
        // An administrator's release waits for it like everybody else.
        let releasing = admin.beside(|admin| async move { admin.force("j").await });
        db.blocked(&admin).await;
        b.sql(&format!("{end} PREPARED '{}'", db.name())).await.unwrap();
        assert_eq!(releasing.await.unwrap(), Ok(true));
        assert_eq!(db.v("t", 1).await, if end == "COMMIT" { 5 } else { 0 });
        let t2 = b.acq("j", "B", "60 s").await.granted();
        a.fence("j", t1).await.refused(STALE);
        assert!(t2 > t1);
    }
}

/// All of them at once, and nobody else.
#[tokio::test]
async fn every_stale_writer_is_evicted_and_nobody_else() {
    let db = Db::fresh().await;
    family(&db, Shape::Partitioned).await;
    let [b, admin, current, reader] = db.sessions().await;
    admin.sql("INSERT INTO t SELECT g, 0 FROM generate_series(1, 20) g; SELECT fence_attach('t', 'j')").await.unwrap();
    let mut pids = Vec::new();
    let mut stale = Vec::new();
    for id in 1..=5 {
        let one = db.session().await;
        let token = one.acq("j", "A", "60 s").await.granted();
        one.sql("BEGIN").await.unwrap();
        one.fence("j", token).await.unwrap();
        one.sql(&format!("UPDATE t SET v = 666 WHERE id = {id}")).await.unwrap();
        admin.force("j").await.unwrap();
        pids.push(one.pid());
        stale.push(one);
    }
    let token = b.acq("j", "B", "60 s").await.granted();
    current.sql("BEGIN").await.unwrap();
    current.fence("j", token).await.unwrap();
    current.sql("UPDATE t SET v = 5 WHERE id = 9").await.unwrap();
    reader.sql("BEGIN; SELECT * FROM t").await.unwrap();
    let mut evicted = b.evict("j", token).await.unwrap();
    evicted.sort_unstable();
    pids.sort_unstable();
    assert_eq!(evicted, pids);
    for pid in pids {
        db.gone(pid).await;
    }
    current.commit().await.unwrap();
    reader.commit().await.unwrap();
}

/// Of a table without a fence nobody tells us what is written there; its rows are locked all the same.
#[tokio::test]
async fn who_has_declared_a_token_is_evicted_whatever_it_has_written() {
    for work in [
        "UPDATE plain SET v = 666 WHERE id = 1",
        "SAVEPOINT s; UPDATE plain SET v = 666 WHERE id = 1; RELEASE s",
        "SELECT v FROM plain WHERE id = 1 FOR UPDATE",
        "LOCK TABLE plain",
    ] {
        let db = Db::fresh().await;
        db.watch
            .sql("CREATE TABLE plain (id int, v int); INSERT INTO plain VALUES (1, 0)")
            .await
            .unwrap();
        let [b, second] = db.sessions().await;
        let mut frozen = Client::start(&db, CLIENT).await;
        let t1: i64 =
            frozen.ask("SELECT lease_acquire('j', 'A', '60 s')").await.unwrap().parse().unwrap();
        frozen.ask(&format!("BEGIN; SELECT lease_fence('j', {t1}); {work}")).await.unwrap();
        frozen.freeze().await;
        assert_eq!(second.evict("j", t1).await, Ok(vec![]), "its token is current");
        db.watch.force("j").await.unwrap();
        let t2 = b.acq("j", "B", "60 s").await.granted();
        b.sql("BEGIN").await.unwrap();
        b.fence("j", t2).await.unwrap();
        let waiting = b.beside(|b| async move { b.sql("UPDATE plain SET v = 5").await });
        db.blocked(&b).await;
        let shown = "SELECT ARRAY[pid::bigint, token, superseded::int::bigint] FROM lease_writer WHERE name = 'j' ORDER BY token";
        assert_eq!(
            second.list::<Vec<i64>>(shown, &[]).await,
            Ok(vec![vec![i64::from(frozen.backend()), t1, 1], vec![i64::from(b.pid()), t2, 0]]),
            "{work}"
        );
        assert_eq!(second.evict("j", t2).await, Ok(vec![frozen.backend()]), "{work}");
        assert_eq!(waiting.await.unwrap(), Ok(()), "{work}");
        b.commit().await.unwrap();
        assert_eq!(db.v("plain", 1).await, 5);
    }
}

/// A token that a rolled back savepoint has declared is none of the transaction's.
#[tokio::test]
async fn who_has_undone_its_declaration_is_left_alone() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t1 = a.acq("j", "A", "60 s").await.granted();
    a.sql("BEGIN; SAVEPOINT s; SAVEPOINT t").await.unwrap();
    a.fence("j", t1).await.unwrap();
    a.sql("RELEASE t").await.unwrap();
    let writers = "SELECT writers FROM lease_status WHERE name = 'j'";
    assert_eq!(b.one::<i64>(writers, &[]).await, Ok(1));
    a.sql("ROLLBACK TO s").await.unwrap();
    assert_eq!(b.one::<i64>(writers, &[]).await, Ok(0));
    db.watch.force("j").await.unwrap();
    let t2 = b.acq("j", "B", "60 s").await.granted();
    assert_eq!(b.evict("j", t2).await, Ok(vec![]));
    a.fence("j", t1).await.refused(STALE);
    a.rollback().await;
}

/// First it can be seen, then its token is looked at: a grant between the two would leave somebody whom nobody evicts.
#[tokio::test]
async fn a_writer_is_seen_before_its_token_is_looked_at() {
    for call in [
        "SELECT lease_fence('j', $1)",
        "SELECT fenced_update('t', $1, '{\"id\": 1}', '{\"v\": 5}')",
        "UPDATE t SET token = $1 WHERE id = 1",
        "SELECT lease_checkpoint('j', $1, '1')",
    ] {
        let db = Db::fresh().await;
        family(&db, Shape::Partitioned).await;
        let [a, locker] = db.sessions().await;
        locker
            .sql("INSERT INTO t VALUES (1, 0); SELECT fence_attach('t', 'j', 'token')")
            .await
            .unwrap();
        let t1 = a.acq("j", "A", "60 s").await.granted();
        locker.sql("BEGIN; LOCK TABLE lock_ext.lease").await.unwrap();
        let calling = a.beside(move |a| async move { a.exec(call, &[&t1]).await });
        db.blocked(&a).await;
        let shown = "SELECT count(*) FROM pg_locks WHERE locktype = 'userlock' AND mode = 'AccessShareLock' AND pid = $1";
        assert_eq!(locker.one::<i64>(shown, &[&a.pid()]).await, Ok(1), "{call}");
        locker.rollback().await;
        calling.await.unwrap().unwrap_or_else(|error| panic!("{call}: {error}"));
    }
}

/// Whom somebody is about to take the lease from is its holder no more, and the one who takes it is not stale.
#[tokio::test]
async fn a_predecessor_does_not_evict_who_is_taking_over() {
    let db = Db::fresh().await;
    db.watch.sql("CREATE TABLE plain (v int)").await.unwrap();
    let [a, b] = db.sessions().await;
    let t1 = a.acq("j", "A", "1 ms").await.granted();
    db.expired("j").await;
    b.sql("BEGIN").await.unwrap();
    let t2 = b.acq("j", "B", "60 s").await.granted();
    b.fence("j", t2).await.unwrap();
    b.sql("INSERT INTO plain VALUES (1)").await.unwrap();
    let superseded = "SELECT superseded FROM lease_writer WHERE name = 'j'";
    assert_eq!(db.watch.list::<bool>(superseded, &[]).await, Ok(vec![false]));
    a.evict("j", t1).await.refused(STALE);
    b.commit().await.expect("nobody has ended it");
    a.evict("j", t1).await.refused(STALE);
    assert_eq!(b.is_current("j", t2).await, Ok(true));
}

/// A cursor whose function writes, and fails in a savepoint: what its first rows did is the transaction's.
#[tokio::test]
async fn a_cursor_that_fails_in_a_savepoint_leaves_its_earlier_rows_evictable() {
    for hold in [false, true] {
        let db = Db::fresh().await;
        family(&db, Shape::Partitioned).await;
        let [a, b] = db.sessions().await;
        db.watch
            .sql(
                "INSERT INTO t VALUES (1, 0); SELECT fence_attach('t', 'j');
                 CREATE FUNCTION step(token bigint, hold boolean, i int) RETURNS int LANGUAGE plpgsql AS $$
                 BEGIN
                     IF i = 2 THEN RAISE 'boom'; END IF;
                     PERFORM lease_fence('j', token, hold);
                     UPDATE t SET v = 666 WHERE id = 1;
                     RETURN i;
                 END $$",
            )
            .await
            .unwrap();
        let t1 = a.acq("j", "A", "300 ms").await.granted();
        a.sql(&format!(
            "BEGIN; DECLARE c CURSOR FOR SELECT step({t1}, {hold}, i) FROM generate_series(1, 3) i; FETCH c; SAVEPOINT s"
        ))
        .await
        .unwrap();
        a.sql("FETCH c").await.refused("P0001");
        a.sql("ROLLBACK TO s").await.unwrap();
        db.expired("j").await;
        if hold {
            b.acq("j", "B", "60 s").await.busy();
            a.commit().await.expect("it holds the lease until it has ended");
            assert_eq!(db.v("t", 1).await, 666);
            continue;
        }
        let t2 = b.acq("j", "B", "60 s").await.granted();
        assert_eq!(b.evict("j", t2).await, Ok(vec![a.pid()]));
        db.gone(a.pid()).await;
        b.sql("BEGIN").await.unwrap();
        b.fence("j", t2).await.unwrap();
        b.sql("UPDATE t SET v = 5 WHERE id = 1; COMMIT").await.unwrap();
    }
}

/// The other way round: what a cursor did in a savepoint goes with it.
#[tokio::test]
async fn what_a_cursor_declared_in_a_savepoint_goes_with_it() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t1 = a.acq("j", "A", "60 s").await.granted();
    a.sql(&format!(
        "BEGIN; DECLARE c CURSOR FOR SELECT lease_fence('j', {t1}); SAVEPOINT s; FETCH c"
    ))
    .await
    .unwrap();
    let writers = "SELECT writers FROM lease_status WHERE name = 'j'";
    assert_eq!(b.one::<i64>(writers, &[]).await, Ok(1));
    a.sql("ROLLBACK TO s").await.unwrap();
    assert_eq!(b.one::<i64>(writers, &[]).await, Ok(0));
    db.watch.force("j").await.unwrap();
    let t2 = b.acq("j", "B", "60 s").await.granted();
    assert_eq!(b.evict("j", t2).await, Ok(vec![]));
    a.commit().await.unwrap();
}

/// VACUUM FULL and REINDEX of our tables do not wait for a client that stays away, and so nobody waits for them; afterwards it goes on, or is refused.
#[tokio::test]
async fn maintenance_of_our_tables_waits_for_no_frozen_writer() {
    let db = Db::fresh().await;
    family(&db, Shape::Partitioned).await;
    db.watch
        .sql("INSERT INTO t VALUES (1, 0); SELECT fence_attach('t', 'j', 'token')")
        .await
        .unwrap();
    let [a, b, admin] = db.sessions().await;
    admin.sql("SET lock_timeout = '20 s'").await.unwrap();
    for work in [
        "SELECT lease_fence('j', $1)",
        "SELECT lease_fence('j', $1, hold => true)",
        "UPDATE t SET v = v + 1, token = $1 WHERE id = 1",
        "SELECT fenced_update('t', $1, '{\"id\": 1}', '{\"v\": 5}')",
        "SELECT lease_extend('j', $1)",
        "SELECT lease_is_current('j', $1)",
        "SELECT lease_release('j', $1)",
        "SELECT fence_observe('r', $1)",
        "SELECT count(*) FROM lease_status WHERE token = $1",
    ] {
        for is_superseded in [false, true] {
            let token = a.acq("j", "A", "60 s").await.granted();
            a.sql("BEGIN").await.unwrap();
            a.exec(work, &[&token]).await.unwrap_or_else(|error| panic!("{work}: {error}"));
            for maintenance in [
                "VACUUM FULL lock_ext.lease",
                "REINDEX TABLE lock_ext.lease",
                "VACUUM FULL lock_ext.observed_token",
            ] {
                admin
                    .sql(maintenance)
                    .await
                    .unwrap_or_else(|error| panic!("{work}, {maintenance}: {error}"));
            }
            if is_superseded && !work.contains("release") {
                db.watch.force("j").await.unwrap();
                b.acq("j", "B", "60 s").await.granted();
            }
            let commit = a.commit().await;
            let is_refused = is_superseded
                && ["UPDATE", "SELECT fenced_update", "SELECT lease_extend"]
                    .iter()
                    .any(|start| work.starts_with(start));
            let expected = if is_refused { Err(STALE) } else { Ok(()) };
            assert_eq!(
                commit.as_ref().map(|_| ()).map_err(|e| e.code.as_str()),
                expected,
                "{work}"
            );
            db.watch.force("j").await.unwrap();
        }
    }
}
