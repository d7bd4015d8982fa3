//! Guest memory: a set of regions, each a file of the front end's that is mapped here.
//!
//! A [`GuestMemory`] is a value that never changes: adding or removing a region makes a new one
//! that shares the mappings of the old. So a lane reads it without a lock, and a request that is in
//! flight keeps the old one alive.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::MapFlags;

use crate::mapping::{Mapping, PAGE};

/// Where a region lies, as the front end describes it (vhost-user, "Memory region description").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionSpec {
    /// Guest physical address of the first byte.
    pub guest: u64,
    /// Bytes.
    pub size: u64,
    /// The front end's own virtual address of the first byte; ring addresses are given in these.
    pub user: u64,
    /// Offset of the first byte in the file, bytes.
    pub offset: u64,
}

/// Why guest memory cannot be used as described.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Empty, or an end beyond 64 bits.
    #[error(
        "memory region at {guest:#x} has size {size:#x} and file offset {offset:#x}: empty, or \
         its end overflows"
    )]
    BadSize {
        /// Guest physical address.
        guest: u64,
        /// Bytes.
        size: u64,
        /// Offset in the file.
        offset: u64,
    },
    /// Two regions share guest physical addresses.
    #[error("memory region at {guest:#x} (size {size:#x}) overlaps the one at {other:#x}")]
    Overlap {
        /// Guest physical address of the new region.
        guest: u64,
        /// Bytes of the new region.
        size: u64,
        /// Guest physical address of the present one.
        other: u64,
    },
    /// No such region to remove.
    #[error("there is no memory region at {guest:#x} of size {size:#x} to remove")]
    NotFound {
        /// Guest physical address.
        guest: u64,
        /// Bytes.
        size: u64,
    },
    /// The file is shorter than the region says.
    #[error("memory region at {guest:#x} needs {needed:#x} bytes of its file, which has {len:#x}")]
    FileTooShort {
        /// Guest physical address.
        guest: u64,
        /// Bytes that the region needs.
        needed: u64,
        /// Bytes that the file has.
        len: u64,
    },
    /// The system refused to map it.
    #[error("cannot map the memory region at {guest:#x} (size {size:#x})")]
    Map {
        /// Guest physical address.
        guest: u64,
        /// Bytes.
        size: u64,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// One mapped region.
#[derive(Debug, Clone)]
pub struct Region {
    spec: RegionSpec,
    /// Host address of the first byte.
    host: NonNull<u8>,
    /// The mapping that `host` points into; none for memory that another owner keeps alive.
    mapping: Option<Arc<Mapping>>,
    /// The file, for a process that takes over.
    file: Option<Arc<File>>,
}

// SAFETY: `host` points into `mapping`, which is Send and Sync and kept alive by the Arc beside it,
// or into memory for which the caller of `from_raw` promised the same.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps a region of `file`, readable and writable, shared.
    ///
    /// The file is mapped from its start: a huge-page file cannot be mapped at any page. Address
    /// space is cheap.
    ///
    /// # Errors
    /// [`MemoryError::BadSize`], [`MemoryError::FileTooShort`], [`MemoryError::Map`].
    pub fn map(spec: RegionSpec, file: &File) -> Result<Region, MemoryError> {
        let RegionSpec { guest, size, user, offset } = spec;
        let bad = MemoryError::BadSize { guest, size, offset };
        let (Some(needed), Some(_), Some(_)) =
            (offset.checked_add(size), guest.checked_add(size), user.checked_add(size))
        else {
            return Err(bad);
        };
        if size == 0 {
            return Err(bad);
        }
        let map_error = |source: io::Error| MemoryError::Map { guest, size, source };
        let meta = rustix::fs::fstat(file.as_fd()).map_err(|e| map_error(e.into()))?;
        let file_len = u64::try_from(meta.st_size).unwrap_or(0);
        let is_regular =
            rustix::fs::FileType::from_raw_mode(meta.st_mode) == rustix::fs::FileType::RegularFile;
        if is_regular && file_len < needed {
            return Err(MemoryError::FileTooShort { guest, needed, len: file_len });
        }
        // hugetlbfs reports its page size as the block size, and wants lengths in multiples of it.
        let block = u64::try_from(meta.st_blksize).unwrap_or(0).max(PAGE as u64);
        let block = block.checked_next_power_of_two().unwrap_or(PAGE as u64);
        let len = needed.checked_next_multiple_of(block).and_then(|l| usize::try_from(l).ok());
        let (Some(len), Ok(start)) = (len, usize::try_from(offset)) else { return Err(bad) };
        let mapping = Mapping::new(file, 0, len, MapFlags::NORESERVE).map_err(map_error)?;
        let base = mapping.base();
        // A core dump of the back end must not carry the guest's memory. Advice only: a failure has
        // no effect.
        // SAFETY: the range is the mapping just made.
        let _ = unsafe {
            rustix::mm::madvise(base.as_ptr().cast(), len, rustix::mm::Advice::LinuxDontDump)
        };
        // SAFETY: offset + size <= len of the mapping.
        let host = unsafe { base.add(start) };
        Ok(Region { spec, host, mapping: Some(Arc::new(mapping)), file: None })
    }

    /// A region of this process' own memory: for fuzzers and Miri, where no file is mapped and
    /// every byte beyond the region is watched.
    ///
    /// # Errors
    /// [`MemoryError::BadSize`].
    ///
    /// # Safety
    /// The `spec.size` bytes at `host` must stay valid for as long as any [`GuestMemory`] with this
    /// region or a clone of it lives. Others must access them only as shared memory is (through
    /// atomic, volatile or system calls).
    #[doc(hidden)]
    pub unsafe fn from_raw(spec: RegionSpec, host: NonNull<u8>) -> Result<Region, MemoryError> {
        let RegionSpec { guest, size, user, offset } = spec;
        if size == 0 || guest.checked_add(size).is_none() || user.checked_add(size).is_none() {
            return Err(MemoryError::BadSize { guest, size, offset });
        }
        Ok(Region { spec, host, mapping: None, file: None })
    }

    /// Where it lies.
    pub fn spec(&self) -> RegionSpec {
        self.spec
    }

    /// Keeps the file that it was mapped from, for another process to map it again.
    #[must_use]
    pub fn keeping(self, file: File) -> Region {
        Region { file: Some(Arc::new(file)), ..self }
    }

    /// The file that was kept.
    pub fn file(&self) -> Option<&File> {
        self.file.as_deref()
    }

    fn end(&self) -> u64 {
        self.spec.guest + self.spec.size
    }

    fn holds(&self, guest: u64, len: u64) -> bool {
        guest >= self.spec.guest
            && guest - self.spec.guest < self.spec.size
            && len <= self.end() - guest
    }

    /// Host address of `guest`, which the region holds.
    #[inline]
    fn host_of(&self, guest: u64) -> *mut u8 {
        debug_assert!(self.holds(guest, 0));
        // SAFETY: the caller checked that `guest` is inside, so the result is inside the mapping.
        // The difference fits because the size was checked against the mapping's length, a usize.
        #[allow(clippy::cast_possible_truncation)]
        unsafe {
            self.host.as_ptr().add((guest - self.spec.guest) as usize)
        }
    }
}

/// Where one region lies.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    guest: u64,
    size: u64,
    host: *mut u8,
}

impl Window {
    const NONE: Window = Window { guest: 0, size: 0, host: std::ptr::null_mut() };

    /// Host address of `len` bytes at `guest`, if the region holds them all, and there is at least
    /// one.
    #[inline]
    pub fn translate(&self, guest: u64, len: u32) -> Option<*mut u8> {
        // An address before the region wraps around to beyond any region, and zero bytes do too.
        let offset = guest.wrapping_sub(self.guest);
        let is_inside = offset < self.size && u64::from(len).wrapping_sub(1) < self.size - offset;
        // An offset inside the region: it fits, because the size was checked against the mapping's
        // length, a usize.
        #[allow(clippy::cast_possible_truncation)]
        is_inside.then(|| self.host.wrapping_add(offset as usize))
    }
}

/// For people: where there is memory, first and last address of each stretch.
impl std::fmt::Display for GuestMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut stretches: Vec<(u64, u64)> = Vec::new();
        for region in &self.regions {
            match stretches.last_mut().filter(|(_, end)| *end == region.spec.guest) {
                Some((_, end)) => *end = region.end(),
                None => stretches.push((region.spec.guest, region.end())),
            }
        }
        if stretches.is_empty() {
            return f.write_str("none");
        }
        for (at, (begin, end)) in stretches.iter().take(STRETCHES).enumerate() {
            write!(f, "{}{begin:#x}-{:#x}", if at > 0 { ", " } else { "" }, end - 1)?;
        }
        match stretches.len().saturating_sub(STRETCHES) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Stretches of memory that are named to people.
const STRETCHES: usize = 8;

/// All regions of a guest at one moment.
#[derive(Debug, Clone, Default)]
pub struct GuestMemory {
    /// Ordered by guest address, without overlap.
    regions: Vec<Region>,
}

impl GuestMemory {
    /// Makes the memory out of mapped regions.
    ///
    /// # Errors
    /// [`MemoryError::Overlap`].
    pub fn new(regions: Vec<Region>) -> Result<GuestMemory, MemoryError> {
        regions.into_iter().try_fold(GuestMemory::default(), |memory, region| memory.with(region))
    }

    /// The same memory with one region more.
    ///
    /// # Errors
    /// [`MemoryError::Overlap`].
    pub fn with(&self, region: Region) -> Result<GuestMemory, MemoryError> {
        let spec = region.spec;
        if let Some(other) =
            self.regions.iter().find(|r| spec.guest < r.end() && r.spec.guest < region.end())
        {
            let RegionSpec { guest, size, .. } = spec;
            return Err(MemoryError::Overlap { guest, size, other: other.spec.guest });
        }
        let mut regions = self.regions.clone();
        let at = regions.partition_point(|r| r.spec.guest < spec.guest);
        regions.insert(at, region);
        Ok(GuestMemory { regions })
    }

    /// The same memory with one region more, in the place of all that it overlaps.
    pub fn replacing(&self, region: Region) -> GuestMemory {
        let overlaps =
            |other: &Region| region.spec.guest < other.end() && other.spec.guest < region.end();
        let mut regions: Vec<Region> =
            self.regions.iter().filter(|other| !overlaps(other)).cloned().collect();
        let at = regions.partition_point(|other| other.spec.guest < region.spec.guest);
        regions.insert(at, region);
        GuestMemory { regions }
    }

    /// The same memory without the region at `guest` of `size` bytes.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`].
    pub fn without(&self, guest: u64, size: u64) -> Result<GuestMemory, MemoryError> {
        let Some(at) =
            self.regions.iter().position(|r| r.spec.guest == guest && r.spec.size == size)
        else {
            return Err(MemoryError::NotFound { guest, size });
        };
        let mut regions = self.regions.clone();
        regions.remove(at);
        Ok(GuestMemory { regions })
    }

    /// Number of regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// True if there is no region at all.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// The regions, in the order of their guest addresses.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// True if a file behind a region was truncated: its data is gone, and the session with it.
    pub fn is_lost(&self) -> bool {
        self.regions.iter().any(|r| r.mapping.as_ref().is_some_and(|m| m.is_lost()))
    }

    /// Guest physical addresses at which regions begin.
    pub fn starts(&self) -> impl Iterator<Item = u64> {
        self.regions.iter().map(|region| region.spec.guest)
    }

    /// True if the `len` bytes at `guest` are all zero, as far as there is memory. For a look now
    /// and then: it takes a pass over them.
    pub fn is_zero(&self, guest: u64, len: u64) -> bool {
        let mut is_zero = true;
        // Bytes beyond the end do not count.
        let _ = self.pieces(guest, len, |host, len| {
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            // SAFETY: `pieces` gives addresses inside a region's mapping, which `self` keeps;
            // others may write to it meanwhile, so the bytes are read one by one and none is relied
            // upon.
            is_zero = is_zero && (0..len).all(|at| unsafe { host.add(at).read_volatile() } == 0);
        });
        is_zero
    }

    /// Guest physical address of a front end address, as ring addresses are given.
    pub fn guest_of_user(&self, user: u64) -> Option<u64> {
        self.regions.iter().find_map(|r| {
            let offset = user.checked_sub(r.spec.user)?;
            (offset < r.spec.size).then(|| r.spec.guest + offset)
        })
    }

    /// Host address of `len` bytes at `guest`, if one region holds them all. `hint` is the index of
    /// the region that answered last; the right one nearly always answers next.
    #[inline]
    pub fn translate(&self, guest: u64, len: u64, hint: &mut usize) -> Option<*mut u8> {
        if let Some(region) = self.regions.get(*hint)
            && region.holds(guest, len)
        {
            return Some(region.host_of(guest));
        }
        self.translate_slow(guest, len, hint)
    }

    #[cold]
    fn translate_slow(&self, guest: u64, len: u64, hint: &mut usize) -> Option<*mut u8> {
        let at = self.regions.iter().position(|r| r.holds(guest, len))?;
        *hint = at;
        Some(self.regions[at].host_of(guest))
    }

    /// The region that answered last, for several questions in a row.
    #[inline]
    pub fn window(&self, hint: usize) -> Window {
        self.regions.get(hint).map_or(Window::NONE, |region| Window {
            guest: region.spec.guest,
            size: region.spec.size,
            host: region.host.as_ptr(),
        })
    }

    /// Calls `each` with the pieces of `len` bytes at `guest`, which may span regions that lie side
    /// by side. Returns the first address that no region holds.
    pub fn pieces(
        &self,
        guest: u64,
        len: u64,
        mut each: impl FnMut(*mut u8, u64),
    ) -> Result<(), u64> {
        let mut at = guest;
        let mut left = len;
        while left > 0 {
            let Some(region) = self.regions.iter().find(|r| r.holds(at, 0)) else { return Err(at) };
            let piece = left.min(region.end() - at);
            each(region.host_of(at), piece);
            left -= piece;
            at = match at.checked_add(piece) {
                Some(next) => next,
                None if left == 0 => return Ok(()),
                None => return Err(at),
            };
        }
        Ok(())
    }

    /// Guest physical address of a host address inside a region: the way back, for dirty logging.
    pub fn guest_of_host(&self, host: *const u8) -> Option<u64> {
        self.regions.iter().find_map(|r| {
            let offset = (host as u64).checked_sub(r.host.as_ptr() as u64)?;
            (offset < r.spec.size).then(|| r.spec.guest + offset)
        })
    }
}
