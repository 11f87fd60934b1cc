//! A write is refused only where there is a reason for it, always where its token was ended before it began, and nothing ends in an error
//! that is not to be expected.

use std::collections::HashMap;

use super::{Checked, Facts, Fate, by_lease, lingers, show};
use crate::control::Guard;
use crate::history::{Call, Micros, Op, Outcome, UNDONE};

pub(super) fn check(facts: &Facts<'_>) -> Checked {
    let mut checked =
        Checked::of_fence("a write is refused where there is a reason, and only there");
    let start = facts.history.head.start;
    let (mut judged, mut after) = (0, 0);
    for ops in by_lease(facts).values() {
        let asked = granted(facts, ops);
        for op in ops {
            let Call::Write { token, .. } = op.call else { continue };
            if is_refusal(op) {
                judged += 1;
                if !has_reason(facts, ops, &asked, op) {
                    checked.wrong(format!("refused for no reason: {}", show(op, start)));
                }
            }
            let Some(end) = ended(facts, ops, &asked, op, token) else { continue };
            after += 1;
            if op.answer() == Some(1) {
                checked.wrong(format!(
                    "begun after the token was ended, and acknowledged\n    {}\n    {}",
                    show(end, start),
                    show(op, start)
                ));
            }
        }
    }
    checked.count("refusals judged", judged);
    checked.count("writes begun after the end of their token", after);
    checked
}

/// The errors. With another guard than the fence they are whatever they are.
pub(super) fn check_errors(facts: &Facts<'_>) -> Checked {
    let mut checked = Checked::new("no error but those that faults explain");
    let mut errors = 0;
    for op in &facts.history.ops {
        let code = match &op.outcome {
            Outcome::Fail { code, .. } => code,
            _ => match &op.error {
                Some(code) => code,
                None => continue,
            },
        };
        errors += 1;
        let is_write = matches!(op.call, Call::Write { .. });
        if !is_expected(code, is_write, facts.history.head.guard) {
            checked.wrong(show(op, facts.history.head.start));
        }
    }
    checked.count("errors judged", errors);
    checked
}

fn is_expected(code: &str, is_write: bool, guard: Guard) -> bool {
    match code {
        // The connection is gone, or the answer; a server that ends, or begins.
        "closed" | "late" | UNDONE | "57P01" | "57P02" | "57P03" => true,
        "LX001" => is_write,
        // Of the stricter isolation levels.
        "40001" => true,
        _ => code.starts_with("08") || guard != Guard::Fence && code.starts_with("40"),
    }
}

fn is_refusal(op: &Op) -> bool {
    matches!(&op.outcome, Outcome::Fail { code, .. } if code.starts_with("LX"))
}

/// When each token was asked for, and when it was told.
type Asked = HashMap<i64, (Micros, Micros)>;

fn granted(facts: &Facts<'_>, ops: &[Op]) -> Asked {
    let mut asked = Asked::new();
    for op in ops {
        let Some(token) = token_of(facts, op) else { continue };
        let (first, last) = asked.entry(token).or_insert((op.start, op.until()));
        *first = (*first).min(op.start);
        *last = (*last).min(op.until());
    }
    asked
}

/// Of an acquire that was granted, heard or not.
fn token_of(facts: &Facts<'_>, op: &Op) -> Option<i64> {
    match op.call {
        Call::Acquire { .. } => {
            op.answer().or_else(|| facts.granted.get(op.id.as_str()).map(|(token, _)| *token))
        }
        _ => None,
    }
}

fn has_reason(facts: &Facts<'_>, ops: &[Op], asked: &Asked, op: &Op) -> bool {
    let (Call::Write { token, .. }, Some(end)) = (&op.call, op.end) else { return true };
    // Of a token that nobody was ever granted, nothing else is expected.
    let Some(&(first, _)) = asked.get(token) else { return true };
    // Whoever is granted a lease that is free does not know yet whether that will be undone or lost.
    let is_beside = |other: &Op| other.end.unwrap_or_else(|| lingers(facts, other)) >= op.start;
    let explains = |other: &Op| match other.call {
        Call::Acquire { .. } => {
            token_of(facts, other).is_some_and(|later| later > *token)
                || !other.is_ok() && is_beside(other)
        }
        Call::Undone { .. } => is_beside(other),
        Call::Release { token: ended, .. } | Call::Complete { token: ended, .. } => {
            ended == *token && (other.is_unknown() || other.answer() == Some(1))
        }
        Call::Force { .. } => other.until() >= first,
        _ => false,
    };
    let before = ops.partition_point(|other| other.start <= end);
    ops[..before].iter().rev().any(explains) || lost_grant(facts, *token, end)
}

/// The grant was in the tail that a server lost.
fn lost_grant(facts: &Facts<'_>, token: i64, by: Micros) -> bool {
    facts.granted.values().any(|&granted| granted == (token, Fate::Lost))
        && facts.losses.iter().any(|&(dead, _)| dead <= by)
}

/// What ended the token, and was known to have done so before the write began; not if a tail was lost since.
fn ended<'a>(
    facts: &Facts<'_>,
    ops: &'a [Op],
    asked: &Asked,
    op: &Op,
    token: i64,
) -> Option<&'a Op> {
    let &(_, told) = asked.get(&token)?;
    let before = ops.partition_point(|other| other.start < op.start);
    let end = ops[..before].iter().rev().take_while(|other| other.start >= told).find(|other| {
        let ends = match other.call {
            Call::Release { token: ended, .. } | Call::Complete { token: ended, .. } => {
                ended == token
            }
            Call::Force { .. } => true,
            _ => false,
        };
        ends && other.answer() == Some(1) && other.until() < op.start
    })?;
    let is_lost = facts.losses.iter().any(|&(dead, _)| end.start <= dead && dead <= op.until());
    (!is_lost).then_some(end)
}
