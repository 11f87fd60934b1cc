//! What must hold of a [`History`], each part in a file of its own. Nothing here asks a server.

mod batch;
mod commits;
mod leases;
mod line;
mod linear;
mod once;
mod refusals;
mod register;
pub mod scope;
mod set;
mod tenures;
mod tokens;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::history::{Call, Change, Effect, History, Micros, Op};

/// What one check has looked at, and what it found.
#[derive(Clone, Debug)]
pub struct Checked {
    pub what: &'static str,
    /// Whether it is the fence that it depends on; leases and `once` are right without one.
    pub is_of_fence: bool,
    /// What was counted, and how many.
    pub counts: Vec<(&'static str, usize)>,
    pub violations: Vec<String>,
}

impl Checked {
    fn new(what: &'static str) -> Self {
        Self { what, is_of_fence: false, counts: Vec::new(), violations: Vec::new() }
    }

    /// One that the fence is needed for.
    fn of_fence(what: &'static str) -> Self {
        Self { is_of_fence: true, ..Self::new(what) }
    }

    fn count(&mut self, what: &'static str, count: usize) {
        self.counts.push((what, count));
    }

    fn wrong(&mut self, why: String) {
        self.violations.push(why);
    }
}

pub fn all(history: &History) -> Vec<Checked> {
    let facts = Facts::of(history);
    vec![
        leases::check(&facts),
        tokens::check(&facts),
        commits::check(&facts),
        refusals::check(&facts),
        refusals::check_errors(&facts),
        tenures::check(&facts),
        register::check(&facts),
        set::check(&facts),
        batch::check(&facts),
        once::check(&facts),
        line::check(&facts),
        line::check_shown(&facts),
        line::check_outside(&facts),
    ]
}

/// A history with what all checks ask about it.
struct Facts<'a> {
    history: &'a History,
    /// What became of the operations that the log of commits has.
    logged: HashMap<&'a str, Fate>,
    /// The tokens of grants by the operation that got them.
    granted: HashMap<&'a str, (i64, Fate)>,
    /// The leases and tokens of changes that were lost with a server.
    unkept: HashSet<(&'a str, i64)>,
    /// Where a tail was lost: when the server ended, and the number of the next one.
    losses: Vec<(Micros, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    /// With a tail of which that was to be expected.
    Lost,
    /// With a server that had a quorum.
    LostInSpite,
}

impl<'a> Facts<'a> {
    fn of(history: &'a History) -> Self {
        let (mut logged, mut granted, mut unkept) =
            (HashMap::new(), HashMap::new(), HashSet::new());
        let lossy: HashSet<u32> = history
            .events
            .iter()
            .filter_map(|event| match event.effect {
                Some(Effect::FailOver { to, lost_tail: true, .. }) => Some(to - 1),
                _ => None,
            })
            .collect();
        for commit in &history.commits {
            let fate = match (commit.kept, lossy.contains(&commit.server)) {
                (true, _) => Fate::Kept,
                (false, true) => Fate::Lost,
                (false, false) => Fate::LostInSpite,
            };
            for change in &commit.changes {
                if let Change::Lease { lease, token, .. } = change
                    && !commit.kept
                {
                    unkept.insert((lease.as_str(), *token));
                }
                match change {
                    Change::Note { op, .. } => {
                        logged.insert(op.as_str(), fate);
                    }
                    Change::Lease { token, holder, held: true, .. } => {
                        granted.entry(holder.as_str()).or_insert((*token, fate));
                    }
                    Change::Lease { .. } => {}
                }
            }
        }
        Self { history, logged, granted, unkept, losses: losses(history) }
    }

    /// Operations between one lost tail and the next: what is in one part knows nothing of what was lost in an earlier one.
    fn parts<'b>(&self, ops: impl Iterator<Item = &'b Op>) -> Vec<Vec<&'b Op>> {
        let losses = &self.losses;
        let mut parts = vec![Vec::new(); losses.len() + 1];
        for op in ops {
            let part = losses.iter().filter(|(ended, _)| op.start >= *ended).count();
            parts[part].push(op);
        }
        parts
    }

    /// What the surviving commits before server `to` say, in their order.
    fn survived(&self, to: u32) -> impl Iterator<Item = &'a Change> {
        self.history
            .commits
            .iter()
            .filter(move |commit| commit.server < to && commit.kept)
            .flat_map(|commit| &commit.changes)
    }

    /// The operation that the log has the grant of, which the caller was told of: its own, or the one that it asked again for.
    fn source<'b>(&self, op: &'b Op) -> &'b str {
        match &op.call {
            Call::Acquire { again: Some(first), .. }
                if !self.granted.contains_key(op.id.as_str()) =>
            {
                first
            }
            _ => &op.id,
        }
    }

    /// Is it a change of a lease that was committed, and lost with its server before a standby had it? Then it waited for one until the end.
    fn waited_in_vain(&self, op: &Op) -> bool {
        let (lease, token) = match &op.call {
            Call::Release { lease, token }
            | Call::Complete { lease, token, .. }
            | Call::Extend { lease, token, .. } => (lease, *token),
            Call::Acquire { lease, .. } => match self.granted.get(op.id.as_str()) {
                Some((token, _)) => (lease, *token),
                None => return false,
            },
            _ => return false,
        };
        self.unkept.contains(&(lease.as_str(), token))
    }

    fn fate(&self, op: &Op) -> Option<Fate> {
        self.logged.get(op.id.as_str()).copied()
    }
}

/// The fail-overs that lost something. Also those where nothing acknowledged was: a commit that waits for the standby is there for all to see once its
/// server has crashed and come back, and lost with it all the same.
fn losses(history: &History) -> Vec<(Micros, u32)> {
    let mut crashed = false;
    let mut losses = Vec::new();
    for event in &history.events {
        match event.effect {
            Some(Effect::Crash) => crashed = true,
            Some(Effect::FailOver { to, dead, lost_tail }) => {
                let mut commits = history.commits.iter();
                let was_seen = crashed && commits.any(|c| c.server + 1 == to && !c.kept);
                if lost_tail || was_seen {
                    losses.push((dead, to));
                }
                crashed = false;
            }
            _ => {}
        }
    }
    losses
}

/// How long a call that nobody heard the end of may be at work in the server, as far as a refusal is explained by it.
const LINGERS: Micros = 1_000_000;

/// Until when a call that nobody heard the end of can be at work: its wait, as long as a backend was stopped, its own or one that its commit
/// waits for, the sender to the standby most of all; and not beyond a crash.
fn lingers(facts: &Facts<'_>, op: &Op) -> Micros {
    let wait = if let Call::Acquire { wait, .. } = op.call { wait } else { 0 };
    let mut until = op.start + wait + LINGERS;
    if facts.waited_in_vain(op) {
        until = Micros::MAX;
    }
    for event in &facts.history.events {
        if event.kind == "stop-backend" && event.start <= until && event.end >= op.start {
            until = until.max(event.end + LINGERS);
        }
        if matches!(event.kind.as_str(), "tables") && event.start <= until && event.end >= op.start
        {
            until = until.max(event.end + LINGERS);
        }
    }
    for event in &facts.history.events {
        if matches!(event.effect, Some(Effect::Crash | Effect::FailOver { .. }))
            && event.start >= op.start
        {
            until = until.min(event.end);
        }
    }
    until
}

/// An operation, short.
fn show(op: &Op, start: Micros) -> String {
    let time = |at: Micros| format!("{:.6}", (at - start) as f64 / 1e6);
    let end = op.end.map_or_else(|| "open".to_owned(), time);
    format!(
        "[{} .. {end}] {} {} -> {}",
        time(op.start),
        op.id,
        serde_json::to_string(&op.call).expect("JSON"),
        serde_json::to_string(&op.outcome).expect("JSON")
    )
}

fn by_lease(facts: &Facts<'_>) -> BTreeMap<String, Vec<Op>> {
    let mut leases: BTreeMap<String, Vec<Op>> = BTreeMap::new();
    for op in &facts.history.ops {
        if let Some(lease) = op.lease() {
            leases.entry(lease.to_owned()).or_default().push(op.clone());
        }
    }
    leases
}
