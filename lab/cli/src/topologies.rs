//! `vlane-lab compare topologies`: Baseline, MQ and MT.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use vlane_bench::Setting;
use vlane_client::Progress;
use vlane_compare::topologies::{self, Options};
use vlane_guest::{Host, Install};
use vlane_testbed::Interrupt;

use crate::output::{OutputArgs, command_line};
use crate::values;

/// Compare one queue, many queues and many threads on a null device
///
/// Baseline is one queue and one thread for all jobs. MQ is a queue per job and one thread. MT is a
/// queue and a thread per job. Takes some minutes, --quick half a minute. Needs no root and no
/// other program.
#[derive(Debug, Args)]
pub struct TopologiesArgs {
    /// Measure fewer patterns for a shorter time, in about 30 seconds
    #[arg(long)]
    quick: bool,

    /// Numbers of jobs
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = values::whole::<u16>(1..=64))]
    jobs: Vec<u16>,
    /// Patterns: randread and randwrite (4K), read and write (32K) [default: all]
    ///
    /// With --quick, the default is randread and read.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_pattern)]
    patterns: Vec<String>,
    /// Requests in flight per job
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = values::whole::<u16>(1..=256))]
    depth: u16,
    /// Requests that a job makes visible at once
    ///
    /// 1 stands for a program with libaio. 0 submits all that completed together.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::whole::<u16>(0..))]
    batch: u16,
    /// Duration of each measurement [default: 400ms; with --quick 250ms]
    #[arg(long, value_name = "TIME", value_parser = values::time_between(Duration::from_millis(20), Duration::from_secs(3600)))]
    time: Option<Duration>,
    /// Number of measurements [default: 5; with --quick 2]
    #[arg(long = "repeat", alias = "repeats", value_name = "N", value_parser = values::whole::<u16>(1..=100))]
    repeats: Option<u16>,

    #[command(flatten)]
    output: OutputArgs,
}

/// Parses the name of a pattern.
fn parse_pattern(text: &str) -> Result<String, String> {
    values::one_of(text, "pattern", topologies::PATTERNS.map(|(name, ..)| name))
}

impl TopologiesArgs {
    fn options(&self) -> Options {
        let ms = Duration::from_millis;
        let (time, ramp, repeats) =
            if self.quick { (ms(250), ms(80), 2) } else { (ms(400), ms(100), 5) };
        let mut patterns = self.patterns.clone();
        if self.quick && patterns.is_empty() {
            patterns = vec!["randread".into(), "read".into()];
        }
        Options {
            jobs: self.jobs.clone(),
            patterns,
            depth: self.depth,
            batch: self.batch,
            time: self.time.unwrap_or(time),
            ramp,
            repeats: self.repeats.map_or(repeats, usize::from),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// The fault of a back end, a client or an output file; all started processes are gone then.
pub fn run(args: &TopologiesArgs) -> anyhow::Result<()> {
    let profile = topologies::profile(&args.options())?;
    args.output.check()?;
    let interrupt = Interrupt::listen()?;
    let host = Host::new(Install::Never)?;
    let setting = Setting {
        vlane: &std::env::current_exe().context("cannot find this program's own file")?,
        command: command_line(),
        host: &host,
        client_cpus: &[],
        ram_dir: None,
        disk_dir: None,
        interrupt: &interrupt,
    };
    let steps = profile.loads.len() * profile.targets.len() * profile.repeats;
    let mut progress = Progress::new(steps).expecting(profile.time + profile.ramp);
    let measured = vlane_bench::measure(&profile, &setting, &mut progress)?;
    drop(progress);
    let compared = vlane_bench::between_targets(&measured);
    let report = vlane_report::Report {
        kind: "topologies".into(),
        ..vlane_bench::report(&measured, &compared, None)
    };
    args.output.show(&report)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        args: TopologiesArgs,
    }

    #[test]
    fn short_runs_yield_to_options() {
        let of = |words: &[&str]| {
            Only::try_parse_from(["vlane"].iter().chain(words)).unwrap().args.options()
        };
        assert_eq!(of(&["--quick"]).patterns, ["randread", "read"]);
        assert!(of(&[]).patterns.is_empty() && of(&[]).repeats == 5);
        assert_eq!(of(&["--quick", "--time", "1s"]).time, Duration::from_secs(1));
        assert_eq!(of(&["--jobs", "1,3"]).jobs, [1, 3]);
    }
}
