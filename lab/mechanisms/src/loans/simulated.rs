//! Loans in the simulator: scenarios by host schedulers, and the paper's figures.

mod extras;
mod sections;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use vlane_report::build::Begun;

use vlane_simulate::{ABLATION, Load, Outcome, Scenario, Setup, Span};

use vlane_client::progress::Progress;
use vlane_error::counted;
use vlane_report::{Note, Report, Section};
use vlane_testbed::Interrupt;
use vlane_testbed::error::{Context, ErrorKind, Result};

/// The options.
#[derive(Debug, Clone)]
pub struct Options {
    /// The command line, for the report.
    pub command: String,
    /// The simulated scenarios, in this order.
    pub scenarios: Vec<Scenario>,
    /// With which host schedulers.
    pub setups: Vec<Setup>,
    /// With the paper's scenario also: its parameters with one change at a time, and events more
    /// and less frequent.
    pub extras: bool,
    /// Of the events more and less frequent, so many runs, each with a seed of its own.
    pub seeds: u32,
}

/// A run, before and after.
#[derive(Debug, Clone)]
struct Run {
    scenario: String,
    phase: String,
    /// Seconds of wall-clock time that it took.
    seconds: f64,
    outcome: Outcome,
}

/// A run to be made: the names of its scenario and its phase, the part itself, and the scheduler.
type Job = (String, String, Scenario, Setup);

/// Pings per second in the section on rates. hping's own rate is the first; the paper gives it no
/// other.
const RATES: [f64; 5] = [1.0, 2.0, 5.0, 20.0, 100.0];

/// All runs of a report.
#[derive(Debug, Default)]
struct Runs(Vec<Run>);

impl Runs {
    fn of(&self, scenario: &str, phase: &str) -> Vec<&Run> {
        self.0.iter().filter(|run| run.scenario == scenario && run.phase == phase).collect()
    }

    fn one(&self, scenario: &str, phase: &str, setup: &str) -> Option<&Outcome> {
        let mut runs = self.of(scenario, phase).into_iter().map(|run| &run.outcome);
        runs.find(|outcome| outcome.setup == setup)
    }

    /// Those of the scenarios themselves.
    fn own(&self) -> impl Iterator<Item = &Run> {
        let is_extra =
            |run: &&Run| run.scenario == "ablation" || run.scenario.starts_with("rates ");
        self.0.iter().filter(move |run| !is_extra(run))
    }
}

/// The paper's scenario with so many pings per second, in the mean.
fn with_rate(scenario: &Scenario, per_second: f64) -> Scenario {
    let mut changed = scenario.clone();
    changed.seconds = scenario.seconds.min(60.0);
    for load in changed.vm.iter_mut().flat_map(|vm| &mut vm.load) {
        if let Load::Ping { every, .. } = load {
            *every = Span { us: 1e6 / per_second, ..*every };
        }
    }
    changed
}

/// Name under which the runs of the section on rates are kept.
fn rate(per_second: f64) -> String {
    format!("rates {per_second}")
}

/// Simulates all runs, on all CPUs that there are, and makes the report.
///
/// # Errors
/// A scheduler of the ablation cannot be made; [`ErrorKind::Interrupted`] before a first simulation
/// has ended. After it, the report is of those that have.
pub fn run(options: &Options, interrupt: &Interrupt) -> Result<Report> {
    let begun = Begun::now(&options.command);
    let paper =
        options.scenarios.iter().find(|scenario| options.extras && scenario.name == "paper");
    let jobs = jobs_of(options, paper)?;
    let runs = simulate_all(&jobs, interrupt);
    if runs.0.is_empty() {
        interrupt.check()?;
    }
    let mut sections: Vec<Section> = Vec::new();
    for scenario in &options.scenarios {
        for (phase, part) in scenario.parts() {
            sections.push(sections::part(&runs, scenario, &phase, &part));
        }
    }
    if paper.is_some() {
        sections.push(extras::ablation(&runs));
        sections.push(extras::rates(&runs, &options.setups));
    }
    sections.push(extras::cost(&runs));
    let seeds: Vec<_> =
        options.scenarios.iter().map(|s| format!("{} {}", s.name, s.seed)).collect();
    let rates = match paper {
        Some(_) if options.seeds > 1 => {
            format!("; rates of pings with {} seeds from there on", options.seeds)
        }
        _ => String::new(),
    };
    let notes = vec![
        Note::warning(
            "Simulated: these figures are calculated from a model, the same on every machine; \
             they are not measured. The model's limits are in docs/src/loan-simulator.md.",
        ),
        Note::info(format!("Seeds: {}{rates}.", seeds.join(", "))),
    ];
    let names: Vec<_> = options.scenarios.iter().map(|scenario| scenario.name.as_str()).collect();
    let mut report = Report {
        summary: extras::summary(&runs),
        notes,
        sections,
        ..begun.report("simulate", format!("Loans, simulated: {}", names.join(", ")), &[])
    };
    if runs.0.len() < jobs.len() {
        let (ended, wanted) = (runs.0.len(), counted(jobs.len(), "simulation"));
        report.mark_partial(format!(
            "PARTIAL: {ended} of {wanted} ended, the others were interrupted"
        ));
    }
    Ok(report)
}

/// All runs to simulate; `paper` is the paper's scenario, if it is to have extras.
fn jobs_of(options: &Options, paper: Option<&Scenario>) -> Result<Vec<Job>> {
    let mut jobs: Vec<Job> = Vec::new();
    for scenario in &options.scenarios {
        for (phase, part) in scenario.parts() {
            for setup in &options.setups {
                jobs.push((scenario.name.clone(), phase.clone(), part.clone(), setup.clone()));
            }
        }
    }
    if let Some(paper) = paper {
        for name in ABLATION {
            let setup = Setup::named(name).context(ErrorKind::Invalid, || "the ablation")?;
            for (phase, part) in paper.parts() {
                jobs.push(("ablation".into(), phase, part, setup.clone()));
            }
        }
        if let Some((phase, part)) = paper.parts().into_iter().next() {
            for (per_second, setup) in
                RATES.iter().flat_map(|&r| options.setups.iter().map(move |s| (r, s)))
            {
                let scenario = with_rate(&part, per_second);
                for seed in (scenario.seed..).take(options.seeds as usize) {
                    let scenario = Scenario { seed, ..scenario.clone() };
                    jobs.push((rate(per_second), phase.clone(), scenario, setup.clone()));
                }
            }
        }
    }
    Ok(jobs)
}

/// Every job, several at once; the results in the order of the jobs.
/// Those that are interrupted are left out.
fn simulate_all(jobs: &[Job], interrupt: &Interrupt) -> Runs {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<Option<Run>>> = Mutex::new(vec![None; jobs.len()]);
    let progress = Mutex::new(Progress::new(jobs.len()));
    let workers =
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(jobs.len());
    let work = || {
        while let Some((at, (scenario, phase, part, setup))) = {
            let at = next.fetch_add(1, Ordering::Relaxed);
            jobs.get(at).map(|job| (at, job))
        } {
            if let Ok(mut progress) = progress.lock() {
                progress.step(format!("{scenario} {phase} {}", setup.name));
            }
            let begin = Instant::now();
            let Some(outcome) = vlane_simulate::run_unless(interrupt.flag(), part, setup) else {
                return;
            };
            let seconds = begin.elapsed().as_secs_f64();
            tracing::debug!("{scenario} {phase} {} was simulated", setup.name);
            let run = Run { scenario: scenario.clone(), phase: phase.clone(), seconds, outcome };
            if let Ok(mut done) = done.lock() {
                done[at] = Some(run);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(work);
        }
    });
    let done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Runs(done.into_iter().flatten().collect())
}
