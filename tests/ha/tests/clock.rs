//! A server whose clock is stepped while it runs: forward and back, by seconds and by hours.
//!
//! PostgreSQL sleeps and counts its waits by a clock that cannot be stepped, and so does the test. What is stepped here is the clock that
//! tells the time of day.

mod dead;
mod line;
mod steps;
mod tokens;
mod zones;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_ext_ha::{Recipe, Server, Session};

/// Where Debian's package and others have it.
const LIBRARIES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib64/faketime/libfaketime.so.1",
    "/usr/local/lib/faketime/libfaketime.so.1",
];

/// Minutes and hours, in seconds.
pub const HOURS: i64 = 3600;

/// A clock for servers, to be stepped.
pub struct Clock {
    offset: PathBuf,
}

impl Clock {
    /// A server with a clock of its own that is right for now.
    pub async fn server(name: &str) -> (Server, Self) {
        // The file of the offset is to be in the server's directory, which is there once the server is made.
        let mut server = Server::made(name, Recipe::default()).await;
        let clock = Self { offset: server.dir().join("clock") };
        clock.write(0);
        for (variable, value) in clock.environment() {
            server.set_env(variable, &value);
        }
        server.start().await;
        unname(&server);
        (server, clock)
    }

    /// What makes a program see this clock.
    pub fn environment(&self) -> [(&'static str, String); 5] {
        let library = LIBRARIES
            .into_iter()
            .find(|library| Path::new(library).exists())
            .expect("libfaketime, of Debian's package faketime");
        [
            ("LD_PRELOAD", library.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.offset.display().to_string()),
            // Look at it each time, so that a step is seen at once.
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            // Files keep their times.
            ("NO_FAKE_STAT", "1".to_owned()),
        ]
    }

    fn write(&self, seconds: i64) {
        // By renaming, so that nobody reads half of it.
        let new = self.offset.with_extension("new");
        fs::write(&new, format!("{seconds:+}\n")).expect("our directory");
        fs::rename(&new, &self.offset).expect("our directory");
    }

    /// From now on the clock is so many seconds ahead of the true time, or behind it.
    pub async fn set(&self, seconds: i64, watch: &Session) {
        self.write(seconds);
        let shown = seconds_of(now(watch).await) - seconds_of(SystemTime::now());
        let off = (shown - seconds as f64).abs();
        assert!(off < 5.0, "the server's clock is {shown} s ahead, not {seconds} s");
    }
}

/// libfaketime leaves a piece of shared memory behind for each server that is killed. The server has it already, so its name can go.
pub fn unname(server: &Server) {
    let pid = server.postmaster_pid();
    for name in ["faketime_shm", "sem.faketime_sem"] {
        // Other versions of it have none.
        let _ = fs::remove_file(format!("/dev/shm/{name}_{pid}"));
    }
}

/// A session that no timeout of PostgreSQL ends. While a process sleeps, libfaketime shows a signal's handler the true time, so that they would end
/// what has just begun.
pub async fn connect(server: &Server) -> Session {
    let session = server.connect().await;
    session.sql("SET statement_timeout = 0").await.expect("a setting");
    session
}

/// The same, after the extension is made.
pub async fn with_extension(server: &Server) -> Session {
    server.with_extension().await;
    connect(server).await
}

pub fn seconds_of(time: SystemTime) -> f64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    }
}

/// The server's clock.
pub async fn now(session: &Session) -> SystemTime {
    session.one("SELECT clock_timestamp()", &[]).await.expect("a clock")
}

/// Seconds, as `lease_status` shows what is left.
pub async fn remaining(session: &Session, lease: &str) -> Option<f64> {
    session
        .one(
            "SELECT extract(epoch FROM remaining)::float8 FROM lease_status WHERE name = $1",
            &[&lease],
        )
        .await
        .expect("lease_status")
}

pub async fn state(session: &Session, lease: &str) -> String {
    session.info(lease).await.expect("a lease").state
}

/// Asks for the lease, as somebody does who does not wait in line, until it is granted. The token, and how long that took.
pub async fn asked_for(session: &Session, lease: &str) -> (i64, Duration) {
    let start = std::time::Instant::now();
    let token = loop {
        if let Some(token) = session.acq(lease, "B", "1 min").await.expect("an answer") {
            break token;
        }
        assert!(start.elapsed() < lock_ext_ha::PATIENCE, "never granted: {lease}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    (token, start.elapsed())
}
