//! The rest of a foreground's fsync: requests of the guest's kernel that the foreground waits for.
//!
//! An fsync of ext4 is five requests, one after the other. The first has the program's priority:
//! the file's data. The file system's journal thread makes the others: journal blocks, a flush, the
//! commit block, and another flush. The journal thread has best effort 3, and a flush has no
//! priority. Behind the background's requests they would give back the gain of the first one.
//!
//! Linux has the same fault inside one kernel. Sources: Kim, Kim, Lee, Jeong, "Enlightening the I/O
//! Path: A Holistic Approach for Application Performance" (FAST 2017). Yang et al., "Split-Level
//! I/O Scheduling" (SOSP 2015).
//!
//! A request does not name the program that waits for it. So **time** decides: for [`INHERITS`]
//! after an express request, flushes and the journal's writes are [`Class::Promoted`]. The priority
//! tells ext4's journal thread, wherever it writes: with `data=ordered` it writes files' data, too.
//! XFS has no such thread, so the place tells its log's writes.
//!
//! A promoted request never prolongs that time. [`super::Turns`] bounds the turns of promoted
//! requests while lower classes wait. [`super::Window`] bounds their number at the device.

use super::Class;
use super::window::Nanos;

/// How long after an express request others inherit: longer than an fsync whose requests go first,
/// shorter than a pause.
pub const INHERITS: Nanos = 100_000_000;

/// The class of a request of that class, when an express request was last seen at `express`; zero:
/// never. `is_awaited` is true if an fsync may wait for it.
#[inline]
pub fn inherits(
    class: Class,
    is_awaited: impl FnOnce() -> bool,
    express: Nanos,
    now: Nanos,
) -> Class {
    let is_recent = express != 0 && now.saturating_sub(express) < INHERITS;
    if class > Class::Promoted && is_recent && is_awaited() { Class::Promoted } else { class }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::express::{Classes, Ioprio};

    const MS: Nanos = 1_000_000;

    #[test]
    fn awaited_requests_inherit_for_some_time() {
        let of = |class, is_awaited, now| inherits(class, || is_awaited, MS, now);
        assert_eq!(of(Class::Normal, true, 2 * MS), Class::Promoted);
        assert_eq!(of(Class::Background, true, 100 * MS), Class::Promoted);
        assert_eq!(of(Class::Normal, false, 2 * MS), Class::Normal);
        assert_eq!(of(Class::Normal, true, 101 * MS), Class::Normal);
        assert_eq!(of(Class::Express, true, 2 * MS), Class::Express);
        assert_eq!(inherits(Class::Normal, || true, 0, 2 * MS), Class::Normal);
    }

    proptest! {
        /// A storm of journal writes and flushes is promoted for a bounded time after each express
        /// request, however long it is.
        #[test]
        fn storm_profits_for_bounded_time(
            steps in prop::collection::vec((0u64..30 * MS, 0u8..40), 1..400)
        ) {
            let (mut now, mut express) = (1, 0);
            for (pause, kind) in steps {
                now += pause;
                let ioprio = if kind == 0 { Ioprio(2 << 13) } else { Ioprio::JOURNAL };
                let class = inherits(Classes::default().of(ioprio), || true, express, now);
                // As in a lane: only requests that are express by their own priority count.
                if class == Class::Express {
                    express = now;
                }
                let is_late = express == 0 || now - express >= INHERITS;
                prop_assert!(!(is_late && class == Class::Promoted));
            }
        }
    }
}
