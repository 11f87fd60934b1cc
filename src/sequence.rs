//! Sequences: to draw from one, to see where it stands, to set it.

use pgrx::prelude::*;
use std::ffi::c_int;

// Not bound by pgrx.
unsafe extern "C-unwind" {
    fn nextval_internal(sequence: pg_sys::Oid, check_permissions: bool) -> i64;
}

/// Locks a sequence as drawing from it does, until the transaction ends. All that is below needs this.
pub fn lock(sequence: pg_sys::Oid) {
    // SAFETY: whether the sequence still exists is found out when it is opened.
    unsafe { pg_sys::LockRelationOid(sequence, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE) };
}

pub fn draw(sequence: pg_sys::Oid) -> i64 {
    // SAFETY: an error is turned into a panic by the guard; nothing in the closure needs dropping.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| nextval_internal(sequence, false)) }
}

/// The highest number that a sequence may give.
pub fn end(sequence: pg_sys::Oid) -> i64 {
    // SAFETY: looks up the catalog; the row is read while the cache holds it.
    unsafe {
        let id = pg_sys::SysCacheIdentifier::SEQRELID as c_int;
        let tuple = pg_sys::SearchSysCache1(id, sequence.into());
        if tuple.is_null() {
            return 0;
        }
        let end = (*pg_sys::GETSTRUCT(tuple).cast::<Settings>()).end;
        pg_sys::ReleaseSysCache(tuple);
        end
    }
}

/// The beginning of `FormData_pg_sequence` of catalog/pg_sequence.h.
#[repr(C)]
struct Settings {
    sequence: pg_sys::Oid,
    number_type: pg_sys::Oid,
    start: i64,
    increment: i64,
    end: i64,
}

/// The last number that a sequence gave, zero for none yet.
pub fn position(sequence: pg_sys::Oid) -> i64 {
    // SAFETY: pg_sequence_data is what the one row of a sequence consists of; the row and its place never change.
    read(sequence, |_, page| unsafe {
        let row = pg_sys::PageGetItem(page, pg_sys::PageGetItemId(page, 1));
        let header = row.cast::<pg_sys::HeapTupleHeaderData>();
        let data = row.add(usize::from((*header).t_hoff)).cast::<Data>();
        if (*data).is_called != 0 { (*data).last_value } else { 0 }
    })
}

/// `FormData_pg_sequence_data` of commands/sequence.h.
#[repr(C)]
struct Data {
    last_value: i64,
    log_count: i64,
    is_called: u8,
}

/// Up to where the WAL must be flushed so that no crash takes back what the sequence gave. It logs ahead, so that is an old position most of
/// the times.
pub fn logged(sequence: pg_sys::Oid) -> pg_sys::XLogRecPtr {
    // SAFETY: the buffer is pinned and locked.
    read(sequence, |buffer, _| unsafe { pg_sys::BufferGetLSNAtomic(buffer) })
}

fn read<T>(sequence: pg_sys::Oid, look: impl FnOnce(pg_sys::Buffer, pg_sys::Page) -> T) -> T {
    // SAFETY: the sequence is locked; opening one that is gone is an error of the server's. A sequence has one page.
    unsafe {
        let relation = pg_sys::relation_open(sequence, pg_sys::NoLock as pg_sys::LOCKMODE);
        let buffer = pg_sys::ReadBuffer(relation, 0);
        pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as c_int);
        let seen = look(buffer, pg_sys::BufferGetPage(buffer));
        pg_sys::UnlockReleaseBuffer(buffer);
        pg_sys::relation_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
        seen
    }
}

/// Sets a sequence that stands at `current` to `least` if that is higher.
pub fn raise(sequence: pg_sys::Oid, current: i64, least: i64) {
    if current < least {
        set(sequence, least);
    }
}

/// Sets a sequence, which no rollback takes back.
pub fn set(sequence: pg_sys::Oid, value: i64) {
    // SAFETY: setval checks privileges, which callers of ours need not have, so it is called as the owner; an error restores
    // the user by itself.
    unsafe {
        let relation = pg_sys::relation_open(sequence, pg_sys::NoLock as pg_sys::LOCKMODE);
        let owner = (*(*relation).rd_rel).relowner;
        pg_sys::relation_close(relation, pg_sys::NoLock as pg_sys::LOCKMODE);
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
            value.into(),
            true.into(),
        );
        pg_sys::SetUserIdAndSecContext(user, context);
    }
}
