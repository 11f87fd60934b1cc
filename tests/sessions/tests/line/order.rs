//! First come, first served; and nobody passes those who wait.

use lock_ext_sessions::{Asked, Db};

use super::scene::{
    Call, asleep, has_no_lock, line, nobody_waits, stand, stand_bound, stand_for, stop,
};

#[tokio::test]
async fn ten_are_served_in_the_order_they_came() {
    let db = Db::fresh().await;
    let a = db.session().await;
    let t = a.acq("j", "A", "1 hour").await.granted();
    let mut sessions = Vec::new();
    let mut calls: Vec<Call> = Vec::new();
    for number in 0..10 {
        let session = db.session().await;
        // Both kinds of leases are one line.
        calls.push(match number % 3 {
            2 => stand_bound(&db, &session, "j", "50 s").await,
            _ => stand(&db, &session, "j", "50 s").await,
        });
        sessions.push(session);
    }
    let pids: Vec<i32> = sessions.iter().map(|session| session.pid()).collect();
    assert_eq!(line(&db, "j").await, pids);

    assert_eq!(a.rel("j", t).await, Ok(true));
    let mut last = t;
    for at in 0..10 {
        let token = (&mut calls[at]).await.unwrap().granted();
        assert!(token > last, "tokens rise");
        last = token;
        assert_eq!(line(&db, "j").await, pids[at + 1..], "the others wait on, in their order");
        assert!(calls[at + 1..].iter().all(|call| !call.is_finished()), "one at a time");
        assert_eq!(sessions[at].rel("j", token).await, Ok(true));
    }
    nobody_waits(&db).await;
    for session in &sessions {
        has_no_lock(&db, session.pid()).await;
    }
    let status = a.info("j").await.unwrap();
    assert_eq!((status.state.as_str(), status.holder), ("free", None));
}

/// The lease is free and its head cannot take it yet, as it is stopped: still it is nobody else's.
#[tokio::test]
async fn who_does_not_wait_does_not_pass_the_line() {
    let db = Db::fresh().await;
    let [a, w, b] = db.sessions().await;
    let request = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
    for bound in [false, true] {
        let t = a.acq_as_request("j", "A", "1 hour", request).await.granted();
        let call = match bound {
            true => stand_bound(&db, &w, "j", "50 s").await,
            false => stand(&db, &w, "j", "50 s").await,
        };
        asleep(&db, w.pid()).await;
        // A repeated request is no new one.
        assert_eq!(a.acq_as_request("j", "A", "1 hour", request).await, Ok(Some(t)));
        assert_eq!(b.lead("j", "A", "1 hour", Some(t)).await, Ok(Some(t)), "nor is a heartbeat");

        let stopped = stop(w.pid());
        assert_eq!(a.rel("j", t).await, Ok(true));
        assert_eq!(b.info("j").await.unwrap().state, "free");
        b.acq("j", "B", "60 s").await.busy();
        b.acq_wait("j", "B", "60 s", "0").await.busy();
        b.sacq("j", "B", "0").await.busy();
        b.lead("j", "B", "60 s", None).await.busy();
        a.lead("j", "A", "60 s", Some(t)).await.busy();
        a.acq_as_request("j", "A", "60 s", request).await.busy();
        b.acq_wait("j", "B", "60 s", "50 ms").await.busy();
        b.sql("BEGIN").await.unwrap();
        b.acq("j", "B", "60 s").await.busy();
        b.rollback().await;
        // The line is one of this name.
        let other = b.acq("other", "B", "60 s").await.granted();
        b.rel("other", other).await.unwrap();

        drop(stopped);
        let token = call.await.unwrap().granted();
        assert_eq!(w.rel("j", token).await, Ok(true));
        let free = b.acq("j", "B", "60 s").await.granted();
        assert_eq!(b.rel("j", free).await, Ok(true));
    }
}

/// The same for one that expires.
#[tokio::test]
async fn the_old_holder_does_not_pass_the_line_after_its_time() {
    let db = Db::fresh().await;
    let [a, w, b] = db.sessions().await;
    let t = a.acq("j", "A", "1500 ms").await.granted();
    let call = stand(&db, &w, "j", "50 s").await;
    asleep(&db, w.pid()).await;
    let stopped = stop(w.pid());
    db.expired("j").await;
    a.ext("j", t, "60 s").await.lost();
    a.lead("j", "A", "60 s", Some(t)).await.busy();
    a.acq("j", "A", "60 s").await.busy();
    b.acq("j", "B", "60 s").await.busy();
    drop(stopped);
    assert!(call.await.unwrap().granted() > t);
}

/// A client that has lost its connection asks again, while its first call is still in line.
#[tokio::test]
async fn a_request_in_line_twice_gets_one_grant() {
    let db = Db::fresh().await;
    let [a, first, second, third] = db.sessions().await;
    let t = a.acq("j", "A", "1 hour").await.granted();
    let mut calls = Vec::new();
    for session in [&first, &second] {
        calls.push(session.beside(|me| async move {
            me.one::<Option<i64>>(
                "SELECT lease_acquire('j', 'W', '1 hour', '50 s', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11')",
                &[],
            )
            .await
        }));
        super::scene::in_line(&db, session.pid()).await;
    }
    let behind = stand(&db, &third, "j", "50 s").await;
    assert_eq!(a.rel("j", t).await, Ok(true));
    let mut tokens = Vec::new();
    for call in calls {
        tokens.push(call.await.unwrap().granted());
    }
    assert_eq!(tokens[0], tokens[1]);
    let grants: i64 = a.one("SELECT grants FROM lease_status WHERE name = 'j'", &[]).await.unwrap();
    assert_eq!(grants, 2, "A's and one more");
    assert!(!behind.is_finished());
    assert_eq!(second.rel("j", tokens[1]).await, Ok(true));
    behind.await.unwrap().granted();
}

#[tokio::test]
async fn who_leaves_the_line_lets_the_next_one_forward() {
    let db = Db::fresh().await;
    let [a, w1, w2, w3, w4] = db.sessions().await;
    let t = a.acq("j", "A", "1 hour").await.granted();
    let head = stand(&db, &w1, "j", "400 ms").await;
    let second = stand(&db, &w2, "j", "50 s").await;
    let third = stand(&db, &w3, "j", "600 ms").await;
    let fourth = stand_for(&db, &w4, "j", "1 hour", "50 s").await;
    head.await.unwrap().busy();
    third.await.unwrap().busy();
    for gone in [&w1, &w3] {
        has_no_lock(&db, gone.pid()).await;
    }
    asleep(&db, w2.pid()).await;
    assert_eq!(line(&db, "j").await, [w2.pid(), w4.pid()]);
    assert_eq!(a.rel("j", t).await, Ok(true));
    let t2 = second.await.unwrap().granted();
    assert!(!fourth.is_finished());
    assert_eq!(w2.rel("j", t2).await, Ok(true));
    assert!(fourth.await.unwrap().granted() > t2);
}

/// Each line has its own head.
#[tokio::test]
async fn lines_of_different_leases_are_apart() {
    let db = Db::fresh().await;
    let [a, w1, w2] = db.sessions().await;
    let x = a.acq("x", "A", "1 hour").await.granted();
    let y = a.acq("y", "A", "1 hour").await.granted();
    let for_x = stand(&db, &w1, "x", "50 s").await;
    let for_y = stand(&db, &w2, "y", "50 s").await;
    assert_eq!((line(&db, "x").await, line(&db, "y").await), (vec![w1.pid()], vec![w2.pid()]));
    assert_eq!(a.rel("y", y).await, Ok(true));
    for_y.await.unwrap().granted();
    assert!(!for_x.is_finished());
    asleep(&db, w1.pid()).await;
    assert_eq!(a.rel("x", x).await, Ok(true));
    for_x.await.unwrap().granted();
}

/// The same name in another database is another line.
#[tokio::test]
async fn a_line_is_of_one_database() {
    let db = Db::fresh().await;
    let other = db.another().await;
    let [a, w] = db.sessions().await;
    let [b, v] = other.sessions().await;
    let t = a.acq("j", "A", "1 hour").await.granted();
    let u = b.acq("j", "B", "1 hour").await.granted();
    let here = stand(&db, &w, "j", "50 s").await;
    let there = stand(&other, &v, "j", "50 s").await;
    assert_eq!((line(&db, "j").await, line(&other, "j").await), (vec![w.pid()], vec![v.pid()]));
    assert_eq!(a.rel("j", t).await, Ok(true));
    here.await.unwrap().granted();
    assert_eq!(line(&other, "j").await, [v.pid()]);
    assert!(!there.is_finished());
    assert_eq!(b.rel("j", u).await, Ok(true));
    there.await.unwrap().granted();
}
