//! Limits of a volume: requests per second, bytes per second, and bursts above them.
//!
//! Source: the token bucket in its form without a timer that fills it, the virtual scheduling
//! algorithm of ATM (ITU-T I.371, Annex A, GCRA). A bucket is a single number, the *level*: the
//! time up to which all that was asked for is paid. A taker that asks for a piece moves the level
//! by the piece's cost, and learns when it is *due*: when the level is no further ahead of the
//! clock than the burst. So a piece is taken once, without a second request. Those who share a
//! bucket are served in the order in which they asked, and one number that several threads change
//! needs no lock.
//!
//! * [`Limits`]: the wanted limits.
//! * [`Bucket`]: one rate, and the operations on a [`Level`].
//! * [`Share`]: the ticks that one taker of a shared level has taken and not used.
//!
//! Takers that use their tokens at once use no more than `burst + rate * t` together within any
//! time t. The largest of the requests stands for the burst if it is larger: it passes when the
//! bucket is full, and those after it pay. As long as they ask, they get no less than `rate * t`.
//!
//! Time is counted in [`TICKS_PER_NS`] of a nanosecond from any beginning. So a request at ten
//! million a second and a byte at ten gigabytes a second are not rounded away; 64 bits are 36
//! years.

mod bucket;
mod share;

#[cfg(test)]
mod tests;

use std::num::NonZeroU64;
use std::time::Duration;

pub use bucket::{Asked, Bucket};
pub use share::{Level, Share, refund};

/// Ticks, the unit of time here, in a nanosecond.
pub const TICKS_PER_NS: u64 = 16;
/// The burst, unless configured otherwise: as many tokens pass at once after a pause as the rate
/// gives in this time.
pub const DEFAULT_BURST: Duration = Duration::from_millis(100);
/// The shortest burst: a clock that comes late by more than the burst costs rate.
pub const MIN_BURST: Duration = Duration::from_millis(1);
/// The longest burst.
pub const MAX_BURST: Duration = Duration::from_secs(3600);
/// The most requests per second that are a limit: more of them have no time between them.
pub const MAX_IOPS: u64 = 1_000_000_000;
/// The fewest bytes per second: a sector.
pub const MIN_BANDWIDTH: u64 = 512;
/// The most bytes per second.
pub const MAX_BANDWIDTH: u64 = 1 << 50;

/// The limits of a volume. A server hands them to its successor in this form.
#[derive(serde::Serialize, serde::Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Requests per second; none: as many as there are.
    pub iops: Option<NonZeroU64>,
    /// Bytes read and written per second; none: as many as there are.
    pub bandwidth: Option<NonZeroU64>,
    /// The tokens of both that may pass at once after a pause: as much as in this time.
    pub burst: Duration,
    /// The treatment of express requests.
    pub express: ExpressBudget,
}

/// The limits' treatment of express requests. Written in lower case.
#[derive(serde::Serialize, serde::Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub enum ExpressBudget {
    /// Like all others.
    #[default]
    Counted,
    /// They never wait, overtake waiting requests, and use no tokens.
    Exempt,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            iops: None,
            bandwidth: None,
            burst: DEFAULT_BURST,
            express: ExpressBudget::Counted,
        }
    }
}

/// Limits that cannot be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// Too many requests.
    #[error("{0} requests per second are more than the clock can distinguish: at most {MAX_IOPS}")]
    Iops(u64),
    /// Too few bytes, or too many.
    #[error("{0} bytes per second are not possible: from {MIN_BANDWIDTH} to {MAX_BANDWIDTH}")]
    Bandwidth(u64),
    /// Too short, or too long.
    #[error("a burst of {0:?} is not possible: from 1 ms to 1 h")]
    Burst(Duration),
}

impl Limits {
    /// Checks that the limits can be kept.
    ///
    /// # Errors
    /// [`LimitsError`].
    pub fn check(&self) -> Result<(), LimitsError> {
        let of = |rate: Option<NonZeroU64>| rate.map(NonZeroU64::get);
        match (of(self.iops), of(self.bandwidth)) {
            (Some(iops), _) if iops > MAX_IOPS => Err(LimitsError::Iops(iops)),
            (_, Some(bytes)) if !(MIN_BANDWIDTH..=MAX_BANDWIDTH).contains(&bytes) => {
                Err(LimitsError::Bandwidth(bytes))
            }
            _ if !(MIN_BURST..=MAX_BURST).contains(&self.burst) => {
                Err(LimitsError::Burst(self.burst))
            }
            _ => Ok(()),
        }
    }

    /// True if there is any limit.
    pub fn is_any(&self) -> bool {
        self.iops.is_some() || self.bandwidth.is_some()
    }
}

/// A time in ticks; a time that does not fit is the largest.
pub fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_nanos() * u128::from(TICKS_PER_NS)).unwrap_or(u64::MAX)
}
