//! The report of lanes in a guest.

use super::{Load, Options, Sample};
use vlane_error::counted;
use vlane_report::{Arms, Begun, Experiment, Figure, Note, Place, Report, experiment};
use vlane_units::show_size;

/// Makes it.
pub(super) fn fill(
    options: &Options,
    guest: &str,
    results: &[(Load, Arms<Sample>)],
    begun: &Begun,
) -> Report {
    let place = |(load, arms): &'_ (Load, Arms<Sample>)| {
        let title = format!("{} of {}", load.pattern, show_size(load.block));
        (load.word.clone(), title, arms.clone())
    };
    let all: Vec<_> = results.iter().map(place).collect();
    let places: Vec<Place<'_, Sample>> = all
        .iter()
        .map(|(word, title, arms)| Place {
            id: word.clone(),
            name: word.clone(),
            title: title.clone(),
            text: Vec::new(),
            arms,
        })
        .collect();
    let empty = begun.report("lanes", "Lanes in a guest", &["fio"]);
    experiment::report(&Shown { options, guest }, &places, empty)
}

/// The experiment, and its guest in words.
struct Shown<'a> {
    options: &'a Options,
    guest: &'a str,
}

fn iops() -> Figure<'static, Sample> {
    Figure::new("IOPS", "/s", |s: &Sample| s.fio.iops)
}

fn p99() -> Figure<'static, Sample> {
    Figure::new("p99", "us", |s: &Sample| s.fio.p99_us)
}

fn back_end() -> Figure<'static, Sample> {
    Figure::new("back end, each request", "us", |s: &Sample| s.back_end_us)
}

impl Experiment for Shown<'_> {
    type Sample = Sample;
    const HEADS: [&'static str; 2] = ["Load", "Topology"];

    fn summary(&self) -> Vec<Figure<'_, Sample>> {
        vec![p99(), iops(), back_end()]
    }

    fn notes(&self, _places: &[Place<'_, Sample>]) -> Vec<Note> {
        let options = self.options;
        let (guest, size) = (self.guest, show_size(options.size));
        let jobs = counted(options.vcpus, "job");
        let depth = counted(options.depth, "request");
        vec![Note::info(format!(
            "The guest is {guest}. Its fio has {jobs}, one on each vCPU, with {depth} in flight \
             each (libaio, direct). Each disk is an image of {size} on a RAM disk: the back end \
             copies between the guest's memory and the host's page cache."
        ))]
    }

    fn charts(&self) -> Vec<(&'static str, &'static str, Figure<'_, Sample>)> {
        vec![("iops", "Requests per second", iops()), ("p99", "The slowest hundredth", p99())]
    }

    fn figures(&self, _place: &Place<'_, Sample>) -> Vec<Figure<'_, Sample>> {
        vec![
            iops(),
            Figure::new("MB/s", "", |s: &Sample| s.fio.mb_per_second),
            Figure::new("p50", "us", |s: &Sample| s.fio.p50_us),
            p99(),
            Figure::new("back end", "CPUs", |s: &Sample| s.back_end_cpus),
            back_end(),
            Figure::new("guest", "CPUs", |s: &Sample| s.guest_cpus),
            Figure::new("interrupts", "/s", |s: &Sample| s.interrupts),
        ]
    }
}
