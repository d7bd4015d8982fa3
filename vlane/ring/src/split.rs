//! The split virtqueue, device side (virtio 1.2, section 2.7).

use std::sync::atomic::{AtomicU16, Ordering, fence};

use crate::blk::Request;
use crate::chain::{Collector, DESCRIPTOR, Descriptor, INDIRECT, NEXT, WRITE, Walk};
use crate::error::Broken;
use vlane_memory::GuestMemory;

const AVAIL_NO_INTERRUPT: u16 = 1;
const USED_NO_NOTIFY: u16 = 1;
/// Bytes before the entries of the available and the used ring: flags, idx.
const RING_HEADER: usize = 4;

/// Host addresses of the three parts, checked for size and alignment by the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    pub desc: *mut u8,
    pub avail: *mut u8,
    pub used: *mut u8,
}

#[derive(Debug)]
pub(crate) struct SplitQueue {
    size: u16,
    event_idx: bool,
    parts: Parts,
    /// Next entry of the available ring to take.
    next_avail: u16,
    /// The driver's index as read last.
    avail_idx: u16,
    /// Next entry of the used ring to fill.
    next_used: u16,
    /// The used index as published last.
    published: u16,
}

/// Bytes of the three parts of a ring with `size` entries: (descriptors, available, used).
pub(crate) fn part_sizes(size: u16) -> (u64, u64, u64) {
    let n = u64::from(size);
    // The two bytes after the entries are the event fields.
    (16 * n, 4 + 2 * n + 2, 4 + 8 * n + 2)
}

impl SplitQueue {
    /// `parts` must be mapped for the sizes of [`part_sizes`] and aligned to 16, 2 and 4 bytes.
    pub(crate) fn new(size: u16, event_idx: bool, parts: Parts, base: u16) -> SplitQueue {
        let mut queue = SplitQueue {
            size,
            event_idx,
            parts,
            next_avail: base,
            avail_idx: base,
            next_used: 0,
            published: 0,
        };
        // The used index from before this back end is in the ring. The driver may restart the queue
        // at another base only if no request is in flight, and then they are equal.
        queue.next_used = u16::from_le(queue.used_idx().load(Ordering::Acquire));
        queue.published = queue.next_used;
        queue
    }

    pub(crate) fn set_parts(&mut self, parts: Parts) {
        self.parts = parts;
    }

    /// The used index that the driver was shown.
    pub(crate) fn used(&self) -> u16 {
        self.published
    }

    /// Continues with so many chains in flight, and everything else before the next available one
    /// answered.
    pub(crate) fn goes_on(&mut self, in_flight: u16) {
        self.next_avail = self.next_used.wrapping_add(in_flight);
        self.avail_idx = self.next_avail;
    }

    pub(crate) fn base(&self) -> u16 {
        self.next_avail
    }

    #[inline]
    fn mask(&self) -> u16 {
        self.size - 1
    }

    #[inline]
    fn u16_at(&self, part: *mut u8, offset: usize) -> &AtomicU16 {
        // SAFETY: every caller stays inside the part, which is mapped and aligned to 2 as `new`
        // demands; shared memory is only accessed through atomics and volatile operations.
        unsafe { AtomicU16::from_ptr(part.add(offset).cast()) }
    }

    #[inline]
    fn used_idx(&self) -> &AtomicU16 {
        self.u16_at(self.parts.used, 2)
    }

    /// Chains ready to be taken. Looks at shared memory only when the last look is used up.
    #[inline]
    pub(crate) fn available(&mut self) -> Result<u16, Broken> {
        if self.avail_idx == self.next_avail {
            // Acquire: the entries and descriptors that this index makes ours are read after it.
            let idx = u16::from_le(self.u16_at(self.parts.avail, 2).load(Ordering::Acquire));
            if idx.wrapping_sub(self.next_avail) > self.size {
                return Err(Broken::AvailIndex {
                    index: idx,
                    next: self.next_avail,
                    size: self.size,
                });
            }
            self.avail_idx = idx;
        }
        //= virtio 2.7.10.2
        //# The device MUST handle spurious notifications from the driver.
        Ok(self.avail_idx.wrapping_sub(self.next_avail))
    }

    /// Takes the next chain; `available` must have said that there is one.
    #[inline(never)]
    pub(crate) fn take(
        &mut self,
        memory: &GuestMemory,
        hint: &mut usize,
        request: &mut Request,
    ) -> Result<(), Broken> {
        let entry = usize::from(self.next_avail & self.mask());
        let head = u16::from_le(
            self.u16_at(self.parts.avail, RING_HEADER + 2 * entry).load(Ordering::Relaxed),
        );
        self.next_avail = self.next_avail.wrapping_add(1);
        self.take_chain(head, memory, hint, request)
    }

    /// Takes the chain at `head`.
    #[inline(always)]
    pub(crate) fn take_chain(
        &self,
        head: u16,
        memory: &GuestMemory,
        hint: &mut usize,
        request: &mut Request,
    ) -> Result<(), Broken> {
        request.id = head;
        let (mut chain, mut walk) = Collector::new(memory, hint, &mut request.buffers);
        let mut index = head;
        for _ in 0..self.size {
            if index >= self.size {
                return Err(Broken::DescriptorIndex { index, size: self.size });
            }
            // SAFETY: the index is below the size, the table is mapped for that many, aligned
            // to 16.
            let descriptor =
                unsafe { Descriptor::read(self.parts.desc.add(usize::from(index) * DESCRIPTOR)) };
            let (flags, next) = (descriptor.low, descriptor.high);
            if flags & INDIRECT != 0 {
                if flags & NEXT != 0 {
                    return Err(Broken::IndirectWithNext);
                }
                //= virtio 2.7.5.3.2
                //# The device MUST ignore the write-only flag (flags&VIRTQ_DESC_F_WRITE) in the
                //# descriptor that refers to an indirect table.
                let Some(whole) = collect_indirect(&mut chain, walk, descriptor) else {
                    return Err(chain.why());
                };
                //= virtio 2.7.5.3.2
                //# The device MUST handle the case of zero or more normal chained descriptors
                //# followed by a single descriptor with flags&VIRTQ_DESC_F_INDIRECT.
                walk = whole;
            } else {
                let Descriptor { addr, len, .. } = descriptor;
                if !chain.push(&mut walk, addr, len, flags & WRITE != 0) {
                    let Some(next) = chain.push_slow(walk, addr, len, flags & WRITE != 0) else {
                        return Err(chain.why());
                    };
                    walk = next;
                }
                if flags & NEXT != 0 {
                    index = next;
                    continue;
                }
            }
            let hole = chain.hole;
            return request.parse(walk, hole);
        }
        Err(Broken::Loop)
    }

    /// The chain that was taken last was not: it is taken again.
    pub(crate) fn put_back(&mut self) {
        self.next_avail = self.next_avail.wrapping_sub(1);
    }

    /// Fills the next used entry. The driver sees it after [`SplitQueue::publish`].
    #[inline]
    pub(crate) fn put_used(&mut self, id: u16, len: u32) {
        let entry = usize::from(self.next_used & self.mask());
        let word = (u64::from(id) | (u64::from(len) << 32)).to_le();
        // SAFETY: the entry is inside the used ring, which is mapped. Entries are 4-byte aligned
        // only.
        unsafe { self.parts.used.add(RING_HEADER + 8 * entry).cast::<u64>().write_unaligned(word) };
        self.next_used = self.next_used.wrapping_add(1);
    }

    /// Shows all filled entries to the driver at once; says whether it wants to be signalled.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.next_used);
        if old == new {
            return false;
        }
        //= virtio 2.7.8.2
        //# The device MUST set len prior to updating the used idx.
        //= virtio 2.7.8.2
        //# The device MUST write at least len bytes to descriptor, beginning at the first
        //# device-writable buffer, prior to updating the used idx.
        // Release: the entries are visible before the index.
        self.used_idx().store(new.to_le(), Ordering::Release);
        self.published = new;
        crate::kill_point();
        // The index must be visible before the driver's wish is read: it does the two in the other
        // order.
        fence(Ordering::SeqCst);
        if self.event_idx {
            //= virtio 2.7.7.2
            //# The device MUST ignore the lower bit of flags.
            //= virtio 2.7.7.2
            //# If the idx field in the used ring (which determined where that descriptor index was
            //# placed) was equal to used_event, the device MUST send a notification.
            let event = self.u16_at(self.parts.avail, RING_HEADER + 2 * usize::from(self.size));
            need_event(u16::from_le(event.load(Ordering::Relaxed)), new, old)
        } else {
            //= virtio 2.7.7.2
            //# The device MUST ignore the used_event value.
            //= virtio 2.7.7.2
            //# If flags is 0, the device MUST send a notification.
            u16::from_le(self.u16_at(self.parts.avail, 0).load(Ordering::Relaxed))
                & AVAIL_NO_INTERRUPT
                == 0
        }
    }

    /// Asks the driver for a kick. Returns whether chains came meanwhile, for which there may be
    /// none.
    pub(crate) fn enable_notify(&mut self) -> Result<bool, Broken> {
        if self.event_idx {
            let event = self.u16_at(self.parts.used, RING_HEADER + 8 * usize::from(self.size));
            event.store(self.next_avail.to_le(), Ordering::Relaxed);
        } else {
            self.u16_at(self.parts.used, 0).store(0, Ordering::Relaxed);
        }
        // The wish must be visible before the index is read: the driver does the two in the other
        // order.
        fence(Ordering::SeqCst);
        Ok(self.available()? > 0)
    }

    /// Asks the driver not to kick. With the event index there is no work: the event that
    /// [`SplitQueue::enable_notify`] wrote is passed once and stays behind.
    pub(crate) fn disable_notify(&mut self) {
        //= virtio 2.7.10.2
        //# The device MUST set flags to 0 or 1.
        //= virtio 2.7.10.2
        //# The device MUST set flags to 0.
        if !self.event_idx {
            self.u16_at(self.parts.used, 0).store(USED_NO_NOTIFY.to_le(), Ordering::Relaxed);
        }
    }
}

/// Collects all buffers of a split ring's indirect table: a chain of its own (2.7.5.3). None means
/// an error: [`Collector::why`].
#[inline(always)]
fn collect_indirect(
    chain: &mut Collector<'_>,
    mut walk: Walk,
    descriptor: Descriptor,
) -> Option<Walk> {
    let table = chain.indirect(walk, descriptor.addr, descriptor.len)?;
    let mut index = 0;
    for _ in 0..table.entries {
        let entry = match table.read(index) {
            Some(entry) => entry,
            None => chain.read_slow(table, descriptor.addr, index)?,
        };
        let (flags, next) = (entry.low, usize::from(entry.high));
        if flags & INDIRECT != 0 {
            return chain.fail(Broken::NestedIndirect);
        }
        if !chain.push(&mut walk, entry.addr, entry.len, flags & WRITE != 0) {
            walk = chain.push_slow(walk, entry.addr, entry.len, flags & WRITE != 0)?;
        }
        if flags & NEXT == 0 {
            return Some(walk);
        }
        index = next;
    }
    // The last one may have named one that is not there; that is not read.
    if index < table.entries {
        chain.fail(Broken::Loop)
    } else {
        chain.read_slow(table, 0, index).and(None)
    }
}

/// True if an index that moved from `old` to `new` passed `event` (2.7.10, `vring_need_event`).
#[inline]
pub(crate) fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}
