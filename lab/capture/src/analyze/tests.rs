#![allow(clippy::unwrap_used)]

use vlane_trace::{Header, Priority, Record, RequestKind};

use super::super::Trace;
use super::analyze;
use vlane_report::{Block, Cell, Report};

fn record(kind: RequestKind, submit: u64, service: u64, sector: u64, priority: u32) -> Record {
    let sectors = if kind == RequestKind::Flush { 0 } else { 8 };
    let record = crate::import::record(kind, submit, sector, sectors);
    Record { service, priority: Priority(priority), ..record }
}

/// The cell of a table's row that begins with `row`, in the column `column` (the first of that
/// name).
fn cell(report: &Report, section: &str, row: &str, column: &str) -> f64 {
    let section = report.sections.iter().find(|s| s.id == section).unwrap();
    let tables = section.blocks.iter().filter_map(|block| match block {
        Block::Table(table) => Some(table),
        Block::Chart(_) => None,
    });
    for table in tables {
        let place = table.columns.iter().position(|c| c.title == column);
        let row = table.rows.iter().find(|cells| cells[0] == Cell::Text(row.into()));
        if let (Some(place), Some(row)) = (place, row) {
            let Cell::Number(value) = row[place] else { panic!("{:?}", row[place]) };
            return value;
        }
    }
    panic!("no {row} and {column}")
}

/// Four sequential writes, a flush, two reads of the first, a flush after no write: every figure
/// counted by hand.
#[test]
fn small_trace_matches_manual_count() {
    let best_effort = 2 << 13 | 4;
    let mut records: Vec<_> =
        (0..4).map(|i| record(RequestKind::Write, i * 10_000, 5_000, 8 * i, best_effort)).collect();
    records.push(record(RequestKind::Flush, 50_000, 40_000, 0, 0));
    records.extend([
        record(RequestKind::Read, 100_000, 10_000, 0, 0),
        record(RequestKind::Read, 105_000, 15_000, 0, 0),
    ]);
    records.push(record(RequestKind::Flush, 130_000, 20_000, 0, 0));
    let trace =
        Trace::from_records(Header { sectors: 1024, lanes: 1, ..Header::default() }, records);
    let report = analyze(&trace, "vlane-lab trace analyze x");
    let at = |section: &str, row: &str, column: &str| cell(&report, section, row, column);
    assert_eq!(at("kinds", "write", "requests"), 4.0);
    assert_eq!(at("kinds", "read", "of all"), 25.0);
    assert_eq!(at("locality", "write", "sequential"), 75.0);
    assert_eq!(at("locality", "read", "used again"), 50.0);
    assert_eq!(at("locality", "both", "of the volume"), 4.0 * 100.0 / 128.0);
    assert_eq!(at("latency", "flush", "max"), 40.0);
    assert_eq!(at("latency", "read", "p50"), 10.0);
    assert_eq!(at("priorities", "best effort", "level"), 4.0);
    assert_eq!(at("flushes", "writes since the one before", "max"), 4.0);
    assert_eq!(at("flushes", "time since the one before, ms", "p50"), 0.08);
    assert_eq!(at("lanes", "0", "deepest"), 2.0);
    // In flight: 4 x 5 + 40 + 10 + 15 + 20 us of 150 us.
    let depth = report.sections.iter().find(|s| s.id == "depth").unwrap();
    assert!(depth.text[0].contains("0.70 on average, 2 at most"), "{}", depth.text[0]);
}

#[test]
fn empty_trace_says_so() {
    let report = analyze(&Trace::default(), "x");
    assert!(report.summary[0].starts_with("0 requests"), "{:?}", report.summary);
    assert!(report.notes[0].text.contains("no end"));
}
