//! Waiting in line, and leases that are bound to their session.

use std::time::{Duration, Instant};

use lock_ext_sessions::{Asked, Client, Db, Refused, STALE, Way};

use crate::CLIENT;
use crate::line::scene::{has_no_lock, in_line, line, nobody_waits, pass, stand};

#[tokio::test]
async fn h02_a_waiter_has_a_killed_holders_lease_when_its_time_is_over() {
    let db = Db::fresh().await;
    let b = db.session().await;
    let mut a = Client::start(&db, CLIENT).await;
    let t1: i64 =
        a.ask("SELECT lease_acquire('migrate', 'A', '2 s')").await.unwrap().parse().unwrap();
    let expiry = b.expiry("migrate").await;
    let call = stand(&db, &b, "migrate", "20 s").await;
    a.kill().await;
    let t2 = call.await.unwrap().granted();
    assert!(t2 > t1);
    let acquired_at: std::time::SystemTime =
        b.one("SELECT acquired_at FROM lease_status WHERE name = 'migrate'", &[]).await.unwrap();
    assert!(acquired_at >= expiry, "B was granted before A's time was over");
    assert!(acquired_at < expiry + Duration::from_secs(5), "without any manual step");
}

#[tokio::test]
async fn h09_a_waiter_never_counts_work_that_is_not_committed() {
    for way in Way::ALL {
        let db = Db::fresh().await;
        db.fence("s").await;
        let [conn1, conn2, b] = db.sessions().await;
        let t1 = conn1.acq("s", "A", "60 s").await.granted();
        conn2.sql("BEGIN").await.unwrap();
        conn2.fw_in_block(way, "s", t1, 1, 1).await.unwrap();
        let call = stand(&db, &b, "s", "20 s").await;
        assert_eq!(conn1.rel("s", t1).await, Ok(true));
        let t2 = call.await.unwrap().granted();
        conn2.commit().await.refused(STALE);
        let v = db.v(way.table(), 1).await;
        assert_eq!(b.fw(way, "s", t2, 1, v + 1).await, Ok(1));
        assert_eq!(db.v(way.table(), 1).await, 1, "one of the two commits: {way:?}");

        // The control: all of it in one transaction, whose end B waits for.
        conn1.sql("BEGIN").await.unwrap();
        assert_eq!(b.rel("s", t2).await, Ok(true));
        let t3 = conn1.acq("s", "A", "60 s").await.granted();
        let call = stand(&db, &b, "s", "20 s").await;
        conn1.fw_in_block(way, "s", t3, 1, v + 2).await.unwrap();
        assert_eq!(conn1.rel("s", t3).await, Ok(true));
        assert!(!call.is_finished());
        conn1.commit().await.unwrap();
        let t4 = call.await.unwrap().granted();
        let v = db.v(way.table(), 1).await;
        assert_eq!(v, 2, "{way:?}");
        assert_eq!(b.fw(way, "s", t4, 1, v + 1).await, Ok(1));
        assert_eq!(db.v(way.table(), 1).await, 3);
    }
}

#[tokio::test]
async fn h10_a_waiter_has_at_once_what_a_savepoint_gave_back() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    a.sql("BEGIN; SAVEPOINT s").await.unwrap();
    let t1 = a.acq("k", "A", "60 s").await.granted();
    let call = stand(&db, &b, "k", "20 s").await;
    a.sql("ROLLBACK TO s").await.unwrap();
    let t2 = call.await.unwrap().granted();
    assert!(t2 > t1);
    for session in [&a, &b] {
        assert_eq!(
            session.info("k").await.unwrap().holder.as_deref(),
            Some(&*format!("backend {}", b.pid()))
        );
    }
    a.commit().await.unwrap();
    assert_eq!(b.is_current("k", t2).await, Ok(true));
}

/// One is the victim of the deadlock, or nobody and the waits run out.
#[tokio::test]
async fn h13_two_leases_in_opposite_order_with_waits() {
    let db = Db::fresh().await;
    for wait in ["5 s", "300 ms"] {
        let [a, b] = db.sessions().await;
        a.sql("BEGIN").await.unwrap();
        a.acq("x", "A", "60 s").await.granted();
        b.sql("BEGIN").await.unwrap();
        b.acq("y", "B", "60 s").await.granted();
        let begun = Instant::now();
        let for_y = a.beside(move |me| async move { me.acq_wait("y", "A", "60 s", wait).await });
        let for_x = b.beside(move |me| async move { me.acq_wait("x", "B", "60 s", wait).await });
        let answers = [for_y.await.unwrap(), for_x.await.unwrap()];
        assert!(begun.elapsed() < Duration::from_secs(15), "{wait}: {:?}", begun.elapsed());
        if wait == "300 ms" {
            // Shorter than the server takes to look for a deadlock. The second may come through when the first has given up: no, as
            // the first one's transaction is open.
            assert_eq!(answers, [Ok(None), Ok(None)]);
            a.rollback().await;
            b.acq_wait("x", "B", "60 s", wait).await.granted();
            b.rollback().await;
        } else {
            let victims =
                answers.iter().filter(|answer| matches!(answer, Err(e) if e.code == "40P01"));
            assert_eq!(victims.count(), 1, "{answers:?}");
            let granted = answers.iter().filter(|answer| matches!(answer, Ok(Some(_)))).count();
            assert_eq!(granted, 1, "{answers:?}");
            for session in [&a, &b] {
                session.rollback().await;
            }
        }
        for name in ["x", "y"] {
            let t = a.acq(name, "A", "60 s").await.granted();
            assert_eq!(a.rel(name, t).await, Ok(true));
        }
    }
}

#[tokio::test]
async fn h14_a_wait_ends_with_the_timeout_or_the_cancel() {
    let db = Db::fresh().await;
    let [a, c] = db.sessions().await;
    for (case, code) in [
        ("statement_timeout", "57014"),
        ("lock_timeout", "55P03"),
        ("cancel", "57014"),
        ("terminate", "57P01"),
        ("savepoint", "57014"),
    ] {
        let b = db.session().await;
        let t = a.acq("w", "A", "60 s").await.granted();
        match case {
            "savepoint" => {
                b.sql("BEGIN; CREATE TEMP TABLE kept (i int); SAVEPOINT s").await.unwrap()
            }
            "cancel" | "terminate" => {}
            setting => b.sql(&format!("SET {setting} = '500ms'")).await.unwrap(),
        }
        let call = stand(&db, &b, "w", "30 s").await;
        let begun = Instant::now();
        match case {
            "terminate" => db.terminate(b.pid()).await,
            "cancel" | "savepoint" => {
                db.watch.one::<bool>("SELECT pg_cancel_backend($1)", &[&b.pid()]).await.unwrap();
            }
            _ => {}
        }
        let error = call.await.unwrap().expect_err(case);
        assert_eq!(error.code, code, "{case}: {error:?}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{case}: promptly");
        if case == "savepoint" {
            b.sql("ROLLBACK TO s; INSERT INTO kept VALUES (1)").await.expect("it goes on");
        }
        assert_eq!(line(&db, "w").await, Vec::<i32>::new(), "{case}");
        assert_eq!(c.info("w").await.unwrap().holder.as_deref(), Some("A"));
        has_no_lock(&db, b.pid()).await;
        assert_eq!(a.rel("w", t).await, Ok(true));
        let t2 = c.acq("w", "C", "60 s").await.granted();
        assert_eq!(c.rel("w", t2).await, Ok(true));
        if case == "savepoint" {
            b.commit().await.unwrap();
            assert_eq!(b.one::<i64>("SELECT count(*) FROM kept", &[]).await, Ok(1));
        }
    }
}

#[tokio::test]
async fn h15_a_dead_waiter_at_the_head_is_passed() {
    let db = Db::fresh().await;
    let [a, w2, w3] = db.sessions().await;
    let t = a.acq("f", "A", "60 s").await.granted();
    let mut w1 = Client::start(&db, CLIENT).await;
    w1.send("SELECT lease_acquire('f', 'W1', '60 s', wait => '60 s')").await;
    in_line(&db, w1.backend()).await;
    let second = stand(&db, &w2, "f", "50 s").await;
    let third = stand(&db, &w3, "f", "50 s").await;
    w1.kill().await;
    let begun = Instant::now();
    assert_eq!(a.rel("f", t).await, Ok(true));
    let t2 = second.await.unwrap().granted();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    pass(Duration::from_secs(1)).await;
    assert!(!third.is_finished());
    assert_eq!(line(&db, "f").await, [w3.pid()]);
    assert_eq!(w2.rel("f", t2).await, Ok(true));
    third.await.unwrap().granted();
    db.gone(w1.backend()).await;
    let grants: i64 = a.one("SELECT grants FROM lease_status WHERE name = 'f'", &[]).await.unwrap();
    assert_eq!(grants, 3, "W1 was granted nothing");
    nobody_waits(&db).await;
}

/// Twelve die as soon as they have it. (Fifty, with those that live: `line::crowd`, where the work for each is counted as well.)
#[tokio::test]
async fn h16_winners_that_die_at_once_are_followed_in_order() {
    let db = Db::fresh().await;
    let [a, bystander] = db.sessions().await;
    let t = a.acq("f", "A", "60 s").await.granted();
    let mut clients = Vec::new();
    for number in 0..12 {
        let mut client = Client::start(&db, CLIENT).await;
        client
            .send(&format!("SELECT lease_acquire('f', 'W{number}', '1 s', wait => '50 s')"))
            .await;
        in_line(&db, client.backend()).await;
        clients.push(client);
    }
    assert_eq!(a.rel("f", t).await, Ok(true));
    let mut last = t;
    let mut before: Option<std::time::SystemTime> = None;
    for (number, client) in clients.iter_mut().enumerate() {
        let token: i64 = client.reply().await.expect("granted").parse().expect("granted");
        client.kill().await;
        assert!(token > last);
        last = token;
        let rows = a
            .rows("SELECT holder, acquired_at FROM lease_status WHERE name = 'f'", &[])
            .await
            .unwrap();
        assert_eq!(rows[0].get::<_, &str>(0), format!("W{number}"));
        let at: std::time::SystemTime = rows[0].get(1);
        if let Some(before) = before {
            let apart = at.duration_since(before).expect("later");
            assert!(apart >= Duration::from_secs(1), "W{number} came before the end: {apart:?}");
            assert!(apart < Duration::from_secs(2), "W{number} came late: {apart:?}");
        }
        before = Some(at);
        // Others notice nothing.
        let own = bystander.acq("own", "B", "60 s").await.granted();
        assert_eq!(bystander.rel("own", own).await, Ok(true));
    }
    nobody_waits(&db).await;
}

#[tokio::test]
async fn h17_timed_calls_go_through_any_backend_and_bound_ones_say_so() {
    let db = Db::fresh().await;
    db.fence("t").await;
    let [s1, s2, s3, s4, b] = db.sessions().await;
    for way in Way::ALL {
        let t1 = s1.acq("t", "A", "30 s").await.granted();
        s2.ext("t", t1, "30 s").await.extended();
        assert_eq!(s3.fw(way, "t", t1, 1, 1).await, Ok(1));
        assert_eq!(s4.rel("t", t1).await, Ok(true));
    }

    let t = s1.sacq("u", "A", "0").await.granted();
    s2.rel("u", t).await.refused("55000").detail_names(&[&s1.pid()]);
    b.sacq("u", "B", "1 s").await.busy();
    let pid: i32 =
        b.one("SELECT session_pid FROM lease_status WHERE name = 'u'", &[]).await.unwrap();
    assert_eq!(pid, s1.pid());
    // What a pooler does before it gives the session to the next client.
    let call = b.beside(|me| async move { me.sacq("u", "B", "20 s").await });
    in_line(&db, b.pid()).await;
    s1.sql("DISCARD ALL").await.unwrap();
    let t2 = call.await.unwrap().granted();
    assert!(t2 > t);
    assert_eq!(s1.is_current("u", t).await, Ok(false));
}

#[tokio::test]
async fn h18_a_stopped_client_is_shown_and_can_be_ended() {
    let db = Db::fresh().await;
    db.fence("s").await;
    let [b, admin] = db.sessions().await;
    let mut a = Client::start(&db, CLIENT).await;
    let t1: i64 = a.ask("SELECT lease_acquire_session('s', 'A')").await.unwrap().parse().unwrap();
    a.freeze().await;
    let begun = Instant::now();
    b.sacq("s", "B", "1500 ms").await.busy();
    assert!(begun.elapsed() < Duration::from_secs(10), "at most its limit");
    let rows = admin
        .rows(
            "SELECT pid, state, clock_timestamp() - idle_since > '1 s' FROM lease_session WHERE name = 's'",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(rows[0].get::<_, i32>(0), a.backend());
    assert_eq!(rows[0].get::<_, &str>(1), "idle");
    assert!(rows[0].get::<_, bool>(2), "for how long it does nothing");

    let call = b.beside(|me| async move { me.sacq("s", "B", "20 s").await });
    in_line(&db, b.pid()).await;
    db.terminate(a.backend()).await;
    let t2 = call.await.unwrap().granted();
    assert!(t2 > t1);
    for way in Way::ALL {
        admin.fw(way, "s", t1, 1, 666).await.refused(STALE);
        assert_eq!(admin.fw(way, "s", t2, 1, 1).await, Ok(1));
    }
    a.wake();
    a.ask(&format!("SELECT lease_release('s', {t1})")).await.expect_err("it was ended");
    assert_eq!(admin.is_current("s", t2).await, Ok(true));
}

/// Exclusion is not once: the second has the lease, one after the other, and finds the work done.
#[tokio::test]
async fn h25_a_lease_with_a_marker_is_once() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    a.sql("CREATE TABLE done (slot text)").await.unwrap();
    for slot in ["cron:2024-05-01T02:00", "cron:2024-05-01T03:00"] {
        let mut calls: Vec<tokio::task::JoinHandle<bool>> = Vec::new();
        for session in [&a, &b] {
            calls.push(session.beside(move |me| async move {
                let t = me.acq_wait("cron", "me", "60 s", "20 s").await.granted();
                me.sql("BEGIN").await.unwrap();
                let first = me.once(slot).await.unwrap();
                if first {
                    me.exec("INSERT INTO done VALUES ($1)", &[&slot]).await.unwrap();
                }
                me.commit().await.unwrap();
                assert_eq!(me.rel("cron", t).await, Ok(true));
                first
            }));
        }
        let mut firsts = 0;
        for call in calls {
            firsts += i32::from(call.await.unwrap());
        }
        assert_eq!(firsts, 1);
        let count: i64 =
            a.one("SELECT count(*) FROM done WHERE slot = $1", &[&slot]).await.unwrap();
        assert_eq!(count, 1, "{slot}");
    }
}

#[tokio::test]
async fn h34_a_session_bound_release_after_a_failed_transaction_works() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t1 = a.sacq("j", "A", "0").await.granted();
    a.sql("BEGIN").await.unwrap();
    a.exec("SELECT 1 / 0", &[]).await.refused("22012");
    a.rel("j", t1).await.refused("25P02");
    a.rollback().await;
    assert_eq!(a.is_current("j", t1).await, Ok(true));
    assert_eq!(a.rel("j", t1).await, Ok(true));

    a.sql("BEGIN").await.unwrap();
    let t2 = a.sacq("j", "A", "0").await.granted();
    let call = stand(&db, &b, "j", "20 s").await;
    a.exec("SELECT 1 / 0", &[]).await.refused("22012");
    // The failed transaction has let go already, before its ROLLBACK.
    let t3 = call.await.unwrap().granted();
    assert!(t3 > t2 && t2 > t1);
    a.rollback().await;
    assert_eq!(a.rel("j", t2).await, Ok(false));
    assert_eq!(b.is_current("j", t3).await, Ok(true));
    has_no_lock(&db, a.pid()).await;
}
