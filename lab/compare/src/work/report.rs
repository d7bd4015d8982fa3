//! The results, as a report.

use super::guest::GuestMeasured;
use super::{Direction, LARGE, SMALL};
use vlane_guest::Accel;
use vlane_report::build::{Begun, table};
use vlane_report::published::{self, Interval, Published, Row};
use vlane_report::{
    Axis, Block, Cell, Chart, Column, Note, Point, Report, Section, Series, Spread,
};

/// Makes it.
pub(super) fn fill(all: &[GuestMeasured], accel: Accel, begun: &Begun) -> Report {
    let mut notes = Vec::new();
    if accel == Accel::Tcg {
        notes.push(Note::warning(
            "Guest CPU emulated: counts and their ratios hold, times and CPU times in the guest's \
             table do not.",
        ));
    }
    if let Some(reason) = all.iter().find_map(|m| m.exits.reason()) {
        notes.push(Note::info(format!("KVM exits: {reason}.")));
    }
    Report {
        summary: summary(all),
        notes,
        sections: vec![ratios(all), guest(all)],
        ..begun.report(
            "work",
            "Function calls: 4K requests against 512K requests",
            &["qemu-system-x86_64", "fio"],
        )
    }
}

fn summary(all: &[GuestMeasured]) -> Vec<String> {
    let sentence = |direction: Direction| {
        let (bytes, time) = calls_ratios(all, direction)?;
        Some(format!(
            "Calls of QEMU's virtio-blk functions in a guest, {}, 4K : 512K: {:.1} : 1 for the \
             same bytes, {:.1} : 1 in the same time; published: {:.1} : 1.",
            direction.name(),
            bytes.median,
            time.median,
            direction.published()
        ))
    };
    Direction::ALL.into_iter().filter_map(sentence).collect()
}

fn count(n: u64) -> f64 {
    n as f64
}

/// Calls per second.
fn rate(m: &GuestMeasured) -> f64 {
    count(m.calls.total()) / m.seconds.max(1e-9)
}

/// A figure with 4K over that with 512K, in each pass that has both.
fn small_over_large(
    all: &[GuestMeasured],
    direction: Direction,
    of: impl Fn(&GuestMeasured) -> f64,
) -> Option<Spread> {
    let find = |block, pass| {
        all.iter()
            .find(move |m| (m.direction, m.block, m.pass) == (direction, block, pass))
            .map(&of)
    };
    let passes = all.iter().map(|m| m.pass).max()? + 1;
    let ratio = |pass| Some(find(SMALL, pass)? / find(LARGE, pass).filter(|over| *over > 0.0)?);
    Spread::of(&(0..passes).filter_map(ratio).collect::<Vec<_>>())
}

/// Calls for the same bytes, and in the same time.
fn calls_ratios(all: &[GuestMeasured], direction: Direction) -> Option<(Spread, Spread)> {
    small_over_large(all, direction, |m| count(m.calls.total()))
        .zip(small_over_large(all, direction, rate))
}

/// 4K : 512K, beside what was published.
fn ratios(all: &[GuestMeasured]) -> Section {
    let mut blocks = Vec::new();
    let mut chart = Vec::new();
    for direction in Direction::ALL {
        let mut rows = Vec::new();
        if let Some((bytes, time)) = calls_ratios(all, direction) {
            let name = "QEMU's virtio-blk in a guest: function calls";
            rows.push(vec![name.into(), Cell::Figure(bytes), Cell::Figure(time)]);
            chart.push((direction, bytes, time));
        }
        let caption = format!("4K : 512K, {}", direction.name());
        blocks.push(table(caption, " | same bytes | same time", rows));
    }
    if !chart.is_empty() {
        blocks.push(Block::Table(published::table(
            "Calls of QEMU's virtio-blk functions, 4K : 512K, published and here",
            &calls_beside(&chart),
        )));
        blocks.push(calls_chart(&chart));
    }
    Section::new(
        "ratios",
        "4K against 512K",
        vec![
            "How many times as much a load of 4K requests takes as one of 512K requests: for the \
             same bytes, and in the same time (a load of 4K requests moves fewer bytes in it)."
                .into(),
        ],
        blocks,
    )
}

/// The publication does not say whether it means the same bytes or the same time.
fn calls_beside(all: &[(Direction, Spread, Spread)]) -> Vec<Row> {
    let row = |direction: Direction, what: &str, here: &Spread| Row {
        figure: format!("{}, {what}", direction.name()),
        published: Published::ratio(direction.published()),
        here: Ok(Interval::of(here)),
    };
    all.iter()
        .flat_map(|(direction, bytes, time)| {
            [row(*direction, "same bytes", bytes), row(*direction, "same time", time)]
        })
        .collect()
}

fn calls_chart(all: &[(Direction, Spread, Spread)]) -> Block {
    let series = |name: &str, figure: &dyn Fn(&(Direction, Spread, Spread)) -> Spread| {
        let placed = (0_u32..).zip(all).map(|(x, one)| Point { x: x.into(), y: figure(one) });
        Series::measured(name, placed.collect())
    };
    Block::Chart(Chart::bars(
        "Calls of QEMU's virtio-blk functions, 4K : 512K",
        Axis::new("", ""),
        Axis::new("ratio", ""),
        all.iter().map(|(direction, ..)| direction.name().into()).collect(),
        vec![
            series("same bytes", &|one| one.1),
            series("same time", &|one| one.2),
            Series {
                published: true,
                ..series("published", &|one| Spread::exact(one.0.published()))
            },
        ],
    ))
}

/// Calls of QEMU's own virtio-blk for the guest's requests.
fn guest(all: &[GuestMeasured]) -> Section {
    let mut columns = vec![Column::new("", "")];
    let cases: Vec<(Direction, u32)> =
        all.iter().filter(|m| m.pass == 0).map(|m| (m.direction, m.block)).collect();
    columns.extend(
        cases
            .iter()
            .map(|(way, block)| Column::new(&format!("{}, {}K", way.name(), block >> 10), "")),
    );
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    let mut row = |name: String, figure: &dyn Fn(&GuestMeasured) -> Option<f64>| {
        let mut cells = vec![Cell::Text(name)];
        cells.extend(cases.iter().map(|case| {
            let passes = all.iter().filter(|m| (m.direction, m.block) == *case);
            Cell::from(Spread::of(&passes.filter_map(figure).collect::<Vec<_>>()))
        }));
        if cells.iter().any(|cell| matches!(cell, Cell::Figure(_))) {
            rows.push(cells);
        }
    };
    let requests = |m: &GuestMeasured| count(m.requests()).max(1.0);
    row("Requests that arrived in QEMU".into(), &|m| Some(count(m.requests())));
    row("Bytes per request, KiB".into(), &|m| Some(count(m.bytes) / 1024.0 / requests(m)));
    row("Function calls".into(), &|m| Some(count(m.calls.total())));
    let mut events: Vec<&String> = all.iter().flat_map(|m| m.calls.0.keys()).collect();
    events.sort();
    events.dedup();
    for event in events {
        row(format!("... {event}"), &|m| Some(count(m.calls.of(event))).filter(|n| *n > 0.0));
    }
    row("Function calls per request".into(), &|m| Some(count(m.calls.total()) / requests(m)));
    row("Function calls per second".into(), &|m| Some(rate(m)));
    row("Interrupts in the guest per request".into(), &|m| Some(count(m.interrupts) / requests(m)));
    row("Context switches of QEMU per request".into(), &|m| {
        Some(count(m.used.switches()) / requests(m))
    });
    let names: Vec<String> = all
        .first()
        .map(|m| m.used.roles.iter().map(|role| role.name.clone()).collect())
        .unwrap_or_default();
    for name in names {
        row(format!("CPU time per request, {name}, us"), &|m| {
            Some(m.used.role(&name)?.cpu.as_secs_f64() * 1e6 / requests(m))
        });
    }
    row("KVM exits per request".into(), &|m| Some(count(m.exits.get()?.exits()) / requests(m)));
    Section::new(
        "guest",
        "In a guest: QEMU's own virtio-blk",
        vec![
            "fio in the guest on the bare disk, direct I/O. Function calls are QEMU's trace \
             events virtio_blk_*, as in the published count. The guest's block layer splits \
             requests that are too large for the device (126 segments, when their pages lie \
             apart), and QEMU's log makes each call dearer than it is without."
                .into(),
        ],
        vec![table("Requests after merging", columns, rows)],
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests")]
mod tests {
    use std::time::Duration;

    use vlane_report::Table;

    use super::*;
    use vlane_cost::{Counted, qemu};

    fn in_guest(block: u32, pass: usize, log: &str, seconds: f64) -> GuestMeasured {
        GuestMeasured {
            direction: Direction::Read,
            block,
            pass,
            bytes: 8 << 20,
            seconds,
            calls: qemu::events(log, "virtio_blk_"),
            interrupts: 1,
            used: vlane_cost::Used { wall: Duration::from_secs(1), roles: Vec::new() },
            exits: Counted::Not("no KVM here".into()),
        }
    }

    fn table_of<'a>(report: &'a Report, caption: &str) -> &'a Table {
        let blocks = report.sections.iter().flat_map(|section| &section.blocks);
        let tables = blocks.filter_map(|block| match block {
            Block::Table(table) => Some(table),
            Block::Chart(_) => None,
        });
        tables.into_iter().find(|table| table.caption == caption).unwrap()
    }

    fn row<'a>(table: &'a Table, name: &str) -> &'a [Cell] {
        table.rows.iter().find(|row| row[0] == name.into()).unwrap()
    }

    #[test]
    fn ratios_are_of_bytes_and_of_time() {
        let call = "virtio_blk_handle_read x\n";
        let guest = vec![
            in_guest(SMALL, 0, &call.repeat(40), 4.0),
            in_guest(LARGE, 0, &call.repeat(4), 1.0),
            in_guest(LARGE, 1, &call.repeat(4), 1.0),
            in_guest(SMALL, 1, &call.repeat(48), 4.0),
            // A pass without the other size has no ratio.
            in_guest(SMALL, 2, &call.repeat(80), 4.0),
        ];
        let report = fill(&guest, Accel::Tcg, &Begun::now(""));
        let ratios = table_of(&report, "4K : 512K, random read");
        let functions = row(ratios, "QEMU's virtio-blk in a guest: function calls");
        let Cell::Figure(bytes) = &functions[1] else { panic!("no figure") };
        assert_eq!((bytes.min, bytes.median, bytes.max, bytes.runs), (10.0, 11.0, 12.0, 2));
        let Cell::Figure(time) = &functions[2] else { panic!("no figure") };
        assert_eq!(time.median, 2.75);
        assert!(table_of(&report, "4K : 512K, random write").rows.is_empty());
        let notes: Vec<&str> = report.notes.iter().map(|note| note.text.as_str()).collect();
        assert!(notes.iter().any(|n| n.contains("no KVM here")));
    }
}
