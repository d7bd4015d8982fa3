//! The report of all together: one picture, and the figures below it.

use std::time::Duration;

use super::{JOURNAL, Options, PROGRAM, Sample, VCPUS};
use crate::express::root::Root;
use vlane_error::counted;
use vlane_report::{
    Arms, Begun, Experiment, Figure, Note, Place, Report, Section, arms_table, experiment,
    nearest_rank, ratio_bars,
};
use vlane_units::show_size;

/// Bytes of a reader's read.
const READ: f64 = 4096.0;
/// From fewer rounds no conclusions are drawn.
const FEW: usize = 3;

/// The experiment, and observations beside the samples.
pub(super) struct Shown {
    pub(super) options: Options,
    /// The guest, in words.
    pub(super) guest: String,
    /// Contents of its disks.
    pub(super) root: Root,
    /// The reason why real-time scheduling is impossible here.
    pub(super) impossible: Option<String>,
}

/// A percentile of times in us, in ms.
fn percentile(times: &[u64], permille: usize) -> Option<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    Some(nearest_rank(&sorted, permille)? as f64 / 1e3)
}

/// The foreground's waits; the first four are in the picture.
fn waits() -> Vec<Figure<'static, Sample>> {
    vec![
        Figure::maybe("launch, median", "ms", |s: &Sample| percentile(&s.done.launches_us, 500)),
        Figure::maybe("launch, p99", "ms", |s: &Sample| percentile(&s.done.launches_us, 990)),
        Figure::maybe("fsync, median", "ms", |s: &Sample| percentile(&s.done.fsyncs_us, 500)),
        Figure::maybe("fsync, p99", "ms", |s: &Sample| percentile(&s.done.fsyncs_us, 990)),
        Figure::new("launches", "", |s: &Sample| s.done.launches_us.len() as f64),
        Figure::new("fsyncs", "", |s: &Sample| s.done.fsyncs_us.len() as f64),
    ]
}

/// Losses of the others; the first three are in the picture.
fn lose() -> Vec<Figure<'static, Sample>> {
    vec![
        Figure::new("readers", "IOPS", |s: &Sample| s.done.read / READ),
        Figure::new("compute", "/s", |s: &Sample| s.done.computed),
        Figure::new("other guests", "CPUs", |s: &Sample| s.others_cpus),
        Figure::new("the guest's own CPU time", "CPUs", |s: &Sample| s.guest_cpus),
        Figure::new("other guests beyond their share", "CPUs", |s: &Sample| {
            s.others_cpus - s.others_due_cpus
        }),
    ]
}

/// Costs of the host; the first three are in the picture.
fn pays() -> Vec<Figure<'static, Sample>> {
    let pages = |pages: Option<u64>| Some(pages? as f64);
    vec![
        Figure::new("back end", "ms of CPU/s", |s: &Sample| s.back_end_us / 1e3),
        Figure::new("back end, each request", "us", |s: &Sample| s.back_end_us / s.requests),
        Figure::maybe("journal in the page cache", "pages", move |s: &Sample| {
            pages(s.journal_pages)
        }),
        Figure::new("interrupts", "/s", |s: &Sample| s.interrupts),
        Figure::new("scheduler", "ms of CPU/s", |s: &Sample| s.scheduler_us / 1e3),
        Figure::new("boosts", "/s", |s: &Sample| s.boosts),
        Figure::maybe("page cache", "pages", move |s: &Sample| pages(s.pages)),
    ]
}

/// When a step of the foreground begins.
fn pace(every: Option<Duration>) -> String {
    every.map_or("when the last one has ended".into(), |every| format!("every {every:?}"))
}

impl Experiment for Shown {
    type Sample = Sample;
    const HEADS: [&'static str; 2] = ["where", "condition"];

    fn summary(&self) -> Vec<Figure<'_, Sample>> {
        let panels = [(waits(), 4), (lose(), 3), (pays(), 3)].into_iter();
        panels.flat_map(|(panel, first)| panel.into_iter().take(first)).collect()
    }

    fn notes(&self, _places: &[Place<'_, Sample>]) -> Vec<Note> {
        self.told()
    }

    fn sections(&self, places: &[Place<'_, Sample>]) -> Vec<Section> {
        let text = "Each condition over nothing in the same round. Nothing again is what no \
                    smaller difference can be seen beside.";
        let caption = "Of what it is with nothing (1): waits and costs are better small, what the \
                       others have is better large; medians, with the smallest and the largest of \
                       all rounds";
        let shown = self.summary();
        let picture = |place: &Place<'_, Sample>| ratio_bars(caption, &shown, place.arms);
        let blocks = places.iter().map(picture).collect();
        vec![Section::new("together", "All together", vec![text.into()], blocks)]
    }

    fn ratios(&self) -> (&'static str, Vec<Figure<'_, Sample>>) {
        ("", Vec::new())
    }

    fn figures(&self, _place: &Place<'_, Sample>) -> Vec<Figure<'_, Sample>> {
        waits()
    }

    fn is_compared(&self, _place: &Place<'_, Sample>) -> bool {
        self.options.extent().0 >= FEW
    }
}

impl Shown {
    fn told(&self) -> Vec<Note> {
        let options = &self.options;
        let others = options.extent().2;
        let cpus = vlane_report::machine::usable_cpus().map_or(1, |cpus| cpus.len().max(1));
        let mut notes = Vec::new();
        if let Some(why) = &self.impossible {
            let text = format!("Loans were not measured, alone or with all: {why}.");
            notes.push(Note::warning(text));
        }
        let (guests, readers) = (counted(others, "guest"), counted(options.readers, "reader"));
        let vcpus = counted(usize::from(VCPUS) + others, "vCPU");
        let (guest, cpus) = (&self.guest, counted(cpus, "CPU"));
        let (program, versions) = (PROGRAM.command(), self.root.versions.join(", "));
        notes.push(Note::info(format!(
            "The guest is {guest}; beside it {guests} with one vCPU only compute. So {vcpus} \
             are never idle, on {cpus}. The guest computes on each of its vCPUs; {readers} \
             (fio, libaio, random 4 KiB reads, one request out each) read its disk; the foreground \
             job of a bash in a pseudo-terminal writes mails (16 KiB on average, each with its \
             fsync) and, beside that, launches `{program}` ({versions}) with a cold cache. A mail \
             begins {}, a launch {}.",
            pace(options.mail_every),
            pace(options.launch_every)
        )));
        let (files, journal) = (show_size(self.root.bytes), show_size(JOURNAL));
        let model = options.model.describe();
        notes.push(Note::info(format!(
            "Its disks, one for each condition, are ext4 with {files} of files and a journal of \
             {journal}, behind a model of a drive ({model}) with a queue for each thread of the \
             back end. When measuring begins the whole image is in the host's page cache: it was \
             just made."
        )));
        notes
    }

    /// The report.
    pub(super) fn report(&self, arms: &Arms<Sample>, begun: &Begun) -> Report {
        let text = "A launch lasts from the start of the program, with nothing of it in the \
                    guest's memory, to its end; an fsync until the mail is durable. The 99th \
                    percentile of one turn's, by nearest rank: of fewer than a hundred it is the \
                    slowest.";
        let place = Place {
            id: "waits".into(),
            name: "the guest".into(),
            title: "What the foreground waits".into(),
            text: vec![text.into()],
            arms,
        };
        let empty =
            begun.report("together", "All together: nothing, each mechanism, all", &["fio"]);
        let mut report = experiment::report(self, &[place], empty);
        let lost = "Readers: all of them together. Compute: what the guest's own processes, one \
                    for each vCPU, computed, in turns of a thousand steps. Other guests: the CPU \
                    time of those that only compute, which is their progress. Their share is by \
                    their weights, of the CPU time of all guests and of the scheduler.";
        let paid = "Back end: its CPU time, also for each request. Interrupts: those that the \
                    guest gets. Scheduler: the CPU time of `vlane sched run`. Pages: of the disk's \
                    image, and of the journal in it, in the host's page cache at the end of the \
                    turn.";
        for (id, title, text, figures) in [
            ("lose", "What the others lose", lost, lose()),
            ("pays", "What the host pays", paid, pays()),
        ] {
            let caption = format!("{title}: median of all rounds (smallest-largest)");
            let blocks = vec![arms_table(caption, "condition", &figures, arms)];
            report.sections.push(Section::new(id, title, vec![text.into()], blocks));
        }
        report
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
#[path = "report/tests.rs"]
mod tests;
