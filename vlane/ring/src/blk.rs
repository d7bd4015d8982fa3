//! virtio-blk requests: parses a chain of buffers (virtio 1.2, section 5.2.6).

use crate::chain::{HOLE, MAX_BUFFERS, Walk, read_words};
use crate::error::Broken;
use crate::limits::{MAX_RANGE_SECTORS, MAX_RANGES, MAX_REQUEST};
use vlane_memory::fault;

/// Bytes of a virtio-blk sector; every offset and length on the wire counts in these.
pub const SECTOR: u64 = 512;

/// Bytes of `struct virtio_blk_req` before the data: type, ioprio, sector.
const HEADER: usize = 16;
/// Bytes of the serial number (5.2.6); a longer buffer is left as it is after them.
const ID: u64 = 20;
/// Bytes of one `struct virtio_blk_discard_write_zeroes`.
const RANGE: usize = 16;
/// A request's lists keep their memory up to this: more than Linux needs with the announced number
/// of segments. Memory of one large request beyond it goes back when it is answered, or each slot
/// of a queue would keep its largest for ever.
const KEPT: usize = 256;
const KEPT_RANGES: usize = 4;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// Read the buffers' length from [`Request::sector`] (`VIRTIO_BLK_T_IN`).
    In,
    /// Write the buffers to [`Request::sector`] (`VIRTIO_BLK_T_OUT`).
    Out,
    /// Make every acknowledged write durable (`VIRTIO_BLK_T_FLUSH`).
    Flush,
    /// Put the serial number into the buffers (`VIRTIO_BLK_T_GET_ID`).
    GetId,
    /// [`Request::ranges`] are not needed any more (`VIRTIO_BLK_T_DISCARD`).
    Discard,
    /// [`Request::ranges`] shall read as zeroes (`VIRTIO_BLK_T_WRITE_ZEROES`).
    WriteZeroes,
    /// Cannot be done; to be answered with this status: an unknown type, or a form the
    /// specification forbids.
    Refused(Status),
    /// Cannot be done: a buffer is not in guest memory, at the address that [`Request::hole`] says.
    /// To be answered with an error.
    Unreachable,
}

/// The last byte of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// Failed: the device, or the request's form.
    IoErr = 1,
    /// The device does not know this request.
    Unsupported = 2,
}

/// The class in a guest's I/O priority (Linux: `IOPRIO_CLASS_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// The I/O priority in a request's header: class in bits 13-15, level in bits 0-12. Linux guests
/// fill it from the task's I/O priority, or from its nice value where none is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct IoPriority(pub u32);

impl IoPriority {
    /// The class; unknown ones count as none.
    pub fn class(self) -> PriorityClass {
        match (self.0 >> 13) & 7 {
            1 => PriorityClass::RealTime,
            2 => PriorityClass::BestEffort,
            3 => PriorityClass::Idle,
            _ => PriorityClass::None,
        }
    }

    /// The level within the class, 0 the highest.
    pub fn level(self) -> u16 {
        (self.0 & 0x1fff) as u16
    }
}

/// One range of a DISCARD or WRITE_ZEROES.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First sector.
    pub sector: u64,
    /// Sectors.
    pub sectors: u32,
    /// The device may deallocate it (WRITE_ZEROES only).
    pub unmap: bool,
}

/// A request, read out of guest memory once and checked. Lives in its queue's slot until it is
/// completed.
pub struct Request {
    pub(crate) kind: RequestKind,
    /// The header's first words as they were: the type, and the I/O priority in the upper half.
    pub(crate) head: u64,
    pub(crate) sector: u64,
    /// Guest buffers; those before `first` were consumed by the header.
    pub(crate) buffers: Vec<libc::iovec>,
    pub(crate) first: usize,
    /// Bytes in the buffers.
    pub(crate) len: u64,
    /// Bytes before the status byte that the device may write.
    pub(crate) room: u64,
    pub(crate) ranges: Vec<Range>,
    pub(crate) status: *mut u8,
    /// The number that the used entry must carry: the head's index (split) or the buffer id
    /// (packed).
    pub(crate) id: u16,
    /// Ring descriptors that a packed ring's used entry stands for.
    pub(crate) descriptors: u16,
    pub(crate) in_flight: bool,
    /// Its own place in its queue, and its queue's index: for the probes.
    pub(crate) slot: u16,
    pub(crate) lane: u16,
    /// Which of its queue's guest memories the pointers lead into.
    pub(crate) epoch: u32,
    /// How many requests its queue had taken before.
    pub(crate) taken: u32,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("kind", &self.kind)
            .field("sector", &self.sector)
            .field("len", &self.len)
            .field("buffers", &self.buffers().len())
            .field("ranges", &self.ranges)
            .field("priority", &self.priority())
            .finish_non_exhaustive()
    }
}

/// A look at a request's data: at rising places, so that its buffers are gone through once.
#[derive(Debug)]
pub struct Words<'a> {
    request: &'a Request,
    buffer: usize,
    /// Bytes of the data before that buffer.
    begin: u64,
}

impl Words<'_> {
    /// The four bytes from `at` on, not before the place asked for last; zeroes where there are
    /// none.
    #[inline]
    pub fn at(&mut self, at: u64) -> [u8; 4] {
        let mut word = [0; 4];
        if !self.request.in_flight {
            return word;
        }
        let buffers = self.request.buffers();
        while let Some(buffer) = buffers.get(self.buffer) {
            let len = buffer.iov_len as u64;
            let Some(inside) = at.checked_sub(self.begin) else { break };
            if inside < len {
                let Ok(offset) = usize::try_from(inside) else { break };
                if len - inside < 4 {
                    self.request.copy_from(at, &mut word);
                    break;
                }
                // SAFETY: four bytes inside a checked buffer of guest memory that the queue keeps
                // mapped while this request is in flight; an array of bytes needs no alignment. A
                // guest that writes meanwhile only changes the bytes read.
                word = unsafe {
                    buffer.iov_base.cast::<u8>().add(offset).cast::<[u8; 4]>().read_volatile()
                };
                break;
            }
            self.begin += len;
            self.buffer += 1;
        }
        word
    }
}

impl Request {
    pub(crate) fn empty() -> Request {
        Request {
            kind: RequestKind::Refused(Status::IoErr),
            head: 0,
            sector: 0,
            buffers: Vec::new(),
            first: 0,
            len: 0,
            ranges: Vec::new(),
            status: std::ptr::null_mut(),
            id: 0,
            descriptors: 0,
            in_flight: false,
            slot: 0,
            lane: 0,
            epoch: 0,
            taken: 0,
            room: 0,
        }
    }

    /// Returns the kind of the request.
    #[inline]
    pub fn kind(&self) -> RequestKind {
        self.kind
    }

    /// The guest's I/O priority.
    #[inline]
    pub fn priority(&self) -> IoPriority {
        IoPriority((self.head >> 32) as u32)
    }

    /// First sector, in units of 512 bytes. Any value: check it against the capacity.
    #[inline]
    pub fn sector(&self) -> u64 {
        self.sector
    }

    /// Of [`RequestKind::Unreachable`]: the first guest address that is in no region.
    #[inline]
    pub fn hole(&self) -> Option<u64> {
        (self.kind == RequestKind::Unreachable).then_some(self.sector)
    }

    /// Bytes of data, in the buffers. For IN and OUT a multiple of 512, for GET_ID at most 20.
    #[inline]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The data's buffers in guest memory, as the system wants them. They stay mapped as long as
    /// the request is in flight in its queue. The guest may write to them at any time.
    #[inline]
    pub fn buffers(&self) -> &[libc::iovec] {
        &self.buffers[self.first..]
    }

    /// Ranges of a DISCARD or WRITE_ZEROES; empty for the others.
    #[inline]
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// True if a request for data or ranges lies inside a volume of `sectors` sectors.
    #[inline]
    pub fn fits(&self, sectors: u64) -> bool {
        let inside = |first: u64, count: u64| first <= sectors && count <= sectors - first;
        match self.kind {
            RequestKind::In | RequestKind::Out => inside(self.sector, self.len / SECTOR),
            RequestKind::Discard | RequestKind::WriteZeroes => {
                self.ranges.iter().all(|r| inside(r.sector, u64::from(r.sectors)))
            }
            _ => true,
        }
    }

    /// The end of a request for data or ranges, in bytes of the volume; none for the others, and
    /// beyond 64 bits.
    pub fn end(&self) -> Option<u64> {
        let last = match self.kind {
            RequestKind::In | RequestKind::Out => self.sector.checked_add(self.len / SECTOR),
            _ => self.ranges.iter().filter_map(|r| r.sector.checked_add(r.sectors.into())).max(),
        };
        last.and_then(|sector| sector.checked_mul(SECTOR))
    }

    /// Copies `bytes` into the data buffers from their start; bytes that do not fit are left out,
    /// and the rest of the buffers is zeroed.
    pub fn fill(&self, bytes: &[u8]) {
        let mut rest = bytes;
        for buffer in self.buffers() {
            let n = rest.len().min(buffer.iov_len);
            // SAFETY: the buffer is guest memory that the queue keeps mapped while this request
            // exists; this process holds no reference into it.
            unsafe {
                std::ptr::copy_nonoverlapping(rest.as_ptr(), buffer.iov_base.cast::<u8>(), n);
                std::ptr::write_bytes(buffer.iov_base.cast::<u8>().add(n), 0, buffer.iov_len - n);
            }
            rest = &rest[n..];
        }
    }

    /// Gives the data to `each`, in order and piece by piece: copied first, each byte read once,
    /// since the guest may change it at any time. It is for callers that look at the data; callers
    /// that move it use [`Request::buffers`].
    pub fn copy_out(&self, mut each: impl FnMut(&[u8])) {
        let mut copy = [0u8; 4096];
        for buffer in self.buffers() {
            let mut at = 0;
            while at < buffer.iov_len {
                let n = (buffer.iov_len - at).min(copy.len());
                // SAFETY: inside a buffer of guest memory that the queue keeps mapped while this
                // request exists, and inside `copy`, which is ours alone; a guest that writes
                // meanwhile only changes the bytes copied.
                unsafe {
                    let from = buffer.iov_base.cast::<u8>().add(at);
                    std::ptr::copy_nonoverlapping(from, copy.as_mut_ptr(), n);
                }
                each(&copy[..n]);
                at += n;
            }
        }
    }

    /// True if it was taken and not answered.
    #[inline]
    pub fn is_in_flight(&self) -> bool {
        self.in_flight
    }

    /// Copies the data from its byte `from` on into `bytes`, as much as there is; each byte is read
    /// once, since the guest may change it at any time.
    pub fn copy_from(&self, from: u64, bytes: &mut [u8]) {
        self.parts(from, bytes.len(), |at, guest, n| {
            // SAFETY: `n` bytes of guest memory that the queue keeps mapped while this request is
            // in flight, which `parts` checks, and `n` bytes of `bytes` from `at` on; a guest that
            // writes meanwhile only changes the bytes copied.
            unsafe {
                std::ptr::copy_nonoverlapping(guest.cast_const(), bytes.as_mut_ptr().add(at), n)
            };
        });
    }

    /// For a look at the data here and there, from its beginning on.
    #[inline]
    pub fn words(&self) -> Words<'_> {
        Words { request: self, buffer: 0, begin: 0 }
    }

    /// Copies `bytes` into the data from its byte `from` on, as much as there is room for.
    pub fn copy_into(&self, from: u64, bytes: &[u8]) {
        self.parts(from, bytes.len(), |at, guest, n| {
            // SAFETY: as in `copy_from`; this process holds no reference into guest memory.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr().add(at), guest, n) };
        });
    }

    /// Calls `each` with (offset from the first byte, address, length) of the buffers' parts with
    /// `len` bytes of the data from byte `from` on.
    fn parts(&self, from: u64, len: usize, mut each: impl FnMut(usize, *mut u8, usize)) {
        if !self.in_flight {
            return;
        }
        let mut skip = usize::try_from(from).unwrap_or(usize::MAX);
        let mut done = 0;
        for buffer in self.buffers() {
            let here = skip.min(buffer.iov_len);
            skip -= here;
            let n = (buffer.iov_len - here).min(len - done);
            if n > 0 {
                each(done, buffer.iov_base.cast::<u8>().wrapping_add(here), n);
                done += n;
            }
        }
    }

    /// True if guest memory that the request lies in was lost: its present content is not the
    /// guest's.
    ///
    /// One load, as long as no mapping of this process ever lost anything.
    pub fn is_memory_lost(&self) -> bool {
        // The header's buffer too, which comes before the data's.
        let is_lost =
            |buffer: &libc::iovec| fault::has_tripped(buffer.iov_base as usize, buffer.iov_len);
        fault::trips() > 0
            && (self.buffers.iter().any(is_lost) || fault::has_tripped(self.status as usize, 1))
    }

    /// The request is answered: gives back the memory that only a large one needs.
    #[inline]
    pub(crate) fn give_back(&mut self) {
        if self.buffers.capacity() >= KEPT {
            self.give_back_buffers();
        }
    }

    #[cold]
    fn give_back_buffers(&mut self) {
        self.first = 0;
        self.buffers = Vec::new();
    }

    /// The same for the ranges of a DISCARD or WRITE_ZEROES.
    #[cold]
    pub(crate) fn give_back_ranges(&mut self) {
        if self.ranges.capacity() > KEPT_RANGES {
            self.ranges = Vec::new();
        }
    }

    pub(crate) fn set_status(&self, status: Status) {
        // SAFETY: `parse` took the status byte from a checked device-writable buffer that is still
        // mapped.
        unsafe { self.status.write_volatile(status as u8) };
    }

    /// Makes sense of `self.buffers`, of which the first are device-readable and the others
    /// writable, as `walk` says.
    ///
    /// The framing is free (virtio 1.2, 2.7.4): the header may be spread over buffers or share one
    /// with the data, the status may share one with the data; only the order counts.
    #[inline]
    pub(crate) fn parse(&mut self, walk: Walk, hole: Option<Broken>) -> Result<(), Broken> {
        //= virtio 2.7.4.1
        //# The device MUST NOT make assumptions about the particular arrangement of descriptors.
        let readable = walk.readable;
        self.ranges.clear();
        self.first = 0;
        let count = self.buffers.len();
        if count <= readable {
            return self.parse_unreachable(readable, hole);
        }
        // The status byte: the last writable one.
        let first = self.buffers[0];
        let last = &mut self.buffers[count - 1];
        last.iov_len -= 1;
        // SAFETY: the buffer had at least one byte (empty ones are never collected), so its last
        // byte is inside.
        self.status = unsafe { last.iov_base.cast::<u8>().add(last.iov_len) };
        if last.iov_len == 0 {
            self.buffers.pop();
        }
        // The header: the first 16 readable bytes.
        let (what, sector) = if readable > 0 && first.iov_len == HEADER {
            self.first = 1;
            // SAFETY: 16 bytes of mapped guest memory, as checked when the buffer was collected.
            unsafe { read_words(first.iov_base.cast()) }
        } else {
            self.gather_header(readable)?
        };
        #[allow(clippy::cast_possible_truncation)]
        let kind = what as u32;
        self.head = what;
        self.sector = sector;
        // The rest is neither header nor status, and both are complete.
        self.len = walk.bytes - (HEADER as u64 + 1);
        let count = self.buffers.len() - self.first;
        // Nor may it have more buffers than one system call takes.
        let overlong = self.len > MAX_REQUEST || count > MAX_BUFFERS;
        // Data that the driver may only read (or only write) makes no sense in a request that
        // writes (or reads) it.
        //= virtio 2.7.5.1
        //# A device MUST NOT write to a device-readable buffer, and a device SHOULD NOT read a
        //# device-writable buffer (it MAY do so for debugging or diagnostic purposes).
        //= virtio 2.8.15
        //# A device MUST NOT write to a device-readable buffer, and a device SHOULD NOT read a
        //# device-writable buffer.
        let has_out = readable > self.first;
        let has_in = self.buffers.len() > readable;
        self.room = match (has_in, has_out) {
            (false, _) => 0,
            (true, false) => self.len,
            (true, true) => {
                self.buffers[readable..].iter().map(|buffer| buffer.iov_len as u64).sum()
            }
        };
        const MALFORMED: RequestKind = RequestKind::Refused(Status::IoErr);
        self.kind = match kind {
            _ if overlong => MALFORMED,
            0 if has_out || !self.len.is_multiple_of(SECTOR) => MALFORMED,
            0 => RequestKind::In,
            1 if has_in || !self.len.is_multiple_of(SECTOR) => MALFORMED,
            1 => RequestKind::Out,
            4 => RequestKind::Flush,
            8 if has_out => MALFORMED,
            8 => {
                self.truncate(ID);
                RequestKind::GetId
            }
            11 | 13 if has_in => MALFORMED,
            11 => self.parse_ranges(RequestKind::Discard),
            13 => self.parse_ranges(RequestKind::WriteZeroes),
            //= virtio 5.2.6.2
            //# If the VIRTIO_BLK_F_ZONED feature is not negotiated, the device MUST reject
            //# VIRTIO_BLK_T_ZONE_REPORT, VIRTIO_BLK_T_ZONE_OPEN, VIRTIO_BLK_T_ZONE_CLOSE,
            //# VIRTIO_BLK_T_ZONE_FINISH, VIRTIO_BLK_T_ZONE_APPEND, VIRTIO_BLK_T_ZONE_RESET and
            //# VIRTIO_BLK_T_ZONE_RESET_ALL requests with VIRTIO_BLK_S_UNSUPP status.
            _ => RequestKind::Refused(Status::Unsupported),
        };
        Ok(())
    }

    /// A buffer is not in guest memory, or there is none for the status. Memory that a VM has, and
    /// that its front end does not share, makes such requests; so they are answered where that is
    /// possible.
    #[cold]
    fn parse_unreachable(&mut self, readable: usize, hole: Option<Broken>) -> Result<(), Broken> {
        let Some(broken @ Broken::BadAddress { hole, .. }) = hole.filter(|_| readable & HOLE != 0)
        else {
            return Err(Broken::NoStatus);
        };
        // After the last one outside come only those that are writable.
        let Some(last) = self.buffers.get(readable & !HOLE..).and_then(<[_]>::last) else {
            return Err(broken);
        };
        // SAFETY: the buffer has at least one byte (empty ones are never collected), so its last
        // byte is inside.
        self.status = unsafe { last.iov_base.cast::<u8>().add(last.iov_len - 1) };
        self.buffers.clear();
        (self.kind, self.head, self.sector, self.len) = (RequestKind::Unreachable, 0, hole, 0);
        // A part of what is before the status byte cannot be written: its used length is 0.
        self.room = u64::MAX;
        Ok(())
    }

    /// The header is spread over buffers, or shares its buffer with data.
    #[cold]
    fn gather_header(&mut self, readable: usize) -> Result<(u64, u64), Broken> {
        let mut header = [0u8; HEADER];
        let mut got = 0;
        for index in 0..readable {
            let Some(buffer) = self.buffers.get_mut(index) else { break };
            let n = buffer.iov_len.min(HEADER - got);
            // SAFETY: `n` bytes of mapped guest memory, as checked when the buffer was collected;
            // the guest may change them meanwhile, which only changes the bytes copied.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    buffer.iov_base.cast::<u8>(),
                    header.as_mut_ptr().add(got),
                    n,
                );
                buffer.iov_base = buffer.iov_base.cast::<u8>().add(n).cast();
            }
            buffer.iov_len -= n;
            got += n;
            self.first = if buffer.iov_len == 0 { index + 1 } else { index };
            if got == HEADER {
                // SAFETY: `header` has 16 bytes.
                return Ok(unsafe { read_words(header.as_ptr()) });
            }
        }
        Err(Broken::ShortHeader { len: got })
    }

    /// Leaves `limit` bytes of the data.
    #[cold]
    fn truncate(&mut self, limit: u64) {
        let mut left = limit;
        for buffer in &mut self.buffers[self.first..] {
            let keep = left.min(buffer.iov_len as u64);
            buffer.iov_len = usize::try_from(keep).unwrap_or(buffer.iov_len);
            left -= keep;
        }
        self.len = limit - left;
    }

    /// Reads the ranges of a DISCARD or WRITE_ZEROES into private memory.
    #[cold]
    fn parse_ranges(&mut self, kind: RequestKind) -> RequestKind {
        let len = usize::try_from(self.len).unwrap_or(usize::MAX);
        if len == 0 || !len.is_multiple_of(RANGE) {
            return RequestKind::Refused(Status::IoErr);
        }
        // Statuses as QEMU has them (`hw/block/virtio-blk.c`): too many ranges are a form that is
        // not known, too large ones an error.
        if len / RANGE > MAX_RANGES as usize {
            return RequestKind::Refused(Status::Unsupported);
        }
        let mut bytes = [0u8; RANGE];
        let mut got = 0;
        for buffer in &self.buffers[self.first..] {
            let mut at = 0;
            while at < buffer.iov_len {
                let n = (buffer.iov_len - at).min(RANGE - got);
                // SAFETY: inside a mapped guest buffer and inside `bytes`.
                unsafe {
                    let from = buffer.iov_base.cast::<u8>().add(at);
                    std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr().add(got), n);
                }
                got += n;
                at += n;
                if got == RANGE {
                    got = 0;
                    let [s @ .., n0, n1, n2, n3, f0, f1, f2, f3] = bytes;
                    let flags = u32::from_le_bytes([f0, f1, f2, f3]);
                    let sectors = u32::from_le_bytes([n0, n1, n2, n3]);
                    if sectors > MAX_RANGE_SECTORS {
                        self.ranges.clear();
                        return RequestKind::Refused(Status::IoErr);
                    }
                    //= virtio 5.2.6.2
                    //# The device MUST set the status byte to VIRTIO_BLK_S_UNSUPP for discard,
                    //# secure erase and write zeroes commands if any unknown flag is set.
                    //= virtio 5.2.6.2
                    //# Furthermore, the device MUST set the status byte to VIRTIO_BLK_S_UNSUPP for
                    //# discard commands if the unmap flag is set.
                    // Bit 0 is unmap, forbidden in a discard; the others are reserved (5.2.6.2):
                    // unsupported.
                    if flags & !1 != 0 || (flags != 0 && kind == RequestKind::Discard) {
                        self.ranges.clear();
                        return RequestKind::Refused(Status::Unsupported);
                    }
                    self.ranges.push(Range {
                        sector: u64::from_le_bytes(s),
                        sectors,
                        unmap: flags & 1 != 0,
                    });
                }
            }
        }
        kind
    }
}
