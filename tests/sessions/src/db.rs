use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};
use tokio_postgres::types::ToSql;

use crate::{PgError, Session};

/// How long a condition may take to come true before the test fails: an outer limit, not an expectation.
pub const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(15);

/// Databases at once. Most tests wait most of the time, so more than the machine has cores;
/// few enough that 20 sessions each stay far below the server's connections.
const AT_ONCE: u32 = 8;
static PLACES: Semaphore = Semaphore::const_new(AT_ONCE as usize);

const TEMPLATE: &str = "lock_ext_sessions_template";
static TEMPLATE_READY: OnceCell<()> = OnceCell::const_new();
static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A database of one test's own. Dropping it ends every session that is still in it.
pub struct Db {
    name: String,
    roles: Mutex<Vec<String>>,
    /// A superuser's session that only looks.
    pub watch: Session,
    /// Held until the database is gone; none for [`Db::another`].
    _place: Option<SemaphorePermit<'static>>,
}

impl Db {
    /// A database with the extension installed as by a plain `CREATE EXTENSION lock_ext`.
    pub async fn fresh() -> Self {
        Self::in_places(1, true).await
    }

    /// A database without the extension.
    pub async fn bare() -> Self {
        Self::in_places(1, false).await
    }

    /// Like [`Db::fresh`], while no other test runs: for what can only be seen of the whole server.
    pub async fn alone() -> Self {
        Self::in_places(AT_ONCE, true).await
    }

    /// A second database of the same test, in this one's place: a test that waited for a second place
    /// while it has one could wait for ever.
    pub async fn another(&self) -> Self {
        Self::make(None, true).await
    }

    /// The same without the extension.
    pub async fn another_bare(&self) -> Self {
        Self::make(None, false).await
    }

    /// A database with the extension and another encoding than the server's.
    pub async fn in_encoding(encoding: &str) -> Self {
        let place = PLACES.acquire().await.expect("the semaphore is never closed");
        let options =
            format!("TEMPLATE template0 ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C'");
        let db = Self::create(Some(place), &options).await;
        db.watch.sql("CREATE EXTENSION lock_ext").await.expect("the extension is installed");
        db
    }

    async fn in_places(places: u32, with_extension: bool) -> Self {
        let place = PLACES.acquire_many(places).await.expect("the semaphore is never closed");
        Self::make(Some(place), with_extension).await
    }

    async fn make(place: Option<SemaphorePermit<'static>>, with_extension: bool) -> Self {
        TEMPLATE_READY.get_or_init(prepare_template).await;
        let template = if with_extension { TEMPLATE } else { "template1" };
        Self::create(place, &format!("TEMPLATE {template}")).await
    }

    async fn create(place: Option<SemaphorePermit<'static>>, options: &str) -> Self {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("lx_{}_{number}", std::process::id());
        let admin = Session::to(&maintenance_database(), None).await;
        admin.sql(&format!("CREATE DATABASE {name} {options}")).await.expect("the test's database");
        let watch = Session::to(&name, None).await;
        Self { name, roles: Mutex::default(), watch, _place: place }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// A new session of the superuser.
    pub async fn session(&self) -> Session {
        Session::to(&self.name, None).await
    }

    /// As many sessions of the superuser as the array that is asked for has places.
    pub async fn sessions<const N: usize>(&self) -> [Session; N] {
        let mut sessions = Vec::with_capacity(N);
        for _ in 0..N {
            sessions.push(self.session().await);
        }
        sessions.try_into().unwrap_or_else(|_| unreachable!("N were made"))
    }

    /// A new session of a role that [`Db::role`] made.
    pub async fn session_as(&self, role: &str) -> Session {
        Session::to(&self.name, Some(role)).await
    }

    /// A role that may log in and has no rights of its own. Roles belong to the whole server, hence
    /// the database's name in theirs.
    pub async fn role(&self, name: &str) -> String {
        let role = format!("{}_{name}", self.name);
        self.watch.sql(&format!("CREATE ROLE {role} LOGIN")).await.expect("the role");
        self.roles.lock().expect("no test panics while it holds this").push(role.clone());
        role
    }

    /// Waits until the condition, a boolean SQL expression, is true.
    pub async fn until(&self, condition: &str, params: &[&(dyn ToSql + Sync)]) {
        let start = Instant::now();
        let query = format!("SELECT coalesce(({condition}), false)");
        while !self.watch.one::<bool>(&query, params).await.expect("a condition") {
            assert!(start.elapsed() < PATIENCE, "never came true: {condition}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits until the lease's time to live has run out.
    pub async fn expired(&self, lease: &str) {
        self.until("SELECT state = 'expired' FROM lease_status WHERE name = $1", &[&lease]).await;
    }

    /// Waits until the session waits for a lock that another one has.
    pub async fn blocked(&self, session: &Session) {
        self.until("cardinality(pg_blocking_pids($1)) > 0", &[&session.pid()]).await;
    }

    /// Waits until the session is in a call that cannot go on, whatever it waits for.
    pub async fn waiting(&self, session: &Session) {
        self.until(
            "SELECT state = 'active' AND wait_event IS NOT NULL AND wait_event_type <> 'Client'
             FROM pg_stat_activity WHERE pid = $1",
            &[&session.pid()],
        )
        .await;
    }

    /// Waits until the session with this process id has ended.
    pub async fn gone(&self, pid: i32) {
        self.until("NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", &[&pid]).await;
    }

    /// Waits until the session sits in an open transaction and does nothing.
    pub async fn idle_in_transaction(&self, pid: i32) {
        self.until(
            "SELECT state = 'idle in transaction' FROM pg_stat_activity WHERE pid = $1",
            &[&pid],
        )
        .await;
    }

    /// Ends the session as a crash of its client would.
    pub async fn terminate(&self, pid: i32) {
        self.watch
            .one::<bool>("SELECT pg_terminate_backend($1)", &[&pid])
            .await
            .expect("terminated");
        self.gone(pid).await;
    }

    /// Two tables that the lease fences, each with rows 1 to 9 and v = 0: `plain`, whose writers
    /// carry the token in the transaction, and `stamped`, which also has a column for it.
    pub async fn fence(&self, lease: &str) {
        self.watch
            .sql(
                "CREATE TABLE plain (id int PRIMARY KEY, v int NOT NULL DEFAULT 0);
                 CREATE TABLE stamped (id int PRIMARY KEY, v int NOT NULL DEFAULT 0, token bigint);
                 INSERT INTO plain SELECT g FROM generate_series(1, 9) g;
                 INSERT INTO stamped SELECT g FROM generate_series(1, 9) g;",
            )
            .await
            .expect("two tables");
        self.watch
            .exec("SELECT fence_attach('plain', $1::text), fence_attach('stamped', $1::text, 'token')", &[&lease])
            .await
            .expect("two fences");
    }

    /// Sets v in all rows of [`Db::fence`] to 0 again, past the fence.
    pub async fn reset(&self) {
        self.watch
            .sql(
                "BEGIN; SET LOCAL session_replication_role = replica;
                 UPDATE plain SET v = 0; UPDATE stamped SET v = 0; COMMIT",
            )
            .await
            .expect("a superuser may");
    }

    /// From now on a commit with `synchronous_commit = on` stops between being written and becoming visible,
    /// until the guard is dropped: it waits for a standby that does not exist. It is a setting of the
    /// whole server, so only for a test that runs [alone](Db::alone).
    pub async fn hold_commits(&self) -> HeldCommits {
        let guard = HeldCommits;
        set_standby("nobody", "local").await;
        // The setting counts when the checkpointer has seen it: when a commit does stop.
        let probe = self.session().await;
        let probing = probe.beside(|probe| async move {
            loop {
                probe
                    .sql("SET synchronous_commit = on; SELECT pg_current_xact_id()")
                    .await
                    .expect("a commit");
            }
        });
        self.until(
            "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $1",
            &[&probe.pid()],
        )
        .await;
        probing.abort();
        guard
    }

    /// The value of a row, as everybody sees it.
    pub async fn v(&self, table: &str, id: i32) -> i32 {
        self.watch
            .one(&format!("SELECT v FROM {table} WHERE id = $1"), &[&id])
            .await
            .expect("the row")
    }
}

impl Drop for Db {
    fn drop(&mut self) {
        let name = self.name.clone();
        let roles =
            std::mem::take(self.roles.get_mut().expect("no test panics while it holds this"));
        // A thread and a runtime of its own: a destructor cannot await, and the test's runtime may
        // be unwinding. What cannot be removed must not hide why the test failed.
        let removed = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            let removal = async {
                let admin = Session::to(&maintenance_database(), None).await;
                for prepared in admin
                    .list::<String>(
                        "SELECT gid FROM pg_prepared_xacts WHERE database = $1",
                        &[&name],
                    )
                    .await?
                {
                    let there = Session::to(&name, None).await;
                    there.sql(&format!("ROLLBACK PREPARED '{prepared}'")).await?;
                }
                admin.sql(&format!("DROP DATABASE {name} WITH (FORCE)")).await?;
                for role in roles {
                    admin.sql(&format!("DROP ROLE {role}")).await?;
                }
                Ok(())
            };
            runtime.block_on(removal).map_err(|error: PgError| error.to_string())
        })
        .join();
        if !std::thread::panicking() {
            removed.expect("the clean-up ran").expect("the test's database is removed");
        }
    }
}

/// Commits stop, see [`Db::hold_commits`].
pub struct HeldCommits;

impl Drop for HeldCommits {
    fn drop(&mut self) {
        // As for the database: a destructor cannot await.
        let reset = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(set_standby("", "on"));
        })
        .join();
        if !std::thread::panicking() {
            reset.expect("commits go on");
        }
    }
}

async fn set_standby(name: &str, for_all_others: &str) {
    let admin = Session::to(&maintenance_database(), None).await;
    admin
        .sql(&format!("ALTER SYSTEM SET synchronous_commit = '{for_all_others}'"))
        .await
        .expect("a superuser may");
    admin
        .sql(&format!("ALTER SYSTEM SET synchronous_standby_names = '{name}'"))
        .await
        .expect("a superuser may");
    admin.sql("SELECT pg_reload_conf()").await.expect("a superuser may");
}

fn maintenance_database() -> String {
    std::env::var("PGDATABASE").unwrap_or_else(|_| "postgres".to_owned())
}

async fn prepare_template() {
    let admin = Session::to(&maintenance_database(), None).await;
    admin
        .sql(&format!("DROP DATABASE IF EXISTS {TEMPLATE} WITH (FORCE)"))
        .await
        .expect("no template of an earlier run");
    admin.sql(&format!("CREATE DATABASE {TEMPLATE}")).await.expect("the template");
    let inside = Session::to(TEMPLATE, None).await;
    inside.sql("CREATE EXTENSION lock_ext").await.expect("the extension is installed");
    let pid = inside.pid();
    drop(inside);
    // A database with a session in it cannot be copied.
    let start = Instant::now();
    while admin
        .one::<bool>("SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", &[&pid])
        .await
        .expect("a look at the sessions")
    {
        assert!(start.elapsed() < PATIENCE, "the template's session does not end");
        tokio::time::sleep(PAUSE).await;
    }
}
