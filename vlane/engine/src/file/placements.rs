//! Which requests go around the page cache: those that lie in a direct region. And how the regions
//! change while requests are under way.
//!
//! A page that is written through the page cache and around it at the same time loses data: the
//! cache writes its old content of the page back. So at any time a byte of the volume has one
//! placement, for all lanes, reads and writes alike. Each channel has the map of the regions, which
//! is immutable, and looks at one number per request to learn if there is a new one.
//!
//! # A change
//! Done by one thread, one change at a time:
//!
//! 1. It says which ranges are going to change ([`Placements::hold`]) and rings all channels.
//! 2. Each channel adopts that at its next request, or when it polls. From then on it begins no
//!    request that touches the ranges: such requests are *held*. It reports that it has *drained*
//!    once none of its earlier requests touches them any more.
//! 3. When all channels have ([`Placements::is_drained`]), no request uses the ranges, nor will one
//!    until the thread releases them. It empties the cache there, or fails to.
//! 4. It publishes the map that is in force now ([`Placements::release`]): the new one, or the old
//!    one again. Each channel adopts that, and begins its held requests.
//!
//! A channel that is made meanwhile begins with the last published state; a channel that is dropped
//! has no request under way any more.
//!
//! # Why a request keeps its placement
//! A request is begun outside of the ranges that change, or before its channel has drained. So the
//! map's placement of the request's bytes stays the same from its begin to its end: a channel may
//! ask again for each part.
//!
//! All that is said goes through the mutex, once per channel and step of a change. The number is no
//! more than a hint to look. The changer waits for a channel that sees it late, and rings it, so
//! that it does not sleep meanwhile. Every interleaving is tried by the models (checks/models).

use std::ops::Range;
use std::sync::PoisonError;

use vlane_policy::journal::Regions;
use vlane_ring::Slot;

use crate::sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering, Waker, wake};

/// State that the channels of one volume share. See the [module](self).
#[derive(Debug)]
pub(crate) struct Placements {
    /// [`State::generation`]. Written under the mutex.
    generation: Generation,
    state: Mutex<State>,
    /// The thread that changes the regions; it is woken when a channel has drained.
    changer: Arc<Waker>,
}

/// Alone on its cache line (and on the one that is fetched with it): looked at for each request.
#[derive(Debug)]
#[repr(align(128))]
struct Generation(AtomicU64);

#[derive(Debug)]
struct State {
    /// Counts changes of the fields below.
    generation: u64,
    regions: Arc<Regions>,
    /// The ranges where no request may begin.
    changing: Arc<Regions>,
    members: Vec<Member>,
    numbers: u64,
}

#[derive(Debug)]
struct Member {
    number: u64,
    doorbell: Arc<Waker>,
    /// The generation in whose changing ranges none of its requests is under way.
    drained: u64,
}

/// A channel's view. Dropped, it has no request under way any more.
#[derive(Debug)]
pub(crate) struct Placer {
    shared: Arc<Placements>,
    number: u64,
    generation: u64,
    regions: Arc<Regions>,
    changing: Arc<Regions>,
    flights: Box<[Flight]>,
    /// The requests under way that touch changing ranges.
    awaited: usize,
    held: Vec<Slot>,
    /// Those that were held and need not be.
    freed: Vec<Slot>,
}

/// The extent that a slot's request touches.
#[derive(Debug, Clone, Default)]
struct Flight {
    /// From the first byte to the last one; empty: no request is under way.
    range: Range<u64>,
    is_awaited: bool,
    is_held: bool,
    /// Where its present part is.
    is_direct: bool,
}

/// The result of beginning a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begun {
    /// It goes through the page cache.
    Cached,
    /// It goes around it.
    Direct,
    /// It crosses a border: [`Placer::part`].
    Mixed,
    /// It waits: [`Placer::freed`] names it, and it begins again.
    Held,
}

impl Placements {
    /// For a volume without regions. `changer` is rung when it is worth a look at
    /// [`Placements::is_drained`].
    pub(crate) fn new(changer: Arc<Waker>) -> Arc<Placements> {
        let none = Arc::new(Regions::default());
        let state = State {
            generation: 0,
            regions: Arc::clone(&none),
            changing: none,
            members: Vec::new(),
            numbers: 0,
        };
        Arc::new(Placements {
            generation: Generation(AtomicU64::new(0)),
            state: Mutex::new(state),
            changer,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // This code never panics while it holds the mutex.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The map in force.
    pub(crate) fn regions(&self) -> Arc<Regions> {
        Arc::clone(&self.lock().regions)
    }

    /// From now on no request begins that touches `changing`, until [`Placements::release`].
    pub(crate) fn hold(&self, changing: Regions) {
        self.say(|state| state.changing = Arc::new(changing));
    }

    /// True if no request is under way in the range of [`Placements::hold`].
    pub(crate) fn is_drained(&self) -> bool {
        let state = self.lock();
        state.members.iter().all(|member| member.drained == state.generation)
    }

    /// This is the map in force, and no request is held any more. It may differ from the one before
    /// only in ranges that were held and have drained.
    pub(crate) fn release(&self, regions: Arc<Regions>) {
        self.say(|state| {
            state.regions = regions;
            state.changing = Arc::new(Regions::default());
        });
    }

    fn say(&self, what: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        what(&mut state);
        state.generation += 1;
        self.generation.0.store(state.generation, Ordering::Release);
        let doorbells: Vec<_> =
            state.members.iter().map(|member| Arc::clone(&member.doorbell)).collect();
        drop(state);
        // Not under the mutex: it is a system call each.
        doorbells.iter().for_each(|doorbell| wake(doorbell));
    }
}

impl Placer {
    /// A channel's, for requests in so many slots. `doorbell` is rung when [`Placer::freed`] may
    /// have something; others may ring it, too.
    pub(crate) fn new(shared: &Arc<Placements>, slots: u16, doorbell: Arc<Waker>) -> Placer {
        let mut state = shared.lock();
        let (number, generation) = (state.numbers, state.generation);
        state.numbers += 1;
        state.members.push(Member { number, doorbell, drained: generation });
        let (regions, changing) = (Arc::clone(&state.regions), Arc::clone(&state.changing));
        drop(state);
        Placer {
            shared: Arc::clone(shared),
            number,
            generation,
            regions,
            changing,
            flights: vec![Flight::default(); usize::from(slots)].into_boxed_slice(),
            awaited: 0,
            held: Vec::new(),
            freed: Vec::new(),
        }
    }

    /// Begins a request that stays inside of `range`.
    pub(crate) fn begin(&mut self, slot: Slot, range: Range<u64>) -> Begun {
        self.look();
        let is_held = self.changing.touches(&range);
        let (is_direct, border) = self.regions.at(range.start);
        let is_mixed = border < range.end;
        self.flights[usize::from(slot.0)] = Flight { range, is_awaited: false, is_held, is_direct };
        if is_held {
            self.held.push(slot);
        }
        match (is_held, is_mixed, is_direct) {
            (true, ..) => Begun::Held,
            (_, true, _) => Begun::Mixed,
            (_, _, true) => Begun::Direct,
            (_, _, false) => Begun::Cached,
        }
    }

    /// The way of a request at a byte of its range: true if around the page cache, and the place of
    /// the next border.
    pub(crate) fn part(&mut self, slot: Slot, at: u64) -> (bool, u64) {
        let (is_direct, border) = self.regions.at(at);
        self.flights[usize::from(slot.0)].is_direct = is_direct;
        (is_direct, border)
    }

    /// True if the present part of a request goes around the page cache.
    pub(crate) fn is_direct(&self, slot: Slot) -> bool {
        self.flights[usize::from(slot.0)].is_direct
    }

    /// True if a request is held, or was and has not begun again.
    pub(crate) fn is_held(&self, slot: Slot) -> bool {
        self.flights[usize::from(slot.0)].is_held
    }

    /// A request is answered, or put back: it has no operation under way, and does not wait.
    pub(crate) fn end(&mut self, slot: Slot) {
        let flight = std::mem::take(&mut self.flights[usize::from(slot.0)]);
        if flight.is_held {
            self.held.retain(|held| *held != slot);
            self.freed.retain(|freed| *freed != slot);
        }
        if flight.is_awaited {
            self.awaited -= 1;
            if self.awaited == 0 {
                self.drained();
            }
        }
    }

    /// A request that need not be held any more, and is to begin again. Call it until it returns
    /// none, after reading the doorbell's eventfd: a release after the look rings it again.
    pub(crate) fn freed(&mut self) -> Option<Slot> {
        self.look();
        self.freed.pop()
    }

    /// True if [`Placer::freed`] has a request, as far as is known.
    pub(crate) fn is_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Adopts the published state, if it changed since the last look.
    #[inline]
    fn look(&mut self) {
        // Relaxed: what it stands for is read under the mutex.
        if self.shared.generation.0.load(Ordering::Relaxed) != self.generation {
            self.adopt();
        }
    }

    #[cold]
    fn adopt(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        self.generation = state.generation;
        self.regions = Arc::clone(&state.regions);
        self.changing = Arc::clone(&state.changing);
        self.awaited = 0;
        for flight in &mut self.flights {
            flight.is_awaited = !flight.is_held && self.changing.touches(&flight.range);
            self.awaited += usize::from(flight.is_awaited);
        }
        let (flights, changing) = (&self.flights, &self.changing);
        let freed =
            self.held.extract_if(.., |slot| !changing.touches(&flights[usize::from(slot.0)].range));
        self.freed.extend(freed);
        if self.awaited == 0 {
            state.drained(self.number);
            drop(state);
            wake(&shared.changer);
        }
    }

    /// Notes that no request is under way any more that the changer waits for.
    #[cold]
    fn drained(&mut self) {
        let mut state = self.shared.lock();
        // Otherwise something else was said, which is looked at next time.
        if state.generation == self.generation {
            state.drained(self.number);
        }
        drop(state);
        wake(&self.shared.changer);
    }
}

impl Drop for Placer {
    fn drop(&mut self) {
        let number = self.number;
        self.shared.lock().members.retain(|member| member.number != number);
        wake(&self.shared.changer);
    }
}

impl State {
    fn drained(&mut self, number: u64) {
        let generation = self.generation;
        if let Some(member) = self.members.iter_mut().find(|member| member.number == number) {
            member.drained = generation;
        }
    }
}
