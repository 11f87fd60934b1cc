//! What an ordinary role can call, and a database where it can.

use std::collections::BTreeSet;

use lock_ext_sessions::{Db, Refused, Session};

/// What a call does where nothing may be changed.
#[derive(Clone, Copy, PartialEq)]
pub enum ReadOnly {
    Works,
    Refused,
}
use ReadOnly::{Refused as Changes, Works as Asks};

/// A call of each function that anybody may execute, in an order in which all succeed. `{t}` is the current token of the lease "job".
pub const REGULAR: [(&str, &str, ReadOnly); 20] = [
    ("fence_attach(regclass, text, text, text)", "SELECT fence_attach('own', 'job')", Changes),
    ("lease_extend(text, bigint)", "SELECT lease_extend('job', {t})", Changes),
    ("lease_extend(text, bigint, interval)", "SELECT lease_extend('job', {t}, '1 h')", Changes),
    (
        "lease_extend_many(text[], bigint[])",
        "SELECT * FROM lease_extend_many('{job}', ARRAY[{t}])",
        Changes,
    ),
    (
        "lease_extend_many(text[], bigint[], interval)",
        "SELECT * FROM lease_extend_many('{job}', ARRAY[{t}], '1 h')",
        Changes,
    ),
    (
        "lease_elect(text, text, interval, bigint, interval, interval)",
        "SELECT lease_elect('job', 'A', '1 h', {t})",
        Changes,
    ),
    ("lease_is_current(text, bigint)", "SELECT lease_is_current('job', {t})", Asks),
    ("lease_checkpoint(text, bigint, jsonb)", "SELECT lease_checkpoint('job', {t}, '1')", Changes),
    ("lease_checkpoint(text)", "SELECT lease_checkpoint('job')", Asks),
    // A word about writes, which are refused by themselves.
    ("lease_fence(text, bigint, boolean)", "SELECT lease_fence('job', {t})", Asks),
    (
        "fenced_update(regclass, bigint, jsonb, jsonb, text, boolean)",
        "SELECT fenced_update('plain', {t}, '{\"id\": 1}', '{\"v\": 4}', 'job')",
        Changes,
    ),
    (
        "fenced_update(regclass, bigint, jsonb, jsonb, boolean)",
        "SELECT fenced_update('stamped', {t}, '{}', '{\"v\": 5}', all_rows => true)",
        Changes,
    ),
    ("fence_observe(text, bigint)", "SELECT fence_observe('etcd', 7)", Changes),
    ("once(text)", "SELECT once('key')", Changes),
    ("lease_evict(text, bigint)", "SELECT lease_evict('job', {t})", Changes),
    (
        "lease_acquire_session(text, text, interval)",
        "SELECT lease_acquire_session('bound', 'A', wait => '20 s')",
        Changes,
    ),
    (
        "lease_acquire(text, text, interval, interval, uuid, interval, interval)",
        "SELECT lease_acquire('more', 'A', '1 h', wait => '20 s')",
        Changes,
    ),
    (
        "lease_complete(text, bigint, timestamp with time zone)",
        "SELECT lease_complete('job', {t}, 'yesterday')",
        Changes,
    ),
    ("lease_release(text, bigint)", "SELECT lease_release('job', 1)", Changes),
    ("fence_detach(regclass)", "SELECT fence_detach('own')", Changes),
];

/// The triggers call it.
pub const TRIGGER: &str = "fence_check()";

/// A call of each function that has to be granted first.
pub const ADMINISTRATIVE: [(&str, &str); 6] = [
    ("fence_forget(text)", "SELECT fence_forget('etcd')"),
    ("lease_evict(text)", "SELECT lease_evict('job')"),
    ("lease_force_release(text)", "SELECT lease_force_release('job')"),
    ("lease_prune(interval)", "SELECT lease_prune('0')"),
    ("lease_raise_token_floor(bigint)", "SELECT lease_raise_token_floor(1000)"),
    ("once_forget(interval)", "SELECT once_forget('0')"),
];

/// The same for what only the others call. None of them does more than they do, or for somebody else.
pub const PRIVATE: [(&str, &str); 14] = [
    (
        "attach_statements(oid, text, oid, text, text, text)",
        "attach_statements('fence_check()'::regprocedure, 'ops', 'plain'::regclass, 'x', NULL, NULL)",
    ),
    (
        "attached_lease(oid, oid)",
        "attached_lease('fence_check()'::regprocedure, 'plain'::regclass)",
    ),
    ("carry(text, bigint)", "carry('job', {t})"),
    ("carry_again(text, bigint)", "carry_again('job', {t})"),
    (
        "conversion_statement(oid, text[], text[])",
        "conversion_statement('plain'::regclass, '{id}', '{v}')",
    ),
    (
        "detach_statements(oid, oid)",
        "detach_statements('fence_check()'::regprocedure, 'plain'::regclass)",
    ),
    ("observed()", "observed()"),
    ("origin()", "origin()"),
    ("status()", "status()"),
    (
        "tokens_are_ahead(oid, bigint, boolean)",
        "tokens_are_ahead('plain'::regclass, 1000000, true)",
    ),
    ("trigger_arguments(bytea)", "trigger_arguments('x')"),
    (
        "update_statement(oid, text, text[], text[], text, text[], boolean)",
        "update_statement('plain'::regclass, 'object', '{id}', '{id}', 'object', '{v}', false)",
    ),
    ("waiters()", "waiters()"),
    ("writers()", "writers()"),
];

pub const VIEWS: [&str; 6] = [
    "fence_observed",
    "fence_status",
    "lease_session",
    "lease_status",
    "lease_waiter",
    "lease_writer",
];

/// The extension in a schema of its own, two fenced tables and one that is the role's, and a role that may use the schemas, read and write
/// the tables, and call functions: no CREATE anywhere, no TEMP. A second one, which is in the way of nobody, is as poor.
pub struct Scene {
    pub db: Db,
    pub app: String,
    pub other: String,
}

impl Scene {
    pub async fn new() -> Self {
        let db = Db::bare().await;
        let [app, other] = [db.role("app").await, db.role("other").await];
        db.watch
            .sql(&format!(
                "CREATE SCHEMA ops; CREATE SCHEMA app;
                 CREATE EXTENSION lock_ext SCHEMA ops;
                 REVOKE ALL ON SCHEMA public FROM PUBLIC;
                 REVOKE ALL ON DATABASE {db} FROM PUBLIC;
                 GRANT CONNECT ON DATABASE {db} TO {app}, {other};
                 GRANT USAGE ON SCHEMA ops, app TO {app}, {other};
                 SET search_path = app, ops;
                 CREATE TABLE plain (id int PRIMARY KEY, v int);
                 CREATE TABLE stamped (id int PRIMARY KEY, v int, token bigint);
                 CREATE TABLE own (id int);
                 ALTER TABLE own OWNER TO {app};
                 INSERT INTO plain VALUES (1, 0); INSERT INTO stamped VALUES (1, 0);
                 GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON plain, stamped TO {app}, {other};
                 SELECT fence_attach('plain', 'job'), fence_attach('stamped', 'job', 'token')",
                db = db.name()
            ))
            .await
            .unwrap();
        Self { db, app, other }
    }

    pub async fn session(&self, role: &str) -> Session {
        let session = self.db.session_as(role).await;
        session.sql("SET search_path = app, ops").await.unwrap();
        for right in
            ["CREATE TABLE app.mine ()", "CREATE TABLE ops.mine ()", "CREATE TEMP TABLE mine ()"]
        {
            session.sql(right).await.refused("42501");
        }
        session
    }

    /// The functions of the extension in the schema, by whether an ordinary role may execute them.
    pub async fn functions(&self, schema: &str, executable: bool) -> BTreeSet<String> {
        let functions: Vec<String> = self
            .db
            .watch
            .list(
                "SELECT p.proname || '(' || oidvectortypes(p.proargtypes) || ')' FROM pg_proc p
                 JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
                 JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'lock_ext'
                 WHERE p.pronamespace = $1::text::regnamespace
                   AND has_function_privilege($2::text, p.oid, 'EXECUTE') = $3",
                &[&schema, &self.app, &executable],
            )
            .await
            .unwrap();
        functions.into_iter().collect()
    }

    /// The tables, sequences and views of the extension.
    pub async fn relations(&self, kind: &str) -> Vec<String> {
        self.db
            .watch
            .list(
                "SELECT c.oid::regclass::text FROM pg_class c
                 JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
                 JOIN pg_extension e ON e.oid = d.refobjid AND e.extname = 'lock_ext'
                 WHERE c.relkind::text = $1
                 UNION SELECT d.objid::regclass::text FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
                 WHERE d.classid = 'pg_class'::regclass AND c.relkind::text = $1 AND c.relnamespace = 'lock_ext'::regnamespace
                 ORDER BY 1",
                &[&kind],
            )
            .await
            .unwrap()
    }

    /// All that the extension keeps, to see that nothing of it was changed.
    pub async fn contents(&self) -> Vec<String> {
        let mut contents = Vec::new();
        for (kind, row) in [("r", "r::text"), ("S", "concat_ws(' ', last_value, is_called)")] {
            for relation in self.relations(kind).await {
                let rows = format!("SELECT '{relation} ' || {row} FROM {relation} AS r ORDER BY 1");
                contents.extend(self.db.watch.list::<String>(&rows, &[]).await.unwrap());
            }
        }
        contents
    }
}

pub fn named<const N: usize>(functions: [&str; N]) -> BTreeSet<String> {
    functions.into_iter().map(str::to_owned).collect()
}
