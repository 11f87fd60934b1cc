//! How it grows: more leases in the table, more waiters for one name, more sessions that write under one lease, a day of heartbeats.

use crate::compare::{Measure, System};
use crate::handover::{Contender, compete, on_one_thread};
use crate::measures::{ACQUIRE, ADVISORY, BARE, EXTEND, FLOOR, RELEASE};
use crate::relay::Relay;
use crate::session::Session;
use crate::sql::{Arg, Names, Step, Wanted};
use crate::writes::write_in_transaction;
use crate::{Error, Plan, day, idle, postgres};

const LEASES: [usize; 6] = [10, 100, 1_000, 10_000, 100_000, 1_000_000];
const WAITERS: [usize; 4] = [1, 8, 64, 500];
const SESSIONS: &[usize] = &[1, 4, 16, 64];

/// A client's part of the rows `grow-0`, `grow-1` and so on. Even ones are held, odd ones free.
#[derive(Clone, Copy)]
pub struct Share {
    leases: usize,
    is_held: bool,
    /// Of every lease, as they are copies of one.
    token: i64,
}

const CLIENTS: usize = 4;
/// More than fit into the processor's caches.
const MOST_NAMES: usize = 20_000;
/// A prime number, so that the names come in no order that the table has.
const STRIDE: usize = 7919;

impl Share {
    pub fn of(self, client: usize) -> (Vec<String>, Vec<String>) {
        let count = (self.leases / 2 / CLIENTS).max(1);
        let name = |i: usize| {
            let place = (i * STRIDE % count) * CLIENTS + client;
            format!("grow-{}", 2 * place + usize::from(!self.is_held))
        };
        let names: Vec<String> = (0..count.min(MOST_NAMES)).map(name).collect();
        let tokens = vec![self.token.to_string(); names.len()];
        (names, tokens)
    }
}

pub fn run(plan: &Plan) -> Result<(), Error> {
    if plan.wants("day") {
        day::run(plan)?;
    }
    if plan.wants("sessions") {
        write_in_transaction(SESSIONS, "sessions").run(plan, "")?;
    }
    if plan.wants("waiters") {
        for waiters in WAITERS {
            on_one_thread(in_line(plan, waiters))?;
        }
    }
    if plan.wants("leases") {
        let mut before = 0;
        for leases in LEASES {
            let token = on_one_thread(fill(before, leases))?;
            before = leases;
            let size = leases.to_string();
            for measure in with_leases(leases, token) {
                measure.run(plan, &size)?;
            }
        }
    }
    Ok(())
}

async fn in_line(plan: &Plan, waiters: usize) -> Result<(), Error> {
    let db = postgres::connect().await?;
    let ours = Relay::start(waiters, postgres::Lease::connect).await?;
    let theirs = Relay::start(waiters, postgres::Advisory::connect).await?;
    let in_line = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'";
    idle::until(&db, in_line, waiters.try_into()?).await?;
    idle::until(&db, "SELECT count(*) FROM lease_waiter", waiters.try_into()?).await?;
    let locks = vec![
        Contender::new("lease_acquire in line, lease_release", "", ours),
        Contender::new("pg_advisory_lock", ADVISORY, theirs),
    ];
    for line in compete(plan, "waiters", &waiters.to_string(), waiters + 1, locks).await? {
        line.print();
    }
    // The next ones take the same names. What stands in line goes with its connections.
    drop(db);
    let db = postgres::connect().await?;
    db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'peers' AND pid <> pg_backend_pid()", &[]).await?;
    let others = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'peers' AND pid <> pg_backend_pid()";
    idle::until(&db, others, 0).await?;
    db.execute("SELECT lease_force_release('handover')", &[]).await?;
    Ok(())
}

/// Copies of a held and a free lease, and as many rows for the bare UPDATE; the token that the copies have.
async fn fill(from: usize, to: usize) -> Result<i64, Error> {
    let mut db = Session::connect("").await?;
    let to_last = to - 1;
    db.run(&format!(
        "INSERT INTO lock_ext.lease
             SELECT token, grants, acquired_at, renewed_at, ttl, holder_role, 'grow-' || i, holder, expires_at, released_at,
                    completed_until, request, not_before, pause, session_pid
               FROM generate_series({from}, {to_last}) AS i
               JOIN lock_ext.lease ON name = CASE i % 2 WHEN 0 THEN 'held' ELSE 'free' END"
    ))
    .await?;
    db.run(&format!(
        "INSERT INTO bare
             SELECT 1, 1, now(), now(), '1 d', 'postgres', 'grow-' || i, 'bench', now() + '1 d' FROM generate_series({from}, {to_last}) AS i"
    ))
    .await?;
    db.run("VACUUM ANALYZE lock_ext.lease").await?;
    db.run("VACUUM ANALYZE bare").await?;
    let token = db.run("SELECT token FROM lock_ext.lease WHERE name = 'held'").await?;
    Ok(token.value().ok_or("nobody holds the lease")?.parse()?)
}

fn with_leases(leases: usize, token: i64) -> [Measure; 3] {
    const CLIENT_NUMBERS: &[usize] = &[CLIENTS];
    const REFUSED: &[Step] =
        &[Step(&[("SELECT lease_acquire($1, 'bench', '30 s')", &[Arg::Name])], Wanted::Null)];
    const NOTHING: &[Step] = &[Step(&[("SELECT pg_backend_pid()", &[])], Wanted::Value)];
    let held = Names::Growing(Share { leases, is_held: true, token });
    let free = Names::Growing(Share { leases, is_held: false, token });
    [
        Measure {
            name: "leases_extend",
            unit: "leases/s",
            clients: CLIENT_NUMBERS,
            systems: vec![
                System::sql("bare UPDATE", FLOOR, held, &[BARE]),
                System::sql("lease_extend", "", held, &[EXTEND]),
            ],
        },
        Measure {
            name: "leases_acquire",
            unit: "pairs/s",
            clients: CLIENT_NUMBERS,
            systems: vec![
                System::sql("two bare UPDATEs", FLOOR, free, &[BARE, BARE]),
                System::sql("lease_acquire, lease_release", "", free, &[ACQUIRE, RELEASE]),
            ],
        },
        Measure {
            name: "leases_refused",
            unit: "calls/s",
            clients: CLIENT_NUMBERS,
            systems: vec![
                System::sql("a function that does nothing", FLOOR, held, NOTHING),
                System::sql("lease_acquire, refused", "", held, REFUSED),
            ],
        },
    ]
}
