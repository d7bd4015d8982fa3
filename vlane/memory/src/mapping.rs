//! A mapped file of another process, or an image. (Memory that a driver makes for itself, under
//! Miri from the heap, is `vlane_driver::ring::Arena`.)

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags};

use crate::fault::Guard;

/// Bytes of the system's smallest page; every larger one is a multiple.
pub const PAGE: usize = 4096;

/// A part of a file, mapped shared and guarded against the file's truncation. Unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    pages: Pages,
}

impl Mapping {
    /// Maps `len` bytes of `file` from `offset` on, readable and writable.
    ///
    /// # Errors
    /// The system's error, or that there are too many guards.
    pub fn new(file: impl AsFd, offset: u64, len: usize, flags: MapFlags) -> io::Result<Mapping> {
        Self::with(file, offset, len, ProtFlags::READ | ProtFlags::WRITE, flags)
    }

    /// The same, only to be read: no code in this process can write to it by accident.
    ///
    /// # Errors
    /// As [`Mapping::new`].
    pub fn read_only(file: impl AsFd, len: usize) -> io::Result<Mapping> {
        Self::with(file, 0, len, ProtFlags::READ, MapFlags::empty())
    }

    fn with(
        file: impl AsFd,
        offset: u64,
        len: usize,
        may: ProtFlags,
        flags: MapFlags,
    ) -> io::Result<Mapping> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                may,
                MapFlags::SHARED | flags,
                file.as_fd(),
                offset,
            )
        }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::Other)?;
        let guard = Guard::new(base.as_ptr(), len.next_multiple_of(PAGE)).inspect_err(|_| {
            // SAFETY: the address from `mmap`, which has no other user yet.
            let _ = unsafe { rustix::mm::munmap(base.as_ptr().cast(), len) };
        })?;
        let pages = Pages { base, len, guard: ManuallyDrop::new(guard) };
        Ok(Mapping { pages })
    }

    /// Address of the first byte.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.pages.base
    }

    /// Bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.pages.len
    }

    /// True if pages vanished under it: an access before that may have met zeroes, or have been
    /// lost.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.pages.guard.tripped()
    }
}

/// Mapped pages, unmapped on drop.
#[derive(Debug)]
struct Pages {
    base: NonNull<u8>,
    len: usize,
    guard: ManuallyDrop<Guard>,
}

// SAFETY: mapped pages are plain shared memory; they are only ever accessed through raw pointers
// and volatile or atomic operations, and unmapped once, by the last owner.
unsafe impl Send for Pages {}
// SAFETY: as above: no operation on the mapping itself needs exclusive access.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: dropped once, here, and not used again. Before the unmapping: what is mapped at
        // that address after it is not this guard's.
        unsafe { ManuallyDrop::drop(&mut self.guard) };
        // SAFETY: `base` and `len` are what `mmap` returned, and this is the only place that
        // unmaps.
        if let Err(error) = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) } {
            debug_assert!(false, "munmap: {error}");
        }
    }
}
