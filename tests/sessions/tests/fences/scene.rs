//! A table of one kind with its fence, and one cell of the table of paths played on it.

use std::fmt::{self, Display};

use lock_ext_sessions::{Answer, Db, PgError, STALE, Session};

use super::guard::Guard;
use super::statements::{Rule, SEED, Verdict};
use super::tables::{Shape, optional, tables};

/// How the statement carries its token, and on which table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// By transaction, on a table without a token column.
    Transaction,
    /// By transaction, on a table with one, which is stamped.
    Stamped,
    Column,
    /// Not at all, on a table without a token column.
    Nothing,
    /// Not at all, on a table with one.
    NothingBesideColumn,
}

impl Carrier {
    pub fn has_column(self) -> bool {
        !matches!(self, Self::Transaction | Self::Nothing)
    }

    fn in_transaction(self) -> bool {
        matches!(self, Self::Transaction | Self::Stamped)
    }

    fn verdict(self, rule: &Rule) -> Verdict {
        match self {
            Self::Transaction | Self::Stamped => rule.by_transaction,
            Self::Column => rule.by_column,
            Self::Nothing | Self::NothingBesideColumn => rule.no_token,
        }
    }
}

/// What becomes of the token that the writer believes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Current,
    /// Before the statement, in the transaction.
    Superseded,
    Released,
    NeverGranted,
    /// Between the statement and the commit.
    SupersededBeforeCommit,
}

impl Fate {
    pub const ALL: [Self; 5] = [
        Self::Current,
        Self::Superseded,
        Self::Released,
        Self::NeverGranted,
        Self::SupersededBeforeCommit,
    ];
}

/// A cell, and how it came out against the table.
pub struct Wrong {
    pub statement: &'static str,
    pub carrier: Carrier,
    pub fate: Fate,
    /// Rows were changed that should not have been.
    pub wrote: bool,
    pub what: String,
}

impl Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {:?}, {:?}: {}", self.statement, self.carrier, self.fate, self.what)
    }
}

pub struct Scene {
    guard: Guard,
    shape: Shape,
    level: &'static str,
    with_column: bool,
    db: Db,
    /// An ordinary role, which holds the lease and has written nothing but what it is allowed to.
    writer: Session,
    admin: Session,
    /// All of `t` and of what its foreign keys point to.
    before: String,
}

impl Scene {
    pub async fn set(guard: Guard, shape: Shape, with_column: bool, level: &'static str) -> Self {
        let db = Db::fresh().await;
        let app = tables(&db, guard, shape, with_column).await;
        let admin = db.session().await;
        let writer = db.session_as(&app).await;
        let mut scene =
            Self { guard, shape, level, with_column, db, writer, admin, before: String::new() };
        scene.reset().await;
        guard.attach(&scene.admin, "t", with_column.then_some("token")).await;
        scene.before = scene.all().await;
        scene
    }

    /// Every cell that there is with this kind of table, and what is wrong with it.
    pub async fn play(self, rules: &[Rule], fates: &[Fate]) -> Vec<Wrong> {
        let carriers: &[Carrier] = if self.with_column {
            &[Carrier::Stamped, Carrier::Column, Carrier::NothingBesideColumn]
        } else {
            &[Carrier::Transaction, Carrier::Nothing]
        };
        let mut wrong = Vec::new();
        for rule in rules {
            for &carrier in carriers {
                for &fate in fates {
                    let statement = rule.statement.name;
                    if let Err((wrote, what)) = self.cell(rule, carrier, fate).await {
                        wrong.push(Wrong { statement, carrier, fate, wrote, what });
                    }
                    self.guard.end(&self.admin).await;
                }
            }
        }
        wrong
    }

    async fn cell(&self, rule: &Rule, carrier: Carrier, fate: Fate) -> Result<(), (bool, String)> {
        let verdict = carrier.verdict(rule);
        let granted = self.guard.grant(&self.writer).await;
        let token = if fate == Fate::NeverGranted { granted + 1000 } else { granted };
        // The rows have the current token already. Who does not set it carries none all the same.
        let is_there = carrier == Carrier::NothingBesideColumn && !passes_on(rule);
        if is_there {
            self.set_token(Some(token)).await;
        }

        let w = &self.writer;
        w.begin(self.level).await;
        // From here on a snapshot of the transaction is an old one.
        w.sql("SELECT count(*) FROM t; SAVEPOINT s").await.expect("a look at the table");
        let mut may_carry = Ok(());
        if carrier.in_transaction() {
            may_carry = self.guard.carry(w, token).await;
            if may_carry.is_err() {
                w.sql("ROLLBACK TO s").await.expect("a savepoint");
            }
            w.sql("SAVEPOINT s").await.expect("a savepoint");
        }
        if matches!(fate, Fate::Superseded | Fate::Released) {
            self.guard.end(&self.admin).await;
        }
        if fate == Fate::Superseded {
            self.guard.grant(&self.admin).await;
        }
        let written = w.sql(&self.statement(rule, carrier, token)).await;
        if written.is_err() {
            w.sql("ROLLBACK TO s").await.expect("a refused statement can be taken back");
        }
        if fate == Fate::SupersededBeforeCommit {
            self.guard.end(&self.admin).await;
            self.guard.grant(&self.admin).await;
        }
        let committed = w.commit().await;
        if is_there {
            self.set_token(None).await;
        }
        let unchanged = self.all().await == self.before;
        let code = |answer: &Answer<()>| answer.as_ref().err().map(|e: &PgError| e.code.clone());
        let mut says = format!(
            "to carry it {:?}, the statement {:?}, COMMIT {:?}, {}; ",
            code(&may_carry),
            code(&written),
            code(&committed),
            if unchanged { "nothing changed" } else { "changed" }
        );
        let refused = |answer: &Answer<()>, with: &str| code(answer).as_deref() == Some(with);
        let mut wrote = !unchanged;
        let fine = match (verdict, fate) {
            // A token that is refused at once is not carried afterwards.
            (_, Fate::NeverGranted) if may_carry.is_err() => {
                refused(&may_carry, STALE) && written.is_err() && committed.is_ok() && unchanged
            }
            _ if may_carry.is_err() => false,
            (Verdict::Code(expected), _) => {
                refused(&written, expected) && committed.is_ok() && unchanged
            }
            (Verdict::NoRow, _) => written.is_ok() && committed.is_ok() && unchanged,
            (Verdict::Yes, Fate::Current) => {
                wrote = false;
                let rows = self.as_expected(rule, carrier, token).await;
                written.is_ok()
                    && committed.is_ok()
                    && rows.map_err(|rows| says.push_str(&rows)).is_ok()
            }
            (Verdict::Yes, Fate::SupersededBeforeCommit) => {
                written.is_ok() && refused(&committed, STALE) && unchanged
            }
            (Verdict::Yes, _) => refused(&written, STALE) && committed.is_ok() && unchanged,
        };
        if !unchanged {
            self.reset().await;
        }
        if fine { Ok(()) } else { Err((wrote, says)) }
    }

    /// The rows that the statement leaves, each that it wrote with its token.
    async fn as_expected(&self, rule: &Rule, carrier: Carrier, token: i64) -> Result<(), String> {
        let after = optional(rule.statement.after, self.shape == Shape::Inheritance);
        let rows: String = self
            .db
            .watch
            .one(
                "SELECT coalesce(string_agg(id || ':' || v || coalesce('>' || up, '') || coalesce('~' || nul, ''), ' ' ORDER BY id), '')
                 FROM t",
                &[],
            )
            .await
            .expect("the rows");
        if rows != after {
            return Err(format!("rows {rows:?} instead of {after:?}"));
        }
        if matches!(carrier, Carrier::Stamped | Carrier::Column) {
            let unstamped = "SELECT count(*) FROM t WHERE token IS DISTINCT FROM $1
                             AND (id, v, coalesce(up, 0), coalesce(nul, 0)) NOT IN (SELECT id, v, up, nul FROM seed)";
            let number: i64 = self.db.watch.one(unstamped, &[&token]).await.expect("a number");
            if number > 0 {
                return Err(format!("{number} rows without the token"));
            }
        }
        Ok(())
    }

    fn statement(&self, rule: &Rule, carrier: Carrier, token: i64) -> String {
        let by_column = carrier == Carrier::Column;
        let only = |text: String| if by_column { text } else { String::new() };
        let known = match carrier {
            Carrier::Nothing | Carrier::NothingBesideColumn => "NULL".to_owned(),
            _ => token.to_string(),
        };
        rule.statement
            .sql
            .replace("$c", &only(", token".to_owned()))
            .replace("$t", &only(format!(", {token}")))
            .replace("$s", &only(format!(", token = {token}")))
            .replace("$e", &only(", token = excluded.token".to_owned()))
            .replace("$a", &only(token.to_string()))
            .replace("$k", &known)
    }

    async fn set_token(&self, token: Option<i64>) {
        let token = token.map_or("NULL".to_owned(), |token| token.to_string());
        self.admin
            .sql(&format!(
                "BEGIN; SET LOCAL session_replication_role = replica; UPDATE t SET token = {token}; COMMIT"
            ))
            .await
            .expect("a superuser may");
    }

    async fn all(&self) -> String {
        self.db
            .watch
            .one(
                "SELECT concat_ws(' | ', (SELECT string_agg(tableoid::regclass || t::text, ' ' ORDER BY id, tableoid) FROM t),
                                  (SELECT string_agg(id::text, ' ' ORDER BY id) FROM up),
                                  (SELECT string_agg(id::text, ' ' ORDER BY id) FROM up_null))",
                &[],
            )
            .await
            .expect("the rows")
    }

    /// The rows as they were, past every trigger.
    async fn reset(&self) {
        self.admin
            .sql(&format!(
                "BEGIN; SET LOCAL session_replication_role = replica;
                 TRUNCATE t, up, up_null; {}; COMMIT;
                 CREATE TABLE IF NOT EXISTS seed AS
                     SELECT id, v, coalesce(up, 0) AS up, coalesce(nul, 0) AS nul FROM t",
                self.shape.fill(),
            ))
            .await
            .expect("a superuser may");
        let rows: String = self
            .db
            .watch
            .one("SELECT string_agg(id || ':' || v || coalesce('>' || up, '') || coalesce('~' || nul, ''), ' ' ORDER BY id) FROM t", &[])
            .await
            .expect("the rows");
        assert_eq!(rows, SEED);
    }
}

/// Does it set the column to what is there already? That is to carry it.
fn passes_on(rule: &Rule) -> bool {
    ["a view's INSTEAD OF trigger", "a rule, DO INSTEAD"].contains(&rule.statement.name)
}
