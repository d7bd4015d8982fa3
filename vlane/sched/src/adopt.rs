//! The rule that decides which threads may be taken, the same for both vehicles.

#[cfg(feature = "sched-ext")]
use crate::sys;
use crate::sys::Class;
use crate::thread::Thread;
use crate::vehicle::{MAX_THREADS, VcpuThreads};
use crate::{Error, ErrorKind, Result};

/// Opens a vCPU's thread, and checks that its number does not belong to another thread by now.
///
/// # Errors
///
/// [`ErrorKind::Gone`]: it has ended, or the number is another process's now.
pub(crate) fn find(vcpu: &VcpuThreads, tid: u32) -> Result<Thread> {
    let thread = Thread::open(tid)?;
    checked(vcpu, &thread)?;
    Ok(thread)
}

/// The same for an open thread.
///
/// # Errors
///
/// As [`find`].
pub(crate) fn checked(vcpu: &VcpuThreads, thread: &Thread) -> Result<()> {
    // User-Mode Linux runs its guest's processes in child processes.
    if vcpu.pid != 0 && thread.pid() != vcpu.pid && thread.parent() != Some(vcpu.pid) {
        let (name, tid, pid) = (&vcpu.name, thread.tid(), thread.pid());
        let text = format!("{name}: thread {tid} is one of process {pid} now, not of {}", vcpu.pid);
        return Err(Error::new(ErrorKind::Gone, text));
    }
    Ok(())
}

/// Returns true if threads of this scheduling class are taken: any other class was set by an
/// administrator for a reason.
pub(crate) const fn is_ordinary(class: Class) -> bool {
    matches!(class, Class::Other | Class::Batch | Class::Idle)
}

/// The thread is scheduled in a way that is left alone.
pub(crate) fn left_alone(vcpu: &str, tid: u32, class: Class) -> Error {
    let what = match class.number() {
        1 => "real-time (SCHED_FIFO)".into(),
        2 => "real-time (SCHED_RR)".into(),
        6 => "a deadline thread (SCHED_DEADLINE)".into(),
        7 => "another sched_ext scheduler's (SCHED_EXT)".into(),
        number => format!("scheduled by policy {number}"),
    };
    let text = format!("{vcpu}: thread {tid} is {what} (`chrt -p {tid}`): left alone");
    Error::new(ErrorKind::LeftAlone, text)
}

/// The vCPU's threads that are taken at all: the first so many. Each boost takes some system calls
/// for each of them.
pub(crate) fn first_of(vcpu: &VcpuThreads) -> &[u32] {
    &vcpu.tids[..vcpu.tids.len().min(MAX_THREADS)]
}

/// Takes a vCPU's threads, at most the first [`MAX_THREADS`] of them. A thread that has ended
/// meanwhile, or that is left alone (which is reported), does not keep the others from it. Any
/// other refusal does.
///
/// # Errors
///
/// With what was taken so far, which is to be given back: the first refusal, or that there is none
/// to take.
pub(crate) fn all<T>(
    vcpu: &VcpuThreads,
    mut take: impl FnMut(u32) -> Result<T>,
) -> std::result::Result<Vec<T>, (Vec<T>, Error)> {
    let (mut taken, mut alone) = (Vec::with_capacity(first_of(vcpu).len()), Vec::new());
    for &tid in first_of(vcpu) {
        match take(tid) {
            Ok(thread) => taken.push(thread),
            Err(error) if error.kind() == ErrorKind::Gone && vcpu.tids.len() > 1 => {}
            Err(error) if error.kind() == ErrorKind::LeftAlone => alone.push(error),
            Err(error) => return Err((taken, error)),
        }
    }
    if taken.is_empty() {
        let none =
            || Error::new(ErrorKind::Gone, format!("{}: all its threads have ended", vcpu.name));
        return Err((taken, alone.pop().unwrap_or_else(none)));
    }
    for error in alone {
        tracing::warn!("{error}");
    }
    Ok(taken)
}

/// Returns true if a thread exists and is ordinary now.
#[cfg(feature = "sched-ext")]
pub(crate) fn is_ordinary_now(tid: u32) -> bool {
    sys::get(tid).is_ok_and(|attr| is_ordinary(attr.class))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn vcpu(pid: u32, tids: &[u32]) -> VcpuThreads {
        VcpuThreads { pid, index: 0, tids: tids.to_vec(), name: "machine".into() }
    }

    /// A child that lives when its machine joins is one of its threads; a stranger is not.
    #[test]
    fn living_child_belongs_to_machine() {
        let me = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let machine = vcpu(me, &[me, child.id()]);
        let found = machine.tids.iter().map(|&tid| find(&machine, tid).unwrap().tid());
        assert_eq!(found.collect::<Vec<_>>(), [me, child.id()]);
        // Neither its own process's nor a child's of it.
        let error = find(&vcpu(child.id(), &[me]), me).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(find(&machine, child.id()).unwrap_err().kind(), ErrorKind::Gone);
    }

    /// Skipped or ended threads do not keep the others from being taken; a refusal gives all back.
    #[test]
    fn refused_thread_returns_all_taken_threads() {
        let take = |tid: u32| match tid {
            1 => Err(left_alone("machine", tid, Class::Else(1))),
            2 => Err(Error::new(ErrorKind::Gone, "gone")),
            3 => Err(Error::new(ErrorKind::Permission, "refused")),
            tid => Ok(tid),
        };
        assert_eq!(all(&vcpu(0, &[4, 1, 2, 5]), take).unwrap(), [4, 5]);
        let (taken, error) = all(&vcpu(0, &[4, 3, 5]), take).unwrap_err();
        assert_eq!((taken, error.kind()), (vec![4], ErrorKind::Permission));
        let (taken, error) = all(&vcpu(0, &[1, 2]), take).unwrap_err();
        assert_eq!((taken, error.kind()), (vec![], ErrorKind::LeftAlone));
        for gone in [&[2][..], &[2, 2]] {
            assert_eq!(all(&vcpu(0, gone), take).unwrap_err().1.kind(), ErrorKind::Gone);
        }
    }

    proptest::proptest! {
        /// A machine may name any threads as its own: no more than the limit are tried, let alone
        /// taken.
        #[test]
        fn threads_of_a_vcpu_are_limited(tids in proptest::collection::vec(1_u32..1000, 1..600)) {
            let mut tried = Vec::new();
            let taken = all(&vcpu(0, &tids), |tid| {
                tried.push(tid);
                match tid % 3 {
                    0 => Err(Error::new(ErrorKind::Gone, "gone")),
                    _ => Ok(tid),
                }
            });
            proptest::prop_assert!(tried.len() <= MAX_THREADS);
            proptest::prop_assert!(tids.starts_with(&tried));
            proptest::prop_assert!(taken.map_or(0, |taken| taken.len()) <= MAX_THREADS);
        }
    }

    #[test]
    fn only_ordinary_threads_are_taken() {
        let taken: Vec<u32> = (0..10).filter(|&number| is_ordinary(Class::of(number))).collect();
        assert_eq!(taken, [0, 3, 5]);
    }
}
