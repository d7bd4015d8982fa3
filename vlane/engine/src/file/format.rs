//! Images that are not raw. Served as raw they show the guest the format's innards, and its first
//! write destroys them; so an image that begins (or ends) as another format does is refused unless
//! its user says that it is raw.
//!
//! The guest writes the bytes that are looked at: a guest that puts such a mark into its own disk
//! is refused at the next start, and other guests are not affected. Reading the format and acting
//! on it would be worse: the mark of a qcow2 image can name any file as its backing file.
//!
//! A disk may begin with the first bytes of an archive by chance. So of archives the whole header
//! has to be right ([`archive`]).
//!
//! LUKS is not among them: a guest that encrypts its whole disk leaves exactly that in sector 0,
//! and served as raw it is right. Nor are file systems that are disks as they are: ISO 9660,
//! squashfs.

mod archive;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes of the beginning that are looked at.
const HEAD: usize = 512;

/// How an image of another format becomes a raw one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Remedy {
    /// By `qemu-img convert`.
    Convert,
    /// By this command, which takes the file's name at its end.
    Unpack(&'static str),
}

/// A format that is not raw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Format {
    /// As `qemu-img` names it, or the program that packs it.
    name: &'static str,
    remedy: Remedy,
}

impl Format {
    /// Describes the fault of an image of it, and the action to take.
    pub(super) fn in_words(self, path: &Path) -> String {
        let Format { name, remedy } = self;
        let insist = "or say --format raw if it is a raw image in which the guest wrote this";
        match remedy {
            Remedy::Convert => format!(
                "looks like a {name} image, and only raw ones are served: the guest would see the \
                 format's own data, and its first write would destroy them; convert it with \
                 `qemu-img convert -O raw`, {insist}"
            ),
            Remedy::Unpack(command) => format!(
                "looks packed by {name}, and only raw images are served: the guest would see the \
                 archive's own data, and its first write would destroy it; unpack it first: \
                 `{command} {}`, {insist}",
                shell_word(path)
            ),
        }
    }
}

/// A path as a shell takes it for one word.
pub(super) fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    match !text.starts_with('-') && text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// A mark and where it is.
struct Mark {
    format: &'static str,
    at: At,
    bytes: &'static [u8],
}

enum At {
    Start(usize),
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
    mark("bochs", At::Start(0), b"Bochs Virtual HD Image\0"),
    mark("cloop", At::Start(0), b"#!/bin/sh\n#V2.0 Format\n"),
    // Its trailer: version 4, 512 bytes.
    mark("dmg", At::End(512), b"koly\0\0\0\x04\0\0\x02\0"),
];

/// The other format that the image has the mark of.
pub(super) fn other_than_raw(file: &File, size: u64) -> Option<Format> {
    let mut head = [0; HEAD];
    let len = read_up_to(file, &mut head);
    let head = &head[..len];
    let is_there = |mark: &&Mark| match mark.at {
        At::Start(at) => head.get(at..).is_some_and(|rest| rest.starts_with(mark.bytes)),
        At::End(back) => size.checked_sub(back).is_some_and(|at| is_at(file, at, mark.bytes)),
    };
    let disk = MARKS
        .iter()
        .find(is_there)
        .map(|mark| Format { name: mark.format, remedy: Remedy::Convert });
    let archive = || {
        archive::packed_by(head)
            .map(|(name, command)| Format { name, remedy: Remedy::Unpack(command) })
    };
    disk.or_else(archive)
}

/// The beginning of a file, as much as there is.
fn read_up_to(file: &File, bytes: &mut [u8]) -> usize {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], done as u64) {
            Ok(n) if n > 0 => done += n,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            _ => break,
        }
    }
    done
}

fn is_at(file: &File, at: u64, bytes: &[u8]) -> bool {
    let mut found = [0; 32];
    let found = &mut found[..bytes.len()];
    file.read_exact_at(found, at).is_ok() && found == bytes
}
