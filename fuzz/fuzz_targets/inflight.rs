//! Requests in flight that are marked in memory which the front end can write to, in a ring which
//! the guest can write to, under devices that are killed: no panic, no endless loop, no address
//! outside guest memory.

#![no_main]

use std::fs::File;
use std::os::unix::fs::FileExt;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use vlane_fuzz::packed::{AVAIL, USED};
use vlane_fuzz::{
    AnyDesc, DESC, DEVICE, DRIVER, Desc, Place, REGIONS, Ram, check_request, config, header, write,
};
use vlane_ring::{Broken, InflightRegion, Queue, RingFormat, Slot, Status};

#[derive(Debug, Arbitrary)]
enum Op {
    /// A chain, where the device stands (packed), or from this descriptor on (split).
    Chain(u8, Vec<AnyDesc>),
    Header(u8, u8, u64),
    Pop,
    Answer(u8, bool),
    Publish,
    PutBack,
    /// Nothing more is done with this device.
    Kill(Option<u32>),
    /// Writes into the marks.
    Mark(u16, u8),
    Poke(Place, u8),
}

#[derive(Debug, Arbitrary)]
struct Input {
    packed: bool,
    size: u8,
    event_idx: bool,
    ops: Vec<Op>,
}

/// The second of two parts.
const INDEX: u16 = 1;

struct Bench {
    ram: Ram,
    format: RingFormat,
    size: u16,
    event_idx: bool,
    marks: File,
    bytes: u64,
    avail: u16,
}

impl Bench {
    fn new(input: &Input) -> Bench {
        let (format, size) = match input.packed {
            true => (RingFormat::Packed, u16::from(input.size % 64) + 1),
            false => (RingFormat::Split, 1 << (input.size % 7)),
        };
        let marks = InflightRegion::create(INDEX + 1, size).expect("marks");
        let bytes = InflightRegion::bytes(INDEX + 1, size).expect("legal");
        Bench {
            ram: Ram::new(&REGIONS),
            format,
            size,
            event_idx: input.event_idx,
            marks,
            bytes,
            avail: 0,
        }
    }

    fn device(&self, base: u32) -> Queue {
        let config = config(self.format, self.size, self.event_idx, base, [DESC, DRIVER, DEVICE]);
        let mut queue = Queue::new(config, self.ram.memory.clone()).expect("queue");
        let region =
            InflightRegion::map(&self.marks, 0, self.bytes, INDEX + 1, self.size).expect("region");
        queue.track(region.part(INDEX).expect("part"));
        queue
    }

    fn chain(&mut self, queue: &Queue, first: u8, descs: Vec<AnyDesc>) {
        let count = descs.len().min(usize::from(self.size));
        let base = queue.base();
        let (mut index, mut wrap) = (base as u16 & 0x7fff, base & 0x8000 != 0);
        if self.format == RingFormat::Split {
            index = u16::from(first) % self.size;
            self.ram.write_u16(DRIVER + 4 + 2 * u64::from(self.avail % self.size), index);
        }
        for (i, desc) in descs.into_iter().enumerate().take(count) {
            let desc = desc.desc();
            let next = (index + 1) % self.size;
            let flags = desc.flags & !1 | u16::from(i + 1 < count);
            let bytes = match self.format {
                RingFormat::Split => Desc { flags, link: next, ..desc }.split(),
                RingFormat::Packed => {
                    let lap = if wrap { AVAIL } else { USED };
                    Desc { flags: flags & !(AVAIL | USED) | lap, ..desc }.packed()
                }
            };
            self.ram.write(DESC + 16 * u64::from(index), &bytes);
            wrap ^= next == 0;
            index = next;
        }
        if self.format == RingFormat::Split {
            self.avail = self.avail.wrapping_add(1);
            self.ram.write_u16(DRIVER + 2, self.avail);
        }
    }
}

fuzz_target!(|input: Input| {
    let mut bench = Bench::new(&input);
    let mut queue = bench.device(if input.packed { 0x8000_8000 } else { 0 });
    let mut taken: Vec<Slot> = Vec::new();
    for op in input.ops {
        match op {
            Op::Chain(first, descs) => bench.chain(&queue, first, descs),
            Op::Header(at, kind, sector) => {
                bench.ram.write(Place::Data(at).addr(), &header(u32::from(kind) % 14, 0, sector));
            }
            Op::Pop => match queue.take() {
                Ok(Some(slot)) => {
                    check_request(&bench.ram, &queue, queue.request(slot));
                    assert!(!taken.contains(&slot));
                    taken.push(slot);
                }
                Ok(None) => assert!(!queue.is_replaying()),
                Err(broken) => {
                    assert_eq!(queue.take(), Err(broken));
                    assert!(!matches!(broken, Broken::InflightLost(vlane_ring::Lost::Room)));
                }
            },
            Op::Answer(pick, ok) if !taken.is_empty() => {
                let slot = taken.swap_remove(usize::from(pick) % taken.len());
                queue.answer(slot, if ok { Status::Ok } else { Status::IoErr });
            }
            Op::Answer(..) => {}
            Op::Publish => {
                queue.show();
            }
            Op::PutBack => {
                if let Some(slot) = taken.last().copied()
                    && queue.put_back(slot)
                {
                    taken.pop();
                }
            }
            Op::Kill(base) => {
                taken.clear();
                let base = base.unwrap_or(queue.base());
                queue = bench.device(base);
            }
            Op::Mark(at, byte) => {
                let _ = bench.marks.write_all_at(&[byte], u64::from(at) % bench.bytes);
            }
            Op::Poke(place, byte) => write(&bench.ram, place.addr(), &[byte]),
        }
        assert!(taken.len() == queue.in_flight());
    }
    taken.drain(..).for_each(|slot| queue.answer(slot, Status::Ok));
    queue.show();
});
