//! A front end for tests of what happens to single requests: each with its own data, waited for or
//! left in flight.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test program uses its own part of this; tests may unwrap"
)]

use std::path::Path;
use std::time::Instant;

use vlane_driver::ring::{Completion, Request, RequestKind};
use vlane_driver::{GuestQueue, Session, SessionOptions};

use crate::served::LIMIT;

/// Bytes of a request.
pub const LEN: u32 = 4096;
/// Sectors of a request.
pub const SECTORS: u64 = LEN as u64 / 512;
/// Bytes of a large one.
pub const LARGE: u32 = 64 << 10;
/// Requests that can be in flight.
const DEPTH: u16 = 8;

/// A session with one queue.
pub struct Front {
    pub session: Session,
    queue: GuestQueue,
    done: Vec<Completion>,
}

impl Front {
    pub fn connect(socket: &Path) -> Front {
        let options =
            SessionOptions { queues: 1, depth: DEPTH, data: LARGE, ..SessionOptions::default() };
        let mut session = Session::connect(socket, &options).unwrap();
        let (mut queues, _) = session.start().unwrap();
        Front { session, queue: queues.remove(0), done: Vec::new() }
    }

    /// Submits a request of [`LEN`] bytes in a slot and does not wait. Each byte of a write has
    /// this value.
    pub fn begin(&mut self, slot: u16, kind: RequestKind, sector: u64, byte: u8) {
        self.begin_of(LEN, slot, kind, sector, byte);
    }

    fn begin_of(&mut self, len: u32, slot: u16, kind: RequestKind, sector: u64, byte: u8) {
        if kind == RequestKind::Write {
            self.queue.blk.data_mut(slot).unwrap().fill(byte);
        }
        let len = if matches!(kind, RequestKind::Flush) { 0 } else { len };
        self.queue.blk.submit(slot, Request { kind, sector, len, ioprio: 0 }).unwrap();
        self.queue.blk.publish();
        self.queue.kick().unwrap();
    }

    /// The status of the request in a slot, if it is answered by now.
    pub fn answer(&mut self, slot: u16) -> Option<u8> {
        self.queue.blk.reap(&mut self.done).unwrap();
        let at = self.done.iter().position(|done| done.slot == slot)?;
        Some(self.done.swap_remove(at).status)
    }

    /// Waits for the answer.
    pub fn status(&mut self, slot: u16) -> u8 {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.answer(slot) {
                return status;
            }
            assert!(begin.elapsed() < LIMIT, "the request in slot {slot} hangs");
            std::thread::yield_now();
        }
    }

    pub fn write(&mut self, sector: u64, byte: u8) -> u8 {
        self.begin(0, RequestKind::Write, sector, byte);
        self.status(0)
    }

    /// A write of [`LARGE`] bytes.
    pub fn write_large(&mut self, sector: u64, byte: u8) -> u8 {
        self.begin_of(LARGE, 0, RequestKind::Write, sector, byte);
        self.status(0)
    }

    /// A read of [`LARGE`] bytes.
    pub fn read_large(&mut self, sector: u64) -> Result<Vec<u8>, u8> {
        self.read_of(LARGE, sector)
    }

    pub fn flush(&mut self) -> u8 {
        self.begin(0, RequestKind::Flush, 0, 0);
        self.status(0)
    }

    /// Reads; the bytes if it succeeds, its status if not.
    pub fn read(&mut self, sector: u64) -> Result<Vec<u8>, u8> {
        self.read_of(LEN, sector)
    }

    fn read_of(&mut self, len: u32, sector: u64) -> Result<Vec<u8>, u8> {
        self.begin_of(len, 0, RequestKind::Read, sector, 0);
        match self.status(0) {
            0 => {
                let mut bytes = vec![0; len as usize];
                self.queue.blk.data(0).unwrap().copy_out(0, &mut bytes).unwrap();
                Ok(bytes)
            }
            status => Err(status),
        }
    }

    /// The byte that a whole request reads, if all bytes are equal.
    pub fn read_byte(&mut self, sector: u64) -> u8 {
        let bytes =
            self.read(sector).unwrap_or_else(|status| panic!("sector {sector}: status {status}"));
        assert!(bytes.iter().all(|byte| *byte == bytes[0]), "sector {sector} is torn");
        bytes[0]
    }
}
