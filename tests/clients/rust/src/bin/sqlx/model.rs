// [lease]
use std::time::Duration;

use sqlx::{PgPool, Postgres, Transaction};
use tokio::time::{Instant, sleep, timeout};

pub async fn acquire(
    pool: &PgPool,
    lease: &str,
    node: &str,
    ttl: Duration,
) -> sqlx::Result<Option<i64>> {
    let acquire = sqlx::query_scalar("SELECT lease_acquire($1, $2, $3)");
    let token: Option<i64> = acquire.bind(lease).bind(node).bind(ttl).fetch_one(pool).await?;
    if token.is_some() {
        // A predecessor that is frozen in a transaction would keep its row locks.
        let evict = sqlx::query("SELECT count(*) FROM lease_evict($1, $2)");
        evict.bind(lease).bind(token).execute(pool).await?;
    }
    Ok(token)
}

/// A transaction that writes under the token.
pub async fn fenced(
    pool: &PgPool,
    lease: &str,
    token: i64,
) -> sqlx::Result<Transaction<'static, Postgres>> {
    let mut tx = pool.begin().await?;
    sqlx::query("SELECT lease_fence($1, $2)").bind(lease).bind(token).execute(&mut *tx).await?;
    Ok(tx)
}

/// Extends the lease, and returns when nobody may rely on it any longer. Spawn it, with a pool that it does not
/// share with the work.
pub async fn heartbeat(
    pool: PgPool,
    lease: String,
    token: i64,
    ttl: Duration,
    mut deadline: Instant,
) {
    while Instant::now() < deadline {
        let asked = Instant::now(); // before the call: the answer may be late
        let extend = sqlx::query_scalar("SELECT lease_extend($1, $2) IS NOT NULL");
        match timeout(ttl / 3, extend.bind(&lease).bind(token).fetch_one(&pool)).await {
            Ok(Ok(true)) => deadline = asked + ttl,
            Ok(Ok(false)) => return,
            Ok(Err(_)) | Err(_) => {} // an error says nothing about the lease: ask again
        }
        sleep(deadline.saturating_duration_since(asked) / 3).await;
    }
}
// [end lease]

// [model]
#[derive(Debug, PartialEq, sqlx::FromRow)]
pub struct Entry {
    pub id: i32,
    pub amount: i32,
    /// Whoever wrote the row last. Set it to your own token before each save.
    pub token: i64,
}

impl Entry {
    pub async fn save(&self, pool: &PgPool) -> sqlx::Result<()> {
        let save = "INSERT INTO entry (id, amount, token) VALUES ($1, $2, $3)
                    ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, token = excluded.token";
        sqlx::query(save).bind(self.id).bind(self.amount).bind(self.token).execute(pool).await?;
        Ok(())
    }
}
// [end model]

// [errors]
pub fn sqlstate(error: &sqlx::Error) -> String {
    error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned()
}

/// Stop: the lease is lost, and so is this transaction.
pub fn is_superseded(error: &sqlx::Error) -> bool {
    sqlstate(error) == "LX001"
}

pub fn is_retryable(error: &sqlx::Error) -> bool {
    sqlstate(error) == "40001"
}
// [end errors]
