//! The table of changed threads: what each was before, written down before it is changed.
//!
//! A small file in a directory of memory (`/run/vlane-sched`), one slot of 64 bytes per thread. The
//! daemon writes it, its guard reads it when the daemon is gone, and the next daemon when both are
//! gone. Each of them that lives holds a shared lock on the file; a file that can be locked
//! exclusively has been left behind. A slot is one `pwrite` of 64 bytes that do not cross a page: a
//! killed process has written all of it or none.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::groups::{Group, NOTE};
use super::trusted::{self, Directory};
use crate::sys::{self, Attr, Class};
use crate::thread::{is_gone, is_same};
use crate::{Error, ErrorKind, Result};

/// Slots of a group's note, which begins at a multiple of its length.
const GROUP_SLOTS: usize = NOTE / BYTES;
/// Bytes in a slot.
const BYTES: usize = 64;
const SLOT: u64 = BYTES as u64;
/// EEVDF allows slices of up to 0.1 s; the system's own may be longer.
const LONGEST_SLICE_NS: u64 = 1_000_000_000;
const MAGIC: u64 = u64::from_le_bytes(*b"vlsched1");
/// The file's name begins and ends so.
const PREFIX: &str = "sched-";
const SUFFIX: &str = ".threads";

/// A thread's attributes before it was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The thread.
    pub tid: u32,
    /// Its start time (clock ticks after boot), so that another one with this number is left alone.
    pub start: u64,
    /// Its attributes before.
    pub was: Attr,
}

impl Entry {
    fn to_bytes(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let mut put =
            |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(0, MAGIC);
        put(8, u64::from(self.tid));
        put(16, self.start);
        put(24, u64::from(self.was.class.number()));
        put(32, i64::from(self.was.nice).cast_unsigned());
        put(40, u64::from(self.was.priority) << 1 | u64::from(self.was.reset_on_fork));
        put(48, self.was.slice_ns);
        bytes
    }

    /// Returns true if a scheduler can have found a thread so: it takes no others.
    fn is_ordinary(&self) -> bool {
        let was = &self.was;
        matches!(was.class, Class::Other | Class::Batch | Class::Idle)
            && (-20..=19).contains(&was.nice)
            && was.priority == 0
            && was.slice_ns <= LONGEST_SLICE_NS
            && (1..=i32::MAX.unsigned_abs()).contains(&self.tid)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let get = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        if get(0)? != MAGIC {
            return None;
        }
        let flags = get(40)?;
        Some(Self {
            tid: u32::try_from(get(8)?).ok()?,
            start: get(16)?,
            was: Attr {
                class: Class::of(u32::try_from(get(24)?).ok()?),
                nice: i32::try_from(get(32)?.cast_signed()).ok()?,
                priority: u32::try_from(flags >> 1).ok()?,
                reset_on_fork: flags & 1 != 0,
                slice_ns: get(48)?,
            },
        })
    }

    /// Schedules the thread as before; returns true if that was a change. A thread that is gone is
    /// left alone.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn restore(&self) -> io::Result<bool> {
        if !self.is_ordinary() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if !is_same(self.tid, self.start)? {
            return Ok(false);
        }
        let is = match sys::get(self.tid) {
            Ok(is) => is,
            Err(error) if is_gone(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        // The reported slice is the system's unless it was set, so it is no reason for a change.
        if (is.class, is.nice, is.priority, is.reset_on_fork)
            == (self.was.class, self.was.nice, self.was.priority, self.was.reset_on_fork)
        {
            return Ok(false);
        }
        match sys::set(self.tid, &self.was) {
            Ok(()) => Ok(true),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The daemon's table.
#[derive(Debug)]
pub struct Table {
    file: File,
    path: PathBuf,
    used: Vec<bool>,
}

impl Table {
    /// A new one in a directory, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`] or [`ErrorKind::Permission`]: the directory cannot be written.
    pub fn create(dir: &Path) -> Result<Self> {
        let fail = |error: io::Error| {
            let kind = match error.kind() {
                io::ErrorKind::PermissionDenied => ErrorKind::Permission,
                _ => ErrorKind::Io,
            };
            let text = format!(
                "cannot write the list of changed threads in {}; name a directory in memory with \
                 --state-dir",
                dir.display()
            );
            Error::caused_by(kind, text, error)
        };
        // The mode is fixed, independent of the umask: a directory that others may write to is not
        // trusted.
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(dir).map_err(fail)?;
        Directory::open(dir).map_err(fail)?;
        // A process may have several, and a number may come again: the first free name.
        for attempt in 0..10_000_u32 {
            let name = format!("{PREFIX}{}-{attempt}", std::process::id());
            let (path, new) =
                (dir.join(format!("{name}{SUFFIX}")), dir.join(format!("{name}.new")));
            if path.exists() {
                continue;
            }
            let opened =
                OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&new);
            match opened {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(fail(error)),
                Ok(file) => {
                    flock(&file, FlockOperation::LockShared).map_err(|error| fail(error.into()))?;
                    // The first slot is no thread's: heartbeat and interventions.
                    file.set_len(SLOT).map_err(fail)?;
                    // Found only once it is held: `repair` takes lists that no process holds.
                    std::fs::rename(&new, &path).map_err(fail)?;
                    return Ok(Self { file, path, used: Vec::new() });
                }
            }
        }
        Err(fail(io::ErrorKind::AlreadyExists.into()))
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes down a thread; where. From then on it may be changed.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn enter(&mut self, entry: &Entry) -> io::Result<usize> {
        self.put(&entry.to_bytes())
    }

    /// The same for a group.
    pub(super) fn enter_group(&mut self, bytes: &[u8; NOTE]) -> io::Result<usize> {
        self.put(bytes)
    }

    /// Writes into the first free slots. Several begin where they cross no page.
    fn put(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let slots = bytes.len() / BYTES;
        let is_used = |slot: &usize| self.used.get(*slot) == Some(&true);
        let slot = (slots - 1..).step_by(slots).find(|&at| !(at..at + slots).any(|s| is_used(&s)));
        let slot = slot.unwrap_or(self.used.len());
        self.file.write_all_at(bytes, (slot as u64 + 1) * SLOT)?;
        self.used.resize(self.used.len().max(slot + slots), false);
        self.used[slot..slot + slots].fill(true);
        Ok(slot)
    }

    /// Strikes out a thread, which has been restored or is gone.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn strike(&mut self, slot: usize) -> io::Result<()> {
        self.erase(slot, 1)
    }

    /// The same for a group.
    pub(super) fn strike_group(&mut self, slot: usize) -> io::Result<()> {
        self.erase(slot, GROUP_SLOTS)
    }

    fn erase(&mut self, slot: usize, slots: usize) -> io::Result<()> {
        self.file.write_all_at(&[0; NOTE][..slots * BYTES], (slot as u64 + 1) * SLOT)?;
        self.used.iter_mut().skip(slot).take(slots).for_each(|used| *used = false);
        Ok(())
    }

    /// Says that the daemon is alive at `now`.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn beat(&self, now: u64) -> io::Result<()> {
        self.file.write_all_at(&now.to_le_bytes(), 0)
    }

    /// Number of times that the guard has restored threads because the daemon stood still.
    pub fn interventions(&self) -> u64 {
        read_u64(&self.file, 8).unwrap_or(0)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // With threads in it, it is the guard's, or the next daemon's.
        if self.used.iter().all(|used| !used) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn read_u64(file: &File, at: u64) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Another process's table, to restore what stands in it.
#[derive(Debug)]
pub struct Reader {
    file: File,
    path: PathBuf,
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The result of restoring.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Restored {
    /// Threads that were in the table.
    pub seen: usize,
    /// Threads that had to be changed back.
    pub changed: usize,
    /// Threads that the system would not change back.
    pub failed: usize,
    /// Entries that no scheduler has written so.
    pub damaged: usize,
}

impl Restored {
    pub(super) fn add(&mut self, other: Self) {
        self.seen += other.seen;
        self.changed += other.changed;
        self.failed += other.failed;
        self.damaged += other.damaged;
    }
}

impl Reader {
    /// Opens a table, and holds a shared lock on it.
    ///
    /// # Errors
    ///
    /// An error if the file cannot be opened, or if a user other than this one and root can have
    /// written it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let reader = Self::of(trusted::open(path)?, path);
        flock(&reader.file, FlockOperation::NonBlockingLockShared)?;
        Ok(reader)
    }

    /// The table in an open file.
    pub(super) fn of(file: File, path: &Path) -> Self {
        Self { file, path: path.to_path_buf() }
    }

    /// The time at which the daemon was last alive.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn beat(&self) -> io::Result<u64> {
        read_u64(&self.file, 0)
    }

    /// Tells the daemon that threads were restored because it stood still.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn intervened(&self) -> io::Result<()> {
        let count = read_u64(&self.file, 8)?.saturating_add(1);
        self.file.write_all_at(&count.to_le_bytes(), 8)
    }

    /// Restores all threads in it.
    ///
    /// # Errors
    ///
    /// The file cannot be read. Threads that cannot be restored are counted.
    pub fn restore(&self) -> io::Result<Restored> {
        let mut restored = Restored::default();
        let mut bytes = [0; BYTES];
        let end = self.file.metadata()?.len();
        // Entries are written whole, and the first slot before the list has its name.
        restored.damaged += usize::from(end < SLOT || end % SLOT != 0);
        let mut at = SLOT;
        while at + SLOT <= end {
            self.file.read_exact_at(&mut bytes, at)?;
            at += SLOT;
            if bytes == [0; BYTES] {
                continue;
            }
            let done = if Group::is_note(&bytes) {
                let mut note = [0; NOTE];
                let begin = at - SLOT;
                at = begin + NOTE as u64;
                let is_whole = at <= end && self.file.read_exact_at(&mut note, begin).is_ok();
                let group = is_whole.then(|| Group::from_bytes(&note)).flatten();
                group.map(|group| group.restore())
            } else {
                let entry = Entry::from_bytes(&bytes).filter(Entry::is_ordinary);
                entry.map(|entry| entry.restore())
            };
            let Some(done) = done else {
                restored.damaged += 1;
                continue;
            };
            restored.seen += 1;
            match done {
                Ok(changed) => restored.changed += usize::from(changed),
                Err(_) => restored.failed += 1,
            }
        }
        Ok(restored)
    }

    /// Removes the file.
    pub fn remove(self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Returns true if a file in the directory is a list.
pub(super) fn is_table(name: &OsStr) -> bool {
    let name = name.to_str().unwrap_or_default();
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// A list that was never given its name, of a process that is gone.
pub(super) fn is_unborn(name: &OsStr) -> bool {
    let name = name.to_str().and_then(|name| name.strip_suffix(".new"));
    let pid =
        name.and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse::<u32>().ok());
    pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
pub(super) mod tests {
    use super::*;

    pub(in crate::realtime) fn entry(tid: u32) -> Entry {
        let was = Attr {
            class: Class::Batch,
            nice: -3,
            priority: 0,
            reset_on_fork: true,
            slice_ns: 3_000_000,
        };
        Entry { tid, start: 99, was }
    }

    #[test]
    fn only_written_entries_are_read() {
        assert_eq!(Entry::from_bytes(&entry(7).to_bytes()), Some(entry(7)));
        assert_eq!(Entry::from_bytes(&[0; 64]), None);
        assert_eq!(Entry::from_bytes(&entry(7).to_bytes()[..40]), None);
    }

    #[test]
    fn slots_are_reused_and_empty_table_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut table = Table::create(dir.path()).unwrap();
        let path = table.path().to_path_buf();
        assert_eq!((table.enter(&entry(1)).unwrap(), table.enter(&entry(2)).unwrap()), (0, 1));
        table.strike(0).unwrap();
        assert_eq!(table.enter(&entry(3)).unwrap(), 0);
        let reader = Reader::open(&path).unwrap();
        assert_eq!(reader.restore().unwrap().seen, 2);
        reader.intervened().unwrap();
        assert_eq!(table.interventions(), 1);
        table.strike(0).unwrap();
        table.strike(1).unwrap();
        drop(table);
        assert!(!path.exists());
    }

    #[test]
    fn reused_thread_number_is_left_alone() {
        let me = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let before = sys::get(me).unwrap();
        let wrong = Entry { tid: me, start: 1, was: Attr { nice: 19, ..before } };
        assert!(!wrong.restore().unwrap());
        assert_eq!(sys::get(me).unwrap(), before);
    }
}
