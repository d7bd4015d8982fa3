//! One part of a scenario: responses, shares and loans, with every scheduler, and what the paper
//! has of them.

use vlane_error::counted;
use vlane_simulate::{LoadOutcome, Loans, MachineOutcome, Outcome, Scenario};

use super::{Run, Runs};
use vlane_report::published::{self, Interval, Published, Row};
use vlane_report::{Axis, Block, Cell, Chart, Point, Section, Series, Spread, Table};

/// More machines than these are grouped by their common parameters.
const MOST_MACHINES: usize = 20;
/// Charts of responses for no more loads than these.
const MOST_CHARTS: usize = 4;

pub(super) fn place(at: usize) -> f64 {
    at as f64
}

pub(super) fn float(value: u64) -> f64 {
    value as f64
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
    let mut words = vec![format!(
        "{}. {}, {}, {}; {} s after {} s of warm-up.",
        scenario.about,
        counted(part.cpus, "CPU"),
        counted(part.machines(), "machine"),
        counted(format!("{:.0}", part.vcpus()), "vCPU"),
        part.seconds,
        part.warmup_seconds
    )];
    let mut blocks = Vec::new();
    let loads = runs.first().map_or(0, |run| run.outcome.loads.len());
    if loads <= MOST_CHARTS {
        for load in 0..loads {
            blocks.extend(distribution(&runs, load, &scenario.name));
        }
    }
    let (said, beside_it) = published_part(&runs, &scenario.name, phase);
    words.extend(said);
    blocks.extend(beside_it);
    blocks.push(Block::Table(responses(&runs)));
    if part.machines() <= MOST_MACHINES as u64 {
        blocks.push(shares_chart(&runs));
    }
    blocks.push(Block::Table(shares(&runs)));
    blocks.extend(loans(&runs, scenario).map(Block::Table));
    Section::new(id, title, words, blocks)
}

/// The paper's words on a part, and the simulated figures beside the published ones.
fn published_part(runs: &[&Run], scenario: &str, phase: &str) -> (Vec<String>, Vec<Block>) {
    match (scenario, phase) {
        ("paper", "hping") => (
            vec![
                "The paper's Figure 5 and Table 6: the mean was 37.2 ms with Xen's Credit \
                 scheduler and 23 ms with loans; 35 % and 58 % of answers came within 10 ms, 41 % \
                 and 70 % within 20 ms."
                    .into(),
                published::LEGEND.into(),
            ],
            vec![Block::Table(table_six(runs)), Block::Table(table_six_beside(runs))],
        ),
        ("paper", "iperf") => (
            vec![
                "The paper's Figure 6: 30.9 Mbit/s with Xen's Credit scheduler, 34.1 with loans \
                 (37.1 where the text comes to the shares), 86.2 with a boost at every event. \
                 Figures 7 to 9 are the shares of the CPU with these three; what is readable in \
                 the text is that only the third breaks them."
                    .into(),
                published::LEGEND.into(),
            ],
            vec![bandwidth(runs), Block::Table(figure_six_beside(runs))],
        ),
        ("table-7", _) => (
            vec![
                "The paper's Table 7: the light machine spends 5 credits per ms (cm) and gets a \
                 loan of 600, the heavy one 9.2 and 375. By its equation 4 a line of 1000 would \
                 be lent on as 200 and 109."
                    .into(),
                published::LEGEND.into(),
            ],
            vec![Block::Table(table_seven(runs)), Block::Table(table_seven_beside(runs))],
        ),
        ("classes", _) => (
            vec![
                "The paper's Figure 3 wants boosts in the order C > D = B > A, and loans the \
                 larger the nearer to C and the smaller the nearer to B. Its picture is not in \
                 the text: which corner A and D are is our reading (A: much CPU time per event, \
                 rare events; D: little, frequent)."
                    .into(),
            ],
            Vec::new(),
        ),
        _ => (Vec::new(), Vec::new()),
    }
}

fn distribution(runs: &[&Run], load: usize, scenario: &str) -> Option<Block> {
    let first = runs.first()?.outcome.loads.get(load)?;
    // Sixteen points per tenfold, from 10 us to 1 s.
    let times: Vec<f64> = (0..=80).map(|n| 0.01 * 10_f64.powf(f64::from(n) / 16.0)).collect();
    let of = |load: &LoadOutcome| {
        times
            .iter()
            .map(|&ms| Point::exact(ms, load.within(ms) * 100.0))
            .filter(|p| p.y.median.is_finite())
            .collect()
    };
    let mut all: Vec<Series> = runs
        .iter()
        .filter_map(|run| {
            Some(Series::measured(&run.outcome.setup, of(run.outcome.loads.get(load)?)))
        })
        .collect();
    if scenario == "paper" && first.name == "hping" {
        all.push(Series::published(
            "Xen's Credit, 2016",
            vec![Point::exact(10.0, 35.0), Point::exact(20.0, 41.0)],
        ));
        all.push(Series::published(
            "loans, 2016",
            vec![Point::exact(10.0, 58.0), Point::exact(20.0, 70.0)],
        ));
    }
    Some(Block::Chart(Chart::steps(
        format!("Simulated: responses of {} ({}), cumulative", first.name, first.machine),
        Axis::log("response", "ms"),
        Axis::new("answered within", "%"),
        all,
    )))
}

fn responses(runs: &[&Run]) -> Table {
    let mut rows = Vec::new();
    for run in runs {
        for load in &run.outcome.loads {
            let mbit = if load.bytes > 0 {
                Cell::from(load.mbit(run.outcome.time_ns))
            } else {
                Cell::Empty
            };
            rows.push(vec![
                Cell::from(run.outcome.setup.as_str()),
                Cell::Text(format!("{}: {}", load.machine, load.name)),
                Cell::from(float(load.served()) / (float(run.outcome.time_ns) / 1e9)),
                Cell::from(load.mean_ms()),
                Cell::from(load.quantile_ms(0.5)),
                Cell::from(load.quantile_ms(0.99)),
                Cell::from(load.within(10.0) * 100.0),
                Cell::from(load.within(20.0) * 100.0),
                mbit,
            ]);
        }
    }
    Table::new(
        "Simulated: responses",
        "scheduler | load | served [per s] | mean [ms] | p50 [ms] | p99 [ms] | within 10 ms [%] | \
            within 20 ms [%] | bandwidth [Mbit/s]",
        rows,
    )
}

fn table_six(runs: &[&Run]) -> Table {
    let row = |run: &&Run| {
        let load = run.outcome.loads.first()?;
        let ours = [load.mean_ms(), load.within(10.0) * 100.0, load.within(20.0) * 100.0];
        let mut cells = vec![Cell::from(run.outcome.setup.as_str())];
        cells.extend(ours.map(Cell::from));
        Some(cells)
    };
    Table::new(
        "Table 6, simulated",
        "scheduler | mean [ms] | within 10 ms [%] | within 20 ms [%]",
        runs.iter().filter_map(row).collect(),
    )
}

/// A figure of one scheduler, or of one over another, beside the published one. One simulation is
/// one run.
fn beside(
    runs: &[&Run],
    figure: &str,
    published: Published,
    (setup, over): (&str, Option<&str>),
    pick: impl Fn(&Run) -> Option<f64>,
) -> Row {
    let of = |name: &str| {
        let run = runs.iter().find(|run| run.outcome.setup == name)?;
        pick(run).filter(|value| value.is_finite()).map(Spread::exact)
    };
    let here = match over {
        None => of(setup).map(|spread| Interval::of(&spread)),
        Some(over) => of(setup).zip(of(over)).and_then(|(of, over)| Interval::ratio(&of, &over)),
    };
    Row { figure: figure.into(), published, here: here.ok_or_else(|| "nothing to count".into()) }
}

/// Xen's own scheduler is `xen`, in the ablation; `credit` is the nearest here.
fn table_six_beside(runs: &[&Run]) -> Table {
    let mean = |run: &Run| run.outcome.loads.first().map(LoadOutcome::mean_ms);
    let within =
        |ms: f64| move |run: &Run| run.outcome.loads.first().map(|load| load.within(ms) * 100.0);
    let (level, both) = (Published::level, ("paper", Some("credit")));
    published::table(
        "Figure 5 and its table, beside the published figures",
        &[
            beside(runs, "Credit: mean response, ms", level(37.2), ("credit", None), mean),
            beside(runs, "loans: mean response, ms", level(23.0), ("paper", None), mean),
            beside(
                runs,
                "mean response, loans over Credit, of these two",
                Published::ratio(0.62),
                both,
                mean,
            ),
            beside(
                runs,
                "the abstract's 60 %, as 1.6 times as fast",
                Published::ratio(0.625),
                both,
                mean,
            ),
            beside(runs, "the abstract's 60 %, as 60 % less", Published::ratio(0.40), both, mean),
            beside(
                runs,
                "Credit: answers within 10 ms, %",
                level(35.0),
                ("credit", None),
                within(10.0),
            ),
            beside(
                runs,
                "loans: answers within 10 ms, %",
                level(58.0),
                ("paper", None),
                within(10.0),
            ),
            beside(
                runs,
                "Credit: answers within 20 ms, %",
                level(41.0),
                ("credit", None),
                within(20.0),
            ),
            beside(
                runs,
                "loans: answers within 20 ms, %",
                level(70.0),
                ("paper", None),
                within(20.0),
            ),
        ],
    )
}

/// Figure 6: the text has two figures for loans, and the abstract a third.
fn figure_six_beside(runs: &[&Run]) -> Table {
    let mbit = |run: &Run| run.outcome.loads.first().map(|load| load.mbit(run.outcome.time_ns));
    let (level, ratio, both) = (Published::level, Published::ratio, ("paper", Some("credit")));
    published::table(
        "Figure 6, beside the published figures",
        &[
            beside(runs, "Credit, Mbit/s", level(30.9), ("credit", None), mbit),
            beside(runs, "loans, Mbit/s", level(34.1), ("paper", None), mbit),
            beside(
                runs,
                "loans, Mbit/s, where the text comes to the shares",
                level(37.1),
                ("paper", None),
                mbit,
            ),
            beside(
                runs,
                "a boost at every event, Mbit/s",
                level(86.2),
                ("always-boost", None),
                mbit,
            ),
            beside(runs, "loans over Credit, of 34.1", ratio(1.10), both, mbit),
            beside(runs, "loans over Credit, of 37.1", ratio(1.20), both, mbit),
            beside(
                runs,
                "loans over Credit by the abstract: better by 62 %",
                ratio(1.62),
                both,
                mbit,
            ),
            beside(
                runs,
                "a boost at every event over Credit",
                ratio(2.79),
                ("always-boost", Some("credit")),
                mbit,
            ),
        ],
    )
}

fn bandwidth(runs: &[&Run]) -> Block {
    let paper = |name: &str| match name {
        "credit" => Some(30.9),
        "paper" => Some(37.1),
        "always-boost" => Some(86.2),
        _ => None,
    };
    let of = |run: &Run| run.outcome.loads.first().map(|load| load.mbit(run.outcome.time_ns));
    let ours = runs
        .iter()
        .enumerate()
        .filter_map(|(at, run)| Some(Point::exact(place(at), of(run)?)))
        .collect();
    let theirs = runs
        .iter()
        .enumerate()
        .filter_map(|(at, run)| Some(Point::exact(place(at), paper(&run.outcome.setup)?)));
    Block::Chart(Chart::bars(
        "Figure 6: iperf's bandwidth, simulated and published",
        Axis::new("scheduler", ""),
        Axis::new("bandwidth", "Mbit/s"),
        runs.iter().map(|run| run.outcome.setup.clone()).collect(),
        vec![
            Series::measured("simulated", ours),
            Series::published("Kim, Jang, Hong 2016", theirs.collect()),
        ],
    ))
}

fn table_seven(runs: &[&Run]) -> Table {
    let mut rows = Vec::new();
    for run in runs {
        for group in ["light", "heavy"] {
            let Some(all) = group_of(run, group) else { continue };
            let setup = Cell::from(run.outcome.setup.as_str());
            rows.push(vec![
                setup,
                Cell::from(group),
                Cell::from(all.cm()),
                Cell::from(all.next_loan()),
            ]);
        }
    }
    Table::new(
        "Table 7, simulated",
        "scheduler | machines | cm [credits/ms] | next loan [credits]",
        rows,
    )
}

/// The machines of a group together, if they had events.
fn group_of(run: &Run, name: &str) -> Option<Group> {
    let at = run.outcome.loads.iter().find(|load| load.machine == name)?.group;
    Some(Group::of(&run.outcome, at, name)).filter(|all| all.totals.events > 0)
}

fn table_seven_beside(runs: &[&Run]) -> Table {
    let cm = |group: &'static str| move |run: &Run| group_of(run, group)?.cm();
    let loan = |group: &'static str| move |run: &Run| group_of(run, group)?.next_loan();
    let level = |figure: &str, value, pick: &dyn Fn(&Run) -> Option<f64>| {
        beside(runs, figure, Published::level(value), ("paper", None), pick)
    };
    published::table(
        "Table 7, beside the published figures: the paper's parameters",
        &[
            level("light machine: cm, credits/ms", 5.0, &cm("light")),
            level("heavy machine: cm, credits/ms", 9.2, &cm("heavy")),
            level("light machine: next loan, credits", 600.0, &loan("light")),
            level("heavy machine: next loan, credits", 375.0, &loan("heavy")),
            level("light machine: next loan by equation 4", 200.0, &loan("light")),
            level("heavy machine: next loan by equation 4", 109.0, &loan("heavy")),
        ],
    )
}

fn shares_chart(runs: &[&Run]) -> Block {
    let names: Vec<String> = runs
        .first()
        .map(|run| run.outcome.machines.iter().map(|machine| machine.name.clone()).collect())
        .unwrap_or_default();
    let of = |run: &&Run| {
        let shares = run.outcome.machines.iter().enumerate();
        let points =
            shares.map(|(at, m)| Point::exact(place(at), run.outcome.of_cpu(m) * 100.0)).collect();
        Series::measured(&run.outcome.setup, points)
    };
    Block::Chart(Chart::bars(
        "Simulated: CPU time of each machine (Figures 7 to 9)",
        Axis::new("machine", ""),
        Axis::new("of one CPU", "%"),
        names,
        runs.iter().map(of).collect(),
    ))
}

fn shares(runs: &[&Run]) -> Table {
    let row = |run: &&Run| {
        let outcome = &run.outcome;
        let all = float(outcome.time_ns) * f64::from(outcome.cpus);
        let farthest = outcome.farthest_off();
        let mean = {
            let hogs: Vec<f64> =
                outcome.machines.iter().filter(|m| m.is_hog).map(|m| m.off().abs()).collect();
            (!hogs.is_empty()).then(|| hogs.iter().sum::<f64>() / place(hogs.len()) * 100.0)
        };
        vec![
            Cell::from(outcome.setup.as_str()),
            farthest.map_or(Cell::Empty, |machine| machine.name.as_str().into()),
            Cell::from(farthest.map(|machine| machine.off() * 100.0)),
            Cell::from(mean),
            Cell::from(float(outcome.idle_ns) / all * 100.0),
            Cell::from(float(outcome.overhead_ns) / all * 100.0),
            Cell::from(float(outcome.switches) / (float(outcome.time_ns) / 1e9)),
        ]
    };
    Table::new(
        "Simulated: CPU time against what is due by weight, of machines that compute all the time",
        "scheduler | farthest off | off [%] | all, mean off [%] | idle [%] | switching [%] | \
            switches [per s]",
        runs.iter().map(row).collect(),
    )
}

/// Machines that are alike, as one.
pub(super) struct Group {
    pub(super) name: String,
    pub(super) totals: vlane_policy::loan::Totals,
    pub(super) loans: Loans,
    vcpus: u32,
    off: f64,
}

impl Group {
    pub(super) fn of(outcome: &Outcome, group: usize, name: &str) -> Self {
        let mut all = Self {
            name: name.into(),
            totals: Default::default(),
            loans: Loans::default(),
            vcpus: 0,
            off: 0.0,
        };
        for machine in outcome.machines.iter().filter(|machine| machine.group == group) {
            all.add(machine);
        }
        all
    }

    fn add(&mut self, machine: &MachineOutcome) {
        let (to, from) = (&mut self.totals, &machine.totals);
        to.events += from.events;
        to.boosts += from.boosts;
        to.wake_boosts += from.wake_boosts;
        to.denied += from.denied;
        to.boosted_ns += from.boosted_ns;
        let (to, from) = (&mut self.loans, &machine.loans);
        to.samples += from.samples;
        to.cm_ppm += from.cm_ppm;
        to.next_ns += from.next_ns;
        to.redemptions += from.redemptions;
        to.redeeming_ns += from.redeeming_ns;
        to.barred_ns += from.barred_ns;
        self.vcpus += machine.vcpus;
        if machine.off().abs() > self.off.abs() {
            self.off = machine.off();
        }
    }

    pub(super) fn cm(&self) -> Option<f64> {
        let samples = self.loans.samples;
        // Parts per million of a CPU as credits per millisecond: a whole CPU is 10.
        (samples > 0).then(|| float(self.loans.cm_ppm) / float(samples) / 1e5)
    }

    pub(super) fn next_loan(&self) -> Option<f64> {
        let samples = self.loans.samples;
        (samples > 0).then(|| float(self.loans.next_ns) / float(samples) / 1e5)
    }

    pub(super) fn denied(&self) -> Option<f64> {
        let all = self.totals.boosts + self.totals.wake_boosts + self.totals.denied;
        (all > 0).then(|| float(self.totals.denied) / float(all) * 100.0)
    }

    pub(super) fn redemption_s(&self) -> Option<f64> {
        let all = self.loans.redemptions;
        (all > 0).then(|| float(self.loans.redeeming_ns) / float(all) / 1e9)
    }
}

/// Machines with events by themselves or in groups.
fn groups(outcome: &Outcome, scenario: &Scenario) -> Vec<Group> {
    let with_load: Vec<usize> = outcome.loads.iter().map(|load| load.group).collect();
    let by_group = scenario.vm.iter().enumerate();
    by_group
        .filter(|(at, _)| with_load.contains(at))
        .map(|(at, vm)| Group::of(outcome, at, &vm.name))
        .collect()
}

fn loans(runs: &[&Run], scenario: &Scenario) -> Option<Table> {
    let mut rows = Vec::new();
    for run in runs {
        let seconds = float(run.outcome.time_ns) / 1e9;
        for all in groups(&run.outcome, scenario).iter().filter(|all| all.totals.events > 0) {
            let barred =
                float(all.loans.barred_ns) / (seconds * 1e9 * f64::from(all.vcpus)) * 100.0;
            rows.push(vec![
                Cell::from(run.outcome.setup.as_str()),
                Cell::from(all.name.as_str()),
                Cell::from(float(all.totals.boosts) / seconds),
                Cell::from(float(all.totals.wake_boosts) / seconds),
                Cell::from(all.denied()),
                Cell::from(all.cm()),
                Cell::from(all.next_loan()),
                Cell::from(all.redemption_s()),
                Cell::from(barred),
                Cell::from(all.off * 100.0),
            ]);
        }
    }
    (!rows.is_empty()).then(|| {
        Table::new(
            "Simulated: boosts and loans, machines that are alike together",
            "scheduler | machines | boosts [per s] | boosts from sleep [per s] | denied [%] | \
            cm [credits/ms] | next loan [credits] | one redemption [s] | time barred [%] | \
            farthest off due [%]",
            rows,
        )
    })
}
