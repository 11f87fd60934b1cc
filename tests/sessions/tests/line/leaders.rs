//! Nodes that try to lead, each in a loop of `lease_elect`.

use std::time::{Duration, SystemTime};

use lock_ext_sessions::{Asked, Db, Session};
use tokio::task::JoinHandle;

const TTL: &str = "800 ms";

/// Says who it is as often as a heartbeat, whatever the answer was before.
fn node(session: &Session, name: &'static str) -> JoinHandle<()> {
    session.beside(move |me| async move {
        let mut token = None;
        loop {
            // An error is not leadership.
            token = me.lead("scheduler", name, TTL, token).await.unwrap_or(None);
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
    })
}

#[tokio::test]
async fn when_the_leader_dies_another_one_leads() {
    const NAMES: [&str; 5] = ["node-0", "node-1", "node-2", "node-3", "node-4"];
    let db = Db::fresh().await;
    let sessions: [Session; 5] = db.sessions().await;
    let mut loops: Vec<JoinHandle<()>> =
        sessions.iter().zip(NAMES).map(|(session, name)| node(session, name)).collect();
    let mut dead: Vec<String> = Vec::new();
    let mut last = 0;
    for round in 0..3 {
        db.until(
            "SELECT state = 'held' AND token > $1 FROM lease_status WHERE name = 'scheduler'",
            &[&last],
        )
        .await;
        let status = db.watch.info("scheduler").await.unwrap();
        let leader = status.holder.expect("a leader");
        assert!(!dead.contains(&leader), "the dead do not lead");
        let since: SystemTime = acquired_at(&db).await;
        // It leads on as long as it lives: a few times to live later it is the same grant.
        tokio::time::sleep(Duration::from_millis(if round == 0 { 2_000 } else { 0 })).await;
        if round == 0 {
            assert_eq!(acquired_at(&db).await, since, "no change without need");
        }
        let at = NAMES.iter().position(|name| *name == leader).expect("one of them");
        loops[at].abort();
        let _ = (&mut loops[at]).await;
        db.terminate(sessions[at].pid()).await;
        let status = db.watch.info("scheduler").await.unwrap();
        last = status.token.expect("a token");
        let expiry = status.expires_at.expect("an expiry");
        db.until("SELECT token > $1 AND state = 'held' FROM lease_status", &[&last]).await;
        let next = acquired_at(&db).await;
        assert!(next >= expiry, "two leaders at once");
        assert!(next < expiry + Duration::from_secs(3), "nobody led for long");
        dead.push(leader);
    }
    for call in loops {
        call.abort();
    }
}

async fn acquired_at(db: &Db) -> SystemTime {
    db.watch
        .one("SELECT acquired_at FROM lease_status WHERE name = 'scheduler'", &[])
        .await
        .unwrap()
}

/// A job that each node starts by its own clock: whoever is late finds it done, for the minimum hold.
#[tokio::test]
async fn a_cron_job_runs_once_on_clocks_that_differ() {
    let db = Db::fresh().await;
    let sessions: [Session; 4] = db.sessions().await;
    let mut runs = 0;
    for session in &sessions {
        let token: Option<i64> = session
            .one("SELECT lease_acquire('cron', 'node', '30 s', min_hold => '30 s')", &[])
            .await
            .unwrap();
        if let Some(token) = token {
            runs += 1;
            assert_eq!(session.rel("cron", token).await, Ok(true), "the job is short");
        }
    }
    assert_eq!(runs, 1);
    sessions[0].lead("cron", "node", "30 s", None).await.busy();
}
