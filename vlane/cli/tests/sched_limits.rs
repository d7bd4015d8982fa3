//! Bounds of `vlane sched run`: its descriptors, its signals, the machines that it takes, and its
//! messages.
#![allow(clippy::unwrap_used, reason = "tests")]

mod scheduler;

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process};
use scheduler::{OTHER, PATIENCE, Process, may_schedule_as_root, wait};
use vlane_hint::{Guest, ProcessId};
use vlane_sched::live::socket::Client;
use vlane_sched::live::state::DaemonState;

/// A scheduler with its files in a directory of its own.
struct Scheduler {
    dir: tempfile::TempDir,
    process: Process,
}

impl Scheduler {
    /// `before`: words before the program's own; `more`: words after them.
    fn start(before: &[&str], more: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let words = before.iter().copied().chain([env!("CARGO_BIN_EXE_vlane"), "sched", "run"]);
        let words: Vec<&str> = words.collect();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .args(["--vehicle", "realtime", "--socket"])
            .arg(dir.path().join("state.sock"));
        command.arg("--state-dir").arg(dir.path().join("state"));
        command.arg("--listen").arg(dir.path().join("sched.sock")).args(more);
        command.stderr(fs::File::create(dir.path().join("log")).unwrap());
        let mut this = Self { process: Process::start(&mut command), dir };
        wait("it listens", || {
            // A guard has five seconds to be ready, which a busy machine may not give it.
            if this.process.0.try_wait().unwrap().is_some() {
                assert!(this.said().contains("it was not ready"), "{}", this.said());
                this.process = Process::start(&mut command);
            }
            vlane_testing::listens(&this.listen()) && this.state().is_some()
        });
        this
    }

    fn listen(&self) -> PathBuf {
        self.dir.path().join("sched.sock")
    }

    fn state(&self) -> Option<DaemonState> {
        let mut client = Client::connect(&self.dir.path().join("state.sock"), false).ok()?;
        Some(client.next_state().ok()??.1)
    }

    fn vcpus(&self) -> usize {
        self.state().map_or(0, |state| state.vcpus.len())
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.path().join("log")).unwrap()).into_owned()
    }

    /// Ends it in order, and returns its output.
    fn end(mut self) -> String {
        self.process.send(Signal::TERM);
        let status = self.process.0.wait().unwrap();
        let said = self.said();
        assert!(status.success(), "{status}: {said}");
        said
    }
}

/// A thread of this process that is called like a vCPU's, until this is dropped.
struct Named(#[allow(dead_code, reason = "its end ends the thread")] Sender<()>);

impl Named {
    fn new(name: &str) -> Self {
        let (ends, end) = channel();
        std::thread::Builder::new().name(name.into()).spawn(move || end.recv()).unwrap();
        Self(ends)
    }
}

/// A connection as a back end makes it.
fn knock(path: &Path) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).ok()?;
    Some(socket)
}

#[test]
fn missing_descriptors_warn_once() {
    if !may_schedule_as_root() {
        return;
    }
    let _vcpu = Named::new("CPU 0/KVM");
    let me = std::process::id().to_string();
    let run = Scheduler::start(&["prlimit", "--nofile=80:80"], &["--pid", &me]);
    wait("the machine is scheduled", || run.vcpus() == 1);
    // More than it may have, and no client leaves.
    let mut held = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2)
        || (held.len() <= 80 && begin.elapsed() < PATIENCE)
    {
        held.extend(knock(&run.listen()));
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(held.len() > 80, "only {} have connected", held.len());
    wait("the state is told meanwhile, with the machine", || run.vcpus() == 1);
    drop(held);
    wait("others are accepted again", || {
        let Some(socket) = knock(&run.listen()) else { return false };
        std::thread::sleep(Duration::from_millis(30));
        // A refused client gets the reason, and is hung up on.
        let mut byte = [0];
        rustix::net::recv(&socket, &mut byte[..], rustix::net::RecvFlags::empty()).is_err()
    });
    assert_eq!(run.vcpus(), 1);
    let said = run.end();
    assert!(
        !said.contains("is gone") && !said.contains("have ended") && !said.contains("let go"),
        "{said}"
    );
    assert_eq!(said.matches("no back end is accepted: Too many open files").count(), 1, "{said}");
    assert!(
        said.contains("LimitNOFILE") && said.lines().count() < 400,
        "{} lines",
        said.lines().count()
    );
}

#[test]
fn many_refused_back_ends_log_few_lines() {
    if !may_schedule_as_root() {
        return;
    }
    let run = Scheduler::start(&["env"], &[]);
    let refused = 3000;
    for _ in 0..refused {
        // No back end says that.
        while knock(&run.listen())
            .is_none_or(|socket| rustix::io::write(&socket, b"nonsense").is_err())
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    wait("all were heard", || run.state().is_some());
    let said = run.end();
    assert!(said.contains("a back end was refused"), "{said}");
    let lines = said.lines().filter(|line| line.contains("a back end was refused")).count();
    assert!(lines < 200, "{lines} lines for {refused}");
    assert!(said.contains("like this were left out"), "{said}");
}

#[test]
fn sighup_does_not_end_scheduler() {
    if !may_schedule_as_root() {
        return;
    }
    let run = Scheduler::start(&["env"], &[]);
    run.process.send(Signal::HUP);
    let before = run.state().unwrap().uptime;
    wait("it tells a later state", || run.state().is_some_and(|state| state.uptime > before));
    run.end();
}

/// Registers a machine as a back end does, until `done`.
fn register(run: &Scheduler, machine: u32, mut done: impl FnMut(&str) -> bool) {
    let process = ProcessId::of(machine).unwrap();
    let guest = Guest { process, vcpus: vec![0], name: "volume".into(), has_express: false };
    let mut client = vlane_hint::Client::new(vec![run.listen()], guest, true, Instant::now());
    wait("the scheduler says what is expected", || {
        let _ = client.turn(Instant::now());
        done(&run.said())
    });
}

#[test]
fn unoffered_machines_are_not_adopted() {
    if !may_schedule_as_root() {
        return;
    }
    let machine = Process::start(Command::new("sleep").arg("100").uid(OTHER));
    let (pid, other) = (machine.pid(), OTHER.to_string());
    let tells = |said: &str| said.contains("volume: its back end reports its I/O");
    let run = Scheduler::start(&["env"], &[]);
    register(&run, pid, |said| said.contains("a back end was refused"));
    let said = run.end();
    assert!(
        said.contains(&format!("belongs to user {OTHER}")) && said.contains("--adopt"),
        "{said}"
    );
    assert!(said.contains("machines of user 0") && !tells(&said), "{said}");
    // By list, by option, and by name.
    for more in [["--adopt", &other], ["--adopt", "all"], ["--pid", &pid.to_string()]] {
        let run = Scheduler::start(&["env"], &more);
        register(&run, pid, tells);
        run.end();
    }
}

fn machine_that_names_its_thread_after(seconds: &str) -> Process {
    // A process that gives itself a vCPU's name a moment after its start.
    let script = format!("sleep {seconds}; printf 'CPU 0/KVM' > /proc/$$/comm; sleep 100");
    Process::start(Command::new("sh").args(["-c", &script]))
}

#[test]
fn late_vcpu_names_cause_no_warning() {
    if !may_schedule_as_root() {
        return;
    }
    // On a busy machine the name may come later than the scheduler waits for it: then again.
    for _ in 0..10 {
        let (later, never) = (machine_that_names_its_thread_after("0.3"), Process::sleep());
        let pids = [later.pid(), never.pid()].map(|pid| pid.to_string());
        let comm = format!("/proc/{}/comm", pids[0]);
        let named = std::thread::spawn(move || {
            wait("the one has its name", || {
                fs::read_to_string(&comm).is_ok_and(|name| name.trim() == "CPU 0/KVM")
            });
            Instant::now()
        });
        let begin = Instant::now();
        let run = Scheduler::start(&["env"], &["--pid", &pids[0], "--pid", &pids[1]]);
        wait("the one is scheduled", || run.vcpus() == 1);
        wait("the other is told", || run.said().contains(&format!("sleep ({})", pids[1])));
        let said = run.end();
        assert!(said.contains("no known vCPU threads"), "{said}");
        if named.join().unwrap() < begin + Duration::from_secs(2) {
            assert!(!said.contains(&format!("({}) has no known vCPU", pids[0])), "{said}");
            return;
        }
    }
    panic!("the name never comes within two seconds");
}

/// A program as it calls itself, so that it is taken for a User-Mode Linux with as many tasks as it
/// has children.
fn user_mode_linux(dir: &Path, children: usize) -> Process {
    let script = dir.join("uml.py");
    // Children that run a program in a memfd with such a name are what its kernel runs the guest's
    // processes in.
    let text = format!(
        "import os, sys, time\n\
         fd = os.memfd_create('uml-userspace', 0)\n\
         os.write(fd, open('/bin/sleep', 'rb').read())\n\
         for _ in range({children}):\n    \
             if os.fork() == 0: os.execve(f'/proc/self/fd/{{fd}}', ['sleep', '100'], {{}})\n\
         time.sleep(100)\n"
    );
    fs::write(&script, text).unwrap();
    let linux = dir.join("linux");
    vlane_testing::copy_program(&fs::canonicalize("/usr/bin/python3").unwrap(), &linux);
    Process::start(Command::new(&linux).arg(&script).arg("mem=64M").process_group(0))
}

#[test]
fn vcpu_schedules_few_of_many_tasks() {
    if !may_schedule_as_root() {
        return;
    }
    if !Path::new("/usr/bin/python3").exists() {
        return vlane_testing::skip("no python3");
    }
    let dir = tempfile::tempdir().unwrap();
    let machine = user_mode_linux(dir.path(), 100);
    let pid = machine.pid().to_string();
    let children =
        || fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    wait("it has its children", || children().split_whitespace().count() == 100);
    let run = Scheduler::start(&["env"], &["--pid", &pid]);
    wait("it is scheduled, with many tasks", || {
        run.state().is_some_and(|state| state.vcpus.first().is_some_and(|vcpu| vcpu.tids.len() > 8))
    });
    let tids = run.state().unwrap().vcpus[0].tids.len();
    assert!(tids <= vlane_sched::discover::MAX_THREADS, "{tids} threads");
    wait("it says so", || run.said().contains("the others have no boosts"));
    let said = run.end();
    assert_eq!(said.matches("the others have no boosts").count(), 1, "{said}");
    for child in children().split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().unwrap()))
    {
        let _ = kill_process(child, Signal::KILL);
    }
}

#[test]
fn status_names_other_users_scheduler_as_unknown() {
    if !may_schedule_as_root() {
        return;
    }
    // With a /run of its own, so that no scheduler of this machine is there.
    let run = tempfile::tempdir().unwrap();
    let program = run.path().join("program");
    vlane_testing::copy_program(env!("CARGO_BIN_EXE_vlane").as_ref(), &program);
    fs::set_permissions(run.path(), PermissionsExt::from_mode(0o755)).unwrap();
    fs::create_dir(run.path().join("vlane-sched")).unwrap();
    let ask = || {
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "sh",
            "-c",
            "mount --bind \"$1\" /run && exec setpriv --reuid 65534 --clear-groups /run/program \
             sched status",
            "sh",
        ]);
        let output = command.arg(run.path()).env_remove("XDG_RUNTIME_DIR").output().unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    };
    let (code, said) = ask();
    if said.contains("unshare") || said.contains("mount:") {
        return vlane_testing::skip("no mount namespace of one's own");
    }
    assert!(
        code == Some(3) && said.contains("/run/vlane-sched/sched-state.sock"),
        "{code:?}: {said}"
    );
    let socket = run.path().join("vlane-sched/sched-state.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, PermissionsExt::from_mode(0o600)).unwrap();
    let (code, said) = ask();
    let owner = fs::metadata(&socket).unwrap().uid();
    assert_eq!(code, Some(4), "{said}");
    assert!(
        said.contains("/run/vlane-sched/sched-state.sock")
            && said.contains(&format!("user {owner}")),
        "{said}"
    );
    assert!(said.contains("sudo") && !said.contains("no scheduler runs"), "{said}");
}
