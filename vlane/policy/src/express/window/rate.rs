//! How fast a device answers a lane.

use super::{MS, Nanos};

/// Times that are kept.
const KEPT: usize = 8;
/// A time over which answers are counted: no shorter, and as long as there are fewer answers, but
/// no longer.
const SHORTEST: Nanos = 5 * MS;
const FEWEST: u32 = 32;
const LONGEST: Nanos = 500 * MS;

/// Answers per nanosecond, over the last eight times in which the lane had always more for the
/// device than it may give it.
#[derive(Debug, Default)]
pub(super) struct Rate {
    rates: [f64; KEPT],
    next: usize,
    /// How many of them are known.
    known: usize,
    since: Nanos,
    count: u32,
    /// The sum of their service times.
    took: f64,
    /// The lane had always more in this time.
    is_full: bool,
}

impl Rate {
    pub(super) fn new(now: Nanos) -> Rate {
        Rate { since: now, is_full: true, ..Rate::default() }
    }

    #[inline]
    pub(super) fn count(&mut self, took: Nanos) {
        self.count += 1;
        self.took += took as f64;
    }

    /// Begins a new time; the present one does not count.
    pub(super) fn again(&mut self, now: Nanos) {
        (self.since, self.count, self.took, self.is_full) = (now, 0, 0.0, true);
    }

    /// The second highest, which one short time that happened to have many does not change.
    pub(super) fn known(&self) -> Option<f64> {
        let (mut first, mut second) = (0.0f64, 0.0f64);
        for rate in &self.rates[..self.known] {
            if *rate > first {
                (first, second) = (*rate, first);
            } else {
                second = second.max(*rate);
            }
        }
        match self.known {
            0 => None,
            1 => Some(first),
            _ => Some(second),
        }
    }

    /// A turn of the lane ends; `is_full` says whether it had more than it could begin. If a time
    /// ends with it and counts, returns the mean service time of its answers, where the lane had
    /// more all the time.
    pub(super) fn turn(
        &mut self,
        now: Nanos,
        shortest: Nanos,
        is_full: bool,
    ) -> Option<Option<f64>> {
        self.is_full &= is_full;
        let passed = now.saturating_sub(self.since);
        if passed < shortest.clamp(SHORTEST, LONGEST)
            || (self.count < FEWEST && passed < LONGEST)
            || self.count == 0
        {
            return None;
        }
        let rate = f64::from(self.count) / passed as f64;
        let mean = self.took / f64::from(self.count);
        let was_full = self.is_full;
        self.again(now);
        // A guest that asked for less is no measure of the device, unless it was more.
        if !was_full && self.known().is_some_and(|known| rate <= known) {
            return None;
        }
        self.rates[self.next] = rate;
        self.next = (self.next + 1) % KEPT;
        self.known = (self.known + 1).min(KEPT);
        Some(was_full.then_some(mean))
    }
}
