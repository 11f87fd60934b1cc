//! The rows of `lock_ext.lease`, typed. It decides nothing; the only place that knows the table's columns.

use crate::error::Result;
use crate::known::Spec;
use crate::policy::Lease;
use crate::referee::NameHash;
use crate::table::{self, Busy, Key, Table, Tuple, Value, Version};
use crate::types::{INFINITY, Label, Text, Timestamp, Token, Ttl};
use crate::{catalog, pg, tenure, text};
use pgrx::prelude::*;
use std::ffi::{CStr, CString};

const COLUMNS: usize = 15;
const ALL: [i32; COLUMNS] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

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
    pub const NOT_BEFORE: i32 = 13;
    pub const PAUSE: i32 = 14;
    pub const SESSION_PID: i32 = 15;
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
    pg_sys::TIMESTAMPTZOID,
    pg_sys::INTERVALOID,
    pg_sys::INT4OID,
];

const TABLE: Spec =
    Spec { table: c"lease", index: c"lease_pkey", key: [column::NAME as i16, 0], columns: &TYPES };

pub struct Leases(Table);

/// A lease's row, with the tuple it was read from.
pub struct Row {
    pub lease: Lease,
    pub grants: i64,
    pub acquired_at: Timestamp,
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
        self.lease.kept_until().unwrap_or(self.acquired_at)
    }

    /// Was it bound to a session that has ended? Then nobody knows since when.
    pub fn is_lost(&self) -> bool {
        self.lease.expires_at.is_none() && self.lease.released_at.is_none()
    }

    /// Was the last grant ended by its holder, or by force?
    pub fn was_ended(&self) -> bool {
        self.lease.released_at.is_some()
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
    pub term: Term,
    pub now: Timestamp,
    pub request: Option<[u8; 16]>,
}

/// How long a grant lasts.
#[derive(Clone, Copy)]
pub enum Term {
    /// A time to live, and for how long nobody else is granted the lease whatever happens, and after a loss.
    Timed { ttl: Ttl, min_hold: i64, pause: i64 },
    /// As long as the session.
    Session,
}

impl Leases {
    pub fn open() -> Result<Self> {
        Table::open(&TABLE).map(Leases)
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

    /// Is the row still as it was seen, and nobody changing it? Only in the transaction that saw it.
    pub fn is_unchanged(&self, seen: &Sighting) -> bool {
        self.0.has(&seen.version)
            && (seen.lease.session.is_none() || tenure::is_alive(seen.lease.token))
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

    /// The highest token of all rows. A look at the whole table.
    pub fn highest(&self) -> Option<Token> {
        let mut highest = None;
        self.0.all(|tuple| highest = highest.max(Some(self.row(tuple).0.lease.token)));
        highest
    }

    fn row(&self, tuple: Tuple) -> (Row, [Value; COLUMNS]) {
        let columns: [Value; COLUMNS] = self.0.columns(&tuple);
        let at = |number: i32| columns[number as usize - 1];
        let int = |number: i32| at(number).map(|datum| datum.value() as i64);
        let token = Token(int(column::TOKEN).unwrap_or_default());
        let session = int(column::SESSION_PID).map(|pid| pid as i32);
        // With its session a grant is gone.
        let is_there = session.is_none_or(|_| tenure::is_alive(token));
        let row = Row {
            lease: Lease {
                token,
                ttl: Ttl::granted(at(column::TTL).map_or(0, pg::interval_micros)),
                renewed_at: int(column::RENEWED_AT).unwrap_or_default(),
                expires_at: int(column::EXPIRES_AT).filter(|_| is_there),
                released_at: int(column::RELEASED_AT),
                completed_until: int(column::COMPLETED_UNTIL),
                request: at(column::REQUEST).map(pg::uuid),
                not_before: int(column::NOT_BEFORE),
                pause: at(column::PAUSE).map_or(0, pg::interval_micros),
                session: session.filter(|_| is_there),
            },
            grants: int(column::GRANTS).unwrap_or_default(),
            acquired_at: int(column::ACQUIRED_AT).unwrap_or_default(),
            role: at(column::HOLDER_ROLE).map(text::name).unwrap_or_default(),
            tuple,
        };
        (row, columns)
    }

    /// Writes a new grant over the row, or the first one of a name.
    pub fn grant(&self, row: Option<&Row>, grant: &Grant) {
        let mut role = catalog::current_role_name();
        let interval = |micros| pg_sys::Interval { time: micros, day: 0, month: 0 };
        let (ttl, expires_at, min_hold, pause) = match grant.term {
            Term::Timed { ttl, min_hold, pause } => {
                (ttl.micros(), ttl.from(grant.now), min_hold, pause)
            }
            Term::Session => (0, INFINITY, 0, 0),
        };
        let (mut ttl, mut pause_length) = (interval(ttl), interval(pause));
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
            Some(expires_at.into()),
            None,
            None,
            request.as_mut().map(|bytes| pg_sys::Datum::from(bytes.as_mut_ptr())),
            (min_hold > 0).then(|| grant.now.saturating_add(min_hold).into()),
            (pause > 0).then_some((&raw mut pause_length).into()),
            matches!(grant.term, Term::Session).then(|| (std::process::id() as i32).into()),
        ];
        match row {
            Some(row) => self.0.update(&row.tuple, ALL, values),
            None => self.0.insert(values),
        }
    }

    pub fn set_expiry(&self, row: &Row, renewed_at: Timestamp, expires_at: Timestamp) {
        // Where the clock has been stepped back, the minimum hold moves with it.
        let back = row.lease.renewed_at.saturating_sub(renewed_at).max(0);
        let not_before = row.lease.not_before.map(|at| at.saturating_sub(back).into());
        self.0.update(
            &row.tuple,
            [column::RENEWED_AT, column::EXPIRES_AT, column::NOT_BEFORE],
            [Some(renewed_at.into()), Some(expires_at.into()), not_before],
        );
    }

    pub fn version(&self, row: &Row) -> Version {
        self.0.version(&row.tuple)
    }

    /// The clock has been stepped back: what was set by it moves with it.
    pub fn step_back(&self, row: &Row, by: i64) {
        let lease = &row.lease;
        let moved = |at: Option<Timestamp>| at.map(|at| at.saturating_sub(by).into());
        self.0.update(
            &row.tuple,
            [
                column::RENEWED_AT,
                column::EXPIRES_AT,
                column::RELEASED_AT,
                column::COMPLETED_UNTIL,
                column::NOT_BEFORE,
            ],
            [
                moved(Some(lease.renewed_at)),
                moved(lease.expires_at),
                moved(lease.released_at),
                moved(lease.completed_until),
                moved(lease.not_before),
            ],
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
