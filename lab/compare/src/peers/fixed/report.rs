//! The results: a line in the terminal, a table of verdicts, and a picture for each medium.

use super::plan::{Client, Group, short};
use super::verdict::{Compared, Metric, Verdict, achieved, is_reached};
use super::{Figures, Outcome, RowResult, groups};
use crate::peers::Options;
use vlane_error::counted;
use vlane_report::build::Begun;
use vlane_report::judge::Met;
use vlane_report::stats::LEAST_PAIRS;
use vlane_report::{
    Axis, Block, Cell, Chart, Column, Note, Point, Report, Samples, Section, Series, Spread, Table,
    figure, markdown as md,
};
use vlane_testbed::guests::Machines;

/// The section of the verdicts.
const VERDICTS: &str = "verdicts";

impl Metric {
    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU per I/O",
            Self::P50 => "p50",
        }
    }
}

fn spread(rounds: &[Figures], of: impl Fn(&Figures) -> f64) -> Option<Spread> {
    Spread::of(&rounds.iter().map(of).collect::<Vec<_>>())
}

/// `1.08x (1.03x-1.12x)`, or the median alone where there is no interval.
fn shown(compared: &Compared) -> String {
    compared.difference.told().unwrap_or_else(|| format!("{:.2}x", compared.ratio.median))
}

/// Names of the figures that come to something.
fn figures_that(all: &[Compared], held: Met) -> String {
    let names: Vec<_> = all.iter().filter(|c| c.held() == held).map(|c| c.metric.name()).collect();
    names.join(", ")
}

/// The verdict in words.
fn words(result: &RowResult, place: usize) -> String {
    let Some(verdict) = result.verdicts.get(place).and_then(Option::as_ref) else {
        return String::new();
    };
    match verdict {
        Verdict::Met(_) => "met".into(),
        Verdict::Undecided(all) => format!("undecided: {}", figures_that(all, Met::Unclear)),
        Verdict::NotMet(all) => format!("not met: {}", figures_that(all, Met::No)),
        Verdict::NotReached => {
            let late = [place, result.over].into_iter().filter_map(|place| {
                let rounds = &result.measured.rounds[place];
                let reached = is_reached(rounds, result.plan.rate);
                let name = &result.contenders[place];
                (!reached)
                    .then(|| format!("{name} {}", figure::with_unit(achieved(rounds), "IOPS")))
            });
            format!("not reached: {}", late.collect::<Vec<_>>().join(", "))
        }
    }
}

/// The places of the contenders that are held against qemu-storage-daemon.
fn judged(result: &RowResult) -> impl Iterator<Item = usize> {
    (0..result.contenders.len()).filter(|place| result.verdicts[*place].is_some())
}

/// The setting of qemu-storage-daemon that vlane is held against, where there is more than one.
fn setting(result: &RowResult) -> Option<&str> {
    result.contenders[result.over].split_once(", ").map(|(_, setting)| setting)
}

/// The lines of one row, for the terminal.
pub fn lines(result: &RowResult) -> String {
    let mut out = format!("{}\n", result.title);
    for (name, rounds) in result.contenders.iter().zip(&result.measured.rounds) {
        let median =
            |of: fn(&Figures) -> f64| spread(rounds, of).map_or(f64::NAN, |spread| spread.median);
        out += &format!(
            "  {name}: {}, CPU per I/O {}, p50 {}, p99 {}\n",
            figure::with_unit(achieved(rounds), "IOPS"),
            figure::with_unit(median(|f| f.cpu_us), "us"),
            figure::with_unit(median(|f| f.p50_us), "us"),
            figure::with_unit(median(|f| f.p99_us), "us"),
        );
    }
    for place in judged(result) {
        let compared = result.verdicts[place].as_ref().map_or(&[][..], Verdict::compared);
        let ratios: Vec<_> =
            compared.iter().map(|c| format!("{} {}", c.metric.name(), shown(c))).collect();
        let ratios =
            if ratios.is_empty() { String::new() } else { format!(" ({})", ratios.join("; ")) };
        let name =
            if place == 0 { String::new() } else { format!("{}: ", result.contenders[place]) };
        let over = setting(result).map_or_else(String::new, |setting| format!(", over {setting}"));
        out += &format!("  {name}{}{ratios}{over}\n", words(result, place));
    }
    out
}

/// The verdicts as Markdown tables, one for each figure.
pub fn markdown(results: &[RowResult]) -> String {
    let table = |metric| {
        let table = verdicts(results, metric);
        format!("{}:\n\n{}", table.caption, md::table(&table))
    };
    table(Metric::Cpu) + "\n" + &table(Metric::P50)
}

/// One figure: a line for each row and each vlane in it.
fn verdicts(results: &[RowResult], metric: Metric) -> Table {
    let (caption, of): (_, fn(&Figures) -> f64) = match metric {
        Metric::Cpu => ("CPU time per I/O", cpu),
        Metric::P50 => ("Median latency", |figures| figures.p50_us),
    };
    let mut rows = Vec::new();
    for result in results {
        for place in judged(result) {
            let name = match place {
                0 => result.title.clone(),
                _ => format!("{}: {}", result.title, result.contenders[place]),
            };
            let compared = result.verdicts[place].as_ref().and_then(|verdict| verdict.of(metric));
            let mut row = vec![Cell::from(name)];
            match compared {
                None => {
                    row.extend(std::iter::repeat_n(Cell::Empty, 5));
                    row.push(words(result, place).into());
                }
                Some(compared) => {
                    let rounds = &result.measured.rounds;
                    row.extend([place, result.over].map(|place| spread(&rounds[place], of).into()));
                    row.push(setting(result).map_or(Cell::Empty, Cell::from));
                    row.push(Cell::Figure(compared.ratio));
                    row.push(compared.difference.told().map_or(Cell::Empty, Cell::Text));
                    row.push(compared.word().into());
                }
            }
            rows.push(row);
        }
    }
    Table::new(
        format!("{caption}, the medians of the rounds (smallest-largest)"),
        "Load | vlane [us] | qemu-storage-daemon [us] | with | Ratio [x] | Interval | Verdict",
        rows,
    )
}

fn cpu(figures: &Figures) -> f64 {
    figures.cpu_us
}

/// CPU time per request over the rate: a line for each back end and depth, of what was reached.
fn picture(group: &Group, results: &[&RowResult]) -> Option<Chart> {
    let mut series: Vec<Series> = Vec::new();
    let contenders = results.first().map_or(&[][..], |result| &result.contenders);
    for depth in group.depths {
        for (place, name) in contenders.iter().enumerate() {
            let mut points = Vec::new();
            for result in
                results.iter().filter(|result| result.plan.depth == *depth && result.plan.rate > 0)
            {
                let rounds = &result.measured.rounds[place];
                if let (true, Some(y)) = (is_reached(rounds, result.plan.rate), spread(rounds, cpu))
                {
                    points.push(Point { x: f64::from(result.plan.rate), y });
                }
            }
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            if !points.is_empty() {
                series.push(Series::measured(format!("{name}, depth {depth}"), points));
            }
        }
    }
    let title = match group.client {
        Client::Guest(Machines::Qemu) => "CPU time per I/O, QEMU's included",
        _ => "CPU time of the back end per I/O",
    };
    (!series.is_empty()).then(|| {
        Chart::lines(
            format!("{}: {title}, by rate", group.title),
            Axis::log("Rate", "IOPS"),
            Axis::new(title, "us"),
            series,
        )
    })
}

/// Every contender of a group's rows.
fn figures(group: &Group, results: &[&RowResult]) -> Table {
    let guest = group.client != Client::Native;
    let instructions =
        results.iter().flat_map(|r| &r.measured.rounds).flatten().any(|f| f.instructions.is_some());
    let mut columns = vec![
        Column::new("Load", ""),
        Column::new("Back end", ""),
        Column::new("Achieved", "IOPS"),
        Column::new("CPU per I/O", "us"),
    ];
    columns.extend(guest.then(|| Column::new("Guest's CPU per I/O", "us")));
    columns.extend(instructions.then(|| Column::new("Instructions per I/O", "")));
    columns.extend([
        Column::new("Switches per I/O", ""),
        Column::new("p50", "us"),
        Column::new("p99", "us"),
    ]);
    let mut rows = Vec::new();
    for result in results {
        let load = match result.plan.rate {
            0 => format!("as fast as it goes, depth {}", result.plan.depth),
            rate => format!("{} IOPS, depth {}", short(rate), result.plan.depth),
        };
        for (name, rounds) in result.contenders.iter().zip(&result.measured.rounds) {
            let mut row = vec![Cell::from(load.clone()), Cell::from(name.clone())];
            let mut add = |of: fn(&Figures) -> f64| row.push(spread(rounds, of).into());
            add(|f| f.iops);
            add(|f| f.backend_cpu_us);
            if guest {
                add(|f| f.guest_cpu_us.unwrap_or(f64::NAN));
            }
            if instructions {
                add(|f| f.instructions.unwrap_or(f64::NAN));
            }
            add(|f| f.switches);
            add(|f| f.p50_us);
            add(|f| f.p99_us);
            rows.push(row);
        }
    }
    Table {
        caption: "Every back end: median of its rounds (smallest-largest)".into(),
        columns,
        rows,
    }
}

/// How many rows came to what, and which were not met.
fn summary(results: &[RowResult]) -> Vec<String> {
    let all = || results.iter().flat_map(|result| judged(result).map(move |place| (result, place)));
    let is = |(result, place): (&RowResult, usize), wanted: fn(&Verdict) -> bool| {
        result.verdicts[place].as_ref().is_some_and(wanted)
    };
    let count = |wanted: fn(&Verdict) -> bool| all().filter(|one| is(*one, wanted)).count();
    let (met, late) =
        (count(|v| matches!(v, Verdict::Met(_))), count(|v| matches!(v, Verdict::NotReached)));
    let unclear = count(|v| matches!(v, Verdict::Undecided(_)));
    let total = all().count();
    let mut out = vec![format!(
        "Of {total} loads both back ends reach {}. In {} of these vlane's CPU time per I/O and \
         median latency are at most qemu-storage-daemon's; in {} one is more; of {unclear} the \
         intervals do not tell.",
        total - late,
        met,
        total - late - met - unclear
    )];
    for (result, place) in all().filter(|one| is(*one, |v| matches!(v, Verdict::NotMet(_)))) {
        let verdict = result.verdicts[place].as_ref();
        let over = verdict
            .into_iter()
            .flat_map(Verdict::compared)
            .filter(|compared| compared.held() == Met::No);
        let over: Vec<_> = over
            .map(|compared| format!("{} {}", compared.metric.name(), shown(compared)))
            .collect();
        let name =
            if place == 0 { String::new() } else { format!(" ({})", result.contenders[place]) };
        out.push(format!("Not met: {}{name}: {}.", result.title, over.join("; ")));
    }
    out
}

/// Every single measurement.
fn samples(results: &[RowResult]) -> Samples {
    let columns = "Row | Back end | Round | Achieved [IOPS] | p50 [us] | p99 [us] | CPU per I/O \
                   [us] | Back end's CPU per I/O [us] | Guest's CPU per I/O [us] | Switches per \
                   I/O | Instructions per I/O";
    let mut rows = Vec::new();
    for result in results {
        for (name, rounds) in result.contenders.iter().zip(&result.measured.rounds) {
            for (f, round) in rounds.iter().zip(0_u32..) {
                let mut row = vec![
                    result.row.clone().into(),
                    name.clone().into(),
                    Cell::Number(round.into()),
                ];
                row.extend(
                    [f.iops, f.p50_us, f.p99_us, f.cpu_us, f.backend_cpu_us].map(Cell::from),
                );
                row.extend([f.guest_cpu_us, Some(f.switches), f.instructions].map(Cell::from));
                rows.push(row);
            }
        }
    }
    Samples::new("rounds", "Every round of every back end", columns, rows)
}

/// The report.
pub fn report(outcome: &Outcome, options: &Options, begun: &Begun) -> Report {
    let mut notes = vec![Note::info(format!(
        "Each figure is the median of {} of {}, after {} that do not count, the back ends in \
         turns. 4K random reads; fio asks for a request every 1/rate, with at most `depth` out at \
         once, and makes up for late ones. A rate is reached when {:.0} % of it are achieved. On \
         a file qemu-storage-daemon is measured with aio=io_uring and with aio=threads, and each \
         load takes the one that needs less CPU time there. A verdict is by the interval of the \
         ratio, not by the medians. A difference below 5 %, or below fio's resolution, does not \
         matter.",
        counted(options.pairs, "measurement"),
        figure::duration(options.time.as_secs_f64()),
        figure::duration(options.ramp.as_secs_f64()),
        100.0 * super::REACHED,
    ))];
    if (options.pairs as usize) < LEAST_PAIRS {
        notes.push(Note::warning(format!(
            "Measured {} each: fewer than {LEAST_PAIRS} rounds are inconclusive (--repeat \
             {LEAST_PAIRS}).",
            counted(options.pairs, "time")
        )));
    }
    if outcome.emulated {
        notes.push(Note::warning(
            "QEMU's guest is emulated: its own CPU time is several times that under KVM, so the \
             back end's part is smaller than there.",
        ));
    }
    notes.extend(outcome.missing.iter().map(|text| Note::info(format!("Left out: {text}."))));
    let mut sections = vec![Section::new(
        VERDICTS,
        "CPU time and latency at the same load",
        vec![
            "With a QEMU guest, CPU time is QEMU's and the back end's together; otherwise it is \
             the back end's."
                .into(),
        ],
        [Metric::Cpu, Metric::P50]
            .map(|metric| Block::Table(verdicts(&outcome.rows, metric)))
            .into(),
    )];
    for group in groups() {
        let results: Vec<_> =
            outcome.rows.iter().filter(|result| result.plan.group == group).collect();
        if results.is_empty() {
            continue;
        }
        let mut blocks: Vec<_> = picture(group, &results).map(Block::Chart).into_iter().collect();
        blocks.push(Block::Table(figures(group, &results)));
        let text = match group.client {
            Client::Native => {
                "fio with libblkio, waiting for interrupts; back end and client on a CPU each."
            }
            Client::Guest(_) => {
                "fio in the guest, which has a disk of each back end; no process is bound to a \
                 CPU. The guest's CPU time is that of all its processes on the host."
            }
        };
        sections.push(Section::new(group.id, group.title, vec![text.into()], blocks));
    }
    let mut report = Report {
        summary: summary(&outcome.rows),
        notes,
        sections,
        samples: vec![samples(&outcome.rows)],
        ..begun.report(
            "fixed-load",
            "vlane and qemu-storage-daemon at the same load",
            &["qemu-storage-daemon"],
        )
    };
    let named = |name: &'static str| move |version: &String| (name.to_owned(), version.clone());
    report.machine.versions.extend(outcome.fio.iter().map(named("fio with libblkio")));
    report.machine.versions.extend(outcome.guests.iter().map(named("guest")));
    report
}

#[cfg(test)]
#[path = "report/tests.rs"]
mod tests;
