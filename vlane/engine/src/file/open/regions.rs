//! Decides if the guest's journal can be read and written around the page cache, and starts the
//! journal thread.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::{EngineError, ErrorKind, open_again, open_direct};
use crate::file::JournalWay;
use crate::file::durability::Durability;
use crate::file::journal::{self, Journal, Means};
use crate::file::kernel_lock::{EXT4_MAGIC, XFS_MAGIC};
use crate::file::placements::Placements;
use crate::file::rereads;
use crate::file::transfer::Align;
use crate::pages;

/// The image for direct I/O, if its regions can be; otherwise why not.
pub(super) fn open(
    path: &Path,
    buffered: &File,
    way: JournalWay,
    (is_device, file_system): (bool, i64),
    size: u64,
) -> (Option<File>, Option<String>) {
    if way != JournalWay::Direct {
        return (None, Some("it is dropped from the page cache (--journal drop)".to_owned()));
    }
    let has_cachestat = pages::cached(buffered, &(0..1)).is_some();
    let unsafe_there = || refusal(is_device, file_system, has_cachestat).map(str::to_owned);
    let opened = match unsafe_there().or_else(|| rereads::reason(buffered)) {
        Some(why) => Err(why),
        None => match open_direct(path, false, is_device, size) {
            Ok(Ok(direct)) => match is_device.then(|| empty(buffered, size)) {
                Some(Err(error)) => {
                    Err(format!("the device's pages in the page cache cannot be written: {error}"))
                }
                _ => Ok(direct),
            },
            Ok(Err(refusal)) => Err(refusal.why),
            Err(error) => Err(error.to_string()),
        },
    };
    match opened {
        Ok(direct) => (Some(direct), None),
        Err(why) => {
            tracing::info!(
                "{}: the guest's journal is dropped from the page cache, not kept around it: {why}",
                path.display()
            );
            (None, Some(why))
        }
    }
}

/// Empties the page cache of a device, of dirty pages as well: see [`super::forget_pages`].
fn empty(buffered: &File, size: u64) -> std::io::Result<()> {
    buffered.sync_data()?;
    super::forget_pages(buffered, size);
    Ok(())
}

/// The reason why there can be no direct regions, for any image.
///
/// The page cache and direct I/O of one file have to agree about pages that are not touched by
/// both, and the system has to report which pages of a file are in the cache. The first is so on
/// ext4, XFS and block devices. Others are unknown (overlay and network file systems), or direct
/// I/O may go through the page cache after all, without a sign (btrfs).
fn refusal(is_device: bool, file_system: i64, has_cachestat: bool) -> Option<&'static str> {
    let is_known = is_device || matches!(file_system, EXT4_MAGIC | XFS_MAGIC);
    match (is_known, has_cachestat) {
        (false, _) => Some("only on ext4, XFS and block devices is it known to be safe"),
        (_, false) => {
            Some("this kernel does not report the page cache's content (cachestat needs Linux 6.5)")
        }
        _ => None,
    }
}

/// Returns the alignment of operations in regions, on storage that demands `align`.
///
/// Not less than a page and a block of the file system. File systems zero a part of one of those
/// through the page cache, or write through it where the block is shared with another file.
pub(super) fn alignment(file: &File, is_device: bool, align: Align) -> Align {
    let of_file_system = match is_device {
        true => 0,
        false => rustix::fs::fstatfs(file).map_or(0, |fs| u64::try_from(fs.f_bsize).unwrap_or(0)),
    };
    let least = pages::size().max(of_file_system.min(1 << 20)).next_power_of_two();
    Align { block: align.block.max(least), ..align }
}

/// Starts the journal thread. `align`: direct regions are possible.
pub(super) fn start(
    path: &Path,
    file: &File,
    size: u64,
    durability: &Arc<Durability>,
    align: Option<Align>,
    refusal: Option<String>,
) -> Result<(Journal, Option<Arc<Placements>>), EngineError> {
    let failed = |error: std::io::Error| {
        let text = "cannot start the thread that looks for the guest's journal; raise the limits \
                    of the process (ulimit -u, ulimit -n), or use --cache writeback";
        EngineError::caused_at(path, ErrorKind::Limit, text, error)
    };
    let waker = journal::waker().map_err(failed)?;
    let placements = align.map(|_| Placements::new(Arc::clone(&waker)));
    let means = match (&placements, align) {
        (Some(placements), Some(align)) => Ok(Means {
            placements: Arc::clone(placements),
            durability: Arc::clone(durability),
            direct: open_again(path, file, libc::O_DIRECT)?,
            align,
        }),
        _ => Err(refusal.unwrap_or_default()),
    };
    let journal =
        Journal::start(path, open_again(path, file, 0)?, size, waker, means).map_err(failed)?;
    Ok((journal, placements))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_exist_only_on_safe_storage() {
        const BTRFS: i64 = 0x9123_683e;
        const OVERLAY: i64 = 0x794c_7630;
        const NFS: i64 = 0x6969;
        const TMPFS: i64 = 0x0102_1994;
        for known in [EXT4_MAGIC, XFS_MAGIC] {
            assert_eq!(refusal(false, known, true), None);
            assert!(refusal(false, known, false).is_some_and(|why| why.contains("cachestat")));
        }
        assert_eq!(refusal(true, 0, true), None);
        assert!(refusal(true, 0, false).is_some());
        for other in [BTRFS, OVERLAY, NFS, TMPFS, 0] {
            assert!(refusal(false, other, true).is_some_and(|why| why.contains("ext4")));
        }
    }
}
