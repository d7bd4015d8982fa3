//! Finds out if the client is the limit, not the back end.
//!
//! A client that sleeps when idle, and never sleeps in a measurement, could not have asked for
//! more. The back end's further capacity is then unknown, and two back ends that both wait for the
//! client look alike. A client that polls is always awake, which is inconclusive.

use vlane_driver::Wait;
use vlane_report::stats::median;

use super::plan::Row;
use super::{Figures, RowResult};
use vlane_bench::CLIENT_BOUND;

impl Figures {
    /// CPUs that each of so many client threads used; 0 where they were not measured.
    pub(super) fn client_cpus(&self, jobs: u16) -> f64 {
        self.driver_cpu_us_per_io * self.iops / 1e6 / f64::from(jobs.max(1))
    }
}

/// True if the client was the limit in most of some rounds of a row.
pub(super) fn is_client(row: &Row, rounds: &[Figures]) -> bool {
    let Some(load) = row.load.filter(|load| load.wait == Wait::Interrupt) else { return false };
    let cpus: Vec<f64> = rounds.iter().map(|figures| figures.client_cpus(load.jobs)).collect();
    median(&cpus) > CLIENT_BOUND
}

/// A sentence on the rows in which it was, if there are any.
pub(super) fn sentence(results: &[RowResult]) -> Option<String> {
    let rows = results.iter().filter(|result| !result.client_limited.is_empty());
    let told: Vec<String> = rows
        .map(|result| format!("{}: {}", result.row, result.client_limited.join(" and ")))
        .collect();
    (!told.is_empty()).then(|| {
        format!(
            "The client was the limit (more than {:.0} % of its CPU used), so the back end may be \
             able to do more than is shown: {}.",
            CLIENT_BOUND * 100.0,
            told.join("; ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::plan::rows;
    use super::*;

    fn at(cpus: f64) -> Figures {
        Figures { iops: 1e6, driver_cpu_us_per_io: cpus, ..Figures::default() }
    }

    #[test]
    fn sleepless_client_is_limit_unless_polling() {
        let all = rows();
        let row = |id: &str| all.iter().find(|row| row.id == id);
        let is = |id: &str, cpus: &[f64]| {
            row(id).is_some_and(|row| {
                is_client(row, &cpus.iter().map(|cpus| at(*cpus)).collect::<Vec<_>>())
            })
        };
        assert!(is("null", &[0.99, 0.97, 0.2]) && !is("null", &[0.99, 0.8, 0.2]));
        assert!(!is("null-poll", &[1.0; 3]) && !is("idle", &[1.0; 3]) && !is("null", &[]));
        // Two jobs: two CPUs are the limit, not one.
        assert!(!is("lanes-null", &[1.0; 3]) && is("lanes-null", &[1.98; 3]));
        // The host's own loop has no client.
        assert!(!is("ram-read", &[0.0; 3]));
    }
}
