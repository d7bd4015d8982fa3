//! The report of [`super::express`].

use std::time::Duration;

use super::figures::{Cell as Figures, Measured, Sample};
use super::live_report::{
    all_rounds, distribution_of, figure, furthest, mean, median, ms, number, percentile, samples, shares_of,
};
use vlane_error::counted;
use vlane_host::error::{Error, ErrorKind, Result};
use vlane_report::{Block, Cell, Note, Report, Section, Severity, Table};

/// What the report says of what was measured.
#[derive(Debug, Clone)]
pub(super) struct Labels {
    /// What was compared.
    pub(super) arms: Vec<String>,
    /// What was done.
    pub(super) about: String,
    /// What a reader must know before believing the figures.
    pub(super) warnings: Vec<String>,
    /// What the guests were.
    pub(super) guests: String,
    /// Rounds.
    pub(super) rounds: usize,
    /// Time of each measurement.
    pub(super) time: Duration,
    /// Reads of the foreground's that are a job.
    pub(super) reads: u64,
}

fn rows(labels: &Labels, cells: &[Figures], row: impl Fn(&Figures) -> Vec<Cell>) -> Vec<Vec<Cell>> {
    let rows = labels.arms.iter().zip(cells);
    rows.map(|(arm, cell)| [vec![Cell::Text(arm.clone())], row(cell)].concat()).collect()
}

/// What the person who waits sees.
fn foreground(labels: &Labels, cells: &[Figures]) -> Table {
    let row = |cell: &Figures| {
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
        rows(labels, cells, row),
    )
}

/// What it costs the others, and whom boosts went to.
fn others(labels: &Labels, measured: &Measured) -> Table {
    let weights = &measured.weights;
    let seconds = |sample: &Sample| sample.time.as_secs_f64();
    let row = |cell: &Figures| {
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
        rows(labels, &measured.cells[0], row),
    )
}

fn summary(labels: &Labels, cells: &[Figures]) -> Vec<String> {
    let job = |cell: &Figures| median(cell, |sample| mean(&sample.jobs));
    let response = |cell: &Figures| median(cell, |sample| mean(&sample.responses));
    let neither = job(&cells[0]);
    let line = |(arm, cell): (&String, &Figures)| {
        format!(
            "{arm}: {} reads of the foreground take {:.0} ms, {:.2} of the time with neither; mean response {:.2} ms.",
            labels.reads,
            job(cell),
            job(cell) / neither,
            response(cell),
        )
    };
    labels.arms.iter().zip(cells).map(line).collect()
}

/// The report.
pub(super) fn make(labels: &Labels, measured: &Measured) -> Result<Report> {
    let [cells] = &measured.cells[..] else {
        return Err(Error::new(ErrorKind::Process, "there is one load"));
    };
    if cells.iter().any(|cell| cell.samples.is_empty()) {
        return Err(Error::new(ErrorKind::Process, "a measurement is missing"));
    }
    let note = |severity, text: String| Note { severity, text };
    let warnings = labels.warnings.iter().map(|text| note(Severity::Warning, text.clone()));
    let facts = [
        note(Severity::Info, labels.about.clone()),
        note(
            Severity::Info,
            format!(
                "{} of {:?} each, the arms in turns; figures are medians over rounds, with the smallest and the largest. \
                 \"All rounds\" adds up everybody's CPU time over them. Execution time: of {} reads of the foreground's, one after the other, with all that is \
                 between them.",
                counted(labels.rounds, "round"),
                labels.time,
                labels.reads
            ),
        ),
    ];
    let responses = |sample: &Sample| sample.responses.clone();
    let section = Section::new(
        "express-loans",
        "A foreground program beside background readers, in a guest on an overcommitted host",
        Vec::new(),
        vec![
            Block::Table(foreground(labels, cells)),
            Block::Table(others(labels, measured)),
            Block::Chart(distribution_of("Responses of the foreground", &labels.arms, cells, responses)),
            Block::Chart(shares_of(&labels.arms, cells, &measured.weights)),
        ],
    );
    let mut report = Report {
        summary: summary(labels, cells),
        notes: warnings.chain(facts).collect(),
        sections: vec![section],
        samples: vec![samples(&["a foreground program beside readers".into()], &labels.arms, measured)],
        ..measured.begun.report("express-loans", "Express and loans", &[])
    };
    report.machine.versions.push(("guests".into(), labels.guests.clone()));
    Ok(report)
}
