//! The sched_ext vehicle: vCPU threads are run by this project's scheduler inside the kernel, a BPF
//! program.
//!
//! [`probe`] says whether this kernel and this user can have it. `SchedExt` (with the cargo feature
//! `sched-ext`) loads the program and keeps the accounts ([`vlane_policy::loan::Book`]). It reads
//! the program's counts and decides at an event. It tells the program which vCPU to boost and for
//! how long, and, every 30 ms, all credits. When this process ends, however it ends, the kernel
//! unloads the scheduler.

mod probe;

#[cfg(feature = "sched-ext")]
mod bytes;
#[cfg(feature = "sched-ext")]
mod notices;
#[cfg(feature = "sched-ext")]
mod program;
#[cfg(feature = "sched-ext")]
mod seen;
#[cfg(feature = "sched-ext")]
#[allow(unsafe_code)]
mod sys;
#[cfg(feature = "sched-ext")]
mod vehicle;

pub use probe::{Presence, probe, state};
#[cfg(feature = "sched-ext")]
pub use vehicle::{Counters, SchedExt};

use vlane_policy::loan::units::MS;
use vlane_policy::loan::{Goal, Params, Policy};

use crate::{Error, ErrorKind, Result, Vehicle};

/// The vehicle's options.
#[derive(Debug, Clone)]
pub struct Options {
    /// The policy's parameters.
    pub params: Params,
    /// The goal of [`Policy::Adaptive`].
    pub goal: Goal,
    /// A turn on a CPU, nanoseconds: how long a vCPU runs before the next one of its class.
    pub slice_ns: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { params: Params::sound(Policy::Loan), goal: Goal::default(), slice_ns: 5 * MS }
    }
}

/// Loads the vehicle.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] when the kernel cannot do it or this program was built without it,
/// [`ErrorKind::Permission`] for want of privileges; the text says what to do.
pub fn open(options: Options) -> Result<Box<dyn Vehicle>> {
    probe()?;
    #[cfg(feature = "sched-ext")]
    return Ok(Box::new(SchedExt::load(options)?));
    #[cfg(not(feature = "sched-ext"))]
    {
        let _ = options;
        Err(Error::new(
            ErrorKind::Unsupported,
            "sched_ext: this vlane was built without it; build it with `cargo build --features \
             sched-ext` (needs make, pkg-config, libelf-dev and zlib1g-dev)",
        ))
    }
}

#[cfg(feature = "sched-ext")]
pub(crate) fn failed(kind: ErrorKind, what: impl Into<String>, cause: impl Into<Cause>) -> Error {
    Error::caused_by(kind, format!("sched_ext: {}", what.into()), cause)
}

#[cfg(feature = "sched-ext")]
type Cause = Box<dyn std::error::Error + Send + Sync>;
