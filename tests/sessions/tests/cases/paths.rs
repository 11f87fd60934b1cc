//! The scenarios of ways past a fence.

use std::time::Instant;

use lock_ext_sessions::{Asked, Db, LEVELS, NO_TOKEN, PATIENCE, Refused, STALE, Session, Way};

/// What `fence_status` says is open, but for who owns the table.
async fn holes(session: &Session) -> Vec<String> {
    session
        .list(
            "SELECT hole FROM fence_status WHERE hole NOT LIKE '%can alter the table%' ORDER BY 1",
            &[],
        )
        .await
        .unwrap()
}

/// `h30_truncate_is_fenced` by a partition, its parent, a child, and what foreign keys reach.
#[tokio::test]
async fn h30_truncate_of_families_is_fenced() {
    for (family, truncates) in [
        (
            "CREATE TABLE f (id int PRIMARY KEY, up int REFERENCES up) PARTITION BY RANGE (id);
             CREATE TABLE f_1 PARTITION OF f FOR VALUES FROM (0) TO (10);
             CREATE TABLE f_2 PARTITION OF f FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);
             CREATE TABLE f_3 PARTITION OF f_2 FOR VALUES FROM (10) TO (20);
             INSERT INTO f VALUES (1, 1), (11, 1)",
            ["TRUNCATE f", "TRUNCATE f_1", "TRUNCATE f_2", "TRUNCATE f_3", "TRUNCATE up CASCADE", "TRUNCATE unfenced, f_3"],
        ),
        (
            "CREATE TABLE f (id int PRIMARY KEY, up int REFERENCES up);
             CREATE TABLE f_1 (FOREIGN KEY (up) REFERENCES up) INHERITS (f);
             CREATE TABLE f_2 () INHERITS (f); CREATE TABLE f_3 () INHERITS (f_2);
             INSERT INTO f VALUES (0, 1); INSERT INTO f_1 VALUES (1, 1); INSERT INTO f_3 VALUES (11, 1)",
            ["TRUNCATE f", "TRUNCATE f_1", "TRUNCATE f_2", "TRUNCATE f_3", "TRUNCATE up CASCADE", "TRUNCATE ONLY f"],
        ),
    ] {
        let db = Db::fresh().await;
        let [a, early, b] = db.sessions().await;
        a.sql("CREATE TABLE up (id int PRIMARY KEY); INSERT INTO up VALUES (1); CREATE TABLE unfenced (id int)")
            .await
            .unwrap();
        a.sql(family).await.unwrap();
        a.sql("SELECT fence_attach('f', 'j')").await.unwrap();
        let count = "SELECT count(*) FROM f";
        let rows: i64 = a.one(count, &[]).await.unwrap();
        let t1 = a.acq("j", "A", "60 s").await.granted();
        early.sql("BEGIN").await.unwrap();
        early.fence("j", t1).await.unwrap();
        a.force("j").await.unwrap();
        let t2 = b.acq("j", "B", "60 s").await.granted();
        for truncate in truncates {
            a.sql(truncate).await.refused(NO_TOKEN);
            early.sql("SAVEPOINT s").await.unwrap();
            early.sql(truncate).await.refused(STALE);
            early.sql("ROLLBACK TO s").await.unwrap();
            assert_eq!(a.one::<i64>(count, &[]).await, Ok(rows), "{truncate}");

            b.sql("BEGIN").await.unwrap();
            b.fence("j", t2).await.unwrap();
            b.sql(truncate).await.unwrap_or_else(|error| panic!("the holder may {truncate}: {error}"));
            assert!(b.one::<i64>(count, &[]).await.unwrap() < rows, "{truncate}");
            b.rollback().await;
        }
        early.commit().await.expect("what was refused was taken back");
    }
}

#[tokio::test]
async fn h31_upsert_and_copy_of_a_stale_holder_change_nothing() {
    for level in LEVELS {
        let db = Db::fresh().await;
        db.fence("j").await;
        let [a, early, b] = db.sessions().await;
        let t1 = a.acq("j", "A", "60 s").await.granted();
        early.begin(level).await;
        early.fence("j", t1).await.unwrap();
        a.force("j").await.unwrap();
        let t2 = b.acq("j", "B", "60 s").await.granted();
        for way in [Way::Transaction, Way::Column] {
            b.fw(way, "j", t2, 1, 1).await.unwrap();
        }
        let all = "SELECT string_agg(s::text, ' ' ORDER BY id) || (SELECT string_agg(p::text, ' ' ORDER BY id) FROM plain p) FROM stamped s";
        let before: String = a.one(all, &[]).await.unwrap();

        let by_column = |token: i64| {
            [
                format!(
                    "INSERT INTO stamped VALUES (1, 2, {token}) ON CONFLICT (id) DO UPDATE SET v = 2, token = {token}"
                ),
                format!(
                    "INSERT INTO stamped VALUES (10, 2, {token}) ON CONFLICT (id) DO UPDATE SET v = 3, token = {token}"
                ),
                format!(
                    "INSERT INTO stamped VALUES (11, 2, {token}), (1, 2, {token}) ON CONFLICT DO NOTHING"
                ),
                format!(
                    "COPY stamped FROM PROGRAM 'printf \"12,2,{token}\\n13,2,{token}\\n\"' (FORMAT csv)"
                ),
            ]
        };
        let by_transaction = |table: &str| {
            [
                format!("INSERT INTO {table} VALUES (1, 2) ON CONFLICT (id) DO UPDATE SET v = 2"),
                format!("INSERT INTO {table} VALUES (10, 2) ON CONFLICT (id) DO UPDATE SET v = 3"),
                format!("INSERT INTO {table} VALUES (11, 2), (1, 2) ON CONFLICT DO NOTHING"),
                format!(
                    "COPY {table} (id, v) FROM PROGRAM 'printf \"12,2\\n13,2\\n\"' (FORMAT csv)"
                ),
            ]
        };
        for sql in by_column(t1) {
            a.sql(&sql).await.refused(STALE);
            assert_eq!(a.one::<String>(all, &[]).await.as_ref(), Ok(&before), "{sql}");
        }
        // Half of its rows with the current token do not save the rest: the whole statement is refused.
        a.sql(&format!(
            "COPY stamped FROM PROGRAM 'printf \"12,2,{t2}\\n13,2,{t1}\\n\"' (FORMAT csv)"
        ))
        .await
        .refused(STALE);
        a.sql(&format!("INSERT INTO stamped VALUES (12, 2, {t2}), (13, 2, {t1})"))
            .await
            .refused(STALE);
        for table in ["plain", "stamped"] {
            for sql in by_transaction(table) {
                a.sql(&sql).await.refused(NO_TOKEN);
                early.sql("SAVEPOINT s").await.unwrap();
                early.sql(&sql).await.refused(STALE);
                early.sql("ROLLBACK TO s").await.unwrap();
            }
        }
        early.commit().await.unwrap();
        assert_eq!(a.one::<String>(all, &[]).await, Ok(before), "{level}");

        // The holder, by column and then by transaction.
        for sql in by_column(t2) {
            b.sql(&sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
        }
        let stamps = "SELECT array_agg(DISTINCT token) FROM stamped WHERE v = 2";
        assert_eq!(b.one::<Vec<i64>>(stamps, &[]).await, Ok(vec![t2]));
        let written = "SELECT count(*) FROM stamped WHERE v = 2";
        assert_eq!(b.one::<i64>(written, &[]).await, Ok(5), "1, 10, 11, 12 and 13");
        b.begin(level).await;
        b.fence("j", t2).await.unwrap();
        for sql in by_transaction("plain") {
            b.sql(&sql).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
        }
        b.commit().await.unwrap();
        assert_eq!(b.one::<i64>("SELECT count(*) FROM plain WHERE v = 2", &[]).await, Ok(5));
    }
}

/// What goes past every trigger is for superusers and owners, and is shown as long as it is on.
#[tokio::test]
async fn h32_what_switches_the_fence_off_is_shown() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [owner, app] = [db.role("owner").await, db.role("app").await];
    let [root, a] = db.sessions().await;
    root.sql(&format!(
        "ALTER TABLE plain OWNER TO {owner}; ALTER TABLE stamped OWNER TO {owner};
         GRANT ALL ON plain, stamped TO {app}"
    ))
    .await
    .unwrap();
    let [owner, app] = [db.session_as(&owner).await, db.session_as(&app).await];
    let stale = a.acq("j", "A", "60 s").await.granted();
    a.force("j").await.unwrap();
    let update = format!("UPDATE stamped SET v = 9, token = {stale} WHERE id = 1");
    assert_eq!(holes(&a).await, Vec::<String>::new());

    // A superuser's replica role.
    root.sql("SET session_replication_role = replica").await.unwrap();
    let seen = holes(&root).await;
    assert_eq!(seen.len(), 2, "one for each fence: {seen:?}");
    assert!(seen.iter().all(|hole| hole.contains("session_replication_role")), "{seen:?}");
    root.sql(&format!("BEGIN; {update}; TRUNCATE plain; ROLLBACK"))
        .await
        .expect("nothing fires there");
    root.sql("RESET session_replication_role").await.unwrap();
    assert_eq!(holes(&root).await, Vec::<String>::new());
    root.sql(&update).await.refused(STALE);

    // Nobody else has it, neither the owner.
    for session in [&app, &owner] {
        for sql in [
            "SET session_replication_role = replica",
            "SELECT set_config('session_replication_role', 'replica', true)",
        ] {
            session.sql(sql).await.refused("42501");
        }
        session.sql(&update).await.refused(STALE);
    }

    // The owner's DISABLE TRIGGER, which a writer does not have.
    let names: Vec<String> = root
        .list("SELECT tgname::text FROM pg_trigger WHERE tgrelid = 'stamped'::regclass AND NOT tgisinternal ORDER BY 1", &[])
        .await
        .unwrap();
    assert!(!names.is_empty());
    app.sql("ALTER TABLE stamped DISABLE TRIGGER USER").await.refused("42501");
    for name in &names {
        app.sql(&format!("DROP TRIGGER {name} ON stamped")).await.refused("42501");
        for (off, word) in [("DISABLE", "disabled"), ("ENABLE REPLICA", "replica")] {
            owner.sql(&format!("ALTER TABLE stamped {off} TRIGGER {name}")).await.unwrap();
            for session in [&owner, &app, &a] {
                let seen = holes(session).await;
                assert!(
                    seen.iter().any(|hole| hole.contains(word) && hole.contains(name.as_str())),
                    "{off} {name}: {seen:?}"
                );
            }
            owner.sql(&format!("ALTER TABLE stamped ENABLE TRIGGER {name}")).await.unwrap();
            assert_eq!(holes(&a).await, Vec::<String>::new());
        }
    }
    owner.sql("ALTER TABLE stamped DISABLE TRIGGER USER").await.unwrap();
    app.sql(&update).await.expect("the fence is off");
    owner.sql("ALTER TABLE stamped ENABLE TRIGGER USER").await.unwrap();
    app.sql(&update).await.refused(STALE);
    owner.sql("DROP TABLE stamped").await.expect("it is the owner's");
    assert_eq!(
        a.one::<i64>("SELECT count(*) FROM fence_status WHERE table_name::text = 'stamped'", &[])
            .await,
        Ok(0)
    );
}

/// Rows that were legally written on the publisher are not refused on the subscriber, where the same table is fenced as well.
#[tokio::test]
async fn h32_a_subscriber_applies_what_was_written_on_the_publisher() {
    let db = Db::fresh().await;
    let level: String = db.watch.one("SELECT current_setting('wal_level')", &[]).await.unwrap();
    assert_eq!(level, "logical", "this test needs a server with wal_level = logical");
    let subscriber = db.another().await;
    let (publication, slot) =
        ("CREATE PUBLICATION p FOR TABLE plain, stamped, family", db.name().to_owned());
    let family = "CREATE TABLE family (id int PRIMARY KEY, v int NOT NULL DEFAULT 0) PARTITION BY RANGE (id);
                  CREATE TABLE family_1 PARTITION OF family FOR VALUES FROM (0) TO (100);
                  SELECT fence_attach('family', 'j')";
    for side in [&db, &subscriber] {
        side.fence("j").await;
        side.watch.sql(family).await.unwrap();
    }
    let [a, s] = [db.session().await, subscriber.session().await];
    a.sql(publication).await.unwrap();
    a.exec("SELECT pg_create_logical_replication_slot($1, 'pgoutput')", &[&slot]).await.unwrap();
    let (host, port, user) = (
        std::env::var("PGHOST").unwrap(),
        std::env::var("PGPORT").unwrap(),
        std::env::var("PGUSER").unwrap(),
    );
    s.sql(&format!(
        "CREATE SUBSCRIPTION {slot} CONNECTION 'host={host} port={port} user={user} dbname={}' PUBLICATION p
             WITH (create_slot = false, slot_name = '{slot}', copy_data = false)",
        db.name()
    ))
    .await
    .unwrap();

    // Under a lease of the publisher; the subscriber has none of that name at all.
    let t = a.acq("j", "A", "60 s").await.granted();
    a.sql("BEGIN").await.unwrap();
    a.fence("j", t).await.unwrap();
    a.sql(
        "INSERT INTO plain VALUES (20, 1); UPDATE plain SET v = 1 WHERE id = 1; DELETE FROM plain WHERE id = 2;
         INSERT INTO stamped VALUES (20, 1); UPDATE stamped SET v = 1 WHERE id = 1; DELETE FROM stamped WHERE id = 2;
         INSERT INTO family VALUES (20, 1); COMMIT",
    )
    .await
    .unwrap();
    let rows = "SELECT (SELECT string_agg(p::text, ' ' ORDER BY id) FROM plain p)
                    || (SELECT string_agg(s::text, ' ' ORDER BY id) FROM stamped s)
                    || (SELECT string_agg(f::text, ' ' ORDER BY id) FROM family f)";
    let wanted: String = a.one(rows, &[]).await.unwrap();
    let start = Instant::now();
    while s.one::<Option<String>>(rows, &[]).await.unwrap().as_ref() != Some(&wanted) {
        assert!(start.elapsed() < PATIENCE, "never applied");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    // TRUNCATE is applied as well.
    a.sql("BEGIN").await.unwrap();
    a.fence("j", t).await.unwrap();
    a.sql("TRUNCATE plain, family; COMMIT").await.unwrap();
    subscriber
        .until("SELECT NOT EXISTS (SELECT FROM plain) AND NOT EXISTS (SELECT FROM family)", &[])
        .await;

    // For everybody else the subscriber's fences are as tight as the publisher's.
    for table in ["plain", "stamped", "family"] {
        s.sql(&format!("INSERT INTO {table} (id) VALUES (30)")).await.refused(NO_TOKEN);
    }
    s.sql(&format!("UPDATE stamped SET v = 9, token = {t}")).await.refused(STALE);
    assert_eq!(holes(&s).await, Vec::<String>::new());

    s.sql(&format!(
        "ALTER SUBSCRIPTION {slot} DISABLE; ALTER SUBSCRIPTION {slot} SET (slot_name = NONE); DROP SUBSCRIPTION {slot}"
    ))
    .await
    .unwrap();
    db.until("SELECT NOT active FROM pg_replication_slots WHERE slot_name = $1", &[&slot]).await;
    a.exec("SELECT pg_drop_replication_slot($1)", &[&slot]).await.unwrap();
}

/// `h36_the_extension_goes_and_comes_back` with a partitioned table and with children.
#[tokio::test]
async fn h36_the_extension_goes_from_families_too() {
    let db = Db::fresh().await;
    let a = db.session().await;
    a.sql(
        "CREATE TABLE parts (id int, v int, token bigint) PARTITION BY RANGE (id);
         CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
         CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);
         CREATE TABLE parts_3 PARTITION OF parts_2 FOR VALUES FROM (10) TO (20);
         CREATE TABLE mother (id int, v int, token bigint); CREATE TABLE child () INHERITS (mother);
         SELECT fence_attach('parts', 'j', 'token'), fence_attach('mother', 'j', 'token')",
    )
    .await
    .unwrap();
    let writes = [
        "INSERT INTO parts VALUES (1, 0), (11, 0)",
        "INSERT INTO mother VALUES (1, 0); INSERT INTO child VALUES (2, 0)",
        "UPDATE parts SET v = v + 1",
        "UPDATE mother SET v = v + 1",
        "UPDATE parts SET id = 12 WHERE id = 1",
    ];
    let mut old = 0;
    while old < 7 {
        old = a.acq("j", "A", "60 s").await.granted();
        a.sql("BEGIN").await.unwrap();
        a.fence("j", old).await.unwrap();
        for write in writes {
            a.sql(write).await.unwrap();
        }
        a.commit().await.unwrap();
        a.force("j").await.unwrap();
    }

    let refusal = a.sql("DROP EXTENSION lock_ext").await.refused("2BP01");
    refusal.detail_names(&[&"table parts", &"table mother", &"table child"]);
    a.sql("SELECT fence_detach('mother')").await.unwrap();
    let refusal = a.sql("DROP EXTENSION lock_ext").await.refused("2BP01");
    refusal.detail_names(&[&"table parts"]);
    let detail = refusal.detail.unwrap_or_default();
    assert!(
        !detail.contains("mother") && !detail.contains("child"),
        "a detached family is free: {detail}"
    );

    a.sql("DROP EXTENSION lock_ext CASCADE").await.unwrap();
    let left = "SELECT count(*) FROM pg_trigger WHERE tgname LIKE '%lock\\_ext%'";
    assert_eq!(a.one::<i64>(left, &[]).await, Ok(0));
    for write in writes {
        a.sql(write)
            .await
            .unwrap_or_else(|error| panic!("usable without the extension: {error}: {write}"));
    }
    for write in [
        "DELETE FROM parts WHERE token IS NULL",
        "TRUNCATE child",
        "INSERT INTO child VALUES (2, 0)",
    ] {
        a.sql(write).await.unwrap();
    }

    a.sql("CREATE EXTENSION lock_ext; SELECT fence_attach('parts', 'j', 'token'), fence_attach('mother', 'j', 'token')")
        .await
        .unwrap();
    assert_eq!(holes(&a).await, Vec::<String>::new());
    let new = a.acq("j", "A", "60 s").await.granted();
    assert!(new > old, "the floor was raised from the rows: {new} after {old}");
    for write in writes {
        a.sql(write).await.refused(NO_TOKEN);
    }
    a.sql("BEGIN").await.unwrap();
    a.fence("j", new).await.unwrap();
    for write in writes {
        a.sql(write)
            .await
            .unwrap_or_else(|error| panic!("over rows of old tokens: {error}: {write}"));
    }
    a.commit().await.unwrap();
    a.sql(&format!("UPDATE parts SET v = 9, token = {old}")).await.refused(STALE);
}
