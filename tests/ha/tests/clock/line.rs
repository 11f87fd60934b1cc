//! Those who wait in line while the clock is stepped. How long they sleep is counted by a clock that cannot be stepped.

use std::time::{Duration, Instant};

use lock_ext_ha::{Answer, Asked, Server, Session};
use tokio::task::JoinHandle;

use super::{Clock, HOURS, connect, with_extension};

/// What a wait may take longer than it should on a busy machine.
const SLACK: f64 = 5.0;

type Waiting = JoinHandle<(Answer<Option<i64>>, Instant)>;

/// Stands in line as the last one. Gives the answer and when it came.
async fn stand(server: &Server, watch: &Session, wait: &'static str) -> Waiting {
    let waiter = connect(server).await;
    let pid = waiter.pid();
    let waiting = waiter.beside(move |me| async move {
        let sql = format!("SELECT lease_acquire('j', 'W', '1 min', wait => '{wait}')");
        (me.one(&sql, &[]).await, Instant::now())
    });
    // In its place, and asleep there.
    watch
        .until(
            "SELECT wait_event IS NOT NULL FROM lease_waiter JOIN pg_stat_activity USING (pid) WHERE pid = $1",
            &[&pid],
        )
        .await;
    waiting
}

async fn scene(name: &str) -> (Server, Clock, Session, Session) {
    let (server, clock) = Clock::server(name).await;
    let a = with_extension(&server).await;
    let watch = connect(&server).await;
    (server, clock, a, watch)
}

/// The head of the line sleeps until an expiry. Steps forward do not wake it, and it need not be: what it counts is the time that really passes.
#[tokio::test]
async fn forward_the_head_has_it_after_a_time_to_live_at_the_latest() {
    let (server, clock, a, watch) = scene("head_forward").await;
    for step in [3, 3 * HOURS] {
        clock.set(0, &watch).await;
        let old = a.acq("j", "A", "4 s").await.granted();
        let start = Instant::now();
        let head = stand(&server, &watch, "50 s").await;
        clock.set(step, &watch).await;
        let (answer, at) = head.await.unwrap();
        let new = answer.granted();
        assert!(new > old, "{new} after {old}");
        let took = (at - start).as_secs_f64();
        assert!(took < 4.0 + SLACK, "{took} s after a step of {step} s");
        assert_eq!(a.rel("j", new).await, Ok(true));
    }
}

#[tokio::test]
async fn back_the_head_has_it_a_time_to_live_after_the_step() {
    let (server, clock, a, watch) = scene("head_back").await;
    for step in [30, 3 * HOURS] {
        clock.set(0, &watch).await;
        let old = a.acq("j", "A", "12 s").await.granted();
        let head = stand(&server, &watch, "50 s").await;
        clock.set(-step, &watch).await;
        let start = Instant::now();
        let (answer, at) = head.await.unwrap();
        let new = answer.granted();
        assert!(new > old, "{new} after {old}");
        let took = (at - start).as_secs_f64();
        assert!(took < 12.0 + SLACK, "{took} s after a step of {step} s");
        assert_eq!(a.rel("j", new).await, Ok(true));
    }
}

/// An expiry that the first look sees as hours away is looked at again.
#[tokio::test]
async fn back_who_comes_after_the_step_waits_for_one_time_to_live() {
    let (server, clock, a, watch) = scene("late_comer").await;
    for step in [30, 3 * HOURS] {
        clock.set(0, &watch).await;
        let old = a.acq("j", "A", "4 s").await.granted();
        clock.set(-step, &watch).await;
        let start = Instant::now();
        let late = stand(&server, &watch, "50 s").await;
        let (answer, at) = late.await.unwrap();
        let new = answer.granted();
        assert!(new > old, "{new} after {old}");
        let took = (at - start).as_secs_f64();
        assert!(took < 4.0 + SLACK, "{took} s after a step of {step} s");
        assert_eq!(a.rel("j", new).await, Ok(true));
    }
}

/// Whatever the clock does, a release is told to the head, and the line goes on in order.
#[tokio::test]
async fn a_release_after_a_step_wakes_the_head() {
    let (server, clock, a, watch) = scene("release").await;
    for offset in [3 * HOURS, -3 * HOURS] {
        clock.set(0, &watch).await;
        let held = a.acq("j", "A", "5 h").await.granted();
        let first = stand(&server, &watch, "50 s").await;
        let second = stand(&server, &watch, "50 s").await;
        clock.set(offset, &watch).await;
        let start = Instant::now();
        assert_eq!(a.rel("j", held).await, Ok(true));
        let (answer, at) = first.await.unwrap();
        let next = answer.granted();
        assert!(next > held && at - start < Duration::from_secs(5));
        assert_eq!(a.rel("j", next).await, Ok(true));
        let last = second.await.unwrap().0.granted();
        assert!(last > next, "{last} after {next}");
        assert_eq!(a.rel("j", last).await, Ok(true));
    }
}

/// For whoever asks, the time that a step took away from the holder must not be taken from the holder's heartbeats.
#[tokio::test]
async fn back_who_asks_holds_up_no_heartbeat() {
    let mut wrong = Vec::new();
    for asking in [
        "SELECT lease_acquire('j', 'W', '1 min', wait => '8 s')",
        "SELECT lease_acquire('j', 'W', '1 min'), pg_sleep(8)",
        "DO 'BEGIN PERFORM lease_acquire(''j'', ''W'', ''1 min''); PERFORM pg_sleep(8); END'",
    ] {
        let (server, clock, a, watch) = scene("heartbeats").await;
        let token = a.acq("j", "A", "4 s").await.granted();
        clock.set(-3 * HOURS, &watch).await;
        let waiter = connect(&server).await;
        let pid = waiter.pid();
        let call = waiter.beside(async move |me| me.sql(asking).await);
        watch
            .until("SELECT wait_event IN ('Extension', 'PgSleep') FROM pg_stat_activity WHERE pid = $1", &[&pid])
            .await;
        // In time, again and again, for longer than the time to live.
        for beat in 0..6 {
            let start = Instant::now();
            match tokio::time::timeout(Duration::from_secs(20), a.ext("j", token)).await {
                Ok(Ok(Some(_))) if start.elapsed() < Duration::from_secs(3) => {}
                answer => {
                    wrong.push(format!(
                        "{asking}: heartbeat {beat}: {answer:?} after {:?}",
                        start.elapsed()
                    ));
                    break;
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        call.await.unwrap().unwrap();
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A wait ends when it is over, for the head by the clock that cannot be stepped. Those behind it wait for a lock with PostgreSQL's lock_timeout, which goes
/// by the one that is: at the latest it ends with the waits of those in front.
#[tokio::test]
async fn no_wait_is_longer_than_its_own_or_that_of_those_in_front() {
    let (server, clock, a, watch) = scene("wait").await;
    for offset in [3 * HOURS, -3 * HOURS] {
        clock.set(0, &watch).await;
        let held = a.acq("j", "A", "24 h").await.granted();
        let start = Instant::now();
        let first = stand(&server, &watch, "6 s").await;
        let second = stand(&server, &watch, "4 s").await;
        let third = stand(&server, &watch, "3 s").await;
        clock.set(offset, &watch).await;
        for (place, waiting) in [(1, first), (2, second), (3, third)] {
            let (answer, at) = waiting.await.unwrap();
            answer.busy();
            let took = (at - start).as_secs_f64();
            println!("place {place}, the clock {offset} s ahead: {took:.1} s");
            assert!(took < 6.0 + SLACK, "place {place}, {offset} s: {took} s");
            assert!(place > 1 || took > 5.9, "the head, {offset} s: {took} s");
        }
        clock.set(0, &watch).await;
        assert_eq!(a.rel("j", held).await, Ok(true));
    }
}
