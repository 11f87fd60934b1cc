//! What can happen next: the steps of the sessions, and what becomes of the servers.

use crate::server::{Change, Record};
use crate::{Phase, Protocol, State, steps};
use stateright::{Model, Property};

/// One step, of the session at this place in [`State::sessions`], or of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Acquire(usize),
    GetGrantLock(usize),
    WriteGrant(usize),
    Tell(usize),
    Write(usize),
    Check(usize),
    CheckAndEnd(usize),
    Extend(usize),
    Prepare(usize),
    CommitPrepared(usize),
    RollbackPrepared,
    Record(usize),
    Show(usize),
    Unlock(usize),
    Heartbeat(usize),
    WriteHeartbeat(usize),
    Release(usize),
    WriteRelease(usize),
    Finish(usize),
    Die(usize),
    Flush,
    Crash,
    /// The standby is promoted that has replayed so many of the records that it may lag behind.
    FailOver(usize),
    FailOverToForgotten,
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (i, phase) in state.sessions.iter().enumerate() {
            // Sessions in the same place would do the same.
            if i > 0 && state.sessions[i - 1] == *phase {
                continue;
            }
            self.offer(i, *phase, actions);
        }
        let server = &state.server;
        if server.now.prepared.is_some() {
            actions.push(Action::RollbackPrepared);
        }
        if server.has_unflushed() {
            actions.push(Action::Flush);
        }
        if self.crashes {
            actions.push(Action::Crash);
        }
        if server.promotions < self.promotions {
            actions.extend((0..=server.flushed()).map(Action::FailOver));
            if server.has_forgotten() {
                actions.push(Action::FailOverToForgotten);
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Flush => state.server.flush(),
            Action::Crash => self.crash(&mut state),
            Action::FailOver(replayed) => {
                (0..replayed).for_each(|_| state.replay());
                state.server.fail_over(self);
                state.forget();
            }
            Action::FailOverToForgotten => {
                state.server.fail_over_to_forgotten();
                state.forget();
            }
            Action::RollbackPrepared => {
                if state.is_committing_prepared() {
                    return None;
                }
                state.server.log(Record::RollbackPrepared);
                state.server.flush();
                state.server.now.prepared = None;
            }
            Action::Acquire(i) => state.sessions[i] = self.acquire(&mut state, i)?,
            Action::GetGrantLock(i) => state.sessions[i] = self.get_grant_lock(&state, i)?,
            Action::WriteGrant(i) => state.sessions[i] = self.write_grant(&mut state, i)?,
            Action::Tell(i) => state.sessions[i] = self.tell(&mut state, i)?,
            Action::Write(i) => state.sessions[i] = self.write(&state)?,
            Action::Check(i) => state.sessions[i] = self.check(&state, i)?,
            Action::CheckAndEnd(i) => state.sessions[i] = self.check_and_end(&state, i)?,
            Action::Extend(i) => state.sessions[i] = self.extend(&state, i)?,
            Action::Prepare(i) => state.sessions[i] = self.prepare(&mut state, i)?,
            Action::CommitPrepared(i) => state.sessions[i] = self.commit_prepared(&mut state)?,
            Action::Record(i) => state.sessions[i] = self.record(&mut state, i)?,
            Action::Show(i) => state.sessions[i] = steps::show(&mut state, i)?,
            Action::Heartbeat(i) => state.sessions[i] = self.heartbeat(&state)?,
            Action::WriteHeartbeat(i) => state.sessions[i] = steps::write_heartbeat(&state),
            Action::Release(i) => state.sessions[i] = self.release(&state)?,
            Action::WriteRelease(i) => state.sessions[i] = steps::write_release(&state, i)?,
            Action::Unlock(i) | Action::Finish(i) | Action::Die(i) => {
                state.sessions[i] = Phase::Idle
            }
        }
        self.limit_wal(&mut state)?;
        state.sessions.sort_unstable();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        crate::promises::properties()
    }
}

impl Protocol {
    fn offer(&self, i: usize, phase: Phase, actions: &mut Vec<Action>) {
        let steps: &[fn(usize) -> Action] = match phase {
            Phase::Idle => &[
                Action::Acquire,
                Action::Write,
                Action::CommitPrepared,
                Action::Heartbeat,
                Action::Release,
            ],
            Phase::GrantDrawn { .. } => &[Action::Acquire, Action::Die],
            Phase::GrantQueued { .. } => &[Action::GetGrantLock, Action::Die],
            Phase::GrantLocked { .. } => &[Action::WriteGrant, Action::Die],
            Phase::GrantWritten { .. } => &[Action::Tell, Action::Die],
            Phase::GrantOpen { .. } | Phase::Extended { .. } | Phase::Ended { .. } => {
                &[Action::Record, Action::Die]
            }
            Phase::Written { .. } => {
                &[Action::Check, Action::CheckAndEnd, Action::Extend, Action::Prepare, Action::Die]
            }
            Phase::Checked { .. } => &[Action::Extend, Action::Record, Action::Die],
            Phase::ExtendedEarly => &[Action::Die],
            Phase::Refused | Phase::HeartbeatWritten => &[Action::Finish],
            Phase::HeartbeatLocked => &[Action::WriteHeartbeat, Action::Die],
            Phase::ReleaseLocked { .. } => &[Action::WriteRelease, Action::Die],
            // From here on nothing stops a commit but the end of the server.
            Phase::Recorded { .. } => &[Action::Show],
            Phase::Visible => &[Action::Unlock],
        };
        actions.extend(steps.iter().map(|step| step(i)));
    }

    /// Forgets what no failure asks for any more. None if there is more to be lost than we look at.
    fn limit_wal(&self, state: &mut State) -> Option<()> {
        let may_promote = state.server.promotions < self.promotions;
        if !self.crashes && !may_promote {
            state.server.flush();
        }
        let kept =
            if may_promote { self.wal } else { state.server.wal_length() - state.server.flushed() };
        while state.server.wal_length() > kept && state.server.flushed() > 0 {
            state.replay();
        }
        (state.server.wal_length() <= self.wal).then_some(())
    }

    /// What is on disk is committed after the crash, also where nobody has seen it before.
    fn crash(&self, state: &mut State) {
        let mut unseen: Vec<(usize, Change)> = state
            .sessions
            .iter()
            .filter_map(|phase| match phase {
                Phase::Recorded { change, position } => Some((*position, *change)),
                _ => None,
            })
            .filter(|(position, _)| state.server.is_flushed(*position))
            .collect();
        unseen.sort_unstable_by_key(|(position, _)| *position);
        for (_, change) in unseen {
            state.see(change);
        }
        state.server.crash();
        state.sessions.fill(Phase::Idle);
    }
}

impl State {
    fn replay(&mut self) {
        if !self.server.replay() {
            self.stale_commit = true;
        }
        for phase in &mut self.sessions {
            if let Phase::Recorded { position, .. } = phase {
                *position = position.saturating_sub(1);
            }
        }
    }

    pub fn see(&mut self, change: Change) {
        if let Change::Grant(token) = change {
            self.granted = self.granted.max(Some(token));
        }
        if change.written_under().is_some_and(|token| Some(token) < self.granted) {
            self.stale_commit = true;
        }
    }

    /// On a promoted server: its history is the one that it has.
    fn forget(&mut self) {
        self.sessions.fill(Phase::Idle);
        self.granted = self.server.now.row.map(|row| row.token);
    }

    pub fn is_committing_prepared(&self) -> bool {
        self.sessions
            .iter()
            .any(|p| matches!(p, Phase::Recorded { change: Change::Prepared(_), .. }))
    }
}
