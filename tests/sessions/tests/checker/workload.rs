//! Eight sessions of two nodes write under the token that their node heard of last, which often is an old one, while the nodes take the
//! lease from each other.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use lock_ext_sessions::{Answer, Db, LEVELS, PgError, STALE, Session};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::dice::Dice;
use super::node::{NODES, Node, TTL};
use super::writes::{LAST_CALLS, LEASE, STATEMENTS, WRITES, fence};

const SESSIONS: usize = 8;

/// Serialization failure, deadlock, lock timeout: the sessions meet in the tables, too.
const CONFLICTS: [&str; 3] = ["40001", "40P01", "55P03"];

/// What the sessions saw.
#[derive(Debug, Default)]
pub struct Tally {
    pub refused_at_statement: usize,
    /// At COMMIT or at PREPARE TRANSACTION.
    pub refused_at_commit: usize,
    /// In a message that holds its transaction as a whole, so that it is not seen when.
    pub refused_as_a_whole: usize,
    pub conflicts: usize,
    /// Blocks that wrote something and committed.
    pub levels: BTreeMap<&'static str, usize>,
    pub prepared: usize,
    pub held: usize,
    /// Granted, used and committed in one transaction.
    pub tenures: usize,
    /// The transactions that have to be in the log.
    pub committed: HashSet<i64>,
    /// Failed, perhaps not as a whole.
    pub in_part: HashSet<i64>,
}

pub struct Workload {
    stop: Arc<AtomicBool>,
    tally: Arc<Mutex<Tally>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Workload {
    pub async fn start(db: &Db, seed: u64) -> Self {
        let stop: Arc<AtomicBool> = Arc::default();
        let tally: Arc<Mutex<Tally>> = Arc::default();
        let heard: Arc<[AtomicI64; NODES.len()]> = Arc::default();
        let mut seeds = Dice(seed);
        let mut tasks = Vec::new();
        for (number, name) in NODES.into_iter().enumerate() {
            let (session, dice) = (db.session().await, Dice(seeds.next()));
            let node =
                Node { name, number, session, dice, heard: heard.clone(), stop: stop.clone() };
            tasks.push(tokio::spawn(node.run()));
        }
        for number in 0..SESSIONS {
            let session = db.session().await;
            session.sql("SET lock_timeout = '1s'").await.expect("a setting");
            // Longer and shorter ways from the last check to the end of a commit.
            let flush = if number < SESSIONS / 2 { "on" } else { "off" };
            session.sql(&format!("SET synchronous_commit = {flush}")).await.expect("a setting");
            let writer = Writer {
                number: number as i64,
                node: number % NODES.len(),
                session,
                dice: Dice(seeds.next()),
                heard: heard.clone(),
                stop: stop.clone(),
                tally: tally.clone(),
                transactions: 0,
                hurries: false,
                rows: 0,
                prefix: db.name().to_owned(),
            };
            tasks.push(tokio::spawn(writer.run()));
        }
        Self { stop, tally, tasks }
    }

    pub fn so_far(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("nobody panics while counting")
    }

    /// Somebody met an error that should not be; [`Workload::stop`] tells which.
    pub fn is_broken(&self) -> bool {
        self.tasks.iter().any(JoinHandle::is_finished)
    }

    pub async fn stop(self) -> Tally {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("nobody met an error that should not be");
        }
        let tally = Arc::into_inner(self.tally).expect("the tasks are gone");
        tally.into_inner().expect("no task panicked")
    }
}

/// A session of a node's that writes.
struct Writer {
    number: i64,
    node: usize,
    session: Session,
    dice: Dice,
    heard: Arc<[AtomicI64; NODES.len()]>,
    stop: Arc<AtomicBool>,
    tally: Arc<Mutex<Tally>>,
    transactions: i64,
    /// Makes no pauses in this transaction.
    hurries: bool,
    /// Rows that it has made up.
    rows: usize,
    prefix: String,
}

/// When an error was met.
#[derive(Clone, Copy)]
enum Moment {
    Statement,
    Commit,
    Unknown,
}

impl Writer {
    async fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            let token = self.token();
            if token == 0 {
                sleep(Duration::from_millis(5)).await;
                continue;
            }
            self.transactions += 1;
            self.hurries = self.dice.one_in(2);
            let in_order = match self.dice.below(20) {
                0..3 => self.statement(token).await,
                3..5 => self.message(token).await,
                5 | 6 => self.tenure().await,
                _ => self.block(token).await,
            };
            // It goes on with the same token if its node has heard of no other.
            if !in_order {
                sleep(self.dice.up_to(50)).await;
            }
        }
    }

    /// What the node heard last; now and then another node's token or nobody's.
    fn token(&mut self) -> i64 {
        let node = if self.dice.one_in(20) { 1 - self.node } else { self.node };
        let token = self.heard[node].load(Ordering::Relaxed);
        if token > 0 && self.dice.one_in(40) { token + 1 } else { token }
    }

    /// In autocommit.
    async fn statement(&mut self, token: i64) -> bool {
        let write = &STATEMENTS[self.dice.below(STATEMENTS.len())];
        let sql = self.filled(write.sql, write.kind, token);
        match self.session.sql(&sql).await {
            Ok(()) => self.committed(true),
            Err(error) => {
                self.tally(|tally, id| {
                    tally.in_part.insert(id);
                });
                self.failed(error, Moment::Unknown)
            }
        }
    }

    /// Several statements in one message are one transaction.
    async fn message(&mut self, token: i64) -> bool {
        let alone = self.dice.one_in(3);
        let mut sql = if alone { String::new() } else { fence(token, false) };
        for _ in 0..=self.dice.below(2) {
            sql += &self.noted(alone, token);
            sql += ";";
        }
        match self.session.sql(&sql).await {
            Ok(()) => self.committed(true),
            Err(error) => self.failed(error, Moment::Unknown),
        }
    }

    /// Acquired, used and perhaps released in one transaction.
    async fn tenure(&mut self) -> bool {
        let level = self.begin().await;
        let granted = async {
            let Some(token) = self.session.acq(LEASE, NODES[self.node], TTL).await? else {
                return Ok(None);
            };
            let sql = fence(token, false) + &self.noted(false, token);
            self.session.sql(&sql).await?;
            if self.dice.one_in(2) {
                self.session.rel(LEASE, token).await?;
            }
            Ok(Some(token))
        }
        .await;
        match granted {
            Ok(Some(token)) => {
                let is_done = self.commit(level, true).await;
                if is_done {
                    self.heard[self.node].store(token, Ordering::Relaxed);
                    self.tally(|tally, _| tally.tenures += 1);
                }
                is_done
            }
            Ok(None) => {
                self.session.rollback().await;
                false
            }
            Err(error) => self.broken_off(error).await,
        }
    }

    async fn block(&mut self, token: i64) -> bool {
        let level = self.begin().await;
        let alone = self.dice.one_in(3);
        let hold = !alone && self.dice.one_in(30);
        let prepare = self.dice.one_in(40);
        let remains = match self.body(token, alone, hold, prepare).await {
            Ok(remains) => remains,
            Err(error) => return self.broken_off(error).await,
        };
        sleep(self.pause()).await;
        if self.dice.one_in(20) {
            self.session.rollback().await;
            return true;
        }
        let is_done = if prepare {
            self.prepare(level, remains).await
        } else {
            self.commit(level, remains).await
        };
        self.tally(|tally, _| tally.held += usize::from(is_done && hold && remains));
        is_done
    }

    /// Gives whether a write remains that no savepoint has taken back.
    async fn body(
        &mut self,
        mut token: i64,
        alone: bool,
        hold: bool,
        prepare: bool,
    ) -> Answer<bool> {
        if !alone {
            self.session.sql(&fence(token, hold)).await?;
        }
        let mut remains = false;
        for _ in 0..=self.dice.below(3) {
            let sql = self.noted(alone, token);
            let savepoint = self.dice.one_in(3);
            if savepoint {
                self.session.sql("SAVEPOINT s").await?;
            }
            match self.session.sql(&sql).await {
                Err(error) if savepoint => {
                    self.session.sql("ROLLBACK TO s").await?;
                    self.failed(error, Moment::Statement);
                }
                Err(error) => return Err(error),
                Ok(()) if savepoint && self.dice.one_in(2) => {
                    sleep(self.pause()).await;
                    self.session.sql("ROLLBACK TO s").await?;
                }
                Ok(()) => remains = true,
            }
            if savepoint && self.dice.one_in(2) {
                self.session.sql("RELEASE s").await?;
            }
            // What was written under the first token still counts.
            if !alone && self.dice.one_in(10) {
                sleep(self.pause()).await;
                token = self.token();
                self.session.sql(&fence(token, false)).await?;
            }
        }
        // An extension cannot be prepared.
        let calls = if prepare { &LAST_CALLS[..2] } else { &LAST_CALLS };
        if let Some(call) = calls.get(self.dice.below(80)) {
            let sql = format!("INSERT INTO aside.put_off VALUES ($transaction); {call}");
            let sql = self.filled(&sql, "", token);
            self.session.sql(&sql).await?;
        }
        Ok(remains)
    }

    async fn begin(&mut self) -> &'static str {
        let level = LEVELS[self.dice.below(LEVELS.len())];
        self.session.begin(level).await;
        level
    }

    async fn commit(&mut self, level: &'static str, remains: bool) -> bool {
        if let Err(error) = self.session.commit().await {
            return self.failed(error, Moment::Commit);
        }
        self.at_level(level, remains);
        self.committed(remains)
    }

    async fn prepare(&mut self, level: &'static str, remains: bool) -> bool {
        let name = format!("{} {}", self.prefix, self.id());
        if let Err(error) = self.session.sql(&format!("PREPARE TRANSACTION '{name}'")).await {
            self.session.rollback().await;
            return self.failed(error, Moment::Commit);
        }
        sleep(self.pause()).await;
        if self.dice.one_in(4) {
            let end = self.session.sql(&format!("ROLLBACK PREPARED '{name}'")).await;
            end.expect("it was prepared");
            return true;
        }
        self.session.sql(&format!("COMMIT PREPARED '{name}'")).await.expect("it was prepared");
        self.at_level(level, remains);
        self.tally(|tally, _| tally.prepared += usize::from(remains));
        self.committed(remains)
    }

    /// A random write behind its note.
    fn noted(&mut self, alone: bool, token: i64) -> String {
        let write = loop {
            let write = &WRITES[self.dice.below(WRITES.len())];
            if write.alone || !alone {
                break write;
            }
        };
        let note = "INSERT INTO aside.note VALUES ($transaction, '$kind', $t); ";
        let note = if write.sql.contains("$transaction") { "" } else { note };
        self.filled(&format!("{note}{}", write.sql), write.kind, token)
    }

    fn filled(&mut self, sql: &str, kind: &str, token: i64) -> String {
        let row = |n: i64| (1_000 + n * SESSIONS as i64 + self.number).to_string();
        let old = row(self.dice.below(self.rows + 1) as i64);
        self.rows += 1;
        sql.replace("$transaction", &self.id().to_string())
            .replace("$kind", kind)
            .replace("$new", &row(self.rows as i64))
            .replace("$old", &old)
            .replace("$own", &(1 + self.number * 10 + self.dice.below(10) as i64).to_string())
            .replace("$v", &self.dice.below(1_000).to_string())
            .replace("$t", &token.to_string())
    }

    /// Often none, sometimes longer than the lease lives.
    fn pause(&mut self) -> Duration {
        match self.dice.below(4) {
            _ if self.hurries => Duration::ZERO,
            0 => Duration::ZERO,
            1 | 2 => self.dice.up_to(20),
            _ => self.dice.up_to(400),
        }
    }

    /// The number of the transaction, as its notes have it.
    fn id(&self) -> i64 {
        self.number * 1_000_000_000 + self.transactions
    }

    fn tally(&self, count: impl FnOnce(&mut Tally, i64)) {
        count(&mut self.tally.lock().expect("nobody panics while counting"), self.id());
    }

    fn at_level(&self, level: &'static str, remains: bool) {
        self.tally(|tally, _| *tally.levels.entry(level).or_default() += usize::from(remains));
    }

    fn committed(&self, remains: bool) -> bool {
        self.tally(|tally, id| {
            if remains {
                tally.committed.insert(id);
            }
        });
        true
    }

    async fn broken_off(&self, error: PgError) -> bool {
        self.session.rollback().await;
        self.failed(error, Moment::Statement)
    }

    fn failed(&self, error: PgError, moment: Moment) -> bool {
        let stale = error.code == STALE;
        assert!(stale || CONFLICTS.contains(&error.code.as_str()), "{error:?}");
        self.tally(|tally, _| match moment {
            _ if !stale => tally.conflicts += 1,
            Moment::Statement => tally.refused_at_statement += 1,
            Moment::Commit => tally.refused_at_commit += 1,
            Moment::Unknown => tally.refused_as_a_whole += 1,
        });
        false
    }
}
