//! Once-only markers: one row for each key, inserted by the transaction that does the work.

use crate::error::Result;
use crate::known::Spec;
use crate::referee::{self, Mode, Tag};
use crate::table::{Key, Table, Value};
use crate::types::{Label, Timestamp};
use crate::{pg, text};
use pgrx::prelude::*;

const TYPES: [pg_sys::Oid; COLUMNS] = [pg_sys::TIMESTAMPTZOID, pg_sys::TEXTOID];

const TABLE: Spec =
    Spec { table: c"once_key", index: c"once_key_pkey", key: [2, 0], columns: &TYPES };

const COLUMNS: usize = 2;

/// True for exactly one transaction that commits. Waits for one that has the key and is not decided yet, as for a unique index.
pub fn once(key: Label) -> Result<bool> {
    let tag = Tag::once(referee::hash(key));
    let keys = Table::open(&TABLE)?;
    let first = loop {
        referee::lock(tag, Mode::Exclusive)?;
        let found = keys.find_alone(Key::Name(key.bytes()));
        if let Some(other) = found.busy {
            referee::unlock(tag, Mode::Exclusive);
            pg::wait_for_end(other.by);
            continue;
        }
        let first = found.row.is_none();
        if first {
            let values: [Value; COLUMNS] = [Some(pg::now().into()), Some(text::text(key.bytes()))];
            keys.insert(values);
        }
        referee::unlock(tag, Mode::Exclusive);
        break first;
    };
    keys.close();
    Ok(first)
}

/// Forgets the keys that are older; tells how many.
pub fn forget(before: Timestamp) -> Result<i64> {
    let keys = Table::open(&TABLE)?;
    let mut old: Vec<Vec<u8>> = Vec::new();
    keys.all(|row| {
        let [done_at, key]: [Value; COLUMNS] = keys.columns(&row);
        if let (Some(done_at), Some(key)) = (done_at, key)
            && (done_at.value() as Timestamp) < before
        {
            old.push(text::bytes(key));
        }
    });
    let mut forgotten = 0;
    for key in &old {
        let tag = Tag::once(referee::hash(Label::known(key)));
        referee::lock(tag, Mode::Exclusive)?;
        let found = keys.find_alone(Key::Name(key));
        if let (Some(row), None) = (found.row, found.busy) {
            keys.delete(&row);
            forgotten += 1;
        }
        referee::unlock(tag, Mode::Exclusive);
    }
    keys.close();
    Ok(forgotten)
}
