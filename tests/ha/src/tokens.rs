use std::collections::BTreeSet;

/// All tokens that any server has returned to anybody, whether or not the grant was committed, or the server lived on.
#[derive(Debug, Default)]
pub struct Tokens {
    seen: BTreeSet<i64>,
}

impl Tokens {
    pub fn highest(&self) -> i64 {
        self.seen.last().copied().unwrap_or_default()
    }

    /// Those that were returned after `token`.
    pub fn above(&self, token: i64) -> Vec<i64> {
        self.seen.range(token + 1..).copied().collect()
    }

    /// One more, which has to be above all that were returned before.
    #[track_caller]
    pub fn returned(&mut self, token: i64) -> i64 {
        let highest = self.highest();
        assert!(token > highest, "{token} was returned after {highest}");
        self.seen.insert(token);
        token
    }

    /// Several, in the order in which they came.
    #[track_caller]
    pub fn returned_all(&mut self, tokens: &[i64]) {
        for &token in tokens {
            self.returned(token);
        }
    }

    /// Several that were returned at the same time to different sessions: above all earlier ones, and none twice.
    #[track_caller]
    pub fn returned_at_once(&mut self, tokens: &[i64]) {
        let before = self.highest();
        for &token in tokens {
            assert!(token > before, "{token} was returned after {before}");
            assert!(self.seen.insert(token), "{token} was returned twice");
        }
    }
}
