//! The live scheduler, measured with real guests. Each has a process that computes all the time.
//! The first also uses its vlane disks.
//!
//! The set-up is a user's: `vlane serve` in a process of its own reports completed I/O to `vlane
//! sched run`, another process. A completion's wait is taken from a recording of the volume (`vlane
//! record`): from the answer of one request to the submission of the next. So EEVDF alone and the
//! schedulers are measured in the same way, outside the guest.
//!
//! Usually the first guest reads and writes, one small synchronous request after the other. With
//! express it has a program in the foreground, which reads, and readers in the background of the
//! same disk. Then express and loans are measured together. The two mechanisms help at different
//! ends. With classes a read of the foreground does not wait for the background's in the back end.
//! With loans the guest runs when the read is complete. Their combined effect depends on the
//! completions that loans are spent on: those of the background's readers come more often, and each
//! boost for one of them is owed.

use std::ffi::OsString;
use std::time::Duration;

use vlane_error::counted;
use vlane_guest::Initramfs;
use vlane_policy::loan::Policy;
use vlane_policy::loan::units::DEFAULT_WEIGHT;
use vlane_trace::{PriorityClass, Record, RequestKind};

use super::bed::{self, Bed};
use super::figures::{EXPRESS, LIVE, Seen};
use super::study::Study;
use super::{DEFAULTS, Options, sched};
use vlane_capture::Trace;
use vlane_report::Report;
use vlane_testbed::{Call, ErrorKind, Fail, Machines, Progress, Result, settle, usage, word};

/// So many reads of the foreground's are a job.
const READS: u64 = 50;
/// Sectors of one of these reads.
const READ: u64 = 8;
/// Requests that the device works on at a time, with express.
const PARALLEL: &str = "4";

/// One of the compared schedulers.
struct Arm {
    name: String,
    /// The disk that it is measured on, if not that of the load.
    disk: Option<usize>,
    /// Arguments of `vlane sched run`; none: EEVDF alone.
    scheduler: Option<Vec<String>>,
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

/// The same with express. The background is idle in the guest's I/O priorities, the foreground best
/// effort 0, and real-time for the guest's CPU. The guest's own schedulers are not measured.
const FIRST_EXPRESS: &str = r#"
(while :; do :; done) &
echo RESULT ready=1
n=0
while read -r disk; do
    # mq-deadline holds back what is idle as long as anything else is on its way: the guest would do by itself what is measured.
    echo none >/sys/block/$disk/queue/scheduler
    rm -f /tmp/use-*
    # One may be about to start when the others are ended.
    killall dd vlane 2>/dev/null; sleep 1; killall dd vlane 2>/dev/null
    >/tmp/use-$disk
    i=0
    while [ $i -lt @READERS@ ]; do
        while [ -e /tmp/use-$disk ]; do ionice -c 3 dd if=/dev/$disk of=/dev/null bs=4k iflag=direct 2>/dev/null; done &
        i=$((i + 1))
    done
    disk=$disk chrt -f 1 sh -c 'while [ -e /tmp/use-$disk ]; do
        ionice -c 2 -n 0 @FOREGROUND@
    done' &
    n=$((n + 1))
    echo RESULT load$n=1
done
"#;

/// The foreground's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Foreground {
    /// All that the guest does.
    All,
    /// The program reads.
    Reads,
    /// The program writes, each time with an fsync.
    Syncs,
}

impl Foreground {
    /// The program.
    fn command(self) -> &'static str {
        match self {
            Self::Syncs => "vlane express-read /dev/$disk --sync --reads 100000 >/dev/null 2>&1",
            _ => "dd if=/dev/$disk of=/dev/null bs=4k iflag=direct 2>/dev/null",
        }
    }

    /// True for a request of the program's, or for its sake: a flush has no priority.
    fn has(self, record: &Record) -> bool {
        match self {
            Self::All => true,
            Self::Reads => record.priority.class() == PriorityClass::BestEffort,
            Self::Syncs => record.kind != RequestKind::Read,
        }
    }

    /// True for the first request of a job. The program that reads begins at the disk's beginning.
    fn begins(self, record: &Record) -> bool {
        match self {
            Self::Syncs => record.kind == RequestKind::Write,
            _ => record.sector.is_multiple_of(READS * READ),
        }
    }

    /// A job, in words.
    fn job(self) -> String {
        match self {
            Self::Syncs => "a write with its fsync".into(),
            _ => format!("a job of {READS}"),
        }
    }
}

impl Options {
    /// The work of the first guest's foreground.
    fn foreground(&self) -> Foreground {
        match (self.express, self.fsync) {
            (false, _) => Foreground::All,
            (true, false) => Foreground::Reads,
            (true, true) => Foreground::Syncs,
        }
    }

    /// The arms with express: the disk with classes or the one without, and the completions that
    /// loans are spent on.
    fn express_arms(&self) -> Vec<Arm> {
        let arm = |(name, disk, completions): (&str, usize, Option<&str>)| Arm {
            name: name.to_owned(),
            disk: Some(disk),
            scheduler: completions.map(|completions| {
                let words = ["--completions", completions].map(str::to_owned);
                words.into_iter().chain(self.scheduler_arguments()).collect()
            }),
        };
        let arms = [
            ("neither", 0, None),
            ("loans", 0, Some("all")),
            ("express", 1, None),
            ("express, loans for all", 1, Some("all")),
            ("express, loans for express", 1, Some("express")),
        ];
        arms.into_iter().map(arm).collect()
    }

    /// The first guest's script with express.
    fn express_script(&self) -> String {
        FIRST_EXPRESS
            .replace("@READERS@", &self.readers.to_string())
            .replace("@FOREGROUND@", self.foreground().command())
    }

    /// The id and the name of the load with express.
    fn express_load(&self) -> (String, String) {
        let (id, name) = match self.foreground() {
            Foreground::Syncs => ("express-loans-fsync", "a program with fsyncs beside readers"),
            _ => ("express-loans", "a foreground program beside readers"),
        };
        (id.to_owned(), name.to_owned())
    }

    /// EEVDF, policies with the given options, and the default scheduler.
    fn arms(&self) -> Vec<Arm> {
        let arm = |name: &str, scheduler| Arm { name: name.to_owned(), disk: None, scheduler };
        let policy = |policy: Policy| {
            let words = ["--policy", policy.name()].map(str::to_owned);
            arm(policy.name(), Some(words.into_iter().chain(self.scheduler_arguments()).collect()))
        };
        let mut arms: Vec<Arm> = Policy::ALL.into_iter().map(policy).collect();
        // Without a file it is `adaptive`, once more.
        if !self.only.is_empty() || self.config.is_some() {
            arms.push(arm(DEFAULTS, Some(Vec::new())));
        }
        arms.retain(|arm| self.has(&arm.name));
        arms.insert(0, arm("EEVDF", None));
        arms
    }

    /// Arguments passed on to `vlane sched run`.
    fn scheduler_arguments(&self) -> impl Iterator<Item = String> {
        let config = self.config.iter().map(|file| ["--config".into(), file.display().to_string()]);
        let hold_back = self.hold_back.map(|arg| ["--hold-back".into(), word(arg)]);
        config.chain(hold_back).flatten()
    }
}

/// Adds a recording's figures of the foreground, and of the background: all else.
fn add_trace(seen: &mut Seen, trace: &Trace, foreground: Foreground) -> Result<()> {
    let records = trace.requests.iter().map(|request| request.record);
    let (mut own, background): (Vec<_>, Vec<_>) =
        records.partition(|record| foreground.has(record));
    own.sort_unstable_by_key(|record| record.submit);
    let pairs = own.windows(2);
    seen.responses =
        pairs.filter_map(|pair| pair[1].submit.checked_sub(pair[0].completed())).collect();
    seen.services = own.iter().map(|record| record.service).collect();
    let begins = own.iter().filter(|record| foreground.begins(record));
    let begins: Vec<u64> = begins.map(|record| record.submit).collect();
    seen.jobs = begins.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    seen.background = background.len() as u64;
    let text = if foreground != Foreground::All && seen.jobs.is_empty() {
        format!(
            "the foreground did {} while it was measured, too few for {}; measure longer (--time)",
            counted(own.len(), "request"),
            foreground.job()
        )
    } else if seen.responses.is_empty() {
        "the guest with I/O did none while it was measured".to_owned()
    } else {
        return Ok(());
    };
    ErrorKind::Process.fail(text)
}

/// Measures real guests, and makes the report.
///
/// # Errors
/// [`ErrorKind::Usage`] for options that make no sense, [`ErrorKind::Invalid`] for an unfit
/// machine, [`ErrorKind::Interrupted`], and errors of guests, back ends and schedulers.
pub fn run(options: &Options, machines: Machines, call: &Call<'_>) -> Result<Report> {
    if options.weights != [DEFAULT_WEIGHT] {
        return usage("--weights does not go with --real: all real guests weigh the same");
    }
    if options.guests() > 64 {
        return usage("there are between 2 and 64 real guests; change --guests");
    }
    if options.time < Duration::from_secs(1) {
        return usage("measure at least once, for a second");
    }
    vlane_sched::realtime::check().map_err(sched)?;
    let Call { vlane, begun, interrupt } = call;
    let gaps = options.gaps(&[20, 5]);
    let load = |gap: &Duration| {
        (format!("latency-{}us", gap.as_micros()), format!("a device that takes {gap:?}"))
    };
    let classes = |classes| disk(options.latency, &["--parallel", PARALLEL, "--classes", classes]);
    let (arms, loads, disks, first) = match options.express {
        true => (
            options.express_arms(),
            vec![options.express_load()],
            vec![classes("off"), classes("on")],
            Initramfs::new(options.express_script())
                .programs(["chrt", "ionice"])
                .program_at("vlane", vlane),
        ),
        false => (
            options.arms(),
            gaps.iter().map(load).collect(),
            gaps.iter().map(|gap| disk(*gap, &[])).collect(),
            Initramfs::new(FIRST).programs(["chrt"]),
        ),
    };
    let mut progress = Progress::new(1 + options.rounds * loads.len() * arms.len())
        .expecting(options.time + Duration::from_secs(5));
    progress.step(format!("{} guests boot", options.guests()));
    let mut bed = Bed::make(options, machines, vlane, &disks, &first, &mut progress, interrupt)?;
    let titles = match options.express {
        true => ["express-loans", "Express and loans"],
        false => ["loans", "Loans, live: response and fairness"],
    };
    let study = Study {
        begun: begun.clone(),
        titles,
        figures: if options.express { EXPRESS } else { LIVE },
        at_most: (!options.express).then_some(0.1),
        loads,
        arms: arms.iter().map(|arm| arm.name.clone()).collect(),
        rounds: options.rounds,
        time: options.time,
        about: about(options, &bed.what),
        guests: Some(bed.what.clone()),
        warnings: bed::warnings(machines),
        sections: Vec::new(),
    };
    settle(options.rounds, interrupt)?;
    study.in_turns(progress, |_, load, arm| {
        let Arm { disk, scheduler, .. } = &arms[arm];
        let (mut seen, trace) =
            bed.measure(disk.unwrap_or(load), scheduler.as_deref(), options.time, interrupt)?;
        add_trace(&mut seen, &trace, options.foreground())?;
        Ok(seen)
    })
}

/// Arguments of a disk's `vlane serve`: the device's time for a request, and more.
fn disk(latency: Duration, more: &[&str]) -> Vec<OsString> {
    let latency = latency.as_micros().to_string();
    ["--latency", &latency].iter().chain(more).map(OsString::from).collect()
}

fn about(options: &Options, guests: &str) -> String {
    let all = format!(
        "{} guests ({guests}), each with a process that computes all the time.",
        options.guests()
    );
    let does = match options.foreground() {
        Foreground::Syncs => "writes 4 KiB after 4 KiB of the disk, each with an fsync; each is a \
                              job"
        .to_owned(),
        _ => format!("reads 4 KiB after 4 KiB; {READS} of them, one after the other, are a job"),
    };
    match options.express {
        true => format!(
            "{all} The first also has {} in the background (I/O priority idle) and a program in \
             the foreground (best effort 0, real-time for the guest's own CPU scheduler) that \
             {does}, which has the execution time. The device works on \
             {PARALLEL} requests at a time, {:?} each. A response lasts from vlane's answer to the \
             foreground's next request; the service before it from the lane's taking the request \
             to its answer. The guest's I/O scheduler is none. vlane's lanes are real-time under \
             all arms.",
            counted(options.readers, "reader"),
            options.latency
        ),
        false => format!(
            "{all} The first also reads and writes 4 KiB of its vlane disk, synchronously, as fast \
             as it can, by a process that is real-time in the guest: the guest's own scheduler is \
             not what is measured. A response lasts from vlane's answer to the guest's next \
             request. vlane's lanes are real-time under all schedulers, EEVDF included.",
        ),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use vlane_trace::{Header, Priority, Status};

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

    fn trace(records: &[Record]) -> Trace {
        Trace::from_records(Header::default(), records.to_vec())
    }

    /// A flush has no priority, and yet belongs to the foreground.
    #[test]
    fn write_and_its_flush_are_a_job() {
        let mut records = Vec::new();
        for sync in 0..4 {
            let write = record(1000 * sync, 300, 8 * sync, 2 << 13);
            records.push(Record { kind: RequestKind::Write, ..write });
            records.push(record(1000 * sync + 1, 500, 0, 3 << 13));
            let flush = record(1000 * sync + 400, 200, 0, 0);
            records.push(Record { kind: RequestKind::Flush, ..flush });
        }
        let mut seen = Seen::default();
        add_trace(&mut seen, &trace(&records), Foreground::Syncs).unwrap();
        assert_eq!((seen.jobs, seen.background), (vec![1000; 3], 4));
        assert_eq!(seen.responses, [100, 400, 100, 400, 100, 400, 100]);
        assert_eq!(seen.services[..2], [300, 200]);
    }

    #[test]
    fn foreground_jobs_are_separated() {
        let (foreground, background) = (2 << 13, 3 << 13);
        let mut records = Vec::new();
        for read in 0..=2 * READS {
            records.push(record(100 * read, 30, READ * read, foreground));
            records.push(record(100 * read + 1, 90, 0, background));
        }
        let mut seen = Seen::default();
        let class = Foreground::Reads;
        add_trace(&mut seen, &trace(&records), class).unwrap();
        assert_eq!(seen.jobs, [100 * READS; 2]);
        assert_eq!((seen.services.len(), seen.services[0], seen.background), (101, 30, 101));
        assert_eq!(seen.responses, [70; 100]);
        records.truncate(90);
        assert!(add_trace(&mut seen, &trace(&records), class).is_err());
        add_trace(&mut seen, &trace(&records), Foreground::All).unwrap();
        assert_eq!((seen.services.len(), seen.background), (90, 0), "all are the foreground");
    }
}
