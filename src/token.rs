//! Where fencing tokens come from, and why none is given out twice, whatever becomes of the server.
//!
//! They are counted by the sequence of `lock_ext.lease.token`: 1, 2, 3. Two things could set it back, and each has its answer here.
//!
//! **The server lost the end of its WAL, or is another one:** a promoted standby, a restored dump, a copy. The sequence then stands at an older
//! number, and nothing in the database tells up to where the others were given out. So the upper bits of a token are an epoch, and the
//! next token is of a later one whenever the last was drawn somewhere else ([`Origin`]): token = epoch * 2^42 + offset. A fresh database is in
//! epoch 0. In a later one the offset starts at the clock, so that also two servers that were promoted from the same state, and know nothing of
//! each other, give out different numbers. No clock decides between two timelines.
//!
//! **Somebody changed the sequence:** `setval`, RESTART, CACHE, CYCLE, UNLOGGED, a restore of its position. A second sequence counts along, and the
//! higher number counts.
//!
//! All of it is kept in sequences, for they are what no rollback takes back, and no open transaction keeps others from. One lock is around it,
//! which is taken last and given back at once.

use crate::error::{Error, Result};
use crate::referee::{self, Mode, Tag};
use crate::types::{MAX_TOKEN, Timestamp, Token};
use crate::{known, pg, sequence};
use pgrx::prelude::*;
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

/// A token that nobody was told yet.
pub struct Drawn {
    pub token: Token,
    logged: pg_sys::XLogRecPtr,
}

impl Drawn {
    /// Makes sure that no crash gives the number out again, so that it can be told. Most numbers need no flush: a sequence
    /// logs 32 of them ahead.
    pub fn told(self) -> Token {
        pg::flush_wal(self.logged);
        self.token
    }
}

/// The sequences of ours. In a database whose extension has not been updated from 0.1.0 there is the first only.
#[derive(Clone, Copy)]
struct Sequences {
    tokens: pg_sys::Oid,
    /// Counts along; not dumped, so that no restore sets both back.
    guard: Option<pg_sys::Oid>,
    /// The origin of the last token.
    origin: Option<pg_sys::Oid>,
}

impl Sequences {
    fn find() -> Result<Self> {
        Ok(Sequences {
            tokens: known::sequence(c"lease_token_seq").ok_or(Error::NotInstalled)?,
            guard: known::sequence(c"token_guard"),
            origin: known::sequence(c"token_origin"),
        })
    }

    /// Those that count.
    fn counts(self) -> impl Iterator<Item = pg_sys::Oid> {
        [self.guard, Some(self.tokens)].into_iter().flatten()
    }

    fn last(self) -> i64 {
        self.counts().map(sequence::position).max().unwrap_or_default()
    }
}

/// Runs `work` while nobody else draws or sets a number. The sequences are locked before, as whoever alters one has it locked already.
fn alone<T>(work: impl FnOnce(Sequences) -> Result<T>) -> Result<T> {
    let sequences = Sequences::find()?;
    sequences.counts().chain(sequences.origin).for_each(sequence::lock);
    let tag = Tag::numbers();
    referee::lock(tag, Mode::Exclusive)?;
    let result = work(sequences);
    referee::unlock(tag, Mode::Exclusive);
    result
}

/// Draws a token above `last`, under the lock of the lease that `last` was granted by. `highest` looks for the highest one of all rows.
pub fn draw(last: Option<Token>, highest: impl FnOnce() -> Option<Token>) -> Result<Drawn> {
    alone(|at| {
        let here = Origin::here(at.tokens);
        let before = at.origin.map(|origin| Origin::unpack(sequence::position(origin)));
        let second = at.guard.map_or(0, sequence::draw);
        if second > MAX_TOKEN {
            return Err(Error::TokensUsedUp);
        }
        // Somebody may have given it an end, beyond which the other one counts alone.
        let end = sequence::end(at.tokens);
        let first = if at.guard.is_none() || second < end { sequence::draw(at.tokens) } else { 0 };
        let next = first.max(second);
        // Rows that are there before the first token have come from elsewhere.
        let last = if next == 1 { highest() } else { last }.map_or(0, |token| token.0);
        let from = next.max(last);
        let steps = match before.map_or(0, |before| here.steps_from(before, next)) {
            0 if next <= last => other(from),
            steps => steps,
        };
        let number = if steps == 0 { next } else { start_of(epoch(from) + steps, pg::now()) };
        if number > MAX_TOKEN {
            return Err(Error::TokensUsedUp);
        }
        if number <= end {
            sequence::raise(at.tokens, first, number);
        }
        if let Some(guard) = at.guard {
            sequence::raise(guard, second, number);
        }
        // After the numbers, so that a crash in between makes for another step, and not for none.
        if let Some(origin) = at.origin
            && before != Some(Some(here))
        {
            sequence::set(origin, here.pack());
        }
        // Of both: one of them may be unlogged, and have no place in the WAL.
        let logged = at.counts().map(sequence::logged).max().unwrap_or_default();
        Ok(Drawn { token: Token(number), logged })
    })
}

/// The last token that was drawn, zero for none.
pub fn peek() -> Result<Token> {
    alone(|at| Ok(Token(at.last())))
}

/// From now on every new token is above `floor`.
pub fn raise_floor(floor: Token) -> Result<Token> {
    if !(0..MAX_TOKEN).contains(&floor.0) {
        return Err(Error::FloorRange);
    }
    alone(|at| {
        let last = at.last();
        // A copy as fresh as its template has to be known for that while nothing tells otherwise.
        if let (0, Some(origin)) = (last, at.origin) {
            let here = Origin::here(at.tokens);
            if here.steps_from(Origin::unpack(sequence::position(origin)), 1) == 0 {
                sequence::set(origin, here.pack());
            }
        }
        let floor = floor.0.max(last);
        for count in at.counts().filter(|count| floor <= sequence::end(*count)) {
            sequence::raise(count, sequence::position(count), floor);
        }
        Ok(Token(floor))
    })
}

/// What the install script sets the origin to, so that a standby which has seen no token yet knows it as well.
pub fn packed_origin() -> Result<i64> {
    Ok(Origin::here(Sequences::find()?.tokens).pack())
}

/// Where tokens are drawn: a life of one extension in one database of one cluster. PostgreSQL gives a cluster its system
/// identifier, and each promotion or recovery to a point in time a new timeline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Origin {
    /// 15 bits of a hash of the system identifier.
    system: u16,
    /// Of a hash of what is made anew with the database, and with the extension.
    place: u16,
    timeline: u32,
}

/// How many epochs to go on from a token that another server gave out. A dump, or a row, may be older than the last fail-overs of that server; so we leave
/// some out, as long as there are many left.
fn other(token: i64) -> i64 {
    if epoch(token) < epoch(MAX_TOKEN) / 2 { 8 } else { 1 }
}

impl Origin {
    fn here(tokens: pg_sys::Oid) -> Self {
        let (system, timeline) = pg::system_and_timeline();
        let database = referee::database();
        Origin {
            system: short_hash(system) >> 1,
            place: short_hash((u64::from(database) << 32) | u64::from(tokens.to_u32())),
            timeline,
        }
    }

    /// How many epochs further on tokens have to be drawn, if `next` would follow the last one, which was drawn at `from`.
    fn steps_from(self, from: Option<Self>, next: i64) -> i64 {
        let Some(from) = from else {
            return other(next);
        };
        if self == from {
            0
        } else if (self.system, self.place) == (from.system, from.place) {
            // Standbys may have been promoted since which we have not heard of, but for their timelines.
            (i64::from(self.timeline) - i64::from(from.timeline)).max(1)
        } else if (self.system, self.timeline) == (from.system, from.timeline) && next == 1 {
            // CREATE DATABASE from a template with the extension in it: as fresh as that.
            0
        } else {
            other(next)
        }
    }

    /// As a sequence keeps it: a positive number.
    fn pack(self) -> i64 {
        (i64::from(self.system) << 48) | (i64::from(self.place) << 32) | i64::from(self.timeline)
    }

    /// None for what was never set.
    fn unpack(packed: i64) -> Option<Self> {
        (packed > 0).then_some(Origin {
            system: (packed >> 48) as u16,
            place: (packed >> 32) as u16,
            timeline: packed as u32,
        })
    }
}

fn short_hash(number: u64) -> u16 {
    let mut hasher = SipHasher13::new();
    hasher.write_u64(number);
    hasher.finish() as u16
}

const OFFSET_BITS: u32 = 42;

fn epoch(token: i64) -> i64 {
    token >> OFFSET_BITS
}

/// The first token of an epoch that begins now: 1/4096 of a second since 2026. Only a server that draws more tokens than that from then on lets its numbers overtake
/// the clock. From 2060 on the clock tells nothing any more.
fn start_of(epoch: i64, now: Timestamp) -> i64 {
    /// 2026-01-01 00:00 UTC.
    const START: Timestamp = 9_497 * 86_400_000_000;
    let elapsed = i128::from(now.saturating_sub(START)) * 4_096 / 1_000_000;
    let offset = elapsed.clamp(0, (1 << OFFSET_BITS) - 1) as i64;
    (epoch << OFFSET_BITS) | offset
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn origin() -> impl Strategy<Value = Origin> {
        (0..1u16 << 15, any::<u16>(), 1..=u32::MAX).prop_map(|(system, place, timeline)| Origin {
            system,
            place,
            timeline,
        })
    }

    proptest! {
        #[test]
        fn an_origin_is_what_was_kept(origin in origin()) {
            prop_assert!(origin.pack() > 0);
            prop_assert_eq!(Origin::unpack(origin.pack()), Some(origin));
        }

        #[test]
        fn only_the_same_place_goes_on_without_a_step(a in origin(), b in origin(), next in 2..MAX_TOKEN) {
            prop_assert_eq!(a.steps_from(Some(a), next), 0);
            prop_assert_eq!(b.steps_from(Some(a), next) == 0, a == b);
        }

        /// However much of the WAL was lost, and whatever the clocks say: a server on a later timeline, which starts from what it has, is above what
        /// the earlier ones gave out.
        #[test]
        fn a_later_timeline_is_above_an_earlier_one(
            seen in 0..1_000i64, told in 0..1_000_000i64, first in 2..500u32, later in 1..500u32,
            clocks in any::<[Timestamp; 2]>(),
        ) {
            let at = |timeline| Origin { system: 1, place: 1, timeline };
            let [earlier, other] = [(first, clocks[0]), (first + later, clocks[1])].map(|(timeline, clock)| {
                start_of(epoch(seen) + at(timeline).steps_from(Some(at(1)), seen), clock)
            });
            prop_assert!(seen + told < earlier);
            // A server draws fewer numbers in its life than an epoch has.
            prop_assert!(earlier < other || epoch(earlier) < epoch(other));
        }
    }

    #[test]
    fn the_same_timeline_is_told_apart_by_the_clock() {
        let second = 1_000_000;
        let now = 9_830 * 86_400 * second;
        assert_eq!(start_of(1, now + second) - start_of(1, now), 4_096);
        assert_eq!(start_of(0, i64::MIN), 0);
        assert_eq!(start_of(2_047, i64::MAX), MAX_TOKEN);
        assert!(start_of(2_048, now) > MAX_TOKEN);
    }
}
