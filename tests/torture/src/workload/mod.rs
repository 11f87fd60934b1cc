//! What the clients do. Each client has one of these, and takes one turn after the other.

mod batch;
mod line;
mod mutex;
mod once;
mod register;
mod set;

use serde::{Deserialize, Serialize};

use crate::client::{Node, Tenure};
use crate::control::Guard;
use crate::history::{Call, Micros, Outcome, What, now};

pub use batch::{PLAYERS, Progress};
pub use once::Crash;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// Mutual exclusion: rows under tokens.
    Mutex,
    /// Compare and set of a register.
    Register,
    /// A set that grows by reading, adding and writing all of it, under a lease of 2 s.
    Set,
    /// Rewards in chunks with checkpoints.
    Batch,
    /// `once` by callers that crash.
    Once,
    /// Waiting in line.
    Line,
}

impl Workload {
    pub const ALL: [Self; 6] =
        [Self::Mutex, Self::Register, Self::Set, Self::Batch, Self::Once, Self::Line];

    pub fn name(self) -> &'static str {
        match self {
            Self::Mutex => "mutex",
            Self::Register => "register",
            Self::Set => "set",
            Self::Batch => "batch",
            Self::Once => "once",
            Self::Line => "line",
        }
    }

    /// Whether it is the id of one of its operations.
    pub fn is_of(self, id: &str) -> bool {
        let rest = id.strip_prefix(self.name());
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    }

    /// How many clients, of which the last one is naive where there is a lease.
    pub fn clients(self) -> usize {
        match self {
            Self::Line => 5,
            _ => 3,
        }
    }

    pub fn has_naive(self) -> bool {
        self != Self::Once
    }

    pub async fn turn(self, node: &mut Node) {
        match self {
            Self::Mutex => mutex::turn(node).await,
            Self::Register => register::turn(node).await,
            Self::Set => set::turn(node).await,
            Self::Batch => batch::turn(node).await,
            Self::Once => once::turn(node).await,
            Self::Line => line::turn(node).await,
        }
    }
}

/// Ends a tenure: mostly by a release; some let it expire.
async fn leave(node: &mut Node, tenure: Tenure) {
    let (lease, token) = (tenure.lease.clone(), tenure.token);
    drop(tenure);
    if node.dice.one_in(6) {
        return;
    }
    let call = Call::Release { lease: lease.clone(), token };
    let sql = "SELECT lease_release($1, $2)";
    let ended =
        node.call(call, sql, &[&lease, &token], |row| Some(i64::from(row.get::<_, bool>(0)))).await;
    if ended == (Outcome::Ok { answer: Some(1) }) && node.dice.one_in(6) {
        write_without_lease(node, &lease, token).await;
    }
    if node.dice.one_in(40) {
        write_without_lease(node, &lease, 0).await;
    }
}

/// Under a token that is over for certain, or under one that never was. Only the fence refuses it; the controls are to be found out by
/// tokens that were superseded.
async fn write_without_lease(node: &mut Node, lease: &str, token: i64) {
    if node.orders.guard == Guard::Fence {
        let tenure = Tenure::ended(lease, token);
        node.write(&tenure, What::Entry, async |client, id| {
            client.execute("INSERT INTO entry VALUES ($1, $2)", &[&lease, &id]).await.map(|_| true)
        })
        .await;
    }
}

async fn ask_whether_current(node: &mut Node, tenure: &Tenure) {
    let (lease, token) = (tenure.lease.clone(), tenure.token);
    let call = Call::IsCurrent { lease: lease.clone(), token };
    let sql = "SELECT lease_is_current($1, $2)";
    node.call(call, sql, &[&lease, &token], |row| Some(i64::from(row.get::<_, bool>(0)))).await;
}

/// Whether the holder may do another step. A naive one does not look.
fn may_go_on(node: &Node, tenure: &Tenure) -> bool {
    node.orders.naive || tenure.goes_on()
}

/// The tenure is over: its token was refused, or a COMMIT may still be on its way. Under the same token nothing keeps that one from coming
/// after the next transaction.
fn is_over(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Unknown => true,
        Outcome::Fail { code, .. } => code.starts_with("LX"),
        Outcome::Ok { .. } => false,
    }
}

/// How long a holder works. Half of them stay for as long as their first time to live, or up to three times that.
enum Work {
    Times(u64),
    Until(Micros),
}

impl Work {
    fn begin(node: &mut Node, tenure: &Tenure, times: u64) -> Self {
        if node.dice.one_in(2) {
            Self::Times(1 + node.dice.below(times))
        } else {
            Self::Until(now() + tenure.ttl * node.dice.below(3_001) as i64 / 1_000)
        }
    }

    /// Another step, if there is to be one.
    async fn goes_on(&mut self, node: &mut Node, tenure: &Tenure) -> bool {
        let does = match self {
            Self::Times(left) => {
                *left = left.wrapping_sub(1);
                *left != u64::MAX
            }
            Self::Until(until) => {
                node.rest(20, 120).await;
                now() < *until
            }
        };
        does && may_go_on(node, tenure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Stage;

    #[test]
    fn nobody_goes_on_after_a_commit_that_may_still_come() {
        let fail = |code: &str| Outcome::Fail { code: code.to_owned(), at: Stage::Commit };
        assert!(is_over(&Outcome::Unknown));
        assert!(is_over(&fail("LX001")));
        assert!(!is_over(&fail("40001")));
        assert!(!is_over(&Outcome::Ok { answer: Some(1) }));
    }
}
