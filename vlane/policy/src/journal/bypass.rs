//! Actions on a volume's journals: a [`Detector`], the written ranges, and the ranges to drop from
//! the page cache.

use std::ops::Range;
use std::sync::Arc;

use super::footprint::Footprint;
use super::layout::JournalLayout;
use super::trailing::{Drop, Trailing};
use super::{Detector, Evidence, Head, Journal, LogKind, Map};

/// Bytes for each [`Evidence`] in which a journal can be found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct ByWay {
    /// [`Evidence::Layout`].
    pub layout: u64,
    /// [`Evidence::Content`].
    pub content: u64,
    /// [`Evidence::Pattern`].
    pub pattern: u64,
}

impl ByWay {
    /// Those of one way.
    pub fn of(&mut self, way: Evidence) -> &mut u64 {
        match way {
            Evidence::Layout => &mut self.layout,
            Evidence::Content => &mut self.content,
            Evidence::Pattern => &mut self.pattern,
        }
    }

    /// Of all ways.
    pub fn sum(&self) -> u64 {
        self.layout + self.content + self.pattern
    }
}

/// A guest's written bytes, as far as the detector heard of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Traffic {
    /// Bytes written.
    pub written: u64,
    /// Those of them that were written to a known journal.
    pub journal_written: ByWay,
    /// The same of a cyclic log that is no file system's journal.
    pub log_written: u64,
    /// Flushes.
    pub flushes: u64,
    /// Those of them before which, and after the flush before, a journal was written to.
    pub journal_flushes: u64,
    /// Bytes of the distinct blocks that were written.
    pub footprint: u64,
    /// The same of journals.
    pub journal_footprint: u64,
    /// Bytes of a block of both: 4096 up to 1 TiB.
    pub footprint_block: u64,
}

/// A volume's journals, the writes to them, and the parts to drop from the page cache. See
/// [`Detector`] for the order of the calls.
#[derive(Debug)]
pub struct Bypass {
    detector: Detector,
    trailing: Trailing,
    traffic: Traffic,
    all: Footprint,
    journal: Footprint,
    /// The journal was written to since the last flush.
    is_dirty: bool,
    /// The journals whose cached pages were looked at as a whole.
    swept: Arc<Map>,
    /// The journals in the last [`Change`].
    told: Vec<Journal>,
    known: Arc<Map>,
}

/// The changes of the known journals.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Change {
    /// Those that are known now and were not.
    pub found: Vec<Journal>,
    /// Those that were known and are not any more.
    pub lost: Vec<Journal>,
}

impl Bypass {
    /// For a volume of `size` bytes, on a system with pages of `page` bytes.
    pub fn new(size: u64, page: u64) -> Bypass {
        let detector = Detector::new(size);
        let known = Arc::clone(detector.map());
        Bypass {
            detector,
            trailing: Trailing::new(page),
            traffic: Traffic::default(),
            all: Footprint::new(size),
            journal: Footprint::new(size),
            is_dirty: false,
            swept: Arc::clone(&known),
            told: Vec::new(),
            known,
        }
    }

    /// The volume has another size.
    pub fn resized(&mut self, size: u64) {
        self.detector.resized(size);
    }

    /// As [`Detector::needs_layout`].
    pub fn needs_layout(&self) -> bool {
        self.detector.needs_layout()
    }

    /// As [`Detector::set_layout`].
    pub fn set_layout(&mut self, layout: JournalLayout) {
        self.detector.set_layout(layout);
        self.sweep();
    }

    /// An unknown set of writes was missed.
    pub fn missed(&mut self) {
        self.detector.missed();
        self.swept = Arc::default();
        self.sweep();
    }

    /// Newly known parts of journals may have been written to before, and be in the cache: they are
    /// to go after the next flush. Not before: a page whose writing has failed counts as clean,
    /// too.
    fn sweep(&mut self) {
        if Arc::ptr_eq(&self.swept, self.detector.map()) {
            return;
        }
        let before = std::mem::replace(&mut self.swept, Arc::clone(self.detector.map()));
        for piece in
            self.swept.pieces().iter().filter(|piece| piece.verdict.kind == LogKind::Journal)
        {
            let mut begin = piece.range.start;
            let known = before.overlapping(piece.range.clone());
            for known in known.filter(|known| known.verdict.kind == LogKind::Journal) {
                self.trailing.may_have_written(&(begin..known.range.start.max(begin)));
                begin = known.range.end;
            }
            self.trailing.may_have_written(&(begin..piece.range.end.max(begin)));
        }
    }

    /// As [`Detector::write`]. `is_durable`: the write is durable when it is answered, without a
    /// flush.
    pub fn write(&mut self, range: Range<u64>, heads: &[Head], is_durable: bool) {
        self.detector.write(range.clone(), heads);
        self.sweep();
        self.traffic.written =
            self.traffic.written.saturating_add(range.end.saturating_sub(range.start));
        self.all.add(range.clone());
        // With the verdict that this write may have brought about.
        for piece in self.detector.map().overlapping(range.clone()) {
            let part = piece.range.start.max(range.start)..piece.range.end.min(range.end);
            let len = part.end - part.start;
            match piece.verdict.kind {
                LogKind::Journal => {
                    *self.traffic.journal_written.of(piece.verdict.way) += len;
                    self.journal.add(part.clone());
                    self.trailing.wrote(part, is_durable);
                    self.is_dirty = true;
                }
                LogKind::Log => self.traffic.log_written += len,
            }
        }
    }

    /// As [`Detector::cleared`].
    pub fn cleared(&mut self, range: Range<u64>) {
        self.detector.cleared(range);
        self.sweep();
    }

    /// A flush has succeeded.
    pub fn flushed(&mut self) {
        self.detector.flush();
        self.traffic.flushes += 1;
        self.traffic.journal_flushes += u64::from(std::mem::take(&mut self.is_dirty));
        self.trailing.flushed();
    }

    /// All that was written is durable; no flush of the guest's.
    pub fn synced(&mut self) {
        self.trailing.flushed();
        self.trailing.rests();
    }

    /// Journal bytes that are durable and were not dropped.
    pub fn due(&self) -> u64 {
        self.trailing.due()
    }

    /// Returns the ranges to drop now.
    pub fn take(&mut self) -> Vec<Drop> {
        self.trailing.take(self.detector.map())
    }

    /// A part of this range was not dropped.
    pub fn keep(&mut self, range: &Range<u64>) {
        self.trailing.keep(range);
    }

    /// Bytes of the largest folio that there can be.
    pub fn folio(&self) -> u64 {
        self.trailing.folio()
    }

    /// Returns the changes since the last call, if there are any.
    pub fn change(&mut self) -> Option<Change> {
        if Arc::ptr_eq(&self.known, self.detector.map()) {
            return None;
        }
        self.known = Arc::clone(self.detector.map());
        let now = self.detector.journals().to_vec();
        let before = std::mem::replace(&mut self.told, now);
        let missing = |of: &[Journal], from: &[Journal]| -> Vec<Journal> {
            of.iter()
                .filter(|journal| !from.iter().any(|other| is_same(journal, other)))
                .cloned()
                .collect()
        };
        let change =
            Change { found: missing(&self.told, &before), lost: missing(&before, &self.told) };
        (change != Change::default()).then_some(change)
    }

    /// Where they lie. The same [`Arc`] until a change.
    pub fn map(&self) -> &Arc<Map> {
        self.detector.map()
    }

    /// The journals that are known now.
    pub fn journals(&self) -> &[Journal] {
        self.detector.journals()
    }

    /// Returns the written bytes so far.
    pub fn traffic(&self) -> Traffic {
        Traffic {
            footprint: self.all.bytes(),
            journal_footprint: self.journal.bytes(),
            footprint_block: self.all.block(),
            ..self.traffic
        }
    }
}

/// True if two descriptions are of one journal, of which one may know more than the other.
fn is_same(one: &Journal, other: &Journal) -> bool {
    let known = Map::new(std::slice::from_ref(other));
    (one.filesystem, one.kind, one.way) == (other.filesystem, other.kind, other.way)
        && one.ranges.iter().any(|range| known.overlapping(range.clone()).next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::FileSystem;

    const MIB: u64 = 1 << 20;

    fn layout(ranges: Vec<Range<u64>>) -> JournalLayout {
        let journal = Journal {
            filesystem: FileSystem::Ext4,
            kind: LogKind::Journal,
            way: Evidence::Layout,
            ranges,
        };
        JournalLayout { journals: vec![journal], watched: vec![Range { start: 1024, end: 2048 }] }
    }

    /// Bytes are counted by the kind of their place.
    #[test]
    fn only_the_journal_is_dropped() {
        let mut bypass = Bypass::new(64 * MIB, 4096);
        assert!(bypass.needs_layout());
        bypass.set_layout(layout(vec![8 * MIB..16 * MIB, 20 * MIB..24 * MIB]));
        bypass.write(0..8192, &[], false);
        bypass.flushed();
        assert_eq!(bypass.take().len(), 2, "what was there before");
        // Twice the same block, and over the journal's end.
        bypass.write(8 * MIB..8 * MIB + 4096, &[], false);
        bypass.write(8 * MIB..8 * MIB + 4096, &[], false);
        bypass.write(16 * MIB - 4096..16 * MIB + 4096, &[], false);
        assert_eq!(bypass.due(), 0, "not durable");
        bypass.flushed();
        bypass.flushed();
        assert_eq!(bypass.due(), 3 * 4096);
        let ranges: Vec<_> = bypass.take().into_iter().map(|drop| drop.range).collect();
        assert_eq!(ranges, [8 * MIB..10 * MIB, 14 * MIB..16 * MIB]);
        let traffic = Traffic {
            written: 6 * 4096,
            journal_written: ByWay { layout: 3 * 4096, ..ByWay::default() },
            log_written: 0,
            flushes: 3,
            journal_flushes: 1,
            footprint: 5 * 4096,
            journal_footprint: 2 * 4096,
            footprint_block: 4096,
        };
        assert_eq!(bypass.traffic(), traffic);
    }

    fn taken(bypass: &mut Bypass) -> (u64, Vec<Range<u64>>) {
        assert_eq!(bypass.due(), 0, "not before a flush");
        bypass.synced();
        (bypass.due(), bypass.take().into_iter().map(|drop| drop.range).collect())
    }

    /// Its place may have been written to before it was known.
    #[test]
    fn newly_found_journal_is_dropped_once() {
        let mut bypass = Bypass::new(64 * MIB, 4096);
        bypass.write(8 * MIB..16 * MIB, &[], false);
        bypass.flushed();
        assert_eq!(taken(&mut bypass), (0, vec![]));
        bypass.set_layout(layout(vec![8 * MIB..16 * MIB]));
        assert_eq!(taken(&mut bypass), (8 * MIB, vec![8 * MIB..16 * MIB]));
        bypass.set_layout(layout(vec![8 * MIB..16 * MIB]));
        assert_eq!(taken(&mut bypass), (0, vec![]));
        // Of one that is better known, what is new.
        bypass.set_layout(layout(vec![6 * MIB..16 * MIB, 30 * MIB..32 * MIB]));
        assert_eq!(taken(&mut bypass), (4 * MIB, vec![6 * MIB..8 * MIB, 30 * MIB..32 * MIB]));
    }

    #[test]
    fn missed_writes_cause_reread_and_full_drop() {
        let mut bypass = Bypass::new(64 * MIB, 4096);
        bypass.missed();
        bypass.set_layout(layout(vec![8 * MIB..16 * MIB, 20 * MIB..24 * MIB]));
        taken(&mut bypass);
        for _ in 0..2 {
            assert!(!bypass.needs_layout());
            bypass.missed();
            assert!(bypass.needs_layout());
            assert_eq!(taken(&mut bypass), (12 * MIB, vec![8 * MIB..16 * MIB, 20 * MIB..24 * MIB]));
            bypass.set_layout(layout(vec![8 * MIB..16 * MIB, 20 * MIB..24 * MIB]));
            assert_eq!(taken(&mut bypass), (0, vec![]));
        }
    }

    #[test]
    fn change_is_returned_once() {
        let mut bypass = Bypass::new(64 * MIB, 4096);
        assert_eq!(bypass.change(), None);
        let [old, new] = [layout(vec![8 * MIB..16 * MIB]), layout(vec![20 * MIB..24 * MIB])];
        bypass.set_layout(old.clone());
        let found = Change { found: old.journals.clone(), lost: vec![] };
        assert_eq!((bypass.change(), bypass.change()), (Some(found), None));
        bypass.write(1024..1536, &[], false);
        assert!(bypass.needs_layout());
        bypass.set_layout(old.clone());
        assert_eq!(bypass.change(), None, "as before");
        let longer = layout(vec![8 * MIB..17 * MIB]);
        bypass.set_layout(longer.clone());
        assert_eq!(bypass.change(), None, "the same journal, better known");
        bypass.set_layout(new.clone());
        assert_eq!(bypass.change(), Some(Change { found: new.journals, lost: longer.journals }));
    }
}
