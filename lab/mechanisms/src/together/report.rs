//! The report of all together: one picture, and the figures below it.

use super::{Condition, Options, Sample};
use crate::express::root::Root;
use vlane_error::counted;
use vlane_report::build::{Begun, bars, spread, table};
use vlane_report::experiment::few;
use vlane_report::judge::{Arms, Measured, says};
use vlane_report::stats::nearest_rank;
use vlane_report::{Block, Cell, Note, Report, Samples, Section, Spread};
use vlane_units::show_size;

/// Bytes of a reader's read.
const READ: f64 = 4096.0;
/// A machine with a higher load average than this, per CPU, is busy with something else.
const BUSY: f64 = 0.25;

/// Observations beside the samples.
pub(super) struct Seen {
    /// The guest, in words.
    pub(super) guest: String,
    /// Contents of its disks.
    pub(super) root: Root,
    /// The machine's load average before anything was begun.
    pub(super) load: Option<f64>,
    /// The reason why real-time scheduling is impossible here.
    pub(super) impossible: Option<String>,
}

/// A part of the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Panel {
    Waits,
    Lose,
    Pays,
}

impl Panel {
    const ALL: [Self; 3] = [Self::Waits, Self::Lose, Self::Pays];

    fn id(self) -> &'static str {
        match self {
            Self::Waits => "waits",
            Self::Lose => "lose",
            Self::Pays => "pays",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Waits => "What the foreground waits",
            Self::Lose => "What the others lose",
            Self::Pays => "What the host pays",
        }
    }

    fn says(self) -> &'static str {
        match self {
            Self::Waits => {
                "A launch lasts from the start of the program, with nothing of it in the guest's \
                 memory, to its end; an fsync until the mail is durable. The 99th percentile of \
                 one turn's, by nearest rank: of fewer than a hundred it is the slowest."
            }
            Self::Lose => {
                "Readers: all of them together. Compute: what the guest's own processes, one for \
                 each vCPU, computed, in turns of a thousand steps. Other guests: the CPU time of \
                 those that only compute, which is their progress."
            }
            Self::Pays => {
                "Back end: its CPU time, also for each request. Scheduler: that of `vlane sched \
                 run`. Pages: of the disk's image, and of the journal in it, in the host's page \
                 cache at the end of the turn."
            }
        }
    }
}

/// Something that is measured.
struct Figure {
    panel: Panel,
    title: &'static str,
    unit: &'static str,
    /// It stands in the picture.
    is_shown: bool,
    of: fn(&Sample) -> Option<f64>,
}

/// A percentile of times in us, in ms.
fn percentile(times: &[u64], permille: usize) -> Option<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    Some(nearest_rank(&sorted, permille)? as f64 / 1e3)
}

const fn figure(
    panel: Panel,
    title: &'static str,
    unit: &'static str,
    is_shown: bool,
    of: fn(&Sample) -> Option<f64>,
) -> Figure {
    Figure { panel, title, unit, is_shown, of }
}

const FIGURES: [Figure; 16] = [
    figure(Panel::Waits, "launch, median", "ms", true, |s| percentile(&s.done.launches_us, 500)),
    figure(Panel::Waits, "launch, p99", "ms", true, |s| percentile(&s.done.launches_us, 990)),
    figure(Panel::Waits, "launches", "", false, |s| Some(s.done.launches_us.len() as f64)),
    figure(Panel::Waits, "fsync, median", "ms", true, |s| percentile(&s.done.fsyncs_us, 500)),
    figure(Panel::Waits, "fsync, p99", "ms", true, |s| percentile(&s.done.fsyncs_us, 990)),
    figure(Panel::Waits, "fsyncs", "", false, |s| Some(s.done.fsyncs_us.len() as f64)),
    figure(Panel::Lose, "readers", "IOPS", true, |s| Some(s.done.read / READ)),
    figure(Panel::Lose, "compute", "/s", true, |s| Some(s.done.computed)),
    figure(Panel::Lose, "other guests", "CPUs", true, |s| Some(s.others_cpus)),
    figure(Panel::Lose, "the guest's own CPU time", "CPUs", false, |s| Some(s.guest_cpus)),
    figure(Panel::Pays, "back end", "ms of CPU/s", true, |s| Some(s.back_end_us / 1e3)),
    figure(Panel::Pays, "back end, each request", "us", true, |s| Some(s.back_end_us / s.requests)),
    figure(Panel::Pays, "scheduler", "ms of CPU/s", false, |s| Some(s.scheduler_us / 1e3)),
    figure(Panel::Pays, "boosts", "/s", false, |s| Some(s.boosts)),
    figure(Panel::Pays, "page cache", "pages", false, |s| Some(s.pages? as f64)),
    figure(Panel::Pays, "journal in the page cache", "pages", true, |s| {
        Some(s.journal_pages? as f64)
    }),
];

fn of(panel: Panel) -> impl Iterator<Item = &'static Figure> {
    FIGURES.iter().filter(move |figure| figure.panel == panel)
}

/// The picture: every figure of every arm, relative to the baseline's in the same round.
fn picture(arms: &Arms<Sample>) -> Block {
    let shown: Vec<&Figure> = FIGURES.iter().filter(|figure| figure.is_shown).collect();
    let row = |arm: &Measured<Sample>| {
        let ratios = shown.iter().map(|figure| arms.over_first(arm, figure.of)).collect();
        (arm.arm.clone(), ratios)
    };
    let categories = shown.iter().map(|figure| match figure.panel {
        Panel::Waits => format!("waits: {}", figure.title),
        Panel::Lose => format!("others: {}", figure.title),
        Panel::Pays => format!("host: {}", figure.title),
    });
    let caption = "Of what it is with nothing (1): waits and costs are better small, what the \
                   others have is better large; medians, with the smallest and the largest of all \
                   rounds";
    bars(
        caption,
        ("of nothing's", "x"),
        categories.collect(),
        arms.0.iter().skip(1).map(row).collect(),
    )
}

/// All figures of a panel.
fn panel(panel: Panel, arms: &Arms<Sample>, impossible: bool) -> Section {
    let columns: Vec<(&str, &str)> = std::iter::once(("condition", ""))
        .chain(of(panel).map(|figure| (figure.title, figure.unit)))
        .collect();
    let row = |arm: &Measured<Sample>| -> Vec<Cell> {
        let figures = of(panel).map(|figure| spread(&arm.rounds, figure.of).into());
        std::iter::once(arm.arm.clone().into()).chain(figures).collect()
    };
    let mut rows: Vec<Vec<Cell>> = arms.0.iter().map(row).collect();
    if impossible {
        let left_out = Condition::ALL.iter().filter(|one| one.loans);
        rows.extend(left_out.map(|one| {
            let mut cells = vec![Cell::Empty; columns.len()];
            cells[0] = format!("{}: not possible here", one.name).into();
            cells
        }));
    }
    let block = table(
        format!("{}: median of all rounds (smallest-largest)", panel.title()),
        &columns,
        rows,
    );
    Section::new(panel.id(), panel.title(), vec![panel.says().into()], vec![block])
}

/// A figure relative to the baseline's, if it exceeds the baseline's difference from itself.
fn difference(arms: &Arms<Sample>, arm: &Measured<Sample>, figure: &Figure) -> Option<Spread> {
    let (ratio, noise) = (arms.over_first(arm, figure.of)?, arms.noise(figure.of)?);
    let covers_one = ratio.min <= 1.0 && 1.0 <= ratio.max;
    let is_noise = ratio.min <= noise.max && noise.min <= ratio.max;
    (!covers_one && !is_noise).then_some(ratio)
}

fn summary(options: &Options, arms: &Arms<Sample>) -> Vec<String> {
    if options.rounds < 3 {
        return vec![format!(
            "{} round(s): no conclusions are drawn from so few; the figures are below.",
            options.rounds
        )];
    }
    let said = [0, 3, 6, 7, 8, 10].map(|at| &FIGURES[at]);
    let line = |arm: &Measured<Sample>| {
        let told: Vec<_> =
            said.iter().map(|figure| (figure.title, difference(arms, arm, figure))).collect();
        let different = told.iter().filter(|(_, ratio)| ratio.is_some());
        let different: Vec<String> =
            different.map(|(title, ratio)| format!("{title} {}", says(*ratio))).collect();
        let none: Vec<&str> =
            told.iter().filter(|(_, ratio)| ratio.is_none()).map(|(title, _)| *title).collect();
        match (different.is_empty(), none.is_empty()) {
            (true, _) => format!("{}: no difference seen from nothing.", arm.arm),
            (_, true) => format!("{}, of nothing's: {}.", arm.arm, different.join("; ")),
            _ => format!(
                "{}, of nothing's: {}; no difference seen in {}.",
                arm.arm,
                different.join("; "),
                none.join(", ")
            ),
        }
    };
    let last = arms.0.len().saturating_sub(1);
    arms.0[1..last].iter().map(line).collect()
}

fn notes(options: &Options, seen: &Seen) -> Vec<Note> {
    let cpus = vlane_report::machine::usable_cpus().map_or(1, |cpus| cpus.len().max(1));
    let mut notes = Vec::new();
    if let Some(why) = &seen.impossible {
        let text = format!("Loans were not measured, alone or with all: {why}.");
        notes.push(Note::warning(text));
    }
    if let Some(load) = seen.load.filter(|load| *load > BUSY * cpus as f64) {
        notes.push(Note::warning(format!(
            "The machine was not idle: a load average of {load} on {} before anything was begun. \
             Conditions were measured in turns, so each had its part of that.",
            counted(cpus, "CPU")
        )));
    }
    notes.extend(few(options.rounds));
    notes.extend(
        crate::loans::bed::warnings(vlane_testbed::guests::Machines::Qemu)
            .into_iter()
            .map(Note::warning),
    );
    notes.push(Note::info(format!(
        "The guest is {}; beside it {} with one vCPU only compute: {} vCPUs that are never idle, \
         on {}. The guest computes on each of its vCPUs; {} (fio, libaio, random 4 KiB reads, one \
         request out each) read its disk; the foreground job of a bash in a pseudo-terminal \
         writes mails (16 KiB on average, each with its fsync) and, beside that, launches `{}` \
         with a cold cache, both again and again.",
        seen.guest,
        counted(options.others, "guest"),
        usize::from(super::VCPUS) + options.others,
        counted(cpus, "CPU"),
        counted(options.readers, "reader"),
        options.program.command()
    )));
    notes.push(Note::info(format!(
        "Its disks, one for each condition, are ext4 with {} of files and a journal of {}, behind \
         a model of a drive ({}) with a queue for each thread of the back end. When measuring \
         begins the whole image is in the host's page cache: it was just made.",
        show_size(seen.root.bytes),
        show_size(options.journal),
        options.model.describe()
    )));
    let versions = match seen.root.versions.join(", ") {
        none if none.is_empty() => none,
        versions => format!(" Versions: {versions}."),
    };
    notes.push(Note::info(format!(
        "{}; in each of them {:?} of each condition, after {:?} that do not count, in turns, each \
         round beginning with another one. The condition without any mechanism has two turns in \
         each round.{versions}",
        counted(options.rounds, "round"),
        options.time,
        options.ramp,
    )));
    notes
}

/// Every round: each launch and each fsync of it, and all else.
fn samples(arms: &Arms<Sample>) -> Samples {
    let records = arms.records("the guest");
    Samples::of_records(
        "rounds",
        "Every round of every condition",
        "where | condition | round",
        records,
    )
}

/// The report.
pub(super) fn make(options: &Options, arms: &Arms<Sample>, seen: &Seen, begun: &Begun) -> Report {
    let text = "Each condition over nothing in the same round. Nothing again is what no smaller \
                difference can be seen beside.";
    let mut sections =
        vec![Section::new("together", "All together", vec![text.into()], vec![picture(arms)])];
    sections.extend(Panel::ALL.map(|one| panel(one, arms, seen.impossible.is_some())));
    Report {
        summary: summary(options, arms),
        notes: notes(options, seen),
        sections,
        samples: vec![samples(arms)],
        ..begun.report("together", "All together: nothing, each mechanism, all", &["fio"])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
#[path = "report/tests.rs"]
pub(super) mod tests;
