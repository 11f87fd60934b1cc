//! Waits in a circle, and statements that wait for everybody.

use std::time::{Duration, Instant};

use lock_ext_sessions::{Answer, Asked, Db, PATIENCE, Session};

use super::scene::{Call, asleep, has_no_lock, in_line, nobody_waits, stand, stand_bound};

/// The server looks for a deadlock after this.
const DEADLOCK_TIMEOUT: Duration = Duration::from_secs(1);

async fn patient(db: &Db) -> Session {
    let session = db.session().await;
    session.sql("SET deadlock_timeout = '1s'").await.unwrap();
    session
}

/// Calls that wait for one another, by their number, with the answers that have come.
struct Circle<T> {
    calls: Vec<Call<T>>,
    answers: Vec<Option<Answer<T>>>,
}

impl<T: std::fmt::Debug> Circle<T> {
    fn of(calls: Vec<Call<T>>) -> Self {
        let answers = calls.iter().map(|_| None).collect();
        Self { calls, answers }
    }

    async fn look(&mut self) {
        for (call, answer) in self.calls.iter_mut().zip(&mut self.answers) {
            if answer.is_none() && call.is_finished() {
                *answer = Some(call.await.expect("no panic"));
            }
        }
    }

    fn victims(&self) -> Vec<usize> {
        let is_victim = |at: &usize| matches!(self.answers[*at], Some(Err(_)));
        (0..self.calls.len()).filter(is_victim).collect()
    }

    /// Waits until at least so many are victims of a deadlock. They are found by a look that the server takes once a wait has lasted for a second.
    async fn victims_are(&mut self, count: usize) -> Vec<usize> {
        let begun = Instant::now();
        while self.victims().len() < count {
            assert!(begun.elapsed() < DEADLOCK_TIMEOUT + Duration::from_secs(8), "not found");
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.look().await;
        }
        let victims = self.victims();
        for at in &victims {
            assert!(
                matches!(&self.answers[*at], Some(Err(error)) if error.code == "40P01"),
                "{:?}",
                self.answers[*at]
            );
        }
        victims
    }

    async fn answer(&mut self, at: usize) -> Answer<T> {
        let begun = Instant::now();
        while self.answers[at].is_none() {
            assert!(begun.elapsed() < PATIENCE, "no answer");
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.look().await;
        }
        self.answers[at].take().expect("it is there")
    }
}

/// In two open transactions, each waiting for a line or for each other's.
#[tokio::test]
async fn two_leases_in_opposite_order_are_a_deadlock() {
    for bound in [false, true] {
        let db = Db::fresh().await;
        let sessions = [patient(&db).await, patient(&db).await];
        for (session, name) in sessions.iter().zip(["x", "y"]) {
            session.sql("BEGIN").await.unwrap();
            session.acq(name, "first", "60 s").await.granted();
        }
        let mut calls: Vec<Call> = Vec::new();
        for (session, name) in sessions.iter().zip(["y", "x"]) {
            calls.push(session.beside(move |me| async move {
                match bound {
                    true => me.sacq(name, "second", "50 s").await,
                    false => me.acq_wait(name, "second", "60 s", "50 s").await,
                }
            }));
        }
        let mut circle = Circle::of(calls);
        let at = circle.victims_are(1).await[0];
        // All of its transaction is undone, so the other one succeeds.
        has_no_lock(&db, sessions[at].pid()).await;
        let other = 1 - at;
        circle.answer(other).await.granted();
        sessions[at].rollback().await;
        sessions[other].commit().await.unwrap();
        for name in ["x", "y"] {
            assert_ne!(db.watch.info(name).await.unwrap().holder, None);
            sessions[at].acq(name, "loser", "60 s").await.busy();
        }
        nobody_waits(&db).await;
    }
}

/// Committed leases are not waited for by a lock: the circle ends with the waits, and nobody is aborted.
#[tokio::test]
async fn committed_leases_in_opposite_order_end_in_null() {
    let db = Db::fresh().await;
    let [a, b] = [patient(&db).await, patient(&db).await];
    let (x, y) = (a.acq("x", "A", "60 s").await.granted(), b.acq("y", "B", "60 s").await.granted());
    let for_y = stand(&db, &a, "y", "2 s").await;
    let for_x = stand(&db, &b, "x", "2500 ms").await;
    for_y.await.unwrap().busy();
    for_x.await.unwrap().busy();
    assert_eq!((a.is_current("x", x).await, b.is_current("y", y).await), (Ok(true), Ok(true)));
    nobody_waits(&db).await;
}

/// A circle through a place in line: A waits for B's lease, B for the line of A's, whose head waits for A.
#[tokio::test]
async fn a_circle_through_a_line_is_found() {
    let db = Db::fresh().await;
    let [a, b, w] = [patient(&db).await, patient(&db).await, patient(&db).await];
    a.sql("BEGIN").await.unwrap();
    a.acq("x", "A", "60 s").await.granted();
    b.sql("BEGIN").await.unwrap();
    b.acq("y", "B", "60 s").await.granted();
    let head = stand(&db, &w, "x", "50 s").await;
    let second = stand(&db, &b, "x", "50 s").await;
    let last = a.beside(|me| async move { me.acq_wait("y", "A", "60 s", "50 s").await });
    let sessions = [&w, &b, &a];
    let mut circle = Circle::of(vec![head, second, last]);
    let mut victims = circle.victims_are(1).await;
    if victims == [0] {
        // The head went, and B is where it was: that A and B wait for each other is a circle still.
        victims = circle.victims_are(2).await;
    }
    for at in &victims {
        sessions[*at].sql("ROLLBACK").await.unwrap();
    }
    // Then everybody gets what it waits for, as what the one before it has is freed.
    let order = if victims.contains(&2) { [0, 1, 2] } else { [2, 1, 0] };
    for at in order.into_iter().filter(|at| !victims.contains(at)) {
        circle.answer(at).await.granted();
        sessions[at].sql("ROLLBACK").await.unwrap();
        db.watch.sql("SELECT lease_force_release(name) FROM lease_status").await.unwrap();
    }
    nobody_waits(&db).await;
}

/// A lease one way, a row lock the other way.
#[tokio::test]
async fn a_circle_through_a_row_lock_is_found() {
    let db = Db::fresh().await;
    let [a, b] = [patient(&db).await, patient(&db).await];
    a.sql("CREATE TABLE account (id int); INSERT INTO account VALUES (1)").await.unwrap();
    a.sql("BEGIN").await.unwrap();
    a.acq("x", "A", "60 s").await.granted();
    b.sql("BEGIN; SELECT FROM account FOR UPDATE").await.unwrap();
    let lease = b.beside(|me| async move { me.acq_wait("x", "B", "60 s", "50 s").await.map(drop) });
    in_line(&db, b.pid()).await;
    let row = a.beside(|me| async move { me.sql("SELECT FROM account FOR UPDATE").await });
    let mut circle = Circle::of(vec![lease, row]);
    let at = circle.victims_are(1).await[0];
    [&b, &a][at].sql("ROLLBACK").await.unwrap();
    circle.answer(1 - at).await.expect("the other one goes on");
}

/// A waiting call has a snapshot, so CREATE INDEX CONCURRENTLY waits for it. The holder that runs it while others wait for its lease
/// is not in a circle with them: it finishes when their waits have ended, and nobody is aborted.
#[tokio::test]
async fn the_holder_creates_an_index_concurrently_while_others_wait() {
    for bound in [false, true] {
        let db = Db::fresh().await;
        let [a, w1, w2] = [patient(&db).await, patient(&db).await, patient(&db).await];
        // The waiters too look for deadlocks, and sooner.
        for session in [&w1, &w2] {
            session.sql("SET deadlock_timeout = '100ms'").await.unwrap();
        }
        a.sql("CREATE TABLE big AS SELECT i FROM generate_series(1, 1000) AS i").await.unwrap();
        let t = match bound {
            true => a.sacq("j", "A", "0").await.granted(),
            false => a.acq("j", "A", "1 hour").await.granted(),
        };
        let head = stand(&db, &w1, "j", "4 s").await;
        let second = match bound {
            true => stand_bound(&db, &w2, "j", "4 s").await,
            false => stand(&db, &w2, "j", "4 s").await,
        };
        asleep(&db, w1.pid()).await;
        let index = a
            .beside(|me| async move { me.sql("CREATE INDEX CONCURRENTLY big_i ON big (i)").await });
        // It does wait for them: else this would show nothing.
        db.until(
            "SELECT $1 = ANY (pg_blocking_pids($3)) OR $2 = ANY (pg_blocking_pids($3))",
            &[&w1.pid(), &w2.pid(), &a.pid()],
        )
        .await;
        head.await.unwrap().busy();
        second.await.unwrap().busy();
        index.await.unwrap().expect("finishes, and is not the one that is aborted");
        let valid: bool = a
            .one("SELECT indisvalid FROM pg_index WHERE indexrelid = 'big_i'::regclass", &[])
            .await
            .unwrap();
        assert!(valid);
        assert_eq!(a.is_current("j", t).await, Ok(true), "held all the time");
        assert_eq!(a.rel("j", t).await, Ok(true));
        nobody_waits(&db).await;
    }
}
