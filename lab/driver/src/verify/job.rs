//! One job of a verified load or a check: one thread, one queue, its own part of the blocks.

use super::model::{Block, Mismatch};
use super::{FIRST, FLUSH_EVERY, VerifyReport, sector};
use crate::error::Error;
use crate::lanes::{Moment, Next, Out, Source};
use crate::random::Rng;
use crate::ring::{BlkQueue, Completion, Request, RequestKind};
use crate::workload::Workload;

/// One job's part of the blocks.
pub(super) struct VerifyJob<'a> {
    pub(super) blocks: &'a mut [Block],
    /// Random reads, writes and flushes; or else every block is read once.
    pub(super) load: Option<&'a Workload>,
    pub(super) run: u64,
    pub(super) first_sector: u64,
    pub(super) block: u32,
    /// True if an acknowledged write counts as flushed: there is no volatile cache.
    pub(super) durable_when_done: bool,
    pub(super) can_flush: bool,
    pub(super) rng: Rng,
    /// Requests that it may still begin.
    pub(super) left: u64,
    /// A last flush is to follow.
    pub(super) final_flush: bool,
    pub(super) busy: Vec<bool>,
    /// Blocks written and acknowledged since the last flush went out.
    pub(super) dirty: Vec<usize>,
    /// The coverage of the flush that is out: blocks, and the generation acknowledged when it was
    /// issued.
    pub(super) flushing: Option<Vec<(usize, u32)>>,
    pub(super) writes_since: u32,
    pub(super) next: usize,
    pub(super) buffer: Vec<u8>,
    pub(super) report: VerifyReport,
}

impl Source for VerifyJob<'_> {
    /// The block's place.
    type Tag = usize;

    fn next(
        &mut self,
        _lane: usize,
        queue: &mut BlkQueue,
        slot: u16,
        at: &Moment,
        out: &mut Out<usize>,
    ) -> Result<Next, Error> {
        let Some((kind, index)) = self.choose(at.ended, queue.held()) else {
            return Ok(Next::Later);
        };
        if kind == RequestKind::Flush {
            let covered = self.dirty.drain(..).map(|index| (index, self.blocks[index].acked));
            self.flushing = Some(covered.collect());
            self.writes_since = 0;
            return Ok(out.send(Request { kind, sector: 0, len: 0, ioprio: 0 }, index, at));
        }
        let first = self.sector(index);
        if kind == RequestKind::Write {
            let generation = self.blocks[index].issue();
            for (sector, bytes) in (first..).zip(self.buffer.as_chunks_mut::<512>().0) {
                sector::write(bytes, self.run, sector, generation);
            }
            if let Some(data) = queue.data_mut(slot) {
                data.copy_in(0, &self.buffer)?;
            }
            self.writes_since += 1;
        }
        self.busy[index] = true;
        let request = Request { kind, sector: first, len: self.block, ioprio: 0 };
        Ok(out.send(request, index, at))
    }

    fn done(
        &mut self,
        _lane: usize,
        queue: &BlkQueue,
        out: &Out<usize>,
        completion: &Completion,
        _at: &Moment,
    ) -> Result<(), Error> {
        let (index, ok) = (out.tag, completion.status == 0);
        self.report.errors.count(completion.status);
        match out.request.kind {
            RequestKind::Flush => {
                self.report.flushes += 1;
                for (index, generation) in self.flushing.take().into_iter().flatten() {
                    match ok {
                        true => self.blocks[index].flushed(generation),
                        // Still to be flushed.
                        false => self.dirty.push(index),
                    }
                }
            }
            RequestKind::Read => {
                self.report.reads += 1;
                self.busy[index] = false;
                if ok {
                    self.compare(queue, completion.slot, index)?;
                }
            }
            _ => {
                self.report.writes += 1;
                self.busy[index] = false;
                if ok {
                    self.blocks[index].acknowledge(self.durable_when_done);
                    self.dirty.push(index);
                }
            }
        }
        Ok(())
    }
}

impl VerifyJob<'_> {
    fn sector(&self, index: usize) -> u64 {
        self.first_sector + index as u64 * u64::from(self.block / 512)
    }

    /// The next request, until the time is over, the count is reached or all blocks are read. A
    /// flush follows when all requests have come back.
    fn choose(&mut self, ended: bool, held: u16) -> Option<(RequestKind, usize)> {
        if ended || self.left == 0 {
            let flush = held == 0 && std::mem::take(&mut self.final_flush);
            return flush.then_some((RequestKind::Flush, 0));
        }
        self.left -= 1;
        let Some(options) = self.load else {
            self.next += 1;
            return Some((RequestKind::Read, self.next - 1));
        };
        let due = self.writes_since >= options.flush_every.unwrap_or(FLUSH_EVERY).max(1);
        if due && self.can_flush && self.flushing.is_none() {
            return Some((RequestKind::Flush, 0));
        }
        // There are at least twice as many blocks as slots, so a free one is near.
        let mut index = usize::try_from(self.rng.below(self.blocks.len() as u64)).unwrap_or(0);
        while self.busy[index] {
            index = (index + 1) % self.blocks.len();
        }
        match self.rng.below(100) < u64::from(options.pattern.read_percent().unwrap_or_default()) {
            true => Some((RequestKind::Read, index)),
            false => Some((RequestKind::Write, index)),
        }
    }

    /// Compares what a read brought with what may be there.
    fn compare(&mut self, queue: &BlkQueue, slot: u16, index: usize) -> Result<(), Error> {
        if let Some(data) = queue.data(slot) {
            data.copy_out(0, &mut self.buffer)?;
        }
        let first = self.sector(index);
        let block = &mut self.blocks[index];
        let (mut low, mut high) = (u32::MAX, 0);
        let mut sound = true;
        for (sector, bytes) in (first..).zip(self.buffer.as_chunks::<512>().0) {
            let found = sector::read(bytes, self.run, sector);
            if let Some(generation) = block.accept(found) {
                (low, high) = (low.min(generation), high.max(generation));
                continue;
            }
            sound = false;
            self.report.mismatches += 1;
            if self.report.first.len() < FIRST {
                self.report.first.push(Mismatch::new(sector, block, found));
            }
        }
        if sound && block.observe(low, high) {
            self.report.unflushed_lost += 1;
        }
        Ok(())
    }
}
