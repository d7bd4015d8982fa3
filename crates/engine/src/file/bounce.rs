//! Aligned memory for requests that direct I/O cannot take as they are.
//!
//! A request goes through it in pieces of at most [`PIECE`] bytes, and a channel has at most [`BUDGET`] bytes at a
//! time: what a guest asks for must not decide how much memory the host needs.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::NonNull;

const PAGE: usize = 4096;
/// The largest buffer, bytes.
pub(super) const PIECE: usize = 256 << 10;
/// Bytes that one channel has in buffers at a time.
const BUDGET: usize = 32 << 20;
/// Buffers that are kept for the next requests.
const KEPT: usize = 32;

/// A buffer aligned to a page.
#[derive(Debug)]
pub(super) struct Bounce {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: plain owned memory.
unsafe impl Send for Bounce {}

impl Bounce {
    fn new(len: usize) -> Bounce {
        let rounded = len.max(1).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(rounded, PAGE).unwrap_or_else(|_| Layout::new::<[u8; PAGE]>());
        // SAFETY: the layout's size is not zero. What is in the memory is overwritten before it is read: by `gather`
        // before a write, by the device before `scatter`, which copies no more than the device gave.
        let Some(base) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        Bounce { base, layout }
    }

    pub(super) fn len(&self) -> usize {
        self.layout.size()
    }

    pub(super) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Copies `len` bytes of guest buffers, from their byte `skip` on, to the start of this one.
    ///
    /// # Safety
    /// The buffers must be mapped.
    pub(super) unsafe fn gather(&mut self, buffers: &[libc::iovec], skip: u64, len: usize) {
        let base = self.base.as_ptr();
        pieces(buffers, skip, len.min(self.len()), |at, guest, n| {
            // SAFETY: `n` bytes from `at` are inside our memory; the guest's buffer is mapped, as promised.
            unsafe { std::ptr::copy_nonoverlapping(guest.cast_const(), base.add(at), n) };
        });
    }

    /// Copies `len` bytes from this buffer's byte `from` on to guest buffers, from their byte `skip` on.
    ///
    /// # Safety
    /// The buffers must be mapped, and the bytes must have been written by the device.
    pub(super) unsafe fn scatter(&self, from: usize, buffers: &[libc::iovec], skip: u64, len: usize) {
        let from = from.min(self.len());
        let base = self.base.as_ptr().cast_const();
        pieces(buffers, skip, len.min(self.len() - from), |at, guest, n| {
            // SAFETY: as in `gather`.
            unsafe { std::ptr::copy_nonoverlapping(base.add(from + at), guest, n) };
        });
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.base.as_ptr(), self.layout) };
    }
}

/// Calls `each` with (offset from the first byte, address, length) of the pieces of buffers that make up `len` bytes
/// from byte `skip` on.
fn pieces(buffers: &[libc::iovec], skip: u64, len: usize, mut each: impl FnMut(usize, *mut u8, usize)) {
    let mut skip = usize::try_from(skip).unwrap_or(usize::MAX);
    let mut done = 0;
    for buffer in buffers {
        let here = skip.min(buffer.iov_len);
        skip -= here;
        let n = (buffer.iov_len - here).min(len - done);
        if n > 0 {
            each(done, buffer.iov_base.cast::<u8>().wrapping_add(here), n);
            done += n;
        }
    }
}

/// A channel's buffers.
#[derive(Debug, Default)]
pub(super) struct Pool {
    kept: Vec<Bounce>,
    lent: usize,
}

impl Pool {
    /// A buffer of at least `len` bytes, unless too much is lent already.
    pub(super) fn take(&mut self, len: usize) -> Option<Bounce> {
        let bounce = match self.kept.iter().rposition(|kept| kept.len() >= len) {
            Some(at) => self.kept.swap_remove(at),
            None if self.lent + len > BUDGET => return None,
            None => Bounce::new(len),
        };
        self.lent += bounce.len();
        Some(bounce)
    }

    pub(super) fn give_back(&mut self, bounce: Bounce) {
        self.lent -= bounce.len();
        if self.kept.len() < KEPT {
            self.kept.push(bounce);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_reach_exactly_the_bytes_named() {
        let mut guest = [[0u8; 10], [0; 10], [0; 10]];
        for (n, byte) in guest.iter_mut().flatten().zip(1..) {
            *n = byte;
        }
        let buffers: Vec<libc::iovec> = guest
            .iter_mut()
            .map(|part| libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() })
            .collect();
        let mut bounce = Bounce::new(30);
        // SAFETY: the buffers are arrays that outlive the calls.
        unsafe {
            bounce.gather(&buffers, 7, 15);
            bounce.scatter(2, &buffers, 12, 6);
        }
        let flat: Vec<u8> = guest.iter().flatten().copied().collect();
        let expected: Vec<u8> = (1..=12).chain(10..=15).chain(19..=30).collect();
        assert_eq!(flat, expected);
    }

    #[test]
    fn a_pool_lends_no_more_than_its_budget_and_keeps_what_comes_back() {
        let mut pool = Pool::default();
        let lent: Vec<Bounce> = std::iter::from_fn(|| pool.take(PIECE)).collect();
        assert_eq!(lent.len(), BUDGET / PIECE);
        assert!(pool.take(1).is_none());
        lent.into_iter().for_each(|bounce| pool.give_back(bounce));
        assert_eq!((pool.lent, pool.kept.len()), (0, KEPT));
        assert!(pool.take(1).is_some());
    }
}
