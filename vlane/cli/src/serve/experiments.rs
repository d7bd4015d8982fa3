//! Options of `vlane-lab serve` for experiments, which `vlane serve` does not have.
//!
//! The server is the same in both programs: a Cargo feature would be on for both when the whole
//! workspace is built, and no test could see the program without it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::values;

/// Experiments with a served volume.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Experiments")]
pub struct Experiments {
    /// Simulate a device with this service time: microseconds, or a time such as 1ms
    ///
    /// An image's own time is added. [default: no model]
    #[arg(long, value_name = "TIME", value_parser = values::time_in::<u64>("us", 1..=60_000_000))]
    pub(super) latency: Option<u64>,

    /// Requests that the simulated device serves in parallel
    #[arg(long, value_name = "N", requires = "latency", default_value_t = 1, value_parser = values::whole::<u16>(1..))]
    pub(super) parallel: u16,

    /// Order in which the simulated device serves requests
    #[arg(long, value_enum, value_name = "MODE", requires = "latency", default_value_t = DeviceQueuesArg::Shared)]
    pub(super) device_queues: DeviceQueuesArg,

    /// Delay each fdatasync of the image, to simulate a slower device
    ///
    /// Microseconds, or a time such as 1ms. [default: no delay]
    #[arg(long, value_name = "TIME", value_parser = values::time_in::<u64>("us", 0..=60_000_000))]
    pub(super) delay_flush: Option<u64>,

    /// Record everything that reaches the storage, with the data of all writes
    ///
    /// For tests and research. The file has the guest's data for everyone who can read it. The
    /// volume is slower, and stops while the file cannot be written fast enough.
    #[arg(long, value_name = "FILE", conflicts_with = "null")]
    pub(super) danger_record_storage: Option<PathBuf>,

    /// Let a guest's flush write only its file system's journal (--cache pdc; loses data)
    ///
    /// For experiments. The rule holds once the journal is found. Other flushed data can be lost
    /// when the host fails, and the file system can be damaged.
    #[arg(long)]
    pub(super) danger_flush_journal_only: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum DeviceQueuesArg {
    /// In order of arrival, over all lanes
    #[default]
    Shared,
    /// Round robin over the threads' submission queues, as an NVMe drive does
    RoundRobin,
}
