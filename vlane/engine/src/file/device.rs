//! Answers of a block device about itself, and reasons why storage takes no writes.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{IFlags, StatVfsMountFlags};

/// `_IO(0x12, 94)`
const BLKROGET: libc::Ioctl = 0x125e;

/// Says whether a block device is set read-only: `blockdev --setro`, `losetup -r`, a switch of the
/// medium.
pub(super) fn is_read_only(device: &File) -> bool {
    let mut answer: libc::c_int = 0;
    // SAFETY: an open descriptor and a number that lives until the call is over, as BLKROGET wants
    // it.
    let asked = unsafe { libc::ioctl(device.as_raw_fd(), BLKROGET, &mut answer) };
    asked == 0 && answer != 0
}

/// Returns the reason why a file takes no writes although it was opened for them, with the action
/// to take; none if no reason is known.
pub(super) fn refuses_writes(path: &Path, file: &File, is_device: bool) -> Option<String> {
    let name = path.display();
    if is_device {
        return is_read_only(file).then(|| {
            format!(
                "the device has been set read-only, and the guest's writes fail; `blockdev \
                 --setrw {name}` lets them succeed again"
            )
        });
    }
    let flags = rustix::fs::ioctl_getflags(file).unwrap_or(IFlags::empty());
    let attribute = [(IFlags::IMMUTABLE, "immutable", 'i'), (IFlags::APPEND, "append-only", 'a')];
    if let Some((_, word, letter)) = attribute.iter().find(|(flag, ..)| flags.contains(*flag)) {
        return Some(format!(
            "the image has been made {word}, and the guest's writes fail; `chattr -{letter} \
             {name}` lets them succeed again"
        ));
    }
    let is_read_only =
        rustix::fs::fstatvfs(file).is_ok_and(|fs| fs.f_flag.contains(StatVfsMountFlags::RDONLY));
    is_read_only.then(|| {
        "its file system has become read-only, and the guest's writes fail; the kernel's log has \
         the reason"
            .to_owned()
    })
}

/// The files under a loop device: numbers as `stat` gives them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Backing {
    pub(super) dev: u64,
    pub(super) ino: u64,
    /// The device's number, if it lies on a device.
    pub(super) rdev: u64,
}

/// `LOOP_GET_STATUS64` of the kernel's `loop.h`
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
/// Words of its `struct loop_info64`, which begins with device, inode, and number of the device.
const LOOP_INFO64: usize = 29;

/// Asks a loop device for its file.
pub(super) fn backing(device: &File) -> Option<Backing> {
    let mut info = [0u64; LOOP_INFO64];
    // SAFETY: an open descriptor, and as many words as LOOP_GET_STATUS64 writes, which live until
    // the call is over.
    let asked = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, info.as_mut_ptr()) };
    let [dev, ino, rdev, ..] = info;
    (asked == 0).then_some(Backing { dev, ino, rdev })
}
