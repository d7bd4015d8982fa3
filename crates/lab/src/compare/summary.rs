//! What the comparison comes to, in sentences made from its figures.

use super::Outcome;
use super::columns::Column;
use super::loads::{Load, Pattern, Suite};
use super::native;
use super::results::{Part, Results};

/// The sentences.
pub fn sentences(outcome: &Outcome) -> Vec<String> {
    [cost(outcome), sizes(outcome), place(outcome), lanes(outcome), alone(outcome)]
        .into_iter()
        .flatten()
        .collect()
}

fn percent(ratio: f64) -> String {
    if ratio < 0.095 { format!("{:.1} %", ratio * 100.0) } else { format!("{:.0} %", ratio * 100.0) }
}

/// The guest's columns in the order in which they are told.
const TOLD: [Column; 6] =
    [Column::Vlane, Column::Virtio, Column::VirtioMapped, Column::StorageDaemon, Column::Ide, Column::Nvme];

/// "vlane 80 %, QEMU virtio-blk 75 %, ...".
fn list(outcome: &Outcome, value: impl Fn(Column) -> Option<f64>) -> Option<String> {
    let told: Vec<String> = TOLD
        .into_iter()
        .filter(|column| outcome.columns.contains(column))
        .filter_map(|column| Some(format!("{} {}", column.name(), percent(value(column)?))))
        .collect();
    (!told.is_empty()).then(|| told.join(", "))
}

/// What virtualisation costs: the mean over everything.
fn cost(outcome: &Outcome) -> Option<String> {
    let loads = outcome.results.loads();
    let mean = |column| outcome.results.mean_ratio(&loads, column, Column::Host);
    let told = list(outcome, mean)?;
    let emulated = match outcome.emulated() {
        true => {
            " The guest's CPU is emulated here, so these are lower than they would be under KVM; only the disks may be compared with each other."
        }
        false => "",
    };
    Some(format!(
        "Over all {} loads a guest reaches, of the host's throughput (geometric mean): {told}.{emulated}",
        loads.len()
    ))
}

/// Small against large requests.
fn sizes(outcome: &Outcome) -> Option<String> {
    let results = &outcome.results;
    let of = |record: u32| -> Vec<Load> {
        results.loads().into_iter().filter(|l| l.suite == Suite::Iozone && l.record_kib == record).collect()
    };
    let (small, large) = (of(4), of(16384));
    let told = |loads: &[Load]| list(outcome, |column| results.mean_ratio(loads, column, Column::Host));
    Some(format!(
        "One request at a time, small requests pay most: with 4K records {}; with 16384K records {}. Published (2018): virtio-blk 52 to 82 % and an emulated disk 9 to 32 % with 4K, about 80 % and 53 to 55 % with 16384K.",
        told(&small)?,
        told(&large)?
    ))
}

/// Where a small request's time goes.
fn place(outcome: &Outcome) -> Option<String> {
    let load = Load::fio(Pattern::RandomRead, 4);
    if !has(&outcome.results, &load) {
        return None;
    }
    let told: Vec<String> = TOLD
        .into_iter()
        .filter_map(|column| {
            let us =
                |part| outcome.results.work(&load, column, |w| Some(w.part(part).cpu_us)).map(|s| s.median);
            let (guest, back, kernel) = (us(Part::Guest)?, us(Part::Backend)?, us(Part::Kernel)?);
            Some(format!(
                "{}: {guest:.0} us in the guest's vCPUs and {:.1} us behind them",
                column.name(),
                back + kernel
            ))
        })
        .collect();
    (!told.is_empty()).then(|| {
        format!("Where a 4K random read (depth {}) goes, in CPU time: {}.", load.depth, told.join("; "))
    })
}

/// What lanes give to this guest.
fn lanes(outcome: &Outcome) -> Option<String> {
    let results = &outcome.results;
    let against = |load: &Load| results.ratio(load, Column::Vlane, Column::Virtio).map(|s| s.median);
    let small: Vec<String> = [Pattern::RandomRead, Pattern::RandomWrite]
        .into_iter()
        .filter_map(|pattern| {
            let load = Load::fio(pattern, 4);
            Some(format!("{:.2} times for 4K {}s", against(&load)?, pattern.name()))
        })
        .collect();
    if small.is_empty() {
        return None;
    }
    let cpu = |column| {
        let load = Load::fio(Pattern::RandomRead, 4);
        results
            .work(&load, column, |w| Some(w.part(Part::Backend).cpu_us + w.part(Part::Kernel).cpu_us))
            .map(|s| s.median)
    };
    let cheaper = match (cpu(Column::Vlane), cpu(Column::Virtio)) {
        (Some(vlane), Some(virtio)) if vlane > 0.0 => {
            format!(" Its back end spends {vlane:.1} us of CPU time on such a read, QEMU's {virtio:.1} us.")
        }
        _ => String::new(),
    };
    Some(format!(
        "What lanes would give this guest: the throughput on vlane is that of QEMU's own virtio-blk {}, from one job on one queue.{cheaper}",
        small.join(" and ")
    ))
}

/// The back ends alone.
fn alone(outcome: &Outcome) -> Option<String> {
    let all = &outcome.native;
    let row = |jobs| native::loads().into_iter().find(|l| l.jobs == jobs && l.load.depth > 1);
    let (one, two) = (row(1)?, row(2)?);
    let ratio = |load, column, base| native::ratio(all, load, column, base).map(|s| s.median);
    let vlane = ratio(one, Column::Vlane, Column::Host)?;
    let daemon = match ratio(one, Column::StorageDaemon, Column::Host) {
        Some(daemon) => format!(", qemu-storage-daemon {}", percent(daemon)),
        None => String::new(),
    };
    let lanes = match (
        ratio(two, Column::Vlane, Column::Host),
        ratio(two, Column::Vlane, Column::StorageDaemon),
    ) {
        (Some(host), Some(daemon)) => format!(
            "; with two jobs on two lanes vlane reaches {} of the host's two jobs, and {daemon:.2} times qemu-storage-daemon's single thread",
            percent(host)
        ),
        _ => String::new(),
    };
    Some(format!(
        "Without a guest, driven natively, vlane reaches {} of the host's 4K random reads at depth {}{daemon}{lanes}.",
        percent(vlane),
        one.load.depth
    ))
}

/// Whether there are results of a kind of load at all.
pub(super) fn has(results: &Results, load: &Load) -> bool {
    results.loads().contains(load)
}
