//! The server's functions that the rest calls, each behind a safe signature. The lock manager is in `referee`, heap
//! access in `table`, the trigger protocol in `trigger`; no other file calls the server.

use crate::error::{Error, Result, TableName};
use crate::types::Timestamp;
use pgrx::prelude::*;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

// Declared here and not taken from pgrx: it keeps the parts of ereport for itself, and does not bind nextval_internal.
unsafe extern "C-unwind" {
    fn errcode(sqlerrcode: c_int) -> c_int;
    fn err_generic_string(field: c_int, value: *const c_char) -> c_int;
    fn nextval_internal(sequence: pg_sys::Oid, check_permissions: bool) -> i64;
    fn has_superclass(relation: pg_sys::Oid) -> bool;
    fn find_inheritance_children(parent: pg_sys::Oid, mode: pg_sys::LOCKMODE) -> *mut pg_sys::List;
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
        let packed = code.iter().enumerate().fold(0, |sum, (i, c)| {
            sum | (((i32::from(*c) - 0x30) & 0x3F) << (6 * i))
        });
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

/// A new `text` in the current memory context.
pub fn text(bytes: &[u8]) -> pg_sys::Datum {
    // SAFETY: the bytes are copied.
    unsafe { pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast(), bytes.len() as c_int) }.into()
}

/// The bytes of a `text` that is stored in one of our tables.
pub fn bytes(text: pg_sys::Datum) -> Vec<u8> {
    // SAFETY: a datum of a text column that is not null.
    unsafe { Vec::<u8>::from_datum(text, false) }.unwrap_or_default()
}

/// A copy in the current memory context, whole and uncompressed.
pub fn detoasted_copy(varlena: pg_sys::Datum) -> pg_sys::Datum {
    // SAFETY: a datum of a varlena column that is not null.
    unsafe { pg_sys::pg_detoast_datum_copy(varlena.cast_mut_ptr()) }.into()
}

pub fn interval_micros(interval: pg_sys::Datum) -> i64 {
    // SAFETY: a datum of an interval column that is not null.
    let interval = unsafe { *interval.cast_mut_ptr::<pg_sys::Interval>() };
    interval
        .time
        .saturating_add(i64::from(interval.day).saturating_mul(86_400_000_000))
}

pub fn uuid(uuid: pg_sys::Datum) -> [u8; 16] {
    // SAFETY: a datum of a uuid column that is not null.
    unsafe { *uuid.cast_mut_ptr::<[u8; 16]>() }
}

pub fn name(name: pg_sys::Datum) -> CString {
    // SAFETY: a datum of a name column that is not null; a name is terminated.
    unsafe { CStr::from_ptr(name.cast_mut_ptr::<c_char>()) }.to_owned()
}

/// The string behind a pointer of the server's, empty for none.
fn string(chars: *const c_char) -> String {
    if chars.is_null() {
        return String::new();
    }
    // SAFETY: every caller passes a terminated string that the server allocated.
    shown(unsafe { CStr::from_ptr(chars) }.to_bytes())
}

fn encoding() -> pg_sys::pg_enc::Type {
    // SAFETY: set once, when the backend connects.
    unsafe { pg_sys::GetDatabaseEncoding() as pg_sys::pg_enc::Type }
}

/// Rust's strings are UTF-8, the server's are in the encoding of the database. SQL_ASCII is any bytes.
fn needs_conversion() -> bool {
    use pg_sys::pg_enc::*;
    ![PG_UTF8, PG_SQL_ASCII].contains(&encoding())
}

/// A text of the server's as a string; an error if it cannot be told what its bytes mean.
pub fn to_utf8(text: &[u8]) -> Result<String> {
    if !needs_conversion() {
        return String::from_utf8(text.to_vec()).map_err(|_| Error::NotText);
    }
    // SAFETY: the text is valid in the database's encoding; the result is terminated if it is another one.
    unsafe {
        let utf8 = pg_sys::pg_enc::PG_UTF8 as c_int;
        let from = text.as_ptr().cast::<c_char>();
        let converted = pg_sys::pg_server_to_any(from, text.len() as c_int, utf8);
        if converted.cast_const() == from {
            return String::from_utf8(text.to_vec()).map_err(|_| Error::NotText);
        }
        Ok(CStr::from_ptr(converted).to_string_lossy().into_owned())
    }
}

/// The same for people's eyes, whatever the bytes are.
pub fn shown(text: &[u8]) -> String {
    to_utf8(text).unwrap_or_else(|_| String::from_utf8_lossy(text).into_owned())
}

/// A string in the encoding of the database.
pub fn to_server(string: &str) -> Vec<u8> {
    if !needs_conversion() || string.is_ascii() {
        return string.as_bytes().to_vec();
    }
    // SAFETY: the string is valid UTF-8; a character that the encoding lacks is an error of the server's.
    unsafe {
        let utf8 = pg_sys::pg_enc::PG_UTF8 as c_int;
        let from = string.as_ptr().cast::<c_char>();
        let converted = pg_sys::pg_any_to_server(from, string.len() as c_int, utf8);
        CStr::from_ptr(converted).to_bytes().to_vec()
    }
}

/// A message as pgrx can send it: in a database of another encoding letters beyond ASCII are escaped.
pub fn message(message: String) -> String {
    if encoding() == pg_sys::pg_enc::PG_UTF8 || message.is_ascii() {
        return message;
    }
    message.chars().fold(String::new(), |mut safe, c| {
        if c.is_ascii() {
            safe.push(c)
        } else {
            safe.extend(c.escape_unicode())
        }
        safe
    })
}

pub fn c_string(value: &str) -> Result<CString> {
    CString::new(to_server(value)).map_err(|_| Error::Internal("a name holds a zero byte"))
}

pub fn quote_literal(value: &str) -> String {
    match c_string(value) {
        // SAFETY: a terminated string, which is copied.
        Ok(value) => string(unsafe { pg_sys::quote_literal_cstr(value.as_ptr()) }),
        Err(_) => String::new(),
    }
}

pub fn quote_identifier(value: &str) -> String {
    match c_string(value) {
        // SAFETY: a terminated string that outlives the call.
        Ok(value) => string(unsafe { pg_sys::quote_identifier(value.as_ptr()) }),
        Err(_) => String::new(),
    }
}

pub fn reserve_settings(prefix: &CStr) {
    // SAFETY: the server copies the name.
    unsafe { pg_sys::MarkGUCPrefixReserved(prefix.as_ptr()) };
}

/// `clock_timestamp()`: the clock itself, never the start of the transaction.
pub fn now() -> Timestamp {
    // SAFETY: no preconditions.
    unsafe { pg_sys::GetCurrentTimestamp() }
}

/// A `timestamptz` for SQL, infinity among them.
pub fn timestamptz(timestamp: Timestamp) -> TimestampWithTimeZone {
    // SAFETY: a timestamptz is its microseconds.
    unsafe { TimestampWithTimeZone::from_datum(timestamp.into(), false) }
        .unwrap_or_else(TimestampWithTimeZone::positive_infinity)
}

/// True between BEGIN and COMMIT, where the client may stay away for as long as it likes.
pub fn in_transaction_block() -> bool {
    // SAFETY: no preconditions.
    unsafe { pg_sys::IsTransactionBlock() }
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
        if call.is_null() || portal.is_null() || pg_sys::list_length((*portal).stmts) != 1 {
            return false;
        }
        let statement = pg_sys::list_nth((*portal).stmts, 0).cast::<pg_sys::PlannedStmt>();
        let plan = (*statement).planTree;
        if plan.is_null() || !(*plan).lefttree.is_null() {
            return false;
        }
        let only = |list: *mut pg_sys::List| {
            (pg_sys::list_length(list) == 1).then(|| pg_sys::list_nth(list, 0))
        };
        let found = match (*plan).type_ {
            pg_sys::NodeTag::T_Result => only((*plan).targetlist).map(|entry| {
                (*entry.cast::<pg_sys::TargetEntry>())
                    .expr
                    .cast::<pg_sys::Node>()
            }),
            pg_sys::NodeTag::T_FunctionScan => {
                only((*plan.cast::<pg_sys::FunctionScan>()).functions)
                    .map(|function| (*function.cast::<pg_sys::RangeTblFunction>()).funcexpr)
            }
            _ => None,
        };
        found == Some(call)
    }
}

/// 1 outside of savepoints, one more in each.
pub fn nest_level() -> i32 {
    // SAFETY: no preconditions.
    unsafe { pg_sys::GetCurrentTransactionNestLevel() }
}

/// A standby's answer would be old, so there it is an error.
pub fn refuse_on_standby(function: &'static str) -> Result<()> {
    // SAFETY: no preconditions.
    if unsafe { pg_sys::RecoveryInProgress() } {
        Err(Error::Standby { function })
    } else {
        Ok(())
    }
}

pub fn refuse_read_only(function: &'static str) -> Result<()> {
    refuse_on_standby(function)?;
    // SAFETY: the variable is read only.
    if unsafe { pg_sys::XactReadOnly } {
        Err(Error::ReadOnly { function })
    } else {
        Ok(())
    }
}

/// Lets this transaction commit synchronously, whatever `synchronous_commit` says.
pub fn force_sync_commit() {
    // SAFETY: sets a flag of the transaction.
    unsafe { pg_sys::ForceSyncCommit() };
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
    // SAFETY: no preconditions.
    unsafe { pg_sys::TransactionIdIsCurrentTransactionId(xid) }
}

/// What was written becomes visible to the commands that follow in this transaction.
pub fn next_command() {
    // SAFETY: no preconditions outside of parallel mode, where no function of ours may run.
    unsafe { pg_sys::CommandCounterIncrement() };
}

pub fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
}

/// Draws from a sequence, and tells up to where the WAL must be flushed so that no crash takes the number back. A
/// sequence logs ahead, so that is an old position most of the times.
pub fn draw(sequence: pg_sys::Oid) -> (i64, pg_sys::XLogRecPtr) {
    // SAFETY: an error is turned into a panic by the guard; nothing in the closure needs dropping.
    let value = unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| nextval_internal(sequence, false)) };
    // SAFETY: the sequence exists, nextval has just locked it until the transaction ends. A sequence has one page.
    let lsn = unsafe {
        let relation = pg_sys::relation_open(sequence, pg_sys::NoLock as pg_sys::LOCKMODE);
        let buffer = pg_sys::ReadBuffer(relation, 0);
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as c_int);
        let lsn = pg_sys::BufferGetLSNAtomic(buffer);
        pg_sys::UnlockReleaseBuffer(buffer);
        pg_sys::relation_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
        lsn
    };
    (value, lsn)
}

/// The last number that a sequence gave, zero for none yet, and the sequence's owner.
pub fn sequence_position(sequence: pg_sys::Oid) -> (i64, pg_sys::Oid) {
    let mut any = pg_sys::SnapshotData {
        snapshot_type: pg_sys::SnapshotType::SNAPSHOT_ANY,
        ..Default::default()
    };
    // SAFETY: the sequence exists. It is a table of one row with three columns, which SELECT reads in the same way.
    unsafe {
        let relation = pg_sys::relation_open(sequence, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let owner = (*(*relation).rd_rel).relowner;
        let scan = pg_sys::systable_beginscan(
            relation,
            pg_sys::InvalidOid,
            false,
            &mut any,
            0,
            std::ptr::null_mut(),
        );
        let (mut values, mut nulls) = ([pg_sys::Datum::null(); 3], [true; 3]);
        let tuple = pg_sys::systable_getnext(scan);
        if !tuple.is_null() {
            pg_sys::heap_deform_tuple(
                tuple,
                (*relation).rd_att,
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
        }
        pg_sys::systable_endscan(scan);
        pg_sys::relation_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
        let [last_value, _, is_called] = values;
        (
            if is_called.value() != 0 {
                last_value.value() as i64
            } else {
                0
            },
            owner,
        )
    }
}

/// Sets a sequence to `least` if it stands lower, and tells where it stands.
///
/// Every transaction that draws locks the sequence against this mode until it ends. We try again and again instead of
/// queueing, so that those who draw meanwhile do not wait behind us.
pub fn raise_sequence(sequence: pg_sys::Oid, least: i64) -> i64 {
    let mode = pg_sys::ShareRowExclusiveLock as pg_sys::LOCKMODE;
    // SAFETY: the sequence exists.
    while !unsafe { pg_sys::ConditionalLockRelationOid(sequence, mode) } {
        check_for_interrupts();
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let (current, owner) = sequence_position(sequence);
    // SAFETY: nobody draws between the look and the change. setval checks privileges, which callers of ours need not have;
    // an error restores the user by itself. What setval does is not undone by a rollback, so the lock need not stay.
    unsafe {
        if current < least {
            let (mut user, mut context) = (pg_sys::InvalidOid, 0);
            pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
            pg_sys::SetUserIdAndSecContext(
                owner,
                context | pg_sys::SECURITY_LOCAL_USERID_CHANGE as c_int,
            );
            pg_sys::OidFunctionCall3Coll(
                pg_sys::Oid::from(pg_sys::F_SETVAL_REGCLASS_INT8_BOOL),
                pg_sys::InvalidOid,
                sequence.into(),
                least.into(),
                true.into(),
            );
            pg_sys::SetUserIdAndSecContext(user, context);
        }
        pg_sys::UnlockRelationOid(sequence, mode);
    }
    current.max(least)
}

pub fn flush_wal(up_to: pg_sys::XLogRecPtr) {
    // SAFETY: a position that was written.
    unsafe { pg_sys::XLogFlush(up_to) };
}

/// The name of the role that the caller acts as now.
pub fn current_role_name() -> pg_sys::NameData {
    let mut name = pg_sys::NameData::default();
    // SAFETY: the current user exists, its name is terminated and fits.
    unsafe {
        let role = CStr::from_ptr(pg_sys::GetUserNameFromId(pg_sys::GetUserId(), false));
        for (to, from) in name.data.iter_mut().zip(role.to_bytes()) {
            *to = *from as c_char;
        }
    }
    name
}

/// Is the caller `role`, or a member of it, or a superuser? A role that was dropped has no members.
pub fn is_member_of(role: &CStr) -> bool {
    // SAFETY: a terminated string.
    let oid = unsafe { pg_sys::get_role_oid(role.as_ptr(), true) };
    // SAFETY: no preconditions.
    let user = unsafe { pg_sys::GetUserId() };
    if oid == pg_sys::InvalidOid {
        // SAFETY: no preconditions.
        return unsafe { pg_sys::superuser() };
    }
    // SAFETY: both roles exist.
    user == oid || unsafe { pg_sys::is_member_of_role(user, oid) }
}

pub fn owns_table(table: pg_sys::Oid) -> bool {
    // SAFETY: no preconditions.
    let user = unsafe { pg_sys::GetUserId() };
    #[cfg(feature = "pg15")]
    // SAFETY: an OID that does not exist is an error of the server's.
    unsafe {
        pg_sys::pg_class_ownercheck(table, user)
    }
    #[cfg(not(feature = "pg15"))]
    // SAFETY: an OID that does not exist is an error of the server's.
    unsafe {
        pg_sys::object_ownercheck(pg_sys::RelationRelationId, table, user)
    }
}

/// A relation's OID, or `InvalidOid`.
pub fn relation_oid(schema: &CStr, name: &CStr) -> pg_sys::Oid {
    // SAFETY: terminated strings.
    unsafe {
        let schema = pg_sys::get_namespace_oid(schema.as_ptr(), true);
        pg_sys::get_relname_relid(name.as_ptr(), schema)
    }
}

pub fn table_name(table: pg_sys::Oid) -> TableName {
    // SAFETY: looks up the catalog; NULL for an OID that does not exist.
    unsafe {
        TableName {
            schema: string(pg_sys::get_namespace_name(pg_sys::get_rel_namespace(table))),
            table: string(pg_sys::get_rel_name(table)),
        }
    }
}

/// `schema.table`, quoted where needed.
pub fn qualified(name: &TableName) -> String {
    format!(
        "{}.{}",
        quote_identifier(&name.schema),
        quote_identifier(&name.table)
    )
}

/// The `relkind` and `relpersistence` of pg_class; zero for an OID that does not exist.
pub fn relation_kind(relation: pg_sys::Oid) -> (u8, u8) {
    // SAFETY: looks up the catalog.
    unsafe {
        (
            pg_sys::get_rel_relkind(relation) as u8,
            if pg_sys::get_rel_relkind(relation) == 0 {
                0
            } else {
                pg_sys::get_rel_persistence(relation) as u8
            },
        )
    }
}

pub fn is_partition(relation: pg_sys::Oid) -> bool {
    // SAFETY: looks up the catalog.
    unsafe { pg_sys::get_rel_relispartition(relation) }
}

/// Has the table parents or children?
pub fn is_in_inheritance(relation: pg_sys::Oid) -> bool {
    // SAFETY: looks up the catalog; an error is turned into a panic by the guard.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            has_superclass(relation)
                || !find_inheritance_children(relation, pg_sys::NoLock as pg_sys::LOCKMODE)
                    .is_null()
        })
    }
}

/// Below this, OIDs are the system catalog's.
pub fn is_system_relation(relation: pg_sys::Oid) -> bool {
    relation.to_u32() < pg_sys::FirstNormalObjectId
}

/// The number and type of a column, if there is one of that name.
pub fn column(table: pg_sys::Oid, name: &CStr) -> Option<(i16, pg_sys::Oid)> {
    // SAFETY: looks up the catalog; zero for no such column.
    let number = unsafe { pg_sys::get_attnum(table, name.as_ptr()) };
    // SAFETY: the column exists.
    (number > 0).then(|| (number, unsafe { pg_sys::get_atttype(table, number) }))
}

/// Is the column computed by the table itself?
pub fn is_generated(table: pg_sys::Oid, column: i16) -> bool {
    // SAFETY: looks up the catalog.
    unsafe { pg_sys::get_attgenerated(table, column) != 0 }
}

/// A type's name with its schema, as a cast needs it: without a length, and `bpchar` for what "char" alone cuts to one.
pub fn type_name(oid: pg_sys::Oid) -> String {
    let flags = pg_sys::FORMAT_TYPE_TYPEMOD_GIVEN | pg_sys::FORMAT_TYPE_FORCE_QUALIFY;
    // SAFETY: an OID that does not exist is an error of the server's.
    string(unsafe { pg_sys::format_type_extended(oid, -1, flags as pg_sys::bits16) })
}

/// `OPERATOR(schema.=)`: what the type itself takes for equality, not what search_path finds.
pub fn equality_operator(oid: pg_sys::Oid) -> Result<String> {
    // SAFETY: the cache entry stays.
    let operator =
        unsafe { (*pg_sys::lookup_type_cache(oid, pg_sys::TYPECACHE_EQ_OPR as c_int)).eq_opr };
    if operator == pg_sys::InvalidOid {
        return Err(Error::NoEquality {
            type_name: type_name(oid),
        });
    }
    // SAFETY: the operator exists, and its function with it; both live in the catalog.
    let (schema, name) = unsafe {
        let tuple = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::OPEROID as c_int,
            pg_sys::Datum::from(operator),
        );
        let mut null = false;
        let schema = pg_sys::SysCacheGetAttr(
            pg_sys::SysCacheIdentifier::OPEROID as c_int,
            tuple,
            pg_sys::Anum_pg_operator_oprnamespace as i16,
            &mut null,
        );
        let schema = string(pg_sys::get_namespace_name(pg_sys::Oid::from(
            schema.value() as u32,
        )));
        pg_sys::ReleaseSysCache(tuple);
        (schema, string(pg_sys::get_opname(operator)))
    };
    Ok(format!("OPERATOR({}.{name})", quote_identifier(&schema)))
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

/// The backend whose open transaction `xid` belongs to; None for a prepared one.
pub fn backend_of(xid: pg_sys::TransactionId) -> Option<i32> {
    // SAFETY: looks up the shared array of processes; zero for none.
    let pid = unsafe { pg_sys::BackendXidGetPid(pg_sys::SubTransGetTopmostTransaction(xid)) };
    (pid != 0).then_some(pid)
}

/// Is the caller a member of pg_monitor?
pub fn may_monitor() -> bool {
    // SAFETY: the predefined role always exists.
    unsafe {
        pg_sys::has_privs_of_role(
            pg_sys::GetUserId(),
            pg_sys::Oid::from(pg_sys::ROLE_PG_MONITOR),
        )
    }
}

/// May the caller update the table, or a column of it?
pub fn may_update(table: pg_sys::Oid) -> bool {
    let update = pg_sys::ACL_UPDATE as pg_sys::AclMode;
    // SAFETY: an OID that does not exist is an error of the server's.
    unsafe {
        let user = pg_sys::GetUserId();
        pg_sys::pg_class_aclcheck(table, user, update) == pg_sys::AclResult::ACLCHECK_OK
            || pg_sys::pg_attribute_aclcheck_all(
                table,
                user,
                update,
                pg_sys::AclMaskHow::ACLMASK_ANY,
            ) == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Registers what `fence` does at the end of transactions and savepoints.
pub fn register_callbacks() {
    // SAFETY: the functions live as long as the library, which is never unloaded.
    unsafe {
        pg_sys::RegisterXactCallback(Some(transaction_callback), std::ptr::null_mut());
        pg_sys::RegisterSubXactCallback(Some(savepoint_callback), std::ptr::null_mut());
        pg_sys::CacheRegisterRelcacheCallback(Some(relcache_callback), pg_sys::Datum::null());
    }
}

#[pg_guard]
unsafe extern "C-unwind" fn relcache_callback(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    crate::table::relation_changed(relation);
}

#[pg_guard]
unsafe extern "C-unwind" fn transaction_callback(
    event: pg_sys::XactEvent::Type,
    _arg: *mut c_void,
) {
    use pg_sys::XactEvent::*;
    match event {
        XACT_EVENT_PRE_COMMIT => crate::fence::before_commit(false),
        XACT_EVENT_PRE_PREPARE => crate::fence::before_commit(true),
        XACT_EVENT_COMMIT | XACT_EVENT_ABORT | XACT_EVENT_PREPARE => crate::fence::forget(),
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
        pg_sys::SubXactEvent::SUBXACT_EVENT_COMMIT_SUB => {
            crate::fence::savepoint_released(nest_level())
        }
        pg_sys::SubXactEvent::SUBXACT_EVENT_ABORT_SUB => {
            crate::fence::savepoint_rolled_back(nest_level())
        }
        _ => {}
    }
}
