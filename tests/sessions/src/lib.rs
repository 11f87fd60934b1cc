//! What the multi-session tests of lock_ext stand on.
//!
//! * [`Db`] is a database of a test's own, removed at the end of the test with all who are still in it.
//! * [`Session`] is one connection with the words of the cases: `acq`, `ext`, `rel`, `fw`, `cp`, `once`.
//! * [`Client`] is a session in a process of its own, which can be frozen and killed.
//! * [`PgError`] is an error as it comes over the wire; [`Asked`] and [`Refused`] turn an answer into
//!   what a test expects of it.
//!
//! The server is the one that `PGHOST`, `PGPORT`, `PGUSER` (a superuser) and `PGDATABASE` name. Nothing here
//! sleeps and hopes: a test waits for a condition that the server can see ([`Db::until`]).

mod answer;
mod client;
mod db;
mod session;
mod way;

pub use answer::{Answer, Asked, PgError, Refused};
pub use client::{BROKEN, Client, FAKETIME, Reply};
pub use db::{Db, HeldCommits, PATIENCE};
pub use session::{Expiry, Renewed, Session, Status, connect};
pub use way::Way;

/// The isolation levels, each of which a promise has to hold at.
pub const LEVELS: [&str; 3] = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"];

/// The token was superseded, released, or never granted.
pub const STALE: &str = "LX001";
/// The lease has expired, and `lock_ext.strict_expiry` is on.
pub const EXPIRED: &str = "LX002";
/// A fenced write carries no token.
pub const NO_TOKEN: &str = "LX003";
