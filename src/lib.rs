//! # lock_ext: fenced leases inside PostgreSQL
//!
//! A lease in the same database as the data it protects. The server's clock times it, every grant has a higher token than
//! all earlier ones, and **no transaction that writes under a superseded token ever commits.**
//!
//! # Map
//!
//! | file | what it does | whom it calls |
//! | --- | --- | --- |
//! | `api`, `private` | what SQL sees: labels, argument checks | everything below |
//! | `lease` | grant, extend, release, complete: lock, clock, decide, write | `fence`, `policy`, `store`, `referee`, `token` |
//! | `line` | waiting in line for a lease, and waking who is its head | `referee` |
//! | `written` | does the transaction commit anything | `pg` |
//! | `watch` | since when this session has seen a lease as it is | |
//! | `announce` | opt-in notifications | `pg` |
//! | `tenure` | leases that are bound to their session | `referee`, `line` |
//! | `acts` | what this transaction has done under which tokens, savepoint by savepoint | |
//! | `fence` | the check of those tokens at the statement and before the commit | `acts`, `observe`, `policy`, `store`, `referee` |
//! | `trigger` | `fence_check()`: the trigger's protocol | `fence` |
//! | `observe` | the highest tokens seen of other systems, checked in the same two places | `table`, `referee` |
//! | `checkpoint`, `once` | progress and once-only markers | `fence`, `table`, `referee` |
//! | `attach`, `update` | the statements of `fence_attach` and `fenced_update` | `catalog`, `text` |
//! | `admin` | what the views show; evict, prune | `store`, `referee`, `fence` |
//! | `policy` | every decision, over a row, a moment and a request; no PostgreSQL | |
//! | `store` | the rows of `lock_ext.lease`, typed; decides nothing | `table` |
//! | `table`, `known` | our tables as a catalog: read as of this moment, written directly | the server |
//! | `referee` | lock tags and modes: PostgreSQL's lock manager | the server |
//! | `token` | where fencing tokens come from, and why none is told twice | `sequence`, `known`, `referee` |
//! | `types`, `error`, `settings` | values that are checked once, the list of errors, settings | `pg`, `text` |
//! | `catalog`, `sequence`, `text`, `wait`, `pg`, `raw` | the rest of the server, behind safe signatures | the server |
//!
//! # The locking protocol
//!
//! *One row a name.* Every change of the row is made under the lock of the name's tag (`referee` has the modes), held for as
//! long as the change is being made. From then on the row itself shows that it is being changed, and by whom, until
//! that transaction ends (`table`).
//!
//! *One order.* Tags before rows; observed resources before leases, and several of a kind in the order of their tags. Who draws a token has a lock for that last,
//! and gives it back at once.
//!
//! *Nothing idle is waited for.* A transaction between BEGIN and COMMIT holds nothing on a lease that a take-over would
//! wait for: its writes are only shown, and what it does to the lease itself is put off until its commit (`fence`). Who meets a
//! grant or a release that is written and not committed takes it for done: it acquires nothing, and loses what it had. Waited for
//! is only another heartbeat of the same token, and transactions that are just committing. The exceptions are asked for:
//! `lease_fence(..., hold => true)` and PREPARE TRANSACTION.
//!
//! *Two checks.* Every fenced write is checked when it happens, and once more under the lock between the last statement and the
//! commit (`fence` has the reason why this is enough).

#[forbid(unsafe_code)]
mod acts;
#[forbid(unsafe_code)]
mod admin;
#[forbid(unsafe_code)]
mod announce;
mod api;
#[forbid(unsafe_code)]
mod attach;
mod catalog;
#[forbid(unsafe_code)]
mod checkpoint;
#[forbid(unsafe_code)]
mod error;
#[forbid(unsafe_code)]
mod fence;
mod known;
#[forbid(unsafe_code)]
mod lease;
#[forbid(unsafe_code)]
mod line;
#[forbid(unsafe_code)]
mod observe;
#[forbid(unsafe_code)]
mod once;
mod pg;
#[forbid(unsafe_code)]
mod policy;
mod private;
mod raw;
mod referee;
mod sequence;
#[forbid(unsafe_code)]
mod settings;
#[forbid(unsafe_code)]
mod store;
mod table;
#[forbid(unsafe_code)]
mod tenure;
mod text;
#[forbid(unsafe_code)]
mod token;
mod trigger;
mod types;
#[forbid(unsafe_code)]
mod update;
mod wait;
#[forbid(unsafe_code)]
mod watch;
#[forbid(unsafe_code)]
mod written;

use pgrx::prelude::*;

::pgrx::pg_module_magic!(name, version);

extension_sql_file!("../sql/install/tables.sql", name = "tables", bootstrap);
extension_sql_file!("../sql/install/functions.sql", name = "functions", requires = ["tables"]);
extension_sql_file!(
    "../sql/install/views.sql",
    name = "views",
    requires = [
        "functions",
        private::lock_ext::status,
        private::lock_ext::waiters,
        private::lock_ext::writers,
        private::lock_ext::observed,
        private::lock_ext::trigger_arguments
    ]
);
extension_sql_file!("../sql/install/rights_and_comments.sql", name = "rights", finalize);

#[pg_guard]
pub extern "C-unwind" fn _PG_init() {
    settings::define();
    pg::register_callbacks();
}

// What transactions keep until they end. Resources come before leases, so that who waits for one holds up no grant.

fn before_commit(prepare: bool) {
    error::or_raise((|| {
        observe::before_commit()?;
        fence::before_commit(prepare)?;
        pg::raise_synchronous_commit();
        // A prepared transaction has no session.
        if prepare && tenure::is_touched() {
            return Err(error::Error::PreparedSession);
        }
        Ok(())
    })());
}

fn forget(committed: bool) {
    observe::forget();
    acts::forget();
    written::transaction_ended();
    tenure::transaction_ended(committed);
    line::transaction_ended(committed);
    pg::forget_sync_commit();
}

fn savepoint_begun(level: i32) {
    written::savepoint_begun(level);
}

fn savepoint_rolled_back(level: i32) {
    written::savepoint_rolled_back(level);
    tenure::savepoint_rolled_back(level);
    observe::savepoint_rolled_back(level);
    acts::savepoint_rolled_back(level);
}

fn savepoint_released(level: i32) {
    written::savepoint_released(level);
    tenure::savepoint_released(level);
    observe::savepoint_released(level);
    acts::savepoint_released(level);
}

#[cfg(any(test, feature = "pg_test"))]
#[path = "../pgrx-tests/leases.rs"]
mod lease_tests;

#[cfg(any(test, feature = "pg_test"))]
#[path = "../pgrx-tests/fence.rs"]
mod fence_tests;

/// What `cargo pgrx test` asks for.
#[cfg(test)]
pub mod pg_test {
    pub fn setup(_options: Vec<&str>) {}

    #[must_use]
    pub fn postgresql_conf_options() -> Vec<&'static str> {
        vec![]
    }
}
