//! A guest whose data lies in a memory of its own, which can be large, and can be lost.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use vlane_engine::{Channel, Engine, Event, Outcome, Slot, Status, Uring};
use vlane_ring::driver::{self, Arena, Buf, Format, Segment};
use vlane_ring::{GuestMemory, Layout, Queue, QueueConfig, Region, RegionSpec};

/// Guest address of the data.
pub const DATA: u64 = 0x10_0000_0000;

pub struct Apart {
    // First: it waits for what is in flight, before anything that the kernel uses goes.
    pub uring: Uring,
    pub channel: Box<dyn Channel>,
    pub device: Queue,
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
        let data = rustix::fs::memfd_create("data", rustix::fs::MemfdFlags::CLOEXEC).expect("memfd");
        let data = File::from(data);
        data.set_len(size).expect("size");
        let spec = RegionSpec { guest: arena.base(), size: arena.size(), user: arena.user_addr(), offset: 0 };
        let file = File::from(arena.fd().expect("memfd").try_clone_to_owned().expect("dup"));
        let apart = RegionSpec { guest: DATA, size, user: 0x7000_0000_0000, offset: 0 };
        let regions =
            [(spec, &file), (apart, &data)].map(|(spec, file)| Region::map(spec, file).expect("map"));
        let memory = GuestMemory::new(regions.to_vec()).expect("memory");
        let at = driver.layout();
        let config = QueueConfig {
            layout: Layout::Split,
            size: at.size,
            event_idx: false,
            desc: arena.to_user(at.desc),
            driver: arena.to_user(at.driver),
            device: arena.to_user(at.device),
            base: 0,
            log_addr: None,
        };
        let device = Queue::new(config, Arc::new(memory)).expect("queue");
        let mut uring = Uring::new(64).expect("io_uring");
        let channel = engine.channel(&mut uring, 7, at.size).expect("channel");
        Apart { uring, channel, device, driver, headers, used: 0, data, _arena: arena }
    }

    /// Makes a request available: its type, its sector, and offset and length of each of its buffers in the data. Returns its number.
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
        self.device.pop().expect("a sound queue").expect("a request")
    }

    /// Begins a request that was taken.
    pub fn begin(&mut self, slot: Slot) {
        let request = self.device.request(slot);
        if let Outcome::Done(status) = self.channel.submit(&mut self.uring, slot, request) {
            self.device.complete(slot, status);
        }
    }

    /// One turn of a lane; returns how many operations came back.
    pub fn turn(&mut self) -> usize {
        self.uring.submit().expect("submit");
        let mut events = 0;
        while let Some(event) = self.uring.next_event() {
            let Event::Op { slot, result, .. } = event else { continue };
            events += 1;
            let request = self.device.request(slot);
            if let Some(status) = self.channel.completed(&mut self.uring, slot, request, result) {
                self.device.complete(slot, status);
            }
        }
        self.device.publish();
        self.driver.reap(|_| {}).expect("a sound device");
        events
    }

    /// Turns until all is answered; returns how many operations that took.
    pub fn drain(&mut self) -> usize {
        let (mut operations, begin) = (0, Instant::now());
        loop {
            operations += self.turn();
            if self.device.in_flight() == 0 {
                return operations;
            }
            assert!(begin.elapsed() < Duration::from_secs(120), "it hangs");
            if !self.uring.has_work() {
                self.uring.wait(Some(Duration::from_secs(1))).expect("wait");
            }
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
