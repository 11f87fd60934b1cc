//! Every error by what a driver sees of it: its code, and the fields that say what happened and what to do. The message's
//! wording is for people and is not looked at.

use lock_ext_sessions::{Asked, Db, EXPIRED, NO_TOKEN, PgError, Refused, STALE, Session, Way};

/// A name that has to be found in the detail as it is.
const LEASE: &str = "daily \"reward\"";

struct Scene {
    db: Db,
    a: Session,
    b: Session,
    /// Superseded.
    old: i64,
    /// B's.
    current: i64,
}

impl Scene {
    async fn set() -> Self {
        let db = Db::fresh().await;
        db.fence(LEASE).await;
        let [a, b] = db.sessions().await;
        let old = a.acq(LEASE, "A", "60 s").await.granted();
        assert_eq!(a.rel(LEASE, old).await, Ok(true));
        let current = b.acq(LEASE, "B", "60 s").await.granted();
        Self { db, a, b, old, current }
    }

    #[track_caller]
    fn names_the_facts(&self, error: &PgError) {
        error.detail_names(&[&LEASE, &self.old, &self.current]).has_hint();
        assert!(!error.message.is_empty() && !error.message.ends_with('.'), "{error:?}");
    }
}

#[tokio::test]
async fn lx001_at_the_write() {
    let scene = Scene::set().await;
    for way in Way::ALL {
        let error = scene.a.fw(way, LEASE, scene.old, 1, 9).await.refused(STALE);
        scene.names_the_facts(&error);
    }
    // By a fence that was in order when it was declared, so that the statement on the table is what is refused.
    let writer = scene.db.session().await;
    writer.sql("BEGIN").await.unwrap();
    writer.fence(LEASE, scene.current).await.unwrap();
    assert_eq!(scene.b.rel(LEASE, scene.current).await, Ok(true));
    let newest = scene.b.acq(LEASE, "B", "60 s").await.granted();
    for table in ["plain", "stamped"] {
        for sql in [
            format!("UPDATE {table} SET v = 9 WHERE id = 1"),
            format!("INSERT INTO {table} (id) VALUES (100)"),
            format!("DELETE FROM {table} WHERE id = 1"),
            format!("TRUNCATE {table}"),
            format!("COPY {table} (id) FROM PROGRAM 'echo 100'"),
        ] {
            writer.sql("SAVEPOINT s").await.unwrap();
            let error = writer.sql(&sql).await.refused(STALE);
            error
                .detail_names(&[&LEASE, &scene.current, &newest])
                .has_hint()
                .at_table("public", table);
            writer.sql("ROLLBACK TO s").await.unwrap();
        }
    }
}

#[tokio::test]
async fn lx001_names_the_table_as_it_is() {
    let scene = Scene::set().await;
    scene
        .a
        .sql("CREATE SCHEMA \"My Schema\"; CREATE TABLE \"My Schema\".\"Ledger é\" (v int, token bigint)")
        .await
        .unwrap();
    scene
        .a
        .exec("SELECT fence_attach('\"My Schema\".\"Ledger é\"', $1::text, 'token')", &[&LEASE])
        .await
        .unwrap();
    let insert = format!("INSERT INTO \"My Schema\".\"Ledger é\" VALUES (1, {})", scene.old);
    let error = scene.a.sql(&insert).await.refused(STALE);
    error.at_table("My Schema", "Ledger é");
    scene.names_the_facts(&error);
    let error =
        scene.a.sql("INSERT INTO \"My Schema\".\"Ledger é\" VALUES (1)").await.refused(NO_TOKEN);
    error.at_table("My Schema", "Ledger é");
}

#[tokio::test]
async fn lx001_from_the_functions() {
    let scene = Scene::set().await;
    let error = scene.a.fence(LEASE, scene.old).await.refused(STALE);
    scene.names_the_facts(&error);
    let error = scene.a.cp(LEASE, scene.old, "{}").await.refused(STALE);
    scene.names_the_facts(&error);
    for table in ["plain", "stamped"] {
        let sql = format!("SELECT fenced_update('{table}', $1, '{{\"id\": 1}}', '{{\"v\": 9}}')");
        let error = scene.a.exec(&sql, &[&scene.old]).await.refused(STALE);
        scene.names_the_facts(&error);
    }
    // Never granted: also these name what was given and what is current.
    for token in [scene.current + 1, 0, -1, i64::MIN, i64::MAX] {
        for error in [
            scene.a.fence(LEASE, token).await.refused(STALE),
            scene.a.cp(LEASE, token, "{}").await.refused(STALE),
            scene.a.fw(Way::Column, LEASE, token, 1, 9).await.refused(STALE),
            scene.a.fw(Way::FencedUpdate, LEASE, token, 1, 9).await.refused(STALE),
        ] {
            error.detail_names(&[&LEASE, &token, &scene.current]).has_hint();
        }
    }
    scene
        .a
        .fence("nobody ever held this", 1)
        .await
        .refused(STALE)
        .detail_names(&[&"nobody ever held this", &1])
        .has_hint();
    // Released, and nobody else's yet.
    assert_eq!(scene.b.rel(LEASE, scene.current).await, Ok(true));
    scene
        .b
        .fence(LEASE, scene.current)
        .await
        .refused(STALE)
        .detail_names(&[&LEASE, &scene.current])
        .has_hint();
}

#[tokio::test]
async fn lx001_at_commit() {
    let scene = Scene::set().await;
    let mut stale = scene.current;
    for way in Way::ALL {
        scene.b.sql("BEGIN").await.unwrap();
        scene.b.fw_in_block(way, LEASE, stale, 1, 9).await.unwrap();
        assert_eq!(scene.a.rel(LEASE, stale).await, Ok(true));
        let next = scene.a.acq(LEASE, "A", "60 s").await.granted();
        let error = scene.b.commit().await.refused(STALE);
        error.detail_names(&[&LEASE, &stale, &next]).has_hint();
        stale = next;
    }
    // An implicit transaction: several statements in one message. The commit is the last of them.
    let open = format!(
        "SELECT lease_fence('{LEASE}', {stale}); UPDATE plain SET v = 9 WHERE id = 1; SELECT pg_sleep(0)"
    );
    scene.b.sql(&open).await.expect("its token is current");
    assert_eq!(scene.db.v("plain", 1).await, 9);
}

/// The refused transaction is over and the session is as good as new.
#[tokio::test]
async fn a_session_goes_on_after_a_refusal() {
    let scene = Scene::set().await;
    for round in 0..50 {
        scene.b.sql("BEGIN").await.unwrap();
        scene.b.fw_in_block(Way::Transaction, LEASE, scene.current, 1, round).await.unwrap();
        scene.b.sql("SAVEPOINT s").await.unwrap();
        scene.b.cp(LEASE, scene.old, "1").await.refused(STALE);
        scene.b.sql("ROLLBACK TO s").await.unwrap();
        scene.b.commit().await.expect("the refusal was taken back");
        // The next error of another kind keeps its own code and fields.
        let error = scene.b.sql("INSERT INTO plain VALUES (1, 1)").await.refused(NO_TOKEN);
        error.at_table("public", "plain");
        let error = scene.b.sql("SELECT 1 / 0").await.refused("22012");
        assert_eq!((error.schema, error.table), (None, None));
        let error = scene
            .b
            .sql("CREATE TEMP TABLE u (i int UNIQUE); INSERT INTO u VALUES (1), (1)")
            .await
            .refused("23505");
        assert_eq!(error.table.as_deref(), Some("u"));
    }
    assert_eq!(scene.db.v("plain", 1).await, 49);
}

#[tokio::test]
async fn lx002_for_an_expired_token_with_strict_expiry() {
    let scene = Scene::set().await;
    scene.b.sql("SET lock_ext.strict_expiry = on").await.unwrap();
    scene.b.ext(LEASE, scene.current, "1 ms").await.extended();
    scene.db.expired(LEASE).await;
    scene
        .b
        .fence(LEASE, scene.current)
        .await
        .refused(EXPIRED)
        .detail_names(&[&LEASE, &scene.current])
        .has_hint();
    scene
        .b
        .cp(LEASE, scene.current, "1")
        .await
        .refused(EXPIRED)
        .detail_names(&[&LEASE, &scene.current])
        .has_hint();
    let error = scene.b.fw(Way::Column, LEASE, scene.current, 1, 9).await.refused(EXPIRED);
    error.detail_names(&[&LEASE, &scene.current]).has_hint().at_table("public", "stamped");
    // Superseded is LX001 all the same.
    scene.b.fence(LEASE, scene.old).await.refused(STALE);
}

#[tokio::test]
async fn lx003_names_the_table_the_lease_and_both_ways() {
    let scene = Scene::set().await;
    for table in ["plain", "stamped"] {
        for sql in [
            format!("UPDATE {table} SET v = 9"),
            format!("INSERT INTO {table} (id) VALUES (100)"),
            format!("DELETE FROM {table}"),
            format!("TRUNCATE {table}"),
        ] {
            let error = scene.b.sql(&sql).await.refused(NO_TOKEN);
            error.detail_names(&[&LEASE]).has_hint().at_table("public", table);
            let hint = error.hint.unwrap();
            assert!(hint.contains("lease_fence"), "{sql}: {hint}");
            if table == "stamped" && !sql.starts_with("TRUNCATE") && !sql.starts_with("DELETE") {
                assert!(hint.contains("\"token\""), "{sql}: {hint}");
            }
        }
    }
    // A NULL in the column is none, and so is one that an UPDATE does not set.
    scene.b.fw(Way::Column, LEASE, scene.current, 1, 1).await.unwrap();
    for sql in [
        "UPDATE stamped SET v = 9, token = NULL WHERE id = 1",
        "UPDATE stamped SET v = 9 WHERE id = 1",
    ] {
        scene.b.sql(sql).await.refused(NO_TOKEN);
    }
    // Setting it to itself does set it.
    scene.b.sql("UPDATE stamped SET v = 2, token = token WHERE id = 1").await.unwrap();
}

#[tokio::test]
async fn standard_codes_for_wrong_arguments() {
    let scene = Scene::set().await;
    let token = scene.current;
    for (sql, code) in [
        ("SELECT lease_acquire(NULL, 'A', '60 s')", "22004"),
        ("SELECT lease_acquire('x', NULL, '60 s')", "22004"),
        ("SELECT lease_acquire('x', 'A', NULL)", "22004"),
        ("SELECT lease_acquire('x', 'A', '60 s', NULL)", "22004"),
        ("SELECT lease_acquire('', 'A', '60 s')", "22023"),
        ("SELECT lease_acquire('x', '', '60 s')", "22023"),
        ("SELECT lease_acquire('x', 'A', '0')", "22023"),
        ("SELECT lease_acquire('x', 'A', '-1 s')", "22023"),
        ("SELECT lease_acquire('x', 'A', '8 days')", "22023"),
        ("SELECT lease_acquire('x', 'A', '1 month')", "22023"),
        ("SELECT lease_acquire('x', 'A', '60 s', '-1 s')", "22023"),
        ("SELECT lease_acquire('x', 'A', '60 s', '1 month')", "22023"),
        ("SELECT lease_acquire('x', 'A', '60 s', min_hold => NULL)", "22004"),
        ("SELECT lease_acquire('x', 'A', '60 s', pause => '-1 s')", "22023"),
        ("SELECT lease_acquire_session(NULL, 'A')", "22004"),
        ("SELECT lease_acquire_session('x', NULL)", "22004"),
        ("SELECT lease_acquire_session('x', 'A', NULL)", "22004"),
        ("SELECT lease_acquire_session('', 'A')", "22023"),
        ("SELECT lease_acquire_session('x', repeat('x', 1025))", "22001"),
        ("SELECT lease_acquire(repeat('x', 1025), 'A', '60 s')", "22001"),
        ("SELECT lease_acquire('x', repeat('x', 1025), '60 s')", "22001"),
        ("SELECT lease_extend(NULL, 1)", "22004"),
        ("SELECT lease_extend('x', NULL)", "22004"),
        ("SELECT lease_release('x', NULL)", "22004"),
        ("SELECT lease_complete('x', NULL)", "22004"),
        ("SELECT lease_complete('x', 1, NULL)", "22004"),
        ("SELECT lease_is_current('x', NULL)", "22004"),
        ("SELECT lease_fence('x', NULL)", "22004"),
        ("SELECT lease_fence('x', 1, NULL)", "22004"),
        ("SELECT lease_checkpoint('x', NULL, '{}')", "22004"),
        ("SELECT lease_checkpoint('x', 1, NULL)", "22004"),
        ("SELECT lease_evict('x', NULL)", "22004"),
        ("SELECT once(NULL)", "22004"),
        ("SELECT once('')", "22023"),
        ("SELECT once(repeat('x', 1025))", "22001"),
        ("SELECT lease_acquire('x', 'A', 'soon')", "22007"),
        ("SELECT lease_checkpoint('x', 1, 'no json')", "22P02"),
    ] {
        let error = scene.a.sql(sql).await.expect_err(sql);
        assert_eq!(error.code, code, "{sql}: {error:?}");
    }
    // What is out of range says what the range is.
    let error =
        scene.a.sql("SELECT lease_acquire(repeat('x', 1025), 'A', '60 s')").await.refused("22001");
    error.detail_names(&[&1024, &1025]);
    let error = scene.a.sql("SELECT lease_acquire('x', 'A', '8 days')").await.refused("22023");
    error.detail_names(&[&"lock_ext.max_ttl"]);
    // Elect is the one where no token means something.
    assert_eq!(scene.a.info("x").await, None);
    assert_eq!(scene.b.lead(LEASE, "B", "60 s", Some(token)).await, Ok(Some(token)));
}

#[tokio::test]
async fn insufficient_privilege_names_the_lease() {
    let scene = Scene::set().await;
    let role = scene.db.role("stranger").await;
    let stranger = scene.db.session_as(&role).await;
    let error = stranger.rel(LEASE, scene.current).await.refused("42501");
    assert!(format!("{}{:?}", error.message, error.detail).contains("reward"), "{error:?}");
    error.has_hint();
}

/// A read-only transaction is an error, and never "no" or "lost", which would make the caller believe in another holder.
#[tokio::test]
async fn read_only_is_25006() {
    let scene = Scene::set().await;
    let t = scene.current;
    let calls = [
        format!("lease_acquire('{LEASE}', 'A', '60 s')"),
        "lease_acquire('free', 'A', '60 s')".to_owned(),
        format!("lease_extend('{LEASE}', {t})"),
        format!("lease_extend('{LEASE}', 1, '60 s')"),
        format!("lease_extend_many(ARRAY['{LEASE}'], ARRAY[{t}::bigint])"),
        format!("lease_release('{LEASE}', {t})"),
        format!("lease_release('{LEASE}', 1)"),
        format!("lease_elect('{LEASE}', 'A', '60 s', {t})"),
        "lease_elect('free', 'A', '60 s')".to_owned(),
        format!("lease_complete('{LEASE}', {t})"),
        format!("lease_checkpoint('{LEASE}', {t}, '{{}}')"),
        "once('k')".to_owned(),
        "once_forget('0')".to_owned(),
        format!("lease_force_release('{LEASE}')"),
        "lease_prune('0')".to_owned(),
        format!("fenced_update('plain', {t}, '{{\"id\": 1}}', '{{\"v\": 1}}')"),
        format!("lease_evict('{LEASE}', {t})"),
    ];
    for call in calls {
        scene.b.sql("BEGIN READ ONLY").await.unwrap();
        let error = scene.b.sql(&format!("SELECT {call}")).await.expect_err(&call);
        assert_eq!(error.code, "25006", "{call}: {error:?}");
        scene.b.rollback().await;
    }
    scene.b.sql("SET default_transaction_read_only = on").await.unwrap();
    scene.b.ext(LEASE, t, "60 s").await.refused("25006");
    // Looking is allowed.
    assert_eq!(scene.b.is_current(LEASE, t).await, Ok(true));
    assert_eq!(scene.b.info(LEASE).await.unwrap().token, Some(t));
    assert_eq!(scene.b.read_cp(LEASE).await, Ok(None));
    assert_eq!(scene.b.one::<i64>("SELECT count(*) FROM lease_writer", &[]).await, Ok(0));
}

/// More leases in one transaction than the server's lock table has room for: said before it is full, which would hit others too.
#[tokio::test]
async fn writing_under_too_many_leases_is_a_clear_error() {
    let db = Db::alone().await;
    let a = db.session().await;
    let tokens =
        "SELECT count(lease_acquire('n' || i, 'A', '1 hour')) FROM generate_series(1, 40000) i";
    assert_eq!(a.one::<i64>(tokens, &[]).await, Ok(40_000));
    let write = |limit: i32| {
        format!(
            "SELECT count(c::text) FROM (SELECT lease_checkpoint(name, token, '1') AS c
             FROM (SELECT name, token FROM lease_status LIMIT {limit}) s OFFSET 0) t"
        )
    };
    a.exec(&write(100), &[]).await.expect("a hundred are fine");
    let error = a.exec(&write(40_000), &[]).await.refused("53400");
    error.has_hint();
    a.exec(&write(100), &[]).await.expect("the session goes on");
    // Many heartbeats are not many writes.
    let all = "SELECT count(expires_at) FROM lease_extend_many(
                   (SELECT array_agg(name ORDER BY name) FROM lease_status),
                   (SELECT array_agg(token ORDER BY name) FROM lease_status))";
    assert_eq!(a.one::<i64>(all, &[]).await, Ok(40_000));
}

/// In PL/pgSQL the codes can be caught by name, and the fields are there.
#[tokio::test]
async fn plpgsql_sees_code_and_fields() {
    let scene = Scene::set().await;
    let token = scene.old;
    scene
        .a
        .sql(&format!(
            "CREATE TABLE seen (code text, detail text, hint text, s text, t text);
             DO $do$ DECLARE d text; h text; s text; t text; c text; BEGIN
                 UPDATE stamped SET v = 9, token = {token} WHERE id = 1;
             EXCEPTION WHEN SQLSTATE 'LX001' THEN
                 GET STACKED DIAGNOSTICS c = RETURNED_SQLSTATE, d = PG_EXCEPTION_DETAIL, h = PG_EXCEPTION_HINT,
                                         s = SCHEMA_NAME, t = TABLE_NAME;
                 INSERT INTO seen VALUES (c, d, h, s, t);
             END $do$"
        ))
        .await
        .unwrap();
    let row = &scene.a.rows("SELECT * FROM seen", &[]).await.unwrap()[0];
    let seen: Vec<String> = (0..5).map(|column| row.get(column)).collect();
    assert_eq!(
        (seen[0].as_str(), seen[3].as_str(), seen[4].as_str()),
        (STALE, "public", "stamped")
    );
    assert!(seen[1].contains(LEASE) && !seen[2].is_empty());
}

/// What is left of the list of errors, so that each of them has been seen. (The one for a standby needs a standby.)
#[tokio::test]
async fn the_rarer_errors() {
    let scene = Scene::set().await;
    let role = scene.db.role("app").await;
    let app = scene.db.session_as(&role).await;
    let Scene { a, b, current, .. } = &scene;

    for floor in ["-1", "9007199254740992", "NULL"] {
        let code = if floor == "NULL" { "22004" } else { "22023" };
        a.sql(&format!("SELECT lease_raise_token_floor({floor})")).await.refused(code);
    }
    // A checkpoint of somebody else.
    b.cp(LEASE, *current, "1").await.unwrap();
    app.read_cp(LEASE).await.refused("42501");
    // A type without an equality, a table that is not there, and one that is not the caller's.
    a.sql("CREATE TABLE odd (id int, doc json, token bigint); SELECT fence_attach('odd', 'odd')")
        .await
        .unwrap();
    let t = a.acq("odd", "A", "60 s").await.granted();
    a.sql(&format!("SELECT fenced_update('odd', {t}, '{{\"doc\": 1}}', '{{\"id\": 1}}')"))
        .await
        .refused("42883");
    a.sql("SELECT fence_attach(999999::regclass, 'j')").await.refused("42P01");
    let mine = app.acq("mine", "A", "60 s").await.granted();
    let update = format!(
        "SELECT fenced_update('odd', {mine}, '{{\"id\": 1}}', '{{\"id\": 1}}', lease => 'mine')"
    );
    app.sql(&update).await.refused("42501");
    // Rows from another life of the database, and nobody there who may raise the floor.
    a.sql("INSERT INTO odd SELECT 1, NULL, 1000").await.refused(NO_TOKEN);
    a.sql(&format!(
        "SELECT fence_detach('odd'); INSERT INTO odd VALUES (1, NULL, 1000);
         ALTER TABLE odd OWNER TO {role}; GRANT CREATE ON SCHEMA public TO {role}"
    ))
    .await
    .unwrap();
    app.sql("SELECT fence_attach('odd', 'odd', 'token')").await.refused("55000").has_hint();
    // Somebody has set the sequence back by hand.
    a.sql("SELECT setval('lock_ext.lease_token_seq', 1)").await.unwrap();
    b.rel(LEASE, *current).await.unwrap();
    assert!(b.acq(LEASE, "B", "60 s").await.granted() > *current);

    // The library, called where the extension is not.
    let bare = scene.db.another_bare().await;
    bare.watch
        .sql("CREATE FUNCTION f(text) RETURNS boolean LANGUAGE c AS '$libdir/lock_ext', 'once_wrapper'")
        .await
        .unwrap();
    bare.watch.sql("SELECT f('k')").await.refused("42704").has_hint();
}
