//! Facts of the kernel on a file beyond its number, and on its file system.

use std::fs::File;
use std::os::fd::AsRawFd;

/// The longest handle (`MAX_HANDLE_SZ`).
const LONGEST: usize = 128;

/// `struct file_handle`, with room.
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; LONGEST],
}

/// `FS_IOC_GETFSUUID`, Linux 6.9: `_IOR(0x15, 0, struct fsuuid2)`.
const GET_UUID: libc::c_ulong = 0x8011_1500;

/// `struct fsuuid2`.
#[repr(C)]
#[derive(Default)]
struct Uuid {
    len: u8,
    uuid: [u8; 16],
}

/// The file's handle, and its kind: with most file systems the inode and its generation. None if
/// the file system gives no handle.
pub(super) fn handle(file: &File) -> Option<(i32, Vec<u8>)> {
    let mut handle = Handle { bytes: u32::try_from(LONGEST).ok()?, kind: 0, handle: [0; LONGEST] };
    let mut mount: libc::c_int = 0;
    // SAFETY: an open descriptor, an empty string, and two structures that live during the call.
    // The first says how much room it has.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            file.as_raw_fd(),
            c"".as_ptr(),
            &raw mut handle,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    let len = usize::try_from(handle.bytes).ok().filter(|len| result == 0 && *len > 0)?;
    handle.handle.get(..len).map(|bytes| (handle.kind, bytes.to_vec()))
}

/// The UUID of the file system that the file lies on, if the kernel and the file system report it.
pub(super) fn uuid(file: &File) -> Option<[u8; 16]> {
    let mut uuid = Uuid::default();
    // SAFETY: an open descriptor, and a structure of the size that the number names, which lives
    // during the call.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), GET_UUID, &raw mut uuid) };
    (result == 0 && usize::from(uuid.len) <= uuid.uuid.len() && uuid.uuid != [0; 16])
        .then_some(uuid.uuid)
}
