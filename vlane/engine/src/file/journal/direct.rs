//! Which parts of the journals are direct regions, and how that changes. Done by the journal
//! thread; see [`crate::file::placements`] for the channels' side.
//!
//! A range changes its placement only while no request uses it and the page cache has no page of
//! it:
//!
//! 1. the thread writes dirty pages there back while the guest continues: the rest is shorter for
//!    it;
//! 2. new requests that touch it are held, those that are under way end;
//! 3. `fdatasync`, `POSIX_FADV_DONTNEED`, and a check that no page is left (`cachestat`);
//! 4. the new map is published, and held requests continue.
//!
//! Any failure leaves the old map in force, and the change is retried later. Failures are a drain
//! that takes too long because the storage does not answer, pages that do not go, and a failed
//! `fdatasync`. That is noted as any other lost write, and ends all changes.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vlane_policy::journal::{Map, Regions};

use crate::file::durability::Durability;
use crate::file::placements::Placements;
use crate::file::transfer::Align;
use crate::pages::{self, Pages};
use crate::{Piece, Writeback};

/// How long requests are held while others do not end.
const DRAIN: Duration = Duration::from_secs(2);
/// How often pages are asked to go before the change is put off.
const ATTEMPTS: u32 = 5;
/// Between two of them.
const PAUSE: Duration = Duration::from_millis(2);
/// After a change that was put off; twice as long each time, up to the longest.
const BACK_OFF: Duration = Duration::from_millis(100);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(30);
/// How often it is looked whether something is in the page cache that should not be.
const CHECK: Duration = Duration::from_secs(1);
/// Looks one after the other that find pages that do not go, until a region is given up.
const SUSPICIONS: u32 = 3;

/// Direct regions, as far as there are any.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DirectReport {
    /// Why no region can be direct, if none can.
    pub refusal: Option<String>,
    /// The ranges that are read and written around the page cache.
    pub ranges: Vec<Range<u64>>,
    /// A change is under way, or waits to be tried again.
    pub is_changing: bool,
    /// Bytes written to regions.
    pub written: u64,
    /// Changes that went well, and that did not.
    pub changes: u64,
    /// The same of those that were put off.
    pub put_off: u64,
    /// Ranges that are not direct any more because something else on the host used them through the
    /// page cache.
    pub given_up: Vec<Range<u64>>,
}

/// The means of a volume that can have direct regions.
#[derive(Debug)]
pub(in crate::file) struct Means {
    pub(in crate::file) placements: Arc<Placements>,
    pub(in crate::file) durability: Arc<Durability>,
    /// For reading around the page cache, as an open file of the thread's own.
    pub(in crate::file) direct: File,
    pub(in crate::file) align: Align,
}

/// The regions of a volume.
#[derive(Debug)]
pub(super) struct Direct {
    means: Means,
    name: String,
    /// The map and the volume's size that `wanted` was made from.
    of: (Arc<Map>, u64),
    /// The regions in force, and the wanted ones.
    regions: Arc<Regions>,
    wanted: Regions,
    change: Option<Change>,
    /// When the next one may begin, and how long to wait after it.
    due: Option<Instant>,
    back_off: Duration,
    checked: Option<Instant>,
    suspicions: u32,
    given_up: Regions,
    report: DirectReport,
}

#[derive(Debug)]
struct Change {
    to: Arc<Regions>,
    ranges: Regions,
    since: Instant,
}

impl Direct {
    pub(super) fn new(means: Means, name: &str) -> Direct {
        Direct {
            name: name.to_owned(),
            of: (Arc::default(), 0),
            regions: means.placements.regions(),
            means,
            wanted: Regions::default(),
            change: None,
            due: None,
            back_off: BACK_OFF,
            checked: None,
            suspicions: 0,
            given_up: Regions::default(),
            report: DirectReport::default(),
        }
    }

    /// The journals that are known now. `file` goes through the page cache.
    pub(super) fn step(&mut self, map: &Arc<Map>, size: u64, file: &File) {
        if !Arc::ptr_eq(&self.of.0, map) || self.of.1 != size {
            self.of = (Arc::clone(map), size);
            self.want();
        }
        let now = Instant::now();
        match &self.change {
            Some(_) if self.means.placements.is_drained() => self.finish(file),
            Some(change) if now.saturating_duration_since(change.since) >= DRAIN => {
                tracing::debug!("{}: requests do not end; its regions stay as they are", self.name);
                self.put_off();
            }
            Some(_) => {}
            None if self.wanted == *self.regions || self.due.is_some_and(|due| now < due) => {}
            None => self.begin(file),
        }
    }

    /// The time when [`Direct::step`] has work without being woken.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.change {
            Some(change) => Some(change.since + DRAIN),
            None if self.wanted == *self.regions => None,
            None => self.due.or_else(|| Some(Instant::now())),
        }
    }

    fn want(&mut self) {
        let (map, size) = &self.of;
        let all = Regions::new(map, *size, pages::size(), self.means.align.block);
        self.wanted = all.without(&self.given_up);
    }

    fn begin(&mut self, file: &File) {
        let ranges = self.regions.difference(&self.wanted);
        let durability = &self.means.durability;
        if !durability.is_lost() {
            // How it went is for the `fdatasync` to say.
            ranges.ranges().iter().for_each(|range| drop(pages::write_back(file, range)));
        }
        // For ever: what was not written is found in the cache only, where it counts as clean.
        if durability.ask(Writeback::Sync) {
            self.wanted = (*self.regions).clone();
            return;
        }
        ranges.ranges().iter().for_each(|range| pages::drop(file, range));
        self.means.placements.hold(ranges.clone());
        self.change =
            Some(Change { to: Arc::new(self.wanted.clone()), ranges, since: Instant::now() });
        // There may be no channel that wakes us.
        if self.means.placements.is_drained() {
            self.finish(file);
        }
    }

    fn finish(&mut self, file: &File) {
        let Some(change) = &self.change else { return };
        match empty(file, &change.ranges, &self.means.durability) {
            Ok(()) => {
                self.regions = Arc::clone(&change.to);
                self.means.placements.release(Arc::clone(&change.to));
                (self.change, self.due, self.back_off) = (None, None, BACK_OFF);
                self.report.changes += 1;
                self.suspicions = 0;
                tracing::debug!("{}: direct regions: {:?}", self.name, self.regions.ranges());
            }
            Err(why) => {
                tracing::debug!("{}: its regions stay as they are: {why}", self.name);
                self.put_off();
            }
        }
    }

    /// The old map stays in force.
    fn put_off(&mut self) {
        self.change = None;
        self.means.placements.release(Arc::clone(&self.regions));
        self.report.put_off += 1;
        self.due = Some(Instant::now() + self.back_off);
        self.back_off = (self.back_off * 2).min(LONGEST_BACK_OFF);
    }

    /// The guest writes to a range.
    pub(super) fn wrote(&mut self, range: &Range<u64>) {
        self.report.written = self.report.written.saturating_add(self.regions.bytes_of(range));
    }

    /// After a flush: whether the page cache has anything of a region; now and then, or at once.
    ///
    /// A read beside a region may have the system read ahead into it; pages that are clean are
    /// dropped without a message. Pages that are dirty, or do not go, belong to a process that uses
    /// the image through the page cache.
    pub(super) fn check(&mut self, file: &File, is_now: bool) {
        let now = Instant::now();
        let is_due =
            is_now || self.checked.is_none_or(|last| now.saturating_duration_since(last) >= CHECK);
        if !is_due || self.change.is_some() {
            return;
        }
        self.checked = Some(now);
        let found = self.regions.ranges().iter().filter(|range| {
            let Some(before) = pages::count(file, range).filter(|pages| !pages.are_none()) else {
                return false;
            };
            if before.are_clean() {
                pages::drop(file, range);
            }
            pages::count(file, range).is_some_and(|pages| !pages.are_none())
        });
        let mut suspects = Regions::default();
        for range in found {
            suspects = suspects.with(&Regions::of(range.clone()));
        }
        if suspects.is_empty() {
            self.suspicions = 0;
            return;
        }
        self.suspicions += 1;
        if self.suspicions >= SUSPICIONS {
            self.give_up(&suspects);
        }
    }

    fn give_up(&mut self, suspects: &Regions) {
        if self.given_up.is_empty() {
            tracing::warn!(
                "{}: the page cache has pages of the guest's journal, which is read and written \
                 around it: another program of this host uses the image; from now on the journal \
                 goes through the page cache, and is dropped from it",
                self.name
            );
        }
        self.given_up = self.given_up.with(suspects);
        self.suspicions = 0;
        self.want();
    }

    pub(super) fn report(&self) -> DirectReport {
        DirectReport {
            ranges: self.regions.ranges().to_vec(),
            is_changing: self.change.is_some() || self.wanted != *self.regions,
            given_up: self.given_up.ranges().to_vec(),
            ..self.report.clone()
        }
    }

    /// Reads as a guest would: around the page cache where that is how the guest does it.
    pub(super) fn read(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let range = offset..offset.saturating_add(buffer.len() as u64);
        if !self.regions.touches(&range) {
            return file.read_exact_at(buffer, offset);
        }
        // The parts outside have no dirty pages that a read around the cache would miss: the system
        // writes them first.
        let Align { block, memory } = self.means.align;
        let block = block.max(memory as u64);
        let start = range.start - range.start % block;
        let len =
            usize::try_from(range.end.next_multiple_of(block) - start).map_err(io::Error::other)?;
        let mut piece = Piece::new(len);
        let bytes = &mut piece.bytes_mut()[..len];
        let skip = usize::try_from(range.start - start).map_err(io::Error::other)?;
        let mut done = 0;
        while done < skip + buffer.len() {
            match self.means.direct.read_at(&mut bytes[done..], start + done as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n if (n as u64).is_multiple_of(block) || done + n >= skip + buffer.len() => {
                    done += n
                }
                _ => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
        buffer.copy_from_slice(&bytes[skip..skip + buffer.len()]);
        Ok(())
    }
}

impl Drop for Direct {
    /// At any end of the thread, held requests continue.
    fn drop(&mut self) {
        if self.change.is_some() {
            self.put_off();
        }
    }
}

/// Empties the page cache of unused ranges; or returns the reason why it could not.
fn empty(file: &File, ranges: &Regions, durability: &Durability) -> Result<(), String> {
    let (mut cached, mut dirty) = (0, 0);
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            std::thread::sleep(PAUSE);
        }
        if let Err(error) = file.sync_data() {
            durability.fail(error.raw_os_error().unwrap_or(libc::EIO), Writeback::Sync);
        }
        if durability.ask(Writeback::Sync) {
            return Err("a write was lost".to_owned());
        }
        (cached, dirty) = (0, 0);
        for range in ranges.ranges() {
            pages::drop(file, range);
            // Where the system does not report it, there are no regions.
            let left = pages::count(file, range).unwrap_or(Pages { cached: 1, ..Pages::default() });
            cached += left.cached;
            dirty += left.dirty + left.writeback;
        }
        if (cached, dirty) == (0, 0) {
            return Ok(());
        }
    }
    Err(format!("of their pages, {cached} stay, {dirty} of them dirty"))
}
