//! Who holds a lease, and who does not any more.

use lock_ext_sessions::{Asked, Client, Db, LEVELS, PgError, Refused, STALE, Way};

use crate::CLIENT;

/// The old holder comes back as three transactions that have an old snapshot, as autocommit calls, and
/// as a frozen process with an open write. It tries the row that the new holder has written and one
/// that nobody has.
#[tokio::test]
async fn h01_a_frozen_holder_is_refused_when_it_comes_back() {
    let db = Db::fresh().await;
    db.fence("job").await;
    let [a, b] = db.sessions().await;
    let mut frozen = Client::start(&db, CLIENT).await;

    let t1 = a.acq("job", "A", "2 s").await.granted();
    let mut old = Vec::new();
    for level in LEVELS {
        let session = db.session().await;
        session.begin(level).await;
        session.exec("SELECT FROM plain, stamped", &[]).await.expect("a snapshot");
        old.push(session);
    }
    for sql in [
        "BEGIN",
        &format!("SELECT lease_fence('job', {t1})"),
        "UPDATE plain SET v = 1 WHERE id = 3",
        &format!("UPDATE stamped SET v = 1, token = {t1} WHERE id = 3"),
    ] {
        frozen.ask(sql).await.expect("the holder writes");
    }
    frozen.freeze().await;
    db.expired("job").await;

    let t2 = b.acq("job", "B", "60 s").await.granted();
    assert!(t2 > t1);
    for way in Way::ALL {
        assert_eq!(b.fw(way, "job", t2, 1, 2).await, Ok(1), "{way:?}");
    }
    let expiry = b.expiry("job").await;

    frozen.wake();
    assert_eq!(frozen.ask("COMMIT").await, Err(STALE.to_owned()));
    for (session, level) in old.iter().zip(LEVELS) {
        for way in Way::ALL {
            for id in [1, 2] {
                session.sql("SAVEPOINT s").await.expect("a savepoint");
                let refusal = session.fw_in_block(way, "job", t1, id, 666).await;
                // By column, PostgreSQL itself may be first: the row has changed since the snapshot.
                let changed = way == Way::Column && id == 1 && level != "READ COMMITTED";
                if !(changed && code(&refusal) == "40001") {
                    assert_eq!(code(&refusal), STALE, "{way:?} to row {id} at {level}");
                }
                session.sql("ROLLBACK TO s").await.expect("the transaction goes on");
            }
        }
        session.rollback().await;
    }
    for way in Way::ALL {
        for id in [1, 2] {
            a.fw(way, "job", t1, id, 666).await.refused(STALE);
        }
    }
    a.ext("job", t1, "60 s").await.lost();
    a.ext_as_granted("job", t1).await.lost();
    assert_eq!(a.rel("job", t1).await, Ok(false));

    assert_eq!(b.expiry("job").await, expiry);
    for table in ["plain", "stamped"] {
        assert_eq!(
            [db.v(table, 1).await, db.v(table, 2).await, db.v(table, 3).await],
            [2, 0, 0],
            "{table}"
        );
    }
}

fn code<T>(answer: &Result<T, PgError>) -> &str {
    answer.as_ref().err().map_or("no error", |error| &error.code)
}

/// B asks again and again. (Waiting instead: `waiting`.)
#[tokio::test]
async fn h02_a_killed_holders_lease_ends_by_itself() {
    let db = Db::fresh().await;
    let b = db.session().await;
    let mut a = Client::start(&db, CLIENT).await;

    let t1: i64 = a
        .ask("SELECT lease_acquire('migrate', 'A', '2 s')")
        .await
        .expect("granted")
        .parse()
        .unwrap();
    let expiry = b.expiry("migrate").await;
    a.kill().await;
    db.gone(a.backend()).await;

    // The end of the session is not the end of the lease, the clock is.
    let t2 = loop {
        if let Some(token) = b.acq("migrate", "B", "60 s").await.expect("an answer") {
            break token;
        }
        assert!(
            b.clock().await < expiry + std::time::Duration::from_secs(5),
            "the lease outlives its time"
        );
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert!(t2 > t1);
    let acquired_at: std::time::SystemTime =
        b.one("SELECT acquired_at FROM lease_status WHERE name = 'migrate'", &[]).await.unwrap();
    assert!(acquired_at >= expiry, "B was granted before A's time was over");
}

#[tokio::test]
async fn h02_no_lease_lives_for_ever_by_mistake() {
    let db = Db::fresh().await;
    let a = db.session().await;
    a.exec("SELECT lease_acquire('migrate', 'A', NULL)", &[]).await.refused("22004");
    a.exec("SELECT lease_acquire('migrate', 'A')", &[]).await.refused("42883");
    a.acq("migrate", "A", "1000 years").await.refused("22023");
    a.exec("SELECT lease_elect('migrate', 'A', NULL)", &[]).await.refused("22004");
    assert_eq!(a.info("migrate").await, None);

    let t = a.acq("migrate", "A", "60 s").await.granted();
    let expiry = a.expiry("migrate").await;
    a.exec("SELECT lease_extend('migrate', $1, NULL)", &[&t]).await.refused("22004");
    a.exec("SELECT lease_extend_many(ARRAY['migrate'], ARRAY[$1::bigint], NULL)", &[&t])
        .await
        .refused("22004");
    assert_eq!(a.expiry("migrate").await, expiry);
}

#[tokio::test]
async fn h03_nobody_else_renews_a_lease() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    // A token that is current, but of another name.
    let foreign = b.acq("other", "B", "60 s").await.granted();
    let t1 = a.acq("lead", "A", "60 s").await.granted();
    let before = a.info("lead").await.map(|s| (s.holder, s.token, s.expires_at));

    for token in [t1 + 1, t1 - 1, foreign, 0, -1, i64::MAX, i64::MIN] {
        b.ext("lead", token, "120 s").await.lost();
        b.ext_as_granted("lead", token).await.lost();
        let renewed = b.ext_many(&["lead"], &[token], "120 s").await.expect("an answer");
        assert_eq!(renewed.len(), 1);
        assert_eq!(renewed[0].expires_at, None);
        b.lead("lead", "B", "120 s", Some(token)).await.busy();
        assert_eq!(b.is_current("lead", token).await, Ok(false));
    }
    b.exec("SELECT lease_extend('lead', NULL)", &[]).await.refused("22004");
    b.exec("SELECT lease_extend('lead', NULL, '120 s')", &[]).await.refused("22004");
    b.exec("SELECT lease_extend_many(ARRAY['lead'], ARRAY[NULL::bigint], '120 s')", &[])
        .await
        .refused("22004");
    // Under the holder's own name: the name proves nothing.
    b.lead("lead", "A", "120 s", None).await.busy();
    // A name that nobody ever held.
    b.ext("nobody", t1, "120 s").await.lost();
    assert_eq!(b.info("nobody").await, None, "extending never inserts");

    assert_eq!(a.info("lead").await.map(|s| (s.holder, s.token, s.expires_at)), before);
    a.ext("lead", t1, "60 s").await.extended();
}

#[tokio::test]
async fn h04_a_heartbeat_may_be_rolled_back_or_lost() {
    let db = Db::fresh().await;
    let [a, other, unlucky, new] = db.sessions().await;
    let t1 = a.acq("j", "A", "10 s").await.granted();
    let first = a.expiry("j").await;

    other.sql("BEGIN").await.unwrap();
    other.ext("j", t1, "60 s").await.extended();
    other.rollback().await;
    assert_eq!(a.expiry("j").await, first, "a rolled back heartbeat leaves the old expiry");
    other.sql("BEGIN; SAVEPOINT s").await.unwrap();
    other.ext("j", t1, "60 s").await.extended();
    other.sql("ROLLBACK TO s; COMMIT").await.unwrap();
    assert_eq!(a.expiry("j").await, first, "nor does one of a savepoint");
    let second = other.ext("j", t1, "10 s").await.extended();
    assert!(second > first);

    // The answer is lost after the commit: the new expiry can be seen, the client is gone.
    let lost = unlucky.ext("j", t1, "20 s").await.extended();
    db.terminate(unlucky.pid()).await;
    unlucky.ext("j", t1, "20 s").await.refused(PgError::CLOSED);
    assert_eq!(a.expiry("j").await, lost);

    let third = new.ext("j", t1, "20 s").await.extended();
    assert!(third > lost);
    assert_eq!(new.is_current("j", t1).await, Ok(true));
    let status = a.info("j").await.unwrap();
    assert_eq!((status.token, status.expires_at), (Some(t1), Some(third)));
}

#[tokio::test]
async fn h05_a_late_release_changes_nothing() {
    let db = Db::fresh().await;
    let [a, b, c] = db.sessions().await;
    let t1 = a.acq("pay", "A", "100 ms").await.granted();
    db.expired("pay").await;
    let t2 = b.acq("pay", "B", "60 s").await.granted();
    let held = b.info("pay").await.map(|s| (s.state, s.holder, s.token, s.expires_at));

    assert_eq!(a.rel("pay", t1).await, Ok(false));
    assert_eq!(a.complete("pay", t1).await, Ok(false), "completing is a release");
    for token in [t2 + 1, 0, -1] {
        assert_eq!(a.rel("pay", token).await, Ok(false));
    }
    a.exec("SELECT lease_release('pay', NULL)", &[]).await.refused("22004");
    a.exec("SELECT lease_complete('pay', NULL)", &[]).await.refused("22004");
    a.sql("BEGIN").await.unwrap();
    assert_eq!(a.rel("pay", t1).await, Ok(false), "nor in a transaction");
    a.commit().await.expect("a release that did nothing breaks nothing");

    assert_eq!(b.info("pay").await.map(|s| (s.state, s.holder, s.token, s.expires_at)), held);
    c.acq("pay", "C", "60 s").await.busy();
    assert_eq!(b.rel("pay", t2).await, Ok(true));
    assert_eq!(b.rel("pay", t2).await, Ok(false), "true once");
}

#[tokio::test]
async fn h23_neither_the_session_nor_the_name_is_the_holder() {
    let db = Db::fresh().await;
    let [a, elsewhere] = db.sessions().await;
    let t1 = a.acq("r", "A", "60 s").await.granted();
    a.acq("r", "A", "60 s").await.busy();
    elsewhere.acq("r", "A", "60 s").await.busy();
    a.acq("r", "job-2", "60 s").await.busy();
    a.lead("r", "A", "60 s", None).await.busy();
    assert_eq!(a.is_current("r", t1).await, Ok(true));
    assert_eq!(elsewhere.is_current("r", t1).await, Ok(true), "the token is what counts");

    assert_eq!(elsewhere.rel("r", t1).await, Ok(true));
    assert_eq!(a.is_current("r", t1).await, Ok(false), "the holder can find out that it is none");
    let t2 = a.acq("r", "A", "60 s").await.granted();
    assert!(t2 > t1);
    assert_eq!(a.is_current("r", t1).await, Ok(false), "never two tokens at once");
    assert_eq!(a.is_current("r", t2).await, Ok(true));
}
