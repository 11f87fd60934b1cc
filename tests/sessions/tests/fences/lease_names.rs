//! What a lease column may hold, and the names that come of it.

use lock_ext_sessions::{Asked, Db, NO_TOKEN, Refused, STALE};

#[tokio::test]
async fn a_row_has_to_name_its_lease() {
    let db = Db::fresh().await;
    let a = db.session().await;
    a.sql(
        "CREATE TABLE bare (lease text, v int); CREATE TABLE prefixed (lease text, v int);
         INSERT INTO bare VALUES (NULL, 0), ('', 0); INSERT INTO prefixed VALUES (NULL, 0), ('', 0);
         SELECT fence_attach('bare', lease_column => 'lease'), fence_attach('prefixed', 'p:', NULL, 'lease')",
    )
    .await
    .unwrap();
    let empty = a.acq("p:", "A", "60 s").await.granted();
    let x = a.acq("x", "A", "60 s").await.granted();
    for (sql, code) in [
        ("INSERT INTO bare VALUES (NULL, 1)", "22004"),
        ("INSERT INTO bare VALUES ('', 1)", "22023"),
        ("INSERT INTO bare VALUES (repeat('x', 1025), 1)", "22001"),
        ("UPDATE bare SET v = 1 WHERE lease IS NULL", "22004"),
        ("UPDATE bare SET v = 1 WHERE lease = ''", "22023"),
        ("UPDATE bare SET lease = 'x' WHERE lease IS NULL", "22004"),
        ("DELETE FROM bare WHERE lease IS NULL", "22004"),
        ("DELETE FROM bare WHERE lease = ''", "22023"),
        ("INSERT INTO prefixed VALUES (NULL, 1)", "22004"),
        ("INSERT INTO prefixed VALUES (repeat('x', 1023), 1)", "22001"),
        ("INSERT INTO prefixed VALUES ('nobody has it', 1)", NO_TOKEN),
        ("UPDATE prefixed SET v = 1 WHERE lease IS NULL", "22004"),
    ] {
        a.sql("BEGIN").await.unwrap();
        a.fence("p:", empty).await.unwrap();
        a.fence("x", x).await.unwrap();
        let error = a.sql(sql).await.expect_err(sql);
        assert_eq!(error.code, code, "{sql}: {error:?}");
        a.rollback().await;
    }
    // What comes before the value is a name of its own, and 1,024 bytes are none too many.
    a.sql("BEGIN").await.unwrap();
    a.fence("p:", empty).await.unwrap();
    a.sql("UPDATE prefixed SET v = 1 WHERE lease = ''; COMMIT").await.unwrap();
    let long = "x".repeat(1022);
    let t = a.acq(&format!("p:{long}"), "A", "60 s").await.granted();
    a.sql("BEGIN").await.unwrap();
    a.fence(&format!("p:{long}"), t).await.unwrap();
    a.exec("INSERT INTO prefixed VALUES ($1, 1)", &[&long]).await.unwrap();
    a.commit().await.unwrap();
}

/// What has one text form names leases.
#[tokio::test]
async fn the_lease_column_is_of_many_types() {
    let db = Db::fresh().await;
    let a = db.session().await;
    a.sql("CREATE TYPE mood AS ENUM ('so so', 'fine'); CREATE DOMAIN code AS varchar(8) CHECK (value <> 'no')")
        .await
        .unwrap();
    for (kind, value, name) in [
        ("text", "'it''s \"é\"'", "it's \"é\""),
        ("varchar(9)", "'a  '", "a  "),
        ("char(3)", "'a'", "a  "),
        ("name", "'n'", "n"),
        ("code", "'c'", "c"),
        ("int", "42", "42"),
        ("bigint", "-9223372036854775808", "-9223372036854775808"),
        ("smallint", "7", "7"),
        ("boolean", "true", "t"),
        ("mood", "'so so'", "so so"),
        ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ] {
        a.sql(&format!(
            "CREATE TABLE t (id int, \"Lease Column\" {kind}); SELECT fence_attach('t', 'k/', lease_column => 'Lease Column')"
        ))
        .await
        .unwrap_or_else(|error| panic!("{error}: {kind}"));
        let lease = format!("k/{name}");
        let t = a.acq(&lease, "A", "60 s").await.granted();
        let insert = format!("INSERT INTO t VALUES (1, {value})");
        let error = a.sql(&insert).await.refused(NO_TOKEN);
        error.detail_names(&[&lease]);
        a.sql("BEGIN").await.unwrap();
        a.fence(&lease, t).await.unwrap();
        for sql in [insert.as_str(), "UPDATE t SET id = 2", "DELETE FROM t"] {
            a.sql(sql).await.unwrap_or_else(|error| panic!("{error}: {sql}, {kind}"));
        }
        a.sql("COMMIT; DROP TABLE t").await.unwrap();
        assert_eq!(a.rel(&lease, t).await, Ok(true));
    }
}

/// A row is of the same lease for every session, whatever its settings: they say how values are shown to people.
#[tokio::test]
async fn a_rows_lease_does_not_depend_on_settings() {
    let db = Db::fresh().await;
    let a = db.session().await;
    a.sql("CREATE DOMAIN day AS date").await.unwrap();
    for kind in [
        "date",
        "day",
        "timestamp",
        "timestamptz",
        "interval",
        "bytea",
        "float8",
        "real",
        "money",
        "json",
        "text[]",
    ] {
        let made = format!("CREATE TABLE t (id int, k {kind})");
        a.sql(&made).await.unwrap();
        a.sql("SELECT fence_attach('t', lease_column => 'k')").await.refused("42804");
        // Nor by a trigger of one's own.
        a.sql("CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fence_check('', '', 'k')")
            .await
            .unwrap();
        a.sql("INSERT INTO t (id) VALUES (1)").await.refused("42804");
        a.sql("DROP TABLE t").await.unwrap();
    }
    a.sql("CREATE TABLE t (id int, k text); SELECT fence_attach('t', lease_column => 'k')")
        .await
        .unwrap();
    a.sql("ALTER TABLE t ALTER COLUMN k TYPE date USING k::date").await.unwrap();
    a.sql("INSERT INTO t VALUES (1, now())").await.refused("42804");
}

/// A thousand rows of a thousand leases in one statement.
#[tokio::test]
async fn a_statement_may_write_rows_of_many_leases() {
    let db = Db::fresh().await;
    let [a, admin] = db.sessions().await;
    a.sql("CREATE TABLE t (id int, token bigint); SELECT fence_attach('t', 'n', 'token', 'id')")
        .await
        .unwrap();
    a.sql("CREATE TABLE held AS SELECT i, lease_acquire('n' || i, 'A', '1 hour') AS token FROM generate_series(1, 1000) i")
        .await
        .unwrap();
    assert_eq!(a.exec("INSERT INTO t SELECT * FROM held", &[]).await, Ok(1000));
    a.sql("BEGIN; SELECT lease_fence('n' || i, token) FROM held").await.unwrap();
    assert_eq!(a.exec("UPDATE t SET id = id", &[]).await, Ok(1000));
    admin.force("n500").await.unwrap();
    a.commit().await.refused(STALE).detail_names(&[&"\"n500\""]);
    a.exec("INSERT INTO t SELECT * FROM held", &[]).await.refused(STALE);
    assert_eq!(a.exec("INSERT INTO t SELECT * FROM held WHERE i <> 500", &[]).await, Ok(999));
}
