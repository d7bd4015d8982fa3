//! The results, as a report.

use vlane_report::build::Begun;
use vlane_report::stats::nearest_rank;

use vlane_report::{
    Axis, Block, Cell, Chart, Note, Point, Report, Samples, Section, Series, Severity, Spread,
    Table,
};

use super::turn::{Kept, Shown};

/// Results of killing the loader.
#[derive(Debug)]
pub(super) struct Kills {
    pub(super) all: f64,
    pub(super) while_loaded: f64,
    pub(super) unload_ms: f64,
    /// The state of sched_ext at the end.
    pub(super) state: String,
    /// Guests whose kernel crashed under emulation before one went through.
    pub(super) crashes: u32,
}

/// Makes the report.
pub(super) fn report(
    schedulers: &[String],
    shown: &[Shown],
    kills: &Kills,
    kernel: &str,
    begun: &Begun,
) -> Report {
    let of =
        |name: &str| -> Vec<&Shown> { shown.iter().filter(|one| one.scheduler == name).collect() };
    let all = |name: &str| figure(&of(name), |one| percentile(&one.responses_us, 50));
    let granted = |name: &str| figure(&of(name), |one| percentile(&one.granted_us, 50));
    let mut summary = Vec::new();
    for name in schedulers.iter().filter(|name| *name != "eevdf") {
        if let (Cell::Figure(ours), Cell::Figure(theirs)) = (granted(name), all("eevdf")) {
            let times = theirs.median / ours.median.max(1.0);
            summary.push(format!(
                "{name}: median response to a granted event {:.2} ms, {times:.1} times shorter \
                 than the kernel's own scheduler ({:.1} ms).",
                ours.median / 1e3,
                theirs.median / 1e3
            ));
        }
    }
    let section = |id: &str, title: &str, blocks| Section::new(id, title, Vec::new(), blocks);
    Report {
        summary,
        notes: vec![Note {
            severity: Severity::Warning,
            text: format!(
                "Measured in a guest with Linux {kernel} on 2 emulated CPUs: times are some ten \
                 times those of a real CPU. Compare schedulers, not with other machines. Guests \
                 that crashed under emulation and were started again: {}.",
                kills.crashes
            ),
        }],
        sections: vec![
            section(
                "responses",
                "Responses",
                vec![Block::Table(responses(schedulers, &of)), Block::Chart(cdf(schedulers, &of))],
            ),
            section("books", "Books", vec![Block::Table(books(shown))]),
            section("decisions", "Decisions", vec![Block::Table(decisions(schedulers, &of))]),
            section("kills", "Killing the loader", vec![Block::Table(killed(kills))]),
        ],
        samples: vec![samples(shown)],
        ..begun.report("sched-ext", "vCPUs in a sched_ext scheduler", &["qemu-system-x86_64"])
    }
}

fn figure(turns: &[&Shown], of: impl Fn(&Shown) -> Option<f64>) -> Cell {
    let values: Vec<f64> = turns.iter().filter_map(|one| of(one)).collect();
    Spread::of(&values).map_or(Cell::Empty, Cell::Figure)
}

/// A percentile of a turn's responses, microseconds.
fn percentile(of: &[u64], percent: usize) -> Option<f64> {
    let mut sorted = of.to_vec();
    sorted.sort_unstable();
    nearest_rank(&sorted, percent * 10).map(|us| us as f64)
}

/// How far the share of the one that is farthest from the mean is from it, percent.
fn unfairness(one: &Shown) -> Option<f64> {
    one.shares.iter().map(|share| (share - 1.0).abs() * 100.0).reduce(f64::max)
}

fn responses<'a>(schedulers: &[String], of: &impl Fn(&str) -> Vec<&'a Shown>) -> Table {
    let rows = schedulers.iter().map(|name| {
        let turns = of(name);
        vec![
            Cell::Text(name.clone()),
            figure(&turns, |one| percentile(&one.responses_us, 50)),
            figure(&turns, |one| percentile(&one.responses_us, 99)),
            figure(&turns, |one| percentile(&one.granted_us, 50)),
            figure(&turns, |one| one.shares.first().copied()),
            figure(&turns, unfairness),
        ]
    });
    Table::new(
        "Time from event to answer, and CPU time of each thread over what its weight entitles it \
         to",
        "scheduler | p50 [us] | p99 [us] | p50 of granted [us] | share of the one with events | \
            farthest share [%]",
        rows.collect(),
    )
}

fn cdf<'a>(schedulers: &[String], of: &impl Fn(&str) -> Vec<&'a Shown>) -> Chart {
    let series = schedulers.iter().map(|name| {
        let mut all: Vec<u64> = of(name).iter().flat_map(|one| one.responses_us.clone()).collect();
        all.sort_unstable();
        let steps = (1..=100).filter_map(|percent| {
            let at = (all.len() * percent / 100).checked_sub(1)?;
            let x = (*all.get(at)? as f64).max(1.0);
            Some(Point { x, y: Spread::of(&[percent as f64])? })
        });
        Series::measured(name.clone(), steps.collect())
    });
    Chart::steps(
        "Responses, cumulative",
        Axis::log("time from event to answer", "us"),
        Axis::new("answered", "%"),
        series.collect(),
    )
}

/// Every turn, with each response and each thread's share.
fn samples(shown: &[Shown]) -> Samples {
    let records = (1_u32..).zip(shown).map(|(turn, one)| {
        // Accounts have their own table.
        (vec![Cell::Number(turn.into())], Shown { books: Vec::new(), ..one.clone() })
    });
    Samples::of_records("turns", "Every turn, in the order of measuring", "turn", records)
}

/// Checks that the accounts agree with the kernel, and that the machine did not stand still
/// meanwhile.
fn books(shown: &[Shown]) -> Table {
    let rows = shown.iter().map(|one| {
        let sum = |of: fn(&Kept) -> u64| {
            if one.books.is_empty() {
                Cell::Empty
            } else {
                Cell::Number(one.books.iter().map(of).sum::<u64>() as f64 / 1e6)
            }
        };
        let credits = one.books.iter().map(|kept| kept.credit_ns[1] as f64 / 1e6);
        let cell = |value: Option<f64>| value.map_or(Cell::Empty, Cell::Number);
        vec![
            Cell::Text(one.scheduler.clone()),
            Cell::Number(one.late_ms),
            unfairness(one).map_or(Cell::Empty, Cell::Number),
            sum(|kept| kept.kernel_ns),
            sum(|kept| kept.charged_ns),
            sum(|kept| kept.allotted_ns),
            sum(|kept| kept.forgiven_ns),
            cell(credits.clone().reduce(f64::min)),
            cell(credits.reduce(f64::max)),
        ]
    });
    Table::new(
        "Every turn: how late a real-time thread woke at the most (the machine stood still), and \
         all accounts together",
        "scheduler | late [ms] | farthest share [%] | used [ms] | charged [ms] | allotted [ms] | \
            forgiven [ms] | least credits [ms] | most credits [ms]",
        rows.collect(),
    )
}

fn decisions<'a>(schedulers: &[String], of: &impl Fn(&str) -> Vec<&'a Shown>) -> Table {
    let rows = schedulers.iter().filter(|name| *name != "eevdf").map(|name| {
        let turns = of(name);
        vec![
            Cell::Text(name.clone()),
            figure(&turns, |one| Some(one.granted as f64)),
            figure(&turns, |one| Some(one.denied as f64)),
            figure(&turns, |one| Some(one.missed as f64)),
            figure(&turns, |one| Some(one.lent_us_per_boost)),
            figure(&turns, |one| Some(one.tell_us)),
            figure(&turns, |one| Some(one.sheltered as f64)),
        ]
    });
    Table::new(
        "What was decided, and how long an event takes from its telling until all is done",
        "scheduler | granted | denied | not at once | lent per boost [us] | deciding an event \
         [us] | given back to the ordinary scheduler",
        rows.collect(),
    )
}

fn killed(kills: &Kills) -> Table {
    Table::new(
        "The loader was killed with SIGKILL, while its scheduler ran or at any time before",
        "outcome | killed | while loaded | slowest unloading [ms] | state at the end",
        vec![vec![
            Cell::Text("kill -9".into()),
            Cell::Number(kills.all),
            Cell::Number(kills.while_loaded),
            Cell::Number(kills.unload_ms),
            Cell::Text(kills.state.clone()),
        ]],
    )
}
