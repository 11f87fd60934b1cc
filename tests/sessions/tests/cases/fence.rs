//! The fence on a table, as clients and other statements meet it.

use lock_ext_sessions::{Asked, Db, NO_TOKEN, Refused, STALE, Session, Way};

/// No setting carries a token, so nothing can be left over but the transaction's own fence.
#[tokio::test]
async fn h19_a_borrowed_session_inherits_no_token() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [pooled, b] = db.sessions().await;
    let t1 = pooled.acq("j", "A", "60 s").await.granted();

    for way in Way::ALL {
        assert_eq!(pooled.fw(way, "j", t1, 1, 1).await, Ok(1));
        writes_without_a_token(&pooled, "after a commit").await;
    }
    pooled.fence("j", t1).await.expect("alone in its transaction");
    writes_without_a_token(&pooled, "after lease_fence in autocommit").await;
    pooled.sql("BEGIN; SAVEPOINT s").await.unwrap();
    pooled.fence("j", t1).await.unwrap();
    pooled.sql("ROLLBACK TO s").await.unwrap();
    for table in ["plain", "stamped"] {
        pooled.sql("SAVEPOINT w").await.unwrap();
        let update = format!("UPDATE {table} SET v = 9 WHERE id = 1");
        pooled.exec(&update, &[]).await.refused(NO_TOKEN);
        pooled.sql("ROLLBACK TO w").await.unwrap();
    }
    pooled.rollback().await;
    pooled.sql("BEGIN").await.unwrap();
    pooled.fence("j", t1).await.unwrap();
    pooled.rollback().await;
    writes_without_a_token(&pooled, "after a rollback").await;

    assert_eq!(pooled.rel("j", t1).await, Ok(true));
    b.acq("j", "B", "60 s").await.granted();
    for way in Way::ALL {
        pooled.fw(way, "j", t1, 1, 9).await.refused(STALE);
        writes_without_a_token(&pooled, "after a refusal").await;
    }
    pooled.sql("RESET ALL").await.unwrap();
    writes_without_a_token(&pooled, "after RESET ALL").await;
    pooled.sql("DISCARD ALL").await.unwrap();
    writes_without_a_token(&pooled, "after DISCARD ALL").await;

    // The prefix is the extension's own, and none of its settings is a token.
    let settings: Vec<String> = pooled
        .list("SELECT name FROM pg_settings WHERE name LIKE 'lock\\_ext.%'", &[])
        .await
        .unwrap();
    assert!(settings.iter().all(|name| !name.contains("token")), "{settings:?}");
    pooled.sql("SET lock_ext.token = '1'").await.refused("42602");
}

async fn writes_without_a_token(session: &Session, when: &str) {
    for table in ["plain", "stamped"] {
        for sql in [
            format!("UPDATE {table} SET v = 9 WHERE id = 1"),
            format!("INSERT INTO {table} (id, v) VALUES (100, 9)"),
            format!("DELETE FROM {table} WHERE id = 2"),
            format!("TRUNCATE {table}"),
        ] {
            let refusal = session.exec(&sql, &[]).await.expect_err(when);
            assert_eq!(refusal.code, NO_TOKEN, "{when}: {sql}: {refusal:?}");
        }
    }
}

#[tokio::test]
async fn h29_tokens_are_compared_as_numbers() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let a = db.session().await;
    while a.acq("other", "A", "60 s").await.granted() < 8 {
        assert_eq!(a.force("other").await, Ok(true));
    }
    let t9 = a.acq("j", "A", "60 s").await.granted();
    assert_eq!(a.rel("j", t9).await, Ok(true));
    let t10 = a.acq("j", "A", "60 s").await.granted();
    assert_eq!((t9, t10), (9, 10), "where text and number differ");

    let types =
        ["'{}'", "'{}'::int", "'{}'::bigint", "'{}'::numeric::bigint", "'{}'::text::bigint"];
    for number in types.map(|form| |token: i64| form.replace("{}", &token.to_string())) {
        for (token, accepted) in [(t10, true), (t9, false), (t10, true)] {
            let token = number(token);
            let ways = [
                format!("SELECT fenced_update('plain', {token}, '{{\"id\": 1}}', '{{\"v\": 1}}')"),
                format!(
                    "SELECT fenced_update('stamped', {token}, '{{\"id\": 1}}', '{{\"v\": 1}}')"
                ),
                format!("UPDATE stamped SET v = 1, token = {token} WHERE id = 1"),
                format!("BEGIN; SELECT lease_fence('j', {token}); UPDATE plain SET v = 1; COMMIT"),
            ];
            for sql in ways {
                let answer = a.sql(&sql).await;
                if accepted {
                    answer.unwrap_or_else(|error| panic!("{error}: {sql}"));
                } else {
                    answer.refused(STALE).detail_names(&[&9, &10]);
                    a.rollback().await;
                }
            }
        }
    }
    // Assignment casts numeric to bigint, as for any column.
    a.sql("UPDATE stamped SET v = 1, token = 10::numeric WHERE id = 1").await.unwrap();
    a.sql("UPDATE stamped SET v = 1, token = 9::numeric WHERE id = 1").await.refused(STALE);
}

/// Up to 2^53, which tokens stay below by design: a floor above that, as the case asks for where it is possible, is refused.
#[tokio::test]
async fn h29_large_tokens_are_exact() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let a = db.session().await;
    // The last numbers that a reader of JSON can tell apart.
    let below_2_53 = (1_i64 << 53) - 10;
    assert_eq!(
        a.one::<i64>("SELECT lease_raise_token_floor($1)", &[&below_2_53]).await,
        Ok(below_2_53)
    );
    a.sql("SELECT lease_raise_token_floor(9007199254740993)").await.refused("22023");
    let t1 = a.acq("j", "A", "60 s").await.granted();
    assert!(t1 > below_2_53);
    for way in Way::ALL {
        a.fw(way, "j", t1, 1, 1).await.unwrap();
    }
    assert_eq!(a.force("j").await, Ok(true));
    let t2 = a.acq("j", "A", "60 s").await.granted();
    assert_eq!(t2, t1 + 1);
    for way in Way::ALL {
        a.fw(way, "j", t1, 1, 9).await.refused(STALE).detail_names(&[&t1, &t2]);
        a.fw(way, "j", t2, 1, 2).await.unwrap();
        a.fw(way, "j", t2 + 1, 1, 9).await.refused(STALE);
    }
    assert_eq!(a.is_current("j", t1).await, Ok(false));
    assert_eq!(a.is_current("j", t2).await, Ok(true));
    a.ext("j", t1, "60 s").await.lost();
    a.ext("j", t2, "60 s").await.extended();
    assert_eq!(a.info("j").await.unwrap().token, Some(t2));
    assert_eq!(a.one::<i64>("SELECT token FROM stamped WHERE id = 1", &[]).await, Ok(t2));
}

#[tokio::test]
async fn h30_truncate_is_fenced() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, early, b] = db.sessions().await;
    // Plain tables whose TRUNCATE ... CASCADE reaches the fenced ones.
    a.sql("CREATE TABLE parent (id int PRIMARY KEY); INSERT INTO parent SELECT g FROM generate_series(1, 9) g")
        .await
        .unwrap();
    for table in ["plain", "stamped"] {
        a.sql(&format!("ALTER TABLE {table} ADD FOREIGN KEY (id) REFERENCES parent"))
            .await
            .unwrap();
    }
    let t1 = a.acq("j", "A", "60 s").await.granted();
    early.sql("BEGIN").await.unwrap();
    early.fence("j", t1).await.unwrap();
    assert_eq!(a.force("j").await, Ok(true));
    let t2 = b.acq("j", "B", "60 s").await.granted();
    for way in Way::ALL {
        b.fw(way, "j", t2, 1, 1).await.unwrap();
    }

    for table in ["plain", "stamped"] {
        let truncates = [format!("TRUNCATE {table}"), "TRUNCATE parent CASCADE".to_owned()];
        for truncate in &truncates {
            a.sql(truncate).await.refused(NO_TOKEN);
            a.sql("BEGIN").await.unwrap();
            a.fence("j", t1).await.refused(STALE);
            a.rollback().await;
            early.sql("SAVEPOINT s").await.unwrap();
            early.sql(truncate).await.refused(STALE);
            early.sql("ROLLBACK TO s").await.unwrap();
        }
    }
    early.rollback().await;
    assert_eq!([db.v("plain", 1).await, db.v("stamped", 1).await], [1, 1], "nothing is lost");

    b.sql("BEGIN").await.unwrap();
    b.fence("j", t2).await.unwrap();
    b.sql("TRUNCATE plain").await.expect("the holder may");
    b.sql("TRUNCATE parent CASCADE").await.expect("the holder may");
    b.commit().await.unwrap();
    assert_eq!(b.one::<i64>("SELECT count(*) FROM plain, stamped, parent", &[]).await, Ok(0));
}

#[tokio::test]
async fn h33_a_refusal_is_an_error_with_its_facts() {
    let db = Db::fresh().await;
    db.fence("j").await;
    let [a, b] = db.sessions().await;
    let t1 = a.acq("j", "A", "60 s").await.granted();
    for way in Way::ALL {
        a.fw(way, "j", t1, 1, 1).await.unwrap();
    }
    let open = db.session().await;
    open.sql("BEGIN").await.unwrap();
    open.fence("j", t1).await.unwrap();
    a.rel("j", t1).await.unwrap();
    let t2 = b.acq("j", "B", "60 s").await.granted();

    // Stale by a fence that was fresh, so that the statement is what is refused.
    for table in ["plain", "stamped"] {
        for sql in [
            format!("UPDATE {table} SET v = 9 WHERE id = 1"),
            format!("UPDATE {table} SET v = 9 WHERE id = -1"),
            format!("INSERT INTO {table} (id, v) VALUES (100, 9)"),
            format!("DELETE FROM {table} WHERE id = 1"),
            format!(
                "MERGE INTO {table} USING (SELECT 1 AS id) s USING (id) WHEN MATCHED THEN DELETE"
            )
            .replace("USING (id)", &format!("ON {table}.id = s.id")),
        ] {
            open.sql("SAVEPOINT s").await.unwrap();
            let error = open.exec(&sql, &[]).await.refused(STALE);
            error.detail_names(&[&"\"j\"", &t1, &t2]).has_hint().at_table("public", table);
            open.sql("ROLLBACK TO s").await.unwrap();
        }
    }
    open.rollback().await;
    for sql in [
        format!("UPDATE stamped SET v = 9, token = {t1} WHERE id = 1"),
        format!("INSERT INTO stamped VALUES (100, 9, {t1})"),
        format!(
            "INSERT INTO stamped VALUES (1, 9, {t1}) ON CONFLICT (id) DO UPDATE SET v = 9, token = {t1}"
        ),
    ] {
        let error = a.exec(&sql, &[]).await.refused(STALE);
        error.detail_names(&[&"\"j\"", &t1, &t2]).has_hint().at_table("public", "stamped");
    }
}

/// The holder's statements give what they give without a fence.
#[tokio::test]
async fn h33_the_holder_notices_nothing() {
    let db = Db::fresh().await;
    let a = db.session().await;
    let t = a.acq("j", "A", "60 s").await.granted();
    for table in ["unfenced", "fenced", "with_column"] {
        a.sql(&format!(
            "CREATE TABLE {table} (id int PRIMARY KEY, version int NOT NULL, v text, token bigint);
             INSERT INTO {table} VALUES (1, 7, 'one'), (2, 7, 'two'), (3, 8, 'three')"
        ))
        .await
        .unwrap();
    }
    a.sql("SELECT fence_attach('fenced', 'j'), fence_attach('with_column', 'j', 'token')")
        .await
        .unwrap();

    let mut seen = Vec::new();
    for table in ["unfenced", "fenced", "with_column"] {
        a.sql("BEGIN").await.unwrap();
        a.fence("j", t).await.unwrap();
        let mut answers = Vec::new();
        for sql in [
            "UPDATE t SET version = version + 1 WHERE id = 1 AND version = 7",
            "UPDATE t SET version = version + 1 WHERE id = 1 AND version = 7",
            "UPDATE t SET v = 'x' WHERE version = 8 RETURNING id, version, v",
            "INSERT INTO t VALUES (4, 1, 'four'), (5, 1, 'five') RETURNING id, version, v",
            "INSERT INTO t VALUES (4, 1, 'again') ON CONFLICT DO NOTHING RETURNING id, version, v",
            "INSERT INTO t VALUES (4, 2, 'u') ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING id, version, v",
            "DELETE FROM t WHERE version = 1 RETURNING id, version, v",
            "DELETE FROM t WHERE version = 1",
            "SELECT id, version, v FROM t ORDER BY id",
        ] {
            let sql = sql.replace(" t ", &format!(" {table} "));
            if sql.contains("RETURNING") || sql.starts_with("SELECT") {
                let rows = a.rows(&sql, &[]).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
                let rows: Vec<(i32, i32, String)> =
                    rows.iter().map(|r| (r.get(0), r.get(1), r.get(2))).collect();
                answers.push(format!("{rows:?}"));
            } else {
                answers.push(
                    a.exec(&sql, &[])
                        .await
                        .unwrap_or_else(|error| panic!("{error}: {sql}"))
                        .to_string(),
                );
            }
        }
        a.commit().await.unwrap();
        seen.push(answers);
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
}
