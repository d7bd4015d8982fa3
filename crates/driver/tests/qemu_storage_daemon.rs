//! The driver against a back end of others: qemu-storage-daemon, from Debian's packages. Where it is not installed the tests say so
//! and check nothing.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use vlane_driver::{
    Error, ErrorKind, Limit, OnProgress, Session, SessionOptions, VerifyOptions, VerifyState, Wait, Want,
    Workload, run, verify_check, verify_load,
};

struct Daemon {
    child: Child,
    socket: PathBuf,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn going_on(_: vlane_driver::Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// The daemon on a file of 64 MiB, or `None` if there is no daemon.
fn daemon(dir: &Path) -> Option<Daemon> {
    let (image, socket) = (dir.join("image"), dir.join("socket"));
    if !image.exists() {
        std::fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    }
    let _ = std::fs::remove_file(&socket);
    let child = Command::new("qemu-storage-daemon")
        .args(["--object", "iothread,id=t", "--blockdev"])
        .arg(format!("driver=file,node-name=n,filename={}", image.display()))
        .arg("--export")
        .arg(format!(
            "type=vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path={},writable=on,num-queues=2,iothread=t",
            socket.display()
        ))
        .stderr(Stdio::null())
        .spawn();
    match child {
        Ok(child) => Some(Daemon { child, socket }),
        Err(_) => {
            eprintln!("NOT TESTED: qemu-storage-daemon is not installed (Debian: qemu-system-common)");
            None
        }
    }
}

fn connect(daemon: &Daemon, options: &SessionOptions) -> Result<Session, Error> {
    let start = Instant::now();
    loop {
        match Session::connect(&daemon.socket, options) {
            Err(e) if e.kind() == ErrorKind::Connect && start.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            result => return result,
        }
    }
}

#[test]
fn sockets_that_do_not_work_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let options = SessionOptions::default();
    let dead = dir.path().join("dead");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    let file = dir.path().join("file");
    std::fs::write(&file, "x").unwrap();
    let long = dir.path().join("x".repeat(120));
    for (path, says) in [
        (dir.path().join("none"), "no such socket"),
        (dead, "nobody listens"),
        (file, "not a socket"),
        (long, "no such socket"),
    ] {
        let error = Session::connect(&path, &options).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Connect);
        assert!(error.to_string().contains(says) || error.to_string().contains("socket path"), "{error}");
    }
    // One that accepts and says nothing.
    let silent = dir.path().join("silent");
    let _listener = std::os::unix::net::UnixListener::bind(&silent).unwrap();
    let options = SessionOptions { timeout: Duration::from_millis(200), ..options };
    let error = Session::connect(&silent, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}

#[test]
fn what_is_not_offered_is_refused_and_the_rest_works() {
    let dir = tempfile::tempdir().unwrap();
    let Some(daemon) = daemon(dir.path()) else { return };
    let demand = |options: SessionOptions| connect(&daemon, &options).unwrap_err().kind();
    assert_eq!(demand(SessionOptions { packed: Want::Must, ..Default::default() }), ErrorKind::Unsupported);
    assert_eq!(demand(SessionOptions { queues: 3, ..Default::default() }), ErrorKind::Invalid);
    assert_eq!(demand(SessionOptions { segments: 1000, ..Default::default() }), ErrorKind::Invalid);

    let options = SessionOptions { queues: 2, depth: 8, data: 8192, segments: 2, ..Default::default() };
    for (event_idx, indirect, wait) in [
        (Want::Must, Want::Must, Wait::Interrupt),
        (Want::No, Want::No, Wait::Interrupt),
        (Want::Must, Want::No, Wait::Poll),
    ] {
        let options = SessionOptions { event_idx, indirect, ..options.clone() };
        let session = connect(&daemon, &options).unwrap();
        assert_eq!(session.config().capacity, 64 << 20);
        assert_eq!(session.pid(), Some(daemon.child.id().try_into().unwrap()));
        let workload = Workload {
            pattern: "randrw".parse().unwrap(),
            block: 8192,
            flush_every: Some(16),
            limit: Limit::Count(2000),
            wait,
            ..Workload::default()
        };
        let report = run(session, &workload, &mut going_on).unwrap();
        assert_eq!((report.ios, report.errors.total()), (4000, 0));
        assert!(report.reads.is_some() && report.writes.is_some() && report.flushes.is_some());
        assert!(report.backend.unwrap().threads > 0 && report.latency.max > report.latency.min);
    }
    // A run of a given time keeps to it, and may be ended before.
    let session = connect(&daemon, &options).unwrap();
    let workload =
        Workload { limit: Limit::Time(Duration::from_secs(60)), ramp: Duration::ZERO, ..Workload::default() };
    let stop: &mut OnProgress<'_> = &mut |_| ControlFlow::Break(());
    let report = run(session, &workload, stop).unwrap();
    assert!(report.seconds < 5.0 && report.ios > 0, "{} s", report.seconds);
}

#[test]
fn what_was_flushed_is_there_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut victim) = daemon(dir.path()) else { return };
    let options = SessionOptions { queues: 2, depth: 16, write_cache: Some(true), ..Default::default() };
    let load = VerifyOptions {
        size: Some(4 << 20),
        limit: Limit::Time(Duration::from_secs(30)),
        ..VerifyOptions::default()
    };
    let mut state = VerifyState::new(&connect(&victim, &options).unwrap(), &load).unwrap();
    for round in 0..3 {
        let wait = Duration::from_millis(150 + 130 * round);
        let session = connect(&victim, &options).unwrap();
        let report = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(wait);
                victim.child.kill().unwrap();
            });
            verify_load(session, &mut state, &load, &mut going_on).unwrap()
        });
        assert!(report.backend_gone && report.writes > 0 && report.is_clean(), "{report:?}");
        victim = daemon(dir.path()).unwrap();
        let file = dir.path().join("state");
        state.save(&file).unwrap();
        state = VerifyState::load(&file).unwrap();
        let session = connect(&victim, &options).unwrap();
        let report = verify_check(session, &mut state, &mut going_on).unwrap();
        assert!(report.is_clean() && !report.backend_gone && report.reads == 1024, "{report:?}");
    }
    // And a back end that does lose something is found out.
    drop(victim);
    let image = std::fs::File::options().read(true).write(true).open(dir.path().join("image")).unwrap();
    let (mut one, mut other) = ([0; 512], [0; 512]);
    image.read_exact_at(&mut one, 8192).unwrap();
    image.read_exact_at(&mut other, 8704).unwrap();
    image.write_all_at(&other, 8192).unwrap();
    image.write_all_at(&[0; 512], 65536).unwrap();
    image.write_all_at(&[1; 8], 131_072 + 300).unwrap();
    let again = daemon(dir.path()).unwrap();
    let session = connect(&again, &options).unwrap();
    let report = verify_check(session, &mut state, &mut going_on).unwrap();
    assert_eq!(report.mismatches, 3, "{report:?}");
    let words: Vec<_> = report.first.iter().map(ToString::to_string).collect();
    for says in ["belongs at offset 8704", "writes were lost", "checksum"] {
        assert!(words.iter().any(|text| text.contains(says)), "{says}: {words:?}");
    }
}
