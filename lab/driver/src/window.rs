//! The measuring window, and its histograms.

use hdrhistogram::Histogram;

use crate::error::{Error, ErrorKind};

/// The longest latency that is resolved: a minute.
pub(crate) const LONGEST_NS: u64 = 60_000_000_000;

/// A histogram for latencies in ns.
pub(crate) fn latency_histogram() -> Result<Histogram<u64>, Error> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3)
        .map_err(|e| Error::caused_by(ErrorKind::System, "cannot make a histogram", e))
}

/// The time in which a job measures, in ns of the run's clock, and its number of requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    pub(crate) from: u64,
    pub(crate) until: u64,
    pub(crate) count: u64,
}
