//! Journals by pattern: ranges that are written in order and cyclically. All that is left where the guest encrypts.
//!
//! Kim and Lee remember the last address of each group of 128 MiB (ext4's block groups) and take a group for the journal's that is written sequentially and
//! again and again. Here as there, the last runs of each 128 MiB are remembered, and a verdict comes with the second loop. What differs, and why:
//!
//! - The unit of a verdict is a *track*, a run that grew to [`LONG`], and not a group. A group is 128 MiB only with 4 KiB blocks; a journal fills a part of a
//!   group or several of them; and what else lies in its group would be called journal with it.
//! - [`SLOTS`] runs a group, not one address: files that share the group with the journal are written between its commits.
//! - *Cyclically* means that the writer that stopped at the track's end goes on at its beginning, in the rhythm that it had: of the bytes that were
//!   written to the volume, about as many passed between as passed between two of its own writes (16 times the mean at most, and [`PAUSE`]). A file that is written
//!   where a deleted one was begins at the same place too, but not in that rhythm: so a log-structured store's files, and copies, get no verdict.
//! - Then it must write over its old track in order, for [`REPLAYED`] or a 64th of it, before it is believed.
//!
//! What the order and the sizes of writes and flushes tell of *whose* log it is:
//!
//! - A file system's journal only appends: each block is written once a loop, because a transaction begins in a block of its own. A database's log (InnoDB's redo
//!   log, SQLite's WAL) fills its last block bit by bit and writes it again with each commit. So a log whose writes begin before the end of what was
//!   written, one in eight of them or more, is [`Kind::Log`].
//! - A journal commits: it writes, flushes, goes on. What goes round without a flush between its own writes (a ring of recorded video) is [`Kind::Log`]. If the volume
//!   was never flushed, this cannot be told, and the verdict is [`Kind::Log`] too.
//!
//! Not to be told apart that way: a database that pads each of its log's writes to whole blocks, and flushes each, writes as a journal does. It is called one. A
//! journal in several pieces has no end that is followed by its beginning, and gets no verdict.
//!
//! Memory: 8 bytes for each 128 MiB, 256 more where something was written (2.1 MiB per TiB), and [`MOST_TRACKS`] tracks. Time: a write is compared with each
//! track and with the runs of its group; both are of fixed number.

use std::ops::Range;

use super::{FileSystem, Journal, Kind, Way};

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
/// What must be written over, in order, before a track is believed to be cyclic; or a 64th of it.
pub const REPLAYED: u64 = 256 << 10;
/// Bytes written to the volume that make no pause in a track.
pub const PAUSE: u64 = 1 << 20;

/// How far before the end of what was written a log's next write may begin.
const TAIL: u64 = 64 << 10;
/// How far into its track a writer may begin anew.
const HEAD: u64 = 64 << 10;
/// Foreign bytes in a track that are forgiven at least.
const FORGIVEN: u64 = 1 << 20;
/// Commits that a journal has at least until it is believed.
const COMMITS: u32 = 4;

/// Finds cyclic logs by the order of the writes. See the module.
#[derive(Debug)]
pub struct Pattern {
    size: u64,
    groups: Vec<Option<Box<Group>>>,
    tracks: Vec<Track>,
    /// Bytes written so far: the clock.
    written: u64,
    flushes: u64,
    is_changed: bool,
}

/// What was written last in 128 MiB.
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

/// A long run, and whether it goes round.
#[derive(Debug)]
struct Track {
    /// From its first byte to the last one of its last loop.
    range: Range<u64>,
    /// Where its next write is expected.
    at: u64,
    /// When it began, when it was last written, and for how long, in all, others were in between.
    born: u64,
    last: u64,
    idle: u64,
    /// Loops that were ended.
    loops: u32,
    /// Bytes written over in order, in this loop.
    replayed: u64,
    /// Its writes; those of them that began in what was written already; those that came after a flush.
    writes: u32,
    rewrites: u32,
    commits: u32,
    /// Flushes of the volume at its last write.
    flushes: u64,
    verdict: Option<Kind>,
    /// Bytes that somebody else wrote into it.
    strange: u64,
}

impl Pattern {
    /// For a volume of `size` bytes.
    pub fn new(size: u64) -> Pattern {
        Pattern { size, groups: Vec::new(), tracks: Vec::new(), written: 0, flushes: 0, is_changed: false }
    }

    /// The volume has another size.
    pub fn resized(&mut self, size: u64) {
        self.size = size;
    }

    /// The guest has what it wrote made durable.
    #[inline]
    pub fn flush(&mut self) {
        self.flushes += 1;
    }

    /// The guest writes to a range.
    pub fn write(&mut self, range: &Range<u64>) {
        if range.start >= range.end || range.end > self.size {
            return;
        }
        self.written = self.written.saturating_add(range.end - range.start);
        if let Some(place) = self.tracks.iter().position(|track| track.is_next(range)) {
            self.go_on(place, range);
            return;
        }
        self.write_over(range);
        self.remember(range);
    }

    /// Notes that a write is not the one that a track goes on with.
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
            let is_lost = track.range.start < range.end && range.start < track.range.end;
            *changed |= is_lost && track.verdict.is_some();
            !is_lost
        });
    }

    /// Whether [`Pattern::journals`] has others than when this was asked last.
    pub fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// The logs that are believed in now.
    pub fn journals(&self) -> Vec<Journal> {
        let believed = self.tracks.iter().filter_map(|track| Some((track.verdict?, track.range.clone())));
        let journal = |(kind, range)| Journal {
            filesystem: FileSystem::Unknown,
            kind,
            way: Way::Pattern,
            ranges: vec![range],
        };
        believed.map(journal).collect()
    }

    /// A track is written where it is expected to be.
    fn go_on(&mut self, place: usize, range: &Range<u64>) {
        let (now, flushes) = (self.written, self.flushes);
        let Some(track) = self.tracks.get_mut(place) else { return };
        let (before, since) = (track.at, track.last);
        track.step(range, now, flushes);
        // What was told earlier though it came later: requests of several lanes have no exact order.
        if let Some(group) = Self::group(&mut self.groups, track.at)
            && let Some(run) = group.0.iter_mut().find(|run| run.range.start == track.at && run.first > since)
        {
            let run = std::mem::take(run);
            track.step(&run.range, now, flushes);
        }
        self.is_changed |= track.judge(flushes > 0);
        let (at, born, is_new) = (track.at, track.born, track.loops == 0);
        // It has come to where another one begins.
        let met = |other: &Track| (before..at).contains(&other.range.start);
        let Some(other) = self.tracks.iter().position(met).filter(|other| *other != place) else { return };
        if is_new && self.tracks.get(other).is_some_and(|other| other.can_go_on_at(born)) {
            let new = self.tracks.remove(place);
            let other = if place < other { other - 1 } else { other };
            let Some(track) = self.tracks.get_mut(other) else { return };
            self.is_changed |= track.go_round(&(new.range.start..new.at), now, flushes > 0);
        } else {
            self.write_over(&(before..at));
        }
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
        let Some(group) = Self::group(&mut self.groups, range.start.saturating_sub(1)) else { return };
        // It goes on where one ended, or a little before.
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
            // What was written before it long ago (a superblock) says nothing of when it began.
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
        let oldest = group.0.iter_mut().min_by_key(|run| (run.range.end - run.range.start > TAIL, run.last));
        if let Some(oldest) = oldest {
            *oldest = run;
        }
    }

    /// Whether a run is the next loop of a track.
    fn goes_round(&mut self, run: &Run) -> bool {
        let (now, is_ever_flushed) = (self.written, self.flushes > 0);
        let goes_round = |track: &&mut Track| track.is_begun_by(&run.range) && track.can_go_on_at(run.first);
        let Some(track) = self.tracks.iter_mut().find(goes_round) else { return false };
        self.is_changed |= track.go_round(&run.range, now, is_ever_flushed);
        true
    }

    /// A run has become long: a track is taken up again, or there is a new one, in the place of the one without a verdict that was
    /// not written for longest.
    fn begin(&mut self, run: Run) {
        let (range, now, flushes) = (run.range, self.written, self.flushes);
        let is_in = |track: &&mut Track| {
            track.verdict.is_some() && track.at <= range.start && range.end <= track.range.end
        };
        if let Some(track) = self.tracks.iter_mut().find(is_in) {
            (track.at, track.last, track.strange) = (range.end, now, 0);
            return;
        }
        // Whoever writes there now is not who wrote there before.
        let changed = &mut self.is_changed;
        self.tracks.retain(|track| track.verdict.is_some() || !track.overlaps(&range));
        if self.tracks.len() >= MOST_TRACKS {
            let idle =
                self.tracks.iter().enumerate().min_by_key(|(_, track)| (track.verdict.is_some(), track.last));
            let Some((place, _)) = idle else { return };
            *changed |= self.tracks.remove(place).verdict.is_some();
        }
        self.tracks.push(Track {
            at: range.end,
            range,
            born: run.first,
            last: now,
            idle: 0,
            loops: 0,
            replayed: 0,
            writes: 0,
            rewrites: 0,
            commits: 0,
            flushes,
            verdict: None,
            strange: 0,
        });
    }
}

impl Track {
    /// Whether a write goes on where it ended, or writes the end again.
    #[inline]
    fn is_next(&self, range: &Range<u64>) -> bool {
        let from = self.at.saturating_sub(TAIL).max(self.range.start);
        range.start <= self.at && range.end >= self.at && range.start >= from
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        self.range.start < range.end && range.start < self.range.end
    }

    /// Whether what is written there has come over its beginning.
    fn is_begun_by(&self, range: &Range<u64>) -> bool {
        range.start < self.range.start.saturating_add(HEAD) && range.end > self.range.start
    }

    /// Whether what began at that time may be its own next loop: it was silent since, and had no longer pause than it often had.
    fn can_go_on_at(&self, begin: u64) -> bool {
        let mean = self.idle / u64::from(self.writes.max(1));
        let pause = PAUSE.saturating_add(mean.saturating_mul(16));
        self.last <= begin
            && (self.verdict.is_some() || begin - self.last <= pause)
            && self.at - self.range.start >= LONG
    }

    /// It was written anew from its beginning on, or from a little before.
    fn go_round(&mut self, range: &Range<u64>, now: u64, is_ever_flushed: bool) -> bool {
        let before = self.range.clone();
        // The last loop says where the end is; one that was cut off says nothing.
        if self.at - self.range.start > (self.range.end - self.range.start) / 16 * 15 {
            self.range.end = self.at;
        }
        self.range = self.range.start.min(range.start)..self.range.end.max(range.end);
        self.loops = self.loops.saturating_add(1);
        self.replayed = range.end.saturating_sub(before.start);
        (self.at, self.last, self.strange) = (range.end, now, 0);
        self.judge(is_ever_flushed) || (self.verdict.is_some() && self.range != before)
    }

    fn step(&mut self, range: &Range<u64>, now: u64, flushes: u64) {
        let len = range.end - range.start;
        self.idle = self.idle.saturating_add(now.saturating_sub(len).saturating_sub(self.last));
        self.last = now;
        self.writes = self.writes.saturating_add(1);
        self.commits = self.commits.saturating_add(u32::from(flushes != self.flushes));
        self.flushes = flushes;
        self.strange = self.strange.saturating_sub(len);
        if range.start < self.at {
            self.rewrites = self.rewrites.saturating_add(1);
        }
        self.replayed = self.replayed.saturating_add(range.end.saturating_sub(self.at));
        self.at = self.at.max(range.end);
    }

    /// Makes up its mind; says whether what is believed changed.
    fn judge(&mut self, is_ever_flushed: bool) -> bool {
        // Told in steps.
        let is_longer = self.at >> 20 > self.range.end >> 20;
        self.range.end = self.range.end.max(self.at);
        if self.verdict.is_some() {
            return is_longer;
        }
        let len = self.range.end - self.range.start;
        if self.loops == 0 || len < SHORTEST || self.replayed < REPLAYED.max(len / 64) {
            return false;
        }
        let is_append_only = self.rewrites < self.writes / 8 + 1;
        let commits = is_ever_flushed && self.commits >= COMMITS;
        self.verdict = Some(if is_append_only && commits { Kind::Journal } else { Kind::Log });
        true
    }

    /// Notes that somebody else wrote into it; says whether it was too much.
    fn is_written_over(&mut self, len: u64) -> bool {
        self.strange = self.strange.saturating_add(len);
        self.strange > FORGIVEN.max((self.range.end - self.range.start) / 16)
    }
}

#[cfg(test)]
mod tests;
