//! tokio-postgres: <https://docs.rs/tokio-postgres>

mod cron;
mod errors;
mod leader;
mod lease;
mod once;
mod recipes;

use std::env;
use std::time::Duration;

use lock_ext_clients::{LEASE, Outcome, Stack, check, database, refused, same};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};
use tokio_postgres::{Client, Config, Error, NoTls, Transaction};

use errors::{is_retryable, is_superseded, sqlstate};
use leader::heartbeat;
use lease::connect;

const STACK: &str = "tokio-postgres";
const ACQUIRE: &str = "SELECT lease_acquire($1, $2, make_interval(secs => $3))";

fn config() -> Config {
    let mut config = Config::new();
    config.host(env::var("PGHOST").expect("PGHOST")).user(env::var("PGUSER").expect("PGUSER"));
    config
        .port(env::var("PGPORT").expect("PGPORT").parse().expect("a port"))
        .dbname(database(STACK));
    config
}

async fn acquire(client: &Client, holder: &str) -> Result<Option<i64>, Error> {
    Ok(client.query_one(ACQUIRE, &[&LEASE, &holder, &30.0]).await?.get(0))
}

async fn granted(client: &Client) -> Result<i64, Box<dyn std::error::Error + Send + Sync>> {
    Ok(acquire(client, "node-1").await?.ok_or("not granted")?)
}

/// A transaction that writes under the token.
async fn fenced(client: &mut Client, token: i64) -> Result<Transaction<'_>, Error> {
    let tx = client.transaction().await?;
    tx.execute("SELECT lease_fence($1, $2)", &[&LEASE, &token]).await?;
    Ok(tx)
}

const PAY: &str = "UPDATE player SET coins = coins + 100";

async fn grant(stack: &Stack) -> Outcome {
    let client = connect(&config()).await?;
    let token = granted(&client).await?;
    let shown = stack.admin("SELECT token FROM lease_status WHERE name = 'daily-reward'")?;
    same("token", token.to_string(), shown)?;
    check(token > 9_007_199_254_730_000, "the token is not above the floor")?;
    same("held by another", acquire(&client, "node-2").await?, None)?;

    // What PostgreSQL takes for an interval no string is for the driver, and a number has to be double precision.
    let text =
        client.query_one("SELECT lease_acquire($1, $2, $3)", &[&"x", &"y", &"30 seconds"]).await;
    let text = refused("a string for an interval", text)?;
    check(text.to_string().contains("error serializing parameter 2"), text.to_string())?;
    let number =
        refused("i32 for double precision", client.query_one(ACQUIRE, &[&"x", &"y", &30]).await)?;
    check(number.to_string().contains("error serializing parameter 2"), number.to_string())?;
    let cast = client
        .query_one("SELECT lease_acquire($1, $2, $3::text::interval)", &[&"x", &"y", &"30 s"])
        .await?;
    check(cast.get::<_, Option<i64>>(0).is_some(), "not granted by a cast from text")?;

    let highest = client.query_one("SELECT $1::bigint, $1::bigint::text", &[&i64::MAX]).await?;
    same("highest bigint", highest.get::<_, i64>(0), i64::MAX)?;
    same("its text", highest.get::<_, &str>(1), "9223372036854775807")
}

async fn heartbeats(stack: &Stack) -> Outcome {
    let ttl = Duration::from_millis(600);
    let mut client = connect(&config()).await?;
    let asked = Instant::now();
    let token = client.query_one(ACQUIRE, &[&LEASE, &"node-1", &ttl.as_secs_f64()]).await?;
    let token: i64 = token.get::<_, Option<_>>(0).ok_or("not granted")?;
    let mut beating = tokio::spawn(heartbeat(config(), LEASE.to_owned(), token, ttl, asked + ttl));

    // This connection is busy for longer than the time to live.
    client.execute("SELECT pg_sleep(1.5)", &[]).await?;
    let current = client.query_one("SELECT lease_is_current($1, $2)", &[&LEASE, &token]).await?;
    check(current.get(0), "the lease was not extended")?;
    check(!beating.is_finished(), "the heartbeat gave up a lease that it had")?;

    // No answer comes any more: its own deadline ends it.
    let tx = client.transaction().await?;
    tx.batch_execute("LOCK TABLE lock_ext.lease").await?;
    timeout(Duration::from_secs(20), &mut beating)
        .await
        .map_err(|_| "no deadline of its own")??;
    tx.rollback().await?;

    // And so does the loss of the lease, however far the deadline is.
    stack.take_over()?;
    let late = Instant::now() + Duration::from_secs(600);
    let beating = heartbeat(config(), LEASE.to_owned(), token, ttl, late);
    timeout(Duration::from_secs(20), beating).await.map_err(|_| "the loss was not noticed")?;
    recipes::leader(stack).await
}

async fn fenced_transaction(stack: &Stack) -> Outcome {
    let mut client = connect(&config()).await?;
    let unfenced = refused("a write without a token", client.execute(PAY, &[]).await)?;
    same("without a token", sqlstate(&unfenced), "LX003")?;

    let token = granted(&client).await?;
    let tx = fenced(&mut client, token).await?;
    same("paid", tx.execute(PAY, &[]).await?, 3)?;
    tx.execute("INSERT INTO player VALUES ($1, $2)", &[&4, &50]).await?;
    tx.commit().await?;
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "350")
}

async fn fenced_column(stack: &Stack) -> Outcome {
    let client = connect(&config()).await?;
    let token = granted(&client).await?;
    let save = "INSERT INTO entry (id, amount, token) VALUES ($1, $2, $3)
                ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, token = excluded.token";
    client.execute(save, &[&1, &100, &token]).await?;
    client.execute(save, &[&1, &200, &token]).await?;
    let row = client.query_one("SELECT amount, token FROM entry", &[]).await?;
    same("entry", (row.get(0), row.get(1)), (200, token))?;

    stack.take_over()?;
    let refused = refused("a superseded token", client.execute(save, &[&1, &300, &token]).await)?;
    same("superseded", sqlstate(&refused), "LX001")?;
    same("amount", stack.admin("SELECT amount FROM entry")?, "200")
}

async fn refused_write(stack: &Stack) -> Outcome {
    let mut client = connect(&config()).await?;
    let token = granted(&client).await?;
    let mut attempts = 0;
    let refused = loop {
        attempts += 1;
        let tx = fenced(&mut client, token).await?;
        if attempts == 1 {
            stack.take_over()?;
        }
        let error = refused("the write", tx.execute(PAY, &[]).await)?;
        if !is_retryable(&error) || attempts == 3 {
            break error;
        }
    };
    same("attempts", attempts, 1)?;
    check(is_superseded(&refused), format!("{refused:?}"))?;
    let fields = refused.as_db_error().ok_or("no error of the server")?;
    same("table", fields.table(), Some("player"))?;
    check(
        fields.detail().is_some_and(|detail| detail.contains(LEASE)),
        "the detail does not name the lease",
    )?;

    // A transaction that is refused is over. COMMIT then rolls back, which the driver does not report.
    let client = &mut connect(&config()).await?;
    stack.admin("SELECT lease_force_release('daily-reward')")?;
    let token = granted(client).await?;
    let tx = fenced(client, token).await?;
    tx.execute(PAY, &[]).await?;
    stack.take_over()?;
    check(tx.execute(PAY, &[]).await.is_err(), "the write was not refused")?;
    same("COMMIT of what failed", tx.commit().await.is_ok(), true)?;
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "0")
}

async fn refused_commit(stack: &Stack) -> Outcome {
    let mut client = connect(&config()).await?;
    let token = granted(&client).await?;
    let tx = fenced(&mut client, token).await?;
    same("paid", tx.execute(PAY, &[]).await?, 3)?;
    stack.take_over()?;
    let refused = refused("COMMIT", tx.commit().await)?;
    check(is_superseded(&refused) && !is_retryable(&refused), format!("{refused:?}"))?;
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "0")
}

async fn once(stack: &Stack) -> Outcome {
    let mut client = connect(&config()).await?;
    let mut firsts = Vec::new();
    for commits in [false, true, true] {
        let tx = client.transaction().await?;
        firsts.push(tx.query_one("SELECT once($1)", &[&"mail:1"]).await?.get::<_, bool>(0));
        if commits { tx.commit().await? } else { tx.rollback().await? }
    }
    same("rolled back, committed, again", firsts, [true, true, false])?;
    same("keys", stack.admin("SELECT once('mail:1')")?, "f")?;
    recipes::once(stack).await
}

async fn checkpoint(stack: &Stack) -> Outcome {
    let mut client = connect(&config()).await?;
    let token = granted(&client).await?;
    let tx = fenced(&mut client, token).await?;
    tx.execute(PAY, &[]).await?;
    tx.execute(
        "SELECT lease_checkpoint($1, $2, $3)",
        &[&LEASE, &token, &json!({ "after": i64::MAX })],
    )
    .await?;
    tx.commit().await?;
    let saved = client.query_one("SELECT lease_checkpoint($1)", &[&LEASE]).await?;
    same("checkpoint", saved.get::<_, Value>(0), json!({ "after": i64::MAX }))?;

    recipes::job(stack).await?;
    recipes::frozen_predecessor(stack).await?;
    recipes::lost_job(stack).await
}

async fn wait_timeout(stack: &Stack) -> Outcome {
    stack.take_over()?;
    let client = connect(&config()).await?;
    let wait = "SELECT lease_acquire($1, $2, make_interval(secs => $3), wait => make_interval(secs => $4))";
    let cancel = client.cancel_token();
    let waiting = tokio::spawn(async move {
        let answer = client.query_one(wait, &[&LEASE, &"node-1", &30.0, &60.0]).await;
        (client, answer)
    });
    stack.until("SELECT count(*) FROM lease_waiter", "1")?;
    cancel.cancel_query(NoTls).await?;
    let (client, cancelled) = waiting.await?;
    same("cancelled", sqlstate(&refused("the wait", cancelled)?), "57014")?;
    same("waiters", stack.admin("SELECT count(*) FROM lease_waiter")?, "0")?;

    // A future that is only dropped leaves the call running at the server: cancel it.
    let params: [&(dyn tokio_postgres::types::ToSql + Sync); 4] = [&LEASE, &"node-1", &30.0, &60.0];
    let dropped = timeout(Duration::from_millis(300), client.query_one(wait, &params)).await;
    check(dropped.is_err(), "the wait ended")?;
    same("waiters of a dropped future", stack.admin("SELECT count(*) FROM lease_waiter")?, "1")?;
    cancel.cancel_query(NoTls).await?;
    let usable = timeout(Duration::from_secs(20), client.query_one("SELECT 7", &[])).await??;
    same("the connection afterwards", usable.get::<_, i32>(0), 7)?;
    same("waiters", stack.admin("SELECT count(*) FROM lease_waiter")?, "0")
}

async fn lost_connection(stack: &Stack) -> Outcome {
    let mut client = connect(&config()).await?;
    let token = granted(&client).await?;
    let tx = fenced(&mut client, token).await?;
    tx.execute(PAY, &[]).await?;
    let pid: i32 = tx.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
    stack.admin(&format!("SELECT pg_terminate_backend({pid}, 5000)"))?;
    let lost = refused("a write on a lost connection", tx.execute(PAY, &[]).await)?;
    check(lost.is_closed() || sqlstate(&lost) == "57P01", format!("{lost:?}"))?;
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "0")?;

    let mut client = connect(&config()).await?;
    let tx = fenced(&mut client, token).await?;
    tx.execute(PAY, &[]).await?;
    tx.commit().await?;
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "300")
}

/// The tables, as the other stacks' migrations make them.
async fn tables() -> Outcome {
    let client = connect(&config()).await?;
    client.batch_execute(include_str!("../../../migrations/sqlx/0001_tables.up.sql")).await?;
    Ok(client.batch_execute(include_str!("../../../migrations/sqlx/0002_fences.up.sql")).await?)
}

#[tokio::main(worker_threads = 4)]
async fn main() -> Outcome {
    let mut stack = Stack::new(STACK)?;
    tables().await?;
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
    }
    stack.skip("migration", "the driver has no migrations; see sqlx and diesel");
    stack.finish()
}
