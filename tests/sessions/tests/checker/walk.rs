//! The checker: walks the commits and knows at each of them which token is current.
//!
//! The rule is the promise: what was written under a token commits before a higher one is granted. A release is no grant, but a
//! released token is refused too, with one exception that the extension states: a release that was put off to its transaction's commit waits
//! for nobody, and a write that had passed its last check by then commits beside it. Everything that such a write changed stands in the
//! write-ahead log before the release does, and that is what tells it from a write that came too late.
//!
//! Tokens of other systems never go down from commit to commit.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use super::log::{Lsn, Transaction, What};

#[derive(Debug, Default)]
pub struct Walk {
    now: Tenure,
    observed: i64,
    pub counts: Counts,
    pub violations: Vec<Violation>,
}

/// The last grant that was committed.
#[derive(Clone, Debug, Default)]
struct Tenure {
    token: i64,
    ended: Option<End>,
}

#[derive(Clone, Copy, Debug)]
struct End {
    at: Lsn,
    /// To the commit of a transaction that may have done other things, too.
    put_off: bool,
}

#[derive(Debug, Default, PartialEq)]
pub struct Counts {
    /// Transactions that wrote under a token.
    pub commits: usize,
    /// Of these, those that have at least one violation.
    pub wrong_commits: usize,
    /// Notes by their kind.
    pub writes: BTreeMap<String, usize>,
    pub transactions: HashSet<i64>,
    pub grants: usize,
    /// Grants of a lease that its holder has not released.
    pub take_overs: usize,
    pub ends: usize,
    /// Committed beside an end that was put off.
    pub beside_an_end: usize,
}

#[derive(Debug, PartialEq)]
pub struct Violation {
    pub xid: String,
    pub at: Lsn,
    pub what: What,
    pub why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Why {
    Superseded {
        by: i64,
    },
    Released,
    NeverGranted,
    /// A fenced table was changed, and the workload did not say so.
    WithoutNote,
    /// A grant whose token is not above all earlier ones, or an observed token that is below an earlier one.
    TooLow {
        after: i64,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "transaction {}, {}: {:?}: {:?}", self.xid, self.at, self.why, self.what)
    }
}

impl Walk {
    pub fn over(&mut self, transactions: &[Transaction]) {
        for transaction in transactions {
            self.step(transaction);
        }
    }

    /// One commit: everything in it happens at once, so what the transaction itself granted is current too.
    fn step(&mut self, transaction: &Transaction) {
        let (before, observed) = (self.now.clone(), self.observed);
        let changes = &transaction.changes;
        let tokens = |of: fn(&What) -> Option<i64>| -> HashSet<i64> {
            changes.iter().filter_map(|change| of(&change.what)).collect()
        };
        let noted = tokens(What::noted);
        let mut granted = tokens(What::granted);
        granted.remove(&before.token);
        let last = changes.iter().filter(|c| c.what.is_write()).map(|c| c.at).max();
        let put_off = changes.iter().any(|change| change.what == What::PutOff);
        let mut is_wrong = false;
        for change in changes {
            let wrong = match &change.what {
                What::Lease { token, held } => {
                    self.lease(*token, *held, End { at: change.at, put_off })
                }
                What::PutOff => None,
                What::Pruned => {
                    self.now.ended.get_or_insert(End { at: change.at, put_off: false });
                    None
                }
                What::Note { transaction, kind, token } => {
                    self.count(*transaction, kind);
                    let refused = before.refuses(*token, last);
                    refused.filter(|_| !granted.contains(token))
                }
                What::Written { token, .. } => {
                    let is_noted = token.map_or(!noted.is_empty(), |t| noted.contains(&t));
                    (!is_noted).then_some(Why::WithoutNote)
                }
                What::Observed { transaction, token } => {
                    self.count(*transaction, "observe");
                    self.observed = self.observed.max(*token);
                    (*token < observed).then_some(Why::TooLow { after: observed })
                }
            };
            is_wrong |= wrong.is_some();
            self.violations.extend(wrong.map(|why| Violation {
                xid: transaction.xid.clone(),
                at: change.at,
                what: change.what.clone(),
                why,
            }));
        }
        if !noted.is_empty() {
            let is_beside = before.ended.is_some() && noted.contains(&before.token);
            self.counts.commits += 1;
            self.counts.wrong_commits += usize::from(is_wrong);
            self.counts.beside_an_end += usize::from(is_beside && !is_wrong);
        }
    }

    fn lease(&mut self, token: i64, held: bool, end: End) -> Option<Why> {
        let mut wrong = None;
        if token != self.now.token {
            let last = std::mem::replace(&mut self.now, Tenure { token, ended: None });
            self.counts.grants += 1;
            self.counts.take_overs += usize::from(last.token > 0 && last.ended.is_none());
            wrong = (token < last.token).then_some(Why::TooLow { after: last.token });
        }
        if !held && self.now.ended.is_none() {
            self.counts.ends += 1;
            self.now.ended = Some(end);
        }
        wrong
    }

    fn count(&mut self, transaction: i64, kind: &str) {
        self.counts.transactions.insert(transaction);
        *self.counts.writes.entry(kind.to_owned()).or_default() += 1;
    }
}

impl Tenure {
    /// Why a transaction that wrote under `token`, the last time at `last`, must not commit now.
    fn refuses(&self, token: i64, last: Option<Lsn>) -> Option<Why> {
        if token < self.token {
            return Some(Why::Superseded { by: self.token });
        }
        if token > self.token {
            return Some(Why::NeverGranted);
        }
        let end = self.ended?;
        let came_before = end.put_off && last.is_some_and(|last| last < end.at);
        (!came_before).then_some(Why::Released)
    }
}

impl What {
    fn noted(&self) -> Option<i64> {
        if let Self::Note { token, .. } = self { Some(*token) } else { None }
    }

    /// Or extended.
    fn granted(&self) -> Option<i64> {
        if let Self::Lease { token, .. } = self { Some(*token) } else { None }
    }

    fn is_write(&self) -> bool {
        matches!(self, Self::Note { .. } | Self::Written { .. })
    }
}

mod tests {
    use super::super::log::Change;
    use super::*;

    /// Transactions of which each is the whole of what stands between two commits.
    fn walk(transactions: &[Vec<What>]) -> Walk {
        let mut at = 0;
        let placed: Vec<Vec<(Lsn, What)>> = transactions
            .iter()
            .map(|changes| {
                changes
                    .iter()
                    .map(|what| {
                        at += 1;
                        (at, what.clone())
                    })
                    .collect()
            })
            .collect();
        walk_at(&placed)
    }

    /// The same with places in the write-ahead log, for transactions that were open at the same time.
    fn walk_at(transactions: &[Vec<(Lsn, What)>]) -> Walk {
        let mut walk = Walk::default();
        for (xid, changes) in transactions.iter().enumerate() {
            let changes =
                changes.iter().map(|(at, what)| Change { at: *at, what: what.clone() }).collect();
            walk.over(&[Transaction { xid: xid.to_string(), changes }]);
        }
        walk
    }

    fn why(walk: &Walk) -> Vec<Why> {
        walk.violations.iter().map(|violation| violation.why).collect()
    }

    fn grant(token: i64) -> What {
        What::Lease { token, held: true }
    }

    fn release(token: i64) -> What {
        What::Lease { token, held: false }
    }

    fn note(token: i64) -> What {
        What::Note { transaction: token, kind: "insert".to_owned(), token }
    }

    fn row(token: i64) -> What {
        What::Written { table: "public.plain".to_owned(), token: Some(token) }
    }

    fn gone() -> What {
        What::Written { table: "public.plain".to_owned(), token: None }
    }

    fn write(token: i64) -> Vec<What> {
        vec![note(token), row(token)]
    }

    #[test]
    fn writes_under_the_current_token_are_right() {
        let walk = walk(&[
            vec![grant(1)],
            write(1),
            vec![grant(1)],
            write(1),
            vec![release(1)],
            vec![grant(3)],
            vec![note(3), gone()],
            vec![grant(4)],
            write(4),
        ]);
        assert_eq!(why(&walk), []);
        assert_eq!((walk.counts.commits, walk.counts.wrong_commits), (4, 0));
        assert_eq!((walk.counts.grants, walk.counts.take_overs, walk.counts.ends), (3, 1, 1));
        assert_eq!(walk.counts.writes["insert"], 4);
        assert_eq!(walk.counts.transactions, HashSet::from([1, 3, 4]));
    }

    #[test]
    fn a_write_under_a_superseded_token_is_wrong() {
        let walk = walk(&[vec![grant(1)], vec![grant(2)], write(1), write(2)]);
        assert_eq!(why(&walk), [Why::Superseded { by: 2 }]);
        assert_eq!((walk.counts.commits, walk.counts.wrong_commits), (2, 1));
    }

    /// Where its rows stand in the log does not matter, only where its commit does.
    #[test]
    fn a_write_before_the_grant_that_commits_after_it_is_wrong() {
        let walk =
            walk_at(&[vec![(1, grant(1))], vec![(4, grant(2))], vec![(2, note(1)), (3, row(1))]]);
        assert_eq!(why(&walk), [Why::Superseded { by: 2 }]);
    }

    #[test]
    fn one_superseded_token_among_two_is_wrong() {
        let both = vec![note(1), row(1), note(2), row(2)];
        let walk = walk(&[vec![grant(1)], vec![grant(2)], both]);
        assert_eq!(why(&walk), [Why::Superseded { by: 2 }]);
    }

    #[test]
    fn a_write_under_a_token_that_nobody_was_granted_is_wrong() {
        let walk = walk(&[write(1), vec![grant(1)], write(2)]);
        assert_eq!(why(&walk), [Why::NeverGranted, Why::NeverGranted]);
    }

    #[test]
    fn a_write_after_the_release_is_wrong() {
        let walk = walk(&[vec![grant(1)], vec![release(1)], write(1)]);
        assert_eq!(why(&walk), [Why::Released]);
    }

    #[test]
    fn a_write_after_the_lease_is_pruned_is_wrong() {
        let walk = walk(&[vec![grant(1)], vec![release(1)], vec![What::Pruned], write(1)]);
        assert_eq!(why(&walk), [Why::Released]);
        assert_eq!(walk.counts.ends, 1);
    }

    #[test]
    fn a_release_in_the_transaction_that_wrote_is_right() {
        let walk = walk(&[vec![grant(1)], vec![note(1), row(1), release(1)], vec![grant(2)]]);
        assert_eq!(why(&walk), []);
        assert_eq!((walk.counts.ends, walk.counts.take_overs), (1, 0));
    }

    #[test]
    fn a_grant_in_the_transaction_that_wrote_is_right() {
        let tenure = vec![grant(2), note(2), row(2), release(2)];
        let over_its_own = vec![note(3), row(3), grant(4), note(4), row(4)];
        let walk = walk(&[vec![grant(1)], tenure, vec![grant(3)], over_its_own, write(4)]);
        assert_eq!(why(&walk), []);
    }

    #[test]
    fn only_a_write_that_was_complete_may_commit_beside_a_release_that_was_put_off() {
        let first = vec![(1, grant(1))];
        let releaser = vec![(2, What::PutOff), (5, release(1))];
        let beside = vec![(3, note(1)), (4, row(1))];
        let late = vec![(3, note(1)), (6, row(1))];
        let walked = walk_at(&[first.clone(), releaser.clone(), beside.clone()]);
        assert_eq!((why(&walked), walked.counts.beside_an_end), (vec![], 1));
        assert_eq!(why(&walk_at(&[first.clone(), releaser.clone(), late])), [Why::Released]);
        // The next grant ends it.
        let walked = walk_at(&[first.clone(), releaser, vec![(6, grant(2))], beside.clone()]);
        assert_eq!(why(&walked), [Why::Superseded { by: 2 }]);
        // A release of its own waits for who is committing.
        assert_eq!(why(&walk_at(&[first, vec![(5, release(1))], beside])), [Why::Released]);
    }

    #[test]
    fn a_change_that_nobody_announced_is_wrong() {
        let walk = walk(&[vec![grant(2)], vec![row(2)], vec![gone()], vec![note(2), row(1)]]);
        assert_eq!(why(&walk), [Why::WithoutNote; 3]);
    }

    #[test]
    fn a_token_that_is_not_higher_is_wrong() {
        let walk = walk(&[vec![grant(2)], vec![release(2)], vec![grant(1)]]);
        assert_eq!(why(&walk), [Why::TooLow { after: 2 }]);
    }

    #[test]
    fn an_observed_token_that_goes_down_is_wrong() {
        let observed = |token| What::Observed { transaction: token, token };
        let walk = walk(&[
            vec![observed(5), observed(7)],
            vec![observed(7)],
            vec![observed(6)],
            vec![observed(8)],
        ]);
        assert_eq!(why(&walk), [Why::TooLow { after: 7 }]);
    }
}
