//! One run: servers, clients and faults, and the history that they leave.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_postgres::Client;

use crate::client::Orders;
use crate::commits;
use crate::control::{Guard, TABLES};
use crate::dice::Dice;
use crate::history::{Call, Head, History, Last, Micros, Op, Seen, now, read_log};
use crate::nemesis::network::Proxy;
use crate::nemesis::{Crowd, Diary, Fault, on_clients, on_servers};
use crate::workload::{PLAYERS, Progress, Workload};
use crate::world::{World, connect_to};

pub struct Plan {
    pub seed: u64,
    pub seconds: u64,
    pub guard: Guard,
    pub workloads: Vec<Workload>,
    pub faults: Vec<Fault>,
    pub careless: bool,
    /// Where the clients' logs are.
    pub directory: PathBuf,
}

/// So long after the end clients are given to hear their last answers.
const GRACE: Micros = 30_000_000;

pub async fn run(plan: &Plan) -> History {
    let logs = plan.directory.join("clients");
    let _ = fs::remove_dir_all(&logs);
    fs::create_dir_all(&logs).expect("a directory");
    let has = |fault| plan.faults.contains(&fault);
    let with_standby = has(Fault::FailOver) || has(Fault::LostTail);
    let mut world = World::new(has(Fault::Clock), with_standby).await;
    let version = prepare(&world, plan.guard).await;
    world.proxy.open(world.server().dir());
    let (start, diary, crowd) = (now(), Diary::default(), Crowd::default());
    let until = start + plan.seconds as i64 * 1_000_000;
    let clients = tokio::spawn(clients(Posts {
        seed: plan.seed,
        guard: plan.guard,
        careless: plan.careless,
        workloads: plan.workloads.clone(),
        logs: logs.clone(),
        port: world.proxy.port(),
        crowd: crowd.clone(),
        until,
    }));
    let watch = tokio::spawn(watch_line(world.proxy.clone(), until));
    let proxy = world.proxy.clone();
    let near = Dice::of(plan.seed, "clients");
    let near = on_clients(plan.faults.clone(), near, crowd, proxy, diary.clone(), until);
    let far = Dice::of(plan.seed, "servers");
    tokio::join!(near, on_servers(plan.faults.clone(), far, &mut world, diary.clone(), until));
    let panics = clients.await.expect("the clients are waited for");
    assert_eq!(panics, 0, "clients failed; see above");
    let ops = merge(&logs, diary.calls());
    // All of it is in the history.
    let _ = fs::remove_dir_all(&logs);
    let server = world.connect_surely().await;
    let last = last(&server, plan.guard, &ops).await;
    let mut events = diary.events();
    events.sort_by_key(|event| event.start);
    let head = Head {
        seed: plan.seed,
        guard: plan.guard,
        start,
        seconds: plan.seconds,
        server: version,
        workloads: plan.workloads.iter().map(|one| one.name().to_owned()).collect(),
        faults: plan.faults.iter().map(|one| one.name().to_owned()).collect(),
    };
    let commits = world.commits().await;
    let seen = watch.await.expect("the line is watched");
    History { head, ops, events, commits, seen, last }
}

async fn prepare(world: &World, guard: Guard) -> String {
    let server = world.connect_surely().await;
    for sql in ["CREATE EXTENSION lock_ext", TABLES, guard.attach()] {
        server.batch_execute(sql).await.expect("the tables");
    }
    commits::begin(&server).await;
    let sql = "SELECT 'PostgreSQL ' || split_part(current_setting('server_version'), ' ', 1) || ', lock_ext ' || extversion
               FROM pg_extension WHERE extname = 'lock_ext'";
    server.query_one(sql, &[]).await.expect("the version").get(0)
}

#[derive(Clone)]
struct Posts {
    seed: u64,
    guard: Guard,
    careless: bool,
    workloads: Vec<Workload>,
    logs: PathBuf,
    port: u16,
    crowd: Crowd,
    until: Micros,
}

/// Each post has one client after the other: when one is killed, the next one begins. Gives how many failed.
async fn clients(posts: Posts) -> usize {
    let number = Arc::new(AtomicI64::new(1));
    let mut tasks = JoinSet::new();
    for &workload in &posts.workloads {
        for post in 0..workload.clients() {
            let naive = workload.has_naive() && post == 0;
            tasks.spawn(post_of(posts.clone(), workload, post, naive, number.clone()));
        }
    }
    tasks.join_all().await.into_iter().sum()
}

async fn post_of(
    posts: Posts,
    workload: Workload,
    post: usize,
    naive: bool,
    number: Arc<AtomicI64>,
) -> usize {
    let mut dice = Dice::of(posts.seed, &format!("{}-{post}", workload.name()));
    let program = std::env::current_exe().expect("this program");
    let mut failed = 0;
    for turn in 0.. {
        if now() >= posts.until {
            break;
        }
        let id = format!("{}{post}-{turn}", workload.name());
        let orders = Orders {
            log: posts.logs.join(format!("{id}.jsonl")),
            id: id.clone(),
            number: number.fetch_add(1, Ordering::Relaxed),
            workload,
            guard: posts.guard,
            seed: dice.throw(),
            naive,
            careless: posts.careless,
            port: posts.port,
            until: posts.until,
        };
        let mut child = tokio::process::Command::new(&program)
            .args(["client", &serde_json::to_string(&orders).expect("JSON")])
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("a client");
        let pid = child.id().expect("a process id").cast_signed();
        posts.crowd.lock().expect("nobody panics here").insert(pid, id);
        let left = Duration::from_micros((posts.until + GRACE - now()).max(0) as u64);
        let ended = tokio::time::timeout(left, child.wait()).await;
        posts.crowd.lock().expect("nobody panics here").remove(&pid);
        match ended {
            // Panicked.
            Ok(Ok(status)) if status.code() == Some(101) => failed += 1,
            Ok(_) => {}
            Err(_) => {
                let _ = child.kill().await;
            }
        }
    }
    failed
}

fn merge(logs: &Path, mut ops: Vec<Op>) -> Vec<Op> {
    for file in fs::read_dir(logs).expect("the logs") {
        ops.extend(read_log(&file.expect("a file").path()).expect("a log"));
    }
    ops.sort_by_key(|op| (op.start, op.end));
    ops
}

/// Looks at who stands in line, all the time.
async fn watch_line(proxy: Arc<Proxy>, until: Micros) -> Vec<Seen> {
    let mut seen: Vec<Seen> = Vec::new();
    while now() < until {
        let target = proxy.directory();
        let Some(server) = (match target {
            Some(target) => connect_to(&target).await,
            None => None,
        }) else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let sql = "SELECT name, array_agg(pid ORDER BY place), array_agg(pg_blocking_pids(pid)::text ORDER BY place)
                   FROM lease_waiter GROUP BY name HAVING count(*) > 1";
        while now() < until {
            let start = now();
            let look = tokio::time::timeout(Duration::from_secs(5), server.query(sql, &[])).await;
            let Ok(Ok(rows)) = look else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                break;
            };
            let end = now();
            for row in rows {
                let (lease, shown): (String, Vec<i32>) = (row.get(0), row.get(1));
                let before: Vec<String> = row.get(2);
                let behind = shown.iter().zip(before).flat_map(|(&backend, before)| {
                    let before = before.trim_matches(['{', '}']).to_owned();
                    let before: Vec<i32> =
                        before.split(',').filter_map(|p| p.parse().ok()).collect();
                    before.into_iter().map(move |before| (before, backend))
                });
                let behind = behind.collect();
                if seen.last().is_none_or(|last| last.shown != shown || last.behind != behind) {
                    seen.push(Seen { start, end, lease, shown, behind });
                }
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }
    seen
}

/// What is in the tables. Each key that somebody asked `once` for is asked for once more, so that each has an effect.
async fn last(server: &Client, guard: Guard, ops: &[Op]) -> Last {
    let keys: BTreeSet<&str> = ops
        .iter()
        .filter_map(|op| if let Call::Once { key } = &op.call { Some(key.as_str()) } else { None })
        .collect();
    for key in keys {
        let sql = "INSERT INTO effect SELECT $1, 'sweep' WHERE (SELECT once($1))";
        server.execute(sql, &[&key]).await.expect("a sweep");
    }
    let one = async |sql: &str| server.query_one(sql, &[]).await.expect("a row");
    let rows = async |sql: &str| server.query(sql, &[]).await.expect("rows");
    let checkpoint = server.query_one(guard.read_checkpoint(), &[&"batch"]).await;
    let Progress { round, next } = Progress::of(checkpoint.expect("a checkpoint").get(0));
    let paid = rows("SELECT round, player, count(*) FROM reward GROUP BY 1, 2 ORDER BY 1, 2").await;
    let effects = rows("SELECT key, op FROM effect ORDER BY key, op").await;
    Last {
        register: one("SELECT v FROM register").await.get(0),
        set: one("SELECT elements FROM growing").await.get(0),
        paid: paid.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect(),
        checkpoint: (round, next),
        effects: effects.iter().map(|row| (row.get(0), row.get(1))).collect(),
        players: PLAYERS,
    }
}
