use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::{Conn, Failure};
use crate::history::{Call, Log, Op, Outcome, Stage, UNDONE, now};

/// Longer than anything takes; who has waited for so long for an answer does not know the outcome.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// Begins operations and notes how they end.
pub struct Desk {
    client: String,
    log: Log,
    count: AtomicU64,
}

impl Desk {
    pub fn new(client: &str, log: Log) -> Self {
        Self { client: client.to_owned(), log, count: AtomicU64::new(0) }
    }

    pub fn next_id(&self) -> String {
        format!("{}.{}", self.client, self.count.fetch_add(1, Ordering::Relaxed))
    }

    pub fn begin(&self, id: String, backend: i32, call: Call) -> Op {
        let op = Op {
            id,
            backend,
            start: now(),
            end: None,
            call,
            outcome: Outcome::Unknown,
            error: None,
        };
        self.log.write(&op);
        op
    }

    pub fn end(&self, mut op: Op, outcome: Outcome) -> Outcome {
        op.end = (outcome != Outcome::Unknown).then(now);
        op.outcome = outcome;
        self.log.write(&op);
        op.outcome
    }
}

/// Notes the answer. A connection on which the outcome was not heard is given up.
pub fn settle(
    desk: &Desk,
    conn: &mut Conn,
    mut op: Op,
    answer: Result<Option<i64>, Failure>,
    at: Stage,
) -> Outcome {
    let in_block = matches!(op.call, Call::Write { .. } | Call::Once { .. } | Call::Undone { .. });
    let outcome = match answer {
        Ok(answer) => Outcome::Ok { answer },
        Err(failure) => {
            if failure.is_end {
                conn.close();
            }
            // Without a COMMIT a transaction does nothing, whatever became of the connection.
            if failure.is_sure || in_block && at == Stage::Statement {
                Outcome::Fail { code: failure.code, at }
            } else {
                op.error = Some(failure.code);
                Outcome::Unknown
            }
        }
    };
    desk.end(op, outcome)
}

/// Of a call in a transaction, by how that ended.
pub fn undone_if_refused(outcome: &Outcome) -> Outcome {
    match outcome {
        Outcome::Fail { at, .. } => Outcome::Fail { code: UNDONE.to_owned(), at: *at },
        _ => outcome.clone(),
    }
}

/// One call in autocommit.
pub async fn call_on(
    desk: &Desk,
    conn: &mut Conn,
    id: String,
    call: Call,
    sql: &str,
    params: &[&(dyn ToSql + Sync)],
    read: fn(&Row) -> Option<i64>,
) -> Outcome {
    call_for(desk, conn, id, call, sql, params, read, PATIENCE).await
}

/// The same by somebody who waits no longer than that for the answer.
#[expect(clippy::too_many_arguments, reason = "what a call consists of")]
pub async fn call_for(
    desk: &Desk,
    conn: &mut Conn,
    id: String,
    call: Call,
    sql: &str,
    params: &[&(dyn ToSql + Sync)],
    read: fn(&Row) -> Option<i64>,
    patience: Duration,
) -> Outcome {
    let Some(client) = conn.get().await else { return Outcome::Unknown };
    // Prepared before the operation begins, so that nothing but the call itself is timed.
    let statement = match in_time(client.0.prepare(sql)).await {
        Ok(statement) => statement,
        Err(_) => {
            conn.close();
            return Outcome::Unknown;
        }
    };
    let op = desk.begin(id, client.1, call);
    let answer = tokio::time::timeout(patience, client.0.query_one(&statement, params)).await;
    let answer = match answer {
        Ok(answer) => answer.map(|row| read(&row)).map_err(Failure::from),
        Err(_) => Err(Failure::too_late()),
    };
    settle(desk, conn, op, answer, Stage::Statement)
}

pub async fn in_time<T>(
    call: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(PATIENCE, call).await {
        Ok(answer) => answer.map_err(Failure::from),
        Err(_) => Err(Failure::too_late()),
    }
}
