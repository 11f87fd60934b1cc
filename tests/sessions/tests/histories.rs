//! Random histories against the [model](crate::model): several sessions, one call at a time, so that nothing but the seed
//! decides what happens. `HISTORY_SEED=n` runs one of them alone and says what it does.

use lock_ext_sessions::{Answer as Called, Db, LEVELS, PgError, Session};

use crate::model::{Answer, Carrier, KEYS, Model, NAMES, Op, SESSIONS};

const HISTORIES: u64 = 1_000;
const STEPS: usize = 40;
/// Tests, and so databases, that share the histories.
const SHARES: u64 = 4;

#[tokio::test]
async fn a_thousand_histories_as_the_model_says_first_share() {
    share(0).await;
}

#[tokio::test]
async fn a_thousand_histories_as_the_model_says_second_share() {
    share(1).await;
}

#[tokio::test]
async fn a_thousand_histories_as_the_model_says_third_share() {
    share(2).await;
}

#[tokio::test]
async fn a_thousand_histories_as_the_model_says_fourth_share() {
    share(3).await;
}

async fn share(number: u64) {
    let alone: Option<u64> = std::env::var("HISTORY_SEED")
        .ok()
        .map(|seed| seed.parse().expect("HISTORY_SEED is a number"));
    let mut stage = Stage::set().await;
    for seed in (0..HISTORIES).filter(|seed| seed % SHARES == number) {
        if alone.is_none_or(|alone| alone == seed) {
            stage.play(seed, alone.is_some()).await;
        }
    }
}

/// SplitMix64: the same numbers for a seed for ever.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

struct Stage {
    db: Db,
    sessions: Vec<Session>,
    highest: i64,
}

impl Stage {
    async fn set() -> Self {
        let db = Db::fresh().await;
        // Two tables for each session and lease, so that no two sessions meet in a row or a page.
        for who in 0..SESSIONS {
            for name in 0..NAMES {
                db.watch
                    .sql(&format!(
                        "CREATE TABLE plain_{who}_{name} (id int PRIMARY KEY, v int);
                         CREATE TABLE stamped_{who}_{name} (id int PRIMARY KEY, v int, token bigint)"
                    ))
                    .await
                    .expect("tables");
            }
        }
        let mut sessions = Vec::new();
        for _ in 0..SESSIONS {
            sessions.push(actor(&db).await);
        }
        Self { db, sessions, highest: 0 }
    }

    async fn play(&mut self, seed: u64, aloud: bool) {
        let history = History { seed, aloud };
        history.prepare(&self.db).await;
        let mut dice = Dice(seed);
        let mut model = Model::new(self.highest);
        let mut played: Vec<String> = Vec::new();
        while played.len() < STEPS {
            let who = dice.below(SESSIONS);
            let op = choose(&mut dice, &model, who);
            let Some(step) = model.step(who, &op) else {
                continue;
            };
            if history.aloud {
                println!("{who}: {op:?}");
            }
            let answer = history.act(&self.db, &mut self.sessions[who], who, &op).await;
            played.push(format!("{who}: {op:?} = {answer:?}"));
            if let Err(difference) = model.settle(who, step, &answer) {
                panic!("seed {seed}: {difference}, at the end of\n{}", played.join("\n"));
            }
        }
        for (who, session) in self.sessions.iter().enumerate() {
            if model.in_transaction(who) {
                session.rollback().await;
            }
        }
        if let Err(difference) = history.compare(&self.db, &model).await {
            panic!("seed {seed}: {difference}, after\n{}", played.join("\n"));
        }
        self.highest = model.highest();
        history.sweep(&self.db).await;
    }
}

fn choose(dice: &mut Dice, model: &Model, who: usize) -> Op {
    if model.is_aborted(who) {
        return match dice.below(3) {
            0 if model.has_savepoint(who) => Op::RollbackToSavepoint,
            0 | 1 => Op::Rollback,
            _ => Op::Commit,
        };
    }
    let name = dice.below(NAMES);
    let token = match dice.below(10) {
        0 => model.highest() + 1 + dice.below(3) as i64,
        1 => [0, -1][dice.below(2)],
        2 | 3 => match model.told(name) {
            [] => 1,
            told => told[dice.below(told.len())],
        },
        _ => model.token(who, name),
    };
    let v = dice.below(1_000_000) as i32;
    match dice.below(100) {
        0..20 => match (model.in_transaction(who), dice.below(10)) {
            (false, _) => Op::Begin { level: LEVELS[dice.below(LEVELS.len())] },
            (true, 0..4) => Op::Commit,
            (true, 4) => Op::Rollback,
            (true, 5) => Op::Crash,
            (true, 6 | 7) => Op::Savepoint,
            (true, 8) if model.has_savepoint(who) => Op::RollbackToSavepoint,
            (true, 9) if model.has_savepoint(who) => Op::ReleaseSavepoint,
            (true, _) => Op::Savepoint,
        },
        20..38 => Op::Acquire { name, short: dice.one_in(4) },
        38..48 => Op::Extend { name, token, short: dice.one_in(3) },
        48..54 => Op::Release { name, token },
        54..56 => Op::Complete { name, token },
        56..60 => Op::ForceRelease { name },
        60 => Op::Prune,
        61..63 => Op::IsCurrent { name, token },
        63..68 => Op::Fence { name, token },
        68..83 => {
            let carrier = match dice.below(4) {
                0 | 1 => Carrier::Declared,
                2 => Carrier::Column(token),
                _ => Carrier::FencedUpdate(token),
            };
            let stamped = matches!(carrier, Carrier::Column(_)) || dice.one_in(2);
            Op::Write { name, stamped, carrier, v }
        }
        83..89 => Op::Checkpoint { name, token, v },
        89..91 => Op::ReadCheckpoint { name },
        91..96 => Op::Once { key: dice.below(KEYS) },
        _ => Op::Status { name },
    }
}

/// One history: its names are its own.
struct History {
    seed: u64,
    aloud: bool,
}

impl History {
    fn lease(&self, name: usize) -> String {
        format!("history {}, lease {name}", self.seed)
    }

    fn key(&self, key: usize) -> String {
        format!("history {}, key {key}", self.seed)
    }

    fn table(who: usize, name: usize, stamped: bool) -> String {
        format!("{}_{who}_{name}", if stamped { "stamped" } else { "plain" })
    }

    /// The tables with one row each, fenced by this history's leases.
    async fn prepare(&self, db: &Db) {
        let mut sql = String::new();
        for who in 0..SESSIONS {
            for name in 0..NAMES {
                for (stamped, columns, column) in
                    [(false, "1, 0", ""), (true, "1, 0, NULL", ", 'token'")]
                {
                    let (table, lease) = (Self::table(who, name, stamped), self.lease(name));
                    sql += &format!(
                        "SELECT fence_detach('{table}'); DELETE FROM {table}; INSERT INTO {table} VALUES ({columns});
                         SELECT fence_attach('{table}', '{lease}'{column});"
                    );
                }
            }
        }
        db.watch.sql(&sql).await.expect("the history's tables");
    }

    async fn act(&self, db: &Db, session: &mut Session, who: usize, op: &Op) -> Answer {
        let of = |answer: Called<Answer>| match answer {
            Ok(answer) => answer,
            Err(error) if error.code == PgError::CLOSED => {
                panic!("seed {}: the server closed the connection", self.seed)
            }
            Err(error) => Answer::Error(error.code),
        };
        let done = |answer: Called<()>| of(answer.map(|()| Answer::Done));
        match *op {
            Op::Begin { level } => {
                done(session.sql(&format!("BEGIN ISOLATION LEVEL {level}")).await)
            }
            Op::Commit => done(session.commit().await),
            Op::Rollback => done(session.sql("ROLLBACK").await),
            Op::Savepoint => done(session.sql("SAVEPOINT s").await),
            Op::RollbackToSavepoint => done(session.sql("ROLLBACK TO s").await),
            Op::ReleaseSavepoint => done(session.sql("RELEASE s").await),
            Op::Crash => {
                db.terminate(session.pid()).await;
                *session = actor(db).await;
                Answer::Done
            }
            Op::Acquire { name, short } => {
                let ttl = if short { "1 ms" } else { "1 hour" };
                let token = session.acq(&self.lease(name), &format!("{who}"), ttl).await;
                if short {
                    self.wait_until_over(db).await;
                }
                of(token.map(|token| token.map_or(Answer::Null, Answer::Token)))
            }
            Op::Extend { name, token, short } => {
                let expiry = session
                    .ext(&self.lease(name), token, if short { "1 ms" } else { "1 hour" })
                    .await;
                if short {
                    self.wait_until_over(db).await;
                }
                of(expiry.map(|expiry| expiry.map_or(Answer::Null, |_| Answer::Expiry)))
            }
            Op::Release { name, token } => {
                of(session.rel(&self.lease(name), token).await.map(Answer::Bool))
            }
            Op::Complete { name, token } => {
                of(session.complete(&self.lease(name), token).await.map(Answer::Bool))
            }
            Op::ForceRelease { name } => {
                of(session.force(&self.lease(name)).await.map(Answer::Bool))
            }
            Op::Prune => of(session.one("SELECT lease_prune('0')", &[]).await.map(Answer::Count)),
            Op::IsCurrent { name, token } => {
                of(session.is_current(&self.lease(name), token).await.map(Answer::Bool))
            }
            Op::Fence { name, token } => done(session.fence(&self.lease(name), token).await),
            Op::Write { name, stamped, carrier, v } => {
                let table = Self::table(who, name, stamped);
                let rows = match carrier {
                    Carrier::Declared => session.exec(&format!("UPDATE {table} SET v = $1 WHERE id = 1"), &[&v]).await,
                    Carrier::Column(token) => {
                        let sql = format!("UPDATE {table} SET v = $1, token = $2 WHERE id = 1");
                        session.exec(&sql, &[&v, &token]).await
                    }
                    Carrier::FencedUpdate(token) => session
                        .one::<i64>(
                            "SELECT fenced_update($1::text::regclass, $2, '{\"id\": 1}', jsonb_build_object('v', $3::int))",
                            &[&table, &token, &v],
                        )
                        .await
                        .map(|rows| rows as u64),
                };
                of(rows.map(Answer::Rows))
            }
            Op::Checkpoint { name, token, v } => {
                done(session.cp(&self.lease(name), token, &v.to_string()).await)
            }
            Op::ReadCheckpoint { name } => {
                of(session.read_cp(&self.lease(name)).await.map(checkpoint))
            }
            Op::Once { key } => of(session.once(&self.key(key)).await.map(Answer::Bool)),
            Op::Status { name } => Answer::Status(status(session, &self.lease(name)).await),
        }
    }

    /// Until the database's clock has passed a time to live of 1 ms.
    async fn wait_until_over(&self, db: &Db) {
        db.watch.exec("SELECT pg_sleep(0.0015)", &[]).await.expect("time passes");
    }

    /// All that is committed.
    async fn compare(&self, db: &Db, model: &Model) -> Result<(), String> {
        let same = |what: String, found: String, expected: String| {
            if found == expected {
                Ok(())
            } else {
                Err(format!("{what} is {found} instead of {expected}"))
            }
        };
        for name in 0..NAMES {
            let lease = self.lease(name);
            let found = format!("{:?}", status(&db.watch, &lease).await);
            same(lease.clone(), found, format!("{:?}", model.status(name)))?;
            let found =
                db.watch.read_cp(&lease).await.map(checkpoint).expect("a checkpoint or none");
            let expected = Answer::Checkpoint(model.checkpoint(name));
            same(
                format!("the checkpoint of {lease}"),
                format!("{found:?}"),
                format!("{expected:?}"),
            )?;
            for who in 0..SESSIONS {
                for stamped in [false, true] {
                    let table = Self::table(who, name, stamped);
                    let token = if stamped { "token" } else { "NULL::bigint" };
                    let rows = db
                        .watch
                        .rows(&format!("SELECT v, {token} FROM {table}"), &[])
                        .await
                        .expect("rows");
                    let found: Vec<(i32, Option<i64>)> =
                        rows.iter().map(|row| (row.get(0), row.get(1))).collect();
                    let expected = model.row(who, name, stamped);
                    same(
                        table,
                        format!("{found:?}"),
                        format!("{:?}", [(expected.v, expected.token)]),
                    )?;
                }
            }
        }
        for key in 0..KEYS {
            db.watch.sql("BEGIN").await.expect("BEGIN");
            let first = db.watch.once(&self.key(key)).await.expect("true or false");
            db.watch.rollback().await;
            same(self.key(key), (!first).to_string(), model.is_done(key).to_string())?;
        }
        Ok(())
    }

    /// So that the next history's `lease_prune` finds its own names only.
    async fn sweep(&self, db: &Db) {
        for name in 0..NAMES {
            db.watch.force(&self.lease(name)).await.expect("an answer");
        }
        db.watch.one::<i64>("SELECT lease_prune('0')", &[]).await.expect("an answer");
    }
}

/// A session that does not wait for ever where the model says that nobody waits.
async fn actor(db: &Db) -> Session {
    let session = db.session().await;
    session.sql("SET statement_timeout = '10s'").await.expect("a setting");
    session
}

fn checkpoint(json: Option<String>) -> Answer {
    Answer::Checkpoint(json.map(|json| json.parse().expect("a number")))
}

async fn status(session: &Session, lease: &str) -> Option<(&'static str, Option<i64>)> {
    let status = session.info(lease).await?;
    let state = ["free", "held", "expired", "completed"]
        .into_iter()
        .find(|state| *state == status.state)
        .unwrap_or_else(|| panic!("state {:?}", status.state));
    // A free name still lists its last token, which is nobody's.
    Some((state, status.token.filter(|_| status.holder.is_some())))
}
