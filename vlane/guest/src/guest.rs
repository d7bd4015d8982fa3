//! A running guest: its console, its time limit, its end.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use tempfile::{TempDir, TempPath};

use crate::console::{Console, Echo};
use crate::error::{Error, ErrorKind, Result, io};
use crate::process::{Spec, kill_group, kill_rest_of_group, tail, wait_until};

/// Files that a guest needs only while it runs.
#[derive(Debug, Default)]
pub(crate) struct Keep {
    pub(crate) files: Vec<TempPath>,
    pub(crate) directories: Vec<TempDir>,
}

/// A guest that runs. Dropping it kills it, with its whole process group.
#[derive(Debug)]
pub struct Guest {
    what: &'static str,
    child: Child,
    console: Console,
    started: Instant,
    limit: Duration,
    _keep: Keep,
}

/// Results of a guest.
#[derive(Debug, Clone)]
pub struct Report {
    /// Its `RESULT key=value` lines; the last one of a key counts.
    pub results: BTreeMap<String, String>,
    /// Everything on its console, and what the virtual machine monitor said.
    pub console: String,
    /// How long it ran.
    pub elapsed: Duration,
    /// How the virtual machine monitor ended.
    pub status: ExitStatus,
}

impl Report {
    /// The value of a result; an error that shows the console's end when the guest did not report
    /// it.
    pub fn result(&self, key: &str) -> Result<&str> {
        self.results.get(key).map(String::as_str).ok_or_else(|| {
            Error::new(
                ErrorKind::Process,
                format!(
                    "the guest did not report {key}; its console ended with:\n{}",
                    tail(&self.console, 25)
                ),
            )
        })
    }

    /// An error unless the guest's script ran to its end with status 0 (see [`crate::Initramfs`]).
    pub fn script_ok(&self) -> Result<()> {
        match self.result("script")? {
            "0" => Ok(()),
            status => Err(Error::new(
                ErrorKind::Process,
                format!(
                    "the guest's script ended with status {status}; its console ended with:\n{}",
                    tail(&self.console, 25)
                ),
            )),
        }
    }
}

impl Guest {
    pub(crate) fn start(
        what: &'static str,
        spec: &Spec,
        limit: Duration,
        echo: Option<Echo>,
        keep: Keep,
    ) -> Result<Self> {
        let mut child = spec.spawn_apart("KILL")?;
        let console = Console::of(&mut child, echo);
        Ok(Self { what, child, console, started: Instant::now(), limit, _keep: keep })
    }

    /// The process id of the virtual machine monitor.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The console so far.
    pub fn console(&self) -> String {
        self.console.text()
    }

    /// The results so far.
    pub fn results(&self) -> BTreeMap<String, String> {
        self.console.results()
    }

    /// Types at the guest's console.
    pub fn send(&mut self, text: &str) -> Result<()> {
        let gone =
            || Error::new(ErrorKind::Process, format!("{}: its console is closed", self.what));
        let pipe = self.child.stdin.as_mut().ok_or_else(gone)?;
        pipe.write_all(text.as_bytes())
            .and_then(|()| pipe.flush())
            .map_err(io(|| format!("{}: cannot type at its console", self.what)))
    }

    /// Waits until the guest reports `key`, at most for `limit` and never longer than the guest may
    /// run.
    pub fn wait_result(&self, key: &str, limit: Duration) -> Result<String> {
        self.wait_for(key, limit, |results| results.get(key).cloned())
    }

    /// Waits until the guest has reported one of `keys`, as [`Guest::wait_result`] does.
    pub fn wait_results(&self, keys: &[&str], limit: Duration) -> Result<()> {
        let has_any = |results: &BTreeMap<String, String>| {
            keys.iter().any(|key| results.contains_key(*key)).then_some(())
        };
        self.wait_for(&keys.join(" or "), limit, has_any)
    }

    fn wait_for<T>(
        &self,
        what: &str,
        limit: Duration,
        found: impl Fn(&BTreeMap<String, String>) -> Option<T>,
    ) -> Result<T> {
        let limit = limit.min(self.left());
        self.console.wait_for(limit, |_, results| found(results)).ok_or_else(|| {
            if self.console.wait_closed(Duration::ZERO) {
                return self
                    .problem(ErrorKind::Process, &format!("ended without reporting {what}"));
            }
            let text = format!("did not report {what} within {} s", limit.as_secs());
            self.problem(ErrorKind::Timeout, &text)
        })
    }

    /// Waits for the guest's end. A guest over its time is killed, and that is an error.
    pub fn wait(mut self) -> Result<Report> {
        let Some(status) = self.poll(self.left())? else {
            self.kill();
            return Err(self.problem(
                ErrorKind::Timeout,
                &format!("was killed after {} s", self.limit.as_secs()),
            ));
        };
        let elapsed = self.started.elapsed();
        self.console.wait_closed(Duration::from_secs(2));
        self.kill();
        Ok(Report {
            results: self.console.results(),
            console: self.console.text(),
            elapsed,
            status,
        })
    }

    /// Waits a while for the guest's end; `None` if it still runs then.
    pub fn poll(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        wait_until(&mut self.child, Instant::now() + limit)
    }

    /// True if it has run longer than it may; [`Guest::wait`] then kills it.
    pub fn is_overdue(&self) -> bool {
        self.left().is_zero()
    }

    /// Ends the guest at once, as pulling the plug does.
    pub fn kill(&mut self) {
        kill_group(&mut self.child);
        // A child of the monitor's that outlived it still holds the console. Then the group still
        // exists, and its number cannot have been reused.
        if !self.console.wait_closed(Duration::from_millis(200)) {
            kill_rest_of_group(&self.child);
            self.console.wait_closed(Duration::from_secs(10));
        }
    }

    fn left(&self) -> Duration {
        self.limit.saturating_sub(self.started.elapsed())
    }

    fn problem(&self, kind: ErrorKind, what: &str) -> Error {
        let console = self.console.text();
        Error::new(
            kind,
            format!(
                "{}: the guest {what}; its console ended with:\n{}",
                self.what,
                tail(&console, 25)
            ),
        )
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
    }
}
