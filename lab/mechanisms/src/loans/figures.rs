//! Results of measurements of live schedulers, and the figures that reports make of them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vlane_report::nearest_rank;
use vlane_sched::live::state::{DaemonState, VcpuState};

/// Results of one measurement.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Responses of guest 1, ns, in their order.
    pub responses: Vec<u64>,
    /// Before each of them, how long the storage had it, ns; where that is measured.
    pub services: Vec<u64>,
    /// How long each job of guest 1 took, ns; where there are any.
    pub jobs: Vec<u64>,
    /// Requests of its background.
    pub background: u64,
    /// CPU time of each guest, ns.
    pub used: Vec<u64>,
    /// CPU time of each guest in all rounds, ns.
    #[serde(skip)]
    pub used_in_all: Vec<u64>,
    /// Weight of each guest.
    pub weights: Vec<u32>,
    /// How long it took.
    pub time: Duration,
    /// CPU time of the scheduler's event loop meanwhile, ns.
    pub daemon_ns: u64,
    /// Boosts granted to guest 1.
    pub granted: u64,
    /// Boosts denied to it by the policy.
    pub denied: u64,
    /// The vehicle's counters.
    pub counters: BTreeMap<String, u64>,
    /// CPU time of all guests while the scheduler ran, ns: by the kernel, and by its accounts.
    pub scheduled: [u64; 2],
    /// CPU time that it lent, ns.
    pub lent_ns: u64,
}

impl Seen {
    /// Adds the scheduler's own figures at its end; `first` are those of guest 1.
    pub(super) fn add_state(&mut self, state: &DaemonState, first: &VcpuState) {
        (self.granted, self.denied) = (first.boosts + first.wake_boosts, first.denied);
        self.counters.clone_from(&state.counters);
        let part = self.seconds() / state.uptime.max(1e-3);
        self.daemon_ns = ns(Duration::from_secs_f64(state.daemon_cpu * part.min(1.0)));
    }

    fn seconds(&self) -> f64 {
        self.time.as_secs_f64()
    }

    fn per_second(&self, count: usize) -> f64 {
        number(count as u64) / self.seconds()
    }

    fn count(&self, counter: &str) -> f64 {
        self.counters.get(counter).copied().map_or(0.0, number)
    }

    /// How far each guest's share of this CPU time is off its weight, percent of the share.
    pub(super) fn off(&self, used: &[u64]) -> Vec<f64> {
        let all = number(used.iter().sum());
        let whole: f64 = self.weights.iter().map(|&weight| f64::from(weight)).sum();
        let entitled = self.weights.iter().map(|&weight| all * f64::from(weight) / whole);
        used.iter().zip(entitled).map(|(&used, due)| (number(used) / due - 1.0) * 100.0).collect()
    }

    fn furthest(&self, used: &[u64]) -> f64 {
        self.off(used).into_iter().map(f64::abs).fold(0.0, f64::max)
    }
}

/// A figure of a measurement: its title, its unit, and itself; not a number where there is none.
pub(crate) type Named = (&'static str, &'static str, fn(&Seen) -> f64);

const FIRST_OFF: Named = ("guest 1 off its share", "%", |s| s.off(&s.used)[0]);
pub(super) const FURTHEST: Named = ("furthest off", "%", |s| s.furthest(&s.used));
/// Over all rounds together: chance gives one round, and takes from another.
pub(super) const FURTHEST_IN_ALL: Named =
    ("furthest, all rounds", "%", |s| s.furthest(&s.used_in_all));
const GRANTED: Named = ("boosts granted", "%", |s| {
    let denied = number(s.denied) + s.count("denied_rt_budget");
    number(s.granted) / (number(s.granted) + denied).max(1.0) * 100.0
});
const LOOP: Named = ("scheduler's CPU", "%", |s| ms(s.daemon_ns) / s.seconds() / 10.0);

/// Figures of threads and guests with one event after the other.
pub(super) const LIVE: &[Named] = &[
    ("mean response", "ms", |s| mean(&s.responses)),
    ("median", "ms", |s| percentile(&s.responses, 50)),
    ("99th percentile", "ms", |s| percentile(&s.responses, 99)),
    ("I/O", "/s", |s| s.per_second(s.responses.len())),
    FIRST_OFF,
    FURTHEST,
    ("guest 1, all rounds", "%", |s| s.off(&s.used_in_all)[0]),
    FURTHEST_IN_ALL,
    GRANTED,
    LOOP,
];

/// Figures of a foreground beside readers.
pub(super) const EXPRESS: &[Named] = &[
    ("execution time", "ms", |s| mean(&s.jobs)),
    ("mean response", "ms", |s| mean(&s.responses)),
    ("99th percentile", "ms", |s| percentile(&s.responses, 99)),
    ("median response", "ms", |s| percentile(&s.responses, 50)),
    ("99th percentile of execution", "ms", |s| percentile(&s.jobs, 99)),
    ("mean service", "ms", |s| mean(&s.services)),
    ("99th percentile of service", "ms", |s| percentile(&s.services, 99)),
    ("foreground", "requests/s", |s| s.per_second(s.services.len())),
    ("background", "reads/s", |s| number(s.background) / s.seconds()),
    FIRST_OFF,
    FURTHEST,
    FURTHEST_IN_ALL,
    ("boosts", "/s", |s| number(s.granted) / s.seconds()),
    GRANTED,
    LOOP,
];

/// Figures of the sched_ext vehicle.
pub(crate) const SCHED_EXT: &[Named] = &[
    ("p50", "us", |s| percentile(&s.responses, 50) * 1e3),
    ("p99", "us", |s| percentile(&s.responses, 99) * 1e3),
    FIRST_OFF,
    ("farthest share", "%", |s| s.furthest(&s.used)),
    FURTHEST_IN_ALL,
    ("used", "ms", |s| ms(s.scheduled[0])),
    ("charged", "ms", |s| ms(s.scheduled[1])),
    ("granted", "", |s| number(s.granted)),
    ("denied", "", |s| number(s.denied)),
    ("not at once", "", |s| s.count("threads_not_moved")),
    ("lent per boost", "us", |s| ms(s.lent_ns) * 1e3 / number(s.granted.max(1))),
    ("given back to the ordinary scheduler", "", |s| s.count("sheltered")),
    LOOP,
];

pub(super) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn ms(ns: u64) -> f64 {
    number(ns) / 1e6
}

fn number(count: u64) -> f64 {
    count as f64
}

/// Of times in ns, in ms; not a number without any.
fn mean(times: &[u64]) -> f64 {
    ms(times.iter().sum()) / number(times.len() as u64)
}

/// Nearest rank, in ms; not a number without any.
pub(super) fn percentile(times: &[u64], percent: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    nearest_rank(&sorted, percent * 10).map_or(f64::NAN, ms)
}
