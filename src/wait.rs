//! Waiting as the server waits: for a lock or another transaction up to a deadline, asleep on the session's latch, with an eye on the client.

use crate::error::{Error, Result};
use crate::pg::{check_for_interrupts, now};
use crate::types::Timestamp;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::prelude::*;
use std::ffi::c_int;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

// Not bound by pgrx.
unsafe extern "C-unwind" {
    fn pq_check_connection() -> bool;
    static FeBeWaitSet: *mut pg_sys::WaitEventSet;
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    fn BackendIdGetProc(backend: c_int) -> *mut pg_sys::PGPROC;
    #[cfg(not(any(feature = "pg15", feature = "pg16")))]
    fn ProcNumberGetProc(process: c_int) -> *mut pg_sys::PGPROC;
}

/// How long a call may wait: as it says, and as `lock_timeout` says, which ends it with an error.
pub struct Deadline {
    begun: Instant,
    wait: Duration,
    lock_timeout: Option<Duration>,
}

impl Deadline {
    pub fn after(wait: Duration) -> Self {
        // SAFETY: a setting, in milliseconds, zero for none.
        let timeout = unsafe { pg_sys::LockTimeout };
        let lock_timeout =
            (timeout > 0).then(|| Duration::from_millis(timeout.unsigned_abs().into()));
        Deadline { begun: Instant::now(), wait, lock_timeout }
    }

    /// True if the wait has run out; an error if `lock_timeout` was shorter.
    pub fn has_passed(&self) -> Result<bool> {
        let waited = self.begun.elapsed();
        match self.lock_timeout {
            _ if waited >= self.wait => Ok(true),
            Some(timeout) if waited >= timeout => Err(Error::LockTimeout),
            _ => Ok(false),
        }
    }

    /// What is left, in whole milliseconds, rounded up.
    fn left(&self) -> c_int {
        let limit = self.lock_timeout.map_or(self.wait, |timeout| timeout.min(self.wait));
        let left = limit.saturating_sub(self.begun.elapsed());
        c_int::try_from(left.as_millis()).unwrap_or(c_int::MAX).saturating_add(1)
    }
}

/// Does `wait`, which takes or waits for a lock, with the deadline as its `lock_timeout`; false if that was not enough. In a savepoint
/// of its own, which takes back what a lock wait that was broken off has left.
pub fn within(deadline: &Deadline, wait: impl FnOnce() -> Result<()>) -> Result<bool> {
    enum Outcome {
        Done(Result<()>),
        TimedOut,
        Failed(CaughtError),
    }
    if deadline.has_passed()? {
        return Ok(false);
    }
    // SAFETY: as the procedural languages do it: the savepoint is always ended, and the caller's memory context and resource owner
    // are there again afterwards. The setting is put back whatever happens.
    unsafe {
        let (context, owner) = (pg_sys::CurrentMemoryContext, pg_sys::CurrentResourceOwner);
        let lock_timeout = pg_sys::LockTimeout;
        pg_sys::BeginInternalSubTransaction(std::ptr::null());
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::LockTimeout = deadline.left();
        let wait = || {
            let done = wait();
            // The time may have run out just as the lock was granted, which the server says at the next opportunity.
            check_for_interrupts();
            Outcome::Done(done)
        };
        let outcome = PgTryBuilder::new(AssertUnwindSafe(wait))
            .catch_when(PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE, |_| Outcome::TimedOut)
            .catch_others(Outcome::Failed)
            .catch_rust_panic(Outcome::Failed)
            .finally(|| pg_sys::LockTimeout = lock_timeout)
            .execute();
        if let Outcome::Done(Ok(())) = outcome {
            pg_sys::ReleaseCurrentSubTransaction();
        } else {
            pg_sys::RollbackAndReleaseCurrentSubTransaction();
        }
        pg_sys::MemoryContextSwitchTo(context);
        pg_sys::CurrentResourceOwner = owner;
        match outcome {
            Outcome::Done(done) => done.map(|()| true),
            Outcome::TimedOut => deadline.has_passed().map(|_| false),
            Outcome::Failed(error) => error.rethrow(),
        }
    }
}

/// From here on a wake-up is kept until the next [`sleep_until`].
pub fn expect_wake_up() {
    // SAFETY: the latch is this process's own.
    unsafe { pg_sys::ResetLatch(pg_sys::MyLatch) };
}

/// Sleeps until `at`, the deadline, a wake-up, an interrupt, or the client's end; false if nothing but time has passed.
pub fn sleep_until(at: Timestamp, deadline: &Deadline) -> bool {
    // A millisecond more, so that the moment has passed when we look.
    let until = at.saturating_sub(now()).max(0) / 1_000 + 1;
    let timeout = until.min(deadline.left().into());
    let wait = pg_sys::PG_WAIT_EXTENSION;
    // SAFETY: the server's own set of what a session waits for: its client's socket, its latch, the end of the server. Whoever waits
    // for the socket says for what. A process without a client has none.
    unsafe {
        if FeBeWaitSet.is_null() {
            let events = pg_sys::WL_LATCH_SET | pg_sys::WL_TIMEOUT | pg_sys::WL_EXIT_ON_PM_DEATH;
            let events = pg_sys::WaitLatch(pg_sys::MyLatch, events as c_int, timeout, wait);
            return events & pg_sys::WL_LATCH_SET as c_int != 0;
        }
        let mut event = pg_sys::WaitEvent::default();
        let closed = pg_sys::WL_SOCKET_CLOSED;
        pg_sys::ModifyWaitEvent(FeBeWaitSet, CLIENT, closed, std::ptr::null_mut());
        let events = pg_sys::WaitEventSetWait(FeBeWaitSet, timeout, &mut event, 1, wait);
        if event.events & pg_sys::WL_POSTMASTER_DEATH != 0 {
            pg_sys::proc_exit(1);
        }
        events > 0
    }
}

/// The place of the client's socket in the server's own set, `FeBeWaitSetSocketPos`.
const CLIENT: c_int = 0;

/// Ends the session if its client has gone.
pub fn check_client() {
    // SAFETY: asks the socket, without waiting; what is set is what the server sets when it finds its client gone.
    unsafe {
        if !pg_sys::MyProcPort.is_null()
            && !pg_sys::ffi::pg_guard_ffi_boundary(|| pq_check_connection())
        {
            pg_sys::ClientConnectionLost = 1;
            pg_sys::InterruptPending = 1;
        }
    }
    check_for_interrupts();
}

/// Sets the latch of a session, if it is there.
pub fn wake(session: &pg_sys::VirtualTransactionId) {
    // SAFETY: the array of processes stays where it is; null for a session that has ended.
    unsafe {
        let process = pg_sys::ffi::pg_guard_ffi_boundary(|| process_of(session));
        if !process.is_null() {
            pg_sys::SetLatch(&mut (*process).procLatch);
        }
    }
}

#[cfg(any(feature = "pg15", feature = "pg16"))]
unsafe fn process_of(session: &pg_sys::VirtualTransactionId) -> *mut pg_sys::PGPROC {
    // SAFETY: as above.
    unsafe { BackendIdGetProc(session.backendId) }
}

#[cfg(not(any(feature = "pg15", feature = "pg16")))]
unsafe fn process_of(session: &pg_sys::VirtualTransactionId) -> *mut pg_sys::PGPROC {
    // SAFETY: as above.
    unsafe { ProcNumberGetProc(session.procNumber) }
}
