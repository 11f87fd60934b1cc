//! Clients under faults, and a checker.
//!
//! * [`workload`]: what the clients do, each a process of its own ([`client`]).
//! * [`nemesis`]: what goes wrong: processes stopped and killed, a network that is cut, clocks that are stepped, tables that are rewritten,
//!   servers that are lost.
//! * [`history`]: each operation with its start and end; [`commits`]: the servers' own log of commits.
//! * [`check`]: what must hold of a history.
//! * [`control`]: the same without the fence, and with a naive one. A checker that does not find these out shows nothing.
//! * [`run`], on the servers of a [`world`]; [`report`].
//!
//! `torture --check FILE` checks a history again, without a server.

#![forbid(unsafe_code)]

mod check;
mod client;
mod commits;
mod control;
mod dice;
mod history;
mod nemesis;
mod options;
mod report;
mod run;
mod workload;
mod world;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use check::scope;
use control::Guard;
use history::History;
use nemesis::Fault;
use options::Options;
use run::Plan;
use workload::Workload;

/// A control runs for so long, and again until it is found out, so often.
const CONTROL_SECONDS: u64 = 25;
const CONTROLS: u64 = 4;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).peekable();
    if args.peek().is_some_and(|arg| arg == "client") {
        client::main(&args.nth(1).expect("orders"));
        return ExitCode::SUCCESS;
    }
    let options = match Options::of(args) {
        Ok(options) => options,
        Err(error) => {
            eprint!("{error}\n{}", options::USAGE);
            return ExitCode::from(2);
        }
    };
    let is_right = match &options.check {
        Some(file) => match History::read(file) {
            Ok(history) => {
                let verdict = verdict(&history);
                verdict.print_scope(&history);
                verdict.is_right()
            }
            Err(error) => {
                eprintln!("{error}");
                return ExitCode::from(2);
            }
        },
        None => torture(&options),
    };
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints what the checks say.
fn verdict(history: &History) -> Verdict {
    let checks = check::all(history);
    report::print(history, &checks);
    let wrong = |of_fence: bool| {
        let checks = checks.iter().filter(|check| check.is_of_fence == of_fence);
        checks.map(|check| check.violations.len()).sum()
    };
    let is_found = |check: &&check::Checked| !check.violations.is_empty();
    Verdict {
        of_fence: wrong(true),
        others: wrong(false),
        found: checks.iter().filter(is_found).map(|check| check.what).collect(),
        too_few: scope::too_few(history, &checks),
    }
}

/// The numbers of violations.
struct Verdict {
    of_fence: usize,
    others: usize,
    /// The checks that found something.
    found: BTreeSet<&'static str>,
    /// Of what there was too little for the run to show anything.
    too_few: Vec<String>,
}

impl Verdict {
    fn is_right(&self) -> bool {
        self.of_fence == 0 && self.others == 0 && self.too_few.is_empty()
    }

    fn print_scope(&self, history: &History) {
        for what in &self.too_few {
            println!("too few {what}");
        }
        if !scope::is_full(history) {
            println!(
                "NOT A FULL RUN: it shows less than a minute or more of all workloads and faults"
            );
        }
    }
}

fn torture(options: &Options) -> bool {
    fs::create_dir_all(&options.out).expect("a directory for the histories");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut is_right = true;
    if options.main {
        let plan = Plan {
            seed: options.seed,
            seconds: options.seconds,
            guard: Guard::Fence,
            workloads: options.workloads.clone(),
            faults: options.faults.clone(),
            careless: options.careless,
            directory: options.out.clone(),
        };
        let (verdict, history) = of(&runtime, &plan, "fence");
        verdict.print_scope(&history);
        is_right &= verdict.is_right();
    }
    if options.controls {
        let mut found = BTreeSet::new();
        for (guard, name) in [(Guard::Off, "no-fence"), (Guard::Naive, "naive-fence")] {
            is_right &= found_out(options, &runtime, guard, name, &mut found);
        }
        for what in scope::not_found_out(&found) {
            println!("NOT FOUND OUT by any control: {what}");
            is_right = false;
        }
    }
    println!("{}", if is_right { "PASSED" } else { "FAILED" });
    is_right
}

/// The checker has to find it out.
fn found_out(
    options: &Options,
    runtime: &tokio::runtime::Runtime,
    guard: Guard,
    name: &str,
    found: &mut BTreeSet<&'static str>,
) -> bool {
    let mut is_found = false;
    for attempt in 0..CONTROLS {
        let plan = Plan {
            seed: options.seed + attempt,
            seconds: CONTROL_SECONDS,
            guard,
            workloads: vec![Workload::Mutex, Workload::Register, Workload::Set, Workload::Batch],
            faults: vec![Fault::StopClient, Fault::KillClient, Fault::Network, Fault::StopBackend],
            careless: true,
            directory: options.out.clone(),
        };
        let verdict = of(runtime, &plan, name).0;
        if verdict.others > 0 {
            println!("  what does not depend on the fence is wrong as well");
            return false;
        }
        let by: Vec<_> =
            scope::OF_CONTROLS.into_iter().filter(|what| verdict.found.contains(what)).collect();
        found.extend(&by);
        if !by.is_empty() {
            is_found = true;
            println!(
                "found out, as it must be: {} violations, by: {}\n",
                verdict.of_fence,
                by.join("; ")
            );
        }
        // What the first control does not show, the second one has to.
        if is_found
            && (guard == Guard::Off && attempt > 0 || scope::not_found_out(found).is_empty())
        {
            return true;
        }
    }
    if !is_found {
        println!("NOT FOUND OUT: the checker shows nothing");
    }
    is_found
}

fn of(runtime: &tokio::runtime::Runtime, plan: &Plan, name: &str) -> (Verdict, History) {
    println!("{}: seed {}, {} s", plan.guard.name(), plan.seed, plan.seconds);
    let history = runtime.block_on(run::run(plan));
    let file = plan.directory.join(format!("{name}-{}.jsonl", plan.seed));
    history.write(&file).expect("the history is written");
    // What is checked is what can be read again.
    let history = reread(&file);
    let verdict = verdict(&history);
    println!("  history: {}\n", file.display());
    (verdict, history)
}

fn reread(file: &Path) -> History {
    History::read(file).unwrap_or_else(|error| panic!("{error}"))
}
