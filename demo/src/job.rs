//! The numbers of the story.

use std::time::Duration;

pub const LEASE: &str = "daily-reward:2026-11-29";
pub const TIME_TO_LIVE: Duration = Duration::from_secs(2);
/// How often a worker without the lease asks for it.
pub const ASK_AGAIN: Duration = Duration::from_millis(100);

pub const PLAYERS: i32 = 20_000;
pub const CHUNK: i32 = 1_000;
/// Stands for what a chunk costs in earnest. It also makes the run long enough to watch.
pub const PACE: Duration = Duration::from_millis(200);

/// The chunk in which worker 1 freezes.
pub const FREEZE_IN_CHUNK: i32 = 8;
/// For how long at least. Longer than the time to live, so that the lease is somebody else's by then.
pub const FREEZE_FOR: Duration = Duration::from_secs(3);

/// What keeps two workers apart.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Protection {
    /// The lease, and everything written is written under its token.
    Fence,
    /// The lease alone, as it is usually done: who holds it works, and notes in a table how far it came.
    LeaseOnly,
}

impl Protection {
    /// For the table in the end.
    pub fn title(self) -> &'static str {
        match self {
            Self::Fence => "with the fence",
            Self::LeaseOnly => "lease only",
        }
    }

    /// Each run has a database of its own, so that both start from the same state.
    pub fn database(self) -> &'static str {
        match self {
            Self::Fence => "lock_ext_demo_fence",
            Self::LeaseOnly => "lock_ext_demo_lease_only",
        }
    }
}

/// What a worker process is told when it is started.
pub struct Job {
    pub holder: String,
    pub protection: Protection,
    /// Wait for the director in the middle of this chunk, counted from 1.
    pub pause_in_chunk: Option<i32>,
}

impl Job {
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments =
            vec!["worker".into(), self.holder.clone(), self.protection.database().into()];
        arguments.extend(self.pause_in_chunk.map(|chunk| chunk.to_string()));
        arguments
    }

    /// What [`Job::arguments`] made, without the word `worker`.
    pub fn from_arguments(arguments: &[&str]) -> Option<Self> {
        let (holder, database, pause) = match arguments {
            [holder, database] => (holder, database, None),
            [holder, database, pause] => (holder, database, Some(pause)),
            _ => return None,
        };
        let protection = [Protection::Fence, Protection::LeaseOnly]
            .into_iter()
            .find(|protection| protection.database() == *database)?;
        let pause_in_chunk = pause.map(|chunk| chunk.parse()).transpose().ok()?;
        Some(Self { holder: (*holder).into(), protection, pause_in_chunk })
    }
}
