//! The results, as a report.

use vlane_units::show_size;

use super::guest::GuestMeasured;
use super::native::{Case, Measured, Peer};
use super::{BLOCKS, Direction, LARGE, Medium, Options, Outcome, SMALL};
use vlane_report::build::{Begun, table};
use vlane_report::published::{self, Interval, Published, Row};
use vlane_report::{Axis, Block, Cell, Chart, Column, Note, Point, Report, Samples, Section, Series, Spread};

pub(super) fn fill(outcome: &Outcome, options: &Options, begun: &Begun, programs: &[&str]) -> Report {
    let mut notes: Vec<Note> =
        outcome.missing.iter().map(|text| Note::info(format!("Not measured: {text}."))).collect();
    if outcome.accel.as_ref().is_some_and(|choice| choice.accel == vlane_boot::Accel::Tcg) {
        notes.push(Note::warning(
            "Guest CPU emulated: counts and their ratios hold, times and CPU times in the guest's table do not.",
        ));
    }
    let reasons = outcome.native.iter().filter_map(|m| m.calls.reason());
    if let Some(reason) = reasons.into_iter().find(|reason| !reason.contains("not asked for")) {
        notes.push(Note::info(format!("System calls: {reason}.")));
    }
    if let Some(reason) = outcome.guest.iter().find_map(|m| m.exits.reason()) {
        notes.push(Note::info(format!("KVM exits: {reason}.")));
    }
    let mut sections = vec![ratios(outcome)];
    sections.extend(options.media.iter().map(|medium| native(outcome, *medium)));
    if !outcome.guest.is_empty() {
        sections.push(guest(&outcome.guest));
    }
    Report {
        summary: summary(outcome, options),
        notes,
        sections,
        samples: vec![samples(outcome)],
        ..begun.report("work", "Where it goes: 4K requests against 512K requests", programs)
    }
}

fn summary(outcome: &Outcome, options: &Options) -> Vec<String> {
    let mut texts = vec![format!(
        "{} are moved in requests of 4K and again in requests of 512K, with {} in flight; the back end's work for them is counted from outside. Overhead is per request: the same bytes in small requests take many times the work.",
        show_size(options.bytes),
        options.depth
    )];
    for medium in &options.media {
        for direction in Direction::ALL {
            let per_mb = |block: u32| {
                let case = Case { medium: *medium, peer: Peer::Vlane, direction, block };
                spread(outcome, case, |m| cpu_time(m, (m.cpu_us + m.worker_us) / megabytes(m)))
            };
            if let (Some(small), Some(large)) = (per_mb(SMALL), per_mb(LARGE))
                && large.median > 0.0
            {
                texts.push(format!(
                    "vlane's CPU time per MB on the {}, {}: {:.0} us with 4K, {:.0} us with 512K ({:.1} : 1).",
                    medium.name(),
                    direction.name(),
                    small.median,
                    large.median,
                    small.median / large.median
                ));
            }
        }
    }
    for direction in Direction::ALL {
        if let Some((bytes, time)) = calls_ratios(&outcome.guest, direction) {
            texts.push(format!(
                "Calls of QEMU's virtio-blk functions in a guest, {}, 4K : 512K: {:.1} : 1 for the same bytes, {:.1} : 1 in the same \
                 time; published: {:.1} : 1.",
                direction.name(),
                bytes.median,
                time.median,
                direction.published()
            ));
        }
    }
    texts
}

fn count(n: u64) -> f64 {
    n as f64
}

fn megabytes(m: &Measured) -> f64 {
    count(m.requests) * f64::from(m.case.block) / 1e6
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
        all.iter().find(move |m| (m.direction, m.block, m.pass) == (direction, block, pass)).map(&of)
    };
    let passes = all.iter().map(|m| m.pass).max()? + 1;
    let ratio = |pass| Some(find(SMALL, pass)? / find(LARGE, pass).filter(|over| *over > 0.0)?);
    Spread::of(&(0..passes).filter_map(ratio).collect::<Vec<_>>())
}

/// Calls for the same bytes, and in the same time.
fn calls_ratios(all: &[GuestMeasured], direction: Direction) -> Option<(Spread, Spread)> {
    small_over_large(all, direction, |m| count(m.calls.total())).zip(small_over_large(all, direction, rate))
}

/// A figure of a case, over the passes.
fn spread(outcome: &Outcome, case: Case, figure: impl Fn(&Measured) -> Option<f64>) -> Option<Spread> {
    let values: Vec<f64> = outcome.native.iter().filter(|m| m.case == case).filter_map(figure).collect();
    Spread::of(&values)
}

/// A counted figure per request or per MB, of the passes that have it.
type Figure = (&'static str, fn(&Measured) -> Option<f64>);

/// In the counting pass every system call takes longer, so its other figures are left out.
fn timed(m: &Measured, figure: f64) -> Option<f64> {
    let counting = m.calls.get().is_some() || m.calls.reason().is_some_and(|r| !r.contains("not asked for"));
    (!counting).then_some(figure)
}

/// CPU time that was found: less than what connecting takes from run to run is none.
fn cpu_time(m: &Measured, figure: f64) -> Option<f64> {
    timed(m, figure).filter(|found| *found > 0.0)
}

fn per_request(m: &Measured, figure: f64) -> f64 {
    figure / count(m.requests).max(1.0)
}

fn call(m: &Measured, name: &str) -> Option<f64> {
    let calls = m.calls.get()?;
    let n = if name.is_empty() { calls.total } else { calls.of(name) };
    Some(per_request(m, count(n)))
}

const FIGURES: [Figure; 17] = [
    ("Requests per MB", |m| Some(count(m.requests) / megabytes(m))),
    ("Requests per second", |m| timed(m, count(m.requests) / m.seconds.max(1e-9))),
    ("Kicks per request", |m| timed(m, per_request(m, m.kicks))),
    ("Signals per request", |m| timed(m, per_request(m, count(*m.signals.get()?)))),
    ("Guest sleeps per request", |m| timed(m, per_request(m, m.sleeps))),
    ("System calls per request", |m| call(m, "")),
    ("... io_uring_enter", |m| call(m, "io_uring_enter")),
    ("... read and write", |m| Some(call(m, "read")? + call(m, "write")?)),
    ("... positioned reads and writes", |m| {
        let names = ["pread64", "pwrite64", "preadv", "pwritev", "pwritev2"];
        names.iter().map(|name| call(m, name)).sum()
    }),
    ("... ppoll and epoll", |m| Some(call(m, "ppoll")? + call(m, "epoll_wait")? + call(m, "epoll_pwait")?)),
    ("... futex", |m| call(m, "futex")),
    ("Context switches per request", |m| timed(m, per_request(m, m.voluntary + m.involuntary))),
    ("CPU time per request, us", |m| cpu_time(m, per_request(m, m.cpu_us + m.worker_us))),
    ("... in user mode, us", |m| timed(m, per_request(m, m.cpu_us * m.user_share?))),
    ("... of the kernel's workers, us", |m| timed(m, per_request(m, m.worker_us))),
    ("CPU time per MB, us", |m| cpu_time(m, (m.cpu_us + m.worker_us) / megabytes(m))),
    ("Requests that the lane's thread copied itself", |m| {
        let copied = m.copied.get()?;
        timed(m, per_request(m, count(copied.bounced + copied.inline)))
    }),
];

/// Every measurement of the back ends alone; what was not counted in a pass is empty.
fn samples(outcome: &Outcome) -> Samples {
    let row = |m: &Measured| {
        let case = &m.case;
        let mut row: Vec<Cell> = vec![
            case.medium.name().into(),
            case.peer.name().into(),
            case.direction.name().into(),
            Cell::Number(case.block.into()),
            Cell::Number(m.pass as f64),
        ];
        row.extend(FIGURES.map(|(_, figure)| Cell::from(figure(m))));
        row
    };
    let columns = FIGURES.map(|(name, _)| name.trim_start_matches("... ")).join(" | ");
    let columns = format!("medium | back end | direction | request [bytes] | pass | {columns}");
    Samples::new("native", "The back ends alone", &columns, outcome.native.iter().map(row).collect())
}

/// One table per direction: a row per figure, a column per back end and size.
fn native(outcome: &Outcome, medium: Medium) -> Section {
    let peers: Vec<Peer> = [Peer::Vlane, Peer::StorageDaemon]
        .into_iter()
        .filter(|peer| outcome.native.iter().any(|m| m.case.peer == *peer))
        .collect();
    let mut blocks = Vec::new();
    for direction in Direction::ALL {
        let mut columns = vec![Column::new("", "")];
        for peer in &peers {
            columns.extend(
                BLOCKS.iter().map(|block| Column::new(&format!("{}, {}K", peer.name(), block >> 10), "")),
            );
        }
        let mut rows = Vec::new();
        for (name, figure) in FIGURES {
            let mut row = vec![name.into()];
            for peer in &peers {
                for block in BLOCKS {
                    let case = Case { medium, peer: *peer, direction, block };
                    row.push(spread(outcome, case, figure).into());
                }
            }
            if row.iter().any(|cell| matches!(cell, Cell::Figure(_))) {
                rows.push(row);
            }
        }
        let caption = format!("{}: {}", medium.name(), direction.name());
        blocks.push(table(caption, columns, rows));
    }
    let copies = match medium {
        Medium::Null => "There are no copies: the null device touches no data.",
        Medium::Ram => {
            "Copies: through the page cache each byte is copied once by a CPU, by the lane's own thread where the last row says 1, by \
             the kernel's workers or inside io_uring otherwise."
        }
        Medium::Disk => {
            "Copies: none by a CPU with direct I/O, but for requests that need a bounce buffer (last row)."
        }
    };
    Section::new(format!("native-{medium:?}").to_lowercase(), format!("The back ends alone: {}", medium.name()), vec![
            "Driven natively through vhost-user by the same driver, one queue, back end and driver on a CPU each where there are two. The \
             cost of connecting is taken off. System calls are counted in a pass of their own."
                .into(),
            copies.into(),
        ], blocks)
}

/// 4K : 512K, beside what was published.
fn ratios(outcome: &Outcome) -> Section {
    let mut blocks = Vec::new();
    let mut chart = Vec::new();
    for direction in Direction::ALL {
        let mut rows = Vec::new();
        for medium in [Medium::Null, Medium::Ram, Medium::Disk] {
            for peer in [Peer::Vlane, Peer::StorageDaemon] {
                let ratio = |figure: &dyn Fn(&Measured) -> Option<f64>| {
                    let of = |block: u32| {
                        spread(outcome, Case { medium, peer, direction, block }, figure).map(|s| s.median)
                    };
                    Some(of(SMALL)? / of(LARGE).filter(|v| *v > 0.0)?)
                };
                let bytes = ratio(&|m| cpu_time(m, (m.cpu_us + m.worker_us) / megabytes(m)));
                let time = ratio(&|m| timed(m, count(m.requests) / m.seconds.max(1e-9)));
                if let (Some(bytes), Some(time)) = (bytes, time) {
                    let name = format!("{} on {}", peer.name(), medium.name());
                    rows.push(vec![format!("{name}: CPU time").into(), bytes.into(), Cell::Empty]);
                    let requests = f64::from(LARGE / SMALL);
                    rows.push(vec![format!("{name}: requests").into(), requests.into(), time.into()]);
                }
            }
        }
        if let Some((bytes, time)) = calls_ratios(&outcome.guest, direction) {
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
    Section::new("ratios", "4K against 512K", vec![
            "How many times as much a load of 4K requests takes as one of 512K requests: for the same bytes, and in the same time (a load of \
             4K requests moves fewer bytes in it)."
                .into(),
        ], blocks)
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
            Series { published: true, ..series("published", &|one| Spread::exact(one.0.published())) },
        ],
    ))
}

/// QEMU's own virtio-blk: what the guest's requests became.
fn guest(all: &[GuestMeasured]) -> Section {
    let mut columns = vec![Column::new("", "")];
    let cases: Vec<(Direction, u32)> =
        all.iter().filter(|m| m.pass == 0).map(|m| (m.direction, m.block)).collect();
    columns.extend(
        cases.iter().map(|(way, block)| Column::new(&format!("{}, {}K", way.name(), block >> 10), "")),
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
    row("Context switches of QEMU per request".into(), &|m| Some(count(m.used.switches()) / requests(m)));
    let names: Vec<String> =
        all.first().map(|m| m.used.roles.iter().map(|role| role.name.clone()).collect()).unwrap_or_default();
    for name in names {
        row(format!("CPU time per request, {name}, us"), &|m| {
            Some(m.used.role(&name)?.cpu.as_secs_f64() * 1e6 / requests(m))
        });
    }
    row("KVM exits per request".into(), &|m| Some(count(m.exits.get()?.exits()) / requests(m)));
    Section::new("guest", "In a guest: QEMU's own virtio-blk", vec![
            "fio in the guest on the bare disk, direct I/O. Function calls are QEMU's trace events virtio_blk_*, as in the published count. The \
             guest's block layer splits requests that are too large for the device (126 segments, when their pages lie apart), and \
             QEMU's log makes each call dearer than it is without."
                .into(),
        ], vec![table("Requests after merging", columns, rows)])
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::float_cmp, reason = "tests")]
mod tests {
    use std::time::Duration;

    use vlane_report::Table;

    use super::*;
    use vlane_work::{Calls, Counted, qemu};

    fn measured(block: u32, pass: usize, calls: Counted<Calls>) -> Measured {
        let requests = (8 << 20) / u64::from(block);
        Measured {
            case: Case { medium: Medium::Null, peer: Peer::Vlane, direction: Direction::Read, block },
            pass,
            requests,
            seconds: if block == SMALL { 2.0 } else { 0.5 },
            kicks: count(requests) / 2.0,
            sleeps: 0.0,
            signals: Counted::Is(requests),
            copied: Counted::Not("not told".into()),
            cpu_us: count(requests) * 3.0,
            user_share: None,
            worker_us: 0.0,
            voluntary: 1.0,
            involuntary: 0.0,
            calls,
        }
    }

    fn in_guest(block: u32, pass: usize, log: &str, seconds: f64) -> GuestMeasured {
        GuestMeasured {
            direction: Direction::Read,
            block,
            pass,
            bytes: 8 << 20,
            seconds,
            calls: qemu::events(log, "virtio_blk_"),
            interrupts: 1,
            used: vlane_work::Used { wall: Duration::from_secs(1), roles: Vec::new() },
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
    fn uncounted_ratios_are_empty() {
        let not = || Counted::Not("not counted: not asked for".into());
        let counted = Counted::Is(Calls { total: 4096, ..Calls::default() });
        let native = vec![
            measured(SMALL, 0, not()),
            measured(LARGE, 0, not()),
            // The counting pass: slower, and its times are not used.
            Measured { cpu_us: 1e9, seconds: 100.0, ..measured(SMALL, 1, counted) },
        ];
        let call = "virtio_blk_handle_read x\n";
        let guest = vec![
            in_guest(SMALL, 0, &call.repeat(40), 4.0),
            in_guest(LARGE, 0, &call.repeat(4), 1.0),
            in_guest(LARGE, 1, &call.repeat(4), 1.0),
            in_guest(SMALL, 1, &call.repeat(48), 4.0),
            // A pass without the other size has no ratio.
            in_guest(SMALL, 2, &call.repeat(80), 4.0),
        ];
        let outcome = Outcome { native, guest, accel: None, missing: vec!["a peer".into()] };
        let options = Options {
            vlane: "vlane".into(),
            command: "vlane work".into(),
            bytes: 8 << 20,
            guest_bytes: None,
            depth: 32,
            passes: 1,
            media: vec![Medium::Null],
            ram_dir: None,
            disk_dir: None,
            accel: None,
        };
        let report = fill(&outcome, &options, &Begun::now(""), &[]);
        let ratios = table_of(&report, "4K : 512K, random read");
        let number = |cell: &Cell| match cell {
            Cell::Number(value) => *value,
            Cell::Figure(spread) => spread.median,
            other => panic!("{other:?}"),
        };
        let functions = row(ratios, "QEMU's virtio-blk in a guest: function calls");
        let Cell::Figure(bytes) = &functions[1] else { panic!("no figure") };
        assert_eq!((bytes.min, bytes.median, bytes.max, bytes.runs), (10.0, 11.0, 12.0, 2));
        assert_eq!(number(&functions[2]), 2.75);
        let requests = row(ratios, "vlane on null device: requests");
        assert_eq!((number(&requests[1]), number(&requests[2])), (128.0, 32.0));
        assert_eq!(number(&row(ratios, "vlane on null device: CPU time")[1]), 128.0);
        let figures = table_of(&report, "null device: random read");
        let Cell::Figure(calls) = row(figures, "System calls per request")[1] else { panic!("no figure") };
        assert_eq!(calls.median, 2.0);
        // 512K was not in the counting pass: empty, not 0.
        assert_eq!(row(figures, "System calls per request")[2], Cell::Empty);
        let Cell::Figure(cpu) = row(figures, "CPU time per request, us")[1] else { panic!("no figure") };
        assert_eq!((cpu.median, cpu.runs), (3.0, 1));
        assert_eq!(report.samples[0].rows.len(), 3, "every measurement, that of counting, too");
        let notes: Vec<&str> = report.notes.iter().map(|note| note.text.as_str()).collect();
        assert!(
            notes.iter().any(|n| n.contains("a peer")) && notes.iter().any(|n| n.contains("no KVM here"))
        );
    }
}
