//! Lanes of one volume that write, flush, and go; and the thread that does their `fdatasync`s.

use std::array;
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicU64 as Plain;
use std::sync::atomic::Ordering::SeqCst;

use loom::thread;
use vlane_ring::Slot;

use crate::flushes::{Asked, End, Flusher, Flushes, Syncer};
use crate::lost::Writeback;
use crate::sync::{Arc, AtomicU64, Ordering, Wake};

/// A lane's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Answers a write that is not durable.
    Write,
    /// Answers a flush.
    Flush,
    /// Has two flushes at a time.
    Flushes,
    /// Asks for a flush, and puts the request back.
    Forget,
    /// Ends when it has asked for a flush.
    FlushAndEnd,
}

/// The most lanes; and, behind them, the earlier user of the image.
const LANES: usize = 3;

/// Each lane's writes, by number.
struct Disk {
    /// Relaxed: that an `fdatasync` meets what was answered before is up to the flushes.
    cached: [AtomicU64; LANES + 1],
    /// Writes that guests were shown: they act on them.
    shown: [AtomicU64; LANES + 1],
    /// Writes covered by an `fdatasync` that has ended. No step of the model, which runs one thread
    /// at a time.
    stable: [Plain; LANES + 1],
}

/// A lane's thread.
struct Lane {
    /// Dropped where all went well, and nowhere else: when a model fails, loom is over before this
    /// would be.
    flusher: ManuallyDrop<Flusher>,
    doorbell: Arc<Wake>,
    disk: Arc<Disk>,
    number: usize,
}

impl Lane {
    fn new(flushes: &Arc<Flushes>, disk: &Arc<Disk>, number: usize) -> Lane {
        let doorbell = Arc::new(Wake::new());
        let flusher = ManuallyDrop::new(Flusher::new(flushes, Arc::clone(&doorbell)));
        Lane { flusher, doorbell, disk: Arc::clone(disk), number }
    }

    /// Returns the lane's rest in the end.
    fn run(mut self, works: &[Work]) -> Option<Lane> {
        for work in works {
            match work {
                Work::Write => self.write(),
                Work::Flush => self.flush(1),
                Work::Flushes => self.flush(2),
                Work::Forget => {
                    let _asked = self.flusher.ask(Slot(0), Writeback::Flush);
                    self.flusher.forget(Slot(0));
                }
                Work::FlushAndEnd => {
                    let _asked = self.flusher.ask(Slot(0), Writeback::Flush);
                    return self.end();
                }
            }
        }
        Some(self)
    }

    fn end(self) -> Option<Lane> {
        drop(ManuallyDrop::into_inner(self.flusher));
        None
    }

    fn write(&self) {
        let number = self.disk.cached[self.number].load(Ordering::Relaxed) + 1;
        self.disk.cached[self.number].store(number, Ordering::Relaxed);
        self.flusher.count();
        self.disk.shown[self.number].store(number, Ordering::Release);
    }

    /// Answers so many flushes that the guest submits together.
    fn flush(&mut self, count: u16) {
        let promised: [u64; LANES + 1] =
            array::from_fn(|at| self.disk.shown[at].load(Ordering::Acquire));
        let mut left = count;
        for slot in 0..count {
            if self.flusher.ask(Slot(slot), Writeback::Flush) == Asked::Durable {
                self.answer(promised, &mut left);
            }
        }
        // As a lane's thread waits: it sleeps, reads the eventfd, and looks.
        while left > 0 {
            self.doorbell.wait();
            self.doorbell.clear();
            while let Some((_, told)) = self.flusher.next_result() {
                match told.end {
                    End::Well => self.answer(promised, &mut left),
                    End::Lost | End::Failed(_) => left -= 1,
                }
            }
        }
    }

    fn answer(&self, promised: [u64; LANES + 1], left: &mut u16) {
        for (number, (stable, promised)) in self.disk.stable.iter().zip(promised).enumerate() {
            let stable = stable.load(SeqCst);
            assert!(
                stable >= promised,
                "lane {number}: {promised} writes were answered before a flush, {stable} are \
                 durable"
            );
        }
        *left -= 1;
    }
}

/// The thread that does the `fdatasync`s; the first ones end like this, and all others well.
fn sync(flushes: &Arc<Flushes>, disk: &Disk, ends: &[End]) {
    let mut syncer = Syncer::new(flushes);
    let mut ends = ends.iter().copied();
    while syncer.next().is_some() {
        let met: [u64; LANES + 1] = array::from_fn(|at| disk.cached[at].load(Ordering::Relaxed));
        let end = ends.next().unwrap_or(End::Well);
        if end == End::Well {
            for (stable, met) in disk.stable.iter().zip(met) {
                stable.fetch_max(met, SeqCst);
            }
        }
        syncer.ended(end);
    }
}

/// Several lanes, each with its work. A flush is answered only when all writes answered before it
/// are durable, and no lane waits for ever.
pub fn no_answered_write_is_missed(lanes: &'static [&'static [Work]], first_fails: bool) {
    let flushes = Flushes::new();
    let numbers =
        |last: u64| array::from_fn(|at| AtomicU64::new(if at == LANES { last } else { 0 }));
    // The earlier user has written data, and is gone.
    let disk = Arc::new(Disk {
        cached: numbers(1),
        shown: numbers(1),
        stable: array::from_fn(|_| Plain::new(0)),
    });
    let syncs = thread::spawn({
        let (flushes, disk) = (Arc::clone(&flushes), Arc::clone(&disk));
        let ends: &[End] = if first_fails { &[End::Failed(5)] } else { &[] };
        move || sync(&flushes, &disk, ends)
    });
    let mut running = Vec::new();
    let mut first = None;
    for (number, works) in lanes.iter().enumerate() {
        let lane = Lane::new(&flushes, &disk, number);
        match first {
            None => first = Some((lane, works)),
            Some(_) => running.push(thread::spawn(move || lane.run(works))),
        }
    }
    let first = first.and_then(|(lane, works)| lane.run(works));
    let left: Vec<Lane> =
        running.into_iter().filter_map(|lane| lane.join().expect("a lane")).chain(first).collect();
    left.into_iter().for_each(|lane| drop(lane.end()));
    flushes.end();
    syncs.join().expect("the thread");
}
