//! `vlane topologies`: Baseline, MQ and MT, and what more CPUs would make of them.

use std::time::Duration;

use anyhow::Context;
use clap::{Args, ValueEnum};
use vlane_host::Interrupt;
use vlane_lab::topologies::{self, Options, Placement};

use crate::output::{OutputArgs, command_line};
use crate::values;

/// Compare one queue, many queues and many threads on a null device
///
/// Baseline is one queue and one thread for all. MQ is a queue per job and one thread. MT is a
/// queue and a thread per job. The report also predicts more lanes and CPUs. Takes some minutes,
/// --quick one and a half. Needs no root and no other program.
#[derive(Debug, Args)]
pub struct TopologiesArgs {
    /// Measure fewer patterns for a shorter time, in about 90 seconds
    #[arg(long, conflicts_with = "validate")]
    quick: bool,
    /// Only compare the scaling model, calibrated with one lane, with two measured lanes
    #[arg(long)]
    validate: bool,

    /// Numbers of jobs; the number of CPUs and twice that number are always included
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
    /// Duration of each measurement [default: 400ms]
    ///
    /// With --quick, the default is 250ms, with --validate 1s.
    #[arg(long, value_name = "TIME", value_parser = values::time_between(Duration::from_millis(20), Duration::from_secs(3600)))]
    time: Option<Duration>,
    /// Number of measurements [default: 3; with --quick 2, with --validate 5]
    #[arg(long = "repeat", alias = "repeats", value_name = "N", value_parser = values::whole::<u16>(1..=100))]
    repeats: Option<u16>,
    /// CPUs of jobs and I/O threads
    #[arg(long, value_enum, default_value_t = PlacementArg::Together)]
    place: PlacementArg,
    /// Numbers of CPUs to predict for, besides this machine's
    #[arg(long = "predict", alias = "cpus", value_name = "LIST", value_delimiter = ',', default_value = "8,64", value_parser = values::whole::<u32>(1..=1024))]
    cpus: Vec<u32>,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PlacementArg {
    /// Job i and I/O thread i on the same CPU, in turn over all: a lane on its vCPU's CPU
    Together,
    /// I/O thread i on the CPU after job i's
    Apart,
    /// Placed by the kernel
    Free,
}

/// Parses the name of a pattern.
fn parse_pattern(text: &str) -> Result<String, String> {
    values::one_of(text, "pattern", topologies::patterns().iter().map(|pattern| pattern.name))
}

impl TopologiesArgs {
    fn options(&self) -> anyhow::Result<Options> {
        let ms = Duration::from_millis;
        let (time, repeats, ramp) = match (self.quick, self.validate) {
            (true, _) => (ms(250), 2, ms(80)),
            (_, true) => (ms(1000), 5, ms(150)),
            _ => (ms(400), 3, ms(100)),
        };
        let mut patterns = self.patterns.clone();
        if self.quick && patterns.is_empty() {
            patterns = vec!["randread".into(), "read".into()];
        }
        Ok(Options {
            program: std::env::current_exe().context("cannot find out where this program is")?,
            command: command_line(),
            jobs: self.jobs.clone(),
            patterns,
            depth: self.depth,
            batch: self.batch,
            time: self.time.unwrap_or(time),
            ramp,
            repeats: self.repeats.map_or(repeats, usize::from),
            cpus: self.cpus.clone(),
            placement: match self.place {
                PlacementArg::Together => Placement::Together,
                PlacementArg::Apart => Placement::Apart,
                PlacementArg::Free => Placement::Free,
            },
            validate_only: self.validate,
            quick: self.quick,
        })
    }
}

/// Runs the command.
///
/// # Errors
/// Obstacles to measuring or writing; its processes are gone then.
pub fn run(args: &TopologiesArgs) -> anyhow::Result<()> {
    let options = args.options()?;
    args.output.check()?;
    let interrupt = Interrupt::listen()?;
    let report = topologies::run(&options, &interrupt)?;
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
    fn short_runs_and_checks_yield_to_options() {
        let of = |words: &[&str]| {
            let args = Only::try_parse_from(["vlane"].iter().chain(words)).unwrap().args;
            args.options().unwrap()
        };
        assert_eq!(of(&["--quick"]).patterns, ["randread", "read"]);
        assert!(of(&[]).patterns.is_empty() && !of(&[]).validate_only);
        assert!(of(&["--validate"]).validate_only && of(&["--validate"]).repeats == 5);
        assert_eq!(of(&["--quick", "--time", "1s"]).time, Duration::from_secs(1));
        assert_eq!(of(&["--jobs", "1,3"]).jobs, [1, 3]);
        assert!(Only::try_parse_from(["vlane", "--cpus", "0"]).is_err());
        assert!(Only::try_parse_from(["vlane", "--quick", "--validate"]).is_err());
    }
}
