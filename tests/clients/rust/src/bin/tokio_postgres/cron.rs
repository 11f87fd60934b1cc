// [cron]
use std::time::{Duration, Instant};

use tokio_postgres::{Client, Config};

use crate::errors::{explain, may_be_lost};
use crate::lease::{Failure, acquire, connect, extend, within};

const LEASE: &str = "daily-reward";
const TTL: Duration = Duration::from_secs(60); // three times as long as one day's payment may take
const ZONE: &str = "Europe/Berlin"; // the session's own may be any
const BEGIN: &str = "00:00"; // "23:55": a day goes from there to 23:55 of the next

/// Pays each player for today, and for the days that were missed. Gives what has happened: print it.
pub async fn pay_rewards(config: &Config, node: &str) -> Result<String, Failure> {
    let mut client = within(TTL, connect(config)).await?;
    let deadline = Instant::now() + TTL;
    let Some(token) = acquire(&client, LEASE, node, TTL).await? else {
        let why = "SELECT CASE WHEN EXISTS (SELECT FROM lease_status WHERE name = $1 AND state = 'completed')
                   THEN 'done already for today' ELSE 'somebody else has it' END";
        return Ok(within(TTL, client.query_one(why, &[&LEASE])).await?.get(0));
    };
    match pay_days(&mut client, token, deadline).await {
        Ok(true) => Ok("done".to_owned()),
        Ok(false) => Ok(format!("lost: token {token} was taken over, or has expired")),
        // The next one goes on from the checkpoint.
        Err(error) if may_be_lost(&error) => {
            Ok(format!("lost: token {token}: {}", explain(&error)))
        }
        Err(error) => Err(error),
    }
}

/// False: the lease is lost.
async fn pay_days(client: &mut Client, token: i64, mut deadline: Instant) -> Result<bool, Failure> {
    // Once, so that midnight does not come in between.
    let decide = "SELECT ((now() AT TIME ZONE $1) - $2::text::interval)::date::text";
    let today: String = within(TTL, client.query_one(decide, &[&ZONE, &BEGIN])).await?.get(0);
    while Instant::now() < deadline {
        if within(TTL, pay_day(client, token, &today)).await? {
            return Ok(true);
        }
        let asked = Instant::now();
        if !within(TTL, extend(client, LEASE, token)).await? {
            break;
        }
        deadline = asked + TTL;
    }
    Ok(false)
}

/// One transaction: the day, the checkpoint that says so, and with the last day the end of the job.
async fn pay_day(client: &mut Client, token: i64, today: &str) -> Result<bool, Failure> {
    let tx = client.transaction().await?;
    tx.execute("SELECT lease_fence($1, $2)", &[&LEASE, &token]).await?;
    let next = "SELECT coalesce((lease_checkpoint($1) ->> 'paid')::date + 1, $2::text::date)::text";
    let next: String = tx.query_one(next, &[&LEASE, &today]).await?.get(0);
    if next.as_str() <= today {
        tx.execute("UPDATE player SET coins = coins + 100", &[]).await?;
        let paid = serde_json::json!({ "paid": next });
        tx.execute("SELECT lease_checkpoint($1, $2, $3)", &[&LEASE, &token, &paid]).await?;
    }
    let done = next.as_str() >= today;
    if done {
        let complete = "SELECT lease_complete($1, $2,
                        until => ($3::text::date + 1 + $4::text::time) AT TIME ZONE $5)";
        tx.execute(complete, &[&LEASE, &token, &today, &BEGIN, &ZONE]).await?;
    }
    tx.commit().await?;
    Ok(done)
}
// [end cron]
