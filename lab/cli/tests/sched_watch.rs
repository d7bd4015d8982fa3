//! `--watch-io`: interrupts signalled by others than vlane are seen, distinguished from the
//! machine's own signals, and boost.
//!
//! Where the kernel refuses to be traced, the tests say so; `watch_tests_pass_in_guest` runs them
//! on a kernel that does not.

#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::Scheduler;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use rustix::thread::{CpuSet, gettid, sched_setaffinity};
use vlane_sched::VcpuThreads;
use vlane_sched::live::backends::Silence;
use vlane_sched::live::source::{Mark, Source};
use vlane_watch as watch;

/// The name of the test that is the machine's program, and what tells it to be that.
const MACHINE: &str = "machine_for_the_watched_guest";
const ROLE: &str = "VLANE_TEST_MACHINE";
/// Emulated, on a host that does other things besides, everything takes long.
const LIMIT: Duration = Duration::from_secs(300);
/// No event is forgotten while a test looks.
const LONG: u64 = 1_000_000_000_000;

fn tid() -> u32 {
    gettid().as_raw_nonzero().get().unsigned_abs()
}

fn ring(fd: &OwnedFd) {
    rustix::io::write(fd, &1_u64.to_ne_bytes()).unwrap();
}

/// One CPU for this process and all that it starts: it is never idle when something here runs, so a
/// vCPU has to wait.
fn on_one_cpu() {
    let mut one = CpuSet::new();
    one.set(0);
    sched_setaffinity(None, &one).unwrap();
}

/// Opens the watch. On a host whose kernel refuses tracing a test ends here without loss: it runs
/// in the guest of `watch_tests_pass_in_guest`, which reports a missing guest.
fn opened() -> Option<(Box<dyn Source>, Box<dyn Silence>)> {
    match watch::open(LONG) {
        Ok(opened) => Some(opened),
        Err(error) => {
            let in_guest = std::env::var_os("VLANE_PROGRAM").is_some();
            assert!(!in_guest, "{error}: {:?}", std::error::Error::source(&error));
            None
        }
    }
}

/// Not a test: what the tests start as the virtual machine's process. It does what it reads, a word
/// per line.
#[test]
fn machine_for_the_watched_guest() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let fds: Vec<OwnedFd> = (0..3)
        .map(|_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap())
        .collect();
    let [interrupt, kick, internal] = &fds[..] else { return };
    let (told, vcpu_tid) = channel();
    let (order, orders) = channel::<String>();
    let (done, finished) = channel();
    std::thread::scope(|scope| {
        let vcpu = move || {
            told.send(tid()).unwrap();
            for order in orders {
                match order.as_str() {
                    "kick" => ring(kick),
                    "vcpu-internal" => ring(internal),
                    _ => {}
                }
                done.send(()).unwrap();
            }
        };
        // A name by which a vCPU is known.
        std::thread::Builder::new().name("vcpu0".into()).spawn_scoped(scope, vcpu).unwrap();
        if role == "computes" {
            let body = || loop {
                std::hint::spin_loop();
            };
            std::thread::Builder::new().name("vcpu1".into()).spawn_scoped(scope, body).unwrap();
        }
        let tid = vcpu_tid.recv().unwrap();
        println!("MACHINE {tid} {}", interrupt.as_raw_fd());
        let mut kvm = None;
        for line in std::io::stdin().lines().map_while(Result::ok) {
            match line.as_str() {
                "internal" => ring(internal),
                "interrupt" => ring(interrupt),
                "raise" => raise(kvm.get_or_insert_with(guest)),
                "end" => std::process::exit(0),
                _ => {
                    order.send(line.clone()).unwrap();
                    finished.recv().unwrap();
                }
            }
            println!("done {line}");
        }
        std::process::exit(0);
    });
}

/// A guest of KVM's without vCPUs.
fn guest() -> kvm_ioctls::VmFd {
    let vm = kvm_ioctls::Kvm::new().unwrap().create_vm().unwrap();
    vm.create_irq_chip().unwrap();
    vm
}

/// Has KVM interrupt the guest by a system call, as QEMU's devices do without an iothread. There is
/// no vCPU to take it.
fn raise(vm: &kvm_ioctls::VmFd) {
    let _ = vm.signal_msi(kvm_bindings::kvm_msi { address_lo: 0xfee0_0000, ..Default::default() });
}

/// A machine's process.
struct Machine {
    child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
    tid: u32,
    /// Its interrupt eventfd, as a back end has it.
    interrupt: OwnedFd,
}

impl Machine {
    fn start(role: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", MACHINE, "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let to = child.stdin.take().unwrap();
        let mut from = BufReader::new(child.stdout.take().unwrap()).lines();
        let words = from
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| Some(line.split_once("MACHINE ")?.1.to_string()));
        let words: Vec<i32> =
            words.unwrap().split_whitespace().map(|word| word.parse().unwrap()).collect();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let interrupt = pidfd_getfd(&process, words[1], PidfdGetfdFlags::empty()).unwrap();
        Self { child, to, from, tid: words[0].unsigned_abs(), interrupt }
    }

    /// Has it do something, and waits until it has.
    fn has(&mut self, what: &str) {
        writeln!(self.to, "{what}").unwrap();
        let done = format!("done {what}");
        assert!(self.from.by_ref().map(Result::unwrap).any(|line| line == done));
    }

    fn vcpu(&self) -> VcpuThreads {
        VcpuThreads { pid: self.child.id(), index: 0, tids: vec![self.tid], name: "machine".into() }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn count(source: &dyn Source, name: &str) -> u64 {
    source.counters().iter().find(|counter| counter.name == name).unwrap().value
}

/// Waits for the next event.
fn next(source: &mut dyn Source) -> Mark {
    let until = Instant::now() + LIMIT;
    let mut marks = Vec::new();
    loop {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut [PollFd::new(&source.fd(), PollFlags::IN)], Some(&second)).unwrap();
        source.collect(&mut marks).unwrap();
        match marks.pop() {
            Some(mark) if marks.is_empty() => return mark,
            Some(mark) => panic!("{marks:?} and {mark:?}"),
            None => assert!(Instant::now() < until, "nothing is told: {:?}", source.counters()),
        }
    }
}

fn nothing(source: &mut dyn Source) {
    let mut marks = Vec::new();
    source.collect(&mut marks).unwrap();
    assert!(marks.is_empty(), "{marks:?}");
}

fn wait_for_eventfds(source: &dyn Source, wanted: u64) {
    let until = Instant::now() + LIMIT;
    while count(source, "watch_eventfds") != wanted {
        assert!(Instant::now() < until, "{:?}", source.counters());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The kernel's number of an eventfd.
fn number(fd: &OwnedFd) -> String {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).unwrap();
    info.lines().find_map(|line| line.strip_prefix("eventfd-id:")).unwrap().trim().to_string()
}

#[test]
fn eventfd_signaller_shows_its_purpose() {
    on_one_cpu();
    let Some((mut source, silence)) = opened() else { return };
    let source = &mut *source;
    let mut machine = Machine::start("sleeps");
    let pid = machine.child.id();
    let token = source.meet(&machine.vcpu()).unwrap();
    assert_eq!(source.meet(&machine.vcpu()), Some(token), "it is known");
    wait_for_eventfds(source, 3);
    // A foreign event: neither before nor while something else happens.
    let strange = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    ring(&strange);
    nothing(source);

    // From outside: an event, and no second one before it is served.
    ring(&machine.interrupt);
    assert_eq!(next(source), Mark::Event { token });
    ring(&machine.interrupt);
    assert_eq!((count(source, "watch_told"), count(source, "watch_coalesced")), (1, 1));
    machine.has("kick");
    let Mark::Served { token: served, response_ns } = next(source) else { panic!("no answer") };
    assert!(served == token && response_ns > 0);
    machine.has("kick");
    assert_eq!((count(source, "watch_kicks"), count(source, "watch_served")), (2, 1));
    nothing(source);

    // The machine's own eventfd: signals of others than its vCPUs are no kicks, also later.
    ring(&machine.interrupt);
    assert_eq!(next(source), Mark::Event { token });
    machine.has("internal");
    machine.has("vcpu-internal");
    assert_eq!(count(source, "watch_internal"), 2);
    nothing(source);
    // The machine's own signal to an eventfd that others signal needs no report (without KVM behind
    // it).
    machine.has("interrupt");
    assert_eq!((count(source, "watch_internal"), count(source, "watch_interrupts")), (3, 3));
    machine.has("kick");
    assert!(matches!(next(source), Mark::Served { .. }));

    // A back end that tells itself.
    silence.silence(std::process::id(), pid, true);
    ring(&machine.interrupt);
    assert_eq!(count(source, "watch_silent"), 1);
    nothing(source);
    silence.silence(std::process::id(), pid, false);
    ring(&machine.interrupt);
    assert_eq!(next(source), Mark::Event { token });

    // The machine is released: its eventfds have no owner.
    source.part(token);
    wait_for_eventfds(source, 0);
    let before = count(source, "watch_interrupts");
    ring(&machine.interrupt);
    assert_eq!(count(source, "watch_interrupts"), before);
    nothing(source);
}

#[test]
fn reused_descriptor_is_not_the_machines() {
    on_one_cpu();
    let Some((mut source, _silence)) = opened() else { return };
    let source = &mut *source;
    let machine = Machine::start("sleeps");
    source.meet(&machine.vcpu()).unwrap();
    wait_for_eventfds(source, 3);
    let was = number(&machine.interrupt);
    // The last that has it lets go, and the next eventfd has its number: the lowest that is free.
    drop(machine);
    let mut kept = Vec::new();
    let again = loop {
        let made = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        if number(&made) == was {
            break made;
        }
        assert!(kept.len() < 10_000, "the number {was} does not come again");
        kept.push(made);
    };
    ring(&again);
    assert_eq!(count(source, "watch_interrupts"), 0);
    nothing(source);
}

#[test]
fn interrupts_without_eventfd_are_counted() {
    on_one_cpu();
    if !std::path::Path::new("/sys/module/kvm").exists() {
        return vlane_testing::skip("there is no KVM");
    }
    let Some((mut source, _silence)) = opened() else {
        return;
    };
    let source = &mut *source;
    let (mut machine, mut other) = (Machine::start("sleeps"), Machine::start("sleeps"));
    source.meet(&machine.vcpu()).unwrap();
    wait_for_eventfds(source, 3);
    machine.has("raise");
    machine.has("raise");
    // Events of an unwatched machine are not reported.
    other.has("raise");
    assert_eq!((count(source, "watch_unseen"), count(source, "watch_interrupts")), (2, 0));
    nothing(source);
    // The user learns once that boosts cannot come from there.
    let Some(scheduler) =
        Scheduler::start(&["--pid", &machine.child.id().to_string(), "--watch-io"])
    else {
        return;
    };
    scheduler.wait("its eventfds are known", |state| {
        state.counters.get("watch_eventfds").is_some_and(|&found| found >= 3)
    });
    for _ in 0..200 {
        machine.has("raise");
    }
    let state = scheduler.wait("they are counted", |state| state.counters["watch_unseen"] >= 200);
    assert_eq!(state.counters["watch_interrupts"], 0, "{state:?}");
    let until = Instant::now() + LIMIT;
    while !scheduler.said().contains("without an eventfd") {
        assert!(Instant::now() < until, "{}", scheduler.said());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(scheduler.said().matches("without an eventfd").count(), 1);
    scheduler.stop();
}

/// Which of the kernel's functions are traced; none where that cannot be seen.
fn traced() -> Option<bool> {
    let functions = std::fs::read_to_string("/sys/kernel/tracing/enabled_functions").ok()?;
    Some(functions.lines().any(|line| line.starts_with("eventfd_")))
}

#[test]
fn unserved_machine_is_boosted_and_detached_cleanly() {
    on_one_cpu();
    if opened().is_none() {
        return;
    }
    let machine = Machine::start("computes");
    let pid = machine.child.id().to_string();
    // Without it, such I/O is invisible.
    let Some(plain) = Scheduler::start(&["--pid", &pid]) else { return };
    plain.wait("both vCPUs are scheduled", |state| state.vcpus.len() == 2);
    for _ in 0..20 {
        ring(&machine.interrupt);
        std::thread::sleep(Duration::from_millis(2));
    }
    let state = plain.stop();
    assert!(state.vcpus.iter().all(|vcpu| vcpu.events == 0), "{state:?}");

    let scheduler =
        Scheduler::start(&["--pid", &pid, "--watch-io", "--policy", "always-boost"]).unwrap();
    scheduler.wait("its eventfds are known", |state| {
        state.counters.get("watch_eventfds").is_some_and(|&found| found == 3)
            && state.vcpus.len() == 2
    });
    let until = Instant::now() + LIMIT;
    let state = loop {
        for _ in 0..50 {
            ring(&machine.interrupt);
            std::thread::sleep(Duration::from_millis(2));
        }
        let state = scheduler.state();
        let boosts = |vcpu: &vlane_sched::live::state::VcpuState| vcpu.boosts + vcpu.wake_boosts;
        // The one that computes waits for its turn, behind this very test.
        if state.vcpus.iter().any(|vcpu| vcpu.index == 1 && vcpu.events >= 20 && boosts(vcpu) >= 10)
        {
            break state;
        }
        assert!(Instant::now() < until, "{state:?}");
    };
    assert!(state.counters["watch_told"] >= 20, "{state:?}");
    let told = state.counters["watch_told"];
    let heard: u64 = state.vcpus.iter().map(|vcpu| vcpu.events).sum();
    assert!(heard <= told, "{heard} of {told}");
    if traced().is_none() {
        vlane_testing::skip("what is attached cannot be seen: no tracefs");
    }
    assert_ne!(traced(), Some(false));
    rustix::process::kill_process(
        Pid::from_raw(scheduler.pid().cast_signed()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    let until = Instant::now() + LIMIT;
    while traced() == Some(true) {
        assert!(Instant::now() < until, "the programs stay attached");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// CPU time of a thread, ns.
fn used(pid: u32, tid: &str) -> u64 {
    let text =
        std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// A real back end that is not vlane's, and a front end in the machine's place: the thread that
/// does I/O is its vCPU.
#[test]
fn vcpu_waiting_for_qemu_disk_is_boosted() {
    on_one_cpu();
    if opened().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("disk.sock");
    let export = format!(
        "vhost-user-blk,id=disk,node-name=disk,addr.type=unix,addr.path={}",
        socket.display()
    );
    let started = Command::new("qemu-storage-daemon")
        .args([
            "--blockdev",
            "null-co,node-name=disk,size=67108864,read-zeroes=on",
            "--export",
            &export,
        ])
        .spawn();
    let mut backend = match started {
        Ok(child) => child,
        Err(error) => return vlane_testing::skip(format!("qemu-storage-daemon: {error}")),
    };
    let until = Instant::now() + LIMIT;
    while !vlane_testing::listens(&socket) {
        assert!(Instant::now() < until, "qemu-storage-daemon made no socket");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut machine = Command::new(common::vlane())
        .args(["bench", "--depth", "1", "--time", "600s"])
        .arg(&socket)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = machine.id();
    // The thread that does I/O is the one that uses the CPU, but for the first, which has started
    // the program.
    let vcpu = loop {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
        let tids = tasks.map(|entry| entry.file_name().to_string_lossy().into_owned());
        let busiest = tids.filter(|tid| *tid != pid.to_string()).max_by_key(|tid| used(pid, tid));
        if let Some(busiest) = busiest.filter(|tid| used(pid, tid) > 1_000_000_000) {
            break busiest;
        }
        assert!(Instant::now() < until, "nobody does I/O");
        std::thread::sleep(Duration::from_millis(100));
    };
    // Under sched_ext the back end, an ordinary thread, comes first on the one CPU, and is polled
    // instead of interrupting.
    let options =
        ["--tid", &vcpu, "--watch-io", "--policy", "always-boost", "--vehicle", "realtime"];
    let scheduler = Scheduler::start(&options).unwrap();
    let state = scheduler.wait("it is boosted and serves", |state| {
        state.vcpus.iter().any(|vcpu| {
            vcpu.events >= 50 && vcpu.boosts + vcpu.wake_boosts >= 20 && vcpu.responses >= 20
        })
    });
    assert!(state.counters["watch_served"] <= state.counters["watch_told"], "{state:?}");
    scheduler.stop();
    machine.kill().unwrap();
    machine.wait().unwrap();
    backend.kill().unwrap();
    backend.wait().unwrap();
}

/// Cost of a signal of a foreign eventfd, with and without the programs, in turns. Prints it; the
/// documentation judges the amount.
#[test]
fn unwatched_eventfd_costs_little() {
    if opened().is_none() {
        return;
    }
    const WRITES: u32 = 4_000;
    let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let turn = || {
        let begun = Instant::now();
        for _ in 0..WRITES {
            ring(&fd);
        }
        u64::try_from(begun.elapsed().as_nanos()).unwrap() / u64::from(WRITES)
    };
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        without.push(turn());
        let attached = watch::open(LONG).unwrap();
        with.push(turn());
        drop(attached);
    }
    without.sort_unstable();
    with.sort_unstable();
    let (without, with) = (without[2], with[2]);
    println!("RESULT write_ns={without}");
    println!("RESULT write_traced_ns={with}");
    assert!(with < 100 * without.max(1));
}

/// Runs all of this on a kernel that may be traced.
#[test]
fn watch_tests_pass_in_guest() {
    if std::env::var_os("VLANE_PROGRAM").is_some() {
        return;
    }
    if cfg!(not(feature = "bpf")) {
        return vlane_testing::skip(
            "built without the feature bpf (needs make, pkg-config, libelf-dev, zlib1g-dev)",
        );
    }
    let _turn = common::one_at_a_time();
    let host = common::host();
    let found = vlane_guest::QemuProgram::find(&host)
        .and_then(|program| Ok((program, vlane_guest::Kernel::with_sched_ext(&host)?)));
    let Some((program, kernel)) = common::or_skip("a guest that may be traced", found) else {
        return;
    };
    // One of them, to look at.
    let only = std::env::var("VLANE_WATCH_ONLY").unwrap_or_default();
    let script = r#"
mount -t tracefs tracefs /sys/kernel/tracing
export VLANE_PROGRAM=$(command -v vlane) TMPDIR=/tmp
mkdir -p /tmp
sched_watch --nocapture --test-threads=1 ONLY 2>&1
"#;
    let vlane = common::stripped(&host, common::vlane().as_ref());
    let this = common::stripped(&host, &std::env::current_exe().unwrap());
    let guest = vlane_guest::Initramfs::new(script.replace("ONLY", &only))
        .programs(["setpriv", "qemu-storage-daemon"])
        .modules(["kvm_amd"])
        .program_at("vlane", vlane.path())
        .program_at("sched_watch", this.path());
    let boot = vlane_guest::Boot::Kernel {
        kernel: kernel.image.clone(),
        initramfs: None,
        append: String::new(),
    };
    let mut machine = vlane_guest::Qemu::new(
        program,
        vlane_guest::Accel::Tcg,
        boot,
        vlane_guest::Disk::at("/nowhere"),
    );
    machine.disks.clear();
    machine.memory_mib = 1024;
    // The kernel changes its own code when it is traced.
    machine.in_turns = true;
    let show: fn(&str) = |line| eprintln!("guest: {line}");
    let limit = Duration::from_secs(1500);
    let report =
        machine.start_with(&host, &kernel, &guest, limit, Some(show)).unwrap().wait().unwrap();
    report.script_ok().unwrap_or_else(|error| panic!("{error}\n{}", report.console));
    assert!(!report.console.contains(vlane_testing::MARK), "{}", report.console);
    for key in ["write_ns", "write_traced_ns"].iter().filter(|_| only.is_empty()) {
        println!("{key} in an emulated guest: {}", report.result(key).unwrap());
    }
}
