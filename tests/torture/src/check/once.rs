//! Exactly one effect for each key of `once`: that of the caller who was told that it is the first, if somebody was.

use std::collections::BTreeMap;

use super::{Checked, Facts, Fate, show};
use crate::history::Call;

pub(super) fn check(facts: &Facts<'_>) -> Checked {
    let mut checked = Checked::new("one effect for each key of once");
    let start = facts.history.head.start;
    let mut effects: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (key, op) in &facts.history.last.effects {
        effects.entry(key).or_default().push(op);
    }
    let mut keys: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut calls, mut lost) = (0, 0);
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
    checked.count("keys whose callers all crashed or failed", swept);
    checked.count("effects lost with a tail, and done again", lost);
    checked
}
