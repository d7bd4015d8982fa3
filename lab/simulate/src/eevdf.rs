//! Linux' EEVDF: virtual times, lag, virtual deadlines; a queue per CPU, as Linux has them. The
//! delays come from the number of vCPUs that wait on the same CPU.
//!
//! The vCPU with less than its share (eligible) and the earliest virtual deadline runs. A deadline
//! is a slice after the virtual time at which it was given; a slice that is used up is seen at the
//! next tick. A sleeping vCPU takes its lag along, within limits, and has it back when it wakes
//! (6.6's placement; the delayed dequeue of 6.12 is left out). A vCPU wakes on an idle CPU if there
//! is one, on its last CPU otherwise. A CPU without work takes from the longest queue. Queues whose
//! lengths differ by two or more are levelled from time to time. A virtual machine's weight is
//! divided among its vCPUs.

use std::collections::BTreeSet;

use vlane_policy::loan::Claim;
use vlane_policy::loan::units::MS;

use super::host::Scheduler;

/// The slice on one CPU, nanoseconds. More CPUs scale it up (`base_slice_ns`: 0.75 ms times 1 +
/// log2 of the CPUs, 8 at most: 3 ms).
const BASE_SLICE_NS: u64 = 750_000;
/// The tick at which a used-up slice is seen, nanoseconds (HZ = 250).
const TICK_NS: u64 = 4 * MS;
/// Time between two balancings of the CPUs' queues, nanoseconds.
const BALANCE_NS: u64 = 16 * MS;
/// Virtual time passes at this rate for an entity of weight 1.
const SCALE: i64 = 1 << 16;
/// Weights are finer than machines' weights, to be divided among vCPUs.
const FINER: u64 = 64;

#[derive(Debug, Clone, Default)]
struct Entity {
    weight: i64,
    /// Virtual time.
    v: i64,
    deadline: i64,
    /// The lag that it takes to sleep, or to another CPU: virtual time that it is behind the
    /// average.
    lag: i64,
    cpu: usize,
    waits: bool,
}

#[derive(Debug, Clone, Default)]
struct Queue {
    /// Waiting vCPUs, by deadline.
    waiting: BTreeSet<(i64, usize)>,
    current: Option<usize>,
    /// Of waiting and running vCPUs.
    weights: i128,
    weighted: i128,
    /// The average when the queue last had a vCPU.
    average: i64,
    /// The running vCPU has not used up the slice that it was picked for.
    in_slice: bool,
}

impl Queue {
    fn average(&self) -> i64 {
        if self.weights == 0 {
            return self.average;
        }
        i64::try_from(self.weighted.div_euclid(self.weights)).unwrap_or(i64::MAX)
    }

    fn is_eligible(&self, v: i64) -> bool {
        i128::from(v) * self.weights <= self.weighted
    }

    fn load(&self) -> usize {
        self.waiting.len() + usize::from(self.current.is_some())
    }
}

#[derive(Debug)]
pub(super) struct EevdfQueues {
    slice_ns: i64,
    entities: Vec<Entity>,
    queues: Vec<Queue>,
    next_balance: u64,
}

impl EevdfQueues {
    pub(super) fn new(cpus: usize, claims: &[Claim]) -> Self {
        let scaled = u64::from(1 + cpus.min(8).ilog2());
        let mut members = std::collections::HashMap::new();
        for claim in claims {
            *members.entry(claim.vm).or_insert(0u64) += 1;
        }
        let entity = |(n, claim): (usize, &Claim)| {
            let weight = u64::from(claim.weight) * FINER / members[&claim.vm];
            Entity { weight: signed(weight.max(1)), cpu: n % cpus, ..Entity::default() }
        };
        Self {
            slice_ns: signed(BASE_SLICE_NS * scaled),
            entities: claims.iter().enumerate().map(entity).collect(),
            queues: vec![Queue::default(); cpus],
            next_balance: BALANCE_NS,
        }
    }

    /// CPU time as virtual time of a vCPU.
    fn virtually(&self, vcpu: usize, ns: i64) -> i64 {
        ns.saturating_mul(SCALE) / self.entities[vcpu].weight
    }

    fn insert(&mut self, vcpu: usize, cpu: usize) {
        let entity = &mut self.entities[vcpu];
        entity.waits = true;
        entity.cpu = cpu;
        let queue = &mut self.queues[cpu];
        queue.waiting.insert((entity.deadline, vcpu));
    }

    fn remove(&mut self, vcpu: usize) {
        let entity = &mut self.entities[vcpu];
        entity.waits = false;
        self.queues[entity.cpu].waiting.remove(&(entity.deadline, vcpu));
    }

    /// Puts an arriving vCPU into a queue's virtual time, with the lag that it brings.
    fn join(&mut self, vcpu: usize, cpu: usize) {
        let slice = self.virtually(vcpu, self.slice_ns);
        let queue = &mut self.queues[cpu];
        let entity = &mut self.entities[vcpu];
        let average = queue.average();
        let weight = i128::from(entity.weight);
        // Its coming moves the average: it has to bring more lag to be left with what it had.
        let lag = match queue.weights {
            0 => 0,
            all => i128::from(entity.lag) * (all + weight) / all,
        };
        entity.v = average - i64::try_from(lag).unwrap_or(0);
        entity.deadline = entity.v + slice;
        queue.weights += weight;
        queue.weighted += weight * i128::from(entity.v);
    }

    /// Takes a leaving vCPU out of a queue's virtual time.
    fn leave(&mut self, vcpu: usize, cpu: usize) {
        let slice = self.virtually(vcpu, self.slice_ns);
        let tick = self.virtually(vcpu, signed(TICK_NS));
        let queue = &mut self.queues[cpu];
        let entity = &mut self.entities[vcpu];
        let average = queue.average();
        let limit = (2 * slice).max(tick);
        entity.lag = (average - entity.v).clamp(-limit, limit);
        queue.average = average;
        let weight = i128::from(entity.weight);
        queue.weights -= weight;
        queue.weighted -= weight * i128::from(entity.v);
    }

    /// The eligible one of the earliest deadline among who waits.
    fn best(&self, cpu: usize) -> Option<(i64, usize)> {
        let queue = &self.queues[cpu];
        let eligible =
            queue.waiting.iter().find(|&&(_, vcpu)| queue.is_eligible(self.entities[vcpu].v));
        // The least virtual time is never above the average, but the running one may have it.
        eligible.or_else(|| queue.waiting.first()).copied()
    }

    fn migrate(&mut self, vcpu: usize, to: usize) {
        let from = self.entities[vcpu].cpu;
        self.remove(vcpu);
        self.leave(vcpu, from);
        self.join(vcpu, to);
        self.insert(vcpu, to);
    }

    /// The waiting one that has to wait longest, of the longest queue with at least `least` vCPUs.
    fn steal(&self, least: usize) -> Option<usize> {
        let waiting = |queue: &&Queue| !queue.waiting.is_empty() && queue.load() >= least;
        let busiest = self.queues.iter().filter(waiting).max_by_key(|queue| queue.load())?;
        busiest.waiting.last().map(|&(_, vcpu)| vcpu)
    }
}

fn signed(ns: u64) -> i64 {
    i64::try_from(ns).unwrap_or(i64::MAX)
}

impl Scheduler for EevdfQueues {
    fn target(&self, _vcpu: usize, last: usize) -> usize {
        if self.queues[last].load() == 0 {
            return last;
        }
        let (before, after) = self.queues.split_at(last);
        let idle = after.iter().position(|queue| queue.load() == 0).map(|n| n + last);
        idle.or_else(|| before.iter().position(|queue| queue.load() == 0)).unwrap_or(last)
    }

    fn wake(&mut self, vcpu: usize, cpu: usize) {
        self.join(vcpu, cpu);
        self.insert(vcpu, cpu);
    }

    fn preempts(&mut self, vcpu: usize, cpu: usize) -> bool {
        let queue = &self.queues[cpu];
        let Some(current) = queue.current else { return true };
        let running = &self.entities[current];
        let eligible = queue.is_eligible(running.v);
        // RUN_TO_PARITY, Linux' default: an eligible vCPU finishes its slice.
        if eligible && queue.in_slice {
            return false;
        }
        let best = self.best(cpu);
        best.is_some_and(|(deadline, best)| {
            best == vcpu && (!eligible || deadline < running.deadline)
        })
    }

    fn pick(&mut self, cpu: usize) -> Option<usize> {
        self.queues[cpu].current = None;
        if self.queues[cpu].waiting.is_empty()
            && let Some(vcpu) = self.steal(1)
        {
            self.migrate(vcpu, cpu);
        }
        let (_, vcpu) = self.best(cpu)?;
        self.remove(vcpu);
        let queue = &mut self.queues[cpu];
        queue.current = Some(vcpu);
        queue.in_slice = true;
        Some(vcpu)
    }

    fn put_back(&mut self, vcpu: usize, cpu: usize) {
        self.queues[cpu].current = None;
        self.insert(vcpu, cpu);
    }

    fn sleep(&mut self, vcpu: usize, cpu: usize) {
        self.queues[cpu].current = None;
        self.leave(vcpu, cpu);
    }

    fn ran(&mut self, vcpu: usize, cpu: usize, _now: u64, ns: u64) {
        let passed = self.virtually(vcpu, signed(ns));
        let entity = &mut self.entities[vcpu];
        entity.v += passed;
        self.queues[cpu].weighted += i128::from(entity.weight) * i128::from(passed);
    }

    fn yields(&mut self, vcpu: usize, cpu: usize, now: u64) -> bool {
        let slice = self.virtually(vcpu, self.slice_ns);
        let entity = &mut self.entities[vcpu];
        if entity.v < entity.deadline || !now.is_multiple_of(TICK_NS) {
            return false;
        }
        entity.deadline = entity.v + slice;
        self.queues[cpu].in_slice = false;
        true
    }

    fn until(&self, vcpu: usize, _cpu: usize, from: u64) -> u64 {
        let entity = &self.entities[vcpu];
        let left =
            i128::from(entity.deadline - entity.v) * i128::from(entity.weight) / i128::from(SCALE);
        let end = from + u64::try_from(left + 1).unwrap_or(1);
        end.div_ceil(TICK_NS) * TICK_NS
    }

    fn next_periodic(&self) -> u64 {
        self.next_balance
    }

    fn periodic(&mut self, now: u64) -> bool {
        self.next_balance = now + BALANCE_NS;
        for _ in 0..self.queues.len() {
            let shortest = (0..self.queues.len()).min_by_key(|&cpu| self.queues[cpu].load());
            let Some(shortest) = shortest else { return false };
            let Some(vcpu) = self.steal(self.queues[shortest].load() + 2) else { return false };
            self.migrate(vcpu, shortest);
        }
        false
    }
}
