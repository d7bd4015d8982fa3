//! Rings start and stop in any order, memory comes and goes under them, and no request is lost or
//! answered twice.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests may")]

mod common;

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::*;
use vlane_driver::ring::{Arena, BlkOptions, BlkQueue, Format, RequestKind};
use vlane_engine::{
    Channel, ChannelStats, Engine, EngineError, Geometry, Operation, Outcome, Status, Taken,
};

const PACKED: u64 = 1 << 34;

#[test]
//= vhost-user Ring states, test
//# While a ring is stopped, the back-end must not process the ring at all, regardless of whether it
//# is enabled or disabled.
fn rings_start_in_any_message_order() {
    let server = Server::new(null(None), 1, 1);
    type Step = fn(&Wire, &Ring<'_>) -> bool;
    let steps: [(&str, Step); 5] = [
        ("kick", |wire, ring| wire.fd(code::SET_VRING_KICK, 0, &ring.kick)),
        ("call", |wire, ring| wire.fd(code::SET_VRING_CALL, 0, &ring.call)),
        ("enable", |wire, _| wire.vring(code::SET_VRING_ENABLE, 0, 1)),
        ("addresses", |wire, ring| wire.addresses(0, ring, None)),
        ("memory", |wire, ring| wire.add_memory(ring.memory)),
    ];
    // Every order of five steps would be 120 sessions: every rotation of two orders, and some that
    // are known.
    let mut orders: Vec<Vec<usize>> = Vec::new();
    for shift in 0..5 {
        orders.push((0..5).map(|i| (i + shift) % 5).collect());
        orders.push((0..5).map(|i| (9 - i - shift) % 5).collect());
    }
    for order in orders {
        let wire = server.connect();
        wire.negotiate(USUAL);
        assert!(wire.vring(code::SET_VRING_NUM, 0, SIZE.into()));
        let memory = Memory::new(0x10_0000, 0x20_0000);
        let mut ring = Ring::new(&memory, 0);
        // A request from before the start: no further kick comes for it.
        ring.submit(0, IN, 0, 512);
        for step in &order {
            assert!(steps[*step].1(&wire, &ring), "{} in {order:?}", steps[*step].0);
        }
        assert_eq!(ring.wait(1), [0], "{order:?}");
        ring.submit(1, IN, 8, 4096);
        assert_eq!(ring.wait(1), [1], "{order:?}");
    }
}

#[test]
//= vhost-user Front-end message types, test
//# The message payload contains a memory region descriptor struct, describing a region of guest
//# memory which the back-end device must map in.
//= vhost-user Front-end message types, test
//# The message payload contains a memory region descriptor struct, describing a region of guest
//# memory which the back-end device must unmap.
fn running_rings_use_added_memory_only() {
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    let more = Memory::new(0x4000_0000, 0x10_0000);
    assert!(wire.add_memory(&more));
    // The header lies in the first region, the data in the second.
    ring.build(0, IN, 0, 4096);
    ring.descriptor(1, more.guest + 0x8000, 4096, 2 | 1, 2);
    ring.offer(0);
    ring.publish();
    ring.kick();
    ring.wait(1);
    assert_eq!(ring.status(0), 0);
    // As libblkio sends it: with a descriptor.
    let region = words(&[0, more.guest, more.size, more.user, 0]);
    assert!(wire.set(code::REM_MEM_REG, &region, &[more.file.as_fd()]));
    assert!(!wire.set(code::REM_MEM_REG, &region, &[]), "it is gone");
    ring.submit(1, IN, 0, 4096);
    ring.wait(1);
    assert_eq!(ring.status(1), 0, "what lies in the first region is served as before");
    // Without the region only a request there fails.
    ring.build(2, IN, 0, 4096);
    ring.descriptor(7, more.guest, 4096, 2 | 1, 8);
    ring.offer(6);
    ring.publish();
    ring.kick();
    ring.wait(1);
    assert_eq!(ring.status(2), 1, "VIRTIO_BLK_S_IOERR");
    ring.submit(3, IN, 0, 4096);
    ring.wait(1);
    assert_eq!((ring.status(3), wire.is_alive()), (0, true));
}

#[test]
fn memory_table_is_replaced_under_load() {
    let server = Server::new(null(Some(Duration::from_millis(2))), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    let more = Memory::new(0x4000_0000, 0x10_0000);
    for round in 0..20 {
        (0..8).for_each(|slot| ring.submit(slot, IN, 0, 4096));
        let table: &[&Memory] = if round % 2 == 0 { &[&memory, &more] } else { &[&memory] };
        assert!(wire.set_memory(table));
        ring.wait(8);
    }
    // A table without the rings stops them, and says so. The next table that has them, and a
    // restart, bring them back.
    assert!(!wire.set_memory(&[&more]));
    ring.submit(0, IN, 0, 512);
    assert!(signalled(&ring.err, LIMIT), "the ring is broken");
    assert!(wire.set_memory(&[&memory]));
    let base = wire.get_base(0).unwrap();
    assert_eq!(base, 160, "what was answered");
    assert!(wire.start_at(0, &ring, base));
    ring.wait(1);
}

/// vhost-user, "Ring states": without the protocol features there is no message to enable a ring.
#[test]
//= vhost-user Ring states, test
//# In addition, upon receiving a VHOST_USER_SET_FEATURES message from the front-end without
//# VHOST_USER_F_PROTOCOL_FEATURES set, the back-end must enable all rings immediately.
fn rings_start_enabled_without_protocol_features() {
    let server = Server::new(null(None), 1, 1);
    let wire = server.connect();
    wire.tell(code::SET_OWNER, &[], &[]);
    wire.ask_word(code::GET_FEATURES);
    wire.tell(code::SET_FEATURES, &(VERSION_1 | FLUSH).to_le_bytes(), &[]);
    let memory = Memory::new(0x10_0000, 0x20_0000);
    let mut ring = Ring::new(&memory, 0);
    let mut table = words(&[1]);
    table.extend(words(&[memory.guest, memory.size, memory.user, 0]));
    wire.tell(code::SET_MEM_TABLE, &table, &[memory.file.as_fd()]);
    wire.tell(code::SET_VRING_NUM, &halves(&[0, SIZE.into()]), &[]);
    let user = memory.user;
    let mut addresses = halves(&[0, 0]);
    addresses.extend(words(&[user, user + USED, user + AVAIL, 0]));
    wire.tell(code::SET_VRING_ADDR, &addresses, &[]);
    wire.tell(code::SET_VRING_KICK, &words(&[0]), &[ring.kick.as_fd()]);
    wire.tell(code::SET_VRING_CALL, &words(&[0]), &[ring.call.as_fd()]);
    ring.submit(0, IN, 0, 512);
    ring.wait(1);
    assert_eq!(wire.get_base(0), Some(1));
}

#[test]
fn disabled_ring_waits_until_enabled() {
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    for _ in 0..5 {
        assert!(wire.vring(code::SET_VRING_ENABLE, 0, 0));
        ring.submit(0, IN, 0, 512);
        assert!(ring.is_quiet());
        assert!(wire.vring(code::SET_VRING_ENABLE, 0, 1));
        ring.wait(1);
        assert!(wire.vring(code::SET_VRING_ENABLE, 0, 1), "twice is once");
    }
}

#[test]
//= vhost-user Ring states, test
//# While processing the rings (whether they are enabled or not), the back-end must support changing
//# some configuration aspects on the fly.
fn new_descriptors_replace_the_old_ones() {
    let server = Server::new(null(None), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    ring.submit(0, IN, 0, 512);
    ring.wait(1);
    for slot in 0..5 {
        ring.call = event();
        assert!(wire.fd(code::SET_VRING_CALL, 0, &ring.call));
        assert!(
            signalled(&ring.call, LIMIT),
            "an interrupt may have been lost with the old one: one more"
        );
        ring.kick = event();
        assert!(wire.fd(code::SET_VRING_KICK, 0, &ring.kick));
        ring.submit(slot, IN, 0, 512);
        ring.wait(1);
    }
    // Without a call descriptor the guest polls.
    assert!(wire.set(code::SET_VRING_CALL, &words(&[0x100]), &[]));
    ring.submit(0, IN, 0, 512);
    assert!(ring.is_answered());
    // Without a kick descriptor the lane does.
    assert!(wire.fd(code::SET_VRING_CALL, 0, &ring.call));
    assert!(wire.set(code::SET_VRING_KICK, &words(&[0x100]), &[]));
    ring.build(1, IN, 0, 512);
    ring.offer(3);
    ring.publish();
    ring.wait(1);
}

#[test]
fn reset_device_restarts_on_same_memory() {
    let server = Server::new(null(Some(Duration::from_millis(100))), 2, 1);
    let (wire, memory) = server.guest(USUAL);
    for round in 0..3 {
        let mut ring = Ring::new(&memory, 0x2_0000 * round);
        assert!(wire.start(0, &ring));
        (0..4).for_each(|slot| ring.submit(slot, IN, 0, 512));
        server.begins_reads(4 * (round + 1));
        assert!(wire.set(
            if round == 2 { code::RESET_OWNER } else { code::RESET_DEVICE },
            &[],
            &[]
        ));
        assert_eq!(ring.used().len(), 4, "what was in flight came to its end first");
        ring.submit(0, IN, 0, 512);
        assert!(ring.is_quiet(), "a reset ring does nothing");
        assert!(wire.set_features(USUAL));
    }
}

/// A queue of the driver's, split or packed, in memory that it owns.
struct Driven {
    arena: Arena,
    queue: BlkQueue,
    door: Door,
}

impl Driven {
    fn new(format: Format, event_idx: bool) -> Driven {
        let size = Some(if format == Format::Packed { 100 } else { 128 });
        let options = BlkOptions {
            format,
            size,
            depth: 32,
            data: 4096,
            segments: 1,
            indirect: false,
            event_idx,
        };
        let arena = Arena::new(1 << 32, options.arena_bytes().unwrap()).unwrap();
        let queue = BlkQueue::new(&arena, options).unwrap();
        Driven { arena, queue, door: Door::new() }
    }

    /// Negotiates for this queue, on its memory.
    fn connect(&self, server: &Server) -> Wire {
        let wire = server.connect();
        wire.negotiate(USUAL | PACKED | EVENT_IDX);
        assert!(wire.add_arena(&self.arena));
        wire
    }

    fn start(&self, wire: &Wire, base: u32) {
        assert!(wire.start_driven(0, &self.arena, self.queue.layout(), base, &self.door));
    }

    fn submit(&mut self, slots: std::ops::Range<u16>, kick: bool) {
        for slot in slots {
            let request = vlane_driver::ring::Request {
                kind: RequestKind::Read,
                sector: 0,
                len: 4096,
                ioprio: 0,
            };
            self.queue.submit(slot, request).unwrap();
        }
        if self.queue.publish() && kick {
            self.door.kick();
        }
    }

    fn reap(&mut self) -> usize {
        let mut done = Vec::new();
        self.queue.reap(&mut done).unwrap();
        assert!(done.iter().all(|completion| completion.status == 0));
        done.len()
    }

    fn wait(&mut self, count: usize) {
        let (begin, mut done) = (Instant::now(), 0);
        while done < count {
            if !self.queue.enable_interrupts() {
                assert!(
                    signalled(&self.door.call, LIMIT.saturating_sub(begin.elapsed())),
                    "{done} of {count}"
                );
            }
            done += self.reap();
        }
        assert_eq!(done, count);
    }
}

#[test]
//= vhost-user Migration, test
//# No further update must be done before rings are restarted.
fn stopped_ring_continues_from_its_base() {
    let latency = Duration::from_millis(60);
    let server = Server::new(null(Some(latency)), 1, 1);
    let mut reads = 0;
    for (format, event_idx) in [
        (Format::Split, false),
        (Format::Split, true),
        (Format::Packed, false),
        (Format::Packed, true),
    ] {
        let packed = if format == Format::Packed { PACKED } else { 0 };
        let wire = server.connect();
        wire.negotiate(USUAL | packed | if event_idx { EVENT_IDX } else { 0 });
        let mut driven = Driven::new(format, event_idx);
        assert!(wire.add_arena(&driven.arena));
        let mut base = if packed == 0 { 0 } else { 0x8000_8000 };
        // Enough rounds that a ring of 100 or 128 entries wraps more than once.
        for round in 0..8 {
            driven.start(&wire, base);
            if round > 0 {
                // Made available while the ring was stopped, without a kick.
                driven.wait(8);
                reads += 8;
            }
            let begin = Instant::now();
            driven.submit(8..32, true);
            reads += 24;
            server.begins_reads(reads);
            base = wire.get_base(0).unwrap();
            // Since they were submitted: a busy machine may have slept through all of it.
            assert!(begin.elapsed() >= latency, "it did not wait for what is in flight");
            assert_eq!(
                driven.reap(),
                24,
                "{format:?} round {round}: drained when the base is told"
            );
            driven.submit(0..8, true);
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(driven.reap(), 0, "a stopped ring takes nothing");
        }
        if packed == 0 {
            assert_eq!(base, (8 * 24 + 7 * 8) & 0xffff);
        }
    }
}

/// QEMU does not know the earlier back end's progress in a packed ring, and gives that back end's
/// first position.
#[test]
fn packed_ring_continues_in_next_back_end() {
    let mut driven = Driven::new(Format::Packed, true);
    for round in 0..8 {
        let server = Server::new(null(None), 1, 1);
        let wire = driven.connect(&server);
        driven.start(&wire, 0x8000_8000);
        if round > 0 {
            // Made available while there was no back end.
            driven.wait(5);
        }
        driven.submit(0..32, true);
        driven.wait(32);
        // Both ways to stop: the front end asks for the base, and cannot any more.
        if round % 2 == 0 {
            assert!(wire.get_base(0).is_some());
        }
        server.stop();
        driven.submit(0..5, true);
    }
}

/// A killed back end leaves no knowledge of the requests in flight. Its ring must not be guessed
/// at.
#[test]
fn packed_ring_of_killed_back_end_is_refused() {
    let mut driven = Driven::new(Format::Packed, true);
    let server = Server::new(null(None), 1, 1);
    let wire = driven.connect(&server);
    driven.start(&wire, 0x8000_8000);
    driven.submit(0..32, true);
    driven.wait(32);
    assert!(wire.get_base(0).is_some());
    // As a lane leaves it that is awake, and never sleeps or stops again.
    driven.submit(0..5, true);
    let at = driven.queue.layout().device - driven.arena.base();
    let memory = std::fs::File::from(driven.arena.fd().unwrap().try_clone_to_owned().unwrap());
    std::os::unix::fs::FileExt::write_all_at(&memory, &0x0001_7fffu32.to_le_bytes(), at).unwrap();
    driven.start(&wire, 0x8000_8000);
    assert!(signalled(&driven.door.err, LIMIT), "the front end is told");
    assert_eq!(driven.reap(), 0);
    assert!(wire.is_alive());
}

/// A front end may negotiate anew for the next driver (a firmware's split ring, then a kernel's
/// packed one).
#[test]
fn stopped_queue_continues_with_other_features() {
    let server = Server::new(null(None), 1, 1);
    let mut driven = Driven::new(Format::Packed, true);
    let wire = driven.connect(&server);
    let memory = Memory::new(0x10_0000, 0x20_0000);
    assert!(wire.add_memory(&memory));
    let mut base = 0x8000_8000;
    for round in 0..3 {
        driven.start(&wire, base);
        driven.submit(0..32, true);
        driven.wait(32);
        assert!(!wire.set_features(USUAL), "not while it runs");
        base = wire.get_base(0).unwrap();
        assert!(wire.set_features(USUAL));
        let mut ring = Ring::new(&memory, 0x2_0000 * round);
        assert!(wire.start(0, &ring));
        ring.submit(0, IN, 0, 512);
        ring.wait(1);
        assert_eq!(wire.get_base(0), Some(1));
        assert!(wire.set_features(USUAL | PACKED | EVENT_IDX));
    }
}

/// The region with the ring itself goes while it runs: what is in flight is answered first, then
/// the ring is broken.
#[test]
fn ring_without_memory_breaks_and_returns() {
    let server = Server::new(null(Some(Duration::from_millis(50))), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    (0..8).for_each(|slot| ring.submit(slot, IN, 0, 512));
    std::thread::sleep(Duration::from_millis(10));
    let region = words(&[0, memory.guest, memory.size, memory.user, 0]);
    assert!(!wire.set(code::REM_MEM_REG, &region, &[]), "a ring needs it");
    let answered = ring.used().len() as u32;
    ring.submit(8, IN, 0, 512);
    assert!(signalled(&ring.err, LIMIT));
    assert!(ring.is_quiet(), "nothing of the removed memory is touched");
    assert!(wire.add_memory(&memory));
    let base = wire.get_base(0).unwrap();
    assert_eq!(base, answered);
    assert!(wire.start_at(0, &ring, base));
    ring.wait(9 - answered as usize);
}

#[test]
fn every_ring_kind_carries_load() {
    use vlane_driver::{Limit, SessionOptions, Want, Workload};
    let server = Server::polling(null(None), 3, 2, Duration::from_micros(50));
    for (packed, event_idx, indirect) in [
        (Want::No, Want::No, Want::No),
        (Want::No, Want::Must, Want::Must),
        (Want::Must, Want::No, Want::Must),
        (Want::Must, Want::Must, Want::No),
    ] {
        let options = SessionOptions {
            queues: 3,
            depth: 16,
            packed,
            event_idx,
            indirect,
            ..Default::default()
        };
        let session = vlane_driver::Session::connect(&server.path(), &options).unwrap();
        let load = Workload { limit: Limit::Count(3000), ..Workload::default() };
        let report =
            vlane_driver::run(session, &load, &mut |_| std::ops::ControlFlow::Continue(()))
                .unwrap();
        assert_eq!((report.ios, report.errors.total()), (9000, 0));
    }
    assert!(server.volume.counters().reads >= 9000);
}

/// A null device that notes switches to write-through, and flushes.
#[derive(Debug, Default)]
struct Probe {
    /// 0: never switched; 1: write back; 2: write through.
    mode: Arc<AtomicU64>,
}

#[derive(Debug)]
struct ProbeChannel(Arc<AtomicU64>);

impl Engine for Probe {
    fn geometry(&self) -> Geometry {
        null(None).geometry()
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn channel(&self, _: u16) -> Result<Box<dyn Channel>, EngineError> {
        Ok(Box::new(ProbeChannel(Arc::clone(&self.mode))))
    }
}

impl Channel for ProbeChannel {
    fn begin(&mut self, _: Taken<'_>, _: &mut Vec<Operation>) -> Outcome {
        Outcome::Done(Status::Ok)
    }

    fn set_write_through(&mut self, on: bool) {
        self.0.store(1 + u64::from(on), Ordering::SeqCst);
    }

    fn stats(&self) -> ChannelStats {
        ChannelStats::default()
    }
}

#[test]
fn cache_switch_reaches_lanes_before_confirmation() {
    let probe = Probe::default();
    let mode = Arc::clone(&probe.mode);
    let server = Server::new(Arc::new(probe), 1, 1);
    let (wire, memory) = server.guest(USUAL);
    let mut ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    assert_eq!(mode.load(Ordering::SeqCst), 1, "with a cache and a flush: write back");
    for on in [0u8, 1, 0, 1, 0] {
        assert!(wire.set_config(32, &[on]));
        assert_eq!(mode.load(Ordering::SeqCst), 2 - u64::from(on), "right after the answer");
    }
    drop(wire);
    // A driver that knows of no flush cannot ask for one: every write must be durable.
    let (wire, memory) = server.guest(VERSION_1 | PROTOCOL);
    ring = Ring::new(&memory, 0);
    assert!(wire.start(0, &ring));
    assert_eq!(mode.load(Ordering::SeqCst), 2);
}
