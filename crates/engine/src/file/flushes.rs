//! Flushes of all channels of a volume, and the `fdatasync`s that serve them.
//!
//! One `fdatasync` makes durable what any lane was answered before it began. So flushes need not have one each:
//!
//! * **Skipped**: a flush needs none if nothing was answered since the last successful one *began*. Each channel counts its writes, discards and
//!   zeroings that are answered and not durable by themselves ([`Flusher::count`]). The sum of these counts, looked at before an `fdatasync`
//!   begins, stands for what it covers. As long as the sum is that, all that was answered is durable.
//! * **Shared**: one runs at a time. Who asks meanwhile waits for the next one, whose begin is later than whatever they were answered before. The first
//!   that can begins it for all ([`Asked::Begin`], [`Told::Begin`]); when it ends, all who waited when it began are told.
//!
//! The first flush of a volume that was just opened finds something to do: whoever had the image before may have left it in the page cache.
//!
//! # Why no answered write is missed
//! The count is stored before the request's used entry is (a lane shows what a channel has answered). A guest that flushes because it saw the
//! entry does so after both, and so does the lane that takes the flush, in whatever thread: it finds the count. The other way round, whoever reads
//! the count reads it after the write has ended, so an `fdatasync` that begins after the look covers the write. Every interleaving is tried by
//! the models (crates/models). A write pays a store to a cache line of its channel's own; the mutex is for flushes, which wait for the device.
//!
//! # Who begins it, and when that one goes
//! It is an operation of one of the requests that wait, on its own lane's io_uring. If that request is put back, or its channel goes, the others
//! wait for another `fdatasync`, which one of them begins: how the first one ended nobody knows.

use std::collections::VecDeque;
use std::mem;
use std::sync::PoisonError;

use vlane_ring::Slot;

use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, Waker, wake};

/// What the channels of one volume share. See the [module](self).
#[derive(Debug)]
pub(crate) struct Flushes {
    state: Mutex<State>,
}

/// What a channel shows the others.
#[derive(Debug)]
struct Gate {
    answered: Answered,
    /// The channel was told something and has not looked yet. Written under the mutex.
    rung: AtomicBool,
    doorbell: Arc<Waker>,
}

/// Writes, discards and zeroings that were answered and not durable by themselves. Stored by its channel alone, and alone on its cache line (and on the
/// one that is fetched with it).
#[derive(Debug)]
#[repr(align(128))]
struct Answered(AtomicU64);

/// A channel's way to flushes. Dropped, it waits for nothing any more, and somebody else begins what it was to begin.
#[derive(Debug)]
pub(crate) struct Flusher {
    shared: Arc<Flushes>,
    gate: Arc<Gate>,
    channel: u64,
    told: VecDeque<(Slot, Told)>,
    /// Whom to wake once the mutex is free; empty in between.
    ring: Vec<Arc<Gate>>,
}

/// What becomes of a request that wants everything to be durable that was answered before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// It is.
    Durable,
    /// The request begins an `fdatasync`, now; to be told with [`Flusher::end`].
    Begin,
    /// Others do: [`Flusher::told`] names the request once there is news.
    Wait,
}

/// What a request that waited is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Told {
    /// It is its turn to begin one: [`Flusher::ask`] again.
    Begin,
    /// The `fdatasync` that it waited for has ended; whether well.
    Over { ok: bool },
}

/// A request of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Who {
    channel: u64,
    slot: Slot,
}

/// The `fdatasync` of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Nobody,
    /// Was told to begin it, and has not.
    Called(Who),
    /// With what was answered when it began.
    UnderWay(Who, u64),
}

#[derive(Debug)]
struct State {
    /// In the order of their numbers.
    members: Vec<Member>,
    numbers: u64,
    /// What channels that are gone have counted.
    gone: u64,
    /// What was answered when the last successful `fdatasync` began.
    durable: u64,
    turn: Turn,
    /// Who waits for the one that is under way, and who for the next one.
    group: Vec<Who>,
    waiting: VecDeque<Who>,
}

#[derive(Debug)]
struct Member {
    number: u64,
    gate: Arc<Gate>,
    told: VecDeque<(Slot, Told)>,
}

impl Flushes {
    /// For a volume that was just opened.
    pub(crate) fn new() -> Arc<Flushes> {
        let state = State {
            members: Vec::new(),
            numbers: 0,
            // What whoever had the image before has left.
            gone: 1,
            durable: 0,
            turn: Turn::Nobody,
            group: Vec::new(),
            waiting: VecDeque::new(),
        };
        Arc::new(Flushes { state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics while it holds the mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Flusher {
    /// A channel's. `doorbell` is rung when [`Flusher::told`] has something; others may ring it, too.
    pub(crate) fn new(shared: &Arc<Flushes>, doorbell: Arc<Waker>) -> Flusher {
        let answered = Answered(AtomicU64::new(0));
        let gate = Arc::new(Gate { answered, rung: AtomicBool::new(false), doorbell });
        let mut state = shared.lock();
        let number = state.numbers;
        state.numbers += 1;
        state.members.push(Member { number, gate: Arc::clone(&gate), told: VecDeque::new() });
        drop(state);
        let shared = Arc::clone(shared);
        Flusher { shared, gate, channel: number, told: VecDeque::new(), ring: Vec::new() }
    }

    /// A write, discard or zeroing has ended, is not durable, and is about to be answered.
    #[inline]
    pub(crate) fn count(&self) {
        let answered = &self.gate.answered.0;
        // Nobody else stores it. Release: the write is before it.
        answered.store(answered.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// `slot` wants everything to be durable that was answered before; or it was told to begin.
    pub(crate) fn ask(&mut self, slot: Slot) -> Asked {
        let who = Who { channel: self.channel, slot };
        let mut state = self.shared.lock();
        let answered = state.answered();
        let is_called = state.turn == Turn::Called(who);
        if !is_called && state.durable == answered {
            return Asked::Durable;
        }
        if !is_called && state.turn != Turn::Nobody {
            state.waiting.push_back(who);
            return Asked::Wait;
        }
        state.turn = Turn::UnderWay(who, answered);
        state.group = mem::take(&mut state.waiting).into();
        Asked::Begin
    }

    /// The `fdatasync` that `slot` has begun has ended; whether well, which a failure that was noted before is not.
    pub(crate) fn end(&mut self, slot: Slot, ok: bool) {
        let who = Who { channel: self.channel, slot };
        let mut state = self.shared.lock();
        let Turn::UnderWay(by, covers) = state.turn else { return };
        if by != who {
            return;
        }
        state.turn = Turn::Nobody;
        if ok {
            state.durable = covers;
        }
        for who in mem::take(&mut state.group) {
            state.tell(who, Told::Over { ok }, &mut self.ring);
        }
        // After a failure none ends well any more.
        if !ok || state.durable == state.answered() {
            for who in mem::take(&mut state.waiting) {
                state.tell(who, Told::Over { ok }, &mut self.ring);
            }
        }
        state.call(self.channel, &mut self.ring);
        drop(state);
        self.ring();
    }

    /// The next request that was told something. To be called until there is nothing, after the doorbell's eventfd was read: what is told
    /// after the look rings it again.
    pub(crate) fn told(&mut self) -> Option<(Slot, Told)> {
        if self.told.is_empty() && self.gate.rung.load(Ordering::Relaxed) {
            let mut state = self.shared.lock();
            self.gate.rung.store(false, Ordering::Relaxed);
            if let Some(member) = state.member(self.channel) {
                mem::swap(&mut member.told, &mut self.told);
            }
        }
        self.told.pop_front()
    }

    /// Whether [`Flusher::told`] has something. Certain only about what this channel has caused itself: for that the doorbell is not rung.
    #[inline]
    pub(crate) fn is_told(&self) -> bool {
        !self.told.is_empty() || self.gate.rung.load(Ordering::Relaxed)
    }

    /// `slot` waits for nothing any more, and no `fdatasync` of its is under way.
    #[cold]
    pub(crate) fn forget(&mut self, slot: Slot) {
        self.told.retain(|(told, _)| *told != slot);
        let mut state = self.shared.lock();
        if let Some(member) = state.member(self.channel) {
            member.told.retain(|(told, _)| *told != slot);
        }
        state.remove(|who| *who == Who { channel: self.channel, slot });
        state.call(self.channel, &mut self.ring);
        drop(state);
        self.ring();
    }

    /// Wakes those that were told something. Not under the mutex: it is a system call each.
    fn ring(&mut self) {
        let others = self.ring.drain(..).filter(|gate| !Arc::ptr_eq(gate, &self.gate));
        others.for_each(|gate| wake(&gate.doorbell));
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.gone = state.gone.wrapping_add(self.gate.answered.0.load(Ordering::Relaxed));
        state.members.retain(|member| member.number != self.channel);
        state.remove(|who| who.channel == self.channel);
        state.call(self.channel, &mut self.ring);
        drop(state);
        self.ring();
    }
}

impl State {
    /// All that was answered and not durable by itself. No count ever falls, so two sums are the same only if all counts are.
    fn answered(&self) -> u64 {
        // Acquire: what was counted has ended.
        let counts = self.members.iter().map(|member| member.gate.answered.0.load(Ordering::Acquire));
        counts.fold(self.gone, u64::wrapping_add)
    }

    fn member(&mut self, number: u64) -> Option<&mut Member> {
        let at = self.members.binary_search_by_key(&number, |member| member.number).ok()?;
        self.members.get_mut(at)
    }

    fn tell(&mut self, who: Who, told: Told, ring: &mut Vec<Arc<Gate>>) {
        let Some(member) = self.member(who.channel) else { return };
        member.told.push_back((who.slot, told));
        if !member.gate.rung.load(Ordering::Relaxed) {
            member.gate.rung.store(true, Ordering::Relaxed);
            ring.push(Arc::clone(&member.gate));
        }
    }

    /// If it is nobody's turn and somebody waits: it is theirs. A request of the calling channel need not be woken for it.
    fn call(&mut self, caller: u64, ring: &mut Vec<Arc<Gate>>) {
        if self.turn != Turn::Nobody {
            return;
        }
        let own = self.waiting.iter().position(|who| who.channel == caller);
        if let Some(who) = self.waiting.remove(own.unwrap_or(0)) {
            self.turn = Turn::Called(who);
            self.tell(who, Told::Begin, ring);
        }
    }

    /// Takes requests out. Who waits for one of theirs waits for another one.
    fn remove(&mut self, is_gone: impl Fn(&Who) -> bool) {
        if let Turn::Called(by) | Turn::UnderWay(by, _) = self.turn
            && is_gone(&by)
        {
            self.turn = Turn::Nobody;
            for who in mem::take(&mut self.group).into_iter().rev() {
                self.waiting.push_front(who);
            }
        }
        self.group.retain(|who| !is_gone(who));
        self.waiting.retain(|who| !is_gone(who));
    }
}
