//! Report of the measurement without a guest: tables, charts and goals.

use super::super::judge::{Arms, Bound, Measured, Verdict};
use super::super::report::{cell, few, goals, met, picture, samples, says};
use super::super::{AGAIN, Mode};
use super::{Load, LoadResult, Options, Sample};
use vlane_report::build::{Begun, table};
use vlane_report::{Cell, Note, Report, Section};

/// How many times shorter the foreground's 99th percentile has to be.
const SHORTER: f64 = 10.0;
/// Of the background's reads, what has to be left.
const BACKGROUND: f64 = 0.97;
/// Of all reads, what has to be left.
const TOTAL: f64 = 0.98;

/// Makes it.
pub(in super::super) fn fill(options: &Options, results: &[LoadResult], begun: &Begun) -> Report {
    let verdicts: Vec<Verdict> = results.iter().flat_map(|result| judge(options, result)).collect();
    let places: Vec<(String, &Arms<Sample>)> =
        results.iter().map(|result| (title(options, result), &result.arms)).collect();
    let mut sections = vec![goals(
        &verdicts,
        "They are for `on`. `order` and `shortest` are its two parts, each shown alone.",
    )];
    let y = ("99th percentile", "us");
    sections.extend(picture("p99", "The foreground's 99th percentile", y, &places, |s| Some(s.p99_us)));
    let y = ("Background", "/s");
    sections.extend(picture("background", "The background's reads", y, &places, |s| Some(s.background)));
    sections.push(over_first(options, results));
    sections.extend(results.iter().map(|result| figures(options, result)));
    Report {
        summary: summary(options, &verdicts, results),
        notes: notes(options),
        sections,
        samples: samples(results.iter().map(|result| (result.load.name(), &result.arms))),
        ..begun.report("express", "Foreground first: the back end alone", &[])
    }
}

fn title(options: &Options, result: &LoadResult) -> String {
    result.load.title(options.readers, options.queues)
}

/// How many times shorter: the first arm's time over the arm's.
fn shorter(us: f64) -> Option<f64> {
    (us > 0.0).then(|| us.recip())
}

fn judge(options: &Options, result: &LoadResult) -> Vec<Verdict> {
    type Figure = fn(&Sample) -> Option<f64>;

    let (place, on) = (title(options, result), Mode::On.name());
    let goals: [(&str, f64, Figure); 3] = [
        ("the foreground's p99: times shorter", SHORTER, |s| shorter(s.p99_us)),
        ("the background's reads", BACKGROUND, |s| Some(s.background)),
        ("all reads", TOTAL, |s| Some(s.total())),
    ];
    // Without think time a foreground that is so much quicker takes more of a drive whose rate is given: nobody could leave it to the others.
    let is_greedy = result.load == Load::Greedy;
    let goals = goals.into_iter().filter(|(goal, ..)| !is_greedy || !goal.starts_with("the background"));
    goals
        .filter_map(|(goal, least, of)| result.arms.verdict(&place, on, goal, Bound::AtLeast(least), of))
        .collect()
}

fn summary(options: &Options, verdicts: &[Verdict], results: &[LoadResult]) -> Vec<String> {
    let mut lines = vec![met(verdicts)];
    for result in results {
        let others = result.arms.0.iter().skip(1).filter(|arm| !arm.arm.ends_with(AGAIN));
        let each = others.map(|arm| {
            let p99 = result.arms.over_first(arm, |s| shorter(s.p99_us));
            let background = result.arms.over_first(arm, |s| Some(s.background));
            format!("{}: p99 {} times shorter, background {}", arm.arm, says(p99), says(background))
        });
        lines.push(format!("{}: {}.", title(options, result), each.collect::<Vec<_>>().join("; ")));
    }
    lines
}

fn notes(options: &Options) -> Vec<Note> {
    let model = options.model.describe();
    let mut notes = vec![
        Note::info(format!(
            "The drive is a model with a queue for each of the back end's threads ({}), served in turns, one request of each: {model}.",
            options.queues
        )),
        Note::info(
            "Every reader has one request of 4 KiB out. The background's have the I/O priority that a task has to which nobody gave one (best effort 4: normal); \
             the foreground's have best effort 0 (express). One thread of the driver is all of them.",
        ),
        Note::info(format!(
            "The foreground does something else for {:?} between two reads, as a program does that somebody waits for. Where it does not (\"no think time\"), it reads as much \
             more as it is quicker, of a drive whose rate is given: the background has less by that, and there is no goal for it. All reads together have one.",
            options.think
        )),
        Note::info(
            "The paper does not give figures for the back end alone: its goal here is vlane's own. The foreground's p99 with `off` is of few reads, since each waits \
             behind the crowd; their number is in the tables.",
        ),
    ];
    notes.extend(few(options.rounds));
    notes
}

fn over_first(options: &Options, results: &[LoadResult]) -> Section {
    let mut rows = Vec::new();
    for result in results {
        for arm in result.arms.0.iter().skip(1) {
            let ratio = |of: fn(&Sample) -> Option<f64>| -> Cell { result.arms.over_first(arm, of).into() };
            rows.push(vec![
                result.load.name().into(),
                arm.arm.clone().into(),
                ratio(|s| shorter(s.p99_us)),
                ratio(|s| shorter(s.mean_us)),
                ratio(|s| Some(s.background)),
                ratio(|s| Some(s.total())),
                ratio(|s| Some(s.background_p99_us)),
                ratio(|s| Some(s.cpu_us)),
            ]);
        }
    }
    let columns = [
        ("Load", ""),
        ("Arm", ""),
        ("p99: times shorter", "x"),
        ("Mean: times shorter", "x"),
        ("Background", "x"),
        ("All reads", "x"),
        ("Background's p99", "x"),
        ("CPU per read", "x"),
    ];
    let first = options.modes.first().map_or("", |mode| mode.name());
    let text = format!(
        "Each figure over that of `{first}` in the same round: median, smallest and largest. Times shorter: `{first}`'s time over the arm's."
    );
    Section::new(
        "over-first",
        "Over the first arm",
        vec![text],
        vec![table("Over the first arm", &columns, rows)],
    )
}

fn figures(options: &Options, result: &LoadResult) -> Section {
    let row = |arm: &Measured<Sample>| -> Vec<Cell> {
        let figures: [fn(&Sample) -> f64; 10] = [
            |s| s.mean_us,
            |s| s.p50_us,
            |s| s.p99_us,
            |s| s.p999_us,
            |s| s.reads,
            |s| s.foreground,
            |s| s.background,
            Sample::total,
            |s| s.background_p99_us,
            |s| s.cpu_us,
        ];
        let figures = figures.into_iter().map(|of| cell(arm, |s| Some(of(s))));
        std::iter::once(arm.arm.clone().into()).chain(figures).collect()
    };
    let columns = [
        ("Arm", ""),
        ("Mean", "us"),
        ("p50", "us"),
        ("p99", "us"),
        ("p99.9", "us"),
        ("Reads", ""),
        ("Foreground", "/s"),
        ("Background", "/s"),
        ("All", "/s"),
        ("Background's p99", "us"),
        ("CPU per read", "us"),
    ];
    let rows = result.arms.0.iter().map(row).collect();
    let block = table("Each arm: median of its rounds (smallest-largest)", &columns, rows);
    Section::new(result.load.name(), title(options, result), Vec::new(), vec![block])
}
