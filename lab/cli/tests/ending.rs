//! How `vlane serve` ends, and its messages while it runs. SIGTERM drains, flushes, removes the
//! socket and succeeds in every state. SIGHUP reads the size again.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod frozen;
mod served;

use std::io::{BufRead, BufReader};
use std::ops::ControlFlow;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use served::{Place, going_on, stop};
use vlane_driver::{
    Limit, Progress, Session, SessionOptions, VerifyState, Workload, verify_check, verify_load,
};
use vlane_guest::Backend;

const MIB: u64 = 1 << 20;
/// An end that waits for something takes 30 s (--stop-timeout), or does not come.
const AT_ONCE: Duration = Duration::from_secs(10);

fn signal(backend: &Backend, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(backend.id()).unwrap()).unwrap(), signal).unwrap();
}

#[test]
//= vhost-user Backend program conventions, test
//# The back-end program must end (as quickly and cleanly as possible) when the SIGTERM signal is
//# received.
fn sigterm_ends_idle_server_at_once() {
    let place = Place::new(MIB);
    assert!(stop(place.serve(&[])) < AT_ONCE, "nobody connected");
    let server = place.serve(&["--queues", "2"]);
    let options = SessionOptions { queues: 2, ..SessionOptions::default() };
    let mut session = place.connect(&options);
    let _queues = session.start().unwrap();
    assert!(stop(server) < AT_ONCE, "a front end connected and quiet");
    assert!(session.wait_hangup(Duration::from_secs(2)));
}

#[test]
//= vhost-user Backend program conventions, test
//# The back-end program must not daemonize itself, but it may be daemonized by the management
//# layer.
fn server_does_not_daemonize_itself() {
    let place = Place::new(MIB);
    let server = place.serve(&[]);
    let session = place.connect(&SessionOptions::default());
    assert_eq!(session.pid().map(i32::cast_unsigned), Some(server.id()));
    drop(session);
    stop(server);
}

#[test]
fn sigint_ends_server_like_sigterm() {
    let place = Place::new(MIB);
    let mut server = place.serve(&[]);
    signal(&server, Signal::INT);
    let begin = std::time::Instant::now();
    let status = loop {
        if let Some(status) = server.ended().unwrap() {
            break status;
        }
        assert!(begin.elapsed() < served::LIMIT);
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success() && !place.socket.exists());
}

#[test]
fn loaded_server_drains_and_keeps_acknowledged_writes() {
    let places = [(Some(Place::new(32 * MIB)), "none"), (Some(Place::new(32 * MIB)), "writeback")];
    for (place, cache) in places.into_iter().chain([(Place::in_memory(32 * MIB), "auto")]) {
        let Some(place) = place else { continue };
        let arguments = ["--queues", "2", "--cache", cache];
        let server = place.serve(&arguments);
        let options = SessionOptions { queues: 2, depth: 16, ..SessionOptions::default() };
        let session = place.connect(&options);
        let load = Workload {
            size: Some(16 * MIB),
            // Longer than it takes until the end is asked for.
            limit: Limit::Time(2 * served::LIMIT),
            // Hardly ever flushed: the end has to do it.
            flush_every: Some(100_000),
            ..Workload::verified()
        };
        let mut state = VerifyState::new(&session, &load).unwrap();
        let (sender, is_enough) = std::sync::mpsc::channel();
        let ending = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(400));
            // A slow disk has done few requests by then.
            let _ = is_enough.recv_timeout(served::LIMIT);
            stop(server)
        });
        let mut go_on = |now: Progress| {
            if now.done >= 400 {
                let _ = sender.send(());
            }
            ControlFlow::Continue(())
        };
        let report = verify_load(session, &mut state, &load, &mut go_on).unwrap();
        assert!(
            report.backend_gone && report.is_clean() && report.writes > 100,
            "{cache}: {report:?}"
        );
        assert!(ending.join().unwrap() < Duration::from_secs(30), "{cache}");

        let server = place.serve(&arguments);
        let session = place.connect(&options);
        let report = verify_check(session, &mut state, going_on()).unwrap();
        assert!(report.is_clean() && report.unflushed_lost == 0, "{cache}: {report:?}");
        stop(server);
    }
}

#[test]
fn server_ends_during_unfinished_message() {
    use std::io::Write;
    let place = Place::new(MIB);
    let server = place.serve(&[]);
    let mut stream = std::os::unix::net::UnixStream::connect(&place.socket).unwrap();
    stream.write_all(&[1, 0, 0]).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert!(stop(server) < AT_ONCE);
}

#[test]
fn foreign_socket_at_path_is_kept() {
    let place = Place::new(MIB);
    // Not as a `Backend`, which tidies up behind a server that does not.
    let mut server = place.command(&[]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on"), "{line}");
    std::fs::remove_file(&place.socket).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&place.socket).unwrap();
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    assert!(place.socket.exists(), "it removed what is not its own");
}

#[test]
fn sighup_applies_new_size_and_survives_errors() {
    let place = Place::new(2 * MIB);
    let server = place.serve(&["--cache", "writeback"]);
    let capacity =
        || Session::connect(&place.socket, &SessionOptions::default()).unwrap().config().capacity;
    let resize = |bytes| {
        std::fs::OpenOptions::new().write(true).open(&place.image).unwrap().set_len(bytes).unwrap()
    };
    let settles_at = |bytes| {
        let begin = std::time::Instant::now();
        while capacity() != bytes && begin.elapsed() < served::LIMIT {
            std::thread::sleep(Duration::from_millis(10));
        }
        capacity() == bytes
    };
    assert_eq!(capacity(), 2 * MIB);
    resize(4 * MIB);
    signal(&server, Signal::HUP);
    assert!(settles_at(4 * MIB));
    resize(4 * MIB + 100);
    signal(&server, Signal::HUP);
    assert!(
        server.wait_log("not a multiple of the sector size", served::LIMIT),
        "{}",
        server.log()
    );
    assert_eq!(capacity(), 4 * MIB);
    resize(MIB);
    signal(&server, Signal::HUP);
    assert!(settles_at(MIB));
    stop(server);
}

#[test]
fn server_prints_how_to_connect() {
    let place = Place::new(2 * MIB);
    let server = place.serve(&["--queues", "3"]);
    let socket = place.socket.display().to_string();
    for part in [
        &format!("listening on {socket}"),
        "3 queues",
        "share=on",
        "num-queues=3",
        "vhost-user-blk-pci",
    ] {
        // Its lines come one after the other.
        assert!(server.wait_log(part, served::LIMIT), "{part}: {}", server.log());
    }
    stop(server);
}

/// Serves an image on a file system of its own, twenty times, and ends. The file system can be
/// unmounted at once each time, and the next server finds the image free.
#[test]
fn image_is_free_after_process_ends() {
    let mut ext4 = match frozen::Ext4::new() {
        Ok(ext4) => ext4,
        Err(why) => return vlane_testing::skip(format!("no file system of its own: {why}")),
    };
    let place = Place::new(MIB);
    let image = ext4.dir.path().join("disk.raw");
    std::fs::File::create(&image).unwrap().set_len(16 * MIB).unwrap();
    for round in 0..20 {
        let cache = if round % 2 == 0 { "none" } else { "writeback" };
        let mut command = std::process::Command::new(served::vlane());
        command.arg("serve").arg(&image).arg("--socket").arg(&place.socket).args(["--queues", "2"]);
        command.args(["--cache", cache]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening on"), "{line}");
        let options = SessionOptions { queues: 2, depth: 8, ..SessionOptions::default() };
        let session = place.connect(&options);
        let load = Workload {
            size: Some(4 * MIB),
            limit: Limit::Count(64),
            flush_every: Some(16),
            ..Workload::verified()
        };
        let mut state = VerifyState::new(&session, &load).unwrap();
        let report = verify_load(session, &mut state, &load, going_on()).unwrap();
        assert!(report.is_clean(), "{report:?}");
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        let output = server.wait_with_output().unwrap();
        let unmounted = ext4.remount();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(unmounted, Ok(()), "{round}, {cache}: {said}");
        // A slow disk, or a front end that is off the CPU, is warned of too.
        let is_delay = |line: &str| {
            line.contains("the storage does not answer") || line.contains("its memory never came")
        };
        let warns = said.lines().any(|line| line.contains("WARN") && !is_delay(line));
        assert!(output.status.success() && !warns, "{round}, {cache}: {said}");
    }
}

/// A user has 128 of them, root included.
#[test]
fn server_uses_at_most_one_inotify_instance() {
    let place = Place::new(MIB);
    let control = place.path("disk.ctl");
    let scheduler = place.path("nobody.sock");
    let sched = format!("--sched={}", scheduler.display());
    let server = place.serve(&["--queues", "1", "--control", control.to_str().unwrap(), &sched]);
    let mut session = place.connect(&SessionOptions::default());
    let _queues = session.start().unwrap();
    let instances = || {
        let open = vlane_testing::descriptors(server.id());
        open.iter().filter(|one| one.file.contains("inotify")).count()
    };
    let sessions = |what: &str| assert!(server.wait_log(what, served::LIMIT), "{}", server.log());
    sessions("session 1: front end");
    // It comes when it is needed first.
    let begin = std::time::Instant::now();
    while instances() == 0 {
        assert!(begin.elapsed() < served::LIMIT, "there is none");
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(session);
    let _another = place.connect(&SessionOptions::default());
    sessions("session 2: front end");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(instances(), 1);
    stop(server);
}

/// Another user namespace has limits of its own, which root there can lower.
#[test]
fn server_without_inotify_serves_and_warns() {
    let place = Place::new(MIB);
    let script = "echo 0 > /proc/sys/user/max_inotify_instances && exec \"$@\"";
    let mut command = std::process::Command::new("unshare");
    command.args(["--user", "--map-root-user"]);
    let tried = std::process::Command::new(command.get_program())
        .args(command.get_args())
        .args(["sh", "-c", script, "sh", "true"])
        .output();
    if !tried.as_ref().is_ok_and(|tried| tried.status.success()) {
        return vlane_testing::skip(format!("no limits of its own in a user namespace: {tried:?}"));
    }
    command.args(["sh", "-c", script, "sh", served::vlane(), "serve"]);
    command.arg(&place.image).arg("--socket").arg(&place.socket).args(["--queues", "1"]);
    let server = served::start(&command, &place.socket).unwrap();
    let mut session = place.connect(&SessionOptions::default());
    let _queues = session.start().unwrap();
    assert!(server.wait_log("max_user_instances", served::LIMIT), "{}", server.log());
    let said = server.log().lines().filter(|line| line.contains("inotify instance")).count();
    assert_eq!(said, 1, "{}", server.log());
}
