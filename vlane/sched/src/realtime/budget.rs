//! The share of the kernel's real-time budget that boosts may use.
//!
//! Linux lets real-time threads have `sched_rt_runtime_us` of every `sched_rt_period_us` (95 %), so
//! that a host with a runaway real-time thread can still be saved. All boosts together, and the
//! daemon itself, keep within a part of it.

use std::path::Path;

use crate::{Error, ErrorKind, Result};

/// Unused budget is kept for so long: a burst of boosts may use it.
const KEPT_NS: u64 = 100_000_000;

/// A whole, in parts per million.
const PPM: u64 = 1_000_000;

/// A bucket of CPU time that fills steadily.
#[derive(Debug, Clone)]
pub struct Budget {
    /// CPU time per time, parts per million; of one CPU.
    rate_ppm: u64,
    left_ns: i64,
    filled: Option<u64>,
}

/// The limit for real-time threads on each CPU, parts per million, from the texts of the two files.
fn limit_ppm(runtime: &str, period: &str) -> Option<u64> {
    let runtime: i64 = runtime.trim().parse().ok()?;
    let period: u64 = period.trim().parse().ok().filter(|&period| period > 0)?;
    // -1: no limit.
    Some(u64::try_from(runtime).map_or(PPM, |runtime| runtime.saturating_mul(PPM) / period))
}

impl Budget {
    /// `percent` of the kernel's budget on so many CPUs.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`]: the kernel allows real-time threads no time at all.
    pub fn of_kernel(percent: u8, cpus: usize) -> Result<Self> {
        Self::of_files(Path::new("/proc/sys/kernel"), percent, cpus)
    }

    fn of_files(dir: &Path, percent: u8, cpus: usize) -> Result<Self> {
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
        let (runtime, period) = (read("sched_rt_runtime_us"), read("sched_rt_period_us"));
        // A kernel without these files has its own limit (since 6.12 the fair server: 5 % for the
        // others).
        let limit = limit_ppm(&runtime, &period).unwrap_or(PPM * 95 / 100);
        if limit == 0 {
            let text = "the kernel allows real-time threads no CPU time; `sysctl \
                        kernel.sched_rt_runtime_us=950000` is the usual setting";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        Ok(Self::new(limit * u64::from(percent) / 100 * cpus as u64))
    }

    /// A budget of `rate_ppm` parts per million of one CPU.
    pub const fn new(rate_ppm: u64) -> Self {
        Self { rate_ppm, left_ns: 0, filled: None }
    }

    /// CPU time per time, parts per million of one CPU.
    pub const fn rate_ppm(&self) -> u64 {
        self.rate_ppm
    }

    /// CPU time that is left, ns; negative: more was used than there was.
    pub const fn left_ns(&self) -> i64 {
        self.left_ns
    }

    /// Returns true if it is as full as a new one at `now`.
    pub fn is_whole(&mut self, now: u64) -> bool {
        self.has_some(now) && self.left_ns >= self.most()
    }

    /// True if it was hardly used lately. The clock is not read for that.
    pub fn is_hardly_used(&self) -> bool {
        self.left_ns >= self.most() / 100 * 99
    }

    /// The most that is kept, ns.
    fn most(&self) -> i64 {
        i64::try_from(self.rate_ppm.saturating_mul(KEPT_NS) / PPM).unwrap_or(i64::MAX)
    }

    /// Returns true if there is any left at `now`.
    pub fn has_some(&mut self, now: u64) -> bool {
        let most = self.most();
        let passed = self.filled.map_or(KEPT_NS, |filled| now.saturating_sub(filled));
        // Below a microsecond, frequent questions must not gain anything.
        if passed >= 1000 {
            let gained = u128::from(passed) * u128::from(self.rate_ppm) / u128::from(PPM);
            let gained = i64::try_from(gained).unwrap_or(i64::MAX);
            self.left_ns = self.left_ns.saturating_add(gained).min(most);
            self.filled = Some(now);
        }
        self.left_ns > 0
    }

    /// Takes back a charge of time that was not used.
    pub fn unused(&mut self, ns: u64) {
        self.left_ns = self.left_ns.saturating_add_unsigned(ns).min(self.most());
    }

    /// Charges real-time CPU time that was used.
    pub fn used(&mut self, ns: u64) {
        self.left_ns = self.left_ns.saturating_sub_unsigned(ns);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn kernel_limits_are_parsed() {
        assert_eq!(limit_ppm("950000\n", "1000000\n"), Some(950_000));
        assert_eq!(limit_ppm("-1", "1000000"), Some(PPM));
        assert_eq!(limit_ppm("0", "1000000"), Some(0));
        assert_eq!(limit_ppm("1", "0"), None);
        assert_eq!(limit_ppm("", ""), None);
    }

    #[test]
    fn zero_kernel_budget_error_names_remedy() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("sched_rt_runtime_us"), "0").unwrap();
        std::fs::write(dir.path().join("sched_rt_period_us"), "1000000").unwrap();
        let error = Budget::of_files(dir.path(), 50, 2).unwrap_err();
        assert!(error.to_string().contains("sysctl"), "{error}");
        std::fs::write(dir.path().join("sched_rt_runtime_us"), "950000").unwrap();
        assert_eq!(Budget::of_files(dir.path(), 50, 2).unwrap().rate_ppm(), 950_000);
    }

    proptest! {
        /// For any amounts and times, the sum stays within the rate, the bucket, and the last
        /// amount that was let through.
        #[test]
        fn budget_is_never_exceeded(rate in 1u64..4_000_000, steps in prop::collection::vec((0u64..50_000_000, 0u64..2_000_000), 1..200)) {
            let mut budget = Budget::new(rate);
            let (mut now, mut used) = (1, 0u128);
            for (passes, wants) in steps {
                now += passes;
                if budget.has_some(now) {
                    budget.used(wants);
                    used += u128::from(wants);
                }
                let most = u128::from(rate) * u128::from(now + KEPT_NS) / u128::from(PPM) + 2_000_000;
                prop_assert!(used <= most, "{used} of {most}");
            }
        }
    }
}
