//! A hot standby: its views show what is so on the primary, and everything that changes something, or answers "do I
//! hold it", says 25006. Once it is promoted, it works at once, also for sessions that were there before.

use std::collections::BTreeSet;

use lock_ext_ha::{Asked, READ_ONLY, Refused, Server, Session, Tokens, until};

/// Each function that users call, with arguments that would do on the primary, where "x" is held under token 1.
const CALLS: &[(&str, &str)] = &[
    ("fence_attach(regclass,text,text,text)", "fence_attach('later', 'x')"),
    ("fence_detach(regclass)", "fence_detach('work')"),
    ("fence_forget(text)", "fence_forget('etcd')"),
    ("fence_observe(text,bigint)", "fence_observe('etcd', 8)"),
    (
        "fenced_update(regclass,bigint,jsonb,jsonb,boolean)",
        r#"fenced_update('work', 1, '{"v": 1}', '{"v": 2}')"#,
    ),
    (
        "fenced_update(regclass,bigint,jsonb,jsonb,text,boolean)",
        r#"fenced_update('work', 1, '{"v": 1}', '{"v": 2}', 'x')"#,
    ),
    (
        "lease_acquire(text,text,interval,interval,uuid,interval,interval)",
        "lease_acquire('new', 'B', '1 min')",
    ),
    ("lease_acquire_session(text,text,interval)", "lease_acquire_session('new', 'B')"),
    ("lease_checkpoint(text,bigint,jsonb)", "lease_checkpoint('x', 1, '{}')"),
    ("lease_complete(text,bigint,timestamp with time zone)", "lease_complete('x', 1)"),
    (
        "lease_elect(text,text,interval,bigint,interval,interval)",
        "lease_elect('x', 'A', '1 min', 1)",
    ),
    ("lease_evict(text)", "lease_evict('x')"),
    ("lease_evict(text,bigint)", "lease_evict('x', 1)"),
    ("lease_extend(text,bigint)", "lease_extend('x', 1)"),
    ("lease_extend(text,bigint,interval)", "lease_extend('x', 1, '1 min')"),
    ("lease_extend_many(text[],bigint[])", "lease_extend_many('{x}', '{1}')"),
    ("lease_extend_many(text[],bigint[],interval)", "lease_extend_many('{x}', '{1}', '1 min')"),
    ("lease_fence(text,bigint,boolean)", "lease_fence('x', 1)"),
    ("lease_force_release(text)", "lease_force_release('x')"),
    ("lease_is_current(text,bigint)", "lease_is_current('x', 1)"),
    ("lease_prune(interval)", "lease_prune('0')"),
    ("lease_raise_token_floor(bigint)", "lease_raise_token_floor(1000)"),
    ("lease_release(text,bigint)", "lease_release('x', 1)"),
    ("once(text)", "once('key')"),
    ("once_forget(interval)", "once_forget('0')"),
];

/// What is not refused: it reads, and a trigger is called only by a write, which the server refuses by itself.
const READERS: &[&str] = &["lease_checkpoint(text)", "fence_check()"];

/// A primary with leases in every state and a fenced table, and a standby that has all of it.
async fn pair(primary: &Server) -> (Session, Server) {
    let a = primary.with_extension().await;
    assert_eq!(a.acq("x", "A", "10 min").await.granted(), 1);
    a.fenced_table("x").await;
    a.fw("x", 1, 1).await.unwrap();
    a.sql("CREATE TABLE later (v int)").await.unwrap();
    for sql in [
        r#"SELECT lease_checkpoint('x', 1, '{"after": 7}')"#,
        "SELECT fence_observe('etcd', 7)",
        "SELECT lease_acquire('free', 'F', '10 min')",
        "SELECT lease_release('free', 2)",
        "SELECT lease_acquire('expired', 'E', '1 ms')",
        "SELECT lease_acquire('done', 'D', '10 min')",
        "SELECT lease_complete('done', 4)",
        "SELECT lease_acquire('bound', 'S', '10 min')",
        "SELECT lease_release('bound', 5)",
    ] {
        a.sql(sql).await.unwrap();
    }
    let standby = primary.standby("s1").await;
    (a, standby)
}

#[tokio::test]
async fn every_function_but_the_readers_is_refused() {
    let primary = Server::new("primary", &[]).await;
    let (a, standby) = pair(&primary).await;
    standby.caught_up(&primary).await;
    let b = standby.connect().await;

    let listed: Vec<String> = b
        .list(
            "SELECT p.oid::regprocedure::text
             FROM pg_proc p
             JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
             JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
             WHERE e.extname = 'lock_ext' AND p.pronamespace <> 'lock_ext'::regnamespace",
            &[],
        )
        .await
        .unwrap();
    let known = CALLS.iter().map(|(function, _)| *function).chain(READERS.iter().copied());
    assert_eq!(
        listed.iter().map(String::as_str).collect::<BTreeSet<_>>(),
        known.collect(),
        "a new function: say what it does on a standby"
    );

    let mut wrong = Vec::new();
    for (function, call) in CALLS {
        for (before, after) in [("", ""), ("BEGIN", "ROLLBACK")] {
            b.sql(before).await.unwrap();
            match b.rows(&format!("SELECT {call}"), &[]).await {
                Err(error) if error.code == READ_ONLY && error.hint.is_some() => {}
                other => wrong.push(format!("{function}: {other:?}")),
            }
            b.sql(after).await.unwrap();
        }
    }
    for sql in ["INSERT INTO work VALUES ('x', 2)", "TRUNCATE work"] {
        b.sql(sql).await.refused(READ_ONLY);
    }
    let state: Option<String> = b.one("SELECT lease_checkpoint('x')::text", &[]).await.unwrap();
    assert_eq!(state.as_deref(), Some(r#"{"after": 7}"#));
    // The same calls are no nonsense: the primary takes each of them.
    for (function, call) in CALLS {
        a.sql("BEGIN").await.unwrap();
        if let Err(error) = a.rows(&format!("SELECT {call}"), &[]).await {
            panic!("{function} on the primary: {error:?}");
        }
        a.sql("ROLLBACK").await.unwrap();
    }
    assert!(wrong.is_empty(), "not refused as read-only, or without a hint:\n{}", wrong.join("\n"));
}

#[tokio::test]
async fn views_show_what_is_so_on_the_primary() {
    const VIEWS: [(&str, &str); 3] = [
        (
            "lease_status",
            "name, state, holder, holder_role, token, acquired_at, expires_at, ttl, completed_until, grants",
        ),
        ("fence_status", "table_name, lease, token_column, lease_column, carried_by, hole"),
        ("fence_observed", "*"),
    ];
    let primary = Server::new("primary", &[]).await;
    let (a, standby) = pair(&primary).await;
    a.sacq("bound", "S").await.granted();
    a.sql(
        "CREATE TABLE parent (v int); SELECT fence_attach('parent', 'x');
         CREATE TABLE child () INHERITS (parent)",
    )
    .await
    .unwrap();
    // On the primary somebody waits, and somebody writes.
    let [waiter, writer] = [primary.connect().await, primary.connect().await];
    let waiting = waiter.beside(|w| async move { w.acq_wait("bound", "W", "1 min").await });
    a.waits(&waiter, "Extension").await;
    writer.sql("BEGIN").await.unwrap();
    writer.fence("x", 1).await.unwrap();
    writer.sql("INSERT INTO work VALUES ('x', 2)").await.unwrap();

    standby.caught_up(&primary).await;
    let b = standby.connect().await;
    for (view, columns) in VIEWS {
        let rows = format!("SELECT v::text FROM (SELECT {columns} FROM {view}) v ORDER BY 1");
        let there: Vec<String> = a.list(&rows, &[]).await.unwrap();
        let here: Vec<String> = b.list(&rows, &[]).await.unwrap();
        assert!(!there.is_empty(), "{view}");
        assert_eq!(here, there, "{view}");
    }
    for (name, state) in [
        ("x", "held"),
        ("free", "free"),
        ("expired", "expired"),
        ("done", "completed"),
        // Its session is the primary's, and this server cannot see that it lives.
        ("bound", "held"),
    ] {
        assert_eq!(b.info(name).await.unwrap().state, state, "{name}");
    }
    // These are about the sessions of the server that is asked.
    for view in ["lease_waiter", "lease_writer"] {
        let rows = format!("SELECT v::text FROM {view} v");
        assert_eq!(b.list::<String>(&rows, &[]).await, Ok(vec![]), "{view}");
        assert_eq!(a.list::<String>(&rows, &[]).await.unwrap().len(), 1, "{view}");
    }
    b.rows("SELECT * FROM lease_session", &[]).await.unwrap();

    // It follows: what ends on the primary ends here.
    drop(waiting);
    a.rel("bound", 6).await.unwrap();
    a.rel("x", 1).await.unwrap();
    b.until(
        "SELECT count(*) = 0 FROM lease_status WHERE name IN ('x', 'bound') AND token < 7 AND state <> 'free'",
        &[],
    )
    .await;
}

#[tokio::test]
async fn sessions_from_before_the_promotion_work_at_once_after_it() {
    let primary = Server::new("primary", &[]).await;
    let (a, standby) = pair(&primary).await;
    let mut tokens = Tokens::default();
    tokens.returned(a.acq("taken", "T", "10 min").await.granted());
    standby.caught_up(&primary).await;

    let [b, c, d, open] = [
        standby.connect().await,
        standby.connect().await,
        standby.connect().await,
        standby.connect().await,
    ];
    // Each has called us and was refused; one has a statement prepared, one a transaction open.
    for session in [&b, &c, &d] {
        session.acq("new", "B", "1 min").await.refused(READ_ONLY);
        session.sacq("new", "B").await.refused(READ_ONLY);
        session.acq_wait("new", "B", "1 min").await.refused(READ_ONLY);
        session.is_current("x", 1).await.refused(READ_ONLY);
        assert_eq!(session.info("x").await.unwrap().token, Some(1));
    }
    b.sql("PREPARE acquire AS SELECT lease_acquire('new', 'B', '10 min')").await.unwrap();
    b.sql("EXECUTE acquire").await.refused(READ_ONLY);
    open.sql("BEGIN; SELECT * FROM lease_status").await.unwrap();
    let pids = [b.pid(), c.pid(), d.pid(), open.pid()];

    primary.crash().await;
    standby.promote().await;

    let acquired: Option<i64> = b.one("EXECUTE acquire", &[]).await.unwrap();
    let new = tokens.returned(acquired.expect("granted"));
    // A holder of before goes on with its token, from a session of before.
    c.ext("x", 1).await.extended();
    assert_eq!(c.is_current("x", 1).await, Ok(true));
    c.fw("x", 1, 3).await.unwrap();
    assert_eq!(c.one("SELECT once('key')", &[]).await, Ok(true));
    c.sql(r#"SELECT lease_checkpoint('x', 1, '{"after": 8}')"#).await.unwrap();
    c.acq("x", "C", "1 min").await.busy();
    let led: Option<i64> = c.one("SELECT lease_elect('x', 'A', '10 min', 1)", &[]).await.unwrap();
    assert_eq!(led, Some(1));

    // Waiting, and a lease for the session.
    let waiting = d.beside(|d| async move { d.acq_wait("new", "D", "1 min").await });
    b.waits(&d, "Extension").await;
    assert_eq!(b.info("new").await.unwrap().waiters, 1);
    assert_eq!(b.rel("new", new).await, Ok(true));
    tokens.returned(waiting.await.unwrap().granted());
    tokens.returned(d.sacq("bound", "D").await.granted());
    c.acq("bound", "C", "1 min").await.busy();
    assert_eq!(c.info("bound").await.unwrap().session_pid, Some(d.pid()));
    drop(d);
    until("the lease ends with its session", async || {
        c.info("bound").await.unwrap().state == "free"
    })
    .await;
    tokens.returned(c.acq("bound", "C", "1 min").await.granted());

    // A transaction that began on the standby stays read-only, as PostgreSQL has it.
    open.acq("late", "L", "1 min").await.refused(READ_ONLY);
    open.sql("ROLLBACK").await.unwrap();
    tokens.returned(open.acq("late", "L", "1 min").await.granted());
    assert_eq!(pids.len(), 4, "and no session was opened anew: {pids:?}");
}
