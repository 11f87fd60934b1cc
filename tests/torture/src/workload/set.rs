use super::{Work, is_over, leave};
use crate::client::Node;
use crate::history::What;

const LEASE: &str = "set";

/// As Jepsen's test of etcd's locks has it: a time to live of 2 s.
const TTL: i64 = 2_000_000;

pub async fn turn(node: &mut Node) {
    let Some(tenure) = node.acquire(LEASE, TTL, 0).await else {
        node.rest(20, 150).await;
        return;
    };
    let mut work = Work::begin(node, &tenure, 6);
    while work.goes_on(node, &tenure).await {
        // Read here, written there: what somebody else adds in between is lost.
        let sql = "SELECT elements FROM growing WHERE id = 1";
        let Some(row) = node.row(sql, &[]).await else { break };
        let mut elements: Vec<i64> = row.get(0);
        node.pause_between(&tenure).await;
        let element = node.new_element();
        elements.push(element);
        let outcome = node
            .write(&tenure, What::Add { element }, async |client, _| {
                let sql = "UPDATE growing SET elements = $1 WHERE id = 1";
                client.execute(sql, &[&elements]).await.map(|_| true)
            })
            .await;
        if is_over(&outcome) {
            break;
        }
    }
    leave(node, tenure).await;
    node.rest(0, 80).await;
}
