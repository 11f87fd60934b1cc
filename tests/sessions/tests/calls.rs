//! The smaller promises of single functions: who may call them, what they give, what they leave alone.

use std::time::Duration;

use lock_ext_sessions::{Asked, Db, EXPIRED, NO_TOKEN, Refused, STALE, Session, Way};

const REQUEST: &str = "6f9619ff-8b86-d011-b42d-00cf4fc964ff";
const OTHER: &str = "11111111-2222-3333-4444-555555555555";

/// The client never heard the answer and asks again, from a new connection.
#[tokio::test]
async fn a_request_that_is_repeated_gives_the_same_token() {
    let db = Db::fresh().await;
    let [lost, again] = db.sessions().await;
    let t1 = lost.acq_as_request("j", "A", "60 s", REQUEST).await.granted();
    db.terminate(lost.pid()).await;
    assert_eq!(again.acq_as_request("j", "A", "60 s", REQUEST).await, Ok(Some(t1)));
    again.acq_as_request("j", "A", "60 s", OTHER).await.busy();
    again.acq("j", "A", "60 s").await.busy();

    // The same request is answered while its grant is current, and no longer.
    again.rel("j", t1).await.unwrap();
    let t2 = again.acq_as_request("j", "A", "60 s", REQUEST).await.granted();
    assert!(t2 > t1);
    again.ext("j", t2, "1 ms").await.extended();
    db.expired("j").await;
    let t3 = again.acq_as_request("j", "A", "60 s", REQUEST).await.granted();
    assert!(t3 > t2);
    // A grant without a request is an answer to none.
    again.rel("j", t3).await.unwrap();
    again.acq("j", "A", "60 s").await.granted();
    again.acq_as_request("j", "A", "60 s", REQUEST).await.busy();
    again.exec("SELECT lease_acquire('j', 'A', '60 s', request => NULL)", &[]).await.unwrap();
}

#[tokio::test]
async fn extend_many_answers_in_the_order_of_its_arguments() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let mut names = Vec::new();
    let mut tokens = Vec::new();
    for name in ["z", "a", "m", "lost", "released", "expired"] {
        names.push(name);
        tokens.push(a.acq(name, "A", "60 s").await.granted());
    }
    a.force("lost").await.unwrap();
    let new = b.acq("lost", "B", "60 s").await.granted();
    a.rel("released", tokens[4]).await.unwrap();
    a.ext("expired", tokens[5], "1 ms").await.extended();
    db.expired("expired").await;
    names.push("never");
    tokens.push(7);
    let lost_expiry = b.expiry("lost").await;

    let before = a.clock().await;
    let renewed = a.ext_many(&names, &tokens, "120 s").await.unwrap();
    assert_eq!(
        renewed.iter().map(|r| (r.name.as_str(), r.token)).collect::<Vec<_>>(),
        names.iter().copied().zip(tokens.iter().copied()).collect::<Vec<_>>()
    );
    for (renewed, kept) in renewed.iter().zip([true, true, true, false, false, false, false]) {
        assert_eq!(renewed.expires_at.is_some(), kept, "{renewed:?}");
        if kept {
            assert!(renewed.expires_at.unwrap() >= before + Duration::from_secs(120));
            assert_eq!(a.info(&renewed.name).await.unwrap().expires_at, renewed.expires_at);
        }
    }
    assert_eq!(b.expiry("lost").await, lost_expiry);
    assert_eq!(b.is_current("lost", new).await, Ok(true));
    assert_eq!(a.info("never").await, None);

    // Each by what it was granted.
    let short = a.acq("short", "A", "30 s").await.granted();
    let rows = a
        .rows(
            "SELECT name, extract(epoch FROM expires_at - clock_timestamp())::float8
             FROM lease_extend_many(ARRAY['short', 'z'], ARRAY[$1::bigint, $2])",
            &[&short, &tokens[0]],
        )
        .await
        .unwrap();
    let left: Vec<f64> = rows.iter().map(|row| row.get(1)).collect();
    assert!((20.0..=30.0).contains(&left[0]) && (50.0..=60.0).contains(&left[1]), "{left:?}");

    // The same name twice, nothing at all, and what cannot be.
    let twice = a.ext_many(&["z", "z", "z"], &[tokens[0], tokens[0], 1], "60 s").await.unwrap();
    assert_eq!(
        twice.iter().map(|r| r.expires_at.is_some()).collect::<Vec<_>>(),
        [true, true, tokens[0] == 1]
    );
    assert_eq!(a.ext_many(&[], &[], "60 s").await, Ok(vec![]));
    a.ext_many(&["z"], &[], "60 s").await.refused("22023");
    a.ext_many(&["z", "a"], &[tokens[0]], "60 s").await.refused("22023");
    for sql in [
        "SELECT lease_extend_many(NULL, ARRAY[1::bigint])",
        "SELECT lease_extend_many(ARRAY['z'], NULL)",
        "SELECT lease_extend_many(NULL, NULL, '60 s')",
        "SELECT lease_extend_many(ARRAY['z', NULL], ARRAY[1::bigint, 2])",
        "SELECT lease_extend_many(ARRAY['z'], ARRAY[NULL::bigint])",
    ] {
        a.exec(sql, &[]).await.refused("22004");
    }
}

#[tokio::test]
async fn elect_keeps_the_leader_and_makes_a_new_one() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t1 = a.lead("s", "A", "60 s", None).await.granted();
    b.lead("s", "B", "60 s", None).await.busy();
    let before = a.expiry("s").await;
    assert_eq!(a.lead("s", "A", "120 s", Some(t1)).await, Ok(Some(t1)));
    assert!(a.expiry("s").await > before);
    // Whoever believes to lead and does not is like anybody else.
    b.lead("s", "B", "60 s", Some(t1 + 1)).await.busy();
    a.ext("s", t1, "1 ms").await.extended();
    db.expired("s").await;
    let t2 = b.lead("s", "B", "60 s", Some(t1 + 1)).await.granted();
    assert!(t2 > t1);
    a.lead("s", "A", "60 s", Some(t1)).await.busy();
    // An own expired one is not extended: it is a new grant.
    b.ext("s", t2, "1 ms").await.extended();
    db.expired("s").await;
    let t3 = b.lead("s", "B", "60 s", Some(t2)).await.granted();
    assert!(t3 > t2);
}

#[tokio::test]
async fn a_completed_name_is_not_acquired_before_its_time() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t = a.acq("daily", "A", "60 s").await.granted();
    assert_eq!(a.complete("daily", t).await, Ok(true));
    assert_eq!(a.complete("daily", t).await, Ok(false), "true once");
    assert_eq!(a.rel("daily", t).await, Ok(false));
    b.acq("daily", "B", "60 s").await.busy();
    b.lead("daily", "B", "60 s", None).await.busy();
    let status = b.info("daily").await.unwrap();
    assert_eq!((status.state.as_str(), status.holder), ("completed", None));
    let forever: bool = b
        .one("SELECT completed_until = 'infinity' FROM lease_status WHERE name = 'daily'", &[])
        .await
        .unwrap();
    assert!(forever);

    let t = a.acq("hourly", "A", "60 s").await.granted();
    let sql = "SELECT lease_complete('hourly', $1, clock_timestamp() + '300 ms'::interval)";
    assert_eq!(a.one(sql, &[&t]).await, Ok(true));
    b.acq("hourly", "B", "60 s").await.busy();
    db.until("SELECT clock_timestamp() > completed_until OR state = 'free' FROM lease_status WHERE name = 'hourly'", &[]).await;
    assert!(b.acq("hourly", "B", "60 s").await.granted() > t);
    a.exec("SELECT lease_complete('hourly', 1, NULL)", &[]).await.refused("22004");
}

#[tokio::test]
async fn force_release_ends_what_there_is() {
    let db = Db::fresh().await;
    let [a, admin] = db.sessions().await;
    assert_eq!(admin.force("j").await, Ok(false), "nothing there");
    let t = a.acq("j", "A", "60 s").await.granted();
    assert_eq!(admin.force("j").await, Ok(true));
    assert_eq!(admin.force("j").await, Ok(false));
    assert_eq!(a.rel("j", t).await, Ok(false));
    let status = admin.info("j").await.expect("it stays listed");
    assert_eq!((status.state.as_str(), status.holder), ("free", None));
    a.acq("j", "A", "60 s").await.granted();
}

#[tokio::test]
async fn prune_removes_what_nobody_uses() {
    let db = Db::fresh().await;
    let a = db.session().await;
    let held = a.acq("held", "A", "60 s").await.granted();
    let free = a.acq("free", "A", "60 s").await.granted();
    a.cp("free", free, "1").await.unwrap();
    a.rel("free", free).await.unwrap();
    let done = a.acq("done", "A", "60 s").await.granted();
    a.complete("done", done).await.unwrap();
    assert_eq!(
        a.one::<i64>("SELECT lease_prune('1 hour')", &[]).await,
        Ok(0),
        "not idle for that long"
    );
    assert_eq!(a.one::<i64>("SELECT lease_prune('0')", &[]).await, Ok(1));
    assert_eq!(a.info("free").await, None);
    assert_eq!(a.info("done").await.unwrap().state, "completed", "else it would be done again");
    assert_eq!(a.is_current("held", held).await, Ok(true));
    assert!(
        a.acq("free", "A", "60 s").await.granted() > free.max(done),
        "pruning does not bring numbers back"
    );
    for (sql, code) in [("NULL", "22004"), ("'-1 s'", "22023")] {
        a.exec(&format!("SELECT lease_prune({sql})"), &[]).await.refused(code);
        a.exec(&format!("SELECT once_forget({sql})"), &[]).await.refused(code);
    }
}

#[tokio::test]
async fn the_status_view_says_who_has_what() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, w] = db.sessions().await;
    let columns: Vec<String> = a
        .list(
            "SELECT attname::text FROM pg_attribute WHERE attrelid = 'lease_status'::regclass AND attnum > 0 ORDER BY attnum",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(
        columns.join(", "),
        "name, state, holder, holder_role, token, acquired_at, expires_at, remaining, ttl, session_pid, \
         completed_until, grants, waiters, writers"
    );
    let first = a.acq("j", "A", "60 s").await.granted();
    a.rel("j", first).await.unwrap();
    let t = a.acq("j", "node-1", "60 s").await.granted();
    w.sql("BEGIN").await.unwrap();
    w.fw_in_block(Way::Transaction, "j", t, 1, 1).await.unwrap();
    let row = a
        .rows(
            "SELECT state, holder, holder_role::text, token, acquired_at < expires_at AND acquired_at <= clock_timestamp(),
                    expires_at - acquired_at = ttl, ttl = '60 s', session_pid, completed_until::text, grants, waiters::bigint,
                    writers::bigint, session_user::text
             FROM lease_status WHERE name = 'j'",
            &[],
        )
        .await
        .unwrap();
    let row = &row[0];
    assert_eq!(row.get::<_, &str>(0), "held");
    assert_eq!(row.get::<_, &str>(1), "node-1");
    assert_eq!(row.get::<_, &str>(2), row.get::<_, &str>(12));
    assert_eq!(row.get::<_, i64>(3), t);
    assert!([4, 5, 6].into_iter().all(|column| row.get::<_, bool>(column)));
    assert_eq!(row.get::<_, Option<i32>>(7), None);
    assert_eq!(row.get::<_, Option<&str>>(8), None);
    assert_eq!(
        [9, 10, 11].map(|column| row.get::<_, i64>(column)),
        [2, 0, 1],
        "grants, waiters, writers"
    );

    let writers = a
        .rows(
            "SELECT name, pid, token, superseded, since <= clock_timestamp() FROM lease_writer",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(writers.len(), 1);
    assert_eq!(writers[0].get::<_, &str>(0), "j");
    assert_eq!(writers[0].get::<_, i32>(1), w.pid());
    assert_eq!(writers[0].get::<_, i64>(2), t);
    assert!(!writers[0].get::<_, bool>(3) && writers[0].get::<_, bool>(4));
    a.force("j").await.unwrap();
    assert_eq!(a.one::<bool>("SELECT superseded FROM lease_writer", &[]).await, Ok(true));
    w.rollback().await;
    assert_eq!(a.one::<i64>("SELECT count(*) FROM lease_writer", &[]).await, Ok(0));
}

/// What a role asks with a token of a lease that another role holds.
const WITH_THE_TOKEN: [&str; 10] = [
    "SELECT lease_extend('j', $1)",
    "SELECT lease_extend('j', $1, '60 s')",
    "SELECT lease_extend_many(ARRAY['j'], ARRAY[$1::bigint])",
    "SELECT lease_release('j', $1)",
    "SELECT lease_complete('j', $1)",
    "SELECT lease_checkpoint('j', $1, '{}')",
    "SELECT lease_fence('j', $1)",
    "SELECT lease_elect('j', 'A', '60 s', $1)",
    "SELECT lease_is_current('j', $1)",
    "SELECT fenced_update('plain', $1, '{\"id\": 1}', '{\"v\": 1}')",
];

#[tokio::test]
async fn only_the_holders_role_and_its_members_act_with_the_token() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [holder, member, stranger] =
        [db.role("holder").await, db.role("member").await, db.role("stranger").await];
    db.watch
        .sql(&format!("GRANT {holder} TO {member}; GRANT ALL ON plain, stamped TO {holder}, {member}, {stranger}"))
        .await
        .unwrap();
    let [a, m, s] = [
        db.session_as(&holder).await,
        db.session_as(&member).await,
        db.session_as(&stranger).await,
    ];
    let old = a.acq("j", "A", "60 s").await.granted();
    a.rel("j", old).await.unwrap();
    let t = a.acq("j", "A", "60 s").await.granted();
    assert_eq!(db.watch.info("j").await.unwrap().holder_role.as_deref(), Some(holder.as_str()));
    let expiry = db.watch.expiry("j").await;

    for sql in WITH_THE_TOKEN {
        s.exec(sql, &[&t]).await.refused("42501");
        // Stale before forbidden: the usual answer, whoever asks.
        match s.rows(sql, &[&old]).await {
            Ok(_) => {}
            Err(error) => assert_eq!(error.code, STALE, "{sql}"),
        }
    }
    s.exec("UPDATE stamped SET v = 1, token = $1 WHERE id = 1", &[&t]).await.refused("42501");
    assert_eq!(s.rel("j", old).await, Ok(false));
    s.ext("j", old, "60 s").await.lost();
    assert_eq!(s.is_current("j", old).await, Ok(false));
    s.acq("j", "S", "60 s").await.busy();
    assert_eq!(db.watch.expiry("j").await, expiry);
    assert_eq!([db.v("plain", 1).await, db.v("stamped", 1).await], [0, 0]);

    m.ext("j", t, "60 s").await.extended();
    m.cp("j", t, "1").await.unwrap();
    for way in Way::ALL {
        m.fw(way, "j", t, 1, 1).await.unwrap();
        a.fw(way, "j", t, 1, 2).await.unwrap();
    }
    assert_eq!(m.rel("j", t).await, Ok(true));
    // What was released is anybody's.
    s.acq("j", "S", "60 s").await.granted();
}

#[tokio::test]
async fn an_ordinary_role_touches_no_table_and_administers_nothing() {
    let db = Db::fresh().await;
    let role = db.role("app").await;
    let [app, other] = [db.session_as(&role).await, db.session().await];
    let mine = app.acq("mine", "A", "60 s").await.granted();
    app.cp("mine", mine, "1").await.unwrap();
    assert_eq!(app.once("key").await, Ok(true));
    other.acq("other", "O", "60 s").await.granted();

    let tables: Vec<String> = db
        .watch
        .list(
            "SELECT relname::text FROM pg_class WHERE relnamespace = 'lock_ext'::regnamespace AND relkind IN ('r', 'S')",
            &[],
        )
        .await
        .unwrap();
    assert!(tables.len() >= 4, "{tables:?}");
    for table in &tables {
        for sql in [
            "SELECT FROM t",
            "DELETE FROM t",
            "TRUNCATE t",
            "INSERT INTO t DEFAULT VALUES",
            "COPY t TO STDOUT",
        ] {
            let error =
                app.sql(&sql.replace(" t", &format!(" lock_ext.{table}"))).await.expect_err(sql);
            let is_sequence = table.ends_with("_seq") || table.starts_with("token_");
            let is_no_table = is_sequence && error.code == "42809";
            assert!(is_no_table || error.code == "42501", "{sql} of {table}: {error:?}");
        }
    }
    for sql in [
        "SELECT setval('lock_ext.lease_token_seq', 1)",
        "SELECT nextval('lock_ext.lease_token_seq')",
        "SELECT lease_force_release('other')",
        "SELECT lease_force_release('mine')",
        "SELECT lease_prune('0')",
        "SELECT once_forget('0')",
        "SELECT lease_evict('mine')",
        "SELECT lease_raise_token_floor(1000)",
        "SET lock_ext.max_ttl = '100d'",
        "SET lock_ext.strict_expiry = on",
    ] {
        app.sql(sql).await.refused("42501");
    }
    // In the views it sees its own.
    let seen: Vec<String> =
        app.list("SELECT name FROM lease_status ORDER BY name", &[]).await.unwrap();
    assert_eq!(seen, ["mine"]);
    db.watch.sql(&format!("GRANT pg_monitor TO {role}")).await.unwrap();
    let seen: Vec<String> =
        app.list("SELECT name FROM lease_status ORDER BY name", &[]).await.unwrap();
    assert_eq!(seen, ["mine", "other"]);
    assert_eq!(app.rel("mine", mine).await, Ok(true));
}

#[tokio::test]
async fn fence_attach_needs_the_owner_and_does_things_once() {
    let db = Db::fresh().await;
    let role = db.role("app").await;
    let admin = db.session().await;
    let app = db.session_as(&role).await;
    admin
        .sql(&format!(
            "CREATE TABLE t (id int, v int, token bigint, small int); GRANT ALL ON t TO {role}"
        ))
        .await
        .unwrap();
    app.sql("SELECT fence_attach('t', 'j')").await.refused("42501");
    app.sql("SELECT fence_detach('t')").await.refused("42501");
    for (sql, code) in [
        ("SELECT fence_attach('t', 'j', 'nowhere')", "42703"),
        ("SELECT fence_attach('t', 'j', 'small')", "42804"),
        ("SELECT fence_attach('nowhere', 'j')", "42P01"),
        ("SELECT fence_attach(NULL, 'j')", "22004"),
        ("SELECT fence_attach('lock_ext.lease', 'j')", "42809"),
        ("SELECT fence_attach('pg_class', 'j')", "42809"),
        ("SELECT fence_attach('lease_status', 'j')", "42809"),
        ("SELECT fence_detach(NULL)", "22004"),
    ] {
        let error = admin.sql(sql).await.expect_err(sql);
        assert_eq!(error.code, code, "{sql}: {error:?}");
    }
    let triggers = |session: &Session| {
        let session = session.clone();
        async move {
            session
                .list::<String>(
                    "SELECT oid::text || tgname FROM pg_trigger WHERE tgrelid = 't'::regclass AND NOT tgisinternal ORDER BY 1",
                    &[],
                )
                .await
                .unwrap()
        }
    };
    admin.sql("SELECT fence_attach('t', 'j')").await.unwrap();
    let once = triggers(&admin).await;
    assert!(!once.is_empty());
    admin.sql("SELECT fence_attach('t', 'j')").await.unwrap();
    assert_eq!(triggers(&admin).await, once, "twice with the same settings changes nothing");

    // With others it replaces.
    admin.sql("SELECT fence_attach('t', 'k', 'token')").await.unwrap();
    let [j, k] =
        [admin.acq("j", "A", "60 s").await.granted(), admin.acq("k", "A", "60 s").await.granted()];
    admin.sql(&format!("INSERT INTO t VALUES (1, 1, {j})")).await.refused(STALE);
    admin.sql(&format!("INSERT INTO t VALUES (1, 1, {k})")).await.unwrap();
    admin.sql("SELECT fence_detach('t'); SELECT fence_detach('t')").await.unwrap();
    assert!(triggers(&admin).await.is_empty());
    admin.sql("UPDATE t SET v = 2; TRUNCATE t").await.unwrap();
}

/// As a migration tool writes it.
#[tokio::test]
async fn a_fence_by_plain_create_trigger() {
    let db = Db::fresh().await;
    let a = db.session().await;
    a.sql(
        "CREATE TABLE t (id int, v int); CREATE TABLE c (id int, v int, token bigint);
         CREATE TRIGGER f BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON t
             FOR EACH STATEMENT EXECUTE FUNCTION fence_check('j');
         CREATE TRIGGER f BEFORE INSERT OR UPDATE OR DELETE ON c FOR EACH ROW EXECUTE FUNCTION fence_check('j', 'token');
         CREATE TRIGGER g BEFORE TRUNCATE ON c FOR EACH STATEMENT EXECUTE FUNCTION fence_check('j');",
    )
    .await
    .unwrap();
    let t1 = a.acq("j", "A", "60 s").await.granted();
    for sql in
        ["INSERT INTO t VALUES (1, 1)", "INSERT INTO c VALUES (1, 1)", "TRUNCATE t", "TRUNCATE c"]
    {
        a.sql(sql).await.refused(NO_TOKEN);
    }
    a.sql(&format!("INSERT INTO c VALUES (1, 1, {t1})")).await.unwrap();
    a.sql("BEGIN").await.unwrap();
    a.fence("j", t1).await.unwrap();
    a.sql("INSERT INTO t VALUES (1, 1); UPDATE c SET v = 2; COMMIT").await.unwrap();
    a.rel("j", t1).await.unwrap();
    a.sql(&format!("UPDATE c SET v = 3, token = {t1}")).await.refused(STALE);

    // Triggers that were made in another way than it can work say so when they fire.
    a.sql("CREATE TABLE wrong (id int)").await.unwrap();
    for shape in [
        "AFTER INSERT ON wrong FOR EACH STATEMENT EXECUTE FUNCTION fence_check('j')",
        "BEFORE INSERT ON wrong FOR EACH STATEMENT EXECUTE FUNCTION fence_check()",
        "BEFORE INSERT ON wrong FOR EACH ROW EXECUTE FUNCTION fence_check('j', 'id', 'v', 'more')",
        "BEFORE INSERT ON wrong FOR EACH STATEMENT EXECUTE FUNCTION fence_check('j', 'id')",
    ] {
        a.sql(&format!("CREATE TRIGGER f {shape}")).await.unwrap();
        let error = a.sql("INSERT INTO wrong VALUES (1)").await.expect_err(shape);
        assert_eq!(error.code, "39P01", "{shape}: {error:?}");
        a.sql("DROP TRIGGER f ON wrong").await.unwrap();
    }
    a.sql("SELECT fence_check()").await.expect_err("a trigger function");
}

#[tokio::test]
async fn fenced_update_is_one_statement() {
    let db = Db::fresh().await;
    let a = db.session().await;
    a.sql(
        "CREATE TABLE t (id int PRIMARY KEY, v int CHECK (v < 1000), note text, tags jsonb, at timestamptz, \"odd \"\"name\" int);
         INSERT INTO t SELECT g, 0, CASE WHEN g > 2 THEN 'n' END FROM generate_series(1, 4) g;
         SELECT fence_attach('t', 'j'); CREATE TABLE unfenced (id int, v int); INSERT INTO unfenced VALUES (1, 0)",
    )
    .await
    .unwrap();
    let t = a.acq("j", "A", "60 s").await.granted();
    let update = |filter: &str, changes: &str, more: &str| {
        let sql = format!("SELECT fenced_update('t', {t}, $s${filter}$s$, $s${changes}$s${more})");
        let a = a.clone();
        async move { a.one::<i64>(&sql, &[]).await }
    };
    assert_eq!(update(r#"{"id": 1}"#, r#"{"v": 5}"#, "").await, Ok(1));
    assert_eq!(update(r#"{"id": 99}"#, r#"{"v": 5}"#, "").await, Ok(0));
    assert_eq!(update(r#"{"note": "n"}"#, r#"{"v": 6, "note": "m"}"#, "").await, Ok(2));
    assert_eq!(update(r#"{"note": "m", "id": 3}"#, r#"{"v": 7}"#, "").await, Ok(1));
    assert_eq!(update(r#"{"note": null}"#, r#"{"v": 8}"#, "").await, Ok(2), "null is IS NULL");
    assert_eq!(update(r#"{"note": "m"}"#, r#"{"note": null}"#, "").await, Ok(2));
    assert_eq!(update("{}", r#"{"v": 9}"#, ", all_rows => true").await, Ok(4));
    assert_eq!(
        update(
            r#"{"id": 1}"#,
            r#"{"tags": {"a": [1, "x"]}, "at": "2026-11-29 12:00+00", "odd \"name": 4}"#,
            ""
        )
        .await,
        Ok(1)
    );
    let row: String = a.one("SELECT t::text FROM t WHERE id = 1 AND tags = '{\"a\": [1, \"x\"]}' AND at = '2026-11-29 12:00+00' AND \"odd \"\"name\" = 4", &[]).await.unwrap();
    assert!(row.starts_with("(1,9,"), "{row}");

    for (filter, changes, more, code) in [
        ("{}", r#"{"v": 1}"#, "", "22023"),
        (r#"{"id": 1}"#, "{}", "", "22023"),
        (r#"{"nowhere": 1}"#, r#"{"v": 1}"#, "", "42703"),
        (r#"{"id": 1}"#, r#"{"nowhere": 1}"#, "", "42703"),
        (r#"{"ctid": "(0,1)"}"#, r#"{"v": 1}"#, "", "42703"),
        (r#"{"id": "x"}"#, r#"{"v": 1}"#, "", "22P02"),
        (r#"{"id": 1}"#, r#"{"v": "x"}"#, "", "22P02"),
        (r#"{"id": "x"}"#, r#"{"v": 1}"#, ", all_rows => true", "22P02"),
        (r#"{"id": 99}"#, r#"{"v": "x"}"#, "", "22P02"),
        ("[]", r#"{"v": 1}"#, "", "22023"),
        ("1", r#"{"v": 1}"#, "", "22023"),
        ("null", r#"{"v": 1}"#, "", "22023"),
        (r#"{"id": 1}"#, "[1]", "", "22023"),
        (r#"{"id": 1}"#, r#""v""#, "", "22023"),
        ("{}", r#"{"v": 1}"#, ", all_rows => NULL", "22004"),
        (r#"{"id": 1}"#, r#"{"v": 99999999999}"#, "", "22003"),
        (r#"{"id": 1}"#, r#"{"v": 1000}"#, "", "23514"),
        (r#"{"id": 1}"#, r#"{"id": 2}"#, "", "23505"),
    ] {
        let error = update(filter, changes, more).await.expect_err(filter);
        assert_eq!(error.code, code, "{filter} {changes}: {error:?}");
        if code.starts_with("23") {
            error.at_table("public", "t");
        }
    }
    assert_eq!(
        a.one::<i64>("SELECT count(*) FROM t WHERE v = 9", &[]).await,
        Ok(4),
        "nothing is changed by a refused one"
    );
    for sql in [
        "SELECT fenced_update('t', NULL, '{\"id\": 1}', '{\"v\": 1}')",
        "SELECT fenced_update('t', 1, NULL, '{\"v\": 1}')",
        "SELECT fenced_update('t', 1, '{\"id\": 1}', NULL)",
        "SELECT fenced_update(NULL, 1, '{\"id\": 1}', '{\"v\": 1}')",
        "SELECT fenced_update('t', 1, '{\"id\": 1}', '{\"v\": 1}', lease => NULL)",
    ] {
        let error = a.sql(sql).await.expect_err(sql);
        assert_eq!(error.code, "22004", "{sql}: {error:?}");
    }
    // A stale token is an error also where the filter finds nothing.
    for token in [t + 1, 0, -1] {
        a.exec("SELECT fenced_update('t', $1, '{\"id\": 99}', '{\"v\": 1}')", &[&token])
            .await
            .refused(STALE);
    }
    // A table without a fence, with the lease named and without.
    a.exec("SELECT fenced_update('unfenced', $1, '{\"id\": 1}', '{\"v\": 1}')", &[&t])
        .await
        .refused("55000");
    let named = "SELECT fenced_update('unfenced', $1, '{\"id\": 1}', '{\"v\": 1}', lease => 'j')";
    assert_eq!(a.one::<i64>(named, &[&t]).await, Ok(1));
    a.exec(named, &[&(t + 1)]).await.refused(STALE);
    // Its token is its own: what follows in the transaction carries none.
    a.sql("BEGIN").await.unwrap();
    a.exec("SELECT fenced_update('t', $1, '{\"id\": 1}', '{\"v\": 1}')", &[&t]).await.unwrap();
    a.sql("UPDATE t SET v = 2").await.refused(NO_TOKEN);
    a.rollback().await;
}

/// Rights and row security are the caller's.
#[tokio::test]
async fn fenced_update_has_the_rights_of_its_caller() {
    let db = Db::fresh().await;
    let role = db.role("app").await;
    db.watch
        .sql(&format!(
            "CREATE TABLE t (id int, v int, secret int); INSERT INTO t VALUES (1, 0, 0), (2, 0, 0); SELECT fence_attach('t', 'j');
             CREATE TABLE visible (id int, v int); INSERT INTO visible VALUES (1, 0), (2, 0); SELECT fence_attach('visible', 'j');
             ALTER TABLE visible ENABLE ROW LEVEL SECURITY; CREATE POLICY one ON visible USING (id = 1);
             GRANT SELECT, UPDATE ON visible TO {role}"
        ))
        .await
        .unwrap();
    let app = db.session_as(&role).await;
    let t = app.acq("j", "A", "60 s").await.granted();
    let update = |table: &str, changes: &str| {
        format!("SELECT fenced_update('{table}', {t}, '{{}}', '{changes}', all_rows => true)")
    };
    app.sql(&update("t", r#"{"v": 1}"#)).await.refused("42501");
    db.watch.sql(&format!("GRANT SELECT, UPDATE (v) ON t TO {role}")).await.unwrap();
    assert_eq!(app.one::<i64>(&update("t", r#"{"v": 1}"#), &[]).await, Ok(2));
    app.sql(&update("t", r#"{"secret": 1}"#)).await.refused("42501");
    assert_eq!(app.one::<i64>(&update("visible", r#"{"v": 1}"#), &[]).await, Ok(1));
}

/// A row that carries a higher token than the writer's current one: of another database, or of a dump.
#[tokio::test]
async fn a_row_with_a_higher_token_is_not_overwritten() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let a = db.session().await;
    let t = a.acq("j", "A", "60 s").await.granted();
    db.watch
        .sql("BEGIN; SET LOCAL session_replication_role = replica; UPDATE stamped SET token = 1000 WHERE id = 1; COMMIT")
        .await
        .unwrap();
    for way in [Way::Stamped, Way::Column, Way::FencedUpdateStamped] {
        a.fw(way, "j", t, 1, 5)
            .await
            .refused(STALE)
            .detail_names(&[&t, &1000])
            .at_table("public", "stamped");
        a.fw(way, "j", t, 2, 5).await.unwrap();
    }
    // All or nothing.
    let all =
        format!("SELECT fenced_update('stamped', {t}, '{{}}', '{{\"v\": 6}}', all_rows => true)");
    a.sql(&all).await.refused(STALE);
    a.sql("BEGIN").await.unwrap();
    a.fence("j", t).await.unwrap();
    a.sql("DELETE FROM stamped").await.refused(STALE);
    a.rollback().await;
    assert_eq!(a.one::<i64>("SELECT count(*) FROM stamped WHERE v = 6", &[]).await, Ok(0));
    assert_eq!(a.one::<i64>("SELECT count(*) FROM stamped", &[]).await, Ok(9));
}

/// `lock_ext.strict_expiry` is for those who want it; here that it is off, and what on does.
#[tokio::test]
async fn strict_expiry_refuses_an_expired_token() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let a = db.session().await;
    let t = a.acq("j", "A", "1 ms").await.granted();
    db.expired("j").await;
    for way in Way::ALL {
        a.fw(way, "j", t, 1, 1).await.expect("expired is not superseded");
    }
    let open = db.session().await;
    open.sql("SET lock_ext.strict_expiry = on").await.unwrap();
    for way in Way::ALL {
        open.fw(way, "j", t, 1, 2).await.refused(EXPIRED);
    }
    // Expired between the write and the commit.
    for way in Way::ALL {
        let t = a.acq("j", "A", "60 s").await.granted();
        open.sql("BEGIN").await.unwrap();
        open.fw_in_block(way, "j", t, 1, 2).await.unwrap();
        a.ext("j", t, "1 ms").await.extended();
        db.expired("j").await;
        open.commit().await.refused(EXPIRED);
    }
    assert_eq!([db.v("plain", 1).await, db.v("stamped", 1).await], [1, 1]);
}

/// The call acts with the rights of who it says it is: neither a SECURITY DEFINER function nor the maintenance of
/// somebody's table lends it those of the session.
#[tokio::test]
async fn security_definer_and_maintenance_do_not_lend_rights() {
    let db = Db::fresh().await;
    let [victim, evil] = [db.role("victim").await, db.role("evil").await];
    db.watch
        .sql(&format!(
            "CREATE SCHEMA lair AUTHORIZATION {evil}; CREATE SCHEMA home AUTHORIZATION {victim};
                       GRANT USAGE ON SCHEMA lair, home TO PUBLIC"
        ))
        .await
        .unwrap();
    let [v, e] = [db.session_as(&victim).await, db.session_as(&evil).await];
    let t = v.acq("j", "V", "60 s").await.granted();
    // Swallows its refusal, so that the table can be filled; whoever evaluates it without one releases the lease.
    e.sql(&format!(
        "CREATE FUNCTION lair.trap(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
         BEGIN
             BEGIN PERFORM public.lease_release('j', {t}); EXCEPTION WHEN insufficient_privilege THEN NULL; END;
             RETURN $1;
         END $$;
         CREATE TABLE lair.bait (v int);
         CREATE INDEX bait_trap ON lair.bait (lair.trap(v));
         INSERT INTO lair.bait SELECT generate_series(1, 10);
         CREATE FUNCTION lair.help() RETURNS boolean SECURITY DEFINER LANGUAGE sql
             AS 'SELECT public.lease_release(''j'', {t})'"
    ))
    .await
    .unwrap();
    for maintenance in [
        "ANALYZE lair.bait",
        "REINDEX TABLE lair.bait",
        "VACUUM FULL lair.bait",
        "CLUSTER lair.bait USING bait_trap",
    ] {
        db.watch.sql(maintenance).await.unwrap();
        assert_eq!(v.is_current("j", t).await, Ok(true), "after {maintenance} by a superuser");
    }
    v.exec("SELECT lair.help()", &[]).await.refused("42501");
    assert_eq!(v.is_current("j", t).await, Ok(true));
    // The other way round it is what SECURITY DEFINER is for.
    v.sql(&format!(
        "CREATE FUNCTION home.extend() RETURNS timestamptz SECURITY DEFINER LANGUAGE sql AS 'SELECT public.lease_extend(''j'', {t})'"
    ))
    .await
    .unwrap();
    assert_eq!(e.one::<bool>("SELECT home.extend() IS NOT NULL", &[]).await, Ok(true));
    e.rel("j", t).await.refused("42501");
}

/// Its own tables are written past the executor; the maintenance that administrators run finds them in order all the same.
#[tokio::test]
async fn reindex_concurrently_beside_heartbeats_loses_no_version() {
    let db = Db::fresh().await;
    let [heart, old, admin, b] = db.sessions().await;
    // Long names, so that a page is full after a few versions and new ones need index entries.
    let leases: Vec<String> =
        (0..4).map(|number| format!("{number}{}", "x".repeat(1000))).collect();
    let mut tokens = Vec::new();
    for lease in &leases {
        tokens.push(heart.acq(lease, &"h".repeat(1000), "1 hour").await.granted());
    }
    old.begin("REPEATABLE READ").await;
    old.exec("SELECT 1", &[]).await.unwrap();
    let reindex = admin.beside(|admin| async move {
        admin.sql("REINDEX INDEX CONCURRENTLY lock_ext.lease_pkey").await
    });
    db.blocked(&admin).await;
    for round in 0..200 {
        let at = round % leases.len();
        heart.ext(&leases[at], tokens[at], "1 hour").await.extended();
        if round == 100 {
            // The old snapshot is what keeps the new index from being finished.
            old.commit().await.unwrap();
        }
    }
    reindex.await.unwrap().unwrap();
    let is_intact = async |after: &str| {
        for (lease, token) in leases.iter().zip(&tokens) {
            b.acq(lease, "B", "60 s").await.busy();
            heart.ext(lease, *token, "1 hour").await.extended();
            for scan in ["enable_seqscan", "enable_indexscan"] {
                db.watch
                    .sql(&format!(
                        "BEGIN; SET LOCAL {scan} = off; SET LOCAL enable_bitmapscan = off"
                    ))
                    .await
                    .unwrap();
                let rows = db
                    .watch
                    .one::<i64>("SELECT count(*) FROM lock_ext.lease WHERE name = $1", &[lease])
                    .await;
                db.watch.rollback().await;
                assert_eq!(rows, Ok(1), "{scan} off after {after}");
            }
        }
    };
    is_intact("REINDEX CONCURRENTLY").await;
    for maintenance in [
        "REINDEX TABLE lock_ext.lease",
        "VACUUM FULL lock_ext.lease",
        "REINDEX TABLE CONCURRENTLY lock_ext.lease",
        "VACUUM FREEZE lock_ext.lease",
    ] {
        admin.sql(maintenance).await.unwrap();
        is_intact(maintenance).await;
    }
}

/// An index of somebody's own is not kept up by direct writes; that is said, not ignored.
#[tokio::test]
async fn an_index_added_to_its_tables_is_an_error_and_no_crash() {
    let db = Db::fresh().await;
    let a = db.session().await;
    let t = a.acq("j", "A", "60 s").await.granted();
    db.watch.sql("CREATE INDEX mine ON lock_ext.lease ((token + 1))").await.unwrap();
    a.ext("j", t, "60 s").await.refused("55000");
    a.acq("k", "A", "60 s").await.refused("55000");
    db.watch.sql("DROP INDEX lock_ext.mine").await.unwrap();
    a.ext("j", t, "60 s").await.extended();
}
