//! `vlane-lab prove sched-ext`: the sched_ext vehicle in a guest that has it.

use std::path::PathBuf;

use anyhow::Context;
use vlane_mechanisms::sched_ext::{self, Options};
use vlane_testbed::Interrupt;

use crate::output::Reported;

pub use vlane_mechanisms::sched_ext::Job;

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
pub fn prove(args: &Reported<Options>) -> anyhow::Result<()> {
    own()?;
    args.run(sched_ext::prove)
}
