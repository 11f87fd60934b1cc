//! `fence_observe`: the highest token seen of a resource whose tokens another system issues.
//!
//! A transaction says under which token it acts. That is compared with the highest committed one at the call, and once more before
//! the commit, under a lock that lasts until the transaction has ended; only there it is written. So a transaction that is idle
//! holds up nobody, and of two that commit the later one has the higher token, or an equal one.

use crate::error::{Error, Result};
use crate::known::Spec;
use crate::referee::{self, Mode, NameHash, Tag};
use crate::table::{Found, Key, Table, Value};
use crate::text;
use crate::types::{Label, Text, Timestamp, Token};
use crate::{catalog, pg};
use pgrx::prelude::*;
use std::cell::RefCell;
use std::collections::HashMap;

const COLUMNS: usize = 3;
const TOKEN: usize = 0;

const TABLE: Spec = Spec {
    table: c"observed_token",
    index: c"observed_token_pkey",
    key: [3, 0],
    columns: &[pg_sys::INT8OID, pg_sys::TIMESTAMPTZOID, pg_sys::TEXTOID],
};

/// What this transaction has observed.
#[derive(Default)]
struct Transaction {
    /// Each observation that was higher than the one before, with the savepoint's nesting level.
    log: Vec<Observation>,
    /// Where the last one of each resource is.
    last: HashMap<Vec<u8>, usize>,
}

struct Observation {
    level: i32,
    resource: Vec<u8>,
    token: Token,
    before: Option<usize>,
}

thread_local! {
    static TRANSACTION: RefCell<Transaction> = RefCell::default();
}

fn with<T>(f: impl FnOnce(&mut Transaction) -> T) -> T {
    TRANSACTION.with(|t| f(&mut t.borrow_mut()))
}

/// This transaction acts under `token` of the resource.
pub fn observe(resource: Label, token: Token) -> Result<()> {
    let table = Table::open(&TABLE)?;
    let found = table.find_near(Key::Name(resource.bytes()), !referee::hash(resource).lock);
    let committed = token_of(&table, &found);
    table.close();
    let own = with(|t| t.last.get(resource.bytes()).map(|i| t.log[*i].token));
    refuse_lower(resource, token, committed.max(own), false)?;
    if own == Some(token) {
        return Ok(());
    }
    with(|t| {
        if own.is_none() && t.last.len() >= referee::most_writers() {
            return Err(Error::LockTableFull);
        }
        t.push(pg::nest_level(), resource.bytes().to_vec(), token);
        Ok(())
    })
}

impl Transaction {
    fn push(&mut self, level: i32, resource: Vec<u8>, token: Token) {
        let before = self.last.get(&resource).copied();
        match before {
            Some(before) if self.log[before].level == level => self.log[before].token = token,
            _ => {
                self.last.insert(resource.clone(), self.log.len());
                self.log.push(Observation { level, resource, token, before });
            }
        }
    }
}

fn refuse_lower(
    resource: Label,
    given: Token,
    highest: Option<Token>,
    at_commit: bool,
) -> Result<()> {
    match highest.filter(|highest| given < *highest) {
        Some(highest) => {
            let resource = resource.to_string();
            Err(Error::Overtaken { resource, given, highest, at_commit })
        }
        None => Ok(()),
    }
}

fn token_of(table: &Table, found: &Found) -> Option<Token> {
    let row = found.row.as_ref()?;
    table.columns::<COLUMNS>(row)[TOKEN].map(|datum| Token(datum.value() as i64))
}

/// Before the commit: is every token still the highest? And write those that are higher than before.
pub fn before_commit() -> Result<()> {
    let mut due: Vec<(NameHash, Vec<u8>, Token)> = with(|t| {
        let all = t.last.iter();
        all.map(|(name, i)| (referee::hash(Label::known(name)), name.clone(), t.log[*i].token))
            .collect()
    });
    if due.is_empty() {
        return Ok(());
    }
    // In one order everywhere, so that two commits never wait for each other.
    due.sort();
    let table = Table::open(&TABLE)?;
    for (hash, resource, token) in due {
        settle(&table, hash, Label::known(&resource), token)?;
    }
    table.close();
    Ok(())
}

fn settle(table: &Table, hash: NameHash, resource: Label, token: Token) -> Result<()> {
    let key = Key::Name(resource.bytes());
    let seen = token_of(table, &table.find_near(key, !hash.lock));
    refuse_lower(resource, token, seen, true)?;
    let tag = Tag::observation(hash);
    // Who commits under the token that is there already keeps higher ones away, and not the others under the same.
    if seen == Some(token) {
        referee::lock(tag, Mode::Share)?;
        if token_of(table, &table.find_near(key, !hash.lock)) == Some(token) {
            return Ok(());
        }
        // It was forgotten while we waited, or overtaken. Who writes has to be alone, and two who both keep this lock would wait for each other.
        referee::unlock(tag, Mode::Share);
    }
    referee::lock(tag, Mode::Exclusive)?;
    let found = table.find_near(key, !hash.lock);
    let committed = token_of(table, &found);
    refuse_lower(resource, token, committed, true)?;
    if committed != Some(token) {
        let values: [Value; COLUMNS] =
            [Some(token.0.into()), Some(pg::now().into()), Some(text::text(resource.bytes()))];
        match &found.row {
            Some(row) => table.update(row, [1, 2, 3], values),
            None => table.insert(values),
        }
    }
    Ok(())
}

/// Lets every token of the resource be observed again, as if none had been.
pub fn forget_resource(resource: Label) -> Result<bool> {
    let hash = referee::hash(resource);
    let table = Table::open(&TABLE)?;
    referee::lock(Tag::observation(hash), Mode::Exclusive)?;
    let found = table.find_near(Key::Name(resource.bytes()), !hash.lock);
    if let Some(row) = &found.row {
        table.delete(row);
    }
    table.close();
    Ok(found.row.is_some())
}

/// A resource as `fence_observed` shows it.
pub struct Observed {
    pub resource: Text,
    pub token: Token,
    pub at: Timestamp,
}

/// All resources, for members of pg_monitor.
pub fn all() -> Result<Vec<Observed>> {
    let mut rows = Vec::new();
    if !catalog::may_monitor() {
        return Ok(rows);
    }
    let table = Table::open_for_reading(&TABLE)?;
    table.all(|row| {
        if let [Some(token), Some(at), Some(resource)] = table.columns::<COLUMNS>(&row) {
            rows.push(Observed {
                resource: Text(text::bytes(resource)),
                token: Token(token.value() as i64),
                at: at.value() as i64,
            });
        }
    });
    table.close();
    Ok(rows)
}

/// The transaction has ended.
pub fn forget() {
    with(|t| {
        if !t.log.is_empty() {
            *t = Transaction::default();
        }
    });
}

pub fn savepoint_rolled_back(level: i32) {
    with(|t| {
        while t.log.last().is_some_and(|last| last.level >= level) {
            if let Some(Observation { resource, before, .. }) = t.log.pop() {
                match before {
                    Some(before) => t.last.insert(resource, before),
                    None => t.last.remove(&resource),
                };
            }
        }
    });
}

pub fn savepoint_released(level: i32) {
    with(|t| {
        let first = t.log.iter().rposition(|own| own.level < level).map_or(0, |i| i + 1);
        let own = t.log.split_off(first);
        for Observation { resource, before, .. } in own.iter().rev() {
            match before {
                Some(before) => t.last.insert(resource.clone(), *before),
                None => t.last.remove(resource),
            };
        }
        for Observation { resource, token, .. } in own {
            t.push(level - 1, resource, token);
        }
    });
}
