//! Journals by pattern: ranges that are written in order and cyclically. All that is left where the
//! guest encrypts.
//!
//! Kim and Lee remember the last address of each group of 128 MiB (ext4's block groups). They take
//! a group for the journal's if it is written sequentially and again and again. Here as there, the
//! last runs of each 128 MiB are remembered, and a verdict comes with the second loop. The
//! differences, and their reasons:
//!
//! - The unit of a verdict is a *track*, a run that grew to [`LONG`], and not a group. A group is
//!   128 MiB only with 4 KiB blocks; a journal fills a part of a group or several of them; and
//!   other data in its group would be called journal with it.
//! - [`SLOTS`] runs a group, not one address: files that share the group with the journal are
//!   written between its commits.
//! - *Cyclically* means that the writer that stopped at the track's end continues at its beginning,
//!   in its earlier rhythm. About as many bytes of the volume's writes passed between as passed
//!   between two of its own writes (16 times the mean at most, and [`PAUSE`]). A file that is
//!   written where a deleted one was begins at the same place too, but not in that rhythm: so a
//!   log-structured store's files, and copies, get no verdict.
//! - Then it must write over its old track in order, for a 64th of it ([`REPLAYED`] at least),
//!   before it is believed.
//! - A journal in several pieces is several tracks. Each remembers which one had stopped when it
//!   began; where the first is written again when the last one has stopped, they are one. Only
//!   tracks that are written as JBD2 writes are put together: files are written one after the
//!   other, too.
//!
//! The order and the sizes of writes and flushes show *which* writer's log it is
//! (`pattern/track.rs`). The verdict is made each time that its writes have doubled:
//!
//! - A file system's journal only appends: each block is written once a loop, because a transaction
//!   begins in a block of its own. A database's log (InnoDB's redo log, SQLite's WAL) fills its
//!   last block bit by bit and writes it again with each commit. So a log is
//!   [`LogKind::Log`](super::LogKind::Log) if its writes begin before the end of the written part,
//!   one in eight of them or more.
//! - JBD2's commit block follows its transaction's blocks, with only a flush between; it is one
//!   block. One in eight commits is enough.
//! - XFS' records have 256 KiB at most, and any number of sectors of 512 bytes where the disk has
//!   such. Where sectors are larger, they look as files do that are made and fsynced, always anew
//!   in the same places. But XFS commits without files, and no file is made without a commit. So a
//!   track *waits* for another one if it never commits twice without it, while the other does; a
//!   track that waits is no journal.
//! - A track without either mark is [`LogKind::Log`](super::LogKind::Log): a ring of recorded
//!   video; files that a journal writes home in bursts; any cyclic writes on a volume that is never
//!   flushed.
//!
//! One case cannot be distinguished: a database that pads each of its log's writes to whole blocks,
//! and flushes each, writes as a journal does. It is called one.
//!
//! Memory: 8 bytes for each 128 MiB, 256 more where something was written (2.1 MiB per TiB), and
//! [`MOST_TRACKS`] tracks of 16 ranges at most. Time: a write is compared with each track and with
//! the runs of its group; both are of fixed number.

mod track;

use std::ops::Range;

use super::{Evidence, FileSystem, Journal};
use track::Track;

/// Bytes of a group, as in the paper.
pub const GROUP: u64 = 128 << 20;
/// Runs that are remembered of a group.
pub const SLOTS: usize = 8;
/// Tracks that are remembered of a volume.
pub const MOST_TRACKS: usize = 16;
/// A run of this length becomes a track.
pub const LONG: u64 = 512 << 10;
/// A run of this length over a track's beginning may be its next loop.
pub const ROUND: u64 = 128 << 10;
/// The shortest track that gets a verdict: the smallest journal that mke2fs makes has 1024 blocks.
pub const SHORTEST: u64 = 1 << 20;
/// The bytes that must be written over, in order, before a track is believed to be cyclic; or a
/// 64th of it.
pub const REPLAYED: u64 = 256 << 10;
/// Bytes written to the volume that make no pause in a track.
pub const PAUSE: u64 = 1 << 20;

/// How far before the end of the written part a log's next write may begin.
const TAIL: u64 = 64 << 10;
/// How far into its track a writer may begin anew.
const HEAD: u64 = 64 << 10;

/// Finds cyclic logs by the order of the writes. See the module.
#[derive(Debug, Default)]
pub struct Pattern {
    size: u64,
    groups: Vec<Option<Box<Group>>>,
    tracks: Vec<Track>,
    /// The next track's id.
    next: u64,
    /// Bytes written so far: the clock.
    written: u64,
    flushes: u64,
    /// Where the last write of all ended, and whether there was no flush since.
    end: u64,
    is_unflushed: bool,
    is_changed: bool,
}

/// The last runs in 128 MiB.
#[derive(Debug, Default)]
struct Group([Run; SLOTS]);

/// Writes that went on where one ended.
#[derive(Debug, Default, Clone)]
struct Run {
    range: Range<u64>,
    /// When it began, and when it was last written.
    first: u64,
    last: u64,
}

impl Pattern {
    /// For a volume of `size` bytes.
    pub fn new(size: u64) -> Pattern {
        Pattern { size, is_unflushed: true, ..Pattern::default() }
    }

    /// The volume has another size.
    pub fn resized(&mut self, size: u64) {
        self.size = size;
    }

    /// The guest has its writes made durable.
    #[inline]
    pub fn flush(&mut self) {
        self.flushes += 1;
        self.is_unflushed = false;
    }

    /// The guest writes to a range.
    pub fn write(&mut self, range: &Range<u64>) {
        if range.start >= range.end || range.end > self.size {
            return;
        }
        self.written = self.written.saturating_add(range.end - range.start);
        let is_tight = !std::mem::replace(&mut self.is_unflushed, true) && self.end == range.start;
        self.end = range.end;
        if let Some(place) = self.tracks.iter().position(|track| track.is_next(range)) {
            self.go_on(place, range, is_tight);
            return;
        }
        self.write_over(range);
        self.remember(range);
    }

    /// Notes that a write does not continue a track.
    fn write_over(&mut self, range: &Range<u64>) {
        let changed = &mut self.is_changed;
        self.tracks.retain_mut(|track| {
            let is_lost = track.overlaps(range) && track.is_written_over(range.end - range.start);
            *changed |= is_lost && track.verdict.is_some();
            !is_lost
        });
    }

    /// The guest discards a range, or has it zeroed: no log is there any more.
    pub fn cleared(&mut self, range: &Range<u64>) {
        let changed = &mut self.is_changed;
        self.tracks.retain(|track| {
            let is_lost = track.overlaps(range);
            *changed |= is_lost && track.verdict.is_some();
            !is_lost
        });
    }

    /// True if [`Pattern::journals`] has changed since the last call.
    pub fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// The logs that are believed in now.
    pub fn journals(&self) -> Vec<Journal> {
        let believed =
            self.tracks.iter().filter_map(|track| Some((track.verdict?, track.pieces.clone())));
        let journal = |(kind, ranges)| Journal {
            filesystem: FileSystem::Unknown,
            kind,
            way: Evidence::Pattern,
            ranges,
        };
        believed.map(journal).collect()
    }

    /// A track is written where it is expected to be.
    fn go_on(&mut self, place: usize, range: &Range<u64>, is_tight: bool) {
        let (now, flushes) = (self.written, self.flushes);
        let Some(track) = self.tracks.get_mut(place) else { return };
        let (before, since) = (track.at, track.last);
        let is_commit = track.step(range, now, flushes, is_tight);
        // A run may be reported earlier though it came later: requests of several lanes have no
        // exact order.
        if let Some(group) = Self::group(&mut self.groups, track.at)
            && let Some(run) =
                group.0.iter_mut().find(|run| run.range.start == track.at && run.first > since)
        {
            let run = std::mem::take(run);
            track.step(&run.range, now, flushes, false);
        }
        self.is_changed |= track.grow();
        if is_commit {
            self.look_who_joins(place, since);
        }
        self.judge(place);
        // It has come to where another one begins.
        let Some(track) = self.tracks.get(place) else { return };
        let (id, new, is_new) = (track.id, track.start()..track.at, track.loops == 0);
        let (born, after) = (track.born, track.after);
        let met = |other: &Track| {
            other.pieces.iter().any(|piece| (before..new.end).contains(&piece.start))
        };
        let met = |other: &&Track| other.id != id && met(other);
        let Some(other) = self.tracks.iter().find(met).map(|other| other.id) else { return };
        if is_new && self.closes(other, born, after) {
            self.tracks.retain(|track| track.id != id);
            self.go_round(other, &new);
        } else {
            self.write_over(&(before..new.end));
        }
    }

    /// Notes for a track that has just committed, and for all others, which tracks were written
    /// since its commit before.
    fn look_who_joins(&mut self, place: usize, since: u64) {
        let mut joined = [false; MOST_TRACKS];
        for track in &self.tracks {
            if let Some(is_joined) = joined.get_mut(track.slot) {
                *is_joined = track.last > since;
            }
        }
        let Some(track) = self.tracks.get_mut(place) else { return };
        for (slot, _) in joined.iter().enumerate().filter(|(_, is_joined)| **is_joined) {
            track.joins(slot);
        }
    }

    /// Judges a track, if it is time.
    fn judge(&mut self, place: usize) {
        let Some(track) = self.tracks.get(place).filter(|track| track.is_due()) else { return };
        let kind = Some(track.kind(self.tracks.iter()));
        self.is_changed |= track.verdict != kind;
        if let Some(track) = self.tracks.get_mut(place) {
            track.verdict = kind;
        }
    }

    fn go_round(&mut self, id: u64, range: &Range<u64>) {
        let (now, flushes) = (self.written, self.flushes);
        let Some(place) = self.place_of(id) else { return };
        let Some(track) = self.tracks.get_mut(place) else { return };
        if let Some(piece) = track.is_begun_by(range) {
            self.is_changed |= track.go_round(piece, range, now, flushes);
            self.judge(place);
        }
    }

    fn place_of(&self, id: u64) -> Option<usize> {
        self.tracks.iter().position(|track| track.id == id)
    }

    fn group(groups: &mut Vec<Option<Box<Group>>>, at: u64) -> Option<&mut Group> {
        let index = usize::try_from(at / GROUP).ok()?;
        if groups.len() <= index {
            groups.resize_with(index + 1, || None);
        }
        groups.get_mut(index).map(|group| &mut **group.get_or_insert_default())
    }

    /// A write that is no track's.
    fn remember(&mut self, range: &Range<u64>) {
        let now = self.written;
        let Some(group) = Self::group(&mut self.groups, range.start.saturating_sub(1)) else {
            return;
        };
        // It continues where one ended, or a little before.
        let is_next = |run: &Run| {
            run.range.start <= range.start
                && range.start <= run.range.end
                && range.start + TAIL / 4 >= run.range.end
                && run.range.end > 0
        };
        let mut run = match group.0.iter_mut().find(|run| is_next(run)) {
            Some(run) => std::mem::take(run),
            None => Run { range: range.clone(), first: now - (range.end - range.start), last: now },
        };
        if run.range.end - run.range.start <= TAIL {
            // An earlier write just before it (a superblock) does not show when it began.
            run.first = now - (range.end - range.start);
        }
        run.range.end = run.range.end.max(range.end);
        run.last = now;
        let len = run.range.end - run.range.start;
        if len >= ROUND && self.goes_round(&run) {
            return;
        }
        if len >= LONG {
            self.begin(run);
            return;
        }
        let Some(group) = Self::group(&mut self.groups, run.range.end - 1) else { return };
        // Short ones give way first: random writes do not drive out a log.
        let oldest =
            group.0.iter_mut().min_by_key(|run| (run.range.end - run.range.start > TAIL, run.last));
        if let Some(oldest) = oldest {
            *oldest = run;
        }
    }

    /// True if a run is the next loop of a track.
    fn goes_round(&mut self, run: &Run) -> bool {
        let begun = |track: &&Track| track.is_begun_by(&run.range).is_some();
        let Some(id) = self.tracks.iter().find(begun).map(|track| track.id) else { return false };
        let goes_round = self.closes(id, run.first, self.stopped_at(run.first));
        if goes_round {
            self.go_round(id, &run.range);
        }
        goes_round
    }

    /// Which track may have gone on elsewhere at that time: the last one that stopped then, of
    /// those that are written as JBD2 writes. Only JBD2's journals have pieces.
    fn stopped_at(&self, begin: u64) -> Option<u64> {
        let stopped = |track: &&Track| track.can_go_on_at(begin) && track.counts.is_jbd2s();
        self.tracks.iter().filter(stopped).max_by_key(|track| track.last).map(|track| track.id)
    }

    /// True if the track's writer continued at its beginning, where a run began at `begin`. Then
    /// the track had stopped, or its last piece had: the track `last` began where another one had
    /// stopped, and so on, the first of them where this one had. Those are its pieces from now on.
    fn closes(&mut self, id: u64, begin: u64, last: Option<u64>) -> bool {
        let track_of = |id: u64| self.tracks.iter().find(|track| track.id == id);
        if track_of(id).is_some_and(|track| track.can_go_on_at(begin)) {
            return true;
        }
        let (mut next, mut chain) = (last, Vec::new());
        while let Some(place) = next.filter(|place| *place != id) {
            // A track is younger than the one that it began after: no circle.
            let Some(track) = track_of(place).filter(|track| track.verdict.is_none()) else {
                return false;
            };
            chain.push(place);
            next = track.after;
        }
        if next.is_none() || chain.is_empty() {
            return false;
        }
        let others: Vec<Track> = chain
            .iter()
            .rev()
            .filter_map(|id| {
                Some(self.tracks.remove(self.tracks.iter().position(|track| track.id == *id)?))
            })
            .collect();
        if let Some(track) = self.tracks.iter_mut().find(|track| track.id == id) {
            track.join(others);
        }
        true
    }

    /// A run has become long: a track is taken up again, or there is a new one. The new one
    /// replaces the track without a verdict that was silent for the most of its length.
    fn begin(&mut self, run: Run) {
        let (range, now, flushes) = (run.range, self.written, self.flushes);
        if self.tracks.iter_mut().any(|track| track.is_taken_up(&range, now)) {
            return;
        }
        // The writer there now is not the earlier one.
        let changed = &mut self.is_changed;
        self.tracks.retain(|track| track.verdict.is_some() || !track.overlaps(&range));
        if self.tracks.len() >= MOST_TRACKS {
            let silence = |track: &Track| (now - track.last) / (track.len() >> 12).max(1);
            let idle = self
                .tracks
                .iter()
                .enumerate()
                .max_by_key(|(_, track)| (track.verdict.is_none(), silence(track)));
            let Some((place, _)) = idle else { return };
            *changed |= self.tracks.remove(place).verdict.is_some();
        }
        let is_free = |slot: &usize| self.tracks.iter().all(|track| track.slot != *slot);
        let Some(slot) = (0..MOST_TRACKS).find(is_free) else { return };
        self.tracks.iter_mut().for_each(|track| track.counts.forget(slot));
        let after = self.stopped_at(run.first);
        self.tracks.push(Track::new(slot, self.next, after, range, (run.first, now), flushes));
        self.next += 1;
    }
}

#[cfg(test)]
mod tests;
