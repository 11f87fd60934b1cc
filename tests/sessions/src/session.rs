use std::sync::Arc;
use std::time::SystemTime;

use futures_util::future::try_join_all;
use tokio::task::JoinHandle;
use tokio_postgres::types::{FromSql, ToSql};
use tokio_postgres::{Client, Config, NoTls, Row};

use crate::{Answer, PgError, Way};

/// A point in time of the database's clock, exact to the microsecond.
pub type Expiry = SystemTime;

type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A lease as `lease_status` shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    pub state: String,
    pub holder: Option<String>,
    pub holder_role: Option<String>,
    pub token: Option<i64>,
    pub expires_at: Option<Expiry>,
    /// Seconds.
    pub remaining: Option<f64>,
}

/// A row of `lease_extend_many`.
#[derive(Clone, Debug, PartialEq)]
pub struct Renewed {
    pub name: String,
    pub token: i64,
    pub expires_at: Option<Expiry>,
}

/// One connection. A clone is the same connection, to be moved into a call that runs beside the test.
#[derive(Clone)]
pub struct Session {
    client: Arc<Client>,
    pid: i32,
}

impl Session {
    pub(crate) async fn to(database: &str, role: Option<&str>) -> Self {
        let client = connect(database, role).await;
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).await.expect("an answer").get(0);
        Self { client: Arc::new(client), pid }
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

    /// Plans are parallel from now on wherever they can be. The setting has another name from PostgreSQL 16 on.
    pub async fn force_parallel(&self) {
        self.sql(
            "SELECT set_config(CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'force_parallel_mode'
                                    ELSE 'debug_parallel_query' END, 'on', false)",
        )
        .await
        .expect("a setting");
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

    /// Runs one prepared statement over and over, as a driver that pipelines does: each run is a
    /// transaction of its own.
    pub async fn many(&self, sql: &str, runs: &[Vec<&(dyn ToSql + Sync)>]) -> Answer<Vec<Row>> {
        let statement = self.client.prepare(sql).await?;
        let answers =
            try_join_all(runs.iter().map(|params| self.client.query(&statement, params))).await?;
        Ok(answers.into_iter().flatten().collect())
    }

    pub async fn begin(&self, level: &str) {
        self.sql(&format!("BEGIN ISOLATION LEVEL {level}")).await.expect("BEGIN");
    }

    pub async fn commit(&self) -> Answer<()> {
        self.sql("COMMIT").await
    }

    pub async fn rollback(&self) {
        self.sql("ROLLBACK").await.expect("ROLLBACK");
    }

    /// The database's clock.
    pub async fn clock(&self) -> Expiry {
        self.one("SELECT clock_timestamp()", &[]).await.expect("the clock")
    }

    // The words of the cases

    pub async fn acq(&self, name: &str, holder: &str, ttl: &str) -> Answer<Option<i64>> {
        self.one("SELECT lease_acquire($1, $2, $3::text::interval)", &[&name, &holder, &ttl]).await
    }

    pub async fn acq_as_request(
        &self,
        name: &str,
        holder: &str,
        ttl: &str,
        request: &str,
    ) -> Answer<Option<i64>> {
        self.one(
            "SELECT lease_acquire($1, $2, $3::text::interval, request => $4::text::uuid)",
            &[&name, &holder, &ttl, &request],
        )
        .await
    }

    /// Stands in line for at most `wait`.
    pub async fn acq_wait(
        &self,
        name: &str,
        holder: &str,
        ttl: &str,
        wait: &str,
    ) -> Answer<Option<i64>> {
        self.one(
            "SELECT lease_acquire($1, $2, $3::text::interval, wait => $4::text::interval)",
            &[&name, &holder, &ttl, &wait],
        )
        .await
    }

    /// Acquires a lease that is bound to this session.
    pub async fn sacq(&self, name: &str, holder: &str, wait: &str) -> Answer<Option<i64>> {
        self.one(
            "SELECT lease_acquire_session($1, $2, wait => $3::text::interval)",
            &[&name, &holder, &wait],
        )
        .await
    }

    pub async fn ext(&self, name: &str, token: i64, ttl: &str) -> Answer<Option<Expiry>> {
        self.one("SELECT lease_extend($1, $2, $3::text::interval)", &[&name, &token, &ttl]).await
    }

    /// Extends by the time to live that was granted.
    pub async fn ext_as_granted(&self, name: &str, token: i64) -> Answer<Option<Expiry>> {
        self.one("SELECT lease_extend($1, $2)", &[&name, &token]).await
    }

    pub async fn ext_many(
        &self,
        names: &[&str],
        tokens: &[i64],
        ttl: &str,
    ) -> Answer<Vec<Renewed>> {
        let rows = self
            .rows(
                "SELECT name, token, expires_at FROM lease_extend_many($1, $2, $3::text::interval)",
                &[&names, &tokens, &ttl],
            )
            .await?;
        Ok(rows
            .iter()
            .map(|row| Renewed { name: row.get(0), token: row.get(1), expires_at: row.get(2) })
            .collect())
    }

    pub async fn rel(&self, name: &str, token: i64) -> Answer<bool> {
        self.one("SELECT lease_release($1, $2)", &[&name, &token]).await
    }

    pub async fn complete(&self, name: &str, token: i64) -> Answer<bool> {
        self.one("SELECT lease_complete($1, $2)", &[&name, &token]).await
    }

    pub async fn lead(
        &self,
        name: &str,
        holder: &str,
        ttl: &str,
        token: Option<i64>,
    ) -> Answer<Option<i64>> {
        self.one(
            "SELECT lease_elect($1, $2, $3::text::interval, $4)",
            &[&name, &holder, &ttl, &token],
        )
        .await
    }

    pub async fn is_current(&self, name: &str, token: i64) -> Answer<bool> {
        self.one("SELECT lease_is_current($1, $2)", &[&name, &token]).await
    }

    pub async fn force(&self, name: &str) -> Answer<bool> {
        self.one("SELECT lease_force_release($1)", &[&name]).await
    }

    pub async fn evict(&self, name: &str, token: i64) -> Answer<Vec<i32>> {
        self.list("SELECT lease_evict($1, $2)", &[&name, &token]).await
    }

    pub async fn fence(&self, name: &str, token: i64) -> Answer<()> {
        self.exec("SELECT lease_fence($1, $2)", &[&name, &token]).await.map(drop)
    }

    pub async fn fence_and_hold(&self, name: &str, token: i64) -> Answer<()> {
        self.exec("SELECT lease_fence($1, $2, hold => true)", &[&name, &token]).await.map(drop)
    }

    /// Saves a checkpoint, given as JSON.
    pub async fn cp(&self, name: &str, token: i64, state: &str) -> Answer<()> {
        self.exec("SELECT lease_checkpoint($1, $2, $3::text::jsonb)", &[&name, &token, &state])
            .await
            .map(drop)
    }

    /// The last checkpoint as JSON text.
    pub async fn read_cp(&self, name: &str) -> Answer<Option<String>> {
        self.one("SELECT lease_checkpoint($1)::text", &[&name]).await
    }

    pub async fn once(&self, key: &str) -> Answer<bool> {
        self.one("SELECT once($1)", &[&key]).await
    }

    /// What `lease_status` says about the lease.
    pub async fn info(&self, name: &str) -> Option<Status> {
        let rows = self
            .rows(
                "SELECT state::text, holder, holder_role::text, token, expires_at,
                        extract(epoch FROM remaining)::float8
                 FROM lease_status WHERE name = $1",
                &[&name],
            )
            .await
            .expect("lease_status");
        assert!(rows.len() <= 1, "one row a lease");
        rows.first().map(|row| Status {
            state: row.get(0),
            holder: row.get(1),
            holder_role: row.get(2),
            token: row.get(3),
            expires_at: row.get(4),
            remaining: row.get(5),
        })
    }

    /// The expiry of a lease that is held.
    pub async fn expiry(&self, name: &str) -> Expiry {
        self.info(name).await.and_then(|status| status.expires_at).expect("a held lease")
    }

    /// A fenced write of v to a row of the tables of [`Db::fence`](crate::Db::fence), in a
    /// transaction of its own.
    pub async fn fw(&self, way: Way, lease: &str, token: i64, id: i32, v: i32) -> Answer<u64> {
        self.sql("BEGIN").await?;
        let written = async {
            let rows = self.fw_in_block(way, lease, token, id, v).await?;
            self.commit().await?;
            Ok(rows)
        }
        .await;
        if written.as_ref().is_err_and(|e: &PgError| e.code != PgError::CLOSED) {
            self.rollback().await;
        }
        written
    }

    /// The same in the transaction that is open.
    pub async fn fw_in_block(
        &self,
        way: Way,
        lease: &str,
        token: i64,
        id: i32,
        v: i32,
    ) -> Answer<u64> {
        let table = way.table();
        match way {
            Way::Transaction | Way::Stamped => {
                self.fence(lease, token).await?;
                self.exec(&format!("UPDATE {table} SET v = $1 WHERE id = $2"), &[&v, &id]).await
            }
            Way::Column => {
                self.exec(
                    &format!("UPDATE {table} SET v = $1, token = $3 WHERE id = $2"),
                    &[&v, &id, &token],
                )
                .await
            }
            Way::FencedUpdate | Way::FencedUpdateStamped => {
                let rows: i64 = self
                    .one(
                        "SELECT fenced_update($1::text::regclass, $2, jsonb_build_object('id', $3::int),
                                              jsonb_build_object('v', $4::int))",
                        &[&table, &token, &id, &v],
                    )
                    .await?;
                Ok(rows.try_into().expect("a number of rows"))
            }
        }
    }
}

/// A connection to the server that the environment names, of a role or else of the superuser.
pub async fn connect(database: &str, role: Option<&str>) -> Client {
    let variable = |name: &str| {
        std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: with-cluster.sh sets it"))
    };
    let mut config = Config::new();
    config
        .host(variable("PGHOST"))
        .port(variable("PGPORT").parse().expect("PGPORT is a number"))
        .user(role.map_or_else(|| variable("PGUSER"), str::to_owned))
        .dbname(database)
        // Who would wait for ever fails instead; a test that means a shorter time sets its own.
        .options("-c statement_timeout=60s");
    let (client, connection) = config.connect(NoTls).await.expect("a connection");
    // Ends with the connection, and that with the client. A lost connection is seen by whoever asks next.
    tokio::spawn(connection);
    client
}
