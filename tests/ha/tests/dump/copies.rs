//! Copies of files: of a database by CREATE DATABASE, of a cluster by pg_basebackup.

use super::{Source, create, goes_on_above, is_a_good_copy};
use lock_ext_ha::{Asked, EPOCH, Recipe, Refused, Server};

#[tokio::test]
async fn a_database_with_this_one_as_its_template_goes_on_in_an_epoch_of_its_own() {
    let server = Server::new("here", &[]).await;
    for strategy in ["wal_log", "file_copy"] {
        let mut source = Source::new(&server, strategy).await;
        // A template has no sessions.
        drop(source.session);
        let name = format!("copy_{strategy}");
        create(&server, &name, &format!("TEMPLATE {strategy} STRATEGY {strategy}")).await;
        source.session = server.connect_to(strategy).await;
        source.goes_on().await;
        let copy = server.connect_to(&name).await;
        is_a_good_copy(&copy, &mut source, strategy).await;
        assert!(source.highest() > EPOCH);
        let token = source.session.acq("j", "A", "1 h").await.granted();
        assert!(token < EPOCH, "the template goes on where it was: {token}");
    }
}

#[tokio::test]
async fn a_template_that_has_drawn_no_token_is_as_good_as_none() {
    let server = Server::new("here", &[]).await;
    create(&server, "template", "").await;
    server.connect_to("template").await.sql("CREATE EXTENSION lock_ext").await.unwrap();
    for strategy in ["wal_log", "file_copy"] {
        let copy = format!("copy_{strategy}");
        // Its session may be just ending.
        lock_ext_ha::until("nobody is in the template", async || {
            let sql = format!("CREATE DATABASE {copy} TEMPLATE template STRATEGY {strategy}");
            server.connect().await.sql(&sql).await.is_ok()
        })
        .await;
        let session = server.connect_to(&copy).await;
        for expected in 1..=3 {
            assert_eq!(session.acq(&format!("n{expected}"), "A", "1 h").await.granted(), expected);
        }
    }
}

/// Nothing tells a server that it is a copy if it was not promoted: same identifier, same timeline. Somebody has to say so.
#[tokio::test]
async fn a_base_backup_without_a_promotion_needs_a_raised_floor() {
    let server = Server::new("here", &[]).await;
    let mut source = Source::new(&server, "source").await;
    let floor_of = async |name: &str| {
        let copy = Server::made(name, Recipe::default()).await;
        std::fs::remove_dir_all(copy.data()).unwrap();
        let data = copy.data();
        let data = data.to_str().expect("a plain path");
        server
            .run(
                "pg_basebackup",
                &["--no-sync", "--checkpoint", "fast", "--wal-method", "stream", "--pgdata", data],
            )
            .await;
        copy
    };
    let [unaware, told] = [floor_of("unaware").await, floor_of("told").await];
    source.goes_on().await;
    let highest = source.highest();

    unaware.start().await;
    let session = unaware.connect_to("source").await;
    let repeated = session.acq("a new name", "C", "1 h").await.granted();
    assert!(repeated <= highest, "{repeated}: if it knows by itself, the documentation is wrong");

    told.start().await;
    let session = told.connect_to("source").await;
    let floor: i64 = session.one("SELECT lease_raise_token_floor($1)", &[&highest]).await.unwrap();
    assert!(floor >= highest);
    goes_on_above(&session, &mut source, "a copy that was told").await;
    // It is idempotent, and never lowers.
    let floor: i64 = session.one("SELECT lease_raise_token_floor(1)", &[]).await.unwrap();
    assert!(floor >= source.highest());
    goes_on_above(&session, &mut source, "told again").await;
    session.exec("SELECT lease_raise_token_floor($1)", &[&(1i64 << 53)]).await.refused("22023");
}
