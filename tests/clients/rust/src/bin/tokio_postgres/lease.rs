// [lease]
use std::error::Error as StdError;
use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::{Client, Config, Error, NoTls};

pub type Failure = Box<dyn StdError + Send + Sync>;

/// Bounds what is done with a lease by a third of its time to live: on a dead network it ends before the lease does.
pub async fn within<T, E: Into<Failure>>(
    ttl: Duration,
    call: impl Future<Output = Result<T, E>>,
) -> Result<T, Failure> {
    timeout(ttl / 3, call).await?.map_err(Into::into)
}

pub async fn connect(config: &Config) -> Result<Client, Error> {
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// `None`: somebody else has it, or it is completed. `node`, say `hostname:pid`, is for people who read `lease_status`.
pub async fn acquire(
    client: &Client,
    lease: &str,
    node: &str,
    ttl: Duration,
) -> Result<Option<i64>, Failure> {
    let acquire = "SELECT lease_acquire($1, $2, make_interval(secs => $3))";
    let seconds = ttl.as_secs_f64();
    let row = within(ttl, client.query_one(acquire, &[&lease, &node, &seconds])).await?;
    let token: Option<i64> = row.get(0);
    if token.is_some() {
        // A predecessor that is frozen in a transaction would keep its row locks.
        let evict = "SELECT count(*) FROM lease_evict($1, $2)";
        within(ttl, client.execute(evict, &[&lease, &token])).await?;
    }
    Ok(token)
}

/// False: the lease is lost.
pub async fn extend(client: &Client, lease: &str, token: i64) -> Result<bool, Error> {
    let extend = "SELECT lease_extend($1, $2) IS NOT NULL";
    Ok(client.query_one(extend, &[&lease, &token]).await?.get(0))
}
// [end lease]
