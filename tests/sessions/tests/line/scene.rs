//! What the tests of waiting ask the server.

use std::time::{Duration, Instant};

use lock_ext_sessions::{Answer, Db, PATIENCE, Session};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::task::JoinHandle;

/// An answer that is still to come.
pub type Call<T = Option<i64>> = JoinHandle<Answer<T>>;

/// The locks of lines in this database: one row for each who waits, granted to the head. Not asked of the extension.
pub const LINES: &str = "SELECT pid, granted FROM pg_locks
     WHERE locktype = 'userlock' AND objsubid = 7
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";

/// Stands in line beside the test, and is there when this returns.
pub async fn stand(db: &Db, session: &Session, name: &str, wait: &str) -> Call {
    stand_for(db, session, name, "60 s", wait).await
}

pub async fn stand_for(db: &Db, session: &Session, name: &str, ttl: &str, wait: &str) -> Call {
    let (name, ttl, wait) = (name.to_owned(), ttl.to_owned(), wait.to_owned());
    let call = session.beside(move |me| async move {
        me.acq_wait(&name, &format!("backend {}", me.pid()), &ttl, &wait).await
    });
    in_line(db, session.pid()).await;
    call
}

/// The same for a lease that is bound to the session.
pub async fn stand_bound(db: &Db, session: &Session, name: &str, wait: &str) -> Call {
    let (name, wait) = (name.to_owned(), wait.to_owned());
    let call = session.beside(move |me| async move {
        me.sacq(&name, &format!("backend {}", me.pid()), &wait).await
    });
    in_line(db, session.pid()).await;
    call
}

/// Waits until the backend stands in a line, asleep.
pub async fn in_line(db: &Db, pid: i32) {
    db.until(
        &format!(
            "SELECT true FROM ({LINES}) AS l JOIN pg_stat_activity AS a USING (pid)
              WHERE pid = $1 AND wait_event_type IN ('Extension', 'Lock')"
        ),
        &[&pid],
    )
    .await;
}

/// Waits until the backend is the head of its line and sleeps there until the clock or somebody wakes it.
pub async fn asleep(db: &Db, pid: i32) {
    db.until(
        &format!(
            "SELECT granted AND wait_event_type = 'Extension'
               FROM ({LINES}) AS l JOIN pg_stat_activity AS a USING (pid) WHERE pid = $1"
        ),
        &[&pid],
    )
    .await;
}

/// Who stands in line for the lease, as `lease_waiter` shows it.
pub async fn line(db: &Db, name: &str) -> Vec<i32> {
    db.watch
        .list("SELECT pid FROM lease_waiter WHERE name = $1 ORDER BY place", &[&name])
        .await
        .expect("lease_waiter")
}

/// The session waits for nothing, and has no lock of ours.
#[track_caller]
pub fn has_no_lock(db: &Db, pid: i32) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    let watch = db.watch.clone();
    async move {
        let locks: i64 = watch
            .one(
                "SELECT count(*) FROM pg_locks WHERE pid = $1 AND locktype IN ('userlock', 'advisory')",
                &[&pid],
            )
            .await
            .expect("pg_locks");
        assert_eq!(locks, 0, "locks of backend {pid} at {place}");
    }
}

/// Nobody stands in any line of the database, by pg_locks and by the views.
pub async fn nobody_waits(db: &Db) {
    let watch = &db.watch;
    let locks: i64 = watch.one(&format!("SELECT count(*) FROM ({LINES}) AS l"), &[]).await.unwrap();
    assert_eq!(locks, 0, "locks of lines");
    let shown: i64 = watch
        .one(
            "SELECT (SELECT count(*) FROM lease_waiter)
                  + (SELECT coalesce(sum(waiters), 0)::bigint FROM lease_status)",
            &[],
        )
        .await
        .unwrap();
    assert_eq!(shown, 0, "waiters in the views");
}

/// Waits until nobody stands in any line any more.
pub async fn line_is_empty(db: &Db) {
    db.until(&format!("SELECT count(*) = 0 FROM ({LINES}) AS l"), &[]).await;
}

/// A backend that does nothing until this is dropped.
pub struct Stopped(i32);

/// Stops a backend of the server. It has to be asleep: else it might have something that others need.
pub fn stop(backend: i32) -> Stopped {
    signal(backend, Signal::SIGSTOP);
    let start = Instant::now();
    // The state follows the program's name in parentheses.
    while !std::fs::read_to_string(format!("/proc/{backend}/stat"))
        .expect("the backend runs")
        .contains(") T ")
    {
        assert!(start.elapsed() < PATIENCE, "the backend does not stop");
        std::thread::yield_now();
    }
    Stopped(backend)
}

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, Signal::SIGCONT);
    }
}

pub fn signal(backend: i32, signal: Signal) {
    kill(Pid::from_raw(backend), signal)
        .expect("the backend runs, and belongs to us or we are root");
}

/// How often the process has gone to sleep by itself since it began: each time it was woken it has to again.
pub fn sleeps(backend: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{backend}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.expect("Linux counts them").trim().parse().expect("a number")
}

/// Time passes: part of the scenario, never a hope.
pub async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}
