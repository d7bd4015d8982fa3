//! Counts of a channel's events, besides the requests that the lane counts.

use std::io;

/// Why the storage failed a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoErrorKind {
    /// The device failed (EIO and all that is not below).
    Device,
    /// No space is left (ENOSPC, EDQUOT).
    NoSpace,
    /// Transferred less than asked for, and no more could be transferred: the file was truncated.
    Short,
}

/// Counters of one channel since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChannelStats {
    /// Requests failed because the device failed.
    pub device_errors: u64,
    /// Requests failed because no space was left.
    pub no_space_errors: u64,
    /// Requests failed because the file was shorter than its volume.
    pub short_errors: u64,
    /// Requests failed because writes had been lost before ([`crate::Engine::lost_write`]).
    pub lost_errors: u64,
    /// Operations begun again: interrupted, would have blocked, or transferred in part.
    pub retries: u64,
    /// Requests that went through a bounce buffer, for their alignment.
    pub bounced: u64,
    /// Requests answered without asynchronous I/O.
    pub inline: u64,
    /// `fdatasync`s that were begun.
    pub fdatasyncs: u64,
    /// Flushes, and ends of durable writes, that needed none: all that was answered was durable.
    pub flushes_skipped: u64,
    /// ... that another request's `fdatasync` served.
    pub flushes_shared: u64,
    /// Requests that went to the submission queue of another thread, which was shorter.
    pub handed_over: u64,
}

impl ChannelStats {
    /// Requests that failed because of the storage, for any reason.
    pub fn errors(&self) -> u64 {
        self.device_errors + self.no_space_errors + self.short_errors + self.lost_errors
    }

    pub(crate) fn count_error(&mut self, kind: IoErrorKind) {
        match kind {
            IoErrorKind::Device => self.device_errors += 1,
            IoErrorKind::NoSpace => self.no_space_errors += 1,
            IoErrorKind::Short => self.short_errors += 1,
        }
    }

    /// Adds another channel's counters.
    pub fn add(&mut self, other: &ChannelStats) {
        self.device_errors += other.device_errors;
        self.no_space_errors += other.no_space_errors;
        self.short_errors += other.short_errors;
        self.lost_errors += other.lost_errors;
        self.retries += other.retries;
        self.bounced += other.bounced;
        self.inline += other.inline;
        self.fdatasyncs += other.fdatasyncs;
        self.flushes_skipped += other.flushes_skipped;
        self.flushes_shared += other.flushes_shared;
        self.handed_over += other.handed_over;
    }
}

impl IoErrorKind {
    pub(crate) fn of(error: &io::Error) -> IoErrorKind {
        match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => IoErrorKind::NoSpace,
            _ => IoErrorKind::Device,
        }
    }
}
