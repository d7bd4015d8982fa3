//! Dependencies between requests: the rules of [the module](super) as numbers that are cheap to
//! check.
//!
//! Rules 1 and 2 are prefixes. Sort the writes by completion: those that a flush covers are the
//! first m of them. Sort the flushes by completion: those that a request comes after are the first
//! k of them. So a request waits for two numbers. The replay keeps two: the counts of the first
//! writes, and of the first flushes, that have all completed ([`Prefix`]). Rule 3 is a list of
//! earlier writes, mostly empty.

use std::collections::HashMap;

use super::{ReplayKind, ReplayRequest};
use crate::error::{Error, ErrorKind};
use crate::session::SessionOptions;

/// Sectors in a block of rule 3: 4 KiB.
const BLOCK_SECTORS: u64 = 8;
/// Blocks above which a range is not taken apart: 64 MiB.
const WALL_BLOCKS: u64 = 16_384;
/// The rank of requests that are not waited for.
const NO_RANK: u32 = u32::MAX;

/// A request's dependencies, and its place among those that others wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waits {
    /// The number of writes, the first by completion in the trace, that must have completed
    /// (flushes only).
    pub(super) writes: u32,
    /// The number of flushes, the first by completion in the trace, that must have completed.
    pub(super) flushes: u32,
    /// The begin and the end of its earlier writes to the same blocks in [`ReplayPlan::earlier`].
    earlier: (usize, usize),
    /// Its place among the writes, or among the flushes, by completion.
    rank: u32,
}

/// A trace made ready for replay. It is held in memory: about 100 bytes per request.
#[derive(Debug)]
pub struct ReplayPlan {
    /// By time of submission.
    requests: Vec<ReplayRequest>,
    waits: Vec<Waits>,
    /// The dependencies of rule 3: places in `requests`.
    earlier: Vec<u32>,
    /// By queue, the places of its requests.
    queues: Vec<Vec<u32>>,
    writes: usize,
    flushes: usize,
}

impl ReplayPlan {
    /// Sorts requests by their time of submission (those of equal time keep their order) and finds
    /// out what waits for what.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a request that no device can have had: completed before it was
    /// submitted, without sectors, beyond 64 bits of bytes. Also for more than 2^32 - 1 requests,
    /// or none.
    pub fn new(requests: impl IntoIterator<Item = ReplayRequest>) -> Result<Self, Error> {
        let mut requests: Vec<_> = requests.into_iter().collect();
        requests.sort_by_key(|request| request.at_ns);
        let invalid = |context: String| ErrorKind::Invalid.fail(context);
        if requests.is_empty() {
            return invalid("the trace has no requests".into());
        }
        if u32::try_from(requests.len()).is_err() {
            return invalid(format!(
                "{} requests are more than can be replayed at once",
                requests.len()
            ));
        }
        for (place, request) in requests.iter().enumerate() {
            let end = request.sector.checked_add(request.sectors.into());
            if request.done_ns.is_some_and(|done| done < request.at_ns) {
                return invalid(format!(
                    "request {place} of the trace completed before it was submitted"
                ));
            }
            if request.kind != ReplayKind::Flush && request.sectors == 0 {
                return invalid(format!("request {place} of the trace has no sectors"));
            }
            if end.and_then(|end| end.checked_mul(512)).is_none() {
                return invalid(format!("request {place} of the trace ends beyond 64 bits"));
            }
        }
        let mut plan = Self {
            waits: vec![
                Waits { writes: 0, flushes: 0, earlier: (0, 0), rank: NO_RANK };
                requests.len()
            ],
            earlier: Vec::new(),
            queues: Vec::new(),
            writes: 0,
            flushes: 0,
            requests,
        };
        plan.order_flushes();
        plan.order_writes();
        for (place, request) in (0_u32..).zip(&plan.requests) {
            let queue = usize::from(request.queue);
            if plan.queues.len() <= queue {
                plan.queues.resize(queue + 1, Vec::new());
            }
            plan.queues[queue].push(place);
        }
        Ok(plan)
    }

    /// Rules 1 and 2.
    fn order_flushes(&mut self) {
        // Completion times of what is waited for, in order; places for those that complete at the
        // same time, too.
        let by_completion = |wanted: fn(ReplayKind) -> bool| {
            let mut all: Vec<(u64, u32)> = (0_u32..)
                .zip(&self.requests)
                .filter(|(_, request)| wanted(request.kind))
                .filter_map(|(place, request)| Some((request.done_ns?, place)))
                .collect();
            all.sort_unstable();
            all
        };
        let writes = by_completion(ReplayKind::writes);
        let flushes = by_completion(|kind| kind == ReplayKind::Flush);
        for list in [&writes, &flushes] {
            for (rank, (_, place)) in (0_u32..).zip(list) {
                self.waits[*place as usize].rank = rank;
            }
        }
        // A request may have completed at the very moment of another's submission. It counts as
        // before it only if it was submitted before it too: then it cannot wait for itself, nor two
        // for each other.
        let (mut covered, mut after) = (0_u32, 0_u32);
        for (place, request) in (0_u32..).zip(&self.requests) {
            let before = |entry: &(u64, u32)| entry.0 <= request.at_ns && entry.1 < place;
            while writes.get(covered as usize).is_some_and(before) {
                covered += 1;
            }
            while flushes.get(after as usize).is_some_and(before) {
                after += 1;
            }
            let waits = &mut self.waits[place as usize];
            if request.kind == ReplayKind::Flush {
                waits.writes = covered;
            }
            waits.flushes = after;
        }
        (self.writes, self.flushes) = (writes.len(), flushes.len());
    }

    /// Rule 3.
    fn order_writes(&mut self) {
        let mut last: HashMap<u64, u32> = HashMap::new();
        // A range that is too large to be taken apart is ordered against all writes.
        let (mut wall, mut before) = (None, Vec::new());
        for (place, request) in (0_u32..).zip(&self.requests) {
            if !request.kind.writes() {
                continue;
            }
            let first = request.sector / BLOCK_SECTORS;
            let end = (request.sector + u64::from(request.sectors)).div_ceil(BLOCK_SECTORS);
            if end - first > WALL_BLOCKS {
                before.extend(last.drain().map(|(_, before)| before).chain(wall));
                wall = Some(place);
            } else {
                before.extend((first..end).filter_map(|block| last.insert(block, place).or(wall)));
            }
            before.sort_unstable();
            before.dedup();
            let begin = self.earlier.len();
            self.earlier.append(&mut before);
            self.waits[place as usize].earlier = (begin, self.earlier.len());
        }
    }

    /// The requests, by time of submission.
    pub fn requests(&self) -> &[ReplayRequest] {
        &self.requests
    }

    /// Queues: one more than the highest number in the trace.
    pub fn queues(&self) -> u16 {
        u16::try_from(self.queues.len()).unwrap_or(u16::MAX)
    }

    /// Time from the trace's start to its last submission, in ns.
    pub fn length_ns(&self) -> u64 {
        self.requests.last().map_or(0, |request| request.at_ns)
    }

    /// The first sector behind all touched ones.
    pub fn end_sector(&self) -> u64 {
        let ends = self.requests.iter().filter(|request| request.kind != ReplayKind::Flush);
        ends.map(|request| request.sector + u64::from(request.sectors)).max().unwrap_or(0)
    }

    /// The largest read or write, in bytes.
    pub fn largest(&self) -> u64 {
        let data = |kind| matches!(kind, ReplayKind::Read | ReplayKind::Write);
        let sizes = self.requests.iter().filter(|request| data(request.kind));
        sizes.map(|request| u64::from(request.sectors) * 512).max().unwrap_or(0)
    }

    /// A session that the trace fits into: its queues, its largest request, and `depth` slots per
    /// queue.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if a request is larger than a session can have (1 GiB).
    pub fn session_options(&self, depth: u16) -> Result<SessionOptions, Error> {
        let largest = self.largest().max(512);
        match u32::try_from(largest) {
            Ok(data) if data <= 1 << 30 => Ok(SessionOptions {
                queues: self.queues(),
                depth,
                data,
                ..SessionOptions::default()
            }),
            _ => ErrorKind::Invalid
                .fail(format!("the trace has a request of {largest} bytes; 1 GiB is the most")),
        }
    }

    /// The places of a queue's requests.
    pub(super) fn queue(&self, queue: usize) -> &[u32] {
        self.queues.get(queue).map_or(&[], Vec::as_slice)
    }

    /// A replay's progress, before the first completion.
    pub(super) fn state(&self) -> State<'_> {
        State {
            plan: self,
            done: vec![false; self.requests.len()],
            writes: Prefix::of(self.writes),
            flushes: Prefix::of(self.flushes),
        }
    }
}

/// Completed requests.
#[derive(Debug)]
pub(super) struct State<'a> {
    plan: &'a ReplayPlan,
    done: Vec<bool>,
    writes: Prefix,
    flushes: Prefix,
}

impl State<'_> {
    /// Returns true if all dependencies of a request have completed.
    #[inline]
    pub(super) fn is_free(&self, place: u32) -> bool {
        let waits = &self.plan.waits[place as usize];
        let (begin, end) = waits.earlier;
        self.writes.upto >= waits.writes
            && self.flushes.upto >= waits.flushes
            && self.plan.earlier[begin..end].iter().all(|before| self.done[*before as usize])
    }

    /// A request has completed.
    #[inline]
    pub(super) fn complete(&mut self, place: u32) {
        self.done[place as usize] = true;
        let rank = self.plan.waits[place as usize].rank;
        if rank == NO_RANK {
            return;
        }
        match self.plan.requests[place as usize].kind {
            ReplayKind::Flush => self.flushes.complete(rank),
            _ => self.writes.complete(rank),
        }
    }
}

/// The number of the first ones that have all completed.
#[derive(Debug)]
struct Prefix {
    done: Vec<bool>,
    upto: u32,
}

impl Prefix {
    fn of(n: usize) -> Self {
        Self { done: vec![false; n], upto: 0 }
    }

    fn complete(&mut self, rank: u32) {
        self.done[rank as usize] = true;
        while self.done.get(self.upto as usize) == Some(&true) {
            self.upto += 1;
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
