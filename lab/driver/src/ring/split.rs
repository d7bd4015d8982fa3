//! The driver's side of a split virtqueue (virtio 1.2, section 2.7).
//!
//! Three areas: the descriptor table (written by us), the avail ring (ours), the used ring (the
//! device's). All state for decisions here (the free list, lengths of chains) is kept in private
//! memory. The shared areas are only written, but for the used ring and the device's event index.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use super::error::{Error, Violation};
use super::format::Ring;
use super::layout::{F_NEXT, Format, Layout, Segment};
use super::memory::{Arena, Buf};
use super::{MAX_QUEUE_SIZE, passed};

/// VIRTQ_AVAIL_F_NO_INTERRUPT.
const NO_INTERRUPT: u16 = 1;
/// VIRTQ_USED_F_NO_NOTIFY.
const NO_NOTIFY: u16 = 1;

/// The driver's side of a split virtqueue.
#[derive(Debug)]
pub(super) struct SplitQueue {
    /// Keeps what the pointers below point to.
    _areas: [Buf; 3],
    pub(super) layout: Layout,
    mask: u16,
    event_idx: bool,
    /// Pairs of words, one per descriptor.
    desc: NonNull<AtomicU64>,
    avail_flags: NonNull<AtomicU16>,
    avail_idx: NonNull<AtomicU16>,
    avail_ring: NonNull<AtomicU16>,
    used_event: NonNull<AtomicU16>,
    used_flags: NonNull<AtomicU16>,
    used_idx: NonNull<AtomicU16>,
    /// Pairs of half words (id, len).
    used_ring: NonNull<AtomicU32>,
    avail_event: NonNull<AtomicU16>,
    /// By descriptor, the next one of the chain or of the free list.
    next: Box<[u16]>,
    free_head: u16,
    pub(super) free: u16,
    /// The avail index after what was added, and what the device knows of it.
    next_avail: u16,
    published: u16,
    last_used: u16,
}

impl SplitQueue {
    /// A new queue of `size` entries, all free.
    ///
    /// # Errors
    /// [`Error::QueueSize`] if `size` is not a power of two up to 32768, [`Error::Exhausted`] if
    /// the arena is full.
    pub(super) fn new(arena: &Arena, size: u16, event_idx: bool) -> Result<Self, Error> {
        if !size.is_power_of_two() || size > MAX_QUEUE_SIZE {
            let why = "a split queue's size is a power of two from 1 to 32768";
            return Err(Error::QueueSize { size: size.into(), why });
        }
        let n = usize::from(size);
        let desc = arena.alloc(16 * n, 64)?;
        let avail = arena.alloc(6 + 2 * n, 128)?;
        let used = arena.alloc(6 + 8 * n, 128)?;
        // The used ring's last cache line is not shared with another queue.
        arena.alloc(0, 128)?;
        Ok(Self {
            layout: Layout {
                format: Format::Split,
                size,
                desc: desc.addr(),
                driver: avail.addr(),
                device: used.addr(),
            },
            mask: size - 1,
            event_idx,
            desc: desc.at(0)?,
            avail_flags: avail.at(0)?,
            avail_idx: avail.at(2)?,
            avail_ring: avail.at(4)?,
            used_event: avail.at(4 + 2 * n)?,
            used_flags: used.at(0)?,
            used_idx: used.at(2)?,
            used_ring: used.at(4)?,
            avail_event: used.at(4 + 8 * n)?,
            _areas: [desc, avail, used],
            next: (1..=size).collect(),
            free_head: 0,
            free: size,
            next_avail: 0,
            published: 0,
            last_used: 0,
        })
    }
}

impl Ring for SplitQueue {
    fn take(&mut self, chain: &[Segment]) -> Result<u16, Error> {
        let len = u16::try_from(chain.len()).ok().filter(|len| *len <= self.free);
        let len = len.ok_or(Error::Full)?;
        let head = self.free_head;
        let mut last = head;
        for _ in 1..len {
            last = self.next[usize::from(last)];
        }
        self.free_head = self.next[usize::from(last)];
        self.free -= len;
        self.write(head, chain);
        Ok(head)
    }

    fn write(&mut self, head: u16, chain: &[Segment]) {
        let mut index = head;
        for (i, segment) in chain.iter().enumerate() {
            let next = self.next[usize::from(index)];
            let (flags, link) = if i + 1 < chain.len() {
                (segment.flags | F_NEXT, next)
            } else {
                (segment.flags, 0)
            };
            let word = u64::from(segment.len) | u64::from(flags) << 32 | u64::from(link) << 48;
            // SAFETY: `index` < size: it indexed `next`; the table has `size` pairs of words.
            unsafe {
                self.desc
                    .add(2 * usize::from(index))
                    .as_ref()
                    .store(segment.addr, Ordering::Relaxed);
                self.desc.add(2 * usize::from(index) + 1).as_ref().store(word, Ordering::Relaxed);
            }
            index = next;
        }
    }

    /// A bound chain keeps its descriptors.
    #[inline]
    fn has_room(&self, _id: u16) -> bool {
        true
    }

    #[inline]
    fn offer(&mut self, head: u16) {
        let at = usize::from(self.next_avail & self.mask);
        // SAFETY: `at` < size, and the ring has `size` entries.
        unsafe { self.avail_ring.add(at).as_ref() }.store(head, Ordering::Relaxed);
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    #[inline]
    fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.next_avail);
        if old == new {
            return false;
        }
        self.published = new;
        // SAFETY: the areas live as long as `self`. Release: the device that sees the index sees
        // the entries before it.
        unsafe { self.avail_idx.as_ref() }.store(new, Ordering::Release);
        // 2.7.13.4.1: the index before the look at the device's wish.
        fence(Ordering::SeqCst);
        // SAFETY: as above.
        unsafe {
            if self.event_idx {
                passed(self.avail_event.as_ref().load(Ordering::Relaxed), new, old)
            } else {
                self.used_flags.as_ref().load(Ordering::Relaxed) & NO_NOTIFY == 0
            }
        }
    }

    #[inline]
    fn returned(&self, held: u16) -> Result<u16, Error> {
        // SAFETY: the areas live as long as `self`. Acquire: entries and data before the index.
        let idx = unsafe { self.used_idx.as_ref() }.load(Ordering::Acquire);
        match idx.wrapping_sub(self.last_used) {
            returned if returned > held => Err(Violation::TooMany { returned, held }.into()),
            returned => Ok(returned),
        }
    }

    #[inline]
    fn used(&self) -> Option<(u32, u32)> {
        let at = usize::from(self.last_used & self.mask);
        // SAFETY: `at` < size, and the ring has `size` pairs.
        let words = unsafe { [self.used_ring.add(2 * at), self.used_ring.add(2 * at + 1)] };
        // SAFETY: as above, and the area lives as long as `self`.
        let [id, len] = words.map(|word| unsafe { word.as_ref() }.load(Ordering::Relaxed));
        Some((id, len))
    }

    #[inline]
    fn pass(&mut self, _id: u16) {
        self.last_used = self.last_used.wrapping_add(1);
    }

    fn release(&mut self, head: u16, capacity: u16) {
        let mut last = head;
        for _ in 1..capacity {
            last = self.next[usize::from(last)];
        }
        self.next[usize::from(last)] = self.free_head;
        self.free_head = head;
        self.free += capacity;
    }

    #[inline]
    fn has_used(&self, _held: u16) -> bool {
        // SAFETY: the areas live as long as `self`.
        unsafe { self.used_idx.as_ref() }.load(Ordering::Acquire) != self.last_used
    }

    fn enable_interrupts(&mut self) {
        // SAFETY: the areas live as long as `self`.
        unsafe {
            if self.event_idx {
                self.used_event.as_ref().store(self.last_used, Ordering::Relaxed);
            } else {
                self.avail_flags.as_ref().store(0, Ordering::Relaxed);
            }
        }
        // The wish before the look (2.7.10): else an entry between the two would go unnoticed by
        // both.
        fence(Ordering::SeqCst);
    }

    fn disable_interrupts(&mut self) {
        // SAFETY: the areas live as long as `self`.
        unsafe {
            if self.event_idx {
                // Half a turn away: not among the device's newly published chains that it has not
                // yet weighed, nor near its next ones. It comes round once in 65536 chains: one
                // stray interrupt.
                self.used_event.as_ref().store(self.last_used ^ 0x8000, Ordering::Relaxed);
            } else {
                self.avail_flags.as_ref().store(NO_INTERRUPT, Ordering::Relaxed);
            }
        }
    }
}
