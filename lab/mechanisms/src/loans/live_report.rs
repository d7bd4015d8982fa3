//! The report of [`super::live`].

use super::figures::{Measured, Sample};
use vlane_report::judge::{Arms, Measured as Arm};
use vlane_report::stats::nearest_rank;
use vlane_report::{
    Axis, Block, Cell, Chart, Point, Report, Samples, Section, Series, Spread, Table,
};
use vlane_testbed::error::Result;

/// The report's description of the loads.
#[derive(Debug, Clone)]
pub(super) struct Labels {
    /// The loads, as in "under ...".
    pub(super) loads: Vec<String>,
    /// Their short names, for links.
    pub(super) ids: Vec<String>,
    /// Programs that took part beside vlane.
    pub(super) versions: Vec<(String, String)>,
}

/// Factor by which a response must be faster than EEVDF's, on average.
const FASTER: f64 = 10.0;
/// Permitted deviation of a share from its weight, percent.
const OFF: f64 = 3.0;

pub(super) fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

pub(super) fn number(count: u64) -> f64 {
    count as f64
}

/// Of times in ns, in ms; not a number without any.
pub(super) fn mean(times: &[u64]) -> f64 {
    ms(times.iter().sum()) / number(times.len() as u64)
}

/// Nearest rank, in ms; not a number without any.
pub(super) fn percentile(times: &[u64], percent: usize) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    nearest_rank(&sorted, percent * 10).map_or(f64::NAN, ms)
}

fn mean_ms(sample: &Sample) -> f64 {
    mean(&sample.responses)
}

fn spread(figures: &Arm<Sample>, value: impl Fn(&Sample) -> f64) -> Option<Spread> {
    let values: Vec<f64> = figures.rounds.iter().map(value).collect();
    Spread::of(&values)
}

pub(super) fn figure(figures: &Arm<Sample>, value: impl Fn(&Sample) -> f64) -> Cell {
    spread(figures, value).map_or(Cell::Empty, Cell::Figure)
}

pub(super) fn median(figures: &Arm<Sample>, value: impl Fn(&Sample) -> f64) -> f64 {
    spread(figures, value).map_or(f64::NAN, |spread| spread.median)
}

/// How far the one that is furthest off its weight is off it.
pub(super) fn furthest(sample: &Sample, weights: &[u32]) -> f64 {
    sample.off(weights).into_iter().map(f64::abs).fold(0.0, f64::max)
}

/// The same over all rounds together: what chance gave one round, it took in another.
pub(super) fn all_rounds(figures: &Arm<Sample>, guests: usize) -> Sample {
    let mut used = vec![0; guests];
    for sample in &figures.rounds {
        for (sum, ns) in used.iter_mut().zip(&sample.used) {
            *sum += ns;
        }
    }
    Sample { used, ..Sample::default() }
}

fn table(labels: &Labels, measured: &Measured, load: usize) -> Table {
    let seconds = |sample: &Sample| sample.time.as_secs_f64();
    let weights = &measured.weights;
    let rows = measured.loads[load].0.iter().map(|cell| {
        let all = all_rounds(cell, weights.len());
        vec![
            Cell::Text(cell.arm.clone()),
            figure(cell, mean_ms),
            figure(cell, |sample| percentile(&sample.responses, 50)),
            figure(cell, |sample| percentile(&sample.responses, 99)),
            figure(cell, |sample| number(sample.responses.len() as u64) / seconds(sample)),
            figure(cell, |sample| sample.off(weights)[0]),
            figure(cell, |sample| furthest(sample, weights)),
            Cell::Number(all.off(weights)[0]),
            Cell::Number(furthest(&all, weights)),
            figure(cell, |sample| {
                let asked: u64 = sample.boosts.iter().sum();
                number(sample.boosts[0]) / number(asked.max(1)) * 100.0
            }),
            figure(cell, |sample| ms(sample.daemon_ns) / seconds(sample) / 10.0),
        ]
    });
    Table::new(
        format!("Response and fairness: {}", labels.loads[load]),
        "scheduler | mean response [ms] | median [ms] | 99th percentile [ms] | I/O [/s] | \
            guest 1 off its share [%] | furthest off [%] | guest 1, all rounds [%] | \
            furthest, all rounds [%] | boosts granted [%] | scheduler's CPU [%]",
        rows.collect(),
    )
}

/// Cumulative distribution of all rounds' times.
pub(super) fn distribution_of(
    caption: &str,
    arms: &Arms<Sample>,
    times: impl Fn(&Sample) -> Vec<u64>,
) -> Chart {
    let series = arms.0.iter().map(|cell| {
        let mut all: Vec<u64> = cell.rounds.iter().flat_map(&times).collect();
        all.sort_unstable();
        let points = (1..=100_usize).filter_map(|percent| {
            let rank = (all.len() * percent).div_ceil(100).max(1);
            let x = ms(*all.get(rank - 1)?);
            Some(Point { x, y: Spread::of(&[number(percent as u64)])? })
        });
        Series::measured(cell.arm.clone(), points.collect())
    });
    Chart::steps(
        caption,
        Axis::log("response", "ms"),
        Axis::new("of all responses", "%"),
        series.collect(),
    )
}

/// Share of each guest, relative to its entitlement by weight.
pub(super) fn shares_of(arms: &Arms<Sample>, weights: &[u32]) -> Chart {
    let guests = weights.len();
    let series = arms.0.iter().map(|cell| {
        let points = (0..guests).filter_map(|guest| {
            let y = spread(cell, |sample| 100.0 + sample.off(weights)[guest])?;
            Some(Point { x: number(guest as u64), y })
        });
        Series::measured(cell.arm.clone(), points.collect())
    });
    Chart::bars(
        "CPU time, of what the weight entitles to",
        Axis::new("guest", ""),
        Axis::new("of the entitlement", "%"),
        (1..=guests).map(|guest| guest.to_string()).collect(),
        series.collect(),
    )
}

fn summary(labels: &Labels, measured: &Measured) -> Vec<String> {
    let mut lines = Vec::new();
    for (arms, under) in measured.loads.iter().zip(&labels.loads) {
        let Some(eevdf) = arms.arm("EEVDF").map(|arm| median(arm, mean_ms)) else { continue };
        for name in ["loan", "adaptive", "defaults"] {
            let Some(cell) = arms.arm(name) else { continue };
            let mean = median(cell, mean_ms);
            let off = furthest(&all_rounds(cell, measured.weights.len()), &measured.weights);
            let verdict = |met: bool| if met { "met" } else { "NOT met" };
            lines.push(format!(
                "{name}, {under}: mean response {mean:.3} ms, {:.0} times shorter than EEVDF's \
                 {eevdf:.1} ms (goal {FASTER:.0}: {}); no share is more than {off:.1} % off its \
                 weight (goal {OFF:.0} %: {}).",
                eevdf / mean,
                verdict(eevdf / mean >= FASTER),
                verdict(off <= OFF),
            ));
        }
        if let Some(cell) = arms.arm("always-boost") {
            let off = all_rounds(cell, measured.weights.len()).off(&measured.weights)[0];
            lines.push(format!("always-boost, {under}: guest 1 has {off:+.1} % of its share."));
        }
    }
    lines
}

/// Every round of every arm, under each load.
pub(super) fn samples(loads: &[String], measured: &Measured) -> Samples {
    let mut rows = Vec::new();
    for (load, arms) in loads.iter().zip(&measured.loads) {
        for cell in &arms.0 {
            for (round, sample) in (1_u64..).zip(&cell.rounds) {
                let percentile = |percent| Cell::from(percentile(&sample.responses, percent));
                let mut row =
                    vec![load.as_str().into(), cell.arm.as_str().into(), number(round).into()];
                row.extend([number(sample.responses.len() as u64).into(), mean_ms(sample).into()]);
                row.extend([50, 90, 99, 100].map(percentile));
                row.extend(sample.boosts.map(|count| Cell::from(number(count))));
                row.extend([ms(sample.daemon_ns).into(), sample.time.as_secs_f64().into()]);
                let others: u64 = sample.used.iter().skip(1).sum();
                let off = sample.off(&measured.weights).first().copied().unwrap_or(f64::NAN);
                row.extend(
                    [ms(sample.used.first().copied().unwrap_or(0)), ms(others), off]
                        .map(Into::into),
                );
                row.push(furthest(sample, &measured.weights).into());
                let times =
                    |times: &[u64]| [mean(times).into(), self::percentile(times, 99).into()];
                row.extend(times(&sample.services));
                row.extend([number(sample.jobs.len() as u64).into(), mean(&sample.jobs).into()]);
                row.push(number(sample.background).into());
                rows.push(row);
            }
        }
    }
    Samples::new(
        "rounds",
        "Every round of every scheduler",
        "load | scheduler | round | responses | mean [ms] | p50 [ms] | p90 [ms] | p99 [ms] | \
         slowest [ms] | boosts granted | denied by the policy | denied for want of budget | \
         scheduler's CPU time [ms] | time [s] | guest 1's CPU time [ms] | the others' CPU time \
         [ms] | guest 1 off its share [%] | furthest off [%] | mean service [ms] | p99 of service \
         [ms] | jobs | mean job [ms] | background's requests",
        rows,
    )
}

/// The report.
pub(super) fn make(labels: &Labels, measured: &Measured) -> Result<Report> {
    measured.check()?;
    let responses = |sample: &Sample| sample.responses.clone();
    let section = |load: usize| {
        let arms = &measured.loads[load];
        let blocks = vec![
            Block::Table(table(labels, measured, load)),
            Block::Chart(distribution_of("Responses of guest 1", arms, responses)),
            Block::Chart(shares_of(arms, &measured.weights)),
        ];
        Section::new(labels.ids[load].clone(), capitalised(&labels.loads[load]), Vec::new(), blocks)
    };
    let mut report = Report {
        summary: summary(labels, measured),
        notes: measured.notes(""),
        sections: (0..labels.loads.len()).map(section).collect(),
        samples: vec![samples(&labels.loads, measured)],
        ..measured.begun.report("loans", "Loans, live: response and fairness", &[])
    };
    report.machine.versions.extend(labels.versions.iter().cloned());
    Ok(report)
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
