//! SET_MEM_TABLE with bytes behind its last region.
//!
//! The kernel of User-Mode Linux 6.1 (Debian 12's) always sends room for two regions, however many
//! there are. The `vhost` crate takes a body that is longer than its regions for malformed, and no
//! guest would find its disk. Only this message is padded; any other is left to the crate.

use std::fs::File;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags};
use vhost::vhost_user::message::VhostUserMemoryRegion;

const SET_MEM_TABLE: u32 = 5;
const HEADER: usize = 12;
/// Number of regions and padding before the first region.
const COUNT: usize = 8;
const REGION: usize = 32;
/// Regions that the message may have at most (the protocol's limit without memory slots).
const MOST: usize = 8;
/// Flags of a header: the protocol's version, "this is a reply", "reply to this".
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// The message's contents.
pub(crate) struct Table {
    pub(crate) regions: Vec<VhostUserMemoryRegion>,
    /// The files of the memory, one for each region, if the front end keeps to the rules.
    pub(crate) files: Vec<File>,
    needs_reply: bool,
}

/// Takes the next message off the stream if it is such a table and has come as a whole.
pub(crate) fn take(stream: &UnixStream) -> Option<Table> {
    let mut message = [0; HEADER + COUNT + MOST * REGION];
    let mut none = RecvAncillaryBuffer::default();
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    let seen = rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut message)], &mut none, flags)
        .ok()?
        .bytes;
    let (count, len) = padded(message.get(..seen)?)?;

    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let body = message.get_mut(..len)?;
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    // The bytes seen are the bytes taken: no other thread reads from the stream meanwhile.
    rustix::net::recvmsg(stream, &mut [IoSliceMut::new(body)], &mut ancillary, flags).ok()?;
    let mut files = Vec::new();
    for part in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = part {
            files.extend(descriptors.map(File::from));
        }
    }
    let region = |at: usize| {
        let (from, word) = (HEADER + COUNT + at * REGION, |n: usize| word(&message, n));
        // In the order of the specification: guest address, size, user address, offset in the file.
        VhostUserMemoryRegion::new(word(from), word(from + 8), word(from + 16), word(from + 24))
    };
    let needs_reply = half(&message, 4) & NEED_REPLY != 0;
    Some(Table { regions: (0..count).map(region).collect(), files, needs_reply })
}

/// Regions and length of a padded table at the start of `bytes`.
fn padded(bytes: &[u8]) -> Option<(usize, usize)> {
    if bytes.len() < HEADER + COUNT
        || half(bytes, 0) != SET_MEM_TABLE
        || half(bytes, 4) & 3 != VERSION
    {
        return None;
    }
    let (size, count) =
        (usize::try_from(half(bytes, 8)).ok()?, usize::try_from(half(bytes, 12)).ok()?);
    let is_padded = (1..MOST).contains(&count) && size > COUNT + count * REGION;
    (is_padded && bytes.len() >= HEADER + size).then_some((count, HEADER + size))
}

/// Answers, if the front end wants that.
pub(crate) fn answer(stream: &UnixStream, table: &Table, accepted: bool) -> std::io::Result<()> {
    if !table.needs_reply {
        return Ok(());
    }
    let mut reply = [0; HEADER + 8];
    for (at, value) in
        [(0, SET_MEM_TABLE), (4, VERSION | REPLY), (8, 8), (12, u32::from(!accepted))]
    {
        reply[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    rustix::net::send(stream, &reply, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
    Ok(())
}

fn half(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}
