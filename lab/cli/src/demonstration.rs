//! `vlane-lab boot`: the product's `vlane boot`, with the built-in driver where no guest can be
//! booted.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::Result;
use clap::Parser;
use vlane::boot::{BootArgs, execute};

use crate::bench;

/// Runs the command. Where the demonstration finds no guest to boot, the built-in driver takes its
/// place.
pub fn run(args: BootArgs) -> Result<()> {
    execute(args, Some(drive)).map(drop)
}

/// The guest's part, played by the driver: writes, flushes, and checks the content.
fn drive(socket: &Path) -> Result<()> {
    println!(
        "The built-in driver takes the guest's place: the same rings and back end, no Linux \
         above.\ndriver  takes the guest's place: random writes and reads, every block's content \
         checked"
    );
    let options = "--verify --rw randrw --flush-every 32 --time 3s --yes-overwrite";
    let words = [OsStr::new("bench"), socket.as_os_str()];
    let words = words.into_iter().chain(options.split(' ').map(OsStr::new));
    bench::run(&DriverOnly::try_parse_from(words)?.bench)
}

/// The arguments of `vlane-lab bench`, outside the program's own command line.
#[derive(Debug, clap::Parser)]
struct DriverOnly {
    #[command(flatten)]
    bench: bench::BenchArgs,
}
