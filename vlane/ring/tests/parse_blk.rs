//! virtio-blk requests: the framing is free, so however a request is cut into buffers, it is the
//! same request; and every kind of misuse has its defined answer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

mod common;

use common::packed::PackedDriver;
use common::*;
use proptest::prelude::*;
use vlane_ring::limits::{MAX_RANGE_SECTORS, MAX_RANGES, MAX_REQUEST};
use vlane_ring::{
    Broken, IoPriority, MAX_BUFFERS, PriorityClass, Queue, Range, RequestKind, Status,
};

const PARTS: [u64; 3] = [0x1_0000, 0x1_0400, 0x1_0404];
/// Rings and tables, and apart from them the buffers.
const REGIONS: [(u64, usize); 2] = [(0x1_0000, 0x6000), (0x10_0000, 0x2_0000)];
const TABLE: u64 = 0x1_1000;
const BUFFERS: u64 = 0x10_0000;

/// Puts one chain into a fresh ring of 64 entries and takes it.
fn take(
    ram: &Ram,
    chain: &[Desc],
    packed: bool,
    indirect: bool,
) -> (Queue, Result<Option<vlane_ring::Slot>, Broken>) {
    let linked = |i: usize| {
        let next = i + 1 < chain.len();
        Desc {
            flags: chain[i].flags | if next { NEXT } else { 0 },
            link: if next { i as u16 + 1 } else { 0 },
            ..chain[i]
        }
    };
    let ring: Vec<Desc> = if indirect {
        for (i, desc) in chain.iter().enumerate() {
            let bytes = if packed { desc.packed() } else { linked(i).split() };
            ram.write(TABLE + 16 * i as u64, &bytes);
        }
        vec![Desc { addr: TABLE, len: 16 * chain.len() as u32, flags: INDIRECT, link: 0 }]
    } else if packed {
        chain.to_vec()
    } else {
        (0..chain.len()).map(linked).collect()
    };
    let mut queue = if packed {
        let mut driver = PackedDriver::new(ram, 64, false, PARTS);
        driver.add(&ring, 0).expect("room");
        Queue::new(driver.config(0x8000_8000), ram.memory.clone()).expect("queue")
    } else {
        let parts = [PARTS[0], 0x1_0400, 0x1_0600];
        for (i, desc) in ring.iter().enumerate() {
            ram.write(parts[0] + 16 * i as u64, &desc.split());
        }
        ram.write_u16(parts[1] + 4, 0);
        ram.write_u16(parts[1] + 2, 1);
        Queue::new(config(vlane_ring::RingFormat::Split, 64, false, 0, parts), ram.memory.clone())
            .expect("queue")
    };
    let slot = queue.take();
    (queue, slot)
}

fn every_way(
    chain: &[Desc],
    prepare: impl Fn(&Ram),
    check: impl Fn(&Ram, &mut Queue, Result<vlane_ring::Slot, Broken>),
) {
    for (packed, indirect) in [(false, false), (false, true), (true, false), (true, true)] {
        if !indirect && chain.len() > 64 {
            continue;
        }
        let ram = Ram::new(&REGIONS);
        prepare(&ram);
        let (mut queue, slot) = take(&ram, chain, packed, indirect);
        check(&ram, &mut queue, slot.map(|slot| slot.expect("available")));
    }
}

fn readable(addr: u64, len: u32) -> Desc {
    Desc { addr, len, flags: 0, link: 0 }
}

fn writable(addr: u64, len: u32) -> Desc {
    Desc { addr, len, flags: WRITE, link: 0 }
}

/// Cuts `len` bytes from `addr` on at these places, with empty buffers between.
fn cut(
    addr: u64,
    len: u32,
    cuts: &[u32],
    empty: bool,
    make: impl Fn(u64, u32) -> Desc,
) -> Vec<Desc> {
    let mut at: Vec<u32> = cuts.iter().map(|c| c % (len + 1)).chain([0, len]).collect();
    at.sort_unstable();
    let pieces = at.windows(2).map(|w| make(addr + u64::from(w[0]), w[1] - w[0]));
    pieces.filter(|d| empty || d.len > 0).collect()
}

#[derive(Debug, Clone)]
struct Logical {
    kind: u32,
    priority: u32,
    sector: u64,
    sectors: u32,
    ranges: Vec<Range>,
}

fn logical() -> impl Strategy<Value = Logical> {
    let kind = prop::sample::select(vec![IN, OUT, FLUSH, GET_ID, DISCARD, WRITE_ZEROES]);
    let range = (any::<u64>(), 0..=MAX_RANGE_SECTORS, any::<bool>())
        .prop_map(|(sector, sectors, unmap)| Range { sector, sectors, unmap });
    (kind, any::<u32>(), any::<u64>(), 0u32..5, prop::collection::vec(range, 1..6)).prop_map(
        |(kind, priority, sector, sectors, mut ranges)| {
            ranges.iter_mut().for_each(|r| r.unmap &= kind == WRITE_ZEROES);
            if !matches!(kind, DISCARD | WRITE_ZEROES) {
                ranges.clear();
            }
            Logical { kind, priority, sector, sectors, ranges }
        },
    )
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    //= virtio 2.7.4.1, test
    //# The device MUST NOT make assumptions about the particular arrangement of descriptors.
    fn any_framing_gives_the_same_request(
        request in logical(),
        read_cuts in prop::collection::vec(any::<u32>(), 0..20),
        write_cuts in prop::collection::vec(any::<u32>(), 0..20),
        empty: bool,
        odd in 0u64..16,
        packed: bool,
        indirect: bool,
    ) {
        let ram = Ram::new(&REGIONS);
        let (out, back) = match request.kind {
            IN => (0, 512 * request.sectors),
            OUT => (512 * request.sectors, 0),
            GET_ID => (0, 20),
            FLUSH => (0, 0),
            _ => (16 * request.ranges.len() as u32, 0),
        };
        let (read_at, write_at) = (BUFFERS + odd, BUFFERS + 0x8000 + odd);
        ram.write(read_at, &header(request.kind, request.priority, request.sector));
        for (i, range) in request.ranges.iter().enumerate() {
            let at = read_at + 16 + 16 * i as u64;
            ram.write(at, &range.sector.to_le_bytes());
            ram.write(at + 8, &range.sectors.to_le_bytes());
            ram.write(at + 12, &u32::from(range.unmap).to_le_bytes());
        }
        let mut chain = cut(read_at, 16 + out, &read_cuts, empty, readable);
        chain.extend(cut(write_at, back + 1, &write_cuts, empty, writable));
        ram.write(write_at + u64::from(back), &[0xee]);

        let (mut queue, slot) = take(&ram, &chain, packed, indirect);
        let slot = slot.expect("legal").expect("available");
        let got = queue.request(slot);
        let kind = match request.kind {
            IN => RequestKind::In,
            OUT => RequestKind::Out,
            FLUSH => RequestKind::Flush,
            GET_ID => RequestKind::GetId,
            DISCARD => RequestKind::Discard,
            _ => RequestKind::WriteZeroes,
        };
        prop_assert_eq!(got.kind(), kind);
        prop_assert_eq!(got.priority(), IoPriority(request.priority));
        prop_assert_eq!(got.sector(), request.sector);
        prop_assert_eq!(got.ranges(), &request.ranges[..]);
        prop_assert_eq!(got.len(), u64::from(out + back));
        // The data's bytes, one after the other.
        let mut next = if out > 0 { read_at + 16 } else { write_at };
        for buffer in got.buffers().iter().filter(|b| b.iov_len > 0) {
            prop_assert_eq!(ram.guest(buffer.iov_base.cast()), next);
            next += buffer.iov_len as u64;
        }
        if kind == RequestKind::GetId {
            got.fill(b"serial");
            prop_assert_eq!(ram.read(write_at, 20), b"serial\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        }
        queue.answer(slot, Status::Unsupported);
        prop_assert_eq!(ram.read(write_at + u64::from(back), 1), [2]);
    }
}

const HEADER: u64 = BUFFERS;
const STATUS: u64 = BUFFERS + 0x100;
const DATA: u64 = BUFFERS + 0x1000;

/// A request of this type with this data, the header and status in buffers of their own.
fn kind_of(kind: u32, data: &[Desc], bytes: &[u8]) -> RequestKind {
    let mut chain = vec![readable(HEADER, 16)];
    chain.extend(data);
    chain.push(writable(STATUS, 1));
    let kinds = std::cell::RefCell::new(Vec::new());
    let prepare = |ram: &Ram| {
        ram.write(HEADER, &header(kind, 0, 0));
        ram.write(DATA, bytes);
    };
    every_way(&chain, prepare, |_, queue, slot| {
        let request = queue.request(slot.expect("legal"));
        if matches!(request.kind(), RequestKind::Refused(_)) {
            assert!(request.ranges().is_empty());
        }
        kinds.borrow_mut().push(request.kind());
    });
    let kinds = kinds.into_inner();
    assert!(kinds.iter().all(|k| *k == kinds[0]), "{kinds:?}");
    kinds[0]
}

#[test]
//= virtio 2.7.5.1, test
//# A device MUST NOT write to a device-readable buffer, and a device SHOULD NOT read a
//# device-writable buffer (it MAY do so for debugging or diagnostic purposes).
//= virtio 2.8.15, test
//# A device MUST NOT write to a device-readable buffer, and a device SHOULD NOT read a
//# device-writable buffer.
//= virtio 5.2.6.2, test
//# The device MUST set the status byte to VIRTIO_BLK_S_UNSUPP for discard, secure erase and write
//# zeroes commands if any unknown flag is set.
//= virtio 5.2.6.2, test
//# Furthermore, the device MUST set the status byte to VIRTIO_BLK_S_UNSUPP for discard commands if
//# the unmap flag is set.
//= virtio 5.2.6.2, test
//# If the VIRTIO_BLK_F_ZONED feature is not negotiated, the device MUST reject
//# VIRTIO_BLK_T_ZONE_REPORT, VIRTIO_BLK_T_ZONE_OPEN, VIRTIO_BLK_T_ZONE_CLOSE,
//# VIRTIO_BLK_T_ZONE_FINISH, VIRTIO_BLK_T_ZONE_APPEND, VIRTIO_BLK_T_ZONE_RESET and
//# VIRTIO_BLK_T_ZONE_RESET_ALL requests with VIRTIO_BLK_S_UNSUPP status.
fn impossible_request_gets_the_right_status() {
    let (io_err, unsupported) =
        (RequestKind::Refused(Status::IoErr), RequestKind::Refused(Status::Unsupported));
    // Data in the wrong direction.
    assert_eq!(kind_of(IN, &[readable(DATA, 512)], &[]), io_err);
    assert_eq!(kind_of(OUT, &[writable(DATA, 512)], &[]), io_err);
    assert_eq!(kind_of(IN, &[readable(DATA, 512), writable(DATA, 512)], &[]), io_err);
    assert_eq!(kind_of(GET_ID, &[readable(DATA, 20)], &[]), io_err);
    assert_eq!(kind_of(DISCARD, &[writable(DATA, 16)], &[]), io_err);
    assert_eq!(kind_of(WRITE_ZEROES, &[writable(DATA, 16)], &[]), io_err);
    // Not whole sectors; none at all is whole.
    assert_eq!(kind_of(IN, &[writable(DATA, 511)], &[]), io_err);
    assert_eq!(kind_of(OUT, &[readable(DATA, 513)], &[]), io_err);
    assert_eq!(kind_of(IN, &[], &[]), RequestKind::In);
    assert_eq!(kind_of(OUT, &[readable(DATA, 0)], &[]), RequestKind::Out);
    // Not whole ranges, none, and too many: more than the configuration space announces.
    assert_eq!(kind_of(DISCARD, &[], &[]), io_err);
    assert_eq!(kind_of(DISCARD, &[readable(DATA, 15)], &[]), io_err);
    for (kind, ok) in [(DISCARD, RequestKind::Discard), (WRITE_ZEROES, RequestKind::WriteZeroes)] {
        assert_eq!(kind_of(kind, &[readable(DATA, 16 * MAX_RANGES)], &[]), ok);
        assert_eq!(kind_of(kind, &[readable(DATA, 16 * (MAX_RANGES + 1))], &[]), unsupported);
        assert_eq!(kind_of(kind, &[readable(DATA, 16 * (MAX_RANGES + 1) + 1)], &[]), io_err);
        // Ranges that are too large.
        let sectors = |sectors: u32| [&[0; 8][..], &sectors.to_le_bytes(), &[0; 4]].concat();
        assert_eq!(kind_of(kind, &[readable(DATA, 16)], &sectors(MAX_RANGE_SECTORS)), ok);
        assert_eq!(kind_of(kind, &[readable(DATA, 16)], &sectors(MAX_RANGE_SECTORS + 1)), io_err);
        assert_eq!(
            kind_of(kind, &[readable(DATA, 32)], &[sectors(8), sectors(u32::MAX)].concat()),
            io_err
        );
    }
    // Flags: unmap is for writing zeroes only; the others are for no kind.
    let flags = |flags: u8| [0, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, flags, 0, 0, 0];
    assert_eq!(kind_of(DISCARD, &[readable(DATA, 16)], &flags(0)), RequestKind::Discard);
    assert_eq!(kind_of(DISCARD, &[readable(DATA, 16)], &flags(1)), unsupported);
    assert_eq!(kind_of(WRITE_ZEROES, &[readable(DATA, 16)], &flags(1)), RequestKind::WriteZeroes);
    assert_eq!(kind_of(WRITE_ZEROES, &[readable(DATA, 16)], &flags(2)), unsupported);
    assert_eq!(
        kind_of(WRITE_ZEROES, &[readable(DATA, 32)], &[flags(0), flags(4)].concat()),
        unsupported
    );
    // Unknown types: SCSI, secure erase, zones, the old barrier.
    for kind in [2, 3, 9, 10, 12, 14, 15, 16, 18, 20, 22, 24, 26, 0x8000_0000, u32::MAX] {
        assert_eq!(kind_of(kind, &[writable(DATA, 512)], &[]), unsupported);
    }
}

/// The limits are 1 GiB, and the buffers of one system call.
#[test]
#[cfg_attr(miri, ignore = "a thousand buffers take it minutes")]
fn overlong_request_is_refused() {
    let io_err = RequestKind::Refused(Status::IoErr);
    // The same memory over and over.
    let long = vec![writable(BUFFERS, 0x2_0000); 1024];
    assert_eq!(kind_of(IN, &long, &[]), RequestKind::In);
    let ram = Ram::new(&[REGIONS[0], (0x10_0000, 0x80_0000)]);
    ram.write(HEADER, &header(IN, 0, 0));
    for (more, expected) in
        [(None, RequestKind::In), (Some(512), io_err), (Some(0x80_0000), io_err)]
    {
        let mut chain = vec![readable(HEADER, 16)];
        chain.extend(vec![
            writable(BUFFERS, 0x80_0000);
            usize::try_from(MAX_REQUEST >> 23).unwrap()
        ]);
        chain.extend(more.map(|len| writable(BUFFERS, len)));
        chain.push(writable(STATUS, 1));
        let (queue, slot) = take(&ram, &chain, false, true);
        assert_eq!(queue.request(slot.unwrap().unwrap()).kind(), expected);
    }
    // Status and data share the last buffer: 1025 of data.
    assert_eq!(kind_of(IN, &vec![writable(DATA, 512); MAX_BUFFERS], &[]), RequestKind::In);
    let mut chain = vec![readable(HEADER, 16)];
    chain.extend(vec![writable(DATA, 512); MAX_BUFFERS]);
    chain.push(writable(DATA, 513));
    let prepare = |ram: &Ram| ram.write(HEADER, &header(IN, 0, 0));
    every_way(&chain, prepare, |_, queue, slot| {
        assert_eq!(queue.request(slot.unwrap()).kind(), io_err)
    });
    chain.push(writable(STATUS, 1));
    every_way(&chain, prepare, |_, _, slot| {
        assert_eq!(slot, Err(Broken::ChainTooLong { limit: MAX_BUFFERS + 2 }));
    });
}

#[test]
fn malformed_chain_breaks_the_queue() {
    let broken = |chain: &[Desc], expected: Broken| {
        every_way(chain, |_| {}, |_, _, slot| assert_eq!(slot, Err(expected)));
    };
    broken(&[readable(HEADER, 16)], Broken::NoStatus);
    broken(&[readable(HEADER, 16), writable(STATUS, 0)], Broken::NoStatus);
    broken(&[readable(HEADER, 0)], Broken::NoStatus);
    broken(&[writable(STATUS, 1)], Broken::ShortHeader { len: 0 });
    broken(&[readable(HEADER, 15), writable(STATUS, 513)], Broken::ShortHeader { len: 15 });
    broken(
        &[readable(HEADER, 7), readable(HEADER, 8), writable(STATUS, 1)],
        Broken::ShortHeader { len: 15 },
    );
    let turned = [readable(HEADER, 16), writable(STATUS, 1), readable(DATA, 512)];
    broken(&turned, Broken::ReadableAfterWritable);
}

#[test]
fn buffer_outside_memory_fails_only_its_request() {
    let prepare = |ram: &Ram| {
        ram.write(HEADER, &header(IN, 7, 1));
        ram.write(STATUS, &[0xff]);
    };
    for (addr, len, hole) in [
        (0, 512, 0),
        (BUFFERS + 0x1_ff00, 0x200, BUFFERS + 0x2_0000),
        (0x1_5ffe, 4, 0x1_6000),
        (u64::MAX, 1, u64::MAX),
        (u64::MAX - 3, u32::MAX, u64::MAX - 3),
    ] {
        let (outside, status) = (writable(addr, len), writable(STATUS, 1));
        for chain in [
            vec![readable(HEADER, 16), outside, status],
            vec![readable(HEADER, 16), readable(addr, len), status],
            // The header itself; more data before and behind; an empty buffer between.
            vec![readable(addr, len), writable(DATA, 512), status],
            vec![readable(HEADER, 16), writable(DATA, 512), outside, writable(DATA, 512), status],
            vec![
                readable(HEADER, 16),
                readable(addr, len),
                readable(DATA, 512),
                writable(0, 0),
                status,
            ],
        ] {
            every_way(&chain, prepare, |ram, queue, slot| {
                let slot = slot.expect("answered");
                let request = queue.request(slot);
                assert_eq!(
                    (request.kind(), request.hole()),
                    (RequestKind::Unreachable, Some(hole))
                );
                assert_eq!((request.len(), request.buffers().len()), (0, 0));
                queue.answer(slot, Status::IoErr);
                assert_eq!(ram.read(STATUS, 1), [Status::IoErr as u8]);
            });
        }
        // Without a place for the status no answer is possible.
        let broken = Broken::BadAddress { addr, len, hole };
        for chain in [
            vec![readable(HEADER, 16), writable(DATA, 512), outside],
            vec![readable(HEADER, 16), status, outside],
            vec![readable(HEADER, 16), outside, status, readable(DATA, 512)],
            vec![readable(addr, len)],
        ] {
            every_way(&chain, |_| {}, |_, _, slot| assert_eq!(slot, Err(broken)));
        }
    }
}

#[test]
fn endless_buffers_outside_memory_break_the_queue() {
    let mut chain = vec![readable(HEADER, 16)];
    chain.extend(vec![writable(u64::MAX, 1); MAX_BUFFERS + 3]);
    chain.push(writable(STATUS, 1));
    every_way(
        &chain,
        |_| {},
        |_, _, slot| {
            assert_eq!(slot, Err(Broken::ChainTooLong { limit: MAX_BUFFERS + 2 }));
        },
    );
}

#[test]
fn serial_number_fills_20_bytes() {
    let chain =
        [readable(HEADER, 16), writable(DATA, 8), writable(DATA + 8, 0x1000), writable(STATUS, 1)];
    let prepare = |ram: &Ram| {
        ram.write(HEADER, &header(GET_ID, 0, 0));
        ram.write(DATA, &[0xaa; 64]);
    };
    every_way(&chain, prepare, |ram, queue, slot| {
        let request = queue.request(slot.expect("legal"));
        assert_eq!((request.kind(), request.len()), (RequestKind::GetId, 20));
        request.fill(b"0123456789");
        assert_eq!(ram.read(DATA, 22), [&b"0123456789"[..], &[0; 10], &[0xaa; 2]].concat());
    });
}

#[test]
fn fit_check_does_not_overflow() {
    let fits = |kind: u32, sector: u64, data: Desc, sectors: u64| {
        let chain = [readable(HEADER, 16), data, writable(STATUS, 1)];
        let fits = std::cell::Cell::new(None);
        let prepare = |ram: &Ram| ram.write(HEADER, &header(kind, 0, sector));
        every_way(&chain, prepare, |_, queue, slot| {
            fits.set(Some(queue.request(slot.unwrap()).fits(sectors)))
        });
        fits.get().unwrap()
    };
    assert!(fits(IN, 7, writable(DATA, 512), 8));
    assert!(!fits(IN, 7, writable(DATA, 1024), 8));
    assert!(!fits(OUT, u64::MAX, readable(DATA, 512), u64::MAX));
    assert!(!fits(OUT, u64::MAX, readable(DATA, 1024), 8));
    assert!(fits(OUT, 8, readable(DATA, 0), 8));
    assert!(!fits(OUT, 9, readable(DATA, 0), 8));
}

#[test]
fn priorities_are_class_and_level() {
    let of = |raw: u32| (IoPriority(raw).class(), IoPriority(raw).level());
    assert_eq!(of(0), (PriorityClass::None, 0));
    assert_eq!(of(1 << 13 | 3), (PriorityClass::RealTime, 3));
    assert_eq!(of(2 << 13 | 7), (PriorityClass::BestEffort, 7));
    assert_eq!(of(3 << 13), (PriorityClass::Idle, 0));
    assert_eq!(of(u32::MAX), (PriorityClass::None, 0x1fff));
}
