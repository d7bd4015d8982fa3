//! Samples of measurements of live schedulers.

use std::time::Duration;

use vlane_error::counted;
use vlane_report::Note;
use vlane_report::build::Begun;
use vlane_report::judge::Arms;
use vlane_testbed::error::{Error, ErrorKind, Result};

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

/// Everything that was measured.
#[derive(Debug)]
pub struct Measured {
    /// The arms, load by load.
    pub loads: Vec<Arms<Sample>>,
    /// The weight of each guest.
    pub weights: Vec<u32>,
    /// When it was, by which command.
    pub begun: Begun,
    /// Rounds.
    pub rounds: usize,
    /// Time of each measurement.
    pub time: Duration,
    /// Description of the method.
    pub about: String,
    /// Caveats that a reader must know before believing the figures.
    pub warnings: Vec<String>,
}

impl Measured {
    /// Common content of its reports: warnings, and the method.
    pub(super) fn notes(&self, more: &str) -> Vec<Note> {
        let facts = format!(
            "{} of {:?} each, the schedulers in turns; figures are medians over rounds, with the \
             smallest and the largest. \"All rounds\" adds up the CPU time of all guests over \
             them.{more}",
            counted(self.rounds, "round"),
            self.time
        );
        let warnings = self.warnings.iter().map(Note::warning);
        warnings.chain([Note::info(&self.about), Note::info(facts)]).collect()
    }

    /// Fails if an arm has no sample.
    pub(super) fn check(&self) -> Result<()> {
        let is_missing =
            self.loads.iter().flat_map(|arms| &arms.0).any(|arm| arm.rounds.is_empty());
        match is_missing {
            true => Err(Error::new(ErrorKind::Process, "a measurement is missing")),
            false => Ok(()),
        }
    }
}
