//! One lease, its holder, somebody who wants it, and the clock.

use std::time::{Duration, Instant};

use lock_ext_ha::{Answer, Asked, Refused, STALE, Session};

use super::{Clock, HOURS, asked_for, connect, now, remaining, seconds_of, state, with_extension};

/// What a granted wait may take longer than it should on a busy machine.
const SLACK: f64 = 5.0;

async fn acquire(session: &Session, lease: &str, arguments: &str) -> i64 {
    session
        .one::<Option<i64>>(&format!("SELECT lease_acquire($1, 'A', {arguments})"), &[&lease])
        .await
        .granted()
}

/// The lease has no more time than `at_most` seconds, on the clock as it is.
async fn left(session: &Session, lease: &str, at_most: f64) {
    let left = remaining(session, lease).await.expect("it is held");
    assert!((0.0..=at_most).contains(&left), "{left} s left of {lease}");
}

#[tokio::test]
async fn forward_a_held_lease_ends_and_whoever_comes_next_supersedes_it() {
    let (server, clock) = Clock::server("forward").await;
    let a = with_extension(&server).await;
    let [b, writer] = [connect(&server).await, connect(&server).await];
    a.fenced_table("j").await;
    let mut offset = 0;
    for step in [70, 5 * HOURS, 40 * 24 * HOURS] {
        let old = acquire(&a, "j", "'1 min'").await;
        b.acq("j", "B", "1 min").await.busy();
        writer.sql("BEGIN").await.unwrap();
        writer.fence("j", old).await.unwrap();
        writer.sql("INSERT INTO work VALUES ('j', 1)").await.unwrap();

        offset += step;
        clock.set(offset, &a).await;
        assert_eq!(state(&b, "j").await, "expired", "after {step} s");
        assert_eq!(remaining(&b, "j").await, Some(0.0), "never below zero");
        a.ext("j", old).await.lost();
        assert_eq!(a.is_current("j", old).await, Ok(false));
        // Nobody was granted it yet.
        a.fw("j", old, 2).await.unwrap();

        let new = b.acq("j", "B", "1 min").await.granted();
        assert!(new > old, "{new} after {old}");
        writer.sql("COMMIT").await.refused(STALE);
        a.fw("j", old, 3).await.refused(STALE);
        a.ext("j", old).await.lost();
        assert_eq!(a.rel("j", old).await, Ok(false));
        b.fw("j", new, 4).await.unwrap();
        left(&b, "j", 60.0).await;
        assert_eq!(b.rel("j", new).await, Ok(true));
    }
    // A session has no clock.
    let bound = a.sacq("bound", "A").await.granted();
    clock.set(offset + 5 * HOURS, &a).await;
    assert_eq!(state(&b, "bound").await, "held");
    assert_eq!(remaining(&b, "bound").await, None);
    b.acq("bound", "B", "1 min").await.busy();
    a.fw("j", bound, 5).await.refused(STALE);
    assert_eq!(a.is_current("bound", bound).await, Ok(true));
    clock.set(-5 * HOURS, &a).await;
    assert_eq!(state(&b, "bound").await, "held");
    b.acq("bound", "B", "1 min").await.busy();
    assert_eq!(a.rel("bound", bound).await, Ok(true));
}

/// The first one who asks finds more time left than the time to live, and from then on it is not more.
#[tokio::test]
async fn back_a_lease_is_free_one_time_to_live_after_somebody_asked() {
    let (server, clock) = Clock::server("back").await;
    let a = with_extension(&server).await;
    let b = connect(&server).await;
    a.fenced_table("j").await;
    let ttl = 3.0;
    // A server's clock that goes further and further back; the holder does not extend.
    let mut offset = 0;
    for step in [20, 3 * HOURS, 40 * 24 * HOURS] {
        let old = acquire(&a, "j", "'3 s'").await;
        offset -= step;
        clock.set(offset, &a).await;
        assert_eq!(state(&b, "j").await, "held", "what was promised by the old clock");
        assert!(remaining(&b, "j").await.unwrap() > ttl, "nobody has asked");

        b.acq("j", "B", "1 min").await.busy();
        let asked = now(&b).await;
        left(&b, "j", ttl).await;
        let expires_at = b.info("j").await.unwrap().expires_at.unwrap();
        assert!(seconds_of(expires_at) <= seconds_of(asked) + ttl);
        assert_eq!(a.is_current("j", old).await, Ok(true), "until then it goes on");
        a.fw("j", old, 1).await.unwrap();
        // Asking again does not make it last.
        tokio::time::sleep(Duration::from_millis(200)).await;
        b.acq("j", "B", "1 min").await.busy();
        assert_eq!(b.info("j").await.unwrap().expires_at, Some(expires_at));

        let (new, took) = asked_for(&b, "j").await;
        assert!(took.as_secs_f64() < ttl + SLACK, "{took:?} after a step of {step} s");
        assert!(now(&b).await >= expires_at, "not before it is over");
        assert!(new > old, "{new} after {old}");
        a.ext("j", old).await.lost();
        a.fw("j", old, 2).await.refused(STALE);
        assert_eq!(b.rel("j", new).await, Ok(true));
    }
}

/// By less than the lease has had: then there is never more left than the time to live, and nothing to be done.
#[tokio::test]
async fn back_and_forth_by_less_than_the_time_to_live_changes_no_expiry() {
    let (server, clock) = Clock::server("jitter").await;
    let a = with_extension(&server).await;
    let b = connect(&server).await;
    let old = acquire(&a, "j", "'20 s'").await;
    let expires_at = a.info("j").await.unwrap().expires_at;
    for offset in [10, 2, 15, 5] {
        clock.set(offset, &a).await;
        b.acq("j", "B", "1 min").await.busy();
        assert_eq!(b.info("j").await.unwrap().expires_at, expires_at);
        left(&b, "j", 20.0).await;
    }
    clock.set(21, &a).await;
    assert!(b.acq("j", "B", "1 min").await.granted() > old);
}

/// A heartbeat counts from the clock as it is, whichever call it is.
#[tokio::test]
async fn back_the_holders_extension_counts_from_the_new_time() {
    let (server, clock) = Clock::server("heartbeat").await;
    let a = with_extension(&server).await;
    let b = connect(&server).await;
    let mut offset = 0;
    for call in [
        "lease_extend('j', $1)",
        "lease_extend('j', $1, '1 min')",
        "(SELECT expires_at FROM lease_extend_many('{j}', ARRAY[$1::int8]))",
        "(SELECT expires_at FROM lease_extend_many('{j}', ARRAY[$1::int8], '1 min'))",
        "(lease_elect('j', 'A', '1 min', $1), clock_timestamp())",
    ] {
        for asked_before in [false, true] {
            let token = acquire(&a, "j", "'1 min'").await;
            offset -= 3 * HOURS;
            clock.set(offset, &a).await;
            if asked_before {
                b.acq("j", "B", "1 min").await.busy();
            }
            let answer: Answer<bool> =
                a.one(&format!("SELECT {call} IS NOT NULL"), &[&token]).await;
            assert_eq!(answer, Ok(true), "{call}");
            let left = remaining(&a, "j").await.unwrap();
            assert!(
                (0.0..=60.0).contains(&left),
                "{left} s left after {call}, asked before: {asked_before}"
            );
            let expires_at = a.info("j").await.unwrap().expires_at.unwrap();
            let most = seconds_of(now(&a).await) + 60.0;
            assert!(seconds_of(expires_at) <= most, "{call}");
            // It is as good as any other.
            b.acq("j", "B", "1 min").await.busy();
            assert_eq!(b.info("j").await.unwrap().expires_at, Some(expires_at), "{call}");
            assert_eq!(a.is_current("j", token).await, Ok(true));
            assert_eq!(a.rel("j", token).await, Ok(true));
        }
    }
}

/// What holds a grant back besides the time to live is not longer than it was asked for either.
#[tokio::test]
async fn back_a_minimum_hold_and_a_pause_last_no_longer_than_they_were_asked_for() {
    let (server, clock) = Clock::server("hold_back").await;
    let a = with_extension(&server).await;
    let b = connect(&server).await;
    let mut offset = 0;
    let cases = [
        // The grant's arguments; what happens before the step and after it; how long it takes from then on at most.
        ("'2 s', min_hold => '4 s'", "", "", 4.0),
        ("'2 s', pause => '3 s'", "", "", 5.0),
        ("'2 s', min_hold => '4 s', pause => '1 s'", "", "", 4.0),
        ("'2 s', min_hold => '4 s'", "", "SELECT lease_release('j', {t})", 4.0),
        ("'2 s', min_hold => '4 s'", "SELECT lease_release('j', {t})", "", 4.0),
        ("'2 s', pause => '3 s'", "", "SELECT lease_force_release('j')", 3.0),
        ("'2 s', pause => '3 s'", "SELECT lease_force_release('j')", "", 3.0),
        ("'2 s', min_hold => '4 s'", "SELECT lease_extend('j', {t}, '3 s')", "", 7.0),
    ];
    let mut wrong = Vec::new();
    for (number, (arguments, before, after, at_most)) in cases.iter().enumerate() {
        let lease = format!("j{number}");
        let case = format!("{arguments}; {before}; the clock; {after}");
        let token = acquire(&a, &lease, arguments).await;
        let end = |sql: &str| {
            sql.replace("'j'", &format!("'{lease}'")).replace("{t}", &token.to_string())
        };
        a.sql(&end(before)).await.unwrap();
        offset -= 3 * HOURS;
        clock.set(offset, &a).await;
        a.sql(&end(after)).await.unwrap();
        let start = Instant::now();
        let mut granted = None;
        while start.elapsed().as_secs_f64() < at_most + SLACK && granted.is_none() {
            granted = b.acq(&lease, "B", "1 min").await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        match granted {
            Some(new) => assert!(new > token, "{case}"),
            None => {
                let rows = b
                    .rows("SELECT s::text FROM lease_status AS s WHERE name = $1", &[&lease])
                    .await
                    .unwrap();
                wrong.push(format!("{case}: {}", rows[0].get::<_, String>(0)));
            }
        }
    }
    assert!(wrong.is_empty(), "held back for hours: {wrong:#?}");
}

/// A completion ends at a moment of the clock, wherever that goes.
#[tokio::test]
async fn a_completion_ends_at_its_moment() {
    let (server, clock) = Clock::server("complete").await;
    let a = with_extension(&server).await;
    let until = seconds_of(now(&a).await) + (2 * HOURS) as f64;
    let token = acquire(&a, "j", "'1 min'").await;
    let complete = "SELECT lease_complete('j', $1, to_timestamp($2::float8))";
    assert_eq!(a.one(complete, &[&token, &until]).await, Ok(true));
    for offset in [0, HOURS, -3 * HOURS, 2 * HOURS - 60] {
        clock.set(offset, &a).await;
        a.acq("j", "A", "1 min").await.busy();
        assert_eq!(state(&a, "j").await, "completed", "at {offset} s");
    }
    clock.set(2 * HOURS + 1, &a).await;
    assert_eq!(state(&a, "j").await, "free");
    assert!(acquire(&a, "j", "'1 min'").await > token);
}
