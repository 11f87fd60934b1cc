//! A worker: pays the daily reward in chunks, as long as it holds the lease.
//!
//! Any number of these may be started. One gets the lease, the others ask again until they get it. Each chunk is
//! one transaction that holds the payments and how far the batch came. So whoever comes next goes on exactly
//! where the last committed chunk ended.
//!
//! What the fence adds is in the arms of [`Protection::Fence`]: `lease_fence` first in each transaction that
//! writes, `lease_checkpoint` to save and to read how far the batch came, and `lease_evict` after taking over.
//! With [`Protection::LeaseOnly`] the worker is the same, but for a table of its own in place of the checkpoint.

use crate::db::{Db, Failure, Parameters, value};
use crate::event::{Event, moment_to_freeze, tell};
use crate::heartbeat::{Heartbeat, Lease};
use crate::job::{ASK_AGAIN, CHUNK, Job, LEASE, PACE, PLAYERS, Protection, TIME_TO_LIVE};
use std::process::ExitCode;
use tokio::time::{Instant, sleep};

/// The whole life of a worker process.
pub async fn main(job: &Job) -> ExitCode {
    match run(job).await {
        Ok(()) => {
            tell(&Event::Completed);
            return ExitCode::SUCCESS;
        }
        Err(Failure::Refused(error)) => tell(&Event::Refused { error }),
        Err(Failure::LeaseLost(why)) => tell(&Event::Stopped { why }),
        Err(failure) => {
            let why = failure.to_string();
            tell(&Event::Failed { why });
        }
    }
    ExitCode::FAILURE
}

async fn run(job: &Job) -> Result<(), Failure> {
    let database = job.protection.database();
    let mut db = Db::connect(database, &job.holder).await?;
    let lease = acquire(&db, job).await?;
    let second_db = Db::connect(database, &format!("{} heartbeat", job.holder)).await?;
    let heartbeat = Heartbeat::start(second_db, lease.clone()).await?;

    if job.protection == Protection::Fence {
        evict_predecessor(&db, &lease).await?;
    }
    let mut after_player = progress(&db, job).await?;
    tell(&Event::StartsAfter { after_player });

    while after_player < PLAYERS {
        match pay_chunk(&mut db, job, &lease, after_player).await {
            Ok(last_paid) => {
                after_player = last_paid;
                sleep(PACE).await;
                heartbeat.check()?;
            }
            // Whether the chunk was committed only the database knows, and whether we still hold the lease it
            // knows better than our own deadline: ask the first, and let the fence answer the second.
            Err(Failure::ConnectionLost(reason)) => {
                let error = reason.or(db.last_words().await);
                tell(&Event::ConnectionLost { error });
                db = Db::connect(database, &job.holder).await?;
                after_player = progress(&db, job).await?;
                tell(&Event::ConnectedAgain { after_player });
            }
            Err(failure) => return Err(failure),
        }
    }

    heartbeat.stop();
    let complete = "SELECT lease_complete($1, $2)";
    match value(&db.client, complete, &[&lease.name, &lease.token]).await? {
        true => Ok(()),
        false => Err(Failure::LeaseLost("lease_complete gave false".into())),
    }
}

/// Asks for the lease until it is ours.
async fn acquire(db: &Db, job: &Job) -> Result<Lease, Failure> {
    let acquire = "SELECT lease_acquire($1, $2, make_interval(secs => $3))";
    let seconds = TIME_TO_LIVE.as_secs_f64();
    loop {
        let asked_at = Instant::now();
        let token: Option<i64> =
            value(&db.client, acquire, &[&LEASE, &job.holder, &seconds]).await?;
        if let Some(token) = token {
            tell(&Event::Granted { token });
            let (name, time_to_live) = (LEASE.into(), TIME_TO_LIVE);
            return Ok(Lease { name, token, time_to_live, asked_at });
        }
        tell(&Event::Busy);
        sleep(ASK_AGAIN).await;
    }
}

/// Ends what a frozen predecessor left open. It can never commit any more, but it keeps its row locks, and
/// we would wait for them.
async fn evict_predecessor(db: &Db, lease: &Lease) -> Result<(), Failure> {
    let evict = "SELECT * FROM lease_evict($1, $2)";
    let rows = db.client.query(evict, &[&lease.name, &lease.token]).await?;
    if !rows.is_empty() {
        let pids = rows.iter().map(|row| row.get(0)).collect();
        tell(&Event::Evicted { pids });
    }
    Ok(())
}

/// How far the batch came: the last player of the last committed chunk, 0 before the first.
async fn progress(db: &Db, job: &Job) -> Result<i32, Failure> {
    let read = match job.protection {
        Protection::Fence => {
            "SELECT coalesce((lease_checkpoint($1) ->> 'after_player')::integer, 0)"
        }
        Protection::LeaseOnly => "SELECT after_player FROM progress WHERE job = $1",
    };
    value(&db.client, read, &[&LEASE]).await
}

/// Pays one chunk in one transaction, and gives the last player paid.
async fn pay_chunk(
    db: &mut Db,
    job: &Job,
    lease: &Lease,
    after_player: i32,
) -> Result<i32, Failure> {
    let (first, last) = (after_player + 1, (after_player + CHUNK).min(PLAYERS));
    let transaction = db.client.transaction().await?;
    if job.protection == Protection::Fence {
        // From here to COMMIT everything is written under our token.
        let fence = "SELECT lease_fence($1, $2)";
        transaction.execute(fence, &[&lease.name, &lease.token]).await?;
    }

    let credit = "UPDATE player SET balance = balance + reward
                  WHERE player_id BETWEEN $1 AND $2";
    transaction.execute(credit, &[&first, &last]).await?;
    let record = "INSERT INTO payment (player_id, amount, paid_by, token)
                  SELECT player_id, reward, $3, $4 FROM player
                  WHERE player_id BETWEEN $1 AND $2";
    let parameters: Parameters = &[&first, &last, &job.holder, &lease.token];
    transaction.execute(record, parameters).await?;

    match job.protection {
        Protection::Fence => {
            let save =
                "SELECT lease_checkpoint($1, $2, jsonb_build_object('after_player', $3::integer))";
            transaction.execute(save, &[&lease.name, &lease.token, &last]).await?;
        }
        Protection::LeaseOnly => {
            let save = "UPDATE progress SET after_player = $2 WHERE job = $1";
            transaction.execute(save, &[&lease.name, &last]).await?;
        }
    }

    if job.pause_in_chunk == Some(last / CHUNK) {
        moment_to_freeze(&Event::InOpenChunk { first, last }).await;
    }
    transaction.commit().await?;
    tell(&Event::Paid { first, last });
    Ok(last)
}
