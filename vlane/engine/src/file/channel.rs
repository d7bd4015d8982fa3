//! A lane's way into a file or device on a disk: io_uring, and inline writes where the page cache
//! takes them.
//!
//! A request is in one [`Stage`] at a time, and has at most one operation under way. The usual one
//! is an operation on all of its data that is done when it completes: Such a request goes through
//! [`Channel::begin`] and [`Channel::finished`] only, and they keep no state for it. All other
//! transfers (in parts, in part, not aligned, refused for the moment) are `transfer.rs`; DISCARD
//! and WRITE_ZEROES are `ranges.rs`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use crate::Mode;
use vlane_ring::RequestKind;

use super::bounce::Pool;
use super::cache_budget::{CacheBudget, Marker};
use super::discard::Results;
use super::early::{Early, Written};
use super::exclusion::{Hold, Holder};
use super::flushes::{Asked, End, FlushResult, Flusher};
use super::inline::Attempt;
use super::journal::Sense;
use super::placements::Placer;
use super::sync_thread::SyncThread;
use super::transfer::{self, Align, Data, Extent, Failure, Means, Next, Transfer};
use super::turns::{Turn, Turns};
use super::{Cache, Shared, inline, span};
use crate::recorder;
use crate::sync::Waker;
use crate::{
    Channel, ChannelStats, Class, EngineError, Instant, Outcome, PART, Request, Slot, Status,
    Taken, Writeback,
};
use vlane_io::{Completion, Decisions, Operation, Placement, StorageFile};

/// The present step of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Stage {
    /// One operation on all of its data.
    #[default]
    Straight,
    /// Its data, in another way.
    Transfer,
    /// A range of a DISCARD or WRITE_ZEROES.
    Range,
    /// Zeroes being written to a part of such a range.
    Zeroes,
    /// Its writes being made durable.
    Sync,
}

/// How far one request has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    pub(super) stage: Stage,
    /// Its data was durable when written.
    pub(super) durable: bool,
    /// Its flush covers all that was answered before write-through was switched on.
    pays: bool,
    /// The result of its flush.
    told: Option<FlushResult>,
    pub(super) retries: u32,
    /// It left the thread, and has not come back.
    has_left: bool,
    /// Its hold on blocks of the volume.
    pub(super) hold: Option<Hold>,
    pub(super) transfer: Transfer,
    /// The range that is being worked on, how many of its bytes are done, and how many are being
    /// done.
    pub(super) range: usize,
    pub(super) done: u64,
    pub(super) part: u64,
    /// Which of a range's ways is being tried.
    pub(super) way: usize,
    /// Its turn among discards and zeroings.
    pub(super) turn: Option<Turn>,
    /// The kernel may hold its lock of the file for it.
    pub(super) is_exclusive: bool,
    /// A thread's discard is next.
    pub(super) is_armed: bool,
    /// The result of the device's discard.
    pub(super) discarded: Option<i32>,
}

/// A channel's notes for the threads that follow what the page cache holds.
#[derive(Debug)]
struct CacheWatch {
    /// The volume has a budget of the page cache.
    budget: Option<Marker>,
    /// Requests have classes.
    early: Option<Arc<Written>>,
}

impl CacheWatch {
    /// None if there is no such thread.
    fn new(budget: Option<Marker>, early: Option<Arc<Written>>) -> Option<CacheWatch> {
        (budget.is_some() || early.is_some()).then_some(CacheWatch { budget, early })
    }

    /// The channel begins a read or a write through the page cache. A call of its own: inlined, it
    /// costs volumes without such a thread too much.
    #[inline(never)]
    fn note_access(&mut self, is_write: bool, offset: u64, len: u64, class: Class) {
        if let Some(marker) = &mut self.budget {
            marker.mark(is_write, offset, len);
        }
        if let Some(written) = &self.early {
            if class == Class::Express {
                written.sees_foreground();
            }
            if is_write {
                written.note(offset, len);
            }
        }
    }
}

/// A lane's way into a file or device.
#[derive(Debug)]
pub(super) struct FileChannel {
    pub(super) shared: Arc<Shared>,
    pub(super) progress: Box<[Progress]>,
    write_through: bool,
    /// Writes were answered that are not durable yet, and write-through was switched on since.
    debt: bool,
    pub(super) flusher: Flusher,
    writes: inline::Writes,
    pool: Pool,
    /// None: there are no blocks that a request could be part of.
    pub(super) holder: Option<Holder>,
    pub(super) discards: Option<Results>,
    pub(super) turns: Turns,
    /// Only where parts of the volume are read and written around the page cache.
    pub(super) placer: Option<Placer>,
    doorbell: Arc<Waker>,
    /// Only while journals are looked for.
    sense: Option<Sense>,
    /// Only while some thread follows what the page cache holds.
    cache_watch: Option<CacheWatch>,
    /// When it was made: a deadline that is over.
    past: Instant,
    pub(super) stats: ChannelStats,
    /// As long as flushes may wait for it.
    _syncs: Arc<SyncThread>,
}

impl FileChannel {
    pub(super) fn new(
        shared: Arc<Shared>,
        slots: u16,
        syncs: Arc<SyncThread>,
    ) -> Result<FileChannel, EngineError> {
        // The simulator has no threads.
        let has_threads = !cfg!(vlane_simulated);
        let discards_by_thread =
            has_threads && shared.is_device && shared.can_discard && !shared.read_only;
        let doorbell = Arc::new(doorbell(&shared.path)?);
        let rung = || Arc::clone(&doorbell);
        Ok(FileChannel {
            progress: (0..slots).map(|_| Progress::default()).collect(),
            write_through: shared.cache == Cache::WriteThrough,
            debt: false,
            flusher: Flusher::new(&shared.flushes, rung()),
            writes: inline::Writes::new(&shared.pace),
            pool: Pool::default(),
            holder: shared.exclusion.as_ref().map(|exclusion| Holder::new(exclusion, rung())),
            discards: discards_by_thread.then(|| Results::new(rung())),
            turns: shared.turns.map_or_else(Turns::default, Turns::new),
            placer: shared
                .placements
                .as_ref()
                .map(|placements| Placer::new(placements, slots, rung())),
            doorbell,
            sense: shared.journal.as_ref().map(super::journal::Journal::sense),
            cache_watch: CacheWatch::new(shared.budget.as_ref().map(CacheBudget::marker), None),
            past: Instant::now(),
            stats: ChannelStats::default(),
            _syncs: syncs,
            shared,
        })
    }

    pub(super) fn at(&mut self, slot: Slot) -> &mut Progress {
        &mut self.progress[usize::from(slot.0)]
    }

    /// The number of the file, and its demands.
    #[inline]
    pub(super) fn way_in(&self, placement: Placement) -> (u8, Align) {
        match placement {
            Placement::Direct => (0, self.shared.align),
            Placement::Cached => (self.shared.cached_file(), Align::NONE),
        }
    }

    /// Reports a changing request to the search for journals.
    #[inline]
    pub(super) fn notice(&mut self, request: &Request, decisions: Decisions) {
        if let Some(sense) = &mut self.sense {
            sense.begins(request, decisions.durable);
        }
    }

    /// Begins a read or write.
    #[inline]
    fn begin_transfer(&mut self, taken: Taken<'_>, operations: &mut Vec<Operation>) -> Outcome {
        let write = taken.request.kind() == RequestKind::Out;
        let len = taken.request.len();
        let Some((offset, _)) = span(taken.request.sector(), len) else {
            return Outcome::Done(Status::IoErr);
        };
        if len == 0 {
            return Outcome::Done(Status::Ok);
        }
        let (file, align) = self.way_in(taken.decisions.placement);
        if let Some(watch) = &mut self.cache_watch
            && taken.decisions.placement == Placement::Cached
        {
            watch.note_access(write, offset, len, taken.decisions.class);
        }
        if taken.decisions.placement == Placement::Direct {
            if !align.takes_all(taken.request, offset) {
                self.stats.bounced += 1;
                return self.begin_in_parts(taken, 0, operations);
            }
            if write && self.shared.kernel_lock.is_held() {
                return self.begin_in_parts(taken, 0, operations);
            }
        } else if write && !taken.decisions.durable && len <= inline::LARGEST {
            let fd = self.shared.files[usize::from(file)].file().as_raw_fd();
            let told = recorder::RecordedCall::write(
                self.shared.recorder.as_ref(),
                taken.request,
                0,
                (file, offset, len),
            );
            // SAFETY: the request's buffers are mapped as long as it is in flight.
            let attempt = unsafe { self.writes.attempt(fd, taken.request.buffers(), offset) };
            told.end(if let Attempt::Took(n) = attempt { n.cast_signed() } else { 0 });
            match attempt {
                Attempt::Took(n) if n == len => {
                    self.stats.inline += 1;
                    self.flusher.count();
                    return Outcome::Done(Status::Ok);
                }
                Attempt::Took(0) => {}
                Attempt::Took(n) => {
                    return self.begin_in_parts(taken, n, operations);
                }
                Attempt::Leaves => return self.leave(taken, operations),
            }
        }
        if len > PART {
            return self.begin_in_parts(taken, 0, operations);
        }
        if write {
            if taken.decisions.placement == Placement::Direct
                && let Some(holder) = &mut self.holder
            {
                let hold = holder.begin_write(taken.slot, offset..offset + len);
                if hold.is_none() {
                    return self.wait_for_blocks(taken);
                }
                self.at(taken.slot).hold = hold;
            }
            if taken.decisions.durable {
                self.at(taken.slot).durable = true;
            }
        }
        Outcome::Whole(file)
    }

    /// Returns the extent that a read or write moves.
    fn extent(&self, request: &Request, decisions: Decisions) -> Extent {
        let (file, align) = self.way_in(decisions.placement);
        // It was one when the request was begun.
        let offset = span(request.sector(), request.len()).map_or(0, |(offset, _)| offset);
        let write = request.kind() == RequestKind::Out;
        Extent { data: Data::Request(0), write, file, offset, len: request.len(), align }
    }

    /// Begins a transfer that is not one operation on all of the request's data, or continues it
    /// after its first `done` bytes.
    #[cold]
    fn begin_in_parts(
        &mut self,
        taken: Taken<'_>,
        done: u64,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        self.note(taken, done);
        self.proceed(taken, None, operations)
    }

    /// A write to the page cache leaves the thread: a worker, which can wait, does it.
    #[cold]
    fn leave(&mut self, taken: Taken<'_>, operations: &mut Vec<Operation>) -> Outcome {
        self.note(taken, 0);
        self.writes.leaves();
        let progress = self.at(taken.slot);
        progress.has_left = true;
        progress.transfer.may_wait();
        self.proceed(taken, None, operations)
    }

    /// An operation of a request has ended, if there was one: the end of a write that had left the
    /// thread shows how long writes take.
    fn comes_back(&mut self, slot: Slot) {
        if std::mem::take(&mut self.at(slot).has_left) {
            self.writes.ended();
        }
    }

    /// The blocks of a write are being changed: it waits for them.
    #[cold]
    fn wait_for_blocks(&mut self, taken: Taken<'_>) -> Outcome {
        self.note(taken, 0);
        Outcome::Pending
    }

    /// Notes a transfer of which `done` bytes are done.
    fn note(&mut self, taken: Taken<'_>, done: u64) {
        let transfer = Transfer::new(self.extent(taken.request, taken.decisions), done);
        let progress = self.at(taken.slot);
        progress.stage = Stage::Transfer;
        progress.durable = taken.decisions.durable;
        progress.transfer = transfer;
    }

    /// Lets a transfer go on: after an operation, or after a wait.
    pub(super) fn proceed(
        &mut self,
        taken: Taken<'_>,
        completion: Option<Completion>,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        let is_in_turn =
            self.at(taken.slot).stage != Stage::Zeroes || self.has_turn(taken.slot, Turn::Zeroing);
        if !is_in_turn {
            return Outcome::Pending;
        }
        let (progress, mut means) = self.means(taken.slot, taken.decisions.placement);
        // All parts are durable, or the whole is not: the guest may have switched since the
        // beginning.
        *progress.durable &= taken.decisions.durable;
        // Zeroes are made durable all together, when all are written.
        let durable = taken.decisions.durable && progress.stage == Stage::Transfer;
        let next = match completion {
            None => progress.transfer.go_on(taken.request, durable, &mut means),
            Some(completion) => {
                progress.transfer.finished(taken.request, durable, completion, &mut means)
            }
        };
        match next {
            Next::Operation(operation) => {
                operations.push(operation);
                Outcome::Pending
            }
            Next::Wait => {
                self.end_turn(taken.slot);
                Outcome::Pending
            }
            Next::Done if progress.stage == Stage::Zeroes => {
                self.end_turn(taken.slot);
                self.range_part_done(taken.slot);
                self.next_range(taken, operations)
            }
            Next::Done if self.has_next_part(taken.slot, taken.request) => {
                self.next_part(taken, operations)
            }
            Next::Done => self.all_done(taken),
            Next::Failed(failure) => self.fail(taken, failure),
        }
    }

    /// A request's state, and the means for its transfer.
    fn means(&mut self, slot: Slot, placement: Placement) -> (ProgressOfTransfer<'_>, Means<'_>) {
        let FileChannel { shared, progress, pool, holder, stats, .. } = self;
        let Progress { stage, durable, hold, transfer, .. } = &mut progress[usize::from(slot.0)];
        let is_direct = placement == Placement::Direct;
        let holder = holder.as_mut().filter(|_| is_direct);
        let patient = is_direct && shared.kernel_lock.is_held();
        let means = Means { slot, pool, holder, hold, patient, stats };
        (ProgressOfTransfer { stage: *stage, durable, transfer }, means)
    }

    /// All that a request was to do is done: it is answered, if it need not be made durable.
    pub(super) fn all_done(&mut self, taken: Taken<'_>) -> Outcome {
        if taken.request.kind() == RequestKind::In {
            return self.answer(taken.slot, Status::Ok);
        }
        let is_durable = taken.decisions.durable && self.at(taken.slot).durable;
        if !is_durable {
            self.flusher.count();
        }
        if !taken.decisions.durable || taken.request.kind() == RequestKind::Discard {
            return self.answer(taken.slot, Status::Ok);
        }
        if self.debt || !is_durable {
            return self.flush(taken.slot, Writeback::Write);
        }
        let status = self.proven(Writeback::Write);
        self.answer(taken.slot, status)
    }

    /// Makes everything durable that was answered before.
    fn flush(&mut self, slot: Slot, asks: Writeback) -> Outcome {
        let progress = self.at(slot);
        (progress.stage, progress.pays) = (Stage::Sync, true);
        match self.flusher.ask(slot, asks) {
            Asked::Durable => {
                self.stats.flushes_skipped += 1;
                let is_lost = self.shared.durability.ask(asks);
                self.flushed(slot, !is_lost)
            }
            Asked::Wait => Outcome::Pending,
        }
    }

    /// The answer to a flush, or a durable write, that the system reports as done. The system does
    /// so for one of two that run together, even if pages of both are lost.
    fn proven(&mut self, during: Writeback) -> Status {
        if self.shared.durability.ask(during) { self.lost() } else { Status::Ok }
    }

    /// The answer to everything but reads once something was lost.
    #[cold]
    pub(super) fn lost(&mut self) -> Status {
        self.stats.lost_errors += 1;
        Status::IoErr
    }

    /// An operation that can be tried again was refused for the moment.
    pub(super) fn may_retry(&mut self, slot: Slot, errno: i32) -> bool {
        let progress = &mut self.progress[usize::from(slot.0)];
        let retries = transfer::is_momentary(errno) && progress.retries < transfer::MAX_RETRIES;
        if retries {
            progress.retries += 1;
            self.stats.retries += 1;
        }
        retries
    }

    /// Leaves the slot as the next request wants to find it.
    pub(super) fn answer(&mut self, slot: Slot, status: Status) -> Outcome {
        let FileChannel { progress, holder, turns, writes, .. } = self;
        let progress = &mut progress[usize::from(slot.0)];
        transfer::release(holder.as_mut(), &mut progress.hold);
        match progress.stage {
            Stage::Straight => progress.durable = false,
            _ => {
                // It failed before a worker had it.
                if progress.has_left {
                    writes.ended();
                }
                if let Some(turn) = progress.turn {
                    turns.end(turn);
                }
                *progress = Progress::default();
            }
        }
        Outcome::Done(status)
    }

    /// Handles all but the usual completion: see [`Channel::finished`].
    #[cold]
    fn finished_in_parts(
        &mut self,
        taken: Taken<'_>,
        completion: Completion,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        match self.at(taken.slot).stage {
            Stage::Straight => {
                let transfer = Transfer::begun(self.extent(taken.request, taken.decisions));
                let progress = self.at(taken.slot);
                progress.stage = Stage::Transfer;
                progress.transfer = transfer;
                self.proceed(taken, Some(completion), operations)
            }
            Stage::Transfer | Stage::Zeroes => {
                self.comes_back(taken.slot);
                self.proceed(taken, Some(completion), operations)
            }
            Stage::Range => self.range_completed(taken, completion.result, operations),
            // It has no operation: a thread does the `fdatasync`.
            Stage::Sync => Outcome::Pending,
        }
    }

    /// An `fdatasync` that covers it has ended.
    fn synced(&mut self, taken: Taken<'_>, told: FlushResult) -> Outcome {
        match told.is_own {
            true => self.stats.fdatasyncs += 1,
            false => self.stats.flushes_shared += 1,
        }
        match told.end {
            End::Failed(errno) if told.is_own => self.fail(taken, Failure::System(errno)),
            end => self.flushed(taken.slot, end == End::Well),
        }
    }

    /// The end of a flush, and whether it is one that went well.
    fn flushed(&mut self, slot: Slot, ok: bool) -> Outcome {
        if !ok || self.shared.durability.is_lost() {
            let status = self.lost();
            return self.answer(slot, status);
        }
        self.debt &= !self.at(slot).pays;
        if let Some(sense) = &mut self.sense {
            sense.flushed();
        }
        if let Some(marker) = self.cache_watch.as_mut().and_then(|watch| watch.budget.as_mut()) {
            marker.flushed();
        }
        self.answer(slot, Status::Ok)
    }

    /// See [`Channel::begin`].
    #[inline]
    pub(super) fn begin_placed(
        &mut self,
        taken: Taken<'_>,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        match taken.request.kind() {
            RequestKind::In => self.begin_transfer(taken, operations),
            RequestKind::GetId | RequestKind::Refused(_) | RequestKind::Unreachable => {
                Outcome::Done(Status::Unsupported)
            }
            RequestKind::Flush if self.shared.read_only => Outcome::Done(Status::Ok),
            _ if self.shared.durability.is_lost() => Outcome::Done(self.lost()),
            RequestKind::Out => {
                self.notice(taken.request, taken.decisions);
                self.begin_transfer(taken, operations)
            }
            //= virtio 5.2.6.2
            //# If the device is backed by persistent storage, the device MUST ensure that stable
            //# writes are committed to it, before reporting completion of the write (cases 1 and 2)
            //# or the flush (case 3).
            RequestKind::Flush => self.flush(taken.slot, Writeback::Flush),
            //= virtio 5.2.6.2
            //# After a write zeroes command is completed, reads of the specified ranges of sectors
            //# MUST return zeroes.
            RequestKind::Discard | RequestKind::WriteZeroes => {
                self.notice(taken.request, taken.decisions);
                self.at(taken.slot).stage = Stage::Range;
                self.next_range(taken, operations)
            }
        }
    }

    /// See [`Channel::finished`].
    #[inline]
    pub(super) fn finished_placed(
        &mut self,
        taken: Taken<'_>,
        completion: Completion,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        let progress = &mut self.progress[usize::from(taken.slot.0)];
        let is_whole = u64::try_from(completion.result).is_ok_and(|n| n == taken.request.len());
        if progress.stage != Stage::Straight || !is_whole {
            return self.finished_in_parts(taken, completion, operations);
        }
        // The usual end, without touching the rest of the state.
        if taken.request.kind() == RequestKind::In {
            return Outcome::Done(Status::Ok);
        }
        if let Some(holder) = &mut self.holder
            && let Some(hold) = progress.hold.take()
        {
            holder.end(hold);
        }
        if !taken.decisions.durable {
            self.flusher.count();
            return Outcome::Done(Status::Ok);
        }
        self.all_done(taken)
    }

    /// See [`Channel::go_on`].
    pub(super) fn resume(&mut self, taken: Taken<'_>, operations: &mut Vec<Operation>) -> Outcome {
        match self.at(taken.slot).stage {
            Stage::Transfer | Stage::Zeroes => self.proceed(taken, None, operations),
            Stage::Range => match self.at(taken.slot).discarded.take() {
                Some(result) => self.range_completed(taken, result, operations),
                None => self.next_range(taken, operations),
            },
            Stage::Sync => match self.at(taken.slot).told.take() {
                Some(told) => self.synced(taken, told),
                None => Outcome::Pending,
            },
            // Such a completion is never reported here.
            Stage::Straight => Outcome::Pending,
        }
    }
}

/// The parts of a request's [`Progress`] that a transfer uses.
struct ProgressOfTransfer<'a> {
    stage: Stage,
    durable: &'a mut bool,
    transfer: &'a mut Transfer,
}

impl Channel for FileChannel {
    fn files(&self) -> &[StorageFile] {
        &self.shared.files
    }

    fn defaults(&self) -> Decisions {
        let placement = match self.shared.cache {
            Cache::None => Placement::Direct,
            _ => Placement::Cached,
        };
        Decisions { placement, durable: self.write_through, ..Decisions::default() }
    }

    #[inline]
    fn begin(&mut self, taken: Taken<'_>, operations: &mut Vec<Operation>) -> Outcome {
        if self.placer.is_some() {
            return self.submit_placed(taken, operations);
        }
        self.begin_placed(taken, operations)
    }

    #[inline]
    fn finished(
        &mut self,
        taken: Taken<'_>,
        completion: Completion,
        operations: &mut Vec<Operation>,
    ) -> Outcome {
        if self.placer.is_some() {
            return self.completed_placed(taken, completion, operations);
        }
        self.finished_placed(taken, completion, operations)
    }

    fn go_on(&mut self, taken: Taken<'_>, operations: &mut Vec<Operation>) -> Outcome {
        if self.placer.is_some() {
            return self.go_on_placed(taken, operations);
        }
        self.resume(taken, operations)
    }

    fn forget(&mut self, slot: Slot) {
        self.comes_back(slot);
        let (progress, mut means) = self.means(slot, Placement::Direct);
        progress.transfer.forget(&mut means);
        self.flusher.forget(slot);
        self.end_turn(slot);
        self.turns.forget(slot);
        self.range_ended(slot);
        *self.at(slot) = Progress::default();
        if let Some(placer) = &mut self.placer {
            placer.end(slot);
        }
    }

    fn waiting(&self, slots: &mut Vec<Slot>) {
        slots.extend(self.turns.waiting());
    }

    fn poll(&mut self, _now: Instant, ready: &mut Vec<Slot>) {
        while let Some((slot, turn)) = self.turns.next() {
            self.at(slot).turn = Some(turn);
            ready.push(slot);
        }
        while let Some((slot, piece)) = self.pool.next_ready() {
            self.at(slot).transfer.give(piece);
            ready.push(slot);
        }
        while let Some((slot, hold)) = self.holder.as_mut().and_then(Holder::granted) {
            self.at(slot).hold = Some(hold);
            ready.push(slot);
        }
        while let Some((slot, result)) = self.discards.as_mut().and_then(Results::next) {
            self.at(slot).discarded = Some(result);
            ready.push(slot);
        }
        while let Some((slot, told)) = self.flusher.next_result() {
            self.at(slot).told = Some(told);
            ready.push(slot);
        }
        while let Some(slot) = self.placer.as_mut().and_then(Placer::freed) {
            ready.push(slot);
        }
    }

    fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.doorbell.as_fd())
    }

    fn deadline(&self) -> Option<Instant> {
        let is_freed = || self.placer.as_ref().is_some_and(Placer::is_freed);
        let is_ready = self.pool.is_ready() || self.turns.is_ready();
        (is_ready || self.flusher.is_told() || is_freed()).then_some(self.past)
    }

    fn set_mode(&mut self, mode: Mode) {
        let early = if mode.classifies() { self.shared.early() } else { None };
        let budget = self.cache_watch.take().and_then(|watch| watch.budget);
        self.cache_watch = CacheWatch::new(budget, early.map(Early::written));
    }

    fn set_write_through(&mut self, on: bool) {
        let on = on || self.shared.cache == Cache::WriteThrough;
        // The guest is not going to flush what it wrote before.
        if on && !self.write_through {
            self.debt = true;
            self.progress.iter_mut().for_each(|progress| progress.pays = false);
        }
        self.write_through = on;
    }

    fn is_in_journal(&mut self, request: &Request) -> bool {
        self.sense.as_mut().is_some_and(|sense| sense.is_in_journal(request))
    }

    fn stats(&self) -> ChannelStats {
        self.stats
    }
}

/// Makes the eventfd that wakes a channel.
fn doorbell(path: &std::path::Path) -> Result<Waker, EngineError> {
    use rustix::event::EventfdFlags;
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|error| {
        let text = "no eventfd for a queue's wake-ups; raise the limit of open files (ulimit -n)";
        EngineError::caused_at(path, crate::ErrorKind::Limit, text, error)
    })
}
