//! The log of pages that the back end wrote, for live migration (vhost-user, "Migration").

use std::fs::File;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::mm::MapFlags;

use crate::guest::MemoryError;
use crate::mapping::Mapping;

/// Bytes that one bit stands for (`VHOST_LOG_PAGE`).
const PAGE: u64 = 4096;

/// A bitmap shared with the front end: one bit per 4 KiB page of guest physical memory,
/// little-endian bit order.
#[derive(Debug)]
pub struct DirtyLog {
    mapping: Mapping,
    /// Bytes of the bitmap.
    len: usize,
}

impl DirtyLog {
    /// Maps `size` bytes of `file` at `offset`.
    ///
    /// # Errors
    /// [`MemoryError`], with the log in the place of a region.
    pub fn map(file: &File, offset: u64, size: u64) -> Result<DirtyLog, MemoryError> {
        let bad = MemoryError::BadSize { guest: 0, size, offset };
        let Some(needed) = offset.checked_add(size) else { return Err(bad) };
        if size == 0 || !offset.is_multiple_of(PAGE) {
            return Err(bad);
        }
        let map_error = |source: std::io::Error| MemoryError::Map { guest: 0, size, source };
        let len = file.metadata().map_err(map_error)?.len();
        if len < needed {
            return Err(MemoryError::FileTooShort { guest: 0, needed, len });
        }
        let Ok(len) = usize::try_from(size) else { return Err(bad) };
        let mapping = Mapping::new(file, offset, len, MapFlags::empty()).map_err(map_error)?;
        Ok(DirtyLog { mapping, len })
    }

    /// Marks the pages of `len` bytes at guest physical address `guest`. Pages beyond the log are
    /// not the front end's memory and are passed over.
    pub fn mark(&self, guest: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = guest.saturating_add(len - 1) / PAGE;
        for page in guest / PAGE..=last {
            let Some(byte) = usize::try_from(page / 8).ok().filter(|byte| *byte < self.len) else {
                return;
            };
            // SAFETY: `byte` is inside the mapping, which this log keeps and which is only touched
            // atomically.
            let cell = unsafe { AtomicU8::from_ptr(self.mapping.base().as_ptr().add(byte)) };
            cell.fetch_or(1 << (page % 8), Ordering::AcqRel);
        }
    }
}
