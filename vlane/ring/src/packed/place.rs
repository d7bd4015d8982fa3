//! Where a packed ring stands, when the front end does not know.
//!
//! A split ring has an index in guest memory that says how far the device came. A packed ring has
//! none. A front end whose back end vanished (QEMU, up to 10.0 at least) gives the next one the
//! position of an earlier start. Going on there would be worse than to hang: descriptors of long
//! ago may look available, and be done again.
//!
//! A position can be checked against the ring. The device marks each chain used at its position, in
//! order, with both bits equal to the wrap counter; the driver overwrites every descriptor that it
//! uses. So with the device at position P, a descriptor whose bits are equal has the wrap counter
//! if it lies before P, and the other value otherwise. A position from before one that was used
//! since does not pass, if all chains are one descriptor of the ring (Linux uses indirect tables).
//! Longer ones leave unmarked descriptors behind: an old position may pass, and these may look like
//! a request. So where the ring has such descriptors, the device's word counts. The front end's
//! word counts only if the two agree, or if another program was the last device.
//!
//! The true position is found again where the device left it: in the event structure, which the
//! device writes and the driver reads, as the position at which it wants a kick (section 2.8.10). A
//! lane that sleeps has left it there, and one that was stopped; one that is awake has left a word
//! that says so. Only a ring without requests in flight is continued there: taken chains may have
//! been answered out of their order, and the ring does not show which. After long chains it does
//! not even show that no request is in flight, as the last descriptor before the position is not
//! marked. Such a ring is given up, unless the front end names the same position or the device was
//! stopped.
//!
//! One gap remains: a killed device of another program leaves no word that is known here. After
//! long chains an old position may pass for it.

use std::sync::atomic::Ordering;

use super::{
    AVAIL, EVENT_DESC, EVENT_DISABLE, EVENT_ENABLE, FLAGS_SHIFT, PackedQueue, Position, USED,
};
use crate::chain::INDIRECT;

/// Words beside the wish for no kicks, where a position has no meaning: a lane is awake, or stopped
/// at a position whose own word would look unwritten. No ring has such positions, but for the
/// largest.
const AWAKE: u16 = 0x7fff;
const STOPPED_AT_ZERO: u16 = 0x7ffe;
/// The same for a lane that sleeps, beside the wish for all kicks.
const ASLEEP_AT_ZERO: u16 = 0x7ffd;

/// The last device's words in the event structure.
#[derive(Debug, Clone, Copy)]
enum Left {
    /// It stopped here.
    Stopped(Position),
    /// It slept, having taken everything before.
    Asleep(Position),
    /// It was awake.
    Awake,
    /// It was another program.
    Unknown,
}

/// The ring's verdict on a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// The device cannot be there.
    No,
    /// No entry speaks for it: chains of several descriptors, answered out of their order, could
    /// leave such a ring.
    Possible,
    Good,
}

/// The last writer of a descriptor, and its wrap counter.
enum Mark {
    /// The device, or no writer yet.
    Used(bool),
    /// The driver, which made it available.
    Given {
        wrap: bool,
        /// It is a whole chain: once it is used, the device has written over it.
        indirect: bool,
    },
}

impl PackedQueue {
    /// For a new queue: makes sure that its position is one at which the ring can stand, by taking
    /// another if it must. Returns true if it took another; none when no position is known to be
    /// right.
    pub(super) fn find_place(&mut self) -> Option<bool> {
        let (left, said) = (self.left(), self.fit(self.used));
        // The ring alone shows that the front end is right.
        let is_shown = said == Fit::Good && self.has_whole_chains_only();
        let place = match left {
            // A device that stopped in order knew best.
            Left::Stopped(place) if self.fit(place) != Fit::No => place,
            Left::Asleep(place)
                if place != self.used && self.fit(place) == Fit::Good && self.is_idle_at(place) =>
            {
                place
            }
            _ if is_shown => self.used,
            Left::Awake => return None,
            // The front end and the device do not agree.
            Left::Asleep(place) if place != self.used => return None,
            _ if said != Fit::No => self.used,
            _ => return None,
        };
        let other = place != self.used;
        if other {
            (self.avail, self.used) = (place, place);
        }
        Some(other)
    }

    /// True if no descriptor in the ring speaks against the device being at `place`, with
    /// everything before it used.
    pub(crate) fn can_be_at(&self, place: Position) -> bool {
        self.fit(place) != Fit::No
    }

    /// The word for the driver, and for the next device, while no kick is wanted.
    pub(super) const AWAKE_WORD: u32 = (AWAKE as u32) | (EVENT_DISABLE as u32) << 16;

    /// The word of a device that sleeps without event indices: all kicks. The driver ignores the
    /// position, but the next device reads it.
    pub(super) fn asleep_word(place: Position) -> u32 {
        let raw = match place.encode() {
            0 => ASLEEP_AT_ZERO,
            raw => raw,
        };
        u32::from(raw) | u32::from(EVENT_ENABLE) << 16
    }

    /// The device stops here, with no request in flight.
    pub(crate) fn leave_place(&mut self) {
        let event = match self.used.encode() {
            0 => u32::from(STOPPED_AT_ZERO) | u32::from(EVENT_DISABLE) << 16,
            place => u32::from(place) | u32::from(EVENT_ENABLE) << 16,
        };
        self.event(self.parts.device_event).store(event.to_le(), Ordering::Release);
    }

    fn left(&self) -> Left {
        let event = u32::from_le(self.event(self.parts.device_event).load(Ordering::Acquire));
        let (raw, wish) = ((event & 0xffff) as u16, (event >> 16) as u16 & 3);
        let place = Position::decode(raw, self.size);
        match wish {
            EVENT_DISABLE if raw == AWAKE => Left::Awake,
            EVENT_DISABLE if raw == STOPPED_AT_ZERO => {
                Left::Stopped(Position::decode(0, self.size))
            }
            EVENT_ENABLE if raw == ASLEEP_AT_ZERO && !self.event_idx => {
                Left::Asleep(Position::decode(0, self.size))
            }
            // The structure is unwritten, or another program's.
            EVENT_ENABLE if raw == 0 => Left::Unknown,
            _ if place.encode() != raw => Left::Unknown,
            // With event indices only a device that stops asks in this way.
            EVENT_ENABLE if self.event_idx => Left::Stopped(place),
            EVENT_ENABLE => Left::Asleep(place),
            EVENT_DESC if self.event_idx => Left::Asleep(place),
            _ => Left::Unknown,
        }
    }

    /// True if no request is in flight in a device that has taken everything before `place`.
    /// Requests in flight lie just before it, not marked used. (The later descriptors of a chain
    /// never are, so the answer may be no too often.)
    fn is_idle_at(&self, place: Position) -> bool {
        let before = place.index.checked_sub(1).unwrap_or(self.size - 1);
        matches!(self.mark(before), Mark::Used(_))
    }

    /// Judges if the device can be at `place`, with everything before it used.
    fn fit(&self, place: Position) -> Fit {
        let (mut any_used, mut any_odd, mut any_new) = (false, false, false);
        // From behind: the driver works in parallel, and makes chains available from the front.
        for index in (0..place.index).rev().chain((place.index..self.size).rev()) {
            // Of the descriptors that the driver has not made available since they were used.
            let old = if index < place.index { place.wrap } else { !place.wrap };
            match self.mark(index) {
                Mark::Used(wrap) if wrap != old => return Fit::No,
                Mark::Used(_) => {
                    any_used = true;
                    any_odd |= any_new;
                }
                Mark::Given { wrap, indirect } if wrap == old => any_odd |= indirect || any_new,
                // All before a whole chain are available, too.
                Mark::Given { indirect, .. } => any_new |= indirect,
            }
        }
        match self.mark(place.index) {
            _ if any_used && !any_odd => Fit::Good,
            _ if any_used => Fit::Possible,
            // The last chain that was used has its mark, unless all of the ring was made available
            // since.
            Mark::Given { wrap, .. } if wrap == place.wrap => Fit::Possible,
            _ => Fit::No,
        }
    }

    /// True if no chain of several descriptors has left entries in the ring: each descriptor then
    /// shows its last use.
    fn has_whole_chains_only(&self) -> bool {
        (0..self.size).all(|index| !matches!(self.mark(index), Mark::Given { indirect: false, .. }))
    }

    fn mark(&self, index: u16) -> Mark {
        let flags =
            (u64::from_le(self.second_at(index).load(Ordering::Acquire)) >> FLAGS_SHIFT) as u16;
        let (avail, used) = (flags & AVAIL != 0, flags & USED != 0);
        match avail == used {
            true => Mark::Used(used),
            false => Mark::Given { wrap: avail, indirect: flags & INDIRECT != 0 },
        }
    }
}
