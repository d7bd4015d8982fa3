//! The loads: two common benchmarks, as fio jobs, and the figures once published for them.
//!
//! The first is iozone's table (`iozone -e -I -s 100M -r 4k -r 4096k -r 16384k -i 0 -i 1 -i 2`):
//! one request at a time, by synchronous calls, on a file of a file system; writes end with a
//! flush. The second is fio's: 4K random, 512K sequential and random, many requests at a time. The
//! published figures (2018 and 2019; a SATA SSD, a guest with 4 GiB under QEMU and KVM) are from a
//! blog ("Virtio Block", benchmark and detailed analysis). Readers can compare their own figures
//! with these, but need not reach them.

use clap::ValueEnum;
use vlane_testbed::word;

/// Pattern of a load, in the order of iozone's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Pattern {
    /// Sequential writes to a file that has no blocks yet.
    Write,
    /// Sequential writes to a file that has them.
    Rewrite,
    /// Sequential reads.
    Read,
    /// The same once more.
    Reread,
    /// Reads at random places.
    RandomRead,
    /// Writes at random places.
    RandomWrite,
}

impl Pattern {
    /// For ids: letters and dashes.
    fn id(self) -> String {
        word(self)
    }

    /// As fio's `rw` names it.
    pub fn fio(self) -> &'static str {
        match self {
            Self::Write | Self::Rewrite => "write",
            Self::Read | Self::Reread => "read",
            Self::RandomRead => "randread",
            Self::RandomWrite => "randwrite",
        }
    }

    /// True if it writes.
    pub fn writes(self) -> bool {
        self.fio().ends_with("write")
    }
}

/// A load: the subject of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Its pattern.
    pub pattern: Pattern,
    /// Bytes per request, in KiB.
    pub record_kib: u32,
    /// Requests out at once; one alone is iozone's table.
    pub depth: u16,
    /// Threads; without a guest, each has a queue of its own.
    pub jobs: u16,
}

/// Record sizes of iozone's table, in KiB.
pub const RECORDS: [u32; 3] = [4, 4096, 16384];
/// The depth of fio's table. Its source does not name one; this is that of the multi-queue
/// measurements.
pub const FIO_DEPTH: u16 = 32;

impl Load {
    /// One of iozone's table.
    pub fn iozone(pattern: Pattern, record_kib: u32) -> Self {
        Self { pattern, record_kib, depth: 1, jobs: 1 }
    }

    /// One of fio's table.
    pub fn fio(pattern: Pattern, record_kib: u32) -> Self {
        // 16 MiB on the way are enough for any disk, and all that a small guest has room for.
        let depth = if record_kib > 64 { FIO_DEPTH / 2 } else { FIO_DEPTH };
        Self { pattern, record_kib, depth, jobs: 1 }
    }

    /// True for one of fio's table.
    pub fn is_fio(&self) -> bool {
        self.depth > 1
    }

    /// True for random requests of fio's table, 4K and 512K: the report says where they go.
    pub fn is_random_fio(&self) -> bool {
        self.is_fio() && matches!(self.pattern, Pattern::RandomRead | Pattern::RandomWrite)
    }

    /// Bytes per request.
    pub fn record(&self) -> u64 {
        u64::from(self.record_kib) << 10
    }

    /// Its name in job files and on the guest's console: letters, digits and dashes.
    pub fn id(&self) -> String {
        let table = if self.is_fio() { "fio" } else { "iozone" };
        format!("{table}-{}-{}k", self.pattern.id(), self.record_kib)
    }

    /// Its name for people. Sequential ones say so in fio's table, which does not distinguish
    /// rewrite and reread.
    pub fn name(&self) -> String {
        let pattern = match self.pattern {
            Pattern::Read if self.is_fio() => "sequential read".into(),
            Pattern::Rewrite if self.is_fio() => "sequential write".into(),
            pattern => pattern.id().replace('-', " "),
        };
        format!("{}K {pattern}", self.record_kib)
    }

    /// Its name with the depth, and with the jobs if there are several.
    pub fn long_name(&self) -> String {
        let jobs = if self.jobs > 1 { format!(", {} jobs", self.jobs) } else { String::new() };
        format!("{}, depth {}{jobs}", self.name(), self.depth)
    }
}

/// Every load, in the order of the tables.
pub fn all() -> Vec<Load> {
    let patterns = Pattern::value_variants().iter();
    let iozone = RECORDS
        .into_iter()
        .flat_map(|record| patterns.clone().map(move |pattern| Load::iozone(*pattern, record)));
    iozone.chain(fio_table()).collect()
}

/// The loads of fio's table.
pub fn fio_table() -> [Load; 6] {
    use Pattern::{RandomRead, RandomWrite, Read, Rewrite};
    [
        Load::fio(RandomRead, 4),
        Load::fio(RandomWrite, 4),
        Load::fio(Read, 512),
        Load::fio(Rewrite, 512),
        Load::fio(RandomRead, 512),
        Load::fio(RandomWrite, 512),
    ]
}

/// iozone's published table in per cent of the host: virtio-blk, emulated; by record size, then
/// pattern. Its sixth column is headed "R/Reread"; with the options given, iozone prints random
/// writes there.
const PUBLISHED_IOZONE: [([f64; 6], [f64; 6]); 3] = [
    ([51.8, 54.6, 57.5, 51.5, 81.7, 67.9], [9.4, 9.5, 8.9, 10.2, 32.2, 16.5]),
    ([80.2, 78.2, 81.1, 79.6, 80.7, 78.9], [53.4, 52.8, 52.2, 53.1, 50.3, 52.8]),
    ([79.5, 85.8, 80.6, 80.1, 83.8, 83.3], [55.7, 53.6, 52.2, 55.3, 55.5, 53.5]),
];

/// fio's published table in per cent of the host: virtio-blk. The reads are of the page cache: 7.7
/// and 13.4 GB/s from a SATA disk.
const PUBLISHED_FIO: [f64; 6] = [67.0, 58.0, 91.0, 69.0, 93.0, 70.0];

/// Figures published for a load, in per cent of the host: the guest on virtio-blk, and on QEMU's
/// emulated disk, which fio's table does not have.
pub fn published(load: &Load) -> Option<(f64, Option<f64>)> {
    if load.is_fio() {
        let at = fio_table().iter().position(|one| one == load)?;
        return Some((PUBLISHED_FIO[at], None));
    }
    let record = RECORDS.iter().position(|record| *record == load.record_kib)?;
    let (virtio, emulated) = PUBLISHED_IOZONE[record];
    let at = load.pattern as usize;
    Some((virtio[at], Some(emulated[at])))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn tables_are_whole_with_unique_names() {
        let all = all();
        assert_eq!(all.len(), 24);
        for (i, load) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| other.id() != load.id()));
            assert!(
                load.id().chars().all(|c| c.is_ascii_alphanumeric() || c == '-'),
                "{}",
                load.id()
            );
            assert!(load.record() * u64::from(load.depth) <= 16 << 20);
        }
        assert_eq!(Load::fio(Pattern::Rewrite, 512).name(), "512K sequential write");
        assert_eq!(Load::iozone(Pattern::Rewrite, 4).name(), "4K rewrite");
    }

    #[test]
    fn published_ratios_match_their_source() {
        for load in all() {
            let (virtio, emulated) = published(&load).unwrap();
            assert_eq!(emulated.is_none(), load.is_fio());
            // "about 80 %" and "53 to 55 %" of the host at 16384K; "a tenth" at 4K.
            if load.record_kib == 16384 {
                assert!((79.0..87.0).contains(&virtio), "{virtio}");
                assert!((52.0..57.0).contains(&emulated.unwrap()), "{emulated:?}");
            }
            if !load.is_fio() && load.record_kib == 4 && load.pattern != Pattern::RandomRead {
                assert!((8.0..17.0).contains(&emulated.unwrap()), "{emulated:?}");
            }
        }
        assert_eq!(published(&Load::fio(Pattern::RandomRead, 4)), Some((67.0, None)));
    }
}
