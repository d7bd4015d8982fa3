//! The images: where they can be, and that they are there for real, not as holes.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{OFlags, statfs};
use vlane_driver::units::show_size;

/// Size of the image on the RAM disk.
pub(super) const RAM_BYTES: u64 = 1 << 30;
/// Size of the image on the disk.
pub(super) const DISK_BYTES: u64 = 2 << 30;
/// TMPFS_MAGIC of linux/magic.h.
const TMPFS: i64 = 0x0102_1994;

/// A file that is removed when dropped.
#[derive(Debug)]
pub(super) struct Image(PathBuf);

impl Image {
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn free(dir: &Path) -> Option<u64> {
    let fs = statfs(dir).ok()?;
    Some(fs.f_bavail * u64::try_from(fs.f_bsize).ok()?)
}

fn is_tmpfs(dir: &Path) -> bool {
    statfs(dir).is_ok_and(|fs| fs.f_type == TMPFS)
}

/// An image on a RAM disk: in `wanted`, or in the first tmpfs with room.
pub(super) fn on_ram(wanted: Option<&Path>) -> anyhow::Result<Image> {
    let room = RAM_BYTES + (64 << 20);
    let dir = match wanted {
        Some(dir) if !is_tmpfs(dir) => {
            bail!("{}: not a RAM disk (tmpfs); give one with --ram-dir", dir.display())
        }
        Some(dir) => dir.to_owned(),
        None => [PathBuf::from("/dev/shm"), std::env::temp_dir(), PathBuf::from("/run")]
            .into_iter()
            .find(|dir| is_tmpfs(dir) && free(dir).is_some_and(|free| free >= room))
            .with_context(|| {
                format!(
                    "no RAM disk (tmpfs) with {} free; mount one, give it with --ram-dir",
                    show_size(room)
                )
            })?,
    };
    create(&dir, RAM_BYTES, false)
}

/// An image on a disk that can do direct I/O: in `wanted`, or in the current directory, or in one for temporary files.
pub(super) fn on_disk(wanted: Option<&Path>) -> anyhow::Result<Image> {
    let room = DISK_BYTES + (256 << 20);
    let dir = match wanted {
        Some(dir) => dir.to_owned(),
        None => [PathBuf::from("."), PathBuf::from("/var/tmp"), std::env::temp_dir()]
            .into_iter()
            .find(|dir| !is_tmpfs(dir) && free(dir).is_some_and(|free| free >= room))
            .with_context(|| {
                format!("no directory on a disk with {} free; give one with --disk-dir", show_size(room))
            })?,
    };
    let image = create(&dir, DISK_BYTES, true)?;
    OpenOptions::new()
        .read(true)
        .custom_flags(i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0))
        .open(image.path())
        .with_context(|| {
            format!("{}: no direct I/O there; give another directory with --disk-dir", dir.display())
        })?;
    Ok(image)
}

/// Writes a whole file of data that do not compress.
fn create(dir: &Path, bytes: u64, sync: bool) -> anyhow::Result<Image> {
    let path = std::path::absolute(dir.join(format!("vlane-peers-{}.img", std::process::id())))?;
    let failed = || format!("cannot write an image of {} to {}", show_size(bytes), dir.display());
    let mut file = File::options().write(true).create_new(true).open(&path).with_context(failed)?;
    let image = Image(path);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut chunk = vec![0; 1 << 20];
    for _ in 0..bytes / (1 << 20) {
        for word in chunk.as_chunks_mut::<8>().0 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *word = state.to_le_bytes();
        }
        file.write_all(&chunk).with_context(failed)?;
    }
    if sync {
        file.sync_all().with_context(failed)?;
    }
    Ok(image)
}
