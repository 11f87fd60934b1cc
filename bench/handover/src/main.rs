//! Hand-over latency: from the call that releases a lock to the answer of the next one in line, one holder and eight waiters.
//!
//! The locks are measured in turn, a hand-over each, since times wander by more than their difference from one second to the next. All clients are tasks of one
//! thread here, with a connection each, so there is one clock. It needs lock_ext and the table of `setup.sql` in the server that
//! `PGHOST`, `PGPORT`, `PGUSER` name; `scripts/handover.sh` brings them and the others' servers.
//!
//! | file | what it is |
//! | --- | --- |
//! | `relay.rs` | **the measurement**: the line, and how the time is taken |
//! | `postgres.rs` | our leases, advisory locks, the two bare UPDATEs |
//! | `zookeeper.rs`, `etcd.rs`, `redis.rs` | the others, each by the recipe that its documentation gives |
//! | `idle.rs` | what sleeping waiters cost the server |
//! | `report.rs` | medians, percentiles, ratios |

mod etcd;
mod idle;
mod postgres;
mod redis;
mod relay;
mod report;
mod zookeeper;

use relay::Relay;
use report::Series;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;
use tokio::task::LocalSet;
use tokio::time::sleep;

const USAGE: &str =
    "usage: lock_ext_handover [zookeeper=HOST:PORT] [etcd=HOST:PORT] [redis=HOST:PORT]
                         [rounds=10] [handovers=100]
       lock_ext_handover idle SECONDS";

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Who is measured, and how often.
struct Plan {
    zookeeper: Option<String>,
    etcd: Option<String>,
    redis: Option<String>,
    rounds: usize,
    handovers: usize,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["idle", seconds] => match at_least_one(seconds) {
            Some(seconds) => idle::measure(Duration::from_secs(seconds)).await,
            None => Err(USAGE.into()),
        },
        arguments => match Plan::from_arguments(arguments) {
            Some(plan) => LocalSet::new().run_until(run(&plan)).await,
            None => Err(USAGE.into()),
        },
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lock_ext_handover: {}", explain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// With its causes: a server's error says what it is only there.
fn explain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

impl Plan {
    fn from_arguments(arguments: &[&str]) -> Option<Self> {
        let mut plan =
            Self { zookeeper: None, etcd: None, redis: None, rounds: 10, handovers: 100 };
        for argument in arguments {
            let (name, value) = argument.split_once('=')?;
            match name {
                "zookeeper" => plan.zookeeper = Some(value.into()),
                "etcd" => plan.etcd = Some(value.into()),
                "redis" => plan.redis = Some(value.into()),
                "rounds" => plan.rounds = at_least_one(value)?,
                "handovers" => plan.handovers = at_least_one(value)?,
                _ => return None,
            }
        }
        Some(plan)
    }
}

fn at_least_one<T: FromStr + Default + PartialEq>(value: &str) -> Option<T> {
    value.parse().ok().filter(|number| *number != T::default())
}

/// Before each hand-over. The former holder gets its place at the end of the line meanwhile, which is a durable write for some.
const PAUSE: Duration = Duration::from_millis(10);

async fn run(plan: &Plan) -> Result<(), Error> {
    let mut floor = Series::new("two bare durable UPDATEs");
    let mut updates = postgres::TwoUpdates::start().await?;
    let mut others = vec![
        (
            Series::new("lease_acquire, lease_release"),
            Relay::start(postgres::Lease::connect).await?,
        ),
        (
            Series::new("lease_acquire_session, lease_release"),
            Relay::start(postgres::SessionLease::connect).await?,
        ),
        (Series::new("pg_advisory_lock"), Relay::start(postgres::Advisory::connect).await?),
    ];
    if let Some(server) = &plan.zookeeper {
        let relay = Relay::start(|_| zookeeper::Lock::connect(server)).await?;
        others.push((Series::new("ZooKeeper"), relay));
    }
    if let Some(server) = &plan.etcd {
        let relay = Relay::start(|_| etcd::Lock::connect(server)).await?;
        others.push((Series::new("etcd"), relay));
    }
    if let Some(server) = &plan.redis {
        let relay = Relay::start(|client| redis::Lock::connect(server, client)).await?;
        others.push((Series::new("Redis, polled every 50 ms"), relay));
    }
    // The first round is for caches, plans and the compiler of a Java server. It is not counted.
    for round in 0..=plan.rounds {
        for _ in 0..plan.handovers {
            sleep(PAUSE).await;
            floor.add(round, updates.hand_over().await?);
            for (series, relay) in &mut others {
                sleep(PAUSE).await;
                series.add(round, relay.hand_over().await?);
            }
        }
    }
    println!("{}", report::HEADING);
    println!("{}", floor.line(&floor));
    for (series, _) in &others {
        println!("{}", series.line(&floor));
    }
    Ok(())
}
