//! Opening an image: its possible faults, and its properties.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, StatxFlags};
use rustix::process::Resource;
use vlane_ring::SECTOR;

use super::cache_budget::CacheBudget;
use super::exclusion::Exclusion;
use super::flushes::Flushes;
use super::inline::Pace;
use super::kernel_lock::KernelLock;
use super::transfer::Align;
use super::{
    Cache, Discard, FileOptions, JournalWay, Shared, attached, device, durability, format, lock,
    map, ranges, rereads,
};
use crate::{EngineError, ErrorKind, Piece, pages};
use vlane_io::StorageFile;

mod beside;
mod handed;
mod refused;
mod regions;

pub use handed::HandedFiles;
pub(super) use refused::checked_size;
use refused::open_error;

/// Only tmpfs is mapped: it tells holes from data and can punch. ramfs does neither, and is served
/// as a disk is. A file on a DAX device has direct I/O, which copies as a mapping would, and errors
/// that a mapping would not have.
const TMPFS_MAGIC: i64 = 0x0102_1994;
const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

/// The facts that decide the ways to an image.
struct Asked {
    cache: Cache,
    read_only: bool,
    is_device: bool,
    in_memory: bool,
    size: u64,
}

/// The files through which an image is reached, and the cache mode that comes of it: with a second
/// file the first one is direct.
fn ways(
    path: &Path,
    asked: Asked,
    buffered: File,
    direct: Option<File>,
) -> Result<(File, Option<File>, Cache), EngineError> {
    let Asked { cache, read_only, is_device, in_memory, size } = asked;
    Ok(match cache {
        // In memory the page cache is the storage: direct I/O has no meaning.
        _ if in_memory => {
            if cache == Cache::None {
                tracing::warn!(
                    "{}: lies in memory (tmpfs), which has no direct I/O; --cache none has no \
                     effect",
                    path.display()
                );
            }
            (buffered, None, if cache == Cache::WriteThrough { cache } else { Cache::Writeback })
        }
        Cache::Writeback | Cache::WriteThrough | Cache::Pdc => match direct {
            Some(direct) => (direct, Some(buffered), cache),
            None => (buffered, None, cache),
        },
        Cache::Auto if !read_only && let Some(why) = rereads::reason(&buffered) => {
            tracing::info!(
                "{}: {why}, and a guest that changes data while they are written would make them \
                 differ: using --cache writeback",
                path.display()
            );
            (buffered, None, Cache::Writeback)
        }
        Cache::Auto | Cache::None => match open_direct(path, read_only, is_device, size)? {
            Ok(direct) => {
                if !read_only && cache == Cache::None {
                    warn_of_rereading(path, &buffered);
                }
                (direct, Some(buffered), Cache::None)
            }
            Err(refusal) if cache == Cache::Auto => {
                tracing::info!("{}: {}; using --cache writeback", path.display(), refusal.why);
                (buffered, None, Cache::Writeback)
            }
            Err(refusal) => return Err(refusal.into_error(path)),
        },
    })
}

/// Warns of direct I/O on storage that reads written data twice: the guest can make the two
/// readings differ.
fn warn_of_rereading(path: &Path, file: &File) {
    if let Some(why) = rereads::reason(file) {
        tracing::warn!(
            "{}: {why}, and with --cache none a guest that changes data while they are written \
             makes them differ, and can make them unreadable; use --cache writeback",
            path.display()
        );
    }
}

/// The mapping of an image in memory; without one there are system calls.
fn map(path: &Path, file: &File, size: u64) -> Option<map::Map> {
    let told = |error: &io::Error| {
        tracing::warn!(
            "{}: cannot be mapped ({error}); going on with system calls",
            path.display()
        );
    };
    map::Map::new(file, size).inspect_err(told).ok()
}

/// An image's files, and their known properties.
struct Opened {
    file: File,
    /// With a second file the first one is direct.
    second: Option<File>,
    /// In force.
    cache: Cache,
    witness: Option<File>,
    /// The reason why no part of it is read and written around the page cache, if that is asked.
    refusal: Option<String>,
    metadata: Metadata,
    in_memory: bool,
    size: u64,
}

pub(super) fn open(
    path: &Path,
    options: FileOptions,
    patience: &mut lock::Patience<'_>,
) -> Result<Shared, EngineError> {
    let FileOptions { cache, read_only, raw, journal: journal_way, .. } = options;
    let fail = |kind, context: &str| EngineError::at(path, kind, context);
    let (buffered, metadata, size) = locked(path, read_only, raw, patience)?;
    let is_device = metadata.file_type().is_block_device();

    let file_system =
        if is_device { 0 } else { rustix::fs::fstatfs(&buffered).map_or(0, |fs| fs.f_type) };
    if file_system == HUGETLBFS_MAGIC && !read_only {
        let text =
            "lies on hugetlbfs, whose files cannot be written to with system calls; use tmpfs";
        return Err(fail(ErrorKind::NotAFileOrDevice, text));
    }
    let in_memory = file_system == TMPFS_MAGIC;
    let (direct, refusal) = match cache == Cache::Pdc && !in_memory && !read_only {
        true => regions::open(path, &buffered, journal_way, (is_device, file_system), size),
        false => (None, None),
    };
    let asked = Asked { cache, read_only, is_device, in_memory, size };
    let (file, second, cache) = ways(path, asked, buffered, direct)?;
    // Each has its own, also those through which requests go beside the first.
    lock::also(path, &file, read_only)?;
    let file = if is_device && !read_only { claim(path, second.is_some(), &file)? } else { file };
    lock::also(path, &file, read_only)?;

    let witness = (!read_only).then(|| open_again(path, &file, 0)).transpose()?;
    if !is_device && !read_only && options.discard == Discard::On {
        warn_of_freeing(path, &file);
    }
    let opened = Opened { file, second, cache, witness, refusal, metadata, in_memory, size };
    shared(path, options, opened)
}

/// Makes the state that the channels of an opened image share.
fn shared(path: &Path, options: FileOptions, opened: Opened) -> Result<Shared, EngineError> {
    let Opened { file, second, cache, witness, refusal, metadata, in_memory, size } = opened;
    let is_device = metadata.file_type().is_block_device();
    let takes = |limit| !is_device || device_takes(&metadata, limit);
    let can_zero = takes("write_zeroes_max_bytes");
    let FileOptions { read_only, flush_delay, .. } = options;
    let align = match second {
        Some(_) => {
            direct_alignment(&file, is_device).unwrap_or(Align { block: 4096, memory: 4096 })
        }
        None => Align::NONE,
    };
    let align = match cache {
        Cache::Pdc if second.is_some() => regions::alignment(&file, is_device, align),
        _ => align,
    };
    let durability = Arc::new(durability::Durability::new(witness));
    let (block_size, physical) = block_sizes(&file, is_device, align.block);
    let map = in_memory.then(|| map(path, &file, size)).flatten();
    let (journal, placements) = match cache == Cache::Pdc && !read_only {
        true => {
            let regions = second.is_some().then_some(align);
            let (journal, placements) =
                regions::start(path, &file, size, &durability, regions, refusal)?;
            (Some(journal), placements)
        }
        false => (None, None),
    };
    let is_cached = cache != Cache::None && !in_memory && !read_only;
    let budget = options.cache_budget.filter(|_| is_cached);
    let budget = budget.map(|bytes| cache_budget(path, &file, (size, bytes), &durability));
    let budget = budget.transpose()?;
    let kernel_lock = KernelLock::of(&file, is_device);
    Ok(Shared {
        path: path.to_owned(),
        files: [Some(file), second].into_iter().flatten().map(StorageFile::new).collect(),
        exclusion: (align.block > SECTOR && !read_only).then(|| Exclusion::new(align.block)),
        has_warned: AtomicBool::new(false),
        unknown_ways: AtomicU8::new(if can_zero {
            0
        } else {
            ranges::ClearMethod::Punch.bit() | ranges::ClearMethod::Zero.bit()
        }),
        discarder: Arc::default(),
        pieces: ranges::Pieces::USUAL,
        turns: None,
        durability,
        placements,
        flushes: Flushes::new(),
        kernel_lock,
        pace: Pace::new(),
        cache,
        sectors: AtomicU64::new(size / SECTOR),
        block_size,
        physical_exponent: u8::try_from((physical / block_size).max(1).ilog2()).unwrap_or(0),
        align,
        read_only,
        is_device,
        can_discard: takes("discard_max_bytes"),
        discard: options.discard,
        can_zero,
        map,
        journal,
        budget,
        early: OnceLock::new(),
        flush_delay,
        danger_flush_journal_only: options.danger_flush_journal_only,
        recorder: None,
    })
}

/// Starts the thread that bounds the image's share of the page cache.
fn cache_budget(
    path: &Path,
    file: &File,
    (size, bytes): (u64, u64),
    durability: &Arc<durability::Durability>,
) -> Result<CacheBudget, EngineError> {
    let again = open_again(path, file, 0)?;
    CacheBudget::start(path, again, size, bytes, durability).map_err(|error| {
        let text = "cannot start the thread of --cache-budget; raise the limits of the process \
                    (ulimit -u, ulimit -n), or serve without it";
        EngineError::caused_at(path, ErrorKind::Limit, text, error)
    })
}

/// An image through the page cache, for us to serve, and its size.
fn locked(
    path: &Path,
    read_only: bool,
    raw: bool,
    patience: &mut lock::Patience<'_>,
) -> Result<(File, Metadata, u64), EngineError> {
    let (buffered, metadata) = open_image(path, read_only)?;
    // Before the first read: a dead process's writes may still be on their way, and reads hang on
    // storage that hangs.
    lock::acquire(path, &buffered, read_only, patience)?;
    let size = raw_size(path, &buffered, raw)?;
    let is_device = metadata.file_type().is_block_device();
    if !read_only {
        check_writable(path, &buffered, is_device)?;
        check_file_limit(path, is_device, size)?;
        beside::check(path, &buffered, is_device, patience)?;
    }
    if is_device {
        forget_pages(&buffered, size);
    }
    Ok((buffered, metadata, size))
}

/// Refuses to write to a device that is set read-only: it lets itself be opened for writing all the
/// same.
fn check_writable(path: &Path, file: &File, is_device: bool) -> Result<(), EngineError> {
    if !is_device || !device::is_read_only(file) {
        return Ok(());
    }
    let text = format!(
        "the device is set read-only (`blockdev --setro`, `losetup -r`, a hardware switch); serve \
         it with --read-only, or make it writable: `blockdev --setrw {}`",
        path.display()
    );
    Err(EngineError::at(path, ErrorKind::ReadOnly, text))
}

/// An image through the page cache, and its size, with any other user.
pub(super) fn image(path: &Path, raw: bool) -> Result<(File, u64), EngineError> {
    let (file, _) = open_image(path, true)?;
    let size = raw_size(path, &file, raw)?;
    Ok((file, size))
}

/// An image through the page cache, of which no byte is read yet.
fn open_image(path: &Path, read_only: bool) -> Result<(File, Metadata), EngineError> {
    let fail = |kind, context: &str| EngineError::at(path, kind, context);
    let metadata = std::fs::metadata(path).map_err(|e| open_error(path, read_only, e))?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(fail(
            ErrorKind::NotAFileOrDevice,
            "is a directory; give an image file or a block device",
        ));
    }
    if !kind.is_file() && !kind.is_block_device() {
        let text =
            "is neither a regular file nor a block device; give an image file or a block device";
        return Err(fail(ErrorKind::NotAFileOrDevice, text));
    }
    let buffered = open_with(path, read_only, 0).map_err(|e| open_error(path, read_only, e))?;
    Ok((buffered, metadata))
}

/// The size of an image, and the checks before it is used in any way.
fn raw_size(path: &Path, file: &File, raw: bool) -> Result<u64, EngineError> {
    // Before the size: an image of another format may have any.
    check_format(path, file, raw)?;
    checked_size(path, file)
}

/// Empties the page cache of a device of clean pages.
///
/// A previous user of the device may have written around the cache, and been killed. A direct write
/// that ends later leaves a page of a block device in the cache that was read meanwhile (files'
/// pages go then). As long as anybody has the device open, such a page would be read.
fn forget_pages(device: &File, size: u64) {
    pages::drop(device, &(0..size));
}

fn open_with(path: &Path, read_only: bool, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).write(!read_only).custom_flags(flags).open(path)
}

/// The same image as another open file: the system reports an error once to each open file.
pub(super) fn open_again(path: &Path, file: &File, flags: i32) -> Result<File, EngineError> {
    // By its descriptor: what is found at the path may be another file by now.
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    let is_same = |again: &File| match (again.metadata(), file.metadata()) {
        (Ok(again), Ok(file)) => (again.dev(), again.ino()) == (file.dev(), file.ino()),
        _ => false,
    };
    match open_with(Path::new(&own), true, flags).or_else(|_| open_with(path, true, flags)) {
        Ok(again) if is_same(&again) => Ok(again),
        Ok(_) => Err(EngineError::at(
            path,
            ErrorKind::Io,
            "was replaced by another file while it was opened; try again",
        )),
        Err(error) => Err(open_error(path, true, error)),
    }
}

/// Opens a device again, for exclusive use: a device that is mounted, or part of an array, has
/// another writer. The descriptor that has the claim is also the only one whose discards do not
/// stumble over the page cache.
fn claim(path: &Path, is_direct: bool, file: &File) -> Result<File, EngineError> {
    let direct = if is_direct { libc::O_DIRECT } else { 0 };
    let begin = Instant::now();
    loop {
        match open_with(path, false, libc::O_EXCL | direct) {
            Ok(file) => return Ok(file),
            // A process that was killed keeps its claim until its last request in flight has ended.
            Err(error)
                if error.raw_os_error() == Some(libc::EBUSY)
                    && begin.elapsed() < lock::PATIENCE =>
            {
                if lock::is_open_elsewhere(file) || is_mounted(file) {
                    return Err(open_error(path, false, error));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(open_error(path, false, error)),
        }
    }
}

/// Returns true if a file system on the device is mounted, as far as the system tells.
fn is_mounted(device: &File) -> bool {
    device.metadata().is_ok_and(|metadata| attached::mounted_at(metadata.rdev()).is_some())
}

/// Refuses an image of another format, unless its user says that it is raw.
fn check_format(path: &Path, mut file: &File, raw: bool) -> Result<(), EngineError> {
    if raw {
        return Ok(());
    }
    let size = file.seek(SeekFrom::End(0)).unwrap_or(0);
    let Some(format) = format::other_than_raw(file, size) else { return Ok(()) };
    let text = format.in_words(path);
    Err(EngineError::at(path, ErrorKind::Format, text))
}

/// Why there is no direct I/O.
struct Refusal {
    kind: ErrorKind,
    why: String,
    source: Option<io::Error>,
}

impl Refusal {
    fn into_error(self, path: &Path) -> EngineError {
        let text = format!("{}, which --cache none needs; use --cache writeback", self.why);
        match self.source {
            Some(source) => EngineError::caused_at(path, self.kind, text, source),
            None => EngineError::at(path, self.kind, text),
        }
    }
}

/// Opens the image for direct I/O, and checks the announced alignment.
fn open_direct(
    path: &Path,
    read_only: bool,
    is_device: bool,
    size: u64,
) -> Result<Result<File, Refusal>, EngineError> {
    let refusal = |why: &str, source| {
        let why = format!("there is no direct I/O on this file{why}");
        Ok(Err(Refusal { kind: ErrorKind::NoDirectIo, why, source }))
    };
    let direct = match open_with(path, read_only, libc::O_DIRECT) {
        Ok(direct) => direct,
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            return refusal("", Some(error));
        }
        Err(error) => return Err(open_error(path, read_only, error)),
    };
    let Some(align) = direct_alignment(&direct, is_device) else { return refusal("", None) };
    if let Err(error) = try_direct(&direct, align) {
        return refusal(
            &format!(" (it refuses to read a block of {} bytes)", align.block),
            Some(error),
        );
    }
    if !read_only && !size.is_multiple_of(align.block) {
        let why = format!(
            "has {size} bytes, not a multiple of the {} in which the storage does direct I/O",
            align.block
        );
        return Ok(Err(Refusal { kind: ErrorKind::OddSize, why, source: None }));
    }
    Ok(Ok(direct))
}

/// Reads the first block as it is announced that it can be read. Errors of the medium do not matter
/// here.
fn try_direct(direct: &File, align: Align) -> io::Result<()> {
    let block = usize::try_from(align.block).unwrap_or(4096);
    let mut piece = Piece::new(block + align.memory);
    // Not aligned to more than was announced.
    match direct.read_at(&mut piece.bytes_mut()[align.memory..][..block], 0) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

/// Refuses an image that ends within a block of direct I/O: a write of its end would make it
/// longer.
///
/// # Errors
/// [`ErrorKind::OddSize`].
pub(super) fn check_whole_blocks(path: &Path, block: u64, size: u64) -> Result<(), EngineError> {
    if size.is_multiple_of(block) {
        return Ok(());
    }
    let text = format!(
        "has {size} bytes, which is not a multiple of the {block} in which the storage does \
         direct I/O; round it up with `truncate -s {} {}`, or use --cache writeback",
        size.next_multiple_of(block),
        format::shell_word(path)
    );
    Err(EngineError::at(path, ErrorKind::OddSize, text))
}

/// Returns the alignment that direct I/O demands; none if the file has no direct I/O. A file system
/// that journals its data, or encrypts or compresses the file, takes the open. It then goes through
/// the page cache all the same.
fn direct_alignment(file: &File, is_device: bool) -> Option<Align> {
    let stat = rustix::fs::statx(file.as_fd(), c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    if let Ok(stat) = stat
        && stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0
    {
        let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
        let sane =
            memory.is_power_of_two() && offset.is_power_of_two() && offset.max(memory) <= 1 << 20;
        return sane.then_some(Align { block: u64::from(offset), memory: memory as usize });
    }
    // Kernels or file systems that do not say: the device's block, or what every device can do.
    let block = if is_device { rustix::fs::ioctl_blksszget(file).unwrap_or(4096) } else { 4096 };
    Some(Align { block: u64::from(block), memory: block as usize })
}

/// Logical and physical block for the guest, bytes.
///
/// An image file is a disk of 512-byte sectors on any storage, because its content counts in them.
/// A partition table made for 512-byte sectors cannot be found on a disk of 4096-byte ones. The
/// storage's preferred size is reported as the physical block, to which guests align. A device
/// keeps its own block sizes.
fn block_sizes(file: &File, is_device: bool, offset_align: u64) -> (u32, u32) {
    if is_device {
        let logical = rustix::fs::ioctl_blksszget(file).unwrap_or(512).max(512);
        return (logical, rustix::fs::ioctl_blkpbszget(file).unwrap_or(logical).max(logical));
    }
    (512, u32::try_from(offset_align).unwrap_or(4096).max(4096))
}

/// Beyond the limit of file sizes a write is not an error but, by default, the end of the process.
pub(super) fn check_file_limit(path: &Path, is_device: bool, size: u64) -> Result<(), EngineError> {
    match rustix::process::getrlimit(Resource::Fsize).current {
        Some(limit) if limit < size && !is_device => {
            let text = format!(
                "has {size} bytes, but this process may only write the first {limit} of a file; \
                 raise the limit (ulimit -f), or serve it with --read-only"
            );
            Err(EngineError::at(path, ErrorKind::Limit, text))
        }
        _ => Ok(()),
    }
}

/// Warns of a fully allocated file whose space a guest's trim will free.
fn warn_of_freeing(path: &Path, file: &File) {
    let is_whole = file
        .metadata()
        .is_ok_and(|metadata| metadata.blocks().saturating_mul(SECTOR) >= metadata.len());
    if is_whole {
        tracing::warn!(
            "{}: the file is fully allocated, and the guest's trim frees parts of it; use \
             --discard keep to keep it allocated, or --discard off to offer no trim",
            path.display()
        );
    }
}

/// True if a block device takes commands of a kind, according to one of its queue's limits.
fn device_takes(metadata: &std::fs::Metadata, limit: &str) -> bool {
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let of =
        |dir: &str| std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{dir}{limit}"));
    // A partition's limits are its disk's.
    let text = of("queue/").or_else(|_| of("../queue/")).unwrap_or_default();
    text.trim().parse::<u64>().is_ok_and(|bytes| bytes > 0)
}
