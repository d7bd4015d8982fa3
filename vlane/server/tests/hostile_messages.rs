//! A front end that sends malformed messages, or falls silent, ends its own session at most. The
//! server does not panic or hang, and the next front end is served.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod common;

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

/// xorshift64*: enough to make garbage, and the same every time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

#[test]
fn garbage_ends_its_own_session_only() {
    let server = Server::new(null(None), 2, 1);
    let mut noise = Noise(1);
    for _ in 0..200 {
        let wire = server.connect();
        let len = 1 + noise.below(300);
        let _ = wire.raw(&noise.bytes(len), &[]);
    }
    server.serves_the_next();
}

/// Every message there is and some there are not, with bodies of any size and content and any
/// descriptors, before and after a negotiation.
#[test]
fn any_message_with_any_body_is_survived() {
    let server = Server::new(null(None), 2, 1);
    let fds: Vec<OwnedFd> = (0..4).map(|_| event()).collect();
    let file = Memory::new(0, 0x1_0000).file;
    let mut noise = Noise(2);
    for session in 0..150 {
        let wire = server.connect();
        if session % 3 > 0 {
            wire.negotiate(USUAL);
        }
        for _ in 0..20 {
            let code = noise.below(50) as u32;
            let len = [0, 8, 8, 16, 24, 40, 40, 56, 104][noise.below(9) as usize];
            let mut body = noise.bytes(len);
            // Mostly small numbers, which go further than noise does.
            if noise.below(4) > 0 {
                body.iter_mut()
                    .enumerate()
                    .filter(|(at, _)| at % 4 > 1)
                    .for_each(|(_, byte)| *byte = 0);
                body.chunks_mut(8).for_each(|chunk| chunk[0] %= 4);
            }
            let mut with: Vec<BorrowedFd<'_>> = Vec::new();
            match noise.below(5) {
                0 => with.push(file.as_fd()),
                1 => with.push(fds[0].as_fd()),
                2 => with.extend(fds.iter().map(AsFd::as_fd)),
                _ => {}
            }
            let flags = if noise.below(2) == 0 { 8 } else { 0 };
            if wire.raw(&Wire::message(code, flags, &body), &with).is_err() {
                break;
            }
        }
    }
    server.serves_the_next();
}

#[test]
fn half_a_message_ends_the_session() {
    let server = Server::new(null(None), 1, 1);
    let whole = Wire::message(code::SET_VRING_ADDR, 0, &[0; 40]);
    for len in [1, 3, 4, 11, 12, 13, 51] {
        let wire = server.connect();
        wire.raw(&whole[..len], &[]).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    server.serves_the_next();
}

#[test]
fn server_stops_in_the_middle_of_message() {
    // A body that has begun must come whole: the message layer ends the session otherwise.
    for len in [1, 11, 12] {
        let server = Server::new(null(None), 1, 1);
        let (wire, memory) = server.guest(USUAL);
        let mut ring = Ring::new(&memory, 0);
        assert!(wire.start(0, &ring));
        wire.raw(&Wire::message(code::SET_VRING_ADDR, 0, &[0; 40])[..len], &[]).unwrap();
        // Its rings are served meanwhile.
        ring.submit(0, IN, 0, 512);
        ring.wait(1);
        assert!(server.stop() < LIMIT / 2);
    }
}

#[test]
fn server_stops_with_unread_answers() {
    let server = Server::new(null(None), 1, 1);
    let wire = server.connect();
    wire.stream.set_nonblocking(true).unwrap();
    let question = Wire::message(code::GET_FEATURES, 0, &[]);
    let begin = Instant::now();
    // Flood until neither side takes any more.
    while begin.elapsed() < Duration::from_secs(1) {
        if wire.raw(&question, &[]).is_err() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    assert!(server.stop() < LIMIT / 2);
}

#[test]
fn oversized_messages_end_the_session_at_once() {
    let server = Server::new(null(None), 1, 1);
    for size in [0x1001u32, 0x10_0000, u32::MAX] {
        let wire = server.connect();
        wire.raw(&halves(&[code::SET_MEM_TABLE, 1, size]), &[]).unwrap();
        assert!(wire.is_hung_up(LIMIT), "{size:#x}");
    }
    for flags in [0u32, 2, 3, 5, 0x1001] {
        let wire = server.connect();
        wire.raw(&halves(&[code::GET_FEATURES, flags, 0]), &[]).unwrap();
        assert!(wire.is_hung_up(LIMIT), "flags {flags:#x}");
    }
    server.serves_the_next();
}

#[test]
//= vhost-user VHOST_USER_PROTOCOL_F_REPLY_ACK, test
//# This indicates that the back-end MUST respond with a Payload VhostUserMsg indicating success or
//# failure.
fn wrong_descriptor_counts_are_refused() {
    let server = Server::new(null(None), 1, 1);
    server.serves_the_next();
    let before = open_descriptors();
    let memory = Memory::new(0x10_0000, 0x2_0000);
    let fds: Vec<OwnedFd> = (0..40).map(|_| event()).collect();
    let some = |count: usize| fds[..count].iter().map(AsFd::as_fd).collect::<Vec<_>>();
    let region = words(&[0, memory.guest, memory.size, memory.user, 0]);
    let mut table = words(&[2]);
    table.extend(words(&[memory.guest, 0x1000, memory.user, 0]));
    table.extend(words(&[memory.guest + 0x1000, 0x1000, memory.user + 0x1000, 0]));
    let cases: Vec<(u32, Vec<u8>, Vec<usize>)> = vec![
        (code::SET_VRING_KICK, words(&[0]), vec![0, 2]),
        (code::SET_VRING_CALL, words(&[0]), vec![0, 2]),
        (code::SET_VRING_ERR, words(&[0x100]), vec![1]),
        (code::ADD_MEM_REG, region, vec![0, 2]),
        (code::SET_MEM_TABLE, table, vec![0, 1, 3]),
        (code::SET_LOG_BASE, words(&[4096, 0]), vec![0, 2]),
        (code::SET_BACKEND_REQ_FD, Vec::new(), vec![0, 2]),
        (code::GET_FEATURES, Vec::new(), vec![1]),
        (code::SET_VRING_NUM, halves(&[0, 64]), vec![1]),
    ];
    for (code, body, counts) in &cases {
        for count in counts {
            let wire = server.connect();
            wire.negotiate(USUAL);
            let sent = wire.raw(&Wire::message(*code, 8, body), &some(*count));
            let accepted =
                sent.is_ok() && wire.reply(*code).is_some_and(|body| word(&body, 0) == 0);
            assert!(!accepted, "message {code} with {count} descriptors");
        }
    }
    // More than the message layer takes at once: it closes them all, and waits for a message that
    // is whole.
    for count in [33, 40] {
        let wire = server.connect();
        wire.tell(code::SET_VRING_KICK, &words(&[0]), &some(count));
        std::thread::sleep(Duration::from_millis(20));
    }
    server.serves_the_next();
    drop(fds);
    assert!(has_few_descriptors(before + 20), "descriptors were leaked");
}

#[test]
fn non_eventfd_descriptors_are_refused() {
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    let file = tempfile::tempfile().unwrap();
    let (socket, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
    let null = File::open("/dev/null").unwrap();
    for (what, fd) in [
        ("pipe", pipe.as_fd()),
        ("file", file.as_fd()),
        ("socket", socket.as_fd()),
        ("null", null.as_fd()),
    ] {
        for code in [code::SET_VRING_KICK, code::SET_VRING_CALL, code::SET_VRING_ERR] {
            // User-Mode Linux is called through a socket.
            let may_be = code == code::SET_VRING_CALL && what == "socket";
            assert_eq!(wire.fd(code, 0, fd), may_be, "message {code}: a {what} for an eventfd");
        }
    }
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    ring.submit(0, IN, 0, 512);
    ring.wait(1);
}

#[test]
fn impossible_memory_is_refused_old_stays() {
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    let max = u64::MAX;
    let file = Memory::new(0, 0x1_0000).file;
    for (guest, size, user, offset) in [
        (memory.guest, 0x1000, 0x1000, 0),
        (memory.guest - 0x1000, 0x2000, 0x1000, 0),
        (memory.guest + memory.size - 1, 0x1000, 0x1000, 0),
        (0x8000_0000, 0x1_0001, 0x1000, 0),
        (0x8000_0000, 0x1_0000, 0x1000, 0x1000),
        (0x8000_0000, 0x1000, 0x1000, max - 0xfff),
        (0x8000_0000, 0, 0x1000, 0),
    ] {
        let region = words(&[0, guest, size, user, offset]);
        assert!(
            !wire.set(code::ADD_MEM_REG, &region, &[file.as_fd()]),
            "{guest:#x} {size:#x} {offset:#x}"
        );
    }
    ring.submit(0, IN, 0, 512);
    ring.wait(1);
    assert!(wire.is_alive());
    drop(ring);
    drop(wire);
    // The message layer ends the session for what overflows by itself.
    for (guest, size, user, offset) in [
        (max, 0x1000, 0x1000, 0),
        (0x8000_0000, max, 0x1000, 0),
        (0x8000_0000, 0x1000, max - 0x800, 0),
        (max - 0xfff, 0x1000, 0x1000, 0),
    ] {
        let wire = server.connect();
        wire.negotiate(USUAL);
        let region = words(&[0, guest, size, user, offset]);
        assert!(
            !wire.set(code::ADD_MEM_REG, &region, &[file.as_fd()]),
            "{guest:#x} {size:#x} {user:#x}"
        );
    }
    // No file of memory at all.
    let wire = server.connect();
    wire.negotiate(USUAL);
    let region = words(&[0, 0x8000_0000, 0x1000, 0x1000, 0]);
    assert!(!wire.set(code::ADD_MEM_REG, &region, &[event().as_fd()]));
    assert!(!wire.set(code::ADD_MEM_REG, &region, &[File::open("/").unwrap().as_fd()]));
}

#[test]
fn endless_refusals_end_the_session() {
    let server = Server::new(null(None), 1, 1);
    let wire = server.connect();
    wire.negotiate(USUAL);
    let refused = (0..1000)
        .take_while(|_| wire.try_set(code::SET_VRING_NUM, &halves(&[0, 0]), &[]).is_some())
        .count();
    assert!((10..200).contains(&refused), "{refused}");
    server.serves_the_next();
}

/// An eventfd that is full blocks its writers.
fn full() -> OwnedFd {
    let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    rustix::io::write(&fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    fd
}

fn fill(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0u8; 8]);
    rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
}

/// Two rings on one thread, with full call descriptors; `end` must come back.
fn with_full_calls(end: impl FnOnce(&Server, Wire, &Memory)) {
    let server = Server::new(null(None), 2, 1);
    let (wire, memory) = server.guest(USUAL);
    for index in [0, 1] {
        let mut ring = Ring::new(&memory, u64::from(index) * 0x2_0000);
        // Blocking, and empty for the start, which writes it once.
        ring.call = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert!(wire.start(index, &ring));
        if index == 1 {
            fill(&ring.call);
            ring.submit(0, IN, 0, 512);
            // The thread is stuck in its signal.
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    end(&server, wire, &memory);
}

#[test]
fn full_call_descriptor_does_not_delay_stop() {
    with_full_calls(|server, _wire, _| assert!(server.stop() < LIMIT / 2));
}

#[test]
fn full_call_descriptor_does_not_delay_next() {
    with_full_calls(|server, wire, _| {
        drop(wire);
        server.serves_the_next();
    });
}

#[test]
fn full_call_descriptor_spares_other_ring() {
    with_full_calls(|_, wire, _| {
        // Queue 0 shares its thread with the stuck one.
        assert!(wire.fd(code::SET_VRING_CALL, 0, event()));
        assert!(wire.get_base(0).is_some());
        assert!(wire.set_features(USUAL | LOG_ALL) || wire.is_alive());
    });
}

#[test]
fn full_call_descriptor_is_replaced() {
    with_full_calls(|_, wire, _| {
        assert!(wire.fd(code::SET_VRING_CALL, 1, event()));
        assert!(wire.get_base(1).is_some());
    });
}

#[test]
fn ring_starts_with_full_call_descriptor() {
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    ring.call = full();
    assert!(wire.start(0, &ring));
    assert!(wire.is_alive());
    ring.submit(0, IN, 0, 512);
    assert!(ring.is_answered());
}

#[test]
fn full_error_descriptor_does_not_block_session() {
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    ring.err = full();
    assert!(wire.start(0, &ring));
    // A jump of the index breaks the ring.
    ring.next = 1000;
    ring.publish();
    ring.kick();
    std::thread::sleep(Duration::from_millis(50));
    assert!(wire.is_alive());
}

/// A look for room does not hold for the moment after it.
#[test]
fn racing_error_descriptor_does_not_block_session() {
    const ROUNDS: u64 = 400;
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    // Blocking: the flag is the front end's to set, whenever it likes.
    ring.err = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let err = ring.err.try_clone().unwrap();
    // The round that is to be filled, and the last that was.
    let (go, done) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (signal, filled) = (Arc::clone(&go), Arc::clone(&done));
    let filler = std::thread::spawn(move || {
        let mut noise = Noise(3);
        for round in 1..=ROUNDS {
            while signal.load(Ordering::Acquire) != round {
                std::hint::spin_loop();
            }
            let (begin, delay) = (Instant::now(), Duration::from_nanos(noise.below(60_000)));
            while begin.elapsed() < delay {
                std::hint::spin_loop();
            }
            // Waits while a signal is in the counter; the other thread takes it out.
            rustix::io::write(&err, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            filled.store(round, Ordering::Release);
        }
    });
    assert!(wire.start(0, &ring));
    for round in 1..=ROUNDS {
        // A jump of the index breaks the ring.
        ring.next = 1000;
        ring.publish();
        go.store(round, Ordering::Release);
        ring.kick();
        // The counter is not read before the answer.
        let mut fds = [PollFd::new(&ring.err, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&timespec(LIMIT))).unwrap();
        assert!(wire.get_base(0).is_some(), "stuck in round {round}");
        while done.load(Ordering::Acquire) != round {
            signalled(&ring.err, Duration::ZERO);
        }
        signalled(&ring.err, Duration::ZERO);
        ring.next = 0;
        ring.publish();
        assert!(wire.start(0, &ring));
    }
    filler.join().unwrap();
}

/// The kind of a descriptor does not depend on /proc: it may not be mounted in a sandbox.
#[test]
fn descriptor_kinds_are_known_without_proc() {
    const TOLD_APART: &str = "non_eventfd_descriptors_are_refused";
    if !rustix::process::geteuid().is_root() {
        return vlane_testing::skip("only root can leave /proc behind");
    }
    // The sanitizer's search for leaks cannot do without /proc, and its options are read from
    // there, not from the environment.
    let script = "mount -t tmpfs none /proc && test ! -e /proc/self && mkdir /proc/self && printf \
                  'ASAN_OPTIONS=detect_leaks=0\\0' >/proc/self/environ && exec \"$0\" --exact \
                  \"$1\"";
    let program = std::env::current_exe().unwrap();
    let run = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .arg(program)
        .arg(TOLD_APART)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("1 passed"), "{run:?}");
}

#[test]
fn bad_backend_channel_is_harmless() {
    let server = Server::new(null(None), 1, 1);
    let wire = server.connect();
    wire.negotiate(USUAL);
    let (pipe, _other) = rustix::pipe::pipe().unwrap();
    assert!(!wire.set(code::SET_BACKEND_REQ_FD, &[], &[pipe.as_fd()]));
    server.listener.size_changed();
    drop(wire);
    let wire = server.connect();
    wire.negotiate(USUAL);
    let (channel, _peer) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(wire.set(code::SET_BACKEND_REQ_FD, &[], &[channel.as_fd()]));
    let begin = Instant::now();
    (0..20_000).for_each(|_| server.listener.size_changed());
    assert!(begin.elapsed() < LIMIT);
    assert!(wire.is_alive());
}
