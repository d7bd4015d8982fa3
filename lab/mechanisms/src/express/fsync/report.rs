//! Report of fsyncs in guests.

use super::super::report::{cpus, guests, places};
use super::super::{Variant, word};
use super::{Options, Sample, hops};
use vlane_error::counted;
use vlane_report::{
    Begun, Bound, Cell, Experiment, Figure, Goal, Note, Place, Report, Section, experiment, table,
};
use vlane_units::show_size;

type PlaceResult = super::super::machine::PlaceResult<Sample>;

/// Wanted ratios of fsync times, of the readers' reads, and of the background's fsyncs.
const WANTED: [Bound; 3] = [Bound::AtMost(0.5), Bound::AtLeast(0.97), Bound::AtLeast(0.5)];

/// The experiment, and what came of it.
struct Shown<'a> {
    options: &'a Options,
    results: &'a [PlaceResult],
}

/// Makes it.
pub(in super::super) fn fill(options: &Options, results: &[PlaceResult], begun: &Begun) -> Report {
    let empty = begun.report("express", "Foreground first: fsyncs in a guest", &["fio"]);
    experiment::report(&Shown { options, results }, &places(results), empty)
}

impl Shown<'_> {
    /// The figures that have goals: losses first, then the foreground's times.
    fn judged(&self) -> Vec<(Figure<'_, Sample>, Bound)> {
        let [times, reads, syncs] = WANTED;
        let mut judged = vec![(Figure::new("Reads", "/s", |s: &Sample| s.background), reads)];
        if self.options.background_sync {
            let of = |s: &Sample| s.beside.appended_per_second();
            judged.push((Figure::new("Background's fsyncs", "/s", of), syncs));
        }
        judged.push((Figure::new("Fsync p99", "ms", |s: &Sample| s.p99_ms), times));
        judged.push((Figure::new("Fsync p50", "ms", |s: &Sample| s.p50_ms), times));
        judged
    }
}

fn cpu() -> Figure<'static, Sample> {
    Figure::new("Back end's CPU per request", "us", |s: &Sample| s.beside.cpu_us)
}

/// Two tables on the recorded turns of a guest.
fn recorded(result: &PlaceResult) -> Section {
    let (mut requests, mut classes) = (Vec::new(), Vec::new());
    for (variant, trace, counts) in &result.recorded {
        for (request, priority, figures) in hops(trace) {
            let names = [variant.title(), request, &priority].map(Cell::from);
            requests.push(names.into_iter().chain(figures.map(Cell::from)).collect());
        }
        let journal = std::iter::once(("journal", &counts.journal));
        let each = counts.classes.iter().map(|count| (count.class.as_str(), count));
        for (class, count) in each.chain(journal).filter(|(_, count)| count.queued.timed > 0) {
            let times = [&count.queued, &count.device].into_iter();
            let times = times.flat_map(|times| [times.p50_ns, times.p99_ns]);
            let times = times.map(|ns| ns.map_or(Cell::Empty, |ns| Cell::Number(ns as f64 / 1e6)));
            let counted = [variant.title().into(), class.into(), Cell::from(count.requests as f64)];
            classes.push(counted.into_iter().chain(times).collect());
        }
    }
    let place = word(result.place);
    let text = "Each request from the ring to its answer, in one recorded turn of each variant. \
                The second table has the time in the lane and the time at the device by class, of \
                all turns. Flushes are never at the device. The baseline has no such counts.";
    let mut blocks = vec![table(
        "Requests of a recorded turn",
        "Variant | Request | I/O priority | Number | p50 [ms] | p99 [ms]",
        requests,
    )];
    if !classes.is_empty() {
        let columns = "Variant | Class | Number | Lane p50 [ms] | Lane p99 [ms] | Device p50 [ms] \
                       | Device p99 [ms]";
        blocks.push(table("In the lane and at the device", columns, classes));
    }
    let title = format!("Where the time goes in {place}");
    Section::new(format!("{place}-requests"), title, vec![text.into()], blocks)
}

impl Experiment for Shown<'_> {
    type Sample = Sample;
    const AIM: &'static str = "They are for Proposed. All variants have as many fsyncs.";

    fn summary(&self) -> Vec<Figure<'_, Sample>> {
        self.judged().into_iter().map(|(figure, _)| figure).collect()
    }

    fn notes(&self, _places: &[Place<'_, Sample>]) -> Vec<Note> {
        let Options { writer, background_sync, .. } = self.options;
        let beside = |result: &PlaceResult| {
            let times = counted(self.options.syncs(result.place), "time");
            format!("a foreground program that appends 4 KiB and fsyncs, {times}")
        };
        let drive = match self.options.disk_dir {
            Some(_) => ", with ext4 (data=ordered) on it",
            None => ", with ext4 (data=ordered) in RAM behind it; a flush takes no time there",
        };
        let mut notes = guests(self.results, beside, drive, |s| &s.beside);
        let every = self.results.iter().map(|result| self.options.every(result.place));
        let every: Vec<_> = every.map(|every| format!("{every:?}")).collect();
        let mut text = format!("The foreground begins an fsync every {}.", every.join(" and "));
        if let Some(size) = writer {
            let size = show_size(*size);
            text += &format!(
                " A background program writes {size} a second through the guest's page cache."
            );
        }
        if *background_sync {
            text += " A background program appends 4 KiB and fsyncs without a pause. Both files \
                     share one journal.";
        }
        notes.push(Note::info(text));
        notes
    }

    fn goals(&self, _place: &Place<'_, Sample>) -> Vec<Goal<'_, Sample>> {
        let arm = || Variant::Proposed.title().into();
        let goal = |(figure, wanted)| Goal { arm: arm(), figure, wanted };
        self.judged().into_iter().map(goal).collect()
    }

    fn sections(&self, _places: &[Place<'_, Sample>]) -> Vec<Section> {
        let recorded_ones = self.results.iter().filter(|result| !result.recorded.is_empty());
        recorded_ones.map(recorded).collect()
    }

    fn ratios(&self) -> (&'static str, Vec<Figure<'_, Sample>>) {
        ("over-first", self.summary().into_iter().chain([cpu()]).collect())
    }

    fn figures(&self, _place: &Place<'_, Sample>) -> Vec<Figure<'_, Sample>> {
        let mut figures = self.summary();
        figures.extend([
            Figure::new("Fsync mean", "ms", |s: &Sample| s.mean_ms),
            Figure::new("Fsyncs", "/s", |s: &Sample| s.iops),
            cpu(),
            cpus(|s: &Sample| &s.beside),
        ]);
        figures
    }
}
