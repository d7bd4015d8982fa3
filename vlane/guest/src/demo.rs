//! The demonstration: a guest makes a file system on a volume, works on it, comes back to it, and
//! the host checks.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::console::Echo;
use crate::error::{Error, ErrorKind, Result, io};
use crate::ext4;
use crate::guest::{Guest, Report};
use crate::host::Host;
use crate::initramfs::Initramfs;
use crate::kernel::Kernel;
use crate::process::run_ok;
use crate::qemu::Qemu;

/// The volume's size: sparse, so it costs what the guest writes.
pub const VOLUME_BYTES: u64 = 1 << 30;
/// Longer than the slowest emulated guest that was seen, by a factor of ten.
const LIMIT: Duration = Duration::from_secs(180);
/// The file whose content the host compares by itself.
const WITNESS: &str = "/demo/file-07";

const SCRIPT: &str = r#"
set -e
say() { echo "  guest: $*"; }
now() { cut -d' ' -f1 /proc/uptime; }
echo "RESULT booted=$(now)"
echo "RESULT kernel=$(uname -r)"
echo "RESULT queues=$(ls /sys/block/vda/mq | wc -l)"
say "Linux $(uname -r), $(nproc) vCPUs, /dev/vda of $(($(cat /sys/block/vda/size) / 2048)) MiB with $(ls /sys/block/vda/mq | wc -l) queues"
say "making an ext4 file system"
mkfs.ext4 -q -F /dev/vda
mount /dev/vda /mnt
say "writing 24 files"
mkdir /mnt/demo
n=0
while [ $n -lt 24 ]; do
    dd if=/dev/urandom of=/mnt/demo/file-$(printf %02d $n) bs=64k count=16 2>/dev/null
    n=$((n + 1))
done
cd /mnt/demo
sha256sum file-* > /tmp/sums
cp /tmp/sums SUMS
cd /
sync
umount /mnt
echo 3 > /proc/sys/vm/drop_caches
say "unmounted; mounting again and reading everything back from the disk"
mount -o ro /dev/vda /mnt
cmp /tmp/sums /mnt/demo/SUMS
cd /mnt/demo
sha256sum -c SUMS > /tmp/checked
cd /
grep -c ': OK$' /tmp/checked | { read -r ok; echo "RESULT files_ok=$ok"; }
echo "RESULT witness=$(sha256sum /mnt/demo/file-07 | cut -d' ' -f1)"
umount /mnt
echo "RESULT done=$(now)"
say "all checksums are right; powering off"
"#;

/// A directory for a socket and a demonstration volume, deleted with what is in it when it is
/// dropped.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Scratch {
    /// A new directory below the system's directory for temporary files.
    pub fn new() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("vlane-boot-").tempdir();
        directory.map(Self).map_err(io(|| {
            format!(
                "{}: no temporary directory can be made; set TMPDIR",
                std::env::temp_dir().display()
            )
        }))
    }

    /// A path in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A new empty volume of [`VOLUME_BYTES`], sparse.
    pub fn volume(&self) -> Result<PathBuf> {
        let path = self.path("demo.raw");
        File::create_new(&path).and_then(|file| file.set_len(VOLUME_BYTES)).map_err(io(|| {
            format!("{}: the demonstration's volume cannot be made", path.display())
        }))?;
        Ok(path)
    }
}

/// Result of the demonstration.
#[derive(Debug)]
pub struct Demo {
    /// The guest's kernel.
    pub kernel: String,
    /// Queues that the guest uses.
    pub queues: u16,
    /// Files that the guest read back with the right checksum.
    pub files: u32,
    /// From the start of the machine to its end.
    pub guest_took: Duration,
}

/// Starts the demonstration's guest on `qemu`, which need not be bootable by itself. Lines on its
/// console that begin with `guest:` report its progress.
pub fn start(host: &Host, qemu: Qemu, kernel: &Kernel, echo: Option<Echo>) -> Result<Guest> {
    let guest = Initramfs::new(SCRIPT).programs(["mkfs.ext4"]);
    qemu.start_with(host, kernel, &guest, LIMIT, echo)
}

/// Judges what the guest reported, and checks the volume from the host's side: e2fsck, and one
/// file's content.
///
/// The back end must have written everything (be stopped, or idle) before this looks at `image`.
pub fn judge(host: &Host, report: &Report, image: &Path) -> Result<Demo> {
    report.script_ok()?;
    let number = |key: &str| -> Result<u32> {
        let text = report.result(key)?;
        text.parse().map_err(|e| {
            Error::caused_by(ErrorKind::Process, format!("the guest reported {key}={text}"), e)
        })
    };
    ext4::check(host, image)?;
    let content = ext4::read_file(host, image, WITNESS)?;
    let file = tempfile::NamedTempFile::new()
        .and_then(|f| std::fs::write(f.path(), &content).map(|()| f))
        .map_err(io(|| "no temporary file"))?;
    let said = run_ok(Command::new("sha256sum").arg(file.path()), Duration::from_secs(60))?;
    let ours = said.split_whitespace().next().unwrap_or_default();
    let theirs = report.result("witness")?;
    if ours != theirs {
        return Err(Error::new(
            ErrorKind::Process,
            format!(
                "{}: {WITNESS} has checksum {ours} on the host and {theirs} in the guest",
                image.display()
            ),
        ));
    }
    Ok(Demo {
        kernel: report.result("kernel")?.to_string(),
        queues: u16::try_from(number("queues")?).unwrap_or(u16::MAX),
        files: number("files_ok")?,
        guest_took: report.elapsed,
    })
}
