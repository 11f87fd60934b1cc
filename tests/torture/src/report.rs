//! The numbers of a run, for people.

use std::collections::BTreeMap;

use crate::check::Checked;
use crate::history::{Call, History, Outcome, Stage};
use crate::workload::Workload;

/// So many violations of a check are shown.
const SHOWN: usize = 3;

pub fn print(history: &History, checks: &[Checked]) {
    let head = &history.head;
    println!("{}: {}, {} s, seed {}", head.guard.name(), head.server, head.seconds, head.seed);
    operations(history);
    let mut faults: BTreeMap<&str, usize> = BTreeMap::new();
    for event in &history.events {
        *faults.entry(&event.kind).or_default() += 1;
    }
    let faults: Vec<_> = faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    println!("  faults: {}", faults.join(", "));
    for check in checks {
        let counts: Vec<_> =
            check.counts.iter().map(|(what, count)| format!("{what} {count}")).collect();
        let verdict = match check.violations.len() {
            0 => "ok".to_owned(),
            count => format!("VIOLATED {count} times"),
        };
        println!("  {}: {verdict} ({})", check.what, counts.join(", "));
        for violation in check.violations.iter().take(SHOWN) {
            println!("    {violation}");
        }
    }
}

fn operations(history: &History) {
    println!(
        "  workload    operations  ok      fail    unknown  grants  no grant  refused: statement  COMMIT"
    );
    for workload in Workload::ALL {
        let (mut all, mut ok, mut fail, mut unknown, mut grants, mut none) = (0, 0, 0, 0, 0, 0);
        let (mut at_statement, mut at_commit) = (0, 0);
        for op in history.ops.iter().filter(|op| workload.is_of(&op.id)) {
            all += 1;
            match op.outcome {
                Outcome::Ok { .. } => ok += 1,
                Outcome::Fail { .. } => fail += 1,
                Outcome::Unknown => unknown += 1,
            }
            if let (Call::Acquire { .. }, Outcome::Ok { answer }) = (&op.call, &op.outcome) {
                if answer.is_some() { grants += 1 } else { none += 1 }
            }
            if let Outcome::Fail { code, at } = &op.outcome
                && code.starts_with("LX")
            {
                match at {
                    Stage::Statement => at_statement += 1,
                    Stage::Commit => at_commit += 1,
                }
            }
        }
        if all > 0 {
            println!(
                "  {:<10}  {all:<10}  {ok:<6}  {fail:<6}  {unknown:<7}  {grants:<6}  {none:<8}  {at_statement:<18}  {at_commit}",
                workload.name()
            );
        }
    }
    let mut codes: BTreeMap<&str, usize> = BTreeMap::new();
    for op in &history.ops {
        if let Outcome::Fail { code, .. } = &op.outcome {
            *codes.entry(code).or_default() += 1;
        }
    }
    let codes: Vec<_> = codes.iter().map(|(code, count)| format!("{code} {count}")).collect();
    println!("  errors: {}", codes.join(", "));
}
