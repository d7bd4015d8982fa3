//! A load that knows what it has written: what a guest runs while its back end is killed.
//!
//! Each worker has blocks of its own in the file and one request at a time, past the page cache. It
//! reads back what it wrote before, in any order, and each block at the end. A request that is
//! never answered shows as well: the worker waits for it for good.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const FILE: &str = "/mnt/load";
const STOP: &str = "/tmp/stop";
const BLOCK: usize = 4096;
/// Blocks of each worker.
const BLOCKS: usize = 64;

/// Keeps so many requests in flight until it is stopped. Prints its progress.
pub fn run(depth: usize) {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
    let file = options.open(FILE).unwrap();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..depth)
            .map(|number| {
                let worker = Worker { file: &file, number, written: vec![0; BLOCKS] };
                scope.spawn(|| worker.work(&done))
            })
            .collect();
        while !workers.iter().all(|worker| worker.is_finished()) {
            println!("RESULT done={}", done.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    file.sync_all().unwrap();
    println!("RESULT verified={}", depth * BLOCKS);
}

struct Worker<'a> {
    file: &'a File,
    number: usize,
    /// How often each block was written.
    written: Vec<u64>,
}

impl Worker<'_> {
    fn work(mut self, done: &AtomicU64) {
        let mut buffer = Buffer::new();
        for block in 0..BLOCKS {
            self.write(block, &mut buffer);
        }
        let mut random = self.number as u64 + 1;
        while !Path::new(STOP).exists() {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let block = usize::try_from(random >> 33).unwrap() % BLOCKS;
            match random >> 60 {
                0 => self.file.sync_data().unwrap(),
                1..6 => self.check(block, &mut buffer),
                _ => self.write(block, &mut buffer),
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
        (0..BLOCKS).for_each(|block| self.check(block, &mut buffer));
    }

    fn write(&mut self, block: usize, buffer: &mut Buffer) {
        self.written[block] += 1;
        let stamp = self.stamp(block);
        let bytes = buffer.bytes();
        bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
        self.file.write_all_at(bytes, self.place(block)).unwrap();
    }

    fn check(&self, block: usize, buffer: &mut Buffer) {
        let bytes = buffer.bytes();
        self.file.read_exact_at(bytes, self.place(block)).unwrap();
        let stamp = self.stamp(block).to_le_bytes();
        let wrong = bytes.chunks_exact(8).find(|word| **word != stamp);
        assert!(
            wrong.is_none(),
            "worker {} block {block}: {wrong:?} instead of {stamp:?}",
            self.number
        );
    }

    /// Meaning of each word of a block: its owner, its number, and the count of its writes.
    fn stamp(&self, block: usize) -> u64 {
        (self.number as u64) << 56 | (block as u64) << 40 | self.written[block]
    }

    fn place(&self, block: usize) -> u64 {
        ((self.number * BLOCKS + block) * BLOCK) as u64
    }
}

/// A block's memory, where direct I/O wants it.
struct Buffer(Vec<u8>);

impl Buffer {
    fn new() -> Self {
        Self(vec![0; 2 * BLOCK])
    }

    fn bytes(&mut self) -> &mut [u8] {
        let at = self.0.as_ptr().align_offset(BLOCK);
        &mut self.0[at..at + BLOCK]
    }
}
