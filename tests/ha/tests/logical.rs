//! A subscriber of the rows that takes over. Sequences are not replicated, and neither is what was told after the last row.

use lock_ext_ha::{Asked, EPOCH, NO_TOKEN, READ_ONLY, Refused, STALE, Server, Session};

const TABLES: &str = "CREATE EXTENSION lock_ext;
    CREATE TABLE work (lease text, v int);
    CREATE TABLE stamped (id int PRIMARY KEY, v int NOT NULL, token bigint);
    SELECT fence_attach('work', 'j'), fence_attach('stamped', 'j', 'token')";

const PUBLISHED: &str =
    "work, stamped, lock_ext.lease, lock_ext.lease_checkpoint, lock_ext.once_key";

/// A publisher and a subscriber that has all of its rows.
async fn pair(name: &str) -> (Server, Session) {
    let server =
        Server::new(name, &[("wal_level", "logical"), ("max_logical_replication_workers", "4")])
            .await;
    let session = server.connect().await;
    session.sql(TABLES).await.unwrap();
    session.sql("ALTER TABLE work REPLICA IDENTITY FULL").await.unwrap();
    (server, session)
}

/// From now on the rows go from one server to the other. Those that were there before are copied.
async fn subscribe(from: &Server, publisher: &Session, to: &Session) {
    publisher.sql(&format!("CREATE PUBLICATION all_of_it FOR TABLE {PUBLISHED}")).await.unwrap();
    let conninfo = from.conninfo("postgres");
    to.sql(&format!("CREATE SUBSCRIPTION here CONNECTION '{conninfo}' PUBLICATION all_of_it"))
        .await
        .unwrap();
    to.until("NOT EXISTS (SELECT FROM pg_subscription_rel WHERE srsubstate <> 'r')", &[]).await;
}

/// The subscriber has all rows that the publisher has by now.
async fn caught_up(publisher: &Session, subscriber: &Session) {
    let end: String = publisher.one("SELECT pg_current_wal_lsn()::text", &[]).await.unwrap();
    publisher
        .until(
            "SELECT replay_lsn >= $1::text::pg_lsn FROM pg_stat_replication WHERE application_name = 'here'",
            &[&end],
        )
        .await;
    let (theirs, ours) = (rows(publisher).await, rows(subscriber).await);
    assert_eq!(theirs, ours);
}

async fn rows(session: &Session) -> Vec<String> {
    session
        .list("SELECT concat_ws(' ', name, token, expires_at) FROM lock_ext.lease ORDER BY name COLLATE \"C\"", &[])
        .await
        .unwrap()
}

/// No row comes from now on; the publisher, which may go on, is not asked.
async fn cut_off(subscriber: &Session) {
    subscriber
        .sql("ALTER SUBSCRIPTION here DISABLE; ALTER SUBSCRIPTION here SET (slot_name = NONE); DROP SUBSCRIPTION here")
        .await
        .unwrap();
    subscriber
        .until("NOT EXISTS (SELECT FROM pg_stat_subscription WHERE pid IS NOT NULL)", &[])
        .await;
}

async fn granted(session: &Session, lease: &str, told: &mut Vec<i64>) -> i64 {
    session.exec("SELECT lease_force_release($1)", &[&lease]).await.unwrap();
    let token = session.acq(lease, "A", "1 h").await.granted();
    told.push(token);
    token
}

/// The highest of all that were told.
fn highest(told: &[i64]) -> i64 {
    *told.iter().max().expect("tokens")
}

#[tokio::test]
async fn rows_that_were_legally_written_are_applied() {
    let (publisher, a) = pair("publisher").await;
    let (_subscriber, b) = pair("subscriber").await;
    let mut told = Vec::new();
    let first = granted(&a, "j", &mut told).await;
    a.fw("j", first, 1).await.unwrap();
    subscribe(&publisher, &a, &b).await;

    let second = granted(&a, "j", &mut told).await;
    for statement in [
        "INSERT INTO work VALUES ('j', 2); INSERT INTO stamped VALUES (1, 1), (2, 2)",
        "UPDATE work SET v = v + 10; UPDATE stamped SET v = v + 10",
        "DELETE FROM work WHERE v = 11; DELETE FROM stamped WHERE id = 2",
        "TRUNCATE work; INSERT INTO work VALUES ('j', 3)",
    ] {
        a.sql("BEGIN").await.unwrap();
        a.fence("j", second).await.unwrap();
        a.sql(&format!("{statement}; COMMIT")).await.unwrap();
    }
    a.sql(&format!("SELECT lease_checkpoint('j', {second}, '{{\"at\": 3}}'), once('key')"))
        .await
        .unwrap();
    a.ext("j", second).await.extended();
    caught_up(&a, &b).await;
    assert_eq!(b.list::<i32>("SELECT v FROM work", &[]).await, Ok(vec![3]));
    assert_eq!(b.list::<i64>("SELECT token FROM stamped", &[]).await, Ok(vec![second]));
    assert_eq!(b.one("SELECT lease_checkpoint('j')->>'at'", &[]).await, Ok("3".to_owned()));
    assert_eq!(b.one("SELECT once('key')", &[]).await, Ok(false));
    let errors: i64 = b
        .one("SELECT sum(apply_error_count)::int8 FROM pg_stat_subscription_stats", &[])
        .await
        .unwrap();
    assert_eq!(errors, 0);
    // The subscriber's own sessions are under the fence as ever.
    for table in ["work", "stamped"] {
        b.sql(&format!("UPDATE {table} SET v = 9")).await.refused(NO_TOKEN);
    }
    b.fw("j", first, 9).await.refused(STALE);
    let status = b.info("j").await.unwrap();
    assert_eq!((status.state.as_str(), status.token), ("held", Some(second)));
    b.acq("j", "B", "1 h").await.busy();
    b.sql("BEGIN READ ONLY").await.unwrap();
    b.acq("j", "B", "1 h").await.refused(READ_ONLY);
    b.sql("ROLLBACK").await.unwrap();
}

#[tokio::test]
async fn a_subscriber_that_takes_over_is_above_all_that_the_publisher_told() {
    let (publisher, a) = pair("publisher").await;
    let (_subscriber, b) = pair("subscriber").await;
    let mut told = Vec::new();
    subscribe(&publisher, &a, &b).await;
    for _ in 0..20 {
        for lease in ["j", "k", "rarely"] {
            granted(&a, lease, &mut told).await;
        }
    }
    let old = granted(&a, "j", &mut told).await;
    a.fw("j", old, 1).await.unwrap();
    caught_up(&a, &b).await;
    // What is told from now on the subscriber never hears of.
    cut_off(&b).await;
    let mut lost = old;
    for _ in 0..100 {
        lost = granted(&a, "j", &mut told).await;
        granted(&a, "only there", &mut told).await;
    }
    a.fw("j", lost, 2).await.unwrap();

    for lease in ["rarely", "j", "k"] {
        let token = granted(&b, lease, &mut Vec::new()).await;
        assert!(token > highest(&told), "{token} of {lease} after {}", highest(&told));
        told.push(token);
    }
    // And of a name that it has no row of, once it has granted one that it has a row of.
    for lease in ["only there", "new"] {
        let token = granted(&b, lease, &mut Vec::new()).await;
        assert!(token > highest(&told), "{token} of {lease}");
        told.push(token);
    }
    // Its holders are refused here, those that it has not heard of as well.
    for stale in [old, lost] {
        b.fw("j", stale, 3).await.refused(STALE);
        b.ext("j", stale).await.lost();
        assert_eq!(b.rel("j", stale).await, Ok(false));
        assert_eq!(b.is_current("j", stale).await, Ok(false));
    }
    let current = granted(&b, "j", &mut told).await;
    b.fw("j", current, 4).await.unwrap();
    b.sql(&format!("INSERT INTO stamped VALUES (7, 0, {current})")).await.unwrap();
}

/// It cannot know that there were others: its own number line is a fresh one. Who takes over with it tells it.
#[tokio::test]
async fn a_name_without_a_row_needs_a_raised_floor_first() {
    let (publisher, a) = pair("publisher").await;
    let (subscriber, b) = pair("subscriber").await;
    subscribe(&publisher, &a, &b).await;
    let mut told = Vec::new();
    for _ in 0..20 {
        granted(&a, "j", &mut told).await;
    }
    caught_up(&a, &b).await;
    cut_off(&b).await;
    for _ in 0..20 {
        granted(&a, "only there", &mut told).await;
    }
    b.sql("CREATE DATABASE as_it_was").await.unwrap();
    let unaware = subscriber.connect_to("as_it_was").await;
    unaware.sql("CREATE EXTENSION lock_ext").await.unwrap();
    assert_eq!(granted(&unaware, "only there", &mut Vec::new()).await, 1, "the control");

    // To the end of the epoch that the last row is of: what was told after it is below that.
    let floor =
        "SELECT lease_raise_token_floor(((max(token) >> 42) + 1) << 42) FROM lock_ext.lease";
    let floor: i64 = b.one(floor, &[]).await.unwrap();
    assert_eq!(floor, EPOCH);
    for lease in ["only there", "j", "new"] {
        let token = granted(&b, lease, &mut Vec::new()).await;
        assert!(token > highest(&told), "{token} of {lease} after {}", highest(&told));
        told.push(token);
    }
}

/// The publisher is in a later epoch itself, and has failed over once more since the last row.
#[tokio::test]
async fn the_publisher_has_failed_over_since_the_last_row() {
    let (first, a) = pair("first").await;
    let (_subscriber, b) = pair("subscriber").await;
    let mut told = Vec::new();
    granted(&a, "j", &mut told).await;
    let second = first.standby("second").await;
    second.caught_up(&first).await;
    first.crash().await;
    second.promote().await;
    let a = second.connect().await;
    let old = granted(&a, "j", &mut told).await;
    assert!(old > EPOCH);
    subscribe(&second, &a, &b).await;
    caught_up(&a, &b).await;

    let third = second.standby("third").await;
    third.caught_up(&second).await;
    cut_off(&b).await;
    second.crash().await;
    third.promote().await;
    let c = third.connect().await;
    for _ in 0..40 {
        granted(&c, "j", &mut told).await;
    }
    assert!(highest(&told) > 2 * EPOCH);
    let token = granted(&b, "j", &mut Vec::new()).await;
    assert!(token > highest(&told), "{token} after {}", highest(&told));
    b.fw("j", old, 1).await.refused(STALE);
    b.fw("j", token, 1).await.unwrap();
}
