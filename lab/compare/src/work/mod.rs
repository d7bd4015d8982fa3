//! Why small requests are dear: calls of QEMU's virtio-blk functions for requests of 4 KiB and of
//! 512 KiB, in a guest. `vlane-lab compare host --work` is this measurement.
//!
//! A published measurement found 10.9 times (reads) and 27.7 times (writes) as many calls with 4K
//! as with 512K. It does not say if that was for the same bytes or the same time, so both ratios
//! are given here.

mod guest;
mod report;

use std::path::PathBuf;

use vlane_client::progress::Progress;
use vlane_guest::{Accel, Choice, Host, Kernel, QemuProgram};
use vlane_report::Report;
use vlane_report::build::Begun;
use vlane_testbed::error::{Context, ErrorKind, Result};
use vlane_testbed::image::{self, Image, Place};
use vlane_testbed::interrupt::Interrupt;

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

/// Options of the measurement.
#[derive(Debug, Clone)]
pub struct Options {
    /// The command that makes this report again.
    pub command: String,
    /// Rounds.
    pub passes: usize,
    /// A directory for the guest's image; `None` finds one on a RAM disk.
    pub dir: Option<PathBuf>,
    /// How the guest's instructions are executed; `None` tries KVM.
    pub accel: Option<Accel>,
}

/// Measures, and makes a report.
///
/// # Errors
/// [`ErrorKind::Missing`] without a program that is needed, [`ErrorKind::Invalid`] if there is no
/// room, [`ErrorKind::Interrupted`], and those of the guest. No file or process is left behind in
/// any case.
pub fn run(options: &Options, host: &Host, interrupt: &Interrupt) -> Result<Report> {
    let begun = Begun::now(&options.command);
    let parts = find_guest(options, host)?;
    // The counts do not depend on the disk.
    let place = Place::find(image::Medium::Ram, options.dir.as_deref(), IMAGE, "--dir")?;
    let image: Image = place.image(IMAGE, interrupt)?;
    let dir = tempfile::Builder::new().prefix("vlane-work-").tempdir();
    let dir = dir.context(ErrorKind::Io, || "cannot make a directory for sockets")?;
    let mut progress = Progress::new(guest::steps(options.passes));
    let (measured, rounds) =
        guest::measure(&parts, image.path(), dir.path(), options.passes, interrupt, &mut progress)?;
    progress.clear();
    let mut report = report::fill(&measured, parts.accel.accel, &begun);
    rounds.mark(&mut report);
    Ok(report)
}

/// Size of the image.
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
