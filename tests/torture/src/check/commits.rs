//! No transaction commits under a superseded token, in the order in which the servers committed. What was acknowledged is in their log, what
//! was refused is not, and only where a tail was lost is any of it lost.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Checked, Facts, Fate, show};
use crate::history::{Call, Change, Commit, Op, Outcome, Stage};

/// The last grant of each lease.
type Tokens = HashMap<String, i64>;

pub(super) const WHAT: &str = "no commit under a superseded token, in commit order";

pub(super) fn check(facts: &Facts<'_>) -> Checked {
    let mut checked = Checked::of_fence(WHAT);
    let mut surviving = Tokens::new();
    let mut tail = Tokens::new();
    let (mut commits, mut in_tails, mut take_overs) = (0, 0, 0);
    let mut held: HashMap<&str, bool> = HashMap::new();
    for commit in &facts.history.commits {
        for change in &commit.changes {
            if let Change::Lease { lease, held: is_held, token, .. } = change {
                let is_new = surviving.get(lease) != Some(token);
                let was_held = held.insert(lease, *is_held) == Some(true);
                take_overs += usize::from(commit.kept && is_new && was_held);
            }
        }
        let notes = commit.changes.iter().any(is_fenced_note);
        commits += usize::from(notes);
        if commit.kept {
            walk(commit, &mut surviving, &mut checked);
            tail.clone_from(&surviving);
        } else {
            in_tails += usize::from(notes);
            walk(commit, &mut tail, &mut checked);
        }
    }
    asked_for(facts, &mut checked);
    let counts = outcomes(facts, &mut checked);
    checked.count("commits", commits);
    checked.count("of these in lost tails", in_tails);
    checked.count("take-overs", take_overs);
    for (what, count) in counts {
        checked.count(what, count);
    }
    checked
}

/// Each note is that of one operation, and there once.
fn asked_for(facts: &Facts<'_>, checked: &mut Checked) {
    let ops: HashMap<&str, &Op> = facts.history.ops.iter().map(|op| (op.id.as_str(), op)).collect();
    let mut noted = HashSet::new();
    for change in facts.history.commits.iter().flat_map(|commit| &commit.changes) {
        let Change::Note { op: id, lease, token } = change else { continue };
        if !noted.insert(id) {
            checked.wrong(format!("{id} was committed twice"));
        }
        let is_asked = match ops.get(id.as_str()).map(|op| &op.call) {
            Some(Call::Write { lease: asked, token: under, .. }) => {
                (asked, under) == (lease, token)
            }
            Some(Call::Once { .. }) => lease.is_empty(),
            _ => false,
        };
        if !is_asked {
            checked.wrong(format!(
                "{id}, lease {lease:?}, token {token}: committed, and nobody asked for it"
            ));
        }
    }
}

fn is_fenced_note(change: &Change) -> bool {
    matches!(change, Change::Note { lease, .. } if !lease.is_empty())
}

/// All of a commit happens at once.
fn walk(commit: &Commit, tokens: &mut Tokens, checked: &mut Checked) {
    for change in &commit.changes {
        if let Change::Lease { lease, token, .. } = change {
            tokens.insert(lease.clone(), *token);
        }
    }
    for change in commit.changes.iter().filter(|change| is_fenced_note(change)) {
        let Change::Note { op, lease, token } = change else { continue };
        let current = tokens.get(lease).copied().unwrap_or_default();
        if *token != current {
            checked.wrong(format!(
                "lease {lease}: {op} committed under {token} when {current} was the last grant, at {} of server {}",
                commit.lsn, commit.server
            ));
        }
    }
}

fn outcomes(facts: &Facts<'_>, checked: &mut Checked) -> Vec<(&'static str, usize)> {
    let mut counts = BTreeMap::new();
    for op in &facts.history.ops {
        if !matches!(op.call, Call::Write { .. } | Call::Once { .. }) {
            continue;
        }
        let fate = facts.fate(op);
        let shown = || show(op, facts.history.head.start);
        // Of `once` only who was the first leaves a note.
        let is_done = op.answer() == Some(1);
        let what = match (&op.outcome, fate) {
            (Outcome::Ok { .. }, Some(Fate::Kept)) if is_done => "acknowledged and kept",
            (Outcome::Ok { .. }, Some(Fate::Lost)) if is_done => {
                "acknowledged and lost with a tail"
            }
            (Outcome::Ok { .. }, Some(Fate::LostInSpite)) if is_done => {
                checked.wrong(format!("acknowledged by a quorum, and lost: {}", shown()));
                continue;
            }
            (Outcome::Ok { .. }, None) if is_done => {
                checked.wrong(format!("acknowledged, and not in the log: {}", shown()));
                continue;
            }
            (Outcome::Ok { .. }, Some(_)) => {
                checked
                    .wrong(format!("nothing was to be written, but it is in the log: {}", shown()));
                continue;
            }
            (Outcome::Ok { .. }, None) => "nothing to write",
            (Outcome::Fail { .. }, Some(_)) => {
                checked.wrong(format!("refused, but it is in the log: {}", shown()));
                continue;
            }
            (Outcome::Fail { code, at: Stage::Statement }, None) if code.starts_with("LX") => {
                "refused at the statement"
            }
            (Outcome::Fail { code, at: Stage::Commit }, None) if code.starts_with("LX") => {
                "refused at COMMIT"
            }
            (Outcome::Fail { .. }, None) => "failed otherwise",
            (Outcome::Unknown, Some(_)) => "not heard of, done",
            (Outcome::Unknown, None) => "not heard of, not done",
        };
        *counts.entry(what).or_default() += 1;
    }
    counts.into_iter().collect()
}
