//! Descriptors, and the buffers of one chain of them.

use crate::error::Broken;
use vlane_memory::{GuestMemory, Window};

/// Data buffers that one request may have: as many as one `preadv` takes (`IOV_MAX`).
pub const MAX_BUFFERS: usize = 1024;

/// Buffers that one chain may have: the data, the header and the status. As many empty ones may
/// stand between them.
pub(crate) const MAX_CHAIN: usize = MAX_BUFFERS + 2;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// A descriptor, read once into private memory. The last two fields are `flags, next` in a split
/// ring and `id, flags` in a packed one.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descriptor {
    pub addr: u64,
    pub len: u32,
    pub low: u16,
    pub high: u16,
}

pub(crate) const DESCRIPTOR: usize = 16;

impl Descriptor {
    /// # Safety
    /// `at` must point to 16 bytes of mapped memory.
    #[inline]
    #[allow(clippy::cast_possible_truncation)]
    pub(crate) unsafe fn read(at: *const u8) -> Descriptor {
        // SAFETY: as the caller promises.
        let (addr, rest) = unsafe { read_words(at) };
        Descriptor { addr, len: rest as u32, low: (rest >> 32) as u16, high: (rest >> 48) as u16 }
    }
}

/// Two little-endian words of guest memory, each byte read once.
///
/// # Safety
/// `at` must point to 16 bytes of mapped memory.
#[inline]
pub(crate) unsafe fn read_words(at: *const u8) -> (u64, u64) {
    let words = at.cast::<u64>();
    if words.is_aligned() {
        // SAFETY: as the caller promises.
        unsafe { (u64::from_le(words.read_volatile()), u64::from_le(words.add(1).read_volatile())) }
    } else {
        // SAFETY: as the caller promises.
        unsafe { read_words_unaligned(at) }
    }
}

/// Legal for indirect tables and headers, and never seen.
///
/// # Safety
/// As [`read_words`].
#[cold]
unsafe fn read_words_unaligned(at: *const u8) -> (u64, u64) {
    // SAFETY: as the caller of `read_words` promises; bytes need no alignment.
    let bytes = unsafe { at.cast::<[u8; 16]>().read_volatile() };
    let word = |half: &[u8]| half.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte));
    let (low, high) = bytes.split_at(8);
    (word(low), word(high))
}

/// Collects the buffers of a chain, checked against guest memory.
pub(crate) struct Collector<'a> {
    pub memory: &'a GuestMemory,
    hint: &'a mut usize,
    buffers: &'a mut Vec<libc::iovec>,
    /// Buffers met that are empty, or not in guest memory.
    empty: usize,
    /// The first buffer that is not in guest memory.
    pub hole: Option<Broken>,
    /// The reason why the chain cannot continue.
    broken: Option<Broken>,
}

/// In [`Walk::readable`]: a buffer of the chain is not in guest memory. The other bits say how many
/// buffers there were before the last such one. So no count of buffers is above it, and a check of
/// the count alone sees the fault.
pub(crate) const HOLE: usize = 1 << (usize::BITS - 1);

/// How far a chain is collected. It is passed by value, and never inside of a `Result`. A rare case
/// that takes it by reference, or returns it beside an error, puts it into memory for all the
/// others. That costs a third of the instructions.
#[derive(Clone, Copy)]
pub(crate) struct Walk {
    /// The hinted region.
    window: Window,
    /// How many of the buffers are device-readable; they come first. Or [`HOLE`].
    pub readable: usize,
    /// Bytes in all of them. Of no meaning with [`HOLE`].
    pub bytes: u64,
}

impl<'a> Collector<'a> {
    #[inline]
    pub(crate) fn new(
        memory: &'a GuestMemory,
        hint: &'a mut usize,
        buffers: &'a mut Vec<libc::iovec>,
    ) -> (Collector<'a>, Walk) {
        buffers.clear();
        let walk = Walk { window: memory.window(*hint), readable: 0, bytes: 0 };
        (Collector { memory, hint, buffers, empty: 0, hole: None, broken: None }, walk)
    }

    /// Adds one descriptor's buffer, if it lies where the last one lay, as nearly all do. If not,
    /// it is for [`Collector::push_slow`].
    #[inline(always)]
    pub(crate) fn push(&mut self, walk: &mut Walk, addr: u64, len: u32, writable: bool) -> bool {
        let count = self.buffers.len();
        let Some(host) = walk.window.translate(addr, len) else { return false };
        if count >= MAX_CHAIN {
            return false;
        }
        if !writable {
            if walk.readable != count {
                return false;
            }
            walk.readable = count + 1;
        }
        self.buffers.push(libc::iovec { iov_base: host.cast(), iov_len: len as usize });
        walk.bytes += u64::from(len);
        true
    }

    /// Adds a buffer that is in another region than the last, or empty, or illegal. An empty one
    /// adds no buffer, for any address. None means an error: [`Collector::why`].
    #[cold]
    pub(crate) fn push_slow(
        &mut self,
        mut walk: Walk,
        addr: u64,
        len: u32,
        writable: bool,
    ) -> Option<Walk> {
        if len == 0 {
            // Counted: a table may have 2^28 entries, and each costs time.
            self.empty += 1;
            let within = self.empty <= MAX_CHAIN;
            return if within {
                Some(walk)
            } else {
                self.fail(Broken::ChainTooLong { limit: MAX_CHAIN })
            };
        }
        if !writable && walk.readable & HOLE != 0 {
            // The request is going to fail, and this is no place for its status.
            return self.pass_over(walk);
        }
        if !writable && walk.readable != self.buffers.len() {
            return self.fail(Broken::ReadableAfterWritable);
        }
        if self.buffers.len() >= MAX_CHAIN {
            return self.fail(Broken::ChainTooLong { limit: MAX_CHAIN });
        }
        match self.memory.translate(addr, u64::from(len), self.hint) {
            Some(host) => {
                walk.window = self.memory.window(*self.hint);
                self.buffers.push(libc::iovec { iov_base: host.cast(), iov_len: len as usize });
            }
            None => {
                let before = self.buffers.len();
                match self.push_pieces(addr, len) {
                    Ok(()) => {}
                    // Its request can be answered, if its status has a place.
                    Err(hole @ Broken::BadAddress { .. }) => {
                        self.buffers.truncate(before);
                        self.hole.get_or_insert(hole);
                        return self.pass_over(walk);
                    }
                    Err(broken) => return self.fail(broken),
                }
            }
        }
        if !writable {
            walk.readable = self.buffers.len();
        }
        walk.bytes += u64::from(len);
        Some(walk)
    }

    /// Adds no buffer of a chain that has one outside of guest memory.
    #[cold]
    fn pass_over(&mut self, mut walk: Walk) -> Option<Walk> {
        // Counted as empty ones are.
        self.empty += 1;
        if self.empty > MAX_CHAIN {
            return self.fail(Broken::ChainTooLong { limit: MAX_CHAIN });
        }
        walk.readable = HOLE | self.buffers.len();
        Some(walk)
    }

    /// Notes the reason why the chain cannot continue.
    #[cold]
    pub(crate) fn fail<T>(&mut self, broken: Broken) -> Option<T> {
        self.broken = Some(broken);
        None
    }

    /// Returns the reason why a step gave no buffer.
    #[cold]
    pub(crate) fn why(&self) -> Broken {
        self.broken.unwrap_or(Broken::Loop)
    }

    /// The buffer spans regions, or a hole.
    #[cold]
    fn push_pieces(&mut self, addr: u64, len: u32) -> Result<(), Broken> {
        let buffers = &mut *self.buffers;
        self.memory
            .pieces(addr, u64::from(len), |host, piece| {
                let iov_len = usize::try_from(piece).unwrap_or(0);
                buffers.push(libc::iovec { iov_base: host.cast(), iov_len });
            })
            .map_err(|hole| Broken::BadAddress { addr, len, hole })?;
        if self.buffers.len() > MAX_CHAIN {
            return Err(Broken::ChainTooLong { limit: MAX_CHAIN });
        }
        Ok(())
    }

    /// The indirect table of `len` bytes at `addr`.
    #[inline]
    pub(crate) fn indirect(&mut self, walk: Walk, addr: u64, len: u32) -> Option<Table> {
        let entries = len as usize / DESCRIPTOR;
        // Entries are named by 16 bits; a longer table could not be used.
        if entries == 0
            || entries > usize::from(u16::MAX)
            || !(len as usize).is_multiple_of(DESCRIPTOR)
        {
            return self.fail(Broken::BadIndirectTable { addr, len });
        }
        let host = match walk.window.translate(addr, len) {
            Some(host) => host,
            None => self
                .memory
                .translate(addr, u64::from(len), self.hint)
                .unwrap_or(std::ptr::null_mut()),
        };
        let here = if host.is_null() { 0 } else { entries };
        Some(Table { entries, here, host })
    }

    /// An entry of the table at `addr`, if it has so many: it spans regions.
    #[cold]
    pub(crate) fn read_slow(
        &mut self,
        table: Table,
        addr: u64,
        index: usize,
    ) -> Option<Descriptor> {
        if index >= table.entries {
            return self.fail(table.lacks(index));
        }
        let entry = addr.checked_add((index * DESCRIPTOR) as u64);
        let at = entry.and_then(|entry| self.memory.translate(entry, DESCRIPTOR as u64, &mut 0));
        let Some(at) = at else {
            let len = u32::try_from(table.entries * DESCRIPTOR).unwrap_or(u32::MAX);
            return self.fail(Broken::BadAddress { addr, len, hole: entry.unwrap_or(u64::MAX) });
        };
        // SAFETY: mapped, as checked above.
        Some(unsafe { Descriptor::read(at) })
    }
}

/// An indirect descriptor table in guest memory.
#[derive(Clone, Copy)]
pub(crate) struct Table {
    pub entries: usize,
    /// Entries that are at `host`: all, when one region holds the whole table; or none.
    here: usize,
    host: *mut u8,
}

impl Table {
    /// The entry `index`, if there is one, and one region holds the whole table. If not, it is for
    /// [`Collector::read_slow`].
    #[inline(always)]
    pub(crate) fn read(self, index: usize) -> Option<Descriptor> {
        // SAFETY: so many entries were checked to be mapped.
        (index < self.here).then(|| unsafe { Descriptor::read(self.host.add(index * DESCRIPTOR)) })
    }
    /// Returns the fault of a chain that continues at `index`.
    #[cold]
    pub(crate) fn lacks(self, index: usize) -> Broken {
        let short = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        Broken::DescriptorIndex { index: short(index), size: short(self.entries) }
    }
}
