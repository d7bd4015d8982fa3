//! A report with every kind of chart and everything that a renderer can stumble over, for the
//! tests.

use proptest::prelude::*;

use crate::machine::{Load, Machine, Storage};
use crate::*;

/// A spread of so many percent around a figure.
pub(super) fn spread(median: f64, percent: f64) -> Spread {
    let off = median * percent / 100.0;
    Spread { median, min: median - off, max: median + off * 0.8, runs: 5 }
}

fn exact(value: f64) -> Spread {
    Spread { median: value, min: value, max: value, runs: 1 }
}

pub(super) fn axis(title: &str, unit: &str, log: bool) -> Axis {
    Axis { title: title.into(), unit: unit.into(), log }
}

pub(super) fn by_index(name: &str, values: &[f64]) -> Series {
    let points =
        values.iter().enumerate().map(|(i, v)| Point { x: i as f64, y: spread(*v, 4.0) }).collect();
    Series { name: name.into(), predicted: false, published: false, points }
}

fn over(name: &str, points: &[(f64, f64)], percent: f64) -> Series {
    let points = points.iter().map(|(x, y)| Point { x: *x, y: spread(*y, percent) }).collect();
    Series { name: name.into(), predicted: false, published: false, points }
}

pub(super) fn chart(
    caption: &str,
    kind: ChartKind,
    x: Axis,
    y: Axis,
    categories: &[&str],
    series: Vec<Series>,
) -> Chart {
    let categories = categories.iter().map(ToString::to_string).collect();
    Chart { caption: caption.into(), kind, x, y, categories, series }
}

/// Like a comparison of host, vlane and QEMU.
pub(super) fn throughput() -> Chart {
    let workloads =
        ["4K random read", "4K random write", "512K sequential read", "512K random read"];
    let mut published = by_index("virtio", &[67.0, 58.0, 91.0, 93.0]);
    published.published = true;
    let mut predicted = by_index("vlane, 4 lanes", &[97.0, 95.0, 99.0, 99.0]);
    predicted.predicted = true;
    chart(
        "Throughput of a guest, in percent of the host's",
        ChartKind::Bars,
        axis("Workload", "", false),
        axis("Throughput", "% of the host", false),
        &workloads,
        vec![
            by_index("vlane", &[93.4, 90.1, 98.7, 98.2]),
            by_index("QEMU virtio-blk", &[64.2, 55.8, 93.0, 90.5]),
            by_index("QEMU IDE", &[9.8, 8.7, 55.1, 53.0]),
            published,
            predicted,
        ],
    )
}

pub(super) fn scaling() -> Chart {
    let mut model = over("MT", &[(2.0, 710e3), (4.0, 1.32e6), (8.0, 2.4e6), (16.0, 2.9e6)], 6.0);
    model.predicted = true;
    chart(
        "4K random read on the null device, queue depth 32",
        ChartKind::Lines,
        axis("Jobs", "", true),
        axis("Throughput", "IOPS", false),
        &[],
        vec![
            over(
                "Baseline",
                &[(1.0, 190e3), (2.0, 230e3), (4.0, 212e3), (8.0, 205e3), (16.0, 180e3)],
                9.0,
            ),
            over(
                "MQ",
                &[(1.0, 200e3), (2.0, 310e3), (4.0, 330e3), (8.0, 325e3), (16.0, 320e3)],
                5.0,
            ),
            over("MT", &[(1.0, 370e3), (2.0, 690e3)], 3.0),
            model,
        ],
    )
}

pub(super) fn distribution() -> Chart {
    let cdf = |scale: f64| -> Vec<(f64, f64)> {
        (1..=60)
            .map(|i| (scale * (f64::from(i) / 12.0).exp(), f64::from(i) / 60.0 * 100.0))
            .collect()
    };
    chart(
        "Latency of single 4K reads",
        ChartKind::Steps,
        axis("Latency", "us", true),
        axis("Requests answered", "%", false),
        &[],
        vec![over("vlane", &cdf(9.0), 0.0), over("qemu-storage-daemon", &cdf(24.0), 0.0)],
    )
}

/// A whole report, with texts that are to be escaped.
pub(super) fn report() -> Report {
    let table = Table {
        caption: "Throughput and cost, median of 5 runs (smallest-largest)".into(),
        columns: vec![
            Column::new("Workload", ""),
            Column::new("vlane", "IOPS"),
            Column::new("QEMU virtio-blk", "IOPS"),
            Column::new("ratio", "x"),
            Column::new("CPU per I/O", "us"),
            Column::new("verdict", ""),
        ],
        rows: [
            ("4K random read", 1_090_000.0, 347_600.0, 0.192, "better"),
            ("4K random write", 902_000.0, 310_200.0, 1.84, "better"),
            ("512K sequential read", 21_430.0, 20_990.0, 24.1, "the same"),
        ]
        .map(|(name, a, b, cpu, word)| {
            vec![
                Cell::Text(name.into()),
                Cell::Figure(spread(a, 3.0)),
                Cell::Figure(spread(b, 7.0)),
                Cell::Number(a / b),
                Cell::Figure(spread(cpu, 2.0)),
                Cell::Text(word.into()),
            ]
        })
        .into_iter()
        .chain([vec![Cell::Text("nothing was measured here".into()), Cell::Empty, Cell::Empty]])
        .collect(),
    };
    Report {
        schema: SCHEMA.into(),
        kind: "compare".into(),
        title: "What virtualisation costs on this machine".into(),
        summary: vec![
            "With 4K random reads a guest on vlane reaches 93 % of the host, on QEMU's virtio-blk \
             64 %, on its IDE disk 10 %."
                .into(),
            "With 512K requests all but IDE are within 10 % of the host: what is lost is lost per \
             request."
                .into(),
        ],
        command: "vlane-lab compare host 2G --html report.html --repeat 5 && echo '<done>'".into(),
        created: "2026-03-01T12:00:00Z".into(),
        seconds: 412.0,
        machine: Machine {
            cpu: "AMD EPYC".into(),
            cpus: 2,
            memory_mib: 24_110,
            kernel: "6.18.1".into(),
            hypervisor: "kvm".into(),
            commit: "0123456789ab+".into(),
            storage: vec![Storage {
                file_system: "ext4".into(),
                device: "nvme0n1".into(),
                model: "SAMSUNG MZVL2512".into(),
                is_rotational: false,
                scheduler: "none".into(),
            }],
            load: Some(Load { before: 0.25, after: 1.5, stolen_percent: 0.5, others: Some(0.02) }),
            versions: vec![
                ("vlane".into(), "0.1.0".into()),
                ("qemu".into(), "7.2.22".into()),
                ("fio".into(), "3.33".into()),
            ],
        },
        partial: Some(
            "PARTIAL: 4 of 5 rounds were measured, the next one broke off: interrupted".into(),
        ),
        notes: vec![
            Note {
                severity: Severity::Info,
                text: "Direct I/O everywhere; the host's page cache takes no part.".into(),
            },
            Note {
                severity: Severity::Warning,
                text: "Guest CPU emulated: ratios of virtio to emulated hold, absolute figures do \
                       not."
                    .into(),
            },
        ],
        sections: vec![
            Section {
                id: "throughput".into(),
                title: "Throughput against the host".into(),
                text: vec![
                    "Every figure is from the same file on the same disk, measured in turns. Bars \
                     show medians, whiskers the smallest and the largest of five runs."
                        .into(),
                ],
                command: None,
                blocks: vec![Block::Chart(throughput()), Block::Table(table)],
            },
            Section {
                id: "scaling".into(),
                title: "Baseline, MQ and MT".into(),
                text: vec![
                    "One lock and one thread; many queues and one thread; a thread for every \
                     queue."
                        .into(),
                ],
                command: Some("vlane-lab compare topologies --jobs 1..16".into()),
                blocks: vec![Block::Chart(scaling()), Block::Chart(distribution())],
            },
            Section {
                id: "x\"><script>alert(1)</script>".into(),
                title: "Awkward <texts> & \"quotes\" </script> ]]> --".into(),
                text: vec![
                    "</script><img src=x onerror=alert(1)> &amp; \u{0}\u{2028}\u{1b}[31m".into(),
                ],
                command: Some("printf '<&>'".into()),
                blocks: awkward().into_iter().map(Block::Chart).collect(),
            },
        ],
        samples: vec![Samples::new(
            "runs",
            "Every run </script> & more",
            "Workload | Disk | Throughput [IOPS]",
            vec![
                vec!["4K random read".into(), "vlane".into(), Cell::Number(1_090_000.5)],
                vec!["4K random read".into(), "QEMU, \"virtio\"".into(), Cell::Empty],
            ],
        )],
    }
}

/// Charts that break careless renderers.
pub(super) fn awkward() -> Vec<Chart> {
    let many: Vec<String> = (1..=64).map(|i| format!("lane {i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let values: Vec<f64> = (0..64).map(|i| 1000.0 + f64::from(i) * 37.0).collect();
    let long = "A name that goes on and on, as names of workloads do when every option is in \
                them: randrw bs=4096 iodepth=32";
    let plain = |kind, series| {
        chart("Awkward", kind, axis("x", "", false), axis("Rate", "IOPS", false), &[], series)
    };
    let mut charts = vec![
        chart(
            "No data at all",
            ChartKind::Bars,
            axis("", "", false),
            axis("", "", false),
            &[],
            vec![],
        ),
        chart(
            "Series without points",
            ChartKind::Lines,
            axis("x", "us", true),
            axis("y", "", true),
            &[],
            vec![by_index("empty", &[])],
        ),
        chart(
            "Sixty-four categories",
            ChartKind::Bars,
            axis("Lane", "", false),
            axis("Rate", "IOPS", false),
            &many,
            vec![by_index("a", &values), by_index("b", &values)],
        ),
        chart(
            long,
            ChartKind::Bars,
            axis(long, "us", false),
            axis(long, long, false),
            &[long, "short"],
            vec![by_index(long, &[1.0, 2.0]), by_index("<&\">", &[0.0, 0.0])],
        ),
        chart(
            "Logarithmic bars, one at zero",
            ChartKind::Bars,
            axis("", "", false),
            axis("Latency", "us", true),
            &["a", "b", "c"],
            vec![by_index("x", &[0.0, 12.0, 1e6])],
        ),
        chart(
            "Below zero",
            ChartKind::Bars,
            axis("", "", false),
            axis("Change", "%", false),
            &["a", "b"],
            vec![by_index("x", &[-12.0, 30.0])],
        ),
    ];
    for kind in [ChartKind::Bars, ChartKind::Lines, ChartKind::Steps] {
        charts.push(plain(kind, vec![by_index("one point", &[5.0])]));
        charts.push(plain(kind, vec![by_index("zeros", &[0.0, 0.0, 0.0])]));
        charts.push(plain(
            kind,
            vec![by_index("not numbers", &[f64::NAN, 3.0, f64::INFINITY, -1e300])],
        ));
        let twelve = (0..12).map(|i| {
            by_index(&format!("series {i}"), &[1.0 + f64::from(i), 5.0, 9.0 - f64::from(i) / 2.0])
        });
        charts.push(plain(kind, twelve.collect()));
        let steps = (0..500_u16)
            .map(|i| Point { x: f64::from(i) * 1e7, y: exact(f64::from(i % 7)) })
            .collect();
        charts.push(plain(
            kind,
            vec![Series {
                name: "many points".into(),
                predicted: true,
                published: true,
                points: steps,
            }],
        ));
    }
    charts
}

fn any_spread() -> impl Strategy<Value = Spread> {
    (-1e12..1e12_f64, 0.0..1e6_f64, 0.0..1e6_f64, 0..100_usize).prop_map(
        |(median, down, up, runs)| Spread { median, min: median - down, max: median + up, runs },
    )
}

fn any_axis() -> impl Strategy<Value = Axis> {
    ("\\PC{0,12}", "\\PC{0,6}", any::<bool>()).prop_map(|(title, unit, log)| Axis {
        title,
        unit,
        log,
    })
}

fn any_cell() -> impl Strategy<Value = Cell> {
    prop_oneof![
        any_spread().prop_map(Cell::Figure),
        (-1e12..1e12_f64).prop_map(Cell::Number),
        "\\PC{0,20}".prop_map(Cell::Text),
        Just(Cell::Empty),
    ]
}

fn any_series() -> impl Strategy<Value = Series> {
    let points = prop::collection::vec(
        (-1e6..1e6_f64, any_spread()).prop_map(|(x, y)| Point { x, y }),
        0..8,
    );
    ("\\PC{0,20}", any::<bool>(), any::<bool>(), points).prop_map(
        |(name, predicted, published, points)| Series { name, predicted, published, points },
    )
}

pub(super) fn any_chart() -> impl Strategy<Value = Chart> {
    let kind = prop_oneof![Just(ChartKind::Bars), Just(ChartKind::Lines), Just(ChartKind::Steps)];
    let categories = prop::collection::vec("\\PC{0,20}", 0..6);
    (
        "\\PC{0,40}",
        kind,
        any_axis(),
        any_axis(),
        categories,
        prop::collection::vec(any_series(), 0..5),
    )
        .prop_map(|(caption, kind, x, y, categories, series)| Chart {
            caption,
            kind,
            x,
            y,
            categories,
            series,
        })
}

fn any_table() -> impl Strategy<Value = Table> {
    let columns = prop::collection::vec(
        ("\\PC{0,12}", "\\PC{0,6}").prop_map(|(title, unit)| Column { title, unit }),
        0..6,
    );
    let rows = prop::collection::vec(prop::collection::vec(any_cell(), 0..7), 0..6);
    ("\\PC{0,30}", columns, rows).prop_map(|(caption, columns, rows)| Table {
        caption,
        columns,
        rows,
    })
}

fn any_samples() -> impl Strategy<Value = Samples> {
    ("[a-z-]{0,8}", any_table()).prop_map(|(id, table)| Samples {
        id,
        caption: table.caption,
        columns: table.columns,
        rows: table.rows,
    })
}

/// Any report that can be measured: all its figures are numbers.
pub(super) fn any_report() -> impl Strategy<Value = Report> {
    let block = prop_oneof![any_table().prop_map(Block::Table), any_chart().prop_map(Block::Chart)];
    let section = (
        "\\PC{0,10}",
        "\\PC{0,30}",
        prop::option::of("\\PC{0,30}"),
        prop::collection::vec(block, 0..3),
    )
        .prop_map(|(id, title, command, blocks)| Section {
            id,
            text: vec![title.clone()],
            title,
            command,
            blocks,
        });
    let texts = ("\\PC{0,30}", "\\PC{0,30}", "\\PC{0,60}");
    let samples = prop::collection::vec(any_samples(), 0..3);
    (texts, 0.0..1e6_f64, prop::collection::vec(section, 0..4), samples).prop_map(
        |((title, command, summary), seconds, sections, samples)| Report {
            samples,
            title,
            command,
            summary: vec![summary],
            seconds,
            sections,
            ..report()
        },
    )
}
