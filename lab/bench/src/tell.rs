//! A bench run as a report.

use vlane_driver::{Arrivals, Buckets, Wait};
use vlane_error::counted;
use vlane_report::stats::{Outcome, Verdict};
use vlane_report::{
    Arms, Axis, Block, Cell, Chart, Figure, Measured, Note, Point, Report, SCHEMA, Samples,
    Section, Series, arms_table, bars, figure, spread, table,
};
use vlane_units::show_size;

use super::compare::Comparison;
use super::profile::{Load, Pin, Storage};
use super::saved::{Flushing, LoadRuns, Run, Saved, TargetRuns};

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
    let mut summary: Vec<_> = comparisons.iter().filter_map(|c| sentence(c, older)).collect();
    if summary.is_empty() {
        let targets = run.loads.iter().flat_map(|load| load.targets.iter().map(move |t| (load, t)));
        summary = targets.filter(|(_, t)| !t.runs.is_empty()).map(|(l, t)| plain(l, t)).collect();
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
    .guarded()
}

/// A figure: its title, its unit and its value.
type Told<T> = (&'static str, &'static str, fn(&T) -> Option<f64>);

/// The figures of a measurement.
const FIGURES: [Told<Run>; 10] = [
    ("throughput", "IOPS", |run| Some(run.iops)),
    ("data", "MB/s", |run| Some(run.mb_per_second)),
    ("mean latency", "us", |run| Some(run.mean_us)),
    ("p50", "us", |run| Some(run.p50_us)),
    ("p99", "us", |run| Some(run.p99_us)),
    ("p99.9", "us", |run| Some(run.p99_9_us)),
    ("back end CPU per I/O", "us", |run| run.server_cpu_us_per_io),
    ("back end switches per I/O", "", |run| run.server_switches_per_io),
    ("client CPU per I/O", "us", |run| Some(run.client_cpu_us_per_io)),
    ("client CPUs", "", |run| Some(run.client_cpus())),
];

/// The figures of its flushes.
const FLUSHES: [Told<Flushing>; 4] = [
    ("flushes", "1/s", |flushes| Some(flushes.per_second)),
    ("fdatasyncs per flush", "", |flushes| flushes.fdatasyncs),
    ("flush p50", "us", |flushes| Some(flushes.p50_us)),
    ("flush p99", "us", |flushes| Some(flushes.p99_us)),
];

/// Every single measurement.
fn samples(run: &Saved) -> Samples {
    let mut columns = vec![("Load", ""), ("Target", ""), ("Round", "")];
    columns.extend(FIGURES.map(|(title, unit, _)| (title, unit)));
    let targets = run.loads.iter().flat_map(|load| load.targets.iter().map(move |t| (load, t)));
    let rows = targets.flat_map(|(LoadRuns { load, .. }, TargetRuns { target, runs, .. })| {
        runs.iter().zip(0_u32..).map(move |(run, round)| {
            let names = [&load.name, &target.name].map(|name| name.clone().into());
            let figures = FIGURES.map(|(.., of)| Cell::from(of(run)));
            names.into_iter().chain([Cell::Number(round.into())]).chain(figures).collect()
        })
    });
    Samples::new("runs", "Every run of every load", &columns, rows.collect())
}

/// A table of a load's targets.
fn table_of<T>(
    caption: &str,
    results: &LoadRuns,
    of: fn(&Run) -> Option<&T>,
    figures: &[Told<T>],
) -> Block {
    let arms: Arms<&Run> = Arms(
        results
            .targets
            .iter()
            .map(|t| Measured { arm: t.target.name.clone(), rounds: t.runs.iter().collect() })
            .collect(),
    );
    let figure = |(title, unit, value): &Told<T>| {
        let value = *value;
        Figure::maybe(*title, unit, move |run: &&Run| value(of(run)?))
    };
    arms_table(caption, "target", &figures.iter().map(figure).collect::<Vec<_>>(), &arms)
}

/// The verdicts of a comparison: losses first, then 99th percentiles; none without measurements.
fn sentence(c: &Comparison, older: Option<&str>) -> Option<String> {
    let Comparison { load, a, b, judged } = c;
    let mut told: Vec<_> = judged.iter().filter(|(_, verdict)| !verdict.ratio.is_nan()).collect();
    told.sort_by_key(|(title, verdict)| {
        (verdict.outcome != Outcome::Worse, !title.contains("p99"))
    });
    let told: Vec<_> = told.iter().map(|(title, verdict)| format!("{title}: {verdict}")).collect();
    let against = older.map_or_else(|| b.clone(), |when| format!("the run of {when}"));
    (!told.is_empty()).then(|| format!("{load}: {a} against {against}, {}", told.join("; ")))
}

/// A result without anything to compare it with.
fn plain(results: &LoadRuns, t: &TargetRuns) -> String {
    let iops = figure::with_unit(t.median(|run| run.iops), "IOPS");
    let p50 = figure::with_unit(t.median(|run| run.p50_us), "us");
    let p99 = figure::with_unit(t.median(|run| run.p99_us), "us");
    let (load, target) = (&results.load.name, &t.target.name);
    format!("{load} on {target}: latency p99 {p99}, p50 {p50}, {iops}")
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
            let cpus = t.median(Run::client_cpus);
            let jobs = t.target.arrange(&results.load).jobs;
            // A client that polls uses its CPU in any state of the back end.
            let asleep = results.load.wait == Wait::Interrupt || results.load.rate.is_some();
            if asleep && cpus >= CLIENT_BOUND * f64::from(jobs.get()) {
                notes.push(Note::warning(format!(
                    "{about}: the client used {cpus:.2} CPUs with {}: it was the limit, not the \
                     back end.",
                    counted(jobs, "job")
                )));
            }
            if t.runs.iter().any(|run| run.kept_up == Some(false)) {
                notes.push(Note::warning(format!(
                    "{about}: the rate was not kept; latencies then grow with the time of the run \
                     and say little else."
                )));
            }
            let late = t.median(|run| run.late_p99_us.unwrap_or(0.0));
            let p99 = t.median(|run| run.p99_us);
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
    let mut blocks = vec![by_load(
        "Throughput by load: medians, with the smallest and the largest",
        ("throughput", "IOPS"),
        &closed,
        |run| Some(run.iops),
    )];
    let flushing: Vec<_> =
        closed.into_iter().filter(|results| results.load.flush_every.is_some()).collect();
    if !flushing.is_empty() {
        blocks.push(by_load(
            "99th percentile of a flush's latency by load: medians, with the smallest and the \
             largest",
            ("flush, p99", "us"),
            &flushing,
            |run| Some(run.flushes?.p99_us),
        ));
    }
    Some(Section::new("overview", "Overview", run.text.clone(), blocks))
}

/// A figure of all targets, load by load.
fn by_load(
    caption: &str,
    y: (&str, &str),
    loads: &[&LoadRuns],
    value: fn(&Run) -> Option<f64>,
) -> Block {
    let names = loads.first().map_or(&[][..], |results| &results.targets).iter().enumerate();
    let rows = names.map(|(place, t)| {
        let figures = loads.iter().map(|load| spread(&load.targets.get(place)?.runs, value));
        (t.target.name.clone(), figures.collect())
    });
    let categories = loads.iter().map(|results| results.load.name.clone()).collect();
    bars(caption, y, categories, rows.collect())
}

/// One load.
fn section(
    place: usize,
    results: &LoadRuns,
    comparisons: &[&Comparison],
    older: Option<&str>,
) -> Section {
    let caption = match results.load.rate {
        None => "Medians, with the smallest and the largest",
        Some(_) => "Medians, with the smallest and the largest; latencies are response latencies",
    };
    let mut blocks = vec![table_of(caption, results, |run| Some(run), &FIGURES)];
    if !comparisons.is_empty() {
        blocks.push(verdicts(comparisons, older));
    }
    if results.load.flush_every.is_some() {
        let caption = "Flushes: medians, with the smallest and the largest";
        blocks.push(table_of(caption, results, |run| run.flushes.as_ref(), &FLUSHES));
    }
    blocks.extend(distribution(results));
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
        "{} of {}, {}, depth {}",
        load.rw.0,
        show_size(load.bs.0),
        counted(load.jobs, "job"),
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

/// The verdicts on a load.
fn verdicts(comparisons: &[&Comparison], older: Option<&str>) -> Block {
    let rows = comparisons.iter().flat_map(|c| {
        let b = older.map_or_else(|| c.b.clone(), |when| format!("{}, saved {when}", c.b));
        c.judged.iter().map(move |(title, verdict)| {
            let Verdict { ratio, low, high, confidence, outcome } = *verdict;
            let range = match confidence > 0.0 {
                true => format!("{low:.3} to {high:.3} ({:.0} % sure)", confidence * 100.0),
                false => String::new(),
            };
            vec![
                format!("{} against {b}", c.a).into(),
                (*title).into(),
                ratio.into(),
                range.into(),
                outcome.word().into(),
            ]
        })
    });
    table(
        "Verdicts; the first figure of each decides",
        "compared | figure | ratio [x] | it lies within | verdict",
        rows.collect(),
    )
}

/// The distributions of a load's latencies, all runs together.
fn distribution(results: &LoadRuns) -> Option<Block> {
    let series = results.targets.iter().map(|t| {
        let all = Buckets::merged(t.runs.iter().map(|run| &run.latencies));
        Series::measured(t.target.name.clone(), steps(&all))
    });
    let series: Vec<_> = series.filter(|series| !series.points.is_empty()).collect();
    (!series.is_empty()).then(|| {
        Block::Chart(Chart::steps(
            "Share of requests that took no longer",
            Axis::log("latency", "us"),
            Axis::new("requests", "%"),
            series,
        ))
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
