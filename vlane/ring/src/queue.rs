//! A virtqueue of either layout, with the requests that are in flight in it.

use std::sync::Arc;

use crate::blk::{Request, RequestKind, Status};
use crate::error::{Broken, QueueError, RingFormat};
use crate::inflight::{InflightPart, Marks, PackedMarks, SplitMarks, Tracker};
use crate::limits::MAX_QUEUE_SIZE;
use crate::packed::{self, PackedQueue};
use crate::probes;
use crate::split::{self, SplitQueue};
use vlane_memory::DirtyLog;
use vlane_memory::GuestMemory;
use vlane_memory::fault;

/// The parts of a virtqueue. The three addresses are in the front end's address space (as
/// vhost-user gives them).
#[derive(Debug, Clone)]
pub struct QueueConfig {
    /// Split or packed.
    pub layout: RingFormat,
    /// Entries, 1 to 32768.
    pub size: u16,
    /// `VIRTIO_F_EVENT_IDX` was negotiated.
    pub event_idx: bool,
    /// Descriptor table or descriptor ring.
    pub desc: u64,
    /// Available ring or driver event structure.
    pub driver: u64,
    /// Used ring or device event structure.
    pub device: u64,
    /// Where to begin: the next available index (split), or both positions with their wrap counters
    /// (packed; if the ring shows that they are not right, the queue looks for the right ones, or
    /// is broken from its start).
    pub base: u32,
    /// Guest physical address at which writes to the used ring (split) or the device event
    /// structure (packed) are logged, if they are.
    pub log_addr: Option<u64>,
}

/// Names a request that is in flight in its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slot(pub u16);

#[derive(Debug)]
enum Ring {
    Split(SplitQueue),
    Packed(PackedQueue),
}

/// One virtqueue, device side.
///
/// Take requests with [`Queue::take`], answer each once with [`Queue::answer`] in any order, and
/// show the answers to the driver with [`Queue::show`]. After the first [`Broken`] the queue yields
/// no more requests.
#[derive(Debug)]
pub struct Queue {
    ring: Ring,
    config: QueueConfig,
    memory: Arc<GuestMemory>,
    /// Memories of before a change, each kept mapped until the last request taken from it is
    /// answered.
    retired: Vec<Retired>,
    /// Number of the present memory; a request carries that of the memory it lies in.
    epoch: u32,
    hint: usize,
    requests: Box<[Request]>,
    free: Vec<u16>,
    log: Option<Arc<DirtyLog>>,
    broken: Option<Broken>,
    /// The requests in flight, for the device after this one, if the front end keeps memory for
    /// that.
    tracker: Option<Box<Tracker>>,
    /// Requests are not taken in the usual way: the queue is broken, or it has a tracker.
    take_is_slow: bool,
    /// Answers are not given in the usual way: there is a log, or a tracker.
    answer_is_slow: bool,
    /// Written by `answer` since the last `show`; only kept with a log.
    unlogged: bool,
    /// Losses of memory, of anybody's, that were not of this queue's.
    trips: u64,
    /// Requests that were taken, but for those that were put back; modulo 2^32.
    taken: u32,
}

/// Guest memory that is replaced, and still used by requests in flight.
#[derive(Debug)]
struct Retired {
    memory: Arc<GuestMemory>,
    epoch: u32,
    in_flight: usize,
}

impl Queue {
    /// Sets up a virtqueue in `memory`.
    ///
    /// # Errors
    /// [`QueueError`]: an illegal size, a part outside guest memory, a misaligned part.
    pub fn new(config: QueueConfig, memory: Arc<GuestMemory>) -> Result<Queue, QueueError> {
        let QueueConfig { layout, size, .. } = config;
        let legal = (1..=MAX_QUEUE_SIZE).contains(&size)
            && (layout == RingFormat::Packed || size.is_power_of_two());
        if !legal {
            return Err(QueueError::Size { size, layout });
        }
        let (ring, broken) = match layout {
            RingFormat::Split => {
                let parts = split_parts(&config, &memory)?;
                let base = (config.base & 0xffff) as u16;
                (Ring::Split(SplitQueue::new(size, config.event_idx, parts, base)), None)
            }
            RingFormat::Packed => {
                let parts = packed_parts(&config, &memory)?;
                let (ring, broken) = PackedQueue::new(size, config.event_idx, parts, config.base);
                (Ring::Packed(ring), broken)
            }
        };
        Ok(Queue {
            ring,
            config,
            memory,
            retired: Vec::new(),
            epoch: 0,
            hint: 0,
            requests: (0..size).map(|slot| Request { slot, ..Request::empty() }).collect(),
            free: (0..size).rev().collect(),
            log: None,
            take_is_slow: broken.is_some(),
            broken,
            tracker: None,
            answer_is_slow: false,
            unlogged: false,
            trips: 0,
            taken: 0,
        })
    }

    /// Says which of its device's queues it is: the lane that probes name. Zero if it was never
    /// said.
    pub fn set_index(&mut self, index: u16) {
        self.requests.iter_mut().for_each(|request| request.lane = index);
    }

    /// Marks requests in flight in `part` from now on, and has the requests that the device before
    /// left there submitted again: [`Queue::take`] yields those requests first, in the order in
    /// which they were taken, and exactly those. Must come before the first `take`. If the marks
    /// cannot be read, the queue is broken ([`Broken::InflightLost`]). Returns how many requests
    /// there are.
    pub fn track(&mut self, part: InflightPart) -> usize {
        let size = self.config.size;
        let found = match &mut self.ring {
            Ring::Split(ring) => SplitMarks::new(part, size, ring.used()).map(|(marks, left)| {
                // Of the descriptors there are as many, at most.
                left.iter()
                    .for_each(|left| ring.goes_on(u16::try_from(left.len()).unwrap_or(size)));
                (Marks::Split(marks), left)
            }),
            Ring::Packed(ring) => {
                PackedMarks::new(part, ring).map(|(marks, left)| (Marks::Packed(marks), left))
            }
        };
        let (marks, left) = match found {
            Ok(found) => found,
            Err(lost) => {
                self.fail(Broken::InflightLost(lost));
                return 0;
            }
        };
        if left.is_some() {
            // The position that the front end lacks is known from here.
            self.broken = None;
        }
        let pending = left.unwrap_or_default();
        let count = pending.len();
        self.tracker = Some(Box::new(Tracker::new(marks, pending, size)));
        (self.take_is_slow, self.answer_is_slow) = (true, true);
        count
    }

    /// True if requests in flight are marked ([`Queue::track`]).
    pub fn is_tracked(&self) -> bool {
        self.tracker.is_some()
    }

    /// True if there are requests of the device before that were not taken again: they do not wait
    /// for the driver, and no base counts them.
    #[inline]
    pub fn is_replaying(&self) -> bool {
        self.tracker.as_ref().is_some_and(|tracker| !tracker.pending.is_empty())
    }

    /// Stops the queue: it takes no more requests.
    #[cold]
    fn fail(&mut self, broken: Broken) -> Broken {
        self.take_is_slow = true;
        self.broken = Some(broken);
        broken
    }

    /// Takes the next request, or none when the driver has made none available. The requests that
    /// one look at shared memory found are handed out without another.
    ///
    /// # Errors
    /// [`Broken`], now and ever after.
    #[inline(always)]
    pub fn take(&mut self) -> Result<Option<Slot>, Broken> {
        if self.take_is_slow {
            return self.take_slow();
        }
        self.take_next().map_err(|broken| self.fail(broken))
    }

    #[inline(never)]
    fn take_slow(&mut self) -> Result<Option<Slot>, Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let result = if self.is_replaying() { self.retake().map(Some) } else { self.take_next() };
        let slot = result.map_err(|broken| self.fail(broken))?;
        if let (Some(slot), Some(tracker)) = (slot, &mut self.tracker) {
            let request = &self.requests[usize::from(slot.0)];
            match (&self.ring, &mut tracker.marks) {
                _ if tracker.replayed[usize::from(slot.0)] => {}
                (Ring::Packed(ring), Marks::Packed(marks)) => {
                    marks.taken(slot.0, ring.last_chain(request.descriptors));
                }
                (_, Marks::Split(marks)) => marks.taken(request.id),
                (_, Marks::Packed(_)) => {}
            }
        }
        Ok(slot)
    }

    /// Takes the next request that the device before had taken. It is marked already.
    #[cold]
    fn retake(&mut self) -> Result<Slot, Broken> {
        let lost = Broken::InflightLost(crate::Lost::Damaged);
        let (Some(slot), Some(tracker)) = (self.free.last().copied(), &mut self.tracker) else {
            return Err(lost);
        };
        let name = tracker.pending.pop_front().ok_or(lost)?;
        let request = &mut self.requests[usize::from(slot)];
        match (&mut self.ring, &mut tracker.marks) {
            (Ring::Split(ring), _) => {
                ring.take_chain(name, &self.memory, &mut self.hint, request)?
            }
            (Ring::Packed(ring), Marks::Packed(marks)) => {
                ring.retake(marks.left(name), &self.memory, &mut self.hint, request)?;
                marks.retaken(slot, name);
            }
            (Ring::Packed(_), Marks::Split(_)) => return Err(lost),
        }
        tracker.replayed[usize::from(slot)] = true;
        self.admit(slot)
    }

    #[inline(always)]
    fn take_next(&mut self) -> Result<Option<Slot>, Broken> {
        let available = match &mut self.ring {
            Ring::Split(ring) => ring.available()? > 0,
            Ring::Packed(ring) => ring.is_available(),
        };
        if !available {
            return Ok(None);
        }
        let Some(&slot) = self.free.last() else {
            return Err(Broken::TooManyInFlight { size: self.config.size });
        };
        let request = &mut self.requests[usize::from(slot)];
        match &mut self.ring {
            Ring::Split(ring) => ring.take(&self.memory, &mut self.hint, request)?,
            Ring::Packed(ring) => ring.take(&self.memory, &mut self.hint, request)?,
        }
        self.admit(slot).map(Some)
    }

    /// The request in `slot`, the next free one, is in flight.
    #[inline(always)]
    fn admit(&mut self, slot: u16) -> Result<Slot, Broken> {
        let request = &mut self.requests[usize::from(slot)];
        if fault::trips() != self.trips {
            if !self.memory.is_lost() {
                self.trips = fault::trips();
            } else if request.is_memory_lost() {
                // The bytes just read may be the zeroes that are there now.
                return Err(Broken::MemoryLost);
            }
        }
        request.in_flight = true;
        request.epoch = self.epoch;
        request.taken = self.taken;
        self.taken = self.taken.wrapping_add(1);
        self.free.pop();
        probes::request_taken(request);
        Ok(Slot(slot))
    }

    /// Puts the request that was taken last back into the ring, as if it had not been taken: for
    /// one that would hold up the end of the device, and whose effects may happen twice. Then the
    /// one before it is the last, unless it was answered already. Says whether it was the last, and
    /// is back. One that was taken again after another device ([`Queue::track`]) never is: it is
    /// not in the ring.
    ///
    /// # Panics
    /// When `slot` is not from this queue.
    pub fn put_back(&mut self, slot: Slot) -> bool {
        let request = &mut self.requests[usize::from(slot.0)];
        if request.taken != self.taken.wrapping_sub(1) || !request.in_flight {
            return false;
        }
        if let Some(tracker) = &mut self.tracker
            && !tracker.put_back(slot.0, request.id)
        {
            return false;
        }
        request.in_flight = false;
        self.taken = request.taken;
        match &mut self.ring {
            Ring::Split(ring) => ring.put_back(),
            Ring::Packed(ring) => ring.put_back(request.descriptors),
        }
        let epoch = request.epoch;
        request.give_back();
        self.free.push(slot.0);
        if !self.retired.is_empty() {
            self.release(epoch);
        }
        true
    }

    /// How many requests were taken since the one in `slot`, but for those that were put back. The
    /// one with the fewest is the one that [`Queue::put_back`] can put back.
    ///
    /// # Panics
    /// When `slot` is not from this queue.
    pub fn taken_since(&self, slot: Slot) -> u32 {
        self.taken.wrapping_sub(self.requests[usize::from(slot.0)].taken)
    }

    /// True if [`Queue::take`] would find a request.
    #[inline]
    pub fn has_available(&mut self) -> bool {
        if self.take_is_slow && self.is_replaying() {
            return true;
        }
        match &mut self.ring {
            // An index that is out of range is for `take` to report.
            Ring::Split(ring) => ring.available().map_or(true, |n| n > 0),
            Ring::Packed(ring) => ring.is_available(),
        }
    }

    /// A request that is in flight.
    ///
    /// # Panics
    /// When `slot` is not from this queue.
    #[inline]
    pub fn request(&self, slot: Slot) -> &Request {
        &self.requests[usize::from(slot.0)]
    }

    /// Answers a request. The driver sees it after [`Queue::show`]. Answering one that is not in
    /// flight has no effect.
    ///
    /// # Panics
    /// When `slot` is not from this queue.
    #[inline]
    pub fn answer(&mut self, slot: Slot, status: Status) {
        let request = &mut self.requests[usize::from(slot.0)];
        debug_assert!(request.in_flight, "{slot:?} answered twice");
        if !request.in_flight {
            return;
        }
        request.in_flight = false;
        probes::request_answered(request, status);
        request.set_status(status);
        let written = match request.kind {
            RequestKind::In | RequestKind::GetId if status == Status::Ok => request.len,
            RequestKind::Discard | RequestKind::WriteZeroes => {
                request.give_back_ranges();
                0
            }
            _ => 0,
        };
        //= virtio 2.7.8.2
        //# The device MUST write at least len bytes to descriptor, beginning at the first
        //# device-writable buffer, prior to updating the used idx.
        // So the status byte, which is the last one, counts only if all before it was written, too.
        let len = if written == request.room { written + 1 } else { written };
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        let (id, descriptors, epoch) = (request.id, request.descriptors, request.epoch);
        if self.answer_is_slow {
            self.answer_slow(slot, id, len, descriptors);
        } else {
            match &mut self.ring {
                Ring::Split(ring) => ring.put_used(id, len),
                Ring::Packed(ring) => ring.put_used(id, len, descriptors),
            }
            request.give_back();
        }
        self.free.push(slot.0);
        if !self.retired.is_empty() {
            self.release(epoch);
        }
    }

    /// As the usual way, and logged or tracked.
    #[inline(never)]
    fn answer_slow(&mut self, slot: Slot, id: u16, len: u32, descriptors: u16) {
        if let Some(log) = &self.log {
            log_request(log, &self.memory, &self.retired, &self.requests[usize::from(slot.0)]);
            self.unlogged = true;
        }
        let marks = self.tracker.as_mut().map(|tracker| {
            tracker.replayed[usize::from(slot.0)] = false;
            &mut tracker.marks
        });
        match (&mut self.ring, marks) {
            (Ring::Split(ring), marks) => {
                ring.put_used(id, len);
                if let Some(Marks::Split(marks)) = marks {
                    marks.answered(id);
                }
            }
            // It is written when it is shown.
            (Ring::Packed(_), Some(Marks::Packed(marks))) => marks.answered(slot.0, id, len),
            (Ring::Packed(ring), _) => ring.put_used(id, len, descriptors),
        }
        self.requests[usize::from(slot.0)].give_back();
    }

    /// A request of an earlier memory was answered: unmaps the memory that it was the last to need.
    #[cold]
    fn release(&mut self, epoch: u32) {
        if let Some(at) = self.retired.iter().position(|r| r.epoch == epoch) {
            self.retired[at].in_flight -= 1;
            if self.retired[at].in_flight == 0 {
                self.retired.swap_remove(at);
            }
        }
    }

    /// Shows all answers to the driver at once. Returns whether the driver wants to be signalled
    /// for them.
    #[inline]
    pub fn show(&mut self) -> bool {
        let signal = match &mut self.ring {
            Ring::Split(ring) => ring.publish(),
            Ring::Packed(ring) => ring.publish(),
        };
        if self.answer_is_slow { self.show_slow(signal) } else { signal }
    }

    /// Does the rest of showing where it is logged or tracked. Returns whether the driver wants to
    /// be signalled.
    #[inline(never)]
    fn show_slow(&mut self, mut signal: bool) -> bool {
        match (&mut self.ring, self.tracker.as_mut().map(|tracker| &mut tracker.marks)) {
            (_, Some(Marks::Split(marks))) => marks.shown(),
            (Ring::Packed(ring), Some(Marks::Packed(marks))) => signal |= marks.show(ring),
            _ => {}
        }
        // After the writes: a page that is copied between its mark and the write would be copied
        // too early.
        if self.unlogged {
            self.log_ring();
        }
        signal
    }

    /// Asks the driver for a kick at the next request. Returns true when one came meanwhile, for
    /// which there may be no kick: look again.
    ///
    /// # Errors
    /// [`Broken`], as [`Queue::take`].
    pub fn enable_notify(&mut self) -> Result<bool, Broken> {
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let result = match &mut self.ring {
            Ring::Split(ring) => ring.enable_notify(),
            Ring::Packed(ring) => Ok(ring.enable_notify()),
        };
        if self.log.is_some() {
            self.log_ring();
        }
        let came = result.map_err(|broken| self.fail(broken))?;
        Ok(came || self.is_replaying())
    }

    /// Asks the driver not to kick: the device looks anyway.
    pub fn disable_notify(&mut self) {
        match &mut self.ring {
            Ring::Split(ring) => ring.disable_notify(),
            Ring::Packed(ring) => ring.disable_notify(),
        }
        if self.log.is_some() {
            self.log_ring();
        }
    }

    /// The device stops, with no request in flight. A packed ring's position is left in it, for a
    /// next device whose front end does not know it. (In a split ring it is there anyway.)
    pub fn leave_place(&mut self) {
        if let Ring::Packed(ring) = &mut self.ring
            && self.broken.is_none()
            && self.requests.len() == self.free.len()
            && self.tracker.as_ref().is_none_or(|tracker| tracker.pending.is_empty())
        {
            ring.leave_place();
            if self.log.is_some() {
                self.log_ring();
            }
        }
    }

    /// True if the queue began where the last device left it, and not at [`QueueConfig::base`],
    /// which cannot be right.
    pub fn went_on(&self) -> bool {
        matches!(&self.ring, Ring::Packed(ring) if ring.went_on())
    }

    /// Requests taken and not answered.
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.requests.len() - self.free.len()
    }

    /// Where another back end must go on, in the form of [`QueueConfig::base`]. Exact only with no
    /// request in flight.
    pub fn base(&self) -> u32 {
        match &self.ring {
            Ring::Split(ring) => u32::from(ring.base()),
            Ring::Packed(ring) => ring.base(),
        }
    }

    /// Returns the configuration that it was set up with.
    pub fn config(&self) -> &QueueConfig {
        &self.config
    }

    /// The memory that new requests are checked against.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Continues with other memory. Requests in flight keep the old one mapped.
    ///
    /// # Errors
    /// [`QueueError`] when the ring itself is not in the new memory; the queue is broken then.
    pub fn set_memory(&mut self, memory: Arc<GuestMemory>) -> Result<(), QueueError> {
        let parts = match &mut self.ring {
            Ring::Split(ring) => {
                split_parts(&self.config, &memory).map(|parts| ring.set_parts(parts))
            }
            Ring::Packed(ring) => {
                packed_parts(&self.config, &memory).map(|parts| ring.set_parts(parts))
            }
        };
        if let Err(error) = parts {
            self.fail(Broken::RingUnmapped);
            return Err(error);
        }
        let old = std::mem::replace(&mut self.memory, memory);
        let in_flight = self.in_flight() - self.retired.iter().map(|r| r.in_flight).sum::<usize>();
        if in_flight > 0 {
            self.retired.push(Retired { memory: old, epoch: self.epoch, in_flight });
        }
        self.epoch = self.epoch.wrapping_add(1);
        self.hint = 0;
        self.trips = 0;
        Ok(())
    }

    /// Begins or ends the logging of written pages; `ring` is the guest physical address at which
    /// writes to the used ring are logged.
    pub fn set_log(&mut self, log: Option<Arc<DirtyLog>>, ring: Option<u64>) {
        self.answer_is_slow = log.is_some() || self.tracker.is_some();
        self.log = log;
        self.config.log_addr = ring;
    }

    /// True if the memory that the ring itself lies in was truncated under the queue. A request
    /// whose data lies in memory that was is another matter: it is seen when it is taken.
    pub fn is_memory_lost(&self) -> bool {
        self.memory.is_lost() && self.is_ring_lost()
    }

    #[cold]
    fn is_ring_lost(&self) -> bool {
        let is_lost = |part: *mut u8| fault::has_tripped(part as usize, 1);
        let parts = match self.config.layout {
            RingFormat::Split => {
                split_parts(&self.config, &self.memory).map(|p| [p.desc, p.avail, p.used])
            }
            RingFormat::Packed => packed_parts(&self.config, &self.memory)
                .map(|p| [p.ring, p.driver_event, p.device_event]),
        };
        parts.map_or(true, |parts| parts.into_iter().any(is_lost))
    }

    /// The part of the ring that the device writes is small: the whole of it is marked, once a
    /// batch.
    #[cold]
    fn log_ring(&mut self) {
        self.unlogged = false;
        let (Some(log), Some(addr)) = (&self.log, self.config.log_addr) else { return };
        match self.config.layout {
            RingFormat::Split => log.mark(addr, split::part_sizes(self.config.size).2),
            // Here the address that the front end gives is the device event structure's; the used
            // descriptors are in the descriptor ring.
            RingFormat::Packed => {
                let (ring, _, device) = packed::part_sizes(self.config.size);
                log.mark(addr, device);
                if let Some(desc) = self.memory.guest_of_user(self.config.desc) {
                    log.mark(desc, ring);
                }
            }
        }
    }
}

/// Marks the pages that the device wrote for one request: its data, if it was a reading one, and
/// the status byte.
#[cold]
fn log_request(log: &DirtyLog, memory: &GuestMemory, retired: &[Retired], request: &Request) {
    let mark = |host: *const u8, len: usize| {
        let memories = std::iter::once(memory).chain(retired.iter().map(|r| &*r.memory));
        if let Some(guest) = memories.into_iter().find_map(|m| m.guest_of_host(host)) {
            log.mark(guest, len as u64);
        }
    };
    mark(request.status, 1);
    if matches!(request.kind, RequestKind::In | RequestKind::GetId) {
        for buffer in request.buffers() {
            mark(buffer.iov_base.cast(), buffer.iov_len);
        }
    }
}

/// Host address of one part of a ring.
fn part(
    memory: &GuestMemory,
    part: &'static str,
    addr: u64,
    len: u64,
    align: u64,
) -> Result<*mut u8, QueueError> {
    let guest = memory.guest_of_user(addr);
    let host = guest.and_then(|guest| memory.translate(guest, len, &mut 0));
    let host = host.ok_or(QueueError::NotMapped { part, addr, len })?;
    if !(host as u64).is_multiple_of(align) {
        return Err(QueueError::Misaligned { part, addr, align });
    }
    Ok(host)
}

fn split_parts(config: &QueueConfig, memory: &GuestMemory) -> Result<split::Parts, QueueError> {
    let (desc, avail, used) = split::part_sizes(config.size);
    Ok(split::Parts {
        desc: part(memory, "descriptor table", config.desc, desc, 16)?,
        avail: part(memory, "available ring", config.driver, avail, 2)?,
        used: part(memory, "used ring", config.device, used, 4)?,
    })
}

fn packed_parts(config: &QueueConfig, memory: &GuestMemory) -> Result<packed::Parts, QueueError> {
    let (ring, driver, device) = packed::part_sizes(config.size);
    Ok(packed::Parts {
        ring: part(memory, "descriptor ring", config.desc, ring, 16)?,
        driver_event: part(memory, "driver event structure", config.driver, driver, 4)?,
        device_event: part(memory, "device event structure", config.device, device, 4)?,
    })
}

// SAFETY: the raw pointers inside refer to guest memory that `memory` and `retired` keep mapped; no
// thread but the queue's owner uses them.
unsafe impl Send for Queue {}
