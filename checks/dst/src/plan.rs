//! A run's properties: all of them come from its seed.

use std::num::NonZeroU64;
use std::time::Duration;

use fastrand::Rng;
use vlane_driver::ring::{BlkOptions, Format};
use vlane_engine::file::Cache;
use vlane_policy::express::{Express, Mode};
use vlane_policy::throttle::Limits;

use crate::bug::Bug;
use crate::kernel::Faults;

/// A run's options, where its seed does not decide.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// A bug that is planted.
    pub bug: Option<Bug>,
    /// Keep the words of each step.
    pub keeps_steps: bool,
}

/// The rates of actions, of each thousand steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rates {
    pub(crate) kill: u32,
    pub(crate) cut: u32,
    pub(crate) stop: u32,
    pub(crate) change: u32,
    pub(crate) hold: u32,
    /// One operation is slow while all others continue.
    pub(crate) slow: u32,
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) cache: Cache,
    pub(crate) block: u64,
    pub(crate) memory: u64,
    pub(crate) size: u64,
    pub(crate) most: u64,
    /// Sectors of the largest request that moves data; a discard or zeroing may be as large as the
    /// disk.
    pub(crate) largest: u64,
    /// The image is a device. A range is punched, zeroed and written by so many bytes at a time, in
    /// so many turns at a time.
    pub(crate) is_device: bool,
    pub(crate) pieces: [u64; 3],
    pub(crate) turns: [usize; 2],
    pub(crate) queues: u16,
    pub(crate) threads: usize,
    pub(crate) shape: BlkOptions,
    pub(crate) express: Express,
    /// The front end keeps what is in flight (INFLIGHT_SHMFD).
    pub(crate) tracks: bool,
    pub(crate) faults: Faults,
    pub(crate) rates: Rates,
    pub(crate) steps: u32,
    /// Of a hundred requests, how many are reads, and how many flushes; the rest are writes and
    /// zeroes.
    pub(crate) reads: u32,
    pub(crate) flushes: u32,
    pub(crate) zeroes: u32,
}

impl Plan {
    pub(crate) fn new(rng: &mut Rng, bug: Option<Bug>) -> Plan {
        let cache = match rng.u32(0..8) {
            0..3 => Cache::None,
            3..7 => Cache::Writeback,
            _ => Cache::WriteThrough,
        };
        let block = if rng.bool() { 4096 } else { 512 };
        let blocks = rng.u64(2..=8);
        let most = (blocks + if rng.u32(0..4) == 0 { 2 } else { 0 }) * 8;
        let largest = rng.u64(1..=16).min(blocks * 8);
        let depth = rng.u16(1..=8);
        let segments = rng.u16(1..=4);
        let shape = BlkOptions {
            format: if rng.u32(0..3) == 0 { Format::Packed } else { Format::Split },
            size: None,
            depth,
            // A chain has its longest shape when it is made.
            data: u32::try_from(largest * 512)
                .unwrap_or(8192)
                .next_multiple_of(u32::from(segments) * 512),
            segments,
            indirect: rng.bool(),
            event_idx: rng.bool(),
        };
        let mode = match rng.u32(0..6) {
            0 => Mode::Order,
            1 => Mode::On,
            _ => Mode::Off,
        };
        let faulty = rng.u32(0..2) == 0 || bug == Some(Bug::HiddenLoss);
        let mut some = |most: u32| if faulty && rng.bool() { rng.u32(1..most) } else { 0 };
        let faults = Faults {
            fails: some(40),
            short: some(100),
            momentary: some(100),
            writeback: if bug == Some(Bug::HiddenLoss) { 200 } else { some(100) },
            slow: some(50),
            refuses_to_wait: rng.u32(0..4) == 0,
        };
        let mut often = |most: u32| if rng.bool() { rng.u32(1..most) } else { 0 };
        let rates = Rates {
            kill: often(30),
            cut: often(10),
            stop: often(20),
            change: often(30),
            hold: often(20),
            slow: often(20),
        };
        Plan {
            cache,
            block,
            memory: if rng.bool() { 512 } else { 4 },
            size: blocks * 8,
            most,
            largest,
            is_device: rng.u32(0..4) == 0,
            pieces: [(); 3].map(|()| 512 << rng.u32(0..6)),
            // With one, a slow one would keep the others waiting.
            turns: [(); 2].map(|()| rng.usize(2..4)),
            queues: rng.u16(1..=3),
            threads: rng.usize(1..=2),
            shape,
            tracks: rng.u32(0..4) > 0,
            express: Express { mode, ..Express::default() },
            faults,
            rates,
            steps: rng.u32(50..500),
            reads: rng.u32(10..60),
            flushes: rng.u32(1..20),
            zeroes: if rng.bool() { rng.u32(1..15) } else { 0 },
        }
    }
}

/// Limits that a volume is given for a while.
pub(crate) fn limits(rng: &mut Rng) -> Limits {
    let rate =
        |rng: &mut Rng, most: u64| rng.bool().then(|| NonZeroU64::new(rng.u64(1..most))).flatten();
    Limits {
        iops: rate(rng, 20_000),
        bandwidth: rate(rng, 10 << 20),
        burst: Duration::from_micros(rng.u64(100..10_000)),
        ..Limits::default()
    }
}
