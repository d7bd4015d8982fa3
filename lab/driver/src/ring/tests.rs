//! The driver's side against a small device that follows the specification to the letter. It takes
//! no shortcuts: it looks at the shared memory only, with copies, and completes in a random order.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

use std::collections::{HashMap, HashSet, VecDeque};

use super::*;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Guest memory by guest physical address, as a device in the same process sees it.
struct Mem<'a>(&'a Arena);

impl Mem<'_> {
    fn read<const N: usize>(&self, addr: u64) -> [u8; N] {
        assert!(addr >= self.0.base() && addr + N as u64 <= self.0.base() + self.0.size());
        let from = std::ptr::with_exposed_provenance::<std::sync::atomic::AtomicU8>(
            self.0.to_user(addr) as usize,
        );
        // SAFETY: within the arena (asserted), by atomics, as every access to it.
        std::array::from_fn(|i| unsafe { &*from.add(i) }.load(std::sync::atomic::Ordering::Relaxed))
    }
    fn write(&self, addr: u64, bytes: &[u8]) {
        assert!(
            addr >= self.0.base() && addr + bytes.len() as u64 <= self.0.base() + self.0.size()
        );
        let to = std::ptr::with_exposed_provenance::<std::sync::atomic::AtomicU8>(
            self.0.to_user(addr) as usize,
        );
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: as above.
            unsafe { &*to.add(i) }.store(*byte, std::sync::atomic::Ordering::Relaxed);
        }
    }
    fn u16(&self, addr: u64) -> u16 {
        u16::from_le_bytes(self.read(addr))
    }
}

/// A chain as the device sees it.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    id: u16,
    entries: u16,
    segments: Vec<(u64, u32, bool)>,
}

struct Device<'a> {
    mem: Mem<'a>,
    layout: Layout,
    avail: u16,
    avail_wrap: bool,
    used: u16,
    used_wrap: bool,
}

impl<'a> Device<'a> {
    fn new(arena: &'a Arena, layout: Layout) -> Self {
        Self { mem: Mem(arena), layout, avail: 0, avail_wrap: true, used: 0, used_wrap: true }
    }

    fn entry(&self, addr: u64) -> (u64, u32, u16, u16) {
        let bytes: [u8; 16] = self.mem.read(addr);
        (
            u64::from_le_bytes(bytes[..8].try_into().unwrap()),
            u32::from_le_bytes(bytes[8..12].try_into().unwrap()),
            u16::from_le_bytes(bytes[12..14].try_into().unwrap()),
            u16::from_le_bytes(bytes[14..].try_into().unwrap()),
        )
    }

    fn table(&self, addr: u64, len: u32) -> Vec<(u64, u32, bool)> {
        let packed = self.layout.format == Format::Packed;
        let mut all = Vec::new();
        let mut i = 0;
        loop {
            let (a, l, third, fourth) = self.entry(addr + i * 16);
            let flags = if packed { fourth } else { third };
            all.push((a, l, flags & 2 != 0));
            i += 1;
            if packed && i * 16 == u64::from(len) || !packed && flags & 1 == 0 {
                return all;
            }
            if !packed {
                assert_eq!(u64::from(fourth), i);
            }
        }
    }

    fn pop(&mut self) -> Option<Seen> {
        match self.layout.format {
            Format::Split => self.pop_split(),
            Format::Packed => self.pop_packed(),
        }
    }

    fn pop_split(&mut self) -> Option<Seen> {
        if self.mem.u16(self.layout.driver + 2) == self.avail {
            return None;
        }
        let at = self.layout.driver + 4 + 2 * u64::from(self.avail % self.layout.size);
        self.avail = self.avail.wrapping_add(1);
        let head = self.mem.u16(at);
        let mut segments = Vec::new();
        let mut next = head;
        loop {
            let (addr, len, flags, link) = self.entry(self.layout.desc + 16 * u64::from(next));
            if flags & 4 != 0 {
                segments = self.table(addr, len);
            } else {
                segments.push((addr, len, flags & 2 != 0));
            }
            if flags & 1 == 0 {
                return Some(Seen { id: head, entries: 1, segments });
            }
            next = link;
        }
    }

    fn pop_packed(&mut self) -> Option<Seen> {
        let (mut segments, mut entries) = (Vec::new(), 0);
        loop {
            let (addr, len, id, flags) = self.entry(self.layout.desc + 16 * u64::from(self.avail));
            let available = (flags >> 7 & 1 == 1) == self.avail_wrap
                && (flags >> 15 & 1 == 1) != self.avail_wrap;
            if !available {
                assert_eq!(entries, 0, "the rest of a chain is available with its head");
                return None;
            }
            self.avail += 1;
            if self.avail == self.layout.size {
                (self.avail, self.avail_wrap) = (0, !self.avail_wrap);
            }
            entries += 1;
            if flags & 4 != 0 {
                segments = self.table(addr, len);
            } else {
                segments.push((addr, len, flags & 2 != 0));
            }
            if flags & 1 == 0 {
                return Some(Seen { id, entries, segments });
            }
        }
    }

    /// Returns a chain; returns true if the driver wants an interrupt for it (decided per chain
    /// here).
    fn push(&mut self, chain: &Seen, len: u32, event_idx: bool) -> bool {
        let Layout { desc, driver, device, size, .. } = self.layout;
        if self.layout.format == Format::Split {
            let at = device + 4 + 8 * u64::from(self.used % size);
            self.mem.write(at, &u32::from(chain.id).to_le_bytes());
            self.mem.write(at + 4, &len.to_le_bytes());
            let old = self.used;
            self.used = self.used.wrapping_add(1);
            self.mem.write(device + 2, &self.used.to_le_bytes());
            return if event_idx {
                passed(self.mem.u16(driver + 4 + 2 * u64::from(size)), self.used, old)
            } else {
                self.mem.u16(driver) & 1 == 0
            };
        }
        let at = desc + 16 * u64::from(self.used);
        let turn: u16 = if self.used_wrap { 0x8080 } else { 0 };
        self.mem.write(at + 8, &len.to_le_bytes());
        self.mem.write(at + 12, &chain.id.to_le_bytes());
        self.mem.write(at + 14, &turn.to_le_bytes());
        let (from, wrap) = (self.used, self.used_wrap);
        self.used += chain.entries;
        if self.used >= size {
            (self.used, self.used_wrap) = (self.used - size, !self.used_wrap);
        }
        let (off, flags) = (self.mem.u16(driver), self.mem.u16(driver + 2));
        match flags {
            1 => false,
            2 => {
                // The chain lay at `from`, of length `entries`: is the wanted place among them, in
                // the same turn?
                (0..chain.entries).any(|i| {
                    let mut place = (from + i, wrap);
                    if place.0 >= size {
                        place = (place.0 - size, !wrap);
                    }
                    place == (off & 0x7fff, off >> 15 == 1)
                })
            }
            _ => true,
        }
    }
}

fn sizes(format: Format) -> Vec<u16> {
    match format {
        Format::Split => vec![1, 2, 4, 8, 64, 256],
        Format::Packed => vec![1, 2, 3, 5, 7, 8, 61, 64, 255],
    }
}

/// Random chains, one-shot and bound, direct and indirect, in batches of random length, completed
/// out of order. The device sees exactly the added chains, and the driver reaps exactly the
/// returned ones. Neither side waits for a signal that does not come.
#[test]
fn every_added_chain_returns_once() {
    let rounds = if cfg!(miri) { 10 } else { 4000 };
    for format in [Format::Split, Format::Packed] {
        for event_idx in [false, true] {
            for size in sizes(format) {
                one_queue(format, size, event_idx, rounds);
            }
        }
    }
}

fn one_queue(format: Format, size: u16, event_idx: bool, rounds: u32) {
    let arena = Arena::new(0x10_0000, 1 << 16).unwrap();
    let mut queue = Queue::new(&arena, format, size, event_idx).unwrap();
    let mut tables = arena.alloc(16 * 16 * 64, 64).unwrap();
    let mut device = Device::new(&arena, queue.layout());
    let mut rng = Rng(u64::from(size) << 8 | u64::from(event_idx));
    let bound = queue.bind(&[Segment::readable(0x77, 7)]).unwrap();
    let mut bound_out = false;
    // The added chains, in order; the device's; the returned ones.
    let (mut added, mut taken, mut returned) =
        (VecDeque::new(), Vec::<Seen>::new(), VecDeque::new());
    // True if the other side may sleep, and was woken since.
    let (mut kicked, mut called) = (true, true);
    let mut out: HashSet<u16> = HashSet::new();
    let mut free_tables: Vec<usize> = (0..64).collect();
    let mut table_of: HashMap<u16, usize> = HashMap::new();

    for round in 0..rounds {
        for _ in 0..rng.below(4) {
            if rng.below(4) == 0 && !bound_out {
                match queue.submit(bound) {
                    Ok(()) => {
                        bound_out = true;
                        added.push_back((bound, vec![(0x77, 7, false)]));
                    }
                    Err(error) => assert!(matches!(error, Error::Full)),
                }
                assert!(matches!(queue.submit(bound), Err(Error::NotIdle(_) | Error::Full)));
                continue;
            }
            let n = 1 + rng.below(4.min(u64::from(size)));
            let chain: Vec<_> = (0..n)
                .map(|i| match rng.below(2) {
                    0 => Segment::readable(rng.below(1 << 40), i as u32 + 1),
                    _ => Segment::writable(rng.below(1 << 40), i as u32 + 1),
                })
                .collect();
            let expect: Vec<_> = chain.iter().map(|s| (s.addr, s.len, s.flags & 2 != 0)).collect();
            let table = (rng.below(2) == 0).then(|| free_tables.pop()).flatten();
            let result = match table {
                Some(table) => {
                    queue.write_table(&mut tables, table * 256, &chain).unwrap();
                    queue.add(&[Segment::indirect(tables.addr() + table as u64 * 256, n as u16)])
                }
                None => queue.add(&chain),
            };
            match result {
                Ok(id) => {
                    assert!(out.insert(id), "an id is in use once");
                    table.map(|t| table_of.insert(id, t));
                    added.push_back((id, expect));
                }
                Err(Error::Full) => free_tables.extend(table),
                Err(other) => panic!("{other}"),
            }
        }
        kicked |= queue.publish();
        // The device: asleep unless kicked. It asks for a kick when it finds no chain.
        if kicked || rng.below(4) == 0 {
            while let Some(seen) = device.pop() {
                let (id, segments) = added.pop_front().unwrap();
                assert_eq!((seen.id, &seen.segments), (id, &segments), "round {round}");
                taken.push(seen);
            }
            assert!(added.is_empty(), "everything published is seen");
            kicked = false;
            let layout = queue.layout();
            match (format, event_idx) {
                (Format::Split, true) => {
                    device.mem.write(
                        layout.device + 4 + 8 * u64::from(size),
                        &device.avail.to_le_bytes(),
                    );
                }
                (Format::Packed, true) => {
                    let off = device.avail | u16::from(device.avail_wrap) << 15;
                    device.mem.write(layout.device, &off.to_le_bytes());
                    device.mem.write(layout.device + 2, &2_u16.to_le_bytes());
                }
                _ => {}
            }
        }
        for _ in 0..rng.below(6).min(taken.len() as u64) {
            let seen = taken.swap_remove(rng.below(taken.len() as u64) as usize);
            let len = rng.below(1 << 20) as u32;
            called |= device.push(&seen, len, event_idx);
            returned.push_back((seen.id, len));
        }
        if called || rng.below(4) == 0 {
            if rng.below(2) == 0 {
                queue.disable_interrupts();
            }
            loop {
                queue
                    .reap(|used| {
                        assert_eq!(returned.pop_front().unwrap(), (used.id, used.len));
                        if used.id == bound {
                            bound_out = false;
                        } else {
                            assert!(out.remove(&used.id));
                            free_tables.extend(table_of.remove(&used.id));
                        }
                    })
                    .unwrap();
                if !queue.enable_interrupts() {
                    break;
                }
            }
            called = false;
            assert!(returned.is_empty(), "everything returned is reaped");
        }
    }
    assert_eq!(usize::from(queue.held()), added.len() + taken.len() + returned.len());
}

#[test]
fn rule_breaking_device_is_detected() {
    let arena = Arena::new(0, 1 << 16).unwrap();
    for format in [Format::Split, Format::Packed] {
        let mut queue = Queue::new(&arena, format, 8, false).unwrap();
        let mut device = Device::new(&arena, queue.layout());
        queue.add(&[Segment::readable(0, 1)]).unwrap();
        queue.publish();
        device.push(&Seen { id: 5, entries: 1, segments: Vec::new() }, 0, false);
        let error = queue.reap(|_| ()).unwrap_err();
        assert!(matches!(error, Error::Device(Violation::UnknownChain { id: 5 })), "{error}");
    }
    let mut queue = Queue::new(&arena, Format::Split, 8, false).unwrap();
    let mem = Mem(&arena);
    mem.write(queue.layout().device + 2, &3_u16.to_le_bytes());
    assert!(matches!(
        queue.reap(|_| ()),
        Err(Error::Device(Violation::TooMany { returned: 3, held: 0 }))
    ));
}

#[test]
fn forbidden_queue_sizes_are_refused() {
    let arena = Arena::new(0, 4 << 20).unwrap();
    for (format, size) in [
        (Format::Split, 0),
        (Format::Split, 3),
        (Format::Split, 65535),
        (Format::Packed, 0),
        (Format::Packed, 32769),
    ] {
        assert!(matches!(Queue::new(&arena, format, size, true), Err(Error::QueueSize { .. })));
    }
    for format in [Format::Split, Format::Packed] {
        Queue::new(&arena, format, 32768, true).unwrap();
    }
}

#[test]
fn block_requests_have_right_descriptors() {
    for format in [Format::Split, Format::Packed] {
        for indirect in [false, true] {
            let options = BlkOptions {
                format,
                size: None,
                depth: 3,
                data: 8192,
                segments: 4,
                indirect,
                event_idx: true,
            };
            let arena = Arena::new(1 << 32, options.arena_bytes().unwrap()).unwrap();
            let mut queue = BlkQueue::new(&arena, options).unwrap();
            let mut device = Device::new(&arena, queue.layout());
            let mut back = Vec::new();
            for (kind, len) in [
                (RequestKind::Read, 8192),
                (RequestKind::Write, 4096),
                (RequestKind::Flush, 0),
                (RequestKind::GetId, 20),
                (RequestKind::Read, 512),
            ] {
                let request = Request { kind, sector: 77, len, ioprio: 16388 };
                queue.submit(1, request).unwrap();
                assert!(matches!(queue.submit(1, request), Err(Error::NotIdle(_))));
                assert!(matches!(
                    queue.submit(1, Request { kind: RequestKind::Write, len: 1024, ..request }),
                    Err(Error::NotIdle(_))
                ));
                queue.publish();
                let seen = device.pop().unwrap();
                let (header, rest) = seen.segments.split_first().unwrap();
                let (status, data) = rest.split_last().unwrap();
                let mut wanted = [0; 16];
                wanted[..4].copy_from_slice(&kind.code().to_le_bytes());
                wanted[4..8].copy_from_slice(&16388_u32.to_le_bytes());
                wanted[8..].copy_from_slice(&77_u64.to_le_bytes());
                assert_eq!(
                    (header.1, header.2, device.mem.read::<16>(header.0)),
                    (16, false, wanted)
                );
                assert_eq!((status.1, status.2), (1, true));
                assert_eq!(data.iter().map(|d| d.1).sum::<u32>(), len);
                assert!(data.len() <= 4 && data.iter().all(|d| d.2 == kind.device_writes()));
                assert_eq!(
                    data.first().map_or(queue.data(1).unwrap().addr(), |d| d.0),
                    queue.data(1).unwrap().addr()
                );
                device.mem.write(status.0, &[2]);
                device.push(&seen, len + 1, true);
                queue.reap(&mut back).unwrap();
                assert_eq!(back.pop(), Some(Completion { slot: 1, status: 2, len: len + 1 }));
            }
            let long = Request { kind: RequestKind::Read, sector: 0, len: 8704, ioprio: 0 };
            assert!(matches!(queue.submit(0, long), Err(Error::RequestSize { .. })));
        }
    }
}

#[test]
fn buffers_do_not_overlap() {
    let arena = Arena::new(4096, 8192).unwrap();
    let mut a = arena.alloc(100, 8).unwrap();
    let mut b = arena.alloc(100, 8).unwrap();
    a.fill(1);
    b.fill_pattern(7);
    let content = |b: &Buf| {
        let mut content = [0; 100];
        b.copy_out(0, &mut content).unwrap();
        content
    };
    let before = content(&b);
    a.fill(2);
    assert_eq!(content(&b), before);
    b.copy_in(3, b"hello, guest memory").unwrap();
    let mut out = [0; 19];
    b.copy_out(3, &mut out).unwrap();
    assert_eq!(&out, b"hello, guest memory");
    assert!(matches!(a.copy_in(90, &[0; 11]), Err(Error::Bounds { .. })));
    assert!(matches!(arena.alloc(9000, 8), Err(Error::Exhausted { .. })));
    assert_ne!(content(&b), before);
}
