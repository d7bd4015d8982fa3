//! The open loop: requests arrive by a schedule that does not wait for the back end.
//!
//! A closed loop (depth 32: the next request when one comes back) asks less of a back end that
//! stalls. So a stall of a second is one request's bad latency and not that of all requests due
//! meanwhile: coordinated omission. Here every arrival has its time beforehand. Its **response**
//! latency counts from that time to its completion, with the wait for a free slot when all of the
//! queue's are taken. Its **service** latency counts from the submission. [`Books`] keeps the
//! account, without a clock or a device.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::random::Rng;
use crate::window::{Latencies, Window};

/// The spacing of arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    // Those of all jobs are interleaved.
    /// At equal intervals
    #[default]
    Constant,
    // The gaps are distributed exponentially.
    /// At random intervals, as requests of independent users
    Poisson,
}

/// An open loop's rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Arrivals per second, of all jobs together.
    pub per_second: f64,
    /// The spacing of the arrivals.
    pub arrivals: Arrivals,
}

/// The arrivals of one job, in ns of the run's clock.
#[derive(Debug, Clone)]
pub(crate) struct Schedule {
    rate: Rate,
    job: u64,
    jobs: u64,
    /// Arrivals so far.
    count: u64,
    /// The time of the next, in ns; fractions are kept so that the rate is exact in the long run.
    next: f64,
    rng: Rng,
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "53 bits of ns are 104 days; conversions saturate"
)]
impl Schedule {
    /// The arrivals of job `job` of `jobs`.
    pub(crate) fn new(rate: Rate, job: u16, jobs: u16, seed: u64) -> Self {
        let (job, jobs) = (u64::from(job), u64::from(jobs.max(1)));
        let rng = Rng::new(seed ^ job.wrapping_mul(0xd1b5_4a32_d192_ed03) ^ 0xa11a);
        let mut new = Self { rate, job, jobs, count: 0, next: 0.0, rng };
        new.next = new.first();
        new
    }

    fn first(&mut self) -> f64 {
        match self.rate.arrivals {
            Arrivals::Constant => self.job as f64 * 1e9 / self.rate.per_second,
            Arrivals::Poisson => self.gap(),
        }
    }

    /// An exponentially distributed gap of this job's share of the rate.
    fn gap(&mut self) -> f64 {
        // In (0, 1]: 53 random bits, and never 0.
        let uniform = ((self.rng.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        -uniform.ln() * 1e9 * self.jobs as f64 / self.rate.per_second
    }

    /// The next arrival's time.
    pub(crate) fn next(&self) -> u64 {
        self.next as u64
    }

    /// Moves on to the next arrival.
    pub(crate) fn advance(&mut self) {
        self.count += 1;
        self.next = match self.rate.arrivals {
            // From the number, not from the last one: errors do not add up.
            Arrivals::Constant => {
                (self.count as f64 * self.jobs as f64 + self.job as f64) * 1e9
                    / self.rate.per_second
            }
            Arrivals::Poisson => self.next + self.gap(),
        };
    }
}

/// The measured values of an open loop, of the arrivals within the window.
#[derive(Debug, Default)]
pub(crate) struct OpenStats {
    /// From arrival to completion; for those that were never submitted, from arrival to the
    /// window's end.
    pub(crate) response: Latencies,
    /// From when it could have been submitted to when it was: what the driver itself added.
    pub(crate) late: Latencies,
    /// Arrivals.
    pub(crate) arrived: u64,
    /// Arrivals that found no free slot.
    pub(crate) queued: u64,
    /// Arrivals that were still waiting for a slot at the end.
    pub(crate) unserved: u64,
}

impl OpenStats {
    pub(crate) fn add(&mut self, other: &Self) {
        self.response += &other.response;
        self.late += &other.late;
        self.arrived += other.arrived;
        self.queued += other.queued;
        self.unserved += other.unserved;
    }
}

/// The account of one job's arrivals.
#[derive(Debug)]
pub(crate) struct Books {
    schedule: Schedule,
    window: Window,
    /// Slots that are free.
    idle: u16,
    /// Since when one has been.
    idle_since: u64,
    pub(crate) stats: OpenStats,
}

impl Books {
    pub(crate) fn new(schedule: Schedule, window: Window, depth: u16) -> Self {
        Self { schedule, window, idle: depth, idle_since: 0, stats: OpenStats::default() }
    }

    fn counts(&self, arrival: u64) -> bool {
        arrival >= self.window.from && arrival < self.window.until
    }

    /// The arrival that is to be submitted now, in a free slot, which it takes; `None` if none is
    /// due or no slot is free.
    #[inline]
    pub(crate) fn take(&mut self, now: u64) -> Option<u64> {
        let arrival = self.schedule.next();
        if self.idle == 0 || arrival > now || arrival >= self.window.until {
            return None;
        }
        self.schedule.advance();
        self.idle -= 1;
        if self.counts(arrival) {
            self.stats.arrived += 1;
            self.stats.queued += u64::from(self.idle_since > arrival);
            self.stats.late.saturating_record(now - arrival.max(self.idle_since).min(now));
        }
        Some(arrival)
    }

    /// The time of the next submission, if no request completes before; `None` if a slot has to
    /// become free first, or no more requests arrive.
    pub(crate) fn next(&self) -> Option<u64> {
        let next = self.schedule.next();
        (self.idle > 0 && next < self.window.until).then_some(next)
    }

    /// A request has completed and its slot is free; returns true if its latency counts.
    #[inline]
    pub(crate) fn complete(&mut self, arrival: u64, now: u64) -> bool {
        if self.idle == 0 {
            self.idle_since = now;
        }
        self.idle += 1;
        let counts = self.counts(arrival);
        if counts {
            self.stats.response.saturating_record(now.saturating_sub(arrival));
        }
        counts
    }

    /// Ends the window, now or as planned, whichever is first. Requests that wait for a slot are
    /// given up, and count with the time that they have waited.
    pub(crate) fn end(&mut self, now: u64) {
        self.window.until = self.window.until.min(now);
        while self.schedule.next() < self.window.until {
            let arrival = self.schedule.next();
            self.schedule.advance();
            if self.counts(arrival) {
                self.stats.arrived += 1;
                self.stats.queued += 1;
                self.stats.unserved += 1;
                self.stats.response.saturating_record(self.window.until - arrival);
            }
        }
    }
}

#[cfg(test)]
#[path = "rate_tests.rs"]
mod tests;
