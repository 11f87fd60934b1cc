// [lease]
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use diesel::pg::data_types::PgInterval;
use diesel::prelude::*;
use diesel::sql_types::{BigInt, Interval, Text};

#[diesel::declare_sql_function]
extern "SQL" {
    fn lease_acquire(name: Text, holder: Text, ttl: Interval) -> Nullable<BigInt>;
    fn lease_extend(name: Text, token: BigInt) -> Nullable<Timestamptz>;
    fn lease_is_current(name: Text, token: BigInt) -> Bool;
}

/// In autocommit. `None`: somebody else has it, or it is completed.
pub fn acquire(
    connection: &mut PgConnection,
    lease: &str,
    node: &str,
    ttl: Duration,
) -> QueryResult<Option<i64>> {
    let ttl = PgInterval::from_microseconds(ttl.as_micros() as i64);
    let token: Option<i64> =
        diesel::select(lease_acquire(lease, node, ttl)).get_result(connection)?;
    if let Some(token) = token {
        // A predecessor that is frozen in a transaction would keep its row locks.
        let evict = diesel::sql_query("SELECT count(*) FROM lease_evict($1, $2)");
        evict.bind::<Text, _>(lease).bind::<BigInt, _>(token).execute(connection)?;
    }
    Ok(token)
}

/// At the beginning of a transaction: the rest of it writes under the token.
pub fn fence(connection: &mut PgConnection, lease: &str, token: i64) -> QueryResult<usize> {
    let fence = diesel::sql_query("SELECT lease_fence($1, $2)");
    fence.bind::<Text, _>(lease).bind::<BigInt, _>(token).execute(connection)
}

/// A thread that extends the lease, on a connection of its own, until this is dropped.
pub struct Heartbeat(Arc<Mutex<Instant>>);

impl Heartbeat {
    /// `asked`: when `lease_acquire` was called.
    pub fn start(url: String, lease: String, token: i64, ttl: Duration, asked: Instant) -> Self {
        let shared = Arc::new(Mutex::new(asked + ttl));
        let weak = Arc::downgrade(&shared);
        thread::spawn(move || {
            let mut connection = None;
            while let Some(deadline) = weak.upgrade() {
                let asked = Instant::now(); // before the call: the answer may be late
                match extend(&url, &mut connection, &lease, token) {
                    Ok(true) => *deadline.lock().unwrap() = asked + ttl,
                    Ok(false) => return *deadline.lock().unwrap() = asked, // lost
                    Err(_) => connection = None, // says nothing about the lease: connect and ask again
                }
                drop(deadline);
                thread::sleep(ttl / 3);
            }
        });
        Self(shared)
    }

    /// Ask it before each part of the work, and stop when it says no.
    pub fn is_mine(&self) -> bool {
        Instant::now() < *self.0.lock().unwrap()
    }
}

fn extend(
    url: &str,
    connection: &mut Option<PgConnection>,
    lease: &str,
    token: i64,
) -> Result<bool, String> {
    let connection = match connection {
        Some(connection) => connection,
        None => connection.insert(PgConnection::establish(url).map_err(|error| error.to_string())?),
    };
    let extended = diesel::select(lease_extend(lease, token).is_not_null());
    extended.get_result(connection).map_err(|error| error.to_string())
}
// [end lease]

// [model]
diesel::table! {
    player (id) { id -> Integer, coins -> Integer, }
}

diesel::table! {
    entry (id) { id -> Integer, amount -> Integer, token -> BigInt, }
}

#[derive(Debug, PartialEq, Queryable, Insertable, Identifiable, AsChangeset)]
#[diesel(table_name = entry)]
pub struct Entry {
    pub id: i32,
    pub amount: i32,
    /// Whoever wrote the row last. Set it to your own token before each save.
    pub token: i64,
}
// [end model]

// [errors]
use diesel::result::{DatabaseErrorKind, Error};

pub fn is_retryable(error: &Error) -> bool {
    matches!(error, Error::DatabaseError(DatabaseErrorKind::SerializationFailure, _))
}

/// Diesel has no SQLSTATE. A refusal is `DatabaseErrorKind::Unknown`, so after an error ask the server.
pub fn is_mine(connection: &mut PgConnection, lease: &str, token: i64) -> QueryResult<bool> {
    diesel::select(lease_is_current(lease, token)).get_result(connection)
}
// [end errors]
