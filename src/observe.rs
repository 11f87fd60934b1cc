//! `fence_observe`: the highest token seen of a resource whose tokens another system issues.
//!
//! A transaction says under which token it acts. That is compared with the highest committed one at the call, and once more before
//! the commit, under a lock that lasts until the transaction has ended; only there it is written, and a resource forgotten. So a transaction
//! that is idle holds up nobody, and of two that commit the later one has the higher token, or an equal one.

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

/// What this transaction has observed and forgotten.
#[derive(Default)]
struct Transaction {
    /// Each change, with the savepoint's nesting level.
    log: Vec<Entry>,
    /// Where the last one of each resource is.
    last: HashMap<Vec<u8>, usize>,
}

struct Entry {
    level: i32,
    resource: Vec<u8>,
    own: Own,
    before: Option<usize>,
}

/// What the transaction has done with a resource; all of it is written before the commit.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Own {
    /// What was there before does not count.
    forgot: bool,
    /// The highest token since.
    token: Option<Token>,
}

thread_local! {
    static TRANSACTION: RefCell<Transaction> = RefCell::default();
}

fn with<T>(f: impl FnOnce(&mut Transaction) -> T) -> T {
    TRANSACTION.with(|t| f(&mut t.borrow_mut()))
}

/// This transaction acts under `token` of the resource.
pub fn observe(resource: Label, token: Token) -> Result<()> {
    let own = own(resource);
    let committed = committed(resource)?.filter(|_| !own.forgot);
    refuse_lower(resource, token, committed.max(own.token), false)?;
    if own.token == Some(token) {
        return Ok(());
    }
    put_off(resource, Own { token: Some(token), ..own })
}

/// Lets every token of the resource be observed again, as if none had been.
pub fn forget_resource(resource: Label) -> Result<bool> {
    let own = own(resource);
    let is_there = own.token.is_some() || !own.forgot && committed(resource)?.is_some();
    if is_there {
        put_off(resource, Own { forgot: true, token: None })?;
    }
    Ok(is_there)
}

/// Will this transaction write anything here before it commits?
pub fn is_due() -> bool {
    with(|t| !t.last.is_empty())
}

fn own(resource: Label) -> Own {
    with(|t| t.last.get(resource.bytes()).map(|i| t.log[*i].own)).unwrap_or_default()
}

fn committed(resource: Label) -> Result<Option<Token>> {
    let table = Table::open(&TABLE)?;
    let found = table.find_near(Key::Name(resource.bytes()), !referee::hash(resource).lock);
    let token = token_of(&table, &found);
    table.close();
    Ok(token)
}

fn put_off(resource: Label, own: Own) -> Result<()> {
    with(|t| {
        if !t.last.contains_key(resource.bytes()) && t.last.len() >= referee::most_writers() {
            return Err(Error::LockTableFull);
        }
        t.push(pg::nest_level(), resource.bytes().to_vec(), own);
        Ok(())
    })
}

impl Transaction {
    fn push(&mut self, level: i32, resource: Vec<u8>, own: Own) {
        let before = self.last.get(&resource).copied();
        match before {
            Some(before) if self.log[before].level == level => self.log[before].own = own,
            _ => {
                self.last.insert(resource.clone(), self.log.len());
                self.log.push(Entry { level, resource, own, before });
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

/// Before the commit: is every token still the highest? And write those that are higher than before, and remove what was forgotten.
pub fn before_commit() -> Result<()> {
    let mut due: Vec<(NameHash, Vec<u8>, Own)> = with(|t| {
        let all = t.last.iter();
        all.map(|(name, i)| (referee::hash(Label::known(name)), name.clone(), t.log[*i].own))
            .collect()
    });
    if due.is_empty() {
        return Ok(());
    }
    // In one order everywhere, so that two commits never wait for each other.
    due.sort();
    let table = Table::open(&TABLE)?;
    for (hash, resource, own) in due {
        settle(&table, hash, Label::known(&resource), own)?;
    }
    table.close();
    Ok(())
}

fn settle(table: &Table, hash: NameHash, resource: Label, own: Own) -> Result<()> {
    let tag = Tag::observation(hash);
    let find = || table.find_near(Key::Name(resource.bytes()), !hash.lock);
    let refuse = |seen| match own.token {
        Some(token) if !own.forgot => refuse_lower(resource, token, seen, true),
        _ => Ok(()),
    };
    let seen = token_of(table, &find());
    refuse(seen)?;
    // Who commits under the token that is there already keeps higher ones away, and not the others under the same.
    if !own.forgot && seen == own.token {
        referee::lock(tag, Mode::Share)?;
        if token_of(table, &find()) == own.token {
            return Ok(());
        }
        // It was forgotten while we waited, or overtaken. Who writes has to be alone, and two who both keep this lock would wait for each other.
        referee::unlock(tag, Mode::Share);
    }
    referee::lock(tag, Mode::Exclusive)?;
    let found = find();
    let committed = token_of(table, &found);
    refuse(committed)?;
    match (own.token, &found.row) {
        (Some(token), row) if own.forgot || committed != Some(token) => {
            let values: [Value; COLUMNS] =
                [Some(token.0.into()), Some(pg::now().into()), Some(text::text(resource.bytes()))];
            match row {
                Some(row) => table.update(row, [1, 2, 3], values),
                None => table.insert(values),
            }
        }
        (None, Some(row)) => table.delete(row),
        _ => {}
    }
    Ok(())
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
            if let Some(Entry { resource, before, .. }) = t.log.pop() {
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
        let first = t.log.iter().rposition(|entry| entry.level < level).map_or(0, |i| i + 1);
        let inner = t.log.split_off(first);
        for Entry { resource, before, .. } in inner.iter().rev() {
            match before {
                Some(before) => t.last.insert(resource.clone(), *before),
                None => t.last.remove(resource),
            };
        }
        for Entry { resource, own, .. } in inner {
            t.push(level - 1, resource, own);
        }
    });
}
