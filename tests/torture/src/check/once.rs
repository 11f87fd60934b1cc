//! Exactly one effect for each key of `once`: that of the caller who was told that it is the first, if somebody was.

use std::collections::{BTreeMap, HashMap};

use super::{Checked, Facts, Fate, show};
use crate::history::{Call, Change, Effect, Micros, Op};

pub(super) fn check(facts: &Facts<'_>) -> Checked {
    let mut checked = Checked::new("one effect for each key of once");
    let start = facts.history.head.start;
    let mut effects: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (key, op) in &facts.history.last.effects {
        effects.entry(key).or_default().push(op);
    }
    let mut keys: BTreeMap<&str, usize> = BTreeMap::new();
    let done = done(facts);
    let (mut calls, mut lost, mut already) = (0, 0, 0);
    for op in &facts.history.ops {
        let Call::Once { key } = &op.call else { continue };
        calls += 1;
        *keys.entry(key).or_default() += 1;
        let found = effects.get(key.as_str()).map(Vec::as_slice).unwrap_or_default();
        match op.answer() {
            Some(1) if facts.fate(op) == Some(Fate::Lost) => lost += 1,
            Some(1) if found != [op.id.as_str()] => checked.wrong(format!(
                "the first one, but the effects are {found:?}: {}",
                show(op, start)
            )),
            Some(0) => {
                already += 1;
                let by = op.until();
                let done = done.get(key.as_str()).map(Vec::as_slice).unwrap_or_default();
                if !done.iter().any(|one| one.from <= by && one.to >= op.start) {
                    checked.wrong(format!(
                        "done already, it was told, by nobody: {}",
                        show(op, start)
                    ));
                }
            }
            _ => {}
        }
    }
    for (key, calls) in &keys {
        let found = effects.get(key).map(Vec::len).unwrap_or_default();
        if found != 1 {
            checked.wrong(format!("key {key}: {found} effects of {calls} calls"));
        }
    }
    let shared = keys.values().filter(|&&calls| calls > 1).count();
    let swept = effects.values().filter(|found| found[..] == ["sweep"]).count();
    checked.count("keys", keys.len());
    checked.count("of these asked for more than once", shared);
    checked.count("calls", calls);
    checked.count("answers that it was done already", already);
    checked.count("keys whose callers all crashed or failed", swept);
    checked.count("effects lost with a tail, and done again", lost);
    checked
}

/// An effect that was committed: somebody may have been told of it from the beginning of its call on, until it was lost with its server.
struct Done {
    from: Micros,
    to: Micros,
}

fn done<'a>(facts: &Facts<'a>) -> HashMap<&'a str, Vec<Done>> {
    let ops: HashMap<&str, &Op> = facts.history.ops.iter().map(|op| (op.id.as_str(), op)).collect();
    let deaths: HashMap<u32, Micros> = facts
        .history
        .events
        .iter()
        .filter_map(|event| match event.effect {
            Some(Effect::FailOver { to, dead, .. }) => Some((to - 1, dead)),
            _ => None,
        })
        .collect();
    let mut all: HashMap<&str, Vec<Done>> = HashMap::new();
    for commit in &facts.history.commits {
        let lost = || deaths.get(&commit.server).copied();
        let to = if commit.kept { None } else { lost() };
        for change in &commit.changes {
            let Change::Note { op, .. } = change else { continue };
            let Some(&op) = ops.get(op.as_str()) else { continue };
            let Call::Once { key } = &op.call else { continue };
            all.entry(key)
                .or_default()
                .push(Done { from: op.start, to: to.unwrap_or(Micros::MAX) });
        }
    }
    all
}
