use serde::{Deserialize, Serialize};

use super::{is_over, leave, may_go_on};
use crate::client::{Node, Tenure};
use crate::history::{Call, Outcome, What};

const LEASE: &str = "batch";
pub const PLAYERS: i64 = 200;
const CHUNK: i64 = 20;
/// Between two rounds.
const PAUSE: i64 = 300_000;

/// The checkpoint: all players of earlier rounds are paid, and those before `next` of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    pub round: i64,
    pub next: i64,
}

impl Progress {
    pub fn of(state: Option<&str>) -> Self {
        state.map_or(Self { round: 1, next: 1 }, |state| {
            serde_json::from_str(state).expect("a checkpoint of ours")
        })
    }
}

pub async fn turn(node: &mut Node) {
    let Some(tenure) = node.acquire(LEASE, 1_500_000, 0).await else {
        node.rest(20, 150).await;
        return;
    };
    let read = node.orders.guard.read_checkpoint();
    let Some(row) = node.row(read, &[&LEASE]).await else { return };
    let mut progress = Progress::of(row.get(0));
    while may_go_on(node, &tenure) {
        let Progress { round, next: from } = progress;
        let to = from + CHUNK;
        let is_last = to > PLAYERS;
        let after = if is_last {
            Progress { round: round + 1, next: 1 }
        } else {
            Progress { round, next: to }
        };
        let state = serde_json::to_string(&after).expect("JSON");
        let (checkpoint, token) = (node.orders.guard.checkpoint(), tenure.token);
        let looks = !node.orders.careless;
        let outcome = node
            .write(&tenure, What::Pay { round, from, to }, async |client, _| {
                // Under the fence, so that it is what this transaction goes on from. What a client remembers may be lost: its lease can
                // survive a fail-over that its last commits did not survive.
                if looks {
                    let row = client.query_one(read, &[&LEASE]).await?;
                    if Progress::of(row.get(0)) != progress {
                        return Ok(false);
                    }
                }
                let sql = "INSERT INTO reward (round, player)
                           SELECT $1::bigint, player FROM generate_series($2::bigint, $3::bigint - 1) AS player";
                client.execute(sql, &[&round, &from, &to]).await?;
                client.execute(checkpoint, &[&LEASE, &token, &state]).await?;
                Ok(true)
            })
            .await;
        match outcome {
            Outcome::Ok { answer: Some(_) } => progress = after,
            // Not paid: the checkpoint knows.
            _ if !is_over(&outcome) => {
                let Some(row) = node.row(read, &[&LEASE]).await else { break };
                progress = Progress::of(row.get(0));
                continue;
            }
            _ => break,
        }
        if is_last && node.dice.one_in(2) {
            complete(node, tenure).await;
            node.rest(100, 400).await;
            return;
        }
        node.pause_between(&tenure).await;
        if node.dice.one_in(12) {
            break;
        }
    }
    leave(node, tenure).await;
    node.rest(0, 80).await;
}

async fn complete(node: &mut Node, tenure: Tenure) {
    let token = tenure.token;
    drop(tenure);
    let call = Call::Complete { lease: LEASE.to_owned(), token, pause: PAUSE };
    let sql = "SELECT lease_complete($1, $2, clock_timestamp() + '300 ms'::interval)";
    node.call(call, sql, &[&LEASE, &token], |row| Some(i64::from(row.get::<_, bool>(0)))).await;
}
