//! A guest whose data lies in a memory of its own, which can be large, and can be lost.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vlane_driver::ring::{self as driver, Arena, Buf, Format, Segment};
use vlane_engine::{ChannelStats, Engine, Slot, Status};
use vlane_memory::RegionSpec;

use super::lane::Lane;

/// Guest address of the data.
pub const DATA: u64 = 0x10_0000_0000;

pub struct Apart {
    pub lane: Lane,
    driver: driver::Queue,
    headers: Vec<(Buf, Buf)>,
    used: usize,
    /// Never mapped on this side: it can be cut short without harm here.
    pub data: File,
    _arena: Arena,
}

impl Apart {
    /// Room for `requests` requests in all, and `size` bytes of data.
    pub fn new(engine: &Arc<dyn Engine>, requests: usize, size: u64) -> Apart {
        let arena = Arena::new(0x1_0000_0000, requests * 8192 + (4 << 20)).expect("guest memory");
        let driver = driver::Queue::new(&arena, Format::Split, 16384, false).expect("queue");
        let buf = |len| arena.alloc(len, 16).expect("memory");
        let headers = (0..requests).map(|_| (buf(16), buf(1))).collect();
        let data =
            rustix::fs::memfd_create("data", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let data = File::from(data);
        data.set_len(size).expect("size");
        let apart = RegionSpec { guest: DATA, size, user: 0x7000_0000_0000, offset: 0 };
        let lane = Lane::new(&**engine, &driver, &arena, Some((apart, &data)));
        Apart { lane, driver, headers, used: 0, data, _arena: arena }
    }

    pub fn stats(&self) -> ChannelStats {
        self.lane.channel.stats()
    }

    /// Makes a request available: its type, its sector, and offset and length of each of its
    /// buffers in the data. Returns its number.
    pub fn offer(&mut self, kind: u32, sector: u64, pieces: &[(u64, u32)]) -> usize {
        let (header, status) = &mut self.headers[self.used];
        let mut bytes = [0u8; 16];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..].copy_from_slice(&sector.to_le_bytes());
        header.copy_in(0, &bytes).expect("header");
        status.copy_in(0, &[0xff]).expect("status");
        let mut chain = vec![Segment::readable(header.addr(), 16)];
        chain.extend(pieces.iter().map(|(at, len)| match kind {
            0 | 8 => Segment::writable(DATA + at, *len),
            _ => Segment::readable(DATA + at, *len),
        }));
        chain.push(Segment::writable(status.addr(), 1));
        self.driver.add(&chain).expect("room in the queue");
        self.driver.publish();
        self.used += 1;
        self.used - 1
    }

    /// Takes the next request, which must be there.
    pub fn take(&mut self) -> Slot {
        self.lane.take().expect("a request")
    }

    /// Begins a request that was taken.
    pub fn begin(&mut self, slot: Slot) {
        self.lane.begin(slot);
    }

    /// One turn of the lane; returns how many steps of requests that were.
    pub fn turn(&mut self) -> usize {
        let steps = self.lane.turn(Instant::now());
        self.lane.queue.show();
        self.driver.reap(|_| {}).expect("a sound device");
        steps
    }

    /// Turns until all is answered; returns how many steps that took.
    pub fn drain(&mut self) -> usize {
        let (mut steps, begin) = (0, Instant::now());
        loop {
            steps += self.turn();
            if self.lane.queue.in_flight() == 0 {
                return steps;
            }
            assert!(begin.elapsed() < Duration::from_secs(120), "it hangs");
            self.lane.wait(Duration::from_secs(1));
        }
    }

    /// The answer to a request.
    pub fn status(&self, number: usize) -> Option<Status> {
        let mut status = [0];
        self.headers[number].1.copy_out(0, &mut status).expect("status");
        match status[0] {
            0 => Some(Status::Ok),
            1 => Some(Status::IoErr),
            2 => Some(Status::Unsupported),
            _ => None,
        }
    }

    pub fn put(&self, at: u64, bytes: &[u8]) {
        self.data.write_all_at(bytes, at).expect("data");
    }

    pub fn get(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.data.read_exact_at(&mut bytes, at).expect("data");
        bytes
    }
}
