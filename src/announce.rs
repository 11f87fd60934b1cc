//! Opt-in notifications (`lock_ext.notify`): what became of a lease, on channel `lock_ext`, once it is committed. Nothing of ours depends on
//! them.

use crate::types::{Label, Token};
use crate::{pg, settings};
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    Grant,
    /// A grant over one that had not been ended.
    TakeOver,
    Release,
    Complete,
    ForceRelease,
}

#[derive(Serialize)]
struct Payload {
    event: Event,
    lease: String,
    token: i64,
}

const CHANNEL: &str = "lock_ext";

/// Told to who listens when this transaction has committed.
pub fn announce(event: Event, lease: Label, token: Token) {
    if settings::notify() {
        let payload = Payload { event, lease: lease.to_string(), token: token.0 };
        if let Ok(payload) = serde_json::to_string(&payload) {
            pg::notify(CHANNEL, &payload);
        }
    }
}
