//! The report of [`super::express`].

use super::figures::{Measured, Sample};
use super::live_report::{
    all_rounds, distribution_of, figure, furthest, mean, median, ms, number, percentile, samples,
    shares_of,
};
use vlane_report::judge::{Arms, Measured as Arm};
use vlane_report::{Block, Cell, Report, Section, Table};
use vlane_testbed::error::{Error, ErrorKind, Result};

/// A row for each arm.
fn rows(arms: &Arms<Sample>, row: impl Fn(&Arm<Sample>) -> Vec<Cell>) -> Vec<Vec<Cell>> {
    let rows = arms.0.iter();
    rows.map(|arm| [vec![Cell::Text(arm.arm.clone())], row(arm)].concat()).collect()
}

/// Figures of the foreground.
fn foreground(arms: &Arms<Sample>) -> Table {
    let row = |cell: &Arm<Sample>| {
        vec![
            figure(cell, |sample| mean(&sample.jobs)),
            figure(cell, |sample| mean(&sample.responses)),
            figure(cell, |sample| percentile(&sample.responses, 50)),
            figure(cell, |sample| percentile(&sample.responses, 99)),
            figure(cell, |sample| mean(&sample.services)),
            figure(cell, |sample| percentile(&sample.services, 99)),
        ]
    };
    Table::new(
        "The foreground",
        "arm | execution time [ms] | mean response [ms] | median response [ms] | \
            99th percentile [ms] | mean service [ms] | 99th percentile of service [ms]",
        rows(arms, row),
    )
}

/// Cost to the others, and the receivers of boosts.
fn others(arms: &Arms<Sample>, weights: &[u32]) -> Table {
    let seconds = |sample: &Sample| sample.time.as_secs_f64();
    let row = |cell: &Arm<Sample>| {
        let all = all_rounds(cell, weights.len());
        vec![
            figure(cell, |sample| number(sample.services.len() as u64) / seconds(sample)),
            figure(cell, |sample| number(sample.background) / seconds(sample)),
            figure(cell, |sample| sample.off(weights)[0]),
            figure(cell, |sample| furthest(sample, weights)),
            Cell::Number(furthest(&all, weights)),
            figure(cell, |sample| number(sample.boosts[0]) / seconds(sample)),
            figure(cell, |sample| {
                let asked: u64 = sample.boosts.iter().sum();
                number(sample.boosts[0]) / number(asked.max(1)) * 100.0
            }),
            figure(cell, |sample| ms(sample.daemon_ns) / seconds(sample) / 10.0),
        ]
    };
    Table::new(
        "The background, and the other guests",
        "arm | foreground [reads/s] | background [reads/s] | guest 1 off its share [%] | \
            furthest off [%] | furthest, all rounds [%] | boosts [/s] | boosts granted [%] | \
            scheduler's CPU [%]",
        rows(arms, row),
    )
}

fn summary(arms: &Arms<Sample>, reads: u64) -> Vec<String> {
    let job = |cell: &Arm<Sample>| median(cell, |sample| mean(&sample.jobs));
    let response = |cell: &Arm<Sample>| median(cell, |sample| mean(&sample.responses));
    let neither = arms.0.first().map_or(f64::NAN, job);
    let line = |cell: &Arm<Sample>| {
        format!(
            "{}: {reads} reads of the foreground take {:.0} ms, {:.2} of the time with neither; \
             mean response {:.2} ms.",
            cell.arm,
            job(cell),
            job(cell) / neither,
            response(cell),
        )
    };
    arms.0.iter().map(line).collect()
}

/// The report; a job of the foreground is so many reads.
pub(super) fn make(measured: &Measured, guests: &str, reads: u64) -> Result<Report> {
    measured.check()?;
    let [arms] = &measured.loads[..] else {
        return Err(Error::new(ErrorKind::Process, "there is one load"));
    };
    let more = format!(
        " Execution time: of {reads} reads of the foreground's, one after the other, with all \
         that is between them."
    );
    let responses = |sample: &Sample| sample.responses.clone();
    let section = Section::new(
        "express-loans",
        "A foreground program beside background readers, in a guest on an overcommitted host",
        Vec::new(),
        vec![
            Block::Table(foreground(arms)),
            Block::Table(others(arms, &measured.weights)),
            Block::Chart(distribution_of("Responses of the foreground", arms, responses)),
            Block::Chart(shares_of(arms, &measured.weights)),
        ],
    );
    let mut report = Report {
        summary: summary(arms, reads),
        notes: measured.notes(&more),
        sections: vec![section],
        samples: vec![samples(&["a foreground program beside readers".into()], measured)],
        ..measured.begun.report("express-loans", "Express and loans", &[])
    };
    report.machine.versions.push(("guests".into(), guests.to_owned()));
    Ok(report)
}
