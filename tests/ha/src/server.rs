use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Mutex;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::process::{children, lives};
use crate::programs::{bindir, program, run};
use crate::{PATIENCE, PAUSE, Place, Session, until};

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Sessions are ended, then a checkpoint is written and all of the WAL is sent to the standbys.
    Fast,
    /// At once, without a checkpoint: what is not written to the WAL is lost.
    Immediate,
}

/// What a [`Server`] is made with, where it is not the usual.
#[derive(Clone, Debug, Default)]
pub struct Recipe {
    /// Lines of its postgresql.conf, after ours.
    pub settings: Vec<(String, String)>,
    /// Environment of the server's processes; `initdb` and the other programs do not get it.
    pub env: Vec<(String, String)>,
    /// The server's programs, for another version.
    pub bindir: Option<PathBuf>,
    /// More arguments for initdb.
    pub initdb: Vec<String>,
}

/// A cluster of a test's own. It listens on a unix socket in a directory that is closed to others.
///
/// Dropping it stops the server and removes everything; if that is because the test fails, the end of its log is
/// printed.
pub struct Server {
    pub(crate) name: String,
    pub(crate) bindir: PathBuf,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) postmaster: Mutex<Option<Child>>,
    // The last, as it removes the directory.
    pub(crate) place: Place,
}

/// The same for all: no settings that a promise depends on, but such that what is lost in a crash is really lost.
const SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", ""),
    ("shared_buffers", "16MB"),
    ("max_connections", "60"),
    ("max_prepared_transactions", "10"),
    ("autovacuum", "off"),
    // A test crashes servers, not the machine: what was written is there, whether or not it was synced.
    ("fsync", "off"),
    // WAL that nobody flushed stays where a crash loses it.
    ("wal_writer_delay", "10s"),
    // A standby that was cut off for a while finds what it needs.
    ("wal_keep_size", "512MB"),
    ("wal_retrieve_retry_interval", "100ms"),
    ("log_line_prefix", "%m [%p] %q%a "),
];

impl Server {
    /// Made and started, with these settings after the usual ones.
    pub async fn new(name: &str, settings: &[(&str, &str)]) -> Self {
        let settings = settings.iter().map(|&(k, v)| (k.to_owned(), v.to_owned())).collect();
        Self::with(name, Recipe { settings, ..Recipe::default() }).await
    }

    /// Made after a recipe and started.
    pub async fn with(name: &str, recipe: Recipe) -> Self {
        let server = Self::made(name, recipe).await;
        server.start().await;
        server
    }

    /// Made but not started.
    pub async fn made(name: &str, recipe: Recipe) -> Self {
        let server = Self {
            name: name.to_owned(),
            bindir: recipe.bindir.unwrap_or_else(bindir),
            env: recipe.env,
            postmaster: Mutex::default(),
            place: Place::new(),
        };
        let mut initdb = server.program("initdb");
        initdb.args(["--username", "postgres", "--auth", "trust", "--no-sync"]);
        initdb.args(["--encoding", "UTF8", "--locale", "C.UTF-8", "--pgdata"]).arg(server.data());
        initdb.args(&recipe.initdb);
        run(initdb).await;
        let mut lines = String::new();
        for (name, value) in SETTINGS {
            lines += &line(name, value);
        }
        for (name, value) in &recipe.settings {
            lines += &line(name, value);
        }
        append(&server.data().join("postgresql.conf"), &lines);
        server
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its directory, also for other files of the test; also that of the socket.
    pub fn dir(&self) -> &Path {
        self.place.path()
    }

    pub fn data(&self) -> PathBuf {
        self.dir().join("data")
    }

    /// All that it has logged.
    pub fn log(&self) -> String {
        fs::read(self.log_file())
            .map(|log| String::from_utf8_lossy(&log).into_owned())
            .unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.dir().join("log")
    }

    /// A program of this server's version, which finds it: `psql`, `pg_dump`, ...
    pub fn program(&self, name: &str) -> Command {
        let mut command = program(self.bindir.join(name));
        command.current_dir(self.dir()).env("PGHOST", self.dir());
        command.env("PGPORT", "5432").env("PGUSER", "postgres").env("PGDATABASE", "postgres");
        command
    }

    /// Runs such a program to its end and gives what it printed. Fails if it fails.
    pub async fn run(&self, name: &str, args: &[&str]) -> String {
        let mut command = self.program(name);
        command.args(args);
        run(command).await
    }

    /// For `CREATE SUBSCRIPTION` and the like.
    pub fn conninfo(&self, database: &str) -> String {
        format!("host={} port=5432 user=postgres dbname={database}", self.dir().display())
    }

    // Sessions

    /// A session of the superuser in the database postgres.
    pub async fn connect(&self) -> Session {
        self.connect_to("postgres").await
    }

    pub async fn connect_to(&self, database: &str) -> Session {
        self.connect_as(database, "postgres").await
    }

    pub async fn connect_as(&self, database: &str, role: &str) -> Session {
        Session::open(self.dir(), 5432, database, role)
            .await
            .unwrap_or_else(|error| panic!("no connection to {}: {error}", self.name))
    }

    /// The extension, made in the database postgres, and a session there.
    pub async fn with_extension(&self) -> Session {
        let session = self.connect().await;
        session.sql("CREATE EXTENSION lock_ext").await.expect("the extension is installed");
        session
    }

    // Settings

    /// A setting, from the next start on.
    pub fn configure(&self, name: &str, value: &str) {
        append(&self.data().join("postgresql.auto.conf"), &line(name, value));
    }

    /// A setting, by ALTER SYSTEM and a reload. New sessions have it when this returns; what runs already, a moment
    /// later.
    pub async fn set(&self, name: &str, value: &str) {
        let session = self.connect().await;
        let quoted = value.replace('\'', "''");
        session.sql(&format!("ALTER SYSTEM SET {name} = '{quoted}'")).await.expect("a setting");
        let loaded = "SELECT pg_conf_load_time()::text";
        let before: String = session.one(loaded, &[]).await.expect("a time");
        session.sql("SELECT pg_reload_conf()").await.expect("a reload");
        until("the configuration is read again", async || {
            self.connect().await.one::<String>(loaded, &[]).await.expect("a time") != before
        })
        .await;
    }

    /// Environment of the server's processes, from the next start on.
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.env.retain(|(known, _)| known != name);
        self.env.push((name.to_owned(), value.to_owned()));
    }

    // Life and death

    /// Starts it, and waits until it takes connections.
    pub async fn start(&self) {
        assert!(!self.is_running(), "{} runs already", self.name);
        let log = OpenOptions::new().append(true).create(true).open(self.log_file());
        let log = log.expect("a log file");
        let mut command = self.program("postgres");
        command.arg("-D").arg(self.data()).arg("-k").arg(self.dir()).args(["-p", "5432"]);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdout(log.try_clone().expect("the log")).stderr(log).process_group(0);
        let child = command.spawn().expect("the server's program");
        *self.lock() = Some(child);
        self.ready().await;
    }

    /// Waits until it takes connections, as after a start, or after it has lost a process and starts anew.
    pub async fn ready(&self) {
        let start = Instant::now();
        while Session::open(self.dir(), 5432, "postgres", "postgres").await.is_err() {
            assert!(self.is_running(), "{} does not start", self.name);
            assert!(start.elapsed() < PATIENCE, "{} takes no connections", self.name);
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub async fn stop(&self, how: Stop) {
        self.signal(match how {
            Stop::Fast => Signal::SIGINT,
            Stop::Immediate => Signal::SIGQUIT,
        });
        until("the server stops", async || !self.is_running()).await;
    }

    pub async fn restart(&self, how: Stop) {
        self.stop(how).await;
        self.start().await;
    }

    /// kill -9 of all of its processes, as when the machine is lost. What only was in its memory is gone.
    pub async fn crash(&self) {
        let postmaster = self.postmaster_pid();
        // So that it starts nothing while we look, and does nothing about the ends that it sees.
        self.signal(Signal::SIGSTOP);
        let children = children(postmaster);
        self.signal(Signal::SIGKILL);
        for &child in &children {
            // Some end by themselves.
            let _ = kill(Pid::from_raw(child), Signal::SIGKILL);
        }
        until("the processes are gone", async || {
            !self.is_running() && !children.iter().any(|&child| lives(child))
        })
        .await;
    }

    /// kill -9 of a backend. The server ends all sessions and starts anew by itself; returns when it is ready again.
    pub async fn kill_backend(&self, pid: i32) {
        let witness = self.connect().await;
        kill(Pid::from_raw(pid), Signal::SIGKILL).expect("the backend lives");
        until("all sessions are ended", async || witness.sql("SELECT 1").await.is_err()).await;
        self.ready().await;
    }

    pub fn is_running(&self) -> bool {
        let mut postmaster = self.lock();
        let ended = match postmaster.as_mut() {
            Some(child) => child.try_wait().expect("our child").is_some(),
            None => return false,
        };
        if ended {
            *postmaster = None;
        }
        !ended
    }

    pub fn postmaster_pid(&self) -> i32 {
        let postmaster = self.lock();
        let child = postmaster.as_ref().unwrap_or_else(|| panic!("{} does not run", self.name));
        child.id().try_into().expect("a process id")
    }

    /// To the postmaster.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.postmaster_pid()), signal).expect("the server runs");
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        self.postmaster.lock().expect("nobody panics while holding it")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<_> = log.lines().collect();
            let end = &lines[lines.len().saturating_sub(40)..];
            eprintln!("-- the end of the log of {}:\n{}\n--", self.name, end.join("\n"));
        }
        // It is our child: who ends it has to wait for it.
        if let Some(mut child) = self.lock().take() {
            let pid = Pid::from_raw(child.id().try_into().expect("a process id"));
            // It may have ended meanwhile, and it may be stopped.
            let _ = kill(pid, Signal::SIGQUIT);
            let _ = kill(pid, Signal::SIGCONT);
            let _ = child.wait();
        }
    }
}

fn line(name: &str, value: &str) -> String {
    format!("{name} = '{}'\n", value.replace('\'', "''"))
}

/// The file keeps its owner; a new one gets that of the directory.
pub(crate) fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().append(true).create(true).open(path).expect("a file of ours");
    file.write_all(text.as_bytes()).expect("a file of ours");
    if let Some(owner) = crate::programs::owner() {
        std::os::unix::fs::chown(path, Some(owner.uid.as_raw()), Some(owner.gid.as_raw()))
            .expect("a file of ours");
    }
}
