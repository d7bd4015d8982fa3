//! `vlane-lab prove together`: the baseline, each mechanism alone, and all of them.
//! [`vlane_mechanisms::together`] describes the measurement.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use vlane_guest::{Host, Install};
use vlane_mechanisms::express::Model;
use vlane_mechanisms::express::root::Program;
use vlane_mechanisms::together::job::Job;
use vlane_mechanisms::together::{self, Options};
use vlane_testbed::Interrupt;

use crate::express::parse_program;
use crate::output::{OutputArgs, command_line};
use crate::values;

/// Compare the baseline, each mechanism, and all combined in one guest
///
/// The guest computes, writes mail and starts a program, in parallel with its own readers, on a
/// host with more vCPUs than CPUs. The mechanisms are lanes, pdc, express and loans. The report has
/// the foreground's times, the losses of the others and the host's cost. Loans need CAP_SYS_NICE.
/// Without it the report leaves them out and says so.
#[derive(Debug, Args)]
pub struct TogetherArgs {
    /// Run one short round with one other guest, without conclusions
    #[arg(long)]
    quick: bool,
    /// Program to start
    #[arg(long, value_name = "NAME", default_value = "sqlite3", value_parser = parse_program)]
    program: Program,
    /// Readers in the background
    #[arg(long, value_name = "N", default_value_t = 48, value_parser = values::whole::<u16>(1..=512))]
    readers: u16,
    /// Guests that only compute, with one vCPU each [default: 2, with --quick 1]
    #[arg(long, value_name = "N", value_parser = values::whole::<usize>(1..=64))]
    others: Option<usize>,
    /// Service time of the drive: microseconds, or a time such as 1ms
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = values::time_in::<u64>("us", 1..=1_000_000))]
    latency: u64,
    /// Requests that the drive serves in parallel
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = values::whole::<u16>(1..))]
    parallel: u16,
    /// Number of measurements of each variant [default: 5, with --quick 1]
    #[arg(long = "repeat", alias = "rounds", value_name = "N", value_parser = values::whole::<usize>(1..=1000))]
    rounds: Option<usize>,
    /// Time for readers and the foreground to settle
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::time_or_none)]
    ramp: Duration,
    /// Duration of each measurement [default: 20s, with --quick 5s]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    time: Option<Duration>,
    /// Directory for the images, on a disk with some hundred MiB free
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    disk_dir: PathBuf,
    /// vlane-fg program [default: next to this program]
    #[arg(long, value_name = "FILE")]
    fg: Option<PathBuf>,
    /// Install missing programs by apt-get (as root), and guest kernels into the cache directory
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Run the guest's part of `together` inside the guest
#[derive(Debug, Args)]
pub struct TogetherJobArgs {
    /// File system with the program, for the mails
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Program to start
    #[arg(long, value_name = "NAME", value_parser = parse_program)]
    program: Program,
    /// Process ID of the readers
    #[arg(long, value_name = "PID", value_parser = values::whole::<u32>(1..))]
    readers: u32,
    /// File that grows by a byte for each unit of computing
    #[arg(long, value_name = "FILE")]
    computed: PathBuf,
    /// Warm-up time
    #[arg(long, value_name = "TIME", value_parser = values::time_or_none)]
    ramp: Duration,
    /// Measured time
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    time: Duration,
    /// Number after each result's name
    #[arg(long, value_name = "N", value_parser = values::whole::<u64>(0..))]
    mark: u64,
}

/// Bytes of the journal.
const JOURNAL: u64 = 16 << 20;

impl TogetherArgs {
    fn options(&self) -> anyhow::Result<Options> {
        let vlane = std::env::current_exe().context("cannot find this program's own file")?;
        let (rounds, time, others) = match self.quick {
            true => (1, Duration::from_secs(5), 1),
            false => (5, Duration::from_secs(20), 2),
        };
        Ok(Options {
            fg: self.fg.clone().unwrap_or_else(|| vlane.with_file_name("vlane-fg")),
            vlane,
            command: command_line(),
            program: self.program,
            readers: self.readers,
            others: self.others.unwrap_or(others),
            model: Model { latency: Duration::from_micros(self.latency), parallel: self.parallel },
            journal: JOURNAL,
            rounds: self.rounds.unwrap_or(rounds),
            ramp: self.ramp,
            time: self.time.unwrap_or(time),
            disk_dir: self.disk_dir.clone(),
        })
    }
}

/// Measures.
///
/// # Errors
/// Obstacles to the measurements, or to writing the report.
pub fn run(args: &TogetherArgs) -> anyhow::Result<()> {
    args.output.check()?;
    let interrupt = Interrupt::listen()?;
    let host = Host::new(if args.install { Install::Allowed } else { Install::Never })?;
    let report = together::run(&args.options()?, &host, &interrupt)?;
    args.output.show(&report)
}

/// Is the guest's foreground, and tells of it.
///
/// # Errors
/// If a mail cannot be written, or the program cannot be launched.
pub fn run_job(args: &TogetherJobArgs) -> anyhow::Result<()> {
    let job = Job {
        dir: args.dir.clone(),
        program: args.program,
        readers: args.readers,
        computed: args.computed.clone(),
        ramp: args.ramp,
        time: args.time,
    };
    let done = job.run(|moment| println!("RESULT {moment}.{}=1", args.mark))?;
    println!("RESULT done.{}={}", args.mark, serde_json::to_string(&done)?);
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        args: TogetherArgs,
    }

    #[test]
    fn quick_is_one_short_round_by_default() {
        let of = |words: &[&str]| {
            let all = std::iter::once("vlane").chain(words.iter().copied());
            let options = Only::try_parse_from(all).unwrap().args.options().unwrap();
            (options.rounds, options.time.as_secs(), options.others)
        };
        assert_eq!(of(&[]), (5, 20, 2));
        assert_eq!(of(&["--quick"]), (1, 5, 1));
        assert_eq!(of(&["--quick", "--repeat", "3", "--others", "3"]), (3, 5, 3));
    }
}
