//! What a backend remembers of our tables, so that it need not look it up in each call: a hint that is checked, or forgotten when the
//! server says that a relation has changed.

use crate::catalog;
use crate::error::{Error, Result};
use pgrx::prelude::*;
use std::cell::RefCell;
use std::ffi::{CStr, c_int};

pub const SCHEMA: &CStr = c"lock_ext";

/// Which table, its primary key's index, and the columns of that key, counted from 1.
pub struct Spec {
    pub table: &'static CStr,
    pub index: &'static CStr,
    pub key: [i16; 2],
    /// The types of the table's columns.
    pub columns: &'static [pg_sys::Oid],
}

impl Spec {
    /// The OIDs of table and index, remembered until the server says that a relation of ours has changed.
    pub fn oids(&self) -> Result<(pg_sys::Oid, pg_sys::Oid)> {
        let known = KNOWN.with(|known| {
            // Each spec has a name of its own, so the pointer tells.
            known.borrow().iter().find(|k| k.0.as_ptr() == self.table.as_ptr()).copied()
        });
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
        let oid = unsafe { (*relation).rd_id };
        if !VERIFIED.with(|verified| verified.borrow().contains(&oid)) {
            self.verify_columns(relation)?;
            self.verify_indexes(relation)?;
            VERIFIED.with(|verified| verified.borrow_mut().push(oid));
        }
        Ok(())
    }

    fn verify_columns(&self, relation: pg_sys::Relation) -> Result<()> {
        // SAFETY: the relation is open. A dropped column has no type.
        let are_same = unsafe {
            let columns = (*relation).rd_att;
            (*columns).natts as usize == self.columns.len()
                && (self.columns.iter().enumerate())
                    .all(|(i, kind)| pg_sys::SPI_gettypeid(columns, i as c_int + 1) == *kind)
        };
        if are_same { Ok(()) } else { Err(self.altered("was altered")) }
    }

    /// An index over an expression, or for some of the rows, would have to be kept by the executor.
    fn verify_indexes(&self, relation: pg_sys::Relation) -> Result<()> {
        // SAFETY: the relation is open and locked.
        let is_plain = unsafe {
            let indexes = pg_sys::RelationGetIndexList(relation);
            (0..pg_sys::list_length(indexes)).all(|i| {
                let mode = pg_sys::AccessShareLock as pg_sys::LOCKMODE;
                let index = pg_sys::index_open(pg_sys::list_nth_oid(indexes, i), mode);
                let is_plain = pg_sys::RelationGetIndexExpressions(index).is_null()
                    && pg_sys::RelationGetIndexPredicate(index).is_null();
                pg_sys::index_close(index, mode);
                is_plain
            })
        };
        if is_plain {
            Ok(())
        } else {
            Err(self.altered("was given an index over an expression or for some rows"))
        }
    }

    fn altered(&self, what: &'static str) -> Error {
        Error::Altered { table: self.table.to_string_lossy().into(), what }
    }
}

/// A sequence of ours, remembered like a table.
pub fn sequence(name: &'static CStr) -> Option<pg_sys::Oid> {
    let known = KNOWN.with(|known| known.borrow().iter().find(|k| k.0 == name).map(|k| k.1));
    known.or_else(|| {
        let oid = catalog::relation_oid(SCHEMA, name);
        (oid != pg_sys::InvalidOid).then(|| {
            KNOWN.with(|known| known.borrow_mut().push((name, oid, oid)));
            oid
        })
    })
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

/// What was remembered has turned out to be wrong.
pub fn forget() {
    relation_changed(pg_sys::InvalidOid);
}

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
