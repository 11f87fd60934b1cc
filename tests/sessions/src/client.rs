use std::fs;
use std::process::Stdio;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::{Db, PATIENCE, PgError};

/// What a client process says to a statement: the first value of the last row, or the SQLSTATE.
pub type Reply = Result<String, String>;

/// The code in a [`Reply`] when the connection is gone.
pub const BROKEN: &str = PgError::CLOSED;

/// Runs its arguments by `faketime -f` with the first one. Processes that were killed have left things behind under their number, which stop the next one
/// that is given it.
pub const FAKETIME: &str =
    r#"rm -f /dev/shm/sem.faketime_sem_$$ /dev/shm/faketime_shm_$$; exec faketime -f "$0" "$@""#;

/// A session in a process of its own, which can be frozen and killed as a node can.
pub struct Client {
    child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
    backend: i32,
    /// Seconds since 1970 by the clock that the process saw when it started.
    clock: i64,
}

impl Client {
    /// `program` is the path of this crate's `client`: only an integration test knows it.
    pub async fn start(db: &Db, program: &str) -> Self {
        Self::run(db, Command::new(program)).await
    }

    /// A client whose own clock is wrong by so much, as `faketime -f` takes it ("+3m").
    pub async fn with_wrong_clock(db: &Db, program: &str, offset: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", FAKETIME, offset, program]);
        Self::run(db, command).await
    }

    async fn run(db: &Db, mut command: Command) -> Self {
        let mut child = command
            .arg(db.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("{:?} does not start: {error}", command.as_std().get_program())
            });
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut client = Self { child, to, from, backend: 0, clock: 0 };
        let hello = client.line().await;
        let (backend, clock) = hello.split_once('\t').expect("process id and clock");
        client.backend = backend.parse().expect("a process id");
        client.clock = clock.parse().expect("seconds");
        client
    }

    /// The process id of the server's side.
    pub fn backend(&self) -> i32 {
        self.backend
    }

    pub fn clock(&self) -> i64 {
        self.clock
    }

    /// Sends a statement (one line) without waiting for its answer.
    pub async fn send(&mut self, sql: &str) {
        assert!(!sql.contains('\n'), "one line is one statement");
        self.to.write_all(format!("{sql}\n").as_bytes()).await.expect("the client reads");
        self.to.flush().await.expect("the client reads");
    }

    pub async fn reply(&mut self) -> Reply {
        let line = self.line().await;
        match line.split_once('\t') {
            Some(("ok", value)) => Ok(value.to_owned()),
            Some(("error", code)) => Err(code.to_owned()),
            _ => panic!("the client says {line:?}"),
        }
    }

    /// Sends a statement and waits for its answer.
    pub async fn ask(&mut self, sql: &str) -> Reply {
        self.send(sql).await;
        self.reply().await
    }

    /// SIGSTOP: the process does nothing from now on, its connection stays open.
    pub async fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
        let start = Instant::now();
        let stat = format!("/proc/{}/stat", self.pid());
        // The state follows the program's name in parentheses.
        while !fs::read_to_string(&stat).expect("the client runs").contains(") T ") {
            assert!(start.elapsed() < PATIENCE, "the client does not stop");
            tokio::task::yield_now().await;
        }
    }

    /// SIGCONT.
    pub fn wake(&self) {
        self.signal(Signal::SIGCONT);
    }

    /// SIGKILL: no farewell to the server.
    pub async fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().await.expect("the client ends");
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the client runs");
    }

    fn pid(&self) -> Pid {
        let pid = self.child.id().expect("the client runs");
        Pid::from_raw(pid.try_into().expect("a process id"))
    }

    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(PATIENCE, self.from.next_line()).await;
        line.expect("the client answers in time").expect("a pipe").expect("the client goes on")
    }
}
