//! The cases of time zones and of clients with wrong clocks, while the server's clock is stepped as well.

use std::time::{Duration, SystemTime};

use lock_ext_ha::{Asked, Server, Session};

use super::{Clock, HOURS, asked_for, connect, now, remaining, seconds_of, state, with_extension};

/// 14 March 2027, 07:00 UTC: New York goes from 2 to 3 o'clock.
const SPRING: f64 = 1_805_007_600.0;
/// 7 November 2027, 06:00 UTC: New York goes from 2 back to 1 o'clock.
const AUTUMN: f64 = 1_825_567_200.0;

async fn in_zone(server: &Server, zone: &str) -> Session {
    let session = connect(server).await;
    session.sql(&format!("SET TimeZone = '{zone}'")).await.unwrap();
    session
}

async fn hour(session: &Session) -> i32 {
    session.one("SELECT extract(hour FROM localtime)::int", &[]).await.unwrap()
}

/// Both see the lease as held, and with the same time left, but for the time between the questions.
async fn agree(a: &Session, b: &Session, lease: &str) {
    for session in [a, b] {
        assert_eq!(state(session, lease).await, "held");
    }
    let before = remaining(a, lease).await.unwrap();
    let between = remaining(b, lease).await.unwrap();
    let after = remaining(a, lease).await.unwrap();
    assert!(after <= between && between <= before, "{after}, {between}, {before}");
    let [by_a, by_b] = [a, b].map(async |session| session.info(lease).await.unwrap().expires_at);
    assert_eq!(by_a.await, by_b.await);
}

#[tokio::test]
async fn h07_zones_with_a_clock_that_is_stepped_over_the_change_of_the_hour() {
    let (server, clock) = Clock::server("h07").await;
    let a = with_extension(&server).await;
    a.sql("SET TimeZone = 'Asia/Tokyo'").await.unwrap();
    let b = in_zone(&server, "America/New_York").await;
    for (change, hours) in [(SPRING, [1, 3]), (AUTUMN, [1, 1])] {
        let from_now = (change - seconds_of(SystemTime::now())).round() as i64;
        clock.set(from_now - 60, &a).await;
        assert_eq!(hour(&b).await, hours[0], "New York's hour before the change");
        let old = a.acq("z", "A", "10 min").await.granted();
        b.acq("z", "B", "10 min").await.busy();
        agree(&a, &b, "z").await;

        clock.set(from_now + 1, &a).await;
        assert_eq!(hour(&b).await, hours[1], "New York's hour after the change");
        b.acq("z", "B", "10 min").await.busy();
        agree(&a, &b, "z").await;
        let left = remaining(&b, "z").await.unwrap();
        assert!((500.0..=600.0).contains(&left), "{left} s left of ten minutes");

        // And back over the change.
        clock.set(from_now - 50, &a).await;
        b.acq("z", "B", "10 min").await.busy();
        agree(&a, &b, "z").await;
        a.ext("z", old).await.extended();
        agree(&b, &a, "z").await;
        assert!(remaining(&b, "z").await.unwrap() <= 600.0);

        // A day has 24 hours, also where one has 23 or 25.
        let day = b.acq("day", "B", "1 day").await.granted();
        let length: f64 = a
            .one(
                "SELECT extract(epoch FROM expires_at - acquired_at)::float8 FROM lease_status WHERE name = 'day'",
                &[],
            )
            .await
            .unwrap();
        assert_eq!(length, 86_400.0);
        clock.set(from_now + 24 * HOURS - 70, &a).await;
        // Shortly before the end: with a day by the calendar it would have ended an hour ago, or not for an hour.
        agree(&a, &b, "day").await;
        clock.set(from_now + 24 * HOURS - 30, &a).await;
        assert_eq!(state(&b, "day").await, "expired");
        assert!(a.acq("day", "A", "1 s").await.granted() > day);
        assert!(a.acq("z", "A", "1 s").await.granted() > old);
        for lease in ["day", "z"] {
            a.exec("SELECT lease_force_release($1)", &[&lease]).await.unwrap();
        }
    }
}

/// A client with a clock of its own: psql, once for each call.
async fn client(server: &Server, offset: &str, sql: &str) -> String {
    let mut command = std::process::Command::new("sh");
    let psql = server.program("psql");
    command.args(["-c", lock_ext_sessions::FAKETIME, offset]).arg(psql.get_program());
    command.args(["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1"]);
    // What psql believes that time it is, too.
    command.args(["-c", "\\! date +%s", "-c", sql]);
    for (name, value) in psql.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output =
        tokio::task::spawn_blocking(move || command.output()).await.unwrap().expect("faketime");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).expect("text");
    let (clock, answer) = said.split_once('\n').expect("two lines");
    let ahead = clock.trim().parse::<f64>().expect("seconds") - seconds_of(SystemTime::now());
    assert!(ahead.abs() > 100.0, "the client's clock is right: {ahead} s");
    answer.trim().to_owned()
}

#[tokio::test]
async fn h08_clients_with_wrong_clocks_and_a_server_whose_clock_is_stepped() {
    let (server, clock) = Clock::server("h08").await;
    let watch = with_extension(&server).await;
    let acquire = "SELECT lease_acquire('q', 'me', '5 s')";
    // A step after which the fast client's clock is right, and the like for the slow one.
    for offset in [180, -180, -3 * HOURS] {
        clock.set(0, &watch).await;
        let t1 = client(&server, "+3m", acquire).await;
        assert_ne!(t1, "");
        assert_eq!(client(&server, "-3m", acquire).await, "");
        let extended = client(&server, "+3m", &format!("SELECT lease_extend('q', {t1})")).await;
        assert_ne!(extended, "");

        clock.set(offset, &watch).await;
        if offset > 0 {
            assert_eq!(state(&watch, "q").await, "expired");
            assert_eq!(
                client(&server, "+3m", &format!("SELECT lease_extend('q', {t1})")).await,
                ""
            );
        } else {
            assert_eq!(client(&server, "-3m", acquire).await, "", "it is held");
            assert!(remaining(&watch, "q").await.unwrap() <= 5.0);
            assert!(
                watch.info("q").await.unwrap().expires_at.unwrap()
                    <= now(&watch).await + Duration::from_secs(5)
            );
        }
        let t2 = loop {
            let answer = client(&server, "-3m", acquire).await;
            if let Ok(token) = answer.parse::<i64>() {
                break token;
            }
            watch.until("SELECT state = 'expired' FROM lease_status WHERE name = 'q'", &[]).await;
        };
        assert!(t2 > t1.parse().unwrap(), "{t2} after {t1}");
        let lost = client(&server, "+3m", &format!("SELECT lease_extend('q', {t1})")).await;
        assert_eq!(lost, "");
        let (_, took) = asked_for(&watch, "q").await;
        assert!(took < Duration::from_secs(10), "{took:?}");
        watch.sql("SELECT lease_force_release('q')").await.unwrap();
    }
}
