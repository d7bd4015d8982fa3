//! One taker's part of a bucket that several share.

use std::cell::Cell;

use super::bucket::Bucket;

/// A level that the sharers of a bucket change: one number, in ticks.
pub trait Level {
    /// Changes it in one step, which may be retried several times; returns the earlier value.
    fn change(&self, change: impl Fn(u64) -> u64) -> u64;
}

impl Level for Cell<u64> {
    fn change(&self, change: impl Fn(u64) -> u64) -> u64 {
        let before = self.get();
        self.set(change(before));
        before
    }
}

/// The ticks taken from a level and not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    /// May be used.
    held: u64,
    /// May be used from `due` on; 0: none.
    coming: u64,
    due: u64,
}

impl Share {
    /// Sees to it that something that costs so much can be paid: takes a piece if there is too
    /// little. Otherwise returns the time to ask again; until then the caller can only wait, and
    /// blocks no other.
    #[inline]
    pub fn have(
        &mut self,
        bucket: &Bucket,
        level: &impl Level,
        now: u64,
        cost: u64,
    ) -> Result<(), u64> {
        if self.held >= cost {
            return Ok(());
        }
        if self.coming > 0 {
            if now < self.due {
                return Err(self.due);
            }
            self.held += std::mem::take(&mut self.coming);
        }
        if self.held >= cost {
            return Ok(());
        }
        let piece = (cost - self.held).max(bucket.piece());
        let before = level.change(|level| bucket.ask(level, now, piece).level);
        let due = bucket.ask(before, now, piece).due;
        if due <= now {
            self.held += piece;
            return Ok(());
        }
        (self.coming, self.due) = (piece, due);
        Err(due)
    }

    /// Pays for something that can be paid.
    #[inline]
    pub fn pay(&mut self, cost: u64) {
        self.held = self.held.saturating_sub(cost);
    }

    /// Pays at once, before it is due: later takers wait for it.
    pub fn pay_anyway(&mut self, bucket: &Bucket, level: &impl Level, now: u64, cost: u64) {
        let rest = cost.saturating_sub(self.held);
        self.pay(cost);
        if rest > 0 {
            level.change(|level| bucket.ask(level, now, rest).level);
        }
    }

    /// Gives back the unused rest.
    #[inline]
    pub fn give_back(&mut self, level: &impl Level) {
        let rest = self.held + self.coming;
        if rest > 0 {
            refund(level, rest);
            *self = Share::default();
        }
    }

    /// Returns the ticks that it has, due or not.
    pub fn rest(&self) -> u64 {
        self.held + self.coming
    }
}

/// Gives back the payment for a request that is not done after all.
pub fn refund(level: &impl Level, cost: u64) {
    level.change(|level| level.saturating_sub(cost));
}
