//! Why small requests are dear: the same bytes in requests of 4 KiB and of 512 KiB, and the work that each takes.
//!
//! A published measurement found 10.9 times (reads) and 27.7 times (writes) as many calls of QEMU's
//! virtio-blk functions with 4K as with 512K. It does not say if that was for the same bytes or the
//! same time, so both ratios are given here. They are measured for the back ends alone, driven
//! natively ([`native`]), and for QEMU's own virtio-blk in a guest ([`guest`]), whose functions are
//! the published ones.

pub mod guest;
pub mod native;
mod report;

use std::path::PathBuf;

use vlane_boot::{Accel, Choice, Host, Kernel, QemuProgram, find_program};

use self::guest::GuestMeasured;
use self::native::{Measured, Native};
use vlane_client::progress::Progress;
use vlane_host::error::{Context, Error, ErrorKind, Result};
use vlane_host::image::{self, Image, Place};
use vlane_host::interrupt::Interrupt;
use vlane_report::Report;
use vlane_report::build::Begun;

/// The small requests, in bytes.
pub const SMALL: u32 = 4 << 10;
/// The large ones.
pub const LARGE: u32 = 512 << 10;
/// Both.
pub const BLOCKS: [u32; 2] = [SMALL, LARGE];

/// Direction of the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Random reads.
    Read,
    /// Random writes.
    Write,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Read, Self::Write];

    /// For people.
    pub fn name(self) -> &'static str {
        self.parts().0
    }

    /// As fio and the driver call it.
    pub fn pattern(self) -> &'static str {
        self.parts().1
    }

    /// The published ratio of function calls, 4K to 512K.
    pub fn published(self) -> f64 {
        self.parts().2
    }

    fn parts(self) -> (&'static str, &'static str, f64) {
        match self {
            Self::Read => ("random read", "randread", 10.87),
            Self::Write => ("random write", "randwrite", 27.7),
        }
    }
}

/// Where the data are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    /// Nowhere: a null device.
    Null,
    /// In a file on a RAM disk, through the page cache.
    Ram,
    /// In a file on a disk, around the page cache.
    Disk,
}

impl Medium {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Null => "null device",
            Self::Ram => "RAM disk",
            Self::Disk => "disk, direct I/O",
        }
    }
}

/// Options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// vlane's own program.
    pub vlane: PathBuf,
    /// The command that makes this report again.
    pub command: String,
    /// Bytes that each native measurement moves.
    pub bytes: u64,
    /// Bytes that each measurement in the guest moves; `None`: no guest.
    pub guest_bytes: Option<u64>,
    /// Requests out at once.
    pub depth: u16,
    /// How often everything is measured natively.
    pub passes: usize,
    /// Where the data are, natively.
    pub media: Vec<Medium>,
    /// A directory on a RAM disk; `None` finds one.
    pub ram_dir: Option<PathBuf>,
    /// A directory on a disk; `None` finds one.
    pub disk_dir: Option<PathBuf>,
    /// How the guest's instructions are executed; `None` tries KVM.
    pub accel: Option<Accel>,
}

/// Everything that came of it.
#[derive(Debug)]
struct Outcome {
    native: Vec<Measured>,
    guest: Vec<GuestMeasured>,
    /// How the guest's instructions were executed.
    accel: Option<Choice>,
    /// Missing measurements, with reasons.
    missing: Vec<String>,
}

/// Measures, and makes a report.
///
/// # Errors
/// [`ErrorKind::Invalid`] if there is no room or the sizes make no sense,
/// [`ErrorKind::Interrupted`], and those of starting and driving back ends. A guest or a peer that
/// cannot be had is a note in the report. No file or process is left behind in any case.
pub fn run(options: &Options, host: &Host, interrupt: &Interrupt) -> Result<Report> {
    let begun = Begun::now(&options.command);
    for bytes in [Some(options.bytes), options.guest_bytes].into_iter().flatten() {
        if bytes < u64::from(LARGE) * 4 || !bytes.is_multiple_of(u64::from(LARGE)) {
            let context = format!("{bytes} bytes to move: not a multiple of 512K, and at least 2M");
            return Err(Error::new(ErrorKind::Usage, context));
        }
    }
    if options.passes == 0 || options.media.is_empty() {
        return Err(Error::new(ErrorKind::Invalid, "no measurement is left: no pass, or no medium"));
    }
    let storage_daemon = find_program("qemu-storage-daemon");
    let mut missing = Vec::new();
    if storage_daemon.is_none() {
        missing
            .push("qemu-storage-daemon is not installed (Debian: apt-get install qemu-system-common)".into());
    }
    let guest = options.guest_bytes.and_then(|bytes| {
        let parts = find_guest(options, host).map_err(|error| missing.push(format!("no guest: {error}")));
        Some((bytes, parts.ok()?))
    });
    let image_of = |medium: image::Medium, dir: Option<&PathBuf>, option: &str| -> Result<Image> {
        let place = Place::find(medium, dir.map(PathBuf::as_path), IMAGE, option)?;
        place.image(IMAGE, interrupt)
    };
    let (ram_dir, disk_dir) = (options.ram_dir.as_ref(), options.disk_dir.as_ref());
    let image_for = |medium: Medium, kind, dir, option| {
        options.media.contains(&medium).then(|| image_of(kind, dir, option)).transpose()
    };
    let ram = image_for(Medium::Ram, image::Medium::Ram, ram_dir, "--ram-dir")?;
    let disk = image_for(Medium::Disk, image::Medium::Disk, disk_dir, "--disk-dir")?;

    let dir = tempfile::Builder::new().prefix("vlane-work-").tempdir();
    let dir = dir.context(ErrorKind::Io, || "cannot make a directory for sockets")?;
    let native = Native {
        options,
        storage_daemon,
        dir: dir.path(),
        ram: ram.as_ref().map(Image::path),
        disk: disk.as_ref().map(Image::path),
        interrupt,
    };
    let mut progress =
        Progress::new(native.steps() + guest.as_ref().map_or(0, |_| guest::steps(options.passes)));
    let (measured, rounds) = native.run(&mut progress)?;
    let mut partial = rounds.missing();
    let mut accel = None;
    let mut in_guest = Vec::new();
    if let (Some((bytes, parts)), None) = (guest, &partial) {
        // On the RAM disk if there is one: it is the work that counts, not the disk.
        let own =
            if ram.is_none() { Some(image_of(image::Medium::Ram, ram_dir, "--ram-dir")?) } else { None };
        let image = own.as_ref().or(ram.as_ref());
        let image = image.ok_or_else(|| Error::new(ErrorKind::Invalid, "no image for the guest"))?;
        match guest::measure(&parts, image.path(), dir.path(), bytes, options, interrupt, &mut progress) {
            Ok((measured, rounds)) => {
                (in_guest, accel) = (measured, Some(parts.accel));
                partial = rounds.missing();
            }
            Err(error) => partial = Some(format!("PARTIAL: the guest is missing: {error}")),
        }
    }
    progress.clear();
    let outcome = Outcome { native: measured, guest: in_guest, accel, missing };
    let mut programs = vec!["qemu-storage-daemon"];
    if !outcome.guest.is_empty() {
        programs.extend(["qemu-system-x86_64", "fio"]);
    }
    let mut report = report::fill(&outcome, options, &begun, &programs);
    partial.into_iter().for_each(|missing| report.mark_partial(missing));
    Ok(report)
}

/// Size of each image.
const IMAGE: u64 = 256 << 20;

fn find_guest<'a>(options: &Options, host: &'a Host) -> Result<guest::Parts<'a>> {
    let program = QemuProgram::find(host)?;
    let kernel = Kernel::find(host)?;
    host.program("busybox")?;
    host.program("fio")?;
    let accel = match options.accel {
        Some(accel) => Choice { accel, why: "as asked for".into() },
        None => Choice::probe(host, &program, &kernel)?,
    };
    Ok(guest::Parts { host, program, kernel, accel })
}
