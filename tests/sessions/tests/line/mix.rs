//! Everything at once on one lease: two are never inside together.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_ext_sessions::{Db, Session};

use super::scene::{line_is_empty, nobody_waits, pass};
use crate::checker::dice::Dice;

#[derive(Default)]
struct Seen {
    inside: AtomicUsize,
    last: AtomicI64,
    granted: AtomicUsize,
    refused: AtomicUsize,
    failed: AtomicUsize,
}

/// The lease lives for an hour, so who has a token is alone until it says that it goes.
#[tokio::test]
async fn two_are_never_inside_together() {
    let db = Db::fresh().await;
    let seen = Arc::new(Seen::default());
    let end = Instant::now() + Duration::from_secs(6);
    let mut workers = Vec::new();
    let mut pids = Vec::new();
    for number in 0..12 {
        let session = db.session().await;
        pids.push(session.pid());
        workers.push(tokio::spawn(work(session, Arc::clone(&seen), Dice(number), end)));
    }
    let mut dice = Dice(100);
    while Instant::now() < end {
        let pid = pids[dice.below(pids.len())];
        db.watch.one::<bool>("SELECT pg_cancel_backend($1)", &[&pid]).await.unwrap();
        pass(dice.up_to(8)).await;
    }
    for worker in workers {
        worker.await.expect("nothing was wrong");
    }
    let count = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
    let (granted, refused, failed) =
        (count(&seen.granted), count(&seen.refused), count(&seen.failed));
    assert!(
        granted > 100 && refused > 20 && failed > 20,
        "{granted} granted, {refused} refused, {failed} failed"
    );
    line_is_empty(&db).await;
    nobody_waits(&db).await;
    assert_eq!(db.watch.info("j").await.unwrap().holder, None);
}

async fn work(session: Session, seen: Arc<Seen>, mut dice: Dice, end: Instant) {
    while Instant::now() < end {
        let wait = format!("{} ms", dice.below(60));
        let in_block = dice.one_in(3);
        if in_block && session.sql("BEGIN").await.is_err() {
            continue;
        }
        let mut answer = match dice.below(3) {
            0 => session.sacq("j", "bound", &wait).await,
            1 => session.acq("j", "no wait", "1 hour").await,
            _ => session.acq_wait("j", "timed", "1 hour", &wait).await,
        };
        if in_block {
            let goes_on = matches!(answer, Ok(Some(_))) && !dice.one_in(3);
            let ended = match goes_on {
                true => session.sql("COMMIT").await,
                false => session.sql("ROLLBACK").await,
            };
            answer = match ended {
                Ok(()) if goes_on => answer,
                Ok(()) => answer.map(|_| None),
                Err(error) => {
                    // A cancel came first, so the transaction is there still, or has failed.
                    while session.sql("ROLLBACK").await.is_err() {}
                    Err(error)
                }
            };
        }
        match answer {
            Ok(Some(token)) => {
                assert_eq!(seen.inside.fetch_add(1, Ordering::SeqCst), 0, "two inside");
                assert!(seen.last.fetch_max(token, Ordering::SeqCst) < token, "tokens rise");
                seen.granted.fetch_add(1, Ordering::SeqCst);
                if dice.one_in(2) {
                    pass(dice.up_to(3)).await;
                }
                assert_eq!(seen.inside.fetch_sub(1, Ordering::SeqCst), 1, "two inside");
                // A cancel may meet the release: again, until it is known. Only this session would release it.
                loop {
                    match session.rel("j", token).await {
                        Ok(true) => break,
                        Ok(false) => panic!("the grant with {token} was lost"),
                        Err(error) => assert_eq!(error.code, "57014"),
                    }
                }
            }
            Ok(None) => drop(seen.refused.fetch_add(1, Ordering::SeqCst)),
            Err(error) => {
                assert_eq!(error.code, "57014", "{error:?}");
                seen.failed.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}
