//! The results of a run, for people and programs.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::device::{BlkConfig, Negotiated};
use crate::lanes::Effort;
use crate::rate::{Arrivals, OpenStats, Rate};
use crate::session::Session;
use crate::window::{Counts, Errors, LONGEST_NS};
use crate::workload::Wait;

/// The results of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The socket driven.
    pub socket: String,
    /// The device's description of itself.
    pub device: BlkConfig,
    /// The result of the negotiation with the back end.
    pub negotiated: Negotiated,
    /// The pattern, as `--rw` takes it.
    pub pattern: String,
    /// Bytes per request.
    pub block: u32,
    /// Requests out at once, per job.
    pub depth: u16,
    /// Jobs: threads, each with its queue.
    pub jobs: u16,
    /// The jobs' way to wait for completions.
    pub wait: Wait,
    /// Most requests made visible to the back end at once; 0 is all that came back together.
    pub batch: u16,
    /// Time measured, in seconds (the ramp is not in it).
    pub seconds: f64,
    /// Requests completed in it, flushes included, errors too.
    pub ios: u64,
    /// Requests per second.
    pub iops: f64,
    /// Data read and written per second, in MB (10^6 bytes).
    pub mb_per_second: f64,
    /// Latency of all requests, from their submission.
    pub latency: Latency,
    /// The same, all of it.
    pub histogram: Buckets,
    /// The additional results of a run at a given rate.
    pub open: Option<OpenReport>,
    /// Reads alone.
    pub reads: Option<ByKind>,
    /// Writes alone (discards and write-zeroes are among them).
    pub writes: Option<ByKind>,
    /// Flushes alone.
    pub flushes: Option<ByKind>,
    /// Requests that failed.
    pub errors: Errors,
    /// The use of resources by the back end's process; absent if it could not be looked at.
    pub backend: Option<BackendUse>,
    /// CPU time of the driver's job threads per request, in us.
    pub driver_cpu_us_per_io: f64,
    /// Kicks sent per request.
    pub kicks_per_io: f64,
    /// Sleeps for an interrupt per request.
    pub sleeps_per_io: f64,
}

/// Latencies in us: from the moment a request's batch was built to the moment its batch of
/// completions was seen.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Latency {
    /// Smallest.
    pub min: f64,
    /// Arithmetic mean.
    pub mean: f64,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 95th percentile.
    pub p95: f64,
    /// 99th percentile.
    pub p99: f64,
    /// 99.9th percentile.
    pub p99_9: f64,
    /// 99.99th percentile.
    pub p99_99: f64,
    /// Largest.
    pub max: f64,
}

/// A distribution of latencies: how many fell into each bucket. Buckets are less than 1 % wide and
/// the same in every run. So distributions can be added, and a cumulative one is a running sum.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Buckets {
    /// The largest latency of each bucket that is not empty, in ns, rising.
    pub upto_ns: Vec<u64>,
    /// Number of latencies in each bucket.
    pub count: Vec<u64>,
}

impl Buckets {
    /// Significant digits.
    const DIGITS: u8 = 2;

    pub(crate) fn of(ns: &Histogram<u64>) -> Self {
        Self::coarse(
            ns.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())),
        )
    }

    /// Several distributions as one.
    pub fn merged<'a>(all: impl IntoIterator<Item = &'a Self>) -> Self {
        let steps = |one: &'a Self| one.upto_ns.iter().copied().zip(one.count.iter().copied());
        Self::coarse(all.into_iter().flat_map(steps))
    }

    /// The distribution of latencies with their counts.
    fn coarse(latencies: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut new = Self::default();
        let Ok(mut sum) = Histogram::<u64>::new_with_bounds(1, LONGEST_NS, Self::DIGITS) else {
            return new;
        };
        for (ns, count) in latencies {
            let _ = sum.record_n(ns.clamp(1, LONGEST_NS), count);
        }
        for step in sum.iter_recorded() {
            new.upto_ns.push(step.value_iterated_to());
            new.count.push(step.count_at_value());
        }
        new
    }

    /// The number of latencies.
    pub fn total(&self) -> u64 {
        self.count.iter().sum()
    }
}

/// The additional results of a run at a given rate: requests arrive even if the back end is not
/// ready for them.
#[derive(Debug, Clone, Serialize)]
pub struct OpenReport {
    /// The rate asked for, in requests per second.
    pub rate: f64,
    /// The spacing of arrivals.
    pub arrivals: Arrivals,
    /// Arrivals within the measured time.
    pub arrived: u64,
    /// True if the back end kept up: 99 % of the arrivals within the time were completed in it. The
    /// requests that may be out at its end do not count.
    pub kept_up: bool,
    /// Arrivals that found every slot of their queue taken.
    pub queued: u64,
    /// Arrivals that were still waiting for a slot at the end.
    pub unserved: u64,
    /// The time from when a request should have been submitted to the sight of its completion.
    /// Requests never submitted count with the time that they had waited at the end.
    pub response: Latency,
    /// The same, all of it.
    pub response_histogram: Buckets,
    /// The driver's own delay: from the moment a request could have been submitted to when it was.
    pub late: Latency,
}

impl OpenReport {
    /// `slots` is how many requests can be out at once, of all jobs.
    pub(crate) fn of(stats: &OpenStats, rate: Rate, completed: u64, slots: u64) -> Self {
        let kept_up = (completed + slots).saturating_mul(100) >= stats.arrived.saturating_mul(99);
        Self {
            rate: rate.per_second,
            arrivals: rate.arrivals,
            arrived: stats.arrived,
            kept_up,
            queued: stats.queued,
            unserved: stats.unserved,
            response: Latency::of(&stats.response),
            response_histogram: Buckets::of(&stats.response),
            late: Latency::of(&stats.late),
        }
    }
}

/// The share of one kind of request.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ByKind {
    /// Requests completed.
    pub ios: u64,
    /// Requests per second.
    pub iops: f64,
    /// The latency of these requests.
    pub latency: Latency,
}

/// The resources that the back end's process used during the measurement.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct BackendUse {
    /// The process behind the socket.
    pub pid: i32,
    /// CPU time in seconds, the kernel's workers for it included.
    pub cpu_seconds: f64,
    /// CPUs kept busy: CPU time over wall time.
    pub cpus: f64,
    /// CPU time per request in us; 0 if there was no request.
    pub cpu_us_per_io: f64,
    /// Context switches, voluntary and involuntary.
    pub switches: u64,
    /// Context switches per request; 0 if there was no request.
    pub switches_per_io: f64,
    /// Threads at the end.
    pub threads: usize,
}

impl Latency {
    /// From a histogram of nanoseconds; all zero if it is empty.
    pub(crate) fn of(ns: &Histogram<u64>) -> Self {
        let us = |ns: u64| ns as f64 / 1000.0;
        if ns.is_empty() {
            return Self::default();
        }
        Self {
            min: us(ns.min()),
            mean: ns.mean() / 1000.0,
            p50: us(ns.value_at_quantile(0.5)),
            p90: us(ns.value_at_quantile(0.9)),
            p95: us(ns.value_at_quantile(0.95)),
            p99: us(ns.value_at_quantile(0.99)),
            p99_9: us(ns.value_at_quantile(0.999)),
            p99_99: us(ns.value_at_quantile(0.9999)),
            max: us(ns.max()),
        }
    }
}

impl Report {
    /// The figures of what was counted in so many seconds, without a workload.
    pub(crate) fn of(
        session: &Session,
        counts: &Counts,
        seconds: f64,
        effort: &Effort,
        backend: Option<BackendUse>,
    ) -> Self {
        let ios = counts.completed;
        let total = counts.all();
        let per_io = |value: f64| if ios == 0 { 0.0 } else { value / ios as f64 };
        Self {
            socket: session.socket().display().to_string(),
            device: *session.config(),
            negotiated: *session.negotiated(),
            pattern: String::new(),
            block: 0,
            depth: session.depth(),
            jobs: 1,
            wait: Wait::default(),
            batch: 0,
            seconds,
            ios,
            iops: ios as f64 / seconds,
            mb_per_second: counts.bytes as f64 / seconds / 1e6,
            latency: Latency::of(&total),
            histogram: Buckets::of(&total),
            open: None,
            reads: ByKind::of(&counts.reads, seconds),
            writes: ByKind::of(&counts.writes, seconds),
            flushes: ByKind::of(&counts.flushes, seconds),
            errors: counts.errors,
            backend,
            driver_cpu_us_per_io: per_io(effort.cpu.as_secs_f64() * 1e6),
            kicks_per_io: per_io(effort.kicks as f64),
            sleeps_per_io: per_io(effort.sleeps as f64),
        }
    }
}

impl ByKind {
    /// `None` if there was no such request.
    pub(crate) fn of(ns: &Histogram<u64>, seconds: f64) -> Option<Self> {
        let ios = ns.len();
        (ios > 0).then(|| Self { ios, iops: ios as f64 / seconds, latency: Latency::of(ns) })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn added_distributions_equal_whole() {
        let mut halves = [1_u64, 2].map(|_| Histogram::new_with_bounds(1, LONGEST_NS, 3).unwrap());
        let mut whole = halves[0].clone();
        for n in 1..=20_000_u64 {
            let ns = n * n;
            halves[usize::from(n % 3 == 0)].record(ns).unwrap();
            whole.record(ns).unwrap();
        }
        let parts = halves.each_ref().map(Buckets::of);
        let merged = Buckets::merged(&parts);
        assert_eq!(merged, Buckets::of(&whole));
        assert_eq!(merged.total(), 20_000);
        assert_eq!(Buckets::merged([&merged]), merged);
    }

    #[test]
    fn latencies_are_microseconds() {
        let mut ns = Histogram::new_with_bounds(1, 1_000_000_000, 3).unwrap();
        assert_eq!(Latency::of(&ns).max, 0.0);
        for n in 1..=1000 {
            ns.record(n * 1000).unwrap();
        }
        let latency = Latency::of(&ns);
        assert!(
            (latency.p50 - 500.0).abs() < 1.0 && (latency.p99 - 990.0).abs() < 1.5,
            "{latency:?}"
        );
        assert!((latency.mean - 500.5).abs() < 1.0 && latency.min <= 1.0 && latency.max >= 999.0);
        assert!(ByKind::of(&ns, 2.0).unwrap().iops == 500.0);
    }
}
