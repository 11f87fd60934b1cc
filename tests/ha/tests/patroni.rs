//! A Patroni cluster under the reward batch: the leader is killed, another one is cut off from the network while clients on its own
//! machine go on writing to it, and one hands over on request. Three nodes with etcd, Patroni and PostgreSQL
//! each, in network namespaces of their own.
//!
//! * Every player is paid exactly once, in the history that survives.
//! * No token is told twice, and those of a lease rise in the order in which clients were told, over all histories: also
//!   tokens of a lost tail, of a leader that was cut off, and of transactions that never committed.
//! * Asynchronous, acknowledged payments are lost with the tail, together with the checkpoint, and are made again. With
//!   Patroni's `synchronous_mode` nothing that was acknowledged is lost, and a leader that is cut off acknowledges nothing.
//!
//! With `LOCK_EXT_HA_NAIVE=1` the same batch runs without the fence and the checkpoint, and the test fails.

mod batch;
mod book;
mod client;
mod cluster;
mod network;

use std::collections::HashSet;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::batch::{BEACON, Crowd, PLAYERS, REWARD, make_tables};
use self::book::{Book, Paid};
use self::client::Db;
use self::cluster::Cluster;

const PATIENCE: Duration = Duration::from_secs(120);

/// Lines in the book that make sure that a server is at work: more tokens than a sequence logs ahead (32), so that
/// forgotten ones would be drawn again.
const ENOUGH: (usize, usize) = (40, 20);

#[tokio::test(flavor = "multi_thread")]
async fn patroni_asynchronous_pays_everybody_once() {
    fail_overs(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn patroni_synchronous_loses_nothing_acknowledged() {
    fail_overs(true).await;
}

async fn fail_overs(synchronous: bool) {
    let mode = if synchronous { "synchronous" } else { "asynchronous" };
    // Not println: that is shown only of a test that fails.
    let say = |what: &str| {
        writeln!(std::io::stderr(), "patroni, {mode}: {what}").expect("standard error");
    };
    if let Some(missing) = Cluster::missing() {
        say(&format!("LEFT OUT: {missing}"));
        return;
    }
    let begin = Instant::now();

    let mut cluster = Cluster::start(synchronous).await;
    let book = Arc::new(Book::default());
    make_tables(&cluster.hosts()).await;
    say(&format!("a cluster after {}", seconds(begin)));
    let crowd = Crowd::outside(&cluster.hosts(), &book);
    at_work(&book, ENOUGH).await;

    let leader = cluster.new_leader(None).await;
    let leader = killed(&mut cluster, &book, leader, &say).await;
    let leader = cut_off(&cluster, &book, leader, &say).await;
    switched_over(&cluster, &book, leader, &say).await;

    let (_, chunks) = book.lines();
    assert!(!paid_up(&cluster).await, "the batch ended too early, after {chunks} chunks");
    crowd.hurry();
    tokio::time::timeout(PATIENCE, crowd.completed()).await.expect("the batch comes to its end");
    settle(&cluster, &book, &say).await;
    say(&format!("all in {}", seconds(begin)));
}

/// The leader's Patroni and PostgreSQL are killed, while what they wrote last is nowhere else. Gives the new leader.
async fn killed(cluster: &mut Cluster, book: &Book, leader: usize, say: &impl Fn(&str)) -> usize {
    let standbys = cluster.hold_up_standbys(leader);
    if cluster.synchronous {
        // Nothing is acknowledged from now on.
        cluster
            .until(leader, "SELECT count(*) > 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
            .await;
    } else {
        at_work(book, ENOUGH).await;
    }
    cluster.kill(leader);
    let start = Instant::now();
    standbys.go_on_without();
    let new_leader = cluster.new_leader(Some(leader)).await;
    at_work(book, (1, 1)).await;
    say(&format!("leader killed: payments again after {}", seconds(start)));

    cluster.start_patroni(leader);
    cluster.standbys_stream(new_leader).await;
    say(&format!("leader killed: all three again after {}", seconds(start)));
    at_work(book, ENOUGH).await;
    new_leader
}

/// The leader is cut off, and comes back. Gives the new leader.
async fn cut_off(cluster: &Cluster, book: &Arc<Book>, leader: usize, say: &impl Fn(&str)) -> usize {
    cluster.cut(leader);
    let start = Instant::now();
    let inside = Crowd::inside(&cluster.hosts_inside(leader), book);
    cluster.demoted(leader).await;
    say(&format!("leader cut off: demoted after {}", seconds(start)));
    inside.stop().await;
    let written: Vec<_> = book.all_paid().into_iter().filter(|paid| paid.inside).collect();
    let written: Vec<_> = written.iter().map(|paid| paid.attempt.to_string()).collect();
    let there = format!(
        "EXISTS (SELECT FROM payment WHERE attempt = ANY ('{{{}}}'::bigint[]))",
        written.join(", ")
    );
    if !cluster.synchronous {
        // It is a standby of nobody then.
        cluster.until(leader, &format!("SELECT {there}")).await;
    }

    let new_leader = cluster.new_leader(Some(leader)).await;
    at_work(book, (1, 1)).await;
    say(&format!("leader cut off: payments again after {}", seconds(start)));
    cluster.mend(leader);
    cluster.standbys_stream(new_leader).await;
    say(&format!("leader cut off: all three again after {}", seconds(start)));
    // Its end of the history was thrown away when it came back.
    cluster.until(leader, &format!("SELECT NOT {there}")).await;
    at_work(book, ENOUGH).await;
    new_leader
}

/// The leader hands over on request.
async fn switched_over(cluster: &Cluster, book: &Book, leader: usize, say: &impl Fn(&str)) {
    let start = Instant::now();
    cluster.switch_over();
    let new_leader = cluster.new_leader(Some(leader)).await;
    at_work(book, (1, 1)).await;
    say(&format!("switchover: payments again after {}", seconds(start)));
    cluster.standbys_stream(new_leader).await;
    at_work(book, ENOUGH).await;
}

/// Waits until so many tokens more were told, and so many chunks more paid.
async fn at_work(book: &Book, (tokens, chunks): (usize, usize)) {
    let (told, paid) = book.lines();
    let start = Instant::now();
    loop {
        let (now_told, now_paid) = book.lines();
        if now_told >= told + tokens && now_paid >= paid + chunks {
            return;
        }
        assert!(
            start.elapsed() < PATIENCE,
            "the clients do not go on: {now_told} tokens, {now_paid} chunks"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn paid_up(cluster: &Cluster) -> bool {
    let db = Db::connect(&cluster.hosts(), "test").await.expect("a leader");
    let all = "SELECT NOT EXISTS (SELECT FROM player WHERE balance = 0)";
    db.value(all, &[]).await.expect("an answer")
}

/// Compares the history that survived with what clients were told.
async fn settle(cluster: &Cluster, book: &Book, say: &impl Fn(&str)) {
    let db = Db::connect(&cluster.hosts(), "test").await.expect("a leader");
    let surviving: HashSet<i64> = db
        .list("SELECT DISTINCT attempt FROM payment", &[])
        .await
        .expect("an answer")
        .into_iter()
        .collect();
    let paid = book.all_paid();
    let players = |of: &[&Paid]| of.iter().map(|paid| paid.players).sum::<i32>();
    let lost: Vec<_> = paid.iter().filter(|paid| !surviving.contains(&paid.attempt)).collect();
    let inside: Vec<_> = paid.iter().filter(|paid| paid.inside).collect();
    let inside_lost = lost.iter().filter(|paid| paid.inside).count();
    say(&format!(
        "payments acknowledged: {}, of these lost: {}, of these by the leader that was cut off: {}",
        players(&paid.iter().collect::<Vec<_>>()),
        players(&lost),
        players(&inside)
    ));

    let told = book.all_told();
    let granted: HashSet<i64> =
        db.list("SELECT token FROM granted", &[]).await.expect("an answer").into_iter().collect();
    let grants = |of: &str| told.iter().filter(|told| told.lease == of && told.committed).count();
    let grants_lost = told
        .iter()
        .filter(|told| told.lease == BEACON && told.committed && !granted.contains(&told.token))
        .count();
    let grants_inside = told.iter().filter(|told| told.inside).count();
    say(&format!(
        "grants told: {}, of lease {BEACON} acknowledged: {}, of these lost: {grants_lost}",
        told.len(),
        grants(BEACON),
    ));
    say(&format!("grants told by the leader that was cut off: {grants_inside}"));
    say(&format!("tokens: {}", book.tokens()));

    book.check_tokens();
    let times = "SELECT count(*) FILTER (WHERE times = $1)
                 FROM (SELECT count(payment_id) AS times
                       FROM player LEFT JOIN payment USING (player_id) GROUP BY player_id) AS paid";
    let never: i64 = db.value(times, &[&0_i64]).await.expect("an answer");
    let once: i64 = db.value(times, &[&1_i64]).await.expect("an answer");
    let more = i64::from(PLAYERS) - never - once;
    say(&format!("players paid never: {never}, once: {once}, more often: {more}"));
    assert_eq!((never, more), (0, 0), "players paid never, and more than once");
    let balances = "SELECT count(*) FROM player WHERE balance <> 1";
    assert_eq!(db.value::<i64>(balances, &[]).await.expect("an answer"), 0);
    let state = "SELECT state FROM lease_status WHERE name = $1";
    assert_eq!(db.value::<String>(state, &[&REWARD]).await.expect("an answer"), "completed");
    let backwards = "SELECT count(*) FROM (
                         SELECT token, lag(token) OVER (ORDER BY payment_id) AS before FROM payment
                     ) AS written WHERE token < before";
    assert_eq!(db.value::<i64>(backwards, &[]).await.expect("an answer"), 0, "a stale write");

    if cluster.synchronous {
        assert_eq!(lost.len(), 0, "acknowledged payments were lost");
        assert_eq!(grants_lost, 0, "acknowledged grants were lost");
        assert_eq!(inside.len(), 0, "a leader that was cut off acknowledged payments");
        let kept = "SELECT grants FROM lease_status WHERE name = $1";
        for lease in [REWARD, BEACON] {
            let kept: i64 = db.value(kept, &[&lease]).await.expect("an answer");
            assert!(kept >= i64::try_from(grants(lease)).expect("small"), "lease {lease}: {kept}");
        }
    } else {
        assert!(inside.len() > 1 && inside_lost == inside.len(), "pg_rewind throws these away");
        assert!(lost.len() > inside_lost, "nothing was lost with the leader that was killed");
        assert!(grants_inside > 32, "the leader that was cut off told too few tokens");
    }
}

fn seconds(since: Instant) -> String {
    format!("{:.1} s", since.elapsed().as_secs_f64())
}
