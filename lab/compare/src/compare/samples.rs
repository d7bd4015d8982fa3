//! Every single measurement of a comparison, as the report keeps them.

use super::Outcome;
use super::native::NativeMeasurement;
use super::results::{Measurement, PARTS, Part};
use vlane_report::{Cell, Samples};

/// Those of the guest and the host, those in which calls were counted, and those without a guest.
pub(super) fn all(outcome: &Outcome) -> Vec<Samples> {
    let mut all = vec![
        of("measurements", "Host and guest", &outcome.results.all),
        of("counted", "The guest while system calls were counted", &outcome.counted.all),
        native(&outcome.native),
    ];
    all.retain(|samples| !samples.rows.is_empty());
    all
}

/// Figures of work are per request of fio's.
fn of(id: &str, caption: &str, measured: &[Measurement]) -> Samples {
    let columns = "Turn | Load | Disk | Throughput [IOPS] | Data [MB/s] | Mean latency [us] | p50 \
                   [us] | p99 [us] | fio's CPU [us] | fio's switches | Requests | Interrupts | \
                   Kicks | Signals | CPU, guest [us] | CPU, back end [us] | CPU, kernel workers \
                   [us] | Switches, guest | Switches, back end | Switches, kernel workers | \
                   Calls, guest | Calls, back end | Calls, kernel workers";
    let row = |m: &Measurement| {
        let (told, work) = (&m.outcome, m.work.as_ref());
        let mut row = vec![turn(m.pass), m.load.id().into(), m.column.id().into()];
        row.extend(
            [told.iops, told.mb_per_second, told.mean_us, told.p50_us, told.p99_us].map(Cell::from),
        );
        row.extend([told.cpu_us, told.switches].map(Cell::from));
        row.extend([work.map(|w| w.requests), work.map(|w| w.interrupts)].map(Cell::from));
        row.extend([work.and_then(|w| w.kicks), work.and_then(|w| w.signals)].map(Cell::from));
        let part = |part: Part| work.map(|work| work.part(part));
        row.extend(PARTS.map(|p| Cell::from(part(p).map(|work| work.cpu_us))));
        row.extend(PARTS.map(|p| Cell::from(part(p).map(|work| work.switches))));
        row.extend(PARTS.map(|p| Cell::from(part(p).and_then(|work| work.calls))));
        row
    };
    Samples::new(id, caption, columns, measured.iter().map(row).collect())
}

fn native(measured: &[NativeMeasurement]) -> Samples {
    let columns =
        "Turn | Load | Jobs | Back end | Throughput [IOPS] | Data [MB/s] | CPU [us] | Switches";
    let row = |m: &NativeMeasurement| {
        let mut row = vec![turn(m.pass), m.load.load.id().into()];
        row.extend([Cell::Number(f64::from(m.load.jobs)), m.column.id().into()]);
        row.extend([m.iops, m.mb_per_second, m.cpu_us, m.switches].map(Cell::from));
        row
    };
    Samples::new("native", "Without a guest", columns, measured.iter().map(row).collect())
}

fn turn(pass: usize) -> Cell {
    Cell::Number(pass as f64)
}
