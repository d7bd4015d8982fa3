//! Guest memory against a map of intervals; the dirty log against a set of pages; and memory that
//! is replaced while requests are in flight.

#![cfg(not(miri))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

mod common;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use common::packed::PackedDriver;
use common::{Desc, NEXT, Ram, WRITE, cases, config, header};
use proptest::prelude::*;
use vlane_memory::{DirtyLog, GuestMemory, MemoryError, Region, RegionSpec};
use vlane_ring::{Broken, Queue, RequestKind, RingFormat, Slot, Status};

const PAGE: u64 = 4096;

fn file(len: u64) -> File {
    let file = tempfile::tempfile().expect("a temporary file");
    file.set_len(len).expect("set_len");
    file
}

fn spec(guest: u64, size: u64) -> RegionSpec {
    RegionSpec { guest, size, user: common::user(guest), offset: 0 }
}

/// The ring and the header of [`probe`]; no region of the tests comes near.
const RING: u64 = 0x100_0000;
const RING_SIZE: u64 = 0x2000;

/// Asks a queue for one buffer: its pieces as (offset in the file of its region, bytes).
fn probe(
    memory: &Arc<GuestMemory>,
    ring: &File,
    addr: u64,
    len: u32,
) -> Result<Vec<(usize, usize)>, Broken> {
    let chain = [
        Desc { addr: RING + 0x1000, len: 16, flags: NEXT, link: 1 },
        Desc { addr, len, flags: NEXT | WRITE, link: 2 },
        Desc { addr: RING + 0x1800, len: 1, flags: WRITE, link: 0 },
    ];
    for (i, desc) in (0..).zip(&chain) {
        ring.write_all_at(&desc.split(), 16 * i).unwrap();
    }
    ring.write_all_at(&header(8, 0, 0), 0x1000).unwrap();
    ring.write_all_at(&[0, 0, 1, 0, 0, 0], 0x400).unwrap();
    let config = config(RingFormat::Split, 4, false, 0, [RING, RING + 0x400, RING + 0x800]);
    let mut queue = Queue::new(config, memory.clone()).expect("queue");
    let slot = queue.take()?.expect("available");
    if let Some(hole) = queue.request(slot).hole() {
        return Err(Broken::BadAddress { addr, len, hole });
    }
    let buffers = queue.request(slot).buffers();
    Ok(buffers.iter().map(|b| (b.iov_base.addr(), b.iov_len)).collect())
}

/// Bytes up to so many pages, the borders of pages and next to them often.
fn edge(pages: u64) -> impl Strategy<Value = u64> {
    let border = (0..pages, 0u64..3).prop_map(|(page, by)| (page * PAGE + by).saturating_sub(1));
    prop_oneof![border, 0..pages * PAGE]
}

#[derive(Debug, Clone)]
enum Op {
    Add(u64, u64),
    Remove(prop::sample::Index),
    RemoveNothing(u64, u64),
}

fn op() -> impl Strategy<Value = Op> {
    // Half pages, so that regions lie side by side, overlap, and leave holes.
    let place = (1u64..24, 0u64..5).prop_map(|(at, n)| (at * PAGE / 2, n * PAGE / 2));
    prop_oneof![
        6 => place.clone().prop_map(|(guest, size)| Op::Add(guest, size)),
        2 => any::<prop::sample::Index>().prop_map(Op::Remove),
        1 => place.prop_map(|(guest, size)| Op::RemoveNothing(guest, size)),
    ]
}

proptest! {
    #![proptest_config(cases(60))]

    #[test]
    fn regions_match_an_interval_list(
        ops in prop::collection::vec(op(), 1..20),
        probes in prop::collection::vec((0u64..16 * PAGE, 1u32..3 * PAGE as u32), 30),
    ) {
        let ring = file(RING_SIZE);
        let mut memory = GuestMemory::new(vec![Region::map(spec(RING, RING_SIZE), &ring).expect("map")]).expect("new");
        let data = file(4 * PAGE);
        let mut model: Vec<(u64, u64)> = Vec::new();
        for op in ops {
            match op {
                Op::Add(guest, size) => {
                    let region = match Region::map(spec(guest, size), &data) {
                        Ok(region) => region,
                        Err(error) => {
                            assert!(size == 0 && matches!(error, MemoryError::BadSize { .. }));
                            continue;
                        }
                    };
                    let overlaps = model.iter().any(|(g, s)| guest < g + s && *g < guest + size);
                    match memory.with(region) {
                        Ok(more) => {
                            prop_assert!(!overlaps);
                            memory = more;
                            model.push((guest, size));
                        }
                        Err(error) => assert!(overlaps && matches!(error, MemoryError::Overlap { .. })),
                    }
                }
                Op::Remove(pick) if !model.is_empty() => {
                    let (guest, size) = model.swap_remove(pick.index(model.len()));
                    memory = memory.without(guest, size).expect("there");
                }
                Op::Remove(_) => {}
                Op::RemoveNothing(guest, size) => {
                    if !model.contains(&(guest, size)) {
                        assert!(matches!(memory.without(guest, size), Err(MemoryError::NotFound { .. })));
                    }
                }
            }
        }
        prop_assert_eq!(memory.len(), model.len() + 1);
        let shared = Arc::new(memory.clone());
        for (addr, len) in probes {
            // The naive answer, one byte after the other.
            let region_of = |at: u64| model.iter().position(|(g, s)| at >= *g && at - g < *s);
            let hole = (addr..addr + u64::from(len)).find(|at| region_of(*at).is_none());
            prop_assert_eq!(memory.guest_of_user(common::user(addr)), region_of(addr).map(|_| addr));
            match probe(&shared, &ring, addr, len) {
                Ok(pieces) => {
                    prop_assert_eq!(hole, None);
                    // Of a request for the serial number 20 bytes are left, empty buffers included.
                    prop_assert_eq!(pieces.iter().map(|(_, len)| len).sum::<usize>(), len.min(20) as usize);
                    let borders = model.iter().filter(|(g, _)| *g > addr && *g < addr + u64::from(len)).count();
                    prop_assert_eq!(pieces.len(), borders + 1);
                }
                Err(broken) => prop_assert_eq!(Some(broken), hole.map(|hole| Broken::BadAddress { addr, len, hole })),
            }
        }
    }

    #[test]
    fn log_marks_exactly_the_touched_pages(
        marks in prop::collection::vec((edge(80), edge(5)), 0..20),
        // Not whole words, and shorter than the memory.
        bytes in 1u64..11,
        offset in prop::sample::select(vec![0, PAGE]),
    ) {
        let bitmap = file(offset + bytes);
        let log = DirtyLog::map(&bitmap, offset, bytes).expect("map");
        let mut model = BTreeSet::new();
        for (guest, len) in marks {
            log.mark(guest, len);
            model.extend((guest..guest + len).map(|at| at / PAGE));
        }
        let mut got = vec![0; bytes as usize];
        bitmap.read_exact_at(&mut got, offset).unwrap();
        let got: BTreeSet<u64> = (0..bytes * 8).filter(|page| got[*page as usize / 8] >> (page % 8) & 1 == 1).collect();
        model.retain(|page| *page < bytes * 8);
        prop_assert_eq!(got, model);
    }
}

#[test]
fn oversized_log_or_region_is_refused() {
    let short = file(PAGE);
    assert!(matches!(DirtyLog::map(&short, 0, PAGE + 1), Err(MemoryError::FileTooShort { .. })));
    assert!(matches!(DirtyLog::map(&short, 0, 0), Err(MemoryError::BadSize { .. })));
    assert!(matches!(DirtyLog::map(&short, 100, 8), Err(MemoryError::BadSize { .. })));
    assert!(matches!(
        DirtyLog::map(&short, u64::MAX - 4095, 4096),
        Err(MemoryError::BadSize { .. })
    ));
    DirtyLog::map(&short, 0, u64::MAX).expect_err("as long as the address space").to_string();
    let map = |spec| Region::map(spec, &short);
    let one = RegionSpec { guest: PAGE, size: PAGE, user: PAGE, offset: 0 };
    map(one).expect("fits");
    assert!(matches!(map(RegionSpec { offset: 1, ..one }), Err(MemoryError::FileTooShort { .. })));
    for bad in [
        RegionSpec { size: 0, ..one },
        RegionSpec { guest: u64::MAX - PAGE + 1, ..one },
        RegionSpec { user: u64::MAX - PAGE + 1, ..one },
        RegionSpec { offset: u64::MAX, ..one },
    ] {
        assert!(matches!(map(bad), Err(MemoryError::BadSize { .. })), "{bad:?}");
    }
}

fn dirty(bitmap: &File) -> BTreeSet<u64> {
    let mut bytes = vec![0; 4096];
    bitmap.read_exact_at(&mut bytes, 0).unwrap();
    bitmap.write_all_at(&vec![0; 4096], 0).unwrap();
    (0..4096 * 8).filter(|page| bytes[*page as usize / 8] >> (page % 8) & 1 == 1).collect()
}

/// A read of three pages' worth at an odd place, and a write: the pages that the device wrote are
/// logged, and no others.
#[test]
fn device_writes_are_logged() {
    let ram = Ram::new(&[(0x1_0000, 0x1_0000), (0x4_0000, 0x1_0000)]);
    let bitmap = file(PAGE);
    let log = Arc::new(DirtyLog::map(&bitmap, 0, PAGE).expect("map"));
    let ring = [0x1_0000, 0x1_1000, 0x1_2000];
    let read = [
        Desc { addr: 0x1_4000, len: 16, flags: 0, link: 0 },
        Desc { addr: 0x4_0ff0, len: 0x1400, flags: WRITE, link: 0 },
        Desc { addr: 0x1_5000, len: 1, flags: WRITE, link: 0 },
    ];
    let write = [read[0], Desc { flags: 0, ..read[1] }, read[2]];
    let mut driver = PackedDriver::new(&ram, 16, false, ring);
    let mut queue = Queue::new(driver.config(0x8000_8000), ram.memory.clone()).expect("queue");
    let mut serve = |queue: &mut Queue, kind: u32, chain: &[Desc]| {
        ram.write(0x1_4000, &header(kind, 0, 0));
        driver.add(chain, 0).expect("room");
        let slot = queue.take().expect("legal").expect("available");
        queue.answer(slot, Status::Ok);
        queue.show();
        queue.disable_notify();
        driver.reap().expect("used");
        dirty(&bitmap)
    };
    assert_eq!(serve(&mut queue, 0, &read), BTreeSet::new());
    // The ring is logged where it lies; its log address is that of the device's event structure.
    queue.set_log(Some(log.clone()), Some(0x1_2000));
    assert_eq!(serve(&mut queue, 0, &read), BTreeSet::from([0x40, 0x41, 0x42, 0x15, 0x10, 0x12]));
    assert_eq!(serve(&mut queue, 1, &write), BTreeSet::from([0x15, 0x10, 0x12]));
    queue.set_log(Some(log), None);
    assert_eq!(serve(&mut queue, 0, &read), BTreeSet::from([0x40, 0x41, 0x42, 0x15]));
    queue.set_log(None, None);
    assert_eq!(serve(&mut queue, 0, &read), BTreeSet::new());
}

/// Ring, headers and status in one region; data in others that come and go.
struct Session {
    files: Vec<File>,
    ring: File,
    region: Region,
    next: u16,
}

impl Session {
    fn new() -> Session {
        let ring = file(RING_SIZE);
        let region = Region::map(spec(RING, RING_SIZE), &ring).expect("map");
        Session { files: Vec::new(), ring, region, next: 0 }
    }

    /// Memory with a new file at `guest`.
    fn memory(&mut self, guest: u64) -> Arc<GuestMemory> {
        let data = file(PAGE);
        let region = Region::map(spec(guest, PAGE), &data).expect("map");
        self.files.push(data);
        Arc::new(GuestMemory::new(vec![self.region.clone(), region]).expect("memory"))
    }

    /// A read of one page at `guest`, taken.
    fn take(&mut self, queue: &mut Queue, guest: u64) -> Slot {
        let n = self.next % 4;
        let chain = [
            Desc { addr: RING + 0x1000, len: 16, flags: NEXT, link: 4 * n + 1 },
            Desc { addr: guest, len: 4096, flags: NEXT | WRITE, link: 4 * n + 2 },
            Desc { addr: RING + 0x1800 + u64::from(n), len: 1, flags: WRITE, link: 0 },
        ];
        for (i, desc) in (4 * u64::from(n)..).zip(&chain) {
            self.ring.write_all_at(&desc.split(), 16 * i).unwrap();
        }
        self.ring.write_all_at(&header(0, 0, 0), 0x1000).unwrap();
        self.ring
            .write_all_at(&(4 * n).to_le_bytes(), 0x404 + 2 * u64::from(self.next % 16))
            .unwrap();
        self.next += 1;
        self.ring.write_all_at(&self.next.to_le_bytes(), 0x402).unwrap();
        let slot = queue.take().expect("legal").expect("available");
        assert_eq!(queue.request(slot).kind(), RequestKind::In);
        slot
    }
}

#[test]
fn replaced_memory_lives_until_last_answer() {
    let mut session = Session::new();
    let config = config(RingFormat::Split, 16, false, 0, [RING, RING + 0x400, RING + 0x800]);
    let mut queue = Queue::new(config, session.memory(0x10_0000)).expect("queue");
    // A request in each of four memories; a queue that is never idle.
    let mut taken = Vec::new();
    for generation in 0..4usize {
        let guest = 0x10_0000 + 0x1_0000 * generation as u64;
        let slot = session.take(&mut queue, guest);
        let host = queue.request(slot).buffers()[0].iov_base.cast::<u8>();
        // SAFETY: a page that the queue keeps mapped while the request is in flight, which the test
        // looks at.
        unsafe { host.write_bytes(generation as u8 + 1, 4096) };
        taken.push((slot, Arc::downgrade(queue.memory())));
        let next = session.memory(guest + 0x1_0000);
        queue.set_memory(next).expect("the ring is still there");
    }
    for generation in [1, 3, 0, 2] {
        let (slot, memory) = &taken[generation];
        assert_eq!(memory.strong_count(), 1);
        let mut byte = [0];
        session.files[generation].read_exact_at(&mut byte, 4095).unwrap();
        assert_eq!(usize::from(byte[0]), generation + 1);
        queue.answer(*slot, Status::Ok);
        assert_eq!(memory.strong_count(), 0, "generation {generation} stays mapped");
    }
    assert!(queue.show());
    // Memory without the ring is the end.
    let elsewhere = file(PAGE);
    let region = Region::map(spec(0x10_0000, PAGE), &elsewhere).expect("map");
    queue.set_memory(Arc::new(GuestMemory::new(vec![region]).unwrap())).expect_err("no ring");
    assert_eq!(queue.take(), Err(Broken::RingUnmapped));
}

#[test]
fn truncated_memory_is_noticed_and_survived() {
    let mut session = Session::new();
    let memory = session.memory(0x10_0000);
    let config = config(RingFormat::Split, 16, false, 0, [RING, RING + 0x400, RING + 0x800]);
    let mut queue = Queue::new(config, memory).expect("queue");
    let slot = session.take(&mut queue, 0x10_0000);
    assert!(!queue.is_memory_lost());
    session.ring.set_len(0).unwrap();
    queue.answer(slot, Status::Ok);
    queue.show();
    assert!(queue.is_memory_lost());
    queue.take().expect_err("zeroes are no ring that goes on");
}
