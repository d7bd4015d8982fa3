//! The journal thread: sleeps, drains the channels' rings, looks for journals, drops their pages.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rtrb::Consumer;
use rustix::event::{PollFd, PollFlags, Timespec};
use vlane_error::locked;
use vlane_policy::journal::bypass::{ByWay, Bypass};
use vlane_policy::journal::layout::JournalLayout;
use vlane_policy::journal::{self, Evidence, FileSystem, Head};

use super::direct::{Direct, Means};
use super::sense::{ENTRIES, Entry};
use super::{DROP, Desk};
use crate::pages;

/// The pause before the layout is read again after a write to it: most changes come together.
const QUIET: Duration = Duration::from_millis(250);
/// The longest that it is, for a guest that writes to it all the time.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes that go, or stay, together where some of a folio's are dirty: at least a page, of any
/// machine.
const SMALLEST: u64 = 64 << 10;

/// Limits how often an action is done: the more often it is wanted, the longer the interval.
#[derive(Debug)]
struct Pace {
    interval: Duration,
    last: Option<Instant>,
}

impl Pace {
    fn new() -> Pace {
        Pace { interval: QUIET, last: None }
    }

    /// It is done now.
    fn done(&mut self, now: Instant) {
        let is_busy = self.last.is_some_and(|last| now - last < 2 * self.interval);
        self.interval = if is_busy { (self.interval * 2).min(PATIENCE) } else { QUIET };
        self.last = Some(now);
    }
}

/// The image, for a reader of its layout.
struct Image<'a> {
    file: &'a File,
    direct: Option<&'a Direct>,
    size: u64,
}

impl journal::Disk for Image<'_> {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> bool {
        let end = offset.checked_add(buffer.len() as u64);
        let read = |buffer: &mut [u8]| match self.direct {
            Some(direct) => direct.read(self.file, buffer, offset),
            None => self.file.read_exact_at(buffer, offset),
        };
        end.is_some_and(|end| end <= self.size) && read(buffer).is_ok()
    }
}

struct Thread<'a> {
    desk: &'a Desk,
    bypass: Bypass,
    direct: Option<Direct>,
    size: u64,
    dropped: ByWay,
    /// Entries of the channels that were lost, as far as that was looked into, and when it is to be
    /// the next time.
    lost: u64,
    lost_due: Option<Instant>,
    looks: Pace,
    /// A ring may have more than was drained.
    is_behind: bool,
    /// For tests: replaces a layout.
    pretended: Option<JournalLayout>,
    /// Each with the heads of its next write.
    rings: Vec<(Consumer<Entry>, Vec<Head>)>,
    /// When the layout is to be read.
    layout_due: Option<Instant>,
    layouts: Pace,
    /// The time when changes may be logged.
    tell_due: Option<Instant>,
    tellings: Pace,
}

/// Until the volume ends.
pub(super) fn run(desk: &Desk, direct: Option<Means>) {
    let size = desk.size.load(Ordering::Relaxed);
    let mut thread = Thread {
        desk,
        bypass: Bypass::new(size, pages::size()),
        direct: direct.map(|means| Direct::new(means, &desk.name)),
        size,
        dropped: ByWay::default(),
        lost: 0,
        lost_due: None,
        looks: Pace::new(),
        is_behind: false,
        pretended: None,
        rings: Vec::new(),
        layout_due: Some(Instant::now()),
        layouts: Pace::new(),
        tell_due: None,
        tellings: Pace::new(),
    };
    while !desk.is_ending.load(Ordering::Acquire) {
        thread.round();
        thread.wait();
    }
}

impl Thread<'_> {
    fn wait(&self) {
        if self.is_behind {
            return;
        }
        let now = Instant::now();
        let direct_due = self.direct.as_ref().and_then(Direct::due);
        let due =
            [self.layout_due, self.tell_due, self.lost_due, direct_due].into_iter().flatten().min();
        let timeout = due
            .map(|due| Timespec::try_from(due.saturating_duration_since(now)).unwrap_or_default());
        let mut fds = [PollFd::new(&*self.desk.waker, PollFlags::IN)];
        // Interrupted: one round more.
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
        let _ = rustix::io::read(&*self.desk.waker, &mut [0; 8]);
    }

    fn round(&mut self) {
        let (asked, is_synced, layout) = {
            let mut answers = locked(&self.desk.answers);
            (answers.asked, std::mem::take(&mut answers.is_synced), answers.layout.take())
        };
        self.drain();
        let size = self.desk.size.load(Ordering::Relaxed);
        if size != self.size {
            self.size = size;
            self.bypass.resized(size);
        }
        if let Some(layout) = layout {
            self.pretended = Some(layout.clone());
            self.bypass.set_layout(layout);
        }
        self.look_at_losses();
        self.look_at_layout();
        if let Some(direct) = &mut self.direct {
            direct.step(self.bypass.map(), self.size, &self.desk.file);
        }
        self.tell();
        if is_synced {
            self.bypass.synced();
        }
        if self.bypass.due() >= DROP || is_synced {
            self.drop_pages();
            if let Some(direct) = &mut self.direct {
                direct.check(&self.desk.file, is_synced);
            }
        }
        self.publish();
        let mut answers = locked(&self.desk.answers);
        if answers.asked > answers.answered {
            answers.report.journals = self.bypass.journals().to_vec();
            answers.report.traffic = self.bypass.traffic();
            answers.report.dropped = self.dropped;
            answers.report.direct = self.direct.as_ref().map(Direct::report).unwrap_or_default();
            answers.answered = asked;
            self.desk.answered.notify_all();
        }
    }

    /// Shows the others where journals lie.
    fn publish(&self) {
        let mut map = locked(&self.desk.map);
        if !Arc::ptr_eq(&map, self.bypass.map()) {
            *map = Arc::clone(self.bypass.map());
            self.desk.map_changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Takes the channels' entries.
    fn drain(&mut self) {
        let mut new = locked(&self.desk.new);
        self.rings.extend(new.drain(..).map(|ring| (ring, Vec::new())));
        drop(new);
        let mut rings = std::mem::take(&mut self.rings);
        self.is_behind = false;
        // An abandoned ring gets no more entries, so it is empty once it was drained after that.
        rings.retain_mut(|(ring, heads)| {
            let is_abandoned = ring.is_abandoned();
            // Not for ever with a channel that writes all the time.
            let mut most = 2 * ENTRIES;
            while most > 0
                && let Ok(entry) = ring.pop()
            {
                self.note(entry, heads);
                most -= 1;
            }
            self.is_behind |= most == 0;
            !is_abandoned
        });
        self.rings = rings;
    }

    fn note(&mut self, entry: Entry, heads: &mut Vec<Head>) {
        match entry {
            // More than that, if their writes were lost.
            Entry::Head(head) if heads.len() < 2 * journal::content::MOST_HEADS => heads.push(head),
            Entry::Head(_) => {}
            Entry::Write { offset, len, is_durable } => {
                let range = self.inside(offset, len);
                heads.retain(|head| range.contains(&head.offset));
                if let Some(direct) = &mut self.direct {
                    direct.wrote(&range);
                }
                self.bypass.write(range, heads, is_durable);
                heads.clear();
            }
            Entry::Cleared { offset, len } => {
                let range = self.inside(offset, len);
                self.bypass.cleared(range);
            }
            Entry::Flushed => self.bypass.flushed(),
        }
    }

    fn inside(&self, offset: u64, len: u64) -> Range<u64> {
        let size = self.size;
        offset.min(size)..offset.saturating_add(len).min(size)
    }

    /// Lost pages may be anywhere in a journal. To look at all of it takes time, in which more may
    /// be lost: so it is not done often.
    fn look_at_losses(&mut self) {
        let lost = self.desk.lost.load(Ordering::Relaxed);
        if lost == self.lost {
            return;
        }
        let now = Instant::now();
        if now < *self.lost_due.get_or_insert(now + self.looks.interval) {
            return;
        }
        self.lost = lost;
        self.lost_due = None;
        self.looks.done(now);
        self.bypass.missed();
    }

    fn look_at_layout(&mut self) {
        if !self.bypass.needs_layout() {
            self.layout_due = None;
            return;
        }
        let now = Instant::now();
        // Later than the writes that changed it, which were reported when they began.
        let due = *self.layout_due.get_or_insert(now + self.layouts.interval);
        if now < due {
            return;
        }
        let mut image =
            Image { file: &self.desk.file, direct: self.direct.as_ref(), size: self.size };
        let read = || journal::layout::read(&mut image, self.size);
        let layout = self.pretended.clone().unwrap_or_else(read);
        self.layout_due = None;
        self.layouts.done(now);
        self.bypass.set_layout(layout);
    }

    /// Logs the journals that were found or are gone.
    fn tell(&mut self) {
        let now = Instant::now();
        if self.tell_due.is_some_and(|due| now < due) {
            return;
        }
        self.tell_due = None;
        let Some(change) = self.bypass.change() else { return };
        self.tellings.done(now);
        // Changes in the meantime are logged then.
        self.tell_due = Some(now + self.tellings.interval);
        let name = &self.desk.name;
        for (journals, what) in [
            (&change.found, "found; it is kept out of the page cache"),
            (&change.lost, "is no longer known; it goes through the page cache"),
        ] {
            for journal in journals {
                let of = match journal.filesystem {
                    FileSystem::Ext4 => "an ext4 journal",
                    FileSystem::Xfs => "an XFS log",
                    FileSystem::Unknown => "a journal",
                };
                let way = match journal.way {
                    Evidence::Layout => "the file system's superblock",
                    Evidence::Content => "what is written there",
                    Evidence::Pattern => "the order of writes",
                };
                let (len, begin) =
                    (journal.len(), journal.ranges.first().map_or(0, |range| range.start));
                tracing::info!("{name}: {of} of {len} bytes at byte {begin} (by {way}) {what}");
            }
        }
    }

    fn drop_pages(&mut self) {
        for journal::trailing::Drop { range, way } in self.bypass.take() {
            match pages::count(&self.desk.file, &range) {
                None => {
                    pages::drop(&self.desk.file, &range);
                    // All that is known.
                    *self.dropped.of(way) += range.end - range.start;
                }
                Some(pages) if pages.are_none() => {}
                Some(pages) if pages.are_clean() => self.drop_clean(&range, way, pages.cached),
                Some(_) => self.each_folio(&range, |thread, folio, pages| {
                    thread.drop_parts(&folio, way, pages)
                }),
            }
        }
    }

    /// Drops the clean pages of a part of a folio; the rest is retried. Some pages count as dirty
    /// for ever: a file system that cuts a hole into a large folio can leave the mark of one that
    /// is clean. They keep only their neighbours.
    fn drop_parts(&mut self, range: &Range<u64>, way: Evidence, pages: pages::Pages) {
        if pages.are_clean() {
            return self.drop_clean(range, way, pages.cached);
        }
        let len = range.end - range.start;
        if len <= SMALLEST {
            return self.bypass.keep(range);
        }
        // Inside: there is a multiple between the ends of what is longer than one.
        let middle = (range.start + len / 2).next_multiple_of(SMALLEST);
        let middle = if middle < range.end { middle } else { middle - SMALLEST };
        for part in [range.start..middle, middle..range.end] {
            match pages::count(&self.desk.file, &part) {
                Some(pages) if !pages.are_none() => self.drop_parts(&part, way, pages),
                _ => {}
            }
        }
    }

    /// Drops a range without dirty pages or pages in writeback, as far as that is known. The system
    /// would begin to write the rest, and that may have to wait for the disk: long enough for rings
    /// to run over.
    fn drop_clean(&mut self, range: &Range<u64>, way: Evidence, before: u64) {
        pages::drop(&self.desk.file, range);
        let after = pages::cached(&self.desk.file, range).unwrap_or(0);
        *self.dropped.of(way) += before.saturating_sub(after).saturating_mul(pages::size());
        if after > 0 {
            // Dirty again, or not dropped: it is tried again.
            self.each_folio(range, |thread, folio, _| thread.bypass.keep(&folio));
        }
    }

    /// The parts of a range that have pages in the cache, cut at the borders of the largest folio.
    fn each_folio(
        &mut self,
        range: &Range<u64>,
        mut each: impl FnMut(&mut Self, Range<u64>, pages::Pages),
    ) {
        let folio = self.bypass.folio();
        let mut begin = range.start;
        while begin < range.end {
            let end = (begin - begin % folio).saturating_add(folio).min(range.end);
            match pages::count(&self.desk.file, &(begin..end)) {
                Some(pages) if !pages.are_none() => each(self, begin..end, pages),
                _ => {}
            }
            begin = end;
        }
    }
}
