//! Writes, and changes of part of a block, by several lanes.
//!
//! A block is a word of two halves. A write stores both; a change reads both and stores one anew:
//! as between a lane and a device, only in fewer steps. A change that begins too early, or does not
//! see what ended before it, puts the old half back.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::{AtomicI32, AtomicU64 as Plain, Ordering::SeqCst};

use loom::thread;
use vlane_ring::Slot;

use crate::exclusion::{Exclusion, Hold, Holder};
use crate::sync::{Arc, AtomicU64, Ordering, Wake};

/// A lane's use of the blocks of a disk, which are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Writes a whole block.
    Write(usize),
    /// Writes a block, and another one before the first has ended.
    Writes(usize, usize),
    /// Writes half a block.
    Change(usize),
    /// Half of each of two blocks, or two times of one, asked for together.
    Changes(usize, usize),
    /// Asks for a change, and has no need of it any more.
    Forget(usize),
    /// Its thread ends in the middle of a write.
    WriteAndEnd(usize),
    /// Its thread ends when it has asked for a change, whether it holds or waits.
    ChangeAndEnd(usize),
}

const SIZE: u64 = 4096;

#[derive(Debug, Default)]
struct Block {
    /// Relaxed: that a lane sees what was there before it is up to the exclusion.
    halves: AtomicU64,
    /// The true contents; and the users inside: so many writes, or -1, a change. No steps of the
    /// model, which runs one thread at a time.
    really: Plain,
    inside: AtomicI32,
}

impl Block {
    fn begin_write(&self) {
        assert!(self.inside.fetch_add(1, SeqCst) >= 0, "a write began in the middle of a change");
    }

    fn end_write(&self, value: u32) {
        let halves = u64::from(value) << 32 | u64::from(value);
        self.halves.store(halves, Ordering::Relaxed);
        self.really.store(halves, SeqCst);
        self.inside.fetch_sub(1, SeqCst);
    }

    /// Changes the left half.
    fn change(&self, value: u32) {
        let inside = self.inside.swap(-1, SeqCst);
        assert_eq!(inside, 0, "a change began in the middle of something else");
        let read = self.halves.load(Ordering::Relaxed);
        assert_eq!(read, self.really.load(SeqCst), "a change does not see what ended before it");
        let halves = u64::from(value) << 32 | (read & u64::from(u32::MAX));
        self.halves.store(halves, Ordering::Relaxed);
        self.really.store(halves, SeqCst);
        self.inside.store(0, SeqCst);
    }
}

/// A lane's thread.
struct Lane {
    /// Dropped where all went well, and nowhere else: when a model fails, loom is over before this
    /// would be.
    holder: ManuallyDrop<Holder>,
    doorbell: Arc<Wake>,
    disk: Arc<[Block; 2]>,
}

impl Lane {
    fn new(exclusion: &Arc<Exclusion>, disk: &Arc<[Block; 2]>) -> Lane {
        let doorbell = Arc::new(Wake::new());
        let holder = ManuallyDrop::new(Holder::new(exclusion, Arc::clone(&doorbell)));
        Lane { holder, doorbell, disk: Arc::clone(disk) }
    }

    /// Returns the lane's rest in the end.
    fn run(mut self, tasks: &[Task], values: u32) -> Option<Lane> {
        for (task, value) in tasks.iter().zip(values..) {
            match *task {
                Task::Write(block) => {
                    let hold = self.holder.begin_write(Slot(0), bytes(block));
                    self.write(block, hold, value);
                }
                Task::Writes(one, other) => self.writes(one, other, value),
                Task::Change(block) => {
                    let hold = self.holder.begin_change(Slot(0), part(block));
                    let hold = hold.unwrap_or_else(|| self.wait());
                    self.disk[block].change(value);
                    self.holder.end(hold);
                }
                Task::Changes(one, other) => self.changes([one, other], value),
                Task::Forget(block) => {
                    let _hold = self.holder.begin_change(Slot(0), part(block));
                    self.holder.forget(Slot(0));
                }
                Task::WriteAndEnd(block) => {
                    let hold = self.holder.begin_write(Slot(0), bytes(block));
                    let _hold = hold.unwrap_or_else(|| self.wait());
                    self.disk[block].begin_write();
                    self.disk[block].end_write(value);
                    return self.end();
                }
                Task::ChangeAndEnd(block) => {
                    let _hold = self.holder.begin_change(Slot(0), part(block));
                    return self.end();
                }
            }
        }
        Some(self)
    }

    fn end(self) -> Option<Lane> {
        drop(ManuallyDrop::into_inner(self.holder));
        None
    }

    fn write(&mut self, block: usize, hold: Option<Hold>, value: u32) {
        let hold = hold.unwrap_or_else(|| self.wait());
        self.disk[block].begin_write();
        self.disk[block].end_write(value);
        self.holder.end(hold);
    }

    /// The first one does not wait for the second one, which may wait for a change that waits for
    /// the first one.
    fn writes(&mut self, one: usize, other: usize, value: u32) {
        let hold = self.holder.begin_write(Slot(0), bytes(one));
        let hold = hold.unwrap_or_else(|| self.wait());
        self.disk[one].begin_write();
        let next = self.holder.begin_write(Slot(1), bytes(other));
        if next.is_some() {
            self.disk[other].begin_write();
        }
        self.disk[one].end_write(value);
        self.holder.end(hold);
        match next {
            Some(hold) => {
                self.disk[other].end_write(value);
                self.holder.end(hold);
            }
            None => self.write(other, None, value),
        }
    }

    fn changes(&mut self, blocks: [usize; 2], value: u32) {
        let asked = [0, 1].map(|slot| {
            (Slot(slot), self.holder.begin_change(Slot(slot), part(blocks[usize::from(slot)])))
        });
        let mut held: Vec<_> =
            asked.into_iter().filter_map(|(slot, hold)| Some((slot, hold?))).collect();
        let mut left = blocks.len();
        loop {
            left -= held.len();
            for (slot, hold) in held.drain(..) {
                self.disk[blocks[usize::from(slot.0)]].change(value);
                self.holder.end(hold);
            }
            if left == 0 {
                return;
            }
            self.doorbell.wait();
            self.doorbell.clear();
            held.extend(std::iter::from_fn(|| self.holder.granted()));
        }
    }

    /// As a lane's thread waits: it sleeps, reads the eventfd, and looks.
    fn wait(&mut self) -> Hold {
        loop {
            self.doorbell.wait();
            self.doorbell.clear();
            if let Some((_, hold)) = self.holder.granted() {
                return hold;
            }
        }
    }
}

/// Several lanes, each with its tasks. No change meets a write or another change inside its block,
/// each sees the ones that ended before it, and no lane waits for ever.
pub fn no_change_undoes_a_write(lanes: &'static [&'static [Task]]) {
    let exclusion = Exclusion::new(SIZE);
    let disk = Arc::new(<[Block; 2]>::default());
    let mut running = Vec::new();
    let mut first = None;
    for (tasks, values) in lanes.iter().zip((0..).map(|lane| 10 * lane + 1)) {
        let lane = Lane::new(&exclusion, &disk);
        match first {
            None => first = Some((lane, tasks, values)),
            Some(_) => running.push(thread::spawn(move || lane.run(tasks, values))),
        }
    }
    let first = first.and_then(|(lane, tasks, values)| lane.run(tasks, values));
    let left: Vec<Lane> =
        running.into_iter().filter_map(|lane| lane.join().expect("a lane")).chain(first).collect();
    for block in disk.iter() {
        let (seen, really) = (block.halves.load(Ordering::Relaxed), block.really.load(SeqCst));
        assert_eq!(seen, really, "two that should have come one after the other did not");
    }
    // Not before: a dropped lane wakes others.
    left.into_iter().for_each(|lane| drop(lane.end()));
}

fn bytes(block: usize) -> Range<u64> {
    let start = block as u64 * SIZE;
    start..start + SIZE
}

fn part(block: usize) -> Range<u64> {
    let start = block as u64 * SIZE + 512;
    start..start + 512
}
