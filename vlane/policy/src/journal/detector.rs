//! All three ways together.

use std::ops::Range;
use std::sync::Arc;

use super::content::Content;
use super::layout::JournalLayout;
use super::pattern::Pattern;
use super::{Head, Journal, Map};

/// Finds a volume's journals from the writes to it. One per volume; writes and flushes are reported
/// in the order in which they are begun, as far as that is known.
///
/// The way that is trusted more has the last word on a place: a journal by layout or content is no
/// log by its pattern. A layout that was written over is believed until it is read again. A verdict
/// by content or pattern ends where something else is written into it, or where it is discarded.
///
/// The time of each call depends neither on earlier writes nor on the volume's size: [`Content`]
/// and [`Pattern`] state their time and memory.
#[derive(Debug, Default)]
pub struct Detector {
    layout: JournalLayout,
    needs_layout: bool,
    content: Content,
    pattern: Pattern,
    journals: Vec<Journal>,
    map: Arc<Map>,
}

impl Detector {
    /// For a volume of `size` bytes, without any knowledge of it.
    pub fn new(size: u64) -> Detector {
        let (content, pattern) = (Content::new(size), Pattern::new(size));
        Detector { needs_layout: true, content, pattern, ..Detector::default() }
    }

    /// The volume has another size.
    pub fn resized(&mut self, size: u64) {
        self.content.resized(size);
        self.pattern.resized(size);
        self.needs_layout = true;
    }

    /// Writes were missed: one of them may have been to the layout.
    pub fn missed(&mut self) {
        self.needs_layout = true;
    }

    /// True if the layout is to be read (again): at first, and since the guest wrote over a part of
    /// it.
    pub fn needs_layout(&self) -> bool {
        self.needs_layout
    }

    /// The layout was read, after all writes that the detector has seen.
    pub fn set_layout(&mut self, layout: JournalLayout) {
        self.needs_layout = false;
        if self.layout.journals != layout.journals {
            self.layout = layout;
            self.put_together();
        } else {
            self.layout = layout;
        }
    }

    /// The guest writes to a range; `heads` are those blocks of it that begin with a magic number,
    /// in order.
    pub fn write(&mut self, range: Range<u64>, heads: &[Head]) {
        self.look_at_layout(&range);
        self.content.write(&range, heads);
        self.pattern.write(&range);
        self.look_for_change();
    }

    /// The guest has all answered writes made durable.
    pub fn flush(&mut self) {
        self.pattern.flush();
    }

    /// The guest discards a range, or has it zeroed.
    pub fn cleared(&mut self, range: Range<u64>) {
        self.look_at_layout(&range);
        self.content.cleared(&range);
        self.pattern.cleared(&range);
        self.look_for_change();
    }

    /// Returns the present map. The same [`Arc`] until a change.
    pub fn map(&self) -> &Arc<Map> {
        &self.map
    }

    /// The journals that are known now.
    pub fn journals(&self) -> &[Journal] {
        &self.journals
    }

    fn look_at_layout(&mut self, range: &Range<u64>) {
        let watched = &self.layout.watched;
        let first = watched.partition_point(|watched| watched.end <= range.start);
        self.needs_layout |= watched.get(first).is_some_and(|watched| watched.start < range.end);
    }

    #[inline]
    fn look_for_change(&mut self) {
        // Both are asked: each forgets that it was.
        if self.content.take_change() | self.pattern.take_change() {
            self.put_together();
        }
    }

    #[cold]
    fn put_together(&mut self) {
        let mut journals = self.layout.journals.clone();
        for journal in self.content.journals().into_iter().chain(self.pattern.journals()) {
            let known = Map::new(&journals);
            let is_known = |range: &Range<u64>| -> u64 {
                let parts = known.overlapping(range.clone());
                parts
                    .map(|piece| {
                        piece.range.end.min(range.end) - piece.range.start.max(range.start)
                    })
                    .sum()
            };
            // One that is mostly known already is the same one, found less exactly.
            if journal.ranges.iter().map(is_known).sum::<u64>() <= journal.len() / 2 {
                journals.push(journal);
            }
        }
        let map = Map::new(&journals);
        self.journals = journals;
        if map != *self.map {
            self.map = Arc::new(map);
        }
    }
}

#[cfg(test)]
mod tests;
