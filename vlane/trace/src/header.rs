//! The beginning of a trace.

use crate::error::{Error, ErrorKind};

/// Bytes of an entry without a hash.
pub const RECORD: usize = 48;
/// Bytes of an entry with one.
pub const RECORD_WITH_HASH: usize = 56;

/// The first eight bytes.
pub const MAGIC: [u8; 8] = *b"VLANETRC";
/// The format's version. It rises when a reader of the older one would misunderstand the newer.
pub const VERSION: u16 = 2;
/// The oldest version that is read. Version 1 has no heads and no layout.
pub const OLDEST: u16 = 1;
/// Bytes before the name.
pub(crate) const FIXED: usize = 48;
/// The most bytes that a header may have, name included.
pub const MAX_HEADER: usize = 4096;

/// Bit of the flags: entries end with a hash of the data.
const HASHES: u16 = 1;

/// The description of a trace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Header {
    /// When recording began: nanoseconds since the Unix epoch, UTC. Times in records count from
    /// here.
    pub started: u64,
    /// Size of the volume in sectors of 512 bytes; 0 if not known.
    pub sectors: u64,
    /// Logical block size in bytes; 0 if not known.
    pub block_size: u32,
    /// Queues that the volume offered; lanes are numbered below it. 0 if not known.
    pub lanes: u16,
    /// Records have hashes of their data.
    pub hashes: bool,
    /// The volume's name, for people; may be empty.
    pub name: String,
}

impl Header {
    /// Bytes of one entry.
    pub fn entry_len(&self) -> usize {
        if self.hashes { RECORD_WITH_HASH } else { RECORD }
    }

    /// The header's bytes. A name that is too long is cut.
    pub fn encode(&self) -> Vec<u8> {
        let mut end = self.name.len().min(MAX_HEADER - FIXED - 8);
        while !self.name.is_char_boundary(end) {
            end -= 1;
        }
        // Entries begin at a multiple of eight.
        let len = (FIXED + end).next_multiple_of(8);
        let short = |n: usize| u16::try_from(n).unwrap_or(u16::MAX).to_le_bytes();
        let mut bytes = Vec::with_capacity(len);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(short(len));
        bytes.extend(short(self.entry_len()));
        bytes.extend(if self.hashes { HASHES } else { 0 }.to_le_bytes());
        bytes.extend(self.started.to_le_bytes());
        bytes.extend(self.sectors.to_le_bytes());
        bytes.extend(self.block_size.to_le_bytes());
        bytes.extend(self.lanes.to_le_bytes());
        bytes.extend(short(end));
        bytes.resize(FIXED, 0);
        bytes.extend(&self.name.as_bytes()[..end]);
        bytes.resize(len, 0);
        bytes
    }

    /// Makes sense of the fixed part; returns the header without its name, the bytes of the whole
    /// header, and those of the name.
    pub(crate) fn decode(bytes: &[u8; FIXED]) -> Result<(Header, usize, usize), Error> {
        if bytes[..8] != MAGIC {
            return Err(Error::new(
                ErrorKind::NotATrace,
                0,
                "not a vlane trace: it does not begin with VLANETRC",
            ));
        }
        let version = short(bytes, 8);
        if !(OLDEST..=VERSION).contains(&version) {
            let context = format!(
                "the trace has version {version} of the format, this program reads {OLDEST} to \
                 {VERSION}; use the vlane that recorded it, or a newer one"
            );
            return Err(Error::new(ErrorKind::Version, 8, context));
        }
        let corrupt = |at: u64, what: String| {
            Err(Error::new(ErrorKind::Corrupt, at, format!("the header is damaged: {what}")))
        };
        let size = |at: usize| usize::from(short(bytes, at));
        let (len, entry, flags, name) = (size(10), size(12), short(bytes, 14), size(38));
        if !(FIXED..=MAX_HEADER).contains(&len) || FIXED + name > len {
            return corrupt(
                10,
                format!("a length of {len} bytes with a name of {name} is impossible"),
            );
        }
        if flags & !HASHES != 0 {
            return corrupt(14, format!("unknown flags {flags:#x}"));
        }
        let header = Header {
            started: long(bytes, 16),
            sectors: long(bytes, 24),
            block_size: int(bytes, 32),
            lanes: short(bytes, 36),
            hashes: flags & HASHES != 0,
            name: String::new(),
        };
        if entry != header.entry_len() {
            return corrupt(
                12,
                format!("entries of {entry} bytes, where {} are meant", header.entry_len()),
            );
        }
        Ok((header, len, name))
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

pub(crate) fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(field(bytes, at))
}

pub(crate) fn int(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(field(bytes, at))
}

pub(crate) fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(field(bytes, at))
}
