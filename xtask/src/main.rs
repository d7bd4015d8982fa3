//! `cargo xtask experiments`: repeats the experiments of the publications that vlane builds on, or
//! some of them.
//!
//! Each has a folder in `experiments/` with an `experiment.toml` (what it asks, the command, what
//! was published). Running one leaves the report of the run (`result.json`), its charts (`*.svg`)
//! and a page (`README.md`) beside it.

#![forbid(unsafe_code)]

mod bpf;
mod citations;
mod claim;
mod experiment;
mod map;
mod page;
mod picture;
mod prose;
mod published;
#[cfg(test)]
mod readme_tests;
mod rounds;
mod runner;
#[cfg(test)]
mod stored_tests;
mod structure;
mod texts;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// Work on the project that is not the product.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the experiments of the publications again, all or some
    Experiments(ExperimentsArgs),
    /// Compile the BPF programs again (needs clang and llvm-strip, 19 or later)
    Bpf,
    /// Check the house's rules (lengths, circles, the data path, links), and count lines
    Tidy,
    /// Draw the crates and their imports again (docs/src/structure.svg), and list the files of the
    /// data path (docs/src/architecture.md)
    Structure,
    /// Make docs/src/specification.md again: which sentence of the specifications is fulfilled
    /// where, and tested where
    Citations,
    /// Count how plain the English is, crate by crate
    Prose {
        /// Keep the present figures as the highest ones
        #[arg(long)]
        lower: bool,
    },
}

#[derive(Debug, Args)]
struct ExperimentsArgs {
    /// The experiments, by the names of their folders [default: all]
    names: Vec<String>,
    /// Name them, with the time they take, and end
    #[arg(long)]
    list: bool,
    /// Measure nothing: make the pages again from the results that are there
    #[arg(long)]
    pages: bool,
}

fn main() -> ExitCode {
    // Beside this crate, wherever cargo was called.
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new(".")).to_path_buf();
    let done = match Cli::parse().command {
        Command::Experiments(args) => runner::run(&root, &args.names, args.list, args.pages),
        Command::Bpf => bpf::compile(&root),
        Command::Tidy => tidy::run(&root),
        Command::Structure => map::run(&root),
        Command::Citations => citations::run(&root),
        Command::Prose { lower } => prose::run(&root, lower),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            match error.is::<runner::Partial>() {
                true => ExitCode::from(runner::PARTIAL),
                false => ExitCode::FAILURE,
            }
        }
    }
}
