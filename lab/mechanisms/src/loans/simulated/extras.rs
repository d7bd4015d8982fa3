//! Reports beyond one scenario: the ablation, events more and less frequent, the simulation's cost,
//! and the conclusions.

use vlane_report::{Axis, Block, Chart, Point, Section, Series, Spread, spread, table};
use vlane_simulate::{ABLATION, LoadOutcome, Outcome, Setup};

use super::sections::{float, group, redemption, row};
use super::{Arm, RATES, Runs, rate};

/// Where the paper's loads are.
const MEASURED: &str = "domain-1";

/// The paper's parameters, one change at a time.
pub(super) fn ablation(runs: &Runs) -> Section {
    let row_of = |name: &str| {
        let pings = runs.arm("ablation", "hping", name)?;
        let traffic = runs.arm("ablation", "iperf", name);
        let traffic = traffic.as_ref();
        let of = |figure: fn(&LoadOutcome) -> f64| {
            pings.of(|run| Some(figure(run.load(MEASURED, "hping")?)))
        };
        let own = |run: &Outcome| group(run, run.load(MEASURED, "hping")?.group, MEASURED);
        let figures = [
            of(LoadOutcome::mean_ms),
            of(|load| load.quantile_ms(0.5)),
            of(|load| load.quantile_ms(0.99)),
            of(|load| load.within(10.0) * 100.0),
            pings.of(|run| own(run)?.denied()),
            pings.of(|run| redemption(&own(run)?)),
            pings.of(|run| Some(float(own(run)?.loans.barred_ns) / float(run.time_ns) * 100.0)),
            traffic?.of(|run| Some(run.load(MEASURED, "iperf")?.mbit(run.time_ns))),
            traffic?.of(|run| Some(run.machines[traffic?.farthest_off()?].off() * 100.0)),
        ];
        let about = Setup::named(name).map_or(String::new(), |setup| setup.about().into());
        Some(row([name, &about], figures))
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
            let Some(arm) = runs.arm(&rate(per_second), "hping", &setup.name) else { continue };
            let of = |figure: fn(&Outcome, &LoadOutcome) -> Option<f64>| {
                arm.of(|run| figure(run, run.load(MEASURED, "hping")?))
            };
            let mean = of(|_, load| Some(load.mean_ms()));
            points.extend(mean.map(|y| Point { x: per_second, y }));
            let figures = [
                Some(Spread::exact(per_second)),
                mean,
                of(|_, load| Some(load.quantile_ms(0.99))),
                of(|_, load| Some(load.within(10.0) * 100.0)),
                of(|_, load| Some(load.within(20.0) * 100.0)),
                of(|run, load| group(run, load.group, MEASURED)?.denied()),
                of(|run, _| Some(run.machine(MEASURED)?.off() * 100.0)),
            ];
            rows.push(row([&setup.name], figures));
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
pub(super) fn cost(runs: &Runs, parts: &[(&str, String)]) -> Section {
    let of = |(scenario, phase): &(&str, String)| {
        let name = format!("{scenario} {phase}");
        let row_of = |arm: Arm<'_>| {
            let figures = [
                arm.of(|run| Some(float(run.time_ns) / 1e9)),
                arm.of(|run| Some(float(run.events))),
                spread(&arm.runs, |run| Some(run.seconds)),
                spread(&arm.runs, |run| Some(float(run.outcome.events) / run.seconds)),
            ];
            row([name.trim(), arm.setup], figures)
        };
        runs.of(scenario, phase).into_iter().map(row_of).collect::<Vec<_>>()
    };
    let table = table(
        "Cost of the simulation (measured here)",
        "scenario | scheduler | simulated [s] | events | took [s] | events per second",
        parts.iter().flat_map(of).collect(),
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
pub(super) fn summary(runs: &Runs, parts: &[(&str, String)]) -> Vec<String> {
    let says = |figure: Option<Spread>, digits: usize| match figure {
        Some(Spread { median, runs: 1, .. }) => format!("{median:.digits$}"),
        Some(Spread { median, min, max, .. }) => {
            format!("{median:.digits$} ({min:.digits$} to {max:.digits$})")
        }
        None => "an unknown time".into(),
    };
    let of = |(scenario, phase): &(&str, String), arm: &Arm<'_>| {
        let load = arm.first().loads.first()?;
        let of = |figure: fn(&LoadOutcome) -> f64| arm.of(|run| Some(figure(&run.loads[0])));
        let off = arm.farthest_off().map_or(String::new(), |at| {
            let off = arm.of(|run| Some(run.machines[at].off() * 100.0));
            let name = &arm.first().machines[at].name;
            format!("; {name} is farthest off its due, by {} %", says(off, 2))
        });
        let bandwidth = match load.bytes {
            0 => String::new(),
            _ => {
                let mbit = arm.of(|run| Some(run.loads[0].mbit(run.time_ns)));
                format!(", {} Mbit/s", says(mbit, 1))
            }
        };
        Some(format!(
            "{} with {}: {} of {} answered after {} ms in the mean, p99 {} ms{bandwidth}{off}.",
            format!("{scenario} {phase}").trim(),
            arm.setup,
            load.name,
            load.machine,
            says(of(LoadOutcome::mean_ms), 3),
            says(of(|load| load.quantile_ms(0.99)), 3),
        ))
    };
    let each = parts
        .iter()
        .flat_map(|part| runs.of(part.0, &part.1).into_iter().map(move |arm| (part, arm)));
    each.filter_map(|(part, arm)| of(part, &arm)).collect()
}
