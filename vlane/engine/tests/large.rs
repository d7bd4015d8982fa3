//! Large requests: up to 1 GiB in one descriptor, as UEFI's driver makes them. They work in every
//! mode, in parts: no operation, and no copy of the lane's own, is larger than a few MiB. Other
//! requests come in between, and the memory of each is given back.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::apart::Apart;
use common::bytes;
use common::places::{image, in_memory, on_disk, try_open};
use tempfile::TempDir;
use vlane_engine::file::Cache;
use vlane_engine::{Engine, Status};
use vlane_testing::skip;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// The most bytes of a part.
const PART: u64 = 4 * MIB;

/// Counts the allocated bytes.
struct Counting;
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as the trait demands, which is what the system's does.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as above.
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The tests count the process's allocations, so they run one at a time.
static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn one_at_a_time() -> std::sync::MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn engine(path: &Path, cache: Cache) -> Option<Arc<dyn Engine>> {
    match try_open(path, cache) {
        Ok(engine) => Some(engine),
        Err(why) => {
            skip(format!("{}: {why}", path.display()));
            None
        }
    }
}

/// Images in memory and on the disk, with every way of serving them.
fn places(size: u64) -> Vec<(TempDir, PathBuf, Cache)> {
    let mut places = Vec::new();
    for cache in [Cache::Writeback, Cache::None, Cache::WriteThrough] {
        let dir = on_disk();
        let path = image(dir.path(), size);
        places.push((dir, path, cache));
    }
    match in_memory() {
        Some(dir) => {
            let path = image(dir.path(), size);
            places.push((dir, path, Cache::Auto));
        }
        None => skip("no /dev/shm"),
    }
    places
}

/// Other requests are served in between.
#[test]
fn gibibyte_descriptor_is_read_in_parts() {
    let _one = one_at_a_time();
    for (_dir, path, cache) in places(GIB + MIB) {
        if cache == Cache::WriteThrough {
            // Reads as with write-back.
            continue;
        }
        let file = OpenOptions::new().write(true).open(&path).expect("open");
        for at in [0, 5 * MIB - 100, GIB / 2, GIB - 512] {
            file.write_all_at(&bytes(at, 512), at).expect("write");
        }
        drop(file);
        let Some(engine) = engine(&path, cache) else { continue };
        let mut guest = Apart::new(&engine, 4, GIB + MIB);
        let large = guest.offer(0, 0, &[(0, u32::try_from(GIB).unwrap())]);
        let slot = guest.take();
        guest.begin(slot);
        let small = guest.offer(0, 2 * GIB / 1024, &[(GIB, 512)]);
        let slot = guest.take();
        guest.begin(slot);
        let mut before = 0;
        while guest.status(small).is_none() {
            before += guest.turn();
            std::thread::yield_now();
        }
        assert_eq!(
            guest.status(large),
            None,
            "{cache:?}: the small one waited for all of the large one"
        );
        let operations = before + guest.drain();
        assert_eq!(
            (guest.status(large), guest.status(small)),
            (Some(Status::Ok), Some(Status::Ok)),
            "{cache:?}"
        );
        assert!(operations as u64 >= GIB / PART, "{cache:?}: {operations} operations");
        for at in [0, 5 * MIB - 100, GIB / 2, GIB - 512] {
            assert!(guest.get(at, 512) == bytes(at, 512), "{cache:?}: at {at}");
        }
        // One byte more than 1 GiB and a sector is no request.
        let more = guest.offer(0, 0, &[(0, u32::try_from(GIB).unwrap()), (GIB, 512)]);
        let slot = guest.take();
        assert_eq!(
            guest.lane.queue.request(slot).kind(),
            vlane_ring::RequestKind::Refused(Status::IoErr)
        );
        guest.lane.queue.answer(slot, Status::IoErr);
        assert_eq!(guest.status(more), Some(Status::IoErr));
    }
}

#[test]
fn large_transfers_keep_bytes_in_any_layout() {
    let _one = one_at_a_time();
    const LEN: u64 = 33 * MIB + 4096;
    for (_dir, path, cache) in places(64 * MIB) {
        // In one buffer; in a few that end anywhere in a part; not aligned to anything, which
        // direct I/O bounces.
        for (shift, cuts) in
            [(0, vec![]), (0, vec![PART - 4096, 20 * MIB]), (512, vec![7 * MIB + 1, 8 * MIB + 3])]
        {
            let Some(engine) = engine(&path, cache) else { continue };
            let pieces = |from: u64| {
                let mut ends = cuts.clone();
                ends.push(LEN);
                let mut at = 0;
                ends.into_iter()
                    .map(|end| {
                        let piece = (from + at, u32::try_from(end - at).unwrap());
                        at = end;
                        piece
                    })
                    .collect::<Vec<_>>()
            };
            let mut guest = Apart::new(&engine, 4, 128 * MIB);
            let data = bytes(shift + cuts.len() as u64, usize::try_from(LEN).unwrap());
            let (from, to) = (shift, 64 * MIB + shift);
            guest.put(from, &data);
            for (kind, at) in [(1, from), (0, to)] {
                let number = guest.offer(kind, 8, &pieces(at));
                let slot = guest.take();
                let before = ALLOCATED.load(Ordering::Relaxed);
                guest.begin(slot);
                guest.drain();
                let after = ALLOCATED.load(Ordering::Relaxed);
                assert_eq!(
                    guest.status(number),
                    Some(Status::Ok),
                    "{cache:?} {shift} {cuts:?} type {kind}"
                );
                assert!(
                    after < before + 4 * 1024 * 1024,
                    "{cache:?}: {} bytes more",
                    after - before
                );
            }
            assert!(guest.get(to, data.len()) == data, "{cache:?} {shift} {cuts:?}");
        }
    }
}

#[test]
fn memory_image_is_zeroed_in_parts() {
    let _one = one_at_a_time();
    let Some(dir) = in_memory() else { return skip("no /dev/shm") };
    let path = image(dir.path(), 256 * MIB);
    let Some(engine) = engine(&path, Cache::Auto) else { return };
    for kind in [13, 11] {
        let file = OpenOptions::new().write(true).open(&path).expect("open");
        let marks = [0, 40 * MIB - 4096, 100 * MIB, 200 * MIB - 512];
        for at in marks.iter().chain(&[200 * MIB]) {
            file.write_all_at(&bytes(1, 512), *at).expect("write");
        }
        let mut guest = Apart::new(&engine, 2, MIB);
        let range = |sector: u64, sectors: u32| {
            [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &[0; 4]].concat()
        };
        let sectors = u32::try_from(100 * MIB / 512).unwrap();
        guest.put(0, &[range(0, sectors), range(0, 0), range(100 * MIB / 512, sectors)].concat());
        let number = guest.offer(kind, 0, &[(0, 48)]);
        let slot = guest.take();
        guest.begin(slot);
        assert!(guest.drain() >= 12, "in one go");
        assert_eq!(guest.status(number), Some(Status::Ok));
        let content = std::fs::read(&path).expect("read");
        assert!(content[..usize::try_from(200 * MIB).unwrap()].iter().all(|byte| *byte == 0));
        assert!(content[usize::try_from(200 * MIB).unwrap()..][..512] == bytes(1, 512));
    }
}

#[test]
fn many_buffer_request_gives_memory_back() {
    let _one = one_at_a_time();
    const SLOTS: usize = 200;
    for (_dir, path, cache) in places(16 * MIB) {
        let Some(engine) = engine(&path, cache) else { continue };
        let mut guest = Apart::new(&engine, 2 * SLOTS, 4 * MIB);
        // Each in a slot of its own: all are taken before the first is begun. Not aligned: direct
        // I/O has lists of its own for them.
        let many = |guest: &mut Apart, buffers: u64| {
            for chunk in 0..SLOTS / 10 {
                let numbers: Vec<usize> = (0..10)
                    .map(|n| {
                        let pieces: Vec<(u64, u32)> =
                            (0..buffers).map(|i| (1 + 512 * i, 512)).collect();
                        guest.offer(0, (chunk * 10 + n) as u64 % 8, &pieces)
                    })
                    .collect();
                let slots: Vec<_> = numbers.iter().map(|_| guest.take()).collect();
                slots.into_iter().for_each(|slot| guest.begin(slot));
                guest.drain();
                assert!(
                    numbers.iter().all(|number| guest.status(*number) == Some(Status::Ok)),
                    "{cache:?}"
                );
            }
        };
        many(&mut guest, 1);
        let before = ALLOCATED.load(Ordering::Relaxed);
        many(&mut guest, 1000);
        let grown = ALLOCATED.load(Ordering::Relaxed).saturating_sub(before);
        // Ten slots that keep a thousand buffers take 160 KiB, twice that with lists of their own.
        // Bounce buffers are kept, some.
        let bounces = if cache == Cache::None { 9 << 20 } else { 0 };
        assert!(grown < bounces + (100 << 10), "{cache:?}: {grown} bytes are kept");
    }
}

#[test]
fn requests_beyond_bounce_buffers_wait_and_finish() {
    let _one = one_at_a_time();
    const REQUESTS: usize = 300;
    let dir = on_disk();
    let path = image(dir.path(), 16 * MIB);
    let Some(engine) = engine(&path, Cache::None) else { return };
    let data = bytes(3, usize::try_from(16 * MIB).unwrap());
    std::fs::write(&path, &data).expect("write");
    let mut guest = Apart::new(&engine, 2 * REQUESTS, 512 * MIB);
    for len in [512u32, 256 << 10] {
        let before = ALLOCATED.load(Ordering::Relaxed);
        let at = |n: usize| n as u64 * MIB + 1;
        let sector = |n: usize| n as u64 % 32 * 32 + 1;
        let numbers: Vec<usize> =
            (0..REQUESTS).map(|n| guest.offer(0, sector(n), &[(at(n), len)])).collect();
        let slots: Vec<_> = numbers.iter().map(|_| guest.take()).collect();
        slots.into_iter().for_each(|slot| guest.begin(slot));
        let taken = ALLOCATED.load(Ordering::Relaxed).saturating_sub(before);
        assert!(taken < 33 << 20, "{taken} bytes for what {REQUESTS} requests of {len} asked for");
        guest.drain();
        for (n, number) in numbers.into_iter().enumerate() {
            assert_eq!(guest.status(number), Some(Status::Ok), "{len}: request {n}");
            let from = usize::try_from(sector(n)).unwrap() * 512;
            assert!(
                guest.get(at(n), len as usize) == data[from..from + len as usize],
                "{len}: request {n}"
            );
        }
    }
}
