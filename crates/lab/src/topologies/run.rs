//! The whole experiment: what is measured, in which order, how often.

use std::collections::HashMap;
use std::time::Duration;

use super::cell::Cell;
use super::measured::{Group, Key, Measured, Options};
use super::micro;
use super::patterns::Pattern;
use super::validate::{Bench, Suite};
use super::{Kind, Subject, Topology, render};
use vlane_client::progress::Progress;
use vlane_driver::Workload;
use vlane_host::Rounds;
use vlane_host::error::{Context, Error, ErrorKind, Result};
use vlane_host::interrupt::Interrupt;
use vlane_report::Report;
use vlane_report::build::Begun;
use vlane_report::machine::usable_cpus;

/// How long each of the micro-measurements takes.
const MICRO: Duration = Duration::from_millis(60);

/// No work besides passing requests on.
const NONE: (Duration, Duration) = (Duration::ZERO, Duration::ZERO);

/// One measurement of the experiment.
struct Step<'a> {
    pattern: Pattern,
    workload: &'a Workload,
    group: Group,
    subject: Subject,
    jobs: u16,
}

/// What is measured, in order.
fn plan<'a>(options: &Options, workloads: &'a [(Pattern, Workload)], all_jobs: &[u16]) -> Vec<Step<'a>> {
    let mut plan = Vec::new();
    for (at, (pattern, workload)) in workloads.iter().enumerate() {
        for group in [Group::Paper, Group::Bare] {
            if options.validate_only || (options.quick && group == Group::Bare && at > 0) {
                continue;
            }
            let mut subjects = Topology::MEASURED.map(|topology| Kind::Model.with(topology)).to_vec();
            if group == Group::Bare {
                subjects.extend([Topology::Mq, Topology::Mt].map(|topology| Kind::Vlane.with(topology)));
            }
            for jobs in all_jobs {
                let step = |subject| Step { pattern: *pattern, workload, group, subject, jobs: *jobs };
                plan.extend(subjects.iter().copied().map(step));
            }
        }
    }
    plan
}

/// One and two lanes, for the model: of all patterns, or of the first one, which then calibrates it.
fn suites<'a>(options: &Options, workloads: &'a [(Pattern, Workload)]) -> Vec<(Group, Suite<'a>)> {
    let of = |(pattern, workload): &'a (Pattern, Workload)| {
        let suite = |kind, work| Suite::new(pattern.name, kind, workload, work);
        [
            (Group::Paper, suite(Kind::Model, pattern.paper_work())),
            (Group::Bare, suite(Kind::Model, NONE)),
            (Group::Bare, suite(Kind::Vlane, NONE)),
        ]
    };
    let most = if options.validate_only { workloads.len() } else { 1 };
    workloads.iter().take(most).flat_map(of).collect()
}

/// The numbers of jobs, if the options make sense: as many as CPUs and twice as many are part of the experiment.
fn jobs(options: &Options, cpus: usize) -> Result<Vec<u16>> {
    let invalid = |text: &str| Err(Error::new(ErrorKind::Usage, text));
    let mut jobs = options.jobs.clone();
    if jobs.iter().any(|n| !(1..=64).contains(n)) {
        return invalid("a number of jobs is between 1 and 64; change --jobs");
    }
    if options.repeats == 0 || options.time < Duration::from_millis(20) {
        return invalid("measure at least once, and for 20 ms; change --repeat or --time");
    }
    if !(1..=256).contains(&options.depth) {
        return invalid("a job's depth is between 1 and 256; change --depth");
    }
    jobs.extend([cpus, cpus * 2].iter().filter_map(|n| u16::try_from(*n).ok()).filter(|n| *n <= 64));
    jobs.sort_unstable();
    jobs.dedup();
    Ok(jobs)
}

/// Measures, and makes the report of it.
///
/// # Errors
/// [`ErrorKind::Usage`] for options that make no sense, [`ErrorKind::Interrupted`], and what the measurements say.
pub fn run(options: &Options, interrupt: &Interrupt) -> Result<Report> {
    let begun = Begun::now(&options.command);
    let cpus = usable_cpus()?;
    let patterns = Pattern::named(&options.patterns)?;
    let jobs = jobs(options, cpus.len())?;
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

    let mut suites = suites(options, &workloads);
    let plan = plan(options, &workloads, &jobs);
    let steps = plan.len() + suites.iter().map(|(_, suite)| suite.steps()).sum::<usize>();
    let mut progress =
        Progress::new(steps * options.repeats + 1).expecting(options.time + options.ramp + MICRO);
    progress.step("what meeting costs on this machine");
    let prices = micro::measure(&cpus, MICRO)?;
    let mut cells: HashMap<Key, Vec<Cell>> = HashMap::new();
    let rounds = Rounds::measure(options.repeats, |round| {
        let reverse = round % 2 == 1;
        for (_, suite) in &mut suites {
            suite.round(&bench, reverse, &mut |label| progress.step(label))?;
        }
        let mut order: Vec<_> = plan.iter().collect();
        if reverse {
            order.reverse();
        }
        for Step { pattern, workload, group, subject, jobs } in order {
            let jobs_word = if *jobs == 1 { "job" } else { "jobs" };
            progress.step(format!("{}: {subject}, {jobs} {jobs_word}", pattern.title));
            let work = if *group == Group::Paper { pattern.paper_work() } else { NONE };
            let cell = bench.cell(*subject, *jobs, workload, work, options.placement)?;
            cells.entry((pattern.name, *group, *subject, *jobs)).or_default().push(cell);
        }
        Ok(())
    })?;
    progress.clear();
    let repeats = rounds.whole();
    cells.values_mut().for_each(|cells| cells.truncate(repeats));
    suites.iter_mut().for_each(|(_, suite)| suite.keep(repeats));
    let measured = Measured { patterns, jobs, cells, suites, prices, cpus: cpus.len(), repeats, begun };
    let mut report = render::report(options, &measured);
    rounds.mark(&mut report);
    Ok(report)
}
