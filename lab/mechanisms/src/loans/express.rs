//! Express and loans together, measured with real guests. Each has a process that computes all the
//! time. The first also has a program in the foreground, which reads its vlane disk, and readers in
//! the background of the same disk.
//!
//! The two mechanisms help at different ends. With classes a read of the foreground does not wait
//! for the background's in the back end. With loans the guest runs when the read is complete. Their
//! combined effect depends on the completions that loans are spent on: those of the background's
//! readers come more often, and each boost for one of them is owed.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use vlane_error::counted;
use vlane_guest::{Initramfs, Install};
use vlane_trace::PriorityClass;

use super::bed::{self, Bed, Plan};
use super::express_report;
use super::figures::{Measured, Sample};
use vlane_capture::Trace;
use vlane_client::progress::Progress;
use vlane_report::Report;
use vlane_report::build::Begun;
use vlane_report::judge::Arms;
use vlane_testbed::Rounds;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
pub use vlane_testbed::guests::Machines;
use vlane_testbed::interrupt::Interrupt;

/// So many reads of the foreground's are a job.
const READS: u64 = 50;
/// Sectors of one of these reads.
const READ: u64 = 8;
/// Requests that the device works on at a time.
const PARALLEL: usize = 4;

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
    /// Readers in the background of the first.
    pub readers: usize,
    /// The device's time for a request.
    pub latency: Duration,
    /// Time of each measurement.
    pub time: Duration,
    /// Rounds.
    pub rounds: usize,
    /// More arguments of `vlane sched run`.
    pub arguments: Vec<String>,
    /// Missing programs may be installed.
    pub install: Install,
}

/// A compared arm.
struct Arm {
    name: &'static str,
    /// The disk with classes, or the one without.
    has_classes: bool,
    /// The completions that loans are spent on; none: EEVDF alone.
    completions: Option<&'static str>,
}

const ARMS: [Arm; 5] = [
    Arm { name: "neither", has_classes: false, completions: None },
    Arm { name: "loans", has_classes: false, completions: Some("all") },
    Arm { name: "express", has_classes: true, completions: None },
    Arm { name: "express, loans for all", has_classes: true, completions: Some("all") },
    Arm { name: "express, loans for express", has_classes: true, completions: Some("express") },
];

/// Script of the guest with I/O. The background is idle in the guest's I/O priorities, the
/// foreground best effort 0, and real-time for the guest's CPU. The guest's own schedulers are not
/// measured.
fn first(readers: usize) -> String {
    format!(
        r#"
(while :; do :; done) &
echo RESULT ready=1
n=0
while read -r disk; do
    # mq-deadline holds back what is idle as long as anything else is on its way: the guest would do by itself what is measured.
    echo none >/sys/block/$disk/queue/scheduler
    rm -f /tmp/use-*
    # One may be about to start when the others are ended.
    killall dd 2>/dev/null; sleep 1; killall dd 2>/dev/null
    >/tmp/use-$disk
    i=0
    while [ $i -lt {readers} ]; do
        while [ -e /tmp/use-$disk ]; do ionice -c 3 dd if=/dev/$disk of=/dev/null bs=4k iflag=direct 2>/dev/null; done &
        i=$((i + 1))
    done
    disk=$disk chrt -f 1 sh -c 'while [ -e /tmp/use-$disk ]; do
        ionice -c 2 -n 0 dd if=/dev/$disk of=/dev/null bs=4k iflag=direct 2>/dev/null
    done' &
    n=$((n + 1))
    echo RESULT load$n=1
done
"#
    )
}

fn check(options: &Options) -> Result<()> {
    let invalid = |text: &str| Err(Error::new(ErrorKind::Usage, text));
    if !(2..=64).contains(&options.guests) {
        return invalid("there are between 2 and 64 real guests; change --guests");
    }
    if options.rounds == 0 || options.time < Duration::from_secs(1) {
        return invalid("measure at least once, for a second");
    }
    Ok(())
}

/// Adds the foreground's latencies, and the background's share.
fn add_trace(sample: &mut Sample, trace: &Trace) -> Result<()> {
    let is_foreground = |priority: PriorityClass| priority == PriorityClass::BestEffort;
    let records = trace.requests.iter().map(|request| request.record);
    let (mut foreground, background): (Vec<_>, Vec<_>) =
        records.partition(|record| is_foreground(record.priority.class()));
    foreground.sort_unstable_by_key(|record| record.submit);
    let pairs = foreground.windows(2);
    sample.responses =
        pairs.filter_map(|pair| pair[1].submit.checked_sub(pair[0].completed())).collect();
    sample.services = foreground.iter().map(|record| record.service).collect();
    // The program reads the disk from its beginning.
    let begins = foreground.iter().filter(|record| record.sector.is_multiple_of(READS * READ));
    let begins: Vec<u64> = begins.map(|record| record.submit).collect();
    sample.jobs = begins.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    sample.background = background.len() as u64;
    if sample.jobs.is_empty() {
        let text = format!(
            "the foreground did {} while it was measured, too few for a whole job of {READS}; \
             measure longer (--time)",
            counted(foreground.len(), "read")
        );
        return Err(Error::new(ErrorKind::Process, text));
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
    let mut progress = Progress::new(1 + options.rounds * ARMS.len())
        .expecting(options.time + Duration::from_secs(5));
    progress.step(format!("{} guests boot", options.guests));
    let disk = |classes: &str| -> Vec<OsString> {
        let latency = options.latency.as_micros().to_string();
        let parallel = PARALLEL.to_string();
        let words = ["--latency", &latency, "--parallel", &parallel, "--classes", classes];
        words.into_iter().map(OsString::from).collect()
    };
    let plan = Plan {
        program: &options.program,
        machines: options.machines,
        guests: options.guests,
        install: options.install,
        disks: vec![disk("off"), disk("on")],
        first: Initramfs::new(first(options.readers)).programs(["chrt", "ionice"]),
    };
    let mut bed = Bed::make(&plan, &mut progress, interrupt)?;
    let mut arms: Arms<Sample> = Arms::once(ARMS.iter().map(|arm| arm.name.to_owned()));
    let rounds = Rounds::measure(options.rounds, |round| {
        // The disks in turns, and within each its arms: switching takes the guest some seconds.
        for has_classes in [round % 2 == 1, round.is_multiple_of(2)] {
            let disk = usize::from(has_classes);
            bed.load(disk, interrupt)?;
            let mut numbers: Vec<usize> =
                (0..ARMS.len()).filter(|arm| ARMS[*arm].has_classes == has_classes).collect();
            let first = round % numbers.len();
            numbers.rotate_left(first);
            for number in numbers {
                let Arm { name, completions, .. } = ARMS[number];
                progress.step(name.to_owned());
                let scheduler = completions.map(|completions| arguments(options, completions));
                let (mut sample, trace) =
                    bed.measure(disk, scheduler.as_deref(), options.time, interrupt)?;
                add_trace(&mut sample, &trace)?;
                arms.0[number].rounds.push(sample);
            }
        }
        Ok(())
    })?;
    drop(progress);
    arms.keep(rounds.whole());
    let weights = vec![vlane_policy::loan::units::DEFAULT_WEIGHT; options.guests];
    let measured = Measured {
        loads: vec![arms],
        weights,
        begun,
        rounds: rounds.whole(),
        time: options.time,
        about: about(options, &bed.what),
        warnings: bed::warnings(options.machines),
    };
    let report = express_report::make(&measured, &bed.what, READS);
    let mut report = report.context(ErrorKind::Io, || "cannot make the report")?;
    rounds.mark(&mut report);
    Ok(report)
}

/// Of `vlane sched run`.
fn arguments(options: &Options, completions: &str) -> Vec<OsString> {
    let words = ["--completions", completions];
    words
        .into_iter()
        .chain(options.arguments.iter().map(String::as_str))
        .map(OsString::from)
        .collect()
}

fn about(options: &Options, guests: &str) -> String {
    format!(
        "{} guests ({guests}), each with a process that computes all the time. The first also has \
         {} in the background (I/O priority idle) and a program in the foreground (best effort 0, \
         real-time for the guest's own CPU scheduler) that reads 4 KiB after 4 KiB; {READS} of \
         them are a job. The device works on {PARALLEL} requests at a time, {:?} each. A response \
         lasts from vlane's answer to the foreground's next request; the service before it from \
         the lane's taking the request to its answer. The guest's I/O scheduler is none. vlane's \
         lanes are real-time under all arms.",
        options.guests,
        counted(options.readers, "reader"),
        options.latency
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use vlane_trace::{Header, Priority, Record, RequestKind, Status};

    use super::*;

    fn record(submit: u64, service: u64, sector: u64, priority: u32) -> Record {
        Record {
            kind: RequestKind::Read,
            status: Status::Ok,
            lane: 0,
            priority: Priority(priority),
            submit,
            service,
            sector,
            sectors: u32::try_from(READ).unwrap(),
            seq: 0,
            after: 0,
            more: false,
            unmap: false,
            hash: 0,
        }
    }

    #[test]
    fn foreground_jobs_are_separated() {
        let (foreground, background) = (2 << 13, 3 << 13);
        let mut records = Vec::new();
        for read in 0..=2 * READS {
            records.push(record(100 * read, 30, READ * read, foreground));
            records.push(record(100 * read + 1, 90, 0, background));
        }
        let mut sample = Sample::default();
        let header = Header::default();
        add_trace(&mut sample, &Trace::from_records(header.clone(), records.clone())).unwrap();
        assert_eq!(sample.jobs, [100 * READS; 2]);
        assert_eq!((sample.services.len(), sample.services[0], sample.background), (101, 30, 101));
        assert_eq!(sample.responses, [70; 100]);
        records.truncate(90);
        assert!(add_trace(&mut sample, &Trace::from_records(header, records)).is_err());
    }
}
