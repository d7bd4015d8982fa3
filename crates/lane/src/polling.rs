//! Adaptive busy polling: how long a thread with nothing to do looks for work before it sleeps.
//!
//! Waking a sleeping thread takes about 10 us, so a thread that expects work sooner does better to look for it. How
//! soon work comes is learnt from the sleeps themselves: a sleep that was shorter than the limit would have been better
//! polled, so the window grows; one that was longer halves it. An idle guest's window is zero: it costs no CPU.
//!
//! Polling only pays on a CPU that nobody else wants. A thread that finds, between two looks at the clock, that time
//! is missing was not running: somebody else was. Then it stops polling for a while, longer each time.

use std::time::{Duration, Instant};

/// First window after none.
const FIRST: Duration = Duration::from_micros(8);
/// Time that is missing between two looks at the clock means that another thread ran.
const PREEMPTED: Duration = Duration::from_micros(40);
/// No polling after the first such find, and at most.
const REST: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(200));
/// Looks for work between two looks at the clock.
const LOOKS: u32 = 8;

#[derive(Debug)]
pub(crate) struct Polling {
    max: Duration,
    window: Duration,
    rest: Duration,
    resting_until: Option<Instant>,
}

impl Polling {
    /// Polls for `max` at most; zero: never.
    pub(crate) fn new(max: Duration) -> Polling {
        Polling { max, window: Duration::ZERO, rest: REST.0, resting_until: None }
    }

    /// Looks for work with `find` for as long as it is likely to come; says whether it came.
    pub(crate) fn poll(&mut self, mut find: impl FnMut() -> bool) -> bool {
        if self.window.is_zero() {
            return false;
        }
        let begin = Instant::now();
        if self.resting_until.is_some_and(|until| begin < until) {
            return false;
        }
        let mut last = begin;
        loop {
            for _ in 0..LOOKS {
                if find() {
                    self.rest = self.rest.mul_f32(0.98).max(REST.0);
                    return true;
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now - last > PREEMPTED {
                self.resting_until = Some(now + self.rest);
                self.rest = (self.rest * 2).min(REST.1);
                return find();
            }
            if now - begin >= self.window {
                return false;
            }
            last = now;
        }
    }

    /// Work ended a sleep of this length.
    pub(crate) fn slept(&mut self, length: Duration) {
        self.window = if length < self.max {
            (self.window * 2).clamp(FIRST.min(self.max), self.max)
        } else if self.window > FIRST {
            self.window / 2
        } else {
            Duration::ZERO
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_sleeps_open_the_window_and_long_ones_close_it() {
        let mut polling = Polling::new(Duration::from_micros(50));
        assert!(polling.window.is_zero());
        for _ in 0..10 {
            polling.slept(Duration::from_micros(20));
        }
        assert_eq!(polling.window, Duration::from_micros(50));
        for _ in 0..10 {
            polling.slept(Duration::from_millis(2));
        }
        assert!(polling.window.is_zero());
    }

    #[test]
    fn polling_that_is_off_stays_off() {
        let mut polling = Polling::new(Duration::ZERO);
        for _ in 0..10 {
            polling.slept(Duration::from_nanos(1));
        }
        assert!(!polling.poll(|| panic!("looked")));
    }

    #[test]
    fn a_thread_that_loses_its_cpu_while_polling_rests() {
        let mut polling = Polling::new(Duration::from_millis(10));
        polling.window = Duration::from_millis(10);
        // Long enough that the test itself may lose its CPU.
        polling.rest = REST.1;
        let mut looks = 0;
        polling.poll(|| {
            looks += 1;
            std::thread::sleep(Duration::from_millis(1));
            false
        });
        assert!(looks <= LOOKS + 1, "went on for {looks} looks");
        assert!(!polling.poll(|| panic!("polled while resting")));
    }
}
