//! The register is linearizable: comparisons by clients that hold the lease, reads by anybody.

use super::linear::{self, Item, Model};
use super::{Checked, Facts, Fate, show};
use crate::history::{Call, Change, Micros, Op, What};

struct Register;

#[derive(Clone, Debug)]
enum Step {
    Read(i64),
    Swap {
        old: i64,
        new: i64,
    },
    /// The comparison did not hold.
    Differs(i64),
}

impl Model for Register {
    type Call = Step;
    type State = i64;

    fn step(&self, state: &i64, item: &Item<Step>, _: Micros) -> Option<i64> {
        match item.call {
            Step::Read(value) => (value == *state).then_some(value),
            Step::Swap { old, new } => (old == *state).then_some(new),
            Step::Differs(old) => (old != *state).then_some(*state),
        }
    }
}

pub(super) const WHAT: &str = "the register is linearizable";

pub(super) fn check(facts: &Facts<'_>) -> Checked {
    let mut checked = Checked::of_fence(WHAT);
    let ops = facts.history.ops.iter().filter(|op| is_ours(op));
    let (mut reads, mut swaps, mut differ) = (0, 0, 0);
    let losses = &facts.losses;
    let mut last = 0;
    for (part, ops) in facts.parts(ops).into_iter().enumerate() {
        let first = if part == 0 { 0 } else { survived(facts, losses[part - 1].1) };
        let (items, shown): (Vec<_>, Vec<_>) =
            ops.iter().filter_map(|op| Some((item(facts, op)?, *op))).unzip();
        for item in &items {
            match item.call {
                Step::Read(_) => reads += 1,
                Step::Swap { .. } => swaps += 1,
                Step::Differs(_) => differ += 1,
            }
        }
        if let Err(stuck) = linear::check(&Register, first, &items) {
            let start = facts.history.head.start;
            let mut why = format!(
                "after {} of {} operations none of these can be next; the register is {}",
                stuck.explained,
                items.len(),
                stuck.state
            );
            for &index in stuck.next.iter().take(4) {
                why += &format!("\n    {}", show(shown[index], start));
            }
            checked.wrong(why);
        }
        last = survived(facts, u32::MAX);
    }
    if facts.history.last.register != last {
        checked.wrong(format!(
            "at the end it is {} instead of {last}, which was committed last",
            facts.history.last.register
        ));
    }
    checked.count("reads", reads);
    checked.count("swaps", swaps);
    checked.count("comparisons that did not hold", differ);
    checked
}

fn is_ours(op: &Op) -> bool {
    matches!(op.call, Call::Read | Call::Write { what: What::Swap { .. }, .. })
}

fn item(facts: &Facts<'_>, op: &Op) -> Option<Item<Step>> {
    let fate = facts.fate(op);
    let is_logged = fate.is_some();
    let call = match op.call {
        Call::Read => Step::Read(op.answer()?),
        Call::Write { what: What::Swap { old, new }, .. } if op.answer().is_some() || is_logged => {
            Step::Swap { old, new }
        }
        Call::Write { what: What::Swap { old, .. }, .. } if op.is_ok() => Step::Differs(old),
        _ => return None,
    };
    Some(Item {
        start: op.start,
        end: op.until(),
        must: op.is_ok() || fate != Some(Fate::LostInSpite),
        call,
    })
}

fn survived(facts: &Facts<'_>, to: u32) -> i64 {
    let swaps: std::collections::HashMap<&str, i64> = facts
        .history
        .ops
        .iter()
        .filter_map(|op| match op.call {
            Call::Write { what: What::Swap { new, .. }, .. } => Some((op.id.as_str(), new)),
            _ => None,
        })
        .collect();
    let mut value = 0;
    for change in facts.survived(to) {
        if let Change::Note { op, .. } = change {
            value = swaps.get(op.as_str()).copied().unwrap_or(value);
        }
    }
    value
}
