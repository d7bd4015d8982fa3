//! `vlane-lab prove sched-ext`: the sched_ext vehicle in a guest that has it.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use vlane_mechanisms::sched_ext::{self, Options};
use vlane_testbed::Interrupt;

use crate::output::{OutputArgs, command_line};

pub use vlane_mechanisms::sched_ext::Job;

/// Compare the sched_ext vehicle with the kernel's scheduler in a guest with sched_ext
///
/// Boots a guest for each round. 12 threads compute and one also gets events, on 2 CPUs, under the
/// kernel's scheduler and under the vehicle's policies, in turns. Then kills the loader repeatedly.
/// Needs qemu-system-x86_64 and a vlane built with `--features sched-ext`. Takes some minutes.
#[derive(Debug, Args)]
pub struct ProveArgs {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    output: OutputArgs,
}

/// This program's own file, if it has the vehicle.
fn own() -> anyhow::Result<PathBuf> {
    anyhow::ensure!(
        cfg!(feature = "sched-ext"),
        "sched_ext: this vlane was built without it; build it with `cargo build --package vlane \
         --features sched-ext` (needs make, pkg-config, libelf-dev and zlib1g-dev)"
    );
    std::env::current_exe().context("cannot find this program's own file")
}

/// Measures here, and prints `RESULT` lines.
pub fn measure(job: &Job) -> anyhow::Result<()> {
    Ok(sched_ext::measure(job, &own()?, &Interrupt::listen()?)?)
}

/// Boots the guest, and shows its report.
pub fn prove(args: &ProveArgs) -> anyhow::Result<()> {
    let own = own()?;
    args.output.check()?;
    let interrupt = Interrupt::listen()?;
    args.output.show(&sched_ext::prove(&args.options, &own, &command_line(), &interrupt)?)
}
