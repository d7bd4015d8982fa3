//! Options that several experiments have.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, ValueEnum};
use vlane::serve::{Experiments, ServeArgs};
use vlane_guest::{Host, Install};
use vlane_report::Begun;

use crate::{ErrorKind, Fail, Interrupt, Result};

/// The call of a measurement.
#[derive(Debug)]
pub struct Call<'a> {
    /// vlane's own file.
    pub vlane: &'a Path,
    /// The command, and its time.
    pub begun: Begun,
    /// The user's wish to end it.
    pub interrupt: &'a Interrupt,
}

/// A mistake in the command line.
///
/// # Errors
/// Always: [`ErrorKind::Usage`] with the text.
pub fn usage<T>(text: impl Into<String>) -> Result<T> {
    ErrorKind::Usage.fail(text)
}

/// The distinct values, in order.
pub fn distinct<T: PartialEq>(all: Vec<T>) -> Vec<T> {
    all.into_iter().fold(Vec::new(), |mut found, one| {
        if !found.contains(&one) {
            found.push(one);
        }
        found
    })
}

/// A value's word, as its option has it.
pub fn word(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

/// A value's description, as the help of its option has it.
pub fn about(value: impl ValueEnum) -> String {
    let value = value.to_possible_value();
    value.and_then(|value| value.get_help().map(ToString::to_string)).unwrap_or_default()
}

/// Permission to install missing programs
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
pub struct Installs {
    /// Install missing programs by apt-get (as root), and guest kernels into the cache directory
    #[arg(long)]
    pub install: bool,
}

impl Installs {
    /// The host's programs, installed where that is allowed.
    ///
    /// # Errors
    /// As [`Host::new`].
    pub fn host(self) -> Result<Host> {
        Ok(Host::new(if self.install { Install::Allowed } else { Install::Never })?)
    }
}

/// The program that raises a foreground in a guest
#[derive(Debug, Clone, Default, Args)]
pub struct Raiser {
    /// vlane-fg program [default: next to this program]
    #[arg(long, value_name = "FILE")]
    fg: Option<PathBuf>,
}

impl Raiser {
    /// Its file, beside vlane's own file unless it was given.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] if it is not there.
    pub fn find(&self, vlane: &Path) -> Result<PathBuf> {
        let fg = self.fg.clone().unwrap_or_else(|| vlane.with_file_name("vlane-fg"));
        if fg.is_file() {
            return Ok(fg);
        }
        ErrorKind::Missing.fail(format!(
            "{}: vlane-fg is not there; it is built with vlane (cargo build -p vlane-fg), or name \
             it with --fg",
            fg.display()
        ))
    }
}

/// Further options of `vlane serve`, checked by its own definition.
#[derive(Debug, Clone)]
pub struct Also(pub Vec<String>);

impl FromStr for Also {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if !words.first().is_some_and(|first| first.starts_with("--")) {
            return Err(format!(
                "`{text}` is not an option of `vlane serve`; write it like \"--poll-max 0\""
            ));
        }
        let command =
            Experiments::augment_args(ServeArgs::augment_args(clap::Command::new("serve")));
        let all = ["serve", "--null", "1G", "--socket", "s"].map(str::to_owned).into_iter();
        match command.try_get_matches_from(all.chain(words.clone())) {
            Ok(_) => Ok(Self(words)),
            Err(error) => {
                let said = error.to_string();
                let line = said.lines().next().unwrap_or_default();
                Err(format!("no options of `vlane serve`: {}", line.trim_start_matches("error: ")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn also_takes_options_of_serve_only() {
        for words in [
            "--delay-flush 1ms",
            "--cache pdc --journal direct",
            "--cache pdc --danger-flush-journal-only",
        ] {
            assert!(words.parse::<Also>().is_ok(), "{words}");
        }
        for words in ["", "poll-max 0", "--no-such-option", "--poll-max never"] {
            assert!(words.parse::<Also>().is_err(), "{words}");
        }
    }
}
