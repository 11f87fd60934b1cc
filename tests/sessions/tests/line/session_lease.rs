//! Leases that are bound to their session, while it is there.

use lock_ext_sessions::{Asked, Db, Refused, STALE, Session, Way};

use super::scene::{has_no_lock, line, nobody_waits, stand, stand_bound};

/// What `lease_status` says of it beside the rest, as text.
async fn shown(session: &Session, name: &str) -> String {
    session
        .one(
            "SELECT concat_ws('|', state, holder, expires_at, coalesce(remaining::text, 'null'),
                              coalesce(ttl::text, 'null'), session_pid, coalesce(completed_until::text, 'null'))
               FROM lease_status WHERE name = $1",
            &[&name],
        )
        .await
        .expect("one row")
}

#[tokio::test]
async fn it_is_held_without_a_time_and_shown_with_its_process() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t = a.sacq("s", "A", "0").await.granted();
    assert_eq!(shown(&b, "s").await, format!("held|A|infinity|null|null|{}|null", a.pid()));
    assert_eq!(b.is_current("s", t).await, Ok(true));
    b.acq("s", "B", "60 s").await.busy();
    b.sacq("s", "B", "0").await.busy();
    a.sacq("s", "A", "0").await.busy();
    b.lead("s", "B", "60 s", None).await.busy();

    // Idle, since when; and what it does otherwise.
    db.until("SELECT state = 'idle' FROM lease_session WHERE name = 's'", &[]).await;
    let rows = b
        .rows(
            "SELECT holder, token, pid, client_addr IS NULL, idle_since <= clock_timestamp(),
                    idle_since >= (SELECT acquired_at FROM lease_status WHERE name = s.name)
               FROM lease_session AS s WHERE name = 's'",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].get::<_, &str>(0), "A");
    assert_eq!((rows[0].get::<_, i64>(1), rows[0].get::<_, i32>(2)), (t, a.pid()));
    assert!([3, 4, 5].into_iter().all(|column| rows[0].get::<_, bool>(column)));
    a.sql("BEGIN").await.unwrap();
    db.until(
        "SELECT state = 'idle in transaction' AND idle_since IS NOT NULL FROM lease_session WHERE name = 's'",
        &[],
    )
    .await;
    a.rollback().await;
    let sleeping = a.beside(|me| async move { me.sql("SELECT pg_sleep(30)").await });
    db.until(
        "SELECT state = 'active' AND idle_since IS NULL FROM lease_session WHERE name = 's'",
        &[],
    )
    .await;
    db.watch.one::<bool>("SELECT pg_cancel_backend($1)", &[&a.pid()]).await.unwrap();
    sleeping.await.unwrap().refused("57014");

    // Only such leases are in that view.
    b.acq("timed", "B", "60 s").await.granted();
    let names: Vec<String> = b.list("SELECT name FROM lease_session", &[]).await.unwrap();
    assert_eq!(names, ["s"]);
    assert_eq!(a.rel("s", t).await, Ok(true), "a cancelled statement does not end it");
}

#[tokio::test]
async fn it_is_extended_for_ever_and_not_for_a_time() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t = a.sacq("s", "A", "0").await.granted();
    for session in [&a, &b] {
        for sql in [
            "SELECT lease_extend('s', $1) = 'infinity'",
            "SELECT expires_at = 'infinity' FROM lease_extend_many('{s}', ARRAY[$1::bigint])",
        ] {
            assert_eq!(session.one(sql, &[&t]).await, Ok(true), "{sql}");
        }
        session.ext("s", t, "60 s").await.refused("22023").has_hint();
        session.ext_many(&["s"], &[t], "60 s").await.refused("22023");
        session.lead("s", "A", "60 s", Some(t)).await.refused("22023");
        session.ext_as_granted("s", t - 1).await.lost();
        session.ext("s", t + 1, "60 s").await.lost();
        session.lead("s", "A", "60 s", Some(t + 1)).await.busy();
    }
    a.sql("BEGIN").await.unwrap();
    assert_eq!(a.one("SELECT lease_extend('s', $1) = 'infinity'", &[&t]).await, Ok(true));
    a.commit().await.expect("nothing to write");
    assert_eq!(shown(&b, "s").await, format!("held|A|infinity|null|null|{}|null", a.pid()));
}

/// Every way to write works under its token, from any connection, with and without a checkpoint.
#[tokio::test]
async fn its_token_writes_from_any_connection() {
    let db = Db::fresh().await;
    db.fence("s").await;
    let [a, b] = db.sessions().await;
    let t = a.sacq("s", "A", "0").await.granted();
    for (number, session) in [&a, &b].into_iter().enumerate() {
        for way in Way::ALL {
            assert_eq!(session.fw(way, "s", t, 1, number as i32).await, Ok(1), "{way:?}");
        }
        session.cp("s", t, &format!("{number}")).await.unwrap();
    }
    assert_eq!(b.read_cp("s").await, Ok(Some("1".to_owned())));
    b.sql("BEGIN").await.unwrap();
    b.fence_and_hold("s", t).await.unwrap();
    b.fw_in_block(Way::Transaction, "s", t, 2, 9).await.unwrap();
    b.commit().await.unwrap();
    assert_eq!(db.v("plain", 2).await, 9);
    a.sql("SET lock_ext.strict_expiry = on").await.unwrap();
    a.fw(Way::Stamped, "s", t, 3, 9).await.expect("it does not expire");
    assert_eq!(a.rel("s", t).await, Ok(true));
    b.fw(Way::Transaction, "s", t, 1, 666).await.refused(STALE);
}

/// What a transaction pooler does: the calls of one client reach different sessions.
#[tokio::test]
async fn another_session_is_refused_its_release_loudly() {
    let db = Db::fresh().await;
    let [s1, s2] = db.sessions().await;
    let t = s1.sacq("u", "A", "0").await.granted();
    for sql in [
        "SELECT lease_release('u', $1)",
        "SELECT lease_complete('u', $1)",
        "SELECT lease_complete('u', $1, clock_timestamp() + '1 s')",
    ] {
        let refusal = s2.one::<bool>(sql, &[&t]).await.refused("55000");
        refusal.detail_names(&[&s1.pid()]).has_hint();
        assert!(refusal.message.contains("\"u\""), "{refusal:?}");
        // In a block it is refused at the call, and not at the COMMIT.
        s2.sql("BEGIN").await.unwrap();
        s2.one::<bool>(sql, &[&t]).await.refused("55000");
        s2.rollback().await;
    }
    for token in [t - 1, t + 1, 0] {
        assert_eq!(s2.rel("u", token).await, Ok(false), "not the current token: the usual answer");
    }
    assert_eq!(s2.is_current("u", t).await, Ok(true));
    assert_eq!(s1.is_current("u", t).await, Ok(true));
    s2.acq_wait("u", "B", "60 s", "100 ms").await.busy();

    // Its own session may, also in a block, and also for a completion.
    s1.sql("BEGIN").await.unwrap();
    assert_eq!(s1.rel("u", t).await, Ok(true));
    s1.rollback().await;
    assert_eq!(s2.is_current("u", t).await, Ok(true), "not released");
    s1.sql("BEGIN").await.unwrap();
    assert_eq!(s1.rel("u", t).await, Ok(true));
    s1.commit().await.unwrap();
    assert_eq!(s1.rel("u", t).await, Ok(false), "true once");
    has_no_lock(&db, s1.pid()).await;
    let t2 = s2.sacq("u", "B", "0").await.granted();
    assert_eq!(s2.complete("u", t2).await, Ok(true));
    has_no_lock(&db, s2.pid()).await;
    s1.sacq("u", "A", "1 s").await.busy();
    assert_eq!(s1.info("u").await.unwrap().state, "completed");
}

/// The role counts as for every lease, and what is stale is told first.
#[tokio::test]
async fn it_is_its_roles() {
    let db = Db::fresh().await;
    let [one, two] = [db.role("one").await, db.role("two").await];
    let [a, b] = [db.session_as(&one).await, db.session_as(&two).await];
    let looks = db.session_as(&two).await;
    let t = a.sacq("s", "A", "0").await.granted();
    b.ext_as_granted("s", t).await.refused("42501");
    b.rel("s", t).await.refused("42501");
    assert_eq!(b.rel("s", t - 1).await, Ok(false));
    // Strangers see neither the lease nor who waits for it, but may stand in line.
    let call = stand_bound(&db, &b, "s", "50 s").await;
    let seen = "SELECT (SELECT count(*) FROM lease_session) + (SELECT count(*) FROM lease_waiter)";
    assert_eq!(looks.one::<i64>(seen, &[]).await, Ok(0));
    assert_eq!(a.one::<i64>(seen, &[]).await, Ok(2));
    // And are woken by a release of another role.
    assert_eq!(a.rel("s", t).await, Ok(true));
    let t2 = call.await.unwrap().granted();
    assert_eq!(b.rel("s", t2).await, Ok(true));
}

#[tokio::test]
async fn a_release_hands_it_to_the_next_in_line() {
    let db = Db::fresh().await;
    let [a, w1, w2] = db.sessions().await;
    for in_block in [false, true] {
        let t = a.sacq("s", "A", "0").await.granted();
        let head = stand_bound(&db, &w1, "s", "40 s").await;
        let next = stand(&db, &w2, "s", "40 s").await;
        assert_eq!(line(&db, "s").await, [w1.pid(), w2.pid()]);
        if in_block {
            a.sql("BEGIN").await.unwrap();
        }
        assert_eq!(a.rel("s", t).await, Ok(true));
        if in_block {
            assert!(!head.is_finished());
            a.commit().await.unwrap();
        }
        let t1 = head.await.unwrap().granted();
        assert!(t1 > t && !next.is_finished());
        assert_eq!(
            shown(&a, "s").await,
            format!("held|backend {0}|infinity|null|null|{0}|null", w1.pid())
        );
        assert_eq!(w1.rel("s", t1).await, Ok(true));
        let t2 = next.await.unwrap().granted();
        assert_eq!(w2.rel("s", t2).await, Ok(true));
        for session in [&a, &w1, &w2] {
            has_no_lock(&db, session.pid()).await;
        }
    }
    nobody_waits(&db).await;
}

/// Taken in a transaction or savepoint that does not happen: gone at once, its lock too.
#[tokio::test]
async fn it_goes_with_its_transaction() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let mut last = 0;
    for (end, kept) in [
        ("ROLLBACK", false),
        ("ROLLBACK TO s", false),
        ("SELECT 1 / 0", false),
        ("RELEASE s; ROLLBACK", false),
        ("RELEASE s; SAVEPOINT r; ROLLBACK TO s0", false),
        ("RELEASE s; COMMIT", true),
        ("SAVEPOINT r; ROLLBACK TO r; COMMIT", true),
        ("SAVEPOINT r; SELECT lease_release('s', $t); ROLLBACK TO r; COMMIT", true),
        ("SAVEPOINT r; SELECT lease_release('s', $t); RELEASE r; COMMIT", false),
        ("SELECT lease_release('s', $t); ROLLBACK", false),
    ] {
        a.sql("BEGIN; SAVEPOINT s0; SAVEPOINT s").await.unwrap();
        let t = a.sacq("s", "A", "0").await.granted();
        assert!(t > last, "a token is given out once");
        assert_eq!(a.is_current("s", t).await, Ok(true), "{end}: its own");
        b.acq("s", "B", "60 s").await.busy();
        let ended = a.sql(&end.replace("$t", &t.to_string())).await;
        assert_eq!(ended.is_err(), end.contains("1 / 0"), "{end}: {ended:?}");
        assert_eq!(b.is_current("s", t).await, Ok(kept), "{end}");
        if kept {
            b.acq("s", "B", "60 s").await.busy();
            assert_eq!(a.rel("s", t).await, Ok(true), "{end}");
        }
        has_no_lock(&db, a.pid()).await;
        let next = b.acq("s", "B", "60 s").await.granted();
        assert_eq!(b.rel("s", next).await, Ok(true), "{end}");
        a.sql("ROLLBACK").await.unwrap();
        last = next;
    }
}

/// The grant is a matter of the prepared transaction, the session of its own.
#[tokio::test]
async fn a_prepared_grant_is_there_as_long_as_its_session() {
    let db = Db::fresh().await;
    let b = db.session().await;
    for (end, session_lives) in
        [("COMMIT", true), ("ROLLBACK", true), ("COMMIT", false), ("ROLLBACK", false)]
    {
        let case = format!("{end}, the session lives: {session_lives}");
        let name = format!("s {end} {session_lives}");
        let gid = format!("{} {name}", db.name());
        let a = db.session().await;
        a.sql("BEGIN").await.unwrap();
        let t = a.sacq(&name, "A", "0").await.granted();
        match a.sql(&format!("PREPARE TRANSACTION '{gid}'")).await {
            Ok(()) => {
                b.acq(&name, "B", "60 s").await.busy();
                if !session_lives {
                    db.terminate(a.pid()).await;
                }
                db.watch.sql(&format!("{end} PREPARED '{gid}'")).await.expect(&case);
            }
            // Refused as what cannot be prepared is, and then nothing is left of it.
            Err(error) => {
                assert_eq!(error.code, "0A000", "{case}: {error:?}");
                has_no_lock(&db, a.pid()).await;
                b.acq(&name, "B", "60 s").await.granted();
                continue;
            }
        }
        let held = end == "COMMIT" && session_lives;
        assert_eq!(b.is_current(&name, t).await, Ok(held), "{case}");
        if held {
            b.acq(&name, "B", "60 s").await.busy();
            b.rel(&name, t).await.refused("55000").detail_names(&[&a.pid()]);
            assert_eq!(a.rel(&name, t).await, Ok(true), "{case}");
        }
        b.acq(&name, "B", "60 s").await.granted();
        // The session is not told that its prepared transaction was rolled back.
        if session_lives && end == "COMMIT" {
            has_no_lock(&db, a.pid()).await;
        }
    }
}

/// The token of a forced end is refused, and the session can have the lease again.
#[tokio::test]
async fn it_can_be_ended_by_force() {
    let db = Db::fresh().await;
    db.fence("s").await;
    let [a, b, w] = db.sessions().await;
    let t = a.sacq("s", "A", "0").await.granted();
    let call = stand(&db, &w, "s", "40 s").await;
    assert_eq!(b.force("s").await, Ok(true));
    let t2 = call.await.unwrap().granted();
    assert!(t2 > t);
    assert_eq!(a.is_current("s", t).await, Ok(false));
    assert_eq!(a.rel("s", t).await, Ok(false));
    a.ext_as_granted("s", t).await.lost();
    a.fw(Way::Transaction, "s", t, 1, 666).await.refused(STALE);
    assert_eq!(w.rel("s", t2).await, Ok(true));
    let t3 = a.sacq("s", "A", "0").await.granted();
    assert!(t3 > t2);
    assert_eq!(a.rel("s", t3).await, Ok(true));
    // The old session's end is nobody's any more.
    let t4 = b.sacq("s", "B", "0").await.granted();
    db.terminate(a.pid()).await;
    assert_eq!(b.is_current("s", t4).await, Ok(true));
}

/// A release in a savepoint that is rolled back, or in a PL/pgSQL block that fails, did not happen: the session has the lease, and goes
/// on having it when the transaction is committed.
#[tokio::test]
async fn a_release_that_a_savepoint_takes_back_does_not_end_it() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    for in_one_transaction in [false, true] {
        for undone in [
            "SAVEPOINT r; SELECT lease_release('s', $t); ROLLBACK TO r",
            "SAVEPOINT r; SAVEPOINT q; SELECT lease_release('s', $t); RELEASE q; ROLLBACK TO r",
            "DO $$ BEGIN PERFORM lease_release('s', $t); RAISE unique_violation;
                   EXCEPTION WHEN unique_violation THEN NULL; END $$",
            "SAVEPOINT r; SELECT lease_complete('s', $t); ROLLBACK TO r",
        ] {
            let case = format!("granted in the same transaction: {in_one_transaction}, {undone}");
            if in_one_transaction {
                a.sql("BEGIN").await.unwrap();
            }
            let t = a.sacq("s", "A", "0").await.granted();
            if !in_one_transaction {
                a.sql("BEGIN").await.unwrap();
            }
            a.sql(&undone.replace("$t", &t.to_string())).await.expect(&case);
            assert_eq!(a.is_current("s", t).await, Ok(true), "{case}");
            a.commit().await.expect(&case);
            assert_eq!(b.is_current("s", t).await, Ok(true), "{case}");
            b.acq("s", "B", "60 s").await.busy();
            // And it can be released later, once.
            assert_eq!(a.rel("s", t).await, Ok(true), "{case}");
            has_no_lock(&db, a.pid()).await;
        }
    }
}

#[tokio::test]
async fn one_session_holds_many() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let tokens: Vec<i64> = a
        .list("SELECT lease_acquire_session('n' || i, 'A') FROM generate_series(1, 60) AS i", &[])
        .await
        .unwrap();
    assert!(tokens.windows(2).all(|pair| pair[0] < pair[1]));
    let count = "SELECT count(*) FROM lease_session";
    assert_eq!(b.one::<i64>(count, &[]).await, Ok(60));
    assert_eq!(a.rel("n30", tokens[29]).await, Ok(true));
    assert_eq!(b.one::<i64>(count, &[]).await, Ok(59));
    assert_eq!(b.is_current("n31", tokens[30]).await, Ok(true));
    db.terminate(a.pid()).await;
    let got: i64 = b
        .one(
            "SELECT count(lease_acquire('n' || i, 'B', '60 s')) FROM generate_series(1, 60) AS i",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(got, 60, "all at once");
}
