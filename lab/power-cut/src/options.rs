//! The options of the command.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use vlane::serve::CacheArg;
use vlane::values::whole;
use vlane_testbed::{Installs, Machines, distinct, word};

use super::{FileSystem, Load};

/// Most steps and states.
const MOST: u64 = 1_000_000;

/// The recorded volumes, and the states of each.
#[derive(Debug, Args)]
pub struct Options {
    /// Cache modes, each with its own volume [default: all but auto]
    ///
    /// There is one more volume for pdc with --journal direct.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    pub cache: Vec<CacheArg>,
    /// File systems of the guest
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_value = "ext4")]
    pub file_system: Vec<FileSystem>,
    /// Loads of the guest's programs, each on its own volumes
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_value = "files")]
    pub load: Vec<Load>,
    /// Guest [default: uml; qemu for XFS, which User-Mode Linux lacks]
    #[arg(long, value_name = "uml|qemu", value_enum)]
    pub guest: Option<Machines>,
    /// Programs that write to each volume in parallel
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = whole::<u32>(1..=99))]
    pub workers: u32,
    /// Steps of each program
    ///
    /// With files, a step is a mail that comes and one that goes, a row of a table, and a record of
    /// a log. With mail, a step is three mails. With sqlite, it is a transaction.
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = whole::<u64>(1..=MOST))]
    pub steps: u64,
    /// States to check of each volume
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = whole::<usize>(1..=MOST))]
    pub states: usize,
    /// States of each volume to check with all flushes ignored, or 0 for none
    ///
    /// They test that the check finds broken states.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = whole::<usize>(0..=MOST))]
    pub broken_states: usize,
    /// Seed for the choice of states
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole::<u64>(0..))]
    pub seed: u64,
    /// Directory on a disk [default: the current one or /var/tmp]
    #[arg(long, value_name = "DIR")]
    pub disk_dir: Option<PathBuf>,
    /// Permission to install missing programs.
    #[command(flatten)]
    pub installs: Installs,
}

/// A way to serve a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arm {
    /// As `--cache` of `vlane serve` has it.
    pub cache: String,
    /// `--journal direct`: the journal is read and written around the page cache.
    pub is_direct: bool,
}

impl Arm {
    /// Its name, also for files.
    pub fn name(&self) -> String {
        format!("{}{}", self.cache, if self.is_direct { "-direct" } else { "" })
    }
}

impl Options {
    /// A volume of the guest for each, and for each load.
    pub(super) fn arms(&self) -> Vec<Arm> {
        let all = CacheArg::value_variants().iter();
        let all = all.filter(|mode| !matches!(mode, CacheArg::Auto));
        let mut modes: Vec<String> = match self.cache.is_empty() {
            true => all.copied().map(word).collect(),
            false => self.cache.iter().copied().map(word).collect(),
        };
        modes.dedup();
        let pdc = word(CacheArg::Pdc);
        let of = |cache: String| {
            let direct = (cache == pdc).then(|| Arm { cache: cache.clone(), is_direct: true });
            std::iter::once(Arm { cache, is_direct: false }).chain(direct)
        };
        modes.into_iter().flat_map(of).collect()
    }

    /// The loads of its programs, each once.
    pub(super) fn loads(&self) -> Vec<Load> {
        distinct(self.load.clone())
    }

    /// A volume for each load and each way to serve one.
    pub(super) fn volumes(&self) -> Vec<(Arm, Load)> {
        let of = |load| self.arms().into_iter().map(move |arm| (arm, load));
        self.loads().into_iter().flat_map(of).collect()
    }
}
