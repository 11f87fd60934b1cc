//! A backend that is killed, and a server that is, at every step of a grant. Afterwards there is no half of one, and no
//! token that anybody was told is ever returned again.

use lock_ext_ha::{Answer, Asked, Crowd, Refused, STALE, Server, Session, Stop, Tokens};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// kill -9 of the backend; the server ends all others and recovers.
    Backend,
    /// An immediate stop, and a start.
    Immediate,
    /// kill -9 of all processes at once, and a start.
    Crash,
}

impl Death {
    const ALL: [Self; 3] = [Self::Backend, Self::Immediate, Self::Crash];

    async fn comes(self, server: &Server, victim: &Session) {
        match self {
            Self::Backend => server.kill_backend(victim.pid()).await,
            Self::Immediate => server.restart(Stop::Immediate).await,
            Self::Crash => {
                server.crash().await;
                server.start().await;
            }
        }
    }
}

/// Where the grant is when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Before everything: somebody has locked the table of the leases.
    Before,
    /// About to draw the token: somebody has locked the sequence.
    Drawing,
    /// In a transaction that is open: the client knows the token.
    Told,
    /// The commit is written, and waits for a standby before it becomes visible. The client knows nothing.
    Committing,
    /// The same in a transaction block, whose client knows the token.
    CommittingTold,
    /// The client has the answer.
    Committed,
    /// The same, of a client that does not want to wait for the disk.
    CommittedAsync,
}

/// Three leases that the victim acquires, by what they were before. More follow at the same time, so that it is more than
/// a sequence logs ahead and it has to log while they are granted.
struct Leases {
    step: Step,
}

const STATES: [(&str, &str); 3] = [("new", "none"), ("released", "free"), ("expired", "expired")];
const MORE: usize = 40;

impl Leases {
    fn name(&self, was: &str) -> String {
        format!("{was} {:?}", self.step)
    }

    async fn prepare(&self, session: &Session, tokens: &mut Tokens) {
        let lease = self.name("released");
        let token = tokens.returned(session.acq(&lease, "P", "10 min").await.granted());
        assert_eq!(session.rel(&lease, token).await, Ok(true));
        let lease = self.name("expired");
        tokens.returned(session.acq(&lease, "P", "1 ms").await.granted());
        session
            .until("SELECT state = 'expired' FROM lease_status WHERE name = $1", &[&lease])
            .await;
    }

    /// In one statement; in the order of [`STATES`].
    fn acquire(&self, victim: &Session) -> impl Future<Output = Answer<Vec<i64>>> + Send + 'static {
        let more = (0..MORE).map(|number| format!("{number} {:?}", self.step));
        let names: Vec<_> = STATES.iter().map(|(was, _)| self.name(was)).chain(more).collect();
        let victim = victim.clone();
        async move {
            victim
                .list(
                    "SELECT lease_acquire(name, 'V', '10 min') FROM unnest($1::text[]) AS name",
                    &[&names],
                )
                .await
        }
    }
}

/// Brings the victim to that step, and it dies there.
async fn die(death: Death, leases: &Leases, server: &Server, tokens: &mut Tokens) {
    let step = leases.step;
    let [victim, other] = [server.connect().await, server.connect().await];
    match step {
        Step::Before | Step::Drawing => {
            other
                .sql(if step == Step::Before {
                    "BEGIN; LOCK lock_ext.lease IN SHARE MODE"
                } else {
                    "BEGIN; ALTER SEQUENCE lock_ext.lease_token_seq NO CYCLE"
                })
                .await
                .unwrap();
            let asked = tokio::spawn(leases.acquire(&victim));
            other.blocked(&victim).await;
            death.comes(server, &victim).await;
            asked.await.unwrap().expect_err("no answer");
        }
        Step::Told => {
            victim.sql("BEGIN").await.unwrap();
            tokens.returned_all(&leases.acquire(&victim).await.unwrap());
            death.comes(server, &victim).await;
        }
        Step::Committing | Step::CommittingTold => {
            hold_commits(server).await;
            let asked = if step == Step::Committing {
                let asked = leases.acquire(&victim);
                tokio::spawn(async move { asked.await.map(drop) })
            } else {
                victim.sql("BEGIN").await.unwrap();
                tokens.returned_all(&leases.acquire(&victim).await.unwrap());
                victim.beside(|victim| async move { victim.sql("COMMIT").await })
            };
            other.waits(&victim, "SyncRep").await;
            death.comes(server, &victim).await;
            asked.await.unwrap().expect_err("no answer");
            server.set("synchronous_standby_names", "").await;
        }
        Step::Committed | Step::CommittedAsync => {
            if step == Step::CommittedAsync {
                victim.sql("SET synchronous_commit = off").await.unwrap();
            }
            tokens.returned_all(&leases.acquire(&victim).await.unwrap());
            death.comes(server, &victim).await;
        }
    }
}

/// From now on commits stop between being written and becoming visible.
async fn hold_commits(server: &Server) {
    server.set("synchronous_standby_names", "nobody").await;
    // It counts when the checkpointer has seen it: when a commit does stop.
    let [probe, watch] = [server.connect().await, server.connect().await];
    let stops = probe.beside(|probe| async move {
        while probe.sql("SELECT pg_current_xact_id()").await.is_ok() {}
    });
    watch.waits(&probe, "SyncRep").await;
    // The server's end of it stays, until the server dies.
    stops.abort();
}

async fn at_every_step(death: Death) {
    let server = Server::new("server", &[]).await;
    let mut tokens = Tokens::default();
    server.with_extension().await;
    for step in [
        Step::Before,
        Step::Drawing,
        Step::Told,
        Step::Committing,
        Step::CommittingTold,
        Step::Committed,
        Step::CommittedAsync,
    ] {
        let leases = Leases { step };
        leases.prepare(&server.connect().await, &mut tokens).await;
        let highest = tokens.highest();
        die(death, &leases, &server, &mut tokens).await;

        let session = server.connect().await;
        let granted = !matches!(step, Step::Before | Step::Drawing | Step::Told);
        let told = tokens.above(highest);
        for (number, (was, state)) in STATES.into_iter().enumerate() {
            let lease = &leases.name(was);
            let status = session.info(lease).await;
            let shown = status.as_ref().map_or("none", |status| &status.state);
            assert_eq!(shown, if granted { "held" } else { state }, "{lease}, {death:?}");
            let Some(token) = status.and_then(|status| status.token).filter(|_| granted) else {
                continue;
            };
            match told.get(number) {
                Some(told) => assert_eq!(token, *told, "{lease}, {death:?}"),
                // Granted, although nobody was told.
                None => assert!(step == Step::Committing && token > highest, "{lease}, {death:?}"),
            }
            // Who acquires it agrees with what is shown.
            session.acq(lease, "N", "10 min").await.busy();
            assert_eq!(session.is_current(lease, token).await, Ok(true), "{lease}, {death:?}");
            session.ext(lease, token).await.extended();
            assert_eq!(session.rel(lease, token).await, Ok(true), "{lease}, {death:?}");
        }
        for (was, _) in STATES {
            tokens.returned(session.acq(&leases.name(was), "N", "10 min").await.granted());
        }
    }
}

#[tokio::test]
async fn a_killed_backend_leaves_no_half_grant() {
    at_every_step(Death::Backend).await;
}

#[tokio::test]
async fn an_immediate_stop_leaves_no_half_grant() {
    at_every_step(Death::Immediate).await;
}

#[tokio::test]
async fn a_crash_leaves_no_half_grant() {
    at_every_step(Death::Crash).await;
}

/// Clients without synchronous commits, in the middle of what they do: what they were told holds.
#[tokio::test]
async fn no_answered_grant_is_lost_and_no_token_repeated_without_synchronous_commit() {
    let server = Server::new("server", &[]).await;
    server.with_extension().await;
    let mut tokens = Tokens::default();
    for round in 0..4 {
        let crowd = Crowd::on(&server, &round.to_string(), "SET synchronous_commit = off").await;
        crowd.goes_on(200).await;
        if round % 2 == 0 {
            server.stop(Stop::Immediate).await;
        } else {
            server.crash().await;
        }
        server.start().await;
        let session = server.connect().await;
        let (held, told) = (session.held().await, crowd.told().await);
        for (lease, token) in &told.granted {
            assert_eq!(held.get(lease), Some(token), "{lease}");
        }
        tokens.returned_at_once(&told.tokens());
        tokens.returned(session.acq(&format!("after {round}"), "N", "10 min").await.granted());
    }
}

/// How a server may end that is not lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Death(Death),
    /// A fast stop, which ends what is open.
    Stopped,
}

#[tokio::test]
async fn what_sessions_and_transactions_leave_behind() {
    let server = Server::new("server", &[]).await;
    server.with_extension().await.fenced_table("job").await;
    let mut tokens = Tokens::default();
    let ends = Death::ALL.map(End::Death).into_iter().chain([End::Stopped]);
    for (round, end) in (0..).zip(ends) {
        let [bound, waiter, open, prepares] = [
            server.connect().await,
            server.connect().await,
            server.connect().await,
            server.connect().await,
        ];
        let s = tokens.returned(bound.sacq("bound", "S").await.granted());
        let waiting = waiter.beside(|w| async move { w.acq_wait("bound", "W", "10 min").await });
        bound.waits(&waiter, "Extension").await;
        let job = tokens.returned(open.acq("job", "J", "1 s").await.granted());
        prepares.sql("BEGIN").await.unwrap();
        prepares.fence("job", job).await.unwrap();
        prepares
            .sql(&format!(
                "INSERT INTO work VALUES ('prepared', {round}); PREPARE TRANSACTION 'writes'"
            ))
            .await
            .unwrap();
        open.sql("BEGIN").await.unwrap();
        open.fence("job", job).await.unwrap();
        open.sql(&format!("INSERT INTO work VALUES ('open', {round})")).await.unwrap();
        let undone = tokens.returned(open.acq("undone", "U", "10 min").await.granted());
        match end {
            End::Death(death) => death.comes(&server, &open).await,
            End::Stopped => server.restart(Stop::Fast).await,
        }
        waiting.await.unwrap().expect_err("its session is gone");

        let session = server.connect().await;
        assert_eq!(session.info("bound").await.unwrap().state, "free", "{end:?}");
        assert_eq!(session.is_current("bound", s).await, Ok(false));
        session.fence("bound", s).await.refused(STALE);
        assert_eq!(session.rel("bound", s).await, Ok(false));
        assert_eq!(session.one("SELECT count(*) FROM lease_waiter", &[]).await, Ok(0_i64));
        let next = tokens.returned(session.acq("bound", "N", "10 min").await.granted());
        assert_eq!(session.rel("bound", next).await, Ok(true));

        session.ext("undone", undone).await.lost();
        let next = tokens.returned(session.acq("undone", "N", "10 min").await.granted());
        assert_eq!(session.rel("undone", next).await, Ok(true));

        // Prepared is prepared: it fences until it is decided, and then it commits.
        session.until("SELECT state = 'expired' FROM lease_status WHERE name = 'job'", &[]).await;
        session.acq("job", "N", "10 min").await.busy();
        session.sql("COMMIT PREPARED 'writes'").await.unwrap();
        let next = tokens.returned(session.acq("job", "N", "10 min").await.granted());
        session.fw("job", job, 0).await.refused(STALE);
        assert_eq!(session.rel("job", next).await, Ok(true));
        let written =
            session.list("SELECT v FROM work WHERE lease = 'prepared' ORDER BY v", &[]).await;
        assert_eq!(written, Ok((0..=round).collect()), "{end:?}");
        assert_eq!(
            session.one("SELECT count(*) FROM work WHERE lease <> 'prepared'", &[]).await,
            Ok(0_i64),
            "{end:?}"
        );
    }
}

/// More than a sequence logs ahead.
async fn acquire_many(session: &Session) -> Answer<Vec<i64>> {
    session
        .list(
            "SELECT lease_acquire('many-' || gen_random_uuid(), 'M', '10 min') FROM generate_series(1, 40)",
            &[],
        )
        .await
}

/// A sequence that is not logged starts anew after a crash, at where it stood when it was made so. There is more than one
/// that counts, and each of them may be.
#[tokio::test]
async fn tokens_rise_over_a_crash_whatever_was_done_by_hand() {
    for death in [Death::Immediate, Death::Crash] {
        let server = Server::new("server", &[]).await;
        let session = server.with_extension().await;
        let mut tokens = Tokens::default();
        let sequences: Vec<String> = session
            .list(
                "SELECT seqrelid::regclass::text FROM pg_sequence JOIN pg_class ON pg_class.oid = seqrelid
                 WHERE relnamespace = 'lock_ext'::regnamespace",
                &[],
            )
            .await
            .unwrap();
        assert!(sequences.iter().any(|sequence| sequence == "lock_ext.lease_token_seq"));
        let unlogged = sequences.iter().map(|sequence| {
            let set = |how| format!("ALTER SEQUENCE {sequence} SET {how}");
            (set("UNLOGGED"), set("LOGGED"))
        });
        let rewrites = [
            "VACUUM FULL lock_ext.lease",
            "CLUSTER lock_ext.lease USING lease_pkey",
            "REINDEX TABLE lock_ext.lease",
        ];
        let rewrites = rewrites.map(|rewrite| (rewrite.to_owned(), String::new()));
        for (by_hand, afterwards) in unlogged.chain(rewrites) {
            // Shown if it fails.
            println!("{by_hand}, {death:?}");
            let session = server.connect().await;
            tokens.returned(session.acq("job", "A", "1 ms").await.granted());
            session.sql(&by_hand).await.unwrap();
            for last in ["COMMIT", "ROLLBACK"] {
                session.sql("BEGIN").await.unwrap();
                tokens.returned_all(&acquire_many(&session).await.unwrap());
                session.sql(last).await.unwrap();
            }
            death.comes(&server, &session).await;
            let session = server.connect().await;
            // A name that nobody has had: no row says how far the tokens are.
            tokens.returned(session.acq(&by_hand, "N", "10 min").await.granted());
            tokens.returned(session.acq("job", "N", "1 ms").await.granted());
            session.sql(&afterwards).await.unwrap();
            session
                .until("SELECT state = 'expired' FROM lease_status WHERE name = 'job'", &[])
                .await;
        }
    }
}

#[tokio::test]
async fn a_floor_that_was_raised_stays_raised() {
    let server = Server::new("server", &[("wal_writer_delay", "10s")]).await;
    let session = server.with_extension().await;
    session.sql("SET synchronous_commit = off").await.unwrap();
    assert_eq!(session.one("SELECT lease_raise_token_floor(777)", &[]).await, Ok(777_i64));
    server.crash().await;
    server.start().await;
    assert!(server.connect().await.acq("job", "A", "10 min").await.granted() > 777);
}
