//! The batch of the demo on several nodes: every player is paid a daily reward, in chunks, by whoever holds the lease.
//! Beside it, clients that do nothing but acquire and release another lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::book::Book;
use super::client::{Db, Hosts, Parameters, Trouble};

pub const PLAYERS: i32 = 40_000;
pub const REWARD: &str = "daily-reward";
pub const BEACON: &str = "beacon";

/// What a chunk costs, until all that was to happen has happened.
const PACE: Duration = Duration::from_millis(60);
const CHUNK: i32 = 10;
const LAST_CHUNKS: i32 = 1_000;

const TIME_TO_LIVE: &str = "2 s";
const HEARTBEAT: Duration = Duration::from_millis(600);
const ASK_AGAIN: Duration = Duration::from_millis(100);

const TABLES: &str = "
    CREATE EXTENSION lock_ext;
    CREATE TABLE player (player_id int PRIMARY KEY, balance bigint NOT NULL DEFAULT 0);
    CREATE TABLE payment (
        payment_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        player_id  int NOT NULL,
        token      bigint NOT NULL,
        attempt    bigint NOT NULL
    );
    CREATE TABLE granted (token bigint NOT NULL);
    CREATE TABLE progress (after_player int NOT NULL);
    INSERT INTO progress VALUES (0);
";

/// Without the fence and the checkpoint: the lease alone, and a worker that believes what it was told. To see the test fail.
fn naive() -> bool {
    std::env::var_os("LOCK_EXT_HA_NAIVE").is_some()
}

pub async fn make_tables(hosts: &Hosts) {
    let db = Db::connect(hosts, "test").await.expect("a leader");
    db.run(TABLES).await.expect("tables");
    let players = "INSERT INTO player SELECT generate_series(1, $1::int)";
    db.execute(players, &[&PLAYERS]).await.expect("players");
    if !naive() {
        let attach = "SELECT fence_attach('player', $1::text), fence_attach('payment', $1::text)";
        db.execute(attach, &[&REWARD]).await.expect("two fences");
    }
}

/// Clients that run until they are stopped, or the batch is completed.
pub struct Crowd {
    orders: Arc<Orders>,
    clients: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Orders {
    stop: AtomicBool,
    hurry: AtomicBool,
}

impl Crowd {
    /// Three nodes of the batch, and two clients of the other lease.
    pub fn outside(hosts: &Hosts, book: &Arc<Book>) -> Self {
        Self::start(hosts, book, false, &["node-1", "node-2", "node-3"])
    }

    /// One node of the batch and two clients of the other lease, on a machine that is cut off.
    pub fn inside(hosts: &Hosts, book: &Arc<Book>) -> Self {
        Self::start(hosts, book, true, &["inside"])
    }

    fn start(hosts: &Hosts, book: &Arc<Book>, inside: bool, names: &[&str]) -> Self {
        let orders = Arc::new(Orders::default());
        let client = |name: &str| Node {
            name: name.into(),
            hosts: hosts.clone(),
            book: Arc::clone(book),
            orders: Arc::clone(&orders),
            inside,
            token: None,
            after_player: 0,
        };
        let mut clients: Vec<_> =
            names.iter().map(|name| tokio::spawn(client(name).work())).collect();
        clients.extend((0..2).map(|_| tokio::spawn(client(BEACON).take_and_release())));
        Self { orders, clients }
    }

    /// No more pauses: the rest of the batch in large chunks.
    pub fn hurry(&self) {
        self.orders.hurry.store(true, Ordering::Relaxed);
    }

    /// Waits until the batch is completed. The panic of a client is the test's.
    pub async fn completed(mut self) {
        let takers = self.clients.split_off(self.clients.len() - 2);
        for client in self.clients {
            client.await.expect("a client without a panic");
        }
        self.orders.stop.store(true, Ordering::Relaxed);
        for client in takers {
            client.await.expect("a client without a panic");
        }
    }

    pub async fn stop(self) {
        self.orders.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.expect("a client without a panic");
        }
    }
}

struct Node {
    name: String,
    hosts: Hosts,
    book: Arc<Book>,
    orders: Arc<Orders>,
    inside: bool,
    /// Kept over a lost connection: only the database knows whether it is still good.
    token: Option<i64>,
    after_player: i32,
}

impl Node {
    fn stopped(&self) -> bool {
        self.orders.stop.load(Ordering::Relaxed)
    }

    async fn work(mut self) {
        while !self.stopped() {
            match self.batch().await {
                Ok(()) => return,
                Err(Trouble::Refused) => self.token = None,
                Err(Trouble::Lost) => sleep(ASK_AGAIN).await,
            }
        }
    }

    /// One connection's share of the work: until it is lost, the token is refused, or all are paid.
    async fn batch(&mut self) -> Result<(), Trouble> {
        let db = Db::connect(&self.hosts, &self.name).await?;
        let token = match self.token {
            Some(token) => token,
            None => match self.acquire(&db).await? {
                Some(token) => token,
                None => return Ok(()),
            },
        };
        let heartbeat = Heartbeat::start(self.hosts.clone(), token);
        if !naive() {
            db.list::<i32>("SELECT * FROM lease_evict($1, $2)", &[&REWARD, &token]).await?;
            let read = "SELECT coalesce((lease_checkpoint($1) ->> 'after_player')::int, 0)";
            self.after_player = db.value(read, &[&REWARD]).await?;
        }
        while self.after_player < PLAYERS {
            if self.stopped() {
                return Ok(());
            }
            if heartbeat.lost() {
                return Err(Trouble::Refused);
            }
            let hurry = self.orders.hurry.load(Ordering::Relaxed);
            let chunk = if hurry { LAST_CHUNKS } else { CHUNK };
            let last = (self.after_player + chunk).min(PLAYERS);
            self.pay(&db, token, last).await?;
            self.after_player = last;
            if !hurry {
                sleep(PACE).await;
            }
        }
        Ok(())
    }

    /// Asks for the lease until it is ours, or there is nothing left to do.
    async fn acquire(&mut self, db: &Db) -> Result<Option<i64>, Trouble> {
        let acquire = "SELECT lease_acquire($1, $2, $3::text::interval)";
        let state = "SELECT coalesce((SELECT state FROM lease_status WHERE name = $1), 'free')";
        while !self.stopped() {
            let parameters: Parameters = &[&REWARD, &self.name, &TIME_TO_LIVE];
            if let Some(token) = db.value::<Option<i64>>(acquire, parameters).await? {
                let place = self.book.told(REWARD, token, self.inside);
                self.book.committed(place);
                self.token = Some(token);
                if naive() {
                    self.after_player = db.value("SELECT after_player FROM progress", &[]).await?;
                }
                return Ok(Some(token));
            }
            if db.value::<String>(state, &[&REWARD]).await? == "completed" {
                return Ok(None);
            }
            sleep(ASK_AGAIN).await;
        }
        Ok(None)
    }

    /// One transaction: the payments, how far the batch came, and with the last of them its end.
    async fn pay(&self, db: &Db, token: i64, last: i32) -> Result<(), Trouble> {
        let (first, attempt) = (self.after_player + 1, self.book.attempt());
        db.run("BEGIN").await?;
        if !naive() {
            db.execute("SELECT lease_fence($1, $2)", &[&REWARD, &token]).await?;
        }
        let credit = "UPDATE player SET balance = balance + 1 WHERE player_id BETWEEN $1 AND $2";
        db.execute(credit, &[&first, &last]).await?;
        let record = "INSERT INTO payment (player_id, token, attempt)
                      SELECT player_id, $3, $4 FROM generate_series($1::int, $2) AS player_id";
        db.execute(record, &[&first, &last, &token, &attempt]).await?;
        if naive() {
            db.execute("UPDATE progress SET after_player = $1", &[&last]).await?;
        } else {
            let save =
                "SELECT lease_checkpoint($1, $2, jsonb_build_object('after_player', $3::int))";
            db.execute(save, &[&REWARD, &token, &last]).await?;
        }
        if last == PLAYERS {
            db.execute("SELECT lease_complete($1, $2)", &[&REWARD, &token]).await?;
        }
        db.run("COMMIT").await?;
        self.book.paid(attempt, last - first + 1, self.inside);
        Ok(())
    }

    /// The clients of the other lease. The token is told before its transaction commits, if it ever does.
    async fn take_and_release(self) {
        while !self.stopped() {
            if self.grants().await.is_err() {
                sleep(ASK_AGAIN).await;
            }
        }
    }

    async fn grants(&self) -> Result<(), Trouble> {
        let db = Db::connect(&self.hosts, &self.name).await?;
        let acquire = "SELECT lease_acquire($1, $2, $3::text::interval)";
        while !self.stopped() {
            db.run("BEGIN").await?;
            let parameters: Parameters = &[&BEACON, &self.name, &TIME_TO_LIVE];
            if let Some(token) = db.value::<Option<i64>>(acquire, parameters).await? {
                let place = self.book.told(BEACON, token, self.inside);
                db.execute("INSERT INTO granted VALUES ($1)", &[&token]).await?;
                db.run("COMMIT").await?;
                self.book.committed(place);
                db.execute("SELECT lease_release($1, $2)", &[&BEACON, &token]).await?;
            } else {
                db.run("COMMIT").await?;
            }
            sleep(Duration::from_millis(30)).await;
        }
        Ok(())
    }
}

/// Extends the lease until it is lost, on a connection of its own, to whoever is the leader.
struct Heartbeat(JoinHandle<()>);

impl Heartbeat {
    fn start(hosts: Hosts, token: i64) -> Self {
        Self(tokio::spawn(async move {
            while beat(&hosts, token).await.is_err() {
                sleep(ASK_AGAIN).await;
            }
        }))
    }

    fn lost(&self) -> bool {
        self.0.is_finished()
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn beat(hosts: &Hosts, token: i64) -> Result<(), Trouble> {
    let db = Db::connect(hosts, "heartbeat").await?;
    db.run("SET synchronous_commit = off").await?;
    let extend = "SELECT lease_extend($1, $2) IS NOT NULL";
    while db.value(extend, &[&REWARD, &token]).await? {
        sleep(HEARTBEAT).await;
    }
    Ok(())
}
