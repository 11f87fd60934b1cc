//! The ordinary role. What there is to call and to touch is read from the catalog, so that nothing new is forgotten.

mod scene;

use std::collections::BTreeSet;

use lock_ext_sessions::{Asked, NO_TOKEN, PgError, Refused, STALE};

use scene::ReadOnly::{self, Refused as Changes, Works as Asks};
use scene::{ADMINISTRATIVE, PRIVATE, REGULAR, Scene, TRIGGER, VIEWS, named};

#[tokio::test]
async fn h37_an_ordinary_role_needs_to_execute_and_nothing_else() {
    let scene = Scene::new().await;
    let app = scene.session(&scene.app).await;
    let mut known = named(REGULAR.map(|(function, ..)| function));
    known.insert(TRIGGER.to_owned());
    assert_eq!(scene.functions("ops", true).await, known, "each has a call here");
    let views: Vec<String> =
        scene.relations("v").await.iter().map(|view| view.replace("ops.", "")).collect();
    assert_eq!(views, VIEWS);

    let t = app.acq("job", "A", "1 h").await.granted();
    for (_, call, _) in REGULAR {
        let call = call.replace("{t}", &t.to_string());
        app.sql(&call).await.unwrap_or_else(|error| panic!("{call}: {error:?}"));
    }
    for view in VIEWS {
        app.sql(&format!("TABLE {view}")).await.unwrap_or_else(|error| panic!("{view}: {error:?}"));
    }
    assert_eq!(app.info("more").await.unwrap().holder_role, Some(scene.app.clone()));

    // A fenced write, by both ways and by call.
    let t = app.acq("job", "A", "1 h").await.granted();
    app.sql(&format!(
        "BEGIN; SELECT lease_fence('job', {t}); INSERT INTO plain VALUES (2, 0); DELETE FROM plain;
         TRUNCATE plain; INSERT INTO plain VALUES (1, 0); COMMIT"
    ))
    .await
    .unwrap();
    app.sql(&format!("UPDATE stamped SET v = 1, token = {t}")).await.unwrap();
    app.sql(&format!("SELECT fenced_update('plain', {t}, '{{\"id\": 1}}', '{{\"v\": 2}}')"))
        .await
        .unwrap();
    for table in ["plain", "stamped"] {
        app.sql(&format!("UPDATE {table} SET v = 9")).await.refused(NO_TOKEN);
    }
    assert_eq!(app.rel("job", t).await, Ok(true));
    app.sql(&format!("UPDATE stamped SET v = 9, token = {t}")).await.refused(STALE);
}

#[tokio::test]
async fn h37_nothing_of_ours_is_changed_past_the_functions() {
    let scene = Scene::new().await;
    let app = scene.session(&scene.app).await;
    let t = app.acq("job", "A", "1 h").await.granted();
    app.sql(&format!(
        "SELECT lease_checkpoint('job', {t}, '1'), once('key'), fence_observe('etcd', 7)"
    ))
    .await
    .unwrap();
    let before = scene.contents().await;
    let [tables, sequences] = [scene.relations("r").await, scene.relations("S").await];
    assert!(tables.len() >= 4 && !sequences.is_empty(), "{tables:?}, {sequences:?}");

    let mut statements = Vec::new();
    for table in &tables {
        let columns: Vec<String> = scene
            .db
            .watch
            .list(
                "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = $1::text::regclass AND attnum > 0",
                &[table],
            )
            .await
            .unwrap();
        statements
            .extend(columns.iter().map(|column| format!("UPDATE {table} SET {column} = DEFAULT")));
        statements.extend(columns.iter().map(|column| format!("SELECT {column} FROM {table}")));
        statements.extend(
            [
                "INSERT INTO {} DEFAULT VALUES",
                "DELETE FROM {}",
                "TRUNCATE {}",
                "COPY {} FROM stdin",
                "COPY {} TO stdout",
                "DO 'BEGIN LOCK TABLE {}; END'",
                "SELECT count(*) FROM {}",
                "ALTER TABLE {} DISABLE TRIGGER ALL",
                "DROP TABLE {}",
            ]
            .map(|statement| statement.replace("{}", table)),
        );
    }
    for sequence in &sequences {
        statements.extend(
            [
                "SELECT nextval('{}')",
                "SELECT setval('{}', 1)",
                "SELECT setval('{}', 1, false)",
                "SELECT currval('{}')",
                "SELECT last_value FROM {}",
                "ALTER SEQUENCE {} RESTART",
                "DROP SEQUENCE {}",
            ]
            .map(|statement| statement.replace("{}", sequence)),
        );
    }
    statements.extend(
        [
            "CREATE TABLE lock_ext.mine ()",
            "DROP SCHEMA lock_ext",
            "DROP EXTENSION lock_ext",
            "ALTER EXTENSION lock_ext UPDATE",
        ]
        .map(str::to_owned),
    );
    for statement in &statements {
        let answer = app.sql(statement).await;
        assert!(matches!(&answer, Err(error) if error.code == "42501"), "{statement}: {answer:?}");
    }
    // A view of ours cannot be written by anybody.
    for view in VIEWS {
        for statement in
            [format!("INSERT INTO {view} DEFAULT VALUES"), format!("DELETE FROM {view}")]
        {
            let error = app.sql(&statement).await.expect_err(&statement);
            assert!(["42501", "55000"].contains(&error.code.as_str()), "{statement}: {error:?}");
        }
    }
    assert_eq!(scene.contents().await, before);
}

#[tokio::test]
async fn h37_administration_is_granted_or_refused() {
    let scene = Scene::new().await;
    let app = scene.session(&scene.app).await;
    assert_eq!(
        scene.functions("ops", false).await,
        named(ADMINISTRATIVE.map(|(function, _)| function)),
        "what PUBLIC may not execute"
    );
    let t = app.acq("job", "A", "1 h").await.granted();
    app.sql("SELECT once('key'), fence_observe('etcd', 7)").await.unwrap();
    let before = scene.contents().await;
    for (_, call) in ADMINISTRATIVE {
        app.sql(call).await.refused("42501");
    }
    assert_eq!(scene.contents().await, before);
    assert_eq!(app.is_current("job", t).await, Ok(true));

    for (function, call) in ADMINISTRATIVE {
        scene
            .db
            .watch
            .sql(&format!("GRANT EXECUTE ON FUNCTION {function} TO {}", scene.app))
            .await
            .unwrap();
        app.sql(call).await.unwrap_or_else(|error| panic!("{call}: {error:?}"));
    }
    assert_eq!(app.is_current("job", t).await, Ok(false), "ended by force");
    assert!(app.acq("job", "A", "1 h").await.granted() > 1000, "above the floor");
}

/// Not by the functions that anybody may execute either, those of the private schema among them.
#[tokio::test]
async fn h37_another_roles_lease_is_left_alone() {
    let scene = Scene::new().await;
    let [app, other] = [scene.session(&scene.app).await, scene.session(&scene.other).await];
    let t = app.acq("job", "A", "1 h").await.granted();
    app.cp("job", t, "1").await.unwrap();
    app.sacq("bound", "A", "0").await.granted();
    let waiter = scene.session(&scene.app).await;
    let waiting = waiter.beside(|me| async move { me.acq_wait("job", "W", "1 h", "60 s").await });
    scene.db.until("EXISTS (SELECT FROM ops.lease_waiter WHERE name = 'job')", &[]).await;
    app.sql(&format!("BEGIN; SELECT lease_fence('job', {t}); UPDATE plain SET v = 1"))
        .await
        .unwrap();
    let before = scene.contents().await;

    for call in [
        "SELECT lease_extend('job', {t})",
        "SELECT lease_extend('job', {t}, '1 h')",
        "SELECT lease_extend_many('{job}', ARRAY[{t}])",
        "SELECT lease_extend_many('{job}', ARRAY[{t}], '1 h')",
        "SELECT lease_release('job', {t})",
        "SELECT lease_complete('job', {t})",
        "SELECT lease_elect('job', 'A', '1 h', {t})",
        "SELECT lease_is_current('job', {t})",
        "SELECT lease_checkpoint('job', {t}, '2')",
        "SELECT lease_checkpoint('job')",
        "SELECT lease_fence('job', {t})",
        "SELECT lease_evict('job', {t})",
        "SELECT fenced_update('plain', {t}, '{\"id\": 1}', '{\"v\": 9}')",
        "UPDATE stamped SET v = 9, token = {t}",
        "SELECT fence_attach('own', 'job')",
        "SELECT fence_detach('plain')",
    ] {
        let call = call.replace("{t}", &t.to_string());
        let answer = other.sql(&call).await;
        assert!(matches!(&answer, Err(error) if error.code == "42501"), "{call}: {answer:?}");
    }
    // Those of the private schema are for everybody to execute, or refused.
    let mut known = scene.functions("lock_ext", true).await;
    known.extend(scene.functions("lock_ext", false).await);
    assert_eq!(known, named(PRIVATE.map(|(function, _)| function)), "each has a call here");
    for (_, call) in PRIVATE {
        let call = format!("SELECT lock_ext.{}", call.replace("{t}", &t.to_string()));
        other.sql("BEGIN").await.unwrap();
        let answer: Result<(), PgError> = other.sql(&call).await;
        if answer.is_ok() {
            // Whatever it did, it is no fence.
            let error = other.sql("UPDATE plain SET v = 9").await.expect_err(&call);
            assert!(["42501", NO_TOKEN].contains(&error.code.as_str()), "{call}: {error:?}");
        }
        other.rollback().await;
    }
    for pid in [waiter.pid(), app.pid()] {
        for call in ["pg_cancel_backend", "pg_terminate_backend"] {
            other.exec(&format!("SELECT {call}($1)"), &[&pid]).await.refused("42501");
        }
    }
    // Nor is anything of it shown, but for the fences, which the catalog shows everybody.
    for view in VIEWS.iter().filter(|view| **view != "fence_status") {
        let rows = other.rows(&format!("TABLE {view}"), &[]).await.unwrap();
        assert!(rows.is_empty(), "{view}");
    }
    for function in ["status()", "writers()", "waiters()", "observed()"] {
        let rows = other.rows(&format!("SELECT * FROM lock_ext.{function}"), &[]).await.unwrap();
        assert!(rows.is_empty(), "{function}");
    }
    assert_eq!(scene.contents().await, before);
    app.commit().await.unwrap();
    assert_eq!(app.rel("job", t).await, Ok(true));
    waiting.await.unwrap().granted();
}

/// As an answer NULL or false would make the caller believe in another holder.
#[tokio::test]
async fn h41_every_function_that_changes_something_is_refused_where_nothing_may_be_changed() {
    let scene = Scene::new().await;
    let app = scene.session(&scene.app).await;
    for (function, _) in ADMINISTRATIVE {
        scene
            .db
            .watch
            .sql(&format!("GRANT EXECUTE ON FUNCTION {function} TO {}", scene.app))
            .await
            .unwrap();
    }
    let known = REGULAR.map(|(function, ..)| function);
    let known: BTreeSet<String> = named(known)
        .into_iter()
        .chain(named(ADMINISTRATIVE.map(|(function, _)| function)))
        .chain([TRIGGER.to_owned()])
        .collect();
    assert_eq!(scene.functions("ops", true).await, known, "each has a call here");
    let t = app.acq("job", "A", "1 h").await.granted();
    app.sql("SELECT once('key'), fence_observe('etcd', 7), fence_attach('own', 'another')")
        .await
        .unwrap();
    let before = scene.contents().await;

    let calls: Vec<(String, ReadOnly)> = REGULAR
        .iter()
        .map(|(_, call, kind)| (call.replace("{t}", &t.to_string()), *kind))
        .chain(ADMINISTRATIVE.iter().map(|(_, call)| (call.to_string(), Changes)))
        .chain(VIEWS.iter().map(|view| (format!("TABLE {view}"), Asks)))
        .chain([(format!("UPDATE stamped SET v = 9, token = {t}"), Changes)])
        .collect();
    for (begin, end) in [
        ("BEGIN READ ONLY", "ROLLBACK"),
        ("BEGIN; SET TRANSACTION READ ONLY", "ROLLBACK"),
        ("SET default_transaction_read_only = on", "RESET default_transaction_read_only"),
    ] {
        for (call, kind) in &calls {
            app.sql(begin).await.unwrap();
            let answer: Result<(), PgError> = app.sql(call).await;
            match kind {
                Asks => assert_eq!(answer, Ok(()), "{begin}: {call}"),
                Changes => assert!(
                    matches!(&answer, Err(error) if error.code == "25006"),
                    "{begin}: {call}: {answer:?}"
                ),
            }
            app.sql(end).await.unwrap();
        }
    }
    assert_eq!(scene.contents().await, before);
}
