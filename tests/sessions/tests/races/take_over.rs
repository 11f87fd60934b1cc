//! A take-over waits for nobody who is idle, and a heartbeat for nobody at all.

use std::time::Duration;

use lock_ext_sessions::{Asked, BROKEN, Client, Db, LEVELS, Refused, STALE, Way};

use crate::CLIENT;

/// Longer than any answer takes; whoever waits for an idle transaction runs into it.
const AT_ONCE: &str = "SET statement_timeout = '10s'";

/// A process that is frozen in a transaction which has called this. `$t` is its token.
async fn does_not_delay_the_take_over(calls: &[&str], outcome: Result<&str, &str>) {
    for level in LEVELS {
        let db = Db::fresh().await;
        db.fence("j").await;
        let [a, b] = db.sessions().await;
        b.sql(AT_ONCE).await.unwrap();
        let mut frozen = Client::start(&db, CLIENT).await;
        let t1 = frozen.ask("SELECT lease_acquire('j', 'A', '60 s')").await.unwrap();
        frozen.ask(&format!("BEGIN ISOLATION LEVEL {level}")).await.unwrap();
        for call in calls {
            let answer = frozen
                .ask(&call.replace("$t", &t1))
                .await
                .unwrap_or_else(|code| panic!("{code}: {call}"));
            assert!(
                !answer.is_empty() && answer != "f"
                    || call.contains("_fence")
                    || call.contains("UPDATE"),
                "{call}"
            );
        }
        frozen.freeze().await;
        db.idle_in_transaction(frozen.backend()).await;

        // Its time to live runs out while it is frozen.
        let token: i64 = t1.parse().unwrap();
        a.sql(AT_ONCE).await.unwrap();
        a.ext("j", token, "1 ms").await.extended();
        db.expired("j").await;
        let t2 = b.acq("j", "B", "60 s").await.granted();
        assert!(t2 > token);
        let held = b.info("j").await.map(|s| (s.holder, s.token, s.expires_at));
        b.cp("j", t2, "2").await.unwrap();
        assert_eq!(b.fw(Way::Transaction, "j", t2, 2, 2).await, Ok(1));

        frozen.wake();
        assert_eq!(
            frozen.ask("COMMIT").await,
            outcome.map(str::to_owned).map_err(str::to_owned),
            "{level}"
        );
        assert_eq!(b.info("j").await.map(|s| (s.holder, s.token, s.expires_at)), held, "{level}");
        assert_eq!(db.v("plain", 1).await, 0);
        assert_eq!(b.is_current("j", t2).await, Ok(true));
    }
}

#[tokio::test]
async fn a_frozen_open_transaction_with_a_pending_extend_does_not_delay_the_take_over() {
    does_not_delay_the_take_over(&["SELECT lease_extend('j', $t, '60 s')"], Err(STALE)).await;
}

#[tokio::test]
async fn a_frozen_open_transaction_with_a_pending_extend_many_does_not_delay_the_take_over() {
    let call = "SELECT expires_at FROM lease_extend_many(ARRAY['j'], ARRAY[$t::bigint], '60 s')";
    does_not_delay_the_take_over(&[call], Err(STALE)).await;
}

#[tokio::test]
async fn a_frozen_open_transaction_with_a_pending_elect_does_not_delay_the_take_over() {
    does_not_delay_the_take_over(&["SELECT lease_elect('j', 'A', '60 s', $t)"], Err(STALE)).await;
}

#[tokio::test]
async fn a_frozen_open_transaction_with_a_pending_release_does_not_delay_the_take_over() {
    does_not_delay_the_take_over(&["SELECT lease_release('j', $t)"], Err(STALE)).await;
}

#[tokio::test]
async fn a_frozen_open_transaction_with_a_pending_complete_does_not_delay_the_take_over() {
    does_not_delay_the_take_over(&["SELECT lease_complete('j', $t)"], Err(STALE)).await;
}

#[tokio::test]
async fn a_frozen_open_transaction_with_writes_does_not_delay_the_take_over() {
    let calls = [
        "SELECT lease_fence('j', $t)",
        "UPDATE plain SET v = 666 WHERE id = 1",
        "UPDATE stamped SET v = 666, token = $t WHERE id = 1",
        "SELECT fenced_update('plain', $t, '{\"id\": 1}', '{\"v\": 666}')",
    ];
    does_not_delay_the_take_over(&calls, Err(STALE)).await;
}

#[tokio::test]
async fn a_frozen_open_transaction_that_did_it_all_does_not_delay_the_take_over() {
    let calls = [
        "SELECT lease_extend('j', $t, '60 s')",
        "SELECT lease_fence('j', $t)",
        "UPDATE plain SET v = 666 WHERE id = 1",
        "SELECT lease_extend('j', $t, '60 s')",
        "SELECT lease_release('j', $t)",
    ];
    does_not_delay_the_take_over(&calls, Err(STALE)).await;
}

/// A transaction that only looked, or that was refused, has nothing to lose at its commit.
#[tokio::test]
async fn a_frozen_open_transaction_that_only_asked_may_commit() {
    let calls = ["SELECT lease_is_current('j', $t)", "SELECT count(*) FROM lease_status"];
    does_not_delay_the_take_over(&calls, Ok("")).await;
}

#[tokio::test]
async fn pending_effects_take_hold_at_commit_and_are_seen_by_their_own_transaction() {
    let db = Db::fresh().await;
    let [a, open] = db.sessions().await;
    for level in LEVELS {
        // An extension.
        let t = a.acq("j", "A", "60 s").await.granted();
        let before = a.expiry("j").await;
        open.begin(level).await;
        let promised = open.ext("j", t, "120 s").await.extended();
        assert_eq!(open.expiry("j").await, promised, "{level}");
        assert_eq!(a.expiry("j").await, before, "{level}");
        open.commit().await.unwrap();
        let after = a.expiry("j").await;
        assert!(after >= promised, "not shorter than what was told: {level}");

        // A release.
        open.begin(level).await;
        assert_eq!(open.rel("j", t).await, Ok(true));
        assert_eq!(open.is_current("j", t).await, Ok(false), "{level}");
        assert_eq!(open.rel("j", t).await, Ok(false), "true once: {level}");
        open.ext("j", t, "60 s").await.lost();
        assert_eq!(open.info("j").await.unwrap().holder, None, "{level}");
        open.sql("SAVEPOINT s").await.unwrap();
        open.fence("j", t).await.refused(STALE);
        open.sql("ROLLBACK TO s").await.unwrap();
        assert_eq!(a.is_current("j", t).await, Ok(true), "{level}");
        assert_eq!(a.info("j").await.unwrap().holder.as_deref(), Some("A"));
        open.commit().await.unwrap();
        assert_eq!(a.is_current("j", t).await, Ok(false), "{level}");

        // Taken back with a savepoint.
        let t = a.acq("j", "A", "60 s").await.granted();
        open.begin(level).await;
        open.sql("SAVEPOINT s").await.unwrap();
        assert_eq!(open.rel("j", t).await, Ok(true));
        open.sql("ROLLBACK TO s").await.unwrap();
        assert_eq!(open.is_current("j", t).await, Ok(true), "{level}");
        open.commit().await.unwrap();
        assert_eq!(a.is_current("j", t).await, Ok(true), "{level}");
        a.rel("j", t).await.unwrap();
    }
}

/// Two transactions were told that they released it; one of them is wrong and is undone.
#[tokio::test]
async fn only_one_of_two_pending_releases_commits() {
    let db = Db::fresh().await;
    let [a, one, two] = db.sessions().await;
    let t = a.acq("j", "A", "60 s").await.granted();
    for session in [&one, &two] {
        session.sql("BEGIN").await.unwrap();
        assert_eq!(session.rel("j", t).await, Ok(true));
    }
    one.commit().await.unwrap();
    two.commit().await.refused(STALE);
    assert_eq!(a.is_current("j", t).await, Ok(false));
}

/// With `hold` the holder asks that nobody takes over before its transaction ends.
#[tokio::test]
async fn a_transaction_that_holds_keeps_the_lease_until_it_ends() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, b] = db.sessions().await;
    for session in [&a, &b] {
        session.sql(AT_ONCE).await.unwrap();
    }
    for (end, v) in [("COMMIT", 5), ("ROLLBACK", 0), ("crash", 0)] {
        db.reset().await;
        let worker = db.session().await;
        let t1 = a.acq("j", "A", "60 s").await.granted();
        worker.sql("BEGIN").await.unwrap();
        worker.fence_and_hold("j", t1).await.unwrap();
        worker.exec("UPDATE plain SET v = 5 WHERE id = 1", &[]).await.unwrap();
        a.ext("j", t1, "60 s").await.extended();
        a.ext("j", t1, "1 ms").await.extended();
        db.expired("j").await;
        b.acq("j", "B", "60 s").await.busy();
        b.acq("j", "B", "60 s").await.busy();
        match end {
            "crash" => db.terminate(worker.pid()).await,
            end => worker.sql(end).await.expect("nobody could take over"),
        }
        let t2 = b.acq("j", "B", "60 s").await.granted();
        assert_eq!(db.v("plain", 1).await, v, "{end}");
        assert_eq!(b.rel("j", t2).await, Ok(true));
    }
}

/// Given back with its savepoint, the lock too.
#[tokio::test]
async fn a_hold_of_a_rolled_back_savepoint_holds_nothing() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, b, worker] = db.sessions().await;
    let t1 = a.acq("j", "A", "60 s").await.granted();
    worker.sql("BEGIN; SAVEPOINT s").await.unwrap();
    worker.fence_and_hold("j", t1).await.unwrap();
    worker.exec("UPDATE plain SET v = 5 WHERE id = 1", &[]).await.unwrap();
    worker.sql("ROLLBACK TO s").await.unwrap();
    a.ext("j", t1, "1 ms").await.extended();
    db.expired("j").await;
    b.acq("j", "B", "60 s").await.granted();
    worker.commit().await.unwrap();
}

#[tokio::test]
async fn a_heartbeat_is_never_blocked_by_the_holders_own_transactions() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let heart = db.session().await;
    heart.sql("SET statement_timeout = '10s'").await.unwrap();
    let t = heart.acq("j", "A", "60 s").await.granted();
    let mut workers = Vec::new();
    for (number, (level, hold)) in
        (1..).zip(LEVELS.into_iter().flat_map(|level| [(level, false), (level, true)]))
    {
        let worker = db.session().await;
        worker.begin(level).await;
        if hold {
            worker.fence_and_hold("j", t).await.unwrap();
        }
        worker.exec("SELECT 1", &[]).await.unwrap();
        // Its own table, so that at the highest level only the lease can be in the way.
        let table = format!("own_{number}");
        db.watch
            .sql(&format!("CREATE TABLE {table} (v int); SELECT fence_attach('{table}', 'j')"))
            .await
            .unwrap();
        worker.fence("j", t).await.unwrap();
        worker.exec(&format!("INSERT INTO {table} VALUES (1)"), &[]).await.unwrap();
        workers.push((worker, table));
    }
    for _ in 0..5 {
        heart.ext("j", t, "60 s").await.extended();
        heart.ext_as_granted("j", t).await.extended();
        assert!(heart.ext_many(&["j"], &[t], "60 s").await.unwrap()[0].expires_at.is_some());
        assert_eq!(heart.lead("j", "A", "60 s", Some(t)).await, Ok(Some(t)));
        heart.sql("BEGIN").await.unwrap();
        heart.ext("j", t, "60 s").await.extended();
        heart.commit().await.unwrap();
        // Nor do the transactions mind the heartbeats.
        for (worker, table) in &workers {
            worker.fence("j", t).await.unwrap();
            worker.exec(&format!("INSERT INTO {table} VALUES (1)"), &[]).await.unwrap();
        }
    }
    for (worker, table) in workers {
        worker.commit().await.expect("no serialization failure");
        assert_eq!(heart.one::<i64>(&format!("SELECT count(*) FROM {table}"), &[]).await, Ok(6));
    }
}

/// The heartbeats of a process's other thread go on while its transaction is frozen by the database.
#[tokio::test]
async fn a_heartbeat_beside_a_transaction_that_waits_for_a_row() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [heart, worker, foreign] = db.sessions().await;
    heart.sql("SET statement_timeout = '10s'").await.unwrap();
    let t = heart.acq("j", "A", "60 s").await.granted();
    foreign.sql("BEGIN; SELECT FROM plain WHERE id = 1 FOR UPDATE").await.unwrap();
    let writing =
        worker.beside(move |worker| async move { worker.fw(Way::Transaction, "j", t, 1, 5).await });
    db.blocked(&worker).await;
    for _ in 0..5 {
        heart.ext("j", t, "60 s").await.extended();
    }
    foreign.rollback().await;
    assert_eq!(writing.await.unwrap(), Ok(1));
}

/// The statement was let in, then waited for a row while its lease was taken over.
#[tokio::test]
async fn a_write_that_waited_for_its_row_is_refused_all_the_same() {
    let db = Db::fresh().await;
    db.fence("j").await;
    for way in Way::ALL {
        let [a, worker, foreign] = db.sessions().await;
        let t1 = a.acq("j", "A", "60 s").await.granted();
        foreign
            .sql(&format!("BEGIN; SELECT FROM {} WHERE id = 1 FOR UPDATE", way.table()))
            .await
            .unwrap();
        let writing =
            worker.beside(move |worker| async move { worker.fw(way, "j", t1, 1, 666).await });
        db.blocked(&worker).await;
        assert_eq!(a.force("j").await, Ok(true));
        let t2 = a.acq("j", "B", "60 s").await.granted();
        foreign.rollback().await;
        writing.await.unwrap().refused(STALE);
        assert_eq!(db.v(way.table(), 1).await, 0, "{way:?}");
        assert_eq!(a.rel("j", t2).await, Ok(true));
    }
}

#[tokio::test]
async fn a_killed_process_in_an_open_transaction_leaves_nothing() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, b] = db.sessions().await;
    let mut client = Client::start(&db, CLIENT).await;
    client.ask("BEGIN").await.unwrap();
    let t0: i64 =
        client.ask("SELECT lease_acquire('mine', 'A', '60 s')").await.unwrap().parse().unwrap();
    let t1 = a.acq("j", "A", "60 s").await.granted();
    client.ask(&format!("SELECT lease_fence('j', {t1}, hold => true)")).await.unwrap();
    client.ask("UPDATE plain SET v = 666").await.unwrap();
    client.kill().await;
    db.gone(client.backend()).await;

    assert!(b.acq("mine", "B", "60 s").await.granted() > t0, "its number is not given out again");
    assert_eq!(db.v("plain", 1).await, 0);
    assert_eq!(a.is_current("j", t1).await, Ok(true), "the lease does not end with a session");
    assert_eq!(a.fw(Way::Transaction, "j", t1, 1, 5).await, Ok(1));
}

/// An acquire in an open block is nobody's business until it commits; others do not wait for it.
#[tokio::test]
async fn an_open_acquire_makes_others_get_null_at_once() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    b.sql(AT_ONCE).await.unwrap();
    for level in LEVELS {
        for first in ["never held", "released", "expired"] {
            let name = format!("{first} {level}");
            let mut old = None;
            if first != "never held" {
                let t = a.acq(&name, "old", "60 s").await.granted();
                if first == "released" {
                    a.rel(&name, t).await.unwrap();
                } else {
                    a.ext(&name, t, "1 ms").await.extended();
                    db.expired(&name).await;
                }
                old = Some(t);
            }
            a.begin(level).await;
            let t1 = a.acq(&name, "A", "60 s").await.granted();
            b.acq(&name, "B", "60 s").await.busy();
            b.lead(&name, "B", "60 s", None).await.busy();
            assert_eq!(b.is_current(&name, t1).await, Ok(false), "not yet");
            if let Some(old) = old {
                b.ext(&name, old, "60 s").await.lost();
            }
            a.commit().await.unwrap();
            b.acq(&name, "B", "60 s").await.busy();
            assert_eq!(b.is_current(&name, t1).await, Ok(true));
        }
    }
}

/// A frozen session with an acquire in an open block is the one case that a client has to avoid: its name is
/// free again when the session ends.
#[tokio::test]
async fn an_open_acquire_ends_with_its_session() {
    let db = Db::fresh().await;
    let b = db.session().await;
    let mut frozen = Client::start(&db, CLIENT).await;
    frozen.ask("BEGIN").await.unwrap();
    let t1: i64 =
        frozen.ask("SELECT lease_acquire('j', 'A', '1 ms')").await.unwrap().parse().unwrap();
    frozen.freeze().await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    b.acq("j", "B", "60 s").await.busy();
    db.terminate(frozen.backend()).await;
    assert!(b.acq("j", "B", "60 s").await.granted() > t1);
    frozen.wake();
    let commit = frozen.ask("COMMIT").await;
    assert!(matches!(commit.as_ref().map_err(String::as_str), Err(BROKEN | "57P01")), "{commit:?}");
}

/// A release has to wait for a transaction that holds; the heartbeats that come after it do not wait with it.
#[tokio::test]
async fn a_heartbeat_is_not_queued_behind_a_release_that_waits_for_a_hold() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [heart, worker, releasing] = db.sessions().await;
    heart.sql(AT_ONCE).await.unwrap();
    let t = heart.acq("j", "A", "60 s").await.granted();
    worker.sql("BEGIN").await.unwrap();
    worker.fence_and_hold("j", t).await.unwrap();
    worker.sql("UPDATE plain SET v = 5 WHERE id = 1").await.unwrap();
    let release = releasing.beside(move |me| async move { me.rel("j", t).await });
    db.waiting(&releasing).await;
    for _ in 0..5 {
        heart.ext("j", t, "60 s").await.extended();
        assert!(heart.ext_many(&["j"], &[t], "60 s").await.unwrap()[0].expires_at.is_some());
    }
    assert!(!release.is_finished(), "the transaction holds");
    worker.commit().await.expect("nobody could release it");
    assert_eq!(release.await.unwrap(), Ok(true));
    assert_eq!(db.v("plain", 1).await, 5);
    heart.ext("j", t, "60 s").await.lost();
}

/// What a function does of a heartbeat, a release or a completion takes hold when the statement around it ends, for the
/// function may work on for long.
#[tokio::test]
async fn a_heartbeat_is_not_blocked_by_a_function_that_extends_and_works_on() {
    let db = Db::fresh().await;
    let [gate, heart, b] = db.sessions().await;
    for session in [&heart, &b] {
        session.sql(AT_ONCE).await.unwrap();
    }
    // A loop runs its query in a cursor of its own, in which the call stands alone.
    let forms = [
        "PERFORM $call; PERFORM pg_advisory_xact_lock_shared(1);",
        "FOR r IN SELECT $call LOOP PERFORM pg_advisory_xact_lock_shared(1); END LOOP;",
    ];
    let calls =
        ["lease_extend('j', $t)", "lease_release('j', $t)", "lease_complete('j', $t, '-infinity')"];
    for (form, call) in forms.iter().flat_map(|form| calls.map(|call| (form, call))) {
        let function = db.session().await;
        gate.sql("BEGIN; SELECT pg_advisory_xact_lock(1)").await.unwrap();
        let t = heart.acq("j", "A", "60 s").await.granted();
        let work = form.replace("$call", call).replace("$t", &t.to_string());
        let body = format!("DO $$ DECLARE r record; BEGIN {work} END $$");
        let working = function.beside(|me| async move { me.sql(&body).await });
        db.blocked(&function).await;
        heart.ext("j", t, "60 s").await.extended();
        assert_eq!(heart.is_current("j", t).await, Ok(true));
        // Nor does it delay the next holder.
        heart.ext("j", t, "1 ms").await.extended();
        db.expired("j").await;
        let t2 = b.acq("j", "B", "60 s").await.granted();
        gate.rollback().await;
        working.await.unwrap().refused(STALE);
        assert_eq!(b.rel("j", t2).await, Ok(true));
    }
}

/// A process may send its heartbeats from several connections. They may wait for each other, but none is told that the
/// lease is lost, however the row's versions are spread over pages and whatever index entry is not there yet.
#[tokio::test]
async fn calls_with_one_token_never_make_each_other_lose() {
    let db = Db::fresh().await;
    let admin = db.session().await;
    // Long names: a page is full after three versions, so that most new ones are on another page.
    let leases: Vec<String> =
        (0..3).map(|number| format!("{number}{}", "x".repeat(1000))).collect();
    let mut tokens = Vec::new();
    for lease in &leases {
        tokens.push(admin.acq(lease, &"h".repeat(1000), "1 hour").await.granted());
    }
    let end = std::time::Instant::now() + Duration::from_secs(3);
    let mut hearts = Vec::new();
    for number in 0..6 {
        let session = db.session().await;
        let (leases, tokens) = (leases.clone(), tokens.clone());
        hearts.push(session.beside(move |me| async move {
            let names: Vec<&str> = leases.iter().map(String::as_str).collect();
            me.sql("SET synchronous_commit = off").await.unwrap();
            let mut beats = 0;
            while std::time::Instant::now() < end {
                let block = number % 3 == 2;
                if block {
                    me.begin(LEVELS[beats % 3]).await;
                }
                let at = beats % names.len();
                me.ext(names[at], tokens[at], "1 hour").await.extended();
                let renewed = me.ext_many(&names, &tokens, "1 hour").await.unwrap();
                assert!(renewed.iter().all(|one| one.expires_at.is_some()), "one is lost");
                assert_eq!(me.is_current(names[at], tokens[at]).await, Ok(true));
                if block {
                    me.commit().await.expect("all are current");
                }
                beats += 1;
            }
            beats
        }));
    }
    // The holder's writers are not taken for superseded ones, and nobody else gets in.
    db.fence(&leases[0]).await;
    for id in 1..=3 {
        let session = db.session().await;
        let (lease, token) = (leases[0].clone(), tokens[0]);
        hearts.push(session.beside(move |me| async move {
            let mut writes = 0;
            while std::time::Instant::now() < end {
                let way = Way::ALL[writes % Way::ALL.len()];
                let written = me.fw(way, &lease, token, id, 1).await;
                assert_eq!(written, Ok(1), "the holder is refused");
                me.acq(&lease, "B", "1 hour").await.busy();
                writes += 1;
            }
            writes
        }));
    }
    for heart in hearts {
        let beats = heart.await.expect("no heartbeat is lost");
        assert!(beats > 5, "only {beats} rounds");
    }
}
