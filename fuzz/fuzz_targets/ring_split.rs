//! A split ring that the guest changes at will, against the model.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use vlane_fuzz::model::{self, Expect};
use vlane_fuzz::{
    AnyDesc, DESC, DEVICE, DRIVER, Place, REGIONS, Ram, TABLES, check_request, config, header,
    write,
};
use vlane_ring::{Broken, Queue, RingFormat, Slot, Status};

#[derive(Debug, Arbitrary)]
enum Op {
    Ring(u8, AnyDesc),
    Table(u8, u8, AnyDesc),
    Header(u8, u8, u64),
    /// Makes a head available.
    Avail(u8),
    Index(u16),
    Event(u16, u16),
    Pop,
    Answer(u8, bool),
    Publish,
    Notify(bool),
    Poke(Place, u8),
}

#[derive(Debug, Arbitrary)]
struct Input {
    order: u8,
    event_idx: bool,
    base: u16,
    used: u16,
    ops: Vec<Op>,
}

fuzz_target!(|input: Input| {
    let size = 1u16 << (input.order % 7);
    let ram = Ram::new(&REGIONS);
    ram.write_u16(DRIVER + 2, input.base);
    ram.write_u16(DEVICE + 2, input.used);
    let config =
        config(RingFormat::Split, size, input.event_idx, input.base.into(), [DESC, DRIVER, DEVICE]);
    let mut queue = Queue::new(config, ram.memory.clone()).expect("queue");
    let mut taken: Vec<(Slot, u16, Expect)> = Vec::new();
    let (mut next, mut used) = (input.base, input.used);
    // The available index that the device has seen.
    let mut seen = input.base;
    for op in input.ops {
        match op {
            Op::Ring(index, desc) => {
                ram.write(DESC + 16 * u64::from(u16::from(index) % size), &desc.desc().split())
            }
            Op::Table(table, index, desc) => {
                write(
                    &ram,
                    TABLES[usize::from(table % 4)] + 16 * u64::from(index % 32),
                    &desc.desc().split(),
                );
            }
            Op::Header(at, kind, sector) => {
                ram.write(Place::Data(at).addr(), &header(u32::from(kind) % 14, 0, sector));
            }
            Op::Avail(head) => {
                let index = ram.read_u16(DRIVER + 2);
                ram.write_u16(DRIVER + 4 + 2 * u64::from(index % size), head.into());
                ram.write_u16(DRIVER + 2, index.wrapping_add(1));
            }
            Op::Index(index) => ram.write_u16(DRIVER + 2, index),
            Op::Event(flags, event) => {
                ram.write_u16(DRIVER, flags);
                ram.write_u16(DRIVER + 4 + 2 * u64::from(size), event);
            }
            Op::Pop => {
                if seen == next {
                    let index = ram.read_u16(DRIVER + 2);
                    if index.wrapping_sub(next) > size {
                        assert_eq!(queue.take(), Err(Broken::AvailIndex { index, next, size }));
                        break;
                    }
                    seen = index;
                }
                if seen == next {
                    assert_eq!(queue.take(), Ok(None));
                    continue;
                }
                if taken.len() == usize::from(size) {
                    assert_eq!(queue.take(), Err(Broken::TooManyInFlight { size }));
                    break;
                }
                let head = ram.read_u16(DRIVER + 4 + 2 * u64::from(next % size));
                let expected = model::split_request(&ram, DESC, size, head);
                match (queue.take(), expected) {
                    (Ok(Some(slot)), Ok(expected)) => {
                        expected.check(&ram, queue.request(slot));
                        check_request(&ram, &queue, queue.request(slot));
                        next = next.wrapping_add(1);
                        taken.push((slot, head, expected));
                    }
                    (Err(broken), Err(expected)) => {
                        assert_eq!(broken, expected);
                        break;
                    }
                    (got, expected) => panic!("{got:?} instead of {expected:?}"),
                }
            }
            Op::Answer(pick, ok) if !taken.is_empty() => {
                let (slot, head, expected) = taken.swap_remove(usize::from(pick) % taken.len());
                let status = if ok { Status::Ok } else { Status::Unsupported };
                let entry = DEVICE + 4 + 8 * u64::from(used % size);
                queue.answer(slot, status);
                // A status byte in the used ring is the guest's own doing.
                let mut element = u32::from(head).to_le_bytes().to_vec();
                element.extend(expected.used_len(status).to_le_bytes());
                assert_eq!(ram.read(entry, 8), element);
                used = used.wrapping_add(1);
            }
            Op::Answer(..) => {}
            Op::Publish => {
                let signal = queue.show();
                if !input.event_idx && ram.read_u16(DRIVER) & 1 != 0 {
                    assert!(!signal);
                }
            }
            Op::Notify(true) => match queue.enable_notify() {
                Ok(true) => {}
                Ok(false) => assert_eq!(ram.read_u16(DRIVER + 2), next),
                Err(broken) => {
                    assert!(matches!(broken, Broken::AvailIndex { .. }));
                    break;
                }
            },
            Op::Notify(false) => queue.disable_notify(),
            Op::Poke(place, byte) => write(&ram, place.addr(), &[byte]),
        }
        // `enable_notify` looks at the index as well.
        if seen == next && queue.has_available() {
            seen = ram.read_u16(DRIVER + 2);
            if seen.wrapping_sub(next) > size {
                break;
            }
        }
    }
    for (slot, _, _) in taken {
        queue.answer(slot, Status::IoErr);
    }
    queue.show();
});
