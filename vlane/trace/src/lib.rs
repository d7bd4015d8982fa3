//! The format of recorded requests.
//!
//! A trace is a [`Header`] and then entries of one size, little-endian. There is one [`Record`] per
//! request (one per range of a request with several). There are remarks, too: recording of a lane
//! began ([`Entry::Start`]), records are missing ([`Entry::Lost`]), a written block is a journal's
//! ([`Entry::Head`]), the volume's layout names a journal ([`Entry::Layout`]), the trace is
//! complete ([`Entry::End`]). `docs/src/trace-format.md` has the byte offsets.
//!
//! Entries of one lane stand in the order in which its requests were completed. [`Record::seq`]
//! gives the order in which they were begun, and [`Record::after`] how many of the lane had been
//! completed by then. With both, the waits within a lane are known exactly, at any precision of the
//! clock.
//!
//! [`Writer`] and [`Reader`] stream: neither needs to seek, nor the whole in memory. A damaged or
//! cut-off trace gives every entry before the damage and then an [`Error`] that says where it is.

#![forbid(unsafe_code)]

mod error;
mod header;
mod reader;
mod record;
pub mod storage;
mod writer;

pub use error::{Error, ErrorKind};
pub use header::{Header, MAGIC, MAX_HEADER, OLDEST, RECORD, RECORD_WITH_HASH, VERSION};
pub use reader::Reader;
pub(crate) use reader::fill;
pub use record::{
    BlockHead, Entry, LayoutPiece, Magic, Priority, PriorityClass, Record, RequestKind, Status,
};
pub use writer::Writer;

/// Bytes of a sector; lengths and positions count in these.
pub const SECTOR: u64 = 512;
