//! Other load of the machine during a measurement.

use std::fs;
use std::time::Instant;

use super::others;
use serde::{Deserialize, Serialize};

/// How busy the machine was.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Load average of the minute before it began: tasks that ran or waited for a CPU or a disk. On
    /// a quiet machine it is near 0.
    pub before: f64,
    /// Load average of its last minute: of the measurement itself, and of other processes.
    pub after: f64,
    /// Of the CPUs' time, what a hypervisor gave to other machines meanwhile, in per cent; 0 on
    /// bare metal.
    pub stolen_percent: f64,
    /// CPUs that programs without a part in it used meanwhile; none if it was too short to tell.
    #[serde(default)]
    pub others: Option<f64>,
}

impl Load {
    /// `0.25 before, 1.50 at the end, 0.5 % of the CPU time stolen, other programs used 0.02 CPUs`.
    pub fn words(self) -> String {
        let Self { before, after, stolen_percent, others } = self;
        let others = others.map_or(String::new(), |cpus| format!(", {}", used(cpus)));
        format!(
            "{before:.2} before, {after:.2} at the end, {stolen_percent:.1} % of the CPU time \
             stolen{others}"
        )
    }

    /// Reason for a measurement without a conclusion, if other programs used too much.
    pub fn disturbance(self) -> Option<String> {
        self.others.filter(|cpus| *cpus >= others::MOST).map(used)
    }
}

fn used(cpus: f64) -> String {
    format!("other programs used {cpus:.2} CPUs")
}

/// How busy the machine is at a moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Busy {
    average: f64,
    /// Ticks of all CPUs.
    all: u64,
    /// Of them, those that others had.
    stolen: u64,
    others: Option<(f64, Instant)>,
}

impl Busy {
    /// Now; none if the kernel does not tell.
    pub fn now() -> Option<Self> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let busy = Self::of(&read("/proc/loadavg"), &read("/proc/stat"))?;
        Some(Self { others: others::look(), ..busy })
    }

    /// From the texts of `/proc/loadavg` and `/proc/stat`.
    fn of(loadavg: &str, stat: &str) -> Option<Self> {
        let average = loadavg.split_whitespace().next()?.parse().ok()?;
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        // user nice system idle iowait irq softirq steal; the guests' time behind them is in user's
        // already.
        let ticks: Vec<u64> =
            line.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
        let (all, stolen) = (ticks.iter().sum(), ticks.get(7).copied().unwrap_or(0));
        Some(Self { average, all, stolen, others: None })
    }

    /// Load since then; none if the kernel does not report it.
    pub fn until_now(self) -> Option<Load> {
        Self::now().map(|end| self.until(end))
    }

    fn until(self, end: Self) -> Load {
        // Some kernels let ticks run backwards a little.
        let all = end.all.saturating_sub(self.all);
        let stolen = end.stolen.saturating_sub(self.stolen).min(all);
        let stolen_percent = if all == 0 { 0.0 } else { stolen as f64 / all as f64 * 100.0 };
        let others = self.others.zip(end.others).and_then(others::between);
        Load { before: self.average, after: end.average, stolen_percent, others }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_elapsed() {
        let stat = |user: u64, stolen: u64| {
            format!("cpu  {user} 0 100 500 0 0 0 {stolen} 7 0\ncpu0 1 1 1 1\n")
        };
        let begin = Busy::of("0.25 0.10 0.05 1/99 7\n", &stat(100, 10)).unwrap();
        let end = Busy::of("1.50 0.10 0.05 1/99 7\n", &stat(190, 20)).unwrap();
        let load = begin.until(end);
        assert_eq!(load, Load { before: 0.25, after: 1.5, stolen_percent: 10.0, others: None });
        assert_eq!(load.words(), "0.25 before, 1.50 at the end, 10.0 % of the CPU time stolen");
        assert_eq!(end.until(begin).stolen_percent, 0.0, "ticks that ran backwards");
    }

    #[test]
    fn other_programs_prevent_conclusions() {
        let load = |others| Load { before: 0.0, after: 2.0, stolen_percent: 0.0, others };
        assert_eq!([load(None), load(Some(0.249))].map(Load::disturbance), [None, None]);
        let disturbed = load(Some(1.3));
        assert_eq!(disturbed.disturbance().unwrap(), "other programs used 1.30 CPUs");
        assert!(disturbed.words().ends_with("stolen, other programs used 1.30 CPUs"));
    }

    #[test]
    fn missing_kernel_figure_is_left_out() {
        assert_eq!(Busy::of("", "cpu  1 2 3\n"), None);
        assert_eq!(Busy::of("0.1 0 0 1/9 7\n", ""), None);
        // Old kernels have fewer columns.
        assert_eq!(
            Busy::of("0.5 0 0 1/9 7\n", "cpu  1 2 3\n").map(|busy| (busy.all, busy.stolen)),
            Some((6, 0))
        );
        assert!(Busy::now().and_then(Busy::until_now).is_some());
    }
}
