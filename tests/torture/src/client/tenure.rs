use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use super::Node;
use super::desk::{Desk, call_on, in_time};
use crate::history::{Call, Micros, Outcome, now};

/// A write that takes longer waits for somebody who was frozen: the holder ends that session.
const SLOW: Micros = 700_000;

/// A lease that was granted to this client, with its heartbeat.
pub struct Tenure {
    pub lease: String,
    pub token: i64,
    pub ttl: Micros,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// By the client's own clock, counted from before the call.
    deadline: AtomicI64,
    /// The server said so.
    lost: AtomicBool,
    /// The whole client stands still, its heartbeat too.
    asleep: AtomicBool,
    /// Since when a transaction is on its way, or 0.
    writing: AtomicI64,
}

impl Tenure {
    pub(super) fn begin(
        node: &Node,
        lease: &str,
        token: i64,
        ttl: Micros,
        deadline: Micros,
    ) -> Self {
        let state = Arc::new(State::default());
        state.deadline.store(deadline, Relaxed);
        let beat = beat(Beat {
            desk: node.desk.clone(),
            heart: node.heart.clone(),
            durable: !node.lazy,
            lease: lease.to_owned(),
            token,
            ttl,
            state: state.clone(),
        });
        tokio::spawn(beat);
        Self { lease: lease.to_owned(), token, ttl, state }
    }

    /// One that is over, with no heartbeat.
    pub fn ended(lease: &str, token: i64) -> Self {
        Self { lease: lease.to_owned(), token, ttl: 0, state: Arc::default() }
    }

    /// What the README asks for before each step.
    pub fn goes_on(&self) -> bool {
        !self.state.lost.load(Relaxed) && now() < self.state.deadline.load(Relaxed)
    }

    pub(super) fn writes(&self, does: bool) {
        self.state.writing.store(if does { now() } else { 0 }, Relaxed);
    }

    /// Ends the heartbeat, and all that looks whether it goes on.
    pub(super) fn give_up(&self) {
        self.state.lost.store(true, Relaxed);
    }

    pub(super) fn sleeps(&self, does: bool) {
        self.state.asleep.store(does, Relaxed);
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        // Not by abort: an extension that is on its way is to be heard.
        self.state.lost.store(true, Relaxed);
    }
}

struct Beat {
    desk: Arc<Desk>,
    heart: Arc<tokio::sync::Mutex<super::Conn>>,
    durable: bool,
    lease: String,
    token: i64,
    ttl: Micros,
    state: Arc<State>,
}

/// Extends at a third of the time to live, and looks more often whether a write waits.
async fn beat(beat: Beat) {
    let Beat { desk, heart, durable, lease, token, ttl, state } = beat;
    let mut next = now() + ttl / 3;
    let mut evicted = false;
    while !state.lost.load(Relaxed) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if state.asleep.load(Relaxed) || state.lost.load(Relaxed) {
            continue;
        }
        let mut heart = heart.lock().await;
        let writing = state.writing.load(Relaxed);
        if writing > 0 && now() - writing > SLOW && !evicted {
            evicted = true;
            if let Some((client, _)) = heart.get().await
                && in_time(client.query("SELECT lease_evict($1, $2)", &[&lease, &token]))
                    .await
                    .is_err_and(|failure| failure.is_end)
            {
                heart.close();
            }
        }
        if now() < next {
            continue;
        }
        let asked = now();
        let id = desk.next_id();
        let call = Call::Extend { lease: lease.clone(), token, ttl, durable };
        let sql = "SELECT lease_extend($1, $2)";
        let outcome = call_on(&desk, &mut heart, id, call, sql, &[&lease, &token], |row| {
            row.get::<_, Option<SystemTime>>(0).map(|_| 1)
        })
        .await;
        match outcome {
            Outcome::Ok { answer: Some(_) } => {
                state.deadline.store(asked + ttl, Relaxed);
                next = asked + ttl / 3;
            }
            Outcome::Ok { answer: None } => state.lost.store(true, Relaxed),
            // An error does not mean held, and neither that it is lost: again, until the deadline.
            _ if now() > state.deadline.load(Relaxed) => state.lost.store(true, Relaxed),
            _ => {}
        }
    }
}
