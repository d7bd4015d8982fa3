//! The system calls of this program: those on priorities, and two that no safe wrapper has,
//! `ioprio_get(2)` and `ioprio_set(2)`.

use std::io;
use std::time::Duration;

use rustix::process::Pid;
use rustix::time::{ClockId, clock_gettime};

use crate::values::{IoPriority, Values};

/// `IOPRIO_WHO_PROCESS`: one thread.
const ONE_THREAD: libc::c_int = 1;

/// The I/O priority of a thread.
pub fn io_priority(tid: i32) -> io::Result<IoPriority> {
    // SAFETY: the call takes two numbers.
    let raw = unsafe { libc::syscall(libc::SYS_ioprio_get, ONE_THREAD, tid) };
    u32::try_from(raw).map(IoPriority::of).map_err(|_| io::Error::last_os_error())
}

/// Sets it.
pub fn set_io_priority(tid: i32, priority: IoPriority) -> io::Result<()> {
    let raw = libc::c_long::from(priority.raw());
    // SAFETY: the call takes three numbers.
    let result = unsafe { libc::syscall(libc::SYS_ioprio_set, ONE_THREAD, tid, raw) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The nice value of a thread; 0 is the calling one.
pub fn nice(tid: i32) -> io::Result<i32> {
    Ok(rustix::process::getpriority_process(Pid::from_raw(tid))?)
}

/// Sets it, of one thread: what the kernel calls a process there is a thread.
pub fn set_nice(tid: i32, nice: i32) -> io::Result<()> {
    Ok(rustix::process::setpriority_process(Pid::from_raw(tid), nice)?)
}

/// Both values of a thread.
pub fn values(tid: i32) -> io::Result<Values> {
    Ok(Values { nice: nice(tid)?, io: io_priority(tid)? })
}

/// The time since the machine was booted, in the unit of a process's start time.
pub fn ticks() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let nanoseconds = u128::from(now.tv_sec.unsigned_abs()) * 1_000_000_000
        + u128::from(now.tv_nsec.unsigned_abs());
    let per_second = u128::from(rustix::param::clock_ticks_per_second());
    u64::try_from(nanoseconds * per_second / 1_000_000_000).unwrap_or(u64::MAX)
}

/// The CPU time that this thread has taken.
pub fn worked() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Returns true if this id is a process, not one of another process's threads; not known on kernels
/// before 5.3.
pub fn is_process(pid: i32) -> bool {
    let Some(pid) = Pid::from_raw(pid) else { return false };
    match rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) {
        Ok(_) => true,
        Err(error) => error == rustix::io::Errno::NOSYS,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn only_the_given_thread_is_set() {
        let before = values(0).unwrap();
        std::thread::spawn(|| {
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            set_io_priority(tid, "be/6".parse().unwrap()).unwrap();
            set_nice(tid, 19).unwrap();
            assert_eq!(values(tid).unwrap().to_string(), "nice 19 io be/6");
            set_io_priority(tid, IoPriority::NONE).unwrap();
            assert_eq!(values(tid).unwrap().to_string(), "nice 19 io none");
            assert!(!is_process(tid));
        })
        .join()
        .unwrap();
        assert_eq!(values(0).unwrap(), before);
        assert!(is_process(rustix::process::getpid().as_raw_nonzero().get()));
    }
}
