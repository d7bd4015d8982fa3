//! One part of a scenario: responses, shares and loans, with every scheduler.

use vlane_error::counted;
use vlane_simulate::{LoadOutcome, MachineOutcome, Outcome, Scenario};

use super::{Run, Runs};
use vlane_report::build::{bars, table};
use vlane_report::{Axis, Block, Cell, Chart, Point, Section, Series, Spread};

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
    figures: [Option<f64>; F],
) -> Vec<Cell> {
    names.into_iter().map(Cell::from).chain(figures.map(Cell::from)).collect()
}

/// The section of one part.
pub(super) fn part(runs: &Runs, scenario: &Scenario, phase: &str, part: &Scenario) -> Section {
    let runs = runs.of(&scenario.name, phase);
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
    let loads = runs.first().map_or(&[][..], |run| &run.outcome.loads);
    if loads.len() <= MOST_CHARTS {
        blocks.extend((0..loads.len()).filter_map(|at| distribution(&runs, at)));
    }
    blocks.push(responses(&runs));
    if part.machines() <= MOST_MACHINES {
        blocks.push(shares_chart(&runs));
    }
    blocks.push(shares(&runs));
    blocks.extend(loans(&runs, scenario));
    Section::new(id, title, vec![words], blocks)
}

fn distribution(runs: &[&Run], load: usize) -> Option<Block> {
    let first = runs.first()?.outcome.loads.get(load)?;
    // Sixteen points per tenfold, from 10 us to 1 s.
    let times = || (0..=80).map(|n| 0.01 * 10_f64.powf(f64::from(n) / 16.0));
    let points = |load: &LoadOutcome| -> Vec<Point> {
        let points = times().map(|ms| Point::exact(ms, load.within(ms) * 100.0));
        points.filter(|point| point.y.median.is_finite()).collect()
    };
    let of = |run: &&Run| {
        Some(Series::measured(&run.outcome.setup, points(run.outcome.loads.get(load)?)))
    };
    Some(Block::Chart(Chart::steps(
        format!("Simulated: responses of {} ({}), cumulative", first.name, first.machine),
        Axis::log("response", "ms"),
        Axis::new("answered within", "%"),
        runs.iter().filter_map(of).collect(),
    )))
}

fn responses(runs: &[&Run]) -> Block {
    let each = runs.iter().flat_map(|run| run.outcome.loads.iter().map(|load| (*run, load)));
    let rows = each.map(|(run, load)| {
        let time_ns = run.outcome.time_ns;
        let figures = [
            float(load.served()) / (float(time_ns) / 1e9),
            load.mean_ms(),
            load.quantile_ms(0.5),
            load.quantile_ms(0.99),
            load.within(10.0) * 100.0,
            load.within(20.0) * 100.0,
        ];
        let names = [run.outcome.setup.as_str(), &format!("{}: {}", load.machine, load.name)];
        let mut row = row(names, figures.map(Some));
        row.push((load.bytes > 0).then(|| load.mbit(time_ns)).into());
        row
    });
    table(
        "Simulated: responses",
        "scheduler | load | served [per s] | mean [ms] | p50 [ms] | p99 [ms] | within 10 ms [%] | \
            within 20 ms [%] | bandwidth [Mbit/s]",
        rows.collect(),
    )
}

fn shares_chart(runs: &[&Run]) -> Block {
    let machines = runs.first().map_or(&[][..], |run| &run.outcome.machines);
    let of = |run: &&Run| {
        let share = |machine| Some(Spread::exact(run.outcome.of_cpu(machine) * 100.0));
        (run.outcome.setup.clone(), run.outcome.machines.iter().map(share).collect())
    };
    bars(
        "Simulated: CPU time of each machine (Figures 7 to 9)",
        ("of one CPU", "%"),
        machines.iter().map(|machine| machine.name.clone()).collect(),
        runs.iter().map(of).collect(),
    )
}

fn shares(runs: &[&Run]) -> Block {
    let of = |run: &&Run| {
        let outcome = &run.outcome;
        let all = float(outcome.time_ns) * f64::from(outcome.cpus);
        let farthest = outcome.farthest_off();
        let hogs = || outcome.machines.iter().filter(|machine| machine.is_hog);
        let mean =
            hogs().map(|machine| machine.off().abs()).sum::<f64>() / float(hogs().count() as u64);
        let figures = [
            farthest.map(|machine| machine.off() * 100.0),
            Some(mean * 100.0),
            Some(float(outcome.idle_ns) / all * 100.0),
            Some(float(outcome.overhead_ns) / all * 100.0),
            Some(float(outcome.switches) / (float(outcome.time_ns) / 1e9)),
        ];
        row([&outcome.setup, farthest.map_or("", |machine| &machine.name)], figures)
    };
    table(
        "Simulated: CPU time against what is due by weight, of machines that compute all the time",
        "scheduler | farthest off | off [%] | all, mean off [%] | idle [%] | switching [%] | \
            switches [per s]",
        runs.iter().map(of).collect(),
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

fn loans(runs: &[&Run], scenario: &Scenario) -> Option<Block> {
    let mut rows = Vec::new();
    for run in runs {
        let seconds = float(run.outcome.time_ns) / 1e9;
        let has_load = |at: usize| run.outcome.loads.iter().any(|load| load.group == at);
        for (at, vm) in scenario.vm.iter().enumerate().filter(|(at, _)| has_load(*at)) {
            let all = group(&run.outcome, at, &vm.name).filter(|all| all.loans.events > 0);
            let Some(all) = all else { continue };
            let figures = [
                Some(float(all.loans.boosts) / seconds),
                Some(float(all.loans.wake_boosts) / seconds),
                all.denied(),
                all.cm(),
                all.next_loan(),
                redemption(&all),
                Some(float(all.loans.barred_ns) / (seconds * 1e7 * f64::from(all.vcpus))),
                Some(all.off() * 100.0),
            ];
            rows.push(row([run.outcome.setup.as_str(), &all.name], figures));
        }
    }
    let columns = "scheduler | machines | boosts [per s] | boosts from sleep [per s] | \
                   denied [%] | cm [credits/ms] | next loan [credits] | one redemption [s] | \
                   time barred [%] | farthest off due [%]";
    let caption = "Simulated: boosts and loans, machines that are alike together";
    (!rows.is_empty()).then(|| table(caption, columns, rows))
}
