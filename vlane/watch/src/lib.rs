//! I/O that is not vlane's own: a virtual machine's interrupts are eventfds, signalled by vhost in
//! the kernel, another back end, or QEMU for KVM. BPF programs in the kernel see them, and report
//! the vCPU that is to take one.
//!
//! `program` is the kernel's side (`bpf/watch.bpf.c`), `scan` finds the machines' eventfds in
//! `/proc`, `source` reports to the daemon. All of it lives in file descriptors of this process:
//! however it ends, no part stays in the kernel.

#![forbid(unsafe_code)]

mod probe;

#[cfg(feature = "bpf")]
mod program;
#[cfg(feature = "bpf")]
mod scan;
#[cfg(feature = "bpf")]
mod source;

pub use probe::probe;

use vlane_sched::Result;
use vlane_sched::live::backends::Silence;
use vlane_sched::live::source::Source;

/// A source that watches every vCPU of the daemon that it is added to, and what silences it. An
/// event that was not served within `boost_ns` is forgotten.
///
/// # Errors
///
/// [`probe`]'s, and [`vlane_sched::ErrorKind::Unsupported`] or
/// [`vlane_sched::ErrorKind::Permission`] when the kernel refuses the programs; no program is
/// attached then.
pub fn open(boost_ns: u64) -> Result<(Box<dyn Source>, Box<dyn Silence>)> {
    probe()?;
    #[cfg(feature = "bpf")]
    {
        let watch = source::EventfdWatch::load(boost_ns)?;
        let silencer = watch.silencer()?;
        Ok((Box::new(watch), Box::new(silencer)))
    }
    #[cfg(not(feature = "bpf"))]
    {
        let _ = boost_ns;
        Err(vlane_sched::Error::new(vlane_sched::ErrorKind::Unsupported, probe::NOT_BUILT))
    }
}
