//! The loads: two common benchmarks, as fio jobs, and the figures once published for them.
//!
//! The first is iozone's table (`iozone -e -I -s 100M -r 4k -r 4096k -r 16384k -i 0 -i 1 -i 2`):
//! one request at a time, by synchronous calls, on a file of a file system; writes end with a
//! flush. The second is fio's: 4K random, 512K sequential and random, many requests at a time. The
//! published figures (2018 and 2019; a SATA SSD, a guest with 4 GiB under QEMU and KVM) are from a
//! blog ("Virtio Block", benchmark and detailed analysis). Readers can compare their own figures
//! with these, but need not reach them.

use serde::{Deserialize, Serialize};

/// Which of the two tables a load belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Suite {
    /// iozone's table.
    Iozone,
    /// fio's table.
    Fio,
}

/// Pattern of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
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
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Rewrite => "rewrite",
            Self::Read => "read",
            Self::Reread => "reread",
            Self::RandomRead => "random read",
            Self::RandomWrite => "random write",
        }
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
        matches!(self, Self::Write | Self::Rewrite | Self::RandomWrite)
    }
}

/// A load: what stands in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Load {
    /// Its table.
    pub suite: Suite,
    /// Its pattern.
    pub pattern: Pattern,
    /// Bytes per request, in KiB.
    pub record_kib: u32,
    /// Requests out at once.
    pub depth: u16,
}

/// Record sizes of iozone's table, in KiB.
pub const RECORDS: [u32; 3] = [4, 4096, 16384];
/// Patterns of iozone's table, in its order.
pub const PATTERNS: [Pattern; 6] = [
    Pattern::Write,
    Pattern::Rewrite,
    Pattern::Read,
    Pattern::Reread,
    Pattern::RandomRead,
    Pattern::RandomWrite,
];
/// The depth of fio's table. Its source does not name one; this is that of the multi-queue
/// measurements.
pub const FIO_DEPTH: u16 = 32;

impl Load {
    /// One of iozone's table.
    pub fn iozone(pattern: Pattern, record_kib: u32) -> Self {
        Self { suite: Suite::Iozone, pattern, record_kib, depth: 1 }
    }

    /// One of fio's table.
    pub fn fio(pattern: Pattern, record_kib: u32) -> Self {
        // 16 MiB on the way are enough for any disk, and all that a small guest has room for.
        let depth = if record_kib > 64 { FIO_DEPTH / 2 } else { FIO_DEPTH };
        Self { suite: Suite::Fio, pattern, record_kib, depth }
    }

    /// Bytes per request.
    pub fn record(&self) -> u64 {
        u64::from(self.record_kib) << 10
    }

    /// Its name in job files and on the guest's console: letters, digits and dashes.
    pub fn id(&self) -> String {
        let suite = match self.suite {
            Suite::Iozone => "iozone",
            Suite::Fio => "fio",
        };
        format!("{suite}-{}-{}k", self.pattern.name().replace(' ', "-"), self.record_kib)
    }

    /// Its name for people.
    pub fn name(&self) -> String {
        format!("{}K {}", self.record_kib, self.long_pattern())
    }

    /// The pattern's name; sequential ones say so in fio's table, which does not distinguish
    /// rewrite and reread.
    pub fn long_pattern(&self) -> &'static str {
        match (self.suite, self.pattern) {
            (Suite::Fio, Pattern::Read) => "sequential read",
            (Suite::Fio, Pattern::Rewrite) => "sequential write",
            (_, pattern) => pattern.name(),
        }
    }
}

/// Every load, in the order of the tables.
pub fn all() -> Vec<Load> {
    let iozone = RECORDS
        .iter()
        .flat_map(|record| PATTERNS.iter().map(|pattern| Load::iozone(*pattern, *record)));
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

/// Figures published for a load, as ratios to the host.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Published {
    /// The guest on virtio-blk.
    pub virtio: f64,
    /// The guest on QEMU's emulated disk; fio's table has none.
    pub emulated: Option<f64>,
}

/// iozone's published table in KB/s: host, virtio-blk, emulated; by record size, then pattern. Its
/// sixth column is headed "R/Reread"; with the options given, iozone prints random writes there.
const PUBLISHED_IOZONE: [(u32, [[f64; 6]; 3]); 3] = [
    (
        4,
        [
            [108_531.0, 140_209.0, 130_116.0, 149_202.0, 41_372.0, 108_057.0],
            [56_260.0, 76_539.0, 74_808.0, 76_864.0, 33_816.0, 73_393.0],
            [10_231.0, 13_252.0, 11_558.0, 15_289.0, 13_324.0, 17_782.0],
        ],
    ),
    (
        4096,
        [
            [475_827.0, 493_225.0, 500_618.0, 506_168.0, 506_449.0, 491_150.0],
            [381_458.0, 385_537.0, 406_131.0, 403_043.0, 408_653.0, 387_712.0],
            [254_328.0, 260_574.0, 261_297.0, 268_813.0, 254_842.0, 259_518.0],
        ],
    ),
    (
        16384,
        [
            [495_826.0, 502_281.0, 524_808.0, 521_351.0, 520_112.0, 502_445.0],
            [394_283.0, 431_118.0, 423_213.0, 417_768.0, 435_611.0, 418_307.0],
            [276_397.0, 269_190.0, 273_982.0, 288_246.0, 288_831.0, 268_841.0],
        ],
    ),
];

/// fio's published ratios. The reads are of the page cache: 7.7 and 13.4 GB/s from a SATA disk.
const PUBLISHED_FIO: [(Pattern, u32, f64); 6] = [
    (Pattern::RandomRead, 4, 0.67),
    (Pattern::RandomWrite, 4, 0.58),
    (Pattern::Read, 512, 0.91),
    (Pattern::Rewrite, 512, 0.69),
    (Pattern::RandomRead, 512, 0.93),
    (Pattern::RandomWrite, 512, 0.70),
];

/// Times as many calls of virtio-blk functions for 4K as for 512K: random reads, random writes, as
/// published.
pub const PUBLISHED_CALLS: [f64; 2] = [10.87, 27.67];

/// Figures published for a load.
pub fn published(load: &Load) -> Option<Published> {
    match load.suite {
        Suite::Iozone => {
            let (_, [host, virtio, emulated]) =
                PUBLISHED_IOZONE.iter().find(|(record, _)| *record == load.record_kib)?;
            let at = PATTERNS.iter().position(|pattern| *pattern == load.pattern)?;
            Some(Published {
                virtio: virtio[at] / host[at],
                emulated: Some(emulated[at] / host[at]),
            })
        }
        Suite::Fio => PUBLISHED_FIO
            .iter()
            .find(|(pattern, record, _)| *pattern == load.pattern && *record == load.record_kib)
            .map(|(_, _, virtio)| Published { virtio: *virtio, emulated: None }),
    }
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
            let published = published(&load).unwrap();
            // "about 80 %" and "53 to 55 %" of the host at 16384K; "a tenth" at 4K.
            if load.record_kib == 16384 {
                assert!((0.79..0.87).contains(&published.virtio), "{published:?}");
                assert!((0.52..0.57).contains(&published.emulated.unwrap()), "{published:?}");
            }
            if load.suite == Suite::Iozone
                && load.record_kib == 4
                && load.pattern != Pattern::RandomRead
            {
                assert!((0.08..0.17).contains(&published.emulated.unwrap()), "{published:?}");
            }
        }
        let random = published(&Load::fio(Pattern::RandomRead, 4)).unwrap();
        assert!((random.virtio - 0.67).abs() < 1e-9 && random.emulated.is_none());
    }
}
