//! Figure 4: a program that reads so much, as the foreground job of a shell in a guest, beside as many readers as the guest can hold.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use vlane_boot::Host;

use super::judge::Arms;
use super::machine::{Beside, Machine, Place, Setup, took};
use super::{BLOCK, Model, Variant, report, turns};
use vlane_host::error::{Context, Error, ErrorKind, Result};
use vlane_host::interrupt::Interrupt;
use vlane_report::Report;
use vlane_report::build::Begun;
use vlane_report::progress::Progress;

/// A guest boots, and a crowd starts and ends: what a measurement takes beyond the foreground's time, about.
const AROUND: Duration = Duration::from_secs(12);
/// The foreground's reads would take this long each if all readers stood before each: no measurement takes longer than ten times that.
const SLOWER: u32 = 10;

/// What the user wants.
#[derive(Debug, Clone)]
pub struct Options {
    /// vlane's own file.
    pub vlane: PathBuf,
    /// vlane-fg's file.
    pub fg: PathBuf,
    /// The command that makes this report again.
    pub command: String,
    /// Which guests.
    pub places: Vec<Place>,
    /// What is measured; the first one is what others are held against.
    pub variants: Vec<Variant>,
    /// The drive; none: what fits each guest ([`Place::model`]).
    pub model: Option<Model>,
    /// Readers in the background; none: as many as each guest can hold ([`Place::readers`]).
    pub readers: Option<u16>,
    /// Reads of the foreground program; none: what takes seconds in each guest ([`Place::reads`]).
    pub reads: Option<u32>,
    /// How often everything is measured.
    pub rounds: usize,
    /// Time in which the crowd comes to rest.
    pub ramp: Duration,
}

/// What one measurement gave.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Sample {
    /// How long the foreground program took as the shell has it, in seconds.
    pub seconds: f64,
    /// Its reads per second.
    pub iops: f64,
    /// Mean time of its reads, in ms.
    pub mean_ms: f64,
    /// Their 99th percentile.
    pub p99_ms: f64,
    /// The background's reads per second.
    pub background: f64,
    /// What else the background had.
    pub beside: Beside,
}

impl Sample {
    fn of(reads: u32, said: &[String], beside: Beside) -> Result<Self> {
        let number = |at: usize| -> Result<f64> {
            let text = said.get(at).map_or("", String::as_str);
            text.parse()
                .map_err(|_| Error::new(ErrorKind::Process, format!("the foreground program says: {text}")))
        };
        let seconds = took("the foreground program", said.first().map_or("", String::as_str))?;
        Ok(Self {
            seconds,
            iops: f64::from(reads) / seconds,
            mean_ms: number(1)? / 1e3,
            p99_ms: number(2)? / 1e3,
            background: (beside.reads - f64::from(reads)) / beside.seconds.max(1e-3),
            beside,
        })
    }

    /// MB per second of the foreground.
    pub fn mb_per_second(&self) -> f64 {
        self.iops * f64::from(BLOCK) / 1e6
    }
}

/// A guest, with all arms.
#[derive(Debug, Clone)]
pub struct PlaceResult {
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
    /// Reads of the foreground program.
    pub reads: u32,
    /// What was measured.
    pub arms: Arms<Sample>,
}

impl Options {
    fn check(&self) -> Result<()> {
        if self.variants.is_empty() || self.places.is_empty() || self.rounds == 0 {
            let text = "nothing is left to be measured: give --variants, --where and --repeat";
            return Err(Error::new(ErrorKind::Usage, text));
        }
        check_fg(&self.fg, &self.variants)
    }

    fn names(&self) -> Vec<String> {
        self.variants.iter().map(|variant| variant.title().to_owned()).collect()
    }
}

/// What is typed at the shell.
fn typed(reads: u32) -> String {
    // The mark of a result is in two pieces: the terminal echoes what is typed.
    format!(
        "A=$EPOCHREALTIME\nvlane express-read /dev/@DEV@ --reads {reads} --seed @SEQ@ --mark @SEQ@\n\
         echo \"RES\"\"ULT exec.@SEQ@=$A $EPOCHREALTIME $?\"\n"
    )
}

/// Whether `vlane-fg` is where it should be, if something needs it.
pub(super) fn check_fg(fg: &std::path::Path, variants: &[Variant]) -> Result<()> {
    if fg.is_file() || !variants.iter().any(|variant| variant.is_raised()) {
        return Ok(());
    }
    let text = format!(
        "{}: vlane-fg is not there; it is built with vlane (cargo build -p vlane-fg), or name it with --fg",
        fg.display()
    );
    Err(Error::new(ErrorKind::Missing, text))
}

/// Measures, and makes a report.
///
/// # Errors
/// [`ErrorKind::Usage`] for options that make no sense, [`ErrorKind::Missing`] without a program that is needed, [`ErrorKind::Interrupted`], and
/// those of back ends and guests.
pub fn run(options: &Options, host: &Host, interrupt: &Interrupt) -> Result<Report> {
    options.check()?;
    let begun = Begun::now(&options.command);
    let dir = tempfile::Builder::new().prefix("vlane-express-").tempdir();
    let dir = dir.context(ErrorKind::Io, || "cannot make a directory for sockets")?;
    let arms = options.variants.len() + 1;
    let steps = options.places.len() * (1 + options.rounds * arms);
    let mut progress = Progress::new(steps).expecting(options.ramp + AROUND);
    let mut results = Vec::new();
    for place in &options.places {
        let reads = options.reads.unwrap_or(place.reads());
        let setup = Setup {
            host,
            vlane: &options.vlane,
            fg: &options.fg,
            place: *place,
            model: options.model.unwrap_or(place.model()),
            readers: options.readers.unwrap_or(place.readers()),
            variants: &options.variants,
            image: None,
            typed: vec![("read".into(), typed(reads))],
            ramp: options.ramp,
            dir: dir.path(),
        };
        progress.step(format!("{}: the guest boots", place.name()));
        let mut machine = setup.boot(interrupt)?;
        let mut result = PlaceResult {
            place: *place,
            about: machine.about.clone(),
            disks: machine.disks.clone(),
            model: setup.model,
            readers: setup.readers,
            reads,
            arms: Arms::named(&options.names()),
        };
        for round in 0..options.rounds {
            for turn in turns(arms, round) {
                let arm = &mut result.arms.0[turn];
                progress.step(format!("{}, round {}: {}", place.name(), round + 1, arm.arm));
                let variant = options.variants[turn % options.variants.len()];
                let sample = measure(reads, &mut machine, &setup, variant)?;
                tracing::debug!(?sample, arm = arm.arm, "measured");
                arm.rounds.push(sample);
            }
        }
        results.push(result);
    }
    progress.clear();
    Ok(report::guests::fill(options, &results, &begun))
}

fn measure(reads: u32, machine: &mut Machine<'_>, setup: &Setup<'_>, variant: Variant) -> Result<Sample> {
    let each = setup.model.latency.mul_f64(f64::from(setup.readers + 1) / f64::from(setup.model.parallel));
    let limit = each * reads * SLOWER;
    let keys = ["exec", "mean_us", "p99_us"].map(str::to_owned);
    let (said, beside) = machine.measure(variant, "read", &keys, limit)?;
    Sample::of(reads, &said, beside)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_the_foreground_read_is_not_the_backgrounds() {
        let said = ["10.0 14.0 0", "40000", "90000"].map(str::to_owned);
        let beside = Beside { seconds: 5.0, reads: 10_100.0, ..Beside::default() };
        let sample = Sample::of(100, &said, beside).unwrap();
        assert_eq!((sample.seconds, sample.iops, sample.background), (4.0, 25.0, 2000.0));
        assert_eq!((sample.mean_ms, sample.p99_ms), (40.0, 90.0));
        assert!((sample.mb_per_second() - 0.1024).abs() < 1e-9);
        let silent = ["10.0 14.0 0", "", "90000"].map(str::to_owned);
        assert_eq!(Sample::of(100, &silent, beside).unwrap_err().kind(), ErrorKind::Process);
    }
}
