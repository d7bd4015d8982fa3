//! The common part of split and packed queues, and the choice between them.

use super::error::Error;
use super::layout::{F_NEXT, Format, Layout, Segment, Used};
use super::memory::{Arena, Buf};
use super::{PackedQueue, SplitQueue};

/// A virtqueue of either format.
///
/// Chains are built in two ways. [`Queue::add`] takes a chain, gives it to the device and forgets
/// it when it comes back. [`Queue::bind`] builds one that stays: [`Queue::submit`] gives it to the
/// device again and again, which for a split queue is one store into the avail ring. Either becomes
/// visible to the device with [`Queue::publish`] and comes back by [`Queue::reap`].
#[derive(Debug)]
pub enum Queue {
    /// Split.
    Split(SplitQueue),
    /// Packed.
    Packed(PackedQueue),
}

macro_rules! either {
    ($self:expr, $queue:ident => $body:expr) => {
        match $self {
            Queue::Split($queue) => $body,
            Queue::Packed($queue) => $body,
        }
    };
}

impl Queue {
    /// A new queue of `size` entries in `arena`; `event_idx` if VIRTIO_F_EVENT_IDX is negotiated.
    ///
    /// # Errors
    /// [`Error::QueueSize`] for a size the format does not allow, [`Error::Exhausted`] if the arena
    /// is full.
    pub fn new(arena: &Arena, format: Format, size: u16, event_idx: bool) -> Result<Self, Error> {
        Ok(match format {
            Format::Split => Self::Split(SplitQueue::new(arena, size, event_idx)?),
            Format::Packed => Self::Packed(PackedQueue::new(arena, size, event_idx)?),
        })
    }

    /// The queue's addresses for the device.
    pub fn layout(&self) -> Layout {
        either!(self, q => q.layout())
    }

    /// Descriptors that are free.
    pub fn free(&self) -> u16 {
        either!(self, q => q.free())
    }

    /// Chains that are with the device, published or not.
    pub fn held(&self) -> u16 {
        either!(self, q => q.held())
    }

    /// Gives the device a chain; returns its id, free again once reaped.
    ///
    /// # Errors
    /// [`Error::ChainLength`] if it is empty or longer than the queue, [`Error::Full`] if it does
    /// not fit now.
    pub fn add(&mut self, chain: &[Segment]) -> Result<u16, Error> {
        either!(self, q => q.add(chain))
    }

    /// Builds a chain that stays, without giving it to the device.
    ///
    /// # Errors
    /// As [`Queue::add`].
    pub fn bind(&mut self, chain: &[Segment]) -> Result<u16, Error> {
        either!(self, q => q.bind(chain))
    }

    /// Changes a bound chain, which the device must not hold, to another of at most as many
    /// segments as it was bound with.
    ///
    /// # Errors
    /// [`Error::NotIdle`] if the device holds it or `id` is not bound; [`Error::ChainLength`] if it
    /// became longer.
    pub fn rebind(&mut self, id: u16, chain: &[Segment]) -> Result<(), Error> {
        either!(self, q => q.rebind(id, chain))
    }

    /// Gives the device a bound chain.
    ///
    /// # Errors
    /// [`Error::NotIdle`] if the device holds it already or `id` is not bound; [`Error::Full`]
    /// (packed only) if the ring is.
    #[inline]
    pub fn submit(&mut self, id: u16) -> Result<(), Error> {
        either!(self, q => q.submit(id))
    }

    /// Makes everything added and submitted visible to the device; returns true if the device wants
    /// a kick for it.
    #[inline]
    pub fn publish(&mut self) -> bool {
        either!(self, q => q.publish())
    }

    /// Takes back what the device has finished, in its order; returns how many chains that were.
    ///
    /// # Errors
    /// [`Error::Device`] if the device broke the rules; the queue is of no use after that.
    #[inline]
    pub fn reap(&mut self, each: impl FnMut(Used)) -> Result<usize, Error> {
        either!(self, q => q.reap(each))
    }

    /// Returns true if [`Queue::reap`] would find a completion.
    #[inline]
    pub fn has_used(&self) -> bool {
        either!(self, q => q.has_used())
    }

    /// Asks for an interrupt when the next chain comes back. Returns true if one has come back
    /// already; then no interrupt may follow: reap first.
    pub fn enable_interrupts(&mut self) -> bool {
        either!(self, q => q.enable_interrupts())
    }

    /// Asks for no interrupts. A stray one may still come.
    pub fn disable_interrupts(&mut self) {
        either!(self, q => q.disable_interrupts());
    }

    /// Writes an indirect table of this queue's format into `table`, from byte `at` on
    /// (a multiple of 16), for [`Segment::indirect`].
    ///
    /// # Errors
    /// [`Error::Bounds`] if it does not fit.
    pub fn write_table(&self, table: &mut Buf, at: usize, chain: &[Segment]) -> Result<(), Error> {
        let packed = matches!(self, Queue::Packed(_));
        for (i, segment) in chain.iter().enumerate() {
            let mut entry = [0; 16];
            entry[..8].copy_from_slice(&segment.addr.to_le_bytes());
            entry[8..12].copy_from_slice(&segment.len.to_le_bytes());
            let (third, fourth) = if packed {
                // 2.8.8: the order is the chain, only WRITE counts, the id has no meaning.
                (0, segment.flags)
            } else if i + 1 < chain.len() {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "a table has at most 32768 entries"
                )]
                (segment.flags | F_NEXT, i as u16 + 1)
            } else {
                (segment.flags, 0)
            };
            entry[12..14].copy_from_slice(&third.to_le_bytes());
            entry[14..].copy_from_slice(&fourth.to_le_bytes());
            table.copy_in(at + i * 16, &entry)?;
        }
        Ok(())
    }
}
