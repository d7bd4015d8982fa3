//! `vlane-lab compare topologies`: Baseline, MQ and MT, or how many queues and threads a device
//! should have.
//!
//! The experiment of Kim, Kang and Eom, "Improving Performance of I/O Virtualization Framework
//! based on Multi-queue SSD" (KIISE 2016), with `vlane serve` as the device. The device is null, so
//! that only the way to it is measured.
//!
//! | | queues | threads |
//! |---|---|---|
//! | Baseline | 1, shared by all jobs | 1 |
//! | MQ | one per job | 1 |
//! | MT | one per job | one per queue |
//!
//! It is a profile of `vlane-lab bench`, made from a few options.

use std::num::NonZeroU16;
use std::time::Duration;

use clap::Args;
use vlane_bench::{Load, Pattern, Profile, Setting, Size, Target};
use vlane_error::counted;
use vlane_guest::{Host, Install};
use vlane_report::Report;
use vlane_testbed::{Call, Error, ErrorKind, Progress};

use crate::values;

/// Capacity of the null device.
const BYTES: u64 = 16 << 30;

/// The paper's four patterns, in its order: name, title, bytes per request.
const PATTERNS: [(&str, &str, u64); 4] = [
    ("randread", "4K random read", 4096),
    ("randwrite", "4K random write", 4096),
    ("read", "32K sequential read", 32768),
    ("write", "32K sequential write", 32768),
];

/// Compare one queue, many queues and many threads on a null device
///
/// Baseline is one queue and one thread for all jobs. MQ is a queue per job and one thread. MT is a
/// queue and a thread per job. Takes a few minutes, --quick half a minute. Needs no root and no
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
}

/// Parses the name of a pattern.
fn parse_pattern(text: &str) -> Result<String, String> {
    values::one_of(text, "pattern", PATTERNS.map(|(name, ..)| name))
}

impl TopologiesArgs {
    /// The profile that measures every pattern, with each number of jobs, on each topology.
    fn profile(&self) -> vlane_testbed::Result<Profile> {
        let ms = Duration::from_millis;
        let (time, ramp, repeats) =
            if self.quick { (ms(250), ms(80), 2) } else { (ms(400), ms(100), 5) };
        let mut jobs = self.jobs.clone();
        jobs.sort_unstable();
        jobs.dedup();
        let is_wanted = |name: &str| match self.patterns.is_empty() {
            true => !self.quick || ["randread", "read"].contains(&name),
            false => self.patterns.iter().any(|other| other == name),
        };
        let at_least_one = |count| NonZeroU16::new(count).unwrap_or(NonZeroU16::MIN);
        let mut loads = Vec::new();
        for (name, title, block) in PATTERNS.into_iter().filter(|(name, ..)| is_wanted(name)) {
            let pattern =
                name.parse().map_err(|text: String| Error::new(ErrorKind::Usage, text))?;
            for jobs in &jobs {
                loads.push(Load {
                    rw: Pattern(pattern),
                    bs: Size(block),
                    depth: at_least_one(self.depth),
                    jobs: at_least_one(*jobs),
                    batch: self.batch,
                    ..Load::named(format!("{title}, {}", counted(*jobs, "job")))
                });
            }
        }
        let target = |name: &str, one_queue, threads: &[&str]| Target {
            one_queue,
            args: threads.iter().map(|word| (*word).to_owned()).collect(),
            ..Target::named(name)
        };
        let one_thread = ["--threads", "1"];
        let text = "Baseline has one queue for all jobs and one thread; MQ a queue per job and \
                    one thread; MT a queue and a thread per job. With more jobs than CPUs the \
                    figures show the cost of a topology, not its scaling.";
        Ok(Profile {
            text: vec![text.into()],
            repeats: self.repeats.map_or(repeats, usize::from),
            time: self.time.unwrap_or(time),
            ramp,
            size: BYTES,
            targets: vec![
                target("MT", false, &[]),
                target("MQ", false, &one_thread),
                target("Baseline", true, &one_thread),
            ],
            ..Profile::of("Topologies: one queue, many queues, many threads", loads)
        })
    }
}

/// Runs the command.
///
/// # Errors
/// The fault of a back end, a client or an output file; all started processes are gone then.
pub fn run(options: &TopologiesArgs, call: &Call<'_>) -> vlane_testbed::Result<Report> {
    let profile = options.profile()?;
    let host = Host::new(Install::Never)?;
    let setting = Setting { call, host: &host, client_cpus: &[], ram_dir: None, disk_dir: None };
    let steps = profile.loads.len() * profile.targets.len() * profile.repeats;
    let mut progress = Progress::new(steps).expecting(profile.time + profile.ramp);
    let measured = vlane_bench::measure(&profile, &setting, &mut progress)?;
    drop(progress);
    let compared = vlane_bench::between_targets(&measured);
    Ok(Report { kind: "topologies".into(), ..vlane_bench::report(&measured, &compared, None) })
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

    fn profile(words: &[&str]) -> Profile {
        Only::try_parse_from(["vlane"].iter().chain(words)).unwrap().args.profile().unwrap()
    }

    fn names(profile: &Profile) -> Vec<&str> {
        profile.loads.iter().map(|load| load.name.as_str()).collect()
    }

    #[test]
    fn short_runs_yield_to_options() {
        let quick = profile(&["--quick", "--jobs", "1"]);
        assert_eq!(names(&quick), ["4K random read, 1 job", "32K sequential read, 1 job"]);
        assert_eq!((profile(&[]).loads.len(), profile(&[]).repeats), (4 * 5, 5));
        assert_eq!(profile(&["--quick", "--time", "1s"]).time, Duration::from_secs(1));
    }

    #[test]
    fn patterns_and_job_counts_meet_once() {
        let profile = profile(&["--jobs", "4,1,4", "--patterns", "read,randread"]);
        let expected = [
            "4K random read, 1 job",
            "4K random read, 4 jobs",
            "32K sequential read, 1 job",
            "32K sequential read, 4 jobs",
        ];
        assert_eq!(names(&profile), expected);
        let shared = profile.targets.iter().filter(|target| target.one_queue);
        assert_eq!(shared.map(|target| target.name.as_str()).collect::<Vec<_>>(), ["Baseline"]);
    }
}
