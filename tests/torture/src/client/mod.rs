//! A client: a process of its own, with a connection for its work and one for its heartbeat, and a deadline of its own as the
//! README's chapter on the heartbeat asks for. A naive one looks at none of that, and goes on until it is refused.

mod conn;
mod desk;
mod tenure;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

pub use conn::{Conn, Failure};
use desk::{Desk, PATIENCE, call_for, call_on, in_time, settle, undone_if_refused};
pub use tenure::Tenure;

use crate::control::Guard;
use crate::dice::Dice;
use crate::history::{Call, Log, Micros, Op, Outcome, Stage, UNDONE, What, now};
use crate::workload::Workload;

/// What a client is started with, as JSON in its arguments.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Orders {
    pub id: String,
    /// Unlike that of any other client: its elements of the set are not those of another.
    pub number: i64,
    pub workload: Workload,
    pub guard: Guard,
    pub seed: u64,
    pub naive: bool,
    /// One of the batch goes on from what it remembers.
    pub careless: bool,
    pub port: u16,
    pub log: PathBuf,
    pub until: Micros,
}

pub fn main(orders: &str) {
    // So that none is left, not even a stopped one, when the program is gone.
    set_pdeathsig(Signal::SIGKILL).expect("a signal");
    let orders: Orders = serde_json::from_str(orders).expect("orders");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut node = Node::new(orders);
        while now() < node.orders.until {
            let workload = node.orders.workload;
            workload.turn(&mut node).await;
        }
    });
    // Not by dropping the runtime, which would wait for what is cut off.
    std::process::exit(0);
}

pub struct Node {
    pub orders: Orders,
    pub dice: Dice,
    desk: Arc<Desk>,
    work: Conn,
    heart: Arc<Mutex<Conn>>,
    /// The heartbeat's connection has synchronous_commit = off.
    lazy: bool,
    added: i64,
}

impl Node {
    fn new(orders: Orders) -> Self {
        let mut dice = Dice::new(orders.seed);
        let log = Log::create(&orders.log).expect("a log");
        let lazy = dice.one_in(2);
        let work = Conn::new(orders.port, &format!("{}-work", orders.id), false, orders.until);
        let heart = Conn::new(orders.port, &format!("{}-heart", orders.id), lazy, orders.until);
        Self {
            desk: Arc::new(Desk::new(&orders.id, log)),
            work,
            heart: Arc::new(Mutex::new(heart)),
            dice,
            lazy,
            added: 0,
            orders,
        }
    }

    /// A number that nobody has added yet.
    pub fn new_element(&mut self) -> i64 {
        self.added += 1;
        self.orders.number * 100_000 + self.added
    }

    pub async fn rest(&mut self, from: u64, to: u64) {
        let time = self.dice.millis(from, to);
        tokio::time::sleep(time).await;
    }

    /// One call in autocommit on the connection for work.
    pub async fn call(
        &mut self,
        call: Call,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
        read: fn(&Row) -> Option<i64>,
    ) -> Outcome {
        let id = self.desk.next_id();
        call_on(&self.desk, &mut self.work, id, call, sql, params, read).await
    }

    /// For what is not an operation of the history: progress, the set as it is.
    pub async fn row(&mut self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Option<Row> {
        let client = self.work.get().await?;
        match in_time(client.0.query_one(sql, params)).await {
            Ok(row) => Some(row),
            Err(_) => {
                self.work.close();
                None
            }
        }
    }

    /// Asks for the lease, and begins its heartbeat. Who does not hear the answer asks once more, with the same request.
    pub async fn acquire(&mut self, lease: &str, ttl: Micros, wait: Micros) -> Option<Tenure> {
        let request = format!("{:016x}{:016x}", self.dice.throw(), self.dice.throw());
        let asked = now();
        // Some hang up before they can have heard anything.
        let is_hasty = wait == 0 && self.dice.one_in(8);
        let patience = if is_hasty { self.dice.millis(0, 3) } else { PATIENCE };
        // A grant is durable all the same.
        let is_lazy = self.dice.one_in(3);
        if is_lazy && !self.sets("SET synchronous_commit = off").await {
            return None;
        }
        let (first, mut outcome) = self.ask_for(lease, ttl, wait, &request, None, patience).await;
        if outcome == Outcome::Unknown && wait == 0 {
            (_, outcome) = self.ask_for(lease, ttl, wait, &request, Some(first), PATIENCE).await;
        }
        if is_lazy && !matches!(outcome, Outcome::Unknown) {
            // Or on another connection.
            if !self.sets("RESET synchronous_commit").await {
                self.work.close();
            }
        }
        let Outcome::Ok { answer: Some(token) } = outcome else { return None };
        // With a wait nobody knows when the grant was: as late as the answer, and who is late is refused.
        let deadline = if wait > 0 { now() } else { asked } + ttl;
        Some(Tenure::begin(self, lease, token, ttl, deadline))
    }

    async fn sets(&mut self, sql: &str) -> bool {
        let Some(client) = self.work.get().await else { return false };
        let is_set = in_time(client.0.batch_execute(sql)).await.is_ok();
        if !is_set {
            self.work.close();
        }
        is_set
    }

    async fn ask_for(
        &mut self,
        lease: &str,
        ttl: Micros,
        wait: Micros,
        request: &str,
        again: Option<String>,
        patience: Duration,
    ) -> (String, Outcome) {
        let id = self.desk.next_id();
        let call = Call::Acquire { lease: lease.to_owned(), ttl, wait, again };
        let sql =
            "SELECT lease_acquire($1, $2, make_interval(secs => $3), make_interval(secs => $4),
                                        request => $5::text::uuid)";
        let (ttl, wait) = (ttl as f64 / 1e6, wait as f64 / 1e6);
        let holder = id.clone();
        let params: [&(dyn ToSql + Sync); 5] = [&lease, &holder, &ttl, &wait, &request];
        let (desk, work) = (&self.desk, &mut self.work);
        let outcome =
            call_for(desk, work, id.clone(), call, sql, &params, |row| row.get(0), patience).await;
        (id, outcome)
    }

    /// Draws a token in a transaction that is rolled back.
    pub async fn draw_and_undo(&mut self, lease: &str) {
        let id = self.desk.next_id();
        let Some(client) = self.work.get().await else { return };
        let backend = client.1;
        let op = self.desk.begin(id.clone(), backend, Call::Undone { lease: lease.to_owned() });
        let drawn = in_time(async {
            client.0.batch_execute("BEGIN").await?;
            let row =
                client.0.query_one("SELECT lease_acquire($1, $2, '1 s')", &[&lease, &id]).await?;
            client.0.batch_execute("ROLLBACK").await?;
            Ok(row.get(0))
        })
        .await;
        if matches!(self.settle(op, drawn, Stage::Statement), Outcome::Fail { .. }) {
            self.work.close();
        }
    }

    /// A transaction under the tenure's token: `statements`, the note that says so, and COMMIT. `statements` gives false where a
    /// comparison did not hold; then nothing is written.
    pub async fn write(
        &mut self,
        tenure: &Tenure,
        what: What,
        statements: impl AsyncFnOnce(&Client, &str) -> Result<bool, tokio_postgres::Error>,
    ) -> Outcome {
        let id = self.desk.next_id();
        let level = *self
            .dice
            .pick(&["READ COMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
            .expect("levels");
        let pause = self.pause_in_transaction(tenure);
        let guard = self.orders.guard;
        let Some(client) = self.work.get().await else { return Outcome::Unknown };
        let (lease, token) = (tenure.lease.clone(), tenure.token);
        let call = Call::Write { lease: lease.clone(), token, what };
        let op = self.desk.begin(id.clone(), client.1, call);
        tenure.writes(true);
        let written = in_time(async {
            client.0.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}")).await?;
            client.0.query(guard.carry(), &[&lease, &token]).await?;
            let note = "INSERT INTO note VALUES ($1, $2, $3)";
            client.0.execute(note, &[&id, &lease, &token]).await?;
            // Waits for others who do the same, after the check and before the commit.
            client.0.batch_execute("NOTIFY torture").await?;
            statements(&client.0, &id).await
        })
        .await;
        let mut beside = None;
        let written = match written {
            Ok(true) => self.call_within(tenure).await.map(|within| {
                beside = within;
                true
            }),
            other => other,
        };
        let outcome = match written {
            Ok(true) => {
                if !pause.is_zero() {
                    tenure.sleeps(true);
                    tokio::time::sleep(pause).await;
                    tenure.sleeps(false);
                }
                let client = self.work.open().expect("it was there");
                let ended = in_time(client.0.batch_execute("COMMIT")).await.map(|()| Some(1));
                let outcome = self.settle(op, ended, Stage::Commit);
                if let Some(beside) = beside {
                    self.desk.end(beside, undone_if_refused(&outcome));
                }
                outcome
            }
            Ok(false) => {
                let client = self.work.open().expect("it was there");
                let ended = in_time(client.0.batch_execute("ROLLBACK")).await;
                if ended.is_err() {
                    self.work.close();
                }
                self.desk.end(op, Outcome::Ok { answer: None })
            }
            Err(failure) => self.settle(op, Err(failure), Stage::Statement),
        };
        tenure.writes(false);
        if matches!(outcome, Outcome::Fail { .. })
            && let Some(client) = self.work.open()
            && in_time(client.0.batch_execute("ROLLBACK")).await.is_err()
        {
            self.work.close();
        }
        outcome
    }

    /// Some extend or release the lease in the transaction that they write in. That is decided when it commits; gives what is then to be noted.
    async fn call_within(&mut self, tenure: &Tenure) -> Result<Option<Op>, Failure> {
        if self.orders.guard != Guard::Fence || !self.dice.one_in(10) {
            return Ok(None);
        }
        let (lease, token, ttl) = (tenure.lease.clone(), tenure.token, tenure.ttl);
        let (call, sql) = if self.dice.one_in(3) {
            let call = Call::Release { lease: lease.clone(), token };
            tenure.give_up();
            (call, "SELECT lease_release($1, $2)")
        } else {
            let call = Call::Extend { lease: lease.clone(), token, ttl, durable: true };
            (call, "SELECT lease_extend($1, $2) IS NOT NULL")
        };
        let id = self.desk.next_id();
        let client = self.work.open().expect("it was there");
        let op = self.desk.begin(id, client.1, call);
        let is_extension = matches!(op.call, Call::Extend { .. });
        match in_time(client.0.query_one(sql, &[&lease, &token])).await {
            Ok(row) if row.get(0) => Ok(Some(op)),
            Ok(_) => {
                let answer = (!is_extension).then_some(0);
                self.desk.end(op, Outcome::Ok { answer });
                Ok(None)
            }
            Err(failure) => {
                let (code, at) = (failure.code.clone(), Stage::Statement);
                self.desk.end(op, Outcome::Fail { code, at });
                Err(failure)
            }
        }
    }

    /// Most transactions are quick. A naive client sometimes stops in the middle for longer than its lease lasts, as for a
    /// garbage collection: then its heartbeat stops as well.
    fn pause_in_transaction(&mut self, tenure: &Tenure) -> Duration {
        if self.orders.naive && self.dice.one_in(8) {
            Duration::from_micros((tenure.ttl + tenure.ttl / 4) as u64)
        } else if self.dice.one_in(4) {
            self.dice.millis(1, 250)
        } else {
            Duration::ZERO
        }
    }

    /// The same between two transactions.
    pub async fn pause_between(&mut self, tenure: &Tenure) {
        if self.orders.naive && self.dice.one_in(8) {
            tenure.sleeps(true);
            tokio::time::sleep(Duration::from_micros((tenure.ttl + tenure.ttl / 4) as u64)).await;
            tenure.sleeps(false);
        } else {
            self.rest(0, 60).await;
        }
    }

    /// One in its own transaction: whether the key is new, and if so the effect, too. `crash` is what a caller does who dies.
    /// `pause` comes before the COMMIT; `is_undone`: who is the first rolls it back, on purpose.
    pub async fn once(
        &mut self,
        key: &str,
        crash: crate::workload::Crash,
        pause: Duration,
        is_undone: bool,
    ) -> Outcome {
        use crate::workload::Crash;
        let id = self.desk.next_id();
        let Some(client) = self.work.get().await else { return Outcome::Unknown };
        let op = self.desk.begin(id.clone(), client.1, Call::Once { key: key.to_owned() });
        let first = in_time(async {
            client.0.batch_execute("BEGIN").await?;
            let first: bool = client.0.query_one("SELECT once($1)", &[&key]).await?.get(0);
            if first {
                client.0.execute("INSERT INTO effect VALUES ($1, $2)", &[&key, &id]).await?;
                let note = "INSERT INTO note VALUES ($1, '', 0)";
                client.0.execute(note, &[&id]).await?;
            }
            Ok(first)
        })
        .await;
        let first = match first {
            Ok(first) => first,
            Err(failure) => {
                let outcome = self.settle(op, Err(failure), Stage::Statement);
                self.work.close();
                return outcome;
            }
        };
        if crash == Crash::BeforeCommit {
            std::process::exit(9);
        }
        tokio::time::sleep(pause).await;
        let client = self.work.open().expect("it was there");
        if first && is_undone {
            if in_time(client.0.batch_execute("ROLLBACK")).await.is_err() {
                self.work.close();
            }
            let (code, at) = (UNDONE.to_owned(), Stage::Statement);
            return self.desk.end(op, Outcome::Fail { code, at });
        }
        let commit = in_time(client.0.batch_execute("COMMIT"));
        let ended = if let Crash::InCommit(after) = crash {
            tokio::select! {
                ended = commit => ended,
                () = tokio::time::sleep(after) => std::process::exit(9),
            }
        } else {
            commit.await
        };
        self.settle(op, ended.map(|()| Some(i64::from(first))), Stage::Commit)
    }

    fn settle(&mut self, op: Op, answer: Result<Option<i64>, Failure>, at: Stage) -> Outcome {
        settle(&self.desk, &mut self.work, op, answer, at)
    }
}
