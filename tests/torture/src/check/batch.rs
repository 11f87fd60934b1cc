//! Each player of each round is paid once, up to the checkpoint and not beyond.

use std::collections::BTreeMap;

use super::{Checked, Facts, Fate, show};
use crate::history::{Call, What};

pub(super) const WHAT: &str = "each player is paid once, up to the checkpoint";

pub(super) fn check(facts: &Facts<'_>) -> Checked {
    let mut checked = Checked::of_fence(WHAT);
    let last = &facts.history.last;
    let (round, next) = last.checkpoint;
    let paid: BTreeMap<(i64, i64), i64> =
        last.paid.iter().map(|&(round, player, times)| ((round, player), times)).collect();
    let due = (1..=round).flat_map(|this| {
        let players = if this < round { last.players } else { next - 1 };
        (1..=players).map(move |player| (this, player))
    });
    let due: std::collections::BTreeSet<(i64, i64)> = due.collect();
    for whom in &due {
        let times = paid.get(whom).copied().unwrap_or_default();
        if times != 1 {
            checked.wrong(format!("round {}, player {}: paid {times} times", whom.0, whom.1));
        }
    }
    for whom in paid.keys().filter(|whom| !due.contains(whom)) {
        checked.wrong(format!("round {}, player {}: paid beyond the checkpoint", whom.0, whom.1));
    }
    let (mut chunks, mut lost) = (0, 0);
    for op in &facts.history.ops {
        let Call::Write { what: What::Pay { round, from, to }, .. } = op.call else { continue };
        if op.answer().is_none() {
            continue;
        }
        if facts.fate(op) == Some(Fate::Lost) {
            lost += 1;
            continue;
        }
        chunks += 1;
        if (from..to).any(|player| !paid.contains_key(&(round, player))) {
            checked
                .wrong(format!("acknowledged, and lost: {}", show(op, facts.history.head.start)));
        }
    }
    checked.count("payments", due.len());
    checked.count("rounds", round as usize - 1);
    checked.count("acknowledged chunks", chunks);
    checked.count("chunks lost with a tail, and paid again", lost);
    checked
}
