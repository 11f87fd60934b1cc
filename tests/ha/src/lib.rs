//! What the tests of lock_ext with several servers stand on.
//!
//! * [`Server`] is a cluster of a test's own: made, started, stopped, crashed, promoted. It is stopped and
//!   removed when it is dropped, and also when the test's process is killed.
//! * [`Server::standby`] makes a standby of it.
//! * [`Session`] is one connection with the words of the cases: `acq`, `ext`, `rel`, `fw`.
//! * [`Tokens`] are all that were ever returned, by whichever server.
//! * [`Crowd`] are clients that acquire until their server is gone.
//! * [`Place`] is a short directory that is removed in the same way, with the servers in it.
//!
//! Nothing here sleeps and hopes: a test waits for a condition ([`until`], [`Session::until`]).
//!
//! The server's programs are those in `LOCK_EXT_PGBIN`, else those that `PG_CONFIG` names, else those of Debian's PostgreSQL 15, or those of the
//! path's `pg_config`. Started by root, they run as the user postgres.

mod crowd;
mod place;
mod process;
mod programs;
mod replication;
mod server;
mod session;
mod tokens;

pub use crowd::{Crowd, Told};
pub use lock_ext_sessions::{Answer, Asked, NO_TOKEN, PATIENCE, PgError, Refused, STALE};
pub use place::Place;
pub use programs::{bindir, program};
pub use server::{Recipe, Server, Stop};
pub use session::{Session, Status};
pub use tokens::Tokens;

use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(15);

/// The transaction or the server is read-only.
pub const READ_ONLY: &str = "25006";

/// An epoch has so many tokens: the first one of epoch e is above `e * EPOCH`.
pub const EPOCH: i64 = 1 << 42;

/// Waits until the condition is true; `what` says it in words for when it never is.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < PATIENCE, "never came true: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}
