//! Writes that a volume answered and then lost.

use std::fmt;
use std::io;

/// The writeback during which a loss showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Writeback {
    /// A guest's flush.
    Flush = 1,
    /// A write that was to be durable when it was answered.
    Write = 2,
    /// The sync at the end, or on request.
    Sync = 3,
}

/// Writes that were answered cannot be made durable any more. The affected writes are unknown: the
/// system reports that a writeback failed, and forgets its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LostWrite {
    /// The first failure's error number.
    pub errno: i32,
    /// The writeback that met the failure.
    pub during: Writeback,
    /// Failures of the storage to write back that were seen, the first one included.
    pub failures: u64,
}

impl LostWrite {
    /// Returns the system's error.
    pub fn error(&self) -> io::Error {
        io::Error::from_raw_os_error(self.errno)
    }
}

impl Writeback {
    /// As a word: `flush`, `write`, `sync`.
    pub fn name(self) -> &'static str {
        match self {
            Writeback::Flush => "flush",
            Writeback::Write => "write",
            Writeback::Sync => "sync",
        }
    }
}

impl fmt::Display for LostWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.during {
            Writeback::Flush => "the flush of a guest",
            Writeback::Write => "a durable write",
            Writeback::Sync => "the last sync",
        };
        write!(f, "{what} failed: {}", self.error())
    }
}
