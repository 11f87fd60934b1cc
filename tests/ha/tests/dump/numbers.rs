//! The number line goes on in a restored database, above what was told before the dump and after it.

use super::{Dump, Source, create, goes_on_above, is_a_good_copy};
use crate::clock::{Clock, HOURS};
use lock_ext_ha::{Asked, EPOCH, Server};

#[tokio::test]
async fn h27_a_dump_restored_in_the_same_cluster() {
    let server = Server::new("here", &[]).await;
    let mut source = Source::new(&server, "source").await;
    let dump = Dump::of(&server, "source", &[]).await;
    source.goes_on().await;
    create(&server, "copy", "").await;
    dump.restore(&server, "copy", &["--exit-on-error"]).await.unwrap();
    let copy = server.connect_to("copy").await;
    is_a_good_copy(&copy, &mut source, "the same cluster").await;
    assert!(source.highest() > EPOCH);
    // The old one goes on where it was.
    let token = source.session.acq("j", "A", "1 h").await.granted();
    assert!(token < EPOCH, "{token}");
}

/// Another system identifier; at once, and by clocks that are wrong.
#[tokio::test]
async fn h27_a_dump_restored_in_another_cluster() {
    let server = Server::new("here", &[]).await;
    let (there, clock) = Clock::server("there").await;
    let watch = there.connect().await;
    let mut source = Source::new(&server, "source").await;
    let dump = Dump::of(&server, "source", &[]).await;
    source.goes_on().await;
    for (database, offset) in [("at_once", 0), ("next_day", 24 * HOURS), ("yesterday", -24 * HOURS)]
    {
        clock.set(offset, &watch).await;
        create(&there, database, "").await;
        dump.restore(&there, database, &["--exit-on-error"]).await.unwrap();
        let copy = there.connect_to(database).await;
        let told = source.told.clone();
        is_a_good_copy(&copy, &mut source, database).await;
        source.told = told;
    }
}

/// The same dump again and again, where tokens of the copy before were told.
#[tokio::test]
async fn h27_a_dump_restored_twice_in_a_row() {
    let server = Server::new("here", &[]).await;
    let mut source = Source::new(&server, "source").await;
    let dump = Dump::of(&server, "source", &[]).await;
    source.goes_on().await;
    for round in ["first", "second", "third"] {
        create(&server, "copy", "").await;
        dump.restore(&server, "copy", &["--exit-on-error"]).await.unwrap();
        let copy = server.connect_to("copy").await;
        is_a_good_copy(&copy, &mut source, round).await;
        for number in 0..20 {
            let token = copy.acq(&format!("n{number}"), "C", "1 h").await.granted();
            assert!(token > source.highest(), "{round}");
            source.told.push(token);
        }
        drop(copy);
        server.connect().await.sql("DROP DATABASE copy WITH (FORCE)").await.unwrap();
    }
}

/// A copy of a copy of a copy.
#[tokio::test]
async fn h27_a_chain_of_dumps() {
    let servers = [Server::new("one", &[]).await, Server::new("two", &[]).await];
    let mut source = Source::new(&servers[0], "source").await;
    let mut from = "source";
    for (number, to) in ["copy1", "copy2", "copy3", "copy4"].into_iter().enumerate() {
        let [here, there] = [&servers[number % 2], &servers[(number + 1) % 2]];
        let dump = Dump::of(here, from, &[]).await;
        source.goes_on().await;
        create(there, to, "").await;
        dump.restore(there, to, &["--exit-on-error"]).await.unwrap();
        let copy = there.connect_to(to).await;
        assert_eq!(copy.info("j").await.unwrap().token, Some(source.last), "{to}");
        goes_on_above(&copy, &mut source, to).await;
        let last = copy.acq("j", "A", "1 h").await.granted();
        assert!(last > source.highest());
        source.told.push(last);
        (source.session, source.last, from) = (copy, last, to);
    }
}

/// Into the database that it is from.
#[tokio::test]
async fn h27_a_dump_restored_over_its_own_database() {
    let server = Server::new("here", &[]).await;
    let mut source = Source::new(&server, "source").await;
    let dump = Dump::of(&server, "source", &[]).await;
    for round in ["first", "second", "third"] {
        source.goes_on().await;
        dump.restore(&server, "source", &["--clean", "--if-exists", "--exit-on-error"])
            .await
            .unwrap();
        // Also for the session that has seen the old extension.
        let session = source.session.clone();
        is_a_good_copy(&session, &mut source, round).await;
        let copy = server.connect_to("source").await;
        goes_on_above(&copy, &mut source, round).await;
    }
}

/// The rows into a database whose extension is new, and one whose new extension has been used.
#[tokio::test]
async fn h27_data_alone_into_a_fresh_extension() {
    let server = Server::new("here", &[]).await;
    let mut source = Source::new(&server, "source").await;
    for (database, used) in [("fresh", 0), ("used", 3), ("ahead", 100)] {
        let dump = Dump::of(&server, "source", &[]).await;
        source.goes_on().await;
        create(&server, database, "").await;
        let copy = server.connect_to(database).await;
        copy.sql("CREATE EXTENSION lock_ext").await.unwrap();
        for number in 0..used {
            let token = copy.acq(&format!("before {number}"), "C", "1 h").await.granted();
            assert!(token < EPOCH);
            source.told.push(token);
        }
        dump.restore(&server, database, &["--schema-only", "--exit-on-error"]).await.unwrap();
        // The fence is there already: whoever may restore past it does.
        let refusal = dump
            .restore(&server, database, &["--data-only", "--table", "plain", "--exit-on-error"])
            .await;
        assert!(refusal.expect_err("a fenced table").contains("carries no fencing token"));
        dump.restore(&server, database, &["--data-only", "--disable-triggers", "--exit-on-error"])
            .await
            .unwrap();
        is_a_good_copy(&copy, &mut source, database).await;
        source.last = source.session.acq("j", "A", "1 h").await.granted();
        source.told.push(source.last);
        let id = source.last;
        source
            .session
            .sql(&format!("SELECT lease_checkpoint('j', {id}, '{{\"at\": {id}}}')"))
            .await
            .unwrap();
    }
}
