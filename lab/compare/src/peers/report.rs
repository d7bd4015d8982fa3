//! The comparison as a report.

use super::plan::{Contender, Metric, Row, rows};
use super::{Figures, Outcome, RowResult, judge, limit};
use vlane_error::counted;
use vlane_report::build::Begun;
use vlane_report::{
    Axis, Block, Cell, Chart, Note, Point, Report, Samples, Section, Series, Severity, Spread,
    Table,
};

/// The report of some rows.
pub fn report(outcome: &Outcome, begun: &Begun) -> Report {
    let (results, plan) = (&outcome.rows, rows());
    let planned: Vec<(&RowResult, &Row)> = results
        .iter()
        .filter_map(|result| Some((result, plan.iter().find(|row| row.id == result.row)?)))
        .collect();
    let rounds = results.iter().flat_map(|r| &r.measured.rounds).map(Vec::len).max().unwrap_or(0);
    let mut sections = vec![Section::new(
        "compared",
        "Compared",
        vec![
            "Ratios are taken pair by pair: the median of a row's pairs, with the smallest and \
             the largest. The last column shows if the difference is more than noise."
                .into(),
        ],
        vec![Block::Table(compared(&planned))],
    )];
    sections.extend(pictures(&planned));
    sections.push(Section::new(
        "figures",
        "Everything that was measured",
        Vec::new(),
        vec![Block::Table(figures(&planned))],
    ));
    let mut notes = vec![Note {
        severity: Severity::Info,
        text: "The driver plays the guest: there is no virtual machine in these figures. Back end \
               and driver have a CPU each unless a row says that they share. On a file \
               qemu-storage-daemon is measured with aio=io_uring and with aio=threads, and each \
               row takes the one that does more there."
            .into(),
    }];
    notes.extend(outcome.missing.iter().map(|text| Note::info(format!("Not measured: {text}."))));
    if rounds < 5 {
        let text = format!(
            "Measured {} each: five pairs are the least that tell a difference from noise \
             (--repeat 5).",
            counted(rounds, "time")
        );
        notes.push(Note { severity: Severity::Warning, text });
    }
    let mut summary = vec![judge::summary(results)];
    summary.extend(limit::sentence(results));
    let programs = &["qemu-storage-daemon", "fio"];
    let mut report = Report {
        summary,
        notes,
        sections,
        samples: vec![samples(results)],
        ..begun.report("peers", "vlane and qemu-storage-daemon, side by side", programs)
    };
    report
        .machine
        .versions
        .extend(outcome.fio.iter().map(|version| ("fio with libblkio".into(), version.clone())));
    report
}

/// Every single measurement.
fn samples(results: &[RowResult]) -> Samples {
    let columns = "Row | Back end | Round | Throughput [IOPS] | Data [MB/s] | p50 [us] | p99 [us] \
                   | CPU per I/O [us] | Switches per I/O | Client's CPU per I/O [us] | CPU [ms] | \
                   Switches";
    let mut rows = Vec::new();
    for result in results {
        for (name, rounds) in result.contenders.iter().zip(&result.measured.rounds) {
            for (figures, round) in rounds.iter().zip(0_u32..) {
                let mut row = vec![result.row.into(), (*name).into(), Cell::Number(round.into())];
                let f = figures;
                row.extend(
                    [f.iops, f.mb_per_second, f.p50_us, f.p99_us, f.cpu_us_per_io].map(Cell::from),
                );
                row.extend(
                    [f.switches_per_io, f.driver_cpu_us_per_io, f.cpu_ms, f.switches]
                        .map(Cell::from),
                );
                rows.push(row);
            }
        }
    }
    Samples::new(
        "rounds",
        "Every round of every back end; a value that does not apply is 0",
        columns,
        rows,
    )
}

fn compared(planned: &[(&RowResult, &Row)]) -> Table {
    let mut rows = Vec::new();
    for (result, row) in planned {
        for (claim, verdict) in row.claims.iter().zip(&result.verdicts) {
            let runs = result.measured.rounds.iter().map(Vec::len).max().unwrap_or(0);
            let spread = judge::spread(verdict, runs);
            let difference = verdict.difference.map_or(Cell::Empty, |d| Cell::Text(d.to_string()));
            rows.push(vec![
                Cell::Text(format!("{}: {}", result.title, claim.metric.name())),
                Cell::Text(verdict.of.clone()),
                verdict.over.clone().map_or(Cell::Empty, Cell::Text),
                if verdict.over.is_some() { Cell::Figure(spread) } else { Cell::Empty },
                difference,
            ]);
        }
    }
    Table::new("vlane and the others", "Row | Of | Compared with | Ratio [x] | Difference", rows)
}

/// The spread of one figure over a contender's rounds; `None` where it was not measured.
fn spread(rounds: &[Figures], of: impl Fn(&Figures) -> f64) -> Option<Spread> {
    let values: Vec<f64> = rounds.iter().map(of).collect();
    Spread::of(&values).filter(|spread| spread.max > 0.0)
}

/// Charts of the figures that the claims are about.
fn pictures(planned: &[(&RowResult, &Row)]) -> Vec<Section> {
    let groups: [(Metric, &str, &str); 3] = [
        (Metric::Iops, "throughput", "Throughput"),
        (Metric::CpuPerIo, "cpu", "CPU time of the back end per request"),
        (Metric::P50, "latency", "Median latency"),
    ];
    let mut sections = Vec::new();
    for (metric, id, title) in groups {
        // Latencies at depth 32 say how long the queue is, which the throughput says already.
        let shown = |row: &Row| match (metric, &row.load) {
            (_, None) => false,
            (Metric::P50, Some(load)) => load.depth == 1,
            _ => true,
        };
        let rows: Vec<_> = planned.iter().filter(|(_, row)| shown(row)).collect();
        let names = ["vlane", "qemu-storage-daemon", "the host itself"];
        let mut series: Vec<Series> = names.map(|name| Series::measured(name, Vec::new())).into();
        for ((result, row), place) in rows.iter().zip(0_u32..) {
            let best = row.contenders.iter().position(|(_, who)| matches!(who, Contender::Qsd(_)));
            let best = best.map(|first| judge::resolve(row, &result.measured, first));
            for ((i, (_, contender)), rounds) in
                row.contenders.iter().enumerate().zip(&result.measured.rounds)
            {
                let slot = match contender {
                    Contender::Vlane(_) if i == 0 => 0,
                    Contender::Vlane(_) => continue,
                    Contender::Qsd(_) if best == Some(i) => 1,
                    Contender::Qsd(_) => continue,
                    Contender::Loop | Contender::Fio => 2,
                };
                if let Some(y) = spread(rounds, |f| metric.of(f)) {
                    series[slot].points.push(Point { x: f64::from(place), y });
                }
            }
        }
        series.retain(|s| !s.points.is_empty());
        if series.is_empty() {
            continue;
        }
        sections.push(Section::new(
            id,
            title,
            Vec::new(),
            vec![Block::Chart(Chart::bars(
                format!("{title}: medians, with the smallest and the largest of all rounds"),
                Axis::new("", ""),
                Axis::new(title, metric.unit()),
                rows.iter().map(|(result, _)| result.title.to_string()).collect(),
                series,
            ))],
        ));
    }
    sections
}

fn figures(planned: &[(&RowResult, &Row)]) -> Table {
    let mut table = Table::new(
        "Every contender: median of its rounds (smallest-largest)",
        "Row | Back end | Throughput [IOPS] | Data [MB/s] | p50 [us] | p99 [us] | CPU per I/O \
         [us] | Switches per I/O | Client's CPU per I/O [us] | Client CPUs",
        Vec::new(),
    );
    let of: [fn(&Figures) -> f64; 7] = [
        |f| f.iops,
        |f| f.mb_per_second,
        |f| f.p50_us,
        |f| f.p99_us,
        |f| f.cpu_us_per_io,
        |f| f.switches_per_io,
        |f| f.driver_cpu_us_per_io,
    ];
    for (result, row) in planned.iter().filter(|(_, row)| row.load.is_some()) {
        for ((name, contender), rounds) in row.contenders.iter().zip(&result.measured.rounds) {
            let mut cells = vec![Cell::Text(result.title.into()), Cell::Text((*name).into())];
            for (of, index) in of.iter().zip(0..) {
                // No back end is looked at where there is none.
                let host = matches!(contender, Contender::Loop | Contender::Fio);
                let zero = index == 5 && !host && rounds.iter().all(|f| of(f) == 0.0);
                cells.push(match spread(rounds, of) {
                    Some(spread) => Cell::Figure(spread),
                    None if zero => Cell::Number(0.0),
                    None => Cell::Empty,
                });
            }
            let jobs = row.load.map_or(1, |load| load.jobs);
            cells.push(spread(rounds, |f| f.client_cpus(jobs)).into());
            table.rows.push(cells);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::Measured;
    use super::*;
    use vlane_bench::CLIENT_BOUND;

    #[test]
    fn report_has_all_rows_and_claims() {
        let results: Vec<RowResult> = rows()
            .iter()
            .map(|row| {
                let one = |i: u32| Figures {
                    iops: 1000.0 + f64::from(i),
                    p50_us: 3.0,
                    cpu_us_per_io: 1.0,
                    ..Figures::default()
                };
                let measured = Measured {
                    rounds: row.contenders.iter().map(|_| (0..5).map(one).collect()).collect(),
                };
                let verdicts =
                    row.claims.iter().map(|claim| judge::judge(row, claim, &measured)).collect();
                let contenders = row.contenders.iter().map(|(name, _)| *name).collect();
                let client_limited = if row.id == "null" { vec!["vlane"] } else { Vec::new() };
                RowResult {
                    row: row.id,
                    title: row.title,
                    contenders,
                    measured,
                    verdicts,
                    client_limited,
                }
            })
            .collect();
        let missing = vec!["fio with libblkio as a second client: made up".to_owned()];
        let outcome = Outcome { rows: results, partial: None, missing, fio: None };
        let report = report(&outcome, &Begun::now("vlane-lab compare peers"));
        assert!(report.notes.iter().any(|note| note.text.contains("second client: made up")));
        let limit = format!(
            "The client was the limit (more than {:.0} % of its CPU used)",
            CLIENT_BOUND * 100.0
        );
        assert!(
            report.summary[1].starts_with(&limit) && report.summary[1].contains("null: vlane"),
            "{:?}",
            report.summary
        );
        let claims: usize = rows().iter().map(|row| row.claims.len()).sum();
        let Some(Block::Table(table)) = report.sections[0].blocks.first() else {
            panic!("a table")
        };
        assert_eq!(table.rows.len(), claims);
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
        let compared = rows()
            .iter()
            .flat_map(|row| row.claims.clone())
            .filter(|claim| claim.over.is_some())
            .count();
        assert!(
            report.summary[0].contains(&format!("Of {compared} comparisons")),
            "{:?}",
            report.summary
        );
        assert!(
            report.notes.iter().all(|note| note.severity == Severity::Info),
            "five pairs are enough"
        );
        // Comparisons, three pictures, all figures; every load and its contenders in the last.
        assert_eq!(report.sections.len(), 5);
        // The pictures are made of the samples.
        let rounds = &report.samples[0].rows;
        let Some(Block::Chart(chart)) = report.sections[1].blocks.first() else {
            panic!("a picture")
        };
        let vlane = &chart.series[0];
        assert!(chart.categories.len() > 10 && vlane.points.len() == chart.categories.len());
        for (point, title) in vlane.points.iter().zip(&chart.categories) {
            let plan = rows();
            let row = plan.iter().find(|row| row.title == title).unwrap_or(&plan[0]);
            let is = |cells: &&Vec<Cell>| {
                cells[0] == row.id.into() && cells[1] == row.contenders[0].0.into()
            };
            let iops: Vec<f64> = rounds
                .iter()
                .filter(is)
                .map(|cells| if let Cell::Number(iops) = cells[3] { iops } else { 0.0 })
                .collect();
            assert_eq!(Spread::of(&iops), Some(point.y), "{title}");
        }
        let Some(Block::Table(all)) = report.sections[4].blocks.first() else { panic!("a table") };
        assert_eq!(
            all.rows.len(),
            rows().iter().filter(|r| r.load.is_some()).map(|r| r.contenders.len()).sum::<usize>()
        );
    }
}
