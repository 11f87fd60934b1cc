//! What the checker found.

use crate::promises::{Promise, SIGHTS};
use crate::{Action, Protocol};
use stateright::{Checker, HasDiscoveries, Model};
use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

pub struct Report {
    pub states: usize,
    pub steps: usize,
    pub depth: usize,
    pub took: Duration,
    /// With the shortest way to break it.
    pub broken: Vec<(Promise, Vec<Action>)>,
    pub seen: Vec<&'static str>,
}

impl Report {
    /// Explores all states within the bounds.
    pub fn of(protocol: &Protocol) -> Self {
        let begin = Instant::now();
        let checker = protocol.clone().checker().threads(THREADS).spawn_bfs().join();
        let took = begin.elapsed();
        let found = checker.discoveries();
        Report {
            states: checker.unique_state_count(),
            steps: checker.state_count(),
            depth: checker.max_depth(),
            took,
            broken: Promise::ALL
                .into_iter()
                .filter(|promise| found.contains_key(promise.name()))
                .map(|promise| (promise, shortest(protocol, promise)))
                .collect(),
            seen: SIGHTS
                .iter()
                .map(|(name, _)| *name)
                .filter(|name| found.contains_key(name))
                .collect(),
        }
    }
}

/// The checker reports the last way that it finds and not the shortest, so we look a step deeper at a time.
fn shortest(protocol: &Protocol, promise: Promise) -> Vec<Action> {
    let name = promise.name();
    let to_depth = |depth| {
        let checker = protocol.clone().checker().target_max_depth(depth);
        let checker = checker.finish_when(HasDiscoveries::AnyOf(BTreeSet::from([name])));
        checker.spawn_bfs().join().discovery(name)
    };
    (1..).find_map(to_depth).map(|path| path.into_actions()).unwrap_or_default()
}

/// As many as this project asks of a machine.
const THREADS: usize = 2;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Report { states, steps, depth, took, .. } = self;
        write!(f, "{states} states, {steps} steps, at most {depth} deep, {took:.1?}")?;
        for (promise, path) in &self.broken {
            write!(f, "\n  broken in {} steps: {}\n    {path:?}", path.len(), promise.name())?;
        }
        Ok(())
    }
}
