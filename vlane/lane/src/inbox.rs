//! Messages from control to a lane thread, and the wake-up at the thread's one wait point.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use vlane_hint::LaneHint;
use vlane_memory::{DirtyLog, GuestMemory};

use crate::cancellable_request::CancellableRequest;
use crate::error::{LaneError, Stopped};
use crate::lane::{Lane, LaneConfig};
use crate::limits::Budget;
use crate::mail;
use crate::recorder::Recorder;
use crate::sync::Wake;

/// Control's requests to a thread. Lanes are named by their queue's index in the session.
pub(crate) enum Message {
    Start {
        index: u16,
        config: Box<LaneConfig>,
        limits: Option<Arc<Budget>>,
        reply: Sender<Result<(), LaneError>>,
    },
    /// Answered when no request is in flight any more; or, if it `suspends`, when the storage works
    /// on none of them any more.
    Stop {
        index: u16,
        suspends: bool,
        reply: Sender<Option<Stopped>>,
    },
    /// As [`Message::Stop`], for as long as it is wanted. Not answered when it was called off
    /// first.
    TryStop {
        index: u16,
        stop: Arc<CancellableRequest>,
        reply: Sender<Option<Stopped>>,
    },
    /// A lane whose [`Message::TryStop`] was cancelled continues at once, if it is still there. Not
    /// answered.
    CarryOn {
        index: u16,
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
    /// With `drain`, taken over when no request is in flight any more. Answered then.
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
    /// The lane of that queue tells the vCPU scheduler, now or when it starts; or no longer. Not
    /// answered.
    SetHint {
        index: u16,
        hint: Option<Box<LaneHint>>,
    },
    /// The volume has other limits, or none. Not answered.
    SetLimits {
        index: u16,
        limits: Option<Arc<Budget>>,
    },
    /// The lane goes to another thread as soon as the storage works on none of its requests; until
    /// then it takes no more of them. No effect if it is about to stop or to do another thing that
    /// has to wait for that. Not answered.
    Move {
        index: u16,
        to: usize,
    },
    /// A lane that is to move stays after all, if it is still there. Not answered.
    Stay {
        index: u16,
    },
    /// From one thread to another: a lane, and the messages for it that the first one had not read.
    Adopt {
        lane: Box<Lane>,
        mail: Vec<Message>,
    },
    /// The thread takes no more requests, answers those in flight, and ends.
    Exit,
}

impl Message {
    /// The lane that it is for.
    pub(crate) fn index(&self) -> Option<u16> {
        match self {
            Message::Start { index, .. }
            | Message::Stop { index, .. }
            | Message::TryStop { index, .. }
            | Message::CarryOn { index }
            | Message::Hold { index }
            | Message::SetCall { index, .. }
            | Message::SetMemory { index, .. }
            | Message::SetLog { index, .. }
            | Message::SetWriteThrough { index, .. }
            | Message::SetSectors { index, .. }
            | Message::SetRecorder { index, .. }
            | Message::SetHint { index, .. }
            | Message::SetLimits { index, .. }
            | Message::Move { index, .. }
            | Message::Stay { index } => Some(*index),
            Message::Adopt { .. } | Message::Exit => None,
        }
    }
}

/// The sending side.
pub(crate) type Outbox = mail::Outbox<Message>;
/// The thread's side.
pub(crate) type Inbox = mail::Inbox<Message>;

pub(crate) fn pair() -> std::io::Result<(Outbox, Inbox)> {
    Ok(mail::mailbox(Wake::new()?))
}

impl Inbox {
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake().fd()
    }
}
