//! Foundations of measurements: the CPUs, the images, the peer's program, and back ends started
//! alike.

use std::ffi::OsStr;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vlane_guest::Host;

use super::Options;
use super::plan::Medium;
use vlane_report::machine::usable_cpus;
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::image::{self, Image, Place};
use vlane_testbed::interrupt::Interrupt;
use vlane_testbed::server::{Aio, Server, Storage};

/// Size of the image on the RAM disk.
const RAM_BYTES: u64 = 1 << 30;
/// Size of the image on the disk.
const DISK_BYTES: u64 = 2 << 30;
/// How long the image of a back end that has ended may be locked, and when to look again.
const FREE: Duration = Duration::from_secs(5);
const AGAIN: Duration = Duration::from_millis(20);
/// Capacity of the null devices.
const NULL_BYTES: u64 = 16 << 30;

/// Common requirements of measurements.
#[derive(Debug)]
pub(super) struct Ground<'a> {
    options: &'a Options,
    /// For sockets and results.
    pub(super) dir: TempDir,
    qsd: Option<PathBuf>,
    /// The back ends' CPU.
    pub(super) server_cpu: usize,
    /// The CPU of who drives them.
    pub(super) driver_cpu: usize,
    ram: Option<Image>,
    disk: Option<Image>,
}

impl<'a> Ground<'a> {
    /// Makes ready what measurements on these media need; everything that can be missing is looked
    /// for before the images are written.
    pub(super) fn new(
        options: &'a Options,
        host: &Host,
        qsd: bool,
        media: &[Medium],
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let (server_cpu, driver_cpu) = cpus(options)?;
        host.program("taskset")?;
        let qsd = qsd.then(|| host.program("qemu-storage-daemon")).transpose()?;
        let place = |medium, wanted: &Option<PathBuf>, bytes, option| {
            Place::find(medium, wanted.as_deref(), bytes, option)
        };
        let ram = media
            .contains(&Medium::Ram)
            .then(|| place(image::Medium::Ram, &options.ram_dir, RAM_BYTES, "--ram-dir"))
            .transpose()?;
        let disk = media
            .contains(&Medium::Disk)
            .then(|| place(image::Medium::Disk, &options.disk_dir, DISK_BYTES, "--disk-dir"))
            .transpose()?;
        if ram.is_some() || disk.is_some() {
            // The output may have no reader.
            let _ = writeln!(std::io::stderr(), "writing the images");
        }
        Ok(Self {
            options,
            dir: tempfile::Builder::new()
                .prefix("vlane-peers-")
                .tempdir()
                .context(ErrorKind::Io, || "cannot make a directory for temporary files")?,
            qsd,
            server_cpu,
            driver_cpu,
            ram: ram.map(|place| place.image(RAM_BYTES, interrupt)).transpose()?,
            disk: disk.map(|place| place.image(DISK_BYTES, interrupt)).transpose()?,
        })
    }

    /// Storage of a back end on a medium.
    pub(super) fn storage(&self, medium: Medium) -> Result<Storage<'_>> {
        let (image, direct) = match medium {
            Medium::Null => return Ok(Storage::null(NULL_BYTES)),
            Medium::Slow { us } => {
                return Ok(Storage::Null { bytes: NULL_BYTES, latency: Duration::from_micros(us) });
            }
            Medium::Ram => (&self.ram, false),
            Medium::Disk => (&self.disk, true),
        };
        let image = image
            .as_ref()
            .ok_or_else(|| Error::new(ErrorKind::Invalid, "the image is not there"))?;
        Ok(Storage::File { path: image.path(), direct })
    }

    /// Starts vlane on a medium.
    pub(super) fn vlane<A: AsRef<OsStr>>(
        &self,
        medium: Medium,
        cpus: &[usize],
        arguments: &[A],
    ) -> Result<Server> {
        let storage = self.storage(medium)?;
        when_free(|| Server::vlane(&self.options.vlane, self.dir.path(), storage, cpus, arguments))
    }

    /// Starts qemu-storage-daemon on a medium; where that is a file, it reaches it by `aio`.
    pub(super) fn qsd(
        &self,
        medium: Medium,
        cpus: &[usize],
        queues: u16,
        aio: Aio,
    ) -> Result<Server> {
        let missing = || Error::new(ErrorKind::Missing, "qemu-storage-daemon is not there");
        let program = self.qsd.as_deref().ok_or_else(missing)?;
        let storage = self.storage(medium)?;
        when_free(|| {
            Server::qemu_storage_daemon_by(aio, program, self.dir.path(), storage, cpus, queues)
        })
    }
}

/// Starts a back end, with retries while it says that its image is locked. The kernel holds the
/// files of an ended process until its last requests have ended (io_uring). On a busy machine that
/// takes some moments.
fn when_free(start: impl Fn() -> Result<Server>) -> Result<Server> {
    let begin = Instant::now();
    loop {
        match start() {
            Err(error) if is_about_a_lock(&error) && begin.elapsed() < FREE => {
                std::thread::sleep(AGAIN)
            }
            result => return result,
        }
    }
}

fn is_about_a_lock(error: &Error) -> bool {
    let mut next: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = next {
        if error.to_string().contains("lock") {
            return true;
        }
        next = error.source();
    }
    false
}

/// The CPUs of server and driver.
fn cpus(options: &Options) -> Result<(usize, usize)> {
    let usable = usable_cpus()?;
    let server = options.server_cpu.or_else(|| usable.first().copied()).unwrap_or(0);
    let other = || usable.iter().copied().find(|cpu| *cpu != server);
    let driver = options.driver_cpu.or_else(other).unwrap_or(server);
    let invalid = |context: String| Err(Error::new(ErrorKind::Usage, context));
    for cpu in [server, driver] {
        if !usable.contains(&cpu) {
            return invalid(format!("CPU {cpu} cannot be used by this process; it has {usable:?}"));
        }
    }
    if server == driver {
        return invalid(format!(
            "back end and driver need a CPU each; this process has only CPU {server}"
        ));
    }
    Ok((server, driver))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn locked_image_is_retried_other_errors_fail() {
        let tries = Cell::new(0);
        let fails = |words: [&'static str; 3]| {
            tries.set(0);
            let error = when_free(|| {
                tries.set(tries.get() + 1);
                let cause = Error::new(ErrorKind::Process, words[(tries.get() - 1).min(2)]);
                Err(Error::caused_by(ErrorKind::Process, "it ended at once", cause))
            });
            (tries.get(), error.err().map(|error| error.kind()))
        };
        let process = Some(ErrorKind::Process);
        let locked = "Failed to get \"write\" lock";
        // A thread that is off the CPU for long gives up after fewer.
        assert!((0..3).any(|_| fails([locked, locked, "no such file"]) == (3, process)));
        assert_eq!(fails(["no such file"; 3]), (1, process));
    }
}
