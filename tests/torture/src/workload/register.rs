use super::{Work, is_over, leave};
use crate::client::Node;
use crate::history::{Call, What};

const LEASE: &str = "register";

pub async fn turn(node: &mut Node) {
    read(node).await;
    let Some(tenure) = node.acquire(LEASE, 1_200_000, 0).await else {
        node.rest(20, 150).await;
        return;
    };
    let mut known = read(node).await;
    let mut work = Work::begin(node, &tenure, 6);
    while work.goes_on(node, &tenure).await {
        let Some(old) = known else { break };
        let new = node.new_element();
        let outcome = node
            .write(&tenure, What::Swap { old, new }, async |client, _| {
                // The comparison is the client's: nothing but the lease makes the two statements one.
                let row = client.query_one("SELECT v FROM register WHERE id = 1", &[]).await?;
                if row.get::<_, i64>(0) != old {
                    return Ok(false);
                }
                client.execute("UPDATE register SET v = $1 WHERE id = 1", &[&new]).await?;
                Ok(true)
            })
            .await;
        if is_over(&outcome) {
            break;
        }
        known = read(node).await;
        node.pause_between(&tenure).await;
    }
    leave(node, tenure).await;
    node.rest(0, 80).await;
}

async fn read(node: &mut Node) -> Option<i64> {
    let sql = "SELECT v FROM register WHERE id = 1";
    let outcome = node.call(Call::Read, sql, &[], |row| Some(row.get(0))).await;
    if let crate::history::Outcome::Ok { answer } = outcome { answer } else { None }
}
