use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use tokio::task::JoinHandle;
use tokio_postgres::types::{FromSql, ToSql};
use tokio_postgres::{Client, Config, NoTls, Row};

use crate::{Answer, PATIENCE, PAUSE};

type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A lease as `lease_status` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    pub state: String,
    pub holder: Option<String>,
    pub token: Option<i64>,
    pub expires_at: Option<SystemTime>,
    pub session_pid: Option<i32>,
    pub waiters: i64,
    pub writers: i64,
}

/// One connection. A clone is the same connection, to be moved into a call that runs beside the test.
#[derive(Clone)]
pub struct Session {
    client: Arc<Client>,
    pid: i32,
}

impl Session {
    /// `host` is the directory of a unix socket.
    pub async fn open(host: &Path, port: u16, database: &str, role: &str) -> Answer<Self> {
        let mut config = Config::new();
        config.host_path(host).port(port).user(role).dbname(database);
        // Who would wait for ever fails instead; a test that means a shorter time sets its own.
        config.options("-c statement_timeout=60s");
        Self::by(&config).await
    }

    /// However it is reached.
    pub async fn by(config: &Config) -> Answer<Self> {
        let (client, connection) = config.connect(NoTls).await?;
        // Ends with the connection, and that with the client. A lost connection is seen by whoever asks next.
        tokio::spawn(connection);
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
        Ok(Self { client: Arc::new(client), pid })
    }

    /// The process id of the server's side.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Runs a call beside the test, for calls that have to wait for somebody.
    pub fn beside<T, F>(&self, call: impl FnOnce(Self) -> F) -> JoinHandle<T>
    where
        F: Future<Output = T> + Send + 'static,
        T: Send + 'static,
    {
        tokio::spawn(call(self.clone()))
    }

    // SQL

    /// An error reaches the client before the server has let go of what the transaction had; the answer to
    /// the next message comes after that.
    async fn settled<T>(&self, answer: Result<T, tokio_postgres::Error>) -> Answer<T> {
        if answer.is_err() {
            // Fails if the connection is what was lost, which the answer says already.
            let _ = self.client.simple_query("").await;
        }
        Ok(answer?)
    }

    /// Statements without parameters, in the simple protocol.
    pub async fn sql(&self, sql: &str) -> Answer<()> {
        self.settled(self.client.batch_execute(sql).await).await
    }

    /// One statement; the number of rows that it changed or gave.
    pub async fn exec(&self, sql: &str, params: Params<'_>) -> Answer<u64> {
        self.settled(self.client.execute(sql, params).await).await
    }

    pub async fn rows(&self, sql: &str, params: Params<'_>) -> Answer<Vec<Row>> {
        self.settled(self.client.query(sql, params).await).await
    }

    /// The first column of all rows.
    pub async fn list<T>(&self, sql: &str, params: Params<'_>) -> Answer<Vec<T>>
    where
        T: for<'a> FromSql<'a>,
    {
        Ok(self.rows(sql, params).await?.iter().map(|row| row.get(0)).collect())
    }

    /// The only value of the only row.
    pub async fn one<T>(&self, sql: &str, params: Params<'_>) -> Answer<T>
    where
        T: for<'a> FromSql<'a>,
    {
        let rows = self.rows(sql, params).await?;
        assert_eq!(rows.len(), 1, "rows of {sql}");
        Ok(rows[0].get(0))
    }

    /// Waits until the condition, a boolean SQL expression, is true.
    pub async fn until(&self, condition: &str, params: Params<'_>) {
        let start = Instant::now();
        let query = format!("SELECT coalesce(({condition}), false)");
        while !self.one::<bool>(&query, params).await.expect("a condition") {
            assert!(start.elapsed() < PATIENCE, "never came true: {condition}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits until the other session waits in a call, with this event.
    pub async fn waits(&self, other: &Self, event: &str) {
        self.until(
            "SELECT wait_event = $2 FROM pg_stat_activity WHERE pid = $1",
            &[&other.pid, &event],
        )
        .await;
    }

    /// Waits until the other session waits for a lock that somebody has.
    pub async fn blocked(&self, other: &Self) {
        self.until("cardinality(pg_blocking_pids($1)) > 0", &[&other.pid]).await;
    }

    // The words of the cases

    pub async fn acq(&self, name: &str, holder: &str, ttl: &str) -> Answer<Option<i64>> {
        self.one("SELECT lease_acquire($1, $2, $3::text::interval)", &[&name, &holder, &ttl]).await
    }

    /// Stands in line for at most a minute.
    pub async fn acq_wait(&self, name: &str, holder: &str, ttl: &str) -> Answer<Option<i64>> {
        self.one(
            "SELECT lease_acquire($1, $2, $3::text::interval, wait => '1 min')",
            &[&name, &holder, &ttl],
        )
        .await
    }

    /// Acquires a lease that is bound to this session.
    pub async fn sacq(&self, name: &str, holder: &str) -> Answer<Option<i64>> {
        self.one("SELECT lease_acquire_session($1, $2)", &[&name, &holder]).await
    }

    pub async fn ext(&self, name: &str, token: i64) -> Answer<Option<SystemTime>> {
        self.one("SELECT lease_extend($1, $2)", &[&name, &token]).await
    }

    pub async fn rel(&self, name: &str, token: i64) -> Answer<bool> {
        self.one("SELECT lease_release($1, $2)", &[&name, &token]).await
    }

    pub async fn is_current(&self, name: &str, token: i64) -> Answer<bool> {
        self.one("SELECT lease_is_current($1, $2)", &[&name, &token]).await
    }

    pub async fn fence(&self, name: &str, token: i64) -> Answer<()> {
        self.exec("SELECT lease_fence($1, $2)", &[&name, &token]).await.map(drop)
    }

    /// A table `work(lease text, v int)` that the lease fences.
    pub async fn fenced_table(&self, lease: &str) {
        self.sql("CREATE TABLE work (lease text, v int)").await.expect("a table");
        self.exec("SELECT fence_attach('work', $1)", &[&lease]).await.expect("a fence");
    }

    /// A fenced write: a row of `work`, in a transaction of its own.
    pub async fn fw(&self, lease: &str, token: i64, v: i32) -> Answer<()> {
        self.sql("BEGIN").await?;
        let written = async {
            self.fence(lease, token).await?;
            self.exec("INSERT INTO work VALUES ($1, $2)", &[&lease, &v]).await?;
            self.sql("COMMIT").await
        }
        .await;
        if written.is_err() {
            // Fails if the connection is what was lost.
            let _ = self.sql("ROLLBACK").await;
        }
        written
    }

    /// What `lease_status` says about the lease.
    pub async fn info(&self, name: &str) -> Option<Status> {
        let rows = self
            .rows(
                "SELECT state::text, holder, token, expires_at, session_pid, waiters::int8, writers::int8
                 FROM lease_status WHERE name = $1",
                &[&name],
            )
            .await
            .expect("lease_status");
        assert!(rows.len() <= 1, "one row a lease");
        rows.first().map(|row| Status {
            state: row.get(0),
            holder: row.get(1),
            token: row.get(2),
            expires_at: row.get(3),
            session_pid: row.get(4),
            waiters: row.get(5),
            writers: row.get(6),
        })
    }

    /// All leases that are held, with their tokens.
    pub async fn held(&self) -> BTreeMap<String, i64> {
        let rows =
            self.rows("SELECT name, token FROM lease_status WHERE state = 'held'", &[]).await;
        rows.expect("lease_status").iter().map(|row| (row.get(0), row.get(1))).collect()
    }
}
