//! Storage that hangs, a frozen file system here, hangs neither the control socket nor the end: it is told, counted and shown, and a stop
//! names what is left, removes its sockets and ends as soon as the kernel lets it.
//!
//! A file system that stays frozen would harm everybody on the machine: it is unfrozen when the test ends in whatever way, and by a process
//! of its own after a minute.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod served;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use served::{LIMIT, fails, vlane};
use tempfile::TempDir;
use vlane_driver::ring::{Kind, Request};
use vlane_driver::{Session, SessionOptions};
use vlane_testing::skip;

fn run(program: &str, words: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(words).output().map_err(|e| format!("{program}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => {
            Err(format!("{program} {}: {}", words.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
        }
    }
}

/// ext4 on a loop device, in a file on the disk; frozen if it is told to be, and never when it is dropped.
struct Ext4 {
    _backing: TempDir,
    device: String,
    dir: TempDir,
    watchdog: Option<Child>,
}

impl Ext4 {
    fn new() -> Result<Ext4, String> {
        let backing = TempDir::with_prefix_in("vlane-stalled-", env!("CARGO_TARGET_TMPDIR"))
            .map_err(|e| e.to_string())?;
        let image = backing.path().join("ext4");
        std::fs::File::create(&image).and_then(|file| file.set_len(64 << 20)).map_err(|e| e.to_string())?;
        let device = run("losetup", &["--find", "--show", image.to_str().unwrap()])?;
        let dir = TempDir::with_prefix("vlane-stalled-").unwrap();
        let made = Ext4 { _backing: backing, device, dir, watchdog: None };
        run("mkfs.ext4", &["-q", &made.device])?;
        run("mount", &[&made.device, made.at()])?;
        Ok(made)
    }

    fn at(&self) -> &str {
        self.dir.path().to_str().unwrap()
    }

    fn freeze(&mut self) -> Result<(), String> {
        // First who ends it. Its own process group: Ctrl-C of the tests is not for it.
        let script = "trap '' INT HUP; sleep 60; exec fsfreeze -u \"$0\"";
        let mut watchdog = Command::new("sh");
        watchdog
            .args(["-c", script, self.at()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        std::os::unix::process::CommandExt::process_group(&mut watchdog, 0);
        self.watchdog = Some(watchdog.spawn().map_err(|e| e.to_string())?);
        run("fsfreeze", &["-f", self.at()]).map(drop)
    }

    fn unfreeze(&mut self) {
        let Some(mut watchdog) = self.watchdog.take() else { return };
        let _ = run("fsfreeze", &["-u", self.at()]);
        // Its `sleep` as well.
        let group = rustix::process::Pid::from_child(&watchdog);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = watchdog.wait();
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        self.unfreeze();
        let begin = Instant::now();
        // What was killed lets go of its files a moment later.
        while run("umount", &[self.at()]).is_err() && begin.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = run("losetup", &["--detach", &self.device]);
    }
}

/// A process that is ended and waited for, after what it needs to end.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

fn volume(control: &Path) -> serde_json::Value {
    let mut stream = UnixStream::connect(control).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.write_all(b"GET /v1/volume HTTP/1.0\r\nHost: x\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn until(what: &str, log: &Path, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < LIMIT, "never: {what}\n{}", std::fs::read_to_string(log).unwrap());
        std::thread::sleep(Duration::from_millis(50));
    }
}

const MIB: u64 = 1 << 20;
const STOP: &str = "2s";

fn hangs(mut ext4: Ext4, cache: &str) {
    let place = TempDir::with_prefix("vlane-stalled-").unwrap();
    let at = |name: &str| -> PathBuf { place.path().join(name) };
    let image = ext4.dir.path().join("disk.raw");
    std::fs::write(&image, vec![7; usize::try_from(8 * MIB).unwrap()]).unwrap();
    run("sync", &["-f", image.to_str().unwrap()]).unwrap();
    let (socket, control, log) = (at("disk.sock"), at("disk.ctl"), at("log"));
    let serve = |socket: &Path| {
        let mut command = Command::new(vlane());
        command
            .arg("serve")
            .arg(&image)
            .arg("--socket")
            .arg(socket)
            .args(["--cache", cache, "--queues", "2"]);
        command
    };
    let child = serve(&socket)
        .arg("--control")
        .arg(&control)
        .args(["--stop-timeout", STOP])
        .stdout(Stdio::null())
        .stderr(std::fs::File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut serving = Serving(child);
    until("listens", &log, || socket.exists() && control.exists());
    let options = SessionOptions { queues: 2, depth: 8, ..SessionOptions::default() };
    let mut session = Session::connect(&socket, &options).unwrap();
    let (mut queues, _waker) = session.start().unwrap();
    let mut submit = |queue: usize, kind, sector| {
        let request = Request { kind, sector, len: 4096, ioprio: 0 };
        queues[queue].blk.submit(0, request).unwrap();
        queues[queue].blk.publish();
        queues[queue].kick().unwrap();
    };
    let told = |what: &str| {
        std::fs::read_to_string(&log).unwrap().lines().filter(|line| line.contains(what)).count()
    };

    ext4.freeze().unwrap();
    submit(1, Kind::Write, 4096);
    until("the stall is shown", &log, || volume(&control)["stalls"] == 1);
    let shown = volume(&control);
    let stalled = &shown["stalled"][0];
    assert_eq!(
        (&stalled["queue"], &stalled["kind"], &stalled["sector"]),
        (&1.into(), &"write".into(), &4096.into())
    );
    assert!(stalled["age_ms"].as_u64().unwrap() >= 5000, "{shown}");
    assert_eq!(told("the storage does not answer: queue 1: write at sector 4096"), 1);

    // Neither the other signal nor another front end is in the way of the end.
    let pid = rustix::process::Pid::from_child(&serving.0);
    let waiting = UnixStream::connect(&socket).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(volume(&control)["stalls"], 1);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    until("the sockets are gone", &log, || !socket.exists() && !control.exists());
    until("what is left is said", &log, || told("ends now") == 1);
    assert_eq!(told("1 requests are unanswered after 2s"), 1, "{}", std::fs::read_to_string(&log).unwrap());
    assert_eq!(told("unanswered: queue 1: write at sector 4096"), 1);
    assert_eq!(told("the storage does not answer"), 1, "told once");
    // However long the kernel keeps the process, and its descriptors with it.
    waiting.set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!((&waiting).read(&mut [0]).unwrap(), 0, "the one who waits sees a hang-up");
    // As long as the kernel keeps a thread of it, the image is locked.
    if serving.0.try_wait().unwrap().is_none() {
        let other = at("other.sock");
        fails(&mut serve(&other), &["locked"]);
    }
    ext4.unfreeze();
    until("the process has ended", &log, || serving.0.try_wait().unwrap().is_some());
    assert_eq!(serving.0.try_wait().unwrap().and_then(|status| status.code()), Some(1));
    drop((session, serving));
}

#[test]
fn direct_io_that_hangs_hangs_nothing_else() {
    match Ext4::new() {
        Ok(ext4) => hangs(ext4, "none"),
        Err(why) => skip(why),
    }
}

#[test]
fn a_lane_that_hangs_in_the_page_cache_hangs_nothing_else() {
    match Ext4::new() {
        Ok(ext4) => hangs(ext4, "writeback"),
        Err(why) => skip(why),
    }
}

/// An upgrade would have to wait for the storage: it is given up, and when the storage answers again, so does the server. Then it can be done.
fn is_not_upgraded(mut ext4: Ext4, cache: &str) {
    let place = TempDir::with_prefix("vlane-stalled-").unwrap();
    let at = |name: &str| -> PathBuf { place.path().join(name) };
    let image = ext4.dir.path().join("disk.raw");
    std::fs::write(&image, vec![7; usize::try_from(8 * MIB).unwrap()]).unwrap();
    run("sync", &["-f", image.to_str().unwrap()]).unwrap();
    let (socket, log) = (at("disk.sock"), at("log"));
    let mut command = Command::new(vlane());
    command.arg("serve").arg(&image).arg("--socket").arg(&socket).args(["--cache", cache, "--queues", "2"]);
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
    let mut serving = Serving(command.spawn().unwrap());
    until("listens", &log, || socket.exists());
    let pid = rustix::process::Pid::from_child(&serving.0);
    let options = SessionOptions { queues: 2, depth: 8, ..SessionOptions::default() };
    let mut session = Session::connect(&socket, &options).unwrap();
    let (mut queues, _waker) = session.start().unwrap();
    let submit = |queue: &mut vlane_driver::GuestQueue, slot, kind| {
        queue.blk.submit(slot, Request { kind, sector: 4096, len: 4096, ioprio: 0 }).unwrap();
        queue.blk.publish();
        queue.kick().unwrap();
    };
    let answered = |queue: &mut vlane_driver::GuestQueue, wanted: usize| {
        let mut done = Vec::new();
        until("it is answered", &log, || {
            queue.blk.reap(&mut done).unwrap();
            done.len() >= wanted
        });
        assert!(done.len() == wanted && done.iter().all(|one| one.status == 0), "{done:?}");
    };
    let told = |what: &str| std::fs::read_to_string(&log).unwrap().matches(what).count();
    // What the page cache has is read whatever the device does.
    submit(&mut queues[0], 0, Kind::Read);
    answered(&mut queues[0], 1);

    ext4.freeze().unwrap();
    submit(&mut queues[1], 0, Kind::Write);
    std::thread::sleep(Duration::from_millis(200));
    for time in 1..=2 {
        rustix::process::kill_process(pid, rustix::process::Signal::USR2).unwrap();
        until("it is given up", &log, || told("the storage does not answer requests of 1 queues") == time);
        // The other queue goes on.
        submit(&mut queues[0], 0, Kind::Read);
        answered(&mut queues[0], 1);
    }
    submit(&mut queues[1], 1, Kind::Read);
    ext4.unfreeze();
    answered(&mut queues[1], 2);
    rustix::process::kill_process(pid, rustix::process::Signal::USR2).unwrap();
    until("it is upgraded", &log, || told("upgraded in place") == 1);
    for queue in &mut queues {
        submit(queue, 0, Kind::Write);
        answered(queue, 1);
    }
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    until("the process has ended", &log, || serving.0.try_wait().unwrap().is_some());
    assert_eq!(serving.0.try_wait().unwrap().and_then(|status| status.code()), Some(0));
    drop((session, serving));
}

#[test]
fn direct_io_that_hangs_keeps_the_program_and_goes_on() {
    match Ext4::new() {
        Ok(ext4) => is_not_upgraded(ext4, "none"),
        Err(why) => skip(why),
    }
}

#[test]
fn a_lane_that_hangs_in_the_page_cache_keeps_the_program_and_goes_on() {
    match Ext4::new() {
        Ok(ext4) => is_not_upgraded(ext4, "writeback"),
        Err(why) => skip(why),
    }
}
