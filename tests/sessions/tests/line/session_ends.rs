//! Everything that ends a session, and with it the leases that are bound to it.

use std::time::{Duration, Instant};

use lock_ext_sessions::{Answer, Asked, Client, Db, PgError, Refused, STALE, Session, Way};
use nix::sys::signal::Signal;
use tokio::process::Command;

use super::scene::{asleep, has_no_lock, line_is_empty, pass, signal, stand, stand_bound};
use crate::CLIENT;

/// Refused from that moment, before anybody else took it, by every function and every way to write.
async fn is_over(db: &Db, other: &Session, name: &str, token: i64, case: &str) {
    assert_eq!(other.is_current(name, token).await, Ok(false), "{case}");
    for way in Way::ALL {
        let answer = other.fw(way, name, token, 1, 666).await;
        assert!(
            matches!(&answer, Err(error) if error.code == STALE),
            "{case}, {way:?}: {answer:?}"
        );
        assert_eq!(db.v(way.table(), 1).await, 0, "{case}");
    }
    other.cp(name, token, "666").await.refused(STALE);
    other.ext_as_granted(name, token).await.lost();
    other.ext(name, token, "60 s").await.lost();
    assert_eq!(other.rel(name, token).await, Ok(false), "{case}");
    assert_eq!(other.complete(name, token).await, Ok(false), "{case}");
    let shown: bool = other
        .one(
            "SELECT state <> 'held' AND NOT EXISTS (SELECT FROM lease_session WHERE name = $1)
               FROM lease_status WHERE name = $1",
            &[&name],
        )
        .await
        .unwrap();
    assert!(shown, "{case}: {:?}", other.info(name).await);
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// The client says goodbye.
    Disconnect,
    Terminate,
    /// The client is killed with SIGKILL.
    Kill,
    /// In an open transaction.
    KillInBlock,
    IdleTimeout,
    IdleInTransactionTimeout,
    DiscardAll,
    UnlockAll,
    /// In a transaction that is rolled back afterwards: these locks do not come back.
    UnlockAllInBlock,
}

const ENDS: [End; 9] = [
    End::Disconnect,
    End::Terminate,
    End::Kill,
    End::KillInBlock,
    End::IdleTimeout,
    End::IdleInTransactionTimeout,
    End::DiscardAll,
    End::UnlockAll,
    End::UnlockAllInBlock,
];

impl End {
    fn session_goes_on(self) -> bool {
        matches!(self, Self::DiscardAll | Self::UnlockAll | Self::UnlockAllInBlock)
    }

    async fn happens(self, db: &Db, a: &mut Client) {
        match self {
            Self::Disconnect => {
                // Its input ends, so it does.
                let backend = a.backend();
                *a = Client::start(db, CLIENT).await;
                db.gone(backend).await;
            }
            Self::Terminate => db.terminate(a.backend()).await,
            Self::Kill => {
                a.kill().await;
                db.gone(a.backend()).await;
            }
            Self::KillInBlock => {
                a.ask("BEGIN").await.unwrap();
                a.ask("SELECT 1").await.unwrap();
                a.kill().await;
                db.gone(a.backend()).await;
            }
            Self::IdleTimeout => {
                a.ask("SET idle_session_timeout = '300ms'").await.unwrap();
                db.gone(a.backend()).await;
            }
            Self::IdleInTransactionTimeout => {
                a.ask("SET idle_in_transaction_session_timeout = '300ms'").await.unwrap();
                a.ask("BEGIN").await.unwrap();
                db.gone(a.backend()).await;
            }
            Self::DiscardAll => drop(a.ask("DISCARD ALL").await.unwrap()),
            Self::UnlockAll => drop(a.ask("SELECT pg_advisory_unlock_all()").await.unwrap()),
            Self::UnlockAllInBlock => {
                for sql in ["BEGIN", "SELECT pg_advisory_unlock_all()", "ROLLBACK"] {
                    a.ask(sql).await.unwrap();
                }
            }
        }
    }
}

async fn bound(client: &mut Client, name: &str) -> i64 {
    let reply = client.ask(&format!("SELECT lease_acquire_session('{name}', 'A')")).await;
    reply.expect("an answer").parse().expect("granted")
}

#[tokio::test]
async fn its_token_is_refused_from_the_end_of_its_session() {
    for end in ENDS {
        let db = Db::fresh().await;
        db.fence("s").await;
        let [b, c, open] = db.sessions().await;
        let mut a = Client::start(&db, CLIENT).await;
        let t = bound(&mut a, "s").await;
        let case = format!("{end:?}");
        // A transaction of another connection that has written under it, and one that only has the fence.
        open.sql("BEGIN").await.unwrap();
        open.fw_in_block(Way::Stamped, "s", t, 2, 666).await.unwrap();
        let fenced = db.session().await;
        fenced.sql("BEGIN").await.unwrap();
        fenced.fence("s", t).await.unwrap();

        end.happens(&db, &mut a).await;
        is_over(&db, &b, "s", t, &case).await;
        fenced.sql("UPDATE plain SET v = 666 WHERE id = 3").await.refused(STALE);
        open.commit().await.refused(STALE);
        assert_eq!([db.v("stamped", 2).await, db.v("plain", 3).await], [0, 0], "{case}");

        // Anybody's, at once, whatever kind.
        let t2 = c.acq("s", "C", "60 s").await.granted();
        assert!(t2 > t, "{case}");
        assert_eq!(c.fw(Way::Stamped, "s", t2, 2, 5).await, Ok(1), "{case}");
        if end.session_goes_on() {
            has_no_lock(&db, a.backend()).await;
            let busy = a.ask("SELECT coalesce(lease_acquire_session('s', 'A'), 0)").await;
            assert_eq!(busy, Ok("0".to_owned()), "{case}");
            assert_eq!(a.ask(&format!("SELECT lease_release('s', {t})")).await, Ok("f".to_owned()));
            assert_eq!(c.rel("s", t2).await, Ok(true));
            let t3 = bound(&mut a, "s").await;
            assert!(t3 > t2, "{case}: the session can have it again");
            assert_eq!(b.is_current("s", t3).await, Ok(true));
        }
    }
}

/// Who waits is woken by the end of the session, before it would look by itself.
#[tokio::test]
async fn the_end_of_a_session_wakes_the_head_at_once() {
    for end in [End::Disconnect, End::Terminate, End::Kill, End::KillInBlock] {
        let db = Db::fresh().await;
        let [w, v] = db.sessions().await;
        let mut fast = 0;
        for round in 0..6 {
            let mut a = Client::start(&db, CLIENT).await;
            let t = bound(&mut a, "s").await;
            let other = bound(&mut a, "other").await;
            let begun = Instant::now();
            let head = match round % 2 {
                0 => stand(&db, &w, "s", "40 s").await,
                _ => stand_bound(&db, &w, "s", "40 s").await,
            };
            let for_other = stand(&db, &v, "other", "40 s").await;
            asleep(&db, w.pid()).await;
            end.happens(&db, &mut a).await;
            let t2 = head.await.unwrap().granted();
            // It looks at the session every half second by itself.
            fast += i32::from(begun.elapsed() < Duration::from_millis(450));
            assert!(t2 > t);
            assert_eq!(w.rel("s", t2).await, Ok(true));
            let t3 = for_other.await.unwrap().granted();
            assert!(t3 > other);
            assert_eq!(v.rel("other", t3).await, Ok(true));
        }
        assert!(fast >= 2, "{end:?}: woken before the next look in {fast} of 6 rounds");
    }
}

/// A session that drops its locks says nothing to anybody: the head asks.
#[tokio::test]
async fn a_reset_is_noticed_by_those_who_wait() {
    let db = Db::fresh().await;
    let [w, v] = db.sessions().await;
    for end in ENDS.into_iter().filter(|end| end.session_goes_on()) {
        let mut a = Client::start(&db, CLIENT).await;
        let t = bound(&mut a, "s").await;
        let head = stand(&db, &w, "s", "40 s").await;
        let next = stand(&db, &v, "s", "40 s").await;
        asleep(&db, w.pid()).await;
        let begun = Instant::now();
        end.happens(&db, &mut a).await;
        let t2 = head.await.unwrap().granted();
        assert!(begun.elapsed() < Duration::from_secs(5), "{end:?}: {:?}", begun.elapsed());
        assert!(t2 > t && !next.is_finished());
        assert_eq!(w.rel("s", t2).await, Ok(true));
        let t3 = next.await.unwrap().granted();
        assert_eq!(v.rel("s", t3).await, Ok(true));
    }
}

/// A stopped client has an open connection, so its session is there. What bounds that is a setting of the server.
#[tokio::test]
async fn a_stopped_client_holds_on_until_a_setting_ends_it() {
    let db = Db::fresh().await;
    let [b, w] = db.sessions().await;
    let mut a = Client::start(&db, CLIENT).await;
    let t = bound(&mut a, "s").await;
    a.freeze().await;
    b.acq_wait("s", "B", "60 s", "1200 ms").await.busy();
    assert_eq!(b.is_current("s", t).await, Ok(true));
    a.wake();

    a.ask("SET idle_session_timeout = '700ms'").await.unwrap();
    let head = stand(&db, &w, "s", "40 s").await;
    a.freeze().await;
    assert!(head.await.unwrap().granted() > t, "the server ended the idle session");
    a.wake();
    a.ask("SELECT 1").await.expect_err("ended");
}

/// The server looks at the socket of a session that works only if it is told to.
#[tokio::test]
async fn a_dead_client_of_a_busy_session_is_noticed_with_client_connection_check_interval() {
    let db = Db::fresh().await;
    let [b, w] = db.sessions().await;
    for checked in [true, false] {
        let mut a = Client::start(&db, CLIENT).await;
        if checked {
            a.ask("SET client_connection_check_interval = '100ms'").await.unwrap();
        }
        let t = bound(&mut a, "s").await;
        a.send("SELECT pg_sleep(30)").await;
        db.until(
            "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $1",
            &[&a.backend()],
        )
        .await;
        let head = stand(&db, &w, "s", if checked { "25 s" } else { "2 s" }).await;
        a.kill().await;
        let answer = head.await.unwrap();
        if checked {
            let t2 = answer.granted();
            assert!(t2 > t);
            assert_eq!(w.rel("s", t2).await, Ok(true));
        } else {
            answer.busy();
            assert_eq!(b.is_current("s", t).await, Ok(true), "the server does not know");
            db.terminate(a.backend()).await;
            assert!(b.acq("s", "B", "60 s").await.granted() > t);
        }
    }
}

/// A dead client in line: at the head it is found by its socket, behind the head when it comes there.
#[tokio::test]
async fn a_dead_client_in_line_holds_nobody_up() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t = a.acq("j", "A", "1 hour").await.granted();
    let mut dead = Vec::new();
    for bound in [false, true, false, true] {
        let mut client = Client::start(&db, CLIENT).await;
        client
            .send(match bound {
                true => "SELECT lease_acquire_session('j', 'dead', wait => '50 s')",
                false => "SELECT lease_acquire('j', 'dead', '1 hour', wait => '50 s')",
            })
            .await;
        super::scene::in_line(&db, client.backend()).await;
        dead.push(client);
    }
    let last = stand(&db, &b, "j", "50 s").await;
    // Not the head: it stays until it is.
    dead[2].kill().await;
    dead[0].kill().await;
    db.gone(dead[0].backend()).await;
    asleep(&db, dead[1].backend()).await;
    dead[1].kill().await;
    for client in &dead[..3] {
        db.gone(client.backend()).await;
    }
    dead[3].kill().await;
    db.gone(dead[3].backend()).await;
    asleep(&db, b.pid()).await;
    assert_eq!(a.is_current("j", t).await, Ok(true), "all of that while it was held");
    assert_eq!(a.rel("j", t).await, Ok(true));
    last.await.unwrap().granted();
    let grants: i64 = a.one("SELECT grants FROM lease_status WHERE name = 'j'", &[]).await.unwrap();
    assert_eq!(grants, 2, "the dead were granted nothing");
    line_is_empty(&db).await;
}

/// In the copy there is no such session, so nobody holds it there.
#[tokio::test]
async fn a_restored_lease_is_free() {
    let db = Db::fresh().await;
    let [a, w] = db.sessions().await;
    let t = a.sacq("n", "B", "0").await.granted();
    let timed = a.acq("m", "A", "1 hour").await.granted();
    let call = stand(&db, &w, "m", "50 s").await;
    let file = std::env::temp_dir().join(format!("{}.line.dump", db.name())).display().to_string();
    let copy = db.another_bare().await;
    let dumped = program("pg_dump", &["-Fc", "-f", &file, "-d", db.name()]).await;
    let restored = program("pg_restore", &["--exit-on-error", "-d", copy.name(), &file]).await;
    std::fs::remove_file(&file).expect("our own file");
    dumped.expect("dumped");
    restored.expect("restored");

    let c = copy.session().await;
    assert_eq!(c.is_current("n", t).await, Ok(false));
    c.fence("n", t).await.refused(STALE);
    assert_ne!(c.info("n").await.unwrap().state, "held");
    assert_eq!(c.one::<i64>("SELECT count(*) FROM lease_session", &[]).await, Ok(0));
    assert_eq!(c.one::<i64>("SELECT count(*) FROM lease_waiter", &[]).await, Ok(0));
    let t2 = c.sacq("n", "C", "0").await.granted();
    assert!(t2 > timed.max(t));
    // The other one is shown with its holder and its end, and can be ended.
    let status = c.info("m").await.unwrap();
    assert_eq!((status.state.as_str(), status.holder.as_deref()), ("held", Some("A")));
    assert!(status.expires_at.is_some());
    c.acq("m", "C", "60 s").await.busy();
    assert_eq!(c.force("m").await, Ok(true));
    c.acq("m", "C", "60 s").await.granted();
    // And here nothing has changed.
    assert_eq!(a.is_current("n", t).await, Ok(true));
    assert!(!call.is_finished());
}

async fn program(name: &str, arguments: &[&str]) -> Result<(), String> {
    let path = std::env::var("LOCK_EXT_PGBIN")
        .map_or_else(|_| name.to_owned(), |bin| format!("{bin}/{name}"));
    let out = Command::new(&path).args(arguments).output().await.map_err(|e| e.to_string())?;
    if out.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&out.stderr).into_owned())
    }
}

/// A session that is killed takes the server's memory with it: everything restarts, all locks are gone.
#[tokio::test]
async fn a_crash_ends_it_and_the_tokens_go_on() {
    let mut db = Db::alone().await;
    db.fence("s").await;
    let [a, w] = db.sessions().await;
    let t = a.sacq("s", "A", "0").await.granted();
    let timed = a.acq("m", "A", "1 hour").await.granted();
    let call = stand(&db, &w, "s", "50 s").await;
    signal(a.pid(), Signal::SIGKILL);
    call.await.unwrap().expect_err("the server ends all sessions");
    let b = again(&db).await;
    db.watch = again(&db).await;
    is_over(&db, &b, "s", t, "crash").await;
    assert_eq!(b.is_current("m", timed).await, Ok(true), "a time to live goes on");
    let t2 = b.sacq("s", "B", "0").await.granted();
    assert!(t2 > t.max(timed));
    assert_eq!(b.fw(Way::Transaction, "s", t2, 1, 5).await, Ok(1));
}

/// A new session, as soon as the server takes one.
async fn again(db: &Db) -> Session {
    let begun = Instant::now();
    loop {
        match attempt(db).await {
            Ok(()) => return db.session().await,
            Err(error) => {
                let patience = lock_ext_sessions::PATIENCE;
                assert!(begun.elapsed() < patience, "the server does not come back: {error}");
                pass(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn attempt(db: &Db) -> Answer<()> {
    let variable = |name: &str| std::env::var(name).expect("with-cluster.sh sets it");
    let mut config = tokio_postgres::Config::new();
    config
        .host(variable("PGHOST"))
        .port(variable("PGPORT").parse().expect("a number"))
        .user(variable("PGUSER"))
        .dbname(db.name());
    config
        .connect(tokio_postgres::NoTls)
        .await
        .map(drop)
        .map_err(|error| PgError { message: error.to_string(), ..PgError::default() })
}
