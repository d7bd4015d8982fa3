//! For how long it pays to look for work before sleeping: learnt from waits, without a clock.
//!
//! A sleep costs a thread CPU time too, to fall asleep and to be woken; [`WakeCost`] knows how much, here. Looking for
//! work that comes after `t` costs `t`. So with a window `w`, a wait costs `min(t, w)`, and a sleep on top if the work
//! came later. [`Payoff`] knows how long the waits have been lately, and takes the window for which that is cheapest:
//! none, where sleeping is. No window is longer than twice a sleep's cost, so even a wait that takes the worst turn costs
//! at most three sleeps.
//!
//! Polling changes what is waited for: a guest that gets its answer soon enough does not fall asleep, and its next request comes
//! in a few microseconds instead of tens. To find that out, or to come back to it, one wait must outlast the guest's own wake-up. So the
//! first wait of an attempt, and the one after a miss among many finds, may be looked for twice as long.
//!
//! A sleep cannot tell how soon the work came: it ends later, by the time that waking takes. So waits are learnt only
//! from looking: all of a few in a row, to see whether it pays, then some of those that are polled for. Where it does not
//! pay, the next attempt comes later each time, and none at all where even the sleeps are long: much longer than waking ever takes.

/// Upper ends of the lengths that are told apart, in nanoseconds; about half as long again each.
const ENDS: [u64; 16] = [
    500, 700, 1_000, 1_400, 2_000, 2_800, 4_000, 5_600, 8_000, 11_000, 16_000, 22_000, 32_000, 45_000,
    64_000, 90_000,
];
/// The longest window, in sleeps' costs.
pub(crate) const LONGEST: u64 = 2;
/// The same, where the wait may only be long because the guest slept, too: at the first of an attempt, and after a miss among many finds.
const LONGEST_ALONE: u64 = 4;
/// Finds in a row after which a miss is taken for such a one.
const FINDS: u8 = 16;
/// One wait, in the units of the counts; they fade by a quarter with every batch.
const ONE: u64 = 64;
/// Waits that are learnt from together.
const BATCH: u8 = 8;
/// While polling pays, one wait in so many is looked at for as long as may be: to learn from.
const FULL_EVERY: u8 = 8;
/// Waits in a row that outlast their window: it does not pay any more, or not yet.
const MISSES: u8 = 4;
const MISSES_TRYING: u8 = 2;
/// Sleeps longer than so many limits are not for want of waking: nothing that comes so late is looked for.
const LONG_SLEEP: u64 = 4;
/// Short sleeps between two attempts: at first, and at most.
const REST: (u64, u64) = (32, 1024);
/// Before the very first attempt.
const SOON: u64 = 4;

/// What a sleep costs this thread, in CPU time.
#[derive(Debug)]
pub(crate) struct WakeCost {
    ns: u64,
    /// Sleeps until one is measured.
    left: u64,
    measured: u64,
}

impl WakeCost {
    /// Before anything is known, and the limits of what is believed.
    const GUESS: u64 = 5_000;
    const BELIEVED: (u64, u64) = (500, 50_000);
    /// Sleeps that are all measured, at first; then one in so many.
    const FIRST: u64 = 8;
    const EVERY: u64 = 16;

    pub(crate) fn new() -> WakeCost {
        WakeCost { ns: Self::GUESS, left: 0, measured: 0 }
    }

    /// In nanoseconds.
    pub(crate) fn ns(&self) -> u64 {
        self.ns
    }

    /// Before each sleep: whether this one is to be measured, which costs two system calls.
    pub(crate) fn is_due(&mut self) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.left = if self.measured < Self::FIRST { 0 } else { Self::EVERY - 1 };
        true
    }

    /// A sleep took this much CPU time. What disturbs it makes it dearer, never cheaper: so the cost follows what is less
    /// quickly, and what is more slowly.
    pub(crate) fn measured(&mut self, ns: u64) {
        let ns = ns.clamp(Self::BELIEVED.0, Self::BELIEVED.1);
        self.ns = match self.measured {
            0 => ns,
            _ if ns < self.ns => self.ns - (self.ns - ns) / 4,
            _ => self.ns + (ns - self.ns).min(self.ns) / 16,
        };
        self.measured = self.measured.saturating_add(1);
    }
}

/// What the thread does about its waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Sleeps. After so many more short sleeps it tries again.
    Sleeps { left: u64 },
    /// Looks for as long as may be, a batch of waits long.
    Tries {
        /// It is the first.
        first: bool,
        /// In a row.
        misses: u8,
    },
    /// Looks for as long as it pays.
    Polls {
        /// Until one that is learnt from.
        full: u8,
        /// In a row.
        misses: u8,
        /// In a row.
        finds: u8,
        /// The guest may have fallen asleep, once.
        again: bool,
    },
}

/// Whether it pays to poll, for waits of one kind. All times are in nanoseconds.
#[derive(Debug)]
pub(crate) struct Payoff {
    state: State,
    /// Waits by length, in parts of [`ONE`]; the last are longer than was looked for.
    counts: [u64; ENDS.len() + 1],
    /// Of those, new ones.
    new: u8,
    window: u64,
    /// Short sleeps until the next attempt, should this one fail.
    rest: u64,
}

impl Payoff {
    pub(crate) fn new() -> Payoff {
        Payoff {
            state: State::Sleeps { left: SOON },
            counts: [0; ENDS.len() + 1],
            new: 0,
            window: 0,
            rest: REST.0,
        }
    }

    /// The longest window that may be.
    fn longest(cost: u64, limit: u64) -> u64 {
        (cost * LONGEST).min(limit)
    }

    /// Whether the wait that comes is one that may be longer for once.
    fn is_alone(&self) -> bool {
        matches!(self.state, State::Tries { first: true, .. } | State::Polls { again: true, .. })
    }

    /// For how long to look for work now; zero: sleep at once. What came of it is told with [`Payoff::polled`].
    pub(crate) fn window(&self, cost: u64, limit: u64) -> u64 {
        match self.state {
            State::Sleeps { .. } => 0,
            _ if self.is_alone() => (cost * LONGEST_ALONE).min(limit),
            State::Polls { full: 1.., .. } => self.window.min(Self::longest(cost, limit)),
            State::Tries { .. } | State::Polls { .. } => Self::longest(cost, limit),
        }
    }

    /// The work came after so long a look, or did not come while the window lasted.
    pub(crate) fn polled(&mut self, found: Option<u64>, cost: u64, limit: u64) {
        let is_alone = self.is_alone();
        let is_full = match &mut self.state {
            State::Sleeps { .. } => return,
            State::Tries { first, misses } => {
                *first = false;
                *misses = if found.is_some() { 0 } else { *misses + 1 };
                if *misses >= MISSES_TRYING {
                    return self.give_up();
                }
                true
            }
            State::Polls { full, misses, finds, again } => {
                *misses = if found.is_some() { 0 } else { *misses + 1 };
                *again = found.is_none() && *finds >= FINDS;
                *finds = if found.is_some() { finds.saturating_add(1) } else { 0 };
                if *misses >= MISSES {
                    return self.give_up();
                }
                let is_full = *full == 0;
                *full = if is_full { FULL_EVERY - 1 } else { *full - 1 };
                is_full
            }
        };
        if !is_full || is_alone {
            return;
        }
        let place = found.and_then(|found| ENDS.iter().position(|end| found <= *end)).unwrap_or(ENDS.len());
        self.counts[place] += ONE;
        self.new += 1;
        if self.new < BATCH {
            return;
        }
        self.new = 0;
        self.window = self.cheapest(cost, limit);
        self.counts.iter_mut().for_each(|count| *count -= *count / 4);
        match self.state {
            _ if self.window == 0 => self.give_up(),
            State::Tries { .. } => {
                self.state = State::Polls { full: FULL_EVERY - 1, misses: 0, finds: 0, again: false }
            }
            _ => self.rest = (self.rest / 2).max(REST.0),
        }
    }

    /// The thread slept so long without looking, or after it.
    pub(crate) fn slept(&mut self, length: u64, limit: u64) {
        let State::Sleeps { left } = &mut self.state else { return };
        if length > limit.saturating_mul(LONG_SLEEP) {
            return;
        }
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.counts.fill(0);
            self.new = 0;
            self.state = State::Tries { first: true, misses: 0 };
        }
    }

    fn give_up(&mut self) {
        self.state = State::Sleeps { left: self.rest };
        self.rest = (self.rest * 2).min(REST.1);
    }

    /// The window for which the waits that are known would have been cheapest.
    fn cheapest(&self, cost: u64, limit: u64) -> u64 {
        let longest = Self::longest(cost, limit);
        let mut later: u64 = self.counts.iter().sum();
        let mut best = (later * cost, 0);
        let mut looked = 0;
        for (end, count) in ENDS.into_iter().zip(self.counts).take_while(|(end, _)| *end <= longest) {
            looked += count * end;
            later -= count;
            let price = looked + later * (end + cost);
            if price < best.0 {
                best = (price, end);
            }
        }
        best.1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: u64 = 50_000;

    /// A thread that waits, and what it paid.
    struct Waiter {
        payoff: Payoff,
        cost: u64,
        paid: u64,
        slept: u64,
        longest: u64,
    }

    impl Waiter {
        fn new(cost: u64) -> Waiter {
            Waiter { payoff: Payoff::new(), cost, paid: 0, slept: 0, longest: 0 }
        }

        /// The work comes after `length`; a sleep takes 10 us longer than that.
        fn wait(&mut self, length: u64) {
            let window = self.payoff.window(self.cost, LIMIT);
            self.longest = self.longest.max(window);
            let found = (length <= window && window > 0).then_some(length);
            if window > 0 {
                self.payoff.polled(found, self.cost, LIMIT);
            }
            self.paid += found.unwrap_or(window);
            if found.is_none() {
                self.paid += self.cost;
                self.slept += 1;
                self.payoff.slept(length - window.min(length) + 10_000, LIMIT);
            }
        }

        fn wait_often(&mut self, times: usize, length: u64) -> &mut Waiter {
            for _ in 0..times {
                self.wait(length);
            }
            self
        }

        /// Sleeps of the next waits.
        fn sleeps_in(&mut self, times: usize, length: u64) -> u64 {
            let before = self.slept;
            self.wait_often(times, length);
            self.slept - before
        }
    }

    #[test]
    fn a_guest_that_answers_sooner_than_a_sleep_costs_is_polled_for() {
        let mut waiter = Waiter::new(6_000);
        waiter.wait_often(100, 3_000);
        assert_eq!(waiter.sleeps_in(1_000, 3_000), 0);
    }

    #[test]
    fn storage_that_takes_longer_than_a_sleep_costs_is_slept_for() {
        for length in [15_000, 25_000, 100_000] {
            let mut waiter = Waiter::new(6_000);
            waiter.wait_often(20_000, length);
            let alone = 20_000 * 6_000;
            assert!(waiter.paid < alone + alone / 50, "{length}: {} for {alone}", waiter.paid);
        }
        let mut waiter = Waiter::new(6_000);
        waiter.wait_often(20_000, 1_000_000);
        assert_eq!((waiter.longest, waiter.paid), (0, 20_000 * 6_000), "never looked for");
    }

    #[test]
    fn one_wait_that_is_different_changes_nothing() {
        let mut polls = Waiter::new(6_000);
        polls.wait_often(200, 3_000);
        let mut sleeps = Waiter::new(6_000);
        sleeps.wait_often(2_000, 30_000);
        for _ in 0..50 {
            polls.wait(5_000_000);
            assert_eq!(polls.sleeps_in(40, 3_000), 0);
            sleeps.wait(500);
            assert!(sleeps.sleeps_in(40, 30_000) == 40);
        }
        assert!(matches!(sleeps.payoff.state, State::Sleeps { .. } | State::Tries { .. }));
    }

    #[test]
    fn a_guest_that_falls_idle_is_polled_for_a_few_more_times_only() {
        let mut waiter = Waiter::new(6_000);
        waiter.wait_often(200, 3_000);
        let paid = waiter.paid;
        waiter.wait_often(1_000, 1_000_000);
        let extra = waiter.paid - paid - 1_000 * 6_000;
        assert!(extra <= (u64::from(MISSES) * LONGEST + LONGEST_ALONE) * 6_000, "{extra} ns for nothing");
    }

    /// It takes 30 us to wake up, and 3 us for its next request if it did not fall asleep, because its answer came at once.
    #[test]
    fn a_guest_that_is_only_slow_because_it_slept_is_kept_awake() {
        let mut waiter = Waiter::new(10_000);
        let mut asleep = true;
        let mut wait = |waiter: &mut Waiter, is_disturbed: bool| {
            let before = waiter.slept;
            waiter.wait(if is_disturbed {
                200_000
            } else if asleep {
                30_000
            } else {
                3_000
            });
            asleep = waiter.slept > before;
        };
        for _ in 0..200 {
            wait(&mut waiter, false);
        }
        let before = waiter.slept;
        for n in 0..10_000 {
            wait(&mut waiter, n % 100 == 99);
        }
        assert!(waiter.slept - before <= 150, "{} sleeps", waiter.slept - before);
    }

    #[test]
    fn a_guest_that_becomes_quick_is_polled_for_again() {
        let mut waiter = Waiter::new(6_000);
        waiter.wait_often(20_000, 30_000);
        waiter.wait_often(2_000, 2_000);
        assert_eq!(waiter.sleeps_in(1_000, 2_000), 0);
    }

    #[test]
    fn a_disturbed_sleep_is_not_what_sleeps_cost() {
        let mut cost = WakeCost::new();
        for n in 0..1_000 {
            assert!(cost.is_due() || n >= WakeCost::FIRST);
            cost.measured(if n % 10 == 0 { 400_000 } else { 6_000 + n % 7 * 100 });
        }
        assert!((5_500..8_000).contains(&cost.ns()), "{}", cost.ns());
    }

    proptest! {
        /// Whatever the waits are.
        #[test]
        fn no_wait_is_polled_for_longer_than_a_few_times_what_a_sleep_costs(
            cost in 500u64..50_000,
            lengths in prop::collection::vec(0u64..100_000, 0..2_000),
        ) {
            let mut waiter = Waiter::new(cost);
            lengths.into_iter().for_each(|length| waiter.wait(length));
            prop_assert!(waiter.longest <= (LONGEST_ALONE * cost).min(LIMIT));
        }

        /// Waits of any mix that does not change.
        #[test]
        fn waits_cost_hardly_more_than_sleeping_each_time(
            cost in 1_000u64..20_000,
            mix in prop::collection::vec(0u64..150_000, 1..20),
            picks in prop::collection::vec(0usize..20, 4_000),
        ) {
            let mut waiter = Waiter::new(cost);
            picks.iter().for_each(|pick| waiter.wait(mix[pick % mix.len()]));
            let alone = cost * 4_000;
            prop_assert!(waiter.paid <= alone + alone / 5, "{} of {alone}", waiter.paid);
        }

        /// Waits that are all alike: what they cost is about what the better of the two ways costs.
        #[test]
        fn waits_that_are_alike_cost_what_is_best_for_them(
            cost in 1_000u64..20_000,
            length in 0u64..150_000,
        ) {
            let mut waiter = Waiter::new(cost);
            waiter.wait_often(4_000, length);
            let best = length.max(500).min(cost) * 4_000;
            prop_assert!(waiter.paid <= best + best / 2 + 100 * cost, "{} of {best}", waiter.paid);
        }
    }
}
