//! No acknowledged element of the set is lost, none appears that nobody added, and none that was refused.

use std::collections::HashSet;

use super::{Checked, Facts, Fate, show};
use crate::history::{Call, Op, What};

pub(super) const WHAT: &str = "no acknowledged element of the set is lost";

pub(super) fn check(facts: &Facts<'_>) -> Checked {
    let mut checked = Checked::of_fence(WHAT);
    let start = facts.history.head.start;
    let last: HashSet<i64> = facts.history.last.set.iter().copied().collect();
    if last.len() != facts.history.last.set.len() {
        checked.wrong("an element is in the set twice".to_owned());
    }
    let (mut kept, mut with_tail, mut unheard) = (0, 0, 0);
    let mut known = HashSet::new();
    for op in &facts.history.ops {
        let Some(element) = added(op) else { continue };
        known.insert(element);
        match (op.is_ok(), facts.fate(op), last.contains(&element)) {
            (_, Some(Fate::Lost), false) => with_tail += 1,
            (true, _, true) => kept += 1,
            (true, _, false) => {
                checked.wrong(format!("acknowledged, and lost: {}", show(op, start)))
            }
            (false, Some(Fate::Kept), true) => unheard += 1,
            (false, Some(Fate::Kept), false) => {
                checked.wrong(format!("committed, and lost: {}", show(op, start)));
            }
            (false, None | Some(Fate::LostInSpite), false) => {}
            (false, _, true) => {
                checked.wrong(format!("not committed, and in the set: {}", show(op, start)));
            }
        }
    }
    for element in last.difference(&known) {
        checked.wrong(format!("{element} is in the set, and nobody added it"));
    }
    checked.count("acknowledged elements", kept);
    checked.count("not heard of, but there", unheard);
    checked.count("lost with a tail", with_tail);
    checked
}

fn added(op: &Op) -> Option<i64> {
    match op.call {
        Call::Write { what: What::Add { element }, .. } => Some(element),
        _ => None,
    }
}
