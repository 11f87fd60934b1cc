// [once]
use tokio_postgres::{Client, Error};

/// False: it is done already for today.
pub async fn give_once(client: &mut Client) -> Result<bool, Error> {
    let tx = client.transaction().await?;
    let once = "SELECT once('daily-gift:' || (now() AT TIME ZONE 'Europe/Berlin')::date)";
    let first = tx.query_one(once, &[]).await?.get(0);
    if first {
        tx.execute("UPDATE gift SET coins = coins + 100", &[]).await?;
    }
    tx.commit().await?;
    Ok(first)
}
// [end once]
