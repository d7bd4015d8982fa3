//! Sources of the daemon's knowledge of I/O, each with a file descriptor that becomes readable.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use vlane_policy::loan::Claim;

use crate::thread::Thread;
use crate::vehicle::{Counter, VcpuThreads};
use crate::{Error, ErrorKind, Result};

/// A source's report. A token names a vCPU; the source chooses it, and each source has its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mark {
    /// A vCPU is there.
    Joined {
        /// Its token from now on.
        token: u64,
        /// Its threads.
        vcpu: VcpuThreads,
        /// Its claim.
        claim: Claim,
    },
    /// A vCPU's threads are others now.
    Changed {
        /// The vCPU.
        token: u64,
        /// Its threads.
        vcpu: VcpuThreads,
    },
    /// A vCPU is not to be scheduled any more.
    Left {
        /// The vCPU.
        token: u64,
    },
    /// A back end's storage threads are these now; none: it is to be let go.
    Storage {
        /// Its token, which no vCPU has.
        token: u64,
        /// The back end's process, and its threads.
        back_end: VcpuThreads,
        /// The machine that pays for them.
        vm: u32,
    },
    /// An I/O of it has completed.
    Event {
        /// The vCPU.
        token: u64,
    },
    /// A vCPU has taken the event.
    Served {
        /// The vCPU.
        token: u64,
        /// Time since the event, ns.
        response_ns: u64,
    },
}

/// A source of marks. Called by the event loop, which is real-time: no method may wait.
pub trait Source: Send {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// Readable when there are marks to collect.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns true if the descriptor stays readable, and only a change of it tells of marks.
    fn stays_readable(&self) -> bool {
        false
    }

    /// Appends all pending marks, in their order, and makes the descriptor unreadable until there
    /// are more, unless it [stays readable](Self::stays_readable).
    ///
    /// # Errors
    ///
    /// The source is broken: it is not asked again.
    fn collect(&mut self, marks: &mut Vec<Mark>) -> Result<()>;

    /// The time at which it has marks although the descriptor does not tell, `CLOCK_MONOTONIC` ns.
    fn deadline(&self) -> Option<u64> {
        None
    }

    /// Returns true if it reports every event when it is served. Otherwise the daemon cannot know
    /// that an event was not served, and does not repeat it.
    fn tells_of_all_served(&self) -> bool {
        true
    }

    /// Returns true if vCPUs may still join through it: the daemon then waits for them although it
    /// has none.
    fn may_bring_vcpus(&self) -> bool {
        false
    }

    /// Returns the opened threads of a vCPU that a mark has just announced; none if the daemon is
    /// to open them.
    fn opened(&mut self, token: u64) -> Vec<Arc<Thread>> {
        let _ = token;
        Vec::new()
    }

    /// Reports that a vCPU is scheduled, from any source, or that its threads are others now. The
    /// token that this source's marks will have for it, if there will be any.
    fn meet(&mut self, vcpu: &VcpuThreads) -> Option<u64> {
        let _ = vcpu;
        None
    }

    /// The vCPU with this token is not scheduled any more.
    fn part(&mut self, token: u64) {
        let _ = token;
    }

    /// Its counters, for people to look at.
    fn counters(&self) -> Vec<Counter> {
        Vec::new()
    }
}

/// A source within this process: marks are sent from any thread.
#[derive(Debug)]
pub struct Mailbox {
    receiver: Receiver<Mark>,
    wakeup: Arc<OwnedFd>,
    brings_vcpus: bool,
}

/// Sends marks to a [`Mailbox`].
#[derive(Debug, Clone)]
pub struct Poster {
    sender: Sender<Mark>,
    wakeup: Arc<OwnedFd>,
}

impl Mailbox {
    /// A mailbox and what sends to it.
    ///
    /// # Errors
    ///
    /// No eventfd can be had.
    pub fn new(brings_vcpus: bool) -> Result<(Poster, Self)> {
        let wakeup =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
                Error::caused_by(ErrorKind::Io, "cannot make an eventfd", io::Error::from(error))
            })?;
        let wakeup = Arc::new(wakeup);
        let (sender, receiver) = channel();
        Ok((
            Poster { sender, wakeup: Arc::clone(&wakeup) },
            Self { receiver, wakeup, brings_vcpus },
        ))
    }
}

impl Poster {
    /// Sends a mark; whether the daemon is there to take it. Costs a system call.
    pub fn post(&self, mark: Mark) -> bool {
        let sent = self.sender.send(mark).is_ok();
        // Full (2^64 - 2 rings) is rung enough.
        let _ = rustix::io::write(&*self.wakeup, &1_u64.to_ne_bytes());
        sent
    }
}

impl Source for Mailbox {
    fn name(&self) -> &str {
        "this process"
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    fn collect(&mut self, marks: &mut Vec<Mark>) -> Result<()> {
        let mut count = [0; 8];
        // First the wakeup, then the box: what comes in between writes it again.
        let _ = rustix::io::read(&*self.wakeup, &mut count);
        marks.extend(self.receiver.try_iter());
        Ok(())
    }

    fn may_bring_vcpus(&self) -> bool {
        self.brings_vcpus
    }
}
