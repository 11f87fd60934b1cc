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
//! **Somebody changed the sequence:** `setval`, RESTART, CACHE, CYCLE, UNLOGGED, a restore of its position. So a second sequence, which nobody looks at, gives the
//! numbers while the two are close to each other. Where they are not, the higher one counts.
//!
//! All of it is kept in sequences, for they are what no rollback takes back, and no open transaction keeps others from. One lock is around it,
//! which is taken last and given back at once; who only draws shares it.

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
#[derive(Clone, Copy, PartialEq)]
struct Sequences {
    tokens: pg_sys::Oid,
    /// Gives the numbers, as a rule; not dumped, so that no restore sets both back.
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

    fn find_locked() -> Result<Self> {
        loop {
            let found = Self::find()?;
            found.counts().chain(found.origin).for_each(sequence::lock);
            // While we waited the extension may have been dropped, or made anew.
            if found == Self::find()? {
                return Ok(found);
            }
        }
    }

    fn drawn(self, number: i64) -> Drawn {
        // Of both: one of them may be unlogged, and have no place in the WAL.
        let logged = self.counts().map(sequence::logged).max().unwrap_or_default();
        Drawn { token: Token(number), logged }
    }

    fn last(self) -> i64 {
        self.counts().map(sequence::position).max().unwrap_or_default()
    }
}

/// Runs `work` while nobody else draws or sets a number. The sequences are locked before, as whoever alters one has it locked already.
fn alone<T>(at: Sequences, work: impl FnOnce(Sequences) -> Result<T>) -> Result<T> {
    referee::lock(Tag::numbers(), Mode::Exclusive)?;
    let result = work(at);
    referee::unlock(Tag::numbers(), Mode::Exclusive);
    result
}

/// Locks the sequences, which somebody may be altering, before the caller takes a lock that others wait for.
pub fn prepare() -> Result<()> {
    Sequences::find_locked().map(drop)
}

/// Draws a token above `last`, under the lock of the lease that `last` was granted by, and after [`prepare`]. `highest` looks for the highest one of all rows.
pub fn draw(last: Option<Token>, highest: impl FnOnce() -> Option<Token>) -> Result<Drawn> {
    let at = Sequences::find()?;
    referee::lock(Tag::numbers(), Mode::RowShare)?;
    let drawn = draw_beside_others(at, last);
    referee::unlock(Tag::numbers(), Mode::RowShare);
    match drawn {
        Some(drawn) => Ok(drawn),
        None => draw_alone(at, last, highest),
    }
}

/// While nothing has happened the second sequence gives the number, and the first one, which people see, counts along. Others draw at the same time, so the
/// two may be apart by as much as there are sessions.
fn draw_beside_others(at: Sequences, last: Option<Token>) -> Option<Drawn> {
    let (guard, origin) = (at.guard?, at.origin?);
    let most_apart = pg::most_sessions();
    // At the beginning a restore of the other one would not show; the end is for one at a time.
    let usual = most_apart + 1..sequence::end(at.tokens).min(MAX_TOKEN) - most_apart;
    if sequence::position(origin) != Origin::here(at.tokens).pack()
        || !usual.contains(&sequence::position(guard))
    {
        return None;
    }
    let number = sequence::draw(guard);
    if last.is_some_and(|last| number <= last.0) {
        return None;
    }
    let apart = sequence::draw(at.tokens).abs_diff(number);
    (apart <= most_apart.unsigned_abs()).then(|| at.drawn(number))
}

/// What a restore, a promotion or a change by hand makes necessary, and the first token.
fn draw_alone(
    at: Sequences,
    last: Option<Token>,
    highest: impl FnOnce() -> Option<Token>,
) -> Result<Drawn> {
    alone(at, |at| {
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
        let moved = before.map_or(0, |before| here.steps_from(before, next));
        // Only a restore sets the one sequence and not the other, which is not dumped.
        let is_restored = second == 1 && first > 1;
        // Rows that are ahead have come from elsewhere. Where a first token is drawn, those of all names are looked at.
        let is_first = next == 1 || is_restored || moved > 0;
        let last = if is_first { highest() } else { last }.map_or(0, |token| token.0);
        let from = next.max(last);
        let steps = match here.beyond(from) {
            beyond if (is_restored || next <= last) && moved < beyond => moved + beyond,
            _ => moved,
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
        Ok(at.drawn(number))
    })
}

/// The last token that was drawn, zero for none.
pub fn peek() -> Result<Token> {
    alone(Sequences::find_locked()?, |at| Ok(Token(at.last())))
}

/// From now on every new token is above `floor`.
pub fn raise_floor(floor: Token) -> Result<Token> {
    if !(0..MAX_TOKEN).contains(&floor.0) {
        return Err(Error::FloorRange);
    }
    alone(Sequences::find_locked()?, |at| {
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
            let current = sequence::position(count);
            // What tells that the other one was restored is left as it is.
            if current > 0 || last == 0 || count == at.tokens {
                sequence::raise(count, current, floor);
            }
        }
        pg::force_sync_commit();
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
    /// A hash of the system identifier and of what is made anew with the extension.
    maker: u32,
    /// Of the database, which may be a copy of another one.
    database: u32,
    timeline: u32,
}

// How an origin is packed into a positive number of 63 bits.
const MAKER_BITS: u32 = 22;
const DATABASE_BITS: u32 = 23;
const TIMELINE_BITS: u32 = 18;

impl Origin {
    fn here(tokens: pg_sys::Oid) -> Self {
        let (system, timeline) = pg::system_and_timeline();
        Origin {
            maker: hash([system, tokens.to_u32().into()]) & ((1 << MAKER_BITS) - 1),
            database: hash([referee::database().into(), 0]) & ((1 << DATABASE_BITS) - 1),
            timeline: timeline & ((1 << TIMELINE_BITS) - 1),
        }
    }

    /// How many epochs further on tokens have to be drawn here, if `next` would follow the last one, which was drawn at `from`.
    fn steps_from(self, from: Option<Self>, next: i64) -> i64 {
        let Some(from) = from else {
            return self.beyond(next);
        };
        if self == from {
            0
        } else if (self.maker, self.database) == (from.maker, from.database) {
            // Standbys may have been promoted since which we have not heard of, but for their timelines.
            (i64::from(self.timeline) - i64::from(from.timeline)).clamp(1, 256)
        } else if (self.maker, self.timeline) == (from.maker, from.timeline) && next == 1 {
            // CREATE DATABASE from a template with the extension in it: as fresh as that.
            0
        } else {
            self.beyond(next)
        }
    }

    /// How many epochs to go on from a token that another server gave out. A dump, or a row, may be older than the last fail-overs of that server; so we
    /// leave some out, as long as there are many left. And one more for each fail-over of ours: the server that this one takes over from may
    /// have been in the same place.
    fn beyond(self, token: i64) -> i64 {
        if epoch(token) >= epoch(MAX_TOKEN) / 2 {
            return 1;
        }
        8 + i64::from(self.timeline.saturating_sub(1).min(64))
    }

    fn pack(self) -> i64 {
        let place = (i64::from(self.maker) << DATABASE_BITS) | i64::from(self.database);
        (place << TIMELINE_BITS) | i64::from(self.timeline)
    }

    /// None for what was never set.
    fn unpack(packed: i64) -> Option<Self> {
        let part = |shift: u32, bits: u32| ((packed >> shift) & ((1 << bits) - 1)) as u32;
        (packed > 0).then(|| Origin {
            maker: part(DATABASE_BITS + TIMELINE_BITS, MAKER_BITS),
            database: part(TIMELINE_BITS, DATABASE_BITS),
            timeline: part(0, TIMELINE_BITS),
        })
    }
}

fn hash(numbers: [u64; 2]) -> u32 {
    let mut hasher = SipHasher13::new();
    numbers.into_iter().for_each(|number| hasher.write_u64(number));
    hasher.finish() as u32
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
        (0..1u32 << MAKER_BITS, 0..1u32 << DATABASE_BITS, 1..1u32 << TIMELINE_BITS)
            .prop_map(|(maker, database, timeline)| Origin { maker, database, timeline })
    }

    fn at(timeline: u32) -> Origin {
        Origin { maker: 1, database: 1, timeline }
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
        /// the earlier ones gave out. The same if what they all start from is a restored dump.
        #[test]
        fn a_later_timeline_is_above_an_earlier_one(
            seen in 0..1_000i64, told in 0..1_000_000i64, first in 2..32u32, later in 1..32u32,
            clocks in any::<[Timestamp; 2]>(), is_restored: bool,
        ) {
            let from = if is_restored { Origin { maker: 2, ..at(7) } } else { at(1) };
            let [earlier, other] = [(first, clocks[0]), (first + later, clocks[1])]
                .map(|(timeline, clock)| start_of(epoch(seen) + at(timeline).steps_from(Some(from), seen), clock));
            prop_assert!(seen + told < earlier);
            // A server draws fewer numbers in its life than an epoch has.
            prop_assert!(epoch(earlier) < epoch(other));
        }
    }

    #[test]
    fn a_copy_of_a_database_without_tokens_is_fresh_and_an_extension_made_anew_is_not() {
        let copy = Origin { database: 2, ..at(1) };
        assert_eq!(copy.steps_from(Some(at(1)), 1), 0);
        assert_eq!(copy.steps_from(Some(at(1)), 2), 8);
        assert_eq!(Origin { maker: 2, ..at(1) }.steps_from(Some(at(1)), 1), 8);
        assert_eq!(at(1).steps_from(None, 1), 8);
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
