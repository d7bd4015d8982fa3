//! The driver's side of a split virtqueue (virtio 1.2, section 2.7).
//!
//! Three areas: the descriptor table (written by us), the avail ring (ours), the used ring (the
//! device's). All state for decisions here (free list, chain lengths, owners) is kept in private
//! memory. The shared areas are only written, but for the used ring and the device's event index.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

use super::error::{Error, Violation};
use super::layout::{F_NEXT, Format, Layout, Segment, Used};
use super::memory::{Arena, Buf};
use super::{MAX_QUEUE_SIZE, passed};

/// VIRTQ_AVAIL_F_NO_INTERRUPT.
const NO_INTERRUPT: u16 = 1;
/// VIRTQ_USED_F_NO_NOTIFY.
const NO_NOTIFY: u16 = 1;

/// The owner of a chain; kept at its head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// A descriptor that is not the head of a chain.
    Nobody,
    /// The device; its descriptors are freed when it comes back.
    DeviceOnce,
    /// Us, bound.
    Idle,
    /// The device; bound.
    Device,
}

/// Private knowledge about a descriptor.
#[derive(Debug, Clone, Copy)]
struct Shadow {
    owner: Owner,
    /// Descriptors that the chain may use (at its head).
    capacity: u16,
    /// The next descriptor of the chain or of the free list.
    next: u16,
}

/// The driver's side of a split virtqueue.
#[derive(Debug)]
pub struct SplitQueue {
    /// Keeps what the pointers below point to.
    _areas: [Buf; 3],
    layout: Layout,
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
    shadow: Box<[Shadow]>,
    free_head: u16,
    free: u16,
    /// The avail index after what was added, and what the device knows of it.
    next_avail: u16,
    published: u16,
    last_used: u16,
    held: u16,
}

impl SplitQueue {
    /// A new queue of `size` entries, all free.
    ///
    /// # Errors
    /// [`Error::QueueSize`] if `size` is not a power of two up to 32768, [`Error::Exhausted`] if
    /// the arena is full.
    pub fn new(arena: &Arena, size: u16, event_idx: bool) -> Result<Self, Error> {
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
        let shadow = (0..size).map(|i| Shadow {
            owner: Owner::Nobody,
            capacity: 0,
            next: i.wrapping_add(1),
        });
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
            shadow: shadow.collect(),
            free_head: 0,
            free: size,
            next_avail: 0,
            published: 0,
            last_used: 0,
            held: 0,
        })
    }

    /// The queue's addresses for the device.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Descriptors that are free.
    pub fn free(&self) -> u16 {
        self.free
    }

    /// Chains that are with the device, published or not.
    pub fn held(&self) -> u16 {
        self.held
    }

    /// See [`Queue::add`](super::Queue::add).
    ///
    /// # Errors
    /// As there.
    pub fn add(&mut self, chain: &[Segment]) -> Result<u16, Error> {
        let head = self.take(chain)?;
        self.offer(head, Owner::DeviceOnce);
        Ok(head)
    }

    /// See [`Queue::bind`](super::Queue::bind).
    ///
    /// # Errors
    /// As there.
    pub fn bind(&mut self, chain: &[Segment]) -> Result<u16, Error> {
        let head = self.take(chain)?;
        self.shadow[usize::from(head)].owner = Owner::Idle;
        Ok(head)
    }

    /// See [`Queue::rebind`](super::Queue::rebind).
    ///
    /// # Errors
    /// As there.
    pub fn rebind(&mut self, id: u16, chain: &[Segment]) -> Result<(), Error> {
        let capacity = match self.shadow.get(usize::from(id)) {
            Some(Shadow { owner: Owner::Idle, capacity, .. }) => usize::from(*capacity),
            _ => return Err(Error::NotIdle(id)),
        };
        if chain.is_empty() || chain.len() > capacity {
            return Err(Error::ChainLength(chain.len()));
        }
        self.write(id, chain);
        Ok(())
    }

    /// See [`Queue::submit`](super::Queue::submit).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn submit(&mut self, id: u16) -> Result<(), Error> {
        match self.shadow.get(usize::from(id)) {
            Some(Shadow { owner: Owner::Idle, .. }) => {
                self.offer(id, Owner::Device);
                Ok(())
            }
            _ => Err(Error::NotIdle(id)),
        }
    }

    /// Takes descriptors off the free list and writes a chain into them.
    fn take(&mut self, chain: &[Segment]) -> Result<u16, Error> {
        let len = u16::try_from(chain.len()).ok().filter(|n| (1..=self.layout.size).contains(n));
        let Some(len) = len else { return Err(Error::ChainLength(chain.len())) };
        if len > self.free {
            return Err(Error::Full);
        }
        let head = self.free_head;
        let mut last = head;
        for _ in 1..len {
            last = self.shadow[usize::from(last)].next;
        }
        self.free_head = self.shadow[usize::from(last)].next;
        self.free -= len;
        self.shadow[usize::from(head)].capacity = len;
        self.write(head, chain);
        Ok(head)
    }

    /// Writes the descriptors of the chain at `head`, which has enough of them.
    fn write(&mut self, head: u16, chain: &[Segment]) {
        let mut index = head;
        for (i, segment) in chain.iter().enumerate() {
            let next = self.shadow[usize::from(index)].next;
            let (flags, link) = if i + 1 < chain.len() {
                (segment.flags | F_NEXT, next)
            } else {
                (segment.flags, 0)
            };
            let word = u64::from(segment.len) | u64::from(flags) << 32 | u64::from(link) << 48;
            // SAFETY: `index` < size: it indexed `shadow`; the table has `size` pairs of words.
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

    /// Puts a chain into the avail ring, to be seen at the next publish.
    #[inline]
    fn offer(&mut self, head: u16, owner: Owner) {
        self.shadow[usize::from(head)].owner = owner;
        let at = usize::from(self.next_avail & self.mask);
        // SAFETY: `at` < size, and the ring has `size` entries.
        unsafe { self.avail_ring.add(at).as_ref() }.store(head, Ordering::Relaxed);
        self.next_avail = self.next_avail.wrapping_add(1);
        self.held += 1;
    }

    /// See [`Queue::publish`](super::Queue::publish).
    #[inline]
    pub fn publish(&mut self) -> bool {
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

    /// See [`Queue::reap`](super::Queue::reap).
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn reap(&mut self, mut each: impl FnMut(Used)) -> Result<usize, Error> {
        // SAFETY: the areas live as long as `self`. Acquire: entries and data before the index.
        let idx = unsafe { self.used_idx.as_ref() }.load(Ordering::Acquire);
        let returned = idx.wrapping_sub(self.last_used);
        if returned > self.held {
            return Err(Violation::TooMany { returned, held: self.held }.into());
        }
        for _ in 0..returned {
            let at = usize::from(self.last_used & self.mask);
            // SAFETY: `at` < size, and the ring has `size` pairs.
            let (id, len) = unsafe {
                (
                    self.used_ring.add(2 * at).as_ref().load(Ordering::Relaxed),
                    self.used_ring.add(2 * at + 1).as_ref().load(Ordering::Relaxed),
                )
            };
            let Some(shadow) = self.shadow.get_mut(id as usize) else {
                return Err(Violation::UnknownChain { id }.into());
            };
            #[expect(clippy::cast_possible_truncation, reason = "it indexed `shadow`")]
            let head = id as u16;
            match shadow.owner {
                Owner::Device => shadow.owner = Owner::Idle,
                Owner::DeviceOnce => self.release(head),
                Owner::Nobody | Owner::Idle => return Err(Violation::UnknownChain { id }.into()),
            }
            self.held -= 1;
            self.last_used = self.last_used.wrapping_add(1);
            each(Used { id: head, len });
        }
        Ok(usize::from(returned))
    }

    /// Returns a chain's descriptors to the free list.
    fn release(&mut self, head: u16) {
        let Shadow { capacity, .. } = self.shadow[usize::from(head)];
        self.shadow[usize::from(head)].owner = Owner::Nobody;
        let mut last = head;
        for _ in 1..capacity {
            last = self.shadow[usize::from(last)].next;
        }
        self.shadow[usize::from(last)].next = self.free_head;
        self.free_head = head;
        self.free += capacity;
    }

    /// See [`Queue::has_used`](super::Queue::has_used).
    #[inline]
    pub fn has_used(&self) -> bool {
        // SAFETY: the areas live as long as `self`.
        unsafe { self.used_idx.as_ref() }.load(Ordering::Acquire) != self.last_used
    }

    /// See [`Queue::enable_interrupts`](super::Queue::enable_interrupts).
    pub fn enable_interrupts(&mut self) -> bool {
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
        self.has_used()
    }

    /// See [`Queue::disable_interrupts`](super::Queue::disable_interrupts).
    pub fn disable_interrupts(&mut self) {
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
