//! All variants in turns, in each guest: the common part of readers and launches.

use std::path::{Path, PathBuf};
use std::time::Duration;

use vlane_guest::Host;

use super::machine::{Machine, Place, Setup};
use super::{Model, Variant};
use vlane_client::progress::Progress;
use vlane_report::Report;
use vlane_report::judge::Arms;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::rounds::{Rounds, in_turns};

/// Options of the guests.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// vlane's own file.
    pub vlane: PathBuf,
    /// vlane-fg's file.
    pub fg: PathBuf,
    /// The command that makes this report again.
    pub command: String,
    /// Which guests.
    pub places: Vec<Place>,
    /// The variants; the first one is the baseline.
    pub variants: Vec<Variant>,
    /// The drive; none: what fits each guest ([`Place::model`]).
    pub model: Option<Model>,
    /// How often everything is measured.
    pub rounds: usize,
    /// Time in which the crowd comes to rest.
    pub ramp: Duration,
}

/// A guest, with all arms.
#[derive(Debug, Clone)]
pub struct PlaceResult<S> {
    /// The guest.
    pub place: Place,
    /// It in words.
    pub about: String,
    /// Its disks, in words.
    pub disks: String,
    /// The drive.
    pub model: Model,
    /// Readers in the background.
    pub readers: u16,
    /// The measurements.
    pub arms: Arms<S>,
}

/// Task to measure in each guest.
pub(super) struct Task<'a> {
    /// Its script's name.
    pub(super) name: &'a str,
    /// Commands typed at the shell.
    pub(super) typed: &'a dyn Fn(Place) -> String,
    /// Behind the drive; none: a device without media.
    pub(super) image: Option<&'a Path>,
    /// Readers in the background.
    pub(super) readers: &'a dyn Fn(Place) -> u16,
    /// Estimated time of one measurement beside the ramp.
    pub(super) takes: Duration,
}

/// The results of all places.
#[derive(Debug)]
pub(super) struct Found<S> {
    pub(super) results: Vec<PlaceResult<S>>,
    /// The measurements that are missing, in a sentence.
    pub(super) partial: Option<String>,
}

impl<S> Found<S> {
    /// Marks the report of it as partial if something is missing.
    pub(super) fn mark(&self, report: &mut Report) {
        self.partial.iter().for_each(|missing| report.mark_partial(missing.clone()));
    }
}

impl Wanted {
    /// Checks that a measurement is left, and that `vlane-fg` is in its place if a variant needs
    /// it.
    pub(super) fn check(&self, options: &str) -> Result<()> {
        if self.variants.is_empty() || self.places.is_empty() || self.rounds == 0 {
            let text = format!("no measurement is left: give --variants, --where{options}");
            return Err(Error::new(ErrorKind::Usage, text));
        }
        if self.fg.is_file() || !self.variants.iter().any(|variant| variant.is_raised()) {
            return Ok(());
        }
        let text = format!(
            "{}: vlane-fg is not there; it is built with vlane (cargo build -p vlane-fg), or name \
             it with --fg",
            self.fg.display()
        );
        Err(Error::new(ErrorKind::Missing, text))
    }

    /// Measures each variant in turns, `one` at a time, each round beginning with another one.
    pub(super) fn measure<S: std::fmt::Debug>(
        &self,
        task: &Task<'_>,
        host: &Host,
        interrupt: &Interrupt,
        mut one: impl FnMut(&mut Machine<'_>, &Setup<'_>, Variant) -> Result<S>,
    ) -> Result<Found<S>> {
        let dir = tempfile::Builder::new().prefix("vlane-express-").tempdir();
        let dir = dir.context(ErrorKind::Io, || "cannot make a directory for sockets")?;
        let names: Vec<String> =
            self.variants.iter().map(|variant| variant.title().to_owned()).collect();
        let arms = names.len() + 1;
        let steps = self.places.len() * (1 + self.rounds * arms);
        let mut progress = Progress::new(steps).expecting(self.ramp + task.takes);
        let (mut results, mut partial) = (Vec::new(), None);
        for &place in &self.places {
            let setup = Setup {
                host,
                vlane: &self.vlane,
                fg: &self.fg,
                place,
                model: self.model.unwrap_or(place.model()),
                readers: (task.readers)(place),
                variants: &self.variants,
                image: task.image,
                typed: vec![(task.name.into(), (task.typed)(place))],
                ramp: self.ramp,
                dir: dir.path(),
            };
            progress.step(format!("{}: the guest boots", place.name()));
            let mut machine = match setup.boot(interrupt) {
                Ok(machine) => machine,
                Err(error) if results.is_empty() => return Err(error),
                Err(error) => {
                    partial = Some(format!("PARTIAL: {} is missing: {error}", place.name()));
                    break;
                }
            };
            let mut result = PlaceResult {
                place,
                about: machine.about.clone(),
                disks: machine.disks.clone(),
                model: setup.model,
                readers: setup.readers,
                arms: Arms::named(&names),
            };
            let rounds = Rounds::measure(self.rounds, |round| {
                in_turns(&mut result.arms, round, |at, arm| {
                    progress.step(format!("{}, round {}: {arm}", place.name(), round + 1));
                    one(&mut machine, &setup, self.variants[at])
                })
            });
            match rounds {
                Err(error) if results.is_empty() => return Err(error),
                Err(error) => {
                    partial = Some(format!("PARTIAL: {} is missing: {error}", place.name()))
                }
                Ok(rounds) => {
                    result.arms.keep(rounds.whole());
                    results.push(result);
                    partial = rounds.missing();
                }
            }
            if partial.is_some() {
                break;
            }
        }
        progress.clear();
        Ok(Found { results, partial })
    }
}
