//! In-flight tracking: a device is killed between any two of its stores, and the next one
//! continues. Every request is answered once, none that was answered is done again, and requests in
//! flight are done again in their order.
//!
//! A kill is a panic out of `vlane_ring::kill` that the test catches: all earlier stores are in
//! shared memory, and no later one is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]
#![cfg(not(miri))]

mod common;

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;

use common::cases;
use proptest::prelude::*;
use vlane_driver::ring::{Arena, BlkOptions, BlkQueue, Format, Request, RequestKind};
use vlane_memory::{GuestMemory, Region, RegionSpec};
use vlane_ring::{
    Broken, InflightError, InflightRegion, Lost, Queue, QueueConfig, RingFormat, Slot, Status, kill,
};

#[derive(Debug, Clone, Copy)]
struct Shape {
    packed: bool,
    event_idx: bool,
    indirect: bool,
    depth: u16,
    segments: u16,
}

/// A driver, its ring and its memory, and the front end's memory; devices come and go.
struct Guest {
    arena: Arena,
    memory: Arc<GuestMemory>,
    driver: BlkQueue,
    shape: Shape,
    file: File,
    bytes: u64,
    /// By slot of the driver: the request that is out, named by its sector.
    out: Vec<Option<u64>>,
    next: u64,
    answered: BTreeSet<u64>,
}

const DATA: u32 = 1024;
/// The second of three queues: its part does not begin at the beginning.
const QUEUES: u16 = 3;
const INDEX: u16 = 1;

impl Guest {
    fn new(shape: Shape) -> Guest {
        let Shape { packed, event_idx, indirect, depth, segments } = shape;
        let format = if packed { Format::Packed } else { Format::Split };
        let options =
            BlkOptions { format, size: None, depth, data: DATA, segments, indirect, event_idx };
        let arena = Arena::new(0x8000_0000, options.arena_bytes().unwrap()).unwrap();
        let driver = BlkQueue::new(&arena, options).unwrap();
        let spec = RegionSpec {
            guest: arena.base(),
            size: arena.size(),
            user: arena.user_addr(),
            offset: 0,
        };
        let mapped = File::from(arena.fd().unwrap().try_clone_to_owned().unwrap());
        let memory = Arc::new(GuestMemory::new(vec![Region::map(spec, &mapped).unwrap()]).unwrap());
        let size = driver.layout().size;
        let file = InflightRegion::create(QUEUES, size).unwrap();
        let bytes = InflightRegion::bytes(QUEUES, size).unwrap();
        let out = vec![None; usize::from(depth)];
        Guest { arena, memory, driver, shape, file, bytes, out, next: 0, answered: BTreeSet::new() }
    }

    fn region(&self) -> Arc<InflightRegion> {
        InflightRegion::map(&self.file, 0, self.bytes, QUEUES, self.driver.layout().size).unwrap()
    }

    /// A device as QEMU sets it up after another one: split rings begin at the used index, packed
    /// ones where they began once.
    fn device(&self) -> Queue {
        let mut queue = self.untracked();
        queue.track(self.region().part(INDEX).unwrap());
        queue
    }

    fn untracked(&self) -> Queue {
        let at = self.driver.layout();
        let packed = self.shape.packed;
        let config = QueueConfig {
            layout: if packed { RingFormat::Packed } else { RingFormat::Split },
            size: at.size,
            event_idx: self.shape.event_idx,
            desc: self.arena.to_user(at.desc),
            driver: self.arena.to_user(at.driver),
            device: self.arena.to_user(at.device),
            base: if packed { 0x8000_8000 } else { self.answered.len() as u32 & 0xffff },
            log_addr: None,
        };
        Queue::new(config, Arc::clone(&self.memory)).unwrap()
    }

    fn submit(&mut self) -> bool {
        let Some(slot) = self.out.iter().position(Option::is_none) else { return false };
        let sector = self.next;
        let kind = if sector.is_multiple_of(3) { RequestKind::Read } else { RequestKind::Write };
        let len = 512 * (1 + sector as u32 % (DATA / 512));
        self.driver.submit(slot as u16, Request { kind, sector, len, ioprio: 0 }).unwrap();
        self.driver.publish();
        (self.next, self.out[slot]) = (sector + 1, Some(sector));
        true
    }

    /// Sees answers, each of which must be to something that is out.
    fn reap(&mut self) {
        let mut done = Vec::new();
        self.driver.reap(&mut done).expect("a device that keeps the rules");
        for completion in done {
            let sector = self.out[usize::from(completion.slot)].take().expect("answered twice");
            assert!(self.answered.insert(sector));
        }
    }

    fn outstanding(&self) -> BTreeSet<u64> {
        self.out.iter().flatten().copied().collect()
    }
}

/// The work of a device, and its progress before it was killed.
#[derive(Default)]
struct Work {
    /// In flight, in the order in which it took them.
    taken: Vec<(Slot, u64)>,
    /// Taken by a device and not seen answered, in order.
    order: Vec<u64>,
}

impl Work {
    fn take(&mut self, device: &mut Queue, guest: &Guest) -> bool {
        let Some(slot) = device.take().expect("a ring in order") else { return false };
        let sector = device.request(slot).sector();
        assert!(guest.outstanding().contains(&sector), "{sector} was answered, and is done again");
        self.taken.push((slot, sector));
        if !self.order.contains(&sector) {
            self.order.push(sector);
        }
        true
    }

    fn answer(&mut self, device: &mut Queue, which: usize) {
        if !self.taken.is_empty() {
            let (slot, _) = self.taken.remove(which % self.taken.len());
            device.answer(slot, Status::Ok);
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Submit,
    Take,
    Answer(usize),
    Publish,
    PutBack,
    Reap,
}

fn apply(step: Step, guest: &mut Guest, device: &mut Queue, work: &mut Work) {
    match step {
        Step::Submit => drop(guest.submit()),
        Step::Take => drop(work.take(device, guest)),
        Step::Answer(which) => work.answer(device, which),
        Step::Publish => drop(device.show()),
        Step::PutBack => {
            if let Some((slot, sector)) = work.taken.last().copied()
                && device.put_back(slot)
            {
                work.taken.pop();
                work.order.retain(|taken| *taken != sector);
            }
        }
        Step::Reap => {
            device.show();
            guest.reap();
        }
    }
}

/// Runs the steps, each device killed after so many stores; `true` if the first one was.
fn run(shape: Shape, steps: &[Step], kills: &[u64]) -> bool {
    let mut guest = Guest::new(shape);
    let mut work = Work::default();
    let mut at = 0;
    let mut killed = 0;
    for stores in kills {
        // Values that a killed device had read from the ring are discarded.
        let ended = kill::run(*stores, || {
            let mut device = begin(&guest, &mut work, killed > 0);
            while let Some(step) = steps.get(at) {
                at += 1;
                apply(*step, &mut guest, &mut device, &mut work);
            }
            drop(device);
        });
        killed += u64::from(ended.is_none());
        guest.reap();
    }
    // The last one is not killed: everything comes to its end, and as much again.
    let mut device = begin(&guest, &mut work, true);
    for _ in 0..3 * u64::from(shape.depth) {
        while guest.submit() {}
        while work.take(&mut device, &guest) {}
        while !work.taken.is_empty() {
            work.answer(&mut device, work.taken.len() / 2);
        }
        device.show();
        guest.reap();
        assert!(guest.outstanding().is_empty(), "never answered: {:?}", guest.outstanding());
    }
    killed > 0
}

/// A new device, which has taken again the requests in flight, and these requests.
fn begin(guest: &Guest, work: &mut Work, checks: bool) -> Queue {
    let mut device = guest.device();
    let before = std::mem::take(work);
    let outstanding = guest.outstanding();
    let expected: Vec<u64> =
        before.order.into_iter().filter(|sector| outstanding.contains(sector)).collect();
    work.order.clone_from(&expected);
    while device.is_replaying() {
        assert!(device.has_available());
        assert!(work.take(&mut device, guest));
    }
    let again: Vec<u64> = work.taken.iter().map(|(_, sector)| *sector).collect();
    work.order.clone_from(&again);
    if checks {
        // The last one may have been marked without having been seen taken here, or put back
        // without its mark.
        assert!(again.len().abs_diff(expected.len()) <= 1, "{again:?} instead of {expected:?}");
        let common = again.len().min(expected.len());
        assert_eq!(again[..common], expected[..common]);
    }
    device
}

fn shapes() -> impl Strategy<Value = Shape> {
    (any::<bool>(), any::<bool>(), any::<bool>(), 1u16..9, 1u16..3).prop_map(
        |(packed, event_idx, indirect, depth, segments)| Shape {
            packed,
            event_idx,
            indirect,
            depth,
            segments,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Submit),
        4 => Just(Step::Take),
        4 => any::<u8>().prop_map(|which| Step::Answer(which.into())),
        2 => Just(Step::Publish),
        1 => Just(Step::PutBack),
        2 => Just(Step::Reap),
    ]
}

proptest! {
    #![proptest_config(cases(3000))]

    #[test]
    fn killed_device_leaves_a_usable_state(
        shape in shapes(),
        steps in proptest::collection::vec(step(), 1..120),
        kills in proptest::collection::vec(0u64..200, 1..6),
    ) {
        run(shape, &steps, &kills);
    }
}

/// All rings, and each single store of a life that goes round the ring.
/// No request is repeated, either.
#[test]
fn kill_after_any_store_loses_no_request() {
    let mut steps = Vec::new();
    for round in 0..5 {
        steps.extend([Step::Submit; 4]);
        steps.extend([Step::Take; 4]);
        steps.extend([Step::PutBack, Step::Take]);
        steps.extend([2, 0, 1].map(Step::Answer));
        steps.extend([
            if round % 2 == 0 { Step::Publish } else { Step::Reap },
            Step::Answer(0),
            Step::Reap,
        ]);
    }
    let mut kills = 0;
    for packed in [false, true] {
        for indirect in [false, true] {
            let shape = Shape { packed, event_idx: true, indirect, depth: 4, segments: 2 };
            let mut stores = 0;
            while run(shape, &steps, &[stores]) {
                // ... and once more, while the next one reads what it left.
                run(shape, &steps, &[stores, stores % 29]);
                stores += 1;
            }
            kills += stores;
        }
    }
    assert!(kills > 800, "{kills}");
}

const SPLIT: Shape =
    Shape { packed: false, event_idx: true, indirect: true, depth: 4, segments: 1 };
const PACKED: Shape = Shape { packed: true, ..SPLIT };

/// Slot 0, alone: no code may take it for "none" (elsewhere some did).
#[test]
fn first_descriptor_is_like_the_others() {
    for shape in [SPLIT, PACKED] {
        let mut guest = Guest::new(Shape { depth: 1, ..shape });
        guest.submit();
        let mut work = Work::default();
        work.take(&mut guest.device(), &guest);
        assert_eq!(work.taken.len(), 1);
        let mut device = guest.device();
        let slot = device.take().unwrap().expect("it was in flight");
        assert!(!device.is_replaying());
        assert_eq!(device.take().unwrap(), None, "once");
        device.answer(slot, Status::Ok);
        device.show();
        guest.reap();
        assert_eq!(guest.answered.len(), 1);
        let mut device = guest.device();
        assert_eq!(device.take().unwrap(), None);
    }
}

/// The used index has gone round 65536, and packed rings round many times.
#[test]
fn wrapped_rings_behave_the_same() {
    for shape in [SPLIT, PACKED] {
        let mut guest = Guest::new(shape);
        let mut work = Work::default();
        let mut device = guest.device();
        for round in 0..66_000 {
            guest.submit();
            assert!(work.take(&mut device, &guest));
            work.answer(&mut device, 0);
            device.show();
            guest.reap();
            // Again and again around the wrap.
            if round % 4096 == 4095 || (65_530..65_545).contains(&round) {
                while guest.submit() {}
                while work.take(&mut device, &guest) {}
                work.answer(&mut device, 2);
                device.show();
                guest.reap();
                drop(device);
                device = begin(&guest, &mut work, true);
                assert_eq!(work.taken.len(), 3);
                (0..3).for_each(|_| work.answer(&mut device, 1));
                device.show();
                guest.reap();
            }
        }
    }
}

/// The answer is in the ring and its mark still there, when the guest has written the same place
/// anew: the old write must not come back. That holds for any mark of the request.
#[test]
fn seen_answer_is_never_done_again() {
    for shape in [SPLIT, PACKED] {
        let mut windows = 0;
        for stores in 0.. {
            let mut guest = Guest::new(shape);
            let mut work = Work::default();
            let mut device = guest.device();
            guest.submit();
            work.take(&mut device, &guest);
            work.answer(&mut device, 0);
            let ended = kill::run(stores, || device.show()).is_some();
            guest.reap();
            if guest.answered.is_empty() {
                continue;
            }
            let mut device = guest.device();
            assert!(!device.is_replaying(), "killed {stores} stores after the publication began");
            assert_eq!(device.take().unwrap(), None);
            if ended {
                break;
            }
            windows += 1;
        }
        assert!(windows >= 2, "no kill came between the answer and the end of its mark");
    }
}

/// GET_VRING_BASE and a start in the same session: no request is in flight, and the ring continues.
#[test]
fn clean_stop_leaves_no_request() {
    for shape in [SPLIT, PACKED] {
        let mut guest = Guest::new(shape);
        let mut work = Work::default();
        for _ in 0..20 {
            let mut device = guest.device();
            assert!(!device.is_replaying());
            while guest.submit() {}
            while work.take(&mut device, &guest) {}
            for which in [3, 0, 1, 0] {
                work.answer(&mut device, which);
            }
            device.show();
            guest.reap();
            assert!(guest.outstanding().is_empty());
        }
    }
}

/// A driver begins anew (a reboot), with memory that the front end kept although the device was
/// reset: no request was in flight, so the marks are not of this ring.
#[test]
fn restarted_ring_ignores_old_position() {
    for shape in [SPLIT, PACKED] {
        let mut first = Guest::new(shape);
        let mut work = Work::default();
        let mut device = first.device();
        for _ in 0..37 {
            first.submit();
            work.take(&mut device, &first);
            work.answer(&mut device, 0);
            device.show();
            first.reap();
        }
        let mut second = Guest::new(shape);
        second.file = first.file.try_clone().unwrap();
        let mut device = second.device();
        while second.submit() {}
        while work.take(&mut device, &second) {}
        assert_eq!(work.taken.len(), 4);
    }
}

#[test]
fn reset_device_has_no_request_in_flight() {
    for shape in [SPLIT, PACKED] {
        let mut guest = Guest::new(shape);
        while guest.submit() {}
        let mut work = Work::default();
        let mut device = guest.device();
        while work.take(&mut device, &guest) {}
        guest.region().forget();
        let other = Guest { file: guest.file.try_clone().unwrap(), ..Guest::new(shape) };
        assert!(!other.device().is_replaying());
    }
}

/// Bytes of a queue's part, as a back end finds them that does not know of notes behind the last
/// one.
fn part(guest: &Guest) -> u64 {
    guest.bytes / u64::from(QUEUES) / 64 * 64
}

/// The error says why.
#[test]
fn impossible_marks_break_the_queue() {
    use std::os::unix::fs::FileExt;
    // Where the part of the queue begins.
    let begin = |guest: &Guest| u64::from(INDEX) * part(guest);
    let damaged: [(Shape, u64, &[u8], Lost); 7] = [
        (SPLIT, 8, &[2, 0], Lost::Version),
        (SPLIT, 10, &[99, 0], Lost::Size),
        (SPLIT, 12, &[0xff, 0xff], Lost::Damaged),
        (SPLIT, 14, &[0x55, 0x55], Lost::OtherRing),
        (PACKED, 16, &[0xff, 0x7f], Lost::Damaged),
        // The number of descriptors of the first entry: none, and more than there are.
        (PACKED, 32 + 6, &[0, 0], Lost::Damaged),
        (PACKED, 32 + 6, &[0xff, 0xff], Lost::Damaged),
    ];
    for (shape, at, bytes, why) in damaged {
        let mut guest = Guest::new(shape);
        while guest.submit() {}
        let mut work = Work::default();
        let mut device = guest.device();
        while work.take(&mut device, &guest) {}
        drop(device);
        guest.file.write_all_at(bytes, begin(&guest) + at).unwrap();
        let mut device = guest.device();
        assert_eq!(device.take(), Err(Broken::InflightLost(why)), "{shape:?} {at}");
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    /// The front end can write any bytes: a queue is broken or continues, without a panic, and
    /// without touching memory outside the guest's.
    #[test]
    fn arbitrary_marks_keep_device_in_memory(
        shape in shapes(),
        junk in proptest::collection::vec((0u16..600, any::<u8>()), 1..60),
        whole in any::<bool>(),
    ) {
        use std::os::unix::fs::FileExt;
        let mut guest = Guest::new(shape);
        while guest.submit() {}
        let mut work = Work::default();
        let mut device = guest.device();
        while work.take(&mut device, &guest) {}
        drop(device);
        let part = part(&guest);
        for (at, byte) in junk {
            // The head of the part is left as it is, or what follows would not be read.
            let at = if whole { u64::from(at) } else { 12 + u64::from(at) };
            guest.file.write_all_at(&[byte], u64::from(INDEX) * part + at % part).unwrap();
        }
        let mut device = guest.device();
        for _ in 0..100 {
            match device.take() {
                Ok(Some(slot)) => device.answer(slot, Status::Ok),
                Ok(None) | Err(_) => break,
            }
            device.show();
        }
    }
}

#[test]
fn too_small_memory_is_refused() {
    let bytes = InflightRegion::bytes(2, 128).unwrap();
    let file = InflightRegion::create(2, 128).unwrap();
    assert!(InflightRegion::map(&file, 0, bytes, 2, 128).is_ok());
    let refused = InflightRegion::map(&file, 0, bytes + 1, 2, 128);
    assert!(matches!(refused, Err(InflightError::TooSmall { .. })), "{refused:?}");
    let refused = InflightRegion::map(&file, 4096, bytes, 2, 128);
    assert!(matches!(refused, Err(InflightError::TooSmall { .. })), "{refused:?}");
    let refused = InflightRegion::map(&file, 0, bytes, 1000, 128);
    assert!(matches!(refused, Err(InflightError::TooSmall { .. })), "{refused:?}");
    for (queues, size) in [(0, 128), (1, 0), (1, 32769)] {
        assert!(matches!(InflightRegion::create(queues, size), Err(InflightError::Shape { .. })));
        assert!(matches!(
            InflightRegion::map(&file, 0, bytes, queues, size),
            Err(InflightError::Shape { .. })
        ));
    }
    assert!(InflightRegion::map(&file, 0, bytes, 2, 128).unwrap().part(2).is_none());
}
