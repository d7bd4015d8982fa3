#![allow(clippy::unwrap_used, reason = "tests")]

use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};

use super::super::table::tests::entry;
use super::super::table::{Entry, Table};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::FileType;

use super::*;
use crate::sys::{self, Attr, Class};
use crate::thread::Thread;

/// A directory, and a list in it that a dead scheduler has left with these entries.
fn left(entries: &[Entry]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let mut table = Table::create(dir.path()).unwrap();
    for entry in entries {
        table.enter(entry).unwrap();
    }
    let path = table.path().to_owned();
    (dir, path)
}

/// A process, with an entry that changes it.
struct Victim(std::process::Child);

impl Victim {
    fn new() -> Self {
        Self(std::process::Command::new("sleep").arg("60").spawn().unwrap())
    }

    fn entry(&self, was: Attr) -> Entry {
        let thread = Thread::open(self.0.id()).unwrap();
        Entry { tid: thread.tid(), start: thread.start(), was }
    }

    fn is(&self) -> Attr {
        sys::get(self.0.id()).unwrap()
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Repairs once no list is held. A process that another test starts holds all open ones until it
/// runs its own program.
fn repair(dir: &Path) -> Result<Repaired> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let done = super::repair(dir)?;
        if done.held == 0 || Instant::now() > until {
            return Ok(done);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The attributes that an entry may have, applied to a thread.
fn nice(is: Attr) -> Attr {
    Attr { nice: 7, slice_ns: 0, ..is }
}

/// A list without a name yet leaves no file behind.
#[test]
fn unnamed_list_vanishes_with_its_process() {
    let dir = tempfile::tempdir().unwrap();
    let (dead, own) =
        (dir.path().join("sched-4294967294-0.new"), format!("sched-{}-0.new", std::process::id()));
    let (own, other) = (dir.path().join(own), dir.path().join("notes.new"));
    for path in [&dead, &own, &other] {
        std::fs::write(path, []).unwrap();
    }
    repair(dir.path()).unwrap();
    assert_eq!((dead.exists(), own.exists(), other.exists()), (false, true, true));
}

#[test]
fn only_abandoned_table_is_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let mut table = Table::create(dir.path()).unwrap();
    table.enter(&entry(u32::MAX >> 1)).unwrap();
    let done = super::repair(dir.path()).unwrap();
    assert_eq!((done.restored, done.held, done.lists), (Restored::default(), 1, 0));
    drop(table);
    let done = repair(dir.path()).unwrap();
    assert_eq!((done.restored, done.lists), (Restored { seen: 1, ..Restored::default() }, 1));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A file in the directory's place gives a readable error, too.
#[test]
fn missing_directory_error_is_readable() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, []).unwrap();
    for (path, kind, words) in [
        (dir.path().join("none"), ErrorKind::Gone, "is not there"),
        (file, ErrorKind::Invalid, "is not a directory"),
    ] {
        let error = repair(&path).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(
            error.to_string().contains(words) && error.to_string().contains("--state-dir"),
            "{error}"
        );
    }
}

#[test]
fn crafted_list_makes_no_thread_realtime() {
    let victim = Victim::new();
    let was = victim.is();
    for class in
        [Class::Else(1), Class::RoundRobin, Class::Else(6), Class::Else(7), Class::Else(99)]
    {
        let (dir, path) = left(&[victim.entry(Attr { class, priority: 99, nice: 0, ..was })]);
        let done = repair(dir.path()).unwrap();
        assert_eq!(victim.is(), was, "{class:?}");
        assert_eq!(
            (done.restored.damaged, done.restored.changed, done.problems.len()),
            (1, 0, 1),
            "{class:?}"
        );
        assert!(
            !path.exists() && path.with_extension("threads.damaged").exists(),
            "{class:?}: not kept"
        );
    }
    for odd in
        [Attr { nice: 20, ..was }, Attr { priority: 1, ..was }, Attr { slice_ns: u64::MAX, ..was }]
    {
        let (dir, _) = left(&[victim.entry(odd)]);
        assert_eq!(repair(dir.path()).unwrap().restored.damaged, 1, "{odd:?}");
        assert_eq!(victim.is(), was);
    }
    // Another thread that had this number.
    let entry = victim.entry(nice(was));
    let (dir, _) = left(&[Entry { start: entry.start + 1, ..entry }]);
    assert_eq!(repair(dir.path()).unwrap().restored.changed, 0);
    assert_eq!(victim.is(), was);
}

#[test]
fn list_writable_by_others_is_ignored() {
    let victim = Victim::new();
    let was = victim.is();
    let entries = [victim.entry(nice(was))];
    let refused = |dir: &Path, words: &str| {
        let said = match repair(dir) {
            Ok(done) => done.problems.join("\n"),
            Err(error) => error.to_string(),
        };
        assert!(said.contains(words), "{words}: {said}");
        assert_eq!(victim.is(), was, "{words}");
    };
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap()
    };

    let (dir, path) = left(&entries);
    mode(&path, 0o620);
    refused(dir.path(), "others may write to the file");
    mode(&path, 0o600);
    mode(dir.path(), 0o1777);
    refused(dir.path(), "others may write to the directory");
    mode(dir.path(), 0o700);
    // Links lead to a place that another user chose.
    let elsewhere = tempfile::tempdir().unwrap();
    symlink(&path, elsewhere.path().join(path.file_name().unwrap())).unwrap();
    refused(elsewhere.path(), "symbolic link");
    assert!(path.exists());
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(1234), None).unwrap();
        refused(dir.path(), "the file belongs to user 1234");
        assert!(path.exists());
        chown(&path, Some(0), None).unwrap();
        chown(dir.path(), Some(1234), None).unwrap();
        refused(dir.path(), "the directory belongs to user 1234");
        chown(dir.path(), Some(0), None).unwrap();
    }
    // And else it is.
    assert_eq!(repair(dir.path()).unwrap().restored.changed, 1);
    assert_eq!(victim.is().nice, 7);
}

/// Neither of them delays the repair.
#[test]
fn pipe_or_directory_as_list_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("sched-1-0.threads");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, 0o600.into(), 0).unwrap();
    std::fs::create_dir(dir.path().join("sched-2-0.threads")).unwrap();
    let done = repair(dir.path()).unwrap();
    assert_eq!((done.problems.len(), pipe.exists()), (2, true), "{:?}", done.problems);
}

/// The readable entries are carried out.
#[test]
fn damaged_list_is_repaired_in_part_and_kept() {
    let victim = Victim::new();
    let was = victim.is();
    for damage in ["cut short", "longer", "scribbled", "empty"] {
        let done_before = victim.entry(nice(was));
        let (dir, path) = left(&[done_before, entry(7)]);
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        match damage {
            "cut short" => file.set_len(3 * 64 - 1).unwrap(),
            "longer" => file.set_len(3 * 64 + 5).unwrap(),
            "empty" => file.set_len(0).unwrap(),
            _ => file.write_all_at(b"?", 2 * 64).unwrap(),
        }
        let bytes = std::fs::read(&path).unwrap();
        let done = repair(dir.path()).unwrap();
        assert_eq!(done.restored.changed, usize::from(damage != "empty"), "{damage}");
        assert!(done.problems[0].contains("damaged"), "{damage}: {:?}", done.problems);
        assert_eq!(
            std::fs::read(path.with_extension("threads.damaged")).unwrap(),
            bytes,
            "{damage}"
        );
        // Reported once.
        assert!(repair(dir.path()).unwrap().problems.is_empty(), "{damage}");
        sys::set(victim.0.id(), &Attr { slice_ns: 0, ..was }).unwrap();
    }
}
