//! Foreground first: the requests that a person waits for, and their order among the others.
//!
//! Source: Shin, Kim, "Improvement of Multi-Queue Block Layer for Fast User Response" (2019). There
//! the shell raises the process in the foreground. Each software queue is split in two with the
//! foreground's requests first, and a foreground request goes to the shortest hardware queue. Here
//! the guest's requests carry the I/O priority of their task (Linux writes it into each virtio-blk
//! request), and the back end does the two other parts.
//!
//! * [`Classes`]: an I/O priority to a class.
//! * [`Mode`]: which of the mechanisms are on.
//! * [`inherits`]: which requests of others the foreground waits for.
//! * [`Turns`]: which class's request is begun next, so that none starves.
//! * [`Window`]: how many requests are at the device while classes are mixed.

mod classes;
mod promotion;
mod turns;
#[allow(clippy::cast_possible_truncation, reason = "such a cast of a time or a rate saturates")]
pub mod window;

pub use classes::{Class, Classes, ClassesError, Ioprio};
pub use promotion::{INHERITS, inherits};
pub use turns::{Each, MOST_PASSED, PROMOTED_SHARE, SHARE, Turns};
pub use window::Window;

/// Which of the mechanisms a volume uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// None: requests are begun in the order of their arrival, without regard to priority. The
    /// paper's Vanilla and CPU.
    #[default]
    Off,
    /// Express requests are begun first, in front of a bounded window of requests in flight. The
    /// paper's CPU+IO.
    Order,
    /// Express requests go to the submission queue with the fewest requests in flight; the order of
    /// arrival and an unbounded window stay. The paper's CPU+SIZE.
    Shortest,
    /// Both. The paper's Proposed.
    On,
}

impl Mode {
    /// True if requests have classes at all.
    pub fn classifies(self) -> bool {
        self != Mode::Off
    }

    /// True if classes decide which request is begun next.
    pub fn orders(self) -> bool {
        matches!(self, Mode::Order | Mode::On)
    }

    /// True if express requests go to the shortest queue.
    pub fn hands_over(self) -> bool {
        matches!(self, Mode::Shortest | Mode::On)
    }
}

/// A volume's settings for classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Express {
    /// Which mechanisms.
    pub mode: Mode,
    /// Which priority is which class.
    pub classes: Classes,
}
