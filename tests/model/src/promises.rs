//! What must hold in every state, and what must happen in some.

use crate::locks::Tag;
use crate::server::{Change, Token};
use crate::{Phase, Protocol, State};
use stateright::Property;

/// A promise of the extension, in the words that the checker reports it with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Promise {
    NoStaleCommit,
    TokensRise,
    TokensAreUnique,
    HeartbeatsDoNotWait,
    TakeOversDoNotWait,
}

impl Promise {
    pub const ALL: [Promise; 5] = [
        Promise::NoStaleCommit,
        Promise::TokensRise,
        Promise::TokensAreUnique,
        Promise::HeartbeatsDoNotWait,
        Promise::TakeOversDoNotWait,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Promise::NoStaleCommit => "no write commits after the grant that supersedes it",
            Promise::TokensRise => "tokens are told in rising order",
            Promise::TokensAreUnique => "no token is told twice",
            Promise::HeartbeatsDoNotWait => "a heartbeat waits for no fenced transaction",
            Promise::TakeOversDoNotWait => "a take-over waits for no idle transaction",
        }
    }

    fn holds(self) -> fn(&Protocol, &State) -> bool {
        match self {
            Promise::NoStaleCommit => |_, state| !state.stale_commit,
            Promise::TokensRise => |_, state| state.told.windows(2).all(|two| two[0] <= two[1]),
            Promise::TokensAreUnique => {
                |_, state| (1..state.told.len()).all(|i| !state.told[..i].contains(&state.told[i]))
            }
            Promise::HeartbeatsDoNotWait => heartbeats_do_not_wait,
            Promise::TakeOversDoNotWait => take_overs_do_not_wait,
        }
    }
}

/// Unless a grant, a release or another heartbeat is about to write the row, the heartbeat's lock is to be had.
fn heartbeats_do_not_wait(protocol: &Protocol, state: &State) -> bool {
    let changes_the_lease = |phase: &Phase| {
        matches!(
            phase,
            Phase::GrantQueued { .. }
                | Phase::GrantLocked { .. }
                | Phase::HeartbeatLocked
                | Phase::ReleaseLocked { .. }
        )
    };
    state.sessions.iter().any(changes_the_lease)
        || state.is_lockable(protocol, Tag::Lease, protocol.heartbeat_mode, false)
            // And then the row.
            && !state.sessions.contains(&Phase::ExtendedEarly)
}

/// Whoever waits for its client, or was prepared, has nothing that a grant waits for: neither a lock, nor a place in the queue.
///
/// A grant meets a prepared transaction on purpose, and then it is refused at once.
fn take_overs_do_not_wait(protocol: &Protocol, state: &State) -> bool {
    let excludes =
        |lock: &crate::locks::Lock| lock.0 == Tag::Lease && lock.1.conflicts(protocol.grant_mode);
    let is_idle = |phase: &&Phase| {
        matches!(
            phase,
            Phase::Written { .. } | Phase::GrantOpen { .. } | Phase::GrantWritten { .. }
        )
    };
    let is_queued = state.sessions.iter().any(|phase| matches!(phase, Phase::GrantQueued { .. }));
    let mut idle = state.sessions.iter().filter(is_idle);
    let is_kept_waiting = idle.any(|phase| phase.locks(protocol).iter().any(excludes))
        || (is_queued && state.prepared_locks(protocol).iter().any(excludes))
        // The row shows that it is being changed, and so nobody is granted it.
        || state.sessions.contains(&Phase::ExtendedEarly);
    !is_kept_waiting
}

/// Something that is to be seen in some state.
pub type Sight = (&'static str, fn(&Protocol, &State) -> bool);

/// The model is worth something only if all of this can happen in it.
pub const SIGHTS: [Sight; 14] = [
    ("a grant is committed", |_, state| state.granted.is_some()),
    ("a fenced write is committed", |_, state| state.sessions.contains(&Phase::Visible)),
    ("a stale write is refused before its commit", |_, state| {
        state.sessions.contains(&Phase::Refused)
    }),
    ("a lease is taken over", |_, state| {
        state.server.now.row.is_some_and(|row| row.held)
            && some(state, |p| matches!(p, Phase::Recorded { change: Change::Grant(_), .. }))
    }),
    ("a stale transaction is open after a take-over", |_, state| {
        let current = state.server.now.row.map(|row| row.token);
        some(state, |p| matches!(p, Phase::Written { token, .. } if Some(*token) < current))
    }),
    ("a grant waits for a commit", |_, state| {
        some(state, |p| matches!(p, Phase::GrantQueued { .. }))
    }),
    ("a heartbeat is written beside a commit", |_, state| {
        some(state, |p| *p == Phase::HeartbeatWritten)
            && some(state, |p| matches!(p, Phase::Checked { .. }))
    }),
    ("a lease is released", |_, state| state.server.now.row.is_some_and(|row| !row.held)),
    ("a lease is released in the transaction that writes under it", |_, state| {
        some(state, |p| matches!(p, Phase::Recorded { change: Change::WriteAndEnd(_), .. }))
    }),
    ("a lease is extended in the transaction that writes under it", |_, state| {
        some(state, |p| matches!(p, Phase::Recorded { change: Change::WriteAndExtend(_), .. }))
    }),
    ("a prepared transaction is committed", |_, state| {
        some(state, |p| matches!(p, Phase::Recorded { change: Change::Prepared(_), .. }))
    }),
    ("a prepared transaction outlives a fail-over", |_, state| {
        state.server.now.timeline > 1 && state.server.now.prepared.is_some()
    }),
    ("a fail-over loses a grant that was told", |_, state| {
        let token = state.server.now.row.map(|row| row.token);
        state.server.now.sequence.timeline < state.server.now.timeline
            && state.told.last().copied() > token
    }),
    ("a token is told after a fail-over", |_, state| {
        state.told.iter().any(|Token { epoch, .. }| *epoch > 0)
    }),
];

fn some(state: &State, is_it: impl Fn(&Phase) -> bool) -> bool {
    state.sessions.iter().any(is_it)
}

pub fn properties() -> Vec<Property<Protocol>> {
    let promises =
        Promise::ALL.iter().map(|promise| Property::always(promise.name(), promise.holds()));
    let sights = SIGHTS.iter().map(|(name, is_seen)| Property::sometimes(name, *is_seen));
    promises.chain(sights).collect()
}
