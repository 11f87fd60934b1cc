//! What holds a grant back although nobody holds the lease: the minimum hold, and the pause after a loss.

use std::time::{Duration, SystemTime};

use lock_ext_sessions::{Answer, Asked, Db, Refused, STALE, Session, Way};

use super::scene::{asleep, stand};

async fn granted(session: &Session, name: &str, ttl: &str, min_hold: &str, pause: &str) -> i64 {
    session
        .one::<Option<i64>>(
            "SELECT lease_acquire($1, 'A', $2::text::interval, min_hold => $3::text::interval,
                                  pause => $4::text::interval)",
            &[&name, &ttl, &min_hold, &pause],
        )
        .await
        .granted()
}

async fn acquired_at(session: &Session, name: &str) -> SystemTime {
    session.one("SELECT acquired_at FROM lease_status WHERE name = $1", &[&name]).await.unwrap()
}

/// Asks again and again, as a node does that does not wait in line. When it was granted.
async fn polled(db: &Db, session: &Session, name: &str) -> SystemTime {
    let begun = std::time::Instant::now();
    while session.acq(name, "poll", "60 s").await.expect("no error").is_none() {
        assert!(begun.elapsed() < lock_ext_sessions::PATIENCE, "never granted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    acquired_at(&db.watch, name).await
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Release,
    ReleaseInBlock,
    Complete,
    Expiry,
    Force,
}

const ENDS: [End; 5] = [End::Release, End::ReleaseInBlock, End::Complete, End::Expiry, End::Force];

impl End {
    async fn happens(self, db: &Db, a: &Session, name: &str, token: i64) {
        match self {
            Self::Release => assert_eq!(a.rel(name, token).await, Ok(true)),
            Self::ReleaseInBlock => {
                a.sql("BEGIN").await.unwrap();
                assert_eq!(a.rel(name, token).await, Ok(true));
                a.commit().await.unwrap();
            }
            Self::Complete => assert_eq!(
                a.one::<bool>("SELECT lease_complete($1, $2, clock_timestamp())", &[&name, &token])
                    .await,
                Ok(true)
            ),
            Self::Expiry => db.expired(name).await,
            Self::Force => assert_eq!(a.force(name).await, Ok(true)),
        }
    }
}

/// Nobody else before acquired_at + min_hold, whatever its holder did. (An administrator's force is another matter.)
#[tokio::test]
async fn nobody_else_has_it_before_the_minimum_hold_is_over() {
    let db = Db::fresh().await;
    let [a, b, w] = db.sessions().await;
    for end in ENDS.into_iter().filter(|end| *end != End::Force) {
        for waits in [false, true] {
            let name = format!("{end:?} {waits}");
            let ttl = if end == End::Expiry { "300 ms" } else { "1 hour" };
            let t = granted(&a, &name, ttl, "1500 ms", "0").await;
            let earliest = acquired_at(&a, &name).await + Duration::from_millis(1500);
            let call = match waits {
                true => {
                    let call = stand(&db, &w, &name, "40 s").await;
                    asleep(&db, w.pid()).await;
                    Some(call)
                }
                false => None,
            };
            end.happens(&db, &a, &name, t).await;
            assert_eq!(a.rel(&name, t).await, Ok(end == End::Expiry), "the grant itself has ended");
            b.acq(&name, "B", "60 s").await.busy();
            b.sacq(&name, "B", "0").await.busy();
            a.acq(&name, "A", "60 s").await.busy();
            a.lead(&name, "A", "60 s", Some(t)).await.busy();
            assert!(b.clock().await < earliest, "{name}: the machine was too slow to see anything");
            let (state, until): (String, Option<SystemTime>) = {
                let rows = b
                    .rows(
                        "SELECT state, completed_until FROM lease_status WHERE name = $1",
                        &[&name],
                    )
                    .await
                    .unwrap();
                (rows[0].get(0), rows[0].get(1))
            };
            assert_eq!((state.as_str(), until), ("completed", Some(earliest)), "{name}");
            let at = match call {
                Some(call) => {
                    call.await.unwrap().granted();
                    acquired_at(&db.watch, &name).await
                }
                None => polled(&db, &b, &name).await,
            };
            assert!(at >= earliest, "{name}: granted {:?} too early", earliest.duration_since(at));
            assert!(at < earliest + Duration::from_secs(10), "{name}: and not for ever");
        }
    }
}

/// A wait that does not reach so far is no wait: NULL at once. One that does gets it.
#[tokio::test]
async fn a_wait_is_compared_with_the_end_of_the_minimum_hold() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t = granted(&a, "j", "1 hour", "1 hour", "0").await;
    assert_eq!(a.rel("j", t).await, Ok(true));
    let begun = std::time::Instant::now();
    b.acq_wait("j", "B", "60 s", "30 s").await.busy();
    assert!(begun.elapsed() < Duration::from_secs(15), "at once");
    // An administrator can end that, too.
    assert_eq!(b.force("j").await, Ok(true));
    b.acq("j", "B", "60 s").await.granted();
}

/// A later completion counts, an earlier one does not shorten the minimum hold.
#[tokio::test]
async fn a_completion_and_a_minimum_hold_are_both_kept() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t = granted(&a, "late", "1 hour", "10 ms", "0").await;
    let until: SystemTime = b.one("SELECT clock_timestamp() + '1 hour'", &[]).await.unwrap();
    a.exec("SELECT lease_complete('late', $1, $2)", &[&t, &until]).await.unwrap();
    let shown = "SELECT completed_until FROM lease_status WHERE name = $1";
    assert_eq!(b.one(shown, &[&"late"]).await, Ok(Some(until)));
    let t = granted(&a, "early", "1 hour", "1 hour", "0").await;
    let earliest = acquired_at(&a, "early").await + Duration::from_secs(3600);
    a.exec("SELECT lease_complete('early', $1, clock_timestamp() + '1 ms')", &[&t]).await.unwrap();
    assert_eq!(b.one(shown, &[&"early"]).await, Ok(Some(earliest)));
    b.acq("early", "B", "60 s").await.busy();
    // A minimum hold that is over is none.
    let t = granted(&a, "over", "1 hour", "1 ms", "0").await;
    db.until(
        "SELECT clock_timestamp() > acquired_at + '1 ms' FROM lease_status WHERE name = 'over'",
        &[],
    )
    .await;
    assert_eq!(a.rel("over", t).await, Ok(true));
    assert_eq!(b.info("over").await.unwrap().state, "free");
    b.acq("over", "B", "60 s").await.granted();
}

/// After an expiry or a force nobody for that long; after a release or a completion at once.
#[tokio::test]
async fn a_pause_follows_a_loss_and_no_release() {
    let db = Db::fresh().await;
    db.fence("Expiry true").await;
    let [a, b, w] = db.sessions().await;
    for end in ENDS {
        for waits in [false, true] {
            let name = format!("{end:?} {waits}");
            let loss = matches!(end, End::Expiry | End::Force);
            let ttl = if end == End::Expiry { "400 ms" } else { "1 hour" };
            let t = granted(&a, &name, ttl, "0", "1500 ms").await;
            let call = match waits {
                true => {
                    let call = stand(&db, &w, &name, "40 s").await;
                    asleep(&db, w.pid()).await;
                    Some(call)
                }
                false => None,
            };
            let from = match end {
                End::Expiry => a.expiry(&name).await,
                _ => b.clock().await,
            };
            end.happens(&db, &a, &name, t).await;
            if loss {
                b.acq(&name, "B", "60 s").await.busy();
                a.lead(&name, "A", "60 s", Some(t)).await.busy();
                assert!(b.clock().await < from + Duration::from_millis(1500), "{name}: too slow");
            }
            if name == "Expiry true" {
                // Expired is not superseded: the old holder may still finish.
                assert_eq!(a.fw(Way::Transaction, &name, t, 1, 7).await, Ok(1));
            }
            if !loss && call.is_none() {
                b.acq(&name, "B", "60 s").await.granted();
                continue;
            }
            let at = match call {
                Some(call) => {
                    call.await.unwrap().granted();
                    acquired_at(&db.watch, &name).await
                }
                None => polled(&db, &b, &name).await,
            };
            if loss {
                assert!(at >= from + Duration::from_millis(1500), "{name}: no pause");
                assert!(at < from + Duration::from_secs(12), "{name}");
            } else {
                assert!(
                    at < from + Duration::from_millis(1500),
                    "{name}: a pause after a clean end"
                );
            }
        }
    }
    a.fw(Way::Transaction, "Expiry true", 1, 1, 9).await.refused(STALE);
}

/// Each grant says for itself; the next one has none unless it asks.
#[tokio::test]
async fn a_later_grant_does_not_inherit_them() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    let t = granted(&a, "j", "1 hour", "1 ms", "1 hour").await;
    db.until("SELECT clock_timestamp() > acquired_at + '1 ms' FROM lease_status", &[]).await;
    assert_eq!(a.rel("j", t).await, Ok(true));
    let t = b.acq("j", "B", "1 hour").await.granted();
    assert_eq!(a.force("j").await, Ok(true));
    assert_eq!(b.is_current("j", t).await, Ok(false));
    a.acq("j", "A", "60 s").await.granted();

    // With lease_elect, and with a heartbeat of it that does not change them.
    let lead = |token: Option<i64>| {
        let b = b.clone();
        async move {
            b.one::<Option<i64>>(
                "SELECT lease_elect('lead', 'B', '1 hour', $1, min_hold => '1 hour', pause => '1 hour')",
                &[&token],
            )
            .await
        }
    };
    let t = lead(None).await.granted();
    assert_eq!(lead(Some(t)).await, Ok(Some(t)));
    assert_eq!(b.rel("lead", t).await, Ok(true));
    a.lead("lead", "A", "60 s", None).await.busy();
    lead(None).await.busy();
    assert_eq!(a.info("lead").await.unwrap().state, "completed");
}

#[tokio::test]
async fn they_are_lengths_of_known_size() {
    let db = Db::fresh().await;
    let a = db.session().await;
    for argument in ["min_hold", "pause"] {
        for (value, code) in [
            ("NULL", "22004"),
            ("'-1 ms'", "22023"),
            ("'-1 day'", "22023"),
            ("'1 month'", "22023"),
            ("'1 year -11 months'", "22023"),
        ] {
            for call in ["lease_acquire('j', 'A', '60 s'", "lease_elect('j', 'A', '60 s'"] {
                let sql = format!("SELECT {call}, {argument} => {value})");
                let answer: Answer<()> = a.sql(&sql).await;
                assert_eq!(answer.map_err(|error| error.code), Err(code.to_owned()), "{sql}");
                assert_eq!(a.info("j").await, None, "{sql}");
            }
        }
        for value in ["0", "1 microsecond", "1 day", "7 days"] {
            let t: i64 = a
                .one::<Option<i64>>(
                    &format!("SELECT lease_acquire('{argument} {value}', 'A', '60 s', {argument} => '{value}')"),
                    &[],
                )
                .await
                .granted();
            assert_eq!(a.rel(&format!("{argument} {value}"), t).await, Ok(true));
        }
    }
}
