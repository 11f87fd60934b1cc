//! The rows of `lock_ext.lease`, typed. It decides nothing; the only place that knows the table's columns.

use crate::error::Result;
use crate::known::Spec;
use crate::policy::Lease;
use crate::referee::NameHash;
use crate::table::{self, Busy, Key, Table, Tuple, Value, Version};
use crate::types::{Label, Text, Timestamp, Token, Ttl};
use crate::{catalog, pg, text};
use pgrx::prelude::*;
use std::ffi::{CStr, CString};

const COLUMNS: usize = 12;
const ALL: [i32; COLUMNS] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

/// The columns of the install script, counted from 1.
mod column {
    pub const TOKEN: i32 = 1;
    pub const GRANTS: i32 = 2;
    pub const ACQUIRED_AT: i32 = 3;
    pub const RENEWED_AT: i32 = 4;
    pub const TTL: i32 = 5;
    pub const HOLDER_ROLE: i32 = 6;
    pub const NAME: i32 = 7;
    pub const HOLDER: i32 = 8;
    pub const EXPIRES_AT: i32 = 9;
    pub const RELEASED_AT: i32 = 10;
    pub const COMPLETED_UNTIL: i32 = 11;
    pub const REQUEST: i32 = 12;
}

/// The types of the install script.
const TYPES: [pg_sys::Oid; COLUMNS] = [
    pg_sys::INT8OID,
    pg_sys::INT8OID,
    pg_sys::TIMESTAMPTZOID,
    pg_sys::TIMESTAMPTZOID,
    pg_sys::INTERVALOID,
    pg_sys::NAMEOID,
    pg_sys::TEXTOID,
    pg_sys::TEXTOID,
    pg_sys::TIMESTAMPTZOID,
    pg_sys::TIMESTAMPTZOID,
    pg_sys::TIMESTAMPTZOID,
    pg_sys::UUIDOID,
];

const TABLE: Spec =
    Spec { table: c"lease", index: c"lease_pkey", key: [column::NAME as i16, 0], columns: &TYPES };

pub struct Leases(Table);

/// A lease's row, with the tuple it was read from.
pub struct Row {
    pub lease: Lease,
    pub grants: i64,
    pub acquired_at: Timestamp,
    released_at: Option<Timestamp>,
    role: CString,
    tuple: Tuple,
}

/// A lease's row at this moment.
pub struct Found {
    pub row: Option<Row>,
    pub busy: Option<Change>,
}

/// A lease as it was when its row was looked at, and which version of the row that was.
#[derive(Clone, Copy)]
pub struct Sighting {
    pub lease: Lease,
    version: Version,
}

/// Another transaction is changing the row.
pub struct Change {
    pub by: pg_sys::TransactionId,
    /// What it will be; None if the row is being deleted.
    pub to: Option<Lease>,
}

/// A row as the views show it.
pub struct Shown {
    pub name: Text,
    pub holder: Text,
    pub row: Row,
}

impl Found {
    pub fn lease(&self) -> Option<&Lease> {
        self.row.as_ref().map(|row| &row.lease)
    }

    /// Is another transaction about to take `token` its lease away? It may still roll back, but nobody should wait for that: it may be
    /// idle.
    pub fn is_contested(&self, token: Token) -> bool {
        let takes_away = |change: &Change| !change.to.is_some_and(|to| to.is_current(token));
        self.busy.as_ref().is_some_and(takes_away)
    }
}

impl Row {
    /// The role that acquired the lease.
    pub fn role(&self) -> &CStr {
        &self.role
    }

    /// Since when, or from when on, nobody has a use for it.
    pub fn idle_since(&self) -> Timestamp {
        self.lease
            .expires_at
            .or(self.lease.completed_until.max(self.released_at))
            .unwrap_or_default()
    }

    /// Did this transaction write it? Then nobody else can change it before the transaction ends.
    pub fn is_mine(&self) -> bool {
        self.tuple.is_mine()
    }
}

pub struct Grant<'a> {
    pub name: Label<'a>,
    pub holder: Label<'a>,
    pub token: Token,
    pub ttl: Ttl,
    pub now: Timestamp,
    pub request: Option<[u8; 16]>,
}

impl Leases {
    pub fn open() -> Result<Self> {
        Table::open(&TABLE).map(Leases)
    }

    /// The same in a transaction, and a savepoint, that has had it open since a [`Sighting`].
    pub fn open_again() -> Result<Self> {
        Table::open_again(&TABLE).map(Leases)
    }

    pub fn open_for_reading() -> Result<Self> {
        Table::open_for_reading(&TABLE).map(Leases)
    }

    pub fn close(self) {
        self.0.close();
    }

    pub fn find(&self, name: Label, hash: NameHash) -> Found {
        self.found(self.0.find_near(Key::Name(name.bytes()), hash.lock))
    }

    /// What was found, to be compared with later in this transaction; None if somebody is changing it.
    pub fn sighting(&self, found: &Found) -> Option<Sighting> {
        let row = found.row.as_ref().filter(|_| found.busy.is_none())?;
        Some(Sighting { lease: row.lease, version: self.0.version(&row.tuple) })
    }

    /// Is the row still as it was seen, and nobody changing it? Only in the transaction, and the savepoint, that saw it.
    pub fn is_unchanged(&self, seen: &Sighting) -> bool {
        self.0.has(&seen.version)
    }

    fn found(&self, found: table::Found) -> Found {
        Found {
            row: found.row.map(|tuple| self.row(tuple).0),
            busy: found.busy.map(|Busy { by, next }| Change {
                by,
                to: next.map(|tuple| self.row(tuple).0.lease),
            }),
        }
    }

    pub fn all(&self, mut visit: impl FnMut(Shown)) {
        self.0.all(|tuple| {
            let (row, columns) = self.row(tuple);
            visit(Shown {
                name: Text(columns[column::NAME as usize - 1].map(text::bytes).unwrap_or_default()),
                holder: Text(
                    columns[column::HOLDER as usize - 1].map(text::bytes).unwrap_or_default(),
                ),
                row,
            });
        });
    }

    fn row(&self, tuple: Tuple) -> (Row, [Value; COLUMNS]) {
        let columns: [Value; COLUMNS] = self.0.columns(&tuple);
        let at = |number: i32| columns[number as usize - 1];
        let int = |number: i32| at(number).map(|datum| datum.value() as i64);
        let row = Row {
            lease: Lease {
                token: Token(int(column::TOKEN).unwrap_or_default()),
                ttl: Ttl::granted(at(column::TTL).map_or(0, pg::interval_micros)),
                renewed_at: int(column::RENEWED_AT).unwrap_or_default(),
                expires_at: int(column::EXPIRES_AT),
                completed_until: int(column::COMPLETED_UNTIL),
                request: at(column::REQUEST).map(pg::uuid),
            },
            grants: int(column::GRANTS).unwrap_or_default(),
            acquired_at: int(column::ACQUIRED_AT).unwrap_or_default(),
            released_at: int(column::RELEASED_AT),
            role: at(column::HOLDER_ROLE).map(text::name).unwrap_or_default(),
            tuple,
        };
        (row, columns)
    }

    /// Writes a new grant over the row, or the first one of a name.
    pub fn grant(&self, row: Option<&Row>, grant: &Grant) {
        let mut role = catalog::current_role_name();
        let mut ttl = pg_sys::Interval { time: grant.ttl.micros(), day: 0, month: 0 };
        let mut request = grant.request;
        let values: [Value; COLUMNS] = [
            Some(grant.token.0.into()),
            Some((row.map_or(0, |r| r.grants) + 1).into()),
            Some(grant.now.into()),
            Some(grant.now.into()),
            Some((&raw mut ttl).into()),
            Some((&raw mut role).into()),
            Some(text::text(grant.name.bytes())),
            Some(text::text(grant.holder.bytes())),
            Some(grant.ttl.from(grant.now).into()),
            None,
            None,
            request.as_mut().map(|bytes| pg_sys::Datum::from(bytes.as_mut_ptr())),
        ];
        match row {
            Some(row) => self.0.update(&row.tuple, ALL, values),
            None => self.0.insert(values),
        }
    }

    pub fn set_expiry(&self, row: &Row, renewed_at: Timestamp, expires_at: Timestamp) {
        self.0.update(
            &row.tuple,
            [column::RENEWED_AT, column::EXPIRES_AT],
            [Some(renewed_at.into()), Some(expires_at.into())],
        );
    }

    /// Nobody holds it from now on, and nobody acquires it before `completed_until`.
    pub fn end(&self, row: &Row, now: Timestamp, completed_until: Option<Timestamp>) {
        self.0.update(
            &row.tuple,
            [column::EXPIRES_AT, column::RELEASED_AT, column::COMPLETED_UNTIL, column::REQUEST],
            [None, Some(now.into()), completed_until.map(Into::into), None],
        );
    }

    pub fn delete(&self, row: &Row) {
        self.0.delete(&row.tuple);
    }
}
