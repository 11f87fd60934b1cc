//! Unrelated names never disturb each other.

use lock_ext_sessions::{Asked, Db, LEVELS};

const PAIRS: usize = 200;

/// Two transactions that overlap in every step, with one lease, one table, one key and one checkpoint each.
/// What a serializable transaction of ours reads and writes must not look like a conflict.
#[tokio::test]
async fn two_hundred_serializable_pairs_on_unrelated_names() {
    let db = Db::fresh().await;
    let pair: [_; 2] = db.sessions().await;
    db.watch
        .sql(
            "CREATE TABLE t0 (v int); CREATE TABLE t1 (v int);
             CREATE TABLE c0 (id int, v int, token bigint); CREATE TABLE c1 (id int, v int, token bigint);
             INSERT INTO c0 VALUES (1, 0); INSERT INTO c1 VALUES (1, 0)",
        )
        .await
        .unwrap();
    for number in 0..PAIRS {
        let lease = |who: usize| format!("lease-{who}-{}", number / 20);
        if number.is_multiple_of(20) {
            for who in 0..2 {
                let name = lease(who);
                db.watch
                    .exec(
                        &format!("SELECT fence_attach('t{who}', $1::text), fence_attach('c{who}', $1::text, 'token')"),
                        &[&name],
                    )
                    .await
                    .unwrap();
            }
        }
        // Every other pair has its lease from before, so that both kinds of reading are there.
        let mut tokens = [0; 2];
        let before = number.is_multiple_of(2);
        for who in 0..2 {
            if before {
                tokens[who] = pair[who].acq(&lease(who), "A", "60 s").await.granted();
            }
            pair[who].begin("SERIALIZABLE").await;
        }
        // In turns, in the other order each time.
        let order = |step: usize| {
            if (number + step).is_multiple_of(2) { [0, 1] } else { [1, 0] }
        };
        for who in order(0) {
            pair[who].exec("SELECT count(*) FROM lease_status", &[]).await.unwrap();
            if !before {
                tokens[who] = pair[who].acq(&lease(who), "A", "60 s").await.granted();
            }
        }
        for who in order(1) {
            pair[who].ext(&lease(who), tokens[who], "60 s").await.extended();
            pair[who].acq(&lease(1 - who), "A", "60 s").await.busy();
        }
        for who in order(2) {
            pair[who].fence(&lease(who), tokens[who]).await.unwrap();
            pair[who].sql(&format!("INSERT INTO t{who} VALUES (1)")).await.unwrap();
            pair[who]
                .sql(&format!("UPDATE c{who} SET v = v + 1, token = {}", tokens[who]))
                .await
                .unwrap();
        }
        for who in order(3) {
            pair[who].cp(&lease(who), tokens[who], "1").await.unwrap();
            pair[who].read_cp(&lease(who)).await.unwrap();
            assert_eq!(pair[who].once(&format!("key-{who}-{number}")).await, Ok(true));
        }
        for who in order(4) {
            assert_eq!(pair[who].rel(&lease(who), tokens[who]).await, Ok(true));
        }
        for who in order(5) {
            pair[who].commit().await.unwrap_or_else(|error| panic!("{error:?} in pair {number}"));
        }
    }
    for table in ["t0", "t1"] {
        assert_eq!(
            db.watch.one::<i64>(&format!("SELECT count(*) FROM {table}"), &[]).await,
            Ok(PAIRS as i64)
        );
    }
}

/// The ordinary answers on one name at every level: also there never 40001.
#[tokio::test]
async fn overlapping_transactions_on_one_name_get_ordinary_answers() {
    let db = Db::fresh().await;
    let [a, b] = db.sessions().await;
    for level in LEVELS {
        for session in [&a, &b] {
            session.begin(level).await;
            session.exec("SELECT count(*) FROM lease_status", &[]).await.unwrap();
        }
        let t1 = a.acq("j", "A", "60 s").await.granted();
        b.acq("j", "B", "60 s").await.busy();
        a.commit().await.unwrap();
        // b's snapshot is older than the grant.
        b.acq("j", "B", "60 s").await.busy();
        b.ext("j", t1, "60 s").await.extended();
        assert_eq!(b.is_current("j", t1).await, Ok(true), "{level}");
        assert_eq!(b.rel("j", t1).await, Ok(true));
        b.commit().await.unwrap_or_else(|error| panic!("{error:?} at {level}"));

        b.begin(level).await;
        b.exec("SELECT count(*) FROM lease_status", &[]).await.unwrap();
        let t2 = a.acq("j", "A", "60 s").await.granted();
        a.rel("j", t2).await.unwrap();
        let t3 = b.acq("j", "B", "60 s").await.granted();
        assert!(t3 > t2);
        b.commit().await.unwrap_or_else(|error| panic!("{error:?} at {level}"));
        assert_eq!(a.rel("j", t3).await, Ok(true));
    }
}

/// Nobody waits for another name's open transactions, whatever those did.
#[tokio::test]
async fn open_transactions_on_one_name_do_not_block_another() {
    let db = Db::fresh().await;
    db.fence("busy").await;
    let [a, b] = db.sessions().await;
    let [open, acquiring] = db.sessions().await;
    let t = a.acq("busy", "A", "60 s").await.granted();
    open.sql("BEGIN").await.unwrap();
    open.fence_and_hold("busy", t).await.unwrap();
    open.sql("UPDATE plain SET v = 1").await.unwrap();
    open.cp("busy", t, "1").await.unwrap();
    assert_eq!(open.once("busy").await, Ok(true));
    acquiring.sql("BEGIN").await.unwrap();
    acquiring.acq("also busy", "A", "60 s").await.granted();

    b.sql("SET statement_timeout = '10s'").await.unwrap();
    let t = b.acq("quiet", "B", "60 s").await.granted();
    b.ext("quiet", t, "60 s").await.extended();
    b.cp("quiet", t, "1").await.unwrap();
    assert_eq!(b.once("quiet").await, Ok(true));
    assert_eq!(b.rel("quiet", t).await, Ok(true));
    b.acq("also busy", "B", "60 s").await.busy();
    assert!(b.info("also busy").await.is_none_or(|status| status.holder.is_none()));
    open.commit().await.unwrap();
    acquiring.commit().await.unwrap();
}
