//! A file system of the test's own (FUSE) with one file in it, the image, which fails on command.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test program uses its own part of this; tests may unwrap"
)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr,
    ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, WriteFlags,
};
use tempfile::TempDir;

/// How long the kernel may remember the file's attributes: not at all.
const TTL: Duration = Duration::ZERO;
const NAME: &str = "disk.raw";
const FILE: INodeNo = INodeNo(2);

/// How an operation is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    /// As it should be.
    #[default]
    None,
    /// With this error number.
    Error(i32),
    /// Half of it is done, in whole blocks of 4 KiB; a single one is done whole.
    Half,
    /// The operation transfers zero bytes, and that is no error.
    Nothing,
    /// Not at all, until [`Faulty::answer`].
    Hang,
    /// As [`Fault::Hang`], but the next one of its kind is answered as it should be.
    HangOnce,
}

/// A fault, and the operations that it hits.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    pub read: Fault,
    pub write: Fault,
    pub sync: Fault,
    /// Ranges that are deallocated or zeroed.
    pub range: Fault,
    /// Questions about the file: its name, its size.
    pub look: Fault,
}

type Held = Box<dyn FnOnce(&mut State) + Send>;

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    faults: Faults,
    held: Vec<Held>,
    /// Operations that met a fault.
    met: usize,
}

#[derive(Clone)]
struct OneFile {
    state: Arc<Mutex<State>>,
    /// The kernel keeps what is written, and writes it back later.
    is_late: bool,
}

/// The file system, mounted.
pub struct Faulty {
    dir: TempDir,
    state: Arc<Mutex<State>>,
    is_late: bool,
    sessions: Vec<BackgroundSession>,
}

impl Faulty {
    /// Mounts it, with an image of so many bytes. Late: what goes through the page cache is written
    /// back some time.
    pub fn new(bytes: usize, is_late: bool) -> Result<Faulty, String> {
        let dir = TempDir::with_prefix("vlane-faulty-").unwrap();
        let state = Arc::new(Mutex::new(State { bytes: vec![0; bytes], ..State::default() }));
        let mut faulty = Faulty { dir, state, is_late, sessions: Vec::new() };
        faulty.mount()?;
        Ok(faulty)
    }

    fn mount(&mut self) -> Result<(), String> {
        let file = OneFile { state: Arc::clone(&self.state), is_late: self.is_late };
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("vlane-faulty".to_owned())];
        // The operation may hang, and then no other may.
        let session = fuser::spawn_mount(file, self.dir.path(), &config);
        self.sessions
            .push(session.map_err(|error| format!("no FUSE file system can be mounted: {error}"))?);
        Ok(())
    }

    pub fn image(&self) -> PathBuf {
        self.dir.path().join(NAME)
    }

    /// Sets the fault from now on.
    pub fn set(&self, faults: Faults) {
        self.state.lock().unwrap().faults = faults;
    }

    /// Operations that met a fault so far.
    pub fn met(&self) -> usize {
        self.state.lock().unwrap().met
    }

    /// Removes the fault, and answers the held operations.
    pub fn answer(&self) {
        let mut state = self.state.lock().unwrap();
        state.faults = Faults::default();
        for held in std::mem::take(&mut state.held) {
            held(&mut state);
        }
    }

    /// Takes the storage away in any state: from now on everything fails for processes that have
    /// the file open.
    pub fn vanish(&mut self) {
        // Ends the connection although it is busy, and then refuses because it is.
        let _ = Command::new("umount").arg("--force").arg(self.dir.path()).output();
        let _ = Command::new("umount").arg("--lazy").arg(self.dir.path()).output();
    }

    /// It is back, with all that was written.
    pub fn come_back(&mut self) {
        self.answer();
        self.mount().unwrap();
    }

    /// Contents of the storage.
    pub fn bytes(&self, sector: u64, len: usize) -> Vec<u8> {
        let at = usize::try_from(sector * 512).unwrap();
        self.state.lock().unwrap().bytes[at..at + len].to_vec()
    }
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.answer();
        self.vanish();
    }
}

impl OneFile {
    fn attributes(&self, inode: INodeNo) -> FileAttr {
        let is_root = inode == INodeNo::ROOT;
        let size = if is_root { 0 } else { self.state.lock().unwrap().bytes.len() as u64 };
        FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_root { FileType::Directory } else { FileType::RegularFile },
            perm: if is_root { 0o755 } else { 0o644 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// Does an operation as the fault wants it, now or later. `done`: how many of the bytes are to
    /// be done; an error number.
    fn as_it_is(
        &self,
        which: impl Fn(&mut Faults) -> &mut Fault,
        len: usize,
        done: impl FnOnce(&mut State, Result<usize, i32>) + Send + 'static,
    ) {
        let mut state = self.state.lock().unwrap();
        let told = which(&mut state.faults);
        let fault = *told;
        if fault == Fault::HangOnce {
            *told = Fault::None;
        }
        state.met += usize::from(fault != Fault::None);
        match fault {
            Fault::None => done(&mut state, Ok(len)),
            Fault::Error(errno) => done(&mut state, Err(errno)),
            Fault::Half => done(&mut state, Ok(if len > 4096 { len / 8192 * 4096 } else { len })),
            Fault::Nothing => done(&mut state, Ok(0)),
            Fault::Hang | Fault::HangOnce => {
                state.held.push(Box::new(move |state| done(state, Ok(len))))
            }
        }
    }
}

impl Filesystem for OneFile {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Without the first, Linux (6.18) continues a partial direct write of io_uring at its
        // beginning, and reports that all is written.
        let mut wanted = InitFlags::FUSE_ASYNC_DIO;
        if self.is_late {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        config.add_capabilities(wanted).map_err(|_| std::io::ErrorKind::Unsupported.into())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == Path::new(NAME) {
            true => {
                let attributes = self.attributes(FILE);
                self.as_it_is(
                    |faults| &mut faults.look,
                    0,
                    move |_, _| reply.entry(&TTL, &attributes, Generation(0)),
                );
            }
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let attributes = self.attributes(inode);
        self.as_it_is(|faults| &mut faults.look, 0, move |_, _| reply.attr(&TTL, &attributes));
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<fuser::TimeOrNow>,
        _: Option<fuser::TimeOrNow>,
        _: Option<std::time::SystemTime>,
        _: Option<FileHandle>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let Some(size) = size {
            self.state.lock().unwrap().bytes.resize(usize::try_from(size).unwrap(), 0);
        }
        reply.attr(&TTL, &self.attributes(inode));
    }

    fn open(&self, _: &Request, _: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        // Around the page cache, a partial read is reported as partial.
        let is_direct = flags.0 & libc::O_DIRECT != 0;
        let how =
            if is_direct { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::FOPEN_KEEP_CACHE };
        reply.opened(FileHandle(0), how);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let (at, size) = (usize::try_from(offset).unwrap(), size as usize);
        self.as_it_is(
            |faults| &mut faults.read,
            size,
            move |state, done| match done {
                Ok(len) => {
                    let end = (at + len).min(state.bytes.len());
                    reply.data(&state.bytes[at.min(end)..end]);
                }
                Err(errno) => reply.error(Errno::from_i32(errno)),
            },
        );
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (at, data) = (usize::try_from(offset).unwrap(), data.to_vec());
        self.as_it_is(
            |faults| &mut faults.write,
            data.len(),
            move |state, done| match done {
                Ok(len) => {
                    let end = (at + len).max(state.bytes.len());
                    state.bytes.resize(end, 0);
                    state.bytes[at..at + len].copy_from_slice(&data[..len]);
                    reply.written(u32::try_from(len).unwrap());
                }
                Err(errno) => reply.error(Errno::from_i32(errno)),
            },
        );
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.as_it_is(
            |faults| &mut faults.sync,
            0,
            move |_, done| match done {
                Ok(_) => reply.ok(),
                Err(errno) => reply.error(Errno::from_i32(errno)),
            },
        );
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (at, len) = (usize::try_from(offset).unwrap(), usize::try_from(len).unwrap());
        let is_zeroed = mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0;
        self.as_it_is(
            |faults| &mut faults.range,
            len,
            move |state, done| match done {
                Ok(len) => {
                    let end = (at + len).min(state.bytes.len());
                    if is_zeroed && at < end {
                        state.bytes[at..end].fill(0);
                    }
                    reply.ok();
                }
                Err(errno) => reply.error(Errno::from_i32(errno)),
            },
        );
    }
}
