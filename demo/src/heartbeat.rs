//! Keeps a lease alive while the work goes on, and says when to stop.
//!
//! Three rules:
//!
//! 1. Renew every third of the time to live, so that one lost heartbeat does no harm, and on a connection of
//!    its own, so that it never has to queue behind the work.
//! 2. Keep an own deadline, counted from *before* the call that was answered. The server counted its time to live
//!    from a later moment, so the own deadline is never the later one of the two.
//! 3. Stop when the answer is NULL, when there is an error, and when the deadline passes without an answer.
//!
//! A heartbeat cannot promise that nobody else works: a process may freeze right after it looked.
//! That is the fence's part. The heartbeat sees to it that a healthy worker keeps its lease, and that one that has
//! lost it stops wasting its time.

use crate::db::{Db, Failure, value};
use crate::event::{Event, tell};
use std::time::SystemTime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant, MissedTickBehavior, interval_at, timeout_at};

/// A grant, as its holder knows it.
#[derive(Clone)]
pub struct Lease {
    pub name: String,
    pub token: i64,
    pub time_to_live: Duration,
    /// Taken before the call that was answered with the token.
    pub asked_at: Instant,
}

#[derive(Clone)]
enum Standing {
    HeldUntil(Instant),
    Lost(String),
}

pub struct Heartbeat {
    standing: watch::Receiver<Standing>,
    beating: JoinHandle<()>,
}

impl Heartbeat {
    pub async fn start(db: Db, lease: Lease) -> Result<Self, Failure> {
        // A heartbeat that a crash of the server undoes only ends the lease earlier: not worth a flush.
        db.client.batch_execute("SET synchronous_commit = off").await?;
        let deadline = lease.asked_at + lease.time_to_live;
        let (says, standing) = watch::channel(Standing::HeldUntil(deadline));
        let beating = tokio::spawn(async move {
            let why = beat(&db, &lease, deadline, &says).await;
            tell(&Event::HeartbeatStopped { why: why.clone() });
            says.send_replace(Standing::Lost(why));
        });
        Ok(Self { standing, beating })
    }

    /// May the worker start something new? Looks at the clock as well: the heartbeat may be late itself.
    pub fn check(&self) -> Result<(), Failure> {
        match &*self.standing.borrow() {
            Standing::HeldUntil(deadline) if Instant::now() < *deadline => Ok(()),
            Standing::HeldUntil(deadline) => Err(Failure::LeaseLost(passed(*deadline))),
            Standing::Lost(why) => Err(Failure::LeaseLost(why.clone())),
        }
    }

    pub fn stop(self) {
        self.beating.abort();
    }
}

/// Renews until that fails, and gives the reason.
async fn beat(
    db: &Db,
    lease: &Lease,
    mut deadline: Instant,
    says: &watch::Sender<Standing>,
) -> String {
    let third = lease.time_to_live / 3;
    let mut due = interval_at(lease.asked_at + third, third);
    due.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        due.tick().await;
        let asked_at = Instant::now();
        if asked_at >= deadline {
            return passed(deadline);
        }
        match timeout_at(deadline, extend(db, lease)).await {
            Ok(Ok(Some(_expires_at))) => {
                deadline = asked_at + lease.time_to_live;
                says.send_replace(Standing::HeldUntil(deadline));
                tell(&Event::Extended);
            }
            Ok(Ok(None)) => return "lease_extend gave NULL".into(),
            Ok(Err(failure)) => return format!("lease_extend failed: {failure}"),
            Err(_) => return "no answer before its own deadline".into(),
        }
    }
}

/// The expiry now in force by the server's clock, which is for people to read. None: the lease is lost.
async fn extend(db: &Db, lease: &Lease) -> Result<Option<SystemTime>, Failure> {
    let extend = "SELECT lease_extend($1, $2)";
    value(&db.client, extend, &[&lease.name, &lease.token]).await
}

fn passed(deadline: Instant) -> String {
    format!("its own deadline passed {:.1} s ago", deadline.elapsed().as_secs_f64())
}
