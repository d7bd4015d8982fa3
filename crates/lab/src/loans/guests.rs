//! The live scheduler, measured with real guests: each has a process that computes all the time, the first also reads and writes
//! its vlane disk, one small synchronous request after the other.
//!
//! Everything is as a user has it: `vlane serve` in a process of its own tells `vlane sched run`, another one, of completed I/O. What
//! a completion waits is taken from a recording of the volume (`vlane record`): from the answer of one request to the
//! submission of the next, so both EEVDF alone and the schedulers are seen with the same eyes, outside the guest.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vlane_boot::{Backend, Guest, Host, Initramfs, Install, Ready, Spec};
use vlane_sched::live::state::State;
use vlane_sched::sys::{self, Attr};

use super::live::{Cell, Measured, Sample};
use super::live_report::{self, Labels};
use crate::control::Control;
use crate::error::{Context, Error, ErrorKind, Result};
pub use crate::guests::Machines;
use crate::guests::Maker;
use crate::interrupt::Interrupt;
use crate::output::Output;
use crate::progress::Progress;
use crate::report::Report;
use crate::server::{Server, Storage};
use crate::trace::Trace;
use crate::trace::record::{RecordOptions, record};
use crate::work::{Role, Sampler};

/// Guests beside others that compute boot slowly.
const BOOT: Duration = Duration::from_secs(240);
/// After that a guest that does no I/O will not do any.
const FIRST_IO: Duration = Duration::from_secs(60);
/// A guest that lives longer than any measurement.
const LIFE: Duration = Duration::from_secs(4 * 3600);
/// How long a scheduler may take to end.
const END: Duration = Duration::from_secs(10);
/// A volume that nobody fills.
const VOLUME: u64 = 1 << 30;
/// What is real-time beside the scheduler has this priority: the back end, alike under all schedulers.
const BACK_END_PRIORITY: u32 = 2;

/// What the user wants.
#[derive(Debug, Clone)]
pub struct Options {
    /// vlane's version.
    pub version: String,
    /// The command line, for the report.
    pub command: String,
    /// vlane's own file.
    pub program: PathBuf,
    /// Which guests.
    pub machines: Machines,
    /// How many, the one with I/O included.
    pub guests: usize,
    /// What the device takes for a request: the time from one completion to the next, without waiting.
    pub latencies: Vec<Duration>,
    /// Time of each measurement.
    pub time: Duration,
    /// Rounds.
    pub rounds: usize,
    /// Policies; EEVDF alone is measured always.
    pub policies: Vec<String>,
    /// More arguments of `vlane sched run`.
    pub arguments: Vec<String>,
    /// Missing programs may be installed.
    pub install: Install,
}

/// Guests and their disks, and everything that ends with them.
struct Bed {
    _directory: TempDir,
    listen: PathBuf,
    state: PathBuf,
    trace: PathBuf,
    state_dir: PathBuf,
    /// One for each latency.
    disks: Vec<(Server, Control)>,
    guests: Vec<Guest>,
    what: String,
}

/// What the guest with I/O does: computes, and reads and writes the disk that it is told.
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
/// What the others do.
const OTHERS: &str = "echo RESULT ready=1\nwhile :; do :; done\n";

impl Bed {
    fn make(options: &Options, progress: &mut Progress, interrupt: &Interrupt) -> Result<Self> {
        let maker = Maker::find(&Host::new(options.install)?, options.machines)?;
        let directory = TempDir::with_prefix("vlane-loans-")
            .context(ErrorKind::Io, || "cannot make a temporary directory")?;
        let beside = |name: &str| directory.path().join(name);
        let listen = beside("sched.sock");
        let mut disks = Vec::new();
        for (number, latency) in options.latencies.iter().enumerate() {
            let control = beside(&format!("control-{number}"));
            let arguments: Vec<OsString> = vec![
                "--latency".into(),
                latency.as_micros().to_string().into(),
                "--queues".into(),
                "1".into(),
                "--control".into(),
                control.clone().into(),
                format!("--sched={}", listen.display()).into(),
            ];
            let home = beside(&format!("disk-{number}"));
            std::fs::create_dir(&home).context(ErrorKind::Io, || "cannot make a directory")?;
            let storage = Storage::null(VOLUME);
            let server = Server::vlane(&options.program, &home, storage, &[], &arguments)?;
            // Also under EEVDF alone: a back end that waits for its turn would be measured instead of the guest.
            for tid in threads_of(server.pid())? {
                let attr = Attr::round_robin(BACK_END_PRIORITY);
                sys::set(tid, &attr).context(
                    ErrorKind::Process,
                    || "the back end cannot be real-time: CAP_SYS_NICE is missing",
                )?;
            }
            disks.push((server, Control::new(control)));
        }
        let mut guests = Vec::new();
        for number in 0..options.guests {
            interrupt.check()?;
            progress.detail(&format!("guest {} of {} boots", number + 1, options.guests));
            let guest = if number == 0 {
                let sockets = disks.iter().map(|(server, _)| server.socket().to_path_buf()).collect();
                maker.start(sockets, &Initramfs::new(FIRST).programs(["chrt"]), LIFE)?
            } else {
                maker.start(Vec::new(), &Initramfs::new(OTHERS), LIFE)?
            };
            guest.wait_result("ready", BOOT)?;
            guests.push(guest);
        }
        Ok(Self {
            listen,
            state: beside("state.sock"),
            trace: beside("trace"),
            state_dir: beside("run"),
            disks,
            guests,
            what: maker.describe(),
            _directory: directory,
        })
    }

    /// Starts a policy's scheduler.
    fn schedule(&self, options: &Options, policy: &str) -> Result<Backend> {
        let mut words: Vec<OsString> =
            ["sched", "run", "--json", "--vehicle", "realtime", "--policy", policy]
                .map(OsString::from)
                .to_vec();
        words.extend([OsString::from("--listen"), self.listen.clone().into()]);
        words.extend([OsString::from("--socket"), self.state.clone().into()]);
        words.extend([OsString::from("--state-dir"), self.state_dir.clone().into()]);
        for guest in &self.guests {
            words.extend([OsString::from("--pid"), guest.id().to_string().into()]);
        }
        words.extend(options.arguments.iter().map(OsString::from));
        Ok(Backend::start(&Spec::new(&options.program, words), &self.listen, Ready::Socket, None)?)
    }

    /// One measurement.
    fn measure(
        &self,
        options: &Options,
        load: usize,
        policy: Option<&str>,
        interrupt: &Interrupt,
    ) -> Result<Sample> {
        let running = policy.map(|policy| self.schedule(options, policy)).transpose()?;
        // The back end looks for a scheduler once a second; then everything has to come to rest.
        let settled = Instant::now() + Duration::from_secs(4);
        while Instant::now() < settled {
            interrupt.check()?;
            std::thread::sleep(Duration::from_millis(100));
        }
        let roles = self.guests.iter().enumerate().flat_map(|(number, guest)| {
            Role::program(format!("guest {}", number + 1), guest.id().cast_signed())
        });
        let mut sampler = Sampler::new(roles.collect());
        let before = sampler.take();
        let begin = Instant::now();
        let recording = RecordOptions {
            // Our own, of the measurement before.
            output: Output::new(&self.trace).force(true),
            time: Some(options.time),
            count: None,
            hashes: false,
        };
        record(&self.disks[load].1, &recording, interrupt, &mut |_| ())?;
        let used = sampler.take().since(&before);
        let time = begin.elapsed();
        interrupt.check()?;
        let told = running.map(|running| running.stop(END)).transpose()?;
        let log = told.map(|stopped| stopped.log);
        let state = log.as_deref().map(last_state).transpose()?;
        let log = log.unwrap_or_default();
        let mut sample = Sample {
            responses: responses(&Trace::load(&self.trace)?)?,
            used: used.roles.iter().map(|role| ns(role.cpu)).collect(),
            time,
            ..Sample::default()
        };
        if let Some(state) = state {
            let first = self.guests[0].id();
            let known = state.vcpus.iter().find(|vcpu| vcpu.pid == first);
            let known = known.ok_or_else(|| {
                let text = format!("the scheduler never found the guest with I/O; it said:\n{log}");
                Error::new(ErrorKind::Process, text)
            })?;
            if known.events == 0 {
                let text = format!("the back end never told the scheduler of a completion; it said:\n{log}");
                return Err(Error::new(ErrorKind::Process, text));
            }
            if state.vcpus.len() != self.guests.len() {
                let text = format!("the scheduler has {} vCPUs of {}", state.vcpus.len(), self.guests.len());
                return Err(Error::new(ErrorKind::Process, text));
            }
            let denied = state.counters.get("denied_rt_budget").copied().unwrap_or(0);
            sample.boosts = [known.boosts + known.wake_boosts, known.denied, denied];
            let part = time.as_secs_f64() / state.uptime.max(1e-3);
            sample.daemon_ns = ns(Duration::from_secs_f64(state.daemon_cpu * part.min(1.0)));
        }
        Ok(sample)
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn threads_of(pid: u32) -> Result<Vec<u32>> {
    let path = format!("/proc/{pid}/task");
    let entries =
        std::fs::read_dir(Path::new(&path)).context(ErrorKind::Io, || format!("{path}: cannot be read"))?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// The state that `vlane sched run --json` prints when it ends.
fn last_state(log: &str) -> Result<State> {
    let line = log.lines().rfind(|line| line.starts_with('{'));
    let line = line.ok_or_else(|| Error::new(ErrorKind::Process, format!("the scheduler ended: {log}")))?;
    serde_json::from_str(line).context(ErrorKind::Format, || "what the scheduler prints is not understood")
}

/// From each answer to the next request: with one request at a time, what the guest needs to take it and to go on.
fn responses(trace: &Trace) -> Result<Vec<u64>> {
    let mut requests: Vec<(u64, u64)> =
        trace.requests.iter().map(|request| (request.record.submit, request.record.completed())).collect();
    requests.sort_unstable();
    let pairs = requests.windows(2).filter_map(|pair| pair[1].0.checked_sub(pair[0].1));
    let responses: Vec<u64> = pairs.collect();
    if responses.is_empty() {
        return Err(Error::new(ErrorKind::Process, "the guest with I/O did none while it was measured"));
    }
    Ok(responses)
}

fn check(options: &Options) -> Result<()> {
    let invalid = |text: &str| Err(Error::new(ErrorKind::Usage, text));
    if !(2..=64).contains(&options.guests) {
        return invalid("there are between 2 and 64 real guests; change --guests");
    }
    if options.rounds == 0 || options.time < Duration::from_secs(1) || options.latencies.is_empty() {
        return invalid("measure at least once, for a second, with one --gap");
    }
    Ok(())
}

/// Measures, and makes the report of it.
///
/// # Errors
/// [`ErrorKind::Usage`] for options that make no sense, [`ErrorKind::Invalid`] for a machine on which it cannot run, [`ErrorKind::Interrupted`], and
/// what guests, back ends and schedulers say.
pub fn run(options: &Options, interrupt: &Interrupt) -> Result<Report> {
    check(options)?;
    vlane_sched::live::probe::real_time().map_err(super::live::sched)?;
    let begin = Instant::now();
    let created = crate::date::now();
    let arms: Vec<Option<&str>> =
        std::iter::once(None).chain(options.policies.iter().map(|policy| Some(policy.as_str()))).collect();
    let steps = 1 + options.rounds * options.latencies.len() * arms.len();
    let mut progress = Progress::new(steps).expecting(options.time + Duration::from_secs(5));
    progress.step(format!("{} guests boot", options.guests));
    let mut bed = Bed::make(options, &mut progress, interrupt)?;
    let mut cells = vec![vec![Cell::default(); arms.len()]; options.latencies.len()];
    let mut switched = 0;
    for round in 0..options.rounds {
        for (load, latency) in options.latencies.iter().enumerate() {
            let disk = char::from(b'a' + u8::try_from(load).unwrap_or(0));
            switched += 1;
            bed.guests[0].send(&format!("vd{disk}\n"))?;
            bed.guests[0].wait_result(&format!("load{switched}"), BOOT)?;
            if let Err(error) = wait_for_io(&bed.disks[load].1, interrupt) {
                let console = bed.guests[0].console();
                let from = console.len().saturating_sub(1500);
                let last = console.get(from..).unwrap_or(&console);
                let text = format!("the guest with I/O cannot be measured; its console ends with:\n{last}");
                return Err(Error::caused_by(error.kind(), text, error));
            }
            for turn in 0..arms.len() {
                let number = (turn + round) % arms.len();
                let name = arms[number].unwrap_or("EEVDF");
                progress.step(format!("a device of {latency:?}, {name}"));
                let sample = bed.measure(options, load, arms[number], interrupt)?;
                cells[load][number].samples.push(sample);
            }
        }
    }
    drop(progress);
    let weights = vec![vlane_policy::loan::units::DEFAULT_WEIGHT; options.guests];
    let measured = Measured { cells, weights, seconds: begin.elapsed().as_secs_f64(), created };
    let names = arms.iter().map(|arm| arm.unwrap_or("EEVDF").to_owned());
    let labels = Labels {
        version: options.version.clone(),
        command: options.command.clone(),
        arms: names.collect(),
        loads: options.latencies.iter().map(|latency| format!("a device that takes {latency:?}")).collect(),
        ids: options.latencies.iter().map(|latency| format!("latency-{}us", latency.as_micros())).collect(),
        about: format!(
            "{} guests ({}), each with a process that computes all the time; the first also reads and writes 4 KiB of its vlane disk, \
             synchronously, as fast as it can, by a process that is real-time in the guest: the guest's own scheduler is not what is measured. A response lasts from vlane's answer to the guest's next request. vlane's lanes are \
             real-time under all schedulers, EEVDF included.",
            options.guests, bed.what
        ),
        rounds: options.rounds,
        time: options.time,
        warnings: warnings(options),
        versions: vec![("guests".into(), bed.what.clone())],
    };
    live_report::make(&labels, &measured).context(ErrorKind::Io, || "cannot make the report")
}

fn warnings(options: &Options) -> Vec<String> {
    let mut warnings = Vec::new();
    let autogroup = std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled").unwrap_or_default();
    if autogroup.trim() == "1" {
        let text = "Each guest is in a session of its own, which the kernel's autogroups give equal shares: who owes cannot be held back against \
                    other sessions. Without (sysctl kernel.sched_autogroup_enabled=0) loans are granted more often.";
        warnings.push(text.to_owned());
    }
    if options.machines == Machines::Uml {
        let text = "A User-Mode Linux guest lets its present process run on until a system call of it or the guest's own timer tick (10 ms) when an \
                    interrupt comes: the host's scheduler cannot shorten that, and about one response in six waits for it.";
        warnings.push(text.to_owned());
    }
    warnings
}

/// fio has started and does something.
fn wait_for_io(control: &Control, interrupt: &Interrupt) -> Result<()> {
    let begin = Instant::now();
    let done = || control.counters().map(|counters| counters.sum.get("reads").copied().unwrap_or(0));
    let first = done()?;
    while done()? < first + 20 {
        interrupt.check()?;
        if begin.elapsed() > FIRST_IO {
            return Err(Error::new(ErrorKind::Timeout, "the guest with I/O does none"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
