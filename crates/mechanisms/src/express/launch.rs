//! Figure 5: how long programs take to start with a cold cache, as foreground jobs of a shell in a guest, beside a crowd of readers.
//!
//! The programs lie on a file system of their own ([`super::root`]) on the drive; the crowd reads the same drive. Before each launch the
//! guest drops its page cache and what it knows of files.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use vlane_boot::Host;

use super::guests::check_fg;
use super::judge::Arms;
use super::machine::{Beside, Place, Setup, took};
use super::root::{Program, Root};
use super::{Model, Variant, report, turns};
use vlane_host::error::{Context, Error, ErrorKind, Result};
use vlane_host::interrupt::Interrupt;
use vlane_report::Report;
use vlane_report::build::Begun;
use vlane_report::progress::Progress;

/// What a turn (each program once) takes, about.
const TURN: Duration = Duration::from_secs(30);
/// No turn takes longer.
const LIMIT: Duration = Duration::from_secs(600);

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
    /// What is launched.
    pub programs: Vec<Program>,
    /// How often each is launched in each variant.
    pub launches: usize,
    /// The drive; none: what fits each guest ([`Place::model`]).
    pub model: Option<Model>,
    /// Readers in the background.
    pub readers: u16,
    /// Time in which the crowd comes to rest.
    pub ramp: Duration,
}

/// One launch of every program.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Sample {
    /// What each took, in seconds, in the programs' order.
    pub seconds: Vec<f64>,
    /// What the crowd had.
    pub beside: Beside,
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
    /// What was measured.
    pub arms: Arms<Sample>,
}

impl Options {
    fn check(&self) -> Result<()> {
        if self.variants.is_empty()
            || self.places.is_empty()
            || self.programs.is_empty()
            || self.launches == 0
        {
            let text = "nothing is left to be measured: give --variants, --where, --programs and --launches";
            return Err(Error::new(ErrorKind::Usage, text));
        }
        check_fg(&self.fg, &self.variants)
    }

    /// What is typed at the shell: every program once, each on a cold cache.
    fn typed(&self) -> String {
        let one = |program: &Program| {
            format!(
                "echo 3 > /proc/sys/vm/drop_caches\nA=$EPOCHREALTIME\n\
                 chroot /mnt/@DEV@ {} </dev/null >/dev/null 2>&1\n\
                 echo \"RES\"\"ULT {}.@SEQ@=$A $EPOCHREALTIME $?\"\n",
                program.command(),
                program.name()
            )
        };
        self.programs.iter().map(one).collect()
    }
}

/// Measures, and makes a report.
///
/// # Errors
/// As [`super::guests::run`].
pub fn run(options: &Options, host: &Host, interrupt: &Interrupt) -> Result<Report> {
    options.check()?;
    let begun = Begun::now(&options.command);
    let dir = tempfile::Builder::new().prefix("vlane-express-").tempdir();
    let dir = dir.context(ErrorKind::Io, || "cannot make a directory for sockets")?;
    let root = Root::find(host, &options.programs)?;
    let names: Vec<String> = options.variants.iter().map(|variant| variant.title().to_owned()).collect();
    let arms = names.len() + 1;
    let steps = options.places.len() * (1 + options.launches * arms);
    let mut progress = Progress::new(steps).expecting(TURN);
    let keys: Vec<String> = options.programs.iter().map(|program| program.name().to_owned()).collect();
    let mut results = Vec::new();
    for place in &options.places {
        let setup = Setup {
            host,
            vlane: &options.vlane,
            fg: &options.fg,
            place: *place,
            model: options.model.unwrap_or(place.model()),
            readers: options.readers,
            variants: &options.variants,
            image: Some(&root.image),
            typed: vec![("launch".into(), options.typed())],
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
            arms: Arms::named(&names),
        };
        for launch in 0..options.launches {
            for turn in turns(arms, launch) {
                let arm = &mut result.arms.0[turn];
                progress.step(format!("{}, launch {}: {}", place.name(), launch + 1, arm.arm));
                let variant = options.variants[turn % options.variants.len()];
                let (said, beside) = machine.measure(variant, "launch", &keys, LIMIT)?;
                let each = options.programs.iter().zip(&said);
                let seconds =
                    each.map(|(program, text)| took(program.name(), text)).collect::<Result<_>>()?;
                let sample = Sample { seconds, beside };
                tracing::debug!(?sample, arm = arm.arm, "measured");
                arm.rounds.push(sample);
            }
        }
        results.push(result);
    }
    progress.clear();
    Ok(report::launch::fill(options, &root, &results, &begun))
}
