//! The packed virtqueue, device side (virtio 1.2, section 2.8).

mod place;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::blk::Request;
use crate::chain::{Collector, DESCRIPTOR, Descriptor, INDIRECT, NEXT, WRITE, Walk};
use crate::error::Broken;
use crate::split::need_event;
use vlane_memory::GuestMemory;

const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;
/// Offset of a descriptor's second word: length, id, flags. It is read and written whole, as the
/// driver here does.
const SECOND: usize = 8;
const FLAGS_SHIFT: u32 = 48;

const EVENT_ENABLE: u16 = 0;
const EVENT_DISABLE: u16 = 1;
const EVENT_DESC: u16 = 2;
const WRAP: u16 = 1 << 15;

/// Host addresses of the ring and the two event suppression structures, checked by the queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts {
    pub ring: *mut u8,
    /// Written by the driver: when it wants to be signalled.
    pub driver_event: *mut u8,
    /// Written by the device: when it wants to be kicked.
    pub device_event: *mut u8,
}

/// An index into the ring with its wrap counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub index: u16,
    pub wrap: bool,
}

impl Position {
    #[inline]
    fn advance(&mut self, by: u16, size: u16) {
        // At most the size, which is at most 32768, is added to less: this does not overflow.
        self.index += by;
        if self.index >= size {
            self.index -= size;
            self.wrap = !self.wrap;
        }
    }

    fn retreat(&mut self, by: u16, size: u16) {
        if by > self.index {
            self.wrap = !self.wrap;
            self.index += size;
        }
        self.index -= by;
    }

    fn encode(self) -> u16 {
        self.index | if self.wrap { WRAP } else { 0 }
    }

    fn decode(raw: u16, size: u16) -> Position {
        Position { index: (raw & !WRAP) % size, wrap: raw & WRAP != 0 }
    }
}

#[derive(Debug)]
pub(crate) struct PackedQueue {
    size: u16,
    event_idx: bool,
    parts: Parts,
    avail: Position,
    used: Position,
    /// The first used descriptor of the batch, and its second word: written last, it makes the
    /// batch visible.
    first: Option<(u16, u64)>,
    /// Ring descriptors that the batch stands for.
    batch: u16,
    /// Ring descriptors taken and not yet given back: never more than the ring has.
    outstanding: u16,
    /// It did not begin where the front end said.
    went_on: bool,
}

/// Bytes of the three parts: (ring, driver event, device event).
pub(crate) fn part_sizes(size: u16) -> (u64, u64, u64) {
    (16 * u64::from(size), 4, 4)
}

impl PackedQueue {
    /// `parts` must be mapped for the sizes of [`part_sizes`] and aligned to 16, 4 and 4 bytes.
    /// `base` is the value of [`PackedQueue::base`]; a fresh ring begins with 0x8000_8000 (or its
    /// low half alone).
    ///
    /// # Errors
    /// [`Broken::PlaceLost`] with a queue that is of no use.
    pub(crate) fn new(
        size: u16,
        event_idx: bool,
        parts: Parts,
        base: u32,
    ) -> (PackedQueue, Option<Broken>) {
        let (low, high) = ((base & 0xffff) as u16, (base >> 16) as u16);
        let avail = Position::decode(low, size);
        let used = if high == 0 && base != 0 { avail } else { Position::decode(high, size) };
        let mut queue = PackedQueue {
            size,
            event_idx,
            parts,
            avail,
            used,
            first: None,
            batch: 0,
            outstanding: 0,
            went_on: false,
        };
        // User-Mode Linux gives 0 for a fresh ring, whose wrap counters are 1. A ring that really
        // stands at position 0 with its counters at 0 went round. No chain is longer than the ring,
        // so in that lap one began somewhere, and there its used descriptor, or the driver's next,
        // has the used bit. (Not at position 0, which may be the middle of a chain.) In a fresh
        // ring no descriptor has it.
        let used_bit = |at| {
            (u64::from_le(queue.second_at(at).load(Ordering::Acquire)) >> FLAGS_SHIFT) as u16 & USED
        };
        if base == 0 && (0..size).all(|at| used_bit(at) == 0) {
            queue.avail.wrap = true;
            queue.used.wrap = true;
        }
        let place = queue.find_place();
        queue.went_on = place == Some(true);
        let broken =
            place.is_none().then_some(Broken::PlaceLost { index: used.index, wrap: used.wrap });
        (queue, broken)
    }

    /// True if it began elsewhere than the front end said.
    pub(crate) fn went_on(&self) -> bool {
        self.went_on
    }

    pub(crate) fn set_parts(&mut self, parts: Parts) {
        self.parts = parts;
    }

    pub(crate) fn size(&self) -> u16 {
        self.size
    }

    /// The position of the next answer.
    #[inline]
    pub(crate) fn used(&self) -> Position {
        self.used
    }

    /// Continues at this position, with so many descriptors in flight.
    pub(crate) fn goes_on(&mut self, used: Position, in_flight: u16) {
        (self.used, self.avail) = (used, used);
        self.avail.advance(in_flight, self.size);
        self.outstanding = in_flight;
        self.went_on = false;
    }

    /// True if the descriptor there is the driver's gift, in the lap of that position.
    #[inline]
    pub(crate) fn is_given_at(&self, at: Position) -> bool {
        // Acquire: the descriptor is read after the flags that make it ours.
        let second = u64::from_le(self.second_at(at.index).load(Ordering::Acquire));
        let flags = (second >> FLAGS_SHIFT) as u16;
        (flags & AVAIL != 0) == at.wrap && (flags & USED != 0) != at.wrap
    }

    /// The descriptors of the chain that was taken last, of `count` ring entries, as they are now.
    #[inline]
    pub(crate) fn last_chain(&self, count: u16) -> impl Iterator<Item = Descriptor> {
        let mut position = self.avail;
        position.retreat(count, self.size);
        (0..count).map(move |_| {
            // SAFETY: the position is inside the ring, whose descriptors are aligned to 16.
            let descriptor = unsafe { Descriptor::read(self.at(position.index)) };
            position.advance(1, self.size);
            descriptor
        })
    }

    /// Next available (low half) and next used (high half) position: 15 bits of index, and the wrap
    /// counter.
    pub(crate) fn base(&self) -> u32 {
        u32::from(self.avail.encode()) | (u32::from(self.used.encode()) << 16)
    }

    #[inline]
    fn at(&self, index: u16) -> *mut u8 {
        debug_assert!(index < self.size);
        // SAFETY: positions stay below the size, and the ring is mapped for that many descriptors.
        unsafe { self.parts.ring.add(usize::from(index) * DESCRIPTOR) }
    }

    #[inline]
    fn second_at(&self, index: u16) -> &AtomicU64 {
        // SAFETY: inside a descriptor of the ring, which is aligned to 16.
        unsafe { AtomicU64::from_ptr(self.at(index).add(SECOND).cast()) }
    }

    #[inline]
    fn event(&self, part: *mut u8) -> &AtomicU32 {
        // SAFETY: both structures are mapped, 4 bytes long and aligned to 4.
        unsafe { AtomicU32::from_ptr(part.cast()) }
    }

    /// True if the next descriptor is the driver's gift.
    #[inline]
    pub(crate) fn is_available(&self) -> bool {
        //= virtio 2.8.15
        //# A device MUST NOT use a descriptor unless it observes the VIRTQ_DESC_F_AVAIL bit in its
        //# flags being changed (e.g. as compared to the initial zero value).
        self.is_given_at(self.avail)
    }

    /// Takes the next chain; `is_available` must have said that there is one.
    #[inline]
    pub(crate) fn take(
        &mut self,
        memory: &GuestMemory,
        hint: &mut usize,
        request: &mut Request,
    ) -> Result<(), Broken> {
        let (mut chain, mut walk) = Collector::new(memory, hint, &mut request.buffers);
        let mut position = self.avail;
        for count in 1..=self.size {
            // SAFETY: the position is inside the ring, whose descriptors are aligned to 16.
            let descriptor = unsafe { Descriptor::read(self.at(position.index)) };
            let (id, flags) = (descriptor.low, descriptor.high);
            //= virtio 2.8.12
            //# The device MUST start processing driver descriptors in the order in which they
            //# appear in the ring.
            //= virtio 2.8.18
            //# The device MUST use descriptors in a list chained by the VIRTQ_DESC_F_NEXT flag in
            //# the same order that they were made available by the driver.
            position.advance(1, self.size);
            if flags & INDIRECT != 0 {
                if flags & NEXT != 0 {
                    return Err(Broken::IndirectWithNext);
                }
                let Some(whole) = collect_indirect(&mut chain, walk, descriptor) else {
                    return Err(chain.why());
                };
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
                    continue;
                }
            }
            // Only the last descriptor of a chain carries the buffer id (2.8.6).
            if count > self.size - self.outstanding {
                return Err(Broken::TooManyInFlight { size: self.size });
            }
            self.outstanding += count;
            request.id = id;
            request.descriptors = count;
            self.avail = position;
            let hole = chain.hole;
            return request.parse(walk, hole);
        }
        Err(Broken::Loop)
    }

    /// Takes a chain that a device before had taken: these descriptors. The ring has gone past it
    /// already.
    pub(crate) fn retake(
        &self,
        descriptors: impl Iterator<Item = Descriptor>,
        memory: &GuestMemory,
        hint: &mut usize,
        request: &mut Request,
    ) -> Result<(), Broken> {
        // As the only chain of a ring of its own.
        let words = |d: Descriptor| {
            [d.addr, u64::from(d.len) | u64::from(d.low) << 32 | u64::from(d.high) << FLAGS_SHIFT]
        };
        let mut chain: Vec<u64> = descriptors.flat_map(words).map(u64::to_le).collect();
        let size = u16::try_from(chain.len() / 2).unwrap_or(0);
        let start = Position { index: 0, wrap: true };
        let parts = Parts { ring: chain.as_mut_ptr().cast(), ..self.parts };
        let mut ring = PackedQueue {
            size,
            parts,
            avail: start,
            used: start,
            first: None,
            batch: 0,
            outstanding: 0,
            ..*self
        };
        ring.take(memory, hint, request)
    }

    /// The chain that was taken last, of `descriptors` ring entries, was not: it is taken again.
    pub(crate) fn put_back(&mut self, descriptors: u16) {
        self.outstanding -= descriptors;
        self.avail.retreat(descriptors, self.size);
    }

    /// Writes a used descriptor for a chain of `descriptors` ring entries. The driver sees it after
    /// [`PackedQueue::publish`].
    #[inline]
    pub(crate) fn put_used(&mut self, id: u16, len: u32, descriptors: u16) {
        //= virtio 2.8.12
        //# The device MUST start writing device descriptors into the ring in the order in which
        //# they complete.
        let Position { index, wrap } = self.used;
        let flags = WRITE | if wrap { AVAIL | USED } else { 0 };
        let second = u64::from(len) | u64::from(id) << 32 | u64::from(flags) << FLAGS_SHIFT;
        match self.first {
            None => self.first = Some((index, second)),
            // The driver stops at the batch's first descriptor until that one is published, so
            // these may be seen in any order.
            Some(_) => self.second_at(index).store(second.to_le(), Ordering::Release),
        }
        self.outstanding -= descriptors;
        self.batch = self.batch.saturating_add(descriptors);
        //= virtio 2.8.15
        //# A device MUST NOT change a descriptor after changing it's the VIRTQ_DESC_F_USED bit in
        //# its flags.
        self.used.advance(descriptors, self.size);
    }

    /// Shows the batch to the driver at once; says whether it wants to be signalled.
    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        self.show() && self.wants_signal()
    }

    /// Shows the answers to the driver; returns true if there were any.
    #[inline]
    pub(crate) fn show(&mut self) -> bool {
        let Some((index, second)) = self.first.take() else { return false };
        // Release: what the device wrote, and the other descriptors, before the one that shows
        // them.
        self.second_at(index).store(second.to_le(), Ordering::Release);
        crate::kill_point();
        true
    }

    /// True if the driver wants a signal for the entries shown since the last time.
    #[inline]
    pub(crate) fn wants_signal(&mut self) -> bool {
        let batch = std::mem::take(&mut self.batch);
        // The descriptors must be visible before the driver's wish is read.
        fence(Ordering::SeqCst);
        // Position and flags at once: they belong together.
        let event = u32::from_le(self.event(self.parts.driver_event).load(Ordering::Relaxed));
        let (raw, wish) = ((event & 0xffff) as u16, (event >> 16) as u16 & 3);
        match wish {
            EVENT_DISABLE => false,
            EVENT_DESC if self.event_idx => {
                let event = raw & !WRAP;
                // An event of the other lap lies one ring behind.
                let event = if (raw & WRAP != 0) == self.used.wrap {
                    event
                } else {
                    event.wrapping_sub(self.size)
                };
                // A driver that reuses descriptors before it can have seen them used may make a
                // batch longer than the ring, and longer than 16 bits can count.
                batch > self.size
                    || need_event(event, self.used.index, self.used.index.wrapping_sub(batch))
            }
            _ => true,
        }
    }

    /// Asks the driver for a kick. Returns whether a chain came meanwhile, for which there may be
    /// none.
    pub(crate) fn enable_notify(&mut self) -> bool {
        let event = match self.event_idx {
            true => u32::from(self.avail.encode()) | u32::from(EVENT_DESC) << 16,
            false => Self::asleep_word(self.avail),
        };
        self.event(self.parts.device_event).store(event.to_le(), Ordering::Relaxed);
        // The wish must be visible before the look: the driver does the two in the other order.
        fence(Ordering::SeqCst);
        self.is_available()
    }

    /// Asks the driver not to kick.
    pub(crate) fn disable_notify(&mut self) {
        self.event(self.parts.device_event).store(Self::AWAKE_WORD.to_le(), Ordering::Relaxed);
    }
}

/// Collects all buffers of a packed ring's indirect table: all entries, in their order; no flag but
/// WRITE means anything there (2.8.7). None means an error: [`Collector::why`].
#[inline(always)]
fn collect_indirect(
    chain: &mut Collector<'_>,
    mut walk: Walk,
    descriptor: Descriptor,
) -> Option<Walk> {
    let table = chain.indirect(walk, descriptor.addr, descriptor.len)?;
    for index in 0..table.entries {
        let entry = match table.read(index) {
            Some(entry) => entry,
            None => chain.read_slow(table, descriptor.addr, index)?,
        };
        if !chain.push(&mut walk, entry.addr, entry.len, entry.high & WRITE != 0) {
            walk = chain.push_slow(walk, entry.addr, entry.len, entry.high & WRITE != 0)?;
        }
    }
    Some(walk)
}
