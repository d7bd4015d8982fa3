//! A cancellable request: either cancel or fulfil wins, never both.

use std::sync::atomic::{AtomicU8, Ordering};

const OPEN: u8 = 0;
const FULFILLED: u8 = 1;
const CANCELLED: u8 = 2;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct CancellableRequest(AtomicU8);

impl CancellableRequest {
    fn turn(&self, to: u8) -> bool {
        // Messages carry its effects, and order them.
        self.0.compare_exchange(OPEN, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Returns true if it has neither been fulfilled nor been cancelled.
    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) == OPEN
    }

    /// It is being fulfilled: whether it still stood.
    pub(crate) fn fulfil(&self) -> bool {
        self.turn(FULFILLED)
    }

    /// Cancels it; returns true if it still stood.
    pub(crate) fn cancel(&self) -> bool {
        self.turn(CANCELLED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_ending_succeeds() {
        let (one, other) = (CancellableRequest::default(), CancellableRequest::default());
        assert!(one.is_open() && one.fulfil() && !one.cancel() && !one.fulfil() && !one.is_open());
        assert!(other.cancel() && !other.fulfil() && !other.is_open());
    }
}
