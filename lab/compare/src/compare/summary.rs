//! Summary of the comparison: at most three sentences, each from an interval.
//!
//! A sentence is about loads that were measured in at least [`stats::LEAST_PAIRS`] turns, column by
//! column. It gives the interval of the true ratio, and says that no difference was seen when the
//! interval holds 1 ([`stats::Verdict::told`]). All other figures are in the tables.

use super::Outcome;
use super::columns::Column;
use super::loads::{Load, Pattern};
use super::native;
use vlane_report::stats::{LEAST_PAIRS, Verdict};

/// The loads that conclusions are about: random requests of 4K, where a guest's disk costs most;
/// where they are not measured, the first two.
pub fn deciding(loads: &[Load]) -> Vec<Load> {
    let small = [Pattern::RandomRead, Pattern::RandomWrite].map(|pattern| Load::fio(pattern, 4));
    let found: Vec<Load> = small.into_iter().filter(|load| loads.contains(load)).collect();
    if found.is_empty() { loads.iter().take(2).copied().collect() } else { found }
}

/// The sentences.
pub fn sentences(outcome: &Outcome) -> Vec<String> {
    if !outcome.concludes {
        return vec![
            "No conclusion is drawn from --quick: its runs are single and short. `vlane-lab \
             compare host` without it draws some."
                .into(),
        ];
    }
    let told: Vec<String> =
        [cost(outcome), lanes(outcome), alone(outcome)].into_iter().flatten().collect();
    if told.is_empty() { vec![nothing(outcome)] } else { told }
}

/// Why there is no sentence.
fn nothing(outcome: &Outcome) -> String {
    let turns = |load: &Load| outcome.results.of(load, Column::Host).count();
    match outcome.deciding.iter().map(turns).max().unwrap_or(0) {
        made @ 0..LEAST_PAIRS => format!(
            "No conclusion is drawn: it takes {LEAST_PAIRS} turns of a load, and there were \
             {made}. --repeat {LEAST_PAIRS} or a longer --limit makes them."
        ),
        _ => "No conclusion is drawn: the columns that would be compared were not measured.".into(),
    }
}

/// "`about`: first 1.31x (1.22x-1.40x); second no difference seen (0.77x-1.03x)."; `None` if none
/// of them is known.
fn sentence(about: &str, parts: impl IntoIterator<Item = (String, Verdict)>) -> Option<String> {
    let told: Vec<String> = parts
        .into_iter()
        .filter_map(|(name, verdict)| Some(format!("{name} {}", verdict.told()?)))
        .collect();
    (!told.is_empty()).then(|| format!("{about}: {}.", told.join("; ")))
}

/// A load in a sentence.
fn named(load: &Load) -> String {
    format!("{}s", load.name())
}

/// Cost of a guest's disk, relative to the host. Where the guest's CPU is emulated and cannot be
/// compared with the host, it is relative to a disk that is emulated as well.
fn cost(outcome: &Outcome) -> Option<String> {
    let load = outcome.deciding.first()?;
    let (base, whose) = match outcome.emulated() {
        true => (
            Column::Ide,
            "the emulated IDE disk's (the guest's CPU is emulated: no statement about the host)",
        ),
        false => (Column::Host, "the host's"),
    };
    let columns =
        [Column::Vlane, Column::Virtio, Column::Ide].into_iter().filter(|column| *column != base);
    sentence(
        &format!("{} of a guest, over {whose}", named(load)),
        columns.map(|column| {
            (format!("on {}", column.name()), outcome.results.verdict(load, column, base))
        }),
    )
}

/// Gain of this guest from lanes.
fn lanes(outcome: &Outcome) -> Option<String> {
    let verdict = |load| outcome.results.verdict(load, Column::Vlane, Column::Virtio);
    sentence(
        "The guest on vlane, over the same guest on QEMU's own virtio-blk",
        outcome.deciding.iter().map(|load| (named(load), verdict(load))),
    )
}

/// The back ends alone.
fn alone(outcome: &Outcome) -> Option<String> {
    let rows = native::loads().into_iter().filter(native::NativeLoad::decides);
    let verdict = |row| native::verdict(&outcome.native, row, Column::Vlane, Column::StorageDaemon);
    let name = |row: &native::NativeLoad| match row.jobs {
        1 => named(&row.load),
        jobs => format!("by {jobs} jobs on {jobs} queues"),
    };
    sentence(
        "Without a guest, vlane over qemu-storage-daemon",
        rows.map(|row| (name(&row), verdict(row))),
    )
}
