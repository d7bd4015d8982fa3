//! Marks of a split virtqueue: `QueueRegionSplit` and its `DescStateSplit`, one for each
//! descriptor, named by a chain's head.
//!
//! The ring's used index is one store for all answers of a batch, so it decides: an answer that it
//! covers was given. The marks hold the index as it was when they were last in order, and a list of
//! the answers, the last one first. After a kill between the index and the end of its batch's
//! marks, the two indices differ. The first entries of the list, as many as the difference, are
//! those whose marks are void.

use super::{DESC_NUM, FEATURES, InflightPart, VERSION, VERSION_AT, after, in_order};
use crate::error::Lost;

const LAST_BATCH_HEAD: usize = 12;
const USED_IDX: usize = 14;
const HEADER: usize = 16;

/// Bytes of a mark, and its fields.
const MARK: usize = 16;
const IS_IN_FLIGHT: usize = 0;
const NEXT: usize = 6;
const COUNTER: usize = 8;

/// Bytes for a queue of `size` entries.
pub(super) fn bytes(size: u16) -> usize {
    HEADER + MARK * usize::from(size)
}

fn mark(head: u16) -> usize {
    HEADER + MARK * usize::from(head)
}

#[derive(Debug)]
pub(crate) struct SplitMarks {
    part: InflightPart,
    /// Of the next request.
    counter: u64,
    /// The answer that was given last.
    last: u16,
    /// Answered, and not shown to the driver.
    batch: Vec<u16>,
    /// The used index with which the marks are in order.
    used: u16,
}

impl SplitMarks {
    /// The marks for a queue of `size` entries whose ring has the used index `used`, and the
    /// requests in flight, in the order in which they were taken. None, if no device before has
    /// left marks.
    ///
    /// # Errors
    /// [`Lost`].
    pub(crate) fn new(
        part: InflightPart,
        size: u16,
        used: u16,
    ) -> Result<(SplitMarks, Option<Vec<u16>>), Lost> {
        if !part.holds(bytes(size)) {
            return Err(Lost::Room);
        }
        let mut marks = SplitMarks {
            part,
            counter: 0,
            last: 0,
            batch: Vec::with_capacity(usize::from(size)),
            used,
        };
        if !marks.part.left_by(size, mark(0) + IS_IN_FLIGHT, MARK)? || !marks.end_batch(size)? {
            marks.begin(size);
            return Ok((marks, None));
        }
        let found = marks.found(size);
        marks.counter = after(&found);
        Ok((marks, Some(in_order(found))))
    }

    /// A device is here for the first time.
    fn begin(&mut self, size: u16) {
        let part = &self.part;
        // Until it is written whole, the memory counts as unused.
        part.store16(VERSION_AT, 0);
        (0..size).for_each(|head| part.store8(mark(head) + IS_IN_FLIGHT, 0));
        part.store64(FEATURES, 0);
        part.store16(DESC_NUM, size);
        part.store16(LAST_BATCH_HEAD, 0);
        part.store16(USED_IDX, self.used);
        part.store16(VERSION_AT, VERSION);
    }

    /// Takes away the marks that a kill had left with the last batch. Says whether the marks are of
    /// this ring; if not, there are none.
    fn end_batch(&mut self, size: u16) -> Result<bool, Lost> {
        let part = &self.part;
        self.last = part.load16(LAST_BATCH_HEAD);
        let shown = self.used.wrapping_sub(part.load16(USED_IDX));
        if shown > size {
            // A ring that was begun anew. That is in order if the old one was ended in order.
            return if self.found(size).is_empty() { Ok(false) } else { Err(Lost::OtherRing) };
        }
        let mut head = self.last;
        for _ in 0..shown {
            if head >= size {
                return Err(Lost::Damaged);
            }
            part.store8(mark(head) + IS_IN_FLIGHT, 0);
            head = part.load16(mark(head) + NEXT);
        }
        part.store16(USED_IDX, self.used);
        if self.last >= size { Err(Lost::Damaged) } else { Ok(true) }
    }

    fn found(&self, size: u16) -> Vec<(u64, u16)> {
        let part = &self.part;
        let marked = (0..size).filter(|head| part.load8(mark(*head) + IS_IN_FLIGHT) != 0);
        marked.map(|head| (part.load64(mark(head) + COUNTER), head)).collect()
    }

    /// The chain at `head` was taken.
    #[inline]
    pub(crate) fn taken(&mut self, head: u16) {
        self.part.store64(mark(head) + COUNTER, self.counter);
        self.part.store8(mark(head) + IS_IN_FLIGHT, 1);
        self.counter = self.counter.wrapping_add(1);
    }

    /// The chain at `head`, the one that was taken last, goes back into the ring.
    pub(crate) fn put_back(&mut self, head: u16) {
        self.part.store8(mark(head) + IS_IN_FLIGHT, 0);
    }

    /// The chain at `head` has its answer in the used ring, which is not shown.
    #[inline]
    pub(crate) fn answered(&mut self, head: u16) {
        self.part.store16(mark(head) + NEXT, self.last);
        self.part.store16(LAST_BATCH_HEAD, head);
        self.last = head;
        self.batch.push(head);
    }

    /// The ring's used index covers all answers.
    #[inline]
    pub(crate) fn shown(&mut self) {
        for head in &self.batch {
            self.part.store8(mark(*head) + IS_IN_FLIGHT, 0);
            self.used = self.used.wrapping_add(1);
        }
        if !self.batch.is_empty() {
            self.part.store16(USED_IDX, self.used);
            self.batch.clear();
        }
    }
}
