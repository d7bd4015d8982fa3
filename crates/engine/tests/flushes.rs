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

#[test]
fn a_flush_has_an_fdatasync_if_something_was_answered_since_the_last_one_began() {
    volumes(|engine| {
        let (mut one, mut other) = (lane(engine), lane(engine));
        assert_eq!(fdatasyncs(&mut one, Op::Flush), 1, "of what was there before the volume was opened");
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
fn a_write_that_is_durable_when_it_is_answered_needs_no_flush() {
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

#[test]
fn the_first_write_after_the_switch_to_write_through_makes_durable_what_any_lane_answered_before() {
    volumes(|engine| {
        let (mut one, mut other) = (lane(engine), lane(engine));
        one.ok(write());
        one.set_write_through(true);
        other.set_write_through(true);
        assert_eq!(fdatasyncs(&mut other, write()), 1, "what the other lane wrote");
        assert_eq!(fdatasyncs(&mut one, write()), 0, "which is done");
        assert_eq!(fdatasyncs(&mut other, write()), 0);
        // A flush that began before the switch, and ends after it, does not cover what was answered between the two.
        one.set_write_through(false);
        other.set_write_through(false);
        one.ok(write());
        start(&mut other, Op::Flush);
        one.ok(write());
        other.set_write_through(true);
        other.drain();
        assert_eq!(fdatasyncs(&mut other, write()), 1);
    });
}

#[test]
fn flushes_that_arrive_while_one_runs_share_the_next_one() {
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
        let ChannelStats { fdatasyncs, flushes_skipped, flushes_shared, .. } = sum(&lanes);
        // The zeroes may be ready when the second one has begun.
        assert!((2..=3).contains(&fdatasyncs) && flushes_skipped == 0, "{:?}", sum(&lanes));
        assert_eq!(fdatasyncs + flushes_shared, 7);
    });
}

#[test]
fn when_a_lane_goes_whose_fdatasync_others_wait_for_one_of_them_begins_another() {
    volumes(|engine| {
        for gone in 0..3 {
            let mut lanes: Vec<_> = (0..4).map(|_| lane(engine)).collect();
            for rig in &mut lanes {
                rig.ok(write());
                start(rig, Op::Flush);
            }
            // The one that runs it; one that waits; and one that was told to begin the next and has not looked.
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

#[test]
fn a_request_that_is_put_back_keeps_no_flush_waiting() {
    volumes(|engine| {
        let mut lanes: Vec<_> = (0..3).map(|_| lane(engine)).collect();
        lanes[0].set_write_through(true);
        // Put back when it was to begin an fdatasync.
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
fn many_lanes_in_threads_get_all_their_flushes() {
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
                            // A lane ends, and another one takes its place; here while nothing waits.
                            let stats = rig.stats();
                            let all = stats.fdatasyncs + stats.flushes_shared + stats.flushes_skipped;
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
fn where_a_flush_means_nothing_there_is_no_fdatasync() {
    let dir = on_disk();
    let options = FileOptions { cache: Cache::Writeback, read_only: true, ..FileOptions::default() };
    let engine = FileEngine::open(&image(dir.path(), SIZE), options).expect("open");
    assert_eq!(fdatasyncs(&mut lane(&Arc::new(engine)), Op::Flush), 0, "read-only");
    let Some(dir) = in_memory() else { return skip("no /dev/shm") };
    let mut rig = lane(&open(&image(dir.path(), SIZE), Cache::Auto));
    rig.ok(write());
    assert_eq!(fdatasyncs(&mut rig, Op::Flush), 0, "in memory");
}

/// What of `rig` is answered at `now`.
fn answered(rig: &mut Rig, now: Instant) -> usize {
    rig.reap(now);
    let answers = rig.collect();
    assert!(answers.iter().all(|answer| answer.status == Status::Ok));
    answers.len()
}

/// Serves `rig` until its fdatasync has ended, and is not told of.
fn until_delayed(rig: &mut Rig) -> Instant {
    let begin = Instant::now();
    loop {
        assert_eq!(answered(rig, begin), 0, "it is not due");
        if let Some(due) = rig.channel().deadline() {
            return due;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "it hangs: {:?}", rig.stats());
        rig.lane.wait(Duration::from_millis(10));
    }
}

#[test]
fn a_delayed_flush_is_answered_when_it_is_due_and_holds_up_nothing_else() {
    // No test looks at the clock: the time that a delayed flush is due is told.
    const DELAY: Duration = Duration::from_secs(3600);
    let dir = on_disk();
    let path = image(dir.path(), SIZE);
    let options = FileOptions { cache: Cache::Writeback, flush_delay: DELAY, ..FileOptions::default() };
    let engine = common::places::open_with(&path, options);
    let (mut one, mut other) = (lane(&engine), lane(&engine));
    one.ok(write());
    let begin = Instant::now();
    start(&mut one, Op::Flush);
    let due = until_delayed(&mut one);
    assert!(due >= begin + DELAY);
    // Reads and writes of the same lane are answered meanwhile, and a flush of another one waits for the next fdatasync.
    for op in [write(), Op::read(8, 4096)] {
        start(&mut one, op);
        while answered(&mut one, begin) == 0 {
            one.lane.wait(Duration::from_millis(10));
        }
    }
    start(&mut other, Op::Flush);
    assert_eq!(answered(&mut other, due), 0);
    assert_eq!(answered(&mut one, due - Duration::from_nanos(1)), 0);
    assert_eq!(answered(&mut one, due), 1);
    assert_eq!(one.channel().deadline(), None);
    let mut next = None;
    for _ in 0..6000 {
        assert_eq!(answered(&mut other, due), 0, "what was written since is not durable");
        next = other.channel().deadline().filter(|at| *at > due);
        if next.is_some() {
            break;
        }
        other.lane.wait(Duration::from_millis(10));
    }
    assert_eq!(answered(&mut other, next.expect("it hangs")), 1);
    let stats = (one.stats(), other.stats());
    assert_eq!((stats.0.fdatasyncs, stats.1.fdatasyncs), (1, 1));
}

#[test]
fn a_delayed_flush_that_is_put_back_is_forgotten() {
    let dir = on_disk();
    let path = image(dir.path(), SIZE);
    let flush_delay = Duration::from_secs(3600);
    let options = FileOptions { cache: Cache::Writeback, flush_delay, ..FileOptions::default() };
    let engine = common::places::open_with(&path, options);
    let mut rig = lane(&engine);
    rig.ok(write());
    rig.start(Op::Flush);
    let slot = rig.lane.take().expect("the flush");
    rig.lane.begin(slot);
    until_delayed(&mut rig);
    rig.lane.put_back(slot);
    assert_eq!(rig.channel().deadline(), None);
    // Another lane need not wait for it.
    let mut other = lane(&engine);
    start(&mut other, Op::Flush);
    until_delayed(&mut other);
}
