//! A lane's counts. Written by its thread alone, a batch at a time; any thread may read. A lane
//! continues the counts of the one before it on the same queue, so counters never go back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use vlane_engine::ChannelStats;

use crate::alarm::Alarm;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// One lane's counters, on separate cache lines.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            /// Raised when failures were counted.
            alarm: Option<Arc<Alarm>>,
        }

        /// The counters at one moment; sums of several lanes are made with [`Snapshot::add`].
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Snapshot {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// The present counts.
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.load(Ordering::Relaxed),)* }
            }

            /// Publishes what the lane counted by itself.
            fn store(&self, local: &Snapshot) {
                $(self.$name.store(local.$name, Ordering::Relaxed);)*
            }
        }

        impl Snapshot {
            /// Adds another lane's counters.
            pub fn add(&mut self, other: &Snapshot) {
                $(self.$name += other.$name;)*
            }

            /// The counts since an earlier snapshot of the same lane.
            pub fn since(&self, before: &Snapshot) -> Snapshot {
                Snapshot { $($name: self.$name.saturating_sub(before.$name),)* }
            }

            /// Every counter with its name and what it counts.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

counters! {
    /// IN requests.
    reads,
    /// Bytes of IN requests.
    read_bytes,
    /// OUT requests.
    writes,
    /// Bytes of OUT requests.
    written_bytes,
    /// FLUSH requests.
    flushes,
    /// DISCARD, WRITE_ZEROES and GET_ID requests.
    others,
    /// Requests answered with an error because of their form, their range, or because the volume is
    /// read-only.
    refused,
    /// Requests answered with an error because the storage failed.
    failed,
    /// ... of these, because no space was left.
    no_space,
    /// ... because the image was shorter than the volume.
    short,
    /// ... because writes had been lost before.
    lost,
    /// Storage operations that were begun again.
    retries,
    /// Requests that went through a bounce buffer.
    bounced,
    /// Requests answered without asynchronous I/O.
    inline,
    /// `fdatasync`s that were begun.
    fdatasyncs,
    /// Flushes, and ends of durable writes, that needed none: all that was answered was durable.
    flushes_skipped,
    /// ... that another request's `fdatasync` served.
    flushes_shared,
    /// Requests that went to the submission queue of another thread, which was shorter.
    handed_over,
    /// Times that the guest was signalled.
    signals,
    /// Times that the guest's kick woke the lane.
    kicks,
}

impl Counters {
    /// Counters that raise an alarm when failures are counted.
    pub fn with_alarm(alarm: Arc<Alarm>) -> Counters {
        Counters { alarm: Some(alarm), ..Counters::default() }
    }

    /// Publishes what the lane counted by itself, and raises the alarm if there are failures among
    /// it.
    pub(crate) fn publish(&self, local: &Snapshot) {
        let has_failed = self.failed.load(Ordering::Relaxed) != local.failed;
        self.store(local);
        if has_failed {
            self.tell();
        }
    }

    /// After the counters are stored: a woken reader sees them.
    #[cold]
    fn tell(&self) {
        if let Some(alarm) = &self.alarm {
            alarm.raise();
        }
    }
}

impl Snapshot {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.reads + self.writes + self.flushes + self.others + self.refused
    }

    /// Takes over what a channel counted since it was made, on top of what was counted `before`.
    pub(crate) fn take_channel(&mut self, stats: &ChannelStats, before: &Snapshot) {
        self.failed = before.failed + stats.errors();
        self.no_space = before.no_space + stats.no_space_errors;
        self.short = before.short + stats.short_errors;
        self.lost = before.lost + stats.lost_errors;
        self.retries = before.retries + stats.retries;
        self.bounced = before.bounced + stats.bounced;
        self.inline = before.inline + stats.inline;
        self.fdatasyncs = before.fdatasyncs + stats.fdatasyncs;
        self.flushes_skipped = before.flushes_skipped + stats.flushes_skipped;
        self.flushes_shared = before.flushes_shared + stats.flushes_shared;
        self.handed_over = before.handed_over + stats.handed_over;
    }
}
