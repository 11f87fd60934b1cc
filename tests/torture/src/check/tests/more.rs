//! The same for refusals, for the line, and for what nobody asked for.

use super::*;

/// A write of the set that is refused, and not in the log.
fn refused(history: &mut History, start: Micros, token: i64) {
    let mut op = write("r", start, "set", token, What::Entry);
    let (code, at) = ("LX001".to_owned(), Stage::Commit);
    op.outcome = Outcome::Fail { code, at };
    history.ops.push(op);
    history.ops.sort_by_key(|op| op.start);
}

#[test]
fn a_write_that_is_refused_for_no_reason_is_found() {
    assert_eq!(wrong(|history| refused(history, SECOND, 1)), [REFUSALS]);
    // A later token.
    assert_eq!(wrong(|history| refused(history, 5 * SECOND, 1)), [""; 0]);
    assert_eq!(wrong(|history| refused(history, 5 * SECOND, 2)), [REFUSALS]);
    // Nobody was ever granted it.
    assert_eq!(wrong(|history| refused(history, 5 * SECOND, 0)), [""; 0]);
    let beside = |start| {
        wrong(|history| {
            refused(history, SECOND, 1);
            history.ops.push(op("u", start, Call::Undone { lease: "set".to_owned() }, None));
            history.ops.sort_by_key(|op| op.start);
        })
    };
    assert_eq!(beside(SECOND + 500), [""; 0]);
    assert_eq!(beside(SECOND / 2), [REFUSALS]);
    // An end by force, but not that of an earlier grant.
    let forced = |start| {
        wrong(|history| {
            refused(history, 5 * SECOND, 2);
            history.ops.push(op("u", start, Call::Force { lease: "set".to_owned() }, Some(1)));
            history.ops.sort_by_key(|op| op.start);
        })
    };
    assert_eq!(forced(4 * SECOND + 500_000), [""; 0]);
    assert_eq!(forced(3 * SECOND), [REFUSALS]);
}

#[test]
fn an_error_that_no_fault_explains_is_found() {
    let fails = |code: &str, id: &str| {
        wrong(|history| {
            let (code, at) = (code.to_owned(), Stage::Statement);
            find(&mut history.ops, id).outcome = Outcome::Fail { code, at };
        })
    };
    assert_eq!(fails("57P01", "b"), [""; 0]);
    assert_eq!(fails("42883", "b"), [ERRORS]);
    assert_eq!(fails("LX001", "b"), [ERRORS]);
    let internal = |history: &mut History| {
        let op = find(&mut history.ops, "f2");
        (op.outcome, op.end, op.error) = (Outcome::Unknown, None, Some("XX000".to_owned()));
    };
    assert_eq!(wrong(internal), [ERRORS]);
}

/// The line's lease, that was released at 3 s.
fn after_release(history: &mut History, start: Micros) {
    history.ops.push(write("g3", start, "line", 5, What::Entry));
    history.ops.sort_by_key(|op| op.start);
    let (server, lsn, kept) = (0, 10, true);
    let changes = vec![note("g3", "line", 5)];
    history.commits.insert(10, Commit { server, lsn, kept, changes });
}

#[test]
fn a_write_after_the_release_is_found() {
    assert_eq!(wrong(|history| after_release(history, 3 * SECOND - 500)), [""; 0]);
    assert_eq!(wrong(|history| after_release(history, 3 * SECOND + 1_500)), [REFUSALS]);
    // If the release was lost with its server, the lease is held again.
    let lost = |history: &mut History| {
        after_release(history, 3 * SECOND + 1_500);
        let effect = Some(Effect::FailOver { to: 1, dead: 3 * SECOND + 1_200, lost_tail: true });
        let (start, end) = (3 * SECOND + 1_200, 3 * SECOND + 1_300);
        let (kind, detail) = ("lost-tail".to_owned(), String::new());
        history.events.push(Event { start, end, kind, detail, effect });
    };
    assert!(!wrong(lost).contains(&REFUSALS));
}

#[test]
fn a_write_under_no_token_or_that_nobody_asked_for_or_that_comes_twice_is_found() {
    let zero = |history: &mut History| {
        if let Call::Write { token, .. } = &mut find(&mut history.ops, "a3").call {
            *token = 0;
        }
        history.commits[1].changes = vec![note("a3", "set", 0)];
    };
    assert_eq!(wrong(zero), [COMMITS]);
    let unasked = |history: &mut History| history.commits[1].changes.push(note("z", "set", 1));
    assert_eq!(wrong(unasked), [COMMITS]);
    let other = |history: &mut History| history.commits[3].changes = vec![note("c2", "set", 1)];
    assert_eq!(wrong(other), [COMMITS]);
    let twice = |history: &mut History| history.commits[1].changes.push(note("a3", "set", 1));
    assert_eq!(wrong(twice), [COMMITS]);
}

#[test]
fn a_grant_to_nobody_or_that_was_undone_is_found() {
    let change = |holder: &str, history: &mut History| {
        let (server, lsn, kept) = (0, 12, true);
        let changes = vec![granted(holder, "set", 40)];
        history.commits.push(Commit { server, lsn, kept, changes });
    };
    assert_eq!(wrong(|history| change("z", history)), [TOKENS]);
    let undone = |history: &mut History| {
        let call = Call::Undone { lease: "set".to_owned() };
        history.ops.push(op("z", 20 * SECOND, call, Some(40)));
        change("z", history);
    };
    assert_eq!(wrong(undone), [TOKENS]);
}

#[test]
fn who_is_told_that_it_was_done_before_anybody_did_it_is_found() {
    let early = |history: &mut History| moves(history, "d", SECOND);
    assert_eq!(wrong(early), [ONCE]);
    // It was done, and lost with a server that was gone before the question.
    let lost = |dead: Micros| {
        wrong(|history| {
            moves(history, "e", 6 * SECOND);
            let (start, end) = (dead, dead + 1_000);
            let effect = Some(Effect::FailOver { to: 1, dead, lost_tail: true });
            let (kind, detail) = ("lost-tail".to_owned(), String::new());
            history.events.push(Event { start, end, kind, detail, effect });
            let commit = history.commits.iter_mut().find(|commit| commit.lsn == 5);
            commit.expect("the note of d").kept = false;
        })
    };
    assert!(lost(5 * SECOND).contains(&ONCE));
    assert!(!lost(7 * SECOND).contains(&ONCE));
}

/// The second one in line, who is granted it after the release at 3 s.
#[test]
fn who_passes_the_line_is_found() {
    let passes = |token: i64, start: Micros| {
        wrong(|history| {
            find(&mut history.ops, "h").end = Some(5 * SECOND);
            for change in history.commits.iter_mut().flat_map(|commit| &mut commit.changes) {
                if let Change::Lease { token: token @ 6, .. } = change {
                    *token = 8;
                }
            }
            answers(history, "h", Some(8));
            history.ops.push(acquire("p", start, "line", 0, Some(token)));
            history.ops.sort_by_key(|op| op.start);
            let (server, lsn, kept) = (0, 11, true);
            let changes = vec![granted("p", "line", token)];
            history.commits.insert(10, Commit { server, lsn, kept, changes });
            history.seen[0].shown = vec![2];
            history.seen[0].behind.clear();
        })
    };
    let end = 3 * SECOND + 2_000;
    let found = passes(7, end);
    assert!(found.contains(&OUTSIDE), "{found:?}");
    // Granted after her who was in line: she may have been gone by then.
    assert!(!passes(9, end).contains(&OUTSIDE));
    // Nobody was seen in line by then.
    assert!(!passes(7, SECOND + 500_000).contains(&OUTSIDE));
}

/// A call without a wait may be refused because of the line alone.
#[test]
fn the_line_explains_a_refusal() {
    let refused = |start: Micros| {
        wrong(|history| {
            find(&mut history.ops, "h").start = 5 * SECOND;
            find(&mut history.ops, "h").end = Some(6 * SECOND);
            history.ops.push(acquire("p", start, "line", 0, None));
            history.seen.clear();
            history.ops.sort_by_key(|op| op.start);
        })
    };
    assert_eq!(refused(5 * SECOND + 500), [""; 0]);
    assert_eq!(refused(4 * SECOND), [LEASES]);
}

/// A release that nobody heard the end of, and that waits for somebody who stands still.
#[test]
fn a_stopped_backend_explains_a_refusal() {
    let refused = |stopped: bool| {
        wrong(|history| {
            let release = find(&mut history.ops, "g2");
            (release.outcome, release.end) = (Outcome::Unknown, None);
            history.ops.retain(|op| op.id != "h");
            history.commits.retain(|commit| commit.lsn != 11);
            history.seen.clear();
            // Later than what is left of the time to live.
            history.ops.push(acquire("p", 5 * SECOND, "line", 0, None));
            if stopped {
                let (start, end) = (3 * SECOND + 1_000, 5 * SECOND);
                let (kind, detail) = ("stop-backend".to_owned(), "77".to_owned());
                history.events.push(Event { start, end, kind, detail, effect: None });
            }
        })
    };
    assert_eq!(refused(true), [""; 0]);
    assert_eq!(refused(false), [LEASES]);
}
