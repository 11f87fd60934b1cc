//! Tokens after a fail-over by servers whose clocks are wrong: inside of an epoch they begin at the clock, and rise whatever it says.

use lock_ext_ha::{Asked, EPOCH, Refused, STALE, Server, Session};

use super::{Clock, HOURS, connect, unname, with_extension};

const YEAR: i64 = 365 * 24 * HOURS;

/// Some tokens of several leases, in the order in which they were told.
async fn told(session: &Session, all: &mut Vec<i64>) {
    for round in 0..5 {
        for lease in ["j", "k"] {
            let token = session.acq(lease, "A", "1 min").await.granted();
            assert!(all.iter().all(|&old| old < token), "{token} in round {round} after {all:?}");
            assert!(token < 1 << 53, "{token}");
            all.push(token);
            assert_eq!(session.rel(lease, token).await, Ok(true));
        }
    }
}

/// The next server, from what this one has by now, at once after what it has not: this one goes on and is gone.
async fn failed_over(from: &Server, name: &str, all: &mut Vec<i64>) -> Server {
    let standby = from.standby(name).await;
    unname(&standby);
    standby.caught_up(from).await;
    standby.cut_off().await;
    // A tail that is lost.
    told(&connect(from).await, all).await;
    from.crash().await;
    standby.promote().await;
    standby
}

#[tokio::test]
async fn clocks_that_differ_by_hours_and_years_do_not_lower_a_token() {
    // The clocks of the servers one after the other: a token begins at its server's.
    for clocks in [
        [0, -3 * HOURS, -6 * HOURS],
        [0, 3 * HOURS, -3 * HOURS],
        [0, -20 * YEAR, 0],
        [-20 * YEAR, 0, -20 * YEAR],
        // Beyond what an epoch has room for.
        [0, 150 * YEAR, 0],
    ] {
        let mut all = Vec::new();
        let (first, clock) = Clock::server("first").await;
        let a = with_extension(&first).await;
        a.fenced_table("f").await;
        clock.set(clocks[0], &a).await;
        told(&a, &mut all).await;
        let old = a.acq("f", "A", "1 min").await.granted();
        all.push(old);
        a.fw("f", old, 1).await.unwrap();
        assert!(*all.last().unwrap() < EPOCH, "a fresh database counts from one");

        // They share the file, as each is gone when the next one is there.
        let second = failed_over(&first, "second", &mut all).await;
        let b = connect(&second).await;
        clock.set(clocks[1], &b).await;
        told(&b, &mut all).await;
        assert!(b.sql("SELECT lease_force_release('f')").await.is_ok());
        let new = b.acq("f", "B", "1 min").await.granted();
        assert!(new > EPOCH && new > old, "{new} at {clocks:?}");
        all.push(new);
        b.fw("f", old, 2).await.refused(STALE);
        b.fw("f", new, 3).await.unwrap();

        let third = failed_over(&second, "third", &mut all).await;
        let c = connect(&third).await;
        clock.set(clocks[2], &c).await;
        told(&c, &mut all).await;
        c.fw("f", old, 4).await.refused(STALE);
    }
}

/// A server whose clock is stepped draws on.
#[tokio::test]
async fn a_stepped_clock_changes_no_number_line() {
    let (first, clock) = Clock::server("stepped").await;
    let a = with_extension(&first).await;
    let mut all = Vec::new();
    for offset in [0, -3 * HOURS, 40 * 24 * HOURS, -YEAR] {
        clock.set(offset, &a).await;
        told(&a, &mut all).await;
    }
    let second = failed_over(&first, "promoted", &mut all).await;
    let b = connect(&second).await;
    let before = all.len();
    for offset in [0, -3 * HOURS, 40 * 24 * HOURS, -YEAR] {
        clock.set(offset, &b).await;
        told(&b, &mut all).await;
    }
    let last = all.last().unwrap();
    assert!(all[before] > EPOCH && last - all[before] < EPOCH / 1024, "one epoch: {all:?}");
}
