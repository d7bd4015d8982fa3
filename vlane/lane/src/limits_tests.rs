//! Lanes whose volume has limits. Tests of requests over the limits use a cost of a minute each: no
//! machine is that slow.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use vlane_driver::ring::{Format, Request, RequestKind};
use vlane_engine::null::{NullConfig, NullEngine};
use vlane_io::Uring;
use vlane_policy::express::{Express, Mode};
use vlane_policy::throttle::{ExpressBudget, Limits};

use crate::lane::{Lane, Settled};
use crate::limits::Budget;
use crate::tests::{Guest, Stuck, guest, lane_of, null};

/// The cost of a read of 4 KiB with [`slow`].
const EACH: Duration = Duration::from_secs(64);
/// Reads that pass at once with it.
const BURST: usize = 5;
const LIMIT: Duration = Duration::from_secs(60);
/// The cost of a request with a limit of one per second.
const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn slow(express: ExpressBudget) -> Arc<Budget> {
    let burst = EACH * u32::try_from(BURST).unwrap();
    let limits = Limits { bandwidth: NonZeroU64::new(64), burst, express, iops: None };
    Arc::new(Budget::new(limits).unwrap())
}

/// A lane on a null device; with classes.
fn limited(budget: &Arc<Budget>) -> (Guest, Lane, Uring) {
    let (guest, mut config) = guest(null(None));
    config.express = Express { mode: Mode::On, ..Express::default() };
    let mut uring = Uring::new(64).unwrap();
    let mut lane = Lane::new(0, 0, 2, config, &mut uring).unwrap();
    lane.set_limits(Some(Arc::clone(budget)));
    (guest, lane, uring)
}

fn answered(guest: &mut Guest) -> Vec<u16> {
    let mut done = Vec::new();
    guest.driver.reap(&mut done).unwrap();
    assert!(done.iter().all(|completion| completion.status == 0));
    done.iter().map(|completion| completion.slot).collect()
}

/// Returns true if so many reads were paid, give or take the time that the test takes.
fn is_used(budget: &Budget, reads: usize) -> bool {
    let (used, paid) = (budget.used()[1], EACH * u32::try_from(reads).unwrap());
    used <= paid && used + EACH / 2 >= paid
}

/// It sleeps until the first waiting request is due.
#[test]
fn limited_lane_sleeps_without_kicks() {
    let budget = slow(ExpressBudget::Counted);
    let (mut guest, mut lane, mut uring) = limited(&budget);
    (0..8).for_each(|slot| guest.submit(slot, RequestKind::Read, 0));
    guest.driver.publish();
    let begin = Instant::now();
    assert!(lane.serve(&mut uring, false));
    assert_eq!(answered(&mut guest), [0, 1, 2, 3, 4]);
    for _ in 0..2 {
        assert!(!lane.serve(&mut uring, false), "nothing can be done");
        assert!(!lane.has_work() && !lane.before_sleep(), "it would never sleep");
        lane.after_sleep();
    }
    let due = lane.deadline().unwrap();
    assert!((begin + EACH..=Instant::now() + EACH).contains(&due), "{:?}", due - begin);
    guest.submit(0, RequestKind::Read, 0);
    assert!(!guest.driver.publish(), "the guest is asked for a kick that changes nothing");
    assert_eq!(budget.waits().count, 0, "it still waits");
}

/// So it does with those that were taken ahead for them.
#[test]
fn stopped_queue_puts_waiting_requests_back() {
    let budget = slow(ExpressBudget::Counted);
    let (mut guest, mut lane, mut uring) = limited(&budget);
    (0..8).for_each(|slot| guest.submit(slot, RequestKind::Read, 0));
    guest.driver.publish();
    lane.serve(&mut uring, false);
    assert!(is_used(&budget, BURST + 1), "it has asked for the next one");
    let (reply, stopped) = channel();
    lane.stop(reply);
    assert!(matches!(lane.settle(), Settled::Ends));
    assert_eq!(stopped.recv().unwrap().unwrap().base, 5, "the three that wait are the next ones");
    assert!(
        is_used(&budget, BURST),
        "a piece was taken for a request that was put back: {:?}",
        budget.used()
    );
    assert_eq!(budget.waits().count, 1);
}

/// They wait by class, and not in the order in which they were taken.
#[test]
fn waiting_requests_of_all_classes_are_put_back() {
    let budget = slow(ExpressBudget::Counted);
    let (mut guest, mut lane, mut uring) = limited(&budget);
    (0..8).for_each(|slot| guest.submit(slot, RequestKind::Read, 0));
    guest.driver.publish();
    lane.serve(&mut uring, false);
    assert_eq!(answered(&mut guest).len(), BURST);
    // Idle, best effort 0, none.
    for (slot, ioprio) in (0..).zip([3 << 13, 2 << 13, 0, 2 << 13, 3 << 13]) {
        guest
            .driver
            .submit(slot, Request { kind: RequestKind::Read, sector: 0, len: 4096, ioprio })
            .unwrap();
    }
    guest.driver.publish();
    lane.serve(&mut uring, false);
    assert!(answered(&mut guest).is_empty());
    let (reply, stopped) = channel();
    lane.stop(reply);
    assert!(matches!(lane.settle(), Settled::Ends));
    assert_eq!(stopped.recv().unwrap().unwrap().base, 5, "the eight that wait are the next ones");
    assert!(is_used(&budget, BURST), "{:?}", budget.used());
}

#[test]
fn exempt_express_requests_overtake_for_free() {
    let budget = slow(ExpressBudget::Exempt);
    let (mut guest, mut lane, mut uring) = limited(&budget);
    (0..7).for_each(|slot| guest.submit(slot, RequestKind::Read, 0));
    guest.driver.publish();
    lane.serve(&mut uring, false);
    assert_eq!(answered(&mut guest).len(), BURST);
    // Best effort 0, behind two that wait; the lane has to hear of it.
    assert!(!lane.before_sleep());
    let ioprio = 2 << 13;
    guest
        .driver
        .submit(7, Request { kind: RequestKind::Read, sector: 0, len: 4096, ioprio })
        .unwrap();
    assert!(guest.driver.publish(), "the guest is not asked for a kick");
    lane.after_sleep();
    assert!(lane.has_work());
    assert!(lane.serve(&mut uring, false));
    assert_eq!(answered(&mut guest), [7]);
    assert!(is_used(&budget, BURST + 1), "{:?}", budget.used());
    assert!(!lane.serve(&mut uring, false) && !lane.has_work());
    // The overtaken requests cannot be put back any more: they are done, and paid.
    let (reply, stopped) = channel();
    lane.stop(reply);
    lane.serve(&mut uring, false);
    assert_eq!(answered(&mut guest), [5, 6]);
    assert!(matches!(lane.settle(), Settled::Ends));
    assert_eq!(stopped.recv().unwrap().unwrap().base, 8);
    assert!(is_used(&budget, BURST + 2), "{:?}", budget.used());
}

/// `shortest` keeps the order of arrival: only what is exempt overtakes. Otherwise background
/// requests would wait for as long as others come.
#[test]
fn others_wait_in_order_of_arrival() {
    let budget = slow(ExpressBudget::Exempt);
    let (mut guest, mut config) = guest(null(None));
    config.express = Express { mode: Mode::Shortest, ..Express::default() };
    let mut uring = Uring::new(64).unwrap();
    let mut lane = Lane::new(0, 0, 2, config, &mut uring).unwrap();
    lane.set_limits(Some(budget));
    let idle = 3 << 13;
    for (slot, ioprio) in (0..8).zip([0, 0, 0, 0, 0, idle, 0, 0]) {
        guest
            .driver
            .submit(slot, Request { kind: RequestKind::Read, sector: 0, len: 4096, ioprio })
            .unwrap();
    }
    guest.driver.publish();
    lane.serve(&mut uring, false);
    assert_eq!(answered(&mut guest), [0, 1, 2, 3, 4]);
    lane.set_limits(None);
    lane.serve(&mut uring, false);
    assert_eq!(answered(&mut guest), [5, 6, 7]);
}

#[test]
fn counted_express_requests_go_first() {
    let budget = slow(ExpressBudget::Counted);
    let (mut guest, mut lane, mut uring) = limited(&budget);
    (0..6).for_each(|slot| guest.submit(slot, RequestKind::Read, 0));
    guest
        .driver
        .submit(6, Request { kind: RequestKind::Read, sector: 0, len: 4096, ioprio: 2 << 13 })
        .unwrap();
    guest.driver.publish();
    lane.serve(&mut uring, false);
    lane.serve(&mut uring, false);
    assert_eq!(answered(&mut guest).len(), BURST);
}

#[test]
fn new_limits_apply_to_waiting_requests() {
    let budget = slow(ExpressBudget::Counted);
    let (mut guest, mut lane, mut uring) = limited(&budget);
    (0..8).for_each(|slot| guest.submit(slot, RequestKind::Read, 0));
    guest.driver.publish();
    lane.serve(&mut uring, false);
    // As before, so it is as empty as before.
    let same = Arc::new(budget.replaced_by(budget.limits()).unwrap());
    lane.set_limits(Some(Arc::clone(&same)));
    assert!(!lane.serve(&mut uring, false) && lane.is_held());
    // Eight times as much: the next request costs a second, in which what was used of the old burst
    // is paid no sooner.
    let burst = Duration::from_millis(1);
    let more = Limits { bandwidth: NonZeroU64::new(1 << 30), burst, ..budget.limits() };
    let more = Arc::new(same.replaced_by(more).unwrap());
    lane.set_limits(Some(more));
    std::thread::sleep(Duration::from_millis(5));
    assert!(lane.serve(&mut uring, false), "it waits for the old limits");
    assert_eq!(answered(&mut guest).len(), 8);
    // None: as if there had never been any.
    lane.set_limits(Some(slow(ExpressBudget::Counted)));
    (0..8).for_each(|slot| guest.submit(slot, RequestKind::Read, 0));
    guest.driver.publish();
    lane.serve(&mut uring, false);
    lane.set_limits(None);
    assert!(lane.has_work() && lane.serve(&mut uring, false));
    assert_eq!(answered(&mut guest).len(), 8);
    assert!(lane.deadline().is_none());
}

/// A request that counted with the time of the last one before it would have its burst once more.
#[test]
fn request_after_stall_pays_own_time() {
    let limits = Limits { iops: NonZeroU64::new(1), burst: 10 * EACH, ..Limits::default() };
    let budget = Arc::new(Budget::new(limits).unwrap());
    let latency = Some(Duration::from_millis(1));
    let null = NullEngine::new(NullConfig { size: 1 << 40, latency, parallelism: 8 }).unwrap();
    let (mut guest, config) = guest(Arc::new(null));
    let mut uring = Uring::new(64).unwrap();
    let mut lane = Lane::new(0, 0, 2, config, &mut uring).unwrap();
    lane.set_limits(Some(Arc::clone(&budget)));
    // 64 MiB: the device has as much as it may have.
    guest.zeroes(0, 1 << 17);
    guest.driver.publish();
    lane.serve(&mut uring, false);
    guest.submit(1, RequestKind::Read, 0);
    guest.driver.publish();
    budget.passes(EACH);
    while !lane.poll_channel(&mut uring, Instant::now()) {}
    assert_eq!(budget.used()[0], Duration::ZERO);
    let begin = Instant::now();
    lane.serve(&mut uring, false);
    // A slow machine earns it again before the look.
    let used = budget.used()[0];
    assert!(used > Duration::ZERO || begin.elapsed() >= SECOND, "the read cost nothing");
}

#[test]
fn idle_lane_returns_its_budget() {
    let budget = slow(ExpressBudget::Counted);
    let (mut guest, mut lane, mut uring) = limited(&budget);
    for reads in 1..=3 {
        guest.submit(0, RequestKind::Read, 0);
        guest.driver.publish();
        lane.serve(&mut uring, false);
        assert_eq!(answered(&mut guest), [0]);
        assert!(is_used(&budget, reads), "{:?}", budget.used());
    }
}

#[test]
fn returned_large_request_gets_budget_back() {
    let limits =
        Limits { iops: NonZeroU64::new(1), burst: Duration::from_secs(60), ..Limits::default() };
    let budget = Arc::new(Budget::new(limits).unwrap());
    let engine = Stuck { is_busy: true, ..Stuck::default() };
    let (mut guest, mut lane, mut uring, _) = lane_of(engine, Format::Split);
    lane.set_limits(Some(Arc::clone(&budget)));
    guest.zeroes(0, 4 << 20);
    guest.driver.publish();
    let begin = Instant::now();
    lane.serve(&mut uring, false);
    // A slow machine earns it again before the look.
    let used = budget.used()[0];
    assert!(used > Duration::ZERO || begin.elapsed() >= SECOND);
    let (reply, stopped) = channel();
    lane.stop(reply);
    lane.serve(&mut uring, false);
    assert!(matches!(lane.settle(), Settled::Ends));
    assert_eq!(stopped.recv().unwrap().unwrap().base, 0);
    assert_eq!(budget.used()[0], Duration::ZERO);
}

#[test]
fn sharing_threads_never_exceed_the_budget() {
    let (rate, burst) = (20_000_u32, Duration::from_millis(5));
    let limits = Limits { iops: NonZeroU64::new(rate.into()), burst, ..Limits::default() };
    let budget = Arc::new(Budget::new(limits).unwrap());
    let at_once = burst.as_secs_f64() * f64::from(rate);
    let begin = Instant::now();
    let end = begin + Duration::from_millis(200);
    let all = AtomicUsize::new(0);
    // A busy machine may have used that time to start the threads.
    let is_over = || {
        let is_more = all.load(Ordering::Relaxed) as f64 > at_once;
        Instant::now() >= end && (is_more || begin.elapsed() > LIMIT)
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (mut guest, mut lane, mut uring) = limited(&budget);
                let mut free: Vec<u16> = (0..8).collect();
                while !is_over() {
                    for slot in free.drain(..) {
                        guest.submit(slot, RequestKind::Read, 0);
                    }
                    guest.driver.publish();
                    if !lane.serve(&mut uring, false)
                        && let Some(due) = lane.deadline()
                    {
                        std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    }
                    free = answered(&mut guest);
                    all.fetch_add(free.len(), Ordering::Relaxed);
                }
            });
        }
    });
    let most = (burst + begin.elapsed()).as_secs_f64() * f64::from(rate);
    let taken = all.into_inner() as f64;
    assert!(taken <= most, "{taken} of {most}");
    assert!(taken > at_once, "{taken}: only the burst");
}

#[test]
fn zeroes_and_discards_count_their_bytes() {
    let budget = slow(ExpressBudget::Counted);
    let (mut guest, mut lane, mut uring) = limited(&budget);
    // Zeroes that keep their place count as a write does.
    (0..4).for_each(|slot| guest.zeroes(slot, 8));
    // A freed range counts a part.
    let sectors = 8 * u32::try_from(crate::limits::FREED).unwrap();
    (4..8).for_each(|slot| guest.discard(slot, sectors));
    guest.driver.publish();
    assert!(lane.serve(&mut uring, false));
    assert_eq!(answered(&mut guest), [0, 1, 2, 3, 4]);
    assert!(!lane.serve(&mut uring, false) && lane.is_held(), "the others wait for the limit");
}
