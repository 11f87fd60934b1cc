use super::leave;
use crate::client::Node;
use crate::history::What;

const LEASE: &str = "line";

pub async fn turn(node: &mut Node) {
    let Some(tenure) = node.acquire(LEASE, 1_200_000, 8_000_000).await else {
        node.rest(50, 300).await;
        return;
    };
    if node.dice.one_in(3) {
        node.write(&tenure, What::Entry, async |client, id| {
            client.execute("INSERT INTO entry VALUES ($1, $2)", &[&LEASE, &id]).await.map(|_| true)
        })
        .await;
    }
    node.rest(10, 80).await;
    leave(node, tenure).await;
    node.rest(0, 100).await;
}
