//! Does the transaction commit anything? What a rolled back savepoint has written does not count.
//!
//! A transaction id says that something was written, and stays when that is undone. So where all that was written is undone, we remember up to where
//! the write-ahead log of this session is undone, and which command came last: what is written from then on moves the one or the other. In doubt, as
//! after the clean-up of a page that was only read, the answer is yes.

use crate::pg;
use std::cell::{Cell, RefCell};

thread_local! {
    /// All that this transaction has logged up to here, and written before this command, is undone.
    static UNDONE: Cell<Option<(u64, u32)>> = const { Cell::new(None) };
    /// All of it has just been undone, and the savepoint of this nesting level begins anew.
    static BEGINS_ANEW: Cell<Option<i32>> = const { Cell::new(None) };
    /// The savepoints that are open, by nesting level, and whether anything may have been written before each.
    static SAVEPOINTS: RefCell<Vec<(i32, bool)>> = const { RefCell::new(Vec::new()) };
}

pub fn anything() -> bool {
    if UNDONE.get().is_some() {
        // What a cursor has written that is kept for the COMMIT, or the like, has moved no command yet.
        pg::next_command();
    }
    let since = |(log, command)| pg::last_logged() > log || pg::command() > command;
    pg::has_transaction_id() && UNDONE.get().is_none_or(since)
}

pub fn savepoint_begun(level: i32) {
    let is_clients = pg::is_between_statements();
    if BEGINS_ANEW.take() == Some(level) && is_clients {
        // What failed may have written as this command.
        pg::next_command();
        UNDONE.set(Some((pg::last_logged(), pg::command())));
    }
    // The statement that a savepoint of a function is in may write afterwards what it has a command for already.
    let before = !is_clients || anything();
    SAVEPOINTS.with(|savepoints| savepoints.borrow_mut().push((level, before)));
}

pub fn savepoint_released(level: i32) {
    pop(level);
}

pub fn savepoint_rolled_back(level: i32) {
    BEGINS_ANEW.set((pop(level) == Some(false)).then_some(level));
}

fn pop(level: i32) -> Option<bool> {
    SAVEPOINTS.with(|savepoints| {
        let savepoints = &mut *savepoints.borrow_mut();
        let at = savepoints.iter().position(|(open, _)| *open >= level)?;
        savepoints.drain(at..).next().map(|(_, before)| before)
    })
}

pub fn transaction_ended() {
    UNDONE.set(None);
    BEGINS_ANEW.set(None);
    SAVEPOINTS.with(|savepoints| savepoints.borrow_mut().clear());
}
