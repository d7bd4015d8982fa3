//! Finds out if the thread has its CPU to itself.
//!
//! Two things make a lane faster on its own CPU and slower on one that it shares with the guest's
//! vCPU. To look for work instead of sleeping takes the vCPU's time. To signal the guest in the
//! middle of a batch makes the vCPU take the lane's place at once. That means a cold cache and a
//! switch for every few requests (measured: 10 million requests a second fall to 3). A thread
//! cannot see which others run on its CPU, but the kernel counts how often it was taken off while
//! it had work. On a CPU of its own that is nearly never.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};

/// Rounds of work between two looks at the count, which cost a system call.
const ROUNDS: u32 = 32;
/// The involuntary switches, in that many rounds, that mean that the CPU is shared.
const SHARED: i64 = 4;
/// For how long that is believed at first, and at most.
const BELIEVED: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(640));

#[derive(Debug)]
pub(crate) struct Contention {
    rounds: u32,
    switches: i64,
    believed: Duration,
    until: Option<Instant>,
}

impl Contention {
    pub(crate) fn new() -> Contention {
        Contention {
            rounds: 0,
            switches: involuntary_switches(),
            believed: BELIEVED.0,
            until: None,
        }
    }

    /// Returns true if the CPU is shared, as far as is known.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        self.until.is_some()
    }

    /// After every round of work.
    #[inline]
    pub(crate) fn worked(&mut self) {
        self.rounds += 1;
        if self.rounds >= ROUNDS {
            self.look(Instant::now(), involuntary_switches());
        }
    }

    #[cold]
    fn look(&mut self, now: Instant, switches: i64) {
        let new = switches - std::mem::replace(&mut self.switches, switches);
        self.rounds = 0;
        match self.until {
            // While the CPU counts as shared, the thread keeps out of the way, and the count has no
            // meaning.
            Some(until) if now < until => {}
            // Time is up: try again.
            Some(_) => self.until = None,
            None if new >= SHARED => {
                self.until = Some(now + self.believed);
                self.believed = (self.believed * 2).min(BELIEVED.1);
            }
            None => self.believed = self.believed.mul_f32(0.9).max(BELIEVED.0),
        }
    }
}

/// Number of times that the kernel took this thread off its CPU while it had work.
fn involuntary_switches() -> i64 {
    getrusage(UsageWho::RUSAGE_THREAD).map_or(0, |usage| usage.involuntary_context_switches())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_cpu_is_retried_ever_later() {
        let mut contention =
            Contention { rounds: 0, switches: 0, believed: BELIEVED.0, until: None };
        let mut now = Instant::now();
        contention.look(now, SHARED - 1);
        assert!(!contention.is_shared());
        let mut switches = SHARED - 1;
        let mut last = Duration::ZERO;
        for _ in 0..10 {
            switches += SHARED;
            contention.look(now, switches);
            let until = contention.until.expect("shared");
            assert!(until - now >= last, "believed for a shorter time");
            last = until - now;
            contention.look(now, switches);
            assert!(contention.is_shared(), "given up too early");
            now = until;
            contention.look(now, switches);
            assert!(!contention.is_shared(), "not tried again");
        }
        assert_eq!(last, BELIEVED.1);
    }
}
