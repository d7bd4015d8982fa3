//! Messages for an operator. They name the front end, the number of used queues, a session that
//! delays others, unshared memory, and a socket's missing file. Each in one line, and once.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod common;

use std::collections::BTreeSet;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use common::inflight::*;
use common::*;
use vlane_engine::file::{FileEngine, FileOptions};
use vlane_hint::{Change, Client, Guest};
use vlane_sched::ProcessId;
use vlane_sched::link::{Adoption, Link};
use vlane_server::Vanishing;

/// vhost-user messages.
const GET_INFLIGHT_FD: u32 = 31;
const SET_INFLIGHT_FD: u32 = 32;

/// The log of all servers of this process.
#[derive(Clone, Copy)]
struct Log;

static SAID: Mutex<Vec<u8>> = Mutex::new(Vec::new());

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        SAID.lock().unwrap_or_else(PoisonError::into_inner).extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// One test at a time, as they have one log; it begins empty.
fn listening() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    static LOG: OnceLock<()> = OnceLock::new();
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    LOG.get_or_init(|| tracing_subscriber::fmt().with_writer(|| Log).with_ansi(false).init());
    SAID.lock().unwrap_or_else(PoisonError::into_inner).clear();
    one
}

fn said(what: &str) -> usize {
    let said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    String::from_utf8_lossy(&said).lines().filter(|line| line.contains(what)).count()
}

fn hears(what: &str) {
    let begin = Instant::now();
    while said(what) == 0 {
        let all = String::from_utf8_lossy(&SAID.lock().unwrap()).into_owned();
        assert!(begin.elapsed() < LIMIT, "never: {what}\n{all}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn front_end_and_queue_count_are_logged() {
    let _one = listening();
    let server = Server::new(null(None), 4, 1);
    // On a busy machine it may take so long to start both queues that each is news: then again.
    for session in 1..100 {
        let (wire, memory) = server.guest(USUAL);
        hears(&format!("session {session}: front end pid {} (", std::process::id()));
        let (first, second) = (Ring::new(&memory, 0), Ring::new(&memory, 0x1_0000));
        let begin = Instant::now();
        assert!(wire.start(0, &first) && wire.start(1, &second));
        let is_quick = begin.elapsed() < Duration::from_millis(300);
        hears(&format!("session {session}: 2 of 4 offered queues are used"));
        let alone = said(&format!("session {session}: 1 of 4 offered queues"));
        assert!(!is_quick || alone == 0, "each on its own is no news");
        drop(wire);
        hears(&format!("session {session} ended: front end hung up"));
        if is_quick {
            return;
        }
    }
    panic!("two queues never start within 300 ms");
}

/// Queues that come and go at once are no news while the session lasts.
#[test]
fn short_session_logs_queues_used() {
    let _one = listening();
    let server = Server::new(null(None), 4, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut rings = [Ring::new(&memory, 0), Ring::new(&memory, 0x1_0000)];
    for (index, ring) in (0..).zip(&mut rings) {
        assert!(wire.start(index, ring));
        ring.submit(0, GET_ID, 0, 20);
        ring.wait(1);
    }
    drop(wire);
    hears(
        "ended: front end hung up; 2 of 4 offered queues had requests; queue 0: 1 request; queue \
         1: 1 request",
    );
}

/// It asked for the number of queues, left, and may have wanted more.
#[test]
fn front_end_lacking_queues_is_logged() {
    let _one = listening();
    let server = Server::new(null(None), 2, 1);
    let wire = server.connect();
    wire.negotiate(USUAL);
    assert_eq!(wire.ask_word(code::GET_QUEUE_NUM), 2);
    drop(wire);
    hears("asked for the number of queues and left: it may want more than the 2 that vlane offers");
    // It is reported once for each process. A front end that continues has found enough.
    for goes_on in [false, true] {
        let wire = server.connect();
        wire.negotiate(USUAL);
        wire.ask_word(code::GET_QUEUE_NUM);
        if goes_on {
            wire.ask_word(code::GET_MAX_MEM_SLOTS);
        }
        drop(wire);
        hears(&format!("session {} ended", 2 + u64::from(goes_on)));
    }
    assert_eq!(said("it may want more"), 1);
    // A queue beyond them is refused with the number that there is.
    let (wire, memory) = server.guest(USUAL);
    assert!(!wire.start(2, &Ring::new(&memory, 0)));
    hears("queue 2 does not exist; this volume offers 2");
}

#[test]
fn session_that_delays_others_is_logged_once() {
    let _one = listening();
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    let waiting = server.connect();
    let who = format!("waiting until this one hangs up: session 1, pid {} (", std::process::id());
    hears(&who);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(said(&who), 1);
    // The waiting front end gets its turn, and is not blamed for its own wait.
    drop(wire);
    assert!(waiting.is_alive());
    assert_eq!(said("waiting until"), 1);
}

/// It was admitted while the first one was silent.
#[test]
fn admitted_front_end_counts_as_waiting() {
    let _one = listening();
    loop {
        let server = Server::new(null(None), 1, 1);
        let first = server.connect();
        hears("session 1: front end pid");
        let begin = Instant::now();
        let _waiting = server.connect();
        // It is taken out of the socket's queue, and then the first one speaks.
        std::thread::sleep(Duration::from_millis(500));
        if first.is_alive() {
            let path = server.path().display().to_string();
            hears(&format!(
                "{path}: another front end is waiting until this one hangs up: session 1, "
            ));
            return;
        }
        // This thread may be without a CPU for longer than a silent one is waited for.
        assert!(begin.elapsed() >= Duration::from_secs(5), "put out at once");
    }
}

#[test]
fn scheduler_arrival_and_departure_are_logged() {
    let _one = listening();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sched.sock");
    let mut link = vlane_sched::link::Link::bind(&path, 0o600).unwrap();
    let server =
        Server::telling(null(None), 1, 1, Duration::ZERO, vlane_server::Schedulers::At(path));
    let (wire, _memory) = server.guest(USUAL);
    let begin = Instant::now();
    while said("a vCPU scheduler joined") == 0 {
        link.poll().unwrap();
        assert!(begin.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(link);
    hears("the vCPU scheduler is gone");
    drop(wire);
}

/// A scheduler that refuses is asked again, less and less often. A new one is asked at once.
#[test]
fn scheduler_refusal_is_logged_with_remedy() {
    let _one = listening();
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("sched.sock");
    let bind = |adoption| Link::bind(&path, 0o600).unwrap().adopting(adoption);
    let mut link = bind(Adoption::Users(BTreeSet::new()));
    let process = ProcessId::of(std::process::id()).unwrap();
    let guest = Guest { process, vcpus: vec![0], name: "test".into(), has_express: false };
    let mut now = Instant::now();
    let mut client = Client::new(vec![path.clone()], guest, false, now);
    let mut pauses = Vec::new();
    for _ in 0..10 {
        assert!(client.turn(now).is_none());
        // It accepts, and then it listens.
        link.poll().unwrap();
        link.poll().unwrap();
        assert!(client.turn(now).is_none());
        let next = client.deadline().unwrap();
        pauses.push((next - now).as_secs());
        now = next;
    }
    assert_eq!(pauses[..3], [10, 20, 40]);
    assert_eq!(pauses[8..], [600, 600]);
    assert_eq!((said("refuses this VM"), said("--adopt all"), said("--sched=off")), (1, 1, 1));
    drop(link);
    let mut link = bind(Adoption::All);
    let begin = Instant::now();
    while !matches!(client.turn(now), Some(Change::Joined(..))) {
        assert!(begin.elapsed() < LIMIT, "never asked");
        link.poll().unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn unshared_memory_is_logged_once() {
    let _one = listening();
    let server = Server::new(null(None), 1, 1);
    // The server sees only zeroes, while the guest writes to a separate copy.
    let (wire, memory) = server.guest(USUAL);
    let ring = Ring::new(&memory, 0x2_0000);
    assert!(wire.start(0, &ring));
    ring.kick();
    hears("it is not shared");
    assert_eq!(said("share=on"), 1);
    drop(wire);
}

/// A QEMU whose guest's memory is not shared at all asks for the memory of the in-flight tracking.
/// It finds no file of the guest's memory to send, and hangs up.
#[test]
fn missing_memory_is_logged_once_with_remedy() {
    let _one = listening();
    let server = Server::new(null(None), 2, 1);
    for _ in 0..3 {
        let wire = server.connect();
        wire.negotiate(USUAL);
        assert_eq!(wire.ask_word(code::GET_QUEUE_NUM), 2);
        let mut shape = words(&[0, 0]);
        shape.extend([1, 0, 128, 0, 0, 0, 0, 0]);
        let answer = wire.ask(GET_INFLIGHT_FD, &shape).unwrap();
        let marks = Memory::new(0, word(&answer, 0));
        assert!(wire.set(SET_INFLIGHT_FD, &answer, &[marks.file.as_fd()]));
        // Front ends may stay, too, and send no more messages.
        hears("never came");
    }
    hears("session 3 ended");
    assert_eq!((said("never came"), said("share=on"), said("--queues")), (1, 1, 0));
    // A front end that has given memory, and ran no ring, lacks none.
    let (wire, _memory) = server.guest(USUAL);
    drop(wire);
    hears("session 4 ended");
    assert_eq!(said("never came"), 1);
}

#[test]
fn refused_image_is_logged_in_one_message() {
    let _one = listening();
    let place = tempfile::tempdir().unwrap();
    let file = |name| {
        let directory = place.path().join(name);
        std::fs::create_dir(&directory).unwrap();
        let path = image(&directory, 1 << 20);
        Arc::new(FileEngine::open(&path, FileOptions::default()).unwrap())
    };
    let memory = Memory::new(0x10_0000, 0x20_0000);
    let first = Server::new(file("p"), 1, 1);
    let wire = connect(&first, &memory, USUAL_PROTOCOL);
    let (shape, kept) = get_inflight(&wire, 1, SIZE).unwrap();
    let second = Server::new(file("q"), 1, 1);
    let wire = connect(&second, &memory, USUAL_PROTOCOL);
    assert!(!set_inflight(&wire, &shape, &kept));
    assert!(wire.is_alive());
    assert_eq!((said("ERROR"), said("--danger-other-image"), said("WARN")), (1, 1, 0));
}

#[test]
fn outside_request_fails_alone_logged_once() {
    let _one = listening();
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    const OUTSIDE: u64 = 0x1_0000_0000;
    for slot in 0..3 {
        ring.build(slot, IN, 0, 512);
        ring.descriptor(3 * slot + 1, OUTSIDE, 512, 3, 3 * slot + 2);
        ring.offer(3 * slot);
        ring.publish();
        ring.kick();
        ring.wait(1);
        assert_eq!(ring.status(slot), 1, "an error");
        // The others continue.
        ring.submit(10 + slot, IN, 0, 512);
        ring.wait(1);
        assert_eq!(ring.status(10 + slot), 0);
    }
    hears(
        "a buffer at 0x100000000, which is not in the memory that the front end shares \
         (0x100000-0x2fffff)",
    );
    assert_eq!(said("memory-backend-ram"), 1);
    // Without a place for the status, no answer is possible.
    ring.build(4, IN, 0, 512);
    ring.descriptor(14, OUTSIDE, 1, 2, 0);
    ring.offer(12);
    ring.publish();
    ring.kick();
    assert!(signalled(&ring.err, LIMIT));
    hears("queue 0 is stopped: its driver broke the rules, or memory is not shared");
    assert_eq!(said("memory-backend-ram"), 2);
    drop(wire);
}

#[test]
fn descriptor_file_name_stays_in_one_line() {
    let _one = listening();
    let server = Server::new(null(None), 1, 1);
    let (wire, _memory) = server.guest(USUAL);
    let directory = tempfile::tempdir().unwrap();
    let file = std::fs::File::create(directory.path().join("a\n2026 ERROR b\x1b[2J")).unwrap();
    assert!(!wire.fd(code::SET_VRING_KICK, 0, &file));
    hears("is not an eventfd but");
    assert_eq!(said("2026 ERROR b"), said("is not an eventfd but"));
    assert_eq!(said("\x1b"), 0);
}

#[test]
fn idle_guest_memory_is_not_called_unshared() {
    let _one = listening();
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    // A guest that runs has written somewhere.
    memory.put(0x400, b"BIOS data");
    let ring = Ring::new(&memory, 0x2_0000);
    assert!(wire.start(0, &ring));
    ring.kick();
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(said("not shared"), 0);
    drop(wire);
}

/// The listener's own removal at its end is not logged.
#[test]
fn removed_socket_file_is_logged_once() {
    let _one = listening();
    for replaced in [false, true] {
        let server = Server::new(null(None), 1, 1);
        let path = server.path();
        let name = path.display().to_string();
        let _watch = Vanishing::watch([path.as_path()]);
        // Another mode is no news.
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))
            .unwrap();
        match replaced {
            true => {
                let other = path.with_file_name("other");
                std::fs::write(&other, "").unwrap();
                std::fs::rename(&other, &path).unwrap();
            }
            false => std::fs::remove_file(&path).unwrap(),
        }
        hears(&format!("{name}: the socket's file was removed or replaced"));
        assert_eq!(said(&name), 1);
        server.stop();
    }
    let server = Server::new(null(None), 1, 1);
    let name = server.path().display().to_string();
    let path = server.path();
    let watch = Vanishing::watch([path.as_path()]);
    watch.end();
    server.stop();
    server.listener.close();
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(said(&name), 0);
}
