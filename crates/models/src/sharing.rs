//! Lanes of one volume that write, flush, and go while others wait for them.

use std::array;
use std::mem::ManuallyDrop;
use std::sync::atomic::AtomicU64 as Plain;
use std::sync::atomic::Ordering::SeqCst;

use loom::thread;
use vlane_ring::Slot;

use crate::flushes::{Asked, Flusher, Flushes, Told};
use crate::sync::{Arc, AtomicU64, Ordering, Wake};

/// What a lane does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// Answers a write that is not durable.
    Write,
    /// Answers a flush.
    Flush,
    /// Has two flushes at a time.
    Flushes,
    /// Its `fdatasync` fails, if it is the one that begins it.
    Fail,
    /// Asks for a flush, and puts the request back.
    Forget,
    /// Ends when it has asked for a flush, whether it begins an `fdatasync` or waits for one.
    FlushAndEnd,
    /// Ends when it has begun an `fdatasync`, for itself and for whoever waits with it; or when another lane's has ended.
    BeginAndEnd,
}

/// Lanes at most; and, behind them, whoever had the image before.
const LANES: usize = 3;

/// What each has written, by number.
struct Disk {
    /// Relaxed: that an `fdatasync` meets what was answered before is up to the flushes.
    cached: [AtomicU64; LANES + 1],
    /// What guests were shown: they act on it.
    shown: [AtomicU64; LANES + 1],
    /// What an `fdatasync` covered that has ended. No step of the model, which runs one thread at a time.
    stable: [Plain; LANES + 1],
}

/// A lane's thread.
struct Lane {
    /// Dropped where all went well, and nowhere else: when a model fails, loom is over before this would be.
    flusher: ManuallyDrop<Flusher>,
    doorbell: Arc<Wake>,
    disk: Arc<Disk>,
    number: usize,
    fails: bool,
}

impl Lane {
    fn new(flushes: &Arc<Flushes>, disk: &Arc<Disk>, number: usize) -> Lane {
        let doorbell = Arc::new(Wake::new());
        let flusher = ManuallyDrop::new(Flusher::new(flushes, Arc::clone(&doorbell)));
        Lane { flusher, doorbell, disk: Arc::clone(disk), number, fails: false }
    }

    /// What is left of it in the end.
    fn run(mut self, works: &[Work]) -> Option<Lane> {
        for work in works {
            match work {
                Work::Write => self.write(),
                Work::Flush => self.flush(1),
                Work::Flushes => self.flush(2),
                Work::Fail => {
                    self.fails = true;
                    self.flush(1);
                    self.fails = false;
                }
                Work::Forget => {
                    let _asked = self.flusher.ask(Slot(0));
                    self.flusher.forget(Slot(0));
                }
                Work::FlushAndEnd => {
                    let _asked = self.flusher.ask(Slot(0));
                    return self.end();
                }
                Work::BeginAndEnd => {
                    if self.flusher.ask(Slot(0)) == Asked::Wait {
                        self.doorbell.wait();
                        if let Some((_, Told::Begin)) = self.flusher.told() {
                            assert_eq!(self.flusher.ask(Slot(0)), Asked::Begin, "it was its turn");
                        }
                    }
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
        let promised: [u64; LANES + 1] = array::from_fn(|at| self.disk.shown[at].load(Ordering::Acquire));
        let mut left = count;
        let asked: Vec<_> = (0..count).map(|slot| (Slot(slot), self.flusher.ask(Slot(slot)))).collect();
        for (slot, asked) in asked {
            match asked {
                Asked::Durable => self.answer(promised, &mut left),
                Asked::Begin => self.sync(slot, promised, &mut left),
                Asked::Wait => {}
            }
        }
        // As a lane's thread waits: it sleeps unless it has something to do, reads the eventfd, and looks.
        while left > 0 {
            if !self.flusher.is_told() {
                self.doorbell.wait();
            }
            self.doorbell.clear();
            while let Some((slot, told)) = self.flusher.told() {
                match told {
                    Told::Begin => {
                        assert_eq!(self.flusher.ask(slot), Asked::Begin, "it was its turn");
                        self.sync(slot, promised, &mut left);
                    }
                    Told::Over { ok: true } => self.answer(promised, &mut left),
                    Told::Over { ok: false } => left -= 1,
                }
            }
        }
    }

    /// An `fdatasync`.
    fn sync(&mut self, slot: Slot, promised: [u64; LANES + 1], left: &mut u16) {
        let met: [u64; LANES + 1] = array::from_fn(|at| self.disk.cached[at].load(Ordering::Relaxed));
        if self.fails {
            self.flusher.end(slot, false);
            *left -= 1;
            return;
        }
        for (stable, met) in self.disk.stable.iter().zip(met) {
            stable.fetch_max(met, SeqCst);
        }
        self.flusher.end(slot, true);
        self.answer(promised, left);
    }

    fn answer(&self, promised: [u64; LANES + 1], left: &mut u16) {
        for (number, (stable, promised)) in self.disk.stable.iter().zip(promised).enumerate() {
            let stable = stable.load(SeqCst);
            assert!(
                stable >= promised,
                "lane {number}: {promised} writes were answered before a flush, {stable} are durable"
            );
        }
        *left -= 1;
    }
}

/// Several lanes, each with its work. No flush is answered although what was answered before it is not durable, and nobody waits for ever.
pub fn no_answered_write_is_missed(lanes: &'static [&'static [Work]]) {
    let flushes = Flushes::new();
    let numbers = |last: u64| array::from_fn(|at| AtomicU64::new(if at == LANES { last } else { 0 }));
    // The one before has written something, and is gone.
    let disk =
        Arc::new(Disk { cached: numbers(1), shown: numbers(1), stable: array::from_fn(|_| Plain::new(0)) });
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
    // Not before: who is dropped wakes others.
    left.into_iter().for_each(|lane| drop(lane.end()));
}
