//! What guards the tables: the fence, or what the checker has to find out.

use serde::{Deserialize, Serialize};

/// The tables of the workloads. Only the role `worker` writes to them.
pub const TABLES: &str = include_str!("tables.sql");

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Guard {
    /// `fence_attach`.
    Fence,
    /// Nothing: leases and nothing else.
    Off,
    /// The trigger that most people write: it compares the token with the current one, by a plain SELECT, when a row is written.
    Naive,
}

impl Guard {
    pub fn name(self) -> &'static str {
        match self {
            Self::Fence => "fence",
            Self::Off => "no fence",
            Self::Naive => "naive fence",
        }
    }

    /// What puts it on the tables.
    pub fn attach(self) -> &'static str {
        match self {
            Self::Fence => include_str!("fence.sql"),
            Self::Off => "",
            Self::Naive => include_str!("naive.sql"),
        }
    }

    /// The rest of the transaction writes under this token: lease and token.
    pub fn carry(self) -> &'static str {
        match self {
            Self::Fence => "SELECT lease_fence($1, $2)",
            // Both parameters are used, so that all guards are called in the same way.
            Self::Off => "SELECT $1::text, $2::bigint",
            Self::Naive => "SELECT $1::text, set_config('naive.token', ($2::bigint)::text, true)",
        }
    }

    /// Saves a checkpoint: lease, token and state as text.
    pub fn checkpoint(self) -> &'static str {
        match self {
            Self::Fence => "SELECT lease_checkpoint($1, $2, $3::text::jsonb)",
            // A table like the others, guarded like them.
            Self::Off | Self::Naive => {
                "INSERT INTO progress VALUES ($1, $2, $3::text::jsonb)
                 ON CONFLICT (lease) DO UPDATE SET token = excluded.token, state = excluded.state"
            }
        }
    }

    /// The last one as text, of lease $1.
    pub fn read_checkpoint(self) -> &'static str {
        match self {
            Self::Fence => "SELECT lease_checkpoint($1)::text",
            Self::Off | Self::Naive => "SELECT (SELECT state::text FROM progress WHERE lease = $1)",
        }
    }
}
