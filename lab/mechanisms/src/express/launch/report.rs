//! Report of Figure 5: the tables, charts and goals of program launches.

use vlane_units::show_size;

use super::super::report::{cpus, guests, places};
use super::super::root::Root;
use super::super::{Variant, word};
use super::{Options, Sample};
use vlane_report::build::{Begun, bars, spread};
use vlane_report::experiment::{self, Experiment, Figure, Goal, Place};
use vlane_report::judge::{Bound, Measured};
use vlane_report::published::{self, Published, Row};
use vlane_report::{Block, Note, Report, Section};

type PlaceResult = super::super::machine::PlaceResult<Sample>;

/// Of Vanilla's launch time, what Proposed may take: the paper's smallest, 28 % less.
const SHORTER: f64 = 0.72;
/// The paper's launch times over Vanilla's (Figure 5).
const PUBLISHED: [(&str, f64); 5] = [
    ("Firefox", 0.72),
    ("the video player", 0.51),
    ("LibreOffice Writer", 0.36),
    ("LibreOffice Calc", 0.40),
    ("LibreOffice Impress", 0.35),
];

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

    fn heads(&self) -> [&'static str; 2] {
        ["Where", "Variant"]
    }

    fn summary(&self) -> Vec<Figure<'_, Sample>> {
        self.launches()
    }

    fn rounds(&self) -> usize {
        self.options.launches
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

    fn aim(&self) -> String {
        "The paper's smallest gain of a launch is 28 % (a browser), its largest 65 % (an office \
         program)."
            .into()
    }

    fn goals(&self, _place: &Place<'_, Sample>) -> Vec<Goal<'_, Sample>> {
        let goal = |figure| {
            let arm = Variant::Proposed.title().into();
            Goal { arm, figure, wanted: Bound::AtMost(SHORTER) }
        };
        self.launches().into_iter().map(goal).collect()
    }

    fn sections(&self, _places: &[Place<'_, Sample>]) -> Vec<Section> {
        let pictures = self.results.iter().map(|result| picture(self.options, result));
        std::iter::once(published()).chain(pictures).collect()
    }

    fn ratios(&self) -> (&'static str, Vec<Figure<'_, Sample>>) {
        ("over-first", self.launches())
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

fn published() -> Section {
    let row = |(name, ratio): &(&str, f64)| Row {
        figure: format!("launch of {name}, Proposed over Vanilla"),
        published: Published::ratio(*ratio),
        here: Err("needs a desktop in the guest".into()),
    };
    let rows: Vec<_> = PUBLISHED.iter().map(row).collect();
    let text = "The paper launches desktop programs, ten times each, with a stopwatch, and gives \
                per cent less than Vanilla: 28, 49, 64, 60 and 65 (section IV, Figure 5). Other \
                programs here: what a launch gains is the share of it that waits for the drive.";
    Section::new(
        "paper",
        "What the paper has",
        vec![text.into()],
        vec![Block::Table(published::table("Published", &rows))],
    )
}

fn picture(options: &Options, result: &PlaceResult) -> Section {
    let figures = |arm: &Measured<Sample>| {
        let of = |at| spread(&arm.rounds, |sample: &Sample| sample.seconds.get(at).copied());
        (0..options.programs.len()).map(of).collect::<Vec<_>>()
    };
    let rows = result.arms.0.iter().map(|arm| (arm.arm.clone(), figures(arm))).collect();
    let categories = options.programs.iter().map(|program| program.name().to_owned()).collect();
    let caption = "Launch times: medians, with the shortest and the longest";
    let block = bars(caption, ("launch", "s"), categories, rows);
    let title = format!("Launch times in {} (Figure 5)", word(result.place));
    Section::new(format!("{}-launches", word(result.place)), &title, Vec::new(), vec![block])
}
