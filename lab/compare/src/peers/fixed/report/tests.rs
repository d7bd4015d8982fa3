use std::time::Duration;

use vlane_guest::Install;

use super::super::{rows, verdict};
use super::*;
use crate::peers::Measured;

fn options() -> Options {
    Options {
        vlane: "vlane".into(),
        rows: Vec::new(),
        pairs: 5,
        time: Duration::from_secs(1),
        ramp: Duration::ZERO,
        install: Install::Never,
        server_cpu: None,
        driver_cpu: None,
        ram_dir: None,
        disk_dir: None,
    }
}

/// A result of every row: rates up to 10k are reached, vlane costs less at depth 4 and more at
/// depth 1.
fn outcome() -> Outcome {
    let results = rows().into_iter().map(|row| {
        let iops = if row.rate == 0 { 60_000.0 } else { f64::from(row.rate.min(10_000)) };
        let figures = |cpu_us: f64| Figures {
            iops,
            cpu_us,
            backend_cpu_us: cpu_us,
            p50_us: 20.0,
            p99_us: 30.0,
            ..Figures::default()
        };
        let rounds =
            vec![vec![figures(if row.depth == 4 { 5.0 } else { 15.0 }); 5], vec![figures(10.0); 5]];
        RowResult {
            row: row.id(),
            title: row.title(),
            contenders: vec!["vlane".into(), "qemu-storage-daemon".into()],
            over: 1,
            verdicts: vec![Some(verdict::judge(&rounds[0], &rounds[1], row.rate, 0.0)), None],
            measured: Measured { rounds },
            plan: row,
        }
    });
    Outcome {
        rows: results.collect(),
        partial: None,
        missing: vec!["instructions: not counted".into()],
        guests: Vec::new(),
        emulated: true,
        fio: Some("3.41".into()),
    }
}

#[test]
fn table_has_all_rows_picture_reached_ones() {
    let outcome = outcome();
    let report = report(&outcome, &options(), &Begun::now("vlane-lab compare peers"));
    assert_eq!(report.sections[0].blocks.len(), 2);
    for block in &report.sections[0].blocks {
        let Block::Table(table) = block else { panic!("a table") };
        assert_eq!(table.rows.len(), rows().len());
        assert!(table.rows.iter().all(|row| row.len() == table.columns.len()));
    }
    assert_eq!(report.sections.len(), 1 + groups().len());
    for section in &report.sections[1..] {
        // A row without a rate has no picture by rate.
        if section.id.ends_with("-fast") {
            assert!(matches!(&section.blocks[..], [Block::Table(_)]));
            continue;
        }
        let [Block::Chart(chart), Block::Table(_)] = &section.blocks[..] else {
            panic!("{}", section.id)
        };
        assert!(chart.series.iter().flat_map(|s| &s.points).all(|point| point.x <= 10_000.0));
        assert!(chart.series.iter().any(|s| s.name == "qemu-storage-daemon, depth 4"));
    }
    // 10 native rows at 50k or 100k... of five media and two depths are not reached.
    let native = 5 * 2 * 2;
    let reached = rows().len() - native;
    assert!(
        report.summary[0]
            .starts_with(&format!("Of {} loads both back ends reach {reached}.", rows().len()))
    );
    let not_met = report.summary.iter().filter(|text| text.starts_with("Not met: ")).count();
    assert_eq!(not_met, 5 * 2 + 3 + 2 + 1, "{:?}", report.summary);
    assert!(report.notes.iter().any(|note| note.text.contains("instructions: not counted")));
}

#[test]
fn missed_row_states_achieved_rate() {
    let outcome = outcome();
    let find = |name: &str| outcome.rows.iter().find(|result| result.row == name);
    let late = find("null-50k-d4").map(lines).unwrap_or_default();
    assert!(
        late.contains("not reached: vlane 10.0k IOPS, qemu-storage-daemon 10.0k IOPS"),
        "{late}"
    );
    let bad = find("null-1k-d1").map(lines).unwrap_or_default();
    assert!(
        bad.contains(
            "not met: CPU per I/O (CPU per I/O 1.50x (1.50x-1.50x); p50 no difference seen \
             (1.00x-1.00x)"
        ),
        "{bad}"
    );
    let text = markdown(&outcome.rows);
    let lines: Vec<_> = text.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(lines.len(), 2 * (2 + rows().len()));
    assert!(lines.iter().all(|line| line.matches('|').count() == 8), "{text}");
}
