//! Hand-over latency: from the call that releases a lock to the answer of the next one in line, one holder and eight waiters.
//!
//! The locks are measured in turn, a hand-over each. All clients are tasks of one thread here, with a connection each, so there is one clock.

use crate::relay::Relay;
use crate::report::{Line, Spread, ratios};
use crate::{Error, Plan, etcd, measures, postgres, redis, zookeeper};
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::task::LocalSet;
use tokio::time::sleep;

pub const WAITERS: usize = 8;

/// Before each hand-over. The former holder gets its place at the end of the line meanwhile, which is a durable write for some.
const PAUSE: Duration = Duration::from_millis(10);

pub fn on_one_thread<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, work)
}

pub fn run(plan: &Plan) -> Result<(), Error> {
    if !plan.wants("handover") {
        return Ok(());
    }
    on_one_thread(async {
        let mut locks = vec![
            Contender::new(
                "lease_acquire in line, lease_release",
                "",
                Relay::start(WAITERS, postgres::Lease::connect).await?,
            ),
            Contender::new(
                "the same, bound to a session",
                "",
                Relay::start(WAITERS, postgres::SessionLease::connect).await?,
            ),
            Contender::new(
                "pg_advisory_lock",
                measures::ADVISORY,
                Relay::start(WAITERS, postgres::Advisory::connect).await?,
            ),
        ];
        if let Some(server) = &plan.zookeeper {
            let connect = |_| zookeeper::ZooKeeper::connect(server, "/handover");
            locks.push(Contender::new(
                "ZooKeeper",
                measures::ZOOKEEPER,
                Relay::start(WAITERS, connect).await?,
            ));
        }
        if let Some(server) = &plan.etcd {
            let connect = |_| etcd::Etcd::connect(server);
            locks.push(Contender::new(
                "etcd",
                measures::ETCD,
                Relay::start(WAITERS, connect).await?,
            ));
        }
        if let Some(socket) = &plan.redis {
            let connect = |client| redis::Redis::connect(socket, client);
            let relay = Relay::start(WAITERS, connect).await?;
            locks.push(Contender::new(
                "Redis, fsync always, asked every 50 ms",
                measures::REDIS,
                relay,
            ));
        }
        for line in compete(plan, "handover", "", WAITERS + 1, locks).await? {
            line.print();
        }
        Ok(())
    })
}

pub struct Contender {
    name: &'static str,
    not_promised: &'static str,
    relay: Relay,
    /// The median of each round, in milliseconds.
    medians: Vec<f64>,
}

impl Contender {
    pub fn new(name: &'static str, not_promised: &'static str, relay: Relay) -> Self {
        Self { name, not_promised, relay, medians: Vec::new() }
    }
}

/// All of them in turn, beside two bare UPDATEs, which are the least that two durable commits can cost.
pub async fn compete(
    plan: &Plan,
    measure: &str,
    size: &str,
    clients: usize,
    mut locks: Vec<Contender>,
) -> Result<Vec<Line>, Error> {
    let mut updates = postgres::TwoUpdates::start().await?;
    let mut floor = Vec::new();
    // The first round is for caches, plans and the compiler of a Java server. It is not counted.
    for round in 0..=plan.rounds {
        let mut times = vec![Vec::new(); locks.len() + 1];
        for _ in 0..plan.handovers {
            sleep(PAUSE).await;
            times[0].push(updates.hand_over().await?.as_secs_f64() * 1e3);
            for (lock, times) in locks.iter_mut().zip(&mut times[1..]) {
                sleep(PAUSE).await;
                times.push(lock.relay.hand_over().await?.as_secs_f64() * 1e3);
            }
        }
        if round > 0 {
            let mut medians = times.into_iter().map(|times| Spread::of(times).median);
            floor.extend(medians.next());
            locks.iter_mut().zip(medians).for_each(|(lock, median)| lock.medians.push(median));
        }
    }
    let line = |system: &str, not_promised: &str, medians: &[f64]| Line {
        measure: measure.into(),
        size: size.into(),
        clients,
        system: system.into(),
        unit: "ms".into(),
        value: Spread::of(medians.into()),
        ratio: Spread::of(ratios(medians, &floor, true)),
        rounds: plan.rounds,
        beside: TWO_UPDATES.into(),
        not_promised: not_promised.into(),
    };
    let mut lines = vec![line(TWO_UPDATES, measures::FLOOR, &floor)];
    lines.extend(locks.iter().map(|lock| line(lock.name, lock.not_promised, &lock.medians)));
    Ok(lines)
}

pub const TWO_UPDATES: &str = "two bare UPDATEs";
