//! Checkpoints: progress that is saved under the current token and survives hand-overs.
//!
//! A row for each token that saved one, so that a new holder never waits for the row that a frozen predecessor has in its
//! open transaction. The next save removes what is left of earlier tokens.

use crate::error::{Error, Result};
use crate::fence;
use crate::known::Spec;
use crate::referee::{self, Mode, Tag};
use crate::store::Leases;
use crate::table::{Key, Table, Tuple, Value};
use crate::types::{Jsonb, Label, Token};
use crate::{catalog, pg, text};
use pgrx::prelude::*;

const TYPES: [pg_sys::Oid; COLUMNS] =
    [pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID, pg_sys::TEXTOID, pg_sys::NAMEOID, pg_sys::JSONBOID];

const TABLE: Spec = Spec {
    table: c"lease_checkpoint",
    index: c"lease_checkpoint_pkey",
    key: [3, 1],
    columns: &TYPES,
};

const TOKEN: usize = 0;
const ROLE: usize = 3;
const STATE: usize = 4;
const COLUMNS: usize = 5;

/// Saves `state` in this transaction, which commits only if `token` is still current then.
pub fn save(name: Label, token: Token, state: Jsonb) -> Result<()> {
    let hash = referee::hash(name);
    fence::write_undeclared(name, hash, token)?;

    let checkpoints = Table::open(&TABLE)?;
    let tag = Tag::checkpoint(hash);
    loop {
        referee::lock(tag, Mode::Exclusive)?;
        let found = checkpoints.find_alone(Key::NameAndToken(name.bytes(), token.0));
        if let Some(other) = found.busy {
            // Another session of the same holder.
            referee::unlock(tag, Mode::Exclusive);
            pg::wait_for_end(other.by);
            continue;
        }
        let mut role = catalog::current_role_name();
        let values: [Value; COLUMNS] = [
            Some(token.0.into()),
            Some(pg::now().into()),
            Some(text::text(name.bytes())),
            Some((&raw mut role).into()),
            Some(state.0),
        ];
        match found.row {
            Some(row) => checkpoints.update(&row, [1, 2, 3, 4, 5], values),
            None => checkpoints.insert(values),
        }
        remove(&checkpoints, name, |found| found < token);
        referee::unlock(tag, Mode::Exclusive);
        break;
    }
    checkpoints.close();
    Ok(())
}

/// The last one that was committed, or that this transaction saved.
pub fn read(name: Label) -> Result<Option<Jsonb>> {
    let checkpoints = Table::open_for_reading(&TABLE)?;
    let last = checkpoints
        .find_all(name.bytes())
        .into_iter()
        .map(|row| (checkpoints.columns::<COLUMNS>(&row), row))
        .max_by_key(|(columns, _)| token_of(columns));
    let state = match last {
        None => None,
        Some((columns, _row)) => {
            let saver = columns[ROLE].map(text::name).unwrap_or_default();
            if !catalog::is_member_of(&saver) && !holds(name)? && !catalog::may_monitor() {
                return Err(Error::ForeignCheckpoint { lease: name.to_string() });
            }
            columns[STATE].map(|state| Jsonb(pg::detoasted_copy(state)))
        }
    };
    checkpoints.close();
    Ok(state)
}

/// Removes all checkpoints of a name that is pruned.
pub fn forget(name: Label) -> Result<()> {
    let checkpoints = Table::open(&TABLE)?;
    let tag = Tag::checkpoint(referee::hash(name));
    referee::lock(tag, Mode::Exclusive)?;
    remove(&checkpoints, name, |_| true);
    referee::unlock(tag, Mode::Exclusive);
    checkpoints.close();
    Ok(())
}

fn holds(name: Label) -> Result<bool> {
    let leases = Leases::open_for_reading()?;
    let found = leases.find(name, referee::hash(name));
    leases.close();
    Ok(found
        .row
        .is_some_and(|row| row.lease.expires_at.is_some() && catalog::is_member_of(row.role())))
}

fn token_of(columns: &[Value; COLUMNS]) -> Token {
    Token(columns[TOKEN].map_or(0, |datum| datum.value() as i64))
}

/// Removes the rows whose token fits, but for those that a frozen transaction still has.
fn remove(checkpoints: &Table, name: Label, fits: impl Fn(Token) -> bool) {
    let rows: Vec<Tuple> = checkpoints.find_all(name.bytes());
    for row in rows {
        let token = token_of(&checkpoints.columns(&row));
        if !fits(token) {
            continue;
        }
        let found = checkpoints.find_alone(Key::NameAndToken(name.bytes(), token.0));
        if let (Some(row), None) = (found.row, found.busy) {
            checkpoints.delete(&row);
        }
    }
}
