//! Figure 5: start times of programs with a cold cache, as foreground jobs of a shell in a guest,
//! in parallel with a crowd of readers.
//!
//! The programs lie on a file system of their own ([`super::root`]) on the drive; the crowd reads
//! the same drive. Before each launch the guest drops its page cache and what it knows of files.

use std::time::Duration;

use clap::Args;
use serde::Serialize;

use super::distinct;
use super::machine::{Behind, Beside, GuestArgs, Task, took};
use super::root::{Program, Root};
use vlane_report::Report;
use vlane_testbed::{Call, Result};

pub(super) mod report;

/// Estimated time of a turn (each program once), and the longest.
const TURN: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));

/// The options
#[derive(Debug, Clone, Args)]
#[command(mut_arg("places", |places| places.default_value("uml")))]
#[command(mut_arg("readers", |readers| readers.default_value("32")))]
#[command(mut_arg("rounds", |rounds| {
    let help = "Number of starts of each program in each variant";
    rounds.long("launches").default_value("10").help(help)
}))]
pub struct Options {
    #[command(flatten)]
    pub(super) guest: GuestArgs,
    /// Programs to start
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide_possible_values = true)]
    #[arg(default_value = "python3,git,sqlite3,gcc,vim")]
    pub(super) programs: Vec<Program>,
}

/// One launch of every program.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Sample {
    /// Time of each, in seconds, in the programs' order.
    pub seconds: Vec<f64>,
    /// Figures of the crowd.
    pub beside: Beside,
}

/// Commands typed at the shell for a program, on a cold cache.
fn typed(program: &Program) -> String {
    format!(
        "echo 3 > /proc/sys/vm/drop_caches\nA=$EPOCHREALTIME\n\
         chroot /mnt/@DEV@ {} </dev/null >/dev/null 2>&1\n\
         echo \"RES\"\"ULT {}.@SEQ@=$A $EPOCHREALTIME $?\"\n",
        program.command(),
        program.name()
    )
}

/// Measures with vlane's own file, and makes a report.
///
/// # Errors
/// As [`super::guests::run`].
pub fn run(options: &Options, call: &Call<'_>) -> Result<Report> {
    let mut options = options.clone();
    // A lack of it is better known before the file system of programs is made.
    options.guest.fg(call.vlane)?;
    options.programs = distinct(options.programs.clone());
    let programs = &options.programs;
    let root = Root::find(&options.guest.installs.host()?, programs)?;
    let keys: Vec<String> = programs.iter().map(|program| program.name()).collect();
    let task = |place| Task {
        place,
        readers: options.guest.readers.unwrap_or_default(),
        typed: programs.iter().map(typed).collect(),
        keys: &keys,
        beside: String::new(),
        behind: Behind::Programs(&root.image),
        takes: TURN,
    };
    let sample = |_, said: &[String], beside| {
        let each = programs.iter().zip(said);
        let seconds = each.map(|(program, text)| took(&program.name(), text));
        Ok(Sample { seconds: seconds.collect::<Result<_>>()?, beside })
    };
    let show = |results: &[_]| report::fill(&options, &root, results, &call.begun);
    options.guest.measure(task, call, sample, show)
}
