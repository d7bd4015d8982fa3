//! `vlane-fg run`: a command that is raised without a daemon.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Result, anyhow};

use crate::say::say;
use crate::values::Raise;
use crate::{privileges, sys};

/// Raises this process and becomes the command. Returns only if it cannot.
pub fn run(raise: Raise, command: &[OsString]) -> Result<()> {
    let own = sys::values(0)?;
    // Under a shell that is raised already it is not raised once more.
    let nice = if own.nice < 0 { raise.nice.max(-20).min(own.nice) - own.nice } else { raise.nice };
    let possible = privileges::try_out(Raise { nice, ..raise })?;
    if let Some(io) = raise.io {
        sys::set_io_priority(0, io)?;
    }
    for lack in possible.lacks.iter().filter(|lack| lack.starts_with("nice")) {
        say(lack);
    }
    for said in privileges::autogroup().into_iter().chain(privileges::warning(raise)) {
        say(&said);
    }
    let Some((program, arguments)) = command.split_first() else {
        return Err(anyhow!("no command"));
    };
    let error = Command::new(program).args(arguments).exec();
    Err(anyhow!("{}: {error}", program.display()))
}
