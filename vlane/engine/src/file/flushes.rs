//! Flushes of all channels of a volume, and the `fdatasync`s that serve them.
//!
//! One `fdatasync` makes durable all writes that any lane answered before it began. So flushes need
//! not have one each:
//!
//! * **Skipped**: a flush needs none if no write was answered since the last successful one
//!   *began*. Each channel counts its writes, discards and zeroings that are answered and not
//!   durable by themselves ([`Flusher::count`]). The sum of these counts, looked at before an
//!   `fdatasync` begins, stands for the writes that it covers. As long as the sum is that, all that
//!   was answered is durable.
//! * **Shared**: one runs at a time. A flush that comes meanwhile waits for the next one, which
//!   begins after all earlier answers. All flushes that waited when it began are answered at its
//!   end.
//!
//! The first flush of a volume that was just opened always syncs: the previous owner of the image
//! may have left data in the page cache.
//!
//! # Who begins it
//! A thread of the volume does only this ([`Syncer`]; `sync_thread.rs`). It begins one as soon as
//! the first channel asks, and reports the end to all that waited. So no flush waits for a lane's
//! thread that is held up elsewhere. A lane's io_uring cannot do that: only its own thread begins
//! operations in it, and sees their ends.
//!
//! # Why no answered write is missed
//! The count is stored before the request's used entry is (a lane shows only requests that a
//! channel has answered). A guest that flushes because it saw the entry does so after both stores.
//! The lane that takes the flush comes later still, in any thread, and finds the count. In the
//! other direction, a reader sees the count only after the write has ended, so an `fdatasync` that
//! begins after the look covers the write. Every interleaving is tried by the models
//! (checks/models). A write pays a store to a cache line of its channel's own; the mutex is for
//! flushes, which wait for the device.

use std::collections::VecDeque;
use std::mem;
use std::sync::PoisonError;

use vlane_ring::Slot;

use crate::Writeback;
use crate::sync::{Arc, AtomicBool, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, Waker, wake};

/// State that the channels of one volume share. See the [module](self).
#[derive(Debug)]
pub(crate) struct Flushes {
    state: Mutex<State>,
    /// The thread has something to do.
    called: Condvar,
}

/// State that a channel shows the others.
#[derive(Debug)]
struct Gate {
    answered: Answered,
    /// The channel was rung and has not looked yet. Written under the mutex.
    rung: AtomicBool,
    doorbell: Arc<Waker>,
}

/// Writes, discards and zeroings that were answered and not durable by themselves. Stored by its
/// channel alone, and alone on its cache line (and on the one that is fetched with it).
#[derive(Debug)]
#[repr(align(128))]
struct Answered(AtomicU64);

/// A channel's way to flushes. Dropped, it waits for no flush any more.
#[derive(Debug)]
pub(crate) struct Flusher {
    shared: Arc<Flushes>,
    gate: Arc<Gate>,
    channel: u64,
    told: VecDeque<(Slot, FlushResult)>,
}

/// The end of the thread that does the `fdatasync`s. There is one of a volume.
#[derive(Debug)]
pub(crate) struct Syncer {
    shared: Arc<Flushes>,
    /// The channels to wake once the mutex is free; empty in between.
    ring: Vec<Arc<Gate>>,
}

/// The answer to a request that wants all earlier answered writes to be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It is.
    Durable,
    /// [`Flusher::next_result`] names the request when it is, or when it cannot be.
    Wait,
}

/// The result that a waiting request gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FlushResult {
    pub(crate) end: End,
    /// It was begun for this request, and has served others besides.
    pub(crate) is_own: bool,
}

/// The outcome of an `fdatasync`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// All that it covers is durable.
    Well,
    /// It went well, and something had been lost before.
    Lost,
    /// The system refused it: an error number.
    Failed(i32),
}

/// A request of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Who {
    channel: u64,
    slot: Slot,
    asks: Writeback,
}

/// The `fdatasync` of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Nobody,
    /// One is to begin.
    Called,
    /// Holds the count of answered writes when it began.
    UnderWay(u64),
}

#[derive(Debug)]
struct State {
    /// In the order of their numbers.
    members: Vec<Member>,
    numbers: u64,
    /// The counts of channels that are gone.
    gone: u64,
    /// The count of answered writes when the last successful `fdatasync` began.
    durable: u64,
    turn: Turn,
    /// The requests that wait for the one under way, and below those for the next one.
    group: Vec<Who>,
    waiting: Vec<Who>,
    /// No channel is left, nor will there be one.
    is_over: bool,
}

#[derive(Debug)]
struct Member {
    number: u64,
    gate: Arc<Gate>,
    told: VecDeque<(Slot, FlushResult)>,
}

impl Flushes {
    /// For a volume that was just opened.
    pub(crate) fn new() -> Arc<Flushes> {
        let state = State {
            members: Vec::new(),
            numbers: 0,
            // Counts what the previous owner of the image left.
            gone: 1,
            durable: 0,
            turn: Turn::Nobody,
            group: Vec::new(),
            waiting: Vec::new(),
            is_over: false,
        };
        Arc::new(Flushes { state: Mutex::new(state), called: Condvar::new() })
    }

    /// Ends the thread after its present work.
    pub(crate) fn end(&self) {
        self.lock().is_over = true;
        self.called.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // This code never panics while it holds the mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Syncer {
    /// The volume's.
    pub(crate) fn new(shared: &Arc<Flushes>) -> Syncer {
        Syncer { shared: Arc::clone(shared), ring: Vec::new() }
    }

    /// Waits until an `fdatasync` is to begin, and returns its reason. None: there will be none any
    /// more.
    pub(crate) fn next(&self) -> Option<Writeback> {
        let mut state = self.shared.lock();
        loop {
            if let Some(asks) = state.begin() {
                return Some(asks);
            }
            if state.is_over {
                return None;
            }
            state = self.shared.called.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// True once [`Syncer::next`] will return none.
    pub(crate) fn is_over(&self) -> bool {
        self.shared.lock().is_over
    }

    /// As [`Syncer::next`], without waiting.
    #[cfg(any(test, vlane_simulated))]
    pub(crate) fn try_next(&self) -> Option<Writeback> {
        self.shared.lock().begin()
    }

    /// The `fdatasync` has ended. A loss was noted before.
    pub(crate) fn ended(&mut self, end: End) {
        let mut state = self.shared.lock();
        let Turn::UnderWay(covers) = state.turn else { return };
        state.turn = Turn::Nobody;
        if end == End::Well {
            state.durable = covers;
        }
        let mut is_own = true;
        for who in mem::take(&mut state.group) {
            state.tell(who, FlushResult { end, is_own: mem::take(&mut is_own) }, &mut self.ring);
        }
        // After a failure none ends well any more.
        if end != End::Well || state.durable == state.answered() {
            for who in mem::take(&mut state.waiting) {
                state.tell(who, FlushResult { end, is_own: false }, &mut self.ring);
            }
        }
        if !state.waiting.is_empty() {
            state.turn = Turn::Called;
        }
        drop(state);
        // Not under the mutex: it is a system call each.
        self.ring.drain(..).for_each(|gate| wake(&gate.doorbell));
    }
}

impl Flusher {
    /// A channel's. `doorbell` is rung when [`Flusher::next_result`] has something; others may ring
    /// it, too.
    pub(crate) fn new(shared: &Arc<Flushes>, doorbell: Arc<Waker>) -> Flusher {
        let answered = Answered(AtomicU64::new(0));
        let gate = Arc::new(Gate { answered, rung: AtomicBool::new(false), doorbell });
        let mut state = shared.lock();
        let number = state.numbers;
        state.numbers += 1;
        state.members.push(Member { number, gate: Arc::clone(&gate), told: VecDeque::new() });
        drop(state);
        let shared = Arc::clone(shared);
        Flusher { shared, gate, channel: number, told: VecDeque::new() }
    }

    /// A write, discard or zeroing has ended, is not durable, and is about to be answered.
    #[inline]
    pub(crate) fn count(&self) {
        let answered = &self.gate.answered.0;
        // Only this thread stores it. Release: the write is before it.
        answered.store(answered.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// `slot` wants all earlier answered writes to be durable; `asks` is the reason.
    // off the data path: a flush waits for the device.
    pub(crate) fn ask(&mut self, slot: Slot, asks: Writeback) -> Asked {
        let mut state = self.shared.lock();
        if state.durable == state.answered() {
            return Asked::Durable;
        }
        state.waiting.push(Who { channel: self.channel, slot, asks });
        let calls = state.turn == Turn::Nobody;
        if calls {
            state.turn = Turn::Called;
        }
        drop(state);
        if calls {
            self.shared.called.notify_one();
        }
        Asked::Wait
    }

    /// The next request whose flush has ended. Call it until it returns none, after reading the
    /// doorbell's eventfd: a result after the look rings it again.
    // off the data path: a flush waits for the device.
    pub(crate) fn next_result(&mut self) -> Option<(Slot, FlushResult)> {
        if self.told.is_empty() && self.gate.rung.load(Ordering::Relaxed) {
            let mut state = self.shared.lock();
            self.gate.rung.store(false, Ordering::Relaxed);
            if let Some(member) = state.member(self.channel) {
                mem::swap(&mut member.told, &mut self.told);
            }
        }
        self.told.pop_front()
    }

    /// True if [`Flusher::next_result`] has something, as far as is known.
    #[inline]
    pub(crate) fn is_told(&self) -> bool {
        !self.told.is_empty() || self.gate.rung.load(Ordering::Relaxed)
    }

    /// `slot` stops waiting.
    #[cold]
    pub(crate) fn forget(&mut self, slot: Slot) {
        self.told.retain(|(told, _)| *told != slot);
        let mut state = self.shared.lock();
        if let Some(member) = state.member(self.channel) {
            member.told.retain(|(told, _)| *told != slot);
        }
        let channel = self.channel;
        state.remove(|who| who.channel == channel && who.slot == slot);
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.gone = state.gone.wrapping_add(self.gate.answered.0.load(Ordering::Relaxed));
        state.members.retain(|member| member.number != self.channel);
        state.remove(|who| who.channel == self.channel);
    }
}

impl State {
    /// All that was answered and not durable by itself. No count ever falls, so two sums are the
    /// same only if all counts are.
    fn answered(&self) -> u64 {
        // Acquire: what was counted has ended.
        let counts =
            self.members.iter().map(|member| member.gate.answered.0.load(Ordering::Acquire));
        counts.fold(self.gone, u64::wrapping_add)
    }

    fn member(&mut self, number: u64) -> Option<&mut Member> {
        let at = self.members.binary_search_by_key(&number, |member| member.number).ok()?;
        self.members.get_mut(at)
    }

    fn tell(&mut self, who: Who, told: FlushResult, ring: &mut Vec<Arc<Gate>>) {
        let Some(member) = self.member(who.channel) else { return };
        member.told.push_back((who.slot, told));
        if !member.gate.rung.load(Ordering::Relaxed) {
            member.gate.rung.store(true, Ordering::Relaxed);
            ring.push(Arc::clone(&member.gate));
        }
    }

    /// Begins an `fdatasync` for the waiting requests, if one was called for; returns its reason.
    fn begin(&mut self) -> Option<Writeback> {
        if self.turn != Turn::Called {
            return None;
        }
        let asks = self.waiting.first()?.asks;
        self.turn = Turn::UnderWay(self.answered());
        self.group = mem::take(&mut self.waiting);
        Some(asks)
    }

    /// Takes requests out.
    fn remove(&mut self, is_gone: impl Fn(&Who) -> bool) {
        self.group.retain(|who| !is_gone(who));
        self.waiting.retain(|who| !is_gone(who));
        if self.waiting.is_empty() && self.turn == Turn::Called {
            self.turn = Turn::Nobody;
        }
    }
}
