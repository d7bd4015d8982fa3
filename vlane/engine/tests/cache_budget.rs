//! `--cache-budget`: data that the guest wrote once leave the page cache above the budget. Data
//! that it reads stay, and no data are lost.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::places::{cached, drop_cache, image, on_disk, open_with, skip};
use common::{Op, Rig, bytes};
use tempfile::TempDir;
use vlane_engine::Engine;
use vlane_engine::file::{Cache, CacheReport, FileEngine, FileOptions};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 96 * MIB;
const BUDGET: u64 = 24 * MIB;

fn open(path: &Path, cache: Cache) -> Arc<FileEngine> {
    open_with(path, FileOptions { cache, cache_budget: Some(BUDGET), ..FileOptions::default() })
}

fn rig(engine: &Arc<FileEngine>) -> Rig {
    Rig::new(Arc::clone(engine) as Arc<dyn Engine>)
}

/// Writes a range once, in its order, as a backup is written.
fn write(rig: &mut Rig, range: std::ops::Range<u64>) {
    for at in range.step_by(1 << 20) {
        rig.ok(Op::write(at / 512, bytes(at, 1 << 20)));
    }
    rig.ok(Op::Flush);
}

/// Waits until a report is as it should be.
fn wait(engine: &FileEngine, is_it: impl Fn(&CacheReport) -> bool) -> CacheReport {
    let begin = Instant::now();
    loop {
        let report = engine.cache_budget().expect("a budget");
        if is_it(&report) {
            return report;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{report:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A directory on the disk and an image in it; none, said loudly, where the system does not report
/// the page cache's content.
fn place() -> Option<(TempDir, PathBuf)> {
    let directory = on_disk();
    let path = image(directory.path(), SIZE);
    let file = std::fs::File::open(&path).unwrap();
    if vlane_engine::pages::cached(&file, &(0..MIB)).is_none() {
        skip("no cachestat here (before Linux 6.5, or forbidden)");
        return None;
    }
    Some((directory, path))
}

#[test]
fn data_written_once_leave_above_the_budget() {
    let Some((_directory, path)) = place() else { return };
    for cache in [Cache::Writeback, Cache::WriteThrough, Cache::Pdc] {
        drop_cache(&path);
        let engine = open(&path, cache);
        let mut rig = rig(&engine);
        write(&mut rig, 0..SIZE);
        let is_bounded = || cached(&path) as u64 * 4096 <= BUDGET;
        let report = wait(&engine, |report| report.dropped > 0 && is_bounded());
        assert!(report.dirty <= report.cached && !report.is_estimate, "{cache:?}: {report:?}");
        assert_eq!((report.read_again, report.is_paused), (0, false), "{cache:?}");
        for at in (0..SIZE).step_by(1 << 20) {
            let read = rig.ok(Op::read(at / 512, 1 << 20));
            assert!(read == bytes(at, 1 << 20), "{cache:?}: {at}");
        }
    }
}

#[test]
fn data_that_are_read_stay() {
    let Some((_directory, path)) = place() else { return };
    let engine = open(&path, Cache::Writeback);
    let mut rig = rig(&engine);
    // More than the budget, and all of it is read.
    for at in (0..40 * MIB).step_by(1 << 20) {
        write(&mut rig, at..at + MIB);
        rig.ok(Op::read(at / 512, 1 << 20));
    }
    let kept = cached(&path);
    write(&mut rig, 40 * MIB..SIZE);
    let report = wait(&engine, |report| report.dropped > 0 && report.cached <= 42 * MIB);
    // A look between a write and its read may find a chunk that is half written.
    assert!(report.read_again <= 4, "{report:?}");
    // A host may drop clean pages whenever it likes.
    assert!(cached(&path) * 4 >= kept * 3, "{} of {kept} pages", cached(&path));
}

#[test]
fn guest_that_reads_what_was_dropped_pauses_it() {
    let Some((_directory, path)) = place() else { return };
    let engine = open(&path, Cache::Writeback);
    let mut rig = rig(&engine);
    write(&mut rig, 0..SIZE);
    wait(&engine, |report| report.dropped >= 48 * MIB && report.cached <= BUDGET);
    for at in (0..SIZE).step_by(1 << 20) {
        rig.ok(Op::read(at / 512, 4096));
    }
    let paused = wait(&engine, |report| report.is_paused);
    assert!(paused.read_again >= 20, "{paused:?}");
    write(&mut rig, 0..SIZE);
    std::thread::sleep(Duration::from_secs(3));
    let now = engine.cache_budget().unwrap();
    assert_eq!(now.dropped, paused.dropped, "{now:?}");
}

#[test]
fn small_writes_and_unwritten_parts_stay() {
    let Some((_directory, path)) = place() else { return };
    // There before, as a base image is.
    std::fs::write(&path, vec![7; SIZE as usize]).unwrap();
    std::fs::File::open(&path).unwrap().sync_all().unwrap();
    let engine = open(&path, Cache::Writeback);
    let mut rig = rig(&engine);
    for at in (0..SIZE).step_by(1 << 20) {
        rig.ok(Op::write(at / 512, bytes(at, 4096)));
    }
    rig.ok(Op::Flush);
    let report = wait(&engine, |report| report.cached > BUDGET);
    std::thread::sleep(Duration::from_secs(3));
    let now = engine.cache_budget().unwrap();
    assert_eq!((report.dropped, now.dropped), (0, 0), "{now:?}");
}

#[test]
fn image_in_memory_or_around_the_cache_has_none() {
    let directory = on_disk();
    let path = image(directory.path(), SIZE);
    let engine = open(&path, Cache::None);
    assert_eq!(engine.cache_budget(), None);
    drop(engine);
    let Some(memory) = common::places::in_memory() else {
        return skip("no tmpfs at /dev/shm");
    };
    let engine = open(&image(memory.path(), SIZE), Cache::Writeback);
    assert_eq!(engine.cache_budget(), None);
}
