//! Deterministic simulation: the real lanes, rings and file engine against a model of guest, kernel
//! and disk, in one thread, from one seed.
//!
//! vlane-lane, vlane-engine and vlane-io are compiled a second time for it (`io`, `engine`, `lane`
//! beside this crate's `src`). A kernel that takes no step by itself replaces the system's
//! (checks/dst/io/src/system.rs): no io_uring, no page cache, no clock. A run takes one step at a
//! time, of the guest, of a lane thread, of the kernel, in an order that its seed decides.
//! Between them back ends die, the power fails, and control makes its changes. TigerBeetle's
//! simulator is the example.
//!
//! | module | what |
//! |---|---|
//! | `plan` | what a run is like |
//! | `world` | whose step is next |
//! | `guest` | the guest's memory and driver (vlane-driver's rings) |
//! | `backend` | an engine, its threads and lanes, control |
//! | `kernel` | operations: their order, their faults, what is left of them when their process dies |
//! | `disk` | what sectors hold, now and after a power cut |
//! | `history` | what must hold |
//! | `strangers` | whom a slow operation may keep waiting |
//! | `bug` | bugs that are planted |

#![forbid(unsafe_code)]

mod backend;
mod bug;
mod disk;
mod guest;
mod history;
mod kernel;
mod log;
mod plan;
mod strangers;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use bug::Bug;
pub use plan::Options;
pub use world::Tally;

use log::Log;
use world::World;

/// A run that ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The violated property, if there is one.
    pub failure: Option<String>,
    /// A sum over all steps: two runs with the same one took the same steps.
    pub sum: u64,
    /// The steps in words, if they were wanted.
    pub steps: Vec<String>,
    /// Counts of the run's events.
    pub tally: Tally,
}

/// Runs a seed.
///
/// # Errors
/// An error if the system gives no memory or no descriptors: the run then proves no property of
/// vlane.
pub fn run(seed: u64, options: Options) -> Result<Report, Box<dyn std::error::Error>> {
    let log = Log::new(options.keeps_steps);
    let mut tally = Tally::default();
    let body = AssertUnwindSafe(|| {
        let mut world = World::new(seed, options.bug, log.clone())?;
        let ran = world.run();
        tally = world.tally;
        ran
    });
    match catch_unwind(body) {
        Ok(ran) => ran?,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
            log.fail(|| format!("panicked: {text}"));
        }
    }
    Ok(Report { failure: log.failure(), sum: log.sum(), steps: log.steps(), tally })
}
