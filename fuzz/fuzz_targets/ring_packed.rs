//! A packed ring that the guest changes at will: no panic, no endless loop, no address outside
//! guest memory.

#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use vlane_fuzz::packed::{AVAIL, USED};
use vlane_fuzz::{
    AnyDesc, DESC, DEVICE, DRIVER, Desc, Place, REGIONS, Ram, TABLES, check_request, config,
    header, write,
};
use vlane_ring::{Broken, Queue, RingFormat, Slot, Status};

#[derive(Debug, Arbitrary)]
enum Op {
    /// A descriptor with the marks of this lap or the other.
    Ring(u8, bool, AnyDesc),
    /// A run of them that form a chain, from where the device stands.
    Chain(u8, Vec<AnyDesc>),
    Table(u8, u8, AnyDesc),
    Header(u8, u8, u64),
    Event(u16, u16),
    Pop,
    Answer(u8, bool),
    Publish,
    Notify(bool),
    Poke(Place, u8),
    Restart(Option<u32>),
}

#[derive(Debug, Arbitrary)]
struct Input {
    size: u8,
    event_idx: bool,
    base: Option<u32>,
    ops: Vec<Op>,
}

fn mark(desc: Desc, wrap: bool) -> Desc {
    Desc { flags: desc.flags & !(AVAIL | USED) | if wrap { AVAIL } else { USED }, ..desc }
}

fuzz_target!(|input: Input| {
    let size = u16::from(input.size % 64) + 1;
    let ram = Ram::new(&REGIONS);
    let make = |base| {
        let config =
            config(RingFormat::Packed, size, input.event_idx, base, [DESC, DRIVER, DEVICE]);
        Queue::new(config, ram.memory.clone()).expect("queue")
    };
    let mut queue = make(input.base.unwrap_or(0x8000_8000));
    let mut taken: Vec<Slot> = Vec::new();
    for op in input.ops {
        match op {
            Op::Ring(index, wrap, desc) => {
                let at = DESC + 16 * u64::from(u16::from(index) % size);
                ram.write(at, &mark(desc.desc(), wrap).packed());
            }
            Op::Chain(skip, descs) => {
                let base = queue.base();
                let (mut index, mut wrap) = (base as u16 & 0x7fff, base & 0x8000 != 0);
                let skip = usize::from(skip % 4);
                let count = descs.len();
                for (i, desc) in descs.into_iter().enumerate().take(usize::from(size)) {
                    let next = if i + 1 < count { 1 } else { 0 };
                    let desc = desc.desc();
                    let desc = mark(Desc { flags: desc.flags & !1 | next, ..desc }, wrap);
                    if i >= skip {
                        ram.write(DESC + 16 * u64::from(index), &desc.packed());
                    }
                    index += 1;
                    if index == size {
                        (index, wrap) = (0, !wrap);
                    }
                }
            }
            Op::Table(table, index, desc) => {
                write(
                    &ram,
                    TABLES[usize::from(table % 4)] + 16 * u64::from(index % 32),
                    &desc.desc().packed(),
                );
            }
            Op::Header(at, kind, sector) => {
                ram.write(Place::Data(at).addr(), &header(u32::from(kind) % 14, 0, sector));
            }
            Op::Event(off, flags) => {
                ram.write_u16(DRIVER, off);
                ram.write_u16(DRIVER + 2, flags);
            }
            Op::Pop => match queue.take() {
                Ok(Some(slot)) => {
                    check_request(&ram, &queue, queue.request(slot));
                    assert!(!taken.contains(&slot));
                    taken.push(slot);
                }
                Ok(None) => {}
                Err(broken) => {
                    assert_eq!(queue.take(), Err(broken));
                    assert!(!matches!(broken, Broken::NestedIndirect | Broken::AvailIndex { .. }));
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
            Op::Notify(true) => {
                let _ = queue.enable_notify();
            }
            Op::Notify(false) => queue.disable_notify(),
            Op::Poke(place, byte) => write(&ram, place.addr(), &[byte]),
            Op::Restart(base) => {
                taken.drain(..).for_each(|slot| queue.answer(slot, Status::Ok));
                queue.show();
                queue.leave_place();
                queue = make(base.unwrap_or(queue.base()));
            }
        }
        assert!(taken.len() == queue.in_flight());
    }
    taken.drain(..).for_each(|slot| queue.answer(slot, Status::Ok));
    queue.show();
});
