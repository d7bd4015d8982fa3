//! fio on the host: the same jobs on a file of the file system that the images are on.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use vlane_guest::Spec;

use super::Setup;
use super::jobs::{self, CacheState, OLD};
use super::loads::{Load, Pattern};
use super::scratch::{run, warm_pages};
use vlane_testbed::fio::Outcome;
use vlane_testbed::{At, Context, ErrorKind, Interrupt, Result, fio};

/// Longest that fio may take beside the time it measures.
const SPARE: Duration = Duration::from_secs(60);
/// The kernel's knob that empties its caches.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Runs a load on the host.
///
/// # Errors
/// [`ErrorKind::Process`] if fio fails, [`ErrorKind::Format`] if its answer is not understood,
/// [`ErrorKind::Interrupted`].
pub(super) fn measure(setup: &Setup<'_>, load: &Load) -> Result<Outcome> {
    let (scratch, settings) = (setup.scratch, &setup.settings);
    match settings.cache {
        CacheState::Direct => {}
        CacheState::Warm if load.pattern == Pattern::Write => {}
        CacheState::Warm => warm_pages(&scratch.files().join(OLD))?,
        CacheState::Cold => drop_caches()?,
    }
    let text = jobs::global(load, settings)
        + &jobs::section("host", load, &scratch.files().display().to_string(), None);
    let job = scratch.dir().join("host.fio");
    std::fs::write(&job, text).at(&job, "cannot be written")?;
    let words: [OsString; 3] =
        ["--output-format=terse".into(), "--terse-version=3".into(), job.into_os_string()];
    let mut spec = Spec::new(&setup.found.fio, words);
    // fio leaves a file of its own where it runs, for loads with verification.
    spec.cwd = Some(scratch.dir().to_path_buf());
    let mut outcome = fio(&spec, load.record(), settings.runtime, setup.call.interrupt)?;
    // With several threads the percentages are of one.
    outcome.cpu_us *= f64::from(load.jobs);
    Ok(outcome)
}

/// Runs fio, which measures one job with requests of `record` bytes for `runtime`.
///
/// # Errors
/// Those of [`measure`].
pub(crate) fn fio(
    spec: &Spec,
    record: u64,
    runtime: Duration,
    interrupt: &Interrupt,
) -> Result<Outcome> {
    let answer = run(spec, runtime + SPARE, interrupt)?;
    let line = answer.lines().find(|line| line.starts_with("3;")).unwrap_or(&answer);
    Ok(fio::parse(line, record)?.1)
}

/// Writes out and empties the host's page cache.
///
/// # Errors
/// [`ErrorKind::Io`]: it needs root.
pub fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    std::fs::write(DROP_CACHES, "3").context(ErrorKind::Io, || {
        format!(
            "{DROP_CACHES}: cannot be written; emptying the page cache needs root, because it \
             affects the whole host"
        )
    })
}

/// True if caches can be dropped, without doing it.
pub fn can_drop_caches() -> bool {
    rustix::fs::access(Path::new(DROP_CACHES), rustix::fs::Access::WRITE_OK).is_ok()
}
