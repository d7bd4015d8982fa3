//! The report.

use vlane_units::show_size;

use super::commits::COMMIT;
use super::judge::{CellResult, middle};
use super::measure::{READ, Sample};
use super::plan::lru_hits;
use super::{About, Options};
use vlane_bench::Pin;
use vlane_report::build::{Begun, spread, table};
use vlane_report::experiment::{self, Experiment, Figure, Place};
use vlane_report::judge::{Measured, Verdict};
use vlane_report::{Cell, Note, Report, Section};

/// Guest memory charged to the back ends, of the cgroup, above which the cache was smaller than it
/// was said to be.
const MUCH: u64 = 20;

/// The experiment, and what came of it.
struct Shown<'a> {
    options: &'a Options,
    results: &'a [CellResult],
    about: &'a About,
}

/// Makes it.
pub(super) fn fill(
    options: &Options,
    results: &[CellResult],
    about: &About,
    begun: &Begun,
) -> Report {
    let place = |result| {
        let CellResult { cell, arms, .. }: &CellResult = result;
        Place { id: cell.id(), name: cell.id(), title: cell.title(), text: Vec::new(), arms }
    };
    let places: Vec<Place<'_, Sample>> = results.iter().map(place).collect();
    let empty = begun.report("caches", "What a cache mode is worth", &["sqlite3"]);
    experiment::report(&Shown { options, results, about }, &places, empty)
}

fn hit_rate() -> Figure<'static, Sample> {
    Figure::new("Hits", "%", |s: &Sample| 100.0 - 100.0 * s.misses)
}

fn reads() -> Figure<'static, Sample> {
    Figure::new("Reads", "/s", |s: &Sample| s.reads)
}

fn operations() -> Figure<'static, Sample> {
    Figure::new("Operations", "/s", |s: &Sample| s.operations)
}

fn p99() -> Figure<'static, Sample> {
    Figure::new("p99", "us", |s: &Sample| s.p99_us)
}

fn written() -> Figure<'static, Sample> {
    Figure::new("Written per operation", "KiB", |s: &Sample| s.written_per_operation() / 1024.0)
}

fn cpu() -> Figure<'static, Sample> {
    Figure::new("CPU per operation", "us", |s: &Sample| s.cpu_us)
}

impl Shown<'_> {
    fn result(&self, place: &Place<'_, Sample>) -> Option<&CellResult> {
        self.results.iter().find(|result| result.cell.id() == place.id)
    }
}

impl Experiment for Shown<'_> {
    type Sample = Sample;

    fn heads(&self) -> [&'static str; 2] {
        ["Cell", "Arm"]
    }

    fn summary(&self) -> Vec<Figure<'_, Sample>> {
        vec![reads(), operations()]
    }

    fn rounds(&self) -> usize {
        self.options.rounds
    }

    fn notes(&self, _places: &[Place<'_, Sample>]) -> Vec<Note> {
        notes(self.options, self.results, self.about)
    }

    fn aim(&self) -> String {
        "They are for the arms that keep the journal out of the cache and keep what a flush \
         promises; the others are what those are held against, and an option that begins with \
         --danger- has none. The better one is the better of writeback and none in the same cell."
            .into()
    }

    fn judge(&self, place: &Place<'_, Sample>) -> Vec<Verdict> {
        self.result(place).map_or_else(Vec::new, CellResult::verdicts)
    }

    fn sections(&self, _places: &[Place<'_, Sample>]) -> Vec<Section> {
        vec![crossover(self.options, self.results)]
    }

    fn charts(&self) -> Vec<(&'static str, &'static str, Figure<'_, Sample>)> {
        vec![
            ("hits", "The neighbour's hits", hit_rate()),
            ("reads", "The neighbour's reads", reads()),
            ("operations", "Operations of who writes", operations()),
            ("written", "Written to the disk per operation", written()),
        ]
    }

    fn ratios(&self) -> (&'static str, Vec<Figure<'_, Sample>>) {
        ("over-base", vec![operations(), p99(), reads(), written(), cpu()])
    }

    fn figures(&self, place: &Place<'_, Sample>) -> Vec<Figure<'_, Sample>> {
        let mut figures = vec![
            hit_rate(),
            reads(),
            Figure::new("p99 of reads", "us", |s: &Sample| s.read_p99_us),
            Figure::new("CPUs of both back ends", "", |s: &Sample| s.cpus),
            Figure::maybe("Written to the disk", "MB/s", |s: &Sample| {
                Some(s.device_written? / 1e6)
            }),
        ];
        if self.is_compared(place) {
            figures.extend([
                operations(),
                p99(),
                Figure::new("Written", "MB/s", |s: &Sample| s.written / 1e6),
                written(),
                Figure::maybe("Journal's pages in the cache", "", |s: &Sample| {
                    Some(s.journal_pages? as f64)
                }),
                cpu(),
            ]);
        }
        figures
    }

    fn is_compared(&self, place: &Place<'_, Sample>) -> bool {
        self.result(place).is_some_and(|result| result.cell.job.is_some())
    }
}

fn notes(options: &Options, results: &[CellResult], about: &About) -> Vec<Note> {
    let mut notes = Vec::new();
    match options.cache {
        None => notes.push(Note::warning(
            "The page cache has no limit (--no-limit): no page is evicted, so hits do not show \
             the modes' effect.",
        )),
        Some(bytes) => notes.push(Note::info(format!(
            "Both back ends share a memory cgroup of {}; on the whole host at most {} may be \
             dirty.",
            show_size(bytes),
            show_size(bytes / super::DIRTY)
        ))),
    }
    if results.iter().any(|result| !result.cell.throttled) {
        notes.push(Note::info(
            "Cells with \"write-back not throttled\" are a control: wbt_lat_usec is 0 there.",
        ));
    }
    if !options.with.is_empty() {
        notes.push(Note::info(format!("In every arm the volume has: {}.", options.with.join(" "))));
    }
    if about.has_device {
        notes.push(Note::info(
            "\"Written to the disk\", also per operation, is the disk's own counter, of what \
             anybody wrote. \"Written\" is what the volume's back end gave to the page cache or \
             wrote: a page that is written again before it is written back counts once, and all \
             of a folio (up to 2 MiB) if a part of it is written.",
        ));
    }
    if let Some(guests) = &about.guests {
        notes.push(Note::info(format!("Guests: {guests}, ext4 with data=ordered.")));
    }
    if options.pin == Pin::Apart {
        notes.push(if about.is_apart {
            Note::info(
                "The neighbour and its back end have half of the CPUs, the volume's back end and \
                 the writer have the other half.",
            )
        } else {
            Note::warning("There is one CPU for all: figures depend on the order of turns.")
        });
    }
    notes.extend(about.replays.iter().map(Note::info));
    let shared =
        results.iter().flat_map(|r| &r.arms.0).flat_map(|arm| &arm.rounds).map(|s| s.shared).max();
    if let (Some(limit), Some(shared)) = (options.cache, shared)
        && shared > limit / MUCH
    {
        notes.push(Note::warning(format!(
            "Up to {} of a guest's memory was charged to the back ends: the cache was smaller by \
             that.",
            show_size(shared)
        )));
    }
    for job in &options.jobs {
        notes.push(Note::info(format!("{}: {}.", job.name(), job.about())));
    }
    notes
}

/// Expected effect, a model's prediction, and the result.
fn crossover(options: &Options, results: &[CellResult]) -> Section {
    let mut rows = Vec::new();
    for result in results {
        for arm in result.arms.0.iter().filter(|arm| !arm.is_again()) {
            let model = model(options, result, arm);
            let (who, expected) = match result.cell.job {
                Some(_) => (arm.arm.as_str(), result.expected.says()),
                None => ("-", "all hits, if the hot set fits"),
            };
            rows.push(vec![
                result.cell.title().into(),
                expected.into(),
                who.into(),
                model.map_or(Cell::Empty, |hits| Cell::Number(hits * 100.0)),
                hits(arm),
            ]);
        }
    }
    let sizes = match options.cache {
        Some(cache) => format!(
            "The cgroup has C = {}, the hot set H = {}. Keeping a journal of J out of the cache \
             can help only where H < C < H + J: that was said before anything was measured.",
            show_size(cache),
            show_size(options.hot)
        ),
        None => "The cache has no limit, so no mode is expected to help.".into(),
    };
    let text = vec![
        sizes,
        "Beside it, the hits of a cache that evicts what was not used for the longest time (LRU), \
         at the rates of reads and writes that were measured; for direct I/O without a journal in \
         it. Linux keeps pages that were used once and pages that were used again apart, so it \
         does better with long journals and worse with short ones."
            .into(),
    ];
    let columns = [
        ("Cell", ""),
        ("Expected of keeping it out", ""),
        ("Arm", ""),
        ("LRU would hit", "%"),
        ("Hits", "%"),
    ];
    Section::new(
        "crossover",
        "Expected and measured",
        text,
        vec![table("The neighbour's hits", &columns, rows)],
    )
}

/// Hits of an LRU cache, for a mode whose use of the cache is known.
fn model(options: &Options, result: &CellResult, arm: &Measured<Sample>) -> Option<f64> {
    let journal = match (result.cell.job, arm.arm.as_str()) {
        (None, _) | (_, super::judge::DIRECT) => 0,
        (Some(super::Job::Commits), super::judge::BASE) => result.cell.journal,
        // A guest's writes outside its journal are unknown here.
        _ => return None,
    };
    let reads = middle(arm, |s| s.reads) * f64::from(READ);
    let writes = middle(arm, |s| s.operations) * f64::from(COMMIT);
    lru_hits(options.cache?, options.hot, journal, reads, writes)
}

fn hits(arm: &Measured<Sample>) -> Cell {
    spread(&arm.rounds, |s| Some(100.0 - 100.0 * s.misses)).into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use vlane_report::Block;
    use vlane_report::judge::Arms;

    use super::super::plan::{Cell as Where, Expected, Job};
    use super::super::tests::options;
    use super::*;

    fn measured(name: &str, operations: f64, misses: f64) -> Measured<Sample> {
        let sample = |round: u32| Sample {
            operations: operations + f64::from(round),
            reads: 25e3,
            misses,
            p99_us: 300.0,
            written: 6e7,
            journal_pages: Some(7),
            ..Sample::default()
        };
        Measured { arm: name.into(), rounds: (0..5).map(sample).collect() }
    }

    fn results() -> Vec<CellResult> {
        let cell = |job, journal| Where {
            job,
            journal,
            rate: None,
            throttled: true,
            delay: Duration::ZERO,
        };
        let arms = || {
            vec![
                measured("writeback", 4000.0, 0.25),
                measured("none", 3000.0, 0.0),
                measured("pdc", 4000.0, 0.0),
                measured("writeback again", 4010.0, 0.25),
            ]
        };
        vec![
            CellResult {
                cell: cell(None, 0),
                expected: Expected::Fits,
                arms: Arms(vec![measured("writeback", 0.0, 0.0)]),
                with_goals: Vec::new(),
            },
            CellResult {
                cell: cell(Some(Job::Commits), 256 << 20),
                expected: Expected::Helps,
                arms: Arms(arms()),
                with_goals: vec!["pdc".into()],
            },
        ]
    }

    #[test]
    fn tables_are_whole_with_expectations() {
        let mut options = options();
        options.cache = Some(512 << 20);
        let about = About { guests: None, replays: Vec::new(), has_device: true, is_apart: true };
        let report = fill(&options, &results(), &about, &Begun::now(""));
        let mut ids: Vec<&str> =
            report.sections.iter().map(|section| section.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), report.sections.len());
        for block in report.sections.iter().flat_map(|section| &section.blocks) {
            let Block::Table(table) = block else { continue };
            assert!(!table.rows.is_empty(), "{}", table.caption);
            assert!(
                table.rows.iter().all(|row| row.len() == table.columns.len()),
                "{}",
                table.caption
            );
        }
        let all =
            results().iter().flat_map(|r| &r.arms.0).map(|arm| arm.rounds.len()).sum::<usize>();
        assert_eq!(report.samples[0].rows.len(), all);
        let crossover = report.sections.iter().find(|section| section.id == "crossover");
        let Some(Block::Table(crossover)) = crossover.map(|section| &section.blocks[0]) else {
            panic!("a table")
        };
        let writeback = crossover.rows.iter().find(|row| row[2] == Cell::from("writeback"));
        let writeback = writeback.map(Vec::as_slice).unwrap_or_default();
        assert_eq!(writeback[1], Cell::from("keeping the journal out helps"));
        assert!(matches!(writeback[3], Cell::Number(model) if model < 99.0), "{writeback:?}");
        assert!(report.notes.iter().all(|note| note.severity == vlane_report::Severity::Info));
    }

    #[test]
    fn unlimited_or_short_run_is_marked() {
        let mut options = options();
        options.rounds = 1;
        let about = About { guests: None, replays: Vec::new(), has_device: false, is_apart: true };
        let report = fill(&options, &results(), &about, &Begun::now(""));
        let warnings =
            report.notes.iter().filter(|note| note.severity == vlane_report::Severity::Warning);
        assert_eq!(warnings.count(), 2);
    }
}
