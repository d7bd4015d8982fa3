//! vCPUs that are plugged in and out while their machine runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use vlane_error::describe;
use vlane_hint::ProcessId;

use super::proc::Thread;
use super::{names, proc, qmp};
use crate::Result;
use crate::vehicle::VcpuThreads;

/// All threads' names are read again when there are more or fewer threads than before, but no
/// sooner (a machine's workers come and go);
pub(super) const CHANGED: Duration = Duration::from_millis(200);
/// and also when there are as many.
const UNCHANGED: Duration = Duration::from_secs(2);
/// QEMU is asked again when it has more or fewer threads than before, but no sooner.
const ASK: Duration = Duration::from_secs(5);

fn has_all(process: ProcessId, vcpu: &VcpuThreads) -> bool {
    vcpu.tids.iter().all(|&tid| proc::has_thread(process, tid))
}

/// A machine whose threads carry names.
#[derive(Debug, Clone)]
pub(super) struct Named {
    threads: usize,
    read: Instant,
}

impl Named {
    pub(super) fn new(threads: &[Thread]) -> Self {
        Self { threads: threads.len(), read: Instant::now() }
    }

    /// The machine's vCPUs, if it was time to look for others than these.
    pub(super) fn look(
        &mut self,
        process: ProcessId,
        known: &[VcpuThreads],
    ) -> Result<Option<Vec<VcpuThreads>>> {
        // `.` and `..` are links, too.
        let is_other = proc::thread_count(process)? != self.threads as u64 + 2;
        let wait = if is_other { CHANGED } else { UNCHANGED };
        if self.read.elapsed() < wait && known.iter().all(|vcpu| has_all(process, vcpu)) {
            return Ok(None);
        }
        let threads = proc::threads(process)?;
        *self = Self::new(&threads);
        Ok(Some(names::vcpus(process.pid, &threads)))
    }
}

/// QEMU's answer: `None`, if it has not.
type Answer = Arc<OnceLock<Option<Vec<VcpuThreads>>>>;

/// A machine that is asked.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    path: PathBuf,
    asked: Instant,
    /// The time of the last question.
    threads: Option<u64>,
    /// True if it was asked, and has not answered.
    stale: bool,
    answer: Option<Answer>,
}

impl Asked {
    pub(super) fn new(path: &Path) -> Self {
        Self { path: path.into(), asked: Instant::now(), threads: None, stale: false, answer: None }
    }

    /// Returns the machine's vCPUs, if they have changed. QEMU is asked on a separate thread,
    /// because it may take seconds.
    pub(super) fn look(
        &mut self,
        process: ProcessId,
        known: &[VcpuThreads],
    ) -> Result<Option<Vec<VcpuThreads>>> {
        let threads = proc::thread_count(process)?;
        let before = *self.threads.get_or_insert(threads);
        let answered = self.answer.as_ref().and_then(|answer| answer.get().cloned());
        if let Some(answer) = &answered {
            self.answer = None;
            // Without an answer the changes are unknown.
            self.stale = answer.is_none();
        }
        if (threads != before || self.stale) && self.answer.is_none() && self.asked.elapsed() >= ASK
        {
            self.ask(process, threads);
        }
        let vcpus = answered.flatten();
        let is_gone = |vcpu: &VcpuThreads| !has_all(process, vcpu);
        if vcpus.is_none() && !known.iter().any(is_gone) {
            return Ok(None);
        }
        // Threads that have ended need no answer, and may have ended since.
        let mut vcpus = vcpus.unwrap_or_else(|| known.to_vec());
        vcpus.retain(|vcpu| !is_gone(vcpu));
        Ok(Some(vcpus))
    }

    fn ask(&mut self, process: ProcessId, threads: u64) {
        self.asked = Instant::now();
        let answer = Answer::default();
        let (path, to) = (self.path.clone(), Arc::clone(&answer));
        let ask = move || {
            let found = match qmp::machine_at(&path) {
                Ok((found, vcpus)) if found == process => Some(vcpus),
                // Another process listens there by now.
                Ok(_) => None,
                Err(error) => {
                    tracing::debug!("{}", describe(&error));
                    None
                }
            };
            let _ = to.set(found);
        };
        if std::thread::Builder::new().name("sched-qmp".into()).spawn(ask).is_ok() {
            self.threads = Some(threads);
            self.answer = Some(answer);
        }
    }
}
