use std::time::Duration;

use crate::client::Node;
use crate::history::now;

/// When the caller dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    Never,
    BeforeCommit,
    /// So long after it was sent.
    InCommit(Duration),
}

/// All callers have the same key for so long.
const EACH: i64 = 400_000;

pub async fn turn(node: &mut Node) {
    let key = format!("key-{}", now() / EACH);
    let crash = match node.dice.below(20) {
        0 => Crash::BeforeCommit,
        1 => Crash::InCommit(Duration::from_micros(node.dice.below(3_000))),
        _ => Crash::Never,
    };
    let pause = if node.dice.one_in(3) { node.dice.millis(1, 250) } else { Duration::ZERO };
    let is_undone = node.dice.one_in(8);
    node.once(&key, crash, pause, is_undone).await;
    node.rest(30, 250).await;
}
