//! Random fenced transactions while two nodes take the lease from each other, and a [checker](walk) that goes through the server's own
//! [log](log) of grants and commits. The [workload] runs against our fence and against a hand-made one (`naive.sql`), which the checker has to
//! find out.
//!
//! `CHECKER_SECONDS=n` runs each for so long, `CHECKER_SEED=n` with the same dice. The server needs `wal_level = logical`.

pub mod dice;
mod log;
mod node;
mod walk;
mod workload;
mod writes;

use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs};

use lock_ext_sessions::{Db, LEVELS, PATIENCE};
use tokio::time::sleep;

use log::Log;
use walk::{Walk, Why};
use workload::{Tally, Workload};
use writes::{STATEMENTS, WRITES};

const SECONDS: u64 = 10;

#[tokio::test]
async fn no_commit_under_a_superseded_token_in_random_transactions() {
    let db = Db::alone().await;
    let time = Duration::from_secs(setting("CHECKER_SECONDS").unwrap_or(SECONDS));
    let Run { walk, tally, log, seed } = Run::of("lock_ext", &db, |walk, tally, elapsed| {
        !walk.violations.is_empty() || elapsed >= time && missing(walk, tally).is_empty()
    })
    .await;
    let mut wrong = differences(&walk, &tally);
    wrong.extend(walk.violations.iter().map(ToString::to_string));
    if !wrong.is_empty() {
        let file = format!("{}/checker-{seed}.log", env!("CARGO_TARGET_TMPDIR"));
        fs::write(&file, log.join("\n")).expect("the log is kept");
        panic!("see {file}:\n{}", wrong.join("\n"));
    }
    assert_eq!(missing(&walk, &tally), [""; 0], "of which there were too few");
}

/// Or the test above would show nothing.
#[tokio::test]
async fn the_checker_finds_out_a_hand_made_fence() {
    let place = Db::alone().await;
    let db = place.another_bare().await;
    db.watch.sql(include_str!("naive.sql")).await.expect("a hand-made fence");
    let asked: Option<u64> = setting("CHECKER_SECONDS");
    let time = Duration::from_secs(asked.unwrap_or(SECONDS));
    let superseded = |walk: &Walk| {
        walk.violations.iter().filter(|v| matches!(v.why, Why::Superseded { .. })).count()
    };
    let Run { walk, tally, .. } = Run::of("hand-made fence", &db, |walk, _, elapsed| {
        elapsed >= time || asked.is_none() && superseded(walk) > 0
    })
    .await;
    assert_eq!(differences(&walk, &tally), [""; 0]);
    assert!(superseded(&walk) > 0, "not one");
}

struct Run {
    walk: Walk,
    tally: Tally,
    log: Vec<String>,
    seed: u64,
}

impl Run {
    /// Runs the workload until `is_over`, which is asked every second.
    async fn of(fence: &str, db: &Db, is_over: impl Fn(&Walk, &Tally, Duration) -> bool) -> Self {
        let seed = setting("CHECKER_SEED").unwrap_or_else(|| {
            SystemTime::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_nanos() as u64
        });
        println!("{fence}: CHECKER_SEED={seed}");
        db.watch.sql(include_str!("workload.sql")).await.expect("fenced tables");
        let mut log = Log::begin(db).await;
        let mut walk = Walk::default();
        let workload = Workload::start(db, seed).await;
        let start = Instant::now();
        let limit = PATIENCE + Duration::from_secs(setting("CHECKER_SECONDS").unwrap_or(SECONDS));
        while start.elapsed() < limit && !workload.is_broken() {
            sleep(Duration::from_secs(1)).await;
            walk.over(&log.read(db).await);
            if is_over(&walk, &workload.so_far(), start.elapsed()) {
                break;
            }
        }
        let tally = workload.stop().await;
        walk.over(&log.read(db).await);
        print(fence, &walk, &tally, start.elapsed());
        let log = log.end(db).await;
        Self { walk, tally, log, seed }
    }
}

/// The log has to have what the sessions saw committed, and nothing else.
fn differences(walk: &Walk, tally: &Tally) -> Vec<String> {
    let logged = &walk.counts.transactions;
    let lost = tally.committed.difference(logged);
    let seen = |id: &&i64| tally.committed.contains(id) || tally.in_part.contains(id);
    let undead = logged.iter().filter(|id| !seen(id));
    lost.map(|id| format!("{id} is committed, and not in the log"))
        .chain(undead.map(|id| format!("{id} is in the log, and not committed")))
        .collect()
}

fn setting<T: FromStr>(name: &str) -> Option<T> {
    let value = env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// What happened too rarely for the test to show anything.
fn missing(walk: &Walk, tally: &Tally) -> Vec<&'static str> {
    let counts = &walk.counts;
    let enough = [
        ("commits", counts.commits, 200),
        ("take-overs", counts.take_overs, 15),
        ("ends", counts.ends, 10),
        ("refusals at the statement", tally.refused_at_statement, 20),
        ("refusals at COMMIT", tally.refused_at_commit, 20),
        ("refusals of a whole message", tally.refused_as_a_whole, 5),
        ("prepared transactions", tally.prepared, 3),
        ("transactions that hold the lease", tally.held, 3),
        ("tenures of one transaction", tally.tenures, 1),
    ];
    let levels = LEVELS.map(|level| (level, tally.levels.get(level).copied().unwrap_or(0), 10));
    let kinds = WRITES.iter().chain(&STATEMENTS).map(|write| write.kind);
    let kinds = kinds.map(|kind| (kind, counts.writes.get(kind).copied().unwrap_or(0), 1));
    let all = enough.into_iter().chain(levels).chain(kinds);
    all.filter(|(_, count, enough)| count < enough).map(|(what, ..)| what).collect()
}

fn print(fence: &str, walk: &Walk, tally: &Tally, elapsed: Duration) {
    let counts = &walk.counts;
    println!(
        "{fence}: {:.1} s, {} grants, {} take-overs, {} ends",
        elapsed.as_secs_f64(),
        counts.grants,
        counts.take_overs,
        counts.ends
    );
    println!(
        "{fence}: refused {} at the statement, {} at COMMIT, {} as a whole message; {} conflicts",
        tally.refused_at_statement,
        tally.refused_at_commit,
        tally.refused_as_a_whole,
        tally.conflicts
    );
    println!(
        "{fence}: committed {:?}, {} prepared, {} held, {} tenures; writes {:?}",
        tally.levels, tally.prepared, tally.held, tally.tenures, counts.writes
    );
    println!(
        "{fence}: {} of {} commits are wrong, {} were beside an end",
        counts.wrong_commits, counts.commits, counts.beside_an_end
    );
}
