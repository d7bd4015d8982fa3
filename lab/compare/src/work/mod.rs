//! Why small requests are dear: calls of QEMU's virtio-blk functions for requests of 4 KiB and of
//! 512 KiB, in a guest. `vlane-lab compare host --work` is this measurement.
//!
//! A published measurement found 10.9 times (reads) and 27.7 times (writes) as many calls with 4K
//! as with 512K. It does not say if that was for the same bytes or the same time, so both ratios
//! are given here.

mod guest;
mod report;

use vlane_guest::{Accel, Host, Kernel, QemuProgram};
use vlane_report::{Arms, Report};
use vlane_testbed::{
    Call, Context, ErrorKind, Image, Place, Progress, Result, Rounds, image, in_turns,
};

use self::guest::{InGuest, Sample};
use crate::compare::{Options, choose_accel};

/// Sizes of the requests in KiB: large ones first, which small ones are compared with.
const BLOCKS: [u32; 2] = [512, 4];
/// Size of the image.
const IMAGE: u64 = 256 << 20;

/// Direction of the requests.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Direction {
    name: &'static str,
    /// As fio calls it.
    pattern: &'static str,
}

const DIRECTIONS: [Direction; 2] = [
    Direction { name: "random read", pattern: "randread" },
    Direction { name: "random write", pattern: "randwrite" },
];

/// The results: for each direction large and small requests.
struct Measured {
    accel: Accel,
    all: Vec<(Direction, Arms<Sample>)>,
    /// The reason why exits to the host are not counted.
    uncounted: Option<String>,
}

/// Measures three rounds, or `--repeat`, and makes a report. Without `--dir` it finds a RAM disk
/// for the image.
///
/// # Errors
/// [`ErrorKind::Missing`] without a program that is needed, [`ErrorKind::Invalid`] if there is no
/// room, [`ErrorKind::Interrupted`], and those of the guest. No file or process is left behind in
/// any case.
pub fn run(options: &Options, host: &Host, call: &Call<'_>) -> Result<Report> {
    let passes = options.repeats.unwrap_or(3);
    let (program, kernel) = (QemuProgram::find(host)?, Kernel::find(host)?);
    host.program("busybox")?;
    host.program("fio")?;
    let accel = choose_accel(options.accel, host, &program, &kernel)?;
    // The counts do not depend on the disk.
    let place = Place::find(image::Medium::Ram, options.dir.as_deref(), IMAGE, "--dir")?;
    let image: Image = place.image(IMAGE, call.interrupt)?;
    let sockets = tempfile::Builder::new().prefix("vlane-work-").tempdir();
    let sockets = sockets.context(ErrorKind::Io, || "cannot make a directory for sockets")?;
    let cases = DIRECTIONS.len() * BLOCKS.len() * passes;
    let mut progress = Progress::new(1 + cases);
    progress.step("booting a guest on QEMU's virtio-blk");
    let parts = (program, &kernel, &accel);
    let mut guest =
        InGuest::boot(host, parts, image.path(), sockets.path(), cases, call.interrupt)?;
    let arms = || Arms::once(BLOCKS.map(|block| format!("{block}K")));
    let mut all = DIRECTIONS.map(|direction| (direction, arms()));
    let rounds = Rounds::measure(passes, |pass| {
        for (direction, arms) in &mut all {
            in_turns(arms, pass, |at, arm| {
                progress.step(format!("in the guest: {arm} {}", direction.name));
                guest.measure(direction.pattern, BLOCKS[at] << 10, pass)
            })?;
        }
        Ok(())
    })?;
    progress.clear();
    all.iter_mut().for_each(|(_, arms)| arms.keep(rounds.whole()));
    let (accel, uncounted) = (accel.accel, guest.uncounted());
    guest.quit();
    let measured = Measured { accel, all: all.into(), uncounted };
    Ok(rounds.marked(report::fill(&measured, &call.begun)))
}
