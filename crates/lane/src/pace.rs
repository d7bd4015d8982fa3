//! How often a lane looks at its ring, and shows answers: often enough that the guest never waits, and not more often.
//!
//! Each look and each answer that is shown moves cache lines between the lane's CPU and the guest's. A guest that has many
//! requests in flight, and makes them as fast as it can, loses more by that than it gains by the earliest answer.
//! So there is a period: between two looks, and between two times that answers are shown, passes no less than that. In a period, the
//! guest gets through a third of what it has in flight: the rest keeps it busy.
//!
//! How much it has in flight, only the guest knows. But a look after a longer wait finds all of it that the guest can make in that
//! time: so now and then, a wait is tried that is longer than the period. It finds more than one look
//! finds otherwise, or the guest has no more. Few requests (fewer than eight) and slow ones need no period, nor
//! does a lane that sleeps now and then: it has none.
//!
//! Pure: no clock. All times are in nanoseconds since some moment that stays the same.

/// The longest period.
const LONGEST: u64 = 3_500;
/// So many periods is what the guest has in flight to last.
const PERIODS: u64 = 3;
/// The length of a wait that is tried, where there is no period yet: at first, and at most.
const TRY: (u64, u64) = (3_000, 12_000);
/// One that is tried to find more, in periods.
const TRY_PERIODS: u64 = 4;
/// Requests that a wait must find for a longer one to be tried, and for there to be a period.
const FOUND: (u64, u64) = (3, 8);
/// The guest's time for a request is at least so many times the lane's: a lane that is busy itself has no time to wait.
const SPARE: u64 = 2;
/// Looks between two tries: with a period (more while tries find the same), with none and hope, and with none at first and at most.
const LOOKS_PACED: (u32, u32) = (64, 512);
const LOOKS_SOON: u32 = 16;
const LOOKS: (u32, u32) = (256, 8_192);
/// Looks in a row that find nothing after a wait: the guest has become slow.
const VAIN: u32 = 2;

/// A lane's pace.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Zero: the lane looks and shows as soon as it can.
    period: u64,
    /// Answers that are shown together.
    show_after: usize,
    /// Requests that looks have taken since the last [`Pace::wait_until`].
    taken: u64,
    /// When the last look began, as far as it is known.
    looked: Option<u64>,
    /// How long before that the one before it had begun.
    since: u64,
    /// A wait was just over, and nothing was taken since.
    has_waited: bool,
    vain: u32,
    /// The last wait was one that was tried.
    is_tried: bool,
    /// The length of the next one that is tried where there is no period.
    next_try: u64,
    /// Looks until then.
    left: u32,
    /// And after it, should it find too little.
    rest: u32,
    /// Requests that looks found, and the time between those looks: how fast the guest is.
    found: u64,
    time: u64,
    /// What a request takes the lane.
    cost: u64,
}

impl Pace {
    pub(crate) fn new() -> Pace {
        Pace {
            period: 0,
            show_after: 1,
            taken: 0,
            looked: None,
            since: 0,
            has_waited: false,
            vain: 0,
            is_tried: false,
            next_try: TRY.0,
            left: LOOKS.0,
            rest: LOOKS.0,
            found: 0,
            time: 0,
            cost: 0,
        }
    }

    /// How many answers are to be shown together.
    #[inline]
    pub(crate) fn show_after(&self) -> usize {
        self.show_after
    }

    /// A look took so many requests.
    #[inline]
    pub(crate) fn took(&mut self, requests: usize) {
        self.taken += requests as u64;
        if self.has_waited {
            self.has_waited = false;
            self.vain = if requests == 0 { self.vain + 1 } else { 0 };
            if self.vain >= VAIN {
                self.stop(LOOKS.0);
            }
        }
    }

    /// The thread slept: what is true of a guest that it need not wait for is not true of this one.
    pub(crate) fn slept(&mut self) {
        if self.period > 0 || self.left < LOOKS.0 {
            self.stop(LOOKS.0);
        }
        self.looked = None;
    }

    fn stop(&mut self, left: u32) {
        self.period = 0;
        self.show_after = 1;
        self.vain = 0;
        self.is_tried = false;
        self.next_try = TRY.0;
        self.left = left;
        self.looked = None;
        (self.found, self.time) = (0, 0);
    }

    /// After a round that found work: whether [`Pace::wait_until`] is to be asked. To know the time costs something.
    #[inline]
    pub(crate) fn wants_time(&mut self) -> bool {
        if self.period > 0 || self.is_tried {
            return true;
        }
        self.taken = 0;
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// After a round that found work: until when to wait with the next look, if at all.
    pub(crate) fn wait_until(&mut self, now: u64) -> Option<u64> {
        let taken = std::mem::take(&mut self.taken);
        if let (Some(looked), 1..) = (self.looked, taken) {
            let cost = (now - looked) / taken;
            self.cost = if self.cost == 0 { cost } else { (self.cost * 7 + cost) / 8 };
            if !self.is_tried && self.since > 0 {
                self.found += taken;
                self.time += self.since;
            }
        }
        if std::mem::take(&mut self.is_tried) {
            self.judge(taken);
        }
        if self.period == 0 {
            if self.left > 0 {
                return None;
            }
            self.is_tried = true;
            return Some(now + self.next_try);
        }
        self.show_after = usize::try_from(self.period / self.cost.max(1)).unwrap_or(usize::MAX).max(1);
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.is_tried = true;
            return Some(now + (self.period * TRY_PERIODS).min(TRY.1));
        }
        let until = self.looked.map_or(now, |looked| looked + self.period);
        if until <= now {
            // Nothing to wait for: the next look begins now.
            self.begins(now);
            return None;
        }
        Some(until)
    }

    /// A wait is over, and a look begins.
    pub(crate) fn waited(&mut self, now: u64) {
        self.has_waited = true;
        self.begins(now);
    }

    fn begins(&mut self, now: u64) {
        self.since = self.looked.map_or(0, |looked| now - looked);
        self.looked = Some(now);
    }

    /// A wait that was tried has found so many requests.
    fn judge(&mut self, taken: u64) {
        let (found, time) = match self.found {
            0 => (taken, self.next_try),
            found => (found, self.time),
        };
        if taken < FOUND.1 || time < self.cost * SPARE * found {
            if (FOUND.0..FOUND.1).contains(&taken) && self.period == 0 && self.next_try < TRY.1 {
                self.next_try *= 2;
                self.left = LOOKS_SOON;
                return;
            }
            self.rest = (self.rest * 2).clamp(LOOKS.0, LOOKS.1);
            return self.stop(self.rest);
        }
        let period = (taken * time / (PERIODS * found)).clamp(1, LONGEST);
        let is_same = period.abs_diff(self.period) <= self.period / 8;
        self.rest = if is_same { (self.rest * 2).min(LOOKS_PACED.1) } else { LOOKS_PACED.0 };
        self.left = self.rest;
        self.period = period;
        (self.found, self.time) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// A guest with so many requests in flight, which takes `guest` for each answer until the next request is there, and a lane that
    /// takes `lane` for each request.
    struct Bench {
        pace: Option<Pace>,
        guest: u64,
        lane: u64,
        now: u64,
        /// When requests come into the ring.
        arrivals: VecDeque<u64>,
        guest_free: u64,
        answered: u64,
        looks: u64,
        waited: u64,
    }

    impl Bench {
        fn new(depth: u64, guest: u64, lane: u64, pace: Option<Pace>) -> Bench {
            let arrivals = (1..=depth).map(|n| n * guest).collect();
            let guest_free = depth * guest;
            Bench { pace, guest, lane, now: 0, arrivals, guest_free, answered: 0, looks: 0, waited: 0 }
        }

        fn show(&mut self, answers: usize) {
            for _ in 0..answers {
                self.guest_free = self.guest_free.max(self.now) + self.guest;
                self.arrivals.push_back(self.guest_free);
            }
        }

        fn round(&mut self) {
            let show_after = self.pace.as_ref().map_or(1, Pace::show_after);
            let (mut taken, mut unshown) = (0, 0);
            while taken < 128 && self.arrivals.front().is_some_and(|at| *at <= self.now) {
                self.arrivals.pop_front();
                self.now += self.lane;
                (taken, unshown) = (taken + 1, unshown + 1);
                if unshown >= show_after {
                    self.show(std::mem::take(&mut unshown));
                }
            }
            self.show(unshown);
            self.answered += taken as u64;
            self.looks += u64::from(taken > 0);
            if taken == 0 {
                // Looks that find nothing, 50 ns each.
                self.now = self.arrivals.front().map_or(self.now, |at| at.next_multiple_of(50));
            }
            let Some(pace) = &mut self.pace else { return };
            pace.took(taken);
            if taken > 0
                && pace.wants_time()
                && let Some(until) = pace.wait_until(self.now)
            {
                assert!(
                    until >= self.now && until - self.now <= TRY.1,
                    "waits until {until} at {}",
                    self.now
                );
                self.waited += until - self.now;
                self.now = until;
                pace.waited(self.now);
            }
        }

        /// Runs for so many requests; says how long they took.
        fn run(&mut self, requests: u64) -> u64 {
            let (until, before) = (self.answered + requests, self.now);
            while self.answered < until {
                self.round();
            }
            self.now - before
        }

        fn is_paced(&self) -> bool {
            self.pace.as_ref().is_some_and(|pace| pace.period > 0)
        }
    }

    fn paced(depth: u64, guest: u64, lane: u64) -> Bench {
        Bench::new(depth, guest, lane, Some(Pace::new()))
    }

    #[test]
    fn a_fast_guest_with_many_requests_is_looked_at_in_its_pace() {
        let mut bench = paced(32, 300, 70);
        bench.run(200_000);
        assert!(bench.is_paced());
        let (looks, answered) = (bench.looks, bench.answered);
        let time = bench.run(100_000);
        let each = (bench.answered - answered) / (bench.looks - looks);
        assert!((6..=16).contains(&each), "{each} requests at a look");
        assert!(time <= 100_000 * 300 * 102 / 100, "the guest had to wait: {time}");
    }

    #[test]
    fn a_guest_with_few_requests_is_never_kept_waiting() {
        for depth in 1..=5 {
            for guest in [200, 700, 3_000, 20_000] {
                let mut bench = paced(depth, guest, 70);
                bench.run(100_000);
                assert!(!bench.is_paced(), "depth {depth}");
                assert!(bench.waited < bench.now / 50, "depth {depth}, {guest}: {} ns", bench.waited);
            }
        }
    }

    #[test]
    fn a_guest_that_becomes_slow_is_looked_at_at_once() {
        let mut bench = paced(32, 300, 70);
        bench.run(200_000);
        assert!(bench.is_paced());
        bench.guest = 20_000;
        bench.run(20_000);
        assert!(!bench.is_paced());
    }

    #[test]
    fn a_lane_that_sleeps_has_no_pace() {
        let mut bench = paced(32, 300, 70);
        for _ in 0..10_000 {
            bench.run(100);
            assert!(!bench.is_paced());
            bench.pace.as_mut().unwrap().slept();
        }
        bench.run(200_000);
        assert!(bench.is_paced());
        bench.pace.as_mut().unwrap().slept();
        assert!(!bench.is_paced());
    }

    proptest! {
        /// Whatever the guest and the lane are like: requests are not served noticeably slower.
        #[test]
        fn a_pace_costs_no_throughput(
            depth in 1u64..128,
            guest in 50u64..20_000,
            lane in 30u64..5_000,
        ) {
            let plain = Bench::new(depth, guest, lane, None).run(20_000);
            let paced = paced(depth, guest, lane).run(20_000);
            prop_assert!(paced <= plain + plain / 25, "{paced} ns instead of {plain}");
        }
    }
}
