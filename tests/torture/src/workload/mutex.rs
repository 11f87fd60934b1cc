use super::{Work, ask_whether_current, is_over, leave};
use crate::client::Node;
use crate::history::What;

const LEASE: &str = "mutex";

pub async fn turn(node: &mut Node) {
    if node.dice.one_in(12) {
        node.draw_and_undo(LEASE).await;
    }
    let Some(tenure) = node.acquire(LEASE, 1_500_000, 0).await else {
        node.rest(20, 150).await;
        return;
    };
    let mut work = Work::begin(node, &tenure, 7);
    while work.goes_on(node, &tenure).await {
        if node.dice.one_in(5) {
            ask_whether_current(node, &tenure).await;
        }
        let outcome = node
            .write(&tenure, What::Entry, async |client, id| {
                client
                    .execute("INSERT INTO entry VALUES ($1, $2)", &[&LEASE, &id])
                    .await
                    .map(|_| true)
            })
            .await;
        if is_over(&outcome) {
            break;
        }
        node.pause_between(&tenure).await;
    }
    leave(node, tenure).await;
    node.rest(0, 80).await;
}
