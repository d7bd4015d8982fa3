//! Loans in the simulator: scenarios by host schedulers, and the paper's figures.

mod extras;
mod sections;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use clap::Args;
use vlane::values;
use vlane_simulate::{ABLATION, COMPARED, Load, Outcome, Scenario, Setup, Span};

use vlane_error::counted;
use vlane_report::{Note, Report, Section, Spread};
use vlane_testbed::{Call, Context, ErrorKind, Interrupt, Progress, Result};

/// Options of the simulations
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// paper, table-7, classes, inactive, large, or a TOML file [default: the first three]
    scenario: Option<String>,
    /// Host scheduler; may be given several times
    ///
    /// [default: eevdf, credit, always-boost, loan, adaptive, paper]
    #[arg(long = "policy", value_name = "NAME", value_parser = Setup::named)]
    policies: Vec<Setup>,
    /// Physical CPUs, instead of the scenario's
    #[arg(long = "host-cpus", alias = "cpus", value_name = "N",
        value_parser = values::whole::<u32>(1..=4096))]
    cpus: Option<u32>,
    /// Measured time in simulated seconds, instead of the scenario's
    #[arg(long = "time", alias = "seconds", value_name = "TIME",
        value_parser = values::seconds(0.1, 100_000.0))]
    seconds: Option<f64>,
    /// Seed of all random choices, instead of the scenario's
    #[arg(long, value_name = "N", value_parser = values::whole::<u64>(0..))]
    seed: Option<u64>,
    /// Number of simulations of each scenario and scheduler, with seeds from --seed on
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = values::whole::<u32>(1..=1000))]
    seeds: u32,
}

impl Options {
    /// The simulated scenarios, in this order.
    fn scenarios(&self) -> Result<Vec<Scenario>> {
        let names = match &self.scenario {
            Some(name) => vec![name.as_str()],
            None => vec!["paper", "table-7", "classes"],
        };
        let changed = |name: &str| {
            let mut scenario = Scenario::named(name)?;
            scenario.cpus = self.cpus.unwrap_or(scenario.cpus);
            scenario.seconds = self.seconds.unwrap_or(scenario.seconds);
            scenario.seed = self.seed.unwrap_or(scenario.seed);
            scenario.checked()
        };
        names.into_iter().map(changed).collect()
    }

    /// The host schedulers to compare.
    fn setups(&self) -> Result<Vec<Setup>> {
        match self.policies.as_slice() {
            [] => COMPARED.iter().map(|name| Setup::named(name)).collect(),
            setups => Ok(setups.to_vec()),
        }
    }
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

/// The runs of a scheduler in one part of a scenario, one for each seed.
#[derive(Debug)]
struct Arm<'a> {
    setup: &'a str,
    runs: Vec<&'a Run>,
}

impl Arm<'_> {
    /// A figure over the seeds whose run has it; none without one.
    fn of(&self, figure: impl Fn(&Outcome) -> Option<f64>) -> Option<Spread> {
        let figures = self.runs.iter().filter_map(|run| figure(&run.outcome));
        Spread::of(&figures.filter(|figure| figure.is_finite()).collect::<Vec<_>>())
    }

    /// The run of the first seed, for names and sizes, which all seeds share.
    fn first(&self) -> &Outcome {
        &self.runs[0].outcome
    }

    /// Index of the machine that computes all the time and is farthest from its due, in the mean of
    /// the runs.
    fn farthest_off(&self) -> Option<usize> {
        let off = |at: usize| self.runs.iter().map(|run| run.outcome.machines[at].off()).sum();
        let hogs = self.first().machines.iter().enumerate().filter(|(_, machine)| machine.is_hog);
        let offs = hogs.map(|(at, _)| (at, f64::abs(off(at))));
        offs.max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(at, _)| at)
    }
}

impl Runs {
    /// The schedulers of a part, in the order in which they were simulated.
    fn of(&self, scenario: &str, phase: &str) -> Vec<Arm<'_>> {
        let mut arms: Vec<Arm<'_>> = Vec::new();
        for run in self.0.iter().filter(|run| run.scenario == scenario && run.phase == phase) {
            match arms.iter_mut().find(|arm| arm.setup == run.outcome.setup) {
                Some(arm) => arm.runs.push(run),
                None => arms.push(Arm { setup: &run.outcome.setup, runs: vec![run] }),
            }
        }
        arms
    }

    /// One scheduler of a part.
    fn arm(&self, scenario: &str, phase: &str, setup: &str) -> Option<Arm<'_>> {
        self.of(scenario, phase).into_iter().find(|arm| arm.setup == setup)
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
/// Senseless scenarios and unknown schedulers; [`ErrorKind::Interrupted`] before a first simulation
/// has ended. After it, the report is of those that have.
pub fn run(options: &Options, call: &Call<'_>) -> Result<Report> {
    let Call { begun, interrupt, .. } = call;
    let (scenarios, setups) = (&options.scenarios()?, &options.setups()?);
    let has_extras = options.policies.is_empty();
    let paper = scenarios.iter().find(|scenario| has_extras && scenario.name == "paper");
    let jobs = jobs_of(scenarios, setups, paper, options.seeds)?;
    let runs = simulate_all(&jobs, interrupt);
    if runs.0.is_empty() {
        interrupt.check()?;
    }
    let mut sections: Vec<Section> = Vec::new();
    let mut parts = Vec::new();
    for scenario in scenarios {
        for (phase, part) in scenario.parts() {
            sections.push(sections::part(&runs, scenario, &phase, &part));
            parts.push((scenario.name.as_str(), phase));
        }
    }
    if paper.is_some() {
        sections.push(extras::ablation(&runs));
        sections.push(extras::rates(&runs, setups));
    }
    sections.push(extras::cost(&runs, &parts));
    let seeds: Vec<_> = scenarios.iter().map(|s| format!("{} {}", s.name, s.seed)).collect();
    let more = match options.seeds {
        1 => String::new(),
        seeds => format!("; {seeds} from there on, of which tables have medians and ranges"),
    };
    let notes = vec![
        Note::warning(
            "Simulated: these figures are calculated from a model, the same on every machine; \
             they are not measured. The model's limits are in docs/src/loan-simulator.md.",
        ),
        Note::info(format!("Seeds: {}{more}.", seeds.join(", "))),
    ];
    let names: Vec<_> = scenarios.iter().map(|scenario| scenario.name.as_str()).collect();
    let mut report = Report {
        summary: extras::summary(&runs, &parts),
        notes,
        sections,
        samples: vec![sections::samples(&runs)],
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

/// All runs to simulate, each with so many seeds. `paper` is the paper's scenario, if it is to have
/// extras. These are runs with one parameter changed at a time, and with other rates of events.
fn jobs_of(
    scenarios: &[Scenario],
    setups: &[Setup],
    paper: Option<&Scenario>,
    seeds: u32,
) -> Result<Vec<Job>> {
    let mut jobs: Vec<Job> = Vec::new();
    let mut add = |name: &str, phase: &str, part: &Scenario, setup: &Setup| {
        let each = (part.seed..).take(seeds as usize);
        let with = |seed| Scenario { seed, ..part.clone() };
        jobs.extend(each.map(|seed| (name.into(), phase.into(), with(seed), setup.clone())));
    };
    for scenario in scenarios {
        for (phase, part) in scenario.parts() {
            setups.iter().for_each(|setup| add(&scenario.name, &phase, &part, setup));
        }
    }
    let parts = paper.map(Scenario::parts).unwrap_or_default();
    for name in ABLATION.iter().filter(|_| paper.is_some()) {
        let setup = Setup::named(name).context(ErrorKind::Invalid, || "the ablation")?;
        parts.iter().for_each(|(phase, part)| add("ablation", phase, part, &setup));
    }
    if let Some((phase, part)) = parts.first() {
        for per_second in RATES {
            let part = with_rate(part, per_second);
            setups.iter().for_each(|setup| add(&rate(per_second), phase, &part, setup));
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::tests::{options, try_options};

    #[test]
    fn changed_scenarios_are_checked() {
        let of = |words: &[&str]| -> Options { options(words) };
        let paper = of(&["--cpus", "4", "--seed", "7"]);
        let sizes: Vec<_> =
            paper.scenarios().unwrap().iter().map(|s| (s.cpus, s.machines(), s.seed)).collect();
        assert_eq!(sizes, [(4, 13, 7), (4, 8, 7), (4, 12, 7)]);
        assert!(paper.policies.is_empty() && paper.setups().unwrap().len() == 6);
        assert_eq!(of(&["large", "--policy", "loan"]).setups().unwrap().len(), 1);
        let error = of(&["no-such.toml"]).scenarios().unwrap_err();
        assert!(format!("{error:#}").contains("no-such.toml"), "{error:#}");
        for (words, says) in
            [(["--policy", "cfs"], "always-boost"), (["--cpus", "0"], "at least 1")]
        {
            let error = try_options::<Options>(&words).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
