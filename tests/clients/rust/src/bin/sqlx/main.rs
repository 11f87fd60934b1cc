//! sqlx: <https://docs.rs/sqlx>

mod model;

use std::time::Duration;

use lock_ext_clients::{LEASE, Outcome, Stack, check, database, refused, same};
use serde_json::{Value, json};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgDatabaseError, PgPool, PgPoolOptions};
use sqlx::{ConnectOptions, Connection};
use tokio::time::{Instant, timeout};

use model::{Entry, acquire, fenced, heartbeat, is_retryable, is_superseded, sqlstate};

const STACK: &str = "sqlx";
const TTL: Duration = Duration::from_secs(30);
const PAY: &str = "UPDATE player SET coins = coins + 100";

/// PGHOST, PGPORT and PGUSER are read by the driver.
fn options() -> PgConnectOptions {
    PgConnectOptions::new().database(&database(STACK)).disable_statement_logging()
}

async fn pool() -> sqlx::Result<PgPool> {
    PgPoolOptions::new().max_connections(2).connect_with(options()).await
}

async fn granted(pool: &PgPool) -> Result<i64, Box<dyn std::error::Error + Send + Sync>> {
    Ok(acquire(pool, LEASE, "node-1", TTL).await?.ok_or("not granted")?)
}

async fn grant(stack: &Stack) -> Outcome {
    let pool = pool().await?;
    let token = granted(&pool).await?;
    let shown = stack.admin("SELECT token FROM lease_status WHERE name = 'daily-reward'")?;
    same("token", token.to_string(), shown)?;
    check(token > 9_007_199_254_730_000, "the token is not above the floor")?;
    same("held by another", acquire(&pool, LEASE, "node-2", TTL).await?, None)?;
    same(
        "ttl",
        stack.admin("SELECT ttl FROM lease_status WHERE name = 'daily-reward'")?,
        "00:00:30",
    )?;

    // A string is sent as text, which PostgreSQL does not cast to an interval by itself.
    let text =
        sqlx::query_scalar::<_, Option<i64>>("SELECT lease_acquire($1, $2, $3) AS from_text");
    let text = text.bind("x").bind("y").bind("30 seconds").fetch_one(&pool).await;
    same(
        "a string for an interval",
        sqlstate(&refused("a string for an interval", text)?),
        "42883",
    )?;
    let seconds = sqlx::query_scalar::<_, Option<i64>>(
        "SELECT lease_acquire($1, $2, make_interval(secs => $3))",
    );
    let seconds = seconds.bind("x").bind("y").bind(30.0).fetch_one(&pool).await?;
    check(seconds.is_some(), "not granted by a number of seconds")?;

    let highest = sqlx::query_as::<_, (i64, String)>("SELECT $1, $1::text")
        .bind(i64::MAX)
        .fetch_one(&pool)
        .await?;
    same("highest bigint", highest, (i64::MAX, "9223372036854775807".to_owned()))
}

async fn heartbeats(stack: &Stack) -> Outcome {
    let ttl = Duration::from_millis(600);
    let pool = pool().await?;
    let deadline = Instant::now() + ttl;
    let token = acquire(&pool, LEASE, "node-1", ttl).await?.ok_or("not granted")?;
    let own = PgPoolOptions::new().max_connections(1).connect_with(options()).await?;
    let mut beating = tokio::spawn(heartbeat(own.clone(), LEASE.to_owned(), token, ttl, deadline));

    // This connection is busy for longer than the time to live.
    let mut tx = pool.begin().await?;
    sqlx::query("SELECT pg_sleep(1.5)").execute(&mut *tx).await?;
    let current = sqlx::query_scalar("SELECT lease_is_current($1, $2)").bind(LEASE).bind(token);
    check(current.fetch_one(&mut *tx).await?, "the lease was not extended")?;
    check(!beating.is_finished(), "the heartbeat gave up a lease that it had")?;

    // No answer comes any more: its own deadline ends it.
    sqlx::query("LOCK TABLE lock_ext.lease").execute(&mut *tx).await?;
    timeout(Duration::from_secs(20), &mut beating)
        .await
        .map_err(|_| "no deadline of its own")??;
    tx.rollback().await?;

    // And so does the loss of the lease, long before the deadline.
    stack.reset()?;
    let ttl = Duration::from_secs(3);
    let token = acquire(&pool, LEASE, "node-1", ttl).await?.ok_or("not granted")?;
    let mut beating =
        tokio::spawn(heartbeat(pool, LEASE.to_owned(), token, ttl, Instant::now() + 20 * TTL));
    stack.take_over()?;
    timeout(Duration::from_secs(20), &mut beating)
        .await
        .map_err(|_| "the loss was not noticed")??;
    Ok(())
}

async fn fenced_transaction(stack: &Stack) -> Outcome {
    let pool = pool().await?;
    let unfenced = refused("a write without a token", sqlx::query(PAY).execute(&pool).await)?;
    same("without a token", sqlstate(&unfenced), "LX003")?;

    let token = granted(&pool).await?;
    let mut tx = fenced(&pool, LEASE, token).await?;
    same("paid", sqlx::query(PAY).execute(&mut *tx).await?.rows_affected(), 3)?;
    sqlx::query("INSERT INTO player VALUES ($1, $2)").bind(4).bind(50).execute(&mut *tx).await?;
    tx.commit().await?;
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "350")
}

async fn fenced_column(stack: &Stack) -> Outcome {
    let pool = pool().await?;
    let token = granted(&pool).await?;
    Entry { id: 1, amount: 100, token }.save(&pool).await?;
    let mut entry: Entry =
        sqlx::query_as("SELECT * FROM entry WHERE id = $1").bind(1).fetch_one(&pool).await?;
    same("entry", &entry, &Entry { id: 1, amount: 100, token })?;
    entry.amount = 200;
    entry.save(&pool).await?;

    stack.take_over()?;
    entry.amount = 300;
    let refused = refused("a superseded token", entry.save(&pool).await)?;
    check(is_superseded(&refused), format!("{refused:?}"))?;
    same("amount", stack.admin("SELECT amount FROM entry")?, "200")
}

async fn refused_write(stack: &Stack) -> Outcome {
    let pool = pool().await?;
    let token = granted(&pool).await?;
    let mut attempts = 0;
    let refused = loop {
        attempts += 1;
        let mut tx = fenced(&pool, LEASE, token).await?;
        if attempts == 1 {
            stack.take_over()?;
        }
        let error = refused("the write", sqlx::query(PAY).execute(&mut *tx).await)?;
        if !is_retryable(&error) || attempts == 3 {
            break error;
        }
    };
    same("attempts", attempts, 1)?;
    check(is_superseded(&refused), format!("{refused:?}"))?;
    let fields = refused.as_database_error().ok_or("no error of the server")?;
    same("table", fields.table(), Some("player"))?;
    same("kind", format!("{:?}", fields.kind()), "Other")?;
    let detail = fields.downcast_ref::<PgDatabaseError>().detail();
    check(
        detail.is_some_and(|detail| detail.contains(LEASE)),
        "the detail does not name the lease",
    )?;

    // A transaction that is refused is over. COMMIT then rolls back, which the driver does not report.
    stack.admin("SELECT lease_force_release('daily-reward')")?;
    let token = granted(&pool).await?;
    let mut tx = fenced(&pool, LEASE, token).await?;
    sqlx::query(PAY).execute(&mut *tx).await?;
    stack.take_over()?;
    check(sqlx::query(PAY).execute(&mut *tx).await.is_err(), "the write was not refused")?;
    same("COMMIT of what failed", tx.commit().await.is_ok(), true)?;
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "0")
}

async fn refused_commit(stack: &Stack) -> Outcome {
    let pool = pool().await?;
    let token = granted(&pool).await?;
    let mut tx = fenced(&pool, LEASE, token).await?;
    same("paid", sqlx::query(PAY).execute(&mut *tx).await?.rows_affected(), 3)?;
    stack.take_over()?;
    let refused = refused("COMMIT", tx.commit().await)?;
    check(is_superseded(&refused) && !is_retryable(&refused), format!("{refused:?}"))?;
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "0")?;
    let usable: i32 = sqlx::query_scalar("SELECT 7").fetch_one(&pool).await?;
    same("the pool afterwards", usable, 7)
}

async fn once(stack: &Stack) -> Outcome {
    let pool = pool().await?;
    let mut firsts: Vec<bool> = Vec::new();
    for commits in [false, true, true] {
        let mut tx = pool.begin().await?;
        firsts
            .push(sqlx::query_scalar("SELECT once($1)").bind("mail:1").fetch_one(&mut *tx).await?);
        if commits { tx.commit().await? } else { tx.rollback().await? }
    }
    same("rolled back, committed, again", firsts, [true, true, false])?;
    same("keys", stack.admin("SELECT once('mail:1')")?, "f")
}

async fn checkpoint(stack: &Stack) -> Outcome {
    let (first, saved) = (pool().await?, json!({ "after": i64::MAX }));
    let token = granted(&first).await?;
    let checkpoint = "SELECT lease_checkpoint($1, $2, $3)";
    let mut tx = fenced(&first, LEASE, token).await?;
    sqlx::query(PAY).execute(&mut *tx).await?;
    sqlx::query(checkpoint).bind(LEASE).bind(token).bind(&saved).execute(&mut *tx).await?;
    tx.commit().await?;

    // The crash: neither the work nor its checkpoint is there.
    let mut tx = fenced(&first, LEASE, token).await?;
    sqlx::query(PAY).execute(&mut *tx).await?;
    sqlx::query(checkpoint)
        .bind(LEASE)
        .bind(token)
        .bind(json!({ "after": 0 }))
        .execute(&mut *tx)
        .await?;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *tx).await?;
    stack.admin(&format!("SELECT pg_terminate_backend({pid}, 5000)"))?;
    refused("COMMIT after the crash", tx.commit().await)?;

    stack.admin("SELECT lease_force_release('daily-reward')")?;
    let second = pool().await?;
    let token = granted(&second).await?;
    let mut tx = fenced(&second, LEASE, token).await?;
    let found: Value =
        sqlx::query_scalar("SELECT lease_checkpoint($1)").bind(LEASE).fetch_one(&mut *tx).await?;
    same("checkpoint", found, saved)?;
    tx.commit().await?;
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "300")
}

const WAIT: &str = "SELECT lease_acquire($1, $2, $3, wait => $4)";

async fn wait(connection: &mut PgConnection) -> sqlx::Result<Option<i64>> {
    let wait =
        sqlx::query_scalar(WAIT).bind(LEASE).bind("node-1").bind(TTL).bind(Duration::from_secs(60));
    wait.fetch_one(connection).await
}

async fn wait_timeout(stack: &Stack) -> Outcome {
    stack.take_over()?;
    let mut connection = options().connect().await?;
    sqlx::query("SET statement_timeout = '300ms'").execute(&mut connection).await?;
    same("timeout", sqlstate(&refused("the wait", wait(&mut connection).await)?), "57014")?;
    same("waiters", stack.admin("SELECT count(*) FROM lease_waiter")?, "0")?;
    let usable: i32 = sqlx::query_scalar("SELECT 7").fetch_one(&mut connection).await?;
    same("the connection afterwards", usable, 7)?;

    // The driver cannot cancel. A future that is only dropped leaves the call running at the server, and the next
    // query on the connection waits for it: close the connection, and the place in line is gone.
    sqlx::query("SET statement_timeout = 0").execute(&mut connection).await?;
    let dropped = timeout(Duration::from_millis(300), wait(&mut connection)).await;
    check(dropped.is_err(), "the wait ended")?;
    same("waiters of a dropped future", stack.admin("SELECT count(*) FROM lease_waiter")?, "1")?;
    let next = sqlx::query("SELECT 7").execute(&mut connection);
    check(
        timeout(Duration::from_millis(300), next).await.is_err(),
        "the next query does not wait",
    )?;
    connection.close_hard().await?;
    stack.until("SELECT count(*) FROM lease_waiter", "0")
}

async fn lost_connection(stack: &Stack) -> Outcome {
    let pool = pool().await?;
    let token = granted(&pool).await?;
    let mut tx = fenced(&pool, LEASE, token).await?;
    sqlx::query(PAY).execute(&mut *tx).await?;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *tx).await?;
    stack.admin(&format!("SELECT pg_terminate_backend({pid}, 5000)"))?;
    let lost = refused("a write on a lost connection", sqlx::query(PAY).execute(&mut *tx).await)?;
    check(matches!(lost, sqlx::Error::Io(_)) || sqlstate(&lost) == "57P01", format!("{lost:?}"))?;
    drop(tx);
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "0")?;

    let mut tx = fenced(&pool, LEASE, token).await?; // the pool replaces the connection
    sqlx::query(PAY).execute(&mut *tx).await?;
    tx.commit().await?;
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "300")
}

// [migrate]
static MIGRATOR: sqlx::migrate::Migrator = sqlx::migrate!("migrations/sqlx");
// [end migrate]

async fn migration(stack: &Stack) -> Outcome {
    let pool = pool().await?;
    let fences = "SELECT count(*) FROM fence_status WHERE hole IS NULL OR hole NOT LIKE 'roles%'";
    same("fences", stack.admin(fences)?, "3")?;
    MIGRATOR.undo(&pool, 1).await?;
    same("fences after down", stack.admin(fences)?, "0")?;
    sqlx::query(PAY).execute(&pool).await?;
    MIGRATOR.run(&pool).await?;
    same("fences after up", stack.admin(fences)?, "3")?;
    let refused = refused("a write without a token", sqlx::query(PAY).execute(&pool).await)?;
    same("without a token", sqlstate(&refused), "LX003")
}

#[tokio::main(worker_threads = 4)]
async fn main() -> Outcome {
    let mut stack = Stack::new(STACK)?;
    MIGRATOR.run(&pool().await?).await?;
    macro_rules! run {
        ($($scenario:literal: $run:path),* $(,)?) => {$(
            stack.reset()?;
            let outcome = $run(&stack).await;
            stack.report($scenario, outcome);
        )*};
    }
    run! {
        "grant": grant, "heartbeat": heartbeats, "fenced_transaction": fenced_transaction,
        "fenced_column": fenced_column, "refused_write": refused_write, "refused_commit": refused_commit,
        "once": once, "checkpoint": checkpoint, "wait_timeout": wait_timeout, "lost_connection": lost_connection,
        "migration": migration,
    }
    stack.finish()
}
