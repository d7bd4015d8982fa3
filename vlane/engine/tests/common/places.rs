//! Places to put images: on the disk, in memory, on loop devices, on file systems that are too
//! small. Places that the machine cannot give are reported by [`skip`].

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use vlane_engine::Engine as _;
use vlane_engine::file::{Cache, FileEngine, FileOptions, JournalReport};
#[allow(unused_imports, reason = "each test program uses its own part of this")]
pub use vlane_testing::skip;

/// For tests that look at locks: one at a time. A program that another test starts has all open
/// files of this process for a moment, which is long on a busy machine.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The report of an engine's journal thread, when it has seen all that was done before.
pub fn current_report(engine: &FileEngine) -> JournalReport {
    let begin = Instant::now();
    loop {
        let report = engine.journal().expect("watched");
        if report.is_current {
            return report;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "it does not answer: {report:?}");
    }
}

/// Runs a command; its output, or its error.
pub fn command(program: &str, args: &[&str]) -> Result<String, String> {
    let output =
        Command::new(program).args(args).output().map_err(|e| format!("{program}: {e}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(format!(
            "{program} {}: {} {}",
            args.join(" "),
            text(&output.stderr),
            text(&output.stdout)
        )),
    }
}

/// A directory on the disk: where the build goes, unless that is in memory.
pub fn on_disk() -> TempDir {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    let is_disk = |dir: &&str| rustix::fs::statfs(*dir).is_ok_and(|fs| fs.f_type != TMPFS_MAGIC);
    let dir = [env!("CARGO_TARGET_TMPDIR"), "/var/tmp", "."].into_iter().find(is_disk);
    tempfile::tempdir_in(dir.expect("a disk")).expect("a directory on the disk")
}

/// A directory in memory, if there is one.
pub fn in_memory() -> Option<TempDir> {
    tempfile::tempdir_in("/dev/shm").ok()
}

/// An image of `size` zero bytes.
pub fn image(dir: &Path, size: u64) -> PathBuf {
    let path = dir.join("image.raw");
    File::create(&path).and_then(|file| file.set_len(size)).expect("an image");
    path
}

pub fn options(cache: Cache) -> FileOptions {
    FileOptions { cache, ..FileOptions::default() }
}

/// An engine, or why not, in words.
pub fn try_open(path: &Path, cache: Cache) -> Result<Arc<FileEngine>, String> {
    FileEngine::open(path, options(cache)).map(Arc::new).map_err(|error| error.to_string())
}

pub fn open(path: &Path, cache: Cache) -> Arc<FileEngine> {
    open_with(path, options(cache))
}

pub fn open_with(path: &Path, options: FileOptions) -> Arc<FileEngine> {
    // A program that another test starts has our descriptors for a moment, and so a claim that is
    // over.
    let begin = Instant::now();
    let is_passing =
        |why: &str| why.contains("is in use") || why.contains("is locked by another process");
    loop {
        match FileEngine::open(path, options).map(Arc::new).map_err(|error| error.to_string()) {
            Err(why) if is_passing(&why) && begin.elapsed().as_secs() < 60 => {
                std::thread::sleep(Duration::from_millis(20));
            }
            opened => return opened.expect("open"),
        }
    }
}

/// Pages of a file that are in the page cache.
pub fn cached(path: &Path) -> usize {
    let file = File::open(path).expect("open");
    let len = usize::try_from(rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).expect("size"))
        .unwrap();
    let pages = len.div_ceil(4096);
    let mut resident = vec![0u8; pages];
    // SAFETY: a new mapping at an address of the kernel's choice, which is not accessed and which
    // ends here; `resident` has a byte for each of its pages.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::mincore(at, len, resident.as_mut_ptr()), 0);
        assert_eq!(libc::munmap(at, len), 0);
    }
    resident.iter().filter(|page| **page & 1 != 0).count()
}

/// Writes out a file's pages and drops them.
pub fn drop_cache(path: &Path) {
    let file = File::open(path).expect("open");
    file.sync_all().expect("sync");
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("fadvise");
}

/// A loop device, detached when it is dropped.
#[derive(Debug)]
pub struct Loop {
    pub device: PathBuf,
}

impl Loop {
    /// A device with sectors of `sector` bytes on a file.
    pub fn new(backing: &Path, sector: u32) -> Result<Loop, String> {
        let sector = format!("--sector-size={sector}");
        let path = backing.to_str().ok_or("a strange path")?;
        let device = command("losetup", &["--find", "--show", &sector, path])?;
        Ok(Loop { device: PathBuf::from(device) })
    }

    /// A device on `len` bytes of a file or device, from byte `offset` on.
    pub fn part(backing: &Path, offset: u64, len: u64) -> Result<Loop, String> {
        let (offset, len) = (format!("--offset={offset}"), format!("--sizelimit={len}"));
        let path = backing.to_str().ok_or("a strange path")?;
        let device = command("losetup", &["--find", "--show", &offset, &len, path])?;
        Ok(Loop { device: PathBuf::from(device) })
    }

    /// Flushes that the device was asked for (Documentation/block/stat.rst, field 16).
    pub fn flushes(&self) -> u64 {
        let name = self.device.file_name().and_then(|name| name.to_str()).expect("a name");
        let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).expect("statistics");
        stat.split_whitespace().nth(15).and_then(|n| n.parse().ok()).expect("a count of flushes")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let name = self.device.file_name().unwrap_or_default().to_string_lossy();
        let attached = format!("/sys/block/{name}/loop/backing_file");
        let backing = || std::fs::read(&attached).ok();
        let before = backing();
        let _ = command("losetup", &["--detach", &self.device.to_string_lossy()]);
        // The kernel detaches it when its last user closes it: another program may look at it.
        let begin = Instant::now();
        while before.is_some() && backing() == before && begin.elapsed().as_secs() < 10 {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Bytes of a device that is too small, and of the tmpfs that its backing file lies in.
pub const TOO_SMALL: u64 = 64 << 20;
pub const ROOM: u64 = 8 << 20;

/// A device that has not the room that it says it has.
pub struct TooSmall {
    // Detached before the unmounting.
    pub device: Loop,
    mount: Mount,
}

impl TooSmall {
    pub fn new() -> Option<TooSmall> {
        let made = Mount::tmpfs(ROOM).and_then(|mount| {
            Ok(TooSmall { device: Loop::new(&image(mount.path(), TOO_SMALL), 512)?, mount })
        });
        made.map_err(skip).ok()
    }

    pub fn open(&self, cache: Cache) -> Arc<FileEngine> {
        open(&self.device.device, cache)
    }

    /// Returns the content that really is in the device.
    pub fn content(&self) -> Vec<u8> {
        std::fs::read(self.mount.path().join("image.raw")).expect("the backing file")
    }
}

/// A mounted file system, unmounted when it is dropped.
#[derive(Debug)]
pub struct Mount {
    pub dir: TempDir,
    // Detached after the unmounting.
    pub device: Option<Loop>,
}

impl Mount {
    /// tmpfs of `size` bytes.
    pub fn tmpfs(size: u64) -> Result<Mount, String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let at = dir.path().to_string_lossy().into_owned();
        command("mount", &["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs", &at])?;
        Ok(Mount { dir, device: None })
    }

    /// ext4 on a loop device with sectors of `sector` bytes on `backing`.
    pub fn ext4(backing: &Path, sector: u32) -> Result<Mount, String> {
        let device = Loop::new(backing, sector)?;
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let (node, at) = (
            device.device.to_string_lossy().into_owned(),
            dir.path().to_string_lossy().into_owned(),
        );
        command("mkfs.ext4", &["-q", "-m", "0", "-E", "lazy_itable_init=0", &node])?;
        command("mount", &[&node, &at])?;
        Ok(Mount { dir, device: Some(device) })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let at = self.dir.path().to_string_lossy().into_owned();
        // The last requests' files may be put a moment later.
        for _ in 0..50 {
            if command("umount", &[&at]).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = command("umount", &["--lazy", &at]);
    }
}
