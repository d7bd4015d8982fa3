//! How control reaches a lane thread: messages, and a wake-up at the thread's one wait point.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::EventfdFlags;
use vlane_hint::LaneHint;
use vlane_ring::{DirtyLog, GuestMemory};

use crate::error::{LaneError, Stopped};
use crate::lane::LaneConfig;
use crate::recorder::Recorder;

/// What control asks of a thread. Lanes are named by their queue's index in the session.
pub(crate) enum Message {
    Start {
        index: u16,
        config: Box<LaneConfig>,
        reply: Sender<Result<(), LaneError>>,
    },
    /// Answered when nothing is in flight any more.
    Stop {
        index: u16,
        reply: Sender<Option<Stopped>>,
    },
    /// Takes no more requests; a [`Message::Stop`] follows. Not answered.
    Hold {
        index: u16,
    },
    SetCall {
        index: u16,
        call: Option<OwnedFd>,
        reply: Sender<()>,
    },
    /// With `drain`, taken over when nothing is in flight any more. Answered then.
    SetMemory {
        index: u16,
        memory: Arc<GuestMemory>,
        drain: bool,
        reply: Sender<Result<(), LaneError>>,
    },
    SetLog {
        index: u16,
        log: Option<Arc<DirtyLog>>,
        ring: Option<u64>,
        reply: Sender<()>,
    },
    SetWriteThrough {
        index: u16,
        on: bool,
        reply: Sender<()>,
    },
    SetSectors {
        index: u16,
        sectors: u64,
        reply: Sender<()>,
    },
    /// Records the lane of that queue, now or when it starts; or no longer. Not answered.
    SetRecorder {
        index: u16,
        recorder: Option<Box<Recorder>>,
    },
    /// The lane of that queue tells the vCPU scheduler, now or when it starts; or no longer. Not answered.
    SetHint {
        index: u16,
        hint: Option<Box<LaneHint>>,
    },
    Exit,
}

struct Shared {
    /// Looked at by a thread that is awake; the eventfd is for one that sleeps.
    pending: AtomicBool,
    wake: OwnedFd,
}

/// The sending side.
#[derive(Clone)]
pub(crate) struct Outbox {
    shared: Arc<Shared>,
    sender: Sender<Message>,
}

/// The thread's side.
pub(crate) struct Inbox {
    shared: Arc<Shared>,
    receiver: Receiver<Message>,
}

pub(crate) fn pair() -> std::io::Result<(Outbox, Inbox)> {
    let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let shared = Arc::new(Shared { pending: AtomicBool::new(false), wake });
    let (sender, receiver) = channel();
    Ok((Outbox { shared: Arc::clone(&shared), sender }, Inbox { shared, receiver }))
}

impl Outbox {
    /// Puts a message into the inbox. Returns false when the thread is gone.
    pub(crate) fn send(&self, message: Message) -> bool {
        let sent = self.sender.send(message).is_ok();
        self.shared.pending.store(true, Ordering::SeqCst);
        // Full (EAGAIN) means that it is readable: awake it will be.
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        sent
    }
}

impl Inbox {
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }

    /// Whether there may be messages; one load.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.shared.pending.load(Ordering::Relaxed)
    }

    /// The next message. Call until there is none.
    pub(crate) fn next(&self) -> Option<Message> {
        // Cleared before looking: what is sent after the look raises it again.
        self.shared.pending.store(false, Ordering::SeqCst);
        self.receiver.try_recv().ok()
    }
}
