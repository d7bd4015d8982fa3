//! Writes of part of a device block, among all others.
//!
//! Direct I/O moves whole blocks of the device. A write of part of one is a *change*: it reads the
//! blocks, puts its bytes into them, and writes them. Without a rule, the change would undo any
//! other write to these blocks that came in between, from any lane: the guest heard that its write
//! is done, and the change puts the old data back. So a change excludes every write, discard and
//! zeroing of its blocks, and every other change.
//!
//! Changes are rare, writes are not. So writes pay for the exclusion only while there are changes:
//!
//! * **No change anywhere** ([`Exclusion::changing`] is false): a write is *unregistered*. Its
//!   channel counts how many of them are under way. The others see only whether there are any
//!   ([`Gate::busy`]), so that all but the first and the last cost a load.
//! * **From the first change on**, each write is *registered* with its range, under a mutex. A
//!   change can begin when no unregistered write is under way any more, at any range, and no older
//!   overlapping request is there. A write can begin when no change that overlaps was there before
//!   it. A write or change that cannot begin waits; the channel that makes it possible hands the
//!   hold over and rings the waiting channel's doorbell.
//! * **After the last change**, writes are unregistered again. Those that are registered stay so to
//!   their end.
//!
//! No change overtakes an overlapping request, and no overlapping request overtakes a change:
//! neither starve. A request waits only for older ones, or for unregistered writes, which wait for
//! none. So there is no circle of waits, as long as a channel ends its holds without waiting for
//! another hold. Writes among themselves are not ordered: two that overlap are the guest's
//! business, as on any disk.
//!
//! Two threads that must not miss each other do so: each stores its own state, and looks at the
//! other's after a fence. One of the two looks later than the other one said. Every interleaving is
//! tried by the models (checks/models).
//!
//! | a channel | a change | so |
//! |---|---|---|
//! | `busy = true`, fence, looks at `changing` | `changing = true`, fence, looks at `busy` | the write is registered, or the change waits for it |
//! | `busy = false`, fence, looks at `changing` | the same | the change sees that nothing is under way, or the channel that a change waits |

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;
use std::sync::PoisonError;

use vlane_ring::Slot;

use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, Waker, fence, wake};

/// Alone on its cache line (and on the one that is fetched with it), for data that is read often
/// and written seldom, or the reverse.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Alone<T>(T);

/// State that the channels of one volume share. See the [module](self).
#[derive(Debug)]
pub(crate) struct Exclusion {
    /// A change is under way, or waits. Written under the mutex.
    changing: Alone<AtomicBool>,
    block: u64,
    state: Mutex<State>,
}

/// State that a channel shows the others.
#[derive(Debug)]
struct Gate {
    /// Unregistered writes are under way.
    busy: Alone<AtomicBool>,
    /// The channel was rung and has not looked yet. Written under the mutex.
    rung: AtomicBool,
    doorbell: Arc<Waker>,
}

/// A channel's way into the exclusion: its holds, and its waits. Dropped, it gives back both; none
/// of its operations may be under way in the kernel then.
#[derive(Debug)]
pub(crate) struct Holder {
    shared: Arc<Exclusion>,
    gate: Arc<Gate>,
    channel: u64,
    /// Unregistered writes that are under way.
    unregistered: u32,
    granted: VecDeque<(Slot, Hold)>,
    /// The channels to wake once the mutex is free; empty in between.
    ring: Vec<Arc<Gate>>,
}

/// The right to write to a range, until it is given back with [`Holder::end`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a hold that is not given back keeps others waiting"]
pub(crate) struct Hold(Held);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Held {
    Unregistered,
    /// With its ticket.
    Write(u64),
    Change(u64),
}

/// The registered writes and changes.
#[derive(Debug, Default)]
struct State {
    members: Vec<Member>,
    /// Each in the order of their tickets, which is the one in which they were asked for.
    changes: VecDeque<Entry>,
    writes: VecDeque<Entry>,
    tickets: u64,
    numbers: u64,
    /// Channels that may have unregistered writes under way. None: changes need not wait for any.
    busy: Vec<Arc<Gate>>,
}

#[derive(Debug)]
struct Member {
    number: u64,
    gate: Arc<Gate>,
    /// The requests that waited and hold now.
    granted: VecDeque<(Slot, Hold)>,
}

/// A write or change that holds its range, or waits for it.
#[derive(Debug)]
struct Entry {
    ticket: u64,
    range: Range<u64>,
    channel: u64,
    slot: Slot,
    /// Others that wait for this one, the first and the last; each names the next one. A waiter for
    /// several is with one of them, and looks for another when that has ended: so the work does not
    /// grow with the square of the waiters for one block.
    followers: Option<(Held, Held)>,
    next: Option<Held>,
    /// Among whose followers it is. Without one, it holds, or is a change that waits for
    /// unregistered writes.
    follows: Option<Held>,
}

impl Exclusion {
    /// For a volume whose direct I/O moves whole `block`s, bytes: a power of two.
    pub(crate) fn new(block: u64) -> Arc<Exclusion> {
        let changing = Alone(AtomicBool::new(false));
        Arc::new(Exclusion { changing, block: block.max(1), state: Mutex::new(State::default()) })
    }

    /// The bytes of all blocks of which `range` has a part.
    fn blocks(&self, range: &Range<u64>) -> Range<u64> {
        let end = range.end.checked_next_multiple_of(self.block).unwrap_or(u64::MAX);
        range.start - range.start % self.block..end
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // This code never panics while it holds the mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holder {
    /// A channel's. `doorbell` is rung when [`Holder::granted`] has something; others may ring it,
    /// too.
    pub(crate) fn new(shared: &Arc<Exclusion>, doorbell: Arc<Waker>) -> Holder {
        let busy = Alone(AtomicBool::new(false));
        let gate = Arc::new(Gate { busy, rung: AtomicBool::new(false), doorbell });
        let mut state = shared.lock();
        let number = state.numbers;
        state.numbers += 1;
        state.members.push(Member { number, gate: Arc::clone(&gate), granted: VecDeque::new() });
        drop(state);
        let shared = Arc::clone(shared);
        Holder {
            shared,
            gate,
            channel: number,
            unregistered: 0,
            granted: VecDeque::new(),
            ring: Vec::new(),
        }
    }

    /// For a write of these bytes, whole blocks. None: `slot` waits, and [`Holder::granted`] names
    /// it once it holds.
    #[inline]
    pub(crate) fn begin_write(&mut self, slot: Slot, range: Range<u64>) -> Option<Hold> {
        // Relaxed: the first unregistered write looks again, and no change begins before the last
        // one has ended.
        if !self.shared.changing.0.load(Ordering::Relaxed) && self.stays_busy() {
            self.unregistered += 1;
            return Some(Hold(Held::Unregistered));
        }
        self.register_write(slot, range)
    }

    /// For a discard or zeroing of these bytes, whole blocks, which may take long: registered in
    /// any case, so that changes elsewhere do not wait for it. None: as [`Holder::begin_write`].
    #[cold]
    pub(crate) fn begin_range(&mut self, slot: Slot, range: Range<u64>) -> Option<Hold> {
        self.register_write(slot, range)
    }

    /// True if the others know that unregistered writes are under way, and no change came before
    /// they knew.
    #[inline]
    fn stays_busy(&self) -> bool {
        if self.unregistered > 0 {
            return true;
        }
        self.gate.busy.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.shared.changing.0.load(Ordering::Acquire)
    }

    #[cold]
    fn register_write(&mut self, slot: Slot, range: Range<u64>) -> Option<Hold> {
        let mut state = self.shared.lock();
        if self.unregistered == 0 {
            // A change may have seen the mark, although no write came of it.
            self.gate.busy.0.store(false, Ordering::Relaxed);
            state.look(&mut self.ring);
        }
        let held = state.add(Held::Write, range, self.channel, slot);
        let holds = state.place(held);
        drop(state);
        self.ring();
        holds.then_some(Hold(held))
    }

    /// For a change of these bytes: of all blocks of which they are a part. None: as
    /// [`Holder::begin_write`].
    #[cold]
    pub(crate) fn begin_change(&mut self, slot: Slot, range: Range<u64>) -> Option<Hold> {
        let range = self.shared.blocks(&range);
        let mut state = self.shared.lock();
        if state.changes.is_empty() {
            self.shared.changing.0.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let State { members, busy, .. } = &mut *state;
            busy.extend(
                members.iter().map(|member| &member.gate).filter(|gate| gate.is_busy()).cloned(),
            );
        }
        let held = state.add(Held::Change, range, self.channel, slot);
        state.place(held).then_some(Hold(held))
    }

    /// Gives a hold back. The operations that it was for have ended.
    #[inline]
    pub(crate) fn end(&mut self, hold: Hold) {
        if hold.0 != Held::Unregistered {
            return self.unregister(hold);
        }
        self.unregistered = self.unregistered.saturating_sub(1);
        if self.unregistered == 0 {
            self.gate.busy.0.store(false, Ordering::Release);
            fence(Ordering::SeqCst);
            if self.shared.changing.0.load(Ordering::Relaxed) {
                self.tell();
            }
        }
    }

    /// A change may wait for the unregistered writes that have just ended.
    #[cold]
    fn tell(&mut self) {
        self.shared.lock().look(&mut self.ring);
        self.ring();
    }

    #[cold]
    fn unregister(&mut self, hold: Hold) {
        let mut state = self.shared.lock();
        state.remove(hold.0, &mut self.ring);
        self.shared.settle(&mut state);
        drop(state);
        self.ring();
    }

    /// Returns the next request that waited and holds now. Call it until it returns none, after
    /// reading the doorbell's eventfd: a grant after the look rings it again.
    // off the data path: only writes that had to wait come here.
    pub(crate) fn granted(&mut self) -> Option<(Slot, Hold)> {
        if self.granted.is_empty() && self.gate.rung.load(Ordering::Relaxed) {
            let mut state = self.shared.lock();
            self.gate.rung.store(false, Ordering::Relaxed);
            if let Some(member) =
                state.members.iter_mut().find(|member| member.number == self.channel)
            {
                mem::swap(&mut member.granted, &mut self.granted);
            }
        }
        self.granted.pop_front()
    }

    /// `slot` stops waiting, and has no need of its grant. A hold of its that is given back all the
    /// same does no harm.
    #[cold]
    pub(crate) fn forget(&mut self, slot: Slot) {
        self.granted.retain(|(granted, _)| *granted != slot);
        let mut state = self.shared.lock();
        if let Some(member) = state.members.iter_mut().find(|member| member.number == self.channel)
        {
            member.granted.retain(|(granted, _)| *granted != slot);
        }
        state.remove_all(self.channel, Some(slot), &mut self.ring);
        self.shared.settle(&mut state);
        drop(state);
        self.ring();
    }

    /// Wakes those that were granted something. Not under the mutex: it is a system call each.
    fn ring(&mut self) {
        self.ring.drain(..).for_each(|gate| wake(&gate.doorbell));
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.members.retain(|member| member.number != self.channel);
        self.gate.busy.0.store(false, Ordering::Relaxed);
        state.look(&mut self.ring);
        state.remove_all(self.channel, None, &mut self.ring);
        self.shared.settle(&mut state);
        drop(state);
        self.ring();
    }
}

impl Exclusion {
    /// After the last change, writes need not register.
    fn settle(&self, state: &mut State) {
        if state.changes.is_empty() && self.changing.0.load(Ordering::Relaxed) {
            state.busy.clear();
            self.changing.0.store(false, Ordering::Release);
        }
    }
}

impl Gate {
    /// True if unregistered writes may be under way. After a fence that comes after `changing` was
    /// set, false stays false.
    fn is_busy(&self) -> bool {
        self.busy.0.load(Ordering::Acquire)
    }
}

impl State {
    fn add(&mut self, held: fn(u64) -> Held, range: Range<u64>, channel: u64, slot: Slot) -> Held {
        self.tickets += 1;
        let held = held(self.tickets);
        let entry = Entry {
            ticket: self.tickets,
            range,
            channel,
            slot,
            followers: None,
            next: None,
            follows: None,
        };
        self.list(held).push_back(entry);
        held
    }

    fn list(&mut self, held: Held) -> &mut VecDeque<Entry> {
        if held.is_change() { &mut self.changes } else { &mut self.writes }
    }

    fn entry(&mut self, held: Held) -> Option<&mut Entry> {
        let list = self.list(held);
        let at = list.binary_search_by_key(&held.ticket(), |entry| entry.ticket).ok()?;
        list.get_mut(at)
    }

    /// Returns true if it holds now. If not, it follows an older one; or it is a change and waits
    /// for unregistered writes only.
    fn place(&mut self, held: Held) -> bool {
        let Some(entry) = self.entry(held) else { return false };
        entry.follows = None;
        let range = entry.range.clone();
        let before = |list: &VecDeque<Entry>| {
            let older = list.partition_point(|entry| entry.ticket < held.ticket());
            // The newest one: of many that want one block, each has to look no further than at the
            // one before it.
            list.range(..older)
                .rev()
                .find(|older| overlap(&older.range, &range))
                .map(|older| older.ticket)
        };
        let older = match before(&self.changes) {
            None if held.is_change() => before(&self.writes).map(Held::Write),
            change => change.map(Held::Change),
        };
        let Some(older) = older else { return !held.is_change() || self.busy.is_empty() };
        let Some(entry) = self.entry(older) else { return false };
        let last = entry.followers.map(|(_, last)| last);
        entry.followers = Some((entry.followers.map_or(held, |(first, _)| first), held));
        if let Some(last) = last.and_then(|last| self.entry(last)) {
            last.next = Some(held);
        }
        if let Some(entry) = self.entry(held) {
            entry.follows = Some(older);
        }
        false
    }

    /// Looks whether the unregistered writes that changes wait for have ended.
    fn look(&mut self, ring: &mut Vec<Arc<Gate>>) {
        if self.busy.is_empty() {
            return;
        }
        self.busy.retain(|gate| gate.is_busy());
        if !self.busy.is_empty() {
            return;
        }
        for at in 0..self.changes.len() {
            if self.changes[at].follows.is_none() {
                self.grant(Held::Change(self.changes[at].ticket), ring);
            }
        }
    }

    /// Takes an entry out, and grants the ones that waited for it alone. One that is not there is
    /// none's.
    fn remove(&mut self, held: Held, ring: &mut Vec<Arc<Gate>>) {
        let list = self.list(held);
        let found = list.binary_search_by_key(&held.ticket(), |entry| entry.ticket).ok();
        let Some(gone) = found.and_then(|at| list.remove(at)) else { return };
        let mut next = gone.followers.map(|(first, _)| first);
        while let Some(follower) = next {
            next = self.entry(follower).and_then(|entry| entry.next.take());
            if self.place(follower) {
                self.grant(follower, ring);
            }
        }
    }

    /// Takes out a channel's holds and waits, in one slot or in all.
    fn remove_all(&mut self, channel: u64, slot: Option<Slot>, ring: &mut Vec<Arc<Gate>>) {
        let is_one =
            |entry: &&Entry| entry.channel == channel && slot.is_none_or(|slot| entry.slot == slot);
        let of = |list: &VecDeque<Entry>, held: fn(u64) -> Held| -> Vec<Held> {
            list.iter().filter(is_one).map(|entry| held(entry.ticket)).collect()
        };
        for held in [of(&self.changes, Held::Change), of(&self.writes, Held::Write)].concat() {
            self.unlink(held);
            self.remove(held, ring);
        }
    }

    /// Takes an entry out of the followers among which it is.
    fn unlink(&mut self, held: Held) -> Option<()> {
        let entry = self.entry(held)?;
        let (older, next) = (entry.follows.take()?, entry.next.take());
        let (first, last) = self.entry(older)?.followers?;
        let followers = match first == held {
            true => next.map(|next| (next, last)),
            false => {
                let mut before = first;
                while self.entry(before)?.next? != held {
                    before = self.entry(before)?.next?;
                }
                self.entry(before)?.next = next;
                Some((first, if last == held { before } else { last }))
            }
        };
        self.entry(older)?.followers = followers;
        Some(())
    }

    fn grant(&mut self, held: Held, ring: &mut Vec<Arc<Gate>>) {
        let Some((number, slot)) = self.entry(held).map(|entry| (entry.channel, entry.slot)) else {
            return;
        };
        let Some(member) = self.members.iter_mut().find(|member| member.number == number) else {
            return;
        };
        member.granted.push_back((slot, Hold(held)));
        if !member.gate.rung.load(Ordering::Relaxed) {
            member.gate.rung.store(true, Ordering::Relaxed);
            ring.push(Arc::clone(&member.gate));
        }
    }
}

impl Held {
    fn ticket(self) -> u64 {
        match self {
            Held::Unregistered => 0,
            Held::Write(ticket) | Held::Change(ticket) => ticket,
        }
    }

    fn is_change(self) -> bool {
        matches!(self, Held::Change(_))
    }
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    #[cfg(test)]
    COMPARED.with(|compared| compared.set(compared.get() + 1));
    one.start < other.end && other.start < one.end
}

#[cfg(test)]
thread_local! {
    /// How often this thread has compared two ranges.
    pub(super) static COMPARED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
#[allow(dead_code, reason = "the models compile this file, too")]
impl Exclusion {
    /// True while writes pay for more than the look.
    pub(super) fn is_changing(&self) -> bool {
        self.changing.0.load(Ordering::SeqCst)
    }

    /// True if only unregistered writes hold blocks, and no request waits.
    pub(super) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.changes.is_empty()
            && state.writes.is_empty()
            && state.busy.is_empty()
            && !self.is_changing()
    }
}

#[cfg(test)]
#[allow(dead_code, reason = "the models compile this file, too")]
impl Holder {
    /// True if unregistered writes are under way.
    pub(super) fn is_busy(&self) -> bool {
        self.gate.is_busy()
    }
}

#[cfg(test)]
#[allow(dead_code, reason = "the models compile this file, too")]
impl Hold {
    pub(super) fn is_registered(&self) -> bool {
        self.0 != Held::Unregistered
    }
}
