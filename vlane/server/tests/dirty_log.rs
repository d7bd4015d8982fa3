//! Live migration: while logging is on, exactly the pages that the back end writes are marked.
//! Marking begins when the front end's order is confirmed.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod common;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::*;
use rustix::fs::{MemfdFlags, memfd_create};
use vlane_driver::ring::{Arena, BlkOptions, BlkQueue, Format, Request, RequestKind};

/// A dirty bitmap for the first 4 GiB plus 64 MiB, from a byte of its file on.
struct Log(File, u64);

const BYTES: u64 = ((1 << 32) + (64 << 20)) / 4096 / 8;

impl Log {
    fn new() -> Log {
        Log::at(0)
    }

    fn at(offset: u64) -> Log {
        let file = File::from(memfd_create("log", MemfdFlags::CLOEXEC).unwrap());
        file.set_len(offset + BYTES).unwrap();
        Log(file, offset)
    }

    fn give(&self, wire: &Wire) {
        wire.raw(
            &Wire::message(code::SET_LOG_BASE, 0, &words(&[BYTES, self.1])),
            &[self.0.as_fd()],
        )
        .unwrap();
        assert!(wire.reply(code::SET_LOG_BASE).is_some());
    }

    /// The pages that are marked, as guest physical addresses; clears them.
    fn take(&self) -> BTreeSet<u64> {
        let mut bytes = vec![0; BYTES as usize];
        self.0.read_exact_at(&mut bytes, self.1).unwrap();
        self.0.write_all_at(&vec![0; BYTES as usize], self.1).unwrap();
        let bits = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
        bits.flat_map(|(at, byte)| {
            (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| at * 8 + bit)
        })
        .map(|page| page as u64 * 4096)
        .collect()
    }
}

/// No page is marked while logging is off.
#[test]
fn exactly_written_pages_are_marked() {
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0x2_0000);
    let start = memory.guest + ring.at;
    let at = |offset: u64| start + offset;
    let (used, status, data) = (at(USED), at(STATUS), |slot| at(Ring::data_at(slot)));
    assert!(wire.start(0, &ring));
    let mut act = |slot, kind, len| {
        ring.submit(slot, kind, 0, len);
        ring.wait(1);
        assert_eq!(ring.status(slot), 0);
        // The lane is asleep again: what it still had to mark is marked.
        std::thread::sleep(Duration::from_millis(30));
    };
    let log = Log::new();

    act(0, IN, 4096);
    log.give(&wire);
    act(0, IN, 4096);
    assert_eq!(log.take(), BTreeSet::new(), "a log alone logs nothing");

    assert!(wire.set_features(USUAL | LOG_ALL));
    act(1, IN, 4096);
    let rings_not_logged = log.take();
    assert_eq!(
        rings_not_logged,
        BTreeSet::from([status, data(1)]),
        "the ring's own log was not asked for"
    );

    // As QEMU does it: the addresses again, with the flag.
    let log_ring = |on: bool, ring: &Ring<'_>| assert!(wire.addresses(0, ring, on.then_some(used)));
    let other = Ring::new(&memory, 0x2_0000);
    log_ring(true, &other);
    std::thread::sleep(Duration::from_millis(30));
    log.take();
    act(2, IN, 4096);
    assert_eq!(log.take(), BTreeSet::from([used, status, data(2)]), "a read");
    act(3, OUT, 4096);
    assert_eq!(log.take(), BTreeSet::from([used, status]), "a write's data are the guest's own");
    act(4, FLUSH_REQUEST, 0);
    assert_eq!(log.take(), BTreeSet::from([used, status]), "a flush");
    act(5, GET_ID, 20);
    assert_eq!(log.take(), BTreeSet::from([used, status, data(5)]), "the serial number");

    assert!(wire.set_features(USUAL));
    log.take();
    act(6, IN, 4096);
    assert_eq!(log.take(), BTreeSet::new(), "off again");
}

#[test]
fn buffer_over_several_regions_is_marked_whole() {
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let more = Memory::new(0x4000_0000, 0x10_0000);
    assert!(wire.add_memory(&more));
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    let log = Log::new();
    log.give(&wire);
    assert!(wire.set_features(USUAL | LOG_ALL));
    ring.build(0, IN, 0, 4096);
    // 10000 bytes from the middle of a page on (not a multiple of 512: 9728).
    ring.descriptor(1, more.guest + 0x5800, 9728, 2 | 1, 2);
    ring.offer(0);
    ring.publish();
    ring.kick();
    ring.wait(1);
    assert_eq!(ring.status(0), 0);
    let pages = [0x5000, 0x6000, 0x7000].map(|at| more.guest + at);
    let status = memory.guest + STATUS;
    assert_eq!(log.take(), BTreeSet::from_iter(pages.into_iter().chain([status])));
}

#[test]
fn packed_ring_writes_are_marked() {
    let server = Server::new(null(None), 1, 1);
    let wire = server.connect();
    let features = USUAL | 1 << 34;
    wire.negotiate(features);
    let options = BlkOptions {
        format: Format::Packed,
        size: Some(64),
        depth: 4,
        data: 8192,
        segments: 1,
        indirect: false,
        event_idx: false,
    };
    let arena = Arena::new(1 << 32, 1 << 20).unwrap();
    let mut queue = BlkQueue::new(&arena, options).unwrap();
    let region = words(&[0, arena.base(), arena.size(), arena.user_addr(), 0]);
    assert!(wire.set(code::ADD_MEM_REG, &region, &[arena.fd().unwrap()]));
    let layout = queue.layout();
    let (kick, call) = (event(), event());
    let addresses = |log: bool| {
        let mut body = halves(&[0, u32::from(log)]);
        body.extend(words(
            &[layout.desc, layout.device, layout.driver].map(|at| arena.to_user(at)),
        ));
        body.extend(words(&[layout.device]));
        assert!(wire.set(code::SET_VRING_ADDR, &body, &[]));
    };
    assert!(
        wire.vring(code::SET_VRING_NUM, 0, 64) && wire.vring(code::SET_VRING_BASE, 0, 0x8000_8000)
    );
    addresses(false);
    assert!(wire.fd(code::SET_VRING_KICK, 0, &kick) && wire.fd(code::SET_VRING_CALL, 0, &call));
    assert!(wire.vring(code::SET_VRING_ENABLE, 0, 1));
    let log = Log::new();
    log.give(&wire);
    assert!(wire.set_features(features | LOG_ALL));
    addresses(true);
    std::thread::sleep(Duration::from_millis(30));
    log.take();
    let mut pages = |kind| {
        signalled(&call, Duration::ZERO);
        queue.submit(0, Request { kind, sector: 0, len: 8192, ioprio: 0 }).unwrap();
        queue.publish();
        rustix::io::write(&kick, &1u64.to_ne_bytes()).unwrap();
        queue.enable_interrupts();
        let mut done = Vec::new();
        while done.is_empty() {
            assert!(signalled(&call, LIMIT));
            queue.reap(&mut done).unwrap();
        }
        std::thread::sleep(Duration::from_millis(30));
        (log.take(), queue.data(0).unwrap().addr())
    };
    let page = |at: u64| at & !4095;
    let (marked, data) = pages(RequestKind::Read);
    for (what, at) in
        [("ring", layout.desc), ("event", layout.device), ("data", data), ("its end", data + 8191)]
    {
        assert!(marked.contains(&page(at)), "{what} at {at:#x} is not in {marked:x?}");
    }
    let (marked, _) = pages(RequestKind::Write);
    assert!(!marked.contains(&page(data)) && marked.contains(&page(layout.desc)), "{marked:x?}");
}

/// A page that is written after the confirmation and not marked is lost on the destination. So the
/// order must have reached the lanes, which are busy, before it is confirmed.
#[test]
fn no_write_after_confirmation_is_missed() {
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    let log = Log::new();
    log.give(&wire);
    let confirmed = AtomicBool::new(false);
    let status = memory.guest + STATUS;
    for round in 0..200 {
        confirmed.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let (confirmed, wire) = (&confirmed, &wire);
            scope.spawn(move || {
                std::thread::sleep(Duration::from_micros(round * 7 % 300));
                assert!(wire.set_features(USUAL | LOG_ALL));
                confirmed.store(true, Ordering::SeqCst);
            });
            let mut slot = 0;
            loop {
                let was_confirmed = confirmed.load(Ordering::SeqCst);
                slot = (slot + 1) % SLOTS;
                ring.submit(slot, IN, 0, 4096);
                ring.wait(1);
                if was_confirmed {
                    break;
                }
            }
            let data = memory.guest + Ring::data_at(slot);
            let marked = log.take();
            assert!(
                marked.contains(&data) && marked.contains(&status),
                "round {round}: {marked:x?}"
            );
        });
        assert!(wire.set_features(USUAL));
        log.take();
    }
}

#[test]
fn logging_marks_writes_already_in_flight() {
    let latency = Duration::from_millis(100);
    let server = Server::new(null(Some(latency)), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    // On a busy machine the read may be answered before the log is on: then again.
    for _ in 0..100 {
        let begin = Instant::now();
        ring.submit(7, IN, 0, 4096);
        std::thread::sleep(Duration::from_millis(20));
        let log = Log::new();
        log.give(&wire);
        assert!(wire.set_features(USUAL | LOG_ALL));
        let is_in_flight = begin.elapsed() < latency;
        ring.wait(1);
        if is_in_flight {
            assert!(log.take().contains(&(memory.guest + Ring::data_at(7))));
            return;
        }
        assert!(wire.set_features(USUAL));
    }
    panic!("the log is never on within {latency:?}");
}

/// Another process takes over in the middle of a migration.
fn goes_along(is_on: bool, offset: u64) {
    let (server, relief) = Server::relievable(null(None));
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0x2_0000);
    let at = |offset: u64| memory.guest + 0x2_0000 + offset;
    let (used, status, data) = (at(USED), at(STATUS), |slot| at(Ring::data_at(slot)));
    assert!(wire.start(0, &ring));
    let log = Log::at(offset);
    log.give(&wire);
    let begin = || {
        assert!(wire.set_features(USUAL | LOG_ALL));
        assert!(wire.addresses(0, &Ring::new(&memory, 0x2_0000), Some(used)));
    };
    if is_on {
        begin();
    }
    let next = server.hand_over(&relief, null(None));
    if !is_on {
        begin();
    }
    std::thread::sleep(Duration::from_millis(30));
    log.take();
    let mut act = |slot, kind| {
        ring.submit(slot, kind, 0, 4096);
        ring.wait(1);
        assert_eq!(ring.status(slot), 0);
        // The lane is asleep again: what it still had to mark is marked.
        std::thread::sleep(Duration::from_millis(30));
        log.take()
    };
    assert_eq!(act(1, IN), BTreeSet::from([used, status, data(1)]), "a read");
    assert_eq!(act(2, OUT), BTreeSet::from([used, status]), "a write");
    assert!(wire.set_features(USUAL));
    log.take();
    assert_eq!(act(3, IN), BTreeSet::new(), "off again");
    drop(wire);
    next.serves_the_next();
}

#[test]
fn enabled_log_survives_a_takeover() {
    goes_along(true, 0);
    goes_along(true, 8192);
}

#[test]
fn disabled_log_survives_a_takeover() {
    goes_along(false, 8192);
}

/// An open question about the log would stall the front end.
#[test]
fn bad_log_ends_the_session() {
    let server = Server::new(null(None), 1, 1);
    let file = Arc::new(File::from(memfd_create("log", MemfdFlags::CLOEXEC).unwrap()));
    file.set_len(4096).unwrap();
    for (size, offset) in
        [(8192u64, 0u64), (0, 0), (4096, 4096), (4096, 1), (u64::MAX, 4096), (4096, u64::MAX)]
    {
        let (wire, _memory) = server.guest(USUAL);
        wire.raw(&Wire::message(code::SET_LOG_BASE, 0, &words(&[size, offset])), &[file.as_fd()])
            .unwrap();
        assert_eq!(wire.reply(code::SET_LOG_BASE), None, "{size:#x} bytes at {offset:#x}");
    }
    server.serves_the_next();
}
