//! Waiting in line for a lease, first come first served. The line is PostgreSQL's own queue for the lock of the name's queue tag: who has
//! the lock is the head, and only the head looks at the lease. It sleeps until the lease can be granted by the clock, or a release,
//! once it is committed, wakes it.
//!
//! Every way out of a wait, whether by an answer or an error, leaves the lock, so that the next one is the head.

use crate::error::Result;
use crate::pg;
use crate::referee::{self, Mode, NameHash, Tag};
use crate::types::{Timestamp, Token};
use crate::wait::{self, Deadline};
use pgrx::pg_sys::TransactionId;
use std::cell::RefCell;
use std::time::Duration;

/// What the head finds when it looks at the lease.
pub enum Look<T> {
    Granted(T),
    /// Not to be had in this wait.
    Never,
    /// Not before, unless somebody ends it earlier.
    NotBefore(Timestamp),
    /// Held by a session for as long as it lives, and it can drop its locks without a word to anybody.
    Bound(Token),
    /// It depends on a transaction that has not ended.
    Contested(TransactionId),
    /// Somebody keeps take-overs waiting: `hold`, or a prepared transaction.
    HeldUp,
}

/// How often the head of the line asks whether the session is there that the lease is bound to, in microseconds.
const SESSION_POLL: i64 = 500_000;

/// Does anybody wait for the lease? Then nobody else is granted it without standing in line.
pub fn exists(name: NameHash) -> bool {
    referee::is_wanted(Tag::queue(name))
}

/// Stands in line for at most `wait`, and looks at the lease as its head. None: the wait ran out, or the lease is not to be had.
pub fn stand<T>(
    name: NameHash,
    wait: Duration,
    mut look: impl FnMut() -> Result<Look<T>>,
) -> Result<Option<T>> {
    let tag = Tag::queue(name);
    let deadline = Deadline::after(wait);
    if !wait::within(&deadline, || referee::lock(tag, Mode::Exclusive))? {
        return Ok(None);
    }
    let answer = loop {
        // What is sent from here on is not slept through.
        wait::expect_wake_up();
        wait::check_client();
        let found = look()?;
        match found {
            Look::Granted(granted) => break Some(granted),
            Look::Never => break None,
            _ if deadline.has_passed()? => break None,
            // These two are lock waits, so that a deadlock is found.
            Look::Contested(by) => wait::within(&deadline, || {
                pg::wait_for_end(by);
                Ok(())
            })
            .map(drop)?,
            Look::HeldUp => wait::within(&deadline, || referee::wait_for_hold(name)).map(drop)?,
            Look::NotBefore(at) => drop(wait::sleep_until(at, &deadline)),
            Look::Bound(token) => {
                while !wait::sleep_until(pg::now() + SESSION_POLL, &deadline)
                    && referee::is_wanted(Tag::tenure(token))
                    && !deadline.has_passed()?
                {}
            }
        }
    };
    referee::unlock(tag, Mode::Exclusive);
    Ok(answer)
}

thread_local! {
    /// The leases that this transaction ends, or lets end earlier.
    static ENDED: RefCell<Vec<NameHash>> = const { RefCell::new(Vec::new()) };
}

/// When this transaction has committed, the head of the line is told to look again.
pub fn wake_at_commit(name: NameHash) {
    ENDED.with(|ended| ended.borrow_mut().push(name));
}

/// The transaction has ended. Nothing here may fail.
pub fn transaction_ended(committed: bool) {
    let ended = ENDED.with(|ended| std::mem::take(&mut *ended.borrow_mut()));
    if committed {
        ended.into_iter().for_each(wake_head);
    }
}

/// Tells the head of the line to look again.
pub fn wake_head(name: NameHash) {
    let tag = Tag::queue(name);
    if referee::is_wanted(tag) {
        referee::wake_holder(tag);
    }
}
