//! Storage that hangs, a frozen file system here, hangs neither the control socket nor the end. The
//! fault is logged, counted and shown. A stop names the requests in flight, removes its sockets and
//! ends as soon as the kernel permits.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod frozen;
mod served;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use frozen::{Ext4, run, until};
use served::{LIMIT, vlane};
use tempfile::TempDir;
use vlane_driver::ring::{Request, RequestKind};
use vlane_driver::{Session, SessionOptions};
use vlane_testing::skip;

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
    until("listens", &log, || vlane_testing::listens(&socket) && vlane_testing::listens(&control));
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
    submit(1, RequestKind::Write, 4096);
    until("the stall is shown", &log, || volume(&control)["stalls"] == 1);
    let shown = volume(&control);
    let stalled = &shown["stalled"][0];
    assert_eq!(
        (&stalled["queue"], &stalled["kind"], &stalled["sector"]),
        (&1.into(), &"write".into(), &4096.into())
    );
    assert!(stalled["age_ms"].as_u64().unwrap() >= 5000, "{shown}");
    // It is counted a moment before.
    until("the stall is told", &log, || {
        told("the storage does not answer: queue 1: write at sector 4096") == 1
    });

    // Neither the other signal nor another front end is in the way of the end.
    let pid = rustix::process::Pid::from_child(&serving.0);
    let waiting = UnixStream::connect(&socket).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(volume(&control)["stalls"], 1);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    until("the sockets are gone", &log, || !socket.exists() && !control.exists());
    until("what is left is said", &log, || told("ends now") == 1);
    assert_eq!(
        told("1 request is unanswered after 2s"),
        1,
        "{}",
        std::fs::read_to_string(&log).unwrap()
    );
    assert_eq!(told("unanswered: queue 1: write at sector 4096"), 1);
    assert_eq!(told("the storage does not answer"), 1, "told once");
    // However long the kernel keeps the process, and its descriptors with it.
    waiting.set_read_timeout(Some(LIMIT)).unwrap();
    assert_eq!((&waiting).read(&mut [0]).unwrap(), 0, "the one who waits sees a hang-up");
    // The image is locked as long as the kernel keeps a thread of the server, and the next server
    // waits.
    let other = at("other.sock");
    let mut next = serving.0.try_wait().unwrap().is_none().then(|| {
        let log = std::fs::File::create(at("next.log")).unwrap();
        Serving(serve(&other).stdout(Stdio::null()).stderr(log).spawn().unwrap())
    });
    if next.is_some() {
        let waits = || {
            std::fs::read_to_string(at("next.log"))
                .unwrap()
                .contains("is locked, and no process that runs")
        };
        until("the next one says that it waits", &at("next.log"), waits);
        assert!(!other.exists());
    }
    ext4.unfreeze();
    if let Some(next) = &mut next {
        until("the next one serves", &at("next.log"), || vlane_testing::listens(&other));
        assert!(next.0.try_wait().unwrap().is_none());
    }
    until("the process has ended", &log, || serving.0.try_wait().unwrap().is_some());
    assert_eq!(serving.0.try_wait().unwrap().and_then(|status| status.code()), Some(1));
    drop((session, serving));
}

#[test]
fn hung_direct_io_delays_no_other() {
    match Ext4::new() {
        Ok(ext4) => hangs(ext4, "none"),
        Err(why) => skip(why),
    }
}

#[test]
fn hung_buffered_lane_delays_no_other() {
    match Ext4::new() {
        Ok(ext4) => hangs(ext4, "writeback"),
        Err(why) => skip(why),
    }
}

/// An upgrade would have to wait for the storage: it is given up, and when the storage answers
/// again, so does the server. Then it can be done.
fn is_not_upgraded(mut ext4: Ext4, cache: &str) {
    let place = TempDir::with_prefix("vlane-stalled-").unwrap();
    let at = |name: &str| -> PathBuf { place.path().join(name) };
    let image = ext4.dir.path().join("disk.raw");
    std::fs::write(&image, vec![7; usize::try_from(8 * MIB).unwrap()]).unwrap();
    run("sync", &["-f", image.to_str().unwrap()]).unwrap();
    let (socket, log) = (at("disk.sock"), at("log"));
    let mut command = Command::new(vlane());
    command
        .arg("serve")
        .arg(&image)
        .arg("--socket")
        .arg(&socket)
        .args(["--cache", cache, "--queues", "2"]);
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
    let mut serving = Serving(command.spawn().unwrap());
    until("listens", &log, || vlane_testing::listens(&socket));
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
    // Data in the page cache are read in any state of the device.
    submit(&mut queues[0], 0, RequestKind::Read);
    answered(&mut queues[0], 1);

    ext4.freeze().unwrap();
    submit(&mut queues[1], 0, RequestKind::Write);
    std::thread::sleep(Duration::from_millis(200));
    let upgrade = || rustix::process::kill_process(pid, rustix::process::Signal::USR2).unwrap();
    for _ in 0..2 {
        let refusal = "the storage does not answer requests of 1 queues";
        let both = || {
            let text = std::fs::read_to_string(&log).unwrap();
            let count = |what: &str| text.matches(what).count();
            (count(refusal), count("not upgraded") + count("upgraded in place"))
        };
        let (before, mut answers) = both();
        upgrade();
        until("it is given up", &log, || {
            let (refusals, now) = both();
            // A lane that was off the CPU has not taken the write yet, or does not stop in time
            // either: it is asked again.
            if refusals == before && now > answers {
                upgrade();
            }
            answers = now;
            refusals > before
        });
        // The other queue continues.
        submit(&mut queues[0], 0, RequestKind::Read);
        answered(&mut queues[0], 1);
    }
    submit(&mut queues[1], 1, RequestKind::Read);
    ext4.unfreeze();
    answered(&mut queues[1], 2);
    let upgrades = told("upgraded in place");
    upgrade();
    until("it is upgraded", &log, || told("upgraded in place") > upgrades);
    for queue in &mut queues {
        submit(queue, 0, RequestKind::Write);
        answered(queue, 1);
    }
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    until("the process has ended", &log, || serving.0.try_wait().unwrap().is_some());
    assert_eq!(serving.0.try_wait().unwrap().and_then(|status| status.code()), Some(0));
    drop((session, serving));
}

#[test]
fn hung_direct_io_postpones_upgrade() {
    match Ext4::new() {
        Ok(ext4) => is_not_upgraded(ext4, "none"),
        Err(why) => skip(why),
    }
}

#[test]
fn hung_buffered_lane_postpones_upgrade() {
    match Ext4::new() {
        Ok(ext4) => is_not_upgraded(ext4, "writeback"),
        Err(why) => skip(why),
    }
}
