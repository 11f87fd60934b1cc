//! Who stood in line before somebody else was granted the lease before them, if both were granted it.
//!
//! Who waits for whom is what PostgreSQL's lock manager says. What `lease_waiter` shows is compared with the same grants.

use std::collections::{BTreeMap, HashMap};

use super::{Checked, Facts, show};
use crate::history::{Call, Effect, Micros, Op, Seen};

pub(super) fn check(facts: &Facts<'_>) -> Checked {
    let mut checked = Checked::new("the line is served in its order");
    let line = Line::of(facts);
    let mut pairs = HashMap::new();
    for seen in &facts.history.seen {
        for &(first, second) in &seen.behind {
            line.pair(seen, first, second, &mut pairs);
        }
    }
    for (first, second) in pairs.values().filter(|pair| pair.0.1 > pair.1.1) {
        checked.wrong(format!(
            "{} stood before {}, but was granted {} and not {}",
            first.0.id, second.0.id, first.1, second.1
        ));
    }
    checked.count("grants", line.grants);
    checked.count("looks at the line", facts.history.seen.len());
    checked.count("pairs in the line", pairs.len());
    checked
}

pub(super) fn check_shown(facts: &Facts<'_>) -> Checked {
    let mut checked = Checked::new("lease_waiter shows the line in its order");
    let line = Line::of(facts);
    let (mut shown, mut stepped) = (0, 0);
    for seen in &facts.history.seen {
        let mut pairs = HashMap::new();
        for (at, &first) in seen.shown.iter().enumerate() {
            for &second in &seen.shown[at + 1..] {
                line.pair(seen, first, second, &mut pairs);
            }
        }
        shown += pairs.len();
        for (first, second) in pairs.values().filter(|pair| pair.0.1 > pair.1.1) {
            // Its places are by the time since when somebody waits, and that by the clock.
            let since = first.0.start.min(second.0.start);
            let is_stepped = facts.history.events.iter().any(|event| {
                matches!(event.effect, Some(Effect::Clock(..0)))
                    && event.start <= seen.end
                    && event.end >= since
            });
            if is_stepped {
                stepped += 1;
                continue;
            }
            checked.wrong(format!(
                "{} was shown before {}, but was granted {} and not {}: {:?}",
                first.0.id, second.0.id, first.1, second.1, seen.shown
            ));
        }
    }
    checked.count("pairs shown", shown);
    checked.count("of these wrong after the clock was stepped back", stepped);
    checked
}

/// A call without a wait is not granted the lease while somebody stands in line.
pub(super) fn check_outside(facts: &Facts<'_>) -> Checked {
    let mut checked = Checked::new("nobody passes the line");
    let start = facts.history.head.start;
    let line = Line::of(facts);
    // Each one who was seen in line: the call, and since when it was there for certain.
    let mut waiters: BTreeMap<&str, (&Op, i64, &str, Micros)> = BTreeMap::new();
    for seen in &facts.history.seen {
        for &backend in &seen.shown {
            let Some((op, token)) = line.call(seen, backend) else { continue };
            let since = waiters.entry(&op.id).or_insert((op, token, &seen.lease, seen.end));
            since.3 = since.3.min(seen.end);
        }
    }
    let (mut calls, mut outside, mut beside) = (0, 0, 0);
    for op in &facts.history.ops {
        let Call::Acquire { lease, wait: 0, .. } = &op.call else { continue };
        if !op.is_ok() || lease != "line" {
            continue;
        }
        calls += 1;
        let (Some(token), Some(end)) = (op.answer(), op.end) else {
            let waits = |&&(waiter, _, name, since): &&(&Op, i64, &str, Micros)| {
                name == lease && since < op.start && waiter.end >= op.end && waiter.is_ok()
            };
            beside += usize::from(waiters.values().any(|waiter| waits(&waiter)));
            continue;
        };
        outside += 1;
        // It is a grant that was told once more.
        if facts.source(op) != op.id {
            continue;
        }
        // Granted later than this one: until then it stood there.
        let passed = waiters.values().find(|&&(waiter, later, name, since)| {
            name == lease
                && since < op.start
                && later > token
                && waiter.is_ok()
                && waiter.end.is_some_and(|its| its > end)
        });
        if let Some((waiter, ..)) = passed {
            checked.wrong(format!(
                "granted without a wait, past one who stood in line\n    {}\n    {}",
                show(waiter, start),
                show(op, start)
            ));
        }
    }
    checked.count("calls without a wait", calls);
    checked.count("of these granted", outside);
    checked.count("of these refused beside somebody in line", beside);
    checked
}

type Granted<'a> = (&'a Op, i64);
type Pairs<'a> = HashMap<(&'a str, &'a str), (Granted<'a>, Granted<'a>)>;

struct Line<'a> {
    /// All calls of each backend, by their starts, with the token of those that waited and were granted one. A backend has one at a time, and the
    /// system gives its number away again: so a call that nobody heard the end of lasts until the next one at most.
    calls: BTreeMap<i32, Vec<(&'a Op, Option<i64>)>>,
    grants: usize,
}

impl<'a> Line<'a> {
    fn of(facts: &Facts<'a>) -> Self {
        let mut line = Self { calls: BTreeMap::new(), grants: 0 };
        for op in &facts.history.ops {
            let token = match op.call {
                // Heard or not.
                Call::Acquire { wait: 1.., .. } => {
                    op.answer().or_else(|| Some(facts.granted.get(op.id.as_str())?.0))
                }
                _ => None,
            };
            line.calls.entry(op.backend).or_default().push((op, token));
            line.grants += usize::from(token.is_some());
        }
        line.calls.values_mut().for_each(|calls| calls.sort_by_key(|(op, _)| op.start));
        line
    }

    /// The call that the backend was in at that time, if it was granted a lease: it had begun before, and was decided after.
    fn call(&self, seen: &Seen, backend: i32) -> Option<Granted<'a>> {
        let calls = self.calls.get(&backend)?;
        let last = calls.partition_point(|(op, _)| op.start <= seen.start).checked_sub(1)?;
        let (op, token) = calls[last];
        Some((op, token?)).filter(|_| op.until() >= seen.end)
    }

    fn pair(&self, seen: &Seen, first: i32, second: i32, pairs: &mut Pairs<'a>) {
        if let (Some(first), Some(second)) = (self.call(seen, first), self.call(seen, second)) {
            pairs.insert((&first.0.id, &second.0.id), (first, second));
        }
    }
}
