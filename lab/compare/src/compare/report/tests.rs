//! The report of a comparison whose figures are known.

use std::time::Duration;

use clap::ValueEnum;
use vlane_guest::{Accel, Choice};
use vlane_report::{Begun, Severity, Table};

use super::super::jobs::{CacheState, Settings, Sizes};
use super::super::loads::Pattern;
use super::super::native;
use super::super::results::tests::sample;
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

/// Of some loads on some columns, with a host of so many requests per second.
fn measured(loads: Vec<Load>, columns: &[Way], rounds: usize, iops: f64) -> Vec<LoadResult> {
    let mut all = Vec::new();
    for load in loads {
        for _ in 0..rounds {
            let of = |way: &Way| (*way, sample(&load, *way, iops * speed(*way)));
            LoadResult::add(&mut all, load, columns.iter().map(of).collect());
        }
    }
    all
}

fn outcome(accel: Accel, rounds: usize) -> Outcome {
    let columns: Vec<Way> = all_ways().filter(|way| *way != Way::VirtioMapped).collect();
    let mut native =
        measured(native::loads(), &[Way::Host, Way::Vlane, Way::StorageDaemon], rounds, 50_000.0);
    let samples = native.iter_mut().flat_map(|result| &mut result.arms.0);
    samples.for_each(|arm| arm.rounds.iter_mut().for_each(|sample| sample.work = None));
    let disk = "vdb; queues: 2; scheduler: none; write back, came as write through".to_owned();
    let random = loads::all().into_iter().filter(Load::is_random_fio).collect();
    Outcome {
        counted: measured(random, &columns[1..], 1, 10_000.0),
        results: measured(loads::all(), &columns, rounds, 10_000.0),
        uncounted: None,
        native,
        columns,
        missing: vec![(
            Way::VirtioMapped,
            "needs QEMU 9.0 (iothread-vq-mapping); this is 7.2".into(),
        )],
        concludes: true,
        settings: Settings {
            runtime: Duration::from_millis(700),
            sizes: Sizes::of(512 << 20).unwrap(),
            cache: CacheState::Direct,
        },
        accel: Choice { accel, why: "made up".into() },
        commands: vec![("QEMU".into(), "qemu-system-x86_64 -nodefaults".into())],
        disks: vec![(Way::StorageDaemon, disk)],
    }
}

fn all_ways() -> impl Iterator<Item = Way> {
    Way::value_variants().iter().copied()
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
            for way in all_ways().filter(|way| *way != Way::Host) {
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
    assert!(table.rows.len() == all_ways().count() && told.contains("needs QEMU 9.0"), "{told}");
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

#[test]
fn samples_reproduce_every_bar() {
    let mut scattered = outcome(Accel::Kvm, 5);
    let samples = scattered.results.iter_mut().flat_map(|result| &mut result.arms.0);
    for (i, sample) in samples.flat_map(|arm| &mut arm.rounds).enumerate() {
        sample.outcome.iops *= 1.0 + (i * 37 % 101) as f64 / 500.0;
    }
    let report = report(&scattered);
    // Data that a reader of the file has.
    let report = Report::from_json(&report.to_json().unwrap()).unwrap();
    let samples = &report.samples[0];
    assert_eq!(samples.rows.len(), loads::all().len() * scattered.columns.len() * 5);
    let at = |title: &str| samples.columns.iter().position(|c| c.title == title).unwrap();
    let [load_at, disk_at, iops_at] = ["Load", "Disk", "iops"].map(at);
    let iops = |load: &Load, way: &str| -> Vec<f64> {
        let is = |row: &&Vec<Cell>| {
            row[load_at] == Cell::from(load.long_name()) && row[disk_at] == Cell::from(way)
        };
        let number = |row: &Vec<Cell>| {
            let Cell::Number(value) = row[iops_at] else { panic!("no number: {row:?}") };
            value
        };
        samples.rows.iter().filter(is).map(number).collect()
    };
    let mut bars = 0;
    for (section, block) in blocks(&report) {
        let Block::Chart(chart) = block else { continue };
        if chart.y.title != "throughput, of the host's" || section.id == "native" {
            continue;
        }
        let is_fio = !section.id.starts_with("iozone");
        let named = |name: &str| {
            loads::all().into_iter().find(|load| load.is_fio() == is_fio && load.name() == name)
        };
        for series in chart.series.iter().filter(|series| !series.published) {
            for (point, name) in series.points.iter().zip(&chart.categories) {
                let load = named(name).unwrap();
                let (of, host) = (iops(&load, &series.name), iops(&load, "host"));
                assert_eq!((of.len(), host.len()), (5, 5));
                let ratios: Vec<f64> = of.iter().zip(&host).map(|(a, b)| a / b * 100.0).collect();
                assert_eq!(Spread::of(&ratios).unwrap(), point.y, "{} {name}", series.name);
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
    let columns = once.sections.last().unwrap();
    assert!(format!("{:?}", columns.blocks).contains("came as write through"), "{columns:?}");
}

/// The p99 of all columns first, then the throughput of the same.
#[test]
fn summary_has_sentences_with_intervals() {
    let summary = report(&outcome(Accel::Kvm, 5)).summary;
    let begins = [
        "p99 of a guest, over the host's: 4K random reads on vlane 1.25x (1.25x-1.25x); 4K random \
         reads on QEMU virtio-blk 2.00x (2.00x-2.00x); 4K random reads on emulated IDE 10.00x \
         (10.00x-10.00x); 4K random writes on vlane 1.25x",
        "p99 of a guest on vlane, over the same on QEMU's own virtio-blk: 4K random reads 0.62x",
        "p99 without a guest, vlane over qemu-storage-daemon: 4K random reads 0.50x",
        "IOPS of a guest, over the host's: 4K random reads on vlane 0.80x (0.80x-0.80x); 4K",
        "IOPS of a guest on vlane, over the same on QEMU's own virtio-blk: 4K random reads 1.60x \
         (1.60x-1.60x); 4K random writes 1.60x (1.60x-1.60x).",
        "IOPS without a guest, vlane over qemu-storage-daemon: 4K random reads 2.00x \
         (2.00x-2.00x); by 2 jobs on 2 queues 2.00x (2.00x-2.00x).",
    ];
    assert_eq!(summary.len(), begins.len());
    for (sentence, begin) in summary.iter().zip(begins) {
        assert!(sentence.starts_with(begin), "{sentence}");
    }
    let emulated = report(&outcome(Accel::Tcg, 5)).summary;
    assert!(
        emulated[3].contains("on vlane 8.00x")
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
    let result = noisy.results.iter_mut().find(|result| result.load == read).unwrap();
    let arm = result.arms.0.iter_mut().find(|arm| arm.arm == "vlane").unwrap();
    for (sample, ratio) in arm.rounds.iter_mut().zip([0.68, 0.77, 0.99, 1.03, 1.1, 0.97]) {
        sample.outcome.iops = 5_000.0 * ratio;
    }
    let summary = report(&noisy).summary;
    let expected = "4K random reads no difference seen (0.68x-1.10x); 4K random writes 1.60x";
    assert!(summary[4].contains(expected), "{summary:?}");
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
    // Of each load: the work, the system calls, KVM's exits.
    assert_eq!(tables.len(), 4 * 3);
    let column = |table: &Table, title: &str| {
        table.columns.iter().position(|column| column.title == title).unwrap()
    };
    // The host and five columns.
    let [small, calls, exits] = tables[..3] else { panic!("{tables:?}") };
    assert_eq!([small, calls, exits].map(|table| table.rows.len()), [6, 5, 6]);
    let is = |cell: &Cell, value: f64| matches!(cell, Cell::Figure(f) if f.median == value);
    let kicks = column(small, "kicks");
    assert!(is(&small.rows[1][kicks], 0.25), "{small:?}");
    assert_eq!(small.rows[2][kicks], Cell::Empty);
    assert!(is(&small.rows[0][column(small, "host")], 4.0), "{small:?}");
    assert!(is(&small.rows[1][column(small, "switches, back end")], 2.0), "{small:?}");
    assert!(is(&calls.rows[0][column(calls, "back end")], 2.0), "{calls:?}");
    assert_eq!(exits.columns.len(), 1 + 2, "KVM's two reasons");
    assert!(is(&exits.rows[1][column(exits, "io_exits")], 1.5), "{exits:?}");
    // A 512K request is four to the disk in the made-up guest.
    let large = tables.iter().find(|t| t.caption.starts_with("Per request: 512K")).unwrap();
    let requests = column(small, "requests");
    assert!(is(&small.rows[1][requests], 1.0) && is(&large.rows[1][requests], 4.0));
}

#[test]
fn some_loads_make_partial_report() {
    let mut some = outcome(Accel::Kvm, 2);
    some.results.retain(|result| result.load.record_kib == 4 && !result.load.is_fio());
    some.native.clear();
    let report = report(&some);
    let ids: Vec<&str> = report.sections.iter().map(|s| s.id.as_str()).collect();
    assert_eq!(ids, ["picture", "iozone-4k", "columns"]);
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
}
