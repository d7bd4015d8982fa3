//! The time for which an idle thread looks for work before it sleeps.
//!
//! A thread waits for one of two events, and knowledge of one does not apply to the other. The
//! guest's answer to an answer takes it a few microseconds; the storage may take a hundred.
//!
//! A thread looks for as long as is likely to help. A sleep that was shorter than the limit would
//! have been better polled, so the window grows; one that was longer halves it. An idle guest's
//! window is zero: it costs no CPU time. That is for the lowest latency, at any cost; by default
//! polling must also pay for itself ([`crate::payoff`]).
//!
//! Polling only pays on a CPU that no other task wants. A thread that misses time between two looks
//! at the clock was not running: another task was. Then it stops polling for a while, longer each
//! time.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use vlane_io::Instant;

use crate::payoff::{Payoff, Seen, Turn};

/// First window after none.
const FIRST: Duration = Duration::from_micros(8);
/// Time that is missing between two looks at the clock means that another thread ran.
const PREEMPTED: Duration = Duration::from_micros(40);
/// No polling after the first such find, and at most.
const REST: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(200));
/// Looks for work between two looks at the clock.
const LOOKS: u32 = 8;

/// The resource to save in an idle thread: time, or CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PollMode {
    /// It looks for work as long as that may make the next answer quicker.
    Latency,
    /// It looks for work as long as that costs no more CPU time than to sleep.
    #[default]
    Balanced,
    /// It sleeps.
    Off,
}

impl PollMode {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            PollMode::Latency => "latency",
            PollMode::Balanced => "balanced",
            PollMode::Off => "off",
        }
    }

    /// The mode when a thread looks for work for `max` at most.
    pub fn within(self, max: Duration) -> PollMode {
        if max.is_zero() { PollMode::Off } else { self }
    }
}

#[derive(Debug)]
pub(crate) struct Polling {
    mode: PollMode,
    max: Duration,
    /// By turn.
    windows: [Duration; 2],
    payoff: Payoff,
    /// The last look at the clock, and what it counts from.
    now: Instant,
    origin: Instant,
    rest: Duration,
    resting_until: Option<Instant>,
}

impl Polling {
    /// Polls for `max` at most; zero: never.
    pub(crate) fn new(mode: PollMode, max: Duration) -> Polling {
        let origin = Instant::now();
        Polling {
            mode: mode.within(max),
            max,
            windows: [Duration::ZERO; 2],
            payoff: Payoff::new(),
            now: origin,
            origin,
            rest: REST.0,
            resting_until: None,
        }
    }

    fn window(&self, turn: Turn) -> Duration {
        let polls = match self.mode {
            PollMode::Latency => true,
            PollMode::Balanced => self.payoff.polls(turn),
            PollMode::Off => false,
        };
        if polls { self.windows[turn as usize] } else { Duration::ZERO }
    }

    /// Learns whether it pays; `requests` says how many the thread has served. Reads no clock, and
    /// asks for neither, unless it is time to.
    #[inline]
    pub(crate) fn learn(&mut self, requests: impl FnOnce() -> u64) {
        let now = nanoseconds(self.now.saturating_duration_since(self.origin));
        if self.mode == PollMode::Balanced && self.payoff.is_due(now) {
            let seen = Seen { now, cpu: nanoseconds(cpu_time()), requests: requests() };
            if let Some(turn) = self.payoff.look(seen) {
                // Its earlier knowledge has little value.
                self.windows[turn as usize] = self.max;
                if self.payoff.is_trial() {
                    (self.rest, self.resting_until) = (REST.0, None);
                }
            }
        }
    }

    /// Looks for work with `find` for as long as it is likely to come; says whether it came, or the
    /// `deadline`.
    pub(crate) fn poll(
        &mut self,
        turn: Turn,
        deadline: Option<Instant>,
        mut find: impl FnMut() -> bool,
    ) -> bool {
        let window = self.window(turn);
        if window.is_zero() {
            return false;
        }
        let begin = Instant::now();
        self.now = begin;
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
            if deadline.is_some_and(|deadline| now >= deadline) {
                return true;
            }
            if now - begin >= window {
                return false;
            }
            last = now;
        }
    }

    /// The thread slept from `begin` on, in that turn.
    pub(crate) fn slept_since(&mut self, turn: Turn, begin: Instant) {
        self.now = Instant::now();
        self.slept(turn, self.now - begin);
    }

    fn slept(&mut self, turn: Turn, length: Duration) {
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

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The CPU time of this thread.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_sleeps_open_the_polling_window() {
        let mut polling = Polling::new(PollMode::Latency, Duration::from_micros(50));
        assert!(polling.windows[0].is_zero());
        for _ in 0..10 {
            polling.slept(Turn::Guest, Duration::from_micros(20));
        }
        assert_eq!(
            polling.windows,
            [Duration::from_micros(50), Duration::ZERO],
            "each turn has its own"
        );
        for _ in 0..10 {
            polling.slept(Turn::Guest, Duration::from_millis(2));
        }
        assert!(polling.windows[0].is_zero());
    }

    /// Other tasks may still want the thread's CPU.
    #[test]
    fn sleep_trial_keeps_knowledge_of_contention() {
        let mut polling = Polling::new(PollMode::Balanced, Duration::from_micros(50));
        let resting = (REST.1, Some(polling.origin + Duration::from_secs(3600)));
        (polling.rest, polling.resting_until) = resting;
        let (mut slept, mut requests) = (false, 0);
        for step in 0..100u32 {
            polling.now = polling.origin + Duration::from_millis(1) * step;
            // Asleep it serves a hundredth, so each request costs a hundred times as much.
            requests += if polling.payoff.polls(Turn::Guest) { 1000 } else { 10 };
            polling.learn(|| requests);
            let polls = polling.payoff.polls(Turn::Guest);
            if slept && polls {
                assert_eq!((polling.rest, polling.resting_until), resting);
                return;
            }
            slept |= !polls;
        }
        panic!("sleeping was not tried, or found better");
    }

    #[test]
    fn disabled_polling_stays_off() {
        let off = [
            (PollMode::Latency, Duration::ZERO),
            (PollMode::Balanced, Duration::ZERO),
            (PollMode::Off, Duration::from_millis(1)),
        ];
        for (mode, max) in off {
            let mut polling = Polling::new(mode, max);
            for _ in 0..10 {
                polling.slept(Turn::Guest, Duration::from_nanos(1));
            }
            assert!(!polling.poll(Turn::Guest, None, || panic!("looked")), "{mode:?}");
        }
    }

    #[test]
    fn deadline_ends_the_polling() {
        let mut polling = Polling::new(PollMode::Latency, Duration::from_secs(3600));
        polling.windows[0] = Duration::from_secs(3600);
        for _ in 0..1000 {
            let mut looks = 0u32;
            let is_over = polling.poll(Turn::Guest, Some(Instant::now()), || {
                looks += 1;
                false
            });
            // One look more, if the test lost its CPU between two looks at the clock.
            let was_preempted = polling.resting_until.take().is_some();
            assert!(looks <= LOOKS + u32::from(was_preempted), "{looks} looks");
            if !was_preempted {
                assert!(is_over, "the deadline was overlooked");
                return;
            }
        }
        panic!("the test loses its CPU each time");
    }

    #[test]
    fn preempted_poller_rests() {
        let mut polling = Polling::new(PollMode::Latency, Duration::from_millis(10));
        polling.windows[0] = Duration::from_millis(10);
        // Long enough that the test itself may lose its CPU.
        polling.rest = Duration::from_secs(60);
        let mut looks = 0;
        polling.poll(Turn::Guest, None, || {
            looks += 1;
            std::thread::sleep(Duration::from_millis(1));
            false
        });
        assert!(looks <= LOOKS + 1, "went on for {looks} looks");
        assert!(!polling.poll(Turn::Guest, None, || panic!("polled while resting")));
    }
}
