//! The server's functions that the rest calls, each behind a safe signature: errors, the clock, the transaction, processes.

use crate::error::{Error, Result};
use crate::types::Timestamp;
use crate::{raw, text};
use pgrx::prelude::*;
use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char, c_int, c_void};

// Declared here and not taken from pgrx, which keeps the parts of ereport for itself.
unsafe extern "C-unwind" {
    fn errcode(sqlerrcode: c_int) -> c_int;
    fn err_generic_string(field: c_int, value: *const c_char) -> c_int;
}

// Not bound by pgrx.
unsafe extern "C-unwind" {
    fn Async_Notify(channel: *const c_char, payload: *const c_char);
}

/// What pgrx cannot say of an error: its private SQLSTATE and its table.
#[derive(Default)]
pub struct Amendment {
    pub sqlstate: Option<&'static [u8; 5]>,
    pub schema: Option<String>,
    pub table: Option<String>,
}

thread_local! {
    static AMENDMENT: RefCell<Option<Amendment>> = const { RefCell::new(None) };
}

/// Lets the error that is raised next have the fields of `amendment`. Nothing may be logged in between.
pub fn amend_next_error(amendment: Amendment) {
    static mut CALLBACK: pg_sys::ErrorContextCallback = pg_sys::ErrorContextCallback {
        previous: std::ptr::null_mut(),
        callback: Some(amend),
        arg: std::ptr::null_mut(),
    };
    AMENDMENT.with(|slot| *slot.borrow_mut() = Some(amendment));
    // SAFETY: a backend has one thread. The entry is static, so it outlives the frames that the error unwinds, and
    // whoever catches the error restores the stack below it, as for every callback.
    unsafe {
        CALLBACK.previous = pg_sys::error_context_stack;
        pg_sys::error_context_stack = &raw mut CALLBACK;
    }
}

unsafe extern "C-unwind" fn amend(_arg: *mut c_void) {
    let Some(amendment) = AMENDMENT.with(|slot| slot.borrow_mut().take()) else {
        return;
    };
    if let Some(code) = amendment.sqlstate {
        // MAKE_SQLSTATE of utils/elog.h: six bits a character, the first one lowest.
        let packed = code
            .iter()
            .enumerate()
            .fold(0, |sum, (i, c)| sum | (((i32::from(*c) - 0x30) & 0x3F) << (6 * i)));
        // SAFETY: called from errfinish, with an error on the stack.
        unsafe { errcode(packed) };
    }
    for (field, value) in [
        (pg_sys::PG_DIAG_SCHEMA_NAME, amendment.schema),
        (pg_sys::PG_DIAG_TABLE_NAME, amendment.table),
    ] {
        if let Some(value) = value.and_then(|v| CString::new(v).ok()) {
            // SAFETY: as above; the string is copied.
            unsafe { err_generic_string(field as c_int, value.as_ptr()) };
        }
    }
}

/// A copy in the current memory context, whole and uncompressed.
pub fn detoasted_copy(varlena: pg_sys::Datum) -> pg_sys::Datum {
    // SAFETY: a datum of a varlena column that is not null.
    unsafe { pg_sys::pg_detoast_datum_copy(varlena.cast_mut_ptr()) }.into()
}

pub fn interval_micros(interval: pg_sys::Datum) -> i64 {
    // SAFETY: a datum of an interval column that is not null.
    let interval = unsafe { *interval.cast_mut_ptr::<pg_sys::Interval>() };
    interval.time.saturating_add(i64::from(interval.day).saturating_mul(86_400_000_000))
}

pub fn uuid(uuid: pg_sys::Datum) -> [u8; 16] {
    // SAFETY: a datum of a uuid column that is not null.
    unsafe { *uuid.cast_mut_ptr::<[u8; 16]>() }
}

pub fn reserve_settings(prefix: &CStr) {
    // SAFETY: the server copies the name.
    unsafe { pg_sys::MarkGUCPrefixReserved(prefix.as_ptr()) };
}

/// NOTIFY, sent when the transaction has committed.
pub fn notify(channel: &str, payload: &str) {
    if let (Ok(channel), Ok(payload)) = (text::c_string(channel), text::c_string(payload)) {
        // SAFETY: terminated strings, which are copied.
        unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| Async_Notify(channel.as_ptr(), payload.as_ptr()));
        }
    }
}

/// Tells the client what is worth knowing.
pub fn notice(message: &str) {
    ereport!(
        PgLogLevel::NOTICE,
        PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION,
        text::message(message.into())
    );
}

/// Tells the client what is probably a mistake.
pub fn warn_no_transaction_block(message: &'static str) {
    ereport!(PgLogLevel::WARNING, PgSqlErrorCode::ERRCODE_NO_ACTIVE_SQL_TRANSACTION, message);
}

/// `clock_timestamp()`: the clock itself, never the start of the transaction.
pub fn now() -> Timestamp {
    raw::GetCurrentTimestamp()
}

/// A `timestamptz` for SQL, infinity among them.
pub fn timestamptz(timestamp: Timestamp) -> TimestampWithTimeZone {
    // SAFETY: a timestamptz is its microseconds.
    unsafe { TimestampWithTimeZone::from_datum(timestamp.into(), false) }
        .unwrap_or_else(TimestampWithTimeZone::positive_infinity)
}

/// True between BEGIN and COMMIT, where the client may stay away for as long as it likes.
pub fn in_transaction_block() -> bool {
    raw::IsTransactionBlock()
}

/// Is the client's statement, outside of a transaction block, nothing but this function call? Then the transaction ends when
/// the call does. Anything else may go on for as long as it likes: a function around it, a block, what comes after it in the statement.
pub fn is_whole_statement(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    if in_transaction_block() {
        return false;
    }
    // SAFETY: the call's information and the portal that runs it are valid while the call lasts. The executor keeps the
    // expression of the call as it stands in the plan, so the same pointer means the same call.
    unsafe {
        let call = (*(*fcinfo).flinfo).fn_expr;
        let portal = pg_sys::ActivePortal;
        if call.is_null() || portal.is_null() {
            return false;
        }
        // The client's own portal has no name; those of cursors in functions have one.
        if (*portal).name.is_null() || *(*portal).name != 0 {
            return false;
        }
        let Some(statement) = only::<pg_sys::PlannedStmt>((*portal).stmts) else {
            return false;
        };
        let plan = statement.planTree;
        if plan.is_null()
            || (*plan).type_ != pg_sys::NodeTag::T_Result
            || !(*plan).lefttree.is_null()
        {
            return false;
        }
        only::<pg_sys::TargetEntry>((*plan).targetlist)
            .is_some_and(|entry| entry.expr.cast::<pg_sys::Node>() == call)
    }
}

/// The element of a list that has no other.
///
/// # Safety
///
/// The list is null or one of pointers to `T`, and lives as long as the result is used.
unsafe fn only<'a, T>(list: *const pg_sys::List) -> Option<&'a T> {
    // SAFETY: the caller's word.
    unsafe {
        let list = list.as_ref().filter(|list| list.length == 1)?;
        (*list.elements).ptr_value.cast::<T>().as_ref()
    }
}

/// Runs `f` with the locks that it takes or gives back being those of the transaction, or the savepoint, as what we remember is. A function that
/// a cursor calls has locks that are the cursor's, which a savepoint that it fails in takes with it.
pub fn as_transaction<T>(f: impl FnOnce() -> T) -> T {
    struct PutBack(pg_sys::ResourceOwner);
    impl Drop for PutBack {
        fn drop(&mut self) {
            // SAFETY: the caller's, which is there while we run.
            unsafe { pg_sys::CurrentResourceOwner = self.0 };
        }
    }
    // SAFETY: there is a transaction, and it has an owner. An error comes as a panic, so that the owner is put back before anybody
    // handles it.
    let _put_back = unsafe {
        let before = PutBack(pg_sys::CurrentResourceOwner);
        pg_sys::CurrentResourceOwner = pg_sys::CurTransactionResourceOwner;
        before
    };
    f()
}

/// 1 outside of savepoints, one more in each.
pub fn nest_level() -> i32 {
    raw::GetCurrentTransactionNestLevel()
}

/// What a parallel worker would do to a lease is lost with it. Our functions are marked for that, but not a wrapper of a user's.
pub fn refuse_in_parallel(function: &'static str) -> Result<()> {
    if raw::IsInParallelMode() { Err(Error::Parallel { function }) } else { Ok(()) }
}

pub fn is_standby() -> bool {
    raw::RecoveryInProgress()
}

/// A standby's answer would be old, so there it is an error.
pub fn refuse_on_standby(function: &'static str) -> Result<()> {
    refuse_in_parallel(function)?;
    if is_standby() { Err(Error::Standby { function }) } else { Ok(()) }
}

pub fn refuse_read_only(function: &'static str) -> Result<()> {
    refuse_on_standby(function)?;
    // SAFETY: the variable is read only.
    if unsafe { pg_sys::XactReadOnly } { Err(Error::ReadOnly { function }) } else { Ok(()) }
}

thread_local! {
    static IS_TO_BE_SYNCHRONOUS: Cell<bool> = const { Cell::new(false) };
}

/// Lets this transaction commit synchronously, although `synchronous_commit` may be off. That it waits for no standby (`local`) is left alone.
pub fn force_sync_commit() {
    IS_TO_BE_SYNCHRONOUS.set(true);
    // SAFETY: sets a flag of the transaction.
    unsafe { pg_sys::ForceSyncCommit() };
}

pub fn forget_sync_commit() {
    IS_TO_BE_SYNCHRONOUS.set(false);
}

/// The flag counts on this server. For the standbys the setting does, as it is at the commit.
pub fn raise_synchronous_commit() {
    if !IS_TO_BE_SYNCHRONOUS.get() {
        return;
    }
    // SAFETY: called between the last statement and the commit; the setting goes back with the transaction. An error is turned into a panic by the guard.
    unsafe {
        if pg_sys::synchronous_commit == pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_OFF as c_int {
            pg_sys::set_config_option(
                c"synchronous_commit".as_ptr(),
                c"on".as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_LOCAL,
                true,
                0,
                false,
            );
        }
    }
}

/// Waits until `xid` has ended, as for a row lock: with deadlock check, cancel and `lock_timeout`.
pub fn wait_for_end(xid: pg_sys::TransactionId) {
    // SAFETY: without a relation the call takes no tuple.
    unsafe {
        pg_sys::XactLockTableWait(
            xid,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            pg_sys::XLTW_Oper::XLTW_None,
        )
    };
}

pub fn is_in_progress(xid: pg_sys::TransactionId) -> bool {
    // SAFETY: no preconditions.
    unsafe { pg_sys::TransactionIdIsInProgress(xid) }
}

pub fn is_mine(xid: pg_sys::TransactionId) -> bool {
    raw::TransactionIdIsCurrentTransactionId(xid)
}

/// What was written becomes visible to the commands that follow in this transaction.
pub fn next_command() {
    // SAFETY: no preconditions outside of parallel mode, where no function of ours may run.
    unsafe { pg_sys::CommandCounterIncrement() };
}

pub fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
}

pub fn most_sessions() -> i64 {
    // SAFETY: set at server start.
    unsafe { pg_sys::MaxBackends }.into()
}

/// The system identifier of the cluster, and the timeline that it writes. The control file would lag behind.
pub fn system_and_timeline() -> (u64, u32) {
    // SAFETY: not called during recovery, and afterwards the timeline does not change.
    unsafe { (pg_sys::GetSystemIdentifier(), pg_sys::GetWALInsertionTimeLine()) }
}

pub fn flush_wal(up_to: pg_sys::XLogRecPtr) {
    // SAFETY: a position that was written.
    unsafe { pg_sys::XLogFlush(up_to) };
}

/// Ends the session of `pid` as `pg_terminate_backend` does, without asking who the caller is.
pub fn terminate(pid: i32) -> bool {
    // SAFETY: looks up the shared array of processes.
    if unsafe { pg_sys::BackendPidGetProc(pid) }.is_null() {
        return false;
    }
    unsafe extern "C" {
        fn kill(pid: c_int, signal: c_int) -> c_int;
    }
    const SIGTERM: c_int = 15;
    // SAFETY: a signal to a process that was a backend a moment ago, the same race as in pg_terminate_backend. A
    // backend leads its own process group, so that its children are told too.
    unsafe { kill(-pid, SIGTERM) == 0 || kill(pid, SIGTERM) == 0 }
}

/// When the statement of a session began, as pg_stat_activity has it; None for a session that has ended.
pub fn statement_start(pid: i32) -> Option<Timestamp> {
    // SAFETY: reads the process's own copy of what the sessions do, which lasts until the transaction ends; entries count from 1.
    unsafe {
        (1..=pg_sys::pgstat_fetch_stat_numbackends()).find_map(|i| {
            #[cfg(feature = "pg15")]
            let entry = pg_sys::pgstat_fetch_stat_local_beentry(i);
            #[cfg(not(feature = "pg15"))]
            let entry = pg_sys::pgstat_get_local_beentry_by_index(i);
            let status = &entry.as_ref()?.backendStatus;
            (status.st_procpid == pid).then_some(status.st_activity_start_timestamp)
        })
    }
}

/// Has this transaction written anything, or locked a row or, where there may be standbys, a table exclusively?
pub fn has_transaction_id() -> bool {
    raw::GetTopTransactionIdIfAny() != pg_sys::InvalidTransactionId
}

/// The number of the present command. It rises after each that wrote a row, in whatever table.
pub fn command() -> pg_sys::CommandId {
    raw::GetCurrentCommandId(false)
}

/// Is nothing running, but a command that begins or ends a transaction or a savepoint? A function that a client calls without a statement has
/// no portal, but a snapshot, as has a trigger that waited for the COMMIT.
pub fn is_between_statements() -> bool {
    // SAFETY: reads the process's own state.
    unsafe { pg_sys::ActivePortal.is_null() && !pg_sys::ActiveSnapshotSet() }
}

/// The end of what this transaction logged last, zero for nothing.
pub fn last_logged() -> pg_sys::XLogRecPtr {
    // SAFETY: reads this process's own state.
    unsafe { pg_sys::XactLastRecEnd }
}

/// The database that a backend is connected to; None if it has ended.
pub fn database_of(pid: i32) -> Option<u32> {
    // SAFETY: looks up the shared array of processes, whose entries stay where they are.
    unsafe {
        let process = pg_sys::BackendPidGetProc(pid);
        (!process.is_null()).then(|| (*process).databaseId.to_u32())
    }
}

/// The backend whose open transaction `xid` belongs to; None for a prepared one.
pub fn backend_of(xid: pg_sys::TransactionId) -> Option<i32> {
    // SAFETY: looks up the shared array of processes; zero for none.
    let pid = unsafe { pg_sys::BackendXidGetPid(pg_sys::SubTransGetTopmostTransaction(xid)) };
    (pid != 0).then_some(pid)
}

/// Registers what `fence` and `observe` do at the end of transactions and savepoints.
pub fn register_callbacks() {
    // SAFETY: the functions live as long as the library, which is never unloaded.
    unsafe {
        pg_sys::RegisterXactCallback(Some(transaction_callback), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(savepoint_callback), std::ptr::null_mut());
        pg_sys::CacheRegisterRelcacheCallback(Some(relcache_callback), pg_sys::Datum::null());
    }
}

/// Lets `tenure` know when this session has ended and its locks are gone.
pub fn call_at_session_end() {
    thread_local! {
        static REGISTERED: Cell<bool> = const { Cell::new(false) };
    }
    if !REGISTERED.replace(true) {
        // SAFETY: the function lives as long as the library. Called before the process gives up its place in shared memory, and after
        // its transaction and its locks have ended.
        unsafe { pg_sys::on_shmem_exit(Some(session_end_callback), pg_sys::Datum::null()) };
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn session_end_callback(_code: c_int, _arg: pg_sys::Datum) {
    crate::tenure::session_ended();
}

#[pg_guard]
unsafe extern "C-unwind" fn relcache_callback(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    crate::known::relation_changed(relation);
}

#[pg_guard]
unsafe extern "C-unwind" fn transaction_callback(
    event: pg_sys::XactEvent::Type,
    _arg: *mut c_void,
) {
    use pg_sys::XactEvent::*;
    match event {
        XACT_EVENT_PRE_COMMIT => crate::before_commit(false),
        XACT_EVENT_PRE_PREPARE => crate::before_commit(true),
        XACT_EVENT_COMMIT | XACT_EVENT_PREPARE => crate::forget(true),
        XACT_EVENT_ABORT => crate::forget(false),
        _ => {}
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn savepoint_callback(
    event: pg_sys::SubXactEvent::Type,
    _id: pg_sys::SubTransactionId,
    _parent: pg_sys::SubTransactionId,
    _arg: *mut c_void,
) {
    match event {
        pg_sys::SubXactEvent::SUBXACT_EVENT_START_SUB => crate::savepoint_begun(nest_level()),
        pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => crate::savepoint_released(nest_level()),
        pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => crate::savepoint_rolled_back(nest_level()),
        _ => {}
    }
}
