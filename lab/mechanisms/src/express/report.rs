//! The reports' common parts; each report has a file.

use super::machine::{Beside, PlaceResult};
use super::word;
use vlane_error::counted;
use vlane_report::{Figure, Note, Place, spread};

/// Above this the guest's CPU scheduler decides who is served.
const BUSY: f64 = 0.8;

/// The places of the results, one for each guest.
pub(super) fn places<S>(results: &[PlaceResult<S>]) -> Vec<Place<'_, S>> {
    let tag = "For a tag: fio's mean time of the call that submits a read. In it a read waits for \
               a tag in the guest, where no back end can order anything; a busy CPU is in it, too.";
    let mut places = Vec::new();
    for PlaceResult { place, about, arms, .. } in results {
        let (name, text) = (word(*place), vec![format!("{about}."), tag.into()]);
        places.push(Place { id: name.clone(), title: name.clone(), name, text, arms });
    }
    places
}

/// Two notes on each guest. The first is on its crowd; `beside` names the measured program, and
/// `drive` adds to the words on its drive.
///
/// The second is on its CPUs, by the first arm, where the crowd is nearly the only load. Where the
/// foreground is quick, its shell and its own start are much of the time.
pub(super) fn guests<S>(
    results: &[PlaceResult<S>],
    beside: impl Fn(&PlaceResult<S>) -> String,
    more: &str,
    of: impl Fn(&S) -> &Beside,
) -> Vec<Note> {
    let mut notes = Vec::new();
    for result in results {
        let PlaceResult { place, about, disks, drive, readers, arms, .. } = result;
        let (name, beside) = (word(*place), beside(result));
        let readers = counted(*readers, "reader");
        notes.push(Note::info(format!(
            "{name}: {about}; {disks}. {readers} (fio, libaio, random 4 KiB reads, one request \
             out each) beside {beside}. The drive is {drive}{more}."
        )));
        let first = arms.0.first();
        let used = first.and_then(|first| spread(&first.rounds, |s| Some(of(s).busy * 100.0)));
        let (Some(first), Some(busy)) = (first, used) else { continue };
        let text = format!(
            "{name}: the guest's CPUs were {:.0} % busy with {} ({:.0}-{:.0} %)",
            busy.median, first.arm, busy.min, busy.max
        );
        notes.push(match busy.median > BUSY * 100.0 {
            true => Note::warning(format!(
                "{text}: above {:.0} % the guest's CPU scheduler decides who is served.",
                BUSY * 100.0
            )),
            false => Note::info(format!(
                "{text}. Where the foreground is quicker they are busier: its shell and its own \
                 start are more of the time."
            )),
        });
    }
    notes
}

/// CPU time of the guest.
pub(super) fn cpus<'a, S>(of: impl Fn(&S) -> &Beside + 'a) -> Figure<'a, S> {
    Figure::new("Guest's CPUs busy", "%", move |sample: &S| of(sample).busy * 100.0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use clap::{Args, ValueEnum};
    use vlane_testbed::Machines;

    use super::super::root::Root;
    use super::super::{Mode, Variant, fsync, guests, launch, native};
    use super::*;
    use vlane_report::{Arms, Begun, Block, Report, Severity};

    /// Options as they are without any words.
    fn usual<O: Args>(words: &[&str]) -> O {
        let command = O::augment_args(clap::Command::new("test").no_binary_name(true));
        O::from_arg_matches(&command.get_matches_from(words)).unwrap()
    }

    fn arms<S: Clone>(names: &[&str], samples: &[S]) -> Arms<S> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut arms = Arms::named(&names);
        arms.0.iter_mut().for_each(|arm| arm.rounds = samples.to_vec());
        arms
    }

    fn result<S: Clone>(place: Machines, names: &[&str], samples: &[S]) -> PlaceResult<S> {
        PlaceResult {
            place,
            about: word(place),
            disks: String::new(),
            drive: "a model".into(),
            readers: 1,
            arms: arms(names, samples),
            recorded: Vec::new(),
        }
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
        let titles: Vec<_> = Variant::value_variants().iter().map(|v| v.title()).collect();
        let report = |busy| {
            let beside = Beside { busy, reads: 100.0, seconds: 1.0, ..Beside::default() };
            let sample = guests::Sample { seconds: 2.0, beside, ..Default::default() };
            let results =
                [Machines::Uml, Machines::Qemu].map(|place| result(place, &titles, &[sample; 5]));
            guests::report::fill(&usual(&[]), &results, &Begun::now(""))
        };
        let (calm, busy) = (report(0.5), report(0.9));
        is_whole(&calm);
        assert_eq!((goals_of(&calm), warnings(&calm), warnings(&busy)), (2, 0, 2));
    }

    #[test]
    fn launch_report_has_goal_per_program() {
        let sample = launch::Sample { seconds: vec![1.0; 5], beside: Beside::default() };
        let result = result(Machines::Uml, &["Vanilla", "Proposed"], &[sample]);
        let (options, root) = (usual(&["--launches", "1"]), Root::empty());
        let report = launch::report::fill(&options, &root, &[result], &Begun::now(""));
        is_whole(&report);
        assert_eq!((goals_of(&report), warnings(&report)), (5, 1), "one launch is too few");
        assert_eq!(report.samples[0].rows.len(), 3, "each arm, and the first one again");
    }

    #[test]
    fn fsync_report_judges_losses_and_times() {
        let beside = Beside { seconds: 1.0, written: 8192.0, ..Beside::default() };
        let times = guests::Sample { p50_ms: 20.0, p99_ms: 40.0, ..Default::default() };
        let sample = guests::Sample { background: 100.0, beside, ..times };
        let report = |words: &[&str]| {
            let mut result = result(Machines::Uml, &["Vanilla", "Proposed"], &[sample; 5]);
            result.arms.0[1].rounds.iter_mut().for_each(|s| (s.p50_ms, s.p99_ms) = (5.0, 30.0));
            fsync::report::fill(&usual(words), &[result], &Begun::now(""))
        };
        let (usual, with_syncs) = (report(&[]), report(&["--background-sync"]));
        is_whole(&usual);
        assert_eq!((goals_of(&usual), goals_of(&with_syncs), warnings(&usual)), (3, 4, 0));
        let expected = "uml, Proposed relative to Vanilla: Fsync p99 0.75 (0.75-0.75), Fsync p50 \
                        0.25 (0.25-0.25), no difference seen in Reads.";
        let met = "Of 3 goals 2 are met, 1 are not; of 0 nothing can be said.";
        assert_eq!(usual.summary, [met, expected]);
        let flushes = "a flush takes no time there";
        let says = |report: &Report| report.notes.iter().any(|note| note.text.contains(flushes));
        assert!(says(&usual) && !says(&report(&["--disk-dir", "/images"])));
    }

    /// Without think time the foreground takes more of the drive: no mode can leave it to others.
    #[test]
    fn native_report_omits_impossible_goals() {
        use native::{Load, Sample};
        let sample = Sample {
            p99_us: 1.0,
            mean_us: 1.0,
            background: 1.0,
            foreground: 1.0,
            ..Sample::default()
        };
        let names: Vec<_> = Mode::value_variants().iter().copied().map(word).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let results: Vec<_> =
            Load::value_variants().iter().map(|load| (*load, arms(&names, &[sample; 5]))).collect();
        let report = native::report::fill(&usual(&[]), &results, &Begun::now(""));
        is_whole(&report);
        assert_eq!((goals_of(&report), warnings(&report)), (8, 0));
        let rounds = &report.samples[0];
        assert_eq!(rounds.rows.len(), (names.len() + 1) * 3 * 5);
        let p99 =
            rounds.columns.iter().position(|column| column.title == "p99" && column.unit == "us");
        assert_eq!(p99.map(|at| &rounds.rows[0][at]), Some(&vlane_report::Cell::Number(1.0)));
    }
}
