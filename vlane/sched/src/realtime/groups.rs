//! Groups that share the CPUs by weights of their own: cgroups, and the autogroups of sessions.
//!
//! A nice value counts only among the threads of one group (sched(7), "The autogroup feature").
//! Machines of libvirt have a cgroup each, and on most kernels each session has an autogroup. So a
//! group is held back when all its vCPUs are. Only a group without any other program is touched.
//! Its weight is noted in the [table](super::table) first.

use std::io;
use std::path::{Path, PathBuf};

use nix::unistd::{Pid, getsid};
use vlane_policy::loan::units::DEFAULT_WEIGHT;

use crate::thread::{self, NiceGroup, Thread, is_same, process_of};

/// Bytes of a note: no longer path is held back.
pub(super) const NOTE: usize = 512;
const MAGIC: [u8; 8] = *b"vlgroup1";
const HEADER: usize = 32;
/// A group with more threads is not held back: they are read one by one.
const MOST_THREADS: usize = 4096;
const CGROUPS: &str = "/sys/fs/cgroup";

/// The setting of a group's weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Setting {
    /// `cpu.weight` of cgroup version 2.
    Weight,
    /// `cpu.shares` of version 1.
    Shares,
    /// The nice value of a session's autogroup.
    Nice,
}

impl Setting {
    fn of(path: &Path) -> Option<Self> {
        match path.file_name()?.to_str()? {
            "cpu.weight" => Some(Self::Weight),
            "cpu.shares" => Some(Self::Shares),
            "autogroup" => Some(Self::Nice),
            _ => None,
        }
    }

    /// The values that the kernel accepts.
    fn allows(self, value: i64) -> bool {
        match self {
            Self::Weight => (1..=10_000).contains(&value),
            Self::Shares => (2..=1 << 18).contains(&value),
            Self::Nice => (-20..=19).contains(&value),
        }
    }
}

/// A group of threads.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    /// The file of its weight.
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
        let below_root = leaf.ancestors().take_while(|group| *group != Path::new(&root));
        let mut left = MOST_THREADS;
        let own = below_root.take_while(|group| has_only(group, thread.pid(), &mut left));
        let mut found: Vec<Self> = own
            .map(|group| Self { path: group.join(file), start: 0 })
            .filter(|group| group.path.exists())
            .collect();
        if found.len() > 2 {
            found.drain(1..found.len() - 1);
        }
        found
    }

    /// The session of a process, if nobody else is in it. Then this stays so: only children of its
    /// members can come into a session.
    fn of_session(pid: u32) -> Option<Self> {
        let session = session_of(pid)?;
        let is_own = |other: u32| {
            other == pid || Thread::open(other).is_ok_and(|other| other.parent() == Some(pid))
        };
        // All members are children of the leader. If it has ended, as that of a daemon, they are
        // looked for.
        let is_alone = session.as_raw().unsigned_abs() == pid || {
            let entries = std::fs::read_dir("/proc").ok()?;
            let all = entries.flatten();
            let all = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            all.filter(|&other| session_of(other) == Some(session)).all(is_own)
        };
        let start = Thread::open(pid).ok()?.start();
        is_alone.then(|| Self { path: format!("/proc/{pid}/autogroup").into(), start })
    }

    /// Its setting, if a scheduler can have found it so.
    fn setting(&self) -> Option<Setting> {
        let setting = Setting::of(&self.path)?;
        let is_cgroup = self.path.starts_with(CGROUPS)
            && !self.path.components().any(|part| part == std::path::Component::ParentDir);
        let is_session = self.member().is_some();
        (if setting == Setting::Nice { is_session } else { is_cgroup }).then_some(setting)
    }

    /// The process by which the session is named.
    fn member(&self) -> Option<u32> {
        self.path.to_str()?.strip_prefix("/proc/")?.strip_suffix("/autogroup")?.parse().ok()
    }

    /// Its present weight; none: it is gone, or has a weight that is no number (`cpu.idle`).
    pub(super) fn value(&self) -> io::Result<Option<i64>> {
        let Some(setting) = self.setting() else { return Err(io::ErrorKind::InvalidData.into()) };
        if let Some(member) = self.member()
            && !is_same(member, self.start)?
        {
            return Ok(None);
        }
        match std::fs::read_to_string(&self.path) {
            // "/autogroup-17 nice 0", or the number alone.
            Ok(text) => {
                let value = text.split_whitespace().next_back().and_then(|text| text.parse().ok());
                Ok(value.filter(|&value| setting.allows(value)))
            }
            Err(error) if is_gone(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The weight of a thread with nice 19.
    pub(super) fn hold_back(&self) -> io::Result<()> {
        match self.setting() {
            Some(Setting::Weight) => {
                std::fs::write(self.path.with_file_name("cpu.weight.nice"), "19")
            }
            Some(Setting::Shares) => std::fs::write(&self.path, "15"),
            Some(Setting::Nice) => std::fs::write(&self.path, "19"),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Returns true if the error means that a group no longer exists.
pub(super) fn is_gone(error: &io::Error) -> bool {
    thread::is_gone(error) || error.raw_os_error() == Some(libc::ENODEV)
}

/// Not rustix's call, which has no number for the kernel's own threads.
fn session_of(pid: u32) -> Option<Pid> {
    getsid(Some(Pid::from_raw(pid.cast_signed()))).ok()
}

/// Returns true if a cgroup and all below it have only threads of this process and its children,
/// and not more than are `left`.
fn has_only(group: &Path, pid: u32, left: &mut usize) -> bool {
    // The threads, because a group of single threads has no list of processes.
    let list = ["cgroup.threads", "tasks"];
    let Some(threads) = list.iter().find_map(|name| std::fs::read_to_string(group.join(name)).ok())
    else {
        return false;
    };
    for tid in threads.lines() {
        let is_own = |tid: u32| {
            process_of(tid).is_ok_and(|(process, _)| process == pid)
                || Thread::open(tid).is_ok_and(|thread| thread.parent() == Some(pid))
        };
        if *left == 0 || !tid.parse().is_ok_and(is_own) {
            return false;
        }
        *left -= 1;
    }
    let Ok(below) = std::fs::read_dir(group) else { return false };
    below
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .all(|entry| has_only(&entry.path(), pid, left))
}

/// The weight of a process's machine by its cgroup, as an administrator has set it. The kernel's
/// default is [`DEFAULT_WEIGHT`]; none: the group has other programs, too.
pub fn weight_of(pid: u32) -> Option<u32> {
    let group = Group::above(&Thread::open(pid).ok()?).pop()?;
    let value = u32::try_from(group.value().ok()??).ok()?;
    let default = match group.setting()? {
        Setting::Weight => 100,
        Setting::Shares => 1024,
        // The nice value of a session is a user's, not an administrator's.
        Setting::Nice => return None,
    };
    Some(DEFAULT_WEIGHT.saturating_mul(value).div_ceil(default))
}

/// Returns true if the thread's nice value is not all that can hold it back.
pub fn can_be_held_back(thread: &Thread) -> bool {
    matches!(thread.competes_in(), NiceGroup::Host) || !Group::above(thread).is_empty()
}

/// A group's weight before it was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GroupEntry {
    pub(super) group: Group,
    pub(super) was: i64,
}

impl GroupEntry {
    /// None if its path is too long.
    pub(super) fn to_bytes(&self) -> Option<[u8; NOTE]> {
        let path = self.group.path.to_str()?.as_bytes();
        let mut bytes = [0; NOTE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..16].copy_from_slice(&self.was.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.group.start.to_le_bytes());
        bytes[24..HEADER].copy_from_slice(&(path.len() as u64).to_le_bytes());
        bytes.get_mut(HEADER..HEADER + path.len())?.copy_from_slice(path);
        Some(bytes)
    }

    /// Returns true if a note begins so.
    pub(super) fn begins(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// None if no scheduler has written this.
    pub(super) fn from_bytes(bytes: &[u8; NOTE]) -> Option<Self> {
        let get = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let len = usize::try_from(get(24)?).ok()?;
        let path = std::str::from_utf8(bytes.get(HEADER..HEADER.checked_add(len)?)?).ok()?;
        let group = Group { path: path.into(), start: get(16)? };
        let was = get(8)?.cast_signed();
        (Self::begins(bytes) && group.setting()?.allows(was)).then_some(Self { group, was })
    }

    /// Gives the group its weight back; returns true if that was a change. A group that is gone is
    /// left alone.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(super) fn restore(&self) -> io::Result<bool> {
        let is = self.group.value()?;
        if is.is_none_or(|is| is == self.was) {
            return Ok(false);
        }
        match std::fs::write(&self.group.path, self.was.to_string()) {
            Ok(()) => Ok(true),
            Err(error) if is_gone(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn entry(path: &str, start: u64, was: i64) -> GroupEntry {
        GroupEntry { group: Group { path: path.into(), start }, was }
    }

    #[test]
    fn only_possible_notes_are_read() {
        for good in [
            entry("/sys/fs/cgroup/machine.slice/a.scope/cpu.weight", 0, 100),
            entry("/sys/fs/cgroup/cpu/a/cpu.shares", 0, 1024),
            entry("/proc/7/autogroup", 99, -3),
        ] {
            assert_eq!(GroupEntry::from_bytes(&good.to_bytes().unwrap()), Some(good));
        }
        for bad in [
            entry("/sys/fs/cgroup/a/cpu.weight", 0, 0),
            entry("/sys/fs/cgroup/a/cpu.max", 0, 100),
            entry("/sys/fs/cgroup/../../../tmp/cpu.weight", 0, 100),
            entry("/tmp/cpu.shares", 0, 1024),
            entry("/proc/7/task/8/autogroup", 99, 0),
            entry("/proc/7/autogroup", 99, 20),
        ] {
            assert_eq!(GroupEntry::from_bytes(&bad.to_bytes().unwrap()), None, "{bad:?}");
            assert!(bad.was == 20 || bad.was == 0 || bad.restore().is_err(), "{bad:?}");
        }
        let long = format!("/sys/fs/cgroup/{}/cpu.weight", "a".repeat(NOTE));
        assert_eq!(entry(&long, 0, 100).to_bytes(), None);
    }

    proptest::proptest! {
        #[test]
        fn any_note_is_read_or_refused(mut bytes in proptest::collection::vec(0u8.., NOTE)) {
            bytes[..8].copy_from_slice(&MAGIC);
            let _ = GroupEntry::from_bytes(&bytes.try_into().unwrap());
        }
    }
}
