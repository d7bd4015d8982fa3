//! Packed rings of random bytes that change during the reads: the device never panics, never loops
//! for ever, and yields no address outside guest memory. (The rings lie in heap memory: Miri and
//! AddressSanitizer watch the rest.)

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

mod common;

use common::packed::{AVAIL, USED};
use common::{Desc, INDIRECT, NEXT, Ram, WRITE, cases, config, header};
use proptest::prelude::*;
use vlane_ring::{Broken, MAX_BUFFERS, Queue, RingFormat, Slot, Status};

const PARTS: [u64; 3] = [0x1_0000, 0x1_0800, 0x1_0804];
const REGIONS: [(u64, usize); 3] =
    [(0x1_0000, 0x2000), (0x1_2000, 0x1001), (u64::MAX - 0xfff, 0xfff)];
const TABLE: u64 = 0x1_1000;

#[derive(Debug, Clone)]
enum Op {
    /// To the ring, or to the indirect table.
    Write(bool, u8, Desc),
    /// The driver's event structure.
    Event(u16, u16),
    Pop(u8),
    Complete(prop::sample::Index, bool),
    Publish,
    Notify(bool),
    Restart,
}

fn desc() -> impl Strategy<Value = Desc> {
    let addr = prop_oneof![
        20 => Just(0x1_1800u64),
        8 => 0x1_1000u64..0x1_3010,
        4 => Just(TABLE),
        2 => u64::MAX - 0x1010..u64::MAX,
        1 => any::<u64>(),
    ];
    let len = prop_oneof![8 => Just(16u32), 4 => (0u32..40).prop_map(|n| 16 * n), 4 => 0u32..600, 1 => any::<u32>()];
    let marks =
        prop_oneof![8 => Just(AVAIL), 8 => Just(USED), 1 => Just(0), 1 => Just(AVAIL | USED)];
    let flags = prop_oneof![
        6 => Just(NEXT), 6 => Just(WRITE), 4 => Just(NEXT | WRITE), 4 => Just(INDIRECT), 2 => Just(0),
        1 => any::<u16>(),
    ];
    (addr, len, flags, marks, any::<u16>()).prop_map(|(addr, len, flags, marks, link)| Desc {
        addr,
        len,
        flags: flags ^ marks,
        link,
    })
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (prop::bool::weighted(0.7), any::<u8>(), desc()).prop_map(|(r, i, d)| Op::Write(r, i, d)),
        1 => (any::<u16>(), 0u16..5).prop_map(|(off, flags)| Op::Event(off, flags)),
        6 => (1u8..8).prop_map(Op::Pop),
        4 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(i, ok)| Op::Complete(i, ok)),
        2 => Just(Op::Publish),
        1 => any::<bool>().prop_map(Op::Notify),
        1 => Just(Op::Restart),
    ]
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn hostile_ring_is_taken_or_broken(
        size in prop_oneof![1u16..12, Just(128u16)],
        event_idx: bool,
        base: u32,
        fill in prop::option::of(desc()),
        ops in prop::collection::vec(op(), 1..if cfg!(miri) { 30 } else { 80 }),
    ) {
        let ram = Ram::new(&REGIONS);
        ram.write(0x1_1800, &header(1, 0, 0));
        if let Some(desc) = fill {
            (0..u64::from(size)).for_each(|i| ram.write(PARTS[0] + 16 * i, &desc.packed()));
        }
        let make = |base| {
            let config = config(RingFormat::Packed, size, event_idx, base, PARTS);
            Queue::new(config, ram.memory.clone()).expect("a queue for any base")
        };
        let mut queue = make(base);
        let mut taken: Vec<Slot> = Vec::new();
        for op in ops {
            match op {
                Op::Write(true, index, desc) => {
                    ram.write(PARTS[0] + 16 * u64::from(u16::from(index) % size), &desc.packed());
                }
                Op::Write(false, index, desc) => ram.write(TABLE + 16 * u64::from(index % 128), &desc.packed()),
                Op::Event(off, flags) => {
                    ram.write_u16(PARTS[1], off);
                    ram.write_u16(PARTS[1] + 2, flags);
                }
                Op::Pop(count) => {
                    for _ in 0..count {
                        match queue.take() {
                            Ok(Some(slot)) => {
                                let request = queue.request(slot);
                                prop_assert!(request.buffers().len() <= MAX_BUFFERS || request.len() == 0 ||
                                    matches!(request.kind(), vlane_ring::RequestKind::Refused(_)));
                                for buffer in request.buffers().iter().filter(|b| b.iov_len > 0) {
                                    let first = ram.guest(buffer.iov_base.cast());
                                    let pieces = ram.pieces(first, buffer.iov_len as u64);
                                    prop_assert_eq!(pieces.map(|p| p.len()), Ok(1));
                                }
                                prop_assert!(!taken.contains(&slot));
                                taken.push(slot);
                            }
                            Ok(None) => break,
                            Err(broken) => {
                                prop_assert_eq!(queue.take(), Err(broken));
                                prop_assert!(broken != Broken::NestedIndirect, "flags in a packed table are ignored");
                                break;
                            }
                        }
                    }
                    prop_assert!(taken.len() <= usize::from(size));
                }
                Op::Complete(pick, ok) if !taken.is_empty() => {
                    let slot = taken.swap_remove(pick.index(taken.len()));
                    queue.answer(slot, if ok { Status::Ok } else { Status::IoErr });
                }
                Op::Complete(..) => {}
                Op::Publish => {
                    queue.show();
                }
                Op::Notify(true) => {
                    let _ = queue.enable_notify();
                }
                Op::Notify(false) => queue.disable_notify(),
                Op::Restart => {
                    taken.drain(..).for_each(|slot| queue.answer(slot, Status::Ok));
                    queue.show();
                    queue = make(queue.base());
                }
            }
        }
    }
}

/// A chain that fills the ring with itself, and tables as long as their length can say.
#[test]
#[cfg_attr(miri, ignore = "a thousand buffers take it too long")]
fn endless_chains_are_cut_off() {
    let ram = Ram::new(&[(0x1_0000, 0x10_0000)]);
    let parts = [0x1_0000, 0x9_8000, 0x9_8004];
    let size = 32768;
    let make = || {
        let config = config(RingFormat::Packed, size, false, 0x8000_8000, parts);
        Queue::new(config, ram.memory.clone()).expect("queue")
    };
    let put = |desc: Desc| {
        (0..u64::from(size)).for_each(|i| ram.write(parts[0] + 16 * i, &desc.packed()))
    };
    let link = Desc { addr: 0x1_0000, len: 1, flags: NEXT | AVAIL, link: 0 };
    put(link);
    assert_eq!(make().take(), Err(Broken::ChainTooLong { limit: MAX_BUFFERS + 2 }));
    put(Desc { len: 0, ..link });
    assert_eq!(make().take(), Err(Broken::ChainTooLong { limit: MAX_BUFFERS + 2 }));
    // Of 32767 entries, the zeroes in memory, all of them empty buffers.
    let table = Desc { addr: 0xa_0000, len: 0x7_fff0, flags: INDIRECT | AVAIL, link: 0 };
    ram.write(parts[0], &table.packed());
    assert_eq!(make().take(), Err(Broken::ChainTooLong { limit: MAX_BUFFERS + 2 }));
    for len in [0, 8, 24, 0x10_0000, !15] {
        ram.write(
            parts[0],
            &Desc { addr: 0xa_0000, len, flags: INDIRECT | AVAIL, link: 0 }.packed(),
        );
        assert_eq!(make().take(), Err(Broken::BadIndirectTable { addr: 0xa_0000, len }));
    }
}
