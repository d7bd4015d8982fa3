//! Machines in groups of their own (cgroups, sessions): weights hold between them, and every
//! group's weight is as before when the scheduler has ended.
#![allow(clippy::unwrap_used, reason = "tests")]

mod scheduler;

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use scheduler::{PATIENCE, Process, may_schedule_as_root, wait};
use vlane_sched::realtime::groups::can_be_held_back;
use vlane_sched::thread::Thread;
use vlane_testing::skip;

/// The controller `cpu` of cgroup version 1.
const VERSION1: &str = "/sys/fs/cgroup/cpu";
/// Version 2.
const VERSION2: &str = "/sys/fs/cgroup";

/// Measurements of shares, one at a time.
static ONE: Mutex<()> = Mutex::new(());

/// A program that computes, in a group of its own.
struct Machine {
    program: Process,
    /// Where the group's weight is read.
    weight: PathBuf,
    cgroup: Option<PathBuf>,
}

impl Machine {
    fn start() -> Process {
        // `setsid` becomes the program, because it does not lead a group of processes.
        Process::start(Command::new("setsid").args(["sh", "-c", "while :; do :; done"]))
    }

    /// In a session of its own.
    fn in_session() -> Self {
        let program = Self::start();
        // Until then it is in the session of its parent, which may have no group.
        let name = format!("/proc/{}/comm", program.pid());
        wait("the shell runs", || std::fs::read_to_string(&name).unwrap() == "sh\n");
        let weight = format!("/proc/{}/autogroup", program.pid()).into();
        Self { program, weight, cgroup: None }
    }

    /// In a cgroup of its own, of the version that this host has; none, said loudly, if it has
    /// none.
    fn in_cgroup(number: usize) -> Option<Self> {
        let name = format!("vlane-test-{}-{number}", std::process::id());
        let is_version1 = Path::new(VERSION1).join("cpu.shares").exists();
        let (root, file) =
            if is_version1 { (VERSION1, "cpu.shares") } else { (VERSION2, "cpu.weight") };
        let cgroup = Path::new(root).join(name);
        let made = std::fs::create_dir(&cgroup);
        if made.is_err() || !cgroup.join(file).exists() {
            let _ = std::fs::remove_dir(&cgroup);
            skip("no cgroup with a weight can be made here");
            return None;
        }
        // Some kernels have a real-time budget for each group of version 1.
        let _ = std::fs::write(cgroup.join("cpu.rt_runtime_us"), "100000");
        let program = Self::start();
        let machine = Self { weight: cgroup.join(file), cgroup: Some(cgroup.clone()), program };
        std::fs::write(cgroup.join("cgroup.procs"), machine.program.pid().to_string()).unwrap();
        Some(machine)
    }

    fn weight(&self) -> i64 {
        let text = std::fs::read_to_string(&self.weight).unwrap();
        text.split_whitespace().next_back().unwrap().parse().unwrap()
    }

    /// CPU time that it has used, ns.
    fn used(&self) -> u64 {
        let text = format!("/proc/{}/schedstat", self.program.pid());
        let text = std::fs::read_to_string(text).unwrap();
        text.split_whitespace().next().unwrap().parse().unwrap()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.program.0.kill();
        let _ = self.program.0.wait();
        if let Some(cgroup) = &self.cgroup {
            let until = Instant::now() + PATIENCE;
            while std::fs::remove_dir(cgroup).is_err() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

/// A scheduler of these machines; one in two has three times the weight of the other.
fn scheduler(dir: &Path, machines: &[Machine]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vlane"));
    command.args(["sched", "run", "--vehicle", "realtime", "--policy", "loan"]);
    for (machine, weight) in machines.iter().zip(["128", "384"].iter().cycle()) {
        command.args(["--tid", &machine.program.pid().to_string(), "--weight", weight]);
    }
    command.arg("--socket").arg(dir.join("socket")).arg("--state-dir").arg(dir.join("state"));
    Process::heard(command.env("VLANE_LOG", "warn"))
}

/// Two machines for each CPU.
fn machines(mut make: impl FnMut(usize) -> Option<Machine>) -> Option<Vec<Machine>> {
    let cpus = std::thread::available_parallelism().unwrap().get();
    (0..2 * cpus).map(&mut make).collect()
}

fn weights_hold(make: impl FnMut(usize) -> Option<Machine>) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(machines) = machines(make) else { return };
    let before: Vec<i64> = machines.iter().map(Machine::weight).collect();
    let dir = tempfile::tempdir().unwrap();
    let mut scheduler = scheduler(dir.path(), &machines);
    let used = || -> Vec<u64> { machines.iter().map(Machine::used).collect() };
    let mut last = used();
    wait("shares follow weights", || {
        std::thread::sleep(Duration::from_secs(2));
        if scheduler.0.try_wait().unwrap().is_some() {
            panic!("the scheduler has ended: {:?}", scheduler.wait());
        }
        let now = used();
        let sum = |first: usize| -> u64 {
            let each = now.iter().zip(&last).skip(first).step_by(2);
            each.map(|(now, last)| now - last).sum()
        };
        let (light, heavy) = (sum(0), sum(1));
        last = now;
        light > 100_000_000 && heavy * 10 > light * 25 && heavy * 10 < light * 35
    });
    let (status, said) = scheduler.end();
    assert!(status.success() && said.is_empty(), "{status}: {said}");
    let after: Vec<i64> = machines.iter().map(Machine::weight).collect();
    assert_eq!(after, before);
}

/// True if the host gives each session an autogroup.
fn has_autogroups() -> bool {
    let enabled = std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    let has = enabled.is_ok_and(|text| text.trim() == "1");
    if !has {
        skip("no autogroups here (sysctl kernel.sched_autogroup_enabled=1)");
    }
    has
}

#[test]
fn weights_hold_between_sessions() {
    if may_schedule_as_root() && has_autogroups() {
        weights_hold(|_| Some(Machine::in_session()));
    }
}

#[test]
fn weights_hold_between_cgroups() {
    if may_schedule_as_root() {
        weights_hold(Machine::in_cgroup);
    }
}

#[test]
fn killed_scheduler_leaves_group_weights_unchanged() {
    if !may_schedule_as_root() || !has_autogroups() {
        return;
    }
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let machines = machines(|_| Some(Machine::in_session())).unwrap();
    let is_held = || machines.iter().any(|machine| machine.weight() == 19);
    let is_as_before = || machines.iter().all(|machine| machine.weight() == 0);
    for both in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut scheduler = scheduler(dir.path(), &machines);
        wait("a session is held back", is_held);
        // Without the guard only `repair` can restore anything.
        let list = format!("/proc/{0}/task/{0}/children", scheduler.pid());
        let guards = std::fs::read_to_string(list).unwrap();
        scheduler.send(if both { Signal::STOP } else { Signal::KILL });
        for guard in guards.split_whitespace().filter(|_| both) {
            kill_process(Pid::from_raw(guard.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
        }
        if both {
            scheduler.send(Signal::KILL);
        }
        scheduler.0.wait().unwrap();
        if both && is_held() {
            let repair = Command::new(env!("CARGO_BIN_EXE_vlane"))
                .args(["sched", "repair", "--state-dir"])
                .arg(dir.path().join("state"))
                .status();
            assert!(repair.unwrap().success());
        }
        wait("all sessions are as before", is_as_before);
    }
}

/// Starts a shell in a session of its own, and its child, and returns both.
fn shell_and_child(script: &str) -> (Process, u32) {
    let mut shell = Command::new("setsid");
    shell.args(["sh", "-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut shell = Process(shell.spawn().unwrap());
    let mut line = String::new();
    let out = shell.0.stdout.take().unwrap();
    std::io::BufReader::new(out).read_line(&mut line).unwrap();
    (shell, line.trim().parse().unwrap())
}

/// A user's other programs in the session are not held back with the machine. A daemon's session
/// has no other programs, though its leader has ended.
#[test]
fn only_unshared_session_is_held_back() {
    if !has_autogroups() {
        return;
    }
    let is_own = |pid| can_be_held_back(&Thread::open(pid).unwrap());
    let (shell, child) = shell_and_child("sleep 100 >&2 & echo $!; wait");
    assert!(is_own(shell.pid()) && !is_own(child));
    let (mut ended, daemon) = shell_and_child("sleep 100 >&2 & echo $!");
    ended.0.wait().unwrap();
    assert!(is_own(daemon));
    for child in [child, daemon] {
        kill_process(Pid::from_raw(child.cast_signed()).unwrap(), Signal::KILL).unwrap();
    }
}
