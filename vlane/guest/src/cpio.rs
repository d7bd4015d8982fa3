//! Writes the archive format of an initramfs: cpio "newc" (the kernel's
//! `Documentation/driver-api/early-userspace`).

use std::collections::BTreeSet;
use std::io::{self, Write};

use cpio::newc::{Builder, trailer};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// An archive being written. Directories on the way to a file are made by themselves; everything
/// belongs to root.
#[derive(Debug)]
pub struct Archive<W: Write> {
    out: W,
    inode: u32,
    directories: BTreeSet<String>,
}

impl<W: Write> Archive<W> {
    /// An empty archive.
    pub fn new(out: W) -> Self {
        Self { out, inode: 0, directories: BTreeSet::new() }
    }

    /// A directory, and those above it.
    pub fn directory(&mut self, path: &str) -> io::Result<()> {
        let path = path.trim_matches('/');
        if !path.is_empty() && self.directories.insert(path.to_string()) {
            self.entry(path, DIRECTORY | 0o755, (0, 0), &[])?;
        }
        Ok(())
    }

    /// A regular file.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, REGULAR | mode, (0, 0), content)
    }

    /// A symbolic link.
    pub fn symlink(&mut self, path: &str, target: &str) -> io::Result<()> {
        self.entry(path, SYMLINK | 0o777, (0, 0), target.as_bytes())
    }

    /// A character device.
    pub fn character_device(&mut self, path: &str, major: u32, minor: u32) -> io::Result<()> {
        self.entry(path, CHARACTER_DEVICE | 0o600, (major, minor), &[])
    }

    /// Ends the archive and hands the writer back.
    pub fn finish(self) -> io::Result<W> {
        let mut out = trailer(self.out)?;
        out.flush()?;
        Ok(out)
    }

    /// Writes the directories above `path`, and then its own entry.
    fn entry(
        &mut self,
        path: &str,
        mode: u32,
        device: (u32, u32),
        content: &[u8],
    ) -> io::Result<()> {
        let name = path.trim_start_matches('/');
        if let Some((directory, _)) = name.trim_end_matches('/').rsplit_once('/') {
            self.directory(directory)?;
        }
        let size = u32::try_from(content.len()).map_err(|_| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{name}: too large for an initramfs"),
            )
        })?;
        self.inode += 1;
        let entry = Builder::new(name).ino(self.inode).nlink(1).mode(mode);
        let mut entry = entry.rdev_major(device.0).rdev_minor(device.1).write(&mut self.out, size);
        entry.write_all(content)?;
        entry.finish().map(drop)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::process::{Command, Stdio};

    fn sample() -> Vec<u8> {
        let mut archive = Archive::new(Vec::new());
        archive.file("/init", 0o755, b"#!/bin/sh\n").unwrap();
        archive.file("usr/lib/deep/file", 0o644, b"12345").unwrap();
        archive.file("usr/lib/other", 0o600, b"").unwrap();
        archive.symlink("/bin/sh", "busybox").unwrap();
        archive.finish().unwrap()
    }

    #[test]
    fn entries_are_aligned_and_directories_unique() {
        let bytes = sample();
        let text = String::from_utf8_lossy(&bytes);
        let starts: Vec<usize> = text.match_indices("070701").map(|(at, _)| at).collect();
        assert!(starts.iter().all(|at| at % 4 == 0));
        // init, usr, usr/lib, usr/lib/deep, file, other, bin, sh, trailer
        assert_eq!(starts.len(), 9);
        assert_eq!(bytes.len() % 4, 0);
    }

    #[test]
    fn busybox_reads_the_archive() {
        let Some(busybox) = crate::process::find_program("busybox") else {
            return vlane_testing::skip(
                "busybox is not on this machine, so nobody read the archive",
            );
        };
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(busybox)
            .args(["cpio", "-i", "-d"])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&sample()).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(std::fs::read(dir.path().join("usr/lib/deep/file")).unwrap(), b"12345");
        assert_eq!(
            std::fs::read_link(dir.path().join("bin/sh")).unwrap().to_str(),
            Some("busybox")
        );
    }
}
