//! Images that are not raw. Served as raw they show the guest the format's innards, and its first write destroys them; so an image
//! that begins (or ends) as another format does is refused unless its user says that it is raw.
//!
//! What is looked at is the guest's to write: a guest that puts such a mark into its own disk is refused at the next start, and
//! nobody else. Reading the format and acting on it would be worse: the mark of a qcow2 image can name any file as its backing file.
//!
//! LUKS is not among them: a guest that encrypts its whole disk leaves exactly that in sector 0, and served as raw it is what it
//! should be.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// A mark and where it is.
struct Mark {
    format: &'static str,
    at: At,
    bytes: &'static [u8],
}

enum At {
    Start(u64),
    /// From the end back.
    End(u64),
}

const fn mark(format: &'static str, at: At, bytes: &'static [u8]) -> Mark {
    Mark { format, at, bytes }
}

/// As QEMU's own drivers recognize them (`bdrv_probe` in block/*.c).
const MARKS: &[Mark] = &[
    // qcow and qcow2 differ in the version that follows.
    mark("qcow2", At::Start(0), b"QFI\xfb"),
    mark("qed", At::Start(0), b"QED\0"),
    mark("vmdk", At::Start(0), b"KDMV"),
    mark("vmdk", At::Start(0), b"COWD"),
    mark("vmdk", At::Start(0), b"# Disk DescriptorFile"),
    mark("vdi", At::Start(0x40), b"\x7f\x10\xda\xbe"),
    mark("vhdx", At::Start(0), b"vhdxfile"),
    mark("vpc", At::Start(0), b"conectix"),
    // A fixed one has only a footer, of 512 bytes, or 511 when an old program wrote it.
    mark("vpc", At::End(512), b"conectix"),
    mark("vpc", At::End(511), b"conectix"),
    mark("parallels", At::Start(0), b"WithoutFreeSpace"),
    mark("parallels", At::Start(0), b"WithouFreSpacExt"),
];

/// The format that the image has the mark of, as `qemu-img` names it.
pub(super) fn other_than_raw(file: &File, size: u64) -> Option<&'static str> {
    MARKS.iter().find(|mark| is_there(mark, file, size)).map(|mark| mark.format)
}

fn is_there(mark: &Mark, file: &File, size: u64) -> bool {
    let at = match mark.at {
        At::Start(at) => at,
        At::End(back) => match size.checked_sub(back) {
            Some(at) => at,
            None => return false,
        },
    };
    let mut found = [0; 32];
    let found = &mut found[..mark.bytes.len()];
    file.read_exact_at(found, at).is_ok() && found == mark.bytes
}
