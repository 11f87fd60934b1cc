//! A small history that is right, and what each check says when one thing in it is changed.

mod full;
mod more;

use crate::check::all;
use crate::control::Guard;
use crate::history::{
    Call, Change, Commit, Effect, Event, Head, History, Last, Micros, Op, Outcome, Seen, Stage,
    What,
};

const SECOND: Micros = 1_000_000;

fn op(id: &str, start: Micros, call: Call, answer: Option<i64>) -> Op {
    let outcome = Outcome::Ok { answer };
    Op {
        id: id.to_owned(),
        backend: 9,
        start,
        end: Some(start + 1_000),
        call,
        outcome,
        error: None,
    }
}

fn acquire(id: &str, start: Micros, lease: &str, wait: Micros, token: Option<i64>) -> Op {
    let call = Call::Acquire { lease: lease.to_owned(), ttl: 2 * SECOND, wait, again: None };
    op(id, start, call, token)
}

fn extend(id: &str, start: Micros, token: i64, answer: Option<i64>) -> Op {
    let call = Call::Extend { lease: "set".to_owned(), token, ttl: 2 * SECOND, durable: true };
    op(id, start, call, answer)
}

fn write(id: &str, start: Micros, lease: &str, token: i64, what: What) -> Op {
    op(id, start, Call::Write { lease: lease.to_owned(), token, what }, Some(1))
}

fn granted(op: &str, lease: &str, token: i64) -> Change {
    Change::Lease { lease: lease.to_owned(), token, held: true, holder: op.to_owned() }
}

fn note(op: &str, lease: &str, token: i64) -> Change {
    Change::Note { op: op.to_owned(), lease: lease.to_owned(), token }
}

/// Two holders of a set, the second one after the first one's time is over; a payment; a key; two in line.
fn right() -> History {
    let mut ops = vec![
        acquire("a", 0, "set", 0, Some(1)),
        acquire("b", SECOND, "set", 0, None),
        extend("a2", SECOND, 1, Some(1)),
        write("a3", SECOND + 2_000, "set", 1, What::Add { element: 10 }),
        acquire("b2", 4 * SECOND, "set", 0, Some(2)),
        extend("a4", 4 * SECOND + 2_000, 1, None),
        write("b3", 4 * SECOND + 3_000, "set", 2, What::Add { element: 20 }),
        acquire("c", 0, "batch", 0, Some(3)),
        write("c2", 2_000, "batch", 3, What::Pay { round: 1, from: 1, to: 3 }),
        op("d", 0, Call::Once { key: "k".to_owned() }, Some(1)),
        op("e", 0, Call::Once { key: "k".to_owned() }, Some(0)),
        acquire("f", 0, "register", 0, Some(4)),
        write("f2", 2_000, "register", 4, What::Swap { old: 0, new: 7 }),
        op("f3", 4_000, Call::Read, Some(7)),
        acquire("g", SECOND, "line", SECOND, Some(5)),
        op("g2", 3 * SECOND, Call::Release { lease: "line".to_owned(), token: 5 }, Some(1)),
        acquire("h", SECOND, "line", SECOND, Some(6)),
    ];
    for (id, end) in [("g", 2 * SECOND), ("h", 3 * SECOND + 2_000)] {
        find(&mut ops, id).end = Some(end);
    }
    (find(&mut ops, "g").backend, find(&mut ops, "h").backend) = (1, 2);
    ops.sort_by_key(|op| op.start);
    let changes = [
        vec![granted("a", "set", 1)],
        vec![note("a3", "set", 1)],
        vec![granted("c", "batch", 3)],
        vec![note("c2", "batch", 3)],
        vec![note("d", "", 0)],
        vec![granted("f", "register", 4)],
        vec![note("f2", "register", 4)],
        vec![granted("g", "line", 5)],
        vec![granted("b2", "set", 2)],
        vec![note("b3", "set", 2)],
        vec![granted("h", "line", 6)],
    ];
    let commits = (1..).zip(changes);
    let commits =
        commits.map(|(lsn, changes)| Commit { server: 0, lsn, kept: true, changes }).collect();
    History {
        head: Head {
            seed: 0,
            guard: Guard::Fence,
            start: 0,
            seconds: 5,
            server: "none".to_owned(),
            workloads: Vec::new(),
            faults: Vec::new(),
        },
        ops,
        events: Vec::new(),
        commits,
        seen: vec![Seen {
            start: SECOND + 500_000,
            end: SECOND + 501_000,
            lease: "line".to_owned(),
            shown: vec![1, 2],
            behind: vec![(1, 2)],
        }],
        last: Last {
            register: 7,
            set: vec![10, 20],
            paid: vec![(1, 1, 1), (1, 2, 1)],
            checkpoint: (1, 3),
            effects: vec![("k".to_owned(), "d".to_owned())],
            players: 4,
        },
    }
}

fn find<'a>(ops: &'a mut [Op], id: &str) -> &'a mut Op {
    ops.iter_mut().find(|op| op.id == id).expect("an operation")
}

/// The checks that find something.
fn wrong(change: impl FnOnce(&mut History)) -> Vec<&'static str> {
    let mut history = right();
    change(&mut history);
    let found = all(&history).into_iter().filter(|check| !check.violations.is_empty());
    found.map(|check| check.what).collect()
}

const LEASES: &str = "lease operations are linearizable";
const TOKENS: &str = "tokens rise strictly and are told once";
const COMMITS: &str = "no commit under a superseded token, in commit order";
const REFUSALS: &str = "a write is refused where there is a reason, and only there";
const ERRORS: &str = "no error but those that faults explain";
const OUTSIDE: &str = "nobody passes the line";
const TENURES: &str = "one holder at a time, by the holders' own deadlines";
const REGISTER: &str = "the register is linearizable";
const SET: &str = "no acknowledged element of the set is lost";
const BATCH: &str = "each player is paid once, up to the checkpoint";
const ONCE: &str = "one effect for each key of once";
const LINE: &str = "the line is served in its order";
const SHOWN: &str = "lease_waiter shows the line in its order";

fn answers(history: &mut History, id: &str, answer: Option<i64>) {
    find(&mut history.ops, id).outcome = Outcome::Ok { answer };
}

fn moves(history: &mut History, id: &str, start: Micros) {
    let op = find(&mut history.ops, id);
    (op.start, op.end) = (start, Some(start + 1_000));
    history.ops.sort_by_key(|op| op.start);
}

#[test]
fn a_right_history_is_right() {
    assert_eq!(wrong(|_| {}), [""; 0]);
}

#[test]
fn a_grant_over_a_lease_that_lasts_is_found() {
    let early = |history: &mut History| {
        moves(history, "b2", 2 * SECOND + SECOND / 2);
        moves(history, "a4", 2 * SECOND + SECOND / 2 + 2_000);
        moves(history, "b3", 2 * SECOND + SECOND / 2 + 3_000);
    };
    assert_eq!(wrong(early), [LEASES, TENURES]);
    // But not if the clock was stepped forward.
    let stepped = |history: &mut History| {
        early(history);
        let (kind, detail) = ("clock".to_owned(), String::new());
        let (start, end) = (2 * SECOND, 2 * SECOND);
        let effect = Some(Effect::Clock(5));
        history.events.push(Event { start, end, kind, detail, effect });
    };
    assert_eq!(wrong(stepped), [""; 0]);
}

#[test]
fn an_extension_of_a_superseded_lease_is_found() {
    assert_eq!(wrong(|history| answers(history, "a4", Some(1))), [LEASES, TENURES]);
}

#[test]
fn an_extension_of_an_expired_lease_is_found() {
    let late = |history: &mut History| {
        answers(history, "a4", Some(1));
        moves(history, "a4", 3 * SECOND + 500_000);
    };
    assert!(wrong(late).contains(&LEASES));
}

#[test]
fn a_refusal_that_nothing_explains_is_found() {
    // Long after the lease has expired, and nobody is near.
    let busy = |history: &mut History| {
        history.ops.push(acquire("z", 60 * SECOND, "set", 0, None));
    };
    assert_eq!(wrong(busy), [LEASES]);
}

#[test]
fn a_token_that_comes_twice_or_late_is_found() {
    let twice = |history: &mut History| {
        history.ops.push(op("z", 9 * SECOND, Call::Undone { lease: "set".to_owned() }, Some(2)));
    };
    assert_eq!(wrong(twice), [TOKENS]);
    let low = |history: &mut History| {
        for commit in &mut history.commits {
            for change in &mut commit.changes {
                if let Change::Lease { token: token @ 2, .. }
                | Change::Note { token: token @ 2, .. } = change
                {
                    *token = -1;
                }
            }
        }
    };
    assert!(wrong(low).contains(&TOKENS));
}

#[test]
fn a_grant_that_nobody_asked_for_or_that_is_not_logged_is_found() {
    assert_eq!(wrong(|history| drop(history.commits.remove(0))), [TOKENS, COMMITS]);
    let refused = |history: &mut History| {
        find(&mut history.ops, "h").outcome =
            Outcome::Fail { code: "57P01".to_owned(), at: Stage::Statement };
    };
    assert_eq!(wrong(refused), [TOKENS]);
}

#[test]
fn a_commit_under_a_superseded_token_is_found() {
    let late = |history: &mut History| {
        let commit = history.commits.remove(1);
        history.commits.push(commit);
    };
    assert_eq!(wrong(late), [COMMITS]);
}

#[test]
fn what_was_refused_and_committed_is_found() {
    let refused = |history: &mut History| {
        find(&mut history.ops, "f2").outcome =
            Outcome::Fail { code: "LX001".to_owned(), at: Stage::Commit };
    };
    assert_eq!(wrong(refused), [COMMITS, REFUSALS]);
}

#[test]
fn what_was_acknowledged_and_lost_is_found() {
    let lost = |history: &mut History| {
        history.last.set = vec![20];
        history.last.paid = vec![(1, 1, 1)];
        history.last.effects.clear();
    };
    assert_eq!(wrong(lost), [SET, BATCH, ONCE]);
    let not_logged = |history: &mut History| history.commits.retain(|commit| commit.lsn != 10);
    assert_eq!(wrong(not_logged), [COMMITS]);
}

/// Only where a tail was lost may it be lost.
#[test]
fn what_a_quorum_has_acknowledged_and_was_lost_is_found() {
    let lost = |lost_tail: bool| {
        wrong(|history| {
            for commit in history.commits.iter_mut().filter(|commit| commit.lsn >= 9) {
                commit.kept = false;
            }
            history.last.set = vec![10];
            let effect = Some(Effect::FailOver { to: 1, dead: 5 * SECOND, lost_tail });
            let (start, end) = (5 * SECOND, 6 * SECOND);
            let (kind, detail) = ("fail-over".to_owned(), String::new());
            history.events.push(Event { start, end, kind, detail, effect });
        })
    };
    assert_eq!(lost(true), [""; 0]);
    assert_eq!(lost(false), [TOKENS, COMMITS, SET]);
}

/// Asked again with the same request: the same token, or one of its own.
#[test]
fn another_token_for_the_same_request_is_found() {
    let again = |token| {
        move |history: &mut History| {
            let first = find(&mut history.ops, "f");
            (first.outcome, first.end) = (Outcome::Unknown, None);
            let mut second = acquire("f1", 1_500, "register", 0, Some(token));
            if let Call::Acquire { again, .. } = &mut second.call {
                *again = Some("f".to_owned());
            }
            history.ops.push(second);
            history.ops.sort_by_key(|op| op.start);
        }
    };
    assert_eq!(wrong(again(4)), [""; 0]);
    assert_eq!(wrong(again(40)), [LEASES, TOKENS]);
}

#[test]
fn a_register_that_goes_back_is_found() {
    assert_eq!(wrong(|history| answers(history, "f3", Some(0))), [REGISTER]);
    assert_eq!(wrong(|history| history.last.register = 0), [REGISTER]);
}

#[test]
fn who_is_paid_twice_or_beyond_the_checkpoint_is_found() {
    assert_eq!(wrong(|history| history.last.paid[0].2 = 2), [BATCH]);
    assert_eq!(wrong(|history| history.last.paid.push((1, 3, 1))), [BATCH]);
}

#[test]
fn a_key_with_two_effects_or_none_is_found() {
    let twice = |history: &mut History| {
        history.last.effects.push(("k".to_owned(), "e".to_owned()));
    };
    assert_eq!(wrong(twice), [ONCE]);
}

/// A commit that waits for the standby is there for all to see when the server has crashed and come back, and is lost with it.
#[test]
fn what_a_crash_has_shown_may_be_lost_with_the_server() {
    let shown = |history: &mut History, crash: bool| {
        let mut swap = write("f4", 5_000, "register", 4, What::Swap { old: 7, new: 8 });
        (swap.end, swap.outcome) = (None, Outcome::Unknown);
        let seen = op("f5", 2 * SECOND, Call::Read, Some(8));
        let lost = op("f6", 8 * SECOND, Call::Read, Some(7));
        history.ops.extend([swap, seen, lost]);
        history.ops.sort_by_key(|op| op.start);
        let changes = vec![note("f4", "register", 4)];
        history.commits.push(Commit { server: 0, lsn: 99, kept: false, changes });
        let mut happens = |kind: &str, start: Micros, effect: Effect| {
            let (kind, detail) = (kind.to_owned(), String::new());
            history.events.push(Event { start, end: start, kind, detail, effect: Some(effect) });
        };
        if crash {
            happens("restart", SECOND, Effect::Crash);
        }
        let dead = 7 * SECOND;
        happens("fail-over", dead, Effect::FailOver { to: 1, dead, lost_tail: false });
    };
    assert_eq!(wrong(|history| shown(history, true)), [""; 0]);
    assert!(wrong(|history| shown(history, false)).contains(&REGISTER));
}

/// The number of a process that ended long ago may be another's.
#[test]
fn a_backend_is_in_its_last_call_only() {
    let reused = |history: &mut History| {
        find(&mut history.ops, "h").backend = 3;
        let mut open = acquire("y", -5 * SECOND, "line", SECOND, None);
        (open.backend, open.end, open.outcome) = (2, None, Outcome::Unknown);
        let mut other = acquire("x", SECOND, "line", SECOND, None);
        (other.backend, other.end, other.outcome) = (2, None, Outcome::Unknown);
        history.ops.splice(0..0, [open]);
        history.ops.push(other);
        history.ops.sort_by_key(|op| op.start);
        // It was granted the lease before the two that stand in line later.
        history.ops.retain(|op| op.id != "g2");
        answers(history, "g", Some(7));
        answers(history, "h", Some(8));
        for commit in &mut history.commits {
            if let Change::Lease { token: token @ 5..=6, .. } = &mut commit.changes[0] {
                *token += 2;
            }
        }
        let changes = vec![granted("y", "line", 5)];
        history.commits.insert(7, Commit { server: 0, lsn: 7, kept: true, changes });
    };
    assert_eq!(wrong(reused), [""; 0]);
}

#[test]
fn who_overtakes_in_line_is_found() {
    assert_eq!(wrong(|history| history.seen[0].behind = vec![(2, 1)]), [LINE]);
    assert_eq!(wrong(|history| history.seen[0].shown = vec![2, 1]), [SHOWN]);
}

/// What was written is what is read.
#[test]
fn a_history_is_the_same_from_its_file() {
    let mut history = right();
    find(&mut history.ops, "h").outcome = Outcome::Unknown;
    find(&mut history.ops, "h").end = None;
    let file = std::env::temp_dir().join(format!("torture-history-{}.jsonl", std::process::id()));
    history.write(&file).expect("a file");
    let again = History::read(&file);
    std::fs::remove_file(&file).expect("our file");
    let again = again.expect("a history");
    assert_eq!(again.ops, history.ops);
    assert_eq!(again.commits, history.commits);
    assert_eq!((again.head, again.seen, again.last), (history.head, history.seen, history.last));
}
