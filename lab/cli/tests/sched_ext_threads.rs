//! Threads of the sched_ext vehicle: which are taken, and their effects on the scheduler and on
//! each other.
//!
//! Where the kernel has no sched_ext the tests return at once; `sched_ext_tests_pass_in_guest` runs
//! them on a kernel that has it.

#![cfg(feature = "sched-ext")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, Pid, gettid, sched_setaffinity};
use vlane_policy::loan::{Claim, Params, Policy, VcpuId};
use vlane_sched::ext::{Options, SchedExt};
use vlane_sched::realtime::monotonic_ns;
use vlane_sched::sys::{self, Attr, Class};
use vlane_sched::{VcpuThreads, Vehicle};

/// Emulated, on a host that does other things besides, all takes long.
const LIMIT: Duration = Duration::from_secs(300);
const EXT: Class = Class::Else(7);
/// Variable that marks this program as running in the guest.
const IN_GUEST: &str = "VLANE_TEST_IN_GUEST";

fn is_in_guest() -> bool {
    std::env::var_os(IN_GUEST).is_some()
}

/// A CPU set of these.
fn cpus(numbers: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    numbers.iter().for_each(|&number| set.set(number));
    set
}

fn pin(tid: u32, numbers: &[usize]) {
    let pid = Pid::from_raw(tid.cast_signed()).unwrap();
    sched_setaffinity(Some(pid), &cpus(numbers)).unwrap();
}

fn tid() -> u32 {
    gettid().as_raw_nonzero().get().unsigned_abs()
}

/// A thread that computes, or sleeps, until it is dropped.
struct Worker {
    tid: u32,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn new(computes: bool) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, told) = channel();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            tell.send(tid()).unwrap();
            while !stopped.load(Ordering::Relaxed) {
                match computes {
                    true => std::hint::spin_loop(),
                    false => std::thread::park_timeout(Duration::from_secs(1)),
                }
            }
        });
        Self { tid: told.recv().unwrap(), stop, thread: Some(thread) }
    }

    /// One that computes on these CPUs.
    fn on(numbers: &[usize]) -> Self {
        let worker = Self::new(true);
        pin(worker.tid, numbers);
        worker
    }

    fn class(&self) -> Class {
        sys::get(self.tid).unwrap().class
    }

    fn vcpu(&self) -> VcpuThreads {
        vcpu(&[self.tid])
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().unwrap();
        thread.thread().unpark();
        let _ = thread.join();
    }
}

fn vcpu(tids: &[u32]) -> VcpuThreads {
    VcpuThreads { pid: std::process::id(), index: 0, tids: tids.to_vec(), name: "machine".into() }
}

fn vehicle(policy: Policy) -> SchedExt {
    SchedExt::load(Options { params: Params::sound(policy), ..Options::default() }).unwrap()
}

/// Ticks as the daemon would, for so long.
fn run(vehicle: &mut SchedExt, time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        let next =
            vehicle.tick(monotonic_ns()).unwrap_or_else(|error| panic!("thrown out: {error}"));
        std::thread::sleep(Duration::from_nanos(next.saturating_sub(monotonic_ns())));
    }
}

#[test]
fn existing_children_join_except_real_time() {
    if !is_in_guest() {
        return;
    }
    let mut vehicle = vehicle(Policy::Loan);
    let (plain, fifo) = (Worker::new(false), Worker::new(false));
    let real_time =
        Attr { class: Class::Else(1), priority: 7, nice: 0, reset_on_fork: false, slice_ns: 0 };
    sys::set(fifo.tid, &real_time).unwrap();
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let class_of = |tid: u32| sys::get(tid).unwrap().class;

    assert!(vehicle.add(&fifo.vcpu(), Claim::of(1)).is_err(), "a real-time thread was taken");
    assert_eq!(sys::get(fifo.tid).unwrap(), real_time);
    let id = vehicle.add(&vcpu(&[plain.tid, fifo.tid, child.id()]), Claim::of(1)).unwrap();
    assert_eq!((plain.class(), class_of(child.id())), (EXT, EXT), "thread and child");
    assert_eq!(sys::get(fifo.tid).unwrap(), real_time);
    // One that comes later.
    let mut later = Command::new("sleep").arg("1000").spawn().unwrap();
    vehicle.change(id, &vcpu(&[plain.tid, fifo.tid, child.id(), later.id()])).unwrap();
    assert_eq!(class_of(later.id()), EXT);
    assert_eq!(sys::get(fifo.tid).unwrap(), real_time);
    vehicle.remove(id).unwrap();
    assert_eq!([plain.tid, child.id(), later.id()].map(class_of), [Class::Other; 3]);
    assert_eq!(sys::get(fifo.tid).unwrap(), real_time);
    for child in [&mut child, &mut later] {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

#[test]
fn affinity_changes_do_not_eject_scheduler() {
    if !is_in_guest() {
        return;
    }
    let mut vehicle = vehicle(Policy::AlwaysBoost);
    // Two CPUs on which a boosted thread may displace another; on the other two this test is in the
    // way.
    let hogs = [Worker::on(&[2]), Worker::on(&[3])];
    let victims: Vec<Worker> = (0..6).map(|_| Worker::on(&[0, 2])).collect();
    let mut add = |worker: &Worker| vehicle.add(&worker.vcpu(), Claim::of(worker.tid)).unwrap();
    hogs.iter().for_each(|hog| {
        add(hog);
    });
    let ids: Vec<VcpuId> = victims.iter().map(&mut add).collect();
    let (stop, changed) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(tid(), &[1]);
            let sets: [&[usize]; 4] = [&[0, 2], &[0], &[0, 3], &[0]];
            for set in sets.iter().cycle() {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                for victim in &victims {
                    pin(victim.tid, set);
                    changed.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        pin(tid(), &[0]);
        let begin = Instant::now();
        let (mut thrown_out, mut told) = (None, 0);
        let is_enough = |vehicle: &SchedExt, told: u64| {
            told > 1000
                && changed.load(Ordering::Relaxed) > 1000
                && vehicle.counters().unwrap().moved > 100
        };
        while thrown_out.is_none() && begin.elapsed() < LIMIT / 2 {
            if begin.elapsed() > Duration::from_secs(12) && is_enough(&vehicle, told) {
                break;
            }
            thrown_out = vehicle.tick(monotonic_ns()).err();
            for _ in 0..20 {
                for &id in &ids {
                    vehicle.event(id, monotonic_ns()).unwrap();
                    vehicle.served(id, monotonic_ns(), 0).unwrap();
                    told += 1;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        let changed = changed.load(Ordering::Relaxed);
        println!("{told} events, {changed} changes of affinity, {:?}", vehicle.counters());
        assert!(thrown_out.is_none(), "after {told} events and {changed} changes: {thrown_out:?}");
        assert!(told > 1000 && changed > 1000);
    });
    assert!(vehicle.counters().unwrap().moved > 100, "{:?}", vehicle.counters());
    assert_eq!(std::fs::read_to_string("/sys/kernel/sched_ext/state").unwrap().trim(), "enabled");
}

#[test]
fn long_queue_of_excluded_threads_delays_nobody() {
    if !is_in_guest() {
        return;
    }
    let mut vehicle = vehicle(Policy::Loan);
    // They are entitled to all CPUs, and may use the one CPU only: threads that wait for the other
    // CPU wait behind them.
    let many: Vec<Worker> = (0..90).map(|_| Worker::on(&[0])).collect();
    let two = [Worker::on(&[1]), Worker::on(&[1])];
    let claim = |worker: &Worker, weight| Claim { vm: worker.tid, weight, cap_permille: 0 };
    for worker in &many {
        vehicle.add(&worker.vcpu(), claim(worker, 10_000)).unwrap();
    }
    let ids = two.each_ref().map(|worker| vehicle.add(&worker.vcpu(), claim(worker, 1)).unwrap());
    // This test itself comes before them, on another CPU.
    pin(tid(), &[2]);
    let used =
        |vehicle: &SchedExt| ids.map(|id| vehicle.account(id).unwrap().totals.used_ns / 1_000_000);
    // CPU time that the host takes from the guest counts as that of a thread. That spoils a turn;
    // a queue that delays spoils all of them.
    let (mut all, mut longest) = ([0, 0], [0, 0]);
    for _ in 0..3 {
        // CPU time that one of them uses in a row while the other one waits without any.
        let (mut last, mut alone) = (used(&vehicle), [0, 0]);
        let first = last;
        longest = [0, 0];
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until {
            run(&mut vehicle, Duration::from_millis(20));
            let now = used(&vehicle);
            for (at, other) in [(0, 1), (1, 0)] {
                let waits = now[other] == last[other];
                alone[at] = if waits { alone[at] + now[at] - last[at] } else { 0 };
                longest[at] = longest[at].max(alone[at]);
            }
            last = now;
        }
        all = [last[0] - first[0], last[1] - first[1]];
        println!("the two used {all:?} ms, {longest:?} ms in a row");
        if longest.iter().all(|&ms| ms < 300) && all[0].min(all[1]) * 3 > all[0].max(all[1]) {
            break;
        }
    }
    assert!(all.iter().sum::<u64>() > 500, "none of them ran: {all:?} ms");
    assert!(
        longest.iter().all(|&ms| ms < 300),
        "one waits for the other for {longest:?} ms of CPU time"
    );
    assert!(all[0].min(all[1]) * 3 > all[0].max(all[1]), "one of them starves: {all:?} ms");
}

/// Runs all of this on a kernel with sched_ext.
#[test]
fn sched_ext_tests_pass_in_guest() {
    if is_in_guest() {
        return;
    }
    let host = common::host();
    let found = vlane_guest::QemuProgram::find(&host)
        .and_then(|program| Ok((program, vlane_guest::Kernel::with_sched_ext(&host)?)));
    let (program, kernel) = match found {
        Ok(found) => found,
        Err(error) => return vlane_testing::skip(error),
    };
    // One of them, to look at.
    let only = std::env::var("VLANE_EXT_ONLY").unwrap_or_default();
    let script = r"
export VLANE_TEST_IN_GUEST=1 TMPDIR=/tmp
mkdir -p /tmp
sched_ext_threads --nocapture --test-threads=1 ONLY 2>&1
";
    let this = common::stripped(&host, &std::env::current_exe().unwrap());
    let guest = vlane_guest::Initramfs::new(script.replace("ONLY", &only))
        .program_at("sched_ext_threads", this.path());
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
    machine.vcpus = 4;
    // The kernel changes its own code when a scheduler comes and goes.
    machine.in_turns = true;
    let show: fn(&str) = |line| eprintln!("guest: {line}");
    let report =
        machine.start_with(&host, &kernel, &guest, LIMIT, Some(show)).unwrap().wait().unwrap();
    report.script_ok().unwrap_or_else(|error| panic!("{error}\n{}", report.console));
}
