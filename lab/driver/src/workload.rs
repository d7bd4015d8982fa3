//! A run's work: the pattern of a job, its limits, and the numbers it draws.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::ring::RequestKind;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::device::{BlkConfig, Negotiated};
use crate::error::{Error, ErrorKind};
use crate::random::Rng;
use crate::rate::Rate;

/// The requests' kinds and addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    /// The kinds of requests.
    pub mix: Mix,
    /// True if addresses are random; else they follow each other.
    pub random: bool,
}

/// The kinds of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// Reads and writes, so many of a hundred of them reads.
    ReadPercent(u8),
    /// Discards.
    Discard,
    /// Write-zeroes.
    WriteZeroes,
}

impl Pattern {
    /// Returns true if it changes the device's contents.
    pub fn changes_data(&self) -> bool {
        self.mix != Mix::ReadPercent(100)
    }

    /// Reads among a hundred requests, if it reads and writes.
    pub(crate) fn read_percent(&self) -> Option<u8> {
        if let Mix::ReadPercent(percent) = self.mix { Some(percent) } else { None }
    }
}

impl FromStr for Pattern {
    type Err = String;

    /// As fio names them: `read`, `write`, `rw`, `randread`, `randwrite`, `randrw`, `trim`,
    /// `randtrim`, and `zero`, `randzero`; `rw` and `randrw` are half reads unless a percentage
    /// follows, as in `randrw:70`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, percent) =
            text.split_once(':').map_or((text, None), |(name, percent)| (name, Some(percent)));
        let (random, kind) = name.strip_prefix("rand").map_or((false, name), |kind| (true, kind));
        let mix = match kind {
            "read" => Mix::ReadPercent(100),
            "write" => Mix::ReadPercent(0),
            "rw" => Mix::ReadPercent(match percent {
                None => 50,
                Some(text) => text
                    .parse()
                    .ok()
                    .filter(|p| *p <= 100)
                    .ok_or(format!("`{text}` is not a percentage"))?,
            }),
            "trim" | "discard" => Mix::Discard,
            "zero" => Mix::WriteZeroes,
            _ => {
                return Err(format!(
                    "`{text}` is not a known pattern; use read, write, rw, trim or zero, with \
                     `rand` before them for random addresses"
                ));
            }
        };
        if percent.is_some() && kind != "rw" {
            return Err(format!("`{text}`: a percentage goes with rw and randrw only"));
        }
        Ok(Self { mix, random })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = if self.random { "rand" } else { "" };
        match self.mix {
            Mix::ReadPercent(100) => write!(f, "{prefix}read"),
            Mix::ReadPercent(0) => write!(f, "{prefix}write"),
            Mix::ReadPercent(p) => write!(f, "{prefix}rw:{p}"),
            Mix::Discard => write!(f, "{prefix}trim"),
            Mix::WriteZeroes => write!(f, "{prefix}zero"),
        }
    }
}

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// After this time, ramp not counted.
    Time(Duration),
    /// After this number of requests per job.
    Count(u64),
}

/// A job's way to wait for completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    // On the call eventfd. Interrupts are on only while it sleeps.
    /// Sleep until the back end interrupts, as a guest does
    #[default]
    Interrupt,
    // Interrupts are off.
    /// Spin on the used ring
    Poll,
}

/// A run: every queue of the session gets one job like this, in one thread.
#[derive(Debug, Clone)]
pub struct Workload {
    /// The requests' kinds and addresses.
    pub pattern: Pattern,
    /// Bytes per request: a multiple of 512, and at most the session's `data`.
    pub block: u32,
    /// Start of the region that is used, in bytes.
    pub offset: u64,
    /// Length of the region in bytes; `None` goes to the end of the device.
    pub size: Option<u64>,
    /// The end of the run.
    pub limit: Limit,
    /// Time before the measurement starts; not with [`Limit::Count`].
    pub ramp: Duration,
    /// Determines addresses, mix and data.
    pub seed: u64,
    /// A flush after so many writes of each of the requests that are out at once.
    pub flush_every: Option<u32>,
    /// The requests' ioprio field.
    pub ioprio: u16,
    /// Requests arrive at this rate, independently of the back end (open loop); `None`: as soon as
    /// there is a slot (closed loop).
    pub rate: Option<Rate>,
    /// The jobs' way to wait.
    pub wait: Wait,
    /// Most requests made visible to the back end at once; 0 is all that came back together. A
    /// guest whose tasks submit one request per system call has 1: every one is published, and
    /// kicked for if wanted, by itself.
    pub batch: u16,
    /// Job i runs on the CPU at place i (modulo the length); empty does not pin.
    pub cpus: Vec<usize>,
    /// The number of the session's queues, the last ones, that are started and have no job: a guest
    /// has them, and does not use them.
    pub idle: u16,
}

impl Default for Workload {
    /// 4 KiB random reads of the whole device for 5 s after 1 s, waiting for interrupts.
    fn default() -> Self {
        Self {
            pattern: Pattern { mix: Mix::ReadPercent(100), random: true },
            block: 4096,
            offset: 0,
            size: None,
            limit: Limit::Time(Duration::from_secs(5)),
            ramp: Duration::from_secs(1),
            seed: 1,
            flush_every: None,
            ioprio: 0,
            rate: None,
            wait: Wait::Interrupt,
            batch: 0,
            cpus: Vec::new(),
            idle: 0,
        }
    }
}

impl Workload {
    /// A load for [`verify_load`](crate::verify_load): as usual, but a third of the requests reads.
    /// A job then flushes after 64 writes, and uses 64 MiB.
    pub fn verified() -> Self {
        let pattern = Pattern { mix: Mix::ReadPercent(33), random: true };
        Self { pattern, ..Self::default() }
    }
}

/// A checked region of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub offset: u64,
    /// Whole blocks in it.
    pub blocks: u64,
}

impl Workload {
    /// Checks the workload against a device; returns the region to be used.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] or [`ErrorKind::Unsupported`] with what does not fit.
    pub fn check(&self, config: &BlkConfig, negotiated: &Negotiated) -> Result<Region, Error> {
        let invalid = |context: String| ErrorKind::Invalid.fail(context);
        let unsupported =
            |what: &str| ErrorKind::Unsupported.fail(format!("the device does not offer {what}"));
        if self.block == 0 || !self.block.is_multiple_of(512) {
            return invalid(format!(
                "a block size of {} bytes is not a multiple of 512",
                self.block
            ));
        }
        if self.pattern.changes_data() && config.read_only {
            return invalid(format!("the device is read-only, and `{}` writes", self.pattern));
        }
        if self.idle >= negotiated.queues {
            return invalid(format!(
                "{} of {} queues idle: no queue is left to work",
                self.idle, negotiated.queues
            ));
        }
        if self.flush_every == Some(0) {
            return invalid("a flush after every 0 writes is impossible; give at least 1".into());
        }
        if self.flush_every.is_some() && !negotiated.flush {
            return unsupported("flush requests");
        }
        if let Some(Rate { per_second, .. }) = self.rate {
            if !(per_second.is_finite() && per_second > 0.0) {
                return invalid(format!(
                    "a rate of {per_second} requests per second is impossible"
                ));
            }
            if matches!(self.limit, Limit::Count(_)) {
                return invalid("a rate goes with a time, not with a number of requests".into());
            }
        }
        let limit = match self.pattern.mix {
            Mix::ReadPercent(_) => None,
            Mix::Discard => Some((config.max_discard_sectors, "discard", "discards")),
            Mix::WriteZeroes => Some((config.max_write_zeroes_sectors, "write-zeroes", "zeroes")),
        };
        match limit {
            Some((None, what, _)) => return unsupported(what),
            Some((Some(most), _, does)) if most < self.block / 512 => {
                return invalid(format!("the device {does} {most} sectors at most"));
            }
            _ => {}
        }
        region(self.offset, self.size, self.block, config)
    }
}

/// Checks a region of `size` bytes from `offset` on against a device, and counts its blocks.
pub(crate) fn region(
    offset: u64,
    size: Option<u64>,
    block: u32,
    config: &BlkConfig,
) -> Result<Region, Error> {
    let invalid = |context: String| ErrorKind::Invalid.fail(context);
    if !offset.is_multiple_of(512) {
        return invalid(format!("the region's start, {offset}, is not a multiple of 512"));
    }
    let left = config.capacity.saturating_sub(offset);
    let size = size.unwrap_or(left);
    if size > left {
        return invalid(format!(
            "the region of {size} bytes from {offset} on reaches beyond the device's end at {}",
            config.capacity
        ));
    }
    let blocks = size / u64::from(block);
    if blocks == 0 {
        return invalid(format!(
            "the region of {size} bytes from {offset} on does not hold a block of {block} bytes"
        ));
    }
    Ok(Region { offset, blocks })
}

/// The requests of one job, one after the other.
#[derive(Debug)]
pub struct Requests {
    pattern: Pattern,
    region: Region,
    block: u64,
    rng: Rng,
    next: u64,
    flush_every: u32,
    /// By slot, writes since its last flush.
    writes: Vec<u32>,
}

impl Requests {
    /// The numbers of job `job` of `jobs` in a region of the device.
    pub fn new(workload: &Workload, region: Region, job: u16, jobs: u16) -> Self {
        Self {
            pattern: workload.pattern,
            region,
            block: workload.block.into(),
            rng: Rng::new(workload.seed.wrapping_add(u64::from(job).wrapping_mul(0x9e37_79b9))),
            // Sequential jobs start apart, or they would read each other's cache.
            next: region.blocks / u64::from(jobs.max(1)) * u64::from(job),
            flush_every: workload.flush_every.unwrap_or(0),
            writes: Vec::new(),
        }
    }

    /// The next request of a slot, whose last one is answered: kind and byte offset. A flush
    /// follows a slot's own writes, as a task's fsync does.
    #[inline]
    pub fn next(&mut self, slot: u16) -> (RequestKind, u64) {
        if self.flush_every != 0 && self.is_flush_due(slot) {
            return (RequestKind::Flush, 0);
        }
        let kind = match self.pattern.mix {
            Mix::ReadPercent(100) => RequestKind::Read,
            Mix::ReadPercent(0) => RequestKind::Write,
            Mix::ReadPercent(percent) if self.rng.below(100) < u64::from(percent) => {
                RequestKind::Read
            }
            Mix::ReadPercent(_) => RequestKind::Write,
            Mix::Discard => RequestKind::Discard,
            Mix::WriteZeroes => RequestKind::WriteZeroes,
        };
        if self.flush_every != 0 && kind != RequestKind::Read {
            self.writes[usize::from(slot)] += 1;
        }
        let index = if self.pattern.random {
            self.rng.below(self.region.blocks)
        } else {
            let index = self.next;
            self.next = if index + 1 == self.region.blocks { 0 } else { index + 1 };
            index
        };
        (kind, self.region.offset + index * self.block)
    }

    fn is_flush_due(&mut self, slot: u16) -> bool {
        let slot = usize::from(slot);
        if slot >= self.writes.len() {
            self.writes.resize(slot + 1, 0);
        }
        let due = self.writes[slot] >= self.flush_every;
        if due {
            self.writes[slot] = 0;
        }
        due
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn patterns_round_trip() {
        for text in
            ["read", "write", "rw:70", "randread", "randwrite", "randrw:50", "trim", "randzero"]
        {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
        assert_eq!("randrw".parse::<Pattern>().unwrap().mix, Mix::ReadPercent(50));
        for text in ["", "rand", "reed", "rw:101", "rw:x", "read:50"] {
            assert!(text.parse::<Pattern>().is_err(), "{text}");
        }
    }

    #[test]
    fn requests_cover_exactly_their_region() {
        let region = Region { offset: 8192, blocks: 7 };
        for pattern in ["rw", "randrw"] {
            let workload = Workload {
                pattern: pattern.parse().unwrap(),
                flush_every: Some(5),
                ..Workload::default()
            };
            let mut requests = Requests::new(&workload, region, 1, 2);
            let (mut seen, mut writes, mut flushes) = ([0_u32; 7], 0, 0);
            for _ in 0..7000 {
                let (kind, at) = requests.next(0);
                match kind {
                    RequestKind::Flush => flushes += 1,
                    _ => {
                        assert!(at >= 8192 && (at - 8192) % 4096 == 0);
                        seen[usize::try_from((at - 8192) / 4096).unwrap()] += 1;
                        writes += u32::from(kind == RequestKind::Write);
                    }
                }
            }
            assert!(seen.iter().all(|n| *n > 600), "{seen:?}");
            assert!(
                (3000..3800).contains(&writes) && (writes / 5).abs_diff(flushes) <= 1,
                "{writes} {flushes}"
            );
        }
    }

    #[test]
    fn flush_follows_its_slots_writes() {
        let region = Region { offset: 0, blocks: 8 };
        let workload = Workload {
            pattern: "randwrite".parse().unwrap(),
            flush_every: Some(2),
            ..Workload::default()
        };
        let mut requests = Requests::new(&workload, region, 0, 1);
        let mut kinds = |slot| (0..6).map(|_| requests.next(slot).0).collect::<Vec<_>>();
        let expected = [RequestKind::Write, RequestKind::Write, RequestKind::Flush].repeat(2);
        assert_eq!((kinds(3), kinds(0)), (expected.clone(), expected));
    }
}
