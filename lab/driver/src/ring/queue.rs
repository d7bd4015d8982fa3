//! The common part of split and packed queues, and the choice between them.

use super::error::{Error, Violation};
use super::format::Ring;
use super::layout::{F_NEXT, Format, Layout, Segment, Used};
use super::memory::{Arena, Buf};
use super::packed::PackedQueue;
use super::split::SplitQueue;

/// The owner of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// None: the id is free.
    Nobody,
    /// The device; the id is freed when it comes back.
    DeviceOnce,
    /// Us, bound.
    Idle,
    /// The device; bound.
    Device,
}

/// The state of a chain.
#[derive(Debug, Clone)]
struct Chain {
    owner: Owner,
    /// Segments that it may have.
    capacity: u16,
}

/// A virtqueue of either format.
///
/// Chains are built in two ways. [`Queue::add`] takes a chain, gives it to the device and forgets
/// it when it comes back. [`Queue::bind`] builds one that stays: [`Queue::submit`] gives it to the
/// device again and again, which for a split queue is one store into the avail ring. Either becomes
/// visible to the device with [`Queue::publish`] and comes back by [`Queue::reap`].
#[derive(Debug)]
pub struct Queue {
    ring: Either,
    /// By id.
    chains: Box<[Chain]>,
    held: u16,
}

#[derive(Debug)]
enum Either {
    Split(SplitQueue),
    Packed(PackedQueue),
}

macro_rules! either {
    ($ring:expr, $queue:ident => $body:expr) => {
        match $ring {
            Either::Split($queue) => $body,
            Either::Packed($queue) => $body,
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
        let ring = match format {
            Format::Split => Either::Split(SplitQueue::new(arena, size, event_idx)?),
            Format::Packed => Either::Packed(PackedQueue::new(arena, size, event_idx)?),
        };
        let free = Chain { owner: Owner::Nobody, capacity: 0 };
        Ok(Self { ring, chains: vec![free; size.into()].into(), held: 0 })
    }

    /// The queue's addresses for the device.
    pub fn layout(&self) -> Layout {
        either!(&self.ring, ring => ring.layout)
    }

    /// Descriptors that are free.
    pub fn free(&self) -> u16 {
        either!(&self.ring, ring => ring.free)
    }

    /// Chains that are with the device, published or not.
    pub fn held(&self) -> u16 {
        self.held
    }

    /// Gives the device a chain; returns its id, free again once reaped.
    ///
    /// # Errors
    /// [`Error::ChainLength`] if it is empty or longer than the queue, [`Error::Full`] if it does
    /// not fit now.
    pub fn add(&mut self, chain: &[Segment]) -> Result<u16, Error> {
        if (usize::from(self.free()) + 1..=self.chains.len()).contains(&chain.len()) {
            return Err(Error::Full);
        }
        let id = self.bind(chain)?;
        self.offer(id, Owner::DeviceOnce);
        Ok(id)
    }

    /// Builds a chain that stays, without giving it to the device.
    ///
    /// # Errors
    /// As [`Queue::add`].
    pub fn bind(&mut self, chain: &[Segment]) -> Result<u16, Error> {
        let len = u16::try_from(chain.len()).ok();
        let fits = |len: &u16| (1..=self.chains.len()).contains(&usize::from(*len));
        let capacity = len.filter(fits).ok_or(Error::ChainLength(chain.len()))?;
        let id = either!(&mut self.ring, ring => ring.take(chain))?;
        self.chains[usize::from(id)] = Chain { owner: Owner::Idle, capacity };
        Ok(id)
    }

    /// Changes a bound chain, which the device must not hold, to another of at most as many
    /// segments as it was bound with.
    ///
    /// # Errors
    /// [`Error::NotIdle`] if the device holds it or `id` is not bound; [`Error::ChainLength`] if it
    /// became longer.
    pub fn rebind(&mut self, id: u16, chain: &[Segment]) -> Result<(), Error> {
        let capacity = self.idle(id)?.capacity.into();
        if chain.is_empty() || chain.len() > capacity {
            return Err(Error::ChainLength(chain.len()));
        }
        either!(&mut self.ring, ring => ring.write(id, chain));
        Ok(())
    }

    /// Gives the device a bound chain.
    ///
    /// # Errors
    /// [`Error::NotIdle`] if the device holds it already or `id` is not bound; [`Error::Full`]
    /// (packed only) if the ring is.
    #[inline]
    pub fn submit(&mut self, id: u16) -> Result<(), Error> {
        self.idle(id)?;
        if !either!(&self.ring, ring => ring.has_room(id)) {
            return Err(Error::Full);
        }
        self.offer(id, Owner::Device);
        Ok(())
    }

    #[inline]
    fn idle(&self, id: u16) -> Result<&Chain, Error> {
        let chain = self.chains.get(usize::from(id)).filter(|chain| chain.owner == Owner::Idle);
        chain.ok_or(Error::NotIdle(id))
    }

    #[inline]
    fn offer(&mut self, id: u16, owner: Owner) {
        self.chains[usize::from(id)].owner = owner;
        self.held += 1;
        either!(&mut self.ring, ring => ring.offer(id));
    }

    /// Makes everything added and submitted visible to the device; returns true if the device wants
    /// a kick for it.
    #[inline]
    pub fn publish(&mut self) -> bool {
        either!(&mut self.ring, ring => ring.publish())
    }

    /// Takes back what the device has finished, in its order; returns how many chains that were.
    ///
    /// # Errors
    /// [`Error::Device`] if the device broke the rules; the queue is of no use after that.
    #[inline]
    pub fn reap(&mut self, each: impl FnMut(Used)) -> Result<usize, Error> {
        let Self { ring, chains, held } = self;
        either!(ring, ring => reap(ring, chains, held, each))
    }

    /// Returns true if [`Queue::reap`] would find a completion.
    #[inline]
    pub fn has_used(&self) -> bool {
        either!(&self.ring, ring => ring.has_used(self.held))
    }

    /// Asks for an interrupt when the next chain comes back. Returns true if one has come back
    /// already; then no interrupt may follow: reap first.
    pub fn enable_interrupts(&mut self) -> bool {
        either!(&mut self.ring, ring => ring.enable_interrupts());
        self.has_used()
    }

    /// Asks for no interrupts. A stray one may still come.
    pub fn disable_interrupts(&mut self) {
        either!(&mut self.ring, ring => ring.disable_interrupts());
    }

    /// Writes an indirect table of this queue's format into `table`, from byte `at` on
    /// (a multiple of 16), for [`Segment::indirect`].
    ///
    /// # Errors
    /// [`Error::Bounds`] if it does not fit.
    pub fn write_table(&self, table: &mut Buf, at: usize, chain: &[Segment]) -> Result<(), Error> {
        let packed = matches!(self.ring, Either::Packed(_));
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

#[inline]
fn reap(
    ring: &mut impl Ring,
    chains: &mut [Chain],
    held: &mut u16,
    mut each: impl FnMut(Used),
) -> Result<usize, Error> {
    let most = ring.returned(*held)?;
    for count in 0..most {
        let Some((id, len)) = ring.used() else { return Ok(count.into()) };
        let unknown = Violation::UnknownChain { id };
        let chain = chains.get_mut(id as usize).ok_or(unknown)?;
        #[expect(clippy::cast_possible_truncation, reason = "it is below the queue's size")]
        let id = id as u16;
        match chain.owner {
            Owner::Device => {
                chain.owner = Owner::Idle;
                ring.pass(id);
            }
            Owner::DeviceOnce => {
                chain.owner = Owner::Nobody;
                ring.pass(id);
                ring.release(id, chain.capacity);
            }
            Owner::Nobody | Owner::Idle => return Err(unknown.into()),
        }
        *held -= 1;
        each(Used { id, len });
    }
    Ok(most.into())
}
