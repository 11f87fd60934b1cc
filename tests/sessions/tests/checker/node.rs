//! The nodes that take the lease from each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use lock_ext_sessions::{Answer, Session};
use tokio::time::sleep;

use super::dice::Dice;
use super::writes::LEASE;

/// By the names they hold the lease under.
pub const NODES: [&str; 2] = ["A", "B"];
pub const TTL: &str = "200 ms";

/// Acquires the lease whenever it can, and mostly lets it expire.
pub struct Node {
    pub name: &'static str,
    pub number: usize,
    pub session: Session,
    pub dice: Dice,
    /// The token that each node was granted last.
    pub heard: Arc<[AtomicI64; NODES.len()]>,
    pub stop: Arc<AtomicBool>,
}

impl Node {
    pub async fn run(mut self) {
        while !self.stop.load(Ordering::Relaxed) {
            match self.session.acq(LEASE, self.name, TTL).await.expect("a token or NULL") {
                Some(token) => self.hold(token).await.expect("holders meet no error"),
                None => sleep(self.dice.up_to(20)).await,
            }
        }
    }

    async fn hold(&mut self, token: i64) -> Answer<()> {
        self.heard[self.number].store(token, Ordering::Relaxed);
        // Mostly none.
        for _ in 0..self.dice.below(5).saturating_sub(2) {
            sleep(self.dice.up_to(150)).await;
            if self.session.ext(LEASE, token, TTL).await?.is_none() {
                return Ok(());
            }
        }
        sleep(self.dice.up_to(150)).await;
        match self.dice.below(12) {
            0 | 1 => drop(self.session.rel(LEASE, token).await?),
            2 => {
                let call = "SELECT lease_complete($1, $2, clock_timestamp())";
                self.session.one::<bool>(call, &[&LEASE, &token]).await?;
            }
            3 => {
                self.session.force(LEASE).await?;
                self.session.one::<i64>("SELECT lease_prune('0')", &[]).await?;
            }
            // Many grants, as fast as they come, so that some meet a commit at its narrowest.
            4 => self.hurry(token).await?,
            // It falls silent.
            _ => sleep(self.dice.up_to(300)).await,
        }
        Ok(())
    }

    async fn hurry(&self, mut token: i64) -> Answer<()> {
        for _ in 0..20 {
            self.session.rel(LEASE, token).await?;
            let Some(next) = self.session.acq(LEASE, self.name, TTL).await? else {
                return Ok(());
            };
            token = next;
            self.heard[self.number].store(token, Ordering::Relaxed);
        }
        Ok(())
    }
}
