//! Marks of a packed virtqueue: `QueueRegionPacked` and its `DescStatePacked`, a copy of each
//! descriptor in flight.
//!
//! The device writes its answers over the descriptors, so requests in flight have to be copied:
//! into entries from a free list, linked. The first entry of a chain carries its mark.
//!
//! An answer is shown by one store into the ring, the flags of a used descriptor. Around it, free
//! list and used position are written twice: the new ones before it, the old ones (`old_...`) after
//! it. A successor that finds the two different looks at that descriptor: if the flags say that it
//! is still the driver's gift, the answer was not given, and the old ones count; otherwise the new
//! ones. The mark of an answered request goes last; until then it is known by its entry, which is
//! in the free list.
//!
//! Answers are shown one by one here. In a batch, the later ones are written before the first one
//! is shown; after a kill in between they would lie in the ring, where the successor's first answer
//! would show them, too: requests answered twice.

use super::{DESC_NUM, FEATURES, InflightPart, VERSION, VERSION_AT, after, in_order};
use crate::chain::Descriptor;
use crate::error::Lost;
use crate::packed::{PackedQueue, Position};

const FREE_HEAD: usize = 12;
const OLD_FREE_HEAD: usize = 14;
const USED_IDX: usize = 16;
const OLD_USED_IDX: usize = 18;
const USED_WRAP: usize = 20;
const OLD_USED_WRAP: usize = 21;
const HEADER: usize = 32;

/// Bytes of an entry, and its fields.
const ENTRY: usize = 32;
const IS_IN_FLIGHT: usize = 0;
const NEXT: usize = 2;
const LAST: usize = 4;
const NUM: usize = 6;
const COUNTER: usize = 8;
const ID: usize = 16;
const FLAGS: usize = 18;
const LEN: usize = 20;
const ADDR: usize = 24;

/// Bytes for a queue of `size` entries.
pub(super) fn bytes(size: u16) -> usize {
    HEADER + ENTRY * usize::from(size)
}

fn entry(index: u16) -> usize {
    HEADER + ENTRY * usize::from(index)
}

/// A chain in flight: its first and last entry, and how many it has.
#[derive(Debug, Clone, Copy, Default)]
struct Chain {
    head: u16,
    last: u16,
    num: u16,
}

/// An answer that is not in the ring.
#[derive(Debug, Clone, Copy)]
struct Answer {
    chain: Chain,
    id: u16,
    len: u32,
}

#[derive(Debug)]
pub(crate) struct PackedMarks {
    part: InflightPart,
    size: u16,
    /// Of the next request.
    counter: u64,
    free_head: u16,
    /// By entry: the next one of its chain or of the free list; `size` after the last.
    next: Box<[u16]>,
    /// By slot.
    chains: Box<[Chain]>,
    /// By entry: of the requests that a device before left.
    left: Box<[Chain]>,
    batch: Vec<Answer>,
}

impl PackedMarks {
    /// The marks for `ring`, and the requests that are in flight, in the order in which they were
    /// taken. If a device before has left marks, the ring is put where it stands; otherwise there
    /// are no requests, and the result is none.
    ///
    /// # Errors
    /// [`Lost`].
    pub(crate) fn new(
        part: InflightPart,
        ring: &mut PackedQueue,
    ) -> Result<(PackedMarks, Option<Vec<u16>>), Lost> {
        let size = ring.size();
        if !part.holds(bytes(size)) {
            return Err(Lost::Room);
        }
        let per_entry = |chain: Chain| vec![chain; usize::from(size)].into_boxed_slice();
        let mut marks = PackedMarks {
            part,
            size,
            counter: 0,
            free_head: 0,
            next: (1..=size).collect(),
            chains: per_entry(Chain::default()),
            left: per_entry(Chain::default()),
            batch: Vec::with_capacity(usize::from(size)),
        };
        if !marks.part.left_by(size, entry(0) + IS_IN_FLIGHT, ENTRY)? {
            marks.begin(ring.used());
            return Ok((marks, None));
        }
        let used = marks.end_answer(ring)?;
        let found = marks.found();
        if found.is_empty() && !ring.can_be_at(used) {
            // The ring was begun anew, after it was ended in order.
            marks.begin(ring.used());
            return Ok((marks, None));
        }
        let taken = marks.adopt(&found)?;
        marks.settle(used);
        ring.goes_on(used, taken);
        marks.counter = after(&found);
        Ok((marks, Some(in_order(found))))
    }

    /// A device is here for the first time.
    fn begin(&mut self, used: Position) {
        // Until it is written whole, the memory counts as unused.
        self.part.store16(VERSION_AT, 0);
        (0..self.size).for_each(|index| self.part.store8(entry(index) + IS_IN_FLIGHT, 0));
        self.part.store64(FEATURES, 0);
        self.part.store16(DESC_NUM, self.size);
        self.settle(used);
        self.part.store16(VERSION_AT, VERSION);
    }

    /// Writes the free list, and the position, twice. The position first: with equal free lists it
    /// counts.
    fn settle(&mut self, used: Position) {
        self.store_used(USED_IDX, USED_WRAP, used);
        for index in self.free_list() {
            self.part.store16(entry(index) + NEXT, self.next[usize::from(index)]);
        }
        self.part.store16(FREE_HEAD, self.free_head);
        self.part.store16(OLD_FREE_HEAD, self.free_head);
        self.store_used(OLD_USED_IDX, OLD_USED_WRAP, used);
    }

    #[inline]
    fn store_used(&self, index: usize, wrap: usize, used: Position) {
        self.part.store16(index, used.index);
        self.part.store8(wrap, used.wrap.into());
    }

    fn free_list(&self) -> Vec<u16> {
        let step =
            |index: &u16| Some(self.next[usize::from(*index)]).filter(|next| *next < self.size);
        std::iter::successors(Some(self.free_head).filter(|head| *head < self.size), step).collect()
    }

    /// Decides about an answer at which the device before was killed, and takes away the marks of
    /// requests that are not in flight. Returns the used position.
    fn end_answer(&mut self, ring: &PackedQueue) -> Result<Position, Lost> {
        let part = &self.part;
        let position = |index, wrap| {
            let (index, wrap) = (part.load16(index), part.load8(wrap) != 0);
            if index < self.size { Ok(Position { index, wrap }) } else { Err(Lost::Damaged) }
        };
        let (new, old) = (position(USED_IDX, USED_WRAP)?, position(OLD_USED_IDX, OLD_USED_WRAP)?);
        let (new_free, old_free) = (part.load16(FREE_HEAD), part.load16(OLD_FREE_HEAD));
        // With the old free list written, the answer was given. Its position may be half written.
        let is_given = new_free == old_free || (new != old && !ring.is_given_at(old));
        let (free, used) = if is_given { (new_free, new) } else { (old_free, old) };
        // Entries in the free list are not in flight. Each entry is met once, or the list is a
        // circle.
        let (mut index, mut steps) = (free, 0);
        while index < self.size && steps < self.size {
            part.store8(entry(index) + IS_IN_FLIGHT, 0);
            index = part.load16(entry(index) + NEXT);
            steps += 1;
        }
        Ok(used)
    }

    fn found(&self) -> Vec<(u64, u16)> {
        let part = &self.part;
        let marked = (0..self.size).filter(|index| part.load8(entry(*index) + IS_IN_FLIGHT) != 0);
        marked.map(|index| (part.load64(entry(index) + COUNTER), index)).collect()
    }

    /// Learns the chains that are in flight, and makes the free list of all other entries. Returns
    /// how many descriptors they have.
    fn adopt(&mut self, found: &[(u64, u16)]) -> Result<u16, Lost> {
        let mut is_free = vec![true; usize::from(self.size)];
        let mut taken = 0;
        for (_, head) in found {
            let num = self.part.load16(entry(*head) + NUM);
            let mut last = *head;
            for count in 0..num {
                if count > 0 {
                    let next = self.part.load16(entry(last) + NEXT);
                    if next >= self.size {
                        return Err(Lost::Damaged);
                    }
                    self.next[usize::from(last)] = next;
                    last = next;
                }
                if !std::mem::take(&mut is_free[usize::from(last)]) {
                    return Err(Lost::Damaged);
                }
            }
            if num == 0 {
                return Err(Lost::Damaged);
            }
            self.left[usize::from(*head)] = Chain { head: *head, last, num };
            taken += num;
        }
        self.free_head = self.size;
        for index in (0..self.size).rev().filter(|index| is_free[usize::from(*index)]) {
            self.next[usize::from(index)] = self.free_head;
            self.free_head = index;
        }
        Ok(taken)
    }

    /// The descriptors of the chain that a device before left at `head`.
    pub(crate) fn left(&self, head: u16) -> impl Iterator<Item = Descriptor> {
        let Chain { head, num, .. } = self.left[usize::from(head)];
        let entries =
            std::iter::successors(Some(head), |index| Some(self.next[usize::from(*index)]));
        entries.take(usize::from(num)).map(|index| Descriptor {
            addr: self.part.load64(entry(index) + ADDR),
            len: self.part.load32(entry(index) + LEN),
            low: self.part.load16(entry(index) + ID),
            high: self.part.load16(entry(index) + FLAGS),
        })
    }

    /// The chain that a device before left at `head` is taken, into `slot`.
    pub(crate) fn retaken(&mut self, slot: u16, head: u16) {
        self.chains[usize::from(slot)] = self.left[usize::from(head)];
    }

    /// A chain was taken into `slot`: these descriptors, of which there are entries free.
    #[inline]
    pub(crate) fn taken(&mut self, slot: u16, descriptors: impl Iterator<Item = Descriptor>) {
        let (head, mut last, mut num) = (self.free_head, self.free_head, 0);
        let mut free = self.free_head;
        for descriptor in descriptors {
            if free >= self.size {
                debug_assert!(false, "more descriptors in flight than the ring has");
                break;
            }
            self.part.store64(entry(free) + ADDR, descriptor.addr);
            self.part.store32(entry(free) + LEN, descriptor.len);
            self.part.store16(entry(free) + ID, descriptor.low);
            self.part.store16(entry(free) + FLAGS, descriptor.high);
            (last, num) = (free, num + 1);
            free = self.next[usize::from(free)];
        }
        self.part.store16(entry(head) + LAST, last);
        self.part.store16(entry(head) + NUM, num);
        self.part.store64(entry(head) + COUNTER, self.counter);
        self.part.store8(entry(head) + IS_IN_FLIGHT, 1);
        // Until here it is in the free list, and its mark is void.
        self.free_head = free;
        self.part.store16(FREE_HEAD, free);
        self.part.store16(OLD_FREE_HEAD, free);
        self.counter = self.counter.wrapping_add(1);
        self.chains[usize::from(slot)] = Chain { head, last, num };
    }

    /// The chain in `slot`, the one that was taken last, goes back into the ring.
    pub(crate) fn put_back(&mut self, slot: u16) {
        let chain = self.chains[usize::from(slot)];
        self.part.store8(entry(chain.head) + IS_IN_FLIGHT, 0);
        self.free(chain);
        self.part.store16(OLD_FREE_HEAD, self.free_head);
    }

    /// Puts a chain's entries into the free list, the new one.
    #[inline]
    fn free(&mut self, chain: Chain) {
        self.next[usize::from(chain.last)] = self.free_head;
        self.part.store16(entry(chain.last) + NEXT, self.free_head);
        self.free_head = chain.head;
        self.part.store16(FREE_HEAD, chain.head);
    }

    /// The chain in `slot` has an answer: `len` bytes for buffer `id`.
    #[inline]
    pub(crate) fn answered(&mut self, slot: u16, id: u16, len: u32) {
        self.batch.push(Answer { chain: self.chains[usize::from(slot)], id, len });
    }

    /// Writes all answers into the ring, and shows them. Returns whether the driver wants to be
    /// signalled.
    #[inline]
    pub(crate) fn show(&mut self, ring: &mut PackedQueue) -> bool {
        if self.batch.is_empty() {
            return false;
        }
        let mut batch = std::mem::take(&mut self.batch);
        for Answer { chain, id, len } in batch.drain(..) {
            self.free(chain);
            ring.put_used(id, len, chain.num);
            let used = ring.used();
            self.store_used(USED_IDX, USED_WRAP, used);
            ring.show();
            self.part.store8(entry(chain.head) + IS_IN_FLIGHT, 0);
            self.part.store16(OLD_FREE_HEAD, self.free_head);
            self.store_used(OLD_USED_IDX, OLD_USED_WRAP, used);
        }
        self.batch = batch;
        ring.wants_signal()
    }
}
