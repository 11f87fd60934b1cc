//! What the clients do. Each client has one of these, and takes one turn after the other.

mod batch;
mod line;
mod mutex;
mod once;
mod register;
mod set;

use serde::{Deserialize, Serialize};

use crate::client::{Node, Tenure};
use crate::history::{Call, Outcome};

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
    node.call(call, sql, &[&lease, &token], |row| Some(i64::from(row.get::<_, bool>(0)))).await;
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

/// The tenure is over: its token was refused.
fn is_refused(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Fail { code, .. } if code.starts_with("LX"))
}
