//! Packed rings against a simple driver made from the specification. Every chain is seen once and
//! comes back once, through wraps, out of order, at any size, under every way of suppressing
//! events, and across a restart.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

mod common;

use common::packed::{PackedDriver, Place, Wish};
use common::{Desc, INDIRECT, OUT, Ram, WRITE, cases, header};
use proptest::prelude::*;
use vlane_ring::{Broken, Queue, RequestKind, Slot, Status};

const PARTS: [u64; 3] = [0x1_0000, 0x1_8000, 0x1_8004];
const REGIONS: [(u64, usize); 2] = [(0x1_0000, 0x9000), (0x4_0000, 0x8_0000)];
/// For each tag a page: header, status, indirect table, data.
const PAGES: u64 = 0x4_0000;

#[derive(Debug, Clone)]
enum Op {
    /// A write of that many sectors, one descriptor each, or all in an indirect table.
    Add {
        sectors: u16,
        indirect: bool,
    },
    Pop,
    Complete(prop::sample::Index),
    Publish,
    Reap,
    /// The driver's wish; the number is counted from its used position.
    Wish(u8),
    /// The device wants to be kicked, or not.
    Notify(bool),
    /// Another device continues where this one is, if no request is in flight.
    Restart,
    /// The device stops in order, and the next one does not get the position.
    Stop,
    /// The device is gone from one moment to the next, and the next one does not get its position.
    Kill,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u16..6, any::<bool>()).prop_map(|(sectors, indirect)| Op::Add { sectors, indirect }),
        6 => Just(Op::Pop),
        5 => any::<prop::sample::Index>().prop_map(Op::Complete),
        4 => Just(Op::Publish),
        4 => Just(Op::Reap),
        2 => any::<u8>().prop_map(Op::Wish),
        2 => any::<bool>().prop_map(Op::Notify),
        1 => Just(Op::Restart),
    ]
}

struct World<'a> {
    ram: &'a Ram,
    driver: PackedDriver<'a>,
    queue: Queue,
    next_tag: u64,
    /// Made available and not taken, in order: tag, sectors.
    waiting: std::collections::VecDeque<(u64, u16)>,
    taken: Vec<(Slot, u64, u16)>,
    /// Completed and not reaped, in order: tag, ring descriptors.
    completed: std::collections::VecDeque<(u64, u16)>,
    /// Ring descriptors in `completed` that `publish` has shown.
    shown: usize,
    /// True if the device may sleep: it asked for a kick, found no request, and got none since.
    asleep: bool,
    /// Where the device's next used descriptor lies.
    used: Place,
    batch: Vec<Place>,
    /// `used` at the last publish.
    used_shown: Place,
    /// By tag.
    sectors: Vec<u16>,
}

impl<'a> World<'a> {
    fn new(ram: &'a Ram, size: u16, event_idx: bool) -> World<'a> {
        let driver = PackedDriver::new(ram, size, event_idx, PARTS);
        let queue = Queue::new(driver.config(0x8000_8000), ram.memory.clone()).expect("queue");
        World {
            ram,
            used: driver.used,
            used_shown: driver.used,
            sectors: Vec::new(),
            driver,
            queue,
            next_tag: 0,
            waiting: Default::default(),
            taken: Vec::new(),
            completed: Default::default(),
            shown: 0,
            asleep: false,
            batch: Vec::new(),
        }
    }

    fn add(&mut self, sectors: u16, indirect: bool) {
        let tag = self.next_tag;
        let page = PAGES + 0x800 * (tag % 256);
        self.ram.write(page, &header(OUT, 0, tag));
        let mut chain = vec![Desc { addr: page, len: 16, flags: 0, link: 0 }];
        chain.extend((0..sectors).map(|i| Desc {
            addr: page + 512 + 8 * u64::from(i),
            len: 512,
            flags: 0,
            link: 0,
        }));
        chain.push(Desc { addr: page + 16, len: 1, flags: WRITE, link: 0 });
        if indirect {
            for (i, desc) in chain.iter().enumerate() {
                // Flags and ids are ignored here, but for WRITE.
                let entry = Desc { flags: desc.flags | 5, link: 77, ..*desc };
                self.ram.write(page + 32 + 16 * i as u64, &entry.packed());
            }
            chain = vec![Desc {
                addr: page + 32,
                len: 16 * chain.len() as u32,
                flags: INDIRECT,
                link: 0,
            }];
        }
        let kick = self.driver.add(&chain, tag);
        let Some(kick) = kick else { return };
        self.next_tag += 1;
        self.sectors.push(sectors);
        self.waiting.push_back((tag, sectors));
        assert!(!self.asleep || kick, "the device sleeps and is not kicked");
        self.asleep &= !kick;
    }

    fn pop(&mut self) {
        let slot = self.queue.take().expect("a legal ring");
        let Some((tag, sectors)) = self.waiting.pop_front() else { return assert_eq!(slot, None) };
        let slot = slot.expect("an available chain");
        let request = self.queue.request(slot);
        assert_eq!((request.kind(), request.sector()), (RequestKind::Out, tag));
        assert_eq!(request.len(), 512 * u64::from(sectors));
        for (i, buffer) in request.buffers().iter().enumerate() {
            assert_eq!(
                self.ram.guest(buffer.iov_base.cast()),
                PAGES + 0x800 * (tag % 256) + 512 + 8 * i as u64
            );
        }
        self.taken.push((slot, tag, sectors));
    }

    fn complete(&mut self, pick: usize) {
        let (slot, tag, _) = self.taken.remove(pick);
        self.queue.answer(slot, Status::Ok);
        let (count, _) = *self.driver.held.values().find(|(_, t)| *t == tag).expect("held");
        for _ in 0..count {
            self.batch.push(self.used);
            self.used = self.used.next(self.driver.size);
        }
        self.completed.push_back((tag, count));
    }

    fn publish(&mut self) {
        let signal = self.queue.show();
        let batch = std::mem::take(&mut self.batch);
        let expected = match self.driver.wish {
            Wish::Always => true,
            Wish::Never => false,
            Wish::At(place) if self.driver.event_idx => batch.contains(&place),
            Wish::At(_) => true,
        };
        assert_eq!(signal, expected && !batch.is_empty());
        self.shown = self.completed.len();
        self.used_shown = self.used;
    }

    fn reap(&mut self) {
        match self.driver.reap() {
            Some((tag, len)) => {
                assert!(self.shown > 0, "visible before publish");
                self.shown -= 1;
                assert_eq!(self.completed.pop_front().expect("completed").0, tag);
                assert_eq!(len, 1);
                assert_eq!(self.ram.read(PAGES + 0x800 * (tag % 256) + 16, 1), [0]);
            }
            None => assert_eq!(self.shown, 0, "a published chain was not seen"),
        }
    }

    fn step(&mut self, op: &Op) {
        match op {
            Op::Add { sectors, indirect } => self.add(*sectors, *indirect),
            Op::Pop => self.pop(),
            Op::Complete(pick) if !self.taken.is_empty() => {
                self.complete(pick.index(self.taken.len()))
            }
            Op::Publish => self.publish(),
            Op::Reap => self.reap(),
            Op::Wish(wish) => {
                // An event further than a lap ahead, or behind, looks like another one.
                let mut place = self.driver.used;
                (0..u16::from(wish / 4) % self.driver.size)
                    .for_each(|_| place = place.next(self.driver.size));
                let wish = match wish % 4 {
                    0 => Wish::Always,
                    1 => Wish::Never,
                    _ => Wish::At(place),
                };
                self.driver.wish(wish);
            }
            Op::Notify(true) => {
                let more = self.queue.enable_notify().expect("legal");
                assert_eq!(more, !self.waiting.is_empty());
                self.asleep = !more;
            }
            Op::Notify(false) => {
                self.queue.disable_notify();
                self.asleep = false;
            }
            Op::Restart if self.queue.in_flight() == 0 => {
                self.publish();
                let base = self.queue.base();
                match self.next_tag % 3 {
                    0 => self.queue.leave_place(),
                    // Other devices leave other words: all kicks, no kicks.
                    other => self.ram.write(PARTS[2], &[0, 0, other as u8 - 1, 0]),
                }
                self.queue =
                    Queue::new(self.driver.config(base), self.ram.memory.clone()).expect("queue");
                assert_eq!(self.queue.base(), base);
                self.queue.disable_notify();
                self.asleep = false;
            }
            Op::Stop => {
                while !self.taken.is_empty() {
                    self.complete(0);
                }
                self.publish();
                self.queue.leave_place();
                let base = self.queue.base();
                self.succeed();
                if self.driver.event_idx {
                    assert_eq!(self.queue.base(), base, "where it stopped can be seen");
                }
            }
            Op::Kill => self.succeed(),
            _ => {}
        }
    }

    /// Another device comes, and gets only the place where the first one began.
    fn succeed(&mut self) {
        self.queue =
            Queue::new(self.driver.config(0x8000_8000), self.ram.memory.clone()).expect("queue");
        // As a lane does.
        self.queue.disable_notify();
        self.asleep = false;
        // Requests that no device has answered are to be done, in their order, and no others.
        self.completed.truncate(self.shown);
        self.batch.clear();
        self.used = self.used_shown;
        let first_waiting = self.waiting.front().map_or(self.next_tag, |(tag, _)| *tag);
        let shown: Vec<u64> = self.completed.iter().map(|(tag, _)| *tag).collect();
        let held = self.driver.held.values().map(|(_, tag)| *tag);
        let mut undone: Vec<u64> =
            held.filter(|tag| *tag < first_waiting && !shown.contains(tag)).collect();
        undone.sort_unstable();
        for tag in undone.into_iter().rev() {
            self.waiting.push_front((tag, self.sectors[tag as usize]));
        }
        self.taken.clear();
    }

    /// Returns true if the device knows where the ring stands.
    fn goes_on(&mut self) -> bool {
        match self.queue.enable_notify() {
            Ok(_) => self.queue.disable_notify(),
            Err(Broken::PlaceLost { .. }) => return false,
            Err(other) => panic!("{other}"),
        }
        true
    }

    /// Returns true if the device stands where the driver waits for it.
    fn is_right(&self) -> bool {
        self.queue.base() >> 16 == u32::from(self.used.encode())
    }

    fn drain(&mut self) {
        for _ in 0..=2 * self.next_tag {
            self.pop();
            if !self.taken.is_empty() {
                self.complete(0);
            }
            self.publish();
            self.reap();
        }
        assert!(self.driver.held.is_empty(), "lost: {:?}", self.driver.held);
        assert_eq!(self.queue.in_flight(), 0);
        assert_eq!(self.driver.free, self.driver.size);
    }
}

proptest! {
    #![proptest_config(cases(800))]

    #[test]
    //= virtio 2.8.12, test
    //# The device MUST start processing driver descriptors in the order in which they appear in the
    //# ring.
    //= virtio 2.8.12, test
    //# The device MUST start writing device descriptors into the ring in the order in which they
    //# complete.
    //= virtio 2.8.15, test
    //# A device MUST NOT change a descriptor after changing it's the VIRTQ_DESC_F_USED bit in its
    //# flags.
    //= virtio 2.8.18, test
    //# The device MUST use descriptors in a list chained by the VIRTQ_DESC_F_NEXT flag in the same
    //# order that they were made available by the driver.
    fn every_chain_is_taken_and_returned_once(
        size in prop_oneof![1u16..20, Just(1u16), Just(2), Just(127)],
        event_idx: bool,
        ops in prop::collection::vec(op(), 1..if cfg!(miri) { 60 } else { 200 }),
    ) {
        let ram = Ram::new(&REGIONS);
        let mut world = World::new(&ram, size, event_idx);
        ops.iter().for_each(|op| world.step(op));
        world.drain();
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    /// A front end that does not know where the last device was, and a device that was killed: the
    /// next one does no request twice, and none that was never asked. It may say that it does not
    /// know.
    #[test]
    fn next_device_does_only_unanswered_requests(
        size in prop_oneof![1u16..20, Just(1u16), Just(2), Just(127)],
        event_idx: bool,
        // As Linux does it: a chain is one descriptor of the ring. Or as any driver may, with no
        // tables or with some.
        tables in prop_oneof![Just(Some(true)), Just(Some(false)), Just(None)],
        rounds in prop::collection::vec((prop::collection::vec(op(), 1..60), any::<bool>()), 1..4),
    ) {
        let ram = Ram::new(&REGIONS);
        let mut world = World::new(&ram, size, event_idx);
        world.step(&Op::Notify(false));
        for (ops, kill) in rounds {
            let mut sleeps = false;
            for op in &ops {
                // A sleeping lane does no step before it is marked awake.
                if matches!(op, Op::Pop | Op::Complete(_) | Op::Publish | Op::Restart) && sleeps {
                    world.step(&Op::Notify(false));
                    sleeps = false;
                }
                if let Op::Notify(on) = op {
                    sleeps = *on;
                }
                match op {
                    Op::Add { sectors, indirect } => world.add(*sectors, tables.unwrap_or(*indirect)),
                    // In no ring do requests answered out of order look different from unanswered
                    // ones.
                    Op::Complete(_) if !world.taken.is_empty() => world.complete(0),
                    op => world.step(op),
                }
            }
            world.step(if kill { &Op::Kill } else { &Op::Stop });
            if !world.goes_on() {
                // Without event indices a ring whose requests are all unanswered shows no position.
                prop_assert!(kill || !event_idx, "a device that stops says where");
                return Ok(());
            }
            if !world.is_right() {
                // No error is reported; the guest waits for the lost request.
                let may_be = if kill { sleeps } else { !event_idx };
                prop_assert!(may_be, "not where the ring stands");
                return Ok(());
            }
        }
        world.drain();
    }
}

/// With indirect descriptors, as Linux uses them, a guest that is idle survives a kill.
#[test]
fn idle_ring_survives_killed_sleeper() {
    for event_idx in [false, true] {
        for count in 0..40 {
            let ram = Ram::new(&REGIONS);
            let mut world = World::new(&ram, 7, event_idx);
            for _ in 0..count {
                world.add(1, true);
                world.pop();
                world.complete(0);
                world.publish();
                world.reap();
            }
            world.step(&Op::Notify(true));
            world.step(&Op::Kill);
            assert!(world.goes_on(), "after {count}");
            world.add(1, true);
            world.drain();
        }
    }
}

/// The rest of a chain of several descriptors may look like a request at the position that the
/// front end gives.
#[test]
fn rest_of_long_chain_is_no_request() {
    for (event_idx, sleeps) in [(false, false), (false, true), (true, false), (true, true)] {
        for (size, count) in (3..9).flat_map(|size| (1..30).map(move |count| (size, count))) {
            // All of them long, or only the last one.
            for long_from in [0, count - 1] {
                let ram = Ram::new(&REGIONS);
                let mut world = World::new(&ram, size, event_idx);
                world.step(&Op::Notify(false));
                for tag in 0..count {
                    world.add(1, tag < long_from);
                    world.pop();
                    world.complete(0);
                    world.publish();
                    world.reap();
                }
                world.step(&Op::Notify(sleeps));
                world.step(&Op::Kill);
                if world.goes_on() {
                    assert_eq!(
                        world.queue.take().expect("legal"),
                        None,
                        "{count} in {size}, sleeps: {sleeps}"
                    );
                }
            }
        }
    }
}

/// Other devices leave old words, and other drivers' rings leave theirs. The ring shows that the
/// front end is right. The ring itself shows its place.
#[test]
fn old_event_word_does_not_stop_ring() {
    for event_idx in [false, true] {
        for (count, word) in (0..20).flat_map(|count| (0..7).map(move |at| (count, at))) {
            let ram = Ram::new(&REGIONS);
            let mut world = World::new(&ram, 7, event_idx);
            for _ in 0..count {
                world.add(1, true);
                world.pop();
                world.complete(0);
                world.publish();
                world.reap();
            }
            let base = world.queue.base();
            ram.write(
                PARTS[2],
                &[word, 0x80 * (count as u8 % 2), if event_idx { 2 } else { 0 }, 0],
            );
            world.queue = Queue::new(world.driver.config(base), ram.memory.clone()).expect("queue");
            assert!(world.goes_on(), "{count}, {word}");
            assert_eq!(world.queue.base(), base, "{count}, {word}");
            world.add(1, true);
            world.drain();
        }
    }
}

/// Position 0 with both counters at 0 is the base of a fresh ring for some front ends, and of one
/// that went round: also of one whose first descriptor is the middle of a chain, and looks
/// untouched.
#[test]
//= virtio 2.8.15, test
//# A device MUST NOT use a descriptor unless it observes the VIRTQ_DESC_F_AVAIL bit in its flags
//# being changed (e.g. as compared to the initial zero value).
fn wrapped_ring_is_not_taken_as_fresh() {
    let ram = Ram::new(&REGIONS);
    let mut world = World::new(&ram, 3, false);
    // Laps of 2 + 1, 2 + the half of 2, the other half + 2.
    for indirect in [false, true, false, false, false] {
        world.step(&Op::Add { sectors: 0, indirect });
        world.step(&Op::Pop);
        world.complete(0);
        world.step(&Op::Publish);
        world.step(&Op::Reap);
    }
    assert_eq!(world.queue.base(), 0);
    world.step(&Op::Restart);
    world.step(&Op::Pop);
    world.step(&Op::Add { sectors: 0, indirect: false });
    world.drain();
    // A fresh one, with and without a request in it.
    for requests in 0..2 {
        let ram = Ram::new(&REGIONS);
        let mut world = World::new(&ram, 3, false);
        (0..requests).for_each(|_| world.step(&Op::Add { sectors: 0, indirect: false }));
        world.queue = Queue::new(world.driver.config(0), ram.memory.clone()).expect("queue");
        assert_eq!(world.queue.base(), 0x8000_8000);
        world.step(&Op::Add { sectors: 0, indirect: true });
        world.drain();
    }
}

#[test]
fn largest_ring_wraps() {
    let ram = Ram::new(&[(0x1_0000, 0x9_0000), (0x10_0000, 0x2000)]);
    let parts = [0x1_0000, 0x9_0000, 0x9_0004];
    let size = if cfg!(miri) { 30 } else { 32768 };
    let mut driver = PackedDriver::new(&ram, size, true, parts);
    let mut queue = Queue::new(driver.config(0x8000_8000), ram.memory.clone()).expect("queue");
    ram.write(0x10_0000, &header(4, 0, 0));
    let chain = [
        Desc { addr: 0x10_0000, len: 16, flags: 0, link: 0 },
        Desc { addr: 0x10_0010, len: 0, flags: WRITE, link: 0 },
        Desc { addr: 0x10_0010, len: 1, flags: WRITE, link: 0 },
    ];
    for lap in 0..4u64 {
        let mut count = 0;
        while driver.add(&chain, lap).is_some() {
            count += 1;
        }
        assert_eq!(count, size / 3);
        while let Some(slot) = queue.take().expect("legal") {
            queue.answer(slot, Status::Ok);
        }
        driver.wish(Wish::At(driver.used));
        assert!(queue.show());
        while driver.reap().is_some() {}
        assert!(driver.held.is_empty());
    }
}

/// A driver that breaks the rules may make it: neither a panic, nor a signal that is missed
/// wherever the event lies.
#[test]
fn batch_beyond_ring_size_is_signalled() {
    let ram = Ram::new(&REGIONS);
    ram.write(PAGES, &header(4, 0, 0));
    let chain = [
        Desc { addr: PAGES, len: 16, flags: 0, link: 0 },
        Desc { addr: PAGES + 16, len: 1, flags: WRITE, link: 0 },
    ];
    let many = if cfg!(miri) { 10 } else { 40_000 };
    for rounds in [2, 5, 6, many] {
        for (index, wrap) in (0..3).flat_map(|index| [(index, false), (index, true)]) {
            // A driver begins with a ring of zeroes.
            ram.write(PARTS[0], &[0; 3 * 16]);
            let mut driver = PackedDriver::new(&ram, 3, true, PARTS);
            let mut queue =
                Queue::new(driver.config(0x8000_8000), ram.memory.clone()).expect("queue");
            driver.wish(Wish::At(Place { index, wrap }));
            for _ in 0..rounds {
                driver.add(&chain, 0).expect("room");
                driver.forget();
                let slot = queue.take().expect("legal").expect("available");
                queue.answer(slot, Status::Ok);
            }
            assert!(queue.show());
        }
    }
}
