//! A standby is promoted, which has all of the WAL or not. Whatever was lost, no server ever returns a token again that
//! any of them has returned before, nor a lower one.

use lock_ext_ha::{Asked, Crowd, READ_ONLY, Refused, STALE, Server, Session, Stop, Tokens, until};

/// More grants than a sequence logs ahead, committed and rolled back ones.
async fn many_grants(session: &Session, tokens: &mut Tokens) {
    for last in ["COMMIT", "ROLLBACK", "COMMIT"] {
        session.sql("BEGIN").await.unwrap();
        let granted: Vec<i64> = session
            .list(
                "SELECT lease_acquire('many-' || gen_random_uuid(), 'M', '10 min') FROM generate_series(1, 40)",
                &[],
            )
            .await
            .unwrap();
        tokens.returned_all(&granted);
        session.sql(last).await.unwrap();
    }
}

/// A primary where A holds "job", and as many standbys as asked for, all of them cut off in that state. Then A releases,
/// B is granted the lease, and many others something else, of which no standby hears.
struct LostTail<const N: usize> {
    primary: Server,
    standbys: [Server; N],
    tokens: Tokens,
    a: i64,
    b: i64,
}

impl<const N: usize> LostTail<N> {
    async fn new(names: [&str; N]) -> Self {
        let primary = Server::new("primary", &[]).await;
        let session = primary.with_extension().await;
        let mut tokens = Tokens::default();
        session.fenced_table("job").await;
        let a = tokens.returned(session.acq("job", "A", "10 min").await.granted());
        let mut standbys = Vec::new();
        for name in names {
            standbys.push(primary.standby(name).await);
        }
        for standby in &standbys {
            standby.caught_up(&primary).await;
            standby.cut_off().await;
        }
        assert_eq!(session.rel("job", a).await, Ok(true));
        many_grants(&session, &mut tokens).await;
        let b = tokens.returned(session.acq("job", "B", "10 min").await.granted());
        session.fw("job", b, 1).await.unwrap();
        primary.crash().await;
        let standbys = standbys.try_into().unwrap_or_else(|_| unreachable!("N were made"));
        Self { primary, standbys, tokens, a, b }
    }
}

#[tokio::test]
async fn after_a_lost_tail_tokens_are_above_all_that_were_returned() {
    let LostTail { primary: _primary, standbys: [s1], mut tokens, a, b } =
        LostTail::new(["s1"]).await;
    s1.promote().await;
    let session = s1.connect().await;
    // Of B's grant nothing is known here, and it is refused all the same.
    assert_eq!(session.info("job").await.unwrap().token, Some(a));
    session.fw("job", b, 2).await.refused(STALE);
    session.ext("job", b).await.lost();
    assert_eq!(session.rel("job", b).await, Ok(false));
    assert_eq!(session.is_current("job", b).await, Ok(false));

    tokens.returned(session.acq("other", "O", "10 min").await.granted());
    // A's release is lost as well; somebody has to say that A is gone.
    session.acq("job", "C", "10 min").await.busy();
    assert_eq!(session.one("SELECT lease_force_release('job')", &[]).await, Ok(true));
    let c = tokens.returned(session.acq("job", "C", "10 min").await.granted());
    for old in [a, b] {
        session.fw("job", old, 3).await.refused(STALE);
        session.ext("job", old).await.lost();
    }
    session.fw("job", c, 4).await.unwrap();
    session.ext("job", c).await.extended();
    // It goes on from there, also over a crash of the new primary.
    many_grants(&session, &mut tokens).await;
    s1.crash().await;
    s1.start().await;
    many_grants(&s1.connect().await, &mut tokens).await;
    let written: Vec<i32> =
        s1.connect().await.list("SELECT v FROM work ORDER BY v", &[]).await.unwrap();
    assert_eq!(written, [4], "B's row is lost, and no refused one is there");
}

/// The second one to be promoted knows nothing of the first: both go on from the same state, on a timeline that they both
/// call 2.
#[tokio::test]
async fn two_promotions_from_the_same_state_give_different_tokens() {
    let LostTail { primary: _primary, standbys: [s1, s2], mut tokens, .. } =
        LostTail::new(["s1", "s2"]).await;
    s1.promote().await;
    many_grants(&s1.connect().await, &mut tokens).await;
    s1.crash().await;
    s2.promote().await;
    assert_eq!(s2.timeline().await, 2, "the case that is meant");
    let session = s2.connect().await;
    many_grants(&session, &mut tokens).await;
    assert_eq!(session.one("SELECT lease_force_release('job')", &[]).await, Ok(true));
    tokens.returned(session.acq("job", "C", "10 min").await.granted());
}

/// The second one has followed the first for a while, and then not any more.
#[tokio::test]
async fn a_standby_that_followed_the_first_promotion_goes_on_above_it() {
    let LostTail { primary: _primary, standbys: [s1, s2], mut tokens, .. } =
        LostTail::new(["s1", "s2"]).await;
    s1.promote().await;
    let session = s1.connect().await;
    many_grants(&session, &mut tokens).await;
    s2.follow(&s1).await;
    s2.caught_up(&s1).await;
    s2.cut_off().await;
    many_grants(&session, &mut tokens).await;
    s1.crash().await;
    s2.promote().await;
    assert_eq!(s2.timeline().await, 3, "the case that is meant");
    many_grants(&s2.connect().await, &mut tokens).await;
}

#[tokio::test]
async fn three_promotions_in_a_row_each_with_a_lost_tail() {
    let mut server = Server::new("primary", &[]).await;
    let mut tokens = Tokens::default();
    many_grants(&server.with_extension().await, &mut tokens).await;
    for name in ["s1", "s2", "s3"] {
        let next = server.standby(name).await;
        next.caught_up(&server).await;
        next.cut_off().await;
        many_grants(&server.connect().await, &mut tokens).await;
        server.crash().await;
        next.promote().await;
        many_grants(&next.connect().await, &mut tokens).await;
        server = next;
    }
    assert_eq!(server.timeline().await, 4);
}

/// An epoch counts promotions since the first token, not since the beginning of the cluster.
#[tokio::test]
async fn an_extension_that_is_new_on_a_later_timeline_starts_with_token_1() {
    let server = Server::new("server", &[]).await;
    for _ in 0..2 {
        server.stop(Stop::Fast).await;
        server.stand_by();
        server.start().await;
        server.promote().await;
    }
    assert_eq!(server.timeline().await, 3);
    let session = server.with_extension().await;
    for token in 1..=3 {
        assert_eq!(session.acq(&token.to_string(), "A", "1 min").await.granted(), token);
    }
    server.restart(Stop::Fast).await;
    let mut tokens = Tokens::default();
    tokens.returned(3);
    tokens.returned(server.connect().await.acq("x", "A", "1 min").await.granted());
}

#[tokio::test]
async fn with_quorum_commit_no_acknowledged_grant_is_lost() {
    for (quorum, one_is_behind) in [("ANY 1 (s1, s2)", true), ("ANY 2 (s1, s2)", false)] {
        let primary = Server::new("primary", &[]).await;
        let setup = primary.with_extension().await;
        setup
            .sql(
                "CREATE TABLE work (lease text, v int);
                 SELECT fence_attach('work', '', lease_column => 'lease')",
            )
            .await
            .unwrap();
        let [s1, s2] = [primary.standby("s1").await, primary.standby("s2").await];
        primary.set("synchronous_standby_names", quorum).await;
        let watch = primary.connect().await;
        watch
            .until(
                "SELECT count(*) = 2 FROM pg_stat_replication WHERE sync_state = 'quorum' AND state = 'streaming'",
                &[],
            )
            .await;
        // Whatever is acknowledged before the setting counts everywhere is on both.
        for standby in [&s1, &s2] {
            standby.caught_up(&primary).await;
        }
        let crowd = Crowd::on(&primary, "c", "").await;
        crowd.goes_on(100).await;
        if one_is_behind {
            s2.cut_off().await;
            crowd.goes_on(100).await;
        }
        primary.crash().await;
        let told = crowd.told().await;
        let [end1, end2] = [s1.wal_end().await, s2.wal_end().await];
        // With ANY 1 the one with most of the WAL has all of it, with ANY 2 each of them.
        let promoted = if one_is_behind {
            assert!(end1 > end2, "the case that is meant");
            &s1
        } else if end1 <= end2 {
            &s1
        } else {
            &s2
        };
        promoted.promote().await;

        let session = promoted.connect().await;
        let held = session.held().await;
        let mut tokens = Tokens::default();
        for (lease, token) in &told.granted {
            assert_eq!(held.get(lease), Some(token), "the grant of {lease} with {quorum}");
        }
        for (lease, token) in told.granted.iter().rev().take(20) {
            session.acq(lease, "thief", "10 min").await.busy();
            session.ext(lease, *token).await.extended();
            session.fw(lease, *token, 1).await.unwrap();
        }
        tokens.returned_at_once(&told.tokens());
        tokens.returned(session.acq("next", "N", "10 min").await.granted());
    }
}

/// A session may have turned synchronous commit off, for its heartbeats. A grant waits all the same.
#[tokio::test]
async fn a_grant_waits_for_the_quorum_also_with_synchronous_commit_off() {
    let primary = Server::new("primary", &[]).await;
    let session = primary.with_extension().await;
    session
        .sql(
            "CREATE FUNCTION quick(text) RETURNS bigint LANGUAGE sql SET synchronous_commit = off
             AS $$ SELECT lease_acquire($1, 'A', '10 min') $$",
        )
        .await
        .unwrap();
    let standby = primary.standby("s1").await;
    primary.set("synchronous_standby_names", "ANY 1 (s1)").await;
    session.until("SELECT sync_state = 'quorum' FROM pg_stat_replication", &[]).await;
    let client = primary.connect().await;
    client.sql("SET synchronous_commit = off").await.unwrap();
    let held = client.acq("held", "A", "10 min").await.granted();
    standby.cut_off().await;
    // A heartbeat does not wait, as its client has said.
    client.ext("held", held).await.extended();
    let mut granted = Vec::new();
    for (name, sql) in [
        ("job", "SELECT lease_acquire($1, 'A', '10 min')"),
        // The function takes its setting away again before the commit.
        ("by function", "SELECT quick($1)"),
    ] {
        let client = primary.connect().await;
        client.sql("SET synchronous_commit = off").await.unwrap();
        let pid = client.pid();
        let answer =
            client.beside(|client| async move { client.one::<Option<i64>>(sql, &[&name]).await });
        until("the grant waits, or is acknowledged without a standby", async || {
            let waits = "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $1";
            answer.is_finished()
                || session.one(waits, &[&pid]).await.unwrap_or(Some(false)) == Some(true)
        })
        .await;
        assert!(!answer.is_finished(), "acknowledged, and no standby has it: {:?}", answer.await);
        granted.push((name, answer));
    }
    standby.follow(&primary).await;
    let mut tokens = Vec::new();
    for (name, answer) in granted {
        tokens.push((name, answer.await.unwrap().granted()));
    }
    primary.crash().await;
    standby.promote().await;
    for (name, token) in tokens {
        standby.connect().await.ext(name, token).await.extended();
    }
}

#[tokio::test]
async fn what_becomes_of_sessions_and_transactions_of_the_old_primary() {
    let primary = Server::new("primary", &[]).await;
    let [bound, waiter, open, prepares] = [
        primary.with_extension().await,
        primary.connect().await,
        primary.connect().await,
        primary.connect().await,
    ];
    let mut tokens = Tokens::default();
    open.fenced_table("job").await;
    let s = tokens.returned(bound.sacq("bound", "S").await.granted());
    let waiting = waiter.beside(|w| async move { w.acq_wait("bound", "W", "10 min").await });
    bound.waits(&waiter, "Extension").await;
    // It is to expire, for the sake of what is prepared under it.
    let job = tokens.returned(open.acq("job", "J", "1 s").await.granted());
    prepares.sql("BEGIN").await.unwrap();
    prepares.fence("job", job).await.unwrap();
    prepares.sql("INSERT INTO work VALUES ('job', 1); PREPARE TRANSACTION 'writes'").await.unwrap();
    prepares.sql("BEGIN").await.unwrap();
    let in_doubt = tokens.returned(prepares.acq("in doubt", "P", "10 min").await.granted());
    prepares.sql("PREPARE TRANSACTION 'grant'").await.unwrap();
    open.sql("BEGIN").await.unwrap();
    open.fence("job", job).await.unwrap();
    open.sql("INSERT INTO work VALUES ('job', 2)").await.unwrap();
    let undone = tokens.returned(open.acq("undone", "U", "10 min").await.granted());

    let standby = primary.standby("s1").await;
    standby.caught_up(&primary).await;
    primary.crash().await;
    waiting.await.unwrap().expect_err("its server is gone");
    standby.promote().await;

    let session = standby.connect().await;
    // Nobody waits for the prepared transactions, although one of them has drawn a token.
    session.sql("SET statement_timeout = '10s'").await.unwrap();
    many_grants(&session, &mut tokens).await;
    // The session: gone, and its token refused before anybody else has acquired the lease.
    assert_eq!(session.info("bound").await.unwrap().state, "free");
    assert_eq!(session.is_current("bound", s).await, Ok(false));
    session.fence("bound", s).await.refused(STALE);
    // The waiter: gone, and in nobody's way.
    assert_eq!(session.one("SELECT count(*) FROM lease_waiter", &[]).await, Ok(0_i64));
    tokens.returned(session.acq("bound", "N", "10 min").await.granted());
    // The open transaction: gone.
    assert_eq!(session.info("undone").await, None);
    session.ext("undone", undone).await.lost();
    tokens.returned(session.acq("undone", "N", "10 min").await.granted());
    // The prepared grant: undecided, and nobody else's meanwhile.
    session.acq("in doubt", "N", "10 min").await.busy();
    session.sql("COMMIT PREPARED 'grant'").await.unwrap();
    session.ext("in doubt", in_doubt).await.extended();
    session.acq("in doubt", "N", "10 min").await.busy();
    assert_eq!(session.rel("in doubt", in_doubt).await, Ok(true));
    tokens.returned(session.acq("in doubt", "N", "10 min").await.granted());
    // The prepared writes: nobody is granted the lease before they are decided, so they may commit.
    session.until("SELECT state = 'expired' FROM lease_status WHERE name = 'job'", &[]).await;
    session.acq("job", "N", "10 min").await.busy();
    let prepared = "SELECT token FROM lease_writer WHERE name = 'job' AND pid IS NULL";
    assert_eq!(session.list(prepared, &[]).await, Ok(vec![job]));
    session.sql("COMMIT PREPARED 'writes'").await.unwrap();
    let next = tokens.returned(session.acq("job", "N", "10 min").await.granted());
    session.fw("job", job, 3).await.refused(STALE);
    session.fw("job", next, 4).await.unwrap();
    assert_eq!(session.list("SELECT v FROM work ORDER BY v", &[]).await, Ok(vec![1, 4]));
}

/// There and back: the old primary becomes a standby, and then the primary again.
#[tokio::test]
async fn a_switchover_loses_nothing() {
    let one = Server::new("one", &[]).await;
    let mut tokens = Tokens::default();
    let session = one.with_extension().await;
    session.fenced_table("job").await;
    let job = tokens.returned(session.acq("job", "A", "10 min").await.granted());
    let two = one.standby("two").await;
    for (turn, (old, new)) in (0..).zip([(&one, &two), (&two, &one)]) {
        let session = old.connect().await;
        session.fw("job", job, turn).await.unwrap();
        let last = format!("last of {}", old.name());
        let token = tokens.returned(session.acq(&last, "L", "10 min").await.granted());
        old.stop(Stop::Fast).await;
        new.promote().await;

        let session = new.connect().await;
        session.ext("job", job).await.extended();
        session.acq("job", "B", "10 min").await.busy();
        session.fw("job", job, turn + 10).await.unwrap();
        session.ext(&last, token).await.extended();
        many_grants(&session, &mut tokens).await;

        old.configure("primary_conninfo", &new.primary_conninfo(old.name()));
        old.stand_by();
        old.start().await;
        old.caught_up(new).await;
        let session = old.connect().await;
        assert_eq!(session.info("job").await, new.connect().await.info("job").await);
        session.ext("job", job).await.refused(READ_ONLY);
    }
    let written: Vec<i32> =
        one.connect().await.list("SELECT v FROM work ORDER BY v", &[]).await.unwrap();
    assert_eq!(written, [0, 1, 10, 11]);
}
