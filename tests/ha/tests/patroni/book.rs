//! What clients were told, in the order in which they were. Servers may forget; this does not.

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

use lock_ext_ha::EPOCH;

#[derive(Clone)]
pub struct Told {
    pub lease: String,
    pub token: i64,
    /// By a server that was cut off from the network then.
    pub inside: bool,
    /// The COMMIT of the transaction in which it was granted was answered.
    pub committed: bool,
}

/// A chunk of the batch whose COMMIT was answered.
#[derive(Clone)]
pub struct Paid {
    pub attempt: i64,
    pub players: i32,
    pub inside: bool,
}

#[derive(Default)]
pub struct Book {
    told: Mutex<Vec<Told>>,
    paid: Mutex<Vec<Paid>>,
    attempts: AtomicI64,
}

impl Book {
    /// A grant was answered. Gives the place of the line, for [`Book::committed`].
    pub fn told(&self, lease: &str, token: i64, inside: bool) -> usize {
        let mut told = self.told.lock().expect("no panic holds it");
        told.push(Told { lease: lease.into(), token, inside, committed: false });
        told.len() - 1
    }

    pub fn committed(&self, place: usize) {
        self.told.lock().expect("no panic holds it")[place].committed = true;
    }

    /// A number for one try to pay a chunk, which its rows carry.
    pub fn attempt(&self) -> i64 {
        self.attempts.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub fn paid(&self, attempt: i64, players: i32, inside: bool) {
        let mut paid = self.paid.lock().expect("no panic holds it");
        paid.push(Paid { attempt, players, inside });
    }

    pub fn all_told(&self) -> Vec<Told> {
        self.told.lock().expect("no panic holds it").clone()
    }

    pub fn all_paid(&self) -> Vec<Paid> {
        self.paid.lock().expect("no panic holds it").clone()
    }

    /// How many lines there are: tokens, chunks.
    pub fn lines(&self) -> (usize, usize) {
        let told = self.told.lock().expect("no panic holds it").len();
        (told, self.paid.lock().expect("no panic holds it").len())
    }

    /// No number was told twice, and those of a lease rose.
    pub fn check_tokens(&self) {
        let told = self.all_told();
        let distinct: HashSet<_> = told.iter().map(|told| told.token).collect();
        assert_eq!(distinct.len(), told.len(), "a token was told twice: {}", self.tokens());
        let mut leases: Vec<_> = told.iter().map(|told| told.lease.clone()).collect();
        leases.sort();
        leases.dedup();
        for lease in leases {
            let tokens: Vec<_> =
                told.iter().filter(|told| told.lease == lease).map(|told| told.token).collect();
            for pair in tokens.windows(2) {
                let [before, after] = pair else { unreachable!("windows of two") };
                assert!(
                    before < after,
                    "lease {lease}: {after} was told after {before}: {}",
                    self.tokens()
                );
            }
        }
    }

    /// The tokens in one line: each run of one epoch, by its lowest and highest, and how many were told.
    pub fn tokens(&self) -> String {
        let mut runs: Vec<(i64, i64, i64, usize)> = Vec::new();
        for Told { token, .. } in self.all_told() {
            let (epoch, offset) = (token / EPOCH, token % EPOCH);
            match runs.last_mut() {
                Some((last, from, to, count)) if *last == epoch => {
                    (*from, *to) = ((*from).min(offset), (*to).max(offset));
                    *count += 1;
                }
                _ => runs.push((epoch, offset, offset, 1)),
            }
        }
        let runs: Vec<_> = runs
            .iter()
            .map(|(epoch, from, to, count)| format!("{count} of epoch {epoch} ({from} to {to})"))
            .collect();
        runs.join(", ")
    }
}
