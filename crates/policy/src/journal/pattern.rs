//! Journals by pattern: ranges that are written in order and cyclically. All that is left where the guest encrypts.
//!
//! Kim and Lee remember the last address of each group of 128 MiB (ext4's block groups) and take a group for the journal's that is written sequentially and
//! again and again. Here as there, the last runs of each 128 MiB are remembered, and a verdict comes with the second loop. What differs, and why:
//!
//! - The unit of a verdict is a *track*, a run that grew to [`LONG`], and not a group. A group is 128 MiB only with 4 KiB blocks; a journal fills a part of a
//!   group or several of them; and what else lies in its group would be called journal with it.
//! - [`SLOTS`] runs a group, not one address: files that share the group with the journal are written between its commits.
//! - *Cyclically* means that the writer that stopped at the track's end goes on at its beginning, in the rhythm that it had: of the bytes that were
//!   written to the volume, no more passed between than passed between two of its own writes (twice the most, and [`PAUSE`]). A file that is written
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
//! Memory: 8 bytes for each 128 MiB, 200 more where something was written (1.6 MiB per TiB), and [`MOST_TRACKS`] tracks. Time: a write is compared with each
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
/// The shortest track that gets a verdict: the smallest journal that mke2fs makes has 1024 blocks.
pub const SHORTEST: u64 = 1 << 20;
/// What must be written over, in order, before a track is believed to be cyclic; or a 64th of it.
pub const REPLAYED: u64 = 256 << 10;
/// Bytes written to the volume that make no pause in a track.
pub const PAUSE: u64 = 1 << 20;

/// How far before the end of what was written a log's next write may begin.
const TAIL: u64 = 64 << 10;
/// How far behind the end one may begin because another one, told later, fills the gap: requests of several lanes have no exact order.
const GAP: u64 = 2 << 20;
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
    last: u64,
}

/// A long run, and whether it goes round.
#[derive(Debug)]
struct Track {
    /// From its first byte to the last one of its last loop.
    range: Range<u64>,
    /// Where its next write is expected.
    at: u64,
    /// What was left out on the way there.
    skipped: Range<u64>,
    /// When it began, when it was last written, and the longest time between two of its writes.
    born: u64,
    last: u64,
    pause: u64,
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
        let begins = |track: &Track| {
            range.start < track.range.start.saturating_add(HEAD) && range.end > track.range.start
        };
        if let Some(place) = self.tracks.iter().position(begins) {
            self.go_round(place, range);
            return;
        }
        let changed = &mut self.is_changed;
        let len = range.end - range.start;
        self.tracks.retain_mut(|track| {
            let is_inside = track.range.start < range.end && range.start < track.range.end;
            let is_lost = is_inside && track.is_written_over(len);
            *changed |= is_lost && track.verdict.is_some();
            !is_lost
        });
        self.remember(range);
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
        let before = track.at;
        track.step(range, now, flushes);
        let at = track.at;
        let (born, is_new) = (track.born, track.loops == 0);
        self.is_changed |= track.judge(flushes > 0);
        // It has come to where another one begins.
        let met = |other: &Track| (before..at).contains(&other.range.start) && at > before;
        let Some(other) = self.tracks.iter().position(|other| met(other)).filter(|other| *other != place)
        else {
            return;
        };
        let old = self.tracks.remove(other);
        self.is_changed |= old.verdict.is_some();
        let place = if other < place { place - 1 } else { place };
        let Some(track) = self.tracks.get_mut(place) else { return };
        if is_new && old.last <= born && old.is_in_rhythm(born) {
            // The writer that had begun in the middle stopped at the end, began here, and has come round.
            track.range.end = old.range.end.max(at);
            track.loops = old.loops + 1;
            track.pause = track.pause.max(old.pause);
            track.writes = track.writes.saturating_add(old.writes);
            track.rewrites = track.rewrites.saturating_add(old.rewrites);
            track.commits = track.commits.saturating_add(old.commits);
            track.replayed = at - old.range.start;
            track.verdict = old.verdict;
        }
    }

    /// A write to the beginning of a track: it goes round, or something else is written there.
    fn go_round(&mut self, place: usize, range: &Range<u64>) {
        let (now, flushes) = (self.written, self.flushes);
        let Some(track) = self.tracks.get(place) else { return };
        let is_short = track.at - track.range.start < LONG;
        let is_own = track.verdict.is_some() || track.is_in_rhythm(now - (range.end - range.start));
        if is_short || !is_own {
            if track.verdict.is_none() {
                self.tracks.remove(place);
                self.remember(range);
            } else if self.tracks[place].is_written_over(range.end - range.start) {
                self.tracks.remove(place);
                self.is_changed = true;
            }
            return;
        }
        // What it wrote before, if its beginning was missed: it stands among the runs.
        let (begin, since) = (track.range.start.min(range.start), track.last);
        let group = Self::group(&mut self.groups, range.start.saturating_sub(1));
        let before = group
            .and_then(|group| group.0.iter_mut().find(|run| run.range.end == begin && run.last >= since));
        let start = before.map_or(begin, |run| std::mem::take(run).range.start);
        let track = &mut self.tracks[place];
        // The last loop says where the end is; one that was cut off says nothing.
        let len = track.range.end - track.range.start;
        if track.at > track.range.start + len / 16 * 15 {
            self.is_changed |= track.verdict.is_some() && track.range.end != track.at;
            track.range.end = track.at;
        }
        self.is_changed |= track.verdict.is_some() && track.range.start != start;
        track.range.start = start;
        track.loops = track.loops.saturating_add(1);
        (track.replayed, track.skipped) = (0, 0..0);
        track.at = range.start;
        track.step(range, now, flushes);
        self.is_changed |= track.judge(flushes > 0);
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
            None => Run { range: range.clone(), last: now },
        };
        run.range.end = run.range.end.max(range.end);
        run.last = now;
        if run.range.end - run.range.start >= LONG {
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

    /// A run becomes a track, in the place of the one without a verdict that was not written for longest.
    fn begin(&mut self, run: Run) {
        let (range, now, flushes) = (run.range, self.written, self.flushes);
        // Whoever writes there now is not who wrote there before.
        let changed = &mut self.is_changed;
        self.tracks.retain_mut(|track| {
            let is_inside = track.range.start < range.end && range.start < track.range.end;
            let is_lost =
                is_inside && (track.verdict.is_none() || track.is_written_over(range.end - range.start));
            *changed |= is_lost && track.verdict.is_some();
            !is_lost
        });
        if self.tracks.len() >= MOST_TRACKS {
            let idle =
                self.tracks.iter().enumerate().min_by_key(|(_, track)| (track.verdict.is_some(), track.last));
            let Some((place, _)) = idle else { return };
            *changed |= self.tracks.remove(place).verdict.is_some();
        }
        self.tracks.push(Track {
            at: range.end,
            skipped: 0..0,
            // About.
            born: now - (range.end - range.start).min(now),
            range,
            last: now,
            pause: 0,
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
    /// Whether a write is the one that is expected, or may be it.
    #[inline]
    fn is_next(&self, range: &Range<u64>) -> bool {
        let from = self.at.saturating_sub(TAIL).max(self.range.start);
        (range.start >= from && range.start <= self.at.saturating_add(GAP) && range.end >= self.at)
            || (self.skipped.start <= range.start && range.end <= self.skipped.end && range.start < range.end)
    }

    /// Whether, at that time, its own next write would come as its others came.
    fn is_in_rhythm(&self, now: u64) -> bool {
        now.saturating_sub(self.last) <= self.pause.saturating_mul(2).saturating_add(PAUSE)
    }

    fn step(&mut self, range: &Range<u64>, now: u64, flushes: u64) {
        let len = range.end - range.start;
        self.pause = self.pause.max(now.saturating_sub(len).saturating_sub(self.last));
        self.last = now;
        self.writes = self.writes.saturating_add(1);
        self.commits = self.commits.saturating_add(u32::from(flushes != self.flushes));
        self.flushes = flushes;
        self.strange = self.strange.saturating_sub(len);
        if range.end <= self.at {
            // It fills what was left out.
            self.skipped = if range.end == self.skipped.end {
                self.skipped.start..range.start
            } else {
                range.end..self.skipped.end
            };
            return;
        }
        if range.start < self.at {
            self.rewrites = self.rewrites.saturating_add(1);
        } else if range.start > self.at {
            self.skipped = self.at..range.start;
        }
        self.replayed = self.replayed.saturating_add(range.end - self.at);
        self.at = range.end;
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
