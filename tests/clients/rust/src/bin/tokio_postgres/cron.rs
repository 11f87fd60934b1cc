// [cron]
use std::time::{Duration, Instant};
use tokio_postgres::{Client, Error};

const TTL: Duration = Duration::from_secs(60); // longer than one day's payment takes

/// Run it on every node, once a day: pays each player for today, and for the days that were missed.
pub async fn pay_rewards(client: &mut Client, node: &str) -> Result<(), Error> {
    let mut deadline = Instant::now() + TTL;
    let acquire = "SELECT lease_acquire('daily-reward', $1, make_interval(secs => $2))";
    let token = client.query_one(acquire, &[&node, &TTL.as_secs_f64()]).await?;
    let Some(token) = token.get::<_, Option<i64>>(0) else {
        return Ok(()); // somebody is at it, or it is done for today
    };
    while Instant::now() < deadline {
        let tx = client.transaction().await?;
        tx.execute("SELECT lease_fence('daily-reward', $1)", &[&token]).await?;
        let next = "SELECT day::text, day - current_date
                    FROM coalesce((lease_checkpoint('daily-reward') ->> 'paid')::date + 1, current_date) AS day";
        let next = tx.query_one(next, &[]).await?;
        let (day, ahead): (String, i32) = (next.get(0), next.get(1));
        if ahead <= 0 {
            tx.execute("UPDATE player SET coins = coins + 100", &[]).await?;
            let paid = serde_json::json!({ "paid": day });
            tx.execute("SELECT lease_checkpoint('daily-reward', $1, $2)", &[&token, &paid]).await?;
        }
        if ahead >= 0 {
            tx.execute("SELECT lease_complete('daily-reward', $1, until => current_date + 1)", &[&token])
                .await?;
            return tx.commit().await;
        }
        tx.commit().await?;

        let asked = Instant::now();
        let extend = "SELECT lease_extend('daily-reward', $1) IS NOT NULL";
        if !client.query_one(extend, &[&token]).await?.get::<_, bool>(0) {
            break; // lost: whoever has it goes on from the checkpoint
        }
        deadline = asked + TTL;
    }
    Ok(())
}
// [end cron]
