//! The results, as a report.

use std::collections::BTreeSet;

use super::Measured;
use super::guest::{BYTES, Sample};
use vlane_guest::Accel;
use vlane_report::{
    Arms, Begun, Experiment, Figure, Note, Place, Report, Section, Spread, experiment, table,
};

/// Makes it.
pub(super) fn fill(measured: &Measured, begun: &Begun) -> Report {
    let places: Vec<Place<'_, Sample>> = measured
        .all
        .iter()
        .map(|(direction, arms)| Place {
            id: direction.pattern.into(),
            name: direction.name.into(),
            title: format!("In a guest: QEMU's own virtio-blk, {}", direction.name),
            text: vec![
                "fio in the guest on the bare disk, direct I/O. Function calls are QEMU's trace \
                 events virtio_blk_*, as in the published count. The guest's block layer splits \
                 requests that are too large for the device (126 segments, when their pages lie \
                 apart), and QEMU's log makes each call dearer than it is without."
                    .into(),
            ],
            arms,
        })
        .collect();
    let title = "Function calls: 4K requests against 512K requests";
    let empty = begun.report("work", title, &["qemu-system-x86_64", "fio"]);
    experiment::report(measured, &places, empty)
}

fn calls() -> Figure<'static, Sample> {
    Figure::new("Function calls", "", |s: &Sample| s.calls)
}

fn rate() -> Figure<'static, Sample> {
    Figure::new("Function calls per second", "", calls_per_second)
}

fn calls_per_second(sample: &Sample) -> f64 {
    sample.calls / sample.seconds.max(1e-9)
}

/// A figure for each request that arrived in QEMU.
fn per_request<'a>(
    title: impl Into<String>,
    unit: &'static str,
    of: impl Fn(&Sample) -> Option<f64> + 'a,
) -> Figure<'a, Sample> {
    Figure::maybe(title, unit, move |s: &Sample| Some(of(s)? / s.requests.max(1.0)))
}

/// Ratio of a figure with 4K to that with 512K.
fn small_over_large(arms: &Arms<Sample>, of: fn(&Sample) -> f64) -> Option<Spread> {
    let [large, small] = arms.0.as_slice() else { return None };
    small.over(large, |sample| Some(of(sample)))
}

impl Experiment for Measured {
    type Sample = Sample;
    const HEADS: [&'static str; 2] = ["Direction", "Requests"];

    fn summary(&self) -> Vec<Figure<'_, Sample>> {
        vec![calls(), rate()]
    }

    fn notes(&self, _places: &[Place<'_, Sample>]) -> Vec<Note> {
        let emulated = (self.accel == Accel::Tcg).then(|| {
            Note::warning(
                "Guest CPU emulated: counts and their ratios hold, times and CPU times in the \
                 guest's tables do not.",
            )
        });
        let uncounted = self.uncounted.iter();
        let uncounted = uncounted.map(|reason| Note::info(format!("KVM exits: {reason}.")));
        emulated.into_iter().chain(uncounted).collect()
    }

    /// 4K : 512K.
    fn sections(&self, _places: &[Place<'_, Sample>]) -> Vec<Section> {
        let mut blocks = Vec::new();
        for (direction, arms) in &self.all {
            let bytes = small_over_large(arms, |s| s.calls);
            let time = small_over_large(arms, calls_per_second);
            let name = "QEMU's virtio-blk in a guest: function calls";
            let rows = vec![vec![name.into(), bytes.into(), time.into()]];
            let caption = format!("4K : 512K, {}", direction.name);
            blocks.push(table(caption, " | same bytes | same time", rows));
        }
        let text = "How many times as much a load of 4K requests takes as one of 512K requests: \
                    for the same bytes, and in the same time (a load of 4K requests moves fewer \
                    bytes in it).";
        vec![Section::new("ratios", "4K against 512K", vec![text.into()], blocks)]
    }

    fn charts(&self) -> Vec<(&'static str, &'static str, Figure<'_, Sample>)> {
        vec![
            ("calls", "Function calls for the same bytes", calls()),
            ("rate", "Function calls in the same time", rate()),
        ]
    }

    fn ratios(&self) -> (&'static str, Vec<Figure<'_, Sample>>) {
        ("", Vec::new())
    }

    fn figures(&self, place: &Place<'_, Sample>) -> Vec<Figure<'_, Sample>> {
        let mut figures = vec![
            Figure::new("Requests in QEMU", "", |s: &Sample| s.requests),
            per_request("Size of a request", "KiB", |_| Some(f64::from(BYTES >> 10))),
            calls(),
            per_request("Function calls per request", "", |s| Some(s.calls)),
            rate(),
            per_request("Guest's interrupts per request", "", |s| Some(s.interrupts)),
            per_request("Context switches per request", "", |s| Some(s.switches)),
            per_request("KVM exits per request", "", |s| s.exits),
        ];
        let samples = || place.arms.0.iter().flat_map(|arm| &arm.rounds);
        let roles: BTreeSet<String> = samples().flat_map(|s| s.cpu_us.keys().cloned()).collect();
        figures.extend(roles.into_iter().map(|role| {
            let title = format!("CPU time per request, {role}");
            per_request(title, "us", move |s| s.cpu_us.get(&role).copied())
        }));
        let events: BTreeSet<String> = samples().flat_map(|s| s.events.keys().cloned()).collect();
        figures.extend(events.into_iter().map(|event| {
            let title = event.clone();
            Figure::maybe(title, "", move |s: &Sample| Some(*s.events.get(&event)? as f64))
        }));
        figures
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests")]
mod tests {
    use vlane_report::{Block, Cell, Table};

    use super::super::DIRECTIONS;
    use super::*;

    fn in_guest(calls: u32, seconds: f64) -> Sample {
        let events = [("virtio_blk_handle_read".to_owned(), calls.into())].into();
        let calls = calls.into();
        Sample { calls, requests: calls, seconds, events, ..Sample::default() }
    }

    fn table_of<'a>(report: &'a Report, caption: &str) -> &'a Table {
        let blocks = report.sections.iter().flat_map(|section| &section.blocks);
        let tables = blocks.filter_map(|block| match block {
            Block::Table(table) => Some(table),
            Block::Chart(_) => None,
        });
        tables.into_iter().find(|table| table.caption == caption).unwrap()
    }

    #[test]
    fn ratios_are_of_bytes_and_of_time() {
        let arms = || Arms::once(["512K", "4K"].map(str::to_owned));
        let mut reads = arms();
        reads.0[0].rounds = vec![in_guest(4, 1.0), in_guest(4, 1.0)];
        reads.0[1].rounds = vec![in_guest(40, 4.0), in_guest(48, 4.0)];
        let [read, write] = DIRECTIONS;
        let measured = Measured {
            accel: Accel::Tcg,
            all: vec![(read, reads), (write, arms())],
            uncounted: Some("no KVM here".into()),
        };
        let report = fill(&measured, &Begun::now(""));
        let functions = &table_of(&report, "4K : 512K, random read").rows[0];
        assert_eq!(functions[0], "QEMU's virtio-blk in a guest: function calls".into());
        let Cell::Figure(bytes) = &functions[1] else { panic!("no figure") };
        assert_eq!((bytes.min, bytes.median, bytes.max, bytes.runs), (10.0, 11.0, 12.0, 2));
        let Cell::Figure(time) = &functions[2] else { panic!("no figure") };
        assert_eq!(time.median, 2.75);
        let none = &table_of(&report, "4K : 512K, random write").rows[0];
        assert_eq!(none[1..], [Cell::Empty, Cell::Empty]);
        assert!(report.notes.iter().any(|note| note.text.contains("no KVM here")));
    }
}
