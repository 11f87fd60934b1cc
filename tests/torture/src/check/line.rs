//! Who stood in line before somebody else was granted the lease before them, if both were granted it.
//!
//! Who waits for whom is what PostgreSQL's lock manager says. What `lease_waiter` shows is compared with the same grants.

use std::collections::{BTreeMap, HashMap};

use super::{Checked, Facts};
use crate::history::{Call, Effect, Op, Seen};

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

type Granted<'a> = (&'a Op, i64);
type Pairs<'a> = HashMap<(&'a str, &'a str), (Granted<'a>, Granted<'a>)>;

struct Line<'a> {
    /// The calls of each backend, by their starts.
    calls: BTreeMap<i32, Vec<Granted<'a>>>,
    grants: usize,
}

impl<'a> Line<'a> {
    /// Only of calls that were granted a lease, heard or not.
    fn of(facts: &Facts<'a>) -> Self {
        let mut line = Self { calls: BTreeMap::new(), grants: 0 };
        for op in &facts.history.ops {
            let Call::Acquire { wait: 1.., .. } = op.call else { continue };
            let heard = op.answer();
            if let Some(token) = heard.or_else(|| Some(facts.granted.get(op.id.as_str())?.0)) {
                line.calls.entry(op.backend).or_default().push((op, token));
                line.grants += 1;
            }
        }
        line
    }

    /// The call that the backend was in at that time: it had begun before, and was decided after.
    fn call(&self, seen: &Seen, backend: i32) -> Option<Granted<'a>> {
        let calls = self.calls.get(&backend)?;
        let last = calls.partition_point(|(op, _)| op.start <= seen.start).checked_sub(1)?;
        (calls[last].0.until() >= seen.end).then_some(calls[last])
    }

    fn pair(&self, seen: &Seen, first: i32, second: i32, pairs: &mut Pairs<'a>) {
        if let (Some(first), Some(second)) = (self.call(seen, first), self.call(seen, second)) {
            pairs.insert((&first.0.id, &second.0.id), (first, second));
        }
    }
}
