//! PostgreSQL's lock manager as the referee. This is the only file that talks to it.
//!
//! Every lease name has lock tags of its own, of a type that PostgreSQL leaves to extensions, so that they never meet anybody's
//! advisory locks. The standard modes say who may do what at the same time:
//!
//! | who | tag, mode | lets through | excludes |
//! | --- | --- | --- | --- |
//! | a transaction that has declared a token of the lease or written under it | writer, AccessShare | everything | nothing: it is there to be seen |
//! | that transaction from its last check to its end | lease, RowShare | other committers, heartbeats | grant, release |
//! | heartbeat, or an end that was put off to the commit, while it writes the row | lease, ShareUpdateExclusive | committers | heartbeat, grant, release |
//! | grant, release, completion, while it writes the row | lease, Exclusive | | all of the above but the first |
//! | a transaction that keeps take-overs waiting: `hold`, or prepared | hold, Share; lease, RowShare | | a grant |
//! | who waits in line | queue, Exclusive; the one who has it is the head | | each other |
//! | a session that a lease is bound to, as long as it lives | tenure, Exclusive | | nobody wants it; whether it is there is what is asked |
//! | who draws a token, while that takes | numbers, RowShare | each other | who sets a number |
//! | who sets a number, while that takes | numbers, Exclusive | | all of these |
//! | a transaction from its last check of an observed token to its end | observation, Share; Exclusive if the token is a higher one | the same token | a higher one |
//!
//! Only the first, the second and the last two are kept until the transaction ends. What a heartbeat, a grant or a release has written
//! excludes the others by itself from then on (see `table`), so a transaction may acquire any number of leases.

use crate::error::{Error, Result};
use crate::types::{Label, Timestamp, Token};
use crate::{pg, wait};
use pgrx::prelude::*;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;

/// What a tag is for; the low bits of its last number.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
enum Purpose {
    Lease = 1,
    Hold = 2,
    Writer = 3,
    Checkpoint = 4,
    Once = 5,
    Observation = 6,
    Queue = 7,
    Tenure = 8,
    Numbers = 9,
}

#[derive(Clone, Copy)]
pub struct Tag(pg_sys::LOCKTAG);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    AccessShare,
    RowShare,
    Heartbeat,
    Share,
    Exclusive,
}

impl Mode {
    fn number(self) -> pg_sys::LOCKMODE {
        (match self {
            Mode::AccessShare => pg_sys::AccessShareLock,
            Mode::RowShare => pg_sys::RowShareLock,
            Mode::Heartbeat => pg_sys::ShareUpdateExclusiveLock,
            Mode::Share => pg_sys::ShareLock,
            Mode::Exclusive => pg_sys::ExclusiveLock,
        }) as pg_sys::LOCKMODE
    }
}

/// The name in as many bits as tags have room for. Names that collide would wait for one another, nothing worse: rows are
/// found by name. The function is fixed, since sessions with an older library loaded use the same tags.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct NameHash {
    pub lock: u64,
    /// 55 bits, beside the token in the tag that shows a writer.
    mark: u64,
}

const MARK: u64 = (1 << 55) - 1;

pub fn hash(name: Label) -> NameHash {
    let mut hasher = SipHasher13::new_with_keys(0x6c6f_636b, 0x5f65_7874);
    hasher.write(name.bytes());
    let sum = hasher.finish128();
    NameHash { lock: sum.h1, mark: sum.h2 & MARK }
}

fn tag(purpose: Purpose, first: u32, second: u64) -> Tag {
    Tag(pg_sys::LOCKTAG {
        locktag_field1: first,
        locktag_field2: (second >> 32) as u32,
        locktag_field3: second as u32,
        locktag_field4: purpose as u16,
        locktag_type: pg_sys::LockTagType::LOCKTAG_USERLOCK as u8,
        locktag_lockmethodid: pg_sys::DEFAULT_LOCKMETHOD as u8,
    })
}

pub fn database() -> u32 {
    // SAFETY: set once, when the backend connects.
    unsafe { pg_sys::MyDatabaseId }.to_u32()
}

impl Tag {
    pub fn lease(name: NameHash) -> Tag {
        tag(Purpose::Lease, database(), name.lock)
    }

    pub fn hold(name: NameHash) -> Tag {
        tag(Purpose::Hold, database(), name.lock)
    }

    pub fn checkpoint(name: NameHash) -> Tag {
        tag(Purpose::Checkpoint, database(), name.lock)
    }

    pub fn once(key: NameHash) -> Tag {
        tag(Purpose::Once, database(), key.lock)
    }

    pub fn observation(resource: NameHash) -> Tag {
        tag(Purpose::Observation, database(), resource.lock)
    }

    /// Who waits for the lease. Its holder is the head of the line.
    pub fn queue(name: NameHash) -> Tag {
        tag(Purpose::Queue, database(), name.lock)
    }

    /// For who draws or sets a token, while that takes. Nobody waits for anything else with it.
    pub fn numbers() -> Tag {
        tag(Purpose::Numbers, database(), 0)
    }

    /// Kept by the session that was granted the token.
    pub fn tenure(token: Token) -> Tag {
        let Tag(mut tag) = tag(Purpose::Tenure, database(), token.0 as u64);
        tag.locktag_lockmethodid = pg_sys::USER_LOCKMETHOD as u8;
        Tag(tag)
    }

    /// Shows that a transaction acts under a token of a lease. There is no room for the database.
    fn writer(name: NameHash, token: Token) -> Tag {
        let Tag(mut tag) = tag(Purpose::Writer, name.mark as u32, token.0 as u64);
        let rest = name.mark >> 32;
        tag.locktag_field2 |= ((rest >> REST_BITS) as u32) << TOKEN_HIGH_BITS;
        tag.locktag_field4 |= ((rest & REST) as u16) << PURPOSE_BITS;
        Tag(tag)
    }
}

// How a writer's tag is packed: 32 bits of the mark; 11 bits of it and the 21 upper ones of the token; the 32 lower ones; 12 bits
// of the mark and the purpose.
const PURPOSE_BITS: u32 = 4;
const TOKEN_HIGH_BITS: u32 = 21;
const REST_BITS: u32 = 12;
const REST: u64 = (1 << REST_BITS) - 1;

/// The other way round: the mark and the token of a writer's tag.
fn written_under(tag: &pg_sys::LOCKTAG) -> (u64, Token) {
    let high = u64::from(tag.locktag_field2 & ((1 << TOKEN_HIGH_BITS) - 1));
    let rest = (u64::from(tag.locktag_field2 >> TOKEN_HIGH_BITS) << REST_BITS)
        | u64::from(tag.locktag_field4 >> PURPOSE_BITS);
    let token = (high << 32) | u64::from(tag.locktag_field3);
    ((rest << 32) | u64::from(tag.locktag_field1), Token(token as i64))
}

fn purpose(tag: &pg_sys::LOCKTAG) -> Option<u16> {
    let ours = u32::from(tag.locktag_type) == pg_sys::LockTagType::LOCKTAG_USERLOCK
        && u32::from(tag.locktag_lockmethodid) == pg_sys::DEFAULT_LOCKMETHOD;
    ours.then_some(tag.locktag_field4 & ((1 << PURPOSE_BITS) - 1))
}

fn acquire(tag: Tag, mode: Mode, wait: bool) -> Result<bool> {
    // SAFETY: the tag outlives the call. Errors (deadlock, cancel, lock_timeout) come as the server's.
    let result = pg::as_transaction(|| unsafe {
        pg_sys::LockAcquireExtended(
            &tag.0,
            mode.number(),
            false,
            !wait,
            false,
            std::ptr::null_mut(),
            #[cfg(feature = "pg18")]
            false,
        )
    });
    if result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL {
        return Ok(true);
    }
    // A call that would have waited comes back without the lock only when the lock table is full.
    if wait { Err(Error::LockTableFull) } else { Ok(false) }
}

/// Takes a lock until the transaction, or the savepoint it is taken in, ends.
pub fn lock(tag: Tag, mode: Mode) -> Result<()> {
    acquire(tag, mode, true).map(|_| ())
}

pub fn try_lock(tag: Tag, mode: Mode) -> Result<bool> {
    acquire(tag, mode, false)
}

pub fn unlock(tag: Tag, mode: Mode) {
    // SAFETY: the tag outlives the call; a lock that is not held would be a warning.
    pg::as_transaction(|| unsafe { pg_sys::LockRelease(&tag.0, mode.number(), false) });
}

/// The lock for a grant that does not wait in line: it waits while transactions that wrote under the lease are
/// committing, and gives false while one holds take-overs up for longer.
///
/// Trying again and again instead would never succeed beside a stream of commits, as nobody would queue behind us.
pub fn try_lock_for_grant(name: NameHash) -> Result<bool> {
    if try_lock(Tag::lease(name), Mode::Exclusive)? {
        return Ok(true);
    }
    // Nobody begins to hold while we have this, and who has begun has it: what is left to wait for is short.
    if !try_lock(Tag::hold(name), Mode::Exclusive)? {
        return Ok(false);
    }
    lock(Tag::lease(name), Mode::Exclusive)?;
    unlock(Tag::hold(name), Mode::Exclusive);
    Ok(true)
}

/// The lock for the end of a grant, which waits for who holds take-overs up as well. It waits where heartbeats do not queue.
pub fn lock_for_end(name: NameHash) -> Result<()> {
    if try_lock(Tag::lease(name), Mode::Exclusive)? {
        return Ok(());
    }
    lock(Tag::hold(name), Mode::Exclusive)?;
    lock(Tag::lease(name), Mode::Exclusive)?;
    unlock(Tag::hold(name), Mode::Exclusive);
    Ok(())
}

/// Waits until nobody keeps take-overs waiting any more.
pub fn wait_for_hold(name: NameHash) -> Result<()> {
    lock(Tag::hold(name), Mode::Exclusive)?;
    unlock(Tag::hold(name), Mode::Exclusive);
    Ok(())
}

/// Does anybody have the lock, or wait for it?
pub fn is_wanted(tag: Tag) -> bool {
    // SAFETY: looks up the shared lock table; the tag outlives the call.
    unsafe { pg_sys::LockWaiterCount(&tag.0) > 0 }
}

/// Takes a lock that the session keeps, whatever becomes of the transaction; false if somebody has it.
pub fn keep(tag: Tag) -> bool {
    // SAFETY: the tag outlives the call.
    let result = unsafe { pg_sys::LockAcquire(&tag.0, Mode::Exclusive.number(), true, true) };
    result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL
}

/// Does this session keep it?
pub fn is_kept(tag: Tag) -> bool {
    // SAFETY: looks up this process's own table of locks; the tag outlives the call.
    unsafe {
        pg_sys::LockHeldByMe(
            &tag.0,
            Mode::Exclusive.number(),
            #[cfg(not(any(feature = "pg15", feature = "pg16")))]
            false,
        )
    }
}

pub fn let_go(tag: Tag) {
    if is_kept(tag) {
        // SAFETY: the tag outlives the call.
        unsafe { pg_sys::LockRelease(&tag.0, Mode::Exclusive.number(), true) };
    }
}

/// Sets the latch of the session that has the lock exclusively.
pub fn wake_holder(tag: Tag) {
    // SAFETY: the list, in the current memory context, ends with an invalid entry. The entries of the array of processes stay where they
    // are, and a latch that is set without need does no harm.
    unsafe {
        let mut count = 0;
        let mode = Mode::Exclusive.number();
        let holders = pg_sys::GetLockConflicts(&tag.0, mode, &mut count);
        for i in 0..count as usize {
            wait::wake(&*holders.add(i));
        }
    }
}

/// Shows that this transaction acts under a token of the lease.
pub fn show_writer(name: NameHash, token: Token) -> Result<()> {
    lock(Tag::writer(name, token), Mode::AccessShare)
}

/// Keeps grants away from here until the transaction ends.
pub fn hold(name: NameHash) -> Result<()> {
    lock(Tag::hold(name), Mode::Share)?;
    lock(Tag::lease(name), Mode::RowShare)
}

/// An open transaction that acts under a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    mark: u64,
    pub token: Token,
    /// None for a prepared transaction.
    pub pid: Option<i32>,
}

impl Writer {
    pub fn is_of(&self, name: NameHash) -> bool {
        self.mark == name.mark
    }

    pub fn mark(&self) -> u64 {
        self.mark
    }
}

impl NameHash {
    pub fn mark(&self) -> u64 {
        self.mark
    }
}

/// All writers of this database.
pub fn writers() -> Vec<Writer> {
    // SAFETY: the result is ours, in the current memory context, with `nelements` entries.
    let locks = unsafe {
        let data = pg_sys::GetLockStatusData();
        std::slice::from_raw_parts((*data).locks, (*data).nelements as usize)
    };
    let of = |wanted: Purpose| {
        let wanted = Some(wanted as u16);
        locks.iter().filter(move |lock| purpose(&lock.locktag) == wanted && lock.holdMask != 0)
    };
    // Prepared transactions have no process, but all of them hold their leases, by tags that name the database.
    let prepared: Vec<(i32, u32)> = of(Purpose::Lease)
        .filter(|lock| lock.pid == 0 && lock.locktag.locktag_field1 == database())
        .map(backend)
        .collect();
    of(Purpose::Writer)
        .filter(|lock| match lock.pid {
            0 => prepared.contains(&backend(lock)),
            pid => pg::database_of(pid) == Some(database()),
        })
        .map(|lock| {
            let (mark, token) = written_under(&lock.locktag);
            Writer { mark, token, pid: (lock.pid != 0).then_some(lock.pid) }
        })
        .collect()
}

/// Who stands in line for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    lock: u64,
    pub pid: i32,
    /// None for the head of the line.
    pub since: Option<Timestamp>,
}

impl Waiter {
    pub fn is_for(&self, name: NameHash) -> bool {
        self.lock == name.lock
    }
}

/// All waiters of this database, each line in its order.
pub fn waiters() -> Vec<Waiter> {
    // SAFETY: as in `writers`.
    let locks = unsafe {
        let data = pg_sys::GetLockStatusData();
        std::slice::from_raw_parts((*data).locks, (*data).nelements as usize)
    };
    let mut waiters: Vec<_> = locks
        .iter()
        .filter(|lock| {
            purpose(&lock.locktag) == Some(Purpose::Queue as u16)
                && lock.locktag.locktag_field1 == database()
        })
        .map(|lock| {
            let name = (u64::from(lock.locktag.locktag_field2) << 32)
                | u64::from(lock.locktag.locktag_field3);
            let waits = lock.holdMask == 0;
            // Not set yet for a moment after somebody has come.
            let since = (waits && lock.waitStart > 0).then_some(lock.waitStart);
            let place = (name, waits, since.unwrap_or(Timestamp::MAX));
            (place, Waiter { lock: name, pid: lock.pid, since })
        })
        .collect();
    waiters.sort_by_key(|(place, _)| *place);
    waiters.into_iter().map(|(_, waiter)| waiter).collect()
}

/// Tells transactions apart, also prepared ones, whose pid is zero.
#[cfg(any(feature = "pg15", feature = "pg16"))]
fn backend(lock: &pg_sys::LockInstanceData) -> (i32, u32) {
    (lock.backend, lock.lxid)
}

#[cfg(not(any(feature = "pg15", feature = "pg16")))]
fn backend(lock: &pg_sys::LockInstanceData) -> (i32, u32) {
    (lock.vxid.procNumber, lock.vxid.localTransactionId)
}

/// How many leases one transaction may act under: with two entries each at its commit, a quarter of the server's lock table, so that
/// the others are not starved.
pub fn most_writers() -> usize {
    // SAFETY: set at server start.
    let entries = unsafe { i64::from(pg_sys::max_locks_per_xact) * i64::from(pg_sys::MaxBackends) };
    usize::try_from(entries / 8).unwrap_or(1).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_writers_tag_gives_back_name_and_token(mark in 0..=MARK, token in 0..=crate::types::MAX_TOKEN) {
            let Tag(tag) = Tag::writer(NameHash { lock: 0, mark }, Token(token));
            prop_assert_eq!(written_under(&tag), (mark, Token(token)));
            prop_assert_eq!(purpose(&tag), Some(Purpose::Writer as u16));
        }
    }
}
