//! Medians and percentiles, and each lock beside the floor.

use std::time::Duration;

pub const HEADING: &str = "lock,rounds,handovers,median_ms,median_min_ms,median_max_ms,p99_ms,max_ms,median_ratio,p99_ratio";

/// What was measured of one lock, round by round.
pub struct Series {
    name: &'static str,
    rounds: Vec<Vec<Duration>>,
}

impl Series {
    pub fn new(name: &'static str) -> Self {
        Self { name, rounds: Vec::new() }
    }

    /// Round 0 is not counted.
    pub fn add(&mut self, round: usize, time: Duration) {
        let Some(place) = round.checked_sub(1) else {
            return;
        };
        if place == self.rounds.len() {
            self.rounds.push(Vec::new());
        }
        self.rounds[place].push(time);
    }

    fn medians(&self) -> Vec<f64> {
        self.rounds.iter().map(|times| percentile(times.clone(), 50)).collect()
    }

    /// The ratio of the medians is that of the round in the middle, that of the percentiles is over
    /// all rounds.
    pub fn line(&self, floor: &Series) -> String {
        let (all, medians) = (self.rounds.concat(), self.medians());
        let mut ratios: Vec<f64> =
            medians.iter().zip(floor.medians()).map(|(ours, floor)| ours / floor).collect();
        ratios.sort_by(f64::total_cmp);
        let (p99, floor_p99) = (percentile(all.clone(), 99), percentile(floor.rounds.concat(), 99));
        format!(
            "\"{}\",{},{},{:.2},{:.2},{:.2},{:.2},{:.2},{:.2},{:.2}",
            self.name,
            self.rounds.len(),
            all.len(),
            percentile(all.clone(), 50),
            medians.iter().copied().fold(f64::INFINITY, f64::min),
            medians.iter().copied().fold(0.0, f64::max),
            p99,
            percentile(all, 100),
            ratios[ratios.len() / 2],
            p99 / floor_p99,
        )
    }
}

/// In milliseconds.
fn percentile(mut times: Vec<Duration>, percent: usize) -> f64 {
    times.sort();
    let rank = (times.len() * percent).div_ceil(100).max(1);
    times[rank - 1].as_secs_f64() * 1e3
}
