//! Notifications, for who asks for them: after the commit, and nothing else.

use futures_util::StreamExt;
use lock_ext_sessions::{Asked, Db, PATIENCE, Refused, Session};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::{AsyncMessage, Client, NoTls};

use super::scene::{asleep, stand};

/// Listens to the channel that the README names.
struct Listener {
    _client: Client,
    heard: UnboundedReceiver<(String, String)>,
}

impl Listener {
    async fn to(db: &Db) -> Self {
        let variable = |name: &str| std::env::var(name).expect("with-cluster.sh sets it");
        let mut config = tokio_postgres::Config::new();
        config
            .host(variable("PGHOST"))
            .port(variable("PGPORT").parse().expect("a number"))
            .user(variable("PGUSER"))
            .dbname(db.name());
        let (client, mut connection) = config.connect(NoTls).await.expect("a connection");
        let (tell, heard) = unbounded_channel();
        tokio::spawn(async move {
            let mut messages =
                futures_util::stream::poll_fn(move |context| connection.poll_message(context));
            while let Some(Ok(message)) = messages.next().await {
                if let AsyncMessage::Notification(said) = message {
                    // The test may have ended.
                    let _ = tell.send((said.channel().to_owned(), said.payload().to_owned()));
                }
            }
        });
        client.batch_execute("LISTEN lock_ext").await.expect("anybody may listen");
        Self { _client: client, heard }
    }

    async fn next(&mut self) -> String {
        let said = tokio::time::timeout(PATIENCE, self.heard.recv()).await.expect("in time");
        let (channel, payload) = said.expect("the listener is there");
        assert_eq!(channel, "lock_ext");
        payload
    }

    /// The next one is this, and it is JSON with these three members and no more.
    async fn hears(&mut self, db: &Db, event: &str, lease: &str, token: i64) {
        let payload = self.next().await;
        let equal: bool = db
            .watch
            .one(
                "SELECT $1::text::jsonb = jsonb_build_object('event', $2::text, 'lease', $3::text, 'token', $4::bigint)",
                &[&payload, &event, &lease, &token],
            )
            .await
            .unwrap_or_else(|error| panic!("{payload}: {error:?}"));
        assert!(equal, "not {event} of {lease:?} with {token}: {payload}");
    }

    /// Nothing came before this moment: they arrive in the order of the commits.
    async fn hears_nothing(&mut self, db: &Db, case: &str) {
        db.watch.sql("NOTIFY lock_ext, 'mark'").await.unwrap();
        assert_eq!(self.next().await, "mark", "{case}");
    }
}

async fn talkative(db: &Db) -> Session {
    let session = db.session().await;
    session.sql("SET lock_ext.notify = on").await.unwrap();
    session
}

#[tokio::test]
async fn every_committed_change_of_hands_is_told() {
    let db = Db::fresh().await;
    let mut listener = Listener::to(&db).await;
    let [a, b] = [talkative(&db).await, talkative(&db).await];

    let t = a.acq("j", "A", "60 s").await.granted();
    listener.hears(&db, "grant", "j", t).await;
    assert_eq!(a.rel("j", t).await, Ok(true));
    listener.hears(&db, "release", "j", t).await;
    let t = a.lead("j", "A", "50 ms", None).await.granted();
    listener.hears(&db, "grant", "j", t).await;
    db.expired("j").await;
    let t = b.acq("j", "B", "60 s").await.granted();
    listener.hears(&db, "take_over", "j", t).await;
    assert_eq!(a.force("j").await, Ok(true));
    listener.hears(&db, "force_release", "j", t).await;
    let t = a.sacq("j", "A", "0").await.granted();
    listener.hears(&db, "grant", "j", t).await;
    db.terminate(a.pid()).await;
    let t = b.sacq("j", "B", "1 s").await.granted();
    listener.hears(&db, "take_over", "j", t).await;
    assert_eq!(b.complete("j", t).await, Ok(true));
    listener.hears(&db, "complete", "j", t).await;
    listener.hears_nothing(&db, "at the end").await;
}

/// In a block at its commit, in the order of the block; what was rolled back was not.
#[tokio::test]
async fn it_is_told_after_the_commit() {
    let db = Db::fresh().await;
    let mut listener = Listener::to(&db).await;
    let a = talkative(&db).await;
    a.sql("BEGIN").await.unwrap();
    let j = a.acq("j", "A", "60 s").await.granted();
    let k = a.acq("k", "A", "60 s").await.granted();
    a.sql("SAVEPOINT s").await.unwrap();
    a.acq("never", "A", "60 s").await.granted();
    assert_eq!(a.rel("k", k).await, Ok(true));
    a.sql("ROLLBACK TO s").await.unwrap();
    listener.hears_nothing(&db, "before the commit").await;
    a.commit().await.unwrap();
    listener.hears(&db, "grant", "j", j).await;
    listener.hears(&db, "grant", "k", k).await;

    for sql in [
        "SELECT lease_release('j', $1)",
        "SELECT lease_complete('j', $1)",
        "SELECT lease_force_release('j') OR $1::bigint = 0",
    ] {
        a.sql("BEGIN").await.unwrap();
        assert_eq!(a.one(sql, &[&j]).await, Ok(true));
        a.rollback().await;
    }
    listener.hears_nothing(&db, "rolled back").await;
    a.sql("BEGIN").await.unwrap();
    assert_eq!(a.rel("j", j).await, Ok(true));
    listener.hears_nothing(&db, "not committed").await;
    a.commit().await.unwrap();
    listener.hears(&db, "release", "j", j).await;
    a.sql("BEGIN").await.unwrap();
    assert_eq!(a.complete("k", k).await, Ok(true));
    a.commit().await.unwrap();
    listener.hears(&db, "complete", "k", k).await;
    listener.hears_nothing(&db, "once each").await;
}

/// A lost race, a heartbeat, a late release, a repeated request, a wait that ran out: nothing has changed hands.
#[tokio::test]
async fn what_changes_no_hands_is_not_told() {
    let db = Db::fresh().await;
    let mut listener = Listener::to(&db).await;
    let [a, b] = [talkative(&db).await, talkative(&db).await];
    let request = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
    let t = a.acq_as_request("j", "A", "60 s", request).await.granted();
    listener.hears(&db, "grant", "j", t).await;
    b.acq("j", "B", "60 s").await.busy();
    b.acq_wait("j", "B", "60 s", "20 ms").await.busy();
    b.sacq("j", "B", "0").await.busy();
    assert_eq!(a.acq_as_request("j", "A", "60 s", request).await, Ok(Some(t)));
    a.ext("j", t, "60 s").await.extended();
    a.ext_many(&["j"], &[t], "60 s").await.unwrap();
    assert_eq!(a.lead("j", "A", "60 s", Some(t)).await, Ok(Some(t)));
    assert_eq!(b.rel("j", t - 1).await, Ok(false));
    assert_eq!(b.force("nobody").await, Ok(false));
    a.cp("j", t, "1").await.unwrap();
    listener.hears_nothing(&db, "no change of hands").await;
    assert_eq!(a.rel("j", t).await, Ok(true));
    listener.hears(&db, "release", "j", t).await;
    assert_eq!(a.rel("j", t).await, Ok(false));
    listener.hears_nothing(&db, "released twice").await;
}

#[tokio::test]
async fn it_is_off_unless_a_session_asks() {
    let db = Db::fresh().await;
    let mut listener = Listener::to(&db).await;
    let app = db.role("app").await;
    let [quiet, loud] = [db.session().await, db.session_as(&app).await];
    let t = quiet.acq("j", "A", "60 s").await.granted();
    // The settings are there with the first call, which loads the library.
    assert_eq!(quiet.one("SHOW lock_ext.notify", &[]).await, Ok("off".to_owned()));
    assert_eq!(quiet.rel("j", t).await, Ok(true));
    listener.hears_nothing(&db, "off").await;
    // Any role may, for itself, also for a transaction.
    loud.sql("BEGIN; SET LOCAL lock_ext.notify = on").await.unwrap();
    let t = loud.acq("j", "B", "60 s").await.granted();
    loud.commit().await.unwrap();
    listener.hears(&db, "grant", "j", t).await;
    assert_eq!(loud.rel("j", t).await, Ok(true));
    listener.hears_nothing(&db, "on for one transaction only").await;
}

/// One in line hears nothing by it: each session tells what it does itself, and the line works the same with and without.
#[tokio::test]
async fn a_hand_over_in_line_is_told_by_both() {
    let db = Db::fresh().await;
    let mut listener = Listener::to(&db).await;
    let [a, w] = [talkative(&db).await, talkative(&db).await];
    let t = a.acq("j", "A", "60 s").await.granted();
    listener.hears(&db, "grant", "j", t).await;
    let call = stand(&db, &w, "j", "40 s").await;
    asleep(&db, w.pid()).await;
    assert_eq!(a.rel("j", t).await, Ok(true));
    let t2 = call.await.unwrap().granted();
    listener.hears(&db, "release", "j", t).await;
    listener.hears(&db, "grant", "j", t2).await;
    listener.hears_nothing(&db, "once each").await;
}

/// Any name, also the longest one that is escaped most.
#[tokio::test]
async fn any_name_fits_into_the_payload() {
    let db = Db::fresh().await;
    let mut listener = Listener::to(&db).await;
    let a = talkative(&db).await;
    for name in [
        "a\"b\\c\nd\te/'f'".to_owned(),
        "\u{e4}\u{20ac}\u{1F600}".to_owned(),
        " ".to_owned(),
        "x".repeat(1024),
        "\"".repeat(1024),
        "\u{1}".repeat(1024),
        "\u{20ac}".repeat(341),
    ] {
        let t = a.acq(&name, "A", "60 s").await.granted();
        listener.hears(&db, "grant", &name, t).await;
        assert_eq!(a.rel(&name, t).await, Ok(true));
        listener.hears(&db, "release", &name, t).await;
    }
}

/// PostgreSQL prepares no transaction that notifies. With the setting on that is its error, and nothing is left.
#[tokio::test]
async fn a_prepared_transaction_tells_nothing() {
    let db = Db::fresh().await;
    let mut listener = Listener::to(&db).await;
    let a = talkative(&db).await;
    let b = db.session().await;
    a.sql("BEGIN").await.unwrap();
    a.acq("j", "A", "60 s").await.granted();
    a.sql(&format!("PREPARE TRANSACTION '{}'", db.name())).await.refused("0A000");
    a.sql("ROLLBACK").await.unwrap();
    listener.hears_nothing(&db, "not prepared").await;
    b.acq("j", "B", "60 s").await.granted();
}
