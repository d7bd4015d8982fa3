//! What is asked for, and what was measured.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use super::cell::Cell;
use super::micro::Prices;
use super::patterns::Pattern;
use super::validate::Suite;
use super::{Placement, Subject};
use vlane_report::build::Begun;

/// What the user wants.
#[derive(Debug, Clone)]
pub struct Options {
    /// vlane's own file, to be started as `vlane serve`.
    pub program: PathBuf,
    /// The command line, for the report.
    pub command: String,
    /// Numbers of jobs.
    pub jobs: Vec<u16>,
    /// Names of patterns; none: all.
    pub patterns: Vec<String>,
    /// Requests out per job.
    pub depth: u16,
    /// Requests that a job makes visible at once; 1 is `libaio` as fio uses it.
    pub batch: u16,
    /// Time of each measurement.
    pub time: Duration,
    /// Time before each.
    pub ramp: Duration,
    /// Rounds.
    pub repeats: usize,
    /// Numbers of CPUs to predict for, besides this machine's.
    pub cpus: Vec<u32>,
    /// Where threads run in the experiment.
    pub placement: Placement,
    /// Only the check of the scaling model.
    pub validate_only: bool,
    /// Without the patterns' repetitions on vlane itself.
    pub quick: bool,
}

/// Which of the experiments a figure belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Group {
    /// With the work that a request costs guest and host in the paper.
    Paper,
    /// Nothing but the way to the device.
    Bare,
}

/// Names a cell.
pub type Key = (&'static str, Group, Subject, u16);

/// Everything that was measured.
#[derive(Debug)]
pub struct Measured<'a> {
    /// The patterns.
    pub patterns: Vec<Pattern>,
    /// The numbers of jobs, rising.
    pub jobs: Vec<u16>,
    /// The cells, one per round.
    pub cells: HashMap<Key, Vec<Cell>>,
    /// One and two lanes, for the model: first the paper's work, then none.
    pub suites: Vec<(Group, Suite<'a>)>,
    /// What the machine charges.
    pub prices: Prices,
    /// CPUs used.
    pub cpus: usize,
    /// Rounds.
    pub repeats: usize,
    /// When it was, by which command.
    pub begun: Begun,
}
