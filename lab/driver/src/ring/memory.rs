//! Guest memory as its owner sees it: one memfd, mapped shared, handed out in buffers.
//!
//! An [`Arena`] hands out each byte once ([`Arena::alloc`]), so a [`Buf`] has its range to itself
//! within this process. The device (usually another process with the same file mapped) may change
//! it meanwhile, so all accesses are atomic loads and stores. There is no way to free: an arena
//! lives as long as a session and its buffers, then goes as a whole.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering};

use super::error::Error;

const PAGE: usize = 4096;

/// One mapping of shared memory, unmapped on drop.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
    fd: Option<OwnedFd>,
}

// SAFETY: the mapping is plain memory that stays valid and in place until drop; every access to it
// goes through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above: shared access is by atomics only.
unsafe impl Sync for Mapping {}

impl Mapping {
    #[cfg(not(miri))]
    fn new(len: usize) -> Result<Self, Error> {
        use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
        use rustix::mm::{MapFlags, ProtFlags, mmap};

        let err =
            |what| move |e: rustix::io::Errno| Error::Memory { what, size: len, source: e.into() };
        let fd = memfd_create("vlane-guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .map_err(err("create the file"))?;
        ftruncate(&fd, len as u64).map_err(err("size the file"))?;
        // A back end that maps a file which later shrinks dies of SIGBUS: some refuse memory that
        // is not sealed.
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
            .map_err(err("seal the file"))?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing object.
        // `fd` has `len` bytes and is sealed against shrinking, so no access within `len` faults.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                &fd,
                0,
            )
        }
        .map_err(err("map the file"))?;
        let start = NonNull::new(start.cast()).ok_or(Error::Exhausted { wanted: len, left: 0 })?;
        Ok(Self { start, len, fd: Some(fd) })
    }

    /// Under Miri there is no memfd: the same memory from the heap, for one process.
    #[cfg(miri)]
    fn new(len: usize) -> Result<Self, Error> {
        let layout = std::alloc::Layout::from_size_align(len, PAGE)
            .map_err(|_| Error::Exhausted { wanted: len, left: 0 })?;
        // SAFETY: `len` is at least a page (see `Arena::new`).
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(Error::Exhausted { wanted: len, left: 0 })?;
        Ok(Self { start, len, fd: None })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        #[cfg(not(miri))]
        // SAFETY: `start` and `len` are mmap's results, and every user of the mapping holds the
        // `Arc` around it, so none is left.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        #[cfg(miri)]
        // SAFETY: allocated in `new` with this very layout.
        unsafe {
            std::alloc::dealloc(
                self.start.as_ptr(),
                std::alloc::Layout::from_size_align_unchecked(self.len, PAGE),
            );
        }
    }
}

/// Guest memory: one region at one guest physical address.
#[derive(Debug)]
pub struct Arena {
    map: Arc<Mapping>,
    base: u64,
    next: AtomicUsize,
}

impl Arena {
    /// Memory of `size` bytes (rounded up to whole pages) at guest physical address `base`.
    ///
    /// # Errors
    /// [`Error::Memory`] if the system refuses the file or the mapping.
    pub fn new(base: u64, size: usize) -> Result<Self, Error> {
        let size = size
            .max(1)
            .checked_next_multiple_of(PAGE)
            .ok_or(Error::Exhausted { wanted: size, left: 0 })?;
        Ok(Self { map: Arc::new(Mapping::new(size)?), base, next: AtomicUsize::new(0) })
    }

    /// Guest physical address of the first byte.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Size in bytes, a multiple of 4096.
    pub fn size(&self) -> u64 {
        self.map.len as u64
    }

    /// Address of the first byte in this process; vhost-user's "user address" of the region.
    pub fn user_addr(&self) -> u64 {
        self.map.start.as_ptr() as u64
    }

    /// The file behind the memory, to hand to a back end (offset 0 is [`Arena::base`]). `None` only
    /// under Miri.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.map.fd.as_ref().map(AsFd::as_fd)
    }

    /// This process' address for a guest physical one, as vhost-user wants ring addresses.
    pub fn to_user(&self, gpa: u64) -> u64 {
        gpa - self.base + self.user_addr()
    }

    /// The half word at a guest physical address, as the device left it; `None` outside of the
    /// memory, or if it is not aligned.
    pub fn half_word(&self, gpa: u64) -> Option<u16> {
        let offset = usize::try_from(gpa.checked_sub(self.base)?).ok()?;
        if offset.checked_add(2)? > self.map.len || !offset.is_multiple_of(2) {
            return None;
        }
        // SAFETY: two bytes inside the mapping, which begins at a page, aligned as just checked;
        // shared memory is accessed by atomics only.
        let word = unsafe { self.map.start.add(offset).cast::<AtomicU16>().as_ref() };
        Some(u16::from_le(word.load(Ordering::Acquire)))
    }

    /// The next `len` bytes, zeroed, aligned to `align` bytes (a power of two up to 4096; others
    /// are rounded up).
    ///
    /// # Errors
    /// [`Error::Exhausted`] if they do not fit.
    pub fn alloc(&self, len: usize, align: usize) -> Result<Buf, Error> {
        let align = align.clamp(8, PAGE).next_power_of_two();
        let mut seen = self.next.load(Ordering::Relaxed);
        loop {
            let start = seen.next_multiple_of(align);
            let end = start.checked_add(len).filter(|end| *end <= self.map.len);
            let Some(end) = end else {
                return Err(Error::Exhausted {
                    wanted: len,
                    left: self.map.len.saturating_sub(start),
                });
            };
            match self.next.compare_exchange_weak(seen, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    return Ok(Buf {
                        map: Arc::clone(&self.map),
                        offset: start,
                        len,
                        gpa: self.base + start as u64,
                    });
                }
                Err(now) => seen = now,
            }
        }
    }
}

/// A range of an [`Arena`] that no other code in this process was given.
#[derive(Debug)]
pub struct Buf {
    map: Arc<Mapping>,
    offset: usize,
    len: usize,
    gpa: u64,
}

impl Buf {
    /// Guest physical address of the first byte.
    pub fn addr(&self) -> u64 {
        self.gpa
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A pointer to the `T` at byte `at`, valid as long as the buffer is.
    ///
    /// `T` must be an atomic (or an array of atomics): that is what makes the accesses of several
    /// parties well defined.
    pub(super) fn at<T>(&self, at: usize) -> Result<NonNull<T>, Error> {
        let size = size_of::<T>();
        self.check(at, size)?;
        // SAFETY: `at` is within the buffer, which lies within the mapping.
        let ptr = unsafe { self.map.start.add(self.offset + at) };
        if !ptr.addr().get().is_multiple_of(align_of::<T>()) {
            return Err(Error::Bounds { at, len: size, size: self.len });
        }
        Ok(ptr.cast())
    }

    fn check(&self, at: usize, len: usize) -> Result<(), Error> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::Bounds { at, len, size: self.len }),
        }
    }

    /// The range as single bytes, words, single bytes.
    #[expect(clippy::type_complexity, reason = "three slices are what it is")]
    fn words(
        &self,
        at: usize,
        len: usize,
    ) -> Result<(&[AtomicU8], &[AtomicU64], &[AtomicU8]), Error> {
        self.check(at, len)?;
        // SAFETY: the range lies within the mapping (checked), which lives as long as `self`.
        // AtomicU8 has the layout of u8, and concurrent writes from outside are allowed.
        let bytes: &[AtomicU8] = unsafe {
            std::slice::from_raw_parts(self.map.start.add(self.offset + at).cast().as_ptr(), len)
        };
        // SAFETY: AtomicU64 is valid for any bytes, and `align_to` hands out only aligned ones.
        Ok(unsafe { bytes.align_to::<AtomicU64>() })
    }

    /// Copies `from` into the buffer, from byte `at` on.
    ///
    /// # Errors
    /// [`Error::Bounds`] if it does not fit.
    pub fn copy_in(&mut self, at: usize, from: &[u8]) -> Result<(), Error> {
        let (head, words, tail) = self.words(at, from.len())?;
        let (a, rest) = from.split_at(head.len());
        let (b, c) = rest.split_at(words.len() * 8);
        for (to, byte) in head.iter().zip(a).chain(tail.iter().zip(c)) {
            to.store(*byte, Ordering::Relaxed);
        }
        for (to, word) in words.iter().zip(b.as_chunks::<8>().0) {
            to.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        Ok(())
    }

    /// Copies bytes of the buffer, from byte `at` on, into `to`.
    ///
    /// # Errors
    /// [`Error::Bounds`] if the buffer ends before `to` is full.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) -> Result<(), Error> {
        let (head, words, tail) = self.words(at, to.len())?;
        let (a, rest) = to.split_at_mut(head.len());
        let (b, c) = rest.split_at_mut(words.len() * 8);
        for (from, byte) in head.iter().zip(a).chain(tail.iter().zip(c)) {
            *byte = from.load(Ordering::Relaxed);
        }
        for (from, word) in words.iter().zip(b.as_chunks_mut::<8>().0) {
            *word = from.load(Ordering::Relaxed).to_ne_bytes();
        }
        Ok(())
    }

    /// Sets every byte to `byte`.
    pub fn fill(&mut self, byte: u8) {
        if let Ok((head, words, tail)) = self.words(0, self.len) {
            head.iter().chain(tail).for_each(|to| to.store(byte, Ordering::Relaxed));
            words.iter().for_each(|to| to.store(u64::from_ne_bytes([byte; 8]), Ordering::Relaxed));
        }
    }

    /// Fills the buffer with bytes that do not compress and that `seed` determines.
    pub fn fill_pattern(&mut self, seed: u64) {
        self.fill_pattern_to(seed, self.len);
    }

    /// As [`Buf::fill_pattern`], but only the first `len` bytes, or as many as there are.
    pub fn fill_pattern_to(&mut self, seed: u64, len: usize) {
        let mut state = seed;
        if let Ok((head, words, tail)) = self.words(0, len.min(self.len)) {
            #[expect(clippy::cast_possible_truncation, reason = "the low byte is wanted")]
            head.iter()
                .chain(tail)
                .for_each(|to| to.store(splitmix(&mut state) as u8, Ordering::Relaxed));
            words.iter().for_each(|to| to.store(splitmix(&mut state), Ordering::Relaxed));
        }
    }
}

/// One step of splitmix64 (Steele, Lea, Flood 2014).
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
