//! Dirty pages are written back early while the guest has a foreground, and only then.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

mod common;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::places::{image, on_disk, open, skip};
use common::{Op, Rig, bytes};
use tempfile::TempDir;
use vlane_engine::file::Cache;
use vlane_engine::{Class, Decisions, Engine, Mode, pages};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;

/// A directory on the disk and an image in it; none, said loudly, where the system does not report
/// the page cache's content.
fn place() -> Option<(TempDir, PathBuf)> {
    let directory = on_disk();
    let path = image(directory.path(), SIZE);
    if pages::count(&File::open(&path).unwrap(), &(0..MIB)).is_none() {
        skip("no cachestat here (before Linux 6.5, or forbidden)");
        return None;
    }
    Some((directory, path))
}

/// Dirty pages of the image.
fn dirty(path: &Path) -> u64 {
    let pages = pages::count(&File::open(path).unwrap(), &(0..SIZE)).unwrap();
    pages.dirty + pages.writeback
}

fn rig(path: &Path, cache: Cache, mode: Mode) -> Rig {
    let mut rig = Rig::new(open(path, cache) as Arc<dyn Engine>);
    rig.lane.channel.set_mode(mode);
    rig
}

/// Requests of this class from now on.
fn set_class(rig: &mut Rig, class: Class) {
    rig.lane.policy = Some(Decisions { class, ..rig.lane.channel.defaults() });
}

/// A background program writes all of the image, through the guest's own cache.
fn write(rig: &mut Rig) {
    set_class(rig, Class::Background);
    for at in (0..SIZE).step_by(MIB as usize) {
        rig.ok(Op::write(at / 512, bytes(at, MIB as usize)));
    }
}

#[test]
fn foreground_has_dirty_pages_written_back() {
    let Some((_directory, path)) = place() else { return };
    for (cache, mode) in [
        (Cache::Writeback, Mode::On),
        (Cache::Pdc, Mode::Order),
        (Cache::Writeback, Mode::Shortest),
    ] {
        let mut rig = rig(&path, cache, mode);
        write(&mut rig);
        set_class(&mut rig, Class::Express);
        let begin = Instant::now();
        while dirty(&path) > 0 {
            assert!(begin.elapsed() < Duration::from_secs(20), "{cache:?}: {} pages", dirty(&path));
            rig.ok(Op::read(0, 4096));
            std::thread::sleep(Duration::from_millis(20));
        }
        for at in (0..SIZE).step_by(MIB as usize) {
            assert!(rig.ok(Op::read(at / 512, MIB as usize)) == bytes(at, MIB as usize));
        }
    }
}

#[test]
fn dirty_pages_stay_without_foreground() {
    let Some((_directory, path)) = place() else { return };
    for (class, mode) in [
        (Class::Normal, Mode::On),
        (Class::Promoted, Mode::On),
        (Class::Background, Mode::On),
        (Class::Express, Mode::Off),
    ] {
        let mut rig = rig(&path, Cache::Writeback, mode);
        rig.ok(Op::Flush);
        write(&mut rig);
        let before = dirty(&path);
        set_class(&mut rig, class);
        for _ in 0..50 {
            rig.ok(Op::read(0, 4096));
            std::thread::sleep(Duration::from_millis(20));
        }
        // The kernel begins by itself above a tenth of free memory, or after 30 s.
        let after = dirty(&path);
        assert!(after * 4 >= before * 3, "{class:?}: {after} of {before} pages are dirty");
    }
}

#[test]
fn volume_without_dirty_pages_has_no_thread() {
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")));
        names.filter(|name| name.as_ref().is_ok_and(|name| name.trim() == "early-write")).count()
    };
    // A thread names itself when it runs first, and the system lists it for a moment after its end.
    let wait_for = |expected: usize, case: &str| {
        let begin = Instant::now();
        while threads() != expected {
            assert!(begin.elapsed() < Duration::from_secs(20), "{case}: {} threads", threads());
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    // A program of its own: the other tests' threads have the same name.
    if std::env::var_os("VLANE_TEST_ALONE").is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "volume_without_dirty_pages_has_no_thread"])
            .env("VLANE_TEST_ALONE", "1")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    let directory = on_disk();
    let path = image(directory.path(), SIZE);
    for (cache, mode, expected) in [
        (Cache::None, Mode::On, 0),
        (Cache::WriteThrough, Mode::On, 0),
        (Cache::Writeback, Mode::Off, 0),
        (Cache::Writeback, Mode::On, 1),
    ] {
        let rig = rig(&path, cache, mode);
        std::thread::sleep(Duration::from_millis(50));
        wait_for(expected, &format!("{cache:?} {mode:?}"));
        drop(rig);
        wait_for(0, &format!("{cache:?}: it ends with its volume"));
    }
}
