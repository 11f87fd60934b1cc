//! What somebody does to the sequence of the tokens by hand: no token is ever lower than one that was told, or told twice, over all
//! names and sessions.

use std::collections::HashSet;

use lock_ext_ha::{Asked, EPOCH, Refused, Server, Session, Stop};

const SEQUENCE: &str = "lock_ext.lease_token_seq";

/// Sessions that draw in turn, old names and new ones.
struct Draws {
    sessions: Vec<Session>,
    told: HashSet<i64>,
    highest: i64,
    names: usize,
}

impl Draws {
    async fn new(server: &Server, database: &str) -> Self {
        server.connect().await.sql(&format!("CREATE DATABASE {database}")).await.unwrap();
        let mut sessions = Vec::new();
        for _ in 0..3 {
            sessions.push(server.connect_to(database).await);
        }
        sessions[0].sql("CREATE EXTENSION lock_ext").await.unwrap();
        Self { sessions, told: HashSet::new(), highest: 0, names: 0 }
    }

    async fn round(&mut self, case: &str) {
        for (number, session) in self.sessions.iter().enumerate() {
            self.names += 1;
            for name in [format!("new {}", self.names), "old".to_owned(), format!("own {number}")] {
                let token = session.acq(&name, "A", "1 h").await.granted();
                assert!(token > self.highest, "{case}: {token} of {name} after {}", self.highest);
                assert!(self.told.insert(token), "{case}: {token} twice");
                self.highest = token;
                assert_eq!(session.rel(&name, token).await, Ok(true));
            }
        }
    }
}

#[tokio::test]
async fn what_is_done_to_the_sequence_lowers_and_repeats_no_token() {
    let server = Server::new("here", &[]).await;
    for (number, change) in [
        "ALTER SEQUENCE lock_ext.lease_token_seq CACHE 10",
        "ALTER SEQUENCE lock_ext.lease_token_seq CACHE 10000",
        "ALTER SEQUENCE lock_ext.lease_token_seq RESTART",
        "ALTER SEQUENCE lock_ext.lease_token_seq RESTART WITH 3",
        "ALTER SEQUENCE lock_ext.lease_token_seq RESTART WITH 3 CACHE 10",
        "ALTER SEQUENCE lock_ext.lease_token_seq MINVALUE -100 RESTART WITH -50",
        "ALTER SEQUENCE lock_ext.lease_token_seq INCREMENT 7",
        "ALTER SEQUENCE lock_ext.lease_token_seq MINVALUE -1000 INCREMENT -1",
        "ALTER SEQUENCE lock_ext.lease_token_seq MINVALUE -1000 INCREMENT -3 CACHE 5",
        "ALTER SEQUENCE lock_ext.lease_token_seq OWNED BY NONE",
        "ALTER SEQUENCE lock_ext.lease_token_seq SET UNLOGGED",
        "SELECT setval('lock_ext.lease_token_seq', 1)",
        "SELECT setval('lock_ext.lease_token_seq', 1, false)",
        "SELECT setval('lock_ext.lease_token_seq', 5)",
        "TRUNCATE lock_ext.lease RESTART IDENTITY",
        "TRUNCATE lock_ext.lease",
        "DELETE FROM lock_ext.lease; ALTER SEQUENCE lock_ext.lease_token_seq RESTART",
        "SELECT lease_prune('0'); SELECT setval('lock_ext.lease_token_seq', 1)",
        "BEGIN; ALTER SEQUENCE lock_ext.lease_token_seq RESTART; ROLLBACK",
        "BEGIN; SELECT setval('lock_ext.lease_token_seq', 1); ROLLBACK",
        "BEGIN; TRUNCATE lock_ext.lease RESTART IDENTITY; ROLLBACK",
        "VACUUM FULL lock_ext.lease",
    ]
    .into_iter()
    .enumerate()
    {
        let mut draws = Draws::new(&server, &format!("d{number}")).await;
        draws.round(change).await;
        let owner = server.connect_to(&format!("d{number}")).await;
        owner.sql(change).await.unwrap_or_else(|error| panic!("{change}: {error:?}"));
        for _ in 0..4 {
            draws.round(change).await;
        }
        // Once more, now that there is a CACHE, a CYCLE, and so on.
        owner.sql(&format!("SELECT setval('{SEQUENCE}', 1)")).await.unwrap();
        draws.round(change).await;
        draws.sessions.push(server.connect_to(&format!("d{number}")).await);
        draws.round(change).await;
        assert!(draws.highest < EPOCH * 100, "{change}: {}", draws.highest);
    }
}

/// Numbers that it has no room for are given out without it, or not at all: then it is the end of the tokens.
#[tokio::test]
async fn a_lower_maximum_ends_the_tokens_or_does_not_count() {
    let server = Server::new("here", &[]).await;
    for (number, (change, floor)) in [
        ("MAXVALUE 40 CYCLE", 0_i64),
        ("MAXVALUE 40 CACHE 7 CYCLE", 0),
        ("MAXVALUE 40", 0),
        ("MAXVALUE 40", 1_000),
        ("AS integer NO MAXVALUE", 1 << 33),
        ("AS integer NO MAXVALUE CYCLE", 1 << 33),
    ]
    .into_iter()
    .enumerate()
    {
        let database = format!("d{number}");
        let mut draws = Draws::new(&server, &database).await;
        draws.round(change).await;
        draws.sessions[0].sql(&format!("ALTER SEQUENCE {SEQUENCE} {change}")).await.unwrap();
        let raised = "SELECT lease_raise_token_floor($1)";
        if let Err(error) = draws.sessions[0].exec(raised, &[&floor]).await {
            assert_eq!(error.code, "2200H", "{change}, {floor}: {error:?}");
        }
        for round in 0..60 {
            match draws.sessions[round % 3].acq(&format!("again {round}"), "A", "1 h").await {
                Ok(Some(token)) => {
                    assert!(token > draws.highest, "{change}: {token} after {}", draws.highest);
                    draws.highest = token;
                }
                answer => {
                    let error = answer.refused("2200H");
                    assert!(error.hint.is_some(), "{change}: {error:?}");
                }
            }
        }
    }
}

/// While a transaction is open that has changed the sequence, draws wait; what they get is not what it was before.
#[tokio::test]
async fn a_restart_that_is_rolled_back_after_a_draw_repeats_no_token() {
    let server = Server::new("here", &[]).await;
    for (number, change) in [
        "ALTER SEQUENCE lock_ext.lease_token_seq RESTART",
        "TRUNCATE lock_ext.lease RESTART IDENTITY",
    ]
    .into_iter()
    .enumerate()
    {
        for (way, end) in ["COMMIT", "ROLLBACK"].into_iter().enumerate() {
            let database = format!("d{number}{way}");
            let mut draws = Draws::new(&server, &database).await;
            draws.round(change).await;
            let owner = server.connect_to(&database).await;
            owner.sql(&format!("BEGIN; {change}")).await.unwrap();
            for name in ["in it 1", "in it 2"] {
                let token = owner.acq(name, "A", "1 h").await.granted();
                assert!(token > draws.highest, "{change}; {end}: {token}");
                assert!(draws.told.insert(token));
                draws.highest = token;
            }
            owner.sql(end).await.unwrap();
            for _ in 0..3 {
                draws.round(&format!("{change}; {end}")).await;
            }
        }
    }
}

/// An unlogged sequence begins anew after a crash.
#[tokio::test]
async fn an_unlogged_sequence_begins_anew_after_a_crash_and_the_tokens_do_not() {
    let server = Server::new("here", &[]).await;
    let mut draws = Draws::new(&server, "d").await;
    draws.round("logged").await;
    draws.sessions[0].sql(&format!("ALTER SEQUENCE {SEQUENCE} SET UNLOGGED")).await.unwrap();
    for round in ["unlogged", "after a crash", "after another", "after a third"] {
        draws.round(round).await;
        server.restart(Stop::Immediate).await;
        for session in &mut draws.sessions {
            *session = server.connect_to("d").await;
        }
    }
}

/// JSON readers keep whole numbers up to 2^53 - 1, so that is where they end. Nothing but grants does.
#[tokio::test]
async fn at_the_end_of_the_tokens_there_is_a_clear_error() {
    const LAST: i64 = (1 << 53) - 1;
    let server = Server::new("here", &[]).await;
    let a = server.with_extension().await;
    let b = server.connect().await;
    a.fenced_table("held").await;
    let held = a.acq("held", "A", "1 h").await.granted();
    let old = a.acq("old", "A", "1 h").await.granted();
    assert_eq!(a.rel("old", old).await, Ok(true));
    for floor in [-1, LAST, LAST + 1, i64::MAX] {
        a.exec("SELECT lease_raise_token_floor($1)", &[&floor]).await.refused("22023");
    }
    assert_eq!(a.acq("low", "A", "1 h").await.granted(), old + 1, "nothing was raised");
    let raised: i64 = a.one("SELECT lease_raise_token_floor($1)", &[&(LAST - 2)]).await.unwrap();
    assert_eq!(raised, LAST - 2);
    for (token, name) in [(LAST - 1, "old"), (LAST, "the last")] {
        assert_eq!(a.acq(name, "A", "1 h").await.granted(), token);
        a.sql(&format!("SELECT lease_extend('{name}', {token})")).await.unwrap();
    }
    for session in [&a, &b] {
        for name in ["new", "low"] {
            a.sql("SELECT lease_force_release('low')").await.unwrap();
            for call in [
                "SELECT lease_acquire($1, 'A', '1 h')",
                "SELECT lease_acquire($1, 'A', '1 h', wait => '1 s')",
                "SELECT lease_elect($1, 'A', '1 h')",
                "SELECT lease_acquire_session($1, 'A')",
            ] {
                let error = session.exec(call, &[&name]).await.refused("2200H");
                println!("{}: {:?} {:?}", error.message, error.detail, error.hint);
                assert!(error.hint.is_some(), "{error:?}");
                assert!(!error.message.contains("maximum value of sequence"), "{error:?}");
            }
        }
    }
    let left: i64 =
        a.one("SELECT count(*) FROM pg_locks WHERE locktype = 'userlock'", &[]).await.unwrap();
    assert_eq!(left, 0);
    assert_eq!(a.info("new").await, None);
    // Who has a lease goes on, and who waits is told.
    a.ext("held", held).await.extended();
    a.fw("held", held, 1).await.unwrap();
    let waiter = server.connect().await;
    let waiting = waiter.beside(async |me| me.acq_wait("held", "W", "1 h").await);
    a.until("EXISTS (SELECT FROM lease_waiter WHERE name = 'held')", &[]).await;
    assert_eq!(a.rel("held", held).await, Ok(true));
    waiting.await.unwrap().refused("2200H");
    assert_eq!(a.info("held").await.unwrap().waiters, 0);
}

/// CYCLE at the end begins at one again; so it did for the sequence, but not for the tokens.
#[tokio::test]
async fn a_sequence_that_cycles_at_the_end_does_not_begin_again() {
    let server = Server::new("here", &[]).await;
    for maximum in ["", "MAXVALUE 9007199254740991"] {
        let database = format!("d{}", maximum.len());
        let mut draws = Draws::new(&server, &database).await;
        draws.round("before").await;
        let owner = server.connect_to(&database).await;
        owner.sql(&format!("ALTER SEQUENCE {SEQUENCE} {maximum} CYCLE")).await.unwrap();
        owner.exec("SELECT lease_raise_token_floor($1)", &[&((1i64 << 53) - 3)]).await.unwrap();
        for _ in 0..2 {
            let token = owner.acq("old", "A", "1 h").await.granted();
            assert!(token > draws.highest);
            draws.highest = token;
            owner.sql("SELECT lease_force_release('old')").await.unwrap();
        }
        for session in &draws.sessions {
            for name in ["old", "new"] {
                for _ in 0..3 {
                    session.acq(name, "A", "1 h").await.refused("2200H");
                }
            }
        }
    }
}
