//! Answers that are no clear yes, and calls in odd places: leaders, queries, read-only transactions.

use std::time::{Duration, Instant};

use lock_ext_sessions::{Asked, Db, PgError, Refused, Session, Way};

use crate::line::scene::{Call, asleep, has_no_lock, stand};

/// Whatever is not a clear yes gives nothing that could be taken for a token.
#[tokio::test]
async fn h39_an_error_is_not_leadership() {
    let db = Db::fresh().await;
    db.fence("lead").await;
    let [a, row_locker] = db.sessions().await;
    let t = a.lead("lead", "A", "1 hour", None).await.granted();
    // What would be granted without the error.
    let free = a.acq("free", "A", "1 hour").await.granted();
    a.rel("free", free).await.unwrap();

    // (i) and (ii): B's statement goes on after the call, so a grant would be there to be undone.
    let b = db.session().await;
    b.sql("SET statement_timeout = '300ms'").await.unwrap();
    for name in ["lead", "free"] {
        b.sql(&format!("SELECT lease_elect('{name}', 'B', '60 s'), pg_sleep(30)"))
            .await
            .refused("57014");
    }
    let b = db.session().await;
    let call = b.beside(|me| async move {
        me.sql("SELECT lease_elect('free', 'B', '60 s'), pg_sleep(30)").await
    });
    db.until("SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = $1", &[&b.pid()])
        .await;
    db.terminate(b.pid()).await;
    let code = call.await.unwrap().expect_err("ended").code;
    assert!(["57P01", PgError::CLOSED].contains(&code.as_str()), "{code}");
    let b = db.session().await;
    // (iii)
    b.sql("BEGIN READ ONLY").await.unwrap();
    b.lead("free", "B", "60 s", None).await.refused("25006");
    b.rollback().await;
    assert_eq!(a.info("free").await.unwrap().holder, None, "error means not held");
    // (iv): A's own work is in nobody's way.
    row_locker.sql("BEGIN").await.unwrap();
    row_locker.fw_in_block(Way::Transaction, "lead", t, 1, 1).await.unwrap();
    let begun = Instant::now();
    b.lead("lead", "B", "60 s", None).await.busy();
    assert!(begun.elapsed() < Duration::from_secs(10));
    row_locker.commit().await.unwrap();
    // (v)
    let answer: (bool, String) = {
        let rows = b.rows("SELECT lease_elect('lead', 'B', '60 s') IS NULL, coalesce(lease_elect('lead', 'B', '60 s')::text, 'null')", &[]).await.unwrap();
        (rows[0].get(0), rows[0].get(1))
    };
    assert_eq!(answer, (true, "null".to_owned()));
    // And with what it got it writes nothing.
    let none: Option<i64> = None;
    b.exec("SELECT lease_fence('lead', $1)", &[&none]).await.refused("22004");
    b.exec("SELECT fenced_update('plain', $1, '{\"id\": 1}', '{\"v\": 666}')", &[&none])
        .await
        .refused("22004");
    b.exec("UPDATE stamped SET v = 666, token = $1", &[&none]).await.expect_err("no token");
    b.exec("UPDATE plain SET v = 666", &[]).await.refused("LX003");
    assert_eq!(db.v("plain", 1).await, 1);
    assert_eq!(a.is_current("lead", t).await, Ok(true));
}

/// Side effects run wherever the planner puts them; what was taken is there to be seen and released.
#[tokio::test]
async fn h40_acquiring_inside_of_where_takes_nothing_unseen() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    a.sql(
        "CREATE TABLE jobs (id int, queue text);
         INSERT INTO jobs SELECT i, chr(97 + i % 5) FROM generate_series(1, 1000) AS i; ANALYZE jobs",
    )
    .await
    .unwrap();
    let plain = "SELECT id FROM jobs WHERE queue = 'a' AND lease_acquire('job-' || id, 'A', '60 s') IS NOT NULL LIMIT 1";
    let swapped = "SELECT id FROM jobs WHERE lease_acquire('job-' || id, 'A', '60 s') IS NOT NULL AND queue = 'a' LIMIT 1";
    let cte = "WITH mine AS MATERIALIZED (SELECT id FROM jobs WHERE queue = 'a' ORDER BY id)
               SELECT id FROM mine WHERE lease_acquire('job-' || id, 'A', '60 s') IS NOT NULL LIMIT 1";
    let waiting = "SELECT id FROM jobs WHERE queue = 'a' AND lease_acquire('job-' || id, 'A', '60 s', wait => '1 ms') IS NOT NULL LIMIT 1";
    let bound = "SELECT id FROM jobs WHERE queue = 'a' AND lease_acquire_session('job-' || id, 'A') IS NOT NULL LIMIT 1";
    for indexed in [false, true] {
        if indexed {
            a.sql("CREATE INDEX ON jobs (queue)").await.unwrap();
        }
        for forced in [false, true] {
            if forced {
                a.sql(
                    "SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
                     SET min_parallel_index_scan_size = 0; SET max_parallel_workers_per_gather = 4",
                )
                .await
                .unwrap();
                a.force_parallel().await;
            }
            for sql in [plain, swapped, cte, waiting, bound] {
                let case = format!("{sql}, indexed: {indexed}, parallel: {forced}");
                let plan: Vec<String> = a.list(&format!("EXPLAIN {sql}"), &[]).await.unwrap();
                assert!(!plan.join("\n").contains("Gather"), "no worker runs it: {case}: {plan:?}");
                let mut got = Vec::new();
                for _ in 0..3 {
                    got.push(a.one::<i32>(sql, &[]).await.expect(&case));
                }
                let held = held(&b).await;
                for id in &got {
                    assert!(held.iter().any(|(name, _)| *name == format!("job-{id}")), "{case}");
                }
                // All that was taken, also what LIMIT did not show, can be seen and released.
                for (name, token) in held {
                    assert_eq!(a.rel(&name, token).await, Ok(true), "{case}");
                }
                a.sql("SELECT lease_prune('0')").await.unwrap();
                has_no_lock(&db, a.pid()).await;
            }
            // The safe pattern: choose first, with a fence around the choice, then acquire.
            let safe = "SELECT id, lease_acquire('job-' || id, 'A', '60 s') AS token
                          FROM (SELECT id FROM jobs WHERE queue = 'a' ORDER BY id LIMIT 1 OFFSET 0) AS j";
            let rows = a.rows(safe, &[]).await.unwrap();
            let (id, token) = (rows[0].get::<_, i32>(0), rows[0].get::<_, Option<i64>>(1));
            let expected = vec![(format!("job-{id}"), token.expect("free"))];
            assert_eq!(held(&b).await, expected);
            assert_eq!(a.rel(&expected[0].0, expected[0].1).await, Ok(true));
        }
    }
}

async fn held(session: &Session) -> Vec<(String, i64)> {
    let rows = session
        .rows("SELECT name, token FROM lease_status WHERE state = 'held' AND holder = 'A'", &[])
        .await
        .unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// A hot standby is not here: what it answers is tested with a standby.
#[tokio::test]
async fn h41_what_is_read_only_says_so() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t = a.acq("j", "A", "1 hour").await.granted();
    let changing = [
        "SELECT lease_acquire('j', 'B', '60 s')".to_owned(),
        "SELECT lease_acquire('free', 'B', '60 s', wait => '20 s')".to_owned(),
        "SELECT lease_acquire('j', 'B', '60 s', wait => '20 s')".to_owned(),
        "SELECT lease_acquire_session('j', 'B')".to_owned(),
        "SELECT lease_acquire_session('free', 'B', wait => '20 s')".to_owned(),
        "SELECT lease_elect('j', 'B', '60 s')".to_owned(),
        format!("SELECT lease_elect('j', 'A', '60 s', {t})"),
        format!("SELECT lease_extend('j', {t})"),
        format!("SELECT lease_extend('j', {t}, '60 s')"),
        format!("SELECT lease_extend_many('{{j}}', '{{{t}}}')"),
        format!("SELECT lease_release('j', {t})"),
        format!("SELECT lease_complete('j', {t})"),
        format!("SELECT lease_checkpoint('j', {t}, '1')"),
        "SELECT lease_force_release('j')".to_owned(),
        "SELECT once('k')".to_owned(),
    ];
    for way in ["BEGIN READ ONLY", "default", "BEGIN; SET TRANSACTION READ ONLY"] {
        if way == "default" {
            b.sql("SET default_transaction_read_only = on").await.unwrap();
        }
        for sql in &changing {
            if way != "default" {
                b.sql(way).await.unwrap();
            }
            let begun = Instant::now();
            let answer = b.sql(sql).await;
            assert!(
                matches!(&answer, Err(error) if error.code == "25006"),
                "{way}: {sql}: {answer:?}"
            );
            assert!(begun.elapsed() < Duration::from_secs(10), "{sql} waited");
            if way != "default" {
                b.rollback().await;
            }
        }
        // Questions work.
        if way != "default" {
            b.sql(way).await.unwrap();
        }
        assert_eq!(b.info("j").await.unwrap().holder.as_deref(), Some("A"), "{way}");
        for view in ["lease_waiter", "lease_session", "lease_writer"] {
            assert_eq!(b.one::<i64>(&format!("SELECT count(*) FROM {view}"), &[]).await, Ok(0));
        }
        if way == "default" {
            b.sql("SET default_transaction_read_only = off").await.unwrap();
        } else {
            b.rollback().await;
        }
    }
    assert_eq!(a.is_current("j", t).await, Ok(true));
    assert_eq!(a.info("free").await, None);
    // Nor does a waiter become one that may write when its transaction is read only only later.
    let call: Call = stand(&db, &b, "j", "500 ms").await;
    asleep(&db, b.pid()).await;
    call.await.unwrap().busy();
}
