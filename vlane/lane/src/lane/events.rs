//! A lane's own reports to its session.

use std::io;
use std::os::fd::BorrowedFd;

use vlane_ring::Broken;

use crate::mail::{Listener, Teller, news};
use crate::sync::Wake;

/// An event that the session must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneEvent {
    /// The driver broke the rules; the lane takes no more requests.
    Broken {
        /// The queue's index.
        index: u16,
        /// The broken rule.
        reason: Broken,
    },
    /// A request was answered with an error, because a buffer of it is not in guest memory;
    /// reported for the first since the lane started.
    Unreachable {
        /// The queue's index.
        index: u16,
        /// Guest physical address that is in no region.
        hole: u64,
    },
    /// Its thread ended by a fault. Requests in flight are not answered, and their progress is
    /// unknown.
    Lost {
        /// The queue's index.
        index: u16,
    },
}

/// Carries events from lanes to their session.
#[derive(Debug, Clone)]
pub struct EventSender(Teller<LaneEvent>);

/// The session's end.
#[derive(Debug)]
pub struct EventReceiver(Listener<LaneEvent>);

/// A channel for lane events that can be waited for together with other descriptors.
///
/// # Errors
/// An error if the system gives no eventfd.
pub fn event_channel() -> io::Result<(EventSender, EventReceiver)> {
    let (teller, listener) = news(Wake::new()?);
    Ok((EventSender(teller), EventReceiver(listener)))
}

impl EventSender {
    pub(super) fn send(&self, event: LaneEvent) {
        self.0.send(event);
    }
}

impl EventReceiver {
    /// Readable when there is an event.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.0.wake().fd()
    }

    /// The next event, without waiting. Call until there is none.
    pub fn next(&self) -> Option<LaneEvent> {
        self.0.next()
    }
}
