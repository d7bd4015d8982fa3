//! Groups that share the CPUs by weights of their own: cgroups, and the autogroups of sessions.
//!
//! A nice value counts only among the threads of one group (sched(7), "The autogroup feature").
//! Machines of libvirt have a cgroup each, and on most kernels each session has an autogroup. So a
//! group is held back when all its vCPUs are. Only a group with the kernel's usual weight, and
//! without any other program, is touched. It is noted in the [table](super::table) first.

use std::io;
use std::path::{Component, Path, PathBuf};

use nix::unistd::{Pid, getsid};
use rustix::thread::{CapabilitySet, capabilities};

use crate::thread::{self, NiceGroup, Thread, is_same, process_of};

/// Bytes of a note: no longer path is held back.
pub(super) const NOTE: usize = 512;
const MAGIC: [u8; 8] = *b"vlgroup1";
const HEADER: usize = 24;
/// Threads and cgroups that are looked at for one group. A group with more is not held back.
const MOST: usize = 512;
/// Processes that are looked at to find a session's.
const MOST_PROCESSES: usize = 8192;
const CGROUPS: &str = "/sys/fs/cgroup";

/// The weight of a group that was not set, and of one that is held back: about that of nice 19.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Weights {
    usual: i64,
    held: i64,
}

/// A group of threads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    /// The file of its weight: `cpu.weight`, `cpu.shares`, or a process's `autogroup`.
    path: PathBuf,
    /// The start time of the session's process (clock ticks after boot); 0: a cgroup.
    start: u64,
}

impl Group {
    /// The groups above a thread that have no program but its machine. They are its own group, and
    /// the highest.
    pub(super) fn above(thread: &Thread) -> Vec<Self> {
        let (root, file, path) = match thread.competes_in() {
            NiceGroup::Host => return Vec::new(),
            NiceGroup::Session(_) => return Self::of_session(thread.pid()).into_iter().collect(),
            NiceGroup::Version1(path) => (format!("{CGROUPS}/cpu"), "cpu.shares", path),
            NiceGroup::Version2(path) => (CGROUPS.to_owned(), "cpu.weight", path),
        };
        let leaf = PathBuf::from(format!("{root}{path}"));
        // Of another namespace of cgroups, the path may lead to another group here.
        if !threads_of(&leaf).is_some_and(|tids| tids.contains(&thread.tid())) {
            return Vec::new();
        }
        let below_root = leaf.ancestors().take_while(|group| *group != Path::new(&root));
        let mut left = MOST;
        let own = below_root.take_while(|group| has_only(group, thread.pid(), &mut left));
        let mut found: Vec<Self> = own
            .map(|group| Self { path: group.join(file), start: 0 })
            .filter(|group| group.path.exists() && group.to_bytes().is_some())
            .collect();
        if found.len() > 2 {
            found.drain(1..found.len() - 1);
        }
        found
    }

    /// The session of a process, if nobody else is in it. Then this stays so: only children of its
    /// members can come into a session. Without CAP_SYS_ADMIN the kernel changes ten sessions per
    /// second, which is too few.
    fn of_session(pid: u32) -> Option<Self> {
        if !capabilities(None).ok()?.effective.contains(CapabilitySet::SYS_ADMIN) {
            return None;
        }
        let session = session_of(pid)?;
        let is_own = |other: u32| {
            other == pid || Thread::open(other).is_ok_and(|other| other.parent() == Some(pid))
        };
        // All members are children of the leader. If it has ended, as that of a daemon, they are
        // looked for.
        let is_alone = session.as_raw().unsigned_abs() == pid || {
            let all = std::fs::read_dir("/proc").ok()?.flatten();
            let all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            let members = |&(_, other): &(usize, u32)| session_of(other) == Some(session);
            all.enumerate().filter(members).all(|(at, other)| at < MOST_PROCESSES && is_own(other))
        };
        let start = Thread::open(pid).ok()?.start();
        is_alone.then(|| Self { path: format!("/proc/{pid}/autogroup").into(), start })
    }

    /// The process by which a session is named.
    fn member(&self) -> Option<u32> {
        self.path.to_str()?.strip_prefix("/proc/")?.strip_suffix("/autogroup")?.parse().ok()
    }

    /// None for a file that is no group's.
    fn weights(&self) -> Option<Weights> {
        let is_cgroup = self.path.starts_with(CGROUPS)
            && !self.path.components().any(|part| part == Component::ParentDir);
        match self.path.file_name()?.to_str()? {
            "cpu.weight" if is_cgroup => Some(Weights { usual: 100, held: 1 }),
            "cpu.shares" if is_cgroup => Some(Weights { usual: 1024, held: 15 }),
            "autogroup" if self.member().is_some() => Some(Weights { usual: 0, held: 19 }),
            _ => None,
        }
    }

    /// Its present weight; none: it is gone.
    fn weight(&self) -> io::Result<Option<i64>> {
        if let Some(member) = self.member()
            && !is_same(member, self.start)?
        {
            return Ok(None);
        }
        match std::fs::read_to_string(&self.path) {
            // "/autogroup-17 nice 0", or the number alone.
            Ok(text) => Ok(text.split_whitespace().next_back().and_then(|text| text.parse().ok())),
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Changes the weight, unless another program has changed it; returns true if that was done.
    fn change(&self, from: i64, to: i64) -> io::Result<bool> {
        if self.weight()? != Some(from) {
            return Ok(false);
        }
        match std::fs::write(&self.path, to.to_string()) {
            Ok(()) => Ok(true),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns true if it has the usual weight.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub(super) fn is_usual(&self) -> io::Result<bool> {
        Ok(self.weight()?.is_some_and(|is| Some(is) == self.weights().map(|all| all.usual)))
    }

    /// Holds a group with the usual weight back.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(super) fn hold_back(&self) -> io::Result<bool> {
        let Weights { usual, held } = self.weights().ok_or(io::ErrorKind::InvalidData)?;
        self.change(usual, held)
    }

    /// Gives a group that is held back its usual weight; returns true if that was a change.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(super) fn restore(&self) -> io::Result<bool> {
        let Weights { usual, held } = self.weights().ok_or(io::ErrorKind::InvalidData)?;
        self.change(held, usual)
    }

    /// A note of it; none: its path is too long.
    pub(super) fn to_bytes(&self) -> Option<[u8; NOTE]> {
        let path = self.path.to_str()?.as_bytes();
        let mut bytes = [0; NOTE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.start.to_le_bytes());
        bytes[16..HEADER].copy_from_slice(&(path.len() as u64).to_le_bytes());
        bytes.get_mut(HEADER..HEADER + path.len())?.copy_from_slice(path);
        Some(bytes)
    }

    /// Returns true if a note begins so.
    pub(super) fn is_note(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// None if no scheduler has written this.
    pub(super) fn from_bytes(bytes: &[u8; NOTE]) -> Option<Self> {
        let get = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let len = usize::try_from(get(16)?).ok()?;
        let path = std::str::from_utf8(bytes.get(HEADER..HEADER.checked_add(len)?)?).ok()?;
        let group = Self { path: path.into(), start: get(8)? };
        (Self::is_note(bytes) && group.weights().is_some()).then_some(group)
    }
}

/// Returns true if the error means that a group no longer exists.
fn is_gone(error: &io::Error) -> bool {
    thread::is_gone(error) || error.raw_os_error() == Some(libc::ENODEV)
}

/// Not rustix's call, which has no number for the kernel's own threads.
fn session_of(pid: u32) -> Option<Pid> {
    getsid(Some(Pid::from_raw(pid.cast_signed()))).ok()
}

/// The threads of a cgroup. One of single threads has no list of processes.
fn threads_of(group: &Path) -> Option<Vec<u32>> {
    let mut lists = ["cgroup.threads", "tasks"].iter().map(|name| group.join(name));
    let threads = lists.find_map(|list| std::fs::read_to_string(list).ok())?;
    threads.lines().map(|tid| tid.parse().ok()).collect()
}

/// Returns true if a cgroup and all below it have only threads of this process and its children.
/// Each cgroup and each thread is one of those that are `left` to be looked at.
fn has_only(group: &Path, pid: u32, left: &mut usize) -> bool {
    let is_own = |&tid: &u32| {
        process_of(tid).is_ok_and(|(process, _)| process == pid)
            || Thread::open(tid).is_ok_and(|thread| thread.parent() == Some(pid))
    };
    let Some(threads) = threads_of(group) else { return false };
    let Some(less) = left.checked_sub(1 + threads.len()) else { return false };
    *left = less;
    let Ok(below) = std::fs::read_dir(group) else { return false };
    let mut below = below.flatten().filter(|entry| entry.file_type().is_ok_and(|of| of.is_dir()));
    threads.iter().all(is_own) && below.all(|entry| has_only(&entry.path(), pid, left))
}

/// Returns true if a thread's own nice value or a group of its machine can hold it back.
pub fn can_be_held_back(thread: &Thread) -> bool {
    matches!(thread.competes_in(), NiceGroup::Host) || !Group::above(thread).is_empty()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn only_possible_notes_are_read() {
        let group = |path: &str| Group { path: path.into(), start: 99 };
        for good in [
            "/sys/fs/cgroup/machine.slice/a.scope/cpu.weight",
            "/sys/fs/cgroup/cpu/a/cpu.shares",
            "/proc/7/autogroup",
        ] {
            let good = group(good);
            assert_eq!(Group::from_bytes(&good.to_bytes().unwrap()), Some(good));
        }
        for bad in [
            "/sys/fs/cgroup/a/cpu.max",
            "/sys/fs/cgroup/../../../tmp/cpu.weight",
            "/tmp/cpu.shares",
            "/proc/7/task/8/autogroup",
            "/proc/self/autogroup",
        ] {
            let bad = group(bad);
            assert_eq!(Group::from_bytes(&bad.to_bytes().unwrap()), None, "{bad:?}");
            assert!(bad.restore().is_err() && bad.hold_back().is_err(), "{bad:?}");
        }
        let long = format!("/sys/fs/cgroup/{}/cpu.weight", "a".repeat(NOTE));
        assert_eq!(group(&long).to_bytes(), None);
    }

    proptest::proptest! {
        #[test]
        fn any_note_is_read_or_refused(mut bytes in proptest::collection::vec(0u8.., NOTE)) {
            bytes[..8].copy_from_slice(&MAGIC);
            let _ = Group::from_bytes(&bytes.try_into().unwrap());
        }
    }
}
