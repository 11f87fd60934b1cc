//! A stale transaction cannot commit any more, but keeps its row locks until it is evicted.

use lock_ext_sessions::{Asked, BROKEN, Client, Db, PgError, Refused, STALE, Way};

use crate::CLIENT;
use std::time::Duration;

#[tokio::test]
async fn evict_frees_the_row_locks_of_a_frozen_client() {
    let db = Db::fresh().await;
    db.fence("j").await;
    for way in Way::ALL {
        let b = db.session().await;
        db.reset().await;
        let mut frozen = Client::start(&db, CLIENT).await;
        let t1: i64 =
            frozen.ask("SELECT lease_acquire('j', 'A', '500 ms')").await.unwrap().parse().unwrap();
        let table = way.table();
        let write = match way {
            Way::Transaction | Way::Stamped => {
                format!(
                    "BEGIN; SELECT lease_fence('j', {t1}); UPDATE {table} SET v = 666 WHERE id = 1"
                )
            }
            Way::Column => format!("BEGIN; UPDATE {table} SET v = 666, token = {t1} WHERE id = 1"),
            Way::FencedUpdate | Way::FencedUpdateStamped => {
                format!(
                    "BEGIN; SELECT fenced_update('{table}', {t1}, '{{\"id\": 1}}', '{{\"v\": 666}}')"
                )
            }
        };
        frozen.ask(&write).await.unwrap();
        frozen.freeze().await;
        db.expired("j").await;

        let t2 = b.acq("j", "B", "60 s").await.granted();
        // The new holder does wait for the row ...
        let waiting = b.beside(move |b| async move { b.fw(way, "j", t2, 1, 5).await });
        db.blocked(&b).await;
        let second = db.session().await;
        let writers: Vec<(i32, i64, bool)> = second
            .rows(
                "SELECT pid, token, superseded FROM lease_writer WHERE name = 'j' AND superseded",
                &[],
            )
            .await
            .unwrap()
            .iter()
            .map(|row| (row.get(0), row.get(1), row.get(2)))
            .collect();
        assert_eq!(writers, [(frozen.backend(), t1, true)], "{way:?}");
        // ... until the frozen one is ended, and only that one.
        assert_eq!(second.evict("j", t2).await, Ok(vec![frozen.backend()]));
        assert_eq!(waiting.await.unwrap(), Ok(1));
        assert_eq!(db.v(table, 1).await, 5);
        // Its row locks end a moment before it is no writer any more.
        let mut left = second.evict("j", t2).await;
        for _ in 0..500 {
            if left != Ok(vec![frozen.backend()]) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            left = second.evict("j", t2).await;
        }
        assert_eq!(left, Ok(vec![]), "there is nobody left");

        frozen.wake();
        let commit = frozen.ask("COMMIT").await;
        assert!(
            matches!(commit.as_ref().map_err(String::as_str), Err(BROKEN | "57P01")),
            "{commit:?}"
        );
        assert_eq!(b.rel("j", t2).await, Ok(true));
    }
}

#[tokio::test]
async fn only_the_present_holder_evicts() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, b, third, neighbour] = db.sessions().await;
    let t1 = a.acq("j", "A", "60 s").await.granted();
    a.rel("j", t1).await.unwrap();
    let t2 = b.acq("j", "B", "60 s").await.granted();
    b.sql("BEGIN").await.unwrap();
    b.fw_in_block(Way::Transaction, "j", t2, 1, 5).await.unwrap();
    // A writer under another lease is none of ours.
    db.watch
        .sql("CREATE TABLE other (v int); SELECT fence_attach('other', 'other')")
        .await
        .unwrap();
    let other = neighbour.acq("other", "N", "60 s").await.granted();
    neighbour.sql("BEGIN").await.unwrap();
    neighbour.fence("other", other).await.unwrap();
    neighbour.sql("INSERT INTO other VALUES (1)").await.unwrap();

    for token in [t1, t2 + 1000, 0, -1] {
        third.evict("j", token).await.refused(STALE);
    }
    third.exec("SELECT lease_evict('j', NULL)", &[]).await.refused("22004");
    assert_eq!(third.evict("j", t2).await, Ok(vec![]), "the holder's own transactions are current");
    assert_eq!(
        third.list::<i32>("SELECT lease_evict('j')", &[]).await,
        Ok(vec![]),
        "an administrator's as well"
    );
    b.commit().await.unwrap();
    neighbour.commit().await.unwrap();
}

/// The superuser's form, without a token.
#[tokio::test]
async fn an_administrator_evicts_without_a_token() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, stale, admin] = db.sessions().await;
    let t1 = a.acq("j", "A", "60 s").await.granted();
    stale.sql("BEGIN").await.unwrap();
    stale.fw_in_block(Way::Column, "j", t1, 1, 5).await.unwrap();
    a.rel("j", t1).await.unwrap();
    assert_eq!(admin.list::<i32>("SELECT lease_evict('j')", &[]).await, Ok(vec![stale.pid()]));
    db.gone(stale.pid()).await;
    let commit = stale.commit().await.expect_err("the session has ended");
    assert!([PgError::CLOSED, "57P01"].contains(&commit.code.as_str()), "{commit:?}");
}

/// The holder's role need not be allowed to signal others: the current token is what allows it.
#[tokio::test]
async fn a_holder_with_an_ordinary_role_evicts_another_roles_writer() {
    let db = Db::fresh().await;
    let [one, two] = [db.role("node_a").await, db.role("node_b").await];
    db.fence("j").await;
    db.watch.sql(&format!("GRANT ALL ON plain, stamped TO {one}, {two}")).await.unwrap();
    let [a, stale] = [db.session_as(&one).await, db.session_as(&one).await];
    let b = db.session_as(&two).await;
    let t1 = a.acq("j", "A", "60 s").await.granted();
    stale.sql("BEGIN").await.unwrap();
    stale.fw_in_block(Way::Transaction, "j", t1, 1, 5).await.unwrap();
    a.rel("j", t1).await.unwrap();
    let t2 = b.acq("j", "B", "60 s").await.granted();
    // By somebody who is not the holder, with the holder's token.
    a.evict("j", t2).await.refused("42501");
    assert_eq!(b.evict("j", t2).await, Ok(vec![stale.pid()]));
    assert_eq!(b.fw(Way::Transaction, "j", t2, 1, 6).await, Ok(1));
    b.exec("SELECT lease_evict('j')", &[]).await.refused("42501");
}

/// An acquire in a transaction that a frozen client left open keeps everybody else away; an administrator ends it.
#[tokio::test]
async fn an_administrator_evicts_an_undecided_acquire() {
    let db = Db::fresh().await;
    let b = db.session().await;
    let mut frozen = Client::start(&db, CLIENT).await;
    frozen.ask("BEGIN").await.unwrap();
    let t1: i64 =
        frozen.ask("SELECT lease_acquire('j', 'A', '60 s')").await.unwrap().parse().unwrap();
    frozen.freeze().await;
    b.acq("j", "B", "60 s").await.busy();
    assert_eq!(
        db.watch.list::<i32>("SELECT lease_evict('j')", &[]).await,
        Ok(vec![frozen.backend()])
    );
    db.gone(frozen.backend()).await;
    assert!(b.acq("j", "B", "60 s").await.granted() > t1);
}

/// Under a grant of its own that is not committed, nobody's writes are superseded yet.
#[tokio::test]
async fn nobody_evicts_under_an_undecided_grant() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, stale, b] = db.sessions().await;
    let t1 = a.acq("j", "A", "60 s").await.granted();
    stale.sql("BEGIN").await.unwrap();
    stale.fw_in_block(Way::Transaction, "j", t1, 1, 5).await.unwrap();
    a.ext("j", t1, "1 ms").await.extended();
    db.expired("j").await;
    b.sql("BEGIN").await.unwrap();
    let t2 = b.acq("j", "B", "60 s").await.granted();
    b.evict("j", t2).await.refused("25001");
    b.rollback().await;
    stale.commit().await.expect("its token is the last one still");
    assert_eq!(db.v("plain", 1).await, 5);
}

/// A heartbeat whose commit waits for a standby is the holder's, and nobody's to end.
#[tokio::test]
async fn an_administrator_does_not_evict_a_heartbeat() {
    let db = Db::alone().await;
    let [a, admin] = db.sessions().await;
    a.sql("SET synchronous_commit = on").await.unwrap();
    let token = a.acq("j", "A", "60 s").await.granted();
    let held = db.hold_commits().await;
    let extending = a.beside(move |a| async move { a.ext("j", token, "60 s").await });
    db.until("SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $1", &[&a.pid()])
        .await;
    assert_eq!(admin.list::<i32>("SELECT lease_evict('j')", &[]).await, Ok(vec![]));
    drop(held);
    extending.await.unwrap().extended();
}

/// Who waited for the sequences of an extension that is gone is told so, or goes on with the new one's.
#[tokio::test]
async fn a_dropped_extension_is_no_internal_error() {
    for again in [false, true] {
        let db = Db::fresh().await;
        let [a, b] = db.sessions().await;
        b.one::<i64>("SELECT lease_raise_token_floor(1)", &[]).await.unwrap();
        a.sql("BEGIN; DROP EXTENSION lock_ext CASCADE").await.unwrap();
        if again {
            a.sql("CREATE EXTENSION lock_ext").await.unwrap();
        }
        let raising =
            b.beside(
                |b| async move { b.one::<i64>("SELECT lease_raise_token_floor(5)", &[]).await },
            );
        db.blocked(&b).await;
        a.commit().await.unwrap();
        let raised = raising.await.unwrap();
        if again {
            raised.expect("there is a new one");
        } else {
            raised.refused("42704");
        }
    }
}
