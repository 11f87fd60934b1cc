//! Leases that are bound to their session: they have no time to live, and end when the session does. What says that the session is there is
//! a lock that it keeps, of the method whose locks a pooler's reset drops (`DISCARD ALL`).

use crate::error::{Error, Result};
use crate::line;
use crate::pg;
use crate::referee::{self, NameHash, Tag};
use crate::types::Token;
use std::cell::RefCell;

/// A grant of this session.
#[derive(Clone, Copy)]
struct Tenure {
    token: Token,
    name: NameHash,
    /// The nesting level of the savepoint that it was granted in, zero if that is committed.
    level: i32,
    /// This transaction ends it; said at that nesting level.
    ends: Option<i32>,
}

thread_local! {
    static TENURES: RefCell<Vec<Tenure>> = const { RefCell::new(Vec::new()) };
}

fn with<T>(f: impl FnOnce(&mut Vec<Tenure>) -> T) -> T {
    TENURES.with(|tenures| f(&mut tenures.borrow_mut()))
}

/// The grant that is being made lasts as long as this session.
/// False if a session has the token's lock from before.
pub fn begin(name: NameHash, token: Token) -> Result<bool> {
    pg::call_at_session_end();
    with(|tenures| {
        // What a pooler's reset has dropped.
        tenures.retain(|own| is_mine(own.token));
        if tenures.len() >= referee::most_writers() {
            return Err(Error::LockTableFull);
        }
        let is_kept = referee::keep(Tag::tenure(token));
        if is_kept {
            tenures.push(Tenure { token, name, level: pg::nest_level(), ends: None });
        }
        Ok(is_kept)
    })
}

/// Has this transaction acquired or ended one?
pub fn is_touched() -> bool {
    with(|tenures| tenures.iter().any(|own| own.level > 0 || own.ends.is_some()))
}

/// Is the session there that was granted `token`? A standby does not see it, and shows the row as it came.
pub fn is_alive(token: Token) -> bool {
    referee::is_wanted(Tag::tenure(token)) || pg::is_standby()
}

/// Is that this session?
pub fn is_mine(token: Token) -> bool {
    referee::is_kept(Tag::tenure(token))
}

/// The holder has released the lease, which is so once this transaction is committed.
pub fn end_at_commit(token: Token) {
    with(|tenures| {
        for own in tenures.iter_mut().filter(|own| own.token == token) {
            own.ends.get_or_insert(pg::nest_level());
        }
    });
}

fn drop_if(tenures: &mut Vec<Tenure>, is_over: impl Fn(&Tenure) -> bool) {
    tenures.retain(|own| {
        let is_over = is_over(own);
        if is_over {
            referee::let_go(Tag::tenure(own.token));
        }
        !is_over
    });
}

/// Nothing here may fail.
pub fn transaction_ended(committed: bool) {
    with(|tenures| {
        if tenures.is_empty() {
            return;
        }
        drop_if(tenures, |own| if committed { own.ends.is_some() } else { own.level > 0 });
        for own in tenures.iter_mut() {
            (own.level, own.ends) = (0, None);
        }
    });
}

pub fn savepoint_rolled_back(level: i32) {
    with(|tenures| {
        drop_if(tenures, |own| own.level >= level);
        for own in tenures.iter_mut() {
            own.ends = own.ends.filter(|said| *said < level);
        }
    });
}

pub fn savepoint_released(level: i32) {
    with(|tenures| {
        for own in tenures.iter_mut() {
            own.level = own.level.min(level - 1);
            own.ends = own.ends.map(|said| said.min(level - 1));
        }
    });
}

/// The locks are gone: who waits for these leases shall look at once.
pub fn session_ended() {
    with(std::mem::take).into_iter().for_each(|own| line::wake_head(own.name));
}
