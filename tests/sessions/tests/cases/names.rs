//! Names come from user data.

use lock_ext_sessions::{Asked, Db, Refused, STALE, Way};

const ODD: [&str; 14] = [
    " ",
    "  padded  ",
    "a\nb",
    "a\tb\r\\n",
    "a'b\"c$$d",
    "a;drop table plain",
    "'); DROP TABLE plain; --",
    "100%",
    "%s %d %n",
    "{\"a\": [1]}",
    "NULL",
    "Straße ☃ 名前 🔒",
    "e\u{301} is not \u{e9}",
    "UPPER",
];

#[tokio::test]
async fn h20_odd_names_round_trip() {
    let db = Db::fresh().await;
    let a = db.session().await;
    a.sql("CREATE TABLE plain (id int PRIMARY KEY, v int); INSERT INTO plain VALUES (1, 0)")
        .await
        .unwrap();
    for odd in ODD {
        let t = a.acq(odd, odd, "60 s").await.granted();
        let status = a.info(odd).await.expect("found by its exact name");
        assert_eq!((status.holder.as_deref(), status.token), (Some(odd), Some(t)));
        a.ext(odd, t, "60 s").await.extended();
        assert_eq!(a.ext_many(&[odd], &[t], "60 s").await.unwrap()[0].name, odd);
        a.cp(odd, t, "{\"at\": 7}").await.unwrap();
        assert_eq!(a.read_cp(odd).await.unwrap().as_deref(), Some("{\"at\": 7}"));
        assert_eq!(a.once(odd).await, Ok(true));
        assert_eq!(a.once(odd).await, Ok(false));

        a.exec("SELECT fence_attach('plain', $1)", &[&odd]).await.unwrap();
        assert_eq!(a.fw(Way::Transaction, odd, t, 1, 1).await, Ok(1));
        assert_eq!(a.fw(Way::FencedUpdate, odd, t, 1, 2).await, Ok(1));
        a.fw(Way::Transaction, odd, t + 1, 1, 3).await.refused(STALE).detail_names(&[&odd]);
        assert_eq!(a.rel(odd, t).await, Ok(true));
    }
    // Nothing was folded together, and nothing else was touched.
    let names: Vec<String> = a.list("SELECT name FROM lease_status", &[]).await.unwrap();
    assert_eq!(names.len(), ODD.len());
    assert_eq!(db.v("plain", 1).await, 2);
    a.acq("upper", "A", "60 s").await.granted();
    a.acq("UPPER", "A", "60 s").await.granted();
}

/// Every argument that is a name, so that none is forgotten. The argument is `$1`, the rest is good.
const TAKES_A_NAME: [&str; 17] = [
    "SELECT lease_acquire($1, 'A', '60 s')",
    "SELECT lease_acquire('good', $1, '60 s')",
    "SELECT lease_elect($1, 'A', '60 s')",
    "SELECT lease_elect('good', $1, '60 s')",
    "SELECT lease_extend($1, 1)",
    "SELECT lease_extend($1, 1, '60 s')",
    "SELECT lease_extend_many(ARRAY[$1], ARRAY[1::bigint])",
    "SELECT lease_extend_many(ARRAY['good', $1], ARRAY[1::bigint, 2], '60 s')",
    "SELECT lease_release($1, 1)",
    "SELECT lease_complete($1, 1)",
    "SELECT lease_checkpoint($1, 1, '{}')",
    "SELECT lease_checkpoint($1)",
    "SELECT lease_is_current($1, 1)",
    "SELECT lease_fence($1, 1)",
    "SELECT lease_evict($1, 1)",
    "SELECT lease_force_release($1)",
    "SELECT once($1)",
];

#[tokio::test]
async fn h20_no_name_is_an_error_everywhere() {
    let db = Db::fresh().await;
    let a = db.session().await;
    a.sql("CREATE TABLE plain (id int)").await.unwrap();
    let longest = "x".repeat(1024);
    let too_long = "x".repeat(1025);
    // 1024 bytes are what counts, not characters.
    let longest_in_bytes = "é".repeat(512);
    let too_long_in_bytes = "é".repeat(513);
    let attach = "SELECT fence_attach('plain', $1)";
    for sql in TAKES_A_NAME.into_iter().chain([attach]) {
        let ask = |name: Option<String>| {
            let a = &a;
            async move { a.exec(sql, &[&name]).await.map_err(|error| format!("{error} of {sql}")) }
        };
        let code = |answer: Result<u64, String>| answer.expect_err(sql)[..5].to_owned();
        assert_eq!(code(ask(None).await), "22004", "{sql}");
        assert_eq!(code(ask(Some(String::new())).await), "22023", "{sql}");
        assert_eq!(code(ask(Some(too_long.clone())).await), "22001", "{sql}");
        assert_eq!(code(ask(Some(too_long_in_bytes.clone())).await), "22001", "{sql}");
        assert_eq!(code(ask(Some("a\0b".to_owned())).await), "22021", "{sql}");
    }
    assert_eq!(
        a.one::<i64>("SELECT count(*) FROM lease_status", &[]).await,
        Ok(0),
        "nothing is held"
    );
    assert_eq!(
        a.one::<i64>("SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal", &[]).await,
        Ok(0)
    );

    for name in [longest, longest_in_bytes] {
        let t = a.acq(&name, &name, "60 s").await.granted();
        assert_eq!(a.info(&name).await.unwrap().holder.as_deref(), Some(name.as_str()));
        a.cp(&name, t, "1").await.unwrap();
        assert_eq!(a.once(&name).await, Ok(true));
        a.fence(&name, t).await.unwrap();
        assert_eq!(a.rel(&name, t).await, Ok(true));
    }
}

#[tokio::test]
async fn h21_colliding_hashes_are_different_names() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    b.sql("SET statement_timeout = '20s'").await.unwrap();
    let hashes = [
        "hashtext(n)::bigint",
        "hashtextextended(n, 0) & 4294967295",
        "hashtextextended(n, 0) >> 32",
    ];
    for hash in hashes {
        let pair: Vec<String> = a
            .one(
                &format!(
                    "SELECT (array_agg(n))[1:2] FROM (SELECT 'name-' || i AS n FROM generate_series(1, 400000) i) s
                     GROUP BY {hash} HAVING count(*) > 1 LIMIT 1"
                ),
                &[],
            )
            .await
            .expect("400,000 names collide in 32 bits");
        let [x, y] = [pair[0].as_str(), pair[1].as_str()];

        // In an open transaction, so that a lock on the hash would be in the way.
        a.sql("BEGIN").await.unwrap();
        let ta = a.acq(x, "A", "60 s").await.granted();
        let tb = b.acq(y, "B", "60 s").await.granted();
        b.ext(y, tb, "60 s").await.extended();
        b.sql("BEGIN").await.unwrap();
        b.fence(y, tb).await.unwrap();
        b.cp(y, tb, "1").await.unwrap();
        b.commit().await.unwrap();
        assert_eq!(b.rel(y, tb).await, Ok(true));
        a.commit().await.unwrap();
        assert_eq!(a.is_current(x, ta).await, Ok(true));
        assert_eq!(a.is_current(y, tb).await, Ok(false));
        // The same two may be found again: hashtext is the low half of hashtextextended.
        assert_eq!(a.rel(x, ta).await, Ok(true));
    }
}

#[tokio::test]
async fn h21_two_hundred_thousand_names_at_once() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let distinct: i64 = a
        .one(
            "SELECT count(DISTINCT t) FROM (SELECT lease_acquire('job-' || i, 'A', '1 hour') AS t
                                            FROM generate_series(1, 200000) i) s",
            &[],
        )
        .await
        .expect("not out of shared memory");
    assert_eq!(distinct, 200_000);
    let held: i64 =
        b.one("SELECT count(*) FROM lease_status WHERE state = 'held'", &[]).await.unwrap();
    assert_eq!(held, 200_000);
    b.acq("job-1", "B", "60 s").await.busy();
    b.acq("job-200000", "B", "60 s").await.busy();
    b.acq("job-200001", "B", "60 s").await.granted();
}

#[tokio::test]
async fn h21_two_databases_do_not_see_each_other() {
    let one = Db::fresh().await;
    let two = one.another().await;
    let [a, b] = [one.session().await, two.session().await];
    a.sql("BEGIN").await.unwrap();
    let ta = a.acq("same", "A", "60 s").await.granted();
    let tb = b.acq("same", "B", "60 s").await.granted();
    a.commit().await.unwrap();
    assert_eq!(a.info("same").await.unwrap().holder.as_deref(), Some("A"));
    assert_eq!(b.info("same").await.unwrap().holder.as_deref(), Some("B"));
    assert_eq!(b.rel("same", tb).await, Ok(true));
    assert_eq!(a.is_current("same", ta).await, Ok(true));
}

/// A name is its bytes in the database's encoding.
#[tokio::test]
async fn names_are_exact_in_a_latin1_database() {
    let db = Db::in_encoding("LATIN1").await;
    db.fence("é").await;
    let a = db.session().await;
    let t = a.acq("é", "Zoë", "60 s").await.granted();
    let other = a.acq("è", "Zoë", "60 s").await.granted();
    assert_eq!(
        a.one::<Option<i64>>("SELECT lease_acquire(chr(233), 'A', '60 s')", &[]).await,
        Ok(None)
    );
    let status = a.info("é").await.unwrap();
    assert_eq!((status.holder.as_deref(), status.token), (Some("Zoë"), Some(t)));
    for way in Way::ALL {
        assert_eq!(a.fw(way, "é", t, 1, 1).await, Ok(1));
    }
    let error = a.fw(Way::Column, "é", other + 1, 1, 1).await.refused(STALE);
    error.detail_names(&[&t]);
    a.cp("é", t, "\"ß\"").await.unwrap();
    assert_eq!(a.read_cp("é").await.unwrap().as_deref(), Some("\"ß\""));
    assert_eq!(a.once("é").await, Ok(true));
    assert_eq!(a.once("è").await, Ok(true));
    a.acq(&"é".repeat(1024), "A", "60 s").await.granted();
    a.acq(&"é".repeat(1025), "A", "60 s").await.refused("22001");
    a.acq("名", "A", "60 s").await.refused("22P05");
}

/// Bytes that are no text in any encoding: they may name a lease, but no trigger can carry them.
#[tokio::test]
async fn sql_ascii_refuses_to_fence_by_bytes_that_are_no_text() {
    let db = Db::in_encoding("SQL_ASCII").await;
    db.fence("plain ascii").await;
    let a = db.session().await;
    a.exec("SELECT fence_attach('plain', chr(233))", &[]).await.refused("22021");
    let t = a.acq("plain ascii", "A", "60 s").await.granted();
    for way in Way::ALL {
        assert_eq!(a.fw(way, "plain ascii", t, 1, 1).await, Ok(1));
    }
}
