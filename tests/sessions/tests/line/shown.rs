//! What a wait looks like from outside.

use std::time::Duration;

use lock_ext_sessions::{Asked, Db, Session};

use super::scene::{asleep, line, nobody_waits, pass, stand, stand_bound};

#[tokio::test]
async fn waiters_are_shown_with_place_and_since_when() {
    let db = Db::fresh().await;
    let [a, w1, w2, w3, v] = db.sessions().await;
    let t = a.acq("j", "A", "1 hour").await.granted();
    a.acq("k", "A", "1 hour").await.granted();
    let mut calls = Vec::new();
    let mut from = Vec::new();
    for session in [&w1, &w2, &w3] {
        from.push(a.clock().await);
        calls.push(stand(&db, session, "j", "50 s").await);
        pass(Duration::from_millis(20)).await;
    }
    from.push(a.clock().await);
    let other = stand_bound(&db, &v, "k", "50 s").await;

    let columns: Vec<String> = a
        .list(
            "SELECT attrelid::regclass || '.' || attname FROM pg_attribute
              WHERE attrelid IN ('lease_waiter'::regclass, 'lease_session'::regclass) AND attnum > 0
              ORDER BY attrelid::regclass::text DESC, attnum",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(
        columns.join(" ").replace("lease_waiter.", "w.").replace("lease_session.", "s."),
        "w.name w.pid w.place w.since s.name s.holder s.token s.pid s.client_addr s.state s.idle_since"
    );
    let rows = a
        .rows(
            "SELECT pid, place::bigint, since FROM lease_waiter WHERE name = 'j' ORDER BY place",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(rows.len(), 3);
    for (at, (row, session)) in rows.iter().zip([&w1, &w2, &w3]).enumerate() {
        assert_eq!((row.get::<_, i32>(0), row.get::<_, i64>(1)), (session.pid(), at as i64 + 1));
        let since: std::time::SystemTime = row.get(2);
        assert!(from[at] <= since && since <= from[at + 1], "place {at}: {since:?}, {from:?}");
    }
    let counts: Vec<i64> =
        a.list("SELECT waiters::bigint FROM lease_status ORDER BY name", &[]).await.unwrap();
    assert_eq!(counts, [3, 1]);

    // In the server's own views: the head sleeps, the others wait for a lock, each blocked by who is before.
    asleep(&db, w1.pid()).await;
    for session in [&w2, &w3] {
        let event: String = a
            .one(
                "SELECT state || ' ' || wait_event_type || ' ' || wait_event FROM pg_stat_activity WHERE pid = $1",
                &[&session.pid()],
            )
            .await
            .unwrap();
        assert_eq!(event, "active Lock userlock");
        let blockers: Vec<i32> =
            a.one("SELECT pg_blocking_pids($1)", &[&session.pid()]).await.unwrap();
        assert!(blockers.contains(&w1.pid()), "{blockers:?}");
    }

    assert_eq!(a.rel("j", t).await, Ok(true));
    calls.remove(0).await.unwrap().granted();
    asleep(&db, w2.pid()).await;
    // The new head is the first now, and has waited since it came.
    let (pid, is_since): (i32, bool) = {
        let rows = a
            .rows(
                "SELECT pid, since BETWEEN $1 AND $2 FROM lease_waiter WHERE name = 'j' AND place = 1",
                &[&from[1], &from[2]],
            )
            .await
            .unwrap();
        (rows[0].get(0), rows[0].get(1))
    };
    assert_eq!((pid, is_since), (w2.pid(), true));
    assert_eq!(line(&db, "j").await, [w2.pid(), w3.pid()]);
    assert!(!other.is_finished());
}

/// Who is led by whom, and since when: for everybody of the role.
#[tokio::test]
async fn the_leader_is_shown_since_its_grant() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let before = b.clock().await;
    let t = a.lead("lead", "node-1", "60 s", None).await.granted();
    let after = b.clock().await;
    for _ in 0..3 {
        assert_eq!(a.lead("lead", "node-1", "60 s", Some(t)).await, Ok(Some(t)));
    }
    let rows = b
        .rows(
            "SELECT holder, token, acquired_at BETWEEN $1 AND $2, expires_at > acquired_at + '60 s', grants
               FROM lease_status WHERE name = 'lead'",
            &[&before, &after],
        )
        .await
        .unwrap();
    assert_eq!((rows[0].get::<_, &str>(0), rows[0].get::<_, i64>(1)), ("node-1", t));
    assert!(rows[0].get::<_, bool>(2), "heartbeats do not change since when");
    assert!(rows[0].get::<_, bool>(3), "they do extend");
    assert_eq!(rows[0].get::<_, i64>(4), 1);
}

/// A role sees the lines of its own roles' leases, pg_monitor all of them; and needs no more than it has by default to stand in line.
#[tokio::test]
async fn a_role_sees_the_lines_of_its_leases() {
    let db = Db::fresh().await;
    let [one, two, watcher] =
        [db.role("one").await, db.role("two").await, db.role("watcher").await];
    db.watch.sql(&format!("GRANT pg_monitor TO {watcher}")).await.unwrap();
    let [a, b, w]: [Session; 3] =
        [db.session_as(&one).await, db.session_as(&two).await, db.session_as(&watcher).await];
    let waiter = db.session_as(&two).await;
    let t = a.acq("j", "A", "1 hour").await.granted();
    let call = stand(&db, &waiter, "j", "50 s").await;
    let count = "SELECT count(*) FROM lease_waiter WHERE pid IS NOT NULL AND place = 1";
    for (session, expected) in [(&a, 1), (&b, 0), (&w, 1)] {
        assert_eq!(session.one::<i64>(count, &[]).await, Ok(expected));
        assert_eq!(session.info("j").await.is_some(), expected == 1);
    }
    assert_eq!(a.rel("j", t).await, Ok(true));
    let t2 = call.await.unwrap().granted();
    assert_eq!(waiter.rel("j", t2).await, Ok(true));
    nobody_waits(&db).await;
}

/// Since when the head waits is for the lease's own role, and not only for pg_monitor.
#[tokio::test]
async fn the_holders_role_sees_since_when_the_head_waits() {
    let db = Db::fresh().await;
    let [one, two] = [db.role("one").await, db.role("two").await];
    let [a, w1, w2] =
        [db.session_as(&one).await, db.session_as(&two).await, db.session_as(&two).await];
    a.acq("j", "A", "1 hour").await.granted();
    let _head = stand(&db, &w1, "j", "50 s").await;
    let _second = stand(&db, &w2, "j", "50 s").await;
    let known: Vec<bool> =
        a.list("SELECT since IS NOT NULL FROM lease_waiter ORDER BY place", &[]).await.unwrap();
    assert_eq!(known, [true, true]);
}
