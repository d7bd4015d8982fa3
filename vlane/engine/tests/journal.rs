//! `--cache pdc`: the pages of the guest's journal go from the page cache once they are flushed,
//! and no others do; no data is lost by it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

mod common;

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::places::{Loop, cached, drop_cache, image, in_memory, on_disk, open, skip};
use common::{Op, Rig, bytes};
use vlane_engine::file::{Cache, FileEngine, FileOptions, JournalReport};
use vlane_engine::{Engine, Status, pages};
use vlane_policy::journal::layout::JournalLayout;
use vlane_policy::journal::{Evidence, FileSystem, Journal, LogKind};
use vlane_trace::storage::{History, Reader};

const MIB: u64 = 1 << 20;
const SIZE: u64 = 64 * MIB;
/// Not at a folio's border at either end.
const JOURNAL: Range<u64> = 9 * MIB + 4096..17 * MIB + 8192;

/// One at a time: some look at the threads of this process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn layout(ranges: Vec<Range<u64>>) -> JournalLayout {
    let journal = Journal {
        filesystem: FileSystem::Ext4,
        kind: LogKind::Journal,
        way: Evidence::Layout,
        ranges,
    };
    JournalLayout { journals: vec![journal], watched: Vec::new() }
}

/// From now on this is the layout, and the thread knows it.
fn pretend(engine: &FileEngine, ranges: Vec<Range<u64>>) {
    engine.pretend_layout(layout(ranges));
    if engine.journal().is_some() {
        report(engine);
    }
}

fn rig(engine: &Arc<FileEngine>) -> Rig {
    Rig::new(Arc::clone(engine) as Arc<dyn Engine>)
}

fn report(engine: &FileEngine) -> JournalReport {
    // Beside other load the thread may take its time.
    let mut report = engine.journal().expect("pdc");
    for _ in 0..60 {
        if report.is_current {
            return report;
        }
        std::thread::sleep(Duration::from_secs(1));
        report = engine.journal().expect("pdc");
    }
    panic!("the journal thread does not answer: {report:?}");
}

/// Writes round a journal as a guest's file system does, with a flush after each 16 KiB; between
/// them other data, which is there before.
fn commits(rig: &mut Rig, count: u64) {
    let mut at = JOURNAL.start;
    for number in 0..count {
        if at + 16384 > JOURNAL.end {
            at = JOURNAL.start;
        }
        rig.ok(Op::write(at / 512, bytes(number, 16384)));
        if number % 16 == 0 {
            rig.ok(Op::write(30 * MIB / 512 + number % 4096, bytes(number, 4096)));
        }
        rig.ok(Op::Flush);
        at += 16384;
        // A thread without a CPU must not miss the rest.
        if number % 128 == 127
            && let Some(mut report) = rig.engine.journal()
        {
            let begin = Instant::now();
            while !report.is_current {
                assert!(begin.elapsed() < Duration::from_secs(60), "{report:?}");
                report = rig.engine.journal().expect("pdc");
            }
        }
    }
}

/// Returns the cached bytes after a round of the journal and a half: pages of the journal. Most
/// others are.
///
/// A host may drop clean pages whenever it likes, and some do so long before memory runs short: so
/// no test counts on all of them.
fn cached_after_commits(path: &Path, cache: Cache) -> usize {
    let engine = open(path, cache);
    pretend(&engine, vec![JOURNAL]);
    let mut rig = rig(&engine);
    drop_cache(path);
    for at in (0..8 * MIB).chain(18 * MIB..SIZE).step_by(1 << 20) {
        rig.ok(Op::write(at / 512, bytes(at, 1 << 20)));
    }
    rig.ok(Op::Flush);
    let others = cached(path);
    commits(&mut rig, (JOURNAL.end - JOURNAL.start) / 16384 * 3 / 2);
    if cache == Cache::Pdc {
        let report = report(&engine);
        let traffic = report.traffic;
        let (written, all) = (traffic.journal_written.sum(), traffic.written);
        assert!(written == traffic.journal_written.layout && written >= 11 * MIB, "{report:?}");
        assert!(all - written >= 53 * MIB && report.lost == 0, "{report:?}");
        assert!(traffic.journal_footprint <= JOURNAL.end - JOURNAL.start, "{report:?}");
        assert!(traffic.journal_footprint > JOURNAL.end - JOURNAL.start - 16384, "{report:?}");
        assert!(traffic.flushes == traffic.journal_flushes + 1, "{report:?}");
        assert!(report.dropped.layout + 5 * MIB > written, "{report:?}");
        if let Some(bytes) = report.cached {
            assert!(bytes <= 3 * MIB, "{report:?}");
        }
    }
    let now = cached(path);
    // The others are where they were.
    let file = std::fs::File::open(path).expect("open");
    rustix::fs::fadvise(
        &file,
        JOURNAL.start,
        std::num::NonZeroU64::new(JOURNAL.end - JOURNAL.start),
        rustix::fs::Advice::DontNeed,
    )
    .expect("fadvise");
    let rest = cached(path);
    assert!(rest >= others * 3 / 4, "{cache:?}: {rest} of {others} pages that are no journal's");
    now - rest
}

#[test]
fn flush_drops_only_the_journal_s_pages() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), SIZE);
    let journal = cached_after_commits(&path, Cache::Pdc);
    assert!(journal <= 3 * 256, "{journal} pages of the journal are in the page cache");
    // The same without: all of it is there.
    let journal = cached_after_commits(&path, Cache::Writeback);
    assert!(journal >= 6 * 256, "only {journal} pages of the journal are in the page cache");
}

#[test]
fn device_s_journal_is_dropped_too() {
    let _alone = alone();
    let dir = on_disk();
    let device = match Loop::new(&image(dir.path(), SIZE), 512) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    let journal = cached_after_commits(&device.device, Cache::Pdc);
    assert!(journal <= 3 * 256, "{journal} pages of the journal are in the page cache");
}

#[test]
fn journal_is_dropped_without_write_cache() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), SIZE);
    let engine = open(&path, Cache::Pdc);
    pretend(&engine, vec![JOURNAL]);
    let mut rig = rig(&engine);
    rig.set_write_through(true);
    for number in 0..512 {
        rig.ok(Op::write((JOURNAL.start + number * 16384) / 512, bytes(number, 16384)));
    }
    let report = report(&engine);
    assert!(report.dropped.layout >= 5 * MIB, "{report:?}");
    assert!(cached(&path) <= 3 * 256, "{} pages are in the page cache", cached(&path));
}

#[test]
fn unflushed_pages_stay_until_the_end() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), SIZE);
    let engine = open(&path, Cache::Pdc);
    pretend(&engine, vec![JOURNAL]);
    let mut rig = rig(&engine);
    for number in 0..64 {
        rig.ok(Op::write((JOURNAL.start + number * 65536) / 512, bytes(number, 65536)));
    }
    assert_eq!(report(&engine).dropped.sum(), 0);
    assert!(cached(&path) >= 1024, "not written back, they stay");
    // The thread that ends a page's write-back holds the page for a moment longer, in which the
    // system does not drop it: the drop is retried at the next.
    let is_dropped = (0..1000).any(|_| {
        engine.sync().expect("sync");
        report(&engine).dropped.layout == 4 * MIB
    });
    assert!(is_dropped, "{:?}", report(&engine));
    assert!(cached(&path) < 64, "what is read at its opening");
}

#[test]
fn channel_knows_where_journals_are() {
    let _alone = alone();
    let dir = on_disk();
    let engine = open(&image(dir.path(), SIZE), Cache::Pdc);
    let mut rig = rig(&engine);
    let mut is_in_journal = |at: u64| {
        let before = rig.lane.in_journal;
        rig.ok(Op::write(at / 512, bytes(at, 4096)));
        rig.lane.in_journal > before
    };
    assert!(!is_in_journal(JOURNAL.start));
    for places in [vec![JOURNAL], vec![0..4096, 32 * MIB..33 * MIB], Vec::new()] {
        pretend(&engine, places.clone());
        for at in [0, 4096, JOURNAL.start, JOURNAL.end - 4096, JOURNAL.end, 32 * MIB] {
            let expected = places.iter().any(|place| place.contains(&at));
            assert_eq!(is_in_journal(at), expected, "{at} {places:?}");
        }
    }
}

#[test]
fn read_only_and_memory_images_seek_no_journal() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), MIB);
    let read_only = FileOptions { cache: Cache::Pdc, read_only: true, ..FileOptions::default() };
    let engine = FileEngine::open(&path, read_only).expect("open");
    assert_eq!((engine.cache(), engine.journal()), (Cache::Pdc, None));
    drop(engine);
    assert_eq!(open(&path, Cache::Writeback).journal(), None);
    let Some(memory) = in_memory() else { return skip("no /dev/shm") };
    let engine = open(&image(memory.path(), MIB), Cache::Pdc);
    assert_eq!((engine.cache(), engine.journal()), (Cache::Writeback, None));
    assert!(engine.is_mapped());
}

/// An engine whose journal is known, and whose flushes write only that, or everything.
fn flushing(path: &Path, danger_flush_journal_only: bool) -> FileEngine {
    let options =
        FileOptions { cache: Cache::Pdc, danger_flush_journal_only, ..FileOptions::default() };
    FileEngine::open(path, options).expect("open")
}

/// Without a journal it is a whole flush.
#[test]
fn journal_only_flush_leaves_other_pages_dirty() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), SIZE);
    let file = std::fs::File::open(&path).expect("open");
    let dirty =
        |range: Range<u64>| pages::count(&file, &range).map(|pages| pages.dirty + pages.writeback);
    let others = 30 * MIB..38 * MIB;
    if dirty(0..4096).is_none() {
        return skip("no cachestat here (before Linux 6.5, or forbidden)");
    }
    let engine = Arc::new(flushing(&path, true));
    let mut rig = rig(&engine);
    let mut seen = 0;
    // The system may write pages back whenever it likes.
    for round in 0..20 {
        pretend(&engine, vec![JOURNAL]);
        rig.ok(Op::write(JOURNAL.start / 512, bytes(round, 16384)));
        rig.ok(Op::write(others.start / 512, bytes(round, 1 << 20)));
        rig.ok(Op::Flush);
        assert_eq!(dirty(JOURNAL), Some(0), "of the journal nothing");
        seen += dirty(others.clone()).unwrap_or(0);

        pretend(&engine, Vec::new());
        rig.ok(Op::write(others.start / 512, bytes(round, 4096)));
        rig.ok(Op::Flush);
        assert_eq!(dirty(others.clone()), Some(0), "no journal is known: a whole flush");
    }
    assert!(seen >= 256, "{seen} pages of others were seen dirty after 20 flushes of the journal");
    rig.ok(Op::write(others.start / 512, bytes(99, 4096)));
    drop(rig);
    engine.sync().expect("sync");
    assert_eq!(dirty(0..SIZE), Some(0), "the end writes everything");
}

#[test]
fn record_shows_journal_only_flush_breaks_promise() {
    let _alone = alone();
    for is_journal_only in [false, true] {
        let dir = on_disk();
        let path = image(dir.path(), SIZE);
        let record = dir.path().join("record");
        let engine = flushing(&path, is_journal_only);
        let engine = Arc::new(
            engine.recorded(std::fs::File::create(&record).expect("record")).expect("record"),
        );
        pretend(&engine, vec![JOURNAL]);
        let recorder = Arc::clone(engine.recorder().expect("recorder"));
        let mut rig = rig(&engine);
        rig.ok(Op::write(JOURNAL.start / 512, bytes(1, 16384)));
        rig.ok(Op::write(30 * MIB / 512, bytes(2, 16384)));
        rig.ok(Op::Flush);
        recorder.finish().expect("record");
        let bytes = std::fs::read(&record).expect("record");
        let history = History::new(Reader::new(&bytes[..]).expect("record")).expect("record");
        let violations = history.flushes().violations.len();
        assert_eq!(violations > 0, is_journal_only, "{violations} promises were not kept");
    }
}

/// Voluntary context switches of the journal threads of this process.
fn switches() -> u64 {
    let mut sum = 0;
    for task in std::fs::read_dir("/proc/self/task").expect("tasks").flatten() {
        let read = |name| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        if read("comm").trim() == "journal" {
            let status = read("status");
            let line =
                status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            sum += line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or(0);
        }
    }
    sum
}

/// It ends with the volume.
#[test]
fn idle_journal_thread_sleeps_and_ends() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), SIZE);
    let engine = open(&path, Cache::Pdc);
    pretend(&engine, vec![JOURNAL]);
    let mut rig = rig(&engine);
    rig.ok(Op::write(0, bytes(1, 4096)));
    report(&engine);
    // The thread logs its finding, and looks once more for changes in the meantime.
    let mut before = 0;
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(400));
        if std::mem::replace(&mut before, switches()) == switches() {
            break;
        }
    }
    assert!(before > 0);
    // Little is no reason to wake it: not a write, not a flush. A wake-up that it put off may still
    // come.
    for number in 0..50 {
        rig.ok(Op::write(number % 20 * 8, bytes(number, 4096)));
        rig.ok(Op::Flush);
    }
    let after = switches();
    assert!(after < before + 10, "{before} to {after}");
    drop((rig, engine));
    // It has closed the image; that it is gone, the system may show a moment later.
    let begin = Instant::now();
    while switches() != 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "it has not ended");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn fast_guest_loses_only_journal_events() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), SIZE);
    let engine = open(&path, Cache::Pdc);
    pretend(&engine, vec![JOURNAL]);
    let mut rig = rig(&engine);
    // A block with a magic number each KiB: as many events as a write can have.
    let mut data = vec![0; 1 << 20];
    data.chunks_mut(1024)
        .for_each(|block| block[..4].copy_from_slice(&0xc03b_3998_u32.to_be_bytes()));
    for number in 0..200u64 {
        data[8..16].copy_from_slice(&number.to_le_bytes());
        assert_eq!(rig.run(Op::write(JOURNAL.start / 512, data.clone())).status, Status::Ok);
    }
    rig.ok(Op::Flush);
    let lossy = report(&engine);
    assert!(lossy.traffic.written + lossy.lost * MIB >= 200 * MIB, "{lossy:?}");
    assert!(rig.ok(Op::read(JOURNAL.start / 512, 1 << 20)) == data);
    // Nor do missed writes stay in the page cache.
    let first = lossy.lost;
    engine.without_journal_thread(|| {
        // Elsewhere, until the ring is full; then all over the journal.
        let elsewhere = std::iter::repeat_n(40 * MIB, 64);
        for at in elsewhere.chain((JOURNAL.start..JOURNAL.end - MIB).step_by(1 << 20)) {
            assert_eq!(rig.run(Op::write(at / 512, data.clone())).status, Status::Ok);
        }
        rig.ok(Op::Flush);
    });
    assert!(report(&engine).lost > first, "the thread kept up");
    // The guest continues quietly. Losses are not looked into at once.
    let mut end = report(&engine);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(90) {
        std::thread::sleep(Duration::from_millis(100));
        commits(&mut rig, 72);
        end = report(&engine);
        if end.cached.is_none_or(|bytes| bytes <= 4 * MIB) {
            return;
        }
    }
    panic!("{end:?}");
}

#[test]
fn dropping_begins_no_other_writeback() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), SIZE);
    let engine = open(&path, Cache::Pdc);
    pretend(&engine, vec![JOURNAL]);
    let mut rig = rig(&engine);
    // In one folio with what is to be dropped: the system would have to wait for the disk to write
    // it.
    let dirty = 12 * MIB - 65536..12 * MIB;
    let file = std::fs::File::options().read(true).write(true).open(&path).expect("open");
    rig.set_write_through(true);
    let (mut rounds, mut written_back) = (0, 0);
    while rounds < 20 {
        // Another process keeps the page: the lane would have it written.
        file.write_all_at(&bytes(rounds, 65536), dirty.start).expect("write");
        for at in (9 * MIB + 65536..dirty.start).step_by(65536) {
            rig.ok(Op::write(at / 512, bytes(rounds, 65536)));
        }
        let before = report(&engine).dropped.sum();
        let Some(pages) = pages::count(&file, &dirty) else {
            return skip("no cachestat here (before Linux 6.5, or forbidden)");
        };
        rounds += 1;
        // Dirty bytes keep their neighbours in the cache, and not all of their folio. Less than a
        // MiB waits to be dropped.
        if let Some(folio) =
            pages::cached(&file, &(10 * MIB..12 * MIB)).filter(|_| pages.dirty == 16)
        {
            assert!(
                folio <= 256 + 32,
                "{folio} pages are in the page cache beside 16 that are dirty"
            );
        }
        written_back += u64::from(pages.dirty < 16);
        assert!(before > 0, "nothing is dropped");
    }
    // The system writes for reasons of its own, too.
    assert!(written_back <= rounds / 2, "written back in {written_back} of {rounds} rounds");
}
