//! Results of a run.

use hdrhistogram::Histogram;
use vlane_policy::loan::units::{CREDIT_NS, credits_per_ms};

use super::host::Loans;
use super::scenario::Load;

/// A run's outcome.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// The host scheduler's name.
    pub setup: String,
    /// Physical CPUs.
    pub cpus: u32,
    /// Simulated time that was measured, nanoseconds.
    pub time_ns: u64,
    /// The machines, in the scenario's order.
    pub machines: Vec<MachineOutcome>,
    /// The loads, in the scenario's order; machines that are alike share one.
    pub loads: Vec<LoadOutcome>,
    /// Idle CPU time, nanoseconds over all CPUs.
    pub idle_ns: u64,
    /// CPU time that switches and boosts cost, nanoseconds over all CPUs.
    pub overhead_ns: u64,
    /// Switches from one vCPU to another.
    pub switches: u64,
    /// Time in which a CPU was idle though a vCPU waited, nanoseconds: 0 if the scheduler conserves
    /// work.
    pub wasted_ns: u64,
    /// Events of the simulation itself, without the warm-up.
    pub events: u64,
}

/// Result of a machine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MachineOutcome {
    /// Its name.
    pub name: String,
    /// Which `[[vm]]` it is of.
    pub group: usize,
    /// Its weight.
    pub weight: u32,
    /// Its vCPUs.
    pub vcpus: u32,
    /// It computes all the time: it takes what it gets.
    pub is_hog: bool,
    /// CPU time used, nanoseconds.
    pub used_ns: u64,
    /// CPU time that its weight makes its due, when who wants less leaves the rest to the others,
    /// nanoseconds.
    pub due_ns: f64,
    /// Sums over its vCPUs' boosts and loans, since the warm-up.
    pub loans: Loans,
}

/// Result of a load.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadOutcome {
    /// Its machine's name in the scenario.
    pub machine: String,
    /// Its own name.
    pub name: String,
    /// Which `[[vm]]` it is of.
    pub group: usize,
    /// Responses, nanoseconds, to three digits.
    pub responses: Histogram<u64>,
    /// Their exact sum.
    pub sum_ns: u128,
    /// Bytes that were served.
    pub bytes: u64,
}

impl MachineOutcome {
    /// The rate at which its loans were spent, credits per millisecond; `None`: it was never known.
    pub fn cm(&self) -> Option<f64> {
        let samples = self.loans.samples;
        (samples > 0).then(|| credits_per_ms(1) * float(self.loans.cm_ppm) / float(samples))
    }

    /// Its next loan, credits, in the mean of accountings.
    pub fn next_loan(&self) -> Option<f64> {
        let samples = self.loans.samples;
        (samples > 0).then(|| float(self.loans.next_ns) / float(samples) / float(CREDIT_NS))
    }

    /// Of events that needed a boost (the vCPU neither ran nor was boosted), percent that were
    /// denied it; `None`: there were none.
    pub fn denied(&self) -> Option<f64> {
        let all = self.loans.boosts + self.loans.wake_boosts + self.loans.denied;
        (all > 0).then(|| float(self.loans.denied) / float(all) * 100.0)
    }

    /// How far its CPU time is from what is its due: 0.02 is 2 % more.
    pub fn off(&self) -> f64 {
        float(self.used_ns) / self.due_ns.max(1.0) - 1.0
    }
}

impl LoadOutcome {
    pub(super) fn new(machine: &str, group: usize, load: &Load) -> Self {
        let empty = Histogram::new(3);
        #[expect(clippy::expect_used, reason = "three digits are allowed")]
        let responses = empty.expect("a histogram");
        let (machine, name) = (machine.to_owned(), load.common().0.to_owned());
        Self { machine, name, group, responses, sum_ns: 0, bytes: 0 }
    }

    pub(super) fn count(&mut self, load: &Load, response_ns: u64) {
        // It grows by itself; only what no memory could hold is an error.
        let _ = self.responses.record(response_ns);
        self.sum_ns += u128::from(response_ns);
        if let Load::Window { segment_bytes, .. } = load {
            self.bytes += u64::from(*segment_bytes);
        }
    }

    /// Responses.
    pub fn served(&self) -> u64 {
        self.responses.len()
    }

    /// Their mean, milliseconds; not a number without any.
    pub fn mean_ms(&self) -> f64 {
        let sum = self.sum_ns as f64;
        sum / float(self.served()) / 1e6
    }

    /// A quantile, milliseconds.
    pub fn quantile_ms(&self, quantile: f64) -> f64 {
        float(self.responses.value_at_quantile(quantile)) / 1e6
    }

    /// The part of responses that took `ms` milliseconds or less.
    pub fn within(&self, ms: f64) -> f64 {
        if self.served() == 0 {
            return f64::NAN;
        }
        self.responses.percentile_below(super::random::nanoseconds(ms * 1e3)) / 100.0
    }

    /// Bandwidth in megabits per second over `time_ns`.
    pub fn mbit(&self, time_ns: u64) -> f64 {
        float(self.bytes) * 8e3 / float(time_ns)
    }
}

impl Outcome {
    /// The load of a machine, by both names.
    pub fn load(&self, machine: &str, name: &str) -> Option<&LoadOutcome> {
        self.loads.iter().find(|load| load.machine == machine && load.name == name)
    }

    /// A machine.
    pub fn machine(&self, name: &str) -> Option<&MachineOutcome> {
        self.machines.iter().find(|machine| machine.name == name)
    }

    /// The machine that computes all the time and is farthest from its due, more or less.
    pub fn farthest_off(&self) -> Option<&MachineOutcome> {
        let hogs = self.machines.iter().filter(|machine| machine.is_hog);
        hogs.max_by(|a, b| a.off().abs().total_cmp(&b.off().abs()))
    }

    /// CPU time of a machine as a part of one CPU.
    pub fn of_cpu(&self, machine: &MachineOutcome) -> f64 {
        float(machine.used_ns) / float(self.time_ns)
    }
}

pub(super) fn float(value: u64) -> f64 {
    value as f64
}

/// Each machine's due of the CPU time used by all: by weight, but at most the time that it could
/// use. A machine that does not compute all the time is due at most the time that it used.
pub(super) fn due_shares(machines: &mut [MachineOutcome], time_ns: u64) {
    let limit = |machine: &MachineOutcome| match machine.is_hog {
        true => float(time_ns) * f64::from(machine.vcpus),
        false => float(machine.used_ns),
    };
    // Machines in the order in which they are satisfied: none after it can be satisfied with less.
    let mut order: Vec<usize> = (0..machines.len()).collect();
    let fill = |machine: &MachineOutcome| limit(machine) / f64::from(machine.weight);
    order.sort_by(|&a, &b| fill(&machines[a]).total_cmp(&fill(&machines[b])));
    let mut left: f64 = machines.iter().map(|machine| float(machine.used_ns)).sum();
    let mut weights: f64 = machines.iter().map(|machine| f64::from(machine.weight)).sum();
    for place in order {
        let weight = f64::from(machines[place].weight);
        let due = (left * weight / weights).min(limit(&machines[place]));
        machines[place].due_ns = due;
        left -= due;
        weights -= weight;
    }
}
