//! The server's functions without the guard that pgrx puts around each of its calls. It takes some 100 instructions, to keep the place to
//! come back to after an error. Here are functions that raise none, and several that belong together, behind one guard.

use crate::pg;
use pgrx::prelude::*;
use std::ffi::c_int;

// These raise no error. They read the process's own state, or a tuple that the caller has.
unsafe extern "C-unwind" {
    pub safe fn GetCurrentCommandId(used: bool) -> pg_sys::CommandId;
    pub safe fn GetCurrentTimestamp() -> pg_sys::TimestampTz;
    pub safe fn GetCurrentTransactionNestLevel() -> c_int;
    pub safe fn GetDatabaseEncoding() -> c_int;
    pub safe fn GetTopTransactionIdIfAny() -> pg_sys::TransactionId;
    pub safe fn IsInParallelMode() -> bool;
    pub safe fn IsTransactionBlock() -> bool;
    pub safe fn RecoveryInProgress() -> bool;
    pub safe fn TransactionIdIsCurrentTransactionId(xid: pg_sys::TransactionId) -> bool;
    pub fn heap_deform_tuple(
        tuple: pg_sys::HeapTuple,
        columns: pg_sys::TupleDesc,
        values: *mut pg_sys::Datum,
        nulls: *mut bool,
    );
    pub fn heap_freetuple(tuple: pg_sys::HeapTuple);
    pub fn SPI_getbinval(
        tuple: pg_sys::HeapTuple,
        columns: pg_sys::TupleDesc,
        column: c_int,
        null: *mut bool,
    ) -> pg_sys::Datum;
    /// For a page that the caller has locked.
    pub fn UnlockReleaseBuffer(buffer: pg_sys::Buffer);
}

// These do, so they are called behind a guard only.
unsafe extern "C-unwind" {
    fn LockBuffer(buffer: pg_sys::Buffer, mode: c_int);
    fn LockRelationOid(relation: pg_sys::Oid, mode: pg_sys::LOCKMODE);
    fn ReadBuffer(relation: pg_sys::Relation, block: pg_sys::BlockNumber) -> pg_sys::Buffer;
    fn RelationGetNumberOfBlocksInFork(
        relation: pg_sys::Relation,
        fork: pg_sys::ForkNumber::Type,
    ) -> pg_sys::BlockNumber;
    fn RelationIdGetRelation(relation: pg_sys::Oid) -> pg_sys::Relation;
    fn heap_copytuple(tuple: pg_sys::HeapTuple) -> pg_sys::HeapTuple;
    fn heap_hot_search_buffer(
        tid: pg_sys::ItemPointer,
        relation: pg_sys::Relation,
        buffer: pg_sys::Buffer,
        snapshot: pg_sys::Snapshot,
        tuple: pg_sys::HeapTuple,
        all_dead: *mut bool,
        first_call: bool,
    ) -> bool;
    fn heap_page_prune_opt(relation: pg_sys::Relation, buffer: pg_sys::Buffer);
    fn pgstat_init_relation(relation: pg_sys::Relation);
}

const SHARE: c_int = pg_sys::BUFFER_LOCK_SHARE as c_int;
const MAIN: pg_sys::ForkNumber::Type = pg_sys::ForkNumber::MAIN_FORKNUM;

/// Locks a table and opens it; null for one that was dropped while we waited, which is locked then as well. As try_table_open does it,
/// but for one look into the catalog.
pub fn open_table(table: pg_sys::Oid, mode: pg_sys::LOCKMODE) -> pg_sys::Relation {
    // SAFETY: guards around calls that leave nothing to be dropped.
    unsafe {
        pg::as_transaction(|| {
            pg_sys::ffi::pg_guard_ffi_boundary(|| LockRelationOid(table, mode));
        });
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            let relation = RelationIdGetRelation(table);
            if !relation.is_null() {
                pgstat_init_relation(relation);
            }
            relation
        })
    }
}

/// A page, pinned and locked for reading, until [`UnlockReleaseBuffer`]; zero if the table has no such page.
///
/// # Safety
///
/// The table is open and locked, so that it is not truncated after we asked for its size.
pub unsafe fn lock_page(relation: pg_sys::Relation, block: pg_sys::BlockNumber) -> pg_sys::Buffer {
    // SAFETY: a guard around calls that leave nothing to be dropped.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            if block >= RelationGetNumberOfBlocksInFork(relation, MAIN) {
                return pg_sys::InvalidBuffer as pg_sys::Buffer;
            }
            let buffer = ReadBuffer(relation, block);
            LockBuffer(buffer, SHARE);
            buffer
        })
    }
}

/// A copy of the version that the snapshot finds among those that begin at `tid`; null for none, or no such page.
///
/// # Safety
///
/// The table is open and locked, so that it is not truncated after we asked for its size.
pub unsafe fn copy_version(
    relation: pg_sys::Relation,
    block: pg_sys::BlockNumber,
    tid: &mut pg_sys::ItemPointerData,
    snapshot: &mut pg_sys::SnapshotData,
) -> pg_sys::HeapTuple {
    let mut tuple = pg_sys::HeapTupleData::default();
    // SAFETY: a guard around calls that leave nothing to be dropped. The page is pinned and locked while we look, and the tuple is copied before it
    // is let go.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            if block >= RelationGetNumberOfBlocksInFork(relation, MAIN) {
                return std::ptr::null_mut();
            }
            let buffer = ReadBuffer(relation, block);
            heap_page_prune_opt(relation, buffer);
            LockBuffer(buffer, SHARE);
            let is_there = heap_hot_search_buffer(
                tid,
                relation,
                buffer,
                snapshot,
                &mut tuple,
                std::ptr::null_mut(),
                true,
            );
            let copy = if is_there { heap_copytuple(&mut tuple) } else { std::ptr::null_mut() };
            UnlockReleaseBuffer(buffer);
            copy
        })
    }
}
