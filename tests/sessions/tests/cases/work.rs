//! Work that is done once, and progress that is kept.

use lock_ext_sessions::{Asked, Db, PgError, Refused, STALE};

const LEDGER: &str = "CREATE TABLE ledger (payout text, by text)";

#[tokio::test]
async fn h24_a_payout_is_made_exactly_once() {
    let db = Db::fresh().await;
    let [w1, w2, again] = db.sessions().await;
    w1.sql(LEDGER).await.unwrap();
    let pay = "INSERT INTO ledger VALUES ($1, $2)";

    w1.sql("BEGIN").await.unwrap();
    assert_eq!(w1.once("payout:p1").await, Ok(true));
    w1.exec(pay, &[&"p1", &"w1"]).await.unwrap();
    db.terminate(w1.pid()).await;

    w2.sql("BEGIN").await.unwrap();
    assert_eq!(w2.once("payout:p1").await, Ok(true), "the crash gave it back");
    w2.exec(pay, &[&"p1", &"w2"]).await.unwrap();
    w2.commit().await.unwrap();
    assert_eq!(again.once("payout:p1").await, Ok(false));
    assert_eq!(w2.once("payout:p1").await, Ok(false));

    let mut workers = Vec::new();
    for number in 0..20 {
        let session = db.session().await;
        workers.push(session.beside(move |me| async move {
            me.sql("BEGIN").await?;
            let first = me.once("payout:p2").await?;
            if first {
                me.exec(pay, &[&"p2", &format!("{number}")]).await?;
            }
            me.commit().await?;
            Ok::<bool, PgError>(first)
        }));
    }
    let mut firsts = 0;
    for worker in workers {
        firsts += usize::from(worker.await.unwrap().expect("true or false"));
    }
    assert_eq!(firsts, 1);
    let ledger: Vec<String> =
        again.list("SELECT payout FROM ledger ORDER BY payout", &[]).await.unwrap();
    assert_eq!(ledger, ["p1", "p2"]);
}

#[tokio::test]
async fn h26_an_old_node_cannot_move_the_checkpoint() {
    let db = Db::fresh().await;
    let [a, early, b] = db.sessions().await;
    let t1 = a.acq("sub", "A", "1 s").await.granted();
    a.cp("sub", t1, "100").await.unwrap();
    early.sql("BEGIN").await.unwrap();
    early.cp("sub", t1, "110").await.unwrap();
    early.sql("SAVEPOINT s").await.unwrap();
    db.expired("sub").await;
    let t2 = b.acq("sub", "B", "60 s").await.granted();
    assert_eq!(
        b.read_cp("sub").await.unwrap().as_deref(),
        Some("100"),
        "it survives the hand-over"
    );

    // Later in the same transaction, and when that commits.
    early.cp("sub", t1, "115").await.refused(STALE);
    early.sql("ROLLBACK TO s").await.unwrap();
    early.commit().await.refused(STALE);
    b.cp("sub", t2, "150").await.unwrap();
    // Whichever direction the value goes.
    for state in ["120", "500", "150", "null", "{\"position\": 500}"] {
        a.cp("sub", t1, state).await.refused(STALE).detail_names(&[&"\"sub\"", &t1, &t2]);
        a.cp("sub", t2 + 1, state).await.refused(STALE);
        a.cp("sub", 0, state).await.refused(STALE);
    }
    a.exec("SELECT lease_checkpoint('sub', NULL, '500')", &[]).await.refused("22004");
    assert_eq!(b.read_cp("sub").await.unwrap().as_deref(), Some("150"));

    assert_eq!(b.rel("sub", t2).await, Ok(true));
    b.cp("sub", t2, "160").await.refused(STALE);
    let t3 = a.acq("sub", "A", "60 s").await.granted();
    assert_eq!(a.read_cp("sub").await.unwrap().as_deref(), Some("150"));
    a.cp("sub", t3, "90").await.expect("the holder may go back");
    assert_eq!(a.read_cp("sub").await.unwrap().as_deref(), Some("90"));
}
