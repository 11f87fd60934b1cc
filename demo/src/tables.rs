//! Players and payments: made before a run, counted after it.

use crate::Error;
use crate::db::Db;
use crate::job::{LEASE, PLAYERS, Protection};

/// The same for both runs. There is no unique constraint on the payments: where the day and the player can be made one,
/// that is the simpler way, and no lease is needed.
const TABLES: &str = "
    CREATE TABLE player (
        player_id integer PRIMARY KEY,
        reward    bigint NOT NULL,
        balance   bigint NOT NULL DEFAULT 0
    );
    CREATE TABLE payment (
        payment_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        player_id  integer NOT NULL REFERENCES player,
        amount     bigint NOT NULL,
        paid_by    text NOT NULL,
        token      bigint NOT NULL
    );
    CREATE INDEX payment_player ON payment (player_id);
";

/// How far the batch came, where there is no checkpoint to save it in.
const PROGRESS: &str = "
    CREATE TABLE progress (
        job          text PRIMARY KEY,
        after_player integer NOT NULL
    );
";

/// A fresh database for the run, with the players in it.
pub async fn make(protection: Protection) -> Result<Db, Error> {
    let db = fresh_database(protection.database()).await?;
    db.client.batch_execute(TABLES).await?;
    // The seed makes the rewards the same in every run.
    db.client.batch_execute("SELECT setseed(0.2911)").await?;
    let players = "INSERT INTO player (player_id, reward)
                   SELECT id, 10 + floor(random() * 91) FROM generate_series(1, $1::integer) AS id";
    db.client.execute(players, &[&PLAYERS]).await?;
    db.client.batch_execute("ANALYZE player").await?;

    match protection {
        Protection::Fence => {
            for table in ["player", "payment"] {
                let attach = "SELECT fence_attach($1::text::regclass, $2)";
                db.client.query_one(attach, &[&table, &LEASE]).await?;
            }
        }
        Protection::LeaseOnly => {
            db.client.batch_execute(PROGRESS).await?;
            db.client.execute("INSERT INTO progress VALUES ($1, 0)", &[&LEASE]).await?;
        }
    }
    Ok(db)
}

pub async fn fresh_database(name: &str) -> Result<Db, Error> {
    let maintenance = Db::connect("postgres", "demo").await?;
    maintenance.client.execute(&format!("DROP DATABASE IF EXISTS {name}"), &[]).await?;
    maintenance.client.execute(&format!("CREATE DATABASE {name}"), &[]).await?;

    let db = Db::connect(name, "demo").await?;
    db.client.batch_execute("CREATE EXTENSION lock_ext").await?;
    Ok(db)
}

/// How many players were paid how often, and what it cost.
pub struct Bill {
    pub never: i64,
    pub once: i64,
    /// Twice or more often.
    pub twice: i64,
    pub due: i64,
    pub paid: i64,
    /// What the balances say; payments and balances are written together and have to agree.
    pub credited: i64,
}

impl Bill {
    pub async fn of(db: &Db) -> Result<Self, Error> {
        let count = "
            WITH paid AS (
                SELECT player_id, count(payment_id) AS times, coalesce(sum(amount), 0)::bigint AS amount
                FROM player LEFT JOIN payment USING (player_id)
                GROUP BY player_id
            )
            SELECT count(*) FILTER (WHERE times = 0),
                   count(*) FILTER (WHERE times = 1),
                   count(*) FILTER (WHERE times > 1),
                   sum(reward)::bigint,
                   sum(amount)::bigint,
                   sum(balance)::bigint
            FROM player JOIN paid USING (player_id)";
        let row = db.client.query_one(count, &[]).await?;
        Ok(Self {
            never: row.get(0),
            once: row.get(1),
            twice: row.get(2),
            due: row.get(3),
            paid: row.get(4),
            credited: row.get(5),
        })
    }

    pub fn everybody_once(&self) -> bool {
        self.once == i64::from(PLAYERS)
            && self.never == 0
            && self.twice == 0
            && self.paid == self.due
            && self.credited == self.due
    }
}
