//! Regular files and block devices.
//!
//! | where the image lies | how a request is served |
//! |---|---|
//! | memory (tmpfs) | read from a mapping, without a system call; written by `pwrite` (`mapped.rs`) |
//! | a disk, `--cache none` | direct I/O through io_uring; only requests that the device cannot take as they are go through a bounce buffer (`channel.rs`, `transfer.rs`) |
//! | a disk, `--cache writeback` or `writethrough` | writes to the page cache inline, the rest through io_uring, which answers page-cache hits at once (`channel.rs`, `inline.rs`) |
//! | a disk, `--cache pdc --journal direct` | the guest's journal as with `none`, the rest as with `writeback` (`placed.rs`, `placements.rs`) |
//!
//! DISCARD and WRITE_ZEROES on a disk: `ranges.rs`. The part that `--cache pdc` adds to
//! `writeback`: `journal/`. The bound of a volume's share of the page cache: `cache_budget.rs`. The
//! write-back of dirty pages while the guest has a foreground: `early.rs`.

mod astray;
mod attached;
mod bounce;
mod cache_budget;
mod channel;
mod device;
mod discard;
mod durability;
mod early;
mod exclusion;
#[cfg(test)]
mod exclusion_tests;
mod failures;
mod flushes;
#[cfg(test)]
mod flushes_tests;
mod format;
mod handle;
mod identity;
mod inline;
mod journal;
mod kernel_lock;
mod leftover;
mod lock;
mod map;
mod mapped;
mod open;
mod placed;
mod placements;
mod ranges;
mod recorded;
mod rereads;
#[cfg(vlane_simulated)]
#[path = "../../../../checks/dst/engine/src/simulated.rs"]
mod simulated;
mod stack;
mod sync_thread;
mod transfer;
mod turns;

use std::fs::File;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use vlane_ring::SECTOR;
use vlane_trace::storage::{Action, Header};

pub use self::astray::Astray;
pub use self::cache_budget::CacheReport;
pub use self::identity::Identity;
pub use self::journal::{DirectReport, JournalReport};
pub use self::leftover::Leftover;
pub use self::open::HandedFiles;
#[cfg(vlane_simulated)]
pub use self::simulated::{Simulated, SimulatedSyncs};
use crate::recorder::{RecordedCall, StorageRecorder};
use crate::{Channel, Engine, EngineError, Geometry, LostWrite, Writeback};
use vlane_io::StorageFile;

/// The use of the host's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cache {
    /// [`Cache::None`] where direct I/O is possible and the storage reads written data once,
    /// [`Cache::Writeback`] elsewhere.
    ///
    /// This is the default: the guest has a page cache of its own, so a second copy on the host
    /// costs memory, and copying, for little. A host crash loses only data that the guest knows to
    /// be in the device's write cache.
    #[default]
    Auto,
    /// Not used: direct I/O.
    None,
    /// Reads and writes go through it; a flush writes it to the device.
    Writeback,
    /// Reads and writes go through it; each write is on the device before it is answered.
    WriteThrough,
    /// As [`Cache::Writeback`], and the pages of the guest's journal are dropped from it once they
    /// are flushed (pollution-defensive caching).
    Pdc,
}

/// How [`Cache::Pdc`] keeps the guest's journal out of the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum JournalWay {
    /// It is written through the page cache, and dropped from it once it is flushed. Possible
    /// everywhere; a commit costs the same as with [`Cache::Writeback`].
    #[default]
    Drop,
    /// It is read and written around the page cache, as the whole image with [`Cache::None`], where
    /// that is safe, and dropped elsewhere. A commit waits for the device one time more.
    Direct,
}

/// The effect of a guest's discards, which name storage that it does not need any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Discard {
    /// They free it.
    #[default]
    On,
    /// They are not offered. A discard that comes all the same is answered without an effect.
    Off,
    /// Files read as zeroes there, and keep their allocated space. On devices a discard has no
    /// effect.
    Keep,
}

/// How to open an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// The page cache's part.
    pub cache: Cache,
    /// True if writes are refused.
    pub read_only: bool,
    /// It is raw, even if it looks like another format.
    pub raw: bool,
    /// The effect of discards. Without [`Discard::On`], zeroes that need not stay allocated do.
    pub discard: Discard,
    /// With [`Cache::Pdc`]: the journal's way.
    pub journal: JournalWay,
    /// Bytes that the volume may hold of the page cache, where it is used. Data that the guest
    /// wrote and did not read since are dropped above that.
    pub cache_budget: Option<u64>,
    /// For experiments: an `fdatasync` that succeeds is taken to do so by this much later, to stand
    /// for a slower device. Neither durable writes are delayed nor the sync at the volume's end.
    pub flush_delay: Duration,
    /// For experiments, with [`Cache::Pdc`]: a flush writes no dirty page to the device but those
    /// of the guest's journal. Data flushed elsewhere **can be lost** when the host fails. With no
    /// journal known a flush is a normal one, and so is the sync at the volume's end always.
    pub danger_flush_journal_only: bool,
}

/// Names the user of a file that must not be overwritten or replaced: a process that locked it, as
/// images are while they are served, or a loop device. None if the file is unused.
///
/// A file whose user just ended may stay locked for a moment: an opener waits for it, as this does.
///
/// # Errors
/// When it cannot be opened for reading.
pub fn user_of(path: &std::path::Path) -> std::io::Result<Option<String>> {
    use std::os::unix::fs::OpenOptionsExt;
    // Not to wait for the other end of what is a pipe after all.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let mut patience = |leftover: &Leftover| leftover.waited <= lock::PATIENCE;
    if lock::stays_locked(&file, &mut patience) {
        return Ok(Some(lock::user_in_words(&file)));
    }
    Ok(attached::loop_on(&file).map(|device| format!("is attached to /dev/{device}")))
}

/// An image to look into, and its size in bytes: open for reading, without any lock, with any other
/// user.
///
/// # Errors
/// As [`FileEngine::open`], if it is no image that could be served for reading.
pub fn look_into(path: &std::path::Path, raw: bool) -> Result<(File, u64), EngineError> {
    open::image(path, raw)
}

/// A regular file or block device as a volume.
#[derive(Debug)]
pub struct FileEngine {
    shared: Arc<Shared>,
    syncs: Arc<sync_thread::SyncThread>,
}

/// State that the channels of one volume share.
#[derive(Debug)]
struct Shared {
    path: PathBuf,
    /// The image; if that is for direct I/O, then also the same image through the page cache.
    files: Vec<StorageFile>,
    /// For writes of part of a block; none if a block is not more than a sector.
    exclusion: Option<Arc<exclusion::Exclusion>>,
    /// The storage refused direct I/O, and a warning was logged.
    has_warned: AtomicBool,
    /// Ways to zero a range that the storage does not know, one bit each.
    unknown_ways: AtomicU8,
    discarder: Arc<discard::Discarder>,
    pieces: ranges::Pieces,
    /// For the simulator: how many of each kind a channel has under way (`turns.rs`).
    turns: Option<[usize; 2]>,
    durability: Arc<durability::Durability>,
    /// The parts of the volume that are read and written around the page cache; none if that never
    /// changes.
    placements: Option<Arc<placements::Placements>>,
    flushes: Arc<flushes::Flushes>,
    kernel_lock: kernel_lock::KernelLock,
    pace: Arc<inline::Pace>,
    cache: Cache,
    sectors: AtomicU64,
    block_size: u32,
    physical_exponent: u8,
    /// The alignment that the first of the files demands of operations.
    align: transfer::Align,
    read_only: bool,
    is_device: bool,
    can_discard: bool,
    discard: Discard,
    /// It has a command that zeroes, or a file system that does. Zeroes are written elsewhere.
    can_zero: bool,
    map: Option<map::Map>,
    /// With [`Cache::Pdc`], unless the volume refuses writes.
    journal: Option<journal::Journal>,
    /// With [`FileOptions::cache_budget`], where the page cache is used.
    budget: Option<cache_budget::CacheBudget>,
    /// From the first channel on that classes of requests have an effect on.
    early: OnceLock<Option<early::Early>>,
    /// [`FileOptions::flush_delay`].
    flush_delay: Duration,
    /// [`FileOptions::danger_flush_journal_only`].
    danger_flush_journal_only: bool,
    /// Records all changes of the storage, if recording is on.
    recorder: Option<Arc<StorageRecorder>>,
}

impl FileEngine {
    fn new(shared: Shared) -> FileEngine {
        let syncs = sync_thread::SyncThread::new(&shared.flushes);
        FileEngine { shared: Arc::new(shared), syncs }
    }

    /// Opens an image and takes its locks, in the way that QEMU does: QEMU, qemu-img and another
    /// vlane see that the image is in use. If a dead process's requests still hold the image, it
    /// waits two seconds for them.
    ///
    /// # Errors
    /// Every [`crate::ErrorKind`]; the text names the action to take.
    pub fn open(path: &std::path::Path, options: FileOptions) -> Result<FileEngine, EngineError> {
        FileEngine::open_patiently(path, options, &mut |leftover| leftover.waited <= lock::PATIENCE)
    }

    /// The same, waiting for a dead process's requests as long as `patience` wants: it is called
    /// several times a second. An image that a process has open that runs is refused as quickly as
    /// elsewhere.
    ///
    /// # Errors
    /// As [`FileEngine::open`]; [`crate::ErrorKind::Locked`] when `patience` is at an end.
    pub fn open_patiently(
        path: &std::path::Path,
        options: FileOptions,
        patience: &mut dyn FnMut(&Leftover) -> bool,
    ) -> Result<FileEngine, EngineError> {
        open::open(path, options, patience).map(FileEngine::new)
    }

    /// The same, with everything that reaches the storage written down from now on: for tests and
    /// research. [`StorageRecorder::finish`] ends the record.
    ///
    /// # Errors
    /// When the record cannot be begun.
    ///
    /// # Panics
    /// When it has channels already.
    pub fn recorded(
        mut self,
        to: impl Write + Send + 'static,
    ) -> Result<FileEngine, Box<dyn std::error::Error + Send + Sync>> {
        let header = Header { size: self.geometry().sectors * SECTOR, in_memory: self.is_mapped() };
        let recorder = StorageRecorder::start(to, header)?;
        let shared = Arc::get_mut(&mut self.shared);
        shared.expect("a volume without channels").recorder = Some(recorder);
        Ok(self)
    }

    /// Returns the recorder of the storage's changes, if there is one.
    pub fn recorder(&self) -> Option<&Arc<StorageRecorder>> {
        self.shared.recorder.as_ref()
    }

    /// The cache mode in force: never [`Cache::Auto`].
    pub fn cache(&self) -> Cache {
        self.shared.cache
    }

    /// True if the image lies in memory and is served from a mapping.
    pub fn is_mapped(&self) -> bool {
        self.shared.map.is_some()
    }

    /// Where the image is, if it is not at its path any more. Not for the data path.
    pub fn astray(&self) -> Option<Astray> {
        astray::of(&self.shared.path, self.shared.file())
    }

    /// A path by which the open image is found, wherever it is.
    pub fn own_path(&self) -> PathBuf {
        use std::os::fd::AsRawFd;
        PathBuf::from(format!("/proc/self/fd/{}", self.shared.file().as_raw_fd()))
    }

    /// For tests: sets the layout of the volume from now on. Has no effect without [`Cache::Pdc`].
    #[doc(hidden)]
    pub fn pretend_layout(&self, layout: vlane_policy::journal::layout::JournalLayout) {
        if let Some(journal) = &self.shared.journal {
            journal.set_layout(layout);
        }
    }

    /// For tests: discards of a device go the way of kernels before 6.12, by a thread.
    #[doc(hidden)]
    pub fn pretend_old_kernel(&self) {
        self.shared.unknown_ways.fetch_or(ranges::ClearMethod::Discard.bit(), Ordering::Relaxed);
    }

    /// For tests: runs `what` while the journal thread stands still. Has no effect without
    /// [`Cache::Pdc`].
    #[doc(hidden)]
    pub fn without_journal_thread(&self, what: impl FnOnce()) {
        if let Some(journal) = &self.shared.journal {
            journal.without_thread(what);
        }
    }

    /// Looks at the image's size again; returns whether it changed.
    ///
    /// # Errors
    /// As [`FileEngine::open`] for an image of that size.
    pub fn refresh(&self) -> Result<bool, EngineError> {
        let size = open::checked_size(&self.shared.path, self.shared.file())?;
        if !self.shared.read_only {
            open::check_file_limit(&self.shared.path, self.shared.is_device, size)?;
            // With regions only those are direct, which are whole blocks.
            let block = if self.shared.placements.is_some() { 1 } else { self.shared.align.block };
            open::check_whole_blocks(&self.shared.path, block, size)?;
        }
        if let Some(journal) = &self.shared.journal {
            journal.resized(size);
        }
        if let Some(budget) = &self.shared.budget {
            budget.resized(size);
        }
        let sectors = size / vlane_ring::SECTOR;
        Ok(self.shared.sectors.swap(sectors, Ordering::Relaxed) != sectors)
    }
}

impl Engine for FileEngine {
    fn geometry(&self) -> Geometry {
        let shared = &self.shared;
        Geometry {
            sectors: shared.sectors.load(Ordering::Relaxed),
            block_size: shared.block_size,
            physical_exponent: shared.physical_exponent,
            optimal_blocks: 0,
            read_only: shared.read_only,
            discard: !shared.read_only && shared.can_discard && shared.discard != Discard::Off,
            write_zeroes: !shared.read_only && shared.can_zero,
            write_cache: shared.cache != Cache::WriteThrough,
        }
    }

    fn stored_bytes(&self) -> Option<u64> {
        self.shared.stored_bytes()
    }

    fn sync(&self) -> std::io::Result<()> {
        if self.shared.read_only {
            return Ok(());
        }
        let durability = &self.shared.durability;
        // Also after a loss: what can be written is better written.
        let told = RecordedCall::new(self.shared.recorder.as_ref(), || Action::Sync);
        self.shared.kernel_lock.begin();
        let synced = self.shared.file().sync_data();
        self.shared.kernel_lock.end();
        told.end_with(&synced);
        if let Err(error) = &synced {
            durability.fail(error.raw_os_error().unwrap_or(libc::EIO), Writeback::Sync);
        }
        let is_lost = durability.ask(Writeback::Sync);
        // Lost pages count as clean, and are in the cache only.
        if let Some(journal) = self.shared.journal.as_ref().filter(|_| !is_lost) {
            journal.synced();
        }
        durability.lost().map_or(synced, |lost| Err(lost.error()))
    }

    fn identity(&self) -> Option<Identity> {
        Identity::of(self.shared.file())
    }

    fn lost_write(&self) -> Option<LostWrite> {
        self.shared.durability.lost()
    }

    fn refuses_writes(&self) -> Option<String> {
        let Shared { path, is_device, read_only, .. } = &*self.shared;
        if *read_only { None } else { device::refuses_writes(path, self.shared.file(), *is_device) }
    }

    fn journal(&self) -> Option<JournalReport> {
        self.shared.journal.as_ref().map(journal::Journal::report)
    }

    fn cache_budget(&self) -> Option<CacheReport> {
        self.shared.budget.as_ref().map(cache_budget::CacheBudget::report)
    }

    fn channel(&self, slots: u16) -> Result<Box<dyn Channel>, EngineError> {
        let shared = Arc::clone(&self.shared);
        let recorder = shared.recorder.clone();
        let channel: Box<dyn Channel> = match shared.map {
            Some(_) => Box::new(mapped::MappedChannel::new(shared, slots)),
            None => {
                self.syncs.start(&shared)?;
                Box::new(channel::FileChannel::new(shared, slots, Arc::clone(&self.syncs))?)
            }
        };
        Ok(match recorder {
            Some(recorder) => Box::new(recorded::Recorded::new(channel, recorder, slots)),
            None => channel,
        })
    }
}

impl Shared {
    /// The image itself.
    fn file(&self) -> &File {
        self.files[0].file()
    }

    /// The early write-back of the image's dirty pages. None where a flush finds no dirty pages, or
    /// the system refuses.
    fn early(&self) -> Option<&early::Early> {
        let can_be_dirty = matches!(self.cache, Cache::Writeback | Cache::Pdc) && !self.read_only;
        let start = || {
            let again = open::open_again(&self.path, self.file(), 0).map_err(io::Error::other);
            let told = again.and_then(early::Early::start);
            let refused = |error| {
                tracing::warn!(
                    "{}: dirty pages are not written back early, so an fsync waits for all of \
                     them: {error}",
                    self.path.display()
                );
            };
            told.map_err(refused).ok()
        };
        if can_be_dirty { self.early.get_or_init(start).as_ref() } else { None }
    }

    /// Which of the files goes through the page cache.
    #[inline]
    fn cached_file(&self) -> u8 {
        u8::from(self.files.len() > 1)
    }

    /// Bytes that are there now; none if the system does not say. A file's system may take its time
    /// for the answer, a device's does not.
    fn stored_bytes(&self) -> Option<u64> {
        use std::io::Seek;
        // Seeking gives the size of files and devices alike. No code relies on the position.
        let mut file = self.file();
        file.seek(std::io::SeekFrom::End(0)).ok()
    }

    /// The storage refused direct I/O that is aligned as it announced.
    #[cold]
    fn warn_of_refusal(&self) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            let transfer::Align { block, memory } = self.align;
            tracing::warn!(
                "{}: the storage refuses direct I/O of whole blocks of {block} bytes in memory \
                 aligned to {memory}, which it announced to take; the guest gets errors: serve \
                 the image with --cache writeback",
                self.path.display()
            );
        }
    }
}

/// Bytes from `sector` on, as an offset that the system takes, with the end; none beyond the limit
/// of any file. The lane has checked requests against the volume; this keeps arithmetic safe for
/// any request.
#[inline]
fn span(sector: u64, len: u64) -> Option<(u64, u64)> {
    let offset = sector.checked_mul(SECTOR)?;
    let end = offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok())?;
    Some((offset, end))
}
