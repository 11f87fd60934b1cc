//! What comes of each step of a session. None: it cannot be taken now, or would change nothing.

use crate::locks::{Mode, Tag};
use crate::server::{CLOCK_STEP, Change, Record, Row, Token};
use crate::{Phase, Protocol, State};

impl Protocol {
    pub fn may_draw(&self, state: &State) -> bool {
        let sequence = &state.server.now.sequence;
        let is_new = self.epochs && sequence.timeline < state.server.now.timeline;
        state.told.len() < self.tokens
            && (is_new || sequence.last.offset % CLOCK_STEP < self.numbers)
    }

    /// Whether the lease has expired is free to choose, but nobody is granted a row that is being changed.
    pub fn acquire(&self, state: &mut State, i: usize) -> Option<Phase> {
        let drawn = match state.sessions[i] {
            Phase::GrantDrawn { token } => Some(token),
            _ => None,
        };
        if state.busy().is_some() || (drawn.is_none() && !self.may_draw(state)) {
            return None;
        }
        if drawn.is_none() && !self.drawn_under_lock {
            let token = state.server.draw(self);
            return Some(Phase::GrantDrawn { token });
        }
        if state.is_lockable(self, Tag::Lease, self.grant_mode, false) {
            return Some(Phase::GrantLocked { drawn });
        }
        let may_queue =
            !self.hold_tag || state.is_lockable(self, Tag::Hold, Mode::Exclusive, false);
        let is_first = !state.sessions.iter().any(|p| matches!(p, Phase::GrantQueued { .. }));
        (may_queue && is_first).then_some(Phase::GrantQueued { drawn })
    }

    pub fn get_grant_lock(&self, state: &State, i: usize) -> Option<Phase> {
        let Phase::GrantQueued { drawn } = state.sessions[i] else { return None };
        let is_free = state.is_lockable(self, Tag::Lease, self.grant_mode, true);
        is_free.then_some(Phase::GrantLocked { drawn })
    }

    pub fn write_grant(&self, state: &mut State, i: usize) -> Option<Phase> {
        let Phase::GrantLocked { drawn } = state.sessions[i] else { return None };
        if state.busy().is_some() {
            return Some(Phase::Idle);
        }
        if drawn.is_none() && !self.may_draw(state) {
            return None;
        }
        let token = drawn.unwrap_or_else(|| state.server.draw(self));
        Some(Phase::GrantWritten { token })
    }

    pub fn tell(&self, state: &mut State, i: usize) -> Option<Phase> {
        let Phase::GrantWritten { token } = state.sessions[i] else { return None };
        if state.told.len() >= self.tokens {
            return None;
        }
        if self.told_after_flush {
            state.server.flush_sequence();
        }
        state.told.push(token);
        Some(Phase::GrantOpen { token })
    }

    /// The check at the statement looks at what is committed. A token that is not the row's is refused, so only that one is tried.
    pub fn write(&self, state: &State) -> Option<Phase> {
        let row = state.server.now.row.filter(|row| row.held)?;
        let snapshot = (!self.check_reads_latest).then_some(row);
        Some(Phase::Written { token: row.token, snapshot })
    }

    pub fn verdict(&self, state: &State, token: Token, snapshot: Option<Row>) -> bool {
        let row = snapshot.or(state.server.now.row);
        let contested =
            self.check_reads_latest && self.check_sees_uncommitted && state.is_contested();
        row.is_some_and(|row| row.is_current(token)) && !contested
    }

    /// A session that has a lock on the lease from its writes does not queue behind who waits for that one (`ProcSleep`).
    pub fn may_commit(&self, state: &State, i: usize, mode: Mode) -> bool {
        let own = state.sessions[i].locks(self);
        let is_first = own.iter().any(|lock| lock.1.conflicts(self.grant_mode));
        let mut others = state.clone();
        others.sessions[i] = Phase::Idle;
        others.is_lockable(self, Tag::Lease, mode, is_first)
    }

    pub fn check(&self, state: &State, i: usize) -> Option<Phase> {
        let Phase::Written { token, snapshot } = state.sessions[i] else { return None };
        if !self.checks() {
            return Some(Phase::Checked { token });
        }
        if self.commit_mode.is_some_and(|mode| !self.may_commit(state, i, mode)) {
            return None;
        }
        let is_current = self.verdict(state, token, snapshot);
        Some(if is_current { Phase::Checked { token } } else { Phase::Refused })
    }

    /// Under the mode of heartbeats alone: the row that is being ended keeps grants away by itself.
    pub fn check_and_end(&self, state: &State, i: usize) -> Option<Phase> {
        let Phase::Written { token, snapshot } = state.sessions[i] else { return None };
        if !self.checks() || !self.may_commit(state, i, self.heartbeat_mode) {
            return None;
        }
        if !self.verdict(state, token, snapshot) {
            return Some(Phase::Refused);
        }
        // A heartbeat is waited for.
        state.busy().is_none().then_some(Phase::Ended { token, wrote: true })
    }

    /// The mode of heartbeats is given back as soon as the row is written, and the other one is kept.
    pub fn extend(&self, state: &State, i: usize) -> Option<Phase> {
        let (token, written) = match state.sessions[i] {
            Phase::Checked { token } if self.extension_put_off => {
                (token, Phase::Extended { token })
            }
            Phase::Written { token, .. } if !self.extension_put_off => {
                (token, Phase::ExtendedEarly)
            }
            _ => return None,
        };
        if !self.may_commit(state, i, self.heartbeat_mode) {
            return None;
        }
        if !self.verdict(state, token, None) {
            return Some(Phase::Refused);
        }
        state.busy().is_none().then_some(written)
    }

    pub fn prepare(&self, state: &mut State, i: usize) -> Option<Phase> {
        let Phase::Written { token, snapshot } = state.sessions[i] else { return None };
        if !self.prepares
            || state.server.now.prepared.is_some()
            || (self.hold_tag && !state.is_lockable(self, Tag::Hold, Mode::Share, false))
            || self.commit_mode.is_some_and(|mode| !self.may_commit(state, i, mode))
        {
            return None;
        }
        if self.checks() && !self.verdict(state, token, snapshot) {
            return Some(Phase::Refused);
        }
        state.server.log(Record::Prepare(token));
        state.server.flush();
        state.server.now.prepared = Some(token);
        Some(Phase::Idle)
    }

    pub fn commit_prepared(&self, state: &mut State) -> Option<Phase> {
        let token = state.server.now.prepared.filter(|_| !state.is_committing_prepared())?;
        let change = Change::Prepared(token);
        let position = state.server.log(Record::Commit(change));
        state.server.flush();
        Some(Phase::Recorded { change, position })
    }

    pub fn record(&self, state: &mut State, i: usize) -> Option<Phase> {
        let change = match state.sessions[i] {
            Phase::GrantOpen { token } => Change::Grant(token),
            Phase::Checked { token } => Change::Write(token),
            Phase::Extended { token } => Change::WriteAndExtend(token),
            Phase::Ended { token, wrote: false } => Change::End(token),
            Phase::Ended { token, wrote: true } => Change::WriteAndEnd(token),
            _ => return None,
        };
        let logged = match change {
            // The expiry is not modelled.
            Change::WriteAndExtend(token) => Change::Write(token),
            _ => change,
        };
        let position = state.server.log(Record::Commit(logged));
        // All others may run with synchronous_commit off; a flush of theirs is that of the WAL writer.
        if matches!(change, Change::Grant(_)) && self.grant_commits_synchronously {
            state.server.flush();
        }
        Some(Phase::Recorded { change, position })
    }

    pub fn heartbeat(&self, state: &State) -> Option<Phase> {
        state.server.now.row.filter(|row| row.held)?;
        let is_free = state.is_lockable(self, Tag::Lease, self.heartbeat_mode, false);
        is_free.then_some(Phase::HeartbeatLocked)
    }

    pub fn release(&self, state: &State) -> Option<Phase> {
        let row = state.server.now.row.filter(|row| row.held && !state.is_contested())?;
        let is_free = state.is_lockable(self, Tag::Lease, Mode::Exclusive, false);
        is_free.then_some(Phase::ReleaseLocked { token: row.token })
    }
}

/// Others see the commit.
pub fn show(state: &mut State, i: usize) -> Option<Phase> {
    let Phase::Recorded { change, .. } = state.sessions[i] else { return None };
    state.see(change);
    state.server.now.apply(change);
    let is_locked = matches!(change, Change::Write(_) | Change::WriteAndExtend(_));
    Some(if is_locked { Phase::Visible } else { Phase::Idle })
}

pub fn write_heartbeat(state: &State) -> Phase {
    let is_held = state.server.now.row.is_some_and(|row| row.held);
    // Another heartbeat is waited for, and then it is tried again.
    if is_held && state.busy().is_none() { Phase::HeartbeatWritten } else { Phase::Idle }
}

pub fn write_release(state: &State, i: usize) -> Option<Phase> {
    let Phase::ReleaseLocked { token } = state.sessions[i] else { return None };
    let is_current = state.server.now.row.is_some_and(|row| row.is_current(token));
    Some(if is_current && state.busy().is_none() {
        Phase::Ended { token, wrote: false }
    } else {
        Phase::Idle
    })
}
