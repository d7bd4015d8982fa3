//! The bell: an empty file. Shells open it for reading, and its watcher wakes up.
//!
//! Opening a file never blocks, needs no reader at the other end, takes no space, and a shell does
//! it without starting a process. No data comes with it: the daemon then looks by itself.

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use crate::dir::Dir;

/// A bell that is watched.
#[derive(Debug)]
pub struct Bell {
    inotify: OwnedFd,
    _file: File,
}

impl Bell {
    /// Makes the file, and watches it.
    pub fn hang(dir: &Dir) -> Result<Self> {
        let file = dir.file("bell")?;
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).context(
            "inotify; the limit of instances is raised with sysctl fs.inotify.max_user_instances",
        )?;
        // By the file that is open: its name could be another one's by now.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        inotify::add_watch(&inotify, path, WatchFlags::OPEN).context("watching the bell")?;
        Ok(Self { inotify, _file: file })
    }

    /// The descriptor that becomes readable when it rings.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }

    /// Returns true if it has rung since.
    pub fn has_rung(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut rung = false;
        // At most one buffer: a daemon that is rung without a pause continues its other work in
        // between.
        while reader.next().is_ok() {
            rung = true;
            if reader.is_buffer_empty() {
                break;
            }
        }
        rung
    }
}
