//! Narrow places, each found by an attack.

use lock_ext_sessions::{Asked, Db, Refused};

use super::scene::{asleep, stand, stand_bound};

/// COMMIT PREPARED runs in a session that knows nothing of leases, so nobody is woken by it: the head has to wait for the transaction.
#[tokio::test]
async fn a_prepared_end_is_waited_for() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    for end in ["SELECT lease_release('w', $1)", "SELECT lease_complete('w', $1, 'yesterday')"] {
        let t = a.acq("w", "A", "1 hour").await.granted();
        let call = stand(&db, &b, "w", "1 hour").await;
        asleep(&db, b.pid()).await;
        a.sql("BEGIN").await.unwrap();
        assert_eq!(a.one::<bool>(end, &[&t]).await, Ok(true));
        let id = format!("{}-{t}", db.name());
        a.sql(&format!("PREPARE TRANSACTION '{id}'")).await.unwrap();
        a.sql(&format!("COMMIT PREPARED '{id}'")).await.unwrap();
        let taken = call.await.unwrap().granted();
        assert_eq!(b.rel("w", taken).await, Ok(true));
    }
}

/// Who waits has no lock on our table: REINDEX would wait for it, and everybody else, the holder's release too, for REINDEX.
#[tokio::test]
async fn our_table_can_be_rebuilt_beside_a_line() {
    let db = Db::fresh().await;
    let [a, b, c, admin] = db.sessions().await;
    let t = a.acq("w", "A", "1 hour").await.granted();
    let head = stand(&db, &b, "w", "1 hour").await;
    asleep(&db, b.pid()).await;
    let second = stand(&db, &c, "w", "1 hour").await;
    for sql in ["REINDEX TABLE lock_ext.lease", "VACUUM FULL lock_ext.lease"] {
        admin.sql("SET lock_timeout = '30 s'").await.unwrap();
        admin.sql(sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
    }
    assert_eq!(a.rel("w", t).await, Ok(true));
    let t = head.await.unwrap().granted();
    assert_eq!(b.rel("w", t).await, Ok(true));
    second.await.unwrap().granted();
}

/// The wait may run out at the moment at which the place in line is reached: NULL, not somebody else's error.
#[tokio::test]
async fn equal_waits_end_in_null() {
    let db = Db::fresh().await;
    let a = db.session().await;
    a.acq("w", "A", "1 hour").await.granted();
    let mut calls = Vec::new();
    for _ in 0..8 {
        let session = db.session().await;
        calls.push(tokio::spawn(async move {
            for _ in 0..150 {
                session.acq_wait("w", "B", "1 s", "20 ms").await.busy();
            }
        }));
    }
    for call in calls {
        call.await.unwrap();
    }
}

/// It has no time to live that a clock could prolong.
#[tokio::test]
async fn a_clock_that_stepped_back_leaves_a_session_its_lease() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t = a.sacq("s", "A", "0").await.granted();
    b.sql(
        "UPDATE lock_ext.lease SET renewed_at = now() + '1 hour', acquired_at = now() + '1 hour'",
    )
    .await
    .unwrap();
    b.acq("s", "B", "1 s").await.busy();
    b.acq_wait("s", "B", "1 s", "50 ms").await.busy();
    let shown =
        "SELECT expires_at = 'infinity' AND state = 'held' FROM lease_status WHERE name = 's'";
    assert_eq!(b.one::<bool>(shown, &[]).await, Ok(true));
    assert_eq!(a.is_current("s", t).await, Ok(true));
}

/// With the expiry the minimum hold moves.
#[tokio::test]
async fn a_clock_that_stepped_back_does_not_prolong_the_minimum_hold() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let acquire = "SELECT lease_acquire('m', 'A', '200 ms', min_hold => '300 ms')";
    a.one::<i64>(acquire, &[]).await.unwrap();
    b.sql(
        "UPDATE lock_ext.lease SET renewed_at = renewed_at + '1 hour'::interval, expires_at = expires_at + '1 hour'::interval,
                                   not_before = not_before + '1 hour'::interval",
    )
    .await
    .unwrap();
    b.acq_wait("m", "B", "1 s", "30 s").await.granted();
}

#[tokio::test]
async fn minimum_hold_and_pause_have_the_limit_of_the_time_to_live() {
    let db = Db::fresh().await;
    let a = db.session().await;
    for argument in ["min_hold", "pause"] {
        for (span, fits) in [("7 days", true), ("7 days 1 ms", false), ("100000000 days", false)] {
            let call =
                format!("SELECT lease_acquire('{argument}', 'A', '1 s', {argument} => '{span}')");
            match (fits, a.sql(&call).await) {
                (true, answer) => answer.unwrap(),
                (false, answer) => drop(answer.refused("22023")),
            }
        }
    }
    assert_eq!(a.one::<i64>("SELECT count(*) FROM lease_status", &[]).await, Ok(2));
}

/// A name that is kept from others is in use.
#[tokio::test]
async fn neither_pause_nor_minimum_hold_is_pruned_away() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let prune = "SELECT lease_prune($1::text::interval)";
    for argument in ["min_hold", "pause"] {
        let acquire = format!("SELECT lease_acquire($1, 'A', '50 ms', {argument} => '1 hour')");
        a.one::<i64>(&acquire, &[&argument]).await.unwrap();
        db.expired(argument).await;
        assert_eq!(b.one::<i64>(prune, &[&"0"]).await, Ok(0), "{argument}");
        b.acq(argument, "B", "1 s").await.busy();
        let later = "UPDATE lock_ext.lease SET renewed_at = renewed_at - '2 hours'::interval, expires_at = expires_at - '2 hours'::interval,
                                               not_before = not_before - '2 hours'::interval";
        b.sql(later).await.unwrap();
        assert_eq!(b.one::<i64>(prune, &[&"90 minutes"]).await, Ok(0), "{argument}");
        assert_eq!(b.one::<i64>(prune, &[&"59 minutes"]).await, Ok(1), "{argument}");
    }
}

/// When a session ended is not known, so its lease is not idle for long enough yet.
#[tokio::test]
async fn a_lease_that_was_lost_with_its_session_is_not_pruned_at_once() {
    let db = Db::fresh().await;
    let [a, admin] = db.sessions().await;
    let t = a.sacq("s", "A", "0").await.granted();
    a.cp("s", t, "{\"n\": 1}").await.unwrap();
    admin.sql("UPDATE lock_ext.lease SET acquired_at = now() - '10 days'::interval, renewed_at = acquired_at").await.unwrap();
    a.sql("DISCARD ALL").await.unwrap();
    let prune = "SELECT lease_prune($1::text::interval)";
    assert_eq!(admin.one::<i64>(prune, &[&"7 days"]).await, Ok(0));
    assert_eq!(admin.read_cp("s").await, Ok(Some("{\"n\": 1}".into())));
    admin.sql("UPDATE lock_ext.lease SET released_at = now() - '8 days'::interval").await.unwrap();
    assert_eq!(admin.one::<i64>(prune, &[&"7 days"]).await, Ok(1));
}

/// A prepared transaction has no session that a lease could be bound to.
#[tokio::test]
async fn what_is_bound_to_the_session_is_not_prepared() {
    let db = Db::fresh().await;
    let a = db.session().await;
    let prepare = format!("PREPARE TRANSACTION '{}'", db.name());
    a.sql("BEGIN").await.unwrap();
    a.sacq("s", "A", "0").await.granted();
    a.sql(&prepare).await.refused("0A000");
    let t = a.sacq("s", "A", "0").await.granted();
    a.sql("BEGIN").await.unwrap();
    assert_eq!(a.rel("s", t).await, Ok(true));
    a.sql(&prepare).await.refused("0A000");
    assert_eq!(a.is_current("s", t).await, Ok(true));
}

/// A session may still have the number of an extension that was dropped.
#[tokio::test]
async fn a_number_that_a_session_has_from_before_is_not_given_again() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let old = a.sacq("s", "A", "0").await.granted();
    a.sql("DROP EXTENSION lock_ext; CREATE EXTENSION lock_ext").await.unwrap();
    assert!(b.sacq("s", "B", "0").await.granted() > old);
}

/// A waiter for a session's lease asks only whether the session is there, and stops when it is not.
#[tokio::test]
async fn a_reset_of_the_holders_session_is_noticed() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    a.sacq("s", "A", "0").await.granted();
    let call = stand_bound(&db, &b, "s", "1 hour").await;
    asleep(&db, b.pid()).await;
    a.sql("SELECT pg_advisory_unlock_all()").await.unwrap();
    call.await.unwrap().granted();
}
