//! Report of Figure 4: reads in guests.

use super::{Options, Sample};

use super::super::Variant;
use super::super::report::{busy, variants};
use vlane_error::counted;
use vlane_report::build::{Begun, bars};
use vlane_report::experiment::{self, Experiment, Figure, Goal, Place};
use vlane_report::judge::Bound;
use vlane_report::published::{self, Interval, Published, Row, Said};
use vlane_report::{Note, Point, Report, Section, Series, Spread};

type PlaceResult = super::super::places::PlaceResult<Sample>;

/// Of Vanilla's execution time, what Proposed may take: the paper's 15 % less.
const SHORTER: f64 = 0.85;

/// The experiment, and what came of it.
struct Shown<'a> {
    options: &'a Options,
    results: &'a [PlaceResult],
}

/// Makes it.
pub(in super::super) fn fill(options: &Options, results: &[PlaceResult], begun: &Begun) -> Report {
    let tag = "For a tag: fio's mean time of the call that submits a read. In it a read waits for \
               a tag in the guest, where no back end can order anything; a busy CPU is in it, too.";
    let place = |result: &'_ PlaceResult| result.place.name().to_owned();
    let places: Vec<Place<'_, Sample>> = results
        .iter()
        .map(|result| Place {
            id: place(result),
            name: place(result),
            title: place(result),
            text: vec![format!("{}.", result.about), tag.into()],
            arms: &result.arms,
        })
        .collect();
    let empty = begun.report("express", "Foreground first: a program in a guest", &["fio"]);
    experiment::report(&Shown { options, results }, &places, empty)
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

    fn heads(&self) -> [&'static str; 2] {
        ["Where", "Variant"]
    }

    fn summary(&self) -> Vec<Figure<'_, Sample>> {
        vec![seconds(), background()]
    }

    fn rounds(&self) -> usize {
        self.options.wanted.rounds
    }

    fn notes(&self, _places: &[Place<'_, Sample>]) -> Vec<Note> {
        notes(self.options, self.results)
    }

    fn aim(&self) -> String {
        "The paper's foreground program takes 15 % less with everything (Proposed).".into()
    }

    fn goals(&self, _place: &Place<'_, Sample>) -> Vec<Goal<'_, Sample>> {
        let arm = Variant::Proposed.title().into();
        vec![Goal { arm, figure: seconds(), wanted: Bound::AtMost(SHORTER) }]
    }

    fn sections(&self, _places: &[Place<'_, Sample>]) -> Vec<Section> {
        vec![beside_the_paper(self.results)]
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
            Figure::new("Guest's CPUs busy", "%", |s: &Sample| s.beside.busy * 100.0),
        ]
    }
}

fn notes(options: &Options, results: &[PlaceResult]) -> Vec<Note> {
    let mut notes = Vec::new();
    for result in results {
        let name = result.place.name();
        notes.push(Note::info(format!(
            "{name}: {}; {}. {} (fio, libaio, random 4 KiB reads, one request out each) beside a \
             foreground program with {} of such. The drive is a model with a queue for each \
             thread of the back end, served in turns, one request of each: {}.",
            result.about,
            result.disks,
            counted(result.readers, "reader"),
            counted(options.reads(result.place), "read"),
            result.model.describe()
        )));
        notes.extend(busy(name, &result.arms, |s| &s.beside));
    }
    notes.push(Note::info(
        "The foreground program is a foreground job of bash in a pseudo-terminal; vlane-fg, with \
         its hook in bash, raises it (nice, and I/O priority best effort 0 unless vlane-fg says \
         otherwise). Its time is the shell's, from the command to the next one: the program's \
         start is in it.",
    ));
    notes.push(Note::info(
        "CPU raises the foreground in the guest, and the back end does not look: with an idle CPU \
         there is little to be won by that. CPU+SIZE can only do something where a guest has more \
         than one queue and they differ in length.",
    ));
    notes
}

/// Published and measured figures, relative to Vanilla.
fn beside_the_paper(results: &[PlaceResult]) -> Section {
    let shown: Vec<Variant> = variants(results.iter().map(|result| &result.arms));
    let mut rows = Vec::new();
    let mut series = Vec::new();
    let points = |figures: Vec<Option<Spread>>| -> Vec<Point> {
        let placed = (0_u32..).zip(figures);
        placed.filter_map(|(x, y)| Some(Point { x: x.into(), y: y? })).collect()
    };
    let said = |variant: &Variant| Spread::of(&[variant.published()]);
    series.push(Series {
        name: "published (Figure 4 a)".into(),
        predicted: false,
        published: true,
        points: points(shown.iter().map(said).collect()),
    });
    let ratio = |result: &PlaceResult, variant: &Variant| {
        let arm = result.arms.arm(variant.title())?;
        result.arms.over_first(arm, |s| Some(s.seconds))
    };
    for result in results {
        let figures = shown.iter().map(|variant| ratio(result, variant)).collect();
        series.push(Series::measured(result.place.name(), points(figures)));
    }
    let whole = |result: &PlaceResult, variant: &Variant, of: fn(&Sample) -> f64| {
        let arm = result.arms.arm(variant.title())?;
        Some(Interval::of(&result.arms.over_first(arm, |s| Some(of(s)))?))
    };
    for result in results {
        for variant in shown.iter().filter(|variant| **variant != Variant::Vanilla) {
            let mut row = |what: &str, published, of: fn(&Sample) -> f64| {
                let figure =
                    format!("{}: {what}, {} over Vanilla", result.place.name(), variant.title());
                let here = whole(result, variant, of).ok_or_else(|| "no such round".to_owned());
                rows.push(Row { figure, published, here });
            };
            // Figure 4 b and c are graphs; the text says that they are like a.
            let more = Published { said: Said::More, no_change: Some(1.0) };
            row("execution time (Figure 4 a)", Published::ratio(variant.published()), |s| {
                s.seconds
            });
            row("IOPS (Figure 4 b)", more, |s| s.iops);
            row("bandwidth (Figure 4 c)", more, Sample::mb_per_second);
        }
    }
    let categories = shown.iter().map(|variant| variant.title().to_owned()).collect();
    let mut block =
        bars("Execution time over Vanilla's", ("over Vanilla", "x"), categories, Vec::new());
    if let vlane_report::Block::Chart(chart) = &mut block {
        chart.series = series;
    }
    let text = "The paper gives per cent less than Vanilla: 9, 11, 12 and 15 (section IV). Its \
                machine has a real NVMe drive and 12 hardware threads. It does not say by how \
                much its figures differ from run to run.";
    let table = vlane_report::Block::Table(published::table("Published and here", &rows));
    Section::new(
        "paper",
        "Beside the paper",
        vec![text.into(), published::LEGEND.into()],
        vec![block, table],
    )
}
