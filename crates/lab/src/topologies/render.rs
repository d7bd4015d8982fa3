//! The experiment's report.

use super::cell::Cell;
use super::measured::{Group, Measured, Options};
use super::model::{Lane, predict};
use super::patterns::Pattern;
use super::validate::{Check, Suite, TOLERANCE};
use super::{Kind, Placement, Subject, Topology};
use vlane_error::counted;
use vlane_report::build::{spread as spread_of, table};
use vlane_report::published::{self, Interval, Published, Row, Said};
use vlane_report::{
    Axis, Block, Cell as TableCell, Chart, Column, Note, Point, Report, Samples, Section, Series, Spread,
    Table,
};

/// Lanes that predictions are made for.
const LANES: [u32; 6] = [1, 2, 4, 8, 16, 64];

/// Makes the report.
pub(super) fn report(options: &Options, measured: &Measured<'_>) -> Report {
    let check = |(group, suite): &(Group, Suite<'_>)| {
        let (group, all) = (*group, suite.checks(&measured.prices, measured.cpus, options.depth));
        all.into_iter().map(move |check| (group, check))
    };
    let checks: Vec<_> = measured.suites.iter().flat_map(check).collect();
    let mut sections = Vec::new();
    if !options.validate_only {
        for pattern in &measured.patterns {
            sections.push(figure(measured, pattern, Group::Paper));
        }
        sections.push(against_the_paper(measured));
        sections.push(overcommit(measured));
        for pattern in &measured.patterns {
            if measured.cells.keys().any(|(name, group, ..)| *name == pattern.name && *group == Group::Bare) {
                sections.push(figure(measured, pattern, Group::Bare));
            }
        }
        sections.extend(scaling(options, measured));
    }
    sections.push(validation(&checks));
    sections.push(prices(measured, &checks));
    let title = match options.validate_only {
        true => "The scaling model against measurements",
        false => "Baseline, MQ and MT: queues, threads and a global mutex",
    };
    Report {
        summary: summary(options, measured, &checks),
        notes: notes(options, measured),
        sections,
        samples: vec![samples(measured)],
        ..measured.begun.report("topologies", title, &[])
    }
}

fn notes(options: &Options, measured: &Measured<'_>) -> Vec<Note> {
    let mut notes = Vec::new();
    let cpus = measured.cpus;
    let over: Vec<_> =
        measured.jobs.iter().filter(|n| usize::from(**n) * 2 > cpus).map(|n| n.to_string()).collect();
    if !options.validate_only && !over.is_empty() {
        let text = format!(
            "With {} jobs, jobs and lanes are more threads than the {cpus} CPUs: these figures show what topologies cost, not how they \
             scale. The section on scaling predicts more CPUs.",
            over.join(", ")
        );
        notes.push(Note::warning(text));
    }
    notes.push(Note::info(
        "Context switches, lock waits and CPU time are those of the jobs and of the I/O threads. Kernel virtual machine exits are not \
         in them: no guest is run here, jobs are threads of the driver.",
    ));
    notes.push(Note::info(
        "Shared cache lines are counted by what distance costs, divided by the price of one line's transfer: perf c2c would name them, but \
         needs the processor's memory sampling (PEBS, IBS, SPE), which virtual machines seldom have.",
    ));
    let shares: Vec<_> = measured.suites.iter().filter_map(|(_, suite)| suite.cpu_share()).collect();
    let share = vlane_report::stats::median(&shares);
    if share < 0.9 {
        let text = format!(
            "One lane got {:.0} % of its CPU: other programs ran meanwhile. Neither the throughputs nor the check of the model can be \
             relied on; measure again when the machine is quiet.",
            share * 100.0
        );
        notes.push(Note::warning(text));
    }
    if measured.repeats < 3 {
        notes.push(Note::warning(format!(
            "Only {}: the spread means little.",
            counted(measured.repeats, "round")
        )));
    }
    notes
}

fn spread(cells: Option<&Vec<Cell>>, pick: impl Fn(&Cell) -> f64) -> Option<Spread> {
    spread_of(cells?, |cell| Some(pick(cell)))
}

/// A column of [`figure`]'s table: its title, and what of a cell stands in it.
type Figure = (&'static str, fn(&Cell) -> Option<f64>);

/// What the tables of a pattern show of every cell.
const FIGURES: [Figure; 12] = [
    ("IOPS [k]", |c| Some(c.iops / 1e3)),
    ("throughput [MB/s]", |c| Some(c.mb_per_second)),
    ("p50 [us]", |c| Some(c.p50)),
    ("p95 [us]", |c| Some(c.p95)),
    ("p99 [us]", |c| Some(c.p99)),
    ("CPU per I/O [us]", |c| Some((c.guest_cpu + c.device_cpu) / 1e3)),
    ("switches per I/O", |c| Some(c.switches)),
    ("kicks per I/O", |c| Some(c.kicks)),
    ("signals per I/O", |c| c.signals),
    ("lock wait per I/O [us]", |c| Some(c.lock?.wait_per_io)),
    ("mean lock wait [us]", |c| Some(c.lock?.wait_mean)),
    ("locks waited for [%]", |c| Some(c.lock?.contended * 100.0)),
];

/// Every cell of every round: those of the figures, then those that the model is made of and held against.
fn samples(measured: &Measured<'_>) -> Samples {
    let mut rows = Vec::new();
    let group = |group| if group == Group::Paper { "as in the paper" } else { "by themselves" };
    let mut add = |labels: [String; 4], cells: &[Cell]| {
        for (round, cell) in (1_u32..).zip(cells) {
            let mut row: Vec<TableCell> = labels.iter().cloned().map(TableCell::from).collect();
            row.push(TableCell::Number(round.into()));
            row.extend(FIGURES.map(|(_, pick)| TableCell::from(pick(cell))));
            rows.push(row);
        }
    };
    let mut keys: Vec<_> = measured.cells.iter().collect();
    keys.sort_by_key(|((pattern, group, subject, jobs), _)| {
        (*pattern, *group == Group::Bare, subject.to_string(), *jobs)
    });
    for ((pattern, of, subject, jobs), cells) in keys {
        add([(*pattern).into(), group(*of).into(), subject.to_string(), counted(jobs, "job")], cells);
    }
    for (of, suite) in &measured.suites {
        for (subject, what, cells) in suite.measured() {
            add([suite.pattern.into(), group(*of).into(), subject.to_string(), what.into()], cells);
        }
    }
    let columns = FIGURES.map(|(title, _)| title).join(" | ");
    let columns = format!("pattern | work | topology | what | round | {columns}");
    Samples::new("rounds", "Every round of every topology", &columns, rows)
}

/// A subject's figures over the numbers of jobs, as far as they were measured.
fn over_jobs(
    measured: &Measured<'_>,
    (pattern, group): (&'static str, Group),
    subject: Subject,
    pick: impl Fn(&Cell) -> f64,
) -> Vec<Point> {
    let point = |jobs: &u16| {
        let cells = measured.cells.get(&(pattern, group, subject, *jobs));
        Some(Point { x: f64::from(*jobs), y: spread(cells, &pick)? })
    };
    measured.jobs.iter().filter_map(point).collect()
}

/// Throughput over jobs, and everything else as a table.
fn figure(measured: &Measured<'_>, pattern: &Pattern, group: Group) -> Section {
    let has = |subject: &Subject| {
        measured.cells.keys().any(|(p, g, s, _)| (*p, *g, s) == (pattern.name, group, subject))
    };
    let all =
        [Kind::Model, Kind::Vlane].into_iter().flat_map(|kind| Topology::MEASURED.map(|t| kind.with(t)));
    let subjects: Vec<_> = all.filter(has).collect();
    let is_large = pattern.block > 4096;
    let pick = |cell: &Cell| if is_large { cell.mb_per_second / 1e3 } else { cell.iops / 1e3 };
    let of = (pattern.name, group);
    let series = subjects
        .iter()
        .map(|subject| Series::measured(subject.to_string(), over_jobs(measured, of, *subject, pick)));
    let chart = Chart::lines(
        format!("{}, depth per job as given, throughput over jobs", pattern.title),
        Axis::new("jobs", ""),
        if is_large { Axis::new("throughput", "GB/s") } else { Axis::new("requests per second", "k") },
        series.collect(),
    );
    let mut rows = Vec::new();
    for jobs in &measured.jobs {
        for subject in &subjects {
            let cells = measured.cells.get(&(pattern.name, group, *subject, *jobs));
            let mut row: Vec<TableCell> = vec![f64::from(*jobs).into(), subject.to_string().into()];
            row.extend(FIGURES.map(|(_, pick)| cells.and_then(|cells| spread_of(cells, pick)).into()));
            rows.push(row);
        }
    }
    let columns = FIGURES.map(|(title, _)| title).join(" | ");
    let table =
        table(format!("{}: every figure", pattern.title), &format!("jobs | topology | {columns}"), rows);
    let (guest, host) = pattern.paper_work();
    let us = |time: std::time::Duration| time.as_secs_f64() * 1e6;
    let (id, title, text) = match group {
        Group::Paper => (
            format!("paper-{}", pattern.name),
            format!("As in the paper: {}", pattern.title),
            format!(
                "Each request costs its job {:.1} us and the I/O thread {:.1} us of CPU time besides: what a guest and a host spent on it in \
                 the paper, by its own figures. The device is the one in this process; topologies differ in queues, threads and the \
                 mutex alone.",
                us(guest),
                us(host)
            ),
        ),
        Group::Bare => (
            format!("bare-{}", pattern.name),
            format!("The topologies by themselves: {}", pattern.title),
            "Nothing is done but to pass requests on, so the figures are the topologies' own cost. \"vlane MQ\" and \"vlane MT\" are \
             `vlane serve` in a process of its own, with its busy polling."
                .into(),
        ),
    };
    Section::new(id, title, vec![text], vec![Block::Chart(chart), table])
}

/// Median IOPS of a cell.
fn iops(
    measured: &Measured<'_>,
    pattern: &'static str,
    group: Group,
    subject: Subject,
    jobs: u16,
) -> Option<f64> {
    Some(spread(measured.cells.get(&(pattern, group, subject, jobs)), |c| c.iops)?.median)
}

/// The number of jobs with which MT is the furthest above another topology.
fn best_jobs(measured: &Measured<'_>, pattern: &'static str, other: Topology) -> Option<u16> {
    let ratio = |jobs: &u16| {
        let ratio = over(measured, pattern, (Topology::Mt, other), *jobs, |c| c.iops).ok()?;
        Some((*jobs, ratio.middle))
    };
    measured.jobs.iter().filter_map(ratio).max_by(|a, b| a.1.total_cmp(&b.1)).map(|(jobs, _)| jobs)
}

/// Measurements of a topology on the paper's work, of the first kind: with so many jobs.
fn cells_of<'a>(
    measured: &'a Measured<'_>,
    pattern: &'static str,
    topology: Topology,
    jobs: u16,
) -> Option<&'a Vec<Cell>> {
    measured.cells.get(&(pattern, Group::Paper, Kind::Model.with(topology), jobs))
}

/// A figure of one topology over that of another, with as many jobs each.
fn over(
    measured: &Measured<'_>,
    pattern: &'static str,
    (topology, other): (Topology, Topology),
    jobs: u16,
    pick: impl Fn(&Cell) -> f64,
) -> Result<Interval, String> {
    let of = |topology| spread(cells_of(measured, pattern, topology, jobs), &pick);
    let ratio = of(topology).zip(of(other)).and_then(|(of, over)| Interval::ratio(&of, &over));
    ratio.ok_or_else(|| format!("not with {}", counted(jobs, "job")))
}

fn against_the_paper(measured: &Measured<'_>) -> Section {
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    let mut rows = Vec::new();
    let cpus = u16::try_from(measured.cpus).unwrap_or(u16::MAX);
    for (at, pattern) in measured.patterns.iter().enumerate() {
        let x = at as f64;
        theirs.push(Point::exact(x, pattern.published.over_baseline));
        let pairs = [
            (Topology::Baseline, Some(pattern.published.over_baseline)),
            (Topology::Mq, pattern.published.over_mq),
        ];
        for (other, paper) in pairs {
            let Some(paper) = paper else { continue };
            let mut row = |jobs: &str, here| {
                let figure = format!("{}: MT / {other}, {jobs}", pattern.title);
                rows.push(Row { figure, published: Published::ratio(paper), here });
            };
            // Where the paper's ratio was taken: as many jobs as CPUs.
            let at_cpus = over(measured, pattern.name, (Topology::Mt, other), cpus, |c| c.iops);
            if let (Ok(ratio), Topology::Baseline) = (&at_cpus, other) {
                ours.push(Point::exact(x, ratio.middle));
            }
            row(&format!("{}, one for each CPU", counted(cpus, "job")), at_cpus);
            if let Some(jobs) = best_jobs(measured, pattern.name, other).filter(|jobs| *jobs != cpus) {
                let most = over(measured, pattern.name, (Topology::Mt, other), jobs, |c| c.iops);
                row(&format!("at most, which is with {}", counted(jobs, "job")), most);
            }
        }
    }
    let series = vec![
        Series::measured("measured, jobs = CPUs", ours),
        Series::published("Kim, Kang, Eom 2016, at most", theirs),
    ];
    let chart = Chart::bars(
        "MT over Baseline",
        Axis::new("pattern", ""),
        Axis::new("ratio of throughputs", ""),
        measured.patterns.iter().map(|p| p.title.to_string()).collect(),
        series,
    );
    let mut blocks = vec![Block::Chart(chart), Block::Table(published::table("Ratios to MT", &rows))];
    let mut numbers: Vec<_> =
        u16::try_from(measured.cpus).ok().into_iter().chain(measured.jobs.last().copied()).collect();
    numbers.dedup();
    blocks.extend(numbers.into_iter().filter_map(|jobs| figure_three(measured, jobs)));
    blocks.push(what_the_mutex_is(measured, cpus));
    Section::new("paper-ratios", "Beside the published figures", vec![
            "The paper's machine had 8 hardware threads and a real guest; absolute figures of another machine mean nothing here, ratios \
             and shapes do. Its ratios are those of the best case over its numbers of processes."
                .into(),
            published::LEGEND.into(),
        ], blocks)
}

/// MT's gain over Baseline in two parts, of which the paper has the product: more queues and threads, and no mutex.
fn what_the_mutex_is(measured: &Measured<'_>, jobs: u16) -> Block {
    let row = |pattern: &Pattern| {
        let ratio = |of, other| -> TableCell {
            let ratio = over(measured, pattern.name, (of, other), jobs, |c| c.iops);
            ratio.map_or(TableCell::Empty, |ratio| {
                let Interval { middle: median, low: min, high: max, runs, .. } = ratio;
                TableCell::Figure(Spread { median, min, max, runs })
            })
        };
        vec![
            pattern.title.into(),
            ratio(Topology::Mt, Topology::Baseline),
            ratio(Topology::Unlocked, Topology::Baseline),
            ratio(Topology::Mt, Topology::Unlocked),
        ]
    };
    let columns = "pattern | MT / Baseline [x] | no mutex / Baseline [x] | MT / no mutex [x]";
    let caption = format!("What the mutex is, and what queues and threads are: {}", counted(jobs, "job"));
    table(caption, columns, measured.patterns.iter().map(row).collect())
}

/// The paper's figure 3 and its section 2.1: throughput, latency, context switches and lock waits of MT against Baseline.
fn figure_three(measured: &Measured<'_>, jobs: u16) -> Option<Block> {
    let pattern = measured.patterns.first()?;
    let both = (Topology::Mt, Topology::Baseline);
    let row = |figure: &str, value: f64, here| Row {
        figure: figure.into(),
        published: Published::ratio(value),
        here,
    };
    let wait: fn(&Cell) -> f64 = |c| c.lock.map_or(0.0, |l| l.wait_mean);
    let rows = [
        row(
            "requests per second (section 3.4: +167 %)",
            2.67,
            over(measured, pattern.name, both, jobs, |c| c.iops),
        ),
        row("p50 latency", 0.41, over(measured, pattern.name, both, jobs, |c| c.p50)),
        row(
            "context switches per s",
            0.10,
            over(measured, pattern.name, both, jobs, |c| c.switches * c.iops),
        ),
        // MT has no lock here.
        row(
            "mean wait for the lock, MQ over Baseline",
            0.2,
            over(measured, pattern.name, (Topology::Mq, Topology::Baseline), jobs, wait),
        ),
    ];
    let caption = format!("{}, {}: MT over Baseline", pattern.title, counted(jobs, "job"));
    rows.iter().any(|row| row.here.is_ok()).then(|| Block::Table(published::table(caption, &rows)))
}

fn overcommit(measured: &Measured<'_>) -> Section {
    let (fit, twice) = (measured.cpus, measured.cpus * 2);
    let mut rows = Vec::new();
    for pattern in &measured.patterns {
        for topology in Topology::ALL {
            let of = |jobs: usize| {
                let jobs = u16::try_from(jobs).ok()?;
                iops(measured, pattern.name, Group::Paper, Kind::Model.with(topology), jobs)
            };
            let (Some(fits), Some(over)) = (of(fit), of(twice)) else { continue };
            let most = measured.jobs.last().and_then(|n| of(usize::from(*n)));
            let change = |now: f64| (now / fits - 1.0) * 100.0;
            rows.push(vec![
                pattern.title.into(),
                topology.to_string().into(),
                (fits / 1e3).into(),
                (over / 1e3).into(),
                change(over).into(),
                most.map(change).into(),
            ]);
        }
    }
    let most = measured.jobs.last().copied().unwrap_or(0);
    let lanes = table(
        "From as many lanes as CPUs to twice as many and more",
        &format!(
            "pattern | topology | {} [k IOPS] | {} [k IOPS] | change [%] | change at {} [%]",
            counted(fit, "lane"),
            counted(twice, "lane"),
            counted(most, "lane")
        ),
        rows,
    );
    Section::new(
        "overcommit",
        "Overcommit: more lanes than CPUs",
        vec!["The paper's figure 6: 16 virtual CPUs on 8 hardware threads.".into(), published::LEGEND.into()],
        vec![lanes, Block::Table(figure_six(measured, fit, twice))],
    )
}

/// The paper's figure 6: twice as many lanes over as many as CPUs.
fn figure_six(measured: &Measured<'_>, fit: usize, twice: usize) -> Table {
    let row = |topology: Topology, words: &str, published| {
        let of = |jobs: usize| {
            spread(cells_of(measured, "randread", topology, u16::try_from(jobs).ok()?), |c| c.iops)
        };
        let ratio = of(twice).zip(of(fit)).and_then(|(of, over)| Interval::ratio(&of, &over));
        let here = ratio.ok_or_else(|| format!("not with {fit} and {twice} lanes"));
        Row { figure: format!("{topology}: {words}"), published, here }
    };
    let falls = Published { said: Said::Less, no_change: Some(1.0) };
    published::table(
        format!("4K random read: {twice} lanes over {fit}"),
        &[
            row(Topology::Baseline, "falls steeply (in words)", falls),
            row(Topology::Mq, "keeps its throughput (in words)", Published::ratio(1.0)),
            row(Topology::Mq, "or loses some (in words)", falls),
            row(Topology::Mt, "gains 4 %", Published::ratio(1.04)),
            row(Topology::Mt, "to 9 %", Published::ratio(1.09)),
        ],
    )
}

/// The lanes' costs that predictions are made from: of the first pattern.
fn lanes_of(measured: &Measured<'_>, group: Group, kind: Kind, depth: u16) -> Vec<(Topology, Lane)> {
    let suite = measured.suites.iter().find(|(g, suite)| (*g, suite.kind) == (group, kind));
    let Some((_, suite)) = suite else { return Vec::new() };
    Topology::ALL
        .into_iter()
        .filter_map(|topology| {
            Some((topology, suite.lane(topology, &measured.prices, measured.cpus, depth)?))
        })
        .collect()
}

fn scaling(options: &Options, measured: &Measured<'_>) -> Vec<Section> {
    let here = u32::try_from(measured.cpus).unwrap_or(1);
    let mut cpus = vec![here];
    cpus.extend(&options.cpus);
    cpus.sort_unstable();
    cpus.dedup();
    let mut sections = Vec::new();
    let devices = [
        (Group::Paper, Kind::Model, "with the paper's work per request"),
        (Group::Bare, Kind::Vlane, "vlane by itself"),
    ];
    for (group, kind, words) in devices {
        let mut lanes = lanes_of(measured, group, kind, options.depth);
        // Only what the model is right about: one thread or one mutex for all waits for time slices, which are not in it.
        lanes.retain(|(topology, _)| *topology == Topology::Mt);
        let mut blocks = Vec::new();
        let mut rows = Vec::new();
        for n in &cpus {
            let series = lanes.iter().map(|(topology, lane)| {
                let iops = |jobs| predict(*topology, lane, jobs, *n).iops / 1e3;
                let points = LANES.map(|jobs| Point::exact(f64::from(jobs), iops(jobs))).to_vec();
                Series { predicted: true, ..Series::measured(kind.with(*topology).to_string(), points) }
            });
            let mut series: Vec<_> = series.collect();
            if *n == here {
                series.extend(measured_series(measured, group, kind));
            }
            blocks.push(Block::Chart(Chart::lines(
                format!("4K random read on {}, {words}", counted(n, "CPU")),
                Axis::log("jobs", ""),
                Axis::new("requests per second", "k"),
                series,
            )));
            for (topology, lane) in &lanes {
                let mut row = vec![f64::from(*n).into(), kind.with(*topology).to_string().into()];
                let all = LANES.map(|jobs| predict(*topology, lane, jobs, *n));
                row.extend(all.map(|p| TableCell::from(p.iops / 1e3)));
                row.push(all.last().map_or(String::new(), |p| p.limit.to_string()).into());
                rows.push(row);
            }
        }
        let mut columns = vec![Column::new("CPUs", ""), Column::new("topology", "")];
        columns.extend(LANES.iter().map(|n| Column::new(&counted(n, "lane"), "k IOPS")));
        columns.push(Column::new("ends at", ""));
        blocks.push(table("Predicted", columns, rows));
        sections.push(Section::new(format!("scaling-{}", if group == Group::Paper { "paper" } else { "vlane" }), format!("Scaling, predicted: {words}"), vec![
                "Dashed lines are calculated from measurements of one lane (the next sections show them, and how far off the model is for two): of \
                 lanes that share nothing. Of one thread, or one mutex, for all it is far off, so nothing is predicted of MQ and Baseline. \
                 Threads are placed as in the measurement: job i and I/O thread i on CPU i modulo the CPUs."
                    .into(),
            ], blocks));
    }
    sections
}

fn measured_series(measured: &Measured<'_>, group: Group, kind: Kind) -> Vec<Series> {
    let Some(pattern) = measured.patterns.first() else { return Vec::new() };
    let series = |topology| {
        let subject = kind.with(topology);
        let points = over_jobs(measured, (pattern.name, group), subject, |c| c.iops / 1e3);
        (!points.is_empty()).then(|| Series::measured(format!("{subject}, measured"), points))
    };
    Topology::ALL.into_iter().filter_map(series).collect()
}

fn group_words(group: Group) -> &'static str {
    match group {
        Group::Paper => "the paper's",
        Group::Bare => "none",
    }
}

fn validation(checks: &[(Group, Check)]) -> Section {
    let thousands = |all: &[f64]| spread_of(all, |v| Some(v / 1e3)).into();
    let rows = checks.iter().map(|(group, check)| {
        let error = check.error();
        vec![
            check.pattern.as_str().into(),
            check.subject.to_string().into(),
            group_words(*group).into(),
            thousands(&check.single),
            (check.predicted.iops / 1e3).into(),
            thousands(&check.measured),
            (error * 100.0).into(),
            if error.abs() <= TOLERANCE { "within 15 %" } else { "off" }.into(),
        ]
    });
    let table = table(
        "Two lanes: predicted from one lane, and measured",
        "pattern | topology | work per request | 1 lane, measured [k IOPS] | \
            2 lanes, predicted [k IOPS] | 2 lanes, measured [k IOPS] | error [%] | ",
        rows.collect(),
    );
    Section::new("validation", "How far off the scaling model is", vec![
            "The prediction uses measurements of one lane alone, made in turn with those of two. \"1 lane\" is job and I/O thread on one CPU \
             while the others are busy with something else."
                .into(),
        ], vec![table])
}

/// What the model was given.
fn prices(measured: &Measured<'_>, checks: &[(Group, Check)]) -> Section {
    let prices = &measured.prices;
    let mut rows = Vec::new();
    let mut row = |name: String, ns: Option<f64>| {
        rows.push(vec![name.into(), ns.into()]);
    };
    row("a cache line from one CPU to another".into(), prices.line);
    row("waking a thread on the same CPU by an eventfd, until it runs".into(), Some(prices.wake_here));
    row("waking a thread on another, idle CPU, until it runs".into(), prices.wake_there);
    row("... of which the writer's own time".into(), prices.waking_there);
    for (threads, ns) in &prices.handover {
        row(format!("handing the mutex over, {} at it", counted(threads, "thread")), Some(*ns));
    }
    let machine = table("What meeting costs on this machine", "what | time [ns]", rows);
    let rows = checks.iter().map(|(group, check)| {
        let lane = &check.lane;
        let distance = lane.guest_remote + lane.device_remote - lane.guest_local - lane.device_local;
        let lines = prices.line.filter(|line| *line > 0.0).map(|line| (distance / line).max(0.0));
        vec![
            check.pattern.as_str().into(),
            check.subject.to_string().into(),
            group_words(*group).into(),
            lane.guest_local.into(),
            lane.device_local.into(),
            lane.guest_remote.into(),
            lane.device_remote.into(),
            lane.batch.into(),
            lane.mutex.as_ref().map(|mutex| mutex.taken).into(),
            lines.into(),
        ]
    });
    let lanes = table(
        "What one lane costs, per request",
        "pattern | topology | work per request | job, same CPU [ns] | I/O thread, same CPU [ns] | \
            job, two CPUs [ns] | I/O thread, two CPUs [ns] | requests at a time | locks taken | \
            distance in cache lines",
        rows.collect(),
    );
    Section::new("costs", "What the model is given", vec![
            "\"Distance in cache lines\" is what a request costs more on two CPUs than on one, in transfers of a cache line; waking across \
             CPUs is in it."
                .into(),
        ], vec![lanes, machine])
}

fn summary(options: &Options, measured: &Measured<'_>, checks: &[(Group, Check)]) -> Vec<String> {
    let mut lines = Vec::new();
    let percent = |value: f64| format!("{:+.0} %", value * 100.0);
    if !options.validate_only {
        if let Some(pattern) = measured.patterns.first() {
            let most = measured.jobs.last().copied().unwrap_or(1);
            let change = |topology| {
                let of = |jobs| iops(measured, pattern.name, Group::Paper, Kind::Model.with(topology), jobs);
                Some(of(most)? / of(measured.jobs.first().copied()?)? - 1.0)
            };
            let all: Vec<_> = Topology::ALL
                .iter()
                .filter_map(|topology| Some(format!("{topology} {}", percent(change(*topology)?))))
                .collect();
            lines.push(format!(
                "{}, with the paper's work per request, from {} to {most} on {}: {}.",
                pattern.title,
                counted(measured.jobs.first().copied().unwrap_or(1), "job"),
                counted(measured.cpus, "CPU"),
                all.join(", ")
            ));
        }
        let placed = match options.placement {
            Placement::Together => "job i and I/O thread i on the same CPU, in turn",
            Placement::Apart => "I/O thread i on the CPU after job i's",
            Placement::Free => "threads where the kernel puts them",
        };
        lines.push(format!("Placement: {placed}."));
    }
    for (of_mt, who) in [(true, "lanes that share nothing (MT)"), (false, "Baseline and MQ")] {
        let these: Vec<_> =
            checks.iter().filter(|(_, c)| (c.subject.topology == Topology::Mt) == of_mt).collect();
        let within = these.iter().filter(|(_, check)| check.error().abs() <= TOLERANCE).count();
        let worst = these.iter().max_by(|a, b| a.1.error().abs().total_cmp(&b.1.error().abs()));
        if let Some((group, worst)) = worst {
            lines.push(format!(
                "Scaling model, two lanes from measurements of one, {who}: {within} of {} predictions are within 15 % of the measurement; \
                 the worst is {} ({}, {}, work per request: {}).",
                these.len(),
                percent(worst.error()),
                worst.subject,
                worst.pattern,
                group_words(*group)
            ));
        }
    }
    lines
}
