//! A model of lock_ext's protocol for one lease, to be explored state by state (with stateright).
//!
//! PostgreSQL's lock manager, its WAL and its standbys are modelled as they are; the extension's steps are those of its source. What
//! the design relies on is a switch of [`Protocol`]. With all of them on, no state breaks a promise; with each one off, the checker finds a
//! way to break the promise that it is there for.
//!
//! # Which step is what
//!
//! Sessions are all alike: each may acquire, write, send heartbeats or release at any time, with any pause between two steps, and may be
//! killed in between.
//!
//! | action | in the extension |
//! | --- | --- |
//! | `Acquire` | `lease::look`: the row looks free or expired; `referee::try_lock_for_grant` |
//! | `GetGrantLock` | the same, at the end of its wait for transactions that are committing |
//! | `WriteGrant` | `lease::grant`: look again, `token::draw`, write the row; then the lock is given back |
//! | `Tell` | `token::Drawn::told`: flush the sequence's WAL, return the token to the client |
//! | `Write` | a fenced statement: `fence::check`, `fence::register` (`fence_check()`, `lease_fence`, `fenced_update`) |
//! | `Check` | `XACT_EVENT_PRE_COMMIT`: `fence::before_commit`, `fence::settle` |
//! | `CheckAndEnd` | the same with a release that was put off: `fence::settle_pending` |
//! | `Extend` | the same with a heartbeat that was put off, after the check |
//! | `Prepare` | `XACT_EVENT_PRE_PREPARE`, then the server's PREPARE TRANSACTION |
//! | `CommitPrepared`, `RollbackPrepared` | the server's |
//! | `Record` | `RecordTransactionCommit`: the commit is in the WAL, and others still take it for in progress |
//! | `Show` | `ProcArrayEndTransaction`: others see it |
//! | `Unlock` | `ResourceOwnerRelease`: its locks are gone |
//! | `Heartbeat`, `WriteHeartbeat` | `lease::extend`, `lease::change`: lock; then look, write the row, give the lock back |
//! | `Release`, `WriteRelease` | `lease::end`: the same |
//! | `Finish` | a heartbeat's commit, or a refused session's rollback |
//! | `Die` | rollback, cancel, `kill -9`, a client that is gone |
//! | `Flush`, `Crash`, `FailOver`, `FailOverToForgotten` | the server's |
//!
//! What lies between a lock and its release in one call is one step where nobody else can see the difference: the lock, the reading and the
//! writing of a row are apart, the reading and the writing under the same lock are not.
//!
//! # What is left out
//!
//! Savepoints, several leases in a transaction, `hold` (which locks as a prepared transaction does), waiting in line, leases bound to
//! a session, the clock, split brain, and a sequence that somebody sets back.

#![forbid(unsafe_code)]

pub mod locks;
mod model;
mod promises;
mod report;
pub mod server;
mod steps;

pub use model::Action;
pub use promises::{Promise, SIGHTS};
pub use report::Report;

use locks::{Lock, Mode, Tag};
use server::{Change, Row, Server, Token};

/// What the design asks for, and how far the checker goes.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// A write is registered for its transaction, so that its commit knows what to check.
    pub write_registers: bool,
    /// There is a second check, before the commit.
    pub commit_check: bool,
    /// The mode that the second check is made under; none for no lock.
    pub commit_mode: Option<Mode>,
    /// The second check reads the row as it is, not as the transaction's snapshot shows it.
    pub check_reads_latest: bool,
    /// The second check takes a grant that is written and not committed for one that will be.
    pub check_sees_uncommitted: bool,
    /// The lock of the second check is kept until others see the commit, and not just until it is in the WAL.
    pub locked_until_visible: bool,
    /// The mode on the lease that a transaction has from its first write on; none: it has one on a tag that nobody asks for.
    pub writer_mode: Option<Mode>,
    pub grant_mode: Mode,
    pub heartbeat_mode: Mode,
    /// A token is drawn under the lock of its lease.
    pub drawn_under_lock: bool,
    /// The sequence's WAL is on disk before a token is told.
    pub told_after_flush: bool,
    /// `ForceSyncCommit`: a grant is on disk before anybody sees it.
    pub grant_commits_synchronously: bool,
    /// Tokens begin anew, higher, on another timeline.
    pub epochs: bool,
    /// And there they begin at the time of day.
    pub epoch_starts_at_the_clock: bool,
    /// A heartbeat in a transaction that has written is put off to the commit.
    pub extension_put_off: bool,
    /// A prepared transaction keeps the lock of its check.
    pub prepared_keeps_lock: bool,
    /// A prepared transaction has the second tag as well, so that a grant does not queue behind it.
    pub hold_tag: bool,

    /// How many sessions there are.
    pub sessions: usize,
    /// How many numbers are drawn in an epoch.
    pub numbers: u8,
    /// How many tokens are told.
    pub tokens: usize,
    /// How many records of WAL the standby may lag behind.
    pub wal: usize,
    /// PREPARE TRANSACTION is used.
    pub prepares: bool,
    pub crashes: bool,
    pub promotions: u8,
    /// There is a second standby, that does not hear of the promotion of the first.
    pub forgotten_standby: bool,
}

impl Protocol {
    /// As it is built.
    pub fn designed() -> Self {
        Protocol {
            write_registers: true,
            commit_check: true,
            commit_mode: Some(Mode::RowShare),
            check_reads_latest: true,
            check_sees_uncommitted: true,
            locked_until_visible: true,
            writer_mode: None,
            grant_mode: Mode::Exclusive,
            heartbeat_mode: Mode::ShareUpdateExclusive,
            drawn_under_lock: true,
            told_after_flush: true,
            grant_commits_synchronously: true,
            epochs: true,
            epoch_starts_at_the_clock: true,
            extension_put_off: true,
            prepared_keeps_lock: true,
            hold_tag: true,
            sessions: 2,
            numbers: 4,
            tokens: 3,
            wal: 4,
            prepares: true,
            crashes: true,
            promotions: 1,
            forgotten_standby: false,
        }
    }

    /// Does a transaction that has written check anything before its commit?
    fn checks(&self) -> bool {
        self.write_registers && self.commit_check
    }
}

/// Where a session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    Idle,
    /// Has drawn a token before it has the lock. Only where `drawn_under_lock` is off.
    GrantDrawn {
        token: Token,
    },
    /// Waits for the lock of the lease, as the first in its queue.
    GrantQueued {
        drawn: Option<Token>,
    },
    GrantLocked {
        drawn: Option<Token>,
    },
    /// The row is written and not committed; the lock is given back.
    GrantWritten {
        token: Token,
    },
    /// The client has the token, in a transaction that it has not committed.
    GrantOpen {
        token: Token,
    },
    /// Has written to a fenced table.
    Written {
        token: Token,
        /// The row in the transaction's snapshot. Only where `check_reads_latest` is off.
        snapshot: Option<Row>,
    },
    /// The second check was fine.
    Checked {
        token: Token,
    },
    /// It was not.
    Refused,
    /// An extension that was put off is written, and the row is busy until the transaction ends.
    Extended {
        token: Token,
    },
    /// The same in a transaction that is not committing. Only where `extension_put_off` is off.
    ExtendedEarly,
    HeartbeatLocked,
    HeartbeatWritten,
    ReleaseLocked {
        token: Token,
    },
    /// The end of the lease is written and not committed; perhaps beside a write to a fenced table.
    Ended {
        token: Token,
        wrote: bool,
    },
    /// The commit is in the WAL, at this position, and nobody sees it yet.
    Recorded {
        change: Change,
        position: usize,
    },
    /// The write is there for all to see, and its lock is not yet given back.
    Visible,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub server: Server,
    /// In the order of their phases: which of them is where makes no difference.
    pub sessions: Vec<Phase>,
    /// What clients were told, in this order, on whatever server.
    pub told: Vec<Token>,
    /// The highest grant that anybody saw committed, on this primary or the history that it came from.
    pub granted: Option<Token>,
    /// A write was seen to commit under a lower token than that.
    pub stale_commit: bool,
}

impl State {
    fn new(protocol: &Protocol) -> Self {
        State {
            server: Server::default(),
            sessions: vec![Phase::Idle; protocol.sessions],
            told: Vec::new(),
            granted: None,
            stale_commit: false,
        }
    }

    /// The change of the row that is written and not committed (`store::Change`); there is at most one.
    fn busy(&self) -> Option<&Phase> {
        self.sessions.iter().find(|phase| {
            matches!(
                phase,
                Phase::GrantWritten { .. }
                    | Phase::GrantOpen { .. }
                    | Phase::HeartbeatWritten
                    | Phase::Extended { .. }
                    | Phase::ExtendedEarly
                    | Phase::Ended { .. }
                    | Phase::Recorded {
                        change: Change::Grant(_)
                            | Change::End(_)
                            | Change::WriteAndEnd(_)
                            | Change::WriteAndExtend(_),
                        ..
                    }
            )
        })
    }

    /// `store::Found::is_contested`: is somebody about to take the lease away from its holder?
    fn is_contested(&self) -> bool {
        self.busy().is_some_and(|phase| {
            !matches!(
                phase,
                Phase::HeartbeatWritten
                    | Phase::Extended { .. }
                    | Phase::ExtendedEarly
                    | Phase::Recorded { change: Change::WriteAndExtend(_), .. }
            )
        })
    }

    /// May the lock be taken at once by somebody who has none, or by the first of those who wait?
    fn is_lockable(&self, protocol: &Protocol, tag: Tag, mode: Mode, is_first: bool) -> bool {
        let conflicts = |locks: &[Lock]| locks.iter().any(|l| l.0 == tag && mode.conflicts(l.1));
        let queued = |phase: &Phase| {
            matches!(phase, Phase::GrantQueued { .. })
                && tag == Tag::Lease
                && mode.conflicts(protocol.grant_mode)
        };
        !self.sessions.iter().any(|phase| conflicts(&phase.locks(protocol)))
            && !conflicts(&self.prepared_locks(protocol))
            && (is_first || !self.sessions.iter().any(queued))
    }

    fn prepared_locks(&self, protocol: &Protocol) -> Vec<Lock> {
        if self.server.now.prepared.is_none() {
            return Vec::new();
        }
        let lease =
            protocol.commit_mode.filter(|_| protocol.prepared_keeps_lock && protocol.checks());
        let hold = protocol.hold_tag.then_some((Tag::Hold, Mode::Share));
        lease.map(|mode| (Tag::Lease, mode)).into_iter().chain(hold).collect()
    }
}

impl Phase {
    /// What the session has locked (`referee`).
    fn locks(self, protocol: &Protocol) -> Vec<Lock> {
        let committing = protocol.commit_mode.filter(|_| protocol.checks());
        let lease = match self {
            Phase::GrantLocked { .. } => Some(protocol.grant_mode),
            Phase::GrantQueued { .. } if protocol.hold_tag => {
                return vec![(Tag::Hold, Mode::Exclusive)];
            }
            Phase::Written { .. } => protocol.writer_mode,
            Phase::Checked { .. } | Phase::Extended { .. } | Phase::Visible => committing,
            Phase::Recorded { change: Change::Write(_) | Change::WriteAndExtend(_), .. } => {
                committing.filter(|_| protocol.locked_until_visible)
            }
            Phase::HeartbeatLocked => Some(protocol.heartbeat_mode),
            Phase::ReleaseLocked { .. } => Some(Mode::Exclusive),
            _ => None,
        };
        lease.map(|mode| (Tag::Lease, mode)).into_iter().collect()
    }
}
