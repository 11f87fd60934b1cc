//! How long a call waits, and how it is ended.

use std::time::{Duration, Instant};

use lock_ext_sessions::{Asked, Db, PgError, Refused, Session};

use super::scene::{Call, asleep, has_no_lock, in_line, line, nobody_waits, stand};

#[tokio::test]
async fn a_wait_that_runs_out_is_null_and_not_before() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    a.acq("j", "A", "1 hour").await.granted();
    a.sacq("s", "A", "0").await.granted();
    for (wait, at_least) in [
        ("1 microsecond", 0),
        ("0.5 ms", 0),
        ("1 ms", 1),
        ("20 ms", 20),
        ("300 ms", 300),
        ("0.7 s", 700),
    ] {
        for name in ["j", "s"] {
            for bound in [false, true] {
                let begun = Instant::now();
                let answer = match bound {
                    true => b.sacq(name, "B", wait).await,
                    false => b.acq_wait(name, "B", "60 s", wait).await,
                };
                assert_eq!(answer, Ok(None), "{wait}");
                let took = begun.elapsed();
                assert!(took >= Duration::from_millis(at_least), "{wait}: {took:?}");
                assert!(took < Duration::from_secs(20), "{wait}: {took:?}");
                has_no_lock(&db, b.pid()).await;
            }
        }
    }
    nobody_waits(&db).await;
}

#[tokio::test]
async fn a_long_wait_is_a_wait() {
    let db = Db::fresh().await;
    let [a, w, v] = db.sessions().await;
    // The last ones are more than PostgreSQL's timers, and the clock, can say.
    for wait in ["1 day", "30 days", "10000 days", "100000 days 12:00", "106751991 days"] {
        let t = a.acq("j", "A", "1 hour").await.granted();
        let head = stand(&db, &w, "j", wait).await;
        let second = stand(&db, &v, "j", wait).await;
        asleep(&db, w.pid()).await;
        assert_eq!(a.rel("j", t).await, Ok(true));
        let t1 = head.await.unwrap().granted();
        assert_eq!(w.rel("j", t1).await, Ok(true));
        let t2 = second.await.unwrap().granted();
        assert_eq!(v.rel("j", t2).await, Ok(true), "{wait}");
    }
}

#[tokio::test]
async fn a_wait_is_zero_or_more_and_of_known_length() {
    let db = Db::fresh().await;
    let a = db.session().await;
    for (wait, code) in [
        ("NULL", "22004"),
        ("'-1 microsecond'", "22023"),
        ("'-1 day'", "22023"),
        ("'1 day -25 hours'", "22023"),
        ("'1 month'", "22023"),
        ("'1 month -30 days'", "22023"),
        ("'-1 month 1 year'", "22023"),
        ("'2147483647 days'", "22023"),
    ] {
        for call in ["lease_acquire('j', 'A', '60 s', ", "lease_acquire_session('j', 'A', "] {
            let error = a.sql(&format!("SELECT {call}wait => {wait})")).await;
            let case = format!("{call}{wait}");
            if wait.contains("2147483647") {
                // More days than there are microseconds for: an error or a very long wait, for a lease that is free.
                if let Err(error) = error {
                    assert_eq!(error.code, code, "{case}");
                } else {
                    a.sql("SELECT lease_force_release('j')").await.unwrap();
                }
                continue;
            }
            error.refused(code);
            assert_eq!(a.info("j").await, None, "{case}: a refused call is not a holder");
            has_no_lock(&db, a.pid()).await;
        }
    }
    // Days count as 24 hours.
    let t = a.acq_wait("k", "A", "60 s", "1 day -23 hours").await.granted();
    a.acq_wait("k", "A", "60 s", "1 day -24 hours").await.busy();
    assert_eq!(a.rel("k", t).await, Ok(true));
}

/// Where a waiter can be when it is told to go.
#[derive(Clone, Copy, Debug)]
enum Place {
    Head,
    Second,
    /// The lease is granted in a transaction that is open.
    BehindOpenGrant,
    /// Bound to a session.
    BehindSession,
}

const PLACES: [Place; 4] =
    [Place::Head, Place::Second, Place::BehindOpenGrant, Place::BehindSession];

struct Scene {
    db: Db,
    holder: Session,
    token: i64,
    other: Session,
    head: Option<Call>,
}

impl Scene {
    async fn set(place: Place) -> Self {
        let db = Db::fresh().await;
        let [holder, other] = db.sessions().await;
        let token = match place {
            Place::BehindSession => holder.sacq("w", "A", "0").await.granted(),
            Place::BehindOpenGrant => {
                holder.sql("BEGIN").await.unwrap();
                holder.acq("w", "A", "1 hour").await.granted()
            }
            _ => holder.acq("w", "A", "1 hour").await.granted(),
        };
        let head = match place {
            Place::Second => Some(stand(&db, &other, "w", "50 s").await),
            _ => None,
        };
        Self { db, holder, token, other, head }
    }

    /// Nothing is left of the waiter, and after the holder's release the next one is served at once.
    async fn goes_on_without(self, pid: i32, place: Place) {
        let Self { db, holder, token, other, head } = self;
        has_no_lock(&db, pid).await;
        let waiting = line(&db, "w").await;
        assert!(!waiting.contains(&pid), "{place:?}: {waiting:?}");
        if matches!(place, Place::BehindOpenGrant) {
            holder.commit().await.unwrap();
        }
        assert_eq!(db.watch.info("w").await.unwrap().holder.as_deref(), Some("A"), "{place:?}");
        assert_eq!(holder.rel("w", token).await, Ok(true));
        let served = match head {
            Some(head) => head.await.unwrap().granted(),
            None => other.acq("w", "C", "60 s").await.granted(),
        };
        assert!(served > token);
        nobody_waits(&db).await;
    }
}

#[tokio::test]
async fn a_wait_is_ended_like_any_lock_wait() {
    for place in PLACES {
        for (end, code) in [
            ("statement_timeout", "57014"),
            ("lock_timeout", "55P03"),
            ("cancel", "57014"),
            ("terminate", "57P01"),
        ] {
            let scene = Scene::set(place).await;
            let b = scene.db.session().await;
            if end.ends_with("timeout") {
                b.sql(&format!("SET {end} = '500ms'")).await.unwrap();
            }
            let begun = Instant::now();
            let call = stand(&scene.db, &b, "w", "50 s").await;
            match end {
                "cancel" => {
                    let sent: bool = scene
                        .db
                        .watch
                        .one("SELECT pg_cancel_backend($1)", &[&b.pid()])
                        .await
                        .unwrap();
                    assert!(sent);
                }
                "terminate" => scene.db.terminate(b.pid()).await,
                _ => {}
            }
            let error = call.await.unwrap().expect_err(end);
            assert_eq!(error.code, code, "{place:?}, {end}: {error:?}");
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(20), "{place:?}, {end}: {took:?}");
            if end.ends_with("timeout") {
                assert!(took >= Duration::from_millis(500), "{place:?}, {end}: {took:?}");
            }
            if end == "terminate" {
                b.sql("SELECT 1").await.refused(PgError::CLOSED);
            } else {
                b.sql("SELECT 1").await.expect("the session goes on");
            }
            scene.goes_on_without(b.pid(), place).await;
        }
    }
}

/// The setting counts from the call, not from each step that the waiter makes.
#[tokio::test]
async fn lock_timeout_bounds_the_whole_stay() {
    let db = Db::fresh().await;
    let [a, w1, w2] = db.sessions().await;
    a.acq("j", "A", "1 hour").await.granted();
    let head = stand(&db, &w1, "j", "2500 ms").await;
    w2.sql("SET lock_timeout = '3s'").await.unwrap();
    let begun = Instant::now();
    let second = stand(&db, &w2, "j", "50 s").await;
    head.await.unwrap().busy();
    // From here on it is the head.
    asleep(&db, w2.pid()).await;
    second.await.unwrap().refused("55P03");
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(3), "{took:?}");
    assert!(took < Duration::from_secs(5), "counted again from where it became the head: {took:?}");
    nobody_waits(&db).await;
}

/// The shorter one decides, and afterwards the setting is what it was.
#[tokio::test]
async fn lock_timeout_is_as_before_after_a_wait() {
    let db = Db::fresh().await;
    let [a, b, other] = db.sessions().await;
    a.acq("j", "A", "1 hour").await.granted();
    other.sql("SELECT pg_advisory_lock(1)").await.unwrap();
    let head = stand(&db, &other, "j", "50 s").await;
    for (setting, wait, answer) in
        [("700ms", "100 ms", None), ("100ms", "700 ms", Some("55P03")), ("0", "100 ms", None)]
    {
        for in_block in [false, true] {
            let case = format!("{setting}, {wait}, {in_block}");
            b.sql(&format!("SET lock_timeout = '{setting}'")).await.unwrap();
            if in_block {
                b.sql("BEGIN").await.unwrap();
            }
            let waited = b.acq_wait("j", "B", "60 s", wait).await;
            match answer {
                None => assert_eq!(waited, Ok(None), "{case}"),
                Some(code) => drop(waited.refused(code)),
            }
            if in_block {
                b.rollback().await;
            }
            let now: String = b.one("SHOW lock_timeout", &[]).await.unwrap();
            assert_eq!(now, setting, "{case}");
            // What counts is the server's variable, which SHOW does not tell.
            let begun = Instant::now();
            let lock = b.beside(|me| async move { me.sql("SELECT pg_advisory_lock(1)").await });
            if setting == "0" {
                db.blocked(&b).await;
                // Longer than what was left of the wait.
                super::scene::pass(Duration::from_millis(400)).await;
                assert!(!lock.is_finished(), "{case}: {:?}", lock.await);
                db.watch.one::<bool>("SELECT pg_cancel_backend($1)", &[&b.pid()]).await.unwrap();
                lock.await.unwrap().refused("57014");
            } else {
                lock.await.unwrap().refused("55P03");
                let least = Duration::from_millis(setting[..3].parse().unwrap());
                assert!(begun.elapsed() >= least, "{case}");
            }
        }
    }
    assert!(!head.is_finished());
}

/// Two timeouts at almost the same moment: whichever it is, it is one of the two answers.
#[tokio::test]
async fn the_statement_timeout_of_a_granted_call_undoes_the_grant() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t = a.acq("j", "A", "1 hour").await.granted();
    b.sql("SET statement_timeout = '800ms'").await.unwrap();
    let call = b.beside(|me| async move {
        me.exec("SELECT lease_acquire('j', 'B', '60 s', '50 s'), pg_sleep(30)", &[]).await
    });
    in_line(&db, b.pid()).await;
    assert_eq!(a.rel("j", t).await, Ok(true));
    // Granted in a statement that goes on, and is ended then: error means not held.
    call.await.unwrap().refused("57014");
    assert_eq!(a.info("j").await.unwrap().holder, None);
    a.acq("j", "A", "60 s").await.granted();
}

/// A lease that is granted at the end of a wait lives for its whole time from then on.
#[tokio::test]
async fn the_time_to_live_counts_from_the_grant() {
    let db = Db::fresh().await;
    let [a, w] = db.sessions().await;
    let t = a.acq("j", "A", "1 hour").await.granted();
    let call = super::scene::stand_for(&db, &w, "j", "800 ms", "50 s").await;
    super::scene::pass(Duration::from_secs(1)).await;
    let before = a.clock().await;
    assert_eq!(a.rel("j", t).await, Ok(true));
    let t2 = call.await.unwrap().granted();
    let expiry = a.expiry("j").await;
    assert!(expiry >= before + Duration::from_millis(800), "expired while it waited");
    assert!(w.ext("j", t2, "60 s").await.unwrap().is_some() || w.clock().await >= expiry);
}

/// Everything in one statement: a wait for each row, each with its own limit.
#[tokio::test]
async fn a_statement_waits_for_each_row() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    for name in ["n1", "n3"] {
        a.acq(name, "A", "1 hour").await.granted();
    }
    let begun = Instant::now();
    let got: Vec<bool> = b
        .list(
            "SELECT lease_acquire('n' || i, 'B', '60 s', wait => '200 ms') IS NOT NULL FROM generate_series(1, 4) AS i",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(got, [false, true, false, true]);
    assert!(begun.elapsed() >= Duration::from_millis(400));
    has_no_lock(&db, b.pid()).await;
}

/// Losing is free, also after a wait: no transaction id, and so no row.
#[tokio::test]
async fn a_wait_that_runs_out_uses_no_transaction_id() {
    for place in PLACES {
        let scene = Scene::set(place).await;
        let b = scene.db.session().await;
        b.sql("BEGIN").await.unwrap();
        for _ in 0..3 {
            b.acq_wait("w", "B", "60 s", "20 ms").await.busy();
            b.sacq("w", "B", "20 ms").await.busy();
        }
        let id: Option<String> =
            b.one("SELECT pg_current_xact_id_if_assigned()::text", &[]).await.unwrap();
        assert_eq!(id, None, "{place:?}");
        scene.goes_on_without(b.pid(), place).await;
    }
}
