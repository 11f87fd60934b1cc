//! Many heartbeats.

use lock_ext_sessions::{Asked, Db, Session};
use tokio_postgres::types::ToSql;

const LEASES: usize = 10;
const TABLE: &str = "'lock_ext.lease'::regclass";

#[tokio::test]
async fn h38_a_hundred_thousand_heartbeats_leave_small_tables() {
    // Alone: a transaction that is open in another database keeps pages from being pruned here, too.
    let db = Db::alone().await;
    let a = db.session().await;
    // Rate is not what this is about. A heartbeat may run like this, the README says so.
    a.sql("SET synchronous_commit = off").await.unwrap();
    let leases = acquire_all(&a).await;
    let (updates, hot) = updates(&a).await;

    heartbeats(&a, &leases, 100_000).await;

    let (updates, hot) = {
        let (updates_after, hot_after) = self::updates(&a).await;
        (updates_after - updates, hot_after - hot)
    };
    assert_eq!(updates, 100_000, "one row version a heartbeat");
    assert!(hot * 10 >= updates * 9, "only {hot} of {updates} updates were HOT");
    a.sql("VACUUM lock_ext.lease").await.unwrap();
    let size = size(&a).await;
    assert!(size < 1_000_000, "{size} bytes after a vacuum");
}

/// The old snapshot is there for 20,000 heartbeats instead of a minute.
#[tokio::test]
async fn h38_what_an_old_snapshot_kept_is_used_again() {
    let db = Db::alone().await;
    let [a, old] = db.sessions().await;
    a.sql("SET synchronous_commit = off").await.unwrap();
    let leases = acquire_all(&a).await;
    old.begin("REPEATABLE READ").await;
    old.exec("SELECT 1", &[]).await.unwrap();
    heartbeats(&a, &leases, 20_000).await;
    a.sql("VACUUM lock_ext.lease").await.unwrap();
    let grown = size(&a).await;

    old.commit().await.unwrap();
    a.sql("VACUUM lock_ext.lease").await.unwrap();
    let after = size(&a).await;
    heartbeats(&a, &leases, 20_000).await;
    assert!(size(&a).await <= after.max(grown), "the space is used again");
}

async fn acquire_all(session: &Session) -> Vec<(String, i64)> {
    let mut leases = Vec::new();
    for number in 0..LEASES {
        let name = format!("lease-{number}");
        let token = session.acq(&name, "A", "1 hour").await.granted();
        leases.push((name, token));
    }
    leases
}

/// Each in a transaction of its own.
async fn heartbeats(session: &Session, leases: &[(String, i64)], number: usize) {
    const CHUNK: usize = 5_000;
    for _ in 0..number / CHUNK {
        let runs: Vec<Vec<&(dyn ToSql + Sync)>> = leases
            .iter()
            .cycle()
            .take(CHUNK)
            .map(|(name, token)| vec![name as _, token as _])
            .collect();
        let extended = session
            .many("SELECT lease_extend($1, $2, '1 hour') IS NOT NULL", &runs)
            .await
            .expect("heartbeats");
        assert!(extended.iter().all(|row| row.get(0)), "a heartbeat was lost");
    }
}

async fn updates(session: &Session) -> (i64, i64) {
    // What this session counted so far is told to the server before it is read.
    session.sql("SELECT pg_stat_force_next_flush()").await.unwrap();
    let row = session
        .rows(
            &format!(
                "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_all_tables WHERE relid = {TABLE}"
            ),
            &[],
        )
        .await
        .unwrap();
    (row[0].get(0), row[0].get(1))
}

/// The table with its indexes and maps.
async fn size(session: &Session) -> i64 {
    session.one(&format!("SELECT pg_total_relation_size({TABLE})"), &[]).await.unwrap()
}
