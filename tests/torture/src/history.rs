//! What happened: each operation with its start and its end, what was done to the servers meanwhile, and the servers' own log of
//! commits. A file of it has one JSON object a line, and can be read and checked again.
//!
//! An operation is `ok`, `fail` (it is certain that nothing happened) or `unknown`: that one stays open, as it may
//! still happen.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::sync::Mutex;

use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::control::Guard;

/// Microseconds of a clock that all processes of the machine share, and that nobody steps.
pub type Micros = i64;

pub fn now() -> Micros {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
    time.tv_sec() * 1_000_000 + time.tv_nsec() / 1_000
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "call")]
pub enum Call {
    /// Times in microseconds. The holder is the operation's id. `again`: the one with the same request that nobody heard the answer of.
    Acquire {
        lease: String,
        ttl: Micros,
        wait: Micros,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        again: Option<String>,
    },
    /// Acquired in a transaction that was rolled back, on purpose.
    Undone {
        lease: String,
    },
    /// Not durable: a heartbeat with `synchronous_commit = off`.
    Extend {
        lease: String,
        token: i64,
        ttl: Micros,
        durable: bool,
    },
    Release {
        lease: String,
        token: i64,
    },
    /// Nobody is to be granted it for so long.
    Complete {
        lease: String,
        token: i64,
        pause: Micros,
    },
    /// By an administrator: ends a grant or a completion, whoever has it.
    Force {
        lease: String,
    },
    IsCurrent {
        lease: String,
        token: i64,
    },
    /// A transaction that writes under the token, and a row of `note` with the operation's id.
    Write {
        lease: String,
        token: i64,
        what: What,
    },
    /// The register's value.
    Read,
    Once {
        key: String,
    },
}

/// What a fenced transaction writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "what")]
pub enum What {
    Entry,
    /// The register, if it is `old`.
    Swap {
        old: i64,
        new: i64,
    },
    /// An element of the set.
    Add {
        element: i64,
    },
    /// Players from..to of a round, with the checkpoint that says so.
    Pay {
        round: i64,
        from: i64,
        to: i64,
    },
}

/// Where a refusal came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    Statement,
    Commit,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
pub enum Outcome {
    /// A token, a value, 0 for false or 1 for true; none for NULL, or where a comparison did not hold.
    Ok {
        answer: Option<i64>,
    },
    Fail {
        code: String,
        at: Stage,
    },
    Unknown,
}

/// In the place of an SQLSTATE: rolled back on purpose.
pub const UNDONE: &str = "undone";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Op {
    pub id: String,
    /// The server's process.
    pub backend: i32,
    pub start: Micros,
    pub end: Option<Micros>,
    #[serde(flatten)]
    pub call: Call,
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The SQLSTATE of an error after which nobody knows the outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Op {
    pub fn lease(&self) -> Option<&str> {
        match &self.call {
            Call::Acquire { lease, .. }
            | Call::Undone { lease }
            | Call::Extend { lease, .. }
            | Call::Release { lease, .. }
            | Call::Complete { lease, .. }
            | Call::Force { lease }
            | Call::IsCurrent { lease, .. }
            | Call::Write { lease, .. } => Some(lease),
            Call::Read | Call::Once { .. } => None,
        }
    }

    pub fn answer(&self) -> Option<i64> {
        if let Outcome::Ok { answer } = self.outcome { answer } else { None }
    }

    pub fn is_ok(&self) -> bool {
        matches!(self.outcome, Outcome::Ok { .. })
    }

    pub fn is_unknown(&self) -> bool {
        self.outcome == Outcome::Unknown
    }

    /// It could happen until then.
    pub fn until(&self) -> Micros {
        if self.is_unknown() { Micros::MAX } else { self.end.unwrap_or(Micros::MAX) }
    }
}

/// Something that was done to the clients, the servers or the network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    pub start: Micros,
    pub end: Micros,
    pub kind: String,
    pub detail: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<Effect>,
}

/// What the checks have to know of an event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// The server's clock, by so many seconds.
    Clock(i64),
    /// What was not durable is gone.
    Crash,
    /// Another server goes on. From `dead` on the old one did nothing more, and before the event's end no client comes to the new one.
    FailOver { to: u32, dead: Micros, lost_tail: bool },
}

/// A committed transaction, as the server's log tells it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    /// The server, numbered by its turn.
    pub server: u32,
    pub lsn: i64,
    /// False: it was in the tail that was lost with the server.
    pub kept: bool,
    pub changes: Vec<Change>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    Lease { lease: String, token: i64, held: bool, holder: String },
    Note { op: String, lease: String, token: i64 },
}

/// Who stood in line at one moment, by their backends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    pub start: Micros,
    pub end: Micros,
    pub lease: String,
    /// As `lease_waiter` shows them, the first one first.
    pub shown: Vec<i32>,
    /// Who waits for whom, as PostgreSQL's lock manager says: the second one stands behind the first.
    pub behind: Vec<(i32, i32)>,
}

/// What the tables have at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Last {
    pub register: i64,
    pub set: Vec<i64>,
    /// How often each player of each round was paid.
    pub paid: Vec<(i64, i64, i64)>,
    /// Round, and the player who is next.
    pub checkpoint: (i64, i64),
    /// Key and operation of each effect.
    pub effects: Vec<(String, String)>,
    pub players: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub seed: u64,
    pub guard: Guard,
    pub start: Micros,
    pub seconds: u64,
    pub server: String,
    /// By their names; none in histories from before these were noted.
    #[serde(default)]
    pub workloads: Vec<String>,
    #[serde(default)]
    pub faults: Vec<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Head(Head),
    Op(Op),
    Event(Event),
    Commit(Commit),
    Seen(Seen),
    Last(Last),
}

#[derive(Clone, Debug)]
pub struct History {
    pub head: Head,
    /// By their starts.
    pub ops: Vec<Op>,
    pub events: Vec<Event>,
    /// In the order of their commits.
    pub commits: Vec<Commit>,
    pub seen: Vec<Seen>,
    pub last: Last,
}

impl History {
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut file = BufWriter::new(File::create(path)?);
        let mut line = |line: &Line| -> io::Result<()> {
            serde_json::to_writer(&mut file, line)?;
            file.write_all(b"\n")
        };
        line(&Line::Head(self.head.clone()))?;
        for event in &self.events {
            line(&Line::Event(event.clone()))?;
        }
        for op in &self.ops {
            line(&Line::Op(op.clone()))?;
        }
        for commit in &self.commits {
            line(&Line::Commit(commit.clone()))?;
        }
        for seen in &self.seen {
            line(&Line::Seen(seen.clone()))?;
        }
        line(&Line::Last(self.last.clone()))?;
        file.flush()
    }

    pub fn read(path: &Path) -> Result<Self, String> {
        let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let (mut head, mut last) = (None, None);
        let (mut ops, mut events, mut commits, mut seen) = (vec![], vec![], vec![], vec![]);
        for (number, line) in BufReader::new(file).lines().enumerate() {
            let wrong = |error: &dyn std::fmt::Display| {
                format!("{}, line {}: {error}", path.display(), number + 1)
            };
            let line = line.map_err(|error| wrong(&error))?;
            match serde_json::from_str(&line).map_err(|error| wrong(&error))? {
                Line::Head(line) => head = Some(line),
                Line::Last(line) => last = Some(line),
                Line::Op(line) => ops.push(line),
                Line::Event(line) => events.push(line),
                Line::Commit(line) => commits.push(line),
                Line::Seen(line) => seen.push(line),
            }
        }
        let whole = || format!("{} is not whole", path.display());
        Ok(Self {
            head: head.ok_or_else(whole)?,
            last: last.ok_or_else(whole)?,
            ops,
            events,
            commits,
            seen,
        })
    }
}

/// A client's own file. A line is written when an operation begins, before anything is sent, and another one when it
/// is decided: what a killed client leaves is right.
pub struct Log {
    file: Mutex<File>,
}

impl Log {
    pub fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file: Mutex::new(file) })
    }

    pub fn write(&self, op: &Op) {
        let mut line = serde_json::to_vec(op).expect("an operation");
        line.push(b'\n');
        self.file.lock().expect("nobody panics here").write_all(&line).expect("a file of ours");
    }
}

/// The operations of one client's file. The last line about one is right; the very last one may be cut off.
pub fn read_log(path: &Path) -> io::Result<Vec<Op>> {
    let mut ops: Vec<Op> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for line in BufReader::new(File::open(path)?).lines() {
        let Ok(op) = serde_json::from_str::<Op>(&line?) else { continue };
        match places.get(&op.id) {
            Some(&place) => ops[place] = op,
            None => {
                places.insert(op.id.clone(), ops.len());
                ops.push(op);
            }
        }
    }
    Ok(ops)
}
