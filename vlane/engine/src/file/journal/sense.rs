//! A channel's side: reports its writes to the journal thread.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rtrb::Producer;
use vlane_policy::journal::Map;
use vlane_policy::journal::content::{self, Head};
use vlane_ring::{Request, RequestKind, SECTOR};

use super::Desk;
use crate::PART;

/// Entries that wait for the thread at most, for each channel: 48 KiB of memory.
pub(super) const ENTRIES: usize = 1024;

/// An action of a channel.
#[derive(Debug, Clone, Copy)]
pub(super) enum Entry {
    /// The next write has a block that begins with a magic number.
    Head(Head),
    /// It writes to a range, after its heads.
    Write { offset: u64, len: u64, is_durable: bool },
    /// It discards or zeroes a range.
    Cleared { offset: u64, len: u64 },
    /// A flush has succeeded.
    Flushed,
}

/// Reports a channel's actions to the journal thread. Never waits: an entry without room is lost,
/// and counted.
#[derive(Debug)]
pub(in super::super) struct Sense {
    desk: Arc<Desk>,
    producer: Producer<Entry>,
    /// Bytes written since its last flush.
    bytes: u64,
    /// Where journals lie, after so many changes.
    map: (u64, Arc<Map>),
}

impl Sense {
    pub(super) fn new(desk: Arc<Desk>, producer: Producer<Entry>) -> Sense {
        Sense { desk, producer, bytes: 0, map: Default::default() }
    }

    /// True if a request begins in a journal, as far as is known.
    pub(in super::super) fn is_in_journal(&mut self, request: &Request) -> bool {
        let changes = self.desk.map_changes.load(Ordering::Acquire);
        if changes != self.map.0 {
            // Once for each change: the thread holds the lock for a comparison and a store.
            let map = vlane_error::locked(&self.desk.map);
            self.map = (changes, Arc::clone(&map));
        }
        request.sector().checked_mul(SECTOR).is_some_and(|offset| self.map.1.at(offset).is_some())
    }

    /// A write, a discard or a zeroing begins, inside the limit of any file.
    pub(in super::super) fn begins(&mut self, request: &Request, is_durable: bool) {
        match request.kind() {
            RequestKind::Out => {
                let Some(offset) = request.sector().checked_mul(SECTOR) else { return };
                heads(request, offset, |head| self.push(Entry::Head(head)));
                self.bytes = self.bytes.saturating_add(request.len());
                self.push(Entry::Write { offset, len: request.len(), is_durable });
                if is_durable {
                    self.is_due();
                }
            }
            RequestKind::Discard | RequestKind::WriteZeroes => {
                for range in request.ranges() {
                    let Some(offset) = range.sector.checked_mul(SECTOR) else { continue };
                    self.push(Entry::Cleared { offset, len: u64::from(range.sectors) * SECTOR });
                }
            }
            _ => {}
        }
    }

    /// A flush is going to be answered with success.
    pub(in super::super) fn flushed(&mut self) {
        self.push(Entry::Flushed);
        self.is_due();
    }

    /// Wakes the thread once enough was written, by all channels, to be worth a round.
    fn is_due(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let before = self.desk.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) >= super::DROP {
            self.desk.bytes.store(0, Ordering::Relaxed);
            self.desk.wake();
        }
    }

    fn push(&mut self, entry: Entry) {
        if self.producer.push(entry).is_err() {
            self.desk.lost.fetch_add(1, Ordering::Relaxed);
        } else if self.producer.slots() == ENTRIES / 2 {
            // In time, also for a guest that does not flush.
            self.desk.wake();
        }
    }
}

/// Gives each block of a write that begins with a magic number to `each`; of a very large one,
/// those of its first part.
fn heads(request: &Request, offset: u64, each: impl FnMut(Head)) {
    let mut words = request.words();
    let head = |at| {
        let mut bytes = [0; Head::LEN];
        request.copy_from(at, &mut bytes);
        bytes
    };
    content::scan(offset, request.len().min(PART), |at| words.at(at), head, each);
}
