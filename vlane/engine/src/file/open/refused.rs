//! Images that cannot be opened, or have no size that can be served: the fault, and the action.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::IFlags;
use vlane_ring::SECTOR;

use super::{EngineError, ErrorKind};
use crate::file::format::shell_word;

/// Says whether a path is one of a device's node: below `/dev`, but for the file systems in memory
/// there.
fn is_in_dev(path: &Path) -> bool {
    let memory = ["/dev/shm", "/dev/hugepages", "/dev/mqueue"];
    path.starts_with("/dev") && !memory.iter().any(|dir| path.starts_with(dir))
}

/// The reason why no file is at a path.
fn not_found(path: &Path) -> String {
    if let Ok(target) = std::fs::read_link(path) {
        let advice = if is_in_dev(path) {
            "`lsblk` lists the devices that there are"
        } else {
            "create it, or correct the link"
        };
        return format!(
            "is a symbolic link to {}, which does not exist; {advice}",
            target.display()
        );
    }
    match is_in_dev(path) {
        true => "no such device; `lsblk` lists the devices".to_owned(),
        false => "there is no such image; make one, for example with `truncate -s 10G` or \
                  `qemu-img create -f raw`"
            .to_owned(),
    }
}

/// The attribute that forbids to write to a file although its mode does not, as `lsattr` shows it,
/// and the letter for `chattr`.
fn attribute(path: &Path) -> Option<(&'static str, char)> {
    let flags = libc::O_NONBLOCK;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let flags = rustix::fs::ioctl_getflags(&file).ok()?;
    let names = [(IFlags::IMMUTABLE, ("immutable", 'i')), (IFlags::APPEND, ("append-only", 'a'))];
    names.iter().find(|(flag, _)| flags.contains(*flag)).map(|(_, name)| *name)
}

/// Why the system forbids it.
fn forbidden(path: &Path, read_only: bool, is_by_mode: bool) -> String {
    let is_device =
        std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
    if !read_only && let Some((word, letter)) = attribute(path) {
        return format!(
            "is {word}, as `lsattr` shows, and cannot be written; `chattr -{letter} {}`, or serve \
             it with --read-only",
            shell_word(path)
        );
    }
    if is_device && !is_by_mode {
        return "this process may not use the device, despite its file mode; allow it in the \
                container, or by DeviceAllow= of the service"
            .to_owned();
    }
    match read_only {
        true => "no permission to read it; run vlane as its owner, or change its mode".to_owned(),
        false => "no permission to read and write it; run vlane as its owner, change its mode, or \
                  serve it with --read-only"
            .to_owned(),
    }
}

pub(super) fn open_error(path: &Path, read_only: bool, error: io::Error) -> EngineError {
    let (kind, text) = match error.raw_os_error() {
        Some(libc::ENOENT) => (ErrorKind::NotFound, not_found(path)),
        Some(libc::ENXIO | libc::ENODEV | libc::ENOMEDIUM) => {
            let text = "the device has no medium, or is gone; `lsblk` lists the devices";
            (ErrorKind::NotFound, text.to_owned())
        }
        Some(errno @ (libc::EACCES | libc::EPERM)) => {
            (ErrorKind::Permission, forbidden(path, read_only, errno == libc::EACCES))
        }
        Some(libc::EROFS) => (
            ErrorKind::ReadOnly,
            "lies on a read-only file system; serve it with --read-only".to_owned(),
        ),
        Some(libc::EMFILE | libc::ENFILE) => (
            ErrorKind::Limit,
            "no file descriptor left to open it; raise the limit (ulimit -n)".to_owned(),
        ),
        Some(libc::EBUSY) => (
            ErrorKind::Locked,
            "is in use (mounted, or part of an array); stop its other user".to_owned(),
        ),
        Some(libc::ETXTBSY) => {
            (ErrorKind::Locked, "is a program that is being executed".to_owned())
        }
        _ => (ErrorKind::Io, "cannot open it".to_owned()),
    };
    EngineError::caused_at(path, kind, text, error)
}

/// The image's size in bytes, if it is one that can be served.
pub(in crate::file) fn checked_size(path: &Path, mut file: &File) -> Result<u64, EngineError> {
    // Seeking gives the size of files and devices alike.
    let size = file.seek(SeekFrom::End(0)).map_err(|error| {
        EngineError::caused_at(path, ErrorKind::Io, "cannot find out its size", error)
    })?;
    let fail = |kind, text: String| Err(EngineError::at(path, kind, text));
    let is_device = file.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
    match size {
        0 if is_device => {
            let text = "the device is empty: it has no medium, or no file is attached; `lsblk` \
                        lists the devices and their sizes";
            fail(ErrorKind::Empty, text.to_owned())
        }
        0 => {
            let text = format!(
                "is empty; give it a size first, for example with `truncate -s 10G {}`",
                shell_word(path)
            );
            fail(ErrorKind::Empty, text)
        }
        size if size.is_multiple_of(SECTOR) => Ok(size),
        size => {
            let text = format!(
                "has {size} bytes, which is not a multiple of the sector size, 512: is it a disk \
                 image? If so, round it up: `truncate -s {} {}`",
                size.next_multiple_of(SECTOR),
                shell_word(path)
            );
            fail(ErrorKind::OddSize, text)
        }
    }
}
