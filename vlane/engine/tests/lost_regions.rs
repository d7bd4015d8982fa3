//! Writes are lost while parts of a volume become direct regions or cease to be some (`--cache pdc
//! --journal direct`), or have their pages dropped. The map in force stays so, the loss is reported
//! as any other one, and unwritten data is not dropped from the page cache. The device is that of
//! `lost_writes.rs`: it takes all into the page cache, and cannot write it back.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]
#![allow(clippy::single_range_in_vec_init, reason = "a list of ranges that has one")]

mod common;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::places::{ROOM, TooSmall, current_report, open_with, skip};
use common::{Op, Rig, bytes};
use vlane_engine::file::{Cache, DirectReport, FileEngine, FileOptions, JournalWay};
use vlane_engine::{Engine, Status, Writeback};
use vlane_policy::journal::layout::JournalLayout;
use vlane_policy::journal::{Evidence, FileSystem, Journal, LogKind};

const FOLIO: u64 = 2 << 20;
const REGION: Range<u64> = FOLIO..2 * FOLIO;
/// Bytes of one write.
const PIECE: u64 = 1 << 20;

fn open(storage: &TooSmall, journal: JournalWay) -> Option<Arc<FileEngine>> {
    let options = FileOptions { cache: Cache::Pdc, journal, ..FileOptions::default() };
    let engine = open_with(&storage.device.device, options);
    match engine.journal()?.direct.refusal.filter(|_| journal == JournalWay::Direct) {
        None => Some(engine),
        Some(why) => {
            skip(format!("no direct regions here: {why}"));
            None
        }
    }
}

fn lane(engine: &Arc<FileEngine>) -> Rig {
    Rig::new(Arc::clone(engine) as Arc<dyn Engine>)
}

fn pretend(engine: &FileEngine, ranges: &[Range<u64>]) {
    let (filesystem, kind, way) = (FileSystem::Ext4, LogKind::Journal, Evidence::Layout);
    let journal = Journal { filesystem, kind, way, ranges: ranges.to_vec() };
    engine.pretend_layout(JournalLayout { journals: vec![journal], watched: Vec::new() });
}

fn direct(engine: &FileEngine) -> DirectReport {
    current_report(engine).direct
}

/// Lets lanes work until it is so.
fn until(what: &str, rigs: &mut [&mut Rig], mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "never {what}");
        rigs.iter_mut().for_each(|rig| rig.reap(Instant::now()));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Writes three times as much as there is room for, from a byte on; all of it is answered.
fn overfill(rig: &mut Rig, from: u64) {
    for at in (from..from + 3 * ROOM).step_by(PIECE as usize) {
        rig.ok(Op::write(at / 512, bytes(at, PIECE as usize)));
    }
}

/// Reads continue, and find the written data, on the storage or not: nearly all of it. The system
/// may do without a page that it takes for clean; on a busy machine it was seen to.
fn is_read(rig: &mut Rig, from: u64) {
    let pieces = (from..from + 3 * ROOM).step_by(PIECE as usize);
    let found = |at: &u64| rig.ok(Op::read(at / 512, PIECE as usize)) == bytes(*at, PIECE as usize);
    let there = pieces.clone().filter(found).count();
    assert!(there >= pieces.count() * 3 / 4, "{there} pieces are there");
}

/// No flush and no write is answered well any more, of any lane, and no map changes any more.
fn is_lost(engine: &Arc<FileEngine>, rig: &mut Rig) {
    let lost = engine.lost_write().expect("a loss that can be told");
    assert!([libc::EIO, libc::ENOSPC].contains(&lost.errno), "{lost}");
    let mut other = lane(engine);
    for rig in [&mut *rig, &mut other] {
        for op in
            [Op::Flush, Op::write(REGION.start / 512, vec![1; 4096]), Op::write(0, vec![1; 512])]
        {
            assert_eq!(rig.run(op).status, Status::IoErr);
        }
    }
    let before = direct(engine);
    for wanted in [vec![], vec![4 * FOLIO..6 * FOLIO], vec![REGION]] {
        pretend(engine, &wanted);
        until("at rest", &mut [&mut *rig, &mut other], || !direct(engine).is_changing);
        assert_eq!(direct(engine), before);
    }
    assert!(engine.sync().is_err(), "the sync at the end");
}

/// The unwritten data is still read from the page cache.
#[test]
fn region_never_begins_over_lost_write() {
    let Some(storage) = TooSmall::new() else { return };
    // The unwritable blocks lie in a wanted region, or elsewhere.
    for wanted in [vec![FOLIO..12 * FOLIO], vec![30 * FOLIO..32 * FOLIO]] {
        let Some(engine) = open(&storage, JournalWay::Direct) else { return };
        let mut rig = lane(&engine);
        overfill(&mut rig, 0);
        assert_eq!(engine.lost_write(), None, "what is not known yet");
        pretend(&engine, &wanted);
        until("lost", &mut [&mut rig], || engine.lost_write().is_some());
        assert_eq!(engine.lost_write().map(|lost| lost.during), Some(Writeback::Sync));
        until("at rest", &mut [&mut rig], || !direct(&engine).is_changing);
        assert!(direct(&engine).ranges.is_empty(), "{:?}", direct(&engine));
        is_read(&mut rig, 0);
        is_lost(&engine, &mut rig);
        is_read(&mut rig, 0);
    }
}

#[test]
fn region_stays_when_write_is_lost_elsewhere() {
    let Some(storage) = TooSmall::new() else { return };
    let Some(engine) = open(&storage, JournalWay::Direct) else { return };
    let mut rig = lane(&engine);
    pretend(&engine, &[REGION]);
    until("direct", &mut [&mut rig], || direct(&engine).ranges == [REGION]);
    rig.ok(Op::write(REGION.start / 512, bytes(7, FOLIO as usize)));
    overfill(&mut rig, REGION.end);
    pretend(&engine, &[]);
    until("lost", &mut [&mut rig], || engine.lost_write().is_some());
    until("at rest", &mut [&mut rig], || !direct(&engine).is_changing);
    assert_eq!(direct(&engine).ranges, [REGION]);
    // Around the page cache, as before, and no page of it is there.
    assert!(rig.ok(Op::read(REGION.start / 512, FOLIO as usize)) == bytes(7, FOLIO as usize));
    is_lost(&engine, &mut rig);
    assert_eq!(direct(&engine).ranges, [REGION]);
    assert!(rig.ok(Op::read(REGION.start / 512, FOLIO as usize)) == bytes(7, FOLIO as usize));
    is_read(&mut rig, REGION.end);
    let content = storage.content();
    assert!(content[REGION.start as usize..REGION.end as usize] == bytes(7, FOLIO as usize));
}

/// None of the held writes is answered OK.
#[test]
fn held_requests_continue_after_lost_write() {
    let Some(storage) = TooSmall::new() else { return };
    let Some(engine) = open(&storage, JournalWay::Direct) else { return };
    let (mut stuck, mut other) = (lane(&engine), lane(&engine));
    other.ok(Op::write(REGION.start / 512, bytes(7, FOLIO as usize)));
    overfill(&mut other, REGION.end);
    // It is under way where the map is to change, and its end is not looked at.
    stuck.start(Op::read(REGION.start / 512 + 8, 4096));
    stuck.begin();
    let begin = Instant::now();
    pretend(&engine, &[REGION]);
    let is_held = direct(&engine).is_changing;
    let ops = [
        Op::read(REGION.start / 512, 4096),
        Op::write(REGION.start / 512 - 1, vec![3; 1024]),
        Op::Discard(vec![(REGION.start / 512, 8)]),
    ];
    for op in ops {
        other.start(op);
    }
    other.begin();
    other.reap(Instant::now());
    // On a machine that is very slow the change was put off, and they were not held.
    let is_held = is_held && direct(&engine).put_off == 0 && other.in_flight() == 3;
    assert_eq!(stuck.drain().len(), 1);
    // A change is put off when requests have not ended for two seconds.
    let were_held = is_held && begin.elapsed() < Duration::from_secs(2);
    let answers = other.drain();
    assert_eq!(answers.len(), 3);
    for answer in answers {
        let is_read = answer.data.len() == 4096;
        if were_held {
            assert_eq!(answer.status, if is_read { Status::Ok } else { Status::IoErr });
        }
        assert!(!is_read || answer.data == bytes(7, 4096));
    }
    until("lost", &mut [&mut stuck, &mut other], || engine.lost_write().is_some());
    until("at rest", &mut [&mut stuck, &mut other], || !direct(&engine).is_changing);
    assert!(direct(&engine).ranges.is_empty());
    is_lost(&engine, &mut other);
    is_read(&mut other, REGION.end);
}

#[test]
fn failed_flush_freezes_map_and_drops() {
    let Some(storage) = TooSmall::new() else { return };
    for way in [JournalWay::Drop, JournalWay::Direct] {
        let Some(engine) = open(&storage, way) else { return };
        let mut rig = lane(&engine);
        if way == JournalWay::Drop {
            pretend(&engine, &[0..3 * ROOM]);
        }
        overfill(&mut rig, 0);
        assert_eq!(rig.run(Op::Flush).status, Status::IoErr);
        // The system reports an error once to each open file.
        for _ in 0..3 {
            assert!(engine.sync().is_err());
        }
        if way == JournalWay::Direct {
            pretend(&engine, &[0..3 * ROOM]);
        }
        is_read(&mut rig, 0);
        is_lost(&engine, &mut rig);
        is_read(&mut rig, 0);
        let report = engine.journal().expect("watched");
        assert_eq!((report.dropped.layout, report.direct.changes), (0, 0), "{report:?}");
    }
}

/// The write reports its failure: no answered write is lost, and maps still change.
#[test]
fn failed_region_write_is_not_lost() {
    let Some(storage) = TooSmall::new() else { return };
    let Some(engine) = open(&storage, JournalWay::Direct) else { return };
    let mut rig = lane(&engine);
    let region = FOLIO..12 * FOLIO;
    pretend(&engine, std::slice::from_ref(&region));
    until("direct", &mut [&mut rig], || direct(&engine).ranges == [region.clone()]);
    let statuses: Vec<Status> = (region.start..region.end)
        .step_by(PIECE as usize)
        .map(|at| rig.run(Op::write(at / 512, bytes(at, PIECE as usize))).status)
        .collect();
    assert!(statuses.contains(&Status::IoErr) && statuses[0] == Status::Ok, "{statuses:?}");
    rig.ok(Op::Flush);
    pretend(&engine, &[]);
    until("cached", &mut [&mut rig], || direct(&engine).ranges.is_empty());
    for (at, status) in (region.start..region.end).step_by(PIECE as usize).zip(statuses) {
        if status == Status::Ok {
            assert!(
                rig.ok(Op::read(at / 512, PIECE as usize)) == bytes(at, PIECE as usize),
                "{at}"
            );
        }
    }
    rig.ok(Op::write(region.start / 512, bytes(1, 4096)));
    rig.ok(Op::Flush);
    assert_eq!(engine.lost_write(), None);
}
