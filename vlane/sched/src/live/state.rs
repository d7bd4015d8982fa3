//! The daemon's published state: one JSON object per line, described in docs/src/sched.md.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use vlane_hint::Classes;
use vlane_policy::loan::{Account, Priority};

use crate::realtime::budget::Budget;

/// The completions that boost, of those that vlane's back ends report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Completions {
    /// All completions, until an express completion shows that the guest has a foreground. From
    /// then on only express completions, until the foreground has been quiet for some time.
    #[default]
    Auto,
    /// All completions.
    All,
    /// Completions of requests whose class in their volume is express, and of the rest of the
    /// foreground's fsyncs. Only a request of that kind is the answer that ends a boost.
    Express,
}

impl Completions {
    /// The policy's name as it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::All => "all",
            Self::Express => "express",
        }
    }

    /// The classes that back ends are to report from the beginning.
    pub const fn classes(self) -> Classes {
        match self {
            Self::Auto | Self::All => Classes::ALL,
            Self::Express => Classes::EXPRESS,
        }
    }
}

/// Name and version of the format. The number rises when a reader of the older one would
/// misunderstand the newer.
pub const SCHEMA: &str = "vlane-sched-state/1";
/// The last responses of a vCPU that are kept for their percentiles.
const KEPT: usize = 1024;

/// The daemon's state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DaemonState {
    /// [`SCHEMA`].
    pub schema: String,
    /// Seconds since 1970.
    pub time: f64,
    /// Seconds that it has run.
    pub uptime: f64,
    /// Its process.
    #[serde(default)]
    pub pid: u32,
    /// The means of boosts: `realtime` or `sched_ext`.
    pub vehicle: String,
    /// The policy that chooses the boosted vCPUs.
    pub policy: String,
    /// The completions that boost, of those that vlane's back ends report: `auto`, `all` or
    /// `express`.
    /// Empty: from a scheduler that knows only all.
    #[serde(default)]
    pub completions: String,
    /// CPU time that the daemon's event loop has used, seconds.
    pub daemon_cpu: f64,
    /// The vehicle's counters.
    pub counters: BTreeMap<String, u64>,
    /// Real-time budgets: that of all boosts first, then those of users and machines with recent
    /// boosts.
    #[serde(default)]
    pub budgets: Vec<BudgetState>,
    /// The vCPUs.
    pub vcpus: Vec<VcpuState>,
}

/// A real-time budget.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BudgetState {
    /// The payer: `all`, `user UID`, or `machine PID`.
    pub of: String,
    /// CPU time per time, percent of one CPU.
    pub percent: f64,
    /// The rest when it was last asked for, ms; negative: more was used than there was.
    pub left_ms: f64,
}

impl DaemonState {
    /// Returns true if only express completions boost.
    pub fn is_express_only(&self) -> bool {
        self.completions == Completions::Express.name()
    }
}

impl BudgetState {
    pub(crate) fn of(of: String, budget: &Budget) -> Self {
        Self { of, percent: us(budget.rate_ppm()) / 10.0, left_ms: ms(budget.left_ns()) }
    }
}

/// A vCPU's.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct VcpuState {
    /// Its name.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// The user of that.
    #[serde(default)]
    pub user: u32,
    /// Its number in its machine.
    pub index: u32,
    /// Its threads.
    pub tids: Vec<u32>,
    /// `boost`, `under`, `over`, or `held-back` (over, and kept after the others until it has
    /// paid).
    pub state: String,
    /// Its machine's weight.
    pub weight: u32,
    /// Credits left, ms of CPU time; negative: owed.
    pub credit_ms: f64,
    /// Its loan's line, ms of CPU time.
    pub line_ms: f64,
    /// The rest of it, ms.
    pub left_ms: f64,
    /// Its debt of it.
    pub debt_ms: f64,
    /// The rate at which it spends loans, parts per million of a CPU (the paper's cm); 0: not known
    /// yet.
    pub cm_ppm: u64,
    /// The part of its allotment that redeems loans, parts per thousand.
    pub redemption_permille: u64,
    /// The longest time of one of its boosts, ms of CPU time; 0: from a scheduler that does not
    /// tell.
    #[serde(default)]
    pub boost_max_ms: f64,
    /// I/O events seen.
    pub events: u64,
    /// Boosts granted: on a loan, or free.
    pub boosts: u64,
    /// Boosts granted on its own credits.
    pub wake_boosts: u64,
    /// Boosts denied by the policy.
    pub denied: u64,
    /// Median of its last responses, us; 0 without any.
    pub response_p50_us: f64,
    /// Their 99th percentile.
    pub response_p99_us: f64,
    /// The number of them (at most 1024).
    pub responses: usize,
    /// CPU time in the last second, percent of one CPU.
    pub cpu_percent: f64,
    /// Its part of what all vCPUs used since it joined, percent.
    pub share_percent: f64,
    /// Its weight's share among those that are not stopped, percent; 0 if it is stopped itself.
    pub entitled_percent: f64,
    /// "CPU ready" (steal time): waited for a CPU in the last second, percent of the time.
    pub ready_percent: f64,
}

/// The last responses. The event loop writes them, and each reader of percentiles sorts a copy:
/// clones are the same responses.
#[derive(Debug, Clone)]
pub(crate) struct Responses(Arc<Last>);

#[derive(Debug)]
struct Last {
    values: Box<[AtomicU64]>,
    /// The number of responses so far.
    count: AtomicU64,
}

impl Default for Responses {
    fn default() -> Self {
        let values = std::iter::repeat_with(AtomicU64::default).take(KEPT).collect();
        Self(Arc::new(Last { values, count: AtomicU64::new(0) }))
    }
}

impl Responses {
    /// Adds a response. By one thread only.
    pub(crate) fn push(&self, ns: u64) {
        let count = self.0.count.load(Ordering::Relaxed);
        let place = usize::try_from(count % KEPT as u64).unwrap_or(0);
        if let Some(value) = self.0.values.get(place) {
            value.store(ns, Ordering::Relaxed);
        }
        self.0.count.store(count + 1, Ordering::Release);
    }

    /// Returns the number, and two percentiles in microseconds.
    pub(crate) fn percentiles(&self) -> (usize, f64, f64) {
        let count = usize::try_from(self.0.count.load(Ordering::Acquire)).unwrap_or(KEPT).min(KEPT);
        let values = self.0.values.iter().take(count);
        let mut sorted: Vec<u64> = values.map(|value| value.load(Ordering::Relaxed)).collect();
        sorted.sort_unstable();
        let at = |percent: usize| {
            // Nearest rank: the smallest that so many percent do not exceed.
            let rank = (sorted.len() * percent).div_ceil(100).max(1);
            sorted.get(rank - 1).copied().unwrap_or(0)
        };
        (sorted.len(), us(at(50)), us(at(99)))
    }
}

/// A state as the event loop leaves it: readers sort its lists themselves.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) state: DaemonState,
    /// For each of its vCPUs.
    pub(crate) responses: Vec<Responses>,
}

impl Snapshot {
    /// The whole state.
    pub(crate) fn finished(&self) -> DaemonState {
        let mut state = self.state.clone();
        for (vcpu, responses) in state.vcpus.iter_mut().zip(&self.responses) {
            (vcpu.responses, vcpu.response_p50_us, vcpu.response_p99_us) = responses.percentiles();
        }
        state
    }
}

pub(crate) fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

fn ms(ns: i64) -> f64 {
    ns as f64 / 1e6
}

fn unsigned_ms(ns: u64) -> f64 {
    us(ns) / 1e3
}

impl VcpuState {
    /// The state of an account.
    pub(crate) fn of_account(account: &Account, held_back: bool) -> Self {
        let state = match account.priority() {
            Priority::Boost => "boost",
            _ if held_back => "held-back",
            Priority::Under => "under",
            Priority::Over => "over",
        };
        let (loan, totals) = (&account.loan, &account.totals);
        Self {
            state: state.into(),
            credit_ms: ms(account.credit_ns),
            line_ms: unsigned_ms(loan.line_ns),
            left_ms: unsigned_ms(loan.left_ns()),
            debt_ms: unsigned_ms(loan.debt_ns()),
            cm_ppm: loan.cm_ppm,
            redemption_permille: account.redemption_permille,
            boost_max_ms: unsigned_ms(account.boost_max_ns),
            events: totals.events,
            boosts: totals.boosts,
            wake_boosts: totals.wake_boosts,
            denied: totals.denied,
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_last_responses() {
        let responses = Responses::default();
        assert_eq!(responses.percentiles(), (0, 0.0, 0.0));
        responses.push(5_000);
        assert_eq!(responses.percentiles(), (1, 5.0, 5.0));
        for n in 0..2 * KEPT as u64 {
            responses.push(n * 1000);
        }
        let (count, p50, p99) = responses.percentiles();
        assert_eq!((count, p50, p99), (KEPT, 1535.0, 2037.0));
    }

    #[test]
    fn percentiles_are_of_the_moment_asked() {
        let responses = Responses::default();
        let vcpus = vec![VcpuState::default()];
        let snapshot = Snapshot {
            state: DaemonState { vcpus, ..DaemonState::default() },
            responses: vec![responses.clone()],
        };
        responses.push(7_000);
        let vcpu = &snapshot.finished().vcpus[0];
        assert_eq!((vcpu.responses, vcpu.response_p50_us), (1, 7.0));
    }
}
