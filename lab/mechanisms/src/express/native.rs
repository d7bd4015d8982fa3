//! Without a guest: vlane's driver, a model of a drive with a queue for each thread of the back
//! end, 512 readers and one more.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use vlane_driver::{Crowd, CrowdReport, SessionOptions};
use vlane_error::counted;

use super::{BACKGROUND, BLOCK, FOREGROUND, Mode, Model, VOLUME};
use vlane_client::progress::Progress;
use vlane_report::build::Begun;
use vlane_report::judge::Arms;
use vlane_report::{Report, figure};
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::rounds::{Rounds, in_turns};
use vlane_testbed::server::{Server, Storage};

pub(super) mod report;

/// How long a back end may take to end.
const STOP: Duration = Duration::from_secs(20);
/// Starting a back end, connecting, draining: what a measurement takes beyond its own time, about.
const AROUND: Duration = Duration::from_millis(500);

/// How the readers are spread over the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// As many on each.
    Even,
    /// The last queue has none.
    Uneven,
    /// As uneven, and the foreground does not think: what it gains in time it takes from the others
    /// in reads.
    Greedy,
}

impl Load {
    /// All.
    pub const ALL: [Self; 3] = [Self::Even, Self::Uneven, Self::Greedy];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Even => "even",
            Self::Uneven => "uneven",
            Self::Greedy => "greedy",
        }
    }

    /// The load of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|load| load.name() == name)
    }

    /// Readers of each queue.
    fn readers(self, readers: u16, queues: u16) -> Vec<u16> {
        let busy = if self == Self::Even { queues } else { queues - 1 };
        let of = |queue: u16| readers / busy + u16::from(queue < readers % busy);
        (0..queues).map(|queue| if queue < busy { of(queue) } else { 0 }).collect()
    }

    /// Time of the foreground between two reads.
    fn think(self, think: Duration) -> Duration {
        if self == Self::Greedy { Duration::ZERO } else { think }
    }

    /// In words.
    pub fn title(self, readers: u16, queues: u16) -> String {
        let (readers, some) = (counted(readers, "reader"), queues - 1);
        match self {
            Self::Even => format!("{readers} on all {queues} queues"),
            Self::Uneven => format!("{readers} on {some} of {queues} queues"),
            Self::Greedy => format!("{readers} on {some} of {queues} queues, no think time"),
        }
    }
}

/// The options.
#[derive(Debug, Clone)]
pub struct Options {
    /// vlane's own file.
    pub vlane: PathBuf,
    /// The command that makes this report again.
    pub command: String,
    /// Modes of the back end; the first one is the baseline.
    pub modes: Vec<Mode>,
    /// How readers are spread.
    pub loads: Vec<Load>,
    /// Queues of the volume, and threads of the back end.
    pub queues: u16,
    /// Readers in the background.
    pub readers: u16,
    /// Time of the foreground between two reads.
    pub think: Duration,
    /// The drive.
    pub model: Model,
    /// How often everything is measured.
    pub rounds: usize,
    /// Time before each measurement that does not count.
    pub ramp: Duration,
    /// Time of each measurement.
    pub time: Duration,
}

/// Results of one measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Mean time of the foreground's reads, in us.
    pub mean_us: f64,
    /// Their median.
    pub p50_us: f64,
    /// Their 99th percentile.
    pub p99_us: f64,
    /// Their 99.9th percentile.
    pub p999_us: f64,
    /// How many there were.
    pub reads: f64,
    /// The foreground's reads per second.
    pub foreground: f64,
    /// The background's.
    pub background: f64,
    /// 99th percentile of the background's, in us.
    pub background_p99_us: f64,
    /// CPU time of the back end, us per read of anybody.
    pub cpu_us: f64,
}

impl Sample {
    fn of(report: &CrowdReport) -> Self {
        let latency = &report.one.latency;
        let reads = report.one.ios as f64;
        Self {
            mean_us: latency.mean,
            p50_us: latency.p50,
            p99_us: latency.p99,
            p999_us: latency.p99_9,
            reads,
            foreground: report.one.iops,
            background: report.readers.iops,
            background_p99_us: report.readers.latency.p99,
            cpu_us: report.backend.as_ref().map_or(f64::NAN, |used| used.cpu_us_per_io),
        }
    }

    /// Reads per second of all.
    pub fn total(&self) -> f64 {
        self.foreground + self.background
    }
}

/// A load, with all arms.
#[derive(Debug, Clone)]
pub struct LoadResult {
    /// The load.
    pub load: Load,
    /// The measurements.
    pub arms: Arms<Sample>,
}

impl Options {
    fn check(&self) -> Result<()> {
        let usage = |text: &str| Err(Error::new(ErrorKind::Usage, text));
        if self.modes.is_empty() || self.loads.is_empty() || self.rounds == 0 {
            return usage("no measurement is left: give --modes, --loads and --repeat");
        }
        if self.queues < 2 && self.loads.iter().any(|load| *load != Load::Even) {
            return usage(
                "--queues 1: where one queue has no readers there are two at least; or --loads \
                 even",
            );
        }
        Ok(())
    }
}

/// Measures, and makes a report.
///
/// # Errors
/// [`ErrorKind::Usage`] for options that make no sense, [`ErrorKind::Interrupted`], and those of
/// back end and driver.
pub fn run(options: &Options, interrupt: &Interrupt) -> Result<Report> {
    options.check()?;
    let begun = Begun::now(&options.command);
    let dir = tempfile::Builder::new().prefix("vlane-express-").tempdir();
    let dir = dir.context(ErrorKind::Io, || "cannot make a directory for sockets")?;
    let names: Vec<String> = options.modes.iter().map(|mode| mode.name().to_owned()).collect();
    let mut results: Vec<LoadResult> = options
        .loads
        .iter()
        .map(|load| LoadResult { load: *load, arms: Arms::named(&names) })
        .collect();
    let arms = names.len() + 1;
    let mut progress = Progress::new(options.rounds * results.len() * arms)
        .expecting(options.ramp + options.time + AROUND);
    let rounds = Rounds::measure(options.rounds, |round| {
        for result in &mut results {
            let load = result.load;
            in_turns(&mut result.arms, round, |at, arm| {
                progress.step(format!("round {}: {}: {arm}", round + 1, load.name()));
                measure(options, load, options.modes[at], dir.path(), &mut progress, interrupt)
            })?;
        }
        Ok(())
    })?;
    progress.clear();
    results.iter_mut().for_each(|result| result.arms.keep(rounds.whole()));
    let options = &Options { rounds: rounds.whole(), ..options.clone() };
    let mut report = report::fill(options, &results, &begun);
    rounds.mark(&mut report);
    Ok(report)
}

fn measure(
    options: &Options,
    load: Load,
    mode: Mode,
    dir: &std::path::Path,
    progress: &mut Progress,
    interrupt: &Interrupt,
) -> Result<Sample> {
    interrupt.check()?;
    let queues = options.queues.to_string();
    let mut words = options.model.options();
    words.extend(
        ["--queues", &queues, "--threads", &queues, "--classes", mode.name()].map(str::to_owned),
    );
    let mut server = Server::vlane(&options.vlane, dir, Storage::null(VOLUME), &[], &words)?;
    let crowd = Crowd {
        readers: load.readers(options.readers, options.queues),
        readers_ioprio: BACKGROUND,
        queue: 0,
        ioprio: FOREGROUND,
        think: load.think(options.think),
        block: BLOCK,
        seed: 1,
        ramp: options.ramp,
        time: options.time,
    };
    let session = server.connect(&SessionOptions {
        queues: options.queues,
        depth: crowd.depth(),
        data: BLOCK,
        ..SessionOptions::default()
    })?;
    let report = vlane_driver::run_crowd(session, &crowd, &mut |state| {
        progress.detail(&figure::with_unit(state.iops, "IOPS"));
        if interrupt.is_raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    interrupt.check()?;
    server.stop(STOP)?;
    if report.one.ios == 0 {
        let text = format!(
            "{}: the foreground finished no read within {:?}; give more --time",
            mode.name(),
            options.time
        );
        return Err(Error::new(ErrorKind::Process, text));
    }
    Ok(Sample::of(&report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_spread_evenly_over_busy_queues() {
        assert_eq!(Load::Even.readers(512, 8), [64; 8]);
        assert_eq!(Load::Uneven.readers(512, 8), [74, 73, 73, 73, 73, 73, 73, 0]);
        assert_eq!(Load::Uneven.readers(3, 2), [3, 0]);
        assert_eq!(Load::Even.readers(3, 4), [1, 1, 1, 0]);
        assert!(Load::ALL.iter().all(|load| Load::named(load.name()) == Some(*load)));
    }
}
