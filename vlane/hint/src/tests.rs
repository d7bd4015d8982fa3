//! Both ends of the board together. Beside them and not in them, because checks/models compiles
//! both files a second time.

#![allow(clippy::unwrap_used, reason = "tests")]
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use proptest::prelude::*;
use rustix::event::EventfdFlags;

use crate::{Board, BoardReader, Classes, LaneHint, Mark};

fn bench(lanes: u16) -> (Arc<Board>, BoardReader, Arc<OwnedFd>) {
    let (board, fd) = Board::create(lanes, false).unwrap();
    let watch = BoardReader::new(Board::open(fd.as_fd(), lanes).unwrap());
    let wake = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    (board, watch, Arc::new(wake))
}

fn wakes(fd: &OwnedFd) -> u64 {
    let mut count = [0; 8];
    rustix::io::read(fd, &mut count).map_or(0, |_| u64::from_ne_bytes(count))
}

/// A signal that showed one request of some class.
fn signal(hint: &mut LaneHint, classes: Classes) {
    hint.answered_of(classes);
    hint.shown(true);
}

#[test]
fn unarmed_board_gets_no_marks() {
    let (board, mut watch, wake) = bench(2);
    let mut hint = LaneHint::new(board, 1, Arc::clone(&wake)).unwrap();
    assert_eq!(watch.collect(u64::MAX).count(), 0);
    signal(&mut hint, Classes::READS);
    hint.some_taken();
    assert_eq!(watch.collect(u64::MAX).count(), 0);
    assert_eq!(wakes(&wake), 0);
}

/// None is missing.
#[test]
fn events_and_answers_come_in_order() {
    let (board, mut watch, wake) = bench(3);
    watch.arm(Classes::ALL);
    let mut hint = LaneHint::new(Arc::clone(&board), 2, Arc::clone(&wake)).unwrap();
    assert_eq!(watch.collect(crate::now()).count(), 0);
    let before = crate::now();
    signal(&mut hint, Classes::READS);
    assert_eq!(wakes(&wake), 1);
    signal(&mut hint, Classes::READS);
    assert_eq!(wakes(&wake), 0, "one wake-up until somebody looks");
    let marks: Vec<_> = watch.collect(crate::now()).collect();
    let [(2, Mark::Event { at, count: 2 })] = marks[..] else { panic!("{marks:?}") };
    assert!(at >= before && at <= crate::now());
    hint.some_taken();
    hint.some_taken();
    assert_eq!(wakes(&wake), 1);
    let marks: Vec<_> = watch.collect(crate::now()).collect();
    let [(2, Mark::Served { at: then, response_ns, count: 0 })] = marks[..] else {
        panic!("{marks:?}")
    };
    assert_eq!(response_ns, then - at);
    // Two rounds between two looks: completions that are over are reported as served, the others as
    // an event.
    signal(&mut hint, Classes::READS);
    hint.some_taken();
    signal(&mut hint, Classes::READS);
    let marks: Vec<_> = watch.collect(crate::now()).collect();
    assert!(
        matches!(
            marks[..],
            [(2, Mark::Served { count: 0, .. }), (2, Mark::Event { count: 2, .. })]
        ),
        "{marks:?}"
    );
    hint.some_taken();
    signal(&mut hint, Classes::READS);
    hint.some_taken();
    let marks: Vec<_> = watch.collect(crate::now()).collect();
    assert!(matches!(marks[..], [(2, Mark::Served { count: 1, .. })]), "{marks:?}");
    assert_eq!(watch.collect(crate::now()).count(), 0);
}

#[test]
fn only_armed_classes_are_marked() {
    let (board, mut watch, wake) = bench(1);
    watch.arm(Classes::FLUSHES.and(Classes::READS));
    let mut hint = LaneHint::new(board, 0, wake).unwrap();
    signal(&mut hint, Classes::WRITES);
    assert_eq!(watch.collect(u64::MAX).count(), 0);
    hint.answered_of(Classes::READS);
    hint.shown(false);
    signal(&mut hint, Classes::WRITES);
    assert_eq!(watch.collect(u64::MAX).count(), 0, "the guest saw the read by itself");
    hint.answered_of(Classes::WRITES);
    signal(&mut hint, Classes::FLUSHES);
    assert_eq!(watch.collect(u64::MAX).count(), 1);
    hint.forget();
    hint.some_taken();
    assert_eq!(watch.collect(u64::MAX).count(), 0);
}

#[test]
fn express_only_board_ignores_background() {
    let (board, mut watch, wake) = bench(1);
    watch.arm(Classes::EXPRESS);
    let mut hint = LaneHint::new(board, 0, wake).unwrap();
    signal(&mut hint, Classes::READS);
    assert_eq!(watch.collect(u64::MAX).count(), 0, "a read that is not express");
    // One signal for both: somebody waits for one of them.
    hint.answered_of(Classes::READS);
    signal(&mut hint, Classes::READS.and(Classes::EXPRESS_READS));
    assert!(matches!(watch.collect(u64::MAX).next(), Some((0, Mark::Event { count: 1, .. }))));
    assert!(hint.is_choosy());
    hint.some_taken();
    hint.taken_of(Classes::READS);
    hint.taken_of(Classes::FLUSHES);
    assert_eq!(watch.collect(u64::MAX).count(), 0, "the background was taken for the answer");
    hint.taken_of(Classes::WRITES.and(Classes::EXPRESS_WRITES));
    assert!(matches!(watch.collect(u64::MAX).next(), Some((0, Mark::Served { .. }))));
    assert!(!hint.is_choosy());
}

/// A guest that waits for its turn takes no interrupt, and is not signalled again: the foreground's
/// completion comes after one of the background's.
#[test]
fn express_counts_behind_an_untaken_signal() {
    let (board, mut watch, wake) = bench(1);
    watch.arm(Classes::EXPRESS);
    let mut hint = LaneHint::new(board, 0, wake).unwrap();
    signal(&mut hint, Classes::READS);
    hint.answered_of(Classes::EXPRESS_READS);
    hint.shown(false);
    assert!(matches!(watch.collect(u64::MAX).next(), Some((0, Mark::Event { count: 1, .. }))));
    hint.some_taken();
    hint.taken_of(Classes::EXPRESS_READS);
    assert!(matches!(watch.collect(u64::MAX).next(), Some((0, Mark::Served { .. }))));
    // It has run since, and looks by itself.
    signal(&mut hint, Classes::READS);
    hint.some_taken();
    hint.answered_of(Classes::EXPRESS_READS);
    hint.shown(false);
    assert_eq!(watch.collect(u64::MAX).count(), 0);
}

/// The scheduler asks for the guest's foreground with this word.
#[test]
fn shown_express_is_noted_once() {
    let (board, watch, wake) = bench(1);
    let mut hint = LaneHint::new(Arc::clone(&board), 0, wake).unwrap();
    let mut show = |classes, signals| {
        hint.answered_of(classes);
        hint.shown(signals);
        board.take_express()
    };
    assert!(!show(Classes::EXPRESS_READS, true), "the board is off");
    for armed in [Classes::ALL, Classes::EXPRESS] {
        watch.arm(armed);
        assert!(!show(Classes::READS.and(Classes::FLUSHES), true));
        assert!(show(Classes::READS.and(Classes::EXPRESS_READS), false));
        assert!(!board.take_express());
    }
}

/// The possible steps of a lane, its guest and the scheduler.
#[derive(Debug, Clone)]
enum Step {
    Signal(u64, bool),
    Submit(Vec<u64>),
    Arm(Classes),
    Look,
}

fn step() -> impl Strategy<Value = Step> {
    // A read or a write, express or not; a flush.
    let classes = || prop::sample::select(vec![0x1_u64, 0x10, 0x401, 0x810, 0x100]);
    let armed = [Classes::ALL, Classes::EXPRESS, Classes::READS, Classes::NONE];
    prop_oneof![
        4 => (classes(), any::<bool>()).prop_map(|(classes, signals)| Step::Signal(classes, signals)),
        4 => prop::collection::vec(classes(), 1..4).prop_map(Step::Submit),
        1 => prop::sample::select(armed.to_vec()).prop_map(Step::Arm),
        3 => Just(Step::Look),
    ]
}

proptest! {
    /// Against the rules in their shortest words.
    #[test]
    fn marks_match_the_counted_requests(steps in prop::collection::vec(step(), 1..60)) {
        let express = Classes::EXPRESS.0;
        let (board, mut watch, wake) = bench(1);
        let mut hint = LaneHint::new(board, 0, wake).unwrap();
        let mut armed = Classes::NONE;
        // The classes that answer the unanswered completions; 0: there are none.
        let (mut answers, mut events, mut served) = (0, 0_u32, false);
        // A signal while only express counted, and no request submitted since.
        let mut is_signalled = false;
        for step in steps {
            match step {
                Step::Signal(classes, signals) => {
                    hint.answered_of(Classes(classes));
                    hint.shown(signals);
                    let is_express = armed.0 == express;
                    is_signalled = is_express && (signals || is_signalled);
                    if classes & armed.0 != 0 && (signals || is_signalled) {
                        answers = if is_express { express } else { u64::MAX };
                        events += 1;
                    }
                }
                Step::Submit(requests) => {
                    hint.some_taken();
                    is_signalled = false;
                    for classes in requests {
                        if hint.is_choosy() {
                            hint.taken_of(Classes(classes));
                        }
                        if classes & answers != 0 {
                            (answers, served) = (0, true);
                        }
                    }
                }
                Step::Arm(classes) => {
                    watch.arm(classes);
                    armed = classes;
                }
                Step::Look => {
                    let marks: Vec<Mark> = watch.collect(u64::MAX).map(|(_, mark)| mark).collect();
                    let pending = answers != 0 && events > 0;
                    prop_assert_eq!(marks.len(), usize::from(served) + usize::from(pending), "{:?}", marks);
                    let is_served = marks.first().is_some_and(|mark| matches!(mark, Mark::Served { .. }));
                    prop_assert_eq!(is_served, served);
                    let counts = marks.iter().map(|mark| match *mark {
                        Mark::Event { count, .. } | Mark::Served { count, .. } => count,
                    });
                    prop_assert_eq!(counts.sum::<u32>(), events);
                    (events, served) = (0, false);
                }
            }
        }
    }
}

#[test]
fn no_mark_is_lost_before_sleep() {
    let (board, mut watch, wake) = bench(1);
    watch.arm(Classes::ALL);
    const EVENTS: u64 = 200_000;
    let waker = Arc::clone(&wake);
    let lane = std::thread::spawn(move || {
        let mut hint = LaneHint::new(board, 0, waker).unwrap();
        for _ in 0..EVENTS {
            signal(&mut hint, Classes::READS);
            hint.some_taken();
        }
        signal(&mut hint, Classes::READS);
        std::thread::sleep(std::time::Duration::from_millis(1));
        hint
    });
    let (mut events, mut pending) = (0, false);
    while events <= EVENTS {
        for (_, mark) in watch.collect(crate::now()) {
            let (Mark::Event { count, .. } | Mark::Served { count, .. }) = mark;
            events += u64::from(count);
            pending = matches!(mark, Mark::Event { .. });
        }
        if events > EVENTS {
            break;
        }
        let mut fds = [rustix::event::PollFd::new(&*wake, rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)).unwrap(), 1, "asleep at {events}");
        wakes(&wake);
    }
    assert_eq!((events, pending), (EVENTS + 1, true));
    drop(lane.join().unwrap());
}

#[test]
fn hostile_board_yields_only_wrong_marks() {
    let (board, mut watch, _wake) = bench(64);
    watch.arm(Classes::ALL);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match state >> 61 {
            0 => 0,
            1 => u64::MAX,
            2 => 1 << 63,
            _ => state.rotate_left(21),
        }
    };
    for round in 0..2000 {
        board.scribble(&mut random);
        let now = 1_000_000 + round;
        let marks: Vec<_> = watch.collect(now).collect();
        assert!(marks.len() <= 128);
        for (lane, mark) in marks {
            assert!(lane < 64);
            let (Mark::Event { at, .. } | Mark::Served { at, .. }) = mark;
            assert!(at <= now, "{mark:?}");
            if let Mark::Served { response_ns, .. } = mark {
                assert!(response_ns <= at, "{mark:?}");
            }
        }
    }
}

#[test]
fn board_unlike_its_announcement_is_refused() {
    let (board, fd) = Board::create(4, false).unwrap();
    assert!(Board::open(fd.as_fd(), 5).is_err());
    assert!(Board::open(fd.as_fd(), 0).is_err());
    assert!(Board::open(fd.as_fd(), crate::MAX_LANES + 1).is_err());
    assert!(Board::open(fd.as_fd(), 4).is_ok());
    assert!(LaneHint::new(board, 4, Arc::new(fd)).is_none());
    assert!(Board::create(0, false).is_err());
    for has_express in [false, true] {
        let (_board, fd) = Board::create(1, has_express).unwrap();
        assert_eq!(Board::open(fd.as_fd(), 1).unwrap().has_express(), has_express);
    }
    let (_other, fd) = vlane_memory::shared::SharedWords::create("x", 4096).unwrap();
    assert!(Board::open(fd.as_fd(), 4).is_err());
}
