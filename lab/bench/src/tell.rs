//! A bench run as a report.

use vlane_driver::{Arrivals, Buckets, Wait};
use vlane_error::counted;
use vlane_report::stats::median;
use vlane_units::show_size;

use super::compare::{Comparison, Judged};
use super::profile::{Load, Pin, Storage};
use super::saved::{Flushing, LoadRuns, Run, Saved, TargetRuns};
use vlane_report::stats::Verdict;
use vlane_report::{
    Axis, Block, Cell, Chart, Note, Point, Report, SCHEMA, Samples, Section, Series, Spread, Table,
    figure,
};

/// A client that uses this share of its CPUs is the limit itself.
pub const CLIENT_BOUND: f64 = 0.9;
/// Points of a distribution that are drawn.
const MOST_POINTS: usize = 160;

/// The report of a run. `comparisons` are those that [`between_targets`](super::between_targets) or
/// [`against_saved`](super::against_saved) made; in the latter case `older` says when the saved run
/// was made.
pub fn report(run: &Saved, comparisons: &[Comparison], older: Option<&str>) -> Report {
    let mut sections = Vec::new();
    sections.extend(overview(run));
    sections.extend(run.loads.iter().enumerate().map(|(i, results)| {
        let own: Vec<_> = comparisons.iter().filter(|c| c.load == results.load.name).collect();
        section(i, results, &own, older)
    }));
    let was_measured =
        |c: &&Comparison| c.judged.iter().any(|judged| judged.a.is_some() && judged.b.is_some());
    let mut summary: Vec<_> =
        comparisons.iter().filter(was_measured).filter_map(|c| sentence(c, older)).collect();
    if summary.is_empty() {
        let measured = |t: &&TargetRuns| !t.runs.is_empty();
        let lines = |results: &LoadRuns| -> Vec<String> {
            results.targets.iter().filter(measured).map(|t| plain(results, t)).collect()
        };
        summary = run.loads.iter().flat_map(lines).collect();
    }
    if run.partial {
        summary.insert(0, format!("INTERRUPTED: {}.", how_much(run)));
    }
    Report {
        schema: SCHEMA.into(),
        kind: "bench".into(),
        title: run.title.clone(),
        summary,
        command: run.command.clone(),
        created: run.created.clone(),
        seconds: run.seconds,
        machine: run.machine.clone(),
        partial: run.partial.then(|| how_much(run)),
        notes: notes(run),
        sections,
        samples: vec![samples(run)],
    }
}

/// Every single measurement.
fn samples(run: &Saved) -> Samples {
    let columns = "Load | Target | Round | Throughput [IOPS] | Data [MB/s] | Mean latency [us] | \
                   p50 [us] | p99 [us] | p99.9 [us] | Back end's CPU per I/O [us] | Back end's \
                   switches per I/O | Client's CPU per I/O [us]";
    let mut rows = Vec::new();
    for results in &run.loads {
        for target in &results.targets {
            for (run, round) in target.runs.iter().zip(0_u32..) {
                let mut row =
                    vec![results.load.name.clone().into(), target.target.name.clone().into()];
                row.push(Cell::Number(round.into()));
                row.extend([run.iops, run.mb_per_second, run.mean_us, run.p50_us].map(Cell::from));
                row.extend([run.p99_us, run.p99_9_us].map(Cell::from));
                row.extend([run.server_cpu_us_per_io, run.server_switches_per_io].map(Cell::from));
                row.push(run.client_cpu_us_per_io.into());
                rows.push(row);
            }
        }
    }
    Samples::new("runs", "Every run of every load", columns, rows)
}

/// The verdict of a comparison, by the figure that decides.
fn sentence(c: &Comparison, older: Option<&str>) -> Option<String> {
    let Judged { metric, verdict, .. } = c.judged.first()?;
    let against = match older {
        Some(when) => format!("the run of {when}"),
        None => c.b.clone(),
    };
    let Comparison { load, a, .. } = c;
    Some(format!("{load}: {a} against {against}, {}: {verdict}", metric.title()))
}

/// A result without anything to compare it with.
fn plain(results: &LoadRuns, t: &TargetRuns) -> String {
    let middle = |value: fn(&Run) -> f64| median(&t.runs.iter().map(value).collect::<Vec<_>>());
    let (load, target) = (&results.load.name, &t.target.name);
    let iops = figure::with_unit(middle(|run| run.iops), "IOPS");
    let p50 = figure::with_unit(middle(|run| run.p50_us), "us");
    let p99 = figure::with_unit(middle(|run| run.p99_us), "us");
    format!("{load} on {target}: {iops}, latency p50 {p50}, p99 {p99}")
}

/// How much of an interrupted run there is.
fn how_much(run: &Saved) -> String {
    let targets = || run.loads.iter().flat_map(|results| &results.targets);
    let made: usize = targets().map(|t| t.runs.len()).sum();
    let lacking = targets().filter(|t| t.runs.is_empty()).count();
    let none = if lacking == 0 {
        String::new()
    } else {
        format!("; {lacking} of {} have none", targets().count())
    };
    format!("only {} made before that{none}", counted(made, "measurement"))
}

/// Facts that a reader must know.
fn notes(run: &Saved) -> Vec<Note> {
    let mut notes = Vec::new();
    if run.partial {
        notes.push(Note::warning(format!("The run was interrupted: {}.", how_much(run))));
    }
    let order = match (run.interleaved, run.loads.iter().any(|l| l.targets.len() > 1)) {
        (true, true) => ", the targets in turns (A B, B A, ...)",
        (false, true) => ", one target after the other",
        _ => "",
    };
    let repeats = run.loads.first().and_then(|l| l.targets.first()).map_or(0, |t| t.runs.len());
    let pin = match run.pin {
        Pin::None => "Neither back ends nor clients are bound to CPUs.",
        Pin::Apart => "Back ends have the first half of the CPUs, clients the second.",
    };
    notes.push(Note::info(format!(
        "Each figure is the median of {} of {} s, each after {} s that do not count{order}. {pin}",
        counted(repeats, "measurement"),
        run.time,
        run.ramp
    )));
    let started = run.loads.iter().any(|l| l.targets.iter().any(|t| t.server.is_some()));
    for (storage, text) in [
        (
            Storage::Null,
            "The null device has no medium and touches no data: the measurement is of the path.",
        ),
        (Storage::Ram, "The image on the RAM disk is page cache by nature (buffered)."),
        (
            Storage::Disk,
            "The image on the disk is used with O_DIRECT, around the page cache, and was written \
             beforehand.",
        ),
        (Storage::DiskCached, "The image on the disk is used through the page cache."),
    ] {
        if started && run.loads.iter().any(|l| l.load.storage == storage) {
            notes.push(Note::info(text));
        }
    }
    for results in &run.loads {
        for t in results.targets.iter().filter(|t| !t.runs.is_empty()) {
            let about = format!("{} on {}", results.load.name, t.target.name);
            let cpus = median(&t.runs.iter().map(Run::client_cpus).collect::<Vec<_>>());
            // A client that polls uses its CPU in any state of the back end.
            let asleep = results.load.wait == Wait::Interrupt || results.load.rate.is_some();
            if asleep
                && cpus >= CLIENT_BOUND * f64::from(t.target.arrange(&results.load).jobs.get())
            {
                notes.push(Note::warning(format!(
                    "{about}: the client used {cpus:.2} CPUs with {}: it was the limit, not the \
                     back end.",
                    counted(t.target.arrange(&results.load).jobs, "job")
                )));
            }
            if t.runs.iter().any(|run| run.kept_up == Some(false)) {
                notes.push(Note::warning(format!(
                    "{about}: the rate was not kept; latencies then grow with the time of the run \
                     and say little else."
                )));
            }
            let late = median(&t.runs.iter().filter_map(|run| run.late_p99_us).collect::<Vec<_>>());
            let p99 = median(&t.runs.iter().map(|run| run.p99_us).collect::<Vec<_>>());
            if late > 0.3 * p99 {
                notes.push(Note::warning(format!(
                    "{about}: the driver itself was late by {late:.0} us (p99), a large part of \
                     the response's {p99:.0} us: the machine is too busy, or --wait poll is \
                     needed."
                )));
            }
        }
    }
    notes
}

/// The throughput of all loads together, if there is more than one.
fn overview(run: &Saved) -> Option<Section> {
    let closed: Vec<_> = run.loads.iter().filter(|results| results.load.rate.is_none()).collect();
    if closed.len() < 2 {
        return None;
    }
    let chart = by_load(
        "Throughput by load: medians, with the smallest and the largest",
        ("throughput", "IOPS"),
        &closed,
        |run| run.iops,
    );
    Some(Section::new(
        "overview",
        "Overview",
        run.text.clone(),
        [Some(chart), flushes_by_load(&closed)].into_iter().flatten().collect(),
    ))
}

/// Latencies of the flushes of all loads together.
fn flushes_by_load(loads: &[&LoadRuns]) -> Option<Block> {
    let loads: Vec<_> =
        loads.iter().copied().filter(|results| results.load.flush_every.is_some()).collect();
    (!loads.is_empty()).then(|| {
        by_load(
            "99th percentile of a flush's latency by load: medians, with the smallest and the \
             largest",
            ("flush, p99", "us"),
            &loads,
            |run| flushing(run, |flushes| flushes.p99_us),
        )
    })
}

/// A figure of all targets, load by load.
fn by_load(caption: &str, y: (&str, &str), loads: &[&LoadRuns], value: fn(&Run) -> f64) -> Block {
    let point = |place: usize, (x, results): (u32, &&LoadRuns)| {
        Some(Point { x: x.into(), y: spread(results.targets.get(place)?, value)? })
    };
    let names = loads.first().map_or(&[][..], |results| &results.targets).iter().enumerate();
    let series = names.map(|(place, t)| {
        let points = (0..).zip(loads).filter_map(|load| point(place, load));
        Series::measured(t.target.name.as_str(), points.collect())
    });
    let categories = loads.iter().map(|results| results.load.name.clone()).collect();
    let (x, y) = (Axis::new("load", ""), Axis::new(y.0, y.1));
    Block::Chart(Chart::bars(caption, x, y, categories, series.collect()))
}

/// A figure of a measurement's flushes; not a number if there were none.
fn flushing(run: &Run, value: impl Fn(&Flushing) -> f64) -> f64 {
    run.flushes.as_ref().map_or(f64::NAN, value)
}

/// The flushes of a load.
fn flushes(results: &LoadRuns) -> Option<Table> {
    results.load.flush_every?;
    let rows = results.targets.iter().map(|t| {
        let cell =
            |value: &dyn Fn(&Flushing) -> f64| Cell::from(spread(t, |run| flushing(run, value)));
        vec![
            t.target.name.as_str().into(),
            cell(&|flushes| flushes.per_second),
            cell(&|flushes| flushes.fdatasyncs.unwrap_or(f64::NAN)),
            cell(&|flushes| flushes.p50_us),
            cell(&|flushes| flushes.p99_us),
        ]
    });
    Some(Table::new(
        "Flushes: medians, with the smallest and the largest",
        "target | flushes [1/s] | fdatasyncs per flush | flush p50 [us] | flush p99 [us]",
        rows.collect(),
    ))
}

fn spread(t: &TargetRuns, value: impl Fn(&Run) -> f64) -> Option<Spread> {
    Spread::of(&t.runs.iter().map(value).collect::<Vec<_>>())
}

/// One load.
fn section(
    place: usize,
    results: &LoadRuns,
    comparisons: &[&Comparison],
    older: Option<&str>,
) -> Section {
    let mut blocks = vec![Block::Table(figures(results))];
    if !comparisons.is_empty() {
        blocks.push(Block::Table(verdicts(comparisons, older)));
    }
    blocks.extend(flushes(results).map(Block::Table));
    blocks.extend(distribution(results).map(Block::Chart));
    let mut text = vec![describe(&results.load)];
    for t in &results.targets {
        let words = [t.server.as_deref(), t.client.as_deref()].into_iter().flatten();
        let words: Vec<_> = words.map(|command| format!("`{command}`")).collect();
        if !words.is_empty() {
            text.push(format!("{}: {}", t.target.name, words.join(", driven by ")));
        }
    }
    Section::new(format!("load-{}", place + 1), results.load.name.clone(), text, blocks)
}

/// A load's parameters, in a sentence.
fn describe(load: &Load) -> String {
    let mut words = format!(
        "{} of {}, {} job{}, depth {}",
        load.rw.0,
        show_size(load.bs.0),
        load.jobs,
        if load.jobs.get() == 1 { "" } else { "s" },
        load.depth
    );
    if let Some(rate) = load.rate {
        let spacing = match load.arrivals.unwrap_or_default() {
            Arrivals::Poisson => "at random",
            Arrivals::Constant => "evenly",
        };
        words += &format!(
            ", {rate} arrivals per second, spaced {spacing}; latencies count from the arrival"
        );
    }
    words += match load.wait {
        Wait::Interrupt => ", waiting for interrupts",
        Wait::Poll => ", polling",
    };
    if load.batch > 0 {
        words += &format!(", made visible {} at a time", load.batch);
    }
    if let Some(n) = load.flush_every {
        words += &format!(", a flush after every {n} writes");
    }
    words + "."
}

/// The figures of a load.
fn figures(results: &LoadRuns) -> Table {
    let cell = |t: &TargetRuns, value: &dyn Fn(&Run) -> f64| Cell::from(spread(t, value));
    let known = |value: Option<f64>| value.unwrap_or(f64::NAN);
    let rows = results.targets.iter().map(|t| {
        vec![
            t.target.name.as_str().into(),
            cell(t, &|run| run.iops),
            cell(t, &|run| run.mb_per_second),
            cell(t, &|run| run.p50_us),
            cell(t, &|run| run.p99_us),
            cell(t, &|run| run.p99_9_us),
            cell(t, &|run| known(run.server_cpu_us_per_io)),
            cell(t, &|run| known(run.server_switches_per_io)),
            cell(t, &|run| run.client_cpu_us_per_io),
            cell(t, &Run::client_cpus),
        ]
    });
    Table::new(
        match results.load.rate {
            None => "Medians, with the smallest and the largest",
            Some(_) => {
                "Medians, with the smallest and the largest; latencies are response latencies"
            }
        },
        "target | throughput [IOPS] | data [MB/s] | p50 [us] | p99 [us] | p99.9 [us] | \
            back end CPU per I/O [us] | back end switches per I/O | client CPU per I/O [us] | \
            client CPUs",
        rows.collect(),
    )
}

/// The verdicts on a load.
fn verdicts(comparisons: &[&Comparison], older: Option<&str>) -> Table {
    let rows = comparisons.iter().flat_map(|c| {
        c.judged.iter().map(move |judged| {
            let b = older.map_or_else(|| c.b.clone(), |when| format!("{}, saved {when}", c.b));
            let Verdict { ratio, low, high, confidence, outcome } = judged.verdict;
            let range = if confidence > 0.0 {
                format!("{low:.3} to {high:.3} ({:.0} % sure)", confidence * 100.0)
            } else {
                String::new()
            };
            vec![
                format!("{} against {b}", c.a).into(),
                judged.metric.title().into(),
                ratio.into(),
                range.into(),
                outcome.word().into(),
            ]
        })
    });
    Table::new(
        "Verdicts; the first figure of each decides",
        "compared | figure | ratio [x] | it lies within | verdict",
        rows.collect(),
    )
}

/// The distributions of a load's latencies, all runs together.
fn distribution(results: &LoadRuns) -> Option<Chart> {
    let series: Vec<_> = results
        .targets
        .iter()
        .filter_map(|t| {
            let all = Buckets::merged(t.runs.iter().map(|run| &run.latencies));
            let points = steps(&all);
            (!points.is_empty()).then(|| Series::measured(t.target.name.clone(), points))
        })
        .collect();
    (!series.is_empty()).then(|| {
        Chart::steps(
            "Share of requests that took no longer",
            Axis::log("latency", "us"),
            Axis::new("requests", "%"),
            series,
        )
    })
}

/// The cumulative distribution, thinned where it is flat.
fn steps(all: &Buckets) -> Vec<Point> {
    let total = all.total() as f64;
    let least = 1.0 / MOST_POINTS as f64;
    let (mut sum, mut shown) = (0.0, -1.0);
    let mut points = Vec::new();
    for (place, (upto, count)) in all.upto_ns.iter().zip(&all.count).enumerate() {
        sum += *count as f64;
        let share = sum / total;
        if share - shown >= least || place + 1 == all.count.len() || place == 0 {
            shown = share;
            points.push(Point::exact(*upto as f64 / 1000.0, share * 100.0));
        }
    }
    points
}
