//! What the present transaction has done under which tokens, and what it has put off until its commit.
//!
//! All of it belongs to the savepoint it was done in: a journal keeps what was there before.

use crate::announce::Event;
use crate::pg;
use crate::referee::NameHash;
use crate::store::Sighting;
use crate::types::{Label, Timestamp, Token};
use std::cell::RefCell;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

/// What the transaction did under one token of a lease.
#[derive(Clone)]
pub struct Entry {
    pub name: Rc<[u8]>,
    pub hash: NameHash,
    pub token: Token,
    /// Declared by `lease_fence`: the writes that follow carry this token.
    pub carried: bool,
    /// Carried now or before: the caller's role was checked.
    pub declared: bool,
    /// From the first write on, nobody shall be granted the lease.
    pub hold: bool,
    /// Others can see that this transaction acts under the token.
    pub shown: bool,
    /// A write was allowed under the token, or may have happened, so the commit must check it.
    pub wrote: bool,
    /// Nobody can be granted the lease before this transaction ends: no second check.
    pub settled: bool,
    pub pending: Option<Pending>,
    /// The row when it was looked at, which need not be looked up again as long as it is there.
    pub seen: Option<Sighting>,
    /// The nesting level of the savepoint that the journal has this entry for, zero for none.
    journaled: i32,
}

impl Entry {
    pub fn is_to_be_checked(&self) -> bool {
        self.wrote && !self.settled
    }

    /// May anything have been written under the token that we have not heard of?
    pub fn is_unsure(&self) -> bool {
        self.carried && !self.wrote
    }
}

/// What is written before the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    Extend { at: Timestamp, expires_at: Timestamp },
    End { at: Timestamp, completed_until: Option<Timestamp>, event: Event },
}

#[derive(Default)]
pub struct Transaction {
    pub entries: Vec<Entry>,
    by_name: HashMap<u64, Vec<usize>, BuildHasherDefault<AsIs>>,
    /// What entries were before a savepoint changed them, None for not there; with the nesting level.
    journal: Vec<(i32, usize, Option<Entry>)>,
    /// How many entries are shown.
    pub shown: usize,
    /// The check before the commit has begun; what others write in their own callbacks after it is checked at once.
    pub checked: bool,
}

/// For keys that are hashes.
#[derive(Default)]
struct AsIs(u64);

impl Hasher for AsIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

thread_local! {
    static TRANSACTION: RefCell<Transaction> = RefCell::default();
}

pub fn with<T>(f: impl FnOnce(&mut Transaction) -> T) -> T {
    TRANSACTION.with(|t| f(&mut t.borrow_mut()))
}

impl Transaction {
    pub fn of_name<'t>(
        &'t self,
        name: Label<'t>,
        hash: NameHash,
    ) -> impl Iterator<Item = usize> + 't {
        self.by_name
            .get(&hash.lock)
            .into_iter()
            .flatten()
            .copied()
            .filter(move |i| *self.entries[*i].name == *name.bytes())
    }

    /// Changes an entry, which is made if it is not there.
    pub fn edit(
        &mut self,
        name: Label,
        hash: NameHash,
        token: Token,
        change: impl FnOnce(&mut Entry),
    ) {
        let level = pg::nest_level();
        let found = self.of_name(name, hash).find(|i| self.entries[*i].token == token);
        let index = found.unwrap_or_else(|| {
            self.entries.push(Entry {
                name: name.bytes().into(),
                hash,
                token,
                carried: false,
                declared: false,
                hold: false,
                shown: false,
                wrote: false,
                settled: false,
                pending: None,
                seen: None,
                journaled: 0,
            });
            self.by_name.entry(hash.lock).or_default().push(self.entries.len() - 1);
            self.entries.len() - 1
        });
        if level > 1 && self.entries[index].journaled < level {
            let before = found.map(|i| self.entries[i].clone());
            self.journal.push((level, index, before));
            self.entries[index].journaled = level;
        }
        let entry = &mut self.entries[index];
        let shown = entry.shown;
        change(entry);
        self.shown += usize::from(entry.shown && !shown);
    }

    fn undo(&mut self, level: i32) {
        while self.journal.last().is_some_and(|(at, ..)| *at >= level) {
            let Some((_, index, before)) = self.journal.pop() else {
                return;
            };
            let now = self.entries[index].shown;
            self.shown -= usize::from(now && !before.as_ref().is_some_and(|e| e.shown));
            match before {
                Some(entry) => self.entries[index] = entry,
                None => {
                    // Entries are made in the order of the journal, so this is the last one.
                    if let Some(entry) = self.entries.pop()
                        && let Some(indexes) = self.by_name.get_mut(&entry.hash.lock)
                    {
                        indexes.retain(|i| *i != index);
                    }
                }
            }
        }
    }
}

/// The transaction has ended.
pub fn forget() {
    with(|t| {
        t.checked = false;
        if !t.entries.is_empty() {
            *t = Transaction::default();
        }
    });
}

pub fn savepoint_rolled_back(level: i32) {
    with(|t| t.undo(level));
}

pub fn savepoint_released(level: i32) {
    with(|t| {
        let parent = if level == 2 { 0 } else { level - 1 };
        let first = t.journal.iter().rposition(|(at, ..)| *at < level).map_or(0, |i| i + 1);
        for (_, index, before) in t.journal.split_off(first) {
            t.entries[index].journaled = parent;
            // What an entry was before the savepoint around this one is known already, or need not be known.
            let known = before.as_ref().is_some_and(|entry| entry.journaled == parent);
            if parent > 0 && !known {
                t.journal.push((parent, index, before));
            }
        }
    });
}
