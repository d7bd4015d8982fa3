//! Lanes whose requests have classes, with a guest in the same thread.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use vlane_driver::ring::{Arena, BlkOptions, BlkQueue, Format, Request, RequestKind};
use vlane_engine::Engine;
use vlane_engine::null::{NullConfig, NullEngine};
use vlane_hint::{Board, BoardReader, Classes, LaneHint, Mark};
use vlane_io::Uring;
use vlane_policy::express::{Class, Express, INHERITS, Mode};
use vlane_policy::throttle::ExpressBudget;

use crate::cost_tests::device;
use crate::lane::{Lane, Settled};
use crate::limits_tests::slow;
use crate::{ClassBoard, Counters, JOURNAL, LaneConfig, event_channel};

const LIMIT: Duration = Duration::from_secs(60);
/// The latency of a device that answers no request during a test.
const HOUR: Duration = Duration::from_secs(3600);
/// No answer waits longer for others.
const LONGEST: Duration = Duration::from_millis(10);
/// As Linux writes them: best effort 0, 3 and 7.
const EXPRESS: u32 = 2 << 13;
const EXT4: u32 = 2 << 13 | 3;
const BACKGROUND: u32 = 2 << 13 | 7;
const NONE: u32 = 0;
/// No Linux writes that: it tells a flush's answer from others.
const FLUSH: u32 = 1 << 20;

struct Guest {
    driver: BlkQueue,
    lane: Lane,
    uring: Uring,
    board: Arc<ClassBoard>,
    /// Slots that were answered and not used again.
    free: Vec<u16>,
    len: u32,
    priorities: Vec<u32>,
    /// The priorities of what was answered.
    answered: Vec<u32>,
    _arena: Arena,
}

fn guest(format: Format, depth: u16, latency: Option<Duration>, mode: Mode) -> Guest {
    guest_with(format, depth, latency, Express { mode, ..Express::default() })
}

fn guest_with(format: Format, depth: u16, latency: Option<Duration>, express: Express) -> Guest {
    let options = BlkOptions {
        format,
        size: None,
        depth,
        data: 1 << 20,
        segments: 1,
        indirect: true,
        event_idx: false,
    };
    let arena = Arena::new(0x8000_0000, options.arena_bytes().unwrap()).unwrap();
    let driver = BlkQueue::new(&arena, options).unwrap();
    let engine: Arc<dyn Engine> =
        Arc::new(NullEngine::new(NullConfig { size: 1 << 40, latency, parallelism: 4 }).unwrap());
    let board = Arc::new(ClassBoard::new(1));
    let config = LaneConfig {
        queue: device(&arena, &driver, false),
        engine,
        kick: None,
        call: None,
        serial: [0; 20],
        write_through: false,
        counters: Arc::new(Counters::default()),
        events: event_channel().unwrap().0,
        watch: None,
        express,
        classes: Some(Arc::clone(&board)),
    };
    let mut uring = Uring::new(64).unwrap();
    let lane = Lane::new(0, 0, 2, config, &mut uring).unwrap();
    let (free, priorities) = ((0..depth).collect(), vec![0; depth.into()]);
    Guest {
        driver,
        lane,
        uring,
        board,
        free,
        len: 4096,
        priorities,
        answered: Vec::new(),
        _arena: arena,
    }
}

impl Guest {
    fn submit(&mut self, count: usize, ioprio: u32) {
        self.submit_kind(RequestKind::Read, count, ioprio);
    }

    fn submit_kind(&mut self, kind: RequestKind, count: usize, ioprio: u32) {
        let len = if kind == RequestKind::Flush { 0 } else { self.len };
        for slot in self.free.split_off(self.free.len() - count) {
            self.priorities[usize::from(slot)] = ioprio;
            self.driver.submit(slot, Request { kind, sector: 0, len, ioprio }).unwrap();
        }
        self.driver.publish();
    }

    /// One round of its thread; what is answered is made again if it is of the background, and
    /// `again`.
    fn round(&mut self, again: bool) {
        self.lane.serve(&mut self.uring, false);
        if self.lane.deadline().is_some_and(|deadline| deadline <= Instant::now()) {
            self.lane.poll_channel(&mut self.uring, Instant::now());
        }
        self.lane.round_ends();
        self.reap(again);
    }

    fn reap(&mut self, again: bool) {
        let mut done = Vec::new();
        self.driver.reap(&mut done).unwrap();
        for completion in done {
            let ioprio = self.priorities[usize::from(completion.slot)];
            self.answered.push(ioprio);
            self.free.push(completion.slot);
            if again && [BACKGROUND, NONE].contains(&ioprio) {
                self.submit(1, ioprio);
            }
        }
    }

    fn rounds_until(&mut self, again: bool, is_over: impl Fn(&Guest) -> bool) {
        let begin = Instant::now();
        while !is_over(self) {
            assert!(begin.elapsed() < LIMIT, "{} answers", self.answered.len());
            self.round(again);
        }
    }

    fn answered(&self, ioprio: u32) -> usize {
        self.answered.iter().filter(|answered| **answered == ioprio).count()
    }

    /// Stops its lane, and returns the place in the ring at which its next server begins.
    fn stop(&mut self) -> usize {
        let (reply, stopped) = channel();
        self.lane.stop(reply);
        let begin = Instant::now();
        while self.lane.settle() != Settled::Ends {
            assert!(begin.elapsed() < LIMIT, "it does not end");
            self.round(false);
        }
        // Its thread does not serve a lane that has ended: the rest begins with the next one.
        self.reap(false);
        stopped.recv().unwrap().unwrap().base as usize & 0x7fff
    }

    /// Number of background requests that are answered before an express request that is made now.
    fn passed(&mut self) -> usize {
        let (express, background) = (self.answered(EXPRESS), self.answered(BACKGROUND));
        self.submit(1, EXPRESS);
        self.rounds_until(true, |guest| guest.answered(EXPRESS) > express);
        self.answered(BACKGROUND) - background
    }
}

/// Counted in answers. The lane's measure of its device's time is wrong on a machine that stops its
/// thread again and again, until a later probe corrects it. The test only needs it to become right.
#[test]
fn express_request_passes_hundreds_before_it() {
    for (mode, passes) in
        [(Mode::Order, true), (Mode::On, true), (Mode::Shortest, false), (Mode::Off, false)]
    {
        let mut guest = guest(Format::Split, 300, Some(Duration::from_millis(1)), mode);
        guest.submit(290, BACKGROUND);
        guest.round(true);
        guest.passed();
        // Runs until the device has run down, and the lane knows its properties.
        guest.rounds_until(true, |guest| guest.answered.len() > 1200);
        let begin = Instant::now();
        let most = loop {
            let most = (0..5).map(|_| guest.passed()).max().unwrap();
            let window = guest.board.snapshot().lanes[0].window;
            if most < 64 && window.is_some_and(|window| window < 64) || !passes {
                break most;
            }
            assert!(
                begin.elapsed() < LIMIT,
                "{mode:?}: {most} of 290 came first, window {window:?}"
            );
        };
        if !passes {
            assert!(most > 200, "{mode:?}: only {most} of 290 came first");
        }
    }
}

/// The time of a thread that is stopped counts, too: so a journal write that comes late is tried
/// again.
#[test]
fn journal_and_flush_inherit_from_express() {
    let mut guest = guest(Format::Split, 300, Some(Duration::from_millis(1)), Mode::Order);
    guest.submit(290, NONE);
    guest.round(true);
    guest.submit(1, EXPRESS);
    guest.rounds_until(true, |guest| guest.answered.len() > 1200);
    let passed = |guest: &mut Guest, kind: RequestKind, ioprio: u32| {
        let (own, others) = (guest.answered(ioprio), guest.answered(NONE));
        guest.submit_kind(kind, 1, ioprio);
        guest.rounds_until(true, |guest| guest.answered(ioprio) > own);
        guest.answered(NONE) - others
    };
    for (kind, ioprio) in [(RequestKind::Write, EXT4), (RequestKind::Flush, FLUSH)] {
        let begin = Instant::now();
        loop {
            passed(&mut guest, RequestKind::Write, EXPRESS);
            let most = passed(&mut guest, kind, ioprio);
            if most < 64 {
                break;
            }
            assert!(begin.elapsed() < LIMIT, "{ioprio}: {most} of 290 came first");
        }
        // Without an express request of late it has its own place: behind all that wait.
        let late = Instant::now() + Duration::from_nanos(INHERITS * 2);
        guest.rounds_until(true, |_| Instant::now() > late);
        let passed = passed(&mut guest, kind, ioprio);
        assert!(passed > 200, "{ioprio}: only {passed} of 290 came first");
    }
    assert!(guest.board.snapshot().kinds[Class::Promoted as usize].requests >= 2);
}

/// The foreground's fsync goes on when they are complete, and has gone on when the next one comes.
#[test]
fn promoted_requests_are_hinted_as_express() {
    let mut guest = guest(Format::Split, 64, Some(Duration::from_millis(1)), Mode::Order);
    let (board, fd) = Board::create(1, true).unwrap();
    let mut reader = BoardReader::new(Board::open(fd.as_fd(), 1).unwrap());
    reader.arm(Classes::EXPRESS);
    let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    guest.lane.set_hint(LaneHint::new(board, 0, Arc::new(wake)).map(Box::new));
    guest.submit(32, NONE);
    guest.round(true);
    let mut marks_of = |guest: &mut Guest, kind: RequestKind, ioprio: u32| {
        let own = guest.answered(ioprio);
        guest.submit_kind(kind, 1, ioprio);
        guest.rounds_until(true, |guest| guest.answered(ioprio) > own);
        let marks = reader.collect(vlane_hint::now()).map(|(_, mark)| mark);
        marks.map(|mark| matches!(mark, Mark::Served { .. })).collect::<Vec<_>>()
    };
    for (kind, ioprio) in [(RequestKind::Write, EXT4), (RequestKind::Flush, FLUSH)] {
        let begin = Instant::now();
        loop {
            marks_of(&mut guest, RequestKind::Write, EXPRESS);
            let marks = marks_of(&mut guest, kind, ioprio);
            if marks == [true, false] {
                break;
            }
            // It came late, as after a stop of this thread.
            assert!(begin.elapsed() < LIMIT, "{ioprio}: {marks:?}");
        }
    }
}

#[test]
fn background_progresses_under_any_express_load() {
    let mut guest = guest(Format::Split, 64, Some(Duration::from_micros(200)), Mode::Order);
    guest.submit(32, BACKGROUND);
    for _ in 0..800 {
        let free = guest.free.len();
        guest.submit(free, EXPRESS);
        let before = guest.answered.len();
        guest.rounds_until(false, |guest| guest.answered.len() > before);
        if guest.answered(BACKGROUND) == 32 {
            return;
        }
    }
    panic!("{} of 32 were answered beside {}", guest.answered(BACKGROUND), guest.answered(EXPRESS));
}

/// Requests may wait or have been overtaken: each is answered, or is in the ring for the next back
/// end.
#[test]
fn stopped_queue_loses_no_waiting_request() {
    for format in [Format::Split, Format::Packed] {
        for rounds in [1, 2, 5, 40] {
            let mut guest = guest(format, 96, Some(Duration::from_micros(100)), Mode::Order);
            for ioprio in [BACKGROUND, EXPRESS, EXT4, u32::MAX].into_iter().cycle().take(96) {
                guest.submit(1, ioprio);
            }
            (0..rounds).for_each(|_| guest.round(false));
            let base = guest.stop();
            assert_eq!(guest.answered.len(), base, "{format:?}, {rounds} rounds");
        }
    }
}

/// An answer waits while more requests wait for the device, and never longer than a limit. One of
/// the foreground takes all along.
#[test]
fn answers_of_other_reads_share_interrupts() {
    for format in [Format::Split, Format::Packed] {
        let mut guest = guest(format, 300, Some(Duration::from_millis(1)), Mode::Order);
        guest.submit(200, NONE);
        guest.round(true);
        let (mut most, mut submitted, begin) = (0, 0, Instant::now());
        while most < 4 {
            assert!(begin.elapsed() < LIMIT, "{format:?}: {most} answers together");
            let express = guest.answered(EXPRESS);
            if express == submitted {
                guest.submit(1, EXPRESS);
                submitted += 1;
            }
            guest.round(true);
            let coalesced = guest.lane.coalesced;
            most = most.max(coalesced);
            assert!(coalesced == 0 || guest.answered(EXPRESS) == express, "{format:?}: it waits");
            let until = guest.lane.deadline().filter(|_| coalesced > 0);
            assert!(until.is_none_or(|until| until <= Instant::now() + LONGEST));
        }
        // Without new requests none waits for ever.
        guest.rounds_until(false, |guest| guest.free.len() == 300);
    }
}

#[test]
fn stopped_lane_shows_coalesced_answers() {
    for format in [Format::Split, Format::Packed] {
        let mut guest = guest(format, 300, Some(Duration::from_millis(1)), Mode::Order);
        guest.submit(1, EXPRESS);
        guest.submit(200, NONE);
        guest.rounds_until(false, |guest| guest.lane.coalesced > 2);
        let base = guest.stop();
        assert_eq!(guest.answered.len(), base, "{format:?}");
    }
}

/// The foreground's requests may wait in the guest for places in the ring, and its fsync for a
/// write.
#[test]
fn full_ring_and_writes_have_no_coalescing() {
    for (kind, count) in [(RequestKind::Read, 290), (RequestKind::Write, 200)] {
        let mut guest = guest(Format::Split, 300, Some(Duration::from_millis(1)), Mode::Order);
        guest.submit(1, EXPRESS);
        guest.submit_kind(kind, count, NONE);
        // Reads that come again keep the ring full.
        let again = kind == RequestKind::Read;
        guest.rounds_until(again, |guest| {
            assert_eq!(guest.lane.coalesced, 0, "{kind:?}");
            guest.answered.len() > 200
        });
    }
}

/// Any number is just a number: it is counted where the table says, and ext4's journal apart.
#[test]
fn each_request_is_counted_in_its_class() {
    for mode in [Mode::Order, Mode::Shortest] {
        for latency in [None, Some(Duration::from_micros(50))] {
            let mut guest = guest(Format::Split, 64, latency, mode);
            for (count, ioprio) in [
                (3, EXPRESS),
                (5, BACKGROUND),
                (7, EXT4),
                (11, 0),
                (2, u32::MAX),
                (1, EXT4 | 1 << 16),
                (4, 3 << 13),
                (6, EXPRESS),
            ] {
                guest.submit(count, ioprio);
            }
            guest.rounds_until(false, |guest| guest.free.len() == 64);
            let snapshot = guest.board.snapshot();
            let requests = snapshot.kinds.each_ref().map(|kind| kind.requests);
            // These are reads: no journal's write, that would be promoted.
            assert_eq!(
                (requests, requests[JOURNAL]),
                ([9, 0, 14, 9, 7], 7),
                "{mode:?} {latency:?}"
            );
            assert!(snapshot.is_mixed && snapshot.turns > 0);
            let at_device: u64 = snapshot.kinds.iter().map(|kind| kind.device.count).sum();
            // Requests of the first run may not have been timed.
            assert!(
                if latency.is_none() { at_device == 0 } else { at_device >= 36 },
                "{at_device}"
            );
        }
    }
}

/// It asks for kicks before.
#[test]
fn lane_with_full_window_sleeps() {
    let mut guest = guest(Format::Split, 64, Some(HOUR), Mode::Order);
    guest.submit(1, EXPRESS);
    guest.submit(50, BACKGROUND);
    guest.round(false);
    guest.round(false);
    assert!(!guest.lane.has_work() && !guest.lane.before_sleep(), "it would never sleep");
    // A request that waits in the ring cannot overtake others.
    let slot = guest.free.pop().unwrap();
    guest
        .driver
        .submit(slot, Request { kind: RequestKind::Read, sector: 0, len: 4096, ioprio: EXPRESS })
        .unwrap();
    assert!(guest.driver.publish(), "no kick for an express request");
    guest.lane.after_sleep();
    assert!(guest.lane.has_work());
}

/// No more is taken ahead than so many bytes.
#[test]
fn lane_with_full_list_sleeps_until_answer() {
    let mut guest = guest(Format::Split, 120, Some(HOUR), Mode::Order);
    guest.submit(1, EXPRESS);
    guest.len = 1 << 20;
    guest.submit(110, BACKGROUND);
    (0..3).for_each(|_| guest.round(false));
    assert!(!guest.lane.has_work() && !guest.lane.before_sleep(), "it would never sleep");
}

/// Background requests that came when none could overtake wait in the list of the normal ones. They
/// get that list's turns, and no more.
#[test]
fn other_lists_leave_express_its_turns() {
    let mut guest = guest(Format::Split, 256, Some(Duration::from_micros(100)), Mode::Order);
    guest.lane.set_limits(Some(slow(ExpressBudget::Exempt)));
    guest.submit(60, BACKGROUND);
    guest.round(false);
    guest.submit(1, EXPRESS);
    guest.rounds_until(false, |guest| guest.answered(EXPRESS) == 1);
    guest.lane.set_limits(None);
    guest.submit(120, EXPRESS);
    guest.rounds_until(false, |guest| guest.answered(EXPRESS) == 121);
    // A late look finds answers of the others behind the last one.
    let last = guest.answered.iter().rposition(|ioprio| *ioprio == EXPRESS).unwrap();
    let background = guest.answered[..last].iter().filter(|ioprio| **ioprio == BACKGROUND).count();
    assert!(background < 35, "{background} came first");
    guest.rounds_until(false, |guest| guest.free.len() == 256);
}

/// That holds from the first request on.
#[test]
fn requests_without_priority_have_configured_class() {
    let mut express = Express { mode: Mode::Order, ..Express::default() };
    express.classes.put("none", Class::Background).unwrap();
    let mut guest = guest_with(Format::Split, 16, None, express);
    guest.submit(10, 0);
    guest.rounds_until(false, |guest| guest.free.len() == 16);
    (0..2).for_each(|_| guest.round(false));
    drop(guest.lane);
    let requests = guest.board.snapshot().kinds.map(|kind| kind.requests);
    assert_eq!(requests, [0, 0, 0, 10, 0]);
}

#[test]
fn one_class_alone_has_no_window() {
    let mut guest = guest(Format::Split, 256, Some(HOUR), Mode::Order);
    guest.submit(256, BACKGROUND);
    (0..4).for_each(|_| guest.round(false));
    let snapshot = guest.board.snapshot();
    assert_eq!((snapshot.lanes[0].window, snapshot.lanes[0].at_device), (None, 256));
    assert!(snapshot.full_turns > 0, "others may wait in the guest");
}
