//! Which flushes have an `fdatasync`, and which share one, seen from real requests on real files.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::places::{image, in_memory, on_disk, open, skip};
use common::{Op, Rig, bytes};
use vlane_engine::file::{Cache, FileEngine, FileOptions};
use vlane_engine::{ChannelStats, Engine, Status};

const SIZE: u64 = 4 << 20;

/// A volume in each cache mode in which a write need not be durable.
fn volumes(check: impl Fn(&Arc<FileEngine>)) {
    for cache in [Cache::None, Cache::Writeback] {
        let dir = on_disk();
        let path = image(dir.path(), SIZE);
        match common::places::try_open(&path, cache) {
            Ok(engine) => check(&engine),
            Err(why) => return skip(why),
        }
    }
}

fn lane(engine: &Arc<FileEngine>) -> Rig {
    Rig::new(Arc::clone(engine) as Arc<dyn Engine>)
}

fn write() -> Op {
    Op::write(8, bytes(1, 4096))
}

fn zeroes() -> Op {
    Op::WriteZeroes { ranges: vec![(64, 64)], unmap: true }
}

/// `fdatasync`s that a lane began while it answered one request.
fn fdatasyncs(rig: &mut Rig, op: Op) -> u64 {
    let before = rig.stats().fdatasyncs;
    rig.ok(op);
    rig.stats().fdatasyncs - before
}

fn sum(lanes: &[Rig]) -> ChannelStats {
    lanes.iter().fold(ChannelStats::default(), |mut sum, rig| {
        sum.add(&rig.stats());
        sum
    })
}

/// Serves all lanes, in turns, until everything is answered.
fn drain(lanes: &mut [Rig]) -> Vec<Status> {
    let begin = Instant::now();
    let mut statuses = Vec::new();
    while lanes.iter().any(|rig| rig.in_flight() > 0) {
        for rig in &mut *lanes {
            rig.begin();
            rig.lane.wait(Duration::from_micros(50));
            rig.reap(Instant::now());
            statuses.extend(rig.collect().into_iter().map(|answer| answer.status));
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "they wait for ever: {:?}", sum(lanes));
    }
    statuses
}

fn start(rig: &mut Rig, op: Op) {
    rig.start(op);
    rig.begin();
}

/// An `fdatasync` runs if a write was answered since the last one began.
#[test]
fn flush_syncs_only_after_new_answers() {
    volumes(|engine| {
        let (mut one, mut other) = (lane(engine), lane(engine));
        assert_eq!(
            fdatasyncs(&mut one, Op::Flush),
            1,
            "of what was there before the volume was opened"
        );
        assert_eq!(fdatasyncs(&mut one, Op::Flush), 0);
        assert_eq!(fdatasyncs(&mut other, Op::Flush), 0, "the other lane's did as well");
        for op in [write(), Op::Discard(vec![(0, 64)]), zeroes(), Op::write(0, bytes(2, 1 << 20))] {
            one.ok(op.clone());
            assert_eq!(fdatasyncs(&mut one, Op::Flush), 1, "{op:?}");
            assert_eq!(fdatasyncs(&mut other, Op::Flush), 0, "{op:?}");
            one.ok(op.clone());
            assert_eq!(fdatasyncs(&mut other, Op::Flush), 1, "another lane's {op:?}");
        }
        one.ok(Op::read(0, 4096));
        assert_eq!(fdatasyncs(&mut one, Op::Flush), 0, "a read");
        one.ok(write());
        drop(one);
        assert_eq!(fdatasyncs(&mut other, Op::Flush), 1, "the write of a lane that is gone");
        assert_eq!(fdatasyncs(&mut lane(engine), Op::Flush), 0, "a lane that is new");
        assert!(other.stats().flushes_skipped > 0 && other.stats().flushes_shared == 0);
    });
}

#[test]
fn durable_write_needs_no_flush() {
    volumes(|engine| {
        let (mut one, mut other) = (lane(engine), lane(engine));
        one.ok(Op::Flush);
        one.set_write_through(true);
        assert_eq!(fdatasyncs(&mut one, write()), 0, "nothing was owed");
        assert_eq!(fdatasyncs(&mut one, Op::Flush), 0);
        assert_eq!(fdatasyncs(&mut one, zeroes()), 1, "zeroes are made durable afterwards");
        assert_eq!(fdatasyncs(&mut one, Op::Flush), 0);
        // Of one lane durable, of the other not.
        other.ok(write());
        assert_eq!(fdatasyncs(&mut one, Op::Flush), 1);
    });
}

/// The first write afterwards makes the earlier answered writes of all lanes durable.
#[test]
fn write_through_switch_covers_earlier_writes() {
    volumes(|engine| {
        let (mut one, mut other) = (lane(engine), lane(engine));
        one.ok(write());
        one.set_write_through(true);
        other.set_write_through(true);
        assert_eq!(fdatasyncs(&mut other, write()), 1, "what the other lane wrote");
        assert_eq!(fdatasyncs(&mut one, write()), 0, "which is done");
        assert_eq!(fdatasyncs(&mut other, write()), 0);
        // A flush whose fdatasync ended before the switch, and that is answered later, does not
        // cover writes answered between the two.
        one.set_write_through(false);
        other.set_write_through(false);
        one.ok(write());
        start(&mut other, Op::Flush);
        until_told(&mut other);
        one.ok(write());
        other.set_write_through(true);
        other.drain();
        assert_eq!(fdatasyncs(&mut other, write()), 1);
    });
}

/// Waits until the fdatasync of a flush of `rig` has ended; the lane does not look.
fn until_told(rig: &mut Rig) {
    let begin = Instant::now();
    while rig.channel().deadline().is_none() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it hangs: {:?}", rig.stats());
        rig.lane.wait(Duration::from_millis(1));
    }
}

#[test]
fn simultaneous_flushes_are_all_answered() {
    volumes(|engine| {
        let mut lanes: Vec<_> = (0..5).map(|_| lane(engine)).collect();
        for rig in &mut lanes {
            rig.ok(write());
            start(rig, Op::Flush);
        }
        // Two of one lane, and a durable write that ends in one.
        start(&mut lanes[1], Op::Flush);
        lanes[4].set_write_through(true);
        start(&mut lanes[4], zeroes());
        assert_eq!(drain(&mut lanes), vec![Status::Ok; 7]);
        // How many share one depends on how fast the storage is.
        let ChannelStats { fdatasyncs, flushes_skipped, flushes_shared, .. } = sum(&lanes);
        assert!(fdatasyncs > 0, "{:?}", sum(&lanes));
        assert_eq!(fdatasyncs + flushes_shared + flushes_skipped, 7);
    });
}

#[test]
fn closed_lane_blocks_no_other_flush() {
    volumes(|engine| {
        for gone in 0..3 {
            let mut lanes: Vec<_> = (0..4).map(|_| lane(engine)).collect();
            for rig in &mut lanes {
                rig.ok(write());
                start(rig, Op::Flush);
            }
            // The one that asked first; one that waits; and one after the first was answered.
            if gone == 2 {
                let mut first = lanes.remove(0);
                first.drain();
                drop(lanes.remove(0));
            } else {
                drop(lanes.remove(gone));
            }
            let left = lanes.len();
            assert_eq!(drain(&mut lanes), vec![Status::Ok; left], "{gone}");
        }
    });
}

/// A thread that is held up, in a write for example, serves its lane no more.
#[test]
fn delayed_lane_delays_no_other_flush() {
    volumes(|engine| {
        let (mut held, mut others) = (lane(engine), [lane(engine), lane(engine)]);
        for _ in 0..3 {
            held.ok(write());
            start(&mut held, Op::Flush);
            for rig in &mut others {
                rig.ok(write());
                start(rig, Op::Flush);
            }
            assert_eq!(drain(&mut others), [Status::Ok; 2]);
            // It continues, and finds its answer.
            assert_eq!(held.drain()[0].status, Status::Ok);
        }
    });
}

#[test]
fn returned_request_blocks_no_flush() {
    volumes(|engine| {
        let mut lanes: Vec<_> = (0..3).map(|_| lane(engine)).collect();
        lanes[0].set_write_through(true);
        // Put back when it waits for its fdatasync.
        start(&mut lanes[0], zeroes());
        lanes[0].lane.put_back_after_an_operation();
        start(&mut lanes[1], Op::Flush);
        start(&mut lanes[2], Op::Flush);
        // When it was to wait for the next one, after a flush that waits.
        assert_eq!(lanes[0].lane.take().map(|slot| lanes[0].lane.begin(slot)), Some(()));
        lanes[0].lane.put_back_after_an_operation();
        assert_eq!(drain(&mut lanes[1..]), [Status::Ok; 2]);
        lanes[0].drain();
    });
}

#[test]
fn threaded_lanes_get_all_their_flushes() {
    volumes(|engine| {
        let threads: Vec<_> = (0..4_u64)
            .map(|number| {
                let engine = Arc::clone(engine);
                std::thread::spawn(move || {
                    let mut rig = lane(&engine);
                    for round in 0..60 {
                        rig.ok(Op::write(number * 64 + round % 8 * 8, bytes(round, 4096)));
                        rig.ok(Op::Flush);
                        if round % 20 == 19 {
                            // A lane ends, and another one takes its place; here while no flush
                            // waits.
                            let stats = rig.stats();
                            let all =
                                stats.fdatasyncs + stats.flushes_shared + stats.flushes_skipped;
                            assert_eq!(all, 20, "{stats:?}");
                            rig = lane(&engine);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("a lane"));
    });
}

#[test]
fn read_only_and_memory_flushes_skip_fdatasync() {
    let dir = on_disk();
    let options =
        FileOptions { cache: Cache::Writeback, read_only: true, ..FileOptions::default() };
    let engine = FileEngine::open(&image(dir.path(), SIZE), options).expect("open");
    assert_eq!(fdatasyncs(&mut lane(&Arc::new(engine)), Op::Flush), 0, "read-only");
    let Some(dir) = in_memory() else { return skip("no /dev/shm") };
    let mut rig = lane(&open(&image(dir.path(), SIZE), Cache::Auto));
    rig.ok(write());
    assert_eq!(fdatasyncs(&mut rig, Op::Flush), 0, "in memory");
}

#[test]
fn delayed_flush_delays_no_other_request() {
    let dir = on_disk();
    let with = |flush_delay| FileOptions {
        cache: Cache::Writeback,
        flush_delay,
        ..FileOptions::default()
    };
    let delay = Duration::from_millis(30);
    let engine = common::places::open_with(&image(dir.path(), SIZE), with(delay));
    let mut rig = lane(&engine);
    let begin = Instant::now();
    rig.ok(Op::Flush);
    assert!(begin.elapsed() >= delay);
    drop((rig, engine));

    let engine =
        common::places::open_with(&image(dir.path(), SIZE), with(Duration::from_secs(3600)));
    let (mut one, mut other) = (lane(&engine), lane(&engine));
    start(&mut one, Op::Flush);
    start(&mut other, Op::Flush);
    // Reads and writes of the same lane are answered meanwhile.
    for op in [write(), Op::read(8, 4096)] {
        start(&mut one, op);
        let mut answers = Vec::new();
        while answers.is_empty() {
            one.lane.wait(Duration::from_millis(10));
            one.reap(Instant::now());
            answers = one.collect();
        }
        assert_eq!((answers.len(), answers[0].status), (1, Status::Ok));
    }
    assert_eq!((one.in_flight(), other.in_flight()), (1, 1));
    // The volume's end does not wait for the end of an hour.
    drop((one, other, engine));
}
