//! virtio-blk requests on a queue, with all parts built once that can be.
//!
//! A [`BlkQueue`] has a fixed number of slots. A slot owns a header, a status byte, a data buffer
//! and a bound chain over them. To issue a request in it means to write 16 bytes of header and one
//! ring entry. The chain is written again only when its shape changes (reads after writes, another
//! length, a flush).

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use super::error::{Error, Violation};
use super::layout::{Format, Layout, Segment};
use super::memory::{Arena, Buf};
use super::queue::Queue;

/// The header at 0, the status byte behind it: one cache line per slot, which the guest's kernel
/// has as well.
const SLOT_BYTES: usize = 64;
const STATUS_AT: usize = 16;

/// Status of a request that the device completed without writing a status (the byte holds it
/// beforehand).
pub const STATUS_NONE: u8 = 0xff;

/// The kind of a request (virtio 1.2, 5.2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// VIRTIO_BLK_T_IN: read.
    Read,
    /// VIRTIO_BLK_T_OUT: write.
    Write,
    /// VIRTIO_BLK_T_FLUSH: what was completed before is on stable storage after; no data.
    Flush,
    /// VIRTIO_BLK_T_GET_ID: 20 bytes of serial number.
    GetId,
    /// VIRTIO_BLK_T_DISCARD; the data are ranges of 16 bytes: sector, sectors (32 bits), flags (32
    /// bits).
    Discard,
    /// VIRTIO_BLK_T_WRITE_ZEROES; the data as for discard, flag 1 is "unmap".
    WriteZeroes,
    /// Any other type, with data that the device reads.
    Other(u32),
}

impl RequestKind {
    /// The type field of the request's header.
    pub fn code(self) -> u32 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Flush => 4,
            Self::GetId => 8,
            Self::Discard => 11,
            Self::WriteZeroes => 13,
            Self::Other(code) => code,
        }
    }

    /// Returns true if the device writes the data.
    pub(super) fn device_writes(self) -> bool {
        matches!(self, Self::Read | Self::GetId)
    }
}

/// A block request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The request's kind.
    pub kind: RequestKind,
    /// Its address, in sectors of 512 bytes; 0 where it has no meaning.
    pub sector: u64,
    /// Bytes of data, from the start of the slot's buffer; 0 for a flush.
    pub len: u32,
    /// The header's ioprio field, as Linux fills it: class in bits 13 to 15, level below; 0 is
    /// "none".
    pub ioprio: u32,
}

/// A request that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The slot that issued it.
    pub slot: u16,
    /// 0 OK, 1 I/O error, 2 unsupported, [`STATUS_NONE`] none written.
    pub status: u8,
    /// Bytes that the device says it wrote, the status byte included.
    pub len: u32,
}

/// The shape of a [`BlkQueue`].
#[derive(Debug, Clone, Copy)]
pub struct BlkOptions {
    /// Split or packed.
    pub format: Format,
    /// Queue size in entries; `None` takes the smallest power of two that the slots need, at least
    /// 128 (what QEMU gives a guest).
    pub size: Option<u16>,
    /// Slots: requests that can be out at once.
    pub depth: u16,
    /// Bytes of data buffer per slot (a multiple of 512; at least 512 is taken).
    pub data: u32,
    /// Segments that the data is cut into; as many as a scattered page list of a guest would have.
    /// At least 1 is taken.
    pub segments: u16,
    /// True if chains are indirect (VIRTIO_F_INDIRECT_DESC must be negotiated).
    pub indirect: bool,
    /// True if VIRTIO_F_EVENT_IDX is negotiated.
    pub event_idx: bool,
}

impl BlkOptions {
    fn chain_len(&self) -> u32 {
        u32::from(self.segments.max(1)) + 2
    }

    /// The queue size that will be used.
    ///
    /// # Errors
    /// [`Error::QueueSize`] if no legal size suffices, or the requested one does not.
    pub fn queue_size(&self) -> Result<u16, Error> {
        let per_slot = if self.indirect { 1 } else { self.chain_len() };
        let needed = u32::from(self.depth.max(1)) * per_slot;
        let size = self.size.map_or_else(|| needed.next_power_of_two().max(128), u32::from);
        if size < needed {
            return Err(Error::QueueSize {
                size,
                why: "too small for the requests that are to be out at once",
            });
        }
        u16::try_from(size)
            .ok()
            .filter(|size| *size <= super::MAX_QUEUE_SIZE)
            .ok_or(Error::QueueSize { size, why: "above 32768, the most the specification allows" })
    }

    /// Bytes of arena that a queue of this shape needs at most.
    ///
    /// # Errors
    /// As [`BlkOptions::queue_size`].
    pub fn arena_bytes(&self) -> Result<usize, Error> {
        let depth = usize::from(self.depth.max(1));
        let size = usize::from(self.queue_size()?);
        let table = (16 * self.chain_len() as usize).next_multiple_of(64);
        let data = (self.data.max(512) as usize).next_multiple_of(4096);
        Ok(size * 26 + depth * (SLOT_BYTES + table + data) + 5 * 4096)
    }
}

/// The request shape for which the slot's chain was last built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shape {
    device_writes: bool,
    len: u32,
}

#[derive(Debug)]
struct Slot {
    header: NonNull<AtomicU64>,
    status: NonNull<AtomicU8>,
    shape: Shape,
    id: u16,
}

/// A virtqueue of a block device, with slots for requests.
#[derive(Debug)]
pub struct BlkQueue {
    queue: Queue,
    options: BlkOptions,
    size: u32,
    slots: Box<[Slot]>,
    /// The slot of a chain id.
    slot_of: Box<[u16]>,
    headers: Buf,
    tables: Buf,
    table_bytes: usize,
    data: Vec<Buf>,
    scratch: Vec<Segment>,
}

// SAFETY: the pointers lead into the mapping that `headers` keeps, which is not bound to a thread.
unsafe impl Send for BlkQueue {}

impl BlkQueue {
    /// A new queue in `arena`, every slot idle.
    ///
    /// # Errors
    /// [`Error::QueueSize`] if the options do not fit together, [`Error::Exhausted`] if the arena
    /// is too small (see [`BlkOptions::arena_bytes`]).
    pub fn new(arena: &Arena, options: BlkOptions) -> Result<Self, Error> {
        let depth = options.depth.max(1);
        let size = options.data.max(512);
        let entries = options.chain_len() as usize;
        let table_bytes = (16 * entries).next_multiple_of(64);
        let queue = Queue::new(arena, options.format, options.queue_size()?, options.event_idx)?;
        let headers = arena.alloc(SLOT_BYTES * usize::from(depth), 4096)?;
        let tables = arena.alloc(table_bytes * usize::from(depth), 4096)?;
        let data =
            (0..depth).map(|_| arena.alloc(size as usize, 4096)).collect::<Result<Vec<_>, _>>()?;
        let mut new = Self {
            slot_of: vec![0; usize::from(queue.layout().size)].into(),
            queue,
            options,
            size,
            slots: Box::default(),
            headers,
            tables,
            table_bytes,
            data,
            scratch: Vec::with_capacity(entries),
        };
        let mut slots = Vec::with_capacity(usize::from(depth));
        for slot in 0..depth {
            let at = usize::from(slot) * SLOT_BYTES;
            let shape = Shape { device_writes: true, len: size };
            new.build(slot, shape)?;
            let id = new.queue.bind(&new.scratch)?;
            new.slot_of[usize::from(id)] = slot;
            let (header, status) = (new.headers.at(at)?, new.headers.at(at + STATUS_AT)?);
            slots.push(Slot { header, status, shape, id });
        }
        new.slots = slots.into();
        Ok(new)
    }

    /// The queue's addresses for the device.
    pub fn layout(&self) -> Layout {
        self.queue.layout()
    }

    /// Number of slots.
    pub fn depth(&self) -> u16 {
        self.options.depth.max(1)
    }

    /// Requests that are out.
    pub fn held(&self) -> u16 {
        self.queue.held()
    }

    /// The data buffer of a slot, or `None` if there is no such slot.
    ///
    /// While the slot's request is out the device may change it at any time.
    pub fn data(&self, slot: u16) -> Option<&Buf> {
        self.data.get(usize::from(slot))
    }

    /// The data buffer of a slot, to be written.
    pub fn data_mut(&mut self, slot: u16) -> Option<&mut Buf> {
        self.data.get_mut(usize::from(slot))
    }

    /// Makes `scratch` the chain of a slot for a shape, and writes its indirect table if it has
    /// one.
    fn build(&mut self, slot: u16, shape: Shape) -> Result<(), Error> {
        let index = usize::from(slot);
        let header = self.headers.addr() + (index * SLOT_BYTES) as u64;
        self.scratch.clear();
        self.scratch.push(Segment::readable(header, 16));
        // Pieces of whole sectors, as a guest's pages are; the last takes what is left.
        let pieces = u32::from(self.options.segments.max(1)).min(shape.len.div_ceil(512)).max(1);
        let piece = (shape.len / pieces).next_multiple_of(512);
        let (mut at, end) =
            (self.data[index].addr(), self.data[index].addr() + u64::from(shape.len));
        while at < end {
            let len = (end - at).min(u64::from(piece.max(512)));
            #[expect(clippy::cast_possible_truncation, reason = "at most `piece`")]
            let len = len as u32;
            self.scratch.push(match shape.device_writes {
                true => Segment::writable(at, len),
                false => Segment::readable(at, len),
            });
            at += u64::from(len);
        }
        self.scratch.push(Segment::writable(header + STATUS_AT as u64, 1));
        if self.options.indirect {
            let at = index * self.table_bytes;
            self.queue.write_table(&mut self.tables, at, &self.scratch)?;
            let table = self.tables.addr() + at as u64;
            #[expect(
                clippy::cast_possible_truncation,
                reason = "segments + 2, and segments is limited by the queue's size"
            )]
            let entries = self.scratch.len() as u16;
            self.scratch.clear();
            self.scratch.push(Segment::indirect(table, entries));
        }
        Ok(())
    }

    /// Puts a request into an idle slot; the device sees it after [`BlkQueue::publish`].
    ///
    /// # Errors
    /// [`Error::NotIdle`] if the slot is unknown or its request is out, [`Error::RequestSize`] if
    /// the data exceeds it.
    #[inline]
    pub fn submit(&mut self, slot: u16, request: Request) -> Result<(), Error> {
        let Some(state) = self.slots.get(usize::from(slot)) else {
            return Err(Error::NotIdle(slot));
        };
        let shape = Shape { device_writes: request.kind.device_writes(), len: request.len };
        if shape != state.shape {
            self.reshape(slot, shape)?;
        }
        let state = &self.slots[usize::from(slot)];
        // SAFETY: the pointers were made in `new`, by `Buf::at`, which checked them; `headers`
        // keeps the memory. The header is two words long.
        unsafe {
            let first = u64::from(request.kind.code()) | u64::from(request.ioprio) << 32;
            state.header.as_ref().store(first, Ordering::Relaxed);
            state.header.add(1).as_ref().store(request.sector, Ordering::Relaxed);
            state.status.as_ref().store(STATUS_NONE, Ordering::Relaxed);
        }
        self.queue.submit(state.id)
    }

    fn reshape(&mut self, slot: u16, shape: Shape) -> Result<(), Error> {
        if shape.len > self.size {
            return Err(Error::RequestSize { len: shape.len, capacity: self.size });
        }
        let id = self.slots[usize::from(slot)].id;
        // The old chain again, if the device still holds it: `rebind` says so before anything is
        // changed for an indirect chain too.
        if self.options.indirect {
            let table = self.tables.addr() + (usize::from(slot) * self.table_bytes) as u64;
            self.queue.rebind(id, &[Segment::indirect(table, 0)])?;
        }
        self.build(slot, shape)?;
        self.queue.rebind(id, &self.scratch)?;
        self.slots[usize::from(slot)].shape = shape;
        Ok(())
    }

    /// Makes what was submitted visible to the device; returns true if the device wants a kick.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.queue.publish()
    }

    /// Appends what has come back to `into`, in the device's order.
    ///
    /// # Errors
    /// [`Error::Device`] if the device broke the queue.
    #[inline]
    pub fn reap(&mut self, into: &mut Vec<Completion>) -> Result<(), Error> {
        let (slots, slot_of) = (&self.slots, &self.slot_of);
        let mut stray = None;
        self.queue.reap(|used| {
            let slot = slot_of[usize::from(used.id)];
            match slots.get(usize::from(slot)) {
                Some(state) if state.id == used.id => {
                    // SAFETY: as in `submit`.
                    let status = unsafe { state.status.as_ref() }.load(Ordering::Relaxed);
                    into.push(Completion { slot, status, len: used.len });
                }
                _ => stray = Some(used.id),
            }
        })?;
        match stray {
            None => Ok(()),
            Some(id) => Err(Violation::UnknownChain { id: id.into() }.into()),
        }
    }

    /// Returns true if [`BlkQueue::reap`] would find a completion.
    #[inline]
    pub fn has_used(&self) -> bool {
        self.queue.has_used()
    }

    /// See [`Queue::enable_interrupts`].
    pub fn enable_interrupts(&mut self) -> bool {
        self.queue.enable_interrupts()
    }

    /// See [`Queue::disable_interrupts`].
    pub fn disable_interrupts(&mut self) {
        self.queue.disable_interrupts();
    }
}
