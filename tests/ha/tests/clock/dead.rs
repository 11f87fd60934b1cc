//! The holder is dead, and the clock was stepped back by much more than its time to live: however one asks, the lease is to be had in about one.

use std::time::{Duration, Instant};

use lock_ext_ha::{Asked, Session};

use super::{Clock, HOURS, connect, with_extension};

/// Asks again and again in one session until a token comes.
async fn asked(session: &Session, sql: &str) -> Duration {
    let start = Instant::now();
    loop {
        if let Some(begin) = sql.strip_prefix("BEGIN; ") {
            session.sql("BEGIN").await.unwrap();
            let answer = session.one::<Option<i64>>(begin, &[]).await.unwrap();
            session.sql("COMMIT").await.unwrap();
            if answer.is_some() {
                return start.elapsed();
            }
        } else if session.one::<Option<i64>>(sql, &[]).await.unwrap().is_some() {
            return start.elapsed();
        }
        assert!(start.elapsed() < Duration::from_secs(40), "never granted: {sql}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn back_a_dead_holders_lease_is_had_however_one_asks() {
    let (server, clock) = Clock::server("dead").await;
    let a = with_extension(&server).await;
    for (name, sql) in [
        ("plain", "SELECT lease_acquire('plain', 'B', '1 min')"),
        ("short waits", "SELECT lease_acquire('short waits', 'B', '1 min', wait => '500 ms')"),
        ("block", "BEGIN; SELECT lease_acquire('block', 'B', '1 min')"),
        ("from", "SELECT * FROM lease_acquire('from', 'B', '1 min')"),
        ("elect", "SELECT lease_elect('elect', 'B', '1 min')"),
        ("long wait", "SELECT lease_acquire('long wait', 'B', '1 min', wait => '30 s')"),
    ] {
        clock.set(0, &a).await;
        let token = a.acq(name, "A", "3 s").await.granted();
        clock.set(-3 * HOURS, &a).await;
        let b = connect(&server).await;
        let took = asked(&b, sql).await;
        assert!(took < Duration::from_secs(15), "{name}: {took:?}");
        assert_eq!(a.is_current(name, token).await, Ok(false));
    }
}

/// The extension moves what its holder was promised with the clock, so that it ends.
#[tokio::test]
async fn back_a_minimum_hold_ends_after_an_extension() {
    let (server, clock) = Clock::server("hold").await;
    let a = with_extension(&server).await;
    for (name, ending) in [("dies", ""), ("releases", "SELECT lease_release($1, $2)")] {
        clock.set(0, &a).await;
        let token: i64 = a
            .one::<Option<i64>>("SELECT lease_acquire($1, 'A', '2 s', min_hold => '4 s')", &[&name])
            .await
            .granted();
        clock.set(-3 * HOURS, &a).await;
        a.ext(name, token).await.extended();
        if !ending.is_empty() {
            assert_eq!(a.one(ending, &[&name, &token]).await, Ok(true));
        }
        let b = connect(&server).await;
        let took = asked(&b, &format!("SELECT lease_acquire('{name}', 'B', '1 min')")).await;
        assert!(took < Duration::from_secs(15), "{name}: {took:?}");
    }
}
