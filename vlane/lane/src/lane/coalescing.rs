//! Interrupts of reads that are not the foreground's. An interrupt takes CPU time from the guest.
//! While requests wait for room at the device, an earlier answer brings none of them forward. So
//! such answers wait for others, or for one of the foreground. See `docs/src/express.md`.

use vlane_engine::Class;
use vlane_io::Instant;
use vlane_policy::express::window::Nanos;
use vlane_ring::{RequestKind, Slot};

use super::Lane;

/// An answer waits for others for this part of its request's time at most.
const TIME_PART: u64 = 8;
/// ... and no longer than this.
const MOST: Nanos = 10_000_000;
/// ... only while so many requests wait: with fewer, an answer would often be alone. The
/// simulator's rings are small.
const FROM: usize = if cfg!(vlane_simulated) { 1 } else { 16 };
/// ... and only while no more of the ring than this part is in use.
const RING_PART: usize = if cfg!(vlane_simulated) { 1 } else { 2 };

impl Lane {
    /// The answer to a request that leaves the device `now` waits for others. A write's does not:
    /// an fsync of the foreground may wait for it.
    pub(super) fn coalesces(&mut self, slot: Slot, class: Class, now: Nanos) -> bool {
        // The foreground's requests may wait in the guest for places in the ring.
        let used = RING_PART * (self.queue.in_flight() + self.coalesced);
        if self.queue.request(slot).kind() != RequestKind::In
            || class.is_foreground()
            || self.draining.is_some()
            || used > self.queue.config().size.into()
            || self.waits_few(self.coalesced + 1)
            || !self.orders()
        {
            return false;
        }
        let Some(classes) = &mut self.classes else { return false };
        let taken = classes.taken_at[usize::from(slot.0)];
        let until = now + (now.saturating_sub(taken) / TIME_PART).min(MOST);
        if self.coalesced == 0 || until < classes.coalesced_until {
            classes.coalesced_until = until;
        }
        taken != 0
    }

    /// The device could lack requests soon, if the guest made none for so many answers.
    pub(super) fn waits_few(&self, answers: usize) -> bool {
        self.ahead.requests < FROM.max(2 * answers)
    }

    /// When answers that wait for others are shown.
    pub(super) fn coalescing_ends(&self) -> Option<Instant> {
        let classes = self.classes.as_ref().filter(|_| self.coalesced > 0)?;
        Some(classes.board.instant(classes.coalesced_until))
    }

    /// All answers are shown.
    pub(crate) fn show_coalesced(&mut self) {
        self.unshown += self.coalesced;
        self.show();
    }
}
