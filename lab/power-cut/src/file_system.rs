//! File systems after a power cut: their repair, and the check that the repair is complete.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use vlane_guest::{Host, Output};

use vlane_testbed::{At, Context, ErrorKind, Fail, Machines, Result};

/// How long a tool may take for a small image.
const LIMIT: Duration = Duration::from_secs(60);
/// Time that an unused file system may still be busy.
const BUSY: Duration = Duration::from_secs(10);

/// Which file system the guest has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FileSystem {
    /// ext4, mounted without options
    Ext4,
    /// ext4 with its data in the journal
    Ext4Journal,
    /// XFS; needs root
    Xfs,
}

/// Names and needs of a file system.
#[derive(Debug)]
pub struct Facts {
    /// Its name for people.
    pub name: &'static str,
    /// Its name for `mount -t`.
    pub kind: &'static str,
    /// The guest's mount options.
    pub mount_options: &'static str,
    /// Its smallest useful volume, bytes: the smaller, the sooner the journal comes round, and the
    /// quicker the check.
    pub size: u64,
    /// The program that makes it, with its options.
    pub make: &'static str,
    /// A guest that has it: User-Mode Linux has no XFS.
    pub machines: Machines,
}

impl FileSystem {
    /// Its names and needs.
    pub fn facts(self) -> Facts {
        let ext4 = Facts {
            name: "ext4",
            kind: "ext4",
            mount_options: "noatime",
            size: 64 << 20,
            make: "mkfs.ext4 -q -F -b 4096 -N 1024 -m 0 -J size=4 -E \
                   lazy_itable_init=0,lazy_journal_init=0",
            machines: Machines::Uml,
        };
        match self {
            FileSystem::Ext4 => ext4,
            FileSystem::Ext4Journal => {
                Facts { name: "ext4, data=journal", mount_options: "noatime,data=journal", ..ext4 }
            }
            FileSystem::Xfs => Facts {
                name: "XFS",
                kind: "xfs",
                // All volumes are copies of one image.
                mount_options: "noatime,nouuid",
                // xfsprogs makes none below this.
                size: 304 << 20,
                make: "mkfs.xfs -q -f",
                machines: Machines::Qemu,
            },
        }
    }

    /// Makes it on an image.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`], and the tool's errors.
    pub fn make(self, host: &Host, image: &Path) -> Result<()> {
        let file =
            std::fs::File::create_new(image).and_then(|file| file.set_len(self.facts().size));
        file.at(image, "cannot be made")?;
        let mut words = self.facts().make.split(' ');
        let mut make = Command::new(host.program(words.next().unwrap_or_default())?);
        let said = run(make.args(words).arg(image))?;
        if !said.status.success() {
            return ErrorKind::Process.fail(format!("{}: {}", image.display(), said.text));
        }
        Ok(())
    }
}

fn run(command: &mut Command) -> Result<Output> {
    Ok(vlane_guest::run(command, LIMIT)?)
}

/// True if this machine's kernel can mount XFS.
fn has_xfs() -> bool {
    // It may be a module.
    let _ = run(Command::new("modprobe").args(["--quiet", "xfs"]));
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    known.split_whitespace().any(|word| word == "xfs")
}

/// Where states are checked.
#[derive(Debug)]
pub struct Bench {
    file_system: FileSystem,
    dir: tempfile::TempDir,
    tools: [PathBuf; 2],
}

impl Bench {
    /// Finds its tools. `dir` is best in memory.
    ///
    /// # Errors
    /// [`ErrorKind::Missing`].
    pub fn new(host: &Host, file_system: FileSystem, dir: &Path) -> Result<Self> {
        let tools = match file_system {
            FileSystem::Ext4 | FileSystem::Ext4Journal => {
                [host.program("e2fsck")?, host.program("debugfs")?]
            }
            FileSystem::Xfs => {
                if !rustix::process::geteuid().is_root() || !has_xfs() {
                    let context = "XFS cannot be mounted here, which replays its log: it takes \
                                   root, and a kernel that has XFS";
                    return ErrorKind::Missing.fail(context);
                }
                [host.program("xfs_repair")?, "mount".into()]
            }
        };
        let dir = tempfile::TempDir::with_prefix_in("vlane-power-cut-", dir);
        let dir = dir.context(ErrorKind::Io, || "no directory for the states after a power cut")?;
        Ok(Self { file_system, dir, tools })
    }

    /// Where the image of a state goes.
    pub fn image(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// Repairs the file system on the image, as a mount after a power cut does, and has it checked.
    /// Then it shows `look` the files, and returns the faults.
    ///
    /// # Errors
    /// When a tool cannot be started, or does not end.
    pub fn check(&self, look: impl FnOnce(&Path)) -> Result<Option<String>> {
        if self.file_system == FileSystem::Xfs {
            return self.check_xfs(look);
        }
        let [e2fsck, debugfs] = &self.tools;
        let image = self.image();
        // Replays the journal. 1: something was corrected, such as files that were open when they
        // were removed.
        let repair = run(Command::new(e2fsck).arg("-p").arg(&image))?;
        let again = run(Command::new(e2fsck).arg("-fn").arg(&image))?;
        let wrong = match (repair.status.code(), again.status.code()) {
            (Some(0 | 1), Some(0)) => None,
            (Some(0 | 1), _) => Some(format!("e2fsck -fn: {}", again.text.trim())),
            _ => Some(format!("e2fsck -p: {}", repair.text.trim())),
        };
        let files = self.dir.path().join("files");
        let _ = std::fs::remove_dir_all(&files);
        std::fs::create_dir(&files)
            .context(ErrorKind::Io, || "no directory for a state's files")?;
        run(Command::new(debugfs)
            .arg("-R")
            .arg(format!("rdump / {}", files.display()))
            .arg(&image))?;
        look(&files);
        Ok(wrong)
    }

    fn check_xfs(&self, look: impl FnOnce(&Path)) -> Result<Option<String>> {
        let [xfs_repair, mount] = &self.tools;
        let (image, at) = (self.image(), self.dir.path().join("mounted"));
        let _ = std::fs::create_dir(&at);
        // Replays the log.
        let mounted =
            run(Command::new(mount).args(["-t", "xfs", "-o", "loop,nouuid"]).arg(&image).arg(&at))?;
        if !mounted.status.success() {
            look(&at);
            return Ok(Some(format!("mount: {}", mounted.text.trim())));
        }
        look(&at);
        self.unmount()?;
        let checked = run(Command::new(xfs_repair).arg("-n").arg(&image))?;
        Ok((!checked.status.success()).then(|| format!("xfs_repair -n: {}", checked.text.trim())))
    }

    /// A tool that another thread starts has our files open for a moment.
    fn unmount(&self) -> Result<()> {
        let begin = Instant::now();
        loop {
            let unmounted = run(Command::new("umount").arg(self.dir.path().join("mounted")))?;
            if unmounted.status.success() {
                return Ok(());
            }
            if begin.elapsed() > BUSY {
                return ErrorKind::Process.fail(format!("umount: {}", unmounted.text.trim()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if self.file_system == FileSystem::Xfs {
            // Of a state that was being looked at.
            let _ = run(Command::new("umount").arg("--quiet").arg(self.dir.path().join("mounted")));
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    /// With a fresh file system of each kind that this machine can check.
    fn benches() -> Vec<(FileSystem, Bench)> {
        let host = Host::new(vlane_guest::Install::Never).unwrap();
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        let mut benches = Vec::new();
        for file_system in [FileSystem::Ext4, FileSystem::Xfs] {
            let made = Bench::new(&host, file_system, &dir)
                .and_then(|bench| file_system.make(&host, &bench.image()).map(|()| bench));
            match made {
                Ok(bench) => benches.push((file_system, bench)),
                Err(error) if error.kind() == ErrorKind::Missing => vlane_testing::skip(error),
                Err(error) => panic!("{error}"),
            }
        }
        benches
    }

    #[test]
    fn repeated_checks_distinguish_damaged_file_systems() {
        use std::os::unix::fs::FileExt;
        for (file_system, bench) in benches() {
            for _ in 0..3 {
                let mut looked = 0;
                assert_eq!(
                    bench.check(|files| looked += usize::from(files.is_dir())).unwrap(),
                    None
                );
                assert_eq!(looked, 1);
            }
            // The root's inodes, and the counters of free blocks: all that lies behind the
            // superblock.
            let file = std::fs::OpenOptions::new().write(true).open(bench.image()).unwrap();
            file.write_all_at(&[0xa5; 32 << 10], 4096).unwrap();
            drop(file);
            let wrong = bench.check(|_| ()).unwrap();
            assert!(wrong.is_some(), "{}", file_system.facts().name);
        }
    }

    #[test]
    fn busy_file_system_is_unmounted_later() {
        for (_, bench) in benches().into_iter().filter(|(kind, _)| *kind == FileSystem::Xfs) {
            let mut holder = None;
            let wrong = bench.check(|files| {
                let held = std::fs::File::open(files).unwrap();
                // As a program does that was started meanwhile.
                holder = Some(std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(300));
                    drop(held);
                }));
            });
            assert_eq!(wrong.unwrap(), None);
            assert!(holder.unwrap().join().is_ok());
        }
    }
}
