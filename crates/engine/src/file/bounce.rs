//! Aligned memory for requests that direct I/O cannot take as they are, and copying between it and guest buffers.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// A buffer aligned to a page.
#[derive(Debug)]
pub(super) struct Bounce {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain owned memory.
unsafe impl Send for Bounce {}

impl Bounce {
    pub(super) fn new(len: usize) -> Bounce {
        let rounded = len.max(1).next_multiple_of(4096);
        let layout = Layout::from_size_align(rounded, 4096).unwrap_or_else(|_| Layout::new::<[u8; 4096]>());
        // SAFETY: the layout's size is not zero.
        let Some(base) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        Bounce { base, layout }
    }

    pub(super) fn len(&self) -> usize {
        self.layout.size()
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Copies from guest buffers into this one.
    ///
    /// # Safety
    /// The buffers must be mapped.
    pub(super) unsafe fn gather(&mut self, buffers: &[libc::iovec]) {
        let mut at = 0;
        for buffer in buffers {
            let n = buffer.iov_len.min(self.len() - at);
            // SAFETY: `n` bytes from `at` are inside our memory; the guest's buffer is mapped, as promised.
            unsafe { std::ptr::copy_nonoverlapping(buffer.iov_base.cast(), self.base.as_ptr().add(at), n) };
            at += n;
        }
    }

    /// Copies from this buffer, beginning at `from`, to guest buffers.
    ///
    /// # Safety
    /// The buffers must be mapped.
    pub(super) unsafe fn scatter(&self, from: usize, buffers: &[libc::iovec]) {
        let mut at = from.min(self.len());
        for buffer in buffers {
            let n = buffer.iov_len.min(self.len() - at);
            // SAFETY: as in `gather`.
            unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr().add(at), buffer.iov_base.cast(), n) };
            at += n;
        }
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}
