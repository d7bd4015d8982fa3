//! Storage that fails, as the operator of `vlane serve` sees it. A lost write is logged once, shown
//! at the control socket, and fails every later flush of every queue, or ends the process. Failed
//! requests are logged during the session, a few lines for thousands of them.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod served;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use served::{LIMIT, vlane};
use tempfile::TempDir;
use vlane_driver::ring::{Request, RequestKind};
use vlane_driver::{GuestQueue, Session, SessionOptions};
use vlane_guest::{Backend, Ready, Spec};
use vlane_testing::skip;

const MIB: u64 = 1 << 20;
/// Bytes of one write.
const PIECE: u32 = 1 << 20;

fn command(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output =
        Command::new(program).args(arguments).output().map_err(|e| format!("{program}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// A tmpfs of 8 MiB with a sparse image of 64 MiB in it.
struct TooSmall {
    dir: TempDir,
    /// Sockets are elsewhere: they need room, too.
    sockets: TempDir,
    device: Option<PathBuf>,
}

impl TooSmall {
    fn new() -> Option<TooSmall> {
        let dir = TempDir::with_prefix("vlane-small-").unwrap();
        let at = dir.path().to_str().unwrap();
        if let Err(why) = command("mount", &["-t", "tmpfs", "-o", "size=8M", "tmpfs", at]) {
            skip(why);
            return None;
        }
        let small =
            TooSmall { dir, sockets: TempDir::with_prefix("vlane-lost-").unwrap(), device: None };
        std::fs::File::create(small.image()).unwrap().set_len(64 * MIB).unwrap();
        Some(small)
    }

    /// The same with a loop device on the image.
    fn behind_a_device() -> Option<TooSmall> {
        let mut small = TooSmall::new()?;
        match command("losetup", &["--find", "--show", small.image().to_str().unwrap()]) {
            Ok(device) => small.device = Some(device.trim().into()),
            Err(why) => {
                skip(why);
                return None;
            }
        }
        Some(small)
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("disk.raw")
    }

    fn socket(&self, name: &str) -> PathBuf {
        self.sockets.path().join(name)
    }

    fn serve(&self, options: &[&str]) -> Backend {
        let (socket, control) = (self.socket("disk.sock"), self.socket("disk.ctl"));
        let mut words: Vec<OsString> = vec!["serve".into()];
        words.push(self.device.clone().unwrap_or_else(|| self.image()).into());
        words.extend([
            "--socket".into(),
            socket.clone().into(),
            "--control".into(),
            control.into(),
        ]);
        words.extend(["--queues", "2"].iter().chain(options).map(OsString::from));
        let spec = Spec::new(vlane(), words);
        Backend::start_within(LIMIT, &spec, &socket, Ready::Line("listening on"), None)
            .unwrap_or_else(|e| panic!("{e}"))
    }

    fn connect(&self) -> (Session, Vec<GuestQueue>) {
        let options = SessionOptions { queues: 2, data: PIECE, ..SessionOptions::default() };
        let mut session = Session::connect(&self.socket("disk.sock"), &options).unwrap();
        let (queues, _) = session.start().unwrap();
        (session, queues)
    }

    /// A resource of the control socket.
    fn ask(&self, resource: &str) -> serde_json::Value {
        let mut stream = UnixStream::connect(self.socket("disk.ctl")).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(format!("GET {resource} HTTP/1.0\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
    }
}

impl Drop for TooSmall {
    fn drop(&mut self) {
        if let Some(device) = &self.device {
            let _ = command("losetup", &["--detach", device.to_str().unwrap()]);
        }
        for _ in 0..50 {
            if command("umount", &[self.dir.path().to_str().unwrap()]).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// One request and its status.
fn request(queue: &mut GuestQueue, kind: RequestKind, sector: u64, len: u32) -> u8 {
    queue.blk.submit(0, Request { kind, sector, len, ioprio: 0 }).unwrap();
    queue.blk.publish();
    queue.kick().unwrap();
    let (mut done, begin) = (Vec::new(), Instant::now());
    while done.is_empty() {
        std::thread::yield_now();
        queue.blk.reap(&mut done).unwrap();
        assert!(begin.elapsed() < LIMIT, "{kind:?} hangs");
    }
    done[0].status
}

/// Writes three times what there is room for, all of which is answered OK.
fn overfill(queue: &mut GuestQueue) {
    for at in 0..24 {
        assert_eq!(request(queue, RequestKind::Write, at * u64::from(PIECE) / 512, PIECE), 0);
    }
}

/// Lines of the log that have all of these.
fn lines<'a>(log: &'a str, parts: &[&str]) -> Vec<&'a str> {
    log.lines().filter(|line| parts.iter().all(|part| line.contains(part))).collect()
}

/// Waits for the end of a process that has to fail.
fn ends_badly(mut backend: Backend, socket: &Path) -> String {
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = backend.ended().unwrap() {
            break status;
        }
        assert!(begin.elapsed() < LIMIT, "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.code(), Some(1), "{}", backend.log());
    assert!(!socket.exists(), "it left its socket behind");
    // Its last words may be in the pipe still.
    assert!(backend.wait_log("are lost", LIMIT), "{}", backend.log());
    backend.log()
}

#[test]
fn lost_write_fails_all_later_flushes() {
    let Some(place) = TooSmall::behind_a_device() else { return };
    let backend = place.serve(&["--cache", "writeback"]);
    let (session, mut queues) = place.connect();
    assert_eq!(request(&mut queues[1], RequestKind::Flush, 0, 0), 0);
    overfill(&mut queues[0]);
    assert!(place.ask("/v1/volume")["lost_write"].is_null());
    for flush in 0..3 {
        for (index, queue) in queues.iter_mut().enumerate() {
            assert_eq!(
                request(queue, RequestKind::Flush, 0, 0),
                1,
                "flush {flush} of queue {index}"
            );
        }
    }
    assert_eq!(request(&mut queues[1], RequestKind::Read, 0, 4096), 0);
    assert_eq!(request(&mut queues[1], RequestKind::Write, 0, 4096), 1);
    let lost = &place.ask("/v1/volume")["lost_write"];
    assert_eq!(lost["during"], "flush", "{lost}");
    assert!(
        lost["errno"].as_i64().unwrap() > 0 && lost["error"].as_str().unwrap().contains("os error")
    );
    drop((session, queues));

    let (_session, mut queues) = place.connect();
    assert_eq!(
        request(&mut queues[0], RequestKind::Flush, 0, 0),
        1,
        "the first flush of the next session"
    );
    let counters = place.ask("/v1/counters");
    assert!(counters["sum"]["lost"].as_u64().unwrap() >= 6, "{counters}");
    assert!(backend.wait_log("are lost", LIMIT));
    let device = place.device.clone().unwrap();
    let ends = backend.stop(LIMIT).unwrap();
    assert_eq!(ends.status.code(), Some(1), "{}", ends.log);
    let told = lines(
        &ends.log,
        &["ERROR", "are lost", device.to_str().unwrap(), "os error", "reads continue"],
    );
    assert_eq!(told.len(), 1, "{}", ends.log);
    drop(queues);

    // A new process opens the volume anew.
    let backend = place.serve(&["--cache", "writeback"]);
    let (_session, mut queues) = place.connect();
    assert_eq!(request(&mut queues[0], RequestKind::Flush, 0, 0), 0);
    assert!(place.ask("/v1/volume")["lost_write"].is_null());
    assert!(backend.stop(LIMIT).unwrap().status.success());
}

#[test]
fn lost_write_ends_process_with_stop() {
    let Some(place) = TooSmall::behind_a_device() else { return };
    for cache in ["writeback", "writethrough"] {
        let backend = place.serve(&["--cache", cache, "--on-lost-write", "stop"]);
        let (session, mut queues) = place.connect();
        match cache {
            "writeback" => {
                overfill(&mut queues[0]);
                assert_eq!(request(&mut queues[0], RequestKind::Flush, 0, 0), 1);
            }
            _ => {
                let piece = u64::from(PIECE) / 512;
                let failed = (32..56)
                    .find(|at| request(&mut queues[0], RequestKind::Write, at * piece, PIECE) != 0);
                assert!(failed.is_some(), "there is room for more than there is");
            }
        }
        assert!(session.wait_hangup(LIMIT), "the session goes on");
        let log = ends_badly(backend, &place.socket("disk.sock"));
        assert_eq!(lines(&log, &["ERROR", "are lost", "stopping"]).len(), 1, "{log}");
    }
}

#[test]
fn failed_requests_are_reported_in_summary() {
    let Some(place) = TooSmall::new() else { return };
    let backend = place.serve(&[]);
    let (_session, mut queues) = place.connect();
    let statuses: Vec<u8> = (0..24)
        .map(|at| request(&mut queues[0], RequestKind::Write, at * u64::from(PIECE) / 512, PIECE))
        .collect();
    assert!(statuses.contains(&1), "{statuses:?}");
    assert!(backend.wait_log("no space was left", LIMIT), "{}", backend.log());
    for _ in 0..500 {
        assert_eq!(request(&mut queues[0], RequestKind::Write, 60 * MIB / 512, PIECE), 1);
    }
    // Another kind is not held back with the rest of these.
    std::fs::OpenOptions::new().write(true).open(place.image()).unwrap().set_len(MIB).unwrap();
    assert_eq!(request(&mut queues[1], RequestKind::Read, 2 * MIB / 512, 4096), 1);
    assert!(backend.wait_log("the image is shorter", LIMIT), "{}", backend.log());
    let stopped = backend.stop(LIMIT).unwrap();
    assert!(stopped.status.success(), "{}", stopped.log);
    let space = lines(&stopped.log, &["WARN", "no space was left", "failed"]);
    assert!((1..=4).contains(&space.len()), "{}", stopped.log);
    assert_eq!(
        lines(&stopped.log, &["WARN", "the image is shorter", "1 request failed"]).len(),
        1,
        "{}",
        stopped.log
    );
}
