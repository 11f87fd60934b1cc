//! Whether there was enough of everything.

use super::*;
use crate::check::scope;

fn count(history: &History, what: &str) -> usize {
    let checks = all(history);
    let counts = checks.iter().flat_map(|check| &check.counts);
    counts.filter(|(name, _)| *name == what).map(|(_, count)| *count).sum()
}

#[test]
fn what_heartbeats_hold_is_counted() {
    let mut history = right();
    assert_eq!(count(&history, "held on by heartbeats"), 0);
    moves(&mut history, "a3", 2 * SECOND + 500_000);
    assert_eq!(count(&history, "held on by heartbeats"), 1);
    // Not by its own time to live, and not without the extension.
    answers(&mut history, "a2", None);
    assert_eq!(count(&history, "held on by heartbeats"), 0);
}

/// All of the workloads' names, so that none of them is missing.
fn named(history: &mut History) {
    use crate::nemesis::Fault;
    use crate::workload::Workload;
    for op in &mut history.ops {
        let workload = match op.lease() {
            Some("set") => "set",
            Some("batch") => "batch",
            Some("register") => "register",
            Some("line") => "line",
            _ if matches!(op.call, Call::Once { .. }) => "once",
            _ => "mutex",
        };
        op.id = format!("{workload}0-{}", op.id);
    }
    history.head.workloads = Workload::ALL.iter().map(|one| one.name().to_owned()).collect();
    history.head.faults = Fault::ALL.iter().map(|one| one.name().to_owned()).collect();
}

#[test]
fn a_history_of_nothing_is_not_green() {
    let mut history = right();
    assert!(!scope::is_full(&history));
    assert_eq!(scope::too_few(&history, &all(&history)), ["operations: none"]);
    named(&mut history);
    // A short run: nothing of it is missing.
    assert!(!scope::is_full(&history));
    assert_eq!(scope::too_few(&history, &all(&history)), [""; 0]);
    history.ops.retain(|op| !op.id.starts_with("once"));
    assert_eq!(scope::too_few(&history, &all(&history)), ["operations of once: none"]);
    history.commits.clear();
    assert!(scope::too_few(&history, &all(&history)).contains(&"commits: none".to_owned()));
}

#[test]
fn a_fault_that_did_nothing_does_not_count() {
    let mut history = right();
    named(&mut history);
    history.head.seconds = 60;
    assert!(scope::is_full(&history));
    let event = |kind: &str, detail: &str, effect| {
        let (kind, detail) = (kind.to_owned(), detail.to_owned());
        Event { start: 0, end: 0, kind, detail, effect }
    };
    let lost = Some(Effect::FailOver { to: 1, dead: 50 * SECOND, lost_tail: true });
    history.events = vec![
        event("tables", "REINDEX TABLE lock_ext.lease: cancelled", None),
        event("lost-tail", "", lost),
        event("restart", "", None),
    ];
    let missing = |history: &History| {
        let few = scope::too_few(history, &all(history));
        ["tables: none", "lost-tail: none", "restart: none"]
            .into_iter()
            .filter(|&what| few.iter().any(|one| one == what))
            .collect::<Vec<_>>()
    };
    assert_eq!(missing(&history), ["tables: none", "lost-tail: none"]);
    history.events[0].detail = "REINDEX TABLE lock_ext.lease: done".to_owned();
    history.commits.last_mut().expect("commits").kept = false;
    assert_eq!(missing(&history), [""; 0]);
    assert!(!scope::too_few(&history, &all(&history)).is_empty());
}

#[test]
fn each_check_of_the_fence_has_to_find_out_a_control() {
    let found = [COMMITS, REGISTER, SET].into();
    assert_eq!(scope::not_found_out(&found), [BATCH]);
}
