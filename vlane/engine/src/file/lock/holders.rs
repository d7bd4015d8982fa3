//! Finds the processes that have an image open and locked, as far as `/proc` shows it: the system
//! does not name the holder of an open file description lock.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// `PF_EXITING` of the kernel's `sched.h`, as `/proc/PID/stat` shows it.
const EXITING: u64 = 0x4;
/// SIGKILL's bit in the masks of `/proc/PID/status`.
const KILLED: u64 = 1 << 8;

/// A process that has the image open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::file) struct Opener {
    pub(super) pid: u32,
    pub(super) name: String,
    /// One of its descriptors of the image has locks, or that is unknown.
    pub(super) has_locks: bool,
    /// It was ended, and the system cannot let go of it yet: a thread of it is inside a system call
    /// of the storage.
    pub(super) is_ending: bool,
}

/// The holders that `/proc` shows.
#[derive(Debug, Default)]
pub(super) struct Openers {
    found: Vec<Opener>,
}

impl Openers {
    /// Looks at all processes. Of this one, only descriptors that have locks count, and not `file`
    /// itself.
    pub(super) fn of(file: &File) -> Openers {
        let mut openers = Openers::default();
        let Ok(wanted) = file.metadata() else { return openers };
        let wanted = (wanted.dev(), wanted.ino());
        for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
            else {
                continue;
            };
            let descriptors = descriptors(&process.path(), wanted);
            let is_ours = pid == std::process::id();
            let others =
                descriptors.iter().filter(|(number, _)| !is_ours || *number != file.as_raw_fd());
            let (mut is_open, mut has_locks) = (false, false);
            for (_, info) in others {
                is_open = true;
                has_locks |= info
                    .as_ref()
                    .is_none_or(|info| info.lines().any(|line| line.starts_with("lock:")));
            }
            if !is_open || (is_ours && !has_locks) {
                continue;
            }
            let name = std::fs::read(process.path().join("comm")).unwrap_or_default();
            let name = String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned();
            openers.found.push(Opener {
                pid,
                name,
                has_locks,
                is_ending: is_ending(&process.path()),
            });
        }
        openers
    }

    /// The first other one that runs, whether it has locks or not.
    pub(super) fn other_running(&self) -> Option<&Opener> {
        self.first(|opener| !opener.is_ending && opener.pid != std::process::id())
    }

    /// The first that runs and has locks; others before this process.
    pub(super) fn locking(&self) -> Option<&Opener> {
        self.first(|opener| !opener.is_ending && opener.has_locks)
    }

    /// The first that was ended and is still there.
    pub(super) fn ending(&self) -> Option<&Opener> {
        self.first(|opener| opener.is_ending)
    }

    fn first(&self, is_it: impl Fn(&Opener) -> bool) -> Option<&Opener> {
        self.found
            .iter()
            .filter(|opener| is_it(opener))
            .min_by_key(|opener| opener.pid == std::process::id())
    }
}

/// The descriptors of a process that are the file, each with the system's details; none if it may
/// not be looked at.
fn descriptors(process: &Path, wanted: (u64, u64)) -> Vec<(i32, Option<String>)> {
    let found = descriptors_of_thread(process, wanted);
    if !found.is_empty() {
        return found;
    }
    // A first thread that has ended shows none, although the others may still have some.
    let threads = std::fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    let mut found = threads.map(|thread| descriptors_of_thread(&thread.path(), wanted));
    found.find(|found| !found.is_empty()).unwrap_or_default()
}

fn descriptors_of_thread(thread: &Path, wanted: (u64, u64)) -> Vec<(i32, Option<String>)> {
    let is_wanted = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == wanted)
    };
    let entries = std::fs::read_dir(thread.join("fd")).into_iter().flatten().flatten();
    let found = entries.filter(|entry| is_wanted(&entry.path())).filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse::<i32>().ok()?;
        let info = std::fs::read_to_string(thread.join("fdinfo").join(number.to_string())).ok();
        Some((number, info))
    });
    found.collect()
}

/// Returns true if a process was ended: its first thread has ended or ends, or each is killed as
/// soon as its system call returns.
///
/// The first thread's end is the process's: a program that continues without it is rare, and is
/// waited for instead of refused. A thread that waits for its own io_uring to be let go of shows
/// neither.
fn is_ending(process: &Path) -> bool {
    let text = |path: &Path, name: &str| std::fs::read_to_string(path.join(name));
    // A process that is gone by now has ended.
    if text(process, "stat").map_or(true, |stat| ends(&stat)) {
        return true;
    }
    let Ok(threads) = std::fs::read_dir(process.join("task")) else { return true };
    threads.flatten().all(|thread| {
        let (Ok(stat), Ok(status)) = (text(&thread.path(), "stat"), text(&thread.path(), "status"))
        else {
            return true;
        };
        ends(&stat) || is_killed(&status)
    })
}

/// By `/proc/PID/stat`: whether a thread is on its way out.
fn ends(stat: &str) -> bool {
    // proc_pid_stat(5): the name, which may have anything in it, ends with the last bracket; then
    // state, five numbers, flags.
    let Some((_, words)) = stat.rsplit_once(')') else { return false };
    let mut words = words.split_ascii_whitespace();
    let state = words.next().unwrap_or_default();
    let flags = words.nth(5).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
    matches!(state, "Z" | "X") || flags & EXITING != 0
}

/// By `/proc/PID/status`: whether SIGKILL waits for a thread, which then never sees its program
/// again.
fn is_killed(status: &str) -> bool {
    let masks = ["SigPnd:", "ShdPnd:"].map(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    });
    masks.iter().any(|mask| mask & KILLED != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ending_thread_is_seen_under_any_name() {
        let stat = |name: &str, state: &str, flags: u64| {
            format!("7 ({name}) {state} 1 7 7 0 -1 {flags} 0 0 0")
        };
        assert!(!ends(&stat("vlane", "D", 0x40_0040)));
        assert!(ends(&stat("vlane", "D", 0x40_0044)));
        assert!(ends(&stat("vlane", "Z", 0)));
        assert!(!ends(&stat("a) Z 1 7 7 0 -1 4", "S", 0)));
        assert!(!ends("") && !ends("7 (x)"));
    }

    /// Other pending signals do not count as a kill.
    #[test]
    fn killed_thread_is_seen_before_it_ends() {
        let status = |own: &str, shared: &str| {
            format!("Name:\tvlane\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\tffff\n")
        };
        assert!(is_killed(&status("0000000000000100", "0000000000000000")));
        assert!(is_killed(&status("0000000000000000", "0000000000004100")));
        assert!(!is_killed(&status("0000000000004000", "0000000000000200")));
        assert!(!is_killed("Name:\tvlane\n"));
    }

    #[test]
    fn this_process_is_seen_as_holder() {
        assert!(!is_ending(Path::new("/proc/self")));
        let file = tempfile::tempfile().expect("a file");
        // A program that another test starts has all files of this process for a moment.
        let finds = |expected: Option<u32>, what: &str| {
            let begin = std::time::Instant::now();
            loop {
                let found = Openers::of(&file).locking().map(|opener| opener.pid);
                if found == expected {
                    return;
                }
                assert!(begin.elapsed().as_secs() < 60, "{found:?}, {what}");
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        };
        super::super::hold(&file).expect("lock");
        finds(None, "not by the descriptor that asks");
        let again = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).expect("again");
        finds(None, "open, without a lock");
        super::super::hold(&again).expect("lock");
        finds(Some(std::process::id()), "locked");
    }
}
