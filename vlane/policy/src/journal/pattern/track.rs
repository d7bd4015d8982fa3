//! One long run, or several that are written in turn: its place, and the signs in its writes of the
//! log's owner.

use std::ops::Range;

use super::{HEAD, LONG, MOST_TRACKS, PAUSE, REPLAYED, SHORTEST, TAIL};
use crate::journal::LogKind;

/// Foreign bytes in a track that are forgiven at least.
const FORGIVEN: u64 = 1 << 20;
/// A page of the guest's cache.
const PAGE: u64 = 4096;
/// The largest record of XFS.
const RECORD: u64 = 256 << 10;
/// Commits that a journal has at least until it is believed.
const COMMITS: u32 = 4;
/// Commits from which on the waits among tracks can be judged.
const ENOUGH: u32 = 32;
/// Writes that are counted: then all counts are halved, so that the last ones weigh most.
const MOST_WRITES: u32 = 1024;
/// The bytes that must be written over of a large track.
const MOST_REPLAYED: u64 = 4 << 20;

/// A long run, or several in turn, and whether it goes round.
#[derive(Debug, Default)]
pub(super) struct Track {
    /// Its slot in the others' [`Counts::joined`].
    pub(super) slot: usize,
    /// Not the same for any two.
    pub(super) id: u64,
    /// The track that went on here when this one began.
    pub(super) after: Option<u64>,
    /// From the first byte to the last one of its last loop, of each piece in the order in which
    /// they are written; not empty. And which is written now.
    pub(super) pieces: Vec<Range<u64>>,
    pub(super) piece: usize,
    /// Where its next write is expected.
    pub(super) at: u64,
    /// When it began, when it was last written, and for how long, in all, others were in between.
    pub(super) born: u64,
    pub(super) last: u64,
    idle: u64,
    /// Loops that were ended.
    pub(super) loops: u32,
    /// Bytes written over in order, in this loop.
    replayed: u64,
    pub(super) counts: Counts,
    /// Flushes of the volume at its last write.
    flushes: u64,
    pub(super) verdict: Option<LogKind>,
    /// Bytes of other writers in it.
    strange: u64,
}

/// The statistics of its writes.
#[derive(Debug, Default, Clone)]
pub(super) struct Counts {
    writes: u32,
    /// Of them: those that began in the written part already; those that came after a flush
    /// (commits).
    rewrites: u32,
    commits: u32,
    /// Commits of a page that came right after the flush; writes that began at no multiple of a
    /// page.
    tight: u32,
    odd: u32,
    /// Writes that are larger than any record of XFS.
    large: u32,
    /// Commits since whose predecessor the track of each slot was written too.
    joined: [u32; MOST_TRACKS],
}

impl Counts {
    fn halve(&mut self) {
        let Counts { writes, rewrites, commits, tight, odd, large, joined } = self;
        for count in [writes, rewrites, commits, tight, odd, large].into_iter().chain(joined) {
            *count /= 2;
        }
    }

    /// Together with another's.
    pub(super) fn add(&mut self, other: &Counts) {
        self.writes = self.writes.saturating_add(other.writes);
        self.rewrites = self.rewrites.saturating_add(other.rewrites);
        self.commits = self.commits.saturating_add(other.commits);
        self.tight = self.tight.saturating_add(other.tight);
        self.odd = self.odd.saturating_add(other.odd);
        self.large = self.large.saturating_add(other.large);
    }

    /// The track of this slot is another one from now on.
    pub(super) fn forget(&mut self, slot: usize) {
        if let Some(count) = self.joined.get_mut(slot) {
            *count = 0;
        }
    }

    fn is_append_only(&self) -> bool {
        self.rewrites < self.writes / 8 + 1
    }

    /// True if it is written as JBD2 writes.
    pub(super) fn is_jbd2s(&self) -> bool {
        self.is_append_only() && self.tight >= COMMITS && self.tight > self.commits / 8
    }

    /// True if it is written as XFS writes its log, as long as no other track is connected with it.
    fn is_xfs(&self) -> bool {
        let is_flushed = self.commits > self.writes / 8 || self.odd > self.writes / 2;
        self.is_append_only()
            && self.commits >= COMMITS
            && is_flushed
            && self.large <= self.writes / 8
    }

    /// True if others may wait for it.
    fn can_lead(&self) -> bool {
        self.is_jbd2s() || self.is_xfs()
    }

    /// Commits without the track of this slot, in 1024ths.
    fn alone(&self, slot: usize) -> u32 {
        let joined = self.joined.get(slot).copied().unwrap_or(0);
        let alone =
            u64::from(self.commits.saturating_sub(joined)) * 1024 / u64::from(self.commits.max(1));
        u32::try_from(alone).unwrap_or(u32::MAX)
    }
}

impl Track {
    /// A run that became long.
    pub(super) fn new(
        slot: usize,
        id: u64,
        after: Option<u64>,
        range: Range<u64>,
        times: (u64, u64),
        flushes: u64,
    ) -> Track {
        Track {
            slot,
            id,
            after,
            at: range.end,
            pieces: vec![range],
            born: times.0,
            last: times.1,
            flushes,
            ..Track::default()
        }
    }

    /// The piece that is written now.
    fn here(&self) -> Range<u64> {
        self.pieces.get(self.piece).cloned().unwrap_or_default()
    }

    /// Its first byte.
    pub(super) fn start(&self) -> u64 {
        self.pieces.first().map_or(0, |piece| piece.start)
    }

    /// Bytes.
    pub(super) fn len(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.end - piece.start).sum()
    }

    /// True if a write continues where it ended, or writes the end again.
    #[inline]
    pub(super) fn is_next(&self, range: &Range<u64>) -> bool {
        let start = self.pieces.get(self.piece).map_or(0, |piece| piece.start);
        let from = self.at.saturating_sub(TAIL).max(start);
        range.start <= self.at && range.end >= self.at && range.start >= from
    }

    pub(super) fn overlaps(&self, range: &Range<u64>) -> bool {
        self.pieces.iter().any(|piece| piece.start < range.end && range.start < piece.end)
    }

    /// Over the beginning of which of its pieces a range has come.
    pub(super) fn is_begun_by(&self, range: &Range<u64>) -> Option<usize> {
        self.pieces.iter().position(|piece| {
            range.start < piece.start.saturating_add(HEAD) && range.end > piece.start
        })
    }

    /// True if a run that began at that time may be where its writer continued: it was silent
    /// since, and had no longer pause than it often had.
    pub(super) fn can_go_on_at(&self, begin: u64) -> bool {
        let mean = self.idle / u64::from(self.counts.writes.max(1));
        let pause = PAUSE.saturating_add(mean.saturating_mul(16));
        self.last <= begin
            && (self.verdict.is_some() || begin - self.last <= pause)
            && self.is_long()
    }

    fn is_long(&self) -> bool {
        self.at.saturating_sub(self.here().start) >= LONG.min(self.len())
    }

    /// It continues over the beginning of a piece, or a little before.
    pub(super) fn go_round(
        &mut self,
        piece: usize,
        range: &Range<u64>,
        now: u64,
        flushes: u64,
    ) -> bool {
        let before = self.pieces.clone();
        // The last loop shows the end; a loop that was cut off does not.
        if let Some(here) = self.pieces.get_mut(self.piece)
            && self.at > here.start
            && self.at - here.start > (here.end - here.start) / 16 * 15
        {
            here.end = self.at;
        }
        let Some(there) = self.pieces.get_mut(piece) else { return false };
        let written = range.end.saturating_sub(there.start);
        *there = there.start.min(range.start)..there.end.max(range.end);
        if piece == 0 {
            self.loops = self.loops.saturating_add(1);
            self.replayed = 0;
        }
        self.replayed = self.replayed.saturating_add(written);
        (self.piece, self.at, self.last, self.strange) = (piece, range.end, now, 0);
        self.flushes = flushes;
        self.unite();
        self.verdict.is_some() && self.pieces != before
    }

    /// It is written elsewhere in one of its pieces from now on.
    pub(super) fn is_taken_up(&mut self, range: &Range<u64>, now: u64) -> bool {
        let is_in = |piece: &Range<u64>| piece.start <= range.start && range.end <= piece.end;
        let Some(piece) = self.pieces.iter().position(is_in).filter(|_| self.verdict.is_some())
        else {
            return false;
        };
        if piece == self.piece && range.start < self.at {
            return false;
        }
        (self.piece, self.at, self.last, self.strange) = (piece, range.end, now, 0);
        true
    }

    /// It continues; returns true if that is a commit.
    pub(super) fn step(
        &mut self,
        range: &Range<u64>,
        now: u64,
        flushes: u64,
        is_tight: bool,
    ) -> bool {
        let len = range.end - range.start;
        self.idle = self.idle.saturating_add(now.saturating_sub(len).saturating_sub(self.last));
        self.last = now;
        if self.counts.writes >= MOST_WRITES {
            self.counts.halve();
            self.idle /= 2;
        }
        let counts = &mut self.counts;
        let is_commit = flushes != self.flushes;
        counts.writes += 1;
        counts.commits += u32::from(is_commit);
        counts.tight += u32::from(is_tight && is_commit && len <= PAGE);
        counts.large += u32::from(len > RECORD);
        counts.odd += u32::from(!range.start.is_multiple_of(PAGE));
        counts.rewrites += u32::from(range.start < self.at);
        self.flushes = flushes;
        self.strange = self.strange.saturating_sub(len);
        self.replayed = self.replayed.saturating_add(range.end.saturating_sub(self.at));
        self.at = self.at.max(range.end);
        is_commit
    }

    /// The track of this slot was written since the commit before this one.
    pub(super) fn joins(&mut self, slot: usize) {
        if let Some(count) = self.counts.joined.get_mut(slot) {
            *count += 1;
        }
    }

    /// Its end moves with its writes; says whether that is worth telling.
    pub(super) fn grow(&mut self) -> bool {
        let Some(here) = self.pieces.get_mut(self.piece) else { return false };
        // Written in steps.
        let is_longer = self.at >> 20 > here.end >> 20;
        here.end = here.end.max(self.at);
        (self.unite() || is_longer) && self.verdict.is_some()
    }

    /// Unites pieces when a write crosses the border of another one; says whether there was such.
    fn unite(&mut self) -> bool {
        let (mut here, count) = (self.here(), self.pieces.len());
        while let Some(other) = (0..self.pieces.len()).find(|other| {
            *other != self.piece
                && self
                    .pieces
                    .get(*other)
                    .is_some_and(|piece| piece.start < here.end && here.start < piece.end)
        }) {
            let piece = self.pieces.remove(other);
            here = here.start.min(piece.start)..here.end.max(piece.end);
            self.piece -= usize::from(other < self.piece);
        }
        if let Some(piece) = self.pieces.get_mut(self.piece) {
            *piece = here;
        }
        self.pieces.len() < count
    }

    /// True if it is time for a verdict: when it has gone round, and again when it was written as
    /// often again.
    pub(super) fn is_due(&self) -> bool {
        let len = self.len();
        let enough = (len / 64).clamp(REPLAYED, MOST_REPLAYED);
        match self.verdict {
            Some(_) => self.counts.writes.is_power_of_two(),
            None => self.loops > 0 && len >= SHORTEST && self.replayed >= enough,
        }
    }

    /// True if it waits for another one, which does not wait for it: it never commits twice without
    /// the other, the other does.
    fn waits_for(&self, other: &Track) -> bool {
        let (own, its) = (self.counts.alone(other.slot), other.counts.alone(self.slot));
        let is_enough = self.counts.commits >= ENOUGH && other.counts.commits >= ENOUGH;
        is_enough && other.counts.can_lead() && own <= 32 && its > 32.max(own * 4)
    }

    /// Returns its kind, compared with these others.
    pub(super) fn kind<'a>(&self, mut others: impl Iterator<Item = &'a Track>) -> LogKind {
        let is_journal = self.counts.is_jbd2s()
            || self.counts.is_xfs()
                && !others.any(|other| other.id != self.id && self.waits_for(other));
        if is_journal { LogKind::Journal } else { LogKind::Log }
    }

    /// Notes another writer's write into it; returns true if it was too much.
    pub(super) fn is_written_over(&mut self, len: u64) -> bool {
        self.strange = self.strange.saturating_add(len);
        self.strange > FORGIVEN.max(self.len() / 16)
    }

    /// Becomes the ring of which it is the first piece, and these the others.
    pub(super) fn join(&mut self, others: Vec<Track>) {
        for other in others {
            self.counts.add(&other.counts);
            self.idle = self.idle.saturating_add(other.idle);
            (self.at, self.last, self.flushes) = (other.at, other.last, other.flushes);
            self.pieces.extend(other.pieces);
            self.piece = self.pieces.len() - 1;
        }
    }
}
