//! Report of Figure 4: the tables, charts and goals of reads in guests.

use super::{Options, Sample};

use super::super::judge::{Arms, Bound, Measured, Verdict};
use super::super::report::{busy, cell, few, goals, met, picture, samples, says, variants};
use super::super::{AGAIN, Variant};
use vlane_error::counted;
use vlane_report::build::{Begun, bars, table};
use vlane_report::published::{self, Interval, Published, Row, Said};
use vlane_report::{Cell, Note, Point, Report, Section, Series, Spread};

type PlaceResult = super::super::places::PlaceResult<Sample>;

/// Of Vanilla's execution time, what Proposed may take: the paper's 15 % less.
const SHORTER: f64 = 0.85;

/// Makes it.
pub(in super::super) fn fill(options: &Options, results: &[PlaceResult], begun: &Begun) -> Report {
    type Figure = fn(&Sample) -> Option<f64>;

    let verdicts: Vec<Verdict> = results.iter().filter_map(judge).collect();
    let places: Vec<(String, &Arms<Sample>)> =
        results.iter().map(|result| (result.place.name().to_owned(), &result.arms)).collect();
    let mut sections =
        vec![goals(&verdicts, "The paper's foreground program takes 15 % less with everything (Proposed).")];
    sections.push(beside_the_paper(results));
    let pictures: [(&str, &str, (&str, &str), Figure); 4] = [
        ("execution", "Execution time (Figure 4 a)", ("time", "s"), |s| Some(s.seconds)),
        ("iops", "IOPS of the foreground (Figure 4 b)", ("IOPS", "/s"), |s| Some(s.iops)),
        ("bandwidth", "Bandwidth of the foreground (Figure 4 c)", ("bandwidth", "MB/s"), |s| {
            Some(s.mb_per_second())
        }),
        ("background", "IOPS of the background", ("IOPS", "/s"), |s| Some(s.background)),
    ];
    sections.extend(pictures.into_iter().filter_map(|(id, title, y, of)| picture(id, title, y, &places, of)));
    sections.push(over_first(results));
    sections.extend(results.iter().map(figures));
    Report {
        summary: summary(&verdicts, results),
        notes: notes(options, results),
        sections,
        samples: samples(results.iter().map(|result| (result.place.name(), &result.arms))),
        ..begun.report("express", "Foreground first: a program in a guest", &["fio"])
    }
}

fn judge(result: &PlaceResult) -> Option<Verdict> {
    let (place, proposed) = (result.place.name(), Variant::Proposed.title());
    let goal = "execution time over Vanilla's";
    result.arms.verdict(place, proposed, goal, Bound::AtMost(SHORTER), |s| Some(s.seconds))
}

fn summary(verdicts: &[Verdict], results: &[PlaceResult]) -> Vec<String> {
    let mut lines = vec![met(verdicts)];
    for result in results {
        let others = result.arms.0.iter().skip(1);
        let each = others.map(|arm| {
            let time = result.arms.over_first(arm, |s| Some(s.seconds));
            let background = result.arms.over_first(arm, |s| Some(s.background));
            format!("{}: {}, background {}", arm.arm, says(time), says(background))
        });
        let each = each.collect::<Vec<_>>().join("; ");
        lines.push(format!("{}: execution time over the first one's: {each}.", result.place.name()));
    }
    lines
}

fn notes(options: &Options, results: &[PlaceResult]) -> Vec<Note> {
    let mut notes = Vec::new();
    for result in results {
        let name = result.place.name();
        notes.push(Note::info(format!(
            "{name}: {}; {}. {} (fio, libaio, random 4 KiB reads, one request out each) beside a foreground program with {} of such. The drive is a model \
             with a queue for each thread of the back end, served in turns, one request of each: {}.",
            result.about,
            result.disks,
            counted(result.readers, "reader"),
            counted(options.reads(result.place), "read"),
            result.model.describe()
        )));
        notes.extend(busy(name, &result.arms, |s| &s.beside));
    }
    notes.push(Note::info(
        "The foreground program is a foreground job of bash in a pseudo-terminal; vlane-fg, with its hook in bash, raises it (nice, and I/O priority \
         best effort 0 unless vlane-fg says otherwise). Its time is the shell's, from the command to the next one: the program's start is in it.",
    ));
    notes.push(Note::info(
        "CPU raises the foreground in the guest, and the back end does not look: with an idle CPU there is little to be won by that. CPU+SIZE can only do \
         something where a guest has more than one queue and they differ in length.",
    ));
    notes.extend(few(options.wanted.rounds));
    notes
}

/// What was published, and what is measured, over Vanilla.
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
                let figure = format!("{}: {what}, {} over Vanilla", result.place.name(), variant.title());
                let here = whole(result, variant, of).ok_or_else(|| "no such round".to_owned());
                rows.push(Row { figure, published, here });
            };
            // Figure 4 b and c are graphs; the text says that they are like a.
            let more = Published { said: Said::More, no_change: Some(1.0) };
            row("execution time (Figure 4 a)", Published::ratio(variant.published()), |s| s.seconds);
            row("IOPS (Figure 4 b)", more, |s| s.iops);
            row("bandwidth (Figure 4 c)", more, Sample::mb_per_second);
        }
    }
    let categories = shown.iter().map(|variant| variant.title().to_owned()).collect();
    let mut block = bars("Execution time over Vanilla's", ("over Vanilla", "x"), categories, Vec::new());
    if let vlane_report::Block::Chart(chart) = &mut block {
        chart.series = series;
    }
    let text = "The paper gives per cent less than Vanilla: 9, 11, 12 and 15 (section IV). Its machine has a real NVMe drive and 12 hardware threads. It does not say \
                by how much its figures differ from run to run.";
    let table = vlane_report::Block::Table(published::table("Published and here", &rows));
    Section::new("paper", "Beside the paper", vec![text.into(), published::LEGEND.into()], vec![block, table])
}

fn over_first(results: &[PlaceResult]) -> Section {
    let mut rows = Vec::new();
    for result in results {
        for arm in result.arms.0.iter().skip(1) {
            let ratio = |of: fn(&Sample) -> Option<f64>| -> Cell { result.arms.over_first(arm, of).into() };
            rows.push(vec![
                result.place.name().into(),
                arm.arm.clone().into(),
                ratio(|s| Some(s.seconds)),
                ratio(|s| Some(s.iops)),
                ratio(|s| Some(s.p99_ms)),
                ratio(|s| Some(s.background)),
            ]);
        }
    }
    let columns = [
        ("Where", ""),
        ("Variant", ""),
        ("Execution time", "x"),
        ("IOPS", "x"),
        ("p99", "x"),
        ("Background", "x"),
    ];
    let text = "Each figure over that of the first variant in the same round: median, smallest and largest.";
    Section::new(
        "over-first",
        "Over the first variant",
        vec![text.into()],
        vec![table("Over the first variant", &columns, rows)],
    )
}

fn figures(result: &PlaceResult) -> Section {
    let row = |arm: &Measured<Sample>| -> Vec<Cell> {
        let figures: [fn(&Sample) -> f64; 10] = [
            |s| s.seconds,
            |s| s.iops,
            Sample::mb_per_second,
            |s| s.mean_ms,
            |s| s.p99_ms,
            |s| s.background,
            |s| s.beside.crowd_ms,
            |s| s.beside.tag_ms,
            |s| s.beside.in_flight,
            |s| s.beside.busy * 100.0,
        ];
        let figures = figures.into_iter().map(|of| cell(arm, |s| Some(of(s))));
        std::iter::once(arm.arm.clone().into()).chain(figures).collect()
    };
    let columns = [
        ("Variant", ""),
        ("Execution time", "s"),
        ("IOPS", "/s"),
        ("Bandwidth", "MB/s"),
        ("Mean", "ms"),
        ("p99", "ms"),
        ("Background", "/s"),
        ("Background's mean", "ms"),
        ("of it for a tag", "ms"),
        ("In flight", ""),
        ("Guest's CPUs busy", "%"),
    ];
    let rows = result.arms.0.iter().map(row).collect();
    let mut text = vec![
        "For a tag: fio's mean time of the call that submits a read. In it a read waits for a tag in the guest, where no back end can order anything; a busy CPU is in it, too."
            .into(),
    ];
    if let Some(noise) = result.arms.noise(|s| Some(s.seconds)) {
        let first = result.arms.0.first().map_or("", |arm| arm.arm.as_str());
        text.push(format!(
            "{first} over itself ({first}{AGAIN}): {} of the execution time.",
            says(Some(noise))
        ));
    }
    let block = table("Each variant: median of its rounds (smallest-largest)", &columns, rows);
    Section::new(result.place.name(), &result.about, text, vec![block])
}
