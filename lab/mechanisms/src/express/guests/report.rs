//! Report of Figure 4: reads in guests.

use vlane_error::counted;

use super::super::Variant;
use super::super::report::{cpus, guests, places};
use super::{Options, Sample};
use vlane_report::{Begun, Bound, Experiment, Figure, Goal, Note, Place, Report, experiment};

type PlaceResult = super::super::machine::PlaceResult<Sample>;

/// Of Vanilla's execution time, what Proposed may take: the paper's 15 % less.
const SHORTER: f64 = 0.85;

/// The experiment, and what came of it.
struct Shown<'a> {
    options: &'a Options,
    results: &'a [PlaceResult],
}

/// Makes it.
pub(in super::super) fn fill(options: &Options, results: &[PlaceResult], begun: &Begun) -> Report {
    let empty = begun.report("express", "Foreground first: a program in a guest", &["fio"]);
    experiment::report(&Shown { options, results }, &places(results), empty)
}

fn seconds() -> Figure<'static, Sample> {
    Figure::new("Execution time", "s", |s: &Sample| s.seconds)
}

fn iops() -> Figure<'static, Sample> {
    Figure::new("IOPS", "/s", |s: &Sample| s.iops)
}

fn bandwidth() -> Figure<'static, Sample> {
    Figure::new("Bandwidth", "MB/s", Sample::mb_per_second)
}

fn p99() -> Figure<'static, Sample> {
    Figure::new("p99", "ms", |s: &Sample| s.p99_ms)
}

fn background() -> Figure<'static, Sample> {
    Figure::new("Background", "/s", |s: &Sample| s.background)
}

impl Experiment for Shown<'_> {
    type Sample = Sample;
    const AIM: &'static str =
        "The paper's foreground program takes 15 % less with everything (Proposed).";

    fn summary(&self) -> Vec<Figure<'_, Sample>> {
        vec![p99()]
    }

    fn notes(&self, _places: &[Place<'_, Sample>]) -> Vec<Note> {
        let beside = |result: &PlaceResult| {
            let reads = counted(self.options.reads(result.place), "read");
            format!("a foreground program with {reads} of such")
        };
        let mut notes = guests(self.results, beside, "", |s| &s.beside);
        notes.push(Note::info(
            "The foreground program is a foreground job of bash in a pseudo-terminal; vlane-fg, \
             with its hook in bash, raises it (nice, and I/O priority best effort 0 unless \
             vlane-fg says otherwise). Its time is the shell's, from the command to the next one: \
             the program's start is in it.",
        ));
        notes
    }

    fn goals(&self, _place: &Place<'_, Sample>) -> Vec<Goal<'_, Sample>> {
        let arm = Variant::Proposed.title().into();
        vec![Goal { arm, figure: seconds(), wanted: Bound::AtMost(SHORTER) }]
    }

    fn charts(&self) -> Vec<(&'static str, &'static str, Figure<'_, Sample>)> {
        vec![
            ("execution", "Execution time (Figure 4 a)", seconds()),
            ("iops", "IOPS of the foreground (Figure 4 b)", iops()),
            ("bandwidth", "Bandwidth of the foreground (Figure 4 c)", bandwidth()),
            ("background", "IOPS of the background", background()),
        ]
    }

    fn ratios(&self) -> (&'static str, Vec<Figure<'_, Sample>>) {
        ("over-first", vec![seconds(), iops(), p99(), background()])
    }

    fn figures(&self, _place: &Place<'_, Sample>) -> Vec<Figure<'_, Sample>> {
        vec![
            seconds(),
            iops(),
            bandwidth(),
            Figure::new("Mean", "ms", |s: &Sample| s.mean_ms),
            p99(),
            background(),
            Figure::new("Background's mean", "ms", |s: &Sample| s.beside.crowd_ms),
            Figure::new("of it for a tag", "ms", |s: &Sample| s.beside.tag_ms),
            Figure::new("In flight", "", |s: &Sample| s.beside.in_flight),
            cpus(|s: &Sample| &s.beside),
        ]
    }
}
