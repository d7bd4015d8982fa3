//! Answered writes that never reached the storage: a loop device on a sparse file in a tmpfs that
//! is too small for it takes them all into the page cache, and cannot write them back. Linux
//! reports that once to each open file and forgets the pages; the guest's answers must not depend
//! on the first lane to ask, or on how often lanes ask.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::places::{ROOM, TooSmall};
use common::{Op, Rig, bytes};
use vlane_engine::file::{Cache, FileEngine};
use vlane_engine::{Engine, Status, Writeback};

/// Bytes of one write.
const PIECE: usize = 1 << 20;

fn lane(engine: &Arc<FileEngine>) -> Rig {
    Rig::new(Arc::clone(engine) as Arc<dyn Engine>)
}

/// Writes three times as much as there is room for; all of it is answered.
fn overfill(rig: &mut Rig) {
    for at in 0..3 * ROOM / PIECE as u64 {
        rig.ok(Op::write(at * PIECE as u64 / 512, bytes(at, PIECE)));
    }
}

#[test]
fn failed_writeback_fails_all_later_flushes() {
    let Some(storage) = TooSmall::new() else { return };
    let engine = storage.open(Cache::Writeback);
    let (mut first, mut second) = (lane(&engine), lane(&engine));
    second.ok(Op::Flush);
    overfill(&mut first);
    assert_eq!(engine.lost_write(), None, "what is not known yet");
    for flush in 0..3 {
        assert_eq!(
            first.run(Op::Flush).status,
            Status::IoErr,
            "flush {flush} of the lane that wrote"
        );
        assert_eq!(second.run(Op::Flush).status, Status::IoErr, "flush {flush} of another lane");
    }
    // Nor one of a lane that begins later, as that of a new session does.
    let mut third = lane(&engine);
    assert_eq!(third.run(Op::Flush).status, Status::IoErr);
    // Reads go on; what changes the volume does not.
    assert!(third.ok(Op::read(0, 4096)) == bytes(0, PIECE)[..4096]);
    for rig in [&mut first, &mut third] {
        assert_eq!(rig.run(Op::write(0, bytes(1, 512))).status, Status::IoErr);
        assert_eq!(rig.run(Op::Discard(vec![(0, 8)])).status, Status::IoErr);
        let zeroes = Op::WriteZeroes { ranges: vec![(0, 8)], unmap: false };
        assert_eq!(rig.run(zeroes).status, Status::IoErr);
    }
    let lost = engine.lost_write().expect("a loss that can be told");
    assert!([libc::EIO, libc::ENOSPC].contains(&lost.errno), "{lost}");
    assert_eq!(
        (lost.during, first.stats().errors()),
        (Writeback::Flush, 6),
        "{lost}; {:?}",
        first.stats()
    );
    assert_eq!(third.stats().lost_errors, 4);
    assert!(engine.sync().is_err(), "the sync at the end");

    // Until the volume is opened again.
    drop((first, second, third, engine));
    let engine = storage.open(Cache::Writeback);
    let mut rig = lane(&engine);
    rig.ok(Op::Flush);
    rig.ok(Op::write(0, bytes(0, 4096)));
    rig.ok(Op::Flush);
    engine.sync().expect("nothing was lost since");
    assert_eq!(engine.lost_write(), None);
}

/// Two flushes are in the kernel at the same time, of two lanes or of one. Both fail, whichever
/// gets the error, and whichever is looked at first.
#[test]
fn flush_parallel_to_failed_one_fails() {
    let Some(storage) = TooSmall::new() else { return };
    for round in 0..16 {
        let engine = storage.open(Cache::Writeback);
        let mut lanes = [lane(&engine), lane(&engine)];
        overfill(&mut lanes[0]);
        let is_one_lane = round % 4 == 3;
        lanes[0].start(Op::Flush);
        lanes[usize::from(!is_one_lane)].start(Op::Flush);
        lanes.iter_mut().for_each(Rig::begin);
        // In either order, and each as soon as it is there.
        if round % 2 == 0 {
            lanes.reverse();
        }
        let mut statuses = Vec::new();
        let begin = Instant::now();
        while statuses.len() < 2 {
            for rig in &mut lanes {
                rig.lane.wait(Duration::from_micros(50));
                rig.reap(Instant::now());
                statuses.extend(rig.collect().into_iter().map(|answer| answer.status));
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "the flushes hang");
        }
        assert_eq!(statuses, [Status::IoErr, Status::IoErr], "round {round}");
    }
}

/// One runs, and others wait for the next one: of several lanes, and of one.
#[test]
fn flushes_waiting_during_failure_fail() {
    let Some(storage) = TooSmall::new() else { return };
    let engine = storage.open(Cache::Writeback);
    let mut lanes = [lane(&engine), lane(&engine), lane(&engine)];
    overfill(&mut lanes[0]);
    for rig in &mut lanes {
        rig.start(Op::Flush);
        rig.start(Op::Flush);
        rig.begin();
    }
    let mut statuses = Vec::new();
    let begin = Instant::now();
    while statuses.len() < 6 {
        for rig in &mut lanes {
            rig.lane.wait(Duration::from_micros(50));
            rig.reap(Instant::now());
            statuses.extend(rig.collect().into_iter().map(|answer| answer.status));
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "the flushes hang");
    }
    assert_eq!(statuses, [Status::IoErr; 6]);
    let begun: u64 = lanes.iter().map(|rig| rig.stats().fdatasyncs).sum();
    assert_eq!(begun, 1, "the next ones know");
}

#[test]
fn answered_write_through_write_is_durable() {
    let Some(storage) = TooSmall::new() else { return };
    for by_guest in [false, true] {
        let engine = storage.open(if by_guest { Cache::Writeback } else { Cache::WriteThrough });
        let mut lanes = [lane(&engine), lane(&engine)];
        lanes.iter_mut().for_each(|rig| rig.set_write_through(true));
        let mut answered = Vec::new();
        let mut failed = 0;
        for round in 0..8 {
            let mut places = Vec::new();
            for (which, rig) in lanes.iter_mut().enumerate() {
                for n in 0..4 {
                    // Apart from each other, and from all before.
                    let at = (round * 8 + n * 2 + which as u64) * (PIECE as u64 / 2);
                    places.push((which, rig.start(Op::write(at / 512, bytes(at, PIECE / 2))), at));
                }
                rig.begin();
            }
            for (which, rig) in lanes.iter_mut().enumerate() {
                for answer in rig.drain() {
                    let (_, _, at) = places
                        .iter()
                        .find(|(w, place, _)| (*w, *place) == (which, answer.place))
                        .unwrap();
                    match answer.status {
                        Status::Ok => answered.push(*at),
                        _ => failed += 1,
                    }
                }
            }
        }
        assert!(failed > 0 && !answered.is_empty(), "{failed} failed, {} did not", answered.len());
        let content = storage.content();
        for at in answered {
            let at = usize::try_from(at).unwrap();
            assert!(
                content[at..at + PIECE / 2] == bytes(at as u64, PIECE / 2),
                "the write at {at} is lost"
            );
        }
        // A failed durable write may have got the error of others' losses.
        for rig in &mut lanes {
            assert_eq!(rig.run(Op::Flush).status, Status::IoErr);
            assert_eq!(rig.run(Op::write(0, bytes(1, 4096))).status, Status::IoErr);
        }
        assert!(engine.sync().is_err());
    }
}

#[test]
fn writes_before_write_through_are_not_forgotten() {
    let Some(storage) = TooSmall::new() else { return };
    let engine = storage.open(Cache::Writeback);
    let mut lanes = [lane(&engine), lane(&engine)];
    overfill(&mut lanes[0]);
    lanes.iter_mut().for_each(|rig| rig.set_write_through(true));
    // Fits, and pays for all before.
    assert_eq!(lanes[0].run(Op::write(0, bytes(0, 4096))).status, Status::IoErr);
    for rig in &mut lanes {
        assert_eq!(rig.run(Op::write(0, bytes(0, 4096))).status, Status::IoErr);
        rig.set_write_through(false);
        assert_eq!(rig.run(Op::Flush).status, Status::IoErr);
    }
}

#[test]
fn final_sync_keeps_failing_after_a_loss() {
    let Some(storage) = TooSmall::new() else { return };
    let engine = storage.open(Cache::Writeback);
    let mut rig = lane(&engine);
    overfill(&mut rig);
    for time in 0..3 {
        assert!(engine.sync().is_err(), "sync {time}");
    }
    assert_eq!(rig.run(Op::Flush).status, Status::IoErr);
}

/// Direct writes are answered when the device has answered: those that fail say so, and no other is
/// lost with them.
#[test]
fn reported_failed_write_is_not_lost() {
    let Some(storage) = TooSmall::new() else { return };
    let engine = storage.open(Cache::None);
    let mut rig = lane(&engine);
    let statuses: Vec<Status> = (0..2 * ROOM / PIECE as u64)
        .map(|at| rig.run(Op::write(at * PIECE as u64 / 512, bytes(at, PIECE))).status)
        .collect();
    assert!(statuses.contains(&Status::IoErr) && statuses[0] == Status::Ok, "{statuses:?}");
    rig.ok(Op::Flush);
    rig.ok(Op::write(0, bytes(7, 4096)));
    rig.ok(Op::Flush);
    engine.sync().expect("sync");
    assert_eq!(engine.lost_write(), None);
    assert!(storage.content()[..4096] == bytes(7, 4096));
}
