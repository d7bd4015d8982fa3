//! Facts that the lanes of a volume publish about its classes, to each other and to clients. Each
//! lane writes its own part; any thread may read; there is no lock.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use vlane_io::Instant;
use vlane_policy::express::window::{LaneMessage, Nanos, STAYS, Shared};
use vlane_policy::express::{Class, Ioprio};

/// Buckets of a histogram.
pub const BUCKETS: usize = 48;
/// The first bucket ends here; two buckets are an octave.
const FIRST: Nanos = 1024;
/// Kinds that are counted separately: the classes, and ext4's journal unless it is promoted.
pub const KINDS: usize = 5;
/// The journal's place among them.
pub const JOURNAL: usize = 4;

/// The kind under which a request is counted.
#[inline]
pub(crate) fn kind(class: Class, ioprio: u32) -> usize {
    match class {
        Class::Promoted => class as usize,
        _ if Ioprio(ioprio) == Ioprio::JOURNAL => JOURNAL,
        _ => class as usize,
    }
}

/// The lanes' board.
#[derive(Debug)]
pub struct ClassBoard {
    origin: Instant,
    /// The time at which a request of each class was last seen; zero: never.
    seen: [AtomicU64; 4],
    /// More than one of them lately.
    is_mixed: AtomicBool,
    /// The last time at which a lane wanted all to probe.
    probe_at: AtomicU64,
    lanes: Box<[LaneClasses]>,
    /// Lanes below this have run: volumes offer more queues than guests use.
    used: AtomicUsize,
}

/// One lane's part, on separate cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct LaneClasses {
    told: AtomicU64,
    window: AtomicU64,
    at_device: AtomicU64,
    turns: AtomicU64,
    full: AtomicU64,
    kinds: [KindCounters; KINDS],
}

#[derive(Debug, Default)]
struct KindCounters {
    requests: AtomicU64,
    queued: Times,
    device: Times,
}

#[derive(Debug)]
struct Times {
    count: AtomicU64,
    nanos: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl Default for Times {
    fn default() -> Times {
        Times {
            count: AtomicU64::default(),
            nanos: AtomicU64::default(),
            buckets: std::array::from_fn(|_| AtomicU64::default()),
        }
    }
}

/// Only its lane's thread writes it.
#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(n), Relaxed);
}

/// The bucket of a time: 0 is below about a microsecond, and two are an octave.
fn bucket(nanos: Nanos) -> usize {
    if nanos < FIRST {
        return 0;
    }
    let octave = nanos.ilog2() - FIRST.ilog2();
    let is_upper = nanos >> (nanos.ilog2() - 1) & 1;
    (1 + 2 * octave as usize + usize::from(is_upper == 1)).min(BUCKETS - 1)
}

/// The end of a histogram's bucket, nanoseconds; the last one has no end.
pub fn bucket_end(bucket: usize) -> Nanos {
    match bucket {
        0 => FIRST,
        _ if bucket % 2 == 1 => (FIRST / 2 * 3) << ((bucket - 1) / 2),
        _ => FIRST << (bucket / 2),
    }
}

impl Times {
    fn record(&self, nanos: Nanos) {
        add(&self.count, 1);
        add(&self.nanos, nanos);
        add(&self.buckets[bucket(nanos)], 1);
    }

    fn add_to(&self, times: &mut TimesSnapshot) {
        times.count += self.count.load(Relaxed);
        times.nanos += self.nanos.load(Relaxed);
        for (sum, one) in times.buckets.iter_mut().zip(&self.buckets) {
            *sum += one.load(Relaxed);
        }
    }
}

impl LaneClasses {
    /// Counts requests of a kind.
    pub(crate) fn count(&self, kind: usize, requests: u64) {
        add(&self.kinds[kind].requests, requests);
    }

    /// A request waited in the lane for so long.
    pub(crate) fn queued(&self, kind: usize, nanos: Nanos) {
        self.kinds[kind].queued.record(nanos);
    }

    /// A request was at the device for so long.
    pub(crate) fn device(&self, kind: usize, nanos: Nanos) {
        self.kinds[kind].device.record(nanos);
    }

    /// Counts turns that took requests, and those after which all of the ring was in flight.
    pub(crate) fn turns(&self, turns: u64, full: u64) {
        add(&self.turns, turns);
        add(&self.full, full);
    }

    /// Publishes facts to the other lanes. `window` is zero for none.
    pub(crate) fn tell(&self, told: LaneMessage, window: u32, at_device: u32) {
        self.told.store(told.0, Relaxed);
        self.window.store(window.into(), Relaxed);
        self.at_device.store(at_device.into(), Relaxed);
    }
}

impl ClassBoard {
    /// For a volume of so many queues.
    pub fn new(queues: u16) -> ClassBoard {
        ClassBoard {
            origin: Instant::now(),
            seen: Default::default(),
            is_mixed: AtomicBool::new(false),
            probe_at: AtomicU64::new(0),
            lanes: (0..queues).map(|_| LaneClasses::default()).collect(),
            used: AtomicUsize::new(0),
        }
    }

    /// A lane begins to tell; returns true if it has a part of the board.
    pub(crate) fn begins(&self, index: usize) -> bool {
        let has_part = index < self.lanes.len();
        if has_part {
            self.used.fetch_max(index + 1, Relaxed);
        }
        has_part
    }

    fn used(&self) -> &[LaneClasses] {
        &self.lanes[..self.used.load(Relaxed).min(self.lanes.len())]
    }

    /// The clock of all times here; never zero.
    pub(crate) fn now(&self) -> Nanos {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
    }

    /// A time of that clock.
    pub(crate) fn instant(&self, at: Nanos) -> Instant {
        self.origin + std::time::Duration::from_nanos(at)
    }

    pub(crate) fn lane(&self, index: usize) -> Option<&LaneClasses> {
        self.lanes.get(index)
    }

    /// A request of a class was seen.
    pub(crate) fn sees(&self, class: Class, now: Nanos) {
        self.seen[class as usize].store(now, Relaxed);
    }

    /// When an express request was last seen; zero: never.
    #[inline]
    pub(crate) fn express_seen(&self) -> Nanos {
        self.seen[Class::Express as usize].load(Relaxed)
    }

    /// More than one class has been seen of late.
    #[inline]
    pub(crate) fn is_mixed(&self) -> bool {
        self.is_mixed.load(Relaxed)
    }

    /// Looks again whether more than one class was seen of late. All lanes are to probe when the
    /// first ones meet.
    pub(crate) fn mixes(&self, now: Nanos) {
        let is_recent = |seen: &&AtomicU64| {
            let seen = seen.load(Relaxed);
            seen != 0 && now.saturating_sub(seen) < STAYS
        };
        let is_mixed = self.seen.iter().filter(is_recent).count() > 1;
        if is_mixed != self.is_mixed.load(Relaxed)
            && self.is_mixed.swap(is_mixed, Relaxed) != is_mixed
            && is_mixed
        {
            self.probe(now);
        }
    }

    /// All lanes are to probe.
    pub(crate) fn probe(&self, now: Nanos) {
        self.probe_at.fetch_max(now, Relaxed);
    }

    pub(crate) fn probe_at(&self) -> Nanos {
        self.probe_at.load(Relaxed)
    }

    /// Sums up the facts of all lanes.
    pub(crate) fn shared(&self, now: Nanos) -> Shared {
        Shared::of(self.used().iter().map(|lane| LaneMessage(lane.told.load(Relaxed))), now)
    }

    /// The counts of all lanes, and the state of each.
    pub fn snapshot(&self) -> ClassSnapshot {
        let mut snapshot = ClassSnapshot { is_mixed: self.is_mixed(), ..ClassSnapshot::default() };
        for lane in &self.lanes {
            for (sum, one) in snapshot.kinds.iter_mut().zip(&lane.kinds) {
                sum.requests += one.requests.load(Relaxed);
                one.queued.add_to(&mut sum.queued);
                one.device.add_to(&mut sum.device);
            }
            snapshot.turns += lane.turns.load(Relaxed);
            snapshot.full_turns += lane.full.load(Relaxed);
            let window = lane.window.load(Relaxed);
            snapshot.lanes.push(LaneWindow {
                window: (window != 0).then_some(window),
                at_device: lane.at_device.load(Relaxed),
            });
        }
        snapshot
    }
}

/// The counts of a volume's lanes by class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClassSnapshot {
    /// More than one class was seen in the last seconds.
    pub is_mixed: bool,
    /// Express, promoted, normal, background; and ext4's journal ([`JOURNAL`]), as far as it is in
    /// none of them.
    pub kinds: [KindSnapshot; KINDS],
    /// Turns of lanes that took requests.
    pub turns: u64,
    /// ... after which the guest had as many requests in flight as its ring has entries: others may
    /// have waited in the guest.
    pub full_turns: u64,
    /// By queue.
    pub lanes: Vec<LaneWindow>,
}

/// The state of a lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneWindow {
    /// Requests that it may have at the device; none: as many as there are.
    pub window: Option<u64>,
    /// Requests that it had there at the end of its last turn.
    pub at_device: u64,
}

/// The counts of one class.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KindSnapshot {
    /// Requests that were taken out of the rings.
    pub requests: u64,
    /// Times from the ring until the requests were begun.
    pub queued: TimesSnapshot,
    /// ... and from then until they were answered, but for those that were answered at once.
    pub device: TimesSnapshot,
}

/// Times of requests: of all while classes are mixed, of one turn of sixty-four otherwise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimesSnapshot {
    /// The count.
    pub count: u64,
    /// The sum of the times, nanoseconds.
    pub nanos: u64,
    /// A histogram: below about a microsecond, and two buckets an octave.
    pub buckets: [u64; BUCKETS],
}

impl Default for TimesSnapshot {
    fn default() -> TimesSnapshot {
        TimesSnapshot { count: 0, nanos: 0, buckets: [0; BUCKETS] }
    }
}

impl TimesSnapshot {
    /// The mean, nanoseconds; none without a time.
    pub fn mean(&self) -> Option<u64> {
        self.nanos.checked_div(self.count)
    }

    /// The time that so large a share of all are not above, nanoseconds: the end of its bucket, at
    /// most half more than it is.
    pub fn quantile(&self, share: f64) -> Option<u64> {
        #[allow(clippy::cast_possible_truncation, reason = "it saturates")]
        let wanted = (self.count as f64 * share).ceil().max(1.0) as u64;
        let mut sum = 0;
        let at = self.buckets.iter().position(|count| {
            sum += count;
            sum >= wanted
        });
        at.map(bucket_end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It is below its bucket's end, and not below that of the bucket before.
    #[test]
    fn time_lies_in_its_bucket() {
        for nanos in (0..36).flat_map(|n| [1u64 << n, (1 << n) + 1, 3 << n >> 1, (2 << n) - 1]) {
            let at = bucket(nanos);
            assert!(at == BUCKETS - 1 || nanos < bucket_end(at), "{nanos} in {at}");
            assert!(at == 0 || nanos >= bucket_end(at - 1), "{nanos} in {at}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantile_is_the_end_of_its_bucket() {
        let times = Times::default();
        (0..99).for_each(|_| times.record(5000));
        times.record(10_000_000);
        let mut sum = TimesSnapshot::default();
        times.add_to(&mut sum);
        assert_eq!((sum.quantile(0.5), sum.quantile(0.99)), (Some(6144), Some(6144)));
        assert!(
            sum.quantile(1.0).is_some_and(|highest| (10_000_000..15_000_000).contains(&highest))
        );
        assert_eq!(sum.mean(), Some((99 * 5000 + 10_000_000) / 100));
        assert_eq!(TimesSnapshot::default().quantile(0.5), None);
    }

    #[test]
    fn recently_seen_second_class_mixes_classes() {
        let board = ClassBoard::new(1);
        let at = |seconds: u64| 1 + seconds * 1_000_000_000;
        let mixes = |now| {
            board.mixes(now);
            board.is_mixed()
        };
        board.sees(Class::Background, at(1));
        assert!(!mixes(at(1)), "one is not mixed with itself");
        board.sees(Class::Express, at(2));
        assert!(mixes(at(2)) && board.probe_at() == at(2), "from the first moment on");
        board.sees(Class::Background, at(8));
        assert!(mixes(at(11)), "a person makes pauses");
        assert!(!mixes(at(13)) && board.probe_at() == at(2));
    }
}
