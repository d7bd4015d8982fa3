//! Split rings, legal, damaged and hostile, against two other readers: virtio-queue, which reads
//! the same bytes, and the model, which gives the expected request.
//!
//! virtio-queue yields descriptors and checks less, so the two may differ in these points, and in
//! no other:
//!
//! | the ring has | virtio-queue | vlane |
//! |---|---|---|
//! | an index outside the table, a loop, a nested or illegal indirect table | ends the chain without a word | `Broken` |
//! | a descriptor that is indirect and has a next one | ignores the next one | `Broken::IndirectWithNext` |
//! | an indirect table's entry that lies across two regions | reads it | `Broken::BadAddress` |
//! | a buffer outside guest memory, or of either direction at the wrong place | yields it | `Broken` |
//! | more than 2^32 bytes | ends the chain | refuses the request |
//! | more than 1026 buffers | yields them | `Broken::ChainTooLong` |
//! | an empty buffer | yields it | passes over it |
//! | no event index, and NO_INTERRUPT | says that a signal is needed | says that it is not |

#![cfg(not(miri))]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

mod common;

use common::model::{self, Expect};
use common::{Desc, INDIRECT, NEXT, Ram, WRITE, cases, config, header};
use proptest::prelude::*;
use virtio_queue::{Queue as Oracle, QueueOwnedT, QueueT};
use vlane_ring::{Broken, Queue, RingFormat, Slot, Status};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// The rings and tables; beside it another region; beyond a hole one of odd size; one at the end of
/// the world.
const REGIONS: [(u64, usize); 4] =
    [(0x1_0000, 0x8000), (0x1_8000, 0x1000), (0x2_0000, 0x2345), (u64::MAX - 0x1fff, 0x1fff)];
const TABLE: u64 = 0x1_0000;
const AVAIL: u64 = 0x1_0800;
const USED: u64 = 0x1_0c00;
/// Eight indirect tables of 64 entries; the last one ends where the first region does, or continues
/// in the second.
const INDIRECTS: [u64; 8] =
    [0x1_1000, 0x1_1400, 0x1_1801, 0x1_1c08, 0x1_2000, 0x1_7c00, 0x1_7f80, 0x1_7f88];
/// Where the driver puts headers.
const HEADERS: u64 = 0x1_3000;

/// One chain that the driver makes available.
#[derive(Debug, Clone)]
struct Chain {
    header: (u32, u32, u64),
    data: Vec<(u64, u32, bool)>,
    /// True if the data is in the order of the specification.
    ordered: bool,
    status: bool,
    /// How many descriptors stand in the ring before the rest goes to this indirect table.
    indirect: Option<(usize, usize)>,
    /// Another head than the chain's own.
    head: Option<u16>,
}

#[derive(Debug, Clone)]
struct Step {
    chains: Vec<Chain>,
    /// Descriptors damaged afterwards: in the ring or in a table.
    damage: Vec<(Option<usize>, u16, Desc)>,
    /// Added to the available index in vain.
    jump: u16,
    avail_flags: u16,
    /// The used event, counted from the used index.
    used_event: u16,
    complete: Vec<(usize, Status)>,
    notify: Option<bool>,
}

fn addr() -> impl Strategy<Value = u64> {
    let near = |at: u64| (0u64..0x20).prop_map(move |d| (at - 0x10).saturating_add(d));
    prop_oneof![
        300 => (0x1_4000u64..0x1_7000).prop_map(|a| a & !0xf),
        20 => 0x2_0000u64..0x2_1000,
        4 => near(0x1_8000),
        2 => near(0x1_9000),
        2 => near(0x2_2345),
        2 => near(u64::MAX - 0x1000),
        1 => (0u64..0x20).prop_map(|d| u64::MAX - d),
        1 => 0x1_0000u64..0x1_1000,
        1 => any::<u64>(),
    ]
}

fn len() -> impl Strategy<Value = u32> {
    prop_oneof![
        160 => Just(512u32), 80 => Just(1024), 10 => Just(1), 60 => Just(16), 10 => 0u32..40,
        10 => 0u32..0x2400, 1 => any::<u32>(),
    ]
}

fn desc() -> impl Strategy<Value = Desc> {
    let flags = prop_oneof![4 => 0u16..8, 1 => any::<u16>()];
    let link = prop_oneof![8 => 0u16..70, 1 => any::<u16>()];
    let tables = (0usize..8, 0u32..70, 0u32..17)
        .prop_map(|(t, n, odd)| (INDIRECTS[t], if odd == 16 { 16 * n + 3 } else { 16 * n }));
    let target = prop_oneof![(addr(), len()), tables];
    (target, flags, link).prop_map(|((addr, len), flags, link)| Desc { addr, len, flags, link })
}

fn chain() -> impl Strategy<Value = Chain> {
    let kind =
        prop_oneof![9 => prop::sample::select(vec![0u32, 1, 4, 8, 11, 13]), 1 => any::<u32>()];
    let data = prop::collection::vec((addr(), len(), any::<bool>()), 0..12);
    let rare = |weight: u32| prop::bool::weighted(1.0 / f64::from(weight));
    (
        (kind, any::<u32>(), any::<u64>()),
        (data, 0u8..8),
        rare(16),
        rare(16),
        prop::option::of((0usize..3, 0usize..8)),
        prop::option::weighted(0.05, 0u16..80),
    )
        .prop_map(|(header, (mut data, direction), unordered, no_status, indirect, head)| {
            // Seven times in eight what suits the request.
            if direction > 0 {
                data.iter_mut().for_each(|d| d.2 = matches!(header.0, 0 | 8));
            }
            Chain { header, data, ordered: !unordered, status: !no_status, indirect, head }
        })
}

fn step() -> impl Strategy<Value = Step> {
    let status = prop::sample::select(vec![Status::Ok, Status::IoErr, Status::Unsupported]);
    let slot = prop::option::of(0usize..8);
    (
        prop::collection::vec(chain(), 0..5),
        prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec((slot, 0u16..64, desc()), 0..4)],
        prop_oneof![40 => Just(0u16), 1 => 0u16..100, 1 => any::<u16>()],
        0u16..4,
        prop_oneof![(0u16..8).prop_map(|d| d.wrapping_sub(4)), any::<u16>()],
        prop::collection::vec((any::<prop::sample::Index>().prop_map(|i| i.index(1 << 16)), status), 0..8),
        any::<Option<bool>>(),
    )
        .prop_map(|(chains, damage, jump, avail_flags, used_event, complete, notify)| Step {
            chains,
            damage,
            jump,
            avail_flags,
            used_event,
            complete,
            notify,
        })
}

/// The two devices on two copies of one memory.
struct Pair {
    size: u16,
    event_idx: bool,
    ram: Ram,
    ours: Queue,
    theirs_ram: GuestMemoryMmap,
    theirs: Oracle,
    avail: u16,
    /// Next descriptor that the driver uses.
    cursor: u16,
    /// The used index at the last publish.
    published: u16,
    in_flight: Vec<(Slot, u16, Expect)>,
}

impl Pair {
    fn new(order: u32, event_idx: bool, avail: u16, used: u16) -> Pair {
        let size = 1u16 << order;
        let ram = Ram::new(&REGIONS);
        ram.write_u16(AVAIL + 2, avail);
        ram.write_u16(USED + 2, used);
        let config = config(RingFormat::Split, size, event_idx, avail.into(), [TABLE, AVAIL, USED]);
        let ours = Queue::new(config, ram.memory.clone()).expect("queue");
        let ranges = REGIONS.map(|(guest, len)| (GuestAddress(guest), len));
        let theirs_ram = GuestMemoryMmap::from_ranges(&ranges).expect("memory");
        let mut theirs = Oracle::new(size).expect("oracle");
        theirs.try_set_desc_table_address(GuestAddress(TABLE)).unwrap();
        theirs.try_set_avail_ring_address(GuestAddress(AVAIL)).unwrap();
        theirs.try_set_used_ring_address(GuestAddress(USED)).unwrap();
        theirs.set_event_idx(event_idx);
        theirs.set_next_avail(avail);
        theirs.set_next_used(used);
        theirs.set_ready(true);
        assert!(theirs.is_valid(&theirs_ram));
        let in_flight = Vec::new();
        let mut pair = Pair {
            size,
            event_idx,
            ram,
            ours,
            theirs_ram,
            theirs,
            avail,
            cursor: 0,
            published: used,
            in_flight,
        };
        pair.sync();
        pair
    }

    /// Makes the oracle's memory equal to ours.
    fn sync(&mut self) {
        for ((guest, _), bytes) in REGIONS.iter().zip(self.ram.snapshot()) {
            self.theirs_ram.write_slice(&bytes, GuestAddress(*guest)).unwrap();
        }
    }

    fn assert_equal_memory(&self) {
        for ((guest, len), ours) in REGIONS.iter().zip(self.ram.snapshot()) {
            let mut theirs = vec![0; *len];
            self.theirs_ram.read_slice(&mut theirs, GuestAddress(*guest)).unwrap();
            let differs = ours.iter().zip(&theirs).position(|(a, b)| a != b);
            assert_eq!(differs.map(|at| guest + at as u64), None, "memory differs at");
        }
    }

    fn put_chain(&mut self, chain: &Chain) {
        let (kind, priority, sector) = chain.header;
        let header_at = HEADERS + 16 * u64::from(self.cursor);
        self.ram.write(header_at, &header(kind, priority, sector));
        let mut parts = vec![(header_at, 16, false)];
        parts.extend(&chain.data);
        if chain.ordered {
            parts.sort_by_key(|part| part.2);
        }
        if chain.status {
            parts.push((0x1_3800 + u64::from(self.cursor), 1, true));
        }
        let direct = chain.indirect.map_or(parts.len(), |(direct, _)| direct.min(parts.len()));
        let (direct, rest) = parts.split_at(direct);
        if direct.len() + usize::from(!rest.is_empty()) > usize::from(self.size) {
            return;
        }
        let last = direct.len() + usize::from(!rest.is_empty()) - 1;
        let desc = |&(addr, len, writable): &(u64, u32, bool), next: Option<u16>| Desc {
            addr,
            len,
            flags: if writable { WRITE } else { 0 } | if next.is_some() { NEXT } else { 0 },
            link: next.unwrap_or(0),
        };
        let own_head = self.cursor;
        for i in 0..=last {
            let index = self.cursor;
            self.cursor = (self.cursor + 1) % self.size;
            let entry = match direct.get(i) {
                Some(part) => desc(part, (i < last).then_some(self.cursor)),
                None => {
                    let addr = INDIRECTS[chain.indirect.unwrap().1];
                    for (k, part) in rest.iter().enumerate() {
                        let next = (k + 1 < rest.len()).then_some(k as u16 + 1);
                        self.ram.write(addr + 16 * k as u64, &desc(part, next).split());
                    }
                    Desc { addr, len: 16 * rest.len() as u32, flags: INDIRECT, link: 0 }
                }
            };
            self.ram.write(TABLE + 16 * u64::from(index), &entry.split());
        }
        let head = chain.head.unwrap_or(own_head);
        self.ram.write_u16(AVAIL + 4 + 2 * u64::from(self.avail % self.size), head);
        self.avail = self.avail.wrapping_add(1);
    }

    /// Pops everything from both. Returns false when the ring is broken.
    fn pop_all(&mut self) -> bool {
        loop {
            let next = self.theirs.next_avail();
            let heads = self.ram.read_u16(AVAIL + 2).wrapping_sub(next);
            let theirs = match self.theirs.iter(&self.theirs_ram) {
                Ok(mut iter) => iter.next(),
                Err(_) => {
                    assert!(heads > self.size);
                    assert!(matches!(self.ours.take(), Err(Broken::AvailIndex { .. })));
                    return false;
                }
            };
            let Some(theirs) = theirs else {
                assert_eq!(heads, 0);
                assert_eq!(self.ours.take(), Ok(None));
                return true;
            };
            let head = theirs.head_index();
            if self.in_flight.len() == usize::from(self.size) {
                assert_eq!(self.ours.take(), Err(Broken::TooManyInFlight { size: self.size }));
                return false;
            }
            self.compare_walk(
                head,
                theirs.map(|d| (d.addr().0, d.len(), d.flags(), d.next())).collect(),
            );
            let expected = model::split_request(&self.ram, TABLE, self.size, head);
            match (self.ours.take(), expected) {
                (Ok(Some(slot)), Ok(expected)) => {
                    expected.check(&self.ram, self.ours.request(slot));
                    self.in_flight.push((slot, head, expected));
                }
                (ours, expected) => {
                    assert_eq!(ours, Err(expected.expect_err("ours did not take a good chain")));
                    // It stays so.
                    assert_eq!(self.ours.take(), ours);
                    assert_eq!(self.ours.enable_notify().map(|_| None), ours);
                    return false;
                }
            }
        }
    }

    /// virtio-queue reads the descriptors that the model reads, but for the differences in the
    /// table above.
    fn compare_walk(&self, head: u16, theirs: Vec<(u64, u32, u16, u16)>) {
        let (descs, fault) = model::walk_split(&self.ram, TABLE, self.size, head);
        if matches!(fault, Some(Broken::IndirectWithNext | Broken::BadAddress { .. })) {
            return;
        }
        // As far as 2^32 bytes.
        let mut sum = 0u32;
        let fits = descs.iter().take_while(|d| sum.checked_add(d.len).map(|s| sum = s).is_some());
        let ours: Vec<_> = fits.map(|d| (d.addr, d.len, d.flags, d.link)).collect();
        let cut = ours.len() < descs.len();
        assert_eq!(theirs, ours);
        // Where the model finds a fault, theirs ends in a descriptor that promises another.
        let ends_well = theirs.last().is_some_and(|d| d.2 & NEXT == 0);
        let indirect_next = fault.is_some() && !theirs.is_empty();
        assert!(ends_well == (fault.is_none() && !cut) || indirect_next);
    }

    fn complete(&mut self, pick: usize, status: Status) {
        if self.in_flight.is_empty() {
            return;
        }
        let (slot, head, expected) = self.in_flight.swap_remove(pick % self.in_flight.len());
        self.theirs_ram.write_slice(&[status as u8], GuestAddress(expected.status)).unwrap();
        self.theirs.add_used(&self.theirs_ram, head, expected.used_len(status)).unwrap();
        self.ours.answer(slot, status);
    }

    fn publish(&mut self) {
        let ours = self.ours.show();
        self.assert_equal_memory();
        let theirs = self.theirs.needs_notification(&self.theirs_ram).unwrap();
        let published = self.published != self.theirs.next_used();
        self.published = self.theirs.next_used();
        if self.event_idx {
            assert_eq!(ours, theirs && published);
        } else {
            assert!(theirs);
            assert_eq!(ours, published && self.ram.read_u16(AVAIL) & 1 == 0);
        }
    }
}

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    //= virtio 2.7.5.3.2, test
    //# The device MUST ignore the write-only flag (flags&VIRTQ_DESC_F_WRITE) in the descriptor that
    //# refers to an indirect table.
    //= virtio 2.7.5.3.2, test
    //# The device MUST handle the case of zero or more normal chained descriptors followed by a
    //# single descriptor with flags&VIRTQ_DESC_F_INDIRECT.
    /// The test's own model agrees, too.
    fn any_ring_reads_as_in_virtio_queue(
        order in 0u32..7,
        event_idx: bool,
        avail in prop_oneof![0u16..4, any::<u16>(), 0xffe0u16..],
        used in prop_oneof![0u16..4, any::<u16>(), 0xffe0u16..],
        steps in prop::collection::vec(step(), 1..12),
    ) {
        let mut pair = Pair::new(order, event_idx, avail, used);
        for step in steps {
            for chain in &step.chains {
                if pair.avail.wrapping_sub(pair.theirs.next_avail()) < pair.size {
                    pair.put_chain(chain);
                }
            }
            for (table, index, desc) in step.damage {
                let table = table.map_or(TABLE, |i| INDIRECTS[i]);
                let index = if table == TABLE { index % pair.size } else { index };
                pair.ram.write(table + 16 * u64::from(index), &desc.split());
            }
            pair.avail = pair.avail.wrapping_add(step.jump);
            pair.ram.write_u16(AVAIL + 2, pair.avail);
            pair.ram.write_u16(AVAIL, step.avail_flags);
            let event = pair.theirs.next_used().wrapping_add(step.used_event);
            pair.ram.write_u16(AVAIL + 4 + 2 * u64::from(pair.size), event);
            pair.sync();
            let good = pair.pop_all();
            for (pick, status) in step.complete {
                pair.complete(pick, status);
            }
            pair.publish();
            if !good {
                break;
            }
            match step.notify {
                Some(true) => {
                    let theirs = pair.theirs.enable_notification(&pair.theirs_ram).unwrap();
                    match pair.ours.enable_notify() {
                        Ok(ours) => assert_eq!(ours, theirs),
                        // A status byte that was written over the available index.
                        Err(Broken::AvailIndex { .. }) => assert!(theirs),
                        Err(other) => panic!("{other}"),
                    }
                }
                Some(false) => {
                    pair.theirs.disable_notification(&pair.theirs_ram).unwrap();
                    pair.ours.disable_notify();
                }
                None => {}
            }
            pair.assert_equal_memory();
            // A status byte may have been written over it.
            pair.avail = pair.ram.read_u16(AVAIL + 2);
        }
        while !pair.in_flight.is_empty() {
            pair.complete(0, Status::Ok);
        }
        pair.publish();
    }
}

/// Both go round the 16 bits of the indices more than once, with every distance of the event.
#[test]
fn indices_wrap_at_65536() {
    for event_idx in [false, true] {
        let mut pair = Pair::new(4, event_idx, 0xff00, 0xff00);
        let mut random = 1u32;
        for round in 0..20_000u32 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let chain = Chain {
                header: (4, round, 0),
                data: Vec::new(),
                ordered: true,
                status: true,
                indirect: None,
                head: None,
            };
            let room = 8 - pair.in_flight.len() as u32;
            for _ in 0..(random >> 8) % (room + 1) {
                pair.put_chain(&chain);
            }
            pair.ram.write_u16(AVAIL + 2, pair.avail);
            let event =
                pair.theirs.next_used().wrapping_add((random >> 16) as u16 % 20).wrapping_sub(8);
            pair.ram.write_u16(AVAIL + 4 + 32, event);
            // Only the little that changed: the ring's page.
            let page = pair.ram.read(TABLE, 0x1000);
            pair.theirs_ram.write_slice(&page, GuestAddress(TABLE)).unwrap();
            while let Some(theirs) = pair.theirs.pop_descriptor_chain(&pair.theirs_ram) {
                let slot = pair.ours.take().expect("legal").expect("available");
                let head = theirs.head_index();
                let status = 0x1_3800 + u64::from(head);
                let expected = Expect {
                    kind: vlane_ring::RequestKind::Flush,
                    priority: round,
                    sector: 0,
                    data: Vec::new(),
                    ranges: Vec::new(),
                    status,
                    room: 0,
                };
                assert_eq!(pair.ours.request(slot).kind(), expected.kind);
                pair.in_flight.push((slot, head, expected));
            }
            assert_eq!(pair.ours.take(), Ok(None));
            for _ in 0..(random >> 24) % 8 {
                pair.complete(random as usize >> 4, Status::Ok);
            }
            let published = pair.published != pair.theirs.next_used();
            let ours = pair.ours.show();
            let theirs = pair.theirs.needs_notification(&pair.theirs_ram).unwrap();
            pair.published = pair.theirs.next_used();
            assert_eq!(ours, theirs && published, "round {round}");
            let again = pair.ours.enable_notify().expect("legal");
            assert_eq!(again, pair.theirs.enable_notification(&pair.theirs_ram).unwrap());
            let mut used = vec![0; 0x100];
            pair.theirs_ram.read_slice(&mut used, GuestAddress(USED)).unwrap();
            assert_eq!(pair.ram.read(USED, 0x100), used, "round {round}");
        }
    }
}
