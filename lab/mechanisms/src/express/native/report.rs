//! Report of the measurement without a guest.

use super::super::{Mode, word};
use super::{Load, Options, Sample};
use vlane_report::{Arms, Begun, Bound, Experiment, Figure, Goal, Note, Place, Report, experiment};

/// How many times shorter the foreground's 99th percentile has to be.
const SHORTER: f64 = 10.0;
/// Of the background's reads, what has to be left.
const BACKGROUND: f64 = 0.97;
/// Of all reads, what has to be left.
const TOTAL: f64 = 0.98;

/// Makes it.
pub(in super::super) fn fill(
    options: &Options,
    results: &[(Load, Arms<Sample>)],
    begun: &Begun,
) -> Report {
    let mut places = Vec::new();
    for (load, arms) in results {
        let title = load.title(options.readers, options.queues);
        places.push(Place { id: word(*load), name: word(*load), title, text: Vec::new(), arms });
    }
    let empty = begun.report("express", "Foreground first: the back end alone", &[]);
    experiment::report(options, &places, empty)
}

fn p99() -> Figure<'static, Sample> {
    Figure::shorter("p99: times shorter", |s: &Sample| s.p99_us)
}

fn background() -> Figure<'static, Sample> {
    Figure::new("Background", "/s", |s: &Sample| s.background)
}

fn total() -> Figure<'static, Sample> {
    Figure::new("All reads", "/s", Sample::total)
}

impl Experiment for Options {
    type Sample = Sample;
    const HEADS: [&'static str; 2] = ["Load", "Arm"];
    const AIM: &'static str =
        "They are for `on`. `order` and `shortest` are its two parts, each shown alone.";

    fn summary(&self) -> Vec<Figure<'_, Sample>> {
        vec![total()]
    }

    fn notes(&self, _places: &[Place<'_, Sample>]) -> Vec<Note> {
        let model = self.model.describe();
        vec![
            Note::info(format!(
                "The drive is a model with a queue for each of the back end's threads ({}), \
                 served in turns, one request of each: {model}.",
                self.queues
            )),
            Note::info(
                "Every reader has one request of 4 KiB in flight. The background's requests have \
                 the I/O priority of an ordinary task (best effort 4: normal); the foreground's \
                 have best effort 0 (express). One thread of the driver is all of them.",
            ),
            Note::info(format!(
                "The foreground pauses for {:?} between two reads, as an interactive program \
                 does. Without that pause (\"no think time\") it reads more of a drive whose rate \
                 is given: only all reads together have a goal.",
                self.think
            )),
        ]
    }

    fn goals(&self, place: &Place<'_, Sample>) -> Vec<Goal<'_, Sample>> {
        let goal =
            |figure, least| Goal { arm: word(Mode::On), figure, wanted: Bound::AtLeast(least) };
        let mut goals =
            vec![goal(p99(), SHORTER), goal(background(), BACKGROUND), goal(total(), TOTAL)];
        // Without think time a quicker foreground takes more of a drive whose rate is given. No
        // back end could leave it to the others.
        if place.name == word(Load::Greedy) {
            goals.remove(1);
        }
        goals
    }

    fn charts(&self) -> Vec<(&'static str, &'static str, Figure<'_, Sample>)> {
        let p99 = Figure::new("99th percentile", "us", |s: &Sample| s.p99_us);
        vec![
            ("p99", "The foreground's 99th percentile", p99),
            ("background", "The background's reads", background()),
        ]
    }

    fn ratios(&self) -> (&'static str, Vec<Figure<'_, Sample>>) {
        let figures = vec![
            p99(),
            Figure::shorter("Mean: times shorter", |s: &Sample| s.mean_us),
            background(),
            total(),
            Figure::new("Background's p99", "us", |s: &Sample| s.background_p99_us),
            Figure::new("CPU per read", "us", |s: &Sample| s.cpu_us),
        ];
        ("over-first", figures)
    }

    fn figures(&self, _place: &Place<'_, Sample>) -> Vec<Figure<'_, Sample>> {
        vec![
            Figure::new("Mean", "us", |s: &Sample| s.mean_us),
            Figure::new("p50", "us", |s: &Sample| s.p50_us),
            Figure::new("p99", "us", |s: &Sample| s.p99_us),
            Figure::new("p99.9", "us", |s: &Sample| s.p999_us),
            Figure::new("Reads", "", |s: &Sample| s.reads),
            Figure::new("Foreground", "/s", |s: &Sample| s.foreground),
            background(),
            Figure::new("All", "/s", Sample::total),
            Figure::new("Background's p99", "us", |s: &Sample| s.background_p99_us),
            Figure::new("CPU per read", "us", |s: &Sample| s.cpu_us),
        ]
    }
}
