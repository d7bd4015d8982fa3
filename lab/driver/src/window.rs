//! The measuring window, and the values that are measured in it.

use std::ops::{AddAssign, Deref, DerefMut};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::ring::{Completion, Request, RequestKind};

/// The longest latency that is resolved: a minute.
pub(crate) const LONGEST_NS: u64 = 60_000_000_000;

/// A histogram of latencies in ns.
#[derive(Debug, Clone)]
pub(crate) struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Self {
        match Histogram::new_with_bounds(1, LONGEST_NS, 3) {
            Ok(empty) => Self(empty),
            Err(_) => unreachable!("a histogram can have these bounds"),
        }
    }
}

impl Deref for Latencies {
    type Target = Histogram<u64>;

    fn deref(&self) -> &Histogram<u64> {
        &self.0
    }
}

impl DerefMut for Latencies {
    fn deref_mut(&mut self) -> &mut Histogram<u64> {
        &mut self.0
    }
}

impl AddAssign<&Self> for Latencies {
    fn add_assign(&mut self, other: &Self) {
        // They have the same bounds, so they can be added.
        let _ = self.0.add(&other.0);
    }
}

/// The time in which a job measures, in ns of the run's clock, and its number of requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) from: u64,
    pub(crate) until: u64,
    pub(crate) count: u64,
}

/// Requests that failed, by status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Errors {
    /// VIRTIO_BLK_S_IOERR.
    pub io: u64,
    /// VIRTIO_BLK_S_UNSUPP.
    pub unsupported: u64,
    /// Completed without a status, or with an unknown one.
    pub no_status: u64,
    /// Reads whose length in the used ring is not what was asked for.
    pub length: u64,
}

impl Errors {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.io + self.unsupported + self.no_status + self.length
    }

    pub(crate) fn count(&mut self, status: u8) {
        match status {
            0 => {}
            1 => self.io += 1,
            2 => self.unsupported += 1,
            _ => self.no_status += 1,
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.io += other.io;
        self.unsupported += other.unsupported;
        self.no_status += other.no_status;
        self.length += other.length;
    }
}

/// The measured values of requests.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) reads: Latencies,
    pub(crate) writes: Latencies,
    pub(crate) flushes: Latencies,
    /// Discards and write-zeroes.
    pub(crate) discards: Latencies,
    pub(crate) bytes: u64,
    pub(crate) errors: Errors,
    /// Requests completed within the window. Those whose latency counts are others in an open loop:
    /// those that arrived within it.
    pub(crate) completed: u64,
    /// The last completion within the window, in ns of the run's clock.
    pub(crate) last: u64,
    /// A latency, and the number of requests in a row that had it: those of a batch often do. They
    /// are not in the histograms yet.
    same: Option<(RequestKind, u64, u64)>,
}

impl Counts {
    /// The latency of a request; [`Counts::settle`] follows after the last one.
    #[inline]
    pub(crate) fn record(&mut self, kind: RequestKind, ns: u64) {
        match &mut self.same {
            Some((of, same, number)) if *same == ns && *of == kind => *number += 1,
            _ => {
                self.settle();
                self.same = Some((kind, ns, 1));
            }
        }
    }

    /// Puts all latencies into their histograms.
    pub(crate) fn settle(&mut self) {
        let Some((kind, ns, number)) = self.same.take() else { return };
        let latencies = match kind {
            RequestKind::Read => &mut self.reads,
            RequestKind::Flush => &mut self.flushes,
            RequestKind::Discard | RequestKind::WriteZeroes => &mut self.discards,
            _ => &mut self.writes,
        };
        latencies.saturating_record_n(ns, number);
    }

    /// Takes account of a completion within the window.
    #[inline]
    pub(crate) fn count(&mut self, request: &Request, completion: &Completion, now: u64) {
        self.completed += 1;
        self.last = now;
        if completion.status == 0 {
            self.bytes += u64::from(request.len);
            if request.kind == RequestKind::Read && completion.len != request.len + 1 {
                self.errors.length += 1;
            }
        } else {
            self.errors.count(completion.status);
        }
    }

    /// All latencies.
    pub(crate) fn all(&self) -> Latencies {
        let mut all = self.reads.clone();
        [&self.writes, &self.flushes, &self.discards].into_iter().for_each(|other| all += other);
        all
    }
}

impl AddAssign<&Self> for Counts {
    fn add_assign(&mut self, other: &Self) {
        self.reads += &other.reads;
        self.writes += &other.writes;
        self.flushes += &other.flushes;
        self.discards += &other.discards;
        self.bytes += other.bytes;
        self.errors.add(&other.errors);
        self.completed += other.completed;
        self.last = self.last.max(other.last);
    }
}
