//! The BPF program's counts for a vCPU.

use super::bytes::Reader;
use crate::Result;

/// `struct vcpu`.
const VCPU: usize = 152;
/// `MAX_THREADS`.
const THREADS: usize = 16;

/// A `struct vcpu`, as far as user space looks at it. The times only grow.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// CPU time of its threads.
    pub(crate) used_ns: u64,
    /// The boosted part of it.
    pub(crate) boosted_ns: u64,
    /// The part of `used_ns` that was taken off its credits.
    pub(crate) charged_ns: u64,
    /// The rest of the current boost; 0: there is none.
    pub(crate) boost_left_ns: u64,
    /// The time since when it waits for a CPU, `CLOCK_MONOTONIC`; 0: it does not.
    pub(crate) waits_since: u64,
    /// The number of its threads that run now, and that run or wait.
    pub(crate) running: u32,
    pub(crate) runnable: u32,
    pub(crate) tids: Vec<u32>,
    pub(crate) untracked: u32,
}

impl Seen {
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let mut from = Reader::new(bytes, "vcpu", VCPU)?;
        let (used_ns, boosted_ns, charged_ns) = (from.u64(), from.u64(), from.u64());
        let _base_ns = from.i64();
        let (boost_left_ns, _counted_until, waits_since) = (from.u64(), from.u64(), from.u64());
        let (_lock, _open) = (from.u32(), from.u32());
        let (running, runnable) = (from.u32(), from.u32());
        let (_cpu, _boost_is_charged) = (from.i32(), from.u32());
        let tids: Vec<i32> = (0..THREADS).map(|_| from.i32()).collect();
        let tids = tids.into_iter().filter(|tid| *tid > 0).map(i32::cast_unsigned).collect();
        let untracked = from.u32();
        Ok(Self {
            used_ns,
            boosted_ns,
            charged_ns,
            boost_left_ns,
            waits_since,
            running,
            runnable,
            tids,
            untracked,
        })
    }
}
