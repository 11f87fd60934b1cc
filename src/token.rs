//! Where fencing tokens come from: the sequence of `lock_ext.lease.token`. They rise over the whole database, and a number that
//! was drawn is never drawn again, whether or not its grant was committed.
//!
//! Its place here has what is to come: after a fail-over that lost the end of the WAL the sequence would stand at an older number, which the
//! upper bits of the token will rule out.

use crate::error::{Error, Result};
use crate::known;
use crate::types::{MAX_TOKEN, Token};
use crate::{catalog, pg, sequence};
use pgrx::prelude::*;

/// A token that nobody was told yet.
pub struct Drawn {
    pub token: Token,
    logged: pg_sys::XLogRecPtr,
}

fn sequence() -> Result<pg_sys::Oid> {
    let oid = catalog::relation_oid(known::SCHEMA, c"lease_token_seq");
    if oid == pg_sys::InvalidOid { Err(Error::NotInstalled) } else { Ok(oid) }
}

/// Draws a token above `last`, under the lock of the lease that `last` was granted by.
pub fn draw(last: Option<Token>) -> Result<Drawn> {
    let sequence = sequence()?;
    let last = last.unwrap_or(Token(0));
    let (mut number, mut logged) = sequence::draw(sequence);
    if number <= last.0 {
        // The sequence was set back, the rows came from another database, or somebody gave it a CACHE, of which this
        // session has to use up what it has.
        raise_floor(last)?;
        for _ in 0..MAX_CACHE {
            (number, logged) = sequence::draw(sequence);
            if number > last.0 {
                break;
            }
        }
    }
    if number <= last.0 {
        return Err(Error::SequenceBehind { given: Token(number), last });
    }
    Ok(Drawn { token: Token(number), logged })
}

/// How many numbers a session may have cached before we call it an error.
const MAX_CACHE: usize = 1_000;

/// The last token that was drawn, zero for none.
pub fn peek() -> Result<Token> {
    Ok(Token(sequence::position(sequence()?).0))
}

impl Drawn {
    /// Makes sure that no crash gives the number out again, so that it can be told. Most numbers need no flush: a sequence
    /// logs 32 of them ahead.
    pub fn told(self) -> Token {
        pg::flush_wal(self.logged);
        self.token
    }
}

/// From now on every new token is above `floor`.
pub fn raise_floor(floor: Token) -> Result<Token> {
    if !(0..MAX_TOKEN).contains(&floor.0) {
        return Err(Error::FloorRange);
    }
    Ok(Token(sequence::raise(sequence()?, floor.0)))
}
