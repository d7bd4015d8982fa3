//! The report of a comparison whose figures are known.

use vlane_guest::{Accel, Choice};
use vlane_report::build::Begun;

use super::super::columns::Missing;
use super::super::guest::SeenDisk;
use super::super::jobs::{CacheState, Settings};
use super::super::native::NativeMeasurement;
use super::super::results::Results;
use super::super::results::tests::measured;
use super::*;

/// Of the host's throughput, by column: what the made-up machine does.
fn speed(way: Way) -> f64 {
    match way {
        Way::Host => 1.0,
        Way::Vlane => 0.8,
        Way::Virtio => 0.5,
        Way::StorageDaemon => 0.4,
        Way::Ide => 0.1,
        Way::Nvme | Way::VirtioMapped => 0.2,
    }
}

fn outcome(accel: Accel, passes: usize) -> Outcome {
    let columns: Vec<Way> = ALL.into_iter().filter(|way| *way != Way::VirtioMapped).collect();
    let mut all = Vec::new();
    for pass in 0..passes {
        for load in loads::all() {
            all.extend(
                columns.iter().map(|way| measured(pass, load, *way, 10_000.0 * speed(*way))),
            );
        }
    }
    let passes_of = |load| (0..passes).map(move |pass| (pass, load));
    let native = native::loads().into_iter().flat_map(passes_of).flat_map(|(pass, load)| {
        [Way::Host, Way::Vlane, Way::StorageDaemon].map(|column| NativeMeasurement {
            pass,
            load,
            column,
            iops: 50_000.0 * speed(column),
            mb_per_second: 1.0,
            cpu_us: 3.0,
            switches: 0.1,
        })
    });
    let disk = SeenDisk {
        device: "vdb".into(),
        queues: "2".into(),
        scheduler: "none".into(),
        cache_before: "write through".into(),
        cache: "write back".into(),
    };
    Outcome {
        counted: Results { all: all.clone() },
        results: Results { all },
        partial: None,
        uncounted: None,
        native: native.collect(),
        columns,
        missing: vec![Missing {
            column: Way::VirtioMapped,
            why: "needs QEMU 9.0 (iothread-vq-mapping); this is 7.2".into(),
        }],
        deciding: summary::deciding(&loads::all()),
        concludes: true,
        settings: Settings {
            runtime_ms: 700,
            old_bytes: 256 << 20,
            new_bytes: 128 << 20,
            cache: CacheState::Direct,
        },
        image_bytes: 512 << 20,
        accel: Choice { accel, why: "made up".into() },
        kernel: "6.1.0".into(),
        commands: vec![("QEMU".into(), "qemu-system-x86_64 -nodefaults".into())],
        disks: vec![(Way::StorageDaemon, disk)],
    }
}

fn report(outcome: &Outcome) -> Report {
    fill(outcome, &Begun::now(""), &[])
}

fn blocks(report: &Report) -> impl Iterator<Item = (&Section, &Block)> {
    report
        .sections
        .iter()
        .flat_map(|section| section.blocks.iter().map(move |block| (section, block)))
}

#[test]
fn missing_columns_give_their_reason() {
    let report = report(&outcome(Accel::Kvm, 2));
    let mut ratios = 0;
    for (_, block) in blocks(&report) {
        let Block::Table(table) = block else { continue };
        for row in &table.rows {
            assert_eq!(row.len(), table.columns.len(), "{}", table.caption);
        }
        if table.caption.ends_with("throughput") && !table.caption.starts_with("Without") {
            let titles: Vec<&str> = table.columns.iter().map(|c| c.title.as_str()).collect();
            for way in ALL.into_iter().filter(|way| *way != Way::Host) {
                assert!(titles.iter().any(|title| title.starts_with(way.name())), "{titles:?}");
            }
            ratios += 1;
        }
    }
    // Two for each of iozone's record sizes, and fio's.
    assert_eq!(ratios, 8);
    let columns = report.sections.iter().find(|s| s.id == "columns").unwrap();
    let Block::Table(table) = &columns.blocks[0] else { panic!("no table") };
    let told = format!("{:?}", table.rows);
    assert!(table.rows.len() == ALL.len() && told.contains("needs QEMU 9.0"), "{told}");
    assert!(report.notes.iter().any(|note| note.text.contains("needs QEMU 9.0")));
}

#[test]
fn ratios_stand_beside_published_ones() {
    let report = report(&outcome(Accel::Kvm, 3));
    let chart = blocks(&report).find_map(|(section, block)| match block {
        Block::Chart(chart) if section.id == "iozone-16384k" => Some(chart),
        _ => None,
    });
    let chart = chart.unwrap();
    assert_eq!(chart.categories.len(), 6);
    let vlane = chart.series.iter().find(|s| s.name == "vlane").unwrap();
    assert!(!vlane.published && vlane.points.len() == 6);
    assert!(vlane.points.iter().all(|p| (p.y.median - 80.0).abs() < 1e-9 && p.y.runs == 3));
    let published: Vec<_> = chart.series.iter().filter(|s| s.published).collect();
    assert_eq!(published.len(), 2);
    assert!(published[0].points.iter().all(|p| (79.0..87.0).contains(&p.y.median)));
    assert!(published[1].points.iter().all(|p| (52.0..57.0).contains(&p.y.median)));
}

/// The figure of a sample in a column.
fn number(row: &[Cell], column: usize) -> f64 {
    let Cell::Number(value) = row[column] else { panic!("no number: {row:?}") };
    value
}

#[test]
fn published_virtio_is_compared_with_qemu_only() {
    let report = report(&outcome(Accel::Kvm, 3));
    let section = report.sections.iter().find(|section| section.id == "iozone-16384k").unwrap();
    let find = |end: &str| {
        let table = section.blocks.iter().find_map(|block| match block {
            Block::Table(table) if table.caption.ends_with(end) => Some(table),
            _ => None,
        });
        table.unwrap()
    };
    let (beside, ratios) = (find("published and here"), find(OF_THE_HOST));
    // Two published figures for each of the six patterns.
    assert_eq!(beside.rows.len(), 12);
    let at = ratios.columns.iter().position(|column| column.title == Way::Virtio.name()).unwrap();
    let Cell::Figure(own) = ratios.rows[0][at] else { panic!("no ratio") };
    assert_eq!(beside.rows[0][2], Cell::Number(own.median));
    assert!(!format!("{:?}", beside.rows).contains("vlane"), "{:?}", beside.rows);
}

#[test]
fn samples_reproduce_every_bar() {
    let mut scattered = outcome(Accel::Kvm, 5);
    for (i, m) in scattered.results.all.iter_mut().enumerate() {
        m.outcome.iops *= 1.0 + (i * 37 % 101) as f64 / 500.0;
    }
    let report = report(&scattered);
    // Data that a reader of the file has.
    let report = Report::from_json(&report.to_json().unwrap()).unwrap();
    let rows = &report.samples[0].rows;
    assert_eq!(rows.len(), scattered.results.all.len());
    let iops = |load: &Load, way: Way| -> Vec<(f64, f64)> {
        let is =
            |row: &&Vec<Cell>| row[1] == Cell::from(load.id()) && row[2] == Cell::from(way.id());
        rows.iter().filter(is).map(|row| (number(row, 0), number(row, 3))).collect()
    };
    let mut bars = 0;
    for (section, block) in blocks(&report) {
        let Block::Chart(chart) = block else { continue };
        let named = |name: &str| match section.id.strip_prefix("iozone-") {
            Some(record) => loads::all()
                .into_iter()
                .find(|l| l.id() == format!("iozone-{}-{record}", name.replace(' ', "-"))),
            None => loads::fio_table().into_iter().find(|l| l.name() == name),
        };
        if chart.y.title != "throughput, of the host's" || section.id == "native" {
            continue;
        }
        for series in chart.series.iter().filter(|series| !series.published) {
            let way = ALL.into_iter().find(|way| way.name() == series.name).unwrap();
            for (point, name) in series.points.iter().zip(&chart.categories) {
                let load = named(name).unwrap();
                let (of, host) = (iops(&load, way), iops(&load, Way::Host));
                let same = |turn: f64| {
                    host.iter().find(|(other, _)| other.total_cmp(&turn).is_eq()).unwrap().1
                };
                let ratios: Vec<f64> = of.iter().map(|(turn, iops)| iops / same(*turn)).collect();
                let made = times(Spread::of(&ratios), 100.0).unwrap();
                assert_eq!(made, point.y, "{} {name}", series.name);
                bars += 1;
            }
        }
    }
    // The picture's four loads, fio's six and iozone's three times six, on five disks.
    assert_eq!(bars, (4 + 6 + 18) * 5);
}

#[test]
fn terminal_shows_picture_then_ratios() {
    let report = report(&outcome(Accel::Kvm, 2));
    let brief = brief(&report);
    let mut captions = Vec::new();
    for (place, (_, block)) in blocks(&brief).enumerate() {
        match block {
            Block::Table(table) => captions.push(table.caption.as_str()),
            Block::Chart(_) => assert_eq!(place, 0),
        }
    }
    assert_eq!(
        captions.iter().filter(|caption| caption.ends_with(OF_THE_HOST)).count(),
        5,
        "{captions:?}"
    );
    assert!(captions.len() == 7 && brief.summary == report.summary && brief.notes == report.notes);
}

#[test]
fn picture_has_host_only_when_comparable() {
    let vlane = |accel| {
        let report = report(&outcome(accel, 5));
        let Some(Block::Chart(chart)) = report.sections[0].blocks.first() else {
            panic!("no picture")
        };
        let bar = chart.series.iter().find(|series| series.name == "vlane").unwrap().points[0];
        assert_eq!((chart.categories.len(), bar.y.runs), (4, 5));
        bar.y.median
    };
    assert!((vlane(Accel::Kvm) - 80.0).abs() < 1e-9 && (vlane(Accel::Tcg) - 160.0).abs() < 1e-9);
}

#[test]
fn result_marks_emulated_guest() {
    let words = "guest CPU emulated: ratios of virtio to emulated hold, absolute figures and \
                 ratios to the host do not";
    let warned = |report: &Report| {
        report
            .notes
            .iter()
            .any(|note| note.severity == Severity::Warning && note.text.starts_with(words))
    };
    let emulated = report(&outcome(Accel::Tcg, 2));
    assert!(warned(&emulated));
    assert!(!warned(&report(&outcome(Accel::Kvm, 2))));
}

#[test]
fn single_measurements_and_caches_are_named() {
    let once = report(&outcome(Accel::Kvm, 1));
    let told =
        |report: &Report, words: &str| report.notes.iter().any(|note| note.text.contains(words));
    assert!(
        told(&once, "measured once") && !told(&report(&outcome(Accel::Kvm, 2)), "measured once")
    );
    assert!(told(&once, "Direct I/O") && once.title.contains("direct"));
    assert!(told(&once, "came as \"write through\""));
}

#[test]
fn summary_has_three_sentences_with_intervals() {
    assert_eq!(
        report(&outcome(Accel::Kvm, 5)).summary,
        [
            "4K random reads of a guest, over the host's: on vlane 0.80x (0.80x-0.80x); on QEMU \
             virtio-blk 0.50x (0.50x-0.50x); on emulated IDE 0.10x (0.10x-0.10x).",
            "The guest on vlane, over the same guest on QEMU's own virtio-blk: 4K random reads \
             1.60x (1.60x-1.60x); 4K random writes 1.60x (1.60x-1.60x).",
            "Without a guest, vlane over qemu-storage-daemon: 4K random reads 2.00x \
             (2.00x-2.00x); by 2 jobs on 2 queues 2.00x (2.00x-2.00x).",
        ]
    );
    let emulated = report(&outcome(Accel::Tcg, 5)).summary;
    assert!(
        emulated[0].contains("on vlane 8.00x")
            && emulated[0].contains("no statement about the host"),
        "{emulated:?}"
    );
}

/// Fewer than five; the summary says how to get more.
#[test]
fn too_few_turns_are_inconclusive() {
    for passes in 1..5 {
        let summary = report(&outcome(Accel::Kvm, passes)).summary;
        let words =
            format!("No conclusion is drawn: it takes 5 turns of a load, and there were {passes}.");
        assert!(
            summary.len() == 1
                && summary[0].starts_with(&words)
                && summary[0].contains("--repeat 5"),
            "{summary:?}"
        );
    }
}

#[test]
fn quick_run_is_always_inconclusive() {
    for passes in [1, 6] {
        let quick = Outcome { concludes: false, ..outcome(Accel::Kvm, passes) };
        let summary = report(&quick).summary;
        assert!(
            summary.len() == 1 && summary[0].contains("No conclusion is drawn from --quick"),
            "{summary:?}"
        );
    }
}

#[test]
fn scattered_turns_show_no_difference() {
    let mut noisy = outcome(Accel::Kvm, 6);
    let read = Load::fio(Pattern::RandomRead, 4);
    for m in noisy.results.all.iter_mut().filter(|m| m.load == read && m.column == Way::Vlane) {
        m.outcome.iops = 5_000.0 * [0.68, 0.77, 0.99, 1.03, 1.1, 0.97][m.pass];
    }
    let summary = report(&noisy).summary;
    let expected = "4K random reads no difference seen (0.68x-1.10x); 4K random writes 1.60x";
    assert!(summary[1].contains(expected), "{summary:?}");
}

#[test]
#[allow(clippy::float_cmp, reason = "the figure that was put in")]
fn work_is_split_per_request_and_size() {
    let report = report(&outcome(Accel::Kvm, 2));
    let work = report.sections.iter().find(|s| s.id == "work").unwrap();
    let tables: Vec<&Table> = work
        .blocks
        .iter()
        .filter_map(|b| if let Block::Table(t) = b { Some(t) } else { None })
        .collect();
    assert_eq!(tables.len(), 6);
    // The host and five columns.
    assert!(tables[..4].iter().all(|table| table.rows.len() == 6));
    // KVM's exits: two reasons for each of the four.
    assert_eq!((tables[4].rows.len(), tables[4].columns.len()), (8, 6));
    let kicks = tables[0].columns.iter().position(|column| column.title == "kicks").unwrap();
    assert!(matches!(tables[0].rows[1][kicks], Cell::Figure(figure) if figure.median == 0.25));
    assert_eq!(tables[0].rows[2][kicks], Cell::Empty);
    let sizes = tables[5];
    // A 512K request is four to the disk in the made-up guest, at the same number per second.
    assert_eq!(sizes.rows[0][1], Cell::Number(0.25));
    assert_eq!(sizes.rows.last().unwrap()[1], Cell::Number(PUBLISHED_CALLS[0]));
}

#[test]
fn some_loads_make_partial_report() {
    let mut some = outcome(Accel::Kvm, 2);
    some.results.all.retain(|m| m.load.record_kib == 4 && m.load.suite == Suite::Iozone);
    some.native.clear();
    some.deciding = summary::deciding(&some.results.loads());
    let report = report(&some);
    let ids: Vec<&str> = report.sections.iter().map(|s| s.id.as_str()).collect();
    assert_eq!(ids, ["picture", "iozone-4k", "columns"]);
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
}
