//! Guests that write: User-Mode Linux with ext4 on the volume, and this program in it.

use std::path::Path;
use std::time::Duration;

use vlane_guest::{Guest, Host, Initramfs, Uml, UmlProgram};

use super::Options;
use super::done::Done;
use super::plan::Job;
use vlane_testbed::error::{Error, ErrorKind, Result};
use vlane_testbed::guests::wait;
use vlane_testbed::interrupt::Interrupt;

/// Guests beside a busy host boot slowly, and then make their files.
const READY: Duration = Duration::from_secs(180);
/// Time that a job may exceed its duration by: its last wait for the storage.
const LATE: Duration = Duration::from_secs(60);

/// Mounts the volume and does the job. First the guest uses all its memory once. The first process
/// to touch a page of it pays for it. If that were the back end, guest memory would displace page
/// cache in the back ends' cgroup.
const SCRIPT: &str = r"
set -e
mkdir -p /fill
mount -t tmpfs -o size=100% fill /fill
free=$(sed -n 's/^MemFree: *\([0-9]*\) kB/\1/p' /proc/meminfo)
dd if=/dev/zero of=/fill/all bs=1M count=$((free / 1024 - 64)) 2>/dev/null || true
umount /fill
mount -t ext4 -o noinit_itable /dev/vda /mnt
";

/// Where guests come from.
#[derive(Debug)]
pub struct Maker {
    host: Host,
    program: UmlProgram,
}

/// A guest that runs.
#[derive(Debug)]
pub struct Running {
    guest: Guest,
    time: Duration,
}

impl Maker {
    /// Looks for everything that guests need for some jobs.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`] if it is not there and may not be installed.
    pub fn find(host: &Host, jobs: &[Job]) -> Result<Self> {
        host.program("busybox")?;
        if jobs.iter().any(|job| needs_sqlite(*job)) {
            host.program("sqlite3")?;
        }
        Ok(Self { host: host.clone(), program: UmlProgram::find(host)? })
    }

    /// Starts one on a volume.
    ///
    /// # Errors
    /// Those of the guest.
    pub fn start(&self, options: &Options, socket: &Path, job: Job) -> Result<Running> {
        let ms = |time: Duration| format!("{}ms", time.as_millis());
        let script = format!(
            "{SCRIPT}vlane caches-job {} --dir /mnt --ramp {} --time {}\n",
            job.name(),
            ms(options.ramp),
            ms(options.time)
        );
        let mut guest = Initramfs::new(script).program_at("vlane", &options.vlane);
        if needs_sqlite(job) {
            guest = guest.programs(["sqlite3"]);
        }
        let machine = Uml::new(self.program.clone(), [socket.to_path_buf()]);
        let time = options.ramp + options.time;
        let guest = machine.start_with(&self.host, &guest, READY + time + LATE, None)?;
        Ok(Running { guest, time })
    }

    /// The kind of the guests, for people.
    pub fn describe(&self) -> String {
        format!("User-Mode Linux {}", self.program.version)
    }
}

fn needs_sqlite(job: Job) -> bool {
    matches!(job, Job::OltpRollback | Job::OltpWal | Job::Graph | Job::Mobile)
}

impl Running {
    /// Waits until its files are made.
    ///
    /// # Errors
    /// [`ErrorKind::Process`] with what the guest said, [`ErrorKind::Interrupted`].
    pub fn ready(&mut self, interrupt: &Interrupt) -> Result<()> {
        wait(&mut self.guest, "ready", READY, interrupt).map(drop)
    }

    /// Lets it begin.
    ///
    /// # Errors
    /// [`ErrorKind::Process`] if it is gone.
    pub fn begin(&mut self) -> Result<()> {
        Ok(self.guest.send("go\n")?)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// As [`Running::ready`].
    pub fn finish(&mut self, interrupt: &Interrupt) -> Result<Done> {
        wait(&mut self.guest, "p99_us", self.time + LATE, interrupt)?;
        let results = self.guest.results();
        let number = |key: &str| results.get(key).and_then(|value| value.parse::<f64>().ok());
        let (per_second, p99_us) = number("per_second").zip(number("p99_us")).ok_or_else(|| {
            Error::new(ErrorKind::Process, "the guest did not report its figures")
        })?;
        // It is not needed any more, and its file system neither.
        self.guest.kill();
        Ok(Done { per_second, p99_us })
    }
}
