//! The report of the bypass in real programs.

use vlane_report::{
    Arms, Begun, Experiment, Figure, Measured, Note, Place, Report, Section, experiment, median,
    table,
};
use vlane_units::show_size;

use super::{Cell, Options, SETTLED, Sample};
use crate::caches::moving;

/// The cells' samples.
type Results<'a> = [(Cell, Arms<Sample>)];

/// The experiment, and its guest.
pub(super) struct Shown<'a> {
    pub(super) options: &'a Options,
    /// Version of the guest.
    pub(super) guest: &'a str,
}

impl Shown<'_> {
    /// Makes it.
    pub(super) fn report(&self, results: &Results<'_>, begun: &Begun) -> Report {
        let place = |(cell, arms): &(Cell, Arms<Sample>)| (*cell, arms.clone());
        let all: Vec<_> = results.iter().map(place).collect();
        let places: Vec<Place<'_, Sample>> = all
            .iter()
            .map(|(cell, arms)| Place {
                id: cell.id(),
                name: cell.id(),
                title: cell.id(),
                text: Vec::new(),
                arms,
            })
            .collect();
        let programs = ["db_bench", "mariadbd", "sysbench"];
        let empty = begun.report("bypass", "The journal bypass in real programs", &programs);
        experiment::report(self, &places, empty)
    }
}

/// A figure that only rounds without moving hits have.
fn of_steady(
    title: &str,
    unit: &'static str,
    of: impl Fn(&Sample) -> f64 + 'static,
) -> Figure<'static, Sample> {
    Figure::maybe(title, unit, move |sample: &Sample| sample.is_steady().then(|| of(sample)))
}

fn operations() -> Figure<'static, Sample> {
    of_steady("operations", "/s", |s| s.operations)
}

fn p99() -> Figure<'static, Sample> {
    of_steady("p99", "us", |s| s.p99_us)
}

fn misses() -> Figure<'static, Sample> {
    of_steady("misses", "%", |s| 100.0 * s.misses)
}

fn cpu() -> Figure<'static, Sample> {
    of_steady("back end, each operation", "us", |s| s.cpu_us)
}

/// The middle of a figure over the rounds.
fn middle(arm: &Measured<Sample>, of: impl Fn(&Sample) -> f64) -> f64 {
    median(&arm.rounds.iter().map(of).collect::<Vec<_>>())
}

/// Operations per second that an arm is expected to do, by the base's figures and its own misses
/// for an operation alone. Each miss takes the time that the cap allows it, and one thread waits
/// for it. More misses than the cap allows are not possible.
fn expected(threads: f64, cap: f64, (base, missed): (f64, f64), own: f64) -> f64 {
    let hit = (threads / base - missed / cap).max(0.0);
    let each = hit + own / cap;
    (threads / each.max(1e-9)).min(cap / own.max(1e-9))
}

impl Shown<'_> {
    /// Misses times their price, and the result.
    fn prediction(&self, places: &[Place<'_, Sample>]) -> Option<Section> {
        let cap = f64::from(self.options.read_iops);
        let cells = self.options.cells();
        let mut rows = Vec::new();
        for (place, cell) in places.iter().zip(&cells) {
            let (base, others) = place.arms.0.split_first()?;
            let at = (middle(base, |s| s.operations), middle(base, Sample::missed));
            for arm in others {
                let (own, threads) = (middle(arm, Sample::missed), cell.program.threads() as f64);
                let over = expected(threads, cap, at, own) / at.0;
                rows.push(vec![
                    place.name.as_str().into(),
                    arm.arm.as_str().into(),
                    at.1.into(),
                    own.into(),
                    over.into(),
                    arm.over(base, |s| s.is_steady().then_some(s.operations)).into(),
                ]);
            }
        }
        let text = format!(
            "A miss costs 1/{cap:.0} s at least, and a thread waits for it. So an operation's \
             misses give the gain that is to be expected of an arm. It is an upper bound: threads \
             that wait leave the guest's CPU to others."
        );
        let columns = "Cell | Arm | First arm's misses, each operation | Own misses, each \
                       operation | Expected operations over the first arm's | Measured";
        let blocks = vec![table("Misses times their price", columns, rows)];
        let title = "Expected and measured";
        (cap > 0.0).then(|| Section::new("expected", title, vec![text], blocks))
    }
}

impl Experiment for Shown<'_> {
    type Sample = Sample;
    const HEADS: [&'static str; 2] = ["Cell", "Arm"];

    fn summary(&self) -> Vec<Figure<'_, Sample>> {
        vec![p99(), operations(), misses(), cpu()]
    }

    fn notes(&self, places: &[Place<'_, Sample>]) -> Vec<Note> {
        let options = self.options;
        let sizes = [options.memory, options.size].map(show_size);
        let cap = match options.read_iops {
            0 => "The storage has no cap.".to_owned(),
            cap => format!(
                "The storage's reads are capped at {cap} per second by the back end's cgroup. It \
                 is a cap of reads, not a cloud's: writes have none."
            ),
        };
        let mut notes = vec![Note::info(format!(
            "The guest is User-Mode Linux {} with {} of memory and one CPU. Its program has {} of \
             data on ext4. {cap} Before each window the journal went round twice, and the data \
             were read once.",
            self.guest, sizes[0], sizes[1]
        ))];
        notes.extend(
            options
                .programs
                .iter()
                .map(|program| Note::info(format!("{}: {}.", program.name(), program.about()))),
        );
        if options.time < SETTLED {
            let seconds = SETTLED.as_secs();
            let text = format!("The windows last less than {seconds} s: hits may still move.");
            notes.push(Note::warning(text));
        }
        let of_place =
            |place: &Place<'_, Sample>| moving(&place.name, place.arms, Sample::is_steady);
        notes.extend(places.iter().flat_map(of_place));
        notes
    }

    fn sections(&self, places: &[Place<'_, Sample>]) -> Vec<Section> {
        self.prediction(places).into_iter().collect()
    }

    fn charts(&self) -> Vec<(&'static str, &'static str, Figure<'_, Sample>)> {
        vec![
            ("operations", "The program's operations", operations()),
            ("p99", "The slowest hundredth", p99()),
            ("misses", "Reads that the storage answers", misses()),
        ]
    }

    fn figures(&self, _place: &Place<'_, Sample>) -> Vec<Figure<'_, Sample>> {
        let on_disk = |s: &Sample| Some(s.device_written? / 1e6);
        let pages = |s: &Sample| Some(s.journal_pages? as f64);
        vec![
            operations(),
            p99(),
            misses(),
            Figure::new("misses moved", "points", |s: &Sample| 100.0 * s.moved),
            Figure::new("ramp", "s", |s: &Sample| s.ramp),
            of_steady("pages read", "/s", |s| s.reads),
            of_steady("misses, each operation", "", Sample::missed),
            Figure::maybe("written to the disk", "MB/s", on_disk),
            Figure::maybe("journal's pages in the cache", "", pages),
            cpu(),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectation_is_misses_times_price() {
        // 10 threads, 1,000 operations per second: 10 ms each, of which 2 misses take 2 ms.
        let of = |own| expected(10.0, 1000.0, (1000.0, 2.0), own);
        let near = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
        near(of(0.0), 1250.0);
        // The cap bounds it: 1,000 reads per second, 4 of them for an operation.
        near(of(4.0), 250.0);
        near(expected(1.0, 1000.0, (100.0, 1.0), 1.0), 100.0);
        near(expected(1.0, 1000.0, (100.0, 1.0), 6.0), 1000.0 / 15.0);
    }
}
