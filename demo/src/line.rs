//! Five nodes in line for a lease that lives as long as its holder's session. The holder is killed, and the line goes on: at once,
//! in its order, and nobody is skipped.

use crate::Error;
use crate::db::{Db, Failure, Parameters, value};
use crate::director::{Moment, Stage, What};
use crate::event::{Event, moment_to_freeze, tell};
use crate::tables;
use crate::timeline::{Teller, Who};
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::sleep;

/// The first argument of a node's process. Its number is the second one.
pub const NODE: &str = "node";

const NODES: usize = 5;
const LEASE: &str = "leader";
const DATABASE: &str = "lock_ext_demo_line";
/// How long a node leads.
const TERM: Duration = Duration::from_millis(300);

/// Each node makes one entry while it leads, which the fence lets it do only under the current token.
const TABLES: &str = "
    CREATE TABLE entry (
        entry_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        node     text NOT NULL,
        token    bigint NOT NULL
    );
";

pub async fn play() -> Result<(), Error> {
    println!("\nFive nodes in line: one lease \"{LEASE}\", which ends with its holder's session\n");
    let db = tables::fresh_database(DATABASE).await?;
    db.client.batch_execute(TABLES).await?;
    db.client.query_one("SELECT fence_attach('entry', $1, 'token')", &[&LEASE]).await?;
    let mut stage = Stage::new(Teller::of(Who::Node));

    let mut nodes = Vec::new();
    for number in 1..=NODES {
        nodes.push(stage.start_worker(number, &[NODE.into(), number.to_string()])?);
        if number == 1 {
            stage
                .until(|moment| moment.told_by(1, |event| matches!(event, Event::Entered)))
                .await?;
            continue;
        }
        // The next one comes when this one has its place.
        let place = i64::try_from(number)? - 1;
        let shown = "SELECT EXISTS (SELECT FROM lease_waiter JOIN pg_stat_activity USING (pid)
                     WHERE name = $1 AND place = $2 AND application_name = $3)";
        let parameters: Parameters = &[&LEASE, &place, &node(number)];
        stage.until_shown(&db, shown, parameters).await?;
        stage.note(number, What::InLine { place });
    }
    stage.note(1, What::Killed);
    nodes[0].kill()?;
    stage.until_all_ended().await?;

    let entries = "SELECT node FROM entry ORDER BY entry_id";
    let served = names(&db, entries).await?;
    let by_token = names(&db, "SELECT node FROM entry ORDER BY token").await?;
    println!("\nserved, by the entries in the table: {}", served.join(", "));
    let told: Vec<String> = stage.moments.iter().filter_map(served_by).map(node).collect();
    let line: Vec<String> = (1..=NODES).map(node).collect();
    if served != line || by_token != line || told != line {
        return Err("the nodes should have been served one after the other, in their order".into());
    }
    Ok(())
}

fn node(number: usize) -> String {
    format!("node-{number}")
}

fn served_by(moment: &Moment) -> Option<usize> {
    matches!(moment.what, What::Told(Event::Served { .. })).then_some(moment.worker)
}

async fn names(db: &Db, query: &str) -> Result<Vec<String>, Error> {
    let rows = db.client.query(query, &[]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// The whole life of a node's process.
pub async fn main(number: &str) -> ExitCode {
    match lead_once(&format!("{NODE}-{number}"), number == "1").await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tell(&Event::Failed { why: failure.to_string() });
            ExitCode::FAILURE
        }
    }
}

/// Stands in line, and leads for a while. The one that is to be killed leads until then.
async fn lead_once(node: &str, to_be_killed: bool) -> Result<(), Failure> {
    let db = Db::connect(DATABASE, node).await?;
    let acquire = "SELECT lease_acquire_session($1, $2, wait => '1 min')";
    let token: Option<i64> = value(&db.client, acquire, &[&LEASE, &node]).await?;
    let token = token.ok_or_else(|| Failure::LeaseLost("the wait ran out".into()))?;
    tell(&Event::Served { token });

    let write = "INSERT INTO entry (node, token) VALUES ($1, $2)";
    db.client.execute(write, &[&node, &token]).await?;
    if to_be_killed {
        moment_to_freeze(&Event::Entered).await;
    } else {
        tell(&Event::Entered);
        sleep(TERM).await;
    }

    // Told before the answer: the next one may have its own earlier than we have ours.
    tell(&Event::Released);
    match value(&db.client, "SELECT lease_release($1, $2)", &[&LEASE, &token]).await? {
        true => Ok(()),
        false => Err(Failure::LeaseLost("lease_release gave false".into())),
    }
}
