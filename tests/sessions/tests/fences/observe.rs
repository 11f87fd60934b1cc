//! `fence_observe`: tokens that another system issues, checked at the call and at the commit.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_ext_sessions::{Answer, Db, LEVELS, PgError, Refused, STALE, Session};

async fn observe(session: &Session, resource: &str, token: i64) -> Answer<()> {
    session.exec("SELECT fence_observe($1, $2)", &[&resource, &token]).await.map(drop)
}

/// A COMMIT has no statement_timeout.
const AT_ONCE: &str = "SET statement_timeout = '10s'; SET lock_timeout = '10s'";

#[tokio::test]
async fn a_lower_token_is_refused_and_an_equal_one_is_fine() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    for (token, fine) in [
        (5, true),
        (5, true),
        (4, false),
        (7, true),
        (6, false),
        (7, true),
        (i64::MAX, true),
        (7, false),
    ] {
        for (session, other) in [(&a, &b), (&b, &a)] {
            let answer = observe(session, "r", token).await;
            if fine {
                answer.unwrap_or_else(|error| panic!("{token}: {error}"));
                observe(other, "r", token).await.unwrap();
            } else {
                answer.refused(STALE).detail_names(&[&"\"r\"", &token]).has_hint();
            }
        }
    }
    // Each resource has its own, and they are compared byte for byte.
    for resource in ["R", "r ", " ", "naïve ☃", "a\"b'c", &"x".repeat(1024)] {
        observe(&a, resource, i64::MIN).await.unwrap();
        observe(&b, resource, -1).await.unwrap();
        observe(&a, resource, -2).await.refused(STALE).detail_names(&[&-2, &-1]);
        observe(&a, resource, 0).await.unwrap();
    }
}

#[tokio::test]
async fn wrong_arguments_are_errors() {
    let db = Db::fresh().await;
    let a = db.session().await;
    for (call, code) in [
        ("NULL, 1", "22004"),
        ("'r', NULL", "22004"),
        ("'', 1", "22023"),
        ("repeat('x', 1025), 1", "22001"),
    ] {
        a.sql(&format!("SELECT fence_observe({call})")).await.refused(code);
    }
    a.sql("BEGIN READ ONLY").await.unwrap();
    observe(&a, "r", 1).await.refused("25006");
    a.rollback().await;
    let role = db.role("anybody").await;
    observe(&db.session_as(&role).await, "r", 1).await.expect("for everybody");
}

/// Whoever has the lower token must be first.
#[tokio::test]
async fn the_order_of_the_commits_decides() {
    let db = Db::fresh().await;
    let [low, high] = db.sessions().await;
    db.watch.sql("CREATE TABLE work (level text, who text)").await.unwrap();
    for level in LEVELS {
        for (number, low_is_first_to_call, low_is_first_to_commit) in
            [(0, true, true), (1, true, false), (2, false, true), (3, false, false)]
        {
            let (resource, case) = (format!("{level} {number}"), format!("{level} {number}"));
            for session in [&low, &high] {
                session.sql(AT_ONCE).await.unwrap();
                session.begin(level).await;
                session.sql("SELECT count(*) FROM pg_class").await.expect("a snapshot");
            }
            let calls = if low_is_first_to_call {
                [(&low, 5), (&high, 7)]
            } else {
                [(&high, 7), (&low, 5)]
            };
            for (session, token) in calls {
                observe(session, &resource, token).await.expect("nothing is committed yet");
                let who = if token == 5 { "low" } else { "high" };
                session.exec("INSERT INTO work VALUES ($1, $2)", &[&case, &who]).await.unwrap();
            }
            let expected: &[&str] = if low_is_first_to_commit {
                low.commit().await.unwrap();
                high.commit().await.unwrap();
                &["high", "low"]
            } else {
                high.commit().await.unwrap();
                low.commit().await.refused(STALE).detail_names(&[&resource, &5, &7]).has_hint();
                &["high"]
            };
            let there: Vec<String> = db
                .watch
                .list("SELECT who FROM work WHERE level = $1 ORDER BY 1", &[&case])
                .await
                .unwrap();
            assert_eq!(there, expected, "what was written goes with it: {case}");
            observe(&low, &resource, 6).await.refused(STALE);
        }
    }
}

/// What was committed since the snapshot counts, and never as a serialization failure.
#[tokio::test]
async fn an_old_snapshot_does_not_hide_a_higher_token() {
    let db = Db::fresh().await;
    let [old, other] = db.sessions().await;
    for (number, level) in (0..).zip(LEVELS) {
        let resource = format!("r{number}");
        observe(&other, &resource, 1).await.unwrap();
        old.begin(level).await;
        old.sql("SELECT count(*) FROM pg_class; SAVEPOINT s").await.unwrap();
        observe(&other, &resource, 7).await.unwrap();
        observe(&old, &resource, 5).await.refused(STALE);
        old.sql("ROLLBACK TO s").await.unwrap();
        observe(&old, &resource, 8).await.unwrap();
        old.commit().await.unwrap_or_else(|error| panic!("{level}: {error}"));
        observe(&other, &resource, 7).await.refused(STALE);
    }
}

#[tokio::test]
async fn it_rolls_back_with_its_transaction_and_savepoint() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    for level in LEVELS {
        let resource = format!("of {level}");
        a.begin(level).await;
        observe(&a, &resource, 9).await.unwrap();
        a.rollback().await;
        observe(&b, &resource, 1).await.expect("9 was never committed");

        a.begin(level).await;
        observe(&a, &resource, 3).await.unwrap();
        a.sql("SAVEPOINT s").await.unwrap();
        observe(&a, &resource, 9).await.unwrap();
        a.sql("SAVEPOINT inside").await.unwrap();
        observe(&a, &resource, 8).await.refused(STALE);
        a.sql("ROLLBACK TO s").await.unwrap();
        observe(&a, &resource, 4).await.expect("9 went with the savepoint");
        a.sql("SAVEPOINT kept").await.unwrap();
        observe(&a, &resource, 5).await.unwrap();
        a.sql("RELEASE kept; SAVEPOINT s2").await.unwrap();
        observe(&a, &resource, 4).await.refused(STALE);
        a.sql("ROLLBACK TO s2").await.unwrap();
        a.commit().await.unwrap();
        observe(&b, &resource, 4).await.refused(STALE);
        observe(&b, &resource, 5).await.unwrap();

        // One that has become stale meanwhile, but was taken back.
        a.begin(level).await;
        a.sql("SAVEPOINT s").await.unwrap();
        observe(&a, &resource, 6).await.unwrap();
        observe(&b, &resource, 7).await.unwrap();
        a.sql("ROLLBACK TO s; CREATE TEMP TABLE IF NOT EXISTS x (i int)").await.unwrap();
        a.commit().await.expect("it has observed nothing");
    }
}

#[tokio::test]
async fn an_idle_observer_blocks_nobody() {
    let db = Db::fresh().await;
    let [idle, frozen, a, b] = db.sessions().await;
    observe(&a, "r", 1).await.unwrap();
    for (session, level) in [(&idle, "READ COMMITTED"), (&frozen, "SERIALIZABLE")] {
        session.begin(level).await;
        observe(session, "r", 5).await.unwrap();
        observe(session, "new", 5).await.unwrap();
    }
    for session in [&a, &b] {
        session.sql(AT_ONCE).await.unwrap();
        for token in [3, 5, 6] {
            if session.pid() == a.pid() {
                observe(session, "r", token).await.unwrap();
                observe(session, "new", token).await.unwrap();
            }
        }
        session.sql("BEGIN").await.unwrap();
        observe(session, "r", 7).await.unwrap();
        session.commit().await.unwrap();
    }
    idle.commit().await.refused(STALE);
    frozen.commit().await.refused(STALE);
}

#[tokio::test]
async fn a_prepared_transaction_keeps_what_it_observed() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let gid = db.name();
    for (end, lower_is_fine) in [("COMMIT", false), ("ROLLBACK", true)] {
        let resource = format!("r {end}");
        a.sql("BEGIN").await.unwrap();
        observe(&a, &resource, 5).await.unwrap();
        a.sql(&format!("PREPARE TRANSACTION '{gid}'")).await.unwrap();
        // A higher one has to wait: 5 may still be committed, and must be before it.
        let waiting = b.beside({
            let resource = resource.clone();
            move |b| async move { observe(&b, &resource, 7).await }
        });
        db.blocked(&b).await;
        a.sql(&format!("{end} PREPARED '{gid}'")).await.unwrap();
        waiting.await.unwrap().unwrap();
        observe(&a, &resource, 6).await.refused(STALE);

        let resource = format!("again {end}");
        a.sql("BEGIN").await.unwrap();
        observe(&a, &resource, 5).await.unwrap();
        a.sql(&format!("PREPARE TRANSACTION '{gid}'")).await.unwrap();
        a.sql(&format!("{end} PREPARED '{gid}'")).await.unwrap();
        let lower = observe(&b, &resource, 4).await;
        if lower_is_fine {
            lower.unwrap();
        } else {
            lower.refused(STALE);
        }
    }
    // Overtaken before it is prepared.
    a.sql("BEGIN").await.unwrap();
    observe(&a, "late", 5).await.unwrap();
    observe(&b, "late", 6).await.unwrap();
    a.sql(&format!("PREPARE TRANSACTION '{gid}'")).await.refused(STALE);
    a.rollback().await;
    assert_eq!(
        a.one::<i64>("SELECT count(*) FROM pg_prepared_xacts WHERE gid = $1", &[&gid]).await,
        Ok(0)
    );
}

/// Several that commit under the token that is there find that it was forgotten, or lowered, while they waited: one of them writes it anew.
#[tokio::test]
async fn a_resource_that_is_forgotten_meanwhile_is_observed_anew() {
    let db = Db::fresh().await;
    let [admin, x, y, z] = db.sessions().await;
    let gid = db.name();
    for round in 0..20 {
        for lowered in [None, Some(3)] {
            let resource = format!("{round} {lowered:?}");
            observe(&admin, &resource, 7).await.unwrap();
            admin.begin("READ COMMITTED").await;
            admin.exec("SELECT fence_forget($1)", &[&resource]).await.unwrap();
            if let Some(token) = lowered {
                observe(&admin, &resource, token).await.unwrap();
            }
            admin.sql(&format!("PREPARE TRANSACTION '{gid}'")).await.unwrap();
            let mut commits = Vec::new();
            for session in [&x, &y, &z] {
                session.begin(LEVELS[round % 3]).await;
                observe(session, &resource, 7).await.expect("it is not forgotten yet");
                commits.push(session.beside(|me| async move { me.commit().await }));
                db.blocked(session).await;
            }
            admin.sql(&format!("COMMIT PREPARED '{gid}'")).await.unwrap();
            for commit in commits {
                let answer = commit.await.unwrap();
                answer.unwrap_or_else(|error| panic!("{resource}: {error}"));
            }
            observe(&admin, &resource, 6).await.refused(STALE).detail_names(&[&6, &7]);
        }
    }
}

async fn forget(session: &Session, resource: &str) -> Answer<bool> {
    session.one("SELECT fence_forget($1)", &[&resource]).await
}

#[tokio::test]
async fn forgetting_belongs_to_its_transaction_and_savepoint() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    for level in LEVELS {
        let resource = format!("of {level}");
        let r = resource.as_str();
        observe(&a, r, 7).await.unwrap();

        a.begin(level).await;
        assert_eq!(forget(&a, r).await, Ok(true));
        assert_eq!(forget(&a, r).await, Ok(false), "it has just been forgotten");
        observe(&a, r, 3).await.unwrap();
        observe(&a, r, 2).await.refused(STALE).detail_names(&[&2, &3]);
        a.rollback().await;
        observe(&b, r, 6).await.refused(STALE).detail_names(&[&6, &7]);

        a.begin(level).await;
        a.sql("SAVEPOINT s").await.unwrap();
        assert_eq!(forget(&a, r).await, Ok(true));
        a.sql("SAVEPOINT inside").await.unwrap();
        observe(&a, r, 3).await.unwrap();
        a.sql("RELEASE inside; ROLLBACK TO s").await.unwrap();
        observe(&a, r, 6).await.refused(STALE).detail_names(&[&6, &7]);
        a.rollback().await;

        a.begin(level).await;
        a.sql("SAVEPOINT s").await.unwrap();
        assert_eq!(forget(&a, r).await, Ok(true));
        observe(&a, r, 3).await.unwrap();
        a.sql("RELEASE s").await.unwrap();
        assert_eq!(forget(&a, r).await, Ok(true), "what it has observed itself");
        observe(&a, r, 4).await.unwrap();
        observe(&b, r, 8).await.unwrap();
        a.commit().await.expect("8 was forgotten with the rest");
        observe(&b, r, 3).await.refused(STALE).detail_names(&[&3, &4]);

        a.begin(level).await;
        observe(&a, r, 9).await.unwrap();
        assert_eq!(forget(&a, r).await, Ok(true));
        a.commit().await.unwrap();
        assert_eq!(forget(&a, r).await, Ok(false));
        observe(&b, r, -5).await.unwrap();
    }
}

/// Nobody waits for who has forgotten something and is idle, and no order of forgetting is a deadlock.
#[tokio::test]
async fn forgetting_holds_up_nobody() {
    let db = Db::fresh().await;
    let [idle, a, b] = db.sessions().await;
    for session in [&a, &b] {
        session.sql(AT_ONCE).await.unwrap();
    }
    for round in 0..20 {
        let of_round = |name: &str| format!("{name} {round}");
        let (x, y) = (of_round("x"), of_round("y"));
        for resource in [&x, &y] {
            observe(&a, resource, 5).await.unwrap();
        }
        idle.begin("READ COMMITTED").await;
        for resource in [&x, &y] {
            assert_eq!(forget(&idle, resource).await, Ok(true));
        }
        for (session, order) in [(&a, [&x, &y]), (&b, [&y, &x])] {
            session.begin(LEVELS[round % 3]).await;
            for resource in order {
                if round % 2 == 0 || session.pid() == a.pid() {
                    observe(session, resource, 5).await.unwrap();
                } else {
                    assert_eq!(forget(session, resource).await, Ok(true));
                }
            }
        }
        let ends = [&a, &b].map(|session| session.beside(|me| async move { me.commit().await }));
        for end in ends {
            end.await.unwrap().unwrap();
        }
        idle.commit().await.unwrap();
        assert_eq!(forget(&a, &x).await, Ok(false));
        assert_eq!(forget(&a, &y).await, Ok(false));
    }
}

/// Two that have observed the same two resources in opposite orders, ended at the same time.
#[tokio::test]
async fn crossed_commits_do_not_deadlock() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    for round in 0..40 {
        for (session, order) in [(&a, ["x", "y"]), (&b, ["y", "x"])] {
            session.sql("BEGIN").await.unwrap();
            for resource in order {
                let own = i64::from(session.pid() == b.pid());
                observe(session, resource, round * 2 + own).await.unwrap();
            }
        }
        let ends = [
            a.beside(|a| async move { a.commit().await }),
            b.beside(|b| async move { b.commit().await }),
        ];
        let [low, high] = ends;
        let (low, high) = (low.await.unwrap(), high.await.unwrap());
        high.expect("nobody has a higher one");
        assert!(low.as_ref().err().is_none_or(|error| error.code == STALE), "{low:?}");
    }
}

/// At full speed: whoever commits has a token that is not below any that was committed before it began.
#[tokio::test]
async fn no_commit_is_below_one_that_was_there_before() {
    let db = Db::fresh().await;
    let end = Instant::now() + Duration::from_secs(3);
    let highest = Arc::new(Mutex::new(i64::MIN));
    let next = Arc::new(Mutex::new(0_i64));
    let mut racers = Vec::new();
    for number in 0..6_usize {
        let session = db.session().await;
        let (highest, next) = (highest.clone(), next.clone());
        racers.push(session.beside(move |me| async move {
            let (mut committed, mut refused) = (0, 0);
            while Instant::now() < end {
                let token = {
                    let mut next = next.lock().unwrap();
                    *next += 1;
                    *next
                };
                me.begin(LEVELS[number % 3]).await;
                let answer = async {
                    observe(&me, "r", token).await?;
                    // Some are slower than others, so that their turn is over when they come to it.
                    if number % 2 == 0 {
                        me.sql("SELECT pg_sleep(0.002)").await?;
                    }
                    let before = *highest.lock().unwrap();
                    me.commit().await?;
                    assert!(token >= before, "{token} was committed after {before}");
                    let mut highest = highest.lock().unwrap();
                    *highest = token.max(*highest);
                    Ok::<(), PgError>(())
                };
                match answer.await {
                    Ok(()) => committed += 1,
                    Err(error) if error.code == STALE => refused += 1,
                    Err(error) => panic!("{error:?}"),
                }
                me.rollback().await;
            }
            (committed, refused)
        }));
    }
    let (mut committed, mut refused) = (0, 0);
    for racer in racers {
        let one = racer.await.unwrap();
        committed += one.0;
        refused += one.1;
    }
    assert!(committed > 50 && refused > 50, "no race: {committed} committed, {refused} refused");
}
