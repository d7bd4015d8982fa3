//! The live scheduler, measured with real guests. Each has a process that computes all the time.
//! The first also reads and writes its vlane disk, one small synchronous request after the other.
//!
//! The set-up is a user's: `vlane serve` in a process of its own reports completed I/O to `vlane
//! sched run`, another process. A completion's wait is taken from a recording of the volume (`vlane
//! record`): from the answer of one request to the submission of the next. So EEVDF alone and the
//! schedulers are measured in the same way, outside the guest.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use vlane_report::build::Begun;

use vlane_guest::{Initramfs, Install};

use super::bed::{self, Bed, Plan};
use super::figures::{Measured, Sample};
use super::live_report::{self, Labels};
use vlane_capture::Trace;
use vlane_client::progress::Progress;
use vlane_report::Report;
use vlane_report::judge::Arms;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
pub use vlane_testbed::guests::Machines;
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::rounds::{Rounds, in_turns};

/// The options.
#[derive(Debug, Clone)]
pub struct Options {
    /// The command line, for the report.
    pub command: String,
    /// vlane's own file.
    pub program: PathBuf,
    /// Which guests.
    pub machines: Machines,
    /// How many, the one with I/O included.
    pub guests: usize,
    /// The device's time for a request: from one completion to the next, without waiting.
    pub latencies: Vec<Duration>,
    /// Time of each measurement.
    pub time: Duration,
    /// Rounds.
    pub rounds: usize,
    /// Schedulers; EEVDF alone is measured always.
    pub schedulers: Vec<Scheduler>,
    /// Missing programs may be installed.
    pub install: Install,
}

/// One way of `vlane sched run`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheduler {
    /// Its name.
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<String>,
}

/// Script of the guest with I/O: computes, and reads and writes the disk named to it.
const FIRST: &str = r#"
(while :; do :; done) &
echo RESULT ready=1
io=
n=0
while read -r disk; do
    [ -n "$io" ] && kill $io && killall dd && wait $io
    while chrt -f 1 dd if=/dev/$disk of=/dev/$disk bs=4k iflag=direct oflag=direct conv=notrunc 2>/tmp/dd; do :; done &
    io=$!
    n=$((n + 1))
    echo RESULT load$n=1
done
"#;
/// From each answer to the next request: with one request at a time, what the guest needs to take
/// it and to go on.
fn responses(trace: &Trace) -> Result<Vec<u64>> {
    let mut requests: Vec<(u64, u64)> = trace
        .requests
        .iter()
        .map(|request| (request.record.submit, request.record.completed()))
        .collect();
    requests.sort_unstable();
    let pairs = requests.windows(2).filter_map(|pair| pair[1].0.checked_sub(pair[0].1));
    let responses: Vec<u64> = pairs.collect();
    if responses.is_empty() {
        return Err(Error::new(
            ErrorKind::Process,
            "the guest with I/O did none while it was measured",
        ));
    }
    Ok(responses)
}

fn check(options: &Options) -> Result<()> {
    let invalid = |text: &str| Err(Error::new(ErrorKind::Usage, text));
    if !(2..=64).contains(&options.guests) {
        return invalid("there are between 2 and 64 real guests; change --guests");
    }
    if options.rounds == 0 || options.time < Duration::from_secs(1) || options.latencies.is_empty()
    {
        return invalid("measure at least once, for a second, with one --gap");
    }
    Ok(())
}

/// Measures, and makes the report of it.
///
/// # Errors
/// [`ErrorKind::Usage`] for options that make no sense, [`ErrorKind::Invalid`] for an unfit
/// machine, [`ErrorKind::Interrupted`], and errors of guests, back ends and schedulers.
pub fn run(options: &Options, interrupt: &Interrupt) -> Result<Report> {
    check(options)?;
    vlane_sched::live::probe::real_time().map_err(super::live::sched)?;
    let begun = Begun::now(&options.command);
    let arms: Vec<Option<&Scheduler>> =
        std::iter::once(None).chain(options.schedulers.iter().map(Some)).collect();
    let name =
        |arm: &Option<&Scheduler>| arm.map_or_else(|| "EEVDF".to_owned(), |arm| arm.name.clone());
    let steps = 1 + options.rounds * options.latencies.len() * arms.len();
    let mut progress = Progress::new(steps).expecting(options.time + Duration::from_secs(5));
    progress.step(format!("{} guests boot", options.guests));
    let disk =
        |latency: &Duration| vec!["--latency".into(), latency.as_micros().to_string().into()];
    let plan = Plan {
        program: &options.program,
        machines: options.machines,
        guests: options.guests,
        install: options.install,
        disks: options.latencies.iter().map(disk).collect(),
        first: Initramfs::new(FIRST).programs(["chrt"]),
    };
    let mut bed = Bed::make(&plan, &mut progress, interrupt)?;
    let names = || arms.iter().map(name);
    let mut loads: Vec<Arms<Sample>> =
        options.latencies.iter().map(|_| Arms::once(names())).collect();
    let rounds = Rounds::measure(options.rounds, |round| {
        for (load, latency) in options.latencies.iter().enumerate() {
            bed.load(load, interrupt)?;
            in_turns(&mut loads[load], round, |at, arm| {
                progress.step(format!("a device of {latency:?}, {arm}"));
                let words =
                    |arm: &Scheduler| arm.arguments.iter().map(OsString::from).collect::<Vec<_>>();
                let scheduler = arms[at].map(words);
                let (sample, trace) =
                    bed.measure(load, scheduler.as_deref(), options.time, interrupt)?;
                Ok(Sample { responses: responses(&trace)?, ..sample })
            })?;
        }
        Ok(())
    })?;
    drop(progress);
    loads.iter_mut().for_each(|arms| arms.keep(rounds.whole()));
    let weights = vec![vlane_policy::loan::units::DEFAULT_WEIGHT; options.guests];
    let measured = Measured {
        loads,
        weights,
        begun,
        rounds: rounds.whole(),
        time: options.time,
        about: format!(
            "{} guests ({}), each with a process that computes all the time; the first also reads \
             and writes 4 KiB of its vlane disk, synchronously, as fast as it can, by a process \
             that is real-time in the guest: the guest's own scheduler is not what is measured. A \
             response lasts from vlane's answer to the guest's next request. vlane's lanes are \
             real-time under all schedulers, EEVDF included.",
            options.guests, bed.what
        ),
        warnings: bed::warnings(options.machines),
    };
    let report = live_report::make(&labels(options, &bed.what), &measured);
    let mut report = report.context(ErrorKind::Io, || "cannot make the report")?;
    rounds.mark(&mut report);
    Ok(report)
}

/// The report's words for each latency, and the kind of the guests.
fn labels(options: &Options, what: &str) -> Labels {
    Labels {
        loads: options
            .latencies
            .iter()
            .map(|latency| format!("a device that takes {latency:?}"))
            .collect(),
        ids: options
            .latencies
            .iter()
            .map(|latency| format!("latency-{}us", latency.as_micros()))
            .collect(),
        versions: vec![("guests".into(), what.to_owned())],
    }
}
