//! The Baseline's guest side: one queue for all jobs, reached under the global mutex.
//!
//! In the paper a vCPU must hold QEMU's one mutex to reach the request queue in shared memory, and whoever else wants it waits. So a
//! job sends under the mutex, kick included (the exit that it causes is handled under it, too), and completions are taken from
//! the queue under it. The queue has one interrupt for all: a job that has nothing to do and finds nobody waiting
//! for the interrupt waits for it, takes back everything, and hands the others theirs, as the vCPU does that a device's one interrupt
//! vector goes to. The others sleep until they are handed something.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;

use rustix::event::epoll;
use vlane_driver::GuestQueue;
use vlane_driver::ring::{Completion, Request};

use super::guest::{Port, PortCounts};
use super::lock::{FifoLock, LockUse};
use vlane_host::error::{Context, Error, ErrorKind, Result};

/// One queue, many jobs.
#[derive(Debug)]
pub struct SharedQueue {
    lock: Arc<FifoLock>,
    /// Only touched by the holder of `lock`, so never contended itself.
    inner: Mutex<Inner>,
    /// Readable at an interrupt.
    interrupt: OwnedFd,
    /// Somebody waits for the interrupt, or is about to.
    is_watched: AtomicBool,
    boxes: Vec<Mailbox>,
    /// Slots of each job.
    depth: u16,
}

#[derive(Debug)]
struct Inner {
    queue: GuestQueue,
    /// Reused.
    done: Vec<Completion>,
}

/// What came back for one job.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Mailbox {
    done: Mutex<Vec<Completion>>,
    has_mail: AtomicBool,
    owner: OnceLock<Thread>,
}

impl SharedQueue {
    /// Shares a queue among `jobs`, each with `depth` of its slots.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] if there are no descriptors left.
    pub fn new(mut queue: GuestQueue, jobs: u16, depth: u16, lock: Arc<FifoLock>) -> Result<Self> {
        let what = || "cannot wait for an eventfd";
        let interrupt = epoll::create(epoll::CreateFlags::CLOEXEC).context(ErrorKind::Io, what)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&interrupt, queue.call_fd(), data, flags).context(ErrorKind::Io, what)?;
        queue.blk.disable_interrupts();
        Ok(Self {
            lock,
            inner: Mutex::new(Inner { queue, done: Vec::new() }),
            interrupt,
            is_watched: AtomicBool::new(false),
            boxes: (0..jobs).map(|_| Mailbox::default()).collect(),
            depth,
        })
    }

    /// Job `job`'s way to it; to be called in the job's own thread.
    pub fn port(&self, job: u16) -> SharedPort<'_> {
        let mailbox = &self.boxes[usize::from(job)];
        let _ = mailbox.owner.set(std::thread::current());
        SharedPort { shared: self, mailbox, base: job * self.depth, counts: PortCounts::default() }
    }

    /// Makes every job look again.
    pub fn wake_all(&self) {
        for owner in self.boxes.iter().filter_map(|mailbox| mailbox.owner.get()) {
            owner.unpark();
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back everything and hands it out; whether there was anything. The caller holds the global mutex.
    fn hand_out(&self, inner: &mut Inner) -> Result<bool> {
        let Inner { queue, done } = inner;
        queue.blk.reap(done).map_err(vlane_driver::Error::from)?;
        if done.is_empty() {
            return Ok(false);
        }
        // One visit to each job's box; what is left belongs to nobody.
        for (job, mailbox) in (0_u16..).zip(&self.boxes) {
            let slots = job * self.depth..(job + 1) * self.depth;
            if !done.iter().any(|c| slots.contains(&c.slot)) {
                continue;
            }
            let mut mail = mailbox.done.lock().unwrap_or_else(PoisonError::into_inner);
            done.retain(|c| match slots.contains(&c.slot) {
                true => {
                    mail.push(Completion { slot: c.slot - slots.start, ..*c });
                    false
                }
                false => true,
            });
            drop(mail);
            mailbox.has_mail.store(true, Ordering::SeqCst);
            if let Some(owner) = mailbox.owner.get() {
                owner.unpark();
            }
        }
        match done.pop() {
            None => Ok(true),
            Some(c) => {
                let context = format!("the device answered request {}, which no job has", c.slot);
                Err(Error::new(ErrorKind::Process, context))
            }
        }
    }
}

/// One job's way to a [`SharedQueue`].
#[derive(Debug)]
pub struct SharedPort<'a> {
    shared: &'a SharedQueue,
    mailbox: &'a Mailbox,
    /// The queue's slot that is this job's slot 0.
    base: u16,
    counts: PortCounts,
}

impl Port for SharedPort<'_> {
    fn take(&mut self, done: &mut Vec<Completion>) -> Result<()> {
        if self.mailbox.has_mail.swap(false, Ordering::SeqCst) {
            done.append(&mut self.mailbox.done.lock().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(())
    }

    fn send(&mut self, requests: &[(u16, Request)]) -> Result<()> {
        let _held = self.shared.lock.lock(&mut self.counts.lock);
        let mut inner = self.shared.inner();
        for (slot, request) in requests {
            inner.queue.blk.submit(self.base + slot, *request).map_err(vlane_driver::Error::from)?;
        }
        if inner.queue.blk.publish() {
            self.counts.kicks += 1;
            inner.queue.kick()?;
        }
        Ok(())
    }

    /// Waits for the interrupt if nobody does, else to be handed something.
    ///
    /// Nobody is forgotten: whoever sleeps for mail has seen `is_watched` set, by a job that will either wait for the interrupt
    /// and hand out what comes, or come back here after its own work, or leave, and then wakes all.
    fn wait(&mut self) -> Result<()> {
        let shared = self.shared;
        if shared.is_watched.swap(true, Ordering::SeqCst) {
            if !self.mailbox.has_mail.load(Ordering::SeqCst) && shared.is_watched.load(Ordering::SeqCst) {
                self.counts.sleeps += 1;
                std::thread::park();
            }
            return Ok(());
        }
        let result = shared.take_interrupt(&mut self.counts.lock, &mut self.counts.sleeps);
        shared.is_watched.store(false, Ordering::SeqCst);
        result
    }

    fn counts(&mut self) -> &mut PortCounts {
        &mut self.counts
    }

    fn leave(&mut self) {
        // Those who count on this one to wait for the interrupt must do so themselves.
        self.shared.wake_all();
    }
}

impl SharedQueue {
    /// Waits until something has come back, and hands it out.
    fn take_interrupt(&self, usage: &mut LockUse, sleeps: &mut u64) -> Result<()> {
        {
            let _held = self.lock.lock(usage);
            let mut inner = self.inner();
            if self.hand_out(&mut inner)? {
                return Ok(());
            }
            if inner.queue.blk.enable_interrupts() {
                inner.queue.blk.disable_interrupts();
                return self.hand_out(&mut inner).map(|_| ());
            }
        }
        *sleeps += 1;
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
        match epoll::wait(&self.interrupt, &mut events, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                let error = std::io::Error::from(error);
                return Err(Error::caused_by(ErrorKind::Io, "cannot wait for an interrupt", error));
            }
        }
        let _held = self.lock.lock(usage);
        let mut inner = self.inner();
        inner.queue.blk.disable_interrupts();
        self.hand_out(&mut inner).map(|_| ())
    }
}
