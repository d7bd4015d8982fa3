//! Real guests on `vlane serve`, and a scheduler's end in this process: lanes tell of completions,
//! and the threads that wait for them are found.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{LIMIT, QemuBed, UmlBed, Volume, finished, one_at_a_time, stop};
use vlane_guest::Guest;
use vlane_sched::discover::{self, Machine};
use vlane_sched::link::{Link, Notice, Registered};
use vlane_sched::sys::Class;
use vlane_sched::{Classes, ErrorKind, Mark, now};

/// The scheduler's socket beside a volume, and the option that names it to `vlane serve`.
fn scheduler(volume: &Volume) -> (Link, String) {
    let path: PathBuf = volume.beside("sched.sock");
    (Link::bind(&path, 0o600).unwrap(), format!("--sched={}", path.display()))
}

fn joined(link: &mut Link) -> Registered {
    let limit = Instant::now() + LIMIT;
    while Instant::now() < limit {
        match link.poll().unwrap().into_iter().next() {
            Some(Notice::Joined(registered)) => return registered,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no session registered");
}

/// Marks per lane until the guest printed `key`: signals and answers, in turns.
fn told(link: &mut Link, guest: &mut Guest, key: &str) -> BTreeMap<u16, (u64, u64)> {
    let mut lanes: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
    let mut last: BTreeMap<u16, u64> = BTreeMap::new();
    let mut collect = |link: &mut Link| {
        assert!(link.poll().unwrap().is_empty());
        for (_, lane, mark) in link.collect(now()) {
            let counts = lanes.entry(lane).or_default();
            let (at, count) = match mark {
                Mark::Event { at, count } => (at, count),
                Mark::Served { at, count, .. } => {
                    counts.1 += 1;
                    (at, count)
                }
            };
            counts.0 += u64::from(count);
            let before = last.insert(lane, at).unwrap_or(0);
            assert!(at >= before, "lane {lane}: {mark:?} after one at {before}");
        }
    };
    let limit = Instant::now() + LIMIT;
    while guest.wait_result(key, Duration::from_millis(2)).is_err() {
        assert!(Instant::now() < limit, "the guest did not report {key}");
        collect(link);
    }
    collect(link);
    lanes
}

/// Waits until something holds; `found` is shown if it never does.
fn until<T: std::fmt::Debug>(mut found: impl FnMut() -> T, holds: impl Fn(&T) -> bool) {
    let begin = Instant::now();
    loop {
        let now = found();
        if holds(&now) {
            return;
        }
        assert!(begin.elapsed() < LIMIT, "{now:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// CPU time of a thread, clock ticks; 0 of one that is gone.
fn ticks(tid: u32) -> u64 {
    // Not /proc/TID/stat: that is the whole process.
    let stat = std::fs::read_to_string(format!("/proc/{tid}/task/{tid}/stat"));
    let Ok(stat) = stat else { return 0 };
    let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[test]
fn qemu_lane_identifies_its_vcpu_thread() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(64 << 20);
    let (mut link, option) = scheduler(&volume);
    let backend = volume.serve(&["--queues=2", &option]);
    let mut machine = bed.machine(&volume.socket);
    machine.extra = vec!["-name".into(), "guest,debug-threads=on".into()];
    let script = r#"
echo "RESULT up=1"
for cpu in 0 1; do
    read -r go
    taskset -c $cpu dd if=/dev/vda of=/dev/null bs=4k count=300 iflag=direct 2>/dev/null
    echo "RESULT read$cpu=1"
    read -r go
    taskset -c $cpu sh -c 'while :; do :; done' &
    hog=$!
    read -r go
    kill $hog
done
"#;
    let mut guest = bed.start(machine, script, &["taskset"]);
    let registered = joined(&mut link);
    guest.wait_result("up", LIMIT).unwrap();
    let machine = Machine::find(registered.process).unwrap();
    assert_eq!(machine.vcpus().len(), 2);
    link.arm(registered.session, Classes::ALL);
    assert_eq!(link.collect(now()).count(), 0);
    for cpu in 0..2u16 {
        guest.send("go\n").unwrap();
        let lanes = told(&mut link, &mut guest, &format!("read{cpu}"));
        let (signals, answers) = lanes.get(&cpu).copied().unwrap_or_default();
        // Reads may be answered before the guest has gone to sleep, and then it is not signalled.
        // One look may see all answers, and tells of the last: on a busy machine there are few
        // looks.
        assert!(signals >= 100 && answers >= 1 && signals <= 320, "CPU {cpu}: {lanes:?}");
        let vcpu = registered.vcpus[usize::from(cpu)];
        assert_eq!(vcpu, u32::from(cpu));
        let used = |index| ticks(machine.vcpu(index).unwrap().tids[0]);
        let before = [used(0), used(1)];
        guest.send("go\n").unwrap();
        let (this, other) = (usize::from(cpu), usize::from(1 - cpu));
        let ran = || [used(0) - before[0], used(1) - before[1]];
        // On a busy machine the hog gets its CPU time later.
        until(|| (cpu, ran()), |(_, ran)| ran[this] > 150 && ran[this] > 2 * ran[other]);
        guest.send("go\n").unwrap();
    }
    finished(guest);
    // The back end hears of the guest's end a moment later.
    let mut notices = Vec::new();
    until(
        || {
            notices.extend(link.poll().unwrap());
            notices.len()
        },
        |count| *count > 0,
    );
    assert!(matches!(notices[..], [Notice::Left { .. }]), "{notices:?}");
    assert_eq!(Machine::find(registered.process).unwrap_err().kind(), ErrorKind::Gone);
    let mut machine = machine;
    assert_eq!(machine.refresh().unwrap_err().kind(), ErrorKind::Gone);
    stop(backend);
}

#[test]
fn unnamed_qemu_threads_are_found_by_qmp() {
    let _turn = one_at_a_time();
    let Some(bed) = QemuBed::find() else { return };
    let volume = Volume::new(64 << 20);
    let backend = volume.serve(&["--queues=2", "--sched=off"]);
    let qmp = volume.beside("qmp.sock");
    let mut machine = bed.machine(&volume.socket);
    machine.extra = vec!["-qmp".into(), format!("unix:{},server=on,wait=off", qmp.display())];
    let mut guest = bed.start(machine, "echo \"RESULT up=1\"; read -r go", &[]);
    guest.wait_result("up", LIMIT).unwrap();
    // The one that listens there.
    let stream = std::os::unix::net::UnixStream::connect(&qmp).unwrap();
    let pid = rustix::net::sockopt::socket_peercred(&stream).unwrap().pid.as_raw_nonzero().get();
    drop(stream);
    let pid = u32::try_from(pid).unwrap();
    match discover::vcpus_of(pid) {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains("debug-threads=on"), "{error}");
        }
        // Newer ones name their threads always.
        Ok(vcpus) => assert_eq!(vcpus.len(), 2),
    }
    let vcpus = discover::vcpus_by_qmp(pid, &qmp).unwrap();
    assert_eq!(vcpus.iter().map(|vcpu| vcpu.index).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(
        discover::vcpus_by_qmp(std::process::id(), &qmp).unwrap_err().kind(),
        ErrorKind::Protocol
    );
    guest.send("go\n").unwrap();
    finished(guest);
    stop(backend);
}

#[test]
fn uml_guest_is_one_vcpu_of_many_tasks() {
    let _turn = one_at_a_time();
    let Some(bed) = UmlBed::find() else { return };
    let volume = Volume::new(64 << 20);
    let (mut link, option) = scheduler(&volume);
    let backend = volume.serve(&["--queues=1", &option]);
    let script = r#"
echo "RESULT up=1"
read -r go
(while :; do :; done) &
hog=$!
sleep 1
echo "RESULT started=1"
dd if=/dev/vda of=/dev/null bs=4k count=300 iflag=direct 2>/dev/null
echo "RESULT read=1"
read -r go
kill $hog
sleep 1
echo "RESULT killed=1"
read -r go
"#;
    let mut guest = bed.start(&volume.socket, script, &[]);
    let registered = joined(&mut link);
    guest.wait_result("up", LIMIT).unwrap();
    let mut machine = Machine::find(registered.process).unwrap();
    let [vcpu] = machine.vcpus() else { panic!("{machine:?}") };
    assert_eq!((vcpu.index, vcpu.tids[0]), (0, registered.process.pid));
    let before = vcpu.tids.clone();
    link.arm(registered.session, Classes::ALL);
    assert_eq!(link.collect(now()).count(), 0);
    guest.send("go\n").unwrap();
    guest.wait_result("started", LIMIT).unwrap();
    assert!(machine.refresh().unwrap());
    let with_hog = machine.vcpus()[0].tids.clone();
    let new: Vec<_> = with_hog.iter().filter(|tid| !before.contains(tid)).copied().collect();
    let lanes = told(&mut link, &mut guest, "read");
    let (signals, answers) = lanes[&0];
    assert!(signals >= 100 && answers >= 1 && signals <= 320, "{lanes:?}");
    // The hog is one of the new tasks: nearly all of the machine's CPU time is its.
    until(|| new.iter().map(|tid| ticks(*tid)).max(), |most| *most > Some(50));
    guest.send("go\n").unwrap();
    guest.wait_result("killed", LIMIT).unwrap();
    // On a busy machine the hog may get its signal later.
    let mut left = || {
        machine.refresh().unwrap();
        machine.vcpus()[0].tids.clone()
    };
    until(&mut left, |left| left.len() < with_hog.len());
    assert_eq!(left()[0], registered.process.pid);
    guest.send("go\n").unwrap();
    finished(guest);
    assert_eq!(machine.refresh().unwrap_err().kind(), ErrorKind::Gone);
    stop(backend);
}

/// The scheduling classes of a back end's lane threads.
fn lane_classes(backend: u32) -> Vec<Class> {
    let tasks = std::fs::read_dir(format!("/proc/{backend}/task")).unwrap();
    let tids = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let name = |tid: &str| std::fs::read_to_string(format!("/proc/{backend}/task/{tid}/comm"));
    tids.filter(|tid| name(tid).is_ok_and(|name| name.starts_with("lane-")))
        .map(|tid| vlane_sched::sys::get(tid.parse().unwrap()).unwrap().class)
        .collect()
}

/// The complete setup of a user: the scheduler is a process of its own, and has no information
/// about the guest.
#[test]
fn served_guest_is_scheduled_and_restored() {
    let _turn = one_at_a_time();
    if let Err(error) = vlane_sched::realtime::check() {
        return vlane_testing::skip(error);
    }
    let Some(bed) = UmlBed::find() else { return };
    let volume = Volume::new(64 << 20);
    let listen = volume.beside("sched.sock");
    let words =
        ["sched", "run", "--json", "-", "--vehicle", "realtime", "--policy", "always-boost"];
    let mut words: Vec<PathBuf> = words.iter().map(PathBuf::from).collect();
    for (option, file) in
        [("--listen", "sched.sock"), ("--socket", "state.sock"), ("--state-dir", "run")]
    {
        words.extend([option.into(), volume.beside(file)]);
    }
    let spec = vlane_guest::Spec::new(common::vlane(), words);
    let scheduler =
        vlane_guest::Backend::start_within(LIMIT, &spec, &listen, vlane_guest::Ready::Socket, None)
            .unwrap_or_else(|e| panic!("{e}"));
    let backend = volume.serve(&["--queues=1", &format!("--sched={}", listen.display())]);
    // It computes and reads at a time: its reads' completions find it running or waiting, and
    // sometimes asleep.
    let script = r#"
(while :; do :; done) &
hog=$!
sleep 1
dd if=/dev/vda of=/dev/null bs=4k count=500 iflag=direct 2>/dev/null
echo "RESULT read=1"
read -r go
kill $hog
"#;
    let mut guest = bed.start(&volume.socket, script, &[]);
    guest.wait_result("read", LIMIT).unwrap();
    let pid = guest.id();
    let tids = discover::vcpus_of(pid).unwrap().remove(0).tids;
    // Its lane carries the completions.
    until(|| lane_classes(backend.id()), |classes| classes[..] == [Class::RoundRobin]);
    let stopped = scheduler.stop(common::STOP).unwrap();
    assert!(stopped.status.success(), "{}", stopped.log);
    assert_eq!(lane_classes(backend.id()), [Class::Other]);
    for tid in tids {
        // A task of the guest's that has ended meanwhile is scheduled no more.
        let is = match vlane_sched::sys::get(tid) {
            Err(error) if tid != pid && error.raw_os_error() == Some(libc::ESRCH) => continue,
            is => is.unwrap(),
        };
        assert_eq!((is.class, is.nice), (Class::Other, 0), "thread {tid}: {}", stopped.log);
    }
    let state = stopped
        .log
        .lines()
        .rfind(|line| line.starts_with('{'))
        .unwrap_or_else(|| panic!("{}", stopped.log));
    let state: vlane_sched::live::state::DaemonState = serde_json::from_str(state).unwrap();
    let vcpu = state
        .vcpus
        .iter()
        .find(|vcpu| vcpu.pid == pid)
        .unwrap_or_else(|| panic!("{}", stopped.log));
    assert!(vcpu.tids.len() >= 2, "{vcpu:?}");
    assert!(vcpu.events >= 20 && vcpu.responses >= 20, "{vcpu:?}");
    assert!(vcpu.boosts + vcpu.wake_boosts > 0, "{vcpu:?}");
    // The guest continues without it.
    guest.send("go\n").unwrap();
    finished(guest);
    stop(backend);
}
