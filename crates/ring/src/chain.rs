//! Descriptors, and the buffers of one chain of them.

use crate::memory::GuestMemory;
use crate::queue::Broken;

/// Data buffers that one request may have: what one `preadv` takes (`IOV_MAX`), and the header and status.
pub const MAX_BUFFERS: usize = 1024 + 2;

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
    /// `at` must point to 16 bytes of mapped memory, aligned to 8.
    #[inline]
    pub(crate) unsafe fn read(at: *const u8) -> Descriptor {
        // SAFETY: as the caller promises. Two words: one load each, so each is read once.
        let (addr, rest) = unsafe {
            let words = at.cast::<u64>();
            (u64::from_le(words.read_volatile()), u64::from_le(words.add(1).read_volatile()))
        };
        Descriptor::from_words(addr, rest)
    }

    #[allow(clippy::cast_possible_truncation)]
    fn from_words(addr: u64, rest: u64) -> Descriptor {
        Descriptor { addr, len: rest as u32, low: (rest >> 32) as u16, high: (rest >> 48) as u16 }
    }
}

/// Collects the buffers of a chain, checked against guest memory.
pub(crate) struct Collector<'a> {
    pub memory: &'a GuestMemory,
    pub hint: &'a mut usize,
    pub buffers: &'a mut Vec<libc::iovec>,
    /// How many of the buffers are device-readable; they come first.
    pub readable: usize,
}

impl Collector<'_> {
    /// Adds one descriptor's buffer. An empty one adds nothing.
    #[inline]
    pub(crate) fn push(&mut self, addr: u64, len: u32, writable: bool) -> Result<(), Broken> {
        if len == 0 {
            return Ok(());
        }
        if !writable && self.readable != self.buffers.len() {
            return Err(Broken::ReadableAfterWritable);
        }
        if self.buffers.len() >= MAX_BUFFERS {
            return Err(Broken::ChainTooLong { limit: MAX_BUFFERS });
        }
        match self.memory.translate(addr, u64::from(len), self.hint) {
            Some(host) => {
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
        if self.buffers.len() > MAX_BUFFERS {
            return Err(Broken::ChainTooLong { limit: MAX_BUFFERS });
        }
        Ok(())
    }

    /// The indirect table that `descriptor` points to: entries by index.
    pub(crate) fn indirect(&mut self, addr: u64, len: u32) -> Result<Table, Broken> {
        let entries = len as usize / DESCRIPTOR;
        if entries == 0 || !(len as usize).is_multiple_of(DESCRIPTOR) || !addr.is_multiple_of(8) {
            return Err(Broken::BadIndirectTable { addr, len });
        }
        let host = self.memory.translate(addr, u64::from(len), self.hint);
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
    #[inline]
    pub(crate) fn read(&self, memory: &GuestMemory, index: usize) -> Result<Descriptor, Broken> {
        debug_assert!(index < self.entries);
        let at = match self.host {
            // SAFETY: `index` is below `entries`, and the whole table was checked to be mapped.
            Some(host) => unsafe { host.add(index * DESCRIPTOR) },
            None => {
                let addr = self.addr.checked_add((index * DESCRIPTOR) as u64);
                addr.and_then(|addr| memory.translate(addr, DESCRIPTOR as u64, &mut 0)).ok_or(Broken::BadAddress {
                    addr: self.addr,
                    len: self.len,
                    hole: addr.unwrap_or(u64::MAX),
                })?
            }
        };
        // An odd mapping could break the alignment that the guest address has.
        if !(at as usize).is_multiple_of(8) {
            return Err(Broken::BadIndirectTable { addr: self.addr, len: self.len });
        }
        // SAFETY: mapped and aligned, as checked above.
        Ok(unsafe { Descriptor::read(at) })
    }
}
