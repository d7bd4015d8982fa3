//! The parts in which split and packed queues differ.

use super::error::Error;
use super::layout::Segment;

/// A format's ring. Ids of chains are below its size.
pub(super) trait Ring {
    /// Gives an id to a chain.
    fn take(&mut self, chain: &[Segment]) -> Result<u16, Error>;

    /// Writes another chain, which is no longer, in the place of one.
    fn write(&mut self, id: u16, chain: &[Segment]);

    /// Returns true if a chain can be offered.
    fn has_room(&self, id: u16) -> bool;

    /// Puts a chain into the ring, to be seen at the next publish.
    fn offer(&mut self, id: u16);

    /// See [`super::Queue::publish`].
    fn publish(&mut self) -> bool;

    /// Most chains that the device may have returned, of those that it held.
    fn returned(&self, held: u16) -> Result<u16, Error>;

    /// Id and length of the next returned chain.
    fn used(&self) -> Option<(u32, u32)>;

    /// Goes on behind a returned chain.
    fn pass(&mut self, id: u16);

    /// Frees a chain of so many segments at most.
    fn release(&mut self, id: u16, capacity: u16);

    /// See [`super::Queue::has_used`].
    fn has_used(&self, held: u16) -> bool;

    /// Asks for an interrupt when the next chain comes back.
    fn enable_interrupts(&mut self);

    /// See [`super::Queue::disable_interrupts`].
    fn disable_interrupts(&mut self);
}
