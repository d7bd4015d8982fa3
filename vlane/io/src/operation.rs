//! A channel's operations on the storage.
//!
//! A channel names an operation; it never meets an io_uring, a descriptor or a pointer. Which
//! memory is meant is said in words ([`Memory`]), so an operation cannot lead anywhere else, and
//! any thread with a [`crate::Uring`] can submit it.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use vlane_policy::express::Class;

use crate::Piece;

/// One step of a request towards the storage.
#[derive(Debug)]
pub struct Operation {
    /// Which of the request's operations it is, if it has several under way; its completion says
    /// it.
    pub number: u8,
    /// The action.
    pub kind: OperationKind,
    /// With which of the channel's files.
    pub file: u8,
    /// Where in the file, bytes.
    pub offset: u64,
    /// How many bytes. A read or write may move fewer.
    pub len: u64,
    /// A write is on stable storage when it completes (`RWF_DSYNC`).
    pub durable: bool,
    /// It may wait: the system refused it for the moment, so a worker does it.
    pub patient: bool,
}

/// The action of an operation.
#[derive(Debug)]
pub enum OperationKind {
    /// From the file into memory.
    Read(Memory),
    /// From memory into the file.
    Write(Memory),
    /// Deallocates the extent, which reads as zeroes then (`fallocate`).
    Punch,
    /// Zeroes the extent and keeps it allocated (`fallocate`).
    Zero,
    /// Marks the extent as unused (`BLOCK_URING_CMD_DISCARD`, Linux 6.12).
    Discard,
}

/// The memory of a read or write.
#[derive(Debug)]
pub enum Memory {
    /// The request's own buffers, from this byte of its data on. The operation moves as much as one
    /// call takes: up to 1024 buffers.
    Request(u64),
    /// A buffer of the channel's, from this byte on. It comes back with the completion.
    Piece(Piece, usize),
    /// Zeroes; only to be written, at most [`ZEROES`] bytes at a time.
    Zeroes,
}

/// Bytes of zeroes that one operation writes at most.
pub const ZEROES: u64 = 1 << 20;

/// The result of an operation.
#[derive(Debug)]
pub struct Completion {
    /// [`Operation::number`].
    pub number: u8,
    /// As the system gave it: a count, or a negative error number.
    pub result: i32,
    /// The buffer of a [`Memory::Piece`].
    pub piece: Option<Piece>,
}

/// A file that operations go to. Clones are the same file.
#[derive(Debug, Clone)]
pub struct StorageFile {
    key: FileKey,
    file: Arc<File>,
}

impl StorageFile {
    /// A file for operations.
    pub fn new(file: File) -> StorageFile {
        StorageFile { key: FileKey::new(), file: Arc::new(file) }
    }

    /// The file itself.
    #[inline]
    pub fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn key(&self) -> FileKey {
        self.key
    }
}

/// Tells one open file from another, for the lifetime of the process: a descriptor's number may
/// come to mean another file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileKey(u64);

impl FileKey {
    fn new() -> FileKey {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        FileKey(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// The decisions made for a request when it was taken. It holds until the request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
// Copied as one word.
#[repr(align(4))]
pub struct Decisions {
    /// Which requests of the lane go first.
    pub class: Class,
    /// Which way its data goes.
    pub placement: Placement,
    /// A write is answered only when it is on stable storage.
    pub durable: bool,
}

/// Which way a request's data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Placement {
    /// Through the host's page cache.
    #[default]
    Cached,
    /// Around it: direct I/O. All requests to a block must use the same one: both ways in parallel
    /// lose data.
    Direct,
}
