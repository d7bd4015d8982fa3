//! `vlane work`: where it goes, for small and for large requests.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use vlane_boot::{Accel, Host, Install};
use vlane_host::Interrupt;
use vlane_lab::work::{self, Medium, Options};

use crate::output::OutputArgs;
use crate::values;

/// Count the work per request: 4K against 512K, back ends and a guest
///
/// Moves the same bytes on vlane, on qemu-storage-daemon, and on QEMU's own virtio-blk in a guest.
/// Takes a minute or two. Counts of system calls and KVM exits need root.
#[derive(Debug, Args)]
pub struct WorkArgs {
    /// Bytes that each native measurement moves
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_bytes)]
    bytes: u64,
    /// Bytes that each measurement in the guest moves
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = parse_bytes)]
    guest_bytes: u64,
    /// Leave out the guest
    #[arg(long)]
    no_guest: bool,
    /// Requests in flight
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = values::whole::<u16>(1..=1024))]
    depth: u16,
    /// Number of native measurements
    #[arg(long = "repeat", alias = "repeats", value_name = "N", default_value_t = 3, value_parser = values::whole::<u16>(1..=100))]
    repeats: u16,
    /// Media for the data
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, default_value = "null,ram")]
    media: Vec<MediumArg>,
    /// Directory on a RAM disk (tmpfs) [default: /dev/shm or another]
    #[arg(long, value_name = "DIR")]
    ram_dir: Option<PathBuf>,
    /// Directory on a disk [default: the current one or /var/tmp]
    #[arg(long, value_name = "DIR")]
    disk_dir: Option<PathBuf>,
    /// Run the guest under emulation without trying KVM
    #[arg(long)]
    tcg: bool,
    /// Install missing programs by apt-get (as root), and a guest kernel into the cache directory
    #[arg(long)]
    install: bool,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum MediumArg {
    /// A null device
    Null,
    /// A file on a RAM disk, through the page cache
    Ram,
    /// A file on a disk, direct I/O
    Disk,
}

/// Parses how much is to be moved: in whole requests of the large size, and some of them.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let bytes = values::size(text)?;
    match bytes >= 2 << 20 && bytes.is_multiple_of(512 << 10) {
        true => Ok(bytes),
        false => Err(format!("{bytes} bytes are not a multiple of 512K, and at least 2M")),
    }
}

impl WorkArgs {
    fn options(&self) -> anyhow::Result<Options> {
        let mut media = Vec::new();
        for medium in &self.media {
            let medium = match medium {
                MediumArg::Null => Medium::Null,
                MediumArg::Ram => Medium::Ram,
                MediumArg::Disk => Medium::Disk,
            };
            if !media.contains(&medium) {
                media.push(medium);
            }
        }
        let words: Vec<String> =
            std::env::args_os().skip(1).map(|word| vlane_boot::quote(&word.to_string_lossy())).collect();
        Ok(Options {
            vlane: std::env::current_exe().context("cannot find this program's own file")?,
            command: format!("vlane {}", words.join(" ")),
            bytes: self.bytes,
            guest_bytes: (!self.no_guest).then_some(self.guest_bytes),
            depth: self.depth,
            passes: usize::from(self.repeats),
            media,
            ram_dir: self.ram_dir.clone(),
            disk_dir: self.disk_dir.clone(),
            accel: self.tcg.then_some(Accel::Tcg),
        })
    }
}

/// Runs the command.
///
/// # Errors
/// Obstacles to the measurements, or to writing the report.
pub fn run(args: &WorkArgs) -> anyhow::Result<()> {
    args.output.check()?;
    let interrupt = Interrupt::listen()?;
    let host = Host::new(if args.install { Install::Allowed } else { Install::Never })?;
    let report = work::run(&args.options()?, &host, &interrupt)?;
    args.output.show(&report)
}
