//! Tests of the threads that the realtime vehicle takes, and of the effect of one refusal on the
//! others.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use vlane_error::describe;
use vlane_policy::loan::{Claim, Decision, Goal, Params, Policy};
use vlane_sched::live::socket::Hub;
use vlane_sched::live::source::{Mailbox, Mark, Poster};
use vlane_sched::live::{Daemon, Ending};
use vlane_sched::realtime::guard::GuardCommand;
use vlane_sched::realtime::{self, RealTime, Settings, monotonic_ns};
use vlane_sched::sys::{self, Attr, Class};
use vlane_sched::{ErrorKind, VcpuThreads, Vehicle};
use vlane_testing::skip;

const PATIENCE: Duration = Duration::from_secs(60);
/// `SCHED_FIFO` and `SCHED_DEADLINE`.
const FIFO: Class = Class::Else(1);
const DEADLINE: Class = Class::Else(6);

/// A thread that sleeps until it is dropped.
struct Sleeper {
    tid: u32,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sleeper {
    fn new() -> Self {
        Self::doing(|| std::thread::park_timeout(Duration::from_secs(1)))
    }

    /// A thread that does this again and again instead.
    fn doing(work: impl Fn() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, told) = channel();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()).unwrap();
            while !stopped.load(Ordering::Relaxed) {
                work();
            }
        });
        Self { tid: told.recv().unwrap(), stop, thread: Some(thread) }
    }

    fn class(&self) -> Class {
        sys::get(self.tid).unwrap().class
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().unwrap();
        thread.thread().unpark();
        let _ = thread.join();
    }
}

/// Another process, of another user, that sleeps.
struct Stranger(std::process::Child);

impl Stranger {
    fn new() -> Self {
        use std::os::unix::process::CommandExt;
        let child = Command::new("sleep").arg("1000").uid(65534).spawn().unwrap();
        Self(child)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn vcpu(tids: &[u32]) -> VcpuThreads {
    VcpuThreads { pid: std::process::id(), index: 0, tids: tids.to_vec(), name: "machine".into() }
}

/// A vehicle whose guard is a process that only waits: no process is killed here.
fn vehicle(dir: &Path) -> Option<RealTime> {
    if let Err(error) = realtime::check() {
        skip(error);
        return None;
    }
    Some(vehicle_with(Settings::new(Params::sound(Policy::AlwaysBoost), Goal::default()), dir))
}

/// The same with these settings. A guard has five seconds to be ready. A busy machine may not give
/// it any CPU in that time: then it is another one's turn.
fn vehicle_with(settings: Settings, dir: &Path) -> RealTime {
    let guard = GuardCommand {
        program: "/bin/sh".into(),
        args: ["-c", "printf '!'; cat > /dev/null", "guard"].map(String::from).into(),
    };
    let until = Instant::now() + PATIENCE;
    loop {
        match RealTime::new(settings.clone(), dir, guard.clone()) {
            Ok(vehicle) => return vehicle,
            Err(error) => {
                let why = describe(&error);
                assert!(why.contains("it was not ready") && Instant::now() < until, "{why}");
            }
        }
    }
}

fn boost(vehicle: &mut RealTime, id: vlane_policy::loan::VcpuId) {
    let decision = vehicle.event(id, monotonic_ns()).unwrap();
    assert!(matches!(decision, Decision::Boost { .. }), "{decision:?}");
}

#[test]
fn realtime_thread_is_skipped_others_are_taken() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut vehicle) = vehicle(dir.path()) else { return };
    let (fifo, round_robin, deadline, plain) =
        (Sleeper::new(), Sleeper::new(), Sleeper::new(), Sleeper::new());
    let real_time = |class| Attr { class, priority: 7, nice: 0, reset_on_fork: false, slice_ns: 0 };
    sys::set(fifo.tid, &real_time(FIFO)).unwrap();
    sys::set(round_robin.tid, &real_time(Class::RoundRobin)).unwrap();
    let chrt = Command::new("chrt")
        .args(["--deadline", "--sched-runtime", "1000000", "--sched-deadline", "10000000"])
        .args(["--sched-period", "10000000", "--pid", "0", &deadline.tid.to_string()])
        .status();
    assert!(
        chrt.is_ok_and(|status| status.success()),
        "chrt (util-linux) cannot make a deadline thread"
    );
    let before = [&fifo, &round_robin, &deadline].map(|thread| sys::get(thread.tid).unwrap());
    assert_eq!(before.map(|attr| attr.class), [FIFO, Class::RoundRobin, DEADLINE]);

    for alone in [&fifo, &round_robin, &deadline] {
        let error = vehicle.add(&vcpu(&[alone.tid]), Claim::of(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LeftAlone, "{error}");
        assert!(error.to_string().contains(&alone.tid.to_string()), "{error}");
    }
    let all = vcpu(&[fifo.tid, round_robin.tid, plain.tid, deadline.tid]);
    let id = vehicle.add(&all, Claim::of(1)).unwrap();
    boost(&mut vehicle, id);
    assert_eq!(plain.class(), Class::RoundRobin);
    let during = [&fifo, &round_robin, &deadline].map(|thread| sys::get(thread.tid).unwrap());
    assert_eq!(during, before);
    vehicle.remove(id).unwrap();
    assert_eq!(plain.class(), Class::Other);
    assert_eq!(
        [&fifo, &round_robin, &deadline].map(|thread| sys::get(thread.tid).unwrap()),
        before
    );
}

#[test]
fn refused_thread_does_not_keep_others_realtime() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut vehicle) = vehicle(dir.path()) else { return };
    // Without the capability a process may change its own threads only: the last of these, not the
    // first. Its children are never real-time, or going back would take the capability, too.
    let (stranger, own, next) = (Stranger::new(), Sleeper::new(), Sleeper::new());
    for thread in [&own, &next] {
        sys::set(thread.tid, &Attr { reset_on_fork: true, ..sys::get(thread.tid).unwrap() })
            .unwrap();
    }
    let id = vehicle.add(&vcpu(&[stranger.0.id(), own.tid]), Claim::of(1)).unwrap();
    let other = vehicle.add(&vcpu(&[next.tid]), Claim::of(2)).unwrap();
    boost(&mut vehicle, id);
    boost(&mut vehicle, other);
    let classes = || [stranger.0.id(), own.tid, next.tid].map(|tid| sys::get(tid).unwrap().class);
    assert_eq!(classes(), [Class::RoundRobin; 3]);

    // This thread's alone.
    let all = capabilities(None).unwrap();
    let mut less = all;
    less.effective.remove(CapabilitySet::SYS_NICE);
    set_capabilities(None, less).unwrap();
    let until = Instant::now() + PATIENCE;
    while classes()[1..] != [Class::Other; 2] && Instant::now() < until {
        // A refusal for one vCPU is no reason to end: the boosts of all others have to end, too.
        vehicle.tick(monotonic_ns()).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(classes(), [Class::RoundRobin, Class::Other, Class::Other]);
    // Allowed again, the remaining thread is restored, too.
    set_capabilities(None, all).unwrap();
    while classes()[0] != Class::Other && Instant::now() < until {
        vehicle.tick(monotonic_ns()).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(classes(), [Class::Other; 3]);
}

#[test]
fn refused_vcpu_is_taken_later() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut first) = vehicle(dir.path()) else { return };
    let thread = Sleeper::new();
    let theirs = first.add(&vcpu(&[thread.tid]), Claim::of(1)).unwrap();

    let (poster, mailbox) = Mailbox::new(true).unwrap();
    let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let mut daemon = Daemon::new(Box::new(vehicle(dir.path()).unwrap()), "always-boost");
    daemon.add_source(Box::new(mailbox));
    let hub = daemon.hub();
    let daemon = {
        let stop = stop.try_clone().unwrap();
        std::thread::spawn(move || daemon.run(stop.as_fd()).unwrap())
    };
    poster.post(Mark::Joined { token: 7, vcpu: vcpu(&[thread.tid]), claim: Claim::of(1) });
    let until = Instant::now() + PATIENCE;
    // It was refused before this was published: another scheduler has it.
    while hub.latest().uptime == 0.0 {
        assert!(Instant::now() < until, "the daemon tells nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    first.remove(theirs).unwrap();
    while hub.latest().vcpus.is_empty() {
        assert!(Instant::now() < until, "a vCPU that was refused once is never tried again");
        std::thread::sleep(Duration::from_millis(10));
    }
    // By the token that it had from the beginning.
    while hub.latest().vcpus.first().is_none_or(|vcpu| vcpu.events == 0) {
        assert!(Instant::now() < until, "its events are lost");
        poster.post(Mark::Event { token: 7 });
        std::thread::sleep(Duration::from_millis(10));
    }
    rustix::io::write(&stop, &1_u64.to_ne_bytes()).unwrap();
    daemon.join().unwrap();
}

/// A daemon with a mailbox, on a separate thread.
struct Running {
    poster: Poster,
    hub: Arc<Hub>,
    stop: OwnedFd,
    thread: Option<JoinHandle<Ending>>,
}

impl Running {
    fn new(dir: &Path) -> Option<Self> {
        let (poster, mailbox) = Mailbox::new(true).unwrap();
        let stop = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let mut daemon = Daemon::new(Box::new(vehicle(dir)?), "always-boost");
        daemon.add_source(Box::new(mailbox));
        let (hub, stopped) = (daemon.hub(), stop.try_clone().unwrap());
        let thread = std::thread::spawn(move || daemon.run(stopped.as_fd()).unwrap());
        Some(Self { poster, hub, stop, thread: Some(thread) })
    }

    /// Waits until the daemon tells of vCPUs with these threads each.
    fn wait_for(&self, vcpus: &[&[u32]]) {
        let until = Instant::now() + PATIENCE;
        loop {
            let now: Vec<_> = self.hub.latest().vcpus.into_iter().map(|vcpu| vcpu.tids).collect();
            if now == vcpus {
                return;
            }
            assert!(Instant::now() < until, "{now:?}, not {vcpus:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        rustix::io::write(&self.stop, &1_u64.to_ne_bytes()).unwrap();
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[test]
fn ended_vcpu_rejoins_with_new_threads() {
    let dir = tempfile::tempdir().unwrap();
    let Some(daemon) = Running::new(dir.path()) else { return };
    let first = Sleeper::new();
    daemon.poster.post(Mark::Joined { token: 7, vcpu: vcpu(&[first.tid]), claim: Claim::of(1) });
    daemon.wait_for(&[&[first.tid]]);
    drop(first);
    daemon.wait_for(&[]);
    let second = Sleeper::new();
    daemon.poster.post(Mark::Changed { token: 7, vcpu: vcpu(&[second.tid]) });
    daemon.wait_for(&[&[second.tid]]);
    // A vCPU that has left stays away.
    daemon.poster.post(Mark::Left { token: 7 });
    daemon.poster.post(Mark::Changed { token: 7, vcpu: vcpu(&[second.tid]) });
    let third = Sleeper::new();
    daemon.poster.post(Mark::Joined { token: 8, vcpu: vcpu(&[third.tid]), claim: Claim::of(1) });
    daemon.wait_for(&[&[third.tid]]);
}

#[test]
fn later_thread_stays_with_other_scheduler() {
    let dir = tempfile::tempdir().unwrap();
    let Some(daemon) = Running::new(dir.path()) else { return };
    let (first, later) = (Sleeper::new(), Sleeper::new());
    let entry = format!("/proc/{0}/task/{1}/stat", std::process::id(), later.tid);
    let Ok(other) = Command::new("flock").args(["-F", "-n", &entry, "sleep", "1000"]).spawn()
    else {
        return skip("no flock (util-linux)");
    };
    let other = Stranger(other);
    // It is that program once it has the lock.
    let until = Instant::now() + PATIENCE;
    while std::fs::read_to_string(format!("/proc/{}/comm", other.0.id())).unwrap().trim() != "sleep"
    {
        assert!(Instant::now() < until, "flock does not lock");
        std::thread::sleep(Duration::from_millis(10));
    }
    daemon.poster.post(Mark::Joined { token: 7, vcpu: vcpu(&[first.tid]), claim: Claim::of(1) });
    daemon.poster.post(Mark::Changed { token: 7, vcpu: vcpu(&[first.tid, later.tid]) });
    // Earlier posts were handled earlier.
    daemon.poster.post(Mark::Event { token: 7 });
    while daemon.hub.latest().vcpus.first().is_none_or(|vcpu| vcpu.events == 0) {
        assert!(Instant::now() < until, "no event is told of");
        std::thread::sleep(Duration::from_millis(10));
    }
    daemon.wait_for(&[&[first.tid]]);
    drop(other);
    daemon.wait_for(&[&[first.tid, later.tid]]);
}

/// A machine of five hundred threads and one of a single thread have as many events each. By counts
/// alone: the cost of a boost is bounded, and a machine that costs more pays for it.
#[test]
fn large_machine_pays_for_its_own_boosts() {
    let dir = tempfile::tempdir().unwrap();
    if let Err(error) = realtime::check() {
        return skip(error);
    }
    Daemon::raise().unwrap();
    let mut settings = Settings::new(Params::sound(Policy::AlwaysBoost), Goal::default());
    // About a twentieth of a CPU, so that it is used up soon. The honest one has the same.
    let cpus = std::thread::available_parallelism().unwrap().get();
    settings.rt_percent = 10;
    settings.rt_shares.machine = u8::try_from((50 / cpus).clamp(1, 100)).unwrap();
    let mut vehicle = vehicle_with(settings, dir.path());
    let sleepers: Vec<Sleeper> = std::iter::repeat_with(Sleeper::new).take(501).collect();
    let (honest, greedy) = sleepers.split_last().unwrap();
    let many: Vec<u32> = greedy.iter().map(|sleeper| sleeper.tid).collect();
    let greedy = vehicle.add(&vcpu(&many), Claim::of(1)).unwrap();
    let honest = vehicle.add(&vcpu(&[honest.tid]), Claim::of(2)).unwrap();
    let most = vlane_sched::discover::MAX_THREADS as u64;
    let (mut boosts, mut events) = ([0_u64; 2], 0_u64);
    let until = Instant::now() + PATIENCE;
    while vehicle.counts().denied_machine < 100 {
        assert!(
            Instant::now() < until,
            "it never pays: {boosts:?} of {events}, {:?}",
            vehicle.counts()
        );
        events += 1;
        for (id, boosts) in [greedy, honest].into_iter().zip(&mut boosts) {
            let before = vehicle.counts().changes;
            let decision = vehicle.event(id, monotonic_ns()).unwrap();
            let boosted = matches!(decision, Decision::Boost { .. });
            *boosts += u64::from(boosted);
            let changes = vehicle.counts().changes - before;
            assert!(changes <= if boosted { most } else { 0 }, "{changes} for one event");
            vehicle.served(id, monotonic_ns(), 1000).unwrap();
            let changes = vehicle.counts().changes - before;
            assert!(changes <= 2 * most, "{changes} for one boost");
        }
        vehicle.tick(monotonic_ns()).unwrap();
        // An event each 2 ms.
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(boosts[1], events, "the honest one was denied some: {:?}", vehicle.counts());
    assert!(boosts[0] < events, "{boosts:?} of {events}");
    // The threads beyond the limit stay unchanged.
    assert!(
        sleepers
            .iter()
            .skip(vlane_sched::discover::MAX_THREADS)
            .all(|sleeper| sleeper.class() == Class::Other)
    );
}

/// The CPU time of each thread is read a hundred times a second, whether it has events or not.
#[test]
fn accounting_time_is_charged_to_machine() {
    let dir = tempfile::tempdir().unwrap();
    if let Err(error) = realtime::check() {
        return skip(error);
    }
    let settings = Settings::new(Params::sound(Policy::AlwaysBoost), Goal::default());
    let period = settings.params.period_ns;
    let mut vehicle = vehicle_with(settings, dir.path());
    let sleepers: Vec<Sleeper> = std::iter::repeat_with(Sleeper::new).take(20).collect();
    let tids: Vec<u32> = sleepers.iter().map(|sleeper| sleeper.tid).collect();
    vehicle.add(&vcpu(&tids), Claim::of(1)).unwrap();
    let begin = monotonic_ns();
    for round in 0..=10 {
        vehicle.tick(begin + round * period).unwrap();
    }
    // Each of them takes a system call, and none of those as little as 50 ns.
    let least = 10 * tids.len() as u64 * 50;
    assert!(vehicle.counts().handled_ns > least, "{:?}", vehicle.counts());
    assert_eq!(
        vehicle.budgets().len(),
        1,
        "so little is not worth a line: {:?}",
        vehicle.budgets()
    );
}

/// The back end's threads, for the vehicle.
fn back_end(tids: &[u32]) -> VcpuThreads {
    VcpuThreads { name: "back end".into(), ..vcpu(tids) }
}

#[test]
fn storage_thread_is_real_time_until_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut vehicle) = vehicle(dir.path()) else { return };
    let (one, two, of_guest) = (Sleeper::new(), Sleeper::new(), Sleeper::new());
    let niced = Sleeper::new();
    sys::set(niced.tid, &Attr { nice: 3, ..sys::get(niced.tid).unwrap() }).unwrap();
    vehicle.add(&vcpu(&[of_guest.tid]), Claim::of(1)).unwrap();
    let classes = || [&one, &two, &of_guest].map(Sleeper::class);
    let (ordinary, raised) = (Class::Other, Class::RoundRobin);
    // A vCPU's thread keeps its role.
    vehicle.storage(&back_end(&[one.tid, two.tid, of_guest.tid, niced.tid]), 1).unwrap();
    assert_eq!((classes(), niced.class()), ([raised, raised, ordinary], ordinary));
    assert_eq!(sys::get(niced.tid).unwrap().nice, 3);
    vehicle.storage(&back_end(&[two.tid]), 1).unwrap();
    assert_eq!(classes(), [ordinary, raised, ordinary]);
    vehicle.storage(&back_end(&[]), 1).unwrap();
    assert_eq!(classes(), [ordinary; 3]);
    // Also at the scheduler's end.
    vehicle.storage(&back_end(&[one.tid]), 1).unwrap();
    assert_eq!(classes(), [raised, ordinary, ordinary]);
    drop(vehicle);
    assert_eq!(classes(), [ordinary; 3]);
}

/// A vehicle's counter of this name.
fn counter(vehicle: &RealTime, name: &str) -> u64 {
    let found = vehicle.counters().into_iter().find(|counter| counter.name == name);
    found.map(|counter| counter.value).unwrap()
}

/// Its last use is not known, so it pays for all of the time since it was last charged.
#[test]
fn ended_storage_thread_pays_for_all_time() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut vehicle) = vehicle(dir.path()) else { return };
    let (ends, stays) = (Sleeper::new(), Sleeper::new());
    vehicle.storage(&back_end(&[ends.tid, stays.tid]), 1).unwrap();
    let (began, passed) = (monotonic_ns(), 5_000_000_000);
    vehicle.tick(began).unwrap();
    drop(ends);
    vehicle.tick(began + passed).unwrap();
    let paid = counter(&vehicle, "storage_ns");
    assert!((passed..2 * passed).contains(&paid), "{paid} ns: the sleeper pays next to nothing");
    // It pays once.
    vehicle.tick(began + 3 * passed).unwrap();
    assert!(counter(&vehicle, "storage_ns") < 2 * passed);
}

/// The guard restores all threads of a scheduler that stands still, and counts that.
#[test]
fn restored_storage_thread_is_raised_again() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut vehicle) = vehicle(dir.path()) else { return };
    let lane = Sleeper::new();
    vehicle.storage(&back_end(&[lane.tid]), 1).unwrap();
    let began = monotonic_ns();
    vehicle.tick(began).unwrap();
    let ordinary = Attr { class: Class::Other, priority: 0, ..sys::get(lane.tid).unwrap() };
    sys::set(lane.tid, &ordinary).unwrap();
    vehicle.tick(began + 1_000_000_000).unwrap();
    assert_eq!(lane.class(), Class::Other, "only the guard is followed");
    let list = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let list = std::fs::File::options().write(true).open(list).unwrap();
    list.write_all_at(&1_u64.to_le_bytes(), 8).unwrap();
    vehicle.tick(began + 2_000_000_000).unwrap();
    assert_eq!(lane.class(), Class::RoundRobin);
}

/// It is ordinary while its machine's budget is used up, and not for longer.
#[test]
fn computing_storage_thread_keeps_within_budget() {
    let dir = tempfile::tempdir().unwrap();
    if let Err(error) = realtime::check() {
        return skip(error);
    }
    // Of any number of CPUs, less than one thread can use.
    let cpus = std::thread::available_parallelism().unwrap().get();
    let mut settings = Settings::new(Params::sound(Policy::AlwaysBoost), Goal::default());
    settings.rt_percent = u8::try_from(50 / cpus).unwrap().max(1);
    let mut vehicle = vehicle_with(settings, dir.path());
    // The spinner would come before this thread, the daemon's part.
    Daemon::raise().unwrap();
    let spinner = Sleeper::doing(std::hint::spin_loop);
    vehicle.storage(&back_end(&[spinner.tid]), 1).unwrap();
    let (begin, mut changes, mut last) = (Instant::now(), 0, Class::RoundRobin);
    while changes < 4 {
        vehicle.tick(monotonic_ns()).unwrap();
        let class = spinner.class();
        changes += u32::from(class != last);
        last = class;
        assert!(begin.elapsed() < PATIENCE, "{changes} changes of {class:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(counter(&vehicle, "storage_lowered") >= 2);
}
