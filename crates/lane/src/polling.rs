//! Adaptive busy polling: how long a thread with nothing to do looks for work before it sleeps.
//!
//! Waking a sleeping thread takes about 10 us, so a thread that expects work sooner does better to look for it. How
//! soon work comes is learnt from the sleeps themselves: a sleep that was shorter than the limit would have been better
//! polled, so the window grows; one that was longer halves it. An idle guest's window is zero: it costs no CPU.
//!
//! Two things can be waited for, each with a window of its own: the guest's answer to an answer, which takes it a few
//! microseconds, and the storage, which may take a hundred.
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

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The guest was shown answers in the last round.
    Guest,
    /// It was not: the storage works.
    Storage,
}

#[derive(Debug)]
pub(crate) struct Polling {
    max: Duration,
    /// By turn.
    windows: [Duration; 2],
    rest: Duration,
    resting_until: Option<Instant>,
}

impl Polling {
    /// Polls for `max` at most; zero: never.
    pub(crate) fn new(max: Duration) -> Polling {
        Polling { max, windows: [Duration::ZERO; 2], rest: REST.0, resting_until: None }
    }

    /// Looks for work with `find` for as long as it is likely to come; says whether it came.
    pub(crate) fn poll(&mut self, turn: Turn, mut find: impl FnMut() -> bool) -> bool {
        let window = self.windows[turn as usize];
        if window.is_zero() {
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
            if now - begin >= window {
                return false;
            }
            last = now;
        }
    }

    /// Work ended a sleep of this length.
    pub(crate) fn slept(&mut self, turn: Turn, length: Duration) {
        let window = &mut self.windows[turn as usize];
        *window = if length < self.max {
            (*window * 2).clamp(FIRST.min(self.max), self.max)
        } else if *window > FIRST {
            *window / 2
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
        assert!(polling.windows[0].is_zero());
        for _ in 0..10 {
            polling.slept(Turn::Guest, Duration::from_micros(20));
        }
        assert_eq!(polling.windows, [Duration::from_micros(50), Duration::ZERO], "each turn has its own");
        for _ in 0..10 {
            polling.slept(Turn::Guest, Duration::from_millis(2));
        }
        assert!(polling.windows[0].is_zero());
    }

    #[test]
    fn polling_that_is_off_stays_off() {
        let mut polling = Polling::new(Duration::ZERO);
        for _ in 0..10 {
            polling.slept(Turn::Guest, Duration::from_nanos(1));
        }
        assert!(!polling.poll(Turn::Guest, || panic!("looked")));
    }

    #[test]
    fn a_thread_that_loses_its_cpu_while_polling_rests() {
        let mut polling = Polling::new(Duration::from_millis(10));
        polling.windows[0] = Duration::from_millis(10);
        // Long enough that the test itself may lose its CPU.
        polling.rest = REST.1;
        let mut looks = 0;
        polling.poll(Turn::Guest, || {
            looks += 1;
            std::thread::sleep(Duration::from_millis(1));
            false
        });
        assert!(looks <= LOOKS + 1, "went on for {looks} looks");
        assert!(!polling.poll(Turn::Guest, || panic!("polled while resting")));
    }
}
