//! Without a guest: vlane's driver, a model of a drive with a queue for each thread of the back
//! end, 512 readers and one more.

use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;
use vlane::values;
use vlane_driver::{Crowd, CrowdReport, SessionOptions};
use vlane_error::counted;

use super::{BACKGROUND, BLOCK, FOREGROUND, Mode, Model, VOLUME, distinct, word};
use vlane_report::{Arms, Report, figure};
use vlane_testbed::{
    Call, Context, ErrorKind, Fail, Interrupt, Progress, Result, Rounds, Server, Storage, in_turns,
    settle, usage,
};

pub(super) mod report;

/// How long a back end may take to end.
const STOP: Duration = Duration::from_secs(20);
/// Time that a measurement takes beyond its own, about: start of a back end, connection, drain.
const AROUND: Duration = Duration::from_millis(500);

/// How the readers are spread over the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
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
    /// Readers of each queue.
    fn readers(self, readers: u16, queues: u16) -> Vec<u16> {
        let busy = if self == Self::Even { queues } else { queues - 1 };
        let of = |queue: u16| readers / busy + u16::from(queue < readers % busy);
        (0..queues).map(|queue| if queue < busy { of(queue) } else { 0 }).collect()
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

/// The options
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Values of `serve --classes`; the first is the baseline
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide_possible_values = true)]
    #[arg(default_value = "off,order,shortest,on")]
    pub(super) modes: Vec<Mode>,
    /// Distribution of the readers over the queues: even, uneven, greedy
    ///
    /// With uneven, the last queue has no reader. greedy is uneven without --think.
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide_possible_values = true)]
    #[arg(default_value = "even,uneven,greedy")]
    pub(super) loads: Vec<Load>,
    /// Queues of the volume and threads of the back end
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = values::whole::<u16>(1..=64))]
    pub(super) queues: u16,
    /// Readers in the background
    #[arg(long, value_name = "N", default_value_t = 512,
        value_parser = values::whole::<u16>(1..=8192))]
    pub(super) readers: u16,
    /// Pause of the foreground between two reads
    #[arg(long, value_name = "TIME", default_value = "10ms", value_parser = values::time_or_none)]
    pub(super) think: Duration,
    #[command(flatten)]
    pub(super) model: Model,
    /// Number of measurements of each combination
    #[arg(long = "repeat", alias = "rounds", value_name = "N", default_value_t = 5,
        value_parser = values::whole::<usize>(1..=1000))]
    pub(super) rounds: usize,
    /// Warm-up time before each measurement
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::time_or_none)]
    pub(super) ramp: Duration,
    /// Duration of each measurement
    #[arg(long, value_name = "TIME", default_value = "4s", value_parser = values::time)]
    pub(super) time: Duration,
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

/// Measures with vlane's own file, and makes a report.
///
/// # Errors
/// [`ErrorKind::Usage`] for options that make no sense, [`ErrorKind::Interrupted`], and those of
/// back end and driver.
pub fn run(options: &Options, call: &Call<'_>) -> Result<Report> {
    let mut options = options.clone();
    if options.queues < 2 && options.loads.iter().any(|load| *load != Load::Even) {
        return usage(
            "--queues 1: where one queue has no readers there are two at least; or --loads even",
        );
    }
    options.modes = distinct(options.modes.clone());
    let Call { vlane, begun, interrupt } = call;
    let dir = tempfile::Builder::new().prefix("vlane-express-").tempdir();
    let dir = dir.context(ErrorKind::Io, || "cannot make a directory for sockets")?;
    let names: Vec<String> = options.modes.iter().copied().map(word).collect();
    let of_load = |load| (load, Arms::named(&names));
    let mut results: Vec<_> = distinct(options.loads.clone()).into_iter().map(of_load).collect();
    let mut progress = Progress::new(options.rounds * results.len() * (names.len() + 1))
        .expecting(options.ramp + options.time + AROUND);
    settle(options.rounds, interrupt)?;
    let rounds = Rounds::measure(options.rounds, |round| {
        for (load, arms) in &mut results {
            in_turns(arms, round, |at, arm| {
                progress.step(format!("round {}: {}: {arm}", round + 1, word(*load)));
                let server = (*vlane, dir.path());
                measure(&options, *load, options.modes[at], server, &mut progress, interrupt)
            })?;
        }
        Ok(())
    })?;
    progress.clear();
    results.iter_mut().for_each(|(_, arms)| arms.keep(rounds.whole()));
    Ok(rounds.marked(report::fill(&options, &results, begun)))
}

fn measure(
    options: &Options,
    load: Load,
    mode: Mode,
    (vlane, dir): (&Path, &Path),
    progress: &mut Progress,
    interrupt: &Interrupt,
) -> Result<Sample> {
    interrupt.check()?;
    let mut words = options.model.options();
    words.extend(super::options_in(mode, options.queues));
    let mut server = Server::vlane(vlane, dir, Storage::null(VOLUME), &[], &words)?;
    let crowd = Crowd {
        readers: load.readers(options.readers, options.queues),
        readers_ioprio: BACKGROUND,
        queue: 0,
        ioprio: FOREGROUND,
        // A greedy foreground does not think.
        think: if load == Load::Greedy { Duration::ZERO } else { options.think },
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
        interrupt.going_on()
    })?;
    interrupt.check()?;
    server.stop(STOP)?;
    if report.one.ios == 0 {
        return ErrorKind::Process.fail(format!(
            "{}: the foreground finished no read within {:?}; give more --time",
            word(mode),
            options.time
        ));
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
    }
}
