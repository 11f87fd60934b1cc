//! Plays the story: starts two workers as processes, freezes the first in an open chunk, wakes it up.
//!
//! Each step waits for what the workers tell, or for what the server shows; only the freeze itself takes its time.

use crate::Error;
use crate::db::{Db, Parameters};
use crate::event::Event;
use crate::job::{FREEZE_FOR, FREEZE_IN_CHUNK, Job, LEASE, Protection};
use crate::tables::{self, Bill};
use crate::timeline::Teller;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::time::{Duration, Instant, sleep, timeout};

/// When a step takes longer than this, something is broken.
const PATIENCE: Duration = Duration::from_secs(60);

pub struct Run {
    pub protection: Protection,
    pub moments: Vec<Moment>,
    pub bill: Bill,
}

/// Something that happened, counted from the start of the run.
pub struct Moment {
    pub at: Duration,
    /// Counted from 1.
    pub worker: usize,
    pub what: What,
}

pub enum What {
    Told(Event),
    Frozen,
    /// The worker waits for row locks that the frozen one holds.
    Blocked,
    Woken {
        after: Duration,
    },
    /// The server shows it in line.
    InLine {
        place: i64,
    },
    Killed,
}

pub async fn play(protection: Protection) -> Result<Run, Error> {
    println!("\nThe daily reward, {}: two workers, one lease \"{LEASE}\"\n", protection.title());
    let db = tables::make(protection).await?;
    let mut stage = Stage::new(Teller::default());
    let job = |number, pause_in_chunk| {
        Job { holder: format!("worker-{number}"), protection, pause_in_chunk }.arguments()
    };

    let mut first = stage.start_worker(1, &job(1, Some(FREEZE_IN_CHUNK)))?;
    stage.until(|moment| moment.told_by(1, |event| matches!(event, Event::Granted { .. }))).await?;
    let second = stage.start_worker(2, &job(2, None))?;

    // The first worker has written its chunk, and only the COMMIT is missing.
    stage
        .until(|moment| moment.told_by(1, |event| matches!(event, Event::InOpenChunk { .. })))
        .await?;
    first.freeze().await?;
    let frozen_at = stage.note(1, What::Frozen);

    // Nobody renews its lease now, so it expires.
    stage.until(|moment| moment.told_by(2, |event| matches!(event, Event::Granted { .. }))).await?;
    match protection {
        // The second one goes on with the batch, ...
        Protection::Fence => {
            stage
                .until(|moment| moment.told_by(2, |event| matches!(event, Event::Paid { .. })))
                .await?;
        }
        // ... or waits at the first row that the frozen one has locked.
        Protection::LeaseOnly => {
            stage.until_blocked(&db, 2).await?;
            stage.note(2, What::Blocked);
        }
    }
    stage.until_time(frozen_at + FREEZE_FOR).await?;
    stage.note(1, What::Woken { after: stage.now() - frozen_at });
    first.wake()?;

    stage.until_all_ended().await?;
    drop((first, second));
    Ok(Run { protection, moments: stage.moments, bill: Bill::of(&db).await? })
}

impl Moment {
    pub fn told_by(&self, worker: usize, wanted: impl Fn(&Event) -> bool) -> bool {
        self.worker == worker && matches!(&self.what, What::Told(event) if wanted(event))
    }
}

/// A worker's process. It is killed when this is dropped.
pub struct Worker {
    child: Child,
    pid: Pid,
    stdin: ChildStdin,
}

impl Worker {
    /// Stops the process, which is waiting for our answer, and answers only then.
    async fn freeze(&mut self) -> Result<(), Error> {
        kill(self.pid, Signal::SIGSTOP)?;
        let stopped = async {
            while !self.is_stopped()? {
                sleep(Duration::from_millis(1)).await;
            }
            Ok::<(), Error>(())
        };
        timeout(PATIENCE, stopped).await.map_err(|_| "the worker did not stop")??;
        self.stdin.write_all(b"go on\n").await?;
        Ok(())
    }

    /// The state follows the program's name, which stands in parentheses.
    fn is_stopped(&self) -> Result<bool, Error> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid))?;
        Ok(stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
    }

    pub fn kill(&self) -> Result<(), Error> {
        Ok(kill(self.pid, Signal::SIGKILL)?)
    }

    fn wake(&self) -> Result<(), Error> {
        Ok(kill(self.pid, Signal::SIGCONT)?)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Only for a run that failed: otherwise it has ended by itself.
        let _ = self.child.start_kill();
    }
}

/// What the workers tell, in the order in which it arrives.
pub struct Stage {
    started_at: Instant,
    pub moments: Vec<Moment>,
    teller: Teller,
    /// No event means that the worker has ended.
    hear: mpsc::UnboundedReceiver<(usize, Option<Event>)>,
    ears: mpsc::UnboundedSender<(usize, Option<Event>)>,
    running: usize,
}

impl Stage {
    pub fn new(teller: Teller) -> Self {
        let (ears, hear) = mpsc::unbounded_channel();
        Self { started_at: Instant::now(), moments: Vec::new(), teller, hear, ears, running: 0 }
    }

    pub fn start_worker(&mut self, number: usize, arguments: &[String]) -> Result<Worker, Error> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pid = child.id().ok_or("the worker ended at once")?;
        let stdin = child.stdin.take().ok_or("the worker has no standard input")?;
        let stdout = child.stdout.take().ok_or("the worker has no standard output")?;
        let ears = self.ears.clone();
        tokio::spawn(async move {
            let mut lines = BufReader::new(stdout).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                let event = serde_json::from_str(&line)
                    .unwrap_or_else(|_| Event::Failed { why: format!("told nonsense: {line}") });
                let _ = ears.send((number, Some(event)));
            }
            let _ = ears.send((number, None));
        });
        self.running += 1;
        Ok(Worker { child, pid: Pid::from_raw(pid.try_into()?), stdin })
    }

    fn now(&self) -> Duration {
        self.started_at.elapsed()
    }

    pub fn note(&mut self, worker: usize, what: What) -> Duration {
        let at = self.now();
        let moment = Moment { at, worker, what };
        for line in self.teller.tell(&moment) {
            println!("{line}");
        }
        self.moments.push(moment);
        at
    }

    /// Takes in the next thing that a worker tells. None when one ended.
    async fn next(&mut self) -> Result<Option<&Moment>, Error> {
        let (worker, event) = self.hear.recv().await.ok_or("all workers are gone")?;
        let Some(event) = event else {
            self.running -= 1;
            return Ok(None);
        };
        if let Event::Failed { why } = &event {
            return Err(format!("number {worker}: {why}").into());
        }
        self.note(worker, What::Told(event));
        Ok(self.moments.last())
    }

    pub async fn until(&mut self, wanted: impl Fn(&Moment) -> bool) -> Result<(), Error> {
        let found = async {
            loop {
                match self.next().await? {
                    Some(moment) if wanted(moment) => return Ok::<(), Error>(()),
                    Some(_) => {}
                    None => return Err("a worker ended before its time".into()),
                }
            }
        };
        timeout(PATIENCE, found).await.map_err(|_| "the workers are silent")?
    }

    /// Listens until the run is so old.
    async fn until_time(&mut self, age: Duration) -> Result<(), Error> {
        while let Some(left) = age.checked_sub(self.now()) {
            if let Ok(heard) = timeout(left, self.next()).await {
                heard?;
            }
        }
        Ok(())
    }

    /// Until the server shows that the worker's session waits for a lock of another one.
    async fn until_blocked(&mut self, db: &Db, worker: usize) -> Result<(), Error> {
        let blocked = "SELECT EXISTS (SELECT FROM pg_stat_activity
                       WHERE application_name = $1 AND datname = current_database()
                       AND cardinality(pg_blocking_pids(pid)) > 0)";
        self.until_shown(db, blocked, &[&format!("worker-{worker}")]).await
    }

    /// Until the query gives true.
    pub async fn until_shown(
        &mut self,
        db: &Db,
        query: &str,
        parameters: Parameters<'_>,
    ) -> Result<(), Error> {
        let gives_up_at = Instant::now() + PATIENCE;
        while Instant::now() < gives_up_at {
            if db.client.query_one(query, parameters).await?.get(0) {
                return Ok(());
            }
            // Listens meanwhile.
            if let Ok(heard) = timeout(Duration::from_millis(20), self.next()).await {
                heard?;
            }
        }
        Err(format!("the server was expected to show this: {query}").into())
    }

    pub async fn until_all_ended(&mut self) -> Result<(), Error> {
        let ended = async {
            while self.running > 0 {
                self.next().await?;
            }
            Ok::<(), Error>(())
        };
        timeout(PATIENCE, ended).await.map_err(|_| "the workers do not end")??;
        if let Some(line) = self.teller.rest() {
            println!("{line}");
        }
        Ok(())
    }
}
