//! One scheduler per thread, across state directories, vehicles and users.
//!
//! Two that boost and hold back the same thread would each take the other's doing for what the
//! thread was. So a scheduler locks the thread's own entry in `/proc` (`flock` on
//! `/proc/PID/task/TID/stat`). That lock has no name that another process could take first. It
//! depends on no directory and no network namespace, and the kernel drops it however the scheduler
//! ends.
//!
//! Any user may read that file, and thus lock it. The kernel names the holder (`/proc/locks`), so a
//! lock counts only if its holder could be a scheduler. Such a holder has CAP_SYS_NICE in the same
//! user namespace, and not by the file that it runs. A lock outlives `exec`, and so any user can
//! make a set-user-ID program hold one. Others' locks are passed over with a warning.

use std::fs;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::thread::Thread;
use crate::{Error, ErrorKind, Result};

/// CAP_SYS_NICE's bit.
const SYS_NICE: u32 = 23;

/// Takes a thread for this process, until `thread` is dropped. `name` is its vCPU's, for messages.
///
/// # Errors
/// [`ErrorKind::Invalid`]: another scheduler has it.
pub fn take(thread: &Thread, name: &str) -> Result<()> {
    let lock = || flock(thread.entry(), FlockOperation::NonBlockingLockExclusive);
    match lock() {
        Ok(()) => return Ok(()),
        Err(Errno::WOULDBLOCK) => {}
        Err(error) => return Err(failed(thread, name, error.into())),
    }
    let holder = holder(&thread.entry()).map_err(|error| failed(thread, name, error))?;
    let (tid, me) = (thread.tid(), std::process::id());
    match holder {
        // Named twice: by hand, and by its back end.
        Some(pid) if pid == me => Ok(()),
        Some(pid) if !may_schedule(pid).map_err(|error| failed(thread, name, error))? => {
            tracing::warn!(
                "{name}: process {pid} has locked /proc/{tid}/stat as a scheduler does, but is \
                 none (no CAP_SYS_NICE); passed over"
            );
            Ok(())
        }
        // It was released in between, or its holder is not visible from here.
        None if lock().is_ok() => Ok(()),
        holder => {
            let who = holder.map_or_else(String::new, |pid| format!(" (process {pid})"));
            let text = format!(
                "{name}: another scheduler{who} has thread {tid}: left alone; end that scheduler \
                 first (`vlane sched status` shows it)"
            );
            Err(Error::new(ErrorKind::Invalid, text))
        }
    }
}

fn failed(thread: &Thread, name: &str, error: io::Error) -> Error {
    let text = format!("{name}: cannot check for another scheduler of thread {}", thread.tid());
    Error::caused_by(ErrorKind::Io, text, error)
}

/// The process that holds a lock on a file, by the kernel's word.
fn holder(file: &impl AsFd) -> io::Result<Option<u32>> {
    let stat = rustix::fs::fstat(file)?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    Ok(holder_in(
        &fs::read_to_string("/proc/locks")?,
        &format!("{major:02x}:{minor:02x}:{}", stat.st_ino),
    ))
}

/// `1: FLOCK  ADVISORY  WRITE 8139 00:15:34506 0 EOF`
fn holder_in(locks: &str, file: &str) -> Option<u32> {
    locks.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        // A waiter for the lock has an arrow before its kind.
        let is_held = words.next()? == "FLOCK";
        let (pid, of) = (words.nth(2)?, words.next()?);
        (is_held && of == file).then(|| pid.parse().ok()).flatten()
    })
}

/// Returns true if a process may schedule other processes' threads here, and not only in another
/// user namespace.
fn may_schedule(pid: u32) -> io::Result<bool> {
    let read = |who: &str, name: &str| match fs::read(format!("/proc/{who}/{name}")) {
        // A shortage does not describe the holder.
        Err(error) if vlane_socket::is_short(&error) => Err(error),
        read => Ok(read.ok()),
    };
    let status = read(&pid.to_string(), "status")?.unwrap_or_default();
    let (theirs, ours) = (read(&pid.to_string(), "uid_map")?, read("self", "uid_map")?);
    Ok(has_capability(&String::from_utf8_lossy(&status), rustix::process::geteuid().as_raw())
        && theirs.is_some()
        && theirs == ours)
}

/// Returns true if a process with this `/proc/PID/status` has CAP_SYS_NICE by its user. A file with
/// the set-user-ID bit or with capabilities does not count: any user may run it. `own`: this
/// process's user.
fn has_capability(status: &str, own: u32) -> bool {
    let field = |key: &str| status.lines().find_map(|line| line.strip_prefix(key));
    let has = |key: &str| {
        let bits = field(key).and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
        bits.is_some_and(|bits| bits >> SYS_NICE & 1 == 1)
    };
    let users = field("Uid:")
        .unwrap_or_default()
        .split_ascii_whitespace()
        .map(|user| user.parse::<u32>().ok());
    let users: Option<Vec<u32>> = users.collect();
    // Real, effective, saved, and for files.
    let Some(&[user, ref others @ ..]) = users.as_deref() else { return false };
    let is_one = others.len() == 3 && others.iter().all(|&other| other == user);
    // A file's capabilities are never ambient.
    has("CapEff:") && is_one && (user == 0 || user == own || has("CapAmb:"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn lock_list_names_holder_not_waiters() {
        let locks = "1: FLOCK  ADVISORY  WRITE 8139 00:15:34506 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 7 00:15:99 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 9 00:15:345 0 EOF\n";
        assert_eq!(holder_in(locks, "00:15:34506"), Some(8139));
        for none in ["00:15:345", "00:15:99", "08:15:34506", ""] {
            assert_eq!(holder_in(locks, none), None, "{none}");
        }
    }

    #[test]
    fn thread_has_one_holder_until_drop() {
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let thread = Thread::open(other.id()).unwrap();
        take(&thread, "it").unwrap();
        assert_eq!(holder(&thread.entry()).unwrap(), Some(std::process::id()));
        // The same process once more.
        take(&Thread::open(other.id()).unwrap(), "it").unwrap();
        drop(thread);
        let thread = Thread::open(other.id()).unwrap();
        // A process that another test starts holds it, too, until it runs its own program.
        let until = Instant::now() + Duration::from_secs(60);
        while let Some(pid) = holder(&thread.entry()).unwrap() {
            assert!(Instant::now() < until, "process {pid} holds it");
            std::thread::sleep(Duration::from_millis(5));
        }
        other.kill().unwrap();
        other.wait().unwrap();
    }

    /// Any user may run such a program, so its rights prove no scheduler.
    #[test]
    fn set_user_id_program_is_no_scheduler() {
        let (all, nice, none) = ("000001ffffffffff", "0000000000800000", "0000000000000000");
        let status = |users: &str, effective: &str, ambient: &str| {
            format!(
                "Name:\tsu\nUid:\t{users}\nGid:\t0\t0\t0\t0\n\
                 CapEff:\t{effective}\nCapAmb:\t{ambient}\n"
            )
        };
        let has = |users: &str, effective, ambient| {
            has_capability(&status(users, effective, ambient), 1000)
        };
        // Root; a service with another user; this user, by any way of becoming it.
        assert!(has("0\t0\t0\t0", all, none));
        assert!(has("990\t990\t990\t990", nice, nice));
        assert!(has("1000\t1000\t1000\t1000", nice, none));
        // Set-user-ID, and a file with the capability.
        assert!(!has("65534\t0\t0\t0", all, none));
        assert!(!has("1000\t0\t0\t0", all, none));
        assert!(!has("0\t0\t0\t65534", all, none));
        assert!(!has("990\t990\t990\t990", nice, none));
        // Without it, and what is not understood.
        assert!(!has("0\t0\t0\t0", none, none));
        assert!(!has("0", all, all) && !has("", all, all) && !has("0\t0\t0\tx", all, all));
        assert!(!has_capability("", 0));
    }

    #[test]
    fn scheduling_needs_the_capability() {
        let plain = ["--bounding-set", "-sys_nice", "--inh-caps", "-sys_nice", "sleep", "60"];
        let Ok(mut other) = std::process::Command::new("setpriv").args(plain).spawn() else {
            return vlane_testing::skip("no setpriv (util-linux)");
        };
        let stripped = || {
            let name = fs::read_to_string(format!("/proc/{}/comm", other.id())).unwrap();
            name.trim() == "sleep"
        };
        while !stripped() {
            std::thread::yield_now();
        }
        assert!(!may_schedule(other.id()).unwrap());
        other.kill().unwrap();
        other.wait().unwrap();
        if crate::realtime::check().is_ok() {
            assert!(may_schedule(std::process::id()).unwrap());
        }
    }
}
