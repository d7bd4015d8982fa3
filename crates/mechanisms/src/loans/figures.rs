//! Samples of measurements of live schedulers.

use std::time::Duration;
use vlane_report::build::Begun;

/// Sample of one measurement.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Responses of guest 1, ns, in their order.
    pub responses: Vec<u64>,
    /// Before each of them, how long the storage had it, ns; where that is measured.
    pub services: Vec<u64>,
    /// How long each job of guest 1 took, ns; where there are any.
    pub jobs: Vec<u64>,
    /// Requests of its background.
    pub background: u64,
    /// CPU time of each guest, ns.
    pub used: Vec<u64>,
    /// How long it took.
    pub time: Duration,
    /// CPU time of the scheduler's event loop, ns.
    pub daemon_ns: u64,
    /// Boosts granted, boosts denied by the policy, and denied for want of real-time budget.
    pub boosts: [u64; 3],
}

impl Sample {
    /// How far each guest's share is off its weight, percent of the share.
    pub fn off(&self, weights: &[u32]) -> Vec<f64> {
        let all: u64 = self.used.iter().sum();
        let whole: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
        let off = |(&used, &weight): (&u64, &u32)| {
            let entitled = all as f64 * f64::from(weight) / whole;
            (used as f64 / entitled - 1.0) * 100.0
        };
        self.used.iter().zip(weights).map(off).collect()
    }
}

/// All samples of one arm under one load.
#[derive(Debug, Clone, Default)]
pub struct Cell {
    /// One per round.
    pub samples: Vec<Sample>,
}

/// Everything that was measured: `cells[gap][arm]`.
#[derive(Debug)]
pub struct Measured {
    /// The cells.
    pub cells: Vec<Vec<Cell>>,
    /// The weight of each guest.
    pub weights: Vec<u32>,
    /// When it was, by which command.
    pub begun: Begun,
}
