//! Waiting inside of transactions, savepoints and PL/pgSQL blocks.

use lock_ext_sessions::{Asked, Db, LEVELS, Refused, Way};

use super::scene::{has_no_lock, in_line, line, nobody_waits, stand, stand_bound};

/// An old snapshot changes nothing: the lease is read as it is, and losing or winning is no serialization failure.
#[tokio::test]
async fn a_wait_in_a_block_works_at_every_level() {
    for level in LEVELS {
        for bound in [false, true] {
            let case = format!("{level}, bound: {bound}");
            let db = Db::fresh().await;
            db.fence("j").await;
            let [a, w, next] = db.sessions().await;
            let t = a.acq("j", "A", "1 hour").await.granted();
            w.begin(level).await;
            w.exec("SELECT FROM plain", &[]).await.expect("a snapshot");
            w.acq_wait("j", "W", "60 s", "100 ms").await.busy();
            has_no_lock(&db, w.pid()).await;
            a.fw(Way::Transaction, "j", t, 2, 5).await.expect("the lease was A's all the time");

            let call = match bound {
                true => stand_bound(&db, &w, "j", "40 s").await,
                false => stand(&db, &w, "j", "40 s").await,
            };
            assert_eq!(a.rel("j", t).await, Ok(true));
            let t2 = call.await.unwrap().granted();
            assert!(t2 > t, "{case}");
            // Its own, before it is committed; for others it is not free.
            assert_eq!(w.is_current("j", t2).await, Ok(true), "{case}");
            next.acq("j", "N", "60 s").await.busy();
            assert_eq!(w.fw_in_block(Way::Transaction, "j", t2, 1, 7).await, Ok(1), "{case}");
            let behind = stand(&db, &next, "j", "40 s").await;
            w.commit().await.expect(&case);
            assert_eq!(db.v("plain", 1).await, 7, "{case}");
            assert!(!behind.is_finished(), "{case}");
            assert_eq!(w.rel("j", t2).await, Ok(true), "{case}");
            behind.await.unwrap().granted();
            nobody_waits(&db).await;
        }
    }
}

/// As a default of the session, for calls outside of blocks.
#[tokio::test]
async fn a_line_of_autocommit_calls_works_at_every_level() {
    for level in LEVELS {
        let db = Db::fresh().await;
        let a = db.session().await;
        let mut t = a.acq("j", "A", "1 hour").await.granted();
        let mut holder = a;
        let mut calls = Vec::new();
        for _ in 0..5 {
            let session = db.session().await;
            session
                .sql(&format!("SET default_transaction_isolation = '{}'", level.to_lowercase()))
                .await
                .unwrap();
            let call = stand(&db, &session, "j", "40 s").await;
            calls.push((session, call));
        }
        for (session, call) in calls {
            assert_eq!(holder.rel("j", t).await, Ok(true), "{level}");
            let token = call.await.unwrap().granted();
            assert!(token > t, "{level}");
            (holder, t) = (session, token);
        }
    }
}

/// What the waiter's transaction did before goes on, whatever the wait's answer is.
#[tokio::test]
async fn a_savepoint_takes_back_a_wait_and_its_grant() {
    let db = Db::fresh().await;
    let [a, w, next] = db.sessions().await;
    w.sql("CREATE TABLE noted (n int)").await.unwrap();
    for bound in [false, true] {
        let t = a.acq("j", "A", "1 hour").await.granted();
        w.sql("BEGIN; INSERT INTO noted VALUES (1); SAVEPOINT s").await.unwrap();
        // Ran out, in a savepoint that is rolled back, and in one that is not.
        w.acq_wait("j", "W", "60 s", "50 ms").await.busy();
        w.sql("ROLLBACK TO s").await.unwrap();
        w.acq_wait("j", "W", "60 s", "50 ms").await.busy();
        w.sql("RELEASE s; SAVEPOINT s").await.unwrap();
        has_no_lock(&db, w.pid()).await;

        // Broken off.
        let call = stand(&db, &w, "j", "40 s").await;
        db.watch.one::<bool>("SELECT pg_cancel_backend($1)", &[&w.pid()]).await.unwrap();
        call.await.unwrap().refused("57014");
        // The failed transaction is in nobody's way, before its ROLLBACK.
        has_no_lock(&db, w.pid()).await;
        assert_eq!(line(&db, "j").await, Vec::<i32>::new());
        w.sql("ROLLBACK TO s").await.unwrap();

        // Granted, and taken back.
        let call = match bound {
            true => stand_bound(&db, &w, "j", "40 s").await,
            false => stand(&db, &w, "j", "40 s").await,
        };
        let behind = stand(&db, &next, "j", "40 s").await;
        assert_eq!(a.rel("j", t).await, Ok(true));
        let t2 = call.await.unwrap().granted();
        assert!(!behind.is_finished());
        w.sql("ROLLBACK TO s").await.unwrap();
        let t3 = behind.await.unwrap().granted();
        assert!(t3 > t2, "bound: {bound}");
        has_no_lock(&db, w.pid()).await;
        assert_eq!(w.is_current("j", t2).await, Ok(false));
        w.commit().await.expect("the transaction goes on");
        assert_eq!(next.rel("j", t3).await, Ok(true));
    }
    assert_eq!(a.one::<i64>("SELECT count(*) FROM noted", &[]).await, Ok(2));
    nobody_waits(&db).await;
}

/// A waiter's grant in an open block: who is behind it waits for the block's end, and for no more.
#[tokio::test]
async fn the_next_in_line_waits_for_the_block_of_the_one_before() {
    let db = Db::fresh().await;
    let [a, w, next] = db.sessions().await;
    for end in ["COMMIT", "ROLLBACK"] {
        let t = a.acq("j", "A", "1 hour").await.granted();
        w.sql("BEGIN").await.unwrap();
        let call = stand(&db, &w, "j", "40 s").await;
        let behind = stand(&db, &next, "j", "40 s").await;
        assert_eq!(a.rel("j", t).await, Ok(true));
        let t2 = call.await.unwrap().granted();
        // Still in its block, it has left the line: the next one is the head.
        db.until(
            "SELECT wait_event = 'transactionid' FROM pg_stat_activity WHERE pid = $1",
            &[&next.pid()],
        )
        .await;
        has_no_lock_of_lines(&db, w.pid()).await;
        w.sql(end).await.unwrap();
        if end == "COMMIT" {
            assert!(!behind.is_finished());
            assert_eq!(w.rel("j", t2).await, Ok(true));
        }
        let t3 = behind.await.unwrap().granted();
        assert_eq!(next.rel("j", t3).await, Ok(true));
    }
}

async fn has_no_lock_of_lines(db: &Db, pid: i32) {
    let lines = super::scene::LINES;
    let count: i64 = db
        .watch
        .one(&format!("SELECT count(*) FROM ({lines}) AS l WHERE pid = $1"), &[&pid])
        .await
        .unwrap();
    assert_eq!(count, 0);
}

/// The block catches what ends the wait, and stays in its function for as long as the test likes: it waits for an advisory lock there.
#[tokio::test]
async fn a_caught_error_leaves_no_place_in_line() {
    for (setting, condition) in [
        ("SET LOCAL lock_timeout = '200ms'", "lock_not_available"),
        ("", "query_canceled"),
        ("", "OTHERS"),
    ] {
        for second in [false, true] {
            let case = format!("{condition}, behind another: {second}");
            let db = Db::fresh().await;
            let [a, w, gate, third] = db.sessions().await;
            let t = a.acq("j", "A", "1 hour").await.granted();
            gate.sql("SELECT pg_advisory_lock(1)").await.unwrap();
            let head = match second {
                true => Some(stand(&db, &third, "j", "50 s").await),
                false => None,
            };
            let text = format!(
                "DO $$
                 BEGIN
                     {set}
                     BEGIN
                         PERFORM lease_acquire('j', 'W', '60 s', wait => '50 s');
                     EXCEPTION
                         WHEN query_canceled THEN ASSERT '{condition}' <> 'lock_not_available';
                         WHEN lock_not_available THEN ASSERT '{condition}' = 'lock_not_available';
                         WHEN unique_violation THEN ASSERT '{condition}' = 'OTHERS';
                     END;
                     SET LOCAL lock_timeout = 0;
                     PERFORM pg_advisory_xact_lock(1);
                 END$$",
                set = if setting.is_empty() { String::new() } else { format!("{setting};") },
            );
            let call = w.beside(move |me| async move { me.sql(&text).await });
            if setting.is_empty() {
                in_line(&db, w.pid()).await;
                db.watch.one::<bool>("SELECT pg_cancel_backend($1)", &[&w.pid()]).await.unwrap();
            }
            db.until(
                "SELECT wait_event = 'advisory' FROM pg_stat_activity WHERE pid = $1",
                &[&w.pid()],
            )
            .await;
            // Still in its statement, it has no place in line and delays nobody.
            assert!(!line(&db, "j").await.contains(&w.pid()), "{case}");
            has_no_lock_of_lines(&db, w.pid()).await;
            assert_eq!(a.rel("j", t).await, Ok(true));
            let served = match head {
                Some(head) => head.await.unwrap().granted(),
                None => third.acq("j", "C", "60 s").await.granted(),
            };
            assert!(served > t, "{case}");
            gate.sql("SELECT pg_advisory_unlock(1)").await.unwrap();
            call.await.unwrap().expect(&case);
        }
    }
}

/// A wait that is granted in a block that fails, and one that runs out there.
#[tokio::test]
async fn a_failed_plpgsql_block_gives_the_lease_back() {
    let db = Db::fresh().await;
    let [a, w, next] = db.sessions().await;
    for acquire in [
        "lease_acquire('j', 'W', '60 s', wait => '40 s')",
        "lease_acquire_session('j', 'W', wait => '40 s')",
    ] {
        let t = a.acq("j", "A", "1 hour").await.granted();
        w.sql("BEGIN").await.unwrap();
        let text = format!(
            "DO $$
             DECLARE token bigint;
             BEGIN
                 FOR i IN 1 .. 3 LOOP
                     BEGIN
                         token := lease_acquire('j', 'W', '60 s', wait => '20 ms');
                         ASSERT token IS NULL;
                         RAISE unique_violation;
                     EXCEPTION WHEN unique_violation THEN NULL;
                     END;
                 END LOOP;
                 BEGIN
                     token := {acquire};
                     ASSERT token IS NOT NULL;
                     RAISE unique_violation;
                 EXCEPTION WHEN unique_violation THEN NULL;
                 END;
             END$$"
        );
        let call = w.beside(move |me| async move { me.sql(&text).await });
        // Past the three short ones, which nobody could be behind for so long.
        db.until(
            "SELECT clock_timestamp() - query_start > '1 s' FROM pg_stat_activity WHERE pid = $1",
            &[&w.pid()],
        )
        .await;
        in_line(&db, w.pid()).await;
        let behind = stand(&db, &next, "j", "40 s").await;
        assert_eq!(a.rel("j", t).await, Ok(true));
        call.await.unwrap().expect("the error was caught");
        // The block is still open.
        let t2 = behind.await.unwrap().granted();
        has_no_lock(&db, w.pid()).await;
        w.commit().await.unwrap();
        assert_eq!(next.is_current("j", t2).await, Ok(true));
        assert_eq!(next.rel("j", t2).await, Ok(true));
    }
}

/// A cursor fetches one grant after the other; the lock of the line is not left to the portal.
#[tokio::test]
async fn a_cursor_leaves_no_place_in_line() {
    let db = Db::fresh().await;
    let [a, w] = db.sessions().await;
    let t = a.acq("n2", "A", "1 hour").await.granted();
    w.sql(
        "BEGIN; DECLARE c CURSOR FOR
         SELECT lease_acquire('n' || i, 'W', '60 s', wait => '30 ms') FROM generate_series(1, 3) AS i",
    )
    .await
    .unwrap();
    let mut got = Vec::new();
    for _ in 0..3 {
        got.push(w.one::<Option<i64>>("FETCH c", &[]).await.unwrap().is_some());
        has_no_lock(&db, w.pid()).await;
    }
    assert_eq!(got, [true, false, true]);
    w.sql("CLOSE c").await.unwrap();
    w.commit().await.unwrap();
    assert_eq!(a.rel("n2", t).await, Ok(true));
    a.acq("n2", "A", "60 s").await.granted();
    nobody_waits(&db).await;
}

/// The waiter's own transaction has the lease: it would wait for itself.
#[tokio::test]
async fn nobody_waits_for_itself() {
    let db = Db::fresh().await;
    let a = db.session().await;
    a.sql("BEGIN").await.unwrap();
    let t = a.acq("j", "A", "60 s").await.granted();
    a.acq_wait("j", "A", "60 s", "100 ms").await.busy();
    a.sacq("j", "A", "100 ms").await.busy();
    // A pending release of its own makes it free for itself.
    assert_eq!(a.rel("j", t).await, Ok(true));
    let t2 = a.acq_wait("j", "A", "60 s", "100 ms").await.granted();
    assert!(t2 > t);
    a.commit().await.unwrap();
    assert_eq!(a.is_current("j", t2).await, Ok(true));
}
