//! The whole experiment: what is measured, in which order, how often.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::cell::Cell;
use super::measured::{Group, Key, Measured, Options};
use super::micro::{self};
use super::patterns::Pattern;
use super::validate::{Bench, Suite};
use super::{Kind, Subject, Topology, render};
use crate::error::{Context, Error, ErrorKind, Result};
use crate::interrupt::Interrupt;
use vlane_report::Report;
use vlane_report::machine::usable_cpus;
use vlane_report::progress::Progress;

/// How long each of the micro-measurements takes.
const MICRO: Duration = Duration::from_millis(60);

/// What is measured of one pattern in the experiment.
fn subjects(group: Group) -> Vec<Subject> {
    let model = Topology::ALL.map(|topology| Kind::Model.with(topology));
    match group {
        Group::Paper => model.to_vec(),
        Group::Bare => {
            let vlane = [Topology::Mq, Topology::Mt].map(|topology| Kind::Vlane.with(topology));
            model.into_iter().chain(vlane).collect()
        }
    }
}

/// Measures, and makes the report of it.
///
/// # Errors
/// [`ErrorKind::Usage`] for options that make no sense, [`ErrorKind::Interrupted`], and what the measurements say.
pub fn run(options: &Options, interrupt: &Interrupt) -> Result<Report> {
    let begin = Instant::now();
    let created = vlane_report::date::now();
    let cpus = usable_cpus()?;
    let patterns = Pattern::named(&options.patterns)?;
    let mut jobs = options.jobs.clone();
    let invalid = |text: &str| Err(Error::new(ErrorKind::Usage, text));
    if jobs.iter().any(|n| !(1..=64).contains(n)) {
        return invalid("a number of jobs is between 1 and 64; change --jobs");
    }
    if options.repeats == 0 || options.time < Duration::from_millis(20) {
        return invalid("measure at least once, and for 20 ms; change --repeats or --time");
    }
    if !(1..=256).contains(&options.depth) {
        return invalid("a job's depth is between 1 and 256; change --depth");
    }
    // Twice as many lanes as CPUs, and as many, are part of the experiment.
    jobs.extend(
        [cpus.len(), cpus.len() * 2].iter().filter_map(|n| u16::try_from(*n).ok()).filter(|n| *n <= 64),
    );
    jobs.sort_unstable();
    jobs.dedup();
    let dir = tempfile::Builder::new().prefix("vlane-topologies-").tempdir();
    let dir =
        dir.context(ErrorKind::Io, || "cannot make a scratch directory; set TMPDIR to a place for it")?;
    let workloads = patterns
        .iter()
        .map(|pattern| Ok((*pattern, pattern.workload(options.batch)?)))
        .collect::<Result<Vec<_>>>()?;
    let bench = Bench {
        program: &options.program,
        dir: dir.path(),
        cpus: &cpus,
        depth: options.depth,
        ramp: options.ramp,
        time: options.time,
        interrupt,
    };

    let mut suites = Vec::new();
    for (at, (pattern, workload)) in workloads.iter().enumerate() {
        // Without --validate one pattern calibrates the model.
        if options.validate_only || at == 0 {
            let none = (Duration::ZERO, Duration::ZERO);
            let paper = Suite::new(pattern.name, Kind::Model, workload, pattern.paper_work());
            suites.push((Group::Paper, paper));
            suites.push((Group::Bare, Suite::new(pattern.name, Kind::Model, workload, none)));
            suites.push((Group::Bare, Suite::new(pattern.name, Kind::Vlane, workload, none)));
        }
    }
    let mut plan = Vec::new();
    for (at, (pattern, workload)) in workloads.iter().enumerate() {
        for group in [Group::Paper, Group::Bare] {
            if options.validate_only || (options.quick && group == Group::Bare && at > 0) {
                continue;
            }
            for jobs in &jobs {
                for subject in subjects(group) {
                    plan.push((*pattern, workload, group, subject, *jobs));
                }
            }
        }
    }
    let steps = plan.len() + suites.iter().map(|(_, suite)| suite.steps()).sum::<usize>();
    let mut progress =
        Progress::new(steps * options.repeats + 1).expecting(options.time + options.ramp + MICRO);
    progress.step("what meeting costs on this machine");
    let prices = micro::measure(&cpus, MICRO)?;
    let mut cells: HashMap<Key, Vec<Cell>> = HashMap::new();
    for round in 0..options.repeats {
        let reverse = round % 2 == 1;
        for (_, suite) in &mut suites {
            suite.round(&bench, reverse, &mut |label| progress.step(label))?;
        }
        let mut order: Vec<_> = plan.iter().collect();
        if reverse {
            order.reverse();
        }
        for (pattern, workload, group, subject, jobs) in order {
            let jobs_word = if *jobs == 1 { "job" } else { "jobs" };
            progress.step(format!("{}: {subject}, {jobs} {jobs_word}", pattern.title));
            let work = match group {
                Group::Paper => pattern.paper_work(),
                Group::Bare => (Duration::ZERO, Duration::ZERO),
            };
            let cell = bench.cell(*subject, *jobs, workload, work, options.placement)?;
            cells.entry((pattern.name, *group, *subject, *jobs)).or_default().push(cell);
        }
    }
    progress.clear();
    let measured = Measured {
        patterns,
        jobs,
        cells,
        suites,
        prices,
        cpus: cpus.len(),
        repeats: options.repeats,
        seconds: begin.elapsed().as_secs_f64(),
        created,
    };
    Ok(render::report(options, &measured))
}
