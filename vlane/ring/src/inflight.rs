//! In-flight tracking: which requests a device has, written where the device after it finds them
//! (vhost-user, "Inflight I/O tracking").
//!
//! The front end keeps a piece of shared memory for the back end. The device marks each request
//! there when it takes it, with a counter that keeps the order. It takes the mark away once the
//! answer is in the ring. A device that was killed leaves the marks. Its successor submits exactly
//! those requests again, before any other ([`Queue::track`](crate::Queue::track)).
//!
//! A kill may come between any two stores. The stores of one thread happen in their order, and a
//! kill cuts them off at some point of it; so every state in between must be one that the successor
//! reads rightly. The one that matters most: the answer is in the ring, and its mark is still
//! there. That request must not be done again, as the guest may have written something newer since.
//! Its sign is described in [`split`] and [`packed`].
//!
//! The layout is the specification's, so that another back end can follow. The front end can write
//! to the memory: values from it are checked, and read only when a queue begins. From then on
//! private copies decide.

mod packed;
mod split;
mod trailer;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use rustix::mm::MapFlags;
use vlane_memory::Mapping;
use vlane_memory::shared::{SharedError, SharedWords};

pub(crate) use packed::PackedMarks;
pub(crate) use split::SplitMarks;
pub use trailer::{NotedImage, Notes};

use crate::error::Lost;
use crate::limits::MAX_QUEUE_SIZE;

/// The only version of the layout.
const VERSION: u16 = 1;
/// Parts begin at multiples of this, as in other back ends.
const ALIGNMENT: usize = 64;

/// Offsets that both layouts share.
const FEATURES: usize = 0;
const VERSION_AT: usize = 8;
const DESC_NUM: usize = 10;

/// Why memory for the tracking cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InflightError {
    /// No queue, or sizes that no virtqueue has.
    #[error(
        "in-flight tracking for {queues} queues of {size} entries is asked for: a queue has 1 to \
         {MAX_QUEUE_SIZE}"
    )]
    Shape {
        /// Queues.
        queues: u16,
        /// Entries of each.
        size: u16,
    },
    /// Not enough memory for them.
    #[error(
        "{bytes} bytes are too few for the in-flight tracking of {queues} queues of {size} entries"
    )]
    TooSmall {
        /// Bytes that the front end named, or that the file has.
        bytes: u64,
        /// Queues.
        queues: u16,
        /// Entries of each.
        size: u16,
    },
    /// It cannot be made.
    #[error("no memory for the in-flight tracking")]
    Create(#[from] SharedError),
    /// It cannot be mapped.
    #[error("cannot map the memory of the in-flight tracking")]
    Map(#[from] io::Error),
}

/// Shared memory for the tracking of all queues of a session.
#[derive(Debug)]
pub struct InflightRegion {
    mapping: Mapping,
    /// Bytes of each queue's part.
    stride: usize,
    queues: u16,
    /// There is room for [`Notes`] behind the last part.
    has_notes: bool,
}

impl InflightRegion {
    /// Bytes that `queues` queues of `size` entries need, in any layout, and the [`Notes`].
    ///
    /// # Errors
    /// [`InflightError::Shape`].
    pub fn bytes(queues: u16, size: u16) -> Result<u64, InflightError> {
        Self::check(queues, size)?;
        Ok((Self::part_bytes(size) * usize::from(queues) + trailer::BYTES) as u64)
    }

    /// Bytes of a part that is made here.
    fn part_bytes(size: u16) -> usize {
        packed::bytes(size).max(split::bytes(size)).next_multiple_of(ALIGNMENT)
    }

    /// New memory for so many queues of that size: a file whose size cannot change.
    ///
    /// # Errors
    /// [`InflightError::Shape`], [`InflightError::Create`].
    pub fn create(queues: u16, size: u16) -> Result<File, InflightError> {
        let too_small = |_| InflightError::TooSmall { bytes: u64::MAX, queues, size };
        let bytes = usize::try_from(Self::bytes(queues, size)?).map_err(too_small)?;
        let (_, file) = SharedWords::create("vlane-inflight", bytes)?;
        Ok(File::from(file))
    }

    /// Maps `bytes` bytes of `file` from `offset` on, as the front end says that they were made for
    /// `queues` queues of `size` entries.
    ///
    /// # Errors
    /// [`InflightError`].
    pub fn map(
        file: &File,
        offset: u64,
        bytes: u64,
        queues: u16,
        size: u16,
    ) -> Result<Arc<Self>, InflightError> {
        Self::check(queues, size)?;
        let len = file.metadata()?.len();
        let too_small = |bytes| InflightError::TooSmall { bytes, queues, size };
        if bytes > len.saturating_sub(offset) {
            return Err(too_small(len.saturating_sub(offset)));
        }
        let total = usize::try_from(bytes).map_err(|_| too_small(bytes))?;
        let has_notes = Self::bytes(queues, size)? == bytes;
        let stride = match has_notes {
            true => Self::part_bytes(size),
            // Its maker gave each queue the same, a multiple of the alignment.
            false => total / usize::from(queues) / ALIGNMENT * ALIGNMENT,
        };
        if stride < split::bytes(size) {
            return Err(too_small(bytes));
        }
        let mapping = Mapping::new(file, offset, total, MapFlags::empty())?;
        Ok(Arc::new(Self { mapping, stride, queues, has_notes }))
    }

    fn check(queues: u16, size: u16) -> Result<(), InflightError> {
        let is_legal = queues > 0 && (1..=MAX_QUEUE_SIZE).contains(&size);
        is_legal.then_some(()).ok_or(InflightError::Shape { queues, size })
    }

    /// The part of queue `index`, if there is one.
    pub fn part(self: &Arc<Self>, index: u16) -> Option<InflightPart> {
        (index < self.queues).then(|| self.bytes_behind(index, self.stride))
    }

    /// The notes behind the last part, if there is room for them: the memory's maker knows of them
    /// then.
    pub fn notes(self: &Arc<Self>) -> Option<Notes> {
        self.has_notes.then(|| Notes(self.bytes_behind(self.queues, trailer::BYTES)))
    }

    /// `len` bytes behind the first `parts` parts, which the mapping must have.
    fn bytes_behind(self: &Arc<Self>, parts: u16, len: usize) -> InflightPart {
        let start = usize::from(parts) * self.stride;
        assert!(start + len <= self.mapping.len());
        // SAFETY: `len` bytes from there on lie inside the mapping, as just checked.
        let base = unsafe { self.mapping.base().add(start) };
        InflightPart { base, len, _region: Arc::clone(self) }
    }

    /// Clears the marks of all queues, and none continues where it was: the device was reset.
    pub fn forget(self: &Arc<Self>) {
        (0..self.queues)
            .filter_map(|index| self.part(index))
            .for_each(|part| part.store16(VERSION_AT, 0));
    }
}

/// One queue's part of an [`InflightRegion`].
#[derive(Debug)]
pub struct InflightPart {
    base: NonNull<u8>,
    len: usize,
    /// Keeps it mapped.
    _region: Arc<InflightRegion>,
}

// SAFETY: the part is shared memory that its region keeps mapped, and is only accessed by atomics.
unsafe impl Send for InflightPart {}

/// A load and a store of one size. Each store can be the last one of a process that is killed.
macro_rules! words {
    ($load:ident, $store:ident, $word:ty, $atomic:ty) => {
        #[inline]
        fn $load(&self, at: usize) -> $word {
            // Acquire: as the successor of the storing device.
            <$word>::from_le(self.word::<$atomic>(at).load(Ordering::Acquire))
        }

        #[inline]
        fn $store(&self, at: usize, word: $word) {
            // Release: not before what was stored before. A kill at any moment leaves a beginning
            // of these stores.
            self.word::<$atomic>(at).store(word.to_le(), Ordering::Release);
            crate::kill_point();
        }
    };
}

impl InflightPart {
    #[inline]
    fn word<A>(&self, at: usize) -> &A {
        assert!(at + size_of::<A>() <= self.len);
        debug_assert!(at.is_multiple_of(align_of::<A>()));
        // SAFETY: inside the part, as just checked, which is mapped as long as `self`. The part
        // begins at a multiple of `ALIGNMENT`, and each field lies in it where its type may: at a
        // constant that is a multiple of its size, plus so many marks of 16 or 32 bytes. Atomics
        // may change under a shared reference, and have no illegal bit pattern.
        unsafe { self.base.add(at).cast::<A>().as_ref() }
    }

    words!(load8, store8, u8, AtomicU8);
    words!(load16, store16, u16, AtomicU16);
    words!(load32, store32, u32, AtomicU32);
    words!(load64, store64, u64, AtomicU64);

    /// True if it can hold `bytes` bytes.
    fn holds(&self, bytes: usize) -> bool {
        bytes <= self.len
    }

    /// Returns true if a device of version 1 has left marks here that a queue with so many entries
    /// can continue with. `first` and `stride` are where the marks lie. A queue of another size may
    /// have no request in flight. A driver that begins anew, as a system does after its firmware,
    /// may choose its size.
    fn left_by(&self, size: u16, first: usize, stride: usize) -> Result<bool, Lost> {
        match (self.load16(VERSION_AT), usize::from(self.load16(DESC_NUM))) {
            (0, _) => Ok(false),
            (VERSION, left) if left == usize::from(size) => Ok(true),
            (VERSION, left) if !self.holds(first + stride * left) => Err(Lost::Size),
            (VERSION, left) if (0..left).any(|index| self.load8(first + stride * index) != 0) => {
                Err(Lost::Size)
            }
            (VERSION, _) => Ok(false),
            _ => Err(Lost::Version),
        }
    }
}

/// The requests in flight of one queue, as its successor will read them.
#[derive(Debug)]
pub(crate) struct Tracker {
    pub marks: Marks,
    /// The requests that the device before left, in the order in which it had taken them; named by
    /// their marks.
    pub pending: VecDeque<u16>,
    /// By slot: it is one of those.
    pub replayed: Box<[bool]>,
}

#[derive(Debug)]
pub(crate) enum Marks {
    Split(SplitMarks),
    Packed(PackedMarks),
}

impl Tracker {
    pub(crate) fn new(marks: Marks, pending: Vec<u16>, size: u16) -> Tracker {
        let replayed = vec![false; usize::from(size)].into_boxed_slice();
        Tracker { marks, pending: pending.into(), replayed }
    }

    /// The request in `slot`, with `id` in its ring, the one that was taken last, goes back into
    /// the ring. Says whether it can: one that a device before had taken is not in the ring.
    pub(crate) fn put_back(&mut self, slot: u16, id: u16) -> bool {
        let is_ours = !self.replayed[usize::from(slot)];
        if is_ours {
            match &mut self.marks {
                Marks::Split(marks) => marks.put_back(id),
                Marks::Packed(marks) => marks.put_back(slot),
            }
        }
        is_ours
    }
}

/// Marks and their counters, as pairs, in the order of the counters. The names alone.
fn in_order(mut found: Vec<(u64, u16)>) -> Vec<u16> {
    found.sort_unstable();
    found.into_iter().map(|(_, name)| name).collect()
}

/// The counter after all of these.
fn after(found: &[(u64, u16)]) -> u64 {
    found.iter().map(|(counter, _)| *counter).max().map_or(0, |last| last.wrapping_add(1))
}
