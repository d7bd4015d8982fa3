//! The comparison as a report: tables with ratios to the host, charts beside the published figures,
//! where requests go.
//!
//! Every column of [`ALL`] appears, also those that could not be measured: they say why.

use std::collections::BTreeSet;

use super::columns::{ALL, Column as Way};
use super::jobs::CacheState;
use super::loads::{self, Load, PATTERNS, PUBLISHED_CALLS, Pattern, RECORDS, Suite};
use super::results::{PARTS, Part};
use super::{Outcome, native, samples, summary};
use vlane_error::counted;
use vlane_report::build::Begun;
use vlane_report::published::{self, Interval, Published, Row};
use vlane_report::{
    Axis, Block, Cell, Chart, Column, Note, Point, Report, Section, Series, Severity, Spread, Table,
};

/// Makes the report.
pub fn fill(outcome: &Outcome, begun: &Begun, programs: &[&str]) -> Report {
    let mut sections = vec![picture(outcome)];
    if outcome.results.loads().iter().any(|load| load.suite == Suite::Fio) {
        sections.push(fio_section(outcome));
    }
    for record in RECORDS {
        sections.extend(iozone_section(outcome, record));
    }
    sections.extend(work_section(outcome));
    sections.extend(native_section(outcome));
    sections.push(columns_section(outcome));
    Report {
        summary: summary::sentences(outcome),
        notes: notes(outcome),
        sections,
        samples: samples::all(outcome),
        ..begun.report(
            "compare",
            format!(
                "Host, virtio and emulated disks compared ({} I/O)",
                outcome.settings.cache.name()
            ),
            programs,
        )
    }
}

/// The part for a terminal: the picture, the ratios to the host, and where small requests go.
pub fn brief(report: &Report) -> Report {
    let mut brief = report.clone();
    for section in &mut brief.sections {
        section.text.clear();
        section.blocks.retain(|block| match block {
            Block::Table(table) => {
                table.caption.ends_with(OF_THE_HOST) || table.caption.starts_with("Per request: 4K")
            }
            Block::Chart(_) => section.id == PICTURE,
        });
    }
    brief.sections.retain(|section| !section.blocks.is_empty());
    brief
}

/// The first section.
const PICTURE: &str = "picture";

/// The whole in one picture: small and large requests on every disk. The baseline is the host, or
/// QEMU's own virtio-blk if the host is not comparable.
fn picture(outcome: &Outcome) -> Section {
    use Pattern::{RandomRead, RandomWrite, Read, Rewrite};
    let measured = outcome.results.loads();
    let telling = [(RandomRead, 4), (RandomWrite, 4), (Read, 512), (Rewrite, 512)];
    let mut loads: Vec<Load> = telling.map(|(pattern, record)| Load::fio(pattern, record)).into();
    loads.retain(|load| measured.contains(load));
    if loads.is_empty() {
        loads = measured.into_iter().take(4).collect();
    }
    let is_measured = outcome.columns.contains(&Way::Virtio);
    let base = if outcome.emulated() && is_measured { Way::Virtio } else { Way::Host };
    let ways = outcome.guests().filter(|way| *way != base);
    let series = ways.map(|way| {
        let ratio = |(x, load): (u32, &Load)| {
            let y = times(outcome.results.ratio(load, way, base), 100.0)?;
            Some(Point { x: f64::from(x), y })
        };
        Series::measured(way.name(), (0..).zip(&loads).filter_map(ratio).collect())
    });
    let whose = if base == Way::Host { "the host's" } else { "QEMU virtio-blk's" };
    let chart = Chart::bars(
        format!(
            "Throughput in per cent of {whose}: the medians of all turns, with the smallest and \
             the largest"
        ),
        Axis::new("load", ""),
        Axis::new(format!("throughput, of {whose}"), "%"),
        loads.iter().map(Load::name).collect(),
        series.collect(),
    );
    Section::new(PICTURE, "In one picture", Vec::new(), vec![Block::Chart(chart)])
}

/// How the captions of the tables of ratios end.
const OF_THE_HOST: &str = "of the host's throughput";

/// Caveats that a reader must know before believing the figures.
fn notes(outcome: &Outcome) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut add = |severity, text: String| notes.push(Note { severity, text });
    if outcome.emulated() {
        add(
            Severity::Warning,
            format!(
                "guest CPU emulated: ratios of virtio to emulated hold, absolute figures and \
                 ratios to the host do not ({})",
                outcome.accel.why
            ),
        );
    }
    match outcome.times() {
        (0 | 1, 0 | 1) => add(
            Severity::Warning,
            "every figure was measured once: its spread is not known; --repeat measures more often"
                .into(),
        ),
        (0 | 1, most) => add(
            Severity::Info,
            format!(
                "some figures were measured once and have no spread, others up to {most} times; \
                 --repeat or a longer --limit measures more often"
            ),
        ),
        _ => {}
    }
    add(Severity::Info, outcome.settings.cache.about().into());
    for missing in &outcome.missing {
        add(Severity::Info, format!("{} was not measured: {}", missing.column.name(), missing.why));
    }
    for (way, disk) in &outcome.disks {
        if disk.cache_before != disk.cache {
            add(
                Severity::Info,
                format!(
                    "{}: its disk came as \"{}\" and was measured as \"{}\", like the others",
                    way.name(),
                    disk.cache_before,
                    disk.cache
                ),
            );
        }
    }
    if outcome.results.loads().iter().any(|load| load.suite == Suite::Fio) {
        add(
            Severity::Info,
            "the published reads of fio's table (7.7 GB/s at 4K from a SATA SSD) were evidently \
             of the page cache; --cache warm measures that"
                .into(),
        );
    }
    if let Some(why) = &outcome.uncounted {
        add(Severity::Info, format!("system calls: {why}"));
    }
    notes
}

impl Outcome {
    /// True if the guest's CPU was emulated.
    pub fn emulated(&self) -> bool {
        self.accel.accel == vlane_guest::Accel::Tcg
    }

    /// How often a load was measured: the fewest and the most times.
    fn times(&self) -> (usize, usize) {
        let loads = self.results.loads();
        let times = || loads.iter().map(|load| self.results.of(load, Way::Host).count());
        (times().min().unwrap_or(0), times().max().unwrap_or(0))
    }

    /// Columns of the tables: every one that was asked for.
    fn shown(&self) -> Vec<Way> {
        let asked =
            |way: &Way| self.columns.contains(way) || self.missing.iter().any(|m| m.column == *way);
        ALL.into_iter().filter(asked).collect()
    }

    /// The heading of a column.
    fn heading(&self, way: Way) -> String {
        match self.columns.contains(&way) {
            true => way.name().into(),
            false => format!("{} (not measured)", way.name()),
        }
    }

    /// The guest's columns that were measured.
    pub(super) fn guests(&self) -> impl Iterator<Item = Way> {
        self.columns.iter().copied().filter(|way| *way != Way::Host)
    }
}

fn heading(title: impl Into<String>, unit: &str) -> Column {
    Column { title: title.into(), unit: unit.into() }
}

fn figure(spread: Option<Spread>) -> Cell {
    spread.map_or(Cell::Empty, Cell::Figure)
}

fn times(spread: Option<Spread>, factor: f64) -> Option<Spread> {
    spread.map(|s| Spread {
        median: s.median * factor,
        min: s.min * factor,
        max: s.max * factor,
        runs: s.runs,
    })
}

/// A figure of every load on every column.
fn table(
    outcome: &Outcome,
    caption: &str,
    loads: &[Load],
    ways: &[Way],
    unit: &str,
    value: impl Fn(&Load, Way) -> Option<Spread>,
) -> Block {
    let mut columns = vec![heading("load", "")];
    columns.extend(ways.iter().map(|way| heading(outcome.heading(*way), unit)));
    let row = |load: &Load| {
        let mut row = vec![Cell::Text(load.name())];
        row.extend(ways.iter().map(|way| figure(value(load, *way))));
        row
    };
    Block::Table(Table { caption: caption.into(), columns, rows: loads.iter().map(row).collect() })
}

/// Throughput in per cent of the host's, with the published figures beside ours.
fn ratio_chart(outcome: &Outcome, caption: &str, loads: &[Load], names: Vec<String>) -> Block {
    let points = |value: &dyn Fn(&Load) -> Option<Spread>| -> Vec<Point> {
        let points = (0_u32..).zip(loads);
        points.filter_map(|(x, load)| Some(Point { x: f64::from(x), y: value(load)? })).collect()
    };
    let mut series = Vec::new();
    for way in outcome.guests() {
        let ratio = |load: &Load| times(outcome.results.ratio(load, way, Way::Host), 100.0);
        let points = points(&ratio);
        series.push(Series::measured(way.name(), points));
    }
    let one = |value: Option<f64>| Spread::of(&[value? * 100.0]);
    let virtio = points(&|load| one(loads::published(load).map(|p| p.virtio)));
    let emulated = points(&|load| one(loads::published(load).and_then(|p| p.emulated)));
    for (name, points) in [("virtio-blk, 2018/19", virtio), ("emulated disk, 2018", emulated)] {
        if !points.is_empty() {
            series.push(Series { name: name.into(), predicted: false, published: true, points });
        }
    }
    Block::Chart(Chart::bars(
        caption,
        Axis::new("load", ""),
        Axis::new("throughput, of the host's", "%"),
        names,
        series,
    ))
}

/// Throughput, ratios and a chart of some loads.
fn throughput(outcome: &Outcome, what: &str, loads: &[Load], names: Vec<String>) -> Vec<Block> {
    let results = &outcome.results;
    let ways = outcome.shown();
    let guests: Vec<Way> = ways.iter().copied().filter(|way| *way != Way::Host).collect();
    vec![
        ratio_chart(
            outcome,
            &format!("{what}: throughput in per cent of the host's"),
            loads,
            names,
        ),
        table(outcome, &format!("{what}: {OF_THE_HOST}"), loads, &guests, "%", |load, way| {
            times(results.ratio(load, way, Way::Host), 100.0)
        }),
        table(outcome, &format!("{what}: throughput"), loads, &ways, "MB/s", |load, way| {
            results.mb(load, way)
        }),
        Block::Table(beside(outcome, what, loads)),
    ]
}

/// Published figures beside those here. The published figures of virtio were of QEMU's own: they
/// are compared with QEMU's own here, never with vlane.
fn beside(outcome: &Outcome, what: &str, loads: &[Load]) -> Table {
    let row = |load: &Load, name: &str, way: Way, published: f64| {
        let here = times(outcome.results.ratio(load, way, Way::Host), 100.0)
            .map(|spread| Interval::of(&spread));
        Row {
            figure: format!("{}, {name}: per cent of the host", load.name()),
            published: Published::percent(published * 100.0),
            here: here.ok_or_else(|| format!("{} was not measured", way.name())),
        }
    };
    let rows: Vec<Row> = loads
        .iter()
        .filter_map(|load| Some((load, loads::published(load)?)))
        .flat_map(|(load, then)| {
            let virtio = row(load, "QEMU's virtio-blk", Way::Virtio, then.virtio);
            let emulated =
                then.emulated.map(|ratio| row(load, "QEMU's emulated disk", Way::Ide, ratio));
            std::iter::once(virtio).chain(emulated)
        })
        .collect();
    published::table(format!("{what}: published and here"), &rows)
}

fn fio_section(outcome: &Outcome) -> Section {
    let results = &outcome.results;
    let loads: Vec<Load> =
        results.loads().into_iter().filter(|load| load.suite == Suite::Fio).collect();
    let names = loads.iter().map(Load::name).collect();
    let mut blocks = throughput(outcome, "fio", &loads, names);
    let ways = outcome.shown();
    let all = |value: fn(&vlane_testbed::fio::Outcome) -> f64| {
        move |load: &Load, way| results.spread(load, way, |m| Some(value(&m.outcome)))
    };
    blocks.push(table(outcome, "fio: requests per second", &loads, &ways, "IOPS", all(|o| o.iops)));
    blocks.push(table(outcome, "fio: median latency", &loads, &ways, "us", all(|o| o.p50_us)));
    blocks.push(table(
        outcome,
        "fio: 99th percentile of the latency",
        &loads,
        &ways,
        "us",
        all(|o| o.p99_us),
    ));
    let depths: Vec<String> =
        loads.iter().map(|load| format!("{}K: {}", load.record_kib, load.depth)).collect();
    let mut depths_told = depths.clone();
    depths_told.dedup();
    Section::new(
        "fio",
        "Many requests at a time",
        vec![format!(
            "4K random, 512K sequential and random, as people test storage: libaio, one job, {} \
             ms each; requests out at once: {}.",
            outcome.settings.runtime_ms,
            depths_told.join(", ")
        )],
        blocks,
    )
}

fn iozone_section(outcome: &Outcome, record: u32) -> Option<Section> {
    let measured = outcome.results.loads();
    let loads: Vec<Load> = PATTERNS
        .iter()
        .map(|pattern| Load::iozone(*pattern, record))
        .filter(|load| measured.contains(load))
        .collect();
    if loads.is_empty() {
        return None;
    }
    let names = loads.iter().map(|load| load.pattern.name().to_string()).collect();
    let text = format!(
        "iozone's table (-e -I), played by fio: one request of {record}K at a time (pread, \
         pwrite) on a file; \"write\" fills a file that has no blocks yet, \"rewrite\" one that \
         has; writes end with a flush, which is part of their time."
    );
    Some(Section::new(
        format!("iozone-{record}k"),
        format!("One request at a time, {record}K records"),
        vec![text],
        throughput(outcome, &format!("{record}K records"), &loads, names),
    ))
}

/// The loads of "where it goes": 4K against 512K.
const TOLD: [(Pattern, [u32; 2]); 2] =
    [(Pattern::RandomRead, [4, 512]), (Pattern::RandomWrite, [4, 512])];

fn work_section(outcome: &Outcome) -> Option<Section> {
    let results = &outcome.results;
    let measured = results.loads();
    let mut blocks = Vec::new();
    for (pattern, records) in TOLD {
        for record in records {
            let load = Load::fio(pattern, record);
            if measured.contains(&load) {
                blocks.push(cpu_chart(outcome, &load));
                blocks.push(work_table(outcome, &load));
            }
        }
    }
    if blocks.is_empty() {
        return None;
    }
    blocks.extend(exits_table(outcome));
    blocks.extend(sizes_table(outcome));
    let mut text = vec![
        "Average effects of one request of fio in the guest. Requests: those of the guest's block \
         layer to the disk; interrupts: those of the disk, in the guest. CPU time and context \
         switches are those of the host's threads, from the start of fio to the report of its \
         end: about 0.1 s of starting and ending is in the guest's. Kicks (the guest wakes the \
         back end) and signals (the back end interrupts the guest) are vlane's own count; other \
         back ends tell neither."
            .to_string(),
    ];
    if outcome.emulated() {
        text.push(
            "The guest's CPU is emulated: its time is many times that of a real one, and contains \
             QEMU's work for the vCPU, such as kicks."
                .into(),
        );
    }
    if outcome.uncounted.is_none() && !outcome.counted.all.is_empty() {
        text.push(
            "System calls were counted in a pass of their own, because counting slows them down. \
             They are those of the threads that work for the column."
                .into(),
        );
    }
    Some(Section::new("work", "Where it goes", text, blocks))
}

fn cpu_chart(outcome: &Outcome, load: &Load) -> Block {
    let ways: Vec<Way> = outcome.guests().collect();
    let series = PARTS
        .iter()
        .map(|part| {
            let points = (0_u32..)
                .zip(&ways)
                .filter_map(|(x, way)| {
                    let y =
                        outcome.results.work(load, *way, |work| Some(work.part(*part).cpu_us))?;
                    Some(Point { x: f64::from(x), y })
                })
                .collect();
            Series::measured(part.name(), points)
        })
        .collect();
    Block::Chart(Chart::bars(
        format!("CPU time per request, {}", load.name()),
        Axis::new("disk", ""),
        Axis::new("CPU time per request", "us"),
        ways.iter().map(|way| way.name().to_string()).collect(),
        series,
    ))
}

fn work_table(outcome: &Outcome, load: &Load) -> Block {
    let results = &outcome.results;
    let mut columns = vec![heading("disk", ""), heading("requests", ""), heading("interrupts", "")];
    columns.extend(PARTS.iter().map(|part| heading(part.name(), "us")));
    columns.push(heading("switches, guest", ""));
    columns.push(heading("switches, back end", ""));
    columns.push(heading("system calls, guest", ""));
    columns.push(heading("system calls, back end", ""));
    columns.push(heading("kicks", ""));
    columns.push(heading("signals", ""));
    let row = |way: Way| {
        let work = |value: &dyn Fn(&super::results::Work) -> Option<f64>| {
            figure(results.work(load, way, value))
        };
        let mut row = vec![
            Cell::Text(way.name().into()),
            work(&|w| Some(w.requests)),
            work(&|w| Some(w.interrupts)),
        ];
        row.extend(PARTS.iter().map(|part| work(&|w| Some(w.part(*part).cpu_us))));
        row.push(work(&|w| Some(w.part(Part::Guest).switches)));
        row.push(work(&|w| Some(w.part(Part::Backend).switches + w.part(Part::Kernel).switches)));
        for part in [Part::Guest, Part::Backend] {
            row.push(figure(outcome.counted.work(load, way, |w| w.part(part).calls)));
        }
        row.extend([work(&|w| w.kicks), work(&|w| w.signals)]);
        row
    };
    let mut rows: Vec<Vec<Cell>> = Vec::new();
    // The host's own cost, to measure the others by: fio with everything that the kernel does in
    // its name.
    let host = |value: &dyn Fn(&vlane_testbed::fio::Outcome) -> f64| {
        figure(results.spread(load, Way::Host, |m| Some(value(&m.outcome))))
    };
    let mut first =
        vec![Cell::Text("host (fio itself)".into()), Cell::Number(1.0), Cell::Empty, Cell::Empty];
    first.push(host(&|o| o.cpu_us));
    first.extend([Cell::Empty, Cell::Empty]);
    first.push(host(&|o| o.switches));
    first.resize(columns.len(), Cell::Empty);
    rows.push(first);
    rows.extend(outcome.guests().map(row));
    let caption = format!("Per request: {}, depth {}", load.name(), load.depth);
    Block::Table(Table { caption, columns, rows })
}

/// Exits to the host per request, by KVM's reasons: the most frequent ones of each load.
fn exits_table(outcome: &Outcome) -> Option<Block> {
    let results = &outcome.results;
    let ways: Vec<Way> = outcome.guests().collect();
    let mut rows = Vec::new();
    for load in
        TOLD.iter().flat_map(|(pattern, records)| records.map(|record| Load::fio(*pattern, record)))
    {
        let exits = |way: Way, reason: &str| {
            results.work(&load, way, |w| {
                let found =
                    w.exits.iter().find(|(name, _)| name == reason).map(|(_, count)| *count);
                // KVM leaves out what did not happen; but it must have counted something.
                (!w.exits.is_empty()).then_some(found.unwrap_or(0.0))
            })
        };
        let all = results.all.iter().filter(|m| m.load == load).filter_map(|m| m.work.as_ref());
        let reasons: BTreeSet<&str> = all
            .flat_map(|w| w.exits.iter().filter(|(_, n)| *n >= 0.05).map(|(name, _)| name.as_str()))
            .collect();
        for reason in reasons {
            let mut row = vec![Cell::Text(format!("{}: {reason}", load.name()))];
            row.extend(ways.iter().map(|way| figure(exits(*way, reason))));
            rows.push(row);
        }
    }
    if rows.is_empty() {
        return None;
    }
    let mut columns = vec![heading("exits to the host", "")];
    columns.extend(ways.iter().map(|way| heading(way.name(), "")));
    Some(Block::Table(Table { caption: "KVM exits per request, by reason".into(), columns, rows }))
}

/// Times as many requests to the disk per second for 4K as for 512K: the published trace's count,
/// and why small requests cost most.
fn sizes_table(outcome: &Outcome) -> Option<Block> {
    let results = &outcome.results;
    let per_second = |load: &Load, way: Way| {
        results
            .spread(load, way, |m| Some(m.work.as_ref()?.requests * m.outcome.iops))
            .map(|s| s.median)
    };
    let ratio = |pattern, way| {
        let small = per_second(&Load::fio(pattern, 4), way)?;
        Some(small / per_second(&Load::fio(pattern, 512), way)?)
    };
    let cell = |value: Option<f64>| value.map_or(Cell::Empty, Cell::Number);
    let mut rows: Vec<Vec<Cell>> = outcome
        .guests()
        .map(|way| {
            let mut row = vec![Cell::Text(way.name().into())];
            row.extend(TOLD.iter().map(|(pattern, _)| cell(ratio(*pattern, way))));
            row
        })
        .collect();
    if rows.iter().all(|row| row[1..].iter().all(|cell| *cell == Cell::Empty)) {
        return None;
    }
    rows.push(vec![
        Cell::Text("published (2019): calls of QEMU's virtio-blk functions".into()),
        Cell::Number(PUBLISHED_CALLS[0]),
        Cell::Number(PUBLISHED_CALLS[1]),
    ]);
    Some(Block::Table(Table::new(
        "Requests to the disk in the same time: times as many for 4K as for 512K",
        "disk | random read [: 1] | random write [: 1]",
        rows,
    )))
}

fn native_section(outcome: &Outcome) -> Option<Section> {
    let all = &outcome.native;
    let ways: Vec<Way> =
        ALL.into_iter().filter(|way| all.iter().any(|m| m.column == *way)).collect();
    if ways.is_empty() {
        return None;
    }
    let rows = native::loads();
    let guests: Vec<Way> = ways.iter().copied().filter(|way| *way != Way::Host).collect();
    let table = |caption: &str,
                 unit: &str,
                 ways: &[Way],
                 value: &dyn Fn(native::NativeLoad, Way) -> Option<Spread>| {
        let mut columns = vec![heading("load", "")];
        columns.extend(ways.iter().map(|way| heading(way.name(), unit)));
        let row = |load: &native::NativeLoad| {
            let mut row = vec![Cell::Text(load.name())];
            row.extend(ways.iter().map(|way| figure(value(*load, *way))));
            row
        };
        Block::Table(Table {
            caption: caption.into(),
            columns,
            rows: rows.iter().map(row).collect(),
        })
    };
    let figures = |value: fn(&native::NativeMeasurement) -> f64| {
        move |load, way| native::spread(all, load, way, value)
    };
    Some(Section::new(
        "native",
        "The back ends alone, without a guest",
        vec![
            "vlane's driver plays the guest's side at the CPU's own speed; the image is the same. \
             The costs of a guest and of its emulation are missing: here ratios to the host mean \
             something on any machine. The driver needs CPU time that the host's fio does not; 2 \
             jobs are 2 threads with a queue each."
                .into(),
        ],
        vec![
            native_chart(all, &rows, &guests),
            table(&format!("Without a guest: {OF_THE_HOST}"), "%", &guests, &|load, way| {
                times(native::ratio(all, load, way, Way::Host), 100.0)
            }),
            table("Without a guest: requests per second", "IOPS", &ways, &figures(|m| m.iops)),
            table(
                "Without a guest: CPU time of back end (host: fio) per request",
                "us",
                &ways,
                &figures(|m| m.cpu_us),
            ),
            table(
                "Without a guest: context switches of back end (host: fio) per request",
                "",
                &ways,
                &figures(|m| m.switches),
            ),
        ],
    ))
}

/// Throughput without a guest, in per cent of the host's.
fn native_chart(
    all: &[native::NativeMeasurement],
    loads: &[native::NativeLoad],
    ways: &[Way],
) -> Block {
    let series = ways
        .iter()
        .map(|way| {
            let points = (0_u32..).zip(loads).filter_map(|(x, load)| {
                let y = times(native::ratio(all, *load, *way, Way::Host), 100.0)?;
                Some(Point { x: f64::from(x), y })
            });
            Series::measured(way.name(), points.collect())
        })
        .collect();
    Block::Chart(Chart::bars(
        "Back ends without a guest: throughput in per cent of the host's",
        Axis::new("load", ""),
        Axis::new("throughput, of the host's", "%"),
        loads.iter().map(native::NativeLoad::name).collect(),
        series,
    ))
}

/// Descriptions of the columns, and missing measurements.
fn columns_section(outcome: &Outcome) -> Section {
    let rows = outcome
        .shown()
        .into_iter()
        .map(|way| {
            let why = outcome.missing.iter().find(|m| m.column == way);
            let about = match why {
                Some(missing) => format!("Not measured: {}. {}", missing.why, way.about()),
                None => way.about().to_string(),
            };
            let disk = outcome.disks.iter().find(|(column, _)| *column == way).map(|(_, disk)| {
                format!(
                    "{}; queues: {}; scheduler: {}; {}",
                    disk.device, disk.queues, disk.scheduler, disk.cache
                )
            });
            vec![
                Cell::Text(way.name().into()),
                Cell::Text(about),
                disk.map_or(Cell::Empty, Cell::Text),
            ]
        })
        .collect();
    let sizes = outcome.settings;
    let mut text = vec![
        format!(
            "One guest has all disks at once, so that measurements of one load follow each other \
             within seconds, in an order that turns round from load to load and from time to \
             time. Each load was measured {}. Images of {} MiB, each with an ext4 file system of \
             its own; reads and rewrites use a file of {} MiB, \"write\" one of up to {} MiB.",
            match outcome.times() {
                (few, most) if few == most => counted(most, "time"),
                (few, most) => format!("{few} to {}", counted(most, "time")),
            },
            outcome.image_bytes >> 20,
            sizes.old_bytes >> 20,
            sizes.new_bytes >> 20
        ),
        match sizes.cache {
            CacheState::Direct => "fio: direct=1; QEMU and qemu-storage-daemon: aio=io_uring, \
                                   cache.direct=on; vlane: --cache none."
                .into(),
            CacheState::Warm | CacheState::Cold => "fio: direct=0; QEMU and qemu-storage-daemon: \
                                                    aio=io_uring, cache.direct=off; vlane: \
                                                    --cache writeback."
                .to_string(),
        },
    ];
    text.extend(outcome.commands.iter().map(|(name, command)| format!("{name}: {command}")));
    Section::new(
        "columns",
        "Compared disks",
        text,
        vec![Block::Table(Table::new(
            "The columns",
            "column | description | as the guest sees it",
            rows,
        ))],
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
