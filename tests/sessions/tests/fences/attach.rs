//! `fence_attach` and `fence_detach`: what they refuse, do twice, replace, repair and leave behind.

use lock_ext_sessions::{Asked, Db, NO_TOKEN, Refused, Session};

use super::tables::Shape;

/// The fence's own triggers on all tables, copies on partitions included, with their OIDs.
pub async fn triggers(session: &Session) -> Vec<String> {
    session
        .list(
            "SELECT format('%s %s %s %s', tgrelid::regclass, tgname, oid, tgenabled) FROM pg_trigger
             WHERE tgfoid = 'fence_check'::regproc ORDER BY 1",
            &[],
        )
        .await
        .expect("the triggers")
}

/// What `fence_status` says is open, without the owner, who is a matter of its own.
pub async fn holes(session: &Session) -> Vec<String> {
    session
        .list(
            "SELECT format('%s: %s', table_name, hole) FROM fence_status
             WHERE hole IS NOT NULL AND hole NOT LIKE '%can alter the table%' ORDER BY 1",
            &[],
        )
        .await
        .expect("the holes")
}

/// A table of one kind, its partitions or children with it, in which the writes below mean something.
pub async fn family(db: &Db, shape: Shape) {
    db.watch
        .sql(match shape {
            Shape::Plain => "CREATE TABLE t (id int, v int, token bigint, k text)",
            Shape::Partitioned => {
                "CREATE TABLE t (id int, v int, token bigint, k text) PARTITION BY RANGE (id);
                 CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (100);
                 CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (100) TO (200) PARTITION BY RANGE (id);
                 CREATE TABLE t_leaf PARTITION OF t_high FOR VALUES FROM (100) TO (150)"
            }
            Shape::Inheritance => {
                "CREATE TABLE t (id int, v int, token bigint, k text);
                 CREATE TABLE t_low () INHERITS (t); CREATE TABLE t_high () INHERITS (t);
                 CREATE TABLE t_leaf () INHERITS (t_high)"
            }
        })
        .await
        .expect("a family of tables");
}

const ARGUMENTS: [&str; 6] = [
    "'j'",
    "'j', 'token'",
    "'j', NULL, 'k'",
    "NULL, NULL, 'k'",
    "lease_column => 'k', token_column => 'token'",
    "'prefix:', 'token', 'k'",
];

#[tokio::test]
async fn what_cannot_be_fenced_is_said() {
    let db = Db::fresh().await;
    let [me, other] = [db.role("me").await, db.role("other").await];
    db.watch
        .sql(&format!(
            "GRANT CREATE ON SCHEMA public TO {me};
             CREATE TABLE t (id int, small int, token bigint, k text, doubled bigint GENERATED ALWAYS AS (id * 2) STORED,
                             shown text GENERATED ALWAYS AS ('k' || k) STORED, gone bigint);
             ALTER TABLE t DROP COLUMN gone; ALTER TABLE t OWNER TO {me};
             CREATE TABLE foreign_one (id int); ALTER TABLE foreign_one OWNER TO {other};
             CREATE TABLE parent (id int) PARTITION BY RANGE (id); ALTER TABLE parent OWNER TO {me};
             CREATE TABLE part PARTITION OF parent FOR VALUES FROM (0) TO (9); ALTER TABLE part OWNER TO {other};
             CREATE TABLE mother (id int); ALTER TABLE mother OWNER TO {me};
             CREATE TABLE child () INHERITS (mother); ALTER TABLE child OWNER TO {other};
             CREATE VIEW a_view AS SELECT 1 AS id; CREATE MATERIALIZED VIEW a_matview AS SELECT 1 AS id;
             CREATE SEQUENCE a_sequence; CREATE INDEX an_index ON t (id); CREATE TYPE a_type AS (id int);
             CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w; CREATE FOREIGN TABLE outside (id int) SERVER s"
        ))
        .await
        .unwrap();
    let session = db.session_as(&me).await;
    let admin = db.session().await;
    admin.sql("CREATE TEMP TABLE mine (id int)").await.unwrap();
    for (who, call, code) in [
        (&session, "'foreign_one', 'j'", "42501"),
        (&session, "'parent', 'j'", "42501"),
        (&session, "'mother', 'j'", "42501"),
        (&session, "'t', NULL", "22004"),
        (&session, "'t'", "22004"),
        (&session, "NULL, 'j'", "22004"),
        (&session, "'t', ''", "22023"),
        (&session, "'t', NULL, 'token'", "22004"),
        (&session, "'t', repeat('j', 1025)", "22001"),
        (&session, "'t', repeat('j', 1025), NULL, 'k'", "22001"),
        (&session, "'t', 'j', 'nowhere'", "42703"),
        (&session, "'t', 'j', 'gone'", "42703"),
        (&session, "'t', 'j', 'Token'", "42703"),
        (&session, "'t', 'j', 'ctid'", "42703"),
        (&session, "'t', 'j', ''", "42703"),
        (&session, "'t', 'j', 'small'", "42804"),
        (&session, "'t', 'j', 'k'", "42804"),
        (&session, "'t', 'j', 'doubled'", "42804"),
        (&session, "'t', 'j', NULL, 'nowhere'", "42703"),
        (&session, "'t', 'j', NULL, 'xmin'", "42703"),
        (&session, "'t', 'j', NULL, ''", "42703"),
        (&session, "'t', 'j', NULL, 'doubled'", "42804"),
        (&session, "'t', 'j', NULL, 'shown'", "42804"),
        (&session, "'t', 'j', 'small', 'k'", "42804"),
        (&admin, "'a_view', 'j'", "42809"),
        (&admin, "'a_matview', 'j'", "42809"),
        (&admin, "'a_sequence', 'j'", "42809"),
        (&admin, "'an_index', 'j'", "42809"),
        (&admin, "'a_type', 'j'", "42809"),
        (&admin, "'outside', 'j'", "42809"),
        (&admin, "'mine', 'j'", "42809"),
        (&admin, "'pg_class', 'j'", "42809"),
        (&admin, "'pg_catalog.pg_authid', 'j'", "42809"),
        (&admin, "'information_schema.sql_features', 'j'", "42809"),
        (&admin, "'lock_ext.lease', 'j'", "42809"),
        (&admin, "'lock_ext.observed_token', 'j'", "42809"),
        (&admin, "'lease_status', 'j'", "42809"),
        (&admin, "'nowhere', 'j'", "42P01"),
        (&admin, "4000000000::oid::regclass, 'j'", "42P01"),
    ] {
        let error = who.sql(&format!("SELECT fence_attach({call})")).await.expect_err(call);
        assert_eq!(error.code, code, "{call}: {error:?}");
        assert!(!error.message.ends_with('.'), "{call}: {error:?}");
        assert!(triggers(&admin).await.is_empty(), "{call} left a trigger");
    }
    for (call, code) in [
        ("'foreign_one'", "42501"),
        ("'parent'", "42501"),
        ("'mother'", "42501"),
        ("NULL", "22004"),
        ("4000000000::oid::regclass", "42P01"),
    ] {
        let error = session.sql(&format!("SELECT fence_detach({call})")).await.expect_err(call);
        assert_eq!(error.code, code, "{call}: {error:?}");
    }
}

#[tokio::test]
async fn twice_with_the_same_arguments_changes_nothing() {
    for shape in Shape::ALL {
        let db = Db::fresh().await;
        family(&db, shape).await;
        let a = db.session().await;
        let mut seen = Vec::new();
        for arguments in ARGUMENTS {
            a.sql(&format!("SELECT fence_attach('t', {arguments})")).await.unwrap();
            let once = triggers(&a).await;
            assert!(!once.is_empty());
            a.sql(&format!("SELECT fence_attach('t', {arguments})")).await.unwrap();
            assert_eq!(triggers(&a).await, once, "{shape:?}, {arguments}");
            assert!(!seen.contains(&once), "with others it replaces: {shape:?}, {arguments}");
            seen.push(once);
            assert_eq!(holes(&a).await, Vec::<String>::new(), "{shape:?}, {arguments}");
            let fences: i64 =
                a.one("SELECT count(*) FROM fence_status WHERE hole IS NULL", &[]).await.unwrap();
            assert_eq!(fences, 1, "a family has one fence: {shape:?}, {arguments}");
        }
    }
}

#[tokio::test]
async fn the_status_says_what_was_attached() {
    for shape in Shape::ALL {
        let db = Db::fresh().await;
        family(&db, shape).await;
        let a = db.session().await;
        for (arguments, lease, token, key, by) in [
            ("'j'", Some("j"), None, None, "transaction"),
            ("'j', 'token'", Some("j"), Some("token"), None, "transaction or column"),
            ("'j', NULL, 'k'", Some("j"), None, Some("k"), "transaction"),
            ("NULL, NULL, 'k'", None, None, Some("k"), "transaction"),
            ("'', 'token', 'k'", None, Some("token"), Some("k"), "transaction or column"),
        ] {
            a.sql(&format!("SELECT fence_attach('t', {arguments})")).await.unwrap();
            let rows = a
                .rows(
                    "SELECT table_name::text, lease, token_column, lease_column, carried_by FROM fence_status WHERE hole IS NULL",
                    &[],
                )
                .await
                .unwrap();
            assert_eq!(rows.len(), 1);
            let row = &rows[0];
            assert_eq!(row.get::<_, &str>(0), "t");
            let columns: [Option<&str>; 3] = [row.get(1), row.get(2), row.get(3)];
            assert_eq!(columns, [lease, token, key], "{shape:?}, {arguments}");
            assert_eq!(row.get::<_, &str>(4), by, "{shape:?}, {arguments}");
        }
    }
}

/// After each kind of damage the second call makes it whole, and leaves alone what was.
#[tokio::test]
async fn attaching_again_repairs() {
    for shape in Shape::ALL {
        let db = Db::fresh().await;
        family(&db, shape).await;
        let a = db.session().await;
        a.sql("SELECT fence_attach('t', 'j', 'token')").await.unwrap();
        let whole = triggers(&a).await;
        let names: Vec<(String, String, bool)> = a
            .rows(
                "SELECT tgrelid::regclass::text, tgname::text, tgparentid <> 0 FROM pg_trigger WHERE tgfoid = 'fence_check'::regproc",
                &[],
            )
            .await
            .unwrap()
            .iter()
            .map(|row| (row.get(0), row.get(1), row.get(2)))
            .collect();
        for (table, name, is_copy) in &names {
            for damage in ["DISABLE TRIGGER", "ENABLE REPLICA TRIGGER", "DROP TRIGGER"] {
                let case = format!("{damage} {name} of {table}, {shape:?}");
                if damage == "DROP TRIGGER" {
                    if *is_copy {
                        // PostgreSQL does not let go of those.
                        a.sql(&format!("DROP TRIGGER {name} ON {table}")).await.refused("2BP01");
                        continue;
                    }
                    a.sql(&format!("DROP TRIGGER {name} ON {table}")).await.unwrap();
                } else {
                    a.sql(&format!("ALTER TABLE {table} {damage} {name}")).await.unwrap();
                }
                assert_ne!(holes(&a).await, Vec::<String>::new(), "{case} is not seen");
                a.sql("SELECT fence_attach('t', 'j', 'token')").await.unwrap();
                assert_eq!(holes(&a).await, Vec::<String>::new(), "{case}");
                let again = triggers(&a).await;
                assert_eq!(again.len(), whole.len(), "{case}");
                // What was not damaged is what it was.
                let kept = again.iter().filter(|trigger| whole.contains(trigger)).count();
                assert!(damage == "DROP TRIGGER" || kept + names.len() >= whole.len(), "{case}");
                a.sql("INSERT INTO t VALUES (1, 1)").await.refused(NO_TOKEN);
            }
        }
    }
}

/// Nothing is left of a fence, whoever made its triggers.
#[tokio::test]
async fn detaching_leaves_nothing() {
    for shape in Shape::ALL {
        let db = Db::fresh().await;
        family(&db, shape).await;
        let a = db.session().await;
        let left = "SELECT (SELECT count(*) FROM pg_trigger WHERE tgrelid::regclass::text ~ '^t(_|$)')
                         + (SELECT count(*) FROM pg_depend WHERE refobjid = 'fence_check'::regproc AND deptype IN ('n', 'a'))
                         + (SELECT count(*) FROM fence_status)";
        let before: i64 = a.one(left, &[]).await.unwrap();
        for arguments in ARGUMENTS {
            a.sql(&format!("SELECT fence_attach('t', {arguments})")).await.unwrap();
            assert!(a.one::<i64>(left, &[]).await.unwrap() > before);
            a.sql("SELECT fence_detach('t')").await.unwrap();
            assert_eq!(a.one::<i64>(left, &[]).await, Ok(before), "{shape:?}, {arguments}");
            a.sql("INSERT INTO t VALUES (1, 1); UPDATE t SET v = 2; TRUNCATE t").await.unwrap();
            a.sql("SELECT fence_detach('t')").await.expect("there is nothing to take off");
        }
        // Made by hand, beside ours and under other names.
        a.sql(
            "SELECT fence_attach('t', 'j');
             CREATE TRIGGER \"By Hand\" BEFORE TRUNCATE ON t FOR EACH STATEMENT EXECUTE FUNCTION fence_check('k')",
        )
        .await
        .unwrap();
        if shape != Shape::Plain {
            a.sql("CREATE TRIGGER b BEFORE INSERT ON t_low FOR EACH ROW EXECUTE FUNCTION fence_check('k')").await.unwrap();
        }
        a.sql("SELECT fence_detach('t')").await.unwrap();
        assert_eq!(a.one::<i64>(left, &[]).await, Ok(before), "{shape:?}");
    }
}

/// The tables go as they would without a fence.
#[tokio::test]
async fn a_fenced_table_can_be_dropped() {
    for shape in Shape::ALL {
        let db = Db::fresh().await;
        family(&db, shape).await;
        let a = db.session().await;
        a.sql("SELECT fence_attach('t', 'j', 'token'); DROP TABLE t CASCADE").await.unwrap();
        assert!(triggers(&a).await.is_empty());
        assert_eq!(a.one::<i64>("SELECT count(*) FROM fence_status", &[]).await, Ok(0));
        a.sql("DROP EXTENSION lock_ext").await.expect("nothing depends on it");
    }
}

/// Names are names, whatever is in them.
#[tokio::test]
async fn odd_names_are_names() {
    let db = Db::fresh().await;
    let a = db.session().await;
    let long = "ä".repeat(31) + "x";
    assert_eq!(long.len(), 63);
    for schema in ["My \"Schema\"", "naïve ☃", "s.t"] {
        a.sql(&format!("CREATE SCHEMA {}", quoted(schema))).await.unwrap();
        for name in ["Mixed Case", "a\"b'c$$d", "drop table x;--", "sélect ☃", "\\n", "%s", &long]
        {
            for lease in
                ["it's \"mine\"", "back\\slash", "new\nline", "☃", "$1", "{braces}", "\\000"]
            {
                let table = format!("{}.{}", quoted(schema), quoted(name));
                let part = format!("{}.{}", quoted(schema), quoted("its partition"));
                a.sql(&format!(
                    "CREATE TABLE {table} (id int, {} bigint, \"K\" text) PARTITION BY RANGE (id);
                     CREATE TABLE {part} PARTITION OF {table} FOR VALUES FROM (0) TO (9)",
                    quoted(name)
                ))
                .await
                .unwrap();
                let attach = "SELECT fence_attach($1::text::regclass, $2, $3)";
                a.exec(attach, &[&table, &lease, &name]).await.unwrap();
                let once = triggers(&a).await;
                a.exec(attach, &[&table, &lease, &name]).await.unwrap();
                assert_eq!(triggers(&a).await, once, "{table}, {lease}");
                let shown = a
                    .rows(
                        "SELECT lease, token_column, table_name = $1::text::regclass FROM fence_status WHERE hole IS NULL",
                        &[&table],
                    )
                    .await
                    .unwrap();
                assert_eq!(shown.len(), 1, "{table}");
                assert_eq!(
                    (shown[0].get(0), shown[0].get(1), shown[0].get(2)),
                    (lease, name, true)
                );
                let t = a.acq(lease, "A", "60 s").await.granted();
                let error =
                    a.sql(&format!("INSERT INTO {part} VALUES (1)")).await.refused(NO_TOKEN);
                error.at_table(schema, "its partition").detail_names(&[&lease]);
                a.sql(&format!("INSERT INTO {table} VALUES (1, {t})")).await.unwrap();
                a.exec(
                    "SELECT fence_attach($1::text::regclass, $2, lease_column => 'K')",
                    &[&table, &lease],
                )
                .await
                .unwrap();
                a.exec("SELECT fence_detach($1::text::regclass)", &[&table]).await.unwrap();
                assert!(triggers(&a).await.is_empty());
                a.rel(lease, t).await.unwrap();
                a.sql(&format!("DROP TABLE {table}")).await.unwrap();
            }
        }
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
