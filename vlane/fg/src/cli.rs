//! The command line.

use std::ffi::OsString;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};

use crate::hook::Shell;
use crate::say::{print, say};
use crate::values::{IoPriority, Raise};
use crate::{daemon, dir, hook, run, status};

/// Raise the foreground process group of each terminal: nice value and I/O priority
#[derive(Debug, Parser)]
#[command(
    name = "vlane-fg",
    version,
    after_help = "Exit status: 0 done, 1 error (status: no daemon runs), 2 usage."
)]
struct Cli {
    #[command(subcommand)]
    command: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Raise each terminal's foreground job while it is there, and restore it afterwards
    Daemon {
        #[command(flatten)]
        raise: RaiseArgs,
        /// Directory for the state [default: /run/vlane-fg, or $XDG_RUNTIME_DIR/vlane-fg]
        #[arg(long, value_name = "DIR")]
        state_dir: Option<PathBuf>,
        /// Interval between looks at terminals that send no events
        #[arg(long, alias = "look-every", value_name = "TIME", default_value = "200ms", value_parser = time)]
        every: Duration,
        /// Raise only this terminal's foreground, such as /dev/pts/3 [default: all]
        ///
        /// May be given several times.
        #[arg(long, value_name = "DEVICE", value_parser = terminal)]
        terminal: Vec<i32>,
        /// Do not use the kernel's process events
        #[arg(long)]
        no_events: bool,
    },
    /// Run a raised command, without a daemon
    Run {
        #[command(flatten)]
        raise: RaiseArgs,
        /// Command with its arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Print the code that a shell evaluates
    ///
    /// Put `eval "$(vlane-fg hook bash)"` into the shell's start file.
    Hook {
        /// Shell
        shell: Shell,
        /// Directory of the daemon's state [default: root's, and the user's]
        #[arg(long, value_name = "DIR")]
        state_dir: Option<PathBuf>,
    },
    /// Show the raised processes
    Status {
        /// Directory of the daemon's state [default: root's, and the user's]
        #[arg(long, value_name = "DIR")]
        state_dir: Option<PathBuf>,
    },
    /// Restore the processes that a killed daemon left raised
    Restore {
        /// Directory of the state [default: /run/vlane-fg, or $XDG_RUNTIME_DIR/vlane-fg]
        #[arg(long, value_name = "DIR")]
        state_dir: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct RaiseArgs {
    /// Value added to nice values, -20 to 0
    #[arg(long, default_value = "-10", allow_hyphen_values = true, value_parser = clap::value_parser!(i32).range(-20..=0))]
    nice: i32,
    /// I/O priority: be/0 to be/7, rt/0 to rt/7, or keep to leave it unchanged
    #[arg(long, default_value = "be/0", value_name = "CLASS", value_parser = io_priority)]
    io_priority: Io,
}

/// A time between 10 ms and an hour, as `200ms` or `2s`; a bare number is in milliseconds.
fn time(text: &str) -> Result<Duration, String> {
    let time = match text.parse() {
        Ok(ms) => Duration::from_millis(ms),
        Err(_) => humantime::parse_duration(text).map_err(|why| format!("{why}; such as 200ms"))?,
    };
    match (Duration::from_millis(10)..=Duration::from_secs(3600)).contains(&time) {
        true => Ok(time),
        false => Err("there must be 10ms to 1h between two looks".to_owned()),
    }
}

/// A terminal's number, as the kernel gives it for a process.
fn terminal(path: &str) -> Result<i32, String> {
    let metadata = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !metadata.file_type().is_char_device() {
        return Err("not a terminal".to_owned());
    }
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    Ok(((minor & 0xff) | (major << 8) | ((minor & 0xf_ff00) << 12)).cast_signed())
}

#[derive(Debug, Clone, Copy)]
struct Io(Option<IoPriority>);

fn io_priority(text: &str) -> Result<Io, String> {
    if text == "keep" {
        return Ok(Io(None));
    }
    let wrong = || "it is one of be/0 to be/7, rt/0 to rt/7, keep".to_owned();
    let (class, level) = text.split_once('/').ok_or_else(wrong)?;
    if !matches!(class, "be" | "rt") || !matches!(level.as_bytes(), [b'0'..=b'7']) {
        return Err(wrong());
    }
    Ok(Io(Some(text.parse()?)))
}

impl From<RaiseArgs> for Raise {
    fn from(args: RaiseArgs) -> Self {
        Self { nice: args.nice, io: args.io_priority.0 }
    }
}

/// The program.
pub fn main() -> ExitCode {
    match dispatch(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::from(1)
        }
    }
}

fn dispatch(what: What) -> Result<bool> {
    match what {
        What::Daemon { raise, state_dir, every, terminal, no_events } => {
            let dir = one_dir(state_dir)?;
            let (raise, terminals, events) = (raise.into(), terminal, !no_events);
            daemon::run(&daemon::Options { raise, dir, every, terminals, events }).map(|()| true)
        }
        What::Run { raise, command } => run::run(raise.into(), &command).map(|()| true),
        What::Hook { shell, state_dir } => {
            print(&hook::text(shell, state_dir.as_deref())?)?;
            Ok(true)
        }
        What::Status { state_dir } => {
            let dirs = match state_dir {
                Some(dir) => vec![dir],
                None => {
                    let mut dirs = vec![Path::new(dir::OF_ROOT).to_owned()];
                    dirs.extend(dir::default_path().ok().filter(|own| *own != dirs[0]));
                    dirs
                }
            };
            let (text, running) = status::of(&dirs)?;
            print(&text)?;
            Ok(running)
        }
        What::Restore { state_dir } => {
            let (text, is_restored) = daemon::restore(&one_dir(state_dir)?)?;
            print(&text)?;
            Ok(is_restored)
        }
    }
}

fn one_dir(given: Option<PathBuf>) -> Result<PathBuf> {
    given.map_or_else(dir::default_path, Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Earlier versions had no units.
    #[test]
    fn time_without_unit_is_in_milliseconds() {
        let found = ["200ms", "2s", "20", "1h"].map(time);
        let expected = [200, 2000, 20, 3_600_000].map(|ms| Ok(Duration::from_millis(ms)));
        assert_eq!(found, expected);
        assert!(["9ms", "5", "2h", "soon", "-1"].into_iter().all(|text| time(text).is_err()));
    }
}
