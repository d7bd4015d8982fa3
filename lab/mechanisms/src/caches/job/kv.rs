//! A key-value store's files beside its log: merged tables, and, as a control, data that are never
//! made durable.

use fastrand::Rng;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

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
pub(super) fn compact(directory: PathBuf) -> io::Result<Step> {
    let path = move |table: u64| directory.join(format!("table-{table}"));
    let mut dice = Rng::with_seed(0x2545_f491);
    for table in 0..TABLES {
        let mut bytes = Vec::with_capacity(TABLE * RECORD);
        for _ in 0..TABLE {
            bytes.extend_from_slice(format!("{:016x}", dice.u64(..u64::MAX)).as_bytes());
            bytes.resize(bytes.len() + RECORD - KEY, b'v');
        }
        write(&path(table), &sorted([&bytes]), &mut Vec::new())?;
    }
    let mut next = TABLES;
    Ok(Box::new(move |waits| {
        let old = [path(next - TABLES), path(next - TABLES + 1)];
        let tables = [fs::read(&old[0])?, fs::read(&old[1])?];
        let merged = sorted(&tables);
        for half in merged.chunks(merged.len().div_ceil(2).max(1)) {
            write(&path(next), half, waits)?;
            next += 1;
        }
        old.iter().try_for_each(fs::remove_file)
    }))
}

fn write(path: &Path, records: &[&[u8]], waits: &mut Vec<u64>) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    records.concat().chunks(CHUNK).try_for_each(|chunk| file.write_all(chunk))?;
    timed(waits, || file.sync_all())
}

/// The records of tables, by their keys.
fn sorted<'a>(tables: impl IntoIterator<Item = &'a Vec<u8>>) -> Vec<&'a [u8]> {
    let mut records: Vec<&[u8]> =
        tables.into_iter().flat_map(|table| table.chunks_exact(RECORD)).collect();
    records.sort_by_key(|record| &record[..KEY]);
    records
}

/// A file. A step reads 4K of it and writes 4K, each anywhere, without making them durable.
pub(super) fn plain(directory: &Path) -> io::Result<Step> {
    let path = directory.join("plain");
    let mut file = File::options().read(true).write(true).create_new(true).open(path)?;
    let chunk = vec![b'p'; CHUNK];
    (0..FILE / CHUNK as u64).try_for_each(|_| file.write_all(&chunk))?;
    file.sync_all()?;
    let (mut dice, mut block) = (Rng::with_seed(0x1234_5678), vec![b'w'; BLOCK]);
    Ok(Box::new(move |waits| {
        let mut anywhere = || dice.u64(..FILE / BLOCK as u64) * BLOCK as u64;
        let (from, to) = (anywhere(), anywhere());
        timed(waits, || {
            file.read_exact_at(&mut block, from)?;
            file.write_all_at(&block, to)
        })
    }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn compaction_keeps_records_sorted() {
        let dir = tempfile::tempdir().unwrap();
        let mut compact = compact(dir.path().into()).unwrap();
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
            compact(&mut waits).unwrap();
        }
        assert!(keys() == before);
        assert_eq!(waits.len(), 6, "two fsyncs each");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count() as u64, TABLES);
    }

    #[test]
    fn random_access_stays_within_file() {
        let dir = tempfile::tempdir().unwrap();
        let mut plain = plain(dir.path()).unwrap();
        let mut waits = Vec::new();
        for _ in 0..1000 {
            plain(&mut waits).unwrap();
        }
        let bytes = fs::metadata(dir.path().join("plain")).unwrap().len();
        assert_eq!((waits.len(), bytes), (1000, FILE));
    }
}
