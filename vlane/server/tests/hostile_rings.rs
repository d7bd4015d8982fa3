//! A driver may break the rules of its ring, or take its memory away. The ring then stops, and the
//! front end is informed through the error descriptor. All else continues.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::*;
use vlane_engine::Engine;
use vlane_engine::file::{Cache, FileEngine, FileOptions};

/// A way to break a ring that was sound so far.
type Break = fn(&mut Ring<'_>);

const BREAKS: [(&str, Break); 12] = [
    ("the available index jumps", |ring| ring.next = ring.next.wrapping_add(1000)),
    ("the available index runs backwards", |ring| ring.next = ring.next.wrapping_sub(1)),
    ("a head beyond the table", |ring| ring.offer(SIZE)),
    ("a head of 65535", |ring| ring.offer(u16::MAX)),
    ("a next descriptor beyond the table", |ring| {
        ring.descriptor(1, ring.memory.guest + ring.at + DATA, 512, 2 | 1, SIZE);
        ring.offer(0);
    }),
    ("a chain that loops", |ring| {
        ring.descriptor(2, ring.memory.guest + ring.at + STATUS, 1, 2 | 1, 1);
        ring.offer(0);
    }),
    ("a descriptor that is its own next", |ring| {
        ring.descriptor(0, ring.memory.guest + ring.at + HEADERS, 16, 1, 0);
        ring.offer(0);
    }),
    ("a status byte outside memory", |ring| {
        ring.descriptor(2, 0x10, 1, 2, 0);
        ring.offer(0);
    }),
    ("a last buffer that ends beyond 64 bits", |ring| {
        ring.descriptor(2, u64::MAX - 100, 4096, 2, 0);
        ring.offer(0);
    }),
    ("a last buffer of 4 GiB", |ring| {
        ring.descriptor(2, ring.memory.guest, u32::MAX, 2, 0);
        ring.offer(0);
    }),
    ("no byte to write a status to", |ring| {
        ring.descriptor(0, ring.memory.guest + ring.at + HEADERS, 16, 0, 0);
        ring.offer(0);
    }),
    ("readable after writable", |ring| {
        ring.descriptor(0, ring.memory.guest + ring.at + HEADERS, 16, 2 | 1, 1);
        ring.descriptor(1, ring.memory.guest + ring.at + DATA, 512, 1, 2);
        ring.offer(0);
    }),
];

#[test]
fn broken_ring_is_reported_others_continue() {
    // Both rings on one thread, then each on its own.
    for threads in [1, 2] {
        let server = Server::new(null(None), 2, threads);
        let (wire, memory) = server.guest(USUAL);
        let mut sound = Ring::new(&memory, 0x2_0000);
        assert!(wire.start(1, &sound));
        for (what, break_it) in BREAKS {
            let mut ring = Ring::new(&memory, 0);
            // A fresh ring over what the last one left.
            memory.put(0, &vec![0; RING as usize]);
            assert!(wire.start(0, &ring), "{what}");
            ring.submit(0, IN, 0, 512);
            ring.wait(1);
            ring.build(0, IN, 0, 512);
            break_it(&mut ring);
            ring.publish();
            ring.kick();
            assert!(signalled(&ring.err, LIMIT), "{what}: nobody was told");
            assert!(!signalled(&ring.err, Duration::from_millis(5)), "{what}: told more than once");
            sound.submit(0, IN, 0, 512);
            sound.wait(1);
            assert!(wire.is_alive(), "{what}");
            // Kicks of a broken ring have no effect; it can be stopped, and started again.
            ring.kick();
            assert!(wire.get_base(0).is_some(), "{what}");
        }
    }
}

#[test]
fn broken_ring_answers_requests_in_flight() {
    let server = Server::new(null(Some(Duration::from_millis(80))), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    (0..4).for_each(|slot| ring.submit(slot, IN, 0, 512));
    std::thread::sleep(Duration::from_millis(20));
    ring.offer(SIZE);
    ring.publish();
    ring.kick();
    assert!(signalled(&ring.err, LIMIT));
    ring.wait(4);
    assert!(wire.get_base(0).is_some());
}

/// Addresses in missing memory wait for that memory instead.
#[test]
fn impossible_ring_addresses_are_refused() {
    let server = Server::new(null(None), 1, 1);
    let memory = Memory::new(0x10_0000, 0x20_0000);
    let (user, end) = (memory.user, memory.user + memory.size);
    let give = |[desc, used, avail]: [u64; 3]| {
        let wire = server.connect();
        wire.negotiate(USUAL);
        let ring = Ring::new(&memory, 0);
        assert!(wire.add_memory(&memory) && wire.vring(code::SET_VRING_NUM, 0, SIZE.into()));
        assert!(
            wire.fd(code::SET_VRING_KICK, 0, &ring.kick)
                && wire.vring(code::SET_VRING_ENABLE, 0, 1)
        );
        let mut body = halves(&[0, 0]);
        body.extend(words(&[desc, used, avail, 0]));
        let accepted = wire.set(code::SET_VRING_ADDR, &body, &[]);
        ring.kick();
        (accepted, wire)
    };
    for (what, addresses) in [
        ("descriptor table misaligned", [user + 8, user + USED, user + AVAIL]),
        ("used ring misaligned", [user, user + USED + 2, user + AVAIL]),
        ("available ring misaligned", [user, user + USED, user + AVAIL + 1]),
        ("descriptor table over the end", [end - 16, user + USED, user + AVAIL]),
        ("used ring over the end", [user, end - 8, user + AVAIL]),
    ] {
        assert!(!give(addresses).0, "{what}");
    }
    // Some of it, or all, elsewhere: that memory may still come. Until then the ring does not run.
    for addresses in [[user, user + USED, 0x1000], [user, u64::MAX - 3, user + AVAIL]] {
        let (accepted, wire) = give(addresses);
        assert!(accepted && wire.is_alive());
    }
    let (accepted, wire) = give([0x1000, 0x3000, 0x2000]);
    assert!(accepted && wire.is_alive());
    let mut ring = Ring::new(&memory, 0x2_0000);
    assert!(wire.start(0, &ring));
    ring.submit(0, IN, 0, 512);
    ring.wait(1);
    assert!(!wire.addresses(0, &Ring::new(&memory, 0), None), "a running ring does not move");
}

#[test]
fn truncated_memory_stops_idle_ring() {
    let server = Server::new(null(None), 1, 1);
    for size in [0, 0x1000] {
        let (wire, memory) = server.guest(USUAL);
        let mut ring = Ring::new(&memory, 0);
        assert!(wire.start(0, &ring));
        ring.submit(0, IN, 0, 512);
        ring.wait(1);
        memory.file.set_len(size).unwrap();
        ring.kick();
        assert!(signalled(&ring.err, LIMIT), "truncated to {size}");
        assert!(wire.is_alive());
        assert!(wire.get_base(0).is_some());
    }
    server.serves_the_next();
}

/// The ring stays where it is, the buffers are lost.
#[test]
fn truncated_memory_stops_only_loaded_ring() {
    let directory = tempfile::tempdir().unwrap();
    let path = image(directory.path(), 4 << 20);
    let file = |cache| {
        let options = FileOptions { cache, ..FileOptions::default() };
        FileEngine::open(&path, options).ok().map(|engine| Arc::new(engine) as Arc<dyn Engine>)
    };
    let memory_backed = std::path::Path::new("/dev/shm")
        .is_dir()
        .then(|| tempfile::tempdir_in("/dev/shm").unwrap());
    let mapped = memory_backed.as_ref().map(|directory| {
        let path = image(directory.path(), 4 << 20);
        std::fs::write(&path, vec![7; 4 << 20]).unwrap();
        Arc::new(FileEngine::open(&path, FileOptions::default()).unwrap()) as Arc<dyn Engine>
    });
    let engines: [Option<Arc<dyn Engine>>; 5] = [
        Some(null(None)),
        Some(null(Some(Duration::from_millis(1)))),
        mapped,
        file(Cache::Writeback),
        // Only after the earlier server is closed: images are locked.
        None,
    ];
    let truncate = |engine: Arc<dyn Engine>| {
        let server = Server::new(engine, 2, 2);
        for round in 0..6u64 {
            let (wire, memory) = server.guest(USUAL);
            let bystander = Memory::new(0x4000_0000, 0x2_0000);
            assert!(wire.add_memory(&bystander));
            let mut ring = Ring::new(&memory, 0);
            let mut sound = Ring::new(&bystander, 0);
            assert!(wire.start(0, &ring) && wire.start(1, &sound));
            for slot in 0..SLOTS {
                ring.build(slot, if slot % 2 == 0 { IN } else { OUT }, u64::from(slot) * 8, 4096);
            }
            for batch in 0..4 {
                (0..SLOTS).for_each(|slot| ring.offer(slot * 3));
                ring.publish();
                ring.kick();
                if batch < 3 {
                    ring.wait(SLOTS.into());
                }
            }
            std::thread::sleep(Duration::from_micros(round * 50));
            let all = round % 2 == 0;
            memory.file.set_len(if all { 0 } else { DATA + 0x3000 }).unwrap();
            ring.kick();
            // The loss of a buffer only shows at the next access.
            let limit = if all { LIMIT } else { Duration::from_millis(100) };
            assert!(signalled(&ring.err, limit) || !all, "{round}: nobody was told");
            sound.submit(0, IN, 0, 512);
            sound.wait(1);
            assert!(wire.get_base(0).is_some() && wire.is_alive());
            drop(wire);
        }
        server.serves_the_next();
    };
    engines.into_iter().flatten().for_each(&truncate);
    if let Some(direct) = file(Cache::None) {
        truncate(direct);
    }
}

#[test]
fn truncated_dirty_log_is_harmless() {
    use std::os::fd::AsFd;
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let log = Memory::new(0, 1 << 20);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    wire.raw(&Wire::message(code::SET_LOG_BASE, 0, &words(&[1 << 20, 0])), &[log.file.as_fd()])
        .unwrap();
    assert!(wire.reply(code::SET_LOG_BASE).is_some());
    assert!(wire.set_features(USUAL | LOG_ALL));
    ring.submit(0, IN, 0, 4096);
    ring.wait(1);
    log.file.set_len(0).unwrap();
    for _ in 0..10 {
        ring.submit(0, IN, 0, 4096);
        ring.wait(1);
    }
    assert!(wire.is_alive());
}
