//! The two system calls that no safe wrapper has: `sched_setattr(2)` and `sched_getattr(2)`.

use std::io;

/// `SCHED_FLAG_RESET_ON_FORK`: children are not real-time.
const RESET_ON_FORK: u64 = 1;

/// A scheduling policy of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// `SCHED_OTHER`: EEVDF (before Linux 6.6: CFS).
    Other,
    /// `SCHED_RR`: real-time, in turns.
    RoundRobin,
    /// `SCHED_BATCH`.
    Batch,
    /// `SCHED_IDLE`: runs only on CPU time that is unused otherwise.
    Idle,
    /// Another one, by its number in the kernel (`SCHED_FIFO`, `SCHED_DEADLINE`, `SCHED_EXT`, ...).
    Else(u32),
}

impl Class {
    /// The kernel's number.
    pub const fn number(self) -> u32 {
        match self {
            Self::Other => 0,
            Self::RoundRobin => 2,
            Self::Batch => 3,
            Self::Idle => 5,
            Self::Else(number) => number,
        }
    }

    /// The class with this number.
    pub const fn of(number: u32) -> Self {
        match number {
            0 => Self::Other,
            2 => Self::RoundRobin,
            3 => Self::Batch,
            5 => Self::Idle,
            other => Self::Else(other),
        }
    }

    /// Runs before all threads that are not real-time.
    pub const fn is_real_time(self) -> bool {
        // FIFO, RR, DEADLINE.
        matches!(self.number(), 1 | 2 | 6)
    }
}

/// A thread's scheduling attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Its policy.
    pub class: Class,
    /// Its nice value, -20 to 19; not with real-time policies.
    pub nice: i32,
    /// Its real-time priority, 1 to 99; 0 with the other policies.
    pub priority: u32,
    /// True if its children go back to `SCHED_OTHER`.
    pub reset_on_fork: bool,
    /// Its time slice under EEVDF, ns (since Linux 6.12); 0: the system's.
    pub slice_ns: u64,
}

impl Attr {
    /// `SCHED_RR` with a priority, and children that are not.
    pub const fn round_robin(priority: u32) -> Self {
        Self { class: Class::RoundRobin, nice: 0, priority, reset_on_fork: true, slice_ns: 0 }
    }
}

/// `struct sched_attr` in its first version, which every kernel with the call knows.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct Raw {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// The structure's size, which the kernel requires.
const SIZE: u32 = 48;
const _: () = assert!(size_of::<Raw>() == SIZE as usize);

fn target(tid: u32) -> io::Result<libc::pid_t> {
    // 0 would be the caller, and negative numbers have another meaning: neither is ever intended.
    libc::pid_t::try_from(tid)
        .ok()
        .filter(|&tid| tid > 0)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ESRCH))
}

/// Reads a thread's scheduling attributes.
///
/// # Errors
///
/// ESRCH: no such thread.
pub fn get(tid: u32) -> io::Result<Attr> {
    let tid = target(tid)?;
    let mut raw = Raw::default();
    // SAFETY: the kernel writes at most SIZE bytes to `raw`, which is that long and lives until the
    // call is over.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, tid, &raw mut raw, SIZE, 0) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Attr {
        class: Class::of(raw.policy),
        nice: raw.nice,
        priority: raw.priority,
        reset_on_fork: raw.flags & RESET_ON_FORK != 0,
        slice_ns: raw.runtime,
    })
}

/// Schedules a thread in another way.
///
/// # Errors
///
/// ESRCH: no such thread. EPERM: CAP_SYS_NICE is missing, or the thread's group has no real-time
/// budget (`RT_GROUP_SCHED`). EINVAL: the kernel does not know such a policy.
pub fn set(tid: u32, attr: &Attr) -> io::Result<()> {
    let tid = target(tid)?;
    let raw = Raw {
        size: SIZE,
        policy: attr.class.number(),
        flags: if attr.reset_on_fork { RESET_ON_FORK } else { 0 },
        nice: attr.nice,
        priority: attr.priority,
        runtime: attr.slice_ns,
        ..Raw::default()
    };
    // SAFETY: the kernel reads SIZE bytes of `raw`, which is that long and lives until the call is
    // over.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const raw, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn thread_keeps_the_set_attributes() {
        std::thread::spawn(|| {
            let me = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            let before = get(me).unwrap();
            assert_eq!((before.class, before.priority), (Class::Other, 0));
            set(me, &Attr { nice: 7, ..before }).unwrap();
            assert_eq!(get(me).unwrap().nice, 7);
        })
        .join()
        .unwrap();
    }

    /// A bad number must never mean the calling thread.
    #[test]
    fn bad_thread_number_is_an_error() {
        for tid in [0, u32::MAX, i32::MAX.unsigned_abs()] {
            assert_eq!(get(tid).unwrap_err().raw_os_error(), Some(libc::ESRCH), "{tid}");
            let error = set(tid, &Attr::round_robin(1)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ESRCH), "{tid}");
        }
    }

    #[test]
    fn classes_have_the_kernels_numbers() {
        for number in 0..10 {
            assert_eq!(Class::of(number).number(), number);
        }
        assert!(Class::RoundRobin.is_real_time() && Class::Else(1).is_real_time());
        assert!(
            !Class::Idle.is_real_time()
                && !Class::Other.is_real_time()
                && !Class::Batch.is_real_time()
        );
    }
}
