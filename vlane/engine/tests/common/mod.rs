//! Shared by the engine's tests: a guest with real requests in real virtqueues, a lane that serves
//! them, and places to put images.

#![allow(dead_code, unreachable_pub)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::missing_panics_doc
)]

pub mod apart;
pub mod lane;
pub mod places;

use std::sync::Arc;
use std::time::{Duration, Instant};

use lane::Lane;
use vlane_driver::ring::{self as driver, Arena, Buf, Format, Segment};
use vlane_engine::{Channel, ChannelStats, Engine, Status};

/// Requests that can be out at once.
pub const PLACES: usize = 8;
/// Bytes of data that each of them can have.
pub const DATA: usize = 2 << 20;
const QUEUE_SIZE: u16 = 4096;

/// Where a request's data lies in guest memory: (bytes left free before it, length) for each
/// descriptor.
pub type Pieces = Vec<(usize, usize)>;

/// A request as a guest makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    Read {
        sector: u64,
        pieces: Pieces,
    },
    Write {
        sector: u64,
        pieces: Pieces,
        data: Vec<u8>,
    },
    Flush,
    /// (sector, sectors)
    Discard(Vec<(u64, u32)>),
    WriteZeroes {
        ranges: Vec<(u64, u32)>,
        unmap: bool,
    },
}

impl Op {
    pub fn read(sector: u64, len: usize) -> Op {
        Op::Read { sector, pieces: vec![(0, len)] }
    }

    pub fn write(sector: u64, data: Vec<u8>) -> Op {
        Op::Write { sector, pieces: vec![(0, data.len())], data }
    }
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub place: usize,
    pub status: Status,
    /// The data read.
    pub data: Vec<u8>,
}

struct Place {
    header: Buf,
    data: Buf,
    status: Buf,
    busy: Option<(u16, Op)>,
}

/// A guest, its queue, and the lane that serves it from an engine.
pub struct Rig {
    places: Vec<Place>,
    driver: driver::Queue,
    pub lane: Lane,
    pub engine: Arc<dyn Engine>,
    _arena: Arena,
}

impl Rig {
    pub fn new(engine: Arc<dyn Engine>) -> Rig {
        let arena =
            Arena::new(0x1_0000_0000, PLACES * (DATA + 16384) + (1 << 20)).expect("guest memory");
        let driver = driver::Queue::new(&arena, Format::Split, QUEUE_SIZE, false).expect("queue");
        let places = (0..PLACES)
            .map(|_| Place {
                header: arena.alloc(8192, 4096).expect("memory"),
                data: arena.alloc(DATA, 4096).expect("memory"),
                status: arena.alloc(1, 8).expect("memory"),
                busy: None,
            })
            .collect();
        let lane = Lane::new(&*engine, &driver, &arena, None);
        Rig { places, driver, lane, engine, _arena: arena }
    }

    pub fn channel(&self) -> &dyn Channel {
        &*self.lane.channel
    }

    pub fn set_write_through(&mut self, on: bool) {
        self.lane.set_write_through(on);
    }

    pub fn stats(&self) -> ChannelStats {
        self.lane.channel.stats()
    }

    /// Makes a request available, in a free place, which it returns.
    pub fn start(&mut self, op: Op) -> usize {
        let index =
            self.places.iter().position(|place| place.busy.is_none()).expect("a free place");
        let place = &mut self.places[index];
        let (kind, sector) = match &op {
            Op::Read { sector, .. } => (0u32, *sector),
            Op::Write { sector, .. } => (1, *sector),
            Op::Flush => (4, 0),
            Op::Discard(_) => (11, 0),
            Op::WriteZeroes { .. } => (13, 0),
        };
        let mut header = [0u8; 16];
        header[..4].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&sector.to_le_bytes());
        place.header.copy_in(0, &header).expect("header");
        place.status.copy_in(0, &[0xff]).expect("status");
        let mut chain = vec![Segment::readable(place.header.addr(), 16)];
        match &op {
            Op::Read { pieces, .. } => {
                place.data.fill(0xa5);
                let segment =
                    |(at, len)| Segment::writable(place.data.addr() + at as u64, len as u32);
                chain.extend(positions(pieces).map(segment));
            }
            Op::Write { pieces, data, .. } => {
                let mut from = 0;
                for (at, len) in positions(pieces) {
                    place.data.copy_in(at, &data[from..from + len]).expect("data");
                    from += len;
                    chain.push(Segment::readable(place.data.addr() + at as u64, len as u32));
                }
            }
            Op::Flush => {}
            Op::Discard(ranges) | Op::WriteZeroes { ranges, .. } => {
                let flags = u32::from(matches!(op, Op::WriteZeroes { unmap: true, .. }));
                for (i, (sector, sectors)) in ranges.iter().enumerate() {
                    let mut bytes = [0u8; 16];
                    bytes[..8].copy_from_slice(&sector.to_le_bytes());
                    bytes[8..12].copy_from_slice(&sectors.to_le_bytes());
                    bytes[12..].copy_from_slice(&flags.to_le_bytes());
                    place.header.copy_in(16 + i * 16, &bytes).expect("range");
                }
                chain.push(Segment::readable(place.header.addr() + 16, ranges.len() as u32 * 16));
            }
        }
        chain.push(Segment::writable(place.status.addr(), 1));
        let id = self.driver.add(&chain).expect("room in the queue");
        place.busy = Some((id, op));
        self.driver.publish();
        index
    }

    /// Takes the available requests and begins them; does not wait.
    pub fn begin(&mut self) {
        while let Some(slot) = self.lane.take() {
            self.lane.begin(slot);
        }
        self.lane.submit();
    }

    /// Works on arrivals.
    pub fn reap(&mut self, now: Instant) {
        self.lane.turn(now);
    }

    /// Shows the answers to the guest.
    pub fn collect(&mut self) -> Vec<Answer> {
        self.lane.queue.show();
        let mut ids = Vec::new();
        self.driver.reap(|used| ids.push(used.id)).expect("a sound device");
        ids.into_iter().map(|id| self.answer(id)).collect()
    }

    fn answer(&mut self, id: u16) -> Answer {
        let is_it = |place: &Place| place.busy.as_ref().is_some_and(|(busy, _)| *busy == id);
        let index = self.places.iter().position(is_it).expect("a request that is out");
        let place = &mut self.places[index];
        let (_, op) = place.busy.take().expect("busy");
        let mut status = [0];
        place.status.copy_out(0, &mut status).expect("status");
        let status = match status {
            [0] => Status::Ok,
            [1] => Status::IoErr,
            [2] => Status::Unsupported,
            [other] => panic!("{op:?}: the status byte is {other}"),
        };
        let mut data = Vec::new();
        if let Op::Read { pieces, .. } = &op {
            for (at, len) in positions(pieces) {
                let mut piece = vec![0; len];
                place.data.copy_out(at, &mut piece).expect("data");
                data.extend(piece);
            }
        }
        Answer { place: index, status, data }
    }

    /// Serves until everything that is out is answered.
    pub fn drain(&mut self) -> Vec<Answer> {
        let (mut answers, begin) = (Vec::new(), Instant::now());
        loop {
            self.begin();
            self.reap(Instant::now());
            answers.extend(self.collect());
            if self.in_flight() == 0 {
                return answers;
            }
            assert!(begin.elapsed() < Duration::from_secs(120), "it hangs: {:?}", self.stats());
            self.lane.wait(Duration::from_secs(10));
        }
    }

    /// One request, alone.
    pub fn run(&mut self, op: Op) -> Answer {
        self.start(op);
        let mut answers = self.drain();
        assert_eq!(answers.len(), 1);
        answers.remove(0)
    }

    /// One request that must succeed; returns the data read.
    pub fn ok(&mut self, op: Op) -> Vec<u8> {
        let what = match &op {
            Op::Write { sector, pieces, .. } => format!("write at {sector}, {pieces:?}"),
            other => format!("{other:?}"),
        };
        let answer = self.run(op);
        assert_eq!(answer.status, Status::Ok, "{what}; {:?}", self.stats());
        answer.data
    }

    pub fn in_flight(&self) -> usize {
        self.lane.queue.in_flight()
    }
}

fn positions(pieces: &Pieces) -> impl Iterator<Item = (usize, usize)> {
    pieces.iter().scan(0, |at, &(gap, len)| {
        let here = *at + gap;
        *at = here + len;
        Some((here, len))
    })
}

/// Bytes that identify their place, and their write.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}
