//! A cancellable request: either cancel or fulfil wins, never both.

use std::sync::atomic::{AtomicU8, Ordering};

const STANDS: u8 = 0;
const GRANTED: u8 = 1;
const OFF: u8 = 2;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Wish(AtomicU8);

impl Wish {
    fn turn(&self, to: u8) -> bool {
        // Messages carry its effects, and order them.
        self.0.compare_exchange(STANDS, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Returns true if it has neither been fulfilled nor been cancelled.
    pub(crate) fn stands(&self) -> bool {
        self.0.load(Ordering::Acquire) == STANDS
    }

    /// It is being fulfilled: whether it still stood.
    pub(crate) fn grant(&self) -> bool {
        self.turn(GRANTED)
    }

    /// Cancels it; returns true if it still stood.
    pub(crate) fn call_off(&self) -> bool {
        self.turn(OFF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_ending_succeeds() {
        let (one, other) = (Wish::default(), Wish::default());
        assert!(one.stands() && one.grant() && !one.call_off() && !one.grant() && !one.stands());
        assert!(other.call_off() && !other.grant() && !other.stands());
    }
}
