//! Our own tables as a catalog: rows found by index and written directly, with no SPI, no privileges, no search_path and
//! no snapshot of the caller's between us and the truth.
//!
//! A row is read as it is at this moment (`SnapshotDirty`), whatever the isolation level: the version that is
//! committed, and who is changing it if somebody is. That second half is what the lock on a name's tag need not be held
//! for: a version that is not committed yet speaks for itself, and costs no entry of the lock table. No predicate lock is taken,
//! as the snapshot is not an MVCC one, so that SERIALIZABLE finds no conflict in our tables.
//!
//! Whoever changes a row holds the lock of its tag while it does (see `referee`), so that two never change it at once.

use crate::error::Result;
use crate::known::{self, Spec};
use crate::{pg, raw, text};
use pgrx::prelude::*;
use std::cell::Cell;
use std::ffi::c_int;

/// One of our tables, open and locked as for any statement.
pub struct Table {
    relation: pg_sys::Relation,
    mode: pg_sys::LOCKMODE,
    wrote: Cell<bool>,
    index: pg_sys::Oid,
    key: [i16; 2],
    /// Where the row that was found last begins, in the words of the index.
    root: Cell<Option<pg_sys::ItemPointerData>>,
}

/// A version of a row, copied out of its page.
pub struct Tuple(pg_sys::HeapTuple);

/// Which version of a row a tuple is: its place, in which file of the table, and the transaction that wrote it.
#[derive(Clone, Copy)]
pub struct Version {
    file: pg_sys::Oid,
    place: pg_sys::ItemPointerData,
    writer: pg_sys::TransactionId,
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        let number = pgrx::itemptr::item_pointer_get_both;
        (self.file, self.writer, number(self.place))
            == (other.file, other.writer, number(other.place))
    }
}

/// A row at this moment.
pub struct Found {
    /// The committed version, or the one that this transaction wrote.
    pub row: Option<Tuple>,
    /// Another transaction is changing it.
    pub busy: Option<Busy>,
}

pub struct Busy {
    pub by: pg_sys::TransactionId,
    /// What it will be; none if the row is being deleted.
    pub next: Option<Tuple>,
}

/// The first columns of a table's index.
#[derive(Clone, Copy)]
pub enum Key<'a> {
    Name(&'a [u8]),
    NameAndToken(&'a [u8], i64),
}

/// A column's value to write.
pub type Value = Option<pg_sys::Datum>;

impl Table {
    pub fn open(spec: &Spec) -> Result<Self> {
        Self::open_with(spec, pg_sys::RowExclusiveLock)
    }

    /// The same for reading only, as on a standby no stronger lock can be had.
    pub fn open_for_reading(spec: &Spec) -> Result<Self> {
        Self::open_with(spec, pg_sys::AccessShareLock)
    }

    fn open_with(spec: &Spec, mode: u32) -> Result<Self> {
        let mode = mode as pg_sys::LOCKMODE;
        let relation = loop {
            let (table, _) = spec.oids()?;
            let relation = raw::open_table(table, mode);
            if !relation.is_null() {
                break relation;
            }
            // SAFETY: locked by us.
            pg::as_transaction(|| unsafe { pg_sys::UnlockRelationOid(table, mode) });
            known::forget();
        };
        spec.verify(relation)?;
        // A concurrent REINDEX may have given the index another OID until the lock was taken.
        let (_, index) = spec.oids()?;
        let (wrote, root) = (Cell::new(false), Cell::new(None));
        Ok(Table { relation, mode, wrote, index, key: spec.key, root })
    }

    /// Its lock is kept if we have written to it, and given back otherwise: a client that stays away would keep maintenance of the table
    /// waiting, and that everybody.
    pub fn close(self) {
        // SAFETY: opened by us with this lock.
        unsafe {
            let table = (*self.relation).rd_id;
            pg_sys::table_close(self.relation, pg_sys::NoLock as pg_sys::LOCKMODE);
            if !self.wrote.get() {
                pg::as_transaction(|| pg_sys::UnlockRelationOid(table, self.mode));
            }
        }
    }

    /// The row of `key`, in the table's first index.
    ///
    /// A writer can commit while we scan, and leave us between its two versions; so an answer is taken only if it can be
    /// one moment's.
    fn find(&self, key: Key) -> Found {
        loop {
            let found = self.find_alone(key);
            if found.row.is_some() || found.busy.is_some() || !self.has_committed(key) {
                return found;
            }
        }
    }

    /// The same, looking first where the row of this name was last. Most of the time it is still there, as heartbeats
    /// leave it on its page, and then no index is needed.
    pub fn find_near(&self, key: Key, hash: u64) -> Found {
        match known::place(hash).and_then(|tid| self.at(tid, key)) {
            Some(tuple) => Found { row: Some(tuple), busy: None },
            None => {
                let found = self.find(key);
                if let Some(tid) = self.root.get() {
                    known::remember(hash, tid);
                }
                found
            }
        }
    }

    /// The version of `key` that begins at `tid`, if it is there and nobody is changing it.
    fn at(&self, tid: pg_sys::ItemPointerData, key: Key) -> Option<Tuple> {
        let mut snapshot = pg_sys::SnapshotData {
            snapshot_type: pg_sys::SnapshotType::SNAPSHOT_DIRTY,
            ..Default::default()
        };
        let block = block(tid);
        let mut tid = tid;
        // SAFETY: the table is open and locked.
        let copy = unsafe { raw::copy_version(self.relation, block, &mut tid, &mut snapshot) };
        let copy = (!copy.is_null()).then(|| Tuple(copy));
        let is_quiet = valid(snapshot.xmin).is_none() && valid(snapshot.xmax).is_none();
        copy.filter(|tuple| is_quiet && self.has_key(tuple, key))
    }

    /// Which version of its row a tuple of this table is.
    pub fn version(&self, tuple: &Tuple) -> Version {
        // SAFETY: a copy of a whole heap tuple, which is stored.
        unsafe {
            let header = &*(*tuple.0).t_data;
            let writer = header.t_choice.t_heap.t_xmin;
            Version { file: self.file(), place: (*tuple.0).t_self, writer }
        }
    }

    /// The file that the table is in, which changes when it is rewritten.
    fn file(&self) -> pg_sys::Oid {
        // SAFETY: the relation is open.
        unsafe { (*(*self.relation).rd_rel).relfilenode }
    }

    /// Is this version there, and has nobody begun to change it? Whoever asks has seen it in this transaction. Whoever wrote it was done with that by
    /// then, so that its place has no other row of the same writer.
    pub fn has(&self, version: &Version) -> bool {
        let place = version.place;
        if self.file() != version.file {
            return false;
        }
        // SAFETY: the table is open and locked. The page is pinned and locked while we look.
        unsafe {
            let buffer = raw::lock_page(self.relation, block(place));
            if buffer == pg_sys::InvalidBuffer as pg_sys::Buffer {
                return false;
            }
            let page = pg_sys::BufferGetPage(buffer);
            let item = pg_sys::PageGetItemId(page, place.ip_posid);
            let is_there = place.ip_posid <= pg_sys::PageGetMaxOffsetNumber(page)
                && (*item).lp_flags() == pg_sys::LP_NORMAL
                && {
                    let header =
                        &*pg_sys::PageGetItem(page, item).cast::<pg_sys::HeapTupleHeaderData>();
                    header.t_choice.t_heap.t_xmin == version.writer
                        && header.t_infomask & pg_sys::HEAP_XMAX_INVALID as u16 != 0
                };
            raw::UnlockReleaseBuffer(buffer);
            is_there
        }
    }

    /// A place may have got another row since.
    fn has_key(&self, tuple: &Tuple, key: Key) -> bool {
        let Key::Name(name) = key else { return false };
        let mut null = false;
        // SAFETY: a tuple of this table, whose key column is a text that is never null, compressed or out of line.
        unsafe {
            let datum = raw::SPI_getbinval(
                tuple.0,
                (*self.relation).rd_att,
                c_int::from(self.key[0]),
                &mut null,
            );
            !null && pgrx::varlena::varlena_to_byte_slice(datum.cast_mut_ptr()) == name
        }
    }

    /// The same under a lock that excludes every writer of the row.
    pub fn find_alone(&self, key: Key) -> Found {
        loop {
            pg::check_for_interrupts();
            let mut row: Option<(Tuple, Option<pg_sys::TransactionId>)> = None;
            let mut next: Option<(Tuple, pg_sys::TransactionId)> = None;
            self.scan_now(key, |version, inserting, deleting| match inserting {
                Some(by) => next = Some((version, by)),
                // Two of them: the older one was left by a transaction that has just committed.
                None if row.as_ref().is_some_and(|(_, d)| d.is_none()) => {}
                None => row = Some((version, deleting)),
            });
            let deleting = row.as_ref().and_then(|(_, by)| *by);
            let by = next.as_ref().map(|(_, by)| *by).or(deleting);
            if by.is_some_and(|by| !pg::is_in_progress(by)) {
                continue;
            }
            // A version that went to another page after we had read the index: it will be there when we look again.
            let moved = |row: &(Tuple, Option<pg_sys::TransactionId>)| row.0.has_successor();
            if next.is_none() && deleting.is_some() && row.as_ref().is_some_and(moved) {
                continue;
            }
            return Found {
                row: row.map(|(tuple, _)| tuple),
                busy: by.map(|by| Busy { by, next: next.map(|(tuple, _)| tuple) }),
            };
        }
    }

    /// All rows of `key` that are committed or ours, for a table whose key is only the first column of its index.
    pub fn find_all(&self, name: &[u8]) -> Vec<Tuple> {
        let mut rows = Vec::new();
        self.scan_committed(Some(Key::Name(name)), |tuple| {
            rows.push(tuple);
            true
        });
        rows
    }

    /// Calls `visit` with every row that is committed or ours, at one moment.
    pub fn all(&self, mut visit: impl FnMut(Tuple)) {
        self.scan_committed(None, |tuple| {
            visit(tuple);
            true
        });
    }

    fn has_committed(&self, key: Key) -> bool {
        let mut any = false;
        self.scan_committed(Some(key), |_| {
            any = true;
            false
        });
        any
    }

    /// Passes each version of `key` that is live or about to be, with the transaction that is inserting or deleting it.
    fn scan_now(
        &self,
        key: Key,
        mut visit: impl FnMut(Tuple, Option<pg_sys::TransactionId>, Option<pg_sys::TransactionId>),
    ) {
        let mut snapshot = pg_sys::SnapshotData {
            snapshot_type: pg_sys::SnapshotType::SNAPSHOT_DIRTY,
            ..Default::default()
        };
        let (mut scan_keys, count) = scan_keys(key, [1, 2]);
        self.root.set(None);
        // SAFETY: relation and index belong together and are open; snapshot and keys outlive the scan. A tuple is valid
        // until the next call and is copied before.
        unsafe {
            let index = pg_sys::index_open(self.index, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
            let slot = pg_sys::table_slot_create(self.relation, std::ptr::null_mut());
            let scan = pg_sys::index_beginscan(
                self.relation,
                index,
                &mut snapshot,
                #[cfg(feature = "pg18")]
                std::ptr::null_mut(),
                count,
                0,
            );
            pg_sys::index_rescan(scan, scan_keys.as_mut_ptr(), count, std::ptr::null_mut(), 0);
            loop {
                if !(*scan).xs_heap_continue {
                    let tid = pg_sys::index_getnext_tid(
                        scan,
                        pg_sys::ScanDirection::ForwardScanDirection,
                    );
                    if tid.is_null() {
                        break;
                    }
                    self.root.set(Some(*tid));
                }
                if pg_sys::index_fetch_heap(scan, slot) {
                    let tuple = (*slot.cast::<pg_sys::BufferHeapTupleTableSlot>()).base.tuple;
                    let tuple = Tuple(pg_sys::heap_copytuple(tuple));
                    visit(tuple, valid(snapshot.xmin), valid(snapshot.xmax));
                }
            }
            pg_sys::index_endscan(scan);
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            pg_sys::index_close(index, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        }
    }

    /// Passes each version that a snapshot of this moment sees, until `visit` returns false.
    fn scan_committed(&self, key: Option<Key>, mut visit: impl FnMut(Tuple) -> bool) {
        // Every version is fetched and the snapshot is asked afterwards: a scan under an MVCC snapshot would leave predicate
        // locks of a SERIALIZABLE caller on the rows.
        let mut any = pg_sys::SnapshotData {
            snapshot_type: pg_sys::SnapshotType::SNAPSHOT_ANY,
            ..Default::default()
        };
        let (mut scan_keys, count) = key.map(|key| scan_keys(key, self.key)).unwrap_or_default();
        // SAFETY: as in scan_now. The latest snapshot is registered, so that what it sees is not pruned meanwhile.
        // The tuple's page is pinned by the scan's slot while its visibility is tested under the page's lock.
        unsafe {
            let latest = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
            let scan = pg_sys::systable_beginscan(
                self.relation,
                self.index,
                key.is_some(),
                &mut any,
                count,
                scan_keys.as_mut_ptr(),
            );
            loop {
                let tuple = pg_sys::systable_getnext(scan);
                if tuple.is_null() {
                    break;
                }
                let slot = (*scan).slot.cast::<pg_sys::BufferHeapTupleTableSlot>();
                let buffer = (*slot).buffer;
                pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as c_int);
                let visible = pg_sys::HeapTupleSatisfiesVisibility(tuple, latest, buffer);
                pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as c_int);
                if visible && !visit(Tuple(pg_sys::heap_copytuple(tuple))) {
                    break;
                }
            }
            pg_sys::systable_endscan(scan);
            pg_sys::UnregisterSnapshot(latest);
        }
    }

    pub fn insert<const N: usize>(&self, values: [Value; N]) {
        self.wrote.set(true);
        let (mut datums, mut nulls) = split(values);
        // SAFETY: N is the number of the table's columns, their types are as in the install script.
        unsafe {
            let tuple = pg_sys::heap_form_tuple(
                (*self.relation).rd_att,
                datums.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
            under_snapshot(|| pg_sys::CatalogTupleInsert(self.relation, tuple));
            pg_sys::heap_freetuple(tuple);
        }
        pg::next_command();
    }

    /// Writes the given columns, counted from 1, of a row that nobody else is changing.
    pub fn update<const N: usize>(&self, row: &Tuple, columns: [i32; N], values: [Value; N]) {
        self.wrote.set(true);
        let mut columns = columns;
        let (mut datums, mut nulls) = split(values);
        // SAFETY: the row is one of this table, the columns exist.
        unsafe {
            let tuple = pg_sys::heap_modify_tuple_by_cols(
                row.0,
                (*self.relation).rd_att,
                N as c_int,
                columns.as_mut_ptr(),
                datums.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
            under_snapshot(|| {
                pg_sys::simple_heap_update(
                    self.relation,
                    &mut (*row.0).t_self,
                    tuple,
                    #[cfg(not(feature = "pg15"))]
                    &mut Default::default(),
                );
            });
            if (*(*tuple).t_data).t_infomask2 & pg_sys::HEAP_ONLY_TUPLE as u16 == 0 {
                self.index_version(tuple);
            }
            pg_sys::heap_freetuple(tuple);
        }
        pg::next_command();
    }

    /// A version that did not fit on its page needs entries of its own, in every index that is there: a concurrent REINDEX
    /// builds a second one.
    ///
    /// # Safety
    /// `tuple` is a row of this table that was just written.
    unsafe fn index_version(&self, tuple: pg_sys::HeapTuple) {
        // SAFETY: as said. Our indexes have plain columns only, so that no expression is evaluated.
        unsafe {
            let slot = pg_sys::MakeSingleTupleTableSlot(
                (*self.relation).rd_att,
                &raw const pg_sys::TTSOpsHeapTuple,
            );
            pg_sys::ExecStoreHeapTuple(tuple, slot, false);
            let indexes = pg_sys::RelationGetIndexList(self.relation);
            for i in 0..pg_sys::list_length(indexes) {
                let index = pg_sys::index_open(
                    pg_sys::list_nth_oid(indexes, i),
                    pg_sys::RowExclusiveLock as pg_sys::LOCKMODE,
                );
                let info = pg_sys::BuildIndexInfo(index);
                if (*info).ii_ReadyForInserts {
                    let mut values = [pg_sys::Datum::null(); pg_sys::INDEX_MAX_KEYS as usize];
                    let mut nulls = [false; pg_sys::INDEX_MAX_KEYS as usize];
                    pg_sys::FormIndexDatum(
                        info,
                        slot,
                        std::ptr::null_mut(),
                        values.as_mut_ptr(),
                        nulls.as_mut_ptr(),
                    );
                    let unique = if (*(*index).rd_index).indisunique {
                        pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES
                    } else {
                        pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO
                    };
                    pg_sys::index_insert(
                        index,
                        values.as_mut_ptr(),
                        nulls.as_mut_ptr(),
                        &mut (*tuple).t_self,
                        self.relation,
                        unique,
                        false,
                        info,
                    );
                }
                pg_sys::index_close(index, pg_sys::NoLock as pg_sys::LOCKMODE);
            }
            pg_sys::ExecDropSingleTupleTableSlot(slot);
        }
    }

    pub fn delete(&self, row: &Tuple) {
        self.wrote.set(true);
        // SAFETY: the row is one of this table.
        unsafe {
            under_snapshot(|| pg_sys::CatalogTupleDelete(self.relation, &mut (*row.0).t_self));
        }
        pg::next_command();
    }

    /// The columns of a row, in order.
    pub fn columns<const N: usize>(&self, row: &Tuple) -> [Value; N] {
        let mut datums = [pg_sys::Datum::null(); N];
        let mut nulls = [true; N];
        // SAFETY: N is the number of the table's columns.
        unsafe {
            raw::heap_deform_tuple(
                row.0,
                (*self.relation).rd_att,
                datums.as_mut_ptr(),
                nulls.as_mut_ptr(),
            )
        };
        std::array::from_fn(|i| (!nulls[i]).then_some(datums[i]))
    }
}

impl Tuple {
    /// Was this version written by the present transaction?
    pub fn is_mine(&self) -> bool {
        // SAFETY: a copy of a whole heap tuple.
        let header = unsafe { &*(*self.0).t_data };
        let frozen = pg_sys::HEAP_XMIN_FROZEN as u16;
        if header.t_infomask & frozen == frozen {
            // A frozen version keeps the number of a transaction that is long gone.
            return false;
        }
        // SAFETY: this arm of the union is the one of tuples that are stored.
        let xmin = unsafe { header.t_choice.t_heap.t_xmin };
        pg::is_mine(xmin)
    }

    /// Was it updated, and not deleted, by whoever is changing it? Then it points to its next version.
    fn has_successor(&self) -> bool {
        // SAFETY: a copy of a whole heap tuple.
        let (next, own) = unsafe { ((*(*self.0).t_data).t_ctid, (*self.0).t_self) };
        (next.ip_blkid.bi_hi, next.ip_blkid.bi_lo, next.ip_posid)
            != (own.ip_blkid.bi_hi, own.ip_blkid.bi_lo, own.ip_posid)
    }
}

impl Drop for Tuple {
    fn drop(&mut self) {
        // SAFETY: allocated by heap_copytuple, and freed once. The memory context it came from is that of the function
        // call or of the commit, which outlive it.
        unsafe { raw::heap_freetuple(self.0) };
    }
}

/// Before the commit no snapshot is left, and the server wants one of who writes a table that has another one for long values.
fn under_snapshot(write: impl FnOnce()) {
    // SAFETY: no preconditions; after an error the transaction's end lets go of the snapshot.
    unsafe {
        if pg_sys::HaveRegisteredOrActiveSnapshot() {
            return write();
        }
        let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        write();
        pg_sys::UnregisterSnapshot(snapshot);
    }
}

fn split<const N: usize>(values: [Value; N]) -> ([pg_sys::Datum; N], [bool; N]) {
    (values.map(|v| v.unwrap_or(pg_sys::Datum::null())), values.map(|v| v.is_none()))
}

fn block(place: pg_sys::ItemPointerData) -> pg_sys::BlockNumber {
    (u32::from(place.ip_blkid.bi_hi) << 16) | u32::from(place.ip_blkid.bi_lo)
}

fn valid(xid: pg_sys::TransactionId) -> Option<pg_sys::TransactionId> {
    (xid != pg_sys::InvalidTransactionId).then_some(xid)
}

/// `columns` are the index's for a scan of it, and the table's where the server translates them.
fn scan_keys(key: Key, columns: [i16; 2]) -> ([pg_sys::ScanKeyData; 2], c_int) {
    let (name, token) = match key {
        Key::Name(name) => (name, None),
        Key::NameAndToken(name, token) => (name, Some(token)),
    };
    let mut keys = [pg_sys::ScanKeyData::default(); 2];
    let equals = pg_sys::BTEqualStrategyNumber as pg_sys::StrategyNumber;
    // SAFETY: fills in the keys; both functions exist in every database.
    unsafe {
        pg_sys::ScanKeyEntryInitialize(
            &mut keys[0],
            0,
            columns[0],
            equals,
            pg_sys::InvalidOid,
            pg_sys::C_COLLATION_OID,
            pg_sys::Oid::from(pg_sys::F_TEXTEQ),
            text::text(name),
        );
        if let Some(token) = token {
            pg_sys::ScanKeyInit(
                &mut keys[1],
                columns[1],
                equals,
                pg_sys::Oid::from(pg_sys::F_INT8EQ),
                token.into(),
            );
        }
    }
    (keys, 1 + c_int::from(token.is_some()))
}
