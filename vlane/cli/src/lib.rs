//! The command line: reads arguments and prints for people.
//!
//! The program is [`main()`]. [`command()`] is the definition of its command line. Help,
//! completions and man pages are made from it, and the tests check each of its options.
//! `vlane-lab` uses the same parts for a command line of its own.

#![forbid(unsafe_code)]

// First: its macros take the place of the standard library's in all modules below.
#[macro_use]
pub mod print;
#[macro_use]
pub mod exit;

pub mod boot;
mod classes;
mod completions;
mod former;
mod inspect;
mod limit;
pub mod logging;
mod man;
pub mod manual;
pub mod misplaced;
mod notify;
pub mod output;
mod record;
pub mod sched;
pub mod serve;
pub mod values;
mod volume;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// A program of this project: its name, its command line, and the pages of its manual.
#[derive(Debug)]
pub struct Program {
    /// Name of the file, as people type it.
    pub name: &'static str,
    /// Definition of its command line.
    pub command: fn() -> clap::Command,
    /// Pages of its manual.
    pub pages: &'static [manual::Page],
}

/// `vlane`.
pub static PROGRAM: Program = Program { name: "vlane", command, pages: manual::PAGES };

/// Serve virtual disks to virtual machines
#[derive(Debug, Parser)]
#[command(name = "vlane", version = version(), propagate_version = true, max_term_width = 110, after_help = exit::help())]
struct Cli {
    #[command(flatten)]
    logging: logging::LogArgs,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one is made, once")]
enum Command {
    /// Serve a volume to virtual machines over vhost-user-blk
    Serve(serve::ServeArgs),
    /// Run a QEMU guest on a volume, or a demonstration
    Boot(boot::BootArgs),
    #[command(flatten)]
    Common(Common),
}

/// The commands that `vlane-lab` has, too, word for word.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one is made, once")]
pub enum Common {
    /// Show the partitions, file systems and journals of an image
    Inspect(inspect::InspectArgs),
    /// Ask or change a volume while it is served
    Volume(volume::VolumeArgs),
    /// Schedule virtual CPUs: boost those whose I/O has completed, and keep shares fair
    Sched(sched::SchedArgs),
    /// Commands by their former names.
    #[command(flatten)]
    Former(volume::Former),
    /// Print a shell's completions
    Completions(completions::CompletionsArgs),
    /// Write the man pages, one for each command
    Man(man::ManArgs),
}

impl Common {
    /// Runs the command as one of `program`.
    ///
    /// # Errors
    /// Those of the command.
    pub fn run(&self, program: &Program) -> anyhow::Result<()> {
        match self {
            Self::Inspect(args) => inspect::run(args),
            Self::Volume(args) => volume::run(args),
            Self::Sched(args) => sched::run(args),
            Self::Former(former) => volume::run_former(former),
            Self::Completions(args) => completions::run(program, args),
            Self::Man(args) => man::run(program, args),
        }
    }
}

/// The commit given to the build. A source archive has none, and a build needs no git.
pub const COMMIT: Option<&str> = option_env!("VLANE_COMMIT");

/// The words of `--version` after the name.
pub fn version() -> &'static str {
    static VERSION: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| version_with(COMMIT));
    &VERSION
}

fn version_with(commit: Option<&str>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    match commit.map(str::trim).filter(|commit| !commit.is_empty()) {
        Some(commit) => format!("{version} (commit {commit})"),
        None => version.to_owned(),
    }
}

/// The definition of the command line.
pub fn command() -> clap::Command {
    Cli::command()
}

/// The program.
pub fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if let Err(error) = former::hand_over(&words) {
        return logging::ended(PROGRAM.name, Err(error), logging::Format::Text);
    }
    let cli = Cli::try_parse().unwrap_or_else(|error| misplaced::exit(error, &PROGRAM));
    run(&PROGRAM, &cli.logging, || match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Boot(args) => boot::run(args),
        Command::Common(common) => common.run(&PROGRAM),
    })
}

/// Starts the log, runs a command, and ends with its exit status.
pub fn run(
    program: &Program,
    log: &logging::LogArgs,
    command: impl FnOnce() -> anyhow::Result<()>,
) -> ExitCode {
    let format = match log.start() {
        Ok(format) => format,
        Err(error) => return logging::ended(program.name, Err(error), logging::Format::Text),
    };
    let result = command();
    // A failure to print counts for more than a partial result.
    let result = match (result, print::finish()) {
        (Err(error), Err(unprinted)) if error.is::<exit::Partial>() => Err(unprinted),
        (Ok(()), printed) => printed,
        (failed, _) => failed,
    };
    logging::ended(program.name, result, format)
}

#[cfg(test)]
#[test]
fn version_has_the_builds_commit() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(version_with(Some("9b0ee78f9e55+\n")), format!("{version} (commit 9b0ee78f9e55+)"));
    assert_eq!(version_with(Some("")), version);
    assert_eq!(version_with(None), version);
}
