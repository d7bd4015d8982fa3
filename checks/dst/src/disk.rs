//! The disk: each sector's contents, its contents since it was last made durable, and the system's
//! memory of failures to write.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use fastrand::Rng;

/// Bytes of a sector.
pub(crate) const SECTOR: usize = 512;
/// Sectors of the largest request that is not worked on in parts.
pub(crate) const PART: u64 = vlane_engine::PART / SECTOR as u64;

/// A sector's contents: the number of the request that wrote it.
pub(crate) type Version = u64;
/// Zeroes.
pub(crate) const ZERO: Version = 0;
/// The contents before any write.
pub(crate) const INITIAL: Version = 1;

/// The contents of a sector: they say whose they are, in each of their words.
pub(crate) fn contents(sector: u64, version: Version) -> [u8; SECTOR] {
    let mut bytes = [0; SECTOR];
    if version != ZERO {
        for (at, word) in (0..).zip(bytes.as_chunks_mut::<8>().0) {
            *word = word_of(sector, version, at).to_le_bytes();
        }
    }
    bytes
}

fn word_of(sector: u64, version: Version, at: u64) -> u64 {
    match at {
        0 => version,
        1 => sector,
        _ => (version << 32 ^ sector << 8 ^ at).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    }
}

/// The version of a sector's contents; `None` if they are those of another sector, or of several
/// versions.
pub(crate) fn version_of(sector: u64, bytes: &[u8]) -> Option<Version> {
    let (words, _) = bytes.as_chunks::<8>();
    let version = u64::from_le_bytes(*words.first()?);
    let is_whole = (0..).zip(words).all(|(at, word)| {
        let expected = if version == ZERO { 0 } else { word_of(sector, version, at) };
        u64::from_le_bytes(*word) == expected
    });
    is_whole.then_some(version)
}

/// A write that is not known to be durable.
#[derive(Debug, Clone, Copy)]
struct Written {
    at: u64,
    version: Version,
    /// The system failed to write it, and does not try again.
    is_lost: bool,
}

#[derive(Debug, Clone, Default)]
struct Sector {
    durable: Version,
    since: Vec<Written>,
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub(crate) struct Disk {
    sectors: Vec<Sector>,
    /// Sectors that the image has now.
    pub(crate) size: u64,
    /// Counts writes.
    writes: u64,
    /// Failures to write back; and how many of them each open file has reported.
    failures: u64,
    told: BTreeMap<RawFd, u64>,
    /// The last one was reported.
    is_told: bool,
}

impl Disk {
    /// An image of `size` sectors, that can grow to `most`.
    pub(crate) fn new(size: u64, most: u64) -> Disk {
        let durable = |sector| if sector < size { INITIAL } else { ZERO };
        let sectors =
            (0..most).map(|at| Sector { durable: durable(at), since: Vec::new() }).collect();
        Disk { sectors, size, writes: 0, failures: 0, told: BTreeMap::new(), is_told: true }
    }

    /// Sectors that it can have.
    pub(crate) fn most(&self) -> u64 {
        self.sectors.len() as u64
    }

    fn at(&mut self, sector: u64) -> Option<&mut Sector> {
        self.sectors.get_mut(usize::try_from(sector).ok()?)
    }

    /// The contents that a read finds.
    pub(crate) fn read(&self, sector: u64) -> Version {
        let sector = &self.sectors[usize::try_from(sector).unwrap_or(usize::MAX)];
        sector.since.last().map_or(sector.durable, |written| written.version)
    }

    /// A write that is not durable.
    pub(crate) fn write(&mut self, sector: u64, version: Version) {
        self.writes += 1;
        let at = self.writes;
        if let Some(sector) = self.at(sector) {
            sector.since.push(Written { at, version, is_lost: false });
        }
    }

    /// A moment: what was written before it.
    pub(crate) fn now(&self) -> u64 {
        self.writes
    }

    /// Makes earlier writes to these sectors durable.
    pub(crate) fn settle(&mut self, sectors: impl Iterator<Item = u64>, before: u64) {
        for sector in sectors {
            let Some(sector) = self.at(sector) else { continue };
            let covered = |written: &&Written| written.at <= before && !written.is_lost;
            if let Some(last) = sector.since.iter().rfind(covered).copied() {
                sector.durable = last.version;
                // Earlier losses do not matter any more.
                sector.since.retain(|written| written.at > last.at);
            }
        }
    }

    /// Loses the writes of some sectors: they cannot be written back, and the system gives up.
    pub(crate) fn lose(&mut self, rng: &mut Rng) -> bool {
        let mut is_any = false;
        for sector in self.sectors.iter_mut().filter(|sector| !sector.since.is_empty()) {
            if rng.bool() {
                sector.since.iter_mut().for_each(|written| written.is_lost = true);
                is_any = true;
            }
        }
        if is_any {
            self.failures += 1;
            self.is_told = false;
        }
        is_any
    }

    /// An open file: it knows of no failure but an unreported one.
    pub(crate) fn open(&mut self, fd: RawFd) {
        let known = self.failures - u64::from(!self.is_told && self.failures > 0);
        self.told.insert(fd, known);
    }

    /// Reports failures new to this open file; returns true if there were any.
    pub(crate) fn tell(&mut self, fd: RawFd) -> bool {
        let told = self.told.insert(fd, self.failures).unwrap_or(self.failures);
        self.is_told |= told < self.failures;
        told < self.failures
    }

    /// All that a sector may hold after a power cut.
    pub(crate) fn outcomes(&self, sector: u64) -> impl Iterator<Item = Version> + '_ {
        let sector = &self.sectors[usize::try_from(sector).unwrap_or(usize::MAX)];
        std::iter::once(sector.durable).chain(sector.since.iter().map(|written| written.version))
    }

    /// The power fails.
    pub(crate) fn cut(&mut self, rng: &mut Rng) {
        for sector in &mut self.sectors {
            let at = rng.usize(0..=sector.since.len());
            sector.durable =
                at.checked_sub(1).map_or(sector.durable, |at| sector.since[at].version);
            sector.since.clear();
        }
        self.failures = 0;
        self.is_told = true;
        self.told.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sector_names_its_writer() {
        let one = contents(7, 5);
        assert_eq!((version_of(7, &one), version_of(8, &one)), (Some(5), None));
        assert_eq!(version_of(7, &contents(7, ZERO)), Some(ZERO));
        let mut torn = one;
        torn[256..].copy_from_slice(&contents(7, 6)[256..]);
        assert_eq!(version_of(7, &torn), None);
    }

    #[test]
    fn only_synced_data_must_stay() {
        let mut disk = Disk::new(2, 2);
        disk.write(0, 5);
        let before = disk.now();
        disk.write(0, 6);
        disk.write(1, 7);
        disk.settle(0..2, before);
        assert_eq!(disk.outcomes(0).collect::<Vec<_>>(), [5, 6]);
        assert_eq!(disk.outcomes(1).collect::<Vec<_>>(), [INITIAL, 7]);
        assert_eq!((disk.read(0), disk.read(1)), (6, 7));
    }

    /// A file opened later reports it if no other has.
    #[test]
    fn failure_is_reported_once_per_open_file() {
        let mut disk = Disk::new(1, 1);
        disk.open(1);
        disk.open(2);
        disk.write(0, 5);
        let mut rng = Rng::with_seed(1);
        while !disk.lose(&mut rng) {}
        disk.open(3);
        assert!(disk.tell(1) && !disk.tell(1) && disk.tell(2) && disk.tell(3));
        disk.open(4);
        assert!(!disk.tell(4));
        // A lost write is never durable, even after a later sync.
        disk.settle(0..1, disk.now());
        assert_eq!(disk.outcomes(0).next(), Some(INITIAL));
    }
}
