//! Messages from one thread to another that sleeps on a descriptor: the order of steps that loses
//! none. Every interleaving of them is tried by the models (checks/models).

use crate::sync::{Arc, AtomicBool, Ordering, Receiver, Sender, Wake, channel};

struct Shared {
    /// Looked at by a thread that is awake; the wake-up is for one that sleeps. Both sides swap:
    /// the side that clears the other's flag sees the messages of all who raised it before. With
    /// stores, that would depend on the channel's internals.
    pending: AtomicBool,
    wake: Wake,
}

/// The sending side, to a thread that gets each wake-up once.
pub(crate) struct Outbox<T> {
    shared: Arc<Shared>,
    sender: Sender<T>,
}

/// The thread's side.
pub(crate) struct Inbox<T> {
    shared: Arc<Shared>,
    receiver: Receiver<T>,
}

pub(crate) fn mailbox<T>(wake: Wake) -> (Outbox<T>, Inbox<T>) {
    let shared = Arc::new(Shared { pending: AtomicBool::new(false), wake });
    let (sender, receiver) = channel();
    (Outbox { shared: Arc::clone(&shared), sender }, Inbox { shared, receiver })
}

impl<T> Clone for Outbox<T> {
    fn clone(&self) -> Self {
        Outbox { shared: Arc::clone(&self.shared), sender: self.sender.clone() }
    }
}

impl<T> Outbox<T> {
    /// Puts a message into the inbox; gives it back when the thread is gone.
    ///
    /// # Errors
    /// The message.
    pub(crate) fn send(&self, message: T) -> Result<(), T> {
        let sent = self.sender.send(message);
        self.shared.pending.swap(true, Ordering::AcqRel);
        self.shared.wake.raise();
        sent.map_err(|unsent| unsent.0)
    }
}

impl<T> Inbox<T> {
    pub(crate) fn wake(&self) -> &Wake {
        &self.shared.wake
    }

    /// Returns true if there may be messages; one load.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.shared.pending.load(Ordering::Relaxed)
    }

    /// The next message. Call until there is none.
    pub(crate) fn next(&self) -> Option<T> {
        // Cleared before looking: what is sent after the look raises it again.
        self.shared.pending.swap(false, Ordering::AcqRel);
        self.receiver.try_recv().ok()
    }
}

/// The sending side, to a thread that is woken for as long as the descriptor is readable.
#[derive(Debug)]
pub(crate) struct Teller<T> {
    sender: Sender<T>,
    wake: Arc<Wake>,
}

/// The other end.
#[derive(Debug)]
pub(crate) struct Listener<T> {
    receiver: Receiver<T>,
    wake: Arc<Wake>,
}

pub(crate) fn news<T>(wake: Wake) -> (Teller<T>, Listener<T>) {
    let wake = Arc::new(wake);
    let (sender, receiver) = channel();
    (Teller { sender, wake: Arc::clone(&wake) }, Listener { receiver, wake })
}

impl<T> Clone for Teller<T> {
    fn clone(&self) -> Self {
        Teller { sender: self.sender.clone(), wake: Arc::clone(&self.wake) }
    }
}

impl<T> Teller<T> {
    pub(crate) fn send(&self, event: T) {
        // Without a listener no thread needs to know.
        let _ = self.sender.send(event);
        self.wake.raise();
    }
}

impl<T> Listener<T> {
    /// Readable when there is an event.
    pub(crate) fn wake(&self) -> &Wake {
        &self.wake
    }

    /// The next event, without waiting. Call until there is none.
    pub(crate) fn next(&self) -> Option<T> {
        // Cleared before looking: what is sent after the look makes it readable again.
        self.wake.clear();
        self.receiver.try_recv().ok()
    }
}
