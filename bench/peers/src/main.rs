//! What a lease costs beside what people would take instead, and how that grows.
//!
//! Times on a machine that does other things wander by more than the difference that is measured, so everything here is a ratio: the systems take
//! turns, round by round, in short slots, and each one is compared with the floor in the same round. It needs lock_ext and the tables of
//! `setup.sql` (`growth.sql`) in the server that `PGHOST`, `PGPORT`, `PGUSER`, `PGDATABASE` name; `scripts/peers.sh` brings them and the others' servers.
//!
//! | file | what it is |
//! | --- | --- |
//! | `measures.rs`, `writes.rs` | **what is measured**: the calls of each system, what they are compared with, what the system does not promise |
//! | `compare.rs`, `slot.rs` | how: each beside the floor, in turn; clients that call as fast as they are answered |
//! | `session.rs`, `sql.rs` | a client of PostgreSQL |
//! | `redis.rs`, `etcd.rs`, `zookeeper.rs` | the others, each by the recipe that its documentation gives |
//! | `handover.rs`, `relay.rs`, `postgres.rs` | from the call that releases a lock to the answer of the next one in line |
//! | `growth.rs`, `day.rs` | more leases, more waiters, more sessions; a day of heartbeats |
//! | `idle.rs` | what sleeping waiters cost the server |
//! | `report.rs`, `picture.rs` | medians, spread, ratios: a CSV, and an SVG of it |

mod compare;
mod day;
mod etcd;
mod growth;
mod handover;
mod idle;
mod measures;
mod picture;
mod postgres;
mod redis;
mod relay;
mod report;
mod session;
mod slot;
mod sql;
mod writes;
mod zookeeper;

use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

const USAGE: &str = "usage: lock_ext_peers pairs|handover|growth [zookeeper=HOST:PORT] [etcd=HOST:PORT] [redis=SOCKET]
                                                   [redis_memory=SOCKET] [rounds=15] [seconds=0.1] [handovers=30] [only=MEASURE,...]
       lock_ext_peers idle SECONDS
       lock_ext_peers heading | draw CSV SVG";

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Who is measured, and how often.
#[derive(Clone)]
pub struct Plan {
    zookeeper: Option<String>,
    etcd: Option<String>,
    /// Every change is on the disk before it is answered.
    redis: Option<String>,
    /// Nothing is.
    redis_memory: Option<String>,
    rounds: usize,
    slot: Duration,
    handovers: usize,
    only: Vec<String>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lock_ext_peers: {}", explain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<(), Error> {
    match arguments {
        ["idle", seconds] => {
            let seconds = at_least_one(seconds).ok_or(USAGE)?;
            handover::on_one_thread(idle::measure(Duration::from_secs(seconds)))
        }
        ["draw", csv, svg] => {
            let lines = report::read(&std::fs::read_to_string(csv)?)?;
            Ok(std::fs::write(svg, picture::draw(&lines))?)
        }
        ["heading"] => {
            println!("{}", report::HEADING);
            Ok(())
        }
        [what, settings @ ..] => {
            let plan = Plan::from_arguments(settings).ok_or(USAGE)?;
            match *what {
                "pairs" => measures::run(&plan),
                "handover" => handover::run(&plan),
                "growth" => growth::run(&plan),
                _ => Err(USAGE.into()),
            }
        }
        [] => Err(USAGE.into()),
    }
}

/// With its causes: a server's error says what it is only there.
fn explain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

impl Plan {
    fn from_arguments(arguments: &[&str]) -> Option<Self> {
        let mut plan = Self {
            zookeeper: None,
            etcd: None,
            redis: None,
            redis_memory: None,
            rounds: 15,
            slot: Duration::from_millis(100),
            handovers: 30,
            only: Vec::new(),
        };
        for argument in arguments {
            let (name, value) = argument.split_once('=')?;
            match name {
                "zookeeper" => plan.zookeeper = Some(value.into()),
                "etcd" => plan.etcd = Some(value.into()),
                "redis" => plan.redis = Some(value.into()),
                "redis_memory" => plan.redis_memory = Some(value.into()),
                "rounds" => plan.rounds = at_least_one(value)?,
                "seconds" => plan.slot = Duration::try_from_secs_f64(value.parse().ok()?).ok()?,
                "handovers" => plan.handovers = at_least_one(value)?,
                "only" => plan.only = value.split([',', ' ']).map(String::from).collect(),
                _ => return None,
            }
        }
        Some(plan)
    }

    fn wants(&self, measure: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == measure)
    }
}

fn at_least_one<T: FromStr + Default + PartialEq>(value: &str) -> Option<T> {
    value.parse().ok().filter(|number| *number != T::default())
}
