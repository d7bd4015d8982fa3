//! The experiment's report.

use super::cell::Cell;
use super::measured::{Group, Measured, Options};
use super::model::{Lane, predict};
use super::patterns::Pattern;
use super::validate::{Check, TOLERANCE};
use super::{Kind, Placement, Subject, Topology};
use vlane_report::machine::Machine;
use vlane_report::{
    Axis, Block, Cell as TableCell, Chart, Column, Note, Point, Report, SCHEMA, Section, Series, Severity,
    Spread, Table,
};

/// Lanes that predictions are made for.
const LANES: [u32; 6] = [1, 2, 4, 8, 16, 64];

/// Makes the report.
pub(super) fn report(options: &Options, measured: &Measured<'_>) -> Report {
    let checks: Vec<_> = measured
        .suites
        .iter()
        .flat_map(|(group, suite)| {
            suite
                .checks(&measured.prices, measured.cpus, options.depth)
                .into_iter()
                .map(|check| (*group, check))
        })
        .collect();
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
    Report {
        schema: SCHEMA.into(),
        kind: "topologies".into(),
        title: match options.validate_only {
            true => "The scaling model against measurements".into(),
            false => "Baseline, MQ and MT: queues, threads and a global mutex".into(),
        },
        summary: summary(options, measured, &checks),
        command: options.command.clone(),
        created: measured.created.clone(),
        seconds: measured.seconds,
        machine: Machine::describe(&options.version, &[]),
        notes: notes(options, measured),
        sections,
    }
}

fn notes(options: &Options, measured: &Measured<'_>) -> Vec<Note> {
    let mut notes = Vec::new();
    let mut note = |severity, text: String| notes.push(Note { severity, text });
    let cpus = measured.cpus;
    let over: Vec<_> =
        measured.jobs.iter().filter(|n| usize::from(**n) * 2 > cpus).map(|n| n.to_string()).collect();
    if !options.validate_only && !over.is_empty() {
        let text = format!(
            "With {} jobs, jobs and lanes are more threads than the {cpus} CPUs: these figures show what topologies cost, not how they \
             scale. The section on scaling predicts more CPUs.",
            over.join(", ")
        );
        note(Severity::Warning, text);
    }
    note(
        Severity::Info,
        "Context switches, lock waits and CPU time are those of the jobs and of the I/O threads. Kernel virtual machine exits are not \
         in them: no guest is run here, jobs are threads of the driver."
            .into(),
    );
    note(
        Severity::Info,
        "Shared cache lines are counted by what distance costs, divided by the price of one line's transfer: perf c2c would name them, but \
         needs the processor's memory sampling (PEBS, IBS, SPE), which virtual machines seldom have."
            .into(),
    );
    let shares: Vec<_> = measured.suites.iter().filter_map(|(_, suite)| suite.cpu_share()).collect();
    let share = vlane_report::stats::median(&shares);
    if share < 0.9 {
        let text = format!(
            "One lane got {:.0} % of its CPU: other programs ran meanwhile. Neither the throughputs nor the check of the model can be \
             relied on; measure again when the machine is quiet.",
            share * 100.0
        );
        note(Severity::Warning, text);
    }
    if measured.repeats < 3 {
        note(Severity::Warning, format!("Only {} rounds: the spread means little.", measured.repeats));
    }
    notes
}

fn spread(cells: Option<&Vec<Cell>>, pick: impl Fn(&Cell) -> f64) -> Option<Spread> {
    Spread::of(&cells?.iter().map(pick).collect::<Vec<_>>())
}

fn figure_cell(spread: Option<Spread>) -> TableCell {
    spread.map_or(TableCell::Empty, TableCell::Figure)
}

fn single(value: f64) -> Spread {
    Spread::exact(value)
}

/// Throughput over jobs, and everything else as a table.
fn figure(measured: &Measured<'_>, pattern: &Pattern, group: Group) -> Section {
    let mut subjects = Vec::new();
    for kind in [Kind::Model, Kind::Vlane] {
        for topology in Topology::ALL {
            let subject = kind.with(topology);
            if measured.cells.keys().any(|(p, g, s, _)| (*p, *g, *s) == (pattern.name, group, subject)) {
                subjects.push(subject);
            }
        }
    }
    let is_large = pattern.block > 4096;
    let pick = |cell: &Cell| if is_large { cell.mb_per_second / 1e3 } else { cell.iops / 1e3 };
    let get = |subject, jobs| measured.cells.get(&(pattern.name, group, subject, jobs));
    let series = subjects
        .iter()
        .map(|subject| {
            Series::measured(
                subject.to_string(),
                measured
                    .jobs
                    .iter()
                    .filter_map(|jobs| {
                        Some(Point { x: f64::from(*jobs), y: spread(get(*subject, *jobs), pick)? })
                    })
                    .collect(),
            )
        })
        .collect();
    let chart = Chart::lines(
        format!("{}, depth per job as given, throughput over jobs", pattern.title),
        Axis::new("jobs", ""),
        if is_large { Axis::new("throughput", "GB/s") } else { Axis::new("requests per second", "k") },
        series,
    );
    let mut rows = Vec::new();
    for jobs in &measured.jobs {
        for subject in &subjects {
            let cells = get(*subject, *jobs);
            let lock = |pick: fn(&super::cell::LockFigures) -> f64| {
                let has = cells.is_some_and(|cells| cells.iter().all(|c| c.lock.is_some()));
                let value = |c: &Cell| c.lock.as_ref().map_or(f64::NAN, pick);
                figure_cell(has.then(|| spread(cells, value)).flatten())
            };
            let signals = spread(cells, |c| c.signals.unwrap_or(f64::NAN));
            rows.push(vec![
                TableCell::Number(f64::from(*jobs)),
                TableCell::Text(subject.to_string()),
                figure_cell(spread(cells, |c| c.iops / 1e3)),
                figure_cell(spread(cells, |c| c.mb_per_second)),
                figure_cell(spread(cells, |c| c.p50)),
                figure_cell(spread(cells, |c| c.p95)),
                figure_cell(spread(cells, |c| c.p99)),
                figure_cell(spread(cells, |c| (c.guest_cpu + c.device_cpu) / 1e3)),
                figure_cell(spread(cells, |c| c.switches)),
                figure_cell(spread(cells, |c| c.kicks)),
                figure_cell(signals),
                lock(|l| l.wait_per_io),
                lock(|l| l.wait_mean),
                lock(|l| l.contended * 100.0),
            ]);
        }
    }
    let table = Table::new(
        format!("{}: every figure", pattern.title),
        "jobs | topology | IOPS [k] | throughput [MB/s] | p50 [us] | p95 [us] | p99 [us] | \
            CPU per I/O [us] | switches per I/O | kicks per I/O | signals per I/O | \
            lock wait per I/O [us] | mean lock wait [us] | locks waited for [%]",
        rows,
    );
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
    Section::new(id, title, vec![text], vec![Block::Chart(chart), Block::Table(table)])
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

/// The largest ratio of MT to another topology over the numbers of jobs, round by round.
fn best_ratio(measured: &Measured<'_>, pattern: &'static str, other: Topology) -> Option<(u16, Spread)> {
    let of = |topology, jobs| measured.cells.get(&(pattern, Group::Paper, Subject::Model(topology), jobs));
    let ratio = |jobs: &u16| {
        let pairs = of(Topology::Mt, *jobs)?.iter().zip(of(other, *jobs)?);
        Some((*jobs, Spread::of(&pairs.map(|(mt, other)| mt.iops / other.iops).collect::<Vec<_>>())?))
    };
    measured.jobs.iter().filter_map(ratio).max_by(|a, b| a.1.median.total_cmp(&b.1.median))
}

fn against_the_paper(measured: &Measured<'_>) -> Section {
    let mut ours = Vec::new();
    let mut published = Vec::new();
    let mut rows = Vec::new();
    for (at, pattern) in measured.patterns.iter().enumerate() {
        #[expect(clippy::cast_precision_loss, reason = "four patterns")]
        let x = at as f64;
        published.push(Point { x, y: single(pattern.published.over_baseline) });
        let pairs = [
            (Topology::Baseline, Some(pattern.published.over_baseline)),
            (Topology::Mq, pattern.published.over_mq),
        ];
        for (other, paper) in pairs {
            let Some((jobs, ratio)) = best_ratio(measured, pattern.name, other) else { continue };
            // Where the paper's ratio was taken: as many jobs as CPUs.
            let at_cpus = u16::try_from(measured.cpus).ok().and_then(|cpus| {
                let of =
                    |topology| iops(measured, pattern.name, Group::Paper, Subject::Model(topology), cpus);
                Some(of(Topology::Mt)? / of(other)?)
            });
            if let Some(ratio) = at_cpus.filter(|_| other == Topology::Baseline) {
                ours.push(Point { x, y: single(ratio) });
            }
            rows.push(vec![
                TableCell::Text(pattern.title.into()),
                TableCell::Text(format!("MT / {other}")),
                at_cpus.map_or(TableCell::Empty, TableCell::Number),
                TableCell::Figure(ratio),
                TableCell::Number(f64::from(jobs)),
                paper.map_or(TableCell::Empty, TableCell::Number),
            ]);
        }
    }
    let series = vec![
        Series::measured("measured, jobs = CPUs", ours),
        Series {
            name: "Kim, Kang, Eom 2016, at most".into(),
            predicted: false,
            published: true,
            points: published,
        },
    ];
    let chart = Chart::bars(
        "MT over Baseline",
        Axis::new("pattern", ""),
        Axis::new("ratio of throughputs", ""),
        measured.patterns.iter().map(|p| p.title.to_string()).collect(),
        series,
    );
    let table = Table::new(
        "Ratios to MT",
        "pattern | ratio | jobs = CPUs | at most | with jobs | published, at most",
        rows,
    );
    let mut blocks = vec![Block::Chart(chart), Block::Table(table)];
    let mut numbers: Vec<_> =
        u16::try_from(measured.cpus).ok().into_iter().chain(measured.jobs.last().copied()).collect();
    numbers.dedup();
    blocks.extend(numbers.into_iter().filter_map(|jobs| figure_three(measured, jobs)).map(Block::Table));
    Section::new("paper-ratios", "Beside the published figures", vec![
            "The paper's machine had 8 hardware threads and a real guest; absolute figures of another machine mean nothing here, ratios \
             and shapes do. Its ratios are those of the best case over its numbers of processes."
                .into(),
        ], blocks)
}

/// The paper's figure 3 and its section 2.1: latency, context switches and lock waits of MT against Baseline.
fn figure_three(measured: &Measured<'_>, jobs: u16) -> Option<Table> {
    let pattern = measured.patterns.first()?;
    let of = |topology, pick: fn(&Cell) -> f64| {
        let key = (pattern.name, Group::Paper, Subject::Model(topology), jobs);
        Some(spread(measured.cells.get(&key), pick)?.median)
    };
    let mut rows = Vec::new();
    let mut row = |name: &str, base: Option<f64>, mt: Option<f64>, paper: &str| {
        let ratio = base.zip(mt).filter(|(base, _)| *base > 0.0).map(|(base, mt)| mt / base);
        let number = |value: Option<f64>| value.map_or(TableCell::Empty, TableCell::Number);
        rows.push(vec![
            TableCell::Text(name.into()),
            number(base),
            number(mt),
            number(ratio),
            TableCell::Text(paper.into()),
        ]);
    };
    row("p50 latency, us", of(Topology::Baseline, |c| c.p50), of(Topology::Mt, |c| c.p50), "0.41");
    row(
        "context switches per s",
        of(Topology::Baseline, |c| c.switches * c.iops),
        of(Topology::Mt, |c| c.switches * c.iops),
        "0.10",
    );
    row(
        "context switches per I/O",
        of(Topology::Baseline, |c| c.switches),
        of(Topology::Mt, |c| c.switches),
        "",
    );
    let wait: fn(&Cell) -> f64 = |c| c.lock.map_or(0.0, |l| l.wait_per_io);
    row(
        "lock wait per I/O, us (MQ stands for MT: MT has no lock)",
        of(Topology::Baseline, wait),
        of(Topology::Mq, wait),
        "50 us -> 10 us",
    );
    Some(Table::new(
        format!("{}, {jobs} jobs", pattern.title),
        "what | Baseline | MT | ratio | published",
        rows,
    ))
}

fn overcommit(measured: &Measured<'_>) -> Section {
    let (fit, twice) = (measured.cpus, measured.cpus * 2);
    let mut rows = Vec::new();
    for pattern in &measured.patterns {
        for topology in Topology::ALL {
            let of = |jobs: usize| {
                let jobs = u16::try_from(jobs).ok()?;
                iops(measured, pattern.name, Group::Paper, Subject::Model(topology), jobs)
            };
            let (Some(fits), Some(over)) = (of(fit), of(twice)) else { continue };
            let most = measured.jobs.last().and_then(|n| of(usize::from(*n)));
            let change = |now: f64| TableCell::Number((now / fits - 1.0) * 100.0);
            rows.push(vec![
                TableCell::Text(pattern.title.into()),
                TableCell::Text(topology.to_string()),
                TableCell::Number(fits / 1e3),
                TableCell::Number(over / 1e3),
                change(over),
                most.map_or(TableCell::Empty, change),
                TableCell::Text(
                    match (pattern.name, topology) {
                        ("randread", Topology::Baseline) => "collapses",
                        ("randread", Topology::Mq) => "flat",
                        ("randread", Topology::Mt) => "keeps, or +4 to +9 %",
                        _ => "",
                    }
                    .into(),
                ),
            ]);
        }
    }
    let most = measured.jobs.last().copied().unwrap_or(0);
    let table = Table::new(
        "From as many lanes as CPUs to twice as many and more",
        &format!(
            "pattern | topology | {fit} lanes [k IOPS] | {twice} lanes [k IOPS] | change [%] | \
            change at {most} lanes [%] | published (16 on 8)"
        ),
        rows,
    );
    Section::new(
        "overcommit",
        "Overcommit: more lanes than CPUs",
        vec!["The paper's figure 6: 16 virtual CPUs on 8 hardware threads.".into()],
        vec![Block::Table(table)],
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
        let lanes = lanes_of(measured, group, kind, options.depth);
        let mut blocks = Vec::new();
        let mut rows = Vec::new();
        for n in &cpus {
            let series = lanes.iter().map(|(topology, lane)| Series {
                name: kind.with(*topology).to_string(),
                predicted: true,
                published: false,
                points: LANES
                    .iter()
                    .map(|jobs| Point {
                        x: f64::from(*jobs),
                        y: single(predict(*topology, lane, *jobs, *n).iops / 1e3),
                    })
                    .collect(),
            });
            let mut series: Vec<_> = series.collect();
            if *n == here {
                series.extend(measured_series(measured, group, kind));
            }
            blocks.push(Block::Chart(Chart::lines(
                format!("4K random read on {n} CPUs, {words}"),
                Axis::log("jobs", ""),
                Axis::new("requests per second", "k"),
                series,
            )));
            for (topology, lane) in &lanes {
                let mut row =
                    vec![TableCell::Number(f64::from(*n)), TableCell::Text(kind.with(*topology).to_string())];
                let all = LANES.map(|jobs| predict(*topology, lane, jobs, *n));
                row.extend(all.iter().map(|p| TableCell::Number(p.iops / 1e3)));
                row.push(TableCell::Text(all.last().map_or(String::new(), |p| p.limit.to_string())));
                rows.push(row);
            }
        }
        let mut columns = vec![Column::new("CPUs", ""), Column::new("topology", "")];
        columns.extend(LANES.iter().map(|n| Column::new(&format!("{n} lanes"), "k IOPS")));
        columns.push(Column::new("ends at", ""));
        blocks.push(Block::Table(Table { caption: "Predicted".into(), columns, rows }));
        if group == Group::Paper {
            blocks.extend(paper_machine(&lanes).map(Block::Table));
        }
        sections.push(Section::new(format!("scaling-{}", if group == Group::Paper { "paper" } else { "vlane" }), format!("Scaling, predicted: {words}"), vec![
                "Dashed lines are calculated from measurements of one lane (the next sections show them, and how far off the model is for two). \
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
        let points: Vec<_> = measured
            .jobs
            .iter()
            .filter_map(|jobs| {
                let cells = measured.cells.get(&(pattern.name, group, subject, *jobs));
                Some(Point { x: f64::from(*jobs), y: spread(cells, |c| c.iops / 1e3)? })
            })
            .collect();
        let name = format!("{subject}, measured");
        (!points.is_empty()).then_some(Series::measured(name, points))
    };
    Topology::ALL.into_iter().filter_map(series).collect()
}

/// What the model says of the paper's machine.
fn paper_machine(lanes: &[(Topology, Lane)]) -> Option<Table> {
    let of = |topology: Topology| {
        let lane = lanes.iter().find(|(other, _)| *other == topology).map(|(_, lane)| lane)?;
        Some(predict(topology, lane, 8, 8).iops)
    };
    let (base, mq, mt) = (of(Topology::Baseline)?, of(Topology::Mq)?, of(Topology::Mt)?);
    let row = |name: &str, ours: f64, paper: f64| {
        vec![TableCell::Text(name.into()), TableCell::Number(ours), TableCell::Number(paper)]
    };
    Some(Table::new(
        "8 jobs on 8 CPUs, as on the paper's machine: predicted from one lane here, and published",
        "4K random read | predicted | published",
        vec![
            row("MT, k IOPS", mt / 1e3, 413.0),
            row("MT / Baseline", mt / base, 2.55),
            row("MT / MQ", mt / mq, 1.32),
        ],
    ))
}

fn group_words(group: Group) -> &'static str {
    match group {
        Group::Paper => "the paper's",
        Group::Bare => "none",
    }
}

fn validation(checks: &[(Group, Check)]) -> Section {
    let rows = checks.iter().map(|(group, check)| {
        let error = check.error();
        vec![
            TableCell::Text(check.pattern.clone()),
            TableCell::Text(check.subject.to_string()),
            TableCell::Text(group_words(*group).into()),
            figure_cell(Spread::of(&check.single.iter().map(|v| v / 1e3).collect::<Vec<_>>())),
            TableCell::Number(check.predicted.iops / 1e3),
            figure_cell(Spread::of(&check.measured.iter().map(|v| v / 1e3).collect::<Vec<_>>())),
            TableCell::Number(error * 100.0),
            TableCell::Text(if error.abs() <= TOLERANCE { "within 15 %".into() } else { "off".into() }),
        ]
    });
    let table = Table::new(
        "Two lanes: predicted from one lane, and measured",
        "pattern | topology | work per request | 1 lane, measured [k IOPS] | \
            2 lanes, predicted [k IOPS] | 2 lanes, measured [k IOPS] | error [%] | ",
        rows.collect(),
    );
    Section::new("validation", "How far off the scaling model is", vec![
            "The prediction uses measurements of one lane alone, made in turn with those of two. \"1 lane\" is job and I/O thread on one CPU \
             while the others are busy with something else."
                .into(),
        ], vec![Block::Table(table)])
}

/// What the model was given.
fn prices(measured: &Measured<'_>, checks: &[(Group, Check)]) -> Section {
    let prices = &measured.prices;
    let mut rows = Vec::new();
    let mut row = |name: String, ns: Option<f64>| {
        rows.push(vec![TableCell::Text(name), ns.map_or(TableCell::Empty, TableCell::Number)]);
    };
    row("a cache line from one CPU to another".into(), prices.line);
    row("waking a thread on the same CPU by an eventfd, until it runs".into(), Some(prices.wake_here));
    row("waking a thread on another, idle CPU, until it runs".into(), prices.wake_there);
    row("... of which the writer's own time".into(), prices.waking_there);
    for (threads, ns) in &prices.handover {
        row(format!("handing the mutex over, {threads} threads at it"), Some(*ns));
    }
    let machine = Table::new("What meeting costs on this machine", "what | time [ns]", rows);
    let rows = checks.iter().map(|(group, check)| {
        let lane = &check.lane;
        let distance = lane.guest_remote + lane.device_remote - lane.guest_local - lane.device_local;
        let lines = prices.line.filter(|line| *line > 0.0).map(|line| (distance / line).max(0.0));
        vec![
            TableCell::Text(check.pattern.clone()),
            TableCell::Text(check.subject.to_string()),
            TableCell::Text(group_words(*group).into()),
            TableCell::Number(lane.guest_local),
            TableCell::Number(lane.device_local),
            TableCell::Number(lane.guest_remote),
            TableCell::Number(lane.device_remote),
            TableCell::Number(lane.batch),
            lane.mutex.as_ref().map_or(TableCell::Empty, |m| TableCell::Number(m.taken)),
            lines.map_or(TableCell::Empty, TableCell::Number),
        ]
    });
    let lanes = Table::new(
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
        ], vec![Block::Table(lanes), Block::Table(machine)])
}

fn summary(options: &Options, measured: &Measured<'_>, checks: &[(Group, Check)]) -> Vec<String> {
    let mut lines = Vec::new();
    let percent = |value: f64| format!("{:+.0} %", value * 100.0);
    if !options.validate_only {
        if let Some(pattern) = measured.patterns.first() {
            let most = measured.jobs.last().copied().unwrap_or(1);
            let change = |topology| {
                let of = |jobs| iops(measured, pattern.name, Group::Paper, Subject::Model(topology), jobs);
                Some(of(most)? / of(measured.jobs.first().copied()?)? - 1.0)
            };
            let all: Vec<_> = Topology::ALL
                .iter()
                .filter_map(|topology| Some(format!("{topology} {}", percent(change(*topology)?))))
                .collect();
            lines.push(format!(
                "{}, with the paper's work per request, from {} job to {most} on {} CPUs: {}.",
                pattern.title,
                measured.jobs.first().copied().unwrap_or(1),
                measured.cpus,
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
            checks.iter().filter(|(_, c)| (c.subject.topology() == Topology::Mt) == of_mt).collect();
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
