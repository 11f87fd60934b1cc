//! What lets the head of the line go on. All leases here live for an hour, and all waits are shorter: who is not woken gets NULL.

use std::time::Duration;

use lock_ext_sessions::{Asked, Client, Db, LEVELS, Session, Way};

use super::scene::{asleep, has_no_lock, in_line, line, nobody_waits, pass, stand, stand_for};
use crate::CLIENT;

/// Ways to end the grant of `t`, or to let it end earlier, of lease j. The session is its holder's.
const ENDS: [(&str, &str); 12] = [
    ("release", "SELECT lease_release('j', $t)"),
    ("completion until soon", "SELECT lease_complete('j', $t, clock_timestamp() + '400 ms')"),
    ("completion until a time that is over", "SELECT lease_complete('j', $t, '-infinity')"),
    ("force", "SELECT lease_force_release('j')"),
    ("shorter extension", "SELECT lease_extend('j', $t, '300 ms')"),
    ("shorter extension of many", "SELECT lease_extend_many('{j}', '{$t}', '300 ms')"),
    ("shorter heartbeat of a leader", "SELECT lease_elect('j', 'A', '300 ms', $t)"),
    ("release in a block", "BEGIN; SELECT lease_release('j', $t); COMMIT"),
    ("completion in a block", "BEGIN; SELECT lease_complete('j', $t, '-infinity'); COMMIT"),
    ("shorter extension in a block", "BEGIN; SELECT lease_extend('j', $t, '300 ms'); COMMIT"),
    (
        "release in a savepoint",
        "BEGIN; SAVEPOINT s; SELECT lease_release('j', $t); RELEASE s; COMMIT",
    ),
    ("release in a function", "DO $$BEGIN PERFORM lease_release('j', $t); END$$"),
];

#[tokio::test]
async fn every_end_of_a_grant_wakes_the_head() {
    let db = Db::fresh().await;
    let [a, w1, w2] = db.sessions().await;
    for (end, sql) in ENDS {
        let t = a.acq("j", "A", "1 hour").await.granted();
        let head = stand(&db, &w1, "j", "40 s").await;
        let next = stand(&db, &w2, "j", "40 s").await;
        asleep(&db, w1.pid()).await;
        a.sql(&sql.replace("$t", &t.to_string())).await.expect(end);
        let t1 = head.await.unwrap();
        assert!(matches!(t1, Ok(Some(token)) if token > t), "{end}: {t1:?}");
        assert!(!next.is_finished(), "{end}");
        assert_eq!(w1.rel("j", t1.granted()).await, Ok(true));
        let t2 = next.await.unwrap().granted();
        assert_eq!(w2.rel("j", t2).await, Ok(true));
        nobody_waits(&db).await;
    }
}

/// Prepared and committed later, by somebody else.
#[tokio::test]
async fn a_prepared_end_wakes_the_head_when_it_is_committed() {
    let db = Db::fresh().await;
    let [a, w, other] = db.sessions().await;
    for (number, end) in
        ["SELECT lease_release('j', $t)", "SELECT lease_complete('j', $t, '-infinity')"]
            .into_iter()
            .enumerate()
    {
        for waits_before in [true, false] {
            for committed in [true, false] {
                let case = format!("{end}, waits before: {waits_before}, committed: {committed}");
                let gid = format!("{} {number} {waits_before} {committed}", db.name());
                let t = a.acq("j", "A", "1 hour").await.granted();
                let mut call = None;
                if waits_before {
                    call = Some(stand(&db, &w, "j", "30 s").await);
                    asleep(&db, w.pid()).await;
                }
                a.sql(&format!(
                    "BEGIN; {}; PREPARE TRANSACTION '{gid}'",
                    end.replace("$t", &t.to_string())
                ))
                .await
                .expect(&case);
                let call = match call {
                    Some(call) => call,
                    None => stand(&db, &w, "j", "30 s").await,
                };
                assert!(!call.is_finished(), "{case}");
                if committed {
                    other.sql(&format!("COMMIT PREPARED '{gid}'")).await.expect(&case);
                } else {
                    other.sql(&format!("ROLLBACK PREPARED '{gid}'")).await.expect(&case);
                    assert_eq!(other.is_current("j", t).await, Ok(true), "{case}");
                    assert_eq!(other.rel("j", t).await, Ok(true), "{case}");
                }
                let answer = call.await.unwrap();
                assert!(matches!(answer, Ok(Some(token)) if token > t), "{case}: {answer:?}");
                assert_eq!(w.rel("j", answer.granted()).await, Ok(true));
            }
        }
    }
}

/// What is not committed, or not an end, is none.
#[tokio::test]
async fn what_did_not_happen_lets_nobody_forward() {
    let db = Db::fresh().await;
    let [a, w] = db.sessions().await;
    let t = a.acq("j", "A", "1 hour").await.granted();
    let call = stand(&db, &w, "j", "50 s").await;
    asleep(&db, w.pid()).await;
    for sql in [
        "BEGIN; SELECT lease_release('j', $t); ROLLBACK",
        "BEGIN; SELECT lease_complete('j', $t); ROLLBACK",
        "BEGIN; SAVEPOINT s; SELECT lease_release('j', $t); ROLLBACK TO s; COMMIT",
        "BEGIN; SELECT lease_force_release('j'); ROLLBACK",
        "BEGIN; SELECT lease_extend('j', $t, '1 ms'); ROLLBACK",
        "SELECT lease_release('j', $t - 1)",
        "SELECT lease_complete('j', $t + 1)",
        "SELECT lease_extend('j', $t, '2 hours')",
        "SELECT lease_elect('j', 'A', '1 hour', $t)",
        "SELECT lease_prune('0')",
    ] {
        a.sql(&sql.replace("$t", &t.to_string())).await.expect(sql);
        asleep(&db, w.pid()).await;
        assert_eq!(a.is_current("j", t).await, Ok(true), "{sql}");
        assert_eq!(line(&db, "j").await, [w.pid()], "{sql}");
    }
    assert!(!call.is_finished());
    assert_eq!(a.rel("j", t).await, Ok(true));
    call.await.unwrap().granted();
}

/// The clock alone: nobody is there to say anything.
#[tokio::test]
async fn an_expiry_is_noticed_by_the_clock() {
    let db = Db::fresh().await;
    let [a, w1, w2] = db.sessions().await;
    a.acq("j", "A", "600 ms").await.granted();
    let first = a.expiry("j").await;
    let head = stand_for(&db, &w1, "j", "600 ms", "50 s").await;
    let next = stand_for(&db, &w2, "j", "1 hour", "50 s").await;
    head.await.unwrap().granted();
    // The head has it now and does nothing; when it expires it is the next one's.
    next.await.unwrap().granted();
    let acquired_at: std::time::SystemTime =
        a.one("SELECT acquired_at FROM lease_status WHERE name = 'j'", &[]).await.unwrap();
    let earliest = first + Duration::from_millis(600);
    assert!(acquired_at >= earliest, "two times to live");
    assert!(acquired_at < earliest + Duration::from_secs(10), "{acquired_at:?}, {earliest:?}");
}

/// A heartbeat while others wait puts them off.
#[tokio::test]
async fn an_extended_lease_is_not_granted_at_its_old_expiry() {
    let db = Db::fresh().await;
    let [a, w] = db.sessions().await;
    let t = a.acq("j", "A", "700 ms").await.granted();
    let call = stand(&db, &w, "j", "50 s").await;
    let mut last = a.expiry("j").await;
    for _ in 0..4 {
        pass(Duration::from_millis(250)).await;
        last = a.ext("j", t, "700 ms").await.extended();
        assert!(!call.is_finished());
    }
    let t2 = call.await.unwrap().granted();
    assert!(t2 > t);
    let acquired_at: std::time::SystemTime =
        a.one("SELECT acquired_at FROM lease_status WHERE name = 'j'", &[]).await.unwrap();
    assert!(acquired_at >= last, "granted before the last heartbeat's time was over");
}

/// A grant in another open transaction is waited for until it is decided.
#[tokio::test]
async fn a_grant_that_is_rolled_back_lets_the_head_in() {
    for end in ["ROLLBACK", "ROLLBACK TO s", "DISCARD", "error"] {
        for known in [true, false] {
            let case = format!("{end}, a known name: {known}");
            let db = Db::fresh().await;
            let [a, w1, w2] = db.sessions().await;
            if known {
                let t = a.acq("j", "A", "60 s").await.granted();
                a.rel("j", t).await.unwrap();
            }
            a.sql("BEGIN; SAVEPOINT s").await.unwrap();
            let t = a.acq("j", "A", "1 hour").await.granted();
            let head = stand(&db, &w1, "j", "40 s").await;
            let next = stand(&db, &w2, "j", "40 s").await;
            assert!(!head.is_finished(), "{case}");
            match end {
                "DISCARD" => db.terminate(a.pid()).await,
                "error" => drop(a.sql("SELECT 1 / 0").await.expect_err("a failed transaction")),
                sql => a.sql(sql).await.unwrap(),
            }
            let t1 = head.await.unwrap();
            assert!(matches!(t1, Ok(Some(token)) if token > t), "{case}: {t1:?}");
            assert!(!next.is_finished(), "{case}");
            assert_eq!(w1.rel("j", t1.granted()).await, Ok(true));
            next.await.unwrap().granted();
        }
    }
}

#[tokio::test]
async fn a_grant_that_is_committed_is_waited_for_like_any_other() {
    let db = Db::fresh().await;
    let [a, w] = db.sessions().await;
    a.sql("BEGIN").await.unwrap();
    let t = a.acq("j", "A", "1 hour").await.granted();
    let call = stand(&db, &w, "j", "40 s").await;
    a.commit().await.unwrap();
    asleep(&db, w.pid()).await;
    assert_eq!(line(&db, "j").await, [w.pid()]);
    assert_eq!(a.rel("j", t).await, Ok(true));
    let t2 = call.await.unwrap().granted();
    assert_eq!(w.rel("j", t2).await, Ok(true));

    // Prepared, and committed or rolled back by somebody else.
    for end in ["COMMIT", "ROLLBACK"] {
        let gid = format!("{} {end}", db.name());
        a.sql("BEGIN").await.unwrap();
        let t = a.acq("j", "A", "1 hour").await.granted();
        a.sql(&format!("PREPARE TRANSACTION '{gid}'")).await.unwrap();
        let call = stand(&db, &w, "j", "40 s").await;
        assert!(!call.is_finished());
        db.watch.sql(&format!("{end} PREPARED '{gid}'")).await.unwrap();
        if end == "COMMIT" {
            asleep(&db, w.pid()).await;
            assert_eq!(a.rel("j", t).await, Ok(true));
        }
        let t2 = call.await.unwrap().granted();
        assert_eq!(w.rel("j", t2).await, Ok(true));
    }
}

/// A writer that keeps take-overs waiting, and one that is prepared.
#[tokio::test]
async fn the_end_of_a_holding_transaction_lets_the_head_in() {
    for (way, level) in [Way::Transaction, Way::Stamped].into_iter().zip(LEVELS) {
        for (hold, end) in [
            ("hold", "COMMIT"),
            ("hold", "ROLLBACK"),
            ("prepared", "COMMIT PREPARED"),
            ("prepared", "ROLLBACK PREPARED"),
        ] {
            let case = format!("{way:?}, {hold}, {end}");
            let db = Db::fresh().await;
            db.fence("j").await;
            let [a, writer, w1, w2] = db.sessions().await;
            let t = a.acq("j", "A", "1 s").await.granted();
            writer.begin(level).await;
            if hold == "hold" {
                writer.fence_and_hold("j", t).await.unwrap();
            }
            writer.fw_in_block(way, "j", t, 1, 7).await.unwrap();
            let gid = db.name().to_owned();
            if hold == "prepared" {
                writer.sql(&format!("PREPARE TRANSACTION '{gid}'")).await.unwrap();
            }
            db.expired("j").await;
            let head = stand(&db, &w1, "j", "40 s").await;
            let next = stand(&db, &w2, "j", "300 ms").await;
            next.await.unwrap().busy();
            assert!(!head.is_finished(), "{case}");
            w2.acq("j", "B", "60 s").await.busy();
            let end_it = match hold {
                "prepared" => format!("{end} '{gid}'"),
                _ => end.to_owned(),
            };
            writer.sql(&end_it).await.expect(&case);
            assert!(head.await.unwrap().granted() > t, "{case}");
            let v = if end.starts_with("COMMIT") { 7 } else { 0 };
            assert_eq!(db.v(way.table(), 1).await, v, "{case}: all of it or nothing");
        }
    }
}

#[tokio::test]
async fn a_holding_transaction_is_waited_for_no_longer_than_said() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, writer, w1, w2] = db.sessions().await;
    let t = a.acq("j", "A", "200 ms").await.granted();
    writer.sql("BEGIN").await.unwrap();
    writer.fence_and_hold("j", t).await.unwrap();
    writer.fw_in_block(Way::Transaction, "j", t, 1, 7).await.unwrap();
    db.expired("j").await;
    for session in [&w1, &w2] {
        session.acq_wait("j", "W", "60 s", "300 ms").await.busy();
        has_no_lock(&db, session.pid()).await;
    }
    writer.commit().await.expect("nobody was granted it");
    w1.acq("j", "W", "60 s").await.granted();
}

/// A frozen transaction that writes without `hold` delays nobody in line.
#[tokio::test]
async fn an_open_writer_does_not_delay_the_line() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, writer, w] = db.sessions().await;
    let t = a.acq("j", "A", "1 hour").await.granted();
    writer.sql("BEGIN").await.unwrap();
    writer.fw_in_block(Way::Stamped, "j", t, 1, 7).await.unwrap();
    let call = stand(&db, &w, "j", "40 s").await;
    assert_eq!(a.rel("j", t).await, Ok(true));
    call.await.unwrap().granted();
    writer.commit().await.expect_err("its token is stale");
    assert_eq!(db.v("stamped", 1).await, 0);
}

/// Completed for ever: there is nothing to wait for, for nobody in line.
#[tokio::test]
async fn a_completion_sends_the_whole_line_home() {
    let db = Db::fresh().await;
    let [a, w1, w2, w3] = db.sessions().await;
    let t = a.acq("j", "A", "1 hour").await.granted();
    let mut calls = Vec::new();
    for session in [&w1, &w2, &w3] {
        calls.push(stand(&db, session, "j", "50 s").await);
    }
    let begun = std::time::Instant::now();
    assert_eq!(a.complete("j", t).await, Ok(true));
    for call in calls {
        call.await.unwrap().busy();
    }
    // And for who comes later.
    w1.acq_wait("j", "W", "60 s", "50 s").await.busy();
    w1.sacq("j", "W", "50 s").await.busy();
    assert!(begun.elapsed() < Duration::from_secs(30), "at once, and not when their waits ran out");
    nobody_waits(&db).await;

    completed_within(&db, &a, &w1).await;
}

/// A completion that ends within the wait is waited for, one that does not is a NULL at once.
async fn completed_within(db: &Db, a: &Session, w: &Session) {
    let t = a.acq("within", "A", "1 hour").await.granted();
    a.exec("SELECT lease_complete('within', $1, clock_timestamp() + '1500 ms')", &[&t])
        .await
        .unwrap();
    let until: std::time::SystemTime =
        a.one("SELECT completed_until FROM lease_status WHERE name = 'within'", &[]).await.unwrap();
    w.acq_wait("within", "W", "60 s", "100 ms").await.busy();
    assert!(w.clock().await < until, "the shorter wait was over before");
    let call = stand(db, w, "within", "40 s").await;
    call.await.unwrap().granted();
    let acquired_at: std::time::SystemTime =
        a.one("SELECT acquired_at FROM lease_status WHERE name = 'within'", &[]).await.unwrap();
    assert!(acquired_at >= until, "granted while it was completed");
}

/// A frozen client has an open connection: it is granted the lease, and loses it when its time is over.
#[tokio::test]
async fn a_frozen_waiter_holds_the_line_up_for_its_time_to_live() {
    let db = Db::fresh().await;
    let [a, w] = db.sessions().await;
    let t = a.acq("j", "A", "1 hour").await.granted();
    let mut frozen = Client::start(&db, CLIENT).await;
    frozen.send("SELECT lease_acquire('j', 'frozen', '700 ms', wait => '50 s')").await;
    in_line(&db, frozen.backend()).await;
    let next = stand(&db, &w, "j", "40 s").await;
    frozen.freeze().await;
    assert_eq!(a.rel("j", t).await, Ok(true));
    let t2 = next.await.unwrap().granted();
    frozen.wake();
    let late: i64 = frozen.reply().await.expect("granted").parse().expect("granted");
    assert!(t < late && late < t2);
    let extended = frozen.ask(&format!("SELECT lease_extend('j', {late}) IS NULL")).await;
    assert_eq!(extended, Ok("t".to_owned()), "it finds out that it has lost it");
}
