//! Direct regions (`--cache pdc --journal direct`): data in one goes around the page cache,
//! requests are split at the borders, and the map changes only where no request is under way.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

mod common;

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::places::{Loop, current_report, image, in_memory, on_disk, open_with, skip};
use common::{Op, Rig, bytes};
use tempfile::TempDir;
use vlane_engine::file::{Cache, FileEngine, FileOptions, JournalWay};
use vlane_engine::{Engine, Status};
use vlane_policy::journal::layout::JournalLayout;
use vlane_policy::journal::{Evidence, FileSystem, Journal, LogKind};

const FOLIO: u64 = 2 << 20;
const SIZE: u64 = 4 * FOLIO;
const REGION: Range<u64> = FOLIO..2 * FOLIO;

fn options(journal: JournalWay) -> FileOptions {
    FileOptions { cache: Cache::Pdc, journal, ..FileOptions::default() }
}

/// A volume that can have regions, on the disk.
fn volume() -> Option<(TempDir, Arc<FileEngine>)> {
    let dir = on_disk();
    let engine = open_with(&image(dir.path(), SIZE), options(JournalWay::Direct));
    match engine.journal()?.direct.refusal {
        None => Some((dir, engine)),
        Some(why) => {
            skip(format!("no direct regions where the build goes: {why}"));
            None
        }
    }
}

fn lane(engine: &Arc<FileEngine>) -> Rig {
    Rig::new(Arc::clone(engine) as Arc<dyn Engine>)
}

fn layout(ranges: &[Range<u64>]) -> JournalLayout {
    let (filesystem, kind, way) = (FileSystem::Ext4, LogKind::Journal, Evidence::Layout);
    let journal = Journal { filesystem, kind, way, ranges: ranges.to_vec() };
    JournalLayout { journals: vec![journal], watched: Vec::new() }
}

fn ranges(engine: &FileEngine) -> Vec<Range<u64>> {
    current_report(engine).direct.ranges
}

/// Lets lanes work until it is so.
fn until(what: &str, rigs: &mut [&mut Rig], mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "never {what}");
        for rig in &mut *rigs {
            rig.reap(Instant::now());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// These are the regions, from now on.
fn set(engine: &FileEngine, rigs: &mut [&mut Rig], wanted: &[Range<u64>]) {
    engine.pretend_layout(layout(wanted));
    until("direct", rigs, || ranges(engine) == wanted);
}

fn cached(engine: &FileEngine) -> u64 {
    engine.journal().and_then(|report| report.cached).expect("cachestat")
}

/// No page of a region is in the page cache.
#[test]
fn requests_across_region_borders_keep_data() {
    let Some((dir, engine)) = volume() else { return };
    let mut rig = lane(&engine);
    set(&engine, &mut [&mut rig], &[REGION]);
    let mut model = bytes(1, SIZE as usize);
    for at in (0..SIZE).step_by(1 << 20) {
        rig.ok(Op::write(at / 512, model[at as usize..][..1 << 20].to_vec()));
    }
    let borders = [REGION.start / 512, REGION.end / 512];
    for (number, border) in borders.into_iter().cycle().take(12).enumerate() {
        let (before, after) = ([1, 7, 8, 100][number % 4], [1, 8, 9, 333][number / 2 % 4]);
        let (sector, len) = (border - before, ((before + after) * 512) as usize);
        // In one buffer, in a crooked one, in several.
        let pieces = match number % 3 {
            0 => vec![(0, len)],
            1 => vec![(3, len)],
            _ => vec![(0, 512), (1, len - 512)],
        };
        let data = bytes(number as u64 + 9, len);
        model[sector as usize * 512..][..len].copy_from_slice(&data);
        rig.ok(Op::Write { sector, pieces: pieces.clone(), data });
        let found =
            rig.ok(Op::Read { sector: sector - 5, pieces: vec![(number % 3, len + 5 * 512)] });
        assert!(found == model[(sector as usize - 5) * 512..][..len + 5 * 512], "request {number}");
        for unmap in [false, true] {
            let (from, count) = (border - 30 + 3 * number as u64, 31 + u64::from(unmap));
            model[from as usize * 512..][..count as usize * 512].fill(0);
            rig.ok(Op::WriteZeroes { ranges: vec![(from, count as u32), (from + 2, 1)], unmap });
        }
        let found = rig.ok(Op::read(border - 512, 1 << 19));
        assert!(found == model[(border as usize - 512) * 512..][..1 << 19], "zeroing {number}");
    }
    // Discarded sectors may read as anything; their neighbours stay.
    rig.ok(Op::Discard(vec![(borders[1] - 3, 6), (borders[0] - 9, 18)]));
    for (at, len) in [(borders[1] - 3, 6), (borders[0] - 9, 18)] {
        let data = bytes(at, len * 512);
        model[at as usize * 512..][..len * 512].copy_from_slice(&data);
        rig.ok(Op::write(at, data));
    }
    rig.ok(Op::Flush);
    assert_eq!(cached(&engine), 0, "{:?}", engine.journal());
    let written = engine.journal().map(|report| report.direct.written);
    assert!(written > Some(FOLIO), "{written:?}");
    // And back.
    set(&engine, &mut [&mut rig], &[]);
    for at in (0..SIZE).step_by(1 << 20) {
        assert!(rig.ok(Op::read(at / 512, 1 << 20)) == model[at as usize..][..1 << 20], "{at}");
    }
    drop((rig, engine));
    assert!(std::fs::read(dir.path().join("image.raw")).expect("read") == model);
}

#[test]
fn lanes_changing_one_region_block_lose_none() {
    let Some((_dir, engine)) = volume() else { return };
    set(&engine, &mut [], &[REGION]);
    let first = REGION.start / 512;
    std::thread::scope(|threads| {
        for number in 0..4u64 {
            let engine = &engine;
            threads.spawn(move || {
                let mut rig = lane(engine);
                for round in 0..60 {
                    // Each lane has sectors of its own, of the same four blocks.
                    let sector = first + round % 4 * 8 + number * 2;
                    let value = if round >= 56 { number as u8 + 1 } else { round as u8 };
                    match round % 3 {
                        0 if round < 56 => rig.ok(Op::WriteZeroes {
                            ranges: vec![(sector, 2)],
                            unmap: round % 2 == 0,
                        }),
                        _ => rig.ok(Op::Write {
                            sector,
                            pieces: vec![(round as usize % 2, 1024)],
                            data: vec![value; 1024],
                        }),
                    };
                }
            });
        }
    });
    let mut rig = lane(&engine);
    let found = rig.ok(Op::read(first, 4 * 4096));
    let expected: Vec<u8> =
        (1..=4).flat_map(|number| [number; 1024]).collect::<Vec<u8>>().repeat(4);
    assert!(found == expected);
    assert_eq!(cached(&engine), 0);
}

#[test]
fn durable_region_write_needs_no_flush() {
    let Some((_dir, engine)) = volume() else { return };
    let mut rig = lane(&engine);
    set(&engine, &mut [&mut rig], &[REGION]);
    rig.set_write_through(true);
    let write = |sector| Op::write(sector, vec![7; 8192]);
    // Makes durable what was answered before.
    rig.ok(write(0));
    let before = rig.stats().fdatasyncs;
    for sector in [REGION.start / 512, REGION.start / 512 - 8, REGION.end / 512 - 3] {
        rig.ok(write(sector));
    }
    assert_eq!(rig.stats().fdatasyncs, before);
    rig.set_write_through(false);
    rig.ok(write(REGION.start / 512));
    rig.ok(Op::Flush);
    assert_eq!(rig.stats().fdatasyncs, before + 1, "it was not durable");
}

/// A lane has a request under way where the map is going to change, and does not look at its end.
fn stuck(engine: &Arc<FileEngine>) -> Rig {
    let mut rig = lane(engine);
    rig.start(Op::read(REGION.start / 512 + 8, 4096));
    rig.begin();
    engine.pretend_layout(layout(&[REGION]));
    until("held", &mut [], || engine.journal().is_some_and(|report| report.direct.is_changing));
    rig
}

/// Other requests and flushes continue.
#[test]
fn only_requests_in_changing_region_are_held() {
    let Some((_dir, engine)) = volume() else { return };
    let mut other = lane(&engine);
    other.ok(Op::write(REGION.start / 512, vec![1; 4096]));
    let mut stuck = stuck(&engine);
    // Outside, and durable all the same.
    other.ok(Op::write(0, vec![2; 4096]));
    other.ok(Op::Flush);
    assert!(ranges(&engine).is_empty(), "nothing has changed while a request is under way");
    for op in [Op::read(REGION.start / 512, 4096), Op::write(REGION.start / 512 - 1, vec![3; 1024])]
    {
        other.start(op);
    }
    other.begin();
    for _ in 0..20 {
        other.reap(Instant::now());
        std::thread::sleep(Duration::from_millis(1));
    }
    let early = other.collect();
    // Unless the machine was so slow that the change was put off.
    let put_off = current_report(&engine).direct.put_off;
    assert!(early.is_empty() || put_off > 0, "held");
    assert_eq!(stuck.drain().len(), 1);
    let answers = other.drain();
    assert_eq!(early.len() + answers.len(), 2);
    assert!(early.iter().chain(&answers).all(|answer| answer.status == Status::Ok));
    until("direct", &mut [&mut stuck, &mut other], || ranges(&engine) == [REGION]);
    let found = other.ok(Op::read(REGION.start / 512 - 1, 1536));
    assert!(
        found[..1024].iter().all(|byte| *byte == 3) && found[1024..].iter().all(|byte| *byte == 1)
    );
}

/// A held request can be put back into its ring.
#[test]
fn slow_region_change_is_put_off() {
    let Some((_dir, engine)) = volume() else { return };
    let mut stuck = stuck(&engine);
    let mut other = lane(&engine);
    other.start(Op::read(REGION.start / 512, 4096));
    let slot = other.lane.take().expect("the request");
    other.lane.begin(slot);
    other.lane.put_back(slot);
    // The old map stays in force, so it continues although the first one is still under way.
    assert_eq!(other.drain().len(), 1);
    until("put off", &mut [&mut other], || {
        engine.journal().is_some_and(|report| report.direct.put_off > 0)
    });
    assert!(ranges(&engine).is_empty());
    // And a lane that goes is not waited for.
    assert_eq!(stuck.drain().len(), 1);
    drop(stuck);
    until("direct", &mut [&mut other], || ranges(&engine) == [REGION]);
}

/// A page of a file, mapped: it stays in the page cache.
struct Mapped(*mut libc::c_void);

impl Mapped {
    fn new(path: &Path, offset: u64) -> Mapped {
        let file = std::fs::File::open(path).expect("open");
        // SAFETY: a new mapping at an address of the kernel's choice, of a file that is longer;
        // read within, and gone with this.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                4096,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset as libc::off_t,
            );
            assert_ne!(at, libc::MAP_FAILED);
            std::hint::black_box(at.cast::<u8>().read_volatile());
            Mapped(at)
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping of `new`.
        unsafe { libc::munmap(self.0, 4096) };
    }
}

#[test]
fn reader_leaves_region_that_refills() {
    let Some((dir, engine)) = volume() else { return };
    let path = dir.path().join("image.raw");
    let mut rig = lane(&engine);
    set(&engine, &mut [&mut rig], &[REGION]);
    rig.ok(Op::write(REGION.start / 512, vec![1; 4096]));
    std::fs::read(&path).expect("read");
    assert!(cached(&engine) > 0);
    for _ in 0..4 {
        engine.sync().expect("sync");
    }
    assert_eq!((cached(&engine), ranges(&engine)), (0, vec![REGION]));
    // A mapping keeps a page: the region is to be left, and stays direct until the page has gone.
    let mapped = Mapped::new(&path, REGION.start);
    for _ in 0..4 {
        engine.sync().expect("sync");
    }
    until("put off", &mut [&mut rig], || {
        engine.journal().is_some_and(|report| report.direct.put_off > 0)
    });
    assert_eq!(ranges(&engine), [REGION]);
    rig.ok(Op::write(REGION.start / 512, vec![2; 4096]));
    assert!(rig.ok(Op::read(REGION.start / 512, 4096)).iter().all(|byte| *byte == 2));
    drop(mapped);
    until("left", &mut [&mut rig], || ranges(&engine).is_empty());
    assert_eq!(engine.journal().map(|report| report.direct.given_up), Some(vec![REGION]));
    assert!(rig.ok(Op::read(REGION.start / 512, 4096)).iter().all(|byte| *byte == 2));
    // For good.
    let elsewhere = Range { start: 2 * FOLIO, end: 3 * FOLIO };
    set(&engine, &mut [&mut rig], &[elsewhere]);
    engine.pretend_layout(layout(&[REGION]));
    until("changed", &mut [&mut rig], || ranges(&engine).is_empty());
}

#[test]
fn no_regions_without_option_or_in_memory() {
    let dir = on_disk();
    let engine = open_with(&image(dir.path(), SIZE), options(JournalWay::Drop));
    engine.pretend_layout(layout(&[REGION]));
    let direct = engine.journal().expect("watched").direct;
    assert!(direct.refusal.is_some_and(|why| why.contains("--journal drop")));
    assert!(direct.ranges.is_empty() && !direct.is_changing);
    if let Some(dir) = in_memory() {
        let engine = open_with(&image(dir.path(), SIZE), options(JournalWay::Direct));
        assert_eq!((engine.cache(), engine.journal()), (Cache::Writeback, None));
    }
}

#[test]
fn stale_device_pages_go_before_first_read() {
    let dir = on_disk();
    let device = match Loop::new(&image(dir.path(), SIZE), 512) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    // The second open file keeps the last close from emptying the page cache.
    let other = std::fs::File::open(&device.device).expect("open");
    // A host may drop clean pages whenever it likes.
    let left = |options: Option<FileOptions>| {
        let _ = std::fs::read(&device.device).expect("read");
        let engine = options.map(|options| open_with(&device.device, options));
        let refusal = engine
            .as_ref()
            .and_then(|engine| engine.journal())
            .and_then(|report| report.direct.refusal);
        (vlane_engine::pages::cached(&other, &(0..SIZE)), refusal)
    };
    let (Some(before), _) = left(None) else {
        return skip("no cachestat here (before Linux 6.5, or forbidden)");
    };
    let (after, refusal) = left(Some(options(JournalWay::Direct)));
    assert_eq!(refusal, None);
    assert!(after.is_some_and(|after| after < before / 4), "{after:?} of {before} pages");
    // A killed server may have written around it, for any next one.
    for cache in [Cache::Writeback, Cache::WriteThrough, Cache::Pdc, Cache::None] {
        for read_only in [false, true] {
            let (after, _) = left(Some(FileOptions { cache, read_only, ..FileOptions::default() }));
            assert!(
                after.is_some_and(|after| after < before / 4),
                "{cache:?}: {after:?} of {before} pages"
            );
        }
    }
}
