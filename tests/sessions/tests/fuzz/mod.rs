//! Everything that parses or takes a value of a user's, called with random ones in random places: every function of the extension (as the
//! catalog lists them), triggers made by hand, writes to fenced tables, settings; by roles with few rights, with odd settings, in databases of
//! other encodings. After each statement it is asked whether the error is one that may come ([codes]), whether an error left anything behind,
//! whether names came back, tokens rose, and whether nothing else of the database has changed ([truth]).
//!
//! `FUZZ_SECONDS=n` runs each for so long, `FUZZ_SEED=n` with the same dice.

mod calls;
mod codes;
mod fuzzer;
mod link;
mod steps;
mod truth;
mod values;

use std::time::{Duration, Instant, SystemTime};
use std::{env, fs};

use lock_ext_sessions::{Db, PATIENCE};

use fuzzer::Fuzzer;

const SECONDS: u64 = 5;

#[tokio::test]
#[ignore = "random: run by make fuzz"]
async fn random_values_do_no_harm() {
    run(&Db::fresh().await, "ä", setting("FUZZ_SEED")).await;
}

/// Latin-1, Japanese EUC, and bytes without a meaning.
#[tokio::test]
#[ignore = "random: run by make fuzz"]
async fn random_values_do_no_harm_in_other_encodings() {
    let seed = setting("FUZZ_SEED").unwrap_or_else(now);
    let (encoding, odd) =
        [("LATIN1", "ä"), ("EUC_JP", "日"), ("SQL_ASCII", "ä")][(seed % 3) as usize];
    println!("{encoding}");
    run(&Db::in_encoding(encoding).await, odd, Some(seed)).await;
}

async fn run(db: &Db, odd: &'static str, seed: Option<u64>) {
    let seed = seed.unwrap_or_else(now);
    println!("FUZZ_SEED={seed}");
    let time = Duration::from_secs(setting("FUZZ_SECONDS").unwrap_or(SECONDS));
    let since = "SELECT pg_postmaster_start_time()::text";
    let started: String = db.watch.one(since, &[]).await.expect("the server's start");
    let log = env::var("LOCK_EXT_PGLOG").ok();
    let logged =
        log.as_ref().map_or(0, |log| fs::metadata(log).expect("the server's log").len() as usize);
    let owner = db.role("owner").await;
    let low = db.role("low").await;
    let mut fuzzer = Fuzzer::start(db.name(), &owner, &low, odd, seed).await;
    let start = Instant::now();
    while start.elapsed() < time
        || start.elapsed() < time + PATIENCE && !missing(&fuzzer).is_empty()
    {
        fuzzer.step().await;
    }
    fuzzer.rebuild().await;
    print(&fuzzer, start.elapsed());
    if let Some(log) = log {
        let text = String::from_utf8_lossy(&fs::read(log).expect("the server's log")[logged..])
            .into_owned();
        for line in text.lines().filter(|line| {
            ["terminated by signal", "PANIC:", "panicked at", "TRAP:", "server process"]
                .iter()
                .any(|sign| line.contains(sign))
        }) {
            fuzzer.found(format!("the log: {line}"), String::new());
        }
    }
    let now: String = db.watch.one(since, &[]).await.expect("the server's start");
    assert_eq!(now, started, "the server was restarted");
    let findings: Vec<String> =
        fuzzer.findings.iter().map(|(kind, what)| format!("{kind}\n    {what}")).collect();
    drop(fuzzer);
    db.watch.sql("DROP SCHEMA fuzz, evil CASCADE").await.expect("the roles own nothing");
    assert!(
        findings.is_empty(),
        "FUZZ_SEED={seed}: {} findings\n{}",
        findings.len(),
        findings.join("\n")
    );
}

fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_nanos() as u64
}

fn setting(name: &str) -> Option<u64> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Functions that never answered, so that the run shows little of them.
fn missing(fuzzer: &Fuzzer) -> Vec<String> {
    let answered =
        |signature: &String| fuzzer.calls.get(signature).is_some_and(|(_, answered)| *answered > 0);
    fuzzer
        .functions
        .iter()
        .filter(|function| function.base() != "fence_check")
        .map(calls::Function::signature)
        .filter(|signature| !answered(signature))
        .collect()
}

fn print(fuzzer: &Fuzzer, elapsed: Duration) {
    println!(
        "{:.1} s, {} steps, {} updates read back, {} findings",
        elapsed.as_secs_f64(),
        fuzzer.steps,
        fuzzer.exact,
        fuzzer.findings.len()
    );
    for (signature, (calls, answered)) in &fuzzer.calls {
        println!("{calls:>8} calls, {answered:>7} answered: {signature}");
    }
    let codes: Vec<String> =
        fuzzer.codes.iter().map(|((what, code), count)| format!("{what} {code} {count}")).collect();
    println!("errors: {}", codes.join(", "));
}
