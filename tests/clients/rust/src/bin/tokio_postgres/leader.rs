// [connect]
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::{Client, Config, Error, NoTls};

pub async fn connect(config: &Config) -> Result<Client, Error> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
// [end connect]

// [heartbeat]
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
        match timeout_at(deadline, extend(&config, &mut client, &lease, token)).await {
            Ok(Ok(true)) => deadline = asked + ttl,
            Ok(Ok(false)) | Err(_) => return,
            Ok(Err(_)) => client = None, // an error says nothing about the lease: ask again
        }
        sleep((deadline - asked) / 3).await;
    }
}

async fn extend(
    config: &Config,
    client: &mut Option<Client>,
    lease: &str,
    token: i64,
) -> Result<bool, Error> {
    let client = match client {
        Some(client) => client,
        None => client.insert(connect(config).await?),
    };
    Ok(client.query_one("SELECT lease_extend($1, $2) IS NOT NULL", &[&lease, &token]).await?.get(0))
}
// [end heartbeat]

// [leader]
/// Call it in a loop, with a pause of a third of the time to live. If the lease is free, this node leads: `work`
/// runs with the token until it returns, or is dropped where it awaits when the lease is lost.
pub async fn lead<W>(
    config: &Config,
    node: &str,
    ttl: Duration,
    work: impl FnOnce(i64) -> W,
) -> Result<(), Error>
where
    W: Future<Output = ()>,
{
    let client = connect(config).await?;
    let deadline = Instant::now() + ttl;
    let acquire = "SELECT lease_acquire('scheduler', $1, make_interval(secs => $2))";
    let token = client.query_one(acquire, &[&node, &ttl.as_secs_f64()]).await?;
    let Some(token) = token.get::<_, Option<i64>>(0) else {
        return Ok(()); // somebody else leads
    };
    let mut beating = JoinSet::new(); // a task of its own, so that it beats while the work computes; ends with this
    beating.spawn(heartbeat(config.clone(), "scheduler".to_owned(), token, ttl, deadline));
    tokio::select! {
        () = work(token) => beating.abort_all(),
        _ = beating.join_next() => {}
    }
    client.execute("SELECT lease_release('scheduler', $1)", &[&token]).await?; // lost: false, and nothing happens
    Ok(())
}
// [end leader]
