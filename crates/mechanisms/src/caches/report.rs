//! The report.

use vlane_error::counted;
use vlane_units::show_size;

use super::commits::COMMIT;
use super::judge::{AGAIN, CellResult, Measured, Verdict, middle};
use super::measure::{READ, Sample};
use super::plan::lru_hits;
use super::{About, Options};
use vlane_bench::Pin;
use vlane_report::build::{Begun, bars, spread, table};
use vlane_report::{Block, Cell, Note, Report, Samples, Section};

/// Where fewer rounds than this were measured, no figure says much.
const ENOUGH: usize = 5;
/// Guest memory charged to the back ends, of the cgroup, above which the cache was smaller than it was said to be.
const MUCH: u64 = 20;

/// Makes it.
pub(super) fn fill(options: &Options, results: &[CellResult], about: &About, begun: &Begun) -> Report {
    let verdicts: Vec<(&CellResult, Verdict)> =
        results.iter().flat_map(|result| result.verdicts().into_iter().map(move |v| (result, v))).collect();
    let mut sections = vec![crossover(options, results)];
    if !verdicts.is_empty() {
        sections.push(goals(&verdicts));
    }
    sections.extend(pictures(results));
    sections.push(over_base(results));
    sections.extend(results.iter().map(figures));
    Report {
        summary: summary(&verdicts, results),
        notes: notes(options, results, about),
        sections,
        samples: vec![samples(results)],
        ..begun.report("caches", "What a cache mode is worth", &["sqlite3"])
    }
}

/// Every round of every arm.
fn samples(results: &[CellResult]) -> Samples {
    let of_arm = |result: &CellResult, arm: &Measured| -> Vec<(Vec<Cell>, Sample)> {
        let labels =
            |round: u32| vec![result.cell.title().into(), arm.arm.clone().into(), Cell::Number(round.into())];
        (1..).zip(&arm.rounds).map(|(round, sample)| (labels(round), sample.clone())).collect()
    };
    let records = results.iter().flat_map(|r| r.arms.iter().flat_map(move |arm| of_arm(r, arm)));
    Samples::of_records("rounds", "Every round of every arm", "Cell | Arm | Round", records)
}

fn summary(verdicts: &[(&CellResult, Verdict)], results: &[CellResult]) -> Vec<String> {
    let count = |is: Option<bool>| verdicts.iter().filter(|(_, verdict)| verdict.is_met == is).count();
    let mut lines = Vec::new();
    if !verdicts.is_empty() {
        lines.push(format!(
            "Of {} goals {} are met, {} are not; of {} nothing can be said.",
            verdicts.len(),
            count(Some(true)),
            count(Some(false)),
            count(None),
        ));
    }
    for result in results.iter().filter(|result| result.cell.job.is_some()) {
        let arms = result.arms.iter().filter(|arm| !arm.arm.ends_with(AGAIN));
        let each = arms.map(|arm| {
            format!(
                "{}: {:.1} % hits, {:.0} reads/s, {:.0} operations/s",
                arm.arm,
                100.0 - 100.0 * middle(arm, |s| s.misses),
                middle(arm, |s| s.reads),
                middle(arm, |s| s.operations)
            )
        });
        lines.push(format!("{}: {}.", result.cell.title(), each.collect::<Vec<_>>().join("; ")));
    }
    lines
}

fn notes(options: &Options, results: &[CellResult], about: &About) -> Vec<Note> {
    let mut notes = Vec::new();
    match options.cache {
        None => notes.push(Note::warning(
            "Nothing limits the page cache (--no-limit): nobody evicts anything, so hits say nothing of the modes.",
        )),
        Some(bytes) => notes.push(Note::info(format!(
            "Both back ends share a memory cgroup of {}; on the whole host at most {} may be dirty.",
            show_size(bytes),
            show_size(bytes / super::DIRTY)
        ))),
    }
    if options.rounds < ENOUGH {
        notes.push(Note::warning(format!(
            "{}: fewer than {ENOUGH}, so a difference may be chance.",
            counted(options.rounds, "round")
        )));
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
            "\"Written to the disk\", also per operation, is the disk's own counter, of what anybody wrote. \"Written\" is what the volume's back end gave to the \
             page cache or wrote: a page that is written again before it is written back counts once, and all of a folio (up to 2 MiB) if a part of it is written.",
        ));
    }
    if let Some(guests) = &about.guests {
        notes.push(Note::info(format!("Guests: {guests}, ext4 with data=ordered.")));
    }
    if options.pin == Pin::Apart {
        notes.push(if about.is_apart {
            Note::info("The neighbour and its back end have half of the CPUs, the volume's back end and who writes the other half.")
        } else {
            Note::warning("There is one CPU for all: figures depend on whose turn it is.")
        });
    }
    notes.extend(about.replays.iter().map(Note::info));
    let shared = results.iter().flat_map(|r| &r.arms).flat_map(|arm| &arm.rounds).map(|s| s.shared).max();
    if let (Some(limit), Some(shared)) = (options.cache, shared)
        && shared > limit / MUCH
    {
        notes.push(Note::warning(format!(
            "Up to {} of a guest's memory was charged to the back ends: the cache was smaller by that.",
            show_size(shared)
        )));
    }
    for job in &options.jobs {
        notes.push(Note::info(format!("{}: {}.", job.name(), job.about())));
    }
    notes
}

/// What was expected, what a model says, and what came.
fn crossover(options: &Options, results: &[CellResult]) -> Section {
    let mut rows = Vec::new();
    for result in results {
        for arm in result.arms.iter().filter(|arm| !arm.arm.ends_with(AGAIN)) {
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
            "The cgroup has C = {}, the hot set H = {}. Keeping a journal of J out of the cache can help only where H < C < H + J: \
             that was said before anything was measured.",
            show_size(cache),
            show_size(options.hot)
        ),
        None => "Nothing limits the cache, so nothing is expected to help.".into(),
    };
    let text = vec![
        sizes,
        "Beside it, the hits of a cache that evicts what was not used for the longest time (LRU), at the rates of reads and writes that were measured; \
         for direct I/O without a journal in it. Linux keeps pages that were used once and pages that were used again apart, so it does better with long journals and \
         worse with short ones."
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

/// What an LRU cache would hit, for a mode of which it is known what it leaves in the cache.
fn model(options: &Options, result: &CellResult, arm: &Measured) -> Option<f64> {
    let journal = match (result.cell.job, arm.arm.as_str()) {
        (None, _) | (_, super::judge::DIRECT) => 0,
        (Some(super::Job::Commits), super::judge::BASE) => result.cell.journal,
        // What a guest writes outside its journal is not known here.
        _ => return None,
    };
    let reads = middle(arm, |s| s.reads) * f64::from(READ);
    let writes = middle(arm, |s| s.operations) * f64::from(COMMIT);
    lru_hits(options.cache?, options.hot, journal, reads, writes)
}

fn hits(arm: &Measured) -> Cell {
    spread(&arm.rounds, |s| Some(100.0 - 100.0 * s.misses)).into()
}

fn goals(verdicts: &[(&CellResult, Verdict)]) -> Section {
    let rows = verdicts.iter().map(|(result, verdict)| {
        let is_met = match verdict.is_met {
            Some(true) => "met",
            Some(false) => "NOT met",
            None => "nothing to say",
        };
        vec![
            result.cell.title().into(),
            verdict.arm.clone().into(),
            verdict.goal.into(),
            if verdict.figure.is_finite() { Cell::Number(verdict.figure) } else { Cell::Empty },
            verdict.wanted.clone().into(),
            is_met.into(),
            verdict.why.into(),
        ]
    });
    let columns = [
        ("Cell", ""),
        ("Arm", ""),
        ("Goal", ""),
        ("Figure", ""),
        ("Wanted", ""),
        ("Outcome", ""),
        ("Why", ""),
    ];
    let text = vec![
        "They are for the arms that keep the journal out of the cache and keep what a flush promises; the others are what those are held against, and an option that begins with \
         --danger- has none. The better one is the better of writeback and none in the same cell. A/A is the smallest ratio of the first arm to itself."
            .into(),
    ];
    Section::new("goals", "Goals", text, vec![table("Goals, by cell and arm", &columns, rows.collect())])
}

/// Bars over the cells.
fn pictures(results: &[CellResult]) -> Vec<Section> {
    let written: Vec<&CellResult> = results.iter().filter(|result| result.cell.job.is_some()).collect();
    let Some(first) = written.first() else { return Vec::new() };
    type Figure = fn(&Sample) -> Option<f64>;
    let of: [(&str, &str, &str, Figure); 4] = [
        ("hits", "The neighbour's hits", "%", |s| Some(100.0 - 100.0 * s.misses)),
        ("reads", "The neighbour's reads", "/s", |s| Some(s.reads)),
        ("operations", "Operations of who writes", "/s", |s| Some(s.operations)),
        ("written", "Written to the disk per operation", "KiB", |s| Some(s.written_per_operation() / 1024.0)),
    ];
    let picture = |(id, title, unit, figure): (&str, &str, &str, Figure)| {
        let categories = written.iter().map(|result| result.cell.title()).collect();
        let rows = first.arms.iter().enumerate().map(|(place, arm)| {
            let figures = written.iter().map(|result| spread(&result.arms[place].rounds, figure)).collect();
            (arm.arm.clone(), figures)
        });
        let caption = format!("{title}: medians, with the smallest and the largest of all rounds");
        Section::new(id, title, Vec::new(), vec![bars(&caption, (title, unit), categories, rows.collect())])
    };
    of.into_iter().map(picture).collect()
}

/// Every arm over the base, round by round.
fn over_base(results: &[CellResult]) -> Section {
    let mut rows = Vec::new();
    for result in results.iter().filter(|result| result.cell.job.is_some()) {
        let Some(base) = result.arms.first() else { continue };
        for arm in result.arms.iter().skip(1) {
            let pairs: Vec<(&Sample, &Sample)> = arm.rounds.iter().zip(&base.rounds).collect();
            let ratio =
                |of: fn(&Sample) -> f64| -> Cell { spread(&pairs, |(a, b)| Some(of(a) / of(b))).into() };
            rows.push(vec![
                result.cell.id().into(),
                arm.arm.clone().into(),
                ratio(|s| s.operations),
                ratio(|s| s.p99_us),
                ratio(|s| s.reads),
                ratio(Sample::written_per_operation),
                ratio(|s| s.cpu_us),
            ]);
        }
    }
    let columns = [
        ("Cell", ""),
        ("Arm", ""),
        ("Operations", "x"),
        ("p99", "x"),
        ("Reads", "x"),
        ("Written per operation", "x"),
        ("CPU per operation", "x"),
    ];
    let text = vec![
        "Each figure over that of the first arm in the same round: median, smallest and largest.".into(),
    ];
    Section::new("over-base", "Over the first arm", text, vec![table("Over the first arm", &columns, rows)])
}

/// All figures of a cell.
fn figures(result: &CellResult) -> Section {
    let rows = result.arms.iter().map(|arm| {
        let cell = |of: fn(&Sample) -> f64| -> Cell { spread(&arm.rounds, |s| Some(of(s))).into() };
        let some = |of: fn(&Sample) -> Option<f64>| -> Cell { spread(&arm.rounds, of).into() };
        let mut row: Vec<Cell> = vec![
            arm.arm.clone().into(),
            hits(arm),
            cell(|s| s.reads),
            cell(|s| s.read_p99_us),
            cell(|s| s.cpus),
            some(|s| Some(s.device_written? / 1e6)),
        ];
        if result.cell.job.is_some() {
            row.extend([
                cell(|s| s.operations),
                cell(|s| s.p99_us),
                cell(|s| s.written / 1e6),
                cell(|s| s.written_per_operation() / 1024.0),
                some(|s| pages(s.journal_pages)),
                cell(|s| s.cpu_us),
            ]);
        } else {
            row[0] = "nobody writes".into();
        }
        row
    });
    let rows: Vec<Vec<Cell>> = rows.collect();
    let mut columns = vec![
        ("Arm", ""),
        ("Hits", "%"),
        ("Reads", "/s"),
        ("p99 of reads", "us"),
        ("CPUs of both back ends", ""),
        ("Written to the disk", "MB/s"),
    ];
    if result.cell.job.is_some() {
        columns.extend([
            ("Operations", "/s"),
            ("p99", "us"),
            ("Written", "MB/s"),
            ("Written per operation", "KiB"),
            ("Journal's pages in the cache", ""),
            ("CPU per operation", "us"),
        ]);
    }
    let mut text = Vec::new();
    if let Some((low, high)) = result.same(|s| s.operations).filter(|_| result.cell.job.is_some()) {
        text.push(format!("The first arm over itself: {low:.3} to {high:.3} in operations per second."));
    }
    let block: Block = table("Each arm: median of its rounds (smallest-largest)", &columns, rows);
    Section::new(result.cell.id(), result.cell.title(), text, vec![block])
}

fn pages(pages: Option<u64>) -> Option<f64> {
    pages.map(|pages| pages as f64)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::plan::{Cell as Where, Expected, Job};
    use super::super::tests::options;
    use super::*;

    fn measured(name: &str, operations: f64, misses: f64) -> Measured {
        let sample = |round: u32| Sample {
            operations: operations + f64::from(round),
            reads: 25e3,
            misses,
            p99_us: 300.0,
            written: 6e7,
            journal_pages: Some(7),
            ..Sample::default()
        };
        Measured { arm: name.into(), has_goals: name == "pdc", rounds: (0..5).map(sample).collect() }
    }

    fn results() -> Vec<CellResult> {
        let cell = |job, journal| Where { job, journal, rate: None, throttled: true, delay: Duration::ZERO };
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
                arms: vec![measured("writeback", 0.0, 0.0)],
            },
            CellResult { cell: cell(Some(Job::Commits), 256 << 20), expected: Expected::Helps, arms: arms() },
        ]
    }

    #[test]
    fn every_table_is_whole_and_what_was_expected_stands_beside_what_came() {
        let mut options = options();
        options.cache = Some(512 << 20);
        let about = About { guests: None, replays: Vec::new(), has_device: true, is_apart: true };
        let report = fill(&options, &results(), &about, &Begun::now(""));
        let mut ids: Vec<&str> = report.sections.iter().map(|section| section.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), report.sections.len());
        for block in report.sections.iter().flat_map(|section| &section.blocks) {
            let Block::Table(table) = block else { continue };
            assert!(!table.rows.is_empty(), "{}", table.caption);
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{}", table.caption);
        }
        let all = results().iter().flat_map(|r| &r.arms).map(|arm| arm.rounds.len()).sum::<usize>();
        assert_eq!(report.samples[0].rows.len(), all);
        let Block::Table(crossover) = &report.sections[0].blocks[0] else { panic!("a table") };
        let writeback = crossover.rows.iter().find(|row| row[2] == Cell::from("writeback"));
        let writeback = writeback.map(Vec::as_slice).unwrap_or_default();
        assert_eq!(writeback[1], Cell::from("keeping the journal out helps"));
        assert!(matches!(writeback[3], Cell::Number(model) if model < 99.0), "{writeback:?}");
        assert!(report.notes.iter().all(|note| note.severity == vlane_report::Severity::Info));
    }

    #[test]
    fn a_run_without_a_limit_or_with_few_rounds_is_marked() {
        let mut options = options();
        options.rounds = 1;
        let about = About { guests: None, replays: Vec::new(), has_device: false, is_apart: true };
        let report = fill(&options, &results(), &about, &Begun::now(""));
        let warnings = report.notes.iter().filter(|note| note.severity == vlane_report::Severity::Warning);
        assert_eq!(warnings.count(), 2);
    }
}
