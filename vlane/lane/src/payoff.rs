//! Decides by experiment whether polling saves CPU time.
//!
//! The savings of a look for work depend on the guest, on the other users of the CPU, and on a
//! wake-up's cost here. All of them react to the lane's behaviour: a guest that was let sleep is
//! slow because of that. So the savings are not computed. A thread does one of the two for a while,
//! and then the other for a moment. It keeps the one that took less CPU time per request. The
//! guest's turn and the storage's are tried apart. Much higher request rates have a value, too.
//! With a client that polls for its answers, and has as many requests out as it can, sleeping takes
//! more than it saves. So CPU time per request is compared with the root of the rate, where rates
//! differ by more than a quarter. At a given rate they do not. It begins with polling, as for the
//! lowest latency, which takes no CPU time of an idle thread. A guest that was let sleep first may
//! not wake up in the short time of a trial. For the same reason a thread that polls again, after a
//! trial too, looks for work for the longest time at first. While it slept it forgot for how long
//! it pays. A trial against polling that never happens finds no difference.
//!
//! A rule from the lengths of waits was tried before. It spun where the expected wait was shorter
//! than a wake-up's cost, and no longer than that. At depth 32 on the null device it had 0.6 of the
//! requests per second, at 1.3 times the CPU time for each. It took the waits that it had itself
//! made long for the guest's nature.

/// The side whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The guest was shown answers in the last round.
    Guest,
    /// It was not: the storage works.
    Storage,
}

/// Before a measurement begins, nanoseconds: the guest answers to the change.
const SETTLE: u64 = 1_000_000;
/// A measurement lasts as long, and until so many requests were served.
const LENGTH: u64 = 4_000_000;
const REQUESTS: u64 = 32;
/// Fewer requests in this time are no basis to learn from.
const IDLE: u64 = 100_000_000;
/// Measurements between two trials, at first and at most.
const INTERVAL: (u32, u32) = (16, 512);
/// The other way must be cheaper by that much, in parts of the present cost.
const BETTER: f64 = 0.95;
/// Rates that differ by more count. The part that counts is this at most.
const QUICKER: f64 = 1.25;
const MOST_QUICKER: f64 = 4.0;
/// A cost or a rate that is other than before by this factor is another load.
const OTHER: f64 = 2.5;

/// A thread's observations up to a moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    /// Nanoseconds since some moment.
    pub(crate) now: u64,
    /// CPU time of the thread, nanoseconds.
    pub(crate) cpu: u64,
    pub(crate) requests: u64,
}

/// Tries, and remembers what pays.
#[derive(Debug)]
pub(crate) struct Payoff {
    /// By turn.
    polls: [bool; 2],
    /// The turn for which the other way is tried.
    tried: Option<usize>,
    /// The turn to try next.
    next: usize,
    begin: Seen,
    is_settled: bool,
    /// Earliest end of the present phase.
    until: u64,
    /// Cost of a request in nanoseconds, and requests per nanosecond, as measured last without a
    /// trial.
    usual: Option<(f64, f64)>,
    interval: u32,
    /// Measurements before the next trial.
    left: u32,
    /// To sleep was found cheaper once.
    is_doubted: bool,
}

impl Payoff {
    pub(crate) fn new() -> Payoff {
        Payoff {
            polls: [true; 2],
            tried: None,
            next: Turn::Guest as usize,
            begin: Seen::default(),
            is_settled: false,
            until: 0,
            usual: None,
            interval: INTERVAL.0,
            left: 1,
            is_doubted: false,
        }
    }

    /// Returns true if the thread is to look for work in that turn.
    #[inline]
    pub(crate) fn polls(&self, turn: Turn) -> bool {
        self.polls[turn as usize]
    }

    /// Returns true if the thread's present way is only a trial.
    pub(crate) fn is_trial(&self) -> bool {
        self.tried.is_some()
    }

    /// Returns true if it wants new observations.
    #[inline]
    pub(crate) fn is_due(&self, now: u64) -> bool {
        now >= self.until
    }

    /// Takes note of what was seen up to now. Says for which turn polling begins with this, if it
    /// does.
    pub(crate) fn look(&mut self, seen: Seen) -> Option<Turn> {
        if !self.is_settled {
            self.begin = seen;
            self.is_settled = true;
            self.until = seen.now + LENGTH;
            return None;
        }
        let requests = seen.requests.saturating_sub(self.begin.requests);
        let time = seen.now.saturating_sub(self.begin.now).max(1);
        if requests < REQUESTS && time < IDLE {
            return None;
        }
        self.is_settled = false;
        self.until = seen.now + SETTLE;
        if requests < REQUESTS {
            // Its knowledge is worthless when the next load comes.
            *self = Payoff { until: self.until, ..Payoff::new() };
            return None;
        }
        let (cpu, requests, time) =
            (seen.cpu.saturating_sub(self.begin.cpu) as f64, requests as f64, time as f64);
        self.measured(cpu / requests, requests / time)
    }

    fn measured(&mut self, cost: f64, rate: f64) -> Option<Turn> {
        let Some(tried) = self.tried.take() else {
            let is_other = |a: f64, b: f64| a > b * OTHER || b > a * OTHER;
            if self.usual.is_some_and(|(before, at)| is_other(before, cost) || is_other(at, rate)) {
                self.interval = INTERVAL.0;
                self.left = 1;
            }
            self.usual = Some((cost, rate));
            self.left = self.left.saturating_sub(1);
            return if self.left == 0 { self.try_other() } else { None };
        };
        let is_better =
            self.usual.is_some_and(|(usual, at)| cost < usual * BETTER * worth(rate / at));
        // A guest that lost its CPU for a moment makes polling look dear: to give it up takes two
        // trials.
        let is_to_sleep = !self.polls[tried];
        if is_better && is_to_sleep && !std::mem::replace(&mut self.is_doubted, true) {
            self.next = tried;
            self.left = 1;
            return self.change(tried);
        }
        self.is_doubted = false;
        let begins = if is_better {
            self.usual = None;
            self.interval = INTERVAL.0;
            None
        } else {
            self.interval = (self.interval * 2).min(INTERVAL.1);
            self.change(tried)
        };
        // The other turn's trial follows at once: together they are one look around.
        self.left = if self.next == 0 { self.interval } else { 1 };
        begins
    }

    fn try_other(&mut self) -> Option<Turn> {
        let turn = self.next;
        self.next = 1 - turn;
        self.tried = Some(turn);
        self.change(turn)
    }

    /// Says whether polling begins with it.
    fn change(&mut self, turn: usize) -> Option<Turn> {
        self.polls[turn] = !self.polls[turn];
        self.polls[turn].then_some([Turn::Guest, Turn::Storage][turn])
    }
}

/// By how much more a request may cost when so many times as many are served.
fn worth(quicker: f64) -> f64 {
    match quicker {
        _ if (1.0 / QUICKER..=QUICKER).contains(&quicker) => 1.0,
        _ => quicker.clamp(1.0 / MOST_QUICKER, MOST_QUICKER).sqrt(),
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a simulation")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Payoff {
        /// Returns true if it has no knowledge, as of an idle thread.
        fn is_new(&self) -> bool {
            self.usual.is_none() && self.polls == [true; 2]
        }
    }

    /// Runs a thread whose requests cost `cost`, in nanoseconds, and come at `rate` per second.
    /// Returns for which turns it polls at the end, and the part of the time in which it did
    /// otherwise.
    fn run(
        payoff: &mut Payoff,
        seconds: f64,
        rate: f64,
        cost: impl FnMut([bool; 2]) -> f64,
    ) -> ([bool; 2], f64) {
        run_at(payoff, seconds, |_| rate, cost)
    }

    /// The same, with a rate that depends on the way.
    fn run_at(
        payoff: &mut Payoff,
        seconds: f64,
        rate: impl Fn([bool; 2]) -> f64,
        mut cost: impl FnMut([bool; 2]) -> f64,
    ) -> ([bool; 2], f64) {
        // Looks ten times in a measurement.
        let step = LENGTH / 10;
        let mut seen = Seen { now: payoff.until, ..payoff.begin };
        let mut spent = [[0u64; 2]; 2];
        let (mut cpu, mut requests) = (seen.cpu as f64, seen.requests as f64);
        for _ in 0..(seconds * 1e9 / step as f64) as u64 {
            seen.now += step;
            let served = rate(payoff.polls) * step as f64 / 1e9;
            requests += served;
            cpu += served * cost(payoff.polls);
            (seen.cpu, seen.requests) = (cpu as u64, requests as u64);
            spent[usize::from(payoff.polls[0])][usize::from(payoff.polls[1])] += 1;
            if payoff.is_due(seen.now) {
                let before = payoff.polls;
                let says = payoff.look(seen);
                // A thread that did not look for work has forgotten for how long it pays to.
                let begins = [Turn::Guest, Turn::Storage]
                    .into_iter()
                    .find(|turn| payoff.polls(*turn) && !before[*turn as usize]);
                assert!(says == begins || payoff.is_new(), "{says:?}, not {begins:?}");
            }
        }
        let end = payoff.tried.map_or(payoff.polls, |tried| {
            let mut polls = payoff.polls;
            polls[tried] = !polls[tried];
            polls
        });
        let total: u64 = spent.iter().flatten().sum();
        let same = spent[usize::from(end[0])][usize::from(end[1])];
        (end, 1.0 - same as f64 / total as f64)
    }

    /// A guest may be slow only because it slept.
    #[test]
    fn guest_slow_by_sleep_is_polled() {
        let mut payoff = Payoff::new();
        let (polls, _) = run(&mut payoff, 0.2, 1e6, |polls| if polls[0] { 210.0 } else { 340.0 });
        assert!(polls[0]);
    }

    #[test]
    fn cheaper_sleep_is_hardly_polled() {
        let mut payoff = Payoff::new();
        let (polls, otherwise) =
            run(&mut payoff, 10.0, 50e3, |polls| if polls[0] { 19_000.0 } else { 6_000.0 });
        assert!(!polls[0]);
        assert!(otherwise < 0.03, "{otherwise}");
    }

    /// Figures of a client that polls, of a disk one at a time, and of a User-Mode Linux guest at
    /// depth 32.
    #[test]
    fn large_throughput_gain_justifies_polling() {
        for (polled, slept, is_polled) in [
            ((200.0, 4.5e6), (158.0, 2.7e6), true),
            ((26_600.0, 40e3), (18_500.0, 25.6e3), false),
            ((760.0, 1.56e5), (600.0, 1.4e5), false),
        ] {
            let mut payoff = Payoff::new();
            let of = |polls: [bool; 2]| if polls[0] { polled } else { slept };
            let (polls, _) = run_at(&mut payoff, 10.0, |polls| of(polls).1, |polls| of(polls).0);
            assert_eq!(polls[0], is_polled, "{polled:?} {slept:?}");
        }
    }

    #[test]
    fn changed_load_is_tried_at_once() {
        let mut payoff = Payoff::new();
        run(&mut payoff, 10.0, 50e3, |polls| if polls[0] { 19_000.0 } else { 6_000.0 });
        let (polls, _) = run(&mut payoff, 0.1, 1e6, |polls| if polls[0] { 210.0 } else { 340.0 });
        assert!(polls[0]);
        let (polls, _) =
            run(&mut payoff, 0.1, 50e3, |polls| if polls[0] { 19_000.0 } else { 6_000.0 });
        assert!(!polls[0]);
    }

    #[test]
    fn idle_thread_restarts_its_trials() {
        let mut payoff = Payoff::new();
        let (polls, _) =
            run(&mut payoff, 1.0, 50e3, |polls| if polls[0] { 19_000.0 } else { 6_000.0 });
        assert!(!polls[0]);
        let (polls, _) = run(&mut payoff, 1.0, 10.0, |_| 10_000.0);
        assert_eq!(polls, [true; 2]);
    }

    proptest! {
        /// The ways may have any costs, and each measurement any error. A thread ends up with a way
        /// that costs little more than the best that a single change leads to.
        #[test]
        fn no_single_change_is_cheaper(
            costs in proptest::array::uniform4(200.0..20_000f64),
            noise in proptest::collection::vec(0.99..1.01f64, 64),
        ) {
            let of = |polls: [bool; 2]| costs[usize::from(polls[0]) * 2 + usize::from(polls[1])];
            let mut at = 0;
            let mut payoff = Payoff::new();
            let (polls, _) = run(&mut payoff, 5.0, 100e3, |polls| {
                at += 1;
                of(polls) * noise[at % noise.len()]
            });
            for turn in 0..2 {
                let mut other = polls;
                other[turn] = !other[turn];
                prop_assert!(of(other) > of(polls) * 0.9, "{costs:?}: {polls:?}");
            }
        }

        /// One measurement that is far off, in either way, is put right soon.
        #[test]
        fn outlier_does_not_last(at in 0u64..1900, factor in prop_oneof![0.05..0.5f64, 2.0..20f64]) {
            let mut step = 0;
            let mut payoff = Payoff::new();
            let (polls, _) = run(&mut payoff, 8.0, 100e3, |polls| {
                step += 1;
                let usual = if polls[0] { 300.0 } else { 400.0 };
                if step / 10 == at { usual * factor } else { usual }
            });
            prop_assert!(polls[0]);
        }
    }
}
