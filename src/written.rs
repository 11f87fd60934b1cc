//! Does the transaction commit anything? What a rolled back savepoint has written does not count.
//!
//! A transaction id says that something was written, and stays when that is undone. So we remember up to where the write-ahead log of this
//! session holds nothing but what was undone. In doubt, as after the clean-up of a page that was only read, the answer is yes.

use crate::pg;
use std::cell::{Cell, RefCell};

thread_local! {
    /// All that this transaction has logged up to here is undone; zero for nothing.
    static UNDONE: Cell<u64> = const { Cell::new(0) };
    /// The savepoints that are open, by nesting level, and whether anything was written before each.
    static SAVEPOINTS: RefCell<Vec<(i32, bool)>> = const { RefCell::new(Vec::new()) };
}

pub fn anything() -> bool {
    let undone = UNDONE.get();
    pg::has_transaction_id() && (undone == 0 || pg::last_logged() > undone)
}

pub fn savepoint_begun(level: i32) {
    let before = anything();
    SAVEPOINTS.with(|savepoints| savepoints.borrow_mut().push((level, before)));
}

pub fn savepoint_released(level: i32) {
    pop(level);
}

pub fn savepoint_rolled_back(level: i32) {
    if pop(level) == Some(false) {
        UNDONE.set(pg::last_logged());
    }
}

fn pop(level: i32) -> Option<bool> {
    SAVEPOINTS.with(|savepoints| {
        let savepoints = &mut *savepoints.borrow_mut();
        let at = savepoints.iter().position(|(open, _)| *open >= level)?;
        savepoints.drain(at..).next().map(|(_, before)| before)
    })
}

pub fn transaction_ended() {
    UNDONE.set(0);
    SAVEPOINTS.with(|savepoints| savepoints.borrow_mut().clear());
}
