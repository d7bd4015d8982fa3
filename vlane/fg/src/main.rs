//! `vlane-fg` runs in a guest: it raises the programs that a person waits for, the foreground
//! process group of each terminal.
//!
//! See `docs/src/vlane-fg.md`. [`policy`] decides, without a system call; [`look`] reads and has
//! its decisions made; [`daemon`] knows when.

#![deny(unsafe_code)]

mod apply;
mod bell;
mod budget;
mod cli;
mod daemon;
mod dir;
mod events;
mod hook;
mod look;
mod policy;
mod privileges;
mod proc;
mod record;
mod run;
mod say;
mod status;
#[allow(unsafe_code, reason = "two system calls that no safe wrapper has")]
mod sys;
mod values;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
