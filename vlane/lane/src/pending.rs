//! The requests that lanes wait for, visible from outside. That holds even while a lane's thread
//! hangs in a system call of the storage and cannot answer.
//!
//! A lane writes down each request before the storage gets it, and strikes it out when it is
//! answered. That takes two stores into its own memory, and no clock. The age of a request is found
//! by a watcher that looks from time to time ([`PendingRequests::look`]). It may sleep while there
//! is none, and is woken by the next request.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Thread;

use vlane_error::locked;
use vlane_ring::{Request, RequestKind, Slot};

/// The kind of a request that waits for the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WaitingKind {
    /// IN.
    Read,
    /// OUT.
    Write,
    /// FLUSH.
    Flush,
    /// DISCARD.
    Discard,
    /// WRITE_ZEROES.
    WriteZeroes,
}

impl WaitingKind {
    const ALL: [WaitingKind; 5] =
        [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::WriteZeroes];

    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write-zeroes",
        }
    }
}

/// A request that the storage has and has not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Waiting {
    /// Its queue.
    pub queue: u16,
    /// Its place there: for telling requests apart.
    pub slot: u16,
    /// Counts the lane's requests, modulo 2^16: the next request of that place has another number.
    pub number: u16,
    /// Its kind.
    pub kind: WaitingKind,
    /// Its first sector, up to 2^44 - 1.
    pub sector: u64,
}

/// The place where all lanes of a volume write down the requests that they wait for.
#[derive(Debug, Default)]
pub struct PendingRequests {
    lanes: Mutex<Vec<Arc<Plate>>>,
    /// The watcher wants to be woken by the next request.
    asleep: AtomicBool,
    watcher: Mutex<Option<Thread>>,
}

/// One lane's requests, by slot; zero: none.
#[derive(Debug)]
struct Plate {
    queue: u16,
    entries: Box<[AtomicU64]>,
}

const SECTOR_BITS: u32 = 44;
const NUMBER_BITS: u32 = 16;

impl PendingRequests {
    /// All requests that the storage has now. Those that come or are answered meanwhile may be
    /// among them or not.
    pub fn look(&self) -> Vec<Waiting> {
        let lanes = locked(&self.lanes);
        let mut found = Vec::new();
        for plate in lanes.iter() {
            for (slot, entry) in (0..).zip(&plate.entries) {
                found.extend(unpack(plate.queue, slot, entry.load(Ordering::Relaxed)));
            }
        }
        found
    }

    /// From now on the next request wakes the calling thread ([`std::thread::park`]). A request
    /// that comes at this moment may not: look again a moment later, before sleeping for longer.
    pub fn wake_me(&self) {
        *locked(&self.watcher) = Some(std::thread::current());
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// Returns true if no thread has woken the watcher since [`PendingRequests::wake_me`].
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst)
    }

    /// Wakes the watcher, as a request does.
    #[cold]
    pub fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst)
            && let Some(thread) = &*locked(&self.watcher)
        {
            thread.unpark();
        }
    }
}

/// A lane's side.
#[derive(Debug)]
pub(crate) struct LanePending {
    watch: Arc<PendingRequests>,
    plate: Arc<Plate>,
    begun: u64,
}

impl LanePending {
    pub(crate) fn new(watch: Arc<PendingRequests>, queue: u16, slots: u16) -> LanePending {
        let entries = (0..slots).map(|_| AtomicU64::new(0)).collect();
        let plate = Arc::new(Plate { queue, entries });
        locked(&watch.lanes).push(Arc::clone(&plate));
        LanePending { watch, plate, begun: 0 }
    }

    /// The storage gets it next.
    #[inline]
    pub(crate) fn begun(&mut self, slot: Slot, request: &Request) {
        let kind = match request.kind() {
            RequestKind::In => 1,
            RequestKind::Out => 2,
            RequestKind::Flush => 3,
            RequestKind::Discard => 4,
            RequestKind::WriteZeroes => 5,
            RequestKind::GetId | RequestKind::Refused(_) | RequestKind::Unreachable => return,
        };
        let sector = request.ranges().first().map_or(request.sector(), |range| range.sector);
        let sector = sector.min((1 << SECTOR_BITS) - 1);
        self.begun = self.begun.wrapping_add(1);
        let number = self.begun & ((1 << NUMBER_BITS) - 1);
        if let Some(entry) = self.plate.entries.get(usize::from(slot.0)) {
            entry.store(
                kind << (SECTOR_BITS + NUMBER_BITS) | number << SECTOR_BITS | sector,
                Ordering::Relaxed,
            );
        }
        if self.watch.asleep.load(Ordering::Relaxed) {
            self.watch.wake();
        }
    }

    /// It is answered.
    #[inline]
    pub(crate) fn answered(&self, slot: Slot) {
        if let Some(entry) = self.plate.entries.get(usize::from(slot.0)) {
            entry.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for LanePending {
    fn drop(&mut self) {
        locked(&self.watch.lanes).retain(|plate| !Arc::ptr_eq(plate, &self.plate));
    }
}

fn unpack(queue: u16, slot: u16, entry: u64) -> Option<Waiting> {
    let kind = usize::try_from(entry >> (SECTOR_BITS + NUMBER_BITS)).ok()?.checked_sub(1)?;
    Some(Waiting {
        queue,
        slot,
        number: u16::try_from(entry >> SECTOR_BITS & ((1 << NUMBER_BITS) - 1)).unwrap_or(0),
        kind: *WaitingKind::ALL.get(kind)?,
        sector: entry & ((1 << SECTOR_BITS) - 1),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn entry_round_trips() {
        for (at, kind) in (1_u64..).zip(WaitingKind::ALL) {
            let entry = at << (SECTOR_BITS + NUMBER_BITS) | 65535 << SECTOR_BITS | 12345;
            let found = unpack(3, 9, entry).unwrap();
            assert_eq!(found, Waiting { queue: 3, slot: 9, number: 65535, kind, sector: 12345 });
        }
        assert_eq!(unpack(0, 0, 0), None);
        assert_eq!(unpack(0, 0, u64::MAX), None, "no such kind");
    }

    /// It sees only lanes that still exist.
    #[test]
    fn watcher_wakes_once_sees_live_lanes() {
        let watch = Arc::new(PendingRequests::default());
        let lane = LanePending::new(Arc::clone(&watch), 7, 4);
        assert!(watch.look().is_empty());
        lane.plate.entries[2].store(1 << (SECTOR_BITS + NUMBER_BITS) | 5, Ordering::Relaxed);
        let found = watch.look();
        assert_eq!((found.len(), found[0].queue, found[0].slot, found[0].sector), (1, 7, 2, 5));
        lane.answered(Slot(2));
        assert!(watch.look().is_empty());
        // Out of range: no entry, and no panic.
        lane.answered(Slot(4));
        let watching = Arc::clone(&watch);
        let looker = std::thread::spawn(move || {
            watching.wake_me();
            while watching.is_asleep() {
                std::thread::park();
            }
        });
        while !watch.is_asleep() {
            std::thread::yield_now();
        }
        watch.wake();
        looker.join().unwrap();
        lane.plate.entries[0].store(u64::MAX, Ordering::Relaxed);
        drop(lane);
        assert!(watch.look().is_empty());
    }
}
