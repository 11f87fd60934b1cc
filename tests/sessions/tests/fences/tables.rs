//! The kinds of tables, each with the same columns and rows, and all that leads to them.

use lock_ext_sessions::Db;

use super::guard::Guard;
use super::statements::{WAYS_TO_T, WAYS_TO_T_WITH_TOKEN};

/// A kind of table. All have the same columns and the same rows; `t` is what the fence is attached to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Plain,
    /// `t_low` below 100, `t_leaf` from 100 on, which is a partition of the partition `t_high`.
    Partitioned,
    /// `t` with rows of its own, its children `t_low` and `t_high`, and `t_leaf`, a child of `t_high`.
    Inheritance,
}

impl Shape {
    pub const ALL: [Self; 3] = [Self::Plain, Self::Partitioned, Self::Inheritance];

    /// The tables that other tables' rows are deleted and updated with.
    const REFERENCES: &str = "FOREIGN KEY (up) REFERENCES up ON DELETE CASCADE ON UPDATE CASCADE,
         FOREIGN KEY (nul) REFERENCES up_null ON DELETE SET NULL";

    /// Makes `t` and what belongs to it; `token` is the definition of the token column, or nothing.
    pub fn create(self, token: &str) -> String {
        let keys = Self::REFERENCES;
        let columns = format!(
            "id int, v int NOT NULL DEFAULT 0, up int, nul int{token}, PRIMARY KEY (id), {keys}"
        );
        // Its columns have other numbers than the parent's.
        let other_order = format!(
            "CREATE TABLE t_low (gone text{token}, nul int, up int, v int NOT NULL DEFAULT 0, id int, PRIMARY KEY (id), {keys});
             ALTER TABLE t_low DROP COLUMN gone"
        );
        match self {
            Self::Plain => format!("CREATE TABLE t ({columns})"),
            Self::Partitioned => format!(
                "CREATE TABLE t ({columns}) PARTITION BY RANGE (id);
                 {other_order}; ALTER TABLE t ATTACH PARTITION t_low FOR VALUES FROM (MINVALUE) TO (100);
                 CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (100) TO (MAXVALUE) PARTITION BY RANGE (id);
                 CREATE TABLE t_leaf PARTITION OF t_high FOR VALUES FROM (100) TO (200)"
            ),
            Self::Inheritance => format!(
                "CREATE TABLE t ({columns});
                 {other_order}; ALTER TABLE t_low INHERIT t;
                 CREATE TABLE t_high (PRIMARY KEY (id), {keys}) INHERITS (t);
                 CREATE TABLE t_leaf (PRIMARY KEY (id), {keys}) INHERITS (t_high)"
            ),
        }
    }

    /// Where the rows of the seed go: with inheritance that has to be said.
    pub fn fill(self) -> String {
        let [root, low, leaf] = match self {
            Self::Plain | Self::Partitioned => ["t"; 3],
            Self::Inheritance => ["t", "t_low", "t_leaf"],
        };
        format!(
            "INSERT INTO up VALUES (2), (8); INSERT INTO up_null VALUES (3);
             INSERT INTO {root} (id) VALUES (1);
             INSERT INTO {low} (id, up, nul) VALUES (2, 2, NULL), (3, NULL, 3);
             INSERT INTO {leaf} (id) VALUES (101)"
        )
    }
}

/// The tables of a kind, empty and without a fence, and all that leads to them. Gives an ordinary role that may write them.
pub async fn tables(db: &Db, guard: Guard, shape: Shape, with_column: bool) -> String {
    let [app, owner] = [db.role("app").await, db.role("owner").await];
    guard.prepare(db).await;
    let token = if with_column { ", token bigint" } else { "" };
    let ways = optional(WAYS_TO_T, with_column);
    let ways_with_token = if with_column { WAYS_TO_T_WITH_TOKEN } else { "" };
    // The owner of the tables and of a function is not the writer: foreign keys act as the one, SECURITY DEFINER as the other.
    db.watch
        .sql(&format!(
            "CREATE TABLE up (id int PRIMARY KEY); CREATE TABLE up_null (id int PRIMARY KEY);
             {}; {ways} {ways_with_token}
             GRANT {app} TO {owner}; GRANT pg_execute_server_program TO {app};
             DO $$ DECLARE r record; BEGIN
                 FOR r IN SELECT oid::regclass AS t FROM pg_class
                           WHERE relname ~ '^(t|t_.*|up.*)$' AND relkind IN ('r', 'p') LOOP
                     EXECUTE format('ALTER TABLE %s OWNER TO {owner}', r.t);
                 END LOOP;
                 FOR r IN SELECT oid::regprocedure AS f FROM pg_proc WHERE proname = 'by_definer' LOOP
                     EXECUTE format('ALTER FUNCTION %s OWNER TO {owner}', r.f);
                 END LOOP;
             END $$;
             GRANT ALL ON ALL TABLES IN SCHEMA public TO {app}",
            shape.create(token),
        ))
        .await
        .expect("the tables");
    app
}

/// What is in braces, or nothing of it.
pub fn optional(text: &str, there: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for part in text.split('{') {
        match part.split_once('}') {
            Some((inside, outside)) => {
                if there {
                    out.push_str(inside);
                }
                out.push_str(outside);
            }
            None => out.push_str(part),
        }
    }
    out
}
