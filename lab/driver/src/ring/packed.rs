//! The driver's side of a packed virtqueue (virtio 1.2, section 2.8).
//!
//! Both sides write one ring of descriptors. We make a descriptor available by giving its AVAIL and
//! USED flags the values of our wrap counter. The device marks it used in the same place. A batch
//! becomes visible at once because the flags of its first descriptor are stored last.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use super::error::Error;
use super::format::Ring;
use super::layout::{F_INDIRECT, F_NEXT, F_WRITE, Format, Layout, Segment};
use super::memory::{Arena, Buf};
use super::{MAX_QUEUE_SIZE, passed};

/// VIRTQ_DESC_F_AVAIL.
const F_AVAIL: u16 = 1 << 7;
/// VIRTQ_DESC_F_USED.
const F_USED: u16 = 1 << 15;

/// RING_EVENT_FLAGS_ENABLE, in the upper half of the event suppression structure.
const EVENT_ENABLE: u32 = 0;
/// RING_EVENT_FLAGS_DISABLE.
const EVENT_DISABLE: u32 = 1;
/// RING_EVENT_FLAGS_DESC.
const EVENT_DESC: u32 = 2;

/// The driver's side of a packed virtqueue.
#[derive(Debug)]
pub(super) struct PackedQueue {
    /// Keeps what the pointers below point to.
    _areas: [Buf; 3],
    pub(super) layout: Layout,
    event_idx: bool,
    /// Pairs of words, one per descriptor.
    desc: NonNull<AtomicU64>,
    driver_event: NonNull<AtomicU32>,
    device_event: NonNull<AtomicU32>,
    next_avail: u16,
    avail_wrap: bool,
    last_used: u16,
    used_wrap: bool,
    /// The first descriptor of the batch not yet published: its place and its second word.
    first: Option<(u16, u64)>,
    /// Descriptors in that batch.
    batch: u16,
    /// Ring entries free.
    pub(super) free: u16,
    /// By id.
    chains: Box<[Vec<Segment>]>,
    ids: Vec<u16>,
}

impl PackedQueue {
    /// A new queue of `size` entries, all free.
    ///
    /// # Errors
    /// [`Error::QueueSize`] if `size` is 0 or above 32768, [`Error::Exhausted`] if the arena is
    /// full.
    pub(super) fn new(arena: &Arena, size: u16, event_idx: bool) -> Result<Self, Error> {
        if size == 0 || size > MAX_QUEUE_SIZE {
            return Err(Error::QueueSize {
                size: size.into(),
                why: "a packed queue has 1 to 32768 entries",
            });
        }
        let desc = arena.alloc(16 * usize::from(size), 64)?;
        let driver = arena.alloc(4, 128)?;
        let device = arena.alloc(4, 128)?;
        arena.alloc(0, 128)?;
        Ok(Self {
            layout: Layout {
                format: Format::Packed,
                size,
                desc: desc.addr(),
                driver: driver.addr(),
                device: device.addr(),
            },
            event_idx,
            desc: desc.at(0)?,
            driver_event: driver.at(0)?,
            device_event: device.at(0)?,
            _areas: [desc, driver, device],
            next_avail: 0,
            avail_wrap: true,
            last_used: 0,
            used_wrap: true,
            first: None,
            batch: 0,
            free: size,
            chains: vec![Vec::new(); size.into()].into(),
            ids: (0..size).rev().collect(),
        })
    }
}

impl Ring for PackedQueue {
    /// A chain takes ring entries only while the device holds it.
    fn take(&mut self, chain: &[Segment]) -> Result<u16, Error> {
        let id = self.ids.pop().ok_or(Error::Full)?;
        self.write(id, chain);
        Ok(id)
    }

    fn write(&mut self, id: u16, chain: &[Segment]) {
        chain.clone_into(&mut self.chains[usize::from(id)]);
    }

    #[inline]
    fn has_room(&self, id: u16) -> bool {
        self.chains[usize::from(id)].len() <= usize::from(self.free)
    }

    #[inline]
    fn offer(&mut self, id: u16) {
        let chain = &self.chains[usize::from(id)];
        let mut left = chain.len();
        for segment in chain {
            left -= 1;
            // 2.8.1: available is AVAIL = our wrap counter, USED = its inverse.
            let turn = if self.avail_wrap { F_AVAIL } else { F_USED };
            let next = if left > 0 { F_NEXT } else { 0 };
            let flags = segment.flags & (F_WRITE | F_INDIRECT) | turn | next;
            let word = u64::from(segment.len) | u64::from(id) << 32 | u64::from(flags) << 48;
            let at = usize::from(self.next_avail);
            // SAFETY: `next_avail` < size, and the ring has `size` pairs of words.
            unsafe {
                self.desc.add(2 * at).as_ref().store(segment.addr, Ordering::Relaxed);
                if self.first.is_some() {
                    self.desc.add(2 * at + 1).as_ref().store(word, Ordering::Relaxed);
                } else {
                    self.first = Some((self.next_avail, word));
                }
            }
            self.batch += 1;
            self.free -= 1;
            self.next_avail += 1;
            if self.next_avail == self.layout.size {
                self.next_avail = 0;
                self.avail_wrap = !self.avail_wrap;
            }
        }
    }

    #[inline]
    fn publish(&mut self) -> bool {
        let Some((at, word)) = self.first.take() else { return false };
        let batch = std::mem::take(&mut self.batch);
        // SAFETY: `at` < size. Release: the device that sees this descriptor sees the batch behind
        // it.
        unsafe { self.desc.add(2 * usize::from(at) + 1).as_ref() }.store(word, Ordering::Release);
        // 2.8.21.3.1: the descriptor before the look at the device's wish.
        fence(Ordering::SeqCst);
        // SAFETY: the area lives as long as `self`.
        let event = unsafe { self.device_event.as_ref() }.load(Ordering::Relaxed);
        match event >> 16 {
            EVENT_DISABLE => false,
            EVENT_DESC if self.event_idx => {
                let mut wanted = (event & 0x7fff) as u16;
                if (event & 0x8000 != 0) != self.avail_wrap {
                    wanted = wanted.wrapping_sub(self.layout.size);
                }
                passed(wanted, self.next_avail, self.next_avail.wrapping_sub(batch))
            }
            // ENABLE, and what only a broken device writes: a kick too many does no harm.
            _ => true,
        }
    }

    /// As many as there are marks of.
    #[inline]
    fn returned(&self, held: u16) -> Result<u16, Error> {
        Ok(held)
    }

    #[inline]
    fn used(&self) -> Option<(u32, u32)> {
        // SAFETY: `last_used` < size. Acquire: the data before the flags.
        let word = unsafe { self.desc.add(2 * usize::from(self.last_used) + 1).as_ref() }
            .load(Ordering::Acquire);
        let flags = (word >> 48) as u16;
        // 2.8.1: used is AVAIL = USED = the device's wrap counter.
        let (avail, used) = (flags & F_AVAIL != 0, flags & F_USED != 0);
        #[expect(clippy::cast_possible_truncation, reason = "the fields of the descriptor")]
        let (id, len) = ((word >> 32) as u16, word as u32);
        (avail == used && used == self.used_wrap).then_some((id.into(), len))
    }

    #[inline]
    fn pass(&mut self, id: u16) {
        #[expect(clippy::cast_possible_truncation, reason = "at most 32768 segments fit the ring")]
        let n = self.chains[usize::from(id)].len() as u16;
        self.free += n;
        // 2.8.7: the device skips as many entries as the chain had, so do we.
        self.last_used += n;
        if self.last_used >= self.layout.size {
            self.last_used -= self.layout.size;
            self.used_wrap = !self.used_wrap;
        }
    }

    fn release(&mut self, id: u16, _capacity: u16) {
        self.ids.push(id);
    }

    #[inline]
    fn has_used(&self, held: u16) -> bool {
        // Unpublished descriptors may look used from the round before.
        held > 0 && self.used().is_some()
    }

    fn enable_interrupts(&mut self) {
        let event = if self.event_idx {
            u32::from(self.last_used) | u32::from(self.used_wrap) << 15 | EVENT_DESC << 16
        } else {
            EVENT_ENABLE << 16
        };
        // SAFETY: the area lives as long as `self`.
        unsafe { self.driver_event.as_ref() }.store(event, Ordering::Relaxed);
        // The wish before the look: else an entry between the two would go unnoticed by both.
        fence(Ordering::SeqCst);
    }

    fn disable_interrupts(&mut self) {
        // SAFETY: the area lives as long as `self`.
        unsafe { self.driver_event.as_ref() }.store(EVENT_DISABLE << 16, Ordering::Relaxed);
    }
}
