//! Baseline, MQ and MT: how many queues and threads a device should have.
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

use vlane_bench::{Load, Profile, Size, Target};
use vlane_testbed::error::{Error, ErrorKind, Result};

/// Capacity of the null device.
const BYTES: u64 = 16 << 30;

/// The paper's four patterns, in its order: name, title, bytes per request.
pub const PATTERNS: [(&str, &str, u64); 4] = [
    ("randread", "4K random read", 4096),
    ("randwrite", "4K random write", 4096),
    ("read", "32K sequential read", 32768),
    ("write", "32K sequential write", 32768),
];

/// The options.
#[derive(Debug, Clone)]
pub struct Options {
    /// Numbers of jobs.
    pub jobs: Vec<u16>,
    /// Names of patterns; all if empty.
    pub patterns: Vec<String>,
    /// Requests in flight per job.
    pub depth: u16,
    /// Requests that a job makes visible at once.
    pub batch: u16,
    /// Length of each measurement.
    pub time: Duration,
    /// Time before each measurement.
    pub ramp: Duration,
    /// Rounds.
    pub repeats: usize,
}

/// The profile that measures every pattern, with each number of jobs, on each topology.
///
/// # Errors
/// [`ErrorKind::Usage`] for an unknown pattern.
pub fn profile(options: &Options) -> Result<Profile> {
    let mut jobs = options.jobs.clone();
    jobs.sort_unstable();
    jobs.dedup();
    let is_wanted = |name: &str| {
        options.patterns.is_empty() || options.patterns.iter().any(|other| other == name)
    };
    let mut loads = Vec::new();
    for (name, title, block) in PATTERNS.into_iter().filter(|(name, ..)| is_wanted(name)) {
        for jobs in &jobs {
            let plural = if *jobs == 1 { "" } else { "s" };
            let pattern =
                name.parse().map_err(|text: String| Error::new(ErrorKind::Usage, text))?;
            loads.push(Load {
                rw: vlane_bench::Pattern(pattern),
                bs: Size(block),
                depth: NonZeroU16::new(options.depth).unwrap_or(NonZeroU16::MIN),
                jobs: NonZeroU16::new(*jobs).unwrap_or(NonZeroU16::MIN),
                batch: options.batch,
                ..Load::named(format!("{title}, {jobs} job{plural}"))
            });
        }
    }
    let target = |name: &str, one_queue, threads: &[&str]| Target {
        one_queue,
        args: threads.iter().map(|word| (*word).to_owned()).collect(),
        ..Target::named(name)
    };
    let one_thread = ["--threads", "1"];
    let text = "Baseline has one queue for all jobs and one thread; MQ a queue per job and one \
                thread; MT a queue and a thread per job. With more jobs than CPUs the figures \
                show the cost of a topology, not its scaling.";
    Ok(Profile {
        text: vec![text.into()],
        repeats: options.repeats,
        time: options.time,
        ramp: options.ramp,
        size: BYTES,
        targets: vec![
            target("MT", false, &[]),
            target("MQ", false, &one_thread),
            target("Baseline", true, &one_thread),
        ],
        ..Profile::of("Topologies: one queue, many queues, many threads", loads)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn patterns_and_job_counts_meet_once() {
        let options = Options {
            jobs: vec![4, 1, 4],
            patterns: vec!["read".into(), "randread".into()],
            depth: 32,
            batch: 1,
            time: Duration::from_secs(1),
            ramp: Duration::ZERO,
            repeats: 3,
        };
        let profile = profile(&options).unwrap();
        let names: Vec<&str> = profile.loads.iter().map(|load| load.name.as_str()).collect();
        let expected = [
            "4K random read, 1 job",
            "4K random read, 4 jobs",
            "32K sequential read, 1 job",
            "32K sequential read, 4 jobs",
        ];
        assert_eq!(names, expected);
        let shared = profile.targets.iter().filter(|target| target.one_queue);
        assert_eq!(shared.map(|target| target.name.as_str()).collect::<Vec<_>>(), ["Baseline"]);
    }
}
