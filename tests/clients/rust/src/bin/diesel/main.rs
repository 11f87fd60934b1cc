//! Diesel: <https://docs.rs/diesel>

mod model;

use std::thread;
use std::time::{Duration, Instant};

use diesel::connection::SimpleConnection;
use diesel::dsl::IntervalDsl;
use diesel::prelude::*;
use diesel::result::DatabaseErrorKind::{ClosedConnection, Unknown};
use diesel::result::{DatabaseErrorInformation, DatabaseErrorKind, Error};
use diesel::sql_types::{BigInt, Integer, Interval, Jsonb, Text};
use diesel_migrations::{EmbeddedMigrations, MigrationHarness, embed_migrations};
use lock_ext_clients::{LEASE, Outcome, Stack, check, database, refused, same};
use serde_json::{Value, json};

use model::{
    Entry, Heartbeat, acquire, entry, fence, is_mine, is_retryable, lease_acquire, player,
};

#[diesel::declare_sql_function]
extern "SQL" {
    #[sql_name = "lease_acquire"]
    fn lease_acquire_text(name: Text, holder: Text, ttl: Text) -> Nullable<BigInt>;
    #[sql_name = "lease_acquire"]
    fn lease_acquire_wait(
        name: Text,
        holder: Text,
        ttl: Interval,
        wait: Interval,
    ) -> Nullable<BigInt>;
    #[sql_name = "lease_checkpoint"]
    fn checkpoint_of(name: Text) -> Nullable<Jsonb>;
    #[sql_name = "once"]
    fn once_only(key: Text) -> Bool;
    fn pg_backend_pid() -> Integer;
}

const STACK: &str = "diesel";
const TTL: Duration = Duration::from_secs(30);

/// libpq reads PGHOST, PGPORT and PGUSER.
fn url() -> String {
    format!("postgres:///{}", database(STACK))
}

fn connect() -> ConnectionResult<PgConnection> {
    PgConnection::establish(&url())
}

fn granted(connection: &mut PgConnection) -> Result<i64, Box<dyn std::error::Error + Send + Sync>> {
    Ok(acquire(connection, LEASE, "node-1", TTL)?.ok_or("not granted")?)
}

fn pay(connection: &mut PgConnection) -> QueryResult<usize> {
    diesel::update(player::table).set(player::coins.eq(player::coins + 100)).execute(connection)
}

fn fields(
    error: &Error,
) -> Option<(&DatabaseErrorKind, &(dyn DatabaseErrorInformation + Send + Sync))> {
    match error {
        Error::DatabaseError(kind, fields) => Some((kind, &**fields)),
        _ => None,
    }
}

/// What can be known of it: no SQLSTATE.
fn superseded(error: &Error) -> Outcome {
    let Some((Unknown, fields)) = fields(error) else { return Err(format!("{error:?}").into()) };
    let message = fields.message();
    check(message.starts_with("fencing token") && message.ends_with("is not current"), message)?;
    check(
        fields.details().is_some_and(|detail| detail.contains(LEASE)),
        "the detail does not name the lease",
    )
}

fn grant(stack: &Stack) -> Outcome {
    let mut connection = connect()?;
    let token = granted(&mut connection)?;
    let shown = stack.admin("SELECT token FROM lease_status WHERE name = 'daily-reward'")?;
    same("token", token.to_string(), shown)?;
    check(token > 9_007_199_254_730_000, "the token is not above the floor")?;
    same("held by another", acquire(&mut connection, LEASE, "node-2", TTL)?, None)?;
    same(
        "ttl",
        stack.admin("SELECT ttl FROM lease_status WHERE name = 'daily-reward'")?,
        "00:00:30",
    )?;

    let natural = diesel::select(lease_acquire("other", "node-1", 30_i32.seconds()));
    check(
        natural.get_result::<Option<i64>>(&mut connection)?.is_some(),
        "not granted by IntervalDsl",
    )?;
    let text = diesel::select(lease_acquire_text("x", "y", "30 seconds"))
        .get_result::<Option<i64>>(&mut connection);
    let text = refused("a string for an interval", text)?;
    check(
        text.to_string().contains("lease_acquire(text, text, text) does not exist"),
        text.to_string(),
    )?;

    let highest = diesel::select((
        i64::MAX.into_sql::<BigInt>(),
        diesel::dsl::sql::<Text>("9223372036854775807::text"),
    ));
    let highest: (i64, String) = highest.get_result(&mut connection)?;
    same("highest bigint", highest, (i64::MAX, i64::MAX.to_string()))
}

fn heartbeat(stack: &Stack) -> Outcome {
    let ttl = Duration::from_millis(600);
    let mut connection = connect()?;
    let asked = Instant::now();
    let token = acquire(&mut connection, LEASE, "node-1", ttl)?.ok_or("not granted")?;
    let beating = Heartbeat::start(url(), LEASE.to_owned(), token, ttl, asked);

    // This connection is busy for longer than the time to live.
    connection.batch_execute("SELECT pg_sleep(1.5)")?;
    check(is_mine(&mut connection, LEASE, token)?, "the lease was not extended")?;
    check(beating.is_mine(), "the heartbeat gave up a lease that it had")?;

    let ends = |beating: &Heartbeat, why: &'static str| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while beating.is_mine() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
        }
        check(!beating.is_mine(), why)
    };
    // No answer comes any more: its own deadline ends it.
    connection.batch_execute("BEGIN; LOCK TABLE lock_ext.lease")?;
    ends(&beating, "no deadline of its own")?;
    connection.batch_execute("ROLLBACK")?;

    // And so does the loss of the lease, long before the deadline.
    stack.reset()?;
    let ttl = Duration::from_secs(3);
    let token = acquire(&mut connection, LEASE, "node-1", ttl)?.ok_or("not granted")?;
    let late = Instant::now() + Duration::from_secs(600);
    let beating = Heartbeat::start(url(), LEASE.to_owned(), token, ttl, late);
    stack.take_over()?;
    ends(&beating, "the loss was not noticed")
}

fn fenced_transaction(stack: &Stack) -> Outcome {
    let mut connection = connect()?;
    let unfenced = refused("a write without a token", pay(&mut connection))?;
    check(unfenced.to_string().ends_with("carries no fencing token"), unfenced.to_string())?;

    let token = granted(&mut connection)?;
    connection.transaction(|connection| {
        fence(connection, LEASE, token)?;
        diesel::insert_into(player::table)
            .values((player::id.eq(4), player::coins.eq(50)))
            .execute(connection)?;
        pay(connection)
    })?;
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "450")
}

fn fenced_column(stack: &Stack) -> Outcome {
    let mut connection = connect()?;
    let token = granted(&mut connection)?;
    diesel::insert_into(entry::table)
        .values(Entry { id: 1, amount: 100, token })
        .execute(&mut connection)?;
    let mut saved: Entry = entry::table.find(1).first(&mut connection)?;
    saved.amount = 200;
    let mut saved: Entry = saved.save_changes(&mut connection)?;
    same("entry", &saved, &Entry { id: 1, amount: 200, token })?;

    stack.take_over()?;
    saved.amount = 300;
    superseded(&refused("a superseded token", saved.save_changes::<Entry>(&mut connection))?)?;
    same("amount", stack.admin("SELECT amount FROM entry")?, "200")
}

fn refused_write(stack: &Stack) -> Outcome {
    let mut connection = connect()?;
    let token = granted(&mut connection)?;
    let mut attempts = 0;
    let error = loop {
        attempts += 1;
        let result = connection.transaction(|connection| {
            fence(connection, LEASE, token)?;
            if attempts == 1 {
                stack.take_over().map_err(Error::QueryBuilderError)?;
            }
            pay(connection)
        });
        let error = refused("the write", result)?;
        if !is_retryable(&error) || attempts == 3 {
            break error;
        }
    };
    same("attempts", attempts, 1)?;
    superseded(&error)?;
    same("table", fields(&error).and_then(|(_, fields)| fields.table_name()), Some("player"))?;
    check(!is_mine(&mut connection, LEASE, token)?, "the superseded token is current")?;

    // A transaction that is refused is over. COMMIT then rolls back, which Diesel does not report.
    stack.admin("SELECT lease_force_release('daily-reward')")?;
    let token = granted(&mut connection)?;
    let swallowed = connection.transaction(|connection| {
        fence(connection, LEASE, token)?;
        pay(connection)?;
        stack.take_over().map_err(Error::QueryBuilderError)?;
        Ok::<_, Error>(pay(connection).is_err())
    });
    same("COMMIT of what failed", swallowed, Ok(true))?;
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "0")
}

fn refused_commit(stack: &Stack) -> Outcome {
    let mut connection = connect()?;
    let token = granted(&mut connection)?;
    let result = connection.transaction(|connection| {
        fence(connection, LEASE, token)?;
        pay(connection)?;
        stack.take_over().map_err(Error::QueryBuilderError)
    });
    let error = refused("COMMIT", result)?;
    superseded(&error)?;
    check(!is_retryable(&error), "taken for a retryable conflict")?;
    check(!is_mine(&mut connection, LEASE, token)?, "the superseded token is current")?;
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "0")
}

fn once(stack: &Stack) -> Outcome {
    let mut connection = connect()?;
    let mut firsts: Vec<bool> = Vec::new();
    for commits in [false, true, true] {
        let result = connection.transaction(|connection| {
            firsts.push(diesel::select(once_only("mail:1")).get_result(connection)?);
            if commits { Ok(()) } else { Err(Error::RollbackTransaction) }
        });
        same("committed", result.is_ok(), commits)?;
    }
    same("rolled back, committed, again", firsts, [true, true, false])?;
    same("keys", stack.admin("SELECT once('mail:1')")?, "f")
}

fn save(connection: &mut PgConnection, token: i64, state: &Value) -> QueryResult<usize> {
    let save = diesel::sql_query("SELECT lease_checkpoint($1, $2, $3)");
    save.bind::<Text, _>(LEASE).bind::<BigInt, _>(token).bind::<Jsonb, _>(state).execute(connection)
}

fn checkpoint(stack: &Stack) -> Outcome {
    let (mut first, saved) = (connect()?, json!({ "after": i64::MAX }));
    let token = granted(&mut first)?;
    first.transaction(|connection| {
        fence(connection, LEASE, token)?;
        pay(connection)?;
        save(connection, token, &saved)
    })?;

    // The crash: neither the work nor its checkpoint is there.
    let crash = first.transaction(|connection| {
        fence(connection, LEASE, token)?;
        pay(connection)?;
        save(connection, token, &json!({ "after": 0 }))?;
        let pid: i32 = diesel::select(pg_backend_pid()).get_result(connection)?;
        let kill = stack.admin(&format!("SELECT pg_terminate_backend({pid}, 5000)"));
        kill.map(drop).map_err(Error::QueryBuilderError)
    });
    refused("COMMIT after the crash", crash)?;

    stack.admin("SELECT lease_force_release('daily-reward')")?;
    let mut second = connect()?;
    let token = granted(&mut second)?;
    let found = second.transaction(|connection| {
        fence(connection, LEASE, token)?;
        diesel::select(checkpoint_of(LEASE)).get_result::<Option<Value>>(connection)
    })?;
    same("checkpoint", found, Some(saved))?;
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "300")
}

fn wait_timeout(stack: &Stack) -> Outcome {
    stack.take_over()?;
    let mut connection = connect()?;
    // Diesel cannot cancel: the timeout is the server's.
    connection.batch_execute("SET statement_timeout = '300ms'")?;
    let wait =
        diesel::select(lease_acquire_wait(LEASE, "node-1", 30_i32.seconds(), 60_i32.seconds()));
    let timeout = refused("the wait", wait.get_result::<Option<i64>>(&mut connection))?;
    check(timeout.to_string().contains("statement timeout"), timeout.to_string())?;
    same("waiters", stack.admin("SELECT count(*) FROM lease_waiter")?, "0")?;
    let usable: i32 = diesel::select(7.into_sql::<Integer>()).get_result(&mut connection)?;
    same("the connection afterwards", usable, 7)?;

    let wait = diesel::select(lease_acquire_wait(
        LEASE,
        "node-1",
        30_i32.seconds(),
        200_000_i32.microseconds(),
    ));
    same("a wait that ran out", wait.get_result::<Option<i64>>(&mut connection)?, None)
}

fn lost_connection(stack: &Stack) -> Outcome {
    let mut connection = connect()?;
    let token = granted(&mut connection)?;
    let result = connection.transaction(|connection| {
        fence(connection, LEASE, token)?;
        pay(connection)?;
        let pid: i32 = diesel::select(pg_backend_pid()).get_result(connection)?;
        let kill = stack.admin(&format!("SELECT pg_terminate_backend({pid}, 5000)"));
        kill.map_err(Error::QueryBuilderError)?;
        pay(connection)
    });
    let lost = refused("a write on a lost connection", result)?;
    check(matches!(fields(&lost), Some((ClosedConnection, _))), format!("{lost:?}"))?;
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "0")?;

    connect()?.transaction(|connection| {
        fence(connection, LEASE, token)?;
        pay(connection)
    })?;
    same("coins", stack.admin("SELECT sum(coins) FROM player")?, "300")
}

// [migrate]
const MIGRATIONS: EmbeddedMigrations = embed_migrations!("migrations/diesel");
// [end migrate]

fn migration(stack: &Stack) -> Outcome {
    let mut connection = connect()?;
    let fences = "SELECT count(*) FROM fence_status WHERE hole IS NULL";
    same("fences", stack.admin(fences)?, "3")?;
    connection.revert_last_migration(MIGRATIONS)?;
    same("fences after down", stack.admin(fences)?, "0")?;
    pay(&mut connection)?;
    connection.run_pending_migrations(MIGRATIONS)?;
    same("fences after up", stack.admin(fences)?, "3")?;
    let unfenced = refused("a write without a token", pay(&mut connection))?;
    check(unfenced.to_string().ends_with("carries no fencing token"), unfenced.to_string())
}

fn main() -> Outcome {
    let mut stack = Stack::new(STACK)?;
    connect()?.run_pending_migrations(MIGRATIONS)?;
    macro_rules! run {
        ($($scenario:literal: $run:path),* $(,)?) => {$(
            stack.reset()?;
            let outcome = $run(&stack);
            stack.report($scenario, outcome);
        )*};
    }
    run! {
        "grant": grant, "heartbeat": heartbeat, "fenced_transaction": fenced_transaction,
        "fenced_column": fenced_column, "refused_write": refused_write, "refused_commit": refused_commit,
        "once": once, "checkpoint": checkpoint, "wait_timeout": wait_timeout, "lost_connection": lost_connection,
        "migration": migration,
    }
    stack.finish()
}
