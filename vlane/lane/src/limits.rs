//! A volume's limits: one budget that all of its lanes use, each from its own thread, without a
//! lock.
//!
//! A budget has a bucket for requests and one for bytes ([`vlane_policy::throttle`]); each is a
//! number on a separate cache line. A lane takes half a millisecond's worth at a time, and uses it
//! without touching shared memory. It gives the rest back as soon as it is idle. A lane that has to
//! wait sleeps until its piece is due, without asking meanwhile.
//!
//! Every request counts as one, of any kind: a flush can cost a device more than a write. Bytes are
//! those of reads and writes, and of zeroes that keep their place, which are written. A freed range
//! counts a part of its bytes ([`FREED`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use vlane_engine::Class;
use vlane_io::Instant;
use vlane_policy::throttle::{
    Bucket, ExpressBudget, Level, Limits, Share, TICKS_PER_NS, refund, ticks,
};
use vlane_ring::{Range, Request, RequestKind, SECTOR};

/// The longest that a lane sleeps for its budget before it looks again.
const LONGEST: Duration = Duration::from_secs(3600);

/// The freed bytes, by a discard or by zeroes that may free, of which one counts.
pub(crate) const FREED: u64 = 64;

/// The level of a bucket: every thread of the volume changes it.
#[derive(Debug, Default)]
#[repr(align(128))]
struct SharedLevel(AtomicU64);

impl Level for SharedLevel {
    #[inline]
    fn change(&self, change: impl Fn(u64) -> u64) -> u64 {
        // A number that guards no other data.
        let changed =
            self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |level| Some(change(level)));
        changed.unwrap_or_else(|level| level)
    }
}

/// A rate of the volume.
#[derive(Debug)]
struct Rate {
    bucket: Bucket,
    level: SharedLevel,
}

/// The common budget of a volume's lanes.
#[derive(Debug)]
pub(crate) struct Budget {
    limits: Limits,
    /// Time counts from here.
    origin: Instant,
    requests: Option<Rate>,
    bytes: Option<Rate>,
    waits: AtomicU64,
    waited: AtomicU64,
    /// The time that a test adds.
    #[cfg(test)]
    later: AtomicU64,
}

/// The number of times that a volume's lanes waited for its limits, since these were set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waits {
    /// Times that a lane had to wait.
    pub count: u64,
    /// For how long, all together.
    pub time: Duration,
}

impl Budget {
    /// A full one; none without limits.
    pub(crate) fn new(limits: Limits) -> Option<Budget> {
        Budget::with(limits, Instant::now(), |_| 0)
    }

    /// Returns a budget with other limits in the place of this. The used part stays used, as far as
    /// the new burst goes. So frequent changes of limits give no budget away, and a debt of low
    /// limits is forgotten.
    pub(crate) fn replaced_by(&self, limits: Limits) -> Option<Budget> {
        let now = self.now();
        let used = [&self.requests, &self.bytes].map(|rate| {
            rate.as_ref().map_or(0, |rate| rate.level.0.load(Ordering::Relaxed).saturating_sub(now))
        });
        Budget::with(limits, self.origin, |rate| now + used[rate].min(ticks(limits.burst)))
    }

    fn with(limits: Limits, origin: Instant, level: impl Fn(usize) -> u64) -> Option<Budget> {
        let rate = |number, rate: Option<_>| {
            let bucket = Bucket::new(rate?, limits.burst);
            Some(Rate { bucket, level: SharedLevel(AtomicU64::new(level(number))) })
        };
        let (requests, bytes) = (rate(0, limits.iops), rate(1, limits.bandwidth));
        let (waits, waited) = (AtomicU64::new(0), AtomicU64::new(0));
        limits.is_any().then_some(Budget {
            limits,
            origin,
            requests,
            bytes,
            waits,
            waited,
            #[cfg(test)]
            later: AtomicU64::new(0),
        })
    }

    /// The number of the lanes' waits.
    pub(crate) fn waits(&self) -> Waits {
        Waits {
            count: self.waits.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.waited.load(Ordering::Relaxed)),
        }
    }

    #[cfg(test)]
    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// The used part of requests and of bytes: the time until it is earned again.
    #[cfg(test)]
    pub(crate) fn used(&self) -> [Duration; 2] {
        let now = self.now();
        [&self.requests, &self.bytes].map(|rate| {
            let level = rate.as_ref().map_or(0, |rate| rate.level.0.load(Ordering::Relaxed));
            Duration::from_nanos(level.saturating_sub(now) / TICKS_PER_NS)
        })
    }

    #[cfg(not(test))]
    fn now(&self) -> u64 {
        ticks(self.origin.elapsed())
    }

    #[cfg(test)]
    fn now(&self) -> u64 {
        ticks(self.origin.elapsed()) + self.later.load(Ordering::Relaxed)
    }

    /// Time passes.
    #[cfg(test)]
    pub(crate) fn passes(&self, time: Duration) {
        self.later.fetch_add(ticks(time), Ordering::Relaxed);
    }
}

/// A request's demand on a budget: its bytes and one request, or none if it is exempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Demand {
    bytes: u64,
    is_exempt: bool,
}

/// Bytes that a range of a discard or zeroing counts.
fn cost(kind: RequestKind, range: &Range) -> u64 {
    let bytes = u64::from(range.sectors) * SECTOR;
    let is_freed = kind == RequestKind::Discard || range.unmap;
    if is_freed { bytes.div_ceil(FREED) } else { bytes }
}

/// A lane's part in its volume's budget.
#[derive(Debug)]
pub(crate) struct LaneLimits {
    budget: Arc<Budget>,
    requests: Share,
    bytes: Share,
    /// The clock, read at most once in a turn.
    now: Option<u64>,
    /// Since when and until when the lane waits.
    held: Option<(u64, u64)>,
}

impl LaneLimits {
    pub(crate) fn new(budget: Arc<Budget>) -> LaneLimits {
        let (requests, bytes) = (Share::default(), Share::default());
        LaneLimits { budget, requests, bytes, now: None, held: None }
    }

    /// No more requests are begun in this turn: the next one has another time. A turn that ends
    /// because it has had its share hands its time on to the next one, which follows at once.
    pub(crate) fn turn_ends(&mut self) {
        self.now = None;
    }

    fn now(&mut self) -> u64 {
        *self.now.get_or_insert_with(|| self.budget.now())
    }

    pub(crate) fn demand(&self, request: &Request, class: Class) -> Demand {
        let bytes = match request.kind() {
            RequestKind::In | RequestKind::Out => request.len(),
            kind => request.ranges().iter().map(|range| cost(kind, range)).sum(),
        };
        Demand { bytes, is_exempt: class == Class::Express && self.exempts() }
    }

    /// Returns true if express requests do not wait.
    pub(crate) fn exempts(&self) -> bool {
        self.budget.limits.express == ExpressBudget::Exempt
    }

    /// Admits a request to begin, and pays for it. If the result is false, the lane waits.
    pub(crate) fn admits(&mut self, request: &Request, class: Class) -> bool {
        let demand = self.demand(request, class);
        if demand.is_exempt {
            return true;
        }
        let now = self.now();
        let mut wait = None;
        let mut costs = [0; 2];
        let rates = [
            (&self.budget.requests, &mut self.requests, 1),
            (&self.budget.bytes, &mut self.bytes, demand.bytes),
        ];
        for ((rate, share, tokens), cost) in rates.into_iter().zip(&mut costs) {
            let Some(rate) = rate else { continue };
            *cost = rate.bucket.cost(tokens);
            if let Err(due) = share.have(&rate.bucket, &rate.level, now, *cost) {
                wait = wait.max(Some(due));
            }
        }
        match wait {
            None => {
                self.requests.pay(costs[0]);
                self.bytes.pay(costs[1]);
                self.waits_no_more();
            }
            Some(due) => {
                let since = self.held.map_or(now, |(since, _)| since);
                self.held = Some((since, due.min(now.saturating_add(ticks(LONGEST)))));
                self.turn_ends();
            }
        }
        wait.is_none()
    }

    /// Pays for a request that cannot wait.
    #[cold]
    pub(crate) fn charge(&mut self, request: &Request, class: Class) {
        let Demand { bytes, is_exempt } = self.demand(request, class);
        if is_exempt {
            return;
        }
        let now = self.now();
        let rates = [
            (&self.budget.requests, &mut self.requests, 1),
            (&self.budget.bytes, &mut self.bytes, bytes),
        ];
        for (rate, share, tokens) in rates {
            let Some(rate) = rate else { continue };
            share.pay_anyway(&rate.bucket, &rate.level, now, rate.bucket.cost(tokens));
        }
    }

    /// A request that was admitted is put back into its ring.
    #[cold]
    pub(crate) fn refund(&self, Demand { bytes, is_exempt }: Demand) {
        if is_exempt {
            return;
        }
        for (rate, tokens) in [(&self.budget.requests, 1), (&self.budget.bytes, bytes)] {
            let Some(rate) = rate else { continue };
            refund(&rate.level, rate.bucket.cost(tokens));
        }
    }

    /// The lane is idle: the rest of its piece is for the other lanes.
    pub(crate) fn rests(&mut self) {
        for (rate, share) in
            [(&self.budget.requests, &mut self.requests), (&self.budget.bytes, &mut self.bytes)]
        {
            if let Some(rate) = rate {
                share.give_back(&rate.level);
            }
        }
        self.waits_no_more();
        self.turn_ends();
    }

    /// Returns true if the lane waits for its budget, as far as it knew in its last turn.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// The end of the wait.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let (_, until) = self.held?;
        self.budget.origin.checked_add(Duration::from_nanos(until.div_ceil(TICKS_PER_NS)))
    }

    fn waits_no_more(&mut self) {
        if let Some((since, _)) = self.held.take() {
            let time = self.budget.now().saturating_sub(since) / TICKS_PER_NS;
            self.budget.waits.fetch_add(1, Ordering::Relaxed);
            self.budget.waited.fetch_add(time, Ordering::Relaxed);
        }
    }
}
