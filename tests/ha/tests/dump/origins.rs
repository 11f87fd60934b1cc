//! Dumps that do not say where their tokens were drawn, or of which two servers make the same thing.

use super::{Dump, create};
use lock_ext_ha::{Asked, EPOCH, Server, Session};

async fn granted(session: &Session, names: &[&str]) -> i64 {
    let mut last = 0;
    for name in names {
        let token = session.acq(name, "A", "1 h").await.granted();
        assert!(token > last, "{token} of {name} after {last}");
        last = token;
    }
    last
}

/// The primary draws after the restore, the standby that has seen no more than the restore is promoted.
#[tokio::test]
async fn a_restored_database_on_two_timelines() {
    let there = Server::new("there", &[]).await;
    granted(&there.with_extension().await, &["a", "b", "c"]).await;
    let dump = Dump::of(&there, "postgres", &[]).await;
    let primary = Server::new("primary", &[]).await;
    create(&primary, "restored", "").await;
    dump.restore(&primary, "restored", &["--exit-on-error"]).await.unwrap();
    let [s1, s2] = [primary.standby("s1").await, primary.standby("s2").await];
    for standby in [&s1, &s2] {
        standby.caught_up(&primary).await;
        standby.cut_off().await;
    }
    // More than the clock could tell apart.
    let told: i64 = primary
        .connect_to("restored")
        .await
        .one(
            "SELECT max(lease_acquire('many ' || i, 'A', '1 h')) FROM generate_series(1, 30000) i",
            &[],
        )
        .await
        .unwrap();
    primary.crash().await;
    s1.promote().await;
    let token = granted(&s1.connect_to("restored").await, &["a new name"]).await;
    assert!(token > told, "{token} after {told}");
}

/// A row from elsewhere made the primary leave epochs out, and the standby that is promoted has not heard of that.
#[tokio::test]
async fn rows_from_elsewhere_on_two_timelines() {
    let primary = Server::new("primary", &[]).await;
    let session = primary.with_extension().await;
    granted(&session, &["a"]).await;
    session.sql("UPDATE lock_ext.lease SET token = 1000, expires_at = NULL").await.unwrap();
    let standby = primary.standby("s1").await;
    standby.caught_up(&primary).await;
    standby.cut_off().await;
    let told = granted(&session, &["b", "a", "c"]).await;
    assert!(told > EPOCH, "{told}");
    primary.crash().await;
    standby.promote().await;
    let token = granted(&standby.connect().await, &["a new name"]).await;
    assert!(token > told, "{token} after {told}");
}

#[tokio::test]
async fn a_dump_of_some_tables_into_a_fresh_extension() {
    let server = Server::new("here", &[]).await;
    let source = server.with_extension().await;
    granted(&source, &["a", "b"]).await;
    let dump = Dump::of(&server, "postgres", &["--data-only", "-t", "lock_ext.lease*"]).await;
    let told = granted(&source, &["c", "d"]).await;
    create(&server, "copy", "").await;
    let copy = server.connect_to("copy").await;
    copy.sql("CREATE EXTENSION lock_ext").await.unwrap();
    dump.restore(&server, "copy", &["--exit-on-error"]).await.unwrap();
    let token = granted(&copy, &["a new name"]).await;
    assert!(token > told, "{token} after {told}");
}

#[tokio::test]
async fn a_dump_from_before_the_first_token_restored_over_the_same_database() {
    let server = Server::new("here", &[]).await;
    let session = server.with_extension().await;
    let dump = Dump::of(&server, "postgres", &[]).await;
    let told = granted(&session, &["a", "b"]).await;
    dump.restore(&server, "postgres", &["--clean", "--if-exists"]).await.unwrap();
    let token = granted(&server.connect().await, &["a"]).await;
    assert!(token > told, "{token} after {told}");
}

/// It says nothing of its origin, and the next version is made where it is restored.
#[tokio::test]
async fn a_dump_of_the_version_before() {
    let server = Server::new("here", &[]).await;
    create(&server, "old", "").await;
    let old = server.connect_to("old").await;
    old.sql("CREATE EXTENSION lock_ext VERSION '0.1.0'").await.unwrap();
    granted(&old, &["a", "b"]).await;
    let dump = Dump::of(&server, "old", &[]).await;
    let told = granted(&old, &["c", "d"]).await;
    create(&server, "copy", "").await;
    dump.restore(&server, "copy", &["--exit-on-error"]).await.unwrap();
    let token = granted(&server.connect_to("copy").await, &["a new name"]).await;
    assert!(token > told, "{token} after {told}");
}
