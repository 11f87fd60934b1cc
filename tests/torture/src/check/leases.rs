//! The operations on a lease are linearizable: one order of them, each between its start and its end, that a lease in one hand explains.
//!
//! Times: a grant or an extension happens somewhere between its start and its end, so the lease runs out between the earliest and the
//! latest of these and its time to live. A grant over one that has not been ended is an error before the earliest, an extension after the
//! latest. A step of the clock, or a crash that undoes an extension that was not durable, between the two makes room for exactly that.
//!
//! A grant that nobody was told of is known from the log of commits, and may come at any time after it was asked for.

use super::linear::{self, Item, Model, Stuck};
use super::{Checked, Facts, by_lease, lingers, show};
use crate::history::{Call, Change, Effect, Micros, Op, Outcome};

/// Two clocks that go side by side, and the time between looking at one and acting.
const SLACK: Micros = 20_000;

#[derive(Clone, Debug)]
enum Step {
    Grant { token: i64, ttl: Micros },
    Busy { contended: bool },
    Extended { token: i64, ttl: Micros, durable: bool },
    Lost { token: i64, contended: bool },
    Ended { token: i64, pause: Micros },
    NotEnded { token: i64, contended: bool },
    Forced,
    Current { token: i64 },
    NotCurrent { token: i64, contended: bool },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    token: i64,
    held: bool,
    /// The last grant or extension was at these times.
    from: Micros,
    to: Micros,
    ttl: Micros,
    durable: bool,
    /// Completed until then, at the earliest and at the latest.
    blocked: (Micros, Micros),
}

const NOBODY: State =
    State { token: 0, held: false, from: 0, to: 0, ttl: 0, durable: true, blocked: (0, 0) };

/// What was done to the server's clock and memory.
struct Lease {
    forward: Vec<(Micros, Micros)>,
    back: Vec<(Micros, Micros)>,
    crashes: Vec<(Micros, Micros)>,
}

fn meets(times: &[(Micros, Micros)], from: Micros, to: Micros) -> bool {
    times.iter().any(|&(start, end)| start <= to && end >= from)
}

impl Lease {
    fn of(facts: &Facts<'_>) -> Self {
        let of = |which: fn(&Effect) -> bool| {
            let events = facts.history.events.iter();
            events
                .filter(|event| event.effect.as_ref().is_some_and(which))
                .map(|event| (event.start, event.end))
                .collect()
        };
        Self {
            forward: of(|effect| matches!(effect, Effect::Clock(1..))),
            back: of(|effect| matches!(effect, Effect::Clock(..0))),
            crashes: of(|effect| matches!(effect, Effect::Crash | Effect::FailOver { .. })),
        }
    }

    fn may_be_over(&self, state: &State, by: Micros) -> bool {
        by.saturating_add(SLACK) >= state.from.saturating_add(state.ttl)
            || meets(&self.forward, state.from, by)
            || !state.durable && meets(&self.crashes, state.from, by)
    }

    fn may_go_on(&self, state: &State, at: Micros, by: Micros) -> bool {
        at <= state.to.saturating_add(state.ttl).saturating_add(SLACK)
            || meets(&self.back, state.from, by)
    }
}

impl Model for Lease {
    type Call = Step;
    type State = State;

    fn step(&self, state: &State, item: &Item<Step>, earliest: Micros) -> Option<State> {
        let s = state;
        let (same, until) = (Some(s.clone()), item.end);
        let is_mine = |token: i64| s.held && s.token == token;
        let renewed = |token, ttl, durable| {
            let (from, to) = (earliest, until);
            Some(State { token, held: true, from, to, ttl, durable, blocked: (0, 0) })
        };
        match item.call {
            Step::Grant { token, ttl } => {
                let is_free = if s.held {
                    self.may_be_over(s, until)
                } else {
                    until.saturating_add(SLACK) >= s.blocked.0
                        || meets(&self.forward, s.from, until)
                };
                if token > s.token && is_free { renewed(token, ttl, true) } else { None }
            }
            Step::Busy { contended } => {
                let is_held = s.held && self.may_go_on(s, earliest, until);
                let is_blocked = !s.held
                    && (earliest <= s.blocked.1.saturating_add(SLACK)
                        || meets(&self.back, s.from, until));
                if contended || is_held || is_blocked { same } else { None }
            }
            Step::Extended { token, ttl, durable } => {
                if is_mine(token) && self.may_go_on(s, earliest, until) {
                    renewed(token, ttl, durable)
                } else {
                    None
                }
            }
            Step::Lost { token, contended } | Step::NotCurrent { token, contended } => {
                let may_be = !is_mine(token) || contended || self.may_be_over(s, until);
                if may_be { same } else { None }
            }
            Step::Ended { token, pause } => {
                let blocked = if pause > 0 {
                    (earliest.saturating_add(pause), until.saturating_add(pause))
                } else {
                    (0, 0)
                };
                is_mine(token).then(|| State { held: false, blocked, from: earliest, ..s.clone() })
            }
            Step::NotEnded { token, contended } => {
                if !is_mine(token) || contended {
                    same
                } else {
                    None
                }
            }
            Step::Forced => {
                Some(State { held: false, blocked: (0, 0), from: earliest, ..s.clone() })
            }
            Step::Current { token } => {
                if is_mine(token) && self.may_go_on(s, earliest, until) {
                    same
                } else {
                    None
                }
            }
        }
    }

    fn is_idle(&self, state: &State, item: &Item<Step>) -> bool {
        match item.call {
            Step::Extended { token, .. } | Step::Ended { token, .. } => {
                token < state.token || token == state.token && !state.held
            }
            _ => false,
        }
    }
}

pub(super) fn check(facts: &Facts<'_>) -> Checked {
    let mut checked = Checked::new("lease operations are linearizable");
    let lease = Lease::of(facts);
    let (mut names, mut count, mut open, mut places, mut grants, mut beside) = (0, 0, 0, 0, 0, 0);
    let (mut refusals, mut excused) = (0, 0);
    let losses = &facts.losses;
    for (name, ops) in by_lease(facts) {
        names += 1;
        for (part, ops) in facts.parts(ops.iter()).into_iter().enumerate() {
            let first = match part {
                0 => NOBODY,
                _ => survived(facts, &name, losses[part - 1].1),
            };
            let (mut items, shown) = items(facts, &ops);
            count += items.len();
            refusals += items
                .iter()
                .filter(|i| {
                    matches!(
                        i.call,
                        Step::Busy { .. }
                            | Step::Lost { .. }
                            | Step::NotCurrent { .. }
                            | Step::NotEnded { .. }
                    )
                })
                .count();
            excused += items
                .iter()
                .filter(|i| {
                    matches!(
                        i.call,
                        Step::Busy { contended: true }
                            | Step::Lost { contended: true, .. }
                            | Step::NotCurrent { contended: true, .. }
                            | Step::NotEnded { contended: true, .. }
                    )
                })
                .count();
            open += items.iter().filter(|item| !item.must).count();
            grants += items.iter().filter(|i| matches!(i.call, Step::Grant { .. })).count();
            loop {
                match linear::check(&lease, first.clone(), &items) {
                    Ok(seen) => places += seen,
                    Err(stuck) if excuse(facts, &stuck, &mut items, &ops) => {
                        beside += 1;
                        continue;
                    }
                    Err(stuck) => {
                        let start = facts.history.head.start;
                        checked.wrong(format!(
                            "lease {name}: {}",
                            excerpt(&stuck, &items, &shown, start)
                        ));
                    }
                }
                break;
            }
        }
    }
    checked.count("names", names);
    checked.count("operations", count);
    checked.count("grants", grants);
    checked.count("refusals", refusals);
    checked.count("of these explained by a call beside them", excused);
    checked.count("open", open);
    checked.count("refused though free, beside another call", beside);
    checked.count("configurations", places);
    checked
}

/// `lease_acquire` does not wait for anybody. While another call is at work on a lease that is free or expired, an extension that comes too late
/// among them, it says NULL. That is no order of the two, but takes nothing from anybody: it is counted.
fn excuse(facts: &Facts<'_>, stuck: &Stuck<State>, items: &mut [Item<Step>], ops: &[&Op]) -> bool {
    let refused = stuck.next.iter().copied().find(|&index| {
        let Item { start, end, ref call, .. } = items[index];
        // Not itself, and not another refusal, which works on nothing.
        let meets =
            |op: &&&Op| op.start <= end && op.end.unwrap_or_else(|| lingers(facts, op)) >= start;
        let works = |op: &&&Op| match op.call {
            Call::Acquire { .. } => op.answer().is_some(),
            Call::Extend { .. }
            | Call::Release { .. }
            | Call::Complete { .. }
            | Call::Force { .. } => true,
            _ => false,
        };
        matches!(call, Step::Busy { contended: false })
            && ops.iter().filter(meets).any(|op| works(&op))
    });
    if let Some(index) = refused {
        items[index].call = Step::Busy { contended: true };
    }
    refused.is_some()
}

fn excerpt(stuck: &Stuck<State>, items: &[Item<Step>], shown: &[&Op], start: Micros) -> String {
    let mut text = format!(
        "{}after {} of {} operations none of these can be next; the lease is {:?}",
        if stuck.undecided { "undecided, too many orders to look at; " } else { "" },
        stuck.explained,
        items.len(),
        relative(&stuck.state, start)
    );
    let first = stuck.next.first().copied().unwrap_or_default();
    for op in &shown[first.saturating_sub(6)..first] {
        text += &format!("\n    before: {}", show(op, start));
    }
    for &index in stuck.next.iter().take(4) {
        text += &format!("\n    stuck:  {} as {:?}", show(shown[index], start), items[index].call);
    }
    text
}

fn relative(state: &State, start: Micros) -> State {
    let back = |at: Micros| at.saturating_sub(start);
    State { from: back(state.from), to: back(state.to), ..state.clone() }
}

/// What a server begins with that took over without the end of its predecessor's log: how long the lease lasts is not known.
fn survived(facts: &Facts<'_>, name: &str, to: u32) -> State {
    let mut state = NOBODY;
    for change in facts.survived(to) {
        if let Change::Lease { lease, token, held, .. } = change
            && lease == name
        {
            (state.token, state.held) = (*token, *held);
        }
    }
    (state.from, state.to, state.blocked) = (0, Micros::MAX / 4, (0, Micros::MAX / 4));
    state
}

fn items<'a>(facts: &Facts<'_>, ops: &[&'a Op]) -> (Vec<Item<Step>>, Vec<&'a Op>) {
    // What can be in a lease's way without a trace of it in the history: a grant that is undone, and a call that nobody heard the end of.
    let busy: Vec<(usize, Micros, Micros)> = ops
        .iter()
        .enumerate()
        .filter(|(_, op)| {
            let is_about_lease = !matches!(op.call, Call::Write { .. } | Call::IsCurrent { .. });
            is_about_lease && (matches!(op.call, Call::Undone { .. }) || !op.is_ok())
        })
        .map(|(at, op)| (at, op.start, op.end.unwrap_or_else(|| lingers(facts, op))))
        .collect();
    // Who calls without a wait is refused as long as somebody stands in line, also if the lease is free.
    let in_line: Vec<(Micros, Micros)> = ops
        .iter()
        .filter(|op| matches!(op.call, Call::Acquire { wait: 1.., .. }))
        .map(|op| (op.start, op.end.unwrap_or_else(|| lingers(facts, op))))
        .collect();
    let mut items = Vec::new();
    let mut shown = Vec::new();
    for (at, op) in ops.iter().enumerate() {
        if matches!(op.outcome, Outcome::Fail { .. }) {
            continue;
        }
        let end = op.until();
        let latest = busy.partition_point(|&(_, start, _)| start <= op.end.unwrap_or(Micros::MAX));
        let contended = busy[..latest]
            .iter()
            .rev()
            // Nothing that began earlier is still at work.
            .take_while(|&&(_, start, _)| start >= op.start - 60_000_000)
            .any(|&(other, _, until)| other != at && until >= op.start);
        let known = !op.is_unknown();
        let answer = op.answer();
        let (must, call) = match &op.call {
            Call::Acquire { ttl, wait, .. } => {
                let told =
                    if known { answer } else { facts.granted.get(op.id.as_str()).map(|g| g.0) };
                match told {
                    // The grant is that of the first call; here it is told once more.
                    Some(token) if facts.source(op) != op.id => (true, Step::Current { token }),
                    Some(token) => (true, Step::Grant { token, ttl: *ttl }),
                    // Who has waited in vain was not the first in line.
                    None if known => {
                        let is_in_line = || {
                            let begun = in_line.partition_point(|&(start, _)| start <= end);
                            let begun = in_line[..begun].iter().rev();
                            begun
                                .take_while(|&&(start, _)| start >= op.start - 60_000_000)
                                .any(|&(_, until)| until >= op.start)
                        };
                        (true, Step::Busy { contended: contended || *wait > 0 || is_in_line() })
                    }
                    None => continue,
                }
            }
            Call::Extend { token, ttl, durable, .. } if answer.is_some() || !known => {
                (known, Step::Extended { token: *token, ttl: *ttl, durable: *durable })
            }
            Call::Extend { token, .. } => (true, Step::Lost { token: *token, contended }),
            Call::Release { token, .. } if answer == Some(1) || !known => {
                (known, Step::Ended { token: *token, pause: 0 })
            }
            Call::Complete { token, pause, .. } if answer == Some(1) || !known => {
                (known, Step::Ended { token: *token, pause: *pause })
            }
            Call::Release { token, .. } | Call::Complete { token, .. } => {
                (true, Step::NotEnded { token: *token, contended })
            }
            Call::Force { .. } => (known, Step::Forced),
            Call::IsCurrent { token, .. } if answer == Some(1) => {
                (true, Step::Current { token: *token })
            }
            Call::IsCurrent { token, .. } if known => {
                (true, Step::NotCurrent { token: *token, contended })
            }
            _ => continue,
        };
        items.push(Item { start: op.start, end, must, call });
        shown.push(*op);
    }
    end_before_higher_tokens(&mut items);
    (items, shown)
}

/// Tokens rise, so a grant that nobody was told of has happened before the next higher one has. Without that it could come at any time, and
/// the orders to look at would be too many.
fn end_before_higher_tokens(items: &mut [Item<Step>]) {
    let token = |item: &Item<Step>| match item.call {
        Step::Grant { token, .. } => Some(token),
        _ => None,
    };
    let mut grants: Vec<_> =
        (0..items.len()).filter_map(|i| Some((token(&items[i])?, i))).collect();
    grants.sort_unstable();
    let mut end = Micros::MAX;
    for (_, index) in grants.into_iter().rev() {
        end = end.min(items[index].end);
        items[index].end = end;
    }
}
