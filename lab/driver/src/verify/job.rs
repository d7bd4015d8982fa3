//! One job of a verified load or a check: one thread, one queue, its own part of the blocks.

use std::sync::atomic::Ordering;

use crate::ring::{Completion, Request, RequestKind};
use vlane_error::counted;

use super::model::{Block, Mismatch};
use super::{FIRST, VerifyOptions, VerifyReport, sector};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::job::Shared;
use crate::random::Rng;
use crate::session::GuestQueue;
use crate::workload::Wait;

/// The job's mode.
#[derive(Debug, Clone, Copy)]
pub(super) enum Mode<'a> {
    /// Random reads, writes and flushes.
    Load(&'a VerifyOptions),
    /// Every block read once.
    Check,
}

/// A request that is out.
#[derive(Debug, Clone)]
enum Out {
    Nothing,
    Read(usize),
    Write(usize),
    /// The flush's coverage: blocks and the generation acknowledged when it was issued.
    Flush(Vec<(usize, u32)>),
}

pub(super) struct VerifyJob<'a> {
    queue: &'a mut GuestQueue,
    blocks: &'a mut [Block],
    mode: Mode<'a>,
    run: u64,
    first_sector: u64,
    block: u32,
    /// True if an acknowledged write counts as flushed: there is no volatile cache.
    pub(super) durable_when_done: bool,
    pub(super) can_flush: bool,
    rng: Rng,
    busy: Vec<bool>,
    out: Vec<Out>,
    idle: Vec<u16>,
    /// Blocks written and acknowledged since the last flush went out.
    dirty: Vec<usize>,
    writes_since: u32,
    flushing: bool,
    next: usize,
    buffer: Vec<u8>,
    report: VerifyReport,
}

impl<'a> VerifyJob<'a> {
    pub(super) fn new(
        queue: &'a mut GuestQueue,
        blocks: &'a mut [Block],
        mode: Mode<'a>,
        index: u64,
        run: u64,
        first_sector: u64,
        block: u32,
    ) -> Self {
        let depth = queue.blk.depth();
        let seed = if let Mode::Load(options) = mode { options.seed } else { 0 };
        Self {
            rng: Rng::new(seed ^ run ^ index << 48),
            busy: vec![false; blocks.len()],
            out: vec![Out::Nothing; depth.into()],
            idle: (0..depth).collect(),
            queue,
            blocks,
            mode,
            run,
            first_sector,
            block,
            durable_when_done: false,
            can_flush: true,
            dirty: Vec::new(),
            writes_since: 0,
            flushing: false,
            next: 0,
            buffer: vec![0; block as usize],
            report: VerifyReport::default(),
        }
    }

    /// Runs until the time is over, the count is reached or all blocks are read; then until all
    /// requests have come back, and flushes.
    pub(super) fn run(
        mut self,
        shared: &Shared,
        clock: &Clock,
        until: u64,
        count: u64,
    ) -> Result<VerifyReport, Error> {
        let mut done = Vec::with_capacity(self.out.len());
        let mut left =
            if matches!(self.mode, Mode::Check) { self.blocks.len() as u64 } else { count };
        let mut final_flush = matches!(self.mode, Mode::Load(_)) && self.can_flush;
        self.queue.blk.disable_interrupts();
        loop {
            let over = left == 0 || clock.now() >= until || shared.stop.load(Ordering::Relaxed);
            while !over && left > 0 {
                let Some(slot) = self.idle.pop() else { break };
                left -= 1;
                self.begin(slot)?;
            }
            if over && self.queue.blk.held() == 0 {
                if !std::mem::take(&mut final_flush) {
                    break;
                }
                if let Some(slot) = self.idle.pop() {
                    self.begin_flush(slot)?;
                }
            }
            if self.queue.blk.publish() {
                self.queue.kick()?;
            }
            loop {
                if shared.abort.load(Ordering::Relaxed) {
                    if shared.gone.load(Ordering::Relaxed) {
                        self.report.backend_gone = true;
                        return Ok(self.report);
                    }
                    let context =
                        format!("{} never came back", counted(self.queue.blk.held(), "request"));
                    return Err(Error::new(ErrorKind::Timeout, context));
                }
                self.queue.blk.reap(&mut done)?;
                if !done.is_empty() {
                    break;
                }
                self.wait()?;
                if shared.stop.load(Ordering::Relaxed) && !over {
                    break;
                }
            }
            shared.done.fetch_add(done.len() as u64, Ordering::Relaxed);
            for completion in done.drain(..) {
                self.end(completion)?;
            }
        }
        self.queue.blk.enable_interrupts();
        Ok(self.report)
    }

    fn wait(&mut self) -> Result<(), Error> {
        if matches!(self.mode, Mode::Load(VerifyOptions { wait: Wait::Poll, .. })) {
            std::hint::spin_loop();
            return Ok(());
        }
        if !self.queue.blk.enable_interrupts() {
            self.queue.wait()?;
        }
        self.queue.blk.disable_interrupts();
        Ok(())
    }

    /// Puts a request into an idle slot.
    fn begin(&mut self, slot: u16) -> Result<(), Error> {
        let Mode::Load(options) = self.mode else {
            let index = self.next;
            self.next += 1;
            return self.begin_read(slot, index);
        };
        if self.can_flush && !self.flushing && self.writes_since >= options.flush_every.max(1) {
            return self.begin_flush(slot);
        }
        // There are at least twice as many blocks as slots, so a free one is near.
        let mut index = usize::try_from(self.rng.below(self.blocks.len() as u64)).unwrap_or(0);
        while self.busy[index] {
            index = (index + 1) % self.blocks.len();
        }
        if self.rng.below(100) < u64::from(options.read_percent) {
            self.begin_read(slot, index)
        } else {
            self.begin_write(slot, index)
        }
    }

    fn sector(&self, index: usize) -> u64 {
        self.first_sector + index as u64 * u64::from(self.block / 512)
    }

    fn begin_read(&mut self, slot: u16, index: usize) -> Result<(), Error> {
        let request = Request {
            kind: RequestKind::Read,
            sector: self.sector(index),
            len: self.block,
            ioprio: 0,
        };
        self.queue.blk.submit(slot, request)?;
        self.busy[index] = true;
        self.out[usize::from(slot)] = Out::Read(index);
        Ok(())
    }

    fn begin_write(&mut self, slot: u16, index: usize) -> Result<(), Error> {
        let first = self.sector(index);
        let generation = self.blocks[index].issue();
        for (sector, bytes) in (first..).zip(self.buffer.as_chunks_mut::<512>().0) {
            sector::write(bytes, self.run, sector, generation);
        }
        if let Some(data) = self.queue.blk.data_mut(slot) {
            data.copy_in(0, &self.buffer)?;
        }
        let request =
            Request { kind: RequestKind::Write, sector: first, len: self.block, ioprio: 0 };
        self.queue.blk.submit(slot, request)?;
        self.busy[index] = true;
        self.writes_since += 1;
        self.out[usize::from(slot)] = Out::Write(index);
        Ok(())
    }

    fn begin_flush(&mut self, slot: u16) -> Result<(), Error> {
        let request = Request { kind: RequestKind::Flush, sector: 0, len: 0, ioprio: 0 };
        self.queue.blk.submit(slot, request)?;
        let blocks = &self.blocks;
        let covered = self.dirty.drain(..).map(|index| (index, blocks[index].acked)).collect();
        (self.writes_since, self.flushing) = (0, true);
        self.out[usize::from(slot)] = Out::Flush(covered);
        Ok(())
    }

    /// Takes account of a completion.
    fn end(&mut self, completion: Completion) -> Result<(), Error> {
        let slot = completion.slot;
        let ok = completion.status == 0;
        self.report.errors.count(completion.status);
        self.idle.push(slot);
        match std::mem::replace(&mut self.out[usize::from(slot)], Out::Nothing) {
            Out::Nothing => {}
            Out::Write(index) => {
                self.report.writes += 1;
                self.busy[index] = false;
                if ok {
                    self.blocks[index].acknowledge(self.durable_when_done);
                    self.dirty.push(index);
                }
            }
            Out::Read(index) => {
                self.report.reads += 1;
                self.busy[index] = false;
                if ok {
                    self.compare(slot, index)?;
                }
            }
            Out::Flush(covered) => {
                self.report.flushes += 1;
                self.flushing = false;
                for (index, generation) in covered {
                    match ok {
                        true => self.blocks[index].flushed(generation),
                        // Still to be flushed.
                        false => self.dirty.push(index),
                    }
                }
            }
        }
        Ok(())
    }

    /// Compares what a read brought with what may be there.
    fn compare(&mut self, slot: u16, index: usize) -> Result<(), Error> {
        if let Some(data) = self.queue.blk.data(slot) {
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
