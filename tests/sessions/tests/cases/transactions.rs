//! Leases and the caller's transactions.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_ext_sessions::{Asked, Db, PgError, Refused, STALE, Session, Way};

/// Without a wait: the release lets B in at once. (With one: `waiting`, as for the others here.)
#[tokio::test]
async fn h09_work_that_is_not_committed_at_the_release_never_counts() {
    for way in Way::ALL {
        for commit in ["before B begins", "while B waits for the row", "never: B evicts it"] {
            let db = Db::fresh().await;
            db.fence("s").await;
            let [conn1, conn2, b] = db.sessions().await;
            let table = way.table();
            let t1 = conn1.acq("s", "A", "60 s").await.granted();
            conn2.sql("BEGIN").await.unwrap();
            conn2.fw_in_block(way, "s", t1, 1, 1).await.expect("the holder writes");
            assert_eq!(conn1.rel("s", t1).await, Ok(true));
            let t2 = b.acq("s", "B", "60 s").await.granted();

            let b_writes = |b: Session| async move {
                let v: i32 = b.one(&format!("SELECT v FROM {table} WHERE id = 1"), &[]).await?;
                b.fw(way, "s", t2, 1, v + 1).await
            };
            match commit {
                "before B begins" => {
                    conn2.commit().await.refused(STALE);
                    assert_eq!(b_writes(b).await, Ok(1));
                }
                "while B waits for the row" => {
                    let writing = b.beside(b_writes);
                    db.blocked(&b).await;
                    conn2.commit().await.refused(STALE);
                    assert_eq!(writing.await.unwrap(), Ok(1));
                }
                _ => {
                    assert_eq!(b.evict("s", t2).await, Ok(vec![conn2.pid()]));
                    assert_eq!(b_writes(b).await, Ok(1));
                    conn2.commit().await.expect_err("the session has ended");
                }
            }
            assert_eq!(db.v(table, 1).await, 1, "one of the two commits: {way:?}, {commit}");
        }
    }
}

#[tokio::test]
async fn h09_acquire_work_and_release_in_one_transaction() {
    for way in Way::ALL {
        let db = Db::fresh().await;
        db.fence("s").await;
        let [a, b] = db.sessions().await;
        a.sql("BEGIN").await.unwrap();
        let t1 = a.acq("s", "A", "60 s").await.granted();
        a.fw_in_block(way, "s", t1, 1, 1).await.unwrap();
        assert_eq!(a.rel("s", t1).await, Ok(true));
        b.acq("s", "B", "60 s").await.busy();
        // Released in this transaction: what it wrote stands, but it writes no more.
        a.sql("SAVEPOINT s").await.unwrap();
        a.fw_in_block(way, "s", t1, 2, 1).await.refused(STALE);
        a.sql("ROLLBACK TO s").await.unwrap();
        a.commit().await.expect("its own release does not undo the work");

        let t2 = b.acq("s", "B", "60 s").await.granted();
        let v: i32 =
            b.one(&format!("SELECT v FROM {} WHERE id = 1", way.table()), &[]).await.unwrap();
        b.fw(way, "s", t2, 1, v + 1).await.unwrap();
        assert_eq!(db.v(way.table(), 1).await, 2, "{way:?}");
        assert_eq!(db.v(way.table(), 2).await, 0, "{way:?}");
    }
}

#[tokio::test]
async fn h10_a_grant_goes_with_its_savepoint() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    a.sql("BEGIN; SAVEPOINT s").await.unwrap();
    let t1 = a.acq("k", "A", "60 s").await.granted();
    assert_eq!(a.info("k").await.unwrap().holder.as_deref(), Some("A"));
    b.acq("k", "B", "60 s").await.busy();
    a.sql("ROLLBACK TO s").await.unwrap();
    assert!(a.info("k").await.is_none_or(|status| status.holder.is_none()), "nobody holds it");
    assert_eq!(a.is_current("k", t1).await, Ok(false));
    a.ext("k", t1, "60 s").await.lost();

    let t2 = b.acq("k", "B", "60 s").await.granted();
    assert!(t2 > t1, "a token is never given out twice, not even a rolled back one");
    for session in [&a, &b] {
        let status = session.info("k").await.unwrap();
        assert_eq!((status.holder.as_deref(), status.token), (Some("B"), Some(t2)));
    }
    a.commit().await.unwrap();
    assert_eq!(b.info("k").await.unwrap().token, Some(t2));
    assert_eq!(b.is_current("k", t2).await, Ok(true));
}

#[tokio::test]
async fn h10_a_grant_of_a_plpgsql_block_that_failed_is_gone() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    a.sql(
        "BEGIN;
         DO $$ BEGIN
             PERFORM lease_acquire('k', 'A', '60 s');
             RAISE EXCEPTION 'no';
         EXCEPTION WHEN raise_exception THEN NULL;
         END $$",
    )
    .await
    .unwrap();
    b.acq("k", "B", "60 s").await.granted();
    a.commit().await.unwrap();
}

/// Three seconds a level instead of ten.
#[tokio::test]
async fn h11_contention_is_a_normal_answer_at_higher_levels() {
    for level in ["repeatable read", "serializable"] {
        let db = Db::fresh().await;
        let holders = Arc::new(AtomicUsize::new(0));
        let tokens = Arc::new(std::sync::Mutex::new(Vec::new()));
        let end = Instant::now() + Duration::from_secs(3);
        let mut contenders = Vec::new();
        for number in 0..8 {
            let session = db.session().await;
            let (holders, tokens) = (holders.clone(), tokens.clone());
            contenders.push(session.beside(move |me| async move {
                me.sql(&format!("SET default_transaction_isolation = '{level}'")).await?;
                let mut grants = 0;
                while Instant::now() < end {
                    let Some(token) = me.acq("c", &format!("{number}"), "5 s").await? else {
                        continue;
                    };
                    // Only between the answers: what the server holds is longer than that.
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "a second holder");
                    tokens.lock().unwrap().push(token);
                    grants += 1;
                    tokio::task::yield_now().await;
                    holders.fetch_sub(1, Ordering::SeqCst);
                    assert!(me.rel("c", token).await?, "the holder releases");
                }
                Ok::<i32, PgError>(grants)
            }));
        }
        for contender in contenders {
            contender.await.unwrap().expect("token, NULL or true, never 40001");
        }
        let tokens = std::mem::take(&mut *tokens.lock().unwrap());
        assert!(tokens.len() > 8, "only {} grants at {level}", tokens.len());
        assert!(tokens.is_sorted_by(|a, b| a < b), "tokens rise in the order of the grants");
        assert_eq!(db.watch.info("c").await.unwrap().holder, None, "nobody is left behind");
    }
}

#[tokio::test]
async fn h12_a_heartbeat_beside_a_long_fenced_transaction() {
    for (way, hold) in
        Way::ALL.map(|way| (way, false)).into_iter().chain([(Way::Transaction, true)])
    {
        let db = Db::fresh().await;
        db.fence("j").await;
        let [heart, worker, b] = db.sessions().await;
        let t1 = heart.acq("j", "A", "1500 ms").await.granted();
        heart.sql("SET statement_timeout = '500ms'").await.unwrap();
        b.sql("SET statement_timeout = '500ms'").await.unwrap();
        worker.sql("BEGIN").await.unwrap();
        if hold {
            worker.fence_and_hold("j", t1).await.unwrap();
        }
        worker.fw_in_block(way, "j", t1, 1, 1).await.unwrap();

        // Longer than the time to live, by heartbeats of a third of it.
        for _ in 0..4 {
            heart.ext("j", t1, "1500 ms").await.extended();
            b.acq("j", "B", "60 s").await.busy();
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        worker.fw_in_block(way, "j", t1, 2, 1).await.expect("still the holder");
        heart.ext("j", t1, "1500 ms").await.extended();
        worker.commit().await.expect("the lease lasted through");
        assert_eq!([db.v(way.table(), 1).await, db.v(way.table(), 2).await], [1, 1], "{way:?}");
        heart.ext("j", t1, "1500 ms").await.extended();
    }
}

#[tokio::test]
async fn h13_opposite_orders_end_in_null_and_nobody_waits() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    for session in [&a, &b] {
        session.sql("SET statement_timeout = '20s'; BEGIN").await.unwrap();
    }
    a.acq("x", "A", "60 s").await.granted();
    b.acq("y", "B", "60 s").await.granted();
    a.acq("y", "A", "60 s").await.busy();
    b.acq("x", "B", "60 s").await.busy();

    a.rollback().await;
    b.acq("x", "B", "60 s").await.granted();
    b.commit().await.unwrap();
    for name in ["x", "y"] {
        assert_eq!(a.info(name).await.unwrap().holder.as_deref(), Some("B"));
    }
}

#[tokio::test]
async fn h13_many_extended_in_opposite_orders_do_not_deadlock() {
    let db = Db::fresh().await;
    let [a, b, c] = db.sessions().await;
    let names: Vec<String> = (0..20).map(|i| format!("n{i}")).collect();
    let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut tokens = Vec::new();
    for name in &names {
        tokens.push(a.acq(name, "A", "60 s").await.granted());
    }
    let mut runs = Vec::new();
    for (session, block) in [(&a, false), (&b, false), (&c, true)] {
        let (own_names, own_tokens): (Vec<String>, Vec<i64>) =
            (names.iter().map(ToString::to_string).collect(), tokens.clone());
        runs.push(session.beside(move |me| async move {
            let names: Vec<&str> = own_names.iter().map(String::as_str).collect();
            for _ in 0..100 {
                if block {
                    me.sql("BEGIN").await?;
                }
                let renewed = me.ext_many(&names, &own_tokens, "60 s").await?;
                assert!(
                    renewed.iter().all(|one| one.expires_at.is_some()),
                    "all are current: {renewed:?}"
                );
                if block {
                    me.commit().await?;
                }
            }
            Ok::<(), PgError>(())
        }));
        names.reverse();
        tokens.reverse();
    }
    for run in runs {
        run.await.unwrap().expect("one fixed order, whatever the arguments say");
    }
}

#[tokio::test]
async fn h34_a_release_after_a_failed_transaction_works() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t1 = a.acq("j", "A", "60 s").await.granted();
    a.sql("BEGIN").await.unwrap();
    a.exec("SELECT 1 / 0", &[]).await.refused("22012");
    a.rel("j", t1).await.refused("25P02");
    a.rollback().await;
    assert_eq!(a.is_current("j", t1).await, Ok(true));
    assert_eq!(a.rel("j", t1).await, Ok(true));

    a.sql("BEGIN").await.unwrap();
    let t2 = a.acq("j", "A", "60 s").await.granted();
    a.exec("SELECT 1 / 0", &[]).await.refused("22012");
    // The failed transaction has let go of the name already, before its ROLLBACK.
    let t3 = b.acq("j", "B", "60 s").await.granted();
    a.rollback().await;
    assert!(t3 > t2 && t2 > t1);
    assert_eq!(a.rel("j", t2).await, Ok(false));
    a.ext("j", t2, "60 s").await.lost();
    assert_eq!(b.is_current("j", t3).await, Ok(true));

    // A release that was rolled back did not happen.
    b.sql("BEGIN").await.unwrap();
    assert_eq!(b.rel("j", t3).await, Ok(true));
    b.exec("SELECT 1 / 0", &[]).await.refused("22012");
    b.rollback().await;
    assert_eq!(b.is_current("j", t3).await, Ok(true));
    a.acq("j", "A", "60 s").await.busy();
}
