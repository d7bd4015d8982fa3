//! How the threads of a volume hand operations to each other, so that an express request waits in
//! the shortest of their submission queues.
//!
//! Each thread has a queue. The queue holds the number of operations in the thread's io_uring (a
//! plain store, once a round), and some **cells** for the operations that the thread hands over.
//! The owner of an operation describes it in a cell and marks the cell for another thread; that one
//! submits the operation, writes the result into the same cell, and marks it as ended; the owner
//! reads it and uses the cell again. So an operation is in one of four states, its owner's cell
//! says in which, and only one side may change it:
//!
//! | state | who goes on |
//! |---|---|
//! | free | the owner fills it |
//! | marked for a thread (`letters`) | whoever takes the mark away first: that thread, or the owner, who finds that the thread has left |
//! | taken | that thread, when the operation has completed |
//! | ended (`ended`) | the owner |
//!
//! No lock and no waiting: all steps are single atomic operations. The waker (an eventfd) is rung
//! only for a thread that sleeps or is about to. The sleeper marks this before it looks for mail a
//! last time, in the word in which senders mark mail: the second of the two sees the first. Unlike
//! a message in a completion queue, the mark cannot be lost when that queue is full. Every
//! interleaving is tried by the models (checks/models).

use crate::sync::{Arc, AtomicU64, Ordering, Waker, wake};

/// Words that describe an operation.
pub(crate) const WORDS: usize = 5;

/// An operation in words; only the submitters know their meaning.
pub(crate) type Words = [u64; WORDS];

/// The most operations that a thread hands over at the same time. More go into its own queue.
pub(crate) const CELLS: usize = 64;

/// In [`Place::state`]: there is mail.
const MAIL: u64 = 1;
/// The thread sleeps, or looks at its mail the last time before.
const ASLEEP: u64 = 2;
/// The thread takes no more.
const GONE: u64 = 4;

/// On cache lines of its own.
#[repr(align(128))]
struct Apart<T>(T);

struct Table {
    places: Box<[Place]>,
    /// By receiver and then sender: the sender's cells that wait for the receiver.
    letters: Box<[AtomicU64]>,
}

struct Place {
    /// Operations in the thread's io_uring. Written by the thread alone.
    length: Apart<AtomicU64>,
    state: Apart<AtomicU64>,
    /// The thread's cells whose operations have completed elsewhere.
    ended: AtomicU64,
    cells: Box<[Cell]>,
    waker: Waker,
}

/// An operation that is handed over.
struct Cell {
    words: [AtomicU64; WORDS],
    result: AtomicU64,
}

/// One thread's end. Its owner is the only one that has it.
pub struct CrossThreadQueue {
    table: Arc<Table>,
    number: usize,
    /// Its cells that are not in use.
    free: u64,
    /// How the owner knows the operation in each of its cells.
    marks: Box<[u64]>,
    /// Cells that have ended and whose results have not been returned.
    collected: u64,
}

impl std::fmt::Debug for CrossThreadQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CrossThreadQueue").field("number", &self.number).finish_non_exhaustive()
    }
}

/// Queues for threads that are woken by these, each with so many cells, at most [`CELLS`].
pub(crate) fn queues(wakers: Vec<Waker>, cells: usize) -> Vec<CrossThreadQueue> {
    let (count, cells) = (wakers.len(), cells.clamp(1, CELLS));
    let word = || AtomicU64::new(0);
    let cell = || Cell { words: std::array::from_fn(|_| word()), result: word() };
    let place = |waker| Place {
        length: Apart(word()),
        state: Apart(word()),
        ended: word(),
        cells: (0..cells).map(|_| cell()).collect(),
        waker,
    };
    let places = wakers.into_iter().map(place).collect();
    let table = Arc::new(Table { places, letters: (0..count * count).map(|_| word()).collect() });
    let queue = |number| CrossThreadQueue {
        table: Arc::clone(&table),
        number,
        free: u64::MAX >> (CELLS - cells),
        marks: vec![0; cells].into_boxed_slice(),
        collected: 0,
    };
    (0..count).map(queue).collect()
}

impl Table {
    fn letters(&self, to: usize, from: usize) -> &AtomicU64 {
        &self.letters[to * self.places.len() + from]
    }

    /// Marks mail for a thread; returns true if the thread has left.
    fn tell(&self, to: usize) -> bool {
        let place = &self.places[to];
        let before = place.state.0.fetch_or(MAIL, Ordering::AcqRel);
        // The first thread to mark a sleeper's mail wakes it.
        if before & (MAIL | ASLEEP) == ASLEEP {
            wake(&place.waker);
        }
        before & GONE != 0
    }
}

impl CrossThreadQueue {
    /// Returns the waker of its thread.
    pub(crate) fn waker(&self) -> &Waker {
        &self.place().waker
    }

    fn place(&self) -> &Place {
        &self.table.places[self.number]
    }

    /// Lets the others know how many operations are in its thread's io_uring.
    pub(crate) fn publish(&self, length: usize) {
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        if self.place().length.0.load(Ordering::Relaxed) != length {
            self.place().length.0.store(length, Ordering::Relaxed);
        }
    }

    /// The thread with the fewest operations, if that are at least `margin` fewer than the `others`
    /// in its way, and at most half as many: between threads that are equally busy differences come
    /// and go.
    pub(crate) fn shortest(&self, others: usize, margin: usize) -> Option<usize> {
        let most = u64::try_from(others.checked_sub(margin)?.min(others / 2)).ok()?;
        let (length, to) = (0..self.table.places.len())
            .filter(|to| *to != self.number)
            .filter(|to| self.table.places[*to].state.0.load(Ordering::Relaxed) & GONE == 0)
            .map(|to| {
                // With those that it has not seen yet.
                let sent = self.table.letters(to, self.number).load(Ordering::Relaxed).count_ones();
                (self.table.places[to].length.0.load(Ordering::Relaxed) + u64::from(sent), to)
            })
            .min()?;
        (length <= most).then_some(to)
    }

    /// Hands an operation to a thread. [`CrossThreadQueue::next_result`] gives its result once,
    /// with this `mark`. False, if it cannot: then no state has changed.
    pub(crate) fn send(&mut self, to: usize, words: Words, mark: u64) -> bool {
        let Some(at) = self.free_cell() else { return false };
        let bit = 1 << at;
        let cell = &self.place().cells[at];
        for (place, word) in cell.words.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        let letters = self.table.letters(to, self.number);
        // The thread that takes the mark sees the words.
        letters.fetch_or(bit, Ordering::Release);
        if self.table.tell(to) && letters.fetch_and(!bit, Ordering::AcqRel) & bit != 0 {
            // It left without taking this one, and no other thread will.
            return false;
        }
        self.free &= !bit;
        self.marks[at] = mark;
        true
    }

    fn free_cell(&self) -> Option<usize> {
        (self.free != 0).then(|| self.free.trailing_zeros() as usize)
    }

    /// Operations that it has handed over and whose results it has not returned.
    pub(crate) fn handed_out(&self) -> usize {
        self.marks.len() - self.free.count_ones() as usize
    }

    /// True if [`CrossThreadQueue::open`] may find mail; one load.
    #[inline]
    pub(crate) fn has_mail(&self) -> bool {
        self.place().state.0.load(Ordering::Relaxed) & MAIL != 0
    }

    /// Looks at its mail: collects results, and gives `take` each operation that was handed to it,
    /// with the thread and the cell that it is from.
    pub(crate) fn open(&mut self, mut take: impl FnMut(usize, usize, Words)) {
        let place = &self.table.places[self.number];
        // Cleared before looking: later mail sets it again.
        place.state.0.fetch_and(!MAIL, Ordering::AcqRel);
        self.collected |= place.ended.swap(0, Ordering::AcqRel);
        for from in 0..self.table.places.len() {
            let letters = self.table.letters(self.number, from);
            if letters.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut marked = letters.swap(0, Ordering::AcqRel);
            while marked != 0 {
                let at = marked.trailing_zeros() as usize;
                marked &= marked - 1;
                let cell = &self.table.places[from].cells[at];
                take(
                    from,
                    at,
                    std::array::from_fn(|word| cell.words[word].load(Ordering::Relaxed)),
                );
            }
        }
    }

    /// Gives the result of an operation back to whom it is from.
    pub(crate) fn give_back(&self, from: usize, cell: usize, result: i32) {
        let place = &self.table.places[from];
        place.cells[cell].result.store(u64::from(result.cast_unsigned()), Ordering::Relaxed);
        place.ended.fetch_or(1 << cell, Ordering::Release);
        self.table.tell(from);
    }

    /// The next result of those that [`CrossThreadQueue::open`] collected: the operation's mark,
    /// and the system's result.
    pub(crate) fn next_result(&mut self) -> Option<(u64, i32)> {
        if self.collected == 0 {
            return None;
        }
        let at = self.collected.trailing_zeros() as usize;
        self.collected &= self.collected - 1;
        self.free |= 1 << at;
        let result = self.place().cells[at].result.load(Ordering::Relaxed);
        // It was stored as 32 bits.
        #[allow(clippy::cast_possible_truncation)]
        Some((self.marks[at], (result as u32).cast_signed()))
    }

    /// About to sleep. False, if there is mail: then it must not.
    pub(crate) fn falls_asleep(&self) -> bool {
        let before = self.place().state.0.fetch_or(ASLEEP, Ordering::AcqRel);
        if before & MAIL != 0 {
            self.wakes();
        }
        before & MAIL == 0
    }

    /// Has slept.
    pub(crate) fn wakes(&self) {
        self.place().state.0.fetch_and(!ASLEEP, Ordering::AcqRel);
    }

    /// Takes no more operations of other threads, but for those that [`CrossThreadQueue::open`]
    /// finds now: call it once more after this.
    pub(crate) fn leave(&self) {
        self.place().state.0.fetch_or(GONE, Ordering::AcqRel);
    }
}
