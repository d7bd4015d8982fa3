//! Guests that write: User-Mode Linux with ext4 on the volume, and this program in it.

use std::path::Path;
use std::time::Duration;

use vlane_guest::{Guest, Initramfs, Uml};

use super::bed::{Bed, bind, joined};
use super::job::{Done, needs_sqlite};
use super::plan::Job;
use vlane_testbed::{Error, ErrorKind, Interrupt, Result, wait};

/// Guests beside a busy host boot slowly, and then make their files.
const READY: Duration = Duration::from_secs(180);
/// Time that a job may exceed its duration by: its last wait for the storage.
const LATE: Duration = Duration::from_secs(60);

/// Uses all the guest's memory once. The first process to touch a page of it pays for it. If that
/// were the back end, guest memory would displace page cache in the back ends' cgroup.
pub(crate) const TOUCH_MEMORY: &str = r"
set -e
mkdir -p /fill
mount -t tmpfs -o size=100% fill /fill
free=$(sed -n 's/^MemFree: *\([0-9]*\) kB/\1/p' /proc/meminfo)
dd if=/dev/zero of=/fill/all bs=1M count=$((free / 1024 - 64)) 2>/dev/null || true
umount /fill
";
const MOUNT: &str = "mount -t ext4 -o noinit_itable /dev/vda /mnt
";

impl Bed<'_> {
    /// Starts a guest on a volume and on the CPUs of who writes, and waits until its files are
    /// made. It begins at a line. It does its job for the second of two times, after the first one,
    /// which does not count.
    ///
    /// # Errors
    /// Those of the guest; [`ErrorKind::Process`] with what it said, [`ErrorKind::Interrupted`].
    pub fn boot(
        &self,
        job: Job,
        socket: &Path,
        (ramp, time): (Duration, Duration),
        say: &mut dyn FnMut(&str),
    ) -> Result<Guest> {
        say("the guest boots, and makes its files");
        let missing = || Error::new(ErrorKind::Missing, "there is no guest");
        let program = self.guests.ok_or_else(missing)?;
        let script = format!(
            "{TOUCH_MEMORY}{MOUNT}vlane caches-job {} --dir /mnt --ramp {}ms --time {}ms\n",
            job.name(),
            ramp.as_millis(),
            time.as_millis()
        );
        let mut guest = Initramfs::new(script).program_at("vlane", self.vlane);
        if needs_sqlite(job) {
            guest = guest.programs(["sqlite3"]);
        }
        let machine = Uml::new(program.clone(), [socket.to_path_buf()]);
        // It inherits the CPUs of the thread that starts it.
        let start = || {
            bind(self.writer_cpus)?;
            Ok(machine.start_with(self.host, &guest, READY + ramp + time + LATE, None)?)
        };
        let mut guest = std::thread::scope(|scope| joined(scope.spawn(start).join()))?;
        wait(&mut guest, "ready", READY, self.interrupt)?;
        say("");
        Ok(guest)
    }
}

/// Waits for a guest's end, which is due after so much time.
///
/// # Errors
/// As [`Bed::boot`].
pub fn finish(mut guest: Guest, time: Duration, interrupt: &Interrupt) -> Result<Done> {
    wait(&mut guest, "p99_us", time + LATE, interrupt)?;
    let results = guest.results();
    let number = |key: &str| results.get(key).and_then(|value| value.parse::<f64>().ok());
    let missing = || Error::new(ErrorKind::Process, "the guest did not report its figures");
    let (per_second, p99_us) = number("per_second").zip(number("p99_us")).ok_or_else(missing)?;
    Ok(Done { per_second, p99_us })
}
