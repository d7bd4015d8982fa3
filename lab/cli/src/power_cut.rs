//! `vlane-lab prove power-cut`: checks the states that a power cut can leave of a guest's file
//! system. For those who work on vlane.

use std::path::PathBuf;
use vlane_report::build::Begun;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use vlane_guest::{Host, Install};
use vlane_power_cut::{Arm, FileSystem, Found, Load, Machines, Options, Outcome};
use vlane_testbed::Interrupt;

use crate::output::{OutputArgs, command_line};
use crate::serve::CacheArg;
use crate::values;

/// Check the states that a power cut could leave of a guest's file system
///
/// A guest writes, and everything that reaches the storage is recorded. Its file system is then
/// checked in many states that a power cut could have left.
#[derive(Debug, Args)]
pub struct PowerCutArgs {
    /// Cache modes, each with its own volume [default: all but auto]
    ///
    /// There is one more volume for pdc with --journal direct.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    cache: Vec<CacheArg>,
    /// File systems of the guest
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_value = "ext4")]
    file_system: Vec<FileSystemArg>,
    /// Loads of the guest's programs, each on its own volumes
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_value = "files")]
    load: Vec<LoadArg>,
    /// Guest [default: uml; qemu for XFS, which User-Mode Linux lacks]
    #[arg(long, value_enum, value_name = "uml|qemu")]
    guest: Option<GuestArg>,
    /// Programs that write to each volume in parallel
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = values::whole::<u32>(1..=99))]
    workers: u32,
    /// Steps of each program
    ///
    /// With files, a step is a mail that comes and one that goes, a row of a table, and a record of
    /// a log. With mail, a step is three mails. With sqlite, it is a transaction.
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = values::whole::<u64>(1..=1_000_000))]
    steps: u64,
    /// States to check of each volume
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = values::whole::<usize>(1..=1_000_000))]
    states: usize,
    /// States of each volume to check with all flushes ignored, or 0 for none
    ///
    /// They test that the check finds broken states.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = values::whole::<usize>(0..=1_000_000))]
    broken_states: usize,
    /// Seed for the choice of states
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::whole::<u64>(0..))]
    seed: u64,
    /// Directory on a disk [default: the current one or /var/tmp]
    #[arg(long, value_name = "DIR")]
    disk_dir: Option<PathBuf>,
    /// Install missing programs by apt-get (as root)
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FileSystemArg {
    /// ext4, mounted without options
    Ext4,
    /// ext4 with its data in the journal
    Ext4Journal,
    /// XFS; needs root
    Xfs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LoadArg {
    /// A mix of mails, tables and logs
    Files,
    /// Deliveries to Maildirs: small files, each fsynced and renamed, and their directory
    Mail,
    /// SQLite with synchronous=FULL: odd programs with a write-ahead log, even ones with a rollback
    /// journal
    Sqlite,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum GuestArg {
    /// User-Mode Linux
    Uml,
    /// QEMU
    Qemu,
}

impl PowerCutArgs {
    fn options(&self) -> anyhow::Result<Options> {
        let all = || {
            CacheArg::value_variants()
                .iter()
                .filter(|mode| !matches!(mode, CacheArg::Auto))
                .copied()
        };
        let chosen: Vec<CacheArg> =
            if self.cache.is_empty() { all().collect() } else { self.cache.clone() };
        let name =
            |mode: &CacheArg| mode.to_possible_value().map(|value| value.get_name().to_owned());
        let mut modes: Vec<String> = chosen.iter().filter_map(name).collect();
        modes.dedup();
        let pdc = name(&CacheArg::Pdc);
        let of = |cache: String| {
            let has_both = Some(&cache) == pdc.as_ref();
            let arm = |is_direct| Arm { cache: cache.clone(), is_direct };
            [Some(arm(false)), has_both.then(|| arm(true))]
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
        };
        let file_systems = self.file_system.iter().map(|name| match name {
            FileSystemArg::Ext4 => FileSystem::Ext4,
            FileSystemArg::Ext4Journal => FileSystem::Ext4Journal,
            FileSystemArg::Xfs => FileSystem::Xfs,
        });
        let loads = self.load.iter().map(|load| match load {
            LoadArg::Files => Load::Files,
            LoadArg::Mail => Load::Mail,
            LoadArg::Sqlite => Load::Sqlite,
        });
        let mut wanted: Vec<Load> = Vec::new();
        loads.for_each(|load| {
            if !wanted.contains(&load) {
                wanted.push(load)
            }
        });
        let machines = self.guest.map(|guest| match guest {
            GuestArg::Uml => Machines::Uml,
            GuestArg::Qemu => Machines::Qemu,
        });
        Ok(Options {
            vlane: std::env::current_exe().context("cannot find this program's own file")?,
            arms: modes.into_iter().flat_map(of).collect(),
            file_systems: file_systems.collect(),
            loads: wanted,
            machines,
            workers: self.workers,
            steps: self.steps,
            states: self.states,
            broken_states: self.broken_states,
            seed: self.seed,
            disk_dir: self.disk_dir.clone(),
        })
    }
}

/// Runs the command.
///
/// # Errors
/// Obstacles to the check; and faults that it finds, after the report.
pub fn run(args: &PowerCutArgs) -> anyhow::Result<()> {
    args.output.check()?;
    let interrupt = Interrupt::listen()?;
    let host = Host::new(if args.install { Install::Allowed } else { Install::Never })?;
    let (options, begun) = (args.options()?, Begun::now(command_line()));
    let Found { outcomes, partial } = vlane_power_cut::run(&options, &host, &interrupt)?;
    let mut report = vlane_power_cut::report(&options, &outcomes, &begun);
    partial.into_iter().for_each(|missing| report.mark_partial(missing));
    let shown = args.output.show(&report);
    let name = |outcome: &Outcome| format!("{} with {}", outcome.what(), outcome.arm.name());
    let bad: Vec<String> = outcomes.iter().filter(|outcome| !outcome.is_good()).map(name).collect();
    match bad.is_empty() {
        true => shown,
        // It counts for more than a report that is partial, or a file that could not be written.
        false => bail!("broken states: {}; see the report", bad.join(", ")),
    }
}
