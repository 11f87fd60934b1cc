//! `once` and checkpoints go with the caller's transaction.

use lock_ext_sessions::{Asked, Db, LEVELS, PgError, Refused, STALE};

#[tokio::test]
async fn once_is_first_for_one_of_twenty_sessions() {
    let db = Db::fresh().await;
    for level in LEVELS {
        let mut sessions = Vec::new();
        for _ in 0..20 {
            let session = db.session().await;
            sessions.push(session.beside(move |me| async move {
                me.begin(level).await;
                let first = me.once(level).await;
                match first {
                    Ok(first) => me.commit().await.map(|()| first),
                    Err(error) => {
                        me.rollback().await;
                        Err(error)
                    }
                }
            }));
        }
        let mut firsts = 0;
        for session in sessions {
            match session.await.unwrap() {
                Ok(first) => firsts += usize::from(first),
                // Retryable, and never a second "first".
                Err(error) if level != "READ COMMITTED" && error.code == "40001" => {}
                Err(error) => panic!("{error:?} at {level}"),
            }
        }
        assert_eq!(firsts, 1, "{level}");
        assert_eq!(db.watch.once(level).await, Ok(false));
    }
}

#[tokio::test]
async fn an_in_flight_duplicate_waits_for_the_first() {
    let db = Db::fresh().await;
    let [first, second] = db.sessions().await;
    for (end, expected) in
        [("COMMIT", false), ("ROLLBACK", true), ("SAVEPOINT", true), ("crash", true)]
    {
        let first = if end == "crash" { db.session().await } else { first.clone() };
        first.sql("BEGIN; SAVEPOINT s").await.unwrap();
        assert_eq!(first.once(end).await, Ok(true));
        let waiting = second.beside(move |me| async move { me.once(end).await });
        db.blocked(&second).await;
        match end {
            "crash" => db.terminate(first.pid()).await,
            "SAVEPOINT" => first.sql("ROLLBACK TO s").await.unwrap(),
            end => first.sql(end).await.unwrap(),
        }
        assert_eq!(waiting.await.unwrap(), Ok(expected), "{end}");
        if end == "SAVEPOINT" {
            first.commit().await.unwrap();
        }
        assert_eq!(db.watch.once(end).await, Ok(false), "{end}");
    }
}

/// A key that was committed after the caller's snapshot counts all the same.
#[tokio::test]
async fn once_is_never_first_again_from_an_old_snapshot() {
    let db = Db::fresh().await;
    let [old, other] = db.sessions().await;
    for level in LEVELS {
        old.begin(level).await;
        old.exec("SELECT count(*) FROM pg_class", &[]).await.unwrap();
        assert_eq!(other.once(level).await, Ok(true));
        match old.once(level).await {
            Ok(first) => assert!(!first, "first twice at {level}"),
            Err(error) => assert_eq!(error.code, "40001", "{error:?} at {level}"),
        }
        old.rollback().await;
    }
}

#[tokio::test]
async fn once_goes_with_its_transaction_and_its_savepoint() {
    let db = Db::fresh().await;
    let a = db.session().await;
    a.sql("BEGIN").await.unwrap();
    assert_eq!(a.once("k").await, Ok(true));
    assert_eq!(a.once("k").await, Ok(false), "its own is there");
    a.rollback().await;
    a.sql("BEGIN; SAVEPOINT s").await.unwrap();
    assert_eq!(a.once("k").await, Ok(true));
    a.sql("ROLLBACK TO s").await.unwrap();
    assert_eq!(a.once("k").await, Ok(true));
    a.commit().await.unwrap();
    assert_eq!(a.once("k").await, Ok(false));
}

/// A fence that refuses the commit takes the marker back with it.
#[tokio::test]
async fn once_and_the_checkpoint_are_undone_with_a_refused_commit() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, b] = db.sessions().await;
    let t1 = b.acq("j", "A", "60 s").await.granted();
    b.cp("j", t1, "1").await.unwrap();
    a.sql("BEGIN").await.unwrap();
    a.fence("j", t1).await.unwrap();
    assert_eq!(a.once("player-1").await, Ok(true));
    a.sql("UPDATE plain SET v = 1 WHERE id = 1").await.unwrap();
    a.cp("j", t1, "2").await.unwrap();
    assert_eq!(a.read_cp("j").await.unwrap().as_deref(), Some("2"), "its own transaction sees it");
    assert_eq!(b.read_cp("j").await.unwrap().as_deref(), Some("1"), "others do not yet");
    b.rel("j", t1).await.unwrap();
    a.commit().await.refused(STALE);
    assert_eq!(b.once("player-1").await, Ok(true));
    assert_eq!(b.read_cp("j").await.unwrap().as_deref(), Some("1"));
}

/// A checkpoint alone is a write under the token, too.
#[tokio::test]
async fn a_stale_checkpoint_is_refused_at_commit() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    for level in LEVELS {
        let t1 = b.acq("j", "A", "60 s").await.granted();
        a.begin(level).await;
        a.cp("j", t1, "666").await.unwrap();
        b.rel("j", t1).await.unwrap();
        let t2 = b.acq("j", "B", "60 s").await.granted();
        a.commit().await.refused(STALE).detail_names(&[&"\"j\"", &t1, &t2]);
        assert_eq!(b.read_cp("j").await, Ok(None), "{level}");
        b.rel("j", t2).await.unwrap();
    }
}

#[tokio::test]
async fn a_checkpoint_goes_with_its_transaction_and_its_savepoint() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t = a.acq("j", "A", "60 s").await.granted();
    assert_eq!(a.read_cp("j").await, Ok(None));
    a.sql("BEGIN").await.unwrap();
    a.cp("j", t, "1").await.unwrap();
    a.rollback().await;
    assert_eq!(b.read_cp("j").await, Ok(None));
    a.sql("BEGIN").await.unwrap();
    a.cp("j", t, "2").await.unwrap();
    a.sql("SAVEPOINT s").await.unwrap();
    a.cp("j", t, "3").await.unwrap();
    a.sql("ROLLBACK TO s").await.unwrap();
    a.commit().await.unwrap();
    assert_eq!(b.read_cp("j").await.unwrap().as_deref(), Some("2"));
    // JSON null is a state like any other, NULL is none.
    a.cp("j", t, "null").await.unwrap();
    assert_eq!(b.read_cp("j").await.unwrap().as_deref(), Some("null"));
    a.exec("SELECT lease_checkpoint('j', $1, NULL)", &[&t]).await.refused("22004");
}

/// No lock for each key: a million of them fits as well, this many show it (the lock table has room for some 10,000).
#[tokio::test]
async fn two_hundred_thousand_keys_in_one_transaction() {
    let db = Db::fresh().await;
    let a = db.session().await;
    let keys = "SELECT count(*) FROM generate_series(1, 200000) i WHERE once('key-' || i)";
    a.sql("BEGIN").await.unwrap();
    assert_eq!(a.one::<i64>(keys, &[]).await, Ok(200_000));
    let locks: i64 =
        a.one("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()", &[]).await.unwrap();
    assert!(locks < 100, "{locks} locks");
    a.commit().await.unwrap();
    assert_eq!(a.one::<i64>(keys, &[]).await, Ok(0));
    let forgotten: i64 = a.one("SELECT once_forget('1 hour')::bigint", &[]).await.unwrap();
    assert_eq!(forgotten, 0, "none is that old");
    let forgotten: i64 = a.one("SELECT once_forget('0')::bigint", &[]).await.unwrap();
    assert_eq!(forgotten, 200_000);
    assert_eq!(a.once("key-1").await, Ok(true), "forgotten");
}

/// Both are extended to an end of the transaction: neither is seen half.
#[tokio::test]
async fn a_crash_before_the_commit_undoes_all_of_it() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, b] = db.sessions().await;
    let t = b.acq("j", "A", "60 s").await.granted();
    a.sql("BEGIN").await.unwrap();
    a.fence("j", t).await.unwrap();
    a.cp("j", t, "2").await.unwrap();
    assert_eq!(a.once("k").await, Ok(true));
    a.sql("UPDATE plain SET v = 1 WHERE id = 1").await.unwrap();
    assert_eq!(a.rel("j", t).await, Ok(true));
    db.terminate(a.pid()).await;
    a.commit().await.refused(PgError::CLOSED);
    assert_eq!(b.is_current("j", t).await, Ok(true));
    assert_eq!(b.read_cp("j").await, Ok(None));
    assert_eq!(b.once("k").await, Ok(true));
    assert_eq!(db.v("plain", 1).await, 0);
}
