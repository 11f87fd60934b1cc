//! What a backend remembers of our tables, so that it need not look it up in each call: a hint that is checked, or forgotten when the
//! server says that a relation has changed.

use crate::catalog;
use crate::error::{Error, Result};
use pgrx::prelude::*;
use std::cell::RefCell;
use std::ffi::CStr;

pub const SCHEMA: &CStr = c"lock_ext";

/// Which table, its primary key's index, and the columns of that key, counted from 1.
pub struct Spec {
    pub table: &'static CStr,
    pub index: &'static CStr,
    pub key: [i16; 2],
    /// How many columns the table has.
    pub columns: usize,
}

impl Spec {
    /// The OIDs of table and index, remembered until the server says that a relation of ours has changed.
    pub fn oids(&self) -> Result<(pg_sys::Oid, pg_sys::Oid)> {
        let known = KNOWN.with(|known| known.borrow().iter().find(|k| k.0 == self.table).copied());
        if let Some((_, table, index)) = known {
            return Ok((table, index));
        }
        let table = catalog::relation_oid(SCHEMA, self.table);
        let index = catalog::relation_oid(SCHEMA, self.index);
        if table == pg_sys::InvalidOid || index == pg_sys::InvalidOid {
            return Err(Error::NotInstalled);
        }
        KNOWN.with(|known| known.borrow_mut().push((self.table, table, index)));
        Ok((table, index))
    }

    /// Is the table as the install script made it, as far as writing it directly needs?
    pub fn verify(&self, relation: pg_sys::Relation) -> Result<()> {
        // SAFETY: the caller has the relation open.
        let (oid, columns) = unsafe { ((*relation).rd_id, (*(*relation).rd_att).natts) };
        if columns as usize != self.columns {
            return Err(Error::Internal("a table of lock_ext was altered"));
        }
        if !VERIFIED.with(|verified| verified.borrow().contains(&oid)) {
            verify_indexes(relation)?;
            VERIFIED.with(|verified| verified.borrow_mut().push(oid));
        }
        Ok(())
    }
}

thread_local! {
    /// Table, its OID and its index's.
    static KNOWN: RefCell<Vec<(&'static CStr, pg_sys::Oid, pg_sys::Oid)>> = const { RefCell::new(Vec::new()) };
    /// Tables whose indexes are known to be plain.
    static VERIFIED: RefCell<Vec<pg_sys::Oid>> = const { RefCell::new(Vec::new()) };
    /// Where rows were last, by the hash of their name.
    static PLACES: RefCell<Vec<(u64, pg_sys::ItemPointerData)>> = const { RefCell::new(Vec::new()) };
}

/// Number of places that are remembered; 16 bytes each.
const PLACES_SIZE: usize = 4096;

/// The server says that a relation has changed; zero for any.
pub fn relation_changed(oid: pg_sys::Oid) {
    KNOWN.with(|known| {
        let mut known = known.borrow_mut();
        if oid == pg_sys::InvalidOid || known.iter().any(|k| k.1 == oid || k.2 == oid) {
            known.clear();
            VERIFIED.with(|verified| verified.borrow_mut().clear());
        }
    });
}

/// An index over an expression, or for some of the rows, would have to be kept by the executor.
fn verify_indexes(relation: pg_sys::Relation) -> Result<()> {
    // SAFETY: the relation is open and locked.
    let is_plain = unsafe {
        let indexes = pg_sys::RelationGetIndexList(relation);
        (0..pg_sys::list_length(indexes)).all(|i| {
            let mode = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
            let index = pg_sys::index_open(pg_sys::list_nth_oid(indexes, i), mode);
            let is_plain = pg_sys::RelationGetIndexExpressions(index).is_null()
                && pg_sys::RelationGetIndexPredicate(index).is_null();
            pg_sys::index_close(index, pg_sys::NoLock as pg_sys::LOCKMODE);
            is_plain
        })
    };
    if is_plain { Ok(()) } else { Err(Error::Internal("a table of lock_ext was given an index")) }
}

/// Where the row of a name was last; a hint that is checked.
pub fn place(hash: u64) -> Option<pg_sys::ItemPointerData> {
    PLACES.with(|places| {
        places.borrow().get(hash as usize % PLACES_SIZE).filter(|p| p.0 == hash).map(|p| p.1)
    })
}

pub fn remember(hash: u64, tid: pg_sys::ItemPointerData) {
    PLACES.with(|places| {
        let mut places = places.borrow_mut();
        if places.is_empty() {
            places.resize(PLACES_SIZE, (0, pg_sys::ItemPointerData::default()));
        }
        places[hash as usize % PLACES_SIZE] = (hash, tid);
    });
}
