//! Fifty in line, and hundreds of rounds of two things at the same moment.

use std::time::{Duration, Instant};

use lock_ext_sessions::{Asked, Client, Db, Session};

use super::scene::{in_line, line, nobody_waits, pass, sleeps, stand, stand_for};
use crate::CLIENT;
use crate::checker::dice::Dice;

const TTL: Duration = Duration::from_secs(1);

/// A node in line, in a process of its own.
struct Node {
    client: Client,
    lives: bool,
}

/// Holders are killed at random, and some of those who still wait.
#[tokio::test]
async fn fifty_in_line_are_served_once_in_order_while_holders_are_killed() {
    let db = Db::fresh().await;
    let a = db.session().await;
    let mut dice = Dice(4);
    let t = a.acq("j", "A", "1 hour").await.granted();
    let mut nodes = Vec::new();
    for number in 0..50 {
        let mut client = Client::start(&db, CLIENT).await;
        client.ask("SET statement_timeout = 0").await.unwrap();
        // The token, and when it was known.
        client
            .send(&format!(
                "SELECT lease_acquire('j', 'node {number}', '1 s', wait => '5 minutes') || ' ' || \
                 extract(epoch FROM clock_timestamp())"
            ))
            .await;
        in_line(&db, client.backend()).await;
        nodes.push(Node { client, lives: true });
    }
    let pids: Vec<i32> = nodes.iter().map(|node| node.client.backend()).collect();
    assert_eq!(line(&db, "j").await, pids);
    for _ in 0..8 {
        let node = &mut nodes[dice.below(50)];
        if node.lives {
            node.client.kill().await;
            node.lives = false;
        }
    }

    let epoch = "SELECT extract(epoch FROM clock_timestamp())::float8";
    let mut from: f64 = a.one(epoch, &[]).await.unwrap();
    assert_eq!(a.rel("j", t).await, Ok(true));
    let (mut last, mut killed, mut served) = (t, 0, 0);
    for (number, node) in nodes.iter_mut().enumerate() {
        if !node.lives {
            continue;
        }
        let reply = node.client.reply().await.expect("granted");
        let (token, at) = reply.split_once(' ').unwrap_or_else(|| panic!("{number}: {reply:?}"));
        let (token, at): (i64, f64) = (token.parse().unwrap(), at.parse().unwrap());
        assert!(token > last, "node {number}: {token} after {last}");
        last = token;
        served += 1;
        let took = at - from;
        assert!(took < (TTL + Duration::from_secs(1)).as_secs_f64(), "node {number}: {took} s");
        if dice.one_in(2) {
            // It may be dead already when it is granted the lease, or die a moment later.
            pass(dice.up_to(20)).await;
            from = at;
            node.client.kill().await;
            killed += 1;
        } else {
            from = a.one(epoch, &[]).await.unwrap();
            let released = node.client.ask(&format!("SELECT lease_release('j', {token})")).await;
            // False if a busy machine took longer than the time to live.
            assert!(["t", "f"].contains(&released.expect("an answer").as_str()));
        }
    }
    assert!(killed > 10 && served - killed > 10, "{killed} of {served} were killed");
    let grants: i64 = a.one("SELECT grants FROM lease_status WHERE name = 'j'", &[]).await.unwrap();
    assert_eq!(grants, 1 + served, "each of the living once, and no dead one");
    nobody_waits(&db).await;
}

/// Buffers of our table that one after the other in line costs, when all are served.
async fn buffers_per_hand_over(db: &Db, name: &str, waiters: usize) -> f64 {
    let a = db.session().await;
    let t = a.acq(name, "A", "1 hour").await.granted();
    let mut line = Vec::new();
    for _ in 0..waiters {
        let session = db.session().await;
        let call = stand_for(db, &session, name, "1 hour", "50 s").await;
        line.push((session, call));
    }
    let before = buffers(&a).await;
    let mut all = vec![a.clone()];
    a.rel(name, t).await.unwrap();
    for (session, call) in line {
        let token = call.await.unwrap().granted();
        assert_eq!(session.rel(name, token).await, Ok(true));
        all.push(session);
    }
    for session in &all {
        session.sql("SELECT pg_stat_force_next_flush()").await.unwrap();
        session.sql("SELECT 1").await.unwrap();
    }
    (buffers(&a).await - before) as f64 / waiters as f64
}

async fn buffers(session: &Session) -> i64 {
    session.sql("SELECT pg_stat_force_next_flush()").await.unwrap();
    session
        .one(
            "SELECT (heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::bigint
               FROM pg_statio_all_tables WHERE relid = 'lock_ext.lease'::regclass",
            &[],
        )
        .await
        .unwrap()
}

#[tokio::test]
async fn work_for_each_release_does_not_grow_with_the_line() {
    let db = Db::fresh().await;
    // What is read for the first time is not what is compared.
    buffers_per_hand_over(&db, "warm", 2).await;
    let few = buffers_per_hand_over(&db, "few", 5).await;
    let many = buffers_per_hand_over(&db, "many", 50).await;
    assert!(few > 1.0, "nothing was counted: {few}");
    assert!(many <= few * 1.5 + 4.0, "{few} buffers for each of 5, {many} for each of 50");
}

/// A release wakes the head and nobody else: the others do not even look.
#[tokio::test]
async fn a_release_wakes_one_of_fifty() {
    // Alone: a database that is made or dropped wakes every session of the server.
    let db = Db::alone().await;
    let a = db.session().await;
    let mut t = a.acq("j", "A", "1 hour").await.granted();
    let mut holder = a;
    let mut line = Vec::new();
    for _ in 0..50 {
        let session = db.session().await;
        // The search for deadlocks wakes each of them once: let that be over.
        session.sql("SET deadlock_timeout = '1ms'").await.unwrap();
        let call = stand(&db, &session, "j", "50 s").await;
        line.push((session, call));
    }
    let tail: Vec<i32> = line[12..].iter().map(|(session, _)| session.pid()).collect();
    let counts = || tail.iter().map(|pid| sleeps(*pid)).collect::<Vec<_>>();
    let begun = Instant::now();
    let before = loop {
        let before = counts();
        pass(Duration::from_millis(300)).await;
        if counts() == before {
            break before;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "they do not sleep: {before:?}");
    };
    for (session, call) in line.drain(..10) {
        assert_eq!(holder.rel("j", t).await, Ok(true));
        t = call.await.unwrap().granted();
        holder = session;
    }
    // Heartbeats wake nobody at all.
    for _ in 0..20 {
        holder.ext("j", t, "1 hour").await.extended();
    }
    assert_eq!(counts(), before, "woken by releases that are not for them");
    // They can be: the count is not of something else.
    for (session, call) in line.drain(..3) {
        assert_eq!(holder.rel("j", t).await, Ok(true));
        t = call.await.unwrap().granted();
        holder = session;
    }
    assert_ne!(counts()[0], before[0]);
}

const ROUNDS: usize = 500;
const WAIT: Duration = Duration::from_millis(25);

/// What ends a wait at the same moment as the release that would grant it.
const LIMITS: [&str; 4] = ["wait", "statement_timeout", "lock_timeout", "cancel"];

/// An answer that is not a token means not held, and a token means held: with whatever limit, 5 ms before to 5 ms after it.
#[tokio::test]
async fn a_release_at_the_moment_of_the_timeout_is_granted_or_not() {
    let db = Db::fresh().await;
    let mut lanes = Vec::new();
    for (lane, limit) in LIMITS.into_iter().enumerate() {
        let sessions: [Session; 4] = db.sessions().await;
        lanes.push(tokio::spawn(coincide(sessions, limit, lane)));
    }
    for (lane, limit) in lanes.into_iter().zip(LIMITS) {
        let (held, not_held) = lane.await.unwrap();
        // They did coincide.
        assert!(held > 2 && not_held > 2, "{limit}: {held} granted, {not_held} not");
    }
    nobody_waits(&db).await;
}

async fn coincide(
    [a, b, next, canceller]: [Session; 4],
    limit: &'static str,
    lane: usize,
) -> (usize, usize) {
    let name = format!("j{lane}");
    let mut dice = Dice(lane as u64);
    let mut counts = (0, 0);
    let milliseconds = WAIT.as_millis();
    if limit.ends_with("timeout") {
        b.sql(&format!("SET {limit} = '{milliseconds}ms'")).await.unwrap();
    }
    let wait = if limit == "wait" { format!("{milliseconds} ms") } else { "20 s".to_owned() };
    // Where both meet is found out: the calls themselves take time.
    let mut offset = 0i64;
    for round in 0..ROUNDS / LIMITS.len() {
        let t = a.acq(&name, "A", "1 hour").await.granted();
        let bound = round % 2 == 1;
        let (call_name, call_wait) = (name.clone(), wait.clone());
        let begun = Instant::now();
        let call = b.beside(move |me| async move {
            match bound {
                true => me.sacq(&call_name, "B", &call_wait).await,
                false => me.acq_wait(&call_name, "B", "1 hour", &call_wait).await,
            }
        });
        let cancel = (limit == "cancel").then(|| {
            let pid = b.pid();
            canceller.beside(move |me| async move {
                tokio::time::sleep_until((begun + WAIT).into()).await;
                me.one::<bool>("SELECT pg_cancel_backend($1)", &[&pid]).await
            })
        });
        let apart = offset + dice.below(10_001) as i64 - 5_000;
        let micros = (WAIT.as_micros() as i64 + apart).max(0) as u64;
        tokio::time::sleep_until((begun + Duration::from_micros(micros)).into()).await;
        assert_eq!(a.rel(&name, t).await, Ok(true));
        let answer = call.await.unwrap();
        if let Some(cancel) = cancel {
            cancel.await.unwrap().unwrap();
        }
        let status = a.info(&name).await.unwrap();
        match answer {
            Ok(Some(token)) => {
                counts.0 += 1;
                offset = (offset + 300).min(15_000);
                assert_eq!((status.holder.as_deref(), status.token), (Some("B"), Some(token)));
                assert_eq!(a.is_current(&name, token).await, Ok(true));
                next.acq(&name, "N", "60 s").await.busy();
                // A cancel that came too late for the call may meet this one.
                while b.rel(&name, token).await.is_err() {}
            }
            other => {
                counts.1 += 1;
                offset = (offset - 300).max(-15_000);
                if let Err(error) = other {
                    assert!(["57014", "55P03"].contains(&error.code.as_str()), "{error:?}");
                }
                assert_eq!(status.holder, None, "round {round} of {limit}");
                // At once: nothing is in the way.
                let t = next.acq(&name, "N", "60 s").await.granted();
                assert_eq!(next.rel(&name, t).await, Ok(true));
            }
        }
        assert_eq!(a.info(&name).await.unwrap().holder, None, "round {round} of {limit}");
    }
    counts
}

/// The waiter's end of time and the holder's: expiry and limit at the same moment.
#[tokio::test]
async fn an_expiry_at_the_moment_of_the_timeout_is_granted_or_not() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let mut dice = Dice(9);
    let (mut held, mut not_held) = (0, 0);
    for round in 0..120 {
        let t = a.acq("j", "A", "30 ms").await.granted();
        let limit = 20_000 + dice.below(14_001);
        let answer = b.acq_wait("j", "B", "1 hour", &format!("{limit} microseconds")).await;
        match answer.expect("no error") {
            Some(token) => {
                held += 1;
                assert!(token > t);
                assert_eq!(a.rel("j", t).await, Ok(false), "round {round}");
                assert_eq!(b.rel("j", token).await, Ok(true), "round {round}");
            }
            None => {
                not_held += 1;
                assert_eq!(a.rel("j", t).await, Ok(true), "round {round}: nobody took it");
            }
        }
    }
    assert!(held > 0 && not_held > 0, "{held} granted, {not_held} not");
    nobody_waits(&db).await;
}

/// A new head is there while the old one goes: releases that come between are not lost.
#[tokio::test]
async fn a_release_between_two_heads_is_not_lost() {
    let db = Db::fresh().await;
    let [a, first, second] = db.sessions().await;
    let mut dice = Dice(11);
    for round in 0..100 {
        let t = a.acq("j", "A", "1 hour").await.granted();
        let limit = format!("{} ms", 15 + dice.below(6));
        let head = first
            .beside(move |me| async move { me.acq_wait("j", "first", "1 hour", &limit).await });
        let next =
            second.beside(|me| async move { me.acq_wait("j", "second", "1 hour", "30 s").await });
        pass(Duration::from_micros(12_000 + dice.below(10_000) as u64)).await;
        assert_eq!(a.rel("j", t).await, Ok(true));
        if let Some(token) = head.await.unwrap().expect("no error") {
            assert_eq!(first.rel("j", token).await, Ok(true));
        }
        // An hour of the lease and half a minute of wait: it was woken.
        let token = next.await.unwrap();
        assert!(matches!(token, Ok(Some(_))), "round {round}: {token:?}");
        assert_eq!(second.rel("j", token.granted()).await, Ok(true));
    }
    nobody_waits(&db).await;
}
