//! The share of a CPU that looking may take, for any rate of rings and starts.

use std::time::{Duration, Instant};

/// One part in this many of the time.
const SHARE: u32 = 20;
/// The most that can be saved up: some looks without a pause.
const MOST: Duration = Duration::from_millis(60);

/// Time that may be spent.
#[derive(Debug)]
pub struct Budget {
    /// Saved up.
    left: Duration,
    /// Spent beyond that.
    owed: Duration,
    at: Instant,
}

impl Budget {
    /// A budget that is full.
    pub fn new(now: Instant) -> Self {
        Self { left: MOST, owed: Duration::ZERO, at: now }
    }

    /// Takes note of so much CPU time until `now`, and says from when on more can be done.
    pub fn spend(&mut self, spent: Duration, now: Instant) -> Instant {
        let earned = now.saturating_duration_since(self.at) / SHARE;
        let (have, need) = (self.left + earned, self.owed + spent);
        self.left = have.saturating_sub(need).min(MOST);
        // A process that has stood still, in a machine that was stopped, does not stand still for
        // as long again.
        self.owed = need.saturating_sub(have).min(MOST);
        self.at = now;
        now + self.owed * SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_work_takes_a_twentieth() {
        let begin = Instant::now();
        let mut budget = Budget::new(begin);
        let (mut now, mut worked) = (begin, Duration::ZERO);
        while now < begin + Duration::from_secs(60) {
            now += Duration::from_millis(1);
            worked += Duration::from_millis(1);
            now = now.max(budget.spend(Duration::from_millis(1), now));
        }
        assert!(worked < Duration::from_millis(3200), "{worked:?}");
        assert!(worked > Duration::from_millis(2800), "{worked:?}");
    }

    #[test]
    fn saved_budget_is_spent_without_waiting() {
        let begin = Instant::now();
        let mut budget = Budget::new(begin);
        let now = begin + Duration::from_millis(50);
        assert_eq!(budget.spend(Duration::from_millis(50), now), now);
    }
}
