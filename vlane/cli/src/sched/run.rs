//! `vlane sched run`: the live scheduler.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use clap::{Args, ValueEnum};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use vlane_error::counted;
use vlane_policy::loan::units::DEFAULT_WEIGHT;
use vlane_policy::loan::{Claim, Policy};
use vlane_sched::discover::{Machine, pid_of_domain};
use vlane_sched::ext::{self, Presence};
use vlane_sched::link::{Adoption, Link};
use vlane_sched::live::backends::Backends;
use vlane_sched::live::socket::Socket;
use vlane_sched::live::source::Mailbox;
use vlane_sched::live::state::Completions;
use vlane_sched::live::{Daemon, Ending};
use vlane_sched::realtime::guard::GuardCommand;
use vlane_sched::realtime::{self, RealTime, Settings, groups, repair};
use vlane_sched::thread::Thread;
use vlane_sched::{ErrorKind, ProcessId, VcpuThreads, Vehicle};
use vlane_socket::Access;

use crate::output::{self, Overwrite};
use crate::values;

use super::settings::{CompletionsArg, Config, HoldBackArg, runtime_dir};

/// Schedule virtual CPUs: boost those whose I/O has completed, keep shares fair
///
/// Machines whose disks vlane serves register themselves (vlane serve --sched). The command runs
/// until it is ended, or until all threads of --tid have ended if only --tid is given. It then
/// restores the threads. It needs CAP_SYS_NICE.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Machine, by its process ID
    ///
    /// QEMU, Cloud Hypervisor, crosvm, Firecracker, libkrun or User-Mode Linux.
    #[arg(long, value_name = "PID", value_parser = values::whole::<u32>(1..=0x40_0000))]
    pid: Vec<u32>,
    /// Machine, by its libvirt name
    #[arg(long, value_name = "NAME")]
    domain: Vec<String>,
    /// QEMU, by its QMP socket (-qmp unix:PATH,server=on,wait=off)
    ///
    /// QEMU itself lists its vCPUs then. Use this for a QEMU that does not name its threads.
    #[arg(long, value_name = "PATH")]
    qmp: Vec<PathBuf>,
    /// Thread of a vCPU; each is a machine
    #[arg(long, value_name = "TID", value_parser = values::whole::<u32>(1..=0x40_0000))]
    tid: Vec<u32>,
    /// Socket for reports of completed I/O [default: /run/vlane-sched/sched.sock]
    ///
    /// The default is in $XDG_RUNTIME_DIR without root. There is none if only --tid is given.
    #[arg(long, value_name = "PATH")]
    listen: Option<PathBuf>,
    /// Octal mode of that socket: the owner and the group may connect
    ///
    /// Back ends of a user may report only for that user's machines.
    #[arg(long, value_name = "MODE", default_value = "660", value_parser = values::mode)]
    listen_mode: u32,
    /// Group that may connect there, by name or number [default: the scheduler's own]
    #[arg(long, value_name = "GROUP", value_parser = values::group)]
    listen_group: Option<u32>,
    /// Users whose machines are scheduled when their back ends register
    ///
    /// own is this process's user, all is every user who may connect. A list of names or numbers is
    /// possible, too. Machines named by options are always scheduled.
    #[arg(long, value_name = "USERS", value_delimiter = ',', default_value = "own", value_parser = parse_adopt)]
    adopt: Vec<Adopt>,
    /// Names for the threads of --tid, in the same order
    #[arg(long, value_name = "NAME")]
    name: Vec<String>,
    /// Weights of machines; the last one counts for the rest [default: 256]
    ///
    /// The order is --tid, --pid, --domain, --qmp.
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = values::whole::<u32>(1..=65536))]
    weight: Vec<u32>,
    /// CPU time limit for credits, percent of one CPU, 0 for no limit [default: 0]
    ///
    /// The order is that of --weight. A machine that uses more owes CPU time. It gets no boosts,
    /// and runs after the others while they want the CPUs. It can still use idle CPU time; for a
    /// hard limit, set cpu.max of its cgroup.
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = values::whole::<u32>(0..=1_000_000))]
    cap: Vec<u32>,

    /// Also watch I/O of other back ends: the machines' interrupt eventfds
    ///
    /// Covers vhost, other back ends, and QEMU's own devices with KVM and an iothread. QEMU 10.0's
    /// virtio-blk signals no eventfd without an iothread. Needs root, Linux 6.8, and a vlane built
    /// with the feature bpf.
    #[arg(long)]
    watch_io: bool,

    /// Boost policy: credit, always-boost, loan or adaptive [default: adaptive]
    #[arg(long, value_name = "POLICY")]
    policy: Option<Policy>,
    /// Completions that boost, among those that vlane's back ends report [default: auto]
    #[arg(long, value_enum)]
    completions: Option<CompletionsArg>,
    /// Method that gives boosts
    #[arg(long, value_enum, default_value_t = VehicleArg::Auto)]
    vehicle: VehicleArg,
    /// Percent of the kernel's real-time budget for all boosts [default: 50]
    #[arg(long, value_name = "PERCENT", value_parser = values::whole::<u8>(1..=100))]
    rt_share: Option<u8>,
    /// Percent of that for the machines of one user [default: 75]
    ///
    /// Root and the scheduler's own user are bound by the limit of all boosts only.
    #[arg(long, value_name = "PERCENT", value_parser = values::whole::<u8>(1..=100))]
    rt_user_share: Option<u8>,
    /// Percent of that for one machine [default: 50]
    #[arg(long, value_name = "PERCENT", value_parser = values::whole::<u8>(1..=100))]
    rt_machine_share: Option<u8>,
    /// How to hold back a vCPU that has used more than its share [default: nice]
    #[arg(long, value_enum)]
    hold_back: Option<HoldBackArg>,
    /// Users whose back ends have real-time lanes: own, none, a name or an ID
    ///
    /// own stands for root and the scheduler's own user. Such lanes pay the budgets of boosts. Name
    /// only users that you trust.
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "own")]
    #[arg(value_parser = parse_trusted)]
    storage_threads: Vec<Trusted>,
    /// TOML file with all of this and the policy's parameters
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Socket for `vlane sched top` [default: /run/vlane-sched/sched-state.sock]
    ///
    /// The default is in $XDG_RUNTIME_DIR without root.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Directory in memory for the list of changed threads [default: /run/vlane-sched]
    ///
    /// Without root, the default is $XDG_RUNTIME_DIR/vlane-sched.
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Write the last state as JSON at the end; `-` is standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    overwrite: Overwrite,
}

/// A user, or several, whose machines are adopted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Adopt {
    Own,
    All,
    User(u32),
}

/// Users whose back ends' lanes may be real-time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trusted {
    Own,
    None,
    User(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum VehicleArg {
    /// sched_ext if the kernel and this vlane have it and it is unused, else realtime
    Auto,
    /// Bounded real-time slices; any kernel
    Realtime,
    /// A BPF scheduler; Linux 6.12 with sched_ext, and a vlane built with the feature sched-ext
    #[value(name = "sched_ext")]
    SchedExt,
}

impl RunArgs {
    /// Settings of the vehicle, and whose completions boost.
    fn settings(&self) -> anyhow::Result<(Settings, Completions)> {
        let mut config = Config::of(self.config.as_ref())?;
        config.rt_share = self.rt_share.or(config.rt_share);
        config.rt_user_share = self.rt_user_share.or(config.rt_user_share);
        config.rt_machine_share = self.rt_machine_share.or(config.rt_machine_share);
        config.hold_back = self.hold_back.or(config.hold_back);
        let completions =
            self.completions.or(config.completions).map(Completions::from).unwrap_or_default();
        Ok((
            config.settings(self.policy.or(config.policy).unwrap_or(Policy::Adaptive))?,
            completions,
        ))
    }

    /// The claim of the machine that was named as the `at`-th: --tid's come first, then --pid's,
    /// --domain's and --qmp's.
    fn claim(&self, at: usize, vm: u32) -> Claim {
        let of = |list: &[u32]| list.get(at).or(list.last()).copied();
        Claim {
            vm,
            weight: of(&self.weight).unwrap_or(DEFAULT_WEIGHT),
            cap_permille: of(&self.cap).unwrap_or(0) * 10,
        }
    }

    /// The users whose machines are adopted.
    fn adoption(&self) -> Adoption {
        if self.adopt.contains(&Adopt::All) {
            return Adoption::All;
        }
        let own = rustix::process::geteuid().as_raw();
        let users =
            self.adopt.iter().map(|who| if let Adopt::User(user) = who { *user } else { own });
        Adoption::Users(users.collect())
    }

    fn check_counts(&self) -> anyhow::Result<()> {
        ensure_usage!(self.name.len() <= self.tid.len(), "there are more --name than --tid");
        let machines = self.tid.len() + self.pid.len() + self.domain.len() + self.qmp.len();
        for (option, values) in [("--weight", &self.weight), ("--cap", &self.cap)] {
            ensure_usage!(
                values.len() <= machines.max(1),
                "there are {} of {option} for {}",
                counted(values.len(), "value"),
                counted(machines, "machine")
            );
        }
        Ok(())
    }

    /// The vCPUs that were named one by one.
    fn named(&self) -> anyhow::Result<Vec<(VcpuThreads, Claim)>> {
        self.check_counts()?;
        let mut named = Vec::new();
        for (number, &tid) in (0_u32..).zip(&self.tid) {
            let at = number as usize;
            let thread = Thread::open(tid)?;
            let name = self.name.get(at).cloned().unwrap_or_else(|| format!("thread {tid}"));
            let threads = VcpuThreads { pid: thread.pid(), index: 0, tids: vec![tid], name };
            named.push((threads, self.claim(at, number)));
        }
        Ok(named)
    }

    /// Where back ends register, and the machines that were named as a whole.
    fn backends(&self, completions: Completions) -> anyhow::Result<Option<Backends>> {
        let whole = self.pid.len() + self.domain.len() + self.qmp.len();
        if !self.tid.is_empty() && whole == 0 && self.listen.is_none() {
            return Ok(None);
        }
        let mut claims = HashMap::new();
        let mut claim = |process: ProcessId, named: String| {
            let at = self.tid.len() + claims.len();
            let before = claims.insert(process, self.claim(at, process.pid));
            ensure_usage!(before.is_none(), "{named}: process {} was named before", process.pid);
            Ok(())
        };
        for &pid in &self.pid {
            claim(
                ProcessId::of(pid).with_context(|| format!("--pid {pid}"))?,
                format!("--pid {pid}"),
            )?;
        }
        for domain in &self.domain {
            let named = format!("--domain {domain}");
            let pid = pid_of_domain(domain)?;
            claim(ProcessId::of(pid).with_context(|| named.clone())?, named)?;
        }
        let mut machines = Vec::new();
        for path in &self.qmp {
            let named = format!("--qmp {}", path.display());
            let machine = Machine::by_qmp(path).with_context(|| named.clone())?;
            claim(machine.process(), named)?;
            machines.push(machine);
        }
        let expected: Vec<ProcessId> = claims.keys().copied().collect();
        let this = self.claim(usize::MAX, 0);
        let claims = move |process: ProcessId| {
            claims.get(&process).copied().unwrap_or(Claim { vm: process.pid, ..this })
        };
        let path = self.listen.clone().unwrap_or_else(|| runtime_dir().join("sched.sock"));
        let link = Link::bind_for(
            &path,
            Access::Exactly { mode: self.listen_mode, group: self.listen_group },
        )?;
        let adoption = self.adoption();
        match &adoption {
            Adoption::All => {
                tracing::info!("back ends may register all users' machines at {}", path.display());
            }
            Adoption::Users(users) => {
                let users: Vec<_> = users.iter().map(u32::to_string).collect();
                tracing::info!(
                    "back ends may register machines of user {} at {}; those of others take \
                     --adopt",
                    users.join(", "),
                    path.display()
                );
            }
        }
        let link = link.adopting(adoption);
        if self.listen_mode & 0o002 != 0 {
            tracing::warn!(
                "every user of this host may have vCPUs scheduled (--listen-mode {:o})",
                self.listen_mode
            );
        }
        let mut backends = Backends::new(link, completions, Box::new(claims))?;
        backends.raise_storage_threads_of(trusted(&self.storage_threads)?);
        for process in expected {
            backends.expect(process);
        }
        for machine in machines {
            backends.expect_machine(machine);
        }
        Ok(Some(backends))
    }

    /// The vehicle, and in words why it is this one.
    fn vehicle(
        &self,
        settings: Settings,
        state_dir: &std::path::Path,
    ) -> anyhow::Result<Box<dyn Vehicle>> {
        let ext = ext::state();
        match (self.vehicle, &ext) {
            (VehicleArg::Realtime, _) => tracing::info!("vehicle realtime: asked for"),
            (VehicleArg::SchedExt | VehicleArg::Auto, Presence::Disabled)
                if cfg!(feature = "sched-ext") =>
            {
                let options = ext::Options {
                    params: settings.params.clone(),
                    goal: settings.goal,
                    ..Default::default()
                };
                match ext::open(options) {
                    Ok(vehicle) => {
                        tracing::info!("vehicle sched_ext: {}", ext.words());
                        return Ok(vehicle);
                    }
                    Err(error) if self.vehicle == VehicleArg::SchedExt => return Err(error.into()),
                    Err(error) => tracing::warn!(
                        "vehicle realtime: {}, but it cannot be used: {:#}",
                        ext.words(),
                        anyhow::Error::from(error)
                    ),
                }
            }
            (VehicleArg::SchedExt, Presence::Disabled) => {
                anyhow::bail!("{}, but this vlane was built without it", ext.words())
            }
            (VehicleArg::SchedExt, _) => {
                anyhow::bail!("{}; --vehicle realtime works on any kernel", ext.words())
            }
            (VehicleArg::Auto, Presence::Disabled) => {
                tracing::info!(
                    "vehicle realtime: {}, but this vlane was built without it (cargo feature \
                     sched-ext)",
                    ext.words()
                );
            }
            (VehicleArg::Auto, _) => tracing::info!("vehicle realtime: {}", ext.words()),
        }
        Ok(Box::new(RealTime::new(settings, state_dir, GuardCommand::own())?))
    }
}

fn parse_adopt(text: &str) -> Result<Adopt, String> {
    match text {
        "own" => Ok(Adopt::Own),
        "all" => Ok(Adopt::All),
        _ => user(text, "own and all").map(Adopt::User),
    }
}

fn parse_trusted(text: &str) -> Result<Trusted, String> {
    match text {
        "own" => Ok(Trusted::Own),
        "none" => Ok(Trusted::None),
        _ => user(text, "own and none").map(Trusted::User),
    }
}

/// The ID of a user, by name or ID; `others` are the words that are possible, too.
fn user(text: &str, others: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match nix::unistd::User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err(format!(
            "no user is called {text:?}; `getent passwd` lists them; {others} are possible, too"
        )),
        Err(error) => Err(format!("{text:?} cannot be looked up: {error}")),
    }
}

/// The users whose back ends have real-time lanes.
fn trusted(list: &[Trusted]) -> anyhow::Result<BTreeSet<u32>> {
    ensure_usage!(
        list.len() == 1 || !list.contains(&Trusted::None),
        "--storage-threads: none does not go with others"
    );
    let own = rustix::process::geteuid().as_raw();
    let users = list.iter().flat_map(|one| match one {
        Trusted::Own => vec![0, own],
        Trusted::None => Vec::new(),
        Trusted::User(user) => vec![*user],
    });
    Ok(users.collect())
}

/// Says so when vCPUs are in several groups that cannot be held back.
fn warn_of_groups(named: &[(VcpuThreads, Claim)]) {
    let tids = named.iter().flat_map(|(threads, _)| &threads.tids);
    let threads: Vec<Thread> = tids.filter_map(|&tid| Thread::open(tid).ok()).collect();
    let all: BTreeSet<_> = threads.iter().map(Thread::competes_in).collect();
    if all.len() > 1 && !threads.iter().all(groups::can_be_held_back) {
        let names: Vec<String> = all.iter().map(ToString::to_string).collect();
        tracing::warn!(
            "the vCPUs are in several groups ({}), which share the CPUs by the groups' weights: a \
             vCPU that owes cannot be held back against other groups if its group has other \
             programs, and is soon denied its boosts; give each machine a cgroup or a session",
            names.join(", ")
        );
    }
}

/// Restores the threads of a scheduler that was killed together with its guard.
fn restore_what_was_left(state_dir: &Path) -> anyhow::Result<()> {
    match repair::repair(state_dir) {
        Ok(repaired) => {
            for problem in &repaired.problems {
                tracing::warn!("{problem}");
            }
            if repaired.restored.changed > 0 {
                tracing::warn!(
                    "{} restored that a scheduler had left which was killed with its guard",
                    counted(repaired.restored.changed, "thread")
                );
            }
        }
        // The first one here: the directory is made.
        Err(error) if error.kind() == ErrorKind::Gone => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Keeps the process's pages in memory: reading one again during a boost would cost more than it.
fn lock_memory() {
    let flags = rustix::mm::MlockAllFlags::CURRENT
        | rustix::mm::MlockAllFlags::FUTURE
        | rustix::mm::MlockAllFlags::ONFAULT;
    if let Err(error) = rustix::mm::mlockall(flags) {
        tracing::debug!("memory is not locked: {error}");
    }
}

/// Runs the command.
///
/// # Errors
///
/// Obstacles to scheduling, in words; no thread is changed then.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    crate::logging::tell_from_now_on();
    // Each machine and each session needs some.
    vlane_error::raise_descriptor_limit();
    output::check_json(args.json.as_deref(), args.overwrite)?;
    let (settings, completions) = args.settings()?;
    // Before anything is made or bound. The other vehicle has its own needs, and says them.
    if args.vehicle == VehicleArg::Realtime
        || ext::state() != Presence::Disabled
        || !cfg!(feature = "sched-ext")
    {
        realtime::check()?;
    }
    let watch =
        args.watch_io.then(|| vlane_watch::open(settings.params.boost_max_ns)).transpose()?;
    let state_dir = args.state_dir.clone().unwrap_or_else(runtime_dir);
    let named = args.named()?;
    // The end in order is possible before the socket can be seen, so no file is left.
    let stop = handle_signals()?;
    let socket = Socket::bind(
        &args.socket.clone().unwrap_or_else(|| runtime_dir().join("sched-state.sock")),
    )?;
    let mut backends = args.backends(completions)?;
    restore_what_was_left(&state_dir)?;
    let policy = settings.params.policy;
    let (poster, mailbox) = Mailbox::new(false)?;
    lock_memory();
    let boost_ns = settings.params.boost_max_ns;
    let vehicle = args.vehicle(settings, &state_dir)?;
    let mut daemon = Daemon::new(vehicle, policy.name()).hearing_of(completions);
    if policy.lends() {
        daemon = daemon.telling_again(boost_ns);
    }
    socket.serve(daemon.hub(), poster)?;
    Daemon::raise()?;
    let source = daemon.add_source(Box::new(mailbox));
    warn_of_groups(&named);
    if let Some((watch, silence)) = watch {
        daemon.add_source(watch);
        if let Some(backends) = &mut backends {
            backends.silence(silence);
        }
        tracing::info!("the machines' interrupts are watched");
    }
    for (threads, claim) in named {
        let tid = threads.tids[0];
        let id = daemon.add(threads, claim)?;
        // On the socket, a thread's number names its vCPU.
        daemon.name_vcpu(source, u64::from(tid), id);
    }
    if let Some(backends) = backends {
        daemon.add_source(Box::new(backends.start()?));
    }
    tracing::info!(
        "{}, policy {policy}, completions {}",
        counted(daemon.vcpus(), "vCPU"),
        completions.name()
    );
    let ending = daemon.run(stop.as_fd())?;
    let last = daemon.state(vlane_sched::now());
    drop(daemon);
    match ending {
        Ending::Stopped => tracing::info!("ended; all threads are as they were"),
        Ending::Alone => tracing::info!("all vCPUs have ended"),
    }
    if let Some(path) = &args.json {
        output::give_json(path, &serde_json::to_string(&last)?, args.overwrite)?;
    }
    Ok(())
}

/// Has SIGINT and SIGTERM write into the socket that is returned.
fn handle_signals() -> anyhow::Result<UnixStream> {
    let (stop, stopper) = UnixStream::pair().context("cannot make a socket pair")?;
    for signal in [SIGINT, SIGTERM] {
        let stopper = stopper.try_clone().context("cannot make a socket pair")?;
        signal_hook::low_level::pipe::register(signal, stopper).context("cannot handle signals")?;
    }
    // The daemon has no configuration to read again. SIGHUP, which asks others for that, does not
    // end it, nor does a terminal that goes.
    let ignored = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGHUP, ignored).context("cannot handle signals")?;
    Ok(stop)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Only {
        #[command(flatten)]
        args: RunArgs,
    }

    fn parsed(words: &[&str]) -> Result<RunArgs, clap::Error> {
        Only::try_parse_from(["run"].iter().chain(words)).map(|only| only.args)
    }

    #[test]
    fn last_weight_and_cap_apply_to_the_rest() {
        let args = parsed(&["--pid", "1", "--pid", "2", "--weight", "512", "--cap", "0,25"]);
        let args = args.unwrap();
        let claims = [0, 1, 7, usize::MAX].map(|at| args.claim(at, 3));
        assert!(claims.iter().all(|claim| claim.weight == 512 && claim.vm == 3));
        assert_eq!(claims.map(|claim| claim.cap_permille), [0, 250, 250, 250]);
        let claim = parsed(&["--pid", "1"]).unwrap().claim(0, 1);
        assert_eq!((claim.weight, claim.cap_permille), (DEFAULT_WEIGHT, 0));
    }

    #[test]
    fn foreign_machines_are_adopted_only_by_option() {
        let own = rustix::process::geteuid().as_raw();
        let adoption = |words: &[&str]| parsed(words).unwrap().adoption();
        let users = |users: &[u32]| Adoption::Users(users.iter().copied().collect());
        assert_eq!(adoption(&[]), users(&[own]));
        assert_eq!(adoption(&["--adopt", "4242,root"]), users(&[0, 4242]));
        assert_eq!(adoption(&["--adopt", "own", "--adopt", "17"]), users(&[own, 17]));
        assert_eq!(adoption(&["--adopt", "17,all"]), Adoption::All);
        let error = parsed(&["--adopt", "no-such-user-here"]).unwrap_err().to_string();
        assert!(error.contains("getent passwd"), "{error}");
    }

    #[test]
    fn caps_are_percent_and_match_machines() {
        for wrong in ["x", "-1", "1.5", "1000001", "10,x"] {
            let error = parsed(&["--pid", "1", &format!("--cap={wrong}")]).unwrap_err().to_string();
            assert!(error.contains("--cap"), "{wrong}: {error}");
        }
        let too_many = parsed(&["--pid", "1", "--qmp", "/q", "--cap", "10,20,30"]).unwrap();
        let error = too_many.named().unwrap_err().to_string();
        assert!(error.contains("3 values of --cap for 2 machines"), "{error}");
        assert!(parsed(&["--cap", "10"]).unwrap().named().is_ok(), "one for whoever comes");
    }

    #[test]
    fn duplicate_machine_and_dead_qmp_socket_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let me = std::process::id().to_string();
        let listen = dir.path().join("sched.sock").display().to_string();
        let twice = parsed(&["--pid", &me, "--pid", &me, "--listen", &listen]).unwrap();
        assert!(twice.backends(Completions::All).unwrap_err().to_string().contains("named before"));
        let none = dir.path().join("qmp.sock").display().to_string();
        let error = parsed(&["--qmp", &none, "--listen", &listen])
            .unwrap()
            .backends(Completions::All)
            .unwrap_err();
        assert!(format!("{error:#}").contains("no QEMU listens there"), "{error:#}");
        assert!(!dir.path().join("sched.sock").exists(), "something was made before the error");
    }
}
