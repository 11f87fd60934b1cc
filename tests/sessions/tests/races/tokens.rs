//! Tokens rise in the order of the grants, and no number is given out twice.

use std::collections::BTreeSet;

use lock_ext_sessions::{Asked, Db, LEVELS, PgError};

/// Crash of the whole server, restart, restore and failover have tests of their own, later.
#[tokio::test]
async fn tokens_rise_over_every_end_of_a_grant() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let mut last = 0;
    for round in 0..3 {
        for end in [
            "release",
            "release in a block",
            "force",
            "expiry",
            "rollback",
            "savepoint",
            "failed statement",
            "crash",
            "complete",
            "prune",
            "elect",
        ] {
            let doomed = db.session().await;
            let block = ["rollback", "savepoint", "failed statement", "crash"].contains(&end);
            if block {
                doomed.sql("BEGIN; SAVEPOINT s").await.unwrap();
            }
            let token = doomed.acq("j", end, "60 s").await.granted();
            assert!(token > last, "{token} after {last}, before {end} in round {round}");
            last = token;
            match end {
                "release" | "prune" => assert_eq!(b.rel("j", token).await, Ok(true)),
                "release in a block" => {
                    b.sql("BEGIN").await.unwrap();
                    assert_eq!(b.rel("j", token).await, Ok(true));
                    b.commit().await.unwrap();
                }
                "force" => assert_eq!(b.force("j").await, Ok(true)),
                "expiry" => {
                    b.ext("j", token, "1 ms").await.extended();
                    db.expired("j").await;
                }
                "rollback" => doomed.rollback().await,
                "savepoint" => doomed.sql("ROLLBACK TO s").await.unwrap(),
                "failed statement" => {
                    doomed.exec("SELECT 1 / 0", &[]).await.expect_err("division by zero");
                }
                "crash" => db.terminate(doomed.pid()).await,
                "complete" => {
                    let sql = "SELECT lease_complete('j', $1, '-infinity')";
                    assert_eq!(b.one(sql, &[&token]).await, Ok(true));
                }
                "elect" => {
                    assert_eq!(a.force("j").await, Ok(true));
                    let elected = a.lead("j", "A", "60 s", Some(token)).await.granted();
                    assert!(elected > last);
                    last = elected;
                    a.rel("j", elected).await.unwrap();
                }
                other => unreachable!("{other}"),
            }
            if end == "prune" {
                let pruned: i64 = a.one("SELECT lease_prune('0')::bigint", &[]).await.unwrap();
                assert_eq!(pruned, 1);
                assert_eq!(a.info("j").await, None);
            }
            // Whatever it was, the old number is no good any more.
            a.ext("j", token, "60 s").await.lost();
        }
    }
}

/// All numbers of all sessions and names, also those of grants that were rolled back.
#[tokio::test]
async fn no_number_is_given_out_twice() {
    let db = Db::fresh().await;
    let mut racers = Vec::new();
    for (number, level) in LEVELS.into_iter().cycle().take(6).enumerate() {
        let session = db.session().await;
        racers.push(session.beside(move |me| async move {
            let mut seen = Vec::new();
            for round in 0..150 {
                let name = format!("n{}", (round + number) % 3);
                let kind = (round / 3 + number) % 4;
                if kind != 0 {
                    me.begin(level).await;
                    me.sql("SAVEPOINT s").await?;
                }
                let token = me.acq(&name, "racer", "60 s").await?;
                seen.extend(token);
                match kind {
                    0 => {}
                    1 => me.sql("ROLLBACK").await?,
                    2 => me.sql("ROLLBACK TO s; COMMIT").await?,
                    _ => me.sql("COMMIT").await?,
                }
                if let (Some(token), 0 | 3) = (token, kind) {
                    assert!(me.rel(&name, token).await?);
                }
            }
            Ok::<Vec<i64>, PgError>(seen)
        }));
    }
    let (mut all, mut distinct) = (0, BTreeSet::new());
    for racer in racers {
        let seen = racer.await.unwrap().expect("token or NULL");
        assert!(
            seen.is_sorted_by(|a, b| a < b),
            "unique over the whole database, in the order of the grants"
        );
        all += seen.len();
        distinct.extend(seen);
    }
    assert!(all > 100, "only {all} grants");
    assert_eq!(distinct.len(), all);
}

/// However late in its transaction or statement a grant comes, its time is counted from then.
#[tokio::test]
async fn a_grant_is_never_already_expired() {
    let db = Db::fresh().await;
    let a = db.session().await;
    for level in LEVELS {
        a.begin(level).await;
        a.exec("SELECT pg_sleep(0.3)", &[]).await.unwrap();
        let before = a.clock().await;
        a.acq(level, "A", "200 ms").await.granted();
        assert!(a.expiry(level).await > before + std::time::Duration::from_millis(199), "{level}");
        a.rollback().await;
    }
    // Late in one statement: each of the grants has its own time.
    let rows = a
        .rows(
            "SELECT lease_acquire('late-' || i, 'A', '200 ms'), pg_sleep(0.1)::text FROM generate_series(1, 4) i",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(rows.len(), 4);
    let times: i64 = a
        .one("SELECT count(DISTINCT expires_at) FROM lease_status WHERE name LIKE 'late-%'", &[])
        .await
        .unwrap();
    assert_eq!(times, 4, "the clock is read at each grant");
}

/// The clock was an hour ahead when the lease was granted, and is right now: so the row says.
#[tokio::test]
async fn a_clock_that_stepped_back_keeps_a_lease_for_one_time_to_live() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t1 = a.acq("j", "A", "300 ms").await.granted();
    db.watch
        .sql(
            "UPDATE lock_ext.lease SET expires_at = expires_at + interval '1 hour',
                                       acquired_at = acquired_at + interval '1 hour',
                                       renewed_at = renewed_at + interval '1 hour'",
        )
        .await
        .unwrap();
    let before = b.clock().await;
    b.acq("j", "B", "60 s").await.busy();
    let expiry = b.expiry("j").await;
    let ttl = std::time::Duration::from_millis(300);
    assert!(before < expiry && expiry <= b.clock().await + ttl, "not an hour more");
    db.expired("j").await;
    assert!(b.acq("j", "B", "60 s").await.granted() > t1);
}
