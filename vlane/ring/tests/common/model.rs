//! A second definition of a chain's meaning: slow and simple, from the specification, on the test's
//! own memory.

#![allow(dead_code, clippy::unwrap_used, clippy::cast_possible_truncation)]

use vlane_ring::{Broken, Range, Request, RequestKind, Status};

use super::*;

/// Buffers that a chain may have, and as many empty ones.
pub const MAX_CHAIN: usize = 1026;
const MAX_DATA: usize = 1024;

/// A buffer in one region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    pub addr: u64,
    pub len: u64,
    pub writable: bool,
}

/// The expected values of [`Request`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expect {
    pub kind: RequestKind,
    pub priority: u32,
    pub sector: u64,
    pub data: Vec<(u64, u64)>,
    pub ranges: Vec<Range>,
    /// Guest physical address of the status byte.
    pub status: u64,
    /// Bytes before it that the device may write.
    pub room: u64,
}

impl Expect {
    pub fn len(&self) -> u64 {
        self.data.iter().map(|(_, len)| len).sum()
    }

    /// Returns the expected length in the used entry.
    pub fn used_len(&self, status: Status) -> u32 {
        let reads =
            matches!(self.kind, RequestKind::In | RequestKind::GetId) && status == Status::Ok;
        let written = if reads { self.len() } else { 0 };
        // The status byte is behind the room: it is reached only when that is written.
        u32::try_from(if written < self.room { written } else { written + 1 }).unwrap_or(u32::MAX)
    }

    /// Panics unless the request is this one.
    pub fn check(&self, ram: &Ram, request: &Request) {
        let buffers = request.buffers().iter().filter(|b| b.iov_len > 0);
        let data: Vec<_> =
            buffers.map(|b| (ram.guest(b.iov_base.cast()), b.iov_len as u64)).collect();
        assert_eq!(request.kind(), self.kind);
        assert_eq!(request.priority().0, self.priority);
        assert_eq!(request.sector(), self.sector);
        assert_eq!(data, self.data);
        assert_eq!(request.len(), self.len());
        assert_eq!(request.ranges(), self.ranges);
    }
}

/// The descriptors of the split chain at `head`, and how it ends if not well.
pub fn walk_split(ram: &Ram, table: u64, size: u16, head: u16) -> (Vec<Desc>, Option<Broken>) {
    let mut descs = Vec::new();
    let (mut table, mut size, mut index) = (table, usize::from(size), head);
    let mut indirect: Option<Desc> = None;
    let mut steps = 0;
    loop {
        // Which of two faults is named is of no weight, but defined.
        let outside = usize::from(index) >= size;
        if steps == size && !(outside && indirect.is_some()) {
            return (descs, Some(Broken::Loop));
        }
        if outside {
            return (descs, Some(Broken::DescriptorIndex { index, size: size as u16 }));
        }
        steps += 1;
        let at = table.checked_add(16 * u64::from(index));
        let bytes = at
            .filter(|at| ram.pieces(*at, 16).is_ok_and(|p| p.len() == 1))
            .map(|at| ram.read(at, 16));
        let Some(bytes) = bytes else {
            let Desc { addr, len, .. } = indirect.unwrap();
            return (descs, Some(Broken::BadAddress { addr, len, hole: at.unwrap_or(u64::MAX) }));
        };
        let desc = Desc::from_split(&bytes);
        if desc.flags & INDIRECT != 0 {
            let Desc { addr, len, flags, .. } = desc;
            if indirect.is_some() {
                return (descs, Some(Broken::NestedIndirect));
            }
            if flags & NEXT != 0 {
                return (descs, Some(Broken::IndirectWithNext));
            }
            let entries = len / 16;
            if entries == 0 || len % 16 != 0 || entries > 65535 {
                return (descs, Some(Broken::BadIndirectTable { addr, len }));
            }
            (table, size, index, steps) = (addr, entries as usize, 0, 0);
            indirect = Some(desc);
            continue;
        }
        descs.push(desc);
        if desc.flags & NEXT == 0 {
            return (descs, None);
        }
        index = desc.link;
    }
}

/// The buffers of a chain's descriptors. If one is not in memory: the place of the first such one,
/// and only the buffers after the last.
pub fn collect(ram: &Ram, descs: &[Desc]) -> Result<(Vec<Piece>, Option<Broken>), Broken> {
    let mut pieces: Vec<Piece> = Vec::new();
    let (mut empty, mut hole, mut begin) = (0, None, 0);
    let too_long = Err(Broken::ChainTooLong { limit: MAX_CHAIN });
    for &Desc { addr, len, flags, .. } in descs {
        let writable = flags & WRITE != 0;
        if len == 0 {
            empty += 1;
            if empty > MAX_CHAIN {
                return too_long;
            }
            continue;
        }
        if !writable && hole.is_some() {
            empty += 1;
            if empty > MAX_CHAIN {
                return too_long;
            }
            begin = pieces.len();
            continue;
        }
        if !writable && pieces.last().is_some_and(|p| p.writable) {
            return Err(Broken::ReadableAfterWritable);
        }
        if pieces.len() == MAX_CHAIN {
            return too_long;
        }
        let found = match ram.pieces(addr, len.into()) {
            Ok(found) => found,
            Err(at) => {
                hole.get_or_insert(Broken::BadAddress { addr, len, hole: at });
                empty += 1;
                if empty > MAX_CHAIN {
                    return too_long;
                }
                begin = pieces.len();
                continue;
            }
        };
        pieces.extend(found.into_iter().map(|(addr, len)| Piece { addr, len, writable }));
        if pieces.len() > MAX_CHAIN {
            return too_long;
        }
    }
    Ok((pieces.split_off(begin), hole))
}

/// A request that can only be answered with an error, if there is a place for that.
fn unreachable(pieces: &[Piece], broken: Broken) -> Result<Expect, Broken> {
    let (Some(last), Broken::BadAddress { hole, .. }) = (pieces.last(), broken) else {
        return Err(broken);
    };
    let status = last.addr + last.len - 1;
    let (kind, room) = (RequestKind::Unreachable, u64::MAX);
    Ok(Expect { kind, priority: 0, sector: hole, data: vec![], ranges: vec![], status, room })
}

/// The request that a chain of buffers is.
pub fn parse(ram: &Ram, mut pieces: Vec<Piece>) -> Result<Expect, Broken> {
    // The status is the last writable byte.
    let Some(last) = pieces.last_mut().filter(|p| p.writable) else { return Err(Broken::NoStatus) };
    last.len -= 1;
    let status = last.addr + last.len;
    // The header is the first 16 readable ones.
    let mut header = Vec::new();
    for piece in pieces.iter_mut().filter(|p| !p.writable) {
        let n = piece.len.min(16 - header.len() as u64);
        header.extend(ram.read(piece.addr, n as usize));
        piece.addr += n;
        piece.len -= n;
    }
    if header.len() < 16 {
        return Err(Broken::ShortHeader { len: header.len() });
    }
    // The rest is data.
    pieces.retain(|p| p.len > 0);
    let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
    let (reads, writes) = (pieces.iter().any(|p| !p.writable), pieces.iter().any(|p| p.writable));
    let len: u64 = pieces.iter().map(|p| p.len).sum();
    let mut data: Vec<_> = pieces.iter().map(|p| (p.addr, p.len)).collect();
    let room = pieces.iter().filter(|piece| piece.writable).map(|piece| piece.len).sum();
    let mut ranges = Vec::new();
    let malformed = RequestKind::Refused(Status::IoErr);
    let kind = match u32_at(0) {
        _ if len > 1 << 30 || data.len() > MAX_DATA => malformed,
        IN if !reads && len.is_multiple_of(512) => RequestKind::In,
        OUT if !writes && len.is_multiple_of(512) => RequestKind::Out,
        FLUSH => RequestKind::Flush,
        GET_ID if !reads => {
            data = first(&data, 20);
            RequestKind::GetId
        }
        DISCARD | WRITE_ZEROES if !writes && len.is_multiple_of(16) && len / 16 > 32 => {
            RequestKind::Refused(Status::Unsupported)
        }
        kind @ (DISCARD | WRITE_ZEROES) if !writes && len > 0 && len.is_multiple_of(16) => {
            let bytes: Vec<u8> =
                data.iter().flat_map(|&(addr, len)| ram.read(addr, len as usize)).collect();
            ranges.extend(bytes.chunks(16).map(|b| {
                let flags = u32::from_le_bytes(b[12..].try_into().unwrap());
                let sector = u64::from_le_bytes(b[..8].try_into().unwrap());
                (
                    flags,
                    Range {
                        sector,
                        sectors: u32::from_le_bytes(b[8..12].try_into().unwrap()),
                        unmap: flags == 1,
                    },
                )
            }));
            let allowed = if kind == DISCARD { 0 } else { 1 };
            // The first range that cannot be decides: 2 GiB are the most.
            let refused = ranges.iter().find_map(|(flags, range)| match range.sectors > 4 << 20 {
                true => Some(Status::IoErr),
                false => (*flags > allowed).then_some(Status::Unsupported),
            });
            if let Some(status) = refused {
                ranges.clear();
                RequestKind::Refused(status)
            } else if kind == DISCARD {
                RequestKind::Discard
            } else {
                RequestKind::WriteZeroes
            }
        }
        IN | OUT | GET_ID | DISCARD | WRITE_ZEROES => malformed,
        _ => RequestKind::Refused(Status::Unsupported),
    };
    let sector = u64::from_le_bytes(header[8..].try_into().unwrap());
    let ranges = ranges.into_iter().map(|(_, range)| range).collect();
    Ok(Expect { kind, priority: u32_at(4), sector, data, ranges, status, room })
}

/// The first `limit` bytes.
fn first(data: &[(u64, u64)], limit: u64) -> Vec<(u64, u64)> {
    let mut left = limit;
    let cut = data.iter().map(|&(addr, len)| {
        let n = len.min(left);
        left -= n;
        (addr, n)
    });
    cut.filter(|(_, n)| *n > 0).collect()
}

/// Does all steps at once for a split ring.
pub fn split_request(ram: &Ram, table: u64, size: u16, head: u16) -> Result<Expect, Broken> {
    let (descs, fault) = walk_split(ram, table, size, head);
    let (pieces, hole) = collect(ram, &descs)?;
    match (fault, hole) {
        (Some(fault), _) => Err(fault),
        (None, Some(hole)) => unreachable(&pieces, hole),
        (None, None) => parse(ram, pieces),
    }
}
