//! Tokens rise strictly in the order of the grants, and none is given out twice: not one that was drawn and undone, or lost with its server.

use std::collections::HashMap;

use super::{Checked, Facts, Fate, by_lease, show};
use crate::history::{Call, Change, Op};

pub(super) fn check(facts: &Facts<'_>) -> Checked {
    let mut checked = Checked::new("tokens rise strictly and are told once");
    let start = facts.history.head.start;
    let told = told_once(facts, &mut checked);
    let mut pairs = 0;
    for ops in by_lease(facts).values() {
        let of = |op: &Op| match op.call {
            Call::Acquire { .. } | Call::Undone { .. } => op.answer(),
            _ => None,
        };
        // By their ends: before a token was asked for, all of those with an earlier end had been told.
        let mut ended: Vec<(i64, i64, &Op)> =
            ops.iter().filter_map(|op| Some((op.end?, of(op)?, op))).collect();
        ended.sort_by_key(|(end, ..)| *end);
        let mut highest: Vec<(i64, i64, &Op)> = Vec::new();
        for (end, token, op) in ended {
            if highest.last().is_none_or(|(_, before, _)| token > *before) {
                highest.push((end, token, op));
            }
        }
        for op in ops {
            let Some(token) = of(op) else { continue };
            let before = highest.partition_point(|(end, ..)| *end < op.start);
            let Some((_, last, earlier)) = before.checked_sub(1).map(|at| highest[at]) else {
                continue;
            };
            pairs += 1;
            if token <= last {
                checked.wrong(format!(
                    "{token} was told after {last}\n    {}\n    {}",
                    show(earlier, start),
                    show(op, start)
                ));
            }
        }
    }
    let (grants, lost) = in_order_of_commits(facts, &mut checked);
    asked_for(facts, &mut checked);
    let acknowledged = acknowledged(facts, &mut checked);
    let again = facts.history.ops.iter().filter(|op| op.answer().is_some());
    let again = again.filter(|op| facts.source(op) != op.id).count();
    checked.count("tokens told", told);
    checked.count("in the order in which clients were told", pairs);
    checked.count("grants in the order of commits", grants);
    checked.count("of these lost with a tail", lost);
    checked.count("acknowledged grants found in the log", acknowledged);
    checked.count("of these told again to the same request", again);
    checked
}

fn told_once(facts: &Facts<'_>, checked: &mut Checked) -> usize {
    let mut told: HashMap<i64, &str> = HashMap::new();
    let mut all: Vec<(i64, &str)> = Vec::new();
    for op in &facts.history.ops {
        if let (Call::Acquire { .. } | Call::Undone { .. }, Some(token)) = (&op.call, op.answer()) {
            all.push((token, facts.source(op)));
        }
    }
    // Also what nobody heard.
    for (id, (token, _)) in &facts.granted {
        all.push((*token, id));
    }
    for (token, id) in all {
        if let Some(other) = told.insert(token, id).filter(|other| *other != id) {
            checked.wrong(format!("{token} was told to {other} and to {id}"));
        }
    }
    told.len()
}

/// Along what survived, and along what each server had when it was lost.
fn in_order_of_commits(facts: &Facts<'_>, checked: &mut Checked) -> (usize, usize) {
    let (mut grants, mut lost) = (0, 0);
    let mut surviving: HashMap<&str, i64> = HashMap::new();
    let mut tail: HashMap<&str, i64> = HashMap::new();
    let mut server = 0;
    for commit in &facts.history.commits {
        if commit.server != server || commit.kept {
            server = commit.server;
            tail.clear();
        }
        for change in &commit.changes {
            let Change::Lease { lease, token, .. } = change else { continue };
            let before = tail.get(lease.as_str()).or(surviving.get(lease.as_str())).copied();
            let before = before.unwrap_or_default();
            if *token == before {
                continue;
            }
            grants += 1;
            lost += usize::from(!commit.kept);
            if *token < before {
                checked.wrong(format!(
                    "lease {lease}: {token} was granted after {before}, at {} of server {}",
                    commit.lsn, commit.server
                ));
            }
            if commit.kept {
                surviving.insert(lease, *token);
            } else {
                tail.insert(lease, *token);
            }
        }
    }
    (grants, lost)
}

/// Each grant is to somebody who asked for this lease, and was not undone.
fn asked_for(facts: &Facts<'_>, checked: &mut Checked) {
    let ops: HashMap<&str, &Op> = facts.history.ops.iter().map(|op| (op.id.as_str(), op)).collect();
    for change in facts.history.commits.iter().flat_map(|commit| &commit.changes) {
        let Change::Lease { lease, token, held: true, holder } = change else { continue };
        let asked = ops.get(holder.as_str());
        if !asked.is_some_and(|op| matches!(&op.call, Call::Acquire { lease: l, .. } if l == lease))
        {
            checked.wrong(format!(
                "lease {lease}: {token} was granted to {holder}, who did not ask for it"
            ));
        }
    }
}

fn acknowledged(facts: &Facts<'_>, checked: &mut Checked) -> usize {
    let mut count = 0;
    for op in &facts.history.ops {
        let Call::Acquire { .. } = op.call else { continue };
        // Without an answer it is the other one's.
        let id = if op.answer().is_some() { facts.source(op) } else { &op.id };
        let logged = facts.granted.get(id);
        let shown = || show(op, facts.history.head.start);
        match (op.answer(), logged) {
            (Some(_), Some((_, Fate::LostInSpite))) => {
                checked.wrong(format!("granted by a quorum, and lost: {}", shown()));
            }
            (Some(token), Some((logged, _))) if token == *logged => count += 1,
            (Some(_), _) => checked.wrong(format!("granted, and not in the log: {}", shown())),
            (None, Some((logged, _))) if !op.is_unknown() => {
                checked.wrong(format!("not granted, but {logged} is in the log: {}", shown()));
            }
            _ => {}
        }
    }
    count
}
