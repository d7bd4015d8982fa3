//! What goes past one scenario: the ablation, events more and less frequent, what the simulation cost, and what it comes to.

use vlane_sched::simulate::{ABLATION, Setup};

use super::sections::{Group, axis, float, maybe, number, place, point, series, text};
use super::{Options, RATES, Runs, rate};
use crate::report::{Block, Cell, Chart, ChartKind, Column, Section, Table};

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
        means.push(point(place(at), load.mean_ms()));
        let barred = float(own.loans.barred_ns) / float(ping.time_ns) * 100.0;
        rows.push(vec![
            text(name),
            Setup::named(name).map_or(Cell::Empty, |setup| text(setup.about())),
            number(load.mean_ms()),
            number(load.quantile_ms(0.5)),
            number(load.quantile_ms(0.99)),
            number(load.within(10.0) * 100.0),
            maybe(own.denied()),
            maybe(own.redemption_s()),
            number(barred),
            maybe(mbit),
            maybe(off),
        ]);
    }
    let table = Table {
        caption: "Simulated: hping's responses, iperf's bandwidth, and what that does to shares".into(),
        columns: vec![
            Column::new("scheduler", ""),
            Column::new("what it is", ""),
            Column::new("mean", "ms"),
            Column::new("p50", "ms"),
            Column::new("p99", "ms"),
            Column::new("within 10 ms", "%"),
            Column::new("denied", "%"),
            Column::new("one redemption", "s"),
            Column::new("time barred", "%"),
            Column::new("iperf", "Mbit/s"),
            Column::new("farthest off, iperf", "%"),
        ],
        rows,
    };
    let chart = Chart {
        caption: "Simulated: mean response to hping".into(),
        kind: ChartKind::Bars,
        x: axis("scheduler", "", false),
        y: axis("mean response", "ms", false),
        categories: ABLATION.iter().map(ToString::to_string).collect(),
        series: vec![series("simulated", means)],
    };
    Section {
        id: "ablation".into(),
        title: "The paper's parameters, one change at a time".into(),
        text: vec![
            "The paper lends 1000 credits (100 ms of CPU time) and redeems 20 % of what is allotted. 13 vCPUs on 2 CPUs are allotted 5 ms each \
             every 30 ms, so 1 ms of it redeems, and a spent loan takes 3 s to redeem, in which no event boosts."
                .into(),
            "Rows from `paper+small` to `paper+share` change one thing in `paper`; `paper+all` changes all four; the last rows are vlane's \
             loans without and with levelled accountings."
                .into(),
        ],
        command: None,
        blocks: vec![Block::Chart(chart), Block::Table(table)],
    }
}

/// Responses and shares over how frequent events are.
pub(super) fn rates(runs: &Runs, setups: &[Setup]) -> Section {
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for setup in setups {
        let mut points = Vec::new();
        for ms in RATES.into_iter().rev() {
            let Some(outcome) = runs.one(&rate(ms), "hping", &setup.name) else { continue };
            let Some(load) = outcome.load(MEASURED, "hping") else { continue };
            let own = Group::of(outcome, load.group, MEASURED);
            let off = outcome.machine(MEASURED).map(|machine| machine.off() * 100.0);
            points.push(point(1000.0 / ms, load.mean_ms()));
            rows.push(vec![
                text(&setup.name),
                number(1000.0 / ms),
                number(load.mean_ms()),
                number(load.quantile_ms(0.99)),
                maybe(own.denied()),
                maybe(off),
            ]);
        }
        lines.push(series(&setup.name, points));
    }
    let chart = Chart {
        caption: "Simulated: mean response over the rate of pings".into(),
        kind: ChartKind::Lines,
        x: axis("pings per second", "", true),
        y: axis("mean response", "ms", true),
        categories: Vec::new(),
        series: lines,
    };
    let table = Table {
        caption: "Simulated: rates of pings".into(),
        columns: vec![
            Column::new("scheduler", ""),
            Column::new("pings", "per s"),
            Column::new("mean", "ms"),
            Column::new("p99", "ms"),
            Column::new("denied", "%"),
            Column::new("domain-1 off its due", "%"),
        ],
        rows,
    };
    Section {
        id: "rates".into(),
        title: "Events more and less frequent".into(),
        text: vec![
            "The paper's scenario with pings at other rates: it does not say how often it pinged.".into(),
        ],
        command: None,
        blocks: vec![Block::Chart(chart), Block::Table(table)],
    }
}

/// What the simulation itself cost.
pub(super) fn cost(runs: &Runs) -> Section {
    let row = |run: &super::Run| {
        let simulated = float(run.outcome.time_ns) / 1e9;
        vec![
            Cell::Text(format!("{} {}", run.scenario, run.phase).trim().to_string()),
            text(&run.outcome.setup),
            number(simulated),
            number(float(run.outcome.events)),
            number(run.seconds),
            number(float(run.outcome.events) / run.seconds),
        ]
    };
    let own = runs.0.iter().filter(|run| run.scenario != "ablation" && !run.scenario.starts_with("rates "));
    let table = Table {
        caption: "Cost of the simulation (measured here)".into(),
        columns: vec![
            Column::new("scenario", ""),
            Column::new("scheduler", ""),
            Column::new("simulated", "s"),
            Column::new("events", ""),
            Column::new("took", "s"),
            Column::new("events per second", ""),
        ],
        rows: own.map(row).collect(),
    };
    Section {
        id: "cost".into(),
        title: "What the simulation cost".into(),
        text: vec![
            "Events are the simulation's own: arrivals, ends of services and turns, accountings, without the warm-up's. As many runs go on at \
             once as there are CPUs."
                .into(),
        ],
        command: None,
        blocks: vec![Block::Table(table)],
    }
}

/// What it comes to.
pub(super) fn summary(runs: &Runs, options: &Options) -> Vec<String> {
    let mut said = Vec::new();
    for scenario in &options.scenarios {
        for (phase, _) in scenario.parts() {
            for run in runs.of(&scenario.name, &phase) {
                let outcome = &run.outcome;
                let Some(load) = outcome.loads.first() else { continue };
                let off = outcome.farthest_off().map_or(String::new(), |machine| {
                    format!("; {} is farthest off its due, by {:+.2} %", machine.name, machine.off() * 100.0)
                });
                let bandwidth = match load.bytes {
                    0 => String::new(),
                    _ => format!(", {:.1} Mbit/s", load.mbit(outcome.time_ns)),
                };
                said.push(format!(
                    "{} {phase} with {}: {} of {} answered after {:.3} ms in the mean, p99 {:.3} ms{bandwidth}{off}.",
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
