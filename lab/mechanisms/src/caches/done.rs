//! Results of the writer.

use std::time::Duration;

/// Results of the writer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Done {
    /// Operations per second.
    pub per_second: f64,
    /// 99th percentile of what each waited for, in us.
    pub p99_us: f64,
}

impl Done {
    /// By the time that each operation took, in ns.
    pub fn of(mut ns: Vec<u64>, time: Duration) -> Self {
        ns.sort_unstable();
        let rank = (ns.len() * 99).div_ceil(100).max(1);
        let p99 = ns.get(rank - 1).map_or(f64::NAN, |&ns| ns as f64 / 1e3);
        Self { per_second: ns.len() as f64 / time.as_secs_f64().max(1e-9), p99_us: p99 }
    }
}
