//! The log of pages that the back end wrote, for live migration (vhost-user, "Migration").

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::fault::Guard;
use crate::memory::MemoryError;

/// Bytes that one bit stands for (`VHOST_LOG_PAGE`).
const PAGE: u64 = 4096;

/// A bitmap shared with the front end: one bit per 4 KiB page of guest physical memory, little-endian bit order.
#[derive(Debug)]
pub struct DirtyLog {
    base: *mut AtomicU64,
    words: usize,
    len: usize,
    _guard: Guard,
}

// SAFETY: the bitmap is shared memory that is only touched with atomic operations, and unmapped once, in `Drop`.
unsafe impl Send for DirtyLog {}
// SAFETY: as above.
unsafe impl Sync for DirtyLog {}

impl DirtyLog {
    /// Maps `size` bytes of `file` at `offset`.
    ///
    /// # Errors
    /// [`MemoryError`], with the log in the place of a region.
    pub fn map(file: &File, offset: u64, size: u64) -> Result<DirtyLog, MemoryError> {
        let bad = MemoryError::BadSize { guest: 0, size, offset };
        let Some(needed) = offset.checked_add(size) else { return Err(bad) };
        if size < 8 || !offset.is_multiple_of(PAGE) {
            return Err(bad);
        }
        let map_error = |source: std::io::Error| MemoryError::Map { guest: 0, size, source };
        let len = file.metadata().map_err(map_error)?.len();
        if len < needed {
            return Err(MemoryError::FileTooShort { guest: 0, needed, len });
        }
        let Ok(len) = usize::try_from(size) else { return Err(bad) };
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file.as_fd(),
                offset,
            )
        }
        .map_err(|e| map_error(e.into()))?;
        let guard = Guard::new(base.cast(), len.next_multiple_of(4096)).map_err(map_error)?;
        Ok(DirtyLog { base: base.cast(), words: len / 8, len, _guard: guard })
    }

    /// Marks the pages of `len` bytes at guest physical address `guest`. Pages beyond the log are not the front
    /// end's memory and are passed over.
    pub fn mark(&self, guest: u64, len: u64) {
        if len == 0 {
            return;
        }
        let last = guest.saturating_add(len - 1) / PAGE;
        for page in guest / PAGE..=last {
            let Ok(word) = usize::try_from(page / 64) else { return };
            if word >= self.words {
                return;
            }
            // SAFETY: `word` is inside the mapping, which is page aligned, so the u64 is aligned.
            let cell = unsafe { &*self.base.add(word) };
            cell.fetch_or((1u64 << (page % 64)).to_le(), Ordering::AcqRel);
        }
    }
}

impl Drop for DirtyLog {
    fn drop(&mut self) {
        // SAFETY: what `mmap` returned, unmapped once.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }
}
