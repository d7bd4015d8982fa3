//! Opening an image: what can be wrong with it, and what it is like.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};

use rustix::fs::{AtFlags, StatxFlags};
use vlane_ring::SECTOR;

use super::{Cache, FileOptions, Shared, lock, mapped};
use crate::{EngineError, ErrorKind};

const TMPFS_MAGIC: i64 = 0x0102_1994;

pub(super) fn open(path: &Path, options: FileOptions) -> Result<Shared, EngineError> {
    let FileOptions { cache, read_only } = options;
    let fail = |kind, context: &str| EngineError::new(kind, Some(path), context);
    let metadata = std::fs::metadata(path).map_err(|e| open_error(path, read_only, e))?;
    let kind = metadata.file_type();
    let is_device = kind.is_block_device();
    if kind.is_dir() {
        return Err(fail(ErrorKind::NotAFileOrDevice, "is a directory; give an image file or a block device"));
    }
    if !kind.is_file() && !is_device {
        let text = "is neither a regular file nor a block device; give an image file or a block device";
        return Err(fail(ErrorKind::NotAFileOrDevice, text));
    }
    let buffered = open_with(path, read_only, 0).map_err(|e| open_error(path, read_only, e))?;
    let size = checked_size(path, &buffered)?;
    warn_of_other_formats(path, &buffered);

    let in_memory = rustix::fs::fstatfs(&buffered).is_ok_and(|fs| fs.f_type == TMPFS_MAGIC) && !is_device;
    let (file, second, cache) = match cache {
        // In memory the page cache is the storage: there is nothing to go around.
        _ if in_memory => (buffered, None, if cache == Cache::WriteThrough { cache } else { Cache::Writeback }),
        Cache::Writeback | Cache::WriteThrough => (buffered, None, cache),
        Cache::Auto | Cache::None => match open_with(path, read_only, libc::O_DIRECT) {
            Ok(direct) => (direct, Some(buffered), Cache::None),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && cache == Cache::Auto => {
                tracing::info!("{}: no direct I/O on this file system; using --cache writeback", path.display());
                (buffered, None, Cache::Writeback)
            }
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                let text = "this file system has no direct I/O, which --cache none needs; use --cache writeback";
                return Err(fail(ErrorKind::NoDirectIo, text).with_source(error));
            }
            Err(error) => return Err(open_error(path, read_only, error)),
        },
    };
    lock::acquire(path, &file, read_only)?;

    let (memory_align, offset_align) = match cache {
        Cache::None => direct_alignment(&file, is_device),
        _ => (1, 1),
    };
    let device_block = if is_device { rustix::fs::ioctl_blksszget(&file).unwrap_or(512) } else { 512 };
    let block_size = u32::try_from(offset_align).unwrap_or(512).max(device_block).max(512);
    let physical = match is_device {
        true => rustix::fs::ioctl_blkpbszget(&file).unwrap_or(block_size),
        false => u32::try_from(metadata.blksize()).unwrap_or(4096).clamp(block_size, 65536),
    };
    let map = match in_memory {
        true => Some(mapped::Map::new(&file, size, read_only).map_err(|error| {
            EngineError::new(ErrorKind::Io, Some(path), "cannot map the image").with_source(error)
        })?),
        false => None,
    };
    Ok(Shared {
        path: path.to_owned(),
        file,
        buffered: second,
        direct_off: AtomicBool::new(false),
        cache,
        sectors: AtomicU64::new(size / SECTOR),
        block_size,
        physical_exponent: u8::try_from((physical / block_size).max(1).ilog2()).unwrap_or(0),
        memory_align,
        offset_align,
        read_only,
        is_device,
        can_discard: !is_device || device_discards(&metadata),
        map,
    })
}

fn open_with(path: &Path, read_only: bool, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).write(!read_only).custom_flags(flags).open(path)
}

fn open_error(path: &Path, read_only: bool, error: io::Error) -> EngineError {
    let (kind, text) = match error.raw_os_error() {
        Some(libc::ENOENT) => (
            ErrorKind::NotFound,
            "there is no such image; make one, for example with `truncate -s 10G` or `qemu-img create -f raw`".to_owned(),
        ),
        Some(libc::EACCES | libc::EPERM) if read_only => {
            (ErrorKind::Permission, "no permission to read it; run vlane as its owner, or change its mode".to_owned())
        }
        Some(libc::EACCES | libc::EPERM) => (
            ErrorKind::Permission,
            "no permission to read and write it; run vlane as its owner, change its mode, or serve it with --read-only"
                .to_owned(),
        ),
        Some(libc::EROFS) => {
            (ErrorKind::ReadOnly, "lies on a read-only file system; serve it with --read-only".to_owned())
        }
        Some(libc::EMFILE | libc::ENFILE) => {
            (ErrorKind::Limit, "no file descriptor left to open it; raise the limit (ulimit -n)".to_owned())
        }
        Some(libc::EBUSY) => {
            (ErrorKind::Locked, "is in use (mounted, or part of an array); stop its other user".to_owned())
        }
        Some(libc::ETXTBSY) => (ErrorKind::Locked, "is a program that is being executed".to_owned()),
        _ => (ErrorKind::Io, "cannot open it".to_owned()),
    };
    EngineError::new(kind, Some(path), text).with_source(error)
}

/// The image's size in bytes, if it is one that can be served.
pub(super) fn checked_size(path: &Path, mut file: &File) -> Result<u64, EngineError> {
    // Seeking gives the size of files and devices alike.
    let size = file.seek(SeekFrom::End(0)).map_err(|error| {
        EngineError::new(ErrorKind::Io, Some(path), "cannot find out its size").with_source(error)
    })?;
    if size == 0 {
        let text = "is empty; give it a size first, for example with `truncate -s 10G`";
        return Err(EngineError::new(ErrorKind::Empty, Some(path), text));
    }
    if !size.is_multiple_of(SECTOR) {
        let text = format!(
            "has {size} bytes, which is not a multiple of the sector size, 512; round it up with `truncate -s {}`",
            size.next_multiple_of(SECTOR)
        );
        return Err(EngineError::new(ErrorKind::OddSize, Some(path), text));
    }
    Ok(size)
}

/// An image of another format served as raw shows the guest the format's innards, and lets it destroy them.
fn warn_of_other_formats(path: &Path, mut file: &File) {
    let mut magic = [0u8; 4];
    let read = file.seek(SeekFrom::Start(0)).and_then(|_| file.read_exact(&mut magic));
    if read.is_ok() && magic == *b"QFI\xfb" {
        tracing::warn!(
            "{}: looks like a qcow2 image and is served as raw; convert it with `qemu-img convert -O raw`",
            path.display()
        );
    }
}

/// What direct I/O demands of memory and offsets, bytes.
fn direct_alignment(file: &File, is_device: bool) -> (usize, u64) {
    let stat = rustix::fs::statx(file.as_fd(), c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
    if let Ok(stat) = stat
        && stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0
        && stat.stx_dio_offset_align > 0
    {
        return (stat.stx_dio_mem_align.max(1) as usize, u64::from(stat.stx_dio_offset_align));
    }
    // Kernels or file systems that do not say: the device's block, or what every device can do.
    let block = if is_device { rustix::fs::ioctl_blksszget(file).unwrap_or(4096) } else { 4096 };
    (block as usize, u64::from(block))
}

/// Whether a block device takes discards, according to its queue's limits.
fn device_discards(metadata: &std::fs::Metadata) -> bool {
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let limit = |dir: &str| std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/{dir}discard_max_bytes"));
    // A partition's limits are its disk's.
    let text = limit("queue/").or_else(|_| limit("../queue/")).unwrap_or_default();
    text.trim().parse::<u64>().is_ok_and(|bytes| bytes > 0)
}
