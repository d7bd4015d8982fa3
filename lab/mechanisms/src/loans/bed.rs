//! Real guests, the disks of the first of them, and schedulers that come and go: the common parts
//! of measurements with guests.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vlane_error::counted;
use vlane_guest::{Backend, Guest, Initramfs, Ready, Spec};
use vlane_policy::loan::units::DEFAULT_WEIGHT;
use vlane_sched::live::state::DaemonState;
use vlane_sched::sys::{self, Attr};

use super::Options;
use super::figures::{Seen, ns};
use vlane_capture::Trace;
use vlane_cost::{Role, Sampler};
use vlane_testbed::{
    Context, Control, Error, ErrorKind, Fail, Installs, Interrupt, Machines, Maker, Output,
    Progress, RecordOptions, Result, Server, Storage, pause, record,
};

/// Guests beside others that compute boot slowly.
const BOOT: Duration = Duration::from_secs(240);
/// After that a guest that does no I/O will not do any.
const FIRST_IO: Duration = Duration::from_secs(60);
/// A guest that lives longer than any measurement.
const LIFE: Duration = Duration::from_secs(4 * 3600);
/// How long a scheduler may take to end.
pub(crate) const END: Duration = Duration::from_secs(10);
/// The back end looks for a scheduler once a second, and the scheduler for vCPUs.
pub(crate) const SETTLE: Duration = Duration::from_secs(4);
/// Size of a sparse volume.
const VOLUME: u64 = 1 << 30;
/// Priority of real-time threads beside the scheduler: the back end, alike under all schedulers.
const BACK_END_PRIORITY: u32 = 2;
/// Script of the guests without I/O.
pub(crate) const OTHERS: &str = "echo RESULT ready=1\nwhile :; do :; done\n";

/// Guests and their disks, and all that ends with them.
pub(super) struct Bed {
    program: PathBuf,
    directory: TempDir,
    disks: Vec<(Server, Control)>,
    guests: Vec<Guest>,
    /// How often the first guest was given a disk, and which one it has.
    switched: (u32, Option<usize>),
    /// Kind of the guests.
    pub(super) what: String,
}

impl Bed {
    /// `program` is vlane's own file; for each disk of the first guest there are arguments of its
    /// `vlane serve`. `first` is that guest's script. It prints `RESULT ready=1`. After each line,
    /// which names a disk, it prints `RESULT load1=1`, `load2=1` and so on when it uses only that
    /// disk.
    pub(super) fn make(
        options: &Options,
        machines: Machines,
        program: &Path,
        given: &[Vec<OsString>],
        first: &Initramfs,
        progress: &mut Progress,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let install = Installs { install: options.install };
        let maker = Maker::find(&install.host()?, machines)?;
        let directory = TempDir::with_prefix("vlane-loans-")
            .context(ErrorKind::Io, || "cannot make a temporary directory")?;
        let beside = |name: &str| directory.path().join(name);
        let listen = socket(directory.path());
        let mut disks = Vec::new();
        for (number, given) in given.iter().enumerate() {
            let control = beside(&format!("control-{number}"));
            let mut arguments = given.clone();
            arguments.extend(["--queues", "1", "--control"].map(OsString::from));
            arguments.push(control.clone().into());
            arguments.push(format!("--sched={}", listen.display()).into());
            let home = beside(&format!("disk-{number}"));
            std::fs::create_dir(&home).context(ErrorKind::Io, || "cannot make a directory")?;
            let server = Server::vlane(program, &home, Storage::null(VOLUME), &[], &arguments)?;
            // Also under EEVDF alone: a back end that waits for its turn would be measured instead
            // of the guest.
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
        let count = options.guests();
        for number in 1..=count {
            interrupt.check()?;
            progress.detail(&format!("guest {number} of {count} boots"));
            let sockets = disks.iter().map(|(server, _)| server.socket().to_path_buf());
            let guest = match number {
                1 => maker.start(sockets.collect(), first, LIFE)?,
                _ => maker.start(Vec::new(), &Initramfs::new(OTHERS), LIFE)?,
            };
            guest.wait_result("ready", BOOT)?;
            guests.push(guest);
        }
        Ok(Self {
            program: program.to_path_buf(),
            directory,
            disks,
            guests,
            switched: (0, None),
            what: maker.describe(),
        })
    }

    /// Lets the first guest use a disk, and waits until it does.
    fn load(&mut self, disk: usize, interrupt: &Interrupt) -> Result<()> {
        if self.switched.1 == Some(disk) {
            return Ok(());
        }
        let letter = char::from(b'a' + u8::try_from(disk).unwrap_or(0));
        self.switched = (self.switched.0 + 1, Some(disk));
        let guest = &mut self.guests[0];
        guest.send(&format!("vd{letter}\n"))?;
        guest.wait_result(&format!("load{}", self.switched.0), BOOT)?;
        wait_for_io(&self.disks[disk].1, interrupt).map_err(|error| {
            let console = self.guests[0].console();
            let from = console.len().saturating_sub(1500);
            let last = console.get(from..).unwrap_or(&console);
            let text =
                format!("the guest with I/O cannot be measured; its console ends with:\n{last}");
            Error::caused_by(error.kind(), text, error)
        })
    }

    /// One measurement of a disk that the guest uses, under a scheduler with these arguments, or
    /// under EEVDF alone. Returns the results, without responses, and the recording.
    pub(super) fn measure(
        &mut self,
        disk: usize,
        scheduler: Option<&[String]>,
        time: Duration,
        interrupt: &Interrupt,
    ) -> Result<(Seen, Trace)> {
        self.load(disk, interrupt)?;
        let pids: Vec<u32> = self.guests.iter().map(Guest::id).collect();
        let (program, dir) = (&self.program, self.directory.path());
        let start = |words: &[String]| schedule(program, dir, &pids, words);
        let running = scheduler.map(start).transpose()?;
        pause(Instant::now() + SETTLE, interrupt)?;
        let roles = self.guests.iter().enumerate().flat_map(|(number, guest)| {
            Role::program(format!("guest {}", number + 1), guest.id().cast_signed())
        });
        let mut sampler = Sampler::new(roles.collect());
        let before = sampler.take();
        let (begin, trace) = (Instant::now(), dir.join("trace"));
        let recording = RecordOptions {
            // Our own, of the measurement before.
            output: Output::new(&trace).force(true),
            time: Some(time),
            count: None,
            hashes: false,
        };
        record(&self.disks[disk].1, &recording, interrupt, &mut |_| ())?.whole()?;
        let used = sampler.take().since(&before);
        let time = begin.elapsed();
        interrupt.check()?;
        let told = running.map(|running| running.stop(END)).transpose()?;
        let used = used.roles.iter().map(|role| ns(role.cpu)).collect();
        let weights = vec![DEFAULT_WEIGHT; self.guests.len()];
        let mut seen = Seen { used, weights, time, ..Seen::default() };
        if let Some(stopped) = told {
            let state = last_state(&stopped.log, pids[0], pids.len())?;
            let first = state.vcpus.iter().find(|vcpu| vcpu.pid == pids[0]);
            first.into_iter().for_each(|first| seen.add_state(&state, first));
        }
        Ok((seen, Trace::load(&trace)?))
    }
}

/// Where back ends tell a scheduler of a measurement in this directory of completions.
pub(crate) fn socket(dir: &Path) -> PathBuf {
    dir.join("sched.sock")
}

/// Starts a scheduler of the machines with these process ids, by real-time slices. Its sockets and
/// its list of changed threads are in `dir`. It prints its last state when it ends.
pub(crate) fn schedule(
    program: &Path,
    dir: &Path,
    pids: &[u32],
    arguments: &[String],
) -> Result<Backend> {
    let listen = socket(dir);
    let mut words: Vec<OsString> =
        ["sched", "run", "--json", "-", "--vehicle", "realtime"].map(OsString::from).to_vec();
    words.extend([OsString::from("--listen"), listen.clone().into()]);
    words.extend([OsString::from("--socket"), dir.join("state.sock").into()]);
    words.extend([OsString::from("--state-dir"), dir.join("scheduler").into()]);
    for pid in pids {
        words.extend([OsString::from("--pid"), pid.to_string().into()]);
    }
    words.extend(arguments.iter().map(OsString::from));
    Ok(Backend::start(&Spec::new(program, words), &listen, Ready::Socket, None)?)
}

/// The state that `vlane sched run --json -` prints when it ends, of so many vCPUs: those of the
/// first machine had completions.
pub(crate) fn last_state(log: &str, first: u32, vcpus: usize) -> Result<DaemonState> {
    let line = log.lines().rfind(|line| line.starts_with('{'));
    let line =
        line.ok_or_else(|| Error::new(ErrorKind::Process, format!("the scheduler ended: {log}")))?;
    let state: DaemonState = serde_json::from_str(line)
        .context(ErrorKind::Format, || "the scheduler's output is not understood")?;
    let own = state.vcpus.iter().filter(|vcpu| vcpu.pid == first);
    let events: u64 = own.map(|vcpu| vcpu.events).sum();
    if events == 0 || state.vcpus.len() != vcpus {
        return ErrorKind::Process.fail(format!(
            "the scheduler has {} of {vcpus}, and heard of {events} completions of the guest with \
             I/O; it said:\n{log}",
            counted(state.vcpus.len(), "vCPU")
        ));
    }
    Ok(state)
}

fn threads_of(pid: u32) -> Result<Vec<u32>> {
    let path = format!("/proc/{pid}/task");
    let entries = std::fs::read_dir(Path::new(&path))
        .context(ErrorKind::Io, || format!("{path}: cannot be read"))?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Waits until the guest does I/O.
fn wait_for_io(control: &Control, interrupt: &Interrupt) -> Result<()> {
    let begin = Instant::now();
    let done =
        || control.counters().map(|counters| counters.sum.get("reads").copied().unwrap_or(0));
    let first = done()?;
    while done()? < first + 20 {
        interrupt.check()?;
        if begin.elapsed() > FIRST_IO {
            return ErrorKind::Timeout.fail("the guest with I/O does none");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Caveats that a reader must know before believing figures of these guests.
pub(super) fn warnings(machines: Machines) -> Vec<String> {
    let text = "A User-Mode Linux guest lets its present process run on until a system call of it \
                or the guest's own timer tick (10 ms) when an interrupt comes: the host's \
                scheduler cannot shorten that, and about one response in six waits for it.";
    Vec::from_iter((machines == Machines::Uml).then(|| text.to_owned()))
}
