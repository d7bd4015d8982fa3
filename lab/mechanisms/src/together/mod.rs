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
//! | lanes | nothing | a queue for each vCPU, as many threads as pay | the same |
//! | pdc | nothing | the journal kept out of the host's page cache | the same |
//! | express | `vlane-fg` raises the foreground | express requests first, to the shortest queue | the same |
//! | loans | nothing | tells of completions | `vlane sched run` |
//! | all | `vlane-fg` | all of it | the same |

mod bed;
pub mod job;
mod report;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use vlane::values;

use self::bed::Bed;
use crate::express::Model;
use crate::express::root::{Program, Root};
use vlane_policy::loan::units::DEFAULT_WEIGHT;
use vlane_report::{Arms, Report};
use vlane_testbed::{Call, Installs, Progress, Raiser, Result, Rounds, in_turns, settle};

/// vCPUs of the guest that is measured.
pub const VCPUS: u16 = 2;
/// The launched program.
const PROGRAM: Program = Program::Sqlite3;
/// Bytes of the journal of each disk's file system.
const JOURNAL: u64 = 16 << 20;
/// Estimated time of a turn beside the measurement.
const AROUND: Duration = Duration::from_secs(20);
/// Bounds of a measurement's time.
const TIME: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3600));

/// The options.
#[derive(Debug, Clone, Args)]
#[command(mut_arg("latency", |latency| latency.default_value("2ms")))]
#[command(mut_arg("parallel", |parallel| parallel.default_value("2")))]
pub struct Options {
    /// Run one short round with one other guest, without conclusions
    #[arg(long)]
    quick: bool,
    /// Readers in the background
    #[arg(long, value_name = "N", default_value_t = 48,
        value_parser = values::whole::<u16>(1..=512))]
    readers: u16,
    /// Guests that only compute, with one vCPU each [default: 2, with --quick 1]
    #[arg(long, value_name = "N", value_parser = values::whole::<usize>(1..=64))]
    others: Option<usize>,
    #[command(flatten)]
    model: Model,
    /// Number of measurements of each variant [default: 5, with --quick 1]
    #[arg(long = "repeat", alias = "rounds", value_name = "N",
        value_parser = values::whole::<usize>(1..=1000))]
    rounds: Option<usize>,
    /// Time for readers and the foreground to settle
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = values::time_or_none)]
    ramp: Duration,
    /// Duration of each measurement [default: 20s, with --quick 5s]
    #[arg(long, value_name = "TIME", value_parser = values::time_between(TIME.0, TIME.1))]
    time: Option<Duration>,
    /// Begin a launch this often, instead of one after the other
    ///
    /// Waits count from the moment at which a launch was due. All variants have the same load then,
    /// as long as they keep up.
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    launch_every: Option<Duration>,
    /// Begin a mail with its two fsyncs this often, instead of one after the other
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    mail_every: Option<Duration>,
    /// Directory for the images, on a disk with some hundred MiB free
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    disk_dir: PathBuf,
    #[command(flatten)]
    fg: Raiser,
    #[command(flatten)]
    installs: Installs,
}

impl Options {
    /// Rounds, seconds of a measurement, and guests that only compute.
    fn extent(&self) -> (usize, Duration, usize) {
        let (rounds, seconds, others) = if self.quick { (1, 5, 1) } else { (5, 20, 2) };
        (
            self.rounds.unwrap_or(rounds),
            self.time.unwrap_or(Duration::from_secs(seconds)),
            self.others.unwrap_or(others),
        )
    }
}

/// Which mechanisms there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Condition {
    name: &'static str,
    lanes: bool,
    pdc: bool,
    /// `vlane-fg` raises the foreground in the guest, too.
    express: bool,
    loans: bool,
}

const NOTHING: Condition =
    Condition { name: "nothing", lanes: false, pdc: false, express: false, loans: false };

impl Condition {
    /// All of them, in the order of the report.
    const ALL: [Self; 6] = [
        NOTHING,
        Self { name: "lanes", lanes: true, ..NOTHING },
        Self { name: "pdc", pdc: true, ..NOTHING },
        Self { name: "express", express: true, ..NOTHING },
        Self { name: "loans", loans: true, ..NOTHING },
        Self { name: "all", lanes: true, pdc: true, express: true, loans: true },
    ];

    /// Queues of the disk.
    fn queues(self) -> u16 {
        if self.lanes { VCPUS } else { 1 }
    }

    /// Words of `vlane serve` for an image; `sched` is where a scheduler listens.
    fn serve(self, image: &Path, model: Model, sched: &Path) -> Vec<String> {
        let (image, queues) = (image.display().to_string(), self.queues().to_string());
        let threads = if self.lanes { "auto" } else { "1" };
        let cache = if self.pdc { "pdc" } else { "writeback" };
        let classes = if self.express { "on" } else { "off" };
        let sched =
            if self.loans { format!("--sched={}", sched.display()) } else { "--sched=off".into() };
        let mut words = [&image, "--format", "raw"].map(str::to_owned).to_vec();
        words.extend(["--queues", &queues, "--threads", threads].map(str::to_owned));
        words.extend(["--cache", cache, "--classes", classes, &sched].map(str::to_owned));
        words.extend(model.options());
        words
    }

    /// Words of `vlane sched run`, if it runs: a machine weighs as much as it has vCPUs, the
    /// measured one first. The host's own scheduler shares by threads. So all are entitled to the
    /// same in all conditions, which differ only in the order of running.
    fn schedule(self) -> Option<[String; 4]> {
        let (own, other) = (u32::from(VCPUS) * DEFAULT_WEIGHT, DEFAULT_WEIGHT);
        let words = ["--weight", &own.to_string(), "--weight", &other.to_string()];
        self.loans.then(|| words.map(str::to_owned))
    }
}

/// Results of one turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
struct Sample {
    /// In the guest.
    done: job::Done,
    /// CPU time of the guest, per second: CPUs.
    guest_cpus: f64,
    /// CPU time of all other guests, per second: CPUs.
    others_cpus: f64,
    /// The part that is due to them by weight, of all guests' CPU time and the scheduler's: CPUs.
    others_due_cpus: f64,
    /// CPU time of the back end, us per second.
    back_end_us: f64,
    /// Its requests, per second.
    requests: f64,
    /// Interrupts that the guest gets from it, per second.
    interrupts: f64,
    /// CPU time of the scheduler, us per second.
    scheduler_us: f64,
    /// Boosts, per second.
    boosts: f64,
    /// Pages of the image in the host's page cache at the end; none where the system does not tell.
    pages: Option<u64>,
    /// Pages of its journal among them.
    journal_pages: Option<u64>,
}

/// Measures with vlane's own file, and makes the report of it. Where threads cannot be real-time,
/// conditions with loans are left out, and the report says so.
///
/// # Errors
/// `ErrorKind::Missing` without a program that is needed, `ErrorKind::Interrupted`, and those of
/// guests, back ends and schedulers.
pub fn run(options: &Options, call: &Call<'_>) -> Result<Report> {
    let Call { vlane, begun, interrupt } = call;
    let (fg, host) = (options.fg.find(vlane)?, &options.installs.host()?);
    let impossible = vlane_sched::realtime::check().err().map(|error| error.to_string());
    let conditions: Vec<Condition> =
        Condition::ALL.into_iter().filter(|one| !one.loans || impossible.is_none()).collect();
    let names: Vec<String> = conditions.iter().map(|one| one.name.to_owned()).collect();
    let mut arms = Arms::named(&names);
    let (wanted, time, others) = options.extent();
    let mut progress = Progress::new(1 + wanted * arms.0.len());
    progress = progress.expecting(AROUND + options.ramp + time);
    progress.step(format!("{} guests boot", others + 1));
    let root = Root::find(host, &[PROGRAM])?;
    let mut bed = Bed::make(options, (*vlane, &fg), host, &root, &conditions, interrupt)?;
    settle(wanted, interrupt)?;
    let rounds = Rounds::measure(wanted, |round| {
        in_turns(&mut arms, round, |at, arm| {
            progress.step(format!("round {}: {arm}", round + 1));
            bed.turn(at, interrupt)
        })
    })?;
    progress.clear();
    arms.keep(rounds.whole());
    let shown = report::Shown {
        options: Options { rounds: Some(rounds.whole()), ..options.clone() },
        guest: bed.about.clone(),
        root,
        impossible,
    };
    Ok(rounds.marked(shown.report(&arms, begun)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    pub(super) fn options(words: &[&str]) -> Options {
        crate::tests::options(words)
    }

    #[test]
    fn quick_is_one_short_round() {
        let of = |words: &[&str]| {
            let (rounds, time, others) = options(words).extent();
            (rounds, time.as_secs(), others)
        };
        assert_eq!(of(&[]), (5, 20, 2));
        assert_eq!(of(&["--quick"]), (1, 5, 1));
        assert_eq!(of(&["--quick", "--repeat", "3", "--others", "3"]), (3, 5, 3));
    }

    fn words(condition: Condition) -> String {
        let model = Model { latency: Duration::from_millis(2), parallel: 2 };
        condition.serve(Path::new("disk"), model, Path::new("sched")).join(" ")
    }

    #[test]
    fn baseline_is_one_buffered_queue_and_thread() {
        let expected = "disk --format raw --queues 1 --threads 1 --cache writeback \
                        --classes off --sched=off --latency 2000us --parallel 2 --device-queues \
                        round-robin";
        assert_eq!(words(NOTHING), expected);
        assert_eq!((NOTHING.schedule(), NOTHING.express), (None, false));
    }

    /// The arm with all mechanisms has every switch.
    #[test]
    fn each_arm_differs_by_one_switch() {
        let switches = [
            ("lanes", "--queues 1 --threads 1", "--queues 2 --threads auto"),
            ("pdc", "--cache writeback", "--cache pdc"),
            ("express", "--classes off", "--classes on"),
            ("loans", "--sched=off", "--sched=sched"),
        ];
        let mut all = words(NOTHING);
        for (condition, (name, without, with)) in Condition::ALL[1..].iter().zip(switches) {
            assert_eq!(condition.name, name);
            assert_eq!(words(*condition), words(NOTHING).replace(without, with));
            assert_eq!(condition.express, name == "express");
            assert_eq!(condition.schedule().is_some(), name == "loans");
            all = all.replace(without, with);
        }
        let last = Condition::ALL[5];
        assert_eq!((last.name, words(last)), ("all", all));
        assert!(last.express);
        let scheduler = |condition: Condition| condition.schedule().unwrap_or_default().join(" ");
        assert_eq!(scheduler(last), "--weight 512 --weight 256");
        assert_eq!(scheduler(Condition::ALL[4]), scheduler(last));
    }
}
