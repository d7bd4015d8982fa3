//! Report of Figure 5: the tables, charts and goals of program launches.

use vlane_units::show_size;

use super::super::report::{cpus, guests, places};
use super::super::root::Root;
use super::super::{Variant, word};
use super::{Options, Sample};
use vlane_report::{
    Begun, Bound, Experiment, Figure, Goal, Measured, Note, Place, Report, Section, bars,
    experiment, spread,
};

type PlaceResult = super::super::machine::PlaceResult<Sample>;

/// Of Vanilla's launch time, what Proposed may take: the paper's smallest, 28 % less.
const SHORTER: f64 = 0.72;
/// The experiment, and what came of it.
struct Shown<'a> {
    options: &'a Options,
    root: &'a Root,
    results: &'a [PlaceResult],
}

/// Makes it.
pub(in super::super) fn fill(
    options: &Options,
    root: &Root,
    results: &[PlaceResult],
    begun: &Begun,
) -> Report {
    let empty = begun.report("express", "Foreground first: launches in a guest", &["fio"]);
    experiment::report(&Shown { options, root, results }, &places(results), empty)
}

impl Shown<'_> {
    /// A figure for each program: how long its launch takes.
    fn launches(&self) -> Vec<Figure<'_, Sample>> {
        let mut figures = Vec::new();
        for (at, program) in self.options.programs.iter().enumerate() {
            figures.push(Figure::maybe(program.name(), "s", move |s: &Sample| {
                s.seconds.get(at).copied()
            }));
        }
        figures
    }
}

impl Experiment for Shown<'_> {
    type Sample = Sample;
    const AIM: &'static str = "The paper's smallest gain of a launch is 28 % (a browser), its \
                               largest 65 % (an office program).";

    fn summary(&self) -> Vec<Figure<'_, Sample>> {
        self.launches()
    }

    fn notes(&self, _places: &[Place<'_, Sample>]) -> Vec<Note> {
        let beside = |_: &PlaceResult| "the programs".to_owned();
        let mut notes = guests(self.results, beside, ", with an image behind it", |s| &s.beside);
        let each = self.options.programs.iter().map(|program| format!("`{}`", program.command()));
        notes.push(Note::info(format!(
            "The programs are this machine's, with their libraries, {} on an ext4 that is mounted \
             read-only: {}. Each is a foreground job of bash in a pseudo-terminal, after `echo 3 \
             > /proc/sys/vm/drop_caches`; its time is the shell's, from the command to the next \
             one. vlane-fg, with its hook in bash, raises it.",
            show_size(self.root.bytes),
            each.collect::<Vec<_>>().join(", ")
        )));
        if !self.root.versions.is_empty() {
            notes.push(Note::info(format!("Versions: {}.", self.root.versions.join(", "))));
        }
        notes
    }

    fn goals(&self, _place: &Place<'_, Sample>) -> Vec<Goal<'_, Sample>> {
        let goal = |figure| {
            let arm = Variant::Proposed.title().into();
            Goal { arm, figure, wanted: Bound::AtMost(SHORTER) }
        };
        self.launches().into_iter().map(goal).collect()
    }

    fn sections(&self, _places: &[Place<'_, Sample>]) -> Vec<Section> {
        let programs = &self.options.programs;
        let picture = |result: &PlaceResult| {
            let of =
                |arm: &Measured<Sample>, at| spread(&arm.rounds, |s| s.seconds.get(at).copied());
            let arms = result.arms.0.iter();
            let rows = arms
                .map(|arm| (arm.arm.clone(), (0..programs.len()).map(|at| of(arm, at)).collect()))
                .collect();
            let categories = programs.iter().map(|program| program.name()).collect();
            let caption = "Launch times: medians, with the shortest and the longest";
            let block = bars(caption, ("launch", "s"), categories, rows);
            let place = word(result.place);
            let title = format!("Launch times in {place} (Figure 5)");
            Section::new(format!("{place}-launches"), title, Vec::new(), vec![block])
        };
        self.results.iter().map(picture).collect()
    }

    fn figures(&self, _place: &Place<'_, Sample>) -> Vec<Figure<'_, Sample>> {
        let mut figures = self.launches();
        figures.extend([
            Figure::new("Reads of all", "/s", |s: &Sample| {
                s.beside.reads / s.beside.seconds.max(1e-3)
            }),
            Figure::new("The background for a tag", "ms", |s: &Sample| s.beside.tag_ms),
            cpus(|s: &Sample| &s.beside),
        ]);
        figures
    }
}
