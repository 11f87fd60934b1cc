//! PostgreSQL's lock modes, and which of them exclude one another.

/// A lock mode of PostgreSQL, in the order and with the numbers of `storage/lockdefs.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    AccessShare = 1,
    RowShare,
    RowExclusive,
    ShareUpdateExclusive,
    Share,
    ShareRowExclusive,
    Exclusive,
    AccessExclusive,
}

use Mode::*;

pub const MODES: [Mode; 8] = [
    AccessShare,
    RowShare,
    RowExclusive,
    ShareUpdateExclusive,
    Share,
    ShareRowExclusive,
    Exclusive,
    AccessExclusive,
];

/// `LockConflicts` of `src/backend/storage/lmgr/lock.c`, line by line; the same in PostgreSQL 15 to 18. It is also the table
/// "Conflicting Lock Modes" of the chapter on explicit locking.
const CONFLICTS: [&[Mode]; 8] = [
    // AccessShare
    &[AccessExclusive],
    // RowShare
    &[Exclusive, AccessExclusive],
    // RowExclusive
    &[Share, ShareRowExclusive, Exclusive, AccessExclusive],
    // ShareUpdateExclusive
    &[ShareUpdateExclusive, Share, ShareRowExclusive, Exclusive, AccessExclusive],
    // Share
    &[RowExclusive, ShareUpdateExclusive, ShareRowExclusive, Exclusive, AccessExclusive],
    // ShareRowExclusive
    &[RowExclusive, ShareUpdateExclusive, Share, ShareRowExclusive, Exclusive, AccessExclusive],
    // Exclusive
    &[
        RowShare,
        RowExclusive,
        ShareUpdateExclusive,
        Share,
        ShareRowExclusive,
        Exclusive,
        AccessExclusive,
    ],
    // AccessExclusive
    &MODES,
];

impl Mode {
    pub fn conflicts(self, other: Mode) -> bool {
        CONFLICTS[self as usize - 1].contains(&other)
    }
}

/// What is locked, for one lease (`referee::Purpose`). The tag that shows a writer is left out: it is only ever locked in
/// AccessShare, and nobody asks for it in another mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tag {
    Lease,
    Hold,
}

pub type Lock = (Tag, Mode);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_are_mutual() {
        for a in MODES {
            for b in MODES {
                assert_eq!(a.conflicts(b), b.conflicts(a), "{a:?}, {b:?}");
            }
        }
    }

    /// The documentation's table has 38 crosses.
    #[test]
    fn there_are_as_many_conflicts_as_documented() {
        assert_eq!(CONFLICTS.iter().map(|row| row.len()).sum::<usize>(), 38);
    }
}
