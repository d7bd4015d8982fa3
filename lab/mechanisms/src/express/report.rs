//! The reports' common parts; each report has a file.

use super::Variant;
use super::machine::Beside;
use vlane_report::Note;
use vlane_report::build::spread;
use vlane_report::judge::Arms;

/// Above this the guest's CPU scheduler decides who is served.
const BUSY: f64 = 0.8;

/// A note on a guest's CPUs, by the first arm, where the crowd is nearly the only load. Where the
/// foreground is quick, its shell and its own start are much of the time.
pub(super) fn busy<S>(place: &str, arms: &Arms<S>, of: impl Fn(&S) -> &Beside) -> Option<Note> {
    let first = arms.0.first()?;
    let busy = spread(&first.rounds, |sample| Some(of(sample).busy))?;
    let text = format!(
        "{place}: the guest's CPUs were {:.0} % busy with {} ({:.0}-{:.0} %)",
        busy.median * 100.0,
        first.arm,
        busy.min * 100.0,
        busy.max * 100.0
    );
    Some(match busy.median > BUSY {
        true => Note::warning(format!(
            "{text}: above {:.0} % the guest's CPU scheduler decides who is served.",
            BUSY * 100.0
        )),
        false => Note::info(format!(
            "{text}. Where the foreground is quicker they are busier: its shell and its own start \
             are more of the time."
        )),
    })
}

/// The variants that were measured, in the paper's order.
pub(super) fn variants<'a, S: 'a>(all: impl Iterator<Item = &'a Arms<S>>) -> Vec<Variant> {
    let first = all.take(1).next();
    Variant::ALL
        .into_iter()
        .filter(|v| first.is_some_and(|arms| arms.arm(v.title()).is_some()))
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::path::PathBuf;
    use std::time::Duration;

    use super::super::places::{PlaceResult, Wanted};
    use super::super::root::{Program, Root};
    use super::super::{Model, machine::Place};
    use super::*;
    use vlane_report::build::Begun;
    use vlane_report::{Block, Report, Severity};

    const MODEL: Model = Model { latency: Duration::from_millis(1), parallel: 2 };

    fn wanted(rounds: usize) -> Wanted {
        Wanted {
            vlane: PathBuf::new(),
            fg: PathBuf::new(),
            command: String::new(),
            places: Place::ALL.into(),
            variants: Variant::ALL.into(),
            model: None,
            rounds,
            ramp: Duration::ZERO,
        }
    }

    fn arms<S: Clone>(names: &[&str], samples: &[S]) -> Arms<S> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut arms = Arms::named(&names);
        arms.0.iter_mut().for_each(|arm| arm.rounds = samples.to_vec());
        arms
    }

    fn is_whole(report: &Report) {
        let mut ids: Vec<&str> =
            report.sections.iter().map(|section| section.id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), report.sections.len(), "links lead to one place");
        for block in report.sections.iter().flat_map(|section| &section.blocks) {
            let Block::Table(table) = block else { continue };
            assert!(!table.rows.is_empty(), "{}", table.caption);
            assert!(
                table.rows.iter().all(|row| row.len() == table.columns.len()),
                "{}",
                table.caption
            );
        }
    }

    fn goals_of(report: &Report) -> usize {
        let goals = report.sections.iter().find(|section| section.id == "goals").unwrap();
        goals
            .blocks
            .iter()
            .map(|block| if let Block::Table(table) = block { table.rows.len() } else { 0 })
            .sum()
    }

    fn warnings(report: &Report) -> usize {
        report.notes.iter().filter(|note| note.severity == Severity::Warning).count()
    }

    #[test]
    fn guest_report_is_whole_with_cpu_limit() {
        let options =
            super::super::guests::Options { wanted: wanted(5), readers: None, reads: None };
        let titles = Variant::ALL.map(Variant::title);
        let report = |busy| {
            let beside = Beside { busy, reads: 100.0, seconds: 1.0, ..Beside::default() };
            let sample =
                super::super::guests::Sample { seconds: 2.0, beside, ..Default::default() };
            let results = Place::ALL.map(|place| PlaceResult {
                place,
                about: place.name().into(),
                disks: String::new(),
                model: MODEL,
                readers: 1,
                arms: arms(&titles, &[sample; 5]),
            });
            super::super::guests::report::fill(&options, &results, &Begun::now(""))
        };
        let (calm, busy) = (report(0.5), report(0.9));
        is_whole(&calm);
        assert_eq!((goals_of(&calm), warnings(&calm), warnings(&busy)), (2, 0, 2));
    }

    #[test]
    fn launch_report_has_goal_per_program() {
        let options = super::super::launch::Options {
            wanted: wanted(1),
            programs: Program::ALL.into(),
            readers: 1,
        };
        let sample =
            super::super::launch::Sample { seconds: vec![1.0; 5], beside: Beside::default() };
        let result = PlaceResult {
            place: Place::Uml,
            about: "uml".into(),
            disks: String::new(),
            model: MODEL,
            readers: 1,
            arms: arms(&["Vanilla", "Proposed"], &[sample]),
        };
        let root = Root::empty();
        let report =
            super::super::launch::report::fill(&options, &root, &[result], &Begun::now(""));
        is_whole(&report);
        assert_eq!((goals_of(&report), warnings(&report)), (5, 1), "one launch is too few");
        assert_eq!(report.samples[0].rows.len(), 3, "each arm, and the first one again");
    }

    /// Without think time the foreground takes more of the drive: no mode can leave it to others.
    #[test]
    fn native_report_omits_impossible_goals() {
        use super::super::native::{Load, LoadResult, Options, Sample};
        let options = Options {
            vlane: PathBuf::new(),
            command: String::new(),
            modes: super::super::Mode::ALL.into(),
            loads: Load::ALL.into(),
            queues: 8,
            readers: 512,
            think: Duration::ZERO,
            model: MODEL,
            rounds: 5,
            ramp: Duration::ZERO,
            time: Duration::ZERO,
        };
        let sample = Sample {
            p99_us: 1.0,
            mean_us: 1.0,
            background: 1.0,
            foreground: 1.0,
            ..Sample::default()
        };
        let names = super::super::Mode::ALL.map(super::super::Mode::name);
        let results = Load::ALL.map(|load| LoadResult { load, arms: arms(&names, &[sample; 5]) });
        let report = super::super::native::report::fill(&options, &results, &Begun::now(""));
        is_whole(&report);
        assert_eq!((goals_of(&report), warnings(&report)), (8, 0));
        let rounds = &report.samples[0];
        assert_eq!(rounds.rows.len(), (names.len() + 1) * Load::ALL.len() * 5);
        let p99 =
            rounds.columns.iter().position(|column| column.title == "p99" && column.unit == "us");
        assert_eq!(p99.map(|at| &rounds.rows[0][at]), Some(&vlane_report::Cell::Number(1.0)));
    }
}
