//! Sequences: to draw from one, to see where it stands, to raise it.

use crate::pg::check_for_interrupts;
use pgrx::prelude::*;
use std::ffi::c_int;

// Not bound by pgrx.
unsafe extern "C-unwind" {
    fn nextval_internal(sequence: pg_sys::Oid, check_permissions: bool) -> i64;
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
pub fn position(sequence: pg_sys::Oid) -> (i64, pg_sys::Oid) {
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
        (if is_called.value() != 0 { last_value.value() as i64 } else { 0 }, owner)
    }
}

/// Sets a sequence to `least` if it stands lower, and tells where it stands.
///
/// Every transaction that draws locks the sequence against this mode until it ends. We try again and again instead of
/// queueing, so that those who draw meanwhile do not wait behind us.
pub fn raise(sequence: pg_sys::Oid, least: i64) -> i64 {
    let mode = pg_sys::ShareRowExclusiveLock as pg_sys::LOCKMODE;
    // SAFETY: the sequence exists.
    while !unsafe { pg_sys::ConditionalLockRelationOid(sequence, mode) } {
        check_for_interrupts();
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let (current, owner) = position(sequence);
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
