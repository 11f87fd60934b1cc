// [heartbeat]
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_postgres::{Client, Config};

use crate::errors::explain;
use crate::lease::{Failure, acquire, connect, extend, within};

/// Extends the lease, on a connection of its own, and returns when nobody may rely on it any longer.
pub async fn heartbeat(
    config: Config,
    lease: String,
    token: i64,
    ttl: Duration,
    mut deadline: Instant,
) {
    let mut client = None;
    while Instant::now() < deadline {
        let asked = Instant::now(); // before the call: the answer may be late
        match within(ttl, beat(&config, &mut client, &lease, token)).await {
            Ok(true) => deadline = asked + ttl,
            Ok(false) => return,
            Err(_) => client = None, // an error says nothing about the lease: ask again
        }
        sleep(deadline.saturating_duration_since(asked) / 3).await;
    }
}

async fn beat(
    config: &Config,
    client: &mut Option<Client>,
    lease: &str,
    token: i64,
) -> Result<bool, Failure> {
    let client = match client {
        Some(client) => client,
        None => client.insert(connect(config).await?),
    };
    Ok(extend(client, lease, token).await?)
}
// [end heartbeat]

// [leader]
/// For ever. When a leader dies, another one leads at most `ttl` and a third of it later. An error of `work`, which
/// does one round, ends the term, so it keeps to itself what is no reason for that.
pub async fn campaign<F>(config: Config, node: &str, ttl: Duration, mut work: impl FnMut(i64) -> F)
where
    F: Future<Output = Result<(), Failure>>,
{
    loop {
        if let Err(error) = lead(&config, node, ttl, &mut work).await {
            eprintln!("not the leader: {}", explain(&error)); // LX001 as well: this node is a candidate again
        }
        sleep(ttl / 3).await;
    }
}

/// A term. Its token is a constant: nothing that was read under another one is written under this one. When the lease is
/// lost, `work` is dropped where it awaits.
pub async fn lead<F>(
    config: &Config,
    node: &str,
    ttl: Duration,
    work: &mut impl FnMut(i64) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = Result<(), Failure>>,
{
    let client = within(ttl, connect(config)).await?;
    let deadline = Instant::now() + ttl;
    let Some(token) = acquire(&client, "scheduler", node, ttl).await? else {
        return Ok(()); // somebody else leads
    };
    let mut beating = JoinSet::new(); // a task of its own, so that it beats while the work computes; ends with this
    beating.spawn(heartbeat(config.clone(), "scheduler".to_owned(), token, ttl, deadline));
    let rounds = async {
        loop {
            work(token).await?;
            sleep(ttl / 10).await;
        }
    };
    let ended = tokio::select! {
        ended = rounds => ended,
        _ = beating.join_next() => Err("the lease is lost".into()),
    };
    beating.abort_all();
    // If it is lost, false, and nothing happens.
    let release = "SELECT lease_release('scheduler', $1)";
    within(ttl, client.execute(release, &[&token])).await?;
    ended
}
// [end leader]

// [prices]
/// The work: reads the source first, outside of a transaction, as that may take long, and writes in one statement
/// with the token that was there before.
pub async fn prices(
    config: &Config,
    ttl: Duration,
    token: i64,
    source: impl Future<Output = Result<i32, Failure>>,
) -> Result<(), Failure> {
    let amount = match source.await {
        Ok(amount) => amount,
        Err(error) => {
            eprintln!("no price this time: {error}"); // no reason to give up
            return Ok(());
        }
    };
    let save = "INSERT INTO price (id, amount, token) VALUES (1, $1, $2)
                ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, token = excluded.token";
    // Bounded: on a dead network the heartbeat alone would keep the lease for ever.
    within(ttl, async { connect(config).await?.execute(save, &[&amount, &token]).await }).await?;
    Ok(())
}
// [end prices]
