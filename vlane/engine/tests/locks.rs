//! Image locks: another volume, another process and QEMU see that an image is in use, and are seen.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use common::places::{Loop, Mount, alone, command, image, on_disk, open, skip};
use common::{Op, Rig, bytes};
use vlane_engine::file::{Cache, FileEngine, FileOptions, JournalWay};
use vlane_engine::{EngineError, ErrorKind};

fn try_open(path: &Path, read_only: bool) -> Result<FileEngine, EngineError> {
    FileEngine::open(path, FileOptions { cache: Cache::Auto, read_only, ..FileOptions::default() })
}

fn refused(path: &Path, read_only: bool) -> String {
    let error = try_open(path, read_only).expect_err("locked");
    assert_eq!(error.kind(), ErrorKind::Locked);
    error.to_string()
}

/// A qemu-io that has the image open, until it is dropped.
struct QemuIo(Child);

impl QemuIo {
    fn new(path: &Path, read_only: bool) -> Option<QemuIo> {
        let mut args = vec!["-f", "raw"];
        if read_only {
            args.push("-r");
        }
        let mut child = Command::new("qemu-io")
            .args(args)
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        // It has opened the image when it answers.
        child.stdin.as_mut()?.write_all(b"length\n").ok()?;
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut()?).read_line(&mut line).ok()?;
        assert!(line.contains("MiB"), "{line}");
        Some(QemuIo(child))
    }
}

impl Drop for QemuIo {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn has_qemu() -> bool {
    let found = command("qemu-io", &["--version"]);
    if let Err(why) = &found {
        skip(why);
    }
    found.is_ok()
}

#[test]
fn image_has_one_writer_or_many_readers() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), 1 << 20);
    let writer = try_open(&path, false).expect("open");
    assert!(refused(&path, false).contains("by this process already; stop it, or serve read-only"));
    assert!(refused(&path, true).ends_with("stop it first"));
    drop(writer);
    let readers = [try_open(&path, true).expect("one"), try_open(&path, true).expect("two")];
    assert!(refused(&path, false).contains("image is locked"));
    drop(readers);
    try_open(&path, false).expect("free again");
}

#[test]
fn ended_volume_is_free_at_once() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), 1 << 20);
    for cache in [Cache::Auto, Cache::Writeback] {
        // A busy machine is slow in some of the rounds.
        let mut quick = 0;
        for round in 0..6 {
            let begin = std::time::Instant::now();
            let mut rig = Rig::new(open(&path, cache));
            quick += usize::from(round > 0 && begin.elapsed().as_millis() < 1000);
            rig.ok(Op::write(0, bytes(round, 4096)));
            rig.ok(Op::Flush);
        }
        assert!(quick >= 2, "{cache:?}: had to wait for the last round's locks");
    }
}

#[test]
fn qemu_refuses_a_served_image() {
    let _alone = alone();
    if !has_qemu() {
        return;
    }
    let dir = on_disk();
    let path = image(dir.path(), 1 << 20);
    let name = path.to_string_lossy().into_owned();
    let write = ["-f", "raw", "-c", "write 0 512", &name];
    let read = ["-f", "raw", "-r", "-c", "read 0 512", &name];
    let served = try_open(&path, false).expect("open");
    let resize = ["resize", "-f", "raw", &name, "2M"];
    for (program, args) in [("qemu-io", &write[..]), ("qemu-img", &resize[..])] {
        let refusal = command(program, args).expect_err("locked");
        assert!(refusal.contains("lock"), "{refusal}");
    }
    drop(served);
    let served = try_open(&path, true).expect("open read-only");
    command("qemu-io", &read).expect("readers share");
    command("qemu-io", &write).expect_err("locked");
    drop(served);
    command("qemu-io", &write).expect("free again");
}

#[test]
fn image_in_use_by_qemu_is_refused() {
    let _alone = alone();
    if !has_qemu() {
        return;
    }
    let dir = on_disk();
    let path = image(dir.path(), 1 << 20);
    {
        let qemu = QemuIo::new(&path, false).expect("qemu-io");
        for read_only in [false, true] {
            let text = refused(&path, read_only);
            let holder = format!("another process (pid {}, qemu-io)", qemu.0.id());
            assert!(text.contains(&holder), "{text}");
        }
    }
    {
        let _qemu = QemuIo::new(&path, true).expect("qemu-io");
        try_open(&path, true).expect("readers share");
    }
    try_open(&path, false).expect("free again");
}

/// Holds one byte of an image's locks, as QEMU does (block/file-posix.c).
fn hold(path: &Path, byte: i64) -> File {
    let file = File::open(path).expect("open");
    // SAFETY: plain data; all zeroes is valid, and OFD locks demand a zero pid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(libc::F_RDLCK).expect("small");
    lock.l_start = byte;
    lock.l_len = 1;
    // SAFETY: an open file and a valid lock.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) }, 0);
    file
}

#[test]
fn lock_bytes_mean_the_same_as_qemu_s() {
    let _alone = alone();
    let dir = on_disk();
    let path = image(dir.path(), 1 << 20);
    // (byte, whether it stops a writer, whether it stops a reader): reads consistently, writes,
    // writes what is there already, resizes; forbids others the same.
    for (byte, writer, reader) in [
        (100, false, false),
        (101, true, true),
        (102, false, false),
        (103, true, true),
        (200, true, true),
        (201, true, false),
        (202, false, false),
        (203, false, false),
    ] {
        let _held = hold(&path, byte);
        assert_eq!(try_open(&path, false).is_err(), writer, "byte {byte} and a writer");
        assert_eq!(try_open(&path, true).is_err(), reader, "byte {byte} and a reader");
    }
}

/// The descriptors of this process through which the image can be written, and those of them that
/// have a writer's locks.
fn writing(path: &Path) -> (Vec<String>, Vec<String>) {
    let path = path.canonicalize().expect("path");
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("fd").flatten();
    let ours = descriptors.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to == path));
    let info = |fd: &std::fs::DirEntry| {
        let path = Path::new("/proc/self/fdinfo").join(fd.file_name());
        std::fs::read_to_string(path).expect("fdinfo")
    };
    let flags = |info: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix("flags:"));
        u32::from_str_radix(line.expect("flags").trim(), 8).expect("octal")
    };
    let writable: Vec<String> =
        ours.map(|fd| info(&fd)).filter(|info| flags(info) & 3 != 0).collect();
    let locked = |info: &&String| ["100 101", "201 201"].iter().all(|byte| info.contains(byte));
    let with_locks = writable.iter().filter(locked).cloned().collect();
    (writable, with_locks)
}

#[test]
fn every_written_file_has_the_locks() {
    let _alone = alone();
    let dir = on_disk();
    let file = image(dir.path(), 8 << 20);
    let memory = common::places::in_memory();
    let in_memory = memory.as_ref().map(|dir| image(dir.path(), 8 << 20));
    let below = on_disk();
    let device = Loop::new(&image(below.path(), 8 << 20), 512);
    let device = device.inspect_err(|why| skip(why)).ok();
    let places = [Some(file), in_memory, device.as_ref().map(|device| device.device.clone())];
    let mut most = 0;
    for path in places.into_iter().flatten() {
        for cache in [Cache::Auto, Cache::Writeback, Cache::WriteThrough, Cache::Pdc] {
            for journal in [JournalWay::Drop, JournalWay::Direct] {
                let options = FileOptions { cache, journal, ..FileOptions::default() };
                let mut rig = Rig::new(Arc::new(FileEngine::open(&path, options).expect("open")));
                rig.ok(Op::write(0, bytes(1, 4096)));
                rig.ok(Op::Flush);
                let (writable, with_locks) = writing(&path);
                assert!(!writable.is_empty());
                assert_eq!(writable, with_locks, "{} {cache:?} {journal:?}", path.display());
                most = most.max(writable.len());
            }
        }
    }
    assert!(most > 1, "no image is reached in two ways");
}

#[test]
fn mounted_device_is_read_only() {
    let _alone = alone();
    let dir = on_disk();
    let mount = match Mount::ext4(&image(dir.path(), 16 << 20), 512) {
        Ok(mount) => mount,
        Err(why) => return skip(why),
    };
    let device = &mount.device.as_ref().expect("a device").device;
    assert!(refused(device, false).contains("is in use (mounted"));
    let engine = try_open(device, true).expect("open read-only");
    assert_eq!(Rig::new(Arc::new(engine)).ok(Op::read(0, 4096)).len(), 4096);
}

#[test]
fn device_has_one_writer() {
    let _alone = alone();
    let dir = on_disk();
    let device = match Loop::new(&image(dir.path(), 1 << 20), 512) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    for _ in 0..3 {
        let mut rig = Rig::new(open(&device.device, Cache::Auto));
        rig.ok(Op::write(0, bytes(1, 4096)));
        assert!(refused(&device.device, false).contains("locked by this process already"));
    }
}
