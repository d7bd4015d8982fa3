//! The two system calls that no crate wraps: BPF_PROG_RUN on a file descriptor of any thread's, and
//! the policy SCHED_EXT.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `SCHED_EXT` in `include/uapi/linux/sched.h`.
pub(crate) const SCHED_EXT: i32 = 7;

/// Runs a SYSCALL program on `context`, which it reads and writes.
pub(crate) fn run(program: BorrowedFd<'_>, context: &mut [u8]) -> io::Result<()> {
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ctx_in: context.as_mut_ptr().cast_const().cast(),
        ctx_size_in: u32::try_from(context.len()).unwrap_or(u32::MAX),
        ..Default::default()
    };
    // SAFETY: the options say their own size and point to `context` with its length; the kernel
    // reads and writes it during the call only. It is exclusively borrowed.
    let result =
        unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

/// A thread's scheduling policy and real-time priority.
pub(crate) fn policy_of(tid: u32) -> io::Result<(i32, i32)> {
    let mut param = libc::sched_param { sched_priority: 0 };
    // SAFETY: both calls take a number and, the second, a struct that is written during the call.
    let policy = unsafe {
        let policy = libc::sched_getscheduler(tid.cast_signed());
        if policy < 0 || libc::sched_getparam(tid.cast_signed(), &raw mut param) < 0 {
            return Err(io::Error::last_os_error());
        }
        policy
    };
    Ok((policy, param.sched_priority))
}

/// Gives a thread another policy.
pub(crate) fn set_policy(tid: u32, (policy, priority): (i32, i32)) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: a number and a struct that is read during the call.
    let result = unsafe { libc::sched_setscheduler(tid.cast_signed(), policy, &raw const param) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
