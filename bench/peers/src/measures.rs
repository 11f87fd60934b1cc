//! What is measured: the calls of each system, what they are compared with, and what the system does not promise.

use crate::compare::{Measure, System};
use crate::handover::TWO_UPDATES;
use crate::slot::Client;
use crate::sql::{Arg, Names, Sql, Step, Wanted};
use crate::writes::{bulk, write, write_in_transaction};
use crate::{Error, Plan, etcd, redis, session, zookeeper};

pub const FLOOR: &str = "the floor: no lock at all";
pub const BY_HAND: &str = "no check at the write, no line";
pub const SHEDLOCK: &str = "no token, so no check at the write; no line";
pub const ADVISORY: &str = "nothing on disk, no time to live, no token";
pub const REDIS: &str = "no token, no line";
pub const REDIS_MEMORY: &str = "nothing on disk, no token, no line";
pub const ETCD: &str = "a revision, but no check in the database";
pub const ZOOKEEPER: &str = "a zxid, but no check in the database";

pub const EVERYBODY: &[usize] = &[1, 8, 32];

pub const BARE: Step = Step(
    &[(
        "UPDATE bare SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + '1 d' WHERE name = $1 AND token = 1",
        &[Arg::Name],
    )],
    Wanted::Tag("UPDATE 1"),
);

pub const ACQUIRE: Step =
    Step(&[("SELECT lease_acquire($1, 'bench', '30 s')", &[Arg::Name])], Wanted::Value);
pub const RELEASE: Step =
    Step(&[("SELECT lease_release($1, $2)", &[Arg::Name, Arg::Answer])], Wanted::True);
pub const EXTEND: Step =
    Step(&[("SELECT lease_extend($1, $2)", &[Arg::Name, Arg::Token])], Wanted::Value);

pub const COMMIT: Step = Step(&[("COMMIT", &[])], Wanted::Tag("COMMIT"));

// ShedLock opens a transaction for each statement; drivers send the BEGIN along with it.
const SHED_LOCK: Step = Step(
    &[
        ("BEGIN", &[]),
        (
            "UPDATE shedlock SET lock_until = timezone('utc', current_timestamp) + interval '30 s',
                    locked_at = timezone('utc', current_timestamp), locked_by = 'bench'
              WHERE name = $1 AND lock_until <= timezone('utc', current_timestamp)",
            &[Arg::Name],
        ),
    ],
    Wanted::Tag("UPDATE 1"),
);
const SHED_REFUSED: Step = Step(
    &[
        ("BEGIN", &[]),
        (
            "UPDATE shedlock SET lock_until = timezone('utc', current_timestamp) + interval '30 s',
                    locked_at = timezone('utc', current_timestamp), locked_by = 'bench'
              WHERE name = 'held' AND lock_until <= timezone('utc', current_timestamp)",
            &[],
        ),
    ],
    Wanted::Tag("UPDATE 0"),
);
const SHED_UNLOCK: Step = Step(
    &[
        ("BEGIN", &[]),
        (
            "UPDATE shedlock SET lock_until = timezone('utc', current_timestamp) WHERE name = $1",
            &[Arg::Name],
        ),
    ],
    Wanted::Tag("UPDATE 1"),
);
const SHED_EXTEND: Step = Step(
    &[
        ("BEGIN", &[]),
        (
            "UPDATE shedlock SET lock_until = timezone('utc', current_timestamp) + interval '1 d'
              WHERE name = $1 AND locked_by = 'bench' AND lock_until > timezone('utc', current_timestamp)",
            &[Arg::Name],
        ),
    ],
    Wanted::Tag("UPDATE 1"),
);
const HAND_EXTEND: Step =
    Step(&[("SELECT hand_extend($1, $2, '1 d')", &[Arg::Name, Arg::Token])], Wanted::Value);

fn acquire(plan: &Plan) -> Measure {
    let mut systems = vec![
        System::sql(TWO_UPDATES, FLOOR, Names::Jobs, &[BARE, BARE]),
        System::sql("lease_acquire, lease_release", "", Names::Jobs, &[ACQUIRE, RELEASE]),
        System::sql(
            "by hand in PL/pgSQL",
            BY_HAND,
            Names::Jobs,
            &[
                Step(&[("SELECT hand_acquire($1, 'bench', '30 s')", &[Arg::Name])], Wanted::Value),
                Step(&[("SELECT hand_release($1, $2)", &[Arg::Name, Arg::Answer])], Wanted::True),
            ],
        ),
        System::sql(
            "ShedLock's statements",
            SHEDLOCK,
            Names::Jobs,
            &[SHED_LOCK, COMMIT, SHED_UNLOCK, COMMIT],
        ),
        System::sql(
            "pg_try_advisory_lock",
            ADVISORY,
            Names::Jobs,
            &[
                Step(
                    &[("SELECT pg_try_advisory_lock(hashtextextended($1, 0))", &[Arg::Name])],
                    Wanted::True,
                ),
                Step(
                    &[("SELECT pg_advisory_unlock(hashtextextended($1, 0))", &[Arg::Name])],
                    Wanted::True,
                ),
            ],
        ),
    ];
    for (socket, name, not_promised) in redises(plan) {
        systems.push(System::new(name, not_promised, move |client| {
            let socket = socket.clone();
            async move { Ok(redis::Pair(redis::Redis::connect(&socket, client).await?)) }
        }));
    }
    if let Some(server) = plan.etcd.clone() {
        let one = server.clone();
        systems.push(System::new("etcd, one lease kept", ETCD, move |client| {
            let server = server.clone();
            async move { Ok(etcd::LeaseKept(etcd::Etcd::connect(&server).await?, client)) }
        }));
        systems.push(System::new("etcd, a lease each", ETCD, move |client| {
            let server = one.clone();
            async move { Ok(etcd::LeaseEach(etcd::Etcd::connect(&server).await?, client)) }
        }));
    }
    if let Some(server) = plan.zookeeper.clone() {
        systems.push(System::new("ZooKeeper", ZOOKEEPER, move |client| {
            let server = server.clone();
            async move {
                let directory = format!("/jobs-{client}");
                Ok(zookeeper::Pair(zookeeper::ZooKeeper::connect(&server, &directory).await?))
            }
        }));
    }
    Measure { name: "acquire", unit: "pairs/s", clients: EVERYBODY, systems }
}

fn heartbeat(plan: &Plan) -> Measure {
    let mut systems = vec![
        System::sql("bare UPDATE", FLOOR, Names::Ones, &[BARE]),
        System::sql("lease_extend", "", Names::Tenures, &[EXTEND]),
        System::sql(
            "lease_extend_many, 1,000 a call",
            "",
            Names::Tenures,
            &[Step(
                &[(
                    "SELECT count(expires_at) = 1000 FROM lease_extend_many($1, $2)",
                    &[Arg::Names, Arg::Tokens],
                )],
                Wanted::True,
            )],
        )
        .each(1000.0),
        System::sql("by hand in PL/pgSQL", BY_HAND, Names::Ones, &[HAND_EXTEND]),
        System::sql("ShedLock's statement", SHEDLOCK, Names::Ones, &[SHED_EXTEND, COMMIT]),
    ];
    let pipelined = |name: &'static str| match name {
        "Redis in memory" => "Redis in memory, 1,000 sent at once",
        _ => "Redis, fsync always, 1,000 sent at once",
    };
    for (socket, name, not_promised) in redises(plan) {
        for (name, at_once) in [(name, 1), (pipelined(name), 1000)] {
            let socket = socket.clone();
            let system = System::new(name, not_promised, move |client| {
                let socket = socket.clone();
                async move {
                    redis::Heartbeat::start(redis::Redis::connect(&socket, client).await?, at_once)
                        .await
                }
            });
            systems.push(system.each(at_once as f64));
        }
    }
    if let Some(server) = plan.etcd.clone() {
        let missing = "not on disk; a lease may have many keys";
        systems.push(System::new("etcd, LeaseKeepAlive", missing, move |_| {
            let server = server.clone();
            async move { Ok(etcd::Heartbeat(etcd::Etcd::connect(&server).await?)) }
        }));
    }
    if let Some(server) = plan.zookeeper.clone() {
        let missing = "not on disk; one for all nodes of a session";
        systems.push(System::new("ZooKeeper, ping", missing, move |_| {
            let server = server.clone();
            async move {
                Ok(zookeeper::Heartbeat(zookeeper::ZooKeeper::connect(&server, "/beats").await?))
            }
        }));
    }
    Measure { name: "heartbeat", unit: "leases/s", clients: EVERYBODY, systems }
}

fn heartbeat_in_memory(_plan: &Plan) -> Measure {
    let systems = vec![
        System::sql_in_memory("bare UPDATE", FLOOR, Names::Ones, &[BARE]),
        System::sql_in_memory("lease_extend", "", Names::Tenures, &[EXTEND]),
        System::sql_in_memory("by hand in PL/pgSQL", BY_HAND, Names::Ones, &[HAND_EXTEND]),
        System::sql_in_memory(
            "ShedLock's statement",
            SHEDLOCK,
            Names::Ones,
            &[SHED_EXTEND, COMMIT],
        ),
    ];
    Measure { name: "heartbeat_async", unit: "leases/s", clients: EVERYBODY, systems }
}

fn refused(plan: &Plan) -> Measure {
    let mut systems = vec![
        System::sql(
            "a function that does nothing",
            FLOOR,
            Names::Jobs,
            &[Step(&[("SELECT pg_backend_pid()", &[])], Wanted::Value)],
        ),
        System::sql(
            "lease_acquire",
            "",
            Names::Jobs,
            &[Step(&[("SELECT lease_acquire('held', 'bench', '30 s')", &[])], Wanted::Null)],
        ),
        System::sql(
            "an empty PL/pgSQL function",
            FLOOR,
            Names::Jobs,
            &[Step(&[("SELECT nothing('held', 'bench', '30 s')", &[])], Wanted::Null)],
        ),
        System::sql(
            "by hand in PL/pgSQL",
            BY_HAND,
            Names::Jobs,
            &[Step(&[("SELECT hand_acquire('held', 'bench', '30 s')", &[])], Wanted::Null)],
        ),
        System::sql("ShedLock's statement", SHEDLOCK, Names::Jobs, &[SHED_REFUSED, COMMIT]),
        System::new("pg_try_advisory_lock", ADVISORY, advisory_refused),
    ];
    for (socket, name, not_promised) in redises(plan) {
        systems.push(System::new(name, not_promised, move |client| {
            let socket = socket.clone();
            async move { redis::Refused::start(redis::Redis::connect(&socket, client).await?).await }
        }));
    }
    if let Some(server) = plan.etcd.clone() {
        systems.push(System::new("etcd", ETCD, move |_| {
            let server = server.clone();
            async move { etcd::Refused::start(etcd::Etcd::connect(&server).await?).await }
        }));
    }
    if let Some(server) = plan.zookeeper.clone() {
        systems.push(System::new("ZooKeeper", ZOOKEEPER, move |client| {
            let server = server.clone();
            async move {
                let directory = format!("/held-{client}");
                let asking = zookeeper::ZooKeeper::connect(&server, &directory).await?;
                let holding = zookeeper::ZooKeeper::connect(&server, &directory).await?;
                zookeeper::Refused::start(asking, holding).await
            }
        }));
    }
    Measure { name: "refused", unit: "calls/s", clients: EVERYBODY, systems }
}

/// A session that asks for locks, and one that has them.
struct AdvisoryRefused(
    Sql,
    #[expect(dead_code, reason = "its session has the locks")] session::Session,
);

async fn advisory_refused(client: usize) -> Result<AdvisoryRefused, Error> {
    let mut holder = session::Session::connect("").await?;
    let lock = format!(
        "SELECT pg_advisory_lock(hashtextextended(format('job-{client}-%s', i), 0)) FROM generate_series(0, 15) AS i"
    );
    holder.run(&lock).await?;
    const ASK: &[Step] = &[Step(
        &[("SELECT NOT pg_try_advisory_lock(hashtextextended($1, 0))", &[Arg::Name])],
        Wanted::True,
    )];
    Ok(AdvisoryRefused(Sql::connect("", ASK, Names::Jobs, client).await?, holder))
}

impl Client for AdvisoryRefused {
    async fn call(&mut self, number: usize) -> Result<(), Error> {
        self.0.call(number).await
    }
}

fn redises(plan: &Plan) -> Vec<(String, &'static str, &'static str)> {
    let memory = plan.redis_memory.clone().map(|it| (it, "Redis in memory", REDIS_MEMORY));
    let durable = plan.redis.clone().map(|it| (it, "Redis, fsync always", REDIS));
    memory.into_iter().chain(durable).collect()
}

pub fn run(plan: &Plan) -> Result<(), Error> {
    type Make = fn(&Plan) -> Measure;
    let measures: [(&str, Make); 7] = [
        ("acquire", acquire),
        ("heartbeat", heartbeat),
        ("heartbeat_async", heartbeat_in_memory),
        ("refused", refused),
        ("write", write),
        ("write_in_transaction", |_| write_in_transaction(EVERYBODY, "write_in_transaction")),
        ("bulk", bulk),
    ];
    for (name, measure) in measures {
        if plan.wants(name) {
            measure(plan).run(plan, "")?;
        }
    }
    Ok(())
}
