//! The guest's side of a packed ring as simple as the specification (2.8) lets it be: one position
//! after the other, everything remembered, every chain visible at once.

#![allow(dead_code, clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::collections::BTreeMap;

use vlane_ring::{QueueConfig, RingFormat};

use super::*;

pub const AVAIL: u16 = 1 << 7;
pub const USED: u16 = 1 << 15;

/// A place in the ring, in the lap that has this wrap counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub index: u16,
    pub wrap: bool,
}

impl Place {
    pub fn next(self, size: u16) -> Place {
        let index = (self.index + 1) % size;
        Place { index, wrap: self.wrap != (index == 0) }
    }

    pub fn encode(self) -> u16 {
        self.index | u16::from(self.wrap) << 15
    }
}

/// The driver's request to the device about signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    Always,
    Never,
    /// When this place is used.
    At(Place),
}

pub struct PackedDriver<'a> {
    ram: &'a Ram,
    pub size: u16,
    pub event_idx: bool,
    /// Ring, driver event, device event.
    parts: [u64; 3],
    pub avail: Place,
    pub used: Place,
    pub free: u16,
    ids: Vec<u16>,
    /// Descriptors and the caller's tag of every chain that is with the device, by buffer id.
    pub held: BTreeMap<u16, (u16, u64)>,
    pub wish: Wish,
}

impl<'a> PackedDriver<'a> {
    pub fn new(ram: &'a Ram, size: u16, event_idx: bool, parts: [u64; 3]) -> PackedDriver<'a> {
        let start = Place { index: 0, wrap: true };
        // Ids are the driver's to choose: not in order, and not below the size.
        let ids = (0..size).map(|i| i.wrapping_mul(7919).wrapping_add(60_000)).collect();
        let (held, wish) = (BTreeMap::new(), Wish::Always);
        PackedDriver {
            ram,
            size,
            event_idx,
            parts,
            avail: start,
            used: start,
            free: size,
            ids,
            held,
            wish,
        }
    }

    pub fn config(&self, base: u32) -> QueueConfig {
        config(RingFormat::Packed, self.size, self.event_idx, base, self.parts)
    }

    fn at(&self, place: Place) -> u64 {
        self.parts[0] + 16 * u64::from(place.index)
    }

    /// Makes a chain available. Returns true if the device wants to be kicked, or none if there is
    /// no room.
    pub fn add(&mut self, chain: &[Desc], tag: u64) -> Option<bool> {
        let count = chain.len() as u16;
        if count > self.free {
            return None;
        }
        let id = self.ids.pop()?;
        self.free -= count;
        self.held.insert(id, (count, tag));
        let head = self.avail;
        let mut places = Vec::new();
        for (i, desc) in chain.iter().enumerate() {
            let mark = if self.avail.wrap { AVAIL } else { USED };
            let next = if i + 1 < chain.len() { NEXT } else { 0 };
            // Only the last descriptor's id counts.
            let link = if next == 0 { id } else { 0xdead };
            let flags = desc.flags & !(AVAIL | USED) | mark | next;
            places.push((self.at(self.avail), Desc { flags, link, ..*desc }));
            self.avail = self.avail.next(self.size);
        }
        // The head last: it makes all of them visible.
        for (at, desc) in places.iter().rev() {
            self.ram.write(*at, &desc.packed());
        }
        let flags = self.ram.read_u16(self.parts[2] + 2) & 3;
        let off = self.ram.read_u16(self.parts[2]);
        Some(match flags {
            0 => true,
            1 => false,
            2 if self.event_idx => {
                let passed = std::iter::successors(Some(head), |p| Some(p.next(self.size)));
                passed.take(chain.len()).any(|p| p.encode() == off)
            }
            other => panic!("the device wrote event flags {other}"),
        })
    }

    /// Takes back one chain: its tag and the length.
    pub fn reap(&mut self) -> Option<(u64, u32)> {
        let bytes = self.ram.read(self.at(self.used), 16);
        let flags = u16::from_le_bytes(bytes[14..].try_into().unwrap());
        let both = if self.used.wrap { AVAIL | USED } else { 0 };
        if self.free == self.size || flags & (AVAIL | USED) != both {
            return None;
        }
        assert!(flags & WRITE != 0, "the length would not count");
        let id = u16::from_le_bytes(bytes[12..14].try_into().unwrap());
        let len = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        let (count, tag) =
            self.held.remove(&id).expect("an id that was not given, or given back twice");
        self.ids.push(id);
        self.free += count;
        for _ in 0..count {
            self.used = self.used.next(self.size);
        }
        Some((tag, len))
    }

    /// Breaks the rules: takes everything for used.
    pub fn forget(&mut self) {
        self.ids.extend(self.held.keys());
        self.held.clear();
        (self.free, self.used) = (self.size, self.avail);
    }

    pub fn wish(&mut self, wish: Wish) {
        self.wish = wish;
        let (off, flags) = match wish {
            Wish::Always => (0, 0),
            Wish::Never => (0, 1),
            Wish::At(place) => (place.encode(), 2),
        };
        self.ram.write_u16(self.parts[1], off);
        self.ram.write_u16(self.parts[1] + 2, flags);
    }
}
