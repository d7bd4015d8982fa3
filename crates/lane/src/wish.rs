//! A wish that can be called off: of the one who calls it off and the one who fulfils it, exactly one succeeds.

use std::sync::atomic::{AtomicU8, Ordering};

const STANDS: u8 = 0;
const GRANTED: u8 = 1;
const OFF: u8 = 2;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Wish(AtomicU8);

impl Wish {
    fn turn(&self, to: u8) -> bool {
        // What is done about it travels by messages, which order it.
        self.0.compare_exchange(STANDS, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether it has neither been fulfilled nor been called off.
    pub(crate) fn stands(&self) -> bool {
        self.0.load(Ordering::Acquire) == STANDS
    }

    /// It is being fulfilled: whether it still stood.
    pub(crate) fn grant(&self) -> bool {
        self.turn(GRANTED)
    }

    /// Nobody wants it any more: whether it still stood.
    pub(crate) fn call_off(&self) -> bool {
        self.turn(OFF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_that_end_it_one_succeeds() {
        let (one, other) = (Wish::default(), Wish::default());
        assert!(one.stands() && one.grant() && !one.call_off() && !one.grant() && !one.stands());
        assert!(other.call_off() && !other.grant() && !other.stands());
    }
}
