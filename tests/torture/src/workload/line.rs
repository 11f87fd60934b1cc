use super::leave;
use crate::client::{Node, Tenure};
use crate::history::What;

const LEASE: &str = "line";

pub async fn turn(node: &mut Node) {
    let tenure = if node.dice.one_in(6) {
        past_the_line(node).await
    } else {
        node.acquire(LEASE, 1_200_000, 8_000_000).await
    };
    let Some(tenure) = tenure else {
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

/// Calls without standing in line, over and over, so that one of them comes just when the holder releases.
async fn past_the_line(node: &mut Node) -> Option<Tenure> {
    for _ in 0..node.dice.below(40) {
        if let Some(tenure) = node.acquire(LEASE, 1_200_000, 0).await {
            return Some(tenure);
        }
        node.rest(0, 6).await;
    }
    None
}
