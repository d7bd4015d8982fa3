//! The report.

use vlane_error::counted;
use vlane_units::show_size;

use super::Options;
use super::judge::{CellResult, steady};
use super::measure::{SETTLED, Sample};
use super::plan::Job;
use vlane_report::{
    Arms, Begun, Experiment, Figure, Measured, Note, Place, Report, Section, Verdict, experiment,
    spread, table,
};

/// Guest memory charged to the back ends, of the cgroup, above which the cache was smaller than it
/// was said to be.
const MUCH: u64 = 20;

/// The experiment, and what came of it.
pub(super) struct Shown<'a> {
    pub(super) options: Options,
    pub(super) results: &'a [CellResult],
    /// Version of the guests, if there were any.
    pub(super) guests: Option<String>,
    /// The replayed traces.
    pub(super) replays: Vec<String>,
    /// True if neighbour and writer had CPUs of their own.
    pub(super) is_apart: bool,
}

/// Hits, reads, operations, their p99, what they write, their CPU time: of steady rounds.
fn figures() -> [Figure<'static, Sample>; 6] {
    // By the disk's own counter, where there is one.
    let written =
        |s: &Sample| s.device_written.unwrap_or(s.written) / s.operations.max(1e-9) / 1024.0;
    [
        of_steady("Hits", "%", |s: &Sample| 100.0 - 100.0 * s.misses),
        of_steady("Reads", "/s", |s: &Sample| s.reads),
        of_steady("Operations", "/s", |s: &Sample| s.operations),
        of_steady("p99", "us", |s: &Sample| s.p99_us),
        of_steady("Written per operation", "KiB", written),
        of_steady("CPU per operation", "us", |s: &Sample| s.cpu_us),
    ]
}

/// A figure that only rounds without moving hits have.
fn of_steady(
    title: &str,
    unit: &'static str,
    of: impl Fn(&Sample) -> f64 + 'static,
) -> Figure<'static, Sample> {
    Figure::maybe(title, unit, move |sample| steady(sample, &of))
}

impl Shown<'_> {
    /// The report.
    pub(super) fn report(&self, begun: &Begun) -> Report {
        let place = |result| {
            let CellResult { cell, arms, .. }: &CellResult = result;
            Place { id: cell.id(), name: cell.id(), title: cell.id(), text: Vec::new(), arms }
        };
        let places: Vec<Place<'_, Sample>> = self.results.iter().map(place).collect();
        let empty = begun.report("caches", "What a cache mode is worth", &["sqlite3"]);
        experiment::report(self, &places, empty)
    }

    fn told(&self) -> Vec<Note> {
        let mut notes = Vec::new();
        if self.options.no_limit {
            let text = "The page cache has no limit (--no-limit): no page is evicted, so hits do \
                        not show the modes' effect.";
            notes.push(Note::warning(text));
        }
        if self.is_short() {
            let text = format!(
                "The windows last less than {} s: hits may still move, and no goal is judged.",
                SETTLED.as_secs()
            );
            notes.push(Note::warning(text));
        }
        let of_cell = |r: &CellResult| moving(&r.cell.id(), &r.arms, Sample::is_steady);
        notes.extend(self.results.iter().flat_map(of_cell));
        if let Some(version) = &self.guests {
            let text = format!("Guests: User-Mode Linux {version}, ext4 with data=ordered.");
            notes.push(Note::info(text));
        }
        if !self.is_apart {
            let text = "There is one CPU for all: figures depend on the order of turns.";
            notes.push(Note::warning(text));
        }
        notes.extend(self.replays.iter().map(Note::info));
        let rounds = self.results.iter().flat_map(|r| &r.arms.0).flat_map(|arm| &arm.rounds);
        if let (Some(limit), Some(shared)) = (self.options.limit(), rounds.map(|s| s.shared).max())
            && shared > limit / MUCH
        {
            notes.push(Note::warning(format!(
                "Up to {} of a guest's memory was charged to the back ends: the cache was smaller \
                 by that.",
                show_size(shared)
            )));
        }
        let about = |job: &Job| Note::info(format!("{}: {}.", job.name(), job.about()));
        notes.extend(self.options.jobs.iter().map(about));
        notes
    }

    /// True if no goal can be judged.
    fn is_short(&self) -> bool {
        self.options.time < SETTLED
    }

    /// Expected effect, and the result.
    fn crossover(&self) -> Section {
        let mut rows = Vec::new();
        for result in self.results {
            for arm in result.arms.0.iter().filter(|arm| !arm.is_again()) {
                rows.push(vec![
                    result.cell.id().into(),
                    result.expected.says().into(),
                    arm.arm.as_str().into(),
                    spread(&arm.rounds, |s| steady(s, |s| 100.0 - 100.0 * s.misses)).into(),
                ]);
            }
        }
        let text = match self.options.limit().map(show_size) {
            Some(cache) => format!(
                "The cgroup has C = {cache}, the hot set H = {}. Keeping a journal of J out of the \
                 cache can help only where H < C < H + J: that is known from the sizes alone.",
                show_size(self.options.hot)
            ),
            None => "The cache has no limit, so no mode is expected to help.".into(),
        };
        let columns = "Cell | Expected of keeping it out | Arm | Hits [%]";
        let blocks = vec![table("The neighbour's hits", columns, rows)];
        Section::new("crossover", "Expected and measured", vec![text], blocks)
    }
}

/// Warnings of a place's arms whose hits moved in some rounds.
pub(crate) fn moving<S>(place: &str, arms: &Arms<S>, is_steady: impl Fn(&S) -> bool) -> Vec<Note> {
    let of_arm = |arm: &Measured<S>| {
        let moving = arm.rounds.iter().filter(|sample| !is_steady(sample)).count();
        let text = format!(
            "{place}, {}: hits still moved in {moving} of {}, so this arm has no figures; a longer \
             --ramp may help.",
            arm.arm,
            counted(arm.rounds.len(), "round")
        );
        (moving > 0).then(|| Note::warning(text))
    };
    arms.0.iter().filter_map(of_arm).collect()
}

impl Experiment for Shown<'_> {
    type Sample = Sample;
    const HEADS: [&'static str; 2] = ["Cell", "Arm"];
    const AIM: &'static str = "They are for the arms that keep the journal out of the cache and \
                               keep what a flush promises; the others are what those are held \
                               against, and an option that begins with --danger- has none. The \
                               better one is the better of writeback and none in the same cell.";

    fn summary(&self) -> Vec<Figure<'_, Sample>> {
        let [_, _, _, p99, ..] = figures();
        vec![p99]
    }

    fn notes(&self, _places: &[Place<'_, Sample>]) -> Vec<Note> {
        self.told()
    }

    fn judge(&self, place: &Place<'_, Sample>) -> Vec<Verdict> {
        let result = self.results.iter().find(|result| result.cell.id() == place.id);
        let mut verdicts = result.map_or_else(Vec::new, CellResult::verdicts);
        if self.is_short() {
            verdicts.iter_mut().for_each(|verdict| verdict.void = "the windows are too short");
        }
        verdicts
    }

    fn sections(&self, _places: &[Place<'_, Sample>]) -> Vec<Section> {
        vec![self.crossover()]
    }

    fn charts(&self) -> Vec<(&'static str, &'static str, Figure<'_, Sample>)> {
        let [hits, reads, operations, _, written, _] = figures();
        vec![
            ("hits", "The neighbour's hits", hits),
            ("reads", "The neighbour's reads", reads),
            ("operations", "Operations of who writes", operations),
            ("written", "Written to the disk per operation", written),
        ]
    }

    fn ratios(&self) -> (&'static str, Vec<Figure<'_, Sample>>) {
        let [_, reads, operations, p99, written, cpu] = figures();
        ("over-base", vec![operations, p99, reads, written, cpu])
    }

    fn figures(&self, _place: &Place<'_, Sample>) -> Vec<Figure<'_, Sample>> {
        let [hits, reads, operations, p99, written, cpu] = figures();
        let on_disk = |s: &Sample| Some(s.device_written? / 1e6);
        let pages = |s: &Sample| Some(s.journal_pages? as f64);
        vec![
            hits,
            Figure::new("Hits moved", "points", |s: &Sample| -100.0 * s.moved),
            Figure::new("Ramp", "s", |s: &Sample| s.ramp),
            reads,
            of_steady("p99 of reads", "us", |s: &Sample| s.read_p99_us),
            Figure::new("CPUs of both back ends", "", |s: &Sample| s.cpus),
            Figure::maybe("Written to the disk", "MB/s", on_disk),
            operations,
            p99,
            Figure::new("Written", "MB/s", |s: &Sample| s.written / 1e6),
            written,
            Figure::maybe("Journal's pages in the cache", "", pages),
            cpu,
        ]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::Duration;

    use vlane_report::{Block, Cell, Severity};

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
        let cell =
            |journal| Where { job: Job::Commits, journal, rate: None, delay: Duration::ZERO };
        let arms = || {
            vec![
                measured("writeback", 4000.0, 0.25),
                measured("none", 3000.0, 0.0),
                measured("pdc", 4000.0, 0.0),
                measured("writeback again", 4010.0, 0.25),
            ]
        };
        vec![
            CellResult { cell: cell(64 << 20), expected: Expected::Fits, arms: Arms(arms()) },
            CellResult { cell: cell(256 << 20), expected: Expected::Helps, arms: Arms(arms()) },
        ]
    }

    fn shown<'a>(words: &[&str], results: &'a [CellResult]) -> Shown<'a> {
        let (options, replays) = (options(words), Vec::new());
        Shown { options, results, guests: None, replays, is_apart: true }
    }

    #[test]
    fn tables_are_whole_with_expectations() {
        let results = results();
        let report = shown(&[], &results).report(&Begun::now(""));
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
        let all = results.iter().flat_map(|r| &r.arms.0).map(|arm| arm.rounds.len()).sum::<usize>();
        assert_eq!(report.samples[0].rows.len(), all);
        let crossover = report.sections.iter().find(|section| section.id == "crossover");
        let Some(Block::Table(crossover)) = crossover.map(|section| &section.blocks[0]) else {
            panic!("a table")
        };
        let writeback = crossover.rows.iter().rfind(|row| row[2] == Cell::from("writeback"));
        let writeback = writeback.map(Vec::as_slice).unwrap_or_default();
        assert_eq!(writeback[1], Cell::from("keeping the journal out helps"));
        assert!(
            matches!(&writeback[3], Cell::Figure(hits) if hits.median == 75.0),
            "{writeback:?}"
        );
        assert!(report.notes.iter().all(|note| note.severity == Severity::Info));
    }

    #[test]
    fn moving_rounds_have_no_figures() {
        let mut results = results();
        results[1].arms.0[2].rounds[..3].iter_mut().for_each(|round| round.moved = 0.02);
        let report = shown(&[], &results).report(&Begun::now(""));
        let warnings = report.notes.iter().filter(|note| note.severity == Severity::Warning);
        let texts: Vec<_> = warnings.map(|note| note.text.as_str()).collect();
        assert_eq!(texts.len(), 1, "{texts:?}");
        assert!(texts[0].starts_with("commits-256m-unbounded, pdc: hits still moved in 3 of 5"));
        let goals = report.sections.iter().find(|section| section.id == "goals").unwrap();
        let Block::Table(goals) = &goals.blocks[0] else { panic!("a table") };
        for row in &goals.rows {
            let is_moving = row[6] == Cell::from("inconclusive: hits still moved in the windows");
            let is_of_moving_hits = row[0] == Cell::from("commits-256m-unbounded")
                && row[2] != Cell::from("the journal's pages in the cache, the most");
            assert_eq!(is_moving, is_of_moving_hits, "{row:?}");
        }
    }

    #[test]
    fn short_windows_judge_no_goal() {
        let results = results();
        let report = shown(&["--time=29s"], &results).report(&Begun::now(""));
        assert!(report.summary[0].contains(" 0 are met, 0 are not"), "{}", report.summary[0]);
    }

    #[test]
    fn unlimited_or_short_run_is_marked() {
        let mut results = results();
        results.iter_mut().for_each(|result| result.arms.keep(1));
        let report = shown(&["--no-limit"], &results).report(&Begun::now(""));
        let warnings = report.notes.iter().filter(|note| note.severity == Severity::Warning);
        assert_eq!(warnings.count(), 2);
    }
}
