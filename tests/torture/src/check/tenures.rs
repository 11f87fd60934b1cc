//! No two holders at a time, as far as they look at their own clocks: from the answer of `lease_acquire` to the client's own deadline, or
//! to its release, there is nobody else. A step of the clock forward, a crash that undoes an extension that was not durable, and a lost tail
//! may end a lease before its deadline.

use super::{Checked, Facts, by_lease, show};
use crate::history::{Call, Effect, Micros, Op};

/// The server's answer to somebody else may be written before ours is read.
const SLACK: Micros = 5_000;

struct Tenure<'a> {
    op: &'a Op,
    from: Micros,
    to: Micros,
}

pub(super) fn check(facts: &Facts<'_>) -> Checked {
    let mut checked = Checked::new("one holder at a time, by the holders' own deadlines");
    let start = facts.history.head.start;
    let excuses: Vec<(Micros, Micros)> = facts
        .history
        .events
        .iter()
        .filter(|event| {
            matches!(
                event.effect,
                Some(Effect::Clock(1..) | Effect::Crash | Effect::FailOver { .. })
            )
        })
        .map(|event| (event.start, event.end))
        .collect();
    let (mut count, mut excused, mut held_on) = (0, 0, 0);
    for (lease, ops) in by_lease(facts) {
        let mut tenures: Vec<Tenure<'_>> = ops.iter().filter_map(|op| tenure(op, &ops)).collect();
        tenures.sort_by_key(|tenure| tenure.from);
        count += tenures.len();
        held_on += tenures.iter().filter(|tenure| is_held_on(tenure, &ops)).count();
        let mut tenures = tenures.iter();
        let Some(mut longest) = tenures.next() else { continue };
        for two in tenures {
            let one = longest;
            if two.to > one.to {
                longest = two;
            }
            if two.from + SLACK >= one.to {
                continue;
            }
            if excuses.iter().any(|&(start, end)| start <= two.from && end >= one.op.start) {
                excused += 1;
            } else {
                checked.wrong(format!(
                    "lease {lease}: two holders for {} ms\n    {}\n    {}",
                    (one.to.min(two.to) - two.from) / 1_000,
                    show(one.op, start),
                    show(two.op, start)
                ));
            }
        }
    }
    checked.count("tenures", count);
    checked.count("held on by heartbeats", held_on);
    checked.count("overlaps after a clock that was stepped or a server that was lost", excused);
    checked
}

/// Work under the token was acknowledged that began after the first time to live, and within that of an extension.
fn is_held_on(tenure: &Tenure<'_>, ops: &[Op]) -> bool {
    let Call::Acquire { ttl, .. } = tenure.op.call else { return false };
    let (token, first) = (tenure.op.answer(), tenure.from + ttl);
    let within =
        ops.iter().skip_while(|op| op.start <= first).take_while(|op| op.start < tenure.to);
    within.into_iter().any(|op| {
        op.answer() == Some(1)
            && matches!(op.call, Call::Write { token: under, .. } if Some(under) == token)
    })
}

fn tenure<'a>(op: &'a Op, ops: &[Op]) -> Option<Tenure<'a>> {
    let Call::Acquire { ttl, wait, ref again, .. } = op.call else { return None };
    let (token, from) = (op.answer()?, op.end?);
    // Who has waited, or asked again, knows the time of the grant only from the first extension on.
    let mut to = if wait > 0 || again.is_some() { from } else { op.start + ttl };
    for other in ops.iter().filter(|other| other.start >= op.start) {
        match other.call {
            Call::Extend { token: extended, ttl, .. }
                if extended == token && other.answer().is_some() =>
            {
                to = to.max(other.start + ttl);
            }
            Call::Release { token: ended, .. } | Call::Complete { token: ended, .. }
                if ended == token =>
            {
                to = to.min(other.start);
                break;
            }
            Call::Force { .. } => to = to.min(other.start),
            _ => {}
        }
    }
    // An answer that came too late gave nothing.
    (from < to).then_some(Tenure { op, from, to })
}
