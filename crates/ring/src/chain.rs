//! Descriptors, and the buffers of one chain of them.

use crate::error::Broken;
use crate::memory::{GuestMemory, Window};

/// Data buffers that one request may have: what one `preadv` takes (`IOV_MAX`).
pub const MAX_BUFFERS: usize = 1024;

/// Buffers that one chain may have: the data, the header and the status. As many empty ones may stand between them.
pub(crate) const MAX_CHAIN: usize = MAX_BUFFERS + 2;

pub(crate) const NEXT: u16 = 1;
pub(crate) const WRITE: u16 = 2;
pub(crate) const INDIRECT: u16 = 4;

/// A descriptor, read once into private memory. The last two fields are `flags, next` in a split ring and
/// `id, flags` in a packed one.
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
        let [addr, rest] = unsafe { read_words(at) };
        Descriptor { addr, len: rest as u32, low: (rest >> 32) as u16, high: (rest >> 48) as u16 }
    }
}

/// Two little-endian words of guest memory, each byte read once.
///
/// # Safety
/// `at` must point to 16 bytes of mapped memory.
#[inline]
pub(crate) unsafe fn read_words(at: *const u8) -> [u64; 2] {
    let words = at.cast::<u64>();
    if words.is_aligned() {
        // SAFETY: as the caller promises.
        unsafe { [u64::from_le(words.read_volatile()), u64::from_le(words.add(1).read_volatile())] }
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
unsafe fn read_words_unaligned(at: *const u8) -> [u64; 2] {
    // SAFETY: as the caller of `read_words` promises; bytes need no alignment.
    let bytes = unsafe { at.cast::<[u8; 16]>().read_volatile() };
    let word = |half: &[u8]| half.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte));
    let (low, high) = bytes.split_at(8);
    [word(low), word(high)]
}

/// Collects the buffers of a chain, checked against guest memory.
pub(crate) struct Collector<'a> {
    pub memory: &'a GuestMemory,
    pub hint: &'a mut usize,
    /// The hinted region.
    window: Window,
    pub buffers: &'a mut Vec<libc::iovec>,
    /// How many of the buffers are device-readable; they come first.
    pub readable: usize,
    /// Empty buffers met.
    empty: usize,
}

impl<'a> Collector<'a> {
    pub(crate) fn new(
        memory: &'a GuestMemory,
        hint: &'a mut usize,
        buffers: &'a mut Vec<libc::iovec>,
    ) -> Collector<'a> {
        buffers.clear();
        Collector { memory, window: memory.window(*hint), hint, buffers, readable: 0, empty: 0 }
    }

    /// Adds one descriptor's buffer. An empty one adds nothing, wherever it points.
    #[inline(always)]
    pub(crate) fn push(&mut self, addr: u64, len: u32, writable: bool) -> Result<(), Broken> {
        let count = self.buffers.len();
        if len > 0
            && (writable || self.readable == count)
            && count < MAX_CHAIN
            && let Some(host) = self.window.translate(addr, len)
        {
            self.buffers.push(libc::iovec { iov_base: host.cast(), iov_len: len as usize });
            self.readable += usize::from(!writable);
            return Ok(());
        }
        self.push_otherwise(addr, len, writable)
    }

    /// A buffer that is empty, or in another region than the last, or illegal.
    #[cold]
    fn push_otherwise(&mut self, addr: u64, len: u32, writable: bool) -> Result<(), Broken> {
        if len == 0 {
            // Counted: a table may have 2^28 entries, and each costs time.
            self.empty += 1;
            let within = self.empty <= MAX_CHAIN;
            return if within { Ok(()) } else { Err(Broken::ChainTooLong { limit: MAX_CHAIN }) };
        }
        if !writable && self.readable != self.buffers.len() {
            return Err(Broken::ReadableAfterWritable);
        }
        if self.buffers.len() >= MAX_CHAIN {
            return Err(Broken::ChainTooLong { limit: MAX_CHAIN });
        }
        match self.memory.translate(addr, u64::from(len), self.hint) {
            Some(host) => {
                self.window = self.memory.window(*self.hint);
                self.buffers.push(libc::iovec { iov_base: host.cast(), iov_len: len as usize });
            }
            None => self.push_pieces(addr, len)?,
        }
        if !writable {
            self.readable = self.buffers.len();
        }
        Ok(())
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

    /// The indirect table that `descriptor` points to: entries by index.
    pub(crate) fn indirect(&mut self, addr: u64, len: u32) -> Result<Table, Broken> {
        let entries = len as usize / DESCRIPTOR;
        // Entries are named by 16 bits; a longer table could not be used.
        let legal =
            (1..=usize::from(u16::MAX)).contains(&entries) && (len as usize).is_multiple_of(DESCRIPTOR);
        if !legal {
            return Err(Broken::BadIndirectTable { addr, len });
        }
        let host = self.window.translate(addr, len);
        let host = host.or_else(|| self.memory.translate(addr, u64::from(len), self.hint));
        Ok(Table { addr, len, entries, host })
    }
}

/// An indirect descriptor table in guest memory.
pub(crate) struct Table {
    addr: u64,
    len: u32,
    pub entries: usize,
    /// Host address, when one region holds the whole table.
    host: Option<*mut u8>,
}

impl Table {
    #[inline(always)]
    pub(crate) fn read(&self, memory: &GuestMemory, index: usize) -> Result<Descriptor, Broken> {
        debug_assert!(index < self.entries);
        let Some(host) = self.host else { return self.read_otherwise(memory, index) };
        // SAFETY: `index` is below `entries`, and the whole table was checked to be mapped.
        Ok(unsafe { Descriptor::read(host.add(index * DESCRIPTOR)) })
    }

    /// The table spans regions.
    #[cold]
    fn read_otherwise(&self, memory: &GuestMemory, index: usize) -> Result<Descriptor, Broken> {
        let addr = self.addr.checked_add((index * DESCRIPTOR) as u64);
        let at = addr
            .and_then(|addr| memory.translate(addr, DESCRIPTOR as u64, &mut 0))
            .ok_or(Broken::BadAddress { addr: self.addr, len: self.len, hole: addr.unwrap_or(u64::MAX) })?;
        // SAFETY: mapped, as checked above.
        Ok(unsafe { Descriptor::read(at) })
    }
}
