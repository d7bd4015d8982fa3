//! The entries of a trace.

use crate::error::{Error, ErrorKind};
use crate::header::{Header, RECORD_WITH_HASH, int, long, short};

const LAYOUT: u8 = 0xfb;
const HEAD: u8 = 0xfc;
const START: u8 = 0xfd;
const LOST: u8 = 0xfe;
const END: u8 = 0xff;
/// Where the checksum stands.
const CHECK_AT: usize = 46;

/// Bits of an entry's flags.
const MORE: u8 = 1;
const UNMAP: u8 = 2;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum RequestKind {
    /// Read sectors.
    Read = 0,
    /// Write sectors.
    Write = 1,
    /// Make answered writes durable.
    Flush = 2,
    /// Read the serial number.
    GetId = 3,
    /// The sectors are not needed any more.
    Discard = 4,
    /// The sectors shall read as zeroes.
    WriteZeroes = 5,
    /// Of no known kind, or malformed; it was refused.
    Refused = 6,
}

impl RequestKind {
    /// All of them, in the order of their numbers.
    pub const ALL: [RequestKind; 7] = [
        RequestKind::Read,
        RequestKind::Write,
        RequestKind::Flush,
        RequestKind::GetId,
        RequestKind::Discard,
        RequestKind::WriteZeroes,
        RequestKind::Refused,
    ];

    /// Its name: `read`, `write`, `flush`, `get-id`, `discard`, `write-zeroes`, `refused`.
    pub fn name(self) -> &'static str {
        match self {
            RequestKind::Read => "read",
            RequestKind::Write => "write",
            RequestKind::Flush => "flush",
            RequestKind::GetId => "get-id",
            RequestKind::Discard => "discard",
            RequestKind::WriteZeroes => "write-zeroes",
            RequestKind::Refused => "refused",
        }
    }

    /// True if it changes the volume's content.
    pub fn changes_data(self) -> bool {
        matches!(self, RequestKind::Write | RequestKind::Discard | RequestKind::WriteZeroes)
    }
}

/// How a request ended (virtio 1.2, 5.2.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Status {
    /// Done.
    #[default]
    Ok = 0,
    /// Failed.
    IoErr = 1,
    /// Not a request that the volume knows.
    Unsupported = 2,
}

/// The class of an I/O priority (Linux: `IOPRIO_CLASS_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PriorityClass {
    /// None was given.
    None,
    /// Real time.
    RealTime,
    /// Best effort.
    BestEffort,
    /// Only when no other request wants the device.
    Idle,
}

/// An I/O priority: class in bits 13 to 15, level in bits 0 to 12, 0 the highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Priority(pub u32);

impl Priority {
    /// The class; unknown ones count as none.
    pub fn class(self) -> PriorityClass {
        match (self.0 >> 13) & 7 {
            1 => PriorityClass::RealTime,
            2 => PriorityClass::BestEffort,
            3 => PriorityClass::Idle,
            _ => PriorityClass::None,
        }
    }

    /// The level within the class.
    pub fn level(self) -> u32 {
        self.0 & 0x1fff
    }
}

/// One request, or one range of a discard or write-zeroes with several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The kind of the request.
    pub kind: RequestKind,
    /// How it ended.
    pub status: Status,
    /// The queue.
    pub lane: u16,
    /// The I/O priority of its header.
    pub priority: Priority,
    /// When the lane took it, in ns since [`Header::started`].
    pub submit: u64,
    /// How long it took from there until it was answered, in ns.
    pub service: u64,
    /// First sector; 0 where it has no meaning.
    pub sector: u64,
    /// Sectors; 0 where there are none.
    pub sectors: u32,
    /// Its number in the order in which the lane took requests, from 0 at the lane's
    /// [`Entry::Start`]; modulo 2^32.
    pub seq: u32,
    /// How many requests of the lane, since its [`Entry::Start`], had been completed and shown to
    /// the guest when it was taken: the first that many in the lane's order of completion; modulo
    /// 2^32.
    pub after: u32,
    /// More ranges of the same request follow, in records with the same `seq`; they count as one
    /// request.
    pub more: bool,
    /// Write-zeroes: the sectors may be deallocated.
    pub unmap: bool,
    /// XXH3 (64 bits, seed 0) of the data, if the trace has hashes: of a write's before it was
    /// begun, of a read's after it was done. 0 without data.
    pub hash: u64,
}

impl Record {
    /// When it was answered, in ns since [`Header::started`].
    pub fn completed(&self) -> u64 {
        self.submit.saturating_add(self.service)
    }

    /// Bytes of data or range.
    pub fn bytes(&self) -> u64 {
        u64::from(self.sectors) * crate::SECTOR
    }
}

/// Magic numbers that a journal's blocks begin with; big-endian, as in the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Magic {
    /// JBD2's, 0xc03b3998: ext3 and ext4.
    Jbd2 = 0,
    /// That of a log record of XFS, 0xfeedbabe.
    Xfs = 1,
}

impl Magic {
    /// The four bytes.
    pub fn bytes(self) -> [u8; 4] {
        match self {
            Magic::Jbd2 => [0xc0, 0x3b, 0x39, 0x98],
            Magic::Xfs => [0xfe, 0xed, 0xba, 0xbe],
        }
    }

    /// The one whose bytes these are.
    pub fn of(bytes: [u8; 4]) -> Option<Magic> {
        [Magic::Jbd2, Magic::Xfs].into_iter().find(|magic| magic.bytes() == bytes)
    }
}

/// The beginning of a block of a write, if it is a journal's magic number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHead {
    /// The queue.
    pub lane: u16,
    /// [`Record::seq`] of the write.
    pub seq: u32,
    /// Where the block lies.
    pub sector: u64,
    /// Its first four bytes.
    pub magic: Magic,
    /// Those behind it.
    pub rest: [u8; 28],
}

/// A piece of a journal that the volume's layout (partition table, superblocks) names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutPiece {
    /// When the layout was read, in ns since [`Header::started`]. Earlier layouts are out of date
    /// from then on.
    pub time: u64,
    /// The file system of the journal, as a number: 0 ext3 or ext4, 1 XFS, others as yet unknown.
    pub filesystem: u8,
    /// The first sector.
    pub sector: u64,
    /// Sectors; 0: the layout names no journal.
    pub sectors: u64,
    /// The next entry has another piece of the same layout.
    pub more: bool,
}

/// One entry of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A request, or a part of one.
    Record(Record),
    /// Recording of a lane begins, at first or after it was stopped and started. Numbers begin
    /// anew, and all earlier requests of the lane were completed, but for `in_flight` requests that
    /// are not recorded.
    Start {
        /// The queue.
        lane: u16,
        /// In ns since [`Header::started`].
        time: u64,
        /// Requests that the lane had taken and not answered.
        in_flight: u32,
    },
    /// Requests of a lane, completed after the one before, are missing: the recorder could not keep
    /// up.
    Lost {
        /// The queue.
        lane: u16,
        /// When that was noticed, in ns since [`Header::started`].
        time: u64,
        /// Requests.
        count: u64,
    },
    /// A block of a write begins with a journal's magic number. It stands before the write's
    /// record; where requests are missing, it may be missing too.
    Head(BlockHead),
    /// Where the volume's layout says that a journal is.
    Layout(LayoutPiece),
    /// The trace is complete.
    End {
        /// Entries before this one.
        entries: u64,
    },
}

/// The Internet checksum (RFC 1071) of an entry whose checksum field is zero: little-endian 16-bit
/// words, added with the carry brought round, complemented.
fn checksum(bytes: &[u8]) -> u16 {
    // A 64-bit word is congruent, modulo 65535, to the sum of its four halves' halves.
    let mut sum: u64 = 0;
    for word in bytes.as_chunks::<8>().0 {
        let (added, carry) = sum.overflowing_add(u64::from_le_bytes(*word));
        sum = added + u64::from(carry);
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

/// Makes sense of the bytes of a block's head; an error is the impossible value.
fn block_head(bytes: &[u8], lane: u16, status: Status) -> Result<BlockHead, String> {
    let magic = match status {
        Status::Ok => Magic::Jbd2,
        Status::IoErr => Magic::Xfs,
        Status::Unsupported => return Err("a magic number of kind 2".to_owned()),
    };
    let mut rest = [0; 28];
    rest.copy_from_slice(&bytes[16..44]);
    Ok(BlockHead { lane, seq: int(bytes, 4), sector: long(bytes, 8), magic, rest })
}

/// Makes sense of the bytes of a layout's piece; an error is the impossible value.
fn layout_piece(bytes: &[u8]) -> Result<LayoutPiece, String> {
    let kind = int(bytes, 32);
    let filesystem = u8::try_from(kind).map_err(|_| format!("a file system of kind {kind}"))?;
    Ok(LayoutPiece {
        time: long(bytes, 8),
        filesystem,
        sector: long(bytes, 24),
        sectors: long(bytes, 16),
        more: bytes[44] & MORE != 0,
    })
}

impl Entry {
    /// The entry's bytes: [`RECORD_WITH_HASH`] of them, of which a trace without hashes has the
    /// first [`RECORD`](crate::RECORD).
    pub fn encode(&self, with_hash: bool) -> [u8; RECORD_WITH_HASH] {
        let mut bytes = [0; RECORD_WITH_HASH];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        match self {
            Entry::Record(r) => {
                put(0, &[r.kind as u8, r.status as u8]);
                put(2, &r.lane.to_le_bytes());
                put(4, &r.priority.0.to_le_bytes());
                put(8, &r.submit.to_le_bytes());
                put(16, &r.service.to_le_bytes());
                put(24, &r.sector.to_le_bytes());
                put(32, &r.sectors.to_le_bytes());
                put(36, &r.seq.to_le_bytes());
                put(40, &r.after.to_le_bytes());
                put(44, &[(u8::from(r.more) * MORE) | (u8::from(r.unmap) * UNMAP)]);
                if with_hash {
                    put(48, &r.hash.to_le_bytes());
                }
            }
            Entry::Head(head) => {
                put(0, &[HEAD, head.magic as u8]);
                put(2, &head.lane.to_le_bytes());
                put(4, &head.seq.to_le_bytes());
                put(8, &head.sector.to_le_bytes());
                put(16, &head.rest);
            }
            Entry::Layout(piece) => {
                put(0, &[LAYOUT]);
                put(8, &piece.time.to_le_bytes());
                put(16, &piece.sectors.to_le_bytes());
                put(24, &piece.sector.to_le_bytes());
                put(32, &u32::from(piece.filesystem).to_le_bytes());
                put(44, &[u8::from(piece.more) * MORE]);
            }
            Entry::Start { lane, time, in_flight } => {
                put(0, &[START]);
                put(2, &lane.to_le_bytes());
                put(8, &time.to_le_bytes());
                put(16, &u64::from(*in_flight).to_le_bytes());
            }
            Entry::Lost { lane, time, count } => {
                put(0, &[LOST]);
                put(2, &lane.to_le_bytes());
                put(8, &time.to_le_bytes());
                put(16, &count.to_le_bytes());
            }
            Entry::End { entries } => {
                put(0, &[END]);
                put(16, &entries.to_le_bytes());
            }
        }
        let check = checksum(&bytes);
        bytes[CHECK_AT..CHECK_AT + 2].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Makes sense of one entry's bytes, which stand at `offset` of the trace.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] with the impossible value.
    pub fn decode(bytes: &[u8], header: &Header, offset: u64) -> Result<Entry, Error> {
        let corrupt = |what: String| {
            Err(Error::new(ErrorKind::Corrupt, offset, format!("the entry is damaged: {what}")))
        };
        if bytes.len() != header.entry_len() {
            return corrupt(format!("{} bytes", bytes.len()));
        }
        // The sum over all with the right checksum in its place is "minus zero".
        if checksum(bytes) != 0 {
            return corrupt("its checksum is wrong".to_owned());
        }
        let lane = short(bytes, 2);
        if header.lanes > 0 && lane >= header.lanes {
            return corrupt(format!("lane {lane}, where the volume had {}", header.lanes));
        }
        let status = match bytes[1] {
            0 => Status::Ok,
            1 => Status::IoErr,
            2 => Status::Unsupported,
            other => return corrupt(format!("status {other}")),
        };
        let (flags, time, number) = (bytes[44], long(bytes, 8), long(bytes, 16));
        if flags & !(MORE | UNMAP) != 0 || bytes[45] != 0 {
            return corrupt(format!("unknown flags {flags:#x}"));
        }
        let kind = match bytes[0] {
            START => {
                return match u32::try_from(number) {
                    Ok(in_flight) => Ok(Entry::Start { lane, time, in_flight }),
                    Err(_) => corrupt(format!("{number} requests in flight")),
                };
            }
            HEAD => return block_head(bytes, lane, status).map(Entry::Head).or_else(corrupt),
            LAYOUT => return layout_piece(bytes).map(Entry::Layout).or_else(corrupt),
            LOST => return Ok(Entry::Lost { lane, time, count: number }),
            END => return Ok(Entry::End { entries: number }),
            code => match RequestKind::ALL.get(usize::from(code)) {
                Some(kind) => *kind,
                None => return corrupt(format!("a request of kind {code}")),
            },
        };
        Ok(Entry::Record(Record {
            kind,
            status,
            lane,
            priority: Priority(int(bytes, 4)),
            submit: time,
            service: number,
            sector: long(bytes, 24),
            sectors: int(bytes, 32),
            seq: int(bytes, 36),
            after: int(bytes, 40),
            more: flags & MORE != 0,
            unmap: flags & UNMAP != 0,
            hash: if header.hashes { long(bytes, 48) } else { 0 },
        }))
    }
}
