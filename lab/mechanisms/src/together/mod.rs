//! All together: one guest on an overcommitted host, as the baseline, with each mechanism alone,
//! and with all of them.
//!
//! The guest computes on every vCPU, and a crowd of readers (fio) reads its disk. Its foreground
//! launches a program repeatedly with a cold cache, and writes mails, each with its fsync. Other
//! guests of the same host only compute. The guest has a disk for each condition, each with a back
//! end of its own and the same image, so all conditions are measured in turns within one boot. They
//! differ only in the disk used, in raising the foreground, and in running a scheduler. Machines
//! weigh as much as they have vCPUs, so that the scheduler gives each the same share as the host's
//! own.
//!
//! | condition | in the guest | the back end | the host |
//! |---|---|---|---|
//! | nothing | nothing | one queue, one thread, the host's page cache | its own scheduler |
//! | lanes | nothing | a queue and a thread for each vCPU | the same |
//! | pdc | nothing | the journal kept out of the host's page cache | the same |
//! | express | `vlane-fg` raises the foreground | express requests first, to the shortest queue | the same |
//! | loans | nothing | tells of completions | `vlane sched run` |
//! | all | `vlane-fg` | all of it | `vlane sched run --completions express` |

mod bed;
pub mod job;
mod report;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use vlane_guest::Host;

use self::bed::Bed;
use crate::express::Model;
use crate::express::root::{Program, Root};
use vlane_client::progress::Progress;
use vlane_policy::loan::units::DEFAULT_WEIGHT;
use vlane_report::Report;
use vlane_report::build::Begun;
use vlane_report::judge::Arms;
use vlane_testbed::error::{Error, ErrorKind, Result};
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::rounds::{Rounds, in_turns};

/// vCPUs of the guest that is measured.
pub const VCPUS: u16 = 2;
/// Estimated time of a turn beside the measurement.
const AROUND: Duration = Duration::from_secs(20);

/// The options.
#[derive(Debug, Clone)]
pub struct Options {
    /// vlane's own file.
    pub vlane: PathBuf,
    /// vlane-fg's file.
    pub fg: PathBuf,
    /// The command that makes this report again.
    pub command: String,
    /// The launched program.
    pub program: Program,
    /// Readers in the background.
    pub readers: u16,
    /// Guests that only compute.
    pub others: usize,
    /// The drive behind all disks.
    pub model: Model,
    /// Bytes of the journal of each disk's file system.
    pub journal: u64,
    /// How often everything is measured.
    pub rounds: usize,
    /// Time in which readers and the foreground come to rest.
    pub ramp: Duration,
    /// Time of each measurement.
    pub time: Duration,
    /// For the images.
    pub disk_dir: PathBuf,
}

/// Which mechanisms there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Condition {
    /// Its name.
    pub name: &'static str,
    lanes: bool,
    pdc: bool,
    express: bool,
    loans: bool,
}

const NOTHING: Condition =
    Condition { name: "nothing", lanes: false, pdc: false, express: false, loans: false };

impl Condition {
    /// All of them, in the order of the report.
    pub const ALL: [Self; 6] = [
        NOTHING,
        Self { name: "lanes", lanes: true, ..NOTHING },
        Self { name: "pdc", pdc: true, ..NOTHING },
        Self { name: "express", express: true, ..NOTHING },
        Self { name: "loans", loans: true, ..NOTHING },
        Self { name: "all", lanes: true, pdc: true, express: true, loans: true },
    ];

    /// Queues of the disk, and threads of its back end.
    fn queues(self) -> u16 {
        if self.lanes { VCPUS } else { 1 }
    }

    /// True if `vlane-fg` raises the foreground in the guest.
    fn is_raised(self) -> bool {
        self.express
    }

    /// Words of `vlane serve` for an image; `sched` is where a scheduler listens.
    fn serve(self, image: &Path, model: Model, sched: &Path) -> Vec<String> {
        let queues = self.queues().to_string();
        let mut words = vec!["serve".to_owned(), image.display().to_string()];
        words.extend(
            ["--format", "raw", "--queues", &queues, "--threads", &queues].map(str::to_owned),
        );
        words.extend(["--cache", if self.pdc { "pdc" } else { "writeback" }].map(str::to_owned));
        words.extend(["--classes", if self.express { "on" } else { "off" }].map(str::to_owned));
        words.push(if self.loans {
            format!("--sched={}", sched.display())
        } else {
            "--sched=off".into()
        });
        words.extend(model.options());
        words
    }

    /// Words of `vlane sched run`, if it runs: a machine weighs as much as it has vCPUs, the
    /// measured one first. The host's own scheduler shares by threads. So all are entitled to the
    /// same in all conditions, which differ only in the order of running.
    fn schedule(self) -> Option<Vec<String>> {
        let whose = if self.express { "express" } else { "all" };
        let (own, others) =
            ((u32::from(VCPUS) * DEFAULT_WEIGHT).to_string(), DEFAULT_WEIGHT.to_string());
        let words = ["--completions", whose, "--weight", &own, "--weight", &others];
        self.loans.then(|| words.map(str::to_owned).to_vec())
    }
}

/// Results of one turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Sample {
    /// In the guest.
    pub done: job::Done,
    /// CPU time of the guest, per second: CPUs.
    pub guest_cpus: f64,
    /// CPU time of all other guests, per second: CPUs.
    pub others_cpus: f64,
    /// CPU time of the back end, us per second.
    pub back_end_us: f64,
    /// Its requests, per second.
    pub requests: f64,
    /// CPU time of the scheduler, us per second.
    pub scheduler_us: f64,
    /// Boosts, per second.
    pub boosts: f64,
    /// Pages of the image in the host's page cache at the end; none where the system does not tell.
    pub pages: Option<u64>,
    /// Pages of its journal among them.
    pub journal_pages: Option<u64>,
}

impl Options {
    fn check(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Usage, text));
        if self.rounds == 0 || self.time < Duration::from_secs(1) {
            return invalid("measure at least once, for a second; change --repeat, --time".into());
        }
        if !self.fg.is_file() {
            let text = format!(
                "{}: vlane-fg is not there; it is built with vlane (cargo build -p vlane-fg), or \
                 name it with --fg",
                self.fg.display()
            );
            return Err(Error::new(ErrorKind::Missing, text));
        }
        Ok(())
    }
}

/// Measures, and makes the report of it. Where threads cannot be real-time, what has loans in it is
/// left out, and the report says so.
///
/// # Errors
/// [`ErrorKind::Usage`] for options that make no sense, [`ErrorKind::Missing`] without a program
/// that is needed, [`ErrorKind::Interrupted`], and what guests, back ends and schedulers say.
pub fn run(options: &Options, host: &Host, interrupt: &Interrupt) -> Result<Report> {
    options.check()?;
    let begun = Begun::now(&options.command);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let impossible = vlane_sched::live::probe::real_time().err().map(|error| error.to_string());
    let conditions: Vec<Condition> =
        Condition::ALL.into_iter().filter(|one| !one.loans || impossible.is_none()).collect();
    let names: Vec<String> = conditions.iter().map(|one| one.name.to_owned()).collect();
    let mut arms = Arms::named(&names);
    let count = arms.0.len();
    let mut progress =
        Progress::new(1 + options.rounds * count).expecting(AROUND + options.ramp + options.time);
    progress.step(format!("{} guests boot", options.others + 1));
    let root = Root::find(host, &[options.program])?;
    let mut bed = Bed::make(options, host, &root, &conditions, interrupt)?;
    let rounds = Rounds::measure(options.rounds, |round| {
        in_turns(&mut arms, round, |at, arm| {
            progress.step(format!("round {}: {arm}", round + 1));
            bed.turn(at, interrupt)
        })
    })?;
    progress.clear();
    arms.keep(rounds.whole());
    let options = &Options { rounds: rounds.whole(), ..options.clone() };
    let seen = report::Seen {
        guest: bed.about.clone(),
        root,
        load: load.split_whitespace().next().and_then(|word| word.parse().ok()),
        impossible,
    };
    let mut report = report::make(options, &arms, &seen, &begun);
    rounds.mark(&mut report);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(condition: Condition) -> String {
        let model = Model { latency: Duration::from_millis(2), parallel: 2 };
        condition.serve(Path::new("disk"), model, Path::new("sched")).join(" ")
    }

    #[test]
    fn baseline_is_one_buffered_queue_and_thread() {
        let expected = "serve disk --format raw --queues 1 --threads 1 --cache writeback \
                        --classes off --sched=off --latency 2000us --parallel 2 --device-queues \
                        round-robin";
        assert_eq!(words(NOTHING), expected);
        assert_eq!((NOTHING.schedule(), NOTHING.is_raised()), (None, false));
    }

    /// The arm with all mechanisms has every switch.
    #[test]
    fn each_arm_differs_by_one_switch() {
        let switches = [
            ("lanes", "--queues 1 --threads 1", "--queues 2 --threads 2"),
            ("pdc", "--cache writeback", "--cache pdc"),
            ("express", "--classes off", "--classes on"),
            ("loans", "--sched=off", "--sched=sched"),
        ];
        let mut all = words(NOTHING);
        for (condition, (name, without, with)) in Condition::ALL[1..].iter().zip(switches) {
            assert_eq!(condition.name, name);
            assert_eq!(words(*condition), words(NOTHING).replace(without, with));
            assert_eq!(condition.is_raised(), name == "express");
            assert_eq!(condition.schedule().is_some(), name == "loans");
            all = all.replace(without, with);
        }
        let last = Condition::ALL[5];
        assert_eq!((last.name, words(last)), ("all", all));
        assert!(last.is_raised());
        let scheduler = |condition: Condition| condition.schedule().unwrap_or_default().join(" ");
        assert_eq!(scheduler(last), "--completions express --weight 512 --weight 256");
        assert_eq!(scheduler(Condition::ALL[4]), "--completions all --weight 512 --weight 256");
    }
}
