//! Reports beyond one scenario: the ablation, events more and less frequent, the simulation's cost,
//! and the conclusions.

use vlane_report::build::spread;
use vlane_simulate::{ABLATION, LoadOutcome, Outcome, Setup};

use super::sections::{Group, float, place};
use super::{Options, RATES, Runs, rate};
use vlane_report::{Axis, Block, Cell, Chart, Point, Section, Series, Table};

/// Where the paper's loads are.
const MEASURED: &str = "domain-1";

/// The paper's parameters, one change at a time.
pub(super) fn ablation(runs: &Runs) -> Section {
    let mut rows = Vec::new();
    let mut means = Vec::new();
    for (at, name) in ABLATION.into_iter().enumerate() {
        let Some(ping) = runs.one("ablation", "hping", name) else { continue };
        let Some(load) = ping.load(MEASURED, "hping") else { continue };
        let own = Group::of(ping, load.group, MEASURED);
        let traffic = runs.one("ablation", "iperf", name);
        let mbit = traffic.and_then(|o| Some(o.load(MEASURED, "iperf")?.mbit(o.time_ns)));
        let off = traffic.and_then(|o| Some(o.farthest_off()?.off() * 100.0));
        means.push(Point::exact(place(at), load.mean_ms()));
        let barred = float(own.loans.barred_ns) / float(ping.time_ns) * 100.0;
        rows.push(vec![
            Cell::from(name),
            Setup::named(name).map_or(Cell::Empty, |setup| setup.about().into()),
            Cell::from(load.mean_ms()),
            Cell::from(load.quantile_ms(0.5)),
            Cell::from(load.quantile_ms(0.99)),
            Cell::from(load.within(10.0) * 100.0),
            Cell::from(own.denied()),
            Cell::from(own.redemption_s()),
            Cell::from(barred),
            Cell::from(mbit),
            Cell::from(off),
        ]);
    }
    let table = Table::new(
        "Simulated: hping's responses, iperf's bandwidth, and what that does to shares",
        "scheduler | what it is | mean [ms] | p50 [ms] | p99 [ms] | within 10 ms [%] | denied [%] \
         | one redemption [s] | time barred [%] | iperf [Mbit/s] | farthest off, iperf [%]",
        rows,
    );
    let chart = Chart::bars(
        "Simulated: mean response to hping",
        Axis::new("scheduler", ""),
        Axis::new("mean response", "ms"),
        ABLATION.iter().map(ToString::to_string).collect(),
        vec![Series::measured("simulated", means)],
    );
    Section::new(
        "ablation",
        "The paper's parameters, one change at a time",
        vec![
            "The paper lends 1000 credits (100 ms of CPU time) and redeems 20 % of what is \
             allotted. 13 vCPUs on 2 CPUs are allotted 5 ms each every 30 ms, so 1 ms of it \
             redeems, and a spent loan takes 3 s to redeem, in which no event boosts."
                .into(),
            "Rows from `paper+small` to `paper+share` change one thing in `paper`; `paper+all` \
             changes all four; the last rows are vlane's loans without and with levelled \
             accountings."
                .into(),
        ],
        vec![Block::Chart(chart), Block::Table(table)],
    )
}

/// Responses and shares over how frequent events are.
pub(super) fn rates(runs: &Runs, setups: &[Setup]) -> Section {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for setup in setups {
        let mut points = Vec::new();
        for per_second in RATES {
            let all = runs.of(&rate(per_second), "hping");
            let outcomes: Vec<&Outcome> = all
                .iter()
                .map(|run| &run.outcome)
                .filter(|outcome| outcome.setup == setup.name)
                .collect();
            let of_load = |of: fn(&LoadOutcome) -> f64| {
                spread(&outcomes, |outcome| outcome.load(MEASURED, "hping").map(of))
            };
            let mean = of_load(LoadOutcome::mean_ms);
            points.extend(mean.map(|y| Point { x: per_second, y }));
            let denied = spread(&outcomes, |outcome| {
                let load = outcome.load(MEASURED, "hping")?;
                Group::of(outcome, load.group, MEASURED).denied()
            });
            let off = spread(&outcomes, |outcome| {
                outcome.machine(MEASURED).map(|machine| machine.off() * 100.0)
            });
            let figures = [
                mean,
                of_load(|load| load.quantile_ms(0.99)),
                of_load(|load| load.within(10.0) * 100.0),
                of_load(|load| load.within(20.0) * 100.0),
                denied,
                off,
            ];
            let mut row = vec![Cell::from(setup.name.as_str()), Cell::from(per_second)];
            row.extend(figures.map(|figure| figure.map_or(Cell::Empty, Cell::Figure)));
            rows.push(row);
        }
        lines.push(Series::measured(&setup.name, points));
    }
    let chart = Chart::lines(
        "Simulated: mean response over the rate of pings",
        Axis::log("pings per second", ""),
        Axis::log("mean response", "ms"),
        lines,
    );
    let table = Table::new(
        "Simulated: rates of pings",
        "scheduler | pings [per s] | mean [ms] | p99 [ms] | within 10 ms [%] | within 20 ms [%] | \
         denied [%] | domain-1 off its due [%]",
        rows,
    );
    Section::new(
        "rates",
        "Events more and less frequent",
        vec![
            "The paper's scenario with pings at other rates: it does not say how often it pinged. \
             hping itself sends one per second by default."
                .into(),
        ],
        vec![Block::Chart(chart), Block::Table(table)],
    )
}

/// Cost of the simulation itself.
pub(super) fn cost(runs: &Runs) -> Section {
    let row = |run: &super::Run| {
        let simulated = float(run.outcome.time_ns) / 1e9;
        vec![
            Cell::Text(format!("{} {}", run.scenario, run.phase).trim().to_string()),
            Cell::from(run.outcome.setup.as_str()),
            Cell::from(simulated),
            Cell::from(float(run.outcome.events)),
            Cell::from(run.seconds),
            Cell::from(float(run.outcome.events) / run.seconds),
        ]
    };
    let own = runs
        .0
        .iter()
        .filter(|run| run.scenario != "ablation" && !run.scenario.starts_with("rates "));
    let table = Table::new(
        "Cost of the simulation (measured here)",
        "scenario | scheduler | simulated [s] | events | took [s] | events per second",
        own.map(row).collect(),
    );
    Section::new(
        "cost",
        "What the simulation cost",
        vec![
            "Events are the simulation's own: arrivals, ends of services and turns, accountings, \
             without the warm-up's. As many runs go on at once as there are CPUs."
                .into(),
        ],
        vec![Block::Table(table)],
    )
}

/// The conclusions.
pub(super) fn summary(runs: &Runs, options: &Options) -> Vec<String> {
    let mut said = Vec::new();
    for scenario in &options.scenarios {
        for (phase, _) in scenario.parts() {
            for run in runs.of(&scenario.name, &phase) {
                let outcome = &run.outcome;
                let Some(load) = outcome.loads.first() else { continue };
                let off = outcome.farthest_off().map_or(String::new(), |machine| {
                    format!(
                        "; {} is farthest off its due, by {:+.2} %",
                        machine.name,
                        machine.off() * 100.0
                    )
                });
                let bandwidth = match load.bytes {
                    0 => String::new(),
                    _ => format!(", {:.1} Mbit/s", load.mbit(outcome.time_ns)),
                };
                said.push(format!(
                    "{} {phase} with {}: {} of {} answered after {:.3} ms in the mean, p99 {:.3} \
                     ms{bandwidth}{off}.",
                    scenario.name,
                    outcome.setup,
                    load.name,
                    load.machine,
                    load.mean_ms(),
                    load.quantile_ms(0.99)
                ));
            }
        }
    }
    said.truncate(14);
    said
}
