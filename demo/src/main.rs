//! The daily reward: 20,000 players, two workers, one lease, and a worker that freezes at the worst moment.
//!
//! The program plays the same story twice, once with the lease and the fence, once with the lease alone,
//! and shows who was paid what. Then five nodes stand in line for a lease, and its holder is killed. It needs a server with lock_ext installed and a superuser's connection
//! (`PGHOST`, `PGPORT`, `PGUSER`); `make demo` brings both.
//!
//! | file | what it is |
//! | --- | --- |
//! | `worker.rs` | **the model to copy**: take the lease, work in chunks, go on where the last one stopped |
//! | `heartbeat.rs` | **its heartbeat**: when to renew, when to stop |
//! | `db.rs` | connections, and what an error means to a worker |
//! | `job.rs` | the numbers of the story |
//! | `tables.rs` | players, payments, and the bill in the end |
//! | `director.rs` | starts the workers as processes, freezes one and wakes it up |
//! | `line.rs` | five nodes in line, and the holder is killed |
//! | `event.rs` | what a worker tells the director, one line of JSON each |
//! | `timeline.rs`, `picture.rs` | what happened, as text and as SVG |

mod db;
mod director;
mod event;
mod heartbeat;
mod job;
mod line;
mod picture;
mod tables;
mod timeline;
mod worker;

use job::{Job, Protection};
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "usage: lock_ext_demo [--svg FILE]";

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        [line::NODE, number] => return line::main(number).await,
        ["worker", rest @ ..] => match Job::from_arguments(rest) {
            Some(job) => return worker::main(&job).await,
            None => Err("a worker is started by the demo itself".into()),
        },
        [] => until_interrupted(demo(None)).await,
        ["--svg", file] => until_interrupted(demo(Some(file.into()))).await,
        _ => Err(USAGE.into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprint!("lock_ext_demo: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprint!(": {error}");
                cause = error.source();
            }
            eprintln!();
            ExitCode::FAILURE
        }
    }
}

/// An interrupted demo is dropped, and that kills its workers, the frozen one as well.
async fn until_interrupted(demo: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        outcome = demo => outcome,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
        _ = terminate.recv() => Err("terminated".into()),
    }
}

async fn demo(svg: Option<PathBuf>) -> Result<(), Error> {
    let fenced = director::play(Protection::Fence).await?;
    let lease_only = director::play(Protection::LeaseOnly).await?;

    println!("\n{}", timeline::bill(&[&fenced, &lease_only]));
    if let Some(file) = svg {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&file, picture::draw(&[&fenced, &lease_only]))?;
        println!("\nThe picture of it: {}", file.display());
    }

    if !fenced.bill.everybody_once() {
        return Err("with the fence every player should have been paid exactly once".into());
    }
    if lease_only.bill.twice == 0 {
        return Err("without the fence some players should have been paid twice".into());
    }
    line::play().await
}
