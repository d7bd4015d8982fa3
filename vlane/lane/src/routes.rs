//! The thread of each lane, and the way of a message to it.
//!
//! Lanes may move while control sends them messages. None of them is lost or overtakes another. A
//! sender holds the lock of this table until it has found the lane's thread and put the message
//! into its inbox. So does a thread that gives a lane away; messages in its inbox for the lane go
//! with the lane. The data path never comes here.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use vlane_error::locked;

use crate::counters::Counters;
use crate::inbox::{Inbox, Message, Outbox};
use crate::lane::Lane;

/// The threads of a pool, and which lane is on which.
pub(crate) struct Routes {
    outboxes: Vec<Outbox>,
    /// By queue.
    places: Mutex<Vec<Place>>,
}

struct Place {
    thread: usize,
    /// The lane's counters, while it runs.
    running: Option<Arc<Counters>>,
}

/// A lane that runs.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) lane: u16,
    pub(crate) thread: usize,
    pub(crate) counters: Arc<Counters>,
}

impl std::fmt::Debug for Routes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let threads: Vec<_> = locked(&self.places).iter().map(|place| place.thread).collect();
        f.debug_struct("Routes").field("threads", &threads).finish_non_exhaustive()
    }
}

impl Routes {
    /// To these threads; `threads` says for each queue where its lanes begin.
    pub(crate) fn new(outboxes: Vec<Outbox>, threads: impl Iterator<Item = usize>) -> Routes {
        let places = threads.map(|thread| Place { thread, running: None }).collect();
        Routes { outboxes, places: Mutex::new(places) }
    }

    /// Sends a message to a lane, wherever it is; returns true if its thread is there. A message
    /// for an unknown queue is dropped.
    pub(crate) fn send(&self, index: u16, message: Message) -> bool {
        let places = locked(&self.places);
        let thread =
            places.get(usize::from(index)).and_then(|place| self.outboxes.get(place.thread));
        thread.is_some_and(|outbox| outbox.send(message).is_ok())
    }

    /// The thread of a queue's lane, whether it runs or not.
    pub(crate) fn thread_of(&self, index: u16) -> Option<usize> {
        locked(&self.places).get(usize::from(index)).map(|place| place.thread)
    }

    /// Queues, whether their lanes run or not.
    pub(crate) fn queues(&self) -> u16 {
        u16::try_from(locked(&self.places).len()).unwrap_or(u16::MAX)
    }

    /// Tells all threads to end.
    pub(crate) fn end(&self) {
        for outbox in &self.outboxes {
            let _ = outbox.send(Message::Exit);
        }
    }

    /// Makes one thread end, as after a fault.
    #[cfg(test)]
    pub(crate) fn end_one(&self, thread: usize) {
        let _ = self.outboxes[thread].send(Message::Exit);
    }

    /// A lane was started, or ended.
    pub(crate) fn set_running(&self, index: u16, counters: Option<Arc<Counters>>) {
        if let Some(place) = locked(&self.places).get_mut(usize::from(index)) {
            place.running = counters;
        }
    }

    /// The lanes that run.
    pub(crate) fn running(&self) -> Vec<Running> {
        let running = |(lane, place): (u16, &Place)| {
            let counters = Arc::clone(place.running.as_ref()?);
            Some(Running { lane, thread: place.thread, counters })
        };
        (0..).zip(locked(&self.places).iter()).filter_map(running).collect()
    }

    /// Asks a lane that runs to go to another thread.
    pub(crate) fn move_lane(&self, index: u16, to: usize) {
        let places = locked(&self.places);
        let Some(place) = places.get(usize::from(index)).filter(|place| place.running.is_some())
        else {
            return;
        };
        if place.thread != to && to < self.outboxes.len() {
            let _ = self.outboxes[place.thread].send(Message::Move { index, to });
        }
    }

    /// A lane that has not moved yet is to stay where it is.
    pub(crate) fn cancel(&self, index: u16) {
        self.send(index, Message::Stay { index });
    }

    /// Gives a lane to another thread, with all messages for it that the present one, whose `inbox`
    /// that is, has not read. Gives it back if the other one is gone. The other messages of the
    /// inbox are in `unread` then, in their order.
    pub(crate) fn hand_over(
        &self,
        lane: Box<Lane>,
        to: usize,
        inbox: &Inbox,
        unread: &mut VecDeque<Message>,
    ) -> Option<Box<Lane>> {
        let index = lane.index;
        let mut places = locked(&self.places);
        unread.extend(std::iter::from_fn(|| inbox.next()));
        let Some(outbox) = self.outboxes.get(to) else { return Some(lane) };
        let (mail, others): (Vec<_>, Vec<_>) =
            unread.drain(..).partition(|message| message.index() == Some(index));
        unread.extend(others);
        match outbox.send(Message::Adopt { lane, mail }) {
            Err(Message::Adopt { lane, mail }) => {
                mail.into_iter().rev().for_each(|message| unread.push_front(message));
                Some(lane)
            }
            _ => {
                if let Some(place) = places.get_mut(usize::from(index)) {
                    place.thread = to;
                }
                None
            }
        }
    }
}
