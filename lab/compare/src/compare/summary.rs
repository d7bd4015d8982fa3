//! Summary of the comparison: sentences about the 99th percentile, then about throughput.
//!
//! A sentence is about loads that were measured in at least [`LEAST_PAIRS`] turns, column by
//! column. It gives the interval of the true ratio, and says that no difference was seen when the
//! interval holds 1 ([`vlane_report::stats::Verdict::told`]). All other figures are in the tables.

use vlane_report::stats::LEAST_PAIRS;
use vlane_testbed::fio;

use super::columns::Column;
use super::loads::{Load, Pattern};
use super::results::LoadResult;
use super::{Outcome, native};

/// The loads that conclusions are about: random requests of 4K, where a guest's disk costs most;
/// where they are not measured, the first two.
pub fn deciding(loads: &[Load]) -> Vec<Load> {
    let small = [Pattern::RandomRead, Pattern::RandomWrite].map(|pattern| Load::fio(pattern, 4));
    let found: Vec<Load> = small.into_iter().filter(|load| loads.contains(load)).collect();
    if found.is_empty() { loads.iter().take(2).copied().collect() } else { found }
}

/// A metric: its name, and its value.
type Metric = (&'static str, fn(&fio::Outcome) -> f64);

const METRICS: [Metric; 2] = [("p99", |outcome| outcome.p99_us), ("IOPS", |outcome| outcome.iops)];

/// The sentences.
pub fn sentences(outcome: &Outcome) -> Vec<String> {
    if !outcome.concludes {
        return vec![
            "No conclusion is drawn from --quick: its runs are single and short. `vlane-lab \
             compare host` without it draws some."
                .into(),
        ];
    }
    let loads: Vec<Load> = outcome.results.iter().map(|result| result.load).collect();
    let deciding = deciding(&loads);
    let results: Vec<&LoadResult> =
        deciding.iter().filter_map(|load| LoadResult::find(&outcome.results, load)).collect();
    let of =
        |metric| [cost(outcome, &results, metric), lanes(&results, metric), alone(outcome, metric)];
    let told: Vec<String> = METRICS.into_iter().flat_map(of).flatten().collect();
    if !told.is_empty() {
        return told;
    }
    vec![match results.iter().map(|result| result.rounds()).max().unwrap_or(0) {
        made @ 0..LEAST_PAIRS => format!(
            "No conclusion is drawn: it takes {LEAST_PAIRS} turns of a load, and there were \
             {made}. --repeat {LEAST_PAIRS} or a longer --limit makes them."
        ),
        _ => "No conclusion is drawn: the columns that would be compared were not measured.".into(),
    }]
}

/// "`about`: first 1.31x (1.22x-1.40x); second no difference seen (0.77x-1.03x)."; `None` if none
/// of them is known.
fn sentence(
    about: &str,
    parts: impl IntoIterator<Item = (String, Option<String>)>,
) -> Option<String> {
    let told = parts.into_iter().filter_map(|(name, told)| Some(format!("{name} {}", told?)));
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| format!("{about}: {}.", told.join("; ")))
}

/// Cost of a guest's disk, relative to the host. Where the guest's CPU is emulated and cannot be
/// compared with the host, it is relative to a disk that is emulated as well.
fn cost(outcome: &Outcome, results: &[&LoadResult], (metric, of): Metric) -> Option<String> {
    let (base, whose) = match outcome.emulated() {
        true => (
            Column::Ide,
            "the emulated IDE disk's (the guest's CPU is emulated: no statement about the host)",
        ),
        false => (Column::Host, "the host's"),
    };
    let columns = [Column::Vlane, Column::Virtio, Column::Ide];
    let columns = columns.into_iter().filter(|column| *column != base);
    let parts = results.iter().flat_map(|result| {
        let load = result.load.name();
        columns.clone().map(move |column| {
            (format!("{load}s on {}", column.name()), result.told(column, base, of))
        })
    });
    sentence(&format!("{metric} of a guest, over {whose}"), parts)
}

/// Gain of this guest from lanes.
fn lanes(results: &[&LoadResult], (metric, of): Metric) -> Option<String> {
    let part = |result: &&LoadResult| {
        (format!("{}s", result.load.name()), result.told(Column::Vlane, Column::Virtio, of))
    };
    let about = format!("{metric} of a guest on vlane, over the same on QEMU's own virtio-blk");
    sentence(&about, results.iter().map(part))
}

/// The back ends alone.
fn alone(outcome: &Outcome, (metric, of): Metric) -> Option<String> {
    let rows = native::deciding();
    let rows = rows.iter().filter_map(|load| LoadResult::find(&outcome.native, load));
    let name = |load: &Load| match load.jobs {
        1 => format!("{}s", load.name()),
        jobs => format!("by {jobs} jobs on {jobs} queues"),
    };
    sentence(
        &format!("{metric} without a guest, vlane over qemu-storage-daemon"),
        rows.map(|row| (name(&row.load), row.told(Column::Vlane, Column::StorageDaemon, of))),
    )
}
