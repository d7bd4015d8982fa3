//! `vlane serve` is replaced by another program while it serves (SIGUSR2). The front end sees a
//! moment's wait, or no change at all when the upgrade cannot be done.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests may")]

mod served;

use std::io::Read;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use served::{LIMIT, Place, fails, going_on, stop};
use vlane_driver::ring::{Request, RequestKind};
use vlane_driver::{
    Arrivals, Limit, Mix, Pattern, Progress, Rate, SessionOptions, VerifyState, Want, Workload,
    run, verify_check, verify_load,
};
use vlane_guest::Backend;
use vlane_testing::{descriptors, inherited};

const MIB: u64 = 1 << 20;
const UPGRADED: &str = "upgraded in place";
const REFUSED: &str = "not upgraded";

fn signal(server: &Backend, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(server.id()).unwrap()).unwrap(), signal).unwrap();
}

fn told(server: &Backend, what: &str) -> usize {
    server.log().lines().filter(|line| line.contains(what)).count()
}

fn until(server: &Backend, what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LIMIT, "never: {what}\n{}", server.log());
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// True for a refusal for which a slow machine is enough: the storage, the new program or the
/// thread that serves took too long.
fn is_late(line: &str) -> bool {
    line.contains(REFUSED)
        && (line.contains("does not answer") || line.contains("is not over after"))
}

/// Refusals for other reasons.
fn refused(server: &Backend) -> usize {
    server.log().lines().filter(|line| line.contains(REFUSED) && !is_late(line)).count()
}

/// Asks for one thing, and waits until the log tells of it once more than before. Asks again where
/// a slow machine was the obstacle.
fn ask(server: &Backend, what: &str) {
    let late = || server.log().lines().filter(|line| is_late(line) && !line.contains(what)).count();
    let (before, mut known) = (told(server, what), late());
    signal(server, Signal::USR2);
    until(server, what, || {
        let now = late();
        if now > known {
            known = now;
            signal(server, Signal::USR2);
        }
        told(server, what) > before
    });
}

/// Milliseconds that requests waited, of each upgrade.
fn pauses(server: &Backend) -> Vec<f64> {
    let log = server.log();
    let waited = |line: &str| line.split("waited ").nth(1)?.split(' ').next()?.parse().ok();
    log.lines().filter(|line| line.contains(UPGRADED)).filter_map(waited).collect()
}

/// Runs `load` while the server is upgraded `times` times in sequence; a flag ends `load` when this
/// is over.
fn during<T>(server: &Backend, times: usize, load: impl FnOnce(&AtomicBool) -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The load ends in every case.
            let _ends = Ends(&over);
            for _ in 0..times {
                std::thread::sleep(Duration::from_millis(150));
                ask(server, UPGRADED);
            }
            std::thread::sleep(Duration::from_millis(100));
        });
        load(&over)
    })
}

struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A slow disk ends few requests during the upgrades: the load continues until it is `enough`.
fn until_over(over: &AtomicBool, done: u64, enough: u64) -> ControlFlow<()> {
    if over.load(Ordering::SeqCst) && done >= enough {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

fn request(queue: &mut vlane_driver::GuestQueue, kind: RequestKind, sector: u64) {
    queue.blk.submit(0, Request { kind, sector, len: 4096, ioprio: 0 }).unwrap();
    if queue.blk.publish() {
        queue.kick().unwrap();
    }
    let (begin, mut done) = (Instant::now(), Vec::new());
    while done.is_empty() {
        assert!(begin.elapsed() < LIMIT);
        queue.blk.reap(&mut done).unwrap();
        std::thread::yield_now();
    }
    assert_eq!(done[0].status, 0, "{kind:?}");
}

/// Everything that is read is what was written last, no request fails, and none is answered twice
/// (the driver breaks off then).
fn survives(place: &Place, serve: &[&str], session: &SessionOptions) {
    stop(survives_at(place, 0, serve, session));
}

/// The same, with the load from a byte of the volume on. Returns the server, which keeps serving.
fn survives_at(place: &Place, offset: u64, serve: &[&str], session: &SessionOptions) -> Backend {
    let server = place.serve(serve);
    let load = Workload {
        offset,
        size: Some(8 * MIB),
        limit: Limit::Time(Duration::from_secs(120)),
        flush_every: Some(32),
        ..Workload::verified()
    };
    let front_end = place.connect(session);
    let mut state = VerifyState::new(&front_end, &load).unwrap();
    let report = during(&server, 10, |over| {
        let mut go_on = |now: Progress| until_over(over, now.done, 1000);
        verify_load(front_end, &mut state, &load, &mut go_on).unwrap()
    });
    assert!(report.is_clean() && !report.backend_gone, "{report:?}\n{}", server.log());
    assert!(report.writes > 100 && report.flushes > 0, "hardly any load: {report:?}");
    let report = verify_check(place.connect(session), &mut state, going_on()).unwrap();
    assert!(report.is_clean() && report.unflushed_lost == 0, "{report:?}");
    let pauses = pauses(&server);
    println!("{serve:?}, {} queues: paused for {pauses:?} ms", session.queues);
    assert_eq!(pauses.len(), 10, "{}", server.log());
    until(&server, "the one that checks", || told(&server, " connected") >= 2);
    assert_eq!(
        told(&server, " connected"),
        2,
        "one session, and the one that checks: {}",
        server.log()
    );
    server
}

#[test]
fn direct_split_rings_survive_ten_upgrades() {
    let session = SessionOptions { queues: 2, depth: 16, ..SessionOptions::default() };
    survives(&Place::new(16 * MIB), &["--queues", "2", "--cache", "none"], &session);
}

#[test]
fn direct_packed_ring_survives_ten_upgrades() {
    let session = SessionOptions { depth: 32, packed: Want::Must, ..SessionOptions::default() };
    survives(&Place::new(16 * MIB), &["--queues", "1", "--cache", "none"], &session);
}

#[test]
fn buffered_packed_rings_survive_ten_upgrades() {
    let session =
        SessionOptions { queues: 2, depth: 16, packed: Want::Must, ..SessionOptions::default() };
    survives(&Place::new(16 * MIB), &["--queues", "2", "--cache", "writeback"], &session);
}

#[test]
fn buffered_split_ring_survives_ten_upgrades() {
    let session = SessionOptions { depth: 32, ..SessionOptions::default() };
    survives(
        &Place::new(16 * MIB),
        &["--queues", "auto", "--cache", "writeback", "--threads", "auto"],
        &session,
    );
}

/// A journal's own device. Each program in turn finds the journal and takes it out of the page
/// cache under load. All of the load but its first MiB is direct, or about to become so.
#[test]
fn direct_regions_survive_ten_upgrades() {
    let place = Place::new(16 * MIB);
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-b", "4096", "-O", "journal_dev"])
        .arg(&place.image)
        .output();
    assert!(made.as_ref().is_ok_and(|made| made.status.success()), "{made:?}");
    let control = place.path("disk.ctl");
    let serve = [
        "--queues",
        "2",
        "--cache",
        "pdc",
        "--journal",
        "direct",
        "--control",
        control.to_str().unwrap(),
    ];
    let session = SessionOptions { queues: 2, depth: 16, ..SessionOptions::default() };
    let server = survives_at(&place, MIB, &serve, &session);
    let journal = || get(&control, "journal");
    if let Some(why) = journal()["direct"]["refusal"].as_str() {
        vlane_testing::skip(format!("no direct regions: {why}"));
        stop(server);
        return;
    }
    // The last program of them does it, too.
    let ready = |direct: &serde_json::Value| {
        direct["ranges"] == serde_json::json!([[2 * MIB, 14 * MIB]])
            && direct["is_changing"] == false
    };
    until(&server, "the journal is direct", || ready(&journal()["direct"]));
    let before = journal()["direct"]["written_bytes"].as_u64();
    let mut front_end = place.connect(&session);
    let (mut queues, _waker) = front_end.start().unwrap();
    for block in 0..8 {
        queues
            .iter_mut()
            .for_each(|queue| request(queue, RequestKind::Write, 3 * MIB / 512 + 8 * block));
    }
    let info = journal();
    let written = info["direct"]["written_bytes"].as_u64();
    assert_eq!(written, before.map(|before| before + 16 * 4096), "{info}");
    assert_eq!(info["direct"]["given_up"], serde_json::json!([]), "{info}");
    let image = std::fs::File::open(&place.image).unwrap();
    // Pages that the system itself had read ahead, across the border, go some time after flushes
    // that have data to write.
    until(&server, "nothing of the journal is in the page cache", || {
        (0..64).for_each(|block| {
            request(&mut queues[0], RequestKind::Write, 3 * MIB / 512 + 8 * block)
        });
        request(&mut queues[0], RequestKind::Flush, 0);
        vlane_engine::pages::cached(&image, &(2 * MIB..16 * MIB)) == Some(0)
    });
    drop((queues, front_end));
    stop(server);
}

/// Reports the waits of a load that does not wait for answers before it sends more. The goal is a
/// 99th percentile below 50 ms. It is not demanded, as a busy machine alone can exceed that.
#[test]
fn steady_requests_survive_ten_upgrades() {
    let place = Place::new(64 * MIB);
    let server = place.serve(&["--queues", "2", "--cache", "none"]);
    let session = SessionOptions { queues: 2, depth: 128, ..SessionOptions::default() };
    let workload = Workload {
        pattern: Pattern { mix: Mix::ReadPercent(70), random: true },
        limit: Limit::Time(Duration::from_secs(60)),
        ramp: Duration::ZERO,
        rate: Some(Rate { per_second: 2000.0, arrivals: Arrivals::Poisson }),
        ..Workload::default()
    };
    let front_end = place.connect(&session);
    let report = during(&server, 10, |over| {
        run(front_end, &workload, &mut |now| until_over(over, now.done, 2000)).unwrap()
    });
    let (latency, pauses) = (&report.latency, pauses(&server));
    println!(
        "{} requests in {:.1} s: p50 {:.0} us, p99 {:.0} us, p99.9 {:.0} us, max {:.0} us; paused \
         for {pauses:?} ms",
        report.ios, report.seconds, latency.p50, latency.p99, latency.p99_9, latency.max
    );
    assert_eq!(report.errors.total(), 0);
    assert_eq!(pauses.len(), 10, "{}", server.log());
    assert!(report.ios > 1000, "hardly any load: {report:?}");
    stop(server);
}

/// A server whose program can be replaced: a file of its own.
struct Replaceable {
    place: Place,
    program: PathBuf,
}

impl Replaceable {
    fn new() -> Replaceable {
        let place = Place::new(16 * MIB);
        let program = place.path("vlane");
        vlane_testing::copy_program(served::vlane().as_ref(), &program);
        Replaceable { place, program }
    }

    fn serve(&self, options: &[&str]) -> Backend {
        let mut command = Command::new(&self.program);
        command
            .arg("serve")
            .arg(&self.place.image)
            .arg("--socket")
            .arg(&self.place.socket)
            .args(options);
        served::start(&command, &self.place.socket).unwrap()
    }

    /// Puts another program in the place of this one, which runs on.
    fn replace(&self, script: &str) {
        let new = self.place.path("new");
        vlane_testing::write_program(&new, script);
        std::fs::rename(&new, &self.program).unwrap();
    }
}

#[test]
fn failed_takeover_leaves_old_server_serving() {
    let replaceable = Replaceable::new();
    let server = replaceable.serve(&["--queues", "1", "--cache", "none"]);
    let mut session = replaceable.place.connect(&SessionOptions::default());
    let (mut queues, _waker) = session.start().unwrap();
    let cases = [
        (
            "#!/bin/sh\necho '{\"format\":7,\"version\":\"9.9\"}'\n",
            "(version 9.9) takes over state of format 7",
        ),
        ("#!/bin/sh\nexec true\n", "install a vlane there that can"),
        ("#!/bin/sh\necho what is --takes-over >&2; exit 2\n", "what is --takes-over"),
        ("#!/nowhere/sh\n", "cannot be executed; put the new program there"),
    ];
    for (script, why) in cases {
        replaceable.replace(script);
        ask(&server, REFUSED);
        let log = server.log();
        let last = log.lines().rfind(|line| line.contains(REFUSED)).unwrap();
        assert!(last.contains(why) && last.contains("continues"), "{why}: {last}");
        request(&mut queues[0], RequestKind::Write, 8);
    }
    std::fs::remove_file(&replaceable.program).unwrap();
    ask(&server, "cannot be executed");
    request(&mut queues[0], RequestKind::Read, 8);
    // The program exists again, in another form.
    std::os::unix::fs::symlink(served::vlane(), &replaceable.program).unwrap();
    ask(&server, UPGRADED);
    request(&mut queues[0], RequestKind::Read, 8);
    drop((queues, session));
    stop(server);
}

/// The program claims support, and cannot be executed a moment later: service continues where it
/// was stopped.
#[test]
fn vanished_successor_leaves_old_server_serving() {
    let replaceable = Replaceable::new();
    let server = replaceable.serve(&["--queues", "2", "--cache", "none"]);
    let options = SessionOptions { queues: 2, packed: Want::Must, ..SessionOptions::default() };
    let mut session = replaceable.place.connect(&options);
    let (mut queues, _waker) = session.start().unwrap();
    let asked = Command::new(served::vlane())
        .args(["serve", "--takes-over", "1", "--null", "1M", "--socket", "x"])
        .output()
        .unwrap();
    let answer = String::from_utf8(asked.stdout).unwrap();
    for round in 1..=2 {
        replaceable.replace(&format!(
            "#!/bin/sh\necho '{}'\nrm {}\n",
            answer.trim(),
            replaceable.program.display()
        ));
        ask(&server, "cannot be executed");
        assert_eq!(refused(&server), round, "{}", server.log());
        queues.iter_mut().for_each(|queue| request(queue, RequestKind::Write, 8));
    }
    drop((queues, session));
    stop(server);
}

fn get(control: &Path, what: &str) -> serde_json::Value {
    vlane_testbed::control::Control::new(control)
        .get(&format!("/v1/{what}"))
        .unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn successor_serves_every_waiting_front_end() {
    let place = Place::new(16 * MIB);
    let control = place.path("disk.ctl");
    let server = place.serve(&[
        "--queues",
        "2",
        "--control",
        control.to_str().unwrap(),
        "--limit-iops",
        "5000",
    ]);
    let inode =
        |path: &Path| std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).unwrap());
    let before = (inode(&place.socket), inode(&control));
    let limited =
        Command::new(served::vlane()).arg("limit").arg(&control).args(["--iops", "7000"]).output();
    assert!(limited.unwrap().status.success());
    // No client is connected.
    ask(&server, UPGRADED);
    assert_eq!(get(&control, "volume")["session"], serde_json::Value::Null);
    let shown = Command::new(served::vlane()).arg("limit").arg(&control).output().unwrap();
    assert!(String::from_utf8_lossy(&shown.stdout).contains("7000"), "{shown:?}");
    // One client is connected and silent; another one waits.
    let silent = UnixStream::connect(&place.socket).unwrap();
    until(&server, "it is served", || told(&server, "session 1: front end") == 1);
    let waiting = UnixStream::connect(&place.socket).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    ask(&server, UPGRADED);
    assert_eq!(get(&control, "volume")["session"]["number"], 1);
    drop(silent);
    until(&server, "the one that waited is served", || told(&server, "session 2: front end") == 1);
    drop(waiting);
    // One has negotiated, and starts its rings afterwards; the session's first messages went to
    // another program.
    let mut session = place.connect(&SessionOptions { queues: 2, ..SessionOptions::default() });
    ask(&server, UPGRADED);
    let (mut queues, _waker) = session.start().unwrap();
    queues.iter_mut().for_each(|queue| request(queue, RequestKind::Write, 8));
    ask(&server, UPGRADED);
    assert_eq!(get(&control, "volume")["session"]["number"], 3);
    queues.iter_mut().for_each(|queue| request(queue, RequestKind::Read, 8));
    session.stop().unwrap();
    drop((queues, session));
    assert_eq!((inode(&place.socket), inode(&control)), before);
    assert_eq!(refused(&server), 0, "{}", server.log());
    stop(server);
    assert!(!control.exists());
}

#[test]
fn image_stays_locked_during_upgrade() {
    for options in [["--cache", "none"], ["--cache", "writeback"]] {
        let place = Place::new(16 * MIB);
        let server = place.serve(&options);
        let (over, tried) = (AtomicBool::new(false), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let other = place.path("other.sock");
                while !over.load(Ordering::SeqCst) {
                    let mut command = Command::new(served::vlane());
                    command.arg("serve").arg(&place.image).arg("--socket").arg(&other);
                    fails(&mut command, &["locked"]);
                    tried.fetch_add(1, Ordering::SeqCst);
                }
            });
            let _ends = Ends(&over);
            let begin = Instant::now();
            // Each of them tries for 100 ms: there are some upgrades in that time.
            while tried.load(Ordering::SeqCst) < 5 {
                assert!(begin.elapsed() < 3 * LIMIT);
                ask(&server, UPGRADED);
            }
        });
        assert_eq!(refused(&server), 0, "{}", server.log());
        stop(server);
    }
}

/// Parts of a guest's memory that a server holds, as descriptors or mappings.
fn held_memory(server: &Backend) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", server.id())).unwrap();
    let is_guest = |text: &str| text.contains("vlane-guest");
    descriptors(server.id()).iter().filter(|one| is_guest(&one.file)).count()
        + maps.lines().filter(|line| is_guest(line)).count()
}

/// Three front ends, one after the other, and an upgrade under each of them. The user passed one
/// descriptor on purpose.
#[test]
fn upgrades_drop_earlier_front_ends() {
    let place = Place::new(16 * MIB);
    let control = place.path("disk.ctl");
    let serve = ["--queues", "2", "--cache", "none", "--control", control.to_str().unwrap()];
    let mut command = Command::new("sh");
    command.args(["-c", "exec 7</etc/hostname; exec \"$@\"", "sh", served::vlane(), "serve"]);
    command.arg(&place.image).arg("--socket").arg(&place.socket).args(serve);
    let server = served::start(&command, &place.socket).unwrap();
    // With what the test itself was started with.
    let passed = inherited(server.id());
    assert!(passed.iter().any(|file| file == "/etc/hostname"), "{passed:?}");
    let mut first = None;
    for number in 1..=3 {
        let options =
            SessionOptions { queues: 2, inflight: Want::Must, ..SessionOptions::default() };
        let mut session = place.connect(&options);
        let (mut queues, _waker) = session.start().unwrap();
        queues.iter_mut().for_each(|queue| request(queue, RequestKind::Write, 8));
        assert_eq!(inherited(server.id()), passed, "session {number}, before");
        ask(&server, UPGRADED);
        queues.iter_mut().for_each(|queue| request(queue, RequestKind::Read, 8));
        assert_eq!(inherited(server.id()), passed, "session {number}, after");
        assert!(held_memory(&server) > 0, "it is looked for by another name");
        drop((queues, session));
        let ended = format!("session {number} ended");
        until(&server, &ended, || told(&server, &ended) == 1);
        until(&server, "the guest's memory is free", || held_memory(&server) == 0);
        let open = || descriptors(server.id());
        let watches = || open().iter().any(|one| one.file.contains("inotify"));
        // The upgraded program opens this one last.
        until(&server, "an inotify instance", watches);
        let most = *first.get_or_insert_with(|| open().len());
        until(&server, "no more descriptors than after session 1", || open().len() <= most);
    }
    stop(server);
}

/// The soft limit is the usual one and the hard one is no higher, or the hard one is raised to.
#[test]
fn many_queues_upgrade_within_descriptor_limit() {
    for limit in ["1024:1024", "256:4096"] {
        let place = Place::new(16 * MIB);
        let mut command = Command::new("prlimit");
        command
            .arg(format!("--nofile={limit}"))
            .arg(served::vlane())
            .arg("serve")
            .arg(&place.image);
        command.arg("--socket").arg(&place.socket).args(["--queues", "128", "--threads", "2"]);
        let server = served::start(&command, &place.socket).unwrap();
        let options =
            SessionOptions { queues: 128, inflight: Want::Must, ..SessionOptions::default() };
        let mut session = place.connect(&options);
        let (mut queues, _waker) = session.start().unwrap();
        for _ in 0..2 {
            ask(&server, UPGRADED);
            queues.iter_mut().for_each(|queue| request(queue, RequestKind::Read, 8));
        }
        drop((queues, session));
        stop(server);
    }
}

/// The limit is lowered while it serves. For each limit the upgrade succeeds or is refused, and the
/// queues are served.
#[test]
fn upgrade_without_descriptors_is_refused_early() {
    let place = Place::new(16 * MIB);
    let server = place.serve(&["--queues", "16", "--threads", "2"]);
    let options = SessionOptions { queues: 16, inflight: Want::Must, ..SessionOptions::default() };
    let mut session = place.connect(&options);
    let (mut queues, _waker) = session.start().unwrap();
    let own = descriptors(server.id()).into_iter().filter(|one| one.closes_on_exec);
    let highest = own.map(|one| one.number).max().unwrap();
    let (process, mut refused) = (server.id().to_string(), 0);
    for more in [200, 100, 80, 60, 40, 20, 0] {
        let limit = format!("--nofile={0}:{0}", highest + 1 + more);
        assert!(
            Command::new("prlimit").args(["--pid", &process, &limit]).status().unwrap().success()
        );
        let (before, upgraded) = (told(&server, REFUSED), told(&server, UPGRADED));
        signal(&server, Signal::USR2);
        until(&server, "an answer", || {
            told(&server, REFUSED) + told(&server, UPGRADED) > before + upgraded
        });
        refused += told(&server, REFUSED) - before;
        queues.iter_mut().for_each(|queue| request(queue, RequestKind::Read, 8));
    }
    assert!((1..7).contains(&refused), "{refused}: {}", server.log());
    drop((queues, session));
    stop(server);
}

/// The program that is asked whether it can take over is a child, and may be any program.
#[test]
fn inspected_program_inherits_no_guest() {
    let replaceable = Replaceable::new();
    let list = replaceable.place.path("list");
    let server = replaceable.serve(&["--queues", "2", "--cache", "none"]);
    let options = SessionOptions { queues: 2, inflight: Want::Must, ..SessionOptions::default() };
    let mut session = replaceable.place.connect(&options);
    let (mut queues, _waker) = session.start().unwrap();
    queues.iter_mut().for_each(|queue| request(queue, RequestKind::Write, 8));
    replaceable.replace(&format!("#!/bin/sh\nls -l /proc/$$/fd > {}\n", list.display()));
    ask(&server, REFUSED);
    let listed = std::fs::read_to_string(&list).unwrap();
    assert!(listed.contains(" -> "), "{listed}");
    for kind in ["vlane-guest", "inflight", "eventfd", "socket:", "disk.raw"] {
        assert!(!listed.contains(kind), "{kind}: {listed}");
    }
    drop((queues, session));
    stop(server);
}

/// The guest may have written what looks like another format since, and the size may be another
/// one.
#[test]
fn changed_image_contents_do_not_matter() {
    let place = Place::new(16 * MIB);
    let server = place.serve(&["--queues", "1"]);
    let mut session = place.connect(&SessionOptions::default());
    let (mut queues, _waker) = session.start().unwrap();
    request(&mut queues[0], RequestKind::Write, 8);
    let image = std::fs::OpenOptions::new().write(true).open(&place.image).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, b"QFI\xfb\0\0\0\x03", 0).unwrap();
    image.set_len(16 * MIB + 77).unwrap();
    ask(&server, UPGRADED);
    request(&mut queues[0], RequestKind::Read, 8);
    // Another file at its path is another matter.
    image.set_len(16 * MIB).unwrap();
    std::fs::rename(&place.image, place.path("moved")).unwrap();
    let refused = format!("continues: {}: the image was moved to", place.image.display());
    ask(&server, &refused);
    std::fs::write(&place.image, [0; 512]).unwrap();
    ask(&server, &refused);
    assert!(server.log().contains("and replaced by another file at its path"), "{}", server.log());
    std::fs::rename(place.path("moved"), &place.image).unwrap();
    ask(&server, UPGRADED);
    request(&mut queues[0], RequestKind::Read, 8);
    drop((queues, session));
    stop(server);
}

/// The end comes whenever it is asked for, and in order: exit code 0, and no socket is left.
#[test]
fn server_ends_at_any_moment_of_upgrade() {
    let place = Place::new(16 * MIB);
    let between =
        [None, Some(0), Some(1), Some(5), Some(10), Some(20), Some(40), Some(60), Some(90)];
    for pause in between {
        let server = place.serve(&["--queues", "1", "--cache", "writeback"]);
        let mut session = place.connect(&SessionOptions::default());
        let (mut queues, _waker) = session.start().unwrap();
        request(&mut queues[0], RequestKind::Write, 8);
        match pause {
            // `stop` says TERM first thing.
            Some(ms) => {
                signal(&server, Signal::USR2);
                std::thread::sleep(Duration::from_millis(ms));
            }
            None => {
                signal(&server, Signal::TERM);
                signal(&server, Signal::USR2);
            }
        }
        stop(server);
        assert!(session.wait_hangup(LIMIT));
    }
}

/// Its front end has begun a message and does not go on: the thread that serves cannot come to it.
#[test]
fn unfinished_message_postpones_upgrade() {
    use std::io::Write;
    let place = Place::new(16 * MIB);
    let server = place.serve(&["--queues", "1"]);
    let mut front_end = UnixStream::connect(&place.socket).unwrap();
    // SET_OWNER, and half of the next message.
    let message = [3u32, 1, 0].map(u32::to_le_bytes).concat();
    front_end.write_all(&message).unwrap();
    front_end.write_all(&message[..6]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let (refusal, mut upgrades) = ("last message is not over", 0);
    signal(&server, Signal::USR2);
    until(&server, refusal, || {
        // A server that has not read the message yet can be upgraded: it is asked again.
        let now = told(&server, UPGRADED);
        if now > upgrades {
            upgrades = now;
            signal(&server, Signal::USR2);
        }
        told(&server, refusal) > 0
    });
    // GET_FEATURES, really.
    front_end.write_all(&message[6..]).unwrap();
    ask(&server, UPGRADED);
    front_end.write_all(&[1u32, 1, 0].map(u32::to_le_bytes).concat()).unwrap();
    front_end.set_read_timeout(Some(LIMIT)).unwrap();
    front_end.read_exact(&mut [0; 20]).unwrap();
    drop(front_end);
    stop(server);
}

/// A service manager's restart is the second line of defence: the server is killed, started again,
/// and serves within a second.
#[test]
fn restarted_server_serves_within_a_second() {
    let place = Place::new(16 * MIB);
    let (mut shortest, limit) = (Duration::MAX, Duration::from_secs(1));
    let first = Instant::now();
    for round in 0.. {
        // A machine that others use, too, may take longer for several in sequence.
        if round >= 5 && (shortest < limit || first.elapsed() > LIMIT) {
            break;
        }
        let server = place.serve(&["--queues", "1", "--cache", "none"]);
        let mut session = place.connect(&SessionOptions::default());
        let (mut queues, _waker) = session.start().unwrap();
        request(&mut queues[0], RequestKind::Write, 8);
        let begin = Instant::now();
        server.kill();
        let server = place.serve(&["--queues", "1", "--cache", "none"]);
        drop((queues, session));
        let mut session = place.connect(&SessionOptions::default());
        let (mut queues, _waker) = session.start().unwrap();
        request(&mut queues[0], RequestKind::Read, 8);
        shortest = shortest.min(begin.elapsed());
        drop((queues, session));
        stop(server);
    }
    println!("killed, started again and served after {shortest:?} at best");
    assert!(shortest < limit, "{shortest:?}");
}
