//! Loans: the effect of a boost at I/O completion on the thread's response and on all shares of the
//! CPU.
//!
//! After Kim, Jang and Hong, "Loan/Redemption Scheme for I/O performance improvement of Virtual
//! Machine Scheduler" (2016).

pub(crate) mod bed;
pub(crate) mod figures;
pub mod guests;
pub mod live;
pub mod simulated;
pub(crate) mod study;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use vlane::sched::settings::HoldBackArg;
use vlane::values;
use vlane_policy::loan::Policy;
use vlane_testbed::{Error, ErrorKind, Machines};

/// Options of `vlane-lab prove loans`
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Run real guests and `vlane serve`: User-Mode Linux, or QEMU
    #[arg(long, value_enum)]
    pub real: Option<Machines>,
    /// Measure express requests and loans in real guests: neither, each, and both
    ///
    /// Measures a foreground program in a guest with background readers.
    #[arg(long, requires = "real", conflicts_with_all = ["only", "gaps"])]
    pub express: bool,
    /// Background readers with --express
    #[arg(long, value_name = "N", requires = "express", default_value_t = 16, value_parser = values::whole::<usize>(1..=200))]
    pub readers: usize,
    /// Let the foreground program with --express write and fsync instead of reading
    ///
    /// It writes 4 KiB of the disk after 4 KiB, each with an fsync, as a database writes its log.
    #[arg(long, requires = "express")]
    pub fsync: bool,
    /// Service time of the device with --express; it serves four requests in parallel
    #[arg(long, value_name = "TIME", requires = "express", value_parser = values::time, default_value = "1ms")]
    pub latency: Duration,
    /// Install or download missing parts of real guests
    #[arg(long, requires = "real")]
    pub install: bool,
    /// Number of guests, including the guest with I/O [default: 6 per CPU]
    #[arg(long, value_name = "N", value_parser = values::whole::<usize>(2..=1000))]
    pub guests: Option<usize>,
    /// Weights of the guests; the last one counts for the rest
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "256", value_parser = values::whole::<u32>(1..=65536))]
    pub weights: Vec<u32>,
    /// Intervals between I/Os [default: 20ms,5ms,2ms; real guests: 20ms,5ms]
    ///
    /// For real guests, this is the device's service time.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = values::time)]
    pub gaps: Vec<Duration>,
    /// CPU time of the guest for each I/O
    #[arg(long, value_name = "TIME", value_parser = values::time_or_none, default_value = "100us")]
    pub work: Duration,
    /// Duration of each measurement
    #[arg(long, value_name = "TIME", value_parser = values::time_between(Duration::from_millis(200), Duration::from_secs(3600)), default_value = "8s")]
    pub time: Duration,
    /// Number of measurements of each policy
    #[arg(long = "repeat", alias = "rounds", value_name = "N", default_value_t = 3, value_parser = values::whole::<usize>(1..=1000))]
    pub rounds: usize,
    /// Measure only these: eevdf, credit, always-boost, loan, adaptive
    ///
    /// With --real also defaults, which is `vlane sched run` without options and without --config.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_arm)]
    pub only: Vec<String>,
    /// How to hold back a guest that has used more than its share [default: nice]
    #[arg(long, value_enum)]
    pub hold_back: Option<HoldBackArg>,
    /// TOML file with the scheduler's settings
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// `vlane sched run` as it is without options.
const DEFAULTS: &str = "defaults";

fn parse_arm(text: &str) -> std::result::Result<String, String> {
    let policies = Policy::ALL.iter().map(|policy| policy.name());
    let names = ["eevdf", DEFAULTS].into_iter().chain(policies);
    values::one_of(&text.to_ascii_lowercase(), "scheduler", names)
}

impl Options {
    fn gaps(&self, usual: &[u64]) -> Vec<Duration> {
        let usual = usual.iter().map(|&ms| Duration::from_millis(ms));
        if self.gaps.is_empty() { usual.collect() } else { self.gaps.clone() }
    }

    fn guests(&self) -> usize {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.guests.unwrap_or(6 * cpus)
    }

    fn has(&self, scheduler: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| scheduler.eq_ignore_ascii_case(name))
    }
}

pub(crate) fn sched(error: vlane_sched::Error) -> Error {
    let kind = match error.kind() {
        vlane_sched::ErrorKind::Invalid | vlane_sched::ErrorKind::Unsupported => ErrorKind::Invalid,
        _ => ErrorKind::Process,
    };
    Error::caused_by(kind, "the scheduler cannot run", error)
}
