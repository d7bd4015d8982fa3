//! Reports beyond one scenario: the ablation, events more and less frequent, the simulation's cost,
//! and the conclusions.

use vlane_report::build::{spread, table};
use vlane_simulate::{ABLATION, LoadOutcome, Outcome, Setup};

use super::sections::{float, group, redemption, row};
use super::{RATES, Run, Runs, rate};
use vlane_report::{Axis, Block, Cell, Chart, Point, Section, Series};

/// Where the paper's loads are.
const MEASURED: &str = "domain-1";

/// The paper's parameters, one change at a time.
pub(super) fn ablation(runs: &Runs) -> Section {
    let row_of = |name: &str| {
        let of = |ping: &Outcome| {
            let load = ping.load(MEASURED, "hping")?;
            let own = group(ping, load.group, MEASURED)?;
            let traffic = runs.one("ablation", "iperf", name);
            let figures = [
                Some(load.mean_ms()),
                Some(load.quantile_ms(0.5)),
                Some(load.quantile_ms(0.99)),
                Some(load.within(10.0) * 100.0),
                own.denied(),
                redemption(&own),
                Some(float(own.loans.barred_ns) / float(ping.time_ns) * 100.0),
                traffic.and_then(|run| Some(run.load(MEASURED, "iperf")?.mbit(run.time_ns))),
                traffic.and_then(|run| Some(run.farthest_off()?.off() * 100.0)),
            ];
            let about = Setup::named(name).map_or(String::new(), |setup| setup.about().into());
            Some(row([name, &about], figures))
        };
        runs.one("ablation", "hping", name).and_then(of)
    };
    let table = table(
        "Simulated: hping's responses, iperf's bandwidth, and what that does to shares",
        "scheduler | what it is | mean [ms] | p50 [ms] | p99 [ms] | within 10 ms [%] | denied [%] \
         | one redemption [s] | time barred [%] | iperf [Mbit/s] | farthest off, iperf [%]",
        ABLATION.into_iter().filter_map(row_of).collect(),
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
        vec![table],
    )
}

/// Responses and shares over how frequent events are.
pub(super) fn rates(runs: &Runs, setups: &[Setup]) -> Section {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for setup in setups {
        let mut points = Vec::new();
        for per_second in RATES {
            let mut all = runs.of(&rate(per_second), "hping");
            all.retain(|run| run.outcome.setup == setup.name);
            let of = |figure: fn(&Outcome, &LoadOutcome) -> Option<f64>| {
                spread(&all, |run| figure(&run.outcome, run.outcome.load(MEASURED, "hping")?))
            };
            let mean = of(|_, load| Some(load.mean_ms()));
            points.extend(mean.map(|y| Point { x: per_second, y }));
            let figures = [
                mean,
                of(|_, load| Some(load.quantile_ms(0.99))),
                of(|_, load| Some(load.within(10.0) * 100.0)),
                of(|_, load| Some(load.within(20.0) * 100.0)),
                of(|run, load| group(run, load.group, MEASURED)?.denied()),
                of(|run, _| Some(run.machine(MEASURED)?.off() * 100.0)),
            ];
            let mut row = row([&setup.name], [Some(per_second)]);
            row.extend(figures.map(Cell::from));
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
    let table = table(
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
        vec![Block::Chart(chart), table],
    )
}

/// Cost of the simulation itself.
pub(super) fn cost(runs: &Runs) -> Section {
    let of = |run: &Run| {
        let (events, simulated) = (float(run.outcome.events), float(run.outcome.time_ns) / 1e9);
        let name = format!("{} {}", run.scenario, run.phase);
        let figures = [simulated, events, run.seconds, events / run.seconds];
        row([name.trim(), &run.outcome.setup], figures.map(Some))
    };
    let table = table(
        "Cost of the simulation (measured here)",
        "scenario | scheduler | simulated [s] | events | took [s] | events per second",
        runs.own().map(of).collect(),
    );
    Section::new(
        "cost",
        "What the simulation cost",
        vec![
            "Events are the simulation's own: arrivals, ends of services and turns, accountings, \
             without the warm-up's. As many runs go on at once as there are CPUs."
                .into(),
        ],
        vec![table],
    )
}

/// The conclusions.
pub(super) fn summary(runs: &Runs) -> Vec<String> {
    let of = |run: &Run| {
        let outcome = &run.outcome;
        let load = outcome.loads.first()?;
        let off = outcome.farthest_off().map_or(String::new(), |machine| {
            let off = machine.off() * 100.0;
            format!("; {} is farthest off its due, by {off:+.2} %", machine.name)
        });
        let bandwidth = match load.bytes {
            0 => String::new(),
            _ => format!(", {:.1} Mbit/s", load.mbit(outcome.time_ns)),
        };
        Some(format!(
            "{} {} with {}: {} of {} answered after {:.3} ms in the mean, p99 {:.3} \
             ms{bandwidth}{off}.",
            run.scenario,
            run.phase,
            outcome.setup,
            load.name,
            load.machine,
            load.mean_ms(),
            load.quantile_ms(0.99)
        ))
    };
    runs.own().filter_map(of).take(14).collect()
}
