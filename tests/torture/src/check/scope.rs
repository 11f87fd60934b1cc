//! Whether a run had enough of everything to show something. One that had not is not green.

use std::collections::BTreeSet;

use super::Checked;
use crate::history::{Effect, Event, History};
use crate::nemesis::{Fault, tables};
use crate::workload::Workload;

/// What a run of a minute with all workloads has to have had, or it would show nothing.
const ENOUGH: [(&str, usize); 14] = [
    ("grants", 50),
    ("commits", 100),
    ("take-overs", 10),
    ("refused at the statement", 1),
    ("refused at COMMIT", 1),
    ("refusals judged", 5),
    ("tenures", 20),
    ("held on by heartbeats", 5),
    ("swaps", 20),
    ("acknowledged elements", 20),
    ("rounds", 2),
    ("of these asked for more than once", 20),
    ("pairs in the line", 20),
    ("answers that it was done already", 20),
];

/// What only the fence keeps right. The controls have to be found out by each of these.
pub const OF_CONTROLS: [&str; 4] =
    [super::commits::WHAT, super::register::WHAT, super::set::WHAT, super::batch::WHAT];

/// By which of them no control was found out.
pub fn not_found_out(found: &BTreeSet<&'static str>) -> Vec<&'static str> {
    OF_CONTROLS.into_iter().filter(|what| !found.contains(what)).collect()
}

/// With all workloads and faults, and not for less than a minute.
pub fn is_full(history: &History) -> bool {
    let workloads = workloads(history);
    let has_fault = |fault: &Fault| {
        let faults = &history.head.faults;
        if history.head.workloads.is_empty() {
            history.events.iter().any(|event| event.kind == fault.name())
        } else {
            faults.iter().any(|name| name == fault.name())
        }
    };
    history.head.seconds >= 60
        && workloads.len() == Workload::ALL.len()
        && Fault::ALL.iter().all(has_fault)
}

/// Of what there was too little. A run with a part of the workloads and faults has to have had something of each workload.
pub fn too_few(history: &History, checks: &[Checked]) -> Vec<String> {
    let mut few = Vec::new();
    if history.commits.is_empty() {
        few.push("commits: none".to_owned());
    }
    let workloads = workloads(history);
    if workloads.is_empty() {
        few.push("operations: none".to_owned());
    }
    for workload in workloads {
        if !history.ops.iter().any(|op| op.is_ok() && workload.is_of(&op.id)) {
            few.push(format!("operations of {}: none", workload.name()));
        }
    }
    if !is_full(history) {
        return few;
    }
    let count = |wanted: &str| {
        let counts = checks.iter().flat_map(|check| &check.counts);
        counts.filter(|(what, _)| *what == wanted).map(|(_, count)| *count).max().unwrap_or(0)
    };
    // From before these were noted.
    let is_old = history.head.workloads.is_empty();
    for (what, enough) in ENOUGH {
        if count(what) < enough && !(is_old && what == "held on by heartbeats") {
            few.push(format!("{what}: {} of at least {enough}", count(what)));
        }
    }
    for fault in Fault::ALL {
        let is_it = |event: &&Event| event.kind == fault.name();
        if !history.events.iter().filter(is_it).any(|event| did_something(history, event)) {
            few.push(format!("{}: none", fault.name()));
        }
    }
    few
}

fn did_something(history: &History, event: &Event) -> bool {
    match event.effect {
        Some(Effect::FailOver { to, lost_tail: true, .. }) => {
            history.commits.iter().any(|commit| !commit.kept && commit.server + 1 == to)
        }
        _ if event.kind == Fault::Tables.name() => {
            event.detail.ends_with(&format!(": {}", tables::DONE))
        }
        _ => true,
    }
}

fn workloads(history: &History) -> Vec<Workload> {
    let has = |workload: &Workload| {
        let named = &history.head.workloads;
        if named.is_empty() {
            history.ops.iter().any(|op| workload.is_of(&op.id))
        } else {
            named.iter().any(|name| name == workload.name())
        }
    };
    Workload::ALL.into_iter().filter(has).collect()
}
