//! The report of a comparison whose figures are known.

use vlane_boot::{Accel, Choice};
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
            all.extend(columns.iter().map(|way| measured(pass, load, *way, 10_000.0 * speed(*way))));
        }
    }
    let native = native::loads().into_iter().flat_map(|load| {
        [Way::Host, Way::Vlane, Way::StorageDaemon].map(|column| NativeMeasurement {
            pass: 0,
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
        uncounted: None,
        native: native.collect(),
        columns,
        missing: vec![Missing {
            column: Way::VirtioMapped,
            why: "needs QEMU 9.0 (iothread-vq-mapping); this is 7.2".into(),
        }],
        passes,
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
    report.sections.iter().flat_map(|section| section.blocks.iter().map(move |block| (section, block)))
}

#[test]
fn every_column_appears_in_every_comparison_and_a_missing_one_says_why() {
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
fn ratios_are_those_of_the_figures_and_stand_beside_the_published_ones() {
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
fn what_was_published_of_virtio_is_held_against_qemus_own_and_never_against_vlane() {
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
fn the_terminal_gets_the_ratios_and_no_picture() {
    let report = report(&outcome(Accel::Kvm, 2));
    let brief = brief(&report);
    let captions: Vec<_> = blocks(&brief)
        .map(|(_, block)| match block {
            Block::Table(table) => table.caption.as_str(),
            Block::Chart(chart) => panic!("{}", chart.caption),
        })
        .collect();
    assert_eq!(captions.iter().filter(|caption| caption.ends_with(OF_THE_HOST)).count(), 5, "{captions:?}");
    assert!(captions.len() == 7 && brief.summary == report.summary && brief.notes == report.notes);
}

#[test]
fn an_emulated_guest_is_written_on_the_result() {
    let words = "guest CPU emulated: ratios of virtio to emulated hold, absolute figures and ratios to the host do not";
    let warned = |report: &Report| {
        report.notes.iter().any(|note| note.severity == Severity::Warning && note.text.starts_with(words))
    };
    let emulated = report(&outcome(Accel::Tcg, 2));
    assert!(warned(&emulated) && emulated.summary[0].contains("emulated here"), "{:?}", emulated.summary);
    assert!(!warned(&report(&outcome(Accel::Kvm, 2))));
}

#[test]
fn what_was_measured_once_is_called_so_and_page_caches_are_named() {
    let once = report(&outcome(Accel::Kvm, 1));
    let told = |report: &Report, words: &str| report.notes.iter().any(|note| note.text.contains(words));
    assert!(told(&once, "measured once") && !told(&report(&outcome(Accel::Kvm, 2)), "measured once"));
    assert!(told(&once, "Direct I/O") && once.title.contains("direct"));
    assert!(told(&once, "came as \"write through\""));
}

#[test]
fn the_summary_is_made_of_the_figures() {
    let report = report(&outcome(Accel::Kvm, 2));
    let text = report.summary.join("\n");
    for words in [
        "vlane 80 %, QEMU virtio-blk 50 %, storage-daemon 40 %, emulated IDE 10 %, emulated NVMe 20 %",
        "1.60 times for 4K random reads",
        "10 us in the guest's vCPUs and 20.0 us behind them",
        "vlane reaches 80 % of the host's 4K random reads at depth 32, qemu-storage-daemon 40 %",
        "2.00 times qemu-storage-daemon's single thread",
    ] {
        assert!(text.contains(words), "no \"{words}\" in:\n{text}");
    }
}

#[test]
#[allow(clippy::float_cmp, reason = "the figure that was put in")]
fn where_it_goes_is_told_per_request_and_4k_stands_against_512k() {
    let report = report(&outcome(Accel::Kvm, 2));
    let work = report.sections.iter().find(|s| s.id == "work").unwrap();
    let tables: Vec<&Table> =
        work.blocks.iter().filter_map(|b| if let Block::Table(t) = b { Some(t) } else { None }).collect();
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
fn a_part_of_the_loads_makes_a_part_of_the_report() {
    let mut some = outcome(Accel::Kvm, 2);
    some.results.all.retain(|m| m.load.record_kib == 4 && m.load.suite == Suite::Iozone);
    some.native.clear();
    let report = report(&some);
    let ids: Vec<&str> = report.sections.iter().map(|s| s.id.as_str()).collect();
    assert_eq!(ids, ["iozone-4k", "columns"]);
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
}
