//! A volume's budget of the host's page cache: which chunks of the image leave it.
//!
//! Linux keeps data that a guest writes once (a backup, a log, a copy) like other data of that age.
//! It drops a neighbour's pages for them. A budget bounds that share. A chunk may leave if the
//! guest has [written and not read](Seen::is_once_written) it. Data that the guest reads again
//! stay. Data that it never wrote stay, too: a base, for example, that volumes share.
//!
//! A [`Guard`] watches the choice. A chunk that is read after it left was chosen wrongly. No chunk
//! leaves for a while after too many wrong choices.

use std::time::Duration;

/// Bytes of a chunk: the largest folio of the page cache, which leaves as a whole.
pub const CHUNK: u64 = 2 << 20;
/// Bytes that are counted as one.
const BLOCK: u64 = 4096;
/// Written blocks that make a chunk a candidate: half of it.
const MANY: u16 = 256;
/// Written blocks that replace a chunk.
const ALL: u16 = 512;

const WRITTEN: u16 = 0x3fff;
const READ: u16 = 1 << 14;
const LEFT: u16 = 1 << 15;

/// A guest's use of a chunk since the chunk left the cache the last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen(u16);

impl Seen {
    /// The same of a number that [`Seen::bits`] made.
    pub fn of_bits(bits: u16) -> Self {
        Self(bits)
    }

    /// As a number, for one word of shared memory.
    pub fn bits(self) -> u16 {
        self.0
    }

    /// The guest writes so many bytes of it. A chunk that was read counts as read until all of it
    /// was written again.
    #[must_use]
    pub fn wrote(self, bytes: u64) -> Self {
        let blocks = u16::try_from(bytes.div_ceil(BLOCK)).unwrap_or(WRITTEN);
        let blocks = (self.0 & WRITTEN).saturating_add(blocks).min(WRITTEN);
        let read = if blocks >= ALL { 0 } else { self.0 & READ };
        Self(blocks | read)
    }

    /// The guest reads of it.
    #[must_use]
    pub fn read(self) -> Self {
        Self(READ)
    }

    /// It leaves the cache.
    #[must_use]
    pub fn left(self) -> Self {
        Self(LEFT)
    }

    /// True if it has left, and was not touched since.
    pub fn has_left(self) -> bool {
        self.0 & LEFT != 0
    }

    /// True if it may leave: much of it was written, and none of it read since.
    pub fn is_once_written(self) -> bool {
        self.0 & READ == 0 && self.0 & WRITTEN >= MANY
    }

    /// Bytes written since it was read or left, as far as they are counted.
    pub fn written(self) -> u64 {
        u64::from(self.0 & WRITTEN).min(CHUNK / BLOCK) * BLOCK
    }
}

/// One chunk in so many that left may be read again.
const WRONG: u64 = 8;
/// Chunks that leave before the guard judges.
const ENOUGH: u64 = 16;
/// Chunks that left, of which half are forgotten.
const MANY_LEFT: u64 = 256;
/// The first pause, which doubles up to [`LONGEST`].
const PAUSE: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_secs(480);

/// Stops a choice of chunks that proves wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    left: u64,
    wrong: u64,
    pause: Duration,
    until: Duration,
}

impl Default for Guard {
    fn default() -> Self {
        Self { left: 0, wrong: 0, pause: PAUSE, until: Duration::ZERO }
    }
}

impl Guard {
    /// True if chunks may leave at this time.
    pub fn allows(&self, now: Duration) -> bool {
        now >= self.until
    }

    /// So many chunks left since the last call, and so many that had left were read.
    pub fn count(&mut self, now: Duration, left: u64, wrong: u64) {
        self.left += left;
        self.wrong += wrong;
        let is_wrong = |wrong: u64, left: u64| wrong * WRONG > left.max(ENOUGH);
        if is_wrong(self.wrong, self.left) {
            // Reads of chunks that left before are no news while it pauses.
            if self.allows(now) {
                self.until = now + self.pause;
                self.pause = (self.pause * 2).min(LONGEST);
            }
            (self.left, self.wrong) = (0, 0);
        } else if self.left >= MANY_LEFT {
            if !is_wrong(self.wrong * 4, self.left) {
                self.pause = PAUSE;
            }
            self.left /= 2;
            self.wrong /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_unread_writes_make_a_chunk_leave() {
        let half = Seen::default().wrote(CHUNK / 2);
        assert!(half.is_once_written());
        assert!(!Seen::default().is_once_written());
        assert!(!Seen::default().wrote(CHUNK / 2 - BLOCK).is_once_written());
        assert!(!half.read().is_once_written());
        assert!(!half.read().wrote(CHUNK - BLOCK).is_once_written(), "a part is as it was read");
        assert!(half.read().wrote(CHUNK).is_once_written(), "all of it is new");
        assert!(!half.left().is_once_written());
        assert!(half.left().has_left() && !half.left().read().has_left());
        assert!(!half.left().wrote(1).has_left());
    }

    proptest! {
        #[test]
        fn chunk_word_survives_any_history(
            steps in prop::collection::vec((0..3u8, 0..u64::MAX), 0..40),
        ) {
            let (mut seen, mut unread, mut is_read) = (Seen::default(), 0_u64, false);
            for (kind, bytes) in steps {
                seen = Seen::of_bits(seen.bits());
                match kind {
                    0 => {
                        seen = seen.wrote(bytes);
                        unread = unread.saturating_add(bytes.div_ceil(BLOCK));
                        is_read &= unread < u64::from(ALL);
                    }
                    1 => (seen, unread, is_read) = (seen.read(), 0, true),
                    _ => (seen, unread, is_read) = (seen.left(), 0, false),
                }
                prop_assert_eq!(seen.is_once_written(), !is_read && unread >= u64::from(MANY));
                prop_assert_eq!(seen.written(), unread.min(u64::from(ALL)) * BLOCK);
            }
        }

        /// A guest that reads a part of the chunks that left. `cost` counts those that left.
        #[test]
        fn wrong_choices_end_soon(
            each in 1..64_u64,
            wrong_of_8 in 2..=8_u64,
            seconds in 60..4000_u64,
        ) {
            let (mut guard, mut cost, mut rounds) = (Guard::default(), 0, 0);
            for second in 0..seconds {
                let now = Duration::from_secs(second);
                if guard.allows(now) {
                    rounds += 1;
                    cost += each;
                    guard.count(now, each, (each * wrong_of_8).div_ceil(8));
                }
            }
            // Pauses of 30, 60, 120, 240, 480, 480 ... seconds.
            let pauses = 5 + seconds / LONGEST.as_secs();
            prop_assert!(cost <= (pauses + 1) * (ENOUGH + each), "{} in {} rounds", cost, rounds);
        }

        #[test]
        fn right_choices_are_never_stopped(each in 1..64_u64, seconds in 1..4000_u64) {
            let mut guard = Guard::default();
            for second in 0..seconds {
                let now = Duration::from_secs(second);
                prop_assert!(guard.allows(now));
                guard.count(now, each, each / 16);
            }
        }
    }
}
