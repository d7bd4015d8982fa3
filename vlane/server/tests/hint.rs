//! Lanes report completed I/O to a vCPU scheduler: both ends in this process, with a guest's side
//! between them.

#![allow(clippy::unwrap_used, reason = "tests may")]

mod common;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::*;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use tempfile::TempDir;
use vlane_hint::message::{Hello, Message};
use vlane_hint::{Board, HintError};
use vlane_policy::express::Mode;
use vlane_sched::link::{Link, Notice, Registered, SessionId};
use vlane_sched::{Classes, ErrorKind, Mark, ProcessId};
use vlane_server::Schedulers;

fn place() -> (TempDir, PathBuf) {
    let directory = TempDir::with_prefix("vlane-hint-").unwrap();
    let path = directory.path().join("run/sched.sock");
    (directory, path)
}

fn now() -> u64 {
    vlane_hint::now()
}

/// Returns the link's notices, without those of silent back ends: a thread without a CPU for long
/// looks like one.
fn notices(link: &mut Link) -> Vec<Notice> {
    let mut notices = link.poll().unwrap();
    let is_late =
        |notice: &Notice| matches!(notice, Notice::Refused { why } if why.contains("no message"));
    notices.retain(|notice| !is_late(notice));
    notices
}

/// Waits for the link's next notice.
fn notice(link: &mut Link) -> Notice {
    let limit = Instant::now() + LIMIT;
    loop {
        if let Some(notice) = notices(link).pop() {
            return notice;
        }
        assert!(Instant::now() < limit, "nothing happened");
        wait(link, Duration::from_millis(500));
    }
}

fn wait(link: &Link, limit: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(link.fd(), PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec::try_from(limit).unwrap())).unwrap() > 0
}

fn joined(link: &mut Link) -> Registered {
    let begin = Instant::now();
    loop {
        match notice(link) {
            Notice::Joined(registered) => return registered,
            // This thread was so late that the back end has hung up: it comes again.
            Notice::Refused { .. } if begin.elapsed() < LIMIT => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Collects marks until `events` signals have been reported.
fn marks(link: &mut Link, events: u64) -> Vec<(SessionId, u16, Mark)> {
    let (mut marks, mut count) = (Vec::new(), 0);
    let limit = Instant::now() + LIMIT;
    while count < events {
        assert!(Instant::now() < limit, "only {marks:?}");
        wait(link, Duration::from_millis(500));
        assert!(notices(link).is_empty());
        for mark in link.collect(now()) {
            let (Mark::Event { count: more, .. } | Mark::Served { count: more, .. }) = mark.2;
            count += u64::from(more);
            marks.push(mark);
        }
    }
    assert_eq!(count, events);
    marks
}

/// Lanes of a back end that has not been welcomed yet report no events: repeats until they do. The
/// link must be armed.
fn until_told(link: &mut Link, ring: &mut Ring) {
    let limit = Instant::now() + LIMIT;
    while link.collect(now()).count() == 0 {
        assert!(Instant::now() < limit, "nothing was told");
        round(ring);
        wait(link, Duration::from_millis(20));
        assert!(notices(link).is_empty());
    }
}

fn telling(path: &Path) -> Server {
    Server::telling(null(None), 2, 1, Duration::ZERO, Schedulers::At(path.to_owned()))
}

/// Starts ring `index` and has one request answered.
fn round(ring: &mut Ring<'_>) {
    ring.submit(0, GET_ID, 0, 20);
    ring.wait(1);
}

#[test]
fn signals_and_answers_are_reported_in_order() {
    let (_directory, path) = place();
    let mut link = Link::bind(&path, 0o600).unwrap();
    let server = telling(&path);
    let (wire, memory) = server.guest(USUAL);
    let registered = joined(&mut link);
    assert_eq!(registered.process, ProcessId::of(std::process::id()).unwrap());
    assert_eq!((&registered.vcpus[..], &registered.name[..]), (&[0, 1][..], "test"));
    let session = registered.session;
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(1, &ring));
    // Not armed: not reported.
    round(&mut ring);
    assert!(!wait(&link, Duration::from_millis(50)));
    link.arm(session, Classes::ALL);
    assert_eq!(link.collect(now()).count(), 0);
    let begin = now();
    round(&mut ring);
    let told = marks(&mut link, 1);
    let [(who, 1, Mark::Event { at, count: 1 })] = told[..] else { panic!("{told:?}") };
    assert_eq!(who, session);
    assert!(at >= begin && at <= now());
    let submitted = now();
    round(&mut ring);
    let told = marks(&mut link, 1);
    let (_, 1, Mark::Served { at: then, response_ns, .. }) = told[0] else { panic!("{told:?}") };
    assert!(then >= submitted && response_ns == then - at, "{told:?}");
    assert!(matches!(told[told.len() - 1], (_, 1, Mark::Event { .. })), "{told:?}");
    // As many as completions were signalled.
    const ROUNDS: u16 = 500;
    for _ in 0..ROUNDS {
        round(&mut ring);
    }
    let told = marks(&mut link, ROUNDS.into());
    assert!(told.iter().all(|(_, lane, _)| *lane == 1));
    // Only reads, from now on.
    link.arm(session, Classes::READS);
    round(&mut ring);
    assert!(link.collect(now()).all(|(_, _, mark)| matches!(mark, Mark::Served { .. })));
    // The front end goes: so does its session.
    drop(wire);
    assert!(matches!(notice(&mut link), Notice::Left { session: left, .. } if left == session));
}

/// I/O priorities: real time, and idle.
const FOREGROUND: u32 = 1 << 13 | 4;
const BACKGROUND: u32 = 3 << 13;

/// Reads 4 KiB with this priority; the answer comes with an interrupt.
fn read(ring: &mut Ring<'_>, slot: u16, ioprio: u32) {
    submit(ring, slot, ioprio);
    assert_eq!(ring.wait(1), [slot]);
}

fn submit(ring: &mut Ring<'_>, slot: u16, ioprio: u32) {
    ring.build_with(slot, IN, ioprio, 0, 4096);
    ring.offer(slot * 3);
    ring.publish();
    ring.kick();
}

/// Returns the marks up to the lane's rest.
fn told(link: &mut Link) -> Vec<Mark> {
    assert!(notices(link).is_empty());
    link.collect(now()).map(|(_, _, mark)| mark).collect()
}

/// The scheduler asked for express completions only.
#[test]
fn background_neither_boosts_nor_ends_boosts() {
    let (_directory, path) = place();
    let mut link = Link::bind(&path, 0o600).unwrap();
    // The first answers at once, the second some time later: two ways through the lane.
    for latency in [None, Some(Duration::from_millis(1))] {
        let server = Server::classifying(null(latency), Mode::On, Schedulers::At(path.clone()));
        let (wire, memory) = server.guest(USUAL);
        let registered = joined(&mut link);
        assert!(registered.has_express);
        link.arm(registered.session, Classes::ALL);
        let mut ring = Ring::new(&memory, 0);
        assert!(wire.start(0, &ring));
        until_told(&mut link, &mut ring);
        link.arm(registered.session, Classes::EXPRESS);
        // Unanswered events are answered now.
        read(&mut ring, 0, FOREGROUND);
        read(&mut ring, 0, FOREGROUND);
        told(&mut link);
        for _ in 0..20 {
            // Pending is the express read before these. The second one's answer shows that the
            // first one was taken.
            read(&mut ring, 1, BACKGROUND);
            read(&mut ring, 2, 0);
            assert_eq!(told(&mut link), [], "the background boosts, or ends a boost");
            // Together: it depends on what comes, not on what comes first.
            ring.build_with(3, IN, BACKGROUND, 0, 4096);
            ring.offer(9);
            submit(&mut ring, 0, FOREGROUND);
            let mut slots = ring.wait(2);
            slots.sort_unstable();
            assert_eq!(slots, [0, 3]);
            let marks = marks(&mut link, 1);
            let [(.., Mark::Served { count: 0, .. }), (.., Mark::Event { count: 1, .. })] =
                marks[..]
            else {
                panic!("{marks:?}")
            };
        }
        drop(wire);
        assert!(matches!(notice(&mut link), Notice::Left { .. }));
    }
}

#[test]
fn volume_without_classes_has_no_express() {
    let (_directory, path) = place();
    let mut link = Link::bind(&path, 0o600).unwrap();
    let server = telling(&path);
    let (wire, memory) = server.guest(USUAL);
    let registered = joined(&mut link);
    assert!(!registered.has_express);
    link.arm(registered.session, Classes::ALL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    until_told(&mut link, &mut ring);
    link.arm(registered.session, Classes::EXPRESS);
    read(&mut ring, 0, FOREGROUND);
    told(&mut link);
    read(&mut ring, 0, FOREGROUND);
    assert_eq!(told(&mut link), []);
}

/// They find the next one.
#[test]
fn lanes_survive_without_scheduler() {
    let (_directory, path) = place();
    let server = telling(&path);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    round(&mut ring);
    for _ in 0..2 {
        let mut link = Link::bind(&path, 0o600).unwrap();
        let session = joined(&mut link).session;
        link.arm(session, Classes::ALL);
        until_told(&mut link, &mut ring);
        // As when it is killed: the board stays armed until the back end sees that the scheduler is
        // gone.
        link.dismiss(session);
        for _ in 0..50 {
            round(&mut ring);
        }
        drop(link);
    }
    server.stop();
}

#[test]
fn scheduler_death_leaves_lanes_running() {
    let (_directory, path) = place();
    let mut link = Link::bind(&path, 0o600).unwrap();
    let server = telling(&path);
    let (wire, memory) = server.guest(USUAL);
    let session = joined(&mut link).session;
    link.arm(session, Classes::ALL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    drop(link);
    for _ in 1..100 {
        round(&mut ring);
    }
    assert!(!path.exists(), "it leaves its socket behind");
    let mut link = Link::bind(&path, 0o600).unwrap();
    assert_ne!(joined(&mut link).process.pid, 0);
    server.stop();
}

/// A back end that says what it likes.
struct Hostile(OwnedFd);

impl Hostile {
    fn connect(path: &Path) -> Hostile {
        let flags = SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        Hostile(socket)
    }

    fn hello(&self, process: ProcessId, lanes: u32, board: &OwnedFd) {
        let hello = Hello { process, vcpus: (0..lanes).collect(), name: "x".into() };
        Message::Hello(hello).send(&self.0, Some(board.as_fd())).unwrap();
    }
}

#[test]
fn malformed_registration_is_refused_harmlessly() {
    let (_directory, path) = place();
    let mut link = Link::bind(&path, 0o600).unwrap();
    let me = ProcessId::of(std::process::id()).unwrap();
    let (board, fd) = Board::create(2, false).unwrap();

    let refused = |link: &mut Link, hostile: &Hostile, why: &str| {
        let Notice::Refused { why: told } = notice(link) else { panic!("not refused: {why}") };
        assert!(told.contains(why), "{told}");
        let answer = Message::receive(&hostile.0);
        assert!(
            matches!(&answer, Ok(Some((Message::Refused(text), None))) if *text == told),
            "{answer:?}"
        );
        assert!(matches!(Message::receive(&hostile.0), Err(HintError::HungUp)));
    };
    // A process that is gone, or another one with its number.
    let hostile = Hostile::connect(&path);
    hostile.hello(ProcessId { start: me.start + 1, ..me }, 2, &fd);
    refused(&mut link, &hostile, "is gone");
    // A board of another size.
    let hostile = Hostile::connect(&path);
    hostile.hello(me, 3, &fd);
    refused(&mut link, &hostile, "lanes");
    // Memory that could shrink.
    let file = tempfile::tempfile().unwrap();
    file.set_len(4096).unwrap();
    let hostile = Hostile::connect(&path);
    hostile.hello(me, 2, &file.into());
    refused(&mut link, &hostile, "shared memory");
    // No message at all.
    let hostile = Hostile::connect(&path);
    rustix::net::send(&hostile.0, b"GET / HTTP/1.1", rustix::net::SendFlags::empty()).unwrap();
    refused(&mut link, &hostile, "protocol");
    // A silent back end does not keep the others from being heard.
    let _silent = Hostile::connect(&path);
    assert!(notices(&mut link).is_empty());
    assert!(link.deadline().is_some());
    // A back end that takes its own wake-ups away, and fills its eventfd, is still heard and delays
    // no other.
    let hostile = Hostile::connect(&path);
    hostile.hello(me, 2, &fd);
    let session = joined(&mut link).session;
    let Some((Message::Welcome, Some(wake))) = Message::receive(&hostile.0).unwrap() else {
        panic!()
    };
    rustix::fs::fcntl_setfl(&wake, rustix::fs::OFlags::empty()).unwrap();
    link.arm(session, Classes::ALL);
    assert_eq!(link.collect(now()).count(), 0);
    rustix::io::write(&wake, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    assert!(wait(&link, LIMIT));
    assert!(notices(&mut link).is_empty());
    rustix::io::write(&wake, &1u64.to_ne_bytes()).unwrap();
    rustix::io::read(&wake, &mut [0; 8]).unwrap();
    assert!(notices(&mut link).is_empty());
    assert_eq!(link.collect(now()).count(), 0);
    // A back end that keeps talking is turned away.
    Message::Welcome.send(&hostile.0, Some(fd.as_fd())).unwrap();
    assert!(matches!(notice(&mut link), Notice::Left { session: left, .. } if left == session));
    drop(board);

    // All that did not affect a back end that behaves.
    let server = telling(&path);
    let (_wire, _memory) = server.guest(USUAL);
    joined(&mut link);
}

#[test]
fn only_one_scheduler_listens_at_a_socket() {
    let (directory, path) = place();
    let first = Link::bind(&path, 0o600).unwrap();
    let second = Link::bind(&path, 0o600).unwrap_err();
    assert!(
        second.kind() == ErrorKind::Invalid && second.to_string().contains("another scheduler"),
        "{second}"
    );
    drop(first);
    assert!(!path.exists());
    // A killed scheduler leaves its socket behind.
    let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    drop(socket);
    assert!(Link::bind(&path, 0o600).is_ok());
    let file = directory.path().join("file");
    std::fs::write(&file, "text").unwrap();
    assert_eq!(Link::bind(&file, 0o600).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(std::fs::read(&file).unwrap(), b"text");
}
