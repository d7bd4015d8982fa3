//! [`Policy::Adaptive`](super::Policy::Adaptive): finds by trial if boosts help a vCPU.
//!
//! A vCPU may compute all the time, and have so many events that no loan lasts. Boosts then make
//! some of its waits short and, while it pays for them, others long. Without boosts the mean can be
//! longer and the p99 shorter. So boosts are left out for a window when some of its events are
//! denied, and it has used its share. The responses of both are compared. The measure is their mean
//! square, in which a long response counts by its length. The better way stays, and the other one
//! is tried again after a pause.

use super::units::MS;

/// The time that is compared. In the first tenth of it a vCPU may still live on credits.
const WINDOW_NS: u64 = 3_990 * MS;
/// With fewer responses in a window there is no trial: boosts are on.
const FEWEST: u64 = 50;
/// Windows between two trials after one that has changed the way. Each one that has not
/// doubles them.
const PAUSE: u32 = 2;
/// So often at most.
const DOUBLED: u32 = 6;

/// Longer responses count as so long.
const LONGEST_US: u64 = 1_000_000;

/// Responses and the sum of their squares, in us.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Responses {
    number: u64,
    squares: u64,
}

impl Responses {
    fn mean(self) -> u64 {
        self.squares.checked_div(self.number).unwrap_or(0)
    }

    /// Both together; these count less, because they are older.
    fn and(self, later: Self) -> Self {
        let add = |old: u64, new: u64| (old / 4 * 3).saturating_add(new);
        Self { number: add(self.number, later.number), squares: add(self.squares, later.squares) }
    }
}

/// Boosts are in doubt when one of so many events is denied.
const STRAINED: u64 = 32;

/// The observations of one vCPU.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Trial {
    since: Option<u64>,
    /// Of this window.
    responses: Responses,
    events: u64,
    denied: u64,
    is_off: bool,
    /// A trial is on, with the other way than the usual one.
    is_trial: bool,
    /// Of the windows before, with the usual way.
    usual: Responses,
    /// Windows until the next trial.
    left: u32,
    /// Trials one after the other that have not changed the way.
    failed: u32,
}

impl Trial {
    pub(super) fn event(&mut self, is_denied: bool) {
        self.events += 1;
        self.denied += u64::from(is_denied);
    }

    pub(super) fn served(&mut self, response_ns: u64) {
        // That of a machine that was stopped would decide alone.
        let us = (response_ns / 1000).min(LONGEST_US);
        self.responses.number += 1;
        self.responses.squares = self.responses.squares.saturating_add(us.saturating_mul(us));
    }

    /// Ends the window if its time is over; returns true if boosts are left out from now on.
    pub(super) fn ends(&mut self, now: u64) -> bool {
        let since = *self.since.get_or_insert(now);
        let is_enough = self.responses.number >= FEWEST;
        let (mean, usual) = (self.responses.mean(), self.usual.mean());
        // A way that is clearly worse is left at once.
        let is_worse = self.is_trial && is_enough && mean > usual.saturating_add(usual / 2);
        if now.saturating_sub(since) < WINDOW_NS && !is_worse {
            return self.is_off;
        }
        if !is_enough {
            *self = Self { since: Some(now), ..Self::default() };
            return false;
        }
        if std::mem::take(&mut self.is_trial) {
            // An eighth is within what the same way differs from itself.
            if mean < usual - usual / 8 {
                (self.usual, self.failed) = (self.responses, 0);
            } else {
                self.is_off = !self.is_off;
                self.failed = (self.failed + 1).min(DOUBLED);
            }
            self.left = PAUSE << self.failed;
        } else {
            self.usual = self.usual.and(self.responses);
            if self.left > 0 {
                self.left -= 1;
            } else if self.is_off || self.denied * STRAINED >= self.events.max(1) {
                self.is_off = !self.is_off;
                self.is_trial = true;
            }
        }
        self.since = Some(now);
        self.responses = Responses::default();
        (self.events, self.denied) = (0, 0);
        self.is_off
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Windows of a vCPU with so many events in each, and so many denied of a hundred while boosts
    /// are on. `us` gives its responses, by whether boosts are off. Returns the windows without
    /// boosts.
    fn windows(number: u64, events: u64, denied: u64, us: impl Fn(bool, u64) -> u64) -> u64 {
        let mut trial = Trial::default();
        trial.ends(0);
        let mut off = 0;
        for window in 1..=number {
            off += u64::from(trial.is_off);
            for event in 0..events {
                trial.event(trial.is_off || event % 100 < denied);
                trial.served(us(trial.is_off, event) * 1000);
            }
            trial.ends(window * WINDOW_NS);
        }
        off
    }

    proptest! {
        /// A way that is a fifth better by the square is used nearly all of the time.
        #[test]
        fn better_way_stays(events in 50u64..2000, us in 100u64..100_000, off_is_better: bool) {
            let better = us * 8 / 10;
            let response = |is_off, _| if is_off == off_is_better { better } else { us };
            let off = windows(400, events, 40, response);
            let share = if off_is_better { off } else { 400 - off };
            prop_assert!(share >= 360, "{}", off);
        }

        /// Without a difference, trials take less than a tenth of the time.
        #[test]
        fn equal_ways_leave_boosts_on(
            events in 50u64..2000,
            us in 1u64..100_000,
            denied in 4u64..100,
        ) {
            prop_assert!(windows(400, events, denied, |_, _| us) <= 40);
        }

        #[test]
        fn unstrained_vcpu_keeps_boosts(
            events in 1u64..2000,
            us in 1u64..100_000,
            denied in 0u64..2,
        ) {
            prop_assert_eq!(windows(400, events, denied, |_, _| us), 0);
        }

        #[test]
        fn few_events_keep_boosts(events in 0u64..FEWEST, us in 0u64..100_000) {
            let us = |is_off, _| if is_off { us / 2 } else { us };
            prop_assert_eq!(windows(400, events, 100, us), 0);
        }

        #[test]
        fn any_response_is_counted(all in proptest::collection::vec(any::<u64>(), 50..100)) {
            let mut trial = Trial::default();
            trial.ends(0);
            all.iter().for_each(|&ns| trial.served(ns));
            trial.ends(u64::MAX);
        }
    }

    /// A few long responses weigh more than many short ones.
    #[test]
    fn long_responses_decide() {
        let mostly_short = |is_off, event| {
            if is_off {
                14_000
            } else if event % 10 == 0 {
                60_000
            } else {
                5_000
            }
        };
        assert!(windows(400, 100, 50, mostly_short) >= 360);
    }

    /// A guest with fewer events later has boosts again.
    #[test]
    fn calm_vcpu_gets_boosts_back() {
        let mut trial = Trial { is_off: true, left: 9, ..Trial::default() };
        trial.ends(0);
        trial.served(1000);
        trial.ends(WINDOW_NS);
        assert!(!trial.is_off);
    }
}
