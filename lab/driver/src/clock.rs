//! The clock of a run: nanoseconds since its start.

use std::time::Instant;

#[derive(Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Nanoseconds since the start (for 584 years).
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "584 years")]
    pub(crate) fn now(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64
    }
}
