//! Partitions and children that come and go after the fence was attached, and those that have one of their own.

use lock_ext_sessions::{Asked, Db, NO_TOKEN, Refused, STALE, Session};

use super::attach::{family, holes, triggers};
use super::tables::Shape;

/// Every write to the table is refused without a token. Where it is not, it is said which is open.
async fn is_closed(session: &Session, table: &str, insert: &str) {
    for sql in [
        format!("INSERT INTO {table} VALUES {insert}"),
        format!("UPDATE {table} SET v = v + 1"),
        format!("DELETE FROM {table}"),
        format!("TRUNCATE {table}"),
    ] {
        session.sql("BEGIN").await.unwrap();
        let refusal = session.sql(&sql).await.expect_err(&sql);
        assert_eq!(refusal.code, NO_TOKEN, "{sql}: {refusal:?}");
        session.rollback().await;
    }
}

/// It has its row trigger from the beginning; only TRUNCATE by its own name is open until the fence is attached again, and is shown.
#[tokio::test]
async fn a_later_partition_is_fenced_but_for_its_truncate() {
    for (name, make) in [
        ("t_new", "CREATE TABLE t_new PARTITION OF t FOR VALUES FROM (200) TO (300)"),
        (
            "t_new",
            "CREATE TABLE t_new (id int, v int, token bigint, k text); INSERT INTO t_new VALUES (200, 1);
             ALTER TABLE t ATTACH PARTITION t_new FOR VALUES FROM (200) TO (300)",
        ),
        ("t_new", "CREATE TABLE t_new PARTITION OF t DEFAULT"),
        ("t_new", "CREATE TABLE t_new PARTITION OF t_high FOR VALUES FROM (150) TO (200)"),
        (
            "t_new",
            "CREATE TABLE t_mid PARTITION OF t FOR VALUES FROM (200) TO (300) PARTITION BY LIST (v);
             CREATE TABLE t_new PARTITION OF t_mid FOR VALUES IN (1, 2)",
        ),
    ] {
        for arguments in ["'j'", "'j', 'token'", "'j', NULL, 'k'"] {
            let case = format!("{make}, {arguments}");
            let db = Db::fresh().await;
            family(&db, Shape::Partitioned).await;
            let a = db.session().await;
            a.sql(&format!("SELECT fence_attach('t', {arguments})")).await.unwrap();
            a.sql(make).await.unwrap();
            let row = if make.contains("t_high") { "(150, 1, NULL, 'x')" } else { "(200, 1, NULL, 'x')" };
            for table in ["t", name] {
                a.sql(&format!("INSERT INTO {table} VALUES {row}")).await.refused(NO_TOKEN);
            }
            let seen = holes(&a).await;
            assert!(
                seen.iter().any(|hole| hole.contains(name) && hole.contains("TRUNCATE") && !hole.contains("INSERT")),
                "{case}: {seen:?}"
            );
            a.sql(&format!("BEGIN; TRUNCATE {name}; ROLLBACK")).await.expect("that is the hole");

            let before = triggers(&a).await;
            a.sql(&format!("SELECT fence_attach('t', {arguments})")).await.unwrap();
            assert_eq!(holes(&a).await, Vec::<String>::new(), "{case}");
            let after = triggers(&a).await;
            assert!(before.iter().all(|trigger| after.contains(trigger)), "{case}: what was there is left alone");
            a.sql(&format!("TRUNCATE {name}")).await.refused(NO_TOKEN);
        }
    }
}

/// A child gets nothing from PostgreSQL, so all of it is open and shown.
#[tokio::test]
async fn a_later_child_is_a_hole_until_the_fence_is_attached_again() {
    for make in [
        "CREATE TABLE t_new () INHERITS (t)",
        "CREATE TABLE t_new () INHERITS (t_high)",
        "CREATE TABLE t_new (id int, v int, token bigint, k text); ALTER TABLE t_new INHERIT t",
        "CREATE TABLE t_new (id int, v int, token bigint, k text); ALTER TABLE t_new INHERIT t_leaf",
    ] {
        for shape in [Shape::Plain, Shape::Inheritance] {
            if shape == Shape::Plain && (make.contains("t_high") || make.contains("t_leaf")) {
                continue;
            }
            for arguments in ["'j'", "'j', 'token'"] {
                let case = format!("{make}, {shape:?}, {arguments}");
                let db = Db::fresh().await;
                family(&db, shape).await;
                let a = db.session().await;
                a.sql(&format!("SELECT fence_attach('t', {arguments})")).await.unwrap();
                a.sql(make).await.unwrap();
                let seen = holes(&a).await;
                for event in ["INSERT", "UPDATE", "DELETE", "TRUNCATE"] {
                    let is_seen =
                        seen.iter().any(|hole| hole.contains("t_new") && hole.contains(event));
                    assert!(is_seen, "{case}: {event}: {seen:?}");
                }
                a.sql("INSERT INTO t_new VALUES (1, 1)").await.expect("that is the hole");
                a.sql(&format!("SELECT fence_attach('t', {arguments})")).await.unwrap();
                assert_eq!(holes(&a).await, Vec::<String>::new(), "{case}");
                is_closed(&a, "t_new", "(1, 1)").await;
                is_closed(&a, "t", "(1, 1)").await;
                // A row of the child, through the parent, under a token that is not current any more.
                let t1 = a.acq("j", "A", "60 s").await.granted();
                a.sql("BEGIN").await.unwrap();
                a.fence("j", t1).await.unwrap();
                db.watch.force("j").await.unwrap();
                a.sql("UPDATE t SET v = 2").await.refused(STALE);
                a.rollback().await;
            }
        }
    }
}

/// It leaves as a table of its own. What is on it then is shown, and can be taken off or made whole.
#[tokio::test]
async fn a_detached_partition_is_a_table_of_its_own() {
    for arguments in ["'j'", "'j', 'token'"] {
        let db = Db::fresh().await;
        family(&db, Shape::Partitioned).await;
        let a = db.session().await;
        a.sql(&format!("SELECT fence_attach('t', {arguments})")).await.unwrap();
        a.sql("ALTER TABLE t DETACH PARTITION t_low; ALTER TABLE t_high DETACH PARTITION t_leaf")
            .await
            .unwrap();
        let of_t = "SELECT count(*) FROM fence_status WHERE table_name = 't'::regclass AND hole IS NOT NULL
                    AND hole NOT LIKE '%alter the table%'";
        assert_eq!(
            a.one::<i64>(of_t, &[]).await,
            Ok(0),
            "what is left has no hole: {:?}",
            holes(&a).await
        );
        for table in ["t_low", "t_leaf"] {
            // Whatever is open is either shown or is no fence at all.
            let seen = holes(&a).await;
            let fenced: i64 = a
                .one(
                    "SELECT count(*) FROM fence_status WHERE table_name = $1::text::regclass",
                    &[&table],
                )
                .await
                .unwrap();
            if fenced > 0 {
                for event in ["INSERT", "UPDATE", "DELETE"] {
                    assert!(
                        seen.iter().any(|hole| hole.contains(table) && hole.contains(event)),
                        "{table}: {seen:?}"
                    );
                }
            }
            a.sql(&format!("INSERT INTO {table} VALUES (101, 1)"))
                .await
                .expect("it has no fence for that");
            a.exec("SELECT fence_attach($1::text::regclass, 'k')", &[&table]).await.unwrap();
            is_closed(&a, table, "(1, 1)").await;
            let seen = holes(&a).await;
            assert!(!seen.iter().any(|hole| hole.contains(table)), "{seen:?}");
            a.exec("SELECT fence_detach($1::text::regclass)", &[&table]).await.unwrap();
            a.sql(&format!("TRUNCATE {table}")).await.expect("nothing is left on it");
        }
        a.sql(
            "INSERT INTO t_low VALUES (1, 1); ALTER TABLE t ATTACH PARTITION t_low FOR VALUES FROM (0) TO (100)",
        )
        .await
        .unwrap();
        a.sql(&format!("SELECT fence_attach('t', {arguments})")).await.unwrap();
        is_closed(&a, "t_low", "(1, 1)").await;
    }
}

#[tokio::test]
async fn a_child_that_leaves_keeps_its_fence() {
    let db = Db::fresh().await;
    family(&db, Shape::Inheritance).await;
    let a = db.session().await;
    a.sql("SELECT fence_attach('t', 'j'); ALTER TABLE t_low NO INHERIT t").await.unwrap();
    is_closed(&a, "t_low", "(1, 1)").await;
    is_closed(&a, "t", "(1, 1)").await;
    assert_eq!(holes(&a).await, Vec::<String>::new());
    let fences: Vec<String> = a
        .list("SELECT table_name::text FROM fence_status WHERE hole IS NULL ORDER BY 1", &[])
        .await
        .unwrap();
    assert_eq!(fences, ["t", "t_low"]);
    a.sql("SELECT fence_detach('t')").await.unwrap();
    is_closed(&a, "t_low", "(1, 1)").await;
}

/// Fenced alone, it is closed from all sides; what is beside it is not.
#[tokio::test]
async fn a_partition_or_child_may_be_fenced_alone() {
    for shape in [Shape::Partitioned, Shape::Inheritance] {
        for member in ["t_low", "t_leaf"] {
            for arguments in ["'j'", "'j', 'token'"] {
                let case = format!("{member}, {arguments}, {shape:?}");
                let db = Db::fresh().await;
                family(&db, shape).await;
                let a = db.session().await;
                a.sql("INSERT INTO t_low VALUES (1, 0); INSERT INTO t_leaf VALUES (101, 0)")
                    .await
                    .unwrap();
                a.sql(&format!("SELECT fence_attach('{member}', {arguments})")).await.unwrap();
                assert_eq!(holes(&a).await, Vec::<String>::new(), "{case}");
                let (id, other) = if member == "t_low" { (1, 101) } else { (101, 1) };
                is_closed(&a, member, &format!("({id}, 1)")).await;
                let mut through_t = vec![
                    format!("UPDATE t SET v = 9 WHERE id = {id}"),
                    format!("DELETE FROM t WHERE id = {id}"),
                    "TRUNCATE t".to_owned(),
                ];
                if shape == Shape::Partitioned {
                    through_t.push(format!("INSERT INTO t VALUES ({id}, 9)"));
                    // Into it, and out of it.
                    through_t.push(format!("UPDATE t SET id = {id} WHERE id = {other}"));
                    through_t.push(format!("UPDATE t SET id = {other} WHERE id = {id}"));
                }
                for sql in through_t {
                    let error = a.sql(&sql).await.expect_err(&sql);
                    assert_eq!(error.code, NO_TOKEN, "{case}: {sql}");
                }
                a.sql(&format!("UPDATE t SET v = 5 WHERE id = {other}")).await.expect("not fenced");
                let t = a.acq("j", "A", "60 s").await.granted();
                a.sql("BEGIN").await.unwrap();
                a.fence("j", t).await.unwrap();
                a.sql(&format!("UPDATE t SET v = 6 WHERE id = {id}; COMMIT")).await.unwrap();
                assert_eq!(db.v(member, id).await, 6);

                // The whole of the family takes its place.
                a.sql("SELECT fence_attach('t', 'k')").await.unwrap();
                is_closed(&a, member, &format!("({id}, 1)")).await;
                is_closed(&a, "t", &format!("({other}, 1)")).await;
                assert_eq!(holes(&a).await, Vec::<String>::new(), "{case}");
                let leases: Vec<String> = a
                    .list("SELECT DISTINCT lease FROM fence_status ORDER BY 1", &[])
                    .await
                    .unwrap();
                assert_eq!(leases, ["k"], "{case}");
            }
        }
    }
}

/// A partition's fence that comes from above is not for itself to change.
#[tokio::test]
async fn a_partition_under_a_fence_is_left_to_its_parent() {
    let db = Db::fresh().await;
    family(&db, Shape::Partitioned).await;
    let a = db.session().await;
    a.sql("SELECT fence_attach('t', 'j')").await.unwrap();
    let before = triggers(&a).await;
    for (member, parent) in [("t_low", "t"), ("t_high", "t"), ("t_leaf", "t")] {
        for call in [
            format!("fence_attach('{member}', 'k')"),
            format!("fence_attach('{member}', 'j')"),
            format!("fence_detach('{member}')"),
        ] {
            let error = a.sql(&format!("SELECT {call}")).await.refused("55000");
            let said = format!("{} {:?} {:?}", error.message, error.detail, error.hint);
            assert!(said.contains(&format!("\"{parent}\"")), "{call}: {said}");
            error.has_hint();
        }
    }
    assert_eq!(triggers(&a).await, before);
}

/// A child of two fenced parents can have but one of their fences by its name; that the other lacks it is shown.
#[tokio::test]
async fn a_child_of_two_fenced_parents_is_no_silent_hole() {
    let db = Db::fresh().await;
    let a = db.session().await;
    a.sql(
        "CREATE TABLE one (id int, v int); CREATE TABLE two (id int, v int);
         CREATE TABLE of_both () INHERITS (one, two);
         SELECT fence_attach('one', 'j'), fence_attach('two', 'k')",
    )
    .await
    .unwrap();
    let k = a.acq("k", "A", "60 s").await.granted();
    a.sql("BEGIN").await.unwrap();
    a.fence("k", k).await.unwrap();
    let through = a.sql("INSERT INTO of_both VALUES (1, 1)").await;
    a.rollback().await;
    let seen = holes(&a).await;
    let is_seen = seen.iter().any(|hole| hole.starts_with("one") && hole.contains("of_both"));
    assert!(
        through.is_err() || is_seen,
        "a row of table one was written without a token of its lease: {seen:?}"
    );
}

/// A fenced table that becomes a child or a partition later can be reached from above: the hole is shown until it is attached again.
#[tokio::test]
async fn a_fenced_table_that_gets_a_parent_is_no_silent_hole() {
    for (make, write) in [
        (
            "CREATE TABLE above (id int, v int); ALTER TABLE t INHERIT above",
            "UPDATE above SET v = 9",
        ),
        (
            "CREATE TABLE above (id int, v int, token bigint, k text) PARTITION BY RANGE (id);
             ALTER TABLE above ATTACH PARTITION t FOR VALUES FROM (0) TO (9)",
            "INSERT INTO above VALUES (1, 1)",
        ),
    ] {
        for arguments in ["'j'", "'j', 'token'"] {
            let db = Db::fresh().await;
            family(&db, Shape::Plain).await;
            let a = db.session().await;
            a.sql("INSERT INTO t VALUES (1, 0)").await.unwrap();
            a.sql(&format!("SELECT fence_attach('t', {arguments})")).await.unwrap();
            a.sql(make).await.unwrap();
            let through = a.sql(&format!("BEGIN; {write}")).await;
            a.rollback().await;
            let seen = holes(&a).await;
            assert_eq!(
                through.is_ok(),
                !seen.is_empty(),
                "{make}, {arguments}: {through:?}, {seen:?}"
            );
            a.sql(&format!("SELECT fence_attach('t', {arguments})")).await.unwrap();
            assert_eq!(holes(&a).await, Vec::<String>::new());
            a.sql(write).await.refused(NO_TOKEN);
        }
    }
}

/// A child is a table of its own, and its owner may change its fence; the parent's shows it then.
#[tokio::test]
async fn what_is_changed_on_a_child_alone_is_seen_at_its_parent() {
    for change in [
        "fence_attach('t_leaf', 'k')",
        "fence_attach('t_high', 'j', 'token')",
        "fence_detach('t_leaf')",
        "fence_detach('t_high')",
    ] {
        let db = Db::fresh().await;
        family(&db, Shape::Inheritance).await;
        let a = db.session().await;
        a.sql("SELECT fence_attach('t', 'j')").await.unwrap();
        if let Err(error) = a.sql(&format!("SELECT {change}")).await {
            assert_eq!(error.code, "55000", "{change}");
            assert_eq!(holes(&a).await, Vec::<String>::new(), "{change}");
            continue;
        }
        let seen = holes(&a).await;
        let of_t = seen.iter().any(|hole| {
            hole.starts_with("t: ") && (hole.contains("t_leaf") || hole.contains("t_high"))
        });
        assert!(of_t, "{change}: {seen:?}");
        a.sql("SELECT fence_attach('t', 'j')").await.unwrap();
        assert_eq!(holes(&a).await, Vec::<String>::new(), "{change}");
        is_closed(&a, "t_leaf", "(1, 1)").await;
    }
}

/// A table with a fence becomes a partition of a table with one. Refused by PostgreSQL or fenced from above, but not open.
#[tokio::test]
async fn a_fenced_table_becomes_a_partition_of_a_fenced_one() {
    for arguments in ["'k'", "'k', 'token'", "'j'", "'j', 'token'"] {
        let db = Db::fresh().await;
        family(&db, Shape::Partitioned).await;
        let a = db.session().await;
        a.sql(&format!(
            "SELECT fence_attach('t', 'j');
             CREATE TABLE t_new (id int, v int, token bigint, k text); INSERT INTO t_new VALUES (500, 0);
             SELECT fence_attach('t_new', {arguments})"
        ))
        .await
        .unwrap();
        let attach = "ALTER TABLE t ATTACH PARTITION t_new FOR VALUES FROM (500) TO (600)";
        if let Err(error) = a.sql(attach).await {
            assert_eq!(
                error.code, "42710",
                "{arguments}: the triggers have the same name: {error:?}"
            );
            a.sql(&format!("SELECT fence_detach('t_new'); {attach}")).await.unwrap();
        }
        a.sql("UPDATE t_new SET v = 9").await.refused(NO_TOKEN);
        a.sql("SELECT fence_attach('t', 'j')").await.unwrap();
        assert_eq!(holes(&a).await, Vec::<String>::new(), "{arguments}");
        is_closed(&a, "t_new", "(500, 1)").await;
        let t = a.acq("j", "A", "60 s").await.granted();
        a.sql("BEGIN").await.unwrap();
        a.fence("j", t).await.unwrap();
        a.sql("UPDATE t SET v = 5; TRUNCATE t_new; COMMIT").await.expect("one lease is enough");
    }
}

/// A column that a fence names may be renamed, dropped or changed: then nothing is written, and attaching again helps.
#[tokio::test]
async fn a_changed_column_closes_the_table() {
    for shape in Shape::ALL {
        for (arguments, change, again) in [
            ("'j', 'token'", "RENAME COLUMN token TO renamed", Some("'j', 'renamed'")),
            ("'j', 'token'", "DROP COLUMN token", Some("'j'")),
            ("'j', 'token'", "ALTER COLUMN token TYPE int", None),
            ("'', NULL, 'k'", "RENAME COLUMN k TO renamed", Some("'', NULL, 'renamed'")),
            ("'', NULL, 'k'", "DROP COLUMN k", Some("'j'")),
        ] {
            let case = format!("{change}, {shape:?}");
            let db = Db::fresh().await;
            family(&db, shape).await;
            let a = db.session().await;
            a.sql(&format!(
                "INSERT INTO t VALUES (1, 0, NULL, 'x'); SELECT fence_attach('t', {arguments})"
            ))
            .await
            .unwrap();
            let [j, x] =
                [a.acq("j", "A", "60 s").await.granted(), a.acq("x", "A", "60 s").await.granted()];
            a.sql(&format!("ALTER TABLE t {change}")).await.unwrap();
            for sql in ["UPDATE t SET v = 9", "INSERT INTO t (id) VALUES (2)", "DELETE FROM t"] {
                for carried in [true, false] {
                    a.sql("BEGIN").await.unwrap();
                    if carried {
                        a.fence("j", j).await.unwrap();
                        a.fence("x", x).await.unwrap();
                    }
                    let error = a.sql(sql).await.expect_err(&case);
                    let codes = ["42703", "42804", NO_TOKEN];
                    assert!(codes.contains(&error.code.as_str()), "{case}: {sql}: {error:?}");
                    a.rollback().await;
                }
            }
            if let Some(again) = again {
                a.sql(&format!("SELECT fence_attach('t', {again})")).await.unwrap();
                a.sql("BEGIN").await.unwrap();
                a.fence("j", j).await.unwrap();
                a.fence("x", x).await.unwrap();
                a.sql("UPDATE t SET v = 5; COMMIT")
                    .await
                    .unwrap_or_else(|error| panic!("{case}: {error}"));
            }
        }
    }
}

/// Who wants the fence in replica sessions too keeps it.
#[tokio::test]
async fn attaching_again_leaves_always_as_it_is() {
    for shape in Shape::ALL {
        let db = Db::fresh().await;
        family(&db, shape).await;
        let a = db.session().await;
        a.sql("SELECT fence_attach('t', 'j', 'token'); ALTER TABLE t ENABLE ALWAYS TRIGGER zzz_lock_ext_fence;
               ALTER TABLE t ENABLE ALWAYS TRIGGER zzz_lock_ext_fence_row")
            .await
            .unwrap();
        let always = triggers(&a).await;
        a.sql("SELECT fence_attach('t', 'j', 'token')").await.unwrap();
        assert_eq!(triggers(&a).await, always, "{shape:?}");
        a.sql("SET session_replication_role = replica").await.unwrap();
        a.sql("INSERT INTO t VALUES (1, 1)").await.refused(NO_TOKEN);
    }
}
