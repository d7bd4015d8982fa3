//! Report of Figure 5: the tables, charts and goals of program launches.

use vlane_error::counted;
use vlane_units::show_size;

use super::super::Variant;
use super::super::judge::{Arms, Bound, Measured, Verdict};
use super::{Options, Sample};

use super::super::report::{busy, cell, few, goals, met, samples, says, variants};
use super::super::root::Root;
use vlane_report::build::{Begun, bars, spread, table};
use vlane_report::published::{self, Published, Row};
use vlane_report::{Block, Cell, Note, Report, Section};

type PlaceResult = super::super::places::PlaceResult<Sample>;

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

/// Makes it.
pub(in super::super) fn fill(
    options: &Options,
    root: &Root,
    results: &[PlaceResult],
    begun: &Begun,
) -> Report {
    let verdicts: Vec<Verdict> = results.iter().flat_map(|result| judge(options, result)).collect();
    let mut sections = vec![goals(
        &verdicts,
        "The paper's smallest gain of a launch is 28 % (a browser), its largest 65 % (an office program).",
    )];
    sections.push(published());
    for result in results {
        sections.push(picture(options, result));
        sections.push(over_first(options, result));
        sections.push(figures(options, result));
    }
    Report {
        summary: summary(options, &verdicts, results),
        notes: notes(options, root, results),
        sections,
        samples: samples(results.iter().map(|result| (result.place.name(), &result.arms))),
        ..begun.report("express", "Foreground first: launches in a guest", &["fio"])
    }
}

/// A program's time.
fn of(program: usize) -> impl Fn(&Sample) -> Option<f64> {
    move |sample| sample.seconds.get(program).copied()
}

fn judge(options: &Options, result: &PlaceResult) -> Vec<Verdict> {
    let (place, proposed) = (result.place.name(), Variant::Proposed.title());
    let one = |(at, program): (usize, &super::super::root::Program)| {
        let goal = format!("launch of {} over Vanilla's", program.name());
        result.arms.verdict(place, proposed, &goal, Bound::AtMost(SHORTER), of(at))
    };
    options.programs.iter().enumerate().filter_map(one).collect()
}

fn summary(options: &Options, verdicts: &[Verdict], results: &[PlaceResult]) -> Vec<String> {
    let mut lines = vec![met(verdicts)];
    for result in results {
        let Some(proposed) = result.arms.arm(Variant::Proposed.title()) else { continue };
        let each = options.programs.iter().enumerate().map(|(at, program)| {
            format!("{} {}", program.name(), says(result.arms.over_first(proposed, of(at))))
        });
        let each = each.collect::<Vec<_>>().join(", ");
        lines.push(format!(
            "{}: launch times of Proposed over the first variant's: {each}.",
            result.place.name()
        ));
    }
    lines
}

fn notes(options: &Options, root: &Root, results: &[PlaceResult]) -> Vec<Note> {
    let mut notes = Vec::new();
    for result in results {
        let name = result.place.name();
        notes.push(Note::info(format!(
            "{name}: {}; {}. {} (fio, libaio, random 4 KiB reads, one request out each) read the same drive. It is a model with a queue for each thread \
             of the back end, served in turns, one request of each ({}), with an image behind it.",
            result.about,
            result.disks,
            counted(result.readers, "reader"),
            result.model.describe()
        )));
        notes.extend(busy(name, &result.arms, |s| &s.beside));
    }
    let each = options.programs.iter().map(|program| format!("`{}`", program.command()));
    notes.push(Note::info(format!(
        "The programs are this machine's, with their libraries, {} on an ext4 that is mounted read-only: {}. Each is a foreground job of bash in a pseudo-terminal, after \
         `echo 3 > /proc/sys/vm/drop_caches`; its time is the shell's, from the command to the next one. vlane-fg, with its hook in bash, raises it.",
        show_size(root.bytes),
        each.collect::<Vec<_>>().join(", ")
    )));
    if !root.versions.is_empty() {
        notes.push(Note::info(format!("Versions: {}.", root.versions.join(", "))));
    }
    notes.extend(few(options.wanted.rounds));
    notes
}

fn published() -> Section {
    let row = |(name, ratio): &(&str, f64)| Row {
        figure: format!("launch of {name}, Proposed over Vanilla"),
        published: Published::ratio(*ratio),
        here: Err("needs a desktop in the guest".into()),
    };
    let rows: Vec<_> = PUBLISHED.iter().map(row).collect();
    let text = "The paper launches desktop programs, ten times each, with a stopwatch, and gives per cent less than Vanilla: 28, 49, 64, 60 and 65 (section IV, Figure 5). \
                Other programs here: what a launch gains is the share of it that waits for the drive.";
    Section::new(
        "paper",
        "What the paper has",
        vec![text.into()],
        vec![Block::Table(published::table("Published", &rows))],
    )
}

fn picture(options: &Options, result: &PlaceResult) -> Section {
    let figures = |arm: &Measured<Sample>| {
        (0..options.programs.len()).map(|at| spread(&arm.rounds, of(at))).collect::<Vec<_>>()
    };
    let rows = result.arms.0.iter().map(|arm| (arm.arm.clone(), figures(arm))).collect();
    let categories = options.programs.iter().map(|program| program.name().to_owned()).collect();
    let caption = "Launch times: medians, with the shortest and the longest";
    let block = bars(caption, ("launch", "s"), categories, rows);
    let title = format!("Launch times in {} (Figure 5)", result.place.name());
    Section::new(format!("{}-launches", result.place.name()), &title, Vec::new(), vec![block])
}

/// Columns for the programs, after others.
fn columns<'a>(
    options: &'a Options,
    before: &[(&'a str, &'a str)],
    unit: &'a str,
) -> Vec<(&'a str, &'a str)> {
    before.iter().copied().chain(options.programs.iter().map(|program| (program.name(), unit))).collect()
}

fn over_first(options: &Options, result: &PlaceResult) -> Section {
    let row = |arm: &Measured<Sample>| -> Vec<Cell> {
        let each = (0..options.programs.len()).map(|at| result.arms.over_first(arm, of(at)).into());
        std::iter::once(arm.arm.clone().into()).chain(each).collect()
    };
    let rows = result.arms.0.iter().skip(1).map(row).collect();
    let text = "Each launch over that of the first variant in the same turn: median, smallest and largest.";
    let title = format!("Over the first variant, in {}", result.place.name());
    let block = table("Over the first variant", &columns(options, &[("Variant", "")], "x"), rows);
    Section::new(format!("{}-over-first", result.place.name()), &title, vec![text.into()], vec![block])
}

fn figures(options: &Options, result: &PlaceResult) -> Section {
    let row = |arm: &Measured<Sample>| -> Vec<Cell> {
        let each = (0..options.programs.len()).map(|at| cell(arm, of(at)));
        let beside = [
            cell(arm, |s| Some(s.beside.reads / s.beside.seconds.max(1e-3))),
            cell(arm, |s| Some(s.beside.tag_ms)),
            cell(arm, |s| Some(s.beside.busy * 100.0)),
        ];
        std::iter::once(arm.arm.clone().into()).chain(each).chain(beside).collect()
    };
    let mut titles = columns(options, &[("Variant", "")], "s");
    titles.extend([("Reads of all", "/s"), ("The background for a tag", "ms"), ("Guest's CPUs busy", "%")]);
    let rows = result.arms.0.iter().map(row).collect();
    let mut blocks = vec![table("Each variant: median of its launches (shortest-longest)", &titles, rows)];
    blocks.push(means(options, &result.arms));
    let shown: Vec<&str> =
        variants(std::iter::once(&result.arms)).iter().map(|variant| variant.title()).collect();
    let text = format!(
        "{} in turns. For a tag: fio's mean time of the call that submits a read. In it a read waits for a tag in the guest, where no back end can order anything; a busy CPU is in it, too.",
        shown.join(", ")
    );
    Section::new(result.place.name(), &result.about, vec![text], blocks)
}

/// What the paper has: means.
fn means(options: &Options, arms: &Arms<Sample>) -> vlane_report::Block {
    let mean = |arm: &Measured<Sample>, at: usize| -> Cell {
        let all: Vec<f64> = arm.rounds.iter().filter_map(of(at)).collect();
        if all.is_empty() { Cell::Empty } else { Cell::Number(all.iter().sum::<f64>() / all.len() as f64) }
    };
    let row = |arm: &Measured<Sample>| -> Vec<Cell> {
        std::iter::once(arm.arm.clone().into())
            .chain((0..options.programs.len()).map(|at| mean(arm, at)))
            .collect()
    };
    let rows = arms.0.iter().map(row).collect();
    table("Means of all launches, as the paper has them", &columns(options, &[("Variant", "")], "s"), rows)
}
