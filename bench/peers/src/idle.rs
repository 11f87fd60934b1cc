//! What waiters that sleep cost: a hundred leases, each with somebody in line for it, and the processor time of all the server's
//! processes meanwhile.

use crate::{Error, postgres};
use std::fs;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

const LEASES: i32 = 100;
/// When the line takes longer than this to form, something is broken.
const PATIENCE: Duration = Duration::from_secs(30);

pub async fn measure(time: Duration) -> Result<(), Error> {
    let server = Server::find()?;
    let holder = postgres::connect().await?;
    println!("asleep,connections,seconds,percent_of_a_core");
    let cases = [
        ("nobody", None, None),
        (
            "for a lease with a time to live",
            Some("lease_acquire($1, 'holder', '1 h')"),
            Some("lease_acquire($1, 'waiter', '1 h', wait => '1 h')"),
        ),
        (
            "for a session-bound lease",
            Some("lease_acquire_session($1, 'holder')"),
            Some("lease_acquire_session($1, 'waiter', wait => '1 h')"),
        ),
    ];
    for (number, (title, hold, wait)) in cases.into_iter().enumerate() {
        let mut waiters = JoinSet::new();
        let (mut connections, mut idle) = (Vec::new(), Vec::new());
        for lease in 0..LEASES {
            let name = format!("idle-{number}-{lease}");
            if let Some(hold) = hold {
                holder.query_one(&format!("SELECT {hold}"), &[&name]).await?;
            }
            let (client, connection) = postgres::connect_with_task().await?;
            connections.push(connection);
            match wait {
                Some(wait) => {
                    let wait = format!("SELECT {wait}");
                    waiters.spawn(async move { client.query_one(&wait, &[&name]).await });
                }
                None => idle.push(client),
            }
        }
        let in_line = if wait.is_some() { LEASES } else { 0 };
        until(&holder, "SELECT count(*) FROM lease_waiter", in_line).await?;
        let (began, before) = (Instant::now(), server.processor_time()?);
        sleep(time).await;
        let used = server.processor_time()?.saturating_sub(before);
        let share = 100.0 * used.as_secs_f64() / began.elapsed().as_secs_f64();
        println!("{title},{LEASES},{},{share:.2}", time.as_secs());
        if waiters.try_join_next().is_some() {
            return Err("a waiter came back".into());
        }
        waiters.shutdown().await;
        // The waits are not over, so nothing else closes them.
        connections.iter().for_each(JoinHandle::abort);
        drop(idle);
        let others = "SELECT count(*) FROM pg_stat_activity
                      WHERE application_name = 'peers' AND pid <> pg_backend_pid()";
        until(&holder, others, 0).await?;
    }
    Ok(())
}

pub async fn until(db: &Client, query: &str, wanted: i32) -> Result<(), Error> {
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let count: i64 = db.query_one(query, &[]).await?.get(0);
        if count == i64::from(wanted) {
            return Ok(());
        }
        sleep(Duration::from_millis(50)).await;
    }
    Err(format!("{wanted} were expected: {query}").into())
}

/// The server, by its first process.
struct Server(u32);

impl Server {
    fn find() -> Result<Self, Error> {
        let directory = std::env::var("LOCK_EXT_PGDATA")?;
        let file = fs::read_to_string(format!("{directory}/postmaster.pid"))?;
        Ok(Self(file.lines().next().ok_or("postmaster.pid is empty")?.parse()?))
    }

    /// Of the first process and those that it has started, as long as they live.
    fn processor_time(&self) -> Result<Duration, Error> {
        let mut sum = 0;
        for entry in fs::read_dir("/proc")? {
            let Ok(pid) = entry?.file_name().to_string_lossy().parse::<u32>() else {
                continue;
            };
            if (pid == self.0 || parent(pid) == Some(self.0))
                && let Ok(text) = fs::read_to_string(format!("/proc/{pid}/schedstat"))
                && let Some(nanoseconds) = text.split(' ').next()
            {
                sum += nanoseconds.parse::<u64>()?;
            }
        }
        Ok(Duration::from_nanos(sum))
    }
}

/// The second field after the program's name, which stands in parentheses.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.split(' ').nth(1)?.parse().ok()
}
