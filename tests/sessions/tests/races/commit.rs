//! No fenced write under a token commits after a higher one was granted: the check at the commit.

use std::time::{Duration, Instant};

use lock_ext_sessions::{Asked, Db, LEVELS, NO_TOKEN, Refused, STALE, Session, Way};

/// How a token stops being current while its writer's transaction is open.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Forced,
    Released,
    Completed,
    Expired,
}

impl End {
    const ALL: [Self; 4] = [Self::Forced, Self::Released, Self::Completed, Self::Expired];

    async fn comes(self, db: &Db, other: &Session, lease: &str, token: i64) {
        match self {
            Self::Forced => assert_eq!(other.force(lease).await, Ok(true)),
            Self::Released => assert_eq!(other.rel(lease, token).await, Ok(true)),
            Self::Completed => assert_eq!(
                other
                    .one(
                        "SELECT lease_complete($1, $2, clock_timestamp() + '1 ms'::interval)",
                        &[&lease, &token]
                    )
                    .await,
                Ok(true)
            ),
            Self::Expired => {
                other.ext(lease, token, "1 ms").await.extended();
                db.expired(lease).await;
            }
        }
    }
}

/// Acquires again and again until the end has come in full: a completed name is free a millisecond later.
async fn take(session: &Session, lease: &str) -> i64 {
    loop {
        if let Some(token) = session.acq(lease, "B", "60 s").await.expect("an answer") {
            return token;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

async fn stale_token_is_refused_at_commit(level: &str) {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, writer, b] = db.sessions().await;
    for way in Way::ALL {
        for end in End::ALL {
            let case = format!("{way:?}, {end:?}, {level}");
            let t1 = take(&a, "j").await;
            writer.begin(level).await;
            assert_eq!(writer.fw_in_block(way, "j", t1, 1, 666).await, Ok(1), "{case}");
            end.comes(&db, &a, "j", t1).await;
            let t2 = take(&b, "j").await;
            writer.commit().await.refused(STALE).detail_names(&[&"\"j\"", &t1, &t2]).has_hint();
            assert_eq!(db.v(way.table(), 1).await, 0, "{case}");
            assert_eq!(b.fw(way, "j", t2, 2, 7).await, Ok(1), "{case}");
            assert_eq!(b.rel("j", t2).await, Ok(true));
        }
    }
}

#[tokio::test]
async fn stale_token_is_refused_at_commit_under_read_committed() {
    stale_token_is_refused_at_commit("READ COMMITTED").await;
}

#[tokio::test]
async fn stale_token_is_refused_at_commit_under_repeatable_read() {
    stale_token_is_refused_at_commit("REPEATABLE READ").await;
}

#[tokio::test]
async fn stale_token_is_refused_at_commit_under_serializable() {
    stale_token_is_refused_at_commit("SERIALIZABLE").await;
}

/// Also when nobody was granted a newer token yet: it is refused from the release on.
#[tokio::test]
async fn a_released_token_is_refused_at_commit() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, writer] = db.sessions().await;
    for level in LEVELS {
        for end in [End::Forced, End::Released, End::Completed] {
            let t = take(&a, "j").await;
            writer.begin(level).await;
            writer.fw_in_block(Way::Transaction, "j", t, 1, 666).await.unwrap();
            end.comes(&db, &a, "j", t).await;
            writer.commit().await.refused(STALE);
            assert_eq!(db.v("plain", 1).await, 0, "{end:?}, {level}");
        }
    }
}

/// Nobody else was granted anything, so the write is safe.
#[tokio::test]
async fn an_expired_token_that_is_not_superseded_may_commit() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, writer] = db.sessions().await;
    for (round, level) in (1..).zip(LEVELS) {
        let t = take(&a, "j").await;
        writer.begin(level).await;
        writer.fw_in_block(Way::Column, "j", t, 1, round).await.unwrap();
        End::Expired.comes(&db, &a, "j", t).await;
        for way in Way::ALL {
            assert_eq!(writer.fw_in_block(way, "j", t, 2, round).await, Ok(1));
        }
        writer.cp("j", t, "1").await.unwrap();
        assert_eq!(
            writer.is_current("j", t).await,
            Ok(false),
            "whether to rely on it is another question"
        );
        writer.commit().await.unwrap();
        assert_eq!(
            [db.v("stamped", 1).await, db.v("plain", 2).await, db.v("stamped", 2).await],
            [round; 3]
        );
        assert_eq!(a.rel("j", t).await, Ok(true));
    }
}

/// Whatever statement brings the row in, or takes it away.
#[tokio::test]
async fn no_write_path_goes_past_the_commit_check() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, writer, b] = db.sessions().await;
    a.sql(
        "CREATE VIEW v AS SELECT id, v FROM plain;
         CREATE TABLE parent (id int PRIMARY KEY);
         INSERT INTO parent SELECT g FROM generate_series(1, 99) g;
         ALTER TABLE plain ADD FOREIGN KEY (id) REFERENCES parent ON DELETE CASCADE;
         CREATE FUNCTION writes() RETURNS void LANGUAGE plpgsql AS 'BEGIN UPDATE plain SET v = 666; END';
         CREATE TABLE queue (id int);
         CREATE FUNCTION moves() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN INSERT INTO plain VALUES (NEW.id, 666); RETURN NULL; END';
         CREATE CONSTRAINT TRIGGER moves AFTER INSERT ON queue DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION moves();",
    )
    .await
    .unwrap();
    let rows = "SELECT string_agg(p::text, ' ' ORDER BY id) FROM plain p";
    let before: String = a.one(rows, &[]).await.unwrap();
    for path in [
        "INSERT INTO plain VALUES (20, 666)",
        "UPDATE plain SET v = 666",
        "DELETE FROM plain WHERE id = 1",
        "TRUNCATE plain",
        "COPY plain FROM PROGRAM 'echo 20,666' (FORMAT csv)",
        "MERGE INTO plain p USING (SELECT 1 AS id) s ON p.id = s.id WHEN MATCHED THEN UPDATE SET v = 666",
        "INSERT INTO plain VALUES (1, 666) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
        "WITH w AS (UPDATE plain SET v = 666 RETURNING id) SELECT count(*) FROM w",
        "UPDATE v SET v = 666 WHERE id = 1",
        "SELECT writes()",
        "DELETE FROM parent WHERE id = 1",
        "DECLARE c CURSOR FOR SELECT * FROM plain FOR UPDATE; FETCH c; UPDATE plain SET v = 666 WHERE CURRENT OF c",
        "PREPARE p AS UPDATE plain SET v = 666; EXECUTE p; DEALLOCATE p",
        "INSERT INTO queue VALUES (20)",
    ] {
        for stale in [true, false] {
            let t1 = a.acq("j", "A", "60 s").await.granted();
            writer.sql("BEGIN").await.unwrap();
            writer.fence("j", t1).await.unwrap();
            writer.sql(path).await.unwrap_or_else(|error| panic!("{error}: {path}"));
            if stale {
                assert_eq!(a.rel("j", t1).await, Ok(true));
                let t2 = b.acq("j", "B", "60 s").await.granted();
                writer.commit().await.refused(STALE);
                assert_eq!(b.rel("j", t2).await, Ok(true));
            } else {
                // The same path under a current token does write, or it would show nothing.
                let after: Option<String> = if path.contains("queue") {
                    None
                } else {
                    writer.one(rows, &[]).await.unwrap()
                };
                assert_ne!(after.as_ref(), Some(&before), "{path}");
                writer.sql("SET CONSTRAINTS ALL IMMEDIATE").await.unwrap();
                writer.rollback().await;
                assert_eq!(a.rel("j", t1).await, Ok(true));
            }
            let after: String = a.one(rows, &[]).await.unwrap();
            assert_eq!(after, before, "{path}");
        }
    }
}

/// A transaction may write under several leases; each of its tokens counts.
#[tokio::test]
async fn one_stale_token_among_several_refuses_the_commit() {
    let db = Db::fresh().await;
    let [a, writer] = db.sessions().await;
    for name in ["x", "y", "z"] {
        a.sql(&format!("CREATE TABLE t{name} (v int); SELECT fence_attach('t{name}', '{name}')"))
            .await
            .unwrap();
    }
    for stale in ["x", "y", "z"] {
        writer.sql("BEGIN").await.unwrap();
        let mut tokens = Vec::new();
        for name in ["x", "y", "z"] {
            let t = a.acq(name, "A", "60 s").await.granted();
            writer.fence(name, t).await.unwrap();
            writer.sql(&format!("INSERT INTO t{name} VALUES (1)")).await.unwrap();
            tokens.push((name, t));
        }
        assert_eq!(a.force(stale).await, Ok(true));
        let (_, t) = tokens.iter().find(|(name, _)| *name == stale).unwrap();
        writer.commit().await.refused(STALE).detail_names(&[&format!("\"{stale}\""), t]);
        for (name, t) in tokens {
            assert_eq!(a.rel(name, t).await, Ok(name != stale));
            assert_eq!(a.one::<i64>(&format!("SELECT count(*) FROM t{name}"), &[]).await, Ok(0));
        }
    }
}

#[tokio::test]
async fn a_write_in_a_released_savepoint_is_checked_at_commit() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, writer] = db.sessions().await;
    for way in Way::ALL {
        for (before, after) in [
            ("SAVEPOINT s", "RELEASE s"),
            ("SAVEPOINT s", "SELECT 1"),
            ("SAVEPOINT s; SAVEPOINT inner_s", "RELEASE inner_s; RELEASE s"),
            ("SAVEPOINT s", "SAVEPOINT inner_s; ROLLBACK TO inner_s; RELEASE s"),
        ] {
            let t = a.acq("j", "A", "60 s").await.granted();
            writer.sql(&format!("BEGIN; {before}")).await.unwrap();
            writer.fw_in_block(way, "j", t, 1, 666).await.unwrap();
            writer.sql(after).await.unwrap();
            assert_eq!(a.force("j").await, Ok(true));
            writer.commit().await.refused(STALE);
            assert_eq!(db.v(way.table(), 1).await, 0, "{way:?}: {before}, {after}");
        }
    }
}

#[tokio::test]
async fn a_write_in_a_rolled_back_savepoint_is_not_held_against_the_rest() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, writer] = db.sessions().await;
    a.sql("CREATE TABLE unfenced (way text)").await.unwrap();
    for way in Way::ALL {
        for (before, after) in [
            ("SAVEPOINT s", "ROLLBACK TO s"),
            ("SAVEPOINT s; SAVEPOINT inner_s", "RELEASE inner_s; ROLLBACK TO s"),
            ("SAVEPOINT s; SAVEPOINT inner_s", "ROLLBACK TO inner_s; RELEASE s"),
        ] {
            let t = a.acq("j", "A", "60 s").await.granted();
            writer.sql("BEGIN").await.unwrap();
            writer.exec("INSERT INTO unfenced VALUES ($1)", &[&format!("{way:?}")]).await.unwrap();
            writer.sql(before).await.unwrap();
            writer.fw_in_block(way, "j", t, 1, 666).await.unwrap();
            writer.sql(after).await.unwrap();
            assert_eq!(a.force("j").await, Ok(true));
            writer.commit().await.expect("nothing was written under the token");
            assert_eq!(db.v(way.table(), 1).await, 0, "{way:?}: {before}, {after}");
        }
    }
    assert_eq!(a.one::<i64>("SELECT count(*) FROM unfenced", &[]).await, Ok(15));
}

#[tokio::test]
async fn a_failed_plpgsql_block_leaves_no_fence() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, writer] = db.sessions().await;
    let t = a.acq("j", "A", "60 s").await.granted();
    writer
        .sql(&format!(
            "BEGIN;
             DO $$ BEGIN
                 PERFORM lease_fence('j', {t});
                 UPDATE plain SET v = 666;
                 RAISE EXCEPTION 'no';
             EXCEPTION WHEN raise_exception THEN NULL;
             END $$;
             SAVEPOINT s"
        ))
        .await
        .unwrap();
    writer.sql("UPDATE plain SET v = 666").await.refused(NO_TOKEN);
    writer.sql("ROLLBACK TO s").await.unwrap();
    a.force("j").await.unwrap();
    writer.commit().await.expect("nothing was written under the token");
}

/// A caller that swallows the early refusal has still written nothing.
#[tokio::test]
async fn a_swallowed_refusal_writes_nothing() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let a = db.session().await;
    let t = a.acq("j", "A", "60 s").await.granted();
    a.force("j").await.unwrap();
    a.sql(&format!(
        "DO $$ BEGIN
             BEGIN UPDATE stamped SET v = 666, token = {t}; EXCEPTION WHEN SQLSTATE '{STALE}' THEN NULL; END;
             BEGIN PERFORM lease_fence('j', {t}); EXCEPTION WHEN SQLSTATE '{STALE}' THEN NULL; END;
             BEGIN UPDATE plain SET v = 666; EXCEPTION WHEN SQLSTATE '{NO_TOKEN}' THEN NULL; END;
         END $$"
    ))
    .await
    .expect("the codes can be caught by name");
    assert_eq!([db.v("plain", 1).await, db.v("stamped", 1).await], [0, 0]);
}

#[tokio::test]
async fn a_prepared_transaction_keeps_the_fence() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, writer, b] = db.sessions().await;
    let gid = db.name();
    for way in Way::ALL {
        for (end, v) in [("COMMIT", 5), ("ROLLBACK", 0)] {
            db.reset().await;
            let t1 = a.acq("j", "A", "60 s").await.granted();
            writer.sql("BEGIN").await.unwrap();
            writer.fw_in_block(way, "j", t1, 1, 5).await.unwrap();
            writer.sql(&format!("PREPARE TRANSACTION '{gid}'")).await.unwrap();
            // The prepared transaction belongs to nobody, and the heartbeat does not mind it.
            a.sql("SET statement_timeout = '20s'").await.unwrap();
            a.ext("j", t1, "60 s").await.extended();
            End::Expired.comes(&db, &a, "j", t1).await;
            b.acq("j", "B", "60 s").await.busy();
            assert_eq!(db.v(way.table(), 1).await, 0);
            a.sql(&format!("{end} PREPARED '{gid}'")).await.unwrap();
            assert_eq!(db.v(way.table(), 1).await, v, "{way:?}, {end}");
            let t2 = b.acq("j", "B", "60 s").await.granted();
            a.fw(way, "j", t1, 1, 666).await.refused(STALE);
            assert_eq!(b.rel("j", t2).await, Ok(true));
        }
    }
}

#[tokio::test]
async fn a_stale_transaction_cannot_be_prepared() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, writer, b] = db.sessions().await;
    for way in Way::ALL {
        let t1 = a.acq("j", "A", "60 s").await.granted();
        writer.sql("BEGIN").await.unwrap();
        writer.fw_in_block(way, "j", t1, 1, 666).await.unwrap();
        a.rel("j", t1).await.unwrap();
        let t2 = b.acq("j", "B", "60 s").await.granted();
        writer.sql(&format!("PREPARE TRANSACTION '{}'", db.name())).await.refused(STALE);
        writer.rollback().await;
        assert_eq!(
            a.one::<i64>("SELECT count(*) FROM pg_prepared_xacts WHERE gid = $1", &[&db.name()])
                .await,
            Ok(0)
        );
        assert_eq!(b.rel("j", t2).await, Ok(true));
    }
}

/// Pending effects are settled when the transaction is prepared, and are there after COMMIT PREPARED.
#[tokio::test]
async fn a_prepared_grant_or_release_takes_hold_with_commit_prepared() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let gid = db.name();
    a.sql("BEGIN").await.unwrap();
    let t1 = a.acq("j", "A", "60 s").await.granted();
    a.sql(&format!("PREPARE TRANSACTION '{gid}'")).await.unwrap();
    b.acq("j", "B", "60 s").await.busy();
    b.sql(&format!("COMMIT PREPARED '{gid}'")).await.unwrap();
    assert_eq!(b.is_current("j", t1).await, Ok(true));

    a.sql("BEGIN").await.unwrap();
    assert_eq!(a.rel("j", t1).await, Ok(true));
    a.sql(&format!("PREPARE TRANSACTION '{gid}'")).await.unwrap();
    b.acq("j", "B", "60 s").await.busy();
    b.sql(&format!("COMMIT PREPARED '{gid}'")).await.unwrap();
    assert_eq!(b.is_current("j", t1).await, Ok(false));
    let t2 = b.acq("j", "B", "60 s").await.granted();
    assert!(t2 > t1);
}

/// A commit that has been checked and is not visible yet: the grant has to come after it. The commits are held
/// there by a synchronous standby that does not exist.
#[tokio::test]
async fn a_grant_waits_for_a_commit_in_flight() {
    let db = Db::alone().await;
    let [heart, b] = db.sessions().await;
    heart.sql("SET statement_timeout = '20s'").await.unwrap();
    // A lease and two tables for each case, so that all of them commit at the same time.
    let mut cases = Vec::new();
    for (number, (level, way)) in
        (0..).zip(LEVELS.into_iter().flat_map(|level| Way::ALL.map(|way| (level, way))))
    {
        let lease = format!("lease {number}");
        let path = format!("SET search_path = case_{number}, public");
        db.watch.sql(&format!("CREATE SCHEMA case_{number}; {path}")).await.unwrap();
        db.fence(&lease).await;
        let writer = db.session().await;
        writer.sql(&path).await.unwrap();
        let t1 = heart.acq(&lease, "A", "60 s").await.granted();
        writer.begin(level).await;
        writer.fw_in_block(way, &lease, t1, 1, 5).await.unwrap();
        writer.sql("SET LOCAL synchronous_commit = on").await.unwrap();
        cases.push((lease, t1, path, way, level, writer));
    }

    let held = db.hold_commits().await;
    let mut commits = Vec::new();
    for (.., writer) in &cases {
        commits.push(writer.beside(|writer| async move { writer.commit().await }));
        db.until(
            "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $1",
            &[&writer.pid()],
        )
        .await;
    }
    for (lease, t1, path, way, level, _) in &cases {
        heart.ext(lease, *t1, "60 s").await.extended();
        End::Expired.comes(&db, &heart, lease, *t1).await;
        db.watch.sql(path).await.unwrap();
        assert_eq!(db.v(way.table(), 1).await, 0, "not visible yet");
        b.sql("SET statement_timeout = '200ms'").await.unwrap();
        // It may wait for the commit or say no, but not grant.
        match b.acq(lease, "B", "60 s").await {
            Ok(None) => {}
            Err(error) if error.code == "57014" => {}
            other => {
                panic!("{other:?} while a commit under token {t1} is in flight ({way:?}, {level})")
            }
        }
    }
    drop(held);

    b.sql("RESET statement_timeout").await.unwrap();
    for ((lease, t1, path, way, level, _), commit) in cases.iter().zip(commits) {
        commit.await.unwrap().expect("its token was current when it was checked");
        assert!(b.acq(lease, "B", "60 s").await.granted() > *t1);
        b.sql(path).await.unwrap();
        let v = b.one::<i32>(&format!("SELECT v FROM {} WHERE id = 1", way.table()), &[]).await;
        assert_eq!(v, Ok(5), "{way:?}, {level}");
    }
}

/// Each has written under a lease that the other is taking over in a transaction that is open as well. Neither
/// waits for the other to make up its mind.
#[tokio::test]
async fn commits_of_crossed_take_overs_do_not_deadlock() {
    let db = Db::fresh().await;
    let [admin, a, b] = db.sessions().await;
    admin
        .sql(
            "CREATE TABLE tl (v int); SELECT fence_attach('tl', 'l');
             CREATE TABLE tm (v int); SELECT fence_attach('tm', 'm')",
        )
        .await
        .unwrap();
    for round in 0..30 {
        let [l, m] = [
            admin.acq("l", "A", "1 ms").await.granted(),
            admin.acq("m", "B", "1 ms").await.granted(),
        ];
        for (lease, session, table, token) in [("l", &a, "tl", l), ("m", &b, "tm", m)] {
            db.expired(lease).await;
            session.sql("BEGIN").await.unwrap();
            session.fence(lease, token).await.unwrap();
            session.sql(&format!("INSERT INTO {table} VALUES ({round})")).await.unwrap();
        }
        a.acq("m", "A", "60 s").await.granted();
        b.acq("l", "B", "60 s").await.granted();
        let (one, two) = (
            a.beside(|a| async move { a.commit().await }),
            b.beside(|b| async move { b.commit().await }),
        );
        let ends = [one.await.unwrap(), two.await.unwrap()];
        for end in &ends {
            assert!(end.as_ref().err().is_none_or(|error| error.code == STALE), "{ends:?}");
        }
        assert!(
            ends.iter().any(Result::is_err),
            "both wrote under a token that was taken over: {ends:?}"
        );
        for lease in ["l", "m"] {
            admin.force(lease).await.unwrap();
        }
    }
}

/// A take-over in an open transaction may come to nothing, but the writer does not wait to find out.
#[tokio::test]
async fn nobody_waits_for_an_undecided_take_over() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [admin, b] = db.sessions().await;
    for level in LEVELS {
        for way in Way::ALL {
            let writer = db.session().await;
            writer.sql("SET statement_timeout = '10s'").await.unwrap();
            let t1 = admin.acq("j", "A", "60 s").await.granted();
            writer.begin(level).await;
            writer.fw_in_block(way, "j", t1, 1, 666).await.unwrap();
            End::Expired.comes(&db, &admin, "j", t1).await;
            b.sql("BEGIN").await.unwrap();
            b.acq("j", "B", "60 s").await.granted();

            writer.commit().await.refused(STALE).detail_names(&[&"\"j\"", &t1]).has_hint();
            writer.ext("j", t1, "60 s").await.lost();
            assert_eq!(writer.rel("j", t1).await, Ok(false));
            assert_eq!(writer.complete("j", t1).await, Ok(false));
            writer.fw(way, "j", t1, 1, 666).await.refused(STALE);
            writer.cp("j", t1, "666").await.refused(STALE);
            b.rollback().await;
            // It came to nothing, so the old token is the last one still.
            writer.fw(way, "j", t1, 1, 0).await.unwrap();
            assert_eq!(admin.rel("j", t1).await, Ok(true));
        }
    }
}

/// What an extension says ends with the session; a prepared transaction lives on without one.
#[tokio::test]
async fn a_pending_extension_cannot_be_prepared() {
    let db = Db::fresh().await;
    let a = db.session().await;
    let t = a.acq("j", "A", "60 s").await.granted();
    a.sql("BEGIN").await.unwrap();
    a.ext("j", t, "60 s").await.extended();
    a.sql(&format!("PREPARE TRANSACTION '{}'", db.name())).await.refused("0A000");
    a.rollback().await;
    assert_eq!(a.is_current("j", t).await, Ok(true));
}

/// Many writers and take-overs at full speed. Each holder counts what its predecessors have written, right
/// after its grant: nothing may be added to that later.
#[tokio::test]
async fn a_new_holder_sees_all_that_its_predecessors_ever_commit() {
    let db = Db::fresh().await;
    db.watch.sql("CREATE TABLE log (token bigint); SELECT fence_attach('log', 'j')").await.unwrap();
    let end = Instant::now() + Duration::from_secs(4);
    let mut racers = Vec::new();
    for (number, level) in LEVELS.into_iter().cycle().take(6).enumerate() {
        let session = db.session().await;
        racers.push(session.beside(move |me| async move {
            let (mut counts, mut written, mut refused) = (Vec::new(), 0, 0);
            for round in 0.. {
                if Instant::now() > end {
                    break;
                }
                // Some take over by force now and then; all of them go on with what they believe in.
                if number < 3 && round % 8 == 0 {
                    me.force("j").await.unwrap();
                }
                let Some(token) = me.acq("j", "racer", "60 s").await.unwrap() else {
                    continue;
                };
                let before = "SELECT count(*) FROM log WHERE token < $1";
                counts.push((token, me.one::<i64>(before, &[&token]).await.unwrap()));
                for _ in 0..3 {
                    me.begin(level).await;
                    let write = async {
                        me.fence("j", token).await?;
                        me.exec("INSERT INTO log VALUES ($1)", &[&token]).await?;
                        me.commit().await
                    };
                    match write.await {
                        Ok(()) => written += 1,
                        Err(error) if error.code == STALE => refused += 1,
                        Err(error) => panic!("{error:?}"),
                    }
                    me.rollback().await;
                }
            }
            (counts, written, refused)
        }));
    }
    let (mut counts, mut written, mut refused) = (Vec::new(), 0, 0);
    for racer in racers {
        let one = racer.await.unwrap();
        counts.extend(one.0);
        written += one.1;
        refused += one.2;
    }
    assert!(written > 50 && refused > 50, "no race: {written} written, {refused} refused");
    for (token, count) in counts {
        let now: i64 =
            db.watch.one("SELECT count(*) FROM log WHERE token < $1", &[&token]).await.unwrap();
        assert_eq!(
            now, count,
            "a write under an older token became visible after the grant of {token}"
        );
    }
}
