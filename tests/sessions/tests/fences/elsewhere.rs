//! What is written under a token to tables without a fence: the commit asks all the same.

use lock_ext_sessions::{Asked, Db, LEVELS, PgError, Refused, STALE, Session};

/// A transaction that does `work` under the token of a lease that is then somebody else's, and its COMMIT.
async fn commit_after_a_take_over(db: &Db, level: &str, work: &[&str]) -> Result<(), PgError> {
    let [a, b] = db.sessions().await;
    let token = a.acq("j", "A", "60 s").await.granted();
    a.begin(level).await;
    a.fence("j", token).await.unwrap();
    for sql in work {
        a.sql(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    take_over(&b).await;
    let commit = a.commit().await;
    b.force("j").await.unwrap();
    commit
}

async fn take_over(b: &Session) {
    b.force("j").await.unwrap();
    b.acq("j", "B", "60 s").await.granted();
}

#[tokio::test]
async fn a_write_to_a_table_without_a_fence_is_not_committed_after_a_take_over() {
    let db = Db::fresh().await;
    db.watch
        .sql(
            "CREATE TABLE plain (v int); CREATE UNLOGGED TABLE u (v int); INSERT INTO u VALUES (1);
             CREATE FUNCTION undoes() RETURNS int LANGUAGE plpgsql AS
                 $$ BEGIN INSERT INTO plain VALUES (1); RETURN 1/0; EXCEPTION WHEN OTHERS THEN RETURN 1; END $$;
             CREATE FUNCTION adds(int) RETURNS int LANGUAGE sql AS 'INSERT INTO u VALUES ($1) RETURNING v';
             SELECT lease_acquire('other', 'A', '1 h')",
        )
        .await
        .unwrap();
    let count = "SELECT count(*) FROM plain";
    for level in LEVELS {
        for work in [
            &["INSERT INTO plain VALUES (1)"][..],
            &["COPY plain FROM PROGRAM 'echo 1'"],
            &["DO $$ BEGIN INSERT INTO plain VALUES (1); END $$"],
            &["UPDATE u SET v = v + 1"],
            &["CREATE TABLE made (v int)"],
            &["SELECT once('key')"],
            &["SELECT lo_create(0)"],
            &["SAVEPOINT s", "INSERT INTO plain VALUES (1)", "RELEASE s"],
            &[
                "INSERT INTO plain VALUES (1)",
                "SAVEPOINT s",
                "INSERT INTO plain VALUES (2)",
                "ROLLBACK TO s",
            ],
            &[
                "SAVEPOINT s",
                "INSERT INTO plain VALUES (1)",
                "ROLLBACK TO s",
                "INSERT INTO plain VALUES (2)",
            ],
            &[
                "SAVEPOINT s",
                "SAVEPOINT t",
                "INSERT INTO plain VALUES (1)",
                "ROLLBACK TO t",
                "INSERT INTO plain VALUES (1)",
                "RELEASE s",
            ],
            // An unlogged table logs nothing.
            &["SAVEPOINT s", "INSERT INTO plain VALUES (1)", "ROLLBACK TO s", "UPDATE u SET v = 2"],
            &["SAVEPOINT s", "UPDATE u SET v = 3", "ROLLBACK TO s", "DELETE FROM u"],
            &[
                "SAVEPOINT s",
                "CREATE TEMP TABLE t (v int)",
                "ROLLBACK TO s",
                "RELEASE s",
                "INSERT INTO u VALUES (2)",
            ],
            // Whose rows are locked may wait for it.
            &["SELECT * FROM u FOR UPDATE"],
            &["LOCK TABLE u"],
            &["INSERT INTO u SELECT undoes()"],
            &["UPDATE u SET v = undoes()"],
            // A cursor that is read by the COMMIT itself.
            &["SAVEPOINT s", "ROLLBACK TO s", "DECLARE c CURSOR WITH HOLD FOR SELECT adds(42)"],
            // What was put off to the commit.
            &["SELECT lease_complete('other', token) FROM lease_status WHERE name = 'other'"],
            &["SELECT lease_extend('other', token) FROM lease_status WHERE name = 'other'"],
            // A savepoint of a function may be in the middle of a write. In doubt it is one.
            &["SELECT undoes()"],
            &[
                "DO $$ BEGIN BEGIN INSERT INTO plain VALUES (1/0); EXCEPTION WHEN OTHERS THEN NULL; END; INSERT INTO plain VALUES (1); END $$",
            ],
        ] {
            commit_after_a_take_over(&db, level, work).await.refused(STALE);
            assert_eq!(db.watch.one::<i64>(count, &[]).await, Ok(0), "{level}: {work:?}");
        }
    }
}

/// What was undone is not written, and reading under a token needs no check.
#[tokio::test]
async fn nothing_written_is_nothing_to_refuse() {
    let db = Db::fresh().await;
    db.watch.sql("CREATE TABLE plain (v int); CREATE TABLE fenced (v int); SELECT fence_attach('fenced', 'j')").await.unwrap();
    for level in LEVELS {
        for work in [
            &[][..],
            &["SELECT count(*) FROM plain"],
            &["NOTIFY heard"],
            &["SAVEPOINT s", "INSERT INTO plain VALUES (1)", "ROLLBACK TO s"],
            &[
                "SAVEPOINT s",
                "INSERT INTO plain VALUES (1)",
                "SAVEPOINT t",
                "INSERT INTO fenced VALUES (1)",
                "RELEASE t",
                "ROLLBACK TO s",
            ],
            &[
                "SAVEPOINT s",
                "INSERT INTO plain VALUES (1)",
                "ROLLBACK TO s",
                "INSERT INTO plain VALUES (1)",
                "ROLLBACK TO s",
            ],
        ] {
            let commit = commit_after_a_take_over(&db, level, work).await;
            assert_eq!(commit, Ok(()), "{level}: {work:?}");
        }
    }
}

/// A prepared transaction keeps the lease from others, whatever it has written.
#[tokio::test]
async fn a_prepared_write_elsewhere_keeps_the_lease() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    db.watch.sql("CREATE TABLE plain (v int)").await.unwrap();
    let token = a.acq("j", "A", "100 ms").await.granted();
    a.begin("READ COMMITTED").await;
    a.fence("j", token).await.unwrap();
    a.sql("INSERT INTO plain VALUES (1); PREPARE TRANSACTION 'p'").await.unwrap();
    db.watch.sql("SELECT pg_sleep(0.2)").await.unwrap();
    b.acq("j", "B", "60 s").await.busy();
    a.sql("COMMIT PREPARED 'p'").await.unwrap();
    b.acq("j", "B", "60 s").await.granted();
    assert_eq!(db.watch.one::<i64>("SELECT count(*) FROM plain", &[]).await, Ok(1));
}

/// Also one to an unlogged table, after a savepoint that was rolled back.
#[tokio::test]
async fn a_prepared_write_that_logs_nothing_keeps_the_lease() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    db.watch.sql("CREATE TABLE plain (v int); CREATE UNLOGGED TABLE u (v int)").await.unwrap();
    let token = a.acq("j", "A", "100 ms").await.granted();
    a.begin("READ COMMITTED").await;
    a.fence("j", token).await.unwrap();
    a.sql("SAVEPOINT s; INSERT INTO plain VALUES (1); ROLLBACK TO s").await.unwrap();
    a.sql("INSERT INTO u VALUES (1)").await.unwrap();
    a.sql("PREPARE TRANSACTION 'u'").await.unwrap();
    db.expired("j").await;
    b.acq("j", "B", "60 s").await.busy();
    a.sql("COMMIT PREPARED 'u'").await.unwrap();
    b.acq("j", "B", "60 s").await.granted();
    assert_eq!(db.watch.one::<i64>("SELECT count(*) FROM u", &[]).await, Ok(1));
}

/// A write under the token of another lease, which it still holds, is no excuse: what it declared it declared for all that it writes.
#[tokio::test]
async fn a_write_under_another_lease_is_no_excuse() {
    let db = Db::fresh().await;
    db.watch
        .sql("CREATE TABLE plain (v int); CREATE TABLE f (id int, v int); INSERT INTO f VALUES (1, 0); SELECT fence_attach('f', 'k')")
        .await
        .unwrap();
    for level in LEVELS {
        for (writes_elsewhere, work) in [
            (true, "SELECT lease_checkpoint('k', $1, '1')"),
            (true, "UPDATE f SET v = 1 WHERE $1::bigint > 0"),
            (true, "UPDATE f SET v = 1 WHERE $1::bigint < 0"),
            (true, "SELECT fenced_update('f', $1, '{\"id\": 1}', '{\"v\": 1}')"),
            (true, "SELECT fenced_update('f', $1, '{\"id\": 2}', '{\"v\": 1}')"),
            (false, "UPDATE f SET v = 1 WHERE $1::bigint > 0"),
            (false, "UPDATE f SET v = 1 WHERE $1::bigint < 0"),
        ] {
            let [a, b] = db.sessions().await;
            let j = a.acq("j", "A", "60 s").await.granted();
            let k = a.acq("k", "A", "60 s").await.granted();
            a.begin(level).await;
            a.fence("j", j).await.unwrap();
            a.fence("k", k).await.unwrap();
            if writes_elsewhere {
                a.sql("INSERT INTO plain VALUES (1)").await.unwrap();
            }
            a.exec(work, &[&k]).await.unwrap_or_else(|error| panic!("{work}: {error}"));
            take_over(&b).await;
            let commit = a.commit().await;
            if writes_elsewhere || work.contains("> 0") {
                commit.refused(STALE);
            } else {
                commit.unwrap_or_else(|error| panic!("nothing was written: {work}: {error}"));
            }
            db.watch.force("j").await.unwrap();
            db.watch.force("k").await.unwrap();
        }
    }
}

/// What was written under a token stays written under it when the transaction goes on under a later one of the same lease.
#[tokio::test]
async fn a_later_token_does_not_excuse_the_earlier_one() {
    let db = Db::fresh().await;
    db.watch
        .sql(
            "CREATE TABLE plain (v int); CREATE UNLOGGED TABLE u (v int);
             CREATE TABLE f (id int, v int); INSERT INTO f VALUES (1, 0); SELECT fence_attach('f', 'j');
             SELECT fence_observe('there', 1)",
        )
        .await
        .unwrap();
    let insert = &["INSERT INTO plain VALUES (1)"][..];
    for level in LEVELS {
        for (before, after, is_fine) in [
            (insert, &["SELECT lease_fence('j', $1)", "UPDATE f SET v = 1"][..], false),
            (insert, &["SELECT lease_fence('j', $1)", "DELETE FROM f WHERE id < 0"], false),
            (insert, &["SELECT lease_fence('j', $1)"], false),
            (insert, &["SELECT fenced_update('f', $1, '{\"id\": 1}', '{\"v\": 2}')"], false),
            (insert, &["SELECT fenced_update('f', $1, '{\"id\": 7}', '{\"v\": 2}')"], false),
            (
                insert,
                &["SAVEPOINT s", "SELECT lease_fence('j', $1)", "UPDATE f SET v = 1", "RELEASE s"],
                false,
            ),
            (insert, &["SAVEPOINT s", "SELECT lease_fence('j', $1)", "ROLLBACK TO s"], false),
            (
                &[
                    "SAVEPOINT s",
                    "INSERT INTO plain VALUES (1)",
                    "ROLLBACK TO s",
                    "INSERT INTO u VALUES (1)",
                ],
                &["SELECT lease_fence('j', $1)", "UPDATE f SET v = 1"],
                false,
            ),
            (
                &[],
                &[
                    "SELECT fenced_update('f', $1, '{\"id\": 1}', '{\"v\": 2}')",
                    "INSERT INTO plain VALUES (1)",
                ],
                false,
            ),
            // What is put off to the commit.
            (&["SELECT fence_observe('r', 9)"], &["SELECT lease_fence('j', $1)"], false),
            (&["SELECT fence_forget('there')"], &["SELECT lease_fence('j', $1)"], false),
            // Under the earlier one nothing was written.
            (&[], &["SELECT lease_fence('j', $1)", "INSERT INTO plain VALUES (1)"], true),
            (&["SELECT 1"], &["SELECT lease_fence('j', $1)", "UPDATE f SET v = 1"], true),
        ] {
            let [a, b] = db.sessions().await;
            let count = "SELECT count(*) FROM plain";
            let were: i64 = db.watch.one(count, &[]).await.unwrap();
            let first = a.acq("j", "A", "60 s").await.granted();
            a.begin(level).await;
            a.fence("j", first).await.unwrap();
            for sql in before {
                a.sql(sql).await.unwrap();
            }
            take_over(&b).await;
            b.force("j").await.unwrap();
            let third = b.acq("j", "A", "60 s").await.granted();
            for sql in after {
                let answer = if sql.contains("$1") {
                    a.exec(sql, &[&third]).await.map(drop)
                } else {
                    a.sql(sql).await
                };
                answer.unwrap_or_else(|error| panic!("{sql}: {error}"));
            }
            let commit = a.commit().await;
            if is_fine {
                commit.unwrap_or_else(|error| panic!("{before:?} {after:?}: {error}"));
            } else {
                commit.refused(STALE);
                let are = db.watch.one::<i64>(count, &[]).await;
                assert_eq!(are, Ok(were), "{level}: {before:?} {after:?}");
            }
            db.watch.force("j").await.unwrap();
        }
    }
}

/// The same for a transaction that is prepared.
#[tokio::test]
async fn a_later_token_does_not_let_the_earlier_one_be_prepared() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    db.watch
        .sql("CREATE TABLE plain (v int); CREATE TABLE f (v int); SELECT fence_attach('f', 'j')")
        .await
        .unwrap();
    let first = a.acq("j", "A", "60 s").await.granted();
    a.begin("READ COMMITTED").await;
    a.fence("j", first).await.unwrap();
    a.sql("INSERT INTO plain VALUES (1)").await.unwrap();
    take_over(&b).await;
    b.force("j").await.unwrap();
    let third = b.acq("j", "A", "60 s").await.granted();
    a.fence("j", third).await.unwrap();
    a.sql("INSERT INTO f VALUES (1)").await.unwrap();
    a.sql("PREPARE TRANSACTION 'p'").await.refused(STALE);
}

/// Who takes its own lease anew has been superseded by nobody.
#[tokio::test]
async fn a_grant_of_ones_own_does_not_refuse_what_was_written_before() {
    let db = Db::fresh().await;
    db.watch
        .sql("CREATE TABLE plain (v int); CREATE TABLE f (v int); SELECT fence_attach('f', 'j')")
        .await
        .unwrap();
    for level in LEVELS {
        let a = db.session().await;
        let first = a.acq("j", "A", "60 s").await.granted();
        a.begin(level).await;
        a.fence("j", first).await.unwrap();
        a.sql("INSERT INTO plain VALUES (1)").await.unwrap();
        assert_eq!(a.rel("j", first).await, Ok(true));
        let second = a.acq("j", "A", "60 s").await.granted();
        a.fence("j", second).await.unwrap();
        a.sql("INSERT INTO f VALUES (1)").await.unwrap();
        a.commit().await.unwrap_or_else(|error| panic!("{level}: {error}"));
        assert_eq!(a.rel("j", second).await, Ok(true));
    }
}

/// A checkpoint is a write: from it on the lease is held.
#[tokio::test]
async fn a_checkpoint_begins_the_hold() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    for (hold, expected) in [(true, Ok(())), (false, Err(STALE))] {
        let token = a.acq("j", "A", "300 ms").await.granted();
        a.begin("READ COMMITTED").await;
        if hold {
            a.fence_and_hold("j", token).await.unwrap();
        } else {
            a.fence("j", token).await.unwrap();
        }
        a.cp("j", token, "1").await.unwrap();
        db.expired("j").await;
        let granted = b.acq("j", "B", "60 s").await.unwrap();
        assert_eq!(granted.is_none(), hold);
        let commit = a.commit().await;
        assert_eq!(commit.as_ref().map(|_| ()).map_err(|e| e.code.as_str()), expected);
    }
}

/// Removing the name is no way around the check of a token that was taken away.
#[tokio::test]
async fn a_prune_in_between_settles_nothing() {
    let db = Db::fresh().await;
    db.watch.sql("CREATE TABLE f (v int); SELECT fence_attach('f', 'j')").await.unwrap();
    let a = db.session().await;
    let token = a.acq("j", "A", "60 s").await.granted();
    a.begin("READ COMMITTED").await;
    a.fence("j", token).await.unwrap();
    a.sql("INSERT INTO f VALUES (1)").await.unwrap();
    db.watch.force("j").await.unwrap();
    assert_eq!(a.one::<i64>("SELECT lease_prune('0')", &[]).await, Ok(1));
    a.commit().await.refused(STALE);
}

/// A token that has expired may still write, also while a prune is undecided that may roll back.
#[tokio::test]
async fn a_prune_leaves_the_names_that_somebody_acts_under() {
    let db = Db::fresh().await;
    let [a, admin] = db.sessions().await;
    db.watch.sql("CREATE TABLE f (v int); SELECT fence_attach('f', 'j')").await.unwrap();
    let token = a.acq("j", "A", "100 ms").await.granted();
    a.begin("READ COMMITTED").await;
    a.fence("j", token).await.unwrap();
    a.sql("INSERT INTO f VALUES (1)").await.unwrap();
    db.expired("j").await;
    admin.begin("READ COMMITTED").await;
    assert_eq!(admin.one::<i64>("SELECT lease_prune('0')", &[]).await, Ok(0));
    a.commit().await.unwrap();
    assert_eq!(admin.one::<i64>("SELECT lease_prune('0')", &[]).await, Ok(1));
    // From then on it is refused, as by a take-over, until that is rolled back.
    let insert = "INSERT INTO f VALUES (2)";
    a.begin("READ COMMITTED").await;
    a.fence("j", token).await.unwrap();
    a.sql(insert).await.unwrap();
    a.commit().await.refused(STALE);
    admin.rollback().await;
    a.begin("READ COMMITTED").await;
    a.fence("j", token).await.unwrap();
    a.sql(insert).await.unwrap();
    a.commit().await.unwrap();
}

/// It cannot end what is not committed, and `lease_evict` ends who keeps it waiting.
#[tokio::test]
async fn an_end_by_force_waits_for_a_grant_that_is_not_committed() {
    let db = Db::fresh().await;
    let [a, admin] = db.sessions().await;
    a.begin("READ COMMITTED").await;
    a.acq("j", "A", "60 s").await.granted();
    let end = admin.beside(|admin| async move { admin.force("j").await });
    db.blocked(&admin).await;
    let evicted: Vec<i32> = db.watch.list("SELECT lease_evict('j')", &[]).await.unwrap();
    assert_eq!(evicted, [a.pid()]);
    assert_eq!(end.await.unwrap(), Ok(false), "its grant was never committed");
}
