//! fio on the host: the same jobs on a file of the file system that the images are on.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use vlane_guest::Spec;

use super::jobs::{self, CacheState, OLD, Settings};
use super::loads::{Load, Pattern};
use super::scratch::{run, warm_pages};
use vlane_testbed::error::{Context, Error, ErrorKind, Result};
use vlane_testbed::fio::{self, Outcome};
use vlane_testbed::interrupt::Interrupt;

/// Longest that fio may take beside the time it measures.
const SPARE: Duration = Duration::from_secs(60);
/// The kernel's knob that empties its caches.
const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// fio on the host.
#[derive(Debug, Clone)]
pub struct HostFio<'a> {
    /// fio.
    pub program: PathBuf,
    /// The directory of its files.
    pub files: PathBuf,
    /// Where job files go.
    pub scratch: PathBuf,
    /// How jobs are run.
    pub settings: Settings,
    /// Ends it.
    pub interrupt: &'a Interrupt,
}

impl HostFio<'_> {
    /// Runs a load in `jobs` processes' worth of threads at once.
    ///
    /// # Errors
    /// [`ErrorKind::Process`] if fio fails, [`ErrorKind::Format`] if its answer is not understood,
    /// [`ErrorKind::Interrupted`].
    pub fn run(&self, load: &Load, jobs: u16) -> Result<Outcome> {
        match self.settings.cache {
            CacheState::Direct => {}
            CacheState::Warm if load.pattern == Pattern::Write => {}
            CacheState::Warm => warm_pages(&self.files.join(OLD))?,
            CacheState::Cold => drop_caches()?,
        }
        let mut text = jobs::global(load, &self.settings);
        if jobs > 1 {
            text += &format!("numjobs={jobs}\ngroup_reporting=1\n");
        }
        text += &jobs::section("host", load, &self.files.display().to_string(), None);
        let job = self.scratch.join("host.fio");
        std::fs::write(&job, text)
            .context(ErrorKind::Io, || format!("{}: cannot be written", job.display()))?;
        let words: [OsString; 3] =
            ["--output-format=terse".into(), "--terse-version=3".into(), job.into_os_string()];
        let mut spec = Spec::new(&self.program, words);
        // fio leaves a file of its own where it runs, for loads with verification.
        spec.cwd = Some(self.scratch.clone());
        let limit = Duration::from_millis(self.settings.runtime_ms) + SPARE;
        let answer = run(&spec, limit, self.interrupt)?;
        let line = answer.lines().find(|line| line.starts_with("3;"));
        let line = line.ok_or_else(|| {
            Error::new(
                ErrorKind::Format,
                format!("fio on the host printed no result: {}", answer.trim()),
            )
        })?;
        let (_, mut outcome) = fio::parse(line, load.record())?;
        // With several threads the percentages are of one.
        outcome.cpu_us *= f64::from(jobs);
        Ok(outcome)
    }
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
