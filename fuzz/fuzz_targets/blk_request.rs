//! One chain of any buffers with any bytes in them, against the model of what request it is.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use vlane_fuzz::model;
use vlane_fuzz::{
    DATA, DESC, DEVICE, DRIVER, Desc, INDIRECT, Length, NEXT, Place, REGIONS, Ram, WRITE, config,
    header, write,
};
use vlane_ring::{Queue, RingFormat, Status};

/// Room for more than the longest legal chain.
const TABLE: u64 = 0x4_0000;
const TABLE_ENTRIES: usize = 2100;

#[derive(Debug, Arbitrary)]
struct Buffer {
    place: Option<Place>,
    length: Length,
    /// How often it stands there.
    times: u16,
}

#[derive(Debug, Arbitrary)]
struct Input {
    kind: u8,
    priority: u32,
    sector: u64,
    /// Bytes at the start of the data, behind the header.
    bytes: Vec<u8>,
    /// True if the header has a buffer of its own, and the other places where it is cut.
    cuts: Vec<u8>,
    readable: Vec<Buffer>,
    writable: Vec<Buffer>,
    /// The last writable buffer is the status alone.
    status: bool,
}

fuzz_target!(|input: Input| {
    let mut regions = REGIONS.to_vec();
    regions.push((TABLE, 16 * TABLE_ENTRIES));
    let ram = Ram::new(&regions);
    ram.write(DATA, &header(u32::from(input.kind) % 15, input.priority, input.sector));
    write(&ram, DATA + 16, &input.bytes[..input.bytes.len().min(0x800)]);
    let mut chain = Vec::new();
    // The header, and what follows it, in pieces.
    let mut at = DATA;
    for cut in &input.cuts {
        let len = u32::from(cut % 24);
        chain.push(Desc { addr: at, len, flags: 0, link: 0 });
        at += u64::from(len);
    }
    for (buffers, flags) in [(&input.readable, 0), (&input.writable, WRITE)] {
        for buffer in buffers.iter().take(16) {
            let addr = buffer.place.map_or(at, Place::addr);
            let times = usize::from(buffer.times % 1100)
                .min(TABLE_ENTRIES - 1 - chain.len().min(TABLE_ENTRIES - 1));
            let desc = Desc { addr, len: buffer.length.bytes(), flags, link: 0 };
            chain.extend(std::iter::repeat_n(desc, times));
            if buffer.place.is_none() {
                at = at.saturating_add(u64::from(desc.len));
            }
        }
    }
    if input.status {
        chain.push(Desc { addr: DATA - 1, len: 1, flags: WRITE, link: 0 });
    }
    chain.truncate(TABLE_ENTRIES);
    if chain.is_empty() {
        return;
    }
    let last = chain.len() - 1;
    for (i, desc) in chain.iter().enumerate() {
        let next = if i < last { NEXT } else { 0 };
        let desc = Desc {
            flags: desc.flags | next,
            link: if i < last { i as u16 + 1 } else { 0 },
            ..*desc
        };
        ram.write(TABLE + 16 * i as u64, &desc.split());
    }
    let table = Desc { addr: TABLE, len: 16 * chain.len() as u32, flags: INDIRECT, link: 0 };
    ram.write(DESC, &table.split());
    ram.write_u16(DRIVER + 2, 1);
    let config = config(RingFormat::Split, 1, false, 0, [DESC, DRIVER, DEVICE]);
    let mut queue = Queue::new(config, ram.memory.clone()).expect("queue");
    match (queue.take(), model::split_request(&ram, DESC, 1, 0)) {
        (Ok(Some(slot)), Ok(expected)) => {
            expected.check(&ram, queue.request(slot));
            vlane_fuzz::check_request(&ram, &queue, queue.request(slot));
            queue.answer(slot, Status::Unsupported);
            let status = ram.read(expected.status, 1)[0];
            // Unless the guest has the used entry written over it.
            let in_ring = (DEVICE..DEVICE + 16).contains(&expected.status);
            assert!(status == 2 || in_ring);
        }
        (got, expected) => {
            assert_eq!(
                got.expect_err("the model refuses"),
                expected.expect_err("the queue refuses")
            )
        }
    }
    queue.show();
});
