//! What is left of waiters that were cancelled, killed, or timed out in large numbers: nothing.

use std::time::Duration;

use lock_ext_sessions::{Asked, Client, Db, PgError, Session};

use super::scene::{has_no_lock, line_is_empty, nobody_waits, pass, stand};
use crate::CLIENT;
use crate::checker::dice::Dice;

/// How a waiter ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Cancelled,
    Terminated,
    /// Its client, with SIGKILL.
    Killed,
}

enum Waiter {
    Session(Session),
    Client(Box<Client>),
}

const IN_ALL: usize = 200;
const AT_ONCE: usize = 25;

/// At random moments: before they stand in line, there, at its head, or when they are granted the lease, which the holder of the
/// moment gives back now and then.
#[tokio::test]
async fn two_hundred_waiters_that_are_cancelled_or_killed_leave_nothing() {
    let db = Db::fresh().await;
    let [a, admin, last] = db.sessions().await;
    let mut dice = Dice(1);
    a.acq("w", "A", "1 hour").await.granted();
    let mut ended = [0; 3];
    for round in 0..IN_ALL / AT_ONCE {
        let mut tasks = Vec::new();
        for number in 0..AT_ONCE {
            let end = [End::Cancelled, End::Terminated, End::Killed][dice.below(3)];
            ended[end as usize] += 1;
            let waiter = match end {
                End::Killed => Waiter::Client(Box::new(Client::start(&db, CLIENT).await)),
                _ => Waiter::Session(db.session().await),
            };
            let (starts, lives) = (dice.below(60), dice.below(120));
            let admin = admin.clone();
            let in_block = dice.one_in(4);
            tasks.push(tokio::spawn(async move {
                pass(Duration::from_millis(starts as u64)).await;
                wait_and_end(waiter, end, in_block, lives as u64, admin, round * AT_ONCE + number)
                    .await
            }));
        }
        // The lease comes round meanwhile.
        for _ in 0..3 {
            pass(Duration::from_millis(40)).await;
            a.force("w").await.unwrap();
        }
        for task in tasks {
            task.await.unwrap();
        }
        // Whoever was granted it is gone or has lost it; the dead in line find out by themselves.
        a.force("w").await.unwrap();
        line_is_empty(&db).await;
        db.until(
            "SELECT count(*) = 0 FROM pg_locks WHERE locktype IN ('userlock', 'advisory')
               AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
            &[],
        )
        .await;
        a.force("w").await.unwrap();
        nobody_waits(&db).await;
        let begun = std::time::Instant::now();
        let t = last.acq("w", "last", "1 hour").await.granted();
        assert!(begun.elapsed() < Duration::from_secs(5), "at once: {:?}", begun.elapsed());
        assert_eq!(last.rel("w", t).await, Ok(true));
    }
    assert!(ended.iter().all(|count| *count > 20), "{ended:?}");
    let rows: i64 = a.one("SELECT count(*) FROM lock_ext.lease", &[]).await.unwrap();
    assert_eq!(rows, 1, "one row for the one name");
}

async fn wait_and_end(
    waiter: Waiter,
    end: End,
    in_block: bool,
    lives: u64,
    admin: Session,
    number: usize,
) {
    let call = format!("SELECT lease_acquire('w', 'W{number}', '1 hour', wait => '50 s')");
    match waiter {
        Waiter::Client(mut client) => {
            if in_block {
                client.ask("BEGIN").await.unwrap();
            }
            client.send(&call).await;
            pass(Duration::from_millis(lives)).await;
            client.kill().await;
        }
        Waiter::Session(session) => {
            if in_block {
                session.sql("BEGIN").await.unwrap();
            }
            let answer =
                session.beside(move |me| async move { me.one::<Option<i64>>(&call, &[]).await });
            pass(Duration::from_millis(lives)).await;
            let sql = match end {
                End::Cancelled => "SELECT pg_cancel_backend($1)",
                _ => "SELECT pg_terminate_backend($1)",
            };
            // It may come before the call has begun, when a cancel is none: so until there is an answer.
            while !answer.is_finished() {
                admin.one::<bool>(sql, &[&session.pid()]).await.unwrap();
                pass(Duration::from_millis(5)).await;
            }
            match answer.await.unwrap() {
                Ok(token) => assert_ne!(token, None, "nobody waits as long as it may"),
                Err(error) => assert!(
                    ["57014", "57P01", PgError::CLOSED].contains(&error.code.as_str()),
                    "{end:?}: {error:?}"
                ),
            }
        }
    }
}

const MEMORY: &str = "SELECT sum(total_bytes)::bigint FROM pg_backend_memory_contexts";

/// Memory of the session before and after a thousand runs of a statement, when it has run a hundred times.
async fn grows(session: &Session, sql: &str) -> (i64, i64) {
    for _ in 0..100 {
        session.sql(sql).await.unwrap();
    }
    let before: i64 = session.one(MEMORY, &[]).await.unwrap();
    for _ in 0..1000 {
        session.sql(sql).await.unwrap();
    }
    (before, session.one(MEMORY, &[]).await.unwrap())
}

/// The thousand runs may keep a little that a hundred did not need, never a bit each.
#[tokio::test]
async fn a_thousand_waits_of_one_session_keep_no_memory() {
    let db = Db::fresh().await;
    let [a, head, b] = db.sessions().await;
    a.acq("alone", "A", "1 hour").await.granted();
    a.acq("second", "A", "1 hour").await.granted();
    a.sacq("session", "A", "0").await.granted();
    a.sql("BEGIN").await.unwrap();
    a.acq("open", "A", "1 hour").await.granted();
    let in_front = stand(&db, &head, "second", "55 s").await;
    for sql in [
        "SELECT lease_acquire('alone', 'B', '60 s', wait => '1 ms')",
        "SELECT lease_acquire('second', 'B', '60 s', wait => '1 ms')",
        "SELECT lease_acquire('session', 'B', '60 s', wait => '1 ms')",
        "SELECT lease_acquire('open', 'B', '60 s', wait => '1 ms')",
        "SELECT lease_acquire_session('alone', 'B', wait => '1 ms')",
        "SELECT lease_release('free', lease_acquire('free', 'B', '60 s', wait => '1 s'))",
        "SELECT lease_release('bound', lease_acquire_session('bound', 'B', wait => '1 s'))",
        "BEGIN; SAVEPOINT s; SELECT lease_acquire_session('bound', 'B'); ROLLBACK TO s; COMMIT",
        "DO $$ BEGIN PERFORM lease_acquire_session('bound', 'B'); RAISE unique_violation;
               EXCEPTION WHEN unique_violation THEN NULL; END $$",
    ] {
        let (before, after) = grows(&b, sql).await;
        assert!(after - before < 64 * 1024, "{sql}: {before} bytes, then {after}");
        has_no_lock(&db, b.pid()).await;
    }
    // All in one transaction, where a savepoint of ours would add up as one of anybody's does; locks do not.
    b.sql("BEGIN").await.unwrap();
    let (before, after) =
        grows(&b, "SELECT lease_acquire('second', 'B', '60 s', wait => '1 ms')").await;
    assert!(after - before < 1024 * 1024, "in one transaction: {before} bytes, then {after}");
    has_no_lock(&db, b.pid()).await;
    b.commit().await.unwrap();
    assert!(!in_front.is_finished());
}

/// A head that is woken again and again for nothing, by heartbeats that shorten and lengthen.
#[tokio::test]
async fn a_head_that_is_woken_for_nothing_keeps_no_memory() {
    let db = Db::fresh().await;
    let [a, w] = db.sessions().await;
    let t = a.acq("j", "A", "1 hour").await.granted();
    let call = stand(&db, &w, "j", "50 s").await;
    let memory = async || -> i64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", w.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).expect("Linux");
        line.trim().trim_end_matches("kB").trim().parse().expect("a number")
    };
    let shorter = async |times: usize| {
        for number in 0..times {
            let hours = 1 + times - number;
            a.sql(&format!("SELECT lease_extend('j', {t}, '{hours} minutes')")).await.unwrap();
        }
    };
    shorter(200).await;
    let before = memory().await;
    shorter(2000).await;
    let after = memory().await;
    assert!(after - before < 512, "{before} kB, then {after}");
    assert_eq!(a.rel("j", t).await, Ok(true));
    call.await.unwrap().granted();
}
