//! One part of a scenario: responses, shares and loans, with every scheduler.

use serde::Serialize;
use vlane_error::counted;
use vlane_simulate::{Load, LoadOutcome, MachineOutcome, Outcome, Scenario};

use super::{Arm, Runs};
use vlane_report::{
    Axis, Block, Cell, Chart, Point, Samples, Section, Series, Spread, bars, table,
};

/// More machines than these are grouped by their common parameters.
const MOST_MACHINES: u64 = 20;
/// Charts of responses for no more loads than these.
const MOST_CHARTS: usize = 4;

pub(super) fn float(value: u64) -> f64 {
    value as f64
}

/// A row of a table: names, then figures.
pub(super) fn row<const N: usize, const F: usize>(
    names: [&str; N],
    figures: [Option<Spread>; F],
) -> Vec<Cell> {
    names.into_iter().map(Cell::from).chain(figures.map(Cell::from)).collect()
}

/// A load's figures in a run, and its machine's: a row of the samples.
#[derive(Serialize)]
struct Sample {
    mean_ms: f64,
    p50_ms: f64,
    p99_ms: f64,
    within_10_ms: f64,
    within_20_ms: f64,
    mbit: f64,
    cm: Option<f64>,
    next_loan: Option<f64>,
    denied: Option<f64>,
    off: Option<f64>,
}

impl Sample {
    fn of(outcome: &Outcome, load: &LoadOutcome) -> Self {
        let own = group(outcome, load.group, "");
        let own = own.as_ref();
        Self {
            mean_ms: load.mean_ms(),
            p50_ms: load.quantile_ms(0.5),
            p99_ms: load.quantile_ms(0.99),
            within_10_ms: load.within(10.0),
            within_20_ms: load.within(20.0),
            mbit: load.mbit(outcome.time_ns),
            cm: own.and_then(MachineOutcome::cm),
            next_loan: own.and_then(MachineOutcome::next_loan),
            denied: own.and_then(MachineOutcome::denied),
            off: own.map(MachineOutcome::off),
        }
    }
}

/// Every load of every run. Runs of one seed have the same round.
pub(super) fn samples(runs: &Runs) -> Samples {
    let mut records = Vec::new();
    for (place, run) in runs.0.iter().enumerate() {
        let is_alike = |other: &&super::Run| {
            (&other.scenario, &other.phase, &other.outcome.setup)
                == (&run.scenario, &run.phase, &run.outcome.setup)
        };
        let round = 1 + runs.0[..place].iter().filter(is_alike).count();
        for load in &run.outcome.loads {
            let part = format!("{} {}", run.scenario, run.phase);
            let load_name = format!("{}: {}", load.machine, load.name);
            let labels = [part.trim(), &run.outcome.setup, &load_name].map(Cell::from);
            let labels = labels.into_iter().chain([float(round as u64).into()]).collect();
            records.push((labels, Sample::of(&run.outcome, load)));
        }
    }
    let caption = "Every seed of every scheduler";
    Samples::of_records("seeds", caption, "Scenario | Scheduler | Load | Round", records)
}

/// The section of one part.
pub(super) fn part(runs: &Runs, scenario: &Scenario, phase: &str, part: &Scenario) -> Section {
    let arms = runs.of(&scenario.name, phase);
    let (id, title) = match phase {
        "" => (scenario.name.clone(), format!("Scenario {}", scenario.name)),
        phase => {
            (format!("{}-{phase}", scenario.name), format!("Scenario {}, {phase}", scenario.name))
        }
    };
    let words = format!(
        "{}. {}, {}, {}; {} s after {} s of warm-up.",
        scenario.about,
        counted(part.cpus, "CPU"),
        counted(part.machines(), "machine"),
        counted(format!("{:.0}", part.vcpus()), "vCPU"),
        part.seconds,
        part.warmup_seconds
    );
    let mut blocks = Vec::new();
    let loads = arms.first().map_or(&[][..], |arm| &arm.first().loads);
    if loads.len() <= MOST_CHARTS {
        blocks.extend((0..loads.len()).filter_map(|at| distribution(&arms, at, part)));
    }
    blocks.push(responses(&arms));
    if part.machines() <= MOST_MACHINES {
        blocks.push(shares_chart(&arms));
    }
    blocks.push(shares(&arms));
    blocks.extend(loans(&arms, scenario));
    Section::new(id, title, vec![words], blocks)
}

/// How often a load's events come, if it has a rate of its own: ` at 20 per second`.
fn rate_of(part: &Scenario, load: &LoadOutcome) -> String {
    let loads = part.vm.get(load.group).map_or(&[][..], |vm| &vm.load);
    let every = loads.iter().find_map(|of| match of {
        Load::Ping { name, every, .. } if *name == load.name => Some(every.us),
        _ => None,
    });
    every.map_or(String::new(), |us| format!(" at {:.3} per second", 1e6 / us).replace(".000", ""))
}

fn distribution(arms: &[Arm<'_>], load: usize, part: &Scenario) -> Option<Block> {
    let first = arms.first()?.first().loads.get(load)?;
    // Sixteen points per tenfold, from 10 us to 1 s.
    let times = || (0..=80).map(|n| 0.01 * 10_f64.powf(f64::from(n) / 16.0));
    let of = |arm: &Arm<'_>| {
        let within = |ms| arm.of(|run| Some(run.loads.get(load)?.within(ms) * 100.0));
        let points = times().filter_map(|x| Some(Point { x, y: within(x)? }));
        Series::measured(arm.setup, points.collect())
    };
    Some(Block::Chart(Chart::steps(
        format!(
            "Simulated: responses of {} ({}){}, cumulative",
            first.name,
            first.machine,
            rate_of(part, first)
        ),
        Axis::log("response", "ms"),
        Axis::new("answered within", "%"),
        arms.iter().map(of).collect(),
    )))
}

fn responses(arms: &[Arm<'_>]) -> Block {
    let loads = |arm: &Arm<'_>| 0..arm.first().loads.len();
    let each = arms.iter().flat_map(|arm| loads(arm).map(move |at| (arm, at)));
    let rows = each.map(|(arm, at)| {
        let of = |figure: fn(&LoadOutcome) -> f64| arm.of(|run| Some(figure(&run.loads[at])));
        let load = &arm.first().loads[at];
        let figures = [
            arm.of(|run| Some(float(run.loads[at].served()) / (float(run.time_ns) / 1e9))),
            of(LoadOutcome::mean_ms),
            of(|load| load.quantile_ms(0.5)),
            of(|load| load.quantile_ms(0.99)),
            of(|load| load.within(10.0) * 100.0),
            of(|load| load.within(20.0) * 100.0),
            arm.of(|run| Some(run.loads[at].mbit(run.time_ns))).filter(|_| load.bytes > 0),
        ];
        row([arm.setup, &format!("{}: {}", load.machine, load.name)], figures)
    });
    table(
        "Simulated: responses",
        "scheduler | load | served [per s] | mean [ms] | p50 [ms] | p99 [ms] | within 10 ms [%] | \
            within 20 ms [%] | bandwidth [Mbit/s]",
        rows.collect(),
    )
}

fn shares_chart(arms: &[Arm<'_>]) -> Block {
    let machines = arms.first().map_or(&[][..], |arm| &arm.first().machines);
    let of = |arm: &Arm<'_>| {
        let share = |at| arm.of(|run| Some(run.of_cpu(&run.machines[at]) * 100.0));
        (arm.setup.to_owned(), (0..machines.len()).map(share).collect())
    };
    bars(
        "Simulated: CPU time of each machine (Figures 7 to 9)",
        ("of one CPU", "%"),
        machines.iter().map(|machine| machine.name.clone()).collect(),
        arms.iter().map(of).collect(),
    )
}

fn shares(arms: &[Arm<'_>]) -> Block {
    let of = |arm: &Arm<'_>| {
        let farthest = arm.farthest_off();
        let mean = |run: &Outcome| {
            let hogs = || run.machines.iter().filter(|machine| machine.is_hog);
            let all = hogs().map(|machine| machine.off().abs()).sum::<f64>();
            Some(all / float(hogs().count() as u64) * 100.0)
        };
        let of_cpus = |run: &Outcome, ns| {
            Some(float(ns) / (float(run.time_ns) * f64::from(run.cpus)) * 100.0)
        };
        let figures = [
            arm.of(|run| Some(run.machines[farthest?].off() * 100.0)),
            arm.of(mean),
            arm.of(|run| of_cpus(run, run.idle_ns)),
            arm.of(|run| of_cpus(run, run.overhead_ns)),
            arm.of(|run| Some(float(run.switches) / (float(run.time_ns) / 1e9))),
        ];
        let name = farthest.map_or("", |at| &arm.first().machines[at].name);
        row([arm.setup, name], figures)
    };
    table(
        "Simulated: CPU time against what is due by weight, of machines that compute all the time",
        "scheduler | farthest off | off [%] | all, mean off [%] | idle [%] | switching [%] | \
            switches [per s]",
        arms.iter().map(of).collect(),
    )
}

/// Machines that are alike, as one: sums, and the CPU time of the one that is farthest from its
/// due.
pub(super) fn group(outcome: &Outcome, group: usize, name: &str) -> Option<MachineOutcome> {
    let mut machines = outcome.machines.iter().filter(|machine| machine.group == group);
    let mut all = MachineOutcome { name: name.into(), ..machines.next()?.clone() };
    for machine in machines {
        all.loans += machine.loans;
        all.vcpus += machine.vcpus;
        if machine.off().abs() > all.off().abs() {
            (all.used_ns, all.due_ns) = (machine.used_ns, machine.due_ns);
        }
    }
    Some(all)
}

/// Time of one redemption, seconds.
pub(super) fn redemption(machine: &MachineOutcome) -> Option<f64> {
    let all = machine.loans.redemptions;
    (all > 0).then(|| float(machine.loans.redeeming_ns) / float(all) / 1e9)
}

fn loans(arms: &[Arm<'_>], scenario: &Scenario) -> Option<Block> {
    let mut rows = Vec::new();
    for arm in arms {
        let has_load = |at: usize| arm.first().loads.iter().any(|load| load.group == at);
        for (at, vm) in scenario.vm.iter().enumerate().filter(|(at, _)| has_load(*at)) {
            let own = |run: &Outcome| group(run, at, &vm.name);
            if own(arm.first()).is_none_or(|all| all.loans.events == 0) {
                continue;
            }
            let seconds = |run: &Outcome| float(run.time_ns) / 1e9;
            let of = |figure: fn(&MachineOutcome) -> Option<f64>| arm.of(|run| figure(&own(run)?));
            let barred = |run: &Outcome| {
                let all = own(run)?;
                Some(float(all.loans.barred_ns) / (seconds(run) * 1e7 * f64::from(all.vcpus)))
            };
            let figures = [
                arm.of(|run| Some(float(own(run)?.loans.boosts) / seconds(run))),
                arm.of(|run| Some(float(own(run)?.loans.wake_boosts) / seconds(run))),
                of(MachineOutcome::denied),
                of(MachineOutcome::cm),
                of(MachineOutcome::next_loan),
                of(redemption),
                arm.of(barred),
                of(|all| Some(all.off() * 100.0)),
            ];
            rows.push(row([arm.setup, &vm.name], figures));
        }
    }
    let columns = "scheduler | machines | boosts [per s] | boosts from sleep [per s] | \
                   denied [%] | cm [credits/ms] | next loan [credits] | one redemption [s] | \
                   time barred [%] | farthest off due [%]";
    let caption = "Simulated: boosts and loans, machines that are alike together";
    (!rows.is_empty()).then(|| table(caption, columns, rows))
}
