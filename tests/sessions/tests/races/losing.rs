//! Losing is free.

use lock_ext_sessions::{Asked, Db, LEVELS};

#[tokio::test]
async fn a_refused_acquire_assigns_no_transaction_id_and_writes_no_wal() {
    // Alone: the server's position in the WAL and its next transaction id are everybody's.
    let db = Db::alone().await;
    let [a, b] = db.sessions().await;
    a.acq("held", "A", "1 hour").await.granted();
    let done = a.acq("done", "A", "1 hour").await.granted();
    assert_eq!(a.complete("done", done).await, Ok(true));
    a.sql("BEGIN").await.unwrap();
    a.acq("open", "A", "1 hour").await.granted();

    for name in ["held", "done", "open"] {
        for level in LEVELS {
            b.begin(level).await;
            b.acq(name, "B", "60 s").await.busy();
            b.lead(name, "B", "60 s", None).await.busy();
            let id: Option<String> =
                b.one("SELECT pg_current_xact_id_if_assigned()::text", &[]).await.unwrap();
            assert_eq!(id, None, "{name} at {level}");
            b.commit().await.unwrap();
        }
        for sql in [
            format!("SELECT lease_acquire('{name}', 'B', '60 s')"),
            format!("SELECT lease_elect('{name}', 'B', '60 s')"),
        ] {
            // A checkpoint or vacuum of the server itself may come between once, but not every time.
            let mut written = Vec::new();
            for _ in 0..20 {
                let before = position(&b).await;
                for _ in 0..100 {
                    b.one::<Option<i64>>(&sql, &[]).await.busy();
                }
                written.push((before.clone(), position(&b).await));
                if written.last().is_some_and(|(before, after)| before == after) {
                    break;
                }
            }
            assert!(
                written.last().is_some_and(|(before, after)| before == after),
                "{sql}: {written:?}"
            );
        }
    }
    let t: i64 = a.one("SELECT token FROM lease_status WHERE name = 'held'", &[]).await.unwrap();
    assert!(t > 0);
}

async fn position(session: &lock_ext_sessions::Session) -> (String, String) {
    let row = session
        .rows("SELECT pg_current_wal_insert_lsn()::text, pg_snapshot_xmax(pg_current_snapshot())::text", &[])
        .await
        .unwrap();
    (row[0].get(0), row[0].get(1))
}

/// The loser goes on in its transaction, which may last; nobody notices.
#[tokio::test]
async fn a_refused_acquire_leaves_no_lock_that_delays_others() {
    let db = Db::fresh().await;
    let [a, loser, third] = db.sessions().await;
    for session in [&a, &third] {
        session.sql("SET statement_timeout = '10s'").await.unwrap();
    }
    for level in LEVELS {
        let t1 = a.acq("j", "A", "60 s").await.granted();
        loser.begin(level).await;
        loser.acq("j", "loser", "60 s").await.busy();
        loser.lead("j", "loser", "60 s", None).await.busy();

        a.ext("j", t1, "60 s").await.extended();
        a.cp("j", t1, "1").await.unwrap();
        third.acq("j", "third", "60 s").await.busy();
        assert_eq!(a.rel("j", t1).await, Ok(true));
        let t2 = third.acq("j", "third", "60 s").await.granted();
        assert_eq!(third.rel("j", t2).await, Ok(true));
        let t3 = loser.acq("j", "loser", "60 s").await.granted();
        assert!(
            t3 > t2,
            "it may try again in the same transaction, whatever its snapshot: {level}"
        );
        loser.rollback().await;
    }
}

/// The refused calls of a busy name do not slow its holder's own: they take nothing exclusively.
#[tokio::test]
async fn a_holders_heartbeat_goes_through_a_crowd_of_losers() {
    let db = Db::fresh().await;
    let a = db.session().await;
    let t = a.acq("j", "A", "60 s").await.granted();
    let end = std::time::Instant::now() + std::time::Duration::from_secs(2);
    let mut crowd = Vec::new();
    for _ in 0..6 {
        let session = db.session().await;
        crowd.push(session.beside(move |me| async move {
            let mut refused = 0;
            while std::time::Instant::now() < end {
                me.acq("j", "crowd", "60 s").await.busy();
                refused += 1;
            }
            refused
        }));
    }
    let mut beats = 0;
    while std::time::Instant::now() < end {
        a.ext("j", t, "60 s").await.extended();
        beats += 1;
    }
    let mut refused = 0;
    for one in crowd {
        refused += one.await.expect("NULL each time");
    }
    assert!(beats > 10 && refused > 100, "{beats} heartbeats among {refused} refusals");
}
