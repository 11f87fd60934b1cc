//! Only the database's running clock counts.

use std::time::{Duration, SystemTime};

use lock_ext_sessions::{Asked, Client, Db, Refused, Session};

use crate::CLIENT;

#[tokio::test]
async fn h06_a_retry_in_one_transaction_sees_time_pass() {
    for level in lock_ext_sessions::LEVELS {
        let db = Db::fresh().await;
        let [a, b] = db.sessions().await;
        a.acq("p", "A", "1 s").await.granted();
        b.begin(level).await;
        b.exec("SELECT 1", &[]).await.unwrap();
        b.acq("p", "B", "60 s").await.busy();
        db.expired("p").await;
        b.acq("p", "B", "60 s").await.granted();

        let status = b.info("p").await.expect("INFO in the transaction");
        assert_eq!(
            (status.state.as_str(), status.holder.as_deref()),
            ("held", Some("B")),
            "{level}"
        );
        // now() is a second old: measured with it, more than 60 s would be left.
        let remaining = status.remaining.unwrap();
        assert!((50.0..=60.0).contains(&remaining), "{remaining} s left at {level}");
        b.commit().await.unwrap();
        assert_eq!(a.info("p").await.unwrap().holder.as_deref(), Some("B"));
    }
}

#[tokio::test]
async fn h07_the_sessions_time_zones_do_not_matter() {
    let db = Db::fresh().await;
    let [tokyo, new_york] = db.sessions().await;
    tokyo.sql("SET TimeZone = 'Asia/Tokyo'").await.unwrap();
    new_york.sql("SET TimeZone = 'America/New_York'").await.unwrap();
    zones(&tokyo, &new_york, "z").await;

    let [a, b] = [db.role("tokyo").await, db.role("new_york").await];
    db.watch
        .sql(&format!(
            "ALTER ROLE {a} SET TimeZone = 'Asia/Tokyo'; ALTER ROLE {b} SET TimeZone = 'America/New_York';
             GRANT {a} TO {b}"
        ))
        .await
        .unwrap();
    let [tokyo, new_york] = [db.session_as(&a).await, db.session_as(&b).await];
    assert_eq!(
        new_york.one::<String>("SELECT current_setting('TimeZone')", &[]).await.unwrap(),
        "America/New_York"
    );
    zones(&tokyo, &new_york, "z by role").await;
}

async fn zones(a: &Session, b: &Session, lease: &str) {
    let t = a.acq(lease, "A", "60 s").await.granted();
    b.acq(lease, "B", "60 s").await.busy();
    let [seen_by_b, seen_by_a] = [b.info(lease).await.unwrap(), a.info(lease).await.unwrap()];
    for seen in [&seen_by_a, &seen_by_b] {
        assert_eq!((seen.state.as_str(), seen.holder.as_deref()), ("held", Some("A")));
        let remaining = seen.remaining.unwrap();
        assert!((40.0..=60.0).contains(&remaining), "{remaining} s left");
    }
    assert_eq!(seen_by_a.expires_at, seen_by_b.expires_at);
    // Asked for after B, so not more is left.
    assert!(seen_by_a.remaining <= seen_by_b.remaining);
    let before = a.clock().await;
    let expiry = a.ext(lease, t, "60 s").await.extended();
    assert!(expiry >= before + Duration::from_secs(60));
    assert_eq!(b.expiry(lease).await, expiry);
    b.acq(lease, "B", "60 s").await.busy();
}

/// The skew is far larger than the time to live, so a client's clock that had a say would be seen.
#[tokio::test]
async fn h08_a_clients_wrong_clock_does_not_matter() {
    let db = Db::fresh().await;
    let mut fast = Client::with_wrong_clock(&db, CLIENT, "+3m").await;
    let mut slow = Client::with_wrong_clock(&db, CLIENT, "-3m").await;
    assert!(fast.clock() - slow.clock() > 300, "faketime has no effect");

    let acquire = |who: &str| format!("SELECT lease_acquire('q', '{who}', '3 s')");
    let t1 = fast.ask(&acquire("fast")).await.unwrap();
    assert_ne!(t1, "");
    assert_eq!(slow.ask(&acquire("slow")).await.unwrap(), "");
    assert_ne!(fast.ask(&format!("SELECT lease_extend('q', {t1}, '3 s')")).await.unwrap(), "");
    let expiry = db.watch.expiry("q").await;
    let left = expiry.duration_since(db.watch.clock().await).expect("time left");
    assert!(left <= Duration::from_secs(3));
    assert_eq!(slow.ask(&acquire("slow")).await.unwrap(), "");
    db.expired("q").await;

    let t2 = slow.ask(&acquire("slow")).await.unwrap();
    assert!(t2.parse::<i64>().unwrap() > t1.parse().unwrap());
    assert_eq!(
        fast.ask(&acquire("fast")).await.unwrap(),
        "",
        "the fast clock says that it is long over"
    );
    assert_eq!(fast.ask(&format!("SELECT lease_extend('q', {t1}, '3 s')")).await.unwrap(), "");
}

/// No client can hand over a point in time at which a lease ends. (`lease_complete` takes one, but for
/// the next grant, not for a holder's tenure.)
#[tokio::test]
async fn h08_no_function_takes_the_end_of_a_lease_from_the_client() {
    let db = Db::fresh().await;
    let takers: Vec<String> = db
        .watch
        .list(
            "SELECT DISTINCT p.proname::text FROM pg_proc p
             JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
             JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'lock_ext'
             WHERE p.proargtypes::oid[] && ARRAY['timestamptz', 'timestamp', 'date']::regtype[]::oid[]",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(takers, ["lease_complete"]);
}

#[tokio::test]
async fn h22_a_wrong_time_to_live_is_an_error_and_holds_nothing() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let wrong = [
        ("0", "22023"),
        ("-1 s", "22023"),
        ("1 microsecond", "22023"),
        ("999 microseconds", "22023"),
        ("1 month", "22023"),
        ("1 month -29 days", "22023"),
        ("7 days 1 microsecond", "22023"),
        ("178000000 years", "22023"),
        ("-178000000 years", "22023"),
        ("2000000000 days", "22023"),
    ];
    for (number, (ttl, code)) in wrong.into_iter().enumerate() {
        let name = format!("e{number}");
        a.acq(&name, "A", ttl).await.refused(code);
        a.lead(&name, "A", ttl, None).await.refused(code);
        assert_eq!(a.info(&name).await, None, "after a time to live of {ttl}");
        let t = b.acq(&name, "B", "60 s").await.granted();

        let expiry = b.expiry(&name).await;
        b.ext(&name, t, ttl).await.refused(code);
        b.ext_many(&[&name], &[t], ttl).await.refused(code);
        b.lead(&name, "B", ttl, Some(t)).await.refused(code);
        assert_eq!(b.expiry(&name).await, expiry, "after a time to live of {ttl}");
        a.acq(&name, "A", "60 s").await.busy();
    }

    for (number, ttl) in ["1 ms", "7 days", "1 day 144 hours", "168 hours"].into_iter().enumerate()
    {
        let name = format!("edge{number}");
        let before = a.clock().await;
        let t = a.acq(&name, "A", ttl).await.granted();
        let expires_at = a.info(&name).await.unwrap().expires_at.unwrap();
        assert!(expires_at > before, "{ttl}");
        if ttl == "1 ms" {
            // A true short lease, over soon.
            db.expired(&name).await;
            a.ext(&name, t, "60 s").await.lost();
            b.acq(&name, "B", "60 s").await.granted();
        }
    }
    a.sql("SET lock_ext.max_ttl = '10s'").await.unwrap();
    a.acq("capped", "A", "10 s").await.granted();
    a.acq("capped too", "A", "10001 ms").await.refused("22023");
}

#[tokio::test]
async fn h22_an_extension_is_counted_from_now() {
    let db = Db::fresh().await;
    let a = db.session().await;
    let t1 = a.acq("e", "A", "2 s").await.granted();
    let seconds = Duration::from_secs;
    for round in 0..20 {
        // Beyond what was granted at first, so that the extensions count.
        if round % 5 == 4 {
            tokio::time::sleep(seconds(1)).await;
        }
        extended_from_now(&a, t1, "2 s", seconds(2)).await;
    }
    let before = a.clock().await;
    let as_granted = a.ext_as_granted("e", t1).await.extended();
    assert!(before + seconds(2) <= as_granted && as_granted <= a.clock().await + seconds(2));

    extended_from_now(&a, t1, "60 s", seconds(60)).await;
    extended_from_now(&a, t1, "1 s", seconds(1)).await;
    db.expired("e").await;
    a.ext("e", t1, "60 s").await.lost();
}

async fn extended_from_now(a: &Session, token: i64, ttl: &str, expected: Duration) {
    let before = a.clock().await;
    let expiry: SystemTime = a.ext("e", token, ttl).await.extended();
    let after = a.clock().await;
    assert!(
        before + expected <= expiry && expiry <= after + expected,
        "extended by {ttl}: {expiry:?} at {before:?}"
    );
    let status = a.info("e").await.unwrap();
    assert_eq!((status.token, status.expires_at), (Some(token), Some(expiry)));
}
