//! A key-value store's files beside its log: merged tables, and, as a control, data that are never
//! made durable.

use fastrand::Rng;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Step, timed};

/// Bytes of a record: a key of 16 and a value of 100.
const RECORD: usize = 116;
/// Bytes of a key.
const KEY: usize = 16;
/// Records of a table: 2 MiB, as LevelDB's tables have.
const TABLE: usize = (2 << 20) / RECORD;
/// Tables that there are.
const TABLES: u64 = 16;
/// Bytes of a table that are written at a time.
const CHUNK: usize = 1 << 20;
/// Bytes of the file that is read and written at random.
const FILE: u64 = 64 << 20;
/// Bytes of it that are read or written at a time.
const BLOCK: usize = 4096;

/// Tables of sorted records. A step is a small compaction: the two oldest are read, merged, and
/// written as two new ones, each fsynced. Then the old ones are removed.
pub(super) struct Compact {
    directory: PathBuf,
    /// The oldest table and the next one's number.
    tables: std::ops::Range<u64>,
}

impl Compact {
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let mut dice = Rng::with_seed(0x2545_f491);
        let mut new = Self { directory: directory.into(), tables: 0..0 };
        for _ in 0..TABLES {
            let mut bytes = Vec::with_capacity(TABLE * RECORD);
            for _ in 0..TABLE {
                bytes.extend_from_slice(format!("{:016x}", dice.u64(..u64::MAX)).as_bytes());
                bytes.resize(bytes.len() + RECORD - KEY, b'v');
            }
            new.write(&sorted([&bytes]), &mut Vec::new())?;
        }
        Ok(new)
    }

    fn path(&self, table: u64) -> PathBuf {
        self.directory.join(format!("table-{table}"))
    }

    fn write(&mut self, records: &[&[u8]], waits: &mut Vec<Duration>) -> io::Result<()> {
        let mut file = File::create_new(self.path(self.tables.end))?;
        self.tables.end += 1;
        let bytes = records.concat();
        bytes.chunks(CHUNK).try_for_each(|chunk| file.write_all(chunk))?;
        timed(waits, || file.sync_all())
    }
}

/// The records of tables, by their keys.
fn sorted<'a>(tables: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<&'a [u8]> {
    let mut records: Vec<&[u8]> =
        tables.into_iter().flat_map(|table| table.chunks_exact(RECORD)).collect();
    records.sort_by_key(|record| &record[..KEY]);
    records
}

impl Step for Compact {
    fn step(&mut self, waits: &mut Vec<Duration>) -> io::Result<()> {
        let old = [self.tables.start, self.tables.start + 1];
        let tables = [fs::read(self.path(old[0]))?, fs::read(self.path(old[1]))?];
        let merged = sorted(&tables);
        for half in merged.chunks(merged.len().div_ceil(2).max(1)) {
            self.write(half, waits)?;
        }
        self.tables.start += 2;
        old.into_iter().try_for_each(|table| fs::remove_file(self.path(table)))
    }
}

/// A file. A step reads 4K of it and writes 4K, each anywhere, without making them durable.
pub(super) struct Plain {
    file: File,
    dice: Rng,
    block: Vec<u8>,
}

impl Plain {
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let path = directory.join("plain");
        let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
        let chunk = vec![b'p'; CHUNK];
        let mut left = FILE;
        while left > 0 {
            file.write_all(&chunk)?;
            left = left.saturating_sub(CHUNK as u64);
        }
        file.sync_all()?;
        Ok(Self { file, dice: Rng::with_seed(0x1234_5678), block: vec![b'w'; BLOCK] })
    }

    fn anywhere(&mut self) -> u64 {
        let block = BLOCK as u64;
        self.dice.u64(..FILE / block) * block
    }
}

impl Step for Plain {
    fn step(&mut self, waits: &mut Vec<Duration>) -> io::Result<()> {
        let (from, to) = (self.anywhere(), self.anywhere());
        timed(waits, || {
            self.file.read_exact_at(&mut self.block, from)?;
            self.file.write_all_at(&self.block, to)
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn compaction_keeps_records_sorted() {
        let dir = tempfile::tempdir().unwrap();
        let mut compact = Compact::new(dir.path()).unwrap();
        let keys = || {
            let mut keys = Vec::new();
            let entries = fs::read_dir(dir.path()).unwrap();
            for table in entries.map(|entry| fs::read(entry.unwrap().path()).unwrap()) {
                let of_table: Vec<_> =
                    table.chunks(RECORD).map(|record| record[..KEY].to_vec()).collect();
                assert!(of_table.is_sorted() && of_table.len() == TABLE);
                keys.extend(of_table);
            }
            keys.sort();
            keys
        };
        let before = keys();
        let mut waits = Vec::new();
        for _ in 0..3 {
            compact.step(&mut waits).unwrap();
        }
        assert!(keys() == before);
        assert_eq!(waits.len(), 6, "two fsyncs each");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count() as u64, TABLES);
    }

    #[test]
    fn random_access_stays_within_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut plain = Plain::new(dir.path()).unwrap();
        let mut waits = Vec::new();
        for _ in 0..1000 {
            plain.step(&mut waits).unwrap();
        }
        assert_eq!((waits.len(), plain.file.metadata().unwrap().len()), (1000, FILE));
    }
}
