//! Figure 5: start times of programs with a cold cache, as foreground jobs of a shell in a guest,
//! in parallel with a crowd of readers.
//!
//! The programs lie on a file system of their own ([`super::root`]) on the drive; the crowd reads
//! the same drive. Before each launch the guest drops its page cache and what it knows of files.

use std::time::Duration;

use serde::Serialize;
use vlane_guest::Host;

use super::machine::{Beside, took};
use super::places::{Task, Wanted};
use super::root::{Program, Root};
use vlane_report::Report;
use vlane_report::build::Begun;
use vlane_testbed::error::{Error, ErrorKind, Result};
use vlane_testbed::interrupt::Interrupt;

pub(super) mod report;

/// Estimated time of a turn (each program once).
const TURN: Duration = Duration::from_secs(30);
/// No turn takes longer.
const LIMIT: Duration = Duration::from_secs(600);

/// The options.
#[derive(Debug, Clone)]
pub struct Options {
    /// Of the guests; a round is one launch of each program in each variant.
    pub wanted: Wanted,
    /// The launched programs.
    pub programs: Vec<Program>,
    /// Readers in the background.
    pub readers: u16,
}

/// One launch of every program.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Time of each, in seconds, in the programs' order.
    pub seconds: Vec<f64>,
    /// Figures of the crowd.
    pub beside: Beside,
}

impl Options {
    /// Commands typed at the shell: every program once, each on a cold cache.
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
    options.wanted.check(", --programs and --launches")?;
    if options.programs.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "no program is left to start: give --programs"));
    }
    let begun = Begun::now(&options.wanted.command);
    let root = Root::find(host, &options.programs)?;
    let keys: Vec<String> =
        options.programs.iter().map(|program| program.name().to_owned()).collect();
    let task = Task {
        name: "launch",
        typed: &|_| options.typed(),
        image: Some(&root.image),
        readers: &|_| options.readers,
        takes: TURN,
    };
    let found = options.wanted.measure(&task, host, interrupt, |machine, _, variant| {
        let (said, beside) = machine.measure(variant, "launch", &keys, LIMIT)?;
        let each = options.programs.iter().zip(&said);
        let seconds =
            each.map(|(program, text)| took(program.name(), text)).collect::<Result<_>>()?;
        Ok(Sample { seconds, beside })
    })?;
    let mut report = report::fill(options, &root, &found.results, &begun);
    found.mark(&mut report);
    Ok(report)
}
