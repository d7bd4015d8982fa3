//! `vlane-lab prove express`: measures foreground first. [`vlane_mechanisms::express`] describes
//! the measurement.

use clap::Subcommand;
use vlane_mechanisms::express::{fsync, guests, launch, native};

use crate::output::Reported;

/// Measure the foreground's gain and the background's loss with express classes
///
/// Compares `serve --classes` and `vlane-fg` with the baseline. A crowd of background readers has
/// one request each in flight, and one foreground reader is measured. The device is a model of a
/// drive with one queue per back-end thread.
#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "one is made, once")]
pub enum Express {
    /// Measure the back end alone: this program reads on many queues
    Native(Reported<native::Options>),
    /// Measure a program in a guest, as a shell's foreground job, in the paper's five variants
    Guests(Reported<guests::Options>),
    /// Measure the start of real programs in a guest with a cold cache
    Launch(Reported<launch::Options>),
    /// Measure fsyncs of a program in a guest's foreground, and each of their requests
    Fsync(Reported<fsync::Options>),
}

/// Runs the command.
///
/// # Errors
/// Obstacles to the measurements, or to writing the report.
pub fn run(express: &Express) -> anyhow::Result<()> {
    match express {
        Express::Native(args) => args.run(native::run),
        Express::Guests(args) => args.run(guests::run),
        Express::Launch(args) => args.run(launch::run),
        Express::Fsync(args) => args.run(fsync::run),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_list_the_valid_ones() {
        let said = |words: &[&str]| {
            let command = Express::augment_subcommands(clap::Command::new("express"));
            let words = std::iter::once("express").chain(words.iter().copied());
            command
                .try_get_matches_from(words)
                .map_or_else(|error| error.to_string(), |_| String::new())
        };
        assert!(said(&["guests", "--variants", "fast"]).contains("cpu+io"));
        assert!(said(&["guests", "--where", "xen"]).contains("uml"));
        assert!(said(&["launch", "--programs", "emacs"]).contains("vim"));
        assert!(said(&["fsync", "--syncs", "0"]).contains("--syncs"));
        assert!(said(&["native", "--modes", "all"]).contains("shortest"));
        assert!(said(&["native", "--loads", "odd"]).contains("uneven"));
    }
}
